"""Mini-batches of mapped columns: steps in an order that needs no memory, and their rows when a batch is loaded."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import final

import numpy as np
import torch
from torch import Tensor

from ileed._torch import numpy_stream
from ileed.demonstrations import Array
from ileed.demonstrations.streaming import StepContext, inputs_at, skill_rows
from ileed.fitting.batches import Rows, Sampler, TrainingData, draw_order, evaluated_at_once, keep_two, tensor
from ileed.model.batch import Batch
from ileed.model.normaliser import Normaliser

_DRAWN_AT_ONCE = 1 << 24  # an epoch of so many steps or fewer is drawn as in memory; a longer one is computed
_COMPUTED_AT_ONCE = 1 << 14  # places of it, of which each batch then takes its own
_ROUNDS = 6


@final
class StepOrder:
    """An endless row of the steps of some episodes: all of them once an epoch, in an order for that epoch alone."""

    def __init__(self, bounds: Array, chosen: Array, *, seed: int) -> None:
        self._episodes = np.flatnonzero(chosen)
        self._bounds, self._ends = bounds, np.cumsum(np.diff(bounds)[self._episodes])
        self.length, self._seed = int(self._ends[-1]), seed
        self._kept: dict[int, Array] = {}

    def taken(self, first: int, count: int) -> Array:
        """So many steps, from a place in the row on."""
        epochs = range(first // self.length, (first + count - 1) // self.length + 1)
        parts = []
        for epoch in epochs:
            low, high = max(first, epoch * self.length), min(first + count, (epoch + 1) * self.length)
            place = np.arange(low, high) - epoch * self.length
            if self.length <= _DRAWN_AT_ONCE:
                parts.append(keep_two(self._kept, epoch, self._drawn)[place])
            else:
                parts.append(self._computed(place, epoch))
        return self.steps(np.concatenate(parts))

    def _drawn(self, epoch: int) -> Array:
        found: Array = draw_order(self.length, self._seed, epoch).numpy()
        return found

    def _computed(self, place: Array, epoch: int) -> Array:
        """Where the order of an epoch sends places in a row, computed for many batches at a time."""
        per_epoch = -(-self.length // _COMPUTED_AT_ONCE)
        first, last = (int(place[end]) // _COMPUTED_AT_ONCE for end in (0, -1))

        def part(number: int) -> Array:
            start = number % per_epoch * _COMPUTED_AT_ONCE
            places = np.arange(start, min(start + _COMPUTED_AT_ONCE, self.length))
            return permuted(places, self.length, seed=self._seed, epoch=epoch)

        numbers = range(epoch * per_epoch + first, epoch * per_epoch + last + 1)
        found = np.concatenate([keep_two(self._kept, number, part) for number in numbers])
        return np.asarray(found[place - first * _COMPUTED_AT_ONCE])

    def steps(self, place: Array) -> Array:
        """The steps at some places of the episodes one after the other."""
        if len(self._episodes) == len(self._bounds) - 1:
            return place
        number = np.searchsorted(self._ends, place, side="right")
        steps: Array = self._bounds[self._episodes[number] + 1] - (self._ends[number] - place)
        return steps


def permuted(place: Array, length: int, *, seed: int, epoch: int) -> Array:
    """Where a random permutation of 0, ..., length - 1 sends some places, without the rest of it.

    A Feistel network permutes the numbers of as many bits as `length - 1` has; one that leaves the range is sent on
    until it is inside again, which takes less than two turns in the mean (Black and Rogaway, 2002).
    """
    bits = max(2, (length - 1).bit_length())
    low_bits, mask = bits // 2, np.uint64((1 << (bits // 2)) - 1)
    high_mask = np.uint64((1 << (bits - low_bits)) - 1)
    keys = numpy_stream(seed, "order", epoch).integers(0, 2**63, size=_ROUNDS, dtype=np.uint64)
    found, outside = place.astype(np.uint64), np.arange(len(place))
    while len(outside):
        value = found[outside]
        low, high = value & mask, value >> np.uint64(low_bits)
        for number, key in enumerate(keys):
            if number % 2:
                low ^= _mixed(high, key) & mask
            else:
                high ^= _mixed(low, key) & high_mask
        found[outside] = (high << np.uint64(low_bits)) | low
        outside = outside[found[outside] >= length]
    return found.astype(np.int64)


def _mixed(value: Array, key: np.uint64) -> Array:
    """64 bits of which each depends on all of the value's (the finaliser of splitmix64)."""
    mixed = (value + key) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: Array = mixed ^ (mixed >> np.uint64(31))
    return found


@final
class StreamedBatches(Sampler):
    """Mini-batches of steps, as `MiniBatches` has them, whose rows are read from mapped columns when they are loaded.

    With as many steps as `MiniBatches` can draw at once, both draw the same.
    """

    def __init__(self, training_data: TrainingData, normaliser: Normaliser, *, device: torch.device) -> None:
        data, parts = training_data.data, training_data.parts
        self._data, self._sizes, self._device = data, training_data.sizes, device
        self._normaliser = normaliser
        self._varying, self._dtype = training_data.collapsed.varying, training_data.collapsed.dtype
        self._has_dynamics = parts.dynamics is not None
        self._context = StepContext(data, parts.context)
        column = parts.expertise.skill_column
        self._skills = None if column is None else skill_rows(data, column)[1]
        self._weight, self._held_out = training_data.episode_weight, training_data.held_out_episodes
        bounds = data.episode_bounds
        self._data_weight = tensor(np.asarray((self._weight * np.diff(bounds)).sum(-1)), device)
        self._order = self._order_of(self._weight, training_data.seed)
        self._size = min(training_data.batch_size, self._order.length)
        self.epoch = -(-self._order.length // self._size)
        self._shared = slice(None)
        self._loaded = self._drawn(0)

    def share(self, place: int, count: int) -> Sampler | None:
        if self._has_dynamics or self._size < count:
            return None
        share = copy.copy(self)
        share._shared = slice(place, None, count)
        share._loaded = share._drawn(0)
        return share

    def _drawn(self, step: int) -> Rows:
        return self._rows(self._order.taken(step * self._size, self._size)[self._shared], self._weight)

    def _order_of(self, weight: Array, seed: int) -> StepOrder:
        chosen = weight.reshape(-1, weight.shape[-1]).sum(0) > 0
        return StepOrder(self._data.episode_bounds, chosen, seed=seed)

    def load(self, step: int) -> None:
        rows = self._drawn(step)
        if self._device.type == "cpu":
            self._loaded = rows
            return
        for old, new in zip(_tensors(self._loaded), _tensors(rows), strict=True):  # where a CUDA graph reads them
            old.copy_(new)

    def batch(self) -> Batch:
        return self._loaded.batch(self._sizes, self._data_weight)

    def everything(self, *, held_out: bool) -> Iterator[Batch]:
        weight = self._held_out if held_out and self._held_out is not None else self._weight
        order = self._order_of(weight, 0)
        size = evaluated_at_once(order.length)
        for first in range(0, order.length, size):
            steps = order.steps(np.arange(first, min(first + size, order.length)))
            yield self._rows(steps, weight).batch(self._sizes, self._data_weight if weight is self._weight else None)

    def _rows(self, steps: Array, weight: Array) -> Rows:
        data, device, goes_on = self._data, self._device, None
        read = steps
        if self._has_dynamics:  # the next observations follow
            following = np.minimum(steps + 1, len(data) - 1)
            goes_on = tensor((following > steps) & (data.episode[following] == data.episode[steps]), device)
            read = np.concatenate([steps, following])
        context = self._context(steps) if self._context.names else {}
        if (before := context.get("previous_policy")) is not None:  # the observations before follow too
            context["previous_policy"] = np.where(before < 0, -1, np.arange(len(steps)) + len(read))
            read = np.concatenate([read, before.clip(min=0)])
        return Rows(
            observations=self._inputs(read),
            demonstrator=tensor(data.demonstrator[steps], device),
            action=tensor(data.actions[steps], device),
            weight=tensor(weight[..., data.episode[steps]], device),
            legal=None if data.legal is None else tensor(data.legal[read].T, device),
            skills=None if self._skills is None else tensor(self._skills(read).T, device),
            context=self._context_tensors(context),
            goes_on=goes_on,
        )

    def _inputs(self, steps: Array) -> Tensor:
        rows = torch.from_numpy(inputs_at(self._data, steps, self._varying, self._dtype))
        return self._normaliser.normalise(rows.T).to(self._device)

    def _context_tensors(self, columns: Mapping[str, Array]) -> Mapping[str, Tensor]:
        found = {name: tensor(column.T, self._device) for name, column in columns.items()}
        if "previous_observation" in columns:
            before = self._inputs(columns["previous_observation"].clip(min=0))
            found["previous_observation"] = before * (found["previous_observation"] >= 0)
        return found


def _tensors(rows: Rows) -> list[Tensor]:
    """All tensors of some rows, in their order."""
    plain = [each for each in rows if isinstance(each, Tensor)]
    return [*plain, *rows.context.values()]
