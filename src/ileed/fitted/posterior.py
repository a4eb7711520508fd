"""Posterior distributions of expertise on a grid, with a population of people that is learned from all of them.

Everybody's expertise rho comes from one Beta distribution of unknown mean and standard deviation (empirical Bayes, but
both are averaged over rather than set to their likeliest values, which would claim that all people are alike wherever
few were seen). A person with few steps is drawn towards the others: partial pooling.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import NamedTuple, final

import numpy as np

from ileed._torch import product
from ileed.demonstrations import Array
from ileed.errors import SettingsError

_POINTS = 1000
_ANGLES = (np.arange(_POINTS) + 0.5) * (np.pi / 2 / _POINTS)
INSIDE = np.sin(_ANGLES) ** 2
GRID = np.concatenate([[0.0], INSIDE, [1.0]])
"""Points of expertise, evenly spaced in the arc sine of the root: finest near 0 and 1."""
DRAWS = 4000


@cache
def points_of(count: int) -> Array:
    """The points of expertise that so many shares are at: the inner points of the grid, or as many evenly spaced."""
    if count == len(INSIDE):
        return INSIDE
    return np.asarray(np.sin((np.arange(count) + 0.5) * (np.pi / 2 / count)) ** 2)


class Interval(NamedTuple):
    """Estimates and their intervals at some confidence level; three arrays (person,)."""

    estimate: Array
    low: Array
    high: Array


@final
@dataclass(frozen=True, eq=False)
class Population:
    """The distribution of expertise among people: what is known of somebody before a step of theirs is seen.

    It is learned from everybody who was rated together: a Beta distribution of unknown mean and standard deviation,
    averaged over their posterior distribution.
    """

    share: Array  # (point,) how much of the distribution lies at each inner point of the grid
    episode_spread: Array | None = None
    """(spread,) the posterior distribution of episode-to-episode variation over `ileed.fitted.variation.SPREADS`; None
    where it was not estimated."""

    @property
    def mean(self) -> float:
        return float(product(self.share, INSIDE))

    @property
    def spread(self) -> float:
        """Standard deviation of expertise between people."""
        return float(np.sqrt(product(self.share, (INSIDE - self.mean) ** 2)))


def tails(level: float) -> tuple[float, float]:
    """The two quantiles between which a share of `level` lies."""
    return (1 - level) / 2, (1 + level) / 2


def likeliest(curves: Array, level: float) -> Interval:
    """The top of each log-likelihood curve, and where it has fallen by half a chi-square quantile."""
    top = curves.argmax(1)
    person = np.arange(len(curves))
    fall = NormalDist().inv_cdf((1 + level) / 2) ** 2 / 2
    above = curves - (curves[person, top] - fall)[:, None]
    inside = above >= 0
    first, last = inside.argmax(1), len(GRID) - 1 - inside[:, ::-1].argmax(1)
    return Interval(
        estimate=peak(curves),
        low=_crossing(above, np.maximum(first - 1, 0), first),
        high=_crossing(above, np.minimum(last + 1, len(GRID) - 1), last),
    )


def peak(curves: Array, points: Array = GRID) -> Array:
    """The top of the parabola through each curve's highest point and its neighbours; an end of the grid as it is."""
    top = curves.argmax(1)
    middle = np.clip(top, 1, len(points) - 2)
    person = np.arange(len(curves))
    near = np.stack([middle - 1, middle, middle + 1])
    (x0, x1, x2), (y0, y1, y2) = points[near], curves[person, near]
    rise, fall = (y1 - y0) / (x1 - x0), (y2 - y1) / (x2 - x1)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = (x0 + x1) / 2 - rise * (x2 - x0) / 2 / (fall - rise)
    return np.where((top == middle) & (fall < rise), np.clip(found, x0, x2), points[top])


def _crossing(above: Array, outside: Array, inside: Array) -> Array:
    """Where each curve crosses zero between two neighbours of the grid; the last point inside at an end of it."""
    person = np.arange(len(above))
    out, within = above[person, outside], above[person, inside]
    part = np.where(outside == inside, 0.0, within / np.where(outside == inside, 1.0, within - out))
    return GRID[inside] + part * (GRID[outside] - GRID[inside])


def posterior(curves: Array, population: Population | None, *, mean: Array | None = None) -> tuple[Array, Population]:
    """(person, point) the posterior distribution of each person's expertise, and the population that is its prior.

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


def mean_and_interval(shares: Array, level: float) -> Interval:
    """Mean and equal-tailed interval of each row of shares over the inner points of the grid."""
    below, points = np.cumsum(shares, axis=1) - shares / 2, points_of(shares.shape[1])
    low, high = np.array([np.interp(tails(level), row, points) for row in below]).T
    return Interval(product(shares, points), low, high)


def draws(shares: Array) -> Array:
    """(draw, person) expertise drawn from each person's posterior distribution; the same at every call."""
    chance = np.random.default_rng(0)
    below, points = np.cumsum(shares, axis=1) - shares / 2, points_of(shares.shape[1])
    return np.stack([np.interp(chance.random(DRAWS), row, points) for row in below], axis=1)
