"""People: demonstrators in order of expertise, and their labels in a report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Self, final

from ileed.errors import SettingsError
from ileed.fitted import Fitted
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
        left_out = max(0, len(people) - 2 * SHOWN)
        return cls([*people[:SHOWN], *people[SHOWN + left_out :]], left_out)

    @property
    def labels(self) -> list[str]:
        return self.with_gap([person.label for person in self.persons], f"… {self.left_out:,} others …")

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
