"""Experts: policies that were trained in a task, kept as plain weights, and the files of those that ship."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, final

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as safetensors_bytes

from ileed.errors import RunError

__all__ = ["Expert", "expert_path"]


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
                return cls(layers, json.loads(file.metadata()["origin"]))
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise RunError(
                f"{path} does not hold an expert that can be read ({error}); "
                "train one with ileed.tasks.minigrid.pretrain"
            ) from error


def expert_path(task: str) -> Path:
    """Where the expert that ships for a task lies."""
    return Path(__file__).parent / "experts" / f"{task.replace('/', '-')}.safetensors"
