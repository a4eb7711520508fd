"""Encoding: how named arrays, columns of a table and recorded episodes become observations and actions.

Several arrays per step, such as a state and a camera image, are stored side by side in one flat matrix; a `NamedArray`
describes each of them. In a table, numbers stay numbers, and columns of text, categories or booleans are one-hot
encoded. Labels of a discrete action are numbered 0, 1, .... A `Layout` converts new data to the columns of a fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
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
_MOST_NAMES = 1000  # numbers of an observation that are named: the pixels of an image are not


@final
@dataclass(frozen=True)
class Feature:
    """A column of features: a number, or one of `categories`, where None represents a missing value.

    If missing numbers are allowed, `fill` replaces them and a second input indicates them.
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
        """The names of the inputs that encode this column."""
        if self.categories is None:
            return (self.name,) if self.fill is None else (self.name, f"{self.name} = missing")
        return tuple(f"{self.name} = {'missing' if one is None else one}" for one in self.categories)

    def encode(self, column: Column) -> Array:
        """(row, input) numbers, in single precision if that represents them; unknown values are refused."""
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
    """Names of observations and actions, and how columns of a table are converted to them.

    `features` are the columns of the observation in order. `action` names the column of a discrete action or the
    columns of a continuous one, and `labels[k]` is the value of discrete action k.
    """

    features: tuple[Feature, ...]
    action: tuple[str, ...]
    labels: tuple[Label, ...] = ()

    @classmethod
    def of_numbers(
        cls, inputs: Sequence[str], actions: Array, *, action_count: int = 0, action: Sequence[str] = ()
    ) -> Encoding | None:
        """Name numbers that are not converted; None if not all of them can be named.

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
        """The names of the numbers of an observation, such as "age" and "arrival = ambulance"."""
        return tuple(name for feature in self.features for name in feature.inputs)

    @property
    def input_keys(self) -> list[tuple[str, str | int | None]]:
        """The feature of each input, with its category, or 0 for a number and 1 for the indicator of missing ones."""
        kinds = ((0, 1)[: len(each.inputs)] if each.categories is None else each.categories for each in self.features)
        return [(each.name, key) for each, keys in zip(self.features, kinds, strict=True) for key in keys]

    @property
    def words(self) -> dict[str, list[str]]:
        """The texts of every column (its name, categories and labels), by a description of the column."""
        found = {
            f"the feature {each.name!r}": [each.name, *(word for word in each.categories or () if word is not None)]
            for each in self.features
        }
        labels = [label for label in self.labels if isinstance(label, str)]
        return found | {f"the action {name!r}": [name, *labels] for name in self.action}

    @property
    def indicators(self) -> Array:
        """(input,) which inputs are zero or one by construction, and thus not standardised."""
        return np.array([key != 0 for _, key in self.input_keys])

    @property
    def is_plain(self) -> bool:
        """Whether it only names numbers: no categories, no filled values, and labels 0, 1, ...."""
        numbers = all(one.categories is None and one.fill is None for one in self.features)
        return numbers and self.labels == tuple(range(len(self.labels)))

    def encode(self, table: Any) -> Array:
        """(row, input) observations from a table; columns that are no features are ignored."""
        from ileed.data.columns import Column, as_table  # slow to import, because of pyarrow.compute

        found = as_table(table)
        features = [(feature, Column.of(found, feature.name)) for feature in self.features]
        if len(found) == 0:
            raise DemonstrationError("the table has no rows: pass at least one")
        return np.concatenate([feature.encode(column) for feature, column in features], axis=1)

    def decode(self, actions: Array) -> Array:
        """The labels of discrete actions; continuous actions are returned unchanged."""
        return np.array(self.labels)[actions] if self.labels else actions

    def describe_features(self, most: int = 12) -> str:
        """The names of the features, with their numbers of categories."""
        return listed(self.features, most, show=str)

    def describe_actions(self, most: int = 8) -> str:
        """The column of the action and its labels, or the columns of a continuous action."""
        if not self.labels:
            return f"{', '.join(map(printable, self.action))} (continuous)"
        return f"{printable(self.action[0])} ({listed(self.labels, most, show=lambda label: printable(str(label)))})"


def numbered_names(name: str, width: int) -> tuple[str, ...]:
    """Names for the numbers of one array: `name[0]`, `name[1]`, ..., or the name itself for a single number."""
    return (name,) if width == 1 else tuple(f"{name}[{number}]" for number in range(width))


# --- named arrays


@final
@dataclass(frozen=True)
class NamedArray:
    """The name, the shape of one step and the type of an array of observations."""

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
        """The number of values per step."""
        return math.prod(self.shape)

    @property
    def is_image(self) -> bool:
        """Whether it holds pixels: bytes with at least two axes."""
        return self.dtype == "uint8" and len(self.shape) >= 2


Arrays = tuple[NamedArray, ...]
"""The arrays of an observation in order; empty for a single array without a name."""


def join_arrays(values: Mapping[str, Any]) -> tuple[Array, Arrays]:
    """(step, number) matrix of all arrays side by side, in their common type, and a description of each."""
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
        raise DemonstrationError(
            f"observations have {counts} steps: pass equally many of each", code="observation-lengths"
        )
    arrays = tuple(NamedArray(name, column.shape[1:], str(column.dtype)) for name, column in columns.items())
    flat = [column.reshape(len(column), each.size) for column, each in zip(columns.values(), arrays, strict=True)]
    return flat[0] if len(flat) == 1 else np.concatenate(flat, axis=1), arrays


def split_arrays(flat: Array, arrays: Arrays) -> dict[str, Array]:
    """(step, *shape) arrays by name from the matrix of `join_arrays`; views if possible."""
    ends = np.cumsum([each.size for each in arrays])
    return {
        each.name: flat[:, end - each.size : end].reshape(len(flat), *each.shape).astype(each.dtype, copy=False)
        for each, end in zip(arrays, ends.tolist(), strict=True)
    }


def matched_columns(found: Arrays, known: Arrays) -> Array:
    """The columns of a matrix of `found` arrays that hold those of a fit; extra arrays are dropped."""
    if not found or not known:
        one, other = ("have no names", "has") if known else ("have names", "has none")
        rule = "pass observations as the fit was given them"
        message = f"the arrays of the observations {one} and the fit {other}: {rule}"
        raise DemonstrationError(message, code="observation-names")
    ends = np.cumsum([each.size for each in found]).tolist()
    places = {each.name: (each, end) for each, end in zip(found, ends, strict=True)}
    columns = []
    for each in known:
        if each.name not in places:
            message = f"there is no observation {each.name!r}{did_you_mean(each.name, places)}"
            raise DemonstrationError(f"{message}: the data have {listed([*places])}", code="observation-missing")
        own, end = places[each.name]
        if own.shape != each.shape:
            message = f"observation {each.name!r} has shape {own.shape} and in the fit {each.shape}"
            raise DemonstrationError(f"{message}: pass arrays of the same shape", code="observation-shape")
        columns.append(np.arange(end - own.size, end))
    return np.concatenate(columns)


def matched_observations(values: Mapping[str, Any], known: Arrays) -> Array:
    """(step, number) matrix of the arrays of a fit, from arrays by name."""
    flat, found = join_arrays(values)
    return np.take(flat, matched_columns(found, known), axis=1)


def check_arrays(arrays: Sequence[NamedArray], width: int) -> Arrays:
    """Refuse arrays that do not describe all columns of a matrix under distinct names."""
    names, total = [each.name for each in arrays], sum(each.size for each in arrays)
    if arrays and (len(set(names)) < len(names) or total != width):
        message = f"observations have {width:,} numbers and the arrays {names} together {total:,}"
        raise DemonstrationError(f"{message}: name each array once, and all of them", code="observation-arrays")
    return tuple(arrays)


# --- recorded episodes

_RECORDED = {
    "observations": ("observations", "obs"),
    "actions": ("actions", "acts"),
    "rewards": ("rewards", "rews"),
    "terminals": ("terminations", "terminals", "terminal"),
}
"""The columns of a recorded episode, under the names of Minari and gymnasium or those of imitation."""


def join_episodes(episodes: Iterable[Any], demonstrator: Any, *, action_count: int = 0) -> dict[str, Any]:
    """Concatenate recorded episodes to columns, with the demonstrator and episode of each step.

    `encoding` names the entries of observations that are mappings; it is None otherwise.
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
        part, names = _recorded_columns(episode, number)
        parts.append(part)
        inputs.add(names)
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
    """Concatenate one column of several episodes; None if no episode has it."""
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


def _recorded_columns(episode: Any, number: int) -> tuple[dict[str, Array], tuple[str, ...]]:
    """The (step, ...) columns of an episode, and the names of the inputs if observations are a mapping."""
    found, inputs = dict[str, Array](), tuple[str, ...]()
    for column, names in _RECORDED.items():
        has = episode if isinstance(episode, Mapping) else {each: getattr(episode, each, None) for each in names}
        name = next((each for each in names if has.get(each) is not None), None)
        if name is None:
            continue
        values, about = has[name], f"the {name} of episode {number}"
        if not _is_mapping(values):
            found[column] = as_array(about, values)
        elif column == "observations":
            paths, parts = zip(*_entries(values, about), strict=True)
            flat = [part.reshape(len(part), math.prod(part.shape[1:])) for part in parts]
            sizes = [part.shape[1] for part in flat]
            inputs = tuple(each for path, size in zip(paths, sizes, strict=True) for each in numbered_names(path, size))
            found[column] = np.concatenate(flat, axis=1)
        else:
            raise DemonstrationError(f"{about} are a mapping: pass one array of numbers")
        if found[column].ndim == 0 and name != "terminal":  # imitation's is one boolean for the whole episode
            raise DemonstrationError(f"{about} are a single number: pass one for each step")
    if "observations" not in found or "actions" not in found:
        raise DemonstrationError(f"episode {number} lacks observations or actions: each episode needs both")
    seen, steps = len(found["observations"]), len(found["actions"])
    if seen not in (steps, steps + 1):
        counts = f"{seen} observations and {steps} actions"
        raise DemonstrationError(f"episode {number} has {counts}: pass equally many, or one observation more")
    if "terminals" in found and found["terminals"].ndim == 0:
        found["terminals"] = (np.arange(steps) == steps - 1) & bool(found["terminals"])
    return {name: values[:steps] for name, values in found.items()}, inputs


def _is_mapping(value: Any) -> bool:
    return callable(getattr(value, "items", None))


def _entries(value: Any, about: str, path: str = "") -> list[tuple[str, Array]]:
    """The paths and (step, ...) arrays of a nested mapping, in the order of sorted names."""
    found = list[tuple[str, Array]]()
    for name, entry in sorted(value.items(), key=lambda item: str(item[0])):
        here, place = f"{about}, entry {name!r},", f"{path}/{name}".removeprefix("/")
        if _is_mapping(entry):
            found += _entries(entry, here, place)
            continue
        array = as_array(here, entry)
        found.append((place, array))
        if array.dtype.kind not in "biuf" or array.ndim == 0:
            kind = "a single value" if array.ndim == 0 else f"{array.dtype}, not numbers"
            raise DemonstrationError(f"{here} are {kind}: leave the entry out, or pass numbers for each step")
    if not found:
        raise DemonstrationError(f"{about} are an empty mapping: pass at least one array")
    if len(lengths := {len(part) for _, part in found}) > 1:
        rule = "pass equally many rows of each"
        raise DemonstrationError(f"{about} have entries of different lengths {sorted(lengths)}: {rule}")
    return found


# --- new data in the columns of a fit


@final
@dataclass(frozen=True)
class Layout:
    """The columns that a fit expects: the shape of an observation, the actions, and their names if known."""

    shape: tuple[int, ...]
    action_count: int
    """The number of discrete actions; 0 for continuous actions."""
    action_size: int
    """The number of dimensions of a continuous action; 0 for discrete actions."""
    has_legal_actions: bool = False
    encoding: Encoding | None = None
    arrays: Arrays = ()
    """The arrays of an observation, if the fit used several."""

    def match(self, data: Demonstrations) -> Demonstrations:
        """Convert data to the columns of this layout; data that have them already are returned unchanged.

        Arrays of observations, features and dimensions of continuous actions are reordered by name, extra ones are
        dropped, and labels and categories are renumbered by name.

        Raises:
            DemonstrationError: if a feature is missing, a category or label is unknown, only one side has names, or
                the shape of observations or the number of actions differs.
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
                "the data do not name their features and the fit does: if the columns are the same, in the same "
                "order, pass dataclasses.replace(data, encoding=fitted.policy.encoding)"
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
    """A conversion of (row, input) observations from one encoding to another."""
    features, fitted = ({each.name: each for each in encoding.features} for encoding in (own, known))
    for name, feature in fitted.items():
        if name not in features:
            meant, there = did_you_mean(name, features), listed([*features], most=20)
            raise DemonstrationError(f"feature {name!r} of the fit is missing{meant}: the data have {there}")
        kinds = ["numbers" if each.categories is None else "categories" for each in (features[name], feature)]
        if kinds[0] != kinds[1]:
            raise DemonstrationError(
                f"feature {name!r} holds {kinds[0]} and in the fit {kinds[1]}: convert it, or read the table with "
                "from_table(..., encoding=fitted.policy.encoding)"
            )
    given, wanted = own.input_keys, known.input_keys
    columns = [given.index(key) if key in given else len(given) for key in wanted]  # the last column is zero
    unknown = [place for place, key in enumerate(given) if key[0] in fitted and key not in wanted]

    def change(rows: Array) -> Array:
        for place in unknown:
            if count := int(rows[:, place].sum()):
                (name, value), categories = given[place], fitted[given[place][0]].categories
                if categories is None:
                    found = f"feature {name!r} has {counted(count, 'missing value')}, which the fit has not seen"
                    raise DemonstrationError(f"{found}: fill or drop those rows")
                found = f"feature {name!r} is {value!r} in {counted(count, 'row')}, which the fit has not seen"
                raise DemonstrationError(f"{found}: it knows {listed(categories, most=20)}")
        converted = np.concatenate([rows, np.zeros_like(rows[:, :1])], axis=1)[:, columns]
        for place, (name, value) in enumerate(wanted):
            if value == 1 and (fill := fitted[name].fill) is not None:
                converted[:, place - 1] = np.where(converted[:, place] > 0, fill, converted[:, place - 1])
        return converted

    return change


def _matched_actions(own: Encoding, known: Encoding) -> tuple[_Change, _Change]:
    """Conversions of actions, and of columns of legal actions, from one encoding to another."""
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
