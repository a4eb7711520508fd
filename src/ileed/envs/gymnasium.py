"""Environments of gymnasium as tasks: numeric observations, and one discrete or continuous action per step."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce
from operator import getitem
from typing import Any, final

import numpy as np
import numpy.typing as npt

from ileed.envs import all_names
from ileed.envs.abstract_task import (
    AbstractTask,
    Actor,
    Array,
    Flags,
    Playthrough,
    Progress,
    as_actor,
    open_rows,
    play_rows,
    score_rows,
)
from ileed.errors import IleedError, SettingsError, at_least_one, brief, did_you_mean, require

__all__ = ["GymnasiumTask"]

ENDLESS = 10_000  # steps after which an episode is refused if its environment sets no limit


@final
class GymnasiumTask(AbstractTask):
    """An environment of gymnasium, by its id or by a function that makes one.

    Observations are flattened to one row of numbers, a Dict in the order of sorted names; Discrete entries stay single
    numbers. Actions are Discrete, numbered from 0 whatever the space's `start`, or a Box, to which they are clipped.

    The laws of `AbstractTask` hold if `reset(seed=...)` fully resets the environment, as gymnasium requires.
    `max_steps` truncates every episode; None leaves that to the environment. An episode without any limit is refused
    after 10,000 steps.
    """

    def __init__(self, environment: str | Callable[[], Any], *, max_steps: int | None = None) -> None:
        if max_steps is not None:
            at_least_one(max_steps=max_steps)
        self._environment, self._max_steps = environment, max_steps
        by_id = isinstance(environment, str)
        self.name = str(environment) if by_id else getattr(environment, "__name__", type(environment).__name__)
        try:
            self._gymnasium = require("gymnasium", extra="gymnasium")
        except IleedError as error:
            if not by_id:
                raise
            raise SettingsError(
                f"ileed has no task {self.name!r}{did_you_mean(self.name, all_names())}, and environments of gymnasium "
                "need that package: pip install 'ileed[gymnasium]'"
            ) from error
        first = self._make()
        try:
            self._arrays = list(_arrays(first.observation_space, self._gymnasium.spaces, self.name))
            self._action_space = first.action_space
            self.action_count, self.action_size = _actions_of(first.action_space, self._gymnasium.spaces, self.name)
            self._shape = first.observation_space.shape if len(self._arrays) == 1 else None
            has_limit = getattr(first.spec, "max_episode_steps", None) is not None
            self._limit = max_steps or (math.inf if has_limit else ENDLESS)
        finally:
            first.close()
        self.observation_size = sum(math.prod(space.shape) for _, _, space in self._arrays)
        self._first = first.unwrapped  # kept to recognise a function that returns the same environment again

    def __repr__(self) -> str:
        limit = "" if self._max_steps is None else f", max_steps={self._max_steps}"
        return f"GymnasiumTask({self.name!r}{limit})"

    def actor_from(self, policy: Any) -> Actor:
        """An actor that takes the most likely actions of `policy`, which is refused if it cannot play here.

        A policy with an `observation_shape` or `observation_space` receives observations of that shape, others with
        `predict` the environment's own, and actors rows of numbers.
        """
        asked, (count, size) = _made_for(policy, self._gymnasium.spaces)
        flat = (self.observation_size,)
        own = flat if self._shape is None else self._shape
        shape = asked if asked is not None else own if hasattr(policy, "predict") else flat
        if shape not in (own, flat):
            raise SettingsError(
                f"this policy learned from observations of shape {shape}, and {self.name} shows observations of shape "
                f"{own}: evaluate it in the environment that it was fitted to, or with the same wrappers"
            )
        if count > self.action_count or size not in (0, self.action_size):  # a policy that does not state them may act
            start = getattr(self._action_space, "start", 0)
            offset = f"; number actions from 0, not from {start}" if start else ""
            takes = _in_words(self.action_count, self.action_size)
            raise SettingsError(
                f"this policy answers with {_in_words(count, size)}, and {self.name} takes {takes}: evaluate it in the "
                f"environment that it was fitted to{offset}"
            )
        actor = as_actor(policy)

        def act(observations: Array, starts: Flags) -> Array:
            rows = len(observations)
            actions = np.asarray(actor(observations.reshape(rows, *shape), starts))
            return actions.reshape(rows, -1) if self.action_size and actions.ndim > 2 else actions

        return act

    def score(
        self, actor: Actor, *, episodes: int, seed: int, environments: int = 64, progress: Progress | None = None
    ) -> npt.NDArray[np.float64]:
        at_least_one(episodes=episodes, environments=environments)
        width = min(environments, episodes)
        with open_rows(partial(self._row, [self._first]), [seed] * width) as rows:
            return score_rows(self, actor, rows, np.arange(episodes), width, progress)

    def play(self, actor: Actor, *, steps: int, seeds: Sequence[int], progress: Progress | None = None) -> Playthrough:
        with open_rows(partial(self._row, [self._first]), seeds) as rows:
            return play_rows(self, actor, rows, steps, len(seeds), progress)

    def environment_action(self, action: Any) -> Any:
        """Convert an actor's action to the environment's, clipped to its bounds."""
        space = self._action_space
        if not self.action_size:
            return action + int(space.start)
        inside = np.clip(np.reshape(action, space.shape), space.low, space.high)
        return (np.rint(inside) if space.dtype.kind in "iu" else inside).astype(space.dtype)

    def _row(self, others: list[Any]) -> _Row:
        """A new environment, which is added to the others, or refused if it is one of them."""
        environment = self._make()
        if any(environment.unwrapped is other for other in others):
            environment.close()
            raise SettingsError(f"{self.name}() returns the same environment again: make a new one in each call")
        others.append(environment.unwrapped)
        return _Row(self, environment)

    def _make(self) -> Any:
        if not isinstance(self._environment, str):
            made = self._environment()
            if not isinstance(made, self._gymnasium.Env):
                found = type(made).__name__
                raise SettingsError(f"{self.name}() returned {found}, and not a gymnasium.Env: return one")
            return made
        with warnings.catch_warnings():
            # gymnasium warns of old versions and missing renderers, which are the caller's choice
            warnings.filterwarnings("ignore", message=r".*WARN: ", module=r"gymnasium\.")
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            try:
                return self._gymnasium.make(self._environment, disable_env_checker=True)
            except self._gymnasium.error.UnregisteredEnv as error:
                meant = did_you_mean(self.name, [*all_names(), *self._gymnasium.registry])
                raise SettingsError(
                    f"there is no task or gymnasium environment {self.name!r}{meant}; gymnasium.pprint_registry() "
                    "lists its environments, and a package with others is named as in 'package:Name-v0'"
                ) from error
            except (self._gymnasium.error.Error, ImportError) as error:
                raise SettingsError(
                    f"gymnasium cannot make {self.name!r}: {brief(error)}; install what it needs, or pass a function "
                    "that makes the environment"
                ) from error


def _in_words(count: int, size: int) -> str:
    return f"{size} continuous numbers" if size else f"one of {count} discrete actions"


def _actions_of(space: Any, spaces: Any, name: str) -> tuple[int, int]:
    """The number of discrete actions and the dimensions of continuous ones; one of them is 0."""
    if isinstance(space, spaces.Discrete):
        return int(space.n), 0
    if isinstance(space, spaces.Box):
        return 0, math.prod(space.shape)
    raise SettingsError(
        f"{name} takes actions of {type(space).__name__}: policies support one Discrete action or "
        "a Box; pass a function that makes the environment with a wrapper for its actions"
    )


def _made_for(policy: Any, spaces: Any) -> tuple[tuple[int, ...] | None, tuple[int, int]]:
    """The shape of observations and the actions of a policy, by its spaces or by the attributes of ours."""
    observed, acted = getattr(policy, "observation_space", None), getattr(policy, "action_space", None)
    if observed is None or acted is None:
        shape = getattr(policy, "observation_shape", None)
        counts = int(getattr(policy, "action_count", 0)), int(getattr(policy, "action_size", 0))
        return (None if shape is None else tuple(shape)), counts
    if observed.shape is None:
        raise SettingsError(
            f"this policy takes observations of several parts ({observed}), and these are flattened to one row of "
            "numbers here: pass a function of (observations, starts) that splits them again"
        )
    return observed.shape, _actions_of(acted, spaces, "this policy")


def _arrays(space: Any, spaces: Any, name: str, path: tuple[Any, ...] = ()) -> Iterator[tuple[str, Any, Any]]:
    """The description, keys and space of each array of an observation, in the order of a flat row."""
    words = "observations" + "".join(f"[{key!r}]" for key in path)
    if isinstance(space, spaces.Dict | spaces.Tuple):
        by_name = isinstance(space, spaces.Dict)
        inner = sorted(space.spaces.items(), key=lambda item: str(item[0])) if by_name else enumerate(space)
        for key, each in inner:
            yield from _arrays(each, spaces, name, (*path, key))
    elif isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        yield words, path, space
    else:
        raise SettingsError(
            f"{name} shows {words} of {type(space).__name__}, which have no fixed size: pass a "
            "function that makes the environment with a wrapper, such as FilterObservation, that leaves them out"
        )


@final
class _Row:
    """An environment with flat observations and the actions of an actor."""

    def __init__(self, task: GymnasiumTask, environment: Any) -> None:
        self._task, self._environment, self._steps = task, environment, 0
        self.close = environment.close

    def reset(self, *, seed: int) -> tuple[Array, dict[str, Any]]:
        self._steps = 0
        seen, rest = self._environment.reset(seed=seed)
        return self._flat(seen), rest

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        seen, reward, terminated, truncated, rest = self._environment.step(self._task.environment_action(action))
        self._steps += 1
        cut = self._steps >= self._task._limit and not (terminated or truncated)
        if cut and self._task._max_steps is None:
            raise SettingsError(
                f"an episode of {self._task.name} is not over after {ENDLESS:,} steps, and the environment sets no "
                f"limit: pass max_steps={ENDLESS:_}, or fewer, to end episodes there"
            )
        return self._flat(seen), float(reward), bool(terminated), bool(truncated or cut), rest

    def _flat(self, observation: Any) -> Array:
        found = []
        for words, path, space in self._task._arrays:
            part = reduce(getitem, path, observation)
            if np.shape(part) != space.shape:
                raise SettingsError(
                    f"{self._task.name} shows {words} of shape {np.shape(part)}, and its observation_space "
                    f"says {space.shape}: correct the environment"
                )
            found.append(np.asarray(part, space.dtype).ravel())
        return np.concatenate(found)
