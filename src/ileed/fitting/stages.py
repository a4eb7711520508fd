"""Stages of a fit, each with a name in the progress bar and a checkpoint."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
import torch

from ileed import runs
from ileed.data import Array, Demonstrations
from ileed.fitting.checkpoint import Checkpoint
from ileed.fitting.results import Progress, ProgressCallback
from ileed.model.knowledge import Known
from ileed.parallel.processes import ALONE, Processes


@final
@dataclass(frozen=True, eq=False)
class Stages:
    """The arguments of a fit, for the fit itself and for its stages, whose checkpoints are next to its own."""

    seed: int
    device: torch.device
    progress: ProgressCallback | None = None
    checkpoint: Path | None = None
    checkpoint_seconds: float = 0.0
    known: Known | None = None
    executor: Executor | None = None
    """Where blocks of members and independent stages run; None for this process, one after another."""
    processes: Processes = ALONE
    """The processes that share blocks of members."""
    checkpoints: list[Checkpoint] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    threads: int = field(default_factory=torch.get_num_threads)
    """CPU threads of the caller; they run stages at the same time, never one kernel together."""

    def stage(self, words: str, suffix: str) -> Stages:
        """A stage with a name for progress and a suffix for its checkpoint."""
        progress = self.progress and partial(_in_stage, self.progress, words)
        checkpoint = self.checkpoint and self.checkpoint.with_name(f"{self.checkpoint.name}-{suffix}")
        return replace(self, progress=progress, checkpoint=checkpoint)

    def counter(self, words: str) -> Callable[[int, int], object] | None:
        """A callback of the number done and the total, for a stage without a cost."""
        return self.progress and partial(_without_cost, self.progress, words)

    def checkpoints_of(
        self, method: Any, data: Demonstrations, weights: Array | None
    ) -> Callable[[str], Checkpoint | None]:
        """From the suffix of a part to its checkpoint; whoever saves the fit removes the files.

        Processes that share the fit must have the same arguments.
        """
        beside, job = self.checkpoint, self.processes
        fingerprint = "" if beside is None and job.count == 1 else self.fingerprint(method, data, weights)
        job.check_alike(fingerprint)
        if beside is None:
            return lambda suffix: None

        def checkpoint(suffix: str) -> Checkpoint:
            path = beside.with_name(f"{beside.name}{suffix}")
            self.checkpoints.append(Checkpoint(path, fingerprint=fingerprint, seconds=self.checkpoint_seconds))
            return self.checkpoints[-1]

        return checkpoint

    def fingerprint(self, method: Any, data: Demonstrations, weights: Array | None) -> str:
        """A digest of everything that determines the bits of a fit."""
        about = [runs.plain(method), data.fingerprint, self.seed, self.device.type]
        if self.known is not None:
            about.append(self.known.provenance(data))
        digest = hashlib.blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=16)
        if weights is not None:
            digest.update(np.ascontiguousarray(weights).tobytes())
        return digest.hexdigest()


def _without_cost(callback: ProgressCallback, stage: str, done: int, total: int) -> None:
    callback(Progress(done, total, math.nan, stage))


def _in_stage(callback: ProgressCallback, stage: str, progress: Progress) -> None:
    callback(progress._replace(stage=stage))
