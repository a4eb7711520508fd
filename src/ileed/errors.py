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

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # with which a spreadsheet begins a formula
_NEGATIVE = re.compile(r"-(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")  # a label such as -1, which computes nothing
# A `Path` drops one slash of an address. Secret keys of S3 contain slashes, which should be quoted and often are not.
_USER = re.compile(r"(?i)(?<![\w+.-])([a-z][a-z0-9+.-]+:/{1,2})(?:([^/\s]*)@|(?=[^\s@]*:)([^\s@]*)@)")
_MOST = 10_000  # names that are looked through: a refusal should not take seconds


def redact(text: str) -> str:
    """Replace the user information (user, password, keys) of every address in a text by `***`.

    >>> redact("there is nothing at s3://KEY:SECRET@bucket/data")
    'there is nothing at s3://***@bucket/data'
    """
    return _USER.sub(r"\1***@", text) if "@" in text else text


def user_information(address: str) -> str:
    """What `redact` replaces in an address; empty where there is nothing to replace."""
    found = _USER.match(address)
    return "" if found is None else found[2] or found[3] or ""


def printable(text: str, most: int | None = None) -> str:
    """The redacted text, cut after `most` characters; control characters, escapes and line ends are replaced.

    >>> ascii(printable("ann" + chr(27) + "[31m", most=5))
    "'ann\\\\ufffd[...'"
    """
    shown = "".join(sign if sign.isprintable() else "\ufffd" for sign in redact(text))
    return shown if most is None or len(shown) <= most else f"{shown[:most]}..."


def cell_text(text: str) -> str:
    """Printable text for a CSV file, with an apostrophe before what a spreadsheet would take for a formula.

    >>> cell_text("=1+2"), cell_text("-1+2"), cell_text("-1")
    ("'=1+2", "'-1+2", '-1')
    """
    shown = printable(text)
    return f"'{shown}" if shown.startswith(_FORMULA) and not _NEGATIVE.fullmatch(shown) else shown


def counted(count: int, noun: str) -> str:
    """A number with its noun, as in "1 step" and "2 steps"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """The end of a sentence that names the closest of the known names, or nothing where none is close.

    >>> did_you_mean("obstcles", ["obstacles", "lava"])
    " (did you mean 'obstacles'?)"
    >>> did_you_mean("tetris", ["obstacles", "lava"])
    ''
    """
    if not isinstance(word, str):
        return " (names are text: write it in quotes)"
    group = word[: word.rfind("/") + 1]  # of names like minigrid/lava, only what differs is compared
    by_folded = {name.removeprefix(group).casefold(): name for name in islice(known, _MOST)}
    close = get_close_matches(word.removeprefix(group)[:200].casefold(), by_folded, n=1)
    return f" (did you mean {by_folded[close[0]]!r}?)" if close else ""


class IleedError(ValueError):
    """A request that cannot be met: the message says what was found, which rule it breaks, and what to do.

    `code` names the rule and stays the same when the message is reworded: programs and tests should match it. The user
    information of addresses in the message is redacted.
    """

    code: str = "refused"

    def __init__(self, *args: object, code: str | None = None) -> None:
        super().__init__(*(redact(each) if isinstance(each, str) else each for each in args))
        if code is not None:
            self.code = code


class DemonstrationError(IleedError):
    """Demonstrations that break a rule of the data set."""


class UnnamedDemonstratorError(DemonstrationError):
    """A file that does not name its demonstrators; `AbstractFormat.candidates` lists where it may."""


class UnknownDemonstratorError(DemonstrationError, KeyError):
    """A name that none of the demonstrators has."""

    __str__ = Exception.__str__  # that of KeyError would quote the message


class SettingsError(IleedError):
    """Settings that contradict each other, the data, or the machine."""


class RunError(IleedError):
    """A run directory or checkpoint that cannot be written, read, or continued."""


class IleedWarning(UserWarning):
    """Results that are likely to be wrong or meaningless: says why, and what to do."""


def require(module: str, *, extra: str = "", package: str = "ileed") -> ModuleType:
    """Import an optional library, or say which package, and which extra of it, brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        wanted = f"'{package}[{extra}]'" if extra else package
        raise IleedError(
            f"this needs the package {module.partition('.')[0]!r}, which is not installed: pip install {wanted}",
            code="package-missing",
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
        raise DemonstrationError(
            f"{path} is not a readable {kind} file ({brief(error)}): {advice}", code="file-damaged"
        ) from error


LONGEST = 1_000  # characters of a name or label: an array takes 4 bytes a row for each character of the longest
_Failure = type[IleedError]


def _code(name: str, problem: str = "invalid") -> str:
    """The code of a refused argument: `keep` is `keep-invalid`."""
    return f"{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}-{problem}"


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
    with suppress(TypeError):
        found = operator.index(value)  # type: ignore[arg-type]
        if not isinstance(value, bool) and (least is None or found >= least) and (most is None or found <= most):
            return found
    raise error(f"{name} is {brief(value)}: {rule}", code=_code(name))


def whole_numbers(name: str, values: object, *, rule: str, least: int | None = None) -> tuple[int, ...]:
    """Whole numbers as a tuple, from a tuple, a list or an array of one axis."""
    found = values.tolist() if hasattr(values, "tolist") else values
    if isinstance(found, tuple | list):
        with suppress(SettingsError):
            return tuple(whole_number(name, value, least=least, rule=rule) for value in found)
    raise SettingsError(f"{name} is {brief(found)}: {rule}", code=_code(name))


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
        raise SettingsError(f"{name} is {brief(value)}: {rule}", code=_code(name))
    return found


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
    raise SettingsError(
        f"{name} is {brief(value)}: pass True or False{', or None' if or_none else ''}", code=_code(name)
    )


def one_of(name: str, value: object, choices: Iterable[str], *, error: _Failure = SettingsError) -> str:
    """One of a few words."""
    words = list(choices)
    if not isinstance(value, str) or value not in words:
        raise error(f"{name} is {brief(value)}: choose {' or '.join(map(repr, words))}", code=_code(name))
    return value


def text(name: str, value: object, *, error: _Failure = SettingsError) -> str:
    """Text of a name's length."""
    found: str = instance_of(name, value, str, rule=f"it must be text, as in {name}='ann'", error=error)
    if len(found) > LONGEST:
        raise error(f"{name} is {brief(found)}: shorten it to {LONGEST:,} or fewer", code=_code(name))
    return found


def list_of(name: str, values: object, *, error: _Failure = SettingsError) -> list[Any]:
    """Several values as a list, from any iterable but text."""
    with suppress(TypeError):  # np.array(3) has __iter__, and yet cannot be iterated over
        if not isinstance(values, str | bytes | Mapping):
            return list(values)  # type: ignore[call-overload]
    raise error(f"{name} is {brief(values)}: pass a list", code=_code(name))


def texts_or_none(name: str, values: object, *, error: _Failure = SettingsError) -> tuple[str, ...] | None:
    """Several words as a tuple, or None; one word alone is not several."""
    if values is None:
        return None
    if isinstance(values, list | tuple) and all(isinstance(value, str) for value in values):
        return tuple(values)
    raise error(f"{name} is {brief(values)}: pass a list of names, or None", code=_code(name))


def path_of(
    name: str, value: object, *, rule: str = "pass the path of a file or folder", error: _Failure = SettingsError
) -> Path:
    """The path of a file or directory, from text or any `os.PathLike`; refuses what no file system can hold."""
    found = os.fsdecode(instance_of(name, value, str | os.PathLike, rule=rule, error=error))
    with suppress(UnicodeEncodeError):
        if found and b"\0" not in os.fsencode(found):
            return Path(found)
    raise error(f"{name} is {brief(found)}, which cannot be a path: {rule}", code=_code(name))


def instance_of(name: str, value: object, kind: Any, *, rule: str, error: _Failure = SettingsError) -> Any:
    """A value of that kind; a class passed where one of its values belongs is told apart."""
    if isinstance(value, kind):
        return value
    if isinstance(value, type) and issubclass(value, kind):
        raise error(
            f"{name} is {brief(value)}: pass one of its values, {value.__name__}(), with brackets", code=_code(name)
        )
    raise error(f"{name} is {brief(value)}: {rule}", code=_code(name))


def callable_or_none(name: str, value: object, *, rule: str) -> None:
    """Something that can be called, or nothing."""
    instance_of(name, value, Callable | None, rule=rule)


def at_least_one(**counts: int | None) -> None:
    """Refuse counts below one, each by its name; None is a count that was not given."""
    for what, count in counts.items():
        if count is not None:
            whole_number(what, count, least=1, rule="there must be at least one, a whole number")
