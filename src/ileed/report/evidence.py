"""Evidence: what the data add to a report, the likelihood of every episode's steps in every state cluster.

State clusters are the labels of a skill column, or clusters of observations named by their distinguishing features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from string import ascii_uppercase
from typing import NamedTuple, final

import numpy as np

from ileed.data import Array, Demonstrations
from ileed.data.rules import listed
from ileed.errors import DemonstrationError, SettingsError
from ileed.methods import Fitted
from ileed.methods.policy import as_tensor
from ileed.rating.clustering import k_means
from ileed.rating.posterior import Population, mean_and_interval, posterior
from ileed.rating.step_likelihood import StepLikelihood
from ileed.report.charts import interval_rows
from ileed.report.page import DEMONSTRATOR, Cell, Column, Table, person_name, rated, short, words
from ileed.report.people import Person

_BLOCK = 10  # steps that are taken together, to estimate how strongly steps of one episode are correlated
_STEPS, _EPISODES = 60_000, 3_000  # of more than these, a part is rated, spread evenly over demonstrators
_KINDS, _LABELS = 6, 12  # clusters, and labels of a column, at most
_STARTS, _ROWS = 4, 20_000  # of k-means: random starts, and the steps that it clusters at most
_FEW_VALUES = 12  # a feature with at most this many values is described by its value
_ENOUGH_STEPS = 5  # of a demonstrator in a state cluster, to be shown there
_APART = 0.5  # standard deviations from the mean of all steps, from which a feature distinguishes a cluster


@final
@dataclass(frozen=True, eq=False)
class Kinds:
    """State clusters: a short name and a description of each, examples, and the cluster of each step."""

    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    examples: tuple[Sequence[tuple[int, int]], ...]
    """(episode, step within it) of states that are typical of each cluster."""
    of_step: Array
    column: str | None
    """The skill column that they are the labels of."""


class Estimate(NamedTuple):
    """Relative expertise with 95% intervals; three arrays, and the population that they were shrunk towards."""

    expertise: Array
    low: Array
    high: Array
    population: Population

    @classmethod
    def of(cls, log_likelihood: Array, population: Population | None) -> Estimate:
        """Expertise by log-likelihoods (row, point), shrunk towards a population, or that of these rows."""
        shares, population = posterior(log_likelihood, population)
        return cls(*mean_and_interval(shares, 0.95), population)

    def row(self, number: int) -> tuple[float, float, float]:
        """One estimate and the ends of its interval."""
        return float(self.expertise[number]), float(self.low[number]), float(self.high[number])

    def over(self, scale: float) -> Estimate:
        """The same on another scale."""
        return Estimate(self.expertise / scale, self.low / scale, self.high / scale, self.population)


@final
@dataclass(frozen=True, eq=False)
class Evidence:
    """The data, or a part of them where there are many, and the log-likelihood of each episode in each state cluster.

    The policy is the fit's own, which has seen these steps: demonstrators, episodes and state clusters are rated by it
    alike. Estimates are divided by their mean over demonstrators, as those of the ranking are.
    """

    fitted: Fitted
    data: Demonstrations
    numbers: Array
    """(episode,) the number of each episode in the whole data."""
    kinds: Kinds
    episode: Array
    """(unit,) of the units, which are an episode's steps in a state cluster."""
    kind: Array
    log_likelihood: Array
    """(unit, point) at the points of expertise of `GRID`, in nats."""
    within: float
    """The overdispersion of steps within an episode."""
    likelihood: StepLikelihood
    is_part: bool

    @classmethod
    def of(cls, fitted: Fitted, data: Demonstrations, shown: Sequence[str] = ()) -> Evidence | None:
        """None where the demonstrator model does not rate a demonstrator by one number.

        Of very many demonstrators a part is rated, and all episodes of those who are `shown`.
        """
        if not fitted.estimates_expertise or fitted.joint.parts.demonstrator.defines_expertise:
            return None
        part, numbers = _part(data, shown)
        try:
            likelihood = fitted.step_likelihood(part)
        except SettingsError:
            return None
        kinds = kinds_of(fitted, part)
        pairs, unit = np.unique(part.episode * len(kinds.names) + kinds.of_step, return_inverse=True)
        found = likelihood.summed(unit, len(pairs))
        episode, kind = pairs // len(kinds.names), pairs % len(kinds.names)
        step = np.arange(len(part)) - part.episode_bounds[:-1][part.episode]
        blocks, block = np.unique(np.stack([part.episode, step // _BLOCK]), axis=1, return_inverse=True)
        within = likelihood.dispersion_of(block.ravel(), blocks[0])
        return cls(fitted, part, numbers, kinds, episode, kind, found, within, likelihood, len(part) < len(data))

    @cached_property
    def by_person(self) -> Estimate:
        """Every demonstrator of the data, rated by the same policy and steps as episodes and state clusters."""
        return self._unscaled.over(self._reference)

    @cached_property
    def _unscaled(self) -> Estimate:
        summed = self._summed(self.data.episode_demonstrator[self.episode], len(self.data.names))
        return Estimate.of(summed / self.likelihood.dispersion, None)

    @cached_property
    def _reference(self) -> float:
        """The expertise that others are divided by: the mean over demonstrators."""
        return float(self._unscaled.expertise[np.unique(self.data.episode_demonstrator)].mean())

    def _summed(self, owner: Array, count: int) -> Array:
        summed = np.zeros((count, self.log_likelihood.shape[1]))
        np.add.at(summed, owner[owner >= 0], self.log_likelihood[owner >= 0])
        return summed

    def rate(self, owner: Array, count: int) -> Estimate:
        """Expertise of `count` owners of units, by (unit,) the owner of each; -1 for none."""
        return self.rate_curves(self._summed(owner, count), None)

    def rate_episodes(self) -> Estimate:
        """Expertise of each episode by its own steps."""
        summed = self._summed(self.episode, self.data.episode_count)
        return self.rate_curves(summed, None, spread=self.within)

    def rate_curves(
        self, log_likelihood: Array, population: Population | None, *, spread: float | None = None
    ) -> Estimate:
        """Expertise by log-likelihoods (row, point), shrunk towards a population, or that of these rows.

        `spread` is the overdispersion of steps; by default that of demonstrators, whose episodes differ.
        """
        return Estimate.of(log_likelihood / (spread or self.likelihood.dispersion), population).over(self._reference)

    def along(self, episodes: Array) -> list[Array]:
        """(step, point) log-likelihoods of some episodes, step by step."""
        chosen = np.isin(self.data.episode, episodes)
        found = self.likelihood.select(chosen).summed(np.cumsum(chosen) - 1, int(chosen.sum()))
        owner = self.data.episode[chosen]
        return [found[owner == episode] for episode in episodes]


def top_quarter(expertise: Array) -> float:
    """The mean of the best quarter, and of one at least."""
    return float(np.sort(expertise)[::-1][: max(1, len(expertise) // 4)].mean())


def data_of_run(fitted: Fitted, data: Demonstrations) -> Demonstrations:
    """Data with the columns of a fit (`Policy.match`); refuses other demonstrators than those of the fit."""
    known = set(fitted.expertise.names)
    if strangers := [name for name in data.names if name not in known]:
        raise DemonstrationError(
            f"the data have {strangers[0]!r}, who is not in this run, which has {listed(fitted.expertise.names)}: pass "
            "the data of the run"
        )
    return fitted.policy.match(data)


def _part(data: Demonstrations, shown: Sequence[str]) -> tuple[Demonstrations, Array]:
    """All episodes, or every k-th of those sorted by demonstrator, and their numbers.

    Of very many demonstrators also all episodes of those who are shown; those who have none of these are left out.
    """
    every = int(np.ceil(max(len(data) / _STEPS, data.episode_count / _EPISODES)))
    if every <= 1:
        return data, np.arange(data.episode_count)
    numbers = np.sort(np.argsort(data.episode_demonstrator, kind="stable")[::every])
    chosen = np.zeros(data.episode_count, dtype=bool)
    chosen[numbers] = True
    if not data.has_many_people:
        return data.select(chosen[data.episode]), numbers
    known = set(data.names)
    chosen |= np.isin(data.episode_demonstrator, [data.index_of(name) for name in shown if name in known])
    part = data.select(chosen[data.episode])
    present, demonstrator = np.unique(part.demonstrator, return_inverse=True)
    names = tuple(data.names[who] for who in present)
    return part.with_columns(names=names, demonstrator=demonstrator), np.flatnonzero(chosen)


def kinds_of(fitted: Fitted, data: Demonstrations) -> Kinds:
    """By the skill column of the fit, or one of the data whose values are labels; otherwise by clusters."""
    own = fitted.joint.parts.expertise.skill_column
    columns = [name for name in (own, *data.skills) if name is not None and data.skills[name].ndim == 1]
    for column in columns:
        weights, names = data.skill(column)
        if 1 < len(names) <= _LABELS:
            kind = weights.argmax(1)
            typical = [np.flatnonzero(kind == each) for each in range(len(names))]
            middle = [steps[len(steps) // 4 :: max(1, len(steps) // 4)][:3] for steps in typical]
            told = tuple(f"{short(column)} is {short(name)}" for name in names)
            return Kinds(names, told, tuple(_places(data, steps) for steps in middle), kind, column)
    return _clusters(fitted, data)


def _clusters(fitted: Fitted, data: Demonstrations) -> Kinds:
    seen = fitted.normaliser(as_tensor(data.observations)).T.double().numpy()
    deviation = seen.std(0)
    scaled = (seen - seen.mean(0)) / np.where(deviation > 0, deviation, 1)
    distance = k_means(scaled[:: -(-len(scaled) // _ROWS)], _KINDS, seed=0, starts=_STARTS).distances(scaled)
    kind = distance.argmin(1)
    order = np.argsort(-np.bincount(kind, minlength=distance.shape[1]), kind="stable")  # the most frequent is A
    place = np.argsort(order)
    examples = tuple(_nearest(data, distance[:, old], kind == old) for old in order)
    names = _feature_names(fitted, data)
    values = data.observations.reshape(len(data), -1)[:, fitted.normaliser.kept.numpy()].astype(np.float64)
    told = tuple(_description(scaled, values, names, kind == old) for old in order)
    return Kinds(tuple(ascii_uppercase[: len(order)]), told, examples, place[kind], None)


def _nearest(data: Demonstrations, distance: Array, own: Array) -> list[tuple[int, int]]:
    """Three states nearest to the centre, of three episodes where there are as many."""
    order = np.argsort(np.where(own, distance, np.inf), kind="stable")[: int(own.sum())][:500]
    first = np.unique(data.episode[order], return_index=True)[1]
    return _places(data, order[np.sort(first)][:3])


def _places(data: Demonstrations, steps: Array) -> list[tuple[int, int]]:
    episode = data.episode[steps]
    return list(zip(episode.tolist(), (steps - data.episode_bounds[episode]).tolist(), strict=True))


def _feature_names(fitted: Fitted, data: Demonstrations) -> list[str]:
    """The names of the numbers that the networks see: those of a table's columns, or places in the observation."""
    kept, shape = fitted.normaliser.kept.tolist(), data.observations.shape[1:]
    if data.encoding is not None:
        return [short(data.encoding.inputs[place]) for place in kept]
    places = (np.unravel_index(place, shape) for place in kept)
    return [f"observation[{', '.join(str(int(part)) for part in each)}]" for each in places]


def _description(scaled: Array, values: Array, names: Sequence[str], own: Array) -> str:
    """The two most distinguishing features of these steps, in words."""
    apart = scaled[own].mean(0)  # in standard deviations from the mean over all steps
    told = [_feature(names[place], values[:, place], own, apart[place]) for place in np.argsort(-np.abs(apart))[:2]]
    return ", ".join(filter(None, told)) or "near the middle in every feature"


def _feature(name: str, values: Array, own: Array, apart: float) -> str:
    if abs(apart) < _APART:
        return ""
    distinct, count = np.unique(values[own], return_counts=True)
    all_of_them = np.unique(values[:: max(1, len(values) // 5000)])
    if len(all_of_them) <= _FEW_VALUES and count.max() >= 0.7 * count.sum():
        value = distinct[count.argmax()]
        if " = " in name:  # one category of a column: the input is one in it and zero elsewhere
            return name if value else f"not {name}"
        return f"{name} = {value:g}"
    return f"{name} {'high' if apart > 0 else 'low'} (about {float(np.median(values[own])):.3g})"


class Gap(NamedTuple):
    """A demonstrator who is below the top quartile in a state cluster."""

    person: Person
    kind: str
    expertise: float
    low: float
    high: float
    best: float
    steps: int


@final
@dataclass(frozen=True, eq=False)
class PeopleByKind:
    """Expertise of demonstrators in state clusters: `found` in the order of `people`, then of clusters."""

    evidence: Evidence
    people: Sequence[Person]
    found: Estimate
    steps: Array
    """(demonstrator, cluster) the number of steps that were rated."""
    everybody: Estimate
    """(cluster,) by the steps of all demonstrators, divided by that of all clusters together."""

    @classmethod
    def of(cls, evidence: Evidence, people: Sequence[Person]) -> PeopleByKind:
        names, kinds = evidence.fitted.expertise.names, evidence.kinds
        place = {name: who for who, name in enumerate(evidence.data.names)}
        people = [person for person in people if person.is_ranked and names[person.index] in place]
        row = np.full(len(evidence.data.names), -1)
        row[[place[names[person.index]] for person in people]] = np.arange(len(people))
        owner, count = row[evidence.data.episode_demonstrator], len(kinds.names)
        unit = np.where(owner[evidence.episode] >= 0, owner[evidence.episode] * count + evidence.kind, -1)
        found = evidence.rate(unit, len(people) * count)
        of_step = owner[evidence.data.episode]
        steps = np.bincount((of_step * count + kinds.of_step)[of_step >= 0], minlength=len(people) * count)
        together = float(evidence.rate(np.zeros_like(evidence.kind), 1).expertise[0])
        by_kind = evidence.rate(evidence.kind, count)
        return cls(evidence, people, found, steps.reshape(-1, count), by_kind.over(together))

    @property
    def count(self) -> int:
        return len(self.evidence.kinds.names)

    def kind(self, number: int) -> str:
        """A state cluster in a sentence."""
        kinds = self.evidence.kinds
        if kinds.column is not None:
            return f"“{short(kinds.names[number])}”"
        return f"state cluster {kinds.names[number]} ({kinds.descriptions[number]})"

    def gaps(self) -> tuple[list[Gap], list[Person]]:
        """Where the interval of a demonstrator is below the top quartile, the greatest gap times steps first.

        Demonstrators for whom it is so in every one of several state clusters are returned separately.
        """
        enough = self.steps >= _ENOUGH_STEPS
        value, high = (each.reshape(enough.shape) for each in (self.found.expertise, self.found.high))
        best = np.full(self.count, np.nan)
        for kind in np.flatnonzero(enough.sum(0) > 1):
            best[kind] = top_quarter(value[enough[:, kind], kind])
        below = enough & (high < best)
        everywhere = (below.sum(1) == enough.sum(1)) & (below.sum(1) > 1)
        found = [
            Gap(
                self.people[person],
                self.kind(kind),
                *self.found.row(person * self.count + kind),
                float(best[kind]),
                int(self.steps[person, kind]),
            )
            for person, kind in np.argwhere(below & ~everywhere[:, None]).tolist()
        ]
        costly = sorted(found, key=lambda gap: -(gap.best - gap.expertise) * gap.steps)
        return costly, [self.people[person] for person in np.flatnonzero(everywhere).tolist()]

    def kinds_table(self) -> Table:
        """State clusters, the weakest first, by the steps of all demonstrators."""
        kinds, found, numbers = self.evidence.kinds, self.everybody, self.evidence.numbers
        share = (np.bincount(kinds.of_step, minlength=self.count) / len(kinds.of_step)).tolist()
        order = np.argsort(found.expertise, kind="stable").tolist()
        rows: list[list[Cell]] = []
        for each in order:
            places = ", ".join(f"{numbers[episode]}:{step}" for episode, step in kinds.examples[each])
            part = Cell(f"{100 * share[each]:.0f}%", share[each], (share[each],), "n")
            told = words(kinds.descriptions[each], wide=True)
            rows.append([words(kinds.names[each]), rated(*found.row(each)), told, part, words(places)])
        columns = [
            Column("cluster", ("kind",)),
            Column("expertise", ("expertise", "low", "high"), "of all steps together; 95% interval"),
            Column("what sets it apart", ("description",)),
            Column("steps", ("share_of_steps",)),
            Column("examples", about="episode:step"),
        ]
        drawing = interval_rows(
            "kinds",
            "Expertise by state cluster",
            [(kinds.names[each], found.row(each)) for each in order],
            reference=1.0,
            title="expertise of all demonstrators (1 is all states together)",
            legend=[("one", "expertise with 95% interval"), ("reference", "all states together")],
        )
        return Table("kinds-of-state", "State clusters, weakest first", columns, rows, drawing)

    def people_table(self) -> Table:
        """Demonstrators, best first, by state cluster; darker is better, and cells with few steps are empty."""
        steps, found = self.steps.ravel().tolist(), self.found
        top = max(float(found.expertise[self.steps.ravel() >= _ENOUGH_STEPS].max(initial=0.0)), 1e-9)

        def cell(place: int) -> Cell:
            if steps[place] < _ENOUGH_STEPS:
                return Cell("·", -1.0, (None, None, None, steps[place]), "n none")
            shown = rated(*found.row(place), heat=min(9, int(10 * found.expertise[place] / top)))
            return shown._replace(values=(*shown.values, steps[place]))

        values = ("expertise", "low", "high", "steps")
        named = (Column(name, tuple(f"{name} {each}" for each in values)) for name in self.evidence.kinds.names)
        rows = [
            [person_name(person.label), *map(cell, range(self.count * row, self.count * (row + 1)))]
            for row, person in enumerate(self.people)
        ]
        caption = "Demonstrators by state cluster, best first"
        return Table("people-by-kind", caption, [DEMONSTRATOR, *named], rows, is_map=True)
