"""Questions to a joint model: what its policy does, how expert people are, and how likely their actions are."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from math import log
from typing import Any, final

import torch
from torch import Tensor

from ileed._torch import Bool, Float, Int
from ileed.model.batch import Batch, Sizes
from ileed.model.demonstrators import AbstractDemonstratorModel
from ileed.model.distributions import Choice
from ileed.model.joint import Joint


@final
@dataclass(frozen=True, eq=False)
class Answer:
    """What every member of a joint model says of a batch; each part is computed when it is first read."""

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
        """log p(action | observation, rho) of each row if its demonstrator had one expertise or another, in nats.

        The policy is taken to the power 1 / temperature; `disagreement` is the variance of its own error, which is
        added to the demonstrator's. For a joint model of one member; in double precision.
        """
        policy = self.policy.tempered(temperature)
        everywhere = expertise[:, None].expand(-1, len(self.batch.weight))
        model, module = self.joint.parts.demonstrator, self.joint.demonstrator and deepcopy(self.joint.demonstrator)
        if module is not None:
            module.double()
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
    """What a joint model says of normalised observations, for all members; the caller averages over members.

    A row is one demonstrator's action after one observation; `rows` are its columns, as `Batch.of` takes them. For
    log-likelihoods of a recurrent policy the observations are windows, (time step, window) flattened. `context` is what
    the demonstrator model is told of each row.
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
    """log p(action | observation) of people of any expertise, from a policy's log-probabilities, in nats."""
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
    """The mean over members, or in each row over those that are counted; NaN where there is none."""
    if counted is not None:
        return values.masked_fill(~counted, 0).sum(0) / counted.sum(0)
    return values[0] if len(values) == 1 else values.mean(0)


def log_mean_over_members(
    log_values: Float[Tensor, "member row"], counted: Bool[Tensor, "member row"] | None = None
) -> Float[Tensor, " row"]:
    """The logarithm of the mean over members of what these are logarithms of, or in each row over those counted."""
    if counted is not None:
        return log_values.masked_fill(~counted, -torch.inf).logsumexp(0) - counted.sum(0).log()
    return log_values[0] if len(log_values) == 1 else log_values.logsumexp(0) - log(len(log_values))
