"""Ranks, in which equal values share the mean of their ranks, and Spearman's rank correlation."""

from __future__ import annotations

from math import isnan, nan

import numpy as np
import numpy.typing as npt

__all__ = ["centred_ranks", "orders_alike", "rank_correlation", "rank_correlations", "rank_correlations_of_each"]

_Floats = npt.NDArray[np.float64]
_ALIKE = 0.9
_AT_ONCE = 1 << 21  # ranks of resamples that are in memory at once


def rank_correlation(first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    """Spearman's rank correlation; equal values share the mean of their ranks.

    NaN where all values of either argument are equal, because a constant has no order. Comparisons with NaN are false.

    >>> rank_correlation([1, 4, 9], [0.3, 0.2, 0.1])
    -1.0
    """
    one, other = (centred_ranks(each) for each in (first, second))
    scale = np.sqrt((one**2).sum() * (other**2).sum())
    return float(np.clip((one * other).sum() / scale, -1, 1)) if scale > 0 else nan


def orders_alike(first: npt.ArrayLike, second: npt.ArrayLike) -> bool:
    """Whether two fits order demonstrators alike: a rank correlation of 0.9 or more, or no order in either."""
    correlation = rank_correlation(first, second)
    if isnan(correlation):
        return not centred_ranks(first).any() and not centred_ranks(second).any()
    return correlation >= _ALIKE


def rank_correlations(values: npt.ArrayLike, counts: npt.ArrayLike) -> _Floats:
    """(resample, column, column) rank correlations of (column, row) values; NaN where a column is constant.

    `counts` (resample, row) is how often each resample contains each row.
    """
    columns, given = np.asarray(values), np.asarray(counts)
    at_once, found = max(1, _AT_ONCE // max(1, columns.size)), []
    for first in range(0, len(given), at_once):
        part = given[first : first + at_once]
        ranks = np.stack([centred_ranks(column, part) for column in columns], axis=1)
        found.append(_normalise(np.einsum("rin,rjn->rij", part[:, None, :] * ranks, ranks)))
    return np.concatenate(found)


def rank_correlations_of_each(samples: npt.ArrayLike) -> _Floats:
    """(sample, column, column) rank correlations of (sample, column, row) values; NaN where a column is constant."""
    values = np.asarray(samples)
    _, order = np.unique(values, return_inverse=True)
    order = order.reshape(values.shape)
    # ranked together, with the sample and the column before the value, so that each has consecutive ranks
    first = (order.max(initial=0) + 1) * np.arange(len(values) * values.shape[1]).reshape(*values.shape[:2], 1)
    ranks = centred_ranks((first + order).ravel()).reshape(values.shape)
    ranks -= ranks.mean(axis=-1, keepdims=True)
    return _normalise(np.einsum("rin,rjn->rij", ranks, ranks))


def _normalise(products: _Floats) -> _Floats:
    sizes = np.sqrt(np.einsum("rii->ri", products))
    sizes[sizes == 0] = nan
    return np.clip(products / (sizes[:, :, None] * sizes[:, None, :]), -1, 1)


def centred_ranks(values: npt.ArrayLike, counts: npt.ArrayLike | None = None) -> _Floats:
    """The rank of each value minus the mean rank; equal values share the mean of their ranks.

    With `counts` (..., row), the ranks in resamples that contain each row that often; of the same shape.
    """
    _, index, number = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    if counts is None:
        return np.asarray((np.cumsum(number) - (number + len(index)) / 2)[index])
    given = np.asarray(counts)
    ordered = given[..., np.argsort(index, kind="stable")]
    totals = np.add.reduceat(ordered, np.cumsum(number) - number, axis=-1)
    size = given.sum(axis=-1, keepdims=True)
    return np.asarray((np.cumsum(totals, axis=-1) - (totals + size) / 2)[..., index])
