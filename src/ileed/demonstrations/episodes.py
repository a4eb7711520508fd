"""Episodes as other programs record them: under which names, and observations that are a mapping of arrays."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Set
from typing import Any

import numpy as np

from ileed.demonstrations.encoding import Encoding, numbered_names
from ileed.demonstrations.rules import Array, as_array
from ileed.errors import DemonstrationError, brief

_NAMES = {
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
        parts.append(_columns(episode, number))
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
    for name in _NAMES:
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


def _columns(episode: Any, number: int) -> dict[str, Array]:
    """The columns that an episode has, (step, ...) each."""
    found = {name: values for name in _NAMES if (values := _column(episode, name, number)) is not None}
    if "observations" not in found or "actions" not in found:
        raise DemonstrationError(f"episode {number} lacks observations or actions: each episode needs both")
    seen, steps = len(found["observations"]), len(found["actions"])
    if seen not in (steps, steps + 1):
        counts = f"{seen} observations and {steps} actions"
        raise DemonstrationError(f"episode {number} has {counts}: pass as many of each, or one observation more")
    if "terminals" in found and found["terminals"].ndim == 0:
        found["terminals"] = (np.arange(steps) == steps - 1) & bool(found["terminals"])
    return {name: values[:steps] for name, values in found.items()}


def _column(episode: Any, column: str, number: int) -> Array | None:
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
    found = episode if isinstance(episode, Mapping) else {name: getattr(episode, name, None) for name in _NAMES[column]}
    return next(((name, found[name]) for name in _NAMES[column] if found.get(name) is not None), ("", None))


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
