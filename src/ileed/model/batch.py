"""A batch: unique observations, which the networks read once, and counts of the actions taken there.

The log-likelihood of the data is the sum over counts of weight x log-probability. Several data sets can form one batch:
their columns then have a leading `group` axis and are padded to the longest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any, final

import torch
from torch import Tensor

from ileed._torch import Bool, Float, Int
from ileed.errors import SettingsError
from ileed.model.nets import Pick

PerCount = Float[Tensor, "member count"]
"""A number per member and count."""

NO_WEIGHT = 1e-30  # the divisor for members whose weights are all zero in a batch, so that they learn nothing from it


@final
@dataclass(frozen=True, eq=False)
class Sizes:
    """The sizes that a model is built from."""

    inputs: int
    demonstrators: int
    actions: int
    discrete: bool = True
    skills: int = 0
    has_legal_actions: bool = False
    binary_dimensions: tuple[int, ...] = ()
    """Dimensions of continuous actions that take only two values, such as a gripper."""

    @property
    def action_count(self) -> int:
        """Number of discrete actions; 0 if actions are continuous."""
        return self.actions if self.discrete else 0

    @property
    def action_size(self) -> int:
        """Dimension of continuous actions; 0 if actions are discrete."""
        return self.actions - self.action_count

    def check_kind(self, part: Any, usual: str) -> None:
        """Refuse a part of the model that is for the other kind of actions."""
        if part.discrete != self.discrete:
            own, found = ("continuous", "discrete") if self.action_count else ("discrete", "continuous")
            message = f"{type(part).__name__} models {own} actions but the data's are {found}"
            raise SettingsError(f"{message}: choose another {usual}, or None for the usual one", code="kind-of-actions")

    def taken(self, action: Tensor, index: Tensor, unique_count: int, pick: Callable[..., Pick] = Pick) -> Pick | None:
        """Each count's entry in a flat table (action, unique observation); None if actions are continuous."""
        if self.action_size:
            return None
        return pick(action * unique_count + index, self.actions * unique_count)

    @classmethod
    def of_all(cls, sizes: Sequence[Sizes]) -> Sizes:
        """The least sizes that contain each of these, whose `binary_dimensions` must agree."""
        largest = {item.name: max(getattr(each, item.name) for each in sizes) for item in fields(cls)}
        return cls(**(largest | {"binary_dimensions": sizes[0].binary_dimensions}))


@final
@dataclass(frozen=True, eq=False)
class Pairs:
    """Distinct (unique observation, demonstrator) pairs, which determine expertise, and the pair of each count."""

    observation_index: Pick
    demonstrator: Pick
    pair_index: Pick

    @classmethod
    def of(
        cls,
        observation_index: Int[Tensor, "*group count"],
        demonstrator: Int[Tensor, "*group count"],
        sizes: Sizes,
        unique_count: int,
    ) -> Pairs:
        """The pairs of these counts; every count is its own pair where hardly any repeat."""
        both = observation_index * sizes.demonstrators + demonstrator
        found = [torch.unique(group, return_inverse=True) for group in both.reshape(-1, both.shape[-1])]
        most = max(len(key) for key, _ in found)
        if 2 * most > both.shape[-1] or both.is_cuda:  # on a GPU, more arithmetic is faster than another read
            here, who, most = observation_index, demonstrator, both.shape[-1]
            count_index = torch.arange(most, device=both.device).expand_as(both)
        else:
            key = _stacked([key for key, _ in found], both.device).reshape(*both.shape[:-1], most)
            here, who = key // sizes.demonstrators, key % sizes.demonstrators
            count_index = torch.stack([count_index for _, count_index in found]).reshape_as(both)
        return cls(Pick.of(here, unique_count), Pick.of(who, sizes.demonstrators), Pick.of(count_index, most))


@final
@dataclass(frozen=True, eq=False)
class Transitions:
    """Distinct (unique observation, action, next unique observation), with weights."""

    observation_index: Pick
    action: Float[Tensor, "*group action transition"]
    next_observation_index: Pick
    weight: Float[Tensor, "*member transition"]

    @classmethod
    def side_by_side(cls, each: Sequence[Transitions], *, members: int, device: torch.device) -> Transitions:
        """Transitions of several data sets as one, each for this number of consecutive members."""
        unique_count = max(one.observation_index.entries for one in each)
        here = _stacked([one.observation_index.index for one in each], device)
        after = _stacked([one.next_observation_index.index for one in each], device)
        return cls(
            observation_index=Pick.of(here, unique_count),
            action=_stacked([one.action for one in each], device),
            next_observation_index=Pick.of(after, unique_count),
            weight=_for_members([one.weight for one in each], members, device),
        )

    def mean(self, values: Float[Tensor, "member transition"]) -> Float[Tensor, " member"]:
        """Weighted mean over transitions."""
        return _dot(values, self.weight) / self.weight.sum(-1).clamp_min(NO_WEIGHT)


@final
@dataclass(frozen=True, eq=False)
class Batch:
    """Unique observations, and weighted counts of the actions taken there; observations without counts are padding."""

    observations: Float[Tensor, "*group input observation"]
    observation_index: Pick
    demonstrator: Pick
    pairs: Pairs
    action: Tensor  # (*group, count) whole numbers, or (*member, count, dimension)
    weight: Float[Tensor, "*member count"]
    taken: Pick | None = None  # flat (action, unique observation) of each count; discrete actions only
    legal: Bool[Tensor, "action observation"] | None = None
    skills: Float[Tensor, "*group skill observation"] | None = None
    transitions: Transitions | None = None
    context: Mapping[str, Tensor] = field(default_factory=dict)
    """(*group, count) or (*group, value, count) columns that the model declares in its `context`."""
    data_weight: Float[Tensor, "*member"] | None = None
    """The total weight of the data set, if the batch is a part of it."""

    @property
    def total_weight(self) -> Float[Tensor, "*member"]:
        return self.weight.sum(-1)

    @property
    def whole_weight(self) -> Float[Tensor, "*member"]:
        """The total weight of the data set that the batch is from."""
        return self.total_weight if self.data_weight is None else self.data_weight

    @cached_property
    def share(self) -> Float[Tensor, "*member count"]:
        """Each count's share of the batch's weight, so that a mean over actions is a product; zero without weight."""
        return self.weight / self.total_weight.clamp_min(NO_WEIGHT).unsqueeze(-1)

    def mean(self, values: PerCount) -> Float[Tensor, " member"]:
        """Weighted mean over actions."""
        return _dot(values, self.share)

    def mean_cost(self, log_likelihood: PerCount) -> Float[Tensor, " member"]:
        """Mean negative log-likelihood, in nats per action."""
        return -self.mean(log_likelihood)

    @classmethod
    def of(
        cls,
        *,
        sizes: Sizes,
        observations: Float[Tensor, "*group input observation"],
        observation_index: Int[Tensor, "*group count"] | None = None,
        demonstrator: Int[Tensor, "*group count"] | None = None,
        action: Tensor | None = None,
        weight: Tensor | None = None,
        legal: Bool[Tensor, "action observation"] | None = None,
        skills: Float[Tensor, "skill observation"] | None = None,
    ) -> Batch:
        """A batch from plain indices, without transitions or context.

        By default every observation has one count, of the first demonstrator and of weight one. Without actions the
        batch has no likelihood. For a recurrent policy the observations are windows, flattened (time step, window).
        """
        unique_count = observations.shape[-1]
        if observation_index is None:
            observation_index = torch.arange(unique_count, device=observations.device)
        if demonstrator is None:
            demonstrator = torch.zeros_like(observation_index)
        finite = legal is None  # an illegal action has log-probability -inf
        taken, pick = None, partial(Pick.of, finite=finite)
        if action is not None:
            taken = sizes.taken(action, observation_index, unique_count, pick)
        return cls(
            observations=observations,
            observation_index=Pick.of(observation_index, unique_count, finite=finite),
            demonstrator=Pick.of(demonstrator, sizes.demonstrators),
            pairs=Pairs.of(observation_index, demonstrator, sizes, unique_count),
            action=observations.new_zeros(0) if action is None else action,
            weight=observations.new_ones(observation_index.shape) if weight is None else weight,
            taken=taken,
            legal=legal,
            skills=skills,
        )

    @classmethod
    def side_by_side(
        cls, batches: Sequence[Batch], sizes: Sequence[Sizes], *, members: int, device: torch.device
    ) -> Batch:
        """Batches of several data sets as one, each for this number of consecutive members; discrete actions only.

        Shorter ones are padded with zero inputs, observations without a count, and counts without weight.
        """
        whole = cls.of(
            sizes=Sizes.of_all(sizes),
            observations=_stacked([batch.observations for batch in batches], device),
            observation_index=_stacked([batch.observation_index.index for batch in batches], device),
            demonstrator=_stacked([batch.demonstrator.index for batch in batches], device),
            action=_stacked([batch.action for batch in batches], device),
            weight=_for_members([batch.weight for batch in batches], members, device),
        )
        context = {name: _stacked([batch.context[name] for batch in batches], device) for name in batches[0].context}
        known = [batch.transitions for batch in batches if batch.transitions is not None]
        transitions = Transitions.side_by_side(known, members=members, device=device) if known else None
        return replace(whole, context=context, transitions=transitions)

    @cached_property
    def action_index(self) -> Pick:
        """The discrete action of each count."""
        assert self.taken is not None
        return Pick.drawn(self.action, self.taken.entries // self.observations.shape[-1])

    @cached_property
    def action_by_demonstrator(self) -> Pick:
        """The flat (action, demonstrator) of each count; discrete actions only."""
        count = self.demonstrator.entries
        return Pick.drawn(self.action * count + self.demonstrator.index, self.action_index.entries * count)

    @cached_property
    def log_choices(self) -> Float[Tensor, " count"] | None:
        """Log number of legal actions at each count's observation; None where all actions are legal."""
        if self.legal is None:
            return None
        return self.observation_index(self.legal.sum(0).to(self.observations.dtype).log())


def _for_members(weights: Sequence[Tensor], members: int, device: torch.device) -> Float[Tensor, "member longest"]:
    return _stacked([weight.expand(members, -1) for weight in weights], device).flatten(0, 1)


def _stacked(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    """Tensors stacked along a new first axis, every other axis padded with zeros to the longest."""
    longest = tuple(max(lengths) for lengths in zip(*(tensor.shape for tensor in tensors), strict=True))
    return torch.stack([padded(tensor, longest) for tensor in tensors]).to(device)


def per_member(values: Tensor, members: int) -> Tensor:
    """(group, ...) values repeated for this number of members in all, consecutive members sharing a group."""
    return values.repeat_interleave(members // len(values), dim=0)


def of_members(values: Tensor, members: int) -> Tensor:
    """(count,) values, which all members share, as they are; (group, count) values for each member."""
    return values if values.ndim == 1 else per_member(values, members)


def padded(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The tensor with zeros appended along each axis up to this shape."""
    missing = [length - own for own, length in zip(tensor.shape, shape, strict=True)]
    return torch.nn.functional.pad(tensor, [side for length in reversed(missing) for side in (0, length)])


def _dot(values: PerCount, share: Float[Tensor, "*member count"]) -> Float[Tensor, " member"]:
    return values @ share if share.ndim == 1 else (values * share).sum(-1)
