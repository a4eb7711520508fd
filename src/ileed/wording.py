"""Wording: text from outside as a sentence can hold it, counted nouns, and suggestions for a mistyped name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice

__all__ = ["cell_text", "counted", "did_you_mean", "printable", "redact", "user_information"]

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
