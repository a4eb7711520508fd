"""Kinds of state: the labels of a skill column, or clusters of observations named by what sets them apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import final

import numpy as np

from ileed._torch import numpy_stream, product
from ileed.demonstrations import Array, Demonstrations
from ileed.fitted import Fitted
from ileed.fitted.policy import as_tensor
from ileed.report.text import short

_KINDS, _LABELS = 6, 12  # clusters, and labels of a column, at most
_STARTS, _ROUNDS, _ROWS = 4, 30, 20_000  # of k-means: random starts, rounds of each, and steps that it learns from
_FEW_VALUES = 12  # a feature of so many values at most is described by its value
_APART = 0.5  # standard deviations from the mean of all steps, from which on a feature sets a kind apart


@final
@dataclass(frozen=True, eq=False)
class Kinds:
    """Kinds of state: a short name and a description of each, examples, and the kind of each step."""

    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    examples: tuple[Sequence[tuple[int, int]], ...]
    """(episode, step within it) of states that are typical of each kind."""
    of_step: Array
    column: str | None
    """The skill column that they are the labels of."""


def kinds_of(fitted: Fitted, data: Demonstrations) -> Kinds:
    """By the skill column of the fit, or one of the data whose values are labels; otherwise by clusters."""
    own = fitted.joint.parts.expertise.skill_column
    columns = [name for name in (own, *data.skills) if name is not None and data.skills[name].ndim == 1]
    for column in columns:
        weights, names = data.skill(column)
        if 1 < len(names) <= _LABELS:
            kind = weights.argmax(1)
            typical = [np.flatnonzero(kind == each) for each in range(len(names))]
            middle = [steps[len(steps) // 4 :: max(1, len(steps) // 4)][:3] for steps in typical]
            told = tuple(f"{short(column)} is {short(name)}" for name in names)
            return Kinds(names, told, tuple(_places(data, steps) for steps in middle), kind, column)
    return _clusters(fitted, data)


def _clusters(fitted: Fitted, data: Demonstrations) -> Kinds:
    seen = fitted.normaliser(as_tensor(data.observations)).T.double().numpy()
    deviation = seen.std(0)
    scaled = (seen - seen.mean(0)) / np.where(deviation > 0, deviation, 1)
    centres = _k_means(scaled[:: -(-len(scaled) // _ROWS)])
    distance = _distances(scaled, centres)
    kind = distance.argmin(1)
    order = np.argsort(-np.bincount(kind, minlength=len(centres)), kind="stable")  # the most frequent kind is A
    order = order[: int((np.bincount(kind, minlength=len(centres)) > 0).sum())]
    place = np.full(len(centres), -1)
    place[order] = np.arange(len(order))
    examples = tuple(_nearest(data, distance[:, old], kind == old) for old in order)
    names = _feature_names(fitted, data)
    values = data.observations.reshape(len(data), -1)[:, fitted.normaliser.kept.numpy()].astype(np.float64)
    told = tuple(_description(scaled, values, names, kind == old) for old in order)
    return Kinds(tuple(ascii_uppercase[: len(order)]), told, examples, place[kind], None)


def _k_means(rows: Array) -> Array:
    """(cluster, feature) centres of the best of a few random starts (k-means++); the same for the same rows."""
    chance = numpy_stream(0, "kinds of state", len(rows))
    count = min(_KINDS, len(np.unique(rows[:2000], axis=0)))
    best, least = rows[:1], np.inf
    for _ in range(_STARTS):
        centres = rows[chance.integers(len(rows))][None]
        for _ in range(count - 1):
            nearest = _distances(rows, centres).min(1)
            if not nearest.sum():
                break
            centres = np.concatenate([centres, rows[chance.choice(len(rows), p=nearest / nearest.sum())][None]])
        for _ in range(_ROUNDS):
            kind = _distances(rows, centres).argmin(1)
            size = np.bincount(kind, minlength=len(centres))
            summed = np.zeros_like(centres)
            np.add.at(summed, kind, rows)
            centres = np.where(size[:, None] > 0, summed / np.maximum(size, 1)[:, None], centres)
        if (cost := _distances(rows, centres).min(1).sum()) < least:
            best, least = centres, cost
    return best


def _distances(rows: Array, centres: Array) -> Array:
    """(row, centre) squared distances."""
    found = (rows**2).sum(1)[:, None] - 2 * product(rows, centres.T) + (centres**2).sum(1)
    return np.asarray(found.clip(min=0))


def _nearest(data: Demonstrations, distance: Array, own: Array) -> list[tuple[int, int]]:
    """Three states nearest to the centre, of three episodes where there are as many."""
    order = np.argsort(np.where(own, distance, np.inf), kind="stable")[: int(own.sum())][:500]
    first = np.unique(data.episode[order], return_index=True)[1]
    return _places(data, order[np.sort(first)][:3])


def _places(data: Demonstrations, steps: Array) -> list[tuple[int, int]]:
    begins = np.searchsorted(data.episode, data.episode[steps])
    return [(int(episode), int(step)) for episode, step in zip(data.episode[steps], steps - begins, strict=True)]


def _feature_names(fitted: Fitted, data: Demonstrations) -> list[str]:
    """The names of the numbers that the networks see: those of a table's columns, or places in the observation."""
    kept, shape = fitted.normaliser.kept.tolist(), data.observations.shape[1:]
    if data.encoding is not None:
        return [short(data.encoding.inputs[place]) for place in kept]
    places = (np.unravel_index(place, shape) for place in kept)
    return [f"observation[{', '.join(str(int(part)) for part in each)}]" for each in places]


def _description(scaled: Array, values: Array, names: Sequence[str], own: Array) -> str:
    """The two features that set these steps apart most, in words."""
    apart = scaled[own].mean(0)  # in standard deviations from the mean over all steps
    told = [_feature(names[place], values[:, place], own, apart[place]) for place in np.argsort(-np.abs(apart))[:2]]
    return ", ".join(filter(None, told)) or "near the middle in every feature"


def _feature(name: str, values: Array, own: Array, apart: float) -> str:
    if abs(apart) < _APART:
        return ""
    distinct, count = np.unique(values[own], return_counts=True)
    all_of_them = np.unique(values[:: max(1, len(values) // 5000)])
    if len(all_of_them) <= _FEW_VALUES and count.max() >= 0.7 * count.sum():
        value = distinct[count.argmax()]
        if " = " in name:  # one category of a column: the input is one in it and zero elsewhere
            return name if value else f"not {name}"
        return f"{name} = {value:g}"
    return f"{name} {'high' if apart > 0 else 'low'} (about {float(np.median(values[own])):.3g})"
