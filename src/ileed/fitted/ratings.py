"""Ratings: everybody's expertise with intervals, in what order people are, and who cannot be told apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from statistics import NormalDist
from typing import Any, NamedTuple, final

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from ileed.checking import number, whole_number
from ileed.demonstrations import Array
from ileed.deprecation import renamed_property
from ileed.errors import SettingsError
from ileed.fitted.posterior import INSIDE, Population, draws, mean_and_interval, tails

_RELATIVE = "expertise divided by its mean over people"
_ENOUGH_STEPS = 5  # in a kind of state, to be compared there
_ABSOLUTE = "expertise by the policy as it is"


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


@final
@dataclass(frozen=True)
class RatedBy:
    """How people were rated."""

    confidence_level: float = 0.95
    temperature: float = 1.0
    """The policy was taken to the power 1 / temperature."""
    dispersion: float = 1.0
    """How much more episodes of one person differ than independent steps would."""
    folds: int = 0
    """Into how many folds episodes were dealt, each rated by a policy that has not seen it; 0 for a policy as given."""
    levels: tuple[float, ...] = ()
    """The least and the greatest mean expertise that explain the held-out steps about equally well, each with a policy
    of its own temperature: within 1.92 nats of the likeliest, where a 95 % interval of one number ends."""
    free_scales: int | None = None
    """How many scales of expertise the likelihood leaves free, for any policy; None where the embedding is learned."""

    @property
    def identification(self) -> str:
        """What the data fix, in one sentence; empty where it was not examined."""
        if not self.levels:
            return ""
        low, high = self.levels
        if high <= 1.1 * low:
            return f"the held-out steps fix the level of expertise too, by a sharp policy: {low:.2f} on average"
        if self.free_scales == 0:
            return f"the known skills fix the level of expertise for any policy: {low:.2f} to {high:.2f} on average"
        least = f"mean expertise from {low:.2f} to {high:.2f} explains the held-out steps about equally well"
        each = f" in each of {self.free_scales} skills" if (self.free_scales or 1) > 1 else ""
        return f"the data fix ratios of expertise and not its level{each}: {least}"

    def __post_init__(self) -> None:
        checked_level(self.confidence_level)
        if len(self.levels) not in (0, 2) or not all(0 <= level <= 1 for level in self.levels):
            raise SettingsError(f"levels are {self.levels}: they are two numbers from 0 to 1, or none")
        for name in ("temperature", "dispersion"):
            number(name, getattr(self, name), within=lambda value: value > 0, rule="it must be a number above zero")
        whole_number("folds", self.folds, least=0, rule="it is a whole number, zero or more")
        if self.free_scales is not None:
            whole_number("free_scales", self.free_scales, least=0, rule="it is a whole number, zero or more, or None")


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

    @classmethod
    def of_tensors(cls, names: tuple[str, ...], by: RatedBy, tensors: Mapping[str, Tensor]) -> Ratings:
        """Ratings as a run directory keeps them."""
        values = {name: tensor.numpy() for name, tensor in tensors.items()}
        steps, episodes = values["counts"]
        pooled = Estimates(*mean_and_interval(values["shares"], by.confidence_level))
        alone, population = Estimates(*values["alone"]), Population(values["population"])
        return cls(
            names, steps, episodes, by, alone, pooled, population, values["shares"], in_sample=values["in_sample"]
        )

    def tensors(self) -> dict[str, Tensor]:
        """What a run directory keeps, beside the names and how people were rated."""
        assert self.population is not None
        return {
            "counts": torch.tensor(np.stack([self.steps, self.episodes])),
            "alone": torch.tensor(np.stack([*vars(self.alone).values()])),
            "shares": torch.tensor(self._posterior),
            "population": torch.tensor(self.population.share),
            "in_sample": torch.tensor(self.in_sample),
        }

    @staticmethod
    def empty_tensors(people: int) -> dict[str, Tensor]:
        """The shapes and types of what a run directory keeps of so many people."""
        shapes = {
            "alone": (3, people),
            "shares": (people, len(INSIDE)),
            "population": (len(INSIDE),),
            "in_sample": (people,),
        }
        floats = {name: torch.empty(shape, dtype=torch.float64) for name, shape in shapes.items()}
        return {"counts": torch.empty(2, people, dtype=torch.int64)} | floats

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

    def table(self, *, relative: bool = True, confidence_level: float | None = None) -> pa.Table:
        """Everybody's expertise with its interval and the interval of their rank, best first.

        `relative` divides expertise by its mean over people, which is what the data fix: everybody's could be larger by
        one factor, with a policy that is less sharp. 1 is then the average. The metadata of the table name the scale.
        `in_sample` is the fit's own estimate on the same scale; a policy that remembers what was done finds all alike.
        """
        level = self.confidence_level if confidence_level is None else checked_level(confidence_level)
        drawn, own = self._draws, self._posterior @ INSIDE
        if relative:
            reference = drawn.mean(1, keepdims=True) if self.reference is None else self.reference
            drawn = drawn / reference
            own = drawn.mean(0)
        low, high = np.quantile(drawn, tails(level), axis=0)
        rank = np.argsort(np.argsort(-drawn, axis=1), axis=1) + 1
        rank_low, rank_high = np.quantile(rank, tails(level), axis=0, method="nearest").astype(np.int64)
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
        order = np.argsort(-own, kind="stable")
        told = {"scale": _RELATIVE if relative else _ABSOLUTE, "confidence_level": str(level)}
        return pa.table(columns).take(order).replace_schema_metadata(told)

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
        level = self.confidence_level if confidence_level is None else checked_level(confidence_level)
        low, high = np.quantile(drawn, tails(level), axis=0)
        columns = {"demonstrator": names, "expertise": drawn.mean(0), "low": low, "high": high, "overlap": overlap}
        told = {"scale": _RELATIVE, "confidence_level": str(level)}
        order = np.argsort(-drawn.mean(0), kind="stable")
        return pa.table(columns).take(order).replace_schema_metadata(told)

    def probability_better(self, first: str, second: str) -> float:
        """The probability that one person's expertise is above another's, given everybody's steps."""
        return float(self._above[self._index(first), self._index(second)])

    def groups(self, probability: float = 0.95) -> list[tuple[str, ...]]:
        """People in groups, best first: everybody is better than all of the next groups with at least this probability.

        Two people of one group may still differ: nobody between them separates the group in two.
        """
        order, apart = self._boundaries
        ends = [*(np.flatnonzero(apart >= probability) + 1), len(order)]
        return [tuple(self.names[person] for person in order[first:end]) for first, end in pairwise([0, *ends])]

    def sentence(self, probability: float = 0.95) -> str:
        """Who can be told apart, in words; the two best groups of several."""
        groups = self.groups(probability)
        if len(self.names) == 1:
            return "there is one demonstrator"
        if len(groups) == 1:
            return f"the {len(self.names)} demonstrators cannot be told apart"
        parts: list[str] = []
        place = 0
        for group in groups[:-1][:2]:
            place += len(group)
            least = self._boundaries[1][place - 1]
            sure = "above .99" if least > 0.99 else f"{least:.2f}"
            who = " and ".join(filter(None, (", ".join(group[:-1]), group[-1])))
            if len(group) > 5:
                who = f"the best {len(group)}" if not parts else f"the next {len(group)}"
            whom = "those below" if parts else "all others"
            parts.append(f"{who} {'is' if len(group) == 1 else 'are'} better than {whom} (probability {sure})")
        if len(groups) > 3:
            parts.append(f"the other {len(self.names) - place} fall into {len(groups) - 2} groups")
        elif len(groups[-1]) > 1:
            parts.append(f"the other {len(groups[-1])} cannot be told apart")
        return "; ".join(parts)

    @cached_property
    def _above(self) -> Array:
        """(person, person) the probability that one's expertise is above the other's."""
        shares = self._posterior
        return shares @ (np.cumsum(shares, axis=1) - shares / 2).T

    @cached_property
    def _boundaries(self) -> tuple[Array, Array]:
        """People by falling expertise, and after each but the last the least probability that one before is better."""
        order = np.argsort(-(self._posterior @ INSIDE), kind="stable")
        least = np.minimum.accumulate(self._above[np.ix_(order, order)], axis=0)
        least = np.minimum.accumulate(least[:, ::-1], axis=1)[:, ::-1]
        return order, np.diagonal(least, offset=1)

    def episodes_to_settle(self, first: str, second: str, probability: float = 0.95) -> float:
        """How many more episodes of each would tell two people apart with this probability, if they go on as before.

        An estimate: the variance of each falls as one by their episodes. Infinite where both are estimated alike.
        """
        shares = self._posterior
        people = [self._index(first), self._index(second)]
        mean = shares[people] @ INSIDE
        variance = shares[people] @ INSIDE**2 - mean**2
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

    def _index(self, name: str) -> int:
        if name not in self.names:
            raise KeyError(f"nobody named {name!r} was rated")
        return self.names.index(name)

    def renamed(self, names: Mapping[str, str]) -> Ratings:
        """The same ratings with other names."""
        return replace(self, names=tuple(names[name] for name in self.names))

    def __str__(self) -> str:
        best = self.best
        lines = zip(self.names, best.expertise, best.low, best.high, self.steps, strict=True)
        return "\n".join(
            f"{name}: {expertise:.3f} ({low:.3f} to {high:.3f}, {steps:,} steps)"
            for name, expertise, low, high, steps in sorted(lines, key=lambda line: -line[1])
        )


def checked_level(confidence_level: float) -> float:
    """A confidence level, or a sentence about what is wrong with it."""
    rule = "it is a probability between 0 and 1, such as 0.95"
    return number("confidence_level", confidence_level, within=lambda share: 0 < share < 1, rule=rule)
