"""Posterior distributions of expertise on a grid, partially pooled over demonstrators.

The expertise rho of every demonstrator comes from one Beta distribution of unknown mean and standard deviation. Both
are averaged over: their likeliest values, as in empirical Bayes, would claim that few demonstrators are all alike.
With few steps, an estimate shrinks towards the population.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import NamedTuple, final

import numpy as np

from ileed._torch import product
from ileed.data import Array
from ileed.errors import SettingsError

_POINTS = 1000
_ANGLES = (np.arange(_POINTS) + 0.5) * (np.pi / 2 / _POINTS)
INSIDE = np.sin(_ANGLES) ** 2
GRID = np.concatenate([[0.0], INSIDE, [1.0]])
"""Points of expertise, evenly spaced in the arc sine of the root: finest near 0 and 1."""
DRAWS = 4000
KEPT_POINTS = 200
"""Points of expertise at which posterior distributions of very many demonstrators are kept: one in five."""


@cache
def points_of(count: int) -> Array:
    """The points of expertise that so many shares are at: the inner points of the grid, or as many evenly spaced."""
    if count == len(INSIDE):
        return INSIDE
    return np.asarray(np.sin((np.arange(count) + 0.5) * (np.pi / 2 / count)) ** 2)


class Estimates(NamedTuple):
    """Expertise and the ends of its intervals; three arrays (demonstrator,)."""

    expertise: Array
    low: Array
    high: Array


@final
@dataclass(frozen=True, eq=False)
class Population:
    """The distribution of expertise over demonstrators: the prior of a demonstrator without steps.

    It is learned from all demonstrators rated together: a Beta distribution of unknown mean and standard deviation,
    averaged over their posterior distribution.
    """

    share: Array  # (point,) how much of the distribution lies at each inner point of the grid
    episode_spread: Array | None = None
    """(spread,) the posterior distribution of episode-to-episode variation over `episode_variation.SPREADS`; None where
    it was not estimated."""

    @property
    def mean(self) -> float:
        return float(product(self.share, INSIDE))

    @property
    def spread(self) -> float:
        """Standard deviation of expertise between demonstrators."""
        return float(np.sqrt(product(self.share, (INSIDE - self.mean) ** 2)))


def tails(level: float) -> tuple[float, float]:
    """The two quantiles between which a share of `level` lies."""
    return (1 - level) / 2, (1 + level) / 2


def likeliest(curves: Array, level: float) -> Estimates:
    """The top of each log-likelihood curve, and where it has fallen by half a chi-square quantile."""
    top = curves.argmax(1)
    row = np.arange(len(curves))
    fall = NormalDist().inv_cdf((1 + level) / 2) ** 2 / 2
    above = curves - (curves[row, top] - fall)[:, None]
    inside = above >= 0
    first, last = inside.argmax(1), len(GRID) - 1 - inside[:, ::-1].argmax(1)
    return Estimates(
        expertise=peak(curves),
        low=_crossing(above, np.maximum(first - 1, 0), first),
        high=_crossing(above, np.minimum(last + 1, len(GRID) - 1), last),
    )


def peak(curves: Array, points: Array = GRID) -> Array:
    """The top of the parabola through each curve's highest point and its neighbours; an end of the grid as it is."""
    top = curves.argmax(1)
    middle = np.clip(top, 1, len(points) - 2)
    row = np.arange(len(curves))
    near = np.stack([middle - 1, middle, middle + 1])
    (x0, x1, x2), (y0, y1, y2) = points[near], curves[row, near]
    rise, fall = (y1 - y0) / (x1 - x0), (y2 - y1) / (x2 - x1)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = (x0 + x1) / 2 - rise * (x2 - x0) / 2 / (fall - rise)
    return np.where((top == middle) & (fall < rise), np.clip(found, x0, x2), points[top])


def _crossing(above: Array, outside: Array, inside: Array) -> Array:
    """Where each curve crosses zero between two neighbours of the grid; the last point inside at an end of it."""
    row = np.arange(len(above))
    out, within = above[row, outside], above[row, inside]
    part = np.where(outside == inside, 0.0, within / np.where(outside == inside, 1.0, within - out))
    return GRID[inside] + part * (GRID[outside] - GRID[inside])


def posterior(curves: Array, population: Population | None, *, mean: Array | None = None) -> tuple[Array, Population]:
    """(demonstrator, point) posterior distributions of expertise, and the population that is their prior.

    The mean of the population is uniform from 0 to 1 beforehand, unless its distribution `mean` (point,) is known, and
    its standard deviation uniform up to the greatest that the mean allows.
    """
    curves = curves[:, 1:-1]
    if population is None:
        learned = population_of(curves, mean=mean)
        return learned.shares, learned.population
    return possible(np.exp(curves - curves.max(1, keepdims=True)) * population.share), population


def possible(found: Array) -> Array:
    """Posterior distributions (row, point) normalised; refuse rows that the population makes impossible."""
    total = found.sum(1, keepdims=True)
    if not (total > 0).all():
        raise SettingsError("the population rules out a demonstrator's steps: pass a population of the same policy")
    return np.asarray(found / total)


class LearnedPopulation(NamedTuple):
    """Posterior distributions (demonstrator, point), the population, and the log of the data's marginal likelihood."""

    shares: Array
    population: Population
    log_evidence: float


def population_of(curves: Array, *, mean: Array | None = None) -> LearnedPopulation:
    """The population learned from log-likelihoods (demonstrator, inner point of the grid); see `posterior`."""
    top = curves.max(1, keepdims=True)
    likelihood = np.exp(curves - top)
    shares, log_before = _possible_populations()
    if mean is not None:
        known = np.interp(_MEANS, _ANGLES, mean)
        log_before = np.log(np.maximum(known, np.finfo(np.float64).tiny)).repeat(len(shares) // len(known))
    # (demonstrator, possible population)
    evidence = np.maximum(product(likelihood, shares.T), np.finfo(np.float64).tiny)
    log_after = log_before + np.log(evidence).sum(0)
    after = np.exp(log_after - log_after.max())
    log_evidence = float(log_after.max() + np.log(after.sum()) + top.sum())
    after /= after.sum()
    found = likelihood * product(after / evidence, shares)
    return LearnedPopulation(found / found.sum(1, keepdims=True), Population(product(after, shares)), log_evidence)


_MEANS = (np.arange(60) + 0.5) * (np.pi / 2 / 60)  # of possible populations, as angles


@cache
def _possible_populations() -> tuple[Array, Array]:
    """(population, point) shares of the Beta distributions that the prior allows, and the log of each one's weight.

    A standard deviation of s sqrt(m (1 - m)) is that of Beta(m k, (1 - m) k) with k = 1 / s^2 - 1.
    """
    mean, spread = np.sin(_MEANS)[:, None] ** 2, (np.arange(40) + 0.5) / 40
    concentration = 1 / spread**2 - 1
    first, second = ((part * concentration).ravel()[:, None] for part in (mean, 1 - mean))
    # with rho = sin^2 t, the density of Beta(a, b) in t is proportional to sin^(2a - 1) t cos^(2b - 1) t
    log_density = (2 * first - 1) * np.log(np.sin(_ANGLES)) + (2 * second - 1) * np.log(np.cos(_ANGLES))
    shares = np.exp(log_density - log_density.max(1, keepdims=True))
    weight = np.broadcast_to(np.sin(2 * _MEANS)[:, None], (60, 40)).ravel()
    return shares / shares.sum(1, keepdims=True), np.log(weight)


def mean_and_interval(shares: Array, level: float) -> Estimates:
    """Mean and equal-tailed interval of each row of shares over the inner points of the grid."""
    below, points = np.cumsum(shares, axis=1) - shares / 2, points_of(shares.shape[1])
    low, high = np.array([np.interp(tails(level), row, points) for row in below]).T
    return Estimates(product(shares, points), low, high)


def thinned(shares: Array) -> Array:
    """(demonstrator, point) shares at `KEPT_POINTS` points: sums over parts of the grid."""
    return np.asarray(shares.reshape(len(shares), KEPT_POINTS, -1).sum(-1))


def on_whole_grid(shares: Array) -> Array:
    """(..., point) shares at the inner points of the grid, each kept one spread evenly over its part."""
    parts = len(INSIDE) // shares.shape[-1]
    return shares if parts == 1 else np.repeat(shares / parts, parts, axis=-1)


def above(first: Array, second: Array) -> Array:
    """(demonstrator, other) the probability that one's expertise is above the other's, from their shares."""
    return product(first, (np.cumsum(second, axis=1) - second / 2).T)


def draws(shares: Array) -> Array:
    """(draw, demonstrator) samples of expertise from each posterior distribution; the same at every call."""
    chance = np.random.default_rng(0)
    below, points = np.cumsum(shares, axis=1) - shares / 2, points_of(shares.shape[1])
    return np.stack([np.interp(chance.random(DRAWS), row, points) for row in below], axis=1)


SPREADS = np.array([0.0, 0.1, 0.2, 0.3, 0.45, 0.65, 0.9, 1.2, 1.6, 2.2, 3.0])
"""Values of tau, the standard deviation of an episode's expertise on the logit scale, over which we average."""
_PRIOR = np.log(np.maximum(SPREADS, 0.025)) - SPREADS**2 / 2 + np.log(np.gradient(SPREADS))  # 0 stands for 0 to 0.05
_NEGLIGIBLE = 12  # nats below the likeliest spread
_FINE, _COARSE, _MANY_EPISODES = 250, 50, 20_000
_AT_ONCE = 4096
_TINY = np.finfo(np.float64).tiny


def points_for(episodes: int) -> Array:
    """Points of expertise at which the likelihood of each of this many episodes is needed.

    Fifty points serve very many episodes, which are short whenever memory holds their steps.
    """
    return np.sin(_angles(_FINE if episodes <= _MANY_EPISODES else _COARSE)) ** 2


def _angles(count: int) -> Array:
    """Evenly spaced t with rho = sin^2 t, inside (0, pi / 2)."""
    return np.asarray((np.arange(count) + 0.5) * (np.pi / 2 / count))


@final
@dataclass(frozen=True, eq=False)
class MarginalCurves:
    """Log-likelihood of each demonstrator's mean expertise, for every spread of their episodes."""

    whole: Array
    """(demonstrator, inner point of GRID) if episodes do not vary."""
    varied: Array
    """(spread above zero, demonstrator, mean) at the means of `_kernels`."""

    @classmethod
    def of(cls, curves: Array, by_episode: Array, owner: Array) -> MarginalCurves:
        """Integrate over the expertise of each episode.

        Args:
            curves: (demonstrator, point of GRID) log-likelihood of all steps if episodes do not vary.
            by_episode: (episode, point of `points_for`) log-likelihood of the steps of each episode.
            owner: (episode,) the demonstrator of each episode.
        """
        kernels = _kernels(by_episode.shape[1])
        varied = np.zeros((len(kernels), len(curves), by_episode.shape[1]))
        for first in range(0, len(by_episode), _AT_ONCE):
            part = slice(first, first + _AT_ONCE)
            top = by_episode[part].max(1, keepdims=True)
            likelihood = np.exp(by_episode[part] - top)
            for total, (kernel, _) in zip(varied, kernels, strict=True):
                np.add.at(total, owner[part], np.log(np.maximum(product(likelihood, kernel.T), _TINY)) + top)
        return cls(curves[:, 1:-1], varied)

    def at(self, spread: int) -> Array:
        """(demonstrator, inner point of GRID) the curves for one of `SPREADS`, by its index."""
        if spread == 0:
            return self.whole
        mean = _kernels(self.varied.shape[2])[spread - 1][1]
        return np.array([np.interp(np.arcsin(np.sqrt(INSIDE)), mean, row) for row in self.varied[spread - 1]])

    @property
    def greatest(self) -> Array:
        """(demonstrator, 1) the greatest log-likelihood over all spreads."""
        return np.maximum(self.whole.max(1), self.varied.max((0, 2)))[:, None]


@cache
def _kernels(count: int) -> list[tuple[Array, Array]]:
    """For each spread above zero: (mean, point) distributions of an episode's expertise, and the angle of each mean."""
    angle = _angles(count)
    expertise = np.sin(angle) ** 2
    logit = 2 * np.log(np.tan(angle))
    step = 1 / (np.sin(angle) * np.cos(angle))  # d logit / dt, up to a constant
    found = []
    for spread in SPREADS[1:]:
        kernel = np.exp(-0.5 * ((logit[:, None] - logit) / spread) ** 2) * step
        kernel /= kernel.sum(1, keepdims=True)
        found.append((kernel, np.arcsin(np.sqrt(product(kernel, expertise)))))
    return found


def posterior_of_means(curves: MarginalCurves, population: Population | None) -> tuple[Array, Population]:
    """(demonstrator, point) the posterior of each demonstrator's mean expertise, and the population that is its prior.

    The population, with the distribution of spreads, is learned from these demonstrators unless it is passed.
    """
    if population is not None:
        assert population.episode_spread is not None
        found, top = np.zeros_like(curves.whole), curves.greatest
        for spread in np.flatnonzero(population.episode_spread).tolist():
            found += population.episode_spread[spread] * np.exp(curves.at(spread) - top)
        return possible(found * population.share), population
    rough = _PRIOR + [_rough_evidence(curves.at(spread)) for spread in range(len(SPREADS))]
    kept = np.flatnonzero(rough > rough.max() - _NEGLIGIBLE)
    shares, share, spreads = np.zeros_like(curves.whole), np.zeros(len(INSIDE)), np.zeros(len(SPREADS))
    greatest = -np.inf
    for spread in kept.tolist():  # sums that are scaled again whenever a likelier spread follows
        learned = population_of(curves.at(spread))
        log_weight = _PRIOR[spread] + learned.log_evidence
        scale, weight = np.exp(min(greatest - log_weight, 0.0)), np.exp(min(log_weight - greatest, 0.0))
        greatest = max(greatest, log_weight)
        shares, share, spreads = shares * scale + weight * learned.shares, share * scale, spreads * scale
        share += weight * learned.population.share
        spreads[spread] = weight
    total = spreads.sum()
    return shares / total, Population(share / total, spreads / total)


def _rough_evidence(curves: Array) -> float:
    """The log of the marginal likelihood of curves (demonstrator, inner point) with uniformly distributed means."""
    top = curves.max(1, keepdims=True)
    density = np.sin(2 * _angles(curves.shape[1]))
    return float(np.log(product(np.exp(curves - top), density / density.sum())).sum() + top.sum())
