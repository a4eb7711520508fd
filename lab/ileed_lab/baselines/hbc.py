"""Hierarchical behaviour cloning: a planner says what to see next, a recurrent policy goes there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from ileed.errors import SettingsError
from ileed.model.distributions import component_action, mixture
from ileed_lab.baselines.bcq import BcqActor
from ileed_lab.baselines.lessons import Lesson, descend
from ileed_lab.baselines.networks import ConditionalSampler, RecurrentMixture, built, chance
from ileed_lab.baselines.offline import AbstractActor, AbstractOffline, Beginner, State, at_least_one, positive
from ileed_lab.baselines.replay import Replay

__all__ = ["GuidedActor", "Hbc", "Judge"]


@final
@dataclass(frozen=True, kw_only=True)
class Hbc(AbstractOffline):
    """Hierarchical behaviour cloning (Mandlekar et al., 2020), as robomimic sets it for low-dimensional data.

    A conditional autoencoder proposes a subgoal, the observation `horizon` steps ahead, and a recurrent mixture policy
    is told it for as many steps; then a new subgoal is proposed and the policy's memory begins anew. It uses no
    rewards. See docs/decisions/offline-baselines.md for what differs from robomimic.
    """

    title: ClassVar[str] = "HBC"
    uses_rewards: ClassVar[bool] = False

    steps: int = 15_000
    """Gradient steps of the planner, and of the policy."""
    batch_size: int = 100
    """Windows in each."""
    horizon: int = 10
    """Steps to a subgoal, and between one and the next."""
    learning_rate: float = 1e-3
    """Of both networks."""
    planner_hidden: tuple[int, ...] = (256, 256)
    """Units in the planner's layers."""
    latent: int = 16
    """Size of the planner's latent."""
    prior_modes: int = 10
    """Modes of the planner's learned prior; 0 is the standard normal."""
    divergence_weight: float = 5e-4
    """Of the planner's divergence from its prior, beside the mean squared error."""
    policy_hidden: int = 100
    """Units in each of the policy's recurrent layers."""
    policy_layers: int = 2
    """Recurrent layers of the policy."""
    policy_modes: int = 5
    """Components of the policy's mixture."""

    def __post_init__(self) -> None:
        at_least_one(self, "steps", "batch_size", "horizon", "latent", "policy_hidden", "policy_layers", "policy_modes")
        positive(self, "learning_rate", "divergence_weight")
        if self.prior_modes < 0:
            raise SettingsError(f"prior_modes is {self.prior_modes}: it must be 0, for a standard normal, or more")

    def begin(self, replay: Replay, *, seed: int) -> Beginner[GuidedActor]:
        weights = chance(seed, "hbc", "networks", device=torch.device("cpu"))
        actor = built(lambda: GuidedActor(self, replay.inputs, replay.dimensions), weights, replay.device)
        generator = chance(seed, "hbc", "batches", device=replay.device)
        descend_planner = descend(actor.planner.parameters(), self.learning_rate)
        descend_policy = descend(actor.policy.parameters(), self.learning_rate)

        def step(_: int) -> dict[str, Tensor]:
            windows = replay.windows(self.batch_size, length=self.horizon, horizon=self.horizon, generator=generator)
            planner_cost = actor.planner.cost(windows.observations[:, 0], windows.subgoals, generator)
            descend_planner(planner_cost)
            policy_cost = actor.policy.cost(windows)
            descend_policy(policy_cost)
            return {"planner": planner_cost, "nats_per_action": policy_cost}

        return Beginner(actor, {"hbc": Lesson(step=step, steps=self.steps, generator=generator)})


@final
@dataclass(frozen=True)
class Judge:
    """How a subgoal is chosen among several: the one where the most is to be had."""

    value: BcqActor
    candidates: int
    actions: int

    def best(self, subgoals: Tensor) -> Tensor:
        """(row, input) of (row, candidate, input)."""
        worth = self.value.worth(subgoals.flatten(0, 1), self.actions).view(subgoals.shape[:2])
        return subgoals[torch.arange(len(subgoals)), worth.argmax(-1)]


@final
class GuidedActor(AbstractActor):
    """Renews its subgoal every `horizon` steps, and follows it in between.

    The state of a row is its subgoal, how many steps are left with it, and the policy's memory. Without a generator the
    subgoal is the planner's likeliest or, where there is a judge, the best of candidates decoded from latents that were
    drawn once, and the action is the centre of the heaviest component.
    """

    _uniform: Tensor
    _noise: Tensor

    def __init__(self, method: Any, inputs: int, dimensions: int) -> None:
        super().__init__()
        self._horizon, self._inputs = method.horizon, inputs
        self._judge: Judge | None = None
        self.planner = ConditionalSampler(
            inputs,
            inputs,
            latent=method.latent,
            hidden=method.planner_hidden,
            divergence_weight=method.divergence_weight,
            prior_modes=method.prior_modes,
            bounded=False,
        )
        self.policy = RecurrentMixture(
            2 * inputs,
            dimensions,
            hidden=method.policy_hidden,
            layers=method.policy_layers,
            modes=method.policy_modes,
        )

    def judged_by(self, judge: Judge, *, seed: int) -> GuidedActor:
        """This actor, its subgoals from now on chosen by value."""
        draws = chance(seed, "iris", "candidates", device=torch.device("cpu"))
        self._judge, self.value = judge, judge.value
        self.register_buffer("_uniform", torch.rand(1, judge.candidates, generator=draws))
        self.register_buffer("_noise", torch.randn(1, judge.candidates, self.planner.latent, generator=draws))
        return self

    def begin(self, rows: int) -> State:
        memory = torch.zeros(rows, self.policy.layers, self.policy.hidden)
        return torch.zeros(rows, self._inputs), torch.zeros(rows, dtype=torch.int64), memory, memory.clone()

    def act(self, observations: Tensor, state: State, generator: torch.Generator | None) -> tuple[Tensor, State]:
        subgoals, left, hidden, cell = (part.clone() for part in state)
        if len(renewed := torch.nonzero(left == 0)[:, 0]):
            subgoals[renewed] = self._subgoals(observations[renewed], generator)
            left[renewed] = self._horizon
            hidden[renewed], cell[renewed] = 0, 0
        inputs = torch.cat([observations, subgoals], dim=-1)[:, None]
        memory = (hidden.transpose(0, 1).contiguous(), cell.transpose(0, 1).contiguous())
        (log_weights, means, deviations), (hidden, cell) = self.policy(inputs, memory)
        actions = _chosen(log_weights[:, 0], means[:, 0], deviations[:, 0], generator)
        return actions, (subgoals, left - 1, hidden.transpose(0, 1), cell.transpose(0, 1))

    def _subgoals(self, observations: Tensor, generator: torch.Generator | None) -> Tensor:
        if self._judge is None and generator is None:
            return self.planner.likeliest(observations)
        if generator is None:
            uniform, noise = self._uniform, self._noise
        else:
            rows, count = len(observations), self._judge.candidates if self._judge else 1
            uniform = torch.rand(rows, count, generator=generator)
            noise = torch.randn(rows, count, self.planner.latent, generator=generator)
        drawn = self.planner.draws(observations, uniform, noise)
        return self._judge.best(drawn) if self._judge else drawn[:, 0]


def _chosen(log_weights: Tensor, means: Tensor, deviations: Tensor, generator: torch.Generator | None) -> Tensor:
    """(row, dimension): the mean of the heaviest component, or a sample of the mixture."""
    policy = mixture(log_weights, means, deviations)
    if generator is None:
        return component_action(policy, log_weights.argmax(-1))
    component = torch.multinomial(log_weights.exp(), 1, generator=generator)[:, 0]
    noise = torch.randn(means.shape[0], means.shape[-1], generator=generator)
    return component_action(policy, component, noise).clamp(-1, 1)
