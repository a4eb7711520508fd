"""What a comparison of demonstrator models found: their costs on held-out episodes, and everybody's order by each."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isnan, nan
from typing import Any, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ileed.ranks import centred_ranks, rank_correlation

_TWO_SIDED_95 = 1.96  # standard errors
ALIKE = 0.9
"""Rank correlation above which two orders of people are called the same."""


@final
@dataclass(frozen=True)
class ModelComparison:
    """Demonstrator models by the cost of episodes that they were not fitted to; the simplest first.

    `standard_errors` are of each cost's difference from the least, over episodes, and choose; `errors_from_preferred`
    are of its difference from the cost of the model that is chosen. `expertise` is everybody's by each model,
    cross-fitted; empty where a model rates nobody by one number.
    """

    models: tuple[str, ...]
    nats_per_action: tuple[float, ...]
    standard_errors: tuple[float, ...]
    held_out_steps: int
    demonstrators: tuple[str, ...]
    expertise: tuple[tuple[float, ...], ...]
    settings: tuple[Any, ...] = field(default=(), repr=False, compare=False)
    """The models themselves; none where a comparison was loaded with a run."""
    errors_from_preferred: tuple[float, ...] = ()
    """None in runs of versions that did not have them."""

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
        """One row for each model: its cost, how much more than the preferred, with a 95 % interval, and the order."""
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
        """Which model is preferred, by how much, and whether the order of people depends on the choice."""
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
        return f"{words}; {self._order()}"

    def _order(self) -> str:
        chosen = self.expertise[self.chosen]
        others = [own for number, own in enumerate(self.expertise) if number != self.chosen and own]
        if not (chosen and others):
            return "the order of people is of one model alone"
        alike = all(orders_alike(own, chosen) for own in others)
        near = [each for own in others if not isnan(each := rank_correlation(own, chosen))]
        if not near:
            return "no model tells people apart" if alike else "whether people are told apart depends on the model"
        if alike:
            return f"all models order people alike (rank correlations of {min(near):.2f} and more)"
        return f"the order of people depends on the model (rank correlations from {min(near):.2f} on)"


def orders_alike(first: npt.ArrayLike, second: npt.ArrayLike) -> bool:
    """Whether two fits order demonstrators alike: a rank correlation of `ALIKE` or more, or no order in either."""
    correlation = rank_correlation(first, second)
    if isnan(correlation):
        return not centred_ranks(first).any() and not centred_ranks(second).any()
    return correlation >= ALIKE
