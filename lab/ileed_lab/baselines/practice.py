"""Practice: many environments of one task, stepped at once and without end, for a learner that is told no reward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final

import numpy as np
import numpy.typing as npt

from ileed.errors import require
from ileed.runtime import stream
from ileed.tasks.minigrid import ENVIRONMENTS, MiniGridTask, make_environment

__all__ = ["Ledger", "Practice", "vectorised"]

Seen = tuple[npt.NDArray[np.uint8], npt.NDArray[np.floating], npt.NDArray[np.bool_], npt.NDArray[np.bool_]]
"""What is seen next (env, feature), what was earned, whose episode the task ended, and whose it cut, each (env,)."""


class Worlds(Protocol):
    """Environments side by side; one whose episode is over must be renewed before it is stepped again."""

    limit: int
    """After how many steps the task cuts an episode."""

    def begin(self) -> npt.NDArray[np.uint8]:
        """What all of them show first, (env, feature)."""
        ...

    def step(self, actions: npt.NDArray[np.int64]) -> Seen:
        """What one step brings in each of them."""
        ...

    def renew(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """Begin another episode in some of them; what they show first, (row, feature)."""
        ...


@final
class PooledWorlds:
    """EnvPool's environments, in C++."""

    def __init__(self, environment: str, seeds: Sequence[int]) -> None:
        envpool = require("envpool", extra="fast")
        self._pool: Any = envpool.make_gymnasium(environment, num_envs=len(seeds), seed=list(seeds), num_threads=1)
        self._all = np.arange(len(seeds))
        self.limit: int = self._pool.spec.config.max_episode_steps

    def begin(self) -> npt.NDArray[np.uint8]:
        return _views(self._pool.reset()[0])

    def step(self, actions: npt.NDArray[np.int64]) -> Seen:
        return self._stepped(self._all, actions)

    def renew(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        return self._stepped(rows, np.zeros_like(rows))[0]  # a step after the end is a reset, whatever the action

    def _stepped(self, rows: npt.NDArray[np.int64], actions: npt.NDArray[np.int64]) -> Seen:
        # All that EnvPool could work out by itself is said, because to do so it copies every seed at every step.
        rows = rows.astype(np.int32)
        step = {"action": actions.astype(np.int32), "env_id": rows, "players": {"env_id": rows}}
        seen, rewards, ended, cut, _ = self._pool.step(step)
        return _views(seen), rewards, ended, cut


@final
class PythonWorlds:
    """Minigrid's own environments."""

    def __init__(self, task: str, seeds: Sequence[int]) -> None:
        self._worlds = [make_environment(task) for _ in seeds]
        self._seeds = seeds
        self.limit: int = self._worlds[0].max_steps

    def begin(self) -> npt.NDArray[np.uint8]:
        return np.stack([world.reset(seed=seed)[0] for world, seed in zip(self._worlds, self._seeds, strict=True)])

    def step(self, actions: npt.NDArray[np.int64]) -> Seen:
        stepped = [world.step(action) for world, action in zip(self._worlds, actions.tolist(), strict=True)]
        seen, rewards, ended, cut, _ = zip(*stepped, strict=True)
        return np.stack(seen), np.array(rewards), np.array(ended), np.array(cut)

    def renew(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        return np.stack([self._worlds[row].reset()[0] for row in rows.tolist()])


def _views(seen: dict[str, npt.NDArray[np.uint8]]) -> npt.NDArray[np.uint8]:
    image = seen["image"]
    return image.reshape(len(image), -1).copy()


@final
@dataclass(frozen=True)
class Ledger:
    """Episodes that came to an end since the books were last closed."""

    rewards: tuple[float, ...]
    """What the task paid in each, which the learner is not told."""
    absorbed: int
    """Steps that were left of the limit when the task ended an episode, of all together; time-outs leave none."""
    ends: int
    """Episodes that the task ended."""


@final
class Practice:
    """A task's environments, renewed as their episodes end, and the books on those."""

    def __init__(self, worlds: Worlds) -> None:
        self.worlds = worlds
        self._forget()

    @classmethod
    def of(cls, task: MiniGridTask, *, environments: int, seed: int) -> Practice:
        """In C++ where the task would be scored so, else in Python."""
        seeds = [stream(seed, "practice", number).initial_seed() & 0x7FFF_FFFF for number in range(environments)]
        if task.scoring_engine == "envpool":
            return cls(PooledWorlds(ENVIRONMENTS[task.name].id, seeds))
        return cls(PythonWorlds(task.name, seeds))

    def begin(self) -> npt.NDArray[np.uint8]:
        """What all environments show first, (env, feature)."""
        observations = self.worlds.begin()
        self._earned, self._taken = np.zeros(len(observations)), np.zeros(len(observations), dtype=np.int64)
        return observations

    def step(
        self, actions: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_], dict[int, npt.NDArray[np.uint8]]]:
        """What is seen next (env, feature), whose episode is over (env,), and the last sight of those that were cut.

        Where an episode is over the first sight of the next one is shown.
        """
        observations, rewards, ended, cut = self.worlds.step(actions)
        self._earned += rewards
        self._taken += 1
        over = ended | cut
        timed_out = {row: observations[row].copy() for row in np.flatnonzero(cut & ~ended).tolist()}
        if over.any():
            self._rewards += self._earned[over].tolist()
            self._absorbed += int((self.worlds.limit - self._taken[ended]).sum())
            self._ends += int(ended.sum())
            self._earned[over], self._taken[over] = 0, 0
            observations[over] = self.worlds.renew(np.flatnonzero(over))
        return observations, over, timed_out

    def close_books(self) -> Ledger:
        """The episodes since the last time."""
        ledger = Ledger(rewards=tuple(self._rewards), absorbed=self._absorbed, ends=self._ends)
        self._forget()
        return ledger

    def _forget(self) -> None:
        self._rewards: list[float] = []
        self._absorbed = self._ends = 0


def vectorised(practice: Practice, *, environments: int, observation_size: int, action_count: int) -> Any:
    """Practice as stable-baselines3 steps it, with rewards of zero."""
    spaces = require("gymnasium.spaces", extra="minigrid")
    base = require("stable_baselines3.common.vec_env", package="ileed-lab")

    class Vectorised(base.VecEnv):  # type: ignore[name-defined, misc]
        """What stable-baselines3 asks of environments; nothing else about them can be read or set."""

        def reset(self) -> npt.NDArray[np.uint8]:
            return practice.begin()

        def step_async(self, actions: npt.NDArray[np.int64]) -> None:
            self._actions = actions

        def step_wait(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32], npt.NDArray[np.bool_], list[Any]]:
            observations, over, timed_out = practice.step(self._actions)
            notes = [NOTHING] * environments
            for row, last in timed_out.items():
                notes[row] = {"TimeLimit.truncated": True, "terminal_observation": last}
            return observations, np.zeros(environments, dtype=np.float32), over, notes

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

    return Vectorised(environments, spaces.Box(0, 255, (observation_size,), np.uint8), spaces.Discrete(action_count))


NOTHING: dict[str, Any] = {}
