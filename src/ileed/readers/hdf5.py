"""HDF5 files as others made them: nothing is read from outside the file, and nothing that it does not hold.

External links, external storage and virtual data sets would read any file of this machine as if it were data, so they
are refused; and so is a data set of a size that nothing was written for. docs/decisions/files.md has the rules.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from ileed import memory
from ileed.demonstrations import Array
from ileed.errors import DemonstrationError, brief, refuse_damage, require

_SMALL = 64 << 20  # bytes below which a data set may be as sparse as it likes
_EXPANSION = 1100  # decoded bytes for one that is stored: deflate itself cannot compress further


@contextmanager
def open_file(path: Path, copy: io.BytesIO | None = None) -> Iterator[Any]:
    """The file to read; or, with `copy`, a copy of it in memory to change. Its links stay inside it."""
    h5py = require("h5py", extra="robot")
    with refuse_damage(path, "HDF5"):
        if copy is not None:
            copy.write(path.read_bytes())
        with h5py.File(path, "r") if copy is None else h5py.File(copy, "r+") as file:
            _check_links(file)
            yield file


def _check_links(file: Any) -> None:
    """Refuse links to other files, which soft links could lead through, and then soft links that lead nowhere."""
    from h5py import ExternalLink, h5l

    names: list[bytes] = []
    file.id.links.visit(lambda name, info: None if info.type == h5l.TYPE_HARD else names.append(name), info=True)
    links = {name.decode(errors="surrogateescape"): file.get(name, getlink=True) for name in names}
    for name, link in links.items():
        if isinstance(link, ExternalLink):
            raise DemonstrationError(
                f"{brief(name)} is a link to another file, which is not followed: h5copy puts its target into the file"
            )
    for name, link in links.items():
        found = None
        with suppress(RuntimeError):  # HDF5 follows 16 links one after another, and takes more for a circle
            found = file.get(name)
        if found is None:
            where = "which is not in the file, or leads in a circle"
            raise DemonstrationError(f"{brief(name)} is a link to {brief(link.path)}, {where}: remove the link")


def is_group(item: Any) -> bool:
    """Whether this is a group, of which members can be asked for."""
    return hasattr(item, "keys")


def is_data_set(item: Any) -> bool:
    """Whether this is a data set that holds one value or more."""
    return hasattr(item, "chunks") and item.shape is not None


def read(item: Any, place: str) -> Array:
    """All values of a data set: numbers as they are, text decoded."""
    from h5py import check_string_dtype

    _check_readable(item, place)
    if check_string_dtype(item.dtype) is None:
        if item.dtype.kind == "O":
            raise DemonstrationError(
                f"{brief(place)} holds {item.dtype}: it must hold numbers, or one word in each row"
            )
        return np.asarray(item[()])
    # No word is longer than the file, so that so many rows at a time fit whatever they hold.
    rows = max(1, memory.available_bytes() // (8 * max(1, item.file.id.get_filesize())))
    text, kept = item.asstr("utf-8"), dict[str, str]()
    try:
        parts = (text[first : first + rows] for first in range(0, len(item), rows)) if item.ndim else [text[()]]
        words = [kept.setdefault(word, word) for part in parts for word in np.ravel(part)]
    except UnicodeDecodeError as error:
        raise DemonstrationError(f"{brief(place)} is not text in UTF-8: write it again, encoded so") from error
    memory.check_fits(brief(place), len(words) * 4 * max(map(len, kept), default=1))
    return np.array(words, dtype=np.str_).reshape(item.shape)


def _check_readable(item: Any, place: str) -> None:
    """Refuse a data set whose numbers lie elsewhere, or that declares more than the file can hold."""
    if item.external or item.is_virtual:
        where = "keeps its numbers in another file" if item.external else "is a virtual data set"
        raise DemonstrationError(f"{brief(place)} {where}, which is not read: h5repack puts them into the file")
    declared, stored = decoded_bytes(item), item.id.get_storage_size()
    memory.check_fits(brief(place), declared)
    if declared > max(_SMALL, _EXPANSION * stored):
        raise DemonstrationError(
            f"{brief(place)} declares {math.prod(item.shape):,} values but the file stores {stored:,} bytes of them: "
            f"it may declare {_EXPANSION:,} times as much; write it again, with the rows that there are"
        )


def decoded_bytes(item: Any) -> int:
    """What a data set takes once decoded; a chunk that is larger than the data set is decoded whole."""
    width = item.dtype.itemsize * (4 if item.dtype.kind == "S" else 1)
    return max(math.prod(item.shape), math.prod(item.chunks or (0,))) * width
