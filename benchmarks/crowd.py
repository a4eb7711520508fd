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


def our_seconds(frame: pd.DataFrame) -> float:
    """Of the fastest of a few runs, from the table to labels and workers with intervals."""
    found = []
    for _ in range(RUNS):
        began = time.perf_counter()
        labels = ileed.label(frame)
        assert len(labels.labels)
        assert len(labels.workers)
        found.append(time.perf_counter() - began)
    return min(found)


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
    given = parser.parse_args()
    tables = {name: as_frame(ileed.read(given.data / name)) for name in ("dog", "face")}
    tables["simulated, 2,000 tasks"] = as_frame(simulate("confusion", 0, tasks=2000, workers=100, each=10).data)
    sets = []
    for name, frame in tables.items():
        seconds = our_seconds(frame)
        columns = {column: frame[column].to_numpy() for column in frame}
        others = {method: float(run_crowdkit(method, columns, seed=0)["seconds"]) for method in METHODS}
        sets.append({"name": name, "answers": len(frame), "ileed": seconds, "crowd_kit": others})
        print(f"{name:<24} ours {seconds:.2f} s", *(f"{m} {s:.1f} s ({s / seconds:.0f} x)" for m, s in others.items()))
    million = large()
    print(f"{million['answers']:,} answers: {million['seconds']:.1f} s, {million['peak_gib']:.1f} GiB")
    if given.out is not None:
        threads = int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads()))
        record = {"provenance": runs.provenance(), "threads": threads, "methods": list(METHODS)}
        runs.write_file(given.out, (json.dumps(record | {"sets": sets, "large": million}, indent=2) + "\n").encode())


if __name__ == "__main__":
    main()
