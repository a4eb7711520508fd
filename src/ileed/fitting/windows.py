"""Windows of consecutive steps, for recurrent policies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from ileed._torch import Float, Int
from ileed.data import Array
from ileed.data.collapsing import StepContext
from ileed.fitting.batches import Sampler, TrainingData, share_of_batches, tensor
from ileed.model.batch import Batch, Pairs, Sizes, padded
from ileed.model.nets import Pick

_EVALUATED_AT_ONCE = 512  # windows scored together


@final
class Windows(Sampler):
    """Mini-batches of windows of one data set, or of several side by side, gathered on the device.

    A window ends after `length` steps or where its episode does; what is missing then weighs nothing. Every step begins
    a window once an epoch. To score, each episode is cut into windows from its beginning on, so that every step counts
    once, with the hidden state that the policy would have when it acts.
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
        self._skills, self._legal = (  # of one data set: several with either do not stand side by side
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
        self._shared = slice(None)
        self._loaded = self.read(0)

    def _together(self, columns: Sequence[Tensor]) -> Tensor:
        """(data set, step, ...) on the device, with zeros where a data set is smaller."""
        rest = [max(lengths) for lengths in zip(*(column.shape[1:] for column in columns), strict=True)]
        return torch.stack([padded(column, (self._longest, *rest)) for column in columns]).to(self._device)

    def _by_member(self, weights: Sequence[Array]) -> Float[Tensor, "member step"]:
        return self._together([tensor(weight).expand(self._members, -1).T for weight in weights]).mT.flatten(0, 1)

    def beside(self, others: Sequence[Any], *, members: int, device: torch.device) -> Sampler:
        return Windows([each for sampler in (self, *others) for each in sampler._training_sets], device=device)

    def share(self, place: int, count: int) -> Sampler | None:
        return share_of_batches(self, self._size, place, count)

    def read(self, step: int) -> Int[Tensor, "group window"]:
        """Where the windows of a step begin."""
        drawn = np.stack([order.taken(step * self._size, self._size) for order in self._orders])
        return tensor(drawn[:, self._shared], self._device)

    def load(self, step: int) -> None:
        self._loaded.copy_(self.read(step))

    def batch(self) -> Batch:
        return self._of(self._loaded, self._weight)

    def everything(self, *, held_out: bool) -> Iterator[Batch]:
        weight = self._held_out if held_out and self._held_out is not None else self._weight
        for starts in self._tiles.split(_EVALUATED_AT_ONCE, dim=1):
            yield self._of(starts, weight)

    def _of(self, starts: Int[Tensor, "group window"], weight: Float[Tensor, "member step"]) -> Batch:
        """The batch of the windows that begin at these steps; observations are (time step, window)."""
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


def episode_ends(episode: Array) -> Array:
    """For each step, the last step of its episode."""
    last = np.flatnonzero(np.append(episode[1:] != episode[:-1], True))
    return last[np.searchsorted(last, np.arange(len(episode)))]


def tiles(episode: Array, length: int) -> Array:
    """Where windows begin that cut every episode from its beginning on."""
    last = np.unique(episode_ends(episode))
    first = np.append(0, last[:-1] + 1)
    return np.concatenate([np.arange(begin, end + 1, length) for begin, end in zip(first, last, strict=True)])
