"""Samplers of batches: the whole data set as counts, or mini-batches of steps."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar, final

import numpy as np
import torch
from torch import Tensor

from ileed._torch import Float, Int, stream
from ileed.demonstrations import Array, Collapsed, Demonstrations
from ileed.demonstrations.collapsing import Uncollapsed, step_context
from ileed.demonstrations.streaming import count_weights
from ileed.errors import SettingsError
from ileed.model.batch import Batch, Pairs, Sizes, Transitions
from ileed.model.joint import Parts
from ileed.nets import Pick

_EVALUATED_AT_ONCE = 4096  # steps scored together where data come in mini-batches
_MANY_STEPS, _MANY_AT_ONCE = 100_000, 512  # beyond so many, so few: what a cache holds takes half the time


class Sampler(ABC):
    """Where batches come from: `load(step)` prepares what the next `batch()` returns, always of the same size."""

    epoch: int = 1
    """How many batches show all the data."""
    can_stand_beside: bool = False
    """Whether `beside` can join it with the samplers of other data sets."""
    people_at_once: int | None = None
    """How many people a batch has, where it has all of some people; None where it may have anybody."""
    people: Tensor
    """(person,) whom the next batch has, where it has all of some people."""
    visits: int
    """How many batches have shown them, with the next."""

    def beside(self, others: Sequence[Any], *, members: int, device: torch.device) -> Sampler:
        """One sampler of this data set and those of others, each for as many members in a row."""
        raise NotImplementedError(f"{type(self).__name__} stands beside no other: `can_stand_beside` is False")

    def share(self, place: int, count: int) -> Sampler | None:
        """What one of `count` processes reads of each batch; None where batches cannot be shared.

        All of them together read a batch once; the `data_weight` of their parts is that of all the data.
        """
        return None

    def load(self, step: int) -> None:
        """Prepare the batch of an optimisation step; nothing to do where all batches are the same."""
        return

    @abstractmethod
    def batch(self) -> Batch: ...

    @abstractmethod
    def everything(self, *, held_out: bool) -> Iterator[Batch]:
        """All of the data once, or all that is held out."""


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class TrainingData:
    """What a sampler is made from."""

    data: Demonstrations
    parts: Parts
    collapsed: Collapsed | Uncollapsed
    sizes: Sizes
    seen: Float[Tensor, "input observation"]  # of unique observations; none where the data did not collapse
    episode_weight: Array  # (*member, episode)
    held_out_episodes: Array | None  # (episode,) weights of what is held out
    batch_size: int
    seed: int
    members: int

    @property
    def counts(self) -> Collapsed:
        """The counts of data that collapsed."""
        assert self.collapsed.repeats
        return self.collapsed  # type: ignore[return-value]

    @property
    def count_of_counts(self) -> int:
        """How many counts there are; as many as steps where the data did not collapse."""
        return len(self.counts.observation_index) if self.collapsed.repeats else len(self.data)

    @cached_property
    def step_weight(self) -> Array:
        """(*member, step) the weight of each step's episode."""
        return self.episode_weight[..., self.data.episode]

    @cached_property
    def held_out(self) -> Array | None:
        """(step,) the same of what is held out."""
        return None if self.held_out_episodes is None else self.held_out_episodes[self.data.episode]

    def order(self, device: torch.device) -> Order:
        """The order in which the steps that some member gives a weight are drawn."""
        weight = self.step_weight.reshape(-1, len(self.data))
        return Order(torch.from_numpy(np.flatnonzero(weight.sum(0) > 0)), seed=self.seed, device=device)


@final
class WholeBatch(Sampler):
    """The same batch at every step: all of the data, as counts, so that it is exact."""

    def __init__(self, batch: Batch, sizes: Sizes, held_out: Batch | None = None) -> None:
        self._batch, self._sizes, self._held_out = batch, sizes, held_out
        self.can_stand_beside = sizes.discrete and all(each is None for each in (batch.legal, batch.skills, held_out))

    @classmethod
    def of(cls, training_data: TrainingData) -> WholeBatch:
        collapsed, seen, data = training_data.counts, training_data.seen, training_data.data
        device = seen.device
        batch = Batch.of(
            sizes=training_data.sizes,
            observations=seen,
            observation_index=tensor(collapsed.observation_index, device),
            demonstrator=tensor(collapsed.demonstrator, device),
            action=tensor(collapsed.action, device),
            weight=tensor(count_weights(data, collapsed, training_data.episode_weight), device),
            legal=None if collapsed.legal is None else tensor(collapsed.legal.T, device),
            skills=None if collapsed.skills is None else tensor(collapsed.skills.T, device),
        )
        columns = {name: tensor(column.T, device) for name, column in collapsed.context.items()}
        transitions = None if training_data.parts.dynamics is None else _collapsed_transitions(training_data)
        batch = replace(batch, transitions=transitions, context=with_features(columns, seen))
        if training_data.held_out_episodes is None:
            return cls(batch, training_data.sizes)
        weight = tensor(count_weights(data, collapsed, training_data.held_out_episodes), device)
        return cls(batch, training_data.sizes, replace(batch, weight=weight, transitions=None))

    def beside(self, others: Sequence[Any], *, members: int, device: torch.device) -> Sampler:
        sizes = [each._sizes for each in (self, *others)]
        batches = [each._batch for each in (self, *others)]
        return WholeBatch(Batch.side_by_side(batches, sizes, members=members, device=device), Sizes.of_all(sizes))

    def share(self, place: int, count: int) -> Sampler | None:
        """All counts of some unique observations, with these and, where they are asked for, those before them."""
        whole = self._batch
        if whole.transitions is not None or whole.observations.shape[-1] < count:
            return None
        at = whole.observation_index.index
        kept = torch.nonzero(at % count == place).flatten()
        context = {name: column[..., kept] for name, column in whole.context.items()}
        before = context.get("previous_policy", at[:0])
        own, index = torch.unique(torch.cat([at[kept], before.clamp_min(0)]), return_inverse=True)
        if len(before):
            context["previous_policy"] = torch.where(before < 0, -1, index[len(kept) :])
        batch = Batch.of(
            sizes=self._sizes,
            observations=whole.observations[:, own],
            observation_index=index[: len(kept)],
            demonstrator=whole.demonstrator.index[kept],
            action=whole.action[kept],
            weight=whole.weight[..., kept],
            legal=None if whole.legal is None else whole.legal[:, own],
            skills=None if whole.skills is None else whole.skills[:, own],
        )
        batch = replace(batch, context=context, data_weight=whole.whole_weight)
        return WholeBatch(batch, self._sizes)

    def batch(self) -> Batch:
        return self._batch

    def everything(self, *, held_out: bool) -> Iterator[Batch]:
        yield self._held_out if held_out and self._held_out is not None else self._batch


@final
class Order:
    """An endless row of items: all of them once an epoch, in an order drawn for that epoch alone."""

    def __init__(self, items: Int[Tensor, " item"], *, seed: int, device: torch.device) -> None:
        self.length = len(items)
        self._items, self._seed, self._device = items, seed, device
        self._kept: dict[int, Tensor] = {}

    def taken(self, first: int, count: int) -> Int[Tensor, " count"]:
        """So many items, from a place in the row on."""
        epochs = range(first // self.length, (first + count - 1) // self.length + 1)
        offset = first % self.length
        return torch.cat([keep_two(self._kept, epoch, self._shuffled) for epoch in epochs])[offset : offset + count]

    def _shuffled(self, epoch: int) -> Tensor:
        return self._items[draw_order(self.length, self._seed, epoch)].to(self._device)


_Drawn = TypeVar("_Drawn")


def draw_order(length: int, seed: int, epoch: int) -> Int[Tensor, " item"]:
    """The order of so many items in an epoch."""
    return torch.randperm(length, generator=stream(seed, "order", epoch))


def keep_two(kept: dict[int, _Drawn], epoch: int, draw: Callable[[int], _Drawn]) -> _Drawn:
    """What was drawn for an epoch; two epochs are kept, in a dictionary that, unlike a cache, workers can be sent."""
    if epoch not in kept:
        for other in [*kept][:-1]:
            del kept[other]
        kept[epoch] = draw(epoch)
    return kept[epoch]


class Rows(NamedTuple):
    """Some steps as a batch takes them: each one a unique observation and a count of its own.

    Where there are dynamics, `observations` are followed by the next ones, and `goes_on` is 0 where there is none.
    The ones before follow where the context has the policy there.
    """

    observations: Float[Tensor, "input observation"]
    demonstrator: Int[Tensor, " row"]
    action: Tensor
    weight: Float[Tensor, "*member row"]
    legal: Tensor | None
    skills: Tensor | None
    context: Mapping[str, Tensor]
    goes_on: Tensor | None

    def batch(self, sizes: Sizes, data_weight: Tensor | None) -> Batch:
        """The batch of these steps, of data of so much weight."""
        size, unique_count, transitions = len(self.demonstrator), self.observations.shape[1], None
        here = torch.arange(size, device=self.demonstrator.device)
        if self.goes_on is not None:  # the next observations follow, as unique observations without a count
            transitions = Transitions(
                observation_index=Pick(here, unique_count),
                action=_action_columns(self.action, sizes),
                next_observation_index=Pick(here + size, unique_count),
                weight=self.weight * self.goes_on,
            )
        at = Pick(here, unique_count, identity=unique_count == size)
        by = Pick.drawn(self.demonstrator, sizes.demonstrators)
        return Batch(
            observations=self.observations,
            observation_index=at,
            demonstrator=by,
            pairs=Pairs(at, by, Pick(here, size, identity=True)),
            action=self.action,
            weight=self.weight,
            taken=Pick(self.action * unique_count + here, sizes.actions * unique_count) if sizes.discrete else None,
            legal=self.legal,
            skills=self.skills,
            transitions=transitions,
            context=self.context,
            data_weight=data_weight,
        )


@final
class MiniBatches(Sampler):
    """Mini-batches of steps: every step once an epoch, in an order drawn for that epoch alone."""

    def __init__(self, training_data: TrainingData) -> None:
        data, collapsed, seen = training_data.data, training_data.counts, training_data.seen
        device, index = seen.device, collapsed.step_observation_index
        self._sizes, self._seen = training_data.sizes, seen
        self._observation_index, self._action = tensor(index, device), tensor(data.actions, device)
        self._demonstrator = tensor(data.demonstrator, device)
        self._weight = tensor(training_data.step_weight, device)
        self._data_weight = self._weight.sum(-1)
        self._held_out = None if training_data.held_out is None else tensor(training_data.held_out, device)
        self._legal = None if collapsed.legal is None else tensor(collapsed.legal.T, device)
        self._skills = None if collapsed.skills is None else tensor(collapsed.skills.T, device)
        columns = step_context(data, training_data.parts.context, index)
        self._context = {name: tensor(column.T, device) for name, column in columns.items()}
        continues = np.append(data.episode[1:] == data.episode[:-1], False)
        self._continues = None if training_data.parts.dynamics is None else tensor(continues, device)
        self._order = training_data.order(device)
        self._size = min(training_data.batch_size, self._order.length)
        self.epoch = -(-self._order.length // self._size)
        self._loaded = torch.zeros(self._size, dtype=torch.long, device=device)
        self._shared = slice(None)

    def share(self, place: int, count: int) -> Sampler | None:
        return share_of_loaded(self, place, count) if self._continues is None else None

    def load(self, step: int) -> None:
        self._loaded.copy_(self._order.taken(step * self._size, self._size)[self._shared])

    def batch(self) -> Batch:
        return self._of(self._loaded, self._weight)

    def everything(self, *, held_out: bool) -> Iterator[Batch]:
        weight = self._held_out if held_out and self._held_out is not None else self._weight
        used = torch.nonzero(weight.reshape(-1, weight.shape[-1]).sum(0)).flatten()
        for steps in used.split(evaluated_at_once(len(used))):
            yield self._of(steps, weight)

    def _of(self, steps: Tensor, weight: Tensor) -> Batch:
        index = self._observation_index[steps]
        if self._continues is not None:
            following = (steps + 1).clamp_max(len(self._observation_index) - 1)
            index = torch.cat([index, self._observation_index[following]])
        context = {name: column[..., steps] for name, column in self._context.items()}
        if (before := context.get("previous_policy")) is not None:  # the observations before follow too
            here = torch.arange(len(steps), device=index.device)
            context["previous_policy"] = torch.where(before < 0, -1, here + len(index))
            index = torch.cat([index, before.clamp_min(0)])
        rows = Rows(
            observations=self._seen.index_select(1, index),
            demonstrator=self._demonstrator[steps],
            action=self._action[steps],
            weight=weight[..., steps],
            legal=None if self._legal is None else self._legal.index_select(1, index),
            skills=None if self._skills is None else self._skills.index_select(1, index),
            context=with_features(context, self._seen),
            goes_on=None if self._continues is None else self._continues[steps],
        )
        own = weight is self._weight  # held-out weights are everybody's
        return rows.batch(self._sizes, self._data_weight if own else None)


def evaluated_at_once(steps: int) -> int:
    """How many of so many steps are scored together."""
    return _EVALUATED_AT_ONCE if steps <= _MANY_STEPS else _MANY_AT_ONCE


def share_of_loaded(sampler: Any, place: int, count: int) -> Any:
    """A sampler that draws the same items for a step, and reads one in `count` of them; None where they are fewer."""
    if sampler._loaded.shape[-1] < count:
        return None
    share = copy.copy(sampler)
    share._shared = slice(place, None, count)
    share._loaded = sampler._loaded[..., share._shared].clone()
    return share


def _collapsed_transitions(training_data: TrainingData) -> Transitions:
    """Counted distinct (observation, action, next observation) of steps that are not the last of their episode."""
    data, collapsed, sizes = training_data.data, training_data.counts, training_data.sizes
    step_weight, device = training_data.step_weight, training_data.seen.device
    start = np.flatnonzero(data.episode[1:] == data.episode[:-1])
    if len(start) == 0:
        raise SettingsError("LatentDynamics needs an episode of two steps or more, and the data have none")
    unique_count = len(collapsed.observations)
    here, after = (collapsed.step_observation_index[step] for step in (start, start + 1))
    action = data.actions[start]
    kind = chosen = np.arange(len(start))
    if data.discrete:
        key = (here * sizes.actions + action) * unique_count + after
        _, chosen, kind = np.unique(key, return_index=True, return_inverse=True)
    rows = step_weight[..., start].reshape(-1, len(start))
    weight = np.stack([np.bincount(kind, weights=row, minlength=len(chosen)) for row in rows])
    return Transitions(
        observation_index=Pick.of(tensor(here[chosen], device), unique_count),
        action=_action_columns(tensor(action[chosen], device), sizes),
        next_observation_index=Pick.of(tensor(after[chosen], device), unique_count),
        weight=tensor(weight.reshape(*step_weight.shape[:-1], -1), device),
    )


def _action_columns(action: Tensor, sizes: Sizes) -> Float[Tensor, "action transition"]:
    """Actions as a network takes them: one-hot where they are discrete, as they come where not."""
    return torch.nn.functional.one_hot(action, sizes.actions).T.float() if sizes.discrete else action.T


def with_features(context: Mapping[str, Tensor], seen: Float[Tensor, "*group input observation"]) -> dict[str, Tensor]:
    """Context with the inputs of previous observations, (*group, input, row), in place of their numbers."""
    found = dict(context)
    if (number := found.get("previous_observation")) is not None:
        index = number.clamp_min(0).unsqueeze(-2).expand(*seen.shape[:-1], -1)
        found["previous_observation"] = seen.gather(-1, index) * (number >= 0).unsqueeze(-2)
    return found


def tensor(array: Array, device: torch.device | str = "cpu") -> Tensor:
    """A copy of the array on the device, as the models read it: real numbers are of single precision."""
    found = torch.from_numpy(np.array(array, order="C")).to(device)
    return found.float() if found.is_floating_point() else found
