"""A batch: observations the networks look at once, and the acts that were counted upon them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from ileed._torch import Bool, Float, Int
from ileed.nets import Pick

_NO_WEIGHT = 1e-30  # what a member divides by whose weights leave nothing of a batch: nothing is then learned from it


@final
@dataclass(frozen=True, eq=False)
class Sizes:
    """How many of each thing a model must know of before it has seen any."""

    inputs: int
    demonstrators: int
    actions: int
    discrete: bool = True
    skills: int = 0
    has_legal_actions: bool = False


@final
@dataclass(frozen=True, eq=False)
class Visits:
    """Who was where: distinct (place, demonstrator), and the visit of each cell. Expertise depends on nothing else."""

    place: Pick
    demonstrator: Pick
    cell: Pick

    @classmethod
    def of(cls, place: Int[Tensor, " cell"], demonstrator: Int[Tensor, " cell"], sizes: Sizes, places: int) -> Visits:
        """The visits of these cells; each cell a visit of its own where they are hardly fewer."""
        key, cell = torch.unique(place * sizes.demonstrators + demonstrator, return_inverse=True)
        if 2 * len(key) > len(cell) or key.is_cuda:  # a GPU would rather do more arithmetic than one more read
            everywhere = torch.arange(len(cell), device=cell.device)
            return cls(
                Pick.of(place, places), Pick.of(demonstrator, sizes.demonstrators), Pick.of(everywhere, len(cell))
            )
        here, who = key // sizes.demonstrators, key % sizes.demonstrators
        return cls(Pick.of(here, places), Pick.of(who, sizes.demonstrators), Pick.of(cell, len(key)))


@final
@dataclass(frozen=True, eq=False)
class Transitions:
    """What was done where and where that led: (place, action, next place), with a weight."""

    place: Pick
    action: Float[Tensor, "action transition"]
    next_place: Pick
    weight: Float[Tensor, "*member transition"]

    def mean(self, values: Float[Tensor, "member transition"]) -> Float[Tensor, " member"]:
        """Mean over transitions by weight."""
        return _dot(values, self.weight) / self.weight.sum(-1).clamp_min(_NO_WEIGHT)


@final
@dataclass(frozen=True, eq=False)
class Batch:
    """Distinct observations ("places") and weighted acts upon them ("cells"); a place of no cell is padding.

    The likelihood of the data is the sum over cells of weight x log-probability, so networks run once a place however
    often it was visited.
    """

    observations: Float[Tensor, "input place"]
    place: Pick
    demonstrator: Pick
    visits: Visits
    action: Tensor  # (cell,) whole numbers, or (cell, dimension)
    weight: Float[Tensor, "*member cell"]
    taken: Pick | None = None  # (action, place) of each cell, flat; discrete actions only
    legal: Bool[Tensor, "action place"] | None = None
    skills: Float[Tensor, "skill place"] | None = None
    transitions: Transitions | None = None

    @property
    def total_weight(self) -> Float[Tensor, "*member"]:
        return self.weight.sum(-1)

    @cached_property
    def share(self) -> Float[Tensor, "*member cell"]:
        """Each cell's part of the whole weight: a mean over acts is a product with this. No weight, no part."""
        return self.weight / self.total_weight.clamp_min(_NO_WEIGHT).unsqueeze(-1)

    def mean(self, values: Float[Tensor, "member cell"]) -> Float[Tensor, " member"]:
        """Mean over acts, each cell counted by its weight."""
        return _dot(values, self.share)

    def mean_cost(self, log_likelihood: Float[Tensor, "member cell"]) -> Float[Tensor, " member"]:
        """Mean negative log-likelihood, in nats per action."""
        return _dot(log_likelihood, self._negative_share)

    @cached_property
    def _negative_share(self) -> Float[Tensor, "*member cell"]:
        return -self.share

    @classmethod
    def of(
        cls,
        *,
        sizes: Sizes,
        observations: Float[Tensor, "input place"],
        place: Int[Tensor, " cell"],
        demonstrator: Int[Tensor, " cell"],
        action: Tensor,
        weight: Tensor,
        legal: Bool[Tensor, "action place"] | None = None,
        skills: Float[Tensor, "skill place"] | None = None,
        transitions: Transitions | None = None,
    ) -> Batch:
        """A batch from plain indices; what a step of the climb will read is worked out here, once."""
        places = observations.shape[-1]
        finite = legal is None  # an illegal action has log-probability -inf
        return cls(
            observations=observations,
            place=Pick.of(place, places, finite=finite),
            demonstrator=Pick.of(demonstrator, sizes.demonstrators),
            visits=Visits.of(place, demonstrator, sizes, places),
            action=action,
            weight=weight,
            taken=Pick.of(action * places + place, sizes.actions * places, finite=finite) if sizes.discrete else None,
            legal=legal,
            skills=skills,
            transitions=transitions,
        )

    @cached_property
    def log_choices(self) -> Float[Tensor, " cell"] | None:
        """Log of how many actions were legal at each cell's place, or nothing where all always are."""
        return None if self.legal is None else self.place(self.legal.sum(0).to(self.observations.dtype).log())


def _dot(values: Float[Tensor, "member cell"], share: Float[Tensor, "*member cell"]) -> Float[Tensor, " member"]:
    return values @ share if share.ndim == 1 else (values * share).sum(-1)
