"""Demonstrator models of continuous actions with errors that last: a bias of each person's own, autocorrelated noise.

Each is `VarianceScaling` of the policy as a person follows it: with means that are moved, and, where noise lasts, with
what is left of its variance once the step before is known. Expertise is then how precise a person is about their own
means; how far these are from the policy's is learned beside it, and is no part of it.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Literal, final

import torch
from torch import Tensor, nn
from torch.distributions import MixtureSameFamily

from ileed._torch import Float
from ileed.checking import number, true_or_false
from ileed.demonstrations import Demonstrations
from ileed.errors import SettingsError
from ileed.model.batch import Batch, PerCount, Sizes
from ileed.model.context import NO_CONTEXT, Context
from ileed.model.demonstrators import AbstractDemonstratorModel, VarianceScaling
from ileed.model.distributions import GaussianMixture, among, mixture, mixture_parts
from ileed.nets import Generators, Pick

_MOST = 0.999  # greatest correlation of noise: of a variance of nothing there would be no density


@dataclass(frozen=True, kw_only=True)
class AbstractScaling(AbstractDemonstratorModel[MixtureSameFamily], ABC):
    """Settings of a model that moves the policy's means before `VarianceScaling` widens them.

    `scaled` and `exempt` are those of `VarianceScaling`; exempt dimensions are not moved either. Offsets and gains are
    measured about `centre`, in units of `spread`, (dimension,) each: by default the mean and the standard deviation of
    the actions in the data. The prior of everything that is learned is Gaussian with mean zero and a variance of
    1 / `shrinkage`: of offsets in those units, of logarithms of gains, and of Fisher's z of correlations, of which so
    many steps would have that variance.
    """

    scaled: Literal["variance", "standard_deviation"] = "variance"
    exempt: tuple[int, ...] | None = None
    centre: tuple[float, ...] | None = None
    spread: tuple[float, ...] | None = None
    shrinkage: float = 4.0
    discrete = False
    is_policy_at_expertise_one = False
    measures_from_mean = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "exempt", self._scaling.exempt)
        for name in ("centre", "spread"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _numbers(name, getattr(self, name)))
        rule = "it is the precision of a prior: pass a number, zero or more"
        checked = number("shrinkage", self.shrinkage, within=lambda value: 0 <= value < inf, rule=rule)
        object.__setattr__(self, "shrinkage", checked)

    @property
    def _scaling(self) -> VarianceScaling:
        return VarianceScaling(scaled=self.scaled, exempt=self.exempt)

    @property
    def _biases(self) -> tuple[str, ...]:
        """Which of "offset" and "gain" each person has."""
        return ()

    @property
    def _lasts(self) -> bool:
        """Whether noise is autocorrelated."""
        return False

    def check(self, sizes: Sizes) -> None:
        super().check(sizes)
        self._scaling.check(sizes)
        for name in ("centre", "spread"):
            found = getattr(self, name)
            if found is not None and len(found) != sizes.actions:
                rule = "pass one for each dimension, or None for those of the data"
                raise SettingsError(f"{name} has {len(found)} numbers but actions have {sizes.actions}: {rule}")

    def for_data(self, data: Demonstrations) -> AbstractScaling:
        if data.discrete:
            return self  # which `check` refuses
        actions = data.actions.astype("float64")
        filled: dict[str, Any] = {"exempt": self._scaling.for_data(data).exempt}
        if self.centre is None:
            filled["centre"] = tuple(actions.mean(0).tolist())
        if self.spread is None:
            filled["spread"] = tuple(actions.std(0).clip(min=1e-6).tolist())
        return replace(self, **filled)

    def build(self, sizes: Sizes, generators: Generators) -> nn.Module:
        return _Habits(len(generators), dict.fromkeys(self._biases, (sizes.actions, sizes.demonstrators)))

    def anchored(self, module: nn.Module) -> nn.Module:
        found: Any = deepcopy(module)
        for name in self._biases:
            found.get_parameter(name).data = found.bias(name).detach()
        found.from_mean = False
        return found

    def log_prior(self, module: Any) -> Float[Tensor, " member"]:
        # parameters, not what is measured from their mean: their mean is held at zero too
        squares = [parameter.square().flatten(1).sum(1) for parameter in module.parameters()]
        return -0.5 * self.shrinkage * torch.stack(squares).sum(0)

    def observed(self, policy: Any, expertise: Tensor, context: Context = NO_CONTEXT) -> MixtureSameFamily:
        return self._scaling.observed(self._followed(policy, context), expertise)

    def log_likelihood(self, policy: Any, expertise: PerCount, batch: Batch, module: Any = None) -> PerCount:
        context = Context.of(batch, policy.batch_shape[0], module, policy)
        return self._scaling.log_likelihood(
            self._followed(policy.at(batch.observation_index), context), expertise, _row_by_row(batch)
        )

    def log_likelihood_with_error(
        self, policy: Any, expertise: PerCount, batch: Batch, error: Tensor, module: Any = None
    ) -> PerCount:
        """The same; the policy's errors at a step and at the one before it are taken to be independent."""
        context = Context.of(batch, policy.batch_shape[0], module, policy)
        here = self._followed(policy.at(batch.observation_index), context)
        own = error if batch.observation_index.identity else error.index_select(1, batch.observation_index.index)
        if self._lasts and context.before is not None:
            weights = mixture_parts(policy)[0].softmax(-1).unsqueeze(-1)
            before = (weights * error).sum(-2, keepdim=True).index_select(1, context.before.index)
            own = own + self._correlation(context).unsqueeze(-2).square() * before
        if "gain" in self._biases:
            own = own * self._only_free(2 * context.own_value(_bias("gain")), 0.0).exp().unsqueeze(-2)
        return self._scaling.log_likelihood_with_error(here, expertise, _row_by_row(batch), own)

    def slips(self, module: Any) -> dict[str, Tensor]:
        found = {}
        if "offset" in self._biases:
            own = module.bias("offset").movedim(-1, 1)
            found["offset"] = own * _row(self.spread, own, 1.0)
        if "gain" in self._biases:
            found["gain"] = module.bias("gain").movedim(-1, 1).exp()
        if self._lasts:
            found["correlation"] = self._only_free(_correlation(module).movedim(-1, 1), 0.0)
        return found

    def at_expertise_zero(self, sizes: Sizes) -> str:
        return "no precision at all"

    def _followed(self, policy: Any, context: Context) -> GaussianMixture:
        """The policy as each row's person follows it, at expertise one."""
        here = self._biased(policy, context)
        if not self._lasts:
            return here
        residual = self._biased(context.previous_policy, context).residual(context["previous_action"])
        correlation = self._correlation(context)
        logits, means, standard_deviations = mixture_parts(here)
        left = (1 - correlation.square()).sqrt().unsqueeze(-2)
        return mixture(logits, means + (correlation * residual).unsqueeze(-2), standard_deviations * left)

    def _biased(self, policy: Any, context: Context) -> GaussianMixture:
        """The policy with each person's own offset and gain."""
        if not self._biases:
            return policy
        logits, means, standard_deviations = mixture_parts(policy)
        centre, moved = _row(self.centre, means, 0.0), means
        if "gain" in self._biases:
            moved = centre + context.own_value(_bias("gain")).exp().unsqueeze(-2) * (means - centre)
        moved = moved + (context.own_value(_bias("offset")) * _row(self.spread, means, 1.0)).unsqueeze(-2)
        return mixture(logits, torch.where(self._is_exempt(means), means, moved), standard_deviations)

    def _correlation(self, context: Context) -> Float[Tensor, "member row dimension"]:
        """Of noise with that of the step before; zero at first steps and in exempt dimensions."""
        correlation = context.own_value(_correlation)
        return self._only_free(correlation, 0.0) * (context["previous_policy"] >= 0).unsqueeze(-1)

    def _only_free(self, values: Tensor, otherwise: float) -> Tensor:
        return values.masked_fill(self._is_exempt(values), otherwise)

    def _is_exempt(self, values: Float[Tensor, "*batch dimension"]) -> Tensor:
        if self.exempt:
            return among(self.exempt, values)
        return torch.zeros(values.shape[-1], dtype=torch.bool, device=values.device)


@final
@dataclass(frozen=True, kw_only=True)
class BiasedScaling(AbstractScaling):
    """Act around means of one's own, an offset and a gain away from the policy's, with a variance of one's own.

    p(a | s, i) = sum over k of pi_k(s) N(a; c + g_i (mu_k(s) - c) + b_i, sigma_k(s)^2 / rho), for each dimension of the
    action, with c the mean action in the data. The mean of b_i and of log g_i over people is zero: what all people
    share belongs to the policy. b_i is the constant error and 1 / rho the variable error of the study of motor
    behaviour (Schmidt and Lee, "Motor Control and Learning"); intercepts and slopes of each person's own under a
    Gaussian prior are the random effects of Laird and Ware, "Random-effects models for longitudinal data", Biometrics
    1982.
    """

    gain: bool = True
    """Whether people have gains, or offsets alone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "gain", true_or_false("gain", self.gain))

    @property
    def _biases(self) -> tuple[str, ...]:
        return ("offset", "gain") if self.gain else ("offset",)


@final
@dataclass(frozen=True, kw_only=True)
class PersistentScaling(AbstractScaling):
    """Act around the policy's means with noise that lasts: a deviation goes on at the next step, in part.

    p(a | s, i, s', a') = sum over k of pi_k(s) N(a; mu_k(s) + phi r', (1 - phi^2) sigma_k(s)^2 / rho), for each
    dimension of the action. s' and a' are those of the step before in the episode, and r' = sum over k of
    q_k (a' - mu_k(s')) is the residual there, with q_k the probability of component k of the policy given a'; an
    episode's first step has none, and phi = 0 there. With one component this is the stationary autoregressive noise of
    Chi and Reinsel, "Models for longitudinal data with random effects and AR(1) errors", JASA 1989; with several it
    stays a normalised density given the step before, and expertise divides the variance of all noise, the part that
    lasts and the part that is new. A recurrent policy reads windows: the first step of each has no residual either.

    The correlation phi, between -1 and 1, is shared by all people, or one for each (`per_person`). With `biased`,
    people have offsets and gains as in `BiasedScaling` too.
    """

    per_person: bool = False
    """Whether each person has correlations of their own."""
    biased: bool = False
    """Whether each person has an offset and a gain."""
    context = ("previous_action", "previous_policy")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("per_person", "biased"):
            object.__setattr__(self, name, true_or_false(name, getattr(self, name)))

    @property
    def _biases(self) -> tuple[str, ...]:
        return ("offset", "gain") if self.biased else ()

    @property
    def _lasts(self) -> bool:
        return True

    def build(self, sizes: Sizes, generators: Generators) -> nn.Module:
        shapes = dict.fromkeys(self._biases, (sizes.actions, sizes.demonstrators))
        correlation = (sizes.actions, sizes.demonstrators if self.per_person else 1)
        return _Habits(len(generators), shapes | {"correlation": correlation})


@final
class _Habits(nn.Module):
    """Parameters of people by name, (member, dimension, demonstrator), all zero at first: nobody has a bias.

    Biases are measured from their mean over people, unless they are those of other people (`anchored`).
    """

    def __init__(self, members: int, shapes: dict[str, tuple[int, int]]) -> None:
        super().__init__()
        self.from_mean = True
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(members, *shape)))

    def bias(self, name: str) -> Float[Tensor, "member dimension demonstrator"]:
        found = self.get_parameter(name)
        return found - found.mean(-1, keepdim=True) if self.from_mean else found


def _bias(name: str) -> Any:
    return lambda module: module.bias(name)


def _correlation(module: nn.Module) -> Float[Tensor, "member dimension demonstrator"]:
    return _MOST * module.get_parameter("correlation").tanh()


def _row_by_row(batch: Batch) -> Batch:
    """The batch for a policy that has been read at every count."""
    counts = batch.demonstrator.index.shape[-1]
    here = torch.arange(counts, device=batch.weight.device)
    return replace(batch, observation_index=Pick(here, counts, identity=True), context={})


def _row(values: Sequence[float] | None, like: Tensor, otherwise: float) -> Tensor:
    """(dimension,) numbers as a tensor, made so that a CUDA graph can record it."""
    if values is None:
        return like.new_full((like.shape[-1],), otherwise)
    return torch.stack([like.new_full((), value) for value in values])


def _numbers(name: str, values: Any) -> tuple[float, ...]:
    rule = "pass one finite number for each dimension, above zero where it is a spread"
    try:
        found = list(values)
    except TypeError:
        raise SettingsError(f"{name} is {values!r}: {rule}") from None
    least = 0.0 if name == "spread" else -inf
    return tuple(number(name, value, within=lambda own: least < own < inf, rule=rule) for value in found)
