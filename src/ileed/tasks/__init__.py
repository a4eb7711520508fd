"""Tasks that can be played: what is seen, what can be done, and how well an actor does.

>>> task("minigrid/obstacles")
MiniGridTask(name='minigrid/obstacles')
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast, final

import numpy as np
import numpy.typing as npt

from ileed import plugins
from ileed.checking import at_least_one
from ileed.errors import SettingsError
from ileed.wording import did_you_mean

if TYPE_CHECKING:
    from ileed.demonstrations import Demonstrations
    from ileed.tasks.minigrid import Expert

__all__ = [
    "AbstractTask",
    "Actor",
    "Playthrough",
    "Progress",
    "World",
    "Worlds",
    "all_names",
    "all_together",
    "answered",
    "as_actor",
    "expert",
    "experts",
    "in_lockstep",
    "names",
    "score_in_lockstep",
    "task",
]

Progress = Callable[[int, int], None]
"""Told how much is done, and of how much, from time to time; the last call says all."""


class Actor(Protocol):
    """Anything that answers a batch of observations with one action each.

    Row e of every call within one `score` or `play` is the same environment e, so an actor with a memory can keep it by
    row. `starts[e]` is True where row e shows the first observation of an episode: forget what came before.
    """

    def __call__(self, observations: npt.NDArray[Any], starts: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
        """Actions for observations (env, feature): (env,) numbers of actions, or (env, dimension) where continuous."""
        ...


@dataclass(frozen=True, kw_only=True)
class Playthrough:
    """Every step that was played, one environment after the other, each in the order of time.

    All columns have as many rows as steps were played in all environments together.
    """

    observations: npt.NDArray[Any]
    """What was seen before acting, (step, feature)."""
    actions: npt.NDArray[np.int64] | npt.NDArray[np.float64]
    """What was done: (step,) numbers of actions, or (step, dimension) where they are continuous."""
    rewards: npt.NDArray[np.float32]
    """What the action earned, (step,)."""
    terminals: npt.NDArray[np.bool_]
    """True where the task itself ended the episode; an episode cut by a limit of time or steps has none, (step,)."""
    episode: npt.NDArray[np.int64]
    """Which episode the step belongs to, counted through all environments, (step,)."""
    environment: npt.NDArray[np.int64]
    """Which environment the step was played in, (step,)."""
    phase: npt.NDArray[np.int64] | None = None
    """Which part of a succession or which of a task's `phases` the step was in, by its place there, (step,); None for a
    task of one piece."""


class AbstractTask(ABC):
    """Something to be played in episodes, by actors that see numbers and answer with an action.

    An action is one of `action_count`, or, where they are continuous, `action_size` numbers. What an actor answered is
    what is kept: a task that cannot go as far as it is told goes as far as it can, and records what it was told.

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
        """How many actions there are, numbered from 0; none where they are continuous."""

    @property
    def action_size(self) -> int:
        """How many numbers a continuous action has; 0 where actions are numbered."""
        return 0

    @property
    def phases(self) -> tuple[str, ...]:
        """What the steps of an episode call for by turns, where an observation shows it; a task of one piece has none.

        Not the parts of a succession, which no observation tells apart.
        """
        return ()

    def phase(self, observations: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Which of the `phases` each of (step, feature) observations belongs to, (step,)."""
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

        The last episode of an environment is cut where its steps are spent.
        """

    def write_demonstrations(
        self, path: Path, *, episodes: int, seed: int, progress: Progress | None = None
    ) -> Demonstrations | None:
        """Write `episodes` episodes of each of this task's own demonstrators to `path`.

        None, and nothing is written, where a task has none: `ileed.simulation.demonstrate` simulates some from experts.
        """
        return None


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
) -> npt.NDArray[Any]:
    """What an actor does in a task, or one sentence on why the task cannot take it.

    (env,) whole numbers where the task's actions are numbered, (env, dimension) of 64 bits where they are continuous.
    """
    # The actor is given copies, since it may keep what it was shown while the task writes the next step in place.
    actions = np.asarray(actor(observations.copy(), starts.copy()))
    return _measured(actions, task, len(starts)) if task.action_size else _numbered(actions, task, len(starts))


def _numbered(actions: npt.NDArray[Any], task: AbstractTask, environments: int) -> npt.NDArray[np.int64]:
    if actions.shape != (environments,) or actions.dtype.kind not in "iu":
        raise SettingsError(
            f"the actor answered {environments} observations with {actions.dtype} of shape {actions.shape}; "
            f"it must return one whole number for each, shape {(environments,)}"
        )
    stray = actions[(actions < 0) | (actions >= task.action_count)]
    if len(stray):
        raise SettingsError(
            f"the actor chose action {stray[0]}, but {task.name} has {task.action_count} actions, numbered from 0; "
            "was it made for another task?"
        )
    return actions.astype(np.int64)


def _measured(actions: npt.NDArray[Any], task: AbstractTask, environments: int) -> npt.NDArray[np.float64]:
    if actions.shape != (environments, task.action_size) or actions.dtype.kind != "f":
        raise SettingsError(
            f"the actor answered {environments} observations with {actions.dtype} of shape {actions.shape}; "
            f"{task.name} takes {task.action_size} floating-point numbers for each, "
            f"shape {(environments, task.action_size)}"
        )
    finite = np.isfinite(actions).all(axis=-1)
    if not finite.all():
        raise SettingsError(
            f"the actor answered {actions[~finite][0].tolist()}, but {task.name} takes finite numbers; "
            "did its fit become non-finite?"
        )
    return actions.astype(np.float64)


class World(Protocol):
    """One environment that is being played, stepped as gymnasium steps it."""

    def step(self, action: Any, /) -> tuple[npt.NDArray[Any], float, bool, bool, dict[str, Any]]:
        """What is seen next, the reward, whether the task ended the episode, whether a limit did, and the rest.

        `action` is the number of one, or (dimension,) where they are continuous.
        """
        ...


class Worlds(Protocol):
    """Environments side by side, one for each row, that are begun and stepped together."""

    def begin(self, rows: npt.NDArray[np.int64], episodes: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Let each of these rows play its own episode of that number; what is seen there first, (row, feature)."""
        ...

    def step(
        self, actions: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """What every row sees next, its reward, whether the task ended its episode, and whether a limit did."""
        ...


def in_lockstep(
    task: AbstractTask,
    actor: Actor,
    begin: Callable[[int, int], tuple[World, npt.NDArray[Any]]],
    *,
    steps: int,
    environments: int,
    progress: Progress | None = None,
) -> Playthrough:
    """What `AbstractTask.play` promises, for a task that has worlds to step: all environments together, step by step.

    `begin(environment, episode)` gives the world in which an environment plays its episode of that number, and what is
    seen there first. Each environment begins its episodes in order, from 0.
    """
    return all_together(task, actor, _Separate(begin), steps=steps, environments=environments, progress=progress)


@final
class _Separate:
    """Worlds that are stepped one by one."""

    def __init__(self, begin: Callable[[int, int], tuple[World, npt.NDArray[Any]]]) -> None:
        self._begin, self._worlds = begin, dict[int, World]()

    def begin(self, rows: npt.NDArray[np.int64], episodes: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        seen = []
        for row, episode in zip(rows.tolist(), episodes.tolist(), strict=True):
            self._worlds[row], first = self._begin(row, episode)
            seen.append(first)
        return np.stack(seen)

    def step(
        self, actions: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        each = actions.tolist() if actions.ndim == 1 else actions
        stepped = [self._worlds[row].step(action) for row, action in enumerate(each)]
        seen, rewards, terminated, truncated, _ = zip(*stepped, strict=True)
        return np.stack(seen), np.array(rewards), np.array(terminated, bool), np.array(truncated, bool)


class Rows(Protocol):
    """Environments side by side, of which some are stepped: those whose episodes are not over."""

    def begin(self, rows: npt.NDArray[np.int64], episodes: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Let each of these rows play an episode from now on; what is seen there first, (row, feature)."""
        ...

    def step(
        self, rows: npt.NDArray[np.int64], actions: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """What these rows see next, (row, feature), what they earned, and whose episode is over, (row,)."""
        ...


def score_in_lockstep(
    task: AbstractTask, actor: Actor, worlds: Rows, *, episodes: int, width: int, tell: Callable[[int], None]
) -> npt.NDArray[np.float64]:
    """What `AbstractTask.score` promises, for `width` rows that are stepped together.

    A row that has finished an episode takes the next that nobody has started; when none are left it stays in the batch,
    unmoved, and its actions are not used. `tell` is told how many episodes are over.
    """
    rewards = np.zeros(episodes)
    rows, playing = np.arange(width), np.arange(width)
    observations, starts = worlds.begin(rows, playing), np.ones(width, dtype=bool)
    begun, done = width, 0
    while len(rows):
        actions = answered(actor, task, observations, starts)
        starts[:] = False
        observations[rows], earned, over = worlds.step(rows, actions[rows])
        rewards[playing[rows]] += earned
        if not over.any():
            continue
        ended = rows[over]
        again, idle = np.split(ended, [episodes - begun])
        playing[again] = np.arange(begun, begun + len(again))
        if len(again):
            observations[again], starts[again] = worlds.begin(again, playing[again]), True
        rows = np.setdiff1d(rows, idle, assume_unique=True)
        begun += len(again)
        for _ in ended:
            done += 1
            tell(done)
    return rewards


def all_together(
    task: AbstractTask,
    actor: Actor,
    worlds: Worlds,
    *,
    steps: int,
    environments: int,
    progress: Progress | None = None,
) -> Playthrough:
    """What `AbstractTask.play` promises, for worlds that are stepped together; each row begins its episodes from 0."""
    at_least_one(steps=steps, environments=environments)
    number = np.zeros(environments, dtype=np.int64)
    now = worlds.begin(np.arange(environments), number)
    starts = np.ones(environments, dtype=bool)
    observations = np.empty((environments, steps, task.observation_size), dtype=now.dtype)
    actions: npt.NDArray[Any] = (
        np.empty((environments, steps, task.action_size))
        if task.action_size
        else np.empty((environments, steps), dtype=np.int64)
    )
    rewards = np.empty((environments, steps), dtype=np.float32)
    terminals = np.zeros((environments, steps), dtype=bool)
    episode = np.zeros((environments, steps), dtype=np.int64)
    for step in range(steps):
        chosen = answered(actor, task, now, starts)
        observations[:, step], actions[:, step], episode[:, step] = now, chosen, number
        now, rewards[:, step], terminals[:, step], truncated = worlds.step(chosen)
        starts = terminals[:, step] | truncated
        number += starts
        if starts.any():
            over = np.flatnonzero(starts)
            now[over] = worlds.begin(over, number[over])
        if progress is not None:
            progress(step + 1, steps)
    first_episode = np.concatenate([[0], np.cumsum(episode[:, -1] + 1)[:-1]])
    return Playthrough(
        observations=observations.reshape(environments * steps, task.observation_size),
        actions=actions.reshape(environments * steps, *actions.shape[2:]),
        rewards=rewards.ravel(),
        terminals=terminals.ravel(),
        episode=(episode + first_episode[:, None]).ravel(),
        environment=np.repeat(np.arange(environments), steps),
    )


def task(name: str) -> AbstractTask:
    """The task of that name: one of `names()`, a succession of several, 'minigrid/skills', or one of a robot's.

    Other packages contribute tasks by entry points of the group `ileed.tasks`; ileed-lab brings 'robot/square'.

    >>> task("minigrid/lava").action_count
    7
    >>> task("minigrid/skills")
    Succession('minigrid/skills', minigrid/unlock > minigrid/lava > minigrid/empty)
    >>> task("robot/reach").action_size
    3
    """
    if name == "robot/reach":
        from ileed.tasks.reach import ReachTask

        return ReachTask()
    if name not in _own_names() and name in plugins.contributed(plugins.TASKS):
        made: AbstractTask = plugins.loaded(plugins.contributed(plugins.TASKS)[name])()
        return made
    from ileed.tasks.minigrid import MiniGridTask
    from ileed.tasks.succession import SUCCESSIONS, Succession

    if name in SUCCESSIONS:
        return Succession(name, tuple(MiniGridTask(part) for part in SUCCESSIONS[name]))
    return MiniGridTask(_known(name))


def expert(name: str) -> Expert:
    """The trained policy that ships for a task; needs neither the task's library nor the one that trained it.

    A succession has none of its own: `experts` gives those of its parts. Nor has a robot's task, whose policy is known
    rather than trained: `ileed.tasks.reach.ReachExpert`.

    >>> expert("minigrid/empty").action_count
    7
    """
    from ileed.tasks.minigrid import Expert, expert_path
    from ileed.tasks.succession import SUCCESSIONS

    if name in SUCCESSIONS:
        raise SettingsError(
            f"{name} has no expert of its own, but one for each of {', '.join(SUCCESSIONS[name])}: "
            f"ileed.tasks.experts({name!r}) gives them by name"
        )
    if name in _ROBOTS and name in all_names():
        raise SettingsError(f"no trained expert ships for {name}: {_ROBOTS[name]} instead")
    return Expert.load(expert_path(_known(name)))


_ROBOTS = {
    "robot/reach": "ask ileed.tasks.reach.ReachExpert(), whose actions follow a known law,",
    "robot/square": "ask the scripted controller of ileed_lab.square.operators",
}


def experts(name: str) -> dict[str, Expert]:
    """The trained policy of every part of a task, by the part's name; a task of one piece is its only part.

    >>> list(experts("minigrid/skills"))
    ['minigrid/unlock', 'minigrid/lava', 'minigrid/empty']
    """
    from ileed.tasks.succession import SUCCESSIONS

    return {part: expert(part) for part in SUCCESSIONS.get(name, (name,))}


def names() -> tuple[str, ...]:
    """Every task for which a trained `expert` ships; `task` knows others besides."""
    from ileed.tasks.minigrid import ENVIRONMENTS

    return tuple(ENVIRONMENTS)


def all_names() -> tuple[str, ...]:
    """Every name that `task` knows."""
    own = _own_names()
    return (*own, *(name for name in plugins.contributed(plugins.TASKS) if name not in own))


def _own_names() -> tuple[str, ...]:
    """Those that need no other package."""
    from ileed.tasks.succession import SUCCESSIONS

    return (*names(), *SUCCESSIONS, "robot/reach")


def _known(name: str) -> str:
    if name not in names():
        plugins.refuse_without_lab(plugins.TASKS, name)
        known = all_names()
        raise SettingsError(f"there is no task {name!r}{did_you_mean(name, known)}; the tasks are {', '.join(known)}")
    return name
