"""Builders of the package's values for all tests: generated demonstrations, small worlds, plain readings of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from ileed import (
    Boltzmann,
    CategoricalMLP,
    Constant,
    Demonstrations,
    Difficulty,
    Drift,
    Embedded,
    LatentDynamics,
    MixtureMLP,
    OneVersusRest,
    Perfect,
    Skills,
    UniformMixture,
    VarianceScaling,
)
from ileed._torch import stream
from ileed.fitting import OptimiserSettings, Prepared, prepare
from ileed.model.batch import Batch, Sizes
from ileed.model.distributions import Choice, mixture
from ileed.model.joint import Joint, Parts

CPU = torch.device("cpu")
NAMES = ("ann", "bob", "cyd", "dan")

DISCRETE_MODELS = (UniformMixture(), OneVersusRest(), Boltzmann())
CONTINUOUS_MODELS = (VarianceScaling(), VarianceScaling(scaled="standard_deviation"))
EXPERTISES = (
    Perfect(),
    Constant(),
    Embedded(dim=2, hidden=(3,)),
    Embedded(dim=2, hidden=(3,), shared=True),
    Skills("phase"),
    Difficulty(dim=2, hidden=(3,)),
    Difficulty(dim=0, hidden=()),
    Difficulty(dim=2, hidden=(3,), easiness=False),
    Drift(episodes=10),
)


# --- demonstrations


def world(
    lengths: Sequence[int] = (6, 4, 5, 7, 3, 5),
    *,
    people: int = 3,
    seed: int = 0,
    discrete: bool = True,
    actions: int = 3,
    shape: tuple[int, ...] = (3,),
    floating: bool = False,
    optional: Sequence[str] = (),
) -> Demonstrations:
    """Random demonstrations in which observations repeat and the last input never varies.

    Episodes go round the people. `optional` names further columns: rewards, terminals, legal, phase, load.
    """
    random = np.random.default_rng(seed)
    steps = sum(lengths)
    observations = random.integers(0, 2, size=(steps, *shape))
    observations.reshape(steps, -1)[:, -1] = 4
    episode = np.repeat(np.arange(len(lengths)), lengths)
    acted = (
        random.integers(0, actions, size=steps) if discrete else random.normal(size=(steps, actions)).astype(np.float32)
    )
    columns: dict[str, Any] = {}
    if "rewards" in optional:
        columns["rewards"] = random.normal(size=steps)
    if "terminals" in optional:
        columns["terminals"] = np.append(episode[1:] != episode[:-1], True)
    if "legal" in optional:
        legal = random.random((steps, actions)) < 0.5
        legal[np.arange(steps), acted] = True
        columns["legal"] = legal
    skills = {}
    if "phase" in optional:
        skills["phase"] = np.array(["grasp", "lift"])[np.arange(steps) % 2]
    if "load" in optional:
        skills["load"] = random.random((steps, 2)).round(1)
    return Demonstrations(
        observations=observations.astype(np.float32) if floating else observations,
        actions=acted,
        demonstrator=episode % people,
        episode=episode,
        names=NAMES[:people],
        action_count=actions if discrete else 0,
        skills=skills,
        **columns,
    )


ANY_CROWD = st.integers(1, 4)
EITHER_KIND = st.booleans()


@st.composite
def demonstrations(
    draw: st.DrawFn,
    *,
    people: st.SearchStrategy[int] = ANY_CROWD,
    discrete: st.SearchStrategy[bool] = EITHER_KIND,
    optional: Sequence[str] = ("rewards", "terminals", "legal", "phase", "load"),
) -> Demonstrations:
    """Any small data set: one to four people, several episodes, either kind of action, any optional columns."""
    is_discrete = draw(discrete)
    crowd = draw(people)
    possible = [name for name in optional if is_discrete or name != "legal"]
    return world(
        draw(st.lists(st.integers(1, 8), min_size=crowd, max_size=crowd + 4)),
        people=crowd,
        seed=draw(st.integers(0, 999)),
        discrete=is_discrete,
        actions=draw(st.integers(2, 4)),
        shape=draw(st.sampled_from([(1,), (3,), (2, 2)])),
        floating=draw(st.booleans()),
        optional=draw(st.lists(st.sampled_from(possible), unique=True)) if possible else (),
    )


def follows(skill: Sequence[float], *, steps: int, actions: int = 2, seed: int = 0, each: int = 20) -> Demonstrations:
    """A world whose answer is known: the right action is the observation's number, and person i takes it with
    probability skill[i], otherwise any other one."""
    random = np.random.default_rng(seed)
    people = len(skill)
    right = random.integers(0, actions, size=steps * people)
    who = np.repeat(np.arange(people), steps)
    slips = random.random(len(who)) >= np.asarray(skill)[who]
    wrong = (right + random.integers(1, actions, size=len(who))) % actions
    return Demonstrations(
        observations=np.eye(actions, dtype=np.int64)[right],
        actions=np.where(slips, wrong, right),
        demonstrator=who,
        episode=np.arange(len(who)) // each,
        names=tuple(f"person {k}" for k in range(people)),
        action_count=actions,
    )


# --- the model on them


def parts_for(
    data: Demonstrations, demonstrator: Any = None, expertise: Any = None, dynamics: LatentDynamics | None = None
) -> Parts:
    """Small parts that go with the data."""
    return Parts(
        CategoricalMLP(hidden=(3,)) if data.discrete else MixtureMLP(hidden=(3,), modes=2),
        demonstrator or (UniformMixture() if data.discrete else VarianceScaling()),
        expertise or Constant(),
        dynamics,
    )


def prepared_for(
    data: Demonstrations, parts: Parts, *, members: int, weights: Any = None, seed: int = 0, **settings: Any
) -> Prepared:
    """The data as an optimisation sees them, on the CPU and in their own units."""
    return prepare(
        data,
        parts,
        OptimiserSettings(**settings),
        seed=seed,
        device=CPU,
        members=members,
        normalise=False,
        weights=None if weights is None else np.asarray(weights),
    )


def joint_of(parts: Parts, sizes: Sizes, restarts: Sequence[int] = (0, 1), *, seed: int = 0) -> Joint:
    """A joint model whose members are these restarts of a fit with this seed."""
    return Joint(parts, sizes, [stream(seed, "init", restart) for restart in restarts])


def raw_batch(data: Demonstrations, sizes: Sizes, *, skill: str | None = None, step_weight: Any = None) -> Batch:
    """The data read plainly, in float64: one observation and one count for every step, in order."""
    flat = data.observations.reshape(len(data), -1)
    varying = flat.max(axis=0) != flat.min(axis=0)
    batch = Batch.of(
        sizes=sizes,
        observations=torch.tensor(flat[:, varying].T, dtype=torch.float64),
        observation_index=torch.arange(len(data)),
        demonstrator=torch.tensor(data.demonstrator),
        action=torch.tensor(data.actions) if data.discrete else torch.tensor(data.actions, dtype=torch.float64),
        weight=torch.tensor(np.ones(len(data)) if step_weight is None else step_weight, dtype=torch.float64),
        legal=None if data.legal is None else torch.tensor(data.legal.T.copy()),
        skills=None if skill is None else torch.tensor(plain_skills(data, skill).T.copy(), dtype=torch.float64),
    )
    return replace(batch, context={"episode_number": torch.tensor(plain_episode_numbers(data))})


def plain_episode_numbers(data: Demonstrations) -> list[int]:
    """Which of its demonstrator's own episodes each step is in, counted one step after the other."""
    seen: dict[int, list[int]] = {}
    for person, episode in zip(data.demonstrator.tolist(), data.episode.tolist(), strict=True):
        if episode not in (own := seen.setdefault(person, [])):
            own.append(episode)
    return [seen[who].index(one) for who, one in zip(data.demonstrator.tolist(), data.episode.tolist(), strict=True)]


def plain_skills(data: Demonstrations, column: str) -> np.ndarray:
    """A skill column as (step, skill) weights: labels in sorted order become ones and zeros."""
    values = data.skills[column]
    return values if values.ndim == 2 else (values[:, None] == sorted(set(values.tolist()))).astype(np.float64)


def double(batch: Batch) -> Batch:
    """The same batch in float64, so that comparisons are free of float32's rounding."""
    transitions = batch.transitions
    return replace(
        batch,
        observations=batch.observations.double(),
        weight=batch.weight.double(),
        action=batch.action.double() if batch.action.is_floating_point() else batch.action,
        skills=None if batch.skills is None else batch.skills.double(),
        transitions=None
        if transitions is None
        else replace(transitions, action=transitions.action.double(), weight=transitions.weight.double()),
    )


def cost_and_gradients(joint: Joint, batch: Batch) -> dict[str, Tensor]:
    """The objective of every member and its gradient by every parameter."""
    joint.zero_grad(set_to_none=True)
    objective = joint.objective(batch)
    objective.total.sum().backward()
    found = {"negative log-likelihood": objective.negative_log_likelihood.detach(), "total": objective.total.detach()}
    return found | {
        name: parameter.grad.clone() for name, parameter in joint.named_parameters() if parameter.grad is not None
    }


# --- distributions


def every_act(scores: Tensor, *, legal: Tensor | None = None) -> tuple[Choice, Batch]:
    """A policy from (member, action, observation) scores, and a batch with one count for each legal action.

    The batch's weight is one everywhere, and it has one demonstrator.
    """
    _, actions, unique_count = scores.shape
    allowed = torch.ones(actions, unique_count, dtype=torch.bool) if legal is None else legal
    action, observation_index = torch.nonzero(allowed, as_tuple=True)
    batch = Batch.of(
        sizes=Sizes(inputs=1, demonstrators=1, actions=actions),
        observations=torch.zeros(1, unique_count, dtype=scores.dtype),
        observation_index=observation_index,
        demonstrator=torch.zeros_like(observation_index),
        action=action,
        weight=torch.ones(len(observation_index), dtype=scores.dtype),
        legal=legal,
    )
    masked = scores if legal is None else scores.masked_fill(~legal, -torch.inf)
    return Choice(masked.log_softmax(-2)), batch


def over_actions(values: Tensor, batch: Batch, unique_count: int) -> Tensor:
    """Sum of (member, count) values over the counts of each observation."""
    return values.new_zeros(len(values), unique_count).index_add_(1, batch.observation_index.index, values)


def random_mixture(
    *, members: int = 2, unique_count: int = 3, modes: int = 2, dimensions: int = 1, seed: int = 0
) -> Any:
    """A mixture of Gaussians of batch shape (member, observation), in float64."""
    logits, means, spreads = mixture_tensors(
        members=members, unique_count=unique_count, modes=modes, dimensions=dimensions, seed=seed
    )
    return mixture(logits, means, spreads.exp())


def mixture_tensors(*, members: int, unique_count: int, modes: int, dimensions: int, seed: int) -> tuple[Tensor, ...]:
    """Logits, means and log-deviations of a random mixture, in float64."""
    generator = torch.Generator().manual_seed(seed)
    shape = (members, unique_count, modes)
    return (
        torch.randn(shape, generator=generator, dtype=torch.float64),
        torch.randn((*shape, dimensions), generator=generator, dtype=torch.float64),
        0.3 * torch.randn((*shape, dimensions), generator=generator, dtype=torch.float64),
    )


def continuous_batch(action: Tensor, observation_index: Tensor, *, unique_count: int) -> Batch:
    """Continuous acts at unique observations, of one demonstrator."""
    return Batch.of(
        sizes=Sizes(inputs=1, demonstrators=1, actions=action.shape[-1], discrete=False),
        observations=torch.zeros(1, unique_count, dtype=action.dtype),
        observation_index=observation_index,
        demonstrator=torch.zeros_like(observation_index),
        action=action,
        weight=torch.ones(len(observation_index), dtype=action.dtype),
    )
