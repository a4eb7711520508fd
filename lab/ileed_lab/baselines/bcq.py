"""Batch-constrained Q-learning: among actions that demonstrators might have taken, the one that is worth most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from ileed.errors import SettingsError
from ileed_lab.baselines.lessons import Lesson, descend, follow, twin
from ileed_lab.baselines.networks import ConditionalSampler, Critics, built, chance, network
from ileed_lab.baselines.offline import AbstractActor, AbstractOffline, Beginner, State, at_least_one, positive
from ileed_lab.baselines.replay import Replay

__all__ = ["Bcq", "BcqActor"]


@final
@dataclass(frozen=True, kw_only=True)
class Bcq(AbstractOffline):
    """Batch-constrained deep Q-learning (Fujimoto et al., 2019), as robomimic sets it for low-dimensional data.

    A conditional autoencoder G learns what demonstrators do, and twin critics learn

        Q(s, a) = r + discount * max_i [w min_j Q_j(s', a_i) + (1 - w) max_j Q_j(s', a_i)],  a_i ~ G(s').

    To play is to draw `candidates` actions and take the one that is worth most. It uses rewards, which behaviour
    cloning and ileed do not see. See docs/decisions/offline-baselines.md for what differs from robomimic.
    """

    title: ClassVar[str] = "BCQ"
    uses_rewards: ClassVar[bool] = True

    steps: int = 20_000
    """Gradient steps of each network."""
    batch_size: int = 256
    """Transitions in each."""
    hidden: tuple[int, ...] = (300, 400)
    """Units in the layers of every network."""
    learning_rate: float = 1e-3
    """Of every network."""
    latent: int | None = None
    """Size of the autoencoder's latent; None is twice the dimensions of an action."""
    divergence_weight: float = 0.05
    """Of the autoencoder's divergence from its prior, beside the mean squared error."""
    prior_modes: int = 0
    """Modes of a learned prior; 0 is the standard normal."""
    latent_bound: float | None = None
    """Where latents are cut when actions are drawn; None draws from the whole prior, as robomimic does, and 0.5 is
    what the first authors and d3rlpy do."""
    discount: float = 0.99
    """What a reward one step later is worth."""
    target_rate: float = 0.005
    """Share of the way that the target networks go towards the trained ones in every step."""
    pessimism: float = 0.75
    """Weight w of the lower of the two critics."""
    target_candidates: int = 10
    """Actions drawn for each target."""
    candidates: int = 100
    """Actions drawn to choose from when playing."""
    perturbation: float = 0.0
    """How far, on the scale from -1 to 1, a further network may move a drawn action to raise its worth; 0 has none."""

    def __post_init__(self) -> None:
        at_least_one(self, "steps", "batch_size", "target_candidates", "candidates")
        positive(self, "learning_rate", "divergence_weight", "target_rate")
        if self.latent_bound is not None:
            positive(self, "latent_bound")
        for name in ("discount", "pessimism", "perturbation"):
            if not 0 <= getattr(self, name) <= 1:
                raise SettingsError(f"{name} is {getattr(self, name)}: it must be from 0 to 1")

    def begin(self, replay: Replay, *, seed: int) -> Beginner[BcqActor]:
        actor = BcqActor.drawn(self, replay, seed=seed)
        target_critics, target_perturb = twin(actor.critics), twin(actor.perturb) if actor.perturb else None
        generator = chance(seed, "bcq", "batches", device=replay.device)
        descend_sampler = descend(actor.sampler.parameters(), self.learning_rate)
        descend_critics = descend(actor.critics.parameters(), self.learning_rate)
        descend_perturb = descend(actor.perturb.parameters(), self.learning_rate) if actor.perturb else None

        def step(_: int) -> dict[str, Tensor]:
            batch = replay.transitions(self.batch_size, generator)
            sampler_cost = actor.sampler.cost(batch.observations, batch.actions, generator)
            descend_sampler(sampler_cost)
            with torch.no_grad():
                proposed = actor.proposals(batch.following, self.target_candidates, generator, target_perturb)
                best = self.mixed(target_critics(batch.following, proposed)).amax(-1)
                target = batch.rewards + self.discount * batch.goes_on * best
            critics_cost = (actor.critics(batch.observations, batch.actions) - target).square().mean(-1).sum()
            descend_critics(critics_cost)
            follow(target_critics, actor.critics, self.target_rate)
            if actor.perturb and target_perturb and descend_perturb:
                moved = actor.proposals(batch.observations, 1, generator, actor.perturb)
                descend_perturb(-actor.critics(batch.observations, moved)[0].mean())
                follow(target_perturb, actor.perturb, self.target_rate)
            return {"sampler": sampler_cost, "critics": critics_cost, "worth": target.mean()}

        return Beginner(actor, {"bcq": Lesson(step=step, steps=self.steps, generator=generator)})

    def mixed(self, values: Tensor) -> Tensor:
        """One number of both critics' (critic, ...): mostly the lower."""
        return self.pessimism * values.amin(0) + (1 - self.pessimism) * values.amax(0)


@final
class BcqActor(AbstractActor):
    """Draws candidates, and takes the one that the critics like best.

    Without a generator the candidates are decoded from latents that were drawn once, for every row the same.
    """

    _uniform: Tensor
    _noise: Tensor

    def __init__(self, method: Bcq, inputs: int, dimensions: int) -> None:
        super().__init__()
        self._method = method
        self.sampler = ConditionalSampler(
            inputs,
            dimensions,
            latent=method.latent or 2 * dimensions,
            hidden=method.hidden,
            divergence_weight=method.divergence_weight,
            prior_modes=method.prior_modes,
            bounded=True,
        )
        self.critics = Critics(inputs, dimensions, method.hidden)
        moves = method.perturbation > 0
        self.perturb = network(inputs + dimensions, method.hidden, dimensions) if moves else None

    @classmethod
    def drawn(cls, method: Bcq, replay: Replay, *, seed: int) -> BcqActor:
        """An actor that knows nothing yet."""
        actor = built(
            lambda: cls(method, replay.inputs, replay.dimensions),
            chance(seed, "bcq", "networks", device=torch.device("cpu")),
            replay.device,
        )
        candidates = chance(seed, "bcq", "candidates", device=torch.device("cpu"))
        actor.register_buffer("_uniform", torch.rand(1, method.candidates, generator=candidates).to(replay.device))
        noise = torch.randn(1, method.candidates, actor.sampler.latent, generator=candidates)
        actor.register_buffer("_noise", noise.to(replay.device))
        return actor

    def proposals(
        self, observations: Tensor, count: int, generator: torch.Generator | None, perturb: nn.Module | None
    ) -> Tensor:
        """(row, proposal, dimension) actions: drawn anew, or the first `count` of those that are always proposed."""
        if generator is None:
            uniform, noise = self._uniform[:, :count], self._noise[:, :count]
        else:
            place, rows = generator.device, len(observations)
            uniform = torch.rand(rows, count, generator=generator, device=place)
            noise = torch.randn(rows, count, self.sampler.latent, generator=generator, device=place)
        if (bound := self._method.latent_bound) is not None:
            noise = noise.clamp(-bound, bound)
        actions = self.sampler.draws(observations, uniform, noise).detach()
        if perturb is None:
            return actions
        seen = observations[:, None].expand(-1, count, -1)
        moved = self._method.perturbation * perturb(torch.cat([seen, actions], dim=-1)).tanh()
        return (actions + moved).clamp(-1, 1)

    def worth(self, observations: Tensor, count: int) -> Tensor:
        """(row,) what the best of `count` proposals is worth: the value of being there."""
        proposed = self.proposals(observations, count, None, self.perturb)
        return self._method.mixed(self.critics(observations, proposed)).amax(-1)

    def begin(self, rows: int) -> State:
        return ()

    def act(self, observations: Tensor, state: State, generator: torch.Generator | None) -> tuple[Tensor, State]:
        proposed = self.proposals(observations, self._method.candidates, generator, self.perturb)
        best = self._method.mixed(self.critics(observations, proposed)).argmax(-1)
        return proposed[torch.arange(len(proposed)), best], state
