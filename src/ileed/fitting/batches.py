"""Samplers of batches: the whole data set as counts, or mini-batches of steps, demonstrators or windows."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from ileed._torch import Bool, Float, Int, stream
from ileed.data import Array, Collapsed, Demonstrations
from ileed.data.collapsing import StepContext, Uncollapsed, inputs_at, skill_rows
from ileed.errors import SettingsError
from ileed.fitting.order import Order
from ileed.model.batch import Batch, Pairs, Sizes, Transitions, padded
from ileed.model.joint import Parts
from ileed.model.nets import Pick
from ileed.model.normaliser import Normaliser

_EVALUATED_AT_ONCE = 4096  # steps in a block when the cost of all data is computed
_MANY_STEPS, _MANY_AT_ONCE = 100_000, 512  # beyond this many steps, blocks that fit into a cache take half the time
_WINDOWS_AT_ONCE = 512  # windows in such a block
_COUNTS_AT_ONCE = 1 << 16  # mean counts in a batch of demonstrators
_STEPS_AT_ONCE = 1 << 12  # the same where observations do not repeat, so that each needs its own forward pass


class Sampler(ABC):
    """A source of batches. `load(step)` prepares the next `batch()`, which depends on `step` alone.

    Laws: batches of one sampler have equal sizes, except where `demonstrators_at_once` is set; the batches of an epoch
    contain all data once; `everything` yields all data, or all held-out data, once.
    """

    epoch: int = 1
    """Number of batches that contain all the data."""
    can_stand_beside: bool = False
    """Whether `beside` can join it with the samplers of other data sets."""
    demonstrators_at_once: int | None = None
    """Number of demonstrators in a batch, if a batch has all steps of some demonstrators."""
    demonstrators: Tensor
    """(demonstrator,) indices of those in the next batch, if `demonstrators_at_once` is set."""
    visits: int
    """How many batches have contained them, including the next."""

    def beside(self, others: Sequence[Any], *, members: int, device: torch.device) -> Sampler:
        """One sampler of this data set and others, each for this number of consecutive members."""
        raise NotImplementedError(f"{type(self).__name__} stands beside no other: `can_stand_beside` is False")

    def share(self, place: int, count: int) -> Sampler | None:
        """The part of every batch that one of `count` processes reads; None if batches cannot be shared.

        The processes together read a batch once; the `data_weight` of every part is that of all the data.
        """
        return None

    def load(self, step: int) -> None:
        """Prepare the batch of an optimisation step."""
        return

    @abstractmethod
    def batch(self) -> Batch: ...

    @abstractmethod
    def everything(self, *, held_out: bool) -> Iterator[Batch]:
        """All data once, or all held-out data."""


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class TrainingData:
    """What a sampler is made from."""

    data: Demonstrations
    parts: Parts
    collapsed: Collapsed | Uncollapsed
    sizes: Sizes
    seen: Float[Tensor, "input observation"]  # unique observations on the device; none if the data did not collapse
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
        """Number of counts, or of steps if the data did not collapse."""
        return len(self.counts.observation_index) if self.collapsed.repeats else len(self.data)

    @cached_property
    def legal(self) -> Bool[Tensor, "action observation"] | None:
        """Legal actions at unique observations, on the device."""
        return None if self.counts.legal is None else tensor(self.counts.legal.T, self.seen.device)

    @cached_property
    def skills(self) -> Float[Tensor, "skill observation"] | None:
        """Skill weights at unique observations, on the device."""
        return None if self.counts.skills is None else tensor(self.counts.skills.T, self.seen.device)

    @cached_property
    def step_weight(self) -> Array:
        """(*member, step) weights."""
        return self.episode_weight[..., self.data.episode]

    @cached_property
    def held_out(self) -> Array | None:
        """(step,) weights of what is held out."""
        return None if self.held_out_episodes is None else self.held_out_episodes[self.data.episode]

    def order(self, weight: Array | None = None) -> Order:
        """The order of the steps to which some member gives a weight, by (*member, episode) weights."""
        weight = self.episode_weight if weight is None else weight
        chosen = weight.reshape(-1, weight.shape[-1]).sum(0) > 0
        return Order(self.data.episode_bounds, chosen, seed=self.seed)


@final
class WholeBatch(Sampler):
    """All data as counts: the same exact batch at every step."""

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
            legal=training_data.legal,
            skills=training_data.skills,
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
        """Some unique observations, with all their counts."""
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
    """Some steps: each is a unique observation and a count of its own.

    With dynamics, `observations` are followed by the next ones, and `goes_on` is 0 where there is none.
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
        """The batch of these steps; `data_weight` is that of the data set."""
        size, unique_count, transitions = len(self.demonstrator), self.observations.shape[1], None
        weight = episode_weight[..., self.episode]
        here = torch.arange(size, device=self.demonstrator.device)
        if self.goes_on is not None:  # the next observations are unique observations without a count
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


@final
class ColumnsOnDevice:
    """The columns of mini-batches on the device, where rows are gathered."""

    def __init__(self, training_data: TrainingData) -> None:
        data, collapsed, device = training_data.data, training_data.counts, training_data.seen.device
        self._seen, self._device = training_data.seen, device
        self._observation_index = tensor(collapsed.step_observation_index, device)
        self._action, self._demonstrator = tensor(data.actions, device), tensor(data.demonstrator, device)
        self._episode = tensor(data.episode, device)
        self._legal, self._skills = training_data.legal, training_data.skills
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
class ColumnsOnDisk:
    """The columns of mini-batches on disk, of which rows are read and normalised when a batch is loaded."""

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


class _DrawnBatches(Sampler):
    """Batches of `_size` items per step, of which each process of a team reads its `_shared` part."""

    _size: int
    _shared = slice(None)
    _loaded: Any

    @abstractmethod
    def read(self, step: int) -> Any:
        """What has to be read before the batch of a step: a tensor, or a named tuple of tensors."""

    def share(self, place: int, count: int) -> Sampler | None:
        if self._size < count:
            return None
        share = copy.copy(self)
        share._shared = slice(place, None, count)
        share._loaded = share.read(0)
        return share

    def load(self, step: int) -> None:
        read = self.read(step)
        loaded, tensors = _tensors(self._loaded), _tensors(read)
        if tensors[0].device.type == "cpu":
            self._loaded = read
            return
        for old, new in zip(loaded, tensors, strict=True):  # a CUDA graph reads this memory
            old.copy_(new)


def _tensors(read: Any) -> list[Tensor]:
    """All tensors of what was read, in order."""
    if isinstance(read, Tensor):
        return [read]
    return [each for each in (*read, *read.context.values()) if isinstance(each, Tensor)]


@final
class MiniBatches(_DrawnBatches):
    """Mini-batches of steps: every step once per epoch, in an order drawn for that epoch."""

    def __init__(self, training_data: TrainingData, columns: ColumnsOnDevice | ColumnsOnDisk) -> None:
        device, held_out = training_data.seen.device, training_data.held_out_episodes
        self._columns: Any = columns
        self._sizes = training_data.sizes
        self._weight = tensor(training_data.episode_weight, device)
        self._held_out = None if held_out is None else tensor(held_out, device)
        self._order = training_data.order()
        self._order_of_held_out = None if held_out is None else training_data.order(held_out)
        self._size = min(training_data.batch_size, self._order.length)
        self.epoch = -(-self._order.length // self._size)
        self._has_dynamics = training_data.parts.dynamics is not None
        self._loaded = self.read(0)

    def share(self, place: int, count: int) -> Sampler | None:
        return None if self._has_dynamics else super().share(place, count)

    def read(self, step: int) -> Any:
        return self._columns.read(self._order.taken(step * self._size, self._size)[self._shared])

    def batch(self) -> Batch:
        return self._columns.rows(self._loaded).batch(self._sizes, self._weight, self._columns.data_weight)

    def everything(self, *, held_out: bool) -> Iterator[Batch]:
        whole: Tensor | None = self._columns.data_weight
        weight, order = self._weight, self._order
        if held_out and self._held_out is not None and self._order_of_held_out is not None:
            weight, order, whole = self._held_out, self._order_of_held_out, None
        size = _EVALUATED_AT_ONCE if order.length <= _MANY_STEPS else _MANY_AT_ONCE
        for first in range(0, order.length, size):
            steps = order.steps(np.arange(first, min(first + size, order.length)))
            yield self._columns.rows(self._columns.read(steps)).batch(self._sizes, weight, whole)


@final
class DemonstratorBatches(Sampler):
    """Mini-batches with all counts of some demonstrators, for data with very many of them.

    A step of all data would take long, and a mini-batch of steps would show one step of a demonstrator and move the
    parameters of all. Time and memory of a step do not depend on the number of demonstrators. Each appears once per
    epoch, in an order drawn for that epoch, except that the last batch of an epoch is filled with earlier ones.
    """

    def __init__(self, training_data: TrainingData, *, repeats: bool) -> None:
        collapsed, device = training_data.counts, training_data.seen.device
        order = np.argsort(collapsed.demonstrator, kind="stable")
        length = np.bincount(collapsed.demonstrator, minlength=training_data.sizes.demonstrators)
        self._length, self._first = tensor(length, device), tensor(np.cumsum(length) - length, device)
        self._sizes, self._seen, self._device = training_data.sizes, training_data.seen, device
        self._observation_index = tensor(collapsed.observation_index[order], device)
        self._demonstrator = tensor(collapsed.demonstrator[order], device)
        self._action = tensor(collapsed.action[order], device)
        self._legal, self._skills = training_data.legal, training_data.skills
        self._context = {name: tensor(column[order].T, device) for name, column in collapsed.context.items()}

        def by_count(episode_weight: Array) -> Tensor:
            rows = episode_weight.reshape(-1, episode_weight.shape[-1])
            each = [collapsed.weights(training_data.data, row)[order] for row in rows]
            return torch.stack([tensor(row, device) for row in each]).reshape(*episode_weight.shape[:-1], -1)

        held_out = training_data.held_out_episodes
        self._weight = by_count(training_data.episode_weight)
        self._held_out = None if held_out is None else by_count(held_out)
        items, seed = torch.from_numpy(np.flatnonzero(length)), training_data.seed
        at_once = (_COUNTS_AT_ONCE if repeats else _STEPS_AT_ONCE) * len(items) // len(order)
        self._size = self.demonstrators_at_once = min(max(1, at_once), len(items))
        self.epoch = -(-len(items) // self._size)

        def shuffled(epoch: int) -> Tensor:
            return items[torch.randperm(len(items), generator=stream(seed, "order of people", epoch))].to(device)

        self._items, self._shuffled = items.to(device), lru_cache(maxsize=2)(shuffled)
        self.load(0)

    def load(self, step: int) -> None:
        epoch, number = divmod(step, self.epoch)
        order, size = self._shuffled(epoch), self._size
        first = min(number * size, len(order) - size)
        self.demonstrators, self.visits = order[first : first + size], epoch + 1

    def batch(self) -> Batch:
        return self._of(self.demonstrators, self._weight, of_part=True)

    def everything(self, *, held_out: bool) -> Iterator[Batch]:
        weight = self._held_out if held_out and self._held_out is not None else self._weight
        for some in self._items.split(self._size):
            yield self._of(some, weight, of_part=False)

    def _of(self, chosen: Int[Tensor, " demonstrator"], weight: Tensor, *, of_part: bool) -> Batch:
        """The counts of these demonstrators, who are numbered among themselves if the batch is for `PartialJoint`."""
        length = self._length[chosen]
        place = torch.repeat_interleave(torch.arange(len(chosen), device=self._device), length)
        rows = (self._first[chosen] - length.cumsum(0) + length)[place] + torch.arange(len(place), device=self._device)
        index, seen, legal, skills = self._observation_index[rows], self._seen, self._legal, self._skills
        if seen.shape[1] > len(rows):
            used, index = torch.unique(index, return_inverse=True)
            seen = seen.index_select(1, used)
            legal, skills = (None if each is None else each.index_select(1, used) for each in (legal, skills))
        finite, unique_count = legal is None, seen.shape[1]
        at = Pick.drawn(index, unique_count, finite=finite)
        by = Pick.drawn(place, len(chosen)) if of_part else Pick.drawn(chosen[place], self._sizes.demonstrators)
        action = self._action[rows]
        context = {name: column[..., rows] for name, column in self._context.items()}
        return Batch(
            observations=seen,
            observation_index=at,
            demonstrator=by,
            pairs=Pairs(at, by, Pick(torch.arange(len(rows), device=self._device), len(rows), identity=True)),
            action=action,
            weight=weight[..., rows],
            taken=self._sizes.taken(action, index, unique_count, partial(Pick.drawn, finite=finite)),
            legal=legal,
            skills=skills,
            context=context,
        )


@final
class Windows(_DrawnBatches):
    """Mini-batches of windows of consecutive steps, of one data set or several side by side, for recurrent policies.

    A window ends after `length` steps or with its episode; missing steps have no weight. Every step begins a window
    once per epoch. For costs, each episode is split into windows from its first step, so that every step counts once,
    with the hidden state that the policy has when it acts.
    """

    def __init__(self, training_sets: Sequence[TrainingData], *, device: torch.device) -> None:
        first = training_sets[0]
        self._training_sets, self._device, self._members = training_sets, device, first.members
        self._sizes = Sizes.of_all([each.sizes for each in training_sets])
        self._longest, length = max(len(each.data) for each in training_sets), first.parts.policy.length
        index = [each.counts.step_observation_index for each in training_sets]
        self._seen = self._together([each.seen.cpu().T[at] for each, at in zip(training_sets, index, strict=True)])
        self._action = self._together([tensor(each.data.actions) for each in training_sets])
        self._demonstrator = self._together([tensor(each.data.demonstrator) for each in training_sets])
        self._last = self._together([tensor(episode_ends(each.data.episode)) for each in training_sets])
        self._skills, self._legal = (  # of one data set: those with either are not joined
            None if column is None else self._together([tensor(column[index[0]])])
            for column in (first.counts.skills, first.counts.legal)
        )
        self.can_stand_beside = self._skills is None and self._legal is None
        names = first.parts.context
        contexts = [StepContext(each.data, names)(np.arange(len(each.data))) for each in training_sets]
        self._context = {name: self._together([tensor(each[name]) for each in contexts]) for name in names}
        self._weight = self._by_member([each.step_weight for each in training_sets])
        self._data_weight = self._weight.sum(-1)
        held_out = [each.held_out for each in training_sets if each.held_out is not None]
        self._held_out = self._by_member(held_out) if held_out else None
        self._time = torch.arange(length, device=device)[None, :, None]
        self._offset = torch.arange(len(training_sets), device=device)[:, None] * self._longest
        self._orders = [each.order() for each in training_sets]
        begins = [torch.from_numpy(tiles(each.data.episode, length)) for each in training_sets]
        self._tiles = torch.nn.utils.rnn.pad_sequence(begins, batch_first=True, padding_value=-1).to(device)
        self._size = min(first.batch_size, *(len(each.data) for each in training_sets))
        self.epoch = -(-self._longest // self._size)
        self._loaded = self.read(0)

    def _together(self, columns: Sequence[Tensor]) -> Tensor:
        """(data set, step, ...) on the device, padded with zeros."""
        rest = [max(lengths) for lengths in zip(*(column.shape[1:] for column in columns), strict=True)]
        return torch.stack([padded(column, (self._longest, *rest)) for column in columns]).to(self._device)

    def _by_member(self, weights: Sequence[Array]) -> Float[Tensor, "member step"]:
        return self._together([tensor(weight).expand(self._members, -1).T for weight in weights]).mT.flatten(0, 1)

    def beside(self, others: Sequence[Any], *, members: int, device: torch.device) -> Sampler:
        return Windows([each for sampler in (self, *others) for each in sampler._training_sets], device=device)

    def read(self, step: int) -> Int[Tensor, "group window"]:
        """The first steps of the windows of a batch."""
        drawn = np.stack([order.taken(step * self._size, self._size) for order in self._orders])
        return tensor(drawn[:, self._shared], self._device)

    def batch(self) -> Batch:
        return self._of(self._loaded, self._weight)

    def everything(self, *, held_out: bool) -> Iterator[Batch]:
        weight = self._held_out if held_out and self._held_out is not None else self._weight
        for starts in self._tiles.split(_WINDOWS_AT_ONCE, dim=1):
            yield self._of(starts, weight)

    def _of(self, starts: Int[Tensor, "group window"], weight: Float[Tensor, "member step"]) -> Batch:
        """The batch of windows that begin at these steps; observations are (time step, window)."""
        begin, sizes = starts.clamp_min(0), self._sizes
        last = self._at(begin, self._last)
        steps = begin[:, None] + self._time
        inside = ((steps <= last[:, None]) & (starts[:, None] >= 0)).flatten(1)
        steps = torch.minimum(steps, last[:, None]).flatten(1)
        count = steps.shape[1]
        here = torch.arange(count, device=self._device)
        at = Pick(here, count, identity=True)
        by = Pick.drawn(self._at(steps, self._demonstrator), sizes.demonstrators)
        action = self._at(steps, self._action)
        context = {name: self._at(steps, column) for name, column in self._context.items()}
        context = {name: column.mT if column.ndim == 3 else column for name, column in context.items()}
        steps_of, inside_of = (each.repeat_interleave(self._members, dim=0) for each in (steps, inside))
        taken = sizes.taken(action, here, count)
        repeated = len(starts) > 1 and taken is None
        return Batch(
            observations=self._at(steps, self._seen).mT,
            observation_index=at,
            demonstrator=by,
            pairs=Pairs(at, by, at),
            action=action.repeat_interleave(self._members, dim=0) if repeated else action,
            weight=weight.gather(1, steps_of) * inside_of,
            taken=taken,
            legal=None if self._legal is None else self._at(steps, self._legal)[0].T,
            skills=None if self._skills is None else self._at(steps, self._skills).mT,
            context=context,
            data_weight=self._data_weight,
        )

    def _at(self, steps: Int[Tensor, "group row"], column: Tensor) -> Tensor:
        """(group, row, ...) of a (group, step, ...) column."""
        rows = (steps + self._offset).flatten()
        return column.flatten(0, 1).index_select(0, rows).unflatten(0, (len(column), -1))


def _collapsed_transitions(training_data: TrainingData) -> Transitions:
    """Distinct (observation, action, next observation) of all steps but the last of each episode, with weights."""
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
    """Actions as inputs of a network: one-hot if they are discrete."""
    return action.T if sizes.action_size else torch.nn.functional.one_hot(action, sizes.actions).T.float()


def tensor(array: Array, device: torch.device | str = "cpu") -> Tensor:
    """A copy of the array on the device, in single precision if it has real numbers."""
    found = torch.from_numpy(np.array(array, order="C")).to(device)
    return found.float() if found.is_floating_point() else found


def episode_ends(episode: Array) -> Array:
    """The last step of each step's episode."""
    last = np.flatnonzero(np.append(episode[1:] != episode[:-1], True))
    return last[np.searchsorted(last, np.arange(len(episode)))]


def tiles(episode: Array, length: int) -> Array:
    """The first steps of windows that split every episode from its first step."""
    last = np.unique(episode_ends(episode))
    first = np.append(0, last[:-1] + 1)
    return np.concatenate([np.arange(begin, end + 1, length) for begin, end in zip(first, last, strict=True)])
