"""Fits of small data in which the processes that `torchrun` starts take part; the first of them saves the numbers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

import ileed
from ileed.parallel.processes import Processes
from ileed.parallel.runtime import several_processes

_PEOPLE, _EPISODES, _STEPS = ("ann", "bob", "cy", "di"), 40, 20


def data(*, discrete: bool) -> ileed.Demonstrations:
    """Thirty observations, after which the first person mostly does what is right there, and the last one seldom."""
    rng = np.random.default_rng(0)
    count = _EPISODES * _STEPS
    demonstrator = np.repeat(np.arange(_EPISODES) % len(_PEOPLE), _STEPS)
    kind = rng.integers(30, size=count)
    right = np.where(rng.random(count) < 0.9 - 0.2 * demonstrator, kind % 3, rng.integers(3, size=count))
    return ileed.Demonstrations(
        observations=rng.normal(size=(30, 5))[kind].astype(np.float32),
        actions=right if discrete else rng.normal(right[:, None], 0.3, size=(count, 2)).astype(np.float32),
        demonstrator=np.array(_PEOPLE)[demonstrator],
        episode=np.repeat(np.arange(_EPISODES), _STEPS),
    )


def fit_in(
    processes: Processes, device: str, method: ileed.Ileed, *, discrete: bool = True, **how: Any
) -> ileed.Fitted:
    """A fit that the processes share."""
    shared = {"device": device, "check_width": False, "processes": processes}
    return method.fit(data(discrete=discrete), seed=0, **shared, **how)


_NARROW, _GAUSSIANS = ileed.CategoricalMLP(hidden=(4, 4)), ileed.MixtureMLP(hidden=(4, 4), modes=2)
_EACH = np.random.default_rng(1).integers(1, 4, size=(4, _EPISODES))
FITS: dict[str, Callable[[Callable[..., ileed.Fitted]], ileed.Fitted]] = {
    "blocks": lambda fit: fit(ileed.Ileed(policy=_NARROW, restarts=5, steps=40, folds=2, member_block=2)),
    "blocks of drawn steps": lambda fit: fit(
        ileed.Ileed(policy=_GAUSSIANS, restarts=4, steps=20, batch_size=64, folds=0, member_block=1, held_out=0.2),
        discrete=False,
        weights=_EACH,
    ),
    "latent dynamics": lambda fit: fit(
        ileed.Ileed(policy=_NARROW, dynamics=ileed.LatentDynamics(), restarts=2, steps=10, folds=0)
    ),
    "whole batch": lambda fit: fit(
        ileed.Ileed(policy=_NARROW, demonstrator=ileed.BiasedMixture(), restarts=2, steps=20, folds=2),
        gold=["ann"],
    ),
    "errors that last": lambda fit: fit(
        ileed.Ileed(policy=_GAUSSIANS, demonstrator=ileed.SignalScaling(), restarts=2, steps=20, folds=0),
        discrete=False,
    ),
    "mini-batches": lambda fit: fit(
        ileed.Ileed(policy=_GAUSSIANS, restarts=4, steps=20, batch_size=33, clip=0.5, folds=0, held_out=0.2),
        discrete=False,
        weights=_EACH,
    ),
    "windows": lambda fit: fit(
        ileed.Ileed(policy=ileed.MixtureLSTM(hidden=(4,), modes=2), restarts=2, steps=10, batch_size=7, folds=0),
        discrete=False,
    ),
}
DEALT_OUT = ("blocks", "blocks of drawn steps", "latent dynamics")
"""Fits of which each member is computed by one process: the same to the bit; the others share data at every step."""


def numbers(fitted: ileed.Fitted) -> dict[str, torch.Tensor]:
    """Everything that a fit has learned, by name."""
    found = {name: value.contiguous() for name, value in fitted.joint.state_dict().items()}
    costs = {"costs": fitted.restarts.nats_per_action, "curve": fitted.history.nats_per_action}
    if fitted.expertise.ratings is not None:
        costs["expertise"] = fitted.expertise.table().column("expertise").to_numpy()
    return found | {name: torch.tensor(value) for name, value in costs.items()}


if __name__ == "__main__":
    with several_processes() as job:
        for name, fit in FITS.items():
            fitted = fit(partial(fit_in, job, sys.argv[2]))
            if job.leads:
                save_file(numbers(fitted), Path(sys.argv[1]) / name)
