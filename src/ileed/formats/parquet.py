"""Parquet: our own schema, one row for each step. What is written is read back exactly.

| column       | type                                    | meaning                                              |
|--------------|-----------------------------------------|------------------------------------------------------|
| observation  | list of numbers, all of one length      | what was seen before acting, flattened               |
| action       | integer, or list of floats              | what was done: discrete, or continuous               |
| demonstrator | string or integer                       | who did it                                           |
| episode      | integer or string                       | which run; its rows stand together, in order of time |
| reward       | float (optional)                        | what the step earned                                 |
| terminal     | boolean (optional)                      | whether the task ended there                         |
| legal        | list of booleans (optional)             | which actions were allowed                           |
| episode_number | integer (optional)                    | which of the demonstrator's own episodes it is, from 0 on |
| timestamp    | float (optional)                        | time of the step in seconds, where the metadata state `fps` |
| skill.NAME   | string, integer or list of floats (opt.)| which skills the step called for                     |

The file's metadata may hold, under the key `ileed`, a JSON object with `observation_shape`, `names` (the order of
demonstrators, also of those without a step), `action_count`, `fps` (steps per second), `arrays` (the name, shape and
type of each observation, where there are several) and `encoding` (the names of features and actions of data that came
from a table). Files without it are read as well. Other columns are ignored.

A file's footer states how many values each column has and of which type, so that what it decodes to is known before
anything is decoded. Text is read as a dictionary: a long word that stands in every row is held once.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ileed import _memory, runs
from ileed.data import Array, Demonstrations, Source
from ileed.data.columns import is_list, is_text, longest_word
from ileed.data.rules import listed
from ileed.errors import DemonstrationError, did_you_mean, path_of, refuse_damage
from ileed.formats.core import AbstractFormat, Labeller, accept, by_column, flat_table
from ileed.formats.files import arrow_source, noted_arrays, noted_encoding, notes_of, schema_notes, shape_as_noted

_NEEDED = {"observation": "observations", "action": "actions", "demonstrator": "demonstrator", "episode": "episode"}
_COLUMNS = _NEEDED | {
    "reward": "rewards",
    "terminal": "terminals",
    "legal": "legal",
    "episode_number": "episode_number",
    "timestamp": "timestamps",
}  # as Demonstrations calls them
SKILL = "skill."
WIDTH = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}  # bytes of a value


def write_parquet(data: Demonstrations, path: str | Path, *, steps: slice = slice(None)) -> None:
    """Write demonstrations, or some of their steps, as one parquet file, whole or not at all."""
    kept = {column: getattr(data, name) for column, name in _COLUMNS.items()}
    kept |= {SKILL + name: values for name, values in data.skills.items()}
    written = {column: as_arrow(values[steps]) for column, values in kept.items() if values is not None}
    who = data.demonstrator[steps].astype(np.int32)
    written["demonstrator"] = pa.DictionaryArray.from_arrays(who, list(data.names))
    table = pa.table(written).replace_schema_metadata({"ileed": json.dumps(notes_of(data))})
    content = io.BytesIO()
    pq.write_table(table, content, compression="zstd", compression_level=9)
    runs.write_file(path_of("path", path, error=DemonstrationError), content.getvalue())


def as_arrow(values: Array) -> pa.Array:
    """A column of numbers or words, or of lists where a row holds several numbers."""
    if values.ndim == 1:
        return pa.array(values)
    rows = np.ascontiguousarray(values).reshape(len(values), -1)
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])


def read_parquet(path: str | Path, *, demonstrator: Labeller | None = None) -> Demonstrations:
    """Read demonstrations from a parquet file of our schema; `by_column` names another column for who did it."""
    path = path_of("path", path, error=DemonstrationError)
    source = Source.of(path, read_parquet, demonstrator=demonstrator)
    file = ParquetFile(path)
    notes = schema_notes(file.schema.metadata, path)
    wanted, who = columns_to_read(path, file.schema.names, demonstrator, notes)
    table = file.read(wanted)
    if not len(table):
        raise DemonstrationError(f"there are no steps in {path}: at least one is needed")
    with refuse_damage(path, "parquet", pa.ArrowException):
        values = kept_columns(table, who, notes, path)
    return Demonstrations(
        **values,
        names=notes.get("names", ()) if who == "demonstrator" else (),  # the notes are on our own column
        action_count=notes.get("action_count", 0),
        encoding=noted_encoding(notes),
        fps=notes.get("fps"),
        source=source,
    )


def columns_to_read(
    path: Path, present: Sequence[str], demonstrator: Labeller | None, notes: Mapping[str, Any]
) -> tuple[tuple[str, ...], str]:
    """The columns of ours that are present, and the one that names the demonstrator; none may be missing or repeated.

    A column `timestamp` is ours where the notes state `fps`, and otherwise one of the user's own.
    """
    accept(demonstrator, by_column, title="parquet files", use="by_column(...) (at the command: --who COLUMN)")
    who = "demonstrator" if demonstrator is None else str(demonstrator.place)
    if "observation" not in present:
        raise flat_table(path, present)
    needed = [who if name == "demonstrator" else name for name in _NEEDED]
    if missing := next((name for name in needed if name not in present), None):
        other = ", or name the one that says who with by_column(...) (at the command: --who COLUMN)"
        raise DemonstrationError(
            f"{path} has no column {missing!r}{did_you_mean(missing, present)}: it has {listed(present, most=20)}; "
            f"rename a column{other if missing == who else ''}"
        )
    ours = {*needed, *(_COLUMNS.keys() - _NEEDED.keys())} - ({"timestamp"} if notes.get("fps") is None else set())
    wanted = [name for name in dict.fromkeys(present) if name in ours or name.startswith(SKILL)]
    if repeated := next((name for name in wanted if present.count(name) > 1), None):
        raise DemonstrationError(f"{path} has {present.count(repeated)} columns {repeated!r}: keep one of them")
    return tuple(wanted), who


def kept_columns(table: pa.Table, who: str, notes: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The columns of a table as `Demonstrations` calls them."""
    values = {name: as_numpy(name, table.column(name)) for name in table.column_names}
    kept: dict[str, Any] = {name: values[column] for column, name in _COLUMNS.items() if column in values}
    kept |= {
        "demonstrator": values[who],
        "observations": shape_as_noted(values["observation"], notes, f"the metadata 'ileed' of {path}"),
        "arrays": noted_arrays(notes),
        "skills": {name.removeprefix(SKILL): values[name] for name in values if name.startswith(SKILL)},
    }
    return kept


def as_numpy(name: str, column: pa.ChunkedArray) -> Array:
    """(row,) numbers or words, or (row, number) of a column of lists; nothing may be missing.

    Each distinct word is decoded once. What is neither becomes an array of objects, which `Demonstrations` refuses.
    """
    array = (column.unify_dictionaries() if pa.types.is_dictionary(column.type) else column).combine_chunks()
    values = array.flatten() if is_list(array.type) else array.dictionary if is_text(array.type) else array
    if missing := column.null_count + values.null_count * (values is not array):
        raise DemonstrationError(f"column {name!r} has {missing:,} missing values: fill or drop those rows")
    if is_text(array.type):
        longest = longest_word(name, values)
        _memory.check_fits(f"column {name!r}", (len(array) + len(values)) * 4 * longest)
        distinct = np.array(values.to_pylist(), dtype=np.str_)
        return distinct[numbers(array.indices)] if len(distinct) else np.empty(0, dtype=np.str_)
    found = numbers(values)
    if not is_list(array.type):
        return found
    lengths = np.unique(numbers(array.value_lengths())) if len(array) else np.array([0])
    if len(lengths) > 1:
        ragged = f"lists of {lengths.min()} to {lengths.max()} values"
        raise DemonstrationError(f"column {name!r} is ragged ({ragged}): every row must have the same length")
    return found.reshape(len(array), int(lengths[0]))


def numbers(values: pa.Array) -> Array:
    """An array without missing values; numbers not by pyarrow's own way, which imports pandas where it is installed."""
    if (
        len(values)
        and values.null_count == 0
        and (pa.types.is_integer(values.type) or pa.types.is_floating(values.type))
    ):
        return np.from_dlpack(values)
    return np.asarray(values.to_numpy(zero_copy_only=False))


@final
class ParquetFile:
    """A parquet file whose footer was read, and nothing else of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with refuse_damage(path, "parquet", pa.ArrowException):
            self._footer = pq.read_metadata(arrow_source(path))
            self.schema: pa.Schema = self._footer.schema.to_arrow_schema()

    def read(self, names: Sequence[str]) -> pa.Table:
        """The columns of these names, each of which the schema has once; text as a dictionary."""
        with refuse_damage(self.path, "parquet", pa.ArrowException):
            _memory.check_fits(self.path, self.decoded_bytes(names))
            words = [name for name in names if is_text(self.schema.field(name).type)]
            source = arrow_source(self.path)
            with source, pq.ParquetFile(source, metadata=self._footer, read_dictionary=words) as file:
                table = file.read(columns=list(names))
            if missing := [name for name in names if table.column_names.count(name) != 1]:
                raise ValueError(f"column {missing[0]!r} cannot be told from another")
            table.validate(full=True)  # indices inside their dictionaries, text in UTF-8
            return table

    def decoded_bytes(self, names: Sequence[str]) -> int:
        """What the columns take once decoded, by the counts and types that the footer states."""
        total = 0
        for group in map(self._footer.row_group, range(self._footer.num_row_groups)):
            for number in range(group.num_columns):
                column, stated = group.column(number), self._footer.schema.column(number)
                if not any(f"{stated.path}.".startswith(f"{name}.") for name in names):
                    continue
                if min(column.num_values, column.total_uncompressed_size) < 0:
                    raise ValueError("a column has a negative size")
                if column.physical_type in WIDTH:
                    total += column.num_values * WIDTH[column.physical_type]
                else:  # bytes: a dictionary, or as they stand, and a number for each row
                    length = max(stated.length or 0, 0)
                    total += column.total_uncompressed_size + column.num_values * (4 + length)
        return total


@final
class _Parquet(AbstractFormat):
    name, suffixes, title = "parquet", (".parquet",), "parquet files"
    read, write = staticmethod(read_parquet), staticmethod(write_parquet)

    def columns(self, path: Path) -> Sequence[str]:
        return ParquetFile(path).schema.names


FORMAT = _Parquet()
