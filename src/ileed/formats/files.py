"""Files as others made them, folders, JSON, Arrow and HDF5, and the notes that our writers leave in them.

Nothing is read from outside the data set, and a folder is written whole. In HDF5, external links, external storage and
virtual data sets would read any file of this machine as if it were data, so they are refused; and so is a data set of a
size that nothing was written for. docs/decisions/files.md has the rules. Notes keep what a format has no place for.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ileed import _memory, runs
from ileed.data import Array, Demonstrations, Encoding
from ileed.data.encoding import Arrays, Feature, NamedArray
from ileed.data.rules import is_fps
from ileed.errors import DemonstrationError, brief, instance_of, printable, refuse_damage, require
from ileed.runs.files import Ours, replace_folder

_LONGEST_JSON = 64 << 20  # bytes
_LIST = "_ileed_files.json"  # Arrow and Spark skip names that begin with an underscore


def file_in(folder: Path, *parts: str) -> Path:
    """A regular file of a folder; one that is absent, or a link that leads out of the folder, is refused."""
    file = folder.joinpath(*parts)
    if leads_out(file, folder):
        raise DemonstrationError(f"{_shown(file)} leads out of the data set, and is not followed: copy it there")
    if not file.is_file():
        raise DemonstrationError(f"{_shown(folder)} has no file {brief('/'.join(parts))}: copy the folder again, whole")
    return file


def leads_out(file: Path, folder: Path) -> bool:
    """Whether a file of a folder is a link out of it, and not to where the Hugging Face hub's cache keeps its files."""
    target, home = (Path(os.path.realpath(each)) for each in (file, folder))  # tolerates symlink cycles
    snapshot = next((each for each in (home, *home.parents) if each.parent.name == "snapshots"), None)
    places = [home, *([snapshot.parents[1] / "blobs"] if snapshot is not None else [])]
    return not any(target.is_relative_to(place) for place in places)


def read_json(file: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    with refuse_damage(file, "JSON"):
        if file.stat().st_size > _LONGEST_JSON:
            raise DemonstrationError(
                f"{_shown(file)} has more than {_LONGEST_JSON >> 20} MiB, too many for JSON: write it again"
            )
        found = json.loads(file.read_bytes())
    if not isinstance(found, dict):
        raise DemonstrationError(f"{_shown(file)} holds {brief(found)}: it must hold a JSON object")
    return found


def parse_json(text: Any) -> Any:
    """The value of a JSON text; what is no JSON, as it is."""
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return text


def read_arrow(file: Path) -> pa.Table:
    """All columns of an Arrow file, of the file format or the stream format, checked in full."""
    with refuse_damage(file, "Arrow", pa.ArrowException):
        _memory.check_fits(file, file.stat().st_size)
        table = arrow_reader(pa.BufferReader(file.read_bytes())).read_all()  # not mapped, see arrow_source
        table.validate(full=True)
        return table


def arrow_source(path: Path) -> pa.OSFile:
    """A file as Arrow reads it, by a name that need not be UTF-8."""
    return pa.OSFile(os.fsencode(path))  # not mapped: a mapped file that is cut short ends the process


def arrow_reader(source: Any) -> Any:
    """A reader of record batches, of the file format or the stream format."""
    is_file = source.read(6) == b"ARROW1"
    source.seek(0)
    return (pa.ipc.open_file if is_file else pa.ipc.open_stream)(source)


@contextmanager
def write_folder(path: Path) -> Iterator[Path]:
    """Yield a folder to write to, which becomes `path` on success; a folder that holds anything is never replaced.

    The files are listed in the folder, so that `ileed.write(..., overwrite=True)` can tell them from others.
    """
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        rule = "data sets are not replaced: remove it, or choose another place"
        raise DemonstrationError(f"{_shown(path)} is there already, and {rule}")
    with replace_folder(path) as partial:
        yield partial
        files = sorted(str(file.relative_to(partial)) for file in partial.rglob("*") if file.is_file())
        (partial / _LIST).write_text(json.dumps({"files": [_LIST, *files]}, indent=1) + "\n")


def _listed_files(folder: Path) -> list[str]:
    """The files that a folder says we wrote; none if it has no such list."""
    try:
        files = json.loads((folder / _LIST).read_bytes())["files"]
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return []
    return [name for name in files if isinstance(name, str)] if isinstance(files, list) else []


DATA_SET = Ours(_LIST, _listed_files)
"""The files of a data set that we wrote as a folder."""


def _shown(path: Path) -> str:
    return printable(str(path), 300)


# --- HDF5

HDF5_EXTRA = "robot"
_COMPRESSED = {"compression": "gzip", "compression_opts": 4, "shuffle": True}
_WORTH_COMPRESSING = 1024  # bytes; below that, what describes the compression outweighs what it saves
_SMALL = 64 << 20  # bytes below which a data set may be as sparse as it likes
_EXPANSION = 1100  # decoded bytes for one that is stored: deflate itself cannot compress further


@contextmanager
def open_hdf5(path: Path, copy: io.BytesIO | None = None) -> Iterator[Any]:
    """The file to read; or, with `copy`, a copy of it in memory to change. Its links stay inside it."""
    h5py = require("h5py", extra=HDF5_EXTRA)
    with refuse_damage(path, "HDF5"):
        if copy is not None:
            copy.write(path.read_bytes())
        with h5py.File(path, "r") if copy is None else h5py.File(copy, "r+") as file:
            _check_links(file)
            yield file


def _check_links(file: Any) -> None:
    """Refuse links to other files, which soft links could lead through, and then soft links that lead nowhere."""
    from h5py import ExternalLink, h5l

    names: list[bytes] = []
    file.id.links.visit(lambda name, info: None if info.type == h5l.TYPE_HARD else names.append(name), info=True)
    links = {name.decode(errors="surrogateescape"): file.get(name, getlink=True) for name in names}
    for name, link in links.items():
        if isinstance(link, ExternalLink):
            raise DemonstrationError(
                f"{brief(name)} is a link to another file, which is not followed: h5copy puts its target into the file"
            )
    for name, link in links.items():
        found = None
        with suppress(RuntimeError):  # HDF5 follows 16 links one after another, and takes more for a circle
            found = file.get(name)
        if found is None:
            where = "which is not in the file, or leads in a circle"
            raise DemonstrationError(f"{brief(name)} is a link to {brief(link.path)}, {where}: remove the link")


def is_group(item: Any) -> bool:
    """Whether this is a group, of which members can be asked for."""
    return hasattr(item, "keys")


def is_data_set(item: Any) -> bool:
    """Whether this is a data set that holds one value or more."""
    return hasattr(item, "chunks") and item.shape is not None


def read_hdf5(item: Any, place: str) -> Array:
    """All values of a data set: numbers as they are, text decoded."""
    from h5py import check_string_dtype

    _check_readable(item, place)
    if check_string_dtype(item.dtype) is None:
        if item.dtype.kind == "O":
            raise DemonstrationError(
                f"{brief(place)} holds {item.dtype}: it must hold numbers, or one word in each row"
            )
        return np.asarray(item[()])
    # No word is longer than the file, so that so many rows at a time fit whatever they hold.
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
    """Refuse a data set whose numbers lie elsewhere, or that declares more than the file can hold."""
    if item.external or item.is_virtual:
        where = "keeps its numbers in another file" if item.external else "is a virtual data set"
        raise DemonstrationError(f"{brief(place)} {where}, which is not read: h5repack puts them into the file")
    declared, stored = decoded_bytes(item), item.id.get_storage_size()
    _memory.check_fits(brief(place), declared)
    if declared > max(_SMALL, _EXPANSION * stored):
        raise DemonstrationError(
            f"{brief(place)} declares {math.prod(item.shape):,} values but the file stores {stored:,} bytes of them: "
            f"it may declare {_EXPANSION:,} times as much; write it again, with the rows that there are"
        )


def decoded_bytes(item: Any) -> int:
    """What a data set takes once decoded; a chunk that is larger than the data set is decoded whole."""
    width = item.dtype.itemsize * (4 if item.dtype.kind == "S" else 1)
    return max(math.prod(item.shape), math.prod(item.chunks or (0,))) * width


def check_name(name: str) -> None:
    """Refuse a name that cannot be that of a part of an HDF5 file."""
    if name in ("", ".") or "/" in name or "\0" in name:
        raise DemonstrationError(f"{name!r} cannot name a part of an HDF5 file: rename it, without '/'")


@contextmanager
def new_hdf5(content: io.BytesIO | Path, **options: Any) -> Iterator[Any]:
    """A new file to write, in the version of the format that needs least space for indices."""
    h5py = require("h5py", extra=HDF5_EXTRA)
    with h5py.File(content, "w", libver=("v110", "v110"), **options) as file:
        yield file


def write_columns(group: Any, columns: Mapping[str, Array]) -> None:
    """Write data sets to a group, text in UTF-8, compressed where that saves space."""
    for name, values in columns.items():
        stored = np.char.encode(values, "utf-8") if values.dtype.kind == "U" else values
        group.create_dataset(name, data=stored, **(_COMPRESSED if stored.nbytes >= _WORTH_COMPRESSING else {}))


# --- notes

_LABEL_TYPE = re.compile(r"[<>|=]?(?P<kind>[biufU])(?P<size>\d{1,6})")


def _are_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


_RULES = {
    "names": ("a list of strings", _are_words),
    "observations": ("a list of strings", _are_words),
    "observation_shape": (
        "a list of whole numbers, zero or more",
        lambda value: isinstance(value, list) and value and all(map(_is_count, value)),
    ),
    "action_count": ("a whole number, zero or more", _is_count),
    "fps": ("a number of frames per second above zero", is_fps),
    "skills": ("an object of strings", lambda value: isinstance(value, dict) and _are_words([*value.values()])),
}


def notes_of(data: Demonstrations, **more: Any) -> dict[str, Any]:
    """The notes on demonstrations, as plain JSON values; `more` are those of one format."""
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
    """The notes that our writer left in a place, from their JSON."""
    notes = parse_json(text)
    if not isinstance(notes, dict):
        found = f"the notes in {place} hold {brief(notes)}, which is not JSON of ours"
        raise DemonstrationError(f"{found}: they must be a JSON object")
    for name, (rule, holds) in _RULES.items():
        if name in notes and not holds(notes[name]):
            found = f"the notes on {name!r} in {place} hold {brief(notes[name])}"
            raise DemonstrationError(f"{found}: {name} must be {rule}; write it again")
    return notes


def schema_notes(metadata: Mapping[bytes, bytes] | None, path: Any) -> dict[str, Any]:
    """The notes in the metadata of an Arrow schema."""
    return read_notes((metadata or {}).get(b"ileed", b"{}"), f"the metadata 'ileed' of {path}")


def noted_encoding(notes: Mapping[str, Any]) -> Encoding | None:
    """The encoding that our writer noted, or None."""
    try:
        found = runs.rebuilt(notes.get("encoding"), {"Encoding": Encoding, "Feature": Feature})
        return instance_of("it", found, Encoding | None, rule="an encoding is needed")
    except ValueError as error:
        raise DemonstrationError(f"the file's note on its encoding is damaged ({error}): write it again") from error


def noted_arrays(notes: Mapping[str, Any]) -> Arrays:
    """The named observations that our writer noted; none where observations have no names."""
    rule = "a list of names, shapes and types is needed"
    try:
        found = instance_of("it", runs.rebuilt(notes.get("arrays", []), {"NamedArray": NamedArray}), tuple, rule=rule)
        return tuple(instance_of("it", each, NamedArray, rule=rule) for each in found)
    except (ValueError, TypeError) as error:
        message = f"the file's note on its observations is damaged ({error}): write it again"
        raise DemonstrationError(message, code="note-damaged") from error


def shape_as_noted(observations: Array, notes: Mapping[str, Any], place: Any) -> Array:
    """(step, ...) observations in the shape that our writer noted, from the (step, number) that the file holds."""
    shape, width = tuple(notes.get("observation_shape", observations.shape[1:])), math.prod(observations.shape[1:])
    if math.prod(shape) != width:
        found = f"observations have {width:,} numbers but by {place} their shape is {shape}"
        raise DemonstrationError(f"{found}: the product must be the number")
    return observations.reshape(len(observations), *shape)


def skills_as_noted(skills: Mapping[str, Array], notes: Mapping[str, Any]) -> dict[str, Array]:
    """The skill columns in the types that our writer noted, where it noted any."""
    found = dict(skills)
    for name in found.keys() & notes.get("skills", {}).keys():
        kind, values = notes["skills"][name], found[name]
        match, stored = _LABEL_TYPE.fullmatch(kind), f"stored as {values.dtype}: write the file again"
        if match is None or (match["kind"] == "U") != (values.dtype.kind == "U"):
            raise DemonstrationError(f"skill {name!r} is noted as of type {brief(kind)} and {stored}")
        _memory.check_fits(f"skill {name!r}", 4 * int(match["size"]) * len(values))
        found[name] = values.astype(kind)
    return found


def names_as_noted(labels: Sequence[str | int], notes: Mapping[str, Any]) -> tuple[str, ...]:
    """The names in the order that our writer noted, and after them those that another program has added since."""
    noted = notes.get("names", ())
    return tuple(dict.fromkeys([*noted, *map(str, labels)])) if noted else ()


def is_absent(name: str, notes: Mapping[str, Any]) -> bool:
    """Whether our writer filled in a column that a format demands and the data lack."""
    absent = notes.get("absent", [])
    return isinstance(absent, list) and name in absent


def plain_label(value: Any) -> str | int | None:
    """A value as the label of a demonstrator: a name or a whole number; None for anything else."""
    plain = value.item() if isinstance(value, np.generic) else value
    return plain if isinstance(plain, str) or (isinstance(plain, int) and not isinstance(plain, bool)) else None
