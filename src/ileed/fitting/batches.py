"""Samplers of batches: the whole data set as counts, or mini-batches of steps."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from ileed._torch import Float, Int
from ileed.data import Array, Collapsed, Demonstrations
from ileed.data.collapsing import StepContext, Uncollapsed, inputs_at, skill_rows
from ileed.errors import SettingsError
from ileed.fitting.order import Order
from ileed.model.batch import Batch, Pairs, Sizes, Transitions
from ileed.model.joint import Parts
from ileed.model.nets import Pick
from ileed.model.normaliser import Normaliser

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
        return self.collapsed

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

    def order(self, weight: Array | None = None) -> Order:
        """The order of the steps that some member gives a weight, by (*member, episode) weights."""
        weight = self.episode_weight if weight is None else weight
        chosen = weight.reshape(-1, weight.shape[-1]).sum(0) > 0
        return Order(self.data.episode_bounds, chosen, seed=self.seed)


@final
class WholeBatch(Sampler):
    """The same batch at every step: all of the data, as counts, so that it is exact."""

    def __init__(self, batch: Batch, sizes: Sizes, held_out: Batch | None = None) -> None:
        self._batch, self._sizes, self._held_out = batch, sizes, held_out
        has_only_counts = all(each is None for each in (batch.legal, batch.skills, held_out))
        self.can_stand_beside = has_only_counts and batch.taken is not None

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
            weight=tensor(collapsed.weights(data, training_data.episode_weight), device),
            legal=None if collapsed.legal is None else tensor(collapsed.legal.T, device),
            skills=None if collapsed.skills is None else tensor(collapsed.skills.T, device),
        )
        columns = {name: tensor(column.T, device) for name, column in collapsed.context.items()}
        transitions = None if training_data.parts.dynamics is None else _collapsed_transitions(training_data)
        batch = replace(batch, transitions=transitions, context=columns)
        if training_data.held_out_episodes is None:
            return cls(batch, training_data.sizes)
        weight = tensor(collapsed.weights(data, training_data.held_out_episodes), device)
        return cls(batch, training_data.sizes, replace(batch, weight=weight, transitions=None))

    def beside(self, others: Sequence[Any], *, members: int, device: torch.device) -> Sampler:
        sizes = [each._sizes for each in (self, *others)]
        batches = [each._batch for each in (self, *others)]
        return WholeBatch(Batch.side_by_side(batches, sizes, members=members, device=device), Sizes.of_all(sizes))

    def share(self, place: int, count: int) -> Sampler | None:
        """All counts of some unique observations, with these."""
        whole = self._batch
        if whole.transitions is not None or whole.observations.shape[-1] < count:
            return None
        at = whole.observation_index.index
        kept = torch.nonzero(at % count == place).flatten()
        context = {name: column[..., kept] for name, column in whole.context.items()}
        own, index = torch.unique(at[kept], return_inverse=True)
        batch = Batch.of(
            sizes=self._sizes,
            observations=whole.observations[:, own],
            observation_index=index,
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


class Rows(NamedTuple):
    """Some steps as a batch takes them: each one a unique observation and a count of its own.

    Where there are dynamics, `observations` are followed by the next ones, and `goes_on` is 0 where there is none.
    The ones before follow where the context has the policy there.
    """

    observations: Float[Tensor, "input observation"]
    demonstrator: Int[Tensor, " row"]
    action: Tensor
    episode: Int[Tensor, " row"]
    legal: Tensor | None
    skills: Tensor | None
    context: Mapping[str, Tensor]
    goes_on: Tensor | None

    def batch(
        self, sizes: Sizes, episode_weight: Float[Tensor, "*member episode"], data_weight: Tensor | None
    ) -> Batch:
        """The batch of these steps, by the weights of episodes, of data of so much weight."""
        size, unique_count, transitions = len(self.demonstrator), self.observations.shape[1], None
        weight = episode_weight[..., self.episode]
        here = torch.arange(size, device=self.demonstrator.device)
        if self.goes_on is not None:  # the next observations follow, as unique observations without a count
            transitions = Transitions(
                observation_index=Pick(here, unique_count),
                action=_action_columns(self.action, sizes),
                next_observation_index=Pick(here + size, unique_count),
                weight=weight * self.goes_on,
            )
        at = Pick(here, unique_count, identity=unique_count == size)
        by = Pick.drawn(self.demonstrator, sizes.demonstrators)
        return Batch(
            observations=self.observations,
            observation_index=at,
            demonstrator=by,
            pairs=Pairs(at, by, Pick(here, size, identity=True)),
            action=self.action,
            weight=weight,
            taken=sizes.taken(self.action, here, unique_count),
            legal=self.legal,
            skills=self.skills,
            transitions=transitions,
            context=self.context,
            data_weight=data_weight,
        )


class Columns(ABC):
    """Where mini-batches have their rows from."""

    data_weight: Float[Tensor, "*member"]
    """The weight of all steps."""

    @abstractmethod
    def read(self, steps: Array) -> Any:
        """What has to be read of some steps before a batch, as a tensor or as a named tuple of tensors."""

    @abstractmethod
    def rows(self, loaded: Any) -> Rows:
        """The rows of what was read."""


@final
class ColumnsOnDevice(Columns):
    """Columns that are on the device, where rows are gathered."""

    def __init__(self, training_data: TrainingData) -> None:
        data, collapsed, device = training_data.data, training_data.counts, training_data.seen.device
        self._seen, self._device = training_data.seen, device
        self._observation_index = tensor(collapsed.step_observation_index, device)
        self._action, self._demonstrator = tensor(data.actions, device), tensor(data.demonstrator, device)
        self._episode = tensor(data.episode, device)
        self._legal = None if collapsed.legal is None else tensor(collapsed.legal.T, device)
        self._skills = None if collapsed.skills is None else tensor(collapsed.skills.T, device)
        columns = StepContext(data, training_data.parts.context)(np.arange(len(data)))
        self._context = {name: tensor(column.T, device) for name, column in columns.items()}
        continues = np.append(data.episode[1:] == data.episode[:-1], False)
        self._continues = None if training_data.parts.dynamics is None else tensor(continues, device)
        self.data_weight = tensor(training_data.episode_weight, device)[..., self._episode].sum(-1)

    def read(self, steps: Array) -> Tensor:
        return torch.from_numpy(steps).to(self._device)

    def rows(self, loaded: Tensor) -> Rows:
        index = self._observation_index[loaded]
        if self._continues is not None:
            following = (loaded + 1).clamp_max(len(self._observation_index) - 1)
            index = torch.cat([index, self._observation_index[following]])
        return Rows(
            observations=self._seen.index_select(1, index),
            demonstrator=self._demonstrator[loaded],
            action=self._action[loaded],
            episode=self._episode[loaded],
            legal=None if self._legal is None else self._legal.index_select(1, index),
            skills=None if self._skills is None else self._skills.index_select(1, index),
            context={name: column[..., loaded] for name, column in self._context.items()},
            goes_on=None if self._continues is None else self._continues[loaded],
        )


@final
class ColumnsOnDisk(Columns):
    """Columns of which rows are read and normalised when a batch is loaded."""

    def __init__(self, training_data: TrainingData, normaliser: Normaliser) -> None:
        data, parts, self._device = training_data.data, training_data.parts, training_data.seen.device
        self._data, self._normaliser, self._has_dynamics = data, normaliser, parts.dynamics is not None
        self._varying, self._dtype = training_data.collapsed.varying, training_data.collapsed.dtype
        self._context, column = StepContext(data, parts.context), parts.expertise.skill_column
        self._skills = None if column is None else skill_rows(data, column)[1]
        lengths = np.diff(data.episode_bounds)
        self.data_weight = tensor(np.asarray((training_data.episode_weight * lengths).sum(-1)), self._device)

    def read(self, steps: Array) -> Rows:
        data, device, goes_on, read = self._data, self._device, None, steps
        if self._has_dynamics:  # the next observations follow
            following = np.minimum(steps + 1, len(data) - 1)
            goes_on = tensor((following > steps) & (data.episode[following] == data.episode[steps]), device)
            read = np.concatenate([steps, following])
        inputs = torch.from_numpy(inputs_at(data, read, self._varying, self._dtype))
        context = self._context(steps) if self._context.names else {}
        return Rows(
            observations=self._normaliser.normalise(inputs.T).to(device),
            demonstrator=tensor(data.demonstrator[steps], device),
            action=tensor(data.actions[steps], device),
            episode=tensor(data.episode[steps], device),
            legal=None if data.legal is None else tensor(data.legal[read].T, device),
            skills=None if self._skills is None else tensor(self._skills(read).T, device),
            context={name: tensor(column.T, device) for name, column in context.items()},
            goes_on=goes_on,
        )

    def rows(self, loaded: Rows) -> Rows:
        return loaded


@final
class MiniBatches(Sampler):
    """Mini-batches of steps: every step once an epoch, in an order drawn for that epoch alone."""

    def __init__(self, training_data: TrainingData, columns: Columns) -> None:
        device, held_out = training_data.seen.device, training_data.held_out_episodes
        self._sizes, self._columns, self._is_on_cpu = training_data.sizes, columns, device.type == "cpu"
        self._weight = tensor(training_data.episode_weight, device)
        self._held_out = None if held_out is None else tensor(held_out, device)
        self._order = training_data.order()
        self._order_of_held_out = None if held_out is None else training_data.order(held_out)
        self._size = min(training_data.batch_size, self._order.length)
        self.epoch = -(-self._order.length // self._size)
        self._has_dynamics = training_data.parts.dynamics is not None
        self._shared = slice(None)
        self._loaded = self.read(0)

    def share(self, place: int, count: int) -> Sampler | None:
        return None if self._has_dynamics else share_of_batches(self, self._size, place, count)

    def read(self, step: int) -> Any:
        """What a step needs of the columns."""
        return self._columns.read(self._order.taken(step * self._size, self._size)[self._shared])

    def load(self, step: int) -> None:
        read = self.read(step)
        if self._is_on_cpu:
            self._loaded = read
            return
        for old, new in zip(_tensors(self._loaded), _tensors(read), strict=True):  # where a CUDA graph reads them
            old.copy_(new)

    def batch(self) -> Batch:
        return self._columns.rows(self._loaded).batch(self._sizes, self._weight, self._columns.data_weight)

    def everything(self, *, held_out: bool) -> Iterator[Batch]:
        whole: Tensor | None = self._columns.data_weight
        weight, order = self._weight, self._order
        if held_out and self._held_out is not None and self._order_of_held_out is not None:
            weight, order, whole = self._held_out, self._order_of_held_out, None  # weights of everybody
        size = _EVALUATED_AT_ONCE if order.length <= _MANY_STEPS else _MANY_AT_ONCE
        for first in range(0, order.length, size):
            steps = order.steps(np.arange(first, min(first + size, order.length)))
            yield self._columns.rows(self._columns.read(steps)).batch(self._sizes, weight, whole)


def _tensors(read: Any) -> list[Tensor]:
    """All tensors of what was read, in their order."""
    if isinstance(read, Tensor):
        return [read]
    return [each for each in (*read, *read.context.values()) if isinstance(each, Tensor)]


def share_of_batches(sampler: Any, size: int, place: int, count: int) -> Any:
    """A sampler that draws the same items for a step, and reads one in `count` of them; None where they are fewer."""
    if size < count:
        return None
    share = copy.copy(sampler)
    share._shared = slice(place, None, count)
    share._loaded = share.read(0)
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
    return action.T if sizes.action_size else torch.nn.functional.one_hot(action, sizes.actions).T.float()


def tensor(array: Array, device: torch.device | str = "cpu") -> Tensor:
    """A copy of the array on the device, as the models read it: real numbers are of single precision."""
    found = torch.from_numpy(np.array(array, order="C")).to(device)
    return found.float() if found.is_floating_point() else found
