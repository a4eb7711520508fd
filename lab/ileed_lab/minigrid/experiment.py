"""The paper's MiniGrid experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, final

import numpy as np

from ileed import (
    CategoricalMLP,
    Constant,
    Demonstrations,
    Embedded,
    Ileed,
    LatentDynamics,
    OneVersusRest,
    UniformMixture,
    bc,
    envs,
)
from ileed.envs import as_actor
from ileed.envs.abstract_task import AbstractTask
from ileed.envs.minigrid import MiniGridTask
from ileed.envs.simulation import POPULATIONS
from ileed_lab.baselines import FittedGail, Gail
from ileed_lab.grid import AbstractExperiment, Setting, scoring_seed
from ileed_lab.learners import Ensemble, expertise_by_label, likeliest
from ileed_lab.minigrid.beyond_experiment import HowMuch, Majority, ToldApart, WrongModel
from ileed_lab.minigrid.measures import (
    ENSEMBLE,
    EPISODES,
    STEPS,
    TASKS,
    demonstrations_of_trials,
    demonstrator_reward,
    fit_measures,
    mean_reward,
)
from ileed_lab.minigrid.noise import Biased
from ileed_lab.minigrid.sequence import TaskSequence, demonstrator_rewards, experts, multi_skill, multi_skill_task
from ileed_lab.records import Measured

__all__ = ["MINIGRID", "WIDER"]

WIDER = CategoricalMLP(hidden=(8, 8))
"""A policy with twice the paper's units: it overfits more in one fit, and gains more from an ensemble."""


@final
@dataclass(frozen=True)
class Experts(AbstractExperiment):
    """Reward of the trained experts when they follow their policy with probability beta, else act at random."""

    name: str = "minigrid/experts"
    trials: int = 1
    episodes: int = 1_000

    @property
    def plan(self) -> Mapping[str, Any]:
        return {"episodes": self.episodes}

    def settings(self) -> Sequence[Setting]:
        return [{"task": task, "beta": beta} for task, beta in product(TASKS, (1.0, 0.9, 0.5, 0.1))]

    def methods(self, setting: Setting) -> Mapping[str, None]:
        turning = {"turning noise": None} if setting["task"] == "minigrid/obstacles" else {}
        return {"uniform noise": None} | turning

    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[None]:
        return [None for _ in trials]

    def task(self, setting: Setting) -> AbstractTask:
        return envs.task(setting["task"])

    def measure(self, setting: Setting, method: str, trial: int, fit: None) -> Measured:
        return demonstrator_reward(
            self.task(setting),
            setting["beta"],
            episodes=self.episodes,
            trial=trial,
            demonstrator=Biased((0, 1)) if method == "turning noise" else UniformMixture(),
        )


@final
@dataclass(frozen=True)
class Populations(AbstractExperiment):
    """Ten demonstrators, a thousand steps each, in four populations: which method learns what from them."""

    name: str = "minigrid/populations"
    trials: int = 20

    @property
    def plan(self) -> Mapping[str, Any]:
        return {"episodes": EPISODES, "steps": STEPS, "ensemble": ENSEMBLE}

    def settings(self) -> Sequence[Setting]:
        return [{"task": task, "population": population} for task, population in product(TASKS, POPULATIONS)]

    def methods(self, setting: Setting) -> Mapping[str, Ileed]:
        return {
            "bc": bc(),
            "ileed": Ileed(expertise=Constant()),
            "embedded": Ileed(expertise=Embedded()),
            "dynamics": Ileed(expertise=Embedded(), dynamics=LatentDynamics()),
            "one-versus-rest": Ileed(expertise=Constant(), demonstrator=OneVersusRest()),
        }

    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[Demonstrations]:
        return demonstrations_of_trials(setting["task"], dict.fromkeys(trials, POPULATIONS[setting["population"]]))

    def task(self, setting: Setting) -> AbstractTask:
        return envs.task(setting["task"])

    def measure(self, setting: Setting, method: str, trial: int, fit: Ensemble) -> Measured:
        return fit_measures(fit, self.task(setting), POPULATIONS[setting["population"]], trial=trial)


@final
@dataclass(frozen=True)
class Adversarial(AbstractExperiment):
    """GAIL on the same demonstrations, which also plays in the environment: one run a trial, no restarts.

    Both horizons are run: the variable one, under which the length of an episode leaks reward, and an absorbing state
    up to the task's limit, under which it does not.
    """

    name: str = "minigrid/gail"
    trials: int = 3

    @property
    def plan(self) -> Mapping[str, Any]:
        return {"episodes": EPISODES, "steps": STEPS}

    def settings(self) -> Sequence[Setting]:
        return Populations().settings()

    def methods(self, setting: Setting) -> Mapping[str, Gail]:
        task = MiniGridTask(setting["task"])
        return {
            "variable": Gail(task=task, horizon="variable", iterations=60),
            "absorbing": Gail(task=task, horizon="absorbing", iterations=60),
        }

    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[Demonstrations]:
        return Populations().demonstrations(setting, trials)

    def task(self, setting: Setting) -> AbstractTask:
        return envs.task(setting["task"])

    def measure(self, setting: Setting, method: str, trial: int, fit: FittedGail) -> Measured:
        """Reward of the most likely actions, as for all methods, and of sampled actions, as in GAIL's training."""

        def sampled(observations: Any, starts: Any) -> Any:
            return fit.policy.predict(observations, deterministic=False)[0]

        task = self.task(setting)
        return {
            "reward": mean_reward(fit.policy, task, trial=trial),
            "sampled_reward": mean_reward(sampled, task, trial=trial),
            "curve": [
                {"environment_steps": point.steps, "reward": point.episodic_reward, "critic_gap": point.critic_gap}
                for point in fit.history[9::10]
            ],
        }


@final
@dataclass(frozen=True)
class Restarts(AbstractExperiment):
    """Ten demonstrators who act at random with probability 0 to 0.5: how often the policy beats them, by restarts."""

    name: str = "minigrid/restarts"
    trials: int = 100
    episodes: int = 500

    @property
    def plan(self) -> Mapping[str, Any]:
        return {"episodes": self.episodes, "steps": STEPS, "ensemble": ENSEMBLE}

    def settings(self) -> Sequence[Setting]:
        return [{"task": task} for task in TASKS]

    def methods(self, setting: Setting) -> Mapping[str, Ileed]:
        return {"ileed": Ileed(expertise=Constant()), "wider": Ileed(expertise=Constant(), policy=WIDER)}

    def _skills(self, trial: int) -> tuple[float, ...]:
        return tuple((1 - np.random.default_rng(trial).uniform(0, 0.5, 10)).round(4).tolist())

    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[Demonstrations]:
        return demonstrations_of_trials(setting["task"], {trial: self._skills(trial) for trial in trials})

    def task(self, setting: Setting) -> AbstractTask:
        return envs.task(setting["task"])

    def measure(self, setting: Setting, method: str, trial: int, fit: Ensemble) -> Measured:
        """Rewards of the best of 1, 5 and 20 restarts, of an ensemble and of all demonstrators, in the same
        episodes."""
        task, skills = self.task(setting), self._skills(trial)
        choices = {str(among): likeliest(fit, among=among) for among in (1, 5, 20)}
        rewards: dict[int, float] = {}
        for fitted in choices.values():
            if fitted.restarts.chosen not in rewards:
                reward = mean_reward(fitted.policy, task, trial=trial, episodes=self.episodes)
                rewards[fitted.restarts.chosen] = reward
        demonstrators = [
            demonstrator_reward(task, skill, episodes=self.episodes, trial=trial)["reward"] for skill in skills
        ]
        ensemble = likeliest(fit, count=ENSEMBLE).policy
        return {
            "best_of": {among: rewards[fitted.restarts.chosen] for among, fitted in choices.items()},
            "ensemble": mean_reward(ensemble, task, trial=trial, episodes=self.episodes),
            "demonstrators": demonstrators,
            "skills": list(skills),
        }


@final
@dataclass(frozen=True)
class Ranking(AbstractExperiment):
    """Ten demonstrators in Obstacles, of the same mean skill, in a narrow or a wide range: is their order found?"""

    name: str = "minigrid/ranking"
    trials: int = 20

    @property
    def plan(self) -> Mapping[str, Any]:
        return {"episodes": EPISODES, "steps": STEPS, "ensemble": ENSEMBLE}

    def settings(self) -> Sequence[Setting]:
        return [{"task": "minigrid/obstacles", "range": spread} for spread in ("low", "high")]

    def methods(self, setting: Setting) -> Mapping[str, Ileed]:
        return {"bc": bc(), "ileed": Ileed(expertise=Constant())}

    def _skills(self, setting: Setting) -> tuple[float, ...]:
        low, high = {"low": (0.15, 0.85), "high": (0.05, 0.95)}[setting["range"]]
        return tuple(np.linspace(low, high, 10).round(4).tolist())

    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[Demonstrations]:
        return demonstrations_of_trials(setting["task"], {trial: self._skills(setting) for trial in trials})

    def task(self, setting: Setting) -> AbstractTask:
        return envs.task(setting["task"])

    def measure(self, setting: Setting, method: str, trial: int, fit: Ensemble) -> Measured:
        return fit_measures(fit, self.task(setting), self._skills(setting), trial=trial)


@final
@dataclass(frozen=True)
class ManySkills(AbstractExperiment):
    """A sequence of tasks (Unlock, Lava, Empty); three demonstrators, each perfect in one and `beta` in the others."""

    name: str = "minigrid/skills"
    trials: int = 100
    steps: int = 10_000
    episodes: int = 100

    @property
    def plan(self) -> Mapping[str, Any]:
        return {"episodes": self.episodes, "steps": self.steps}

    def settings(self) -> Sequence[Setting]:
        return [{"beta": beta} for beta in (0.01, 0.1, 0.2, 0.5, 1.0)]

    def methods(self, setting: Setting) -> Mapping[str, Ileed | None]:
        everywhere: dict[str, Ileed | None] = {
            "demonstrators": None,
            "ileed": Ileed(expertise=Embedded()),
            "wider": Ileed(expertise=Embedded(), policy=WIDER),
        }
        if setting["beta"] not in (0.01, 0.2, 1.0):  # the ablation is published for these alone
            return everywhere
        return everywhere | {
            "bc": bc(),
            "constant": Ileed(expertise=Constant()),
            "shared": Ileed(expertise=Embedded(shared=True)),
        }

    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[Demonstrations]:
        skills = {trial: multi_skill(setting["beta"]) for trial in trials}
        return demonstrations_of_trials("minigrid/skills", skills, steps=self.steps)

    def task(self, setting: Setting) -> TaskSequence:
        return multi_skill_task()

    def measure(self, setting: Setting, method: str, trial: int, fit: Ensemble | None) -> Measured:
        """Reward in each stage of the sequence, of the likeliest restart and of an ensemble, and expertise by stage."""
        if fit is None:
            return {"demonstrators": self._demonstrators(setting, trial)}
        measured: Measured = {}
        for prefix, count in (("", 1), ("ensemble_", ENSEMBLE)):
            stages = self._rewards_by_stage(setting, trial, likeliest(fit, count=count).policy)
            measured[f"{prefix}reward"] = float(np.mean(list(stages.values())))
            measured[f"{prefix}stages"] = stages
        best = likeliest(fit)
        measured["nats_per_action"] = best.nats_per_action
        if best.estimates_expertise:
            measured["expertise"] = expertise_by_label(best, fit.data, "phase")
        return measured

    def _rewards_by_stage(self, setting: Setting, trial: int, policy: Any) -> dict[str, float]:
        task = self.task(setting)
        rewards = task.score_stages(as_actor(policy), episodes=self.episodes, seed=scoring_seed(trial))
        return {stage.name: float(each.mean()) for stage, each in zip(task.stages, rewards, strict=True)}

    def _demonstrators(self, setting: Setting, trial: int) -> dict[str, float]:
        task = self.task(setting)
        return {
            name: float(
                demonstrator_rewards(
                    task, experts(task), skill=skill, episodes=self.episodes, seed=scoring_seed(trial)
                ).mean()
            )
            for name, skill in multi_skill(setting["beta"]).items()
        }


MINIGRID: tuple[AbstractExperiment, ...] = (
    *(Experts(), Populations(), Adversarial(), Restarts(), Ranking(), ManySkills()),
    *(HowMuch(), WrongModel(), ToldApart(), Majority()),
)
"""Every experiment, in the order of the page."""
