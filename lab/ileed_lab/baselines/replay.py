"""Demonstrations as the offline baselines see them: steps and windows gathered on the device, in units of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from ileed.demonstrations import Array, Demonstrations
from ileed.errors import DemonstrationError

__all__ = ["Replay", "Transitions", "Units", "Windows"]


@final
@dataclass(frozen=True, eq=False)
class Units:
    """The units in which networks see the data: observations in deviations from their mean, actions from -1 to 1.

    Minus one and one are the least and the greatest that anybody did on that axis, so a policy never leaves what was
    demonstrated. An observation that never varies is zero; an action that never varies is repeated as it is.
    """

    shape: tuple[int, ...]
    mean: Tensor
    deviation: Tensor
    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, demonstrations: Demonstrations) -> Units:
        seen = np.asarray(demonstrations.observations, dtype=np.float64).reshape(len(demonstrations), -1)
        deviation = seen.std(axis=0)
        varies = deviation > 1e-6 * np.maximum(1, np.abs(seen).max(axis=0))  # below that it is rounding
        done = np.asarray(demonstrations.actions, dtype=np.float32)
        return cls(
            shape=demonstrations.observations.shape[1:],
            mean=torch.tensor(seen.mean(axis=0), dtype=torch.float32),
            deviation=torch.tensor(np.where(varies, deviation, 1), dtype=torch.float32),
            low=torch.tensor(done.min(axis=0)),
            high=torch.tensor(done.max(axis=0)),
        )

    def seen(self, observations: Array) -> Tensor:
        """(row, input) what networks read of (row, *shape) observations."""
        flat = torch.from_numpy(np.array(observations, dtype=np.float32).reshape(len(observations), -1))
        return (flat - self.mean) / self.deviation

    def scaled(self, actions: Array) -> Tensor:
        """(row, dimension) actions from -1 to 1."""
        done = torch.from_numpy(np.array(actions, dtype=np.float32))
        reach = self.high - self.low
        return 2 * (done - self.low) / torch.where(reach > 0, reach, 1) - (reach > 0).float()

    def actions(self, scaled: Tensor) -> Tensor:
        """The inverse of `scaled`, never beyond what was demonstrated."""
        return torch.lerp(self.low, self.high, (scaled + 1) / 2).clamp(self.low, self.high)


class Transitions(NamedTuple):
    """Steps drawn at random, and what followed."""

    observations: Tensor
    """(row, input)."""
    actions: Tensor
    """(row, dimension)."""
    rewards: Tensor
    """(row,)."""
    goes_on: Tensor
    """(row,) 0 where the task ended with this step, else 1."""
    following: Tensor
    """(row, input) what was seen next."""


class Windows(NamedTuple):
    """Stretches of episodes, and where each led."""

    observations: Tensor
    """(row, time, input)."""
    actions: Tensor
    """(row, time, dimension)."""
    present: Tensor
    """(row, time) 0 after the episode's last step, which is repeated there, else 1."""
    subgoals: Tensor
    """(row, input) what was seen a horizon after the first step, or last in the episode."""


@final
class Replay:
    """All steps as contiguous tensors on one device, from which batches are gathered there.

    The step after which an episode was cut has no known successor and takes no part in transitions.
    """

    def __init__(
        self, demonstrations: Demonstrations, *, method: str, with_rewards: bool, device: torch.device
    ) -> None:
        _check(demonstrations, method, with_rewards)
        self.units, self.device = Units.of(demonstrations), device
        self._observations = self.units.seen(demonstrations.observations).to(device)
        self._actions = self.units.scaled(demonstrations.actions).to(device)
        lengths = np.bincount(demonstrations.episode)
        last = np.repeat(np.cumsum(lengths) - 1, lengths)
        self._last = torch.from_numpy(last).to(device)
        if demonstrations.rewards is not None and demonstrations.terminals is not None:
            ended = demonstrations.terminals
            known = np.flatnonzero(ended | (np.arange(len(last)) < last))
            self._rewards = torch.from_numpy(demonstrations.rewards.copy()).to(device)
            self._goes_on = torch.from_numpy((~ended).astype(np.float32)).to(device)
            self._known = torch.from_numpy(known).to(device)

    @property
    def inputs(self) -> int:
        return self._observations.shape[1]

    @property
    def dimensions(self) -> int:
        return self._actions.shape[1]

    def transitions(self, count: int, generator: torch.Generator) -> Transitions:
        step = self._known[torch.randint(len(self._known), (count,), generator=generator, device=self.device)]
        following = torch.minimum(step + 1, self._last[step])
        return Transitions(
            self._observations[step],
            self._actions[step],
            self._rewards[step],
            self._goes_on[step],
            self._observations[following],
        )

    def windows(self, count: int, *, length: int, horizon: int, generator: torch.Generator) -> Windows:
        begin = torch.randint(len(self._last), (count, 1), generator=generator, device=self.device)
        last = self._last[begin]
        step = begin + torch.arange(length, device=self.device)
        index = torch.minimum(step, last)
        return Windows(
            self._observations[index],
            self._actions[index],
            (step <= last).float(),
            self._observations[torch.minimum(begin + horizon, last)[:, 0]],
        )


def _check(demonstrations: Demonstrations, method: str, with_rewards: bool) -> None:
    if demonstrations.discrete:
        raise DemonstrationError(
            f"these demonstrations choose among {demonstrations.action_count} discrete actions, but {method} learns "
            "continuous ones; pass actions of shape (steps, dimensions), or use ileed.bc() or ileed.Ileed()"
        )
    if not with_rewards:
        return
    for name in ("rewards", "terminals"):
        if getattr(demonstrations, name) is None:
            raise DemonstrationError(
                f"these demonstrations have no {name}, but {method} learns from rewards up to the task's own ends; "
                f"pass {name}, or choose a method that uses no rewards, such as Hbc"
            )
    if demonstrations.rewards is not None and not demonstrations.rewards.any():
        raise DemonstrationError(
            f"every reward is zero, so {method} cannot tell good from bad; pass the rewards of the task, or choose a "
            "method that uses none, such as Hbc"
        )
