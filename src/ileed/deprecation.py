"""Renamed settings: an old name works for one more release, with a warning, and files that hold it stay readable."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from functools import update_wrapper
from typing import Any, TypeVar

__all__ = ["current_names", "renamed_arguments", "renamed_property", "renamed_settings"]

_Settings = TypeVar("_Settings", bound=type)
_Function = TypeVar("_Function", bound=Callable[..., Any])

_Names = Mapping[str, str]  # old to new
_Values = Mapping[str, _Names]  # of each setting
_RENAMED: dict[str, tuple[_Names, _Values]] = {}  # by the name of the class


def renamed_settings(values: _Values | None = None, /, **names: str) -> Callable[[_Settings], _Settings]:
    """A class decorator for frozen dataclasses, `renamed_settings(old="new")`; it stands above `@dataclass`.

    `values` renames values of a setting: {"setting": {"old": "new"}}. Where both names are passed the old one counts,
    since `dataclasses.replace(settings, old=...)` passes both.

    >>> from dataclasses import dataclass
    >>> @renamed_settings(width="units")
    ... @dataclass(frozen=True)
    ... class Layer:
    ...     units: int = 4
    >>> with warnings.catch_warnings(action="ignore"):
    ...     Layer(width=8), Layer(units=8).width
    (Layer(units=8), 8)
    >>> current_names({"kind": "Layer", "width": 8})
    {'kind': 'Layer', 'units': 8}
    """

    def decorate(settings: _Settings) -> _Settings:
        owner = settings.__name__
        setattr(settings, "__signature__", inspect.signature(settings))  # noqa: B010 (of which mypy does not know)
        _RENAMED[owner] = names, values or {}
        settings.__init__ = _with_old_names(settings.__init__, "setting", owner, names, values or {})  # type: ignore[misc]
        for old, new in names.items():
            setattr(settings, old, renamed_property(f"the setting {old} of {owner}", new))
        return settings

    return decorate


def renamed_arguments(**names: str) -> Callable[[_Function], _Function]:
    """A decorator for functions, `renamed_arguments(old="new")`: a keyword under its old name works, with a warning."""

    def decorate(function: _Function) -> _Function:
        update_wrapper(renaming := _with_old_names(function, "argument", function.__name__, names, {}), function)
        return renaming

    return decorate


def _with_old_names(function: _Function, what: str, owner: str, names: _Names, values: _Values) -> _Function:
    def renaming(*arguments: Any, **given: Any) -> Any:
        for old in given.keys() & names.keys():
            _warn_of_old_name(f"the {what} {old} of {owner}", names[old])
            given[names[old]] = given.pop(old)
        for name in given.keys() & values.keys():
            new = _renamed_value(values[name], given[name])
            if new is not given[name]:
                _warn_of_old_name(f"{name}={given[name]!r} of {owner}", f"{name}={new!r}")
            given[name] = new
        return function(*arguments, **given)

    return renaming  # type: ignore[return-value]


def renamed_property(what: str, new: str) -> property:
    """The attribute `new` under an old name, with a warning that `what` was renamed."""

    def read(self: Any) -> Any:
        _warn_of_old_name(what, new)
        return getattr(self, new)

    return property(read, doc=f"The old name of `{new}`.")


def current_names(value: Any) -> Any:
    """The settings of a saved run or of a record of results, with every old name and value renamed."""
    if isinstance(value, list):
        return [current_names(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    kind = str(value.get("kind"))
    names, values = _RENAMED.get(kind, ({}, {}))
    renamed = {names.get(name, name): current_names(item) for name, item in value.items()}
    return {name: _renamed_value(values.get(name, {}), item) for name, item in renamed.items()}


def _renamed_value(renamed: Mapping[str, str], value: Any) -> Any:
    return renamed.get(value, value) if isinstance(value, str) else value


def _warn_of_old_name(what: str, new: str) -> None:
    """Warn whoever called our caller that `what` has a new name."""
    sentence = f"{what} was renamed: use {new}, since the old name goes with the next release"
    warnings.warn(sentence, DeprecationWarning, stacklevel=3)
