"""Weights of units: tempered by their effective sample size, and matched to the states of the whole data set."""

from __future__ import annotations

import numpy as np

from ileed.data import Array

LARGEST_FACTOR = 2.0
"""By which matching multiplies or divides a weight at most. The effective size of weights between 1/2 and 2 is at
least 64% of their number, so that matching equal weights never falls below `MOST_EFFECTIVE`."""
MOST_EFFECTIVE = 0.6
LEAST_EFFECTIVE = 0.5
"""The least effective sample size of weights with continuous actions, as a share of the units that are kept."""
_HALVINGS = 100


def effective_size(weights: Array) -> float:
    """Kish's effective sample size, (sum w)^2 / sum w^2; zero where all weights are."""
    total = float((weights**2).sum())
    return float(weights.sum()) ** 2 / total if total > 0 else 0.0


def temper(scores: Array, share: float = LEAST_EFFECTIVE) -> tuple[Array, float]:
    """Scores to the largest power up to 1 whose effective size is at least a share of their number, and that power.

    The effective size of w^t falls in t, from all units at t = 0, so that bisection finds the power. Scores below a
    thousandth of the largest are raised to that, since no power of zero is a weight that approaches 1.
    """
    if not len(scores) or scores.max() <= 0:
        return np.ones(len(scores)), 0.0
    least = share * len(scores)
    if effective_size(scores) >= least:
        return scores, 1.0
    scores = np.maximum(scores / scores.max(), 1e-3)
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if effective_size(scores**middle) >= least else (low, middle)
    return scores**low, low


def match_strata(weights: Array, strata: Array, whole: Array) -> Array:
    """(unit,) weights whose share in each stratum is that of the whole (post-stratification), by bounded factors.

    Args:
        weights: (unit,) above zero.
        strata: (unit,) the stratum of each.
        whole: (stratum,) units of the whole data set. Strata of which no unit is here are left out.
    """
    sums = np.bincount(strata, weights, len(whole))
    target = np.where(sums > 0, whole, 0)
    target = target * (weights.sum() / target.sum())
    factor = np.clip(target / np.where(sums > 0, sums, 1.0), 1 / LARGEST_FACTOR, LARGEST_FACTOR)
    return np.asarray(weights * factor[strata])
