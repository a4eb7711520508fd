"""Distributions over actions: categorical ones, and mixtures of diagonal Gaussians.

The distribution of a policy has batch shape (member, unique observation) and these methods: `taken(batch)`, the
log-probability of every counted action; `at(index)`, the distribution at each count's observation; `tempered(t)`, the
distribution to the power 1 / t in double precision; and `disagreement(others)`, the variance of the policy's error
estimated from other members, or None where averaging their probabilities already accounts for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log, pi
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, Independent, MixtureSameFamily, Normal

from ileed._torch import Bool, Float, Int
from ileed.model.batch import Batch
from ileed.model.nets import Pick


def has_known_internals(kind: type[Categorical]) -> bool:
    """Whether a categorical distribution of this torch has the attributes that `_Normalised` sets, and no others."""
    usual = vars(kind(logits=torch.zeros(1, 2), validate_args=False)).keys()
    return usual == {"logits", "_param", "_num_events", "_batch_shape", "_event_shape", "_validate_args"}


_INTERNALS_ARE_KNOWN = has_known_internals(Categorical)


class _Normalised(Categorical):
    """A categorical distribution from log-probabilities that are already normalised.

    `Categorical` would normalise them again, which takes a tenth of a default fit. If a version of torch has other
    private attributes than those set here, it does so.
    """

    def __init__(self, logits: Float[Tensor, "*batch category"]) -> None:
        if not _INTERNALS_ARE_KNOWN:
            super().__init__(logits=logits, validate_args=False)
            return
        self.logits = self._param = logits
        self._num_events = logits.shape[-1]
        Distribution.__init__(self, logits.shape[:-1], validate_args=False)


class Choice(_Normalised):
    """A categorical distribution over actions; `log_probs` has the layout of the networks."""

    def __init__(self, log_probs: Float[Tensor, "member action observation"]) -> None:
        self.log_probs = log_probs
        super().__init__(log_probs.transpose(-1, -2))

    def taken(self, batch: Batch) -> Float[Tensor, "member count"]:
        assert batch.taken is not None
        return batch.taken(self.log_probs.flatten(-2))

    def at(self, observation_index: Pick) -> Choice:
        return Choice(observation_index(self.log_probs))

    def tempered(self, temperature: float) -> Choice:
        return Choice((self.log_probs.double() / temperature).log_softmax(-2))

    def disagreement(self, others: Sequence[Choice]) -> None:
        """None: the mean of the members' probabilities is already less certain where they disagree."""


class GaussianMixture(MixtureSameFamily):
    """A mixture of diagonal Gaussians, as made by `mixture`."""

    def log_prob(self, value: Float[Tensor, "*batch dimension"]) -> Tensor:
        """Log-density of each action; on a GPU with a gradient of our own, which needs a third of the kernels."""
        if not value.is_cuda:
            return super().log_prob(value)  # type: ignore[no-untyped-call]
        logits, means, standard_deviations = mixture_parts(self)
        found: Tensor = _LogDensity.apply(logits, means, standard_deviations, value)  # type: ignore[no-untyped-call]
        return found

    def taken(self, batch: Batch) -> Float[Tensor, "member count"]:
        here: Distribution = self.at(batch.observation_index)
        return here.log_prob(batch.action)

    def at(self, observation_index: Pick) -> GaussianMixture:
        if observation_index.identity:
            return self
        return mixture(*(part.index_select(1, observation_index.index) for part in mixture_parts(self)))

    def tempered(self, temperature: float) -> GaussianMixture:
        """Every component to the power 1 / temperature, in double precision: variances times the temperature."""
        logits, means, standard_deviations = (part.double() for part in mixture_parts(self))
        return mixture(logits, means, standard_deviations * temperature**0.5)

    def disagreement(self, others: Sequence[GaussianMixture]) -> Tensor | None:
        """Mean over the others of each mean's squared distance from their nearest, (..., mode, dimension).

        Between bootstrap replicates this is twice the variance of a replicate's mean, and so its expected squared
        error: one variance for the data, and one for the resampling.
        """
        means = mixture_parts(self)[1].double()
        apart = [_squared_distance_to_nearest(means, mixture_parts(other)[1].double()) for other in others]
        return torch.stack(apart).mean(0) if apart else None

    def residual(self, action: Float[Tensor, "... dimension"]) -> Float[Tensor, "... dimension"]:
        """The expected distance of each action from the mean of the component that generated it."""
        _, means, _ = mixture_parts(self)
        components: Any = self.component_distribution
        apart = action.unsqueeze(-2) - means
        responsibility = (self.mixture_distribution.logits + components.log_prob(action.unsqueeze(-2))).softmax(-1)
        return (responsibility.unsqueeze(-1) * apart).sum(-2)

    def broadened(self, variance: Tensor) -> GaussianMixture:
        """The mixture with additional variance, (..., mode, dimension)."""
        logits, means, standard_deviations = mixture_parts(self)
        return mixture(logits, means, (standard_deviations**2 + variance).sqrt())


class _LogDensity(torch.autograd.Function):
    """log sum over k of w_k N(a; mu_k, sigma_k^2).

    With z = (a - mu) / sigma and r_k the probability of component k given a, the derivatives with respect to log w, mu
    and sigma are r, r z / sigma and r (z^2 - 1) / sigma.
    """

    @staticmethod
    def forward(
        context: Any, log_weights: Tensor, means: Tensor, standard_deviations: Tensor, action: Tensor
    ) -> Tensor:
        apart = (action.unsqueeze(-2) - means) / standard_deviations
        exponents = torch.addcmul(standard_deviations.log(), apart, apart, value=0.5).sum(-1)
        each = log_weights - exponents
        log_chances = each.log_softmax(-1)
        context.save_for_backward(log_chances, apart, standard_deviations)
        context.shapes = [given.shape for given in (log_weights, means, standard_deviations, action)]
        # the logsumexp, by way of the largest term, whose own probability does not underflow
        return each.amax(-1) - log_chances.amax(-1) - 0.5 * log(2 * pi) * means.shape[-1]

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        log_chances, apart, standard_deviations = context.saved_tensors
        to_weights = log_chances.exp() * gradients[0].unsqueeze(-1)
        scaled = to_weights.unsqueeze(-1) / standard_deviations
        to_means = scaled * apart
        to_action = -to_means.sum(-2) if context.needs_input_grad[3] else None
        found = to_weights, to_means, torch.addcmul(-scaled, to_means, apart), to_action
        return tuple(
            each if each is None else each.sum_to_size(shape) for each, shape in zip(found, context.shapes, strict=True)
        )


def _squared_distance_to_nearest(means: Tensor, others: Tensor) -> Tensor:
    """(..., mode, dimension) squared distances of the means from the nearest of the others."""
    apart = (means.unsqueeze(-2) - others.unsqueeze(-3)).square()  # (..., mode, other mode, dimension)
    nearest = apart.sum(-1).argmin(-1)[..., None, None].expand(*apart.shape[:-2], 1, apart.shape[-1])
    return apart.gather(-2, nearest).squeeze(-2)


def mixture(logits: Tensor, means: Tensor, standard_deviations: Tensor) -> GaussianMixture:
    """A mixture of diagonal Gaussians: (..., mode) logits, (..., mode, dimension) means and standard deviations."""
    return GaussianMixture(
        _Normalised(logits.log_softmax(-1)) if logits.is_cuda else Categorical(logits=logits, validate_args=False),
        Independent(Normal(means, standard_deviations, validate_args=False), 1, validate_args=False),
        validate_args=False,
    )


def mixture_parts(policy: MixtureSameFamily) -> tuple[Tensor, Tensor, Tensor]:
    """The logits, means and standard deviations of a mixture, as `mixture` takes them."""
    normal: Any = policy.component_distribution
    normal = normal.base_dist
    return policy.mixture_distribution.logits, normal.mean, normal.stddev


def component_action(
    distribution: MixtureSameFamily, component: Int[Tensor, " row"], noise: Float[Tensor, "row dimension"] | None = None
) -> Float[Tensor, "row dimension"]:
    """The mean of one component of each row's mixture, plus its standard deviation times `noise`."""
    _, means, standard_deviations = mixture_parts(distribution)
    index = component[:, None, None].expand(-1, 1, means.shape[-1])
    mean, standard_deviation = (part.gather(1, index)[:, 0] for part in (means, standard_deviations))
    return mean if noise is None else mean + standard_deviation * noise


def draw_component(distribution: MixtureSameFamily, generator: torch.Generator) -> Int[Tensor, " row"]:
    """A component of each row's mixture, drawn by its weight."""
    weights = distribution.mixture_distribution.logits.softmax(-1)
    return torch.multinomial(weights, 1, generator=generator)[:, 0]


def among(chosen: Sequence[int], values: Float[Tensor, "*batch dimension"]) -> Bool[Tensor, " dimension"]:
    """Whether each dimension of the values is one of the chosen (-1 is the last); a CUDA graph can record it."""
    count = values.shape[-1]
    dimensions = torch.arange(count, device=values.device)
    return torch.stack([dimensions == dimension % count for dimension in chosen]).any(0)
