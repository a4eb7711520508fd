"""The figures of the MiniGrid experiments, one module each: from Altair and the records to a chart."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from statistics import fmean
from typing import Any

from ileed_lab.comparison import Records
from ileed_lab.drawing import values_of
from ileed_lab.minigrid.page import published_minigrid

__all__ = ["POPULATION_NAMES", "expert_reward", "published_number"]

POPULATION_NAMES = {
    "beta-1": "one good, nine random",
    "beta-5": "five good, five random",
    "beta-10": "ten good",
    "unif": "from poor to good",
}

_paper = cache(published_minigrid)


def published_number(*path: str | None) -> float | None:
    """A number of the paper by table, row and column, or None where there is none."""
    found: Any = _paper()
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def expert_reward(records: Records, task: str) -> float | None:
    """Reward of a task's expert when it always follows its policy."""
    rewards = values_of(records.trials("minigrid/experts", "uniform noise", task=task, beta=1.0).values(), "reward")
    return fmean(rewards) if rewards else None
