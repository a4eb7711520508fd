"""Checks of arguments: each returns the value as we compute with it, or says what was passed and what to pass."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable
from numbers import Real
from pathlib import Path
from typing import Any

from ileed.errors import IleedError, SettingsError

__all__ = [
    "LONGEST",
    "at_least_one",
    "callable_or_none",
    "instance_of",
    "number",
    "one_of",
    "path_of",
    "seed_of",
    "shown",
    "text",
    "true_or_false",
    "whole_number",
    "whole_numbers",
]

_Failure = type[IleedError]
_SHOWN = 60  # characters of a value that a sentence repeats


def shown(value: object) -> str:
    """A value as a sentence can hold it: short values as they are written, a large one by its kind.

    >>> shown("ann"), shown(2.5), shown(int), shown("x" * 100)[:20]
    ("'ann'", '2.5', 'the class int', "'xxxxxxxxxxxxxxxxxxx")
    """
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, str):
        return repr(value) if len(value) <= _SHOWN else f"{value[:_SHOWN]!r}... of {len(value):,} characters"
    if value is None or isinstance(value, bool | int | float | complex | bytes | tuple | list | os.PathLike):
        written = str(value) if isinstance(value, float) else repr(value)
        if len(written) <= 2 * _SHOWN:
            return written
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'aeiouAEIOU' or kind == 'ndarray' else 'a'} {kind}"


def whole_number(
    name: str, value: object, *, rule: str, least: int | None = None, error: _Failure = SettingsError
) -> int:
    """A whole number, of Python or numpy; `rule` says what it must be.

    >>> whole_number("steps", "5", least=1, rule="a fit takes a whole number of steps, one or more")
    Traceback (most recent call last):
    ileed.errors.SettingsError: steps is '5': a fit takes a whole number of steps, one or more
    """
    try:
        found = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        found = None
    if isinstance(value, bool) or found is None or (least is not None and found < least):
        raise error(f"{name} is {shown(value)}: {rule}")
    return found


def whole_numbers(name: str, values: object, *, rule: str, least: int | None = None) -> tuple[int, ...]:
    """Whole numbers as a tuple, from a tuple, a list or an array of one axis."""
    listed = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(listed, tuple | list):
        raise SettingsError(f"{name} is {shown(values)}: {rule}")
    return tuple(_each(name, listed, rule, least))


def _each(name: str, values: Iterable[object], rule: str, least: int | None) -> Iterable[int]:
    for value in values:
        try:
            yield whole_number(name, value, least=least, rule=rule)
        except SettingsError:
            raise SettingsError(f"{name} is {shown(values)}: {rule}") from None


def number(
    name: str,
    value: object,
    *,
    rule: str,
    within: Callable[[float], bool] = lambda value: True,
    error: _Failure = SettingsError,
) -> float:
    """A number that is `within` what the rule says; NaN is within nothing."""
    if isinstance(value, bool) or not isinstance(value, Real) or value != value or not within(float(value)):
        raise error(f"{name} is {shown(value)}: {rule}")
    return float(value)


def seed_of(value: object) -> int:
    """A seed: any whole number, as Python's own, since streams of chance are named after how it is written."""
    return whole_number("seed", value, rule="pass a whole number, such as 0")


def true_or_false(name: str, value: object, *, or_none: bool = False) -> Any:
    """A truth value, of Python or numpy, or None where that is a choice as well."""
    if value is None and or_none:
        return None
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise SettingsError(f"{name} is {shown(value)}: pass True or False{', or None' if or_none else ''}")


def one_of(name: str, value: object, choices: Iterable[str]) -> str:
    """One of a few words."""
    words = list(choices)
    if not isinstance(value, str) or value not in words:
        raise SettingsError(f"{name} is {shown(value)}: choose {' or '.join(map(repr, words))}")
    return value


LONGEST = 1_000
"""Characters of a name or label at most; an array of them takes 4 bytes a row for each character of the longest."""


def text(name: str, value: object, *, error: _Failure = SettingsError) -> str:
    """Text of a name's length."""
    if not isinstance(value, str):
        raise error(f"{name} is {shown(value)}: it must be text, as in {name}='ann'")
    if len(value) > LONGEST:
        raise error(f"{name} is {shown(value)}: shorten it to {LONGEST:,} or fewer")
    return value


def path_of(name: str, value: object, *, rule: str, error: _Failure = SettingsError) -> Path:
    """The path of a file or directory, from text or anything that stands for one."""
    if not isinstance(value, str | os.PathLike):
        raise error(f"{name} is {shown(value)}: {rule}")
    return Path(value)


def instance_of(name: str, value: object, kind: type, *, rule: str, error: _Failure = SettingsError) -> Any:
    """A value of that kind; a class passed where one of its values belongs is told apart."""
    if isinstance(value, kind):
        return value
    if isinstance(value, type) and issubclass(value, kind):
        raise error(f"{name} is {shown(value)}: pass one of its values, {value.__name__}(), with brackets")
    raise error(f"{name} is {shown(value)}: {rule}")


def callable_or_none(name: str, value: object, *, rule: str) -> None:
    """Something that can be called, or nothing."""
    if value is not None and not callable(value):
        raise SettingsError(f"{name} is {shown(value)}: {rule}")


def at_least_one(**counts: int) -> None:
    """Refuse counts below one, each by its name.

    >>> at_least_one(episodes=1, environments=256)
    """
    for what, count in counts.items():
        if count < 1:
            raise SettingsError(f"{what}={count}, but there must be at least one")
