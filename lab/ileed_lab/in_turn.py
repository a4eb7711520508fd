"""Learners of several data sets: one after the other in one process, or all of them side by side."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from ileed import Demonstrations

__all__ = ["AbstractInTurn", "AbstractSideBySide"]


class AbstractInTurn(ABC):
    """Has `fit_each`, by which an experiment knows that cells of the same data are to run in one process."""

    @abstractmethod
    def fit(self, demonstrations: Demonstrations, *, seed: int, device: str = "auto") -> Any:
        """Learn from demonstrations."""

    def fit_each(self, datasets: Sequence[Demonstrations], *, seeds: Sequence[int], device: str = "auto") -> list[Any]:
        """A fit of each data set with its seed."""
        return [self.fit(data, seed=seed, device=device) for data, seed in zip(datasets, seeds, strict=True)]


class AbstractSideBySide(ABC):
    """A learner of several data sets at once; one alone is fitted in the same way."""

    def fit(self, demonstrations: Demonstrations, *, seed: int, device: str = "auto") -> Any:
        """Learn from demonstrations."""
        return self.fit_each([demonstrations], seeds=[seed], device=device)[0]

    @abstractmethod
    def fit_each(self, datasets: Sequence[Demonstrations], *, seeds: Sequence[int], device: str = "auto") -> list[Any]:
        """A fit of each data set with its seed."""
