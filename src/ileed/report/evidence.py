"""What a report shows about demonstrators, state clusters and episodes.

Demonstrators come from the fit. State clusters and episodes need the data: the log-likelihood of each episode's steps
in each state cluster is computed once, and its sums rate demonstrators, clusters and episodes.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from string import ascii_uppercase
from typing import NamedTuple, final

import numpy as np

from ileed._torch import product
from ileed.data import Array, Demonstrations
from ileed.data.rules import listed
from ileed.errors import DemonstrationError, SettingsError, brief, is_finite, printable
from ileed.methods import Fitted
from ileed.methods.policy import as_tensor
from ileed.rating.clustering import k_means
from ileed.rating.posterior import Estimates, Population, mean_and_interval, posterior
from ileed.rating.ratings import places_to_show
from ileed.rating.step_likelihood import StepLikelihood
from ileed.report.page import short

SHOWN = 25  # demonstrators shown at either end of the ranking
UNCERTAIN = 10  # demonstrators shown between the ends, those with the widest intervals
HALF = 0.5  # an episode may be left out if it is below this share of the top quartile with probability 0.975
ENOUGH_STEPS = 5  # of a demonstrator in a state cluster, to be shown there
_BLOCK = 10  # steps per block, to estimate the autocorrelation within an episode
_STEPS, _EPISODES = 60_000, 3_000  # larger data are sampled, evenly over demonstrators
_CLUSTERS, _LABELS = 6, 12  # the largest numbers of clusters and of labels of a column
_STARTS, _ROWS = 4, 20_000  # of k-means: random starts, and the largest number of steps that it clusters
_FEW_VALUES = 12  # a feature with at most this many values is described by its value; others are continuous
_APART = 0.5  # standard deviations from the mean of all steps, from which a feature distinguishes a cluster
_DRAWN = 6  # episodes that are drawn step by step
_LONG = 10  # the least number of steps of an episode that is drawn
_WINDOW = (5, 25)  # the least and the largest number of steps over which expertise along an episode is estimated
_LARGEST = 256  # pixels of the longer side of a frame

Interval = tuple[float, float, float]
"""An estimate and both ends of its interval."""


@final
@dataclass(frozen=True)
class Demonstrator:
    """A demonstrator of a fit, with a unique printable label.

    `estimate` is relative expertise with its 95% interval. Without ratings it is the fit's own expertise, with the
    range of the middle 80% of the demonstrator's steps.
    """

    index: int
    rank: int
    label: str
    own: float
    """The fit's own expertise; NaN if the fit learned from no step of the demonstrator."""
    estimate: Interval
    known: float | None = None
    ranks: tuple[int, int] | None = None
    group: int | None = None
    """The number of the group within which demonstrators cannot be distinguished; None without ratings."""
    steps: int | None = None
    episodes: int | None = None

    @property
    def name(self) -> str:
        """The label, shortened for sentences."""
        return short(self.label)

    @property
    def is_ranked(self) -> bool:
        return not math.isnan(self.own)

    @property
    def is_rated(self) -> bool:
        return self.group is not None


def demonstrators_of(
    fitted: Fitted, truth: Mapping[str, float], data: Demonstrations | None = None
) -> list[Demonstrator]:
    """All demonstrators, best first by their ratings, or by the fit's own estimate; those without one come last."""
    names, summary, ratings = fitted.expertise.names, fitted.expertise.summary, fitted.expertise.ratings
    known_names = set(names)
    for name, value in truth.items():
        if name not in known_names:
            raise SettingsError(f"truth has {name!r}, who is not in this run: it has {names}")
        if not is_finite(value) or not 0 <= value <= 1:
            raise SettingsError(f"the known skill of {name!r} must be from 0 to 1, got {brief(value)}")
    rated, groups = {}, {}
    if fitted.estimates_expertise and ratings is not None:
        rows = zip((ratings.names[place] for place in ratings.order), ratings.table().to_pylist(), strict=True)
        rated = {name: row for name, row in rows if math.isfinite(row["expertise"])}
        groups = {name: number for number, group in enumerate(ratings.groups(), start=1) for name in group}
    counts = {name: (row["steps"], row["episodes"]) for name, row in rated.items()}
    if data is not None:
        episodes = np.bincount(data.episode_demonstrator, minlength=len(data.names)).tolist()
        counts = dict(zip(data.names, zip(data.steps_each.tolist(), episodes, strict=True), strict=True))
    own = summary.by_demonstrator.tolist()
    estimates: list[Interval] = list(
        zip(own, summary.quantiles[:, 2].tolist(), summary.quantiles[:, -3].tolist(), strict=True)
    )  # the 10% and 90% of 21 quantiles
    for index, name in enumerate(names):
        if name in rated:
            estimates[index] = rated[name]["expertise"], rated[name]["low"], rated[name]["high"]
    order = sorted(range(len(names)), key=lambda index: (math.isnan(own[index]), -estimates[index][0]))
    labels, found = labels_of(names), []
    for rank, index in enumerate(order, start=1):
        name = names[index]
        steps, episodes = counts.get(name, (None, None))
        ranks = (rated[name]["rank_low"], rated[name]["rank_high"]) if name in rated else None
        shown = (index, rank, labels[index], own[index], estimates[index])
        found.append(Demonstrator(*shown, truth.get(name), ranks, groups[name] if ranks else None, steps, episodes))
    return found


def shown_of(demonstrators: Sequence[Demonstrator]) -> list[int]:
    """Places of the demonstrators to show: all, or the first, the last and the most uncertain between them."""
    widths = np.array([each.estimate[2] - each.estimate[1] for each in demonstrators])
    return places_to_show(np.nan_to_num(widths, nan=-1.0), ends=SHOWN, between=UNCERTAIN)


def labels_of(names: Sequence[str]) -> list[str]:
    """Unique printable labels for names; names that print alike are numbered."""
    labels: dict[str, None] = {}
    for name in names:
        label = printable(name).strip()[:200] or "(no name)"
        candidates = chain([label], (f"{label} ({k})" for k in range(2, len(names) + 2)))
        labels[next(each for each in candidates if each not in labels)] = None
    return list(labels)


@final
@dataclass(frozen=True, eq=False)
class Clusters:
    """State clusters: the labels of a skill column, or clusters of observations named by their features."""

    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    examples: tuple[Sequence[tuple[int, int]], ...]
    """(episode, step within it) of states that are typical of each cluster."""
    of_step: Array
    column: str | None
    """The skill column whose labels they are."""

    def phrase(self, number: int) -> str:
        """A state cluster in a sentence."""
        if self.column is not None:
            return f"“{short(self.names[number])}”"
        return f"state cluster {self.names[number]} ({self.descriptions[number]})"


@final
@dataclass(frozen=True, eq=False)
class Evidence:
    """The data, or a sample of large data, and the log-likelihood of each unit: an episode's steps in a state cluster.

    The policy is the fit's own, which has seen these steps: demonstrators, episodes and state clusters are rated by it
    alike. Estimates are divided by their mean over demonstrators, as in the ranking.
    """

    fitted: Fitted
    data: Demonstrations
    numbers: Array
    """(episode,) the number of each episode in the whole data."""
    clusters: Clusters
    episode: Array
    """(unit,)"""
    cluster: Array
    """(unit,)"""
    log_likelihood: Array
    """(unit, point) at the points of expertise of `GRID`, in nats."""
    within: float
    """The overdispersion of steps within an episode."""
    likelihood: StepLikelihood
    by_demonstrator: Estimates
    reference: float
    """The mean expertise over demonstrators."""
    is_part: bool

    @classmethod
    def of(cls, fitted: Fitted, data: Demonstrations, shown: Sequence[str] = ()) -> Evidence | None:
        """The evidence, or None if the demonstrator model does not rate a demonstrator by one number.

        A sample of very many demonstrators has all episodes of those who are `shown`.
        """
        if not fitted.estimates_expertise or fitted.joint.parts.demonstrator.defines_expertise:
            return None
        part, numbers = _part(data, shown)
        try:
            likelihood = fitted.step_likelihood(part)
        except SettingsError:
            return None
        clusters = clusters_of(fitted, part)
        pairs, unit = np.unique(part.episode * len(clusters.names) + clusters.of_step, return_inverse=True)
        episode, cluster = np.divmod(pairs, len(clusters.names))
        found = likelihood.summed(unit, len(pairs))
        blocks, block = np.unique(np.stack([part.episode, _step_within(part) // _BLOCK]), axis=1, return_inverse=True)
        within = likelihood.dispersion_of(block.ravel(), blocks[0])
        own = _summed(found, part.episode_demonstrator[episode], len(part.names)) / likelihood.dispersion
        rated = mean_and_interval(posterior(own, None)[0], 0.95)
        reference = float(rated.expertise[np.unique(part.episode_demonstrator)].mean())
        rated, is_part = _divided(rated, reference), len(part) < len(data)
        return cls(
            fitted, part, numbers, clusters, episode, cluster, found, within, likelihood, rated, reference, is_part
        )

    def rate(self, owner: Array, count: int, *, spread: float | None = None) -> Estimates:
        """Expertise of `count` owners of units, by (unit,) the owner of each; -1 for none."""
        return self.rate_curves(_summed(self.log_likelihood, owner, count), None, spread=spread)[0]

    def rate_curves(
        self, log_likelihood: Array, population: Population | None, *, spread: float | None = None
    ) -> tuple[Estimates, Population]:
        """Expertise by log-likelihoods (row, point), shrunk towards a population, by default that of these rows.

        `spread` is the overdispersion of steps; by default that of demonstrators, whose episodes differ.
        """
        shares, population = posterior(log_likelihood / (spread or self.likelihood.dispersion), population)
        return _divided(mean_and_interval(shares, 0.95), self.reference), population

    def along(self, episodes: Array) -> list[Array]:
        """(step, point) log-likelihoods of the steps of some episodes."""
        chosen = np.isin(self.data.episode, episodes)
        found = self.likelihood.select(chosen).summed(np.cumsum(chosen) - 1, int(chosen.sum()))
        owner = self.data.episode[chosen]
        return [found[owner == episode] for episode in episodes]


def _summed(log_likelihood: Array, owner: Array, count: int) -> Array:
    summed = np.zeros((count, log_likelihood.shape[1]))
    np.add.at(summed, owner[owner >= 0], log_likelihood[owner >= 0])
    return summed


def _divided(found: Estimates, by: float) -> Estimates:
    return Estimates(*(each / by for each in found))


def estimate_of(found: Estimates, number: int) -> Interval:
    """One of several estimates."""
    value, low, high = (float(each[number]) for each in found)
    return value, low, high


def top_quarter(expertise: Array) -> float:
    """The mean of the top quartile, of one value at least."""
    return float(np.sort(expertise)[::-1][: max(1, len(expertise) // 4)].mean())


def _step_within(data: Demonstrations) -> Array:
    """(step,) the number of each step in its episode."""
    return np.asarray(np.arange(len(data)) - data.episode_bounds[:-1][data.episode])


def data_of_run(fitted: Fitted, data: Demonstrations) -> Demonstrations:
    """Data with the columns of a fit (`Policy.match`); demonstrators that are not in the fit are refused."""
    known = set(fitted.expertise.names)
    if strangers := [name for name in data.names if name not in known]:
        raise DemonstrationError(
            f"data have {strangers[0]!r}, who is not in this run, which has {listed(fitted.expertise.names)}: pass the "
            "data of the run",
            code="demonstrator-not-in-run",
        )
    return fitted.policy.match(data)


def _part(data: Demonstrations, shown: Sequence[str]) -> tuple[Demonstrations, Array]:
    """All episodes, or every k-th episode sorted by demonstrator, and their numbers.

    A sample of very many demonstrators also has all episodes of those who are shown; demonstrators without an episode
    in the sample are left out.
    """
    every = int(np.ceil(max(len(data) / _STEPS, data.episode_count / _EPISODES)))
    if every <= 1:
        return data, np.arange(data.episode_count)
    chosen = np.zeros(data.episode_count, dtype=bool)
    chosen[np.argsort(data.episode_demonstrator, kind="stable")[::every]] = True
    if not data.has_many_demonstrators:
        return data.select(chosen[data.episode]), np.flatnonzero(chosen)
    known = set(data.names)
    chosen |= np.isin(data.episode_demonstrator, [data.index_of(name) for name in shown if name in known])
    part = data.select(chosen[data.episode])
    present, demonstrator = np.unique(part.demonstrator, return_inverse=True)
    names = tuple(data.names[each] for each in present)
    return part.with_columns(names=names, demonstrator=demonstrator), np.flatnonzero(chosen)


def clusters_of(fitted: Fitted, data: Demonstrations) -> Clusters:
    """State clusters: labels of the fit's skill column, or of another column of the data; otherwise k-means."""
    own = fitted.joint.parts.expertise.skill_column
    for column in (own, *data.skills):
        if column is None or data.skills[column].ndim > 1:
            continue
        weights, names = data.skill(column)
        if 1 < len(names) <= _LABELS:
            label = weights.argmax(1)
            typical = [np.flatnonzero(label == each) for each in range(len(names))]
            middle = [steps[len(steps) // 4 :: max(1, len(steps) // 4)][:3] for steps in typical]
            descriptions = tuple(f"{short(column)} is {short(name)}" for name in names)
            return Clusters(names, descriptions, tuple(_places(data, steps) for steps in middle), label, column)
    seen = fitted.normaliser(as_tensor(data.observations)).T.double().numpy()
    deviation = seen.std(0)
    scaled = (seen - seen.mean(0)) / np.where(deviation > 0, deviation, 1)
    distance = k_means(scaled[:: -(-len(scaled) // _ROWS)], _CLUSTERS, seed=0, starts=_STARTS).distances(scaled)
    nearest = distance.argmin(1)
    order = np.argsort(-np.bincount(nearest, minlength=distance.shape[1]), kind="stable")  # A is the most frequent
    examples = tuple(_typical(data, distance[:, old], nearest == old) for old in order)
    features = _feature_names(fitted, data)
    values = data.observations.reshape(len(data), -1)[:, fitted.normaliser.kept.numpy()].astype(np.float64)
    descriptions = tuple(_description(scaled, values, features, nearest == old) for old in order)
    return Clusters(tuple(ascii_uppercase[: len(order)]), descriptions, examples, np.argsort(order)[nearest], None)


def _typical(data: Demonstrations, distance: Array, own: Array) -> list[tuple[int, int]]:
    """The three states nearest to the centre, of different episodes if possible."""
    order = np.argsort(np.where(own, distance, np.inf), kind="stable")[: int(own.sum())][:500]
    first = np.unique(data.episode[order], return_index=True)[1]
    return _places(data, order[np.sort(first)][:3])


def _places(data: Demonstrations, steps: Array) -> list[tuple[int, int]]:
    return list(zip(data.episode[steps].tolist(), _step_within(data)[steps].tolist(), strict=True))


def _feature_names(fitted: Fitted, data: Demonstrations) -> Sequence[str]:
    """The names of the inputs of the networks: columns of a table, or places in the observation."""
    kept, shape = fitted.normaliser.kept.tolist(), data.observations.shape[1:]
    if data.encoding is not None:
        return [short(data.encoding.inputs[place]) for place in kept]
    places = (np.unravel_index(place, shape) for place in kept)
    return [f"observation[{', '.join(str(int(part)) for part in each)}]" for each in places]


def _description(scaled: Array, values: Array, names: Sequence[str], own: Array) -> str:
    """The two most distinguishing features of these steps, in words."""
    apart = scaled[own].mean(0)  # in standard deviations from the mean over all steps
    places = [place for place in np.argsort(-np.abs(apart))[:2] if abs(apart[place]) >= _APART]
    descriptions = [_feature(names[place], values[:, place], own, apart[place]) for place in places]
    return ", ".join(descriptions) or "near the middle in every feature"


def _feature(name: str, values: Array, own: Array, apart: float) -> str:
    distinct, count = np.unique(values[own], return_counts=True)
    if len(np.unique(values[:: max(1, len(values) // 5000)])) <= _FEW_VALUES and count.max() >= 0.7 * count.sum():
        value = distinct[count.argmax()]
        if " = " in name:  # a category of a column: the input is 1 for this category and 0 for others
            return name if value else f"not {name}"
        return f"{name} = {value:g}"
    return f"{name} {'high' if apart > 0 else 'low'} (about {float(np.median(values[own])):.3g})"


class Gap(NamedTuple):
    """A demonstrator who is below the top quartile in a state cluster."""

    who: Demonstrator
    cluster: str
    estimate: Interval
    best: float
    steps: int


@final
@dataclass(frozen=True, eq=False)
class ByCluster:
    """Expertise of `demonstrators` in state clusters: `found` has a row for each pair, clusters varying fastest."""

    evidence: Evidence
    demonstrators: Sequence[Demonstrator]
    found: Estimates
    steps: Array
    """(demonstrator, cluster) the number of steps."""
    of_all: Estimates
    """(cluster,) by the steps of all demonstrators, divided by that of all clusters together."""

    @classmethod
    def of(cls, evidence: Evidence, demonstrators: Sequence[Demonstrator]) -> ByCluster:
        names, clusters, data = evidence.fitted.expertise.names, evidence.clusters, evidence.data
        place = {name: number for number, name in enumerate(data.names)}
        chosen = [each for each in demonstrators if each.is_ranked and names[each.index] in place]
        number = np.full(len(data.names), -1)
        number[[place[names[each.index]] for each in chosen]] = np.arange(len(chosen))
        owner, count = number[data.episode_demonstrator], len(clusters.names)

        def cell(episode: Array, cluster: Array) -> Array:
            return np.where(owner[episode] >= 0, owner[episode] * count + cluster, -1)

        found = evidence.rate(cell(evidence.episode, evidence.cluster), len(chosen) * count)
        of_step = cell(data.episode, clusters.of_step)
        steps = np.bincount(of_step[of_step >= 0], minlength=len(chosen) * count).reshape(-1, count)
        together = float(evidence.rate(np.zeros_like(evidence.cluster), 1).expertise[0])
        return cls(evidence, chosen, found, steps, _divided(evidence.rate(evidence.cluster, count), together))

    @property
    def enough(self) -> Array:
        """(demonstrator, cluster) whether there are enough steps to show the estimate."""
        return self.steps >= ENOUGH_STEPS

    def gaps(self) -> tuple[list[Gap], list[Demonstrator]]:
        """Where the interval of a demonstrator is below the top quartile, the largest gap times steps first.

        Demonstrators with a gap in each of several state clusters are returned separately.
        """
        enough, count = self.enough, self.steps.shape[1]
        value, high = (each.reshape(enough.shape) for each in (self.found.expertise, self.found.high))
        best = np.full(count, np.nan)
        for cluster in np.flatnonzero(enough.sum(0) > 1):
            best[cluster] = top_quarter(value[enough[:, cluster], cluster])
        below = enough & (high < best)
        everywhere = (below.sum(1) == enough.sum(1)) & (below.sum(1) > 1)
        found = [
            Gap(
                self.demonstrators[who],
                self.evidence.clusters.phrase(cluster),
                estimate_of(self.found, who * count + cluster),
                float(best[cluster]),
                int(self.steps[who, cluster]),
            )
            for who, cluster in np.argwhere(below & ~everywhere[:, None]).tolist()
        ]
        costly = sorted(found, key=lambda gap: -(gap.best - gap.estimate[0]) * gap.steps)
        return costly, [self.demonstrators[who] for who in np.flatnonzero(everywhere).tolist()]


class Segment(NamedTuple):
    """Steps of an episode, from the first to the last."""

    first: int
    last: int


@final
@dataclass(frozen=True, eq=False)
class Episodes:
    """Every rated episode, with its demonstrator and expertise; episodes are numbered within the evidence."""

    evidence: Evidence
    demonstrators: Sequence[Demonstrator]
    """Of each episode."""
    found: Estimates
    population: Population
    good: float
    """Relative expertise of the top quartile of demonstrators."""

    @classmethod
    def of(cls, evidence: Evidence, demonstrators: Sequence[Demonstrator]) -> Episodes:
        by_name = {evidence.fitted.expertise.names[each.index]: each for each in demonstrators}
        owner, data = evidence.data.episode_demonstrator, evidence.data
        summed = _summed(evidence.log_likelihood, evidence.episode, data.episode_count)
        found, population = evidence.rate_curves(summed, None, spread=evidence.within)
        good = top_quarter(evidence.by_demonstrator.expertise[np.unique(owner)])
        return cls(evidence, [by_name[data.names[each]] for each in owner.tolist()], found, population, good)

    @cached_property
    def order(self) -> list[int]:
        """All episodes, the lowest first."""
        return list(np.argsort(self.found.expertise, kind="stable").tolist())

    @cached_property
    def low_for_them(self) -> list[int]:
        """Episodes whose interval is below that of their demonstrator, the largest gap first."""
        owner = self.evidence.data.episode_demonstrator
        gap = self.evidence.by_demonstrator.low[owner] - self.found.high
        return [each for each in np.argsort(-gap, kind="stable").tolist() if gap[each] > 0]

    @property
    def to_drop(self) -> list[int]:
        """Episodes below half of the top quartile of demonstrators, with probability 0.975; the lowest first."""
        return [each for each in self.order if self.found.high[each] < HALF * self.good]

    def number(self, episode: int) -> int:
        """The number of an episode in the whole data, from 0."""
        return int(self.evidence.numbers[episode])

    def label(self, episode: int) -> str:
        return f"{self.number(episode)} ({self.demonstrators[episode].name})"

    def steps(self, episode: int) -> slice:
        return slice(*self.evidence.data.episode_bounds[episode : episode + 2].tolist())

    def expected(self, episode: int) -> float:
        """The expertise of the demonstrator of an episode."""
        owner = self.evidence.data.episode_demonstrator[episode]
        return float(self.evidence.by_demonstrator.expertise[owner])

    @property
    def to_draw(self) -> list[int]:
        """Episodes to draw: those that are low for their demonstrator, the lowest of several, and the highest."""
        lengths, owner = np.diff(self.evidence.data.episode_bounds), self.evidence.data.episode_demonstrator
        low, order = ([each for each in some if lengths[each] >= _LONG] for some in (self.low_for_them, self.order))
        lowest = {int(owner[each]): each for each in reversed(order)}.values()  # of each demonstrator
        chosen = list(dict.fromkeys([*low[:3], *sorted(lowest, key=order.index)]))[: _DRAWN - 1]
        return list(dict.fromkeys([*chosen, *order[-1:]]))

    def windows(self, by_step: Array) -> Estimates:
        """Expertise around each step, from (step, point) log-likelihoods in a window around it."""
        half = int(np.clip(len(by_step) // 8, *_WINDOW)) // 2
        summed = np.concatenate([np.zeros((1, by_step.shape[1])), np.cumsum(by_step, axis=0)])
        step = np.arange(len(by_step))
        windows = summed[np.minimum(step + half + 1, len(step))] - summed[np.maximum(step - half, 0)]
        return self.evidence.rate_curves(windows, self.population, spread=self.evidence.within)[0]

    @cached_property
    def plane(self) -> Array | None:
        """(step, 2) states in the plane in which they vary most; None if there is no such plane."""
        observations = self.evidence.data.observations
        found = Plane.of(self.evidence.fitted.normaliser.kept.numpy(), observations)
        return None if found is None else found.at(observations)


def worst_segment(windows: Estimates, expected: float) -> Segment | None:
    """The segment below the expected expertise in which most expertise is lost, or None."""
    below = np.concatenate([[False], windows.high < expected, [False]])
    first = np.flatnonzero(~below[:-1] & below[1:]).tolist()
    last = (np.flatnonzero(below[:-1] & ~below[1:]) - 1).tolist()
    lost = (expected - windows.expertise).tolist()
    segments = [Segment(*each) for each in zip(first, last, strict=True)]
    return max(segments, key=lambda each: sum(lost[each.first : each.last + 1]), default=None)


def are_images(observations: Array) -> bool:
    """Whether each observation is an image: (step, height, width, channel)."""
    return observations.ndim == 4 and observations.shape[3] in (1, 3) and min(observations.shape[1:3]) >= 8


class Plane(NamedTuple):
    """The plane in which states vary most: two principal components of the scaled observations."""

    kept: Array
    mean: Array
    scale: Array
    axes: Array

    @classmethod
    def of(cls, kept: Array, observations: Array) -> Plane | None:
        """The plane of features `kept` of (step, ...) observations; None for images and mostly discrete features."""
        if are_images(observations):
            return None
        values = _features(observations, kept)
        some = values[:: max(1, len(values) // 2000)]
        many = np.array([len(np.unique(column)) > _FEW_VALUES for column in some.T])
        if len(kept) < 2 or many.mean() <= 0.5:
            return None
        mean, scale = values.mean(0), np.where((deviation := values.std(0)) > 0, deviation, 1)
        scaled = (values - mean) / scale
        _, axes = np.linalg.eigh(product(scaled.T, scaled) / len(scaled))
        return cls(kept, mean, scale, axes[:, :-3:-1])

    def at(self, observations: Array) -> Array:
        """(step, 2) coordinates of observations in the plane."""
        return product((_features(observations, self.kept) - self.mean) / self.scale, self.axes)


def _features(observations: Array, kept: Array) -> Array:
    return np.asarray(observations.reshape(len(observations), -1)[:, kept].astype(np.float64))


def png(image: Array) -> bytes:
    """An image (height, width, channel) as PNG, downsampled if large; floats up to 1 are shares of white."""
    every = -(-max(image.shape[:2]) // _LARGEST)
    image = image[::every, ::every]
    if image.dtype != np.uint8:
        image = np.clip(image * (255 if image.max() <= 1 else 1), 0, 255).astype(np.uint8)
    height, width, channels = image.shape
    rows = b"".join(b"\0" + line.tobytes() for line in np.ascontiguousarray(image))
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n"
    for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")):
        content += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return content
