"""Environments of gymnasium as tasks: any that shows numbers and takes one discrete or continuous action a step."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any, NoReturn, final

import numpy as np
import numpy.typing as npt

from ileed._torch import stream
from ileed.checking import at_least_one
from ileed.errors import IleedError, SettingsError, require
from ileed.tasks import (
    AbstractTask,
    Actor,
    Playthrough,
    Progress,
    World,
    all_names,
    as_actor,
    in_lockstep,
    score_in_lockstep,
)
from ileed.wording import did_you_mean

__all__ = ["GymnasiumTask"]

_EXTRA = "gymnasium"
"""The extra of this package that brings gymnasium."""

ENDLESS = 10_000
"""Steps after which an episode without a limit of its own is taken to be endless."""


@final
class GymnasiumTask(AbstractTask):
    """An environment of gymnasium, by its id or by a function that makes one.

    Observations are flattened to one row of numbers: those of a Dict by name in sorted order, those of a Tuple by
    position, each raveled. A Discrete entry is one number, as the environment gives it. Actions are Discrete, numbered
    from 0 whatever the space's `start`, or a Box, whose bounds cut what an actor answers.

    Episode k begins with `reset(seed=...)`, with a seed that depends on `(seed, k)` alone. Each environment plays
    several episodes, one after the other: the laws of `AbstractTask` hold where `reset` leaves nothing of the episode
    before, as gymnasium demands.

    `max_steps` ends every episode after so many steps, with what it earned so far. Where it is None the environment's
    own limit holds; an episode without one is refused once it has lasted 10,000 steps.
    """

    def __init__(self, environment: str | Callable[[], Any], *, max_steps: int | None = None) -> None:
        if max_steps is not None:
            at_least_one(max_steps=max_steps)
        self._environment, self._max_steps = environment, max_steps
        self._gymnasium = _gymnasium(environment)
        first = self._make()
        try:
            self._spaces = _flattened(first.observation_space, self._gymnasium.spaces, self.name)
            self._actions = _actions_of(first.action_space, self._gymnasium.spaces, self.name)
            self._shape = first.observation_space.shape if len(self._spaces) == 1 else None
            self._ends = getattr(first.spec, "max_episode_steps", None) is not None
        finally:
            first.close()
        self._first = first.unwrapped  # kept, to notice a function that gives the same environment again
        self._dtype = np.result_type(*(space.dtype for space in self._spaces))

    def __repr__(self) -> str:
        limit = "" if self._max_steps is None else f", max_steps={self._max_steps}"
        return f"GymnasiumTask({self.name!r}{limit})"

    @property
    def name(self) -> str:
        if isinstance(self._environment, str):
            return self._environment
        return getattr(self._environment, "__name__", type(self._environment).__name__)

    @property
    def observation_size(self) -> int:
        return sum(space.size for space in self._spaces)

    @property
    def action_count(self) -> int:
        return self._actions.count

    @property
    def action_size(self) -> int:
        return self._actions.size

    def actor_from(self, policy: Any) -> Actor:
        """An actor that does what `policy` finds most likely, or one sentence on why it cannot play here.

        A policy that says which `observation_shape` or `observation_space` it learned from is shown observations of
        that shape, one with `predict` alone the environment's own, and an actor rows of numbers.
        """
        asked = _Asked.of(policy)
        shape = self._shape_for(policy, asked)
        self._check_actions(asked)
        actor = as_actor(policy)

        def act(observations: npt.NDArray[Any], starts: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
            rows = len(observations)
            actions = np.asarray(actor(observations.reshape(rows, *shape), starts))
            return actions.reshape(rows, -1) if self.action_size and actions.ndim > 2 else actions

        return act

    def score(
        self, actor: Actor, *, episodes: int, seed: int, environments: int = 64, progress: Progress | None = None
    ) -> npt.NDArray[np.float64]:
        """Sum of rewards of each of exactly `episodes` episodes, in the order of their numbers.

        `environments` are stepped side by side, with one call of the actor for all of them.
        """
        at_least_one(episodes=episodes, environments=environments)
        width = min(environments, episodes)
        with closing(_Rows(self, seed, width)) as rows:
            return score_in_lockstep(
                self,
                actor,
                rows,
                episodes=episodes,
                width=width,
                tell=lambda done: None if progress is None else progress(done, episodes),
            )

    def play(self, actor: Actor, *, steps: int, seeds: Sequence[int], progress: Progress | None = None) -> Playthrough:
        """Play `steps` steps in each of `len(seeds)` environments at once, episode after episode, and keep them all.

        Episode k of environment e is episode k of `score` with the seed `seeds[e]`. The last episode of an environment
        is cut where its steps are spent.
        """
        with ExitStack() as opened:
            worlds = [opened.enter_context(closing(_World(self))) for _ in seeds]

            def begin(environment: int, episode: int) -> tuple[World, npt.NDArray[Any]]:
                return worlds[environment], worlds[environment].begin(seeds[environment], episode)

            return in_lockstep(self, actor, begin, steps=steps, environments=len(seeds), progress=progress)

    def _shape_for(self, policy: Any, asked: _Asked) -> tuple[int, ...]:
        """How to show an observation to this policy."""
        flat = (self.observation_size,)
        own = flat if self._shape is None else self._shape
        if asked.shape is None:
            return own if hasattr(policy, "predict") else flat
        if asked.shape in (own, flat):
            return asked.shape
        raise SettingsError(
            f"this policy learned from observations of shape {asked.shape}, and {self.name} shows observations of "
            f"shape {own}: evaluate it in the environment that it was fitted to, or with the same wrappers"
        )

    def _check_actions(self, asked: _Asked) -> None:
        if asked.action_size and self.action_count:
            raise SettingsError(
                f"this policy answers with {asked.action_size} continuous numbers, and {self.name} takes one of "
                f"{self.action_count} discrete actions: evaluate it in an environment with continuous actions"
            )
        if asked.action_count and self.action_size:
            raise SettingsError(
                f"this policy chooses among {asked.action_count} discrete actions, and {self.name} takes "
                f"{self.action_size} continuous numbers: evaluate it in an environment with discrete actions"
            )
        if asked.action_count > self.action_count:
            offset = f"; number actions from 0, not from {self._actions.start}" if self._actions.start else ""
            raise SettingsError(
                f"this policy chooses among {asked.action_count} actions, and {self.name} has "
                f"{self.action_count}: evaluate it in the environment that it was fitted to{offset}"
            )
        if asked.action_size and asked.action_size != self.action_size:
            raise SettingsError(
                f"this policy answers with {asked.action_size} continuous numbers, and {self.name} takes "
                f"{self.action_size}: evaluate it in the environment that it was fitted to"
            )

    def _make(self) -> Any:
        if not isinstance(self._environment, str):
            made = self._environment()
            if not isinstance(made, self._gymnasium.Env):
                raise SettingsError(
                    f"{self.name}() returned {type(made).__name__}, and not a gymnasium.Env: return one environment, "
                    "unvectorised"
                )
            return made
        with warnings.catch_warnings():
            # Which version of an environment is wanted is the caller's choice, and nothing is drawn here.
            warnings.filterwarnings("ignore", message=r".*WARN: ", module=r"gymnasium\.")
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            try:
                return self._gymnasium.make(self._environment, disable_env_checker=True)
            except self._gymnasium.error.UnregisteredEnv:
                _refuse_unknown(self._environment, list(self._gymnasium.registry))
            except (self._gymnasium.error.Error, ImportError) as error:
                raise SettingsError(
                    f"gymnasium cannot make {self._environment!r}: {_sentence(error)}; install what it needs, or "
                    "pass a function that makes the environment"
                ) from error


@dataclass(frozen=True)
class _Actions:
    """What an environment takes, and how an actor's answer becomes that."""

    count: int = 0
    size: int = 0
    start: int = 0
    box: Any = None

    def taken(self, action: Any) -> Any:
        """The environment's action for an actor's: a number, or (size,) numbers."""
        if self.box is None:
            return action + self.start
        inside = np.clip(np.reshape(action, self.box.shape), self.box.low, self.box.high)
        whole = np.issubdtype(self.box.dtype, np.integer)
        return (np.rint(inside) if whole else inside).astype(self.box.dtype)


@dataclass(frozen=True)
class _Asked:
    """What a policy says of the observations and actions that it was made for; nothing where it does not say."""

    shape: tuple[int, ...] | None = None
    action_count: int = 0
    action_size: int = 0

    @classmethod
    def of(cls, policy: Any) -> _Asked:
        """From our own attributes, or from the spaces that stable-baselines3's policies keep."""
        observed, acted = (getattr(policy, f"{what}_space", None) for what in ("observation", "action"))
        if observed is None or acted is None:
            shape = getattr(policy, "observation_shape", None)
            return cls(
                None if shape is None else tuple(shape),
                int(getattr(policy, "action_count", 0)),
                int(getattr(policy, "action_size", 0)),
            )
        if observed.shape is None:
            raise SettingsError(
                f"this policy takes observations of several parts ({observed}), and here they are flattened to one "
                "row of numbers: pass a function of (observations, starts) that takes them apart again"
            )
        count = int(getattr(acted, "n", 0)) if acted.shape == () else 0
        return cls(tuple(observed.shape), count, 0 if count else math.prod(acted.shape or ()))


@final
class _World:
    """One environment, whose observations are rows of numbers and whose actions are an actor's."""

    def __init__(self, task: GymnasiumTask) -> None:
        self._task, self._environment = task, task._make()
        if self._environment.unwrapped is task._first:
            raise SettingsError(
                f"{task.name}() returns the same environment again: make a new one in each call, since several are "
                "played side by side"
            )
        self._steps = 0

    def begin(self, seed: int, episode: int) -> npt.NDArray[Any]:
        """What is seen first in the episode of that number."""
        self._steps = 0
        # 31 bits: some environments take no longer seeds.
        return self._seen(
            self._environment.reset(seed=stream(seed, "episode", episode).initial_seed() & 0x7FFF_FFFF)[0]
        )

    def step(self, action: Any, /) -> tuple[npt.NDArray[Any], float, bool, bool, dict[str, Any]]:
        seen, reward, terminated, truncated, rest = self._environment.step(self._task._actions.taken(action))
        self._steps += 1
        over = bool(terminated or truncated)
        if not over and self._task._max_steps is not None:
            truncated = self._steps >= self._task._max_steps
        elif not over and not self._task._ends and self._steps >= ENDLESS:
            raise SettingsError(
                f"an episode of {self._task.name} is not over after {ENDLESS:,} steps, and the environment sets no "
                f"limit: pass max_steps={ENDLESS:_}, or fewer, to end episodes there"
            )
        return self._seen(seen), float(reward), bool(terminated), bool(truncated), rest

    def _seen(self, observation: Any) -> npt.NDArray[Any]:
        row = np.empty(self._task.observation_size, dtype=self._task._dtype)
        filled = 0
        for space in self._task._spaces:
            part = observation
            for key in space.path:
                part = part[key]
            if np.shape(part) != space.shape:
                raise SettingsError(
                    f"{self._task.name} shows {space.words} of shape {np.shape(part)}, and its observation_space says "
                    f"{space.shape}: mend the environment"
                )
            row[filled : filled + space.size] = np.ravel(part)
            filled += space.size
        return row

    def close(self) -> None:
        self._environment.close()


@final
class _Rows:
    """Environments side by side, each of which plays one episode after the other."""

    def __init__(self, task: GymnasiumTask, seed: int, rows: int) -> None:
        self._seed, self._worlds = seed, list[_World]()
        with ExitStack() as opened:
            for _ in range(rows):
                self._worlds.append(opened.enter_context(closing(_World(task))))
            if len({id(world._environment.unwrapped) for world in self._worlds}) < rows:
                raise SettingsError(
                    f"{task.name}() returns the same environment again: make a new one in each call, since several "
                    "are played side by side"
                )
            opened.pop_all()

    def begin(self, rows: npt.NDArray[np.int64], episodes: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        pairs = zip(rows.tolist(), episodes.tolist(), strict=True)
        return np.stack([self._worlds[row].begin(self._seed, episode) for row, episode in pairs])

    def step(
        self, rows: npt.NDArray[np.int64], actions: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
        stepped = [self._worlds[row].step(action) for row, action in zip(rows.tolist(), actions, strict=True)]
        seen, rewards, terminated, truncated, _ = zip(*stepped, strict=True)
        return np.stack(seen), np.array(rewards), np.array(terminated) | np.array(truncated)

    def close(self) -> None:
        for world in self._worlds:
            world.close()


@dataclass(frozen=True)
class _Part:
    """A part of an observation that is an array of numbers, and where it lies."""

    path: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def words(self) -> str:
        return "observations" + (f"[{']['.join(map(repr, self.path))}]" if self.path else "")


def _flattened(space: Any, spaces: Any, name: str, path: tuple[Any, ...] = ()) -> list[_Part]:
    """The parts of an observation space, in the order in which their numbers stand in a row."""
    if isinstance(space, spaces.Dict):
        inner = sorted(space.spaces.items(), key=lambda item: str(item[0]))
        return [part for key, each in inner for part in _flattened(each, spaces, name, (*path, key))]
    if isinstance(space, spaces.Tuple):
        return [part for key, each in enumerate(space) for part in _flattened(each, spaces, name, (*path, key))]
    if isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return [_Part(path, tuple(space.shape), np.dtype(space.dtype))]
    part = _Part(path, (), np.dtype(float)).words
    raise SettingsError(
        f"{name} shows {part} of {type(space).__name__}, which are no fixed number of numbers: pass a function that "
        "makes the environment with a wrapper of gymnasium, such as FilterObservation, that leaves them out"
    )


def _actions_of(space: Any, spaces: Any, name: str) -> _Actions:
    if isinstance(space, spaces.Discrete):
        return _Actions(count=int(space.n), start=int(space.start))
    if isinstance(space, spaces.Box):
        return _Actions(size=math.prod(space.shape), box=space)
    raise SettingsError(
        f"{name} takes actions of {type(space).__name__}: a policy answers with one Discrete action or the numbers of "
        "a Box; pass a function that makes the environment with a wrapper for its actions"
    )


def _gymnasium(environment: Any) -> Any:
    """The library; where it is not installed, a sentence that also says what was asked for."""
    try:
        return require("gymnasium", extra=_EXTRA)
    except IleedError as error:
        if not isinstance(environment, str):
            raise
        raise SettingsError(
            f"there is no task {environment!r} of ours{did_you_mean(environment, all_names())}, and environments of "
            f"gymnasium need that package: pip install 'ileed[{_EXTRA}]'"
        ) from error


def _refuse_unknown(name: str, registered: Sequence[str]) -> NoReturn:
    raise SettingsError(
        f"there is no task or gymnasium environment {name!r}{did_you_mean(name, [*all_names(), *registered])}; "
        "gymnasium.pprint_registry() lists its environments, and a package with others is named as in 'package:Name-v0'"
    )


def _sentence(error: Exception) -> str:
    """The first sentence of an error, without colours, on one line."""
    words = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(error)).split())
    return words.split(". ")[0].rstrip(".") or type(error).__name__
