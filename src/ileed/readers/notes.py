"""Notes: what our writers keep of demonstrations where a format has no place for it, and how readers use it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ileed import memory, runs
from ileed.demonstrations import Array, Demonstrations
from ileed.errors import DemonstrationError, brief

_LABEL_TYPE = re.compile(r"[<>|=]?(?P<kind>[biufU])(?P<size>\d{1,6})")


def notes_of(data: Demonstrations) -> dict[str, Any]:
    """The order of names, the number of actions, the types of skills, fps and the encoding, as plain JSON values."""
    notes: dict[str, Any] = {
        "format": 1,
        "observation_shape": list(data.observations.shape[1:]),
        "names": list(data.names),
        "action_count": data.action_count,
        "skills": {name: values.dtype.str for name, values in data.skills.items()},
        "absent": [name for name in ("rewards", "terminals") if getattr(data, name) is None],
    }
    if data.encoding is not None:
        notes["encoding"] = runs.plain(data.encoding)
    if data.fps is not None:
        notes["fps"] = data.fps
    return notes


def skills_as_noted(skills: Mapping[str, Array], notes: Mapping[str, Any]) -> dict[str, Array]:
    """The skill columns in the types that our writer noted, where it noted any."""
    found = dict(skills)
    for name in found.keys() & notes.get("skills", {}).keys():
        kind, values = notes["skills"][name], found[name]
        match, stored = _LABEL_TYPE.fullmatch(kind), f"stored as {values.dtype}: write the file again"
        if match is None or (match["kind"] == "U") != (values.dtype.kind == "U"):
            raise DemonstrationError(f"skill {name!r} is noted as of type {brief(kind)} and {stored}")
        memory.check_fits(f"skill {name!r}", 4 * int(match["size"]) * len(values))
        found[name] = values.astype(kind)
    return found


def names_as_noted(labels: Sequence[str | int], notes: Mapping[str, Any]) -> tuple[str, ...]:
    """The names in the order that our writer noted, and after them those that another program has added since."""
    noted = notes.get("names", ())
    return tuple(dict.fromkeys([*noted, *map(str, labels)])) if noted else ()


def is_absent(name: str, notes: Mapping[str, Any]) -> bool:
    """Whether our writer filled in a column that a format demands and the data lack."""
    absent = notes.get("absent", [])
    return isinstance(absent, list) and name in absent
