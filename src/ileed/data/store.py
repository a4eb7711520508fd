"""The store of a data set's columns: in memory, or on disk in files without a name, mapped as they are read.

What is mapped belongs to the system's page cache and is given back when others need it. A file without a name is gone
with the arrays that are mapped from it, also where the process is killed. Blocks of columns in memory are the columns.
"""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import numpy.typing as npt

from ileed.data.rules import Array
from ileed.errors import DemonstrationError, SettingsError

_BLOCKS_IN_MEMORY = 32  # a block takes one part in so many of the memory that there is


@final
@dataclass(frozen=True)
class Store:
    """Where columns are, and how many bytes the blocks and tables made of them may take in memory."""

    folder: Path | None = None
    """None where columns are in memory."""
    memory_bytes: int = 1 << 62

    @property
    def is_on_disk(self) -> bool:
        """Whether columns may be larger than memory."""
        return self.folder is not None

    def check_in_memory(self, otherwise: str) -> None:
        """Refuse columns on disk, with this sentence."""
        if self.is_on_disk:
            raise SettingsError(otherwise)

    def rows_at_once(self, row_bytes: int) -> int:
        """How many rows of so many bytes a block has."""
        return max(1_024, self.memory_bytes // _BLOCKS_IN_MEMORY // max(1, row_bytes))

    def blocks(self, rows: int, row_bytes: int) -> Iterator[slice]:
        """All rows in their order, block by block; at once in memory."""
        size = self.rows_at_once(row_bytes) if self.is_on_disk else rows
        return (slice(first, min(first + size, rows)) for first in range(0, rows, size))

    def written(self, parts: Iterable[Array], dtype: npt.DTypeLike, row_shape: tuple[int, ...] = ()) -> Array:
        """A column made of parts, each written as it comes; in memory there is one."""
        if not self.is_on_disk:
            (whole,) = parts
            return whole.astype(dtype, copy=False)
        file = ColumnFile(self)
        for part in parts:
            file.append(part.astype(dtype, copy=False))
        return file.mapped(np.dtype(dtype), row_shape)

    def derived(self, column: Array, change: Callable[[Array], Array]) -> Array:
        """A column made of another, block by block."""
        if not self.is_on_disk:
            return change(column)
        first = change(column[:1])
        blocks = self.blocks(len(column), column[:1].nbytes + first.nbytes)
        return self.written((change(column[block]) for block in blocks), first.dtype, first.shape[1:])


IN_MEMORY = Store()


@final
class ColumnFile:
    """A column that is being written, by appending rows."""

    def __init__(self, store: Store) -> None:
        self._folder, self._rows = store.folder, 0
        try:
            self._file = tempfile.TemporaryFile(dir=store.folder)  # noqa: SIM115 (it lives as long as the column)
        except OSError as error:
            raise self._unwritable(error) from error
        weakref.finalize(self, self._file.close)

    def append(self, rows: Array) -> None:
        """Write rows behind those that are there."""
        self._rows += len(rows)
        try:
            self._file.write(np.ascontiguousarray(rows).data.cast("B") if rows.size else b"")
        except OSError as error:
            raise self._unwritable(error) from error

    def mapped(self, dtype: np.dtype, row_shape: tuple[int, ...]) -> Array:
        """The column, mapped and read-only."""
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
