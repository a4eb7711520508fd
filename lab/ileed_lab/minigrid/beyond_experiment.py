"""MiniGrid experiments beyond the paper: how much data is enough, and what a wrong demonstrator model costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, final

import numpy as np

from ileed import (
    BiasedMixture,
    Boltzmann,
    CategoricalMLP,
    Confusion,
    Constant,
    Demonstrations,
    Fitted,
    Ileed,
    OneVersusRest,
    Persistent,
    UniformMixture,
    bc,
    envs,
)
from ileed.envs.abstract_task import AbstractTask
from ileed.envs.simulation import POPULATIONS
from ileed_lab.grid import AbstractExperiment, Setting
from ileed_lab.learners import Auto, Chosen, Ensemble, Learner, Told, likeliest
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

__all__ = ["GENERATORS", "HowMuch", "Majority", "ToldApart", "WrongModel"]


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
        return envs.task("minigrid/obstacles")

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


WRONG_MODEL_TASKS = ("minigrid/obstacles", "minigrid/unlock")


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
        return [{"task": task, "generator": name} for task, name in product(WRONG_MODEL_TASKS, GENERATORS)]

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
        return envs.task(setting["task"])

    def measure(self, setting: Setting, method: str, trial: int, fit: Any) -> Measured:
        task, skills = self.task(setting), POPULATIONS["unif"]
        if method != "auto":
            return fit_measures(fit, task, skills, trial=trial)
        return fit_measures(fit.ensemble, task, skills, trial=trial) | _choice(fit)


def _choice(fit: Chosen) -> Measured:
    """The model that was chosen, and the held-out cost of every model."""
    found = fit.comparison
    return {"chosen": found.preferred, "models": dict(zip(found.models, found.nats_per_action, strict=True))}


@final
@dataclass(frozen=True)
class ToldApart(AbstractExperiment):
    """The choice of a demonstrator model from ten times the steps of `WrongModel`: are Boltzmann demonstrators
    recognised?

    The network is that of the width which held-out episodes prefer at this size; it and the number of optimisation
    steps were chosen on the trials from 100 on.
    """

    name: str = "minigrid/told-apart"
    trials: int = 5
    steps: ClassVar[int] = 10 * STEPS
    generators: ClassVar[tuple[str, ...]] = ("boltzmann", "uniform")

    @property
    def plan(self) -> Mapping[str, Any]:
        return {"steps": self.steps}

    def settings(self) -> Sequence[Setting]:
        return [{"task": task, "generator": name} for task, name in product(WRONG_MODEL_TASKS, self.generators)]

    def methods(self, setting: Setting) -> Mapping[str, Learner]:
        policy = CategoricalMLP(hidden=(32, 32))
        return {"auto": Auto(Ileed(policy=policy, expertise=Constant(), steps=300))}

    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[Demonstrations]:
        skills = dict.fromkeys(trials, POPULATIONS["unif"])
        simulation = GENERATORS[setting["generator"]]
        return demonstrations_of_trials(setting["task"], skills, steps=self.steps, **simulation)

    def measure(self, setting: Setting, method: str, trial: int, fit: Chosen) -> Measured:
        best = likeliest(fit.ensemble)
        measured: Measured = {"rank_loss": rank_loss_of(best, POPULATIONS["unif"])}
        return measured | {"nats_per_action": best.nats_per_action} | _choice(fit)


MAJORITY = {"good": 4, "alike": 6}
"""Demonstrators of skill 0.9 who slip to any action, and demonstrators of skill 0.2 who all slip to the same one."""


@final
@dataclass(frozen=True)
class Majority(AbstractExperiment):
    """Six of ten demonstrators make the same mistake, and the last two of them copy each other: who is believed?

    Four demonstrators follow the expert in 9 of 10 steps. Six do in 2 of 10, and step forward in the others; the tenth
    has the same steps as the ninth. With `gold`, the first demonstrator is known to be expert.
    """

    name: str = "minigrid/majority"
    trials: int = 5
    block: ClassVar[int] = 1

    @property
    def plan(self) -> Mapping[str, Any]:
        return {"episodes": EPISODES, "steps": STEPS}

    def settings(self) -> Sequence[Setting]:
        return [{"gold": gold} for gold in ("nobody", "one person")]

    def methods(self, setting: Setting) -> Mapping[str, Learner]:
        models = {"uniform": UniformMixture(), "biased": BiasedMixture(), "confusion": Confusion()}
        gold = ("demonstrator 1",) if setting["gold"] == "one person" else ()
        told = {name: Told(Ileed(expertise=Constant(), demonstrator=model), gold) for name, model in models.items()}
        return {"bc": Told(bc()), **told}

    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[Demonstrations]:
        task = "minigrid/obstacles"
        good, alike = ((0.9,) * MAJORITY["good"], (0.2,) * (MAJORITY["alike"] - 1))
        some = demonstrations_of_trials(task, dict.fromkeys(trials, good))
        others = demonstrations_of_trials(task, dict.fromkeys(trials, alike), demonstrator=noise.Biased((2,)))
        return [_with_a_copy(first, second) for first, second in zip(some, others, strict=True)]

    def task(self, setting: Setting) -> AbstractTask:
        return envs.task("minigrid/obstacles")

    def measure(self, setting: Setting, method: str, trial: int, fit: Fitted) -> Measured:
        measured: Measured = {
            "reward": mean_reward(fit.policy, self.task(setting), trial=trial),
            "nats_per_action": fit.nats_per_action,
        }
        if fit.estimates_expertise:
            found = list(fit.expertise.by_demonstrator().values())
            good = np.array(found[: MAJORITY["good"]])
            measured["expertise"] = [round(value, 4) for value in found]
            measured["rank_loss"] = float(np.mean([good <= value for value in found[MAJORITY["good"] :]]))
        return measured


def _with_a_copy(good: Demonstrations, alike: Demonstrations) -> Demonstrations:
    """Both groups as one, and the last demonstrator of the second once more under another name."""
    copy = alike.by(alike.names[-1])
    parts = [good, alike, copy]
    people = [len(part.names) for part in parts]
    episodes = [part.episode_count for part in parts]
    return Demonstrations(
        observations=np.concatenate([part.observations for part in parts]),
        actions=np.concatenate([part.actions for part in parts]),
        demonstrator=np.concatenate([part.demonstrator + sum(people[:k]) for k, part in enumerate(parts)]),
        episode=np.concatenate([part.episode + sum(episodes[:k]) for k, part in enumerate(parts)]),
        names=tuple(f"demonstrator {number + 1}" for number in range(sum(people))),
        action_count=good.action_count,
    )
