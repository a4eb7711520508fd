"""Baselines: one that plays while it learns, and four that learn from a file; each says whether it uses rewards."""

from __future__ import annotations

from ileed.baselines.bcq import Bcq
from ileed.baselines.cql import Cql
from ileed.baselines.gail import FittedGail, Gail, GailPolicy, Iteration
from ileed.baselines.hbc import Hbc
from ileed.baselines.iris import Iris
from ileed.baselines.lessons import Point
from ileed.baselines.offline import AbstractOffline, FittedOffline, OfflinePolicy

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
    "Point",
]
