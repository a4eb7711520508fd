"""Columns of a table as Arrow arrays, and their conversion to text or numbers.

Import this module on use: `pyarrow.compute` is slow to import, and most programs never read a table.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ileed.data.rules import Array, is_table, listed, too_long
from ileed.errors import LONGEST, DemonstrationError, did_you_mean


def as_table(table: Any) -> pa.Table:
    """Convert a DataFrame of pandas or polars, an Arrow table, or a mapping of columns to an Arrow table.

    Neither pandas nor polars is imported: a pandas DataFrame exists only if pandas is loaded, and others implement
    Arrow's protocols.
    """
    if not is_table(table):
        raise DemonstrationError(
            f"a table is needed and {type(table).__name__} was given: pass the path of a CSV or parquet file, a "
            "DataFrame of pandas or polars, an Arrow table, or a mapping of columns"
        )
    for name, values in table.items() if isinstance(table, Mapping) else ():
        if isinstance(values, str) or (np.ndim(values) == 0 and not hasattr(values, "__len__")):
            raise DemonstrationError(f"column {name!r} is a single value: pass a list, one for each row")
    pandas = sys.modules.get("pandas")
    try:
        if pandas is not None and isinstance(table, pandas.DataFrame):
            found = pa.Table.from_pandas(table, preserve_index=False)
        elif isinstance(table, Mapping):
            found = pa.table({str(name): values for name, values in table.items()})
        else:
            found = pa.table(table)
    except (pa.ArrowException, TypeError, ValueError) as error:
        reason = "; ".join(str(part).partition("\n")[0] for part in error.args)
        raise DemonstrationError(
            f"the table cannot be read column by column ({reason}): give each column one name and values of one type"
        ) from error
    check_names(found.column_names)
    return found


def check_names(names: Sequence[str]) -> None:
    """Refuse duplicate names of columns."""
    if repeated := [name for name in names if names.count(name) > 1]:
        raise DemonstrationError(f"column {repeated[0]!r} occurs twice in the table: give each column its own name")


@final
@dataclass(frozen=True, eq=False)
class Column:
    """A column of a table: its values, and its categories if it is of a categorical type."""

    name: str
    values: pa.ChunkedArray
    categories: pa.ChunkedArray | None = None
    is_ordered: bool = False

    @classmethod
    def of(cls, table: pa.Table, name: str) -> Column:
        """The column of that name; a missing one is refused, with the closest name."""
        names = table.column_names
        if name not in names:
            meant = did_you_mean(name, names)
            raise DemonstrationError(f"there is no column {name!r}{meant}: the table has {listed(names, most=20)}")
        column = table.column(name)
        if not pa.types.is_dictionary(column.type):
            return cls(name, column)
        kind = pa.string() if is_text(column.type) else column.type.value_type  # polars' text cannot be taken from
        declared = pa.chunked_array([pc.cast(chunk.dictionary, kind) for chunk in column.chunks], kind)
        if is_text(kind):
            longest_word(name, declared)  # before it is repeated in every row
        parts = [pc.take(words, each.indices) for words, each in zip(declared.chunks, column.chunks, strict=True)]
        return cls(name, pa.chunked_array(parts, kind), declared, column.type.ordered)

    @property
    def is_number(self) -> bool:
        """Whether the values are numbers, not booleans."""
        kind = self.values.type
        return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))

    @property
    def is_whole(self) -> bool:
        return bool(pa.types.is_integer(self.values.type))

    @property
    def is_category(self) -> bool:
        """Whether the values are text, booleans, or of a categorical type."""
        kind = self.values.type
        return self.categories is not None or is_text(kind) or bool(pa.types.is_boolean(kind))

    @property
    def missing(self) -> int:
        """The number of missing values: null or NaN."""
        return pc.sum(pc.is_null(self.values, nan_is_null=True)).as_py() or 0

    def check_present(self, *, role: str = "", otherwise: str = "") -> None:
        """Refuse missing values; `role` is what each row must state."""
        if count := self.missing:
            needed = f", and {role} is needed in each" if role else ""
            raise DemonstrationError(
                f"column {self.name!r} has {count:,} missing values in {len(self.values):,} rows{needed}: fill or drop "
                f"those rows{otherwise}"
            )

    def check_header(self) -> None:
        """Refuse text that contains the column's own name, as when files with headers were concatenated."""
        if is_text(self.values.type) and (count := pc.sum(pc.equal(self.values, self.name)).as_py() or 0):
            raise DemonstrationError(
                f"column {self.name!r} holds its own name in {count:,} of {len(self.values):,} rows, like the header "
                "of a second file: delete every such row"
            )

    def text(self) -> pa.ChunkedArray:
        """Text, categories, numbers or booleans as text."""
        kind = self.values.type
        if not (self.is_category or self.is_number or pa.types.is_null(kind)):
            raise DemonstrationError(f"column {self.name!r} holds {kind}, not text or categories: convert it first")
        text = pc.cast(self.values, pa.string())
        longest_word(self.name, text)
        return text

    def numbers(self) -> Array:
        """Numbers in double precision, with NaN for missing values; infinite ones are refused."""
        kind = self.values.type
        if self.categories is not None or not (self.is_number or pa.types.is_boolean(kind) or pa.types.is_null(kind)):
            self.check_header()
            raise DemonstrationError(f"column {self.name!r} holds {kind}, and numbers are needed: convert it first")
        found = np.asarray(pc.cast(self.values, pa.float64(), safe=False).to_numpy(), dtype=np.float64)
        if large := int((np.abs(found) > np.finfo(np.float32).max).sum()):
            raise DemonstrationError(f"column {self.name!r} has {large:,} infinite or too large values: drop them")
        return found

    def index_among(self, known: Sequence[str | int | None]) -> Array:
        """(row,) the index of each value among the `known` ones, where None represents a missing value."""
        values = self.values if isinstance(known[0], int) else self.text()
        try:
            index = pc.index_in(values, value_set=pa.array(known, values.type))
        except (pa.ArrowException, TypeError, ValueError) as error:
            found = f"holds {values.type}, and its known values are {listed(known)}"
            raise DemonstrationError(f"column {self.name!r} {found}: convert it first") from error
        if index.null_count:
            unknown = values.filter(index.is_null())
            rows = f"{pc.sum(pc.equal(unknown, unknown[0])).as_py():,} of {len(values):,} rows"
            raise DemonstrationError(
                f"column {self.name!r} holds {unknown[0].as_py()!r} in {rows}, which is not among the known values "
                f"{listed(known, most=20)}: correct those rows, or leave them out"
            )
        return np.asarray(index.to_numpy(), dtype=np.int64)


def longest_word(name: str, words: Any) -> int:
    """The length of a column's longest word; one that is too long for a label is refused."""
    lengths = pc.utf8_length(words)
    longest: int = pc.max(lengths).as_py() or 0
    if longest > LONGEST:
        raise too_long(f"column {name!r} holds", words[pc.index(lengths, longest).as_py()].as_py())
    return longest


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds text, also as a dictionary."""
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_list(kind: pa.DataType) -> bool:
    """Whether each row of a column of this type is a list."""
    return isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType)
