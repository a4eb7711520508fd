"""Demonstrator models: what a person of given expertise does, told from what the policy would do.

`observed` is each model's definition, for any number of actions at once. `log_likelihood` is the same quantity at the
acts that were counted, worked out from as little of the policy as it needs; a test holds the two together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import log
from typing import Generic, Literal, TypeVar, final

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, MixtureSameFamily

from ileed._torch import Float
from ileed.checking import one_of, whole_numbers
from ileed.deprecation import renamed_settings
from ileed.model.batch import Batch
from ileed.model.distributions import Choice, among, mixture, mixture_at, mixture_parts

Policy = TypeVar("Policy", bound=Distribution)


class AbstractDemonstratorModel(ABC, Generic[Policy]):
    """How expertise in [0, 1] turns a policy into a demonstrator's behaviour.

    Laws: what is observed is normalised; it equals the policy where expertise is one; nothing is NaN at expertise
    zero or one, nor where the policy gives an action no mass; `log_likelihood` equals
    `observed(...).log_prob(action)` at every count.
    """

    discrete: bool

    @abstractmethod
    def observed(self, policy: Policy, expertise: Tensor) -> Distribution:
        """The demonstrator's own distribution of actions; `expertise` has the policy's batch shape."""

    @abstractmethod
    def log_likelihood(
        self, policy: Policy, expertise: Float[Tensor, "member count"], batch: Batch
    ) -> Float[Tensor, "member count"]:
        """log p(action | observation, demonstrator) of every count, in nats."""


@final
@dataclass(frozen=True, kw_only=True)
class UniformMixture(AbstractDemonstratorModel[Choice]):
    """With probability `expertise` follow the policy, otherwise act uniformly at random.

    p(a) = rho pi(a) + (1 - rho) / |A|, the paper's equation. Where the data say which actions are legal, A is the set
    of legal actions of that observation. Only ratios of expertise are identified: (rho, pi) and
    (c rho, 1/|A| + (pi - 1/|A|) / c) are equally likely, so a sharp policy is what fixes the absolute level.
    """

    discrete = True

    def observed(self, policy: Categorical, expertise: Tensor) -> Categorical:
        possible = torch.isfinite(policy.logits).to(policy.probs)
        uniform = possible / possible.sum(-1, keepdim=True)
        return _categorical(torch.lerp(uniform, policy.probs, expertise.unsqueeze(-1)))

    def log_likelihood(
        self, policy: Choice, expertise: Float[Tensor, "member count"], batch: Batch
    ) -> Float[Tensor, "member count"]:
        log_choices = batch.log_choices
        log_uniform = -log(policy.log_probs.shape[-2]) if log_choices is None else -log_choices
        ratio = (policy.taken(batch) - log_uniform).exp_()  # pi |A|: at most |A|, so nothing overflows
        return _log(torch.lerp(ratio.new_ones(()), ratio, expertise)).add_(log_uniform)


@final
@dataclass(frozen=True, kw_only=True)
class OneVersusRest(AbstractDemonstratorModel[Choice]):
    """With probability `expertise` follow the policy, otherwise take any other action than it would.

    p(a) = rho pi(a) + (1 - rho) (1 - pi(a)) / (|A| - 1), what the authors' public code optimises. Random behaviour sits
    at rho = 1/|A|, not 0. With two actions (rho, pi) and (1 - rho, 1 - pi) are equally likely; see
    `resolve_mirror_symmetry`.
    """

    discrete = True

    def observed(self, policy: Categorical, expertise: Tensor) -> Categorical:
        others = (1 - policy.probs) / (policy.probs.shape[-1] - 1)
        return _categorical(torch.lerp(others, policy.probs, expertise.unsqueeze(-1)))

    def log_likelihood(
        self, policy: Choice, expertise: Float[Tensor, "member count"], batch: Batch
    ) -> Float[Tensor, "member count"]:
        log_taken = policy.taken(batch)
        others = -log_taken.expm1() / (policy.log_probs.shape[-2] - 1)
        return _log(torch.lerp(others, log_taken.exp(), expertise))


@final
@dataclass(frozen=True, kw_only=True)
class Boltzmann(AbstractDemonstratorModel[Choice]):
    """Act from the policy raised to the power `expertise`: p(a) is proportional to pi(a)^rho.

    Small slips are likelier than large ones, unlike under `UniformMixture`. Expertise shares its scale with the
    policy's own sharpness: (rho, pi) and (rho / c, pi^c renormalised) are equally likely.
    """

    discrete = True

    def observed(self, policy: Categorical, expertise: Tensor) -> Categorical:
        possible = torch.isfinite(policy.logits)
        tempered = torch.where(possible, expertise.unsqueeze(-1) * policy.logits, policy.logits)
        return Categorical(logits=tempered, validate_args=False)

    def log_likelihood(
        self, policy: Choice, expertise: Float[Tensor, "member count"], batch: Batch
    ) -> Float[Tensor, "member count"]:
        rows = batch.observation_index(policy.log_probs)
        if batch.legal is not None:  # an illegal action's -inf must stay out of the product with expertise 0
            illegal = ~batch.legal[:, batch.observation_index.index]
            tempered = (expertise.unsqueeze(-2) * rows.masked_fill(illegal, 0)).masked_fill(illegal, -torch.inf)
        else:
            tempered = expertise.unsqueeze(-2) * rows
        return expertise * policy.taken(batch) - tempered.logsumexp(-2)


@final
@renamed_settings({"scaled": {"deviation": "standard_deviation"}})
@dataclass(frozen=True, kw_only=True)
class VarianceScaling(AbstractDemonstratorModel[MixtureSameFamily]):
    """Aim as the policy does, with every component's variance divided by `expertise`.

    The paper's formula can also be read as the standard deviation divided by it: `scaled="standard_deviation"`.
    Expertise shares its scale with the policy's own spread, so only ratios of expertise mean anything. Expertise below
    1e-6 is taken as 1e-6, where the density is flat for every practical purpose.

    `exempt` names dimensions of the action that everybody draws from the policy as it is: a gripper that is open or
    shut has no spread to scale, and would say of everybody that they never err. None leaves out those that
    `Demonstrations.binary_dimensions` finds in the data.
    """

    scaled: Literal["variance", "standard_deviation"] = "variance"
    exempt: tuple[int, ...] | None = None
    discrete = False

    def __post_init__(self) -> None:
        one_of("scaled", self.scaled, ("variance", "standard_deviation"))
        if self.exempt is not None:
            exempt = whole_numbers("exempt", self.exempt, rule="name dimensions by their numbers, as in exempt=(6,)")
            object.__setattr__(self, "exempt", exempt)

    def observed(self, policy: MixtureSameFamily, expertise: Tensor) -> MixtureSameFamily:
        logits, means, standard_deviations = mixture_parts(policy)
        factor = expertise.clamp_min(1e-6)[..., None, None]
        wider = factor.rsqrt() if self.scaled == "variance" else factor.reciprocal()
        if self.exempt:
            wider = torch.where(among(self.exempt, standard_deviations), 1.0, wider)
        return mixture(logits, means, standard_deviations * wider)

    def log_likelihood(
        self, policy: MixtureSameFamily, expertise: Float[Tensor, "member count"], batch: Batch
    ) -> Float[Tensor, "member count"]:
        return self.observed(mixture_at(policy, batch.observation_index), expertise).log_prob(batch.action)


def policy_log_likelihood(policy: Choice | MixtureSameFamily, batch: Batch) -> Float[Tensor, "member count"]:
    """log pi(action | observation) of every count: what each demonstrator model gives at expertise one."""
    if isinstance(policy, MixtureSameFamily):
        return mixture_at(policy, batch.observation_index).log_prob(batch.action)
    return policy.taken(batch)


def _categorical(probs: Tensor) -> Categorical:
    """A categorical that keeps faint probabilities: one made from `probs` would raise them to a rounding error."""
    return Categorical(logits=probs.log(), validate_args=False)


def _log(probability: Tensor) -> Tensor:
    """Logarithm that stays finite at zero: the smallest normal number, added, changes nothing else."""
    return (probability + torch.finfo(probability.dtype).tiny).log()
