"""The policy as a plain PyTorch module and as an ONNX file, which run where this package is not installed."""

from __future__ import annotations

import contextlib
import io
import logging
import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast, final

import numpy as np
import torch
from torch import Tensor, nn

from ileed._torch import stream
from ileed.errors import IleedError, require
from ileed.model.normaliser import Normaliser
from ileed.model.policies import GaussianNet, PolicyNet, RecurrentNet
from ileed.nets import LSTM, MLP, Linear
from ileed.runs import write_file

__all__ = ["DiscretePolicy", "MixturePolicy", "RecurrentPolicy", "policy_module", "write_onnx"]

TOLERANCE = 1e-4
"""How far an ONNX file's outputs may lie from the policy's own, absolutely and relatively."""


@final
class DiscretePolicy(nn.Module):
    """Log-probabilities (batch, action) of discrete actions, in nats, from (batch, *shape) observations.

    `argmax(-1)` is the most likely action. Every action counts as legal: mask the log-probabilities where some are not.
    """

    def __init__(self, net: PolicyNet, normaliser: Normaliser) -> None:
        super().__init__()
        self.inputs, self.network = _Inputs(normaliser), _Network(net.body)

    def forward(self, observations: Tensor) -> Tensor:
        log_probabilities = self.network(self.inputs(observations)).log_softmax(-1)
        return log_probabilities.logsumexp(0) - math.log(log_probabilities.shape[0])


@final
class MixturePolicy(nn.Module):
    """A mixture of diagonal Gaussians over continuous actions, from (batch, *shape) observations.

    Returns log-weights (batch, component), means (batch, component, dimension) and standard deviations of the same
    shape, all in the actions' own units. The mean of the component of greatest weight is what `Policy.act` answers.
    """

    def __init__(self, net: GaussianNet, normaliser: Normaliser) -> None:
        super().__init__()
        self.inputs, self.network, self.head = _Inputs(normaliser), _Network(net.body), _Gaussians(net)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.head(self.network(self.inputs(observations)))


@final
class RecurrentPolicy(nn.Module):
    """One step of a recurrent policy: as `MixturePolicy`, from observations and a state, which it returns renewed.

    The state is a list of tensors whose first axis is the batch: hidden values and cells (batch, member, unit) of every
    layer in turn, and last the age (batch,), how many steps the episode has lasted. `initial_state(batch)` begins; a
    row whose age is set to 0 begins a new episode. The policy forgets after every `length` steps, as it learned to.
    """

    def __init__(self, net: RecurrentNet, normaliser: Normaliser) -> None:
        super().__init__()
        self.inputs, self.network, self.head = _Inputs(normaliser), _Network(net.body), _Gaussians(net)
        self.layers = nn.ModuleList(_Recurrent(cast(LSTM, layer)) for layer in net.layers)
        self.length = net.length
        self.units = tuple(net.units)
        self.members = len(net.body.last.weight)

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
        """What is remembered before anything was seen: zeros."""
        memory = [torch.zeros(batch, self.members, units) for units in self.units for _ in range(2)]
        return [*memory, torch.zeros(batch, dtype=torch.long)]


@final
class _Inputs(nn.Module):
    """The inputs that varied in the data, normalised, (batch, input); observations may be flattened already."""

    def __init__(self, normaliser: Normaliser) -> None:
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

    def __init__(self, net: GaussianNet) -> None:
        super().__init__()
        self.spreads: Tensor | None
        self.fixed: Tensor
        self.shift: Tensor
        self.reach: Tensor
        self.scale: Tensor
        self.modes = net.modes
        self.floor = net.floor
        self.bounded = isinstance(net, RecurrentNet)
        self.fixed_deviation = 1.0 if net.fixed_standard_deviation is None else net.fixed_standard_deviation
        fixed = torch.zeros(net.action_scale.shape[-1], dtype=torch.bool)
        if net.fixed_standard_deviation is not None:
            fixed[list(net.binary_dimensions)] = True
        self.register_parameter("spreads", _copied(net.spreads) if net.shared else None)
        shift, reach = (net.action_shift, net.action_scale)
        if isinstance(net, RecurrentNet):
            shift, reach = net.action_middle, net.action_reach
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


PolicyModule = DiscretePolicy | MixturePolicy | RecurrentPolicy


def policy_module(net: PolicyNet, normaliser: Normaliser) -> PolicyModule:
    """A policy's network and preprocessing as one module of torch alone, with weights of its own."""
    if isinstance(net, RecurrentNet):
        return RecurrentPolicy(net, normaliser).eval()
    if isinstance(net, GaussianNet):
        return MixturePolicy(net, normaliser).eval()
    return DiscretePolicy(net, normaliser).eval()


@final
class _WithAction(nn.Module):
    """A policy's module that also says which action it takes: the most likely, or the heaviest component's mean."""

    def __init__(self, policy: PolicyModule) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, observations: Tensor, state: list[Tensor] | None = None) -> tuple[Any, ...]:
        if isinstance(self.policy, DiscretePolicy):
            log_probabilities = self.policy(observations)
            return log_probabilities.argmax(-1), log_probabilities
        outputs = self.policy(observations) if state is None else self.policy(observations, state)
        log_weights, means = outputs[0], outputs[1]
        heaviest = log_weights.argmax(-1)[:, None, None].expand(-1, 1, means.shape[-1])
        return means.gather(1, heaviest)[:, 0], *outputs


Ours = Callable[[Any, Any, Any], tuple[Any, Any]]
"""A policy's own answer to (observations, state, starts): a distribution, and what to remember."""


def write_onnx(policy: PolicyModule, path: Path, *, ours: Ours) -> None:
    """Write a policy as an ONNX file, whole or not at all, once onnxruntime has found it equal to `ours`."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        require(package, extra="onnx")
    content = _onnx_bytes(policy)
    _check(content, policy, ours)
    write_file(path, content)


def _state_names(policy: PolicyModule) -> list[str]:
    if not isinstance(policy, RecurrentPolicy):
        return []
    layers = range(1, len(policy.layers) + 1)
    return [f"{part}_{layer}" for layer in layers for part in ("hidden", "cell")] + ["age"]


def _output_names(policy: PolicyModule) -> list[str]:
    if isinstance(policy, DiscretePolicy):
        return ["action", "log_probabilities"]
    after = [f"next_{name}" for name in _state_names(policy)]
    return ["action", "log_weights", "means", "standard_deviations", *after]


def _onnx_bytes(policy: PolicyModule) -> bytes:
    batch = torch.export.Dim("batch")
    rows = 3  # of the example that is traced; any number but 0 and 1, which torch takes for constants
    inputs: tuple[Any, ...] = (torch.zeros(rows, *policy.inputs.shape),)
    shapes: dict[str, Any] = {"observations": {0: batch}}
    if isinstance(policy, RecurrentPolicy):
        inputs = (*inputs, policy.initial_state(rows))
        shapes["state"] = [{0: batch} for _ in inputs[1]]
    with _quiet():
        program = torch.onnx.export(
            _WithAction(policy).eval(),
            inputs,
            input_names=["observations", *_state_names(policy)],
            output_names=_output_names(policy),
            dynamic_shapes=shapes,
            dynamo=True,
            verbose=False,
        )
    assert program is not None  # with dynamo=True
    return program.model_proto.SerializeToString()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What the exporter says to its own developers on the way is not for those who use a policy."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with (
            warnings.catch_warnings(action="ignore"),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            yield
    finally:
        logging.disable(before)


def _check(content: bytes, policy: PolicyModule, ours: Ours) -> None:
    """Compare the file with the policy: a few rows, for as many steps as a recurrent one needs to forget once."""
    onnxruntime = require("onnxruntime", extra="onnx")
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    generator = stream(0, "onnx")
    rows, names = 4, _state_names(policy)
    state = policy.initial_state(rows) if isinstance(policy, RecurrentPolicy) else []
    remembered = [values.numpy() for values in state]
    expected_state = None
    for step in range(policy.length + 2 if isinstance(policy, RecurrentPolicy) else 1):
        starts = np.array([step == 0, step in (0, 1), step == 0, step == 0])  # one row begins anew after a step
        if remembered:
            remembered[-1] = np.where(starts, 0, remembered[-1])
        observations = _example(policy.inputs, rows, generator).numpy()
        found = session.run(None, {"observations": observations, **dict(zip(names, remembered, strict=True))})
        expected, expected_state = ours(observations, expected_state, starts)
        by_name = dict(zip(_output_names(policy), found, strict=True))
        remembered = found[len(found) - len(names) :] if names else []
        _compare(by_name, expected)


def _example(inputs: _Inputs, rows: int, generator: torch.Generator) -> Tensor:
    """Observations spread about as widely as those of the data."""
    drawn = 2 * torch.randn(rows, len(inputs.kept), generator=generator)
    flat = torch.zeros(rows, inputs.size)
    flat[:, inputs.kept] = inputs.shift + inputs.scale * drawn
    return flat.reshape(rows, *inputs.shape)


def _compare(found: dict[str, Any], expected: Any) -> None:
    if "log_probabilities" in found:
        pairs = [(found["log_probabilities"], expected.logits.numpy())]
        action = found["log_probabilities"].argmax(-1)
    else:
        normal = expected.component_distribution.base_dist
        pairs = [
            (found["log_weights"], expected.mixture_distribution.logits.numpy()),
            (found["means"], normal.mean.numpy()),
            (found["standard_deviations"], normal.stddev.numpy()),
        ]
        action = found["means"][np.arange(len(found["means"])), found["log_weights"].argmax(-1)]
    worst = max(float(np.max(np.abs(one - other) / (1 + np.abs(other)))) for one, other in pairs)
    if not worst <= TOLERANCE or not np.array_equal(found["action"], action):
        raise IleedError(
            f"onnxruntime's answers differ from the policy's by up to {worst:.1e}, where {TOLERANCE:.0e} is allowed: "
            "nothing was written; try another version of onnxruntime, or use to_module()"
        )
