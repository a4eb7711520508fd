"""Parquet: our own schema, one row a step. What is written is read back exactly.

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
demonstrators, also of those without a step) and `action_count`. Files without it are read as well. Other columns are
not looked at. A file that would decode to more than half of the memory available is refused before it is decoded.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ileed import memory, runs
from ileed.demonstrations import Array, Demonstrations
from ileed.errors import DemonstrationError, brief
from ileed.readers.labels import Labeller, by_column

_REQUIRED = ("observation", "action", "episode")
_OPTIONAL = ("reward", "terminal", "legal")
_SKILL = "skill."


def write_parquet(data: Demonstrations, path: str | Path) -> None:
    """Write demonstrations as one parquet file, whole or not at all."""
    columns: dict[str, pa.Array] = {
        "observation": _lists(data.observations.reshape(len(data), -1)),
        "action": pa.array(data.actions) if data.discrete else _lists(data.actions),
        "demonstrator": pa.DictionaryArray.from_arrays(data.demonstrator.astype(np.int32), list(data.names)),
        "episode": pa.array(data.episode),
    }
    if data.rewards is not None:
        columns["reward"] = pa.array(data.rewards)
    if data.terminals is not None:
        columns["terminal"] = pa.array(data.terminals)
    if data.legal is not None:
        columns["legal"] = _lists(data.legal)
    for name, values in data.skills.items():
        columns[_SKILL + name] = pa.array(values) if values.ndim == 1 else _lists(values)
    notes = {
        "format": 1,
        "observation_shape": list(data.observations.shape[1:]),
        "names": list(data.names),
        "action_count": data.action_count,
    }
    table = pa.table(columns).replace_schema_metadata({"ileed": json.dumps(notes)})
    content = io.BytesIO()
    pq.write_table(table, content, compression="zstd", compression_level=9)
    runs.write_file(Path(path), content.getvalue())


def read_parquet(path: str | Path, *, demonstrator: Labeller | None = None) -> Demonstrations:
    """Read demonstrations from a parquet file of our schema; `by_column` names another column for who did it."""
    path = Path(path)
    if demonstrator is not None and not isinstance(demonstrator, by_column):
        raise DemonstrationError(f"{demonstrator!r} does not apply to parquet files: use by_column(...)")
    who = demonstrator.column if isinstance(demonstrator, by_column) else "demonstrator"
    with _as_one_sentence(path):
        described = pq.read_metadata(path)
        schema = described.schema.to_arrow_schema()
        metadata = schema.metadata or {}
    present = schema.names
    if missing := [name for name in (*_REQUIRED, who) if name not in present]:
        raise DemonstrationError(
            f"{path} has no column {missing[0]!r}: it has {_listed(present)}; rename a column"
            + (", or name the one that says who with by_column(...)" if missing[0] == who else "")
        )
    notes = _notes(path, metadata.get(b"ileed", b"{}"))
    skills = [name for name in present if name.startswith(_SKILL)]
    wanted = list(dict.fromkeys([*_REQUIRED, who, *(name for name in _OPTIONAL if name in present), *skills]))
    columns = _columns(path, described, schema, wanted)
    observations = columns["observation"]
    if notes.observation_shape is not None:
        observations = _shaped(path, observations, notes.observation_shape)
    return Demonstrations(
        observations=observations,
        actions=columns["action"],
        demonstrator=columns[who],
        episode=columns["episode"],
        names=notes.names if who == "demonstrator" else (),
        rewards=columns.get("reward"),
        terminals=columns.get("terminal"),
        legal=columns.get("legal"),
        skills={name.removeprefix(_SKILL): columns[name] for name in skills},
        action_count=notes.action_count,
    )


@final
@dataclass(frozen=True)
class _Notes:
    """What the file's metadata say of its columns."""

    observation_shape: tuple[int, ...] | None
    names: tuple[str, ...]
    action_count: int


def _notes(path: Path, text: bytes) -> _Notes:
    """The metadata under the key `ileed`; whatever is not of the kind that the writer puts there is refused."""

    def refuse(found: object, rule: str) -> DemonstrationError:
        return DemonstrationError(
            f"the metadata 'ileed' of {path} hold {brief(found)}: {rule}; write the file again, or remove the metadata"
        )

    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise refuse(text, "they must be a JSON object") from error
    if not isinstance(values, dict):
        raise refuse(values, "they must be a JSON object")
    shape, names, count = values.get("observation_shape"), values.get("names", []), values.get("action_count", 0)
    if shape is not None and not (isinstance(shape, list) and shape and all(_is_count(size) for size in shape)):
        raise refuse(shape, "observation_shape must be a list of whole numbers, zero or more")
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise refuse(names, "names must be a list of strings")
    if not _is_count(count):
        raise refuse(count, "action_count must be a whole number, zero or more")
    return _Notes(None if shape is None else tuple(shape), tuple(names), count)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _shaped(path: Path, observations: Array, shape: tuple[int, ...]) -> Array:
    width = observations.shape[1] if observations.ndim == 2 else 1
    if math.prod(shape) != width:
        raise DemonstrationError(
            f"observations of {path} have {width:,} numbers but its metadata 'ileed' say that their shape is {shape}: "
            "the product must be the number; write the file again, or remove the metadata"
        )
    return observations.reshape(len(observations), *shape)


@contextmanager
def _as_one_sentence(path: Path) -> Iterator[None]:
    """Whatever the library raises for a damaged file, as one sentence about that file."""
    try:
        yield
    except DemonstrationError:
        raise
    except _DAMAGE as error:
        raise DemonstrationError(
            f"{path} is not a readable parquet file ({brief(error)}): export or copy it again"
        ) from error


_DAMAGE = (pa.ArrowException, OSError, ValueError, TypeError, KeyError, IndexError, RuntimeError, MemoryError)


def _listed(names: Sequence[str], most: int = 20) -> str:
    return brief(list(names), 2000) if len(names) <= most else f"{brief(list(names[:most]), 2000)} and others"


def _columns(path: Path, described: Any, schema: pa.Schema, wanted: Sequence[str]) -> dict[str, Any]:
    """The wanted columns as arrays; no other column is decoded, so nothing in it can matter."""
    for name in wanted:
        if schema.names.count(name) > 1:
            raise DemonstrationError(f"{path} has {schema.names.count(name)} columns {name!r}: keep one of them")
        if not _is_flat(schema.field(name).type):
            raise DemonstrationError(
                f"column {name!r} of {path} is {schema.field(name).type}: it must hold a number, a word "
                "or a list of numbers in each row; flatten it"
            )
    with _as_one_sentence(path):
        memory.check_fits(path, _decoded_bytes(described, wanted))
        words = [name for name in wanted if _is_text(schema.field(name).type)]
        # text stays a dictionary: a long word that is repeated in all rows would otherwise be copied for each
        with pq.ParquetFile(path, metadata=described, read_dictionary=words) as file:
            table = file.read(columns=list(wanted))
        table.validate(full=True)
        if missing := [name for name in wanted if name not in table.column_names]:
            raise ValueError(f"column {missing[0]!r} cannot be told from another")
    with _as_one_sentence(path):
        return {name: _numpy(path, name, table.column(name)) for name in wanted}


def _decoded_bytes(described: Any, wanted: Sequence[str]) -> int:
    """What the columns take once decoded, by the counts and types that the file's footer states."""
    total = 0
    for group in range(described.num_row_groups):
        row_group = described.row_group(group)
        for place in range(row_group.num_columns):
            column = row_group.column(place)
            if any(column.path_in_schema == name or column.path_in_schema.startswith(f"{name}.") for name in wanted):
                if min(column.num_values, column.total_uncompressed_size) < 0:
                    raise ValueError("a column has a negative size")
                width = _WIDTH.get(column.physical_type)
                if width is None:  # bytes: a dictionary, or as they stand, and a number for each row
                    length = max(described.schema.column(place).length or 0, 0)
                    total += column.total_uncompressed_size + column.num_values * (4 + length)
                else:
                    total += column.num_values * width
    return total


_WIDTH = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _is_flat(kind: pa.DataType) -> bool:
    """Whether rows hold a value or a list of values, and nothing deeper."""
    inner = kind.value_type if _is_list(kind) else kind
    return not pa.types.is_nested(inner)


def _lists(rows: Array) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(rows).reshape(-1)), rows.shape[1])


def _numpy(path: Path, name: str, column: pa.ChunkedArray) -> Any:
    if column.null_count:
        raise DemonstrationError(f"column {name!r} has {column.null_count:,} missing values: fill or drop those rows")
    if _is_text(column.type):
        return _words(path, name, column)
    array = column.combine_chunks()
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if not _is_list(array.type):
        return array.to_numpy(zero_copy_only=False)
    values = array.flatten()
    if values.null_count:
        raise DemonstrationError(f"column {name!r} has missing values inside its lists: fill or drop those rows")
    lengths = np.unique(array.value_lengths().to_numpy(zero_copy_only=False)) if len(array) else np.array([0])
    if len(lengths) > 1:
        raise DemonstrationError(
            f"column {name!r} is ragged (lists of {lengths.min()} to {lengths.max()} values): "
            "every row must have the same length"
        )
    return values.to_numpy(zero_copy_only=False).reshape(len(array), int(lengths[0]))


def _words(path: Path, name: str, column: pa.ChunkedArray) -> Array:
    """A column of text, (row,): each distinct word is decoded once, and the array is made if it fits in memory."""
    encoded = (column if pa.types.is_dictionary(column.type) else column.dictionary_encode()).unify_dictionaries()
    whole = encoded.combine_chunks()
    if whole.dictionary.null_count:
        raise DemonstrationError(f"column {name!r} has missing values: fill or drop those rows")
    longest = pc.max(pc.utf8_length(whole.dictionary)).as_py() or 1
    memory.check_fits(f"column {name!r} of {path}", (len(whole) + len(whole.dictionary)) * 4 * longest)
    distinct = np.array(whole.dictionary.to_pylist(), dtype=np.str_)
    return distinct[whole.indices.to_numpy(zero_copy_only=False)] if len(distinct) else np.empty(0, dtype=np.str_)
