"""Windows of consecutive steps, for recurrent policies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from ileed._torch import Bool, Float, Int
from ileed.demonstrations import Array
from ileed.demonstrations.collapsing import step_context
from ileed.fitting.batches import (
    Order,
    Sampler,
    TrainingData,
    action_tensor,
    steps_learned_from,
    tensor,
    with_features,
)
from ileed.model.batch import Batch, Pairs, Sizes, padded
from ileed.nets import Pick

_DRAWN_AHEAD = 64  # gradient steps whose windows are drawn together
_EVALUATED_AT_ONCE = 512  # windows scored together


@final
class Windows(Sampler):
    """Mini-batches of windows of one data set, or of several side by side, gathered on the device.

    A window begins at any step and ends after `length` steps or where its episode does; what is missing then weighs
    nothing. Every step begins a window once an epoch. To score, each episode is cut into windows from its beginning on,
    so that every step counts once, with the hidden state that the policy would have when it acts.
    """

    def __init__(self, training_sets: Sequence[TrainingData], *, device: torch.device) -> None:
        first = training_sets[0]
        self._training_sets, self._device = training_sets, device
        self._sizes = Sizes.of_all([each.sizes for each in training_sets])
        self._length, self._members = first.length, first.members
        self._longest = max(len(each.data) for each in training_sets)
        index = [each.collapsed.step_observation_index for each in training_sets]
        self._seen = self._together([each.seen.cpu().T[at] for each, at in zip(training_sets, index, strict=True)])
        self._action = self._together([action_tensor(each.data.actions, _CPU) for each in training_sets])
        self._demonstrator = self._together([tensor(each.data.demonstrator, _CPU) for each in training_sets])
        self._last = self._together([tensor(episode_ends(each.data.episode), _CPU) for each in training_sets])
        self._skills, self._legal = (  # of one data set: several with either do not stand side by side
            None if column is None else self._together([tensor(column[index[0]], _CPU)])
            for column in (first.collapsed.skills, first.collapsed.legal)
        )
        contexts = [step_context(each.data, first.context, np.arange(len(each.data))) for each in training_sets]
        self._context = {
            name: self._together([action_tensor(each[name], _CPU) for each in contexts]) for name in first.context
        }
        self._weight = self._by_member([each.step_weight for each in training_sets])
        held_out = [each.held_out for each in training_sets if each.held_out is not None]
        self._held_out = self._by_member(held_out) if held_out else None
        self._time = torch.arange(self._length, device=device)[None, :, None]
        self._offset = torch.arange(len(training_sets), device=device)[:, None] * self._longest
        self._orders = [Order(steps_learned_from(each), seed=each.seed, device=device) for each in training_sets]
        self._tiles = torch.nn.utils.rnn.pad_sequence(
            [torch.from_numpy(tiles(each.data.episode, self._length)) for each in training_sets],
            batch_first=True,
            padding_value=-1,
        ).to(device)
        self._size = min(first.batch_size, *(len(each.data) for each in training_sets))
        self.epoch = -(-self._longest // self._size)
        self._loaded = torch.zeros(len(training_sets), self._size, dtype=torch.long, device=device)
        self._ahead: tuple[int, Tensor] | None = None

    def _together(self, columns: Sequence[Tensor]) -> Tensor:
        """(data set, step, ...) on the device, with zeros where a data set is smaller."""
        rest = [max(lengths) for lengths in zip(*(column.shape[1:] for column in columns), strict=True)]
        return torch.stack([padded(column, (self._longest, *rest)) for column in columns]).to(self._device)

    def _by_member(self, weights: Sequence[Array]) -> Float[Tensor, "member step"]:
        rows = [tensor(np.broadcast_to(weight, (self._members, weight.shape[-1])), _CPU).float() for weight in weights]
        return torch.cat([padded(row, (self._members, self._longest)) for row in rows]).to(self._device)

    @property
    def can_stand_beside(self) -> bool:
        return self._skills is None and self._legal is None

    def beside(self, others: Sequence[Any], *, members: int, device: torch.device) -> Sampler:
        return Windows([each for sampler in (self, *others) for each in sampler._training_sets], device=device)

    def load(self, step: int) -> None:
        block = step // _DRAWN_AHEAD
        if self._ahead is None or self._ahead[0] != block:
            count = _DRAWN_AHEAD * self._size
            drawn = [order.taken(block * count, count).view(_DRAWN_AHEAD, self._size) for order in self._orders]
            self._ahead = block, torch.stack(drawn, dim=1)
        self._loaded.copy_(self._ahead[1][step % _DRAWN_AHEAD])

    def batch(self) -> Batch:
        return self._of(self._loaded, self._weight)

    def everything(self, *, held_out: bool) -> Iterator[Batch]:
        weight = self._held_out if held_out and self._held_out is not None else self._weight
        for starts in self._tiles.split(_EVALUATED_AT_ONCE, dim=1):
            yield self._of(starts, weight)

    def _of(self, starts: Int[Tensor, "group window"], weight: Float[Tensor, "member step"]) -> Batch:
        """The batch of the windows that begin at these steps; observations are (time step, window)."""
        begin = starts.clamp_min(0)
        last = self._last.gather(1, begin)
        steps = begin[:, None] + self._time
        inside = ((steps <= last[:, None]) & (starts[:, None] >= 0)).flatten(1)
        steps = torch.minimum(steps, last[:, None]).flatten(1)
        count = steps.shape[1]
        here = torch.arange(count, device=self._device)
        at = Pick(here, count, identity=True)
        by = Pick.drawn(self._demonstrator.gather(1, steps), self._sizes.demonstrators)
        action = self._at(steps, self._action)
        context = {name: self._at(steps, column) for name, column in self._context.items()}
        context = {name: column.mT if column.ndim == 3 else column for name, column in context.items()}
        repeated = len(starts) > 1 and not self._sizes.discrete
        return Batch(
            observations=self._at(steps, self._seen).mT,
            observation_index=at,
            demonstrator=by,
            pairs=Pairs(at, by, at),
            action=action.repeat_interleave(self._members, dim=0) if repeated else action,
            weight=self._weighed(weight, steps, inside),
            taken=Pick(action * count + here, self._sizes.actions * count) if self._sizes.discrete else None,
            legal=None if self._legal is None else self._at(steps, self._legal)[0].T,
            skills=None if self._skills is None else self._at(steps, self._skills).mT,
            context=with_features(context, self._seen.mT),
        )

    def _at(self, steps: Int[Tensor, "group row"], column: Tensor) -> Tensor:
        """(group, row, ...) of a (group, step, ...) column."""
        rows = (steps + self._offset).flatten()
        return column.flatten(0, 1).index_select(0, rows).unflatten(0, (len(column), -1))

    def _weighed(
        self,
        weight: Float[Tensor, "member step"],
        steps: Int[Tensor, "group observation"],
        inside: Bool[Tensor, "group observation"],
    ) -> Float[Tensor, "member observation"]:
        each = self._members
        return weight.gather(1, steps.repeat_interleave(each, dim=0)) * inside.repeat_interleave(each, dim=0)


_CPU = torch.device("cpu")


def episode_ends(episode: Array) -> Array:
    """For each step, the last step of its episode."""
    last = np.flatnonzero(np.append(episode[1:] != episode[:-1], True))
    return last[np.searchsorted(last, np.arange(len(episode)))]


def tiles(episode: Array, length: int) -> Array:
    """Where windows begin that cut every episode from its beginning on."""
    last = np.unique(episode_ends(episode))
    first = np.append(0, last[:-1] + 1)
    return np.concatenate([np.arange(begin, end + 1, length) for begin, end in zip(first, last, strict=True)])
