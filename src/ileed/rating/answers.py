"""Step likelihoods by policies: those of a fit, also for demonstrators whom it has not seen, and any others.

Demonstrator models may have parameters for each demonstrator. Those of newcomers are estimated with the policy as it
is: by maximum a posteriori under the model's own prior, together with one number of expertise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ileed.data import Array, Demonstrations
from ileed.data.collapsing import StepContext
from ileed.data.rules import listed
from ileed.errors import DemonstrationError, SettingsError, brief, instance_of
from ileed.fitting.batches import episode_ends, tensor, tiles
from ileed.model.demonstrators import AbstractDemonstratorModel
from ileed.model.joint import Answer, Joint, ask, log_likelihood
from ileed.model.nets import members
from ileed.model.normaliser import Normaliser
from ileed.rating.step_likelihood import Block, StepLikelihood

_ROWS_AT_ONCE = 4096
_MODELS = "pass UniformMixture(), OneVersusRest() or Boltzmann()"
_STEPS, _RATE = 300, 0.05  # of the optimiser for newcomers

# --- by the members of a fit


def answers_at_steps(
    joint: Joint, normaliser: Normaliser, data: Demonstrations, demonstrator: Array, skill_names: tuple[str, ...]
) -> Iterator[tuple[Array, Array, Answer]]:
    """Yield blocks of steps, a mask of those that count, and the answers.

    `demonstrator` (step,) are numbers in the model. A recurrent policy reads windows that extend beyond the end of an
    episode; steps there do not count.
    """
    skills = _skill_weights(joint, data, skill_names)
    context = StepContext(data, joint.parts.context)
    for rows, real in _rows_at_once(data, joint.parts.policy.length):
        answer = ask(
            joint,
            normaliser(torch.tensor(data.observations[rows])),
            demonstrator=torch.from_numpy(demonstrator[rows]),
            action=tensor(data.actions[rows]),
            legal=None if data.legal is None else torch.tensor(data.legal[rows].T),
            skills=None if skills is None else torch.tensor(skills[rows].T),
            context={name: tensor(column.T) for name, column in context(rows).items()},
        )
        yield rows, real, answer


def _rows_at_once(data: Demonstrations, length: int) -> Iterator[tuple[Array, Array]]:
    """Blocks of steps, and which of them count: in windows of `length`, those before an episode's end."""
    step, inside = np.arange(len(data))[None], np.ones((1, len(data)), dtype=bool)
    if length > 1:
        begin, ends = tiles(data.episode, length), episode_ends(data.episode)
        step = begin + np.arange(length)[:, None]  # time steps first, as the network reads them
        inside, step = step <= ends[begin], np.minimum(step, ends[begin])
    for first in range(0, step.shape[1], _ROWS_AT_ONCE):
        part = slice(first, first + _ROWS_AT_ONCE)
        yield step[:, part].ravel(), inside[:, part].ravel()


def _skill_weights(joint: Joint, data: Demonstrations, skill_names: tuple[str, ...]) -> Array | None:
    """(step, skill) weights of the skills that a model knows by name; None where it reads none."""
    column = joint.parts.expertise.skill_column
    if column is None:
        return None
    weights, names = data.skill(column)
    if data.skills[column].ndim == 2 and len(names) != len(skill_names):
        raise DemonstrationError(
            f"skill column {column!r} has weights of {len(names)} skills: pass {len(skill_names)}, as in the fit",
            code="skills-differ",
        )
    if unknown := [name for name in names if name not in skill_names]:
        raise DemonstrationError(
            f"there is no skill {unknown[0]!r}: this fit knows {listed(skill_names)}", code="skill-unknown"
        )
    placed = np.zeros((len(data), len(skill_names)), dtype=np.float32)
    placed[:, [skill_names.index(name) for name in names]] = weights
    return placed


def blocks_of_fit(
    joint: Joint, normaliser: Normaliser, data: Demonstrations, demonstrator: Array, skill_names: tuple[str, ...]
) -> Iterator[Block]:
    """The steps of a data set under the members of a fit: by the mean over members of their likelihoods."""
    alone = [members(joint, [member]) for member in range(len(next(joint.parameters())))]
    answers = (answers_at_steps(each, normaliser, data, demonstrator, skill_names) for each in alone)
    for by_member in zip(*answers, strict=True):
        rows, inside, _ = by_member[0]
        yield Block(rows[inside], _mean_likelihood([answer for _, _, answer in by_member], inside))


def blocks_of_folds(
    joint: Joint,
    normaliser: Normaliser,
    data: Demonstrations,
    skill_names: tuple[str, ...],
    kept: Sequence[Sequence[int]],
    fold: Array,
    chosen: Array | None = None,
) -> Iterator[Block]:
    """All steps, or those of a mask (step,), under the members `kept` of the fold of their episode."""
    for number, own in enumerate(kept):
        held_out = fold[data.episode] == number
        held_out = held_out if chosen is None else held_out & chosen
        if held_out.any():
            steps, part = np.flatnonzero(held_out), data.select(held_out)
            for block in blocks_of_fit(members(joint, own), normaliser, part, part.demonstrator, skill_names):
                yield replace(block, steps=steps[block.steps])


def blocks_by_kind(
    judge: Callable[[Array | None], Iterator[Block]], key: Array, chosen: Array | None = None
) -> Iterator[Block]:
    """The blocks of `judge` with one log-likelihood for all steps of the same `key` (step,)."""
    steps = np.arange(len(key)) if chosen is None else np.flatnonzero(chosen)
    _, first, kind = np.unique(key[steps], return_index=True, return_inverse=True)
    one_each = np.zeros(len(key), dtype=bool)
    one_each[steps[first]] = True
    order = np.argsort(kind, kind="stable")  # steps of one kind after those of another
    place = np.full(len(key), -1)
    place[steps[first]] = np.arange(len(first))
    starts = np.append(np.searchsorted(kind[order], np.arange(len(first))), len(kind))
    for block in judge(one_each):
        kinds = place[block.steps]
        own = np.concatenate([order[starts[each] : starts[each + 1]] for each in kinds])
        local = np.repeat(np.arange(len(kinds)), starts[kinds + 1] - starts[kinds])
        yield replace(block, steps=steps[own], kind=local)


@torch.no_grad()
def _mean_likelihood(answers: Sequence[Answer], inside: Array) -> Callable[[Tensor, float], Tensor]:
    policies = [answer.policy for answer in answers]
    apart = [own.disagreement([other for other in policies if other is not own]) for own in policies]

    def at(points: Tensor, temperature: float) -> Tensor:
        each = zip(answers, apart, strict=True)
        found = torch.stack([answer.log_likelihood_at(points, temperature, error) for answer, error in each])
        return (found[0] if len(found) == 1 else found.logsumexp(0) - np.log(len(found)))[:, torch.from_numpy(inside)]

    return at


# --- newcomers


def joint_with_newcomers(
    joint: Joint, normaliser: Normaliser, data: Demonstrations, known: Array, skill_names: tuple[str, ...]
) -> Joint:
    """The joint model with the demonstrators of `data`; `known` (demonstrator,) are their numbers in it, or -1.

    Known demonstrators keep their parameters, and shared parameters stay as they are. Ask it only for likelihoods at
    given expertise (`Answer.log_likelihood_at`): its own expertise is that of other demonstrators.
    """
    assert joint.demonstrator is not None
    found, is_new = deepcopy(joint), torch.from_numpy(known < 0)
    found.sizes = replace(joint.sizes, demonstrators=len(data.names))
    with torch.no_grad():
        found.demonstrator = module = joint.parts.demonstrator.anchored(deepcopy(joint.demonstrator))
        own = [each for name, each in module.named_parameters() if _is_per_demonstrator(joint, name)]
        for parameter in own:  # newcomers start at the mean over known demonstrators
            mean = parameter.mean(-1, keepdim=True)
            parameter.data = torch.where(is_new, mean, parameter.data[..., torch.from_numpy(known.clip(min=0))])
    if own and bool(is_new.any()):
        theirs = data.select((known < 0)[data.demonstrator])
        answers = answers_at_steps(found, normaliser, theirs, theirs.demonstrator, skill_names)
        _estimate(found, module, own, is_new, list(answers))
    module.requires_grad_(False)
    return found


def _is_per_demonstrator(joint: Joint, name: str) -> bool:
    """Whether a parameter has a value for each demonstrator, and so is longer with one more of them."""
    more = replace(joint.sizes, demonstrators=joint.sizes.demonstrators + 1)
    one, other = (joint.parts.demonstrator.build(sizes, []) for sizes in (joint.sizes, more))
    assert one is not None
    assert other is not None
    return one.get_parameter(name).shape != other.get_parameter(name).shape


def _estimate(
    joint: Joint, module: nn.Module, own: list[nn.Parameter], is_new: Tensor, answers: list[tuple[Array, Array, Answer]]
) -> None:
    """Maximise the likelihood of the newcomers' steps and the prior over their own parameters and expertise."""
    model = joint.parts.demonstrator
    level = nn.Parameter(torch.zeros(len(next(joint.policy.parameters())), len(is_new)))
    module.requires_grad_(False)
    for parameter in own:
        parameter.requires_grad_(True)
    optimiser = torch.optim.Adam([level, *own], lr=_RATE)
    with torch.enable_grad():
        for _ in range(_STEPS):
            optimiser.zero_grad()
            prior = model.log_prior(module)
            total = torch.zeros(()) if prior is None else -prior.sum()
            for _, inside, answer in answers:
                expertise = answer.batch.demonstrator(level).sigmoid()
                found = model.log_likelihood(answer.policy, expertise, answer.batch, module)
                total = total - (found * torch.from_numpy(inside).float()).sum()
            total.backward()
            for parameter in own:
                assert parameter.grad is not None
                parameter.grad *= is_new
            optimiser.step()


# --- by other policies


def likelihood_by_policy(policy: Any, data: Demonstrations, model: AbstractDemonstratorModel[Any]) -> StepLikelihood:
    """The likelihood of discrete actions by a policy that is not a fit, under a demonstrator model."""
    check_model(model)
    if model.context or not model.discrete:
        raise SettingsError(
            f"{type(model).__name__} does not rate by one number with a policy that is not a fit: {_MODELS}",
            code="demonstrator-needs-fit",
        )
    return StepLikelihood(data, partial(blocks_of_policy, _log_policy(policy, data), model, data))


def check_model(model: AbstractDemonstratorModel[Any]) -> None:
    """Refuse a demonstrator model under which expertise is not one number."""
    instance_of("demonstrator", model, AbstractDemonstratorModel, rule=_MODELS)
    if model.defines_expertise:
        raise SettingsError(
            f"{type(model).__name__} does not rate a demonstrator by one number: {_MODELS}",
            code="demonstrator-defines-expertise",
        )


def blocks_of_policy(
    log_probabilities: Callable[[Array], Tensor],
    model: AbstractDemonstratorModel[Any],
    data: Demonstrations,
    chosen: Array | None = None,
) -> list[Block]:
    """Discrete actions of all steps, or of those of a mask, under log-probabilities (step, action) at given steps."""

    def block(steps: Array) -> Block:
        logits, action = log_probabilities(steps), torch.tensor(data.actions[steps])
        legal = None if data.legal is None else torch.tensor(data.legal[steps])

        def at(points: Tensor, temperature: float) -> Tensor:
            policy = logits if temperature == 1 else (logits / temperature).log_softmax(-1)
            return log_likelihood(model, policy, points[:, None].expand(-1, len(action)), action, legal)

        return Block(steps, at)

    steps = np.arange(len(data)) if chosen is None else np.flatnonzero(chosen)
    return [block(steps[first : first + _ROWS_AT_ONCE]) for first in range(0, len(steps), _ROWS_AT_ONCE)]


def _log_policy(policy: Any, data: Demonstrations) -> Callable[[Array], Tensor]:
    """From the numbers of steps to the policy's log-probabilities there, (step, action), in double precision."""
    if not data.discrete:
        raise SettingsError("only a `Fitted` policy can rate continuous actions: pass a fit", code="policy-not-a-fit")
    if getattr(policy, "recurrent", False):
        raise SettingsError(
            "policy is recurrent and not a fit: pass the probability of every action at every step instead",
            code="policy-recurrent",
        )
    asked = getattr(policy, "distribution", None)
    table = _log_table(policy, data) if asked is None else torch.empty(0)

    def of_steps(steps: Array) -> Tensor:
        legal = None if data.legal is None else data.legal[steps]
        found = table[steps] if asked is None else asked(data.observations[steps], legal=legal).logits
        if found.shape[-1] != data.action_count:
            raise SettingsError(
                f"the policy has {found.shape[-1]} actions and the data have {data.action_count}: "
                "pass action_count when building the Demonstrations",
                code="policy-actions",
            )
        return found.double()

    return of_steps


def _log_table(policy: Any, data: Demonstrations) -> Tensor:
    """The log-probability of every action at every step, from a categorical distribution or an array."""
    try:
        logits = getattr(policy, "logits", None)
        table = torch.from_numpy(np.asarray(policy, dtype=np.float64)).log() if logits is None else logits
    except (TypeError, ValueError, RuntimeError):
        raise SettingsError(
            f"policy is {brief(policy)}: pass a fit, an object with distribution(observations, legal=), or the "
            "probability of every action at every step",
            code="policy-invalid",
        ) from None
    wanted = (len(data), data.action_count)
    if tuple(table.shape) != wanted:
        raise SettingsError(
            f"policy has shape {tuple(table.shape)}: pass the probability of each action at each step, {wanted}",
            code="policy-shape",
        )
    legal = torch.ones_like(table, dtype=torch.bool) if data.legal is None else torch.tensor(data.legal)
    possible = table.double().exp()
    if not torch.allclose(possible.sum(-1), torch.ones(len(table)).double(), atol=1e-4) or bool(possible[~legal].any()):
        raise SettingsError(
            "policy has rows that are not distributions over legal actions: probabilities must be zero for others and "
            "sum to 1",
            code="policy-not-a-distribution",
        )
    return table
