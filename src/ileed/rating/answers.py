"""What policies say about the steps of a data set: the answers of a fit, and those of other policies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

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


def answers_at_steps(
    joint: Joint, normaliser: Normaliser, data: Demonstrations, demonstrator: Array, skill_names: tuple[str, ...]
) -> Iterator[tuple[Array, Array, Answer]]:
    """Yield blocks of steps, a mask of those that count, and the answers.

    `demonstrator` (step,) are numbers in the model. A recurrent policy reads windows that extend beyond the end of an
    episode; steps there do not count.
    """
    skills = _skill_weights(joint, data, skill_names)
    context = StepContext(data, joint.parts.context)

    length = joint.parts.policy.length
    for rows, real in _rows_at_once(data, length):
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
    """Blocks of steps, and which of them count: all, or in windows of a length those before an episode's end."""
    if length == 1:
        for first in range(0, len(data), _ROWS_AT_ONCE):
            rows = np.arange(first, min(first + _ROWS_AT_ONCE, len(data)))
            yield rows, np.ones(len(rows), dtype=bool)
        return
    begin, ends = tiles(data.episode, length), episode_ends(data.episode)
    step = begin + np.arange(length)[:, None]  # time steps first, as the network reads them
    inside = step <= ends[begin]
    step = np.minimum(step, ends[begin])
    for first in range(0, step.shape[1], _ROWS_AT_ONCE):
        yield step[:, first : first + _ROWS_AT_ONCE].ravel(), inside[:, first : first + _ROWS_AT_ONCE].ravel()


def _skill_weights(joint: Joint, data: Demonstrations, skill_names: tuple[str, ...]) -> Array | None:
    """(step, skill) weights of the skills that a model knows by name; None where it reads none."""
    column = joint.parts.expertise.skill_column
    if column is None:
        return None
    weights, names = data.skill(column)
    if data.skills[column].ndim == 2 and len(names) != len(skill_names):
        raise DemonstrationError(
            f"skill column {column!r} has weights of {len(names)} skills and the fit {len(skill_names)}: pass as many"
        )
    if unknown := [name for name in names if name not in skill_names]:
        raise DemonstrationError(f"there is no skill {unknown[0]!r}: this fit knows {listed(skill_names)}")
    placed = np.zeros((len(data), len(skill_names)), dtype=np.float32)
    placed[:, [skill_names.index(name) for name in names]] = weights
    return placed


_MODELS = "pass UniformMixture(), OneVersusRest() or Boltzmann()"


def blocks_of_fit(
    joint: Joint, normaliser: Normaliser, data: Demonstrations, demonstrator: Array, skill_names: tuple[str, ...]
) -> Iterator[Block]:
    """The steps of a data set, judged by the members of a fit: by the mean over members of their likelihoods."""
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
    """All steps, or those of a mask (step,), judged by the members `kept` of the fold of their episode."""
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


def blocks_of_policy(
    log_probabilities: Callable[[Array], Tensor],
    model: AbstractDemonstratorModel[Any],
    data: Demonstrations,
    chosen: Array | None = None,
) -> list[Block]:
    """Discrete actions of all steps, or of those of a mask, judged by log-probabilities (step, action) of some."""
    steps = np.arange(len(data)) if chosen is None else np.flatnonzero(chosen)
    parts = [steps[first : first + 4096] for first in range(0, len(steps), 4096)]
    return [Block(part, _by_probabilities(part, log_probabilities(part), model, data)) for part in parts]


def _by_probabilities(
    steps: Array, logits: Tensor, model: AbstractDemonstratorModel[Any], data: Demonstrations
) -> Callable[[Tensor, float], Tensor]:
    action = torch.tensor(data.actions[steps])
    legal = None if data.legal is None else torch.tensor(data.legal[steps])

    def at(points: Tensor, temperature: float) -> Tensor:
        policy = logits if temperature == 1 else (logits / temperature).log_softmax(-1)
        return log_likelihood(model, policy, points[:, None].expand(-1, len(action)), action, legal)

    return at


def likelihood_by_policy(policy: Any, data: Demonstrations, model: AbstractDemonstratorModel[Any]) -> StepLikelihood:
    """The likelihood of discrete actions by a policy that is not a fit, under a demonstrator model."""
    check_model(model)
    if model.context or not model.discrete:
        raise SettingsError(
            f"{type(model).__name__} does not rate by one number with a policy that is not a fit: {_MODELS}"
        )
    return StepLikelihood(data, partial(blocks_of_policy, _log_policy(policy, data), model, data))


def check_model(model: AbstractDemonstratorModel[Any]) -> None:
    """Refuse a demonstrator model under which expertise is not one number."""
    instance_of("demonstrator", model, AbstractDemonstratorModel, rule=_MODELS)
    if model.defines_expertise:
        raise SettingsError(f"{type(model).__name__} does not rate a demonstrator by one number: {_MODELS}")


def _log_policy(policy: Any, data: Demonstrations) -> Callable[[Array], Tensor]:
    """From the numbers of steps to the policy's log-probabilities there, (step, action), in double precision."""
    if not data.discrete:
        raise SettingsError("only a `Fitted` policy can rate continuous actions: pass a fit")
    if getattr(policy, "recurrent", False):
        raise SettingsError("policy is recurrent, and is asked step by step: pass every action's probability instead")
    asked = getattr(policy, "distribution", None)
    table = _log_table(policy, data) if asked is None else torch.empty(0)

    def of_steps(steps: Array) -> Tensor:
        legal = None if data.legal is None else data.legal[steps]
        found = table[steps] if asked is None else asked(data.observations[steps], legal=legal).logits
        if found.shape[-1] != data.action_count:
            raise SettingsError(
                f"the policy chooses among {found.shape[-1]} actions and the data among {data.action_count}: "
                "pass action_count when building the Demonstrations"
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
            "probability of every action at every step"
        ) from None
    wanted = (len(data), data.action_count)
    if tuple(table.shape) != wanted:
        raise SettingsError(f"policy is {tuple(table.shape)} probabilities: pass {wanted}, each action's at each step")
    legal = torch.ones_like(table, dtype=torch.bool) if data.legal is None else torch.tensor(data.legal)
    possible = table.double().exp()
    if not torch.allclose(possible.sum(-1), torch.ones(len(table)).double(), atol=1e-4) or bool(possible[~legal].any()):
        raise SettingsError("policy has probabilities that are no distribution over legal actions: they must sum to 1")
    return table
