"""The mission of a MiniGrid task, as minigrid's own flat observation writes it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ileed.envs.minigrid import OBSERVATION_SIZE
from ileed.errors import IleedError, SettingsError

__all__ = ["MISSIONS", "flat_with_mission"]

MISSIONS = {
    "minigrid/empty": "get to the green goal square",
    "minigrid/obstacles": "get to the green goal square",
    "minigrid/lava": "avoid the lava and get to the green goal square",
    "minigrid/unlock": "open the door",
}


def flat_with_mission(observations: npt.NDArray[np.uint8], task: str) -> npt.NDArray[np.uint8]:
    """The observations with the task's mission appended, as minigrid's `FlatObsWrapper` gives them: 2,835 numbers.

    The mission is written as 96 letters of 28 numbers each, one of them 1. It is the same in every observation of a
    task, so it tells a policy nothing; it is here because the paper's policies were given it. Does not need minigrid.
    """
    if task not in MISSIONS:
        raise SettingsError(f"there is no MiniGrid task {task!r}; the tasks are {', '.join(MISSIONS)}")
    if observations.shape[-1:] != (OBSERVATION_SIZE,):
        raise IleedError(
            f"these observations have shape {observations.shape}; their last axis must be the {OBSERVATION_SIZE} "
            "numbers of the view"
        )
    letters = np.zeros((96, 28), dtype=np.uint8)
    for index, letter in enumerate(MISSIONS[task]):
        letters[index, "abcdefghijklmnopqrstuvwxyz ,".index(letter)] = 1
    mission = np.broadcast_to(letters.ravel(), (*observations.shape[:-1], letters.size))
    return np.concatenate([observations, mission], axis=-1, dtype=np.uint8)
