"""The normaliser: which numbers of an observation the networks see, and in what units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from ileed._torch import Float


@final
class Normaliser(nn.Module):
    """Inputs that varied in the data, centred and scaled; an input that never varied carries no information.

    Part of the policy, so that whoever holds one passes observations as they come.
    """

    kept: Tensor
    shift: Tensor
    scale: Tensor

    def __init__(self, shape: Sequence[int], kept: Tensor, shift: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.shape = tuple(shape)
        self.register_buffer("kept", kept)
        self.register_buffer("shift", shift)
        self.register_buffer("scale", scale)

    def forward(self, observations: Tensor) -> Float[Tensor, "input observation"]:
        """What the networks see of (unique observation, *shape) observations."""
        return self.normalise(observations.flatten(1)[:, self.kept].float().T)

    def normalise(self, varying: Float[Tensor, "input observation"]) -> Float[Tensor, "input observation"]:
        """Centre and scale inputs that are already only the varying ones."""
        return ((varying - self.shift[:, None]) / self.scale[:, None]).contiguous()


@final
@dataclass(frozen=True, eq=False)
class ActionScale:
    """Where the actions of a data set lie, in each dimension."""

    mean: Float[Tensor, " dimension"]
    spread: Float[Tensor, " dimension"]
    low: Float[Tensor, " dimension"]
    high: Float[Tensor, " dimension"]


def input_moments(
    observations: Float[Tensor, "input observation"], weight: Float[Tensor, " observation"]
) -> tuple[Float[Tensor, " input"], Float[Tensor, " input"]]:
    """The mean of each input over steps, and its standard deviation, in double precision."""
    share = weight / weight.sum()
    mean = observations.double() @ share
    return mean, ((observations.double() - mean[:, None]) ** 2 @ share).sqrt()


def normaliser_for(
    shape: Sequence[int],
    varying: Tensor,
    moments: tuple[Float[Tensor, " input"], Float[Tensor, " input"]] | None,
    indicators: Tensor | None = None,
) -> Normaliser:
    """The normaliser of a data set: each input in units of its own spread over steps, or as it comes.

    `indicators` marks the inputs that are one in a row's own category and zero elsewhere. These are never scaled: in
    units of its own spread, a category of one row in a hundred would be ten, and of one in ten thousand a hundred.
    """
    if moments is None:
        ones = torch.ones(len(varying))
        return Normaliser(shape, varying, torch.zeros_like(ones), ones)
    mean, spread = moments
    if indicators is not None:
        mean, spread = mean.masked_fill(indicators, 0.0), spread.masked_fill(indicators, 1.0)
    return Normaliser(shape, varying, mean.float(), spread.clamp_min(1e-6).float())
