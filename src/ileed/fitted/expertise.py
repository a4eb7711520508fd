"""Expertise as a fit estimates it: of anybody, at any observation."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from ileed.checking import shown
from ileed.demonstrations import Array, Demonstrations, Encoding
from ileed.demonstrations.rules import listed
from ileed.errors import DemonstrationError, SettingsError
from ileed.fitted.policy import as_tensor, encode_table, observation_tensor
from ileed.model.ask import ask
from ileed.model.joint import Joint
from ileed.model.normaliser import Normaliser


@final
@dataclass(frozen=True, eq=False)
class ExpertiseSummary:
    """Expertise where it was used in the data, kept beside the model so that a report needs no data.

    `by_demonstrator` averages over each person's own steps; `quantiles` (demonstrator, 21) is the spread over the same
    steps; `states` (demonstrator, state) holds the most visited observations, which `visits` (demonstrator, state)
    counts.
    """

    by_demonstrator: Tensor
    quantiles: Tensor
    states: Tensor
    visits: Tensor


@final
class Expertise:
    """Estimated expertise: of anybody, at any observation, in [0, 1].

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
        """Demonstrators and their expertise, best first; those who have none, NaN, stand last."""
        return sorted(self.by_demonstrator().items(), key=lambda item: (isnan(item[1]), -item[1]))

    @torch.no_grad()
    def by_skill(self) -> dict[str, dict[str, float]]:
        """Each demonstrator's expertise in each named skill; for fits with `Skills` alone."""
        if not self.skill_names:
            raise SettingsError("this fit names no skills: fit with expertise=Skills(column)")
        values = self._joint.expertise.skill[0].sigmoid()
        values = torch.where(self.summary.by_demonstrator.isnan(), torch.nan, values)
        return {
            name: dict(zip(self.skill_names, values[:, person].tolist(), strict=True))
            for person, name in enumerate(self.names)
        }

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
        rows = seen.shape[1]
        wanted = (rows, len(self.skill_names))
        if self.skill_names and (skills is None or np.shape(skills) != wanted):
            found = "none" if skills is None else str(np.shape(skills))
            raise SettingsError(
                f"expertise depends on given skills and {found} were passed: pass skills of shape {wanted}, "
                f"for {', '.join(self.skill_names)}"
            )
        if isnan(self.summary.by_demonstrator[self.names.index(demonstrator)]) or not rows:
            return np.full(rows, np.nan, dtype=np.float32)
        answer = ask(
            self._joint,
            seen,
            demonstrator=torch.full((rows,), self.names.index(demonstrator)),
            skills=None if skills is None else as_tensor(skills).float().T,
        )
        return np.asarray(answer.expertise[0].numpy())
