"""Expertise as a fit estimates it: of every demonstrator, at any observation."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from ileed.checking import shown
from ileed.demonstrations import Array, Collapsed, Demonstrations, Encoding
from ileed.demonstrations.rules import listed
from ileed.errors import DemonstrationError, SettingsError
from ileed.fitted.policy import as_tensor, encode_table, observation_tensor
from ileed.model.batch import Batch
from ileed.model.joint import Joint, mean_over_members
from ileed.model.normaliser import Normaliser

_STATES = 60  # how many of the most frequent observations a summary keeps
QUANTILES = 21


@final
@dataclass(frozen=True, eq=False)
class ExpertiseSummary:
    """Expertise at the observations of the data, kept beside the model so that a report needs no data.

    `by_demonstrator` averages over each person's own steps, and `quantiles` (demonstrator, 21) are over the same steps;
    `states` (demonstrator, state) holds expertise at the most frequent observations, and `visits` (demonstrator, state)
    each person's steps there. `learned_from` (member, demonstrator) says which members learned from whom, where that
    differs between members.
    """

    by_demonstrator: Tensor
    quantiles: Tensor
    states: Tensor
    visits: Tensor
    learned_from: Tensor | None = None


@final
class Expertise:
    """Estimated expertise: of every demonstrator, at any observation, in [0, 1].

    Where a fit keeps several members, it is the mean over them, the same members whose distributions `Policy` averages:
    over those alone that learned from the person, where members have different episode weights.

    Read it as a comparison. Under every demonstrator model the likelihood fixes ratios of expertise, and only a sharp
    policy fixes their absolute level.
    """

    def __init__(
        self,
        joint: Joint,
        normaliser: Normaliser,
        names: tuple[str, ...],
        skill_names: tuple[str, ...],
        summary: ExpertiseSummary,
        encoding: Encoding | None = None,
    ) -> None:
        self._joint, self._normaliser, self._encoding = joint, normaliser, encoding
        self.names, self.skill_names, self.summary = names, skill_names, summary

    def by_demonstrator(self) -> dict[str, float]:
        """Each demonstrator's expertise, averaged over that person's own steps.

        Somebody of whom no step was learned from (none is in the data, or all have weight 0) has none: NaN.
        """
        return dict(zip(self.names, self.summary.by_demonstrator.tolist(), strict=True))

    def ranking(self) -> list[tuple[str, float]]:
        """Demonstrators and their expertise, best first; those who have none, NaN, come last."""
        return sorted(self.by_demonstrator().items(), key=lambda item: (isnan(item[1]), -item[1]))

    @torch.no_grad()
    def by_skill(self) -> dict[str, dict[str, float]]:
        """Each demonstrator's expertise in each named skill; for fits with `Skills` alone."""
        if not self.skill_names:
            raise SettingsError("this fit names no skills: fit with expertise=Skills(column)")
        only = torch.eye(len(self.skill_names))
        found = {}
        for person, name in enumerate(self.names):
            values = self._at(torch.zeros(self._joint.sizes.inputs, len(only)), person, only)
            found[name] = dict(zip(self.skill_names, values.tolist(), strict=True))
        return found

    def by_label(self, data: Demonstrations, column: str) -> dict[str, dict[str, float]]:
        """Everybody's mean expertise over their own steps in `data`, for each label of a column of its skills."""
        if self.skill_names:
            return self.by_skill()
        labels = np.asarray(data.skills[column])
        found: dict[str, dict[str, float]] = {}
        for person, name in enumerate(data.names):
            own = data.demonstrator == person
            expertise = self(data.observations[own], name)
            found[name] = {
                str(label): float(expertise[labels[own] == label].mean()) for label in np.unique(labels[own])
            }
        return found

    @torch.no_grad()
    def __call__(
        self, observations: Array | Tensor | Any, demonstrator: str, *, skills: Array | Tensor | None = None
    ) -> Array:
        """One demonstrator's expertise at each of (row, *shape) observations, or at each row of a table.

        `skills` (row, skill) is needed where the fit was given the embedding (`Skills`).
        """
        if demonstrator not in self.names:
            raise DemonstrationError(
                f"there is no demonstrator {shown(demonstrator)}: this fit knows {listed(self.names)}"
            )
        seen = self._normaliser(observation_tensor(encode_table(observations, self._encoding), self._normaliser.shape))
        wanted = (seen.shape[1], len(self.skill_names))
        if self.skill_names and (skills is None or np.shape(skills) != wanted):
            found = "none" if skills is None else str(np.shape(skills))
            raise SettingsError(
                f"expertise depends on given skills and {found} were passed: pass skills of shape {wanted}, "
                f"for {', '.join(self.skill_names)}"
            )
        calls_for = None if skills is None else as_tensor(skills).float().T
        return np.asarray(self._at(seen, self.names.index(demonstrator), calls_for).numpy())

    def _at(self, seen: Tensor, person: int, skills: Tensor | None) -> Tensor:
        """One person's expertise at normalised observations; NaN where no step of theirs was learned from."""
        rows = seen.shape[1]
        if isnan(self.summary.by_demonstrator[person]) or not rows:
            return torch.full((rows,), torch.nan)
        who = torch.full((rows,), person)
        batch = Batch.of(sizes=self._joint.sizes, observations=seen, demonstrator=who, skills=skills)
        return mean_over_members(self._joint.expertise_at(batch), members_that_know(self.summary.learned_from, who))


def members_that_know(learned_from: Tensor | None, demonstrator: Tensor) -> Tensor | None:
    """(member, row) which members learned from each row's demonstrator, all where none did; None for all alike."""
    if learned_from is None:
        return None
    return (learned_from | ~learned_from.any(0))[:, demonstrator]


@torch.no_grad()
def summarise(
    joint: Joint, normaliser: Normaliser, collapsed: Collapsed, data: Demonstrations, learned_from: Array
) -> ExpertiseSummary:
    """Everybody's mean expertise over members at the observations of their own steps, and at the most frequent ones.

    Somebody of whom no member learned, by `learned_from` (member, demonstrator), has none.
    """
    people = len(data.names)
    known = learned_from.any(0)
    differ = None if (learned_from == learned_from[0]).all() else torch.from_numpy(learned_from)

    def mean(observation_index: Array, demonstrator: Array) -> Array:
        found = expertise_at(joint, normaliser, collapsed, observation_index, demonstrator)
        counted = members_that_know(differ, torch.from_numpy(demonstrator))
        return np.asarray(mean_over_members(found, counted).numpy())

    observation_index, person, count = own_steps(collapsed, data)
    own = mean(observation_index, person)
    by_person = np.argsort(person, kind="stable")
    bounds = np.searchsorted(person[by_person], np.arange(people + 1))
    average, quantiles = np.full(people, np.nan), np.full((people, QUANTILES), np.nan)
    for each in np.flatnonzero(known):
        theirs = by_person[bounds[each] : bounds[each + 1]]
        order = np.argsort(own[theirs])
        value, weight = own[theirs][order].astype(np.float64), count[theirs][order]
        average[each] = (value * weight).sum() / weight.sum()
        position = np.cumsum(weight) / weight.sum()
        quantiles[each] = value[np.searchsorted(position, np.linspace(0, 1, QUANTILES)).clip(max=len(value) - 1)]
    frequent = np.argsort(-np.bincount(collapsed.step_observation_index), kind="stable")[:_STATES]
    grid = mean(np.repeat(frequent, people), np.tile(np.arange(people), len(frequent))).reshape(len(frequent), people)
    grid[:, ~known] = np.nan
    column = np.full(len(collapsed.observations), -1)
    column[frequent] = np.arange(len(frequent))
    counted = column[observation_index] >= 0
    visits = np.zeros((people, len(frequent)), dtype=np.int64)
    visits[person[counted], column[observation_index[counted]]] = count[counted]
    return ExpertiseSummary(
        by_demonstrator=torch.tensor(average),
        quantiles=torch.tensor(quantiles),
        states=torch.tensor(grid.T.copy()),
        visits=torch.tensor(visits),
        learned_from=differ,
    )


def own_steps(collapsed: Collapsed, data: Demonstrations) -> tuple[Array, Array, Array]:
    """Distinct (unique observation, demonstrator) of the data, as two arrays, and how many steps each has."""
    people = len(data.names)
    pairs, count = np.unique(collapsed.step_observation_index * people + data.demonstrator, return_counts=True)
    return pairs // people, pairs % people, count


def expertise_at(
    joint: Joint, normaliser: Normaliser, collapsed: Collapsed, observation_index: Array, demonstrator: Array
) -> Tensor:
    """(member, row) expertise of the given demonstrators at the given unique observations of the data."""
    batch = Batch.of(
        sizes=joint.sizes,
        observations=normaliser.normalise(torch.from_numpy(np.ascontiguousarray(collapsed.observations.T))),
        observation_index=torch.from_numpy(observation_index),
        demonstrator=torch.from_numpy(demonstrator),
        skills=None if collapsed.skills is None else torch.from_numpy(np.ascontiguousarray(collapsed.skills.T)),
    )
    return joint.expertise_at(batch)
