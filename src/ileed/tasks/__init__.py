"""Tasks that can be played: what is seen, what can be done, and how well an actor does.

>>> task("minigrid/obstacles")
MiniGridTask(name='minigrid/obstacles')
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from ileed.errors import SettingsError

if TYPE_CHECKING:
    from ileed.tasks.minigrid import Expert, MiniGridTask

__all__ = ["AbstractTask", "Actor", "Playthrough", "Progress", "answered", "as_actor", "expert", "names", "task"]

Progress = Callable[[int, int], None]
"""Told how much is done, and of how much, from time to time; the last call says all."""


class Actor(Protocol):
    """Anything that answers a batch of observations with one action each.

    Row e of every call within one `score` or `play` is the same environment e, so an actor with a memory can keep it by
    row. `starts[e]` is True where row e shows the first observation of an episode: forget what came before.
    """

    def __call__(self, observations: npt.NDArray[Any], starts: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
        """Actions (env,) for observations (env, feature)."""
        ...


@dataclass(frozen=True, kw_only=True)
class Playthrough:
    """Every step that was played, one environment after the other, each in the order of time.

    All columns have as many rows as steps were played in all environments together.
    """

    observations: npt.NDArray[Any]
    """What was seen before acting, (step, feature)."""
    actions: npt.NDArray[np.int64]
    """What was done, (step,)."""
    rewards: npt.NDArray[np.float32]
    """What the action earned, (step,)."""
    terminals: npt.NDArray[np.bool_]
    """True where the task itself ended the episode; an episode cut by a limit of time or steps has none, (step,)."""
    episode: npt.NDArray[np.int64]
    """Which episode the step belongs to, counted through all environments, (step,)."""
    environment: npt.NDArray[np.int64]
    """Which environment the step was played in, (step,)."""


class AbstractTask(ABC):
    """Something to be played in episodes, by actors that see numbers and choose one of `action_count` actions.

    Laws that every task keeps:

    1. A seed fixes everything but the actor: the same actor, seed and counts give the same numbers to the bit.
    2. Episode k of `score` depends on `(seed, k)` and on the actor's answers, not on how many environments are stepped
       at once, nor on how many episodes are asked for.
    3. Exactly `episodes` episodes are counted, and every episode that was started is counted, whatever its length.
    4. Environment e of `play` depends on `seeds[e]` and on the actor's answers to it, not on its neighbours.
    5. No global random generator is read or moved.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """What `task` calls it, as in 'minigrid/obstacles'."""

    @property
    @abstractmethod
    def observation_size(self) -> int:
        """How many numbers an observation has."""

    @property
    @abstractmethod
    def action_count(self) -> int:
        """How many actions there are; they are numbered from 0."""

    @abstractmethod
    def score(
        self, actor: Actor, *, episodes: int, seed: int, environments: int = 64, progress: Progress | None = None
    ) -> npt.NDArray[np.float64]:
        """Sum of rewards of each of exactly `episodes` episodes, in the order of their numbers."""

    @abstractmethod
    def play(self, actor: Actor, *, steps: int, seeds: Sequence[int], progress: Progress | None = None) -> Playthrough:
        """Play `steps` steps in each of `len(seeds)` environments at once, episode after episode, and keep them all.

        The last episode of an environment is cut where its steps are spent.
        """


def as_actor(policy: Any) -> Actor:
    """An actor that does what `policy` finds most likely.

    `policy` is anything with stable-baselines3's `predict(observation, state, episode_start, deterministic)`, whose
    state is carried from step to step, or an actor already, which is returned as it is.
    """
    if not hasattr(policy, "predict"):
        if not callable(policy):
            raise SettingsError(
                f"{policy!r} cannot act: pass something with stable-baselines3's predict, or a function of "
                "(observations, starts) that returns actions"
            )
        return cast(Actor, policy)
    state: Any = None

    def act(observations: npt.NDArray[Any], starts: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
        nonlocal state
        actions, state = policy.predict(observations, state=state, episode_start=starts, deterministic=True)
        return np.asarray(actions)

    return act


def answered(
    actor: Actor, task: AbstractTask, observations: npt.NDArray[Any], starts: npt.NDArray[np.bool_]
) -> npt.NDArray[np.int64]:
    """What an actor does in a task, (env,), or one sentence on why the task cannot take it."""
    # The actor is given copies, since it may keep what it was shown while the task writes the next step in place.
    actions = np.asarray(actor(observations.copy(), starts.copy()))
    if actions.shape != starts.shape or actions.dtype.kind not in "iu":
        raise SettingsError(
            f"the actor answered {len(starts)} observations with {actions.dtype} of shape {actions.shape}; "
            f"it must return one whole number for each, shape {starts.shape}"
        )
    stray = actions[(actions < 0) | (actions >= task.action_count)]
    if len(stray):
        raise SettingsError(
            f"the actor chose action {stray[0]}, but {task.name} has {task.action_count} actions, numbered from 0; "
            "was it made for another task?"
        )
    return actions.astype(np.int64)


def task(name: str) -> MiniGridTask:
    """The task of that name.

    >>> task("minigrid/lava").action_count
    7
    """
    from ileed.tasks.minigrid import MiniGridTask

    return MiniGridTask(_known(name))


def expert(name: str) -> Expert:
    """The trained policy that ships for a task; needs neither the task's library nor the one that trained it.

    >>> expert("minigrid/empty").action_count
    7
    """
    from ileed.tasks.minigrid import Expert, expert_path

    return Expert.load(expert_path(_known(name)))


def names() -> tuple[str, ...]:
    """Every name that `task` knows."""
    from ileed.tasks.minigrid import ENVIRONMENTS

    return tuple(ENVIRONMENTS)


def _known(name: str) -> str:
    if name not in names():
        raise SettingsError(f"there is no task {name!r}; the tasks are {', '.join(names())}")
    return name
