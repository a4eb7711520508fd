"""The interface of tasks and actors, and rollouts of an actor in environments that are stepped together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, cast, final

import numpy as np
import numpy.typing as npt

from ileed._numpy import stream_key
from ileed.errors import SettingsError, at_least_one

Array = npt.NDArray[Any]
Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Progress = Callable[[int, int], None]
"""Called with how much is done and the total; the last call has both equal."""


class Actor(Protocol):
    """A function from observations (env, feature) to (env,) discrete or (env, dimension) continuous actions.

    Row e of every call within one `score` or `play` is the same environment, so a recurrent actor can keep a hidden
    state for each row. `starts[e]` is True if row e shows the first observation of an episode.
    """

    def __call__(self, observations: Array, starts: Flags) -> Array: ...


@dataclass(frozen=True, kw_only=True)
class Playthrough:
    """All recorded steps, sorted by environment and time."""

    observations: Array  # (step, feature) before acting
    actions: Array  # (step,) or (step, dimension)
    rewards: npt.NDArray[np.float32]
    terminals: Flags  # whether the task ended the episode, as opposed to a limit of time or steps
    episode: Numbers  # counted over all environments
    environment: Numbers
    phase: Numbers | None = None  # index into the task's `phases`, if it has any


class AbstractTask(ABC):
    """A task that actors play in episodes.

    The actor's own action is recorded, even if the task clips it.

    Laws that every task keeps:

    1. A seed fixes everything but the actor: the same actor, seed and counts give the same numbers to the bit.
    2. Episode k of `score` depends on `(seed, k)` and the actor's actions, not on the number of environments or
       episodes.
    3. Exactly `episodes` episodes are counted, and every episode that was started is counted, whatever its length.
    4. Environment e of `play` depends on `seeds[e]` and the actor's actions in it, not on other environments.
    5. No global random generator is read or moved.
    """

    name: str
    """The argument of `ileed.envs.task`, such as "minigrid/obstacles"."""
    observation_size: int
    """The number of values in an observation."""
    action_count: int
    """The number of discrete actions; 0 for continuous actions."""
    action_size: int = 0
    """The number of dimensions of a continuous action; 0 for discrete actions."""
    phases: tuple[str, ...] = ()
    """Phases of an episode, or stages of a sequence of tasks, between which skill may differ."""

    def phase(self, observations: Array, episodes: Numbers | None = None) -> Numbers:
        """(step,) index into `phases` for each of (step, feature) observations.

        `episodes`, the number of each step's episode in its environment, is needed only if observations do not show the
        phase.
        """
        raise SettingsError(f"{self.name} has no phases; use a task that has some")

    def actor_from(self, policy: Any) -> Actor:
        """An actor that takes the most likely actions of `policy`; a policy for another task may be refused."""
        return as_actor(policy)

    @abstractmethod
    def score(
        self, actor: Actor, *, episodes: int, seed: int, environments: int = 256, progress: Progress | None = None
    ) -> npt.NDArray[np.float64]:
        """(episode,) sum of rewards of each of exactly `episodes` episodes."""

    @abstractmethod
    def play(self, actor: Actor, *, steps: int, seeds: Sequence[int], progress: Progress | None = None) -> Playthrough:
        """Record `steps` steps in each of `len(seeds)` environments.

        Episode k of environment e is episode k of `score` with the seed `seeds[e]`, played with the same engine. The
        last episode of an environment is cut off.
        """


def as_actor(policy: Any) -> Actor:
    """An actor that takes the most likely actions of `policy`; an actor is returned unchanged.

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
    """(env,) or (env, dimension) actions of an actor; actions that the task cannot take are refused."""
    # copies, since an actor may keep its inputs and the task overwrites them in the next step
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


# --- rollouts

Stepped = tuple[Array, Array, Flags, Flags]
"""The next observations (row, feature), rewards, and whether the task or a limit ended the episodes of some rows."""


class Environments(Protocol):
    """Environments side by side, one for each row."""

    def begin(self, rows: Numbers, episodes: Numbers) -> Array:
        """Start the episode of this number in each of these rows; returns the first observations, (row, feature)."""
        ...

    def step(self, rows: Numbers, actions: Array) -> Stepped:
        """Take one action in each of these rows."""
        ...


@final
class SeparateEnvironments:
    """Environments stepped one by one; `begin(row, episode)` returns an environment and its first observation."""

    def __init__(self, begin: Callable[[int, int], tuple[Any, Array]]) -> None:
        self._begin, self._playing = begin, dict[int, Any]()

    def begin(self, rows: Numbers, episodes: Numbers) -> Array:
        begun = [self._begin(*each) for each in zip(rows.tolist(), episodes.tolist(), strict=True)]
        self._playing.update(zip(rows.tolist(), (environment for environment, _ in begun), strict=True))
        return np.stack([seen for _, seen in begun])

    def step(self, rows: Numbers, actions: Array) -> Stepped:
        each = zip(rows.tolist(), actions.tolist() if actions.ndim == 1 else actions, strict=True)
        seen, rewards, terminated, truncated, _ = zip(*(self._playing[row].step(act) for row, act in each), strict=True)
        return np.stack(seen), np.array(rewards), np.array(terminated, bool), np.array(truncated, bool)


def episode_seed(seed: int, episode: int) -> int:
    """The seed with which a gymnasium environment is reset for its episode of that number."""
    # 31 bits, because some environments accept no longer seeds
    return stream_key(seed, "episode", episode) & 0x7FFF_FFFF


@contextmanager
def open_rows(make: Callable[[], Any], seeds: Sequence[int]) -> Iterator[SeparateEnvironments]:
    """A gymnasium environment for each seed, closed at the end; `episode_seed` seeds the episodes of each row."""
    with ExitStack() as stack:
        made = [stack.enter_context(closing(make())) for _ in seeds]
        yield SeparateEnvironments(lambda row, k: (made[row], made[row].reset(seed=episode_seed(seeds[row], k))[0]))


def score_rows(
    task: AbstractTask,
    actor: Actor,
    environments: Environments,
    episodes: Numbers,
    width: int,
    progress: Progress | None,
) -> npt.NDArray[np.float64]:
    """(episode,) sum of rewards of at least `width` episodes of these numbers, played in `width` rows.

    A row that has finished an episode starts the next one. When none is left it stays in the batch, and its actions are
    ignored.
    """
    rewards, rows, playing = np.zeros(len(episodes)), np.arange(width), np.arange(width)
    observations, starts = environments.begin(rows, episodes[playing]), np.ones(width, dtype=bool)
    begun, done = width, 0
    while len(rows):
        actions = actions_of(actor, task, observations, starts)
        starts[:] = False
        observations[rows], earned, terminated, truncated = environments.step(rows, actions[rows])
        rewards[playing[rows]] += earned
        over = rows[terminated | truncated]
        if not len(over):
            continue
        again, idle = np.split(over, [len(episodes) - begun])
        if len(again):
            playing[again] = np.arange(begun, begun + len(again))
            observations[again], starts[again] = environments.begin(again, episodes[playing[again]]), True
            begun += len(again)
        rows = np.setdiff1d(rows, idle, assume_unique=True)
        for _ in over:
            done += 1
            if progress is not None:
                progress(done, len(episodes))
    return rewards


def play_rows(
    task: AbstractTask, actor: Actor, environments: Environments, steps: int, width: int, progress: Progress | None
) -> Playthrough:
    """`AbstractTask.play` in `width` rows, whose episodes are numbered from 0."""
    at_least_one(steps=steps, environments=width)
    rows, number, played = np.arange(width), np.zeros(width, dtype=np.int64), []
    now, starts = environments.begin(rows, number), np.ones(width, dtype=bool)
    for step in range(steps):
        seen, chosen = now.copy(), actions_of(actor, task, now, starts)
        now, rewards, terminals, truncated = environments.step(rows, chosen)
        played.append((seen, chosen, rewards, terminals, number))
        starts = terminals | truncated
        number = number + starts
        if starts.any():
            over = np.flatnonzero(starts)
            now[over] = environments.begin(over, number[over])
        if progress is not None:
            progress(step + 1, steps)
    seen, actions, rewards, terminals, episode = (np.stack(each, axis=1) for each in zip(*played, strict=True))
    seen = seen.reshape(width * steps, -1)
    first_episode = np.concatenate([[0], np.cumsum(episode[:, -1] + 1)[:-1]])
    return Playthrough(
        observations=seen,
        actions=actions.reshape(width * steps, *actions.shape[2:]),
        rewards=rewards.ravel().astype(np.float32),
        terminals=terminals.ravel(),
        episode=(episode + first_episode[:, None]).ravel(),
        environment=np.repeat(rows, steps),
        phase=task.phase(seen, episode.ravel()) if task.phases else None,
    )
