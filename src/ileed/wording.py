"""Wording: text from outside as a sentence can hold it, counted nouns, and suggestions for a mistyped name."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice

__all__ = ["cell_text", "counted", "did_you_mean", "printable"]

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # with which a spreadsheet begins a formula
_MOST = 10_000  # names that are looked through: a refusal should not take seconds


def printable(text: str, most: int | None = None) -> str:
    """The text, cut after `most` characters, with a replacement for control characters, escapes and line ends.

    >>> ascii(printable("ann" + chr(27) + "[31m", most=5))
    "'ann\\\\ufffd[...'"
    """
    shown = "".join(sign if sign.isprintable() else "\ufffd" for sign in text)
    return shown if most is None or len(shown) <= most else f"{shown[:most]}..."


def cell_text(text: str) -> str:
    """Printable text for a CSV file, with an apostrophe before what a spreadsheet would take for a formula."""
    shown = printable(text)
    return f"'{shown}" if shown.startswith(_FORMULA) else shown


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
