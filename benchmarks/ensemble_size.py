"""Ensembles of restarts: the reward of one, three and ten of the likeliest restarts of the same fit.

    python benchmarks/ensemble_size.py fit [--cells NAME ...] [--trials N]   # fit Ileed() and score its ensembles
    python benchmarks/ensemble_size.py page                                  # write docs/decisions/ensemble.md

`fit` keeps the trials that the record already holds, adds those that it lacks, and writes the record after each. A cell
is a setting of a MiniGrid experiment, and trial k has the demonstrations, the seed of the fit (k) and the seed of the
scored episodes of trial k in the tables of docs/reproduction.md. A fit takes one to two minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import ileed
from ileed import runs, tasks
from ileed.demonstrations import Demonstrations
from ileed.errors import SettingsError
from ileed.width import RESTARTS, WidthComparison
from ileed_lab.catalogue import EXPERIMENTS
from ileed_lab.grid import Measured, Setting, scoring_seed

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "results" / "benchmarks" / "ensemble-size.json"
SIZES = (1, 3, 10)
EPISODES = 500
TRIALS = 10


@final
@dataclass(frozen=True)
class Case:
    """A setting of an experiment of the tables, in which `Ileed()` is fitted with its default settings."""

    experiment: str
    setting: Setting

    @property
    def name(self) -> str:
        """As in 'populations unlock beta-1'."""
        words = [self.experiment, *map(str, self.setting.values())]
        return " ".join(word.removeprefix("minigrid/") for word in words)

    def demonstrations(self, trial: int) -> Demonstrations:
        """What the same trial of the tables was fitted to."""
        (data,) = EXPERIMENTS[self.experiment].demonstrations(self.setting, [trial])
        assert data is not None
        return data


def _population(task: str, population: str) -> Case:
    return Case("minigrid/populations", {"task": f"minigrid/{task}", "population": population})


def _biased(task: str) -> Case:
    return Case("minigrid/wrong-noise", {"task": f"minigrid/{task}", "generator": "biased"})


CASES = (
    *(Case("minigrid/skills", {"beta": beta}) for beta in (0.5, 0.1, 1.0)),
    *(_biased(task) for task in ("obstacles", "unlock")),
    *(_population(task, population) for population in ("beta-1", "beta-5") for task in ("obstacles", "unlock")),
)


def fit_ensembles(
    method: ileed.Ileed, data: Demonstrations, *, seed: int, sizes: Sequence[int]
) -> tuple[WidthComparison | None, Mapping[int, ileed.Policy]]:
    """What `method.fit(data, seed=seed)` gives, as ensembles of several sizes: the width, and a policy for each size.

    The comparison of widths does not depend on the restarts of the fit that follows it, so few are enough there.
    """
    few = replace(method, restarts=min(RESTARTS, method.restarts), committee=1)
    width = few.fit(data, seed=seed, device="cpu").width
    if width is not None:
        method = replace(method, policy=ileed.CategoricalMLP(hidden=width.chosen))
    (restarts,) = method.ascend_each([data], seeds=[seed], device="cpu")
    return width, {size: restarts.fitted(committee=size).policy for size in sizes}


def measure(case: Case, trial: int) -> Measured:
    """One trial: the width that was chosen, and the mean reward of each ensemble in the same episodes."""
    data = case.demonstrations(trial)
    began = time.monotonic()
    width, policies = fit_ensembles(ileed.Ileed(), data, seed=trial, sizes=SIZES)
    assert width is not None
    fitted = time.monotonic()
    task = EXPERIMENTS[case.experiment].task(case.setting)
    rewards = {
        str(size): task.score(tasks.as_actor(policy), episodes=EPISODES, seed=scoring_seed(trial)).mean()
        for size, policy in policies.items()
    }
    return {
        "trial": trial,
        "hidden": list(width.chosen),
        "held_out_nats_per_action": [round(cost, 6) for cost in width.nats_per_action],
        "reward": {size: round(float(reward), 6) for size, reward in rewards.items()},
        "fit_seconds": round(fitted - began, 1),
        "score_seconds": round(time.monotonic() - fitted, 1),
    }


def read_record(path: Path) -> dict[str, Any]:
    """The record at `path`, or an empty one; one that was made with other settings is refused."""
    header = {
        "settings": json.loads(json.dumps(runs.plain(ileed.Ileed()))),
        "plan": {"sizes": list(SIZES), "episodes": EPISODES},
    }
    if not path.exists():
        return header | {"made": [], "cells": []}
    record = dict(json.loads(path.read_text()))
    for name, value in header.items():
        if record[name] != value:
            raise SettingsError(f"{path} was made with another {name}: move it away, or pass another --out")
    return record


def fit(cases: Sequence[Case], *, trials: int, out: Path) -> None:
    """Add to the record the trials that it lacks of each of the cases."""
    runs.refuse_uncommitted(out)
    record = read_record(out)
    cells: dict[str, dict[str, Any]] = {cell["name"]: cell for cell in record["cells"]}
    added: dict[str, list[int]] = {}
    record["made"].append(runs.provenance() | {"device": "cpu", "trials": added})
    for case in cases:
        new = {"name": case.name, "experiment": case.experiment, "setting": dict(case.setting), "trials": []}
        cell = cells.setdefault(case.name, new)
        known = {measured["trial"] for measured in cell["trials"]}
        for trial in sorted({*range(trials)} - known):
            measured = measure(case, trial)
            cell["trials"] = sorted([*cell["trials"], measured], key=lambda each: each["trial"])
            added.setdefault(case.name, []).append(trial)
            record["cells"] = [cells[each.name] for each in CASES if each.name in cells]
            runs.write_file(out, (json.dumps(record, indent=1) + "\n").encode())
            print(case.name, measured, flush=True)


def main() -> None:
    """Run one part of the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("fit",))
    parser.add_argument("--cells", nargs="*", choices=[case.name for case in CASES], metavar="NAME")
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--out", type=Path, default=RECORD)
    asked = parser.parse_args()
    chosen = [case for case in CASES if asked.cells is None or case.name in asked.cells]
    fit(chosen, trials=asked.trials, out=asked.out)


if __name__ == "__main__":
    main()
