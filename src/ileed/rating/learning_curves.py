"""Learning curves: how everybody's expertise changes from their first episode to their last, with intervals.

    logit rho_i(n) = w_i0 + w_i1 g(n),  g(n) = log(1 + n) / log(N),

as `Drift` has it, but with the policy given: an episode is judged by policies that have not seen it. The likelihood of
each person's episodes is a function of two numbers and is computed on a grid. Expertise half-way is uniform from 0 to 1
beforehand; the changes w_i1 come from a Gaussian population of unknown mean and standard deviation, which are averaged
over (as in `ileed.rating.posterior`). Somebody of few episodes is thus taken to change as the others do; that they
improve or tire is said only where their own episodes say so too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple, final

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from ileed._torch import product
from ileed.data import Array
from ileed.model.expertise import practice
from ileed.rating.posterior import tails
from ileed.rating.step_likelihood import COARSE_POINTS, StepLikelihood, polynomial

IMPROVES, TIRES, UNDECIDED = "improves", "tires", "cannot be told"
_DRAWS = 1000  # of the posterior distribution that are kept
_REACH, _SPACING = 8.0, 0.25
_LOGITS = np.arange(-_REACH, _REACH + _SPACING / 2, _SPACING)  # at which episodes are judged
LEARNING_POINTS = len(_LOGITS) + len(COARSE_POINTS)  # at which learning curves ask each step for its likelihood
_CHANGES = np.linspace(-_REACH, _REACH, 1601)  # possible changes w_i1
_STAGES = 4  # parts of a person's episodes within which a drift is hardly seen
_BINS = 48  # of practice: episodes that are closer count as one
_NODES = np.linspace(0, 1, 33)  # of the grid of one person
_FALL = 12.5  # nats below the top of a posterior density, beyond which nothing of it is left
_MOST_POINTS = 40  # of one person's curve
_MOST_NAMED = 5  # people in a sentence


@final
@dataclass(frozen=True, eq=False)
class LearningCurves:
    """Everybody's expertise as a function of their own episode number, from draws of its posterior distribution."""

    names: tuple[str, ...]
    episodes: int
    """N: the change is that from the first episode to the N-th."""
    numbers: Array
    """(2, person) the numbers of everybody's first and last episode, counted from 0."""
    draws: Array
    """(draw, person, 2) w_i0, the logit of expertise in the first episode of all, and the change w_i1."""
    alone: Array
    """(person,) the probability that somebody improves by their own episodes, whatever the others do."""
    population: Array
    """(change,) what was learned of people's changes in general."""
    reference: float = 1.0
    """The mean expertise of people, by which a relative one is divided."""

    def at(self, person: int, number: Array) -> Array:
        """(draw, number) somebody's expertise in episodes of these numbers."""
        start, change = self.draws[:, person].T.astype(np.float64)
        return _sigmoid(start[:, None] + change[:, None] * _practice(number, self.episodes))

    def curve(self, *, relative: bool, level: float) -> pa.Table:
        """Everybody's expertise in their episodes, some of very many, with intervals."""
        rows: dict[str, list[Array]] = {"episode": [], "expertise": [], "low": [], "high": []}
        count = []
        for person, (first, last) in enumerate(self.numbers.T):
            steps = np.linspace(np.log1p(first), np.log1p(last), _MOST_POINTS)
            number = np.arange(first, last + 1) if last - first < _MOST_POINTS else np.unique(np.rint(np.expm1(steps)))
            drawn = self.at(person, number) / (self.reference if relative else 1.0)
            found = (number.astype(np.int64), drawn.mean(0), *np.quantile(drawn, tails(level), axis=0))
            for column, values in zip(rows.values(), found, strict=True):
                column.append(values)
            count.append(len(number))
        who = np.repeat(np.array(_encodable(self.names), dtype=object), count).tolist()
        columns = {"demonstrator": who, **{name: np.concatenate(values) for name, values in rows.items()}}
        return pa.table(columns)

    def table(self, *, relative: bool, level: float) -> pa.Table:
        """Everybody's expertise in their first and their last episode, and what can be said of the change."""
        scale = self.reference if relative else 1.0
        ends = np.stack([self.at(person, self.numbers[:, person]) for person in range(len(self.names))]) / scale
        first, last = ends[..., 0], ends[..., 1]  # (person, draw)
        columns: dict[str, object] = {"demonstrator": _encodable(self.names)}
        columns["episodes"] = self.numbers[1] - self.numbers[0] + 1
        for name, values in (("first", first), ("last", last), ("change", last - first)):
            low, high = np.quantile(values, tails(level), axis=1)
            columns |= {name: values.mean(1), f"{name}_low": low, f"{name}_high": high}
        columns |= {"probability_improves": self.probability_improves, "verdict": self.verdicts(level)}
        order = np.argsort(-np.asarray(columns["change"]), kind="stable")
        return pa.table(columns).take(order)

    @property
    def probability_improves(self) -> Array:
        """(person,) the probability that somebody's expertise rises from episode to episode."""
        change = self.draws[..., 1]
        return np.asarray((change > 0).mean(0) + (change == 0).mean(0) / 2)

    def verdicts(self, level: float) -> list[str]:
        """Whether everybody improves or tires, where intervals of the change at this level leave zero out.

        Both of them: that by all people's episodes, and that by the person's own.
        """
        low, high = tails(level)
        both = np.stack([self.probability_improves, self.alone])
        sure = zip(both.min(0) >= high, both.max(0) <= low, strict=True)
        return [IMPROVES if rises else TIRES if falls else UNDECIDED for rises, falls in sure]

    def sentence(self, level: float = 0.95) -> str:
        """Who improves, who tires, and of how many it cannot be told, in words."""
        found, parts = self.verdicts(level), []
        for verdict, several in ((IMPROVES, "improve"), (TIRES, "tire")):
            who = [name for name, own in zip(_encodable(self.names), found, strict=True) if own == verdict]
            if who:
                named = " and ".join(filter(None, (", ".join(who[:-1]), who[-1])))
                named = named if len(who) <= _MOST_NAMED else f"{len(who)} people"
                parts.append(f"{named} {verdict if len(who) == 1 else several} from episode to episode")
        if (undecided := found.count(UNDECIDED)) == len(found):
            return "it cannot be told of anybody whether they improve or tire"
        return "; ".join([*parts, *([f"of {undecided} it cannot be told"] if undecided else [])])

    def renamed(self, names: Mapping[str, str]) -> LearningCurves:
        """The same curves with other names."""
        return replace(self, names=tuple(names[name] for name in self.names))

    def tensors(self) -> dict[str, Tensor]:
        """What a run directory keeps, beside the names and N."""
        values = {"draws": self.draws, "numbers": self.numbers, "alone": self.alone, "population": self.population}
        return {f"curve_{name}": torch.from_numpy(np.ascontiguousarray(value)) for name, value in values.items()}

    @classmethod
    def of_tensors(cls, names: tuple[str, ...], episodes: int, tensors: Mapping[str, Tensor]) -> LearningCurves:
        """Curves as a run directory keeps them."""
        numbers, draws, alone, population = (
            tensors[f"curve_{name}"].numpy() for name in ("numbers", "draws", "alone", "population")
        )
        return cls(names, episodes, numbers, draws, alone, population)

    @staticmethod
    def empty_tensors(people: int) -> dict[str, Tensor]:
        """The shapes and types of what a run directory keeps of so many people."""
        return {
            "curve_draws": torch.empty(_DRAWS, people, 2, dtype=torch.float32),
            "curve_numbers": torch.empty(2, people, dtype=torch.int64),
            "curve_alone": torch.empty(people, dtype=torch.float64),
            "curve_population": torch.empty(len(_CHANGES), dtype=torch.float64),
        }


def learning_curves(likelihood: StepLikelihood, *, episodes: int, population: Array | None = None) -> LearningCurves:
    """Estimate the learning curve of each demonstrator; N is `episodes`.

    `population` (change,) is that of earlier curves, to compare demonstrators with others.
    """
    data = likelihood.data
    number, who, people = data.own_episode_number, data.demonstrator, len(data.names)
    done = _practice(number, episodes)
    key = np.rint(done * _BINS).astype(np.int64)
    _, unit = np.unique(who * (key.max() + 1) + key, return_inverse=True)
    steps = np.bincount(unit)
    place, owner = np.bincount(unit, done) / steps, (np.bincount(unit, who) / steps).astype(np.int64)
    judged = likelihood.summed(unit, len(steps), _sigmoid(_LOGITS)) / _dispersion(likelihood)
    grids = []
    for person in range(people):
        own = owner == person
        grids.append(_grid_of_person(judged[own], place[own], float(np.average(place[own], weights=steps[own]))))
    of_change = np.exp(np.stack([grid.change_curve for grid in grids]))
    if population is None:
        population = _population(of_change)
    chance = np.random.default_rng(0)
    draws = [_draws(grid, own * population, chance) for grid, own in zip(grids, of_change, strict=True)]
    first, last = np.full(people, number.max()), np.zeros(people, dtype=np.int64)
    np.minimum.at(first, who, number)
    np.maximum.at(last, who, number)
    kept = np.stack(draws, axis=1).astype(np.float32)
    alone = product(of_change, (_CHANGES > 0) + (_CHANGES == 0) / 2) / of_change.sum(1)
    return LearningCurves(data.names, episodes, np.stack([first, last]), kept, alone, population)


def _dispersion(likelihood: StepLikelihood) -> float:
    """The overdispersion of episodes within quarters of each demonstrator's episodes, where drift is negligible."""
    data = likelihood.data
    owner = data.episode_demonstrator
    order = np.argsort(owner, kind="stable")
    count = np.bincount(owner)[owner]
    place = np.argsort(order) - np.searchsorted(owner[order], owner)
    return likelihood.dispersion_of(data.episode, owner * _STAGES + place * _STAGES // count)


@final
class _Grid(NamedTuple):
    """The likelihood of one person's episodes, times the prior of the level, on a grid that holds all of it."""

    center: float  # the practice at which the level is
    level: Array  # (node,) logits there
    change: Array  # (node,)
    log_density: Array  # (level, change)

    @property
    def change_curve(self) -> Array:
        """Log-likelihood at `_CHANGES`, with the level integrated out; its top is 0."""
        top = self.log_density.max()
        found = top + np.log(np.exp(self.log_density - top).sum(0))
        inside = np.interp(_CHANGES, self.change, found - found.max(), left=-np.inf, right=-np.inf)
        return np.maximum(inside, -60.0)


def _grid_of_person(judged: Array, place: Array, center: float) -> _Grid:
    """Where the likelihood of somebody's episodes lies, found by grids that are ever finer.

    `judged` (unit, logit) is the log-likelihood of episodes of the practice `place` (unit,).
    """
    level, change = (np.array([-_REACH, _REACH]) for _ in range(2))
    for _ in range(8):
        at = [low + (high - low) * _NODES for low, high in (level, change)]
        found = _log_density(judged, place - center, *at)
        near = found >= found.max() - _FALL
        ends = [_within(nodes, near.any(axis)) for nodes, axis in zip(at, (1, 0), strict=True)]
        shrunk = [np.ptp(new) < 0.7 * np.ptp(old) for new, old in zip(ends, (level, change), strict=True)]
        if not any(shrunk):
            break
        level, change = ends
    return _Grid(center, at[0], at[1], found)


def _within(nodes: Array, near: Array) -> Array:
    """The range of the nodes that are near, and one more to either side."""
    index = np.flatnonzero(near)
    return nodes[[max(index[0] - 1, 0), min(index[-1] + 1, len(nodes) - 1)]]


def _log_density(judged: Array, place: Array, level: Array, change: Array) -> Array:
    """(level, change) log-likelihood of somebody's episodes and log-prior of the level; cubics between the logits."""
    logit = level[:, None, None] + change[:, None] * place
    first, weights = polynomial(_LOGITS, np.clip(logit, -_REACH, _REACH), 4)
    unit = np.arange(len(place))
    total = np.zeros(logit.shape)
    for one, weight in enumerate(weights):
        total += weight * judged[unit, first + one]
    return np.asarray(total.sum(-1) - np.logaddexp(0, level)[:, None] - np.logaddexp(0, -level)[:, None])


def _population(likelihood: Array) -> Array:
    """(change,) the distribution of changes, averaged over Gaussian populations by how likely they make everybody."""
    shares, log_before = _possible_populations()
    evidence = np.maximum(product(likelihood, shares.T), np.finfo(np.float64).tiny)  # (person, possible population)
    log_after = log_before + np.log(evidence).sum(0)
    after = np.exp(log_after - log_after.max())
    return product(after / after.sum(), shares)


@cache
def _possible_populations() -> tuple[Array, Array]:
    """(population, change) shares of Gaussian distributions, and the log of each one's weight beforehand.

    Their mean is standard normal, their standard deviation half-normal with scale 1.
    """
    means, spreads = np.linspace(-3, 3, 61), np.geomspace(0.03, 3, 24)
    mean, spread = np.repeat(means, len(spreads)), np.tile(spreads, len(means))
    log_density = -0.5 * ((_CHANGES - mean[:, None]) / spread[:, None]) ** 2
    shares = np.exp(log_density)
    return shares / shares.sum(1, keepdims=True), -0.5 * (mean**2 + spread**2) + np.log(spread)  # on a log scale


def _draws(grid: _Grid, share: Array, chance: np.random.Generator) -> Array:
    """(draw, 2) w_i0 and w_i1 from the posterior distribution; `share` (change,) is that of w_i1, up to a factor."""
    uniform = (np.arange(_DRAWS) + 0.5) / _DRAWS
    below = np.cumsum(share) - share / 2
    change = np.interp(uniform * share.sum(), below, _CHANGES)
    node = np.abs(change[:, None] - grid.change).argmin(1)
    level = np.empty(_DRAWS)
    for each in np.unique(node):
        own = node == each
        density = np.exp(grid.log_density[:, each] - grid.log_density[:, each].max())
        below = np.cumsum(density) - density / 2
        level[own] = np.interp(chance.random(own.sum()) * density.sum(), below, grid.level)
    return np.stack([level - change * grid.center, change], axis=1)


def _practice(number: Array, episodes: int) -> Array:
    return np.asarray(practice(torch.from_numpy(np.asarray(number, dtype=np.float64)), episodes).numpy())


def _sigmoid(logit: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-logit)))


def _encodable(names: Sequence[str]) -> list[str]:
    return [name.encode(errors="replace").decode() for name in names]
