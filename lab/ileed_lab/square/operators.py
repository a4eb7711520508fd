"""Operators: six people's stand-ins of graded proficiency who put the square nut on its peg, and what they recorded."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any, final

import numpy as np
import numpy.typing as npt

from ileed.checking import at_least_one, whole_number
from ileed.demonstrations import Demonstrations
from ileed.errors import SettingsError
from ileed.runtime import stream
from ileed.tasks import Progress
from ileed_lab.square.world import ENV_ARGS, LIMIT, PHASES, SquareWorld, built_scene

__all__ = ["OPERATORS", "Attempt", "Operator", "Recording", "SquareExpert", "attempt", "demonstrate_square"]

Array = npt.NDArray[np.float64]


@final
@dataclass(frozen=True, kw_only=True)
class Operator:
    """How somebody steers: what the scripted controller wants, and what goes wrong on the way.

    Chances are of a step or of an episode, lengths are in metres and durations in control steps.
    """

    name: str
    noise: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    """Deviation of the six numbers of motion around what is wanted, drawn at each step, for each of `PHASES`; of the
    three that turn, half as much."""
    overshoot: float = 0.0
    """How far beyond a waypoint the hand is first sent."""
    hesitation: float = 0.0
    """Chance of a step to begin a pause."""
    pause: int = 8
    """How long a pause lasts."""
    detours: float = 0.0
    """Expected number of wrong places visited on the way to the nut, and as many on the way to the peg."""
    drop: float = 0.0
    """Chance of an episode that the nut is let go while it is carried, once."""
    slow_finger: float = 0.0
    """Chance that closing the fingers comes late, by up to six steps."""

    def __post_init__(self) -> None:
        if len(self.noise) != len(PHASES) or min(self.noise) < 0:
            raise SettingsError(
                f"{self.name} has noise {self.noise}; give one deviation, zero or more, for each of {', '.join(PHASES)}"
            )
        for name in ("hesitation", "drop", "slow_finger"):
            if not 0 <= getattr(self, name) <= 1:
                raise SettingsError(f"{self.name} has {name}={getattr(self, name)}, but a chance lies between 0 and 1")


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

_PEG = np.array([0.23, 0.10])
_CLEAR = 0.975
"""Height of the nut at which it is carried: the peg ends at 0.95 m, and higher up the arm would be stretched."""
_TABLE = 0.82
_UP = np.array([0.0, 0.0, 1.0])


@final
class _Steering:
    """One episode of one operator: where the controller has got to, and what has gone wrong so far."""

    def __init__(self, operator: Operator, generator: np.random.Generator) -> None:
        self._operator, self._generator = operator, generator
        self._stage, self._since = "above", 0
        self._pause = 0
        self._via: Array | None = None
        self._places: list[Array] = self._detours()
        self._beyond = self._drawn_beyond()
        self._late = int(generator.integers(1, 7)) if generator.random() < operator.slow_finger else 0
        self._drops = generator.random() < operator.drop
        self._drop_at = int(generator.integers(4, 14))
        self._grasp = self._turned = self._final = 0.0
        self._lowest, self._stuck = np.inf, 0
        self._nut_before = np.zeros(3)

    def act(self, seen: Array) -> tuple[Array, int]:
        """What is done after an observation of robosuite 1.5's layout, (dimension,), and in which phase."""
        wanted, phase = self._wanted(seen)
        if self._pause:
            self._pause -= 1
            wanted[:6] = 0
        elif self._generator.random() < self._operator.hesitation:
            self._pause = self._operator.pause
        scale = self._operator.noise[phase] * np.array([1, 1, 1, 0.5, 0.5, 0.5])
        wanted[:6] += scale * self._generator.standard_normal(6)
        return np.clip(wanted, -1, 1), phase

    def _go(self, stage: str) -> None:
        """Turn to something else; who comes from afar may go too far."""
        far = (self._stage, stage) in (("lift", "over"), ("let go", "above"))
        self._beyond = self._drawn_beyond() if far else 0.0
        self._stage, self._since, self._via = stage, 0, None

    def _detours(self) -> list[Array]:
        count = self._generator.poisson(self._operator.detours)
        return list(self._generator.uniform([-0.12, -0.12, 0.0], [0.12, 0.12, 0.1], size=(min(count, 3), 3)))

    def _wrong_place(self, here: Array, goal: Array) -> Array | None:
        """Where a detour leads while it lasts: to somewhere off the middle of the way, for at most 25 steps."""
        if not self._places:
            return None
        if self._via is None:
            self._via = 0.5 * (here + goal) + self._places[-1]
        if _length(self._via - here) < 0.03 or self._since > 25:
            self._places.pop()
            self._go(self._stage)
            return None
        return self._via

    def _ease(self) -> float:
        """How much less exact somebody becomes who has tried for long: nobody waits for a steady hand for ever."""
        return 1 + min(self._since, 60) / 40

    def _drawn_beyond(self) -> float:
        return float(self._operator.overshoot * self._generator.random())

    def _wanted(self, seen: Array) -> tuple[Array, int]:
        nut, nut_turn = seen[7:10], _rotation(seen[10:14])
        hand, hand_turn, opening = seen[14:17], _rotation(seen[17:21]), seen[21] - seen[22]
        handle = nut + 0.054 * nut_turn[:, 0]
        angle, yaw = _yaw(nut_turn), _yaw(hand_turn)
        if self._stage == "above":
            self._grasp, self._turned, self._final = _plan(angle)
        resolve_mirror_symmetry = _upright(hand_turn)
        held = opening > 0.02 and _length(hand - handle) < 0.04
        self._since += 1
        if self._stage in ("lift", "over", "lower") and not held and self._since > 3:
            self._drops = False
            self._go("above")
        if self._stage in ("down", "close") and nut_turn[2, 2] < 0.96 and opening > 0.04:  # a finger stands on it
            self._go("above")
        if self._stage in ("above", "down", "close"):
            turn = resolve_mirror_symmetry + (self._grasp - yaw) * _UP
            if self._stage == "above":
                return self._above(hand, turn, handle), 0
            if self._stage == "down":
                return self._down(hand, turn, handle), 1
            return self._close(hand, turn, handle, opening), 1
        if self._stage == "let go":
            return self._let_go(), 3 if nut[2] < 0.95 else 2
        # The hand never turns through the far side, where its last joint ends.
        rest = self._turned - yaw
        turn = resolve_mirror_symmetry + (rest + _wrapped(self._final - angle - rest)) * _UP
        return self._carried(nut, resolve_mirror_symmetry, turn)

    def _above(self, hand: Array, turn: Array, handle: Array) -> Array:
        goal = handle + 0.07 * _UP
        if (via := self._wrong_place(hand, goal)) is not None:
            return _towards(via - hand, turn, -1)
        goal = goal + _further(goal - hand, self._beyond)
        error, ease = goal - hand, self._ease()
        if _length(error) < 0.02 and self._beyond:
            self._beyond = 0.0
        elif _length(error[:2]) < 0.012 * ease and abs(error[2]) < 0.03 and _length(turn) < 0.12 * ease:
            self._go("down")
        return _towards(error, turn, -1)

    def _down(self, hand: Array, turn: Array, handle: Array) -> Array:
        error = handle - hand
        if _length(error[:2]) > 0.035:
            self._go("above")
        elif abs(error[2]) < 0.01 and _length(error[:2]) < 0.014:
            self._go("close")
        return _towards(error, turn, -1)

    def _close(self, hand: Array, turn: Array, handle: Array, opening: float) -> Array:
        if self._late:
            self._late -= 1
            return _towards(handle - hand, turn, -1)
        if opening < 0.02 or self._since > 25:
            self._go("above")
        elif self._since >= 7 and opening < 0.042:
            self._places = self._detours()
            self._go("lift")
        return _towards(handle - hand, turn, 1)

    def _let_go(self) -> Array:
        if self._since > 6:
            self._go("above")
        return _towards(0.01 * _UP, np.zeros(3), -1)

    def _carried(self, nut: Array, resolve_mirror_symmetry: Array, turn: Array) -> tuple[Array, int]:
        if self._stage == "lift" and nut[2] > 0.93:
            self._go("over")
        if self._stage == "over" and self._drops and self._since > self._drop_at:
            self._drops = False
            self._go("let go")
        if self._stage == "lift":
            return _towards((_CLEAR - nut[2]) * _UP, resolve_mirror_symmetry, 1), 2
        moved = _length((nut - self._nut_before)[:2])
        self._nut_before = nut
        over = np.array([*_PEG, _CLEAR])
        if self._stage == "over":
            if (via := self._wrong_place(nut, over)) is not None:
                return _towards(via - nut, turn, 1), 2
            goal = over + _further((over - nut) * [1, 1, 0], self._beyond)
            error, ease = goal - nut, self._ease()
            if _length(error) < 0.02 and self._beyond:
                self._beyond = 0.0
            elif _length(error[:2]) < 0.006 * ease and _length(turn) < 0.12 * ease and moved < 0.004 * ease:
                self._lowest, self._stuck = np.inf, 0
                self._go("lower")
            if nut[2] < 0.962 and 0.03 < _length(error[:2]) < 0.1:
                error = error * [0, 0, 1]  # first higher than the peg, then over it
            return _towards(error, turn, 1, gain=1.4), 2
        error = np.array([*_PEG, _TABLE]) - nut
        if nut[2] > 0.955 and _length(error[:2]) > 0.016:
            self._go("over")
        self._stuck = 0 if nut[2] < self._lowest - 1e-3 else self._stuck + 1
        self._lowest = min(self._lowest, nut[2])
        if self._stuck > 20:
            self._go("let go" if nut[2] < 0.95 else "over")
        return _towards(error, turn, 1), 3


def _towards(error: Array, turn: Array, grip: float, *, gain: float = 2.0) -> Array:
    """The action that closes a gap in position and rotation, as fast as the arm goes and no faster."""
    move, rotate = gain * error / 0.05, 1.5 * turn / 0.5
    move /= max(1.0, float(np.abs(move).max()))
    rotate /= max(1.0, float(np.abs(rotate).max()))
    return np.array([*move, *rotate, grip])


def _further(way: Array, by: float) -> Array:
    length = _length(way)
    return way * (by / length) if length > 1e-6 else np.zeros(3)


def _length(vector: Array) -> float:
    return float(np.sqrt(vector @ vector))


def _yaw(turn: Array) -> float:
    """Where the first axis points in the table's plane."""
    return float(np.arctan2(turn[1, 0], turn[0, 0]))


def _upright(turn: Array) -> Array:
    """Axis times angle that makes the hand point straight down and leaves its yaw."""
    axis = np.array([-turn[1, 2], turn[0, 2], 0.0])  # the hand's own third axis times straight down
    size = _length(axis)
    return np.zeros(3) if size < 1e-9 else np.arctan2(size, -turn[2, 2]) * axis / size


_LEAST, _MOST = -1.75, 2.6
"""How far the hand can turn from where its last joint begins, in radians."""


def _plan(angle: float) -> tuple[float, float, float]:
    """Yaw of the hand to grasp with, yaw of the hand over the peg, and where the handle then points.

    The fingers close across the handle from either side. The handle must end along one of the peg's sides but not
    pointing away from the robot, where the arm does not reach, and best towards it; the hand must turn no further than
    its last joint does, and should turn little.
    """
    plans = []
    for grasp in (angle, _wrapped(angle + np.pi)):
        for pointing in (np.pi, np.pi / 2, -np.pi / 2):
            turned = _wrapped(grasp + pointing - angle)
            cost = abs(grasp) + abs(turned - grasp) + (0.0 if pointing == np.pi else 1.5)
            if _LEAST < grasp < _MOST and _LEAST < turned < _MOST:
                plans.append((cost, grasp, turned, pointing))
    return min(plans)[1:]


def _wrapped(angle: float) -> float:
    return float((angle + np.pi) % (2 * np.pi) - np.pi)


def _rotation(quaternion: Array) -> Array:
    x, y, z, w = quaternion
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )


@final
@dataclass(frozen=True, eq=False)
class SquareExpert:
    """The scripted controller as an actor, of one operator or, by default, of one who never errs."""

    operator: Operator = field(default_factory=lambda: Operator(name="controller"))
    seed: int = 0
    _rows: dict[int, _Steering] = field(default_factory=dict, repr=False)

    def __call__(self, observations: npt.NDArray[Any], starts: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
        """Actions (env, 7) for observations (env, 23) of robosuite 1.5's layout."""
        for row in np.flatnonzero(starts).tolist():
            purpose = self.operator.name, observations[row].tobytes()
            self._rows[row] = _Steering(self.operator, _generator(self.seed, "steer", *purpose))
        return np.stack([self._rows[row].act(seen)[0] for row, seen in enumerate(observations)])


@final
@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One episode as it was steered; every column has a row for each step."""

    observations: Array
    actions: Array
    phase: npt.NDArray[np.int64]
    states: Array
    success: bool


def attempt(operator: Operator, *, seed: int, episode: int, trial: int = 0) -> Attempt:
    """What an operator does from the initial state of `(seed, name, episode, trial)`, until success or the limit."""
    world = SquareWorld()
    return _attempt(world, operator, seed=seed, episode=episode, trial=trial)


def _attempt(world: SquareWorld, operator: Operator, *, seed: int, episode: int, trial: int) -> Attempt:
    purpose = operator.name, episode, trial
    seen = world.reset(stream(seed, "demonstrate", *purpose).initial_seed())
    steering = _Steering(operator, _generator(seed, "steer", *purpose))
    rows: list[tuple[Array, Array, int, Array]] = []
    success, over = False, False
    while not (success or over):
        action, phase = steering.act(seen)
        rows.append((seen, action, phase, world.state))
        seen, _, success, over, _ = world.step(action)
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
    """Demonstrations in Square, with what a simulator needs to play them again."""

    demonstrations: Demonstrations
    states: Array
    """robosuite's flattened state before each step, (step, 45)."""
    model_file: str
    """The scene in MuJoCo's XML, with paths from robosuite's folder on, which robosuite completes when it reads it."""
    env_args: Mapping[str, Any]
    """Which environment this was, as robomimic says it."""
    attempts: Mapping[str, int]
    """How many episodes each operator played until there were enough that succeeded."""


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
        raise SettingsError("two operators have the same name; chance is drawn by name, so each must have its own")
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
            keep(_succeeded(operator, episode, seed))
    else:
        with ProcessPoolExecutor(count, mp_context=get_context("forkserver")) as pool:
            for found in pool.map(_succeeded, *zip(*wanted, strict=True), [seed] * len(wanted)):
                keep(found)
    return _recording(operators, episodes, kept)


_MOST_TRIALS = 50


def _succeeded(operator: Operator, episode: int, seed: int) -> tuple[Attempt, int]:
    """The first attempt that succeeds, and how many it took."""
    world = SquareWorld()
    for trial in range(_MOST_TRIALS):
        found = _attempt(world, operator, seed=seed, episode=episode, trial=trial)
        if found.success:
            return found, trial + 1
    raise SettingsError(
        f"{operator.name} failed {_MOST_TRIALS} times in a row within {LIMIT} steps; give them less noise"
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
