"""Working with stable-baselines3: its global random generators restored, and the policy network of its models."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["generators_restored", "policy_layers"]


@contextmanager
def generators_restored() -> Iterator[None]:
    """Restore the state of every global random generator afterwards: stable-baselines3 seeds them."""
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002 (theirs, not ours)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002


def policy_layers(model: Any) -> tuple[tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]], ...]:
    """Weight (out, in) and bias (out,) of each layer of a model's policy network, copied."""
    linear = [*model.policy.mlp_extractor.policy_net[::2], model.policy.action_net]
    return tuple((_as_array(layer.weight), _as_array(layer.bias)) for layer in linear)


def _as_array(parameter: torch.Tensor) -> npt.NDArray[np.float32]:
    return parameter.detach().numpy().copy()
