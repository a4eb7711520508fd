"""Rollouts: environments side by side, stepped together with one call of the actor for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any, Protocol, final

import numpy as np
import numpy.typing as npt

from ileed._torch import stream
from ileed.envs.abstract_task import AbstractTask, Actor, Array, Flags, Numbers, Playthrough, Progress, actions_of
from ileed.errors import at_least_one

__all__ = ["Environments", "SeparateEnvironments", "open_rows", "play_rows", "score_rows"]

Stepped = tuple[Array, Array, Flags, Flags]
"""What rows see next (row, feature), their rewards, whether the task ended their episodes, and whether a limit did."""


class Environments(Protocol):
    """Environments side by side, one for each row."""

    def begin(self, rows: Numbers, episodes: Numbers) -> Array:
        """Let each of these rows play its own episode of that number; what is seen there first, (row, feature)."""
        ...

    def step(self, rows: Numbers, actions: Array) -> Stepped:
        """Take one action in each of these rows."""
        ...


@final
class SeparateEnvironments:
    """Environments stepped one by one; `begin(row, episode)` gives that of a row's episode, and what is seen first."""

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
    """The seed to reset a gymnasium environment with for its episode of that number."""
    # 31 bits, because some environments take no longer seeds.
    return stream(seed, "episode", episode).initial_seed() & 0x7FFF_FFFF


@contextmanager
def open_rows(make: Callable[[], Any], seeds: Sequence[int]) -> Iterator[SeparateEnvironments]:
    """A gymnasium environment for each seed, closed at the end; row e begins episode k by the seed of (seeds[e], k)."""
    with ExitStack() as stack:
        made = [stack.enter_context(closing(make())) for _ in seeds]
        yield SeparateEnvironments(lambda row, k: (made[row], made[row].reset(seed=episode_seed(seeds[row], k))[0]))


def score_rows(
    task: AbstractTask, actor: Actor, environments: Environments, episodes: Numbers, width: int, tell: Progress | None
) -> npt.NDArray[np.float64]:
    """Sum of rewards of each of the episodes of these numbers, at least `width`, in rows that are stepped together.

    A row that has finished an episode takes the next that nobody has started; when none are left it stays in the batch,
    unmoved, and its actions are not used.
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
            if tell is not None:
                tell(done, len(episodes))
    return rewards


def play_rows(
    task: AbstractTask, actor: Actor, environments: Environments, steps: int, width: int, tell: Progress | None
) -> Playthrough:
    """What `AbstractTask.play` promises, in `width` rows that are stepped together; each begins its episodes from 0."""
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
        if tell is not None:
            tell(step + 1, steps)
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
