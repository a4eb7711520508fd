"""Conservative Q-learning: a soft actor-critic whose critics think little of what nobody did."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from ileed.errors import SettingsError
from ileed_lab.baselines.lessons import Lesson, descend, follow, twin
from ileed_lab.baselines.networks import Critics, built, chance, log_normal, network
from ileed_lab.baselines.offline import AbstractActor, AbstractOffline, Beginner, State, at_least_one, positive
from ileed_lab.baselines.replay import Replay, Transitions

__all__ = ["Cql", "CqlActor"]

EDGE = 0.99
"""Where demonstrated actions are held when their likelihood is asked for: one itself is infinitely far for tanh."""


@final
@dataclass(frozen=True, kw_only=True)
class Cql(AbstractOffline):
    """Conservative Q-learning (Kumar et al., 2020) on a soft actor-critic, as robomimic sets it.

    Each critic's cost is its squared Bellman error plus

        weight * (log sum_i exp(Q(s, a_i)) / p(a_i) - Q(s, a) - gap),

    with a the demonstrated action and a_i drawn uniformly, from the policy at s, and from the policy at s'. The weight
    is learned such that the bracket tends to zero. It uses rewards, which behaviour cloning and ileed do not see. See
    docs/decisions/offline-baselines.md for what differs from robomimic.
    """

    title: ClassVar[str] = "CQL"
    uses_rewards: ClassVar[bool] = True

    steps: int = 20_000
    """Gradient steps of each network."""
    warm_start: int = 2_000
    """How many of them the policy spends on cloning the demonstrations before it listens to the critics."""
    batch_size: int = 256
    """Transitions in each."""
    hidden: tuple[int, ...] = (300, 400)
    """Units in the layers of every network."""
    learning_rate: float = 1e-3
    """Of the critics."""
    policy_learning_rate: float = 3e-4
    """Of the policy and of its entropy's weight."""
    discount: float = 0.99
    """What a reward one step later is worth."""
    target_rate: float = 0.005
    """Share of the way that the target critics go towards the trained ones in every step."""
    gap: float | None = 5.0
    """How much more than the demonstrated action all others together may be worth; None fixes the weight instead."""
    weight: float = 1.0
    """Of the conservative cost: where it starts, or what it is if there is no gap."""
    entropy_weight: float = 0.1
    """Of the policy's entropy beside what the critics say: where it starts; it is learned so that the entropy tends to
    minus the number of dimensions."""
    samples: int = 10
    """Actions drawn for the conservative cost, from each of three sources."""

    def __post_init__(self) -> None:
        at_least_one(self, "steps", "batch_size", "samples")
        positive(self, "learning_rate", "policy_learning_rate", "target_rate", "weight", "entropy_weight")
        if not 0 <= self.discount <= 1:
            raise SettingsError(f"discount is {self.discount}: it must be from 0 to 1")
        if not 0 <= self.warm_start <= self.steps:
            raise SettingsError(f"warm_start is {self.warm_start}: it must be from 0 to the {self.steps} steps")

    def begin(self, replay: Replay, *, seed: int) -> Beginner[CqlActor]:
        weights = chance(seed, "cql", "networks", device=torch.device("cpu"))
        actor = built(lambda: CqlActor(replay.inputs, replay.dimensions, self.hidden), weights, replay.device)
        critics = built(lambda: Critics(replay.inputs, replay.dimensions, self.hidden), weights, replay.device)
        target_critics = twin(critics)
        log_entropy_weight = nn.Parameter(torch.full((), log(self.entropy_weight), device=replay.device))
        log_weight = nn.Parameter(torch.full((), log(self.weight), device=replay.device))
        generator = chance(seed, "cql", "batches", device=replay.device)
        descend_actor = descend(actor.parameters(), self.policy_learning_rate)
        descend_entropy_weight = descend([log_entropy_weight], self.policy_learning_rate)
        descend_critics = descend(critics.parameters(), self.learning_rate)
        descend_weight = descend([log_weight], self.learning_rate)

        def step(number: int) -> dict[str, Tensor]:
            batch = replay.transitions(self.batch_size, generator)
            actions, log_density = actor.drawn(batch.observations, generator)
            if number < self.warm_start:
                praise = actor.log_density(batch.observations, batch.actions)
            else:
                praise = critics(batch.observations, actions).amin(0)
            descend_actor((log_entropy_weight.exp().detach() * log_density - praise).mean())
            surplus_entropy = (replay.dimensions - log_density).mean().detach()
            descend_entropy_weight(log_entropy_weight * surplus_entropy)

            with torch.no_grad():
                following, _ = actor.drawn(batch.following, generator)
                worth = target_critics(batch.following, following).amin(0)
                target = batch.rewards + self.discount * batch.goes_on * worth
            demonstrated = critics(batch.observations, batch.actions)
            error = (demonstrated - target).square().mean(-1)
            excess = self._optimism(actor, critics, batch, generator) - demonstrated.mean(-1) - (self.gap or 0)
            weight = log_weight.exp().detach().clamp(max=1e6)
            descend_critics((error + weight * excess).sum())
            if self.gap is not None:
                descend_weight(-log_weight.exp() * excess.mean().detach())
            follow(target_critics, critics, self.target_rate)
            return {"error": error.mean(), "excess": excess.mean(), "weight": weight, "worth": demonstrated.mean()}

        lesson = Lesson(step=step, steps=self.steps, generator=generator, turn=self.warm_start)
        return Beginner(actor, {"cql": lesson})

    def _optimism(self, actor: CqlActor, critics: Critics, batch: Transitions, generator: torch.Generator) -> Tensor:
        """(critic,) the soft maximum of each critic over all actions, by importance sampling."""
        rows, dimensions = batch.actions.shape
        with torch.no_grad():
            uniform = 2 * torch.rand(rows, self.samples, dimensions, generator=generator, device=generator.device) - 1
            here, here_density = actor.drawn(batch.observations, generator, self.samples)
            there, there_density = actor.drawn(batch.following, generator, self.samples)
            everywhere = here_density.new_full(here_density.shape, -dimensions * log(2))
            densities = torch.cat([everywhere, here_density, there_density], dim=1)
        values = critics(batch.observations, torch.cat([uniform, here, there], dim=1))
        return (values - densities).logsumexp(-1).mean(-1)


@final
class CqlActor(AbstractActor):
    """A Gaussian squashed by tanh."""

    def __init__(self, inputs: int, dimensions: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self._network: nn.Sequential = network(inputs, hidden, 2 * dimensions)

    def _gaussian(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_deviation = self._network(observations).chunk(2, dim=-1)
        return mean, log_deviation.clamp(-5, 2)

    def drawn(
        self, observations: Tensor, generator: torch.Generator, count: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """(row, dimension) actions and (row,) their log densities, or with `count` of each on a second axis."""
        mean, log_deviation = self._gaussian(observations)
        if count is not None:
            mean, log_deviation = (part[:, None].expand(-1, count, -1) for part in (mean, log_deviation))
        noise = torch.randn(mean.shape, generator=generator, device=generator.device)
        before = mean + log_deviation.exp() * noise
        return before.tanh(), log_normal(noise, log_deviation) - _log_slope(before)

    def log_density(self, observations: Tensor, actions: Tensor) -> Tensor:
        """(row,) of actions (row, dimension) that somebody took."""
        mean, log_deviation = self._gaussian(observations)
        before = actions.clamp(-EDGE, EDGE).atanh()
        return log_normal((before - mean) / log_deviation.exp(), log_deviation) - _log_slope(before)

    def begin(self, rows: int) -> State:
        return ()

    def act(self, observations: Tensor, state: State, generator: torch.Generator | None) -> tuple[Tensor, State]:
        if generator is None:
            return self._gaussian(observations)[0].tanh(), state
        return self.drawn(observations, generator)[0], state


def _log_slope(before: Tensor) -> Tensor:
    """log |d tanh(x) / dx|, summed over the last axis; written so that it stays finite where tanh is flat."""
    return (2 * (log(2) - before - functional.softplus(-2 * before))).sum(-1)
