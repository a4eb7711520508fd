"""The experiment: does expertise correlate with measured skill in racing, where no model sees a lap time?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, final

from ileed import Demonstrations, Embedded, Ileed, MixtureMLP, VarianceScaling
from ileed_lab.grid import AbstractFileExperiment, Setting
from ileed_lab.learners import PAPERS_STEPS, Learner
from ileed_lab.people.racing.laps import RacingLaps, racing_laps
from ileed_lab.people.racing.measures import DRAWS, lap_measures, segment_measures, simple_measure
from ileed_lab.people.racing.scoring import ExpertiseLearner, FullThrottle, LapScores, QualityLearner
from ileed_lab.quality import (
    DEFINITIONS,
    AbstractQuality,
    CloningLoss,
    Definition,
    EpisodeLength,
    JerkAndIdle,
    MutualInformation,
    Random,
    SpectralArcLength,
)
from ileed_lab.records import Measured

__all__ = ["HORIZON", "METHODS", "AbstractRacing", "Racing"]

HORIZON = 12
"""Actions of a chunk, 120 m or about 2 s, where a method embeds several of them together."""
METHODS: Mapping[str, Ileed] = {
    "default": Ileed(),
    "paper": Ileed(
        policy=MixtureMLP(hidden=(32, 32)),
        demonstrator=VarianceScaling(),
        expertise=Embedded(),
        restarts=20,
        **PAPERS_STEPS,
    ),
}
QUALITIES: Mapping[str, AbstractQuality] = {
    "mutual-information": MutualInformation(),
    "mutual-information-chunks": MutualInformation(chunk=HORIZON),
    "spectral-arc-length": SpectralArcLength(),
    "jerk-and-idle": JerkAndIdle(),
    "bc-log-likelihood": CloningLoss(),
    "bc-squared-error": CloningLoss(loss="squared error"),
    **{f"definition-{kind}": Definition(kind, horizon=HORIZON) for kind in DEFINITIONS},
    "episode-length": EpisodeLength(),
    "full-throttle": FullThrottle(),
    "random": Random(),
}


@dataclass(frozen=True)
class AbstractRacing(AbstractFileExperiment):
    """An experiment on laps of racing drivers."""

    block: ClassVar[int] = 1
    data_file: ClassVar[str] = "laps.parquet"
    source: ClassVar[str] = (
        "published laps: pass --data laps.parquet, the laps of https://doi.org/10.1371/journal.pone.0245320 with one "
        "row every 10 m"
    )
    has_continuous_actions: ClassVar[bool] = True

    @property
    def laps(self) -> RacingLaps:
        """The laps of the file, read once."""
        return _laps(self.file)

    def fingerprint(self) -> str:
        return self.laps.data.fingerprint


@final
@dataclass(frozen=True)
class Racing(AbstractRacing):
    """Laps of 13 drivers in a racing simulator; trials differ in the seeds of fits, scores and resampling."""

    name: str = "people/racing"
    trials: int = 3

    @property
    def numbers(self) -> Mapping[str, Any]:
        return {"draws": DRAWS}

    def settings(self) -> Sequence[Setting]:
        return [{"demonstrators": "drivers"}]

    def methods(self, setting: Setting) -> Mapping[str, Learner]:
        expertise: dict[str, Learner] = {name: ExpertiseLearner(method) for name, method in METHODS.items()}
        return expertise | {name: QualityLearner(quality) for name, quality in QUALITIES.items()}

    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[Demonstrations]:
        return [self.laps.data] * len(trials)

    def measure(self, setting: Setting, method: str, trial: int, fit: Any) -> Measured:
        return measure_scores(fit, self.laps, seed=trial)


def measure_scores(scores: LapScores, laps: RacingLaps, *, seed: int) -> Measured:
    """Everything that is recorded of a method's scores."""
    rows = [
        {"driver": name, "laps": count, "median_lap_time": float(median), "score": float(score)}
        for name, count, median, score in zip(
            laps.data.names, laps.lap_counts.tolist(), laps.median_lap_time, scores.drivers, strict=True
        )
    ]
    if scores.intervals is not None:
        rows = [
            row | {"low": low, "high": high} for row, low, high in zip(rows, *scores.intervals.tolist(), strict=True)
        ]
    return {
        "correlations": lap_measures(scores.laps, scores.drivers, laps, seed=seed),
        "segments": segment_measures(scores.segments, laps, seed=seed),
        "ai": simple_measure(scores.score_others(laps.ai), laps.ai_lap_time, seed=seed),
        "drivers": rows,
        "lap_scores": scores.laps.tolist(),
        "segment_scores": scores.segments.tolist(),
        **scores.remarks,
    }


@cache
def _laps(path: Path) -> RacingLaps:
    return racing_laps(path)
