"""Expertise as a fit estimates it: of every demonstrator, at any observation."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan
from typing import Any, final

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from ileed.checking import shown
from ileed.demonstrations import Array, Collapsed, Demonstrations, Encoding
from ileed.demonstrations.rules import listed
from ileed.errors import DemonstrationError, SettingsError
from ileed.fitted.policy import as_tensor, network_inputs
from ileed.fitted.ratings import Ratings
from ileed.model.ask import ask, mean_over_members
from ileed.model.joint import Joint
from ileed.model.normaliser import Normaliser

_STATES = 60  # how many of the most frequent observations a summary keeps
QUANTILES = 21


@final
@dataclass(frozen=True, eq=False)
class ExpertiseSummary:
    """Expertise at the observations of the data, kept beside the model so that a report needs no data."""

    by_demonstrator: Tensor  # mean over each person's own steps
    quantiles: Tensor  # (demonstrator, 21) over the same steps
    states: Tensor  # (demonstrator, state) at the most frequent observations
    visits: Tensor  # (demonstrator, state) each person's steps there
    learned_from: Tensor | None = None  # (member, demonstrator) which learned from whom, where members differ


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

    def probability_better(self, first: str, second: str) -> float:
        """The probability that one person's expertise is above another's."""
        return self._rated.probability_better(first, second)

    def groups(self, probability: float = 0.95) -> list[tuple[str, ...]]:
        """People in groups, best first, that can be told apart with this probability; see `Ratings.groups`."""
        return self._rated.groups(probability)

    @property
    def _rated(self) -> Ratings:
        if self.ratings is None:
            raise SettingsError(
                "this fit has no intervals: they need folds=2 or more, two episodes, and a demonstrator model under "
                "which expertise is one number"
            )
        return self.ratings

    def by_demonstrator(self) -> dict[str, float]:
        """Each demonstrator's expertise, averaged over that person's own steps; NaN where none was learned from."""
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
            values = self._at(torch.zeros(self.joint.sizes.inputs, len(only)), person, only)
            found[name] = dict(zip(self.skill_names, values.tolist(), strict=True))
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
        seen = network_inputs(observations, self.normaliser, self.encoding)
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
        found = ask(self.joint, seen, demonstrator=who, skills=skills).expertise
        return mean_over_members(found, members_that_know(self.summary.learned_from, who))


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
    people, known = len(data.names), learned_from.any(0)
    differ = None if (learned_from == learned_from[0]).all() else torch.from_numpy(learned_from)
    seen = normaliser.normalise(torch.from_numpy(np.ascontiguousarray(collapsed.observations.T)))
    skills = None if collapsed.skills is None else torch.from_numpy(np.ascontiguousarray(collapsed.skills.T))

    def mean(observation_index: Array, demonstrator: Array) -> Array:
        who, index = torch.from_numpy(demonstrator), torch.from_numpy(observation_index)
        found = ask(joint, seen, demonstrator=who, skills=skills, observation_index=index).expertise
        return np.asarray(mean_over_members(found, members_that_know(differ, who)).numpy())

    pairs, count = np.unique(collapsed.step_observation_index * people + data.demonstrator, return_counts=True)
    person = pairs % people
    own = mean(pairs // people, person)
    by_person = np.split(np.argsort(person, kind="stable"), np.bincount(person, minlength=people).cumsum()[:-1])
    average, quantiles = np.full(people, np.nan), np.full((people, QUANTILES), np.nan)
    for each in np.flatnonzero(known):
        theirs = by_person[each]
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
    state = column[collapsed.step_observation_index]
    visits = np.zeros((people, len(frequent)), dtype=np.int64)
    np.add.at(visits, (data.demonstrator[state >= 0], state[state >= 0]), 1)
    states = torch.tensor(grid.T.copy())
    return ExpertiseSummary(torch.tensor(average), torch.tensor(quantiles), states, torch.tensor(visits), differ)
