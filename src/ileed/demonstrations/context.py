"""Context: what came before a step of a data set, for demonstrator models that depend on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ileed.demonstrations.rules import Array
from ileed.errors import SettingsError
from ileed.wording import did_you_mean

if TYPE_CHECKING:
    from ileed.demonstrations import Demonstrations

CONTEXT = {
    "previous_action": "the action before this one in the episode; -1 at its first step, or zeros where continuous",
    "previous_observation": "the inputs of the observation before this one in the episode; zeros at its first step",
    "first_step": "1 at the first step of an episode, 0 at the others",
    "episode_number": "which of the demonstrator's own episodes this is, from 0 on",
}
"""The columns that a demonstrator model may declare in its `context`."""

NONE = -1  # the number of what an episode's first step has none of


def check_context(who: str, names: Sequence[str]) -> None:
    """Refuse a context of another name."""
    if strange := [name for name in names if name not in CONTEXT]:
        raise SettingsError(
            f"{who} declares the context {strange[0]!r}{did_you_mean(strange[0], CONTEXT)}: "
            f"a step's context is one of {', '.join(CONTEXT)}"
        )


def step_context(data: Demonstrations, names: Sequence[str], observation_index: Array) -> dict[str, Array]:
    """The named columns, (step,) whole numbers, or (step, dimension) where they are continuous actions.

    A previous observation is given by its number in `observation_index`, (step,), and by -1 where there is none.
    """
    first = np.append(True, data.episode[1:] != data.episode[:-1])
    found: dict[str, Array] = {}
    for name in names:
        if name == "first_step":
            found[name] = first.astype(np.int64)
        elif name == "episode_number":
            found[name] = _own_numbers(data.episode_demonstrator)[data.episode]
        elif name == "previous_action":
            found[name] = _shifted(data.actions, first, NONE if data.discrete else 0)
        else:
            found[name] = _shifted(observation_index, first, NONE)
    return found


def _shifted(values: Array, first: Array, none: int) -> Array:
    """The value of the step before, or `none` at first steps."""
    before = np.roll(values, 1, axis=0)
    before[first] = none
    return before


def _own_numbers(owner: Array) -> Array:
    """(episode,) how many earlier episodes each episode's demonstrator has."""
    order = np.argsort(owner, kind="stable")
    starts = np.searchsorted(owner[order], owner[order])
    numbers = np.empty(len(owner), dtype=np.int64)
    numbers[order] = np.arange(len(owner)) - starts
    return numbers
