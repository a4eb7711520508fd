"""Stages of a fit: each optimisation of several, with its own words in the progress bar and its own checkpoint."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import final

import torch

from ileed.fitting.checkpoint import Checkpoint
from ileed.fitting.results import Progress, ProgressCallback


@final
@dataclass(frozen=True, eq=False)
class Stages:
    """How a fit was called, for itself and for its stages, whose checkpoints lie beside its own."""

    seed: int
    device: torch.device
    progress: ProgressCallback | None
    checkpoint: Path | None
    checkpoint_seconds: float
    checkpoints: list[Checkpoint] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def stage(self, words: str, suffix: str) -> Stages:
        """A stage, in words and as the suffix of a file."""
        progress = self.progress and partial(_in_stage, self.progress, words)
        checkpoint = self.checkpoint and self.checkpoint.with_name(f"{self.checkpoint.name}-{suffix}")
        return replace(self, progress=progress, checkpoint=checkpoint)


def _in_stage(callback: ProgressCallback, stage: str, progress: Progress) -> None:
    """Report a fit that is a stage of another."""
    callback(progress._replace(stage=stage))
