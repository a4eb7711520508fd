"""An ensemble: the members that a fit found, all of them or some, and the fit that they make together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import mode
from typing import Any, final

import numpy as np
import torch

from ileed import runs
from ileed.checking import whole_number
from ileed.demonstrations import Array, Collapsed, Demonstrations
from ileed.errors import SettingsError
from ileed.fitted.expertise import Expertise, expertise_at, own_steps, summarise
from ileed.fitted.policy import Policy
from ileed.fitted.result import Fitted, Restarts, batches_of_steps, skill_weights
from ileed.fitting import OptimisationResult
from ileed.model.joint import Joint, log_mean_over_members
from ileed.model.normaliser import Normaliser
from ileed.nets import members


@final
@dataclass(frozen=True)
class Spread:
    """How much the members of an ensemble differ; all of it is zero for one member.

    `nats_per_action` is the standard deviation over members of their costs, and `expertise` that of each demonstrator's
    expertise, averaged over the person's own steps (NaN where fewer than one member learned from the person). `policy`
    is in nats: by how much the members' mean cost of the data's actions under their policies alone exceeds the cost
    under the mean of these policies. It is the disagreement of Krogh and Vedelsby (1995) for the log-likelihood.
    """

    nats_per_action: float
    expertise: Mapping[str, float]
    policy: float


@final
@dataclass(frozen=True, eq=False)
class Ensemble:
    """Members of a fit, each with its own parameters: restarts from different initial values.

    `best()` is the likeliest, `top(k)` are the k likeliest, `first(k)` what a fit with k restarts would have had, and
    `member(i)` and iteration give one member: each is an ensemble again. `fitted()` is the fit that the members make
    together, and `spread()` says how much they differ.

    Members that have different episode weights, as the replicates of a bootstrap have, are never compared by their
    costs: a cost is a mean over the member's own weights, and may be low since the episodes are easy. `best` and `top`
    refuse them. `Ileed.fit` then keeps every member, and `fitted()` averages over all of them.
    """

    method: Any
    data: Demonstrations
    collapsed: Collapsed
    normaliser: Normaliser
    result: OptimisationResult
    """The parameters, cost and learning curve of every restart of the fit."""
    step_weight: Array
    """(restart or 1, step) what each restart learned from."""
    held_out: Array | None
    """(step,) what costs are of, where that is not what was learned from."""
    provenance: Mapping[str, Any]
    restarts: tuple[int, ...]
    """Which restart each member is."""

    def __len__(self) -> int:
        return len(self.restarts)

    def __iter__(self) -> Iterator[Ensemble]:
        return (self.member(number) for number in range(len(self)))

    @cached_property
    def joint(self) -> Joint:
        """The parameters of the members, whose first axis is the member."""
        every = tuple(range(len(self.result.nats_per_action)))
        return self.result.joint if self.restarts == every else members(self.result.joint, self.restarts)

    @property
    def nats_per_action(self) -> Array:
        """(member,) each member's own cost, lower is better."""
        return self.result.nats_per_action[list(self.restarts)]

    @property
    def comparable(self) -> bool:
        """Whether the members' costs are of the same data: all have the same episode weights."""
        own = self._own_weights
        return bool((own == own[:1]).all())

    @property
    def learned_from(self) -> Array:
        """(member or 1, demonstrator) whether any step of somebody had a weight."""
        people, who = len(self.data.names), self.data.demonstrator
        return np.stack([np.bincount(who, weights=row, minlength=people) > 0 for row in self._own_weights])

    @property
    def _own_weights(self) -> Array:
        """(member or 1, step) what each member learned from."""
        return self.step_weight if len(self.step_weight) == 1 else self.step_weight[list(self.restarts)]

    def member(self, number: int) -> Ensemble:
        """One member, as an ensemble of its own."""
        return replace(self, restarts=(self.restarts[number],))

    def first(self, count: int) -> Ensemble:
        """The first so many restarts of the fit: what a fit with so many would have found."""
        count = self._checked(count, len(self.result.nats_per_action))
        result = self.result.part(members(self.result.joint, range(count)), 0, self.result.guessing_nats)
        return replace(self, result=result, step_weight=self.step_weight[:count], restarts=tuple(range(count)))

    def best(self) -> Ensemble:
        """The likeliest member, as an ensemble of its own."""
        return self.top(1)

    def top(self, count: int) -> Ensemble:
        """The likeliest members, so many of them, the likeliest first."""
        count = self._checked(count, len(self))
        if not self.comparable:
            raise SettingsError(
                "these members have different episode weights, so that their costs are of different data and none is "
                "the likeliest: average all of them with fitted(), or take one with member(i)"
            )
        order = np.argsort(self.nats_per_action, kind="stable")[:count]
        return replace(self, restarts=tuple(self.restarts[number] for number in order))

    def _checked(self, count: int, most: int) -> int:
        rule = f"it takes between one and all {most} of the restarts"
        if whole_number("the size of an ensemble", count, least=1, rule=rule) > most:
            raise SettingsError(f"the size of an ensemble is {count}: {rule}")
        return count

    @torch.no_grad()
    def spread(self) -> Spread:
        """How much the members differ: in their costs, in everybody's expertise, and in their policies."""
        data = self.data
        index, person, count = own_steps(self.collapsed, data)
        own = expertise_at(self.joint, self.normaliser, self.collapsed, index, person).double().numpy()
        steps = np.bincount(person, weights=count, minlength=len(data.names))
        with np.errstate(invalid="ignore"):
            means = (
                np.stack([np.bincount(person, weights=row * count, minlength=len(data.names)) for row in own]) / steps
            )
        known = np.broadcast_to(self.learned_from, means.shape)
        each = [means[known[:, who], who] for who in range(len(data.names))]
        disagreement = np.empty(len(data))
        skills = skill_weights(self.joint, data, self.collapsed.skill_names)
        for rows, inside, batch in batches_of_steps(self.joint, self.normaliser, data, data.demonstrator, skills):
            found = self.joint.policy(batch.observations, batch.legal).taken(batch)
            disagreement[rows[inside]] = (log_mean_over_members(found) - found.mean(0)).numpy()[inside]
        return Spread(
            nats_per_action=float(self.nats_per_action.std()),
            expertise={name: _standard_deviation(own) for name, own in zip(data.names, each, strict=True)},
            policy=float(disagreement.mean()),
        )

    def fitted(self) -> Fitted:
        """The fit that these members make together: `Fitted` says what is averaged over them."""
        costs, data, result = self.nats_per_action, self.data, self.result
        if not np.isfinite(costs).all():
            raise SettingsError(
                f"ensemble is {len(costs)}, and only {np.isfinite(result.nats_per_action).sum()} of "
                f"{len(result.nats_per_action)} restarts stayed finite: lower ensemble or learning_rate, or set clip"
            )
        summary = summarise(self.joint, self.normaliser, self.collapsed, data, self.learned_from)
        names, skill_names = data.names, self.collapsed.skill_names
        fitted = Fitted(
            policy=Policy(self.joint, self.normaliser, data.encoding),
            expertise=Expertise(self.joint, self.normaliser, names, skill_names, summary, data.encoding),
            restarts=Restarts(result.nats_per_action, self.restarts),
            nats_per_action=float(costs[0]),
            history=result.history,
            outcome=mode(result.history.outcome(member, result.guessing_nats) for member in self.restarts),
            method=self.method,
            provenance={**runs.provenance(), **self.provenance},
            joint=self.joint,
            normaliser=self.normaliser,
            ensemble=replace(self, restarts=tuple(range(len(result.nats_per_action)))),
        )
        if len(self) == 1:
            return fitted
        weight = self._own_weights.mean(0) if self.held_out is None else self.held_out
        return replace(fitted, nats_per_action=float(np.average(fitted.nats(data), weights=weight)))


def _standard_deviation(values: Array) -> float:
    return float(values.std()) if len(values) else float("nan")
