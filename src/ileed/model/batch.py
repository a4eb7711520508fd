"""A batch: observations the networks look at once, and the acts that were counted upon them.

Several data sets can be one batch: what differs between them then has a leading `group` axis, padded to the longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
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
    two_valued: tuple[int, ...] = ()
    """Dimensions of continuous actions that are at one end of their range or the other, like a gripper's."""

    @classmethod
    def of_all(cls, sizes: Sequence[Sizes]) -> Sizes:
        """The least sizes that hold each of these; data sets side by side must agree about `two_valued`."""
        largest = {item.name: max(getattr(each, item.name) for each in sizes) for item in fields(cls)}
        return cls(**(largest | {"two_valued": sizes[0].two_valued}))


@final
@dataclass(frozen=True, eq=False)
class Visits:
    """Who was where: distinct (place, demonstrator), and the visit of each cell. Expertise depends on nothing else."""

    place: Pick
    demonstrator: Pick
    cell: Pick

    @classmethod
    def of(
        cls,
        place: Int[Tensor, "*group cell"],
        demonstrator: Int[Tensor, "*group cell"],
        sizes: Sizes,
        places: int,
    ) -> Visits:
        """The visits of these cells; each cell a visit of its own where they are hardly fewer."""
        both = place * sizes.demonstrators + demonstrator
        found = [torch.unique(group, return_inverse=True) for group in both.reshape(-1, both.shape[-1])]
        most = max(len(key) for key, _ in found)
        if 2 * most > both.shape[-1] or both.is_cuda:  # a GPU would rather do more arithmetic than one more read
            everywhere = torch.arange(both.shape[-1], device=both.device).expand_as(both)
            return cls(
                Pick.of(place, places), Pick.of(demonstrator, sizes.demonstrators), Pick.of(everywhere, both.shape[-1])
            )
        key = _stacked([key for key, _ in found]).reshape(*both.shape[:-1], most)
        cell = torch.stack([cell for _, cell in found]).reshape_as(both)
        here, who = key // sizes.demonstrators, key % sizes.demonstrators
        return cls(Pick.of(here, places), Pick.of(who, sizes.demonstrators), Pick.of(cell, most))


@final
@dataclass(frozen=True, eq=False)
class Transitions:
    """What was done where and where that led: (place, action, next place), with a weight."""

    place: Pick
    action: Float[Tensor, "*group action transition"]
    next_place: Pick
    weight: Float[Tensor, "*member transition"]

    def actions_of(self, members: int) -> Float[Tensor, "member action transition"]:
        """What was done, for each of so many members."""
        if self.action.ndim == 2:
            return self.action.expand(members, -1, -1)
        return self.action.repeat_interleave(members // len(self.action), dim=0)

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

    observations: Float[Tensor, "*group input place"]
    place: Pick
    demonstrator: Pick
    visits: Visits
    action: Tensor  # (*group, cell) whole numbers, or (*member, cell, dimension)
    weight: Float[Tensor, "*member cell"]
    taken: Pick | None = None  # (action, place) of each cell, flat; discrete actions only
    legal: Bool[Tensor, "action place"] | None = None
    skills: Float[Tensor, "*group skill place"] | None = None
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
        observations: Float[Tensor, "*group input place"],
        place: Int[Tensor, "*group cell"],
        demonstrator: Int[Tensor, "*group cell"],
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

    @classmethod
    def side_by_side(
        cls, batches: Sequence[Batch], sizes: Sequence[Sizes], *, members: int, device: torch.device
    ) -> Batch:
        """Batches of several data sets as one, each learned from by so many members in a row; discrete actions only.

        Shorter ones are padded: with inputs that are always zero, places without a cell, and cells without a weight.
        """
        largest = Sizes.of_all(sizes)
        seen = [padded(batch.observations, (largest.inputs, batch.observations.shape[1])) for batch in batches]
        return cls.of(
            sizes=largest,
            observations=_stacked(seen).to(device),
            place=_stacked([batch.place.index for batch in batches]).to(device),
            demonstrator=_stacked([batch.demonstrator.index for batch in batches]).to(device),
            action=_stacked([batch.action for batch in batches]).to(device),
            weight=_for_members([batch.weight for batch in batches], members).to(device),
            transitions=_transitions_side_by_side([batch.transitions for batch in batches], members, device),
        )

    @cached_property
    def log_choices(self) -> Float[Tensor, " cell"] | None:
        """Log of how many actions were legal at each cell's place, or nothing where all always are."""
        return None if self.legal is None else self.place(self.legal.sum(0).to(self.observations.dtype).log())


def _transitions_side_by_side(
    transitions: Sequence[Transitions | None], members: int, device: torch.device
) -> Transitions | None:
    known = [each for each in transitions if each is not None]
    if not known:
        return None
    places = max(each.place.entries for each in known)
    return Transitions(
        place=Pick.of(_stacked([each.place.index for each in known]).to(device), places),
        action=_stacked([each.action for each in known]).to(device),
        next_place=Pick.of(_stacked([each.next_place.index for each in known]).to(device), places),
        weight=_for_members([each.weight for each in known], members).to(device),
    )


def _for_members(weights: Sequence[Tensor], members: int) -> Float[Tensor, "member longest"]:
    return _stacked([weight.expand(members, -1) for weight in weights]).flatten(0, 1)


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors along a new first axis, their last axis padded with zeros to the longest."""
    longest = max(tensor.shape[-1] for tensor in tensors)
    return torch.stack([padded(tensor, (*tensor.shape[:-1], longest)) for tensor in tensors])


def padded(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The tensor with zeros behind, along each axis up to the given length."""
    missing = [length - own for own, length in zip(tensor.shape, shape, strict=True)]
    return torch.nn.functional.pad(tensor, [side for length in reversed(missing) for side in (0, length)])


def _dot(values: Float[Tensor, "member cell"], share: Float[Tensor, "*member cell"]) -> Float[Tensor, " member"]:
    return values @ share if share.ndim == 1 else (values * share).sum(-1)
