"""Baselines: GAIL, which plays while it learns, and methods that only read demonstrations; all have one `fit`."""

from __future__ import annotations

from ileed_lab.baselines.annotators import Annotated, DawidSkene, Glad
from ileed_lab.baselines.bcq import Bcq
from ileed_lab.baselines.counter_bc import CounterfactualSets, counter_bc
from ileed_lab.baselines.cql import Cql
from ileed_lab.baselines.filtered import Filtered, FilteredBC
from ileed_lab.baselines.gail import FittedGail, Gail, GailPolicy, Iteration
from ileed_lab.baselines.hbc import Hbc
from ileed_lab.baselines.iris import Iris
from ileed_lab.baselines.offline import AbstractOffline, FittedOffline, OfflinePolicy
from ileed_lab.baselines.training import TrainingPoint

__all__ = [
    "AbstractOffline",
    "Annotated",
    "Bcq",
    "CounterfactualSets",
    "Cql",
    "DawidSkene",
    "Filtered",
    "FilteredBC",
    "FittedGail",
    "FittedOffline",
    "Gail",
    "GailPolicy",
    "Glad",
    "Hbc",
    "Iris",
    "Iteration",
    "OfflinePolicy",
    "TrainingPoint",
    "counter_bc",
]
