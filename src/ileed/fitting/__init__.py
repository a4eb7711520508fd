"""The climb: all members of a joint model up the likelihood at once, to the same bits every time."""

from ileed.fitting.adam import Adam
from ileed.fitting.checkpoint import Checkpoint
from ileed.fitting.climbing import climb
from ileed.fitting.preparing import Prepared, SideBySide, checked_weights, prepare, side_by_side, stands_beside
from ileed.fitting.results import Ascent, History, Outcome, Progress, Watcher
from ileed.fitting.settings import Climb
from ileed.fitting.supply import Supply

__all__ = [
    "Adam",
    "Ascent",
    "Checkpoint",
    "Climb",
    "History",
    "Outcome",
    "Prepared",
    "Progress",
    "SideBySide",
    "Supply",
    "Watcher",
    "checked_weights",
    "climb",
    "prepare",
    "side_by_side",
    "stands_beside",
]
