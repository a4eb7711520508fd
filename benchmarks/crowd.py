"""How long labels take: `ileed.label` beside GLAD and MACE of crowd-kit, and a table of a million answers.

$ tests/crowdkit_environment.sh
$ python benchmarks/crowd.py [--data ../shared/data/crowd] [--out results/benchmarks/crowd.json]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import ileed
from ileed import runs
from ileed_lab.crowd.labellers import run_crowdkit
from ileed_lab.crowd.simulated import simulate

RUNS = 3
METHODS = ("GLAD", "MACE")


def as_frame(data: ileed.Demonstrations) -> pd.DataFrame:
    """Numbers of tasks, workers and labels, as both libraries get them."""
    columns = {"task": data.observations[:, 0], "worker": data.demonstrator, "label": data.actions}
    return pd.DataFrame(columns)


def our_seconds(frame: pd.DataFrame) -> tuple[float, float]:
    """On the clock and of the processor, each the least of a few runs, from the table to workers with intervals."""
    found = []
    for _ in range(RUNS):
        began, worked = time.perf_counter(), time.process_time()
        labels = ileed.label(frame)
        assert len(labels.labels)
        assert len(labels.workers)
        found.append((time.perf_counter() - began, time.process_time() - worked))
    clock, processor = zip(*found, strict=True)
    return min(clock), min(processor)


def large() -> dict[str, Any]:
    """A hundred thousand tasks, five thousand workers, a million answers."""
    chance = np.random.default_rng(0)
    true = chance.integers(0, 4, 100_000)
    first = chance.integers(0, 5000, (100_000, 1))
    worker = ((first + np.cumsum(chance.integers(1, 500, (100_000, 10)), axis=1)) % 5000).ravel()
    task = np.repeat(np.arange(100_000), 10)
    matrix = chance.gamma(np.where(np.eye(4, dtype=bool), 3.0, 0.7), size=(5000, 4, 4))
    matrix /= matrix.sum(2, keepdims=True)
    label = (chance.random(len(task))[:, None] > matrix[worker, true[task]].cumsum(1)).sum(1).clip(0, 3)
    mixed = chance.permutation(len(task))
    names = {
        "task": pd.Series(task[mixed]).map("t{:06d}".format),
        "worker": pd.Series(worker[mixed]).map("w{:04d}".format),
    }
    frame = pd.DataFrame(names | {"label": np.array(list("abcd"))[label[mixed]]})
    began = time.perf_counter()
    found = ileed.label(frame)
    right = float((found.probabilities.argmax(1) == true).mean())
    assert len(found.labels) == 100_000
    assert len(found.workers) == 5000
    seconds = time.perf_counter() - began
    return {
        "tasks": 100_000,
        "workers": 5000,
        "answers": len(frame),
        "seconds": seconds,
        "accuracy": right,
        "majority": float((found.answers.votes.argmax(1) == true).mean()),
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def main() -> None:
    """Print seconds and ratios, and write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/crowd"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--small", action="store_true", help="without the million answers and what is not in --data")
    given = parser.parse_args()
    names = [name for name in ("dog", "face") if not given.small or (given.data / name).exists()]
    tables = {name: as_frame(ileed.read(given.data / name)) for name in names}
    tables["simulated, 2,000 tasks"] = as_frame(simulate("confusion", 0, tasks=2000, workers=100, each=10).data)
    sets = []
    for name, frame in tables.items():
        seconds, worked = our_seconds(frame)
        columns = {column: frame[column].to_numpy() for column in frame}
        fits = {method: run_crowdkit(method, columns, seed=0) for method in METHODS}
        others = {method: float(fit["seconds"]) for method, fit in fits.items()}
        processor = {"ileed": worked} | {method: float(fit["processor_seconds"]) for method, fit in fits.items()}
        one = {"name": name, "answers": len(frame), "ileed": seconds, "crowd_kit": others, "processor": processor}
        sets.append(one)
        print(f"{name:<24} ours {seconds:.2f} s", *(f"{m} {s:.1f} s ({s / seconds:.0f} x)" for m, s in others.items()))
    million = None if given.small else large()
    if million is not None:
        print(f"{million['answers']:,} answers: {million['seconds']:.1f} s, {million['peak_gib']:.1f} GiB")
    if given.out is not None:
        threads = int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads()))
        record = {"provenance": runs.provenance(), "threads": threads, "methods": list(METHODS)}
        runs.write_file(given.out, (json.dumps(record | {"sets": sets, "large": million}, indent=2) + "\n").encode())


if __name__ == "__main__":
    main()
