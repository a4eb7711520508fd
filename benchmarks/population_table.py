"""How long the training of the population table takes on one device: BC and ILEED, 16 cells, 20 trials, 20 restarts.

    python benchmarks/population_table.py                     # 12,800 models x 2,000 steps, on the best device there is
    python benchmarks/population_table.py --trials 1 --steps 20 --device cpu          # a try

The data, seeds and settings are those of `ileed reproduce minigrid/populations --methods bc ileed`. Demonstrations are
simulated first, by all cores, and not counted. Training is counted from demonstrations in memory to ensembles in
memory: collapsing the data, drawing initial values, every optimisation step, and taking the members apart. All cells of
a task are members of one optimisation for each method, so that there are eight; a first call of one data set and five
steps, which chooses kernels, is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ileed
from ileed import runs
from ileed.data import Demonstrations
from ileed.envs.simulation import POPULATIONS
from ileed.methods import Ensemble
from ileed.parallel.runtime import resolve_device
from ileed_lab.grid import Setting
from ileed_lab.minigrid.experiment import Populations
from ileed_lab.minigrid.measures import TASKS

TABLE = Populations()
METHODS = ("bc", "ileed")
BLOCK = 5  # trials that a process simulates together


def _simulate(setting: Setting, trials: Sequence[int]) -> list[Demonstrations]:
    return list(TABLE.demonstrations(setting, trials))


def simulate(tasks: Sequence[str], trials: int, processes: int) -> dict[str, list[tuple[str, int, Demonstrations]]]:
    """(population, trial, data) of every cell of each task, simulated by so many processes."""
    blocks = [range(first, min(first + BLOCK, trials)) for first in range(0, trials, BLOCK)]
    found: dict[str, list[tuple[str, int, Demonstrations]]] = {task: [] for task in tasks}
    settings = [{"task": task, "population": population} for task, population in product(tasks, POPULATIONS)]
    with ProcessPoolExecutor(processes, mp_context=get_context("forkserver")) as pool:
        waiting = [(each, block, pool.submit(_simulate, each, block)) for each, block in product(settings, blocks)]
        for each, block, future in waiting:
            own = found[each["task"]]
            own += [(each["population"], *both) for both in zip(block, future.result(), strict=True)]
    return found


@contextmanager
def stopwatch(device: torch.device) -> Iterator[Callable[[], float]]:
    """Seconds since the block began, when all that the device was given is done."""
    began = time.perf_counter()

    def seconds() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - began

    yield seconds


def method_of(name: str, steps: int | None) -> ileed.Ileed:
    """A method of the table, by default with as many steps as there."""
    learner = TABLE.methods(TABLE.settings()[0])[name]
    return learner if steps is None else replace(learner, steps=steps)


def costs_by_population(names: Sequence[str], fits: Sequence[Ensemble]) -> Mapping[str, float]:
    """The mean over trials of the best restart's cost, in nats per action."""
    best = np.array([fit.result.nats_per_action.min() for fit in fits])
    return {name: round(float(best[[each == name for each in names]].mean()), 6) for name in dict.fromkeys(names)}


def train(
    data: Mapping[str, Sequence[tuple[str, int, Demonstrations]]], steps: int | None, device: torch.device
) -> list[dict[str, Any]]:
    """Seconds, number of models and costs of each optimisation, one for each task and method."""
    rows = []
    for name in METHODS:
        first = next(iter(data.values()))[0][2]
        method_of(name, 5).fit_each([first], seeds=[0], device=device.type)
    for (task, own), name in product(data.items(), METHODS):
        method, (populations, trials, datasets) = method_of(name, steps), zip(*own, strict=True)
        with stopwatch(device) as seconds:
            fits = method.fit_each(datasets, seeds=trials, device=device.type)
            spent = seconds()
        optimising = sum(fit.provenance["seconds"] for fit in fits)
        row = {
            "task": task,
            "method": name,
            "models": len(fits) * method.usual_restarts,
            "steps": method.optimiser.steps,
        }
        row |= {"seconds": round(spent, 3), "optimisation_seconds": round(optimising, 3)}
        rows.append(row | {"nats_per_action": costs_by_population(populations, fits)})
        words = f"{task:20} {name:6} {row['models']:6,} models x {method.optimiser.steps:,} steps"
        print(f"{words} {spent:8.2f} s, {optimising:.2f} of them optimising", flush=True)
    return rows


def main() -> None:
    """Print the seconds of each optimisation and of all, and write them as JSON, with what made them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--trials", type=int, default=TABLE.trials)
    parser.add_argument("--steps", type=int, help="of each model, instead of the table's 2,000")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), help="that simulate")
    parser.add_argument("--out", type=Path, help="where to write the JSON")
    options = parser.parse_args()
    device = resolve_device(options.device)
    began = time.perf_counter()
    data = simulate(options.tasks, options.trials, options.processes)
    simulated = time.perf_counter() - began
    print(f"{sum(map(len, data.values()))} data sets simulated in {simulated:.1f} s", flush=True)
    rows = train(data, options.steps, device)
    models, seconds = (sum(row[name] for row in rows) for name in ("models", "seconds"))
    print(f"{models:,} models x {rows[0]['steps']:,} steps: {seconds:.2f} s", flush=True)
    device_name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    record = {
        "provenance": runs.provenance() | {"device": device_name},
        "settings": {name: runs.plain(method_of(name, options.steps)) for name in METHODS}
        | {"trials": options.trials, "processes_that_simulate": options.processes},
        "models": models,
        "seconds": round(seconds, 3),
        "simulation_seconds": round(simulated, 3),
        "optimisations": rows,
    }
    if options.out:
        runs.write_file(options.out, (json.dumps(record, indent=2) + "\n").encode())


if __name__ == "__main__":
    main()
