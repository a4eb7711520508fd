"""Expertise as estimated by a fit: of each demonstrator, at any observation."""

from __future__ import annotations

from collections.abc import Sequence
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

_STATES, _STATES_OF_MANY = 60, 12  # most frequent observations in a summary; fewer for very many demonstrators
QUANTILES = 21
_PAIRS_AT_ONCE = 1 << 17  # of a demonstrator and an observation: hidden layers take memory


@final
@dataclass(frozen=True, eq=False)
class ExpertiseSummary:
    """Expertise at the observations of the data, saved with the model so that a report needs no data."""

    by_demonstrator: Tensor  # mean over each demonstrator's own steps
    quantiles: Tensor  # (demonstrator, 21) over the same steps
    states: Tensor  # (demonstrator, state) at the most frequent observations
    visits: Tensor  # (demonstrator, state) steps of each demonstrator there
    learned_from: Tensor | None = None  # (member, demonstrator) whether it learned from them; None if members agree
    last_episode: Tensor | None = None  # (demonstrator,) its number, where expertise depends on the episode


@final
@dataclass(frozen=True, eq=False, repr=False)
class Expertise:
    """Estimated expertise of each demonstrator at any observation, in [0, 1].

    Where a fit keeps several members, it is the mean over those that learned from the demonstrator. Read it as a
    comparison: the likelihood fixes ratios of expertise, and only with a sharp policy their level as well.
    """

    joint: Joint
    normaliser: Normaliser
    names: tuple[str, ...]
    skill_names: tuple[str, ...]
    summary: ExpertiseSummary
    encoding: Encoding | None = None
    ratings: Ratings | None = None
    """Cross-fitted ratings of demonstrators; None where the fit was made without folds."""

    def table(self, *, relative: bool = True, confidence_level: float | None = None) -> pa.Table:
        """Table of demonstrators, best first, with intervals of expertise and of rank; see `Ratings.table`."""
        return self._rated.table(relative=relative, confidence_level=confidence_level)

    def drift(self, *, relative: bool = True, confidence_level: float | None = None) -> pa.Table:
        """Table of how much each demonstrator improves or tires, for fits with `Drift`; see `Ratings.drift`."""
        self._check_drifts()
        return self._rated.drift(relative=relative, confidence_level=confidence_level)

    def curve(self, *, relative: bool = True, confidence_level: float | None = None) -> pa.Table:
        """Table of learning curves with intervals, for fits with `Drift`; see `Ratings.curve`."""
        self._check_drifts()
        return self._rated.curve(relative=relative, confidence_level=confidence_level)

    def probability_better(self, first: str, second: str) -> float:
        """The probability that the first demonstrator's expertise is above the second's."""
        return self._rated.probability_better(first, second)

    def groups(self, probability: float = 0.95) -> list[tuple[str, ...]]:
        """Groups of demonstrators, best first, that differ with this probability; see `Ratings.groups`."""
        return self._rated.groups(probability)

    def _check_drifts(self) -> None:
        if self.summary.last_episode is None:
            raise SettingsError(SAME_IN_ALL_EPISODES)

    @property
    def _rated(self) -> Ratings:
        if self.ratings is None:
            raise SettingsError(
                "this fit has no intervals: they need folds=2 or more, two episodes, and a demonstrator model under "
                "which expertise is one number",
                code="no-ratings",
            )
        return self.ratings

    def by_demonstrator(self) -> dict[str, float]:
        """Map each demonstrator to their mean expertise over their own steps; NaN if the fit used none of these.

        With discrete actions this is the in-sample estimate, the column `in_sample` of `table()`. With continuous
        actions, or if the fit was given outcomes, it is that of the ratings, as in `table(relative=False)`.
        `ranking()` gives the order.
        """
        own = dict(zip(self.names, self.summary.by_demonstrator.tolist(), strict=True))
        if self.ratings is None or not self.ratings.by.replaces_in_sample:
            return own
        rated = self.ratings.by_demonstrator()
        return {name: nan if isnan(value) else rated[name] for name, value in own.items()}

    def ranking(self) -> list[tuple[str, float]]:
        """Demonstrators with their expertise, best first, in the order of `table()`; NaN comes last.

        Expertise is that of the ratings, as in `table(relative=False)`; without ratings, that of `by_demonstrator()`.
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
        """Map each demonstrator to their expertise in each named skill, for fits with `Skills`."""
        if not self.skill_names:
            raise SettingsError("this fit names no skills: fit with expertise=Skills(column)", code="no-skills")
        only = torch.eye(len(self.skill_names))
        found = {}
        for owner, name in enumerate(self.names):
            values = self._at(torch.zeros(self.joint.sizes.inputs, len(only)), owner, only)
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
        """(row,) expertise of one demonstrator at the given observations.

        Args:
            observations: (row, *shape) array, named arrays, or a table, as in `Policy.act`.
            demonstrator: The name of the demonstrator.
            skills: (row, skill) weights, required if the fit has `Skills` and refused otherwise.
            episode: For fits with `Drift`, which of the demonstrator's episodes, counted from 0; None is the last.
        """
        if not isinstance(demonstrator, str) or demonstrator not in self.names:
            raise unknown_demonstrator(demonstrator, self.names)
        seen = network_inputs(observations, self.normaliser, self.encoding)
        wanted = (seen.shape[1], len(self.skill_names))
        if skills is not None and not self.skill_names:
            message = "skills were passed, but this fit names none: leave them out"
            raise SettingsError(message, code="skills-not-needed")
        given = None if skills is None else as_tensor(skills, "skills")
        if self.skill_names and (given is None or given.shape != wanted):
            found = "none" if given is None else str(tuple(given.shape))
            names = ", ".join(self.skill_names)
            raise SettingsError(f"skills are {found}: pass skills of shape {wanted}, for {names}", code="skills-shape")
        weights = None if given is None else given.float().T
        if episode is not None:
            whole_number("episode", episode, least=0, rule="it counts a demonstrator's own episodes from 0")
            self._check_drifts()
        return np.asarray(self._at(seen, self.names.index(demonstrator), weights, episode).numpy())

    def _at(self, seen: Tensor, owner: int, skills: Tensor | None, episode: int | None = None) -> Tensor:
        """One demonstrator's expertise at normalised observations; NaN if no step of theirs was learned from."""
        rows = seen.shape[1]
        if isnan(self.summary.by_demonstrator[owner]) or not rows:
            return torch.full((rows,), torch.nan)
        who = torch.full((rows,), owner)
        context = None
        if (last := self.summary.last_episode) is not None:
            context = {"episode_number": last[who] if episode is None else torch.full_like(who, episode)}
        found = ask(self.joint, seen, demonstrator=who, skills=skills, context=context).expertise
        return mean_over_members(found, members_that_know(self.summary.learned_from, who))


def unknown_demonstrator(name: object, known: Sequence[str], advice: str = "") -> DemonstrationError:
    """The error for a demonstrator that a fit does not know."""
    message = f"there is no demonstrator {brief(name)}: this fit knows {listed(known)}{advice}"
    return DemonstrationError(message, code="demonstrator-unknown")


def members_that_know(learned_from: Tensor | None, demonstrator: Tensor) -> Tensor | None:
    """(member, row) the members that learned from each row's demonstrator, or all where none did; None for all."""
    if learned_from is None:
        return None
    return (learned_from | ~learned_from.any(0))[:, demonstrator]


@threads(1)
@torch.no_grad()
def summarise(
    joint: Joint, normaliser: Normaliser, collapsed: Collapsed, data: Demonstrations, learned_from: Array
) -> ExpertiseSummary:
    """Each demonstrator's mean expertise over members, at their own steps and at the most frequent observations.

    It is NaN for a demonstrator from whom no member learned, by `learned_from` (member, demonstrator). Expertise that
    depends on the episode is that of each step's own episode, and of the last one at the most frequent observations.
    """
    demonstrators, known, drifts = len(data.names), learned_from.any(0), joint.parts.expertise.depends_on_episode
    differ = None if (learned_from == learned_from[0]).all() else torch.from_numpy(learned_from)
    seen = normaliser.normalise(torch.from_numpy(np.ascontiguousarray(collapsed.observations.T)))
    skills = None if collapsed.skills is None else torch.from_numpy(np.ascontiguousarray(collapsed.skills.T))

    def at(observation: Array, demonstrator: Array, episode_number: Array) -> Array:
        """(pair,) expertise, computed for a bounded number of pairs at a time."""
        found = []
        for first in range(0, len(demonstrator), _PAIRS_AT_ONCE):
            each = (torch.from_numpy(own[first : first + _PAIRS_AT_ONCE]) for own in (demonstrator, episode_number))
            (who, number), part = each, torch.from_numpy(observation[first : first + _PAIRS_AT_ONCE])
            used, index = torch.unique(part, return_inverse=True)
            answer = ask(
                joint,
                seen[:, used],
                demonstrator=who,
                skills=None if skills is None else skills[:, used],
                observation_index=index,
                context={"episode_number": number} if drifts else None,
            )
            found.append(mean_over_members(answer.expertise, members_that_know(differ, who)).numpy())
        return np.concatenate(found)

    number = collapsed.context["episode_number"] if drifts else np.zeros_like(collapsed.demonstrator)
    last = np.zeros(demonstrators, dtype=np.int64)
    if drifts:
        np.maximum.at(last, data.episode_demonstrator, data.episode_numbers)
    pairs = collapsed.observation_index * demonstrators + collapsed.demonstrator
    _, first, which = np.unique(pairs * (last.max() + 1) + number, return_index=True, return_inverse=True)
    count = np.bincount(which, weights=collapsed.count).astype(np.int64)
    owner, place = collapsed.demonstrator[first], collapsed.observation_index[first]
    average, quantiles = _over_steps(at(place, owner, number[first]), owner, count, demonstrators)

    most = _STATES_OF_MANY if data.has_many_demonstrators else _STATES
    frequent = np.argsort(-np.bincount(place, weights=count), kind="stable")[:most]
    everyone = np.tile(np.arange(demonstrators), len(frequent))
    states = at(np.repeat(frequent, demonstrators), everyone, last[everyone]).reshape(len(frequent), demonstrators)
    for values in (average, quantiles, states.T):
        values[~known] = np.nan
    column = np.full(len(collapsed.observations), -1)
    column[frequent] = np.arange(len(frequent))
    state = column[place]
    visits = np.zeros((demonstrators, len(frequent)), dtype=np.int64)
    np.add.at(visits, (owner[state >= 0], state[state >= 0]), count[state >= 0])
    return ExpertiseSummary(
        by_demonstrator=torch.tensor(average),
        quantiles=torch.tensor(quantiles),
        states=torch.tensor(states.T.copy()),
        visits=torch.tensor(visits),
        learned_from=differ,
        last_episode=torch.from_numpy(last) if drifts else None,
    )


def _over_steps(own: Array, owner: Array, count: Array, demonstrators: int) -> tuple[Array, Array]:
    """(demonstrator,) means and (demonstrator, quantile) quantiles of (pair,) expertise, each for `count` steps."""
    order = np.lexsort((own, owner))
    who, value, weight = owner[order], own[order].astype(np.float64), count[order]
    total = np.bincount(who, weights=weight, minlength=demonstrators).astype(np.int64)
    average, quantiles = np.full(demonstrators, np.nan), np.full((demonstrators, QUANTILES), np.nan)
    some = np.flatnonzero(total)
    average[some] = np.bincount(who, weights=value * weight, minlength=demonstrators)[some] / total[some]
    before = (np.cumsum(total) - total)[some, None]
    part = -(-np.arange(QUANTILES) * total[some, None] // (QUANTILES - 1))  # of the steps, rounded up
    quantiles[some] = value[np.searchsorted(np.cumsum(weight), before + np.maximum(part, 1))]
    return average, quantiles
