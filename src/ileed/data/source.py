"""Where demonstrations come from, and the pseudonyms under which outputs show demonstrators and episodes.

A pseudonym is a number in the order of a keyed hash of the name, so that the number does not follow from the order of
the file or the alphabet. The key is the fingerprint of the data: the same data give the same pseudonyms everywhere.
Whoever has the data, or a list of the names with that fingerprint or in the order of the data, can undo it; see
docs/responsible-use.md.
"""

from __future__ import annotations

import hashlib
import os
import re
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np

from ileed.errors import DemonstrationError, IleedError

if TYPE_CHECKING:
    from ileed.data import Demonstrations

_NOT_READ = ("videos", "images")  # which can hold very many files


class _FileState(NamedTuple):
    """What the file system says about a file; any write changes at least the time of change."""

    size: int
    modified_ns: int
    changed_ns: int
    inode: int


@final
@dataclass(frozen=True, eq=False)
class Source:
    """A file or folder as it was when demonstrations were read from it, and how to read it again."""

    path: Path
    read: Callable[..., Demonstrations]
    options: Mapping[str, Any]
    files: Mapping[Path, _FileState]

    @classmethod
    def of(cls, path: str | Path, read: Callable[..., Demonstrations], **options: Any) -> Source:
        """The state of a file or folder at this moment; call it before reading, with the reader and its options."""
        return cls(Path(path).absolute(), read, options, _states(Path(path)))

    def holds(self, data: Demonstrations, path: Path | None = None) -> bool:
        """Whether the source, or its copy at `path`, holds the episodes of `data` under the same keys.

        Files whose size, times and inode are unchanged are not read again. Otherwise lengths, observations and actions
        of all episodes are compared. A source that no longer exists contradicts nothing.
        """
        place = self.path if path is None else path
        if not place.exists():
            return True
        if place.resolve() == self.path.resolve() and _states(place) == self.files:
            return True
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the first read has warned already
                found = self.read(place, **self.options)
        except IleedError:
            return False
        return _holds_episodes(found, data)


def _states(path: Path) -> dict[Path, _FileState]:
    """The state of a file, or of every file in a folder that a reader may open, by its path relative to `path`."""
    files = [] if os.path.isdir(path) else [path]
    for folder, inner, names in os.walk(path):
        inner[:] = [name for name in inner if name not in _NOT_READ]
        files += [Path(folder, name) for name in names]
    found = {}
    for file in files:
        try:
            state = file.stat()
        except (OSError, ValueError):  # a broken link, a file that was removed meanwhile, or no path at all
            continue
        found[file.relative_to(path)] = _FileState(state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino)
    return found


def _holds_episodes(found: Demonstrations, data: Demonstrations) -> bool:
    """Whether every episode of `data` has the same observations and actions in `found`, under the same key.

    Pseudonyms of episodes, which replace keys that contain names, number the episodes of the source.
    """
    keys = found.episode_keys.tolist()
    if are_episode_pseudonyms(data.episode_keys.tolist()):
        keys = episode_pseudonyms(len(keys))
    numbers = {key: number for number, key in enumerate(keys)}
    there, here = found.episode_bounds, data.episode_bounds
    for episode, key in enumerate(data.episode_keys.tolist()):
        if key not in numbers:
            return False
        one, other = (slice(*bounds[at : at + 2]) for bounds, at in ((there, numbers[key]), (here, episode)))
        if not np.array_equal(found.actions[one], data.actions[other]):
            return False
        if not np.array_equal(found.observations[one], data.observations[other]):
            return False
    return True


# --- pseudonyms

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
