"""Simulation: demonstrators whose skill is known, because we made them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch.distributions import Categorical, Distribution, MixtureSameFamily

from ileed._torch import stream
from ileed.checking import instance_of, seed_of, shown, whole_number
from ileed.demonstrations import Demonstrations
from ileed.errors import SettingsError
from ileed.model.demonstrators import AbstractDemonstratorModel, UniformMixture, VarianceScaling
from ileed.model.distributions import component_action, mixture, mixture_parts
from ileed.tasks import AbstractTask, Actor, Progress, answered, as_actor
from ileed.tasks.succession import SUCCESSIONS, part_seed, parts_of

__all__ = [
    "POPULATIONS",
    "AbstractHabit",
    "Biased",
    "Persistent",
    "demonstrate",
    "demonstrator_rewards",
    "multi_skill",
    "slipping",
]

Skill = float | Mapping[str, float]
"""How closely somebody follows the policy, from 0 to 1: everywhere, or by name in each part of a succession or each of
a task's phases."""

Intention = Callable[[npt.NDArray[Any], npt.NDArray[np.bool_]], Distribution]
"""From observations (env, feature) and starts (env,) to the policy's own distribution of actions, (env,)."""

_NONE = -1  # the action before an episode's first

POPULATIONS: Mapping[str, tuple[float, ...]] = {
    "beta-1": (0.99,) + (0.01,) * 9,
    "beta-5": (0.99,) * 5 + (0.01,) * 5,
    "beta-10": (0.99,) * 10,
    "unif": tuple(round(0.05 + 0.1 * step, 2) for step in range(10)),
}
"""The skills of the paper's four groups of ten demonstrators."""


def multi_skill(beta: float) -> dict[str, dict[str, float]]:
    """The skills of the paper's three demonstrators in 'minigrid/skills': perfect in one part, `beta` in the others.

    >>> multi_skill(0.1)["skilled in lava"]
    {'minigrid/unlock': 0.1, 'minigrid/lava': 1.0, 'minigrid/empty': 0.1}
    """
    parts = SUCCESSIONS["minigrid/skills"]
    return {
        f"skilled in {own.removeprefix('minigrid/')}": {part: 1.0 if part == own else beta for part in parts}
        for own in parts
    }


class AbstractHabit(ABC):
    """A way to err that is no demonstrator model: for simulation alone, to see what a fit makes of the wrong noise.

    Laws, as for a demonstrator model: what is observed is normalised, and equals the policy where expertise is one.
    """

    @abstractmethod
    def observed(self, policy: Categorical, expertise: torch.Tensor, previous: torch.Tensor) -> Categorical:
        """The demonstrator's own distribution of actions; `expertise` and `previous` have the policy's batch shape.

        `previous` is the action just before, in the same episode; -1 where there was none.
        """


@final
@dataclass(frozen=True, kw_only=True)
class Persistent(AbstractHabit):
    """With probability `expertise` follow the policy, otherwise do the same again; at random where an episode starts.

    Slips are as frequent as under `UniformMixture`, but come in runs and depend on what was done before.
    """

    def observed(self, policy: Categorical, expertise: torch.Tensor, previous: torch.Tensor) -> Categorical:
        actions = policy.probs.shape[-1]
        again = torch.nn.functional.one_hot(previous.clamp_min(0), actions).to(policy.probs)
        uniform = torch.full_like(policy.probs, 1 / actions)
        slip = torch.where((previous < 0).unsqueeze(-1), uniform, again)
        return Categorical(probs=torch.lerp(slip, policy.probs, expertise.unsqueeze(-1)), validate_args=False)


@final
@dataclass(frozen=True)
class Biased(AbstractHabit):
    """With probability `expertise` follow the policy, otherwise take one of a few favourite `actions`, at random.

    `Biased((2,))` always slips towards action 2; in MiniGrid `Biased((0, 1))` only ever turns left or right by mistake.
    """

    actions: tuple[int, ...]
    """The favourites, each as likely as the others."""

    def __post_init__(self) -> None:
        if not self.actions or len(set(self.actions)) < len(self.actions) or min(self.actions) < 0:
            raise SettingsError(
                f"the favourite actions are {self.actions}; name one or more, each once, by number from 0"
            )

    def observed(self, policy: Categorical, expertise: torch.Tensor, previous: torch.Tensor) -> Categorical:
        count = policy.probs.shape[-1]
        if max(self.actions) >= count:
            raise SettingsError(f"action {max(self.actions)} is a favourite, but there are {count}, numbered from 0")
        slip = torch.zeros(count, dtype=policy.probs.dtype)
        slip[list(self.actions)] = 1 / len(self.actions)
        return Categorical(probs=torch.lerp(slip, policy.probs, expertise.unsqueeze(-1)), validate_args=False)


def demonstrate(
    task: AbstractTask,
    policy: Any,
    *,
    skill: Mapping[str, Skill] | Sequence[Skill],
    steps: int,
    seed: int,
    demonstrator: AbstractDemonstratorModel[Any] | AbstractHabit | None = None,
    sample: bool = False,
    temperature: float = 1.0,
    progress: Progress | None = None,
) -> Demonstrations:
    """Let demonstrators of known skill play a task, `steps` steps each, the last episode cut where they are spent.

    `skill` names the demonstrators, or lists their skills, and then they are called "demonstrator 1", "demonstrator 2",
    and so on. What each of them does is drawn from `demonstrator.observed(pi, skill)`, where pi takes the policy's most
    likely action for certain, or is `policy.probabilities(observations)` with `sample=True`. (Under `Boltzmann` a
    policy that is certain hardly ever slips, whatever the skill: sample. A trained expert is all but certain itself; a
    `temperature` above 1 softens it to pi^(1/temperature), renormalised, which is then what a skill of 1 follows.)
    Where actions are continuous, pi is `policy.distribution(observations)`, a mixture of Gaussians, with `sample` or
    without (or, where the policy has it, what `policy.next_distribution(observations, state, starts)` returns together
    with the next state, so that a recurrent policy begins each episode without a hidden state). `demonstrator` is then
    `VarianceScaling()` unless given, which widens every dimension that `exempt` does not name (there are no data yet
    to find any in), and otherwise `UniformMixture()`.

    In a succession `policy` may hold a policy for each part, and each skill a number for each part, by the part's name;
    an episode is one part's, and the column "phase" of `skills` names the part of every step, for `Skills("phase")`.
    (Each policy is shown all environments, and its answers count where the part is its own.) In a task with phases
    each skill may hold a number for each phase, and the column "phase" names the phase of every step.

    Each demonstrator has streams of chance of their own, named after `seed` and their name: adding one changes nobody
    else.
    """
    instance_of("task", task, AbstractTask, rule="pass a task, as ileed.tasks.task('minigrid/obstacles') gives it")
    steps = whole_number("steps", steps, least=1, rule="everybody plays one or more, a whole number")
    seed = seed_of(seed)
    if isinstance(skill, str) or not isinstance(skill, Mapping | Sequence | np.ndarray):
        raise SettingsError(f"skill is {shown(skill)}: pass a list of skills, or a mapping from names to skills")
    named = _named(skill, task)
    chances = _chances(tuple(named), task, steps=steps, seed=seed)
    played = task.play(
        _acting(
            [_intention(own, task, sample=sample, temperature=temperature) for own in _policies(policy, task)],
            skills=torch.tensor(list(named.values()), dtype=torch.float64),
            demonstrator=_fitting(demonstrator, task),
            task=task,
            chances=lambda count: next(chances),
        ),
        steps=steps,
        seeds=[stream(seed, "episodes of", name).initial_seed() for name in named],
        progress=progress,
    )
    part_names = np.array(_part_names(task))
    return Demonstrations(
        observations=played.observations,
        actions=played.actions,
        demonstrator=played.environment,
        episode=played.episode,
        names=tuple(named),
        rewards=played.rewards,
        terminals=played.terminals,
        skills={} if played.phase is None else {"phase": part_names[played.phase]},
        action_count=task.action_count,
    )


def slipping(
    policy: Any,
    task: AbstractTask,
    *,
    skill: Skill,
    seed: int,
    demonstrator: AbstractDemonstratorModel[Any] | AbstractHabit | None = None,
    sample: bool = False,
    temperature: float = 1.0,
) -> Actor:
    """An actor that follows `policy` as a demonstrator of that skill would, to score beside a learned policy.

    It has one policy and one skill, since in a succession an actor is not told which part it is in: there
    `demonstrator_rewards` scores somebody who differs from part to part. In a task with phases, which an actor sees,
    `skill` may hold one for each. Other settings are those of `demonstrate`.
    """
    if isinstance(policy, Mapping) or (isinstance(skill, Mapping) and not task.phases):
        raise SettingsError(
            "slipping was given a policy or a skill by part, but an actor is not told which part it is in; "
            "demonstrator_rewards scores a demonstrator part by part"
        )
    generator = stream(seed, "slips")
    return _acting(
        [_intention(policy, task, sample=sample, temperature=temperature)],
        skills=torch.tensor([_by_part("the actor", skill, task)], dtype=torch.float64),
        demonstrator=_fitting(demonstrator, task),
        task=task,
        chances=lambda count: torch.rand(count, _draws(task), generator=generator, dtype=torch.float64).numpy(),
    )


def demonstrator_rewards(
    task: AbstractTask,
    policy: Any,
    *,
    skill: Skill,
    episodes: int,
    seed: int,
    demonstrator: AbstractDemonstratorModel[Any] | AbstractHabit | None = None,
    sample: bool = False,
    temperature: float = 1.0,
) -> npt.NDArray[np.float64]:
    """What a demonstrator of that skill earns in every part of each of `episodes` episodes, (part, episode).

    The mean over parts is an episode's reward; a task of one piece or of several phases has one part. `policy` and
    `skill` may hold one for each part, by name, and `skill` one for each phase. Other settings are those of
    `demonstrate`. A policy that is scored with the same seed meets the same beginnings.
    """
    parts, policies = parts_of(task), _policies(policy, task)
    skills: Sequence[Skill] = [skill] if task.phases else _by_part("the demonstrator", skill, task)
    return np.stack(
        [
            part.score(
                slipping(
                    policies[number % len(policies)],
                    part,
                    skill=skills[number],
                    seed=part_seed(task, part, seed),
                    demonstrator=demonstrator,
                    sample=sample,
                    temperature=temperature,
                ),
                episodes=episodes,
                seed=part_seed(task, part, seed),
            )
            for number, part in enumerate(parts)
        ]
    )


def _acting(
    intentions: Sequence[Intention],
    *,
    skills: torch.Tensor,
    demonstrator: AbstractDemonstratorModel[Any] | AbstractHabit,
    task: AbstractTask,
    chances: Callable[[int], npt.NDArray[np.float64]],
) -> Actor:
    """An actor with one skill for each of the phases that it sees or of the parts that it meets in turn.

    `skills` is (env, part) or (1, part). It knows the part by counting starts, and has an intention for each part, or
    one for all. `chances(count)` gives `_draws(task)` numbers in [0, 1) for each of `count` environments.
    """
    begun = previous = np.empty(0, dtype=np.int64)

    def act(observations: npt.NDArray[Any], starts: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
        nonlocal begun, previous
        width = len(starts)
        if len(begun) != width:
            begun, previous = np.zeros(width, dtype=np.int64), np.empty(width, dtype=np.int64)
        begun = begun + starts
        part = task.phase(observations) if task.phases else (begun - 1) % skills.shape[1]
        meant = [intended(observations, starts) for intended in intentions]
        policy = meant[0] if len(meant) == 1 else _of_each_part(meant, torch.as_tensor(part))
        expertise = skills.expand(width, -1)[torch.arange(width), torch.as_tensor(part)]
        if isinstance(demonstrator, AbstractHabit):
            assert isinstance(policy, Categorical)
            previous = np.where(starts, _NONE, previous)
            previous = _drawn(demonstrator.observed(policy, expertise, torch.as_tensor(previous)), chances(width))
            return previous
        return _drawn(demonstrator.observed(policy, expertise), chances(width))

    return act


def _of_each_part(meant: Sequence[Distribution], part: torch.Tensor) -> Categorical:
    """Row by row the distribution that is meant in the part the row is in."""
    probabilities = torch.stack([own.probs for own in meant if isinstance(own, Categorical)])
    return Categorical(probs=probabilities[part, torch.arange(len(part))], validate_args=False)


def _fitting(
    demonstrator: AbstractDemonstratorModel[Any] | AbstractHabit | None, task: AbstractTask
) -> AbstractDemonstratorModel[Any] | AbstractHabit:
    continuous = task.action_size > 0
    if demonstrator is None:
        return VarianceScaling() if continuous else UniformMixture()
    discrete = isinstance(demonstrator, AbstractHabit) or demonstrator.discrete
    if not continuous and not discrete:
        raise SettingsError(
            f"{demonstrator!r} is for continuous actions, but {task.name} has {task.action_count} actions"
        )
    if continuous and discrete:
        raise SettingsError(
            f"{demonstrator!r} chooses among numbered actions, but those of {task.name} are continuous: "
            "use VarianceScaling"
        )
    exempt = demonstrator.exempt if isinstance(demonstrator, VarianceScaling) else None
    if stray := [dimension for dimension in exempt or () if not 0 <= dimension < task.action_size]:
        raise SettingsError(
            f"exempt names dimension {stray[0]} but actions of {task.name} have {task.action_size}, numbered from 0: "
            "leave it out"
        )
    return demonstrator


def _named(skill: Mapping[str, Skill] | Sequence[Skill], task: AbstractTask) -> dict[str, list[float]]:
    """Each demonstrator's skill in every part of the task."""
    if not isinstance(skill, Mapping):
        skill = {f"demonstrator {number}": value for number, value in enumerate(skill, start=1)}
    if not skill:
        raise SettingsError("skill names no demonstrator; give at least one a number from 0 to 1")
    return {name: _by_part(repr(name), value, task) for name, value in skill.items()}


def _by_part(who: str, skill: Skill, task: AbstractTask) -> list[float]:
    if not isinstance(skill, Mapping):
        return [_checked(who, skill)] * len(_part_names(task))
    _all_parts(skill, f"the skill of {who}", task.name, _part_names(task))
    return [_checked(f"{who} in {part}", skill[part]) for part in _part_names(task)]


def _part_names(task: AbstractTask) -> tuple[str, ...]:
    """What skill may differ between: the phases of a task that has some, or the parts of a succession."""
    return task.phases or tuple(part.name for part in parts_of(task))


def _checked(who: str, skill: float) -> float:
    if not 0 <= skill <= 1:
        raise SettingsError(f"the skill of {who} is {skill}, but skill goes from 0 to 1 (the policy's own)")
    return skill


def _policies(policy: Any, task: AbstractTask) -> list[Any]:
    """The policy of every part, in the order of the parts, or one for all."""
    if not isinstance(policy, Mapping):
        return [policy]
    _all_parts(policy, "the policy", task.name, [part.name for part in parts_of(task)])
    return [policy[part.name] for part in parts_of(task)]


def _all_parts(named: Mapping[str, Any], what: str, whole: str, parts: Sequence[str]) -> None:
    if odd := [name for name in named if name not in parts]:
        raise SettingsError(f"{what} names {odd[0]!r}, which is no part of {whole}; the parts are {', '.join(parts)}")
    if missing := [name for name in parts if name not in named]:
        raise SettingsError(f"{what} lacks {missing[0]}; give one for each part of {whole}: {', '.join(parts)}")


def _draws(task: AbstractTask) -> int:
    """How many numbers an action is drawn with: one, or one for the mode and one for each dimension."""
    return 1 + task.action_size


def _chances(names: Sequence[str], task: AbstractTask, *, steps: int, seed: int) -> Iterator[npt.NDArray[np.float64]]:
    """Numbers in [0, 1) for every demonstrator (env, draw), step after step."""
    size = (max(steps, 0), _draws(task))
    own = [torch.rand(size, generator=stream(seed, "actions of", name), dtype=torch.float64) for name in names]
    return iter(torch.stack(own, dim=1).numpy())


def _intention(policy: Any, task: AbstractTask, *, sample: bool, temperature: float) -> Intention:
    if not temperature > 0:
        raise SettingsError(f"temperature is {temperature}, but it must be above 0 (1 leaves the policy as it is)")
    if task.action_size:
        if temperature != 1:
            raise SettingsError(f"temperature is {temperature}, but it softens numbered actions alone; leave it out")
        return _spread(policy)
    if sample:
        return _sampled(policy, temperature)
    if temperature != 1:
        raise SettingsError(
            f"temperature is {temperature}, but the policy takes its most likely action for certain; pass sample=True"
        )
    return _certain(policy, task)


def _certain(policy: Any, task: AbstractTask) -> Intention:
    """All probability on the policy's most likely action."""
    actor, certainty = as_actor(policy), torch.eye(task.action_count, dtype=torch.float64)

    def intended(observations: npt.NDArray[Any], starts: npt.NDArray[np.bool_]) -> Categorical:
        actions = torch.as_tensor(answered(actor, task, observations, starts))
        return Categorical(probs=certainty[actions], validate_args=False)

    return intended


def _sampled(policy: Any, temperature: float) -> Intention:
    if not hasattr(policy, "probabilities"):
        raise SettingsError(f"{policy!r} has no probabilities(observations) to sample from; leave out sample=True")

    def intended(observations: npt.NDArray[Any], starts: npt.NDArray[np.bool_]) -> Categorical:
        probabilities = torch.as_tensor(policy.probabilities(observations), dtype=torch.float64)
        softened = probabilities ** (1 / temperature)
        return Categorical(probs=softened / softened.sum(-1, keepdim=True), validate_args=False)

    return intended


def _spread(policy: Any) -> Intention:
    """The policy's own mixture of Gaussians; a recurrent policy begins each episode without a hidden state."""
    if not hasattr(policy, "distribution"):
        raise SettingsError(
            f"{policy!r} has no distribution(observations), and without the policy's spread there is none to widen; "
            "pass one that has, as ReachExpert and learned policies do"
        )

    state: Any = None

    def intended(observations: npt.NDArray[Any], starts: npt.NDArray[np.bool_]) -> MixtureSameFamily:
        nonlocal state
        if hasattr(policy, "next_distribution"):
            found, state = policy.next_distribution(observations, None if starts.all() else state, starts)
        else:
            found = policy.distribution(observations)
        if not isinstance(found, MixtureSameFamily):
            raise SettingsError(
                f"the policy's distribution is a {type(found).__name__}, but continuous actions are drawn from a "
                "MixtureSameFamily of Gaussians; was it made for another task?"
            )
        return mixture(*(part.double() for part in mixture_parts(found)))

    return intended


def _drawn(observed: Distribution, chance: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
    """One action for each row, by the row's own numbers in [0, 1)."""
    if isinstance(observed, Categorical):
        return _passed(observed.probs.numpy(), chance[:, 0])
    assert isinstance(observed, MixtureSameFamily)
    component = _passed(observed.mixture_distribution.logits.softmax(-1).numpy(), chance[:, 0])
    # Chance of exactly 0 would be an infinite deviation.
    normal = torch.special.ndtri(torch.from_numpy(chance[:, 1:]).clamp_min(torch.finfo(torch.float64).eps))
    return np.asarray(component_action(observed, torch.from_numpy(component), normal).numpy())


def _passed(probabilities: npt.NDArray[np.float64], chance: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """The place at which the sum of probabilities, from the first on, passes each row's own chance."""
    passed = probabilities.cumsum(axis=-1)[:, :-1] <= chance[:, None]
    return np.asarray(passed.sum(axis=-1), dtype=np.int64)
