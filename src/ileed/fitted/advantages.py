"""Weights of episodes by their advantage, so that the policy learns most from the most skilled.

Advantage-weighted regression (Peng et al., "Advantage-weighted regression", 2019) weights the log-likelihood of actions
by exp(A / temperature). Here A_e is the standardised outcome of an episode, or the skill of its demonstrator where that
is not known. The temperature is the lowest at which the effective sample size (sum of w)^2 / (sum of w^2) (Kish,
*Survey Sampling*, 1965) is still a given share of the episodes: the variance of what is learned grows no further.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ileed.demonstrations import Array

LEAST_SHARE = 1 / 3
"""Of the episodes that the effective sample size stays above."""
_LARGEST = 20.0  # inverse temperature, by standard deviations of the outcome: beyond it weights hardly change
_HALVINGS = 60


class AdvantageWeights(NamedTuple):
    """(episode,) weights with a mean of 1, their temperature, and the effective share of the episodes."""

    weights: Array
    temperature: float
    effective_share: float


def advantage_weights(advantage: Array, least_share: float = LEAST_SHARE) -> AdvantageWeights:
    """Weights by (episode,) advantages at the lowest temperature that keeps an effective share of the episodes."""
    low, high = 0.0, _LARGEST
    if effective_share(_exponential(advantage, high)) >= least_share:
        low = high
    for _ in range(_HALVINGS):  # the share falls as the inverse temperature rises
        middle = (low + high) / 2
        enough = effective_share(_exponential(advantage, middle)) >= least_share
        low, high = (middle, high) if enough else (low, middle)
    weights = _exponential(advantage, low)
    return AdvantageWeights(weights, 1 / low, effective_share(weights))


def effective_share(weights: Array) -> float:
    """The effective sample size of (episode,) weights, relative to the number of episodes."""
    return float(weights.sum() ** 2 / (weights**2).sum() / len(weights))


def _exponential(advantage: Array, inverse_temperature: float) -> Array:
    weights = np.exp(inverse_temperature * (advantage - advantage.max()))
    return np.asarray(weights / weights.mean())
