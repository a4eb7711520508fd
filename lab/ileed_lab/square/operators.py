"""Operators: six simulated operators of three skill tiers in Square, and their demonstrations."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any, final

import numpy as np
import numpy.typing as npt

from ileed import Demonstrations, SettingsError
from ileed.envs.abstract_task import Progress
from ileed.errors import at_least_one, whole_number
from ileed.parallel.runtime import stream
from ileed_lab.square.controller import Controller, Operator
from ileed_lab.square.world import ENV_ARGS, LIMIT, PHASES, SquareWorld, built_scene

__all__ = ["OPERATORS", "Attempt", "Operator", "Recording", "SquareExpert", "attempt", "demonstrate_square"]

Array = npt.NDArray[np.float64]


def _tier(tier: str, *, low: float, high: float, **faults: Any) -> tuple[Operator, Operator]:
    """Two operators of a tier: the first is better at reaching and grasping, the second at carrying and inserting."""
    return (
        Operator(name=f"{tier}_operator_1", noise=(low, low, high, high), **faults),
        Operator(name=f"{tier}_operator_2", noise=(high, high, low, low), **faults),
    )


OPERATORS: tuple[Operator, ...] = (
    *_tier("better", low=0.04, high=0.12, overshoot=0.003, hesitation=0.002, pause=4, slow_finger=0.05),
    *_tier("okay", low=0.15, high=0.30, overshoot=0.015, hesitation=0.02, detours=0.7, drop=0.06, slow_finger=0.2),
    *_tier("worse", low=0.30, high=0.46, overshoot=0.03, hesitation=0.03, detours=1.4, drop=0.25, slow_finger=0.4),
)
"""Two operators in each of three tiers, named as robomimic's Multi-Human data name theirs."""


@final
@dataclass(frozen=True, eq=False)
class SquareExpert:
    """The scripted controller as an actor: that of one operator or, by default, of one without faults."""

    operator: Operator = field(default_factory=lambda: Operator(name="controller"))
    seed: int = 0
    _rows: dict[int, Controller] = field(default_factory=dict, repr=False)

    def __call__(self, observations: npt.NDArray[Any], starts: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
        """Actions (env, 7) for observations (env, 23) of robosuite 1.5's layout."""
        for row in np.flatnonzero(starts).tolist():
            purpose = self.operator.name, observations[row].tobytes()
            self._rows[row] = Controller(self.operator, _generator(self.seed, "steer", *purpose))
        return np.stack([self._rows[row].act(each)[0] for row, each in enumerate(observations)])


@final
@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One episode of an operator; every column has a row for each step."""

    observations: Array
    actions: Array
    phase: npt.NDArray[np.int64]
    states: Array
    success: bool


def attempt(operator: Operator, *, seed: int, episode: int, trial: int = 0) -> Attempt:
    """One episode of an operator from the initial state of `(seed, name, episode, trial)`."""
    world = SquareWorld()
    return _attempt(world, operator, seed=seed, episode=episode, trial=trial)


def _attempt(world: SquareWorld, operator: Operator, *, seed: int, episode: int, trial: int) -> Attempt:
    purpose = operator.name, episode, trial
    observation = world.reset(stream(seed, "demonstrate", *purpose).initial_seed())
    controller = Controller(operator, _generator(seed, "steer", *purpose))
    rows: list[tuple[Array, Array, int, Array]] = []
    success, over = False, False
    while not (success or over):
        action, phase = controller.act(observation)
        rows.append((observation, action, phase, world.state))
        observation, _, success, over, _ = world.step(action)
    observations, actions, phases, states = zip(*rows, strict=True)
    return Attempt(
        observations=np.stack(observations),
        actions=np.stack(actions),
        phase=np.array(phases),
        states=np.stack(states),
        success=success,
    )


def _generator(seed: int, *purpose: object) -> np.random.Generator:
    return np.random.default_rng(stream(seed, *purpose).initial_seed())


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Recording:
    """Demonstrations in Square, with what a simulator needs to replay them."""

    demonstrations: Demonstrations
    states: Array
    """robosuite's flattened state before each step, (step, 45)."""
    model_file: str
    """The scene in MuJoCo's XML, with paths relative to robosuite's folder, which robosuite completes on reading."""
    env_args: Mapping[str, Any]
    """The environment, as robomimic's files describe it."""
    attempts: Mapping[str, int]
    """How many episodes each operator played until enough of them succeeded."""


def demonstrate_square(
    *,
    episodes: int = 50,
    seed: int = 0,
    operators: Sequence[Operator] = OPERATORS,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Recording:
    """Let each operator demonstrate until `episodes` episodes have succeeded; those that fail are left out.

    Episode k of an operator depends on `(seed, name, k)` alone. `workers` processes share the work, as many as there
    are cores by default.
    """
    at_least_one(episodes=episodes, operators=len(operators))
    if len({operator.name for operator in operators}) < len(operators):
        raise SettingsError("two operators have the same name; random numbers depend on the name, so give each its own")
    wanted = [(operator, episode) for operator in operators for episode in range(episodes)]
    if workers is not None:
        whole_number("workers", workers, least=1, rule="at least one process must run, or None for one a core")
    count = min(workers or len(os.sched_getaffinity(0)), len(wanted))
    kept: list[tuple[Attempt, int]] = []

    def keep(found: tuple[Attempt, int]) -> None:
        kept.append(found)
        if progress is not None:
            progress(len(kept), len(wanted))

    if count == 1:
        for operator, episode in wanted:
            keep(_first_success(operator, episode, seed))
    else:
        with ProcessPoolExecutor(count, mp_context=get_context("forkserver")) as pool:
            for found in pool.map(_first_success, *zip(*wanted, strict=True), [seed] * len(wanted)):
                keep(found)
    return _recording(operators, episodes, kept)


_MOST_ATTEMPTS = 50


def _first_success(operator: Operator, episode: int, seed: int) -> tuple[Attempt, int]:
    """The first attempt that succeeds, and the number of attempts."""
    world = SquareWorld()
    for trial in range(_MOST_ATTEMPTS):
        found = _attempt(world, operator, seed=seed, episode=episode, trial=trial)
        if found.success:
            return found, trial + 1
    raise SettingsError(
        f"{operator.name} failed {_MOST_ATTEMPTS} times in a row within {LIMIT} steps; give them less noise"
    )


def _recording(operators: Sequence[Operator], episodes: int, kept: Sequence[tuple[Attempt, int]]) -> Recording:
    lengths = [len(found.actions) for found, _ in kept]
    ends = np.cumsum(lengths) - 1
    steps = sum(lengths)
    last = np.zeros(steps, dtype=bool)
    last[ends] = True
    demonstrations = Demonstrations(
        observations=np.concatenate([found.observations for found, _ in kept]),
        actions=np.concatenate([found.actions for found, _ in kept]),
        demonstrator=np.repeat(np.arange(len(operators)), episodes).repeat(lengths),
        episode=np.arange(len(kept)).repeat(lengths),
        names=tuple(operator.name for operator in operators),
        rewards=last.astype(np.float64),
        terminals=last,
        skills={"phase": np.array(PHASES)[np.concatenate([found.phase for found, _ in kept])]},
    )
    attempts = np.array([trials for _, trials in kept]).reshape(len(operators), episodes).sum(axis=1)
    return Recording(
        demonstrations=demonstrations,
        states=np.concatenate([found.states for found, _ in kept]),
        model_file=built_scene().portable_xml,
        env_args=ENV_ARGS,
        attempts={operator.name: int(each) for operator, each in zip(operators, attempts, strict=True)},
    )
