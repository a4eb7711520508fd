"""Pseudonyms: what outputs show in place of demonstrators' names, and how to find text that still contains a name.

A pseudonym is a number in the order of a keyed hash of the name, so that the number does not follow from the order of
the file or the alphabet. The key is the fingerprint of the data: the same data give the same pseudonyms everywhere.
Whoever has the data, or a list of the names with that fingerprint or in the order of the data, can undo it; see
docs/responsible-use.md.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

from ileed.errors import DemonstrationError

_NAME = re.compile(r"person (0*[1-9][0-9]*)")
_KEY = re.compile(r"episode [0-9]+")
_INITIALS = 2  # characters of a name at most: any text contains these letters


def pseudonyms(names: Sequence[str], *, key: str) -> dict[str, str]:
    """A pseudonym for each name, `person 01` and on, in an order that depends on `key`."""

    def digest(name: str) -> bytes:
        return hashlib.blake2b(name.encode(errors="surrogatepass"), key=key.encode()[:64]).digest()

    digits = len(str(len(names)))
    numbered = enumerate(sorted(names, key=digest), start=1)
    return {name: f"person {number:0{digits}}" for number, name in numbered}


def are_pseudonyms(names: Sequence[str]) -> bool:
    """Whether all names have the form of pseudonyms."""
    found = [_NAME.fullmatch(name) for name in names]
    return all(found) and len({len(each[1]) for each in found if each}) == 1


def episode_pseudonyms(count: int) -> list[str]:
    """What episodes are called where their own keys would name a demonstrator: by their numbers, from 0 on."""
    return [f"episode {number}" for number in range(count)]


def are_episode_pseudonyms(keys: Iterable[object]) -> bool:
    """Whether all keys have the form of `episode_pseudonyms`, which do not lead back to the source of the data."""
    return all(isinstance(key, str) and _KEY.fullmatch(key) for key in keys)


def refuse_names(columns: Mapping[str, Iterable[str]], names: Iterable[str]) -> None:
    """Refuse columns, each with its texts, that would still contain a demonstrator's name; the error contains none."""
    for column, texts in columns.items():
        if is_named(texts, names, as_word=True):
            shown = "a column" if is_named([column], names) else column
            raise DemonstrationError(
                f"the name of a demonstrator stands in {shown}, which pseudonyms do not replace: leave the column out, "
                "or rename its values"
            )


def is_named(texts: Iterable[str], names: Iterable[str], *, as_word: bool = False) -> bool:
    """Whether any text contains one of the names, whatever the case and Unicode form.

    Initials are looked for as words, with no letter before or after them, and with `as_word` so is every name. Names
    that are numbers are not looked for: any text may contain them.

    >>> is_named(["Ann, 3"], ["ann"]), is_named(["annex"], ["an"]), is_named(["ward 3"], ["3"])
    (True, False, False)
    """
    # digits are not compared, so that the keys demo_0, demo_1, ... of many episodes are one text
    text = "\n".join({_folded(each) for each in texts})
    letter = r"[^\W\d_]"
    return any(
        re.search(rf"(?<!{letter}){re.escape(name)}(?!{letter})", text) or not (as_word or len(name) <= _INITIALS)
        for name in {_folded(each) for each in names if not each.isdecimal()}
        if name.strip() and name in text
    )


def _folded(text: str) -> str:
    return re.sub(r"\d+", "0", unicodedata.normalize("NFKC", text).casefold())
