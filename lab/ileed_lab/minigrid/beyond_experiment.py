"""MiniGrid experiments beyond the paper: how much data is enough, and what a wrong demonstrator model costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, final

import numpy as np

from ileed import (
    BiasedMixture,
    Boltzmann,
    Confusion,
    Constant,
    Demonstrations,
    Ileed,
    OneVersusRest,
    Persistent,
    UniformMixture,
    bc,
    tasks,
)
from ileed.simulation import POPULATIONS
from ileed.tasks import AbstractTask
from ileed_lab.grid import AbstractExperiment, Setting
from ileed_lab.learners import Auto, Chosen, Ensemble, Learner, likeliest
from ileed_lab.minigrid import noise
from ileed_lab.minigrid.measures import (
    EPISODES,
    STEPS,
    demonstrations_of_trials,
    fit_measures,
    mean_reward,
    rank_loss_of,
)
from ileed_lab.records import Measured

__all__ = ["GENERATORS", "HowMuch", "WrongModel"]


@final
@dataclass(frozen=True)
class HowMuch(AbstractExperiment):
    """Reward and rank loss by the number of demonstrators, of their steps and of restarts, in Obstacles."""

    name: str = "minigrid/how-much"
    trials: int = 20

    @property
    def plan(self) -> Mapping[str, Any]:
        return {"episodes": EPISODES}

    def settings(self) -> Sequence[Setting]:
        people = [{"demonstrators": count, "steps": STEPS} for count in (2, 5, 10, 20, 40)]
        steps = [{"demonstrators": 10, "steps": count} for count in (100, 300, 3_000)]
        return [*people, *steps]

    def methods(self, setting: Setting) -> Mapping[str, Ileed]:
        return {"bc": bc(), "ileed": Ileed(expertise=Constant())}

    def _skills(self, setting: Setting) -> tuple[float, ...]:
        return tuple(np.linspace(0.05, 0.95, setting["demonstrators"]).round(4).tolist())

    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[Demonstrations]:
        skills = self._skills(setting)
        return demonstrations_of_trials("minigrid/obstacles", dict.fromkeys(trials, skills), steps=setting["steps"])

    def task(self, setting: Setting) -> AbstractTask:
        return tasks.task("minigrid/obstacles")

    def measure(self, setting: Setting, method: str, trial: int, fit: Ensemble) -> Measured:
        task, skills = self.task(setting), self._skills(setting)
        measured = fit_measures(fit, task, skills, trial=trial)
        by_restarts = {}
        for among in (1, 2, 5, 10, 20):
            fitted = likeliest(fit, among=among)
            by_restarts[str(among)] = {"reward": mean_reward(fitted.policy, task, trial=trial)}
            if fitted.estimates_expertise:
                by_restarts[str(among)]["rank_loss"] = rank_loss_of(fitted, skills)
        return measured | {"best_of": by_restarts}


GENERATORS: Mapping[str, dict[str, Any]] = {
    "uniform": {"demonstrator": UniformMixture()},
    "one-versus-rest": {"demonstrator": OneVersusRest()},
    "boltzmann": {"demonstrator": Boltzmann(), "temperature": 3.0},
    "persistent": {"demonstrator": noise.Persistent()},
    "biased": {"demonstrator": noise.Biased((2,))},
}
"""How demonstrators are simulated: by one of our demonstrator models, or in a way that none of them describes."""


@final
@dataclass(frozen=True)
class WrongModel(AbstractExperiment):
    """Every simulated demonstrator fitted with every demonstrator model: what a wrong model costs."""

    name: str = "minigrid/wrong-noise"
    trials: int = 20

    @property
    def plan(self) -> Mapping[str, Any]:
        return {"episodes": EPISODES, "steps": STEPS}

    def settings(self) -> Sequence[Setting]:
        chosen = ("minigrid/obstacles", "minigrid/unlock")
        return [{"task": task, "generator": generator} for task, generator in product(chosen, GENERATORS)]

    def methods(self, setting: Setting) -> Mapping[str, Learner]:
        return {
            "bc": bc(),
            "uniform": Ileed(expertise=Constant(), demonstrator=UniformMixture()),
            "one-versus-rest": Ileed(expertise=Constant(), demonstrator=OneVersusRest()),
            "boltzmann": Ileed(expertise=Constant(), demonstrator=Boltzmann()),
            "shared-habit": Ileed(expertise=Constant(), demonstrator=BiasedMixture(shared=True)),
            "biased": Ileed(expertise=Constant(), demonstrator=BiasedMixture()),
            "persistent": Ileed(expertise=Constant(), demonstrator=Persistent()),
            "persistent-biased": Ileed(expertise=Constant(), demonstrator=Persistent(biased=True)),
            "confusion": Ileed(expertise=Constant(), demonstrator=Confusion()),
            "auto": Auto(Ileed(expertise=Constant())),
        }

    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[Demonstrations]:
        skills = dict.fromkeys(trials, POPULATIONS["unif"])
        return demonstrations_of_trials(setting["task"], skills, **GENERATORS[setting["generator"]])

    def task(self, setting: Setting) -> AbstractTask:
        return tasks.task(setting["task"])

    def measure(self, setting: Setting, method: str, trial: int, fit: Ensemble | Chosen) -> Measured:
        task, skills = self.task(setting), POPULATIONS["unif"]
        if isinstance(fit, Ensemble):
            return fit_measures(fit, task, skills, trial=trial)
        found = fit.comparison
        compared = {"chosen": found.preferred, "models": dict(zip(found.models, found.nats_per_action, strict=True))}
        return fit_measures(fit.ensemble, task, skills, trial=trial) | compared
