"""Rank correlation, to compare an order with a known one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["rank_correlation"]


def rank_correlation(one: npt.ArrayLike, other: npt.ArrayLike) -> float:
    """Spearman's rank correlation; equal values have their mean rank, and it is 0 where all values are equal.

    >>> rank_correlation([1, 4, 9], [0.1, 0.2, 0.3])
    1.0
    """
    ranks = [_ranks(column) for column in (one, other)]
    return float(np.corrcoef(ranks)[0, 1]) if all(np.ptp(each) for each in ranks) else 0.0


def _ranks(values: npt.ArrayLike) -> npt.NDArray[Any]:
    _, index, count = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(count) - (count - 1) / 2)[index])
