"""Rules of curation: which episodes or segments are kept and with what weight, and the rule in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple, Self, final

import numpy as np

from ileed._torch import product
from ileed.curation.scores import BOUNDS, Scores
from ileed.curation.states import Kinds
from ileed.data import Array
from ileed.errors import SettingsError, counted, did_you_mean, number, one_of, true_or_false, whole_number

FEW = 0.05
"""The share of episodes below which a threshold is said to keep few; policies fitted to so few episodes were worse than
those fitted to all where demonstrators are equally good (docs/curation.md)."""
LARGEST_FACTOR = 2.0
"""By which matching multiplies or divides a weight at most. The effective size of weights between 1/2 and 2 is at least
64% of their number, so matching equal weights never falls below `MOST_EFFECTIVE`."""
MOST_EFFECTIVE = 0.6
LEAST_EFFECTIVE = 0.5
"""The default of `Rule.least_effective` for continuous actions."""
_HALVINGS = 100
_LARGEST_SHARE = 0.98  # of explained variance that a weight assumes
_TEMPERING = 0.9  # the power of one step towards equal weights, if matching leaves too small an effective size


class Units(NamedTuple):
    """What a rule knows about units, episodes or segments, beside their scores."""

    steps: Array
    """(unit,) the number of steps."""
    ties: Array
    """(unit,) the order of units with equal scores."""
    kinds: Kinds | None
    strata: Array
    """(unit,) the stratum of the state in which each begins."""
    reference: float | None = None
    """The share of explained variance that an expertise of 1 stands for; None where expertise is no such share."""

    def select(self, chosen: Array) -> Units:
        """Some units, by (unit,) whether each is one of them."""
        kinds = None if self.kinds is None else self.kinds._replace(held=self.kinds.held[chosen])
        return Units(self.steps[chosen], self.ties[chosen], kinds, self.strata[chosen], self.reference)

    def precision(self, expertise: Array) -> Array:
        """(unit,) the weight of steps by the expertise of their unit.

        Least squares weights steps by the inverse of their noise: by the signal-to-noise ratio rho / (1 - rho) where
        expertise is a share rho of explained variance. Other weights are proportional to expertise.
        """
        if self.reference is None:
            return expertise
        share = np.clip(expertise * self.reference, 0.0, _LARGEST_SHARE)
        return np.asarray(share / (1 - share))


@final
@dataclass(frozen=True, kw_only=True)
class Rule:
    """Which episodes are kept: a share, those above a threshold, or a budget of steps; by default all of them."""

    keep: float | None = None
    """The share of episodes to keep, best first: 0.5 keeps half of them."""
    above: float | None = None
    """Keep episodes whose score is above this threshold; expertise is relative to the mean over demonstrators."""
    probability: float = 0.9
    """How probable it must be that the score is above the threshold."""
    steps: int | None = None
    """Keep at most this number of steps: the best episodes, skipping those that no longer fit."""
    weight: bool = False
    """Weight what is kept by the score, with mean 1 over steps: by the signal-to-noise ratio where expertise is a share
    of explained variance. Weights are raised to the largest power up to 1 that leaves an effective sample size of
    `least_effective`."""
    by: Literal["expertise", "agreement", "typicality"] = "expertise"
    """The score that decides."""
    at_least: int = 0
    """Keep at least this number of episodes of each kind of state, best first."""
    kinds: int | str | None = None
    """Kinds of state: a skill column, or a number of clusters of episodes; None is 8 clusters."""
    unit: Literal["episode", "stretch"] = "episode"
    """What is kept or dropped: whole episodes, or segments of them, to which the other options then apply."""
    coverage: bool | None = None
    """Preserve the states of the whole data set: `keep` and `steps` choose within clusters of the states in which
    episodes begin, and weights give every cluster its share of the whole. None does so with continuous actions."""
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
            message = f"{' and '.join(given)} are given, each a rule of its own: give one of them"
            raise SettingsError(message, code="several-rules")
        if self.keep is not None:
            number("keep", self.keep, above=0, most=1, rule="it must be a share of the episodes in (0, 1]")
        if self.above is not None:
            number("above", self.above, rule="pass a number")
        number("probability", self.probability, above=0, below=1, rule="it must be between 0 and 1")
        if self.steps is not None:
            whole_number("steps", self.steps, least=1, rule="pass a whole number, one or more")
        true_or_false("weight", self.weight)
        if self.least_effective is not None:
            rule = f"it must be a share of the units kept in [0, {MOST_EFFECTIVE}]"
            number("least_effective", self.least_effective, least=0, most=MOST_EFFECTIVE, rule=rule)
        true_or_false("coverage", self.coverage, or_none=True)
        true_or_false("adjust", self.adjust, or_none=True)
        whole_number("at_least", self.at_least, least=0, rule="pass a whole number, zero or more")
        if self.kinds is not None and not self.at_least:
            message = "kinds are given, but at_least is not: say how many episodes of each kind to keep"
            raise SettingsError(message, code="kinds-without-at-least")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """A rule by the names of its options."""
        known = [item.name for item in fields(cls)]
        if unknown := next((name for name in options if name not in known), None):
            message = f"there is no rule {unknown!r}{did_you_mean(unknown, known)}: there are {known}"
            raise SettingsError(message, code="rule-unknown")
        return cls(**options)

    def of_actions(self, *, discrete: bool) -> Rule:
        """The rule with defaults for the kind of actions filled in."""
        least = 0.0 if discrete else LEAST_EFFECTIVE
        return replace(
            self,
            coverage=not discrete if self.coverage is None else self.coverage,
            least_effective=least if self.least_effective is None else self.least_effective,
            adjust=not discrete if self.adjust is None else self.adjust,
        )

    @property
    def is_given(self) -> bool:
        """Whether the rule drops or weights anything."""
        return self.weight or any(each is not None for each in (self.keep, self.above, self.steps))

    @property
    def bounds(self) -> Mapping[str, float]:
        return BOUNDS if self.above is None else {**BOUNDS, self.by: self.above}

    def choose(self, scores: Scores, units: Units) -> Array:
        """(unit,) whether each is kept."""
        order = np.lexsort((units.ties, -scores[self.by].estimate))
        kept = np.zeros(len(order), dtype=bool)
        if units.kinds is not None:
            for held in units.kinds.held.T:
                kept[order[held[order]][: self.at_least]] = True
        if self.above is not None:
            kept |= scores[self.by].above >= self.probability
            if not kept.any():
                best = scores[self.by].above.max()
                found = f"no {self._unit} is above {self.above:g} with probability {self.probability:g}"
                message = f"{found} (at best {best:.2f}): lower above or probability, or pass keep="
                raise SettingsError(message, code="nothing-above")
        elif self.keep is not None:
            self._fill(kept, order, np.ones_like(units.steps), max(1, round(self.keep * len(order))), units)
        elif self.steps is not None:
            self._fill(kept, order, units.steps, self.steps, units)
        else:
            kept[:] = True
        return kept

    def _fill(self, kept: Array, order: Array, cost: Array, budget: int, units: Units) -> None:
        """Keep the best units that fit into a budget, in place; with coverage, first by the shares of strata."""
        left = budget - int(cost[kept].sum())
        if left < 0:
            of = self._units if self.steps is None else "steps"
            found = f"at_least={self.at_least} of each kind takes {cost[kept].sum():,} {of} of {budget:,}"
            message = f"{found}: lower at_least, take fewer kinds, or keep more"
            raise SettingsError(message, code="at-least-exceeds-budget")
        parts = [(order, budget)]
        if self.coverage:
            strata = [order[units.strata[order] == stratum] for stratum in np.unique(units.strata)]
            quotas = [int(budget * cost[own].sum() / cost.sum()) - int(cost[own][kept[own]].sum()) for own in strata]
            parts = [*zip(strata, quotas, strict=True), *parts]
        for own, quota in parts:
            allowed = min(quota, left)
            for unit in own[~kept[own]]:
                if cost[unit] <= allowed:
                    kept[unit] = True
                    allowed, left = allowed - int(cost[unit]), left - int(cost[unit])
        if not kept.any():
            message = f"steps is {budget:,}, but the shortest {self._unit} has {cost.min():,}: pass at least that"
            raise SettingsError(message, code="steps-too-few")

    def weights(self, scores: Scores, units: Units, kept: Array) -> Array:
        """(unit,) weights: 0 for dropped units, with mean 1 over the steps that are kept."""
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
                positive, power = positive**_TEMPERING, power * _TEMPERING
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
        """The rule in words, with the number of units that it kept."""
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


def effective_size(weights: Array) -> float:
    """Kish's effective sample size, (sum w)^2 / sum w^2; zero if all weights are."""
    total = float((weights**2).sum())
    return float(weights.sum()) ** 2 / total if total > 0 else 0.0


def temper(scores: Array, share: float = LEAST_EFFECTIVE) -> tuple[Array, float]:
    """Raise scores to the largest power up to 1 with an effective size of a share of their number; and that power.

    The effective size of w^t falls in t, from all units at t = 0, so bisection finds the power. Scores below a
    thousandth of the largest are raised to that, since no power of zero approaches 1.
    """
    if not len(scores) or scores.max() <= 0:
        return np.ones(len(scores)), 0.0
    least = share * len(scores)
    if effective_size(scores) >= least:
        return scores, 1.0
    scores = np.maximum(scores / scores.max(), 1e-3)
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if effective_size(scores**middle) >= least else (low, middle)
    return scores**low, low


def match_strata(weights: Array, strata: Array, whole: Array) -> Array:
    """(unit,) weights with the shares of strata in the whole (post-stratification), by bounded factors.

    Args:
        weights: (unit,) above zero.
        strata: (unit,) the stratum of each.
        whole: (stratum,) units of the whole data set. Strata without any unit here are left out.
    """
    sums = np.bincount(strata, weights, len(whole))
    target = np.where(sums > 0, whole, 0)
    target = target * (weights.sum() / target.sum())
    factor = np.clip(target / np.where(sums > 0, sums, 1.0), 1 / LARGEST_FACTOR, LARGEST_FACTOR)
    return np.asarray(weights * factor[strata])
