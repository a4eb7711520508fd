"""States of episodes: how typical they are, the clusters that they form, and the effect of a cluster on scores."""

from __future__ import annotations

from typing import NamedTuple, final

import numpy as np

from ileed._torch import numpy_stream, product
from ileed.data import Array, Demonstrations
from ileed.errors import SettingsError, whole_number
from ileed.rating.clustering import k_means
from ileed.rating.ranks import centred_ranks

_REFERENCES = 1_000  # steps with which all others are compared, so that the work is linear in steps
_ROWS_AT_ONCE = 8_192
USUAL_KINDS = 8
_MOST_CLUSTERS = 16
_EPISODES_PER_CLUSTER = 5
_MOST_STRATA = 8
_UNITS_PER_STRATUM = 10
_ENOUGH_STEPS = 10_000  # from which the centres of state clusters are computed
_PRIOR_STEPS = 50  # by which the effect of a state cluster shrinks towards none
_FOLDS = 5


def typicality(data: Demonstrations, observations: Array, *, seed: int) -> Array:
    """(step,) the share of all steps whose states are less typical, from 0 to 1; equal ones count half.

    If most observations repeat, a state is typical if many steps of other episodes have the same. Otherwise it is
    typical if it is near a random sample of steps of other episodes, by `observations` (input, step), normalised.
    """
    counts = data.collapsed()
    if counts.unique_count <= len(data) / 2:
        unique = counts.some.step_observation_index
        together = np.unique(unique * data.episode_count + data.episode, return_inverse=True)[1]
        return percentiles(np.bincount(unique)[unique] - np.bincount(together)[together])
    return percentiles(-_distance_to_others(observations.T, data.episode, seed))


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


def percentiles(values: Array) -> Array:
    """The share of all values below each value, where equal ones count half."""
    return np.asarray((centred_ranks(values) + len(values) / 2) / len(values))


class Kinds(NamedTuple):
    """Kinds of state, and the units (episodes or segments) that contain them."""

    names: tuple[str, ...]
    held: Array
    """(unit, kind) whether a unit counts for a kind."""
    words: str
    """What a kind is, for sentences."""


def kinds_of(data: Demonstrations, inputs: Array, unit: Array, kinds: int | str | None, *, seed: int) -> Kinds:
    """Kinds of state: the labels of a skill column, or clusters of units by their mean observation.

    Args:
        data: The steps.
        inputs: (input, step) normalised observations.
        unit: (step,) the episode or segment of each step. It counts for every label of its steps, or for one cluster.
        kinds: The name of a skill column, or the number of clusters; None is 8.
        seed: That of the clustering.
    """
    steps = np.bincount(unit)
    if isinstance(kinds, str):
        weights, names = data.skill(kinds)
        held = np.zeros((len(steps), len(names)), dtype=bool)
        held[unit, weights.argmax(1)] = True
        return Kinds(names, held, f"label of {kinds}")
    if not len(inputs):
        raise SettingsError("no input varies, so there are no kinds of state: leave out at_least", code="no-inputs")
    rule = "pass the name of a skill column, or a number of clusters, one or more"
    count = USUAL_KINDS if kinds is None else whole_number("kinds", kinds, least=1, rule=rule)
    mean = np.stack([np.bincount(unit, row) / steps for row in inputs], axis=1)
    number = k_means(mean, min(count, len(mean)), seed=seed).of_row
    held = np.eye(number.max() + 1, dtype=bool)[number]
    return Kinds(tuple(f"cluster {place + 1}" for place in range(held.shape[1])), held, "cluster by mean observation")


def cluster_steps(data: Demonstrations, inputs: Array, *, seed: int) -> Array:
    """(step,) the state cluster of each step, by (input, step) inputs: one per five episodes, at most 16."""
    count = min(_MOST_CLUSTERS, max(1, data.episode_count // _EPISODES_PER_CLUSTER))
    if count == 1 or not len(inputs):
        return np.zeros(len(data), dtype=np.int64)
    sample = np.arange(len(data))
    if len(data) > _ENOUGH_STEPS:
        sample = np.sort(numpy_stream(seed, "sample of states").choice(len(data), _ENOUGH_STEPS, replace=False))
    rows = np.asarray(inputs[:, sample].T, dtype=np.float64)
    return k_means(rows, count, seed=seed).nearest(inputs.T)


def strata_of(inputs: Array, unit: Array, *, seed: int) -> Array:
    """(unit,) the stratum of each unit: its cluster by the state in which it begins.

    Demonstrators seldom choose where an episode begins, so strata do not separate demonstrators.
    """
    begins = np.flatnonzero(np.append(True, np.diff(unit) != 0))
    count = min(_MOST_STRATA, len(begins) // _UNITS_PER_STRATUM)
    if count < 2 or not len(inputs):
        return np.zeros(len(begins), dtype=np.int64)
    rows = np.asarray(inputs[:, begins].T, dtype=np.float64)
    return k_means(rows, count, seed=seed).of_row


class StateEffects(NamedTuple):
    """The effect of state clusters on a quantity of steps, each estimated by the other folds of episodes.

    Steps in a cluster are compared with other steps of the same demonstrators (indirect standardisation): with S_ic the
    sum over the n_ic steps of demonstrator i in cluster c, the expected sum is E_c = sum over i of n_ic S_i / n_i. A
    cluster that only a poor demonstrator visits is therefore not taken for a difficult one.
    """

    sums: Array
    """(demonstrator, cluster, fold, number)."""
    counts: Array
    """(demonstrator, cluster, fold)."""

    def additive(self) -> Array:
        """(cluster, fold, number) observed minus expected mean, shrunk towards zero."""
        observed, expected, count = self._standardised()
        return np.asarray((observed - expected) / (count + _PRIOR_STEPS)[..., None])

    def ratio(self) -> Array:
        """(cluster, fold, number) observed divided by expected sum, shrunk towards one."""
        observed, expected, count = self._standardised()
        mean = observed.sum(0) / np.maximum(count.sum(0), 1)[..., None]
        prior = _PRIOR_STEPS * np.maximum(mean, 1e-12)
        return np.asarray((observed + prior) / (expected + prior))

    def _standardised(self) -> tuple[Array, Array, Array]:
        sums = self.sums.sum(2, keepdims=True) - self.sums
        counts = self.counts.sum(2, keepdims=True) - self.counts
        mean = sums.sum(1) / np.maximum(counts.sum(1), 1)[..., None]
        return sums.sum(0), (counts[..., None] * mean[:, None]).sum(0), counts.sum(0)


@final
class StateGroups:
    """Steps by demonstrator, state cluster and fold of their episode."""

    def __init__(self, data: Demonstrations, cluster: Array) -> None:
        self._shape = len(data.names), int(cluster.max()) + 1, _FOLDS
        self.cluster, self.fold = cluster, folds_of_episodes(data, _FOLDS)[data.episode]
        self.index = np.ravel_multi_index((data.demonstrator, cluster, self.fold), self._shape)

    @property
    def size(self) -> int:
        return int(np.prod(self._shape))

    def effects(self, sums: Array) -> StateEffects:
        """From (group, number) sums."""
        counts = np.bincount(self.index, minlength=self.size)
        return StateEffects(sums.reshape(*self._shape, -1), counts.reshape(self._shape))

    def effects_of(self, values: Array) -> StateEffects:
        """From (step,) values."""
        return self.effects(np.bincount(self.index, values, self.size)[:, None])


def folds_of_episodes(data: Demonstrations, count: int, *, seed: int | None = None) -> Array:
    """(episode,) the fold of each: the episodes of each demonstrator are dealt in turn, shuffled if a seed is given."""
    order = np.arange(data.episode_count)
    if seed is not None:
        order = numpy_stream(seed, "folds of curation").permutation(data.episode_count)
    order = order[np.argsort(data.episode_demonstrator[order], kind="stable")]
    fold = np.empty(data.episode_count, dtype=np.int64)
    fold[order] = np.arange(data.episode_count) % count
    return fold
