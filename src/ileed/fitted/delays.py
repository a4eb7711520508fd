"""Delays by held-out episodes: how many steps ago people saw what they act on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import pyarrow as pa

from ileed.demonstrations import Array, Demonstrations
from ileed.demonstrations.streaming import held_in_memory
from ileed.fitted.comparison import ModelComparison
from ileed.fitted.ensemble import Ensemble
from ileed.fitted.model_choice import Folds, judged
from ileed.fitting.stages import Stages
from ileed.model.demonstrators import AbstractDemonstratorModel


@final
@dataclass(frozen=True, eq=False)
class DelayComparison:
    """Delays by the cost of episodes that were not fitted to; the least first.

    `by_demonstrator` is the delay at which each person's own held-out steps cost least, by policies that were fitted
    with the same delay for everybody.
    """

    delays: tuple[int, ...]
    comparison: ModelComparison
    by_demonstrator: dict[str, int]

    @property
    def chosen(self) -> int:
        """The least delay within one standard error of the best, in steps."""
        return self.delays[self.comparison.chosen]

    def table(self) -> pa.Table:
        """One row for each delay: its cost, how much more than the preferred, and the order of people."""
        return self.comparison.table()

    def sentence(self) -> str:
        """Which delay is preferred, by how much, and whether people differ."""
        words = self.comparison.sentence()
        others = {name: own for name, own in self.by_demonstrator.items() if own != self.chosen}
        if not others:
            return f"{words}; everybody's own steps prefer it"
        listed = ", ".join(f"{name} {own}" for name, own in list(others.items())[:5])
        return f"{words}; the steps of {len(others)} of {len(self.by_demonstrator)} people prefer another ({listed})"


def compare_delayed(
    data: Demonstrations,
    fit: Callable[[Demonstrations, Array, Stages], Ensemble],
    model: AbstractDemonstratorModel[Any],
    delays: Sequence[int],
    stages: Stages,
) -> DelayComparison:
    """The same model fitted to folds of the data with each delay, and judged by the episodes left out."""
    data, _ = held_in_memory(data)
    nats, expertise = [], []
    for place, delay in enumerate(delays):
        folds = Folds.of(data.delayed(delay), seed=stages.seed)  # the same folds: they depend on the seed alone
        stage = stages.stage(f"trying a delay of {delay} ({place + 1} of {len(delays)})", f"delay-{delay}")
        found = judged(folds, fit(folds.data, folds.weights, stage), model, stage.counter("rating"))
        nats.append(found[0])
        expertise.append(found[1])
    names = tuple(f"delay {delay}" for delay in delays)
    compared = replace(folds.compared([model] * len(delays), nats, expertise), models=names, settings=tuple(delays))
    owner, people = folds.data.episode_demonstrator, data.names
    each = np.stack([np.bincount(owner, weights=cost, minlength=len(people)) for cost in nats])
    best = dict(zip(people, (delays[number] for number in each.argmin(0)), strict=True))
    return DelayComparison(tuple(delays), compared, best)
