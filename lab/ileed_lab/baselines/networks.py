"""The networks of the offline baselines: critics, a conditional sampler, a recurrent mixture."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from math import log, pi
from typing import Any, TypeVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from ileed.runtime import stream
from ileed_lab.baselines.replay import Windows

__all__ = ["ConditionalSampler", "Critics", "RecurrentMixture", "built", "chance", "log_normal", "network"]

SMALLEST_DEVIATION = 1e-2
"""Of a mixture's components, on the scale on which actions reach from -1 to 1."""

_Module = TypeVar("_Module", bound=nn.Module)


def chance(seed: int, *purpose: object, device: torch.device) -> torch.Generator:
    """The named stream, on a device: there is one sequence for a CPU and another for a GPU."""
    return torch.Generator(device).manual_seed(stream(seed, *purpose).initial_seed())


def built(make: Callable[[], _Module], generator: torch.Generator, device: torch.device) -> _Module:
    """A module whose weights come from `generator`, uniform within one over the root of what a unit reads."""
    with torch.device("meta"):  # there torch's own initialisation draws nothing
        module = make()
    module.to_empty(device="cpu")
    with torch.no_grad():
        for part in module.modules():
            reads = getattr(part, "in_features", None) or getattr(part, "hidden_size", None)
            for parameter in part.parameters(recurse=False):
                bound = 0.0 if reads is None else reads**-0.5
                parameter.uniform_(-bound, bound, generator=generator)
    return module.to(device)


def network(inputs: int, hidden: tuple[int, ...], outputs: int) -> nn.Sequential:
    """Linear layers with rectifiers between."""
    sizes = (inputs, *hidden)
    layers = [nn.Sequential(nn.Linear(before, after), nn.ReLU()) for before, after in pairwise(sizes)]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))


@final
class Critics(nn.Module):
    """Two independent estimates of what an action is worth, computed together."""

    count = 2

    def __init__(self, inputs: int, dimensions: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        sizes = (inputs + dimensions, *hidden, 1)
        self._layers = nn.ModuleList(_Stacked(*pair) for pair in pairwise(sizes))

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """(critic, row, ...) from observations (row, input) and actions (row, ..., dimension)."""
        rows, *more, _ = actions.shape
        seen = observations.view(rows, *[1] * len(more), -1).expand(rows, *more, -1)
        values = torch.cat([seen, actions], dim=-1).flatten(0, -2).expand(self.count, -1, -1)
        for number, layer in enumerate(self._layers):
            values = layer(values.relu() if number else values)
        return values.view(self.count, rows, *more)


class _Stacked(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.in_features = inputs
        self.weight = nn.Parameter(torch.empty(Critics.count, inputs, outputs))
        self.bias = nn.Parameter(torch.empty(Critics.count, 1, outputs))

    def forward(self, values: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, values, self.weight)


@final
class ConditionalSampler(nn.Module):
    """A conditional variational autoencoder: draws x given c by decoding a latent z.

    Its cost is the squared error of x, averaged over axes, plus `divergence_weight` times KL(q(z | x, c) || p(z | c)).
    The prior p(z | c) is a learned mixture of `prior_modes` Gaussians, or the standard normal if that is 0. `bounded`
    keeps x within -1 and 1.
    """

    def __init__(
        self,
        condition: int,
        size: int,
        *,
        latent: int,
        hidden: tuple[int, ...],
        divergence_weight: float,
        prior_modes: int,
        bounded: bool,
    ) -> None:
        super().__init__()
        self.latent, self._divergence_weight, self._modes, self._bounded = (
            latent,
            divergence_weight,
            prior_modes,
            bounded,
        )
        self._encoder = network(condition + size, hidden, 2 * latent)
        self._decoder = network(condition + latent, hidden, size)
        if prior_modes:
            self._prior = network(condition, hidden, prior_modes * (1 + 2 * latent))

    def cost(self, condition: Tensor, x: Tensor, generator: torch.Generator) -> Tensor:
        """The mean over rows, by one draw of z for each."""
        mean, log_deviation = self._encoder(torch.cat([condition, x], dim=-1)).chunk(2, dim=-1)
        log_deviation = log_deviation.clamp(-6, 3)
        noise = _normal(mean.shape, generator)
        z = mean + log_deviation.exp() * noise
        error = (self._decoded(condition, z) - x).square().mean()
        return error + self._divergence_weight * self._divergence(condition, mean, log_deviation, z, noise).mean()

    def draws(self, condition: Tensor, uniform: Tensor, noise: Tensor) -> Tensor:
        """(row, draw, size) from `uniform` (1 or row, draw) and `noise` (1 or row, draw, latent)."""
        rows = len(condition)
        if self._modes:
            log_weights, means, log_deviations = self._mixture(condition)
            passed = uniform[..., None] > log_weights.exp().cumsum(-1)[:, None, :-1]
            mode = passed.sum(-1, keepdim=True).expand(-1, -1, self.latent)
            z = means.gather(1, mode) + log_deviations.gather(1, mode).exp() * noise
        else:
            z = noise.expand(rows, -1, -1)
        return self._decoded(condition[:, None].expand(-1, z.shape[1], -1), z)

    def likeliest(self, condition: Tensor) -> Tensor:
        """(row, size) decoded from the centre of the prior's heaviest mode."""
        if not self._modes:
            return self._decoded(condition, condition.new_zeros(len(condition), self.latent))
        log_weights, means, _ = self._mixture(condition)
        return self._decoded(condition, means[torch.arange(len(means), device=means.device), log_weights.argmax(-1)])

    def _decoded(self, condition: Tensor, z: Tensor) -> Tensor:
        x: Tensor = self._decoder(torch.cat([condition, z], dim=-1))
        return x.tanh() if self._bounded else x

    def _mixture(self, condition: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log weights (row, mode), means and log deviations (row, mode, latent)."""
        logits, places = self._prior(condition).split([self._modes, 2 * self._modes * self.latent], dim=-1)
        means, log_deviations = places.unflatten(-1, (self._modes, 2 * self.latent)).chunk(2, dim=-1)
        return logits.log_softmax(-1), means, log_deviations.clamp(-6, 3)

    def _divergence(self, condition: Tensor, mean: Tensor, log_deviation: Tensor, z: Tensor, noise: Tensor) -> Tensor:
        """(row,) exact under the standard normal, by the draw z under a mixture."""
        if not self._modes:
            return 0.5 * (mean.square() + (2 * log_deviation).exp() - 1 - 2 * log_deviation).sum(-1)
        log_weights, means, log_deviations = self._mixture(condition)
        prior = log_normal((z[:, None] - means) / log_deviations.exp(), log_deviations)
        return log_normal(noise, log_deviation) - (log_weights + prior).logsumexp(-1)


@final
class RecurrentMixture(nn.Module):
    """A mixture of Gaussians over actions, given everything since the last (observation, subgoal) after a reset."""

    def __init__(self, inputs: int, dimensions: int, *, hidden: int, layers: int, modes: int) -> None:
        super().__init__()
        self.hidden, self.layers, self._modes, self._dimensions = hidden, layers, modes, dimensions
        self._memory = nn.LSTM(inputs, hidden, num_layers=layers, batch_first=True)
        self._head = nn.Linear(hidden, modes * (1 + 2 * dimensions))

    def forward(self, inputs: Tensor, memory: tuple[Tensor, Tensor] | None = None) -> tuple[tuple[Tensor, ...], Any]:
        """Log weights (row, time, mode), means and deviations (row, time, mode, dimension), and the memory after."""
        remembered, memory = self._memory(inputs, memory)
        size = self._modes * self._dimensions
        logits, means, spreads = self._head(remembered).split([self._modes, size, size], dim=-1)
        means, spreads = (part.unflatten(-1, (self._modes, self._dimensions)) for part in (means, spreads))
        return (logits.log_softmax(-1), means.tanh(), functional.softplus(spreads) + SMALLEST_DEVIATION), memory

    def cost(self, windows: Windows) -> Tensor:
        """Mean negative log-likelihood of an action, in nats on the scale from -1 to 1."""
        goals = windows.subgoals[:, None].expand(-1, windows.observations.shape[1], -1)
        (log_weights, means, deviations), _ = self(torch.cat([windows.observations, goals], dim=-1))
        each = log_normal((windows.actions[..., None, :] - means) / deviations, deviations.log())
        return -((log_weights + each).logsumexp(-1) * windows.present).sum() / windows.present.sum()


def log_normal(standardised: Tensor, log_deviation: Tensor) -> Tensor:
    """Log density of a diagonal Gaussian, summed over the last axis."""
    return -(0.5 * standardised.square() + log_deviation + 0.5 * log(2 * pi)).sum(-1)


def _normal(shape: Iterable[int], generator: torch.Generator) -> Tensor:
    return torch.randn(tuple(shape), generator=generator, device=generator.device)
