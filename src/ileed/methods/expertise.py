"""Expertise as a fit estimates it: of every demonstrator, at any observation."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan, nan
from typing import Any, final

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from ileed._torch import default_modes, threads
from ileed.data import Array, Collapsed, Demonstrations, Encoding
from ileed.data.rules import listed
from ileed.errors import DemonstrationError, SettingsError, brief, whole_number
from ileed.methods.policy import as_tensor, network_inputs
from ileed.model.joint import Joint, ask, mean_over_members
from ileed.model.normaliser import Normaliser
from ileed.rating.ratings import SAME_IN_ALL_EPISODES, Ratings

_STATES, _STATES_OF_MANY = 60, 12  # how many of the most frequent observations a summary keeps, and of many people
_AT_ONCE = 10_000  # people at those observations
QUANTILES = 21
_PAIRS_AT_ONCE = 1 << 17


@final
@dataclass(frozen=True, eq=False)
class ExpertiseSummary:
    """Expertise at the observations of the data, kept beside the model so that a report needs no data."""

    by_demonstrator: Tensor  # mean over each person's own steps
    quantiles: Tensor  # (demonstrator, 21) over the same steps
    states: Tensor  # (demonstrator, state) at the most frequent observations
    visits: Tensor  # (demonstrator, state) each person's steps there
    learned_from: Tensor | None = None  # (member, demonstrator) which learned from whom, where members differ
    last_episode: Tensor | None = None  # (demonstrator,) the number of each one's last, where expertise depends on it


@final
@dataclass(frozen=True, eq=False, repr=False)
class Expertise:
    """Estimated expertise: of every demonstrator, at any observation, in [0, 1].

    Where a fit keeps several members, it is the mean over those that learned from the person. Read it as a comparison:
    under every demonstrator model the likelihood fixes ratios of expertise, and only a sharp policy their level.
    """

    joint: Joint
    normaliser: Normaliser
    names: tuple[str, ...]
    skill_names: tuple[str, ...]
    summary: ExpertiseSummary
    encoding: Encoding | None = None
    ratings: Ratings | None = None
    """Everybody rated by policies that have not seen their episodes; None where a fit was made without folds."""

    def table(self, *, relative: bool = True, confidence_level: float | None = None) -> pa.Table:
        """Everybody's expertise with its interval and that of their rank, best first; see `Ratings.table`."""
        return self._rated.table(relative=relative, confidence_level=confidence_level)

    def drift(self, *, relative: bool = True, confidence_level: float | None = None) -> pa.Table:
        """Whether everybody improves or tires, for fits with `Drift`; see `Ratings.drift`."""
        self._check_drifts()
        return self._rated.drift(relative=relative, confidence_level=confidence_level)

    def curve(self, *, relative: bool = True, confidence_level: float | None = None) -> pa.Table:
        """Everybody's learning curve with intervals, for fits with `Drift`; see `Ratings.curve`."""
        self._check_drifts()
        return self._rated.curve(relative=relative, confidence_level=confidence_level)

    def probability_better(self, first: str, second: str) -> float:
        """The probability that one person's expertise is above another's."""
        return self._rated.probability_better(first, second)

    def groups(self, probability: float = 0.95) -> list[tuple[str, ...]]:
        """People in groups, best first, that can be told apart with this probability; see `Ratings.groups`."""
        return self._rated.groups(probability)

    def _check_drifts(self) -> None:
        if self.summary.last_episode is None:
            raise SettingsError(SAME_IN_ALL_EPISODES)

    @property
    def _rated(self) -> Ratings:
        if self.ratings is None:
            raise SettingsError(
                "this fit has no intervals: they need folds=2 or more, two episodes, and a demonstrator model under "
                "which expertise is one number"
            )
        return self.ratings

    def by_demonstrator(self) -> dict[str, float]:
        """Each demonstrator's expertise at their own steps, averaged; NaN where no step of theirs was learned from.

        Of discrete actions this is the fit's in-sample estimate, the column `in_sample` of `table()`. Of continuous
        actions, and where the fit was given outcomes, it is that of the ratings, as in `table(relative=False)`.
        `ranking()` has the order.
        """
        own = dict(zip(self.names, self.summary.by_demonstrator.tolist(), strict=True))
        if self.ratings is None or not self.ratings.by.replaces_in_sample:
            return own
        rated = self.ratings.by_demonstrator()
        return {name: nan if isnan(value) else rated[name] for name, value in own.items()}

    def ranking(self) -> list[tuple[str, float]]:
        """Demonstrators and their expertise, best first, in the order of `table()`; those without any, NaN, come last.

        Expertise is that of the ratings, as in `table(relative=False)`, or of `by_demonstrator()` without ratings.
        """
        own = self.by_demonstrator()
        if self.ratings is None:
            return sorted(own.items(), key=lambda item: (isnan(item[1]), -item[1]))
        rated = [
            (self.ratings.names[number], float(self.ratings.best.expertise[number])) for number in self.ratings.order
        ]
        learned_from = [(name, value) for name, value in rated if not isnan(own[name])]
        return [*learned_from, *((name, nan) for name, _ in rated if isnan(own[name]))]

    @default_modes()
    @threads(1)
    @torch.no_grad()
    def by_skill(self) -> dict[str, dict[str, float]]:
        """Each demonstrator's expertise in each named skill; for fits with `Skills` alone."""
        if not self.skill_names:
            raise SettingsError("this fit names no skills: fit with expertise=Skills(column)")
        only = torch.eye(len(self.skill_names))
        found = {}
        for person, name in enumerate(self.names):
            values = self._at(torch.zeros(self.joint.sizes.inputs, len(only)), person, only)
            found[name] = dict(zip(self.skill_names, values.tolist(), strict=True))
        return found

    @default_modes()
    @threads(1)
    @torch.no_grad()
    def __call__(
        self,
        observations: Array | Tensor | Any,
        demonstrator: str,
        *,
        skills: Array | Tensor | None = None,
        episode: int | None = None,
    ) -> Array:
        """One demonstrator's expertise at each of (row, *shape) observations, or at each row of a table.

        `skills` (row, skill) is needed where the fit was given the embedding (`Skills`). `episode` counts their own
        episodes from 0 on, where expertise changes between them (`Drift`); None is their last.
        """
        if not isinstance(demonstrator, str) or demonstrator not in self.names:
            raise DemonstrationError(
                f"there is no demonstrator {brief(demonstrator)}: this fit knows {listed(self.names)}"
            )
        seen = network_inputs(observations, self.normaliser, self.encoding)
        wanted = (seen.shape[1], len(self.skill_names))
        if skills is not None and not self.skill_names:
            raise SettingsError("skills were passed, and this fit names none: leave them out")
        given = None if skills is None else as_tensor(skills, "skills")
        if self.skill_names and (given is None or given.shape != wanted):
            found = "none" if given is None else str(tuple(given.shape))
            raise SettingsError(
                f"expertise depends on given skills and {found} were passed: pass skills of shape {wanted}, "
                f"for {', '.join(self.skill_names)}"
            )
        calls_for = None if given is None else given.float().T
        if episode is not None:
            whole_number("episode", episode, least=0, rule="it counts a demonstrator's own episodes, from 0 on")
            self._check_drifts()
        return np.asarray(self._at(seen, self.names.index(demonstrator), calls_for, episode).numpy())

    def _at(self, seen: Tensor, person: int, skills: Tensor | None, episode: int | None = None) -> Tensor:
        """One person's expertise at normalised observations; NaN where no step of theirs was learned from."""
        rows = seen.shape[1]
        if isnan(self.summary.by_demonstrator[person]) or not rows:
            return torch.full((rows,), torch.nan)
        who = torch.full((rows,), person)
        context = None
        if (last := self.summary.last_episode) is not None:
            context = {"episode_number": last[who] if episode is None else torch.full_like(who, episode)}
        found = ask(self.joint, seen, demonstrator=who, skills=skills, context=context).expertise
        return mean_over_members(found, members_that_know(self.summary.learned_from, who))


def members_that_know(learned_from: Tensor | None, demonstrator: Tensor) -> Tensor | None:
    """(member, row) which members learned from each row's demonstrator, all where none did; None for all alike."""
    if learned_from is None:
        return None
    return (learned_from | ~learned_from.any(0))[:, demonstrator]


@threads(1)
@torch.no_grad()
def summarise(
    joint: Joint, normaliser: Normaliser, collapsed: Collapsed, data: Demonstrations, learned_from: Array
) -> ExpertiseSummary:
    """Everybody's mean expertise over members at the observations of their own steps, and at the most frequent ones.

    Somebody of whom no member learned, by `learned_from` (member, demonstrator), has none. Where expertise depends on
    the episode, that is each step's own, and at the most frequent observations everybody's last.
    """
    people, known = len(data.names), learned_from.any(0)
    differ = None if (learned_from == learned_from[0]).all() else torch.from_numpy(learned_from)
    seen = normaliser.normalise(torch.from_numpy(np.ascontiguousarray(collapsed.observations.T)))
    skills = None if collapsed.skills is None else torch.from_numpy(np.ascontiguousarray(collapsed.skills.T))

    def mean(observation_index: Array, demonstrator: Array, number: Array) -> Array:
        who, index = torch.from_numpy(demonstrator), torch.from_numpy(observation_index)
        number_of = torch.from_numpy(number)
        if len(who) > _PAIRS_AT_ONCE:  # so many outputs of layers would take much memory
            parts = zip(*(each.split(_PAIRS_AT_ONCE) for each in (index, who, number_of)), strict=True)
            return np.concatenate([own_rows(*part) for part in parts])
        context = {"episode_number": number_of} if drifts else None
        found = ask(joint, seen, demonstrator=who, skills=skills, observation_index=index, context=context).expertise
        return np.asarray(mean_over_members(found, members_that_know(differ, who)).numpy())

    def own_rows(index: Tensor, who: Tensor, number: Tensor) -> Array:
        used, at = torch.unique(index, return_inverse=True)
        here, context = None if skills is None else skills[:, used], {"episode_number": number} if drifts else None
        rows = seen[:, used]
        found = ask(joint, rows, demonstrator=who, skills=here, observation_index=at, context=context).expertise
        return np.asarray(mean_over_members(found, members_that_know(differ, who)).numpy())

    drifts = joint.parts.expertise.depends_on_episode
    number = collapsed.context["episode_number"] if drifts else np.zeros_like(collapsed.demonstrator)
    last = np.zeros(people, dtype=np.int64)
    if drifts:
        np.maximum.at(last, data.episode_demonstrator, data.episode_numbers)
    pairs = collapsed.observation_index * people + collapsed.demonstrator
    _, first, which = np.unique(pairs * (last.max() + 1) + number, return_index=True, return_inverse=True)
    count = np.bincount(which, weights=collapsed.count).astype(np.int64)
    person, place = collapsed.demonstrator[first], collapsed.observation_index[first]
    own = mean(place, person, number[first])
    over_steps = _all_over_steps if data.has_many_people else _each_over_steps
    average, quantiles = over_steps(own, person, count, people)
    average[~known], quantiles[~known] = np.nan, np.nan
    most = _STATES_OF_MANY if data.has_many_people else _STATES
    frequent = np.argsort(-np.bincount(place, weights=count), kind="stable")[:most]
    parts = [np.arange(first, min(first + _AT_ONCE, people)) for first in range(0, people, _AT_ONCE)]
    tiled = [np.tile(part, len(frequent)) for part in parts]
    each = [mean(np.repeat(frequent, len(who) // len(frequent)), who, last[who]) for who in tiled]
    grid = np.concatenate([values.reshape(len(frequent), -1) for values in each], axis=1)
    grid[:, ~known] = np.nan
    column = np.full(len(collapsed.observations), -1)
    column[frequent] = np.arange(len(frequent))
    state = column[place]
    visits = np.zeros((people, len(frequent)), dtype=np.int64)
    np.add.at(visits, (person[state >= 0], state[state >= 0]), count[state >= 0])
    states = torch.tensor(grid.T.copy())
    kept = torch.from_numpy(last) if drifts else None
    return ExpertiseSummary(torch.tensor(average), torch.tensor(quantiles), states, torch.tensor(visits), differ, kept)


def _each_over_steps(own: Array, person: Array, count: Array, people: int) -> tuple[Array, Array]:
    """(person,) means and (person, quantile) quantiles over steps of `own`, the expertise at (pair,) `count` steps."""
    by_person = np.split(np.argsort(person, kind="stable"), np.bincount(person, minlength=people).cumsum()[:-1])
    average, quantiles = np.full(people, np.nan), np.full((people, QUANTILES), np.nan)
    for each in np.unique(person):
        theirs = by_person[each]
        order = np.argsort(own[theirs])
        value, weight = own[theirs][order].astype(np.float64), count[theirs][order]
        average[each] = (value * weight).sum() / weight.sum()
        position = np.cumsum(weight) / weight.sum()
        quantiles[each] = value[np.searchsorted(position, np.linspace(0, 1, QUANTILES)).clip(max=len(value) - 1)]
    return average, quantiles


def _all_over_steps(own: Array, person: Array, count: Array, people: int) -> tuple[Array, Array]:
    """The same for all people at once, equal but for rounding."""
    order = np.lexsort((own, person))
    who, value, weight = person[order], own[order].astype(np.float64), count[order]
    total = np.bincount(who, weights=weight, minlength=people)
    average, quantiles = np.full(people, np.nan), np.full((people, QUANTILES), np.nan)
    some = np.flatnonzero(total)
    average[some] = np.bincount(who, weights=value * weight, minlength=people)[some] / total[some]
    before = np.cumsum(total) - total
    position = (np.cumsum(weight) - before[who]) / total[who]
    last = np.searchsorted(who, some, side="right") - 1
    # two apart, so that the end of one person is not the beginning of the next
    place = np.searchsorted(2.0 * who + position, 2.0 * some[:, None] + np.linspace(0, 1, QUANTILES))
    quantiles[some] = value[np.minimum(place, last[:, None])]
    return average, quantiles
