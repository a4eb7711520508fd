"""The joint model: a policy, the expertise of all demonstrators, and the likelihood of their actions."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import log
from typing import Any, final

import torch
from torch import Tensor, nn

from ileed._torch import Bool, Float, Int, beside
from ileed.errors import SettingsError
from ileed.model.batch import Batch, PerCount, Sizes, padded
from ileed.model.demonstrators import AbstractDemonstratorModel
from ileed.model.distributions import Choice
from ileed.model.expertise import AbstractExpertise, LatentDynamics, Perfect
from ileed.model.knowledge import Knowledge
from ileed.model.nets import Generators
from ileed.model.policies import AbstractPolicyHead


@final
@dataclass(frozen=True)
class Parts:
    """The settings of a joint model."""

    policy: AbstractPolicyHead
    demonstrator: AbstractDemonstratorModel[Any]
    expertise: AbstractExpertise
    dynamics: LatentDynamics | None = None

    @property
    def model_defines_expertise(self) -> bool:
        """Whether expertise is estimated, and by the demonstrator model's parameters."""
        return self.expertise.estimates_expertise and self.demonstrator.defines_expertise

    @property
    def context(self) -> tuple[str, ...]:
        """The columns that batches need besides observation and demonstrator."""
        number = ("episode_number",) if self.expertise.depends_on_episode else ()
        return tuple(dict.fromkeys((*self.demonstrator.context, *number)))

    @property
    def embedding_dimension(self) -> int | None:
        """The dimension of the learned embedding, or None."""
        return None if self.model_defines_expertise else self.expertise.embedding_dimension

    def check(self, sizes: Sizes) -> None:
        """Refuse parts that do not fit each other or the data."""
        self.policy.check(sizes)
        self.demonstrator.check(sizes)
        self.expertise.check(sizes)
        if self.dynamics is None:
            return
        problem = ""
        if self.embedding_dimension is None:
            name = type(self.demonstrator if self.model_defines_expertise else self.expertise).__name__
            problem = f"shapes a learned embedding and {name} has none: use Embedded, or dynamics=None"
        elif self.policy.length > 1:
            problem = f"does not support windows, which {type(self.policy).__name__} learns from: use dynamics=None"
        if problem:
            raise SettingsError(f"LatentDynamics {problem}", code="dynamics-unsupported")


@final
@dataclass(frozen=True, eq=False)
class Objective:
    """Costs of each member; lower is better. `negative_log_likelihood` is in nats per action."""

    negative_log_likelihood: Float[Tensor, " member"]
    latent_dynamics: Float[Tensor, " member"] | None
    total: Float[Tensor, " member"]


@final
class Joint(nn.Module):
    """Policy and expertise of every member, learned together from the demonstrators' actions."""

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
        """Mean negative log-likelihood over the batch, and the total with priors, knowledge and latent dynamics."""
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
        """Log prior of expertise and of the demonstrator model's parameters; None if both are flat."""
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
        if not self.parts.expertise.estimates_expertise:  # every demonstrator model is the policy at expertise one
            return policy.taken(batch)
        expertise = self.expertise(embedding(), batch)
        return self.parts.demonstrator.log_likelihood(policy, expertise, batch, self.demonstrator)

    def can_stand_beside(self, other: Joint) -> bool:
        """Whether `side_by_side` can join the two: equal parts and numbers of actions, all other sizes may differ."""
        parts = self.parts
        compares = parts.demonstrator.measures_from_mean or parts.expertise.measures_from_mean  # across demonstrators
        alike = parts == other.parts and self.sizes.actions == other.sizes.actions
        return alike and parts.policy.can_stand_beside and not compares

    def skill_parameters(self) -> list[nn.Parameter]:
        """Parameters of demonstrators, such as w, which are learned at the skill learning rate."""
        own = [] if self.demonstrator is None else list(self.demonstrator.parameters())
        return [*self.expertise.skill_parameters(), *self.policy.skill_parameters(), *own]

    def network_parameters(self) -> list[nn.Parameter]:
        """All other parameters."""
        others = {id(parameter) for parameter in self.skill_parameters()}
        return [parameter for parameter in self.parameters() if id(parameter) not in others]


@torch.no_grad()
def side_by_side(joints: Sequence[Joint]) -> Joint:
    """The members of several joint models as one, padded with zeros that `Batch.side_by_side` never reads."""
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
    """Copy what the members of `side_by_side(joints)` learned back into the joint models."""
    for name, parameter in whole.named_parameters():
        each = [joint.get_parameter(name) for joint in joints]
        for own, learned in zip(each, parameter.split([len(own) for own in each]), strict=True):
            own.copy_(learned[tuple(slice(length) for length in own.shape)])


@torch.no_grad()
def resolve_mirror_symmetry(joint: Joint, batches: Iterable[Batch]) -> None:
    """Mirror members whose mean expertise is below one half, where the likelihood cannot tell a mirror image apart.

    Under `OneVersusRest` with two actions, (rho, pi) and (1 - rho, 1 - pi) are equally likely, so the data cannot
    choose. We assume that demonstrators follow the policy more often than not.
    """
    parts = joint.parts
    if not (parts.expertise.can_be_mirrored and parts.demonstrator.has_mirror_symmetry(joint.sizes)):
        return
    summed = [(batch.mean(joint.expertise_at(batch)) * batch.total_weight, batch.total_weight) for batch in batches]
    below = torch.as_tensor(sum(rho for rho, _ in summed) < 0.5 * sum(weight for _, weight in summed))
    joint.expertise.mirror(below)
    joint.policy.exchange_actions(below)


@final
@dataclass(frozen=True, eq=False)
class Answer:
    """What the members of a joint model predict for a batch; each part is computed when it is first read."""

    joint: Joint
    batch: Batch

    @cached_property
    def policy(self) -> Any:
        """pi(. | observation): a distribution of batch shape (member, observation)."""
        return self.joint.policy(self.batch.observations, self.batch.legal)

    @cached_property
    def expertise(self) -> Float[Tensor, "member row"]:
        """rho of each row's demonstrator at its observation."""
        return self.joint.expertise_at(self.batch)

    @cached_property
    def log_likelihood(self) -> Float[Tensor, "member row"]:
        """log p(action | observation, demonstrator) of each row, in nats."""
        return self.joint.log_likelihood(self.batch)

    def log_likelihood_at(
        self, expertise: Float[Tensor, " point"], temperature: float, disagreement: Tensor | None = None
    ) -> Float[Tensor, "point row"]:
        """log p(action | observation, rho) of each row at several levels of expertise, in nats and double precision.

        The policy is raised to the power 1 / temperature; `disagreement` is the variance of its error, which is added
        to the demonstrator's. For a joint model of one member.
        """
        policy = self.policy.tempered(temperature)
        everywhere = expertise[:, None].expand(-1, len(self.batch.weight))
        model, module = self.joint.parts.demonstrator, self.joint.demonstrator
        module = module and copy.deepcopy(module).double()
        if disagreement is None:
            return model.log_likelihood(policy, everywhere, self.batch, module)
        return model.log_likelihood_with_error(policy, everywhere, self.batch, disagreement, module)

    @cached_property
    def policy_log_likelihood(self) -> Float[Tensor, "member row"]:
        """log pi(action | observation) of each row, in nats."""
        return self.policy.taken(self.batch)


def ask(
    joint: Joint,
    observations: Float[Tensor, "input observation"],
    *,
    context: Mapping[str, Tensor] | None = None,
    **rows: Tensor | None,
) -> Answer:
    """What the members of a joint model predict at normalised observations.

    A row is one demonstrator's action at one observation; `rows` are columns as in `Batch.of`, and `context` those that
    the demonstrator model declares. For log-likelihoods of a recurrent policy the observations are windows, flattened
    (time step, window).
    """
    batch = Batch.of(sizes=joint.sizes, observations=observations, **rows)
    return Answer(joint, batch if context is None else replace(batch, context=context))


def log_likelihood(
    model: AbstractDemonstratorModel[Any],
    policy: Float[Tensor, "row action"],
    expertise: Float[Tensor, "point row"],
    action: Int[Tensor, " row"],
    legal: Bool[Tensor, "row action"] | None = None,
) -> Float[Tensor, "point row"]:
    """log p(action | observation) at several levels of expertise, from a policy's log-probabilities, in nats."""
    batch = Batch.of(
        sizes=Sizes(inputs=1, demonstrators=1, actions=policy.shape[-1]),
        observations=policy.new_zeros(1, len(action)),
        action=action,
        legal=None if legal is None else legal.T,
    )
    return model.log_likelihood(Choice(policy.T[None]), expertise, batch)


def mean_over_members(
    values: Float[Tensor, "member row"], counted: Bool[Tensor, "member row"] | None = None
) -> Float[Tensor, " row"]:
    """The mean over members, or over those counted in each row; NaN where there is none."""
    if counted is not None:
        return values.masked_fill(~counted, 0).sum(0) / counted.sum(0)
    return values[0] if len(values) == 1 else values.mean(0)


def log_mean_over_members(
    log_values: Float[Tensor, "member row"], counted: Bool[Tensor, "member row"] | None = None
) -> Float[Tensor, " row"]:
    """The logarithm of the mean of exp(log_values) over members, or over those counted in each row."""
    if counted is not None:
        return log_values.masked_fill(~counted, -torch.inf).logsumexp(0) - counted.sum(0).log()
    return log_values[0] if len(log_values) == 1 else log_values.logsumexp(0) - log(len(log_values))
