"""The interface of quality scores: one number per episode, or per unit within episodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np

from ileed import Demonstrations
from ileed.data import Array

__all__ = ["AbstractQuality", "mean_by_unit", "score_units"]


class AbstractQuality(ABC):
    """A score of data quality.

    Laws: higher is better; the scores depend on the settings, the data and the seed alone; names of demonstrators and
    labels of episodes do not matter.
    """

    @abstractmethod
    def scores(self, data: Demonstrations, *, seed: int, unit: Array | None = None) -> Array:
        """(episode,) the score of each episode.

        Args:
            data: the demonstrations, all of which are scored together.
            seed: of everything random.
            unit: (step,) numbers from 0 on of what is scored in place of episodes, each a run of consecutive steps of
                one episode: for instance the segments of a lap. The result then has one score per unit.
        """


def mean_by_unit(values: Array, unit: Array) -> Array:
    """(unit,) the mean of (step,) values."""
    return np.asarray(np.bincount(unit, values) / np.bincount(unit))


def score_units(score: Callable[[Array], object], values: Array, unit: Array) -> Array:
    """(unit,) or (unit, ...) a score of the rows of each unit."""
    ends = np.cumsum(np.bincount(unit))[:-1]
    return np.array([score(part) for part in np.split(values, ends)], dtype=np.float64)
