"""Demonstrator parameters of newcomers, where the demonstrator model has parameters for each demonstrator.

They are estimated with the policy as it is: by maximum a posteriori under the model's own prior, together with one
number of expertise. The optimiser starts at the mean over the demonstrators of the fit.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ileed.data import Array, Demonstrations
from ileed.model.batch import Batch
from ileed.model.joint import Joint
from ileed.model.normaliser import Normaliser
from ileed.rating.answers import answers_at_steps

_STEPS, _RATE = 300, 0.05


def joint_with_newcomers(
    joint: Joint, normaliser: Normaliser, data: Demonstrations, known: Array, skill_names: tuple[str, ...]
) -> Joint:
    """The joint model with the demonstrators of `data`; `known` (demonstrator,) are their numbers in it, or -1.

    Known demonstrators keep their parameters, and shared parameters stay as they are. Ask it only for likelihoods at
    given expertise (`Answer.log_likelihood_at`): its own expertise is that of other demonstrators.
    """
    found = deepcopy(joint)
    found.sizes = replace(joint.sizes, demonstrators=len(data.names))
    assert joint.demonstrator is not None
    found.demonstrator = module = _module_of(joint, known)
    own = [parameter for name, parameter in module.named_parameters() if _is_per_demonstrator(joint, name)]
    strangers = torch.from_numpy(known < 0)
    if own and bool(strangers.any()):
        theirs = data.select((known < 0)[data.demonstrator])
        answers = [
            (answer.policy, answer.batch, torch.from_numpy(inside).float())
            for _, inside, answer in answers_at_steps(found, normaliser, theirs, theirs.demonstrator, skill_names)
        ]
        _estimate(found, module, own, strangers, answers)
    module.requires_grad_(False)
    return found


def _is_per_demonstrator(joint: Joint, name: str) -> bool:
    """Whether a parameter has a value for each demonstrator, and so is longer with one more of them."""
    more = replace(joint.sizes, demonstrators=joint.sizes.demonstrators + 1)
    one, other = (joint.parts.demonstrator.build(sizes, []) for sizes in (joint.sizes, more))
    assert one is not None
    assert other is not None
    return one.get_parameter(name).shape != other.get_parameter(name).shape


@torch.no_grad()
def _module_of(joint: Joint, known: Array) -> nn.Module:
    """The model's parameters of known demonstrators, and the mean over these for newcomers."""
    assert joint.demonstrator is not None
    module = joint.parts.demonstrator.anchored(deepcopy(joint.demonstrator))
    index, strangers = torch.from_numpy(known.clip(min=0)), torch.from_numpy(known < 0)
    for name, parameter in module.named_parameters():
        if _is_per_demonstrator(joint, name):
            mean = parameter.mean(-1, keepdim=True)
            parameter.data = torch.where(strangers, mean, parameter.data[..., index])
    return module


def _estimate(
    joint: Joint,
    module: nn.Module,
    own: list[nn.Parameter],
    strangers: Tensor,
    answers: list[tuple[Any, Batch, Tensor]],
) -> None:
    """Maximise the likelihood of the strangers' steps and the prior over their own parameters and expertise."""
    model = joint.parts.demonstrator
    members = len(next(joint.policy.parameters()))
    level = nn.Parameter(torch.zeros(members, len(strangers)))
    module.requires_grad_(False)
    for parameter in own:
        parameter.requires_grad_(True)
    optimiser = torch.optim.Adam([level, *own], lr=_RATE)
    with torch.enable_grad():
        for _ in range(_STEPS):
            optimiser.zero_grad()
            prior = model.log_prior(module)
            total = torch.zeros(()) if prior is None else -prior.sum()
            for policy, batch, inside in answers:
                expertise = batch.demonstrator(level).sigmoid()
                total = total - (model.log_likelihood(policy, expertise, batch, module) * inside).sum()
            total.backward()
            for parameter in own:
                assert parameter.grad is not None
                parameter.grad *= strangers
            optimiser.step()
