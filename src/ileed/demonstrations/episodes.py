"""Episodes as other programs record them: under which names, and observations that are a mapping of arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ileed.demonstrations import rules
from ileed.demonstrations.rules import Array
from ileed.errors import DemonstrationError

_NAMES = {
    "observations": ("observations", "obs"),
    "actions": ("actions", "acts"),
    "rewards": ("rewards", "rews"),
    "terminations": ("terminations", "terminals", "terminal"),
}
"""What each column is called: by gymnasium's programs and Minari first, then by imitation."""


def recorded(episode: Any, column: str, number: int) -> Array | None:
    """One column of an episode, (step, ...); None where the episode does not have it."""
    found = ((name, _value(episode, name)) for name in _NAMES[column])
    name, value = next(((name, value) for name, value in found if value is not None), (column, None))
    if value is None:
        return None
    about = f"the {name} of episode {number}"
    if callable(getattr(value, "items", None)):
        if column != "observations":
            raise DemonstrationError(f"{about} are a mapping: pass one array of numbers")
        return flatten_observations(dict(value.items()), about=about)
    array = rules.as_array(about, value)
    if array.ndim == 0 and name == "terminal":
        return _ends_if(array, recorded(episode, "actions", number))
    if array.ndim == 0:
        raise DemonstrationError(f"{about} are a single number: pass one for each step")
    return array


def _value(episode: Any, name: str) -> Any:
    return episode.get(name) if isinstance(episode, Mapping) else getattr(episode, name, None)


def _ends_if(terminal: Array, actions: Array | None) -> Array:
    """(step,) false, and at the last step whether the task ended there."""
    ends = np.zeros(0 if actions is None else len(actions), dtype=bool)
    ends[-1:] = bool(terminal)
    return ends


def flatten_observations(entries: Mapping[str, Any], *, about: str = "observations") -> Array:
    """(row, number) from named arrays of (row, ...), in the order of their sorted names; entries may be nested."""
    if not entries:
        raise DemonstrationError(f"{about} are an empty mapping: there must be one array or more")
    parts = []
    for name in sorted(entries, key=str):
        value = entries[name]
        here = f"{about}, entry {name!r},"
        if callable(getattr(value, "items", None)):
            array = flatten_observations(dict(value.items()), about=here)
        else:
            array = rules.as_array(here, value)
        if array.dtype.kind not in "biuf" or array.ndim == 0:
            found = "a single value" if array.ndim == 0 else f"{array.dtype}, not numbers"
            raise DemonstrationError(f"{here} are {found}: leave the entry out, or pass numbers for each step")
        parts.append(array.reshape(len(array), -1) if len(array) else array.reshape(0, 1))
    if len({len(part) for part in parts}) > 1:
        counts = ", ".join(f"{name} {len(part)}" for name, part in zip(sorted(entries, key=str), parts, strict=True))
        raise DemonstrationError(f"{about} have entries of different lengths ({counts}): there must be as many of each")
    return np.concatenate(parts, axis=1)


def labels_of_episodes(demonstrator: Any) -> Sequence[str | int]:
    """The demonstrators' labels, one for each episode; a single text is refused, though it has a length."""
    if isinstance(demonstrator, str | bytes | Mapping) or not hasattr(demonstrator, "__len__"):
        raise DemonstrationError(
            f"demonstrator is {demonstrator!r}: pass a list with one name or whole number for each episode"
        )
    labels: Sequence[str | int] = demonstrator
    return labels
