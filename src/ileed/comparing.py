"""Which demonstrator model explains people best, by episodes that it was not fitted to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ileed import fitting
from ileed._torch import resolve_device
from ileed.checking import instance_of, seed_of
from ileed.demonstrations import Demonstrations, check_demonstrations
from ileed.fitted.comparison import ModelComparison
from ileed.fitted.model_choice import CANDIDATES
from ileed.fitting.stages import Stages
from ileed.methods import Ileed
from ileed.model.demonstrators import AbstractDemonstratorModel

__all__ = ["CANDIDATES", "ModelComparison", "compare"]


def compare(
    demonstrations: Demonstrations,
    *,
    seed: int,
    models: Sequence[AbstractDemonstratorModel[Any]] | None = None,
    method: Ileed | None = None,
    device: str = "auto",
    progress: fitting.ProgressCallback | None = None,
) -> ModelComparison:
    """Demonstrator models fitted to the same folds of episodes, and judged by the episodes left out.

    `models` stand in the order in which they are preferred where the data cannot choose; by default all of
    `CANDIDATES` that describe the data. `method` has the other settings; `Ileed(demonstrator="auto")` compares in the
    same way before its fit, and keeps what came out as `Fitted.comparison`. Where `policy` is None, the network is the
    paper's here.
    """
    check_demonstrations(demonstrations)
    method = method or Ileed()
    instance_of("method", method, Ileed, rule="pass Ileed(...), or None for its defaults")
    stages = Stages(seed_of(seed), resolve_device(device), progress, None, 0.0)
    return method.compare_models(demonstrations, stages, models)
