"""HDF5 files as others made them: nothing is read from outside the file, and nothing that it does not hold.

An HDF5 file can name other files as the place of its groups (external links) or of its numbers (external storage,
virtual data sets). Following these would read any file of this machine as if it were data, so they are refused. A data
set can also declare a size that nothing was written for. The rules, checked before anything is decoded, are:

* a data set may take at most half of the memory available (`ileed.memory`), its largest chunk included;
* beyond 64 MiB, it may take at most 1,100 times what the file stores of it: deflate itself cannot compress further.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ileed import memory
from ileed.demonstrations import Array
from ileed.errors import DemonstrationError, brief, require

_DAMAGE = (OSError, RuntimeError, KeyError, ValueError, TypeError, IndexError, AttributeError, MemoryError)
_SOFT_LINKS = 32  # followed one after another; more are taken for a circle
_SMALL = 64 << 20  # bytes below which a data set may be as sparse as it likes
_EXPANSION = 1100


@contextmanager
def opened(path: Path, copy: io.BytesIO | None = None) -> Iterator[Any]:
    """The file to read; or, with `copy`, a copy of it in memory to change."""
    h5py = require("h5py", extra="robot")
    try:
        if copy is not None:
            copy.write(path.read_bytes())
        with h5py.File(path, "r") if copy is None else h5py.File(copy, "r+") as file:
            yield file
    except DemonstrationError:
        raise
    except _DAMAGE as error:  # h5py raises any of these for damage, by where it meets it
        raise DemonstrationError(
            f"{path} is not a readable HDF5 file ({brief(error)}): export or copy it again"
        ) from error


def named(name: object, most: int = 160) -> str:
    """A name in the file, short and printable."""
    return brief(str(name), most)[1:-1] if len(str(name)) <= most else brief(str(name), most)[1:]


def member(group: Any, place: str) -> Any:
    """What stands at a place below a group, or None where nothing does.

    Soft links are followed step by step, so that none of them leads through another file.
    """
    from h5py import Group, h5l

    at, link, beyond = group, "", 0
    parts, followed = _parts(place), 0
    while parts:
        if not isinstance(at, Group):
            return None
        part = parts.pop(0)
        name = part.encode("utf-8", "surrogateescape")
        if not at.id.links.exists(name):
            if not link or len(parts) < beyond:  # what is missing is asked for below where the link leads
                return None
            raise DemonstrationError(
                f"{brief(place)} is a link to {brief(link)}, which is not in the file: remove the link, or copy "
                "the file whole"
            )
        kind = at.id.links.get_info(name).type
        if kind == h5l.TYPE_HARD:
            at = at[part]
        elif kind == h5l.TYPE_SOFT:
            followed += 1
            if followed > _SOFT_LINKS:
                raise DemonstrationError(f"{brief(place)} is a link that leads in a circle: remove it")
            link = at.id.links.get_val(name).decode("utf-8", "surrogateescape")
            beyond = len(parts)
            parts = [*_parts(link), *parts]
            at = at.file if link.startswith("/") else at
        else:
            raise DemonstrationError(
                f"{brief(place)} is a link to another file, and these are not followed: h5copy or h5repack put what "
                "it leads to into the file"
            )
    return at


def _parts(place: str) -> list[str]:
    return [part for part in place.split("/") if part not in ("", ".")]


def is_group(item: Any) -> bool:
    """Whether this is a group, of which members can be asked for."""
    return hasattr(item, "keys")


def is_data_set(item: Any) -> bool:
    """Whether this is a data set that holds one value or more."""
    return hasattr(item, "chunks") and item.shape is not None


def read(item: Any, place: str) -> Array:
    """All values of a data set: numbers as they are, text decoded."""
    from h5py import check_string_dtype

    check_readable(item, place)
    if item.dtype.kind != "O":
        values = np.asarray(item[()])
        return _decoded(values.ravel().tolist(), place).reshape(values.shape) if values.dtype.kind == "S" else values
    if check_string_dtype(item.dtype) is None:
        raise DemonstrationError(f"{brief(place)} holds {item.dtype}: it must hold numbers or text")
    if item.ndim > 1:
        raise DemonstrationError(f"{brief(place)} holds text of shape {item.shape}: it must have one word a row")
    if item.ndim == 0:
        return _decoded([item[()]], place).reshape(())
    # No word is longer than the file, so that so many rows at a time fit whatever they hold.
    rows = max(1, memory.available_bytes() // (8 * max(1, item.file.id.get_filesize())))
    kept: dict[bytes | str, bytes | str] = {}
    words = [kept.setdefault(word, word) for first in range(0, len(item), rows) for word in item[first : first + rows]]
    return _decoded(words, place)


def _decoded(words: list[Any], place: str) -> Array:
    try:
        kept = {word: word.decode() if isinstance(word, bytes) else str(word) for word in dict.fromkeys(words)}
        longest = max(map(len, kept.values()), default=1)
        memory.check_fits(brief(place), len(words) * 4 * longest)
        return np.array([kept[word] for word in words], dtype=np.str_)
    except UnicodeDecodeError as error:
        raise DemonstrationError(f"{brief(place)} is not text in UTF-8: write it again, encoded so") from error


def check_readable(item: Any, place: str) -> None:
    """Refuse a data set whose numbers lie elsewhere, or that declares more than the file can hold."""
    if item.external:
        raise DemonstrationError(
            f"{brief(place)} keeps its numbers in another file, and these are not read: h5repack puts them into the "
            "file"
        )
    if item.is_virtual:
        raise DemonstrationError(
            f"{brief(place)} is a virtual data set, and these are not followed: h5repack puts its numbers into the file"
        )
    declared = decoded_bytes(item)
    memory.check_fits(brief(place), declared)
    stored = item.id.get_storage_size()
    if declared > max(_SMALL, _EXPANSION * stored):
        raise DemonstrationError(
            f"{brief(place)} declares {math.prod(item.shape):,} values but the file stores {stored:,} bytes of them: "
            f"it may declare {_EXPANSION:,} times as much; write the data set again, with the rows that there are"
        )


def decoded_bytes(item: Any) -> int:
    """What a data set takes once decoded; a chunk that is larger than the data set is decoded whole."""
    width = item.dtype.itemsize * (4 if item.dtype.kind == "S" else 1)
    return max(math.prod(item.shape), math.prod(item.chunks or (0,))) * width
