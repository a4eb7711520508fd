"""How long `Ileed().fit` takes on the demo's data with everything that is on by default, and the share of each stage.

$ python benchmarks/default_fit.py [--device cpu] [--out results/benchmarks/default-fit-cpu.json]

The stages are those that a fit reports: policies of several widths, the fit, cross-fitting; what is left is preparing
the data, summaries and ratings.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

import ileed
from ileed import runs
from ileed.fitting import Progress

RUNS = 3


def stage_seconds(device: str) -> tuple[dict[str, float], float]:
    """Seconds from the first to the last report of each stage of a fit, and of the whole."""
    first: dict[str, float] = {}
    last: dict[str, float] = {}

    def note(progress: Progress) -> None:
        name = "widths" if progress.stage.startswith("trying") else progress.stage
        first.setdefault(name, time.perf_counter())
        last[name] = time.perf_counter()

    data = ileed.shipped()
    began = time.perf_counter()
    ileed.Ileed().fit(data, seed=0, device=device, progress=note)
    whole = time.perf_counter() - began
    return {name: last[name] - first[name] for name in first}, whole


def main() -> None:
    """Print the seconds of the fastest of a few runs, and write all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = [stage_seconds(given.device) for _ in range(RUNS)]
    stages, whole = min(found, key=lambda each: each[1])
    for name, seconds in stages.items():
        print(f"{name:<16} {seconds:6.1f} s {100 * seconds / whole:5.0f} %")
    rest = whole - sum(stages.values())
    print(f"{'the rest':<16} {rest:6.1f} s {100 * rest / whole:5.0f} %\n{'whole':<16} {whole:6.1f} s")
    if given.out is not None:
        name = torch.cuda.get_device_name() if given.device == "cuda" else "cpu"
        settings = {"device": name, "threads": torch.get_num_threads(), "runs": RUNS}
        record = {"provenance": runs.provenance(), "settings": settings, "runs": [{**s, "whole": w} for s, w in found]}
        given.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
