"""Tables that grow as data are read block by block: of distinct rows, and of how often each key was seen."""

from __future__ import annotations

from typing import final

import numpy as np
import numpy.typing as npt

from ileed.demonstrations.collapsing import distinct_rows
from ileed.demonstrations.rules import Array

_MERGED_AT_ONCE = 1 << 18  # counts: about as many as a cache holds


@final
class UniqueRows:
    """Distinct rows of a floating-point type in the order of their first appearance, found by a hash, compared exactly.

    Hashes stand sorted, in as many buckets as there are rows or more, so that a row is found in a step or two.
    """

    def __init__(self, width: int, dtype: npt.DTypeLike = np.float32) -> None:
        self._dtype = np.dtype(dtype)
        width *= self._dtype.itemsize // 4
        self._rows, self._count = np.empty((1_024, width), dtype=np.uint32), 0
        self._multiplier = np.random.default_rng(0).integers(1, 2**63, size=(2, max(1, width)), dtype=np.uint64) * 2 + 1
        self._alike: dict[bytes, int] = {}  # rows whose hash another row has
        self._repeat = True
        self._index(np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64))

    def __len__(self) -> int:
        return self._count

    @property
    def rows(self) -> Array:
        return self._rows[: self._count].view(self._dtype)

    def numbers(self, rows: Array) -> Array:
        """(row,) which distinct row each one is; where those of the last block repeated, equal ones are sought once."""
        if not self._repeat:
            return self._numbers(rows)
        first, kind = distinct_rows(rows)
        self._repeat = 2 * len(first) < len(rows)
        return self._numbers(rows[first])[kind]

    def _numbers(self, rows: Array) -> Array:
        words = np.ascontiguousarray(rows).view(np.uint32).reshape(len(rows), self._rows.shape[1])
        hashes = self._hashes(words)
        place = self._places(hashes)
        number = self._number[place]
        if len(new := np.flatnonzero(self._sorted[place] != hashes)):
            found, first, inverse = np.unique(hashes[new], return_index=True, return_inverse=True)
            order = np.argsort(np.argsort(first))
            self._append(words[new[np.sort(first)]])
            own = self._count - len(found) + order
            number[new] = own[inverse]
            at = np.searchsorted(self._sorted[:-1], found)
            self._index(np.insert(self._sorted[:-1], at, found), np.insert(self._number[:-1], at, own))
        for row in np.flatnonzero((self._rows[number] != words).any(axis=1)).tolist():  # two rows have one hash
            content = words[row].tobytes()
            if content not in self._alike:
                self._append(words[row : row + 1])
                self._alike[content] = self._count - 1
            number[row] = self._alike[content]
        return number

    def _hashes(self, words: Array) -> Array:
        """(row,) 64 bits: the upper halves of two sums of products with random odd numbers (multilinear hashing)."""
        wide = words.astype(np.uint64)
        one, other = (wide @ each[: words.shape[1]] for each in self._multiplier)
        found: Array = (one & np.uint64(0xFFFFFFFF00000000)) | (other >> np.uint64(32))
        return found

    def _places(self, hashes: Array) -> Array:
        """Where each hash stands among the sorted, or the first that is greater."""
        place = self._start[(hashes >> self._shift).astype(np.int64)]
        behind = np.flatnonzero(self._sorted[place] < hashes)
        while len(behind):
            place[behind] += 1
            behind = behind[self._sorted[place[behind]] < hashes[behind]]
        return place

    def _index(self, hashes: Array, number: Array) -> None:
        last = np.uint64(2**64 - 1)  # no hash is greater
        self._sorted, self._number = np.append(hashes, last), np.append(number, -1 if not self._count else 0)
        bits = max(1, len(hashes).bit_length())
        self._shift = np.uint64(64 - bits)
        self._start = np.searchsorted(hashes, np.arange(2**bits, dtype=np.uint64) << self._shift)

    def _append(self, rows: Array) -> None:
        if self._count + len(rows) > len(self._rows):
            grown = np.empty((2 * (self._count + len(rows)), self._rows.shape[1]), dtype=np.uint32)
            grown[: self._count] = self._rows[: self._count]
            self._rows = grown
        self._rows[self._count : self._count + len(rows)] = rows
        self._count += len(rows)


@final
class Counts:
    """How often each key was seen: the keys of blocks, merged when they have become as many as those before."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._parts: list[Array] = []  # (2, key) each: distinct keys, sorted, and how often each was seen
        self._pending = self._settled = 0

    def add(self, keys: Array) -> bool:
        """Count keys; false where there are more distinct ones than there may be."""
        self._parts.append(np.stack(np.unique(keys, return_counts=True)))
        self._pending += self._parts[-1].shape[1]
        if self._pending > max(2 * self._settled, 1 << 20):
            self.merged()
        return self._settled <= self._most

    def merged(self) -> tuple[Array, Array]:
        """The distinct keys, sorted, and how often each was seen; merged by ranges of keys that a cache holds."""
        longest = max((keys for keys, _ in self._parts), key=len)
        ranges = 1 + sum(part.shape[1] for part in self._parts) // _MERGED_AT_ONCE
        bounds = longest[np.linspace(0, len(longest), ranges, endpoint=False).astype(np.int64)[1:]]
        pieces = [np.split(part, np.searchsorted(part[0], bounds), axis=1) for part in self._parts]
        whole = np.concatenate([_merged(np.concatenate(each, axis=1)) for each in zip(*pieces, strict=True)], axis=1)
        self._parts, self._pending, self._settled = [whole], whole.shape[1], whole.shape[1]
        return whole[0], whole[1]


def _merged(parts: Array) -> Array:
    """The distinct keys of sorted stretches, sorted, and how often each was seen; (2, key) like what it is made of."""
    order = np.argsort(parts[0], kind="stable")  # which merges what is sorted already
    keys, counts = parts[:, order]
    first = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: len(keys)])
    return np.stack([keys[first], np.add.reduceat(counts, first) if len(first) else counts])
