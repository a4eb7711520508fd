"""Steps in blocks, as a fit, a policy or a table of probabilities judges them.

Data are those of the fit, or were matched with them (`Policy.match`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ileed.checking import instance_of, shown
from ileed.demonstrations import Demonstrations
from ileed.errors import SettingsError
from ileed.fitted.ensemble import Fitted
from ileed.fitted.likelihood import Block, blocks_of_fit, blocks_of_policy
from ileed.fitted.newcomers import joint_with_newcomers
from ileed.model.demonstrators import AbstractDemonstratorModel, UniformMixture

__all__ = ["blocks_of_people", "judged_once", "judged_steps"]


def judged_steps(
    policy: Any, data: Demonstrations, demonstrator: AbstractDemonstratorModel[Any] | None = None
) -> list[Block]:
    """The steps in blocks, judged by a fit, by an object with `distribution`, or by a table of probabilities."""
    fit = policy if isinstance(policy, Fitted) else None
    model = demonstrator or (UniformMixture() if fit is None else fit.joint.parts.demonstrator)
    instance_of("demonstrator", model, AbstractDemonstratorModel, rule=_MODELS)
    _check_model(model)
    if fit is not None:
        if demonstrator is None:
            return blocks_of_people(fit, data)
        policy = fit.policy
    if model.context or not model.discrete:
        raise SettingsError(
            f"{type(model).__name__} does not rate by one number with a policy that is no fit: {_MODELS}"
        )
    return blocks_of_policy(_log_policy(policy, data), model, data)


def judged_once(fit: Fitted, data: Demonstrations) -> Iterator[Block]:
    """The steps in blocks, judged by a fit, each when it is asked for; to go through once."""
    _check_model(fit.joint.parts.demonstrator)
    return stream_of_people(fit, data)


def _check_model(model: AbstractDemonstratorModel[Any]) -> None:
    if model.defines_expertise:
        raise SettingsError(f"{type(model).__name__} does not rate a person by one number: {_MODELS}")


_MODELS = "pass UniformMixture(), OneVersusRest() or Boltzmann()"


def blocks_of_people(fit: Fitted, data: Demonstrations) -> list[Block]:
    """The steps of people, known to the fit or not, judged by its policy."""
    return list(stream_of_people(fit, data))


def stream_of_people(fit: Fitted, data: Demonstrations) -> Iterator[Block]:
    """The same blocks one after the other, none of which is kept."""
    if fit.rater is not None:
        return iter(fit.rater.blocks(data))
    number = {name: number for number, name in enumerate(fit.expertise.names)}
    known = np.array([number.get(name, -1) for name in data.names])
    joint, who, skills = fit.joint, known.clip(min=0)[data.demonstrator], fit.expertise.skill_names
    if not (known >= 0).all() and fit.joint.demonstrator is not None:
        joint, who = joint_with_newcomers(joint, fit.normaliser, data, known, skills), data.demonstrator
    return blocks_of_fit(joint, fit.normaliser, data, who, skills)


def _log_policy(policy: Any, data: Demonstrations) -> Callable[[slice], Tensor]:
    """From a block of steps to the policy's log-probabilities there, (step, action), in double precision."""
    if not data.discrete:
        raise SettingsError("a policy that is no fit rates discrete actions, and these are continuous: pass a fit")
    if getattr(policy, "recurrent", False):
        raise SettingsError("policy is recurrent, and is asked step by step: pass every action's probability instead")
    asked = getattr(policy, "distribution", None)
    table = _log_table(policy, data) if asked is None else torch.empty(0)

    def of_block(block: slice) -> Tensor:
        legal = None if data.legal is None else data.legal[block]
        found = table[block] if asked is None else asked(data.observations[block], legal=legal).logits
        if found.shape[-1] != data.action_count:
            raise SettingsError(
                f"the policy chooses among {found.shape[-1]} actions and the data among {data.action_count}: "
                "pass action_count when building the Demonstrations"
            )
        return found.double()

    return of_block


def _log_table(policy: Any, data: Demonstrations) -> Tensor:
    """The log-probability of every action at every step, from a categorical distribution or an array."""
    try:
        logits = getattr(policy, "logits", None)
        table = torch.from_numpy(np.asarray(policy, dtype=np.float64)).log() if logits is None else logits
    except (TypeError, ValueError, RuntimeError):
        raise SettingsError(
            f"policy is {shown(policy)}: pass a fit, an object with distribution(observations, legal=), or the "
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
