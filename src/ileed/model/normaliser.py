"""The normaliser: selects the inputs of the networks and scales them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from ileed._torch import Float, Shaped
from ileed.data.encoding import Arrays


@final
class Normaliser(nn.Module):
    """Select the inputs that vary in the data, standardise them, and return them in single precision.

    It is part of the policy, which therefore takes observations in their own units. `shift` and `scale` are float64
    where the data need double precision; inputs are then standardised before they are cast to float32. `arrays` names
    the observation arrays if there are several.
    """

    kept: Tensor
    shift: Tensor
    scale: Tensor

    def __init__(self, shape: Sequence[int], kept: Tensor, shift: Tensor, scale: Tensor, arrays: Arrays = ()) -> None:
        super().__init__()
        self.shape, self.arrays = tuple(shape), arrays
        self.register_buffer("kept", kept)
        self.register_buffer("shift", shift)
        self.register_buffer("scale", scale)

    def forward(self, observations: Tensor) -> Float[Tensor, "input observation"]:
        """The networks' inputs from (unique observation, *shape) observations."""
        return self.normalise(observations.flatten(1)[:, self.kept].T)

    def input_precision(self, tolerance: float) -> torch.dtype:
        """float32, unless rounding observations to it moves a standardised input by more than `tolerance`."""
        error = torch.finfo(torch.float32).eps * self.shift.abs() / self.scale
        return torch.float64 if bool((error > tolerance).any()) else torch.float32

    def normalise(self, varying: Shaped[Tensor, "input observation"]) -> Float[Tensor, "input observation"]:
        """Standardise inputs that are already selected."""
        varying = varying.to(self.shift.dtype)
        return ((varying - self.shift[:, None]) / self.scale[:, None]).float().contiguous()


@final
@dataclass(frozen=True, eq=False)
class ActionScale:
    """Location and range of the actions of a data set, per dimension."""

    mean: Float[Tensor, " dimension"]
    spread: Float[Tensor, " dimension"]
    low: Float[Tensor, " dimension"]
    high: Float[Tensor, " dimension"]


def input_moments(
    observations: Float[Tensor, "input observation"], weight: Float[Tensor, " observation"]
) -> tuple[Float[Tensor, " input"], Float[Tensor, " input"]]:
    """The weighted mean and standard deviation of each input, in double precision."""
    share = weight / weight.sum()
    mean = observations.double() @ share
    return mean, ((observations.double() - mean[:, None]) ** 2 @ share).sqrt()


def normaliser_for(
    shape: Sequence[int],
    varying: Tensor,
    moments: tuple[Float[Tensor, " input"], Float[Tensor, " input"]] | None,
    unscaled: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    arrays: Arrays = (),
) -> Normaliser:
    """The normaliser of a data set: each input in units of its standard deviation over steps, or as it is.

    `unscaled` marks indicators and codes, which are not scaled: a category of one row in a hundred would become ten
    standard deviations, and of one in ten thousand a hundred. `dtype` is the precision in which inputs are
    standardised. A standard deviation below its rounding error at the mean is replaced by that error, so that rounding
    is not magnified and different values stay at least half a unit apart.
    """
    if moments is None or (unscaled is not None and unscaled.all()):
        ones = torch.ones(len(varying))
        return Normaliser(shape, varying, torch.zeros_like(ones), ones, arrays)
    mean, spread = moments
    if unscaled is not None:
        mean, spread = mean.masked_fill(unscaled, 0.0), spread.masked_fill(unscaled, 1.0)
    spread = torch.maximum(spread, torch.finfo(dtype).eps * mean.abs()).to(dtype)
    return Normaliser(shape, varying, mean.to(dtype), torch.where(spread > 0, spread, 1.0), arrays)
