"""Filtered behaviour cloning: BC on the better demonstrators, by an estimate, their rewards or an oracle."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
import numpy.typing as npt
import torch

from ileed import Constant, Demonstrations, Ileed, SettingsError, bc
from ileed.methods import Ensemble
from ileed.parallel.runtime import stream
from ileed_lab.in_turn import AbstractSideBySide

__all__ = ["Filtered", "FilteredBC"]

Array = npt.NDArray[Any]


@final
@dataclass(frozen=True, eq=False)
class Filtered:
    """Every restart of the fit, and the demonstrators that it was fitted to."""

    ensemble: Ensemble
    kept: tuple[str, ...]
    """The best first."""
    seconds: float
    """Of the rating and of the fit."""

    @property
    def policy(self) -> Any:
        return self.ensemble.top(1).fitted().policy


@final
@dataclass(frozen=True)
class FilteredBC(AbstractSideBySide):
    """BC on the steps of the best demonstrators by `by`; ties are broken at random."""

    by: Literal["ileed", "reward", "skill"]
    """Expertise under `rater`; the mean return of a demonstrator's episodes; or true `skills`."""
    skills: tuple[float, ...] = ()
    """Of the demonstrators in their order; seen where `by` is "skill" alone."""
    share: float = 0.5
    trainer: Ileed = bc()  # noqa: RUF009 (frozen)
    rater: Ileed = Ileed(expertise=Constant())  # noqa: RUF009 (frozen)

    def fit_each(
        self, datasets: Sequence[Demonstrations], *, seeds: Sequence[int], device: str = "auto"
    ) -> list[Filtered]:
        """A fit to the better demonstrators of each data set, side by side."""
        began = time.monotonic()
        ratings = self._ratings(datasets, seeds, device)
        kept = [
            _best(data, rating, self.share, seed=seed)
            for data, rating, seed in zip(datasets, ratings, seeds, strict=True)
        ]
        chosen = [data.by(*names) for data, names in zip(datasets, kept, strict=True)]
        found = self.trainer.fit_each(chosen, seeds=seeds, device=device)
        seconds = (time.monotonic() - began) / len(datasets)
        return [Filtered(each, names, seconds) for each, names in zip(found, kept, strict=True)]

    def _ratings(self, datasets: Sequence[Demonstrations], seeds: Sequence[int], device: str) -> list[Array]:
        """(demonstrator,) rating in each data set; higher is better."""
        if self.by == "ileed":
            found = self.rater.fit_each(datasets, seeds=seeds, device=device)
            return [np.array(list(each.top(1).fitted().expertise.by_demonstrator().values())) for each in found]
        return [self._rating(data) for data in datasets]

    def _rating(self, data: Demonstrations) -> Array:
        if self.by == "skill":
            if len(self.skills) != len(data.names):
                raise SettingsError(f"{len(self.skills)} skills for {len(data.names)} demonstrators: pass one for each")
            return np.array(self.skills)
        if data.rewards is None:
            raise SettingsError("the data have no rewards: choose by expertise")
        returns = np.bincount(data.demonstrator, data.rewards, minlength=len(data.names))
        return np.asarray(returns / np.bincount(data.episode_demonstrator, minlength=len(data.names)))


def _best(data: Demonstrations, rating: Array, share: float, *, seed: int) -> tuple[str, ...]:
    chance = torch.randperm(len(rating), generator=stream(seed, "filtered people")).numpy()
    order = np.lexsort([chance, -rating])[: math.ceil(share * len(rating))]
    return tuple(data.names[person] for person in order)
