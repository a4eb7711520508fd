"""What expertise could mean, side by side on one plain regression of the mean action over a horizon on the observation.

With y the mean action over the next H steps in units of its standard deviation over the data, measured from the mean,
m(s) its prediction by a regression that has not seen the episode, and g the least-squares gain of the episode:

    precision           - log of the mean of |y - m|^2                          (absolute, as in the paper)
    share               - log of sum |y - g m|^2 / sum |y - mean of y|^2        (signal-to-noise ratio)
    signal-dependent    - log of the mean of |y - g m|^2 / (c^2 + |g m|^2)      (c^2 the mean of |y - g m|^2)
    direction           the mean of the cosine of y and m

The third is the noise level under a noise that grows with the signal (Harris and Wolpert, "Signal-dependent noise
determines motor planning", Nature 394, 1998), the fourth the sufficient statistic of von Mises-Fisher noise about the
direction of the policy (Mardia and Jupp, "Directional Statistics", 2000).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, final

import numpy as np

from ileed import Demonstrations, SettingsError
from ileed.data import Array
from ileed.parallel.runtime import stream
from ileed_lab.quality.score import AbstractQuality
from ileed_lab.regression import Regression

__all__ = ["DEFINITIONS", "Definition"]

Kind = Literal["precision", "share", "signal-dependent", "direction"]
DEFINITIONS: tuple[Kind, ...] = ("precision", "share", "signal-dependent", "direction")
REGRESSION = Regression(hidden=(64, 64), steps=2_000, batch_size=256, learning_rate=1e-3)
_TINY = 1e-12


@final
@dataclass(frozen=True)
class Definition(AbstractQuality):
    """A score of episodes by one of the definitions of this module."""

    kind: Kind
    horizon: int = 1
    """H, in steps; means end with the episode."""
    folds: int = 5
    trainer: Regression = REGRESSION

    def __post_init__(self) -> None:
        if self.kind not in DEFINITIONS:
            raise SettingsError(f"kind must be one of {', '.join(DEFINITIONS)}, got {self.kind!r}")

    def scores(self, data: Demonstrations, *, seed: int, unit: Array | None = None) -> Array:
        if data.discrete:
            raise SettingsError("actions are discrete, and these scores are of continuous ones")
        ahead = mean_actions(data, self.horizon)
        y = (ahead - ahead.mean(0)) / np.maximum(ahead.std(0), _TINY)
        m = self._predictions(replace(data, actions=y.astype(np.float32), encoding=None), seed)
        owner = data.episode if unit is None else unit
        count = np.bincount(owner)

        def mean(values: Array) -> Array:
            return np.asarray(np.bincount(owner, values) / count)

        if self.kind == "precision":
            return -np.log(np.maximum(mean(np.square(y - m).sum(1)), _TINY))
        if self.kind == "direction":
            length = np.linalg.norm(y, axis=1) * np.linalg.norm(m, axis=1)
            return mean((y * m).sum(1) / np.maximum(length, _TINY))
        gain = mean((y * m).sum(1)) / np.maximum(mean(np.square(m).sum(1)), _TINY)
        signal = np.maximum(gain, 0.0)[owner, None] * m
        residual = np.square(y - signal).sum(1)
        if self.kind == "share":
            centre = np.stack([mean(column) for column in y.T], axis=1)
            return -np.log(mean(residual) / np.maximum(mean(np.square(y - centre[owner]).sum(1)), _TINY))
        variance = mean(residual)[owner] + np.square(signal).sum(1)
        return -np.log(np.maximum(mean(residual / np.maximum(variance, _TINY)), _TINY))

    def _predictions(self, data: Demonstrations, seed: int) -> Array:
        """(step, dimension) by a regression on all episodes of the other folds."""
        random = np.random.default_rng(stream(seed, "folds of episodes").initial_seed())
        fold = (random.permutation(data.episode_count) % self.folds)[data.episode]
        found = np.empty(data.actions.shape)
        for number in np.unique(fold):
            own = fold == number
            found[own] = self.trainer.fit(data.select(~own), seed=seed).act(data.observations[own])
        return found


def mean_actions(data: Demonstrations, horizon: int) -> Array:
    """(step, dimension) the mean action over the next `horizon` steps, which end with the episode."""
    here, end = np.arange(len(data)), data.episode_bounds[1:][data.episode]
    last = np.minimum(here + horizon, end)
    total = np.concatenate([np.zeros((1, data.actions.shape[1])), np.cumsum(data.actions, axis=0, dtype=np.float64)])
    return np.asarray((total[last] - total[here]) / (last - here)[:, None])
