"""Pick and place: a gripper takes an object and puts it on a goal. Vectorised kinematics, no physics engine.

The gripper moves by velocity commands at 20 Hz. It grasps the object if it closes near enough to it, and the jaws then
centre the object. A missed grasp can be retried until the time limit. Opening the gripper ends the episode: a success
near the goal, a failure elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt

from ileed import SettingsError
from ileed.envs.abstract_task import (
    AbstractTask,
    Actor,
    Flags,
    Numbers,
    Playthrough,
    Progress,
    Stepped,
    play_rows,
    score_rows,
)
from ileed.errors import at_least_one
from ileed.parallel.runtime import stream
from ileed_lab.operators.motion import STEP, Array, distance, follow

__all__ = [
    "FEATURES",
    "GOAL",
    "HELD",
    "LIMIT",
    "OBJECT",
    "OPENING",
    "POSITION",
    "REST",
    "TASK_FEATURES",
    "TOLERANCES",
    "VELOCITY",
    "PickPlaceTask",
    "PickPlaceWorld",
    "Tolerance",
]

POSITION, VELOCITY, OPENING = slice(0, 3), slice(3, 6), 6
OBJECT, GOAL, HELD = slice(7, 10), slice(10, 13), 13
TO_OBJECT, TO_GOAL = slice(14, 17), slice(17, 20)
FEATURES = (
    *(f"gripper_{axis}" for axis in "xyz"),
    *(f"gripper_velocity_{axis}" for axis in "xyz"),
    "gripper_opening",
    *(f"object_{axis}" for axis in "xyz"),
    *(f"goal_{axis}" for axis in "xyz"),
    "held",
    *(f"gripper_to_object_{axis}" for axis in "xyz"),
    *(f"gripper_to_goal_{axis}" for axis in "xyz"),
)
"""What a robot would log: metres, metres per second, an opening from 0 to 1, and 1 while the object is held.

The object and the goal are logged twice, on the table and from the gripper, as robosuite does."""
TASK_FEATURES = tuple(number for number, name in enumerate(FEATURES) if "object" in name or "goal" in name)
"""Columns of the object and the goal, without which the task cannot be done."""
ACTIONS = ("velocity_x", "velocity_y", "velocity_z", "gripper")

LIMIT = 300
"""Steps of an episode: 15 s."""
REST = 0.02
"""Height of the centre of an object that lies on the table."""
_JAWS = 0.25  # share of the opening that the jaws move in one step
_RELEASED = 0.5  # opening at which an object slips out
_TABLE = 0.25  # objects and goals are at most so far from its centre, along both axes
_APART = 0.15  # at least so far is the goal from the object
_LOW, _HIGH = np.array([-0.6, -0.6, 0.0]), np.array([0.6, 0.6, 0.4])


@final
@dataclass(frozen=True)
class Tolerance:
    """Distances in metres: of the gripper from the object when it closes, of the object from the goal when it opens."""

    grasp: float
    place: float


TOLERANCES: Mapping[str, Tolerance] = {"easy": Tolerance(0.028, 0.034), "hard": Tolerance(0.022, 0.026)}


@final
@dataclass(frozen=True)
class PickPlaceTask(AbstractTask):
    """Put the object on the goal within 15 s, to earn 1; `tolerance` is "easy" or "hard".

    An observation has the 20 numbers of `FEATURES`. An action is a velocity, each component in [-1, 1] and a share of
    0.5 m/s, and a gripper, which closes where above 0: 4 numbers, the last of which is a binary dimension.
    """

    tolerance: str = "easy"
    name = "robot/pick-place"
    observation_size = len(FEATURES)
    action_count = 0
    action_size = len(ACTIONS)

    def __post_init__(self) -> None:
        if self.tolerance not in TOLERANCES:
            raise SettingsError(f"tolerance must be one of {', '.join(TOLERANCES)}, got {self.tolerance!r}")

    def score(
        self, actor: Actor, *, episodes: int, seed: int, environments: int = 256, progress: Progress | None = None
    ) -> npt.NDArray[np.float64]:
        """The reward of each episode, 1 or 0."""
        at_least_one(episodes=episodes, environments=environments)
        width = min(environments, episodes)
        return score_rows(self, actor, self.world([seed] * width), np.arange(episodes), width, progress)

    def play(self, actor: Actor, *, steps: int, seeds: Sequence[int], progress: Progress | None = None) -> Playthrough:
        return play_rows(self, actor, self.world(seeds), steps, len(seeds), progress)

    def world(self, seeds: Sequence[int]) -> PickPlaceWorld:
        """Environments side by side, of which row e begins its episodes from `seeds[e]`."""
        return PickPlaceWorld(seeds, TOLERANCES[self.tolerance])


@final
class PickPlaceWorld:
    """Grippers, objects and goals of all rows in one array of observations."""

    def __init__(self, seeds: Sequence[int], tolerance: Tolerance) -> None:
        self._seeds, self._tolerance = seeds, tolerance
        self._state = np.zeros((len(seeds), len(FEATURES)))
        self._steps = np.zeros(len(seeds), dtype=np.int64)

    def begin(self, rows: Numbers, episodes: Numbers) -> Array:
        """Let each of these rows begin its episode of that number."""
        for row, episode in zip(rows.tolist(), episodes.tolist(), strict=True):
            self._state[row] = _beginning(self._seeds[row], episode)
        self._steps[rows] = 0
        return self._state[rows]

    def step(self, rows: Numbers, actions: npt.NDArray[Any]) -> Stepped:
        """Move, close or open in each of these rows."""
        state = self._state[rows]
        before, opening = state[:, POSITION], state[:, OPENING]
        velocity = follow(state[:, VELOCITY], actions[:, :3])
        position = (before + STEP * velocity).clip(_LOW, _HIGH)
        closes, held = actions[:, 3] > 0, state[:, HELD] > 0
        jaws = (opening + np.where(closes, -_JAWS, _JAWS)).clip(0, 1)
        grasps = (jaws == 0) & (opening > 0) & (distance(position, state[:, OBJECT]) < self._tolerance.grasp)
        held |= grasps
        carried = np.where(held[:, None], position, state[:, OBJECT])
        released = held & (jaws >= _RELEASED)
        success = released & (distance(carried, state[:, GOAL]) < self._tolerance.place)
        state[:, VELOCITY], state[:, POSITION] = (position - before) / STEP, position
        state[:, OPENING], state[:, OBJECT], state[:, HELD] = jaws, carried, held & ~released
        self._state[rows] = _from_gripper(state)
        self._steps[rows] += 1
        late: Flags = ~released & (self._steps[rows] >= LIMIT)
        return state.copy(), success.astype(np.float64), released, late


def _beginning(seed: int, episode: int) -> Array:
    """The first observation of an episode: an open gripper above the middle, an object and a goal apart from it."""
    random = np.random.default_rng(stream(seed, "episode", episode).initial_seed())
    state = np.zeros(len(FEATURES))
    state[POSITION] = [*random.uniform(-0.1, 0.1, 2), random.uniform(0.2, 0.3)]
    state[OPENING] = 1.0
    place, goal = random.uniform(-_TABLE, _TABLE, (2, 2))
    while np.hypot(*(goal - place)) < _APART:
        goal = random.uniform(-_TABLE, _TABLE, 2)
    state[OBJECT], state[GOAL] = [*place, REST], [*goal, REST]
    return _from_gripper(state[None])[0]


def _from_gripper(state: Array) -> Array:
    """(row, feature) observations with where the object and the goal are from the gripper filled in."""
    state[:, TO_OBJECT] = state[:, OBJECT] - state[:, POSITION]
    state[:, TO_GOAL] = state[:, GOAL] - state[:, POSITION]
    return state
