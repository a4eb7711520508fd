"""State clusters: k-means of observations."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ileed._torch import numpy_stream, product
from ileed.data import Array

_ITERATIONS = 50
_ROWS_AT_ONCE = 8_192


class Clusters(NamedTuple):
    """Clusters of rows, none of which is empty."""

    of_row: Array
    centres: Array
    """(cluster, feature)."""

    def distances(self, rows: Array) -> Array:
        """(row, cluster) squared distances to the centres."""
        return _squared_distances(rows, self.centres)

    def nearest(self, rows: Array) -> Array:
        """(row,) the cluster whose centre is nearest."""
        parts = (rows[first : first + _ROWS_AT_ONCE] for first in range(0, len(rows), _ROWS_AT_ONCE))
        return np.concatenate([self.distances(part).argmin(1) for part in parts])


def k_means(rows: Array, count: int, *, seed: int, starts: int = 1) -> Clusters:
    """Cluster rows by Lloyd's algorithm from k-means++ centres, and return the best of some starts.

    Fewer distinct rows than `count` give as many clusters as there are distinct rows.
    """
    random = numpy_stream(seed, "kinds of state")
    found = [_one_start(rows, count, random) for _ in range(starts)]
    return min(found, key=lambda clusters: float(((rows - clusters.centres[clusters.of_row]) ** 2).sum()))


def _one_start(rows: Array, count: int, random: np.random.Generator) -> Clusters:
    centres = rows[[random.integers(len(rows))]]
    while len(centres) < count:
        apart = _squared_distances(rows, centres).min(1)
        if apart.sum() <= 0:
            break
        centres = np.concatenate([centres, rows[[random.choice(len(rows), p=apart / apart.sum())]]])
    cluster = np.zeros(len(rows), dtype=np.int64)
    for _ in range(_ITERATIONS):
        before, cluster = cluster, _squared_distances(rows, centres).argmin(1)
        for number in np.unique(cluster):
            centres[number] = rows[cluster == number].mean(0)
        if (before == cluster).all():
            break
    kept, of_row = np.unique(cluster, return_inverse=True)
    return Clusters(of_row, centres[kept])


def _squared_distances(rows: Array, centres: Array) -> Array:
    apart = (rows**2).sum(1)[:, None] - 2 * product(rows, centres.T) + (centres**2).sum(1)
    return np.maximum(apart, 0)
