"""Safe access to files of unknown origin (folders, JSON, Arrow, parquet, HDF5), and the notes that our writers leave.

Nothing outside the data set is read: links that leave a folder, and external links, external storage and virtual data
sets of HDF5 are refused, since they would present any file of the machine as data. Memory is checked before anything is
decoded. docs/decisions/files.md has the rules. Notes hold what a format has no place for.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ileed import _memory, runs
from ileed.data import Array, Demonstrations, Encoding
from ileed.data.columns import is_list, is_text, longest_word
from ileed.data.encoding import Arrays, Feature, NamedArray
from ileed.data.rules import is_fps, listed
from ileed.errors import DemonstrationError, brief, did_you_mean, instance_of, printable, refuse_damage, require
from ileed.runs.files import Ours, replace_folder

_MOST_JSON = 64 << 20  # bytes
_LIST = "_ileed_files.json"  # Arrow and Spark skip names that begin with an underscore


def check_there(place: object, kind: str, names: Iterable[str], there: Sequence[str], hint: str = "") -> None:
    """Refuse the first name that is not there, and suggest the closest one that is."""
    for name in names:
        if name not in there:
            known = f"it has {listed(there, 20) or 'none'}"
            message = f"{place} has no {kind} {name!r}{did_you_mean(name, there)}: {known}{hint}"
            raise DemonstrationError(message, code=f"{kind.replace(' ', '-')}-missing")


def file_in(folder: Path, *parts: str) -> Path:
    """A regular file of a folder; refuses one that is absent or a link out of the folder."""
    file = folder.joinpath(*parts)
    if leads_out(file, folder):
        message = f"{_shown(file)} is a link out of the data set, which is not followed: copy the file there"
        raise DemonstrationError(message, code="link-out-of-folder")
    if not file.is_file():
        raise DemonstrationError(f"{_shown(folder)} has no file {brief('/'.join(parts))}: copy the folder again, whole")
    return file


def leads_out(file: Path, folder: Path) -> bool:
    """Whether a file is a link out of its folder, other than into the cache of the Hugging Face hub."""
    target, home = (Path(os.path.realpath(each)) for each in (file, folder))  # tolerates symlink cycles
    snapshot = next((each for each in (home, *home.parents) if each.parent.name == "snapshots"), None)
    places = [home, *([snapshot.parents[1] / "blobs"] if snapshot is not None else [])]
    return not any(target.is_relative_to(place) for place in places)


def read_json(file: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    with refuse_damage(file, "JSON"):
        if file.stat().st_size > _MOST_JSON:
            raise DemonstrationError(
                f"{_shown(file)} has more than {_MOST_JSON >> 20} MiB, too many for JSON: write it again"
            )
        found = json.loads(file.read_bytes())
    if not isinstance(found, dict):
        raise DemonstrationError(f"{_shown(file)} holds {brief(found)}: it must hold a JSON object")
    return found


def parse_json(text: Any) -> Any:
    """The value of a JSON text; anything that is not JSON is returned unchanged."""
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return text


@contextmanager
def write_folder(path: Path) -> Iterator[Path]:
    """Yield a folder to write to, which becomes `path` on success; refuses a path that holds anything.

    The files are listed in the folder, so that `ileed.write(..., overwrite=True)` can tell them from other files.
    """
    if os.path.lexists(path) and not (path.is_dir() and not any(path.iterdir())):
        raise DemonstrationError(
            f"{_shown(path)} exists already, and data sets are not replaced: remove it, or choose another place",
            code="path-exists",
        )
    with replace_folder(path) as partial:
        yield partial
        files = sorted(str(file.relative_to(partial)) for file in partial.rglob("*") if file.is_file())
        (partial / _LIST).write_text(json.dumps({"files": [_LIST, *files]}, indent=1) + "\n")


def _listed_files(folder: Path) -> list[str]:
    """The files that our writer listed in a folder; none if there is no such list."""
    try:
        files = json.loads((folder / _LIST).read_bytes())["files"]
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return []
    return [name for name in files if isinstance(name, str)] if isinstance(files, list) else []


DATA_SET = Ours(_LIST, _listed_files)
"""The files of a data set that we wrote as a folder."""


def _shown(path: Path) -> str:
    return printable(str(path), 300)


# --- Arrow and parquet

WIDTH = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}  # bytes of a value


def arrow_source(path: Path) -> pa.OSFile:
    """A file for Arrow, whose name need not be UTF-8."""
    return pa.OSFile(os.fsencode(path))  # not mapped: truncating a mapped file kills the process


def arrow_reader(source: Any) -> Any:
    """A reader of record batches, in the file format or the stream format."""
    is_file = source.read(6) == b"ARROW1"
    source.seek(0)
    return (pa.ipc.open_file if is_file else pa.ipc.open_stream)(source)


def read_arrow(file: Path) -> pa.Table:
    """All columns of an Arrow file, in the file format or the stream format, fully validated."""
    with refuse_damage(file, "Arrow", pa.ArrowException):
        _memory.check_fits(file, file.stat().st_size)
        table = arrow_reader(pa.BufferReader(file.read_bytes())).read_all()
        table.validate(full=True)
        if len(set(table.column_names)) < len(table.column_names):
            raise ValueError("two columns have one name")
        return table


@final
class ParquetFile:
    """A parquet file of which only the footer has been read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with refuse_damage(path, "parquet", pa.ArrowException):
            self._footer = pq.read_metadata(arrow_source(path))
            self.schema: pa.Schema = self._footer.schema.to_arrow_schema()

    def read(self, names: Sequence[str]) -> pa.Table:
        """The columns of these names, each of which the schema has once; text is dictionary-encoded."""
        with refuse_damage(self.path, "parquet", pa.ArrowException):
            _memory.check_fits(self.path, self.decoded_bytes(names))
            words = [name for name in names if is_text(self.schema.field(name).type)]
            source = arrow_source(self.path)
            with source, pq.ParquetFile(source, metadata=self._footer, read_dictionary=words) as file:
                table = file.read(columns=list(names))
            if missing := [name for name in names if table.column_names.count(name) != 1]:
                raise ValueError(f"column {missing[0]!r} is missing or repeated")
            table.validate(full=True)  # indices inside their dictionaries, text in UTF-8
            return table

    def decoded_bytes(self, names: Sequence[str]) -> int:
        """The size of the columns once decoded, from the counts and types in the footer."""
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
                else:  # bytes: a dictionary, or plain values, and an index for each row
                    length = max(stated.length or 0, 0)
                    total += column.total_uncompressed_size + column.num_values * (4 + length)
        return total


def as_numpy(name: str, column: pa.ChunkedArray) -> Array:
    """(row, ...) numbers or words of a column without missing values; lists, also nested, must have equal lengths.

    Each distinct word is decoded once. Other values become an array of objects, which `Demonstrations` refuses.
    """
    try:
        array = (column.unify_dictionaries() if pa.types.is_dictionary(column.type) else column).combine_chunks()
        array = array.storage if isinstance(array, pa.ExtensionArray) else array
        shape = [len(array)]
        while is_list(array.type) and not array.null_count:
            lengths = np.unique(numbers(array.value_lengths())) if len(array) else np.array([0])
            if len(lengths) > 1:
                found = f"lists of {lengths.min()} to {lengths.max()} values"
                raise DemonstrationError(f"column {name!r} is ragged ({found}): every row must have the same length")
            shape.append(int(lengths[0]))
            array = array.flatten()
        if is_text(array.type) and not pa.types.is_dictionary(array.type):
            array = array.dictionary_encode()
        words = array.dictionary if is_text(array.type) else None
        if missing := array.null_count + (0 if words is None else words.null_count):
            raise DemonstrationError(f"column {name!r} has {missing:,} missing values: fill or drop those rows")
        if words is None:
            return numbers(array).reshape(shape)
        _memory.check_fits(f"column {name!r}", (len(array) + len(words)) * 4 * longest_word(name, words))
        return np.array([*words.to_pylist(), ""], dtype=np.str_)[numbers(array.indices)].reshape(shape)
    except pa.ArrowException as error:
        raise DemonstrationError(f"column {name!r} cannot be decoded ({brief(error)}): write the file again") from error


def numbers(values: pa.Array) -> Array:
    """An array without missing values; avoids pyarrow's `to_numpy` for numbers, which imports pandas if installed."""
    is_number = pa.types.is_integer(values.type) or pa.types.is_floating(values.type)
    if len(values) and values.null_count == 0 and is_number:
        return np.from_dlpack(values)
    return np.asarray(values.to_numpy(zero_copy_only=False))


def as_arrow(values: Array) -> pa.Array:
    """A column of numbers or words, or of lists where a row holds several numbers."""
    if values.ndim == 1:
        return pa.array(values)
    rows = np.ascontiguousarray(values).reshape(len(values), -1)
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])


# --- HDF5

HDF5_EXTRA = "robot"
_COMPRESSED = {"compression": "gzip", "compression_opts": 4, "shuffle": True}
_WORTH_COMPRESSING = 1024  # bytes; below that, the filter's own description outweighs what it saves
_SMALL = 64 << 20  # bytes below which a data set may be as sparse as it likes
_EXPANSION = 1100  # decoded bytes for each stored byte: deflate cannot compress further


@contextmanager
def open_hdf5(path: Path, copy: io.BytesIO | None = None) -> Iterator[Any]:
    """The file for reading, or with `copy` a writable copy in memory; its links stay inside it."""
    h5py = require("h5py", extra=HDF5_EXTRA)
    with refuse_damage(path, "HDF5"):
        if copy is not None:
            copy.write(path.read_bytes())
        with h5py.File(path, "r") if copy is None else h5py.File(copy, "r+") as file:
            _check_links(file)
            yield file


def _check_links(file: Any) -> None:
    """Refuse links to other files first, since soft links could lead through them, then dangling soft links."""
    from h5py import ExternalLink, h5l

    names: list[bytes] = []
    file.id.links.visit(lambda name, info: None if info.type == h5l.TYPE_HARD else names.append(name), info=True)
    links = {name.decode(errors="surrogateescape"): file.get(name, getlink=True) for name in names}
    for name, link in links.items():
        if isinstance(link, ExternalLink):
            raise DemonstrationError(
                f"{brief(name)} is a link to another file, which is not followed: copy its target into this file with "
                "h5copy"
            )
    for name, link in links.items():
        found = None
        with suppress(RuntimeError):  # HDF5 follows at most 16 links in a row and takes longer chains for a cycle
            found = file.get(name)
        if found is None:
            where = "which is not in the file, or leads in a circle"
            raise DemonstrationError(f"{brief(name)} is a link to {brief(link.path)}, {where}: remove the link")


def is_group(item: Any) -> bool:
    """Whether an item is a group, which has members."""
    return hasattr(item, "keys")


def is_data_set(item: Any) -> bool:
    """Whether an item is a data set that is not empty."""
    return hasattr(item, "chunks") and item.shape is not None


def read_hdf5(item: Any, place: str) -> Array:
    """All values of a data set: numbers as stored, text decoded."""
    from h5py import check_string_dtype

    _check_readable(item, place)
    if check_string_dtype(item.dtype) is None:
        if item.dtype.kind == "O":
            raise DemonstrationError(
                f"{brief(place)} holds {item.dtype}: it must hold numbers, or one word in each row"
            )
        return np.asarray(item[()])
    # No word is longer than the file, so this many rows fit in memory whatever they hold.
    rows = max(1, _memory.available_bytes() // (8 * max(1, item.file.id.get_filesize())))
    text, kept = item.asstr("utf-8"), dict[str, str]()
    try:
        parts = (text[first : first + rows] for first in range(0, len(item), rows)) if item.ndim else [text[()]]
        words = [kept.setdefault(word, word) for part in parts for word in np.ravel(part)]
    except UnicodeDecodeError as error:
        raise DemonstrationError(f"{brief(place)} is not text in UTF-8: write it again, encoded so") from error
    _memory.check_fits(brief(place), len(words) * 4 * max(map(len, kept), default=1))
    return np.array(words, dtype=np.str_).reshape(item.shape)


def _check_readable(item: Any, place: str) -> None:
    """Refuse a data set that is stored elsewhere, or that declares more than the file can hold."""
    if item.external or item.is_virtual:
        where = "keeps its numbers in another file" if item.external else "is a virtual data set"
        raise DemonstrationError(f"{brief(place)} {where}, which is not read: put them into this file with h5repack")
    declared, stored = decoded_bytes(item), item.id.get_storage_size()
    _memory.check_fits(brief(place), declared)
    if declared > max(_SMALL, _EXPANSION * stored):
        raise DemonstrationError(
            f"{brief(place)} declares {math.prod(item.shape):,} values but the file stores {stored:,} bytes of them, "
            f"more than {_EXPANSION:,} times as much: write it again with the rows that exist"
        )


def decoded_bytes(item: Any) -> int:
    """The size of a data set once decoded; a chunk larger than the data set is decoded whole."""
    width = item.dtype.itemsize * (4 if item.dtype.kind == "S" else 1)
    return max(math.prod(item.shape), math.prod(item.chunks or (0,))) * width


def check_name(name: str) -> None:
    """Refuse a name that an HDF5 file cannot hold."""
    if name in ("", ".") or "/" in name or "\0" in name:
        raise DemonstrationError(f"{name!r} cannot name a part of an HDF5 file: rename it, without '/'")


@contextmanager
def new_hdf5(content: io.BytesIO | Path, **options: Any) -> Iterator[Any]:
    """A new file, in the version of the format that needs the least space for indices."""
    h5py = require("h5py", extra=HDF5_EXTRA)
    with h5py.File(content, "w", libver=("v110", "v110"), **options) as file:
        yield file


def write_columns(group: Any, columns: Mapping[str, Array]) -> None:
    """Write data sets to a group, text in UTF-8, compressed where that saves space."""
    for name, values in columns.items():
        stored = np.char.encode(values, "utf-8") if values.dtype.kind == "U" else values
        group.create_dataset(name, data=stored, **(_COMPRESSED if stored.nbytes >= _WORTH_COMPRESSING else {}))


# --- notes


def _are_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


_RULES = {
    "names": ("a list of strings", _are_words),
    "observations": ("a list of strings", _are_words),
    "absent": ("a list of strings", _are_words),
    "observation_shape": (
        "a list of whole numbers, zero or more",
        lambda value: isinstance(value, list) and value and all(map(_is_count, value)),
    ),
    "action_count": ("a whole number, zero or more", _is_count),
    "fps": ("a number of frames per second above zero", is_fps),
    "skills": ("an object of strings", lambda value: isinstance(value, dict) and _are_words([*value.values()])),
}
_SKILL_TYPE = re.compile(r"[<>|=]?(?P<kind>[biufU])(?P<size>\d{1,6})")


def notes_of(data: Demonstrations, **more: Any) -> dict[str, Any]:
    """The notes on demonstrations, as plain JSON values, with `more` for one format."""
    notes: dict[str, Any] = {
        "format": 1,
        "observation_shape": list(data.observations.shape[1:]),
        "names": list(data.names),
        "action_count": data.action_count,
        "skills": {name: values.dtype.str for name, values in data.skills.items()},
        "absent": [name for name in ("rewards", "terminals") if getattr(data, name) is None],
    }
    if data.encoding is not None:
        notes["encoding"] = runs.plain(data.encoding)
    if data.arrays:
        notes["arrays"] = runs.plain(data.arrays)
    if data.fps is not None:
        notes["fps"] = data.fps
    return notes | more


def read_notes(text: Any, place: str) -> dict[str, Any]:
    """The notes in a JSON text that our writer left; `place` is where it stands."""
    notes = parse_json(text)
    if not isinstance(notes, dict):
        found = f"the notes in {place} hold {brief(notes)}, which is not JSON of ours"
        raise DemonstrationError(f"{found}: they must be a JSON object")
    for name, (rule, holds) in _RULES.items():
        if name in notes and not holds(notes[name]):
            found = f"the notes on {name!r} in {place} hold {brief(notes[name])}"
            raise DemonstrationError(f"{found}: {name} must be {rule}; write it again")
    return notes


def schema_notes(schema: pa.Schema, path: Path) -> dict[str, Any]:
    """The notes in the metadata of an Arrow schema."""
    return read_notes((schema.metadata or {}).get(b"ileed", b"{}"), f"the metadata 'ileed' of {path}")


def noted_encoding(notes: Mapping[str, Any]) -> Encoding | None:
    """The noted encoding, if there is one."""
    try:
        found = runs.rebuilt(notes.get("encoding"), {"Encoding": Encoding, "Feature": Feature})
        return instance_of("it", found, Encoding | None, rule="an encoding is needed")
    except ValueError as error:
        raise DemonstrationError(f"the file's note on its encoding is damaged ({error}): write it again") from error


def noted_arrays(notes: Mapping[str, Any]) -> Arrays:
    """The noted names of observations; empty where these are a single array."""
    rule = "a list of names, shapes and types is needed"
    try:
        found = instance_of("it", runs.rebuilt(notes.get("arrays", []), {"NamedArray": NamedArray}), tuple, rule=rule)
        return tuple(instance_of("it", each, NamedArray, rule=rule) for each in found)
    except (ValueError, TypeError) as error:
        message = f"the file's note on its observations is damaged ({error}): write it again"
        raise DemonstrationError(message, code="note-damaged") from error


def shape_as_noted(observations: Array, notes: Mapping[str, Any], place: str) -> Array:
    """(step, ...) observations in the noted shape, from the (step, number) that the file holds."""
    shape, width = tuple(notes.get("observation_shape", observations.shape[1:])), math.prod(observations.shape[1:])
    if math.prod(shape) != width:
        found = f"observations have {width:,} numbers but by {place} their shape is {shape}"
        raise DemonstrationError(f"{found}: the product must be the number")
    return observations.reshape(len(observations), *shape)


def skills_as_noted(skills: Mapping[str, Array], notes: Mapping[str, Any]) -> dict[str, Array]:
    """The skill columns in their noted types."""
    found = dict(skills)
    for name in found.keys() & notes.get("skills", {}).keys():
        kind, values = notes["skills"][name], found[name]
        match, stored = _SKILL_TYPE.fullmatch(kind), f"stored as {values.dtype}: write the file again"
        if match is None or (match["kind"] == "U") != (values.dtype.kind == "U"):
            raise DemonstrationError(f"skill {name!r} is noted as of type {brief(kind)} and {stored}")
        _memory.check_fits(f"skill {name!r}", 4 * int(match["size"]) * len(values))
        found[name] = values.astype(kind)
    return found


def names_as_noted(labels: Sequence[str | int], notes: Mapping[str, Any]) -> tuple[str, ...]:
    """The names in their noted order, followed by those that another program has added since."""
    noted = notes.get("names", ())
    return tuple(dict.fromkeys([*noted, *map(str, labels)])) if noted else ()
