"""Hierarchical behaviour cloning: a planner proposes a subgoal, and a recurrent policy acts towards it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from ileed import SettingsError
from ileed_lab.baselines.bcq import BcqActor
from ileed_lab.baselines.networks import ConditionalVAE, Mixture, RecurrentMixture, build, generator_for
from ileed_lab.baselines.offline import AbstractActor, AbstractOffline, Start, State, at_least_one, positive
from ileed_lab.baselines.replay import Replay
from ileed_lab.baselines.training import Trainer, minimiser

__all__ = ["Hbc", "HierarchicalActor", "SubgoalValue"]


@final
@dataclass(frozen=True, kw_only=True)
class Hbc(AbstractOffline):
    """Hierarchical behaviour cloning (HBC), with robomimic's settings for low-dimensional data.

    A planner, a conditional variational autoencoder, proposes a subgoal g: the observation `horizon` steps ahead. A
    recurrent policy with a mixture of Gaussians over actions reads the observation and the subgoal for as many steps;
    then a new subgoal is proposed, and the policy's hidden state is reset. With H the horizon, the losses are

        |decode(z, s_t) - s_(t+H)|^2 / dim(s) + weight * KL(q(z | s_(t+H), s_t) || p(z | s_t))    (planner),
        -mean_t log pi(a_t | s_(<=t), g)                                                          (policy).

    HBC uses no rewards. docs/decisions/offline-baselines.md lists what differs from robomimic.

    A. Mandlekar, D. Xu, R. Martín-Martín, S. Savarese and L. Fei-Fei. GTI: Learning to Generalize across Long-Horizon
    Tasks from Human Demonstrations. *Robotics: Science and Systems*, 2020. <https://arxiv.org/abs/2003.06085>
    """

    title: ClassVar[str] = "HBC"
    uses_rewards: ClassVar[bool] = False

    steps: int = 15_000
    """Optimisation steps of the planner, and of the policy."""
    batch_size: int = 100
    """Windows in each step."""
    horizon: int = 10
    """Steps to a subgoal, and from one subgoal to the next."""
    learning_rate: float = 1e-3
    """Of both networks."""
    planner_hidden: tuple[int, ...] = (256, 256)
    """Units in the planner's layers."""
    latent: int = 16
    """Dimensions of the planner's latent."""
    prior_modes: int = 10
    """Components of the planner's learned prior; 0 is the standard normal."""
    divergence_weight: float = 5e-4
    """Of the planner's Kullback-Leibler divergence from its prior, beside the mean squared error."""
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

    def start(self, replay: Replay, *, seed: int) -> Start[HierarchicalActor]:
        weights = generator_for(seed, "hbc", "networks", device=torch.device("cpu"))
        actor = build(lambda: HierarchicalActor(self, replay.inputs, replay.dimensions), weights, replay.device)
        generator = generator_for(seed, "hbc", "batches", device=replay.device)
        minimise_planner = minimiser(actor.planner.parameters(), self.learning_rate)
        minimise_policy = minimiser(actor.policy.parameters(), self.learning_rate)

        def step(_: int) -> dict[str, Tensor]:
            windows = replay.windows(self.batch_size, length=self.horizon, horizon=self.horizon, generator=generator)
            planner_loss = actor.planner.loss(windows.observations[:, 0], windows.subgoals, generator)
            minimise_planner(planner_loss)
            policy_loss = actor.policy.loss(windows)
            minimise_policy(policy_loss)
            return {"planner": planner_loss, "nats_per_action": policy_loss}

        return Start(actor, {"hbc": Trainer(step=step, steps=self.steps, generator=generator)})


@final
@dataclass(frozen=True)
class SubgoalValue:
    """How IRIS chooses among subgoals: the one of greatest value."""

    value: BcqActor
    candidates: int
    actions: int

    def best(self, subgoals: Tensor) -> Tensor:
        """(row, input) of (row, candidate, input)."""
        values = self.value.value(subgoals.flatten(0, 1), self.actions).view(subgoals.shape[:2])
        return subgoals[torch.arange(len(subgoals)), values.argmax(-1)]


@final
class HierarchicalActor(AbstractActor):
    """Takes a new subgoal every `horizon` steps, and acts towards it in between.

    The state of a row is its subgoal, the steps left with it, and the policy's hidden state. Without a generator the
    subgoal is the planner's most likely one or, where subgoals are chosen by value, the best of candidates decoded from
    latents that were sampled once; and the action is the mean of the component of greatest weight.
    """

    _uniform: Tensor
    _noise: Tensor

    def __init__(self, method: Any, inputs: int, dimensions: int) -> None:
        super().__init__()
        self._horizon, self._inputs = method.horizon, inputs
        self._choice: SubgoalValue | None = None
        self.planner = ConditionalVAE(
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

    def choose_by(self, choice: SubgoalValue, *, seed: int) -> HierarchicalActor:
        """This actor, with its subgoals chosen by value from now on."""
        latents = generator_for(seed, "iris", "candidates", device=torch.device("cpu"))
        self._choice, self.value = choice, choice.value
        self.register_buffer("_uniform", torch.rand(1, choice.candidates, generator=latents))
        self.register_buffer("_noise", torch.randn(1, choice.candidates, self.planner.latent, generator=latents))
        return self

    def initial_state(self, rows: int) -> State:
        hidden = torch.zeros(rows, self.policy.layers, self.policy.hidden)
        return torch.zeros(rows, self._inputs), torch.zeros(rows, dtype=torch.int64), hidden, hidden.clone()

    def act(self, observations: Tensor, state: State, generator: torch.Generator | None) -> tuple[Tensor, State]:
        subgoals, left, hidden, cell = (part.clone() for part in state)
        if len(renewed := torch.nonzero(left == 0)[:, 0]):
            subgoals[renewed] = self._subgoals(observations[renewed], generator)
            left[renewed] = self._horizon
            hidden[renewed], cell[renewed] = 0, 0
        inputs = torch.cat([observations, subgoals], dim=-1)[:, None]
        lstm_state = (hidden.transpose(0, 1).contiguous(), cell.transpose(0, 1).contiguous())
        mixture, (hidden, cell) = self.policy(inputs, lstm_state)
        now = Mixture(*(part[:, 0] for part in mixture))
        actions = now.most_likely() if generator is None else now.sample(generator)
        return actions, (subgoals, left - 1, hidden.transpose(0, 1), cell.transpose(0, 1))

    def _subgoals(self, observations: Tensor, generator: torch.Generator | None) -> Tensor:
        if self._choice is None and generator is None:
            return self.planner.most_likely(observations)
        if generator is None:
            uniform, noise = self._uniform, self._noise
        else:
            rows, count = len(observations), self._choice.candidates if self._choice else 1
            uniform = torch.rand(rows, count, generator=generator)
            noise = torch.randn(rows, count, self.planner.latent, generator=generator)
        sampled = self.planner.sample(observations, uniform, noise)
        return self._choice.best(sampled) if self._choice else sampled[:, 0]
