"""Simulation: demonstrators whose skill is known, because we made them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.distributions import Categorical

from ileed._torch import stream
from ileed.demonstrations import Demonstrations
from ileed.errors import SettingsError
from ileed.model.demonstrators import AbstractDemonstratorModel, UniformMixture
from ileed.tasks import AbstractTask, Actor, Progress, answered, as_actor

__all__ = ["POPULATIONS", "demonstrate", "slipping"]

Intention = Callable[[npt.NDArray[Any], npt.NDArray[np.bool_]], torch.Tensor]
"""From observations (env, feature) and starts (env,) to the policy's probabilities (env, action)."""

POPULATIONS: Mapping[str, tuple[float, ...]] = {
    "beta-1": (0.99,) + (0.01,) * 9,
    "beta-5": (0.99,) * 5 + (0.01,) * 5,
    "beta-10": (0.99,) * 10,
    "unif": tuple(round(0.05 + 0.1 * step, 2) for step in range(10)),
}
"""The skills of the paper's four groups of ten demonstrators."""


def demonstrate(
    task: AbstractTask,
    policy: Any,
    *,
    skill: Mapping[str, float] | Sequence[float],
    steps: int,
    seed: int,
    demonstrator: AbstractDemonstratorModel[Any] = UniformMixture(),  # noqa: B008 (frozen, so shared safely)
    sample: bool = False,
    progress: Progress | None = None,
) -> Demonstrations:
    """Let demonstrators of known skill play a task, `steps` steps each, the last episode cut where they are spent.

    `skill` names the demonstrators, or lists their skills, and then they are called "demonstrator 1", "demonstrator 2",
    and so on. What each of them does is drawn from `demonstrator.observed(pi, skill)`, where pi takes the policy's most
    likely action for certain, or is `policy.probabilities(observations)` with `sample=True`. (Under `Boltzmann` a
    policy that is certain hardly ever slips, whatever the skill: sample.)

    Each demonstrator has streams of chance of their own, named after `seed` and their name: adding one changes nobody
    else.
    """
    named = _named(skill)
    if not demonstrator.discrete:
        raise SettingsError(
            f"{demonstrator!r} is for continuous actions, but {task.name} has {task.action_count} actions"
        )
    expertise = torch.tensor(list(named.values()), dtype=torch.float64)
    chances = _chances(named, steps=steps, seed=seed)
    intended = _sampled(policy) if sample else _certain(policy, task)

    def act(observations: npt.NDArray[Any], starts: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        observed = demonstrator.observed(
            Categorical(probs=intended(observations, starts), validate_args=False), expertise
        )
        assert isinstance(observed, Categorical)
        return _drawn(observed.probs.numpy(), next(chances))

    played = task.play(
        act,
        steps=steps,
        seeds=[stream(seed, "episodes of", name).initial_seed() for name in named],
        progress=progress,
    )
    return Demonstrations(
        observations=played.observations,
        actions=played.actions,
        demonstrator=played.environment,
        episode=played.episode,
        names=tuple(named),
        rewards=played.rewards,
        terminals=played.terminals,
        action_count=task.action_count,
    )


def slipping(
    policy: Any,
    task: AbstractTask,
    *,
    skill: float,
    seed: int,
    demonstrator: AbstractDemonstratorModel[Any] = UniformMixture(),  # noqa: B008 (frozen, so shared safely)
) -> Actor:
    """An actor that follows `policy` as a demonstrator of that skill would, to score beside a learned policy."""
    _named({"the actor": skill})
    intended, generator = _certain(policy, task), stream(seed, "slips")

    def act(observations: npt.NDArray[Any], starts: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        policy_here = Categorical(probs=intended(observations, starts), validate_args=False)
        observed = demonstrator.observed(policy_here, torch.full((len(starts),), skill, dtype=torch.float64))
        chance = torch.rand(len(starts), generator=generator, dtype=torch.float64)
        assert isinstance(observed, Categorical)
        return _drawn(observed.probs.numpy(), chance.numpy())

    return act


def _named(skill: Mapping[str, float] | Sequence[float]) -> dict[str, float]:
    if not isinstance(skill, Mapping):
        skill = {f"demonstrator {number}": value for number, value in enumerate(skill, start=1)}
    if not skill:
        raise SettingsError("skill names no demonstrator; give at least one a number from 0 to 1")
    for name, value in skill.items():
        if not 0 <= value <= 1:
            raise SettingsError(f"the skill of {name!r} is {value}, but skill goes from 0 to 1 (the policy's own)")
    return dict(skill)


def _chances(names: Mapping[str, float], *, steps: int, seed: int) -> Iterator[npt.NDArray[np.float64]]:
    """One number in [0, 1) for every demonstrator (env,), step after step."""
    own = [torch.rand(max(steps, 0), generator=stream(seed, "actions of", name), dtype=torch.float64) for name in names]
    return iter(torch.stack(own, dim=1).numpy())


def _certain(policy: Any, task: AbstractTask) -> Intention:
    """All probability on the policy's most likely action."""
    actor = as_actor(policy)

    def intended(observations: npt.NDArray[Any], starts: npt.NDArray[np.bool_]) -> torch.Tensor:
        actions = torch.as_tensor(answered(actor, task, observations, starts))
        return torch.nn.functional.one_hot(actions, task.action_count).double()

    return intended


def _sampled(policy: Any) -> Intention:
    if not hasattr(policy, "probabilities"):
        raise SettingsError(f"{policy!r} has no probabilities(observations) to sample from; leave out sample=True")
    return lambda observations, starts: torch.as_tensor(policy.probabilities(observations), dtype=torch.float64)


def _drawn(probabilities: npt.NDArray[np.float64], chance: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """The action at which the sum of probabilities, from the first on, passes each row's own chance."""
    passed = probabilities.cumsum(axis=-1)[:, :-1] <= chance[:, None]
    return np.asarray(passed.sum(axis=-1), dtype=np.int64)
