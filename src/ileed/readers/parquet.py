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
| skill.NAME   | string, integer or list of floats (opt.)| which skills the step called for                     |

The file's metadata may hold, under the key `ileed`, a JSON object with `observation_shape`, `names` (the order of
demonstrators, also of those without a step), `action_count`, and `encoding` (the names of features and actions of data
that came from a table). Files without it are read as well. Other columns are not looked at.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ileed import memory, parquet_files, runs
from ileed.demonstrations import Array, Demonstrations, Encoding
from ileed.demonstrations.columns import longest_word
from ileed.demonstrations.encoding import Feature
from ileed.demonstrations.rules import listed
from ileed.errors import DemonstrationError, refuse_damage
from ileed.readers.notes import read_notes, shape_as_noted
from ileed.readers.reader import Labeller, Reader, by_column
from ileed.readers.tables import flat_table
from ileed.wording import did_you_mean

_NEEDED = {"observation": "observations", "action": "actions", "demonstrator": "demonstrator", "episode": "episode"}
_COLUMNS = _NEEDED | {"reward": "rewards", "terminal": "terminals", "legal": "legal"}  # as Demonstrations calls them
_SKILL = "skill."


def write_parquet(data: Demonstrations, path: str | Path) -> None:
    """Write demonstrations as one parquet file, whole or not at all."""
    kept = {column: getattr(data, name) for column, name in _COLUMNS.items()}
    kept |= {_SKILL + name: values for name, values in data.skills.items()}
    written = {column: _as_arrow(values) for column, values in kept.items() if values is not None}
    written["demonstrator"] = pa.DictionaryArray.from_arrays(data.demonstrator.astype(np.int32), list(data.names))
    notes: dict[str, Any] = {
        "format": 1,
        "observation_shape": list(data.observations.shape[1:]),
        "names": list(data.names),
        "action_count": data.action_count,
    }
    if data.encoding is not None:
        notes["encoding"] = runs.plain(data.encoding)
    table = pa.table(written).replace_schema_metadata({"ileed": json.dumps(notes)})
    content = io.BytesIO()
    pq.write_table(table, content, compression="zstd", compression_level=9)
    runs.write_file(Path(path), content.getvalue())


def _as_arrow(values: Array) -> pa.Array:
    """A column of numbers or words, or of lists where a row holds several numbers."""
    if values.ndim == 1:
        return pa.array(values)
    rows = np.ascontiguousarray(values).reshape(len(values), -1)
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])


def read_parquet(path: str | Path, *, demonstrator: Labeller | None = None) -> Demonstrations:
    """Read demonstrations from a parquet file of our schema; `by_column` names another column for who did it."""
    path = Path(path)
    if demonstrator is not None and not isinstance(demonstrator, by_column):
        raise DemonstrationError(
            f"{demonstrator!r} does not apply to parquet files: use by_column(...) (at the command: --who COLUMN)"
        )
    who = "demonstrator" if demonstrator is None else demonstrator.column
    file = parquet_files.describe(path)
    present = file.schema.names
    if "observation" not in present:
        raise flat_table(path, present)
    needed = [who if name == "demonstrator" else name for name in _NEEDED]
    if missing := next((name for name in needed if name not in present), None):
        other = ", or name the one that says who with by_column(...) (at the command: --who COLUMN)"
        raise DemonstrationError(
            f"{path} has no column {missing!r}{did_you_mean(missing, present)}: it has {listed(present, most=20)}; "
            f"rename a column{other if missing == who else ''}"
        )
    ours = {*needed, *(_COLUMNS.keys() - _NEEDED.keys())}
    wanted = [name for name in dict.fromkeys(present) if name in ours or name.startswith(_SKILL)]
    for name in wanted:
        if present.count(name) > 1:
            raise DemonstrationError(f"{path} has {present.count(name)} columns {name!r}: keep one of them")
        _check_type(path, name, file.schema.field(name).type)
    place = f"the metadata 'ileed' of {path}"
    notes = read_notes((file.schema.metadata or {}).get(b"ileed", b"{}"), place)
    table = file.read(wanted)
    with refuse_damage(path, "parquet", pa.ArrowException):
        values = {name: _as_numpy(path, name, table.column(name)) for name in wanted}
    kept = {name: values[column] for column, name in _COLUMNS.items() if column in values}
    kept |= {"demonstrator": values[who], "observations": shape_as_noted(values["observation"], notes, place)}
    return Demonstrations(
        **kept,
        names=notes.get("names", ()) if who == "demonstrator" else (),
        skills={name.removeprefix(_SKILL): values[name] for name in wanted if name.startswith(_SKILL)},
        action_count=notes.get("action_count", 0),
        encoding=_encoding(notes.get("encoding")),
    )


def _encoding(note: Any) -> Encoding | None:
    try:
        found = runs.rebuilt(note, {kind.__name__: kind for kind in (Encoding, Feature)})
        if found is None or isinstance(found, Encoding):
            return found
        raise ValueError(f"it is {type(found).__name__}")
    except ValueError as error:
        raise DemonstrationError(f"the file's note on its encoding is damaged ({error}): write it again") from error


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _check_type(path: Path, name: str, kind: pa.DataType) -> None:
    """Refuse what is deeper than a list, or bytes: neither numbers nor words."""
    inner = kind.value_type if _is_list(kind) else kind
    sound = not (pa.types.is_nested(inner) or pa.types.is_binary(inner) or pa.types.is_large_binary(inner))
    if not sound or (_is_list(kind) and parquet_files.is_text(inner)):
        raise DemonstrationError(
            f"column {name!r} of {path} is {kind}: convert it to numbers, words or lists of numbers"
        )


def _as_numpy(path: Path, name: str, column: pa.ChunkedArray) -> Array:
    """(row,) numbers or words, or (row, number) of a column of lists; nothing may be missing."""
    if column.null_count:
        raise _missing(name, f"{column.null_count:,} missing values")
    if parquet_files.is_text(column.type):
        return _words(path, name, column)
    array = column.combine_chunks()
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if not _is_list(array.type):
        return np.asarray(array.to_numpy(zero_copy_only=False))
    values = array.flatten()
    if values.null_count:
        raise _missing(name, "missing values inside its lists")
    lengths = np.unique(array.value_lengths().to_numpy(zero_copy_only=False)) if len(array) else np.array([0])
    if len(lengths) > 1:
        found = f"lists of {lengths.min()} to {lengths.max()} values"
        raise DemonstrationError(f"column {name!r} is ragged ({found}): every row must have the same length")
    return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(len(array), int(lengths[0]))


def _missing(name: str, found: str) -> DemonstrationError:
    return DemonstrationError(f"column {name!r} has {found}: fill or drop those rows")


def _words(path: Path, name: str, column: pa.ChunkedArray) -> Array:
    """A column of text, (row,): each distinct word is decoded once, and the array is made if it fits in memory."""
    whole = column.unify_dictionaries().combine_chunks()
    if whole.dictionary.null_count:
        raise _missing(name, "missing values")
    longest = longest_word(name, whole.dictionary)
    memory.check_fits(f"column {name!r} of {path}", (len(whole) + len(whole.dictionary)) * 4 * longest)
    distinct = np.array(whole.dictionary.to_pylist(), dtype=np.str_)
    return distinct[whole.indices.to_numpy(zero_copy_only=False)] if len(distinct) else np.empty(0, dtype=np.str_)


READER = Reader("parquet", (".parquet",), read_parquet, columns=lambda path: parquet_files.describe(path).schema.names)
