"""Matching: new data brought into the columns, labels and width of the data that a fit learned from.

Features, categories and labels are matched by name where both sides have names, and by position where neither has.
Whatever cannot be matched raises a `DemonstrationError`, so that numbers are never read as those of another column.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, final

import numpy as np

from ileed.demonstrations.encoding import Encoding, Feature
from ileed.demonstrations.rules import Array, listed
from ileed.errors import DemonstrationError
from ileed.wording import counted, did_you_mean

if TYPE_CHECKING:
    from ileed.demonstrations import Demonstrations


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

    def match(self, data: Demonstrations) -> Demonstrations:
        """The same steps with the columns of this layout; data that already have them are returned as they are.

        Features and dimensions of continuous actions are reordered by name, extra features are dropped, and labels and
        categories are renumbered by name.

        Raises:
            DemonstrationError: if a feature is missing, a category or label is unknown, names are known on one side
                only, or the shape of observations or the number of actions differs.
        """
        if data.encoding != self.encoding:
            data = self._match_names(data)
        if data.observations.shape[1:] != self.shape:
            raise DemonstrationError(
                f"observations have shape {data.observations.shape[1:]} and those of the fit {self.shape}: pass data "
                "with the same columns"
            )
        found = (data.action_count, 0) if data.discrete else (0, data.actions.shape[1])
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
            return replace(data, encoding=None)
        inputs = _matched_inputs(data.encoding, self.encoding)
        actions, legal = _matched_actions(data.encoding, self.encoding)
        return replace(
            data,
            observations=_changed(data, data.observations, inputs),
            actions=_changed(data, data.actions, actions),
            legal=None if data.legal is None else _changed(data, data.legal, legal),
            action_count=len(self.encoding.labels),
            encoding=self.encoding,
        )


def _actions_in_words(count: int, size: int) -> str:
    return f"{count} discrete actions" if count else f"continuous actions of {counted(size, 'dimension')}"


_Change = Callable[[Array], Array]


def _changed(data: Demonstrations, column: Array, change: _Change) -> Array:
    """A column with each of its rows changed; mapped columns are read and written in blocks."""
    if data.mapping is None:
        return change(column)
    first = change(column[:1])
    blocks = data.mapping.blocks(len(column), column[:1].nbytes + first.nbytes)
    return data.mapping.written((change(column[block]) for block in blocks), first.dtype, first.shape[1:])


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
