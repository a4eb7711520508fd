"""Demonstrator models with learned slips: what demonstrators do where they do not follow the policy.

Each is `UniformMixture` with another distribution of slips, p(a | s, i) = rho pi(a | s) + (1 - rho) slip(a). The
distribution is learned under a prior that shrinks it towards uniform slips, or towards those of the population.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from ileed._torch import Float
from ileed.data import Array
from ileed.errors import number, true_or_false
from ileed.model.batch import Batch, PerCount, Sizes, of_members
from ileed.model.demonstrators import (
    NO_CONTEXT,
    AbstractDemonstratorModel,
    Context,
    Learned,
    LearnedColumn,
    categorical,
)
from ileed.model.distributions import Choice
from ileed.model.nets import Generators

_LEARNED = (
    "Where a demonstrator does not follow the policy, the demonstrator model says what they do instead, as learned "
    "from their steps. The slips to train first are frequent and particular to one demonstrator."
)
_CAPTION = "What demonstrators do where they do not follow the policy, most expert first"


class _Slips(nn.Module):
    """Named parameters of a model, initially zero: slips are then uniform and the same for all demonstrators."""

    def __init__(self, members: int, shapes: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(members, *shape)))


@final
@dataclass(frozen=True, kw_only=True)
class BiasedMixture(AbstractDemonstratorModel[Choice]):
    """With probability `expertise` follow the policy, otherwise act by a habit that ignores the state.

    p(a | s, i) = rho pi(a | s) + (1 - rho) b_i(a), with b_i learned for each demonstrator, or one b for all (`shared`).
    The prior of b_i is a Dirichlet distribution with its mode at uniform slips and `pseudo_counts` assumed slips to
    each action. Without states this is MACE: Hovy et al., "Learning whom to trust with MACE", NAACL 2013.
    """

    shared: bool = False
    """Whether all demonstrators have the same habit."""
    pseudo_counts: float = 1.0
    """Slips to each action that the prior assumes; 0 for none."""
    discrete = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "shared", true_or_false("shared", self.shared))
        object.__setattr__(self, "pseudo_counts", _pseudo_counts(self.pseudo_counts))

    @classmethod
    def candidates(cls) -> Mapping[int, AbstractDemonstratorModel[Any]]:
        return {1: cls(shared=True), 2: cls()}

    def build(self, sizes: Sizes, generators: Generators) -> nn.Module:
        return _Slips(len(generators), {"slip": (sizes.actions, *([] if self.shared else [sizes.demonstrators]))})

    def log_prior(self, module: nn.Module) -> Float[Tensor, " member"]:
        return self.pseudo_counts * module.get_parameter("slip").log_softmax(1).flatten(1).sum(1)

    def observed(self, policy: Categorical, expertise: Tensor, context: Context = NO_CONTEXT) -> Categorical:
        logits = context.parameter("slip").unsqueeze(1) if self.shared else context.own("slip")
        slip = logits.softmax(-1).expand_as(policy.probs)
        return categorical(torch.lerp(slip, policy.probs, expertise.unsqueeze(-1)))

    def log_likelihood(self, policy: Any, expertise: PerCount, batch: Batch, module: Any = None) -> PerCount:
        slip = _slip_taken(module.get_parameter("slip"), self.shared, batch)
        return _log(torch.lerp(slip, policy.taken(batch).exp(), expertise))

    def slips(self, module: nn.Module) -> dict[str, Tensor]:
        return {"slip": _demonstrators_first(module.get_parameter("slip").softmax(1))}

    def learned(self, slips: Mapping[str, Array], actions: Sequence[str]) -> Learned:
        return Learned([_LEARNED], () if self.shared else _habits(slips["slip"], actions), _CAPTION)

    def at_expertise_zero(self, sizes: Sizes) -> str:
        return "by habit alone"


@final
@dataclass(frozen=True, kw_only=True)
class Persistent(AbstractDemonstratorModel[Choice]):
    """With probability `expertise` follow the policy, otherwise repeat the previous action, or act at random.

    p(a | s, i, a') = rho pi(a | s) + (1 - rho) (kappa [a = a'] + (1 - kappa) b(a)), where a' is the previous action of
    the episode; slips in its first step follow b. The probability kappa of repeating is learned, one for all
    demonstrators or one for each (`per_person`); b is uniform or, with `biased`, each demonstrator's habit as in
    `BiasedMixture`. Repeated actions are the "action persistence" of Metelli et al., ICML 2020, here as a slip.
    """

    per_person: bool = False
    """Whether each demonstrator has a probability of repeating."""
    biased: bool = False
    """Whether slips that do not repeat follow each demonstrator's habit."""
    pseudo_counts: float = 1.0
    """Slips of each kind that the prior assumes; 0 for none."""
    discrete = True
    context = ("previous_action",)

    def __post_init__(self) -> None:
        for name in ("per_person", "biased"):
            object.__setattr__(self, name, true_or_false(name, getattr(self, name)))
        object.__setattr__(self, "pseudo_counts", _pseudo_counts(self.pseudo_counts))

    @classmethod
    def candidates(cls) -> Mapping[int, AbstractDemonstratorModel[Any]]:
        return {1: cls(), 3: cls(biased=True)}

    def build(self, sizes: Sizes, generators: Generators) -> nn.Module:
        shapes: dict[str, tuple[int, ...]] = {"repeat": (sizes.demonstrators if self.per_person else 1,)}
        if self.biased:
            shapes["slip"] = (sizes.actions, sizes.demonstrators)
        return _Slips(len(generators), shapes)

    def log_prior(self, module: nn.Module) -> Float[Tensor, " member"]:
        repeat = module.get_parameter("repeat")
        found = torch.nn.functional.logsigmoid(repeat) + torch.nn.functional.logsigmoid(-repeat)
        total = found.sum(1)
        if self.biased:
            total = total + module.get_parameter("slip").log_softmax(1).flatten(1).sum(1)
        return self.pseudo_counts * total

    def observed(self, policy: Categorical, expertise: Tensor, context: Context = NO_CONTEXT) -> Categorical:
        actions, previous = policy.probs.shape[-1], context["previous_action"]
        again = torch.nn.functional.one_hot(previous.clamp_min(0), actions).to(policy.probs)
        other = context.own("slip").softmax(-1) if self.biased else torch.full_like(again, 1 / actions)
        logits = context.own("repeat") if self.per_person else context.parameter("repeat")
        repeat = logits.sigmoid() * (previous >= 0)
        slip = torch.lerp(other, again.expand_as(policy.probs), repeat.unsqueeze(-1))
        return categorical(torch.lerp(slip, policy.probs, expertise.unsqueeze(-1)))

    def log_likelihood(self, policy: Any, expertise: PerCount, batch: Batch, module: Any = None) -> PerCount:
        previous, members = batch.context["previous_action"], len(expertise)
        again = of_members((batch.action == previous).to(expertise.dtype), members)
        known = of_members((previous >= 0).to(expertise.dtype), members)
        repeat = module.get_parameter("repeat").sigmoid()
        repeat = (batch.demonstrator(repeat) if self.per_person else repeat) * known
        other: Tensor = expertise.new_full((), 1 / policy.log_probs.shape[-2])
        if self.biased:
            other = _slip_taken(module.get_parameter("slip"), False, batch)
        slip = repeat * again + (1 - repeat) * other
        return _log(torch.lerp(slip, policy.taken(batch).exp(), expertise))

    def slips(self, module: nn.Module) -> dict[str, Tensor]:
        found = {"repeat": module.get_parameter("repeat").sigmoid()}
        if self.biased:
            found["slip"] = _demonstrators_first(module.get_parameter("slip").softmax(1))
        return found

    def learned(self, slips: Mapping[str, Array], actions: Sequence[str]) -> Learned:
        columns = _habits(slips["slip"], actions) if self.biased else []
        if self.per_person:
            own = LearnedColumn("repeats the last action", "repeat", slips["repeat"].tolist())
            return Learned([_LEARNED], [*columns, own], _CAPTION)
        share = 100 * float(slips["repeat"][0])
        return Learned([_LEARNED, f"{share:.0f}% of slips repeat the previous action."], columns, _CAPTION)

    def at_expertise_zero(self, sizes: Sizes) -> str:
        return "the previous action again, or at random"


@final
@dataclass(frozen=True, kw_only=True)
class Confusion(AbstractDemonstratorModel[Choice]):
    """Confuse actions: which one is taken depends on the demonstrator and on the action that the policy would take.

    p(a | s, i) = sum over y of pi(y | s) C_i[y, a], with C_i[y, y] = rho e^d / (rho e^d + 1 - rho), d = d_i[y], and
    C_i[y, a] = (1 - C_i[y, y]) B_i[y, a] elsewhere. The confusion matrix C_i is that of Dawid and Skene, "Maximum
    likelihood estimation of observer error-rates using the EM algorithm", Applied Statistics 1979, with states as
    tasks; expertise rho is the level around which a demonstrator's diagonal varies, by offsets d_i that sum to zero
    over actions. Priors: `pseudo_counts` assumed slips in each row of each B_i, distributed as in the population's
    matrix, and a standard normal distribution of d_i[y]. A policy with permuted actions is as likely, with matrices
    that compensate: demonstrators are assumed to follow the policy more often than not, or as gold demonstrators do.
    """

    pseudo_counts: float = 5.0
    """Slips from each action that the prior assumes, distributed as in the population; 0 for none."""
    discrete = True
    actions_can_be_exchanged = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "pseudo_counts", _pseudo_counts(self.pseudo_counts))

    @classmethod
    def candidates(cls) -> Mapping[int, AbstractDemonstratorModel[Any]]:
        return {4: cls()}

    def build(self, sizes: Sizes, generators: Generators) -> nn.Module:
        actions, count = sizes.actions, sizes.demonstrators
        shapes = {"population": (actions, actions), "own": (actions, actions, count), "diagonal": (actions, count)}
        return _Slips(len(generators), shapes)

    def log_prior(self, module: nn.Module) -> Float[Tensor, " member"]:
        population, each = _confusions(module)
        expected = population.detach().exp().masked_fill(population == -inf, 0).unsqueeze(-1)
        agreement = (expected * each.masked_fill(each == -inf, 0)).flatten(1).sum(1)
        return self.pseudo_counts * agreement - 0.5 * _centred(module).square().flatten(1).sum(1)

    def observed(self, policy: Categorical, expertise: Tensor, context: Context = NO_CONTEXT) -> Categorical:
        assert context.module is not None
        confused = context.at_rows(_confusions(context.module)[1].exp())
        right, wrong = _split(expertise.unsqueeze(-1), context.at_rows(_centred(context.module).exp()))
        mistaken = (policy.probs * wrong).unsqueeze(-2) @ confused  # (member, row, 1, action)
        return categorical(policy.probs * right + mistaken.squeeze(-2))

    def log_likelihood(self, policy: Any, expertise: PerCount, batch: Batch, module: Any = None) -> PerCount:
        here = batch.observation_index(policy.log_probs).exp()  # (member, intended, count)
        confused = batch.action_by_demonstrator(_confusions(module)[1].exp().flatten(2))  # (member, intended, count)
        right, wrong = _split(expertise.unsqueeze(-2), batch.demonstrator(_centred(module).exp()))
        action = of_members(batch.action, len(expertise)).expand(len(right), -1).unsqueeze(-2)
        meant = policy.taken(batch).exp() * right.gather(-2, action).squeeze(-2)
        return _log(meant + (here * wrong * confused).sum(-2))

    def slips(self, module: nn.Module) -> dict[str, Tensor]:
        found = {"confused": _confusions(module)[1].exp(), "diagonal": _centred(module)}
        return {name: _demonstrators_first(values) for name, values in found.items()}

    def learned(self, slips: Mapping[str, Array], actions: Sequence[str]) -> Learned:
        own, shape = slips["confused"], (len(actions),) * 2
        pairs = [np.unravel_index(each.argmax(), shape) for each in own]
        most = [f"{actions[done]} for {actions[meant]}" for meant, done in pairs]
        columns = [LearnedColumn("most confused", "confused", most)]
        columns.append(LearnedColumn("share of those slips", "share", own.max((1, 2)).tolist()))
        return Learned([_LEARNED], columns, _CAPTION)

    def at_expertise_zero(self, sizes: Sizes) -> str:
        return "never the intended action"


def _habits(slip: Array, actions: Sequence[str]) -> list[LearnedColumn]:
    most = [actions[place] for place in slip.argmax(1)]
    shares = slip.max(1).tolist()
    return [LearnedColumn("most frequent slip", "slip", most), LearnedColumn("share of slips", "share", shares)]


def _pseudo_counts(value: float) -> float:
    rule = "it counts the slips that the prior assumes: pass a number, zero or more"
    return number("pseudo_counts", value, least=0, below=inf, rule=rule)


def _log(probability: Tensor) -> Tensor:
    """Logarithm that stays finite at zero, with a finite gradient for any offsets of a confusion matrix."""
    return (probability + 1e6 * torch.finfo(probability.dtype).tiny).log()


def _slip_taken(slip: Tensor, shared: bool, batch: Batch) -> PerCount:
    """The probability of every counted action as a slip, from logits (member, action, *demonstrator)."""
    probabilities = slip.softmax(1)
    return batch.action_index(probabilities) if shared else batch.action_by_demonstrator(probabilities.flatten(1))


def _confusions(module: nn.Module) -> tuple[Float[Tensor, "member intended action"], Tensor]:
    """Log matrices of slips: the population's, and (member, intended, action, demonstrator)."""
    population, own = module.get_parameter("population"), module.get_parameter("own")
    itself = torch.eye(population.shape[-1], dtype=torch.bool, device=population.device)
    both = population.unsqueeze(-1) + own
    return (
        population.masked_fill(itself, -inf).log_softmax(-1),
        both.masked_fill(itself.unsqueeze(-1), -inf).log_softmax(-2),
    )


def _centred(module: nn.Module) -> Float[Tensor, "member intended demonstrator"]:
    diagonal = module.get_parameter("diagonal")
    return diagonal - diagonal.mean(1, keepdim=True)


def _split(rho: Tensor, odds: Tensor) -> tuple[Tensor, Tensor]:
    """The probability of the intended action, and its complement, computed so that rounding cannot make it negative."""
    total = rho * odds + (1 - rho)
    return rho * odds / total, (1 - rho) / total


def _demonstrators_first(values: Tensor) -> Tensor:
    """(member, *value, demonstrator) as (member, demonstrator, *value)."""
    return values.movedim(-1, 1)
