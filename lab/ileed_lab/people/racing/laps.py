"""Laps of a racing simulator as demonstrations, with the lap and segment times that no model sees.

Remonda, Veas and Luzhnica, *Comparing driving behavior of humans and autonomous driving in a professional racing
simulator*, PLoS ONE 16(2), 2021; GPL-2.0, so the file is read from where it is and never copied into the repository.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ileed import DemonstrationError, Demonstrations
from ileed.data import Array
from ileed.data.findings import first_copies

__all__ = [
    "AI_DRIVER",
    "SEGMENTS",
    "RacingLaps",
    "full_throttle",
    "lap_times",
    "medians_by_driver",
    "racing_laps",
]

AI_DRIVER = "AIDRIVER"
"""A learning agent at various stages of its training: not one skill."""
SEGMENTS: Mapping[str, float] = {
    "S01": 0,
    "C01": 400,
    "C04": 1300,
    "C05": 1725,
    "C07": 2050,
    "C09": 2525,
    "S09": 2840,
    "C10": 3000,
    "C12": 3350,
    "C13": 3650,
    "C14": 3840,
}
"""Segments of the circuit by the distance at which each starts, in metres: straights (S) and corners (C)."""
FOURIER_PAIRS = 4
_FULL = 0.995  # of the greatest value of the pedal
_COLUMNS = ("driver", "lap", "distance", "time", "speed", "steer", "throttle", "brake", "x", "z")


@final
@dataclass(frozen=True, eq=False)
class RacingLaps:
    """Laps of the human drivers and of the AI driver; times are outcomes, and are in no observation."""

    data: Demonstrations
    """Laps of the human drivers: an episode is a lap, and the skill column `segment` names the segment of each step."""
    lap_time: Array
    """(lap,) seconds."""
    segment_time: Array
    """(lap, segment) seconds, in the order of `SEGMENTS`."""
    ai: Demonstrations
    """Laps of the AI driver, with the same observations and the same units of the actions."""
    ai_lap_time: Array
    """(lap of the AI driver,) seconds."""
    rewards: Array
    """(step,) minus the seconds to the next step, which add up to minus the lap time."""

    @property
    def driver(self) -> Array:
        """(lap,) the driver of each lap, as an index into `data.names`."""
        return self.data.episode_demonstrator

    @property
    def steps(self) -> Array:
        """(lap,) the number of steps: one every 10 m, so nearly the same for all laps."""
        return np.bincount(self.data.episode)

    @property
    def full_throttle_share(self) -> Array:
        """(lap,) the share of steps at full throttle."""
        return np.asarray(np.bincount(self.data.episode, full_throttle(self.data)) / self.steps)

    @property
    def lap_counts(self) -> Array:
        """(driver,) the number of laps."""
        return np.bincount(self.driver)

    @property
    def rewarded(self) -> Demonstrations:
        """`data` with `rewards`, for methods that use outcomes; `lap_times` reads them."""
        return replace(self.data, rewards=self.rewards)

    @cached_property
    def median_lap_time(self) -> Array:
        """(driver,) seconds."""
        return medians_by_driver(self.lap_time, self.driver)

    @cached_property
    def median_segment_time(self) -> Array:
        """(driver, segment) seconds."""
        return medians_by_driver(self.segment_time, self.driver)


def racing_laps(path: Path) -> RacingLaps:
    """Read laps from a parquet file with the columns of `_COLUMNS`: one row every 10 m.

    Observations are the position (x, z), the speed and four Fourier pairs of the distance as a share of the lap; the
    actions are the steering angle and the pedal (throttle minus brake), each divided by its standard deviation over
    the human drivers. Laps that are in the file twice are read once: a policy of another fold would have seen them.
    """
    columns = _columns(path)
    lap = np.unique(columns["lap"], return_inverse=True)[1]
    starts = np.flatnonzero(np.diff(lap, prepend=-1))
    if len(starts) != lap.max() + 1:
        raise DemonstrationError(f"{path} has rows of one lap apart from each other: sort it by lap and distance")
    human = columns["driver"] != AI_DRIVER
    if not human.any() or human.all():
        raise DemonstrationError(f"{path} needs laps of human drivers and of {AI_DRIVER}: pass laps.parquet")
    ends = np.append(starts[1:], len(lap)) - 1
    length = float(np.median(columns["distance"][ends][human[ends]]))
    actions = np.stack([columns["steer"], columns["throttle"] - columns["brake"]], axis=1)
    actions = actions / actions[human].std(0)
    observations = np.stack([columns["x"], columns["z"], columns["speed"], *_fourier(columns["distance"] / length)], 1)
    segment = np.array(list(SEGMENTS))[
        np.searchsorted(list(SEGMENTS.values()), columns["distance"], side="right").clip(min=1) - 1
    ]

    def demonstrations(rows: Array) -> Demonstrations:
        return Demonstrations(
            observations=observations[rows].astype(np.float32),
            actions=actions[rows].astype(np.float32),
            demonstrator=columns["driver"][rows],
            episode=columns["lap"][rows],
            skills={"segment": segment[rows]},
        )

    lap_time = columns["time"][ends] - columns["time"][starts]
    segment_time = np.stack(
        [
            _segment_times(columns["distance"][first : last + 1], columns["time"][first : last + 1])
            for first, last in zip(starts, ends, strict=True)
        ]
    )
    rewards = np.where(np.diff(lap, append=-1) == 0, -np.diff(columns["time"], append=0.0), 0.0)
    theirs, every = human[starts], demonstrations(human)
    once = first_copies(every) == np.arange(every.episode_count)
    kept = once[every.episode]
    return RacingLaps(
        data=every.select(kept),
        lap_time=lap_time[theirs][once],
        segment_time=segment_time[theirs][once],
        ai=demonstrations(~human),
        ai_lap_time=lap_time[~theirs],
        rewards=rewards[human][kept],
    )


def lap_times(data: Demonstrations) -> Array:
    """(lap,) seconds, of laps with rewards."""
    if data.rewards is None:
        raise DemonstrationError("these laps have no times: pass those of `RacingLaps.rewarded`")
    return -np.bincount(data.episode, data.rewards)


def full_throttle(data: Demonstrations) -> Array:
    """(step,) whether the throttle is fully pressed."""
    pedal = data.actions[:, 1]
    return np.asarray(pedal >= _FULL * pedal.max())


def _columns(path: Path) -> dict[str, Array]:
    try:
        table = pq.read_table(path, columns=list(_COLUMNS))
    except (OSError, pa.ArrowInvalid, KeyError) as error:
        raise DemonstrationError(
            f"{path} cannot be read as laps ({error}): pass a parquet file with the columns {', '.join(_COLUMNS)}"
        ) from error
    if missing := [name for name in _COLUMNS if name not in table.column_names]:
        raise DemonstrationError(f"{path} has no column {missing[0]!r}: laps have the columns {', '.join(_COLUMNS)}")
    if not table.num_rows:
        raise DemonstrationError(f"{path} holds no laps: pass laps.parquet")
    found = {name: table[name].to_numpy(zero_copy_only=False) for name in _COLUMNS}
    return {
        name: values.astype(np.str_ if name == "driver" else np.int64 if name == "lap" else np.float64)
        for name, values in found.items()
    }


def _fourier(share: Array) -> list[Array]:
    """Cosine and sine of the share of the lap, for each of the first frequencies."""
    angles = [2 * np.pi * (frequency + 1) * share for frequency in range(FOURIER_PAIRS)]
    return [wave(angle) for angle in angles for wave in (np.cos, np.sin)]


def _segment_times(distance: Array, time: Array) -> Array:
    """(segment,) seconds spent in each, by linear interpolation of the time at its start."""
    starts = np.interp(list(SEGMENTS.values()), distance, time)
    return np.diff(starts, append=time[-1])


def medians_by_driver(values: Array, driver: Array) -> Array:
    """(driver, ...) the median over the laps of each driver."""
    return np.stack([np.median(values[driver == each], axis=0) for each in range(driver.max() + 1)])
