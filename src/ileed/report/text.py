"""Text of a report: the sentences of text.toml, numbers as they are written everywhere, and text as HTML."""

from __future__ import annotations

import html
import math
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ileed.wording import printable

NOTHING = "\N{EN DASH}"  # in a cell
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_TOGETHER = re.compile(r"(?<=\d) (?=%)|(?<=above) (?=\.\d)|(?<=\d) (?=to \S?\d)|(?<=\d to) (?=\S?\d)")
_TEXT = tomllib.loads(Path(__file__).with_name("text.toml").read_text(encoding="utf-8"))


def say(name: str, **values: Any) -> str:
    """The sentence of that name in text.toml, with these values filled in."""
    return str(_TEXT[name]).format(**values)


def as_sentence(words: str) -> str:
    """Words as a sentence; a name at its beginning is left as it is."""
    if words and not words.startswith(("the ", "there ", "every ", "steps ", "none ", "by actions alone, ")):
        return f"{words}."
    return f"{words[0].upper()}{words[1:]}." if words else ""


def number(count: int) -> str:
    """A count for a sentence: in words up to twelve."""
    return _NUMBERS[count] if count < len(_NUMBERS) else f"{count:,}"


def demonstrators(count: int) -> str:
    """So many demonstrators, for a sentence."""
    return f"{number(count)} demonstrator{'' if count == 1 else 's'}"


def enumerated(words: Sequence[str], most: int = 4) -> str:
    """Words with commas and a last "and"; of many the first, and how many more."""
    if len(words) > most:
        words = [*words[: most - 1], f"{len(words) - most + 1:,} more"]
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def short(label: str, most: int = 28) -> str:
    """A label that can be repeated in many places."""
    return label if len(label) <= most else f"{label[: most - 1]}…"


def decimal(value: float | None, digits: int = 2) -> str:
    """A number with so many decimals; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return NOTHING
    shown = f"{value:,.{digits}f}"
    return shown.lstrip("-") if not float(shown.replace(",", "")) else shown.replace("-", "\N{MINUS SIGN}")


def between(low: float | None, high: float | None, digits: int = 2) -> str:
    """An interval in words; empty where there is none."""
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return ""
    return f"{decimal(low, digits)} to {decimal(high, digits)}"


def escape(text: str) -> str:
    """Text from outside as HTML."""
    return html.escape(printable(text))


def with_code(text: str) -> str:
    """A sentence of ours as HTML, with code between backquotes and numbers that stay together on a line."""
    whole = _TOGETHER.sub("\N{NO-BREAK SPACE}", html.escape(printable(text), quote=False))
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", whole)
