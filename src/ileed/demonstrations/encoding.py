"""Encoding: how the columns of a table become observations and actions, and the actions become labels again.

A number stays a number. A column of text, categories or true and false becomes one input for each of its categories,
one in the row's own category and zero elsewhere (one-hot). Labels of a discrete action are numbered 0, 1, ....
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, final

import numpy as np

from ileed.demonstrations.preprocessing import single_holds
from ileed.demonstrations.rules import Array, listed
from ileed.errors import DemonstrationError
from ileed.wording import printable

if TYPE_CHECKING:
    from ileed.demonstrations.columns import Column

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
        from ileed.demonstrations.columns import Column, as_table  # loads pyarrow.compute, which takes a while

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


def is_table(value: object) -> bool:
    """Whether a value holds columns by name: a mapping, a DataFrame, or anything that speaks Arrow's protocols."""
    kinds = ("__arrow_c_stream__", "__arrow_c_array__", "__dataframe__")
    return isinstance(value, Mapping) or any(hasattr(value, kind) for kind in kinds)
