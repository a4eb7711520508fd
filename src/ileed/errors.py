"""The failures that a user meets, and what their sentences share: short values, damaged files, missing extras."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from ileed.wording import printable, redact


class IleedError(ValueError):
    """A request that cannot be met: says what was found, which rule it breaks, and what to do.

    The user information of addresses in the message is redacted.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(redact(each) if isinstance(each, str) else each for each in args))


class DemonstrationError(IleedError):
    """Demonstrations that break a rule of the data set."""


class UnnamedDemonstratorError(DemonstrationError):
    """A file that does not say who demonstrated, and nobody said where to look: `Reader.candidates` lists places."""


class UnknownDemonstratorError(DemonstrationError, KeyError):
    """A name that none of the demonstrators has."""

    __str__ = Exception.__str__  # that of KeyError would quote the message


class SettingsError(IleedError):
    """Settings that contradict each other, the data, or the machine."""


class RunError(IleedError):
    """A run directory or checkpoint that cannot be written, read, or continued."""


class IleedWarning(UserWarning):
    """Results that are likely to be wrong or meaningless: says why, and what to do."""


def require_all(extras: dict[str, str]) -> None:
    """Import optional libraries, each with the extra that brings it, or name all that are missing in one sentence."""
    missing = []
    for module in extras:
        try:
            importlib.import_module(module)
        except ImportError:
            missing.append(module)
    if missing:
        wanted = ",".join(sorted({extras[module] for module in missing}))
        packages = f"{'packages' if len(missing) > 1 else 'package'} {', '.join(map(repr, missing))}"
        raise IleedError(f"this needs the {packages}, which must be installed: pip install 'ileed[{wanted}]'")


def require(module: str, *, extra: str = "", package: str = "ileed") -> ModuleType:
    """Import an optional library, or say which package, and which extra of it, brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        wanted = f"'{package}[{extra}]'" if extra else package
        raise IleedError(
            f"this needs the package {module.partition('.')[0]!r}, which is not installed: pip install {wanted}"
        ) from error


_WRITTEN_OUT = (str, bytes, int, float, complex, list, tuple, dict, os.PathLike, type(None))


def brief(value: object, most: int = 160) -> str:
    """A plain value that was found, the class of another, or the first line of a message, as a sentence can hold it.

    >>> brief(["a" * 10] * 3, most=12), brief(int), brief(object()), brief("x" * 100, most=3)
    ("['aaaaaaaaaa...", 'the class int', 'an object', "'xx... of 100 characters")
    """
    kind = type(value).__name__
    if isinstance(value, BaseException):
        return printable(str(value).partition("\n")[0].strip().rstrip("."), most) or kind
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if not isinstance(value, _WRITTEN_OUT):
        return f"{'an' if kind[0] in 'aeiouAEIOU' or kind == 'ndarray' else 'a'} {kind}"
    shown = printable(str(value) if isinstance(value, float) else repr(value), most)
    return f"{shown} of {len(value):,} characters" if isinstance(value, str) and len(value) > most else shown


_DAMAGE = (OSError, RuntimeError, LookupError, ValueError, TypeError, AttributeError, MemoryError)


@contextmanager
def refuse_damage(path: Path, kind: str, *others: type[Exception], advice: str = "copy it again") -> Iterator[None]:
    """Turn whatever a library raises for a damaged file into one sentence about that file."""
    try:
        yield
    except DemonstrationError:
        raise
    except _DAMAGE + others as error:
        raise DemonstrationError(f"{path} is not a readable {kind} file ({brief(error)}): {advice}") from error
