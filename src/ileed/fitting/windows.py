"""Windows of steps in a row, for policies with a memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import final

import numpy as np
import torch
from torch import Tensor

from ileed._torch import Bool, Float, Int
from ileed.demonstrations import Array
from ileed.fitting.batches import Order, TrainingData, action_tensor, tensor
from ileed.model.batch import Batch, Pairs, Sizes, padded
from ileed.nets import Pick

_DRAWN_AHEAD = 64  # gradient steps whose windows are drawn together
_EVALUATED_AT_ONCE = 512  # windows scored together


@final
class Windows:
    """Mini-batches of windows of one data set, or of several side by side, gathered on the device.

    A window begins at any step and ends after `length` steps or where its episode does; what is missing then weighs
    nothing. Every step begins a window once an epoch. To score, each episode is cut into windows from its beginning on,
    so that every step counts once, remembered as far back as when the policy acts.
    """

    def __init__(self, training_sets: Sequence[TrainingData], *, device: torch.device) -> None:
        first = training_sets[0]
        self._sizes = Sizes.of_all([training_data.sizes for training_data in training_sets])
        self._length, self._members, self._device = first.length, first.members, device
        longest = max(len(training_data.data) for training_data in training_sets)

        def together(columns: Sequence[Tensor], *shape: int) -> Tensor:
            """(data set, step, ...) on the device, with zeros where a data set is shorter."""
            return torch.stack([padded(column, (longest, *shape)) for column in columns]).to(device)

        inputs = self._sizes.inputs
        self._seen = together([m.seen.cpu().T[m.collapsed.step_observation_index] for m in training_sets], inputs)
        self._action = together([action_tensor(m.data.actions, _CPU) for m in training_sets], self._sizes.actions)
        self._demonstrator = together([tensor(m.data.demonstrator, _CPU) for m in training_sets])
        self._last = together([torch.from_numpy(episode_ends(m.data.episode)) for m in training_sets])
        self._skills = None
        if first.collapsed.skills is not None:
            columns = [tensor(m.collapsed.skills[m.collapsed.step_observation_index], _CPU) for m in training_sets]  # type: ignore[index]
            self._skills = together(columns, self._sizes.skills)
        self._weight = self._by_member([m.step_weight for m in training_sets], longest)
        held_out = [m.held_out for m in training_sets if m.held_out is not None]
        self._held_out = self._by_member(held_out, longest) if held_out else None
        self._moments = torch.arange(self._length, device=device)[None, :, None]
        self._offset = torch.arange(len(training_sets), device=device)[:, None] * longest
        self._orders = [Order(_learned_from(m), seed=m.seed, device=device) for m in training_sets]
        self._tiles = torch.nn.utils.rnn.pad_sequence(
            [torch.from_numpy(tiles(m.data.episode, self._length)) for m in training_sets],
            batch_first=True,
            padding_value=-1,
        ).to(device)
        self._size = min(first.batch_size, *(len(m.data) for m in training_sets))
        self.epoch = -(-longest // self._size)
        self._loaded = torch.zeros(len(training_sets), self._size, dtype=torch.long, device=device)
        self._ahead: tuple[int, Tensor] | None = None

    def _by_member(self, weights: Sequence[Array], longest: int) -> Float[Tensor, "member step"]:
        rows = [np.broadcast_to(weight, (self._members, weight.shape[-1])) for weight in weights]
        return torch.cat([padded(tensor(row, _CPU).float(), (self._members, longest)) for row in rows]).to(self._device)

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
        steps = begin[:, None] + self._moments
        inside = ((steps <= last[:, None]) & (starts[:, None] >= 0)).flatten(1)
        steps = torch.minimum(steps, last[:, None]).flatten(1)
        rows = (steps + self._offset).flatten()
        here = torch.arange(steps.shape[1], device=self._device)
        at = Pick(here, len(here), identity=True)
        by = Pick.drawn(self._demonstrator.gather(1, steps), self._sizes.demonstrators)
        action = self._rows(self._action, rows)
        return Batch(
            observations=self._rows(self._seen, rows).mT,
            observation_index=at,
            demonstrator=by,
            pairs=Pairs(at, by, at),
            action=action if len(starts) == 1 else action.repeat_interleave(self._members, dim=0),
            weight=self._weighed(weight, steps, inside),
            skills=None if self._skills is None else self._rows(self._skills, rows).mT,
        )

    def _rows(self, column: Float[Tensor, "group step value"], rows: Int[Tensor, " row"]) -> Tensor:
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


def _learned_from(training_data: TrainingData) -> Int[Tensor, " step"]:
    """The steps that some member gives a weight."""
    weight = training_data.step_weight.reshape(-1, training_data.step_weight.shape[-1])
    return torch.from_numpy(np.flatnonzero(weight.sum(0) > 0))
