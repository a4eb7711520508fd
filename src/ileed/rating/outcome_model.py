"""Skill from outcomes and actions: small-area estimation with measurement error in the covariate.

The skill theta_i of a demonstrator is the expected outcome of an episode, oriented so that higher is better and
standardised over the episodes that have an outcome. Outcomes and actions are two sources of evidence about it:

    ybar_i = theta_i + e_i,             e_i ~ N(0, D_i)         the mean outcome of n_i episodes
    theta_i = a + b x_i + v_i,          v_i ~ N(0, tau^2)       x_i: standardised logit of expertise by actions
    x_i ~ N(m_i, u_i)                                           its posterior distribution by actions alone

This is the area-level model of Fay and Herriot (Journal of the American Statistical Association 74, 1979) with the
measurement error of Ybarra and Lohr (Biometrika 95, 2008). D_i is the variance within demonstrators by n_i, partially
pooled; that of a binary outcome is binomial. Given b and tau,

    theta_i | a, y ~ N((1 - k_i) (a + b m_i) + k_i ybar_i, (1 - k_i) U_i),
    U_i = b^2 u_i + tau^2,  k_i = U_i / (U_i + D_i),

and k_i = 0 without outcomes: such a demonstrator is placed by actions alone, as far as they predict the outcomes of the
others. a is integrated out analytically, b and tau on a grid. Priors: a ~ N(0, 1), b ~ N(0, 1/4), tau ~ |N(0, 1/4)|, so
that beforehand actions and everything else explain skill alike. The weight b of the actions is thus learned, and near
zero where they say nothing about outcomes.

A newcomer is placed by the relation that the demonstrators of a fit taught: a, b and tau have their posterior
distribution given those demonstrators and the newcomer's own outcomes. Other newcomers do not matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
import torch

from ileed._torch import product
from ileed.data import Array
from ileed.rating.outcomes import EpisodeOutcomes
from ileed.rating.posterior import tails

_LEVEL_SD, _SLOPE_SD, _SPREAD_SD = 1.0, 0.5, 0.5
_NODES = 33  # of the grid, for b and for tau
_REACH = 5.0  # of both, in standard deviations of their priors
_FALL = 14.0  # nats below the top of the posterior density of b and tau, beyond which nothing of it is left
_LEAST_WEIGHT = 1e-6  # of a node, relative to the largest
_OWN_VARIANCE = 4.0  # degrees of freedom that the pooled variance counts for in that of a demonstrator
_PRIOR_EPISODES = 2.0  # at the success rate of all, added to those of a demonstrator
_AT_ONCE = 1 << 22  # numbers


class Means(NamedTuple):
    """Outcomes by demonstrator, standardised so that higher is better."""

    rated: Array
    """(demonstrator,) the number of episodes that have an outcome."""
    mean: Array
    """(demonstrator,) ybar; 0 without outcomes."""
    variance: Array
    """(demonstrator,) D; infinite without outcomes."""
    shift: float
    """The mean outcome of all these episodes, in the user's units."""
    scale: float
    """Their standard deviation; negative where lower is better."""
    within: float = 1.0
    """The variance within demonstrators, pooled over all."""
    binary: bool = False
    """Whether outcomes are successes and failures, whose variance follows from their rate."""

    @classmethod
    def of(cls, outcomes: EpisodeOutcomes, owner: Array, demonstrators: int, *, like: Means | None = None) -> Means:
        """Those of episodes whose demonstrators are `owner` (episode,); of newcomers, in the units of `like`."""
        known = outcomes.is_known
        values, who = outcomes.values[known], owner[known]
        if like is None:
            shift, scale = float(values.mean()), float(values.std()) * outcomes.sign
        else:
            shift, scale = like.shift, like.scale
        binary = outcomes.is_binary if like is None else like.binary
        standard = (values - shift) / scale
        count = np.bincount(who, minlength=demonstrators)
        mean = np.bincount(who, standard, minlength=demonstrators) / np.maximum(count, 1)
        squares = np.bincount(who, (standard - mean[who]) ** 2, minlength=demonstrators)
        freedom = np.maximum(count - 1, 0)
        # one degree of freedom of the variance of all
        pooled = float((1.0 + squares.sum()) / (1.0 + freedom.sum())) if like is None else like.within
        if binary:
            successes = np.bincount(who, values, minlength=demonstrators)
            rate = (successes + _PRIOR_EPISODES * shift) / (count + _PRIOR_EPISODES)
            within = rate * (1 - rate) / scale**2
        else:
            within = (_OWN_VARIANCE * pooled + squares) / (_OWN_VARIANCE + freedom)
        with np.errstate(divide="ignore"):
            return cls(count, mean, within / count, shift, scale, pooled, binary)


class Covariate(NamedTuple):
    """(demonstrator,) mean m and variance u of what actions say, standardised over demonstrators."""

    mean: Array
    variance: Array
    shift: float
    scale: float

    @classmethod
    def of_shares(cls, shares: Array, points: Array, *, like: Covariate | None = None) -> Covariate:
        """Of the logit of expertise, from its posterior distributions (demonstrator, point); in the units of `like`."""
        logit = np.log(points) - np.log1p(-points)
        mean = product(shares, logit)
        variance = np.maximum(product(shares, logit**2) - mean**2, 0.0)
        shift, scale = centre_and_spread(mean, variance) if like is None else (like.shift, like.scale)
        return cls((mean - shift) / scale, variance / scale**2, shift, scale)


def centre_and_spread(mean: Array, variance: Array) -> tuple[float, float]:
    """Mean and standard deviation over demonstrators of a quantity that is known by its mean and variance for each."""
    return float(mean.mean()), float(np.sqrt(max(mean.var() + variance.mean(), 1e-12)))


@final
@dataclass(frozen=True, eq=False)
class SkillPosterior:
    """The posterior distribution of skill: a mixture of Gaussian distributions over nodes of b and tau."""

    slope: Array
    """(node,) b."""
    spread: Array
    """(node,) tau."""
    weight: Array
    """(node,) the posterior probability of each node."""
    mean: Array
    """(node, demonstrator) of theta."""
    variance: Array
    """(node, demonstrator) of theta."""

    def moments(self) -> tuple[Array, Array]:
        """(demonstrator,) mean and variance of theta."""
        mean = product(self.weight, self.mean)
        return mean, product(self.weight, self.variance + (self.mean - mean) ** 2)

    def below(self, points: Array) -> Array:
        """(demonstrator, point) the probability that theta is below each point."""
        found = np.empty((self.mean.shape[1], len(points)))
        weight, at = torch.from_numpy(self.weight), torch.from_numpy(np.ascontiguousarray(points, dtype=np.float64))
        for person in range(len(found)):
            mean, deviation = (torch.from_numpy(each[:, person].copy()) for each in (self.mean, self.variance**0.5))
            found[person] = (weight @ torch.special.ndtr((at - mean[:, None]) / deviation[:, None])).numpy()
        return found

    def merged(self) -> SkillPosterior:
        """One Gaussian distribution of the same mean and variance for each demonstrator."""
        mean, variance = self.moments()
        slope, spread = (np.atleast_1d(product(self.weight, each)) for each in (self.slope, self.spread))
        return SkillPosterior(slope, spread, np.ones(1), mean[None], variance[None])

    def slope_interval(self, level: float) -> tuple[float, float, float]:
        """Mean and equal-tailed interval of b."""
        slopes, place = np.unique(self.slope, return_inverse=True)
        share = np.bincount(place, self.weight)
        low, high = np.interp(tails(level), np.cumsum(share) - share / 2, slopes)
        return float(product(slopes, share)), float(low), float(high)

    def explained(self) -> float:
        """The share of the variance of skill between demonstrators that actions explain: E[b^2 / (b^2 + tau^2)]."""
        return float(product(self.weight, self.slope**2 / (self.slope**2 + self.spread**2)))


def skill_posterior(means: Means, actions: Covariate | None) -> SkillPosterior:
    """The posterior distribution of theta by outcomes and actions, or by outcomes alone (b = 0)."""
    slope, spread, weight = _nodes(means, actions)
    return SkillPosterior(slope, spread, weight, *_skill_at(means, actions or _nothing(means), slope, spread))


def newcomer_posteriors(
    known: Means, known_actions: Covariate | None, means: Means, actions: Covariate | None
) -> Iterator[SkillPosterior]:
    """The posterior distribution of theta of each newcomer, given the demonstrators that are known.

    Each is what `skill_posterior` finds for a newcomer who joins those demonstrators alone.
    """
    slope, spread, weight = _nodes(known, known_actions)
    total, residual = _residuals(*_rated(known, known_actions or _nothing(known)), slope, spread)
    level, precision = _level(total, residual)
    actions = actions or _nothing(means)
    for person in range(len(means.mean)):
        predicted = level + slope * actions.mean[person]
        skill = slope**2 * actions.variance[person] + spread**2 + 1 / precision  # the variance of theta - predicted
        total, residual, own = skill + means.variance[person], means.mean[person] - predicted, weight
        if means.rated[person]:
            density = np.log(weight) - 0.5 * (np.log(total) + residual**2 / total)
            own = np.exp(density - density.max())
            own = own / own.sum()
        share = skill / total  # k, 0 without outcomes
        yield SkillPosterior(
            slope, spread, own, (predicted + share * residual)[:, None], ((1 - share) * skill)[:, None]
        )


def _nothing(means: Means) -> Covariate:
    """Actions that say nothing."""
    zero = np.zeros(len(means.mean))
    return Covariate(zero, zero, 0.0, 1.0)


def _nodes(means: Means, actions: Covariate | None) -> tuple[Array, Array, Array]:
    """(node,) b, tau and their posterior probability; b = 0 without actions."""
    if actions is None:
        actions = _nothing(means)
        ends = [(0.0, 0.0), (0.0, _REACH * _SPREAD_SD)]
    else:
        ends = [(-_REACH * _SLOPE_SD, _REACH * _SLOPE_SD), (0.0, _REACH * _SPREAD_SD)]
    for _ in range(12):
        slopes, spreads = (_midpoints(*each) for each in ends)
        density = _log_density(means, actions, slopes, spreads)
        near = density >= density.max() - _FALL
        new = [_range(nodes, near.any(1 - axis), ends[axis]) for axis, nodes in enumerate((slopes, spreads))]
        if not any(np.ptp(one) < 0.7 * np.ptp(other) for one, other in zip(new, ends, strict=True)):
            break
        ends = new
    weight = np.exp(density - density.max()).ravel()
    chosen = weight > _LEAST_WEIGHT
    slope, spread = np.repeat(slopes, len(spreads))[chosen], np.tile(spreads, len(slopes))[chosen]
    return slope, spread, weight[chosen] / weight[chosen].sum()


def _midpoints(low: float, high: float) -> Array:
    """Midpoints of equal parts of a range; one where it is a point."""
    count = _NODES if high > low else 1
    return low + (high - low) * (np.arange(count) + 0.5) / count


def _range(nodes: Array, near: Array, ends: tuple[float, float]) -> tuple[float, float]:
    """The parts of a range whose midpoints are near, and one more to either side."""
    if len(nodes) == 1:
        return ends
    half, index = (nodes[1] - nodes[0]) / 2, np.flatnonzero(near)
    low, high = nodes[max(index[0] - 1, 0)] - half, nodes[min(index[-1] + 1, len(nodes) - 1)] + half
    return max(float(low), ends[0]), min(float(high), ends[1])


def _log_density(means: Means, actions: Covariate, slopes: Array, spreads: Array) -> Array:
    """(slope, spread) log of the posterior density of b and tau, with a and theta integrated out, up to a constant."""
    slope, spread = np.repeat(slopes, len(spreads)), np.tile(spreads, len(slopes))
    prior = -0.5 * ((slope / _SLOPE_SD) ** 2 + (spread / _SPREAD_SD) ** 2)
    own, own_actions = _rated(means, actions)
    found = np.empty(len(slope))
    for part in _parts(len(slope), len(own.mean)):
        total, residual = _residuals(own, own_actions, slope[part], spread[part])
        level, precision = _level(total, residual)
        squares = (residual**2 / total).sum(1) - precision * level**2
        found[part] = -0.5 * (np.log(total).sum(1) + np.log(precision) + squares)
    return (prior + found).reshape(len(slopes), len(spreads))


def _rated(means: Means, actions: Covariate) -> tuple[Means, Covariate]:
    """Those of demonstrators with outcomes."""
    known = means.rated > 0
    own = means._replace(rated=means.rated[known], mean=means.mean[known], variance=means.variance[known])
    return own, actions._replace(mean=actions.mean[known], variance=actions.variance[known])


def _residuals(means: Means, actions: Covariate, slope: Array, spread: Array) -> tuple[Array, Array]:
    """(node, demonstrator) the variance of ybar - b m, U + D, and ybar - b m itself."""
    skill = slope[:, None] ** 2 * actions.variance + spread[:, None] ** 2
    return skill + means.variance, means.mean - slope[:, None] * actions.mean


def _level(total: Array, residual: Array) -> tuple[Array, Array]:
    """(node,) mean and precision of a."""
    precision = _LEVEL_SD**-2 + (1 / total).sum(1)
    return (residual / total).sum(1) / precision, precision


def _skill_at(means: Means, actions: Covariate, slope: Array, spread: Array) -> tuple[Array, Array]:
    """(node, demonstrator) mean and variance of theta given b and tau."""
    mean, variance = (np.empty((len(slope), len(means.mean))) for _ in range(2))
    for part in _parts(*mean.shape):
        total, residual = _residuals(means, actions, slope[part], spread[part])
        level, precision = _level(total, np.where(means.rated > 0, residual, 0.0))
        skill = slope[part, None] ** 2 * actions.variance + spread[part, None] ** 2
        rest = 1 - skill / total  # 1 - k, 1 without outcomes
        predicted = level[:, None] + slope[part, None] * actions.mean
        mean[part] = rest * predicted + (1 - rest) * means.mean
        variance[part] = rest * skill + rest**2 / precision[:, None]
    return mean, variance


def _parts(nodes: int, demonstrators: int) -> Iterator[slice]:
    """Nodes in parts whose numbers of all demonstrators are in memory together."""
    count = max(1, _AT_ONCE // max(1, demonstrators))
    return (slice(first, first + count) for first in range(0, nodes, count))


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
