"""Collapsing: a data set as its unique observations, counts of the actions after them, and what came before a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ileed.demonstrations.preprocessing import input_dtype
from ileed.demonstrations.rules import Array
from ileed.errors import SettingsError
from ileed.wording import did_you_mean

if TYPE_CHECKING:
    from ileed.demonstrations import Demonstrations


CONTEXT = {
    "previous_action": "the action before this one in the episode; -1 at its first step, or zeros where continuous",
    "previous_observation": "the inputs of the observation before this one in the episode; zeros at its first step",
    "previous_policy": "the policy at the observation before this one in the episode; none at its first step",
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

    repeats: ClassVar[bool] = True
    observations: Array  # (unique observation, varying input) in single precision, or double where that is needed
    varying: Array  # (varying input,) index into the flat observation
    skills: Array | None  # (unique observation, skill)
    skill_names: tuple[str, ...]
    legal: Array | None  # (unique observation, action)
    observation_index: Array  # (count,)
    action: Array  # (count,) or (count, dimension)
    demonstrator: Array  # (count,)
    count: Array  # (count,)
    step_count_index: Array  # (step,) the count that each step was counted in
    step_observation_index: Array  # (step,) the unique observation that each step was taken at
    context: Mapping[str, Array]  # (count, ...) columns of `step_context`; previous observations by number

    @property
    def dtype(self) -> npt.DTypeLike:
        """The type of the inputs until they are standardised."""
        return self.observations.dtype

    @property
    def unique_count(self) -> int:
        """How many unique observations there are."""
        return len(self.observations)

    def weights(self, step_weights: Array) -> Array:
        """Sum of (..., step) weights in every count: the counts, when each step weighs one."""
        flat, counts = step_weights.reshape(-1, step_weights.shape[-1]), len(self.count)
        summed = [np.bincount(self.step_count_index, weights=row, minlength=counts) for row in flat]
        return np.stack(summed).reshape(*step_weights.shape[:-1], counts)


@final
@dataclass(frozen=True, eq=False)
class Uncollapsed:
    """A data set taken step by step, each a unique observation and a count of its own."""

    repeats: ClassVar[bool] = False
    data: Demonstrations
    varying: Array  # (varying input,) index into the flat observation
    dtype: npt.DTypeLike  # of the inputs until they are standardised
    skill_names: tuple[str, ...] = ()
    skills_at: Callable[[Array | slice], Array] | None = None  # (row, skill) weights at some steps

    @property
    def unique_count(self) -> int:
        """As many as steps."""
        return len(self.data)

    @cached_property
    def some(self) -> Collapsed:
        """As many steps of everybody as memory holds, each a count of its own."""
        from ileed.demonstrations.streaming import some_steps

        return some_steps(self)


def collapse(data: Demonstrations, skill: str | None, context: Sequence[str]) -> Collapsed | Uncollapsed:
    """The counts of a data set; see `Demonstrations.collapse`."""
    if data.mapping is not None:
        from ileed.demonstrations.streaming import collapse_mapped

        return collapse_mapped(data, skill, context)
    flat = data.observations.reshape(len(data), -1)
    varying = np.flatnonzero((flat != flat[0]).any(axis=0))
    seen = flat if len(varying) == flat.shape[1] else np.take(flat, varying, axis=1)
    seen = seen.astype(input_dtype(seen.dtype, [seen]))
    seen += np.float32(0)  # -0.0 becomes 0.0: equal rows, equal bits
    weights, skill_names = data.skill(skill) if skill is not None else (None, ())
    legal = None if data.legal is None else data.legal.astype(np.float32)
    parts = [seen, *(extra for extra in (weights, legal) if extra is not None)]
    first, observation_index = distinct_rows(np.concatenate(parts, axis=1) if len(parts) > 1 else seen)
    columns = step_context(data, context, observation_index)
    if data.discrete:
        count_index, step = _discrete_counts(data, observation_index, columns)
    else:  # every step is a count of its own
        step = np.lexsort((data.demonstrator, observation_index))
        count_index = np.argsort(step)
    return Collapsed(
        observations=seen[first],
        varying=varying,
        skills=None if weights is None else weights[first],
        skill_names=skill_names,
        legal=None if data.legal is None else data.legal[first],
        observation_index=observation_index[step],
        action=data.actions[step],
        demonstrator=data.demonstrator[step],
        count=np.bincount(count_index, minlength=len(step)),
        step_count_index=count_index,
        step_observation_index=observation_index,
        context={name: column[step] for name, column in columns.items()},
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


def step_context(data: Demonstrations, names: Sequence[str], observation_index: Array) -> dict[str, Array]:
    """The named columns, (step,) whole numbers, or (step, dimension) where they are continuous actions.

    A previous observation, for its inputs or for the policy there, is given by its number in `observation_index`,
    (step,), and by -1 where there is none.
    """
    first = np.append(True, data.episode[1:] != data.episode[:-1])
    columns: dict[str, Callable[[], Array]] = {
        "first_step": lambda: first.astype(np.int64),
        "episode_number": lambda: data.own_episode_number,
        "previous_action": lambda: _shifted(data.actions, first, NONE if data.discrete else 0),
        "previous_observation": lambda: _shifted(observation_index, first, NONE),
        "previous_policy": lambda: _shifted(observation_index, first, NONE),
    }
    return {name: columns[name]() for name in names}


def _shifted(values: Array, first: Array, none: int) -> Array:
    """The value of the step before, or `none` at first steps."""
    before = np.roll(values, 1, axis=0)
    before[first] = none
    return before
