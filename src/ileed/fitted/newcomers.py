"""Parameters of people whom a fit has not seen, where its demonstrator model has some for each person.

They are estimated with the policy as it is: by maximum a posteriori under the model's own prior, together with one
number of expertise, from where the people of the fit are on average.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import torch
from torch import Tensor, nn

from ileed.demonstrations import Array, Demonstrations
from ileed.fitted.steps import answers_at_steps
from ileed.model.ask import Answer
from ileed.model.joint import Joint
from ileed.model.normaliser import Normaliser

_STEPS, _RATE = 300, 0.05


def joint_with_newcomers(
    joint: Joint, normaliser: Normaliser, data: Demonstrations, known: Array, skill_names: tuple[str, ...]
) -> Joint:
    """The joint model with the people of `data` in place of its own; `known` (person,) are their numbers there, or -1.

    Those it knows keep their parameters. What is shared by all people stays as it is. Only steps may be asked of it
    whose expertise is given (`Answer.log_likelihood_at`): the numbers of expertise are those of other people.
    """
    found = deepcopy(joint)
    found.sizes = replace(joint.sizes, demonstrators=len(data.names))
    assert joint.demonstrator is not None
    found.demonstrator = module = _module_of(joint, known)
    own = [parameter for name, parameter in module.named_parameters() if _is_of_people(joint, name)]
    strangers = torch.from_numpy(known < 0)
    if own and bool(strangers.any()):
        theirs = data.select((known < 0)[data.demonstrator])
        _estimate(found, module, own, strangers, _answers(found, normaliser, theirs, skill_names))
    module.requires_grad_(False)
    return found


def _answers(
    joint: Joint, normaliser: Normaliser, data: Demonstrations, skill_names: tuple[str, ...]
) -> list[tuple[Array, Answer]]:
    found = answers_at_steps(joint, normaliser, data, data.demonstrator, skill_names)
    return [(inside, answer) for _, inside, answer in found]


def _is_of_people(joint: Joint, name: str) -> bool:
    """Whether a parameter of the demonstrator model has a value for each person: a longer one for one more person."""
    more = replace(joint.sizes, demonstrators=joint.sizes.demonstrators + 1)
    one, other = (joint.parts.demonstrator.build(sizes, []) for sizes in (joint.sizes, more))
    assert one is not None
    assert other is not None
    return one.get_parameter(name).shape != other.get_parameter(name).shape


@torch.no_grad()
def _module_of(joint: Joint, known: Array) -> nn.Module:
    """The model's parameters for these people, with the mean over the fit's people for those whom it does not know."""
    assert joint.demonstrator is not None
    module = joint.parts.demonstrator.anchored(deepcopy(joint.demonstrator))
    index, strangers = torch.from_numpy(known.clip(min=0)), torch.from_numpy(known < 0)
    for name, parameter in module.named_parameters():
        if _is_of_people(joint, name):
            mean = parameter.mean(-1, keepdim=True)
            parameter.data = torch.where(strangers, mean, parameter.data[..., index])
    return module


def _estimate(
    joint: Joint, module: nn.Module, own: list[nn.Parameter], strangers: Tensor, answers: list[tuple[Array, Answer]]
) -> None:
    """Maximise the likelihood of the strangers' steps and the prior over their own parameters and expertise."""
    model = joint.parts.demonstrator
    members = len(next(joint.policy.parameters()))
    level = nn.Parameter(torch.zeros(members, len(strangers)))
    module.requires_grad_(False)
    for parameter in own:
        parameter.requires_grad_(True)
    policies = [(answer.policy, answer.batch, torch.from_numpy(inside).float()) for inside, answer in answers]
    optimiser = torch.optim.Adam([level, *own], lr=_RATE)
    with torch.enable_grad():
        for _ in range(_STEPS):
            optimiser.zero_grad()
            total = -_prior(joint, module)
            for policy, batch, inside in policies:
                expertise = batch.demonstrator(level).sigmoid()
                total = total - (model.log_likelihood(policy, expertise, batch, module) * inside).sum()
            total.backward()
            for parameter in own:
                assert parameter.grad is not None
                parameter.grad *= strangers
            optimiser.step()


def _prior(joint: Joint, module: nn.Module) -> Tensor:
    found = joint.parts.demonstrator.log_prior(module)
    return torch.zeros(()) if found is None else found.sum()
