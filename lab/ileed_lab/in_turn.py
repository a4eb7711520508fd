"""Learners that fit several data sets one after the other in one process, and share what is made of the data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from ileed import Demonstrations
from ileed.fitting import ProgressCallback

__all__ = ["AbstractInTurn"]


class AbstractInTurn(ABC):
    """Has `fit_each`, by which an experiment knows that cells of the same data are to run in one process."""

    @abstractmethod
    def fit(
        self,
        demonstrations: Demonstrations,
        *,
        seed: int,
        device: str = "auto",
        progress: ProgressCallback | None = None,
    ) -> Any:
        """Learn from demonstrations."""

    def fit_each(
        self,
        datasets: Sequence[Demonstrations],
        *,
        seeds: Sequence[int],
        device: str = "auto",
        progress: ProgressCallback | None = None,
    ) -> list[Any]:
        """A fit of each data set with its seed."""
        return [self.fit(data, seed=seed, device=device) for data, seed in zip(datasets, seeds, strict=True)]
