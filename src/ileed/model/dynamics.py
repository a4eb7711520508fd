"""Latent dynamics: an auxiliary cost that asks the embedding of a state to foretell the next one's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from ileed._torch import Float
from ileed.checking import number
from ileed.model.batch import Sizes, Transitions
from ileed.model.policies import hidden_layers
from ileed.nets import MLP


@final
@dataclass(frozen=True, kw_only=True)
class LatentDynamics:
    """Smooth-L1 distance between g(f(s), a) and f(s'), averaged over transitions and multiplied by `weight`.

    DeepMDP without its reward head, as the paper uses it. It needs a learned embedding: `Embedded`.
    """

    weight: float = 1.0
    hidden: tuple[int, ...] = (4, 4)

    def __post_init__(self) -> None:
        weight = number(
            "the weight of the latent dynamics",
            self.weight,
            within=lambda weight: 0 <= weight < float("inf"),
            rule="it must be a number, zero or more",
        )
        object.__setattr__(self, "weight", weight)
        object.__setattr__(self, "hidden", hidden_layers(self.hidden))

    def build(self, dim: int, sizes: Sizes, generators: Sequence[torch.Generator]) -> LatentDynamicsNet:
        return LatentDynamicsNet(self, dim, sizes, generators)


@final
class LatentDynamicsNet(nn.Module):
    """g of every member."""

    def __init__(self, settings: LatentDynamics, dim: int, sizes: Sizes, generators: Sequence[torch.Generator]) -> None:
        super().__init__()
        self.body = MLP((dim + sizes.actions, *settings.hidden, dim), generators=generators)

    def forward(
        self, embedding: Float[Tensor, "member dimension observation"], transitions: Transitions
    ) -> Float[Tensor, " member"]:
        """The cost of each member, averaged over transitions by weight."""
        action = transitions.actions_of(len(embedding))
        foretold = self.body(torch.cat([transitions.observation_index(embedding), action], dim=-2))
        came = transitions.next_observation_index(embedding)
        distance = nn.functional.smooth_l1_loss(foretold, came, reduction="none").mean(-2)
        return transitions.mean(distance)
