"""What the columns of a table become: actions with labels, people, episodes in order, and encoded features.

Imported on use, as `ileed.demonstrations.columns` is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ileed import parquet_files
from ileed.demonstrations import Array, Encoding, rules
from ileed.demonstrations.columns import (
    as_numbers,
    as_table,
    as_text,
    check_column,
    check_names,
    is_number,
    is_text,
    values_type,
)
from ileed.demonstrations.encoding import Feature, Label, is_table
from ileed.errors import DemonstrationError

ENDINGS = (".csv", ".tsv", ".parquet")

_MOST_CATEGORIES = 1000  # of a feature or an action: a table of (rows, categories) numbers must fit in memory
_FEW_CATEGORIES = 20  # so many never count as too many, however few rows there are


def open_table(
    table: Any, *, labels: Sequence[str], action: Sequence[str], wanted: Sequence[str] | None = None
) -> pa.Table:
    """The table as Arrow's; a file is read by the ending of its name, of parquet the `wanted` columns alone."""
    if not isinstance(table, str | Path):
        if not is_table(table):
            raise DemonstrationError(
                f"a table is needed and {type(table).__name__} was given: pass the path of a CSV or parquet file, a "
                "DataFrame of pandas or polars, an Arrow table, or a mapping of columns"
            )
        return as_table(table)
    path = Path(table)
    if not path.is_file():
        raise DemonstrationError(f"there is no file {path}: check the path")
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise DemonstrationError(f"{path.name} is of no known format of tables: there are {', '.join(ENDINGS)}")
    if ending != ".parquet":
        return _inferred(from_csv(path, as_text=(*labels, *action)), action)
    file = parquet_files.described(path)
    check_names(file.schema.names)
    names = [name for name in file.schema.names if wanted is None or name in wanted]
    found = file.read(names, text_as_dictionary=False) if names else file.schema.empty_table()
    return as_table(found)


def _unreadable(path: Path, kind: str, error: Exception | str, advice: str) -> DemonstrationError:
    reason = "".join(one if one.isprintable() else "?" for one in str(error).partition("\n")[0])
    shown = reason if len(reason) <= 200 else f"{reason[:199]}…"
    return DemonstrationError(f"{path} is not a readable {kind} file ({shown.rstrip('.')}): {advice}")


def from_csv(path: Path, *, as_text: Sequence[str]) -> pa.Table:
    """A CSV file's columns; those of labels as text, so that "007" stays "007".

    The file is parsed as one block: a column's type follows from all of its rows, not from the first megabyte.
    """
    from pyarrow import csv

    utf8 = "save it as UTF-8"
    try:
        with path.open("rb") as opened:
            head = opened.read(1 << 16)
        header = head.splitlines()[0] if head.strip() else b""
        if b"\0" in head:
            raise _unreadable(path, "CSV", "it holds zero bytes, as binary files and UTF-16 do", utf8)
        comma = max((b",", b";", b"\t"), key=header.count)
        found = csv.read_csv(
            path,
            read_options=csv.ReadOptions(block_size=min(path.stat().st_size + 1, 2**31 - 1)),
            parse_options=csv.ParseOptions(delimiter=comma.decode(), newlines_in_values=True),
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys(as_text, pa.string()),
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        names = found.column_names
    except UnicodeDecodeError as error:
        raise _unreadable(path, "CSV", "its header is not UTF-8", utf8) from error
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, DemonstrationError):
            raise
        advice = utf8 if "UTF8" in str(error) else "give every row as many values as the header has names"
        raise _unreadable(path, "CSV", error, advice) from error
    for name, kind in zip(names, found.schema.types, strict=True):
        if pa.types.is_binary(kind):
            raise _unreadable(path, "CSV", f"column {name!r} is not UTF-8", utf8)
    check_names(names)
    return found


_WHOLE = r"^(0|-?[1-9][0-9]{0,17})$"


def _inferred(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """The table with columns that were read as text turned to numbers, where that loses nothing."""
    for name in names:
        if name not in table.column_names:
            continue
        column = table.column(name)
        found = column.drop_null()
        if not len(found):
            continue
        converted = column
        if pc.all(pc.match_substring_regex(found, _WHOLE)).as_py():
            converted = pc.cast(column, pa.int64())
        elif pc.all(pc.is_in(pc.utf8_lower(found), value_set=pa.array(["true", "false"]))).as_py():
            converted = pc.equal(pc.utf8_lower(column), "true")
        elif pc.all(pc.match_substring_regex(found, r"^[+-]?([0-9]+\.[0-9]*|\.?[0-9]+)([eE][+-]?[0-9]+)?$")).as_py():
            converted = column if _has_codes(found) else pc.cast(column, pa.float64())
        table = table.set_column(table.column_names.index(name), name, converted)
    return table


def _has_codes(column: pa.ChunkedArray) -> bool:
    """Whether some text is a code such as 007, which would lose its zeros as a number."""
    return bool(pc.any(pc.match_substring_regex(column, r"^[+-]?0[0-9]")).as_py())


def check_roles(
    table: pa.Table, roles: Mapping[str, Sequence[str]], *, skills: Sequence[str], features: Sequence[str] | None
) -> None:
    """Refuse unknown columns, a column with two roles, and a table without rows."""
    taken: dict[str, str] = {}
    for role, names in roles.items():
        for name in names:
            check_column(table, name)
            # who acted may be part of what tells one episode from another
            if name in taken and not (role == "episode" and taken[name] == "demonstrator" and len(names) > 1):
                raise DemonstrationError(f"column {name!r} is named as {taken[name]} and as {role}: give it one role")
            taken.setdefault(name, role)
    for role, names in {"skill": skills, "feature": features or ()}.items():
        for name in names:
            check_column(table, name)
            if name in taken:
                raise DemonstrationError(f"column {name!r} is named as {taken[name]} and as {role}: give it one role")
    if features is not None and not features:
        raise DemonstrationError("features names no column: name at least one, or leave it out to take all others")
    if len(table) == 0:
        raise DemonstrationError("the table has no rows: pass at least one")


def feature_names(table: pa.Table, taken: set[str]) -> tuple[str, ...]:
    """Every column that has no other role; one that only numbers the rows is refused."""
    names = tuple(name for name in table.column_names if name not in taken)
    if not names:
        raise DemonstrationError("no column is left for the features: the table needs what was seen before acting")
    for name in names:
        if _numbers_the_rows(table.column(name)):
            raise DemonstrationError(
                f"column {name!r} numbers the rows, which is no feature: pass it as episode={name!r}, or leave it out "
                "by naming the others with features=[...]"
            )
    return names


def _numbers_the_rows(column: pa.ChunkedArray) -> bool:
    """Whether whole numbers go up by one from row to row, as an index that was saved with the table does."""
    if not pa.types.is_integer(column.type) or column.null_count or len(column) <= _FEW_CATEGORIES:
        return False
    values = column.to_numpy()
    return bool((values[1:] == values[:-1] + 1).all())


def feature(name: str, column: pa.ChunkedArray, missing: str, *, named: bool) -> Feature:
    """How a column of features is encoded; one that carries no feature is refused by name."""
    kind = values_type(column)
    if pa.types.is_null(kind) or column.null_count == len(column):
        raise DemonstrationError(f"column {name!r} has no values at all: leave it out by naming others with features=")
    if pa.types.is_dictionary(column.type) or is_text(kind) or pa.types.is_boolean(kind):
        text = as_text(name, column)
        if text.null_count and missing == "error":
            raise _missing(name, text.null_count, len(column))
        return Feature(name, _categories(name, text, rows=len(column), named=named))
    if not is_number(kind):
        example = "its hour or its age, say" if pa.types.is_temporal(kind) else "as columns of their own, say"
        raise DemonstrationError(
            f"column {name!r} holds {kind}, which is neither a number nor a category: turn it into numbers "
            f"({example}), or leave it out by naming the others with features=[...]"
        )
    values = as_numbers(name, column)
    absent = int(np.isnan(values).sum())
    if absent == len(values):
        raise DemonstrationError(f"column {name!r} has no values at all: leave it out by naming others with features=")
    if absent and missing == "error":
        raise _missing(name, absent, len(values))
    return Feature(name, fill=float(np.float32(np.nanmean(values)))) if absent else Feature(name)


def _missing(name: str, count: int, rows: int) -> DemonstrationError:
    return DemonstrationError(
        f"column {name!r} has {count:,} missing values in {rows:,} rows: fill or drop those rows, leave the column out "
        "of features, or pass missing='category' to keep them"
    )


def _categories(name: str, column: pa.ChunkedArray, *, rows: int, named: bool) -> tuple[str | None, ...]:
    """The categories that occur, in order, and None at the end where values are missing."""
    found = sorted(one for one in pc.unique(column).to_pylist() if one is not None)
    hardly_repeat = len(found) > max(rows // 2, _FEW_CATEGORIES) or (len(found) == rows and rows > 1)
    if (hardly_repeat and not named) or len(found) > _MOST_CATEGORIES:
        raise DemonstrationError(
            f"column {name!r} has {len(found):,} different texts in {rows:,} rows, like an identifier: leave it out by "
            "naming the others with features=[...], or group its values"
        )
    if any("," in one for one in found) and all(re.fullmatch(r"[+-]?\d+(,\d+)?", one) for one in found):
        raise DemonstrationError(
            f"column {name!r} holds numbers with a decimal comma, such as {found[0]!r}: write them with a point"
        )
    return (*found, None) if column.null_count else tuple(found)


def actions(
    table: pa.Table, names: Sequence[str], known: Encoding | None, *, continuous: bool
) -> tuple[tuple[Label, ...], Array]:
    """The labels of a discrete action and the number of each row's; no labels and numbers for a continuous one.

    Where an encoding is known already, the labels are its own.
    """
    if known is not None and known.action != tuple(names):
        raise DemonstrationError(
            f"action is {rules.listed(names)} and the encoding's is {rules.listed(known.action)}: name the same"
        )
    for name in names:
        column = table.column(name)
        if absent := column.null_count or (pa.types.is_floating(column.type) and _nan_count(column)):
            raise DemonstrationError(
                f"the action column {name!r} has {absent:,} missing values in {len(column):,} rows: fill or drop them"
            )
    if known is not None and known.labels:
        return known.labels, _numbered(names[0], table.column(names[0]), known.labels)
    if continuous or known is not None:
        return (), np.stack([as_numbers(name, table.column(name)) for name in names], axis=1).astype(np.float32)
    (name,) = names
    column = table.column(name)
    kind = values_type(column)
    if not pa.types.is_dictionary(column.type) and is_number(kind) and not pa.types.is_integer(kind):
        values = as_numbers(name, column)
        if (values == np.round(values)).all():
            raise DemonstrationError(
                f"the action column {name!r} holds whole numbers such as {values[0]:g} as floating-point ones: convert "
                f"them to integers for a choice among labels, or pass action=[{name!r}] for a continuous action"
            )
        return (), values[:, None].astype(np.float32)
    return _labelled(name, column)


def _nan_count(column: pa.ChunkedArray) -> int:
    return int(pc.sum(pc.is_nan(column)).as_py() or 0)


def _labelled(name: str, column: pa.ChunkedArray) -> tuple[tuple[Label, ...], Array]:
    """A discrete action's labels: those that occur, and those that a column of categories declares.

    They are sorted, unless the column declares an order.
    """
    labels: list[Any]
    if pa.types.is_dictionary(column.type):
        whole = column.unify_dictionaries().combine_chunks()
        whole = whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole
        declared = as_text(name, pa.chunked_array([whole.dictionary])).to_pylist()
        distinct = [one for one in dict.fromkeys(declared) if one is not None]
        labels = distinct if column.type.ordered else sorted(distinct)
        values = as_text(name, column)
    elif pa.types.is_integer(column.type) or pa.types.is_boolean(column.type):
        labels, values = sorted(pc.unique(column).to_pylist()), column
    else:
        values = as_text(name, column)
        labels = sorted(pc.unique(values).to_pylist())
    if len(labels) < 2:
        raise DemonstrationError(
            f"the action column {name!r} is {labels[0]!r} in every row: there must be two or more to choose from"
        )
    if len(labels) > _MOST_CATEGORIES:
        raise DemonstrationError(
            f"the action column {name!r} has {len(labels):,} different values: a choice has at most "
            f"{_MOST_CATEGORIES:,}; pass action=[{name!r}] if it is a quantity"
        )
    return tuple(labels), _numbered(name, values, labels)


def _numbered(name: str, column: pa.ChunkedArray, labels: Sequence[Label]) -> Array:
    """The number of each row's label."""
    values = as_text(name, column) if isinstance(labels[0], str) else column
    try:
        index = pc.index_in(values, value_set=pa.array(labels, values.type))
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DemonstrationError(
            f"the action column {name!r} holds {values.type}, and its labels are {rules.listed(labels)}: convert it "
            "first"
        ) from error
    if index.null_count:
        strange = values.filter(index.is_null())[0].as_py()
        raise DemonstrationError(
            f"the action column {name!r} holds {strange!r}, which is not among the encoding's labels "
            f"{rules.listed(labels, most=20)}"
        )
    return np.asarray(index.to_numpy(), dtype=np.int64)


def people(name: str, column: pa.ChunkedArray) -> tuple[tuple[str, ...], Array]:
    """Everybody's name, and each row's index into them; numbers stand in the order of numbers."""
    found, index = _labels(name, "the demonstrator", column)
    numbers = all(re.fullmatch(_WHOLE, one) for one in found)
    order = sorted(range(len(found)), key=lambda place: int(found[place]) if numbers else found[place])
    return tuple(found[place] for place in order), np.argsort(order)[index]


def _labels(name: str, role: str, column: pa.ChunkedArray) -> tuple[list[str], Array]:
    """The distinct labels of a column as text, and each row's index into them; nothing may be missing."""
    kind = values_type(column)
    if pa.types.is_dictionary(column.type):
        column = pc.cast(column, kind)
    if absent := column.null_count or (pa.types.is_floating(kind) and _nan_count(column)):
        raise DemonstrationError(
            f"column {name!r} has {absent:,} missing values in {len(column):,} rows, and {role} is needed in each: "
            "fill or drop those rows"
        )
    if is_number(kind) and not pa.types.is_integer(kind):
        raise DemonstrationError(
            f"column {name!r} holds {kind}, and {role} is told by text or whole numbers: convert it first"
        )
    text = as_text(name, pc.cast(column, pa.string()) if pa.types.is_temporal(kind) else column)
    distinct = pc.unique(text)
    return distinct.to_pylist(), pc.index_in(text, value_set=distinct).to_numpy().astype(np.int64)


def skill(name: str, column: pa.ChunkedArray) -> Array:
    """(row,) labels of the skill that each row called for."""
    found, index = _labels(name, "a skill", column)
    return np.array(found)[index]


def order_of_rows(table: pa.Table, names: Sequence[str], person: Array) -> tuple[Array, Array]:
    """Rows in the order of their episodes' first appearance, stable within each, and the episode of each of them."""
    if not names:
        rows = np.arange(len(table))
        return rows, rows
    episode = np.zeros(len(table), dtype=np.int64)
    for name in names:
        found, index = _labels(name, "the episode", table.column(name))
        episode = np.unique(episode * len(found) + index, return_inverse=True)[1]
    _, first, number = np.unique(episode, return_index=True, return_inverse=True)
    appearance = np.argsort(np.argsort(first))[number]
    rows = np.argsort(appearance, kind="stable")
    changed = (appearance[rows][1:] == appearance[rows][:-1]) & (person[rows][1:] != person[rows][:-1])
    if changed.any():
        row = int(rows[int(changed.argmax())])
        label = ", ".join(f"{name} {table.column(name)[row].as_py()!s}" for name in names)
        raise DemonstrationError(
            f"the episode of {label} has two demonstrators, and each episode belongs to one: if episodes are counted "
            "anew for each demonstrator, name both columns, as in episode=[demonstrator, episode]"
        )
    return rows, appearance[rows]
