"""The loss of a cloned policy on episodes that it has not seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np

from ileed import Demonstrations, Fitted, Ileed, MixtureMLP, SettingsError, bc
from ileed.data import Array
from ileed.parallel.runtime import stream
from ileed_lab.quality.score import AbstractQuality, mean_by_unit

__all__ = ["CLONING", "CloningLoss"]

CLONING = bc(
    policy=MixtureMLP(hidden=(64, 64)),
    restarts=1,
    steps=2_000,
    learning_rate=1e-3,
    decay=False,
    batch_size=256,
    folds=0,
)


@final
@dataclass(frozen=True)
class CloningLoss(AbstractQuality):
    """Minus the mean loss of an episode's steps under a policy cloned from all episodes of the other folds.

    The two losses differ where an action has an atom, as a pedal that is fully pressed: there the density is high, and
    the log-likelihood rewards being there.
    """

    loss: Literal["log-likelihood", "squared error"] = "log-likelihood"
    """The negative log-likelihood in nats; or the squared distance to the mean action, in standard deviations."""
    method: Ileed = CLONING
    folds: int = 5

    def scores(self, data: Demonstrations, *, seed: int, unit: Array | None = None) -> Array:
        random = np.random.default_rng(stream(seed, "folds of episodes").initial_seed())
        fold = (random.permutation(data.episode_count) % self.folds)[data.episode]
        loss = np.zeros(len(data))
        for number in np.unique(fold):
            own = fold == number
            fitted = self.method.fit(data.select(~own), seed=seed, check_width=False)
            loss[own] = _losses(fitted, data.select(own), data.actions.std(0), self.loss)
        return -mean_by_unit(loss, data.episode if unit is None else unit)


def _losses(fitted: Fitted, data: Demonstrations, spread: Array, loss: str) -> Array:
    """(step,) the loss of each action."""
    if loss == "log-likelihood":
        return fitted.nats(data)
    if data.discrete:
        raise SettingsError(f"loss is {loss!r}, and actions are discrete: pass loss='log-likelihood'")
    policy: Any = fitted.policy
    residual = (data.actions - np.asarray(policy.distribution(data.observations).mean)) / np.where(
        spread > 0, spread, 1
    )
    return np.asarray(np.square(residual).mean(1))
