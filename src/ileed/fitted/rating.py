"""Rating: how expert people are by a policy that is given, with intervals.

A fit learns policy and expertise together. Here the policy is given (`ileed.fitted.likelihood`), so that people whom no
fit has seen can be rated; `ileed.fitted.posterior` has the estimates. Cross-fitting rates the people of a fit in the
same way, each episode by a policy that has not seen it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, final

import numpy as np

from ileed._torch import default_modes, numpy_stream, product, threads
from ileed.checking import callable_or_none, instance_of, one_of, text
from ileed.demonstrations import Array, Demonstrations, check_demonstrations, rules
from ileed.demonstrations.streaming import held_in_memory
from ileed.deprecation import renamed_arguments
from ileed.errors import SettingsError
from ileed.fitted.ensemble import Fitted
from ileed.fitted.judging import judged_steps
from ileed.fitted.learning import LEARNING_POINTS, LearningCurves, learning_curves
from ileed.fitted.likelihood import (
    COARSE_POINTS,
    PROFILE_POINTS,
    TABULATED_POINTS,
    Block,
    Profile,
    Work,
    blocks_of_assumed,
    curves,
    dispersion,
    dispersion_of,
    likeliest_temperature,
    profiles,
    tabulated,
)
from ileed.fitted.policy import Policy
from ileed.fitted.population import thinned
from ileed.fitted.posterior import GRID, Population, likeliest, mean_and_interval, peak, posterior, tails
from ileed.fitted.rated_by import RatedBy, checked_level
from ileed.fitted.ratings import Estimates, Rating, Ratings, Units
from ileed.fitted.signal import LogNoise, Rater
from ileed.fitted.variation import MarginalCurves, points_for, posterior_of_means
from ileed.model.demonstrators import AbstractDemonstratorModel
from ileed.model.joint import Joint

__all__ = ["Estimates", "Population", "Rating", "Ratings", "rate"]

RESAMPLES = 2_000
PEOPLE_AT_ONCE = 4_000
"""Whose likelihoods are in memory together where there are very many people."""


@renamed_arguments(certainty="confidence_level", fitted="policy")
@default_modes()
@threads(1)
def rate(
    policy: Any,
    demonstrations: Demonstrations,
    *,
    demonstrator: AbstractDemonstratorModel[Any] | None = None,
    pooled: bool | Population = True,
    confidence_level: float = 0.95,
    interval: Literal["likelihood", "episodes"] = "likelihood",
) -> Ratings:
    """How expert everybody in `demonstrations` is by a policy, whether or not it was learned from them.

    One number for each person, also where the expertise of a fit depends on the state.

    `policy` is a fit; or an object whose `distribution(observations, legal=)` returns a categorical distribution, as
    `Fitted.policy` has it; or the probability of every action at every step: an array (step, action), or a categorical
    distribution of as many rows. `demonstrator` is the model of how a person of given expertise acts: by default that
    of the fit, and `UniformMixture()` where there is no fit.

    `pooled` adds estimates that are shrunk towards the mean of the population, the more the fewer steps somebody has.
    Everybody rated here makes that population, unless one is passed: rate a newcomer with the `population` of earlier
    ratings, since one person alone says nothing of others. `Fitted.assess` does so.

    `interval` is that of the estimates in `alone`. "likelihood" takes every rho whose log-likelihood is within half a
    chi-square quantile of the greatest: right for any number of steps but the fewest, at the ends of the range too, if
    steps are independent given rho. "episodes" resamples whole episodes instead, which allows for dependence between
    the steps of an episode; it needs some twenty episodes a person, and is the whole range for a single one.
    """
    check_demonstrations(demonstrations)
    if isinstance(own := getattr(policy, "policy", policy), Policy):  # of a fit, or by itself
        demonstrations = own.match(demonstrations)
    if isinstance(policy, Fitted):
        demonstrations = policy.match_names(demonstrations, allow_new=True)
    demonstrations, _ = held_in_memory(demonstrations)
    if not isinstance(pooled, bool):
        instance_of("pooled", pooled, Population, rule="pass True, False, or the `population` of earlier ratings")
    level = checked_level(confidence_level)
    one_of("interval", interval, ("likelihood", "episodes"))
    if isinstance(policy, Fitted) and policy.rater is not None and demonstrator is None:
        return rate_noise(policy.rater.judge(demonstrations).log_noise(), demonstrations, pooled=pooled, level=level)
    is_asked = isinstance(policy, Fitted) or hasattr(policy, "distribution")  # and not a table with a row for each step
    if _in_parts(demonstrations) and is_asked and interval == "likelihood" and pooled is not False:
        judged = _judge(policy, demonstrations, demonstrator)
        common, _ = _of_some_people(judged, demonstrations, 1.0, 1.0)
        common = common if pooled is True else replace(common, population=pooled)
        return _rate_parts(judged, demonstrations, common, level)
    blocks = judged_steps(policy, demonstrations, demonstrator)
    return rate_blocks(blocks, demonstrations, pooled=pooled, level=level, by_episode=interval == "episodes")


@default_modes()
@threads(1)
def assess(
    fit: Fitted,
    demonstrations: Demonstrations,
    *,
    by: str = "demonstrator",
    confidence_level: float = 0.95,
    progress: Callable[[int, int], object] | None = None,
) -> Ratings:
    """People rated by a fit, as `Fitted.assess` says."""
    demonstrations = fit.policy.match(demonstrations)
    callable_or_none("progress", progress, rule="pass a function of the number done and the total, or None")
    text("by", by)
    if by == "episode" and demonstrations.mapping is not None:
        raise SettingsError("episodes of a folder are not rated one by one: ileed.curate scores each of them")
    demonstrations, _ = held_in_memory(fit.match_names(demonstrations, allow_new=True))
    level, known, units = checked_level(confidence_level), fit.ratings_by_actions, units_of(demonstrations, by)
    if fit.rater is not None:
        return _assess_noise(fit, fit.rater, demonstrations, units, level, progress)
    if units is None and _in_parts(demonstrations):
        return _assess_many(fit, demonstrations, level, progress)
    practice = fit.joint.parts.expertise.practice_episodes
    points = len(GRID) + (0 if units is not None else learning_points(fit.joint) + episode_points(demonstrations))
    work = Work(progress, len(demonstrations), points * len(demonstrations))
    blocks = [*work.over(judged_steps(fit, demonstrations))]
    if known is None:
        found = rate_blocks(blocks, demonstrations, level=level, units=units)
        return found if units is not None else with_learning_curves(found, blocks, demonstrations, practice)
    # kinds of state and episodes differ more than people do, and so have a population of their own
    pooled = known.population if units is None and known.population is not None else True
    how = partial(rate_blocks, temperature=known.by.temperature, spread=known.by.dispersion)
    found = how(blocks, demonstrations, pooled=pooled, level=level, units=units)
    found = replace(found, reference=float(known.best.expertise.mean()))
    return found if units is not None else with_learning_curves(found, blocks, demonstrations, practice, known.curves)


def _assess_noise(
    fit: Fitted,
    rater: Rater,
    data: Demonstrations,
    units: Units | None,
    level: float,
    progress: Callable[[int, int], object] | None,
) -> Ratings:
    """Demonstrators or units with continuous actions, as `assess` rates them."""
    tell = progress or (lambda done, total: None)
    tell(0, len(data))
    judged, known = rater.judge(data), fit.ratings_by_actions
    population = None if known is None or units is not None else known.population
    noise = judged.log_noise(None if units is None else units.of_step)
    found = rate_noise(noise, data, pooled=population or True, level=level, units=units)
    tell(len(data), len(data))
    found = replace(found, by=replace(found.by, **rater.rated))
    if known is not None:
        found = replace(found, reference=float(known.best.expertise.mean()))
    practice = fit.joint.parts.expertise.practice_episodes
    if units is not None or practice is None:
        return found
    blocks = [rater.block(np.arange(len(data)), judged.shares())]
    return with_learning_curves(found, blocks, data, practice, known and known.curves)


def rate_noise(
    noise: LogNoise,
    data: Demonstrations,
    *,
    pooled: bool | Population = True,
    level: float = 0.95,
    units: Units | None = None,
    assumed: Array | None = None,
) -> Ratings:
    """Ratings of demonstrators with continuous actions, or of units, by their noise.

    `assumed` is as in `blocks_of_assumed`. Of very many demonstrators, 5,000 are the population.
    """
    _refuse_without_steps(data)
    names, owner = (data.names, data.demonstrator) if units is None else (units.names, units.of_step)
    told = blocks_of_assumed(assumed, np.arange(len(data)))

    def log_likelihood(chosen: Array) -> Array:
        found = noise.curves(chosen, GRID)
        if not told:
            return found
        place = np.full(len(names), -1)
        place[chosen] = np.arange(len(chosen))
        return found + curves(told, place[owner], len(chosen))

    every, many = np.arange(len(names)), len(names) > rules.MANY_PEOPLE
    population = pooled if isinstance(pooled, Population) else None
    if many and pooled is True:
        population = posterior(log_likelihood(_some_people(len(names))), None)[1]
    alone, together, shares = [], [], []
    for part in np.split(every, range(PEOPLE_AT_ONCE, len(every), PEOPLE_AT_ONCE)) if many else [every]:
        found = log_likelihood(part)
        alone.append(likeliest(found, level))
        if pooled is not False:
            share, population = posterior(found, population)
            together.append(mean_and_interval(share, level))
            shares.append(thinned(share) if many else share)
    ratings = Ratings(
        names,
        np.bincount(owner, minlength=len(names)),
        _episodes_each(owner, len(names), data),
        RatedBy(level),
        Estimates(*map(np.concatenate, zip(*alone, strict=True))),
        parts={} if units is None else units.columns,
    )
    if pooled is False:
        return ratings
    estimates = Estimates(*map(np.concatenate, zip(*together, strict=True)))
    return replace(ratings, pooled=estimates, population=population, shares=np.concatenate(shares))


def _refuse_without_steps(data: Demonstrations) -> None:
    if (data.steps_each == 0).any():
        nobody = data.names[int((data.steps_each == 0).argmax())]
        raise SettingsError(f"{nobody!r} has no step to be rated by: leave that name out with demonstrations.by(...)")


def episode_points(data: Demonstrations) -> int:
    """Number of points at which rating asks each step for its likelihood, to learn how episodes vary."""
    return len(points_for(data.episode_count))


def learning_points(joint: Joint) -> int:
    """At how many points `with_learning_curves` asks each step for its likelihood."""
    return 0 if joint.parts.expertise.practice_episodes is None else LEARNING_POINTS


def with_learning_curves(
    ratings: Ratings,
    blocks: Sequence[Block],
    data: Demonstrations,
    episodes: int | None,
    known: LearningCurves | None = None,
) -> Ratings:
    """The ratings with learning curves, where expertise changes over so many `episodes`; None leaves them as they are.

    Demonstrators are then compared with those of curves that are `known`.
    """
    if episodes is None:
        return ratings
    population = known and known.population
    found = learning_curves(blocks, data, episodes=episodes, temperature=ratings.by.temperature, population=population)
    return ratings.with_curves(found)


def _in_parts(data: Demonstrations) -> bool:
    """Whether there are very many people, all of whom can be rated."""
    return data.has_many_people and bool((data.steps_each > 0).all())


def _judge(policy: Any, data: Demonstrations, demonstrator: AbstractDemonstratorModel[Any] | None = None) -> _Judged:
    """From a mask of steps to their blocks, judged by a fit or by an object with `distribution`."""

    def judged(chosen: Array) -> Iterable[Block]:
        steps, part = np.flatnonzero(chosen), data.select(chosen)
        return (replace(block, steps=steps[block.steps]) for block in judged_steps(policy, part, demonstrator))

    return judged


def _assess_many(
    fit: Fitted, data: Demonstrations, level: float, progress: Callable[[int, int], object] | None
) -> Ratings:
    """Very many people rated by a fit, in parts."""
    known = fit.ratings_by_actions
    is_known = known is not None and known.population is not None
    judged = _counted(_judge(fit, data), data, progress, 0 if is_known else PROFILE_POINTS + len(GRID))
    if known is None or known.population is None:
        return _rate_parts(judged, data, _of_some_people(judged, data, 1.0, 1.0)[0], level)
    common = _Common(known.by.temperature, known.by.dispersion, known.population)
    reference = float(known.best.expertise.mean())
    return replace(_rate_parts(judged, data, common, level), reference=reference)


def units_of(data: Demonstrations, by: str) -> Units | None:
    """Each person's episodes, or their steps with each label of a column; None for people themselves."""
    if by == "demonstrator":
        return None
    if by == "episode":
        labels, number = [str(each + 1) for each in range(data.episode_count)], data.episode
    else:
        weights, names = data.skill(by)
        if not np.isin(weights, (0, 1)).all():
            raise SettingsError(f"the skill column {by!r} holds weights: rate by a column of labels, or by 'episode'")
        labels, number = list(names), weights.argmax(1)
    pairs, of_step = np.unique(data.demonstrator * len(labels) + number, return_inverse=True)
    people = tuple(data.names[pair // len(labels)] for pair in pairs)
    return Units({"demonstrator": people, by: tuple(labels[pair % len(labels)] for pair in pairs)}, of_step)


def rate_blocks(
    blocks: Sequence[Block],
    data: Demonstrations,
    *,
    pooled: bool | Population = True,
    level: float = 0.95,
    by_episode: bool = False,
    temperature: float = 1.0,
    spread: float | None = 1.0,
    units: Units | None = None,
) -> Ratings:
    """Ratings by steps whose likelihood is known; `spread` is their dispersion, None to estimate it.

    `units` are rated in place of people.
    """
    _refuse_without_steps(data)
    names, owner = (data.names, data.demonstrator) if units is None else (units.names, units.of_step)
    people = len(names)
    if by_episode:
        each = curves(blocks, data.episode, data.episode_count, temperature=temperature)
        found = np.zeros((people, each.shape[1]))
        np.add.at(found, data.episode_demonstrator, each)
    else:
        found = curves(blocks, owner, people, temperature=temperature)
    if spread is None:
        spread = dispersion(blocks, data, temperature)
    alone = Estimates(*likeliest(found / spread, level))
    if by_episode:
        alone = _resampled(alone, each, data.episode_demonstrator, level)
    episodes = _episodes_each(owner, people, data)
    by = RatedBy(level, temperature, spread)
    parts = {} if units is None else units.columns
    ratings = Ratings(names, np.bincount(owner, minlength=people), episodes, by, alone, parts=parts)
    if pooled is False:
        return ratings
    known = None if pooled is True else pooled
    if units is None and (known is None or known.episode_spread is not None):
        shares, population = posterior_of_means(_by_spread(blocks, data, found, temperature), known)
    else:
        shares, population = posterior(found / spread, known)
    return replace(ratings, pooled=Estimates(*mean_and_interval(shares, level)), population=population, shares=shares)


def _by_spread(blocks: Iterable[Block], data: Demonstrations, found: Array, temperature: float) -> MarginalCurves:
    """The curves of all demonstrators, from those of their episodes."""
    points = points_for(data.episode_count)
    by_episode = curves(blocks, data.episode, data.episode_count, temperature=temperature, points=points)
    return MarginalCurves.of(found, by_episode, data.episode_demonstrator)


def _episodes_each(owner: Array, people: int, data: Demonstrations) -> Array:
    """(owner,) in how many episodes the steps of each are."""
    both = np.unique(owner * data.episode_count + data.episode)
    return np.bincount(both // data.episode_count, minlength=people)


_Judged = Callable[[Array], Iterable[Block]]  # from a mask of steps to their blocks


@final
@dataclass(frozen=True, eq=False)
class _Common:
    """What is the same for all people who are rated together."""

    temperature: float
    spread: float
    population: Population


def rate_in_parts(
    judged: _Judged,
    data: Demonstrations,
    *,
    temperature: float | None,
    assumed: Array | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> tuple[Ratings, list[Profile]]:
    """Ratings of very many people, some thousands at a time, and the profiles that chose the temperature.

    `judged` has the blocks of the steps of a mask (step,). The temperature, the dispersion and the population are
    those of 5,000 of them, evenly spaced; by these everybody is rated. `assumed` is as in `blocks_of_assumed`.
    """
    judged = _counted(judged, data, progress, PROFILE_POINTS + len(COARSE_POINTS) + len(GRID))
    common, found = _of_some_people(judged, data, temperature)
    return _rate_parts(judged, data, common, 0.95, assumed), found


def _counted(
    judged: _Judged, data: Demonstrations, progress: Callable[[int, int], object] | None, points_of_some: int
) -> _Judged:
    """The same, which tell how far the rating is: steps of some people are judged at so many points beforehand."""
    likelihoods = len(data) * (len(GRID) + episode_points(data) if data.discrete else TABULATED_POINTS)
    likelihoods += int(data.steps_each[_some_people(len(data.names))].sum()) * points_of_some
    work = Work(progress, len(data), likelihoods)
    return lambda chosen: work.over(judged(chosen))


def _some_people(count: int) -> Array:
    """The numbers of 5,000 of so many people, or fewer, evenly spaced."""
    return np.arange(count)[:: -(-count // rules.MANY_PEOPLE)]


def _of_some_people(
    judged: _Judged,
    data: Demonstrations,
    temperature: float | None,
    spread: float | None = None,
) -> tuple[_Common, list[Profile]]:
    people, some = len(data.names), _some_people(len(data.names))
    owner = np.full(people, -1)
    owner[some] = np.arange(len(some))
    owner, episodes = owner[data.demonstrator], np.flatnonzero(owner[data.episode_demonstrator] >= 0)
    blocks = list(judged(owner >= 0))
    found = profiles(blocks, owner, len(some))
    chosen = likeliest_temperature(found) if temperature is None else temperature
    number = np.full(data.episode_count, -1)
    number[episodes] = np.arange(len(episodes))
    if spread is None:
        by_episode = curves(blocks, number[data.episode], len(episodes), temperature=chosen, points=COARSE_POINTS)
        spread = dispersion_of(by_episode, owner[np.searchsorted(data.episode, episodes)])
    of_people = curves(blocks, owner, len(some), temperature=chosen)
    points = points_for(len(episodes))
    by_episode = curves(blocks, number[data.episode], len(episodes), temperature=chosen, points=points)
    by_spread = MarginalCurves.of(of_people, by_episode, owner[np.searchsorted(data.episode, episodes)])
    return _Common(chosen, spread, posterior_of_means(by_spread, None)[1]), found


def _rate_parts(
    judged: _Judged, data: Demonstrations, common: _Common, level: float, assumed: Array | None = None
) -> Ratings:
    people, alone, pooled, shares = len(data.names), [], [], []
    for first in range(0, people, PEOPLE_AT_ONCE):
        count = min(PEOPLE_AT_ONCE, people - first)
        own = (data.demonstrator >= first) & (data.demonstrator < first + count)
        now = list(judged(own))
        if not data.discrete:
            now = [tabulated(block, data.episode, common.temperature) for block in now]
        now = [*now, *blocks_of_assumed(assumed, np.flatnonzero(own))]
        curve = curves(now, data.demonstrator - first, count, temperature=common.temperature)
        alone.append(likeliest(curve / common.spread, level))
        if common.population.episode_spread is None:
            share, _ = posterior(curve / common.spread, common.population)
        else:
            episodes, number = np.unique(data.episode[own], return_inverse=True)
            of_step = np.full(len(data), -1)
            of_step[own] = number
            points = points_for(len(episodes))
            by_episode = curves(now, of_step, len(episodes), temperature=common.temperature, points=points)
            owner = data.episode_demonstrator[episodes] - first
            share, _ = posterior_of_means(MarginalCurves.of(curve, by_episode, owner), common.population)
        pooled.append(mean_and_interval(share, level))
        shares.append(thinned(share))
    return Ratings(
        data.names,
        data.steps_each,
        _episodes_each(data.demonstrator, people, data),
        RatedBy(level, common.temperature, common.spread),
        Estimates(*map(np.concatenate, zip(*alone, strict=True))),
        Estimates(*map(np.concatenate, zip(*pooled, strict=True))),
        common.population,
        np.concatenate(shares),
    )


def _resampled(alone: Estimates, by_episode: Array, who: Array, level: float) -> Estimates:
    """The same estimates with intervals from resampled episodes; from 0 to 1 for a single one."""
    low, high = np.zeros_like(alone.low), np.ones_like(alone.high)
    for person in range(len(low)):
        each = by_episode[who == person]
        if len(each) < 2:
            continue
        drawn = numpy_stream(0, "rating", len(each)).multinomial(
            len(each), np.full(len(each), 1 / len(each)), size=RESAMPLES
        )
        low[person], high[person] = np.quantile(peak(product(drawn.astype(np.float64), each)), tails(level))
    return Estimates(alone.expertise, low, high)
