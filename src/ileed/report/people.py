"""People: demonstrators in order of expertise, their labels in a report, and the verdict on them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Self, final

import numpy as np

from ileed.errors import SettingsError
from ileed.policy import Fitted
from ileed.wording import printable

SHOWN = 25  # of more than twice as many demonstrators, the first and the last so many are shown


@final
@dataclass(frozen=True)
class Person:
    """A demonstrator: a unique printable label, the mean expertise and its 10 to 90 % range over steps."""

    index: int
    rank: int
    label: str
    expertise: float
    low: float
    high: float
    known: float | None

    @property
    def is_ranked(self) -> bool:
        return not math.isnan(self.expertise)


@final
@dataclass(frozen=True)
class Shown:
    """The people to show, best first; where some are left out, they belong after the first `SHOWN`."""

    persons: Sequence[Person]
    left_out: int

    @classmethod
    def of(cls, people: Sequence[Person]) -> Self:
        if len(people) <= 2 * SHOWN:
            return cls(people, 0)
        return cls([*people[:SHOWN], *people[-SHOWN:]], len(people) - 2 * SHOWN)

    @property
    def labels(self) -> list[str]:
        labels = [person.label for person in self.persons]
        return self.with_gap(labels, f"… {self.left_out:,} others …")

    def with_gap(self, items: list[str], gap: str) -> list[str]:
        """One item for each person, and `gap` where people are left out."""
        return [*items[:SHOWN], gap, *items[SHOWN:]] if self.left_out else items


def people_of(fitted: Fitted, truth: Mapping[str, float]) -> list[Person]:
    """All demonstrators, best first; those without an estimate come last."""
    names, summary = fitted.expertise.names, fitted.expertise.summary
    for name, value in truth.items():
        if name not in names:
            raise SettingsError(f"truth names {name!r}, who is not in this run: it has {names}")
        if not 0 <= value <= 1:
            raise SettingsError(f"the known skill of {name!r} is {value}: it must be from 0 to 1")
    labels, expertise = labels_of(names), summary.by_demonstrator.tolist()
    low, high = summary.quantiles[:, 2].tolist(), summary.quantiles[:, -3].tolist()  # 10 and 90 % of 21 quantiles
    order = sorted(range(len(names)), key=lambda index: (math.isnan(expertise[index]), -expertise[index]))
    return [
        Person(index, rank, labels[index], expertise[index], low[index], high[index], truth.get(names[index]))
        for rank, index in enumerate(order, start=1)
    ]


def labels_of(names: Sequence[str]) -> list[str]:
    """Unique labels for names: unprintable characters are replaced, and labels that are then equal are numbered."""
    labels: dict[str, None] = {}
    for name in names:
        label = printable(name).strip()[:200] or "(no name)"
        candidates = chain([label], (f"{label} ({k})" for k in range(2, len(names) + 2)))
        labels[next(each for each in candidates if each not in labels)] = None
    return list(labels)


def verdict(people: Sequence[Person]) -> str:
    """Who differs most from the others, or how expertise decreases from the best to the worst."""
    seen = [person for person in people if person.is_ranked]
    if len(seen) < 2 or seen[0].expertise <= 0:
        return f"The data have {demonstrators(len(seen))} only, so there is no comparison."
    relative = [person.expertise / seen[0].expertise for person in seen]
    if relative[-1] > 0.9:
        return f"All {number(len(seen))} demonstrators follow the learned policy about equally closely."
    gaps = [before - after for before, after in pairwise(relative)]
    above = gaps.index(max(gaps)) + 1
    if max(gaps) < 0.3:
        return (
            f"Expertise decreases gradually from {seen[0].label}, who follows the learned policy most closely, "
            f"to {seen[-1].label}, whose expertise is {relative[-1] * 100:.0f} % of that."
        )
    far = "far " if np.mean(relative[:above]) >= 2 * np.mean(relative[above:]) else ""
    few, others, how = seen[:above], seen[above:], "more"
    if len(few) > len(others):
        few, others, how = others, few, "less"
    *before, last = (person.label for person in few)
    who = f"{', '.join(before)} and {last}" if before else last
    if len(few) > 3:
        who = f"{number(len(few)).capitalize()} of the {number(len(seen))} demonstrators"
    follow = "follows" if len(few) == 1 else "follow"
    rest = others[0].label if len(others) == 1 else f"the {number(len(others))} others"
    return f"{who} {follow} the learned policy {far}{how} closely than {rest}."


def number(count: int) -> str:
    """A count for a sentence: in words up to twelve."""
    words = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
    return words[count] if count < len(words) else f"{count:,}"


def demonstrators(count: int) -> str:
    """A number of demonstrators for a sentence."""
    return f"{number(count)} demonstrator{'' if count == 1 else 's'}"
