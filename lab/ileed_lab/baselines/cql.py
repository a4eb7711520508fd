"""Conservative Q-learning: a soft actor-critic whose critics underestimate actions that were not demonstrated."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from ileed import SettingsError
from ileed_lab.baselines.networks import Critics, build, generator_for, log_normal_density, mlp
from ileed_lab.baselines.offline import AbstractActor, AbstractOffline, Start, State, at_least_one, positive
from ileed_lab.baselines.replay import Replay, Transitions
from ileed_lab.baselines.training import Losses, Trainer, minimiser, target_copy, update_target

__all__ = ["Cql", "CqlActor"]

TANH_BOUND = 0.99
"""Demonstrated actions are clamped to this before their likelihood is computed, since atanh(1) is infinite."""


@final
@dataclass(frozen=True, kw_only=True)
class Cql(AbstractOffline):
    """Conservative Q-learning (CQL) on a soft actor-critic, with robomimic's settings.

    Each of two critics minimises its squared Bellman error plus a conservative term,

        (Q(s, a) - r - discount * min_j Q'_j(s', a'))^2
        + weight * (log sum_i exp(Q(s, a_i)) / p(a_i) - Q(s, a) - gap),  a' ~ pi(s'),

    with target networks Q', the demonstrated action a, and a_i drawn uniformly, from the policy at s, and from the
    policy at s'; p is the density that each was drawn from. The weight is learned such that the bracket tends to zero.
    The policy pi, a Gaussian squashed by tanh, minimises

        entropy_weight * log pi(a | s) - min_j Q_j(s, a),  a ~ pi(s),

    and in its first `warm_start` steps the log-likelihood of the demonstrated action takes the place of Q.

    CQL uses rewards, which behaviour cloning and ileed do not see. docs/decisions/offline-baselines.md lists what
    differs from robomimic.

    A. Kumar, A. Zhou, G. Tucker and S. Levine. Conservative Q-Learning for Offline Reinforcement Learning. *NeurIPS*,
    2020. <https://arxiv.org/abs/2006.04779>
    """

    title: ClassVar[str] = "CQL"
    uses_rewards: ClassVar[bool] = True

    steps: int = 20_000
    """Optimisation steps of each network."""
    warm_start: int = 2_000
    """How many of them the policy spends on behaviour cloning before it follows the critics."""
    batch_size: int = 256
    """Transitions in each step."""
    hidden: tuple[int, ...] = (300, 400)
    """Units in the layers of every network."""
    learning_rate: float = 1e-3
    """Of the critics."""
    policy_learning_rate: float = 3e-4
    """Of the policy and of its entropy's weight."""
    discount: float = 0.99
    """Of a reward one step later."""
    target_rate: float = 0.005
    """Rate of the moving average that updates the target critics."""
    gap: float | None = 5.0
    """By how much the soft maximum over all actions may exceed the value of the demonstrated one; None fixes the weight
    instead."""
    weight: float = 1.0
    """Of the conservative term: its initial value, or its value if there is no gap."""
    entropy_weight: float = 0.1
    """Initial weight of the policy's entropy; it is learned so that the entropy tends to minus the number of
    dimensions."""
    samples: int = 10
    """Actions sampled for the conservative term, from each of three sources."""

    def __post_init__(self) -> None:
        at_least_one(self, "steps", "batch_size", "samples")
        positive(self, "learning_rate", "policy_learning_rate", "target_rate", "weight", "entropy_weight")
        if not 0 <= self.discount <= 1:
            raise SettingsError(f"discount is {self.discount}: it must be from 0 to 1")
        if not 0 <= self.warm_start <= self.steps:
            raise SettingsError(f"warm_start is {self.warm_start}: it must be from 0 to the {self.steps} steps")

    def start(self, replay: Replay, *, seed: int) -> Start[CqlActor]:
        weights = generator_for(seed, "cql", "networks", device=torch.device("cpu"))
        actor = build(lambda: CqlActor(replay.inputs, replay.dimensions, self.hidden), weights, replay.device)
        critics = build(lambda: Critics(replay.inputs, replay.dimensions, self.hidden), weights, replay.device)
        generator = generator_for(seed, "cql", "batches", device=replay.device)
        learning = _Learning(self, actor, critics, replay, generator)
        trainer = Trainer(step=learning.step, steps=self.steps, generator=generator, switch=self.warm_start)
        return Start(actor, {"cql": trainer})


@final
class _Learning:
    """The optimisation step of an actor, its critics and the two learned weights."""

    def __init__(
        self, method: Cql, actor: CqlActor, critics: Critics, replay: Replay, generator: torch.Generator
    ) -> None:
        self._method, self._actor, self._critics = method, actor, critics
        self._replay, self._generator = replay, generator
        self._target_critics = target_copy(critics)
        self._log_entropy_weight = nn.Parameter(torch.full((), log(method.entropy_weight), device=replay.device))
        self._log_weight = nn.Parameter(torch.full((), log(method.weight), device=replay.device))
        self._minimise_actor = minimiser(actor.parameters(), method.policy_learning_rate)
        self._minimise_entropy_weight = minimiser([self._log_entropy_weight], method.policy_learning_rate)
        self._minimise_critics = minimiser(critics.parameters(), method.learning_rate)
        self._minimise_weight = minimiser([self._log_weight], method.learning_rate)

    def step(self, number: int) -> Losses:
        batch = self._replay.transitions(self._method.batch_size, self._generator)
        self._improve_actor(batch, cloning=number < self._method.warm_start)
        return self._improve_critics(batch)

    def _improve_actor(self, batch: Transitions, *, cloning: bool) -> None:
        actions, log_density = self._actor.sample(batch.observations, self._generator)
        if cloning:
            value = self._actor.log_density(batch.observations, batch.actions)
        else:
            value = self._critics(batch.observations, actions).amin(0)
        self._minimise_actor((self._log_entropy_weight.exp().detach() * log_density - value).mean())
        surplus_entropy = (self._replay.dimensions - log_density).mean().detach()
        self._minimise_entropy_weight(self._log_entropy_weight * surplus_entropy)

    def _improve_critics(self, batch: Transitions) -> Losses:
        method, critics = self._method, self._critics
        with torch.no_grad():
            next_actions, _ = self._actor.sample(batch.next_observations, self._generator)
            next_value = self._target_critics(batch.next_observations, next_actions).amin(0)
            target = batch.rewards + method.discount * batch.continues * next_value
        demonstrated = critics(batch.observations, batch.actions)
        error = (demonstrated - target).square().mean(-1)
        excess = self._soft_maximum(batch) - demonstrated.mean(-1) - (method.gap or 0)
        weight = self._log_weight.exp().detach().clamp(max=1e6)
        self._minimise_critics((error + weight * excess).sum())
        if method.gap is not None:
            self._minimise_weight(-self._log_weight.exp() * excess.mean().detach())
        update_target(self._target_critics, critics, method.target_rate)
        return {"error": error.mean(), "excess": excess.mean(), "weight": weight, "value": demonstrated.mean()}

    def _soft_maximum(self, batch: Transitions) -> Tensor:
        """(critic,) log sum exp of each critic over all actions, by importance sampling."""
        rows, dimensions = batch.actions.shape
        samples, generator = self._method.samples, self._generator
        with torch.no_grad():
            uniform = 2 * torch.rand(rows, samples, dimensions, generator=generator, device=generator.device) - 1
            here, here_density = self._actor.sample(batch.observations, generator, samples)
            there, there_density = self._actor.sample(batch.next_observations, generator, samples)
            uniform_density = here_density.new_full(here_density.shape, -dimensions * log(2))
            densities = torch.cat([uniform_density, here_density, there_density], dim=1)
        values = self._critics(batch.observations, torch.cat([uniform, here, there], dim=1))
        return (values - densities).logsumexp(-1).mean(-1)


@final
class CqlActor(AbstractActor):
    """A Gaussian policy squashed by tanh."""

    def __init__(self, inputs: int, dimensions: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self._network: nn.Sequential = mlp(inputs, hidden, 2 * dimensions)

    def _gaussian(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """The mean and the log standard deviation before tanh."""
        mean, log_scale = self._network(observations).chunk(2, dim=-1)
        return mean, log_scale.clamp(-5, 2)

    def sample(
        self, observations: Tensor, generator: torch.Generator, count: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """(row, dimension) actions and (row,) their log densities, or with `count` of each on a second axis."""
        mean, log_scale = self._gaussian(observations)
        if count is not None:
            mean, log_scale = (part[:, None].expand(-1, count, -1) for part in (mean, log_scale))
        noise = torch.randn(mean.shape, generator=generator, device=generator.device)
        before = mean + log_scale.exp() * noise
        return before.tanh(), log_normal_density(noise, log_scale) - _log_slope(before)

    def log_density(self, observations: Tensor, actions: Tensor) -> Tensor:
        """(row,) of demonstrated actions (row, dimension)."""
        mean, log_scale = self._gaussian(observations)
        before = actions.clamp(-TANH_BOUND, TANH_BOUND).atanh()
        return log_normal_density((before - mean) / log_scale.exp(), log_scale) - _log_slope(before)

    def initial_state(self, rows: int) -> State:
        return ()

    def act(self, observations: Tensor, state: State, generator: torch.Generator | None) -> tuple[Tensor, State]:
        if generator is None:
            return self._gaussian(observations)[0].tanh(), state
        return self.sample(observations, generator)[0], state


def _log_slope(before: Tensor) -> Tensor:
    """log |d tanh(x) / dx|, summed over the last axis; written so that it stays finite where tanh is flat."""
    return (2 * (log(2) - before - functional.softplus(-2 * before))).sum(-1)
