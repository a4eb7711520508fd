"""What the offline baselines share: how they are fitted, and the policy that comes out."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, final

import numpy as np
import torch
from torch import Tensor, nn

from ileed import DemonstrationError, Demonstrations, SettingsError
from ileed.data import Array
from ileed.parallel.runtime import keep_freed_memory, resolve_device, stream
from ileed_lab.baselines.replay import Preprocessing, Replay
from ileed_lab.baselines.training import Trainer, TrainingPoint, train
from ileed_lab.in_turn import AbstractSideBySide

__all__ = [
    "AbstractActor",
    "AbstractOffline",
    "FittedOffline",
    "OfflinePolicy",
    "Start",
    "State",
    "at_least_one",
    "positive",
]

State = tuple[Tensor, ...]
"""The hidden state of an actor, one row for each environment."""


class AbstractActor(nn.Module, ABC):
    """The networks of a policy: from normalised observations to actions scaled to [-1, 1].

    Laws: row r of the answer depends on row r of the arguments, and without a generator on nothing else.
    """

    @abstractmethod
    def initial_state(self, rows: int) -> State:
        """The hidden state at the start of an episode: zeros, with the row as the first axis of each tensor."""

    @abstractmethod
    def act(self, observations: Tensor, state: State, generator: torch.Generator | None) -> tuple[Tensor, State]:
        """Actions (row, dimension) and the next state; sampled with a generator, the preferred ones without."""


@final
class OfflinePolicy:
    """A learned policy for continuous actions: takes observations and returns actions as they are in the data.

    Has stable-baselines3's `predict`. A state is a tuple of arrays whose first axis is the row, so that many
    environments may be stepped at once, each with its own hidden state. Sampled actions come from the policy's own
    random stream, which `reset(seed)` restarts.
    """

    def __init__(self, actor: AbstractActor, preprocessing: Preprocessing) -> None:
        self._actor, self._preprocessing = actor.cpu().eval().requires_grad_(False), preprocessing
        self._generator = stream(0, "act")

    @property
    def observation_shape(self) -> tuple[int, ...]:
        return self._preprocessing.observation_shape

    def reset(self, seed: int = 0) -> None:
        """Restart the stream of sampled actions; the caller keeps the hidden state of an episode, in `state`."""
        self._generator = stream(seed, "act")

    @torch.no_grad()
    def predict(
        self,
        observation: Array,
        state: tuple[Array, ...] | None = None,
        episode_start: Array | None = None,
        deterministic: bool = True,
    ) -> tuple[Array, tuple[Array, ...] | None]:
        """The preferred or a sampled action, for one observation or a batch of them, and the state to pass next."""
        shape = self.observation_shape
        single = np.shape(observation) == shape
        rows = np.asarray(observation)[None] if single else np.asarray(observation)
        if rows.shape[1:] != shape:
            raise DemonstrationError(
                f"observations have shape {rows.shape}: this policy learned from observations of shape "
                f"{shape}, so pass (number of observations, {', '.join(map(str, shape))})"
            )
        scaled, after = self._actor.act(
            self._preprocessing.normalise(rows),
            self._state_before(len(rows), state, episode_start),
            None if deterministic else self._generator,
        )
        actions = self._preprocessing.unscale_actions(scaled).numpy()
        return (actions[0] if single else actions), (tuple(part.numpy() for part in after) or None)

    def _state_before(self, rows: int, state: tuple[Array, ...] | None, starts: Array | None) -> State:
        """The given state, with the initial one in the rows in which an episode starts."""
        initial = self._actor.initial_state(rows)
        if state is None:
            return initial
        given = tuple(torch.from_numpy(np.array(part)) for part in state)
        if [part.shape for part in given] != [part.shape for part in initial]:
            raise SettingsError(
                f"the state is of {len(given[0]) if given else 0} rows of another kind: pass what predict returned for "
                f"these {rows} rows, or None where all episodes begin"
            )
        if starts is None:
            return given
        begins = torch.from_numpy(np.array(starts, dtype=bool)).reshape(rows)
        return tuple(
            torch.where(begins.view(rows, *[1] * (new.ndim - 1)), new, old)
            for new, old in zip(initial, given, strict=True)
        )


@final
@dataclass(frozen=True, eq=False)
class FittedOffline:
    """A fit: `policy` to act with, and `history`, the training curve of each trainer."""

    policy: OfflinePolicy
    history: Mapping[str, tuple[TrainingPoint, ...]]
    method: Any
    seconds: float
    """How long the training took; of several fits side by side, an equal share."""

    def __repr__(self) -> str:
        steps = sum(curve[-1].steps for curve in self.history.values())
        return f"FittedOffline({type(self.method).__name__}, {steps:,} optimisation steps in {self.seconds:.0f} s)"


# Fitting


_Actor = TypeVar("_Actor", bound=AbstractActor, covariant=True)


class Start(NamedTuple, Generic[_Actor]):
    """An actor with random weights, and the trainers that optimise it, by name."""

    actor: _Actor
    trainers: Mapping[str, Trainer]


class AbstractOffline(AbstractSideBySide):
    """A method that learns continuous actions from a file, without any interaction with the environment.

    Laws: the policy depends on the method's settings, the demonstrations and the seed alone, also beside other fits,
    and on a CPU to the last bit; and on rewards only where `uses_rewards` says so.
    """

    title: ClassVar[str]
    """Its name in a sentence."""
    uses_rewards: ClassVar[bool]

    @abstractmethod
    def start(self, replay: Replay, *, seed: int) -> Start[AbstractActor]:
        """Networks with weights drawn from the seed, and the trainers that fit them to these steps."""

    def fit_each(
        self, datasets: Sequence[Demonstrations], *, seeds: Sequence[int], device: str = "auto"
    ) -> list[FittedOffline]:
        """A fit of each data set with its seed; on a GPU side by side, in about half the time."""
        keep_freed_memory()
        began, torch_device = time.perf_counter(), resolve_device(device)
        replays = [
            Replay(each, method=self.title, with_rewards=self.uses_rewards, device=torch_device) for each in datasets
        ]
        starts = [self.start(replay, seed=seed) for replay, seed in zip(replays, seeds, strict=True)]
        curves = iter(train([each for _, trainers in starts for each in trainers.values()]))
        seconds = (time.perf_counter() - began) / max(1, len(starts))
        return [
            FittedOffline(
                OfflinePolicy(actor, replay.preprocessing), {name: next(curves) for name in trainers}, self, seconds
            )
            for (actor, trainers), replay in zip(starts, replays, strict=True)
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
