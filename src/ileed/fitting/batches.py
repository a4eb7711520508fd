"""Samplers of batches: the whole data set as counts, or mini-batches of steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from ileed._torch import Float, Int, stream
from ileed.demonstrations import Array, Collapsed, Demonstrations
from ileed.demonstrations.collapsing import step_context
from ileed.errors import SettingsError
from ileed.model.batch import Batch, Pairs, Sizes, Transitions
from ileed.nets import Pick

_EVALUATED_AT_ONCE = 4096  # steps scored together where data come in mini-batches


class Sampler(ABC):
    """Where batches come from: `load(step)` prepares what the next `batch()` returns, always of the same size."""

    epoch: int = 1
    """How many batches show all the data."""

    @property
    def can_stand_beside(self) -> bool:
        """Whether `beside` can join it with the samplers of other data sets."""
        return False

    def beside(self, others: Sequence[Any], *, members: int, device: torch.device) -> Sampler:
        """One sampler of this data set and those of others, each for as many members in a row."""
        raise NotImplementedError

    def load(self, step: int) -> None:
        """Prepare the batch of an optimisation step; nothing to do where all batches are the same."""
        return

    @abstractmethod
    def batch(self) -> Batch: ...

    @abstractmethod
    def everything(self, *, held_out: bool) -> Iterator[Batch]:
        """All of the data once, or all that is held out."""


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
    context: tuple[str, ...] = ()


@final
class WholeBatch(Sampler):
    """The same batch at every step: all of the data, as counts, so that it is exact."""

    def __init__(self, batch: Batch, sizes: Sizes, held_out: Batch | None = None) -> None:
        self._batch, self._sizes, self._held_out = batch, sizes, held_out

    @classmethod
    def of(cls, training_data: TrainingData) -> WholeBatch:
        collapsed, seen = training_data.collapsed, training_data.seen
        device = seen.device
        batch = Batch.of(
            sizes=training_data.sizes,
            observations=seen,
            observation_index=tensor(collapsed.observation_index, device),
            demonstrator=tensor(collapsed.demonstrator, device),
            action=action_tensor(collapsed.action, device),
            weight=tensor(collapsed.weights(training_data.step_weight), device).float(),
            legal=None if collapsed.legal is None else tensor(collapsed.legal.T, device),
            skills=None if collapsed.skills is None else tensor(collapsed.skills.T, device),
        )
        columns = context_tensors(collapsed.context, device)
        transitions = _collapsed_transitions(training_data) if training_data.transitions else None
        batch = replace(batch, transitions=transitions, context=with_features(columns, seen))
        held_out = None
        if training_data.held_out is not None:
            weight = tensor(collapsed.weights(training_data.held_out), device).float()
            held_out = replace(batch, weight=weight, transitions=None)
        return cls(batch, training_data.sizes, held_out)

    @property
    def can_stand_beside(self) -> bool:
        columns = (self._batch.legal, self._batch.skills, self._held_out)
        return self._sizes.discrete and all(column is None for column in columns)

    def beside(self, others: Sequence[Any], *, members: int, device: torch.device) -> Sampler:
        sizes = [each._sizes for each in (self, *others)]
        batches = [each._batch for each in (self, *others)]
        return WholeBatch(Batch.side_by_side(batches, sizes, members=members, device=device), Sizes.of_all(sizes))

    def batch(self) -> Batch:
        return self._batch

    def everything(self, *, held_out: bool) -> Iterator[Batch]:
        yield self._held_out if held_out and self._held_out is not None else self._batch


@final
class Order:
    """An endless row of items: all of them once an epoch, in an order drawn for that epoch alone."""

    def __init__(self, items: Int[Tensor, " item"], *, seed: int, device: torch.device) -> None:
        self._items, self._seed, self._device = items, seed, device
        self._epochs: dict[int, Tensor] = {}

    def taken(self, first: int, count: int) -> Int[Tensor, " count"]:
        """So many items, from a place in the row on."""
        length = len(self._items)
        epochs = range(first // length, (first + count - 1) // length + 1)
        self._epochs = {epoch: self._epochs[epoch] if epoch in self._epochs else self._drawn(epoch) for epoch in epochs}
        offset = first - epochs.start * length
        return torch.cat(list(self._epochs.values()))[offset : offset + count]

    def _drawn(self, epoch: int) -> Tensor:
        order = torch.randperm(len(self._items), generator=stream(self._seed, "order", epoch))
        return self._items[order].to(self._device)


@final
class MiniBatches(Sampler):
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
        columns = step_context(data, training_data.context, collapsed.step_observation_index)
        self._context = context_tensors(columns, device)
        continues = np.append(data.episode[1:] == data.episode[:-1], False)
        self._continues = tensor(continues, device).float() if training_data.transitions else None
        learned_from = steps_learned_from(training_data)
        self._order = Order(learned_from, seed=training_data.seed, device=device)
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
        if self._continues is not None:  # the next observations follow, as unique observations without a count
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
        context = {name: column[..., steps] for name, column in self._context.items()}
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
            context=with_features(context, self._seen),
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
    here, action, after = (
        collapsed.step_observation_index[start],
        data.actions[start],
        collapsed.step_observation_index[start + 1],
    )
    kind, chosen = np.arange(len(start)), np.arange(len(start))
    if data.discrete:
        key = (here * sizes.actions + action) * unique_count + after
        _, chosen, kind = np.unique(key, return_index=True, return_inverse=True)
    rows = step_weight[..., start].reshape(-1, len(start))
    weight = np.stack([np.bincount(kind, weights=row, minlength=len(chosen)) for row in rows])
    return Transitions(
        observation_index=Pick.of(tensor(here[chosen], device), unique_count),
        action=_action_columns(action_tensor(action[chosen], device), sizes),
        next_observation_index=Pick.of(tensor(after[chosen], device), unique_count),
        weight=tensor(weight.reshape(*step_weight.shape[:-1], -1), device).float(),
    )


def _action_columns(action: Tensor, sizes: Sizes) -> Float[Tensor, "action transition"]:
    """Actions as a network takes them: one-hot where they are discrete, as they come where not."""
    return torch.nn.functional.one_hot(action, sizes.actions).T.float() if sizes.discrete else action.T


def steps_learned_from(training_data: TrainingData) -> Int[Tensor, " step"]:
    """The steps that some member gives a weight."""
    weight = training_data.step_weight.reshape(-1, training_data.step_weight.shape[-1])
    return torch.from_numpy(np.flatnonzero(weight.sum(0) > 0))


def context_tensors(columns: Mapping[str, Array], device: torch.device) -> dict[str, Tensor]:
    """Context on the device, (row,) or (value, row)."""
    return {name: action_tensor(column.T, device) for name, column in columns.items()}


def with_features(context: Mapping[str, Tensor], seen: Float[Tensor, "*group input observation"]) -> dict[str, Tensor]:
    """Context with the inputs of previous observations, (*group, input, row), in place of their numbers."""
    found = dict(context)
    if (number := found.get("previous_observation")) is not None:
        index = number.clamp_min(0).unsqueeze(-2).expand(*seen.shape[:-1], -1)
        found["previous_observation"] = seen.gather(-1, index) * (number >= 0).unsqueeze(-2)
    return found


def action_tensor(actions: Array, device: torch.device) -> Tensor:
    """Actions as the models read them: whole numbers, or numbers of single precision."""
    found = tensor(actions, device)
    return found.float() if found.is_floating_point() else found


def tensor(array: Array, device: torch.device) -> Tensor:
    """A copy of the array on the device."""
    return torch.from_numpy(np.array(array, order="C")).to(device)
