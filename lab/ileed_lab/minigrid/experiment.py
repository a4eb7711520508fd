"""The paper's MiniGrid experiments, and those that go past it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, final

import numpy as np

from ileed import tasks
from ileed.demonstrations import Demonstrations
from ileed.evaluation import rank_loss
from ileed.fitted import Ensemble, Fitted
from ileed.methods import Ileed, bc
from ileed.model.demonstrators import Boltzmann, OneVersusRest, UniformMixture
from ileed.model.dynamics import LatentDynamics
from ileed.model.expertise import Constant, Embedded
from ileed.model.policies import CategoricalMLP
from ileed.simulation import POPULATIONS, Noise, demonstrate
from ileed.tasks import AbstractTask
from ileed_lab.baselines import FittedGail, Gail
from ileed_lab.grid import AbstractExperiment, Measured, Setting, scoring_seed
from ileed_lab.minigrid.noise import Biased, Persistent
from ileed_lab.minigrid.sequence import (
    TaskSequence,
    actor_by_stage,
    demonstrator_rewards,
    experts,
    multi_skill,
    multi_skill_task,
)

__all__ = ["MINIGRID", "WIDER"]

TASKS = ("minigrid/empty", "minigrid/obstacles", "minigrid/lava", "minigrid/unlock")
STEPS = 1_000
EPISODES = 200
COMMITTEE = 10
WIDER = CategoricalMLP(hidden=(8, 8))
"""A policy with twice the paper's units: it overfits more in one fit, and gains more from a committee."""


@final
@dataclass(frozen=True)
class Experts(AbstractExperiment):
    """What the trained experts earn when they follow themselves with probability beta, else act by chance."""

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
        return tasks.task(setting["task"])

    def measured(self, setting: Setting, method: str, trial: int, found: Any) -> Measured:
        noise: Noise = UniformMixture()
        if method == "turning noise":
            noise = Biased((0, 1))
        return _earned(self.task(setting), setting["beta"], episodes=self.episodes, trial=trial, noise=noise)


@final
@dataclass(frozen=True)
class Populations(AbstractExperiment):
    """Ten demonstrators, a thousand steps each, in four groups: who learns what from them."""

    name: str = "minigrid/populations"
    trials: int = 20

    @property
    def plan(self) -> Mapping[str, Any]:
        return {"episodes": EPISODES, "steps": STEPS, "committee": COMMITTEE}

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
        return _shown(setting["task"], dict.fromkeys(trials, POPULATIONS[setting["population"]]))

    def task(self, setting: Setting) -> AbstractTask:
        return tasks.task(setting["task"])

    def measured(self, setting: Setting, method: str, trial: int, found: Ensemble) -> Measured:
        return _learned(found, self.task(setting), POPULATIONS[setting["population"]], trial=trial)


@final
@dataclass(frozen=True)
class Adversarial(AbstractExperiment):
    """The same demonstrations given to GAIL, which may also play in the environment: one run a trial, no restarts.

    Both ways to end an episode are run: as the environment does, which leaks reward to whoever ends early or does not,
    and with an absorbing state up to the task's limit, which does not.
    """

    name: str = "minigrid/gail"
    trials: int = 1

    @property
    def plan(self) -> Mapping[str, Any]:
        return {"episodes": EPISODES, "steps": STEPS}

    def settings(self) -> Sequence[Setting]:
        return Populations().settings()

    def methods(self, setting: Setting) -> Mapping[str, Gail]:
        return {
            "variable": Gail(horizon="variable", iterations=60),
            "absorbing": Gail(horizon="absorbing", iterations=60),
        }

    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[Demonstrations]:
        return Populations().demonstrations(setting, trials)

    def task(self, setting: Setting) -> AbstractTask:
        return tasks.task(setting["task"])

    def measured(self, setting: Setting, method: str, trial: int, found: FittedGail) -> Measured:
        """Reward of the most likely actions, as for all methods, and of actions drawn, as GAIL was trained."""

        def drawn(observations: Any, starts: Any) -> Any:
            return found.policy.predict(observations, deterministic=False)[0]

        task = self.task(setting)
        return {
            "reward": _reward(found.policy, task, trial=trial),
            "sampled_reward": _reward(drawn, task, trial=trial),
            "curve": [
                {"environment_steps": point.steps, "reward": point.episodic_reward, "critic_gap": point.critic_gap}
                for point in found.history[9::10]
            ],
        }


@final
@dataclass(frozen=True)
class Restarts(AbstractExperiment):
    """Ten demonstrators whose noise is drawn from (0, 0.5): how often the learned policy beats them, by restarts."""

    name: str = "minigrid/restarts"
    trials: int = 100
    episodes: int = 500

    @property
    def plan(self) -> Mapping[str, Any]:
        return {"episodes": self.episodes, "steps": STEPS, "committee": COMMITTEE}

    def settings(self) -> Sequence[Setting]:
        return [{"task": task} for task in TASKS]

    def methods(self, setting: Setting) -> Mapping[str, Ileed]:
        return {"ileed": Ileed(expertise=Constant()), "wider": Ileed(expertise=Constant(), policy=WIDER)}

    def _skills(self, trial: int) -> tuple[float, ...]:
        return tuple((1 - np.random.default_rng(trial).uniform(0, 0.5, 10)).round(4).tolist())

    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[Demonstrations]:
        return _shown(setting["task"], {trial: self._skills(trial) for trial in trials})

    def task(self, setting: Setting) -> AbstractTask:
        return tasks.task(setting["task"])

    def measured(self, setting: Setting, method: str, trial: int, found: Ensemble) -> Measured:
        """Rewards of the best of 1, 5 and 20 restarts, of a committee and of everybody, in the same episodes."""
        task, skills = self.task(setting), self._skills(trial)
        choices = {str(among): found.first(among).best().fitted() for among in (1, 5, 20)}
        played: dict[int, float] = {}
        for fitted in choices.values():
            if fitted.restarts.chosen not in played:
                reward = _reward(fitted.policy, task, trial=trial, episodes=self.episodes)
                played[fitted.restarts.chosen] = reward
        everybody = [_earned(task, skill, episodes=self.episodes, trial=trial)["reward"] for skill in skills]
        committee = found.top(COMMITTEE).fitted().policy
        return {
            "best_of": {among: played[fitted.restarts.chosen] for among, fitted in choices.items()},
            "committee": _reward(committee, task, trial=trial, episodes=self.episodes),
            "demonstrators": everybody,
            "skills": list(skills),
        }


@final
@dataclass(frozen=True)
class Ranking(AbstractExperiment):
    """Ten demonstrators in Obstacles, of the same mean skill, spread a little or a lot: is their order found?"""

    name: str = "minigrid/ranking"
    trials: int = 20

    @property
    def plan(self) -> Mapping[str, Any]:
        return {"episodes": EPISODES, "steps": STEPS, "committee": COMMITTEE}

    def settings(self) -> Sequence[Setting]:
        return [{"task": "minigrid/obstacles", "range": spread} for spread in ("low", "high")]

    def methods(self, setting: Setting) -> Mapping[str, Ileed]:
        return {"bc": bc(), "ileed": Ileed(expertise=Constant())}

    def _skills(self, setting: Setting) -> tuple[float, ...]:
        low, high = {"low": (0.15, 0.85), "high": (0.05, 0.95)}[setting["range"]]
        return tuple(np.linspace(low, high, 10).round(4).tolist())

    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[Demonstrations]:
        return _shown(setting["task"], {trial: self._skills(setting) for trial in trials})

    def task(self, setting: Setting) -> AbstractTask:
        return tasks.task(setting["task"])

    def measured(self, setting: Setting, method: str, trial: int, found: Ensemble) -> Measured:
        return _learned(found, self.task(setting), self._skills(setting), trial=trial)


@final
@dataclass(frozen=True)
class ManySkills(AbstractExperiment):
    """Unlock, Lava and Empty in a row; three demonstrators, each perfect in one of them and `beta` elsewhere."""

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
        return _shown("minigrid/skills", skills, steps=self.steps)

    def task(self, setting: Setting) -> TaskSequence:
        return multi_skill_task()

    def measured(self, setting: Setting, method: str, trial: int, found: Ensemble | None) -> Measured:
        task = self.task(setting)
        if found is None:
            earned = {
                name: demonstrator_rewards(
                    task, experts(task), skill=skill, episodes=self.episodes, seed=scoring_seed(trial)
                ).mean()
                for name, skill in multi_skill(setting["beta"]).items()
            }
            return {"demonstrators": {name: float(reward) for name, reward in earned.items()}}
        measured: Measured = {}
        for kind, committee in (("", 1), ("committee_", COMMITTEE)):
            fitted = found.top(committee).fitted()
            rewards = task.score_stages(
                tasks.as_actor(fitted.policy), episodes=self.episodes, seed=scoring_seed(trial)
            ).mean(axis=1)
            measured[f"{kind}reward"] = float(rewards.mean())
            measured[f"{kind}parts"] = {  # as the records call the stages
                stage.name: float(reward) for stage, reward in zip(task.stages, rewards, strict=True)
            }
        fitted = found.best().fitted()
        measured["nats_per_action"] = fitted.nats_per_action
        if fitted.estimates_expertise:
            measured["expertise"] = fitted.expertise.by_label(found.data, "phase")
        return measured


@final
@dataclass(frozen=True)
class HowMuch(AbstractExperiment):
    """How reward and rank loss change with the demonstrators, their steps and the restarts, in Obstacles."""

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
        return _shown("minigrid/obstacles", dict.fromkeys(trials, skills), steps=setting["steps"])

    def task(self, setting: Setting) -> AbstractTask:
        return tasks.task("minigrid/obstacles")

    def measured(self, setting: Setting, method: str, trial: int, found: Ensemble) -> Measured:
        task, skills = self.task(setting), self._skills(setting)
        measured = _learned(found, task, skills, trial=trial)
        by_restarts = {}
        for among in (1, 2, 5, 10, 20):
            fitted = found.first(among).best().fitted()
            by_restarts[str(among)] = {"reward": _reward(fitted.policy, task, trial=trial)}
            if fitted.estimates_expertise:
                by_restarts[str(among)]["rank_loss"] = _rank_loss(fitted, skills)
        return measured | {"best_of": by_restarts}


GENERATORS: Mapping[str, dict[str, Any]] = {
    "uniform": {"demonstrator": UniformMixture()},
    "one-versus-rest": {"demonstrator": OneVersusRest()},
    "boltzmann": {"demonstrator": Boltzmann(), "temperature": 3.0},
    "persistent": {"demonstrator": Persistent()},
    "biased": {"demonstrator": Biased((2,))},
}
"""How simulated demonstrators err: as one of our models says, or as none does."""


@final
@dataclass(frozen=True)
class WrongNoise(AbstractExperiment):
    """Every way to err, fitted with every model of erring: what a wrong assumption costs (Unlock and Obstacles)."""

    name: str = "minigrid/wrong-noise"
    trials: int = 20

    @property
    def plan(self) -> Mapping[str, Any]:
        return {"episodes": EPISODES, "steps": STEPS}

    def settings(self) -> Sequence[Setting]:
        chosen = ("minigrid/obstacles", "minigrid/unlock")
        return [{"task": task, "generator": generator} for task, generator in product(chosen, GENERATORS)]

    def methods(self, setting: Setting) -> Mapping[str, Ileed]:
        return {
            "bc": bc(),
            "uniform": Ileed(expertise=Constant(), demonstrator=UniformMixture()),
            "one-versus-rest": Ileed(expertise=Constant(), demonstrator=OneVersusRest()),
            "boltzmann": Ileed(expertise=Constant(), demonstrator=Boltzmann()),
        }

    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[Demonstrations]:
        skills = dict.fromkeys(trials, POPULATIONS["unif"])
        return _shown(setting["task"], skills, **GENERATORS[setting["generator"]])

    def task(self, setting: Setting) -> AbstractTask:
        return tasks.task(setting["task"])

    def measured(self, setting: Setting, method: str, trial: int, found: Ensemble) -> Measured:
        return _learned(found, self.task(setting), POPULATIONS["unif"], trial=trial)


def _shown(
    task: str, skills: Mapping[int, Sequence[float] | Mapping[str, Any]], *, steps: int = STEPS, **noise: Any
) -> list[Demonstrations]:
    """Demonstrations of every trial, from each one's own skills.

    All trials are played together, which is faster; since a demonstrator's chance depends on nothing but their name,
    and here the trial is part of the name, each comes out as it would alone.
    """
    named = {trial: _names(people) for trial, people in skills.items()}
    everybody = {f"{name}, trial {trial}": skill for trial, own in named.items() for name, skill in own.items()}
    world = tasks.task(task)
    policy = tasks.expert(task) if task in tasks.names() else actor_by_stage(experts(world), world)
    played = demonstrate(world, policy, skill=everybody, steps=steps, seed=0, **noise)
    return [
        replace(played.by(*(f"{name}, trial {trial}" for name in own)), names=tuple(own))
        for trial, own in named.items()
    ]


def _names(skills: Sequence[float] | Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(skills, Mapping):
        return skills
    return {f"demonstrator {number}": skill for number, skill in enumerate(skills, start=1)}


def _reward(policy: Any, task: AbstractTask, *, trial: int, episodes: int = EPISODES) -> float:
    rewards = task.score(tasks.as_actor(policy), episodes=episodes, seed=scoring_seed(trial))
    return float(rewards.mean())


def _earned(
    task: AbstractTask,
    skill: float,
    *,
    episodes: int,
    trial: int,
    noise: Noise = UniformMixture(),  # noqa: B008 (frozen)
) -> Measured:
    """What a demonstrator of known skill earns, with the standard error of that mean."""
    rewards = demonstrator_rewards(
        task, tasks.expert(task.name), skill=skill, episodes=episodes, seed=scoring_seed(trial), demonstrator=noise
    ).mean(axis=0)
    return {"reward": float(rewards.mean()), "standard_error": float(rewards.std(ddof=1) / len(rewards) ** 0.5)}


def _learned(found: Ensemble, task: AbstractTask, skills: Sequence[float], *, trial: int) -> Measured:
    """Reward of the likeliest restart and of the committee, cost, and the estimate of everybody's skill."""
    fitted, committee = found.best().fitted(), found.top(COMMITTEE).fitted()
    measured: Measured = {
        "reward": _reward(fitted.policy, task, trial=trial),
        "committee_reward": _reward(committee.policy, task, trial=trial),
        "nats_per_action": fitted.nats_per_action,
    }
    if fitted.estimates_expertise:
        measured["expertise"] = [round(value, 5) for value in fitted.expertise.by_demonstrator().values()]
        if len(set(skills)) > 1:
            measured["rank_loss"] = _rank_loss(fitted, skills)
    return measured


def _rank_loss(fitted: Fitted, skills: Sequence[float]) -> float:
    estimated = fitted.expertise.by_demonstrator()
    return rank_loss(estimated, dict(zip(estimated, skills, strict=True)))


MINIGRID: tuple[AbstractExperiment, ...] = (
    *(Experts(), Populations(), Adversarial(), Restarts(), Ranking(), ManySkills()),
    *(HowMuch(), WrongNoise()),
)
"""Every experiment, in the order of the page."""
