"""Scores of episodes and of stretches within them: expertise, agreement with the policy, typicality of their states.

All three are means or posterior means with intervals, and none is a sum of the others:

- *expertise* of the person there, divided by the mean over the people of the fit. The prior of an episode is a
  population of episodes of the same person, whose mean is drawn to what cross-fitting says of that person (where
  people drift, in that quarter of their episodes); the likelihood is that of the episode's own steps by the fitted
  policy (`ileed.rating.posterior`);
- *agreement*, the mean over steps of p(a | 1) / (p(a | 1) + p(a | m)): the probability that a step was taken by an
  expert rather than by a demonstrator of mean expertise m, if both are equally likely beforehand;
- *typicality*, the mean over steps of how usual the state is: the share of all steps whose states are less so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import NamedTuple, final

import numpy as np
import torch

from ileed._torch import numpy_stream, product, threads
from ileed.curation.states import StateGroups, typicality
from ileed.data import Array, Demonstrations
from ileed.methods import Fitted
from ileed.rating.posterior import GRID, INSIDE, mean_and_interval, on_whole_grid, posterior
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
"""The scores, and the bound of each that `above` is about unless a rule names another."""
_LOW = 0.02  # below which the likelihood of continuous actions is smooth in the logarithm of expertise alone
_BETWEEN = np.exp(np.arange(np.log(INSIDE[0]), np.log(_LOW), 0.5))
_POINTS = np.unique(np.concatenate([_BETWEEN, COARSE_POINTS, INSIDE[-1:]]))
_COARSE = np.searchsorted(_POINTS, COARSE_POINTS)
_UNITS_AT_ONCE = 4096
_ENOUGH_EPISODES = 1_000  # to learn how the stretches of one differ
_STAGES = 4  # parts of a person's episodes, each of which is a population where people drift
_ENOUGH_DEMONSTRATORS = 500  # to learn their mean
_ENOUGH_UNITS = 256  # of one person, to learn how these differ
_LEAST_SEGMENT = 20  # steps
_PRIOR_STEPS = 5  # how many steps' worth it is believed beforehand that an episode varies as all do
Progress = Callable[[int, int], object]


class Score(NamedTuple):
    """One score of each unit, (unit,): its estimate, interval, and the probability that it is above a bound."""

    estimate: Array
    low: Array
    high: Array
    above: Array

    def select(self, chosen: Array) -> Score:
        return Score(*(values[chosen] for values in self))

    def pooled(self, whole: Score, owner: Array, reliability: float) -> Score:
        """Shrunk towards the scores of (unit,) the owners of units, all the more the less reliable differences are."""
        each = zip(self, whole, strict=True)
        return Score(*(reliability * own + (1 - reliability) * other[owner] for own, other in each))

    def columns(self, name: str) -> dict[str, Array]:
        return dict(zip((name, f"{name}_low", f"{name}_high", f"{name}_above"), self, strict=True))


Scores = Mapping[str, Score]


class Stretches(NamedTuple):
    """Episodes cut into stretches of so many steps, the last of each episode shorter."""

    of_step: Array
    episode: Array
    """(stretch,) the episode of each."""
    start: Array
    """(stretch,) its first step, counted from the start of its episode."""
    steps: Array
    """(stretch,) how many it has."""

    @classmethod
    def of(cls, data: Demonstrations, length: int) -> Stretches:
        """All stretches of a data set, in its order."""
        first = np.searchsorted(data.episode, np.arange(data.episode_count))
        within = np.arange(len(data)) - first[data.episode]
        begins = within % length == 0
        of_step = np.cumsum(begins) - 1
        return cls(of_step, data.episode[begins], within[begins], np.bincount(of_step))


class Settings(NamedTuple):
    """What scores depend on, beside the fit and the data."""

    bounds: Mapping[str, float]
    level: float
    seed: int
    progress: Progress | None = None
    likelihood: StepLikelihood | None = None
    """That of the steps by policies that have not seen them; None for the fit's own policy."""
    groups: StateGroups | None = None
    """By which expertise is corrected for state, and then shrunk by its reliability; None does neither."""


class Scored(NamedTuple):
    """Scores of all units, and what is known of demonstrators and of differences between their episodes."""

    episodes: Scores
    stretches: Scores
    within_reliability: float
    """NaN where it cannot be estimated."""
    expertise: Array
    """(demonstrator,) posterior mean, not relative to others."""
    reference: float
    """The expertise by which scores are divided."""


def score(fit: Fitted, data: Demonstrations, inputs: Array, stretches: Stretches, settings: Settings) -> Scored:
    """The scores of episodes, and those of segments; `inputs` are the normalised observations, (input, step)."""
    likelihood = settings.likelihood or fit.step_likelihood(data)
    judged = _judge(fit, likelihood, stretches, settings)
    curves = judged.curves.tempered(_dispersion(judged.curves, stretches.episode, settings.seed))
    by_episode = curves.summed(stretches.episode, data.episode_count)
    everybody, mean, reference = _people(fit, data, by_episode)
    people, who = _by_stage(fit, data, everybody)
    columns = {"agreement": judged.agreement, "typicality": typicality(data, inputs, seed=settings.seed)}
    inflation = {name: _inflation(values, data, stretches) for name, values in columns.items()}
    reliability = within_reliability(judged.odds, data, likelihood.horizon)

    def of_units(curve: Curves, who: Array, unit: Array) -> dict[str, Score]:
        scores = {"expertise": _expertise(curve, who, people, mean, settings)}
        for name, values in columns.items():
            scores[name] = _mean_of_steps(values, unit, inflation[name], name, settings)
        return scores

    episodes = of_units(by_episode, who, data.episode)
    within = episodes
    if len(stretches.steps) != data.episode_count:  # otherwise no episode is longer than a segment
        within = of_units(curves, who[stretches.episode], stretches.of_step)
    if settings.groups is not None:
        whole = _of_people(people, reference, settings)
        pooled = episodes["expertise"].pooled(whole, who, float(np.nan_to_num(reliability)))
        episodes = episodes | {"expertise": pooled}
    return Scored(episodes, within, reliability, product(everybody, INSIDE), reference)


def within_reliability(index: Array, data: Demonstrations, horizon: int) -> float:
    """Reliability of differences between episodes of one demonstrator, from (step,) an index of quality; NaN for none.

    Odd and even segments of an episode are replicates (`reliability_of`). Their means are replaced by normal scores,
    which single steps far from all others do not dominate, and are centred within demonstrators. A segment has twice
    the steps of the horizon, 20 at least, and half of the episode at most. Steps whose horizon reaches beyond their
    segment are left out, since both replicates would share what happens there.
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
    mean = np.bincount(cell, index[used], size)[known] / count[known]
    normal = np.full(size, np.nan)
    normal[known] = _normal_scores(mean)
    halves = normal.reshape(-1, 2)
    halves = halves[whole := np.isfinite(halves).all(1)]
    if not len(halves):
        return np.nan
    own = who[whole]
    centre = np.bincount(own, halves.mean(1)) / np.maximum(np.bincount(own), 1)
    several = (np.bincount(own) > 1)[own]
    return reliability_of((halves - centre[own][:, None])[several])


def _normal_scores(values: Array) -> Array:
    """Quantiles of the normal distribution at the values' ranks; ties have their mean rank."""
    _, index, count = np.unique(values, return_inverse=True, return_counts=True)
    rank = (np.cumsum(count) - count / 2)[index]
    return np.asarray(torch.special.ndtri(torch.from_numpy(rank / len(values))).numpy())


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
        """From (unit, point) log-likelihoods at `_POINTS`."""
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
    """How much more stretches of one episode differ than independent steps would; by some episodes of very many.

    Not that of the fit's ratings, which is between episodes of one person: here these may differ in expertise.
    """
    several = np.flatnonzero(np.bincount(episode) > 1)
    if len(several) > _ENOUGH_EPISODES:
        several = numpy_stream(seed, "dispersion").choice(several, _ENOUGH_EPISODES, replace=False)
    some = np.isin(episode, several)
    return dispersion_of(product(curves.values[some], curves.coarse), episode[some]) if some.any() else 1.0


def reference_expertise(fit: Fitted) -> float:
    """The mean expertise over the people of a fit, by cross-fitting where there is any."""
    known = fit.expertise.ratings
    each = [*fit.expertise.by_demonstrator().values()] if known is None else known.best.expertise
    return float(np.nanmean(each))


class _Judged(NamedTuple):
    """What the steps say, before anything is known of the demonstrators."""

    curves: Curves
    """Of segments."""
    agreement: Array
    """(step,)."""
    odds: Array
    """(step,) the log-odds of an expert, corrected for state where the curves are."""


@torch.no_grad()
def _judge(fit: Fitted, likelihood: StepLikelihood, stretches: Stretches, settings: Settings) -> _Judged:
    """Log-likelihood of each segment over expertise, and of each step for an expert."""
    data = likelihood.data
    done, groups = 0, settings.groups
    summed = torch.zeros(len(stretches.steps), len(_POINTS), dtype=torch.float64)
    grouped = torch.zeros(0 if groups is None else groups.size, len(_POINTS), dtype=torch.float64)
    odds, statistics, found = np.empty(len(data)), np.empty((len(data), 0)), None
    for block in likelihood.judge(None):
        odds[block.steps] = _log_odds(fit, block, likelihood.temperature)
        if block.statistics is not None and block.basis is not None:
            if found is None:
                statistics = np.zeros((len(data), block.statistics.shape[1]))
            statistics[block.steps] = block.statistics.numpy()
            found = block.basis
        else:
            add_block(summed, block, stretches.of_step, likelihood.temperature, _POINTS)
            if groups is not None:
                add_block(grouped, block, groups.index, likelihood.temperature, _POINTS)
        done += len(block.steps)
        if settings.progress is not None:
            settings.progress(done, len(data))
    agreement = np.asarray(torch.sigmoid(torch.from_numpy(odds)).numpy())
    if groups is not None:
        effect = groups.effects_of(odds).additive()[groups.cluster, groups.fold, 0]
        odds = odds - effect
    if found is None:
        values = summed.numpy()
        if groups is not None:
            values = values - _of_states(groups, groups.effects(grouped.numpy()).additive(), stretches)
        return _Judged(Curves.of_points(values), agreement, odds)
    if groups is not None:
        statistics[:, 1] = relative_noise(statistics[:, 1], groups)
        odds = -statistics[:, 1]
    summed = torch.zeros(len(stretches.steps), statistics.shape[1], dtype=torch.float64)
    summed.index_add_(0, torch.from_numpy(stretches.of_step), torch.from_numpy(statistics))
    grids = (found(torch.from_numpy(points)).numpy() for points in (INSIDE, COARSE_POINTS))
    return _Judged(Curves(summed.numpy(), *grids), agreement, odds)


def relative_noise(shares: Array, groups: StateGroups) -> Array:
    """(step,) noise shares relative to what is usual in the state, with the same mean.

    The noise of a demonstrator multiplies that of the state cluster, which other episodes estimate.
    """
    found = shares / groups.effects_of(shares).ratio()[groups.cluster, groups.fold, 0]
    return np.asarray(found * (shares.sum() / max(found.sum(), 1e-12)))


def _of_states(groups: StateGroups, effects: Array, stretches: Stretches) -> Array:
    """(segment, point) what the states of each segment add to its log-likelihood."""
    found = np.zeros((len(stretches.steps), effects.shape[2]))
    clusters, folds = effects.shape[:2]
    cells, index = np.unique(
        np.stack([stretches.of_step, groups.cluster * folds + groups.fold]), axis=1, return_inverse=True
    )
    count = np.bincount(index.ravel())
    np.add.at(found, cells[0], count[:, None] * effects.reshape(clusters * folds, -1)[cells[1]])
    return found


def _log_odds(fit: Fitted, block: Block, temperature: float) -> Array:
    """(step,) of an expert compared with the average demonstrator."""
    mean = float(np.clip(reference_expertise(fit), 0.05, 0.9))
    # an expert leaves no action unexplained under other models; here half the noise of the mean demonstrator
    expert = 1.0 if block.basis is None else (1 + mean) / 2
    ends = torch.tensor([mean, expert], dtype=torch.float64)
    average, expert = block.at(ends, temperature).double()
    return np.asarray((expert - average).numpy())


@threads(1)
@torch.no_grad()
def agreement_of_steps(fit: Fitted, data: Demonstrations) -> Array:
    """(step,) the probability that each step was taken by an expert rather than by the average demonstrator."""
    found, likelihood = np.empty(len(data)), fit.step_likelihood(data)
    for block in likelihood.judge(None):
        found[block.steps] = _log_odds(fit, block, likelihood.temperature)
    return np.asarray(torch.sigmoid(torch.from_numpy(found)).numpy())


def _of_people(people: Array, reference: float, settings: Settings) -> Score:
    """The rating of each demonstrator as a score."""
    estimate, low, high = mean_and_interval(people, settings.level)
    above = product(people, settings.bounds["expertise"] * reference < INSIDE)
    return Score(estimate / reference, low / reference, high / reference, above)


def _people(fit: Fitted, data: Demonstrations, by_episode: Curves) -> tuple[Array, float, float]:
    """(demonstrator, point) the posterior of each one's mean expertise, and what scores and ratings are divided by.

    Demonstrators of the fit have their cross-fitted posterior distribution, others its population; where nothing was
    cross-fitted, the distribution by these episodes. A policy that has seen these steps places all of them higher than
    cross-fitting does, by orders of magnitude where there are few. Scores are therefore divided such that, on average
    over the demonstrators of the fit, they agree with `fitted.expertise.table()`.
    """
    present = np.flatnonzero(np.bincount(data.episode_demonstrator, minlength=len(data.names)))
    known = fit.expertise.ratings
    if known is None or known.shares is None or known.population is None:
        shares = _by_own_steps(data, by_episode, np.arange(len(data.names)))
        mean = float(product(shares, INSIDE)[present].mean())
        return shares, mean, mean
    rows = dict(zip(known.names, known.shares, strict=True))
    shares = np.stack([on_whole_grid(rows.get(name, known.population.share)) for name in data.names])
    both = np.array([each for each in present if data.names[each] in rows], dtype=np.int64)
    both = both[:: -(-len(both) // _ENOUGH_DEMONSTRATORS)] if len(both) else both
    reference = reference_expertise(fit)
    if not len(both):
        return shares, reference, reference
    relative = product(shares[both], INSIDE).mean() / reference
    return shares, float(product(_by_own_steps(data, by_episode, both), INSIDE).mean() / relative), reference


def _by_own_steps(data: Demonstrations, by_episode: Curves, chosen: Array) -> Array:
    """(chosen, point) the posterior of some demonstrators' expertise by the likelihood of their episodes here."""
    by_demonstrator = by_episode.summed(data.episode_demonstrator, len(data.names))
    return posterior(by_demonstrator.on_grid(chosen), None)[0]


def _by_stage(fit: Fitted, data: Demonstrations, people: Array) -> tuple[Array, Array]:
    """(row, point) what is known of people's mean expertise, and (episode,) the row that each episode belongs to.

    One row for each person; where their expertise changes from episode to episode, one for each quarter of their
    episodes, as their learning curve has it there.
    """
    who, ratings = data.episode_demonstrator, fit.expertise.ratings
    if ratings is None or (curves := ratings.curves) is None:
        return people, who
    number = data.episode_numbers
    rows, row, angle = list(people), who.copy(), np.arcsin(np.sqrt(INSIDE))
    for person in [each for each in np.unique(who) if data.names[each] in curves.names]:
        own = np.flatnonzero(who == person)
        for part in np.array_split(own[np.argsort(number[own], kind="stable")], min(_STAGES, len(own))):
            drawn = curves.at(curves.names.index(data.names[person]), np.array([number[part].mean()]))
            drawn = np.arcsin(np.sqrt(drawn))
            share = np.exp(-0.5 * ((angle - drawn.mean()) / max(float(drawn.std()), 1e-3)) ** 2)
            row[part] = len(rows)
            rows.append(share / share.sum())
    return np.stack(rows), row


def _expertise(curves: Curves, who: Array, people: Array, mean: float, settings: Settings) -> Score:
    """Each unit's expertise, given its own steps and how the units of the same person differ."""
    found = np.empty((4, len(curves.values)))
    order, present = np.argsort(who, kind="stable"), np.unique(who)
    for person, own in zip(present, np.split(order, np.searchsorted(who[order], present[1:])), strict=True):
        some = own
        if len(own) > _ENOUGH_UNITS:
            some = numpy_stream(settings.seed, "population of units", int(person)).choice(own, _ENOUGH_UNITS, False)
        _, population = posterior(curves.on_grid(some), None, mean=people[person])
        for first in range(0, len(own), _UNITS_AT_ONCE):
            part = own[first : first + _UNITS_AT_ONCE]
            shares, _ = posterior(curves.on_grid(part), population)
            found[:3, part] = np.stack(mean_and_interval(shares, settings.level)) / mean
            found[3, part] = product(shares, settings.bounds["expertise"] * mean < INSIDE)
    return Score(*found)


# from `_POINTS` to the inner points of the grid: nearest in angle, or below `_LOW` in the logarithm
_INTERPOLATION = np.where(
    INSIDE < _LOW,
    interpolation(np.log(_POINTS), np.log(INSIDE), 4),
    interpolation(np.arcsin(np.sqrt(_POINTS)), np.arcsin(np.sqrt(INSIDE)), 4),
)
assert len(GRID) == len(INSIDE) + 2


def _mean_of_steps(values: Array, unit: Array, inflation: float, name: str, settings: Settings) -> Score:
    """The mean over each unit's steps; its variance allows for steps that go together, and for units of few steps."""
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
    """How much more the mean over a stretch varies than that over independent steps would: the batch means of Law.

    The variance of stretches' means about their episodes' means times the length of a stretch, by that of the steps.
    """
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
