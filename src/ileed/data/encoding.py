"""Encoding: how named arrays, columns of a table and recorded episodes become observations and actions.

Several arrays for each step, such as a state and a camera's frame, stand side by side in one flat matrix, and a
`NamedArray` says what each of them is. Of a table, a number stays a number. A column of text, categories or true and
false becomes one input for each of its categories, one in the row's own category and zero elsewhere (one-hot). Labels
of a discrete action are numbered 0, 1, .... A `Layout` brings new data into the columns and labels of a fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import TYPE_CHECKING, Any, final

import numpy as np

from ileed.data import rules
from ileed.data.rules import Array, as_array, listed, single_holds
from ileed.errors import DemonstrationError, brief, counted, did_you_mean, printable, text

if TYPE_CHECKING:
    from ileed.data import Demonstrations
    from ileed.data.columns import Column

Label = str | int | bool
_MOST_NAMES = 1000  # of the numbers of an observation: the pixels of an image have no names


@final
@dataclass(frozen=True)
class Feature:
    """One column of features: a number, or one of `categories`, of which None stands for a missing value.

    `fill` replaces the missing values of a number where these are allowed; a further input then says which they were.
    """

    name: str
    categories: tuple[str | None, ...] | None = None
    fill: float | None = None

    def __post_init__(self) -> None:
        if self.categories is None:
            is_sound = self.fill is None or isfinite(self.fill)
        else:
            is_sound = self.fill is None and 0 < len(self.categories) == len(set(self.categories))
        if not is_sound:
            raise DemonstrationError(f"feature {self.name!r} is neither a number nor a list of distinct categories")

    @property
    def inputs(self) -> tuple[str, ...]:
        """The name of each number that this column becomes."""
        if self.categories is None:
            return (self.name,) if self.fill is None else (self.name, f"{self.name} = missing")
        return tuple(f"{self.name} = {'missing' if one is None else one}" for one in self.categories)

    def encode(self, column: Column) -> Array:
        """(row, input) numbers of a column; a missing value or category that the encoding does not know is refused.

        Numbers are in single precision where that holds them, and in double precision otherwise.
        """
        if self.fill is None and None not in (self.categories or ()):
            column.check_present()
        if self.categories is not None:
            return np.eye(len(self.categories), dtype=np.float32)[column.index_among(self.categories)]
        values = column.numbers()
        missing = np.isnan(values)
        inputs = [values] if self.fill is None else [np.where(missing, self.fill, values), missing]
        return np.stack(inputs, axis=1).astype(np.float32 if single_holds(inputs[0]) else np.float64)

    def __str__(self) -> str:
        if self.categories is None:
            return printable(self.name)
        return f"{printable(self.name)} ({len(self.categories)} categor{'y' if len(self.categories) == 1 else 'ies'})"


@final
@dataclass(frozen=True)
class Encoding:
    """The names of observations and actions, and how the columns of a table became these.

    `features` become the observation, in this order. `action` names the column of the action, or several columns of a
    continuous one; `labels` are the values of a discrete action, of which number k stands for the k-th.
    """

    features: tuple[Feature, ...]
    action: tuple[str, ...]
    labels: tuple[Label, ...] = ()

    @classmethod
    def of_numbers(
        cls, inputs: Sequence[str], actions: Array, *, action_count: int = 0, action: Sequence[str] = ()
    ) -> Encoding | None:
        """Names for numbers as a format holds them, none of which is encoded; None where it cannot name each.

        Args:
            inputs: the name of each number of an observation.
            actions: (step,) discrete or (step, dimension) continuous actions.
            action_count: the number of discrete actions, if it is known to be larger than the data show.
            action: the name of each dimension of a continuous action; `action[0]`, `action[1]`, ... by default.
        """
        if not 0 < len(set(inputs)) == len(inputs) <= _MOST_NAMES:
            return None
        features = tuple(map(Feature, inputs))
        if actions.ndim == 2 and 0 < actions.shape[1] <= _MOST_NAMES:
            is_named = len(set(action)) == len(action) == actions.shape[1]
            return cls(features, tuple(action) if is_named else numbered_names("action", actions.shape[1]))
        count = max(2, action_count, int(actions.max(initial=0)) + 1) if actions.dtype.kind in "biu" else 0
        is_discrete = actions.ndim == 1 and 0 < count <= _MOST_NAMES
        return cls(features, ("action",), tuple(range(count))) if is_discrete else None

    def __post_init__(self) -> None:
        names = [feature.name for feature in self.features]
        if not names or len(set(names)) != len(names):
            raise DemonstrationError(f"an encoding needs one or more features of different names: it has {names}")
        is_sound = len({type(label) for label in self.labels}) <= 1 and len(set(self.labels)) == len(self.labels)
        if not self.action or not is_sound or (self.labels and len(self.action) > 1):
            rule = "an action is one column with distinct labels of one type, or several columns without"
            raise DemonstrationError(f"{rule}: it has the columns {self.action} and the labels {self.labels}")

    @property
    def inputs(self) -> tuple[str, ...]:
        """The name of each number in an observation, such as "age" and "arrival = ambulance"."""
        return tuple(name for feature in self.features for name in feature.inputs)

    @property
    def words(self) -> dict[str, list[str]]:
        """The texts of every column, by a description of the column: its name and its categories or labels."""
        found = {
            f"the feature {each.name!r}": [each.name, *(word for word in each.categories or () if word is not None)]
            for each in self.features
        }
        labels = [label for label in self.labels if isinstance(label, str)]
        return found | {f"the action {name!r}": [name, *labels] for name in self.action}

    @property
    def indicators(self) -> Array:
        """(input,) which numbers of an observation are zero or one by construction; a fit leaves these unscaled."""
        kinds = [one.categories is not None or place > 0 for one in self.features for place in range(len(one.inputs))]
        return np.array(kinds, dtype=bool)

    @property
    def is_plain(self) -> bool:
        """Whether it names numbers and changes none: no categories, no filled values, and labels 0, 1, ...."""
        numbers = all(one.categories is None and one.fill is None for one in self.features)
        return numbers and self.labels == tuple(range(len(self.labels)))

    def encode(self, table: Any) -> Array:
        """(row, input) observations from the features' columns of a table; its other columns are ignored."""
        from ileed.data.columns import Column, as_table  # loads pyarrow.compute, which takes a while

        found = as_table(table)
        features = [(feature, Column.of(found, feature.name)) for feature in self.features]
        if len(found) == 0:
            raise DemonstrationError("the table has no rows: pass at least one")
        return np.concatenate([feature.encode(column) for feature, column in features], axis=1)

    def decode(self, actions: Array) -> Array:
        """The label of each action's number; continuous actions as they are."""
        return np.array(self.labels)[actions] if self.labels else actions

    def describe_features(self, most: int = 12) -> str:
        """The features by name, with the number of categories where they have any."""
        return listed(self.features, most, show=str)

    def describe_actions(self, most: int = 8) -> str:
        """The action's column and its labels, or the columns of a continuous action."""
        if not self.labels:
            return f"{', '.join(map(printable, self.action))} (continuous)"
        return f"{printable(self.action[0])} ({listed(self.labels, most, show=lambda label: printable(str(label)))})"


def numbered_names(name: str, width: int) -> tuple[str, ...]:
    """A name for each of the numbers under one key: `key[0]`, `key[1]`, ..., or the key itself for a single number."""
    return (name,) if width == 1 else tuple(f"{name}[{number}]" for number in range(width))


# --- named arrays


@final
@dataclass(frozen=True)
class NamedArray:
    """The name, the shape for one step and the type of an array of observations."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"

    def __post_init__(self) -> None:
        text("the name of an observation", self.name)
        if any(size < 0 for size in self.shape) or np.dtype(self.dtype).kind not in "biuf":
            found = f"{self.dtype} of shape {self.shape}"
            raise DemonstrationError(f"observation {self.name!r} is {found}: pass numbers", code="observation-invalid")

    @property
    def size(self) -> int:
        """How many numbers it has for one step."""
        return math.prod(self.shape)

    @property
    def is_image(self) -> bool:
        """Whether it holds pixels: bytes with two axes or more."""
        return self.dtype == "uint8" and len(self.shape) >= 2


Arrays = tuple[NamedArray, ...]
"""The arrays of an observation in their order; none where it is a single array without a name."""


def join_arrays(values: Mapping[str, Any]) -> tuple[Array, Arrays]:
    """(step, number) of all arrays side by side, in the type that holds them all, and what each of them is."""
    if not values:
        raise DemonstrationError("observations are empty: pass one array or more, by name", code="observation-missing")
    columns: dict[str, Array] = {}
    for name, value in values.items():
        found = rules.as_array(f"observations[{name!r}]", value)
        if found.ndim == 0 or found.dtype.kind not in "biuf":
            rule = "pass one number or one array of numbers for each step"
            message = f"observation {brief(name)} is {found.dtype} of shape {found.shape}: {rule}"
            raise DemonstrationError(message, code="observation-invalid")
        columns[name] = found
    counts = {name: len(column) for name, column in columns.items()}
    if len(set(counts.values())) > 1:
        raise DemonstrationError(f"observations have {counts} steps: pass as many of each", code="observation-lengths")
    arrays = tuple(NamedArray(name, column.shape[1:], str(column.dtype)) for name, column in columns.items())
    flat = [column.reshape(len(column), each.size) for column, each in zip(columns.values(), arrays, strict=True)]
    return flat[0] if len(flat) == 1 else np.concatenate(flat, axis=1), arrays


def split_arrays(flat: Array, arrays: Arrays) -> dict[str, Array]:
    """Each array by its name, (step, *shape), from the matrix of `join_arrays`; views where they can be."""
    ends = np.cumsum([each.size for each in arrays])
    return {
        each.name: flat[:, end - each.size : end].reshape(len(flat), *each.shape).astype(each.dtype, copy=False)
        for each, end in zip(arrays, ends.tolist(), strict=True)
    }


def matched_columns(found: Arrays, known: Arrays) -> Array:
    """Which columns of a matrix of arrays are those that a fit knows, by name; further arrays are left out.

    Raises:
        DemonstrationError: if an array is missing or has another shape, or names are known on one side only.
    """
    if not found or not known:
        one, other = ("have no names", "has") if known else ("have names", "has none")
        message = (
            f"the arrays of the observations {one} and the fit {other}: pass observations as the fit was given them"
        )
        raise DemonstrationError(message, code="observation-names")
    ends = np.cumsum([each.size for each in found]).tolist()
    places = {each.name: (each, end) for each, end in zip(found, ends, strict=True)}
    columns = []
    for each in known:
        if each.name not in places:
            message = f"there is no observation {each.name!r}{did_you_mean(each.name, places)}"
            there = rules.listed([own.name for own in found])
            raise DemonstrationError(f"{message}: the data have {there}", code="observation-missing")
        own, end = places[each.name]
        if own.shape != each.shape:
            message = f"observation {each.name!r} has shape {own.shape} and in the fit {each.shape}"
            raise DemonstrationError(f"{message}: pass arrays of the same shape", code="observation-shape")
        columns.append(np.arange(end - own.size, end))
    return np.concatenate(columns)


def matched_observations(values: Mapping[str, Any], known: Arrays) -> Array:
    """(step, number) the matrix of the arrays that a fit knows, from arrays by name."""
    flat, found = join_arrays(values)
    return np.take(flat, matched_columns(found, known), axis=1)


def check_arrays(arrays: Sequence[NamedArray], width: int) -> Arrays:
    """The arrays of a matrix of so many columns, with distinct names."""
    names, total = [each.name for each in arrays], sum(each.size for each in arrays)
    if arrays and (len(set(names)) < len(names) or total != width):
        message = f"observations have {width:,} numbers and the arrays {names} together {total:,}"
        raise DemonstrationError(f"{message}: name each array once, and all of them", code="observation-arrays")
    return tuple(arrays)


# --- episodes as other programs record them

_RECORDED = {
    "observations": ("observations", "obs"),
    "actions": ("actions", "acts"),
    "rewards": ("rewards", "rews"),
    "terminals": ("terminations", "terminals", "terminal"),
}
"""What each column is called: by gymnasium's programs and Minari first, then by imitation."""


def join_episodes(episodes: Iterable[Any], demonstrator: Any, *, action_count: int = 0) -> dict[str, Any]:
    """The columns of recorded episodes, end to end, with the label of each episode's demonstrator at its steps.

    Where observations are a mapping, `encoding` has the names of its entries; it is None otherwise.
    """
    if isinstance(demonstrator, str | bytes | Mapping | Set) or not np.iterable(demonstrator):
        rule = "pass a list with one name or whole number for each episode"
        raise DemonstrationError(f"demonstrator is {brief(demonstrator)}: {rule}")
    if not np.iterable(episodes):
        rule = "pass an iterable of episodes, each with observations and actions"
        raise DemonstrationError(f"episodes is {brief(episodes)}: {rule}")
    demonstrator = as_array("demonstrator", list(demonstrator), "one name or whole number for each episode")
    parts, inputs = [], set[tuple[str, ...]]()
    for number, episode in enumerate(episodes):
        parts.append(_recorded_columns(episode, number))
        inputs.add(_input_names(_found(episode, "observations")[1]))
        if len(inputs) > 1:
            raise DemonstrationError(f"observations of episode {number} have other entries than those before: use one")
    if len(parts) != len(demonstrator):
        found = f"{len(parts)} episodes but {len(demonstrator)} demonstrator labels"
        raise DemonstrationError(f"{found}: pass one label for each")
    if not parts:
        raise DemonstrationError("there are no episodes: pass at least one")
    lengths = [len(part["actions"]) for part in parts]
    columns: dict[str, Any] = {"demonstrator": np.repeat(demonstrator, lengths)}
    columns["episode"] = np.repeat(np.arange(len(parts)), lengths)
    for name in _RECORDED:
        there = {f"episode {number}": part[name] for number, part in enumerate(parts) if name in part}
        columns[name] = join_parts(name, there, len(parts))
    encoding = Encoding.of_numbers(inputs.pop(), columns["actions"], action_count=action_count)
    return columns | {"encoding": encoding}


def join_parts(name: str, parts: Mapping[str, Array], episodes: int) -> Array | None:
    """One column of several episodes, end to end; None where no episode has it."""
    if not parts:
        return None
    if len(parts) < episodes:
        raise DemonstrationError(f"{len(parts):,} of {episodes:,} episodes have {name}: give it for all or for none")
    (first, begin), *others = parts.items()
    for episode, part in others:
        if part.shape[1:] != begin.shape[1:]:
            found = f"{name} has shape {part.shape[1:]} in {episode} and {begin.shape[1:]} in {first}"
            raise DemonstrationError(f"episodes disagree about the shape of a row: {found}")
    return np.concatenate([*parts.values()])


def _recorded_columns(episode: Any, number: int) -> dict[str, Array]:
    """The columns that an episode has, (step, ...) each."""
    found = {name: values for name in _RECORDED if (values := _recorded_column(episode, name, number)) is not None}
    if "observations" not in found or "actions" not in found:
        raise DemonstrationError(f"episode {number} lacks observations or actions: each episode needs both")
    seen, steps = len(found["observations"]), len(found["actions"])
    if seen not in (steps, steps + 1):
        counts = f"{seen} observations and {steps} actions"
        raise DemonstrationError(f"episode {number} has {counts}: pass as many of each, or one observation more")
    if "terminals" in found and found["terminals"].ndim == 0:
        found["terminals"] = (np.arange(steps) == steps - 1) & bool(found["terminals"])
    return {name: values[:steps] for name, values in found.items()}


def _recorded_column(episode: Any, column: str, number: int) -> Array | None:
    """One column of an episode, (step, ...); None where the episode does not have it."""
    name, values = _found(episode, column)
    if values is None:
        return None
    about = f"the {name} of episode {number}"
    if column != "observations" and _is_mapping(values):
        raise DemonstrationError(f"{about} are a mapping: pass one array of numbers")
    array = _flatten(values, about)
    if array.ndim == 0 and name != "terminal":  # imitation says in one word whether the last step ended the task
        raise DemonstrationError(f"{about} are a single number: pass one for each step")
    return array


def _found(episode: Any, column: str) -> tuple[str, Any]:
    """What an episode calls a column, and its values; None where it does not have it."""
    found = (
        episode if isinstance(episode, Mapping) else {name: getattr(episode, name, None) for name in _RECORDED[column]}
    )
    return next(((name, found[name]) for name in _RECORDED[column] if found.get(name) is not None), ("", None))


def _is_mapping(value: Any) -> bool:
    return callable(getattr(value, "items", None))


def _input_names(value: Any, path: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The name of each number that `_flatten` puts into a row; none where observations are one array without names."""
    if _is_mapping(value):
        entries = sorted(value.items(), key=lambda item: str(item[0]))
        return tuple(name for key, entry in entries for name in _input_names(entry, (*path, str(key))))
    return numbered_names("/".join(path), math.prod(np.shape(value)[1:])) if path else ()


def _flatten(value: Any, about: str) -> Array:
    """An array as it is; named ones of (row, ...) as (row, number) in the order of their sorted names, also nested."""
    if not _is_mapping(value):
        return as_array(about, value)
    parts = {}
    for name, entry in sorted(value.items(), key=lambda item: str(item[0])):
        here = f"{about}, entry {name!r},"
        array = _flatten(entry, here)
        if array.dtype.kind not in "biuf" or array.ndim == 0:
            found = "a single value" if array.ndim == 0 else f"{array.dtype}, not numbers"
            raise DemonstrationError(f"{here} are {found}: leave the entry out, or pass numbers for each step")
        parts[name] = array.reshape(len(array), -1) if len(array) else array.reshape(0, 1)
    if not parts:
        raise DemonstrationError(f"{about} are an empty mapping: there must be one array or more")
    lengths = {name: len(part) for name, part in parts.items()}
    if len(set(lengths.values())) > 1:
        raise DemonstrationError(f"{about} have entries of different lengths {lengths}: there must be as many of each")
    return np.concatenate([*parts.values()], axis=1)


# --- new data in the columns of a fit


@final
@dataclass(frozen=True)
class Layout:
    """What a fit expects of data: the shape of an observation, the actions, and their names where it knows them."""

    shape: tuple[int, ...]
    action_count: int
    """The number of discrete actions; 0 where actions are continuous."""
    action_size: int
    """The number of dimensions of a continuous action; 0 where actions are discrete."""
    has_legal_actions: bool = False
    encoding: Encoding | None = None
    arrays: Arrays = ()
    """The observations by name, where the fit learned from several arrays."""

    def match(self, data: Demonstrations) -> Demonstrations:
        """The same steps with the columns of this layout; data that already have them are returned as they are.

        Arrays of observations, features and dimensions of continuous actions are reordered by name, extra ones are
        dropped, and labels and categories are renumbered by name.

        Raises:
            DemonstrationError: if a feature is missing, a category or label is unknown, names are known on one side
                only, or the shape of observations or the number of actions differs.
        """
        if data.encoding != self.encoding:
            data = self._match_names(data)
        if data.arrays != self.arrays:
            columns = matched_columns(data.arrays, self.arrays)
            observations = data.store.derived(data.observations, lambda rows: np.take(rows, columns, axis=1))
            data = data.with_columns(observations=observations, arrays=self.arrays)
        if data.observations.shape[1:] != self.shape:
            raise DemonstrationError(
                f"observations have shape {data.observations.shape[1:]} and those of the fit {self.shape}: pass data "
                "with the same columns"
            )
        found = data.action_count, data.action_size
        if found != (self.action_count, self.action_size):
            stated = self.action_count > data.action_count > 0
            hint = f"action_count={self.action_count} to Demonstrations" if stated else "data with the same actions"
            raise DemonstrationError(
                f"the data have {_actions_in_words(*found)} and the fit "
                f"{_actions_in_words(self.action_count, self.action_size)}: pass {hint}"
            )
        if self.has_legal_actions != (data.legal is not None):
            one, other = ("lack", "has") if self.has_legal_actions else ("have", "lacks")
            raise DemonstrationError(f"the data {one} legal actions and the fit {other} them: make both alike")
        return data

    def _match_names(self, data: Demonstrations) -> Demonstrations:
        if data.encoding is None:
            raise DemonstrationError(
                "the data do not name their features, which those of the fit do: if their columns are the same, in "
                "the same order, pass dataclasses.replace(data, encoding=fitted.policy.encoding)"
            )
        if self.encoding is None:
            if not data.encoding.is_plain:
                raise DemonstrationError(
                    "the data have categories or labels by name, and the fit was given numbers without names: pass "
                    "the numbers, in the order of the fit"
                )
            return data.with_columns(encoding=None)
        inputs = _matched_inputs(data.encoding, self.encoding)
        actions, legal = _matched_actions(data.encoding, self.encoding)
        return data.with_columns(
            observations=data.store.derived(data.observations, inputs),
            actions=data.store.derived(data.actions, actions),
            legal=None if data.legal is None else data.store.derived(data.legal, legal),
            action_count=len(self.encoding.labels),
            encoding=self.encoding,
        )


def _actions_in_words(count: int, size: int) -> str:
    return f"{count} discrete actions" if count else f"continuous actions of {counted(size, 'dimension')}"


_Change = Callable[[Array], Array]


def _matched_inputs(own: Encoding, known: Encoding) -> _Change:
    """From (row, input) observations of one encoding to those of another."""
    ends = np.cumsum([0, *(len(feature.inputs) for feature in own.features)])
    places = {one.name: (one, slice(*span)) for one, span in zip(own.features, pairwise(ends), strict=True)}
    for feature in known.features:
        if feature.name not in places:
            meant = did_you_mean(feature.name, places)
            there = listed([*places], most=20)
            raise DemonstrationError(f"feature {feature.name!r} of the fit is missing{meant}: the data have {there}")
        if (feature.categories is None) != (places[feature.name][0].categories is None):
            kinds = ("categories", "numbers")
            is_number = feature.categories is None
            raise DemonstrationError(
                f"feature {feature.name!r} holds {kinds[not is_number]} and in the fit {kinds[is_number]}: convert it, "
                "or read the table with from_table(..., encoding=fitted.policy.encoding)"
            )

    def change(rows: Array) -> Array:
        parts = []
        for feature in known.features:
            one, span = places[feature.name]
            parts.append((_numbers if feature.categories is None else _categories)(rows[:, span], one, feature))
        return np.concatenate(parts, axis=1).astype(rows.dtype)

    return change


def _numbers(rows: Array, own: Feature, known: Feature) -> Array:
    """A column of numbers, with the fit's own value and a further input in place of missing ones, where it has any."""
    values, missing = rows[:, :1], np.zeros_like(rows[:, :1]) if own.fill is None else rows[:, 1:]
    if known.fill is not None:
        return np.concatenate([np.where(missing > 0, known.fill, values), missing], axis=1)
    if missing.any():
        raise DemonstrationError(
            f"feature {own.name!r} has {counted(int(missing.sum()), 'missing value')}, and the fit has seen none: fill "
            "or drop those rows"
        )
    return values


def _categories(rows: Array, own: Feature, known: Feature) -> Array:
    """One-hot categories in the order of the fit."""
    assert own.categories is not None
    assert known.categories is not None
    place = {category: number for number, category in enumerate(known.categories)}
    found = np.zeros((len(rows), len(place)), dtype=rows.dtype)
    for number, category in enumerate(own.categories):
        if category in place:
            found[:, place[category]] = rows[:, number]
        elif count := int(rows[:, number].sum()):
            raise DemonstrationError(
                f"feature {own.name!r} is {category!r} in {counted(count, 'row')}, which the fit has not seen: it "
                f"knows {listed(known.categories, most=20)}"
            )
    return found


def _matched_actions(own: Encoding, known: Encoding) -> tuple[_Change, _Change]:
    """From the actions of one encoding to those of another, and the same for columns of legal actions."""
    same_kind = bool(own.labels) == bool(known.labels)
    if not same_kind or sorted(own.action) != sorted(known.action):
        raise DemonstrationError(
            f"the action is {own.describe_actions()}, and in the fit {known.describe_actions()}: name the same columns"
        )
    if not known.labels:
        order = [own.action.index(name) for name in known.action]
        return lambda rows: rows[:, order], lambda rows: rows
    place = {label: number for number, label in enumerate(known.labels)}
    number = np.array([place.get(label, -1) for label in own.labels])

    def check(taken: Array) -> None:
        if unknown := [own.labels[each] for each in np.unique(taken) if number[each] < 0]:
            raise DemonstrationError(
                f"action {unknown[0]!r} is unknown to the fit, which knows {listed(known.labels, most=20)}: correct "
                "those rows, or leave them out"
            )

    def actions(rows: Array) -> Array:
        check(rows)
        return number[rows]

    def legal(rows: Array) -> Array:
        check(np.flatnonzero(rows.any(axis=0)))
        found = np.zeros((len(rows), len(known.labels)), dtype=bool)
        found[:, number[number >= 0]] = rows[:, number >= 0]
        return found

    return actions, legal
