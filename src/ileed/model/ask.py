"""Questions to a joint model beside its own: the likelihood of anybody's actions, and means over members."""

from __future__ import annotations

from math import log
from typing import Any

import torch
from torch import Tensor

from ileed._torch import Bool, Float, Int
from ileed.model.batch import Batch, Sizes
from ileed.model.demonstrators import AbstractDemonstratorModel
from ileed.model.distributions import Choice


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
