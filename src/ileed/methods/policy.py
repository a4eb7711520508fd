"""The learned policy: it acts on observations as they come, and leaves as a torch module or an ONNX file."""

from __future__ import annotations

import copy
import io
import logging
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, MixtureSameFamily

from ileed._torch import default_modes, stream, threads
from ileed.data import Array, Demonstrations, Encoding, check_demonstrations
from ileed.data.encoding import Layout, matched_observations
from ileed.data.rules import as_array, is_table
from ileed.errors import DemonstrationError, IleedError, path_of, require, seed_of, true_or_false
from ileed.model.joint import Joint
from ileed.model.normaliser import Normaliser
from ileed.model.policies import PolicyNet
from ileed.runs import write_file

State = tuple[Array, ...]
"""The hidden state of a recurrent policy: arrays whose first axis is the row."""


@final
class Policy:
    """A learned policy, which takes raw observations: in their own units, and with inputs that never vary.

    Where a fit keeps several members, the policy is the mean of their distributions. Samples come from the policy's own
    random stream, which `reset(seed)` restarts.

    A recurrent policy has a hidden state. `act` keeps it between calls: each row is an episode that continues until
    `reset`. `predict` and `next_distribution` return it, and the caller passes it back. In `distribution` each row
    begins an episode.

    A policy that was fitted to several named arrays takes a mapping from their names to (row, *shape) arrays. A policy
    that was fitted to a table has an `encoding` and also takes tables with the same columns; `act` then returns labels
    of actions rather than their numbers.
    """

    def __init__(self, joint: Joint, normaliser: Normaliser, encoding: Encoding | None = None) -> None:
        self._sizes, self._normaliser, self._net = joint.sizes, normaliser, joint.policy.eval()
        self._generator = stream(0, "act")
        self._state: State | None = None
        self.encoding, self.observation_shape = encoding, normaliser.shape
        self.action_count = joint.sizes.action_count
        """The number of discrete actions; 0 where actions are continuous."""
        self.action_size = joint.sizes.action_size
        """The number of dimensions of a continuous action; 0 where actions are discrete."""
        self.recurrent = bool(self._net.initial_state(0))
        """Whether the policy has a hidden state."""

    @property
    def action_names(self) -> tuple[str, ...]:
        """The name of each action, or of each dimension where actions are continuous."""
        if self.encoding is None:
            return tuple(f"action {number}" for number in range(self._sizes.actions))
        return tuple(map(str, self.encoding.labels or self.encoding.action))

    @property
    def layout(self) -> Layout:
        """The shape of observations, the actions, and the names of both where they are known."""
        return Layout(
            self.observation_shape,
            self.action_count,
            self.action_size,
            self._sizes.has_legal_actions,
            self.encoding,
            self._normaliser.arrays,
        )

    def match(self, data: Demonstrations) -> Demonstrations:
        """Return the same steps with the columns, categories and labels that this policy was fitted to.

        Names are matched where both sides have them, and shapes always; extra features are dropped. Everything that
        takes new data calls this first: `Fitted.nats`, `Fitted.assess`, `ileed.rate`, `ileed.curate`, reports and the
        live page.

        Raises:
            DemonstrationError: if the data cannot be matched; see `Layout.match`.
        """
        check_demonstrations(data)
        return self.layout.match(data)

    def preprocess(self, observations: Array | Tensor | Any) -> Array:
        """(row, input) the inputs of the networks for (row, *shape) observations: those that vary, normalised."""
        return np.asarray(network_inputs(observations, self._normaliser, self.encoding).T.numpy())

    def reset(self, seed: int = 0) -> None:
        """Begin new episodes, and restart the random stream of sampled actions from a seed."""
        self._generator = stream(seed_of(seed), "act")
        self._state = None

    @default_modes()
    def distribution(
        self, observations: Array | Tensor | Any, *, legal: Array | Tensor | None = None
    ) -> Categorical | MixtureSameFamily:
        """The distribution of actions after each of (row, *shape) observations, each the first of its episode."""
        return self._next(observations, None, None, legal=legal)[0]

    @default_modes()
    def next_distribution(
        self, observations: Array | Tensor | Any, state: State | None = None, episode_start: Array | None = None
    ) -> tuple[Categorical | MixtureSameFamily, State | None]:
        """The distribution of the next actions and the next hidden state; the policy itself keeps no state.

        Rows where `episode_start` is true begin an episode, as all rows do without a `state`.
        """
        starts = None if episode_start is None else as_array("episode_start", episode_start).astype(bool)
        return self._next(observations, state, starts)

    @default_modes()
    def act(
        self, observations: Array | Tensor | Any, *, sample: bool = False, legal: Array | Tensor | None = None
    ) -> Array:
        """Return one action for each observation: the most likely one, or a sample."""
        sample = true_or_false("sample", sample)
        distribution, self._state = self._next(observations, self._state, None, legal=legal)
        chosen = self._chosen(distribution, sample=sample)
        return self.encoding.decode(chosen) if self.encoding is not None and is_table(observations) else chosen

    @default_modes()
    def predict(
        self,
        observation: Array | Any,
        state: State | None = None,
        episode_start: Array | None = None,
        deterministic: bool = True,
    ) -> tuple[Array, State | None]:
        """Act on one observation or a batch, with the signature that stable-baselines3's evaluators call."""
        deterministic = true_or_false("deterministic", deterministic)
        batch: Any = observation
        if (arrays := self._normaliser.arrays) and isinstance(observation, Mapping):
            single = np.shape(observation[arrays[0].name]) == arrays[0].shape
            batch = {name: np.asarray(value)[None] if single else value for name, value in observation.items()}
        else:
            single = not is_table(observation) and as_array("observation", observation).shape == self.observation_shape
            batch = as_array("observation", observation)[None] if single else observation
        starts = None if episode_start is None else np.atleast_1d(as_array("episode_start", episode_start).astype(bool))
        distribution, state = self._next(batch, state, starts)
        actions = self._chosen(distribution, sample=not deterministic)
        return (actions[0] if single else actions), state

    def to_module(self) -> PolicyModule:
        """Return the policy as a `torch.nn.Module`; after `torch.export` it runs without this package.

        See `PolicyModule` for its outputs.
        """
        return PolicyModule(self._net, self._normaliser).eval()

    @default_modes()
    def to_onnx(self, path: str | Path) -> None:
        """Write the policy as an ONNX file, for batches of any size; needs the extra `onnx`.

        The input is `observations`, in float32, or in float64 where float32 cannot resolve them. The outputs are
        `action`, the most likely action, and those of `to_module()`. The state of a recurrent policy adds further
        inputs, and outputs named `next_...`. The file is written only if onnxruntime's outputs agree with the policy's
        within 1e-4.
        """
        path, module = path_of("path", path), self.to_module()
        for package in ("onnx", "onnxscript", "onnxruntime"):
            require(package, extra="onnx")
        content = _onnx_bytes(module)
        _check_onnx(content, module)
        write_file(path, content)

    @threads(1)
    @torch.no_grad()
    def _next(
        self, observations: Any, state: State | None, starts: Array | None, *, legal: Array | Tensor | None = None
    ) -> tuple[Any, State | None]:
        """The distribution of the next actions, and the next state; see `next_distribution`."""
        seen = network_inputs(observations, self._normaliser, self.encoding)
        rows = seen.shape[1]
        before = self._net.initial_state(rows)
        if state is not None and before:
            before = _state_of_rows(state, starts, before)
        allowed = None if legal is None else self._legal(legal, rows).T
        distribution, after = self._net.step(seen, before, allowed)
        return self._net.average(distribution), tuple(each.numpy() for each in after) if before else state

    def _chosen(self, distribution: Any, *, sample: bool) -> Array:
        choose = self._net.sample if sample else self._net.most_likely
        return np.asarray(choose(distribution, self._generator).numpy())

    def _legal(self, legal: Array | Tensor, rows: int) -> Tensor:
        tensor = as_tensor(legal).bool()
        if tensor.shape != (rows, self._sizes.actions):
            wanted = (rows, self._sizes.actions)
            raise DemonstrationError(f"legal has shape {tuple(tensor.shape)}: pass {wanted}", code="legal-invalid")
        if not tensor.any(1).all():
            message = "legal has rows without any legal action: each observation needs at least one"
            raise DemonstrationError(message, code="legal-invalid")
        return tensor


def _state_of_rows(state: State, starts: Array | None, initial: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The state as tensors, with the initial state in the rows that start an episode."""
    rows, found = len(initial[0]), len(state[0])
    if found != rows:
        message = f"there are {rows} observations, but the hidden state is of {found} episodes"
        raise DemonstrationError(f"{message}: pass as many, or reset() the policy", code="state-rows-differ")
    before = tuple(torch.from_numpy(each) for each in state)
    if starts is None:
        return before
    begins = torch.from_numpy(starts)
    pairs = zip(initial, before, strict=True)
    return tuple(torch.where(begins.view(-1, *(1 for _ in each.shape[1:])), new, each) for new, each in pairs)


def network_inputs(observations: Any, normaliser: Normaliser, encoding: Encoding | None) -> Tensor:
    """(input, row) the inputs of the networks for (row, *shape) observations, named arrays, or a table."""
    if normaliser.arrays and isinstance(observations, Mapping):
        observations = matched_observations(observations, normaliser.arrays)
    elif is_table(observations):
        if encoding is None:
            wanted = f"(rows, {', '.join(map(str, normaliser.shape))}), as table.to_numpy() is"
            message = f"observations are a table, but the fit was given an array: pass an array of shape {wanted}"
            raise DemonstrationError(message, code="observations-unnamed")
        observations = encoding.encode(observations)
    tensor, shape = as_tensor(observations, "observations"), normaliser.shape
    if tuple(tensor.shape[1:]) != shape:
        wanted = f"pass (number of observations, {', '.join(map(str, shape))})"
        found = f"observations have shape {tuple(tensor.shape)}, and this policy was fitted to shape {shape}"
        raise DemonstrationError(f"{found}: {wanted}", code="observations-shape")
    if tensor.is_floating_point() and not torch.isfinite(tensor).all():
        message = "observations contain NaN or infinite values: remove or repair these rows"
        raise DemonstrationError(message, code="observations-not-finite")
    return normaliser(tensor)


def as_tensor(values: Array | Tensor, name: str = "values") -> Tensor:
    """A tensor of these values; arrays are copied, since torch does not support read-only memory."""
    if isinstance(values, Tensor):
        return values
    array = as_array(name, values)
    if array.dtype.kind not in "biuf":
        message = f"{name} are {array.dtype}, not numbers: pass them in the form that the fit was given"
        raise DemonstrationError(message, code=f"{name}-not-numbers")
    return torch.from_numpy(np.array(array))


TOLERANCE = 1e-4
"""The greatest difference between outputs of an ONNX file and of the policy, absolute and relative."""


@final
class PolicyModule(nn.Module):
    """A policy with its preprocessing, from (batch, *shape) observations to the parameters of a distribution.

    For discrete actions these are log-probabilities (batch, action) in nats, where every action counts as legal. For
    continuous actions they are the log-weights (batch, component), means (batch, component, dimension) and standard
    deviations of a mixture of Gaussians, in the units of the actions.

    A recurrent policy also takes a state, initially `initial_state(batch)`, and returns the next one as its last
    output: a list of tensors whose first axis is the batch. The last of them is the age, the number of steps since the
    episode began; a row whose age is set to 0 begins a new episode. The hidden state is reset after every `length`
    steps, as in training. `output_names` and `state_names` are the names in an ONNX file.
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
        """From the outputs, the most likely action of each row, or the mean of the component of greatest weight."""
        chosen = log_weights.argmax(-1)
        if means is None:
            return chosen
        return means.gather(1, chosen[:, None, None].expand(-1, 1, means.shape[-1]))[:, 0]

    def initial_state(self, batch: int) -> list[Tensor]:
        """The state at the start of `batch` episodes; empty where the policy is not recurrent."""
        return [part.clone() for part in self.network.initial_state(batch)]  # aliases would be traced as one input


@final
class _WithAction(nn.Module):
    """The module of a policy with the most likely action as a first output."""

    def __init__(self, policy: PolicyModule) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, observations: Tensor, state: list[Tensor] | None = None) -> tuple[Any, ...]:
        outputs = self.policy(observations, state)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return self.policy.action(*outputs[: len(self.policy.output_names)]), *outputs


def _onnx_bytes(policy: PolicyModule) -> bytes:
    batch, inputs = torch.export.Dim("batch"), policy.inputs
    rows = 3  # of the traced example; torch would take 0 and 1 for constants
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
    """Hide what the exporter prints and logs for its developers."""
    before, nowhere = logging.root.manager.disable, io.StringIO()
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"), redirect_stdout(nowhere), redirect_stderr(nowhere):
            yield
    finally:
        logging.disable(before)


@torch.no_grad()
def _check_onnx(content: bytes, policy: PolicyModule) -> None:
    """Compare the file with the policy on a few rows, for enough steps to reset a recurrent policy once."""
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
            found = f"outputs of onnxruntime differ from the policy's by up to {worst:.1e}, more than {TOLERANCE:.0e}"
            advice = "nothing was written; try another version of onnxruntime, or use to_module()"
            raise IleedError(f"{found}: {advice}", code="onnx-differs")
        state = expected[len(policy.output_names) :]
