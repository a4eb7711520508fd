"""Demonstrators in order of expertise, with intervals where there are any, and their labels in a report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, final

import numpy as np

from ileed.data import Demonstrations
from ileed.errors import SettingsError, brief, is_finite, printable
from ileed.methods import Fitted
from ileed.rating.ratings import places_to_show

SHOWN = 25  # demonstrators shown at either end of the ranking
UNCERTAIN = 10  # demonstrators shown between the ends, those with the widest intervals


class Rated(NamedTuple):
    """Relative expertise and rank with their intervals, and the group of those who cannot be distinguished."""

    expertise: float
    low: float
    high: float
    rank_low: int
    rank_high: int
    group: int


@final
@dataclass(frozen=True)
class Person:
    """A demonstrator: a unique printable label, and expertise with its 10% to 90% range over their own steps."""

    index: int
    rank: int
    label: str
    expertise: float
    low: float
    high: float
    known: float | None
    rated: Rated | None = None
    steps: int | None = None
    episodes: int | None = None

    @property
    def is_ranked(self) -> bool:
        return not math.isnan(self.expertise)

    @property
    def estimate(self) -> tuple[float, float, float]:
        """Relative expertise with its interval; without ratings the fit's own expertise with its range over steps."""
        return (self.expertise, self.low, self.high) if self.rated is None else self.rated[:3]

    @property
    def uncertainty(self) -> float:
        """The width of the interval, or of the range over steps."""
        _, low, high = self.estimate
        return high - low if math.isfinite(high - low) else -1.0


def shown_of(people: Sequence[Person]) -> list[int]:
    """Places of the demonstrators to show: all, or the first, the last and the most uncertain between them."""
    return places_to_show(np.array([person.uncertainty for person in people]), ends=SHOWN, between=UNCERTAIN)


def people_of(fitted: Fitted, truth: Mapping[str, float], data: Demonstrations | None = None) -> list[Person]:
    """All demonstrators, best first by their ratings, or by the fit's own estimate; those without one come last."""
    names, summary = fitted.expertise.names, fitted.expertise.summary
    known_names = set(names)
    for name, value in truth.items():
        if name not in known_names:
            raise SettingsError(f"truth names {name!r}, who is not in this run: it has {names}")
        if not is_finite(value) or not 0 <= value <= 1:
            raise SettingsError(f"the known skill of {name!r} is {brief(value)}: it must be from 0 to 1")
    labels, expertise = labels_of(names), summary.by_demonstrator.tolist()
    low, high = summary.quantiles[:, 2].tolist(), summary.quantiles[:, -3].tolist()  # 10 and 90 % of 21 quantiles
    found = _ratings(fitted)
    counts = _counts(fitted, found, data)
    values = [found[index]["expertise"] if index in found else value for index, value in enumerate(expertise)]
    order = sorted(range(len(names)), key=lambda index: (math.isnan(expertise[index]), -values[index]))
    return [
        Person(
            index,
            rank,
            labels[index],
            expertise[index],
            low[index],
            high[index],
            truth.get(names[index]),
            Rated(**{name: found[index][name] for name in Rated._fields}) if index in found else None,
            *counts.get(index, (None, None)),
        )
        for rank, index in enumerate(order, start=1)
    ]


def _ratings(fitted: Fitted) -> dict[int, dict[str, Any]]:
    """The row of each demonstrator in the table of ratings, with the number of the group; by index."""
    ratings = fitted.expertise.ratings
    if not fitted.estimates_expertise or ratings is None:
        return {}
    place = {name: index for index, name in enumerate(fitted.expertise.names)}
    group = {name: number for number, names in enumerate(ratings.groups(), start=1) for name in names}
    rows = zip((ratings.names[k] for k in ratings.order), ratings.table().to_pylist(), strict=True)
    return {place[name]: row | {"group": group[name]} for name, row in rows if math.isfinite(row["expertise"])}


def _counts(
    fitted: Fitted, found: Mapping[int, Mapping[str, Any]], data: Demonstrations | None
) -> dict[int, tuple[int, int]]:
    """Steps and episodes of each demonstrator, as far as the run or the data have them."""
    if data is None:
        return {index: (row["steps"], row["episodes"]) for index, row in found.items()}
    counts = (data.steps_each.tolist(), np.bincount(data.episode_demonstrator, minlength=len(data.names)).tolist())
    of = dict(zip(data.names, zip(*counts, strict=True), strict=True))
    return {index: of[name] for index, name in enumerate(fitted.expertise.names) if name in of}


def labels_of(names: Sequence[str]) -> list[str]:
    """Unique labels for names: unprintable characters are replaced, and labels that are then equal are numbered."""
    labels: dict[str, None] = {}
    for name in names:
        label = printable(name).strip()[:200] or "(no name)"
        candidates = chain([label], (f"{label} ({k})" for k in range(2, len(names) + 2)))
        labels[next(each for each in candidates if each not in labels)] = None
    return list(labels)
