"""Scores of episodes and of segments within them: expertise, agreement with the policy, typicality of their states.

Each score is a mean or a posterior mean with an interval; there is no total:

- *expertise* of the demonstrator there, relative to the mean over demonstrators of the fit. The prior of an episode is
  a population of episodes of the same demonstrator, and the prior of its mean is their cross-fitted rating (for fits
  with `Drift`, in that quarter of their episodes). The likelihood is that of the episode's steps by the fitted policy
  (`ileed.rating.posterior`);
- *agreement*, the mean over steps of p(a | 1) / (p(a | 1) + p(a | m)): the probability that an expert took the step
  rather than a demonstrator of mean expertise m, with equal prior probabilities;
- *typicality*, the mean over steps of the share of all steps whose states are less typical.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import NamedTuple, final

import numpy as np
import torch

from ileed._torch import numpy_stream, product, threads
from ileed.curation.states import StateGroups, percentiles, typicality
from ileed.data import Array, Demonstrations
from ileed.methods import Fitted
from ileed.rating.posterior import INSIDE, mean_and_interval, on_whole_grid, posterior
from ileed.rating.signal import reliability_of
from ileed.rating.step_likelihood import (
    COARSE_POINTS,
    Block,
    StepLikelihood,
    add_block,
    dispersion_of,
    interpolation,
)

BOUNDS: Mapping[str, float] = {"expertise": 1.0, "agreement": 0.5, "typicality": 0.5}
"""The scores, each with the default threshold of `above`."""
_LOW = 0.02  # below which likelihoods of continuous actions are smooth only in the logarithm of expertise
_BETWEEN = np.exp(np.arange(np.log(INSIDE[0]), np.log(_LOW), 0.5))
_POINTS = np.unique(np.concatenate([_BETWEEN, COARSE_POINTS, INSIDE[-1:]]))
_COARSE = np.searchsorted(_POINTS, COARSE_POINTS)
# from `_POINTS` to the inner points of the grid: nearest in angle, or below `_LOW` in the logarithm
_INTERPOLATION = np.where(
    INSIDE < _LOW,
    interpolation(np.log(_POINTS), np.log(INSIDE), 4),
    interpolation(np.arcsin(np.sqrt(_POINTS)), np.arcsin(np.sqrt(INSIDE)), 4),
)
_UNITS_AT_ONCE = 4096
_ENOUGH_EPISODES = 1_000  # to estimate the dispersion of segments
_ENOUGH_DEMONSTRATORS = 500  # to estimate their mean
_ENOUGH_UNITS = 256  # of one demonstrator, to estimate their population
_DRIFT_PARTS = 4  # of a demonstrator's episodes, each with its own prior where expertise drifts
_LEAST_SEGMENT = 20  # steps
_PRIOR_STEPS = 5  # by which the variance of a unit shrinks towards that of all units
Progress = Callable[[int, int], object]


class Score(NamedTuple):
    """One score of each unit, (unit,): its estimate, its interval, and the probability that it is above a threshold."""

    estimate: Array
    low: Array
    high: Array
    above: Array

    def select(self, chosen: Array) -> Score:
        return Score(*(values[chosen] for values in self))

    def pooled(self, whole: Score, owner: Array, reliability: float) -> Score:
        """Shrink towards the scores of (unit,) the owners of units; the less reliable differences are, the more."""
        each = zip(self, whole, strict=True)
        return Score(*(reliability * own + (1 - reliability) * other[owner] for own, other in each))

    def columns(self, name: str) -> dict[str, Array]:
        return dict(zip((name, f"{name}_low", f"{name}_high", f"{name}_above"), self, strict=True))


Scores = Mapping[str, Score]


class Stretches(NamedTuple):
    """Segments of equal length into which episodes are split; the last of an episode may be shorter."""

    of_step: Array
    episode: Array
    """(segment,) the episode of each."""
    start: Array
    """(segment,) the first step, counted from the start of the episode."""
    steps: Array
    """(segment,) the number of steps."""

    @classmethod
    def of(cls, data: Demonstrations, length: int) -> Stretches:
        """All segments of a data set, in its order."""
        within = np.arange(len(data)) - data.episode_bounds[:-1][data.episode]
        begins = within % length == 0
        of_step = np.cumsum(begins) - 1
        return cls(of_step, data.episode[begins], within[begins], np.bincount(of_step))


class Settings(NamedTuple):
    """What scores depend on beside the fit and the data."""

    bounds: Mapping[str, float]
    level: float
    seed: int
    progress: Progress | None = None
    likelihood: StepLikelihood | None = None
    """That of policies which have not seen the steps; None for the fit's own policy."""
    groups: StateGroups | None = None
    """By which expertise is corrected for state, and then shrunk by its reliability; None does neither."""


class Scored(NamedTuple):
    """Scores of all units, with what was estimated about demonstrators."""

    episodes: Scores
    stretches: Scores
    within_reliability: float
    """NaN where it cannot be estimated."""
    expertise: Array
    """(demonstrator,) posterior mean, not relative to others."""
    reference: float
    """The expertise by which that of demonstrators is divided."""


def score(fit: Fitted, data: Demonstrations, inputs: Array, stretches: Stretches, settings: Settings) -> Scored:
    """Score episodes and segments; `inputs` are the normalised observations, (input, step)."""
    likelihood = settings.likelihood or fit.step_likelihood(data)
    judged = _judge(fit, likelihood, stretches, settings)
    curves = judged.curves.tempered(_dispersion(judged.curves, stretches.episode, settings.seed))
    by_episode = curves.summed(stretches.episode, data.episode_count)
    ratings, mean, reference = _ratings(fit, data, by_episode)
    priors, row = _priors(fit, data, ratings)
    columns = {"agreement": judged.agreement, "typicality": typicality(data, inputs, seed=settings.seed)}
    inflation = {name: _inflation(values, data, stretches) for name, values in columns.items()}
    reliability = within_reliability(judged.odds, data, likelihood.horizon)

    def of_units(curve: Curves, row: Array, unit: Array) -> dict[str, Score]:
        scores = {"expertise": _expertise(curve, row, priors, mean, settings)}
        for name, values in columns.items():
            scores[name] = _mean_of_steps(values, unit, inflation[name], name, settings)
        return scores

    episodes = of_units(by_episode, row, data.episode)
    within = episodes
    if len(stretches.steps) != data.episode_count:  # otherwise no episode is longer than a segment
        within = of_units(curves, row[stretches.episode], stretches.of_step)
    if settings.groups is not None:
        whole = _score_of(priors, reference, settings)
        pooled = episodes["expertise"].pooled(whole, row, float(np.nan_to_num(reliability)))
        episodes = episodes | {"expertise": pooled}
    return Scored(episodes, within, reliability, product(ratings, INSIDE), reference)


def within_reliability(index: Array, data: Demonstrations, horizon: int) -> float:
    """Reliability of differences between episodes of one demonstrator, from (step,) an index of quality; NaN for none.

    Odd and even segments of an episode are replicates (`reliability_of`). Their means are replaced by normal scores,
    which limit the influence of extreme steps, and are centred within demonstrators. A segment has twice the steps of
    the horizon, at least 20, and at most half of the episode. Steps whose horizon crosses the end of their segment are
    left out, since both replicates would share what happens there.
    """
    bounds, who = data.episode_bounds, data.episode_demonstrator
    steps = np.diff(bounds)
    length = np.minimum(max(_LEAST_SEGMENT, 2 * horizon), (steps + 1) // 2)[data.episode]
    here = np.arange(len(data)) - bounds[:-1][data.episode]
    half = here // length % 2
    end = np.minimum((here // length + 1) * length, steps[data.episode])
    used = (here + horizon <= end) | (end == steps[data.episode])
    cell, size = (2 * data.episode + half)[used], 2 * data.episode_count
    count = np.bincount(cell, minlength=size)
    known = count > 0
    normal = np.full(size, np.nan)
    mean = np.bincount(cell, index[used], size)[known] / count[known]
    normal[known] = torch.special.ndtri(torch.from_numpy(percentiles(mean))).numpy()
    halves = normal.reshape(-1, 2)
    halves = halves[whole := np.isfinite(halves).all(1)]
    if not len(halves):
        return np.nan
    own = who[whole]
    centre = np.bincount(own, halves.mean(1)) / np.maximum(np.bincount(own), 1)
    several = (np.bincount(own) > 1)[own]
    return reliability_of((halves - centre[own][:, None])[several])


@final
@dataclass(frozen=True, eq=False)
class Curves:
    """Log-likelihoods of units over expertise: (unit, statistic) `values` times a basis of (statistic, point)."""

    values: Array
    basis: Array
    """At the inner points of the grid."""
    coarse: Array
    """At `COARSE_POINTS`."""

    @classmethod
    def of_points(cls, values: Array) -> Curves:
        """Interpolate (unit, point) log-likelihoods at `_POINTS`."""
        return cls(values, _INTERPOLATION, np.eye(len(_POINTS))[:, _COARSE])

    def tempered(self, dispersion: float) -> Curves:
        return replace(self, values=self.values / dispersion)

    def summed(self, owner: Array, count: int) -> Curves:
        """Those of `count` owners of units, by (unit,) the owner of each."""
        values = np.zeros((count, self.values.shape[1]))
        np.add.at(values, owner, self.values)
        return replace(self, values=values)

    def on_grid(self, units: Array) -> Array:
        """(unit, point of GRID) log-likelihoods of some units; zero at both ends, which no posterior reads."""
        return np.pad(product(self.values[units], self.basis), ((0, 0), (1, 1)))


def _dispersion(curves: Curves, episode: Array, seed: int) -> float:
    """The overdispersion of segments within episodes.

    That of the fit's ratings is between episodes of one demonstrator, which may differ in expertise here.
    """
    several = np.flatnonzero(np.bincount(episode) > 1)
    if len(several) > _ENOUGH_EPISODES:
        several = numpy_stream(seed, "dispersion").choice(several, _ENOUGH_EPISODES, replace=False)
    some = np.isin(episode, several)
    return dispersion_of(product(curves.values[some], curves.coarse), episode[some]) if some.any() else 1.0


def reference_expertise(fit: Fitted) -> float:
    """The mean expertise over the demonstrators of a fit, cross-fitted if possible."""
    known = fit.expertise.ratings
    each = [*fit.expertise.by_demonstrator().values()] if known is None else known.best.expertise
    return float(np.nanmean(each))


class _Judged(NamedTuple):
    """What the steps say, without any prior."""

    curves: Curves
    """Of segments."""
    agreement: Array
    """(step,)."""
    odds: Array
    """(step,) the log-odds of an expert, corrected for state where the curves are."""


@torch.no_grad()
def _judge(fit: Fitted, likelihood: StepLikelihood, stretches: Stretches, settings: Settings) -> _Judged:
    """Log-likelihoods of segments over expertise, and of each step for an expert."""
    data, groups, done = likelihood.data, settings.groups, 0
    summed = torch.zeros(len(stretches.steps), len(_POINTS), dtype=torch.float64)
    grouped = torch.zeros(0 if groups is None else groups.size, len(_POINTS), dtype=torch.float64)
    odds, statistics, basis = np.empty(len(data)), np.empty((0, 2)), None
    for block in likelihood.judge(None):
        odds[block.steps] = _log_odds(fit, block, likelihood.temperature)
        if block.statistics is not None:  # of a rater, which judges all steps in one block
            statistics, basis = block.statistics.numpy().copy(), block.basis
        else:
            add_block(summed, block, stretches.of_step, likelihood.temperature, _POINTS)
            if groups is not None:
                add_block(grouped, block, groups.index, likelihood.temperature, _POINTS)
        done += len(block.steps)
        if settings.progress is not None:
            settings.progress(done, len(data))
    agreement = torch.sigmoid(torch.from_numpy(odds)).numpy()
    if basis is None:
        values = summed.numpy()
        if groups is not None:
            odds = odds - groups.effects_of(odds).additive()[groups.cluster, groups.fold, 0]
            values = values - _of_states(groups, groups.effects(grouped.numpy()).additive(), stretches)
        return _Judged(Curves.of_points(values), agreement, odds)
    if groups is not None:
        statistics[:, 1] = relative_noise(statistics[:, 1], groups)
        odds = -statistics[:, 1]
    grids = (basis(torch.from_numpy(points)).numpy() for points in (INSIDE, COARSE_POINTS))
    return _Judged(Curves(statistics, *grids).summed(stretches.of_step, len(stretches.steps)), agreement, odds)


def relative_noise(shares: Array, groups: StateGroups) -> Array:
    """(step,) noise shares divided by the usual noise of the state cluster, with the same mean.

    The noise of a demonstrator multiplies that of the state cluster, which other episodes estimate.
    """
    found = shares / groups.effects_of(shares).ratio()[groups.cluster, groups.fold, 0]
    return np.asarray(found * (shares.sum() / max(found.sum(), 1e-12)))


def _of_states(groups: StateGroups, effects: Array, stretches: Stretches) -> Array:
    """(segment, point) the effect of its states on the log-likelihood of each segment."""
    found = np.zeros((len(stretches.steps), effects.shape[2]))
    clusters, folds = effects.shape[:2]
    cells, index = np.unique(
        np.stack([stretches.of_step, groups.cluster * folds + groups.fold]), axis=1, return_inverse=True
    )
    count = np.bincount(index.ravel())
    np.add.at(found, cells[0], count[:, None] * effects.reshape(clusters * folds, -1)[cells[1]])
    return found


def _log_odds(fit: Fitted, block: Block, temperature: float) -> Array:
    """(step,) log-odds of an expert compared with the average demonstrator."""
    mean = float(np.clip(reference_expertise(fit), 0.05, 0.9))
    # an expert leaves no action unexplained under other models; here half the noise of the mean demonstrator
    expert = 1.0 if block.basis is None else (1 + mean) / 2
    average, best = block.at(torch.tensor([mean, expert], dtype=torch.float64), temperature).double()
    return np.asarray((best - average).numpy())


@threads(1)
@torch.no_grad()
def agreement_of_steps(fit: Fitted, data: Demonstrations) -> Array:
    """(step,) the probability that an expert took each step rather than the average demonstrator."""
    found, likelihood = np.empty(len(data)), fit.step_likelihood(data)
    for block in likelihood.judge(None):
        found[block.steps] = _log_odds(fit, block, likelihood.temperature)
    return np.asarray(torch.sigmoid(torch.from_numpy(found)).numpy())


def _score_of(shares: Array, reference: float, settings: Settings) -> Score:
    """The score of (unit, point) posterior distributions of expertise."""
    estimate, low, high = mean_and_interval(shares, settings.level)
    above = product(shares, settings.bounds["expertise"] * reference < INSIDE)
    return Score(estimate / reference, low / reference, high / reference, above)


def _ratings(fit: Fitted, data: Demonstrations, by_episode: Curves) -> tuple[Array, float, float]:
    """(demonstrator, point) posterior of each one's mean expertise; what scores and what ratings are divided by.

    Demonstrators of the fit have their cross-fitted posterior distribution, and others its population; without
    cross-fitting, all have the posterior distribution by these episodes. A policy that has seen these steps places
    demonstrators higher than cross-fitting does, by orders of magnitude with few steps. Scores are therefore divided so
    that they agree with `fitted.expertise.table()` on average over the demonstrators of the fit.
    """
    by_demonstrator = by_episode.summed(data.episode_demonstrator, len(data.names))

    def by_own_steps(chosen: Array) -> Array:
        return posterior(by_demonstrator.on_grid(chosen), None)[0]

    present = np.flatnonzero(np.bincount(data.episode_demonstrator, minlength=len(data.names)))
    known = fit.expertise.ratings
    if known is None or known.shares is None or known.population is None:
        shares = by_own_steps(np.arange(len(data.names)))
        mean = float(product(shares, INSIDE)[present].mean())
        return shares, mean, mean
    rows = dict(zip(known.names, known.shares, strict=True))
    shares = np.stack([on_whole_grid(rows.get(name, known.population.share)) for name in data.names])
    both = np.array([each for each in present if data.names[each] in rows], dtype=np.int64)
    reference = reference_expertise(fit)
    if not len(both):
        return shares, reference, reference
    both = both[:: -(-len(both) // _ENOUGH_DEMONSTRATORS)]
    relative = product(shares[both], INSIDE).mean() / reference
    return shares, float(product(by_own_steps(both), INSIDE).mean() / relative), reference


def _priors(fit: Fitted, data: Demonstrations, ratings: Array) -> tuple[Array, Array]:
    """(row, point) priors of the mean expertise over some episodes, and (episode,) the row of each episode.

    There is one row for each demonstrator, their rating. Where expertise drifts, there is one for each quarter of their
    episodes too, by their learning curve.
    """
    who, known = data.episode_demonstrator, fit.expertise.ratings
    if known is None or (curves := known.curves) is None:
        return ratings, who
    number = data.episode_numbers
    rows, row, angle = list(ratings), who.copy(), np.arcsin(np.sqrt(INSIDE))
    for owner in [each for each in np.unique(who) if data.names[each] in curves.names]:
        own = np.flatnonzero(who == owner)
        for part in np.array_split(own[np.argsort(number[own], kind="stable")], min(_DRIFT_PARTS, len(own))):
            drawn = curves.at(curves.names.index(data.names[owner]), np.array([number[part].mean()]))
            drawn = np.arcsin(np.sqrt(drawn))
            share = np.exp(-0.5 * ((angle - drawn.mean()) / max(float(drawn.std()), 1e-3)) ** 2)
            row[part] = len(rows)
            rows.append(share / share.sum())
    return np.stack(rows), row


def _expertise(curves: Curves, row: Array, priors: Array, mean: float, settings: Settings) -> Score:
    """The expertise of each unit, by its own steps and the population of units with the same row of `priors`."""
    found = np.empty((4, len(curves.values)))
    order, present = np.argsort(row, kind="stable"), np.unique(row)
    for number, own in zip(present, np.split(order, np.searchsorted(row[order], present[1:])), strict=True):
        some = own
        if len(own) > _ENOUGH_UNITS:
            some = numpy_stream(settings.seed, "population of units", int(number)).choice(own, _ENOUGH_UNITS, False)
        _, population = posterior(curves.on_grid(some), None, mean=priors[number])
        for first in range(0, len(own), _UNITS_AT_ONCE):
            part = own[first : first + _UNITS_AT_ONCE]
            found[:, part] = _score_of(posterior(curves.on_grid(part), population)[0], mean, settings)
    return Score(*found)


def _mean_of_steps(values: Array, unit: Array, inflation: float, name: str, settings: Settings) -> Score:
    """The mean over the steps of each unit, with a variance that allows for dependent steps and for short units."""
    steps = np.bincount(unit)
    mean = np.bincount(unit, values) / steps
    squares = np.bincount(unit, (values - mean[unit]) ** 2)
    usual = squares.sum() / max(1, len(values) - len(steps))
    variance = (squares + _PRIOR_STEPS * usual) / np.maximum(1, steps - 1 + _PRIOR_STEPS)
    error = np.sqrt(variance * inflation / steps)
    reach = NormalDist().inv_cdf((1 + settings.level) / 2) * error
    beyond = (mean - settings.bounds[name]) / np.maximum(error, 1e-12)
    above = torch.special.ndtr(torch.from_numpy(beyond)).numpy()
    return Score(mean, np.clip(mean - reach, 0, 1), np.clip(mean + reach, 0, 1), above)


def _inflation(values: Array, data: Demonstrations, stretches: Stretches) -> float:
    """Variance of the mean over a segment relative to independent steps, by batch means; one or more."""
    length = int(stretches.steps.max())
    whole = stretches.steps == length
    count = np.bincount(stretches.episode[whole], minlength=data.episode_count)
    freedom = int(np.maximum(count - 1, 0).sum())
    if length == 1 or freedom == 0:
        return 1.0
    means = (np.bincount(stretches.of_step, values) / stretches.steps)[whole]
    center = np.bincount(stretches.episode[whole], means, data.episode_count) / np.maximum(count, 1)
    between = ((means - center[stretches.episode[whole]]) ** 2).sum() / freedom
    own = np.bincount(data.episode, values) / np.bincount(data.episode)
    within = ((values - own[data.episode]) ** 2).sum() / max(1, len(values) - data.episode_count)
    return float(max(1.0, length * between / within)) if within > 0 else 1.0
