"""Policies: what to do after each observation, as a distribution over actions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent, MixtureSameFamily, Normal

from ileed._torch import Bool, Float
from ileed.errors import SettingsError
from ileed.model.batch import Batch, Sizes
from ileed.nets import MLP, Pick


class AbstractPolicyHead(ABC):
    """Settings of a policy network.

    Laws: `build` draws each member's parameters from that member's generator alone; the module maps
    (input, place) observations to a distribution of batch shape (member, place) that is normalised.
    """

    discrete: bool

    @abstractmethod
    def build(self, sizes: Sizes, generators: Sequence[torch.Generator]) -> PolicyNet:
        """The network, ready to be called as `module(observations, legal)`."""


class PolicyNet(nn.Module, ABC):
    """A policy network of every member; `body` maps what is seen to the numbers a distribution is made of."""

    body: MLP


@final
@dataclass(frozen=True, kw_only=True)
class CategoricalMLP(AbstractPolicyHead):
    """A multi-layer perceptron with a probability for each of a list of actions."""

    hidden: tuple[int, ...] = (4, 4)
    discrete = True

    def __post_init__(self) -> None:
        check_hidden(self.hidden)

    def build(self, sizes: Sizes, generators: Sequence[torch.Generator]) -> PolicyNet:
        return _CategoricalNet(self, sizes, generators)


@final
@dataclass(frozen=True, kw_only=True)
class MixtureMLP(AbstractPolicyHead):
    """A multi-layer perceptron with a mixture of `modes` diagonal Gaussians over continuous actions.

    Actions are modelled in units of their spread in the data, so their scale does not matter; `deviation_floor` is
    the least standard deviation, in those units.
    """

    hidden: tuple[int, ...] = (64, 64)
    modes: int = 5
    deviation_floor: float = 1e-3
    discrete = False

    def __post_init__(self) -> None:
        check_hidden(self.hidden)
        if self.modes < 1:
            raise SettingsError(f"modes is {self.modes}: a mixture needs one or more")
        if not 0 < self.deviation_floor < float("inf"):
            raise SettingsError(f"deviation_floor is {self.deviation_floor}: it must be a number above zero")

    def build(self, sizes: Sizes, generators: Sequence[torch.Generator]) -> PolicyNet:
        return _MixtureNet(self, sizes, generators)


class Choice(Categorical):
    """A categorical distribution made from log-probabilities that are already normalised.

    `Categorical` would normalise again, which costs more than the network that made them. `log_probs` keeps the layout
    of the networks, (member, action, place).
    """

    def __init__(self, log_probs: Float[Tensor, "member action place"]) -> None:
        self.log_probs = log_probs
        self.logits = self._param = log_probs.transpose(-1, -2)
        self._num_events = log_probs.shape[-2]
        Distribution.__init__(self, self.logits.shape[:-1], validate_args=False)

    def taken(self, batch: Batch) -> Float[Tensor, "member cell"]:
        """Log-probability of the action that each cell counts."""
        assert batch.taken is not None  # discrete batches have it
        return batch.taken(self.log_probs.flatten(-2))


@final
class _CategoricalNet(PolicyNet):
    def __init__(self, settings: CategoricalMLP, sizes: Sizes, generators: Sequence[torch.Generator]) -> None:
        super().__init__()
        self.body = MLP((sizes.inputs, *settings.hidden, sizes.actions), generators=generators)

    def forward(
        self, observations: Float[Tensor, "*group input place"], legal: Bool[Tensor, "action place"] | None = None
    ) -> Choice:
        scores = self.body(observations)
        if legal is not None:
            scores = scores.masked_fill(~legal, -torch.inf)
        return Choice(scores.log_softmax(-2))


@final
class _MixtureNet(PolicyNet):
    def __init__(self, settings: MixtureMLP, sizes: Sizes, generators: Sequence[torch.Generator]) -> None:
        super().__init__()
        self.modes, self.floor = settings.modes, settings.deviation_floor
        self.body = MLP(
            (sizes.inputs, *settings.hidden, settings.modes * (1 + 2 * sizes.actions)), generators=generators
        )
        self.action_shift: Tensor
        self.action_scale: Tensor
        self.register_buffer("action_shift", torch.zeros(sizes.actions))
        self.register_buffer("action_scale", torch.ones(sizes.actions))

    def forward(self, observations: Float[Tensor, "input place"], legal: None = None) -> MixtureSameFamily:
        outputs = self.body(observations).transpose(-1, -2)
        weights = outputs[..., : self.modes]
        means, spreads = outputs[..., self.modes :].unflatten(-1, (self.modes, -1)).chunk(2, -1)
        deviations = nn.functional.softplus(spreads) + self.floor
        return mixture(weights, means * self.action_scale + self.action_shift, deviations * self.action_scale)


def mixture(logits: Tensor, means: Tensor, deviations: Tensor) -> MixtureSameFamily:
    """A mixture of diagonal Gaussians from (..., mode) logits and (..., mode, dimension) means and deviations."""
    return MixtureSameFamily(
        Categorical(logits=logits, validate_args=False),
        Independent(Normal(means, deviations, validate_args=False), 1, validate_args=False),
        validate_args=False,
    )


def mixture_parts(policy: MixtureSameFamily) -> tuple[Tensor, Tensor, Tensor]:
    """The logits, means and deviations that `mixture` would make this distribution from."""
    normal: Any = policy.component_distribution
    normal = normal.base_dist
    return policy.mixture_distribution.logits, normal.mean, normal.stddev


def mixture_at(policy: MixtureSameFamily, place: Pick) -> MixtureSameFamily:
    """The mixture at each cell's place."""
    if place.identity:
        return policy
    return mixture(*(part.index_select(1, place.index) for part in mixture_parts(policy)))


def check_hidden(hidden: tuple[int, ...]) -> None:
    """Refuse layer sizes that make no network."""
    if any(size < 1 for size in hidden):
        raise SettingsError(f"hidden layers are {hidden}: every size must be one or more")
