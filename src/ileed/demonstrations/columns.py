"""Columns of a table as Arrow holds them: where they come from, and as text, numbers or categories.

Imported on use: `pyarrow.compute` takes a while to load, and most programs never read a table.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ileed.checking import LONGEST
from ileed.demonstrations.rules import Array, listed, too_long
from ileed.errors import DemonstrationError
from ileed.parquet_files import is_text


def as_table(table: Any) -> pa.Table:
    """An Arrow table from a DataFrame of pandas or polars, an Arrow table, or a mapping of columns.

    Neither pandas nor polars is imported: a DataFrame of pandas exists only where pandas is loaded, and the others
    hand over their columns by Arrow's own protocols.
    """
    pandas = sys.modules.get("pandas")
    try:
        if pandas is not None and isinstance(table, pandas.DataFrame):
            found = pa.Table.from_pandas(table, preserve_index=False)
        elif isinstance(table, pa.Table):
            found = table
        elif isinstance(table, Mapping):
            found = _table_of_columns(table)
        elif hasattr(table, "__arrow_c_stream__") or hasattr(table, "__arrow_c_array__"):
            found = pa.table(table)
        elif hasattr(table, "__dataframe__"):
            from pyarrow.interchange import from_dataframe

            found = from_dataframe(table)
        else:
            raise DemonstrationError(
                f"a table is needed and {type(table).__name__} was given: pass the path of a CSV or parquet file, a "
                "DataFrame of pandas or polars, an Arrow table, or a mapping of columns"
            )
    except DemonstrationError:
        raise
    except (pa.ArrowException, TypeError, ValueError) as error:
        reason = "; ".join(str(part).partition("\n")[0] for part in error.args)
        raise DemonstrationError(
            f"the table cannot be read column by column ({reason}): give each column one name and values of one type"
        ) from error
    check_names(found.column_names)
    for index, kind in enumerate(found.schema.types):
        if pa.types.is_dictionary(kind) and is_text(kind):
            found = found.set_column(index, found.column_names[index], _with_plain_text(found.column(index)))
    return found


def _with_plain_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Categories whose text is stored as polars stores it cannot be converted to text: store it plainly."""
    kind = pa.dictionary(pa.int64(), pa.string(), ordered=column.type.ordered)
    chunks = [
        pa.DictionaryArray.from_arrays(
            pc.cast(chunk.indices, pa.int64()), pc.cast(chunk.dictionary, pa.string()), ordered=kind.ordered
        )
        for chunk in column.chunks
    ]
    return pa.chunked_array(chunks, kind)


def _table_of_columns(columns: Mapping[Any, Any]) -> pa.Table:
    for name, values in columns.items():
        if isinstance(values, str) or (np.ndim(values) == 0 and not hasattr(values, "__len__")):
            raise DemonstrationError(f"column {name!r} is a single value: pass a list, one value for each row")
    return pa.table({str(name): values for name, values in columns.items()})


def check_names(names: Sequence[str]) -> None:
    """Refuse a table in which two columns have one name."""
    if repeated := [name for name in names if names.count(name) > 1]:
        raise DemonstrationError(f"column {repeated[0]!r} stands twice in the table: give each column its own name")


def check_column(table: pa.Table, name: str) -> None:
    """Refuse the name of a column that is not there, with the nearest one that is."""
    names = table.column_names
    if name not in names:
        near = get_close_matches(name, names, n=1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        raise DemonstrationError(f"there is no column {name!r}: the table has {listed(names, most=20)}{meant}")


def missing_count(column: pa.ChunkedArray) -> int:
    """How many values of a column are missing: null, or not a number."""
    plain = _without_categories(column)
    not_numbers = pc.is_nan(pc.cast(plain, pa.float64())) if pa.types.is_floating(plain.type) else None
    return int(plain.null_count + (0 if not_numbers is None else pc.sum(not_numbers).as_py() or 0))


def check_present(name: str, column: pa.ChunkedArray, *, role: str = "", otherwise: str = "") -> None:
    """Refuse a column of which values are missing; `role` is what each of its rows must say."""
    if count := missing_count(column):
        needed = f", and {role} is needed in each" if role else ""
        raise DemonstrationError(
            f"column {name!r} has {count:,} missing values in {len(column):,} rows{needed}: fill or drop those rows"
            f"{otherwise}"
        )


def values_type(column: pa.ChunkedArray) -> pa.DataType:
    """The type of a column's values, also where the column stores categories."""
    return column.type.value_type if pa.types.is_dictionary(column.type) else column.type


def _without_categories(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.cast(column, column.type.value_type) if pa.types.is_dictionary(column.type) else column


def is_number(kind: pa.DataType) -> bool:
    """Whether values of this type are numbers, which true and false are not."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def longest_word(name: str, words: Any) -> int:
    """The length of the longest of a column's words; one that is longer than a label may be is refused."""
    lengths = pc.utf8_length(words)
    longest = pc.max(lengths).as_py() or 0
    if longest > LONGEST:
        raise too_long(f"column {name!r} holds", words[pc.index(lengths, longest).as_py()].as_py())
    return longest


def as_text(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of text, categories, whole numbers, or true and false, as text."""
    kind = values_type(column)
    if not (is_text(kind) or is_number(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)):
        raise DemonstrationError(f"column {name!r} holds {kind}, not text or categories: convert it first")
    text = pc.cast(_without_categories(column), pa.string())
    longest_word(name, text)
    return text


def as_numbers(name: str, column: pa.ChunkedArray) -> Array:
    """A column of numbers in double precision, NaN where a value is missing; infinite ones are refused."""
    if not is_number(column.type) and not pa.types.is_boolean(column.type) and not pa.types.is_null(column.type):
        raise DemonstrationError(
            f"column {name!r} holds {values_type(column)}, and numbers are needed: convert it first"
        )
    values = np.asarray(pc.cast(column, pa.float64(), safe=False).to_numpy(), dtype=np.float64)
    if too_large := int((np.abs(values) > np.finfo(np.float32).max).sum()):
        raise DemonstrationError(
            f"column {name!r} has {too_large:,} infinite or too large values: drop or repair those rows"
        )
    return values


def one_hot(name: str, column: pa.ChunkedArray, categories: Sequence[str | None]) -> Array:
    """(row, category) one in the row's own category and zero elsewhere; None is the category of missing values."""
    index = pc.index_in(column, value_set=pa.array(categories, pa.string()))
    if index.null_count:
        strange = column.filter(index.is_null())
        known = [one for one in categories if one is not None]
        raise DemonstrationError(
            f"column {name!r} holds {strange[0].as_py()!r} in {pc.sum(pc.equal(strange, strange[0])).as_py():,} of "
            f"{len(column):,} rows, a category that was not seen before: there are {listed(known, most=20)}"
            f"{' and missing values' * (None in categories)}"
        )
    return np.eye(len(categories), dtype=np.float32)[index.to_numpy()]
