"""Demonstrator models: what a person of given expertise does, given what the policy would do.

`observed` defines a model, for every action at once. `log_likelihood` is the same quantity at the counted actions; a
model may compute it from less, and the law that both agree is checked by `ileed.testing.check_demonstrator_model`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log, pi
from typing import Any, Generic, Literal, NamedTuple, TypeVar, final

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, MixtureSameFamily

from ileed._torch import Float
from ileed.data import Array, Demonstrations
from ileed.data.collapsing import check_context
from ileed.errors import SettingsError, one_of, whole_numbers
from ileed.model.batch import Batch, PerCount, Sizes, per_member
from ileed.model.context import NO_CONTEXT, Context
from ileed.model.distributions import Choice, among, mixture, mixture_parts
from ileed.model.nets import Generators

Policy = TypeVar("Policy", bound=Distribution)


class LearnedColumn(NamedTuple):
    """A learned parameter of each demonstrator: a number or a word for each, with a title and a name for files."""

    title: str
    name: str
    values: Sequence[float] | Sequence[str]


class Learned(NamedTuple):
    """What a demonstrator model learned about demonstrators, for reports: sentences, and columns of one table."""

    sentences: Sequence[str] = ()
    columns: Sequence[LearnedColumn] = ()
    caption: str = "Learned parameters, most expert first"


class AbstractDemonstratorModel(ABC, Generic[Policy]):
    """How expertise in [0, 1] turns a policy into a demonstrator's behaviour: settings, as a frozen dataclass.

    A model is defined by `observed`; the rest has defaults. It may have parameters of its own (`build`), depend on what
    came before a step (`context`), and define a person's expertise by its parameters (`defines_expertise`).

    Laws: what is observed is normalised; it equals the policy where expertise is one, unless the model says that it
    does not; nothing is NaN at expertise zero or one, nor where the policy gives an action no mass; `log_likelihood`
    equals `observed(...).log_prob(action)` at every count; each member's parameters are drawn from that member's
    generator alone.
    """

    discrete: bool
    """Whether it models discrete actions."""
    context: tuple[str, ...] = ()
    """What it depends on beside observation and demonstrator: names of `ileed.data.collapsing.CONTEXT`."""
    defines_expertise: bool = False
    """Whether a person's expertise is a function of the model's parameters, instead of a number that it takes."""
    is_policy_at_expertise_one: bool = True
    """Whether the policy itself is observed at expertise one; not so where the model defines expertise, or where people
    have a bias that no expertise takes away."""
    measures_from_mean: bool = False
    """Whether parameters of people may be measured from their mean over people, and so depend on who else is there."""
    knows_legal_actions: bool = False
    """Whether illegal actions have no probability; data that say which are legal are refused otherwise."""
    actions_can_be_exchanged: bool = False
    """Whether a policy with its actions exchanged can be as likely, since the model's parameters make up for it. Of
    members that are as likely, the one is then taken under which people follow the policy most."""

    @classmethod
    def candidates(cls) -> Mapping[int, AbstractDemonstratorModel[Any]]:
        """What `ileed.compare` tries by default, by complexity: of those that explain data alike the least is taken."""
        return {0: cls()}

    def build(self, sizes: Sizes, generators: Generators) -> nn.Module | None:
        """The model's own parameters, or None where it has none.

        Every parameter is (member, ...), with one member for each generator, or none; one that differs between people
        is (member, ..., demonstrator). All are learned at the skill learning rate.
        """
        return None

    @abstractmethod
    def observed(self, policy: Policy, expertise: Tensor, context: Context = NO_CONTEXT) -> Distribution:
        """The demonstrator's own distribution of actions; `expertise` has the policy's batch shape."""

    def log_likelihood(self, policy: Any, expertise: PerCount, batch: Batch, module: Any = None) -> PerCount:
        """log p(action | observation, demonstrator) of every count, in nats; `module` is what `build` returned."""
        members = len(expertise)
        context = Context.of(batch, members, module)
        here = self.observed(policy.at(batch.observation_index), expertise, context)
        if batch.taken is None:  # actions are continuous
            return here.log_prob(batch.action)
        action = batch.action if batch.action.ndim == 1 else per_member(batch.action, members)
        return here.log_prob(action).clamp_min(log(torch.finfo(expertise.dtype).tiny))

    def log_likelihood_with_error(
        self, policy: Any, expertise: PerCount, batch: Batch, error: Tensor, module: Any = None
    ) -> PerCount:
        """The same where the policy's means have an error of this variance, which is added to the demonstrator's."""
        observed: Any = self.observed(policy, expertise, Context.of(batch, len(expertise), module))
        return observed.broadened(error).log_prob(batch.action)

    def expertise(self, batch: Batch, module: nn.Module) -> PerCount:
        """rho of every count, where the model `defines_expertise`."""
        raise NotImplementedError(f"{type(self).__name__} says that it defines expertise: give it this method too")

    def log_prior(self, module: nn.Module) -> Float[Tensor, " member"] | None:
        """Logarithm of the prior density of the model's own parameters, up to a constant; None for a flat one."""
        return None

    def anchored(self, module: nn.Module) -> nn.Module:
        """The same parameters with none that depends on who else is there: other people may take the place of some."""
        return module

    def slips(self, module: nn.Module) -> dict[str, Tensor]:
        """The model's own parameters as a person would read them, (member, demonstrator, *value) each."""
        return {}

    def learned(self, slips: Mapping[str, Array], actions: Sequence[str]) -> Learned:
        """What a report says of `slips`, averaged over members: (demonstrator, *value); `actions` are named."""
        return Learned()

    def check(self, sizes: Sizes) -> None:
        """Refuse data that the model does not describe."""
        sizes.check_kind(self, "demonstrator model")
        if sizes.has_legal_actions and not self.knows_legal_actions:
            found = f"{type(self).__name__} knows no legal actions but the data have them"
            raise SettingsError(f"{found}: choose another demonstrator model, or None for the usual one")
        check_context(type(self).__name__, self.context)

    def for_data(self, data: Demonstrations) -> AbstractDemonstratorModel[Policy]:
        """The same model with what was left to the data filled in."""
        return self

    def weighted(self, importance: Array) -> AbstractDemonstratorModel[Policy]:
        """The model for a fit in which the mean weights of demonstrators' steps are `importance`, and not all equal."""
        return self

    def horizons(self, data: Demonstrations) -> tuple[int, ...]:
        """Horizons in steps over which actions may be averaged to rate demonstrators by the variance that the policy
        explains (`ileed.rating.signal`); empty where the model's likelihood of single steps rates them."""
        return ()

    def has_mirror_symmetry(self, sizes: Sizes) -> bool:
        """Whether (rho, pi) and (1 - rho, 1 - pi) are equally likely, so that the data cannot choose between them."""
        return False

    def at_expertise_zero(self, sizes: Sizes) -> str:
        """What a person of no expertise does, in words."""
        return "at random"


@final
@dataclass(frozen=True, kw_only=True)
class UniformMixture(AbstractDemonstratorModel[Choice]):
    """With probability `expertise` follow the policy, otherwise act uniformly at random.

    p(a | s, i) = rho pi(a | s) + (1 - rho) / |A|; Beliaev et al., ICML 2022. Where the data say which actions are
    legal, A is the set of legal actions of that observation. Only ratios of expertise are identified: (rho, pi) and
    (c rho, 1/|A| + (pi - 1/|A|) / c) are equally likely, so a sharp policy is what fixes the absolute level.
    """

    discrete = True
    knows_legal_actions = True

    def observed(self, policy: Categorical, expertise: Tensor, context: Context = NO_CONTEXT) -> Categorical:
        possible = torch.isfinite(policy.logits).to(policy.probs)
        uniform = possible / possible.sum(-1, keepdim=True)
        return categorical(torch.lerp(uniform, policy.probs, expertise.unsqueeze(-1)))

    def log_likelihood(self, policy: Choice, expertise: PerCount, batch: Batch, module: Any = None) -> PerCount:
        log_choices = batch.log_choices
        log_uniform = -log(policy.log_probs.shape[-2]) if log_choices is None else -log_choices
        return _LogMixture.apply(policy.taken(batch), log_uniform, expertise)  # type: ignore[no-untyped-call]


@final
@dataclass(frozen=True, kw_only=True)
class OneVersusRest(AbstractDemonstratorModel[Choice]):
    """With probability `expertise` follow the policy, otherwise take any other action than it would.

    p(a | s, i) = rho pi(a | s) + (1 - rho) (1 - pi(a | s)) / (|A| - 1), which the public code of Beliaev et al., ICML
    2022, optimises. It is `UniformMixture` with expertise on another scale: random behaviour is at rho = 1/|A|, not 0,
    and below are demonstrators who avoid what the policy would do. With two actions (rho, pi) and (1 - rho, 1 - pi) are
    equally likely; see `resolve_mirror_symmetry`.
    """

    discrete = True

    def has_mirror_symmetry(self, sizes: Sizes) -> bool:
        return sizes.actions == 2

    def at_expertise_zero(self, sizes: Sizes) -> str:
        return f"always something else than the policy; acting at random is {1 / sizes.actions:.2f}"

    def observed(self, policy: Categorical, expertise: Tensor, context: Context = NO_CONTEXT) -> Categorical:
        others = (1 - policy.probs) / (policy.probs.shape[-1] - 1)
        return categorical(torch.lerp(others, policy.probs, expertise.unsqueeze(-1)))

    def log_likelihood(self, policy: Choice, expertise: PerCount, batch: Batch, module: Any = None) -> PerCount:
        log_taken = policy.taken(batch)
        others = -log_taken.expm1() / (policy.log_probs.shape[-2] - 1)
        return _log(torch.lerp(others, log_taken.exp(), expertise))


@final
@dataclass(frozen=True, kw_only=True)
class Boltzmann(AbstractDemonstratorModel[Choice]):
    """Act from the policy raised to the power `expertise`, the inverse of a temperature.

    p(a | s, i) = pi(a | s)^rho / sum over b of pi(b | s)^rho: the choice rule of Luce, "Individual Choice Behavior",
    1959, with the expertise of Beliaev et al., ICML 2022, as its exponent. Small slips are likelier than large ones,
    unlike under `UniformMixture`. Expertise shares its scale with the policy's own sharpness: (rho, pi) and
    (rho / c, pi^c renormalised) are equally likely.
    """

    discrete = True
    knows_legal_actions = True

    def observed(self, policy: Categorical, expertise: Tensor, context: Context = NO_CONTEXT) -> Categorical:
        possible = torch.isfinite(policy.logits)
        tempered = torch.where(possible, expertise.unsqueeze(-1) * policy.logits, policy.logits)
        return Categorical(logits=tempered, validate_args=False)

    def log_likelihood(self, policy: Choice, expertise: PerCount, batch: Batch, module: Any = None) -> PerCount:
        tempered = batch.observation_index(policy.log_probs)
        if batch.legal is None:
            tempered = expertise.unsqueeze(-2) * tempered
        else:  # an illegal action's -inf must stay out of the product with expertise 0
            illegal = ~batch.legal[:, batch.observation_index.index]
            tempered = (expertise.unsqueeze(-2) * tempered.masked_fill(illegal, 0)).masked_fill(illegal, -torch.inf)
        return expertise * policy.taken(batch) - tempered.logsumexp(-2)


@final
@dataclass(frozen=True, kw_only=True)
class VarianceScaling(AbstractDemonstratorModel[MixtureSameFamily]):
    """Act around the same means as the policy, with every component's variance divided by `expertise`.

    p(a | s, i) = sum over k of pi_k(s) N(a; mu_k(s), sigma_k(s)^2 / rho); Beliaev et al., ICML 2022. The paper's
    formula can also be read as the standard deviation divided by rho: `scaled="standard_deviation"`. Expertise shares
    its scale with the policy's own standard deviations, so only ratios of expertise mean anything. Expertise below 1e-6
    is taken as 1e-6, where the density is flat for every practical purpose.

    `exempt` names dimensions of the action that everybody draws from the policy as it is: a gripper that is open or
    shut has no spread to scale, and would say of everybody that they never err. None leaves out those that
    `Demonstrations.binary_dimensions` finds in the data.
    """

    scaled: Literal["variance", "standard_deviation"] = "variance"
    exempt: tuple[int, ...] | None = None
    discrete = False

    @classmethod
    def candidates(cls) -> Mapping[int, AbstractDemonstratorModel[Any]]:
        return {}  # without gains and levels of noise, `SignalScaling` is the same model

    def __post_init__(self) -> None:
        one_of("scaled", self.scaled, ("variance", "standard_deviation"))
        if self.exempt is not None:
            exempt = whole_numbers("exempt", self.exempt, rule="name dimensions by their numbers, as in exempt=(6,)")
            object.__setattr__(self, "exempt", exempt)

    def check(self, sizes: Sizes) -> None:
        super().check(sizes)
        if stray := [dimension for dimension in self.exempt or () if not 0 <= dimension < sizes.actions]:
            raise SettingsError(
                f"exempt names dimension {stray[0]} but actions have {sizes.actions}, numbered from 0: leave it out"
            )

    def for_data(self, data: Demonstrations) -> VarianceScaling:
        return replace(self, exempt=data.binary_dimensions) if self.exempt is None else self

    def at_expertise_zero(self, sizes: Sizes) -> str:
        return "no precision at all"

    def observed(
        self, policy: MixtureSameFamily, expertise: Tensor, context: Context = NO_CONTEXT
    ) -> MixtureSameFamily:
        logits, means, standard_deviations = mixture_parts(policy)
        factor = expertise.clamp_min(1e-6)[..., None, None]
        wider = factor.rsqrt() if self.scaled == "variance" else factor.reciprocal()
        if self.exempt:
            wider = torch.where(among(self.exempt, standard_deviations), 1.0, wider)
        return mixture(logits, means, standard_deviations * wider)

    def log_likelihood(self, policy: Any, expertise: PerCount, batch: Batch, module: Any = None) -> PerCount:
        if len(expertise) == 1 or policy.batch_shape[0] > 1:
            return super().log_likelihood(policy, expertise, batch, module)
        # one policy at many points of expertise: what depends on the dimensions is the same at all of them
        logits, means, standard_deviations = mixture_parts(policy.at(batch.observation_index))
        squares = ((batch.action.unsqueeze(-2) - means) / standard_deviations).square()
        exempt = among(self.exempt, squares) if self.exempt else torch.zeros_like(squares[0, 0, 0], dtype=torch.bool)
        fixed = logits - standard_deviations.log().sum(-1) - 0.5 * squares[..., exempt].sum(-1)
        scaled = squares[..., ~exempt].sum(-1)
        precision = expertise.clamp_min(1e-6).unsqueeze(-1)
        precision = precision if self.scaled == "variance" else precision.square()
        free, count = (~exempt).sum(), squares.shape[-1]
        each = fixed + 0.5 * (free * precision.log() - precision * scaled - count * log(2 * pi))
        return each.logsumexp(-1)

    def log_likelihood_with_error(
        self, policy: Any, expertise: PerCount, batch: Batch, error: Tensor, module: Any = None
    ) -> PerCount:
        logits, means, standard_deviations = mixture_parts(policy)
        # (dimension, mode, row): the sum over dimensions then runs along contiguous memory, one point at a time
        squares = (batch.action[:, None] - means[0]).square().permute(2, 1, 0).contiguous()
        variances, errors = (part[0].permute(2, 1, 0).contiguous() for part in (standard_deviations.square(), error))
        exempt = range(0) if self.exempt is None else [dimension % len(squares) for dimension in self.exempt]
        weights = logits[0].log_softmax(-1).T - 0.5 * len(squares) * log(2 * pi)
        wider = expertise.clamp_min(1e-6).reciprocal()
        wider = wider if self.scaled == "variance" else wider.square()
        found = []
        for factor in wider:
            each, volume = weights.clone(), torch.ones_like(weights)
            for dimension, square in enumerate(squares):
                scale = torch.ones_like(factor) if dimension in exempt else factor
                variance = torch.addcmul(errors[dimension], variances[dimension], scale)
                each.sub_(square / variance, alpha=0.5)
                volume.mul_(variance)
                if dimension % 8 == 7:  # a logarithm costs as much as all else; of more factors it might overflow
                    each.sub_(volume.log_(), alpha=0.5)
                    volume.fill_(1)
            found.append(each.sub_(volume.log_(), alpha=0.5).logsumexp(0))
        return torch.stack(found)


def categorical(probs: Tensor) -> Categorical:
    """A categorical distribution from normalised probabilities: exact for faint ones, and no NaN gradient at zero."""
    possible = probs > 0
    logits = torch.where(possible, torch.where(possible, probs, 1.0).log(), -torch.inf)
    return Categorical(logits=logits, validate_args=False)


def _log(probability: Tensor) -> Tensor:
    """Logarithm that stays finite at zero: the smallest normal number, added, changes nothing else."""
    return (probability + torch.finfo(probability.dtype).tiny).log()


class _LogMixture(torch.autograd.Function):
    """log(rho pi + (1 - rho) / |A|) from log pi, -log |A| and rho; the gradient is torch's own, in less memory."""

    @staticmethod
    def forward(context: Any, log_taken: Tensor, log_uniform: Tensor | float, expertise: Tensor) -> Tensor:
        ratio = (log_taken - log_uniform).exp_()  # pi |A|: at most |A|, so nothing overflows
        mixed = torch.lerp(ratio.new_ones(()), ratio, expertise).add_(torch.finfo(ratio.dtype).tiny)
        context.save_for_backward(ratio, expertise, mixed)
        return mixed.log().add_(log_uniform)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, Tensor]:
        ratio, expertise, mixed = context.saved_tensors
        gradient = gradients[0] / mixed
        to_expertise = ((ratio - 1) * gradient).sum_to_size(expertise.shape)
        return gradient.mul_(expertise).mul_(ratio).sum_to_size(ratio.shape), None, to_expertise
