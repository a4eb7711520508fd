"""The global random generators, kept as they were around a library that seeds them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

__all__ = ["generators_restored"]


@contextmanager
def generators_restored() -> Iterator[None]:
    """Stable-baselines3 seeds every global generator; leave them as they were found."""
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002 (theirs, not ours)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002
