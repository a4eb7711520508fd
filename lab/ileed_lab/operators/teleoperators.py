"""Eight teleoperators for pick and place: one expert controller, with the hand of each operator.

The constants were tuned on success rates alone: those of the operators, which should spread widely at both tolerances,
and those of policies cloned from everything and from the successes, which should be neither 0 nor 1. They were fixed
before any expertise was estimated. Success over 500 episodes (`success_rates`, seed 0):

                          easy   hard
    exact and fast       1.000  1.000
    exact and slow       1.000  1.000
    ordinary             0.926  0.794
    late by 250 ms       0.830  0.590
    constant offset      0.764  0.226
    trembling            0.712  0.452
    overshooting         0.522  0.338
    hesitant, careless   0.346  0.134
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import cache
from typing import final

import numpy as np
import numpy.typing as npt

from ileed.parallel.runtime import stream
from ileed_lab.operators.motion import STEP, Array, Hands, Teleoperator, distance
from ileed_lab.operators.pick_place import GOAL, HELD, LIMIT, OBJECT, OPENING, POSITION, PickPlaceTask
from ileed_lab.operators.recording import Recording, record

__all__ = [
    "EXPERT",
    "OPERATORS",
    "Phase",
    "PickPlaceController",
    "record_operator",
    "record_operators",
    "success_rates",
]

EXPERT = Teleoperator(name="expert", speed=1.0, gain=5.0, care=0.004, motor_noise=0.0)
OPERATORS: tuple[Teleoperator, ...] = (
    Teleoperator(name="exact and fast", speed=1.0, gain=5.0, care=0.01, motor_noise=0.08, sloppiness=0.004),
    Teleoperator(name="exact and slow", speed=0.4, gain=3.0, care=0.01, motor_noise=0.05, sloppiness=0.004),
    Teleoperator(name="ordinary", speed=0.7, gain=4.0, care=0.015, motor_noise=0.1, sloppiness=0.015),
    Teleoperator(
        name="overshooting", speed=0.9, gain=5.0, care=0.02, motor_noise=0.1, sloppiness=0.012, overshoot=0.55
    ),
    Teleoperator(
        name="constant offset", speed=0.8, care=0.01, motor_noise=0.08, sloppiness=0.006, offset=(0.022, -0.018)
    ),
    Teleoperator(name="trembling", speed=0.7, care=0.02, motor_noise=0.08, sloppiness=0.014, tremor=0.5),
    Teleoperator(name="late by 250 ms", speed=0.8, gain=3.5, care=0.02, motor_noise=0.08, sloppiness=0.012, delay=5),
    Teleoperator(
        name="hesitant and careless",
        speed=0.6,
        care=0.03,
        motor_noise=0.15,
        sloppiness=0.03,
        pauses=0.8,
        pause=0.8,
    ),
)
_HOVER = 0.12  # height above an object from which it is approached
_VIA = 0.03  # how near a point on the way counts as passed
_PATIENCE = 2.0  # seconds after which an operator acts though the aim is not reached


class Phase(IntEnum):
    """What an operator is about to do."""

    REACH = 0
    DESCEND = 1
    GRASP = 2
    LIFT = 3
    CARRY = 4
    PLACE = 5
    RELEASE = 6


@final
class PickPlaceController:
    """The expert controller, in episodes side by side: it goes through the phases by what the operator sees.

    A hand other than the expert's sees late, aims beside and moves as its settings say.
    """

    def __init__(self, hands: Hands, *, episodes: int) -> None:
        self._hands = hands
        self.phase = np.full(episodes, Phase.REACH)
        self._since = np.zeros(episodes, dtype=np.int64)
        self._attempt = np.zeros(episodes, dtype=np.int64)
        self._above = np.zeros((episodes, 3))

    def act(self, step: int, observations: Array) -> Array:
        seen = self._hands.see(observations)
        self._advance(step, seen)
        command = self._hands.command(step, seen[:, POSITION], self._aim(seen))
        closes = (self.phase >= Phase.GRASP) & (self.phase <= Phase.PLACE)
        return np.column_stack([command, np.where(closes, 1.0, -1.0)])

    def _aim(self, seen: Array) -> Array:
        """(row, 3) where the hand should go in its phase, as the operator sees it."""
        place = seen[:, OBJECT] + self._hands.error_of_aim(self._attempt, 0)
        goal = seen[:, GOAL] + self._hands.error_of_aim(self._attempt, 1)
        up = np.array([0.0, 0.0, _HOVER])
        aims = np.stack([place + up, place, place, self._above, goal + up, goal, goal])
        # a held object moves with the gripper: while the jaws close, the aim is where they began to
        aims[Phase.GRASP] = self._above - up
        return np.asarray(aims[self.phase, np.arange(len(seen))])

    def _advance(self, step: int, seen: Array) -> None:
        """Go on to the next phase where this one is finished, or back to the first where a grasp was missed."""
        phase, aim = self.phase, self._aim(seen)
        passed = distance(seen[:, POSITION], aim) < _VIA
        waited = (step - self._since) * STEP > _PATIENCE
        arrived = self._hands.has_arrived(seen[:, POSITION], aim) | (waited & passed)
        held, closed = seen[:, HELD] > 0, seen[:, OPENING] == 0
        done = np.select(
            [phase == Phase.GRASP, (phase == Phase.DESCEND) | (phase == Phase.PLACE), phase == Phase.RELEASE],
            [held, arrived, np.zeros_like(held)],
            passed,
        )
        missed = (phase == Phase.GRASP) & closed & ~held
        closing = done & (phase == Phase.DESCEND)
        self._above[closing] = aim[closing] + np.array([0.0, 0.0, _HOVER])
        self._attempt += missed
        self.phase = np.where(missed, Phase.REACH, phase + done)
        self._since[done | missed] = step


def record_operator(task: PickPlaceTask, operator: Teleoperator, *, episodes: int, seed: int) -> Recording:
    """Episodes 0, 1, ... of one operator, failures included."""
    hands = Hands(operator, episodes=episodes, steps=LIMIT, axes=3, seed=seed)
    controller = PickPlaceController(hands, episodes=episodes)
    return record(task.world([seed] * episodes), controller, episodes=episodes, steps=LIMIT)


def record_operators(
    task: PickPlaceTask, operators: Sequence[Teleoperator] = OPERATORS, *, episodes: int, seed: int
) -> Mapping[str, Recording]:
    """As many episodes of each operator, with objects and goals of its own."""
    return {
        each.name: record_operator(
            task, each, episodes=episodes, seed=stream(seed, "operator", each.name).initial_seed()
        )
        for each in operators
    }


@cache
def success_rates(task: PickPlaceTask, *, episodes: int, seed: int) -> npt.NDArray[np.float64]:
    """(operator,) the share of episodes in which each of `OPERATORS` succeeds."""
    recordings = record_operators(task, episodes=episodes, seed=seed)
    return np.array([each.success.mean() for each in recordings.values()])
