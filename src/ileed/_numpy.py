"""Wrappers around numpy: default error handling, types that torch can read, and random streams."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt


@contextmanager
def default_errors() -> Iterator[None]:
    """Handle floating-point errors as numpy does by default, whatever the caller has set; usable as a decorator.

    Underflow is harmless here (a likelihood that is zero in double precision) and never raises an exception.
    """
    with np.errstate(divide="warn", over="warn", under="ignore", invalid="warn"):
        yield


def native(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array in native byte order; float16 becomes float32 and long double becomes float64 (or infinite)."""
    if array.dtype.kind == "f" and array.dtype.itemsize not in (4, 8):
        with np.errstate(over="ignore"):
            return array.astype(np.float32 if array.dtype.itemsize < 4 else np.float64)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def stream_key(seed: int, *purpose: object) -> int:
    """A seed of 63 bits for the random stream with this purpose."""
    digest = hashlib.blake2b(repr((seed, *purpose)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def random_stream(seed: int, *purpose: object) -> np.random.Generator:
    """`ileed._torch.stream` for modules that do not import torch; its numbers differ from `numpy_stream`."""
    return np.random.default_rng(stream_key(seed, *purpose))
