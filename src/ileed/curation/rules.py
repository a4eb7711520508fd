"""Rules of curation: which episodes or stretches are kept, with what weight, said in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, Self, final

import numpy as np

from ileed._torch import product
from ileed.checking import number, one_of, true_or_false, whole_number
from ileed.curation.scores import BOUNDS, Scores
from ileed.curation.states import Kinds
from ileed.demonstrations import Array
from ileed.errors import SettingsError
from ileed.wording import counted, did_you_mean

FEW = 0.05
"""A share of episodes below which a bound is said to keep too few; a policy learned from so few was worse than one
learned from everything where all people are equally good (docs/curation.md)."""


@final
@dataclass(frozen=True, kw_only=True)
class Rule:
    """Which episodes are kept: a share, those above a bound, or a budget of steps; all of them where none is given."""

    keep: float | None = None
    """The share of episodes to keep, best first: 0.5 keeps half of them."""
    above: float | None = None
    """Keep episodes whose score is above this bound; expertise is relative to the mean over the people of the fit."""
    probability: float = 0.9
    """How probable it must be that the score is above the bound."""
    steps: int | None = None
    """Keep at most so many steps: the best episodes, passing over those that do not fit any more."""
    weight: bool = False
    """Weight what is kept in proportion to the score, with mean 1 over steps; otherwise every weight is 1."""
    by: Literal["expertise", "agreement", "typicality"] = "expertise"
    """The score that decides: expertise, agreement or typicality."""
    at_least: int = 0
    """Keep at least so many episodes of each kind of state, the best of it, where there are so many."""
    kinds: int | str | None = None
    """Kinds of state: a skill column, or a number of clusters of episodes; None is 8 clusters."""
    unit: Literal["episode", "stretch"] = "episode"
    """What is kept or dropped: whole episodes, or stretches of them, to which the other options then apply."""

    def __post_init__(self) -> None:
        one_of("by", self.by, BOUNDS)
        one_of("unit", self.unit, ("episode", "stretch"))
        given = [name for name in ("keep", "above", "steps") if getattr(self, name) is not None]
        if len(given) > 1:
            raise SettingsError(f"{' and '.join(given)} are given, each a rule of its own: give one of them")
        if self.keep is not None:
            rule = "it is a share of the episodes above 0, 1 at most"
            number("keep", self.keep, within=lambda share: 0 < share <= 1, rule=rule)
        if self.above is not None:
            number("above", self.above, rule="pass a number")
        number("probability", self.probability, within=lambda value: 0 < value < 1, rule="it lies between 0 and 1")
        if self.steps is not None:
            whole_number("steps", self.steps, least=1, rule="pass a whole number, one or more")
        true_or_false("weight", self.weight)
        whole_number("at_least", self.at_least, least=0, rule="pass a whole number, zero or more")
        if self.kinds is not None and not self.at_least:
            raise SettingsError("kinds are given and at_least is not: say how many episodes of each kind to keep")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """A rule by the names of its options; an unknown one is refused."""
        known = [item.name for item in fields(cls)]
        if unknown := next((name for name in options if name not in known), None):
            raise SettingsError(f"there is no rule {unknown!r}{did_you_mean(unknown, known)}: there are {known}")
        return cls(**options)

    @property
    def bounds(self) -> Mapping[str, float]:
        """The bound of each score."""
        return {**BOUNDS} if self.above is None else {**BOUNDS, self.by: self.above}

    def choose(self, scores: Scores, steps: Array, kinds: Kinds | None) -> Array:
        """(unit,) which are kept; `steps` is the length of each."""
        order = np.argsort(-scores[self.by].estimate, kind="stable")
        kept = np.zeros(len(steps), dtype=bool)
        if kinds is not None:
            for held in kinds.held.T:
                kept[order[held[order]][: self.at_least]] = True
        if self.above is not None:
            kept |= scores[self.by].above >= self.probability
            if not kept.any():
                best = scores[self.by].above.max()
                found = (
                    f"no {self.unit} is above {self.above:g} with probability {self.probability:g} (at best {best:.2f})"
                )
                raise SettingsError(f"{found}: lower above or probability, or pass keep=")
        elif self.keep is not None:
            kept = self._filled(kept, order, np.ones_like(steps), max(1, round(self.keep * len(steps))))
        elif self.steps is not None:
            kept = self._filled(kept, order, steps, self.steps)
        else:
            kept[:] = True
        return kept

    def _filled(self, kept: Array, order: Array, cost: Array, budget: int) -> Array:
        """Those already kept, and the best others that still fit into a budget beside them."""
        kept, left = kept.copy(), budget - int(cost[kept].sum())
        if left < 0:
            of = self._units if self.steps is None else "steps"
            found = f"at_least={self.at_least} of each kind takes {cost[kept].sum():,} {of} of {budget:,}"
            raise SettingsError(f"{found}: lower at_least, take fewer kinds, or keep more")
        for unit in order[~kept[order]]:
            if cost[unit] <= left:
                kept[unit] = True
                left -= int(cost[unit])
        if not kept.any():
            raise SettingsError(
                f"steps is {budget:,}, the shortest {self.unit} has {cost.min():,}: pass so many or more"
            )
        return kept

    def weights(self, scores: Scores, steps: Array, kept: Array) -> Array:
        """(unit,) the weight of each: 0 where it is dropped, and with mean 1 over the steps that are kept."""
        score = scores[self.by].estimate if self.weight else np.ones(len(steps))
        weights = np.where(kept, np.maximum(score, 0.0), 0.0)
        total = product(weights, steps)
        return weights * (steps[kept].sum() / total) if total > 0 else kept.astype(np.float64)

    @property
    def _units(self) -> str:
        return {"episode": "episodes", "stretch": "stretches"}[self.unit]

    def sentence(self, kept: Array, kinds: Kinds | None) -> str:
        """The rule in words, with what it kept."""
        best = f"the best by {self.by}"
        if self.keep is not None:
            rule = f"{best}, {100 * self.keep:g} % of the {self._units}"
        elif self.above is not None:
            rule = f"those whose {self.by} is above {self.above:g} with probability {self.probability:g} or more"
        elif self.steps is not None:
            rule = f"{best} that fit into {counted(self.steps, 'step')}"
        else:
            rule = "all, since no rule was given"
        if kinds is not None:
            rule += f", and at least {self.at_least} of each of {len(kinds.names)} kinds of state ({kinds.words})"
        if self.weight:
            rule += f"; weighted in proportion to {self.by}, with mean 1 over the steps that are kept"
        found = f"kept {int(kept.sum()):,} of {len(kept):,} {self._units}: {rule}"
        if self.above is not None and kept.mean() < FEW:
            found += f"; few are surely above {self.above:g}, as where people are alike: everything may teach more"
        return found
