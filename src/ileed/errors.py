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
        packages = f"package{'s' if len(missing) > 1 else ''} {', '.join(map(repr, missing))}"
        raise IleedError(
            f"this needs the {packages}, which {'are' if len(missing) > 1 else 'is'} not installed: "
            f"pip install 'ileed[{wanted}]'"
        )


def require(module: str, *, extra: str = "", package: str = "ileed") -> ModuleType:
    """Import an optional library, or say which package, and which extra of it, brings it.

    >>> require("json", extra="report").__name__
    'json'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        wanted = f"'{package}[{extra}]'" if extra else package
        raise IleedError(
            f"this needs the package {module.partition('.')[0]!r}, which is not installed: pip install {wanted}"
        ) from error


def brief(value: object, most: int = 160) -> str:
    """A value that was found, or the first line of another library's message, short and printable for a sentence.

    >>> brief(["a" * 10] * 3, most=12)
    "['aaaaaaaaaa..."
    """
    text = str(value).partition("\n")[0].strip().rstrip(".") if isinstance(value, BaseException) else repr(value)
    text = "".join(sign if sign.isprintable() else "\ufffd" for sign in text) or type(value).__name__
    return text if len(text) <= most else f"{text[:most]}..."
