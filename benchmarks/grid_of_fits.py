"""How a grid of fits scales with processes: the same fits by `ileed.parallel`, with one process and with many.

    python benchmarks/grid_of_fits.py                              # 1 and as many processes as there are cores
    python benchmarks/grid_of_fits.py --processes 1 2 4 8 16 --fits 64

A fit is five restarts of ILEED in Obstacles, each fit with its own seed, on one thread. The processes are started first
and import the library, which is not counted in `seconds` and stated apart.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

import ileed
from ileed import runs
from ileed.data import Demonstrations
from ileed.formats import shipped
from ileed.parallel import executor

RESTARTS, STEPS, FITS = 5, 300, 64


@cache
def _data() -> Demonstrations:
    return shipped()


def fit(seed: int, steps: int) -> tuple[int, float]:
    """The process that fitted, and the cost of its best restart."""
    torch.set_num_threads(1)
    policy = ileed.CategoricalMLP(hidden=(4, 4))
    method = ileed.Ileed(policy=policy, restarts=RESTARTS, steps=steps, folds=0)
    return os.getpid(), method.fit(_data(), seed=seed, device="cpu").nats_per_action


def _start(seconds: float) -> int:
    """Import, read the data, fit a little, and stay long enough for every process to be given one such call."""
    began = time.monotonic()
    fit(0, 1)
    time.sleep(max(0.0, seconds - (time.monotonic() - began)))
    return os.getpid()


def measure(name: str, processes: int, fits: int, steps: int) -> dict[str, Any]:
    """Seconds that the grid takes with so many processes, and the costs that it found."""
    began = time.perf_counter()
    with executor(name, processes) as pool:
        started = set(pool.map(_start, [1.0] * processes))
        ready = time.perf_counter()
        found = list(pool.map(fit, range(fits), [steps] * fits))
        ended = time.perf_counter()
    return {
        "processes": processes,
        "started": len(started),
        "used": len({number for number, _ in found}),
        "start_seconds": ready - began,
        "seconds": ended - ready,
        "costs": [cost for _, cost in found],
    }


def table(name: str, counts: Sequence[int], fits: int, steps: int) -> list[dict[str, Any]]:
    """A row for each number of processes, with its ratio to the first; the costs must be equal."""
    rows = []
    for processes in counts:
        rows.append(measure(name, processes, fits, steps))
        assert rows[-1]["costs"] == rows[0]["costs"], "a fit depends on how many run beside it"
        rows[-1]["times_first"] = rows[0]["seconds"] / rows[-1]["seconds"]
        words = f"{processes:3} processes {rows[-1]['seconds']:8.2f} s, {rows[-1]['times_first']:.1f} times the first"
        print(f"{words}; started in {rows[-1]['start_seconds']:.1f} s", flush=True)
    return [{key: value for key, value in row.items() if key != "costs"} for row in rows]


def main() -> None:
    """Print the table and write it as JSON, with what made it."""
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executor", default="local")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, cores])
    parser.add_argument("--fits", type=int, default=FITS)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, help="where to write the JSON")
    options = parser.parse_args()
    rows = table(options.executor, options.processes, options.fits, options.steps)
    settings = {"executor": options.executor, "fits": options.fits, "restarts": RESTARTS, "steps": options.steps}
    record = {"provenance": runs.provenance() | {"cores": cores}, "settings": settings, "rows": rows}
    if options.out:
        runs.write_file(options.out, (json.dumps(record, indent=2) + "\n").encode())


if __name__ == "__main__":
    main()
