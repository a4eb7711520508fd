"""Square: a robot arm picks up a square nut by its handle and puts it over a peg, in robosuite's simulator.

>>> SquareTask().observation_size, SquareTask().action_size
(23, 7)
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, final, get_args

import numpy as np
import numpy.typing as npt
import torch

from ileed import Demonstrations, SettingsError, write_robomimic
from ileed.envs.abstract_task import (
    AbstractTask,
    Actor,
    Numbers,
    Playthrough,
    Progress,
    SeparateEnvironments,
    actions_of,
    as_actor,
    play_rows,
)
from ileed.errors import at_least_one
from ileed.parallel.runtime import stream
from ileed_lab.square.operators import demonstrate_square
from ileed_lab.square.world import LIMIT, OBSERVATIONS, PEG, PHASES, TABLE, Layout, SquareWorld

__all__ = ["LIMIT", "OBSERVATIONS", "PHASES", "Rollouts", "SquareTask", "SquareWorld"]

Array = npt.NDArray[np.float64]

_HANDLE = 0.054
"""Distance of the handle's centre from the nut's, along its first axis, in metres."""


@final
@dataclass(frozen=True, kw_only=True)
class Rollouts:
    """The outcome of each of several episodes, (episode,)."""

    success: npt.NDArray[np.bool_]
    """Whether the nut was put around the peg within the limit."""
    steps: npt.NDArray[np.int64]
    """Control steps until success, or the limit."""
    phase: npt.NDArray[np.int64]
    """The furthest phase of the episode, as an index of `PHASES`."""

    def __len__(self) -> int:
        return len(self.success)


@final
@dataclass(frozen=True)
class SquareTask(AbstractTask):
    """robosuite's NutAssemblySquare with a Panda arm, as in robomimic's Square data.

    Twenty times a second the actor gives seven numbers in [-1, 1]: how far to move the hand (1 is 5 cm) and to turn it
    (1 is half a radian) along and about the world's axes, and whether to close the fingers (positive) or open them.
    Numbers are clipped to those bounds. An episode ends with a reward of 1 when the nut is around the peg, and after
    400 steps without a reward. Playing needs the extra `robot`.

    Dynamics, initial states and success are robosuite's; the loop around MuJoCo's steps is ours, since robosuite's own
    loop takes most of the time (`docs/decisions/robot-task.md`).
    """

    name = "robot/square"
    observation_size = sum(OBSERVATIONS.values())
    action_count = 0
    action_size = 7
    phases = PHASES
    layout: Layout = field(default="robosuite-1.5", kw_only=True)
    """Order of the parts of `object`: robosuite 1.5 puts the nut relative to the hand first, one step old, and 1.4 and
    older put it last. Choose the version that wrote the data of the policy."""

    def __post_init__(self) -> None:
        if self.layout not in get_args(Layout):
            raise SettingsError(f"there is no layout {self.layout!r}; choose one of {', '.join(get_args(Layout))}")

    def phase(self, observations: npt.NDArray[Any], episodes: Numbers | None = None) -> Numbers:
        """Which of the `phases` each of (step, feature) observations belongs to, (step,).

        It follows from the positions of hand and nut: grasping begins less than 5 cm above the handle, carrying when
        the nut is off the table with its handle in the hand, inserting when it is above the peg.
        """
        rows = np.asarray(observations, dtype=np.float64)
        nut = rows[:, 7:14] if self.layout == "robosuite-1.5" else rows[:, :7]
        hand = rows[:, 14:17]
        handle = nut[:, :3] + _HANDLE * _first_axis(nut[:, 3:])
        near = (np.linalg.norm((hand - handle)[:, :2], axis=1) < 0.03) & (hand[:, 2] - handle[:, 2] < 0.05)
        # At first the nut falls on the table: it is carried only where the hand is at its handle.
        lifted = nut[:, 2] > TABLE + 0.03
        carried = lifted & (np.linalg.norm(hand - handle, axis=1) < 0.05)
        above = lifted & (np.linalg.norm(nut[:, :2] - PEG, axis=1) < 0.03)
        return np.select([above, carried, near], [3, 2, 1], default=0).astype(np.int64)

    def score(
        self,
        actor: Actor,
        *,
        episodes: int,
        seed: int,
        environments: int = 1,
        progress: Progress | None = None,
        workers: int = 1,
    ) -> npt.NDArray[np.float64]:
        """1.0 for each of exactly `episodes` episodes that succeeded and 0.0 for the others; see `rollouts`."""
        found = self.rollouts(
            actor, episodes=episodes, seed=seed, environments=environments, progress=progress, workers=workers
        )
        return found.success.astype(np.float64)

    def rollouts(
        self,
        policy: Any,
        *,
        episodes: int,
        seed: int,
        environments: int = 1,
        progress: Progress | None = None,
        workers: int = 1,
    ) -> Rollouts:
        """Let a policy or an actor play `episodes` episodes; the outcome of each.

        Episode k starts from a state sampled for `(seed, k)`, so that policies can be compared from the same initial
        states. `reset(seed)` of a policy, where it has one, is called before each episode with a seed of `(seed, k)`,
        and a new actor is made of it: its random numbers depend on the episode alone. With more than one of
        `environments`, stepped side by side in each process to save time in the policy, `reset` is called once for
        several episodes, and random numbers depend on the neighbours.

        `workers` processes share the episodes, and the policy must be picklable if they are more than one: pass the
        policy itself rather than `as_actor` of it.
        """
        at_least_one(episodes=episodes, environments=environments, workers=workers)
        everything = list(range(episodes))
        report = progress or (lambda done, total: None)
        if workers == 1:
            played = []
            for share in _shares(everything, environments):
                played += _play(self, policy, share, seed, environments)
                report(len(played), episodes)
        else:
            played = self._in_processes(policy, everything, seed, environments, min(workers, episodes), report)
        success, steps, phase = (np.array(column) for column in zip(*played, strict=True))
        return Rollouts(success=success, steps=steps, phase=phase)

    def _in_processes(
        self, policy: Any, everything: Sequence[int], seed: int, environments: int, workers: int, report: Progress
    ) -> list[_Outcome]:
        try:
            packed = pickle.dumps((self, policy))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise SettingsError(
                f"{type(policy).__name__} cannot be sent to {workers} processes ({error}); pass the policy itself, or "
                "workers=1"
            ) from error
        played: list[_Outcome] = []
        with _pool(workers, packed) as pool:
            shares = _shares(everything, environments)
            for share in pool.map(_play_here, shares, [seed] * len(shares), [environments] * len(shares)):
                played += share
                report(len(played), len(everything))
        return played

    def play(self, actor: Actor, *, steps: int, seeds: Sequence[int], progress: Progress | None = None) -> Playthrough:
        """Play `steps` steps in each of `len(seeds)` environments at once, episode after episode, and keep them all.

        Episode k of environment e starts from the state sampled for `(seeds[e], k)`. The last episode of an
        environment is truncated after the last step.
        """
        worlds = [SquareWorld(layout=self.layout) for _ in seeds]

        def begin(row: int, episode: int) -> tuple[SquareWorld, Array]:
            return worlds[row], worlds[row].reset(_reset_seed(seeds[row], episode))

        return play_rows(self, actor, SeparateEnvironments(begin), steps, len(seeds), progress)

    def write_demonstrations(
        self, path: Path, *, episodes: int, seed: int, progress: Progress | None = None
    ) -> Demonstrations:
        """Write `episodes` episodes of each of the six operators to a robomimic file."""
        recorded = demonstrate_square(episodes=episodes, seed=seed, progress=progress)
        data = recorded.demonstrations
        write_robomimic(data, path, observations=OBSERVATIONS, env_args=recorded.env_args, states=recorded.states)
        return data


_Outcome = tuple[bool, int, int]
"""Success, steps, and furthest phase of an episode."""


def _shares(episodes: Sequence[int], environments: int) -> list[Sequence[int]]:
    """What a process takes at a time; several rounds of environments, so that few are idle at the end."""
    size = 1 if environments == 1 else 4 * environments
    return [episodes[start : start + size] for start in range(0, len(episodes), size)]


@contextmanager
def _pool(workers: int, packed: bytes) -> Iterator[ProcessPoolExecutor]:
    pool = ProcessPoolExecutor(workers, mp_context=get_context("forkserver"), initializer=_receive, initargs=(packed,))
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


_received: dict[str, Any] = {}


def _receive(packed: bytes) -> None:
    torch.set_num_threads(1)
    _received["task"], _received["policy"] = pickle.loads(packed)  # packed by the process that asks, never a file


def _play_here(episodes: Sequence[int], seed: int, environments: int) -> list[_Outcome]:
    return _play(_received["task"], _received["policy"], episodes, seed, environments)


def _play(task: SquareTask, policy: Any, episodes: Sequence[int], seed: int, environments: int) -> list[_Outcome]:
    """The outcomes of some episodes, in their order, played in one process."""
    if environments == 1:
        return [_play_together(task, policy, [episode], seed, 1)[0] for episode in episodes]
    return _play_together(task, policy, episodes, seed, environments)


def _play_together(
    task: SquareTask, policy: Any, episodes: Sequence[int], seed: int, environments: int
) -> list[_Outcome]:
    if hasattr(policy, "reset"):
        policy.reset(stream(seed, "act", episodes[0]).initial_seed())
    actor = as_actor(policy)
    waiting = list(enumerate(episodes))[::-1]
    outcomes: dict[int, _Outcome] = {}
    worlds = _worlds(min(environments, len(episodes)), task.layout)
    number = np.full(len(worlds), -1)
    observations = np.zeros((len(worlds), task.observation_size))
    starts = np.zeros(len(worlds), dtype=bool)
    furthest = np.zeros(len(worlds), dtype=np.int64)

    def begin(row: int) -> None:
        number[row] = -1
        if waiting:
            number[row], episode = waiting.pop()
            observations[row], starts[row], furthest[row] = worlds[row].reset(_reset_seed(seed, episode)), True, 0

    for row in range(len(worlds)):
        begin(row)
    while (number >= 0).any():
        furthest = np.maximum(furthest, task.phase(observations))
        actions = actions_of(actor, task, observations, starts)
        starts[:] = False
        for row in np.flatnonzero(number >= 0).tolist():
            observations[row], _, success, limit, _ = worlds[row].step(actions[row])
            if success or limit:
                outcomes[int(number[row])] = success, worlds[row].steps, int(furthest[row])
                begin(row)
    return [outcomes[each] for each in range(len(episodes))]


def _reset_seed(seed: int, episode: int) -> int:
    return stream(seed, "episode", episode).initial_seed()


@cache
def _world(number: int, layout: Layout) -> SquareWorld:
    return SquareWorld(layout=layout)


def _worlds(count: int, layout: Layout) -> list[SquareWorld]:
    """Worlds of this process, built once: that takes a while, and a reset clears their state."""
    return [_world(number, layout) for number in range(count)]


def _first_axis(quaternions: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The first column of each rotation, from (step, 4) quaternions (x, y, z, w)."""
    x, y, z, w = quaternions.T
    return np.stack([1 - 2 * (y * y + z * z), 2 * (x * y + z * w), 2 * (x * z - y * w)], axis=-1)
