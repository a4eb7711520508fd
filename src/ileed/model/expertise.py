"""Expertise: how closely each demonstrator follows the policy, and where; and latent dynamics, which shape it.

rho(s, i) = sigmoid(<f(s), w_i>), with f(s) the embedding of an observation and w_i that of demonstrator i; or, for
demonstrators who learn or tire (`Drift`), rho(i, n) with n the number of the demonstrator's episode.
Reference: Beliaev et al., ICML 2022.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from math import inf, log
from typing import final

import torch
from torch import Tensor, nn

from ileed._torch import Bool, Float
from ileed.data import Demonstrations
from ileed.errors import SettingsError, number, text, true_or_false, whole_number
from ileed.model.batch import Batch, PerCount, Sizes, Transitions, of_members, per_member
from ileed.model.nets import MLP, Generators, uniform
from ileed.model.policies import hidden_layers


class AbstractExpertise(ABC):
    """Settings of an expertise model: a frozen dataclass whose `build` makes the module with f and w.

    Laws: expertise is in [0, 1]; each member's parameters are drawn from that member's generator alone; `embedding` is
    f, (member, dimension, unique observation), and the module called with it gives rho, (member, count).
    """

    estimates_expertise: bool = True
    """Whether expertise is estimated; otherwise it is one for all demonstrators: behaviour cloning."""
    depends_on_state: bool = True
    """Whether a demonstrator's expertise may differ between observations."""
    depends_on_episode: bool = False
    """Whether it may differ between a demonstrator's episodes: the module then reads `episode_number`, (*group, count),
    from the context of a batch."""
    can_be_mirrored: bool = False
    """Whether `mirror` of the module replaces rho by 1 - rho."""

    @property
    def distinguishes_demonstrators(self) -> bool:
        """Whether two demonstrators' expertise may differ at the same observation."""
        return self.estimates_expertise

    @property
    def measures_from_mean(self) -> bool:
        """Whether per-demonstrator parameters are mean-centred, and so depend on the other demonstrators."""
        return False

    @property
    def skill_column(self) -> str | None:
        """The skill column of the data that expertise reads, or None."""
        return None

    @property
    def embedding_dimension(self) -> int | None:
        """The dimension of the learned embedding, or None."""
        return None

    @property
    def practice_episodes(self) -> int | None:
        """N of the learning curve sigmoid(w_i0 + w_i1 log(1 + n) / log(N)), or None without learning curves."""
        return None

    def check(self, sizes: Sizes) -> None:
        """Refuse data that this expertise cannot be estimated from."""
        if sizes.demonstrators == 1 and self.estimates_expertise:
            remedy = "use bc() (expertise=Perfect(), at the command --expertise Perfect), or add demonstrators"
            raise SettingsError(f"there is one demonstrator, and expertise is estimated by comparing several: {remedy}")
        if self.skill_column is not None and not sizes.skills:
            raise SettingsError(f"{type(self).__name__}({self.skill_column!r}) needs that column in the data's skills")

    def for_data(self, data: Demonstrations) -> AbstractExpertise:
        """The same expertise with data-dependent defaults filled in."""
        return self

    @abstractmethod
    def build(self, sizes: Sizes, generators: Generators) -> ExpertiseNet:
        """The module with f and w, with one member per generator."""


class ExpertiseNet(nn.Module, ABC):
    """f and w of every member; `skill` holds w."""

    skill: nn.Parameter

    def embedding(self, batch: Batch) -> Tensor | None:
        """f of every unique observation, or None if expertise does not depend on the observation."""
        return None

    @abstractmethod
    def forward(self, embedding: Tensor | None, batch: Batch) -> PerCount:
        """rho of every count."""

    def skill_parameters(self) -> list[nn.Parameter]:
        """The parameters that are learned at the skill learning rate."""
        return [self.skill]

    def log_prior(self) -> Float[Tensor, " member"] | None:
        """Log prior density of the parameters, up to a constant; None for a flat prior."""
        return None

    @torch.no_grad()
    def mirror(self, members: Bool[Tensor, " member"]) -> None:
        """Replace rho by 1 - rho in these members."""
        self.skill[members] *= -1


@final
@dataclass(frozen=True, kw_only=True)
class Perfect(AbstractExpertise):
    """Every demonstrator follows the policy: rho(s, i) = 1. The joint model is then behaviour cloning."""

    estimates_expertise = False
    depends_on_state = False

    def build(self, sizes: Sizes, generators: Generators) -> ExpertiseNet:
        return _Perfect(len(generators))


@final
@dataclass(frozen=True, kw_only=True)
class Constant(AbstractExpertise):
    """One number per demonstrator, the same at every observation.

    rho(s, i) = sigmoid(w_i), the state-independent variant of Beliaev et al., ICML 2022.
    """

    depends_on_state = False
    can_be_mirrored = True

    def build(self, sizes: Sizes, generators: Generators) -> ExpertiseNet:
        return _Constant(sizes, generators)


@final
@dataclass(frozen=True, kw_only=True)
class Embedded(AbstractExpertise):
    """Expertise that depends on the observation through a learned embedding of `dim` dimensions.

    rho(s, i) = sigmoid(<f(s), w_i>), with f a multi-layer perceptron; Beliaev et al., ICML 2022. `shared=True` gives
    all demonstrators one w: the paper's demonstrator-independent ablation.
    """

    dim: int = 2
    hidden: tuple[int, ...] = (4, 4)
    shared: bool = False
    can_be_mirrored = True

    def __post_init__(self) -> None:
        rule = "an embedding needs a whole number of dimensions, one or more"
        object.__setattr__(self, "dim", whole_number("dim", self.dim, least=1, rule=rule))
        object.__setattr__(self, "hidden", hidden_layers(self.hidden))
        object.__setattr__(self, "shared", true_or_false("shared", self.shared))

    @property
    def distinguishes_demonstrators(self) -> bool:
        return not self.shared

    @property
    def embedding_dimension(self) -> int:
        return self.dim

    def build(self, sizes: Sizes, generators: Generators) -> ExpertiseNet:
        body = MLP((sizes.inputs, *self.hidden, self.dim), generators=generators)
        return _ByState((self.dim, 1 if self.shared else sizes.demonstrators), generators, body)


@final
@dataclass(frozen=True)
class Skills(AbstractExpertise):
    """Expertise with a known embedding: a skill column of the data.

    rho(s, i) = sigmoid(<f(s), w_i>), with f(s) given. The column holds a label for each step (a phase or task, one
    skill each), or a weight for each of several skills. For this case Beliaev et al., ICML 2022, prove that the policy
    can be recovered.
    """

    column: str
    can_be_mirrored = True

    def __post_init__(self) -> None:
        text("column", self.column)

    @property
    def skill_column(self) -> str:
        return self.column

    def build(self, sizes: Sizes, generators: Generators) -> ExpertiseNet:
        return _ByState((sizes.skills, sizes.demonstrators), generators)


@final
@dataclass(frozen=True, kw_only=True)
class Difficulty(AbstractExpertise):
    """An ability of each demonstrator, an easiness of each state, and their interaction.

    rho(s, i) = sigmoid(w_i + d(s) + <f(s), v_i>), with d and f a multi-layer perceptron. Without f this is the model of
    Rasch, "Probabilistic Models for Some Intelligence and Attainment Tests", 1960, and of the labellers of Whitehill et
    al., NeurIPS 2009. The prior of every v_i is Gaussian with mean zero and variance 1 / `shrinkage`: by default
    demonstrators differ in one number only.

    Without `easiness`, rho(s, i) = sigmoid(w_i + <f(s), v_i - mean over j of v_j>): demonstrators differ by state, and
    the mean of their log-odds is the same in all states. Under `VarianceScaling`, d(s) is a standard deviation that
    depends on the state, and a likelihood that learns one fits the means less where it is large: Seitzer et al., "On
    the Pitfalls of Heteroscedastic Uncertainty Estimation with Probabilistic Neural Networks", ICLR 2022.
    """

    dim: int = 2
    hidden: tuple[int, ...] = (4, 4)
    shrinkage: float = 10.0
    easiness: bool = True
    """Whether there is d(s); without it, v_i is centred on the mean over demonstrators."""

    def __post_init__(self) -> None:
        rule = "an interaction needs a whole number of dimensions, zero or more"
        object.__setattr__(self, "dim", whole_number("dim", self.dim, least=0, rule=rule))
        object.__setattr__(self, "hidden", hidden_layers(self.hidden))
        object.__setattr__(self, "shrinkage", _shrinkage(self.shrinkage))
        object.__setattr__(self, "easiness", true_or_false("easiness", self.easiness))
        if not (self.dim or self.easiness):
            raise SettingsError("dim=0 with easiness=False leaves one number per demonstrator: use Constant()")

    @property
    def measures_from_mean(self) -> bool:
        return not self.easiness

    def build(self, sizes: Sizes, generators: Generators) -> ExpertiseNet:
        body = MLP((sizes.inputs, *self.hidden, self.easiness + self.dim), generators=generators)
        return _WithDifficulty((1 + self.dim, sizes.demonstrators), generators, body, self)


@final
@dataclass(frozen=True, kw_only=True)
class Drift(AbstractExpertise):
    """Expertise that changes from episode to episode, as demonstrators learn or tire.

    rho(i, n) = sigmoid(w_i0 + w_i1 g(n)) in the demonstrator's episode n = 0, 1, ..., with the practice g(n) =
    log(1 + n) / log(N), from 0 in the first episode to 1 in the N-th. The odds of following the policy are thus a power
    of the number of episodes, which is the power law of practice (Newell and Rosenbloom, "Mechanisms of skill
    acquisition and the law of practice", 1981); it has no time constant, which few episodes could not identify. The
    prior of w_i1 is Gaussian around the population mean with variance 1 / `shrinkage`, and that mean has a standard
    normal prior: with few episodes, the estimate shrinks towards the population, and the population towards no change.
    If every w_i1 is zero, this is `Constant`.
    """

    episodes: int | None = None
    """N, the number of episodes over which w_i1 is the change; None for the largest number of any demonstrator."""
    shrinkage: float = 1.0
    """How strongly changes shrink towards their mean: the precision of the prior of w_i1, in logits."""
    depends_on_state = False
    depends_on_episode = True
    can_be_mirrored = True

    def __post_init__(self) -> None:
        if self.episodes is not None:
            rule = "drift is a change between two episodes or more, a whole number"
            object.__setattr__(self, "episodes", whole_number("episodes", self.episodes, least=2, rule=rule))
        object.__setattr__(self, "shrinkage", _shrinkage(self.shrinkage))

    @property
    def practice_episodes(self) -> int | None:
        return self.episodes

    def for_data(self, data: Demonstrations) -> Drift:
        most = int(data.episode_numbers.max()) + 1
        if most < 2:
            remedy = "use Constant(), or add episodes"
            raise SettingsError(
                f"Drift compares episodes of a demonstrator, and none has two: {remedy}", code="drift-episodes"
            )
        return self if self.episodes is not None else replace(self, episodes=most)

    def build(self, sizes: Sizes, generators: Generators) -> ExpertiseNet:
        return _Drifting(sizes, generators, self)


def practice(number: Tensor, episodes: int) -> Tensor:
    """g of episode numbers, which begin at 0: the fraction of `episodes` completed, on a logarithmic scale."""
    return torch.log1p(number) / log(episodes)


@final
class _Perfect(ExpertiseNet):
    def __init__(self, members: int) -> None:
        super().__init__()
        self.skill = nn.Parameter(torch.zeros(members, 0))

    def forward(self, embedding: Tensor | None, batch: Batch) -> PerCount:
        return batch.observations.new_ones(len(self.skill), batch.observation_index.index.shape[-1])


@final
class _Constant(ExpertiseNet):
    def __init__(self, sizes: Sizes, generators: Generators) -> None:
        super().__init__()
        self.skill = nn.Parameter(uniform((sizes.demonstrators,), 1.0, generators))

    def forward(self, embedding: Tensor | None, batch: Batch) -> PerCount:
        return batch.demonstrator(self.skill.sigmoid())


@final
class _ByState(ExpertiseNet):
    """The sigmoid of the product of both embeddings; without a network, f is the batch's skills."""

    def __init__(self, shape: tuple[int, int], generators: Generators, body: MLP | None = None) -> None:
        super().__init__()
        self.body = body
        self.skill = nn.Parameter(uniform(shape, 1.0, generators))

    def embedding(self, batch: Batch) -> Float[Tensor, "*member dimension observation"]:
        if self.body is not None:
            return self.body(batch.observations)
        assert batch.skills is not None
        return batch.skills.unsqueeze(0) if batch.skills.ndim == 2 else per_member(batch.skills, len(self.skill))

    def forward(self, embedding: Tensor | None, batch: Batch) -> PerCount:
        assert embedding is not None
        pairs = batch.pairs
        is_shared = self.skill.shape[-1] == 1
        skill = self.skill if is_shared else pairs.demonstrator(self.skill)
        return pairs.pair_index((pairs.observation_index(embedding) * skill).sum(-2).sigmoid())


@final
class _WithDifficulty(ExpertiseNet):
    """The rows of `skill` are w and v; the outputs of the network are d, unless there is no easiness, and f."""

    def __init__(self, shape: tuple[int, int], generators: Generators, body: MLP, settings: Difficulty) -> None:
        super().__init__()
        self.body, self.shrinkage, self.has_easiness = body, settings.shrinkage, settings.easiness
        self.skill = nn.Parameter(uniform(shape, 1.0, generators))

    def embedding(self, batch: Batch) -> Float[Tensor, "member dimension observation"]:
        return self.body(batch.observations)

    def forward(self, embedding: Tensor | None, batch: Batch) -> PerCount:
        assert embedding is not None
        pairs = batch.pairs
        state = pairs.observation_index(embedding)
        if self.has_easiness:
            own = pairs.demonstrator(self.skill)
            logit = state[:, 0] + own[:, 0] + (state[:, 1:] * own[:, 1:]).sum(-2)
        else:
            ability, interaction = self.skill[:, :1], self.skill[:, 1:]
            centred = interaction - interaction.mean(-1, keepdim=True)
            own = pairs.demonstrator(torch.cat([ability, centred], dim=1))
            logit = own[:, 0] + (state * own[:, 1:]).sum(-2)
        return pairs.pair_index(logit.sigmoid())

    def log_prior(self) -> Float[Tensor, " member"]:
        # of v before centring, so that its mean is shrunk towards zero too
        return -0.5 * self.shrinkage * self.skill[:, 1:].square().flatten(1).sum(1)


@final
class _Drifting(ExpertiseNet):
    """The rows of `skill` are w_i0 and the difference of w_i1 from `common`, the population mean."""

    def __init__(self, sizes: Sizes, generators: Generators, settings: Drift) -> None:
        super().__init__()
        self.episodes, self.shrinkage = settings.episodes or 2, settings.shrinkage
        level = uniform((1, sizes.demonstrators), 1.0, generators)
        self.skill = nn.Parameter(torch.cat([level, torch.zeros_like(level)], dim=1))
        self.common = nn.Parameter(level.new_zeros(len(level), 1))

    def forward(self, embedding: Tensor | None, batch: Batch) -> PerCount:
        own, number = batch.demonstrator(self.skill), batch.context["episode_number"]
        done = of_members(practice(number.to(own.dtype), self.episodes), len(own))
        return (own[:, 0] + (self.common + own[:, 1]) * done).sigmoid()

    def skill_parameters(self) -> list[nn.Parameter]:
        return [self.skill, self.common]

    def log_prior(self) -> Float[Tensor, " member"]:
        return -0.5 * (self.shrinkage * self.skill[:, 1].square().sum(1) + self.common.square().sum(1))

    @torch.no_grad()
    def mirror(self, members: Bool[Tensor, " member"]) -> None:
        self.skill[members] *= -1
        self.common[members] *= -1


def _shrinkage(value: float) -> float:
    rule = "it is the precision of a prior: pass a number, zero or more"
    return number("shrinkage", value, least=0, below=inf, rule=rule)


@final
@dataclass(frozen=True, kw_only=True)
class LatentDynamics:
    """An auxiliary loss on the embedding f of `Embedded`: the error of a network g that predicts the next embedding.

    weight * mean over transitions (s, a, s') of smooth-L1(g(f(s), a), f(s')): DeepMDP (Gelada et al., ICML 2019)
    without its reward, as in Beliaev et al., ICML 2022.
    """

    weight: float = 1.0
    hidden: tuple[int, ...] = (4, 4)

    def __post_init__(self) -> None:
        name, rule = "the weight of the latent dynamics", "it must be a number, zero or more"
        weight = number(name, self.weight, least=0, below=inf, rule=rule)
        object.__setattr__(self, "weight", weight)
        object.__setattr__(self, "hidden", hidden_layers(self.hidden))

    def build(self, dim: int, sizes: Sizes, generators: Generators) -> LatentDynamicsNet:
        return LatentDynamicsNet(self, dim, sizes, generators)


@final
class LatentDynamicsNet(nn.Module):
    """g of every member."""

    def __init__(self, settings: LatentDynamics, dim: int, sizes: Sizes, generators: Generators) -> None:
        super().__init__()
        self.body = MLP((dim + sizes.actions, *settings.hidden, dim), generators=generators)

    def forward(
        self, embedding: Float[Tensor, "member dimension observation"], transitions: Transitions
    ) -> Float[Tensor, " member"]:
        """The weighted mean loss over transitions, before it is multiplied by `weight`."""
        action, members = transitions.action, len(embedding)
        action = action.expand(members, -1, -1) if action.ndim == 2 else per_member(action, members)
        predicted = self.body(torch.cat([transitions.observation_index(embedding), action], dim=-2))
        following = transitions.next_observation_index(embedding)
        return transitions.mean(nn.functional.smooth_l1_loss(predicted, following, reduction="none").mean(-2))
