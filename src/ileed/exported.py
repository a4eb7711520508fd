"""Policies as modules of torch alone: each with preprocessing and weights of its own, without this package.

They are made from a policy head's network and a normaliser (`ileed.model`), whose tensors they copy.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, cast, final

import torch
from torch import Tensor, nn

from ileed.nets import LSTM, MLP, Linear


class PolicyModule(nn.Module, ABC):
    """A policy as a module of torch alone: from (batch, *shape) observations to the numbers of a distribution.

    A recurrent one takes a state as well, at first `initial_state(batch)`, and returns the next as its last output. It
    is reset after `length` steps. `output_names` and `state_names` are the names of an ONNX file.
    """

    def __init__(self, normaliser: Any, *output_names: str) -> None:
        super().__init__()
        self.inputs = Inputs(normaliser)
        self.output_names = output_names
        self.state_names: tuple[str, ...] = ()
        self.length = 1

    @abstractmethod
    def action(self, *outputs: Any) -> Tensor:
        """The most likely action of each row, from the module's outputs."""

    def initial_state(self, batch: int) -> list[Tensor]:
        """The state at the start of as many episodes: tensors whose first axis is the batch."""
        return []


@final
class DiscretePolicy(PolicyModule):
    """Log-probabilities (batch, action) of discrete actions, in nats, from (batch, *shape) observations.

    `argmax(-1)` is the most likely action. Every action counts as legal: mask the log-probabilities where some are not.
    """

    def __init__(self, net: Any, normaliser: Any) -> None:
        super().__init__(normaliser, "log_probabilities")
        self.network = _Network(net.body)

    def forward(self, observations: Tensor) -> Tensor:
        log_probabilities = self.network(self.inputs(observations)).log_softmax(-1)
        return log_probabilities.logsumexp(0) - math.log(log_probabilities.shape[0])

    def action(self, *outputs: Any) -> Tensor:
        return outputs[0].argmax(-1)


class _Mixture(PolicyModule):
    def __init__(self, net: Any, normaliser: Any) -> None:
        super().__init__(normaliser, "log_weights", "means", "standard_deviations")
        self.network, self.head = _Network(net.body), _Gaussians(net)

    def action(self, *outputs: Any) -> Tensor:
        """The mean of the component of greatest weight."""
        log_weights, means = outputs[:2]
        heaviest = log_weights.argmax(-1)[:, None, None].expand(-1, 1, means.shape[-1])
        return means.gather(1, heaviest)[:, 0]


@final
class MixturePolicy(_Mixture):
    """A mixture of diagonal Gaussians over continuous actions, from (batch, *shape) observations.

    Returns log-weights (batch, component), means (batch, component, dimension) and standard deviations of the same
    shape, all in the actions' own units. `Policy.act` returns the mean of the component of greatest weight.
    """

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.head(self.network(self.inputs(observations)))


@final
class RecurrentPolicy(_Mixture):
    """One step of a recurrent policy: as `MixturePolicy`, from observations and a state, whose next it returns.

    The state is a list of tensors whose first axis is the batch: hidden values and cells (batch, member, unit) of every
    layer in turn, and last the age (batch,), how many steps the episode has lasted. `initial_state(batch)` begins; a
    row whose age is set to 0 begins a new episode. The hidden state is reset after every `length` steps, as in
    learning.
    """

    def __init__(self, net: Any, normaliser: Any) -> None:
        super().__init__(net, normaliser)
        self.layers = nn.ModuleList(_Recurrent(cast(LSTM, layer)) for layer in net.layers)
        self.length = net.length
        self.units = tuple(net.units)
        self.members = len(net.body.last.weight)
        numbers = range(1, len(self.units) + 1)
        self.state_names = (*(f"{part}_{number}" for number in numbers for part in ("hidden", "cell")), "age")

    def forward(self, observations: Tensor, state: list[Tensor]) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
        age = state[-1]
        goes_on = (age % self.length > 0).float()[:, None, None]
        values = self.inputs(observations)[None]
        after: list[Tensor] = []
        for number, layer in enumerate(self.layers):
            hidden, cell = layer(values, state[2 * number] * goes_on, state[2 * number + 1] * goes_on)
            values = hidden
            after.append(hidden.transpose(0, 1))
            after.append(cell.transpose(0, 1))
        after.append(age + 1)
        log_weights, means, standard_deviations = self.head(self.network(values))
        return log_weights, means, standard_deviations, after

    def initial_state(self, batch: int) -> list[Tensor]:
        zeros = [torch.zeros(batch, self.members, units) for units in self.units for _ in range(2)]
        return [*zeros, torch.zeros(batch, dtype=torch.long)]


@final
class Inputs(nn.Module):
    """The inputs that varied in the data, normalised, (batch, input); observations may be flattened already."""

    def __init__(self, normaliser: Any) -> None:
        super().__init__()
        self.kept: Tensor  # said here and not in the class, where torch.jit cannot read it
        self.shift: Tensor
        self.scale: Tensor
        self.shape = tuple(normaliser.shape)
        self.size = math.prod(normaliser.shape)
        self.register_buffer("kept", normaliser.kept.clone())
        self.register_buffer("shift", normaliser.shift.clone())
        self.register_buffer("scale", normaliser.scale.clone())

    def forward(self, observations: Tensor) -> Tensor:
        flat = observations.reshape(observations.shape[0], self.size)
        return (flat.index_select(1, self.kept).float() - self.shift) / self.scale


@final
class _Affine(nn.Module):
    """One affine map for each member."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = _copied(weight.mT), _copied(bias.mT)

    def forward(self, values: Tensor) -> Tensor:
        return torch.matmul(values, self.weight) + self.bias


@final
class _Network(nn.Module):
    """An ensemble of perceptrons: (member, batch, output) from (batch, input) or (member, batch, input)."""

    def __init__(self, body: MLP) -> None:
        super().__init__()
        layers = [cast(Linear, layer) for layer in body.layers]
        self.first = _Affine(layers[0].weight, layers[0].bias)
        self.rest = nn.ModuleList(_Affine(layer.weight, layer.bias) for layer in layers[1:])

    def forward(self, values: Tensor) -> Tensor:
        values = self.first(values)
        for layer in self.rest:
            values = layer(values.relu())
        return values


@final
class _Recurrent(nn.Module):
    """One step of a layer of long short-term memory; hidden values and cells come as (batch, member, unit)."""

    def __init__(self, layer: LSTM) -> None:
        super().__init__()
        self.units = layer.units
        self.seen = _Affine(layer.seen, layer.bias)
        self.remembered = _copied(layer.remembered.mT)

    def forward(self, values: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        gates = self.seen(values) + torch.matmul(hidden.transpose(0, 1), self.remembered)
        enter, forget, leave, candidate = gates.split(self.units, dim=-1)
        after = forget.sigmoid() * cell.transpose(0, 1) + enter.sigmoid() * candidate.tanh()
        return leave.sigmoid() * after.tanh(), after


@final
class _Gaussians(nn.Module):
    """A network's outputs (member, batch, output) read as one mixture of the components of all members."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.spreads: Tensor | None
        self.fixed: Tensor
        self.shift: Tensor
        self.reach: Tensor
        self.scale: Tensor
        self.modes = net.modes
        self.floor = net.floor
        self.bounded = net.bounded
        self.fixed_deviation = 1.0 if net.fixed_standard_deviation is None else net.fixed_standard_deviation
        fixed = torch.zeros(net.action_scale.shape[-1], dtype=torch.bool)
        if net.fixed_standard_deviation is not None:
            fixed[list(net.binary_dimensions)] = True
        self.register_parameter("spreads", _copied(net.spreads) if net.shared else None)
        shift, reach = net.mean_scale
        for name, values in {"fixed": fixed, "shift": shift, "reach": reach, "scale": net.action_scale}.items():
            self.register_buffer(name, values.clone())

    def forward(self, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        log_weights = outputs[..., : self.modes].log_softmax(-1) - math.log(outputs.shape[0])
        rest = outputs[..., self.modes :].unflatten(-1, [self.modes, -1])
        if self.spreads is not None:
            raw, spreads = rest, self.spreads
        else:
            raw, spreads = rest.chunk(2, dim=-1)
        means = self.shift + self.reach * (raw.tanh() if self.bounded else raw)
        learned = nn.functional.softplus(spreads) + self.floor
        standard_deviations = self.scale * torch.where(self.fixed, self.fixed_deviation, learned)
        return _joined(log_weights), _joined(means), _joined(standard_deviations.expand_as(means))


def _joined(values: Tensor) -> Tensor:
    """(batch, member * component, ...) from (member, batch, component, ...)."""
    return values.transpose(0, 1).flatten(1, 2)


def _copied(values: Tensor) -> nn.Parameter:
    return nn.Parameter(values.detach().clone(memory_format=torch.contiguous_format))
