"""Policy heads: what a policy network must provide, to learn and to act."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ileed._torch import Bool, Float
from ileed.checking import whole_numbers
from ileed.errors import SettingsError
from ileed.model.batch import Sizes
from ileed.model.normaliser import ActionScale
from ileed.nets import MLP, Generators


class AbstractPolicyHead(ABC):
    """Settings of a policy network.

    Laws: `build` draws each member's parameters from that member's generator alone; the module maps
    (input, observation) tensors to a normalised distribution of batch shape (member, observation).
    """

    discrete: bool
    length: int = 1
    """How many time steps in a row the network must be shown; one where it is not recurrent."""

    hidden: tuple[int, ...] = ()
    """The sizes of hidden layers, where it has any."""
    compares_widths: bool = False
    """Whether `resized` may be called, so that held-out episodes can choose how many hidden units it has."""

    def resized(self, hidden: tuple[int, ...]) -> AbstractPolicyHead:
        """The same head with other hidden layers."""
        return replace(self, hidden=hidden)  # type: ignore[type-var]

    def check(self, sizes: Sizes) -> None:
        """Refuse data whose actions the policy does not describe."""
        if self.discrete != sizes.discrete:
            own, found = ("discrete", "continuous") if self.discrete else ("continuous", "discrete")
            use = "CategoricalMLP" if sizes.discrete else "MixtureMLP"
            name = type(self).__name__
            raise SettingsError(f"{name} is a policy over {own} actions but the data's are {found}: use {use}")

    @abstractmethod
    def build(self, sizes: Sizes, generators: Generators) -> PolicyNet:
        """The network, ready to be called as `module(observations, legal)`."""


State = tuple[Tensor, ...]
"""A policy's hidden state: tensors whose first axis is the row; none where a policy is not recurrent."""
Seen = Float[Tensor, "*group input observation"]
Legal = Bool[Tensor, "action observation"] | None
"""Which actions may be taken after each observation; None where all may."""


class PolicyNet(nn.Module, ABC):
    """A policy network of every member; `body` ends in the numbers that a distribution is made of.

    Called as a module it is the policy to learn: a recurrent one takes (time step, row) observations, and begins each
    row without a hidden state. It acts by `step`, `average`, and then `most_likely` or `sample`.
    """

    body: MLP
    parameter_names: tuple[str, ...]
    """The names of what `parameters_of` returns."""

    def skill_parameters(self) -> list[nn.Parameter]:
        """The parameters that measure people, as w does, and are learned at the skill learning rate."""
        return []

    def measure(self, scale: ActionScale) -> None:
        """Model actions in units of their scale in the data; nothing to do where actions are discrete."""

    def measure_each(self, nets: Sequence[Any]) -> None:
        """Take the buffers of these networks, whose members stand here one network after the other."""

    @torch.no_grad()
    def exchange_actions(self, members: Bool[Tensor, " member"]) -> None:
        """Exchange the two actions of a policy that chooses between two, in these members."""
        for parameter in (self.body.last.weight, self.body.last.bias):
            parameter[members] = parameter[members].flip(1)

    @property
    def state_names(self) -> tuple[str, ...]:
        """The names of the tensors of a hidden state."""
        return tuple(f"state_{number}" for number, _ in enumerate(self.initial_state(1)))

    def initial_state(self, rows: int) -> State:
        """The hidden state at the start of as many episodes; empty where the policy is not recurrent."""
        return ()

    def forward(self, observations: Seen, legal: Legal = None) -> Any:
        """The distribution of the action after each observation."""
        return self.read(self.body(observations), legal)

    @abstractmethod
    def read(self, outputs: Float[Tensor, "member output observation"], legal: Legal = None) -> Any:
        """The distribution that the outputs of `body` stand for."""

    def step(self, observations: Seen, state: State, legal: Legal = None) -> tuple[Any, State]:
        """The distribution of each row's next action, of batch shape (member, row), and the next hidden state."""
        return self(observations, legal), state

    @abstractmethod
    def average(self, distribution: Any) -> Any:
        """The mean over members of their distributions, of batch shape (row,)."""

    @abstractmethod
    def parameters_of(self, distribution: Any) -> tuple[Tensor, ...]:
        """The numbers that define the mean over members of their distributions, each with the row as its first axis."""

    @abstractmethod
    def most_likely(self, distribution: Any, generator: torch.Generator) -> Tensor:
        """The action of each row where none is sampled; a head may still choose by chance among its components."""

    @abstractmethod
    def sample(self, distribution: Any, generator: torch.Generator) -> Tensor:
        """One action for each row, drawn from its distribution."""


def hidden_layers(hidden: object) -> tuple[int, ...]:
    """The sizes of hidden layers; those that make no network are refused."""
    rule = "pass the size of every hidden layer, a whole number of one or more, as in hidden=(32, 32)"
    return whole_numbers("hidden", hidden, least=1, rule=rule)
