"""Parquet files: the columns asked for and no other, in bounded memory, or one sentence that says why not.

A file's footer states how many values each column has and of which type, so that what it decodes to is known before
anything is decoded. Text is read as a dictionary: a long word that stands in every row is held once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import pyarrow as pa
import pyarrow.parquet as pq

from ileed import memory
from ileed.errors import refuse_damage

_WIDTH = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}


@final
@dataclass(frozen=True)
class ParquetFile:
    """A parquet file whose footer was read, and nothing else of it."""

    path: Path
    schema: pa.Schema
    footer: Any

    def read(self, names: Sequence[str]) -> pa.Table:
        """The columns of these names, each of which the schema has once; text as a dictionary."""
        with refuse_damage(self.path, "parquet", pa.ArrowException):
            memory.check_fits(self.path, self._decoded_bytes(names))
            words = [name for name in names if is_text(self.schema.field(name).type)]
            with pq.ParquetFile(self.path, metadata=self.footer, read_dictionary=words) as file:
                table = file.read(columns=list(names))
            if missing := [name for name in names if table.column_names.count(name) != 1]:
                raise ValueError(f"column {missing[0]!r} cannot be told from another")
            table.validate(full=True)  # indices inside their dictionaries, text in UTF-8
            return table

    def _decoded_bytes(self, names: Sequence[str]) -> int:
        """What the columns take once decoded, by the counts and types that the footer states."""
        stated = [self.footer.schema.column(number) for number in range(len(self.footer.schema))]
        asked = [
            number
            for number, column in enumerate(stated)
            if any(f"{column.path}.".startswith(f"{name}.") for name in names)
        ]
        total = 0
        for group in map(self.footer.row_group, range(self.footer.num_row_groups)):
            for number in asked:
                column = group.column(number)
                if min(column.num_values, column.total_uncompressed_size) < 0:
                    raise ValueError("a column has a negative size")
                if column.physical_type in _WIDTH:
                    total += column.num_values * _WIDTH[column.physical_type]
                else:  # bytes: a dictionary, or as they stand, and a number for each row
                    length = max(stated[number].length or 0, 0)
                    total += column.total_uncompressed_size + column.num_values * (4 + length)
        return total


def describe(path: Path) -> ParquetFile:
    """What a parquet file's footer says of it."""
    with refuse_damage(path, "parquet", pa.ArrowException):
        footer = pq.read_metadata(path)
        return ParquetFile(path, footer.schema.to_arrow_schema(), footer)


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds words, also as a dictionary."""
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))
