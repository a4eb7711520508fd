"""Policies: networks that give a distribution over actions after each observation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf, log
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, MixtureSameFamily

from ileed._torch import Bool, Float
from ileed.data import Demonstrations
from ileed.errors import SettingsError, number, true_or_false, whole_number, whole_numbers
from ileed.model.batch import Sizes
from ileed.model.distributions import Choice, among, component_action, draw_component, mixture, mixture_parts
from ileed.model.nets import LSTM, MLP, Generators, uniform
from ileed.model.normaliser import ActionScale, Normaliser


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
    can_stand_beside: bool = True
    """Whether networks of several data sets can be one, padded with zeros, and a CUDA graph can record a step."""
    learns_from_batches: bool = False
    """Whether it learns from mini-batches of steps also where they are few, unless observations repeat."""
    is_module: bool = False
    """Whether it is a module of the user's own, which a run directory does not contain."""

    def for_data(self, data: Demonstrations) -> AbstractPolicyHead:
        """The same head with what was left to the data filled in."""
        return self

    def with_module(self, module: Any) -> AbstractPolicyHead:
        """The same head with a module of the user's own, where it was saved without one."""
        return self

    def rater(self, horizons: int) -> AbstractPolicyHead | None:
        """The head that predicts mean actions over so many horizons, to rate demonstrators; None for `MixtureMLP`."""
        return None

    def resized(self, hidden: tuple[int, ...]) -> AbstractPolicyHead:
        """The same head with other hidden layers."""
        return replace(self, hidden=hidden)  # type: ignore[type-var]

    def check(self, sizes: Sizes) -> None:
        """Refuse data whose actions the policy does not describe."""
        sizes.check_kind(self, "policy")

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

    def see(self, normaliser: Normaliser, data: Demonstrations, *, standardised: bool) -> None:
        """Take from the data what undoes the normaliser, unless inputs stay standardised; ours read normalised ones."""

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


@final
@dataclass(frozen=True, kw_only=True)
class CategoricalMLP(AbstractPolicyHead):
    """A multi-layer perceptron with a probability for each of a list of actions."""

    hidden: tuple[int, ...] = (4, 4)
    discrete = True
    compares_widths = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", hidden_layers(self.hidden))

    def build(self, sizes: Sizes, generators: Generators) -> PolicyNet:
        return _CategoricalNet(self, sizes, generators)


@dataclass(frozen=True, kw_only=True)
class AbstractMixtureHead(AbstractPolicyHead):
    """Settings of a network that ends in a mixture of `modes` diagonal Gaussians over continuous actions.

    Actions are modelled in units of their spread in the data, so their scale does not matter;
    `standard_deviation_floor` is the least standard deviation, in those units. With `shared_standard_deviations` each
    mode has one standard deviation for all states: what differs between people can then only be their expertise.

    A binary dimension, which is at one end of its range or the other as a gripper is, has `fixed_standard_deviation`,
    in the same units. Learned as the others are (None), it would fall to the floor, and then a single late closing of
    a gripper costs more than all else that was learned.
    """

    hidden: tuple[int, ...] = (64, 64)
    modes: int = 5
    standard_deviation_floor: float = 1e-3
    shared_standard_deviations: bool = False
    fixed_standard_deviation: float | None = 0.25
    discrete = False

    def __post_init__(self) -> None:
        shared, floor, fixed = "shared_standard_deviations", "standard_deviation_floor", "fixed_standard_deviation"
        checked: dict[str, object] = {
            "hidden": hidden_layers(self.hidden),
            "modes": whole_number("modes", self.modes, least=1, rule="a mixture needs one or more, a whole number"),
            shared: true_or_false(shared, self.shared_standard_deviations),
        }
        for name, otherwise in ((floor, ""), (fixed, ", or None to learn it")):
            rule, value = f"it must be a number above zero{otherwise}", getattr(self, name)
            if value is not None or name == floor:
                checked[name] = number(name, value, above=0, below=inf, rule=rule)
        for name, found in checked.items():
            object.__setattr__(self, name, found)


@final
@dataclass(frozen=True, kw_only=True)
class MixtureMLP(AbstractMixtureHead):
    """A multi-layer perceptron with a mixture of `modes` diagonal Gaussians over continuous actions.

    `AbstractMixtureHead` says what the settings mean.
    """

    compares_widths = True

    def build(self, sizes: Sizes, generators: Generators) -> PolicyNet:
        return _MixtureNet(self, sizes, generators)


@final
@dataclass(frozen=True, kw_only=True)
class MixtureLSTM(AbstractMixtureHead):
    """Layers of long short-term memory that end in a mixture of `modes` diagonal Gaussians over continuous actions.

    It learns from windows of `length` steps, each begun without a hidden state, and when it acts its hidden state is
    reset as often. Means are bounded by the range of the actions in the data, through the hyperbolic tangent; standard
    deviations are as in `MixtureMLP`. With `low_noise` it acts by the mean of a component drawn by its weight, as
    robomimic evaluates; without, by the mean of the component of greatest weight.
    """

    hidden: tuple[int, ...] = (400, 400)
    length: int = 10
    low_noise: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.hidden:
            raise SettingsError("hidden layers are (): a recurrent policy needs one or more")
        length = whole_number("length", self.length, least=1, rule="a window needs one step or more, a whole number")
        object.__setattr__(self, "length", length)
        object.__setattr__(self, "low_noise", true_or_false("low_noise", self.low_noise))

    def build(self, sizes: Sizes, generators: Generators) -> RecurrentNet:
        return RecurrentNet(self, sizes, generators)


class CategoricalNet(PolicyNet, ABC):
    """A network whose outputs are scores of discrete actions."""

    parameter_names = ("log_probabilities",)

    def read(self, outputs: Float[Tensor, "member action observation"], legal: Legal = None) -> Choice:
        scores = outputs if legal is None else outputs.masked_fill(~legal, -torch.inf)
        return Choice(scores.log_softmax(-2))

    def average(self, distribution: Categorical) -> Categorical:
        (mean,) = self.parameters_of(distribution)
        return Categorical(logits=mean, validate_args=None if mean.numel() else False)  # torch cannot check no rows

    def parameters_of(self, distribution: Categorical) -> tuple[Tensor, ...]:
        logits = distribution.logits
        return (logits[0] if len(logits) == 1 else logits.logsumexp(0) - log(len(logits)),)

    def most_likely(self, distribution: Categorical, generator: torch.Generator) -> Tensor:
        return distribution.logits.argmax(-1)

    def sample(self, distribution: Categorical, generator: torch.Generator) -> Tensor:
        return torch.multinomial(distribution.probs, 1, generator=generator)[:, 0]


@final
class _CategoricalNet(CategoricalNet):
    def __init__(self, settings: CategoricalMLP, sizes: Sizes, generators: Generators) -> None:
        super().__init__()
        self.body = MLP((sizes.inputs, *settings.hidden, sizes.actions), generators=generators)


class GaussianNet(PolicyNet, ABC):
    """A network whose outputs are the weights, means and standard deviations of Gaussians, in the actions' units."""

    parameter_names = ("log_weights", "means", "standard_deviations")
    action_shift: Tensor
    action_scale: Tensor
    low_noise = False

    def __init__(self, settings: AbstractMixtureHead, sizes: Sizes, generators: Generators) -> None:
        super().__init__()
        self.modes, self.floor = settings.modes, settings.standard_deviation_floor
        self.shared = settings.shared_standard_deviations
        self.outputs = settings.modes * (1 + (1 if self.shared else 2) * sizes.actions)
        self.binary_dimensions = sizes.binary_dimensions
        self.fixed_standard_deviation = settings.fixed_standard_deviation
        if self.shared:
            self.spreads = nn.Parameter(uniform((1, settings.modes, sizes.actions), 0.1, generators))
        self.register_buffer("action_shift", torch.zeros(sizes.actions))
        self.register_buffer("action_scale", torch.ones(sizes.actions))

    def skill_parameters(self) -> list[nn.Parameter]:
        """The standard deviations that all states share: what differs between people is measured by them."""
        return [self.spreads] if self.shared else []

    def measure(self, scale: ActionScale) -> None:
        self.action_shift, self.action_scale = scale.mean, scale.spread

    def measure_each(self, nets: Sequence[GaussianNet]) -> None:
        for name, _ in self.named_buffers():
            rows = [net.get_buffer(name).expand(len(net.body.last.weight), 1, 1, -1) for net in nets]
            setattr(self, name, torch.cat(rows))

    def means(self, raw: Tensor) -> Tensor:
        """The means of components, in the actions' units."""
        return self.action_shift + self.action_scale * raw

    def read(self, outputs: Float[Tensor, "member output observation"], legal: Legal = None) -> MixtureSameFamily:
        outputs = outputs.mT
        weights, rest = outputs[..., : self.modes], outputs[..., self.modes :].unflatten(-1, (self.modes, -1))
        raw, spreads = (rest, self.spreads) if self.shared else rest.chunk(2, -1)
        means = self.means(raw)
        learned = nn.functional.softplus(spreads) + self.floor
        if self.binary_dimensions and self.fixed_standard_deviation is not None:
            learned = torch.where(among(self.binary_dimensions, learned), self.fixed_standard_deviation, learned)
        return mixture(weights, means, (learned * self.action_scale).expand_as(means))

    def average(self, distribution: MixtureSameFamily) -> MixtureSameFamily:
        """One mixture of all members' components."""
        logits, means, standard_deviations = (list(part) for part in mixture_parts(distribution))
        weights = torch.cat([each.log_softmax(-1) for each in logits], -1)
        return mixture(weights, torch.cat(means, -2), torch.cat(standard_deviations, -2))

    def parameters_of(self, distribution: MixtureSameFamily) -> tuple[Tensor, ...]:
        return mixture_parts(self.average(distribution))

    def most_likely(self, distribution: MixtureSameFamily, generator: torch.Generator) -> Tensor:
        """The mean of the component of greatest weight; with `low_noise`, of one drawn by its weight."""
        if self.low_noise:
            return component_action(distribution, draw_component(distribution, generator))
        return component_action(distribution, distribution.mixture_distribution.logits.argmax(-1))

    def sample(self, distribution: MixtureSameFamily, generator: torch.Generator) -> Tensor:
        chosen = draw_component(distribution, generator)
        shape = distribution.batch_shape + distribution.event_shape
        return component_action(distribution, chosen, torch.randn(shape, generator=generator))


@final
class _MixtureNet(GaussianNet):
    def __init__(self, settings: MixtureMLP, sizes: Sizes, generators: Generators) -> None:
        super().__init__(settings, sizes, generators)
        self.body = MLP((sizes.inputs, *settings.hidden, self.outputs), generators=generators)


@final
class RecurrentNet(GaussianNet):
    """The network of `MixtureLSTM`."""

    action_middle: Tensor
    action_reach: Tensor

    def __init__(self, settings: MixtureLSTM, sizes: Sizes, generators: Generators) -> None:
        super().__init__(settings, sizes, generators)
        self.register_buffer("action_middle", torch.zeros(sizes.actions))
        self.register_buffer("action_reach", torch.ones(sizes.actions))
        self.length, self.low_noise, self.units = settings.length, settings.low_noise, settings.hidden
        widths = (sizes.inputs, *settings.hidden)
        self.layers = nn.ModuleList(LSTM(before, after, generators=generators) for before, after in pairwise(widths))
        self.body = MLP((widths[-1], self.outputs), generators=generators)

    def forward(self, observations: Seen, legal: Legal = None) -> MixtureSameFamily:
        values = observations
        for layer in self.layers:
            values = layer(values, self.length)
        return self.read(self.body(values))

    @property
    def state_names(self) -> tuple[str, ...]:
        layers = range(1, len(self.layers) + 1)
        return (*(f"{part}_{layer}" for layer in layers for part in ("hidden", "cell")), "age")

    def initial_state(self, rows: int) -> State:
        """Zeros: hidden values and cells of every layer in turn, (row, member, unit), and the age of the episode."""
        weight = self.body.last.weight
        values = [weight.new_zeros(rows, len(weight), units) for units in self.units for _ in ("hidden", "cell")]
        return (*values, torch.zeros(rows, dtype=torch.long, device=weight.device))

    def step(self, observations: Seen, state: State, legal: Legal = None) -> tuple[MixtureSameFamily, State]:
        """One step of every row; the hidden state is zero again after every `length` steps, as in learning."""
        *before, age = state
        hidden_values = [each.permute(1, 2, 0) * (age % self.length > 0) for each in before]
        values, after = observations, list[Tensor]()
        layer: Any
        for layer, hidden, cell in zip(self.layers, hidden_values[::2], hidden_values[1::2], strict=True):
            values, next_cell = layer.step(values, (hidden, cell))
            after += [values, next_cell]
        return self.read(self.body(values)), (*(each.permute(2, 0, 1) for each in after), age + 1)

    def measure(self, scale: ActionScale) -> None:
        super().measure(scale)
        self.action_middle, self.action_reach = (scale.low + scale.high) / 2, (scale.high - scale.low) / 2

    def means(self, raw: Tensor) -> Tensor:
        """Within the range of the actions in the data."""
        return self.action_middle + self.action_reach * raw.tanh()
