"""What is known of people beforehand: who is expert, and who is better than whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import final

import torch
from torch import Tensor

from ileed._torch import Float, Int
from ileed.checking import number, shown
from ileed.demonstrations import Demonstrations
from ileed.errors import SettingsError
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

    def to(self, device: torch.device) -> Knowledge:
        """The same on a device."""
        return Knowledge(self.gold.to(device), self.better.to(device))

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
@dataclass(frozen=True)
class Known:
    """What is known of people before a fit: soft, so that data that say otherwise are heard.

    `gold` names people who are taken to be expert, or maps names to how many steps that follow the policy are assumed
    for each step of theirs (10 where names alone are given). `better` has pairs of names, the better person first.
    """

    gold: Sequence[str] | Mapping[str, float] = ()
    better: Sequence[tuple[str, str]] = ()

    @classmethod
    def told(cls, gold: Sequence[str] | Mapping[str, float] | Known | None) -> Known | None:
        """What the argument `gold` of a fit says."""
        return gold if gold is None or isinstance(gold, cls) else cls(gold)

    def provenance(self, data: Demonstrations) -> dict[str, list[list[int | float]]]:
        """The same for a run directory, by people's numbers: names may be replaced by pseudonyms later."""
        known = self.of(data)
        gold = [[number, strength] for number, strength in enumerate(known.gold.tolist()) if strength]
        return {"gold": gold, "better": known.better.tolist()}

    def of(self, data: Demonstrations) -> Knowledge:
        """The same by the numbers of a data set's people, after a check of every name."""
        rule = "pass names of demonstrators, or a mapping from names to how many steps are assumed for each"
        if isinstance(self.gold, str) or not isinstance(self.gold, Sequence | Mapping):
            raise SettingsError(f"gold is {shown(self.gold)}: {rule}")
        strengths = self.gold if isinstance(self.gold, Mapping) else dict.fromkeys(self.gold, GOLD)
        assumed = torch.zeros(len(data.names))
        for name, strength in strengths.items():
            value = number(f"gold of {name!r}", strength, within=lambda each: 0 <= each < inf, rule=rule)
            assumed[data.index_of(name)] = value
        if len(strengths) == len(data.names):
            raise SettingsError("gold names everybody, so that there is nobody to compare with: leave some out")
        pairs = [self._pair(data, pair) for pair in self.better]
        return Knowledge(assumed, torch.tensor(pairs, dtype=torch.long).reshape(-1, 2))

    @staticmethod
    def _pair(data: Demonstrations, pair: tuple[str, str]) -> list[int]:
        if isinstance(pair, str) or len(pair) != 2 or pair[0] == pair[1]:
            raise SettingsError(f"better has {shown(pair)}: pass pairs of names, the better person first")
        return [data.index_of(name) for name in pair]
