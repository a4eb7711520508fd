"""What the MiniGrid experiments share: simulated demonstrations of many trials, and how policies are scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ileed import Demonstrations, Fitted, UniformMixture, envs, rank_loss
from ileed.envs import as_actor
from ileed.envs.abstract_task import AbstractTask
from ileed.envs.simulation import demonstrate
from ileed_lab.grid import scoring_seed
from ileed_lab.learners import Ensemble, likeliest
from ileed_lab.minigrid.sequence import actor_by_stage, demonstrator_rewards, experts
from ileed_lab.records import Measured

__all__ = [
    "ENSEMBLE",
    "EPISODES",
    "STEPS",
    "TASKS",
    "demonstrations_of_trials",
    "demonstrator_reward",
    "fit_measures",
    "mean_reward",
    "rank_loss_of",
]

TASKS = ("minigrid/empty", "minigrid/obstacles", "minigrid/lava", "minigrid/unlock")
STEPS = 1_000
"""Of each demonstrator."""
EPISODES = 200
"""In which a policy is scored."""
ENSEMBLE = 10
"""How many of the likeliest restarts act as an ensemble."""


def demonstrations_of_trials(
    task: str, skills: Mapping[int, Sequence[float] | Mapping[str, Any]], *, steps: int = STEPS, **simulation: Any
) -> list[Demonstrations]:
    """Demonstrations of every trial, from the trial's own skills; `simulation` is passed to `demonstrate`.

    All trials are simulated together, which is faster. A demonstrator's random numbers depend on the name alone, and
    here the trial is part of the name, so that each trial comes out as it would alone.
    """
    named = {trial: _by_name(people) for trial, people in skills.items()}
    by_name = {f"{name}, trial {trial}": skill for trial, own in named.items() for name, skill in own.items()}
    world = envs.task(task)
    policy = envs.expert(task) if task in envs.names() else actor_by_stage(experts(world), world)
    played = demonstrate(world, policy, skill=by_name, steps=steps, seed=0, **simulation)
    return [
        replace(played.by(*(f"{name}, trial {trial}" for name in own)), names=tuple(own))
        for trial, own in named.items()
    ]


def _by_name(skills: Sequence[float] | Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(skills, Mapping):
        return skills
    return {f"demonstrator {number}": skill for number, skill in enumerate(skills, start=1)}


def mean_reward(policy: Any, task: AbstractTask, *, trial: int, episodes: int = EPISODES) -> float:
    """Mean episodic reward of a policy in the scoring episodes of a trial."""
    rewards = task.score(as_actor(policy), episodes=episodes, seed=scoring_seed(trial))
    return float(rewards.mean())


def demonstrator_reward(
    task: AbstractTask,
    skill: float,
    *,
    episodes: int,
    trial: int,
    demonstrator: Any = UniformMixture(),  # noqa: B008 (frozen)
) -> Measured:
    """Mean episodic reward of a demonstrator of known skill, and the standard error of that mean."""
    rewards = demonstrator_rewards(
        task,
        envs.expert(task.name),
        skill=skill,
        episodes=episodes,
        seed=scoring_seed(trial),
        demonstrator=demonstrator,
    ).mean(axis=0)
    return {"reward": float(rewards.mean()), "standard_error": float(rewards.std(ddof=1) / len(rewards) ** 0.5)}


def fit_measures(fit: Ensemble, task: AbstractTask, skills: Sequence[float], *, trial: int) -> Measured:
    """Reward of the likeliest restart and of the ensemble, cost, and the estimate of every demonstrator's expertise."""
    best = likeliest(fit)
    measured: Measured = {
        "reward": mean_reward(best.policy, task, trial=trial),
        "ensemble_reward": mean_reward(likeliest(fit, count=ENSEMBLE).policy, task, trial=trial),
        "nats_per_action": best.nats_per_action,
    }
    if best.estimates_expertise:
        measured["expertise"] = [round(value, 5) for value in best.expertise.by_demonstrator().values()]
        if len(set(skills)) > 1:
            measured["rank_loss"] = rank_loss_of(best, skills)
    return measured


def rank_loss_of(fitted: Fitted, skills: Sequence[float]) -> float:
    """Share of pairs of demonstrators that the estimated expertise puts in the wrong order."""
    estimated = fitted.expertise.by_demonstrator()
    return rank_loss(estimated, dict(zip(estimated, skills, strict=True)))
