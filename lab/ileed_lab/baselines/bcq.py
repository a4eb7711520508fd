"""Batch-constrained Q-learning: among actions that demonstrators might have taken, the one of greatest value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from ileed import SettingsError
from ileed_lab.baselines.networks import ConditionalVAE, Critics, build, generator_for, mlp
from ileed_lab.baselines.offline import AbstractActor, AbstractOffline, Start, State, at_least_one, positive
from ileed_lab.baselines.replay import Replay
from ileed_lab.baselines.training import Trainer, minimiser, target_copy, update_target

__all__ = ["Bcq", "BcqActor"]


@final
@dataclass(frozen=True, kw_only=True)
class Bcq(AbstractOffline):
    """Batch-constrained deep Q-learning (BCQ), with robomimic's settings for low-dimensional data.

    A conditional variational autoencoder G(s) learns which actions the demonstrators take. Two critics minimise the
    squared Bellman error

        sum_j (Q_j(s, a) - y)^2,
        y = r + discount * max_i [w min_j Q'_j(s', a_i) + (1 - w) max_j Q'_j(s', a_i)],  a_i ~ G(s'),

    where Q' are target networks, w is `pessimism`, and y = r where the task ended. The policy samples `candidates`
    actions from G(s) and takes the one of greatest value. Optionally a perturbation network moves each sampled action
    by up to `perturbation` to increase Q_1.

    BCQ uses rewards, which behaviour cloning and ileed do not see. docs/decisions/offline-baselines.md lists what
    differs from robomimic.

    S. Fujimoto, D. Meger and D. Precup. Off-Policy Deep Reinforcement Learning without Exploration. *ICML*, 2019.
    <https://arxiv.org/abs/1812.02900>
    """

    title: ClassVar[str] = "BCQ"
    uses_rewards: ClassVar[bool] = True

    steps: int = 20_000
    """Optimisation steps of each network."""
    batch_size: int = 256
    """Transitions in each step."""
    hidden: tuple[int, ...] = (300, 400)
    """Units in the layers of every network."""
    learning_rate: float = 1e-3
    """Of every network."""
    latent: int | None = None
    """Dimensions of the autoencoder's latent; None is twice the dimensions of an action."""
    divergence_weight: float = 0.05
    """Of the autoencoder's Kullback-Leibler divergence from its prior, beside the mean squared error."""
    prior_modes: int = 0
    """Components of a learned prior; 0 is the standard normal."""
    latent_bound: float | None = None
    """Bound on latents when actions are sampled; None samples from the whole prior, as robomimic does, and 0.5 is the
    value of the original implementation and of d3rlpy."""
    discount: float = 0.99
    """Of a reward one step later."""
    target_rate: float = 0.005
    """Rate of the moving average that updates the target networks."""
    pessimism: float = 0.75
    """Weight w of the lower of the two critics."""
    target_candidates: int = 10
    """Actions sampled for each target y."""
    candidates: int = 100
    """Actions sampled by the policy, of which it takes the best."""
    perturbation: float = 0.0
    """Bound on the change of a sampled action by the perturbation network, for actions in [-1, 1]; 0 has none."""

    def __post_init__(self) -> None:
        at_least_one(self, "steps", "batch_size", "target_candidates", "candidates")
        positive(self, "learning_rate", "divergence_weight", "target_rate")
        if self.latent_bound is not None:
            positive(self, "latent_bound")
        for name in ("discount", "pessimism", "perturbation"):
            if not 0 <= getattr(self, name) <= 1:
                raise SettingsError(f"{name} is {getattr(self, name)}: it must be from 0 to 1")

    def start(self, replay: Replay, *, seed: int) -> Start[BcqActor]:
        actor = BcqActor.initialise(self, replay, seed=seed)
        target_critics, target_perturb = (
            target_copy(actor.critics),
            target_copy(actor.perturb) if actor.perturb else None,
        )
        generator = generator_for(seed, "bcq", "batches", device=replay.device)
        minimise_autoencoder = minimiser(actor.autoencoder.parameters(), self.learning_rate)
        minimise_critics = minimiser(actor.critics.parameters(), self.learning_rate)
        minimise_perturb = minimiser(actor.perturb.parameters(), self.learning_rate) if actor.perturb else None

        def step(_: int) -> dict[str, Tensor]:
            batch = replay.transitions(self.batch_size, generator)
            autoencoder_loss = actor.autoencoder.loss(batch.observations, batch.actions, generator)
            minimise_autoencoder(autoencoder_loss)
            with torch.no_grad():
                sampled = actor.candidates(batch.next_observations, self.target_candidates, generator, target_perturb)
                best = self.combine(target_critics(batch.next_observations, sampled)).amax(-1)
                target = batch.rewards + self.discount * batch.continues * best
            critics_loss = (actor.critics(batch.observations, batch.actions) - target).square().mean(-1).sum()
            minimise_critics(critics_loss)
            update_target(target_critics, actor.critics, self.target_rate)
            if actor.perturb and target_perturb and minimise_perturb:
                perturbed = actor.candidates(batch.observations, 1, generator, actor.perturb)
                minimise_perturb(-actor.critics(batch.observations, perturbed)[0].mean())
                update_target(target_perturb, actor.perturb, self.target_rate)
            return {"autoencoder": autoencoder_loss, "critics": critics_loss, "value": target.mean()}

        return Start(actor, {"bcq": Trainer(step=step, steps=self.steps, generator=generator)})

    def combine(self, values: Tensor) -> Tensor:
        """One value from both critics' (critic, ...): w times the lower plus 1 - w times the higher."""
        return self.pessimism * values.amin(0) + (1 - self.pessimism) * values.amax(0)


@final
class BcqActor(AbstractActor):
    """Samples candidates, and takes the one of greatest value.

    Without a generator the candidates are decoded from latents that were sampled once, the same for every row.
    """

    _uniform: Tensor
    _noise: Tensor

    def __init__(self, method: Bcq, inputs: int, dimensions: int) -> None:
        super().__init__()
        self._method = method
        self.autoencoder = ConditionalVAE(
            inputs,
            dimensions,
            latent=method.latent or 2 * dimensions,
            hidden=method.hidden,
            divergence_weight=method.divergence_weight,
            prior_modes=method.prior_modes,
            bounded=True,
        )
        self.critics = Critics(inputs, dimensions, method.hidden)
        perturbs = method.perturbation > 0
        self.perturb = mlp(inputs + dimensions, method.hidden, dimensions) if perturbs else None

    @classmethod
    def initialise(cls, method: Bcq, replay: Replay, *, seed: int) -> BcqActor:
        """An actor with random weights, and the latents of its candidates."""
        cpu = torch.device("cpu")
        weights = generator_for(seed, "bcq", "networks", device=cpu)
        actor = build(lambda: cls(method, replay.inputs, replay.dimensions), weights, replay.device)
        latents = generator_for(seed, "bcq", "candidates", device=cpu)
        actor.register_buffer("_uniform", torch.rand(1, method.candidates, generator=latents).to(replay.device))
        noise = torch.randn(1, method.candidates, actor.autoencoder.latent, generator=latents)
        actor.register_buffer("_noise", noise.to(replay.device))
        return actor

    def candidates(
        self, observations: Tensor, count: int, generator: torch.Generator | None, perturb: nn.Module | None
    ) -> Tensor:
        """(row, candidate, dimension) actions: sampled, or decoded from the first `count` of the fixed latents."""
        if generator is None:
            uniform, noise = self._uniform[:, :count], self._noise[:, :count]
        else:
            device, rows = generator.device, len(observations)
            uniform = torch.rand(rows, count, generator=generator, device=device)
            noise = torch.randn(rows, count, self.autoencoder.latent, generator=generator, device=device)
        if (bound := self._method.latent_bound) is not None:
            noise = noise.clamp(-bound, bound)
        actions = self.autoencoder.sample(observations, uniform, noise).detach()
        if perturb is None:
            return actions
        expanded = observations[:, None].expand(-1, count, -1)
        change = self._method.perturbation * perturb(torch.cat([expanded, actions], dim=-1)).tanh()
        return (actions + change).clamp(-1, 1)

    def value(self, observations: Tensor, count: int) -> Tensor:
        """(row,) the value of a state: that of the best of `count` candidates."""
        candidates = self.candidates(observations, count, None, self.perturb)
        return self._method.combine(self.critics(observations, candidates)).amax(-1)

    def initial_state(self, rows: int) -> State:
        return ()

    def act(self, observations: Tensor, state: State, generator: torch.Generator | None) -> tuple[Tensor, State]:
        candidates = self.candidates(observations, self._method.candidates, generator, self.perturb)
        best = self._method.combine(self.critics(observations, candidates)).argmax(-1)
        return candidates[torch.arange(len(candidates)), best], state
