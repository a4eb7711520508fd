"""Notes: the JSON object in which our writers keep what a format has no place for, such as the order of names."""

from __future__ import annotations

import json
import math
from typing import Any

from ileed.demonstrations import Array
from ileed.errors import DemonstrationError, brief


def _are_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


_RULES = {
    "names": ("a list of strings", _are_words),
    "observations": ("a list of strings", _are_words),
    "observation_shape": (
        "a list of whole numbers, zero or more",
        lambda value: isinstance(value, list) and value and all(map(_is_count, value)),
    ),
    "action_count": ("a whole number, zero or more", _is_count),
    "skills": ("an object of strings", lambda value: isinstance(value, dict) and _are_words([*value.values()])),
}


def read_notes(text: Any, place: str) -> dict[str, Any]:
    """What our writer noted in a place of a file; whatever is not of the kind that it notes is refused."""
    try:
        notes = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        notes = text
    if not isinstance(notes, dict):
        raise DemonstrationError(
            f"the notes in {place} hold {brief(notes)}, which is not JSON of ours: they must be a JSON object"
        )
    for name, (rule, holds) in _RULES.items():
        if name in notes and not holds(notes[name]):
            raise DemonstrationError(
                f"the notes on {name!r} in {place} hold {brief(notes[name])}: {name} must be {rule}; write it again"
            )
    return notes


def shape_as_noted(observations: Array, notes: dict[str, Any], place: str) -> Array:
    """(step, ...) observations in the shape that our writer noted, from the (step, number) that the file holds."""
    if "observation_shape" not in notes:
        return observations
    shape, width = tuple(notes["observation_shape"]), math.prod(observations.shape[1:])
    if math.prod(shape) != width:
        raise DemonstrationError(
            f"observations have {width:,} numbers but by {place} their shape is {shape}: the product must be the number"
        )
    return observations.reshape(len(observations), *shape)
