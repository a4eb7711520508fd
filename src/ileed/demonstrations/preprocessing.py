"""Preprocessing: the precision in which observations are held, and which of their numbers a fit standardises.

Networks compute in single precision (float32). Numbers that float32 cannot tell apart, such as UTM metres with
centimetres or Unix seconds with milliseconds, stay in double precision until they are standardised.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from ileed.demonstrations.rules import Array

_AT_ONCE = 1 << 16  # numbers that are compared before the next are looked at: most columns are decided by the first
_DIGITS = 6  # significant decimal digits that float32 always keeps apart (FLT_DIG of C)
_EXACT_POWER = 22  # the largest power of ten that float64 holds exactly

LARGEST_CODE = 16
"""Integer columns whose values all lie within this distance of zero are codes, and are read as they are.

Object, colour and state of a grid cell, one-hot columns and flags are such codes: they already are of the order of one,
and scaling would magnify rare ones. All other integers are measurements or counts and are standardised as floats are.
"""


def single_holds(values: Array) -> bool:
    """Whether float32 holds every value: exactly, or as a decimal number of at most six significant digits."""
    if np.can_cast(values.dtype, np.float32):
        return True
    flat = values.reshape(-1)
    return all(_single_holds(flat[first : first + _AT_ONCE]) for first in range(0, len(flat), _AT_ONCE))


def _single_holds(values: Array) -> bool:
    with np.errstate(under="ignore"):
        rest = values[values.astype(np.float32) != values]
    if not len(rest):
        return True
    if values.dtype.kind != "f":
        return False
    shift = _DIGITS - 1 - np.floor(np.log10(np.abs(rest)))
    if np.abs(shift).max() > _EXACT_POWER:
        return False
    # whole numbers and these powers of ten are exact, so that the quotient or product is the decimal's own float64
    power = 10.0 ** np.abs(shift)
    rounded = np.where(shift >= 0, np.rint(rest * power) / power, np.rint(rest / power) * power)
    return bool((rounded == rest).all())


def input_dtype(given: np.dtype, blocks: Iterable[Array]) -> npt.DTypeLike:
    """The type in which (row, input) blocks of a `given` type are held until they are standardised."""
    return np.float32 if np.can_cast(given, np.float32) or all(map(single_holds, blocks)) else np.float64


def are_codes(low: Array, high: Array) -> Array:
    """(input,) which integer columns hold codes, by the least and the greatest value of each; see `LARGEST_CODE`."""
    return np.asarray((low >= -LARGEST_CODE) & (high <= LARGEST_CODE))
