"""The policy that GAIL learns: a small network on numpy, and its file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, final

import numpy as np
import numpy.typing as npt
import torch

from ileed import RunError, runs
from ileed.errors import brief
from ileed.parallel.runtime import stream
from ileed_lab.expert_files import check_layers

__all__ = ["GailPolicy"]


@final
@dataclass(frozen=True, eq=False)
class GailPolicy:
    """A learned policy for discrete actions: layers of tanh and a score for every action, on numpy alone.

    Has stable-baselines3's `predict`, so that `ileed.evaluate` takes it. Sampled actions come from the policy's own
    random stream, which starts with the policy.
    """

    layers: tuple[tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]], ...]
    """Weight (out, in) and bias (out,) of each layer, the last one giving the actions' scores."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_generator", stream(0, "act"))

    def __repr__(self) -> str:
        sizes = [self.layers[0][0].shape[1], *(len(bias) for _, bias in self.layers)]
        return f"GailPolicy({' x '.join(map(str, sizes))})"

    def probabilities(self, observations: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """The probability of every action, (row, action), for observations (row, feature)."""
        values = np.asarray(observations, dtype=np.float32)
        *hidden, (weight, bias) = self.layers
        for hidden_weight, hidden_bias in hidden:
            values = np.tanh(values @ hidden_weight.T + hidden_bias)
        scores = (values @ weight.T + bias).astype(np.float64)
        likelihoods = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return np.asarray(likelihoods / likelihoods.sum(axis=-1, keepdims=True))

    def predict(
        self,
        observation: npt.NDArray[Any],
        state: tuple[npt.NDArray[Any], ...] | None = None,
        episode_start: npt.NDArray[np.bool_] | None = None,
        deterministic: bool = True,
    ) -> tuple[npt.NDArray[np.int64], tuple[npt.NDArray[Any], ...] | None]:
        """The most likely action, or a sampled one, for one observation or a batch of them."""
        probabilities = self.probabilities(np.atleast_2d(observation))
        if deterministic:
            actions = probabilities.argmax(axis=-1)
        else:
            generator: torch.Generator = self._generator  # type: ignore[attr-defined]
            actions = torch.multinomial(torch.from_numpy(probabilities), 1, generator=generator)[:, 0].numpy()
        return (actions[0] if np.ndim(observation) == 1 else actions), state

    def save(self, path: str | Path) -> None:
        """Write the layers to one safetensors file."""
        tensors = {f"{number}.weight": torch.tensor(weight) for number, (weight, _) in enumerate(self.layers)}
        tensors |= {f"{number}.bias": torch.tensor(bias) for number, (_, bias) in enumerate(self.layers)}
        runs.write_tensors(Path(path), tensors, {"kind": "GailPolicy"})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote."""
        tensors, notes = runs.read_tensors(Path(path))
        if notes.get("kind") != "GailPolicy":
            raise RunError(f"{path} does not hold a policy of GAIL; pass a file that GailPolicy.save wrote")
        try:
            pairs = [(tensors[f"{number}.weight"], tensors[f"{number}.bias"]) for number in range(len(tensors) // 2)]
            layers = tuple((weight.numpy(), bias.numpy()) for weight, bias in pairs)
            check_layers(layers)
        except (KeyError, TypeError, ValueError) as error:
            reason = f"there is no {error}" if isinstance(error, KeyError) else brief(error)
            raise RunError(f"{path} does not hold a policy of GAIL ({reason}); fit one again") from error
        return cls(layers)
