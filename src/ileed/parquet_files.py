"""Parquet files: the columns asked for and no other, in bounded memory, or one sentence that says why not.

A file's footer states how many values each column has and of which type, so that what it decodes to is known before
anything is decoded: see `ileed.memory` for the rule. Text is read as a dictionary: a long word that stands in every row
is held once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import pyarrow as pa
import pyarrow.parquet as pq

from ileed import memory
from ileed.errors import DemonstrationError, brief

_DAMAGE = (pa.ArrowException, OSError, ValueError, TypeError, LookupError, RuntimeError, MemoryError)
_WIDTH = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}


@contextmanager
def as_one_sentence(path: Path) -> Iterator[None]:
    """Whatever the library raises for a damaged file, as one sentence about that file."""
    try:
        yield
    except DemonstrationError:
        raise
    except _DAMAGE as error:
        raise DemonstrationError(
            f"{path} is not a readable parquet file ({brief(error)}): export or copy it again"
        ) from error


@final
@dataclass(frozen=True)
class Described:
    """A parquet file whose footer was read, and nothing else of it."""

    path: Path
    schema: pa.Schema
    footer: Any

    def read(self, names: Sequence[str], *, text_as_dictionary: bool = True) -> pa.Table:
        """The columns of these names, each of which the schema has once; text as a dictionary, or as it stands."""
        with as_one_sentence(self.path):
            memory.check_fits(self.path, self._decoded_bytes(names))
            text = [name for name in names if is_text(self.schema.field(name).type)]
            words = text if text_as_dictionary else None
            with pq.ParquetFile(self.path, metadata=self.footer, read_dictionary=words) as file:
                table = file.read(columns=list(names))
            if missing := [name for name in names if table.column_names.count(name) != 1]:
                raise ValueError(f"column {missing[0]!r} cannot be told from another")
            table.validate(full=True)  # indices inside their dictionaries, text in UTF-8
            return table

    def _decoded_bytes(self, names: Sequence[str]) -> int:
        """What the columns take once decoded, by the counts and types that the footer states."""
        asked = [
            place
            for place in range(len(self.footer.schema))
            if any(f"{self.footer.schema.column(place).path}.".startswith(f"{name}.") for name in names)
        ]
        total = 0
        for number in range(self.footer.num_row_groups):
            group = self.footer.row_group(number)
            for place in asked:
                column = group.column(place)
                if min(column.num_values, column.total_uncompressed_size) < 0:
                    raise ValueError("a column has a negative size")
                width = _WIDTH.get(column.physical_type)
                if width is None:  # bytes: a dictionary, or as they stand, and a number for each row
                    length = max(self.footer.schema.column(place).length or 0, 0)
                    total += column.total_uncompressed_size + column.num_values * (4 + length)
                else:
                    total += column.num_values * width
        return total


def described(path: Path) -> Described:
    """What a parquet file's footer says of it."""
    with as_one_sentence(path):
        footer = pq.read_metadata(path)
        return Described(path, footer.schema.to_arrow_schema(), footer)


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds words, also as a dictionary."""
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)
