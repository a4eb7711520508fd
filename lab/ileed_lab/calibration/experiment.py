"""Coverage of intervals of expertise in simulated populations, by cross-fitted and by in-sample ratings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, final

import numpy as np
import numpy.typing as npt

from ileed import Demonstrations, Fitted, OneVersusRest, UniformMixture, rate
from ileed.model.demonstrators import AbstractDemonstratorModel
from ileed_lab.calibration.designs import DESIGNS, FIRST_SEED, Population
from ileed_lab.grid import AbstractExperiment, Setting
from ileed_lab.learners import Rated
from ileed_lab.records import Measured

__all__ = ["LEVELS", "Coverage"]

LEVELS = (0.5, 0.8, 0.9, 0.95)


@final
@dataclass(frozen=True)
class Coverage(AbstractExperiment):
    """Do intervals of relative expertise hold the truth as often as they say? Trial k is one population."""

    name: str = "calibration/coverage"
    trials: int = 200
    first_seed: int = FIRST_SEED
    """Of the populations; `DEVELOPMENT_SEED` for whatever is tuned."""

    @property
    def plan(self) -> Mapping[str, Any]:
        return {"levels": list(LEVELS), "folds": Rated.folds, "first_seed": self.first_seed}

    def settings(self) -> Sequence[Setting]:
        return [{"design": name} for name in DESIGNS]

    def methods(self, setting: Setting) -> Mapping[str, Rated]:
        return {"cross-fitted": Rated(DESIGNS[setting["design"]].method)}

    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[Demonstrations]:
        return [self._population(setting, trial).data for trial in trials]

    def measure(self, setting: Setting, method: str, trial: int, fit: Fitted) -> Measured:
        model = DESIGNS[setting["design"]].method.model
        return measured(fit, self._population(setting, trial), model)

    def _population(self, setting: Setting, trial: int) -> Population:
        return DESIGNS[setting["design"]].population(self.first_seed + trial)


def measured(fit: Fitted, population: Population, model: AbstractDemonstratorModel[Any] | None = None) -> Measured:
    """Relative expertise, true and estimated, its intervals, and the probability of each pair's order."""
    ratings = fit.expertise.ratings
    assert ratings is not None
    names, true = list(population.data.names), population.relative
    tables = {level: ratings.table(confidence_level=level) for level in LEVELS}
    order = [tables[0.9]["demonstrator"].to_pylist().index(name) for name in names]

    def column(level: float, name: str) -> npt.NDArray[Any]:
        return tables[level][name].to_numpy()[order]

    own = np.array([fit.expertise.by_demonstrator()[name] for name in names])
    pairs = combinations(range(len(names)), 2)
    return {
        "true": _rounded(true),
        "estimate": _rounded(column(0.9, "expertise")),
        "in_sample": _rounded(own / own.mean()),
        "intervals": {
            str(level): [_rounded(column(level, "low")), _rounded(column(level, "high"))] for level in LEVELS
        },
        "better": _rounded([ratings.probability_better(names[i], names[j]) for i, j in pairs]),
        **_oracle(population, model),
        **_drift(fit, population),
        "newcomers": _newcomers(fit, population),
        "temperature": round(ratings.by.temperature, 4),
        "dispersion": round(ratings.by.dispersion, 4),
    }


def _oracle(population: Population, model: AbstractDemonstratorModel[Any] | None) -> Measured:
    """Estimates of a demonstrator who knows the best action of every state, where there is one."""
    if population.best_action is None or not isinstance(model, UniformMixture | OneVersusRest | None):
        return {}  # no oracle of the demonstrator's own habits
    policy = np.eye(population.data.action_count)[population.best_action]
    table = rate(policy, population.data, demonstrator=model).table()
    order = [table["demonstrator"].to_pylist().index(name) for name in population.data.names]
    return {"oracle": _rounded(table["expertise"].to_numpy()[order])}


def _drift(fit: Fitted, population: Population) -> Measured:
    """The change of every demonstrator's relative expertise from their first episode to the last, where demonstrators
    learn or tire."""
    if population.change is None:
        return {}
    tables = {level: fit.expertise.drift(confidence_level=level) for level in LEVELS}
    order = [tables[0.9]["demonstrator"].to_pylist().index(name) for name in population.data.names]

    def column(level: float, name: str) -> list[float]:
        return _rounded(tables[level][name].to_numpy()[order])

    intervals = {str(level): [column(level, "change_low"), column(level, "change_high")] for level in LEVELS}
    verdicts = [tables[0.95]["verdict"].to_pylist()[row] for row in order]
    true = _rounded(population.change / population.expertise.mean())
    return {"change": {"true": true, "estimate": column(0.9, "change"), "intervals": intervals, "verdicts": verdicts}}


def _newcomers(fit: Fitted, population: Population) -> Measured:
    """Every demonstrator's expertise relative to the fit's demonstrators: true, pooled and by their own steps alone."""
    found = fit.assess(population.newcomers)
    assert found.pooled is not None
    assert found.reference is not None
    return {
        "steps": found.steps.tolist(),
        "true": _rounded(population.newcomers_expertise / population.expertise.mean()),
        "pooled": _rounded(found.pooled.expertise / found.reference),
        "alone": _rounded(found.alone.expertise / found.reference),
        "level": _rounded(found.pooled.expertise),
    }


def _rounded(values: npt.ArrayLike) -> list[float]:
    return [round(float(value), 4) for value in np.asarray(values)]
