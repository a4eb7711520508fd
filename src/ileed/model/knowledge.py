"""Prior knowledge: gold demonstrators, pairs with a known order, and gold answers in some states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from math import inf
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from ileed._torch import Float, Int
from ileed.data import Array, Demonstrations
from ileed.errors import IleedError, SettingsError, brief, number
from ileed.model.batch import Batch, PerCount

GOLD = 10.0  # assumed steps that follow the policy, per step of a gold demonstrator
_MARGIN = 20.0  # slope of the preference for a known order


@final
@dataclass(frozen=True, eq=False)
class Knowledge:
    """Soft terms of the objective for prior knowledge."""

    gold: Float[Tensor, " demonstrator"]
    """Assumed steps that follow the policy, per step of the demonstrator."""
    better: Int[Tensor, "pair 2"]
    """Indices of demonstrators, the better first."""
    answers: Batch | None = None
    """Gold answers; the weight of each is its number of assumed steps."""

    def cost(self, rho: PerCount, batch: Batch) -> Float[Tensor, " member"]:
        """Minus log rho at gold steps, and minus log-sigmoid of the scaled difference of each pair, per action."""
        floor = torch.finfo(rho.dtype).tiny
        weight = batch.demonstrator(self.gold.to(rho)[None])
        found = batch.mean(-weight * (rho + floor).log())
        if len(self.better):
            share = batch.share if batch.share.ndim == 2 else batch.share[None]
            owner = torch.zeros(batch.demonstrator.entries, rho.shape[-1], dtype=rho.dtype, device=rho.device)
            owner[batch.demonstrator.index, torch.arange(rho.shape[-1], device=rho.device)] = 1
            total = (share * torch.ones_like(rho)) @ owner.T  # (member, demonstrator)
            mean = ((share * rho) @ owner.T) / total.clamp_min(1e-12)
            first, second = self.better.T
            apart = torch.nn.functional.logsigmoid(_MARGIN * (mean[:, first] - mean[:, second]))
            found = found - (apart * (total[:, first] + total[:, second])).sum(1)
        return found


@final
@dataclass(frozen=True, eq=False)
class Known:
    """Prior knowledge for a fit. It is soft: contradicting data can override it.

    `gold` names demonstrators who are assumed to be expert, or maps names to the number of assumed steps that follow
    the policy, per step of theirs (10 by default). `better` has pairs of names, the better demonstrator first.

    `answers` are (observations, actions): the right actions in some states, which need not be in the data. An answer
    counts as `answer_steps` times the average number of steps per state, by a demonstrator who never errs. Outcomes of
    episodes are passed to `fit` as `outcome`.
    """

    gold: Sequence[str] | Mapping[str, float] = ()
    better: Sequence[tuple[str, str]] = ()
    answers: tuple[Any, Any] | None = None
    answer_steps: float = 10.0

    @classmethod
    def told(cls, gold: Sequence[str] | Mapping[str, float] | Known | None, data: Demonstrations) -> Known | None:
        """The argument `gold` of a fit, checked against the data."""
        known = gold if gold is None or isinstance(gold, cls) else cls(gold)
        if known is not None:
            known.of(data)
            known.gold_answers(data)
        return known

    def provenance(self, data: Demonstrations) -> dict[str, Any]:
        """A record for run directories, by index of demonstrators: names may become pseudonyms later."""
        known = self.of(data)
        gold = [[number, strength] for number, strength in enumerate(known.gold.tolist()) if strength]
        found: dict[str, Any] = {"gold": gold, "better": known.better.tolist()}
        if (answers := self.gold_answers(data)) is not None:
            found["answers"] = {"states": len(answers), "fingerprint": answers.fingerprint}
            found["answer_steps"] = self.answer_steps
        return found

    def of(self, data: Demonstrations) -> Knowledge:
        """What is known about the demonstrators of a data set, with every name checked."""
        rule = "pass names of demonstrators, or a mapping from names to numbers of assumed steps"
        if isinstance(self.gold, str) or not isinstance(self.gold, Sequence | Mapping):
            raise SettingsError(f"gold is {brief(self.gold)}: {rule}", code="gold-invalid")
        strengths = self.gold if isinstance(self.gold, Mapping) else dict.fromkeys(self.gold, GOLD)
        assumed = torch.zeros(len(data.names))
        for name, strength in strengths.items():
            assumed[data.index_of(name)] = _steps(f"gold of {name!r}", strength, rule)
        if len(strengths) == len(data.names):
            raise SettingsError(
                "gold names every demonstrator, which leaves none to compare with: leave some out", code="gold-all"
            )
        pairs = [self._pair(data, pair) for pair in self.better]
        self._check_order()
        return Knowledge(assumed, torch.tensor(pairs, dtype=torch.long).reshape(-1, 2))

    def assumed_of_gold(self, data: Demonstrations) -> Array:
        """(step,) assumed steps for each step of gold demonstrators."""
        return np.asarray(self.of(data).gold.numpy().astype(np.float64)[data.demonstrator])

    def gold_answers(self, data: Demonstrations) -> Demonstrations | None:
        """The answers as a data set with one episode each; refused unless their shapes are those of the data."""
        if self.answers is None:
            return None
        rule = "pass (observations, actions) like those of the data, one action for each observation"
        if not isinstance(self.answers, tuple) or len(self.answers) != 2:
            raise SettingsError(f"answers are {brief(self.answers)}: {rule}")
        _steps("answer_steps", self.answer_steps, "pass the number of assumed steps per answer, on average")
        observations, actions = self.answers
        if data.action_count and np.size(actions) and (most := np.max(actions)) >= data.action_count:
            actions_of_data = f"the data have actions 0 to {data.action_count - 1}"
            raise SettingsError(f"answers have action {most}, but {actions_of_data}: {rule}")
        try:
            count = len(observations)
            found = Demonstrations(
                observations=observations,
                actions=actions,
                demonstrator=np.zeros(count, dtype=np.int64),
                episode=np.arange(count),
                action_count=data.action_count,
            )
        except (IleedError, TypeError) as error:
            raise SettingsError(f"answers cannot be read ({error}): {rule}") from error
        own, theirs = ((each.observations.shape[1:], each.actions.shape[1:]) for each in (found, data))
        if own != theirs:
            raise SettingsError(
                f"answers have shapes {own[0]} and {own[1]}, the data {theirs[0]} and {theirs[1]}: {rule}"
            )
        return found

    @staticmethod
    def _pair(data: Demonstrations, pair: tuple[str, str]) -> list[int]:
        if isinstance(pair, str) or len(pair) != 2 or pair[0] == pair[1]:
            raise SettingsError(f"better has {brief(pair)}: pass pairs of names, the better demonstrator first")
        return [data.index_of(name) for name in pair]

    def _check_order(self) -> None:
        """Refuse pairs that contradict each other."""
        better_than: dict[str, set[str]] = {}
        for first, second in self.better:
            better_than.setdefault(first, set()).add(second)
        try:
            TopologicalSorter(better_than).prepare()
        except CycleError as error:
            cycle = " above ".join(repr(name) for name in reversed(error.args[1]))
            raise SettingsError(f"better has a cycle, {cycle}: leave a pair out", code="better-cycle") from error


def _steps(name: str, value: Any, rule: str) -> float:
    return number(name, value, least=0, below=inf, rule=rule)
