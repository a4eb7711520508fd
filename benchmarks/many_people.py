"""Time, memory and accuracy of a default fit of 1,000 to 100,000 demonstrators.

python benchmarks/many_people.py --out results/benchmarks/many-people-cpu.json

They have 20 steps on average; the numbers of steps are lognormal. Skills are uniform, states recur. Each size
is fitted in a process of its own; the rank correlation is Spearman's, of estimated expertise with the true skill.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from time import monotonic, process_time
from typing import Any

import numpy as np

import ileed
from ileed import runs
from ileed.rating.ranks import rank_correlation

SIZES = (1_000, 3_000, 10_000, 30_000, 100_000)
STATES, ACTIONS, EPISODE, MEAN_STEPS = 400, 5, 10, 20
ENOUGH_STEPS = 50


def population(people: int, *, seed: int = 0) -> tuple[ileed.Demonstrations, np.ndarray[Any, Any]]:
    """Demonstrations in episodes of ten steps, and (demonstrator,) true skills.

    The expert's action is a function of four features of a state; a demonstrator of skill s takes it with
    probability s, and otherwise any action with equal probability.
    """
    chance = np.random.default_rng([people, seed])
    features = chance.uniform(-1, 1, size=(STATES, 4)).round(3).astype(np.float32)
    expert = np.tanh(features @ chance.normal(size=(4, 16)) * 1.5) @ chance.normal(size=(16, ACTIONS))
    spread = 1.2  # of the logarithm of the number of steps
    steps = np.maximum(1, chance.lognormal(np.log(MEAN_STEPS) - spread**2 / 2, spread, size=people).round().astype(int))
    skill = chance.uniform(0, 1, size=people)
    who = np.repeat(np.arange(people), steps)
    state = (STATES * chance.random(len(who)) ** 2).astype(int)
    follows = chance.random(len(who)) < skill[who]
    place = np.arange(len(who)) - np.repeat(np.cumsum(steps) - steps, steps)  # of a step among its demonstrator's own
    data = ileed.Demonstrations(
        observations=features[state],
        actions=np.where(follows, expert.argmax(1)[state], chance.integers(ACTIONS, size=len(who))),
        demonstrator=who,
        episode=np.cumsum(place % EPISODE == 0) - 1,
        names=tuple(f"person {number}" for number in range(people)),
    )
    return data, skill


def measure(people: int, *, seed: int = 0) -> dict[str, Any]:
    """Fit, save and report, in this process."""
    data, skill = population(people, seed=seed)
    memory = _peak_gigabytes()
    began, used = monotonic(), process_time()
    fitted = ileed.Ileed().fit(data, seed=seed, device="cpu")
    found: dict[str, Any] = {"people": people, "steps": len(data)}
    found |= {"seconds": round(monotonic() - began, 1), "processor_seconds": round(process_time() - used, 1)}
    found |= {"peak_gigabytes": _peak_gigabytes(), "of_which_data": memory}
    enough = data.steps_each >= ENOUGH_STEPS
    ratings = fitted.expertise.ratings
    assert ratings is not None
    found["with_enough_steps"] = int(enough.sum())
    for name, values in {
        "rated": ratings.best.expertise,
        "in_sample": fitted.expertise.summary.by_demonstrator,
    }.items():
        each = np.asarray(values)
        found[f"rank_correlation_{name}"] = round(rank_correlation(each[enough], skill[enough]), 4)
        found[f"rank_correlation_{name}_everybody"] = round(rank_correlation(each, skill), 4)
    low, high = ratings.best.low, ratings.best.high
    found["coverage"] = round(float(((low <= skill) & (skill <= high)).mean()), 4)
    with tempfile.TemporaryDirectory() as folder:
        began = monotonic()
        fitted.save(Path(folder) / "run")
        page = ileed.report(Path(folder) / "run")
        found |= {"save_and_report_seconds": round(monotonic() - began, 1), "report_bytes": page.stat().st_size}
        found["run_megabytes"] = round(sum(file.stat().st_size for file in (Path(folder) / "run").iterdir()) / 1e6, 1)
    return found


def _peak_gigabytes() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2)


def main() -> None:
    """Measure each size in a process of its own, print it, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--people", type=int, nargs="+", default=SIZES)
    parser.add_argument("--out", type=Path, help="where to write the record; sizes that it has already are kept")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)  # measure one size in this process
    asked = parser.parse_args()
    if asked.one is not None:
        print(json.dumps(measure(asked.one)))
        return
    known = {} if asked.out is None or not asked.out.exists() else json.loads(asked.out.read_text())
    found = {each["people"]: each for each in known.get("sizes", [])}
    for people in asked.people:
        command = [sys.executable, __file__, "--one", str(people)]
        own = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        found[people] = own | {"load": round(os.getloadavg()[0], 1)}
        print(json.dumps(found[people]), flush=True)
        if asked.out is not None:
            record = {"provenance": runs.provenance(), "sizes": [found[each] for each in sorted(found)]}
            asked.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
