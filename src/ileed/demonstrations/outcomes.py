"""Outcomes of episodes as a user states them: success, a score, a duration, with missing values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, final

import numpy as np
import numpy.typing as npt

from ileed.checking import one_of
from ileed.demonstrations import Array, Demonstrations
from ileed.demonstrations.rules import listed
from ileed.errors import SettingsError, brief
from ileed.wording import did_you_mean

__all__ = ["Better", "EpisodeOutcomes", "Outcome"]

Better = Literal["higher", "lower"]
Outcome = str | Mapping[Any, Any] | Sequence[Any] | npt.NDArray[Any]
"""How `outcome` may be passed to a fit: by name, by episode key, or one value for each episode."""
_RULE: Final = (
    'pass one number for each episode, a mapping from episode keys, "success", "reward", "duration" or a column'
)
_TRUTH: Final = {"true": 1.0, "false": 0.0, "success": 1.0, "failure": 0.0}


@final
@dataclass(frozen=True, eq=False)
class EpisodeOutcomes:
    """The outcome of each episode, in the user's own units, and which direction is better."""

    values: Array
    """(episode,) NaN where it is not known."""
    better: Better
    name: str = "outcome"

    @classmethod
    def of(
        cls, outcome: Outcome, better: str | None, data: Demonstrations, *, name: str = "outcome"
    ) -> EpisodeOutcomes:
        """What the arguments `outcome` and `better` of a fit say about these data.

        "success" is whether any reward of an episode is above zero, "reward" their sum, and "duration" the number of
        steps, or seconds where the data have `fps`. Any other word names a skill column that is constant within
        episodes. `better` defaults to "higher", but has to be given with "duration": short is not always good.
        """
        if better is not None:
            one_of("better", better, ("higher", "lower"))
        name = outcome if isinstance(outcome, str) else name
        if isinstance(outcome, str) and outcome == "duration" and better is None:
            raise SettingsError('outcome is "duration" and better is not given: pass better="lower" or better="higher"')
        values = _values(outcome, data)
        found = cls(values, "lower" if better == "lower" else "higher", name)
        known = values[found.is_known]
        if not len(known):
            raise SettingsError(f"outcome has no value for any of the {data.episode_count:,} episodes: {_RULE}")
        if (known == known[0]).all():
            raise SettingsError(
                f"outcome is {known[0]:g} in each of the {len(known):,} episodes that have one, so that it tells no "
                "demonstrators apart: leave it out"
            )
        return found

    @property
    def is_known(self) -> Array:
        """(episode,) whether the outcome is known."""
        return np.asarray(~np.isnan(self.values))

    @property
    def sign(self) -> float:
        """1 where higher is better, -1 where lower is."""
        return 1.0 if self.better == "higher" else -1.0

    @property
    def is_binary(self) -> bool:
        """Whether there are no other values than 0 and 1."""
        return bool(np.isin(self.values[self.is_known], (0.0, 1.0)).all())

    def among(self, chosen: Array) -> EpisodeOutcomes:
        """The same with unknown outcomes outside of a mask (episode,)."""
        return EpisodeOutcomes(np.where(chosen, self.values, np.nan), self.better, self.name)


def _values(outcome: Outcome, data: Demonstrations) -> Array:
    """(episode,) as stated; NaN where it is missing."""
    if isinstance(outcome, str):
        return _NAMED[outcome](data) if outcome in _NAMED else _of_column(outcome, data)
    if isinstance(outcome, Mapping):
        keys = data.episode_keys.tolist()
        if strangers := [key for key in outcome if key not in set(keys)]:
            raise SettingsError(
                f"outcome has episode {brief(strangers[0])}, which the data do not have: name episodes as "
                f"data.episode_keys does (first: {brief(keys[0])})"
            )
        return _numbers([outcome.get(key) for key in keys])
    found = _numbers(outcome)
    if found.shape != (data.episode_count,):
        raise SettingsError(
            f"outcome has shape {found.shape}: pass one for each of the {data.episode_count:,} episodes"
        )
    return found


def _numbers(values: Any) -> Array:
    """Numbers in double precision, NaN for None and masked values; refuses text and infinite ones."""
    if np.ma.isMaskedArray(values):
        values, masked = np.ma.getdata(values).astype(object), np.ma.getmaskarray(values)
        values[masked] = None
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "biufO":
            raise TypeError
        each = [np.nan if value is None else value for value in array.ravel().tolist()]
        if any(isinstance(value, str | bytes) for value in each):
            raise TypeError
        found = np.array(each, dtype=np.float64).reshape(array.shape)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise SettingsError(f"outcome is {brief(values)}: {_RULE}") from None
    if np.isinf(found).any():
        raise SettingsError(
            f"outcome is infinite in {np.isinf(found).sum():,} episodes: pass NaN where it is not known"
        )
    return found


def _rewards(data: Demonstrations, name: str) -> Array:
    if data.rewards is None:
        raise SettingsError(
            f"outcome is {name!r}, which is read from rewards, and the data have none: pass one value for each episode"
        )
    return np.asarray(data.rewards, dtype=np.float64)


def _success(data: Demonstrations) -> Array:
    return np.asarray(np.maximum.reduceat(_rewards(data, "success"), data.episode_bounds[:-1]) > 0, dtype=np.float64)


def _reward(data: Demonstrations) -> Array:
    return np.asarray(np.add.reduceat(_rewards(data, "reward"), data.episode_bounds[:-1]))


def _duration(data: Demonstrations) -> Array:
    return np.asarray(np.diff(data.episode_bounds) / (data.fps or 1.0))


_NAMED: Final[Mapping[str, Callable[[Demonstrations], Array]]] = {
    "success": _success,
    "reward": _reward,
    "duration": _duration,
}


def _of_column(name: str, data: Demonstrations) -> Array:
    """The value of a skill column in each episode: a number, or a word for success; empty words are missing."""
    if name not in data.skills:
        known = [*_NAMED, *data.skills]
        raise SettingsError(f"outcome {brief(name)} is no column of the data{did_you_mean(name, known)}: {_RULE}")
    column = np.asarray(data.skills[name])
    if column.ndim == 2 and column.shape[1] != 1:
        raise SettingsError(f"outcome {brief(name)} has {column.shape[1]} numbers for each step: name a column of one")
    column = column.reshape(len(data))
    first = column[data.episode_bounds[:-1]]
    if varies := np.flatnonzero(column != first[data.episode]).tolist():
        key = data.episode_keys[data.episode[varies[0]]]
        raise SettingsError(
            f"outcome {brief(name)} changes within episode {brief(key)}: name a column that is constant within episodes"
        )
    if column.dtype.kind != "U":
        return np.asarray(first, dtype=np.float64)
    return np.array([_number_of(name, word) for word in first.tolist()])


def _number_of(column: str, word: str) -> float:
    """A number that is written as text."""
    text = word.strip().lower()
    if text in ("", "none", "null", "na"):
        return np.nan
    try:
        found = _TRUTH[text] if text in _TRUTH else float(text)
    except ValueError:
        choices = listed(tuple(_TRUTH))
        raise SettingsError(f"outcome {brief(column)} holds {brief(word)}: use numbers, or {choices}") from None
    if np.isinf(found):
        raise SettingsError(f"outcome {brief(column)} holds {brief(word)}: leave it empty where it is not known")
    return found
