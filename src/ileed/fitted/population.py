"""Very many people: their order and intervals by the distribution of all, in time and memory linear in people.

Among few people ranks come from joint draws, and every pair is compared. Among thousands the mean over people and the
share of people above a value hardly vary, so both are taken as known: a rank is the value's place among all.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ileed._torch import product
from ileed.demonstrations import Array
from ileed.fitted.posterior import INSIDE, mean_and_interval, points_of

KEPT_POINTS = 200
"""Of the grid of expertise at which posterior distributions of very many people are kept: one for each five."""
_PAIRS = 50_000_000  # compared to tell one group from all below; a boundary that takes more is not looked for
_ROWS = 4096


def thinned(shares: Array) -> Array:
    """(person, point) shares at `KEPT_POINTS` points: sums over parts of the grid."""
    return np.asarray(shares.reshape(len(shares), KEPT_POINTS, -1).sum(-1))


def on_whole_grid(shares: Array) -> Array:
    """(..., point) shares at the inner points of the grid, each kept one spread evenly over its part."""
    parts = len(INSIDE) // shares.shape[-1]
    return shares if parts == 1 else np.repeat(shares / parts, parts, axis=-1)


class Placed(NamedTuple):
    """Everybody's expertise and rank, 1 for the best, with the ends of their intervals."""

    expertise: Array
    low: Array
    high: Array
    rank_low: Array
    rank_high: Array


def placed(shares: Array, level: float, *, relative: bool, reference: float | None) -> Placed:
    """Each person's place among all; with `relative` expertise is divided by its mean over people, or `reference`."""
    points, people = points_of(shares.shape[1]), len(shares)
    own, low, high = mean_and_interval(shares, level)
    of_all = shares.mean(0)
    below = np.cumsum(of_all) - of_all / 2
    best, worst = (
        1 + np.rint((people - 1) * (1 - np.interp(end, points, below))).astype(np.int64) for end in (high, low)
    )
    divisor = (own.mean() if reference is None else reference) if relative else 1.0
    return Placed(own / divisor, low / divisor, high / divisor, best, worst)


def apart_from_mean(shares: Array, probability: float) -> str:
    """How many people are above the mean over people, and how many below it, in words."""
    points = points_of(shares.shape[1])
    own = shares[:, points > product(shares, points).mean()].sum(1)
    above_it, below_it = int((own >= probability).sum()), int((own <= 1 - probability).sum())
    who = f"{above_it:,} of {len(shares):,} demonstrators are above the mean over people and {below_it:,} below it"
    return f"{who}, each with probability {probability:.2f} or more"


def above(first: Array, second: Array) -> Array:
    """(person, other) the probability that one's expertise is above the other's, from their shares."""
    return product(first, (np.cumsum(second, axis=1) - second / 2).T)


def boundaries(shares: Array, probability: float) -> tuple[Array, Array]:
    """People by falling expertise, and after each but the last the least probability that one before is better.

    It is never above the probability that neighbours in this order have, so that all pairs are compared only where
    that reaches `probability`; elsewhere the neighbours' is given, and 0 where all would be too many pairs.
    """
    order = np.argsort(-product(shares, points_of(shares.shape[1])), kind="stable")
    ordered = shares[order]
    before, after = ordered[:-1], ordered[1:]
    least = np.concatenate(
        [
            (before[part] * (np.cumsum(after[part], axis=1) - after[part] / 2)).sum(1)
            for part in (slice(first, first + _ROWS) for first in range(0, len(before), _ROWS))
        ]
    )
    for place in np.flatnonzero(least >= probability):
        better, worse = ordered[: place + 1], ordered[place + 1 :]
        few = min(len(better), len(worse))
        least[place] = 0.0 if few * len(ordered) > _PAIRS else _least_above(better, worse)
    return order, least


def places_to_show(uncertainty: Array, *, ends: int, between: int) -> list[int]:
    """Places in a ranking: the first and the last so many, and between them so many of the most uncertain; or all."""
    people = len(uncertainty)
    if people <= 2 * ends + between:
        return list(range(people))
    widest = np.argsort(-uncertainty[ends : people - ends], kind="stable")[:between] + ends
    return [*range(ends), *sorted(widest.tolist()), *range(people - ends, people)]


def _least_above(better: Array, worse: Array) -> float:
    """The least probability over all pairs, in blocks of rows."""
    parts = [slice(first, first + _ROWS) for first in range(0, max(len(better), len(worse)), _ROWS)]
    return min(float(above(better[one], worse[other]).min(initial=1.0)) for one in parts for other in parts)
