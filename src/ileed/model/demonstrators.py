"""Demonstrator models: how a demonstrator of given expertise acts, given the policy.

`observed` defines a model for all actions at once. `log_likelihood` is the same quantity at the counted actions and may
be computed faster; `ileed.testing.check_demonstrator_model` checks that the two agree.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log, pi
from typing import Any, Generic, Literal, NamedTuple, TypeVar, final

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, MixtureSameFamily

from ileed._torch import Float
from ileed.data import Array, Demonstrations
from ileed.data.collapsing import check_context
from ileed.errors import SettingsError, one_of, whole_numbers
from ileed.model.batch import Batch, PerCount, Sizes, of_members, per_member
from ileed.model.distributions import Choice, among, mixture, mixture_parts
from ileed.model.nets import Generators, Pick

Policy = TypeVar("Policy", bound=Distribution)


@final
@dataclass(frozen=True, eq=False)
class Context:
    """What a demonstrator model knows of each row besides the policy and the expertise.

    `context["previous_action"]` is a column that the model declares, (row,) or (row, value), or with a leading member
    axis. `context.parameter("slip")` is a parameter of the module that its `build` returned, and `context.own("bias")`
    the value of such a parameter for each row's demonstrator.
    """

    module: nn.Module | None = None
    demonstrator: Pick | None = None
    columns: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, batch: Batch, members: int, module: nn.Module | None) -> Context:
        """The context of a batch's counts."""
        grouped = batch.demonstrator.index.ndim == 2
        columns = {}
        for name, column in batch.context.items():
            rows_first = column.mT if column.ndim == 2 + grouped else column
            columns[name] = per_member(rows_first, members) if grouped and len(column) > 1 else rows_first
        return cls(module, batch.demonstrator, columns)

    def __getitem__(self, name: str) -> Tensor:
        if name in self.columns:
            return self.columns[name]
        remedy = "declare it in the demonstrator model's `context`, and use the model where previous steps are known"
        raise SettingsError(f"there is no context {name!r} here: {remedy}", code="context-missing")

    def parameter(self, name: str) -> nn.Parameter:
        """A parameter of the model's module."""
        if self.module is not None:
            return self.module.get_parameter(name)
        remedy = "return a module with it from the model's `build`, and use the model where it was fitted"
        raise SettingsError(f"there is no parameter {name!r} here: {remedy}", code="parameter-missing")

    def own(self, name: str) -> Float[Tensor, "member row *value"]:
        """The value of a (member, *value, demonstrator) parameter for each row's demonstrator."""
        return self.at_rows(self.parameter(name))

    def at_rows(self, values: Float[Tensor, "member *value demonstrator"]) -> Float[Tensor, "member row *value"]:
        """The values of each row's demonstrator; (member, 1, *value) if all demonstrators share them."""
        assert self.demonstrator is not None  # a context with parameters knows the demonstrators
        is_shared = values.shape[-1] == 1 < self.demonstrator.entries
        return (values if is_shared else self.demonstrator(values)).movedim(-1, 1)


NO_CONTEXT = Context()


class LearnedColumn(NamedTuple):
    """A learned parameter, one number or word per demonstrator, with a title and a name for files."""

    title: str
    name: str
    values: Sequence[float] | Sequence[str]


class Learned(NamedTuple):
    """What a demonstrator model learned about demonstrators, for reports: sentences, and columns of one table."""

    sentences: Sequence[str] = ()
    columns: Sequence[LearnedColumn] = ()
    caption: str = "Learned parameters, most expert first"


class AbstractDemonstratorModel(ABC, Generic[Policy]):
    """How expertise in [0, 1] turns a policy into a demonstrator's behaviour: a frozen dataclass of settings.

    Only `observed` is required. A model may have parameters (`build`), depend on previous steps (`context`), or define
    expertise by its parameters (`defines_expertise`).

    Laws: `observed` is normalised, and equals the policy at expertise one unless `is_policy_at_expertise_one` is False;
    nothing is NaN at expertise zero or one, nor where the policy gives an action no probability; `log_likelihood`
    equals `observed(...).log_prob(action)` at every count; each member's parameters are drawn from that member's
    generator alone.
    """

    discrete: bool
    """Whether the model describes discrete actions."""
    context: tuple[str, ...] = ()
    """Columns that the model reads besides observation and demonstrator: keys of `ileed.data.collapsing.CONTEXT`."""
    defines_expertise: bool = False
    """Whether expertise is a function of the model's parameters, and not an input."""
    is_policy_at_expertise_one: bool = True
    """Whether `observed` is the policy at expertise one. False where demonstrators have a bias at any expertise."""
    measures_from_mean: bool = False
    """Whether per-demonstrator parameters are mean-centred, and so depend on the other demonstrators."""
    knows_legal_actions: bool = False
    """Whether illegal actions have probability zero; other models refuse data with legal actions."""
    actions_can_be_exchanged: bool = False
    """Whether a policy with permuted actions can be equally likely, because the model's parameters compensate. Among
    equally likely members, the one that demonstrators follow most is then chosen."""

    @classmethod
    def candidates(cls) -> Mapping[int, AbstractDemonstratorModel[Any]]:
        """What `ileed.compare` tries by default, by complexity: the least complex of equally good candidates wins."""
        return {0: cls()}

    def build(self, sizes: Sizes, generators: Generators) -> nn.Module | None:
        """The model's parameters, or None.

        Every parameter is (member, ...), with one member per generator; one that differs between demonstrators is
        (member, ..., demonstrator). All are learned at the skill learning rate.
        """
        return None

    @abstractmethod
    def observed(self, policy: Policy, expertise: Tensor, context: Context = NO_CONTEXT) -> Distribution:
        """The distribution of the demonstrator's actions; `expertise` has the policy's batch shape."""

    def log_likelihood(self, policy: Any, expertise: PerCount, batch: Batch, module: Any = None) -> PerCount:
        """log p(action | observation, demonstrator) of every count, in nats; `module` is what `build` returned."""
        members = len(expertise)
        here = self.observed(policy.at(batch.observation_index), expertise, Context.of(batch, members, module))
        if batch.taken is None:  # continuous actions
            return here.log_prob(batch.action)
        log_likelihood = here.log_prob(of_members(batch.action, members))
        return log_likelihood.clamp_min(log(torch.finfo(expertise.dtype).tiny))

    def log_likelihood_with_error(
        self, policy: Any, expertise: PerCount, batch: Batch, error: Tensor, module: Any = None
    ) -> PerCount:
        """`log_likelihood` where `error` is the variance of the policy's means, added to the demonstrator's own."""
        observed: Any = self.observed(policy, expertise, Context.of(batch, len(expertise), module))
        return observed.broadened(error).log_prob(batch.action)

    def expertise(self, batch: Batch, module: nn.Module) -> PerCount:
        """rho of every count, where the model `defines_expertise`."""
        raise NotImplementedError(f"{type(self).__name__} defines expertise: implement expertise(batch, module)")

    def log_prior(self, module: nn.Module) -> Float[Tensor, " member"] | None:
        """Log prior density of the model's parameters, up to a constant; None for a flat prior."""
        return None

    def anchored(self, module: nn.Module) -> nn.Module:
        """The module with parameters that no longer depend on the other demonstrators, so that these may change."""
        return module

    def slips(self, module: nn.Module) -> dict[str, Tensor]:
        """The parameters on a readable scale, (member, demonstrator, *value) each."""
        return {}

    def learned(self, slips: Mapping[str, Array], actions: Sequence[str]) -> Learned:
        """What a report says about `slips` averaged over members, (demonstrator, *value); `actions` are names."""
        return Learned()

    def check(self, sizes: Sizes) -> None:
        """Refuse data that the model does not describe."""
        sizes.check_kind(self, "demonstrator model")
        if sizes.has_legal_actions and not self.knows_legal_actions:
            found = f"{type(self).__name__} knows no legal actions but the data have them"
            raise SettingsError(f"{found}: choose another demonstrator model, or None for the usual one")
        check_context(type(self).__name__, self.context)

    def for_data(self, data: Demonstrations) -> AbstractDemonstratorModel[Policy]:
        """The same model with data-dependent defaults filled in."""
        return self

    def weighted(self, importance: Array) -> AbstractDemonstratorModel[Policy]:
        """The model for a weighted fit; `importance` is the mean weight of each demonstrator's steps."""
        return self

    def horizons(self, data: Demonstrations) -> tuple[int, ...]:
        """Horizons in steps over which actions may be averaged to rate demonstrators (`ileed.rating.signal`).

        Empty where demonstrators are rated by the likelihood of single steps.
        """
        return ()

    def has_mirror_symmetry(self, sizes: Sizes) -> bool:
        """Whether (rho, pi) and (1 - rho, 1 - pi) are equally likely, so that the data cannot choose between them."""
        return False

    def at_expertise_zero(self, sizes: Sizes) -> str:
        """What a demonstrator of expertise zero does, in words."""
        return "at random"


@final
@dataclass(frozen=True, kw_only=True)
class UniformMixture(AbstractDemonstratorModel[Choice]):
    """With probability `expertise` follow the policy, otherwise act uniformly at random.

    p(a | s, i) = rho pi(a | s) + (1 - rho) / |A|; Beliaev et al., ICML 2022. Where the data say which actions are
    legal, A is the set of legal actions at that observation. Only ratios of expertise are identified: (rho, pi) and
    (c rho, 1/|A| + (pi - 1/|A|) / c) are equally likely, so only a sharp policy fixes the absolute level.
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
        ratio = (policy.taken(batch) - log_uniform).exp()  # pi |A|: at most |A|, so nothing overflows
        return _log(torch.lerp(ratio.new_ones(()), ratio, expertise)) + log_uniform


@final
@dataclass(frozen=True, kw_only=True)
class OneVersusRest(AbstractDemonstratorModel[Choice]):
    """With probability `expertise` follow the policy, otherwise take any action but the policy's.

    p(a | s, i) = rho pi(a | s) + (1 - rho) (1 - pi(a | s)) / (|A| - 1), which the public code of Beliaev et al., ICML
    2022, optimises. It is `UniformMixture` with expertise on another scale: random behaviour has rho = 1/|A| instead of
    0, and demonstrators below that avoid what the policy would do. With two actions (rho, pi) and (1 - rho, 1 - pi) are
    equally likely; see `resolve_mirror_symmetry`.
    """

    discrete = True

    def has_mirror_symmetry(self, sizes: Sizes) -> bool:
        return sizes.actions == 2

    def at_expertise_zero(self, sizes: Sizes) -> str:
        return f"never as the policy would; acting at random is {1 / sizes.actions:.2f}"

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
    """Act from the policy raised to the power `expertise`, an inverse temperature.

    p(a | s, i) = pi(a | s)^rho / sum over b of pi(b | s)^rho: the choice rule of Luce, "Individual Choice Behavior",
    1959, with the expertise of Beliaev et al., ICML 2022, as its exponent. Unlike under `UniformMixture`, small
    mistakes are likelier than large ones. Expertise shares its scale with the policy's sharpness: (rho, pi) and
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
        else:  # the product of expertise 0 and an illegal action's -inf would be NaN
            illegal = ~batch.legal[:, batch.observation_index.index]
            tempered = (expertise.unsqueeze(-2) * tempered.masked_fill(illegal, 0)).masked_fill(illegal, -torch.inf)
        return expertise * policy.taken(batch) - tempered.logsumexp(-2)


@final
@dataclass(frozen=True, kw_only=True)
class VarianceScaling(AbstractDemonstratorModel[MixtureSameFamily]):
    """Act around the policy's means, with every component's variance divided by `expertise`.

    p(a | s, i) = sum over k of pi_k(s) N(a; mu_k(s), sigma_k(s)^2 / rho); Beliaev et al., ICML 2022. The paper's
    formula can also be read as dividing the standard deviation by rho: `scaled="standard_deviation"`. Expertise shares
    its scale with the policy's standard deviations, so only ratios of expertise are meaningful. Expertise below 1e-6 is
    taken as 1e-6, where the density is flat for every practical purpose.

    `exempt` lists action dimensions that all demonstrators draw from the policy as it is. A binary gripper has no
    spread to scale, and would make everyone look perfect. None exempts `Demonstrations.binary_dimensions`.
    """

    scaled: Literal["variance", "standard_deviation"] = "variance"
    exempt: tuple[int, ...] | None = None
    discrete = False

    @classmethod
    def candidates(cls) -> Mapping[int, AbstractDemonstratorModel[Any]]:
        return {}  # `SignalScaling` without gains and noise levels is the same model

    def __post_init__(self) -> None:
        one_of("scaled", self.scaled, ("variance", "standard_deviation"))
        if self.exempt is not None:
            exempt = whole_numbers("exempt", self.exempt, rule="pass numbers of action dimensions, as in exempt=(6,)")
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
        # one policy at many points of expertise: sums over dimensions are the same at all of them
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
        weights = logits[0].log_softmax(-1).T - 0.5 * len(squares) * log(2 * pi)
        wider = expertise.clamp_min(1e-6).reciprocal()
        wider = wider if self.scaled == "variance" else wider.square()
        found = []
        for factor in wider:
            each, volume = weights.clone(), torch.ones_like(weights)
            for dimension, square in enumerate(squares):
                scale = torch.ones_like(factor) if dimension in (self.exempt or ()) else factor
                variance = torch.addcmul(errors[dimension], variances[dimension], scale)
                each.sub_(square / variance, alpha=0.5)
                volume.mul_(variance)
                if dimension % 8 == 7:  # one logarithm per eight factors: it costs most, and more might overflow
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
    """Logarithm that stays finite at zero; adding the smallest normal number changes no other value."""
    return (probability + torch.finfo(probability.dtype).tiny).log()
