"""Rollouts: many environments of one task, stepped together without end, for a learner that sees no reward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final

import numpy as np
import numpy.typing as npt

from ileed.envs.minigrid import ENVIRONMENTS, MiniGridTask, make_environment
from ileed.errors import require
from ileed.parallel.runtime import stream

__all__ = ["FinishedEpisodes", "Rollouts", "as_vec_env"]

Observations = npt.NDArray[np.uint8]
"""(env, feature)."""
StepResult = tuple[Observations, npt.NDArray[np.floating], npt.NDArray[np.bool_], npt.NDArray[np.bool_]]
"""Observations (env, feature), and rewards, terminated and truncated, each (env,), as in gymnasium."""


class Environments(Protocol):
    """Environments that are stepped together; one whose episode is over must be reset before it is stepped again."""

    limit: int
    """The number of steps after which the task truncates an episode."""

    def reset(self) -> Observations:
        """Start an episode in all of them; the first observations."""
        ...

    def step(self, actions: npt.NDArray[np.int64]) -> StepResult:
        """One step in each of them."""
        ...

    def reset_rows(self, rows: npt.NDArray[np.int64]) -> Observations:
        """Start another episode in some of them; their first observations, (row, feature)."""
        ...


@final
class PooledEnvironments:
    """EnvPool's environments, in C++."""

    def __init__(self, environment: str, seeds: Sequence[int]) -> None:
        envpool = require("envpool", extra="fast")
        self._pool: Any = envpool.make_gymnasium(environment, num_envs=len(seeds), seed=list(seeds), num_threads=1)
        self._all = np.arange(len(seeds))
        self.limit: int = self._pool.spec.config.max_episode_steps

    def reset(self) -> Observations:
        return _flat_images(self._pool.reset()[0])

    def step(self, actions: npt.NDArray[np.int64]) -> StepResult:
        return self._step_rows(self._all, actions)

    def reset_rows(self, rows: npt.NDArray[np.int64]) -> Observations:
        return self._step_rows(rows, np.zeros_like(rows))[0]  # a step after the end is a reset, whatever the action

    def _step_rows(self, rows: npt.NDArray[np.int64], actions: npt.NDArray[np.int64]) -> StepResult:
        # Everything that EnvPool could infer is passed, since to infer it EnvPool copies every seed at every step.
        rows = rows.astype(np.int32)
        step = {"action": actions.astype(np.int32), "env_id": rows, "players": {"env_id": rows}}
        observations, rewards, terminated, truncated, _ = self._pool.step(step)
        return _flat_images(observations), rewards, terminated, truncated


@final
class PythonEnvironments:
    """Minigrid's own environments."""

    def __init__(self, task: str, seeds: Sequence[int]) -> None:
        self._environments = [make_environment(task) for _ in seeds]
        self._seeds = seeds
        self.limit: int = self._environments[0].max_steps

    def reset(self) -> Observations:
        pairs = zip(self._environments, self._seeds, strict=True)
        return np.stack([environment.reset(seed=seed)[0] for environment, seed in pairs])

    def step(self, actions: npt.NDArray[np.int64]) -> StepResult:
        pairs = zip(self._environments, actions.tolist(), strict=True)
        steps = [environment.step(action) for environment, action in pairs]
        observations, rewards, terminated, truncated, _ = zip(*steps, strict=True)
        return np.stack(observations), np.array(rewards), np.array(terminated), np.array(truncated)

    def reset_rows(self, rows: npt.NDArray[np.int64]) -> Observations:
        return np.stack([self._environments[row].reset()[0] for row in rows.tolist()])


def _flat_images(observations: dict[str, Observations]) -> Observations:
    image = observations["image"]
    return image.reshape(len(image), -1).copy()


@final
@dataclass(frozen=True)
class FinishedEpisodes:
    """The episodes that finished since they were last asked for."""

    rewards: tuple[float, ...]
    """The sum of the task's rewards in each, which the learner does not see."""
    absorbed: int
    """Steps left to the limit when the task ended an episode, summed over episodes; truncation leaves none."""
    ends: int
    """Episodes that the task ended."""


@final
class Rollouts:
    """A task's environments, reset as their episodes finish, and a record of those episodes."""

    def __init__(self, environments: Environments) -> None:
        self.environments = environments
        self._clear()

    @classmethod
    def of(cls, task: MiniGridTask, *, environments: int, seed: int) -> Rollouts:
        """In C++ where the task would be scored so, else in Python."""
        # The stream keeps its first name, since its numbers depend on it.
        seeds = [stream(seed, "practice", number).initial_seed() & 0x7FFF_FFFF for number in range(environments)]
        if task.scoring_engine == "envpool":
            return cls(PooledEnvironments(ENVIRONMENTS[task.name].id, seeds))
        return cls(PythonEnvironments(task.name, seeds))

    def reset(self) -> Observations:
        """Start an episode in every environment; the first observations, (env, feature)."""
        observations = self.environments.reset()
        self._returns, self._lengths = np.zeros(len(observations)), np.zeros(len(observations), dtype=np.int64)
        return observations

    def step(
        self, actions: npt.NDArray[np.int64]
    ) -> tuple[Observations, npt.NDArray[np.bool_], dict[int, Observations]]:
        """Observations (env, feature), whether the episode is over (env,), and the last observations of truncated ones.

        Where an episode is over the first observation of the next one is returned.
        """
        observations, rewards, terminated, truncated = self.environments.step(actions)
        self._returns += rewards
        self._lengths += 1
        over = terminated | truncated
        last = {row: observations[row].copy() for row in np.flatnonzero(truncated & ~terminated).tolist()}
        if over.any():
            self._rewards += self._returns[over].tolist()
            self._absorbed += int((self.environments.limit - self._lengths[terminated]).sum())
            self._ends += int(terminated.sum())
            self._returns[over], self._lengths[over] = 0, 0
            observations[over] = self.environments.reset_rows(np.flatnonzero(over))
        return observations, over, last

    def pop_finished(self) -> FinishedEpisodes:
        """The episodes that finished since the last call."""
        finished = FinishedEpisodes(rewards=tuple(self._rewards), absorbed=self._absorbed, ends=self._ends)
        self._clear()
        return finished

    def _clear(self) -> None:
        self._rewards: list[float] = []
        self._absorbed = self._ends = 0


def as_vec_env(rollouts: Rollouts, *, environments: int, observation_size: int, action_count: int) -> Any:
    """Rollouts as a `VecEnv` of stable-baselines3, with rewards of zero."""
    spaces = require("gymnasium.spaces", extra="minigrid")
    base = require("stable_baselines3.common.vec_env", package="ileed-lab")

    class RolloutVecEnv(base.VecEnv):  # type: ignore[name-defined, misc]
        """What stable-baselines3 needs of environments; no other attribute can be read or set."""

        def reset(self) -> Observations:
            return rollouts.reset()

        def step_async(self, actions: npt.NDArray[np.int64]) -> None:
            self._actions = actions

        def step_wait(self) -> tuple[Observations, npt.NDArray[np.float32], npt.NDArray[np.bool_], list[Any]]:
            observations, over, truncated = rollouts.step(self._actions)
            infos = [NO_INFO] * environments
            for row, last in truncated.items():
                infos[row] = {"TimeLimit.truncated": True, "terminal_observation": last}
            return observations, np.zeros(environments, dtype=np.float32), over, infos

        def close(self) -> None:
            pass

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            if attr_name != "render_mode":
                raise AttributeError(attr_name)
            return [None] * environments

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
            raise AttributeError(attr_name)

        def env_method(self, method_name: str, *arguments: Any, indices: Any = None, **named: Any) -> list[Any]:
            raise AttributeError(method_name)

        def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
            return [False] * environments

    return RolloutVecEnv(environments, spaces.Box(0, 255, (observation_size,), np.uint8), spaces.Discrete(action_count))


NO_INFO: dict[str, Any] = {}
