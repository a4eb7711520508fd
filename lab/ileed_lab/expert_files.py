"""Files of trained experts: how they are written, and read with every check."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as safetensors_bytes

from ileed.envs.minigrid import Expert
from ileed.errors import RunError, brief

__all__ = ["check_layers", "load_expert", "save_expert"]


def save_expert(expert: Expert, path: str | Path) -> None:
    """Write the weights and their origin to one safetensors file."""
    tensors = {}
    for number, (weight, bias) in enumerate(expert.layers):
        tensors[f"{number}.weight"], tensors[f"{number}.bias"] = weight, bias
    content = safetensors_bytes(tensors, metadata={"origin": json.dumps(expert.origin)})
    unfinished = Path(path).with_name(Path(path).name + ".unfinished")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise RunError(f"the expert cannot be written to {path}: {error.strerror}; choose another path") from error


def load_expert(path: str | Path) -> Expert:
    """Read what `save_expert` wrote."""
    try:
        with safe_open(path, framework="numpy") as file:
            count = len(file.keys()) // 2
            layers = tuple((file.get_tensor(f"{n}.weight"), file.get_tensor(f"{n}.bias")) for n in range(count))
            origin = json.loads((file.metadata() or {})["origin"])
        check_layers(layers)
        if not (isinstance(origin, dict) and all(isinstance(value, str) for value in origin.values())):
            raise ValueError(f"its origin is {brief(origin)} but must be an object of strings")
        return Expert(layers, origin)
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
