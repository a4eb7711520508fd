"""Policies: networks that map observations to distributions over actions."""

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
    """Settings of a policy network: a frozen dataclass.

    Laws: `build` draws each member's parameters from that member's generator alone; the module maps
    (input, observation) tensors to a normalised distribution of batch shape (member, observation).
    """

    discrete: bool
    length: int = 1
    """Number of consecutive time steps that the network reads at once; one unless it is recurrent."""
    hidden: tuple[int, ...] = ()
    """Sizes of hidden layers."""
    compares_widths: bool = False
    """Whether held-out episodes may choose the sizes of hidden layers, by `resized`."""
    can_stand_beside: bool = True
    """Whether networks of several data sets can be joined and padded, and a CUDA graph can record a step."""
    learns_from_batches: bool = False
    """Whether it learns from mini-batches even if there are few steps, unless observations repeat."""
    is_module: bool = False
    """Whether it is the user's own module, which a run directory does not contain."""

    def for_data(self, data: Demonstrations) -> AbstractPolicyHead:
        """The same head with data-dependent defaults filled in."""
        return self

    def with_module(self, module: Any) -> AbstractPolicyHead:
        """The same head with the user's own module, if it was saved without one."""
        return self

    def rater(self, horizons: int) -> AbstractPolicyHead | None:
        """The head that predicts mean actions over this many horizons, to rate demonstrators; None for `MixtureMLP`."""
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
"""A policy's hidden state: tensors whose first axis is the row; empty unless it is recurrent."""
Seen = Float[Tensor, "*group input observation"]
Legal = Bool[Tensor, "action observation"] | None
"""The legal actions at each observation; None if all are."""


class PolicyNet(nn.Module, ABC):
    """The policy networks of all members; `body` outputs the parameters of a distribution.

    Called as a module for learning, a recurrent policy takes (time step, row) observations and starts each row from a
    zero hidden state. To act, call `step`, `average`, and then `most_likely` or `sample`.

    Laws: `step` from the initial state gives what the module gives for a whole window; `average` is the mean of the
    members' densities; `sample` depends on its generator alone.
    """

    body: MLP
    parameter_names: tuple[str, ...]
    """Names of what `parameters_of` returns."""

    def skill_parameters(self) -> list[nn.Parameter]:
        """Parameters that are learned at the skill learning rate."""
        return []

    def see(self, normaliser: Normaliser, data: Demonstrations, *, standardised: bool) -> None:
        """Store what undoes the normaliser, unless inputs stay standardised; our networks read normalised inputs."""

    def measure(self, scale: ActionScale) -> None:
        """Store the scale of continuous actions, in units of which they are modelled."""

    def measure_each(self, nets: Sequence[Any]) -> None:
        """Store the buffers of these networks, of which this one has all members."""

    @torch.no_grad()
    def exchange_actions(self, members: Bool[Tensor, " member"]) -> None:
        """Exchange the two actions in these members of a policy that chooses between two."""
        for parameter in (self.body.last.weight, self.body.last.bias):
            parameter[members] = parameter[members].flip(1)

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of the tensors of a hidden state."""
        return tuple(f"state_{number}" for number, _ in enumerate(self.initial_state(1)))

    def initial_state(self, rows: int) -> State:
        """The hidden state at the start of this many episodes; empty unless the policy is recurrent."""
        return ()

    def forward(self, observations: Seen, legal: Legal = None) -> Any:
        """The distribution of the action after each observation."""
        return self.read(self.body(observations), legal)

    @abstractmethod
    def read(self, outputs: Float[Tensor, "member output observation"], legal: Legal = None) -> Any:
        """The distribution whose parameters `body` outputs."""

    def step(self, observations: Seen, state: State, legal: Legal = None) -> tuple[Any, State]:
        """The distribution of each row's next action, of batch shape (member, row), and the next hidden state."""
        return self(observations, legal), state

    @abstractmethod
    def average(self, distribution: Any) -> Any:
        """The mean over members of their distributions, of batch shape (row,)."""

    @abstractmethod
    def parameters_of(self, distribution: Any) -> tuple[Tensor, ...]:
        """The parameters of `average`, each with the row as its first axis."""

    @abstractmethod
    def most_likely(self, distribution: Any, generator: torch.Generator) -> Tensor:
        """The action of each row without sampling; a head may still draw a mixture component."""

    @abstractmethod
    def sample(self, distribution: Any, generator: torch.Generator) -> Tensor:
        """One action for each row, drawn from its distribution."""


def hidden_layers(hidden: object) -> tuple[int, ...]:
    """Sizes of hidden layers as a tuple of positive whole numbers."""
    rule = "pass the size of every hidden layer, a whole number of one or more, as in hidden=(32, 32)"
    return whole_numbers("hidden", hidden, least=1, rule=rule)


@final
@dataclass(frozen=True, kw_only=True)
class CategoricalMLP(AbstractPolicyHead):
    """A multi-layer perceptron over discrete actions."""

    hidden: tuple[int, ...] = (4, 4)
    discrete = True
    compares_widths = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", hidden_layers(self.hidden))

    def build(self, sizes: Sizes, generators: Generators) -> PolicyNet:
        return _CategoricalNet(self, sizes, generators)


@dataclass(frozen=True, kw_only=True)
class AbstractMixtureHead(AbstractPolicyHead):
    """Settings of a network whose output is a mixture of `modes` diagonal Gaussians over continuous actions.

    Actions are modelled in units of their standard deviation in the data, so that their scale does not matter;
    `standard_deviation_floor` is the least standard deviation, in these units. With `shared_standard_deviations` each
    mode has one standard deviation for all states: demonstrators can then differ in their expertise only.

    Binary dimensions, such as a gripper, have `fixed_standard_deviation`, in the same units. A learned one (None) would
    fall to the floor, where closing a gripper one step late costs more than everything else that was learned.
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
    """A multi-layer perceptron with the output and settings of `AbstractMixtureHead`."""

    compares_widths = True

    def build(self, sizes: Sizes, generators: Generators) -> PolicyNet:
        return _MixtureNet(self, sizes, generators)


@final
@dataclass(frozen=True, kw_only=True)
class MixtureLSTM(AbstractMixtureHead):
    """LSTM layers with the output and settings of `AbstractMixtureHead`.

    It learns from windows of `length` steps, each started from a zero hidden state, and resets its hidden state after
    as many steps when it acts. Means are bounded by the range of the actions in the data, by a hyperbolic tangent. With
    `low_noise` it acts by the mean of a component drawn by its weight, as robomimic evaluates; without, by the mean of
    the component of greatest weight.
    """

    hidden: tuple[int, ...] = (400, 400)
    length: int = 10
    low_noise: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.hidden:
            raise SettingsError("hidden is (): a recurrent policy needs one or more layers", code="hidden-invalid")
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
    """A network whose outputs are mixture weights, means and standard deviations, in the units of the actions."""

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
        """Standard deviations shared by all states, which are on the scale of expertise."""
        return [self.spreads] if self.shared else []

    def measure(self, scale: ActionScale) -> None:
        self.action_shift, self.action_scale = scale.mean, scale.spread

    def measure_each(self, nets: Sequence[GaussianNet]) -> None:
        for name, _ in self.named_buffers():
            rows = [net.get_buffer(name).expand(len(net.body.last.weight), 1, 1, -1) for net in nets]
            setattr(self, name, torch.cat(rows))

    def means(self, raw: Tensor) -> Tensor:
        """Means of components, in the units of the actions."""
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
        """One mixture of the components of all members."""
        logits, means, standard_deviations = (list(part) for part in mixture_parts(distribution))
        weights = torch.cat([each.log_softmax(-1) for each in logits], -1)
        return mixture(weights, torch.cat(means, -2), torch.cat(standard_deviations, -2))

    def parameters_of(self, distribution: MixtureSameFamily) -> tuple[Tensor, ...]:
        return mixture_parts(self.average(distribution))

    def most_likely(self, distribution: MixtureSameFamily, generator: torch.Generator) -> Tensor:
        """The mean of the component of greatest weight, or with `low_noise` of one drawn by its weight."""
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
        """Zeros: hidden values and cells of each layer, (row, member, unit), and the age of the episode."""
        weight = self.body.last.weight
        values = [weight.new_zeros(rows, len(weight), units) for units in self.units for _ in ("hidden", "cell")]
        return (*values, torch.zeros(rows, dtype=torch.long, device=weight.device))

    def step(self, observations: Seen, state: State, legal: Legal = None) -> tuple[MixtureSameFamily, State]:
        """One step of every row; the hidden state is reset after every `length` steps, as in learning."""
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
        """Means within the range of the actions in the data."""
        return self.action_middle + self.action_reach * raw.tanh()
