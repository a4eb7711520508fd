"""Planar reaching: a hand to be brought to a target and closed there, in a few lines that need no simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from ileed.envs.abstract_task import (
    AbstractTask,
    Actor,
    Array,
    Numbers,
    Playthrough,
    Progress,
    Stepped,
    actions_of,
    play_rows,
)
from ileed.errors import at_least_one
from ileed.parallel.runtime import stream

__all__ = ["ReachExpert", "ReachTask"]

_TOLERANCE = 0.1  # how near the target a hand must be closed
_NEAR = 0.35  # within this distance the approach is over and precision is called for
_STRIDE = 0.1  # how far a velocity of one moves the hand in one step
_LIMIT = 50  # steps of an episode


@final
@dataclass(frozen=True)
class ReachTask(AbstractTask):
    """A hand on the plane from -1 to 1 that earns 1 for closing within 0.1 of a target, in 50 steps at most.

    An observation is the hand's position, the target's, and the last command of the gripper (1 closed, -1 open): 5
    numbers. An action is a velocity, each component clipped to [-1, 1] and times 0.1 a step, and a gripper, closed
    where above 0: 3 numbers, the last of which is a binary dimension. Closing elsewhere costs nothing but time.

    An observation shows which of two phases it belongs to: "near" the target, within 0.35, or "far".
    """

    name = "robot/reach"
    observation_size = 5
    action_count = 0
    action_size = 3
    phases = ("far", "near")

    def phase(self, observations: Array, episodes: Numbers | None = None) -> Numbers:
        return (_distance(observations) < _NEAR).astype(np.int64)

    def score(
        self, actor: Actor, *, episodes: int, seed: int, environments: int = 256, progress: Progress | None = None
    ) -> npt.NDArray[np.float64]:
        """The reward of each of exactly `episodes` episodes, 1 or 0, in the order of their numbers.

        Rows begin together, as many as there are episodes left to begin; one whose episode is over stays as it was,
        and its actions are not used, until all are.
        """
        at_least_one(episodes=episodes, environments=environments)
        width = min(environments, episodes)
        hands, rewards = _Hands([seed] * width), np.zeros(episodes)
        now = np.zeros((width, self.observation_size))
        for first in range(0, episodes, width):
            playing = np.arange(first, min(first + width, episodes))
            rows = np.arange(len(playing))
            now[rows] = hands.begin(rows, playing)
            starts = np.arange(width) < len(playing)
            while len(rows):
                actions = actions_of(actor, self, now, starts)
                starts[:] = False
                now[rows], earned, arrived, late = hands.step(rows, actions[rows])
                rewards[playing[rows]] += earned
                rows = rows[~(arrived | late)]
            if progress is not None:
                progress(int(playing[-1]) + 1, episodes)
        return rewards

    def play(self, actor: Actor, *, steps: int, seeds: Sequence[int], progress: Progress | None = None) -> Playthrough:
        """Play `steps` steps in each of `len(seeds)` environments at once, episode after episode, and keep them all.

        Episode k of environment e starts from `(seeds[e], k)`, as episode k of `score` does with that seed. The last
        episode of an environment is truncated after the last step. `phase` is kept for every step.
        """
        return play_rows(self, actor, _Hands(seeds), steps, len(seeds), progress)


@final
@dataclass(frozen=True, kw_only=True)
class ReachExpert:
    """The known policy of reaching: a Gaussian whose mean and standard deviation have a closed form.

    The mean velocity is tanh(3 (target - position)), and the mean of the gripper is 1 within 0.08 of the target and -1
    elsewhere. Both velocities have `standard_deviation` at the target, and up to half as much again far from it; the
    gripper has `gripper_standard_deviation`.
    """

    standard_deviation: float = 0.2
    gripper_standard_deviation: float = 0.01

    def mean(self, observations: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """The mean action after each of (row, 5) observations, (row, 3)."""
        velocity = np.tanh(3 * (observations[:, 2:4] - observations[:, 0:2]))
        gripper = np.where(_distance(observations) < 0.8 * _TOLERANCE, 1.0, -1.0)
        return np.concatenate([velocity, gripper[:, None]], axis=1)

    def distribution(self, observations: npt.NDArray[Any]) -> MixtureSameFamily:
        """The distribution of actions after each of (row, 5) observations: a mixture of one component."""
        mean = torch.from_numpy(self.mean(observations))
        spread = self.standard_deviation * (1 + 0.5 * np.tanh(_distance(observations)))
        gripper = np.full_like(spread, self.gripper_standard_deviation)
        scales = torch.from_numpy(np.stack([spread, spread, gripper], axis=1))
        # Nothing here can be invalid, and checking would take longer than computing.
        component = Independent(Normal(mean[:, None], scales[:, None], validate_args=False), 1, validate_args=False)
        weight = Categorical(logits=torch.zeros(len(mean), 1, dtype=mean.dtype), validate_args=False)
        return MixtureSameFamily(weight, component, validate_args=False)

    def __call__(self, observations: npt.NDArray[Any], starts: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
        """The mean action, without noise."""
        return self.mean(observations)


@final
class _Hands:
    """Hands and targets of all rows in one array; row e's episodes begin from `seeds[e]`."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self._seeds = seeds
        self._seen = np.zeros((len(seeds), 5))
        self._steps = np.zeros(len(seeds), dtype=np.int64)

    def begin(self, rows: npt.NDArray[np.int64], episodes: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        for row, episode in zip(rows.tolist(), episodes.tolist(), strict=True):
            chance = torch.rand(4, generator=stream(self._seeds[row], "episode", episode), dtype=torch.float64)
            self._seen[row, :4] = 2 * chance.numpy() - 1
        self._seen[rows, 4] = -1
        self._steps[rows] = 0
        return self._seen[rows]

    def step(self, rows: npt.NDArray[np.int64], actions: npt.NDArray[np.float64]) -> Stepped:
        seen, closed = self._seen[rows], actions[:, 2] > 0
        arrived = closed & (_distance(seen) < _TOLERANCE)
        moved = seen[:, :2] + _STRIDE * actions[:, :2].clip(-1, 1)
        seen[:, :2] = moved.clip(-1, 1)
        seen[:, 4] = np.where(closed, 1, -1)
        self._seen[rows] = seen
        self._steps[rows] += 1
        return seen, arrived.astype(np.float64), arrived, ~arrived & (self._steps[rows] >= _LIMIT)


def _distance(observations: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Distance of the hand from its target in each of (row, 5) observations, (row,)."""
    return np.asarray(np.linalg.norm(observations[:, 2:4] - observations[:, 0:2], axis=1))
