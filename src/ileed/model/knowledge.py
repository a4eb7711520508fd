"""What is known beforehand: who is expert or better than whom, and right actions in some states."""

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

GOLD = 10.0
"""How many steps that follow the policy are assumed for each step of a person who is taken to be expert."""
_MARGIN = 20.0  # of a known order, in steps for each step of the pair


@final
@dataclass(frozen=True, eq=False)
class Knowledge:
    """Terms of the objective that prefer what is known, without insisting on it."""

    gold: Float[Tensor, " demonstrator"]
    """Assumed steps that follow the policy, for each step of the person."""
    better: Int[Tensor, "pair 2"]
    """Numbers of people, the better first."""
    answers: Batch | None = None
    """Right actions in states, each with as many assumed steps as it weighs."""

    def cost(self, rho: PerCount, batch: Batch) -> Float[Tensor, " member"]:
        """-sum over gold steps of log rho, and log-sigmoid of the difference of a pair's mean expertise, a step."""
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
    """What is known before a fit: soft, so that data that say otherwise are heard.

    `gold` names people who are taken to be expert, or maps names to how many steps that follow the policy are assumed
    for each step of theirs (10 where names alone are given). `better` has pairs of names, the better person first.

    `answers` are (observations, actions): states, in the data or not, and the right actions there. An answer counts as
    `answer_steps` times the steps that the data have in a state on average, by a person who never errs. How episodes
    went is passed to `fit` as `outcome`.
    """

    gold: Sequence[str] | Mapping[str, float] = ()
    better: Sequence[tuple[str, str]] = ()
    answers: tuple[Any, Any] | None = None
    answer_steps: float = 10.0

    @classmethod
    def told(cls, gold: Sequence[str] | Mapping[str, float] | Known | None, data: Demonstrations) -> Known | None:
        """What the argument `gold` of a fit says, after a check that it is about these data."""
        known = gold if gold is None or isinstance(gold, cls) else cls(gold)
        if known is not None:
            known.of(data)
            known.gold_answers(data)
        return known

    def provenance(self, data: Demonstrations) -> dict[str, Any]:
        """The same for a run directory, by numbers of people: names may become pseudonyms later."""
        known = self.of(data)
        gold = [[number, strength] for number, strength in enumerate(known.gold.tolist()) if strength]
        found: dict[str, Any] = {"gold": gold, "better": known.better.tolist()}
        if (answers := self.gold_answers(data)) is not None:
            found["answers"] = {"states": len(answers), "fingerprint": answers.fingerprint}
            found["answer_steps"] = self.answer_steps
        return found

    def of(self, data: Demonstrations) -> Knowledge:
        """What is known of people by the numbers of a data set, after a check of every name."""
        rule = "pass names of demonstrators, or a mapping from names to how many steps are assumed for each"
        if isinstance(self.gold, str) or not isinstance(self.gold, Sequence | Mapping):
            raise SettingsError(f"gold is {brief(self.gold)}: {rule}")
        strengths = self.gold if isinstance(self.gold, Mapping) else dict.fromkeys(self.gold, GOLD)
        assumed = torch.zeros(len(data.names))
        for name, strength in strengths.items():
            assumed[data.index_of(name)] = _steps(f"gold of {name!r}", strength, rule)
        if len(strengths) == len(data.names):
            raise SettingsError("gold names everybody, so that there is nobody to compare with: leave some out")
        pairs = [self._pair(data, pair) for pair in self.better]
        self._check_order()
        return Knowledge(assumed, torch.tensor(pairs, dtype=torch.long).reshape(-1, 2))

    def assumed_of_gold(self, data: Demonstrations) -> Array:
        """(step,) the steps that are assumed for each step of gold demonstrators: what ratings have to hear."""
        return np.asarray(self.of(data).gold.numpy().astype(np.float64)[data.demonstrator])

    def gold_answers(self, data: Demonstrations) -> Demonstrations | None:
        """States and right actions, each an episode of its own; refused where they are not like the data's."""
        if self.answers is None:
            return None
        rule = "pass (observations, actions) like those of the data, one action for each observation"
        if not isinstance(self.answers, tuple) or len(self.answers) != 2:
            raise SettingsError(f"answers are {brief(self.answers)}: {rule}")
        _steps("answer_steps", self.answer_steps, "pass how many steps are assumed for each answer, on average")
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
            raise SettingsError(f"better has {brief(pair)}: pass pairs of names, the better person first")
        return [data.index_of(name) for name in pair]

    def _check_order(self) -> None:
        """Refuse pairs of which no order of people is true."""
        better_than: dict[str, set[str]] = {}
        for first, second in self.better:
            better_than.setdefault(first, set()).add(second)
        try:
            TopologicalSorter(better_than).prepare()
        except CycleError as error:
            said = " above ".join(repr(name) for name in reversed(error.args[1]))
            raise SettingsError(f"better puts {said}, which no order of people allows: leave a pair out") from error


def _steps(name: str, value: Any, rule: str) -> float:
    return number(name, value, least=0, below=inf, rule=rule)
