"""How long a simulated LeRobot folder takes to inspect, fit and curate, and how much memory.

$ python benchmarks/lerobot_folder.py [--episodes 1000] [--frames 300] [--dimensions 14] [--out RECORD.json]

makes one folder of each version in a temporary place, runs `ileed inspect` on both, with and without a demonstrator,
then the default fit and `ileed curate` on that of v3.0, and prints wall and processor times and peak memory of each
process. Other work on the machine lengthens wall times: the load average before each is printed too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

import ileed
from ileed import runs

PEOPLE = 10


def simulated(episodes: int, frames: int, dimensions: int, seed: int = 0) -> ileed.Demonstrations:
    """A robot that follows its targets; the expert's are a network's, and each demonstrator adds noise."""
    random = np.random.default_rng(seed)
    inner, outer = (random.normal(size=(dimensions, dimensions)) * 1.5 / dimensions**0.5 for _ in range(2))
    who = np.arange(episodes) % PEOPLE
    noise = 0.02 * 1.4**who  # the standard deviation, from 0.02 to 0.41
    state, seen, acted = random.normal(size=(episodes, dimensions)), [], []
    for _ in range(frames):
        action = np.tanh(state @ inner) @ outer + noise[:, None] * random.normal(size=state.shape)
        seen.append(state)
        acted.append(action)
        state = state + 0.1 * (action - state)
    return ileed.Demonstrations(
        observations=np.stack(seen, axis=1).reshape(-1, dimensions).astype(np.float32),
        actions=np.stack(acted, axis=1).reshape(-1, dimensions).astype(np.float32),
        demonstrator=np.repeat(who, frames),
        episode=np.repeat(np.arange(episodes), frames),
        names=tuple(f"operator {number}" for number in range(PEOPLE)),
    )


class Cost(NamedTuple):
    """What a process took; `load` is the load average of the last minute before it."""

    seconds: float
    processor_seconds: float
    peak_megabytes: float
    load: float


def measured(*arguments: str) -> Cost:
    """The cost of a Python process with these arguments."""
    load, began = os.getloadavg()[0], time.perf_counter()
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed")
    processor = usage.ru_utime + usage.ru_stime
    return Cost(*(round(each, 2) for each in (time.perf_counter() - began, processor, usage.ru_maxrss / 1024, load)))


def fit(folder: str, run: str) -> None:
    """The default fit, saved as a run, with the seconds from the first to the last report of each stage beside it."""
    times: dict[str, list[float]] = {}

    def note(progress: ileed.Progress) -> None:
        name = "comparing widths" if progress.stage.startswith("trying") else progress.stage
        times.setdefault(name, []).append(time.perf_counter())

    began = time.perf_counter()
    data = ileed.read(folder)
    times["reading"] = [began, time.perf_counter()]
    fitted = ileed.Ileed().fit(data, seed=0, device="cpu", progress=note)
    fitted.save(run)
    found = {name: round(each[-1] - each[0], 2) for name, each in times.items()}
    order = [name for name, _ in fitted.expertise.ranking()]
    shown = {"stages": found, "width": fitted.width_sentence, "order": order, "outcome": fitted.outcome.value}
    Path(f"{run}.json").write_text(json.dumps(shown))


def main() -> None:
    """Measure, print, and write a record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in {"episodes": 1000, "frames": 300, "dimensions": 14}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--fit", nargs=2, metavar=("FOLDER", "RUN"), help="what the benchmark runs as a process")
    options = parser.parse_args()
    if options.fit:
        fit(*options.fit)
        return
    data = simulated(options.episodes, options.frames, options.dimensions)
    costs = {}
    with tempfile.TemporaryDirectory() as place:
        run, told = f"{place}/run", Path(place) / "run.json"

        def note(name: str, *arguments: str) -> None:
            costs[name] = found = measured(*arguments)
            memory = f"peak {found.peak_megabytes:6.0f} MB  load {found.load:.1f}"
            print(
                f"{name:<32} {found.seconds:7.2f} s  processor {found.processor_seconds:7.2f} s  {memory}", flush=True
            )

        note("import ileed and torch", "-c", "import ileed; ileed.read")
        for version in ("v3.0", "v2.1"):
            folder = f"{place}/{version}"
            ileed.write(data, folder, format="lerobot", version=version)
            note(f"inspect {version}", "-m", "ileed", "inspect", folder)
        note("fit", __file__, "--fit", f"{place}/v3.0", run)
        note("curate", "-m", "ileed", "curate", run, f"{place}/v3.0", "--keep", "0.5", "--out", f"{place}/curated")
        fitted = json.loads(told.read_text())
        for version in ("v3.0", "v2.1"):
            Path(f"{place}/{version}/meta/ileed.json").unlink()
            note(f"inspect {version}, no demonstrator named", "-m", "ileed", "inspect", f"{place}/{version}")
    print(json.dumps(fitted, indent=2))
    if options.out is not None:
        settings = {name: getattr(options, name) for name in ("episodes", "frames", "dimensions")} | {"people": PEOPLE}
        found = {name: cost._asdict() for name, cost in costs.items()}
        record = {"provenance": runs.provenance(), "settings": settings, "costs": found, "fit": fitted}
        options.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
