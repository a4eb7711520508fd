"""Posterior distributions of expertise on a grid, partially pooled over demonstrators.

The expertise rho of all demonstrators comes from one Beta distribution of unknown mean and standard deviation. Both are
averaged over: their likeliest values, as in empirical Bayes, would claim that few demonstrators are all alike. With few
steps, an estimate shrinks towards the population.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import NamedTuple, final

import numpy as np

from ileed._torch import product
from ileed.data import Array
from ileed.errors import SettingsError

_TINY = np.finfo(np.float64).tiny


@cache
def angles_of(count: int) -> Array:
    """Evenly spaced t with rho = sin^2 t, inside (0, pi / 2)."""
    return np.asarray((np.arange(count) + 0.5) * (np.pi / 2 / count))


@cache
def points_of(count: int) -> Array:
    """So many points of expertise, evenly spaced in the arc sine of the root: finest near 0 and 1."""
    return np.asarray(np.sin(angles_of(count)) ** 2)


INSIDE = points_of(1000)
"""The inner points of `GRID`, at which posterior distributions have their shares."""
GRID = np.concatenate([[0.0], INSIDE, [1.0]])
"""Points of expertise at which log-likelihoods of demonstrators are computed."""
DRAWS = 4000
KEPT_POINTS = 200
"""Points at which posterior distributions of very many demonstrators are kept: one in five."""


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

    share: Array
    """(point,) the probability of each inner point of the grid."""
    episode_spread: Array | None = None
    """(spread,) the posterior distribution of episode-to-episode variation over `SPREADS`; None where it was not
    estimated."""

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


def logit(expertise: Array) -> Array:
    """The log-odds of expertise."""
    return np.asarray(np.log(expertise) - np.log1p(-expertise))


# --- maximum likelihood


def likeliest(curves: Array, level: float) -> Estimates:
    """The maximum of each curve (row, point of GRID), and where it has fallen by half a chi-square quantile."""
    top, row = curves.argmax(1), np.arange(len(curves))
    fall = NormalDist().inv_cdf((1 + level) / 2) ** 2 / 2
    above = curves - (curves[row, top] - fall)[:, None]
    inside = above >= 0
    first, last = inside.argmax(1), len(GRID) - 1 - inside[:, ::-1].argmax(1)

    def crossing(outside: Array, end: Array) -> Array:
        """Where each curve crosses zero between two neighbours; the last point of the grid where it does not."""
        out, within, is_end = above[row, outside], above[row, end], outside == end
        part = np.where(is_end, 0.0, within / np.where(is_end, 1.0, within - out))
        return np.asarray(GRID[end] + part * (GRID[outside] - GRID[end]))

    low, high = crossing(np.maximum(first - 1, 0), first), crossing(np.minimum(last + 1, len(GRID) - 1), last)
    return Estimates(peak(curves), low, high)


def peak(curves: Array, points: Array = GRID) -> Array:
    """The top of the parabola through each curve's highest point and its neighbours; an end of the grid as it is."""
    top = curves.argmax(1)
    middle = np.clip(top, 1, len(points) - 2)
    near = np.stack([middle - 1, middle, middle + 1])
    (x0, x1, x2), (y0, y1, y2) = points[near], curves[np.arange(len(curves)), near]
    rise, fall = (y1 - y0) / (x1 - x0), (y2 - y1) / (x2 - x1)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = (x0 + x1) / 2 - rise * (x2 - x0) / 2 / (fall - rise)
    return np.where((top == middle) & (fall < rise), np.clip(found, x0, x2), points[top])


# --- partial pooling


def posterior(curves: Array, population: Population | None, *, mean: Array | None = None) -> tuple[Array, Population]:
    """(demonstrator, inner point) posterior distributions of expertise, and the population that is their prior.

    The population is learned from these (demonstrator, point of GRID) log-likelihoods unless it is passed. Its mean is
    uniform a priori, or has the distribution `mean` (point,); its standard deviation is uniform up to the largest that
    the mean allows.
    """
    curves = curves[:, 1:-1]
    if population is None:
        shares, population, _ = _learn(curves, mean=mean)
        return shares, population
    return _normalised(np.exp(curves - curves.max(1, keepdims=True)) * population.share), population


def _normalised(found: Array) -> Array:
    """Rows divided by their sums; refuses rows that the population makes impossible."""
    total = found.sum(1, keepdims=True)
    if not (total > 0).all():
        raise SettingsError(
            "the population rules out a demonstrator's steps: pass a population of the same policy",
            code="population-impossible",
        )
    return np.asarray(found / total)


def weigh_populations(likelihood: Array, shares: Array, log_prior: Array) -> tuple[Array, Array, float]:
    """Posterior probabilities of candidate populations, by how likely they make all demonstrators.

    `likelihood` is (demonstrator, point), `shares` (population, point), and `log_prior` (population,). Also returned
    are the (demonstrator, population) likelihoods and the log of the evidence.
    """
    each = np.maximum(product(likelihood, shares.T), _TINY)
    log_weight = log_prior + np.log(each).sum(0)
    weight = np.exp(log_weight - log_weight.max())
    total = weight.sum()
    return weight / total, each, float(log_weight.max() + np.log(total))


def _learn(curves: Array, *, mean: Array | None = None) -> tuple[Array, Population, float]:
    """Posterior distributions, population and log evidence from log-likelihoods (demonstrator, inner point)."""
    top = curves.max(1, keepdims=True)
    likelihood = np.exp(curves - top)
    shares, log_prior = _beta_distributions()
    if mean is not None:
        known = np.interp(_MEANS, angles_of(len(INSIDE)), mean)
        log_prior = np.log(np.maximum(known, _TINY)).repeat(len(shares) // len(known))
    weight, each, log_evidence = weigh_populations(likelihood, shares, log_prior)
    found = likelihood * product(weight / each, shares)
    population = Population(product(weight, shares))
    return found / found.sum(1, keepdims=True), population, float(log_evidence + top.sum())


_MEANS = angles_of(60)  # of candidate populations


@cache
def _beta_distributions() -> tuple[Array, Array]:
    """(population, point) shares of the Beta distributions that the prior allows, and the log of each one's weight.

    A standard deviation of s sqrt(m (1 - m)) is that of Beta(m k, (1 - m) k) with k = 1 / s^2 - 1.
    """
    mean, spread, angle = np.sin(_MEANS)[:, None] ** 2, (np.arange(40) + 0.5) / 40, angles_of(len(INSIDE))
    concentration = 1 / spread**2 - 1
    first, second = ((part * concentration).ravel()[:, None] for part in (mean, 1 - mean))
    # with rho = sin^2 t, the density of Beta(a, b) in t is proportional to sin^(2a - 1) t cos^(2b - 1) t
    log_density = (2 * first - 1) * np.log(np.sin(angle)) + (2 * second - 1) * np.log(np.cos(angle))
    shares = np.exp(log_density - log_density.max(1, keepdims=True))
    weight = np.broadcast_to(np.sin(2 * _MEANS)[:, None], (60, 40)).ravel()
    return shares / shares.sum(1, keepdims=True), np.log(weight)


# --- what posterior distributions say


def cumulative(shares: Array) -> Array:
    """(row, point) the probability below each point, half of its own included."""
    return np.asarray(np.cumsum(shares, axis=1) - shares / 2)


def mean_and_interval(shares: Array, level: float) -> Estimates:
    """Mean and equal-tailed interval of each row of shares over the inner points of the grid."""
    points = points_of(shares.shape[1])
    low, high = np.array([np.interp(tails(level), row, points) for row in cumulative(shares)]).T
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
    return product(first, cumulative(second).T)


def draws(shares: Array) -> Array:
    """(draw, demonstrator) samples of expertise from each posterior distribution; the same at every call."""
    chance, points = np.random.default_rng(0), points_of(shares.shape[1])
    return np.stack([np.interp(chance.random(DRAWS), row, points) for row in cumulative(shares)], axis=1)


# --- episodes that vary


SPREADS = np.array([0.0, 0.1, 0.2, 0.3, 0.45, 0.65, 0.9, 1.2, 1.6, 2.2, 3.0])
"""Values of tau, the standard deviation of an episode's expertise on the logit scale, over which we average."""
_LOG_PRIOR = np.log(np.maximum(SPREADS, 0.025)) - SPREADS**2 / 2 + np.log(np.gradient(SPREADS))  # 0 is 0 to 0.05
_NEGLIGIBLE = 12  # nats below the likeliest spread
_AT_ONCE = 4096


def points_for(episodes: int) -> Array:
    """Points of expertise at which the likelihood of each of this many episodes is needed.

    Fifty points serve very many episodes, which are short whenever memory holds their steps.
    """
    return points_of(250 if episodes <= 20_000 else 50)


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


@cache
def _kernels(count: int) -> list[tuple[Array, Array]]:
    """For each spread above zero: (mean, point) distributions of an episode's expertise, and the angle of each mean."""
    angle, expertise = angles_of(count), points_of(count)
    logits = 2 * np.log(np.tan(angle))
    step = 1 / (np.sin(angle) * np.cos(angle))  # d logit / dt, up to a constant
    found = []
    for spread in SPREADS[1:]:
        kernel = np.exp(-0.5 * ((logits[:, None] - logits) / spread) ** 2) * step
        kernel /= kernel.sum(1, keepdims=True)
        found.append((kernel, np.arcsin(np.sqrt(product(kernel, expertise)))))
    return found


def posterior_of_means(curves: MarginalCurves, population: Population | None) -> tuple[Array, Population]:
    """(demonstrator, point) the posterior of each demonstrator's mean expertise, and the population that is its prior.

    The population, with the distribution of spreads, is learned from these demonstrators unless it is passed.
    """
    if population is not None:
        assert population.episode_spread is not None
        found, top = np.zeros_like(curves.whole), np.maximum(curves.whole.max(1), curves.varied.max((0, 2)))
        for spread in np.flatnonzero(population.episode_spread).tolist():
            found += population.episode_spread[spread] * np.exp(curves.at(spread) - top[:, None])
        return _normalised(found * population.share), population
    rough = _LOG_PRIOR + [_rough_evidence(curves.at(spread)) for spread in range(len(SPREADS))]
    kept = np.flatnonzero(rough > rough.max() - _NEGLIGIBLE)
    shares, share, spreads = np.zeros_like(curves.whole), np.zeros(len(INSIDE)), np.zeros(len(SPREADS))
    greatest = -np.inf
    for spread in kept.tolist():  # sums that are scaled again whenever a likelier spread follows
        own, learned, log_evidence = _learn(curves.at(spread))
        log_weight = _LOG_PRIOR[spread] + log_evidence
        scale, weight = np.exp(min(greatest - log_weight, 0.0)), np.exp(min(log_weight - greatest, 0.0))
        greatest = max(greatest, log_weight)
        shares, share, spreads = shares * scale + weight * own, share * scale, spreads * scale
        share += weight * learned.share
        spreads[spread] = weight
    total = spreads.sum()
    return shares / total, Population(share / total, spreads / total)


def _rough_evidence(curves: Array) -> float:
    """The log of the marginal likelihood of curves (demonstrator, inner point) with uniformly distributed means."""
    top = curves.max(1, keepdims=True)
    density = np.sin(2 * angles_of(curves.shape[1]))
    return float(np.log(product(np.exp(curves - top), density / density.sum())).sum() + top.sum())


# --- integration over two numbers


def likely_nodes(
    log_density: Callable[[Array, Array], Array], ends: list[tuple[float, float]], places: Array, *, fall: float
) -> tuple[Array, Array, Array]:
    """Nodes of a grid over two numbers that holds all but a negligible part of their density, and the log-density.

    The grid is refined to the nodes within `fall` nats of the maximum, and one more to either side. `places` (node,)
    are where nodes lie in a range that is cut into 32 or 33 parts; a range of length zero has one node.
    """
    parts = round(float(places[-1] + places[0]))
    for _ in range(12):
        nodes = [low + (high - low) * (places if high > low else places[:1]) / parts for low, high in ends]
        found = log_density(*nodes)
        near, shrunk = found >= found.max() - fall, []
        for axis, (each, (low, high)) in enumerate(zip(nodes, ends, strict=True)):
            margin = float(places[0] * (each[1] - each[0])) if len(each) > 1 else 0.0  # beyond the outermost nodes
            index = np.flatnonzero(near.any(1 - axis))
            first, last = each[max(index[0] - 1, 0)], each[min(index[-1] + 1, len(each) - 1)]
            shrunk.append((max(float(first) - margin, low), min(float(last) + margin, high)))
        if not any(np.ptp(new) < 0.7 * np.ptp(old) for new, old in zip(shrunk, ends, strict=True)):
            break
        ends = shrunk
    return nodes[0], nodes[1], found
