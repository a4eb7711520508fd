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
that came from a table). Files without it are read as well. Other columns are not looked at. A file that would decode to
more than half of the memory available is refused before it is decoded.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ileed import memory, parquet_files, runs
from ileed.checking import LONGEST
from ileed.demonstrations import Array, Demonstrations, Encoding
from ileed.demonstrations.encoding import Feature
from ileed.demonstrations.rules import too_long
from ileed.errors import DemonstrationError, brief
from ileed.readers.labels import Labeller, by_column
from ileed.readers.tables import flat_table
from ileed.wording import did_you_mean

_REQUIRED = ("observation", "action", "episode")
_OPTIONAL = ("reward", "terminal", "legal")
_SKILL = "skill."


def write_parquet(data: Demonstrations, path: str | Path) -> None:
    """Write demonstrations as one parquet file, whole or not at all."""
    written: dict[str, pa.Array] = {
        "observation": _lists(data.observations.reshape(len(data), -1)),
        "action": pa.array(data.actions) if data.discrete else _lists(data.actions),
        "demonstrator": pa.DictionaryArray.from_arrays(data.demonstrator.astype(np.int32), list(data.names)),
        "episode": pa.array(data.episode),
    }
    if data.rewards is not None:
        written["reward"] = pa.array(data.rewards)
    if data.terminals is not None:
        written["terminal"] = pa.array(data.terminals)
    if data.legal is not None:
        written["legal"] = _lists(data.legal)
    for name, values in data.skills.items():
        written[_SKILL + name] = pa.array(values) if values.ndim == 1 else _lists(values)
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


def read_parquet(path: str | Path, *, demonstrator: Labeller | None = None) -> Demonstrations:
    """Read demonstrations from a parquet file of our schema; `by_column` names another column for who did it."""
    path = Path(path)
    if demonstrator is not None and not isinstance(demonstrator, by_column):
        raise DemonstrationError(
            f"{demonstrator!r} does not apply to parquet files: use by_column(...) (at the command: --who COLUMN)"
        )
    who = demonstrator.column if isinstance(demonstrator, by_column) else "demonstrator"
    file = parquet_files.described(path)
    present = file.schema.names
    if "observation" not in present:
        raise flat_table(path, present)
    if missing := [name for name in (*_REQUIRED, who) if name not in present]:
        raise DemonstrationError(
            f"{path} has no column {missing[0]!r}{did_you_mean(missing[0], present)}: it has {_listed(present)}; "
            "rename a column"
            + (
                ", or name the one that says who with by_column(...) (at the command: --who COLUMN)"
                if missing[0] == who
                else ""
            )
        )
    notes = _notes(path, (file.schema.metadata or {}).get(b"ileed", b"{}"))
    skills = [name for name in present if name.startswith(_SKILL)]
    wanted = list(dict.fromkeys([*_REQUIRED, who, *(name for name in _OPTIONAL if name in present), *skills]))
    for name in wanted:
        if present.count(name) > 1:
            raise DemonstrationError(f"{path} has {present.count(name)} columns {name!r}: keep one of them")
        _check_type(path, name, file.schema.field(name).type)
    table = file.read(wanted)
    with parquet_files.as_one_sentence(path):
        values = {name: _numpy(path, name, table.column(name)) for name in wanted}
    observations = values["observation"]
    if notes.observation_shape is not None:
        observations = _shaped(path, observations, notes.observation_shape)
    return Demonstrations(
        observations=observations,
        actions=values["action"],
        demonstrator=values[who],
        episode=values["episode"],
        names=notes.names if who == "demonstrator" else (),
        rewards=values.get("reward"),
        terminals=values.get("terminal"),
        legal=values.get("legal"),
        skills={name.removeprefix(_SKILL): values[name] for name in skills},
        action_count=notes.action_count,
        encoding=notes.encoding,
    )


@final
@dataclass(frozen=True)
class _Notes:
    """What the file's metadata say of its columns."""

    observation_shape: tuple[int, ...] | None
    names: tuple[str, ...]
    action_count: int
    encoding: Encoding | None


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
    return _Notes(None if shape is None else tuple(shape), tuple(names), count, _encoding(values.get("encoding")))


def _encoding(note: Any) -> Encoding | None:
    try:
        found = runs.rebuilt(note, {kind.__name__: kind for kind in (Encoding, Feature)})
    except ValueError as error:
        raise DemonstrationError(f"the file's note on its encoding is damaged ({error}): write it again") from error
    if found is not None and not isinstance(found, Encoding):
        raise DemonstrationError(f"the file's note on its encoding is {type(found).__name__}: write it again")
    return found


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


def _listed(names: Sequence[str], most: int = 20) -> str:
    return brief(list(names), 2000) if len(names) <= most else f"{brief(list(names[:most]), 2000)} and others"


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _check_type(path: Path, name: str, kind: pa.DataType) -> None:
    """Refuse what is deeper than a list, or bytes: neither numbers nor words."""
    inner = kind.value_type if _is_list(kind) else kind
    sound = not (pa.types.is_nested(inner) or pa.types.is_binary(inner) or pa.types.is_large_binary(inner))
    if not sound or (_is_list(kind) and parquet_files.is_text(inner)):
        raise DemonstrationError(
            f"column {name!r} of {path} is {kind}: rows must be numbers, words or lists of numbers; convert it"
        )


def _lists(rows: Array) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(rows).reshape(-1)), rows.shape[1])


def _numpy(path: Path, name: str, column: pa.ChunkedArray) -> Any:
    if column.null_count:
        raise DemonstrationError(f"column {name!r} has {column.null_count:,} missing values: fill or drop those rows")
    if parquet_files.is_text(column.type):
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
    lengths = pc.utf8_length(whole.dictionary)
    longest = pc.max(lengths).as_py() or 1
    if longest > LONGEST:
        raise too_long(f"the values of column {name!r}", whole.dictionary[pc.index(lengths, longest).as_py()].as_py())
    memory.check_fits(f"column {name!r} of {path}", (len(whole) + len(whole.dictionary)) * 4 * longest)
    distinct = np.array(whole.dictionary.to_pylist(), dtype=np.str_)
    return distinct[whole.indices.to_numpy(zero_copy_only=False)] if len(distinct) else np.empty(0, dtype=np.str_)
