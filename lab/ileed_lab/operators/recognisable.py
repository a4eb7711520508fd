"""Operators that a novice would recognise: populations in a planar reaching task, with measured skill.

The task is to bring a hand to a target and to hold it there for half a second, within four seconds. Skill is an
outcome: an operator's success rate in rollouts that no estimate sees. The ranges of the traits were tuned on success
rates alone, and were fixed before any expertise was estimated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import numpy.typing as npt

from ileed import SettingsError
from ileed.envs.abstract_task import Flags, Numbers, Stepped
from ileed.parallel.runtime import stream
from ileed_lab.operators.motion import STEP, Array, Hands, Teleoperator, distance, follow
from ileed_lab.operators.recording import Recording, record

__all__ = [
    "FEATURES",
    "LIMIT",
    "SPEEDS",
    "TOLERANCE",
    "ReachingWorld",
    "Skill",
    "final_errors",
    "measure_skill",
    "population",
    "record_population",
    "record_reaching",
]

POSITION, VELOCITY, TARGET, TO_TARGET = slice(0, 2), slice(2, 4), slice(4, 6), slice(6, 8)
FEATURES = tuple(f"{name}_{axis}" for name in ("hand", "hand_velocity", "target", "hand_to_target") for axis in "xy")
LIMIT = 80
"""Steps of an episode: 4 s."""
TOLERANCE = 0.02
"""Metres: how near the target the hand must stay."""
HOLD = 10
"""Steps for which it must: 0.5 s."""
SPEEDS = ("equal", "unequal")
"""Whether all operators of a population move at one speed, or each at its own."""
_PLANE, _APART = 0.3, 0.2


@final
class ReachingWorld:
    """Hands and targets of all rows in one array of observations; row e begins its episodes from `seeds[e]`."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self._seeds = seeds
        self._state = np.zeros((len(seeds), len(FEATURES)))
        self._steps, self._inside = np.zeros((2, len(seeds)), dtype=np.int64)

    def begin(self, rows: Numbers, episodes: Numbers) -> Array:
        """Let each of these rows begin its episode of that number: at rest, and at least 0.2 m from the target."""
        for row, episode in zip(rows.tolist(), episodes.tolist(), strict=True):
            random = np.random.default_rng(stream(self._seeds[row], "episode", episode).initial_seed())
            hand, target = random.uniform(-_PLANE, _PLANE, (2, 2))
            while np.hypot(*(target - hand)) < _APART:
                target = random.uniform(-_PLANE, _PLANE, 2)
            self._state[row] = [*hand, 0.0, 0.0, *target, *(target - hand)]
        self._steps[rows] = self._inside[rows] = 0
        return self._state[rows]

    def step(self, rows: Numbers, actions: npt.NDArray[Any]) -> Stepped:
        """Move each of these hands; the reward is 1 once the hand has been near the target for long enough."""
        state = self._state[rows]
        state[:, VELOCITY] = follow(state[:, VELOCITY], actions)
        state[:, POSITION] += STEP * state[:, VELOCITY]
        state[:, TO_TARGET] = state[:, TARGET] - state[:, POSITION]
        self._state[rows] = state
        self._steps[rows] += 1
        near = distance(state[:, POSITION], state[:, TARGET]) < TOLERANCE
        self._inside[rows] = np.where(near, self._inside[rows] + 1, 0)
        success: Flags = self._inside[rows] >= HOLD
        return state.copy(), success.astype(np.float64), success, ~success & (self._steps[rows] >= LIMIT)


@final
class _Reaching:
    """Moves the hand of one operator to the target, in episodes side by side."""

    def __init__(self, hands: Hands, episodes: int) -> None:
        self._hands, self._first = hands, np.zeros(episodes, dtype=np.int64)

    def act(self, step: int, observations: Array) -> Array:
        seen = self._hands.see(observations)
        return self._hands.command(step, seen[:, POSITION], seen[:, TARGET] + self._hands.error_of_aim(self._first, 0))


def record_reaching(operator: Teleoperator, *, episodes: int, seed: int) -> Recording:
    """Episodes 0, 1, ... of one operator, failures included."""
    hands = Hands(operator, episodes=episodes, steps=LIMIT, axes=2, seed=seed)
    return record(ReachingWorld([seed] * episodes), _Reaching(hands, episodes), episodes=episodes, steps=LIMIT)


def record_population(operators: Sequence[Teleoperator], *, episodes: int, seed: int) -> Mapping[str, Recording]:
    """As many episodes of each operator, with targets of its own."""
    seeds = [stream(seed, "demonstrations", each.name).initial_seed() for each in operators]
    return {
        each.name: record_reaching(each, episodes=episodes, seed=own)
        for each, own in zip(operators, seeds, strict=True)
    }


def final_errors(recording: Recording) -> Array:
    """(episode,) distance of the hand from the target at the end."""
    return distance(recording.last[:, POSITION], recording.last[:, TARGET])


@final
@dataclass(frozen=True)
class Skill:
    """An operator's outcomes in a number of rollouts."""

    success: float
    """Share of episodes."""
    error: float
    """Mean distance from the target at the end, in metres."""
    seconds: float
    """Mean length of an episode."""
    episodes: int

    @property
    def variance(self) -> float:
        """Of the share, by chance in the rollouts: never zero, though all of them may have succeeded (Laplace)."""
        share = (self.success * self.episodes + 1) / (self.episodes + 2)
        return share * (1 - share) / self.episodes

    def is_clearly_above(self, other: Skill, *, errors: float = 3.0) -> bool:
        """Whether success is higher by more than this many standard errors of the difference."""
        return self.success - other.success > errors * (self.variance + other.variance) ** 0.5


def measure_skill(operator: Teleoperator, *, episodes: int, seed: int) -> Skill:
    """Skill by rollouts of the operator, which are not among its demonstrations."""
    found = record_reaching(operator, episodes=episodes, seed=stream(seed, "skill", operator.name).initial_seed())
    error, seconds = float(final_errors(found).mean()), float(STEP * found.steps.mean())
    return Skill(float(found.success.mean()), error, seconds, episodes)


def population(speeds: str, *, seed: int) -> tuple[Teleoperator, ...]:
    """Six operators with a trait each, of a size drawn for this population, and up to two ordinary ones.

    With "unequal" speeds the first is fast and the second slow, and the others are drawn in between; with "equal"
    speeds one is drawn for all of them.
    """
    if speeds not in SPEEDS:
        raise SettingsError(f"speeds must be one of {', '.join(SPEEDS)}, got {speeds!r}")
    random = np.random.default_rng(stream(seed, "population", speeds).initial_seed())
    precise, hesitant = ("precise", "hesitant") if speeds == "equal" else ("fast and precise", "slow and hesitant")
    angle, offset = random.uniform(0, 2 * np.pi), random.uniform(0.008, 0.024)
    usual = Teleoperator(name="ordinary", motor_noise=0.1, sloppiness=0.005)
    members = [
        replace(usual, name=precise, gain=5.0, motor_noise=0.05, sloppiness=0.003),
        replace(usual, name=hesitant, pauses=random.uniform(0.5, 1.5), pause=0.8),
        replace(usual, name="jittery", tremor=random.uniform(0.3, 0.9)),
        replace(usual, name="offset", offset=(float(offset * np.cos(angle)), float(offset * np.sin(angle)))),
        replace(usual, name="delayed", delay=int(random.integers(4, 8)), gain=3.0),
        replace(usual, name="overshooting", overshoot=random.uniform(0.4, 0.8), gain=5.0),
    ]
    for number in range(int(random.integers(0, 3))):
        members.append(replace(usual, name=f"ordinary {number + 1}", sloppiness=random.uniform(0.005, 0.014)))
    drawn = np.exp(random.uniform(np.log(0.4), 0.0, len(members)))
    drawn[:2] = 1.0, 0.4
    if speeds == "equal":
        drawn[:] = random.uniform(0.5, 0.9)
    return tuple(replace(each, speed=float(speed)) for each, speed in zip(members, drawn, strict=True))
