"""Latent dynamics: an auxiliary loss by which the embedding of a state predicts that of the next."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import final

import torch
from torch import Tensor, nn

from ileed._torch import Float
from ileed.errors import number
from ileed.model.batch import Sizes, Transitions, per_member
from ileed.model.nets import MLP, Generators
from ileed.model.policies import hidden_layers


@final
@dataclass(frozen=True, kw_only=True)
class LatentDynamics:
    """An auxiliary loss on the embedding f of `Embedded`: how badly a network g predicts the next state's embedding.

    weight * mean over transitions (s, a, s') of smooth-L1(g(f(s), a), f(s')): DeepMDP (Gelada et al., ICML 2019)
    without its reward, as in Beliaev et al., ICML 2022.
    """

    weight: float = 1.0
    hidden: tuple[int, ...] = (4, 4)

    def __post_init__(self) -> None:
        name, rule = "the weight of the latent dynamics", "it must be a number, zero or more"
        weight = number(name, self.weight, least=0, below=inf, rule=rule)
        object.__setattr__(self, "weight", weight)
        object.__setattr__(self, "hidden", hidden_layers(self.hidden))

    def build(self, dim: int, sizes: Sizes, generators: Generators) -> LatentDynamicsNet:
        return LatentDynamicsNet(self, dim, sizes, generators)


@final
class LatentDynamicsNet(nn.Module):
    """g of every member."""

    def __init__(self, settings: LatentDynamics, dim: int, sizes: Sizes, generators: Generators) -> None:
        super().__init__()
        self.body = MLP((dim + sizes.actions, *settings.hidden, dim), generators=generators)

    def forward(
        self, embedding: Float[Tensor, "member dimension observation"], transitions: Transitions
    ) -> Float[Tensor, " member"]:
        """The loss of each member, averaged over transitions by weight."""
        action, members = transitions.action, len(embedding)
        action = action.expand(members, -1, -1) if action.ndim == 2 else per_member(action, members)
        predicted = self.body(torch.cat([transitions.observation_index(embedding), action], dim=-2))
        following = transitions.next_observation_index(embedding)
        return transitions.mean(nn.functional.smooth_l1_loss(predicted, following, reduction="none").mean(-2))
