"""States of episodes: how typical each step's is, and of which kinds an episode's are."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ileed._torch import numpy_stream, product
from ileed.checking import whole_number
from ileed.demonstrations import Array, Collapsed, Demonstrations
from ileed.errors import SettingsError

_REFERENCES = 1_000  # steps that others are compared with, so that the work is linear in steps
_ROWS_AT_ONCE = 8_192
_ITERATIONS = 50
USUAL_KINDS = 8


def typicality(data: Demonstrations, observations: Array, *, seed: int) -> Array:
    """(step,) the share of all steps whose states are less typical, from 0 to 1; equal ones count half.

    Where most observations are repeated, a state is the more typical the more steps of other episodes have the same.
    Elsewhere it is the nearer to a random sample of steps of other episodes, in the units of the fit's inputs;
    `observations` are (input, step).
    """
    counts = data.collapse()
    if isinstance(counts, Collapsed) and counts.unique_count <= len(data) / 2:
        unique = counts.step_observation_index
        together = np.unique(unique * data.episode_count + data.episode, return_inverse=True)[1]
        return _percentile(np.bincount(unique)[unique] - np.bincount(together)[together])
    return _percentile(-_distance_to_others(observations.T, data.episode, seed))


def _distance_to_others(rows: Array, episode: Array, seed: int) -> Array:
    """(step,) squared distance to the nearest of a random sample of steps of other episodes."""
    count = min(len(rows), _REFERENCES)
    sample = np.sort(numpy_stream(seed, "typicality").choice(len(rows), count, replace=False))
    others, owner = rows[sample], episode[sample]
    nearest = np.empty(len(rows))
    for first in range(0, len(rows), _ROWS_AT_ONCE):
        part = slice(first, first + _ROWS_AT_ONCE)
        apart = (others**2).sum(1) - 2 * product(rows[part], others.T)
        apart[owner == episode[part, None]] = np.inf
        nearest[part] = apart.min(1) + (rows[part] ** 2).sum(1)
    return nearest


def _percentile(values: Array) -> Array:
    """The share of all values that are below each, with half of those that are equal to it."""
    _, index, count = np.unique(values, return_inverse=True, return_counts=True)
    return ((np.cumsum(count) - count / 2) / len(values))[index]


class Kinds(NamedTuple):
    """Kinds of state, and which units, episodes or stretches, hold which."""

    names: tuple[str, ...]
    held: Array
    """(unit, kind) whether a unit counts for a kind."""
    words: str
    """What a kind is."""


def kinds_of(data: Demonstrations, inputs: Array, unit: Array, kinds: int | str | None, *, seed: int) -> Kinds:
    """The labels of a skill column; or clusters of units, so many, by their mean observation.

    `unit` is the episode or stretch of each step, and `inputs` are (input, step). A unit counts for every label that
    one of its steps has, and for one cluster.
    """
    steps = np.bincount(unit)
    if isinstance(kinds, str):
        weights, names = data.skill(kinds)
        held = np.zeros((len(steps), len(names)), dtype=bool)
        held[unit, weights.argmax(1)] = True
        return Kinds(names, held, f"label of {kinds}")
    if not len(inputs):
        raise SettingsError("no input varies, so that there are no kinds of state: leave out at_least")
    rule = "pass the name of a skill column, or a number of clusters, one or more"
    count = USUAL_KINDS if kinds is None else whole_number("kinds", kinds, least=1, rule=rule)
    mean = np.stack([np.bincount(unit, row) / steps for row in inputs], axis=1)
    number = np.unique(k_means(mean, min(count, len(mean)), seed=seed), return_inverse=True)[1]
    held = np.eye(number.max() + 1, dtype=bool)[number]
    return Kinds(tuple(f"cluster {place + 1}" for place in range(held.shape[1])), held, "cluster by mean observation")


def k_means(rows: Array, count: int, *, seed: int) -> Array:
    """(row,) the cluster of each row: k-means by Lloyd's iterations, begun at rows far apart (k-means++)."""
    chance = numpy_stream(seed, "kinds of state")
    centres = rows[[chance.integers(len(rows))]]
    while len(centres) < count:
        apart = _squared_distances(rows, centres).min(1)
        if apart.sum() <= 0:
            break  # fewer distinct rows than clusters
        centres = np.concatenate([centres, rows[[chance.choice(len(rows), p=apart / apart.sum())]]])
    cluster = np.zeros(len(rows), dtype=np.int64)
    for _ in range(_ITERATIONS):
        before, cluster = cluster, _squared_distances(rows, centres).argmin(1)
        sizes = np.bincount(cluster, minlength=len(centres))
        for number in np.flatnonzero(sizes):
            centres[number] = rows[cluster == number].mean(0)
        if (before == cluster).all():
            break
    return cluster


def _squared_distances(rows: Array, centres: Array) -> Array:
    apart = (rows**2).sum(1)[:, None] - 2 * product(rows, centres.T) + (centres**2).sum(1)
    return np.maximum(apart, 0)
