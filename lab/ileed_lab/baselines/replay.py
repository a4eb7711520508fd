"""The data of the offline baselines: normalised steps and windows of steps, gathered on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from ileed import DemonstrationError, Demonstrations
from ileed.data import Array
from ileed.model.normaliser import Normaliser

__all__ = ["Preprocessing", "Replay", "Transitions", "Windows"]


@final
@dataclass(frozen=True, eq=False)
class Preprocessing:
    """What networks see of the data: normalised observations, and actions scaled to [-1, 1].

    Observations have mean zero and standard deviation one; one that never varies is zero. The ends of an action's
    range, -1 and 1, are the least and the greatest that was demonstrated in that dimension, so that a policy never
    leaves the range of the demonstrations. An action that never varies is repeated as it is.
    """

    normaliser: Normaliser
    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, demonstrations: Demonstrations) -> Preprocessing:
        observed = np.asarray(demonstrations.observations, dtype=np.float64).reshape(len(demonstrations), -1)
        standard_deviation = observed.std(axis=0)
        varies = standard_deviation > 1e-6 * np.maximum(1, np.abs(observed).max(axis=0))  # below that it is rounding
        normaliser = Normaliser(
            shape=demonstrations.observations.shape[1:],
            kept=torch.arange(observed.shape[1]),
            shift=torch.tensor(observed.mean(axis=0), dtype=torch.float32),
            scale=torch.tensor(np.where(varies, standard_deviation, 1), dtype=torch.float32),
        )
        actions = np.asarray(demonstrations.actions, dtype=np.float32)
        return cls(normaliser, low=torch.tensor(actions.min(axis=0)), high=torch.tensor(actions.max(axis=0)))

    @property
    def observation_shape(self) -> tuple[int, ...]:
        return self.normaliser.shape

    def normalise(self, observations: Array) -> Tensor:
        """(row, input) normalised observations, from (row, *shape)."""
        rows = torch.from_numpy(np.array(observations, dtype=np.float32))
        inputs: Tensor = self.normaliser(rows)
        return inputs.T.contiguous()

    def scale_actions(self, actions: Array) -> Tensor:
        """(row, dimension) actions scaled to [-1, 1]."""
        rows = torch.from_numpy(np.array(actions, dtype=np.float32))
        width = self.high - self.low
        return 2 * (rows - self.low) / torch.where(width > 0, width, 1) - (width > 0).float()

    def unscale_actions(self, scaled: Tensor) -> Tensor:
        """The inverse of `scale_actions`, clamped to the range of the demonstrations."""
        return torch.lerp(self.low, self.high, (scaled + 1) / 2).clamp(self.low, self.high)


class Transitions(NamedTuple):
    """Steps drawn at random, and what followed them."""

    observations: Tensor
    """(row, input)."""
    actions: Tensor
    """(row, dimension)."""
    rewards: Tensor
    """(row,)."""
    continues: Tensor
    """(row,) 0 where the task ended with this step, else 1."""
    next_observations: Tensor
    """(row, input)."""


class Windows(NamedTuple):
    """Consecutive steps of episodes, and the subgoal of each window."""

    observations: Tensor
    """(row, time, input)."""
    actions: Tensor
    """(row, time, dimension)."""
    present: Tensor
    """(row, time) 0 after the episode's last step, which is repeated there, else 1."""
    subgoals: Tensor
    """(row, input) the observation a horizon after the first step, or the last of the episode."""


@final
class Replay:
    """All steps as contiguous tensors on one device, from which batches are gathered there.

    The last step of an episode that was truncated has no known successor and is left out of transitions.
    """

    def __init__(
        self, demonstrations: Demonstrations, *, method: str, with_rewards: bool, device: torch.device
    ) -> None:
        _check(demonstrations, method, with_rewards)
        self.preprocessing, self.device = Preprocessing.of(demonstrations), device
        self._observations = self.preprocessing.normalise(demonstrations.observations).to(device)
        self._actions = self.preprocessing.scale_actions(demonstrations.actions).to(device)
        lengths = np.bincount(demonstrations.episode)
        last = np.repeat(np.cumsum(lengths) - 1, lengths)
        self._last = torch.from_numpy(last).to(device)
        if demonstrations.rewards is not None and demonstrations.terminals is not None:
            terminals = demonstrations.terminals
            known = np.flatnonzero(terminals | (np.arange(len(last)) < last))
            self._rewards = torch.from_numpy(demonstrations.rewards.copy()).to(device)
            self._continues = torch.from_numpy((~terminals).astype(np.float32)).to(device)
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
            self._continues[step],
            self._observations[following],
        )

    def windows(self, count: int, *, length: int, horizon: int, generator: torch.Generator) -> Windows:
        first = torch.randint(len(self._last), (count, 1), generator=generator, device=self.device)
        last = self._last[first]
        step = first + torch.arange(length, device=self.device)
        index = torch.minimum(step, last)
        return Windows(
            self._observations[index],
            self._actions[index],
            (step <= last).float(),
            self._observations[torch.minimum(first + horizon, last)[:, 0]],
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
                f"these demonstrations have no {name}, but {method} learns from rewards and terminal steps; "
                f"pass {name}, or choose a method that uses no rewards, such as Hbc"
            )
    if demonstrations.rewards is not None and not demonstrations.rewards.any():
        raise DemonstrationError(
            f"every reward is zero, so {method} cannot tell good actions from bad; pass the rewards of the task, or "
            "choose a method that uses none, such as Hbc"
        )
