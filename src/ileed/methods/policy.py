"""The learned policy, which acts on observations as they come."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily

from ileed._torch import default_modes, stream, threads
from ileed.data import Array, Demonstrations, Encoding, check_demonstrations
from ileed.data.encoding import Layout, matched_observations
from ileed.data.rules import as_array, is_table
from ileed.errors import DemonstrationError, path_of, seed_of, true_or_false
from ileed.methods.exporting import PolicyModule, write_onnx
from ileed.model.joint import Joint
from ileed.model.normaliser import Normaliser

State = tuple[Array, ...]
"""The hidden state of a recurrent policy: arrays whose first axis is the row."""


@final
class Policy:
    """The learned policy: takes observations as they come, in their own units and with all their numbers.

    Where a fit keeps several members, it is the mean of their distributions. Samples are drawn from a random stream of
    the policy's own, which `reset(seed)` starts again.

    A recurrent policy has a hidden state. `act` keeps it from one call to the next: each row is an episode that
    continues, until `reset`. `predict` and `next_distribution` leave it to the caller, who passes the state that they
    returned. In `distribution` each row begins an episode.

    A policy that learned from several arrays takes a mapping from their names to (row, *shape) arrays. A policy that
    learned from a table has an `encoding`, and takes tables with the columns that it learned from as well.
    `act` returns the action's labels for a table, and their numbers for an array.
    """

    def __init__(self, joint: Joint, normaliser: Normaliser, encoding: Encoding | None = None) -> None:
        self._sizes, self._normaliser, self._net = joint.sizes, normaliser, joint.policy.eval()
        self._generator = stream(0, "act")
        self._state: State | None = None
        self.encoding, self.observation_shape = encoding, normaliser.shape
        self.action_count = joint.sizes.action_count
        """How many discrete actions it chooses among; 0 where actions are continuous."""
        self.action_size = joint.sizes.action_size
        """How many numbers a continuous action has; 0 where actions are discrete."""
        self.recurrent = bool(self._net.initial_state(0))
        """Whether it has a hidden state."""

    @property
    def action_names(self) -> tuple[str, ...]:
        """The name of each action, or of each dimension where actions are continuous."""
        if self.encoding is None:
            return tuple(f"action {number}" for number in range(self._sizes.actions))
        return tuple(map(str, self.encoding.labels or self.encoding.action))

    @property
    def layout(self) -> Layout:
        """What this policy expects of data: the shape of observations, the actions, and their names where known."""
        return Layout(
            self.observation_shape,
            self.action_count,
            self.action_size,
            self._sizes.has_legal_actions,
            self.encoding,
            self._normaliser.arrays,
        )

    def match(self, data: Demonstrations) -> Demonstrations:
        """The same steps with the columns, categories and labels of the data that this policy learned from.

        Whatever takes new data calls this first: `Fitted.nats`, `Fitted.assess`, `ileed.rate`, `ileed.curate`, reports
        and the live page. Names are matched where both sides have them, and shapes always; extra features are dropped.

        Raises:
            DemonstrationError: if the data cannot be matched; see `Layout.match`.
        """
        check_demonstrations(data)
        return self.layout.match(data)

    def preprocess(self, observations: Array | Tensor | Any) -> Array:
        """(row, input) what the networks read of (row, *shape) observations: the inputs that vary, normalised."""
        return np.asarray(network_inputs(observations, self._normaliser, self.encoding).T.numpy())

    def reset(self, seed: int = 0) -> None:
        """Begin new episodes, and start the stream of sampled actions again from a seed."""
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
        """`distribution` with the hidden state passed in and returned; the policy keeps none of it.

        Rows for which `episode_start` is true begin without a hidden state, and so do all without a `state`.
        """
        starts = None if episode_start is None else as_array("episode_start", episode_start).astype(bool)
        return self._next(observations, state, starts)

    @default_modes()
    def act(
        self, observations: Array | Tensor | Any, *, sample: bool = False, legal: Array | Tensor | None = None
    ) -> Array:
        """One action for each observation: the most likely one, or a sample of the policy."""
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
        """`act` under the signature that stable-baselines3's evaluators call; one observation or a batch of them."""
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
        """The policy as a `torch.nn.Module` of its own weights; `torch.export` makes it run without this package.

        For discrete actions `module(observations)` is their log-probabilities (batch, action), for continuous ones the
        log-weights, means and standard deviations of a mixture of Gaussians. A recurrent policy takes a state as well,
        at first `module.initial_state(batch)`, and returns the next.
        """
        return PolicyModule(self._net, self._normaliser).eval()

    @default_modes()
    def to_onnx(self, path: str | Path) -> None:
        """Write the policy as an ONNX file, for any number of observations at a time; needs the extra `onnx`.

        Its input is `observations`, in float32, or in float64 where float32 cannot resolve them; its outputs are
        `action`, the most likely one, and what `to_module` returns. A recurrent policy has its state as further inputs
        and, as `next_...`, outputs. Nothing is written unless onnxruntime's answers agree with the policy's within
        1e-4.
        """
        write_onnx(self.to_module(), path_of("path", path))

    @threads(1)
    @torch.no_grad()
    def _next(
        self, observations: Any, state: State | None, starts: Array | None, *, legal: Array | Tensor | None = None
    ) -> tuple[Any, State | None]:
        """The distribution of the next actions, and the next state; rows that start an episode have no hidden state."""
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
            raise DemonstrationError(f"legal actions have shape {tuple(tensor.shape)}: pass {wanted}")
        if not tensor.any(1).all():
            raise DemonstrationError("some observation has no legal action: there must be one or more for each")
        return tensor


def _state_of_rows(state: State, starts: Array | None, initial: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The state as tensors, with the initial one in the rows that start an episode."""
    rows, found = len(initial[0]), len(state[0])
    if found != rows:
        raise DemonstrationError(
            f"there are {rows} observations, and the hidden state is of {found} episodes: pass as many, or reset() the "
            "policy"
        )
    before = tuple(torch.from_numpy(each) for each in state)
    if starts is None:
        return before
    anew = torch.from_numpy(starts)
    pairs = zip(initial, before, strict=True)
    return tuple(torch.where(anew.view(-1, *(1 for _ in each.shape[1:])), new, each) for new, each in pairs)


def network_inputs(observations: Any, normaliser: Normaliser, encoding: Encoding | None) -> Tensor:
    """(input, row) what the networks read of (row, *shape) observations, of arrays by name, or of a table."""
    if normaliser.arrays and isinstance(observations, Mapping):
        observations = matched_observations(observations, normaliser.arrays)
    elif is_table(observations):
        if encoding is None:
            raise DemonstrationError(
                "observations are a table, and the fit was given numbers without names: pass an array of shape "
                f"(rows, {', '.join(map(str, normaliser.shape))}), as table.to_numpy() is"
            )
        observations = encoding.encode(observations)
    tensor, shape = as_tensor(observations, "observations"), normaliser.shape
    if tuple(tensor.shape[1:]) != shape:
        raise DemonstrationError(
            f"observations have shape {tuple(tensor.shape)}: this policy learned from observations of shape {shape}, "
            f"so pass (number of observations, {', '.join(str(size) for size in shape)})"
        )
    if tensor.is_floating_point() and not torch.isfinite(tensor).all():
        raise DemonstrationError("observations hold NaN or infinite values: leave those out, or repair them")
    return normaliser(tensor)


def as_tensor(values: Array | Tensor, name: str = "values") -> Tensor:
    """A tensor of its own: torch does not know of arrays that must not be written to."""
    if isinstance(values, Tensor):
        return values
    array = as_array(name, values)
    if array.dtype.kind not in "biuf":
        raise DemonstrationError(f"{name} are {array.dtype}, not numbers: pass them as the fit was given them")
    return torch.from_numpy(np.array(array))
