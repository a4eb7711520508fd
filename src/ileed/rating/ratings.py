"""Ratings: the expertise of demonstrators with intervals, their order, and which of them cannot be told apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from ileed._torch import numpy_stream, product
from ileed.data import Array, rules
from ileed.data.rules import listed
from ileed.errors import (
    SettingsError,
    UnknownDemonstratorError,
    brief,
    did_you_mean,
    number,
    true_or_false,
    whole_number,
)
from ileed.rating.learning_curves import LEARNING_POINTS, LearningCurves, encodable, in_words, learning_curves
from ileed.rating.posterior import (
    GRID,
    INSIDE,
    KEPT_POINTS,
    SPREADS,
    Estimates,
    Population,
    above,
    cumulative,
    draws,
    likeliest,
    mean_and_interval,
    peak,
    points_for,
    points_of,
    tails,
    thinned,
)
from ileed.rating.step_likelihood import TABULATED_POINTS, StepLikelihood, Units, Work

if TYPE_CHECKING:
    from ileed.rating.outcomes import SegmentEvidence, SkillEvidence

_ENOUGH_STEPS = 5  # in a state cluster, to be compared there
_ENOUGH_EPISODES = 3  # of a demonstrator, to know their mean
LEAST_RELIABILITY = 0.5
"""Below this, differences between demonstrators are not reproducible and their order is withheld."""
SAME_IN_ALL_EPISODES = "expertise does not change from episode to episode in this fit: fit with expertise=Drift()"


@final
@dataclass(frozen=True)
class RatedBy:
    """How demonstrators were rated."""

    confidence_level: float = 0.95
    temperature: float = 1.0
    """The policy was taken to the power 1 / temperature."""
    dispersion: float = 1.0
    """Overdispersion of episodes of one demonstrator, relative to independent steps."""
    folds: int = 0
    """The number of folds of episodes, each rated by a policy that has not seen it; 0 for a policy as given."""
    levels: tuple[float, ...] = ()
    """The least and the greatest mean expertise that explain the held-out steps about equally well, each with a policy
    of its own temperature: within 1.92 nats of the likeliest, where a 95% interval of one number ends."""
    free_scales: int | None = None
    """The number of scales of expertise that the likelihood leaves free; None if the embedding is learned."""
    horizon: int | None = None
    """The number of steps over which actions were averaged; None where steps were rated one by one."""
    reliability: float | None = None
    """Split-half reliability of the ratings over episodes, None where it is not known; with outcomes, the share of the
    variance of skill between demonstrators that is known."""
    explained: str = ""
    """What else than skill may explain the order: duration and speed (`Indicators.explained_by`), or observations that
    lack the goal of an episode (`ileed.data.findings.unpredicted_ends`)."""
    practice: int | None = None
    """The episodes over which a learning curve's change is counted; None where there are no curves."""
    outcomes: int = 0
    """The number of episodes whose outcomes were combined with actions (`ileed.rating.outcomes`)."""

    @property
    def orders_by_skill(self) -> bool:
        """Whether an order of demonstrators is one of skill.

        Continuous actions alone show how closely a demonstrator follows the common policy. A constant offset or a delay
        may follow it closely and fail, pauses may not and succeed: only outcomes tell.
        """
        return self.horizon is None or self.outcomes > 0

    @property
    def replaces_in_sample(self) -> bool:
        """Whether the expertise of a fit is that of its ratings rather than the in-sample estimate."""
        return self.horizon is not None or self.outcomes > 0

    @property
    def identification(self) -> str:
        """What the data identify, in one sentence; empty where it was not examined."""
        if self.outcomes:
            known = "" if self.reliability is None else f"; reliability {self.reliability:.2f}"
            return f"expertise combines actions with the outcomes of {self.outcomes:,} episodes{known}"
        if self.horizon is not None:
            known = "" if self.reliability is None else f"; split-half reliability {self.reliability:.2f}"
            steps = "the action" if self.horizon == 1 else f"the mean action over {self.horizon} steps"
            return f"expertise is the share of the variance of {steps} that the policy explains{known}"
        if not self.levels:
            return ""
        low, high = self.levels
        if high <= 1.1 * low:
            return (
                f"the held-out steps also fix the level of expertise, because the policy is sharp: {low:.2f} on average"
            )
        if self.free_scales == 0:
            return f"the known skills fix the level of expertise for any policy: {low:.2f} to {high:.2f} on average"
        least = f"mean expertise from {low:.2f} to {high:.2f} explains the held-out steps about equally well"
        each = f" in each of {self.free_scales} skills" if (self.free_scales or 1) > 1 else ""
        return f"the data fix ratios of expertise and not its level{each}: {least}"

    def __post_init__(self) -> None:
        checked_level(self.confidence_level)
        if len(self.levels) not in (0, 2) or not all(0 <= level <= 1 for level in self.levels):
            raise SettingsError(
                f"levels must be two numbers from 0 to 1, or none, got {self.levels}", code="levels-invalid"
            )
        for name in ("temperature", "dispersion"):
            number(name, getattr(self, name), above=0, rule="it must be a number above zero")
        if self.reliability is not None:
            number("reliability", self.reliability, least=0, most=1, rule="it must be a number from 0 to 1, or None")
        for name, least in (("folds", 0), ("outcomes", 0), ("free_scales", 0), ("horizon", 1), ("practice", 2)):
            if (value := getattr(self, name)) is not None or name in ("folds", "outcomes"):
                whole_number(name, value, least=least, rule=f"it must be a whole number, {least} or more")


def checked_level(value: float, name: str = "confidence_level") -> float:
    """A confidence level or another probability between 0 and 1, both excluded."""
    return number(name, value, above=0, below=1, rule="it must be a probability between 0 and 1, such as 0.95")


class Rating(NamedTuple):
    """The expertise of one demonstrator, from 0 to 1, and its interval at the confidence level of the ratings."""

    expertise: float
    low: float
    high: float


@final
@dataclass(frozen=True, eq=False)
class Ratings:
    """The expertise of each demonstrator: `alone` by their own steps, and `pooled` with those of the others.

    Read expertise as a comparison between demonstrators rated by one policy: the policy fixes what 1 means. `table()`
    divides it by its mean over demonstrators for that reason.
    """

    names: tuple[str, ...]
    steps: Array
    """(demonstrator,) the number of steps."""
    episodes: Array
    """(demonstrator,) the number of episodes."""
    by: RatedBy
    alone: Estimates
    """The expertise of greatest likelihood, and a confidence interval."""
    pooled: Estimates | None = None
    """The posterior mean given the steps of all demonstrators, and the interval that holds `confidence_level` of it."""
    population: Population | None = None
    """The distribution of expertise over demonstrators; pass it as `pooled` to rate others."""
    shares: Array | None = None
    """(demonstrator, point) the posterior distributions of expertise."""
    in_sample: Array | None = None
    """(demonstrator,) the fit's own expertise, by the policy that learned from the same steps."""
    reference: float | None = None
    """The expertise by which relative expertise is divided; None for the mean over these demonstrators."""
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The demonstrator and the episode or label of each unit, where units are rated."""
    curves: LearningCurves | None = None
    """How expertise changes from episode to episode, where the fit's does (`Drift`)."""
    evidence: SkillEvidence | None = None
    """What actions and outcomes say alone, where `Fitted.assess` combined both."""
    segments: SegmentEvidence | None = None
    """The same label by label, for ratings by a skill column."""

    @classmethod
    def of_tensors(cls, names: tuple[str, ...], by: RatedBy, tensors: Mapping[str, Tensor]) -> Ratings:
        """Ratings as a run directory keeps them."""
        values = {name: tensor.numpy() for name, tensor in tensors.items()}
        steps, episodes = values["counts"]
        pooled = mean_and_interval(values["shares"], by.confidence_level)
        alone, population = Estimates(*values["alone"]), Population(values["population"], values.get("episode_spread"))
        found = cls(names, steps, episodes, by, alone, pooled, population, values["shares"], values["in_sample"])
        practice = by.practice
        return found if practice is None else found.with_curves(LearningCurves.of_tensors(names, practice, tensors))

    def tensors(self) -> dict[str, Tensor]:
        """What a run directory keeps, beside the names and `by`."""
        assert self.population is not None
        spread = self.population.episode_spread  # None of runs of earlier versions, which did not estimate it
        return {
            "counts": torch.tensor(np.stack([self.steps, self.episodes])),
            "alone": torch.tensor(np.stack(self.alone)),
            "shares": torch.tensor(self.posterior),
            "population": torch.tensor(self.population.share),
            **({} if spread is None else {"episode_spread": torch.tensor(spread)}),
            "in_sample": torch.tensor(self.in_sample),
            **({} if self.curves is None else self.curves.tensors()),
        }

    @staticmethod
    def empty_tensors(demonstrators: int, by: RatedBy, points: int = len(INSIDE)) -> dict[str, Tensor]:
        """The shapes and types of what a run directory keeps, with shares at this many points."""
        shapes = {
            "alone": (3, demonstrators),
            "shares": (demonstrators, points if points == KEPT_POINTS else len(INSIDE)),
            "population": (len(INSIDE),),
            "episode_spread": (len(SPREADS),),
            "in_sample": (demonstrators,),
        }
        floats = {name: torch.empty(shape, dtype=torch.float64) for name, shape in shapes.items()}
        curves = {} if by.practice is None else LearningCurves.empty_tensors(demonstrators)
        return {"counts": torch.empty(2, demonstrators, dtype=torch.int64)} | floats | curves

    def with_curves(self, curves: LearningCurves) -> Ratings:
        """The same ratings with learning curves, on the same scale."""
        reference = float(self.best.expertise.mean()) if self.reference is None else self.reference
        by = replace(self.by, practice=curves.episodes)
        return replace(self, by=by, curves=replace(curves, reference=reference))

    def with_shares(self, shares: Array, by: RatedBy) -> Ratings:
        """The same ratings with other posterior distributions of expertise."""
        return replace(self, shares=shares, by=by, pooled=mean_and_interval(shares, by.confidence_level))

    def select(self, chosen: Array, names: tuple[str, ...]) -> Ratings:
        """The pooled ratings of some demonstrators or units by their numbers, under these names."""
        assert self.pooled is not None
        return replace(
            self,
            names=names,
            steps=self.steps[chosen],
            episodes=self.episodes[chosen],
            alone=Estimates(*(values[chosen] for values in self.alone)),
            pooled=Estimates(*(values[chosen] for values in self.pooled)),
            shares=self.posterior[chosen],
            parts={},
        )

    def renamed(self, names: Mapping[str, str]) -> Ratings:
        """The same ratings with other names."""
        curves, evidence = self.curves and self.curves.renamed(names), self.evidence and self.evidence.renamed(names)
        return replace(self, names=tuple(names[name] for name in self.names), curves=curves, evidence=evidence)

    @property
    def confidence_level(self) -> float:
        return self.by.confidence_level

    @property
    def best(self) -> Estimates:
        """The pooled estimates where there are any."""
        return self.alone if self.pooled is None else self.pooled

    @property
    def posterior(self) -> Array:
        """(demonstrator, point) the posterior distributions of expertise; refuses ratings without pooling."""
        if self.shares is None:
            raise SettingsError(
                "these ratings have no posterior distribution: rate with pooled=True", code="ratings-not-pooled"
            )
        return self.shares

    def __getitem__(self, name: str) -> Rating:
        who, best = self._index(name), self.best
        return Rating(float(best.expertise[who]), float(best.low[who]), float(best.high[who]))

    def by_demonstrator(self) -> dict[str, float]:
        """The expertise of each demonstrator, pooled where there are pooled estimates."""
        return dict(zip(self.names, self.best.expertise.tolist(), strict=True))

    @default_errors()
    def table(self, *, relative: bool = True, confidence_level: float | None = None) -> pa.Table:
        """The expertise of demonstrators with its interval and the interval of their rank, best first.

        `relative` divides expertise by its mean over demonstrators, which is what the data identify: all of it could be
        larger by one factor, with a less sharp policy. 1 is then the average. The metadata of the table name the scale.
        `in_sample` is the fit's own estimate on the same scale; an overfitted policy rates all demonstrators alike.
        Among more than 5,000 demonstrators, a rank is the quantile of a value. Where ratings are not reliable, every
        rank is possible.
        """
        level, metadata = self._scale(relative, confidence_level)
        own, low, high, rank_low, rank_high = self._places(level, relative=relative)
        columns: dict[str, Any] = {
            **{each: encodable(names) for each, names in (dict(self.parts) or {"demonstrator": self.names}).items()},
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
        return pa.table(columns).take(self.order).replace_schema_metadata(metadata)

    @cached_property
    def order(self) -> Array:
        """The numbers of demonstrators, best first by relative expertise: the order of tables, reports and rankings."""
        return np.argsort(-self._places(self.confidence_level, relative=True)[0], kind="stable")

    def _places(self, level: float, *, relative: bool) -> tuple[Array, ...]:
        """(demonstrator,) expertise, both ends of its interval, and both of the rank's, 1 for the best."""
        shares, count = self.posterior, len(self.names)
        if self._are_many:
            best = mean_and_interval(shares, level)
            below, points = cumulative(shares.mean(0)[None])[0], points_of(shares.shape[1])
            ranks = [1 + np.rint((count - 1) * (1 - np.interp(end, points, below))) for end in (best.high, best.low)]
            mean = best.expertise.mean() if self.reference is None else self.reference
            values = (each / (mean if relative else 1.0) for each in best)
            return *values, *(rank.astype(np.int64) for rank in ranks)
        drawn, own = self._draws, product(shares, INSIDE)
        if relative:
            drawn = drawn / (drawn.mean(1, keepdims=True) if self.reference is None else self.reference)
            own = drawn.mean(0)
        low, high = np.quantile(drawn, tails(level), axis=0)
        rank = np.argsort(np.argsort(-drawn, axis=1), axis=1) + 1
        rank_low, rank_high = np.quantile(rank, tails(level), axis=0, method="nearest").astype(np.int64)
        if self._is_unreliable:
            rank_low, rank_high = np.ones_like(rank_low), np.full_like(rank_high, count)
        return own, low, high, rank_low, rank_high

    @property
    def _are_many(self) -> bool:
        return len(self.names) > rules.MANY_DEMONSTRATORS

    @default_errors()
    def drift(self, *, relative: bool = True, confidence_level: float | None = None) -> pa.Table:
        """Whether demonstrators improve or tire from episode to episode, where the fit's expertise is `Drift`.

        `first` and `last` are expertise in the first and in the last of a demonstrator's own episodes, `change` is the
        difference, each with an interval; those who improve most come first. The `verdict` is "improves" or "tires"
        where the interval of the change excludes zero, both by all episodes and by the demonstrator's own, and
        otherwise "cannot be told". `table()` has the mean over all of a demonstrator's steps.
        """
        level, metadata = self._scale(relative, confidence_level)
        return self._curves.table(relative=relative, level=level).replace_schema_metadata(metadata)

    @default_errors()
    def curve(self, *, relative: bool = True, confidence_level: float | None = None) -> pa.Table:
        """Learning curves: expertise in each of a demonstrator's own episodes, or in some of very many, with intervals.

        `episode` counts a demonstrator's own episodes from 0 on. `relative` is as in `table()`.
        """
        level, metadata = self._scale(relative, confidence_level)
        return self._curves.curve(relative=relative, level=level).replace_schema_metadata(metadata)

    def _scale(self, relative: bool, confidence_level: float | None) -> tuple[float, dict[str, str]]:
        """The confidence level, and the metadata of a table."""
        level = self.confidence_level if confidence_level is None else checked_level(confidence_level)
        is_relative = true_or_false("relative", relative)
        scale = (
            "expertise divided by its mean over demonstrators" if is_relative else "expertise by the policy as it is"
        )
        return level, {"scale": scale, "confidence_level": str(level)}

    @property
    def _curves(self) -> LearningCurves:
        if self.curves is None:
            raise SettingsError(SAME_IN_ALL_EPISODES, code="no-learning-curves")
        return self.curves

    @default_errors()
    def standardised(self, *, confidence_level: float | None = None) -> pa.Table:
        """Expertise over the same states, best first, where labels of a skill column are rated.

        Demonstrators meet different states. Here each label counts by its share of all steps (direct standardisation).
        Where a demonstrator has no steps, the population is taken. `overlap` is the share of states in which a
        demonstrator has five steps or more: below one half, do not compare.
        """
        if not self.parts:
            raise SettingsError(
                "these ratings are not by label: rate with assess(data, by=COLUMN)", code="ratings-without-labels"
            )
        assert self.population is not None
        owners, labels = (np.array(column) for column in self.parts.values())
        share = {label: self.steps[labels == label].sum() / self.steps.sum() for label in np.unique(labels)}
        unknown = draws(self.population.share[None])[:, 0]
        names = list(dict.fromkeys(owners.tolist()))
        drawn, overlap = np.zeros((len(unknown), len(names))), np.zeros(len(names))
        for who, name in enumerate(names):
            for label, part in share.items():
                unit = np.flatnonzero((owners == name) & (labels == label))
                drawn[:, who] += part * (self._draws[:, unit[0]] if len(unit) else unknown)
                overlap[who] += part * bool(len(unit) and self.steps[unit[0]] >= _ENOUGH_STEPS)
        drawn = drawn / (drawn.mean(1, keepdims=True) if self.reference is None else self.reference)
        level, metadata = self._scale(True, confidence_level)
        low, high = np.quantile(drawn, tails(level), axis=0)
        columns = {"demonstrator": names, "expertise": drawn.mean(0), "low": low, "high": high, "overlap": overlap}
        order = np.argsort(-drawn.mean(0), kind="stable")
        return pa.table(columns).take(order).replace_schema_metadata(metadata)

    @default_errors()
    def probability_better(self, first: str, second: str) -> float:
        """The probability that one demonstrator's expertise is above another's, given all steps."""
        one, other = self._index(first), self._index(second)
        return float(above(self.posterior[[one]], self.posterior[[other]])[0, 0])

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
        return [group for group, _ in self._separated(checked_level(probability, "probability"))]

    def _separated(self, probability: float) -> list[tuple[tuple[str, ...], float]]:
        """Groups, best first, with the probability that the worst of each is better than the best after it."""
        if probability not in self._known_groups:
            order, least = boundaries(self.posterior, probability)
            ends = [] if self.not_identified else (np.flatnonzero(least >= probability) + 1).tolist()
            names = [self.names[who] for who in order]
            self._known_groups[probability] = [
                (tuple(names[first:end]), float(least[end - 1]) if end < len(names) else 1.0)
                for first, end in pairwise([0, *ends, len(names)])
            ]
        return self._known_groups[probability]

    @cached_property
    def _known_groups(self) -> dict[float, list[tuple[tuple[str, ...], float]]]:
        return {}

    @default_errors()
    def sentence(self, probability: float = 0.95) -> str:
        """Which demonstrators can be told apart, in words: the two best groups of several, or how many are not average.

        It also says where duration and speed explain most of the order, and what continuous actions alone cannot tell.
        """
        order = self._order_in_words(checked_level(probability, "probability"))
        if not self.by.orders_by_skill and len(self._separated(probability)) > 1:
            order += "; only outcomes tell whether that is skill"
        return f"{order}; but {self.by.explained}" if self.by.explained else order

    def _order_in_words(self, probability: float) -> str:
        if self._are_many and not self.not_identified:
            return self._compared_with_mean(probability)
        groups = self._separated(probability)
        if len(self.names) == 1:
            return "there is one demonstrator"
        if len(groups) > 1:
            return self._best_groups(groups)
        if why := self.not_identified:
            return f"the order of the {len(self.names)} demonstrators is not identified: {why}"
        return f"the {len(self.names)} demonstrators cannot be told apart"

    def _best_groups(self, groups: list[tuple[tuple[str, ...], float]]) -> str:
        parts: list[str] = []
        named = groups[:-1][:2]
        for group, least in named:
            who, others = in_words(group), "those below" if parts else "all others"
            if len(group) > 5:
                who = f"the {'next' if parts else 'best'} {len(group)}"
            verb = "is better" if len(group) == 1 else "are better"
            if not self.by.orders_by_skill:
                verb = f"{'follows' if len(group) == 1 else 'follow'} the common policy more closely"
            parts.append(f"{who} {verb} than {others} (probability {'above .99' if least > 0.99 else f'{least:.2f}'})")
        rest = len(self.names) - sum(len(group) for group, _ in named)
        if len(groups) > 3:
            parts.append(f"the other {rest} fall into {len(groups) - 2} groups")
        elif rest > 1:
            parts.append(f"the other {rest} cannot be told apart")
        return "; ".join(parts)

    def _compared_with_mean(self, probability: float) -> str:
        """How many demonstrators are above the mean over demonstrators, and how many below it."""
        shares = self.posterior
        points = points_of(shares.shape[1])
        own = shares[:, points > product(shares, points).mean()].sum(1)
        high, low = int((own >= probability).sum()), int((own <= 1 - probability).sum())
        who = f"{high:,} of {len(shares):,} demonstrators are above the mean and {low:,} below it"
        return f"{who}, each with probability {probability:.2f} or more"

    @default_errors()
    def episodes_to_settle(self, first: str, second: str, probability: float = 0.95) -> float:
        """The number of further episodes of each that would tell two demonstrators apart with this probability.

        An estimate: the variance of each is inversely proportional to their episodes. Infinite where both are
        estimated alike.
        """
        checked_level(probability, "probability")
        chosen = [self._index(first), self._index(second)]
        shares = self.posterior[chosen]
        points = points_of(shares.shape[1])
        mean = product(shares, points)
        variance = product(shares, points**2) - mean**2
        distance, wanted = abs(mean[0] - mean[1]), NormalDist().inv_cdf(probability)
        times = wanted**2 * variance.sum() / max(distance, 1e-12) ** 2
        more = (times - 1) * self.episodes[chosen].max()
        return float(max(0, np.ceil(more))) if more < 1e9 else np.inf

    @cached_property
    def _draws(self) -> Array:
        return draws(self.posterior)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in reversed(list(enumerate(self.names)))}

    def _index(self, name: str) -> int:
        if not isinstance(name, str) or name not in self._numbers:
            raise UnknownDemonstratorError(
                f"demonstrator {brief(name)} was not rated{did_you_mean(name, self.names)}: the names are "
                f"{listed(self.names)}",
                code="demonstrator-unknown",
            )
        return self._numbers[name]

    def __str__(self) -> str:
        lines = zip(self.names, *self.best, self.steps, strict=True)
        return "\n".join(
            f"{name}: {expertise:.3f} ({low:.3f} to {high:.3f}, {steps:,} steps)"
            for name, expertise, low, high, steps in sorted(lines, key=lambda line: -line[1])
        )


_PAIRS = 50_000_000  # compared to tell one group from all below; a boundary that takes more is not looked for
_ROWS = 4096


def boundaries(shares: Array, probability: float) -> tuple[Array, Array]:
    """Demonstrators by falling expertise, and after each but the last the least probability that one before is better.

    It is never above the probability that neighbours in this order have, so that all pairs are compared only where
    that reaches `probability`; elsewhere the neighbours' is given, and 0 where all would be too many pairs.
    """
    order = np.argsort(-product(shares, points_of(shares.shape[1])), kind="stable")
    ordered = shares[order]
    before, after = ordered[:-1], ordered[1:]
    parts = (slice(first, first + _ROWS) for first in range(0, len(before), _ROWS))
    neighbours = [(before[part] * cumulative(after[part])).sum(1) for part in parts]
    least = np.concatenate([np.empty(0), *neighbours])
    for place in np.flatnonzero(least >= probability):
        better, worse = ordered[: place + 1], ordered[place + 1 :]
        if min(len(better), len(worse)) * len(ordered) > _PAIRS:
            least[place] = 0.0
            continue
        rows = [slice(first, first + _ROWS) for first in range(0, max(len(better), len(worse)), _ROWS)]
        least[place] = min(above(better[one], worse[other]).min(initial=1.0) for one in rows for other in rows)
    return order, least


def places_to_show(uncertainty: Array, *, ends: int, between: int) -> list[int]:
    """Places in a ranking: the first and the last, `ends` of each, and the most uncertain between them; or all."""
    count = len(uncertainty)
    if count <= 2 * ends + between:
        return list(range(count))
    widest = np.argsort(-uncertainty[ends : count - ends], kind="stable")[:between] + ends
    return [*range(ends), *sorted(widest.tolist()), *range(count - ends, count)]


# --- estimation

_RESAMPLES = 2_000
OWNERS_AT_ONCE = 4_000
"""Whose likelihoods are in memory together where there are very many demonstrators."""


def estimate(
    likelihood: StepLikelihood,
    *,
    pooled: bool | Population = True,
    level: float = 0.95,
    units: Units | None = None,
) -> Ratings:
    """Rate demonstrators, or `units` in place of them.

    With very many demonstrators, 5,000 evenly spaced ones make the population; all are rated by it, in parts.
    """
    data = likelihood.data
    if (data.steps_each == 0).any():
        name = data.names[int((data.steps_each == 0).argmax())]
        raise SettingsError(
            f"demonstrator {name!r} has no steps: leave that name out with demonstrations.by(...)",
            code="demonstrator-without-steps",
        )
    names, owner = (data.names, data.demonstrator) if units is None else (units.names, units.of_step)
    count = len(names)
    many = count > rules.MANY_DEMONSTRATORS and (units is None or likelihood.owner_curves is not None)
    if many and not data.discrete and likelihood.owner_curves is None:
        likelihood = likelihood.tabulated(units)
    of_some = likelihood.by_owner(units)
    population = None if isinstance(pooled, bool) else pooled
    if many and pooled is True:
        population = of_some(some_of(count)).posterior(None)[1]
    parts = np.split(np.arange(count), range(OWNERS_AT_ONCE, count, OWNERS_AT_ONCE)) if many else [None]
    alone, shares = [], []
    for part in parts:
        own = of_some(part)
        alone.append(likeliest(own.curves, level))
        if pooled is not False:
            share, population = own.posterior(population)
            shares.append((mean_and_interval(share, level), thinned(share) if many else share))
    cells = np.unique(owner * data.episode_count + data.episode)
    ratings = Ratings(
        names,
        np.bincount(owner, minlength=count),
        np.bincount(cells // data.episode_count, minlength=count),
        RatedBy(level, likelihood.temperature, likelihood.dispersion, **likelihood.rated),
        Estimates(*map(np.concatenate, zip(*alone, strict=True))),
        parts={} if units is None else units.columns,
    )
    if pooled is False:
        return ratings
    together, kept = zip(*shares, strict=True)
    estimates = Estimates(*map(np.concatenate, zip(*together, strict=True)))
    return replace(ratings, pooled=estimates, population=population, shares=np.concatenate(kept))


def some_of(count: int) -> Array:
    """The numbers of 5,000 of `count` demonstrators, or fewer, evenly spaced."""
    return np.arange(count)[:: -(-count // rules.MANY_DEMONSTRATORS)]


def work_of(
    likelihood: StepLikelihood,
    units: Units | None,
    practice: int | None,
    progress: Callable[[int, int], object] | None,
    beforehand: int = 0,
) -> Work:
    """The progress of a rating, in which `beforehand` further likelihoods are computed first."""
    data = likelihood.data
    points = len(GRID)
    if units is None:
        points += len(points_for(data.episode_count)) + (0 if practice is None else LEARNING_POINTS)
        points = TABULATED_POINTS if data.has_many_demonstrators and not data.discrete else points
    return Work(progress, len(data), beforehand + points * len(data))


def with_learning_curves(
    ratings: Ratings, likelihood: StepLikelihood, episodes: int | None, known: LearningCurves | None = None
) -> Ratings:
    """The ratings with learning curves over `episodes`; unchanged for None, for units, and for very many demonstrators.

    Demonstrators are compared with those of curves that are `known`.
    """
    if episodes is None or ratings.parts or likelihood.data.has_many_demonstrators:
        return ratings
    return ratings.with_curves(learning_curves(likelihood, episodes=episodes, population=known and known.population))


def resampled(likelihood: StepLikelihood, level: float) -> Estimates:
    """The expertise of greatest likelihood of demonstrators, with intervals from resampled episodes.

    The interval is from 0 to 1 for a single episode.
    """
    data = likelihood.data
    by_episode, who = likelihood.summed(data.episode, data.episode_count), data.episode_demonstrator
    found = np.zeros((len(data.names), by_episode.shape[1]))
    np.add.at(found, who, by_episode)
    expertise = likeliest(found, level).expertise
    low, high = np.zeros_like(expertise), np.ones_like(expertise)
    for own in range(len(low)):
        each = by_episode[who == own]
        if (count := len(each)) > 1:
            drawn = numpy_stream(0, "rating", count).multinomial(count, np.full(count, 1 / count), size=_RESAMPLES)
            low[own], high[own] = np.quantile(peak(product(drawn.astype(np.float64), each)), tails(level))
    return Estimates(expertise, low, high)
