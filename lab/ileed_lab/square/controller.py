"""The scripted controller that all operators of Square share, and the faults that distinguish them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from ileed import SettingsError
from ileed_lab.square.world import PEG, PHASES, TABLE

__all__ = ["Controller", "Operator"]

Array = npt.NDArray[np.float64]


@final
@dataclass(frozen=True, kw_only=True)
class Operator:
    """A simulated operator: the faults that are added to the actions of the scripted controller.

    Probabilities are of a step or of an episode, lengths are in metres and durations in control steps.
    """

    name: str
    noise: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    """Standard deviation of the noise added to the six numbers of motion at each step, for each of `PHASES`; half as
    much for the three that rotate."""
    overshoot: float = 0.0
    """Distance beyond a waypoint to which the hand is first sent."""
    hesitation: float = 0.0
    """Probability of a step to begin a pause."""
    pause: int = 8
    """Duration of a pause."""
    detours: float = 0.0
    """Expected number of detours on the way to the nut, and as many on the way to the peg."""
    drop: float = 0.0
    """Probability of an episode in which the nut is dropped once while it is carried."""
    slow_finger: float = 0.0
    """Probability that the fingers close late, by up to six steps."""

    def __post_init__(self) -> None:
        if len(self.noise) != len(PHASES) or min(self.noise) < 0:
            raise SettingsError(
                f"{self.name} has noise {self.noise}; give one standard deviation, zero or more, for each of "
                f"{', '.join(PHASES)}"
            )
        for name in ("hesitation", "drop", "slow_finger"):
            if not 0 <= getattr(self, name) <= 1:
                raise SettingsError(
                    f"{self.name} has {name}={getattr(self, name)}, but a probability lies between 0 and 1"
                )


_CARRYING_HEIGHT = 0.975
"""Height of the nut while it is carried: the peg ends at 0.95 m, and higher up the arm would be stretched."""
_UP = np.array([0.0, 0.0, 1.0])


@final
class Controller:
    """One episode of one operator: the controller's stage, and the operator's faults so far."""

    def __init__(self, operator: Operator, generator: np.random.Generator) -> None:
        self._operator, self._generator = operator, generator
        self._stage, self._since = "above", 0
        self._pause = 0
        self._via: Array | None = None
        self._detours: list[Array] = self._draw_detours()
        self._beyond = self._draw_overshoot()
        self._late = int(generator.integers(1, 7)) if generator.random() < operator.slow_finger else 0
        self._drops = generator.random() < operator.drop
        self._drop_at = int(generator.integers(4, 14))
        self._grasp = self._turned = self._final = 0.0
        self._lowest, self._stuck = np.inf, 0
        self._nut_before = np.zeros(3)

    def act(self, observation: Array) -> tuple[Array, int]:
        """The action after an observation of robosuite 1.5's layout, (dimension,), and its phase."""
        action, phase = self._intended_action(observation)
        if self._pause:
            self._pause -= 1
            action[:6] = 0
        elif self._generator.random() < self._operator.hesitation:
            self._pause = self._operator.pause
        scale = self._operator.noise[phase] * np.array([1, 1, 1, 0.5, 0.5, 0.5])
        action[:6] += scale * self._generator.standard_normal(6)
        return np.clip(action, -1, 1), phase

    def _go(self, stage: str) -> None:
        """Change the stage; after a long way the operator may overshoot."""
        far = (self._stage, stage) in (("lift", "over"), ("let go", "above"))
        self._beyond = self._draw_overshoot() if far else 0.0
        self._stage, self._since, self._via = stage, 0, None

    def _draw_detours(self) -> list[Array]:
        count = self._generator.poisson(self._operator.detours)
        return list(self._generator.uniform([-0.12, -0.12, 0.0], [0.12, 0.12, 0.1], size=(min(count, 3), 3)))

    def _draw_overshoot(self) -> float:
        return float(self._operator.overshoot * self._generator.random())

    def _detour_point(self, here: Array, goal: Array) -> Array | None:
        """The point of the present detour: off the middle of the way, for at most 25 steps."""
        if not self._detours:
            return None
        if self._via is None:
            self._via = 0.5 * (here + goal) + self._detours[-1]
        if _norm(self._via - here) < 0.03 or self._since > 25:
            self._detours.pop()
            self._go(self._stage)
            return None
        return self._via

    def _tolerance(self) -> float:
        """Factor on the accuracy that a stage requires, which grows with time, so that no stage lasts for ever."""
        return 1 + min(self._since, 60) / 40

    def _intended_action(self, observation: Array) -> tuple[Array, int]:
        """The action without pause and noise, and its phase."""
        nut, nut_rotation = observation[7:10], _rotation(observation[10:14])
        hand, hand_rotation = observation[14:17], _rotation(observation[17:21])
        opening = observation[21] - observation[22]
        handle = nut + 0.054 * nut_rotation[:, 0]
        angle, yaw = _yaw(nut_rotation), _yaw(hand_rotation)
        if self._stage == "above":
            self._grasp, self._turned, self._final = _plan(angle)
        levelling = _turn_to_vertical(hand_rotation)
        held = opening > 0.02 and _norm(hand - handle) < 0.04
        self._since += 1
        if self._stage in ("lift", "over", "lower") and not held and self._since > 3:
            self._drops = False
            self._go("above")
        if self._stage in ("down", "close") and nut_rotation[2, 2] < 0.96 and opening > 0.04:  # a finger is on the nut
            self._go("above")
        if self._stage in ("above", "down", "close"):
            turn = levelling + (self._grasp - yaw) * _UP
            if self._stage == "above":
                return self._above(hand, turn, handle), 0
            if self._stage == "down":
                return self._down(hand, turn, handle), 1
            return self._close(hand, turn, handle, opening), 1
        if self._stage == "let go":
            return self._let_go(), 3 if nut[2] < 0.95 else 2
        # The hand never turns through the far side, where the range of its last joint ends.
        rest = self._turned - yaw
        turn = levelling + (rest + _wrap_angle(self._final - angle - rest)) * _UP
        return self._carry(nut, levelling, turn)

    def _above(self, hand: Array, turn: Array, handle: Array) -> Array:
        goal = handle + 0.07 * _UP
        if (via := self._detour_point(hand, goal)) is not None:
            return _move(via - hand, turn, -1)
        goal = goal + _extension(goal - hand, self._beyond)
        error, tolerance = goal - hand, self._tolerance()
        if _norm(error) < 0.02 and self._beyond:
            self._beyond = 0.0
        elif _norm(error[:2]) < 0.012 * tolerance and abs(error[2]) < 0.03 and _norm(turn) < 0.12 * tolerance:
            self._go("down")
        return _move(error, turn, -1)

    def _down(self, hand: Array, turn: Array, handle: Array) -> Array:
        error = handle - hand
        if _norm(error[:2]) > 0.035:
            self._go("above")
        elif abs(error[2]) < 0.01 and _norm(error[:2]) < 0.014:
            self._go("close")
        return _move(error, turn, -1)

    def _close(self, hand: Array, turn: Array, handle: Array, opening: float) -> Array:
        if self._late:
            self._late -= 1
            return _move(handle - hand, turn, -1)
        if opening < 0.02 or self._since > 25:
            self._go("above")
        elif self._since >= 7 and opening < 0.042:
            self._detours = self._draw_detours()
            self._go("lift")
        return _move(handle - hand, turn, 1)

    def _let_go(self) -> Array:
        if self._since > 6:
            self._go("above")
        return _move(0.01 * _UP, np.zeros(3), -1)

    def _carry(self, nut: Array, levelling: Array, turn: Array) -> tuple[Array, int]:
        if self._stage == "lift" and nut[2] > 0.93:
            self._go("over")
        if self._stage == "over" and self._drops and self._since > self._drop_at:
            self._drops = False
            self._go("let go")
        if self._stage == "lift":
            return _move((_CARRYING_HEIGHT - nut[2]) * _UP, levelling, 1), 2
        moved = _norm((nut - self._nut_before)[:2])
        self._nut_before = nut
        if self._stage == "over":
            return self._over(nut, turn, moved), 2
        error = np.array([*PEG, TABLE]) - nut
        if nut[2] > 0.955 and _norm(error[:2]) > 0.016:
            self._go("over")
        self._stuck = 0 if nut[2] < self._lowest - 1e-3 else self._stuck + 1
        self._lowest = min(self._lowest, nut[2])
        if self._stuck > 20:
            self._go("let go" if nut[2] < 0.95 else "over")
        return _move(error, turn, 1), 3

    def _over(self, nut: Array, turn: Array, moved: float) -> Array:
        over = np.array([*PEG, _CARRYING_HEIGHT])
        if (via := self._detour_point(nut, over)) is not None:
            return _move(via - nut, turn, 1)
        goal = over + _extension((over - nut) * [1, 1, 0], self._beyond)
        error, tolerance = goal - nut, self._tolerance()
        if _norm(error) < 0.02 and self._beyond:
            self._beyond = 0.0
        elif _norm(error[:2]) < 0.006 * tolerance and _norm(turn) < 0.12 * tolerance and moved < 0.004 * tolerance:
            self._lowest, self._stuck = np.inf, 0
            self._go("lower")
        if nut[2] < 0.962 and 0.03 < _norm(error[:2]) < 0.1:
            error = error * [0, 0, 1]  # first higher than the peg, then over it
        return _move(error, turn, 1, gain=1.4)


def _move(error: Array, turn: Array, grip: float, *, gain: float = 2.0) -> Array:
    """The action that reduces an error in position and rotation, at most as fast as the arm can."""
    shift, rotation = gain * error / 0.05, 1.5 * turn / 0.5
    shift /= max(1.0, float(np.abs(shift).max()))
    rotation /= max(1.0, float(np.abs(rotation).max()))
    return np.array([*shift, *rotation, grip])


def _extension(way: Array, by: float) -> Array:
    """A vector of length `by` in the direction of `way`."""
    length = _norm(way)
    return way * (by / length) if length > 1e-6 else np.zeros(3)


def _norm(vector: Array) -> float:
    return float(np.sqrt(vector @ vector))


def _yaw(rotation: Array) -> float:
    """Angle of the first axis in the table's plane."""
    return float(np.arctan2(rotation[1, 0], rotation[0, 0]))


def _turn_to_vertical(rotation: Array) -> Array:
    """Axis times angle of the rotation that points the hand straight down and keeps its yaw."""
    axis = np.array([-rotation[1, 2], rotation[0, 2], 0.0])  # cross product of the hand's third axis and straight down
    size = _norm(axis)
    return np.zeros(3) if size < 1e-9 else np.arctan2(size, -rotation[2, 2]) * axis / size


_LEAST_YAW, _GREATEST_YAW = -1.75, 2.6
"""Range of the hand's yaw, from where its last joint begins, in radians."""


def _plan(angle: float) -> tuple[float, float, float]:
    """Yaw of the hand to grasp with, yaw of the hand over the peg, and the direction of the handle then.

    The fingers close across the handle from either side. In the end the handle must be parallel to one of the peg's
    sides but not point away from the robot, where the arm does not reach, and best point towards it; the hand must stay
    within the range of its last joint, and should turn little.
    """
    plans = []
    for grasp in (angle, _wrap_angle(angle + np.pi)):
        for pointing in (np.pi, np.pi / 2, -np.pi / 2):
            turned = _wrap_angle(grasp + pointing - angle)
            cost = abs(grasp) + abs(turned - grasp) + (0.0 if pointing == np.pi else 1.5)
            if _LEAST_YAW < grasp < _GREATEST_YAW and _LEAST_YAW < turned < _GREATEST_YAW:
                plans.append((cost, grasp, turned, pointing))
    return min(plans)[1:]


def _wrap_angle(angle: float) -> float:
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
