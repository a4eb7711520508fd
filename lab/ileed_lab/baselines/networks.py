"""The networks of the offline baselines: critics, a conditional variational autoencoder, a recurrent mixture policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from math import log, pi
from typing import Any, NamedTuple, TypeVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from ileed.model.distributions import component_action, draw_component, mixture
from ileed.parallel.runtime import stream
from ileed_lab.baselines.replay import Windows

__all__ = [
    "ConditionalVAE",
    "Critics",
    "Mixture",
    "RecurrentMixture",
    "build",
    "generator_for",
    "log_normal_density",
    "mlp",
]

STANDARD_DEVIATION_FLOOR = 1e-2
"""Of a mixture's components, for actions scaled to [-1, 1]."""

_Module = TypeVar("_Module", bound=nn.Module)


def generator_for(seed: int, *purpose: object, device: torch.device) -> torch.Generator:
    """The random stream named for its purpose, on a device: there is one sequence for a CPU and another for a GPU."""
    return torch.Generator(device).manual_seed(stream(seed, *purpose).initial_seed())


def build(make: Callable[[], _Module], generator: torch.Generator, device: torch.device) -> _Module:
    """A module with weights drawn from `generator`, uniform in +-1/sqrt(number of inputs of a unit)."""
    with torch.device("meta"):  # there torch's own initialisation draws nothing
        module = make()
    module.to_empty(device="cpu")
    with torch.no_grad():
        for part in module.modules():
            inputs = getattr(part, "in_features", None) or getattr(part, "hidden_size", None)
            for parameter in part.parameters(recurse=False):
                bound = 0.0 if inputs is None else inputs**-0.5
                parameter.uniform_(-bound, bound, generator=generator)
    return module.to(device)


def mlp(inputs: int, hidden: tuple[int, ...], outputs: int) -> nn.Sequential:
    """Linear layers with rectifiers between."""
    sizes = (inputs, *hidden)
    layers = [nn.Sequential(nn.Linear(before, after), nn.ReLU()) for before, after in pairwise(sizes)]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))


@final
class Critics(nn.Module):
    """Two independent estimates of the value Q(s, a), computed together."""

    count = 2

    def __init__(self, inputs: int, dimensions: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        sizes = (inputs + dimensions, *hidden, 1)
        self._layers = nn.ModuleList(_StackedLinear(*pair) for pair in pairwise(sizes))

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """(critic, row, ...) from observations (row, input) and actions (row, ..., dimension)."""
        rows, *more, _ = actions.shape
        expanded = observations.view(rows, *[1] * len(more), -1).expand(rows, *more, -1)
        values = torch.cat([expanded, actions], dim=-1).flatten(0, -2).expand(self.count, -1, -1)
        for number, layer in enumerate(self._layers):
            values = layer(values.relu() if number else values)
        return values.view(self.count, rows, *more)


class _StackedLinear(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.in_features = inputs
        self.weight = nn.Parameter(torch.empty(Critics.count, inputs, outputs))
        self.bias = nn.Parameter(torch.empty(Critics.count, 1, outputs))

    def forward(self, values: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, values, self.weight)


@final
class ConditionalVAE(nn.Module):
    """A conditional variational autoencoder: samples x given a condition c by decoding a latent z.

    Its loss is the squared error of x, averaged over dimensions, plus `divergence_weight` times
    KL(q(z | x, c) || p(z | c)). The prior p(z | c) is a learned mixture of `prior_modes` Gaussians, or the standard
    normal if that is 0. `bounded` keeps x within [-1, 1].
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
        self.latent, self._modes = latent, prior_modes
        self._divergence_weight, self._bounded = divergence_weight, bounded
        self._encoder = mlp(condition + size, hidden, 2 * latent)
        self._decoder = mlp(condition + latent, hidden, size)
        if prior_modes:
            self._prior = mlp(condition, hidden, prior_modes * (1 + 2 * latent))

    def loss(self, condition: Tensor, x: Tensor, generator: torch.Generator) -> Tensor:
        """The mean over rows, with one sample of z for each."""
        mean, log_scale = self._encoder(torch.cat([condition, x], dim=-1)).chunk(2, dim=-1)
        log_scale = log_scale.clamp(-6, 3)
        noise = _standard_normal(mean.shape, generator)
        z = mean + log_scale.exp() * noise
        error = (self._decode(condition, z) - x).square().mean()
        return error + self._divergence_weight * self._divergence(condition, mean, log_scale, z, noise).mean()

    def sample(self, condition: Tensor, uniform: Tensor, noise: Tensor) -> Tensor:
        """(row, sample, size) from `uniform` (1 or row, sample) and `noise` (1 or row, sample, latent)."""
        rows = len(condition)
        if self._modes:
            log_weights, means, log_scales = self._prior_mixture(condition)
            passed = uniform[..., None] > log_weights.exp().cumsum(-1)[:, None, :-1]
            mode = passed.sum(-1, keepdim=True).expand(-1, -1, self.latent)
            z = means.gather(1, mode) + log_scales.gather(1, mode).exp() * noise
        else:
            z = noise.expand(rows, -1, -1)
        return self._decode(condition[:, None].expand(-1, z.shape[1], -1), z)

    def most_likely(self, condition: Tensor) -> Tensor:
        """(row, size) decoded from the mean of the prior's component of greatest weight."""
        if not self._modes:
            return self._decode(condition, condition.new_zeros(len(condition), self.latent))
        log_weights, means, _ = self._prior_mixture(condition)
        return self._decode(condition, means[torch.arange(len(means), device=means.device), log_weights.argmax(-1)])

    def _decode(self, condition: Tensor, z: Tensor) -> Tensor:
        x: Tensor = self._decoder(torch.cat([condition, z], dim=-1))
        return x.tanh() if self._bounded else x

    def _prior_mixture(self, condition: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log weights (row, mode), means and log standard deviations (row, mode, latent)."""
        logits, rest = self._prior(condition).split([self._modes, 2 * self._modes * self.latent], dim=-1)
        means, log_scales = rest.unflatten(-1, (self._modes, 2 * self.latent)).chunk(2, dim=-1)
        return logits.log_softmax(-1), means, log_scales.clamp(-6, 3)

    def _divergence(self, condition: Tensor, mean: Tensor, log_scale: Tensor, z: Tensor, noise: Tensor) -> Tensor:
        """(row,) exact under the standard normal; under a mixture an estimate from the sample z."""
        if not self._modes:
            return 0.5 * (mean.square() + (2 * log_scale).exp() - 1 - 2 * log_scale).sum(-1)
        log_weights, means, log_scales = self._prior_mixture(condition)
        prior = log_normal_density((z[:, None] - means) / log_scales.exp(), log_scales)
        return log_normal_density(noise, log_scale) - (log_weights + prior).logsumexp(-1)


class Mixture(NamedTuple):
    """A mixture of diagonal Gaussians over actions scaled to [-1, 1]."""

    log_weights: Tensor
    """(..., mode)."""
    means: Tensor
    """(..., mode, dimension)."""
    standard_deviations: Tensor
    """(..., mode, dimension)."""

    def log_density(self, actions: Tensor) -> Tensor:
        """(...,) of actions (..., dimension)."""
        standardised = (actions[..., None, :] - self.means) / self.standard_deviations
        each = log_normal_density(standardised, self.standard_deviations.log())
        return (self.log_weights + each).logsumexp(-1)

    def most_likely(self) -> Tensor:
        """(row, dimension) the mean of the component of greatest weight, where the leading axis is (row,)."""
        return component_action(mixture(*self), self.log_weights.argmax(-1))

    def sample(self, generator: torch.Generator) -> Tensor:
        """(row, dimension) actions drawn at random, where the leading axis is (row,)."""
        distribution = mixture(*self)
        component = draw_component(distribution, generator)
        noise = torch.randn(self.means.shape[0], self.means.shape[-1], generator=generator)
        return component_action(distribution, component, noise).clamp(-1, 1)


@final
class RecurrentMixture(nn.Module):
    """A recurrent policy: an LSTM that reads (observation, subgoal), and a mixture of Gaussians over actions."""

    def __init__(self, inputs: int, dimensions: int, *, hidden: int, layers: int, modes: int) -> None:
        super().__init__()
        self.hidden, self.layers, self._modes, self._dimensions = hidden, layers, modes, dimensions
        self._lstm = nn.LSTM(inputs, hidden, num_layers=layers, batch_first=True)
        self._head = nn.Linear(hidden, modes * (1 + 2 * dimensions))

    def forward(self, inputs: Tensor, state: tuple[Tensor, Tensor] | None = None) -> tuple[Mixture, Any]:
        """The mixture of every (row, time), and the LSTM's hidden state after the last."""
        outputs, state = self._lstm(inputs, state)
        size = self._modes * self._dimensions
        logits, means, spreads = self._head(outputs).split([self._modes, size, size], dim=-1)
        means, spreads = (part.unflatten(-1, (self._modes, self._dimensions)) for part in (means, spreads))
        standard_deviations = functional.softplus(spreads) + STANDARD_DEVIATION_FLOOR
        return Mixture(logits.log_softmax(-1), means.tanh(), standard_deviations), state

    def loss(self, windows: Windows) -> Tensor:
        """Mean negative log-likelihood of an action scaled to [-1, 1], in nats."""
        goals = windows.subgoals[:, None].expand(-1, windows.observations.shape[1], -1)
        mixture, _ = self(torch.cat([windows.observations, goals], dim=-1))
        return -(mixture.log_density(windows.actions) * windows.present).sum() / windows.present.sum()


def log_normal_density(standardised: Tensor, log_scale: Tensor) -> Tensor:
    """Log density of a diagonal Gaussian, summed over the last axis, from its log standard deviation."""
    return -(0.5 * standardised.square() + log_scale + 0.5 * log(2 * pi)).sum(-1)


def _standard_normal(shape: Iterable[int], generator: torch.Generator) -> Tensor:
    return torch.randn(tuple(shape), generator=generator, device=generator.device)
