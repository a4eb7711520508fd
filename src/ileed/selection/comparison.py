"""Comparison: candidates fitted to the same folds, their costs on held-out episodes, and which of them is preferred."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from dataclasses import dataclass, field, replace
from math import isnan, nan
from typing import Any, final

import numpy as np
import pyarrow as pa

from ileed.data import Array
from ileed.fitting.results import Progress
from ileed.fitting.stages import Stages
from ileed.rating.ranks import orders_alike, rank_correlation
from ileed.selection.candidates import Candidate
from ileed.selection.folds import Folds

_TWO_SIDED_95 = 1.96  # standard errors

Tried = tuple[Array, tuple[float, ...]]
"""(held-out episode,) cost of a candidate, times the weight; expertise of demonstrators by it, if it is one number."""
Attempt = Callable[[Candidate, Folds, Stages], Tried]
"""Fits a candidate to folds."""


@final
@dataclass(frozen=True)
class ModelComparison:
    """Models by the cost of episodes that they were not fitted to; the simplest first.

    `standard_errors` are of each cost's difference from the least, over episodes, and choose; `errors_from_preferred`
    are of its difference from the cost of the model that is chosen. `expertise` is that of demonstrators by each model,
    cross-fitted; empty where a model does not rate them by one number.
    """

    models: tuple[str, ...]
    nats_per_action: tuple[float, ...]
    standard_errors: tuple[float, ...]
    held_out_steps: int
    expertise: tuple[tuple[float, ...], ...]
    settings: tuple[Mapping[str, Any], ...] = field(default=(), repr=False, compare=False)
    """The settings of each model, by the names that `Ileed` has; none where a comparison was loaded with a run."""
    errors_from_preferred: tuple[float, ...] = ()
    """None in runs of versions that did not have them."""

    @classmethod
    def of(cls, folds: Folds, candidates: Sequence[Candidate], tried: Sequence[Tried]) -> ModelComparison:
        """The first of the candidates, as many as were tried."""
        costs, steps = [cost for cost, _ in tried], folds.held_out_steps
        candidates = candidates[: len(costs)]
        means = [float(cost.sum() / steps.sum()) for cost in costs]
        best = costs[int(np.argmin(means))]
        found = cls(
            models=tuple(each.name for each in candidates),
            nats_per_action=tuple(means),
            standard_errors=tuple(_standard_error(cost - best, steps) for cost in costs),
            held_out_steps=int((folds.fold[folds.data.episode] >= 0).sum()),
            expertise=tuple(expertise for _, expertise in tried),
            settings=tuple(each.settings for each in candidates),
        )
        preferred = costs[found.chosen]
        return replace(found, errors_from_preferred=tuple(_standard_error(cost - preferred, steps) for cost in costs))

    @property
    def chosen(self) -> int:
        """The number of the simplest model within one standard error of the best."""
        least = min(self.nats_per_action)
        near = zip(self.nats_per_action, self.standard_errors, strict=True)
        return next(number for number, (cost, error) in enumerate(near) if cost <= least + error)

    @property
    def preferred(self) -> str:
        """The name of the model that is chosen."""
        return self.models[self.chosen]

    @property
    def rank_correlations(self) -> tuple[float, ...]:
        """Rank correlation of demonstrators' expertise by each model with that by the chosen one.

        NaN where a model does not rate demonstrators by one number, or gives all of them the same.
        """
        chosen = self.expertise[self.chosen]
        return tuple(rank_correlation(own, chosen) if own and chosen else nan for own in self.expertise)

    def table(self) -> pa.Table:
        """One row for each model: its cost, how much more than the preferred, with a 95% interval, and the order."""
        base = self.nats_per_action[self.chosen]
        more = np.array(self.nats_per_action) - base
        errors = np.array(self.errors_from_preferred or (nan,) * len(more))
        return pa.table(
            {
                "model": self.models,
                "nats_per_action": self.nats_per_action,
                "more_than_preferred": more,
                "standard_error": errors,
                "low": more - _TWO_SIDED_95 * errors,
                "high": more + _TWO_SIDED_95 * errors,
                "rank_correlation": self.rank_correlations,
                "preferred": [number == self.chosen for number in range(len(self.models))],
            }
        )

    def sentence(self) -> str:
        """Which model is preferred, by how much, and whether the ranking of demonstrators depends on the choice."""
        chosen, costs = self.chosen, self.nats_per_action
        words = f"{self.preferred} is preferred"
        if len(costs) > 1:
            simpler = [number for number in range(len(costs)) if number < chosen]
            if simpler:
                other = min(simpler, key=lambda number: costs[number])
                errors = self.errors_from_preferred
                error = f" (standard error {errors[other]:.3f})" if errors else ""
                words += (
                    f": {costs[other] - costs[chosen]:.3f} nats per held-out action below {self.models[other]}, the "
                    f"best of the simpler models{error}"
                )
            least = min(range(len(costs)), key=lambda number: costs[number])
            if least != chosen:
                words += f"{', and' if simpler else ':'} {self.models[least]} costs less, within one standard error"
            elif not simpler:
                words += ": no model explains held-out actions better"
        return f"{words}; {self._order()}" if any(self.expertise) else words

    def _order(self) -> str:
        chosen = self.expertise[self.chosen]
        others = [own for number, own in enumerate(self.expertise) if number != self.chosen and own]
        if not (chosen and others):
            return "the ranking of demonstrators is of one model alone"
        alike = all(orders_alike(own, chosen) for own in others)
        near = [each for own in others if not isnan(each := rank_correlation(own, chosen))]
        if not near and alike:
            return "no model tells demonstrators apart"
        if not near:
            return "whether demonstrators are told apart depends on the model"
        if alike:
            return f"all models rank demonstrators alike (rank correlations of {min(near):.2f} and more)"
        return f"the ranking of demonstrators depends on the model (rank correlations from {min(near):.2f} on)"


def to_try(
    folds: Folds, candidates: Sequence[Candidate], tried: Sequence[Tried], stages: Stages, *, name: str
) -> Iterator[tuple[Candidate, Stages]]:
    """The candidates in their order, each with its stage, whose checkpoint has this name; a costly one may be left out.

    The caller adds what it found of each candidate to `tried` before it takes the next.
    """
    for number, candidate in enumerate(candidates, 1):
        if candidate.costly and ModelComparison.of(folds, candidates, tried).chosen != len(tried) - 1:
            return
        yield candidate, stages.stage(f"trying {candidate.name} ({number} of {len(candidates)})", f"{name}-{number}")


def tried_by_workers(
    folds: Folds, candidates: Sequence[Candidate], attempt: Attempt, stages: Stages, executor: Executor
) -> list[Tried]:
    """What each candidate gives, fitted by a call of the executor."""
    alone = replace(stages, progress=None, executor=None)
    calls = [executor.submit(attempt, candidate, folds, alone) for candidate in candidates]
    tell, best, steps = stages.progress or (lambda progress: None), math.nan, folds.held_out_steps.sum()
    tell(Progress(0, len(calls), best, unit="models"))
    for done, call in enumerate(as_completed(calls), 1):
        best = float(np.fmin(best, call.result()[0].sum() / steps))
        tell(Progress(done, len(calls), best, unit="models"))
    return [call.result() for call in calls]


def _standard_error(sums: Array, counts: Array) -> float:
    """Of the ratio of summed costs to summed steps over episodes (a ratio estimator's, by linearisation)."""
    return float(np.sqrt(np.square(sums - counts * sums.sum() / counts.sum()).sum()) / counts.sum())
