"""Mapped columns block by block: their rows and context, which inputs vary, and the counts that they collapse to.

A table of unique observations grows as blocks are read, and so does one of counts; both must stay within a part of the
memory that the data may take. Otherwise, and where observations hardly repeat, the data are taken step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, final

import numpy as np
import numpy.typing as npt

from ileed.demonstrations.collapsing import NONE, Collapsed, Uncollapsed
from ileed.demonstrations.counting import Counts, UniqueRows
from ileed.demonstrations.mapping import ColumnFile
from ileed.demonstrations.preprocessing import are_codes, input_dtype
from ileed.demonstrations.rules import Array, numbers_of

if TYPE_CHECKING:
    from ileed.demonstrations import Demonstrations

_PART_OF_MEMORY = 4  # a table may take one part in so many of the memory: while it grows, there are two of it
_KEY_BITS = 63
FEW_STEPS = 4096
"""Data this small are taken whole, whether their observations repeat or not."""


def blocks_of(data: Demonstrations, *, row_bytes: int | None = None) -> Iterator[slice]:
    """All steps in their order, in blocks whose observations, in single precision twice, are within the memory."""
    assert data.mapping is not None
    return data.mapping.blocks(len(data), row_bytes or 64 + 12 * data.observation_size)


def inputs_at(data: Demonstrations, rows: Array | slice, varying: Array, dtype: npt.DTypeLike) -> Array:
    """(row, varying input) of some steps, in a floating-point type; -0.0 is 0.0."""
    flat = data.observations[rows].reshape(-1, data.observation_size)
    if len(varying) < flat.shape[1]:
        flat = np.take(flat, varying, axis=1)
    return np.add(flat, np.float32(0), dtype=dtype, casting="unsafe")  # whole numbers are converted too


def varying_inputs(data: Demonstrations) -> Array:
    """(varying input,) index into the flat observation."""
    first, varies = data.observations[0].reshape(-1), np.zeros(data.observation_size, dtype=bool)
    for block in blocks_of(data):
        rows = data.observations[block].reshape(-1, data.observation_size)
        varies |= (rows != first).any(axis=0)
        if varies.all():
            break
    return np.flatnonzero(varies)


def input_range(data: Demonstrations, varying: Array) -> tuple[Array, Array]:
    """The least and the greatest value of each varying input."""
    ends = [(part.min(axis=0), part.max(axis=0)) for part in _varying_blocks(data, varying)]
    low, high = zip(*ends, strict=True)
    return np.min(low, axis=0), np.max(high, axis=0)


def _varying_blocks(data: Demonstrations, varying: Array) -> Iterator[Array]:
    """(row, varying input) of all steps, block by block, in the type of the data."""
    return (data.observations[block].reshape(-1, data.observation_size)[:, varying] for block in blocks_of(data))


def distinct_values(data: Demonstrations, column: Array) -> Array:
    """The distinct values of a column (step,), sorted."""
    if data.mapping is None:
        return np.unique(column)
    parts = [np.unique(column[block]) for block in blocks_of(data, row_bytes=3 * column.dtype.itemsize)]
    return np.unique(np.concatenate(parts))


def moments(blocks: Iterable[Array]) -> tuple[Array, Array]:
    """The mean of each column of (row, column) blocks, and its standard deviation; by merging those of blocks."""
    count, mean, squares = 0, np.zeros(()), np.zeros(())
    for block in blocks:
        rows = block.astype(np.float64)
        own = rows.mean(axis=0)
        apart, total = own - mean, count + len(rows)
        squares = squares + np.square(rows - own).sum(axis=0) + np.square(apart) * (count * len(rows) / total)
        mean = mean + apart * (len(rows) / total)
        count = total
    return mean, np.sqrt(squares / count)


def input_moments_of(apart: Uncollapsed) -> tuple[Array, Array]:
    """The mean of each varying input over steps, and its standard deviation."""
    data = apart.data
    blocks = blocks_of(data, row_bytes=64 + 24 * data.observation_size)
    return moments(inputs_at(data, block, apart.varying, apart.dtype) for block in blocks)


def unscaled_inputs(data: Demonstrations, collapsed: Collapsed | Uncollapsed, *, codes: bool = True) -> Array:
    """(varying input,) which inputs a fit reads as they are: indicators of categories and, with `codes`, codes."""
    indicators = np.zeros(len(collapsed.varying), dtype=bool)
    if data.encoding is not None:
        indicators = data.encoding.indicators[collapsed.varying]
    if not codes or data.observations.dtype.kind == "f":
        return indicators
    if isinstance(collapsed, Collapsed):
        low, high = (end(collapsed.observations, axis=0) for end in (np.min, np.max))
    else:
        low, high = input_range(data, collapsed.varying)
    return indicators | are_codes(low, high)


@final
class StepContext:
    """The columns of `step_context` at some steps alone; a previous observation is given by the number of its step."""

    def __init__(self, data: Demonstrations, names: Sequence[str]) -> None:
        self._data, self.names = data, tuple(names)
        self._own_number = data.episode_numbers if "episode_number" in names else None

    def __call__(self, rows: Array) -> dict[str, Array]:
        data, before = self._data, np.maximum(rows - 1, 0)
        first = (rows == 0) | (data.episode[before] != data.episode[rows])
        columns: dict[str, Callable[[], Array]] = {
            "first_step": lambda: first.astype(np.int64),
            "episode_number": lambda: self._own_number[data.episode[rows]],  # type: ignore[index]
            "previous_action": lambda: _unless(first, data.actions[before], NONE if data.discrete else 0),
            "previous_observation": lambda: _unless(first, before, NONE),
            "previous_policy": lambda: _unless(first, before, NONE),
        }
        return {name: columns[name]() for name in self.names}


def _unless(first: Array, values: Array, none: int) -> Array:
    found = np.array(values)
    found[first] = none
    return found


class _Key(NamedTuple):
    """A count's action, unique observation, demonstrator and context as one number, in whose order counts stand."""

    radices: tuple[int, ...]  # of the observation, the demonstrator, and each column of context
    lowest: tuple[int, ...]

    @classmethod
    def of(cls, data: Demonstrations, unique_count: int, context: Sequence[str]) -> _Key | None:
        """None where 63 bits do not hold all of them."""
        radices, lowest = [unique_count, len(data.names)], [0, 0]
        most = {"first_step": 2, "previous_action": data.action_count + 1}
        if "episode_number" in context:
            most["episode_number"] = int(data.episode_numbers.max()) + 1
        for name in context:
            if name not in most:
                return None
            radices.append(most[name])
            lowest.append(NONE if name == "previous_action" else 0)
        bits = np.log2(np.array([data.action_count, *radices], dtype=np.float64)).sum()
        return cls(tuple(radices), tuple(lowest)) if bits < _KEY_BITS else None

    def numbers(self, action: Array, *columns: Array) -> Array:
        key = action.astype(np.int64)
        for column, radix, low in zip(columns, self.radices, self.lowest, strict=True):
            key = key * radix + (column - low)
        return key

    def columns(self, key: Array) -> list[Array]:
        """The action and the columns of which the numbers were made."""
        found = []
        for radix, low in zip(reversed(self.radices), reversed(self.lowest), strict=True):
            key, column = np.divmod(key, radix)
            found.append(column + low)
        return [key, *reversed(found)]


def uncollapsed(data: Demonstrations, skill: str | None) -> Uncollapsed:
    """Mapped columns, taken step by step."""
    skill_names, skills_at = skill_rows(data, skill) if skill is not None else ((), None)
    varying = varying_inputs(data)
    dtype = input_dtype(data.observations.dtype, _varying_blocks(data, varying))
    return Uncollapsed(data, varying, dtype, skill_names, skills_at)


def collapse_mapped(data: Demonstrations, skill: str | None, context: Sequence[str]) -> Collapsed | Uncollapsed:
    """The counts of mapped columns, as `collapse` has those of others; see the module's first lines."""
    assert data.mapping is not None
    apart = uncollapsed(data, skill)
    varying, skills_at = apart.varying, apart.skills_at
    extra = len(apart.skill_names) + (0 if data.legal is None else data.legal.shape[1])
    most_bytes = data.mapping.memory_bytes // _PART_OF_MEMORY
    row_bytes = np.dtype(apart.dtype).itemsize * (len(varying) + extra)
    most = min(len(data) // 2 if len(data) > FEW_STEPS else len(data), most_bytes // (row_bytes + 24))
    key = _Key.of(data, max(1, most), context) if data.discrete else None
    if key is None:
        return apart
    unique, counted = UniqueRows(len(varying) + extra, apart.dtype), Counts(most_bytes // 32)
    at_context, file = StepContext(data, context), ColumnFile(data.mapping)
    for block in blocks_of(data, row_bytes=128 + 12 * (data.observation_size + extra)):
        rows = inputs_at(data, block, varying, apart.dtype)
        if extra:
            parts = [] if skills_at is None else [skills_at(block)]
            parts += [] if data.legal is None else [data.legal[block].astype(np.float32)]
            rows = np.concatenate([rows, *parts], axis=1)
        number = unique.numbers(rows)
        before = at_context(np.arange(block.start, block.stop)) if context else {}
        fits = counted.add(key.numbers(data.actions[block], number, data.demonstrator[block], *before.values()))
        if not fits or len(unique) > most:
            return apart
        file.append(number)
    return _collapsed(data, apart, unique, key, counted, file, context)


def _collapsed(
    data: Demonstrations,
    apart: Uncollapsed,
    unique: UniqueRows,
    key: _Key,
    counted: Counts,
    file: ColumnFile,
    context: Sequence[str],
) -> Collapsed:
    keys, count = counted.merged()
    action, observation_index, demonstrator, *before = key.columns(keys)
    rows, inputs, skills = unique.rows, len(apart.varying), len(apart.skill_names)
    return Collapsed(
        observations=np.ascontiguousarray(rows[:, :inputs]),
        varying=apart.varying,
        skills=rows[:, inputs : inputs + skills].astype(np.float32, copy=False) if skills else None,
        skill_names=apart.skill_names,
        legal=None if data.legal is None else rows[:, inputs + skills :].astype(bool),
        observation_index=observation_index,
        action=action,
        demonstrator=demonstrator,
        count=count,
        step_count_index=np.empty(0, dtype=np.int64),  # `count_weights` finds what is needed of it
        step_observation_index=file.mapped(np.dtype(np.int64), ()),
        context=dict(zip(context, before, strict=True)),
    )


def count_weights(data: Demonstrations, collapsed: Collapsed, episode_weight: Array) -> Array:
    """Sum of the weights of steps in every count, (*member, count), from those of episodes, (*member, episode)."""
    if data.mapping is None:
        return collapsed.weights(episode_weight[..., data.episode])
    if (episode_weight == 1).all():
        return np.broadcast_to(collapsed.count.astype(np.float64), (*episode_weight.shape[:-1], len(collapsed.count)))
    key = _Key.of(data, collapsed.unique_count, tuple(collapsed.context))
    assert key is not None
    columns = (collapsed.observation_index, collapsed.demonstrator, *collapsed.context.values())
    keys, context = key.numbers(collapsed.action, *columns), StepContext(data, tuple(collapsed.context))
    rows = episode_weight.reshape(-1, episode_weight.shape[-1])
    summed = np.zeros((len(rows), len(keys)))
    for block in blocks_of(data, row_bytes=128):
        before = context(np.arange(block.start, block.stop)) if context.names else {}
        here, who = collapsed.step_observation_index[block], data.demonstrator[block]
        place = np.searchsorted(keys, key.numbers(data.actions[block], here, who, *before.values()))
        episode = data.episode[block]
        for row, total in zip(rows, summed, strict=True):
            total += np.bincount(place, weights=row[episode], minlength=len(keys))
    return summed.reshape(*episode_weight.shape[:-1], len(keys))


def some_steps(apart: Uncollapsed, most: int = 1 << 22) -> Collapsed:
    """Each step as a count of its own; of data that memory does not hold, everybody's steps at even distances."""
    data = apart.data
    assert data.mapping is not None
    most = min(most, data.mapping.memory_bytes // 8 // (8 * max(1, len(apart.varying))))
    every = np.ceil(data.steps_each / max(1, most // len(data.names))) if len(data) > most else np.ones(len(data.names))
    seen, chosen = np.zeros(len(data.names), dtype=np.int64), []
    for block in blocks_of(data, row_bytes=64):
        who = data.demonstrator[block]
        number = seen[who] + numbers_of(who)
        chosen.append(block.start + np.flatnonzero(number % every[who] == 0))
        seen += np.bincount(who, minlength=len(seen))
    steps = np.concatenate(chosen)
    number = np.arange(len(steps))
    return Collapsed(
        observations=inputs_at(data, steps, apart.varying, apart.dtype),
        varying=apart.varying,
        skills=None if apart.skills_at is None else apart.skills_at(steps),
        skill_names=apart.skill_names,
        legal=None if data.legal is None else data.legal[steps],
        observation_index=number,
        action=data.actions[steps],
        demonstrator=data.demonstrator[steps],
        count=np.ones(len(steps), dtype=np.int64),
        step_count_index=number,
        step_observation_index=number,
        context=StepContext(data, ("episode_number",))(steps),
    )


def held_in_memory(data: Demonstrations, weights: Array | None = None) -> tuple[Demonstrations, Array | None]:
    """The data, and weights (..., episode) of theirs; of mapped ones a part that memory holds.

    Everybody has an equal share of it, at most. Those who have more steps are there with episodes at even distances, of
    which each has as many steps as a share, at most, and all together twice as many.
    """
    if data.mapping is None:
        return data, weights
    most = min(1 << 20, data.mapping.memory_bytes // 16 // (64 + 4 * data.observation_size))
    if len(data) <= most:
        return data.select(np.ones(len(data), dtype=bool)), weights
    share = max(1, most // len(data.names))
    every, who, start = np.ceil(data.steps_each / share), data.episode_demonstrator, data.episode_bounds
    candidate = np.flatnonzero(numbers_of(who) % every[who] == 0)
    length = np.minimum(np.diff(start)[candidate], share)
    order = np.argsort(who[candidate], kind="stable")
    total, own = np.cumsum(length[order]), np.searchsorted(who[candidate][order], who[candidate][order])
    within = total - np.append(0, total)[own] <= 2 * share
    kept = np.sort(order[within])
    chosen, length = candidate[kept], length[kept]
    edge = np.zeros(len(data) + 1, dtype=np.int8)
    np.add.at(edge, start[chosen], 1)
    np.add.at(edge, start[chosen] + length, -1)
    taken = np.cumsum(edge[:-1], dtype=np.int8).astype(bool)
    return data.select(taken), None if weights is None else weights[..., chosen]


def skill_rows(data: Demonstrations, column: str) -> tuple[tuple[str, ...], Callable[[Array | slice], Array]]:
    """The names of the skills in a column, and their weights (row, skill) at some steps."""
    if data.mapping is None or column not in data.skills or data.skills[column].ndim == 2:
        weights, names = data.skill(column)
        return names, lambda rows: weights[rows]
    values = data.skills[column]
    labels = distinct_values(data, values)
    one_hot = np.eye(len(labels), dtype=np.float32)
    return tuple(map(str, labels)), lambda rows: one_hot[np.searchsorted(labels, values[rows])]
