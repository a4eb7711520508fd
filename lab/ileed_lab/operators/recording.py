"""Recordings: episodes of simulated operators as demonstrations, with the outcome of every episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, final

import numpy as np
import numpy.typing as npt

from ileed import Demonstrations
from ileed.envs.abstract_task import Environments
from ileed_lab.operators.motion import STEP, Array

__all__ = ["Controller", "Recording", "demonstrations", "episode_success", "record"]


class Controller(Protocol):
    """Acts in many episodes side by side, which all begin at step 0."""

    def act(self, step: int, observations: Array) -> Array:
        """(row, dimension) the action in each row; rows whose episodes are over are asked too."""
        ...


@final
@dataclass(frozen=True, eq=False)
class Recording:
    """Episodes of one operator, one after the other, each in the order of time."""

    observations: Array
    actions: Array
    rewards: Array
    terminals: npt.NDArray[np.bool_]
    episode: npt.NDArray[np.int64]
    last: Array
    """(episode, feature) what is seen after the last action."""

    @property
    def success(self) -> npt.NDArray[np.bool_]:
        """(episode,) whether each earned a reward."""
        return np.bincount(self.episode, self.rewards) > 0

    @property
    def steps(self) -> npt.NDArray[np.int64]:
        """(episode,) the length of each."""
        return np.bincount(self.episode)


def record(environments: Environments, controller: Controller, *, episodes: int, steps: int) -> Recording:
    """Play episodes 0, 1, ... side by side, one in each row, for at most `steps` steps, and keep every step."""
    rows, kept = np.arange(episodes), []
    now = environments.begin(rows, rows).copy()
    for step in range(steps):
        actions = controller.act(step, now.copy())
        seen = now[rows]
        now[rows], rewards, terminated, truncated = environments.step(rows, actions[rows])
        kept.append((seen, actions[rows], rewards, terminated, rows))
        rows = rows[~(terminated | truncated)]
        if not len(rows):
            break
    observations, actions, rewards, terminals, episode = (np.concatenate(each) for each in zip(*kept, strict=True))
    order = np.argsort(episode, kind="stable")
    return Recording(observations[order], actions[order], rewards[order], terminals[order], episode[order], now)


def demonstrations(recordings: Mapping[str, Recording]) -> Demonstrations:
    """Recordings by the name of their operator as one data set; rewards and terminals hold the outcomes."""
    each: Sequence[Recording] = list(recordings.values())
    first = np.cumsum([0, *(len(one.steps) for one in each)])
    return Demonstrations(
        observations=np.concatenate([one.observations for one in each]),
        actions=np.concatenate([one.actions for one in each]),
        demonstrator=np.repeat(np.arange(len(each)), [len(one.actions) for one in each]),
        episode=np.concatenate([one.episode + number for one, number in zip(each, first, strict=False)]),
        names=tuple(recordings),
        rewards=np.concatenate([one.rewards for one in each]),
        terminals=np.concatenate([one.terminals for one in each]),
        fps=1 / STEP,
    )


def episode_success(data: Demonstrations) -> npt.NDArray[np.bool_]:
    """(episode,) whether each earned a reward."""
    assert data.rewards is not None
    return np.bincount(data.episode, data.rewards) > 0
