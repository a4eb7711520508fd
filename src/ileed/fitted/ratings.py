"""Ratings: everybody's expertise with intervals, in what order people are, and who cannot be told apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from ileed._numpy import default_errors
from ileed._torch import product
from ileed.checking import true_or_false
from ileed.demonstrations import Array, rules
from ileed.demonstrations.rules import listed
from ileed.deprecation import renamed_property
from ileed.errors import SettingsError, UnknownDemonstratorError, brief
from ileed.fitted.learning import LearningCurves
from ileed.fitted.population import KEPT_POINTS, above, apart_from_mean, boundaries, placed
from ileed.fitted.posterior import INSIDE, Population, draws, mean_and_interval, points_of, tails
from ileed.fitted.rated_by import RatedBy, checked_level
from ileed.fitted.variation import SPREADS
from ileed.wording import did_you_mean

if TYPE_CHECKING:
    from ileed.fitted.assessing import SegmentEvidence
    from ileed.fitted.evidence import SkillEvidence

_RELATIVE = "expertise divided by its mean over people"
_ENOUGH_STEPS = 5  # in a kind of state, to be compared there
_ENOUGH_EPISODES = 3  # of a demonstrator, to know their mean
_ABSOLUTE = "expertise by the policy as it is"
LEAST_RELIABILITY = 0.5
"""Below this, differences between demonstrators are not reproducible and their order is withheld."""
SAME_IN_ALL_EPISODES = "expertise is the same in all episodes of a person here: fit with expertise=Drift()"


def _tensor_of(name: str, values: Array | None) -> dict[str, Tensor]:
    """A tensor by its name; none for runs of earlier versions, which did not estimate it."""
    return {} if values is None else {name: torch.tensor(values)}


class Rating(NamedTuple):
    """One person's expertise, from 0 to 1, and its interval at the confidence level that was asked for."""

    expertise: float
    low: float
    high: float


@final
@dataclass(frozen=True, eq=False)
class Estimates:
    """Everybody's expertise and interval, in the order of the names; three arrays (person,)."""

    expertise: Array
    low: Array
    high: Array


class Units(NamedTuple):
    """What is rated in place of people: their episodes, or their steps in each kind of state."""

    columns: Mapping[str, tuple[str, ...]]
    """The person of each unit, and its episode or kind of state."""
    of_step: Array
    """(step,) the unit of each step."""

    @property
    def names(self) -> tuple[str, ...]:
        (_, people), (by, labels) = self.columns.items()
        return tuple(f"{person}, {by} {label}" for person, label in zip(people, labels, strict=True))


@final
@dataclass(frozen=True, eq=False)
class Ratings:
    """How expert each person is: `alone` by their own steps, and `pooled` with what is known of the others.

    Read expertise as a comparison between people rated by one policy: the policy fixes what 1 means. `table()` divides
    it by its mean over people for that reason.
    """

    names: tuple[str, ...]
    steps: Array
    """How many steps each was rated by, (person,)."""
    episodes: Array
    """Of how many episodes, (person,)."""
    by: RatedBy
    alone: Estimates
    """The expertise of greatest likelihood, and a confidence interval."""
    pooled: Estimates | None = None
    """The posterior mean given the steps of all people, and the interval that holds `confidence_level` of it."""
    population: Population | None = None
    """What was learned of people in general; pass it as `pooled` to rate others."""
    shares: Array | None = None
    """(person, point) the posterior distribution of each person's expertise."""
    in_sample: Array | None = None
    """(person,) the fit's own expertise, by the policy that learned from the same steps."""
    reference: float | None = None
    """The expertise that others are divided by; None for the mean over these people."""
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The person and the episode or kind of state of each, where these are rated in place of people."""
    curves: LearningCurves | None = None
    """How everybody's expertise changes from episode to episode, where the fit's does (`Drift`)."""
    evidence: SkillEvidence | None = None
    """What actions and outcomes say alone, where `Fitted.assess` combined both."""
    segments: SegmentEvidence | None = None
    """The same label by label, of ratings by a skill column."""

    @classmethod
    def of_tensors(cls, names: tuple[str, ...], by: RatedBy, tensors: Mapping[str, Tensor]) -> Ratings:
        """Ratings as a run directory keeps them."""
        values = {name: tensor.numpy() for name, tensor in tensors.items()}
        steps, episodes = values["counts"]
        pooled = Estimates(*mean_and_interval(values["shares"], by.confidence_level))
        alone, population = Estimates(*values["alone"]), Population(values["population"], values.get("episode_spread"))
        found = cls(names, steps, episodes, by, alone, pooled, population, values["shares"], values["in_sample"])
        practice = by.practice
        return found if practice is None else found.with_curves(LearningCurves.of_tensors(names, practice, tensors))

    def with_curves(self, curves: LearningCurves) -> Ratings:
        """The same ratings with learning curves, on the same scale."""
        reference = float(self.best.expertise.mean()) if self.reference is None else self.reference
        by = replace(self.by, practice=curves.episodes)
        return replace(self, by=by, curves=replace(curves, reference=reference))

    def tensors(self) -> dict[str, Tensor]:
        """What a run directory keeps, beside the names and how people were rated."""
        assert self.population is not None
        return {
            "counts": torch.tensor(np.stack([self.steps, self.episodes])),
            "alone": torch.tensor(np.stack([*vars(self.alone).values()])),
            "shares": torch.tensor(self._posterior),
            "population": torch.tensor(self.population.share),
            **_tensor_of("episode_spread", self.population.episode_spread),
            "in_sample": torch.tensor(self.in_sample),
            **({} if self.curves is None else self.curves.tensors()),
        }

    @staticmethod
    def empty_tensors(people: int, by: RatedBy, points: int = len(INSIDE)) -> dict[str, Tensor]:
        """The shapes and types of what a run directory keeps of so many people, with shares at so many points."""
        shapes = {
            "alone": (3, people),
            "shares": (people, points if points == KEPT_POINTS else len(INSIDE)),
            "population": (len(INSIDE),),
            "episode_spread": (len(SPREADS),),
            "in_sample": (people,),
        }
        floats = {name: torch.empty(shape, dtype=torch.float64) for name, shape in shapes.items()}
        curves = {} if by.practice is None else LearningCurves.empty_tensors(people)
        return {"counts": torch.empty(2, people, dtype=torch.int64)} | floats | curves

    @property
    def confidence_level(self) -> float:
        """Of the intervals."""
        return self.by.confidence_level

    certainty = renamed_property("the attribute certainty of Ratings", "confidence_level")

    @property
    def best(self) -> Estimates:
        """The pooled estimates where there are any."""
        return self.alone if self.pooled is None else self.pooled

    def __getitem__(self, name: str) -> Rating:
        person, best = self._index(name), self.best
        return Rating(float(best.expertise[person]), float(best.low[person]), float(best.high[person]))

    def by_demonstrator(self) -> dict[str, float]:
        """Each person's expertise, pooled where it was asked for."""
        return dict(zip(self.names, self.best.expertise.tolist(), strict=True))

    def rows(self) -> Iterator[dict[str, Any]]:
        """One mapping for each person, ready for a table."""
        for person, name in enumerate(self.names):
            row: dict[str, Any] = {"name": name, "steps": int(self.steps[person])}
            for kind, estimates in (("alone", self.alone), ("pooled", self.pooled)):
                if estimates is not None:
                    row |= {f"{kind}_{part}": float(values[person]) for part, values in vars(estimates).items()}
            yield row

    @default_errors()
    def table(self, *, relative: bool = True, confidence_level: float | None = None) -> pa.Table:
        """Everybody's expertise with its interval and the interval of their rank, best first.

        `relative` divides expertise by its mean over people, which is what the data fix: everybody's could be larger by
        one factor, with a policy that is less sharp. 1 is then the average. The metadata of the table name the scale.
        `in_sample` is the fit's own estimate on the same scale; a policy that remembers what was done finds all alike.
        Among more than 5,000 people a rank is a value's place in the distribution of all. Where ratings are not
        reliable, every rank is possible.
        """
        level, told = self._scale(relative, confidence_level)
        own, low, high, rank_low, rank_high = self._places(level, relative=relative)
        units = dict(self.parts) or {"demonstrator": self.names}
        columns: dict[str, Any] = {
            **{each: [name.encode(errors="replace").decode() for name in names] for each, names in units.items()},
            "steps": self.steps,
            "episodes": self.episodes,
            "expertise": own,
            "low": low,
            "high": high,
            "rank_low": rank_low,
            "rank_high": rank_high,
        }
        if self.in_sample is not None:
            columns["in_sample"] = self.in_sample / np.nanmean(self.in_sample) if relative else self.in_sample
        for evidence in (self.evidence, self.segments):
            columns |= {} if evidence is None else evidence.columns()
        return pa.table(columns).take(self.order).replace_schema_metadata(told)

    @cached_property
    def order(self) -> Array:
        """The numbers of demonstrators, best first by relative expertise: the order of tables, reports and rankings."""
        return np.argsort(-self._places(self.confidence_level, relative=True)[0], kind="stable")

    def _places(self, level: float, *, relative: bool) -> tuple[Array, ...]:
        """Expertise, both ends of its interval, and both of the rank's."""
        if self._are_many:
            return placed(self._posterior, level, relative=relative, reference=self.reference)
        drawn, own = self._draws, product(self._posterior, INSIDE)
        if relative:
            reference = drawn.mean(1, keepdims=True) if self.reference is None else self.reference
            drawn = drawn / reference
            own = drawn.mean(0)
        low, high = np.quantile(drawn, tails(level), axis=0)
        rank = np.argsort(np.argsort(-drawn, axis=1), axis=1) + 1
        rank_low, rank_high = np.quantile(rank, tails(level), axis=0, method="nearest").astype(np.int64)
        if self._is_unreliable:
            rank_low, rank_high = np.ones_like(rank_low), np.full_like(rank_high, len(self.names))
        return own, low, high, rank_low, rank_high

    @property
    def _are_many(self) -> bool:
        return len(self.names) > rules.MANY_PEOPLE

    @default_errors()
    def drift(self, *, relative: bool = True, confidence_level: float | None = None) -> pa.Table:
        """Whether everybody improves or tires from episode to episode, where the fit's expertise is `Drift`.

        `first` and `last` are expertise in the first and in the last of a person's own episodes, `change` is the
        difference, each with an interval; those who improve most come first. The `verdict` is "improves" or "tires"
        where the interval of the change leaves zero out, both by everybody's episodes and by the person's own, and
        otherwise "cannot be told". `table()` has the mean over all of a person's steps.
        """
        level, told = self._scale(relative, confidence_level)
        return self._curves.table(relative=relative, level=level).replace_schema_metadata(told)

    @default_errors()
    def curve(self, *, relative: bool = True, confidence_level: float | None = None) -> pa.Table:
        """Everybody's learning curve: expertise in each of their own episodes, of very many in some, with intervals.

        `episode` counts a person's own episodes from 0 on. `relative` divides by the mean over people, as in `table()`.
        """
        level, told = self._scale(relative, confidence_level)
        return self._curves.curve(relative=relative, level=level).replace_schema_metadata(told)

    def _scale(self, relative: bool, confidence_level: float | None) -> tuple[float, dict[str, str]]:
        level = self.confidence_level if confidence_level is None else checked_level(confidence_level)
        true_or_false("relative", relative)
        return level, {"scale": _RELATIVE if relative else _ABSOLUTE, "confidence_level": str(level)}

    @property
    def _curves(self) -> LearningCurves:
        if self.curves is None:
            raise SettingsError(SAME_IN_ALL_EPISODES)
        return self.curves

    @default_errors()
    def standardised(self, *, confidence_level: float | None = None) -> pa.Table:
        """Everybody's expertise over the same states, best first, where kinds of state are rated.

        People meet different states. Here each kind of state counts by its share of all steps (direct standardisation).
        Somebody who was hardly ever in one is taken for anybody there, and `overlap` is the share of states in which
        they have five steps or more: below one half, do not compare them.
        """
        if not self.parts:
            raise SettingsError("these are ratings of people: rate kinds of state, with assess(data, by=COLUMN)")
        assert self.population is not None
        people, kinds = (np.array(column) for column in self.parts.values())
        share = {kind: self.steps[kinds == kind].sum() / self.steps.sum() for kind in np.unique(kinds)}
        everybody = draws(self.population.share[None])[:, 0]
        names = list(dict.fromkeys(people.tolist()))
        drawn, overlap = np.zeros((len(everybody), len(names))), np.zeros(len(names))
        for person, name in enumerate(names):
            for kind, part in share.items():
                unit = np.flatnonzero((people == name) & (kinds == kind))
                drawn[:, person] += part * (self._draws[:, unit[0]] if len(unit) else everybody)
                overlap[person] += part * bool(len(unit) and self.steps[unit[0]] >= _ENOUGH_STEPS)
        drawn = drawn / (drawn.mean(1, keepdims=True) if self.reference is None else self.reference)
        level, told = self._scale(True, confidence_level)
        low, high = np.quantile(drawn, tails(level), axis=0)
        columns = {"demonstrator": names, "expertise": drawn.mean(0), "low": low, "high": high, "overlap": overlap}
        order = np.argsort(-drawn.mean(0), kind="stable")
        return pa.table(columns).take(order).replace_schema_metadata(told)

    @default_errors()
    def probability_better(self, first: str, second: str) -> float:
        """The probability that one person's expertise is above another's, given everybody's steps."""
        one, other = self._index(first), self._index(second)
        if self._are_many:
            return float(above(self._posterior[[one]], self._posterior[[other]])[0, 0])
        return float(self._above[one, other])

    @property
    def not_identified(self) -> str:
        """Why these ratings support no order of the demonstrators; empty where they do.

        Two demonstrators do not establish a norm where the policy was learned from them alone. Fewer than three
        episodes do not establish a demonstrator's mean. Where the ratings of halves of the episodes hardly agree,
        demonstrators do not differ measurably, whatever the intervals say.
        """
        if len(self.names) < 2 or self.parts:
            return ""
        if len(self.names) == 2 and self.by.folds and not self.by.outcomes:
            return "two demonstrators do not establish a norm (add others, or rate both by a policy that you trust)"
        if (self.episodes >= _ENOUGH_EPISODES).sum() < 2:
            return f"with fewer than {_ENOUGH_EPISODES} episodes each, how much their episodes vary is unknown"
        if self._is_unreliable:
            return (
                f"the split-half reliability of their ratings is {self.by.reliability:.2f}, below {LEAST_RELIABILITY}: "
                "they do not differ measurably"
            )
        return ""

    @property
    def _is_unreliable(self) -> bool:
        if self.parts or self.by.outcomes or self.by.reliability is None:
            return False
        return self.by.reliability < LEAST_RELIABILITY

    @default_errors()
    def groups(self, probability: float = 0.95) -> list[tuple[str, ...]]:
        """Demonstrators in groups, best first, each better than all later ones with at least this probability.

        Two demonstrators of one group may still differ: no demonstrator between them separates the group in two. There
        is one group where the order is `not_identified`.
        """
        order, apart = self._boundaries_at(checked_level(probability, "probability"))
        if self.not_identified:
            return [tuple(self.names[person] for person in order)]
        ends = [*(np.flatnonzero(apart >= probability) + 1), len(order)]
        return [tuple(self.names[person] for person in order[first:end]) for first, end in pairwise([0, *ends])]

    @default_errors()
    def sentence(self, probability: float = 0.95) -> str:
        """Who can be told apart, in words; the two best groups of several, or how many of very many are not average.

        It says so where duration and speed explain most of the order, and what continuous actions alone do not tell.
        """
        order = self._order_in_words(checked_level(probability, "probability"))
        if not self.by.orders_by_skill and len(self.groups(probability)) > 1:
            order += "; only outcomes tell whether that is skill"
        return f"{order}; but {self.by.explained}" if self.by.explained else order

    def _order_in_words(self, probability: float) -> str:
        if self._are_many and not self.not_identified:
            return apart_from_mean(self._posterior, probability)
        groups = self.groups(probability)
        if len(self.names) == 1:
            return "there is one demonstrator"
        if len(groups) == 1:
            if why := self.not_identified:
                return f"the order of the {len(self.names)} demonstrators is not identified: {why}"
            return f"the {len(self.names)} demonstrators cannot be told apart"
        parts: list[str] = []
        place = 0
        for group in groups[:-1][:2]:
            place += len(group)
            least = self._boundaries_at(probability)[1][place - 1]
            sure = "above .99" if least > 0.99 else f"{least:.2f}"
            who = " and ".join(filter(None, (", ".join(group[:-1]), group[-1])))
            if len(group) > 5:
                who = f"the best {len(group)}" if not parts else f"the next {len(group)}"
            whom = "those below" if parts else "all others"
            parts.append(f"{who} {self._verb(len(group))} than {whom} (probability {sure})")
        if len(groups) > 3:
            parts.append(f"the other {len(self.names) - place} fall into {len(groups) - 2} groups")
        elif len(groups[-1]) > 1:
            parts.append(f"the other {len(groups[-1])} cannot be told apart")
        return "; ".join(parts)

    def _verb(self, count: int) -> str:
        """What a group of so many demonstrators does in comparison with others."""
        if self.by.orders_by_skill:
            return "is better" if count == 1 else "are better"
        return f"{'follows' if count == 1 else 'follow'} the common policy more closely"

    def _boundaries_at(self, probability: float) -> tuple[Array, Array]:
        if not self._are_many:
            return self._boundaries
        if probability not in self._found_boundaries:
            self._found_boundaries[probability] = boundaries(self._posterior, probability)
        return self._found_boundaries[probability]

    @cached_property
    def _found_boundaries(self) -> dict[float, tuple[Array, Array]]:
        return {}

    @cached_property
    def _above(self) -> Array:
        """(person, person) the probability that one's expertise is above the other's."""
        shares = self._posterior
        return product(shares, (np.cumsum(shares, axis=1) - shares / 2).T)

    @cached_property
    def _boundaries(self) -> tuple[Array, Array]:
        """People by falling expertise, and after each but the last the least probability that one before is better."""
        order = np.argsort(-product(self._posterior, INSIDE), kind="stable")
        least = np.minimum.accumulate(self._above[np.ix_(order, order)], axis=0)
        least = np.minimum.accumulate(least[:, ::-1], axis=1)[:, ::-1]
        return order, np.diagonal(least, offset=1)

    @default_errors()
    def episodes_to_settle(self, first: str, second: str, probability: float = 0.95) -> float:
        """How many more episodes of each would tell two people apart with this probability, if they go on as before.

        An estimate: the variance of each falls as one by their episodes. Infinite where both are estimated alike.
        """
        shares = self._posterior
        checked_level(probability, "probability")
        people = [self._index(first), self._index(second)]
        points = points_of(shares.shape[1])
        mean = product(shares[people], points)
        variance = product(shares[people], points**2) - mean**2
        distance, wanted = abs(mean[0] - mean[1]), NormalDist().inv_cdf(probability)
        times = wanted**2 * variance.sum() / max(distance, 1e-12) ** 2
        more = (times - 1) * self.episodes[people].max()
        return float(max(0, np.ceil(more))) if more < 1e9 else np.inf

    @property
    def _posterior(self) -> Array:
        if self.shares is None:
            raise SettingsError(
                "these ratings are not pooled, and have no posterior distribution: rate with pooled=True"
            )
        return self.shares

    @cached_property
    def _draws(self) -> Array:
        return draws(self._posterior)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in reversed(list(enumerate(self.names)))}

    def _index(self, name: str) -> int:
        if not isinstance(name, str) or name not in self._numbers:
            raise UnknownDemonstratorError(
                f"demonstrator {brief(name)} was not rated{did_you_mean(name, self.names)}: the names are "
                f"{listed(self.names)}"
            )
        return self._numbers[name]

    def renamed(self, names: Mapping[str, str]) -> Ratings:
        """The same ratings with other names."""
        curves, evidence = self.curves and self.curves.renamed(names), self.evidence and self.evidence.renamed(names)
        return replace(self, names=tuple(names[name] for name in self.names), curves=curves, evidence=evidence)

    def __str__(self) -> str:
        best = self.best
        lines = zip(self.names, best.expertise, best.low, best.high, self.steps, strict=True)
        return "\n".join(
            f"{name}: {expertise:.3f} ({low:.3f} to {high:.3f}, {steps:,} steps)"
            for name, expertise, low, high, steps in sorted(lines, key=lambda line: -line[1])
        )
