"""What the offline baselines share: how they are fitted, and the policy that plays."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, final

import numpy as np
import torch
from torch import Tensor, nn

from ileed.demonstrations import Array, Demonstrations
from ileed.errors import DemonstrationError, SettingsError
from ileed.runtime import keep_freed_memory, resolve_device, stream
from ileed.tasks import Progress
from ileed_lab.baselines.lessons import Lesson, Point, practise
from ileed_lab.baselines.replay import Replay, Units

__all__ = [
    "AbstractActor",
    "AbstractOffline",
    "Beginner",
    "FittedOffline",
    "OfflinePolicy",
    "State",
    "at_least_one",
    "positive",
]

State = tuple[Tensor, ...]
"""What an actor remembers of each row."""


class AbstractActor(nn.Module, ABC):
    """What a policy plays with: networks that see and act in the data's `Units`.

    Laws: row r of the answer depends on row r of what is given, and without a generator on nothing else.
    """

    @abstractmethod
    def begin(self, rows: int) -> State:
        """The state of rows in which nothing has happened yet: zeros, the first axis of each part being the row."""

    @abstractmethod
    def act(self, observations: Tensor, state: State, generator: torch.Generator | None) -> tuple[Tensor, State]:
        """Actions (row, dimension) and the state after; drawn with a generator, the preferred ones without."""


@final
class OfflinePolicy:
    """A learned policy for continuous actions: takes observations and gives actions in their own units.

    Has stable-baselines3's `predict`. A state is a tuple of arrays whose first axis is the row, so that many
    environments may be played at once, each with its own memory. Draws, where asked for, come from a stream of the
    policy's own, which `reset(seed)` starts anew.
    """

    def __init__(self, actor: AbstractActor, units: Units) -> None:
        self._actor, self._units = actor.cpu().eval().requires_grad_(False), units
        self._generator = stream(0, "act")

    @property
    def observation_shape(self) -> tuple[int, ...]:
        return self._units.shape

    def reset(self, seed: int = 0) -> None:
        """Start the stream of drawn actions anew; an episode's memory is the caller's, in `state`."""
        self._generator = stream(seed, "act")

    @torch.no_grad()
    def predict(
        self,
        observation: Array,
        state: tuple[Array, ...] | None = None,
        episode_start: Array | None = None,
        deterministic: bool = True,
    ) -> tuple[Array, tuple[Array, ...] | None]:
        """The preferred action, or one drawn, for one observation or a batch of them, and the state to pass next."""
        single = np.shape(observation) == self._units.shape
        rows = np.asarray(observation)[None] if single else np.asarray(observation)
        if rows.shape[1:] != self._units.shape:
            raise DemonstrationError(
                f"observations have shape {rows.shape}: this policy learned from observations of shape "
                f"{self._units.shape}, so pass (number of observations, {', '.join(map(str, self._units.shape))})"
            )
        actions, after = self._actor.act(
            self._units.seen(rows),
            self._remembered(len(rows), state, episode_start),
            None if deterministic else self._generator,
        )
        done = self._units.actions(actions).numpy()
        return (done[0] if single else done), (tuple(part.numpy() for part in after) or None)

    def _remembered(self, rows: int, state: tuple[Array, ...] | None, starts: Array | None) -> State:
        fresh = self._actor.begin(rows)
        if state is None:
            return fresh
        kept = tuple(torch.from_numpy(np.array(part)) for part in state)
        if [part.shape for part in kept] != [part.shape for part in fresh]:
            raise SettingsError(
                f"the state is of {len(kept[0]) if kept else 0} rows of another kind: pass what predict returned for "
                f"these {rows} rows, or None where all episodes begin"
            )
        if starts is None:
            return kept
        begins = torch.from_numpy(np.array(starts, dtype=bool)).reshape(rows)
        return tuple(
            torch.where(begins.view(rows, *[1] * (new.ndim - 1)), new, old)
            for new, old in zip(fresh, kept, strict=True)
        )


@final
@dataclass(frozen=True, eq=False)
class FittedOffline:
    """A fit: `policy` to act with, and `history`, the training curve of each part, to judge it by."""

    policy: OfflinePolicy
    history: Mapping[str, tuple[Point, ...]]
    method: Any
    seconds: float
    """How long the training took; of several fits side by side, its share."""

    def __repr__(self) -> str:
        steps = sum(curve[-1].steps for curve in self.history.values())
        return f"FittedOffline({type(self.method).__name__}, {steps:,} gradient steps in {self.seconds:.0f} s)"


# Fitting


_Actor = TypeVar("_Actor", bound=AbstractActor, covariant=True)


class Beginner(NamedTuple, Generic[_Actor]):
    """An actor that knows nothing yet, and the lessons that will change that, by name."""

    actor: _Actor
    lessons: Mapping[str, Lesson]


class AbstractOffline(ABC):
    """A method that learns continuous actions from a file, and never plays while it learns.

    Laws: what is learned depends on the method's settings, the demonstrations and the seed alone, also beside other
    fits, and on a CPU to the last bit; and on rewards only where `uses_rewards` says so.
    """

    title: ClassVar[str]
    """What it is called in a sentence."""
    uses_rewards: ClassVar[bool]

    @abstractmethod
    def begin(self, replay: Replay, *, seed: int) -> Beginner[AbstractActor]:
        """Networks as the seed draws them, and how they learn from these steps."""

    def fit(
        self, demonstrations: Demonstrations, *, seed: int, device: str = "auto", progress: Progress | None = None
    ) -> FittedOffline:
        """Learn from demonstrations, with rewards and terminals where the method uses them."""
        return self.fit_each([demonstrations], seeds=[seed], device=device, progress=progress)[0]

    def fit_each(
        self,
        demonstrations: Sequence[Demonstrations],
        *,
        seeds: Sequence[int],
        device: str = "auto",
        progress: Progress | None = None,
    ) -> list[FittedOffline]:
        """A fit of each data set with its seed; on a GPU side by side, in about half the time."""
        keep_freed_memory()
        began, place = time.perf_counter(), resolve_device(device)
        replays = [
            Replay(each, method=self.title, with_rewards=self.uses_rewards, device=place) for each in demonstrations
        ]
        beginners = [self.begin(replay, seed=seed) for replay, seed in zip(replays, seeds, strict=True)]
        curves = iter(practise([each for _, lessons in beginners for each in lessons.values()], progress=progress))
        seconds = (time.perf_counter() - began) / max(1, len(beginners))
        return [
            FittedOffline(OfflinePolicy(actor, replay.units), {name: next(curves) for name in lessons}, self, seconds)
            for (actor, lessons), replay in zip(beginners, replays, strict=True)
        ]


# Settings


def at_least_one(settings: Any, *names: str) -> None:
    """Refuse counts below one."""
    for name in names:
        value = getattr(settings, name)
        if value != int(value) or value < 1:
            raise SettingsError(f"{name} is {value}: it must be a whole number, one or more")


def positive(settings: Any, *names: str) -> None:
    """Refuse numbers that are not above zero."""
    for name in names:
        value = getattr(settings, name)
        if not 0 < value < float("inf"):
            raise SettingsError(f"{name} is {value}: it must be a number above zero")
