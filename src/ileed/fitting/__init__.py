"""Optimisation of all members of a joint model at once, with the same bits every time."""

from ileed.fitting.adam import Adam
from ileed.fitting.batches import Sampler
from ileed.fitting.checkpoint import Checkpoint
from ileed.fitting.loop import optimise
from ileed.fitting.preparing import OptimiserSettings, Prepared, checked_weights, prepare
from ileed.fitting.results import History, OptimisationResult, Outcome, Progress, ProgressCallback

__all__ = [
    "Adam",
    "Checkpoint",
    "History",
    "OptimisationResult",
    "OptimiserSettings",
    "Outcome",
    "Prepared",
    "Progress",
    "ProgressCallback",
    "Sampler",
    "checked_weights",
    "optimise",
    "prepare",
]
