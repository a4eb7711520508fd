"""Rules of curation: which episodes or segments are kept, with what weight, and the rule in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple, Self, final

import numpy as np

from ileed._torch import product
from ileed.curation.coverage import LEAST_EFFECTIVE, MOST_EFFECTIVE, effective_size, match_strata, temper
from ileed.curation.scores import BOUNDS, Scores
from ileed.curation.states import Kinds
from ileed.data import Array
from ileed.errors import SettingsError, counted, did_you_mean, number, one_of, true_or_false, whole_number

FEW = 0.05
"""A share of episodes below which a bound is said to keep too few; a policy learned from so few was worse than one
learned from everything where all demonstrators are equally good (docs/curation.md)."""
_LARGEST_SHARE = 0.98  # of explained variance that a weight assumes
_LESS = 0.9  # to which power tempered weights are taken until they are effective after matching too


class Units(NamedTuple):
    """What a rule reads of units, episodes or segments, beside their scores."""

    steps: Array
    """(unit,) the length of each."""
    ties: Array
    """(unit,) among equal scores, the unit of the lower number is taken first."""
    kinds: Kinds | None
    strata: Array
    """(unit,) of the states in which units begin."""
    reference: float | None = None
    """The explained share of variance that an expertise of 1 stands for; None where it is no such share."""

    def select(self, chosen: Array) -> Units:
        """Some units, by (unit,) whether each is one of them."""
        kinds = None if self.kinds is None else self.kinds._replace(held=self.kinds.held[chosen])
        return Units(self.steps[chosen], self.ties[chosen], kinds, self.strata[chosen], self.reference)

    def precision(self, expertise: Array) -> Array:
        """(unit,) the weight of a unit's steps by its expertise.

        Least squares weights steps by the inverse of their noise: by the signal-to-noise ratio rho / (1 - rho), where
        expertise is a share rho of explained variance; elsewhere in proportion to expertise.
        """
        if self.reference is None:
            return expertise
        share = np.clip(expertise * self.reference, 0.0, _LARGEST_SHARE)
        return np.asarray(share / (1 - share))


@final
@dataclass(frozen=True, kw_only=True)
class Rule:
    """Which episodes are kept: a share, those above a bound, or a budget of steps; all of them where none is given."""

    keep: float | None = None
    """The share of episodes to keep, best first: 0.5 keeps half of them."""
    above: float | None = None
    """Keep episodes whose score is above this threshold; expertise is relative to the mean over demonstrators."""
    probability: float = 0.9
    """How probable it must be that the score is above the bound."""
    steps: int | None = None
    """Keep at most so many steps: the best episodes, passing over those that do not fit any more."""
    weight: bool = False
    """Weight what is kept by the score, with mean 1 over steps: by the signal-to-noise ratio where expertise is a share
    of explained variance. It is tempered by the largest power up to 1 that leaves an effective sample size of
    `least_effective`."""
    by: Literal["expertise", "agreement", "typicality"] = "expertise"
    """The score that decides: expertise, agreement or typicality."""
    at_least: int = 0
    """Keep at least so many episodes of each kind of state, the best of it, where there are so many."""
    kinds: int | str | None = None
    """Kinds of state: a skill column, or a number of clusters of episodes; None is 8 clusters."""
    unit: Literal["episode", "stretch"] = "episode"
    """What is kept or dropped: whole episodes, or segments of them, to which the other options then apply."""
    coverage: bool | None = None
    """Preserve the states of the whole data set: `keep` and `steps` choose within clusters of the states in which
    episodes begin, and weights give every cluster its share in the whole. None does so with continuous actions."""
    least_effective: float | None = None
    """The least effective sample size of weights, (sum w)^2 / sum w^2, as a share of the units kept. None is 0.5 with
    continuous actions and 0 with discrete ones."""
    adjust: bool | None = None
    """Correct expertise for the states of each episode, and shrink it towards the demonstrator's rating unless
    differences within demonstrators are reliable. None does so with continuous actions."""

    def __post_init__(self) -> None:
        one_of("by", self.by, BOUNDS)
        one_of("unit", self.unit, ("episode", "stretch"))
        given = [name for name in ("keep", "above", "steps") if getattr(self, name) is not None]
        if len(given) > 1:
            raise SettingsError(f"{' and '.join(given)} are given, each a rule of its own: give one of them")
        if self.keep is not None:
            rule = "it is a share of the episodes above 0, 1 at most"
            number("keep", self.keep, above=0, most=1, rule=rule)
        if self.above is not None:
            number("above", self.above, rule="pass a number")
        number("probability", self.probability, above=0, below=1, rule="it lies between 0 and 1")
        if self.steps is not None:
            whole_number("steps", self.steps, least=1, rule="pass a whole number, one or more")
        true_or_false("weight", self.weight)
        if self.least_effective is not None:
            rule = "it is a share of the units kept, from 0 to 0.6"
            number("least_effective", self.least_effective, least=0, most=MOST_EFFECTIVE, rule=rule)
        true_or_false("coverage", self.coverage, or_none=True)
        true_or_false("adjust", self.adjust, or_none=True)
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

    def of_actions(self, *, discrete: bool) -> Rule:
        """The rule with what None stands for with such actions."""
        least = 0.0 if discrete else LEAST_EFFECTIVE
        return replace(
            self,
            coverage=not discrete if self.coverage is None else self.coverage,
            least_effective=least if self.least_effective is None else self.least_effective,
            adjust=not discrete if self.adjust is None else self.adjust,
        )

    @property
    def is_given(self) -> bool:
        """Whether it drops or weights anything."""
        return self.weight or any(each is not None for each in (self.keep, self.above, self.steps))

    @property
    def bounds(self) -> Mapping[str, float]:
        return {**BOUNDS} if self.above is None else {**BOUNDS, self.by: self.above}

    def choose(self, scores: Scores, units: Units) -> Array:
        """(unit,) which are kept."""
        order, kinds = np.lexsort((units.ties, -scores[self.by].estimate)), units.kinds
        kept = np.zeros(len(order), dtype=bool)
        if kinds is not None:
            for held in kinds.held.T:
                kept[order[held[order]][: self.at_least]] = True
        if self.above is not None:
            kept |= scores[self.by].above >= self.probability
            if not kept.any():
                best = scores[self.by].above.max()
                found = f"no {self._unit} is above {self.above:g} with probability {self.probability:g}"
                raise SettingsError(f"{found} (at best {best:.2f}): lower above or probability, or pass keep=")
        elif self.keep is not None:
            cost, budget = np.ones_like(units.steps), max(1, round(self.keep * len(order)))
            kept = self._filled(self._within_strata(kept, order, cost, budget, units), order, cost, budget)
        elif self.steps is not None:
            kept = self._within_strata(kept, order, units.steps, self.steps, units)
            kept = self._filled(kept, order, units.steps, self.steps)
        else:
            kept[:] = True
        return kept

    def _within_strata(self, kept: Array, order: Array, cost: Array, budget: int, units: Units) -> Array:
        """Those already kept, and the best of each stratum up to its share of the budget, as far as that reaches."""
        if not self.coverage:
            return kept
        kept, left = kept.copy(), budget - int(cost[kept].sum())
        for stratum in np.unique(units.strata):
            own = order[units.strata[order] == stratum]
            quota = int(budget * cost[own].sum() / cost.sum()) - int(cost[own][kept[own]].sum())
            for unit in own[~kept[own]]:
                if cost[unit] <= min(quota, left):
                    kept[unit] = True
                    quota, left = quota - int(cost[unit]), left - int(cost[unit])
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
                f"steps is {budget:,}, the shortest {self._unit} has {cost.min():,}: pass so many or more"
            )
        return kept

    def weights(self, scores: Scores, units: Units, kept: Array) -> Array:
        """(unit,) the weight of each: 0 where it is dropped, and with mean 1 over the steps that are kept."""
        weights, steps = np.zeros(len(kept)), units.steps[kept]
        score, power, least = np.ones(len(steps)), 1.0, self.least_effective or 0.0
        if self.weight:
            score = np.maximum(scores[self.by].estimate[kept], 0.0)
            score = units.precision(score) if self.by == "expertise" else score
            score, power = temper(score, least)
        own = score * (steps.sum() / product(score, steps))
        if self.coverage and not (kept.all() and not self.weight):
            whole, positive = np.bincount(units.strata), np.maximum(score, 1e-3 * score.max())
            own = match_strata(positive, units.strata[kept], whole)
            while power > 1e-3 and effective_size(own) < least * len(own):
                positive, power = positive**_LESS, power * _LESS
                own = match_strata(positive, units.strata[kept], whole)
            own = own * (steps.sum() / product(own, steps))
        weights[kept] = own
        return weights

    @property
    def _unit(self) -> str:
        return "episode" if self.unit == "episode" else "segment"

    @property
    def _units(self) -> str:
        return f"{self._unit}s"

    def sentence(self, kept: Array, kinds: Kinds | None) -> str:
        """The rule in words, with what it kept."""
        best = f"the best by {self.by}"
        if self.keep is not None:
            rule = f"{best}, {100 * self.keep:g}% of the {self._units}"
        elif self.above is not None:
            rule = f"those whose {self.by} is above {self.above:g} with probability {self.probability:g} or more"
        elif self.steps is not None:
            rule = f"{best} that fit into {counted(self.steps, 'step')}"
        else:
            rule = "all, no rule was given"
        if kinds is not None:
            rule += f", and at least {self.at_least} of each of {len(kinds.names)} kinds of state ({kinds.words})"
        if self.weight:
            rule += f"; weighted by {self.by}, with mean 1 over the steps that are kept"
        if self.coverage and (self.weight or not kept.all()):
            rule += "; weights match the initial states of the whole data set"
        found = f"kept {int(kept.sum()):,} of {len(kept):,} {self._units}: {rule}"
        if self.above is not None and kept.mean() < FEW:
            found += f"; few {self._units} pass this threshold: consider training on all of them"
        return found
