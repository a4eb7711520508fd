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
demonstrators, also of those without a step), `action_count`, and `encoding` (the names of features and actions of data
that came from a table). Files without it are read as well.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ileed import runs
from ileed.checking import LONGEST
from ileed.demonstrations import Array, Demonstrations, Encoding
from ileed.demonstrations.encoding import Feature
from ileed.demonstrations.rules import too_long
from ileed.errors import DemonstrationError
from ileed.readers.labels import Labeller, by_column
from ileed.readers.tables import flat_table
from ileed.wording import did_you_mean

_REQUIRED = ("observation", "action", "episode")
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
    notes: dict[str, Any] = {
        "format": 1,
        "observation_shape": list(data.observations.shape[1:]),
        "names": list(data.names),
        "action_count": data.action_count,
    }
    if data.encoding is not None:
        notes["encoding"] = runs.plain(data.encoding)
    table = pa.table(columns).replace_schema_metadata({"ileed": json.dumps(notes)})
    content = io.BytesIO()
    pq.write_table(table, content, compression="zstd", compression_level=9)
    runs.write_file(Path(path), content.getvalue())


def read_parquet(path: str | Path, *, demonstrator: Labeller | None = None) -> Demonstrations:
    """Read demonstrations from a parquet file of our schema; `by_column` names another column for who did it."""
    path = Path(path)
    if demonstrator is not None and not isinstance(demonstrator, by_column):
        raise DemonstrationError(
            f"{demonstrator!r} does not apply to parquet files: use by_column(...) (at the command: --who COLUMN)"
        )
    who = demonstrator.column if isinstance(demonstrator, by_column) else "demonstrator"
    try:
        table = pq.read_table(path)
        notes = json.loads((table.schema.metadata or {}).get(b"ileed", b"{}"))
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise DemonstrationError(
            f"{path} is not a readable parquet file ({reason}): export or copy it again"
        ) from error
    if "observation" not in table.column_names:
        raise flat_table(path, table.column_names)
    if missing := [name for name in (*_REQUIRED, who) if name not in table.column_names]:
        raise DemonstrationError(
            f"{path} has no column {missing[0]!r}{did_you_mean(missing[0], table.column_names)}: "
            f"it has {table.column_names}; rename a column"
            + (
                ", or name the one that says who with by_column(...) (at the command: --who COLUMN)"
                if missing[0] == who
                else ""
            )
        )
    columns = {name: _numpy(name, table.column(name)) for name in table.column_names}
    observations = columns["observation"]
    shape = notes.get("observation_shape")
    return Demonstrations(
        observations=observations if shape is None else observations.reshape(-1, *shape),
        actions=columns["action"],
        demonstrator=columns[who],
        episode=columns["episode"],
        names=tuple(notes.get("names", ())) if who == "demonstrator" else (),
        rewards=columns.get("reward"),
        terminals=columns.get("terminal"),
        legal=columns.get("legal"),
        skills={name.removeprefix(_SKILL): value for name, value in columns.items() if name.startswith(_SKILL)},
        action_count=notes.get("action_count", 0),
        encoding=_encoding(notes.get("encoding")),
    )


def _encoding(note: Any) -> Encoding | None:
    try:
        found = runs.rebuilt(note, {kind.__name__: kind for kind in (Encoding, Feature)})
    except ValueError as error:
        raise DemonstrationError(f"the file's note on its encoding is damaged ({error}): write it again") from error
    if found is not None and not isinstance(found, Encoding):
        raise DemonstrationError(f"the file's note on its encoding is {type(found).__name__}: write it again")
    return found


def _check_words(name: str, array: pa.Array) -> None:
    """Refuse long words before they are laid out in rows of equal width."""
    if len(array) and (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
        lengths = pc.utf8_length(array)
        longest = pc.max(lengths)
        if longest.as_py() > LONGEST:
            raise too_long(f"the values of column {name!r}", array[pc.index(lengths, longest).as_py()].as_py())


def _lists(rows: Array) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(rows).reshape(-1)), rows.shape[1])


def _numpy(name: str, column: pa.ChunkedArray) -> Any:
    if column.null_count:
        raise DemonstrationError(f"column {name!r} has {column.null_count:,} missing values: fill or drop those rows")
    array = column.combine_chunks()
    _check_words(name, array.dictionary if pa.types.is_dictionary(array.type) else array)
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        return np.array(array.to_pylist(), dtype=np.str_)
    kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if not any(is_kind(array.type) for is_kind in kinds):
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
