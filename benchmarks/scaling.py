"""How a fit scales with steps, people, members and processes: five sizes of each, on simulated and on the demo's data.

    python benchmarks/scaling.py --out results/benchmarks/scaling-cpu.json
    python benchmarks/scaling.py --axes processes --processes 1 2 4 8 16

- steps: seconds of an optimisation step where observations repeat (500 distinct, counted) and where none does (float32,
  batches of 256), for ten people;
- people: the same where 200,000 steps that repeat are shared by more and more people;
- members: restarts fitted side by side to the demo's data;
- processes: a grid of fits by `ileed.parallel`, as benchmarks/grid_of_fits.py.

A step is that of 20 restarts (or as many as there are members) of ILEED with a policy of (4, 4), by default settings.
Seconds of a step are those of the fastest sixth of an optimisation of 30; with one thread on a CPU, processor seconds
tell what a busy machine hides. `seconds_before` are those from the call to the first step: checking, collapsing and
preparing the data.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grid_of_fits
import numpy as np
import torch

import ileed
from ileed import runs
from ileed.data import Demonstrations
from ileed.formats import shipped

STEPS = (10_000, 30_000, 100_000, 300_000, 1_000_000)
PEOPLE = (10, 100, 1_000, 10_000, 100_000)
MEMBERS = (1, 5, 20, 80, 320)
FEATURES, DISTINCT, ACTIONS, LENGTH = 16, 500, 4, 20
SHARED_STEPS = 200_000
RESTARTS = 20
Point = dict[str, Any]


def simulate(steps: int, people: int, *, repeats: bool) -> Demonstrations:
    """Episodes of 20 steps by people of random skill; the right action is that of a random linear policy."""
    chance = np.random.default_rng(0)
    seen: np.ndarray[Any, Any] = chance.standard_normal((DISTINCT if repeats else steps, FEATURES), dtype=np.float32)
    if repeats:
        seen = (2 * seen).round().astype(np.int8)[chance.integers(0, DISTINCT, steps)]
    right = (seen.astype(np.float32) @ chance.standard_normal((FEATURES, ACTIONS), dtype=np.float32)).argmax(1)
    length = min(LENGTH, steps // people)
    episode = np.arange(steps) // length
    demonstrator = episode % people
    slips = chance.random(steps) > chance.random(people)[demonstrator]
    return Demonstrations(
        observations=seen,
        actions=np.where(slips, chance.integers(0, ACTIONS, steps), right),
        demonstrator=demonstrator,
        episode=episode,
        names=tuple(f"person {number}" for number in range(people)),
        action_count=ACTIONS,
    )


def time_step(data: Demonstrations, *, restarts: int, device: str, steps: int = 30) -> dict[str, float]:
    """Seconds of one optimisation step, seconds from the call to the first, and of the whole call."""
    policy = ileed.CategoricalMLP(hidden=(4, 4))
    method = ileed.Ileed(policy=policy, restarts=restarts, steps=steps, folds=0)
    stamps: list[tuple[int, float, float]] = []
    began, worked = time.perf_counter(), time.process_time()
    method.fit(
        data,
        seed=0,
        device=device,
        progress=lambda now: stamps.append((now.step, time.perf_counter(), time.process_time())),
    )
    whole = time.perf_counter() - began
    far = max(1, len(stamps) // 6)
    stretches = [(before, after) for before, after in zip(stamps, stamps[far:], strict=False) if after[0] > before[0]]
    clock, processor = (
        min((after[which] - before[which]) / (after[0] - before[0]) for before, after in stretches) for which in (1, 2)
    )
    done, first, first_worked = stamps[0]
    return {
        "seconds_per_step": clock,
        "processor_seconds_per_step": processor,
        "seconds_before": first - began - clock * done,
        "processor_seconds_before": first_worked - worked - processor * done,
        "seconds": whole,
        "steps": steps,
    }


def points(axis: str, sizes: Sequence[int], device: str) -> Iterator[Point]:
    """Every measurement along an axis but that of processes."""
    demo = shipped()
    time_step(demo, restarts=2, device=device, steps=10)
    for size in sizes:
        if axis == "members":
            cases = {"the demo's data": (demo, size)}
        elif axis == "people":
            cases = {"repeating observations": (simulate(SHARED_STEPS, size, repeats=True), RESTARTS)}
        else:
            kinds = {"repeating observations": True, "no observation twice": False}
            cases = {name: (simulate(size, 10, repeats=how), RESTARTS) for name, how in kinds.items()}
        for kind, (data, restarts) in cases.items():
            load = os.getloadavg()[0]
            yield {"size": size, "kind": kind, "load": load} | time_step(data, restarts=restarts, device=device)


def process_points(counts: Sequence[int], fits: int) -> list[Point]:
    """Seconds of a grid of fits by so many processes."""
    load = os.getloadavg()[0]
    rows = grid_of_fits.table("local", counts, fits, grid_of_fits.STEPS)
    return [{"size": row["processes"], "kind": "a grid of fits", "load": load} | row for row in rows]


def default_processes() -> list[int]:
    """Five numbers of processes: up to all cores where there are enough, past them otherwise."""
    cores = len(os.sched_getaffinity(0))
    return [1, 2, 4, 8, 16] if cores >= 16 else [1, 2, 3, 4, 6]


def main() -> None:
    """Measure the axes that are asked for, print them, and write one record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes: dict[str, Sequence[int]] = {
        "steps": STEPS, "people": PEOPLE, "members": MEMBERS, "processes": default_processes()
    }  # fmt: skip
    parser.add_argument("--axes", nargs="+", choices=sizes, help="some alone; --out keeps what it has of the others")
    for name, usual in sizes.items():
        parser.add_argument(f"--{name}", type=int, nargs="+", default=usual)
    parser.add_argument("--fits", type=int, default=12, help="in the grid that processes share")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    made = runs.provenance() | {"device": _device_name(options.device), "cores": len(os.sched_getaffinity(0))}
    keep = options.axes and options.out and options.out.exists()
    axes: dict[str, list[Point]] = json.loads(options.out.read_text())["axes"] if keep else {}
    for axis in options.axes or sizes:
        chosen = getattr(options, axis)
        if axis == "processes":
            axes[axis] = process_points(chosen, options.fits)
            continue
        axes[axis] = []
        for point in points(axis, chosen, options.device):
            axes[axis].append(point)
            clock, worked = (1000 * point[f"{name}seconds_per_step"] for name in ("", "processor_"))
            words = f"{point['size']:>9,} {axis}, {point['kind']:24} {clock:8.2f} ms a step"
            print(f"{words}, of the processor {worked:.2f}", flush=True)
    settings = {"threads": options.threads, "restarts": RESTARTS, "fits": options.fits, "shared_steps": SHARED_STEPS}
    if options.out:
        record = {
            "provenance": made,
            "settings": settings,
            "axes": {axis: axes[axis] for axis in sizes if axis in axes},
        }
        runs.write_file(options.out, (json.dumps(record, indent=2) + "\n").encode())


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device.startswith("cuda") else "cpu"


if __name__ == "__main__":
    main()
