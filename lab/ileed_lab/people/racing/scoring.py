"""What is compared on racing laps: expertise by the library, and other scores of data quality."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, final

import numpy as np

from ileed import Demonstrations, Fitted, Ileed, curate
from ileed.data import Array
from ileed_lab.people.racing.laps import SEGMENTS, full_throttle, lap_times
from ileed_lab.quality import AbstractQuality
from ileed_lab.records import Measured

__all__ = ["ExpertiseLearner", "FullThrottle", "LapScores", "QualityLearner", "segment_numbers"]


@final
@dataclass(frozen=True, eq=False)
class LapScores:
    """Scores of drivers, laps, and drivers in segments; higher is better."""

    laps: Array
    """(lap,)"""
    drivers: Array
    """(driver,)"""
    segments: Array
    """(driver, segment)"""
    score_others: Callable[[Demonstrations], Array]
    """(lap,) scores of laps by a driver who was not among the demonstrators."""
    seconds: float
    """Of the scores of drivers alone."""
    intervals: Array | None = None
    """(2, driver) the ends of the interval of each driver's score, where the method states one."""
    remarks: Measured = field(default_factory=dict)
    """What else the method says of the drivers, such as the sentence at the top of a report."""


@final
@dataclass(frozen=True)
class FullThrottle(AbstractQuality):
    """The share of steps at full throttle: an index that knows the task."""

    def scores(self, data: Demonstrations, *, seed: int, unit: Array | None = None) -> Array:
        unit = data.episode if unit is None else unit
        return np.asarray(np.bincount(unit, full_throttle(data)) / np.bincount(unit))


@final
@dataclass(frozen=True)
class QualityLearner:
    """A score of data quality; a driver's is the mean over laps, and a segment of a lap is scored as a lap is.

    Laps of others are scored as a data set of their own.
    """

    quality: AbstractQuality
    devices: ClassVar[tuple[str, ...]] = ("cpu",)

    def fit(self, demonstrations: Demonstrations, *, seed: int, device: str = "auto") -> Any:
        data, began = demonstrations, time.monotonic()
        own = self.quality.scores(data, seed=seed)
        seconds = time.monotonic() - began
        segment = segment_numbers(data)
        starts = np.diff(data.episode * len(SEGMENTS) + segment, prepend=-1) != 0
        pieces = self.quality.scores(data, seed=seed, unit=np.cumsum(starts) - 1)
        drivers = len(data.names)
        cell = data.demonstrator[starts] * len(SEGMENTS) + segment[starts]
        sums, counts = (np.bincount(cell, each, drivers * len(SEGMENTS)) for each in (pieces, np.ones_like(pieces)))
        return LapScores(
            laps=own,
            drivers=np.bincount(data.episode_demonstrator, own) / np.bincount(data.episode_demonstrator),
            segments=(sums / counts).reshape(drivers, -1),
            score_others=partial(self.quality.scores, seed=seed),
            seconds=seconds,
        )


@final
@dataclass(frozen=True)
class ExpertiseLearner:
    """Expertise by a method of the library: of drivers by `ranking()`, of laps by `curate`, by segment by `assess`."""

    method: Ileed
    is_told_times: bool = False
    """Whether the fit takes the lap times as `outcome`; the demonstrations need rewards then."""

    def fit(self, demonstrations: Demonstrations, *, seed: int, device: str = "auto") -> Any:
        data, began = demonstrations, time.monotonic()
        outcome: Mapping[str, Any] = {"outcome": lap_times(data), "better": "lower"} if self.is_told_times else {}
        fitted = self.method.fit(data, seed=seed, device=device, **outcome)
        seconds = time.monotonic() - began
        by_name = dict(fitted.expertise.ranking())
        return LapScores(
            laps=lap_expertise(fitted, data),
            drivers=np.array([by_name[name] for name in data.names]),
            segments=segment_expertise(fitted, data),
            score_others=partial(lap_expertise, fitted),
            seconds=seconds,
            intervals=_intervals(fitted, data.names),
            remarks=_remarks(fitted),
        )


def lap_expertise(fitted: Fitted, data: Demonstrations) -> Array:
    """(lap,) the expertise of each lap."""
    return np.asarray(curate(fitted, data).episodes["expertise"].to_numpy())


def segment_expertise(fitted: Fitted, data: Demonstrations) -> Array:
    """(driver, segment) expertise."""
    table = fitted.assess(data, by="segment").table()
    columns = [table[name].to_pylist() for name in ("demonstrator", "segment", "expertise")]
    found = {(driver, segment): value for driver, segment, value in zip(*columns, strict=True)}
    return np.array([[found[driver, segment] for segment in SEGMENTS] for driver in data.names])


def segment_numbers(data: Demonstrations) -> Array:
    """(step,) the segment of each, as a number in `SEGMENTS`."""
    names = list(SEGMENTS)
    order = np.argsort(names)
    return order[np.searchsorted(np.array(names)[order], data.skills["segment"])]


def _intervals(fitted: Fitted, names: tuple[str, ...]) -> Array | None:
    """On the scale of the ranking, which is absolute."""
    if fitted.expertise.ratings is None:
        return None
    table = fitted.expertise.table(relative=False)
    rows = {row["demonstrator"]: (row["low"], row["high"]) for row in table.to_pylist()}
    return np.array([rows[name] for name in names]).T


def _remarks(fitted: Fitted) -> Measured:
    ratings = fitted.expertise.ratings
    if ratings is None:
        return {}
    by = {"reliability": ratings.by.reliability, "horizon": ratings.by.horizon}
    return {"sentence": ratings.sentence(), **{name: value for name, value in by.items() if value is not None}}
