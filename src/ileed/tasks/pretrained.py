"""Experts: policies that were trained in a task, kept as plain weights, and the files of those that ship."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, final

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as safetensors_bytes

from ileed.errors import RunError, brief

__all__ = ["Expert", "check_layers", "expert_path"]


@final
@dataclass(frozen=True, eq=False)
class Expert:
    """A trained policy: two layers of tanh and a score for every action; an `Actor` that takes the most likely action.

    Reads observations of 147 numbers as they are. Runs on numpy alone.
    """

    layers: tuple[tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]], ...]
    """Weight (out, in) and bias (out,) of each layer, the last one giving the actions' scores."""
    origin: dict[str, str]
    """Where it comes from: task, settings, seed, versions, and the reward that it reached."""

    def __repr__(self) -> str:
        sizes = [weight.shape[1] for weight, _ in self.layers] + [self.action_count]
        return f"Expert({self.origin.get('task', 'task unknown')}, {' x '.join(map(str, sizes))})"

    @property
    def action_count(self) -> int:
        """How many actions there are."""
        return len(self.layers[-1][1])

    def __call__(
        self, observations: npt.NDArray[Any], starts: npt.NDArray[np.bool_] | None = None
    ) -> npt.NDArray[np.int64]:
        """The most likely action (env,) for observations (env, 147); of equals the first."""
        return np.asarray(self._scores(observations).argmax(axis=-1))

    def probabilities(self, observations: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """The probability of every action, (env, action), for observations (env, 147)."""
        scores = self._scores(observations).astype(np.float64)
        likelihoods = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return np.asarray(likelihoods / likelihoods.sum(axis=-1, keepdims=True))

    def _scores(self, observations: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        values = np.asarray(observations, dtype=np.float32)
        *hidden, (weight, bias) = self.layers
        for hidden_weight, hidden_bias in hidden:
            values = np.tanh(values @ hidden_weight.T + hidden_bias)
        return np.asarray(values @ weight.T + bias)

    def save(self, path: str | Path) -> None:
        """Write the weights and their origin to one safetensors file."""
        tensors = {}
        for number, (weight, bias) in enumerate(self.layers):
            tensors[f"{number}.weight"], tensors[f"{number}.bias"] = weight, bias
        content = safetensors_bytes(tensors, metadata={"origin": json.dumps(self.origin)})
        unfinished = Path(path).with_name(Path(path).name + ".unfinished")
        try:
            unfinished.write_bytes(content)
            unfinished.replace(path)
        except OSError as error:
            unfinished.unlink(missing_ok=True)
            raise RunError(f"the expert cannot be written to {path}: {error.strerror}; choose another path") from error

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote."""
        try:
            with safe_open(path, framework="numpy") as file:
                count = len(file.keys()) // 2
                layers = tuple((file.get_tensor(f"{n}.weight"), file.get_tensor(f"{n}.bias")) for n in range(count))
                origin = json.loads((file.metadata() or {})["origin"])
            check_layers(layers)
            if not (isinstance(origin, dict) and all(isinstance(value, str) for value in origin.values())):
                raise ValueError(f"its origin is {brief(origin)} but must be an object of strings")
            return cls(layers, origin)
        except (OSError, SafetensorError, LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            reason = f"there is no {error}" if isinstance(error, KeyError) else brief(error)
            raise RunError(
                f"{path} does not hold an expert that can be read ({reason}); train one with `ileed pretrain`"
            ) from error


def check_layers(layers: Sequence[tuple[npt.NDArray[Any], npt.NDArray[Any]]]) -> None:
    """Refuse layers that make no network: each takes what the one before gives, and every number is finite."""
    if not layers:
        raise ValueError("it has no layers")
    before: int | None = None
    for number, (weight, bias) in enumerate(layers):
        if weight.dtype != np.float32 or bias.dtype != np.float32:
            raise ValueError(f"layer {number} is {weight.dtype} and {bias.dtype} but must be float32")
        if weight.ndim != 2 or bias.shape != weight.shape[:1] or min(weight.shape) < 1:
            raise ValueError(f"layer {number} has weights of shape {weight.shape} and a bias of shape {bias.shape}")
        if before is not None and weight.shape[1] != before:
            raise ValueError(f"layer {number} takes {weight.shape[1]} numbers but the one before gives {before}")
        if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
            raise ValueError(f"layer {number} holds NaN or infinite values")
        before = len(weight)


def expert_path(task: str) -> Path:
    """Where the expert that ships for a task lies."""
    return Path(__file__).parent / "experts" / f"{task.replace('/', '-')}.safetensors"
