"""Simulated demonstrators whose random actions no demonstrator model of the library describes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import final

import torch
from torch.distributions import Categorical

from ileed.errors import SettingsError

__all__ = ["Biased", "Persistent"]


@final
@dataclass(frozen=True, kw_only=True)
class Persistent:
    """With probability `expertise` follow the policy, otherwise repeat the action; at random where an episode starts.

    Random actions are as frequent as under `UniformMixture`, but depend on the previous action.
    """

    discrete = True
    previous: torch.Tensor = field(default_factory=lambda: torch.tensor(-1), repr=False)
    """The previous action in the same episode; -1 where there is none."""

    def after(self, previous: torch.Tensor) -> Persistent:
        """The same, after these actions (env,)."""
        return replace(self, previous=previous)

    def observed(self, policy: Categorical, expertise: torch.Tensor) -> Categorical:
        """The demonstrator's own distribution of actions; `expertise` has the policy's batch shape."""
        actions, previous = policy.probs.shape[-1], self.previous.expand(policy.batch_shape)
        again = torch.nn.functional.one_hot(previous.clamp_min(0), actions).to(policy.probs)
        uniform = torch.full_like(policy.probs, 1 / actions)
        slip = torch.where((previous < 0).unsqueeze(-1), uniform, again)
        return Categorical(probs=torch.lerp(slip, policy.probs, expertise.unsqueeze(-1)), validate_args=False)


@final
@dataclass(frozen=True)
class Biased:
    """With probability `expertise` follow the policy, otherwise take one of a few `actions`, at random.

    `Biased((2,))` then always takes action 2; in MiniGrid `Biased((0, 1))` turns left or right.
    """

    discrete = True
    actions: tuple[int, ...]
    """With equal probability."""

    def __post_init__(self) -> None:
        if not self.actions or len(set(self.actions)) < len(self.actions) or min(self.actions) < 0:
            raise SettingsError(
                f"the favourite actions are {self.actions}; name one or more, each once, by number from 0"
            )

    def observed(self, policy: Categorical, expertise: torch.Tensor) -> Categorical:
        """The demonstrator's own distribution of actions; `expertise` has the policy's batch shape."""
        count = policy.probs.shape[-1]
        if max(self.actions) >= count:
            raise SettingsError(f"action {max(self.actions)} is a favourite, but there are {count}, numbered from 0")
        slip = torch.zeros(count, dtype=policy.probs.dtype)
        slip[list(self.actions)] = 1 / len(self.actions)
        return Categorical(probs=torch.lerp(slip, policy.probs, expertise.unsqueeze(-1)), validate_args=False)
