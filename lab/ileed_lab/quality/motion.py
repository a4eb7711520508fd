"""Scores of the motion alone: smoothness, jerk and idle steps, length; and a random score as the control."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import numpy as np

from ileed import Demonstrations, SettingsError, indicators
from ileed.data import Array
from ileed.parallel.runtime import stream
from ileed_lab.quality.score import AbstractQuality, score_units

__all__ = ["EpisodeLength", "JerkAndIdle", "Random", "SpectralArcLength"]


@final
@dataclass(frozen=True)
class SpectralArcLength(AbstractQuality):
    """Smoothness of the commands: `ileed.indicators`' spectral arc length of the speed at which actions change.

    Zero where that is undefined: in units of fewer than four steps, and in those without movement.

    RINSE (*Learning from the Best: Smoothness-Driven Metrics for Data Quality in Imitation Learning*, arXiv
    2604.23000) filters demonstrations by the spectral arc length of their speed profile.
    """

    def scores(self, data: Demonstrations, *, seed: int, unit: Array | None = None) -> Array:
        _refuse_discrete(data)
        parts = data if unit is None else replace(data, episode=unit, source_episode=None, episode_number=None)
        return np.nan_to_num(indicators(parts).values["spectral_arc_length"])


@final
@dataclass(frozen=True)
class JerkAndIdle(AbstractQuality):
    """How far an episode is from being flagged as an outlier of jerk, peak speed or idle steps.

    huggingface/lerobot pull request 3761 computes metrics of each episode from its actions (median and 95th percentile
    of the jerk, peak velocity, share of static frames) and flags an episode that lies beyond the upper quartile by more
    than a multiple of the interquartile range in any of them. The score is minus the greatest of these distances, in
    interquartile ranges, so that every threshold flags the episodes with the lowest scores.
    """

    idle_speed: float = 0.01
    """A step is idle where all actions together change by less, in standard deviations."""

    def scores(self, data: Demonstrations, *, seed: int, unit: Array | None = None) -> Array:
        def metrics(actions: Array) -> tuple[float, ...]:
            speed = _speed(actions)
            jerk = np.linalg.norm(np.diff(actions, n=3, axis=0), axis=1) if len(actions) > 3 else np.zeros(1)
            return (*np.quantile(jerk, (0.5, 0.95)), speed.max(), (speed < self.idle_speed).mean())

        found = score_units(metrics, _standardised_actions(data), data.episode if unit is None else unit)
        low, high = np.quantile(found, (0.25, 0.75), axis=0)
        spread = high - low
        varies = spread > 0
        if not varies.any():
            return np.zeros(len(found))
        return -((found - high)[:, varies] / spread[varies]).max(1)


@final
@dataclass(frozen=True)
class EpisodeLength(AbstractQuality):
    """Shorter is better."""

    def scores(self, data: Demonstrations, *, seed: int, unit: Array | None = None) -> Array:
        return -np.bincount(data.episode if unit is None else unit).astype(np.float64)


@final
@dataclass(frozen=True)
class Random(AbstractQuality):
    """A standard normal number per episode: what chance gives."""

    def scores(self, data: Demonstrations, *, seed: int, unit: Array | None = None) -> Array:
        count = int((data.episode if unit is None else unit)[-1]) + 1
        return np.random.default_rng(stream(seed, "random scores").initial_seed()).normal(size=count)


def _refuse_discrete(data: Demonstrations) -> None:
    if data.discrete:
        raise SettingsError("motion is scored by continuous actions, and these are discrete: leave this score out")


def _standardised_actions(data: Demonstrations) -> Array:
    """(step, dimension) continuous actions, each dimension divided by its standard deviation."""
    _refuse_discrete(data)
    spread = data.actions.std(0)
    return np.asarray(data.actions / np.where(spread > 0, spread, 1), dtype=np.float64)


def _speed(actions: Array) -> Array:
    """(step - 1,) by how much the actions change from step to step; zero where there is one step."""
    return np.linalg.norm(np.diff(actions, axis=0), axis=1) if len(actions) > 1 else np.zeros(1)
