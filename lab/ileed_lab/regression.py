"""The trainer of every policy that is compared: a regression of actions on observations, with weights of steps."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import final

import numpy as np
import torch
from torch import nn

from ileed import Demonstrations, SettingsError
from ileed.data import Array
from ileed.parallel.runtime import stream, threads

__all__ = ["Regression", "Regressor"]

_ROWS_AT_ONCE = 1 << 15


@final
@dataclass(frozen=True, eq=False)
class Regressor:
    """A trained network, with the normalisation of its inputs."""

    network: nn.Sequential
    mean: Array
    spread: Array

    @threads(1)
    @torch.no_grad()
    def act(self, observations: Array) -> Array:
        """(row, dimension) the mean action at each of (row, feature) observations."""
        rows = torch.from_numpy(((observations - self.mean) / self.spread).astype(np.float32))
        return torch.cat([self.network(part) for part in rows.split(_ROWS_AT_ONCE)]).numpy()


@final
@dataclass(frozen=True)
class Regression:
    """A multi-layer perceptron, trained by Adam on the squared error, with a learning rate that falls to zero.

    Batches are drawn by the weights of steps, so that each method takes equally many optimisation steps.
    """

    hidden: tuple[int, ...] = (128, 128)
    steps: int = 8_000
    batch_size: int = 512
    learning_rate: float = 2e-3

    @threads(1)
    def fit(self, data: Demonstrations, *, seed: int, weights: Array | None = None) -> Regressor:
        """Learn from continuous actions; `weights` has one of each step, all alike by default."""
        if data.discrete:
            raise SettingsError("actions are discrete, and this is a regression: pass continuous actions")
        share = np.full(len(data), 1.0) if weights is None else np.asarray(weights, dtype=np.float64)
        if share.shape != (len(data),) or (share < 0).any() or not share.any():
            raise SettingsError(f"weights has shape {share.shape}: pass one of each of {len(data)} steps, zero or more")
        kept = np.flatnonzero(share)
        observations, actions = data.observations[kept], data.actions[kept]
        mean, spread = observations.mean(0), observations.std(0)
        spread = np.where(spread > 0, spread, 1)
        inputs = torch.from_numpy(((observations - mean) / spread).astype(np.float32))
        targets = torch.from_numpy(np.asarray(actions, np.float32))
        bounds = torch.from_numpy(np.cumsum(share[kept]))
        generator = stream(seed, "regression")
        network = _network([inputs.shape[1], *self.hidden, targets.shape[1]], generator)
        optimiser = torch.optim.Adam(network.parameters(), lr=self.learning_rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, self.steps)
        for _ in range(self.steps):
            drawn = torch.rand(self.batch_size, generator=generator, dtype=torch.float64) * bounds[-1]
            rows = torch.searchsorted(bounds, drawn, right=True).clamp(max=len(kept) - 1)
            loss = (network(inputs[rows]) - targets[rows]).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
        return Regressor(network, mean, spread)


def _network(sizes: list[int], generator: torch.Generator) -> nn.Sequential:
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        layer = nn.Linear(fan_in, fan_out)
        with torch.no_grad():
            for values in (layer.weight, layer.bias):
                values.copy_((2 * torch.rand(values.shape, generator=generator) - 1) * fan_in**-0.5)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])
