"""Checks of arguments: each returns the value as we compute with it, or says what was passed and what to pass."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from numbers import Real
from pathlib import Path
from typing import Any

from ileed.errors import IleedError, SettingsError, brief

LONGEST = 1_000  # characters of a name or label: an array takes 4 bytes a row for each character of the longest
_Failure = type[IleedError]
shown = brief  # as other modules still call it


def whole_number(
    name: str,
    value: object,
    *,
    rule: str,
    least: int | None = None,
    most: int | None = 2**63 - 1,
    error: _Failure = SettingsError,
) -> int:
    """A whole number, of Python or numpy, that an array can hold unless `most` is None; `rule` says what it must be.

    >>> whole_number("steps", "5", least=1, rule="a fit takes a whole number of steps, one or more")
    Traceback (most recent call last):
    ileed.errors.SettingsError: steps is '5': a fit takes a whole number of steps, one or more
    """
    try:
        found = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        found = None
    if isinstance(value, bool) or found is None:
        raise error(f"{name} is {brief(value)}: {rule}")
    if (least is not None and found < least) or (most is not None and found > most):
        raise error(f"{name} is {brief(value)}: {rule}")
    return found


def whole_numbers(name: str, values: object, *, rule: str, least: int | None = None) -> tuple[int, ...]:
    """Whole numbers as a tuple, from a tuple, a list or an array of one axis."""
    found = values.tolist() if hasattr(values, "tolist") else values
    if isinstance(found, tuple | list):
        with suppress(SettingsError):
            return tuple(whole_number(name, value, least=least, rule=rule) for value in found)
    raise SettingsError(f"{name} is {brief(found)}: {rule}")


def number(name: str, value: object, *, rule: str, within: Callable[[float], bool] = lambda value: True) -> float:
    """A number that is `within` what the rule says; NaN is within nothing."""
    if isinstance(value, bool) or not isinstance(value, Real) or value != value or not within(float(value)):
        raise SettingsError(f"{name} is {brief(value)}: {rule}")
    return float(value)


def is_finite(value: object) -> bool:
    """Whether a value is a number, and neither NaN nor infinite."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def seed_of(value: object) -> int:
    """A seed: any whole number, as Python's own, since random streams are named after how it is written."""
    return whole_number("seed", value, most=None, rule="pass a whole number, such as 0")


def true_or_false(name: str, value: object, *, or_none: bool = False) -> Any:
    """A truth value, of Python or numpy, or None where that is a choice as well."""
    if value is None and or_none:
        return None
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise SettingsError(f"{name} is {brief(value)}: pass True or False{', or None' if or_none else ''}")


def one_of(name: str, value: object, choices: Iterable[str], *, error: _Failure = SettingsError) -> str:
    """One of a few words."""
    words = list(choices)
    if not isinstance(value, str) or value not in words:
        raise error(f"{name} is {brief(value)}: choose {' or '.join(map(repr, words))}")
    return value


def text(name: str, value: object, *, error: _Failure = SettingsError) -> str:
    """Text of a name's length."""
    found: str = instance_of(name, value, str, rule=f"it must be text, as in {name}='ann'", error=error)
    if len(found) > LONGEST:
        raise error(f"{name} is {brief(found)}: shorten it to {LONGEST:,} or fewer")
    return found


def list_of(name: str, values: object, *, error: _Failure = SettingsError) -> list[Any]:
    """Several values as a list, from any iterable but text."""
    with suppress(TypeError):  # np.array(3) has __iter__, and yet cannot be iterated over
        if not isinstance(values, str | bytes | Mapping):
            return list(values)  # type: ignore[call-overload]
    raise error(f"{name} is {brief(values)}: pass a list")


def texts_or_none(name: str, values: object, *, error: _Failure = SettingsError) -> tuple[str, ...] | None:
    """Several words as a tuple, or None; one word alone is not several."""
    if values is None:
        return None
    if isinstance(values, list | tuple) and all(isinstance(value, str) for value in values):
        return tuple(values)
    raise error(f"{name} is {brief(values)}: pass a list of names, or None")


def path_of(
    name: str, value: object, *, rule: str = "pass the path of a file or folder", error: _Failure = SettingsError
) -> Path:
    """The path of a file or directory, from text or any `os.PathLike`; refuses what no file system can hold."""
    found = os.fsdecode(instance_of(name, value, str | os.PathLike, rule=rule, error=error))
    with suppress(UnicodeEncodeError):
        if found and b"\0" not in os.fsencode(found):
            return Path(found)
    raise error(f"{name} is {brief(found)}, which cannot be a path: {rule}")


def instance_of(name: str, value: object, kind: Any, *, rule: str, error: _Failure = SettingsError) -> Any:
    """A value of that kind; a class passed where one of its values belongs is told apart."""
    if isinstance(value, kind):
        return value
    if isinstance(value, type) and issubclass(value, kind):
        raise error(f"{name} is {brief(value)}: pass one of its values, {value.__name__}(), with brackets")
    raise error(f"{name} is {brief(value)}: {rule}")


def callable_or_none(name: str, value: object, *, rule: str) -> None:
    """Something that can be called, or nothing."""
    instance_of(name, value, Callable | None, rule=rule)


def at_least_one(**counts: int | None) -> None:
    """Refuse counts below one, each by its name; None is a count that was not given."""
    for what, count in counts.items():
        if count is not None:
            whole_number(what, count, least=1, rule="there must be at least one, a whole number")
