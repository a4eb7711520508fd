"""Collapsing: the sufficient statistics of a data set, and the context of a step.

A data set is reduced to its unique observations and the counts of the actions taken at them. Columns on disk are read
block by block; their tables of unique observations and counts must stay within a share of the available memory. If they
do not, or if observations hardly repeat, the data are used step by step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ileed.data.rules import Array, listed, numbers_of, single_holds
from ileed.data.source import ColumnFile
from ileed.errors import DemonstrationError, SettingsError, brief, did_you_mean

if TYPE_CHECKING:
    from ileed.data import Demonstrations

_TABLE_SHARE = 4  # a table may take one part in this many of the memory
_ROW_OVERHEAD = 128  # bytes of a table entry besides the row itself
_MERGED_AT_ONCE = 1 << 18  # counts: about as many as a cache holds
_MOST_SAMPLED = 1 << 22  # steps
FEW_STEPS = 4096
"""Data sets up to this size are used whole, whether or not their observations repeat."""

LARGEST_CODE = 16
"""Integer columns whose values all lie within this distance of zero are codes, which are not standardised.

Examples are the object, colour and state of a grid cell, one-hot columns and flags. They are of order one already, and
scaling would magnify rare values. All other integers are measurements or counts and are standardised like floats.
"""

CONTEXT = {
    "previous_action": "the action before this one in the episode; -1 at its first step, or zeros where continuous",
    "first_step": "1 at the first step of an episode, 0 at the others",
    "episode_number": "which of the demonstrator's own episodes this is, from 0 on; an expertise may depend on it too",
}
"""The columns that a demonstrator model may declare in its `context`."""


@final
@dataclass(frozen=True, eq=False)
class Collapsed:
    """The sufficient statistics of a data set: unique observations and counts of the actions taken at them.

    A *unique observation* is a distinct row of observations (with its legal actions and skills, if any). A *count* is a
    distinct (action, unique observation, demonstrator), plus the context that a demonstrator model declares, with its
    multiplicity; counts are sorted in that order. With continuous actions each step is a count of its own.
    """

    repeats: ClassVar[Literal[True]] = True
    observations: Array  # (unique observation, varying input), single precision unless double is needed
    varying: Array  # (varying input,) index into the flat observation
    skills: Array | None  # (unique observation, skill)
    skill_names: tuple[str, ...]
    legal: Array | None  # (unique observation, action)
    observation_index: Array  # (count,)
    action: Array  # (count,) or (count, dimension)
    demonstrator: Array  # (count,)
    count: Array  # (count,)
    step_observation_index: Array  # (step,) the unique observation of each step
    context: Mapping[str, Array]  # (count, ...) columns of `StepContext`
    find_counts: Callable[[], Array]

    @property
    def dtype(self) -> npt.DTypeLike:
        """The type of the inputs before they are standardised."""
        return self.observations.dtype

    @cached_property
    def step_count_index(self) -> Array:
        """(step,) the count to which each step belongs."""
        return self.find_counts()

    @property
    def some(self) -> Collapsed:
        """All steps, since they are in memory."""
        return self

    @property
    def unique_count(self) -> int:
        """The number of unique observations."""
        return len(self.observations)

    def weights(self, data: Demonstrations, episode_weight: Array) -> Array:
        """(*member, count) sum of step weights in each count, from (*member, episode) weights of episodes."""
        shape, counts = episode_weight.shape[:-1], len(self.count)
        if (episode_weight == 1).all():
            return np.broadcast_to(self.count.astype(np.float64), (*shape, counts))
        rows = episode_weight.reshape(-1, episode_weight.shape[-1])
        summed = np.zeros((len(rows), counts))
        for block in blocks_of(data, row_bytes=128):
            count, episode = self.step_count_index[block], data.episode[block]
            for row, total in zip(rows, summed, strict=True):
                total += np.bincount(count, weights=row[episode], minlength=counts)
        return summed.reshape(*shape, counts)


@final
@dataclass(frozen=True, eq=False)
class Uncollapsed:
    """A data set used step by step: each step is a unique observation and a count of its own."""

    repeats: ClassVar[Literal[False]] = False
    data: Demonstrations
    varying: Array  # (varying input,) index into the flat observation
    dtype: npt.DTypeLike  # of the inputs before they are standardised
    skill_names: tuple[str, ...] = ()
    skills_at: Callable[[Array | slice], Array] | None = None  # (row, skill) weights at some steps

    @classmethod
    def of(cls, data: Demonstrations, skill: str | None) -> Self:
        """The data with the inputs that vary, the type that holds them, and a column of skills."""
        first, varies = data.observations[0].reshape(-1), np.zeros(data.observation_size, dtype=bool)
        for block in blocks_of(data):
            varies |= (data.observations[block].reshape(-1, data.observation_size) != first).any(axis=0)
            if varies.all():
                break
        varying, given = np.flatnonzero(varies), data.observations.dtype
        single = np.can_cast(given, np.float32) or all(map(single_holds, _varying_blocks(data, varying)))
        names, skills_at = ((), None) if skill is None else skill_rows(data, skill)
        return cls(data, varying, np.float32 if single else np.float64, names, skills_at)

    def rows(self, steps: Array | slice) -> Array:
        """(row, input + skill + action) what makes an observation unique, at some steps."""
        parts = [inputs_at(self.data, steps, self.varying, self.dtype)]
        if self.skills_at is not None:
            parts.append(self.skills_at(steps))
        if self.data.legal is not None:
            parts.append(self.data.legal[steps].astype(np.float32))
        return np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]

    def collapsed(self, rows: Array, **columns: Any) -> Collapsed:
        """The same data as counts, from the `rows` of unique observations and the other columns."""
        inputs, skills = len(self.varying), len(self.skill_names)
        return Collapsed(
            observations=np.ascontiguousarray(rows[:, :inputs]),
            varying=self.varying,
            skills=rows[:, inputs : inputs + skills].astype(np.float32) if skills else None,
            skill_names=self.skill_names,
            legal=None if self.data.legal is None else rows[:, inputs + skills :].astype(bool),
            **columns,
        )

    @property
    def observations(self) -> Array:
        """None, since the data did not collapse."""
        return np.empty((0, len(self.varying)), np.float32)

    @property
    def unique_count(self) -> int:
        """The number of steps."""
        return len(self.data)

    @cached_property
    def some(self) -> Collapsed:
        """As many steps as memory holds, evenly spaced per demonstrator, each a count of its own."""
        data, demonstrators = self.data, len(self.data.names)
        most = min(_MOST_SAMPLED, data.store.memory_bytes // 8 // (8 * max(1, len(self.varying))))
        every = np.ceil(data.steps_each / max(1, most // demonstrators)) if len(data) > most else np.ones(demonstrators)
        seen, chosen = np.zeros(demonstrators, dtype=np.int64), []
        for block in blocks_of(data, row_bytes=64):
            who = data.demonstrator[block]
            number = seen[who] + numbers_of(who)
            chosen.append(block.start + np.flatnonzero(number % every[who] == 0))
            seen += np.bincount(who, minlength=demonstrators)
        steps = np.concatenate(chosen)
        number = np.arange(len(steps))
        return self.collapsed(
            self.rows(steps),
            observation_index=number,
            action=data.actions[steps],
            demonstrator=data.demonstrator[steps],
            count=np.ones(len(steps), dtype=np.int64),
            step_observation_index=number,
            context=StepContext(data, ("episode_number",))(steps),
            find_counts=partial(np.asarray, number),
        )


def collapse(
    data: Demonstrations, skill: str | None, context: Sequence[str], *, by_step: bool = False
) -> Collapsed | Uncollapsed:
    """Count a data set; see `Demonstrations.collapsed`."""
    if data.store.is_on_disk:
        uncollapsed = Uncollapsed.of(data, skill)
        return uncollapsed if by_step else _collapse_blocks(uncollapsed, context)
    if by_step:
        return data.collapsed(skill, context)
    uncollapsed = Uncollapsed.of(data, skill)
    rows = uncollapsed.rows(slice(None))
    first, observation_index = distinct_rows(rows)
    columns = StepContext(data, context)(np.arange(len(data)))
    if data.action_count:
        count_index, step = _discrete_counts(data, observation_index, columns)
    else:  # every step is a count of its own
        step = np.lexsort((data.demonstrator, observation_index))
        count_index = np.argsort(step)
    return uncollapsed.collapsed(
        rows[first],
        observation_index=observation_index[step],
        action=data.actions[step],
        demonstrator=data.demonstrator[step],
        count=np.bincount(count_index, minlength=len(step)),
        step_observation_index=observation_index,
        context={name: column[step] for name, column in columns.items()},
        find_counts=partial(np.asarray, count_index),
    )


def _discrete_counts(
    data: Demonstrations, observation_index: Array, columns: Mapping[str, Array]
) -> tuple[Array, Array]:
    """The count of every step, and one step of every count."""
    key = (data.actions * (observation_index.max() + 1) + observation_index) * len(data.names) + data.demonstrator
    for column in columns.values():
        kinds, kind = np.unique(column, return_inverse=True)
        key = np.unique(key, return_inverse=True)[1] * len(kinds) + kind
    _, step, count_index = np.unique(key, return_index=True, return_inverse=True)
    return count_index, step


def _collapse_blocks(uncollapsed: Uncollapsed, context: Sequence[str]) -> Collapsed | Uncollapsed:
    """The same for columns on disk, or the steps themselves; see the module's docstring."""
    data, table_bytes = uncollapsed.data, uncollapsed.data.store.memory_bytes // _TABLE_SHARE
    width = len(uncollapsed.varying) + len(uncollapsed.skill_names) + (0 if data.legal is None else data.legal.shape[1])
    row_bytes = np.dtype(uncollapsed.dtype).itemsize * width + _ROW_OVERHEAD
    most = min(len(data) // 2 if len(data) > FEW_STEPS else len(data), table_bytes // row_bytes)
    radices = {"first_step": 2, "previous_action": data.action_count + 1}
    radices["episode_number"] = int(data.episode_numbers.max()) + 1
    shape = (data.action_count, max(1, most), len(data.names), *(radices[name] for name in context))
    if not data.action_count or math.prod(shape) >= 1 << 63:
        return uncollapsed
    shifts = {name: 1 if name == "previous_action" else 0 for name in context}  # -1 at an episode's first step
    context_at = StepContext(data, context)

    def keys_at(block: slice, observation_index: Array) -> Array:
        """A count's action, unique observation, demonstrator and context as one number, in whose order counts stand."""
        before = context_at(np.arange(block.start, block.stop)) if context else {}
        shifted = (column + shifts[name] for name, column in before.items())
        columns = data.actions[block], observation_index, data.demonstrator[block], *shifted
        return np.ravel_multi_index(columns, shape)

    unique, counts, file = UniqueRows(), Counts(table_bytes // 32), ColumnFile(data.store)
    for block in blocks_of(data, row_bytes=128 + 12 * (data.observation_size + width)):
        number = unique.numbers(uncollapsed.rows(block))
        if len(unique) > most or not counts.add(keys_at(block, number)):
            return uncollapsed
        file.append(number)
    keys, count = counts.merged()
    action, observation_index, demonstrator, *before = np.unravel_index(keys, shape)
    index = file.mapped(np.dtype(np.int64), ())

    def find_counts() -> Array:  # on request, since parallel workers are not sent columns on disk
        blocks = blocks_of(data, row_bytes=128)
        return data.store.written((np.searchsorted(keys, keys_at(block, index[block])) for block in blocks), np.int64)

    return uncollapsed.collapsed(
        unique.rows(width, uncollapsed.dtype),
        observation_index=observation_index,
        action=action,
        demonstrator=demonstrator,
        count=count,
        step_observation_index=index,
        context={name: column - shifts[name] for name, column in zip(context, before, strict=True)},
        find_counts=find_counts,
    )


def distinct_rows(rows: Array) -> tuple[Array, Array]:
    """The first row of each distinct kind, and the kind of every row, in order of first appearance.

    Arrow hashes the bytes of each row once and compares them exactly on a hit. Sorting wide rows would compare them
    many times.
    """
    if rows.shape[1] == 0:
        return np.zeros(1, dtype=np.int64), np.zeros(len(rows), dtype=np.int64)
    contiguous = np.ascontiguousarray(rows)
    row_type = pa.binary(contiguous.strides[0])  # of fixed length
    encoded = pa.Array.from_buffers(row_type, len(rows), [None, pa.py_buffer(contiguous)]).dictionary_encode()
    # not `to_numpy`, which would import pandas where it is installed
    kind = np.frombuffer(encoded.indices.buffers()[1], dtype=np.int32)[: len(rows)].astype(np.int64)
    return np.flatnonzero(np.diff(np.maximum.accumulate(kind), prepend=-1)), kind


def check_context(who: str, names: Sequence[str]) -> None:
    """Refuse an unknown name of a context."""
    if strange := [name for name in names if name not in CONTEXT]:
        raise SettingsError(
            f"{who} declares the context {strange[0]!r}{did_you_mean(strange[0], CONTEXT)}: "
            f"a step's context is one of {', '.join(CONTEXT)}"
        )


@final
class StepContext:
    """The named columns of context at some steps: (step,) integers, or (step, dimension) for continuous actions."""

    def __init__(self, data: Demonstrations, names: Sequence[str]) -> None:
        self._data, self.names = data, tuple(names)
        self._own_number = data.episode_numbers if "episode_number" in names else np.empty(0)

    def __call__(self, rows: Array) -> dict[str, Array]:
        data, before = self._data, np.maximum(rows - 1, 0)
        first = (rows == 0) | (data.episode[before] != data.episode[rows])
        found = dict[str, Array]()
        for name in self.names:
            if name == "first_step":
                found[name] = first.astype(np.int64)
            elif name == "episode_number":
                found[name] = self._own_number[data.episode[rows]]
            else:
                found[name] = np.array(data.actions[before])
                found[name][first] = -1 if data.action_count else 0
        return found


def blocks_of(data: Demonstrations, *, row_bytes: int | None = None) -> Iterator[slice]:
    """All steps in order, in blocks whose observations fit into memory twice in single precision."""
    return data.store.blocks(len(data), row_bytes or 64 + 12 * data.observation_size)


def inputs_at(data: Demonstrations, rows: Array | slice, varying: Array, dtype: npt.DTypeLike) -> Array:
    """(row, varying input) observations of some steps as a floating-point type, with -0.0 as 0.0."""
    flat = data.observations[rows].reshape(-1, data.observation_size)
    if len(varying) < flat.shape[1]:
        flat = np.take(flat, varying, axis=1)
    return np.add(flat, np.float32(0), dtype=dtype, casting="unsafe")  # converts integers too


def _varying_blocks(data: Demonstrations, varying: Array) -> Iterator[Array]:
    """(row, varying input) blocks of all steps, in the type of the data."""
    return (data.observations[block].reshape(-1, data.observation_size)[:, varying] for block in blocks_of(data))


def distinct_values(data: Demonstrations, column: Array) -> Array:
    """The distinct values of a (step,) column, sorted."""
    parts = [np.unique(column[block]) for block in blocks_of(data, row_bytes=3 * column.dtype.itemsize)]
    return np.unique(np.concatenate(parts))


def moments(blocks: Iterable[Array]) -> tuple[Array, Array]:
    """The mean and standard deviation of each column of (row, column) blocks."""
    count, mean, squares = 0, np.zeros(()), np.zeros(())
    for block in blocks:
        rows = block.astype(np.float64)
        own = rows.mean(axis=0)
        shift, total = own - mean, count + len(rows)
        squares = squares + np.square(rows - own).sum(axis=0) + np.square(shift) * (count * len(rows) / total)
        mean = mean + shift * (len(rows) / total)
        count = total
    return mean, np.sqrt(squares / count)


def input_moments_of(uncollapsed: Uncollapsed) -> tuple[Array, Array]:
    """The mean and standard deviation of each varying input over steps."""
    data = uncollapsed.data
    blocks = blocks_of(data, row_bytes=64 + 24 * data.observation_size)
    return moments(inputs_at(data, block, uncollapsed.varying, uncollapsed.dtype) for block in blocks)


def unscaled_inputs(data: Demonstrations, collapsed: Collapsed | Uncollapsed, *, codes: bool = True) -> Array:
    """(varying input,) which inputs are not standardised: one-hot categories and, with `codes`, integer codes."""
    indicators = np.zeros(len(collapsed.varying), dtype=bool)
    if data.encoding is not None:
        indicators = data.encoding.indicators[collapsed.varying]
    if not codes or data.observations.dtype.kind == "f":
        return indicators
    blocks = [collapsed.observations] if collapsed.repeats else _varying_blocks(data, collapsed.varying)
    low, high = zip(*((block.min(axis=0), block.max(axis=0)) for block in blocks), strict=True)
    are_codes = (np.min(low, axis=0) >= -LARGEST_CODE) & (np.max(high, axis=0) <= LARGEST_CODE)
    return np.asarray(indicators | are_codes)


def held_in_memory(data: Demonstrations, weights: Array | None = None) -> tuple[Demonstrations, Array | None]:
    """The data and their (..., episode) weights, or the part of data on disk that memory holds.

    Each demonstrator gets an equal share of memory at most. Demonstrators with more steps are represented by evenly
    spaced episodes, each cut after as many steps as a share, and all together at most two shares long.
    """
    if not data.store.is_on_disk:
        return data, weights
    most = min(1 << 20, data.store.memory_bytes // 16 // (64 + 4 * data.observation_size))
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
    """The names of the skills in a column, and a function that returns their (row, skill) weights at some steps."""
    if not isinstance(column, str) or column not in data.skills:
        found = f"there is no skill column {brief(column)}{did_you_mean(column, data.skills)}"
        there = listed(tuple(data.skills)) or "none"
        raise DemonstrationError(f"{found}: the data have {there}; pass skills=, or add skill.NAME to the file")
    values = data.skills[column]
    if values.ndim == 2:
        names = tuple(f"{column} {number + 1}" for number in range(values.shape[1]))
        return names, lambda rows: values[rows].astype(np.float32)
    labels = distinct_values(data, values)
    one_hot = np.eye(len(labels), dtype=np.float32)
    return tuple(map(str, labels)), lambda rows: one_hot[np.searchsorted(labels, values[rows])]


@final
class UniqueRows:
    """The distinct rows of several blocks, in order of first appearance."""

    def __init__(self) -> None:
        self._numbers = dict[bytes, int]()

    def __len__(self) -> int:
        return len(self._numbers)

    def numbers(self, rows: Array) -> Array:
        """(row,) the number of the distinct row that each row equals; new rows are added."""
        first, kind = distinct_rows(rows)
        distinct, known = np.ascontiguousarray(rows[first]), self._numbers
        size = distinct.itemsize * distinct.shape[1]
        contents: list[Any] = distinct.view(np.dtype((np.void, size))).ravel().tolist() if size else [b""]
        found = (known.setdefault(content, len(known)) for content in contents)
        return np.fromiter(found, np.int64, len(first))[kind]

    def rows(self, width: int, dtype: npt.DTypeLike) -> Array:
        """(distinct row, column) the rows themselves."""
        return np.ndarray((len(self), width), dtype, bytearray().join(self._numbers))


@final
class Counts:
    """The multiplicity of keys that arrive in blocks, which are merged when they outgrow the keys before them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._parts: list[Array] = []  # (2, key) each: distinct sorted keys and their counts
        self._pending = self._settled = 0

    def add(self, keys: Array) -> bool:
        """Count keys; returns False once there are more than `most` distinct ones."""
        self._parts.append(np.stack(np.unique(keys, return_counts=True)))
        self._pending += self._parts[-1].shape[1]
        if self._pending > max(2 * self._settled, 1 << 20):
            self.merged()
        return self._settled <= self._most

    def merged(self) -> tuple[Array, Array]:
        """The distinct keys, sorted, and their counts; merged by ranges of keys that fit into a cache."""
        longest = max((keys for keys, _ in self._parts), key=len)
        ranges = 1 + sum(part.shape[1] for part in self._parts) // _MERGED_AT_ONCE
        bounds = longest[np.linspace(0, len(longest), ranges, endpoint=False).astype(np.int64)[1:]]
        pieces = [np.split(part, np.searchsorted(part[0], bounds), axis=1) for part in self._parts]
        whole = np.concatenate([_merged(np.concatenate(each, axis=1)) for each in zip(*pieces, strict=True)], axis=1)
        self._parts, self._pending, self._settled = [whole], whole.shape[1], whole.shape[1]
        return whole[0], whole[1]


def _merged(parts: Array) -> Array:
    """(2, key) distinct sorted keys and their counts, from the same of several parts joined."""
    keys, counts = parts[:, np.argsort(parts[0], kind="stable")]  # which merges sorted runs
    first = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: len(keys)])
    return np.stack([keys[first], np.add.reduceat(counts, first) if len(first) else counts])
