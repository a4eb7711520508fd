"""A policy outside this package: as a module for `torch.export`, and as an ONNX file."""

from __future__ import annotations

import copy
import io
import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from ileed._torch import stream
from ileed.errors import IleedError, require
from ileed.model.normaliser import Normaliser
from ileed.model.policies import PolicyNet
from ileed.runs import write_file

TOLERANCE = 1e-4
"""How far an ONNX file's outputs may lie from the policy's own, absolutely and relatively."""


@final
class PolicyModule(nn.Module):
    """A policy with preprocessing and weights of its own, from (batch, *shape) observations to a distribution's values.

    For discrete actions these are log-probabilities (batch, action), in nats; every action counts as legal. For
    continuous ones they are the log-weights (batch, component), means (batch, component, dimension) and standard
    deviations of a mixture of Gaussians, in the actions' own units.

    A recurrent policy takes a state as well, at first `initial_state(batch)`, and returns the next as its last output.
    It is a list of tensors whose first axis is the batch; the last is the age, how many steps the episode has lasted,
    and a row whose age is set to 0 begins a new one. The hidden state is reset after every `length` steps, as in
    learning. `output_names` and `state_names` are the names of an ONNX file.
    """

    def __init__(self, network: PolicyNet, normaliser: Normaliser) -> None:
        super().__init__()
        self.network, self.inputs = copy.deepcopy(network), copy.deepcopy(normaliser)
        for parameter in self.network.parameters():
            parameter.requires_grad_(parameter.is_floating_point())
        self.output_names, self.state_names = network.parameter_names, network.state_names
        self.length = getattr(network, "length", 1)

    def forward(self, observations: Tensor, state: list[Tensor] | None = None) -> Any:
        flat = observations.reshape(observations.shape[0], math.prod(self.inputs.shape))
        distribution, after = self.network.step(self.inputs(flat), () if state is None else tuple(state))
        numbers = self.network.parameters_of(distribution)
        if state is not None:
            return *numbers, list(after)
        return numbers if len(numbers) > 1 else numbers[0]

    def action(self, log_weights: Tensor, means: Tensor | None = None, *rest: Any) -> Tensor:
        """The most likely action of each row, or the mean of its component of greatest weight, from the outputs."""
        chosen = log_weights.argmax(-1)
        if means is None:
            return chosen
        return means.gather(1, chosen[:, None, None].expand(-1, 1, means.shape[-1]))[:, 0]

    def initial_state(self, batch: int) -> list[Tensor]:
        """The state at the start of as many episodes; empty where the policy is not recurrent."""
        return [part.clone() for part in self.network.initial_state(batch)]  # two that are one would be traced as one


def write_onnx(policy: PolicyModule, path: Path) -> None:
    """Write a policy as an ONNX file, whole or not at all, once onnxruntime agrees with it."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        require(package, extra="onnx")
    content = _onnx_bytes(policy)
    _check(content, policy)
    write_file(path, content)


@final
class _WithAction(nn.Module):
    """A policy's module whose first output is the most likely action."""

    def __init__(self, policy: PolicyModule) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, observations: Tensor, state: list[Tensor] | None = None) -> tuple[Any, ...]:
        outputs = self.policy(observations, state)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return self.policy.action(*outputs[: len(self.policy.output_names)]), *outputs


def _onnx_bytes(policy: PolicyModule) -> bytes:
    batch, inputs = torch.export.Dim("batch"), policy.inputs
    rows = 3  # of the example that is traced; any number but 0 and 1, which torch takes for constants
    example = torch.zeros(rows, *inputs.shape, dtype=inputs.input_precision(TOLERANCE))
    with _quiet():
        program = torch.onnx.export(
            _WithAction(policy).eval(),
            (example, policy.initial_state(rows) or None),
            input_names=["observations", *policy.state_names],
            output_names=["action", *policy.output_names, *(f"next_{name}" for name in policy.state_names)],
            dynamic_shapes=({0: batch}, [{0: batch} for _ in policy.state_names] or None),
            dynamo=True,
            verbose=False,
        )
    assert program is not None  # with dynamo=True
    return program.model_proto.SerializeToString()


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide what the exporter prints and logs for its own developers."""
    before, nowhere = logging.root.manager.disable, io.StringIO()
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"), redirect_stdout(nowhere), redirect_stderr(nowhere):
            yield
    finally:
        logging.disable(before)


@torch.no_grad()
def _check(content: bytes, policy: PolicyModule) -> None:
    """Compare the file with the policy: a few rows, for as many steps as a recurrent one needs to be reset once.

    Observations are spread about as widely as those of the data.
    """
    onnxruntime = require("onnxruntime", extra="onnx")
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    generator, inputs, rows = stream(0, "onnx"), policy.inputs, 4
    state = policy.initial_state(rows)
    for _ in range(policy.length + 2 if state else 1):
        observations = torch.zeros(rows, *inputs.shape, dtype=inputs.input_precision(TOLERANCE))
        drawn = 2 * torch.randn(rows, len(inputs.kept), generator=generator)
        observations.view(rows, -1)[:, inputs.kept] = (inputs.shift + inputs.scale * drawn).to(observations.dtype)
        fed = {name: part.numpy() for name, part in zip(policy.state_names, state, strict=True)}
        action, *found = session.run(None, {"observations": observations.numpy(), **fed})
        expected = torch.utils._pytree.tree_leaves(policy(observations, state or None))
        own = policy.action(*(torch.from_numpy(each) for each in found[: len(policy.output_names)]))
        pairs = [(one, other.numpy()) for one, other in zip(found, expected, strict=True)]
        worst = max(float(np.max(np.abs(one - other) / (1 + np.abs(other)))) for one, other in pairs)
        if not worst <= TOLERANCE or not np.array_equal(action, own.numpy()):
            raise IleedError(
                f"onnxruntime's answers differ from the policy's by up to {worst:.1e}, where {TOLERANCE:.0e} is "
                "allowed: nothing was written; try another version of onnxruntime, or use to_module()"
            )
        state = expected[len(policy.output_names) :]
