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
from ileed.model.batch import Batch, PerCount, Sizes, padded
from ileed.model.demonstrators import AbstractDemonstratorModel
from ileed.model.dynamics import LatentDynamics
from ileed.model.expertise import AbstractExpertise, Perfect
from ileed.model.knowledge import Knowledge
from ileed.model.nets import Generators
from ileed.model.policies import AbstractPolicyHead


@final
@dataclass(frozen=True)
class Parts:
    """The settings that together make a joint model."""

    policy: AbstractPolicyHead
    demonstrator: AbstractDemonstratorModel[Any]
    expertise: AbstractExpertise
    dynamics: LatentDynamics | None = None

    @property
    def model_defines_expertise(self) -> bool:
        """Whether expertise is estimated, and by the demonstrator model's own parameters."""
        return self.expertise.estimates_expertise and self.demonstrator.defines_expertise

    @property
    def context(self) -> tuple[str, ...]:
        """What the model depends on beside observation and demonstrator: the columns that its batches need."""
        number = ("episode_number",) if self.expertise.depends_on_episode else ()
        return tuple(dict.fromkeys((*self.demonstrator.context, *number)))

    @property
    def embedding_dimension(self) -> int | None:
        """The dimension of the embedding that is learned, or None."""
        return None if self.model_defines_expertise else self.expertise.embedding_dimension

    def check(self, sizes: Sizes) -> None:
        """Refuse parts that do not go together, or not with the data."""
        self.policy.check(sizes)
        self.demonstrator.check(sizes)
        self.expertise.check(sizes)
        if self.dynamics is None:
            return
        if self.embedding_dimension is None:
            name = type(self.demonstrator if self.model_defines_expertise else self.expertise).__name__
            reason = f"shapes a learned embedding and {name} has none: use Embedded, or dynamics=None"
            raise SettingsError(f"LatentDynamics {reason}")
        if self.policy.length > 1:
            reason = f"is not made for windows, which {type(self.policy).__name__} learns from: use dynamics=None"
            raise SettingsError(f"LatentDynamics {reason}")


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

    def __init__(self, parts: Parts, sizes: Sizes, generators: Generators) -> None:
        super().__init__()
        parts.check(sizes)
        self.parts = parts
        self.sizes = sizes
        self.policy = parts.policy.build(sizes, generators)
        expertise = Perfect() if parts.model_defines_expertise else parts.expertise
        self.expertise = expertise.build(sizes, generators)
        self.dynamics = None
        if parts.dynamics is not None and parts.embedding_dimension is not None:
            self.dynamics = parts.dynamics.build(parts.embedding_dimension, sizes, generators)
        self.demonstrator = parts.demonstrator.build(sizes, generators)
        self.knowledge: Knowledge | None = None

    def log_likelihood(self, batch: Batch) -> PerCount:
        """log p(action | observation, demonstrator) of every count, in nats."""
        embedding = self.expertise.embedding(batch)
        return self._log_likelihood(batch, lambda: embedding)

    def objective(self, batch: Batch) -> Objective:
        """Mean negative log-likelihood over the batch, with the auxiliary loss where there is one."""
        embedding = beside(batch.observations.device, lambda: self.expertise.embedding(batch))
        cost = batch.mean_cost(self._log_likelihood(batch, embedding))
        total = cost if (prior := self._log_prior()) is None else cost - prior / batch.whole_weight
        if self.knowledge is not None and self.parts.expertise.estimates_expertise:
            own = self.parts.model_defines_expertise
            rho = self.expertise_at(batch) if own else self.expertise(embedding(), batch)
            total = total + self.knowledge.cost(rho, batch)
        if self.knowledge is not None and (answers := self.knowledge.answers) is not None:
            right = self.policy(answers.observations, answers.legal).taken(answers)
            total = total - (right @ answers.weight) / batch.whole_weight
        if self.dynamics is None or self.parts.dynamics is None or batch.transitions is None:
            return Objective(cost, None, total)
        latent = self.dynamics(embedding(), batch.transitions)
        return Objective(cost, latent, total + self.parts.dynamics.weight * latent)

    def _log_prior(self) -> Float[Tensor, " member"] | None:
        """Logarithm of the prior of expertise and of the demonstrator model's own parameters, or None for flat ones."""
        if not self.parts.expertise.estimates_expertise:
            return None
        own = None if self.demonstrator is None else self.parts.demonstrator.log_prior(self.demonstrator)
        known = [each for each in (self.expertise.log_prior(), own) if each is not None]
        return torch.stack(known).sum(0) if known else None

    def expertise_at(self, batch: Batch) -> PerCount:
        """rho of every count."""
        if self.parts.model_defines_expertise and self.demonstrator is not None:
            return self.parts.demonstrator.expertise(batch, self.demonstrator)
        return self.expertise(self.expertise.embedding(batch), batch)

    def _log_likelihood(self, batch: Batch, embedding: Callable[[], Tensor | None]) -> PerCount:
        policy = self.policy(batch.observations, batch.legal)
        if not self.parts.expertise.estimates_expertise:  # every demonstrator model is the policy itself there
            return policy.taken(batch)
        expertise = self.expertise(embedding(), batch)
        return self.parts.demonstrator.log_likelihood(policy, expertise, batch, self.demonstrator)

    def can_stand_beside(self, other: Joint) -> bool:
        """Whether `side_by_side` can join the two: the same parts and actions; all else may be of other sizes.

        A model that compares people with each other stands alone, and so does a module of the user's own.
        """
        model, expertise = self.parts.demonstrator, self.parts.expertise
        if model.measures_from_mean or expertise.measures_from_mean:
            return False
        if not self.parts.policy.can_stand_beside:
            return False
        return self.parts == other.parts and self.sizes.actions == other.sizes.actions

    def skill_parameters(self) -> list[nn.Parameter]:
        """What measures people, such as w, and is learned at the skill learning rate."""
        own = [] if self.demonstrator is None else list(self.demonstrator.parameters())
        return [*self.expertise.skill_parameters(), *self.policy.skill_parameters(), *own]

    def network_parameters(self) -> list[nn.Parameter]:
        """Everything else."""
        others = {id(parameter) for parameter in self.skill_parameters()}
        return [parameter for parameter in self.parameters() if id(parameter) not in others]


@torch.no_grad()
def side_by_side(joints: Sequence[Joint]) -> Joint:
    """The members of several joint models as one, with zeros, which `Batch.side_by_side` never reads, as padding."""
    whole = copy.deepcopy(joints[0])
    whole.sizes = Sizes.of_all([joint.sizes for joint in joints])
    for name, parameter in whole.named_parameters():
        each = [joint.get_parameter(name).detach() for joint in joints]
        shape = tuple(max(lengths) for lengths in zip(*(values.shape[1:] for values in each), strict=True))
        parameter.data = torch.cat([padded(values, (len(values), *shape)) for values in each])
    whole.policy.measure_each([joint.policy for joint in joints])
    return whole


@torch.no_grad()
def taken_apart(whole: Joint, joints: Sequence[Joint]) -> None:
    """Give each of the joint models that `side_by_side` was made of what its members have learned there."""
    for name, parameter in whole.named_parameters():
        each = [joint.get_parameter(name) for joint in joints]
        for own, learned in zip(each, parameter.split([len(own) for own in each]), strict=True):
            own.copy_(learned[tuple(slice(length) for length in own.shape)])


@torch.no_grad()
def resolve_mirror_symmetry(joint: Joint, batches: Iterable[Batch]) -> None:
    """Replace members by their mirror image where the model cannot tell the two apart and expertise is below one half.

    Under `OneVersusRest` with two actions, (rho, pi) and (1 - rho, 1 - pi) have the same likelihood, so the data cannot
    choose. We assume that people follow the policy more often than not.
    """
    parts = joint.parts
    if not (parts.expertise.can_be_mirrored and parts.demonstrator.has_mirror_symmetry(joint.sizes)):
        return
    summed = [(batch.mean(joint.expertise_at(batch)) * batch.total_weight, batch.total_weight) for batch in batches]
    below = torch.as_tensor(sum(rho for rho, _ in summed) < 0.5 * sum(weight for _, weight in summed))
    joint.expertise.mirror(below)
    joint.policy.exchange_actions(below)
