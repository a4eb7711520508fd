"""Rank correlations of scores with measured skill, with bootstrap intervals over drivers and their laps.

A positive correlation means that higher scores go with shorter times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ileed.data import Array
from ileed.parallel.runtime import stream
from ileed_lab.people.racing.laps import SEGMENTS, RacingLaps
from ileed_lab.ranking import rank_correlation
from ileed_lab.records import Measured

__all__ = ["DRAWS", "lap_measures", "partial_rank_correlation", "segment_measures", "simple_measure"]

DRAWS = 2_000
"""Bootstrap samples of every interval."""
Groups = Sequence[Array]
"""The laps of each driver of a sample, as numbers of laps."""


def lap_measures(score: Array, driver_score: Array, laps: RacingLaps, *, seed: int) -> dict[str, Measured]:
    """Correlations of scores of laps, (lap,), and of drivers, (driver,), with minus their times.

    Each has a 95% interval of a bootstrap that resamples drivers, then laps of each. The score of a driver is not
    estimated again from the resampled laps; the median lap time is.

    - `drivers`: the driver's score with minus the median lap time;
    - `laps`: over all laps;
    - `laps given length`: the partial correlation given the number of steps, which hardly varies here;
    - `laps given full throttle`: that given the share of steps at full throttle, an index that knows the task;
    - `within drivers`: the mean over drivers of the correlation over their own laps;
    - `within drivers, centred`: over all laps, after the driver's mean is subtracted from score and time.
    """
    time, driver = laps.lap_time, laps.driver

    def drivers(groups: Groups) -> float:
        own = [driver[group[0]] for group in groups]
        return rank_correlation(driver_score[own], [-np.median(time[group]) for group in groups])

    def all_laps(groups: Groups) -> float:
        chosen = np.concatenate(groups)
        return rank_correlation(score[chosen], -time[chosen])

    def given(column: Array) -> Callable[[Groups], float]:
        def partial(groups: Groups) -> float:
            chosen = np.concatenate(groups)
            return partial_rank_correlation(score[chosen], -time[chosen], column[chosen])

        return partial

    def within(groups: Groups) -> float:
        return float(np.mean([rank_correlation(score[group], -time[group]) for group in groups]))

    def centred(groups: Groups) -> float:
        each = [np.concatenate([values[group] - values[group].mean() for group in groups]) for values in (score, time)]
        return rank_correlation(each[0], -each[1])

    statistics: dict[str, Callable[[Groups], float]] = {
        "drivers": drivers,
        "laps": all_laps,
        "laps given length": given(laps.steps),
        "laps given full throttle": given(laps.full_throttle_share),
        "within drivers": within,
        "within drivers, centred": centred,
    }
    own = [np.flatnonzero(driver == each) for each in range(len(laps.data.names))]
    samples = _samples(own, seed)
    return {
        name: _with_interval(statistic(own), [statistic(sample) for sample in samples])
        for name, statistic in statistics.items()
    }


def segment_measures(score: Array, laps: RacingLaps, *, seed: int) -> dict[str, Measured]:
    """Correlations of scores of drivers in segments, (driver, segment), with minus their median segment times.

    - each segment: the rank correlation over drivers; and the mean of these;
    - `interaction`: whether drivers are good where their score is high, beyond being good: ranks over drivers in each
      segment, minus the means of rows and columns, correlated over all cells;
    - `interaction, z-scores`: the same with standardised values in place of ranks.

    Intervals are of a bootstrap over drivers.
    """
    time, drivers = laps.median_segment_time, len(laps.data.names)
    random = np.random.default_rng(stream(seed, "segments").initial_seed())
    samples = [random.integers(drivers, size=drivers) for _ in range(DRAWS)]

    def each(chosen: Array) -> list[float]:
        return [rank_correlation(score[chosen, k], -time[chosen, k]) for k in range(len(SEGMENTS))]

    def mean(chosen: Array) -> float:
        return float(np.mean(each(chosen)))

    def of_ranks(chosen: Array) -> float:
        return _interaction(_column_ranks(score[chosen]), _column_ranks(-time[chosen]))

    def of_z_scores(chosen: Array) -> float:
        return _interaction(_z_scores(score[chosen]), _z_scores(-time[chosen]))

    everyone = np.arange(drivers)
    found = {
        name: _with_interval(statistic(everyone), [statistic(sample) for sample in samples])
        for name, statistic in (("mean", mean), ("interaction", of_ranks), ("interaction, z-scores", of_z_scores))
    }
    found["each"] = dict(zip(SEGMENTS, each(everyone), strict=True))
    return found


def simple_measure(score: Array, time: Array, *, seed: int) -> Measured:
    """The rank correlation of scores of laps with minus their times, with a bootstrap interval over laps."""
    random = np.random.default_rng(stream(seed, "laps alone").initial_seed())
    samples = [random.integers(len(time), size=len(time)) for _ in range(DRAWS)]
    drawn = [rank_correlation(score[sample], -time[sample]) for sample in samples]
    return _with_interval(rank_correlation(score, -time), drawn)


def partial_rank_correlation(one: Array, other: Array, given: Array) -> float:
    """Spearman's partial correlation of two columns given a third; 0 where the third determines one of them.

    It is the plain correlation where the third is constant.

    >>> partial_rank_correlation(np.arange(4.0), np.arange(4.0) ** 2, np.zeros(4))
    1.0
    """
    plain = rank_correlation(one, other)
    with_one, with_other = rank_correlation(one, given), rank_correlation(other, given)
    scale = (1 - with_one**2) * (1 - with_other**2)
    return float((plain - with_one * with_other) / np.sqrt(scale)) if scale > 1e-12 else 0.0


def _samples(own: Groups, seed: int) -> list[Groups]:
    """Bootstrap samples of drivers, each with resampled laps."""
    random = np.random.default_rng(stream(seed, "drivers and laps").initial_seed())
    found: list[Groups] = []
    for _ in range(DRAWS):
        drawn = [own[each] for each in random.integers(len(own), size=len(own))]
        found.append([group[random.integers(len(group), size=len(group))] for group in drawn])
    return found


def _with_interval(value: float, drawn: Sequence[float]) -> Measured:
    low, high = np.quantile(drawn, (0.025, 0.975))
    return {"correlation": value, "low": float(low), "high": float(high)}


def _column_ranks(values: Array) -> Array:
    """The mean rank of each value in its column."""
    below = (values[:, None] > values[None]).sum(1)
    equal = (values[:, None] == values[None]).sum(1)
    return np.asarray(below + (equal - 1) / 2)


def _z_scores(values: Array) -> Array:
    spread = values.std(0)
    return np.asarray((values - values.mean(0)) / np.where(spread, spread, 1))


def _interaction(one: Array, other: Array) -> float:
    """The correlation over cells of two matrices, without the means of rows and columns; 0 where nothing is left."""
    left, right = ((values - values.mean(0) - values.mean(1, keepdims=True) + values.mean()) for values in (one, other))
    scale = np.sqrt((left**2).sum() * (right**2).sum())
    return float((left * right).sum() / scale) if scale > 1e-12 else 0.0
