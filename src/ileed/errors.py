"""Errors and warnings of the library, checks of arguments that raise them, and the wording that messages share."""

from __future__ import annotations

import importlib
import math
import operator
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from itertools import islice
from numbers import Real
from pathlib import Path
from types import ModuleType
from typing import Any

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # first characters of a formula in a spreadsheet
_NEGATIVE = re.compile(r"-(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")  # a label such as -1
# A `Path` drops one slash of an address. Secret keys of S3 contain slashes, which should be quoted and often are not.
_USER = re.compile(r"(?i)(?<![\w+.-])([a-z][a-z0-9+.-]+:/{1,2})(?:([^/\s]*)@|(?=[^\s@]*:)([^\s@]*)@)")
LONGEST = 1_000  # characters of a name or label: an array takes 4 bytes per row for each character of the longest


def redact(text: str) -> str:
    """The text with the user information (user, password, keys) of every address replaced by `***`.

    >>> redact("there is nothing at s3://KEY:SECRET@bucket/data")
    'there is nothing at s3://***@bucket/data'
    """
    return _USER.sub(r"\1***@", text) if "@" in text else text


def user_information(address: str) -> str:
    """The part of an address that `redact` replaces; empty if there is none."""
    found = _USER.match(address)
    return "" if found is None else found[2] or found[3] or ""


def printable(text: str, most: int | None = None) -> str:
    """The redacted text, cut after `most` characters, with control characters and line ends replaced.

    >>> ascii(printable("ann" + chr(27) + "[31m", most=5))
    "'ann\\\\ufffd[...'"
    """
    shown = "".join(sign if sign.isprintable() else "\ufffd" for sign in redact(text))
    return shown if most is None or len(shown) <= most else f"{shown[:most]}..."


def cell_text(text: str) -> str:
    """Printable text for a CSV file, with an apostrophe before anything that a spreadsheet takes for a formula.

    >>> cell_text("=1+2"), cell_text("-1+2"), cell_text("-1")
    ("'=1+2", "'-1+2", '-1')
    """
    shown = printable(text)
    return f"'{shown}" if shown.startswith(_FORMULA) and not _NEGATIVE.fullmatch(shown) else shown


def counted(count: int, noun: str) -> str:
    """A count with its noun, as in "1 step" and "2 steps"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """The end of a sentence that suggests the closest of the known names; empty if none is close.

    >>> did_you_mean("obstcles", ["obstacles", "lava"])
    " (did you mean 'obstacles'?)"
    >>> did_you_mean("tetris", ["obstacles", "lava"])
    ''
    """
    if not isinstance(word, str):
        return " (names are text: write it in quotes)"
    group = word[: word.rfind("/") + 1]  # names like minigrid/lava are compared without their common prefix
    by_folded = {name.removeprefix(group).casefold(): name for name in islice(known, 10_000)}  # within milliseconds
    close = get_close_matches(word.removeprefix(group)[:200].casefold(), by_folded, n=1)
    return f" (did you mean {by_folded[close[0]]!r}?)" if close else ""


class IleedError(ValueError):
    """A request that cannot be met: the message names the argument, its value, and what to do.

    `code` identifies the rule and stays the same when the message is reworded, so programs and tests should match it.
    User information in addresses is redacted.
    """

    code: str = "refused"

    def __init__(self, *args: object, code: str | None = None) -> None:
        super().__init__(*(redact(each) if isinstance(each, str) else each for each in args))
        if code is not None:
            self.code = code


class DemonstrationError(IleedError):
    """Demonstrations that break a rule of the data set."""


class UnnamedDemonstratorError(DemonstrationError):
    """A file that does not name its demonstrators; `AbstractFormat.candidates` lists where they may be found."""


class UnknownDemonstratorError(DemonstrationError, KeyError):
    """A name that no demonstrator has."""

    __str__ = Exception.__str__  # KeyError would quote the message


class SettingsError(IleedError):
    """Settings that contradict each other, the data, or the machine."""


class RunError(IleedError):
    """A run directory or checkpoint that cannot be written, read, or continued."""


class IleedWarning(UserWarning):
    """Results are likely to be wrong or meaningless; the message says why, and what to do."""


def require(module: str, *, extra: str = "", package: str = "ileed") -> ModuleType:
    """Import an optional library; the error names the package and the extra that provide it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        wanted = f"'{package}[{extra}]'" if extra else package
        raise IleedError(
            f"this needs the package {module.partition('.')[0]!r}, which is not installed: pip install {wanted}",
            code="package-missing",
        ) from error


def brief(value: object, most: int = 160) -> str:
    """A plain value, the class of any other value, or the first line of an exception, for use in a sentence.

    >>> brief(["a" * 10] * 3, most=12), brief(int), brief(object()), brief("x" * 100, most=3)
    ("['aaaaaaaaaa...", 'the class int', 'an object', "'xx... of 100 characters")
    """
    kind = type(value).__name__
    if isinstance(value, BaseException):
        return printable(str(value).partition("\n")[0].strip().rstrip("."), most) or kind
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if not isinstance(value, str | bytes | int | float | complex | list | tuple | dict | os.PathLike | None):
        return f"{'an' if kind[0] in 'aeiouAEIOU' or kind == 'ndarray' else 'a'} {kind}"
    shown = printable(str(value) if isinstance(value, float) else repr(value), most)
    return f"{shown} of {len(value):,} characters" if isinstance(value, str) and len(value) > most else shown


@contextmanager
def refuse_damage(path: Path, kind: str, *others: type[Exception], advice: str = "copy it again") -> Iterator[None]:
    """Turn the exceptions that a library raises for a damaged file into one sentence about that file."""
    damage = (OSError, RuntimeError, LookupError, ValueError, TypeError, AttributeError, MemoryError)
    try:
        yield
    except DemonstrationError:
        raise
    except damage + others as error:
        raise DemonstrationError(
            f"{path} is not a readable {kind} file ({brief(error)}): {advice}", code="file-damaged"
        ) from error


_Failure = type[IleedError]


def _refusal(name: str, value: object, rule: str, error: _Failure = SettingsError) -> IleedError:
    """The error for an argument with a value that breaks a rule; its code for `keep` is `keep-invalid`."""
    code = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return error(f"{name} is {brief(value)}: {rule}", code=f"{code}-invalid")


def whole_number(
    name: str,
    value: object,
    *,
    rule: str,
    least: int | None = None,
    most: int | None = 2**63 - 1,
    error: _Failure = SettingsError,
) -> int:
    """An integer of Python or numpy, of at most 64 bits unless `most` is None; `rule` says what it must be.

    >>> whole_number("steps", "5", least=1, rule="a fit takes a whole number of steps, one or more")
    Traceback (most recent call last):
    ileed.errors.SettingsError: steps is '5': a fit takes a whole number of steps, one or more
    """
    with suppress(TypeError):
        found = operator.index(value)  # type: ignore[arg-type]
        if not isinstance(value, bool) and (least is None or found >= least) and (most is None or found <= most):
            return found
    raise _refusal(name, value, rule, error)


def whole_numbers(name: str, values: object, *, rule: str, least: int | None = None) -> tuple[int, ...]:
    """Integers as a tuple, from a tuple, a list or a one-dimensional array."""
    found = values.tolist() if hasattr(values, "tolist") else values
    if isinstance(found, tuple | list):
        with suppress(SettingsError):
            return tuple(whole_number(name, value, least=least, rule=rule) for value in found)
    raise _refusal(name, found, rule)


def number(
    name: str,
    value: object,
    *,
    rule: str,
    least: float = -math.inf,
    above: float | None = None,
    most: float = math.inf,
    below: float | None = None,
) -> float:
    """A number from `least` to `most`, strictly between `above` and `below` where these are given, and not NaN."""
    found = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    if not least <= found <= most or (above is not None and found <= above) or (below is not None and found >= below):
        raise _refusal(name, value, rule)
    return found


def is_finite(value: object) -> bool:
    """Whether a value is a number, and neither NaN nor infinite."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def seed_of(value: object) -> int:
    """A seed: any integer, as an `int`, since random streams are named by its text."""
    return whole_number("seed", value, most=None, rule="pass a whole number, such as 0")


def true_or_false(name: str, value: object, *, or_none: bool = False) -> Any:
    """A boolean of Python or numpy, or None if `or_none`."""
    if value is None and or_none:
        return None
    if type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise _refusal(name, value, f"pass True or False{', or None' if or_none else ''}")


def one_of(name: str, value: object, choices: Iterable[str], *, error: _Failure = SettingsError) -> str:
    """One of a few words."""
    words = list(choices)
    if isinstance(value, str) and value in words:
        return value
    raise _refusal(name, value, f"choose {' or '.join(map(repr, words))}", error)


def text(name: str, value: object, *, error: _Failure = SettingsError) -> str:
    """Text of at most the length of a name."""
    found: str = instance_of(name, value, str, rule=f"it must be text, as in {name}='ann'", error=error)
    if len(found) > LONGEST:
        raise _refusal(name, found, f"shorten it to {LONGEST:,} or fewer", error)
    return found


def list_of(name: str, values: object, *, error: _Failure = SettingsError) -> list[Any]:
    """The values of any iterable but text and mappings."""
    with suppress(TypeError):  # np.array(3) has __iter__ and is not iterable
        if not isinstance(values, str | bytes | Mapping):
            return list(values)  # type: ignore[call-overload]
    raise _refusal(name, values, "pass a list", error)


def texts_or_none(name: str, values: object, *, error: _Failure = SettingsError) -> tuple[str, ...] | None:
    """A list or tuple of words as a tuple, or None; a single word is refused."""
    if values is None:
        return None
    if isinstance(values, list | tuple) and all(isinstance(value, str) for value in values):
        return tuple(values)
    raise _refusal(name, values, "pass a list of names, or None", error)


def path_of(
    name: str, value: object, *, rule: str = "pass the path of a file or folder", error: _Failure = SettingsError
) -> Path:
    """The path of a file or folder, from text or any `os.PathLike` that a file system can represent."""
    found = os.fsdecode(instance_of(name, value, str | os.PathLike, rule=rule, error=error))
    with suppress(UnicodeEncodeError):
        if found and b"\0" not in os.fsencode(found):
            return Path(found)
    raise _refusal(name, found, f"it cannot be a path; {rule}", error)


def instance_of(name: str, value: object, kind: Any, *, rule: str, error: _Failure = SettingsError) -> Any:
    """A value of a type; the message recognises a class that was passed in place of an instance."""
    if isinstance(value, kind):
        return value
    if isinstance(value, type) and issubclass(value, kind):
        rule = f"pass one of its values, {value.__name__}(), with brackets"
    raise _refusal(name, value, rule, error)


def callable_or_none(name: str, value: object, *, rule: str) -> None:
    """Refuse a value that is neither callable nor None."""
    instance_of(name, value, Callable | None, rule=rule)


def at_least_one(**counts: int | None) -> None:
    """Refuse counts below one; None stands for a count that was not given."""
    for name, count in counts.items():
        if count is not None:
            whole_number(name, count, least=1, rule="there must be at least one, a whole number")
