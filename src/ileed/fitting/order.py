"""The order in which steps are drawn: all of them once per epoch, in an order drawn for that epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import numpy as np
import torch

from ileed._torch import numpy_stream, stream
from ileed.data import Array

_DRAWN_AT_ONCE = 1 << 24  # steps of an epoch, up to which its permutation is drawn; beyond, it is computed in parts
_COMPUTED_AT_ONCE = 1 << 14  # steps in such a part, which serves many batches
_ROUNDS = 6


@final
class Order:
    """An endless sequence of the steps of some episodes: each step once per epoch, in an order drawn for that epoch.

    The order of a long epoch is computed on demand, without memory for the whole permutation.
    """

    def __init__(self, bounds: Array, chosen: Array, *, seed: int) -> None:
        self._episodes = np.flatnonzero(chosen)
        self._bounds, self._ends = bounds, np.cumsum(np.diff(bounds)[self._episodes])
        self.length, self._seed = int(self._ends[-1]), seed
        self._kept: dict[int, Array] = {}

    def taken(self, first: int, count: int) -> Array:
        """`count` consecutive steps of the sequence."""
        epochs = range(first // self.length, (first + count - 1) // self.length + 1)
        parts = []
        for epoch in epochs:
            low, high = max(first, epoch * self.length), min(first + count, (epoch + 1) * self.length)
            low, high = (place - epoch * self.length for place in (low, high))
            if self.length <= _DRAWN_AT_ONCE:
                parts.append(_keep_two(self._kept, epoch, self._drawn)[low:high])
            else:
                parts.append(self._computed(np.arange(low, high), epoch))
        return self.steps(parts[0] if len(parts) == 1 else np.concatenate(parts))

    def _drawn(self, epoch: int) -> Array:
        found: Array = torch.randperm(self.length, generator=stream(self._seed, "order", epoch)).numpy()
        return found

    def _computed(self, place: Array, epoch: int) -> Array:
        """The permutation of an epoch at consecutive places, computed for many batches at a time."""
        per_epoch = -(-self.length // _COMPUTED_AT_ONCE)
        first, last = (int(place[end]) // _COMPUTED_AT_ONCE for end in (0, -1))

        def part(number: int) -> Array:
            start = number % per_epoch * _COMPUTED_AT_ONCE
            places = np.arange(start, min(start + _COMPUTED_AT_ONCE, self.length))
            return permuted(places, self.length, seed=self._seed, epoch=epoch)

        numbers = range(epoch * per_epoch + first, epoch * per_epoch + last + 1)
        found = np.concatenate([_keep_two(self._kept, number, part) for number in numbers])
        return np.asarray(found[place - first * _COMPUTED_AT_ONCE])

    def steps(self, place: Array) -> Array:
        """The steps at these places of the concatenated episodes."""
        if len(self._episodes) == len(self._bounds) - 1:
            return place
        number = np.searchsorted(self._ends, place, side="right")
        steps: Array = self._bounds[self._episodes[number] + 1] - (self._ends[number] - place)
        return steps


def _keep_two(kept: dict[int, Array], number: int, draw: Callable[[int], Array]) -> Array:
    """What `draw` returns for a number, cached for two numbers; unlike `lru_cache`, a dictionary can be pickled."""
    if number not in kept:
        for other in [*kept][:-1]:
            del kept[other]
        kept[number] = draw(number)
    return kept[number]


def permuted(place: Array, length: int, *, seed: int, epoch: int) -> Array:
    """A random permutation of 0, ..., length - 1, evaluated at some places only.

    A Feistel network permutes all numbers with as many bits as `length - 1`; it is applied again to numbers outside
    the range until they are inside (cycle walking: Black and Rogaway, 2002), less than twice on average.
    """
    bits = max(2, (length - 1).bit_length())
    low_bits, mask = bits // 2, np.uint64((1 << (bits // 2)) - 1)
    high_mask = np.uint64((1 << (bits - low_bits)) - 1)
    keys = numpy_stream(seed, "order", epoch).integers(0, 2**63, size=_ROUNDS, dtype=np.uint64)
    found, outside = place.astype(np.uint64), np.arange(len(place))
    while len(outside):
        value = found[outside]
        low, high = value & mask, value >> np.uint64(low_bits)
        for number, key in enumerate(keys):
            if number % 2:
                low ^= _mixed(high, key) & mask
            else:
                high ^= _mixed(low, key) & high_mask
        found[outside] = (high << np.uint64(low_bits)) | low
        outside = outside[found[outside] >= length]
    return found.astype(np.int64)


def _mixed(value: Array, key: np.uint64) -> Array:
    """A hash of 64 bits (the finaliser of splitmix64)."""
    mixed = (value + key) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: Array = mixed ^ (mixed >> np.uint64(31))
    return found
