"""Questions to a joint model: what its policy does, how expert people are, and how likely their actions are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import log
from typing import Any, final

import torch
from torch import Tensor

from ileed._torch import Bool, Float, Int
from ileed.model.batch import Batch, Sizes
from ileed.model.context import Context
from ileed.model.demonstrators import AbstractDemonstratorModel
from ileed.model.distributions import Choice
from ileed.model.heads import State
from ileed.model.joint import Joint


@final
@dataclass(frozen=True, eq=False)
class Answer:
    """What every member of a joint model says of some rows; each part is computed when it is first read."""

    joint: Joint
    observations: Float[Tensor, "input observation"]
    legal: Bool[Tensor, "action observation"] | None
    state: State | None
    rows: Callable[[], Batch]

    @cached_property
    def expertise(self) -> Float[Tensor, "member row"]:
        """rho of each row's demonstrator at its observation."""
        return self.joint.expertise_at(self._batch)

    @cached_property
    def log_likelihood(self) -> Float[Tensor, "member row"]:
        """log p(action | observation, demonstrator) of each row, in nats."""
        return self.joint.log_likelihood(self._batch)

    @cached_property
    def policy(self) -> Any:
        """pi(. | observation): a distribution of batch shape (member, observation)."""
        return self.joint.policy(self.observations, self.legal)

    @cached_property
    def policy_log_likelihood(self) -> Float[Tensor, "member row"]:
        """log pi(action | observation) of each row, in nats."""
        return self.policy.taken(self._batch)

    def log_likelihood_at(
        self, expertise: Float[Tensor, " point"], temperature: float, disagreement: Tensor | None = None
    ) -> Float[Tensor, "point row"]:
        """log p(action | observation, rho) of each row if its demonstrator had one expertise or another, in nats.

        The policy is taken to the power 1 / temperature; `disagreement` is what `PolicyNet.disagreement` says of its
        own error, which is added to the demonstrator's. For a joint model of one member; in double precision.
        """
        policy = self.joint.policy.tempered(self.policy, temperature)
        everywhere = expertise[:, None].expand(-1, len(self._batch.weight))
        model, module = self.joint.parts.demonstrator, self.joint.demonstrator
        if disagreement is None:
            return model.log_likelihood(policy, everywhere, self._batch, module)
        observed = model.observed(policy, everywhere, Context.of(self._batch, len(expertise), module))
        return self.joint.policy.broadened(observed, disagreement).log_prob(self._batch.action)

    def with_context(self, context: Mapping[str, Tensor]) -> Answer:
        """The same, where the demonstrator model is told what came before each row."""
        return replace(self, rows=lambda: replace(self.rows(), context=context))

    @cached_property
    def next_action(self) -> tuple[Any, State]:
        """The distribution of the next action, of batch shape (member, observation), and the next hidden state."""
        net = self.joint.policy
        state = net.initial_state(self.observations.shape[-1]) if self.state is None else self.state
        return net.step(self.observations, state, self.legal)

    @cached_property
    def _batch(self) -> Batch:
        return self.rows()


def ask(
    joint: Joint,
    observations: Float[Tensor, "input observation"],
    *,
    demonstrator: Int[Tensor, " row"] | None = None,
    action: Tensor | None = None,
    legal: Bool[Tensor, "action observation"] | None = None,
    skills: Float[Tensor, "skill observation"] | None = None,
    observation_index: Int[Tensor, " row"] | None = None,
    state: State | None = None,
) -> Answer:
    """What a joint model says of normalised observations, for all members; the caller averages over members.

    A row is one demonstrator's action after one observation; `observation_index` says after which, where rows are not
    observations in the same order. For log-likelihoods of a recurrent policy the observations are windows, (time step,
    window) flattened; for the next action they continue `state`, or begin an episode each.
    """

    def rows() -> Batch:
        index = torch.arange(observations.shape[-1]) if observation_index is None else observation_index
        return Batch.of(
            sizes=joint.sizes if action is not None else replace(joint.sizes, discrete=False),
            observations=observations,
            observation_index=index,
            demonstrator=torch.zeros_like(index) if demonstrator is None else demonstrator,
            action=torch.zeros(0) if action is None else action,
            weight=torch.ones(len(index)),
            legal=legal,
            skills=skills,
        )

    return Answer(joint, observations, legal, state, rows)


def log_likelihood(
    model: AbstractDemonstratorModel[Any],
    policy: Float[Tensor, "row action"],
    expertise: Float[Tensor, "point row"],
    action: Int[Tensor, " row"],
    legal: Bool[Tensor, "row action"] | None = None,
) -> Float[Tensor, "point row"]:
    """log p(action | observation) of people of any expertise, from a policy's log-probabilities, in nats."""
    rows = torch.arange(len(action))
    batch = Batch.of(
        sizes=Sizes(inputs=1, demonstrators=1, actions=policy.shape[-1]),
        observations=policy.new_zeros(1, len(action)),
        observation_index=rows,
        demonstrator=torch.zeros_like(rows),
        action=action,
        weight=policy.new_ones(len(action)),
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
