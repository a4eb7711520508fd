"""MiniGrid experiments with the baselines of this field, and with later models where the paper's numbers are higher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from ileed import CategoricalMLP, Constant, Demonstrations, Difficulty, Embedded, Ileed, envs, rank_loss
from ileed.envs.abstract_task import AbstractTask
from ileed.envs.simulation import POPULATIONS
from ileed_lab.baselines import Annotated, DawidSkene, FilteredBC, Glad, counter_bc
from ileed_lab.grid import AbstractExperiment, Setting
from ileed_lab.learners import Auto, Ensemble, Learner, Widened, likeliest
from ileed_lab.minigrid.experiment import WIDER, ManySkills, Populations, Ranking, Restarts
from ileed_lab.minigrid.measures import ENSEMBLE, EPISODES, STEPS, mean_reward
from ileed_lab.records import Measured

__all__ = ["LOW_RANGE", "Baselines", "Gaps"]

LOW_RANGE: Setting = {"task": "minigrid/obstacles", "range": "low"}
"""The setting of the ranking experiment that is none of the populations; its high range has the skills of unif."""


@final
@dataclass(frozen=True)
class Baselines(AbstractExperiment):
    """Models of annotators, Counter-BC and filtered BC on the demonstrations of the populations and of the ranking."""

    name: str = "minigrid/baselines"
    trials: int = 20

    @property
    def plan(self) -> Mapping[str, Any]:
        return {"episodes": EPISODES, "steps": STEPS, "ensemble": ENSEMBLE}

    def settings(self) -> Sequence[Setting]:
        return [*Populations().settings(), LOW_RANGE]

    def methods(self, setting: Setting) -> Mapping[str, Learner]:
        others = {"minigrid/obstacles": 2}.get(setting["task"], 6)  # actions beside the demonstrated one
        return {
            "dawid-skene": DawidSkene(),
            "glad": Glad(),
            "counter-bc": counter_bc(counterfactuals=1),
            "counter-bc-half": counter_bc(counterfactuals=others // 2),
            "top-ileed": FilteredBC("ileed"),
            "top-reward": FilteredBC("reward"),
            "top-skill": FilteredBC("skill", self.skills(setting)),
        }

    def skills(self, setting: Setting) -> tuple[float, ...]:
        """True skill of the demonstrators in their order."""
        if "range" in setting:
            return tuple(np.linspace(0.15, 0.85, 10).round(4).tolist())
        return POPULATIONS[setting["population"]]

    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[Demonstrations]:
        known: AbstractExperiment = Ranking() if "range" in setting else Populations()
        return [data for data in known.demonstrations(setting, trials) if data is not None]

    def task(self, setting: Setting) -> AbstractTask:
        return envs.task(setting["task"])

    def measure(self, setting: Setting, method: str, trial: int, fit: Any) -> Measured:
        """The order of demonstrators by a model of annotators; the reward of a policy, and the skills that it learned
        from."""
        skills = self.skills(setting)
        if method in ("dawid-skene", "glad"):
            return _order(fit, skills)
        measured: Measured = {}
        if method.startswith("top"):
            kept = [skills[int(name.removeprefix("demonstrator ")) - 1] for name in fit.kept]
            measured, fit = {"kept": kept}, fit.ensemble
        return measured | _rewards(fit, self.task(setting), trial=trial, episodes=EPISODES)


def _order(found: Annotated, skills: Sequence[float]) -> Measured:
    measured: Measured = {"expertise": [round(value, 5) for value in found.expertise.values()]}
    if len(set(skills)) > 1:
        measured["rank_loss"] = rank_loss(found.expertise, dict(zip(found.expertise, skills, strict=True)))
    return measured


def _rewards(fit: Ensemble, task: AbstractTask, *, trial: int, episodes: int) -> Measured:
    best = likeliest(fit)
    return {
        "reward": mean_reward(best.policy, task, trial=trial, episodes=episodes),
        "ensemble_reward": mean_reward(likeliest(fit, count=ENSEMBLE).policy, task, trial=trial, episodes=episodes),
        "nats_per_action": best.nats_per_action,
    }


@final
@dataclass(frozen=True)
class Gaps(AbstractExperiment):
    """The two cells in which the paper's numbers are above ours by much, with what the paper does not have.

    Demonstrations and scoring episodes are those of many skills at beta 0.01, and of restarts in Unlock.
    """

    name: str = "minigrid/gaps"
    trials: int = 100

    @property
    def plan(self) -> Mapping[str, Any]:
        episodes = {"skills_episodes": ManySkills().episodes, "restarts_episodes": Restarts().episodes}
        return episodes | {"ensemble": ENSEMBLE}

    def settings(self) -> Sequence[Setting]:
        return [
            {"table": "minigrid/skills", "beta": 0.01},
            {"table": "minigrid/restarts", "task": "minigrid/unlock"},
        ]

    def methods(self, setting: Setting) -> Mapping[str, Learner]:
        usual = Embedded() if setting["table"] == "minigrid/skills" else Constant()
        return {
            "difficulty": Ileed(expertise=Difficulty()),
            "wider-difficulty": Ileed(expertise=Difficulty(), policy=WIDER),
            "wide-32": Ileed(expertise=usual, policy=CategoricalMLP(hidden=(32, 32))),
            "width-by-episodes": Widened(Ileed(expertise=usual)),
            "restarts-100": Ileed(expertise=usual, restarts=100),
            "auto": Auto(Ileed(expertise=usual)),
        }

    def _published(self, setting: Setting) -> tuple[ManySkills | Restarts, Setting]:
        """The experiment that has this cell, and the cell's setting there."""
        own = {name: value for name, value in setting.items() if name != "table"}
        return ManySkills() if setting["table"] == "minigrid/skills" else Restarts(), own

    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[Demonstrations]:
        experiment, own = self._published(setting)
        return experiment.demonstrations(own, trials)

    def task(self, setting: Setting) -> AbstractTask:
        experiment, own = self._published(setting)
        return experiment.task(own)

    def measure(self, setting: Setting, method: str, trial: int, fit: Any) -> Measured:
        """Reward of the likeliest restart and of the ensemble, and what was chosen where something was."""
        measured: Measured = {}
        if method == "auto":
            measured, fit = {"chosen": fit.comparison.preferred}, fit.ensemble
        if method == "width-by-episodes":
            measured = {"hidden": list(fit.method.policy.hidden)}
        experiment, own = self._published(setting)
        if setting["table"] == "minigrid/skills":
            return measured | experiment.measure(own, method, trial, fit)
        return measured | _rewards(fit, experiment.task(own), trial=trial, episodes=experiment.episodes)
