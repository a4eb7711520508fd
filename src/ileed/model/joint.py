"""The joint model: a policy, everybody's expertise, and the likelihood of what they did."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from ileed._torch import Float, beside
from ileed.errors import SettingsError
from ileed.model.batch import Batch, Sizes, padded
from ileed.model.demonstrators import AbstractDemonstratorModel, OneVersusRest, VarianceScaling, policy_log_likelihood
from ileed.model.dynamics import LatentDynamics
from ileed.model.expertise import AbstractExpertise, Embedded, Perfect, Skills
from ileed.model.policies import AbstractPolicyHead, GaussianNet


@final
@dataclass(frozen=True)
class Parts:
    """The settings that together make a joint model."""

    policy: AbstractPolicyHead
    demonstrator: AbstractDemonstratorModel[Any]
    expertise: AbstractExpertise
    dynamics: LatentDynamics | None = None

    def check(self, sizes: Sizes) -> None:
        """Refuse parts that do not go together, or not with the data."""
        policy, model, expertise = (type(part).__name__ for part in (self.policy, self.demonstrator, self.expertise))
        kinds = {True: "discrete", False: "continuous"}
        if self.policy.discrete != sizes.discrete:
            raise SettingsError(
                f"{policy} is a policy over {kinds[self.policy.discrete]} actions but the data's are "
                f"{kinds[sizes.discrete]}: use {'CategoricalMLP' if sizes.discrete else 'MixtureMLP'}"
            )
        if self.demonstrator.discrete != sizes.discrete:
            raise SettingsError(
                f"{model} models {kinds[self.demonstrator.discrete]} actions but {policy}'s are "
                f"{kinds[sizes.discrete]}: use "
                f"{'UniformMixture, OneVersusRest or Boltzmann' if sizes.discrete else 'VarianceScaling'}"
            )
        if isinstance(self.demonstrator, OneVersusRest) and sizes.has_legal_actions:
            raise SettingsError(
                "OneVersusRest knows no legal actions but the data have them: use UniformMixture or Boltzmann"
            )
        if sizes.demonstrators == 1 and not isinstance(self.expertise, Perfect):
            raise SettingsError(
                "there is one demonstrator, and expertise is estimated by comparing several: "
                "use bc() (expertise=Perfect(), at the command --expertise Perfect), or add somebody"
            )
        if isinstance(self.expertise, Skills) and not sizes.skills:
            raise SettingsError(f"Skills({self.expertise.column!r}) needs that column in the data's skills")
        if self.dynamics is not None and not isinstance(self.expertise, Embedded):
            raise SettingsError(
                f"LatentDynamics shapes a learned embedding and {expertise} has none: use Embedded, or dynamics=None"
            )
        if self.dynamics is not None and self.policy.length > 1:
            raise SettingsError(
                f"LatentDynamics is not made for windows, which {policy} learns from: use dynamics=None"
            )
        exempt = self.demonstrator.exempt if isinstance(self.demonstrator, VarianceScaling) else None
        if stray := [axis for axis in exempt or () if not 0 <= axis < sizes.actions]:
            raise SettingsError(
                f"exempt names dimension {stray[0]} but actions have {sizes.actions}, numbered from 0: leave it out"
            )


@final
@dataclass(frozen=True, eq=False)
class Objective:
    """Costs of each member; lower is better. `negative_log_likelihood` is in nats per action."""

    negative_log_likelihood: Float[Tensor, " member"]
    latent_dynamics: Float[Tensor, " member"] | None
    total: Float[Tensor, " member"]


@final
class Joint(nn.Module):
    """Policy and expertise of every member, learned together from what demonstrators did."""

    def __init__(self, parts: Parts, sizes: Sizes, generators: Sequence[torch.Generator]) -> None:
        super().__init__()
        parts.check(sizes)
        self.parts = parts
        self.sizes = sizes
        self.policy = parts.policy.build(sizes, generators)
        self.expertise = parts.expertise.build(sizes, generators)
        self.dynamics = (
            parts.dynamics.build(parts.expertise.dim, sizes, generators)
            if parts.dynamics is not None and isinstance(parts.expertise, Embedded)
            else None
        )

    def log_likelihood(self, batch: Batch) -> Float[Tensor, "member count"]:
        """log p(action | observation, demonstrator) of every count, in nats."""
        embedding = self.expertise.embedding(batch)
        return self._log_likelihood(batch, lambda: embedding)

    def objective(self, batch: Batch) -> Objective:
        """Mean negative log-likelihood over the batch, with the auxiliary cost where there is one."""
        embedding = beside(batch.observations.device, lambda: self.expertise.embedding(batch))
        cost = batch.mean_cost(self._log_likelihood(batch, embedding))
        if self.dynamics is None or self.parts.dynamics is None or batch.transitions is None:
            return Objective(cost, None, cost)
        latent = self.dynamics(embedding(), batch.transitions)
        return Objective(cost, latent, cost + self.parts.dynamics.weight * latent)

    def expertise_at(self, batch: Batch) -> Float[Tensor, "member count"]:
        """rho of every count."""
        return self.expertise(self.expertise.embedding(batch), batch)

    def _log_likelihood(self, batch: Batch, embedding: Callable[[], Tensor | None]) -> Float[Tensor, "member count"]:
        policy = self.policy(batch.observations, batch.legal)
        if isinstance(self.parts.expertise, Perfect):  # every demonstrator model is the policy itself there
            return policy_log_likelihood(policy, batch)
        expertise = self.expertise(embedding(), batch)
        return self.parts.demonstrator.log_likelihood(policy, expertise, batch)

    def skill_parameters(self) -> list[nn.Parameter]:
        """w, and the spreads that all states share: they measure people and learn at a rate of their own."""
        spreads = [self.policy.spreads] if isinstance(self.policy, GaussianNet) and self.policy.shared else []
        return [self.expertise.skill, *spreads]

    def network_parameters(self) -> list[nn.Parameter]:
        """Everything else."""
        others = {id(parameter) for parameter in self.skill_parameters()}
        return [parameter for parameter in self.parameters() if id(parameter) not in others]


@torch.no_grad()
def side_by_side(joints: Sequence[Joint]) -> Joint:
    """The members of several joint models as one, one model after the other, with zeros where one is smaller.

    `Batch.side_by_side` shows each model nothing but its own data, so the padding neither sees nor learns anything.
    """
    whole = copy.deepcopy(joints[0])
    whole.sizes = Sizes.of_all([joint.sizes for joint in joints])
    for name, parameter in whole.named_parameters():
        each = [joint.get_parameter(name).detach() for joint in joints]
        shape = tuple(max(lengths) for lengths in zip(*(values.shape[1:] for values in each), strict=True))
        parameter.data = torch.cat([padded(values, (len(values), *shape)) for values in each])
    if isinstance(whole.policy, GaussianNet):
        whole.policy.measure_each([joint.policy for joint in joints if isinstance(joint.policy, GaussianNet)])
    return whole


@torch.no_grad()
def taken_apart(whole: Joint, joints: Sequence[Joint]) -> None:
    """Give each of the joint models that `side_by_side` was made of what its members have learned there."""
    for name, parameter in whole.named_parameters():
        first = 0
        for joint in joints:
            own = joint.get_parameter(name)
            learned = parameter[first : first + len(own)]
            own.copy_(learned[tuple(slice(length) for length in own.shape)])
            first += len(own)


@torch.no_grad()
def resolve_mirror_symmetry(joint: Joint, batches: Iterable[Batch]) -> None:
    """Turn over the members that found the mirror image of their own answer.

    Under `OneVersusRest` with two actions, (rho, pi) and (1 - rho, 1 - pi) have the same likelihood, so the data cannot
    choose. We say that people follow the policy more often than not: where mean expertise is below one half, w changes
    its sign and the two actions change unique observations in the policy's last layer.
    """
    mirrored = isinstance(joint.parts.demonstrator, OneVersusRest) and joint.sizes.actions == 2
    if not mirrored or isinstance(joint.parts.expertise, Perfect):
        return
    summed = [(batch.mean(joint.expertise_at(batch)) * batch.total_weight, batch.total_weight) for batch in batches]
    down = sum(expertise for expertise, _ in summed) < 0.5 * sum(weight for _, weight in summed)
    joint.expertise.skill[down] *= -1
    last = joint.policy.body.last
    for parameter in (last.weight, last.bias):
        parameter[down] = parameter[down].flip(1)
