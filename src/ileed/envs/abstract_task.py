"""The interface of a task, what is recorded when one is played, and actors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from ileed.errors import SettingsError

Array = npt.NDArray[Any]
Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Progress = Callable[[int, int], None]
"""A callback that receives how much is done, and of how much; the last call says all."""


class Actor(Protocol):
    """Answers observations (env, feature) with actions: (env,) numbers, or (env, dimension) where continuous.

    Row e of every call within one `score` or `play` is the same environment e, so a recurrent actor can keep a hidden
    state for each row. `starts[e]` is True where row e shows the first observation of an episode.
    """

    def __call__(self, observations: Array, starts: Flags) -> Array: ...


@dataclass(frozen=True, kw_only=True)
class Playthrough:
    """Every step that was played, one environment after the other, each in the order of time; a row for each step."""

    observations: Array  # (step, feature) what was seen before acting
    actions: Array  # (step,) numbers of actions, or (step, dimension) where they are continuous
    rewards: npt.NDArray[np.float32]
    terminals: Flags  # where the task itself ended the episode; one cut by a limit of time or steps has none
    episode: Numbers  # counted through all environments
    environment: Numbers
    phase: Numbers | None = None  # index of the step in the task's `phases`, where it has any


class AbstractTask(ABC):
    """Something to be played in episodes, by actors that see numbers and answer with an action.

    The actor's answer is recorded, also where the task clips it.

    Laws that every task keeps:

    1. A seed fixes everything but the actor: the same actor, seed and counts give the same numbers to the bit.
    2. Episode k of `score` depends on `(seed, k)` and on the actor's answers, not on how many environments are stepped
       at once, nor on how many episodes are asked for.
    3. Exactly `episodes` episodes are counted, and every episode that was started is counted, whatever its length.
    4. Environment e of `play` depends on `seeds[e]` and on the actor's answers to it, not on its neighbours.
    5. No global random generator is read or moved.
    """

    name: str
    """What `task` calls it, as in 'minigrid/obstacles'."""
    observation_size: int
    """How many numbers an observation has."""
    action_count: int
    """How many actions there are, numbered from 0; none where they are continuous."""
    action_size: int = 0
    """How many numbers a continuous action has; 0 where actions are numbered."""
    phases: tuple[str, ...] = ()
    """What skill may differ between: the phases of an episode, or the stages of a sequence of tasks; often none."""

    def phase(self, observations: Array, episodes: Numbers | None = None) -> Numbers:
        """Which of the `phases` each of (step, feature) observations belongs to, (step,).

        `episodes`, the number of each step's episode in its environment, is not needed where an observation shows it.
        """
        raise SettingsError(f"{self.name} has no phases; ask a task that names some")

    def actor_from(self, policy: Any) -> Actor:
        """An actor that does here what `policy` finds most likely; a task may refuse one that was made for another."""
        return as_actor(policy)

    @abstractmethod
    def score(
        self, actor: Actor, *, episodes: int, seed: int, environments: int = 256, progress: Progress | None = None
    ) -> npt.NDArray[np.float64]:
        """Sum of rewards of each of exactly `episodes` episodes, in the order of their numbers."""

    @abstractmethod
    def play(self, actor: Actor, *, steps: int, seeds: Sequence[int], progress: Progress | None = None) -> Playthrough:
        """Play `steps` steps in each of `len(seeds)` environments at once, episode after episode, and keep them all.

        Episode k of environment e is episode k of `score` with the seed `seeds[e]`, played with the same engine. The
        last episode of an environment is cut where its steps are spent.
        """


def as_actor(policy: Any) -> Actor:
    """An actor that does what `policy` finds most likely; an actor is returned as it is.

    `policy` has stable-baselines3's `predict(observation, state, episode_start, deterministic)`, whose state is carried
    from step to step.
    """
    if not hasattr(policy, "predict"):
        if callable(policy):
            return cast(Actor, policy)
        raise SettingsError(
            f"{policy!r} cannot act: pass something with stable-baselines3's predict, or a function of (observations, "
            "starts) that returns actions"
        )
    state: Any = None

    def act(observations: Array, starts: Flags) -> Array:
        nonlocal state
        actions, state = policy.predict(observations, state=state, episode_start=starts, deterministic=True)
        return np.asarray(actions)

    return act


def actions_of(actor: Actor, task: AbstractTask, observations: Array, starts: Flags) -> Array:
    """What an actor does in a task, (env,) or (env, dimension), or one sentence on why the task cannot take it."""
    # The actor is given copies, since it may keep what it was shown while the task writes the next step in place.
    actions = np.asarray(actor(observations.copy(), starts.copy()))
    size = task.action_size
    shape = (len(starts), size) if size else (len(starts),)
    if actions.shape != shape or actions.dtype.kind not in ("f" if size else "iu"):
        raise SettingsError(
            f"the actor answered {len(starts)} observations with {actions.dtype} of shape {actions.shape}; {task.name} "
            f"takes {f'{size} floating-point numbers' if size else 'one whole number'} for each, shape {shape}"
        )
    unfit = ~np.isfinite(actions).all(axis=-1) if size else (actions < 0) | (actions >= task.action_count)
    if unfit.any():
        numbered = f"has {task.action_count} actions, numbered from 0; was it made for another task?"
        rule = "takes finite numbers; did its fit become non-finite?" if size else numbered
        raise SettingsError(f"the actor chose action {actions[unfit][0].tolist()}, but {task.name} {rule}")
    return actions.astype(np.float64 if size else np.int64)
