"""Embeddings of arrays by a small variational autoencoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from ileed.data import Array
from ileed.parallel.runtime import stream, threads

__all__ = ["Autoencoder"]

_ROWS_AT_ONCE = 1 << 15


@final
@dataclass(frozen=True)
class Autoencoder:
    """A beta-VAE of multi-layer perceptrons, trained on the standardised rows of an array.

    The loss is the squared reconstruction error plus `beta` times the divergence of the encoder's Gaussian from the
    standard normal (Higgins et al., *beta-VAE*, ICLR 2017).
    """

    latent: int
    """Dimensions of the embedding; at most those of the rows."""
    beta: float = 0.05
    hidden: tuple[int, ...] = (256, 256)
    steps: int = 5_000
    batch_size: int = 256
    learning_rate: float = 1e-3

    @threads(1)
    def embed(self, values: Array, *, seed: int) -> Array:
        """(row, latent) the mean of the encoder for each row of (row, number) values."""
        spread = values.std(0)
        rows = torch.from_numpy(((values - values.mean(0)) / np.where(spread > 0, spread, 1)).astype(np.float32))
        size, latent = rows.shape[1], min(self.latent, rows.shape[1])
        generator = stream(seed, "autoencoder")
        encoder = _perceptron([size, *self.hidden, 2 * latent], generator)
        decoder = _perceptron([latent, *reversed(self.hidden), size], generator)
        optimiser = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=self.learning_rate)
        for _ in range(self.steps):
            batch = rows[torch.randint(len(rows), (self.batch_size,), generator=generator)]
            mean, log_variance = encoder(batch).chunk(2, dim=1)
            noise = torch.randn(mean.shape, generator=generator)
            error = (decoder(mean + noise * (log_variance / 2).exp()) - batch).square().sum(1)
            divergence = (mean.square() + log_variance.exp() - 1 - log_variance).sum(1) / 2
            loss = (error + self.beta * divergence).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        with torch.no_grad():
            return _means(encoder, rows, latent).numpy()


def _perceptron(sizes: Sequence[int], generator: torch.Generator) -> nn.Sequential:
    """Linear layers with ReLU between them, with their own initial values."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        layer = nn.Linear(fan_in, fan_out)
        bound = fan_in**-0.5
        with torch.no_grad():
            for values in (layer.weight, layer.bias):
                values.copy_((2 * torch.rand(values.shape, generator=generator) - 1) * bound)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _means(encoder: nn.Sequential, rows: Tensor, latent: int) -> Tensor:
    return torch.cat([encoder(part)[:, :latent] for part in rows.split(_ROWS_AT_ONCE)])
