"""Learning curves: how the expertise of each demonstrator changes from the first episode to the last, with intervals.

    logit rho_i(n) = w_i0 + w_i1 g(n),  g(n) = log(1 + n) / log(N),

as `Drift` has it, but for a given policy: each episode is rated by policies that have not seen it. The likelihood of a
demonstrator's episodes is a function of two numbers and is computed on a grid. The prior of expertise half-way is
uniform from 0 to 1; the changes w_i1 come from a Gaussian population of unknown mean and standard deviation, which are
averaged over (as in `ileed.rating.posterior`). With few episodes, the estimated change shrinks towards the population;
a demonstrator is said to improve or tire only if their own episodes alone say so too.
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
from ileed.rating.posterior import cumulative, likely_nodes, tails, weigh_populations
from ileed.rating.step_likelihood import COARSE_POINTS, StepLikelihood, polynomial

IMPROVES, TIRES, UNDECIDED = "improves", "tires", "cannot be told"
_DRAWS = 1000  # of the posterior distribution that are kept
_REACH = 8.0
_LOGITS = np.arange(-_REACH, _REACH + 0.125, 0.25)  # at which episodes are rated
LEARNING_POINTS = len(_LOGITS) + len(COARSE_POINTS)
"""At how many points learning curves ask each step for its likelihood."""
_CHANGES = np.linspace(-_REACH, _REACH, 1601)  # possible changes w_i1
_STAGES = 4  # parts of a demonstrator's episodes within which drift is negligible
_BINS = 48  # of practice: episodes that are closer count as one
_FALL = 12.5  # nats below the top of a posterior density, beyond which nothing of it is left
_MOST_POINTS = 40  # of a demonstrator's curve
_MOST_NAMED = 5  # demonstrators in a sentence


@final
@dataclass(frozen=True, eq=False)
class LearningCurves:
    """Expertise as a function of the demonstrator's own episode number, by draws from its posterior distribution."""

    names: tuple[str, ...]
    episodes: int
    """N: the change is that from the first episode to the N-th."""
    numbers: Array
    """(2, demonstrator) the numbers of the first and last episode of each, counted from 0."""
    draws: Array
    """(draw, demonstrator, 2) w_i0, the logit of expertise in the first episode of all, and the change w_i1."""
    alone: Array
    """(demonstrator,) the probability of an improvement by the demonstrator's own episodes alone."""
    population: Array
    """(change,) the distribution of changes over demonstrators."""
    reference: float = 1.0
    """The mean expertise over demonstrators, by which relative expertise is divided."""

    def at(self, demonstrator: int, number: Array) -> Array:
        """(draw, number) the expertise of a demonstrator in episodes of these numbers."""
        start, change = self.draws[:, demonstrator].T.astype(np.float64)
        return _sigmoid(start[:, None] + change[:, None] * _practice(number, self.episodes))

    def curve(self, *, relative: bool, level: float) -> pa.Table:
        """Expertise in each episode, or in some of very many, with intervals."""
        parts = []
        for who, (first, last) in enumerate(self.numbers.T):
            steps = np.linspace(np.log1p(first), np.log1p(last), _MOST_POINTS)
            number = np.arange(first, last + 1) if last - first < _MOST_POINTS else np.unique(np.rint(np.expm1(steps)))
            drawn = self.at(who, number) / (self.reference if relative else 1.0)
            low, high = np.quantile(drawn, tails(level), axis=0)
            columns = {"episode": number.astype(np.int64), "expertise": drawn.mean(0), "low": low, "high": high}
            parts.append(pa.table({"demonstrator": encodable(self.names[who : who + 1]) * len(number), **columns}))
        return pa.concat_tables(parts)

    def table(self, *, relative: bool, level: float) -> pa.Table:
        """Expertise in the first and the last episode of each demonstrator, the change, and a verdict on it."""
        scale = self.reference if relative else 1.0
        ends = np.stack([self.at(who, self.numbers[:, who]) for who in range(len(self.names))]) / scale
        first, last = ends[..., 0], ends[..., 1]  # (demonstrator, draw)
        columns: dict[str, object] = {"demonstrator": encodable(self.names)}
        columns["episodes"] = self.numbers[1] - self.numbers[0] + 1
        for name, values in (("first", first), ("last", last), ("change", last - first)):
            low, high = np.quantile(values, tails(level), axis=1)
            columns |= {name: values.mean(1), f"{name}_low": low, f"{name}_high": high}
        columns |= {"probability_improves": self.probability_improves, "verdict": self.verdicts(level)}
        order = np.argsort(-np.asarray(columns["change"]), kind="stable")
        return pa.table(columns).take(order)

    @property
    def probability_improves(self) -> Array:
        """(demonstrator,) the probability that expertise rises from episode to episode."""
        change = self.draws[..., 1]
        return np.asarray((change > 0).mean(0) + (change == 0).mean(0) / 2)

    def verdicts(self, level: float) -> list[str]:
        """Whether each demonstrator improves or tires: the intervals of the change at this level must exclude zero.

        Both intervals must: that by all demonstrators' episodes, and that by the demonstrator's own.
        """
        low, high = tails(level)
        both = np.stack([self.probability_improves, self.alone])
        sure = zip(both.min(0) >= high, both.max(0) <= low, strict=True)
        return [IMPROVES if rises else TIRES if falls else UNDECIDED for rises, falls in sure]

    def sentence(self, level: float = 0.95) -> str:
        """Who improves, who tires, and for how many neither can be told."""
        found, parts = self.verdicts(level), []
        for verdict, several in ((IMPROVES, "improve"), (TIRES, "tire")):
            who = [name for name, own in zip(encodable(self.names), found, strict=True) if own == verdict]
            if who:
                named = in_words(who) if len(who) <= _MOST_NAMED else f"{len(who)} demonstrators"
                parts.append(f"{named} {verdict if len(who) == 1 else several} from episode to episode")
        if (undecided := found.count(UNDECIDED)) == len(found):
            return "whether demonstrators improve or tire cannot be told for any of them"
        return "; ".join([*parts, *([f"for {undecided}, it cannot be told"] if undecided else [])])

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
    def empty_tensors(demonstrators: int) -> dict[str, Tensor]:
        """The shapes and types of what a run directory keeps."""
        return {
            "curve_draws": torch.empty(_DRAWS, demonstrators, 2, dtype=torch.float32),
            "curve_numbers": torch.empty(2, demonstrators, dtype=torch.int64),
            "curve_alone": torch.empty(demonstrators, dtype=torch.float64),
            "curve_population": torch.empty(len(_CHANGES), dtype=torch.float64),
        }


def learning_curves(likelihood: StepLikelihood, *, episodes: int, population: Array | None = None) -> LearningCurves:
    """Estimate the learning curve of each demonstrator; N is `episodes`.

    `population` (change,) is that of earlier curves, to compare demonstrators with others.
    """
    data = likelihood.data
    number, who, count = data.own_episode_number, data.demonstrator, len(data.names)
    done = _practice(number, episodes)
    key = np.rint(done * _BINS).astype(np.int64)
    _, unit = np.unique(who * (key.max() + 1) + key, return_inverse=True)
    steps = np.bincount(unit)
    place, owner = np.bincount(unit, done) / steps, (np.bincount(unit, who) / steps).astype(np.int64)
    curves = likelihood.summed(unit, len(steps), _sigmoid(_LOGITS)) / _dispersion(likelihood)
    grids = []
    for own in (owner == each for each in range(count)):
        grids.append(_Grid.of(curves[own], place[own], float(np.average(place[own], weights=steps[own]))))
    of_change = np.exp(np.stack([grid.change_curve for grid in grids]))
    if population is None:
        shares, log_prior = _gaussian_distributions()
        population = product(weigh_populations(of_change, shares, log_prior)[0], shares)
    chance = np.random.default_rng(0)
    draws = [grid.draws(own * population, chance) for grid, own in zip(grids, of_change, strict=True)]
    numbers = np.stack([np.full(count, number.max()), np.zeros(count, dtype=np.int64)])
    np.minimum.at(numbers[0], who, number)
    np.maximum.at(numbers[1], who, number)
    kept = np.stack(draws, axis=1).astype(np.float32)
    alone = product(of_change, (_CHANGES > 0) + (_CHANGES == 0) / 2) / of_change.sum(1)
    return LearningCurves(data.names, episodes, numbers, kept, alone, population)


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
    """The likelihood of one demonstrator's episodes, times the prior of the level, on a grid that holds all of it."""

    center: float  # the practice at which the level is
    level: Array  # (node,) logits there
    change: Array  # (node,)
    log_density: Array  # (level, change)

    @classmethod
    def of(cls, curves: Array, place: Array, center: float) -> _Grid:
        """From (unit, logit) log-likelihoods of episodes of the practice `place` (unit,); cubics between the logits."""

        def log_density(level: Array, change: Array) -> Array:
            logit = level[:, None, None] + change[:, None] * (place - center)
            first, weights = polynomial(_LOGITS, np.clip(logit, -_REACH, _REACH), 4)
            unit, total = np.arange(len(place)), np.zeros(logit.shape)
            for one, weight in enumerate(weights):
                total += weight * curves[unit, first + one]
            return np.asarray(total.sum(-1) - np.logaddexp(0, level)[:, None] - np.logaddexp(0, -level)[:, None])

        return cls(center, *likely_nodes(log_density, [(-_REACH, _REACH)] * 2, np.arange(33.0), fall=_FALL))

    @property
    def change_curve(self) -> Array:
        """Log-likelihood at `_CHANGES`, with the level integrated out; its top is 0."""
        top = self.log_density.max()
        found = top + np.log(np.exp(self.log_density - top).sum(0))
        inside = np.interp(_CHANGES, self.change, found - found.max(), left=-np.inf, right=-np.inf)
        return np.maximum(inside, -60.0)

    def draws(self, share: Array, chance: np.random.Generator) -> Array:
        """(draw, 2) w_i0 and w_i1 from the posterior; `share` (change,) is that of w_i1, up to a factor."""
        uniform = (np.arange(_DRAWS) + 0.5) / _DRAWS
        change = np.interp(uniform * share.sum(), cumulative(share[None])[0], _CHANGES)
        node = np.abs(change[:, None] - self.change).argmin(1)
        level = np.empty(_DRAWS)
        for each in np.unique(node):
            own = node == each
            density = np.exp(self.log_density[:, each] - self.log_density[:, each].max())
            level[own] = np.interp(chance.random(own.sum()) * density.sum(), cumulative(density[None])[0], self.level)
        return np.stack([level - change * self.center, change], axis=1)


@cache
def _gaussian_distributions() -> tuple[Array, Array]:
    """(population, change) shares of Gaussian distributions, and the log of each one's prior weight.

    Their mean is standard normal, their standard deviation half-normal with scale 1.
    """
    means, spreads = np.linspace(-3, 3, 61), np.geomspace(0.03, 3, 24)
    mean, spread = np.repeat(means, len(spreads)), np.tile(spreads, len(means))
    log_density = -0.5 * ((_CHANGES - mean[:, None]) / spread[:, None]) ** 2
    shares = np.exp(log_density)
    return shares / shares.sum(1, keepdims=True), -0.5 * (mean**2 + spread**2) + np.log(spread)  # on a log scale


def _practice(number: Array, episodes: int) -> Array:
    return np.asarray(practice(torch.from_numpy(np.asarray(number, dtype=np.float64)), episodes).numpy())


def _sigmoid(logit: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-logit)))


def encodable(names: Sequence[str]) -> list[str]:
    """Names for a table: without what UTF-8 cannot encode."""
    return [name.encode(errors="replace").decode() for name in names]


def in_words(names: Sequence[str]) -> str:
    """Names as a sentence lists them: "ann, bob and cy"."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
