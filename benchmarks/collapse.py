"""How long collapsing 10,000 flat observations of 2,835 numbers takes, against sorting whole rows, in one run.

python benchmarks/collapse.py
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from ileed.readers import shipped
from ileed_lab.minigrid.mission import flat_with_mission


def main() -> None:
    """Print seconds of both ways for MiniGrid's own flat observations, and for ones in which every number varies."""
    data = shipped()
    flat = flat_with_mission(np.asarray(data.observations), "minigrid/obstacles").astype(np.float32)
    slopes = np.random.default_rng(0).standard_normal(flat.shape[1], dtype=np.float32)
    noisy = flat + flat.sum(axis=1, keepdims=True) * slopes
    for name, observations in {"MiniGrid": flat, "all numbers vary": noisy}.items():
        wide = replace(data, observations=observations)
        began = time.perf_counter()
        collapsed = wide.collapse()
        ours = time.perf_counter() - began
        began = time.perf_counter()
        unique_count = len(np.unique(observations, axis=0))
        sorting = time.perf_counter() - began
        assert unique_count == collapsed.unique_count
        print(
            f"{name}: {observations.shape[0]:,} x {observations.shape[1]:,}, {unique_count:,} distinct, "
            f"{len(collapsed.varying):,} numbers vary: {ours:.3f} s; np.unique of rows {sorting:.3f} s "
            f"({sorting / ours:,.0f} times as long)"
        )


if __name__ == "__main__":
    main()
