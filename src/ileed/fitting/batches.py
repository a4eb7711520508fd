"""Supplies of batches: the whole data set as counts, or mini-batches of steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol, final, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from ileed._torch import Float, Int, stream
from ileed.demonstrations import Array, Collapsed, Demonstrations
from ileed.errors import SettingsError
from ileed.model.batch import Batch, Pairs, Sizes, Transitions
from ileed.nets import Pick

_EVALUATED_AT_ONCE = 4096  # steps scored together where data come in mini-batches


@runtime_checkable
class Sampler(Protocol):
    """Where batches come from: `load(step)` prepares what the next `batch()` returns, always of the same size.

    `epoch` is how many batches show all the data; one where each holds them all.
    """

    @property
    def epoch(self) -> int: ...

    def load(self, step: int) -> None: ...

    def batch(self) -> Batch: ...

    def everything(self, *, held_out: bool) -> Iterator[Batch]: ...


@final
@dataclass(frozen=True, eq=False)
class TrainingData:
    """What a sampler is made from."""

    data: Demonstrations
    collapsed: Collapsed
    sizes: Sizes
    seen: Float[Tensor, "input observation"]
    step_weight: Array  # (*member, step)
    held_out: Array | None  # (step,)
    batch_size: int
    seed: int
    transitions: bool
    members: int
    length: int


@final
class WholeBatch:
    """Every step in every batch, as counts of distinct acts: exact, and the same tensors from first to last."""

    def __init__(self, training_data: TrainingData) -> None:
        collapsed, sizes = training_data.collapsed, training_data.sizes
        seen, device = training_data.seen, training_data.seen.device
        self._batch = Batch.of(
            sizes=sizes,
            observations=seen,
            observation_index=tensor(collapsed.observation_index, device),
            demonstrator=tensor(collapsed.demonstrator, device),
            action=action_tensor(collapsed.action, device),
            weight=tensor(collapsed.weights(training_data.step_weight), device).float(),
            legal=None if collapsed.legal is None else tensor(collapsed.legal.T, device),
            skills=None if collapsed.skills is None else tensor(collapsed.skills.T, device),
            transitions=_collapsed_transitions(training_data) if training_data.transitions else None,
        )
        self.epoch = 1
        self._held_out = self._batch
        if training_data.held_out is not None:
            weight = tensor(collapsed.weights(training_data.held_out), device).float()
            self._held_out = replace(self._batch, weight=weight, transitions=None)

    def load(self, step: int) -> None:
        pass

    def batch(self) -> Batch:
        return self._batch

    def everything(self, *, held_out: bool) -> Iterator[Batch]:
        yield self._held_out if held_out else self._batch


@final
@dataclass(frozen=True, eq=False)
class FixedBatch:
    """One batch for ever."""

    _batch: Batch
    epoch: int = 1

    def load(self, step: int) -> None:
        pass

    def batch(self) -> Batch:
        return self._batch

    def everything(self, *, held_out: bool) -> Iterator[Batch]:
        yield self._batch


@final
class Order:
    """An endless row of items: all of them once an epoch, in an order drawn for that epoch alone."""

    def __init__(self, items: Int[Tensor, " item"], *, seed: int, device: torch.device) -> None:
        self._items, self._seed, self._device = items, seed, device
        self._epochs: dict[int, Tensor] = {}

    def taken(self, first: int, count: int) -> Int[Tensor, " count"]:
        """So many items from a unique observation in the row on."""
        length = len(self._items)
        epochs = range(first // length, (first + count - 1) // length + 1)
        self._epochs = {epoch: self._epochs[epoch] if epoch in self._epochs else self._drawn(epoch) for epoch in epochs}
        offset = first - epochs.start * length
        return torch.cat(list(self._epochs.values()))[offset : offset + count]

    def _drawn(self, epoch: int) -> Tensor:
        order = torch.randperm(len(self._items), generator=stream(self._seed, "order", epoch))
        return self._items[order].to(self._device)


@final
class MiniBatches:
    """Mini-batches of steps: every step once an epoch, in an order drawn for that epoch alone."""

    def __init__(self, training_data: TrainingData) -> None:
        data, collapsed, sizes = training_data.data, training_data.collapsed, training_data.sizes
        seen, device = training_data.seen, training_data.seen.device
        self._sizes, self._seen = sizes, seen
        self._observation_index = tensor(collapsed.step_observation_index, device)
        self._action = action_tensor(data.actions, device)
        self._demonstrator = tensor(data.demonstrator, device)
        self._weight = tensor(training_data.step_weight, device).float()
        self._held_out = None if training_data.held_out is None else tensor(training_data.held_out, device).float()
        self._legal = None if collapsed.legal is None else tensor(collapsed.legal.T, device)
        self._skills = None if collapsed.skills is None else tensor(collapsed.skills.T, device)
        continues = np.append(data.episode[1:] == data.episode[:-1], False)
        self._continues = tensor(continues, device).float() if training_data.transitions else None
        learned_from = np.flatnonzero(training_data.step_weight.reshape(-1, len(data)).sum(0) > 0)
        self._order = Order(torch.from_numpy(learned_from), seed=training_data.seed, device=device)
        self._size = min(training_data.batch_size, len(learned_from))
        self.epoch = -(-len(learned_from) // self._size)
        self._loaded = torch.zeros(self._size, dtype=torch.long, device=device)

    def load(self, step: int) -> None:
        self._loaded.copy_(self._order.taken(step * self._size, self._size))

    def batch(self) -> Batch:
        return self._of(self._loaded, self._weight)

    def everything(self, *, held_out: bool) -> Iterator[Batch]:
        weight = self._held_out if held_out and self._held_out is not None else self._weight
        used = torch.nonzero(weight.reshape(-1, weight.shape[-1]).sum(0)).flatten()
        for steps in used.split(_EVALUATED_AT_ONCE):
            yield self._of(steps, weight)

    def _of(self, steps: Tensor, weight: Tensor) -> Batch:
        """The batch of these steps: each one a unique observation and a count of its own."""
        size = len(steps)
        here = torch.arange(size, device=steps.device)
        observation_index = self._observation_index[steps]
        action = self._action[steps]
        transitions = None
        observations = self._seen.index_select(1, observation_index)
        if self._continues is not None:  # what was seen next stands behind, as unique observations without a count
            following = (steps + 1).clamp_max(len(self._observation_index) - 1)
            observations = torch.cat(
                [observations, self._seen.index_select(1, self._observation_index[following])], dim=1
            )
            transitions = Transitions(
                observation_index=Pick(here, 2 * size),
                action=_action_columns(action, self._sizes),
                next_observation_index=Pick(here + size, 2 * size),
                weight=weight[..., steps] * self._continues[steps],
            )
        unique_count = observations.shape[1]
        at = Pick(here, unique_count, identity=unique_count == size)
        by = Pick.drawn(self._demonstrator[steps], self._sizes.demonstrators)
        return Batch(
            observations=observations,
            observation_index=at,
            demonstrator=by,
            pairs=Pairs(at, by, Pick(here, size, identity=True)),
            action=action,
            weight=weight[..., steps],
            taken=Pick(action * unique_count + here, self._sizes.actions * unique_count)
            if self._sizes.discrete
            else None,
            legal=self._beside(self._legal, observation_index, unique_count),
            skills=self._beside(self._skills, observation_index, unique_count),
            transitions=transitions,
        )

    @staticmethod
    def _beside(columns: Tensor | None, observation_index: Tensor, unique_count: int) -> Tensor | None:
        """Columns by unique observation; one without a count repeats the first, since nothing reads it."""
        if columns is None:
            return None
        chosen = columns.index_select(1, observation_index)
        return chosen if unique_count == len(observation_index) else torch.cat([chosen, chosen], dim=1)


def _collapsed_transitions(training_data: TrainingData) -> Transitions:
    """Counted distinct (observation, action, next observation) of steps that are not the last of their episode."""
    data, collapsed, sizes = training_data.data, training_data.collapsed, training_data.sizes
    step_weight, device = training_data.step_weight, training_data.seen.device
    start = np.flatnonzero(data.episode[1:] == data.episode[:-1])
    if len(start) == 0:
        raise SettingsError("LatentDynamics needs an episode of two steps or more, and the data have none")
    unique_count = collapsed.observations.shape[0]
    here, after = collapsed.step_observation_index[start], collapsed.step_observation_index[start + 1]
    if data.discrete:
        key, kind = np.unique((here * sizes.actions + data.actions[start]) * unique_count + after, return_inverse=True)
        here, action, after = (
            key // unique_count // sizes.actions,
            key // unique_count % sizes.actions,
            key % unique_count,
        )
    else:
        kind, action = np.arange(len(start)), data.actions[start]
    rows = step_weight[..., start].reshape(-1, len(start))
    weight = np.stack([np.bincount(kind, weights=row, minlength=len(here)) for row in rows])
    return Transitions(
        observation_index=Pick.of(tensor(here, device), unique_count),
        action=_action_columns(action_tensor(action, device), sizes),
        next_observation_index=Pick.of(tensor(after, device), unique_count),
        weight=tensor(weight.reshape(*step_weight.shape[:-1], -1), device).float(),
    )


def _action_columns(action: Tensor, sizes: Sizes) -> Float[Tensor, "action transition"]:
    """Actions as a network takes them: one-hot where they are discrete, as they come where not."""
    return torch.nn.functional.one_hot(action, sizes.actions).T.float() if sizes.discrete else action.T


def action_tensor(actions: Array, device: torch.device) -> Tensor:
    """Actions as the models read them: whole numbers, or numbers of single precision."""
    found = tensor(actions, device)
    return found.float() if found.is_floating_point() else found


def tensor(array: Array, device: torch.device) -> Tensor:
    """A copy of the array on the device."""
    return torch.from_numpy(np.array(array, order="C")).to(device)
