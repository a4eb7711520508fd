"""Simulation: demonstrators of known skill."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, MixtureSameFamily

from ileed._torch import default_modes, stream
from ileed.data import Demonstrations
from ileed.envs.abstract_task import AbstractTask, Actor, Array, Flags, Progress, actions_of, as_actor
from ileed.errors import SettingsError, brief, callable_or_none, instance_of, is_finite, number, seed_of, whole_number
from ileed.model.demonstrators import UniformMixture, VarianceScaling
from ileed.model.distributions import component_action, mixture, mixture_parts
from ileed.model.expertise import practice

__all__ = ["POPULATIONS", "Drifting", "Noise", "demonstrate", "demonstrator_actor"]

Skill = float | Mapping[str, float]
"""How closely a demonstrator follows the policy, from 0 to 1: everywhere, or by name of a task's phase."""

POPULATIONS: Mapping[str, tuple[float, ...]] = {
    "beta-1": (0.99,) + (0.01,) * 9,
    "beta-5": (0.99,) * 5 + (0.01,) * 5,
    "beta-10": (0.99,) * 10,
    "unif": tuple(round(0.05 + 0.1 * step, 2) for step in range(10)),
}
"""The skills of the paper's four groups of ten demonstrators."""


@final
@dataclass(frozen=True, kw_only=True)
class Drifting:
    """The skill of a demonstrator who learns or tires: `first` in episode 0, `last` in episode `episodes` - 1.

    It follows the learning curve of `ileed.Drift` with the same `episodes`. Both ends are between 0 and 1.
    """

    first: float
    last: float
    episodes: int

    def __post_init__(self) -> None:
        for name in ("first", "last"):
            rule = "skill that changes must be above 0 and below 1"
            number(name, getattr(self, name), above=0, below=1, rule=rule)
        whole_number("episodes", self.episodes, least=2, rule="skill changes over at least two episodes")

    @property
    def change(self) -> float:
        """The change of the logit, w_i1 of `Drift`."""
        first, last = torch.tensor([self.first, self.last], dtype=torch.float64).logit()
        return float(last - first)

    def at(self, episode: int) -> float:
        """The skill in an episode, counted from 0."""
        done = practice(torch.tensor(episode, dtype=torch.float64), self.episodes)
        start = torch.tensor(self.first, dtype=torch.float64).logit()
        return float((start + self.change * done).sigmoid())


class Noise(Protocol):
    """The action distribution of a demonstrator, given a policy and skill: a demonstrator model, or one like it.

    If it depends on the previous action it has `after(previous)`, the noise after (env,) actions, -1 at the start of an
    episode, or after (env, dimension) residuals of continuous actions, NaN at the start.
    """

    discrete: bool

    def observed(self, policy: Any, expertise: Tensor) -> Distribution:
        """The demonstrator's distribution of actions."""


@default_modes()
def demonstrate(
    task: AbstractTask,
    policy: Any,
    *,
    skill: Mapping[str, Skill | Drifting] | Sequence[Skill | Drifting],
    steps: int,
    seed: int,
    demonstrator: Noise | None = None,
    temperature: float | None = None,
    progress: Progress | None = None,
) -> Demonstrations:
    """Let demonstrators of known skill play a task, and return their demonstrations.

    Actions are sampled from `demonstrator.observed(pi, skill)`. Discrete pi is the policy's most likely action, or a
    softened policy (see `temperature`). Continuous pi is `policy.distribution(observations)`, a mixture of Gaussians;
    for a recurrent policy, the first result of `policy.next_distribution(observations, state, starts)`, whose second
    is the next state. Each demonstrator has random streams named after `seed` and its name, so adding one does not
    change the others.

    Args:
        task: the task. If it has phases, the column "phase" of `skills` names that of every step.
        policy: the policy that perfect demonstrators follow.
        skill: the skill of each demonstrator by name, or a list for "demonstrator 1", "demonstrator 2", and so on. A
            skill is a number, numbers by phase, or `Drifting(first=, last=, episodes=)`.
        steps: the number of each demonstrator's steps; the last episode is cut off.
        seed: of all random streams.
        demonstrator: by default `UniformMixture()`, or `VarianceScaling()` for continuous actions.
        temperature: raises `policy.probabilities(observations)` to the power 1 / temperature to give discrete pi.
        progress: called with the number of steps done and `steps`.
    """
    instance_of("task", task, AbstractTask, rule="pass a task, as ileed.envs.task('minigrid/obstacles') gives it")
    steps = whole_number("steps", steps, least=1, rule="pass a whole number, one or more")
    callable_or_none("progress", progress, rule="pass a function of the number done and the total, or None")
    seed, named = seed_of(seed), _by_name(skill)
    drifting = {env: value for env, value in enumerate(named.values()) if isinstance(value, Drifting)}
    starts = {name: getattr(value, "first", value) for name, value in named.items()}
    noise, skills = _noise(demonstrator, task), [_by_phase(repr(name), value, task) for name, value in starts.items()]
    streams, draws = [stream(seed, "actions of", name) for name in named], (steps, 1 + task.action_size)
    chance = torch.stack([torch.rand(draws, generator=own, dtype=torch.float64) for own in streams], dim=1)
    by_step = iter(chance.numpy())
    played = task.play(
        _actor(_intention(policy, task, temperature), task, noise, skills, lambda rows: next(by_step), drifting),
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
        skills={} if played.phase is None else {"phase": np.array(task.phases)[played.phase]},
        action_count=task.action_count,
    )


def demonstrator_actor(
    policy: Any, task: AbstractTask, *, skill: Skill, seed: int, demonstrator: Noise | None = None
) -> Actor:
    """An actor that behaves like a demonstrator of that skill in `demonstrate`, to score it.

    `skill` may be given by phase if the observations of the task show the phase.
    """
    if isinstance(skill, Mapping):
        task.phase(np.empty((0, task.observation_size)))  # refuses a task whose observations do not
    generator, draws = stream(seed, "slips"), 1 + task.action_size
    return _actor(
        _intention(policy, task, None),
        task,
        _noise(demonstrator, task),
        [_by_phase("the actor", skill, task)],
        lambda rows: torch.rand(rows, draws, generator=generator, dtype=torch.float64).numpy(),
    )


def _actor(
    intention: Any,
    task: AbstractTask,
    noise: Noise,
    skills: list[list[float]],
    chance: Callable[[int], Array],
    drifting: Mapping[int, Drifting] | None = None,
) -> Actor:
    """An actor with (env, phase) skills, or (1, phase) for all environments, and drifting ones by environment.

    `chance(rows)` returns uniform numbers: one to choose an action or a mode, and one for each dimension.
    """
    table, differ = torch.tensor(skills, dtype=torch.float64), any(len(set(own)) > 1 for own in skills)
    after = getattr(noise, "after", None)
    episodes: Array = np.empty(0, dtype=np.int64)
    previous: Array = episodes

    def act(observations: Array, starts: Flags) -> Array:
        nonlocal episodes, previous
        size = (len(starts), task.action_size) if task.action_size else (len(starts),)
        none = np.full(size, np.nan if task.action_size else -1)
        if len(previous) != len(starts):
            episodes, previous = np.full(len(starts), -1), none
        episodes = episodes + starts
        phase = task.phase(observations, episodes) if differ else np.zeros_like(episodes)
        expertise = table.expand(len(starts), -1)[torch.arange(len(starts)), torch.as_tensor(phase)]
        for env, own in (drifting or {}).items():
            expertise[env] = own.at(int(episodes[env]))
        intended = intention(observations, starts)
        if after is None:
            return _draw(noise.observed(intended, expertise), chance(len(starts)))
        begins = starts[:, None] if task.action_size else starts
        now = after(torch.as_tensor(np.where(begins, none, previous)))
        action = previous = _draw(now.observed(intended, expertise), chance(len(starts)))
        if task.action_size:
            usual: Any = noise.observed(intended, torch.ones_like(expertise))
            previous = usual.residual(torch.from_numpy(action)).numpy()
        return action

    return act


def _draw(observed: Distribution, chance: Array) -> Array:
    """Sample an action for each row by its own uniform numbers."""
    if isinstance(observed, Categorical):
        return _quantile(observed.probs.numpy(), chance[:, 0])
    assert isinstance(observed, MixtureSameFamily)
    component = _quantile(observed.mixture_distribution.logits.softmax(-1).numpy(), chance[:, 0])
    # exactly 0 would be infinitely many standard deviations away
    normal = torch.special.ndtri(torch.from_numpy(chance[:, 1:]).clamp_min(torch.finfo(torch.float64).eps))
    return np.asarray(component_action(observed, torch.from_numpy(component), normal).numpy())


def _quantile(probabilities: Array, chance: Array) -> Array:
    """The index at which the cumulative probability exceeds each row's own uniform number."""
    return np.asarray((probabilities.cumsum(axis=-1)[:, :-1] <= chance[:, None]).sum(axis=-1), dtype=np.int64)


def _by_name(skill: Mapping[str, Any] | Sequence[Any]) -> Mapping[str, Any]:
    are_several = isinstance(skill, Mapping | Sequence | np.ndarray) and not isinstance(skill, str)
    if not are_several or not np.iterable(skill) or not len(skill):
        rule = "pass a list of skills, or a mapping from names to skills"
        raise SettingsError(f"skill is {brief(skill)}, which names no demonstrator: {rule}")
    if isinstance(skill, Mapping):
        return skill
    return {f"demonstrator {number}": value for number, value in enumerate(skill, start=1)}


def _by_phase(who: str, skill: Skill, task: AbstractTask) -> list[float]:
    """A demonstrator's skill in each phase of a task, checked."""
    phases = task.phases or (task.name,)
    given = skill if isinstance(skill, Mapping) else dict.fromkeys(phases, skill)
    if sorted(given) != sorted(phases):
        raise SettingsError(
            f"the skill of {who} is given in {', '.join(given) or 'no phase'}; give one number, or one for each phase "
            f"of {task.name}: {', '.join(phases)}"
        )
    for phase, value in given.items():
        if not is_finite(value) or not 0 <= value <= 1:
            where = f"{who} in {phase}" if isinstance(skill, Mapping) else who
            raise SettingsError(
                f"the skill of {where} is {brief(value)}, but skill must be from 0 to 1 (that of the policy)"
            )
    return [given[phase] for phase in phases]


def _noise(demonstrator: Noise | None, task: AbstractTask) -> Noise:
    default, kind = (VarianceScaling(), "continuous") if task.action_size else (UniformMixture(), "discrete")
    demonstrator = default if demonstrator is None else demonstrator
    if not hasattr(demonstrator, "observed") or not hasattr(demonstrator, "discrete"):
        rule = f"pass {type(default).__name__}() or another demonstrator model, or None"
        raise SettingsError(f"demonstrator is {brief(demonstrator)}: {rule}")
    if demonstrator.discrete != default.discrete:
        raise SettingsError(
            f"{demonstrator!r} does not fit the actions of {task.name}, which are {kind}: use {type(default).__name__}"
        )
    for each in getattr(demonstrator, "exempt", None) or ():
        if not 0 <= each < (size := task.action_size):
            raise SettingsError(f"exempt names dimension {each} but actions of {task.name} have {size}: leave it out")
    return demonstrator


def _intention(policy: Any, task: AbstractTask, temperature: float | None) -> Any:
    """A function of (observations, starts) that returns pi; a recurrent policy starts episodes without a state."""
    if temperature is not None and (task.action_size or not is_finite(temperature) or not temperature > 0):
        rule = "it softens discrete actions alone; leave it out" if task.action_size else "it must be above 0"
        raise SettingsError(f"temperature is {brief(temperature)}, but {rule}")
    if task.action_size and not hasattr(policy, "distribution"):
        raise SettingsError(f"{policy!r} has no distribution(observations) to widen; pass a policy that has one")
    if temperature is not None and not hasattr(policy, "probabilities"):
        raise SettingsError(f"{policy!r} has no probabilities(observations) to sample; leave out temperature")
    actor = None if task.action_size or temperature is not None else as_actor(policy)
    certain, state = torch.eye(task.action_count, dtype=torch.float64), None

    def intended(observations: Array, starts: Flags) -> Distribution:
        nonlocal state
        if actor is not None:
            return Categorical(probs=certain[actions_of(actor, task, observations, starts)], validate_args=False)
        if temperature is not None:
            powers = torch.as_tensor(policy.probabilities(observations), dtype=torch.float64) ** (1 / temperature)
            return Categorical(probs=powers / powers.sum(-1, keepdim=True), validate_args=False)
        if hasattr(policy, "next_distribution"):
            found, state = policy.next_distribution(observations, None if starts.all() else state, starts)
        else:
            found = policy.distribution(observations)
        if not isinstance(found, MixtureSameFamily):
            kind = type(found).__name__
            raise SettingsError(f"the policy's distribution is a {kind}, but must be a MixtureSameFamily of Gaussians")
        return mixture(*(part.double() for part in mixture_parts(found)))

    return intended
