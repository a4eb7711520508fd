"""The one kind of failure a user meets, and the sentence for a missing extra."""

from __future__ import annotations

import importlib
from types import ModuleType


class IleedError(ValueError):
    """A request that cannot be met: says what was found, which rule it breaks, and what to do."""


class DemonstrationError(IleedError):
    """Demonstrations that break a rule of the data set."""


class SettingsError(IleedError):
    """Settings that contradict each other, the data, or the machine."""


class RunError(IleedError):
    """A run directory or checkpoint that cannot be written, read, or continued."""


def require(module: str, *, extra: str) -> ModuleType:
    """Import an optional library, or say which extra brings it.

    >>> require("json", extra="report").__name__
    'json'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise IleedError(
            f"this needs the package {module.partition('.')[0]!r}, which is not installed: pip install 'ileed[{extra}]'"
        ) from error
