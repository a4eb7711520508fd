"""Weights of units: tempered by their effective sample size, and matched to the states of the whole data set.

Matching multiplies the weight of each unit by a factor g(x_u . lambda), where x_u are the shares of the unit's steps in
each state cluster, such that the weighted mean of these shares is their mean over the whole data set. All units count
equally there: by steps, the slowest demonstrators would decide which states are to be preserved. The factor lies within
bounds L and U (generalised raking, the logit method of Deville and Särndal, JASA 87, 1992):

    g(z) = L + (U - L) s(z),    s(z) = (1 - L) e^(A z) / (U - 1 + (1 - L) e^(A z)),    A = (U - L) / ((1 - L) (U - 1)).

Of all weights that match, these are the nearest to the given ones by a convex distance. Where no weights within the
bounds match, the squared mismatch of shares is penalised instead (ridge calibration), so that weights do not end at
their bounds for a match that is out of reach.
"""

from __future__ import annotations

import numpy as np

from ileed._torch import product
from ileed.demonstrations import Array

LARGEST_FACTOR = 2.0
"""By which matching multiplies or divides a weight at most. The effective size of weights between 1/2 and 2 is at
least 64% of their number, so that matching equal weights never falls below `MOST_EFFECTIVE`."""
MOST_EFFECTIVE = 0.6
LEAST_EFFECTIVE = 0.5
"""The least effective sample size of weights with continuous actions, as a share of the units that are kept."""
_ITERATIONS = 100
_NO_RIDGE = 1e-10
_RIDGE = 1e-3
_EXACT = 1e-12
_MATCHED = 1e-6
_LONGEST_STEP = 4.0
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


def match_states(weights: Array, held: Array, whole: Array) -> Array:
    """(unit,) weights whose share of what units hold of each state cluster is that of the whole.

    Args:
        weights: (unit,) above zero.
        held: (unit, cluster) what each unit holds of each cluster: steps, or shares of its steps. Weights have mean 1
            over the sums of it.
        whole: (cluster,) the same of the whole data set. Clusters of which no unit holds anything are left out.
    """
    steps, present = held.sum(1), held.sum(0) > 0
    base = weights * (steps.sum() / product(weights, steps))
    shares, size = held[:, present] / steps[:, None], base * steps / steps.sum()
    target = whole[present] / whole[present].sum()
    problem = shares, size, target
    at, mismatch = _minimise(problem, _NO_RIDGE)
    if mismatch > _MATCHED:
        at, _ = _minimise(problem, _RIDGE)
    matched = base * _factor(product(shares, at))[0]
    return np.asarray(matched * (steps.sum() / product(matched, steps)))


def _minimise(problem: tuple[Array, Array, Array], ridge: float) -> tuple[Array, float]:
    """Where the dual is least, by Newton's method, and the largest difference of a share from its target there."""
    at = np.zeros(problem[0].shape[1])
    value, gradient, curvature = _dual(at, ridge, problem)
    for _ in range(_ITERATIONS):
        if np.abs(gradient).max() < _EXACT:
            break
        move = np.linalg.solve(curvature + _NO_RIDGE * np.eye(len(at)), -gradient)
        move *= min(1.0, _LONGEST_STEP / np.abs(move).max())
        found = _line_search(at, move, value, float(product(gradient, move)), ridge, problem)
        if found is None:
            break
        at = found
        value, gradient, curvature = _dual(at, ridge, problem)
    return at, float(np.abs(gradient - ridge * at).max())


def _line_search(
    at: Array, move: Array, value: float, slope: float, ridge: float, problem: tuple[Array, Array, Array]
) -> Array | None:
    """The first of at + move, at + move / 2, ... at which the dual is clearly lower; None where none is."""
    for halving in range(40):
        share = 0.5**halving
        if _dual(at + share * move, ridge, problem)[0] <= value + 1e-4 * share * slope:
            return np.asarray(at + share * move)
    return None


def _dual(at: Array, ridge: float, problem: tuple[Array, Array, Array]) -> tuple[float, Array, Array]:
    """The convex dual whose gradient is the weighted share of each cluster minus its target, and its Hessian."""
    shares, size, target = problem
    factor, slope, integral = _factor(product(shares, at))
    value = product(size, integral) - product(target, at) + ridge / 2 * product(at, at)
    curvature = product(shares.T, shares * (size * slope)[:, None]) + ridge * np.eye(len(at))
    return float(value), product(shares.T, size * factor) - target + ridge * at, curvature


def _factor(z: Array) -> tuple[Array, Array, Array]:
    """g(z), its derivative and its integral."""
    low, high = 1 / LARGEST_FACTOR, LARGEST_FACTOR
    steepness = (high - low) / ((1 - low) * (high - 1))
    shift = np.log((1 - low) / (high - 1))
    exponent = steepness * z + shift
    sigmoid = 0.5 * (1 + np.tanh(exponent / 2))
    factor = low + (high - low) * sigmoid
    slope = (high - low) * steepness * sigmoid * (1 - sigmoid)
    integral = low * z + (high - low) / steepness * np.logaddexp(0.0, exponent)
    return factor, slope, integral
