"""Outcomes as a user states them: success, a score, a duration, of episodes or of their segments, some missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, final

import numpy as np
import numpy.typing as npt

from ileed.data import Array, Demonstrations
from ileed.data.rules import listed
from ileed.errors import SettingsError, brief, did_you_mean, one_of

__all__ = ["Better", "EpisodeOutcomes", "Outcome", "Spans"]

Better = Literal["higher", "lower"]
Outcome = str | Mapping[Any, Any] | Sequence[Any] | npt.NDArray[Any]
"""How `outcome` may be passed: by name, by episode key, or one value for each episode."""
_RULE: Final = (
    'pass one number for each episode, a mapping from episode keys, "success", "reward", "duration" or a column'
)
_TRUTH: Final = {"true": 1.0, "false": 0.0, "success": 1.0, "failure": 0.0}


@final
@dataclass(frozen=True, eq=False)
class Spans:
    """The parts of a data set that have one outcome each: episodes, or the steps of an episode that share a label."""

    of_step: Array
    """(step,) the number of the span."""
    keys: list[Any]
    """The key of each episode, or pairs of it and a label."""
    by: str | None = None
    """The skill column that has the labels."""

    @classmethod
    def episodes(cls, data: Demonstrations) -> Spans:
        return cls(data.episode, data.episode_keys.tolist())

    @classmethod
    def segments(cls, data: Demonstrations, by: str) -> Spans:
        """The steps of each episode that share a label of a skill column."""
        weights, labels = data.skill(by)
        pairs, of_step = np.unique(data.episode * len(labels) + weights.argmax(1), return_inverse=True)
        keys = data.episode_keys.tolist()
        return cls(of_step, [(keys[pair // len(labels)], labels[pair % len(labels)]) for pair in pairs], by)

    @property
    def first_step(self) -> Array:
        """(span,) the first step of each."""
        return self._order[self._bounds]

    @property
    def sizes(self) -> Array:
        """(span,) the number of steps."""
        return np.bincount(self.of_step, minlength=len(self.keys))

    def reduce(self, function: np.ufunc, values: Array) -> Array:
        """(span,) a reduction of (step,) values."""
        return np.asarray(function.reduceat(values[self._order], self._bounds))

    def values_of(self, outcome: Mapping[Any, Any]) -> list[Any]:
        """The value of each span in a mapping from keys, None where it has none; labels may be numbers or text."""
        given = {self._key(key): value for key, value in outcome.items()}
        if strangers := given.keys() - set(self.keys):
            first = next(key for key in given if key in strangers)
            what, how = "episode", "name episodes as data.episode_keys does"
            if self.by is not None:
                what, how = f"episode and {self.by}", "pass pairs of a key of data.episode_keys and a label"
            raise SettingsError(
                f"outcome has {what} {brief(first)}, which the data do not have: {how} (first: {brief(self.keys[0])})"
            )
        return [given.get(key) for key in self.keys]

    def constant(self, name: str, values: Array) -> Array:
        """(span,) values (step,) that are constant within each; refuses others."""
        first = values[self.first_step]
        expected = first[self.of_step]
        same = (values == expected) | ((values != values) & (expected != expected))
        if varies := np.flatnonzero(~same).tolist():
            key = brief(self.keys[self.of_step[varies[0]]])
            if self.by is None:
                where, rule = f"episode {key}", "name a column that is constant within episodes"
            else:
                where, rule = f"episode and {self.by} {key}", "pass values that are constant there"
            raise SettingsError(f"{name} changes within {where}: {rule}")
        return np.asarray(first)

    def _key(self, key: Any) -> Any:
        return key if self.by is None or not isinstance(key, tuple) or len(key) != 2 else (key[0], str(key[1]))

    @cached_property
    def _order(self) -> Array:
        return np.argsort(self.of_step, kind="stable")

    @cached_property
    def _bounds(self) -> Array:
        return np.searchsorted(self.of_step[self._order], np.arange(len(self.keys)))


@final
@dataclass(frozen=True, eq=False)
class EpisodeOutcomes:
    """The outcome of each episode, or of other spans, in the user's own units, and which direction is better."""

    values: Array
    """(episode,) or (span,), NaN where it is not known."""
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
        found = cls.read(outcome, better, data, name=name)
        if found.is_constant:
            known = found.values[found.is_known]
            raise SettingsError(
                f"outcome is {known[0]:g} in each of the {len(known):,} episodes that have one, so that it tells no "
                "demonstrators apart: leave it out"
            )
        return found

    @classmethod
    def read(
        cls,
        outcome: Outcome,
        better: str | None,
        data: Demonstrations,
        *,
        spans: Spans | None = None,
        name: str = "outcome",
    ) -> EpisodeOutcomes:
        """The same, of episodes or of other spans, where all outcomes may be equal.

        With spans other than episodes, an array has one value for each step, which like a column is constant within
        spans, and the keys of a mapping are pairs. Named outcomes are of the steps of each span.
        """
        spans = Spans.episodes(data) if spans is None else spans
        if better is not None:
            one_of("better", better, ("higher", "lower"))
        name = outcome if isinstance(outcome, str) else name
        if isinstance(outcome, str) and outcome == "duration" and better is None:
            raise SettingsError('outcome is "duration" and better is not given: pass better="lower" or better="higher"')
        found = cls(_values(outcome, data, spans), "lower" if better == "lower" else "higher", name)
        if not found.is_known.any():
            raise SettingsError(f"outcome has no value for any of the {data.episode_count:,} episodes: {_RULE}")
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
    def is_constant(self) -> bool:
        """Whether all known outcomes are equal, or none is known."""
        known = self.values[self.is_known]
        return bool((known == known[:1]).all())

    @property
    def is_binary(self) -> bool:
        """Whether there are no other values than 0 and 1."""
        return bool(np.isin(self.values[self.is_known], (0.0, 1.0)).all())

    def among(self, chosen: Array) -> EpisodeOutcomes:
        """The same with unknown outcomes outside of a mask (episode,)."""
        return EpisodeOutcomes(np.where(chosen, self.values, np.nan), self.better, self.name)


def _values(outcome: Outcome, data: Demonstrations, spans: Spans) -> Array:
    """(span,) as stated; NaN where it is missing."""
    if isinstance(outcome, str):
        return _NAMED[outcome](data, spans) if outcome in _NAMED else _of_column(outcome, data, spans)
    if isinstance(outcome, Mapping):
        return _numbers(spans.values_of(outcome))
    found = _numbers(outcome)
    if spans.by is not None:
        if found.shape != (len(data),):
            rule = f"pass one for each of the {len(data):,} steps, or a mapping from (episode key, {spans.by})"
            raise SettingsError(f"outcome has shape {found.shape}: {rule}")
        return spans.constant("outcome", found)
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


def _success(data: Demonstrations, spans: Spans) -> Array:
    return np.asarray(spans.reduce(np.maximum, _rewards(data, "success")) > 0, dtype=np.float64)


def _reward(data: Demonstrations, spans: Spans) -> Array:
    return spans.reduce(np.add, _rewards(data, "reward"))


def _duration(data: Demonstrations, spans: Spans) -> Array:
    return np.asarray(spans.sizes / (data.fps or 1.0))


_NAMED: Final[Mapping[str, Callable[[Demonstrations, Spans], Array]]] = {
    "success": _success,
    "reward": _reward,
    "duration": _duration,
}


def _of_column(name: str, data: Demonstrations, spans: Spans) -> Array:
    """The value of a skill column in each span: a number, or a word for success; empty words are missing."""
    if name not in data.skills:
        known = [*_NAMED, *data.skills]
        raise SettingsError(f"outcome {brief(name)} is no column of the data{did_you_mean(name, known)}: {_RULE}")
    column = np.asarray(data.skills[name])
    if column.ndim == 2 and column.shape[1] != 1:
        raise SettingsError(f"outcome {brief(name)} has {column.shape[1]} numbers for each step: name a column of one")
    first = spans.constant(f"outcome {brief(name)}", column.reshape(len(data)))
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
