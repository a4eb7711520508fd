"""Collapsing: a data set as its unique observations, counts of the actions after them, and what came before a step.

Columns on disk are read block by block. A table of unique observations grows meanwhile, and so does one of counts; both
must stay within a part of the memory that the data may take. Otherwise, and where observations hardly repeat, the data
are taken step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ileed.data.rules import Array, listed, numbers_of, single_holds
from ileed.data.store import ColumnFile
from ileed.errors import DemonstrationError, SettingsError, brief, did_you_mean

if TYPE_CHECKING:
    from ileed.data import Demonstrations

_PART_OF_MEMORY = 4  # a table may take one part in so many of the memory: while it grows, there are two of it
_KEY_BITS = 63
_MERGED_AT_ONCE = 1 << 18  # counts: about as many as a cache holds
FEW_STEPS = 4096
"""Data this small are taken whole, whether their observations repeat or not."""

LARGEST_CODE = 16
"""Integer columns whose values all lie within this distance of zero are codes, and are read as they are.

Object, colour and state of a grid cell, one-hot columns and flags are such codes: they already are of the order of one,
and scaling would magnify rare ones. All other integers are measurements or counts and are standardised as floats are.
"""

CONTEXT = {
    "previous_action": "the action before this one in the episode; -1 at its first step, or zeros where continuous",
    "first_step": "1 at the first step of an episode, 0 at the others",
    "episode_number": "which of the demonstrator's own episodes this is, from 0 on; an expertise may depend on it too",
}
"""The columns that a demonstrator model may declare in its `context`."""

NONE = -1  # the number of what an episode's first step has none of


@final
@dataclass(frozen=True, eq=False)
class Collapsed:
    """A data set's sufficient statistics: each unique observation once, and a count of each distinct action after it.

    A *unique observation* is a distinct row (together with its legal actions and skills where the data hold them). A
    *count* is a distinct (action, unique observation, demonstrator), and context where a demonstrator model depends on
    it, with its multiplicity; counts are sorted in that order. With continuous actions a count is a step.
    """

    repeats: ClassVar[Literal[True]] = True
    observations: Array  # (unique observation, varying input) in single precision, or double where that is needed
    varying: Array  # (varying input,) index into the flat observation
    skills: Array | None  # (unique observation, skill)
    skill_names: tuple[str, ...]
    legal: Array | None  # (unique observation, action)
    observation_index: Array  # (count,)
    action: Array  # (count,) or (count, dimension)
    demonstrator: Array  # (count,)
    count: Array  # (count,)
    step_observation_index: Array  # (step,) the unique observation that each step was taken at
    context: Mapping[str, Array]  # (count, ...) columns of `StepContext`
    find_counts: Callable[[], Array]

    @property
    def dtype(self) -> npt.DTypeLike:
        """The type of the inputs until they are standardised."""
        return self.observations.dtype

    @cached_property
    def step_count_index(self) -> Array:
        """(step,) the count that each step was counted in."""
        return self.find_counts()

    @property
    def some(self) -> Collapsed:
        """All steps, which memory holds."""
        return self

    @property
    def unique_count(self) -> int:
        """How many unique observations there are."""
        return len(self.observations)

    def weights(self, data: Demonstrations, episode_weight: Array) -> Array:
        """Sum of the weights of steps in every count, (*member, count), from those of episodes, (*member, episode)."""
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
    """A data set taken step by step, each a unique observation and a count of its own."""

    repeats: ClassVar[Literal[False]] = False
    data: Demonstrations
    varying: Array  # (varying input,) index into the flat observation
    dtype: npt.DTypeLike  # of the inputs until they are standardised
    skill_names: tuple[str, ...] = ()
    skills_at: Callable[[Array | slice], Array] | None = None  # (row, skill) weights at some steps

    @property
    def observations(self) -> Array:
        """None: the data did not collapse."""
        return np.empty((0, len(self.varying)), np.float32)

    @property
    def unique_count(self) -> int:
        """As many as steps."""
        return len(self.data)

    @cached_property
    def some(self) -> Collapsed:
        """As many steps of everybody as memory holds, each a count of its own."""
        return some_steps(self)


def collapse(
    data: Demonstrations, skill: str | None, context: Sequence[str], *, by_step: bool = False
) -> Collapsed | Uncollapsed:
    """The counts of a data set; see `Demonstrations.collapsed`."""
    apart = _uncollapsed(data, skill)
    if data.store.is_on_disk:
        return apart if by_step else _collapse_blocks(apart, context)
    if by_step:
        return data.collapsed(skill, context)
    every = slice(None)
    seen = inputs_at(data, every, apart.varying, apart.dtype)
    weights = None if apart.skills_at is None else apart.skills_at(every)
    legal = None if data.legal is None else data.legal.astype(np.float32)
    parts = [seen, *(extra for extra in (weights, legal) if extra is not None)]
    first, observation_index = distinct_rows(np.concatenate(parts, axis=1) if len(parts) > 1 else seen)
    columns = StepContext(data, context)(np.arange(len(data)))
    if data.action_count:
        count_index, step = _discrete_counts(data, observation_index, columns)
    else:  # every step is a count of its own
        step = np.lexsort((data.demonstrator, observation_index))
        count_index = np.argsort(step)
    return Collapsed(
        observations=seen[first],
        varying=apart.varying,
        skills=None if weights is None else weights[first],
        skill_names=apart.skill_names,
        legal=None if data.legal is None else data.legal[first],
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


def distinct_rows(rows: Array) -> tuple[Array, Array]:
    """The first row of each distinct kind, and the kind of every row, in order of first appearance.

    Arrow hashes the bytes of each row once and compares them exactly on a hit; sorting wide rows would compare them
    many times.
    """
    if rows.shape[1] == 0:
        return np.zeros(1, dtype=np.int64), np.zeros(len(rows), dtype=np.int64)
    contiguous = np.ascontiguousarray(rows)
    of_bytes = pa.binary(contiguous.strides[0])  # of a fixed number
    encoded = pa.Array.from_buffers(of_bytes, len(rows), [None, pa.py_buffer(contiguous)]).dictionary_encode()
    # not `to_numpy`, which would import pandas where it is installed
    kind = np.frombuffer(encoded.indices.buffers()[1], dtype=np.int32)[: len(rows)].astype(np.int64)
    return np.flatnonzero(np.diff(np.maximum.accumulate(kind), prepend=-1)), kind


def check_context(who: str, names: Sequence[str]) -> None:
    """Refuse a context of another name."""
    if strange := [name for name in names if name not in CONTEXT]:
        raise SettingsError(
            f"{who} declares the context {strange[0]!r}{did_you_mean(strange[0], CONTEXT)}: "
            f"a step's context is one of {', '.join(CONTEXT)}"
        )


@final
class StepContext:
    """The named columns at some steps: (step,) whole numbers, or (step, dimension) where actions are continuous."""

    def __init__(self, data: Demonstrations, names: Sequence[str]) -> None:
        self._data, self.names = data, tuple(names)
        self._own_number = data.episode_numbers if "episode_number" in names else None

    def __call__(self, rows: Array) -> dict[str, Array]:
        data, before = self._data, np.maximum(rows - 1, 0)
        first = (rows == 0) | (data.episode[before] != data.episode[rows])
        columns: dict[str, Callable[[], Array]] = {
            "first_step": lambda: first.astype(np.int64),
            "episode_number": lambda: self._own_number[data.episode[rows]],  # type: ignore[index]
            "previous_action": lambda: _unless(first, data.actions[before], NONE if data.action_count else 0),
        }
        return {name: columns[name]() for name in self.names}


def _unless(first: Array, values: Array, none: int) -> Array:
    found = np.array(values)
    found[first] = none
    return found


def blocks_of(data: Demonstrations, *, row_bytes: int | None = None) -> Iterator[slice]:
    """All steps in their order, in blocks whose observations, in single precision twice, are within the memory."""
    return data.store.blocks(len(data), row_bytes or 64 + 12 * data.observation_size)


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
    if collapsed.repeats:
        low, high = (end(collapsed.observations, axis=0) for end in (np.min, np.max))
    else:
        low, high = input_range(data, collapsed.varying)
    return indicators | are_codes(low, high)


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


def _uncollapsed(data: Demonstrations, skill: str | None) -> Uncollapsed:
    """The data taken step by step."""
    skill_names, skills_at = skill_rows(data, skill) if skill is not None else ((), None)
    varying = varying_inputs(data)
    dtype = input_dtype(data.observations.dtype, _varying_blocks(data, varying))
    return Uncollapsed(data, varying, dtype, skill_names, skills_at)


def _collapse_blocks(apart: Uncollapsed, context: Sequence[str]) -> Collapsed | Uncollapsed:
    """The same of columns on disk; see the module's first lines."""
    data, varying, skills_at = apart.data, apart.varying, apart.skills_at
    extra = len(apart.skill_names) + (0 if data.legal is None else data.legal.shape[1])
    most_bytes = data.store.memory_bytes // _PART_OF_MEMORY
    row_bytes = np.dtype(apart.dtype).itemsize * (len(varying) + extra)
    most = min(len(data) // 2 if len(data) > FEW_STEPS else len(data), most_bytes // (row_bytes + 24))
    key = _Key.of(data, max(1, most), context) if data.action_count else None
    if key is None:
        return apart
    unique, counted = UniqueRows(len(varying) + extra, apart.dtype), Counts(most_bytes // 32)
    before, file = StepContext(data, context), ColumnFile(data.store)
    for block in blocks_of(data, row_bytes=128 + 12 * (data.observation_size + extra)):
        rows = inputs_at(data, block, varying, apart.dtype)
        if extra:
            parts = [] if skills_at is None else [skills_at(block)]
            parts += [] if data.legal is None else [data.legal[block].astype(np.float32)]
            rows = np.concatenate([rows, *parts], axis=1)
        number = unique.numbers(rows)
        columns = number, data.demonstrator[block], *_context_at(before, block)
        fits = counted.add(key.numbers(data.actions[block], *columns))
        if not fits or len(unique) > most:
            return apart
        file.append(number)
    return _collapsed(apart, unique, key, counted, file, context)


def _context_at(context: StepContext, block: slice) -> Iterable[Array]:
    return context(np.arange(block.start, block.stop)).values() if context.names else ()


def _collapsed(
    apart: Uncollapsed, unique: UniqueRows, key: _Key, counted: Counts, file: ColumnFile, context: Sequence[str]
) -> Collapsed:
    data = apart.data
    keys, count = counted.merged()
    action, observation_index, demonstrator, *before = key.columns(keys)
    rows, inputs, skills = unique.rows, len(apart.varying), len(apart.skill_names)
    at = file.mapped(np.dtype(np.int64), ())

    def counts_of_steps() -> Iterator[Array]:
        for block in blocks_of(data, row_bytes=128):
            columns = at[block], data.demonstrator[block], *_context_at(StepContext(data, context), block)
            yield np.searchsorted(keys, key.numbers(data.actions[block], *columns))

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
        step_observation_index=at,
        find_counts=lambda: data.store.written(counts_of_steps(), np.int64),  # no worker is sent columns on disk
        context=dict(zip(context, before, strict=True)),
    )


def some_steps(apart: Uncollapsed, most: int = 1 << 22) -> Collapsed:
    """Each step as a count of its own; of data that memory does not hold, everybody's steps at even distances."""
    data = apart.data
    most = min(most, data.store.memory_bytes // 8 // (8 * max(1, len(apart.varying))))
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
        step_observation_index=number,
        context=StepContext(data, ("episode_number",))(steps),
        find_counts=partial(np.asarray, number),
    )


def held_in_memory(data: Demonstrations, weights: Array | None = None) -> tuple[Demonstrations, Array | None]:
    """The data, and weights (..., episode) of theirs; of mapped ones a part that memory holds.

    Everybody has an equal share of it, at most. Those who have more steps are there with episodes at even distances, of
    which each has as many steps as a share, at most, and all together twice as many.
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
    """The names of the skills in a column, and their weights (row, skill) at some steps."""
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


def input_dtype(given: np.dtype, blocks: Iterable[Array]) -> npt.DTypeLike:
    """The type in which (row, input) blocks of a `given` type are held until they are standardised."""
    return np.float32 if np.can_cast(given, np.float32) or all(map(single_holds, blocks)) else np.float64


def are_codes(low: Array, high: Array) -> Array:
    """(input,) which integer columns hold codes, by the least and the greatest value of each; see `LARGEST_CODE`."""
    return np.asarray((low >= -LARGEST_CODE) & (high <= LARGEST_CODE))


@final
class UniqueRows:
    """Distinct rows of a floating-point type in the order of their first appearance, found by a hash, compared exactly.

    Hashes stand sorted, in as many buckets as there are rows or more, so that a row is found in a step or two.
    """

    def __init__(self, width: int, dtype: npt.DTypeLike = np.float32) -> None:
        self._dtype = np.dtype(dtype)
        width *= self._dtype.itemsize // 4
        self._rows, self._count = np.empty((1_024, width), dtype=np.uint32), 0
        self._multiplier = np.random.default_rng(0).integers(1, 2**63, size=(2, max(1, width)), dtype=np.uint64) * 2 + 1
        self._alike: dict[bytes, int] = {}  # rows whose hash another row has
        self._repeat = True
        self._index(np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64))

    def __len__(self) -> int:
        return self._count

    @property
    def rows(self) -> Array:
        return self._rows[: self._count].view(self._dtype)

    def numbers(self, rows: Array) -> Array:
        """(row,) which distinct row each one is; where those of the last block repeated, equal ones are sought once."""
        if not self._repeat:
            return self._numbers(rows)
        first, kind = distinct_rows(rows)
        self._repeat = 2 * len(first) < len(rows)
        return self._numbers(rows[first])[kind]

    def _numbers(self, rows: Array) -> Array:
        words = np.ascontiguousarray(rows).view(np.uint32).reshape(len(rows), self._rows.shape[1])
        hashes = self._hashes(words)
        place = self._places(hashes)
        number = self._number[place]
        if len(new := np.flatnonzero(self._sorted[place] != hashes)):
            found, first, inverse = np.unique(hashes[new], return_index=True, return_inverse=True)
            order = np.argsort(np.argsort(first))
            self._append(words[new[np.sort(first)]])
            own = self._count - len(found) + order
            number[new] = own[inverse]
            at = np.searchsorted(self._sorted[:-1], found)
            self._index(np.insert(self._sorted[:-1], at, found), np.insert(self._number[:-1], at, own))
        for row in np.flatnonzero((self._rows[number] != words).any(axis=1)).tolist():  # two rows have one hash
            content = words[row].tobytes()
            if content not in self._alike:
                self._append(words[row : row + 1])
                self._alike[content] = self._count - 1
            number[row] = self._alike[content]
        return number

    def _hashes(self, words: Array) -> Array:
        """(row,) 64 bits: the upper halves of two sums of products with random odd numbers (multilinear hashing)."""
        wide = words.astype(np.uint64)
        one, other = (wide @ each[: words.shape[1]] for each in self._multiplier)
        found: Array = (one & np.uint64(0xFFFFFFFF00000000)) | (other >> np.uint64(32))
        return found

    def _places(self, hashes: Array) -> Array:
        """Where each hash stands among the sorted, or the first that is greater."""
        place = self._start[(hashes >> self._shift).astype(np.int64)]
        behind = np.flatnonzero(self._sorted[place] < hashes)
        while len(behind):
            place[behind] += 1
            behind = behind[self._sorted[place[behind]] < hashes[behind]]
        return place

    def _index(self, hashes: Array, number: Array) -> None:
        last = np.uint64(2**64 - 1)  # no hash is greater
        self._sorted, self._number = np.append(hashes, last), np.append(number, -1 if not self._count else 0)
        bits = max(1, len(hashes).bit_length())
        self._shift = np.uint64(64 - bits)
        self._start = np.searchsorted(hashes, np.arange(2**bits, dtype=np.uint64) << self._shift)

    def _append(self, rows: Array) -> None:
        if self._count + len(rows) > len(self._rows):
            grown = np.empty((2 * (self._count + len(rows)), self._rows.shape[1]), dtype=np.uint32)
            grown[: self._count] = self._rows[: self._count]
            self._rows = grown
        self._rows[self._count : self._count + len(rows)] = rows
        self._count += len(rows)


@final
class Counts:
    """How often each key was seen: the keys of blocks, merged when they have become as many as those before."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._parts: list[Array] = []  # (2, key) each: distinct keys, sorted, and how often each was seen
        self._pending = self._settled = 0

    def add(self, keys: Array) -> bool:
        """Count keys; false where there are more distinct ones than there may be."""
        self._parts.append(np.stack(np.unique(keys, return_counts=True)))
        self._pending += self._parts[-1].shape[1]
        if self._pending > max(2 * self._settled, 1 << 20):
            self.merged()
        return self._settled <= self._most

    def merged(self) -> tuple[Array, Array]:
        """The distinct keys, sorted, and how often each was seen; merged by ranges of keys that a cache holds."""
        longest = max((keys for keys, _ in self._parts), key=len)
        ranges = 1 + sum(part.shape[1] for part in self._parts) // _MERGED_AT_ONCE
        bounds = longest[np.linspace(0, len(longest), ranges, endpoint=False).astype(np.int64)[1:]]
        pieces = [np.split(part, np.searchsorted(part[0], bounds), axis=1) for part in self._parts]
        whole = np.concatenate([_merged(np.concatenate(each, axis=1)) for each in zip(*pieces, strict=True)], axis=1)
        self._parts, self._pending, self._settled = [whole], whole.shape[1], whole.shape[1]
        return whole[0], whole[1]


def _merged(parts: Array) -> Array:
    """The distinct keys of sorted stretches, sorted, and how often each was seen; (2, key) like what it is made of."""
    order = np.argsort(parts[0], kind="stable")  # which merges what is sorted already
    keys, counts = parts[:, order]
    first = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: len(keys)])
    return np.stack([keys[first], np.add.reduceat(counts, first) if len(first) else counts])
