"""Where demonstrations come from, where their columns are kept, and pseudonyms of demonstrators and episodes.

A `Source` is the file or folder that was read. A `Store` keeps columns in memory, or on disk in unnamed files that are
memory-mapped: their pages belong to the system's page cache, and they disappear with the arrays mapped from them, even
if the process is killed.

A pseudonym is a number in the order of a keyed hash of the name, so it does not reveal the order of the file or of the
alphabet. The key is the fingerprint of the data: the same data give the same pseudonyms everywhere. Anyone who has the
data, or the names together with the fingerprint or the order of the data, can undo it; see docs/responsible-use.md.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import unicodedata
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
import numpy.typing as npt

from ileed.data.rules import Array
from ileed.errors import DemonstrationError, IleedError, SettingsError

if TYPE_CHECKING:
    from ileed.data import Demonstrations

_NOT_READ = ("videos", "images")  # which can hold very many files
_BLOCKS_IN_MEMORY = 32  # a block takes one part in this many of the memory


@final
@dataclass(frozen=True, eq=False)
class Source:
    """A file or folder as it was when demonstrations were read from it, and how to read it again."""

    path: Path
    read: Callable[..., Demonstrations]
    options: Mapping[str, Any]
    files: Mapping[Path, tuple[int, ...]]

    @classmethod
    def of(cls, path: str | Path, read: Callable[..., Demonstrations], **options: Any) -> Source:
        """The current state of a file or folder; call it before reading, with the reader and its options."""
        return cls(Path(path).absolute(), read, options, _states(Path(path)))

    def holds(self, data: Demonstrations, path: Path | None = None) -> bool:
        """Whether the source, or its copy at `path`, has the episodes of `data` under the same keys.

        Files with the same size, times and inode are not read again. Otherwise the lengths, observations and actions of
        all episodes are compared. A source that no longer exists contradicts nothing.
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


def _states(path: Path) -> dict[Path, tuple[int, ...]]:
    """Size, times and inode of a file, or of every file in a folder that a reader may open, by its relative path."""
    files = [] if os.path.isdir(path) else [path]
    for folder, inner, names in os.walk(path):
        inner[:] = [name for name in inner if name not in _NOT_READ]
        files += [Path(folder, name) for name in names]
    found = dict[Path, tuple[int, ...]]()
    for file in files:
        try:
            state = file.stat()
        except (OSError, ValueError):  # a broken link, a file that was removed meanwhile, or an invalid path
            continue
        found[file.relative_to(path)] = (state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino)
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


# --- where columns are kept


@final
@dataclass(frozen=True)
class Store:
    """Where columns are kept, and how much memory may be used for blocks and tables made from them."""

    folder: Path | None = None
    """None for columns in memory."""
    memory_bytes: int = 1 << 62

    @property
    def is_on_disk(self) -> bool:
        """Whether columns may be larger than memory."""
        return self.folder is not None

    def check_in_memory(self, otherwise: str) -> None:
        """Refuse columns on disk, with this message."""
        if self.is_on_disk:
            raise SettingsError(otherwise, code="data-on-disk")

    def rows_at_once(self, row_bytes: int) -> int:
        """The number of rows of this size in a block."""
        return max(1_024, self.memory_bytes // _BLOCKS_IN_MEMORY // max(1, row_bytes))

    def blocks(self, rows: int, row_bytes: int) -> Iterator[slice]:
        """All rows in order, block by block; a single block in memory."""
        size = self.rows_at_once(row_bytes) if self.is_on_disk else rows
        return (slice(first, min(first + size, rows)) for first in range(0, rows, size))

    def written(self, parts: Iterable[Array], dtype: npt.DTypeLike, row_shape: tuple[int, ...] = ()) -> Array:
        """A column made of consecutive parts; in memory there is a single part."""
        if not self.is_on_disk:
            (whole,) = parts
            return whole.astype(dtype, copy=False)
        file = ColumnFile(self)
        for part in parts:
            file.append(part.astype(dtype, copy=False))
        return file.mapped(np.dtype(dtype), row_shape)

    def derived(self, column: Array, change: Callable[[Array], Array]) -> Array:
        """A column computed from another, block by block."""
        if not self.is_on_disk:
            return change(column)
        first = change(column[:1])
        blocks = self.blocks(len(column), column[:1].nbytes + first.nbytes)
        return self.written((change(column[block]) for block in blocks), first.dtype, first.shape[1:])


IN_MEMORY = Store()


@final
class ColumnFile:
    """A column on disk to which rows are appended."""

    def __init__(self, store: Store) -> None:
        self._folder, self._rows = store.folder, 0
        try:
            self._file = tempfile.TemporaryFile(dir=store.folder)  # noqa: SIM115 (it lives as long as the column)
        except OSError as error:
            raise self._unwritable(error) from error
        weakref.finalize(self, self._file.close)

    def append(self, rows: Array) -> None:
        """Write rows at the end."""
        self._rows += len(rows)
        try:
            self._file.write(np.ascontiguousarray(rows).data.cast("B") if rows.size else b"")
        except OSError as error:
            raise self._unwritable(error) from error

    def mapped(self, dtype: np.dtype, row_shape: tuple[int, ...]) -> Array:
        """The column, memory-mapped and read-only."""
        try:
            self._file.flush()
        except OSError as error:
            raise self._unwritable(error) from error
        shape = (self._rows, *row_shape)
        if 0 in shape:
            return np.zeros(shape, dtype)
        with self._file:
            return np.asarray(np.memmap(self._file, dtype, "r", shape=shape))

    def _unwritable(self, error: OSError) -> DemonstrationError:
        return DemonstrationError(
            f"the columns cannot be kept in {self._folder} ({error.strerror or error}): free some space there, or "
            "choose another folder with cache= (at the command: --cache)"
        )


# --- pseudonyms

_NAME = re.compile(r"person (0*[1-9][0-9]*)")
_KEY = re.compile(r"episode [0-9]+")
_INITIALS = 2  # characters: a name this short occurs within other words


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
    """Names for episodes whose own keys would reveal a demonstrator: their numbers, from 0 on."""
    return [f"episode {number}" for number in range(count)]


def are_episode_pseudonyms(keys: Iterable[object]) -> bool:
    """Whether all keys have the form of `episode_pseudonyms`, which do not lead back to the source of the data."""
    return all(isinstance(key, str) and _KEY.fullmatch(key) for key in keys)


def refuse_names(columns: Mapping[str, Iterable[str]], names: Iterable[str]) -> None:
    """Refuse columns whose texts would still contain a demonstrator's name; the error contains none."""
    for column, texts in columns.items():
        if is_named(texts, names, as_word=True):
            shown = "a column" if is_named([column], names) else column
            raise DemonstrationError(
                f"the name of a demonstrator appears in {shown}, which pseudonyms do not replace: leave the column "
                "out, or rename its values",
                code="name-in-column",
            )


def is_named(texts: Iterable[str], names: Iterable[str], *, as_word: bool = False) -> bool:
    """Whether any text contains one of the names, ignoring case and Unicode form.

    Initials, and with `as_word` all names, match only where no letter precedes or follows them. Names that are numbers
    never match, since any text may contain them.

    >>> is_named(["Ann, 3"], ["ann"]), is_named(["annex"], ["an"]), is_named(["ward 3"], ["3"])
    (True, False, False)
    """
    # digits are folded, so that the keys demo_0, demo_1, ... of many episodes become one text
    text = "\n".join({_folded(each) for each in texts})
    letter = r"[^\W\d_]"
    return any(
        re.search(rf"(?<!{letter}){re.escape(name)}(?!{letter})", text) or not (as_word or len(name) <= _INITIALS)
        for name in {_folded(each) for each in names if not each.isdecimal()}
        if name.strip() and name in text
    )


def _folded(text: str) -> str:
    return re.sub(r"\d+", "0", unicodedata.normalize("NFKC", text).casefold())
