"""People: demonstrators in order of expertise, under names that a page can hold, and who of them stands out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self, final

import numpy as np

from ileed.errors import SettingsError
from ileed.fitted import Fitted
from ileed.wording import printable

SHOWN = 25  # demonstrators shown from either end where there are more than twice as many


@final
@dataclass(frozen=True)
class Person:
    """A demonstrator: a printable name that nobody shares, and the expertise with its 10 to 90 % range over states."""

    index: int
    rank: int
    label: str
    expertise: float
    low: float
    high: float
    known: float | None


@final
@dataclass(frozen=True)
class Shown:
    """Those to show of everybody: the first and the last, and how many are left out between them."""

    first: Sequence[Person]
    last: Sequence[Person]
    left_out: int

    @classmethod
    def of(cls, people: Sequence[Person]) -> Self:
        if len(people) <= 2 * SHOWN:
            return cls(people, [], 0)
        return cls(people[:SHOWN], people[-SHOWN:], len(people) - 2 * SHOWN)

    @property
    def persons(self) -> list[Person]:
        return [*self.first, *self.last]

    @property
    def gap(self) -> list[str]:
        """What stands between the first and the last, if anything."""
        return [f"… {self.left_out:,} others …"] if self.left_out else []

    @property
    def labels(self) -> list[str]:
        return [*(person.label for person in self.first), *self.gap, *(person.label for person in self.last)]


def people_of(fitted: Fitted, truth: Mapping[str, float]) -> list[Person]:
    """Everybody, best first; those of whom nothing is known stand last."""
    names, summary = fitted.expertise.names, fitted.expertise.summary
    for name, value in truth.items():
        if name not in names:
            raise SettingsError(f"truth names {name!r}, whom this run does not know: it has {names}")
        if not 0 <= value <= 1:
            raise SettingsError(f"the known skill of {name!r} is {value}: skill goes from 0 to 1")
    labels, expertise = labels_of(names), summary.by_demonstrator.tolist()
    low, high = summary.quantiles[:, 2].tolist(), summary.quantiles[:, -3].tolist()  # of 21, which lie 5 % apart
    order = sorted(range(len(names)), key=lambda index: (math.isnan(expertise[index]), -expertise[index]))
    return [
        Person(index, rank, labels[index], expertise[index], low[index], high[index], truth.get(names[index]))
        for rank, index in enumerate(order, start=1)
    ]


def labels_of(names: Sequence[str]) -> list[str]:
    """Names as a page can hold them: what cannot be printed is replaced, and what then looks alike is numbered."""
    labels: dict[str, None] = {}
    for name in names:
        printed = label = printable(name).strip()[:200] or "(no name)"
        alike = 1
        while label in labels:
            alike += 1
            label = f"{printed} ({alike})"
        labels[label] = None
    return list(labels)


def verdict(people: Sequence[Person]) -> str:
    """Who stands out, or how expertise falls from the best to the worst."""
    seen = [person for person in people if not math.isnan(person.expertise)]
    if len(seen) < 2 or seen[0].expertise <= 0:
        return f"There is data of {demonstrators(len(seen))} only, so there is nobody to compare with."
    relative = [person.expertise / seen[0].expertise for person in seen]
    if relative[-1] > 0.9:
        return f"All {number(len(seen))} demonstrators follow the learned policy about equally closely."
    gaps = [before - after for before, after in pairwise(relative)]
    above = gaps.index(max(gaps)) + 1
    if max(gaps) < 0.3:
        return (
            f"Expertise falls step by step from {seen[0].label}, who follows the learned policy most closely, "
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
    """A count as it stands in a sentence: in words up to twelve."""
    words = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
    return words[count] if count < len(words) else f"{count:,}"


def demonstrators(count: int) -> str:
    """So many demonstrators, in words."""
    return f"{number(count)} demonstrator{'' if count == 1 else 's'}"
