"""Teleoperators: one family of frozen settings, and the motion of a hand under each of them.

A teleoperator moves a hand towards an aim at 20 Hz. Without traits the command is a proportional controller of bounded
speed, v = min(gain d, speed) in the direction of the aim at distance d. Every departure from it is one setting. Nothing
here knows the task: a task says where the aim is, and when it has been reached.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from ileed.parallel.runtime import stream

__all__ = ["FASTEST", "STEP", "Array", "Hands", "Teleoperator", "band_limited", "distance", "follow"]

Array = npt.NDArray[np.float64]

STEP = 0.05
"""Seconds: 20 Hz."""
FASTEST = 0.5
"""Speed in m/s that a command of 1 stands for."""
TREMOR_BAND = (1.5, 4.0)
"""Hz: intention tremor, which grows in goal-directed movement, is below 5 Hz."""
_FOLLOWING = 0.5  # share of the difference between command and velocity that the robot makes up in one step
_ATTEMPTS = 12  # aims that are drawn for each episode, more than any time limit leaves room for


@final
@dataclass(frozen=True, kw_only=True)
class Teleoperator:
    """One operator: how fast, how precise, how late. Lengths are in metres, commands in shares of `FASTEST`."""

    name: str
    speed: float = 0.8
    """The largest command, before noise."""
    gain: float = 4.0
    """Commanded speed per distance from the aim, in 1/s."""
    care: float = 0.006
    """How near the aim counts as arrived, whatever the speed."""
    motor_noise: float = 0.05
    """Standard deviation of white noise relative to the command (signal-dependent: Harris and Wolpert 1998)."""
    tremor: float = 0.0
    """Standard deviation of noise between 1.5 and 4 Hz that is added to each component of the command."""
    delay: int = 0
    """Steps between what the operator acts on and the present."""
    offset: tuple[float, float] = (0.0, 0.0)
    """Constant horizontal error of every aim."""
    sloppiness: float = 0.0
    """Standard deviation of a horizontal aiming error, drawn for each attempt."""
    overshoot: float = 0.0
    """How far beyond the aim each movement goes in the plane, relative to its length. So does each correction."""
    pauses: float = 0.0
    """How often per second of movement the operator stops."""
    pause: float = 0.6
    """Mean length of such a pause, in seconds."""


def follow(velocity: Array, command: Array) -> Array:
    """The velocity of a robot one step after a command in [-1, 1], which it follows with a lag of about 70 ms."""
    return velocity + _FOLLOWING * (FASTEST * command.clip(-1, 1) - velocity)


def distance(one: Array, other: Array) -> Array:
    """(row,) Euclidean distance of two points."""
    return np.asarray(np.sqrt(((one - other) ** 2).sum(axis=1)))


def band_limited(white: Array, band: tuple[float, float]) -> Array:
    """White noise (step, axis) without the frequencies (Hz) outside a band, scaled to the same variance."""
    low, high = band
    spectrum = np.fft.rfft(white, axis=0)
    frequency = np.fft.rfftfreq(len(white), STEP)
    inside = (frequency >= low) & (frequency <= high)
    return np.fft.irfft(spectrum * inside[:, None], len(white), axis=0) / np.sqrt(inside.mean())


@final
class Hands:
    """The hand of one teleoperator in many episodes side by side, a row for each.

    All chance of episode k is drawn from `(seed, k)` beforehand: neither the other episodes nor their number matter.
    """

    def __init__(self, operator: Teleoperator, *, episodes: int, steps: int, axes: int, seed: int) -> None:
        self.operator = operator
        self._tremor = np.empty((episodes, steps, axes))
        self._motor = np.empty((episodes, steps, axes))
        self._paused = np.empty((episodes, steps), dtype=bool)
        self._errors = np.zeros((episodes, _ATTEMPTS, 2, axes))
        for episode in range(episodes):
            random = np.random.default_rng(stream(seed, "hand", episode).initial_seed())
            self._errors[episode, :, :, :2] = random.standard_normal((_ATTEMPTS, 2, 2))
            self._motor[episode] = random.standard_normal((steps, axes))
            self._tremor[episode] = band_limited(random.standard_normal((steps, axes)), TREMOR_BAND)
            self._paused[episode] = _pauses(operator, random.random(steps))
        self._errors *= operator.sloppiness
        self._errors[..., :2] += operator.offset
        self._seen: list[Array] = []
        self._start = np.full((episodes, 2), np.nan)
        self._aim = np.full((episodes, 2), np.nan)

    def see(self, observations: Array) -> Array:
        """(row, feature) what the operator acts on at the next step: what was there `delay` steps ago, or at first."""
        self._seen = [*self._seen, observations][-(self.operator.delay + 1) :]
        return self._seen[0]

    def error_of_aim(self, attempt: npt.NDArray[np.int64], which: int) -> Array:
        """(row, axis) where the hand goes rather than to the first or the second aim (0, 1) of an attempt."""
        rows = np.arange(len(attempt))
        return np.asarray(self._errors[rows, np.minimum(attempt, _ATTEMPTS - 1), which])

    def has_arrived(self, position: Array, aim: Array) -> npt.NDArray[np.bool_]:
        """(row,) whether the hand is as near the aim as the operator cares for."""
        return np.asarray(distance(position, aim) < self.operator.care)

    def command(self, step: int, position: Array, aim: Array) -> Array:
        """(row, axis) the command at a step, within [-1, 1], towards the aim from where the operator sees the hand."""
        operator, beyond = self.operator, self._beyond(position, aim)
        length = np.maximum(distance(beyond, position), 1e-9)[:, None]
        speed = np.minimum(operator.gain * length / FASTEST, operator.speed)
        command = speed * (beyond - position) / length
        command = command + operator.motor_noise * speed * self._motor[:, step]
        command = command + operator.tremor * self._tremor[:, step]
        return np.where(self._paused[:, step, None], 0.0, command).clip(-1, 1)

    def _beyond(self, position: Array, aim: Array) -> Array:
        """(row, axis) the point that a movement goes to: beyond the aim, by a share of the movement's length.

        A movement begins where the aim changes, or where the last one has ended; both are about the plane, since the
        table stops a hand that goes too low.
        """
        if not self.operator.overshoot:
            return aim
        here, there = position[:, :2], aim[:, :2]
        fresh = ~(distance(there, self._aim) < 1e-9)  # also at the beginning, where there is none
        self._start[fresh], self._aim[fresh] = here[fresh], there[fresh]
        excess = self.operator.overshoot * (there - self._start)
        ended = distance(here, there + excess) < np.maximum(0.2 * distance(excess, np.zeros_like(excess)), 0.002)
        self._start[ended] = here[ended]
        beyond = aim.copy()
        beyond[:, :2] += self.operator.overshoot * (there - self._start)
        return beyond


def _pauses(operator: Teleoperator, chance: Array) -> npt.NDArray[np.bool_]:
    """(step,) whether the operator pauses: pauses begin at a constant rate, and end at another."""
    paused, now = np.zeros(len(chance), dtype=bool), False
    for step, drawn in enumerate(chance.tolist()):
        now = drawn >= STEP / operator.pause if now else drawn < STEP * operator.pauses
        paused[step] = now
    return paused
