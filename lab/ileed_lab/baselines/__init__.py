"""Baselines: GAIL, which plays while it learns, and four methods that learn from a file; all have one `fit`."""

from __future__ import annotations

from ileed_lab.baselines.bcq import Bcq
from ileed_lab.baselines.cql import Cql
from ileed_lab.baselines.gail import FittedGail, Gail, GailPolicy, Iteration
from ileed_lab.baselines.hbc import Hbc
from ileed_lab.baselines.iris import Iris
from ileed_lab.baselines.offline import AbstractOffline, FittedOffline, OfflinePolicy
from ileed_lab.baselines.training import TrainingPoint

__all__ = [
    "AbstractOffline",
    "Bcq",
    "Cql",
    "FittedGail",
    "FittedOffline",
    "Gail",
    "GailPolicy",
    "Hbc",
    "Iris",
    "Iteration",
    "OfflinePolicy",
    "TrainingPoint",
]
