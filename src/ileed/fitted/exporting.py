"""A policy as an ONNX file, which runs where this package is not installed."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from ileed._torch import stream
from ileed.demonstrations import Array
from ileed.errors import IleedError, require
from ileed.exported import Inputs, PolicyModule
from ileed.runs import write_file

TOLERANCE = 1e-4
"""How far an ONNX file's outputs may lie from the policy's own, absolutely and relatively."""

Expected = Callable[[Array, Any, Array], tuple[tuple[Tensor, ...], Any]]
"""From observations, state and episode starts to the numbers of a policy's own distribution, and the next state."""


def write_onnx(policy: PolicyModule, path: Path, *, expected: Expected) -> None:
    """Write a policy as an ONNX file, whole or not at all, once onnxruntime agrees with what is expected of it."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        require(package, extra="onnx")
    content = _onnx_bytes(policy)
    _check(content, policy, expected)
    write_file(path, content)


@final
class _WithAction(nn.Module):
    """A policy's module whose first output is the most likely action."""

    def __init__(self, policy: PolicyModule) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, observations: Tensor, state: list[Tensor] | None = None) -> tuple[Any, ...]:
        outputs = self.policy(observations) if state is None else self.policy(observations, state)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return self.policy.action(*outputs), *outputs


def _onnx_bytes(policy: PolicyModule) -> bytes:
    batch = torch.export.Dim("batch")
    rows = 3  # of the example that is traced; any number but 0 and 1, which torch takes for constants
    inputs: tuple[Any, ...] = (torch.zeros(rows, *policy.inputs.shape),)
    shapes: dict[str, Any] = {"observations": {0: batch}}
    if policy.state_names:
        inputs = (*inputs, policy.initial_state(rows))
        shapes["state"] = [{0: batch} for _ in policy.state_names]
    with _quiet():
        program = torch.onnx.export(
            _WithAction(policy).eval(),
            inputs,
            input_names=["observations", *policy.state_names],
            output_names=["action", *policy.output_names, *(f"next_{name}" for name in policy.state_names)],
            dynamic_shapes=shapes,
            dynamo=True,
            verbose=False,
        )
    assert program is not None  # with dynamo=True
    return program.model_proto.SerializeToString()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide what the exporter prints and logs for its own developers."""
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


def _check(content: bytes, policy: PolicyModule, expected: Expected) -> None:
    """Compare the file with the policy: a few rows, for as many steps as a recurrent one needs to be reset once."""
    onnxruntime = require("onnxruntime", extra="onnx")
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    generator = stream(0, "onnx")
    rows = 4
    initial = [values.numpy() for values in policy.initial_state(rows)]
    state, expected_state = initial, None
    for step in range(policy.length + 2 if initial else 1):
        starts = np.array([step == 0, step in (0, 1), step == 0, step == 0])  # one row begins again after a step
        state = [
            np.where(starts.reshape(-1, *(1 for _ in new.shape[1:])), new, old)
            for new, old in zip(initial, state, strict=True)
        ]
        observations = _example(policy.inputs, rows, generator).numpy()
        fed = dict(zip(policy.state_names, state, strict=True))
        action, *found = session.run(None, {"observations": observations, **fed})
        numbers, expected_state = expected(observations, expected_state, starts)
        outputs, state = found[: len(numbers)], found[len(numbers) :]
        _compare(policy, action, outputs, numbers)


def _example(inputs: Inputs, rows: int, generator: torch.Generator) -> Tensor:
    """Observations spread about as widely as those of the data."""
    drawn = 2 * torch.randn(rows, len(inputs.kept), generator=generator)
    flat = torch.zeros(rows, inputs.size)
    flat[:, inputs.kept] = inputs.shift + inputs.scale * drawn
    return flat.reshape(rows, *inputs.shape)


def _compare(policy: PolicyModule, action: Array, outputs: Sequence[Array], expected: tuple[Tensor, ...]) -> None:
    pairs = [(one, other.numpy()) for one, other in zip(outputs, expected, strict=True)]
    worst = max(float(np.max(np.abs(one - other) / (1 + np.abs(other)))) for one, other in pairs)
    own = policy.action(*(torch.from_numpy(each) for each in outputs)).numpy()
    if not worst <= TOLERANCE or not np.array_equal(action, own):
        raise IleedError(
            f"onnxruntime's answers differ from the policy's by up to {worst:.1e}, where {TOLERANCE:.0e} is allowed: "
            "nothing was written; try another version of onnxruntime, or use to_module()"
        )
