"""Parquet files, and folders of parquet or Arrow files, of our own schema: one row for each step, read back exactly.

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

A folder holds files `NAME.parquet`, `NAME.arrow` or `NAME.feather`, which are read in the order of their names, block
by block, into memory-mapped columns, so that the data may be larger than memory. An episode may continue in the next
file. All files must agree on the shape and encoding of observations.
"""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ileed import runs
from ileed.data import Array, Demonstrations, Source, rules
from ileed.data.columns import is_list, is_text
from ileed.data.source import ColumnFile, Store
from ileed.errors import DemonstrationError, callable_or_none, number, path_of, refuse_damage, whole_number
from ileed.formats import core, files
from ileed.formats.core import AbstractFormat, Labeller, Option, by_column

_NEEDED = {"observation": "observations", "action": "actions", "demonstrator": "demonstrator", "episode": "episode"}
_OPTIONAL = {
    "reward": "rewards",
    "terminal": "terminals",
    "legal": "legal",
    "episode_number": "episode_number",
    "timestamp": "timestamps",
}
_COLUMNS = _NEEDED | _OPTIONAL  # as Demonstrations calls them
SKILL = "skill."
_SUFFIXES = (".parquet", ".arrow", ".feather")
_MEMORY_GIB = 2.0
_STEPS_OF_A_FILE = 1 << 20


def write_parquet(data: Demonstrations, path: str | Path, *, steps: slice = slice(None)) -> None:
    """Write demonstrations, or some of their steps, as one parquet file, completely or not at all."""
    kept = {column: getattr(data, name) for column, name in _COLUMNS.items()}
    kept |= {SKILL + name: values for name, values in data.skills.items()}
    written = {column: files.as_arrow(values[steps]) for column, values in kept.items() if values is not None}
    who = data.demonstrator[steps].astype(np.int32)
    written["demonstrator"] = pa.DictionaryArray.from_arrays(who, list(data.names))
    table = pa.table(written).replace_schema_metadata({"ileed": json.dumps(files.notes_of(data))})
    content = io.BytesIO()
    pq.write_table(table, content, compression="zstd", compression_level=9)
    runs.write_file(path_of("path", path, error=DemonstrationError), content.getvalue())


def read_parquet(path: str | Path, *, demonstrator: Labeller | None = None) -> Demonstrations:
    """Read demonstrations from a parquet file of our schema; `by_column` names another column of the demonstrator."""
    path = path_of("path", path, error=DemonstrationError)
    source = Source.of(path, read_parquet, demonstrator=demonstrator)
    file = files.ParquetFile(path)
    notes = files.schema_notes(file.schema, path)
    wanted, who = _columns_to_read(path, file.schema.names, demonstrator, notes)
    table = file.read(wanted)
    if not len(table):
        raise DemonstrationError(f"there are no steps in {path}: at least one is needed")
    return Demonstrations(
        **_values(table, who, notes, path),
        names=notes.get("names", ()) if who == "demonstrator" else (),  # the notes are on our own column
        action_count=notes.get("action_count", 0),
        encoding=files.noted_encoding(notes),
        fps=notes.get("fps"),
        source=source,
    )


def _columns_to_read(
    path: Path, present: Sequence[str], demonstrator: Labeller | None, notes: Mapping[str, Any]
) -> tuple[tuple[str, ...], str]:
    """The columns of our schema that are present, and the one that names the demonstrator.

    A column `timestamp` is ours where the notes state `fps`, and otherwise one of the user's own.
    """
    core.check_lookup(demonstrator, by_column, title="parquet files")
    who = "demonstrator" if demonstrator is None else str(demonstrator.place)
    if "observation" not in present:
        raise core.flat_table(path, present)
    needed = [name for name in _NEEDED if name != "demonstrator"]
    files.check_there(path, "column", needed, present)
    other = "; rename it, or name another with by_column(...) (at the command: --demonstrator COLUMN)"
    files.check_there(path, "column", [who], present, hint=other)
    ours = {*needed, who, *_OPTIONAL} - ({"timestamp"} if notes.get("fps") is None else set())
    wanted = [name for name in dict.fromkeys(present) if name in ours or name.startswith(SKILL)]
    if repeated := next((name for name in wanted if present.count(name) > 1), None):
        raise DemonstrationError(f"{path} has {present.count(repeated)} columns {repeated!r}: keep one of them")
    return tuple(wanted), who


def _values(table: pa.Table, who: str, notes: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The columns of a table as `Demonstrations` calls them."""
    values = {name: files.as_numpy(name, table.column(name)) for name in table.column_names}
    kept: dict[str, Any] = {name: values[column] for column, name in _COLUMNS.items() if column in values}
    kept |= {
        "demonstrator": values[who],
        "observations": files.shape_as_noted(values["observation"], notes, f"the metadata 'ileed' of {path}"),
        "arrays": files.noted_arrays(notes),
        "skills": {name.removeprefix(SKILL): values[name] for name in values if name.startswith(SKILL)},
    }
    return kept


# --- folders


def read_parts(
    path: str | Path,
    *,
    demonstrator: Labeller | None = None,
    memory_gib: float | None = None,
    cache: str | Path | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Demonstrations:
    """Read demonstrations from a folder of parquet or Arrow files; they may be larger than memory.

    Args:
        path: The folder, which is never written to.
        demonstrator: `by_column(...)` for another column than `demonstrator`.
        memory_gib: The memory for blocks and tables of counts, 2 by default; networks, batches and the interpreter
            come on top.
        cache: A folder for the decoded columns, by default the system's temporary folder. They are kept in unnamed
            files, which take as much space as the columns and are gone with the process.
        progress: Called with the number of bytes read, of the files as they are on disk, and their total.
    """
    callable_or_none("progress", progress, rule="pass a function of the number done and the total, or None")
    memory_gib = _MEMORY_GIB if memory_gib is None else memory_gib
    rule = "pass a number of GiB, from 0.01 to 1,000,000"
    memory_gib = number("memory_gib", memory_gib, least=0.01, most=1_000_000, rule=rule)
    folder = tempfile.gettempdir() if cache is None else cache
    folder = path_of("cache", folder, rule="pass the path of a folder", error=DemonstrationError)
    if not folder.is_dir():
        raise DemonstrationError(f"there is no folder {folder} to keep columns in: make it, or choose another")
    store = Store(folder, int(memory_gib * 2**30))
    path = path_of("path", path, error=DemonstrationError)
    source = Source.of(path, read_parts, demonstrator=demonstrator, memory_gib=memory_gib, cache=cache)
    parts = [_Part(file, demonstrator) for file in _files(path)]
    columns = _Columns(store, parts)
    done, total, tell = 0, sum(part.bytes for part in parts), progress or (lambda done, total: None)
    for part in parts:
        for first, table, share in part.blocks(store):
            columns.append(table, part, first)
            tell(done + int(share * part.bytes), total)
        done += part.bytes
    tell(done, total)
    return columns.demonstrations(source)


def write_parts(data: Demonstrations, path: str | Path, *, steps_of_a_file: int = _STEPS_OF_A_FILE) -> None:
    """Write demonstrations as a folder of parquet files of `steps_of_a_file` each, completely or not at all."""
    rule = "a file has a whole number of steps, one or more"
    steps_of_a_file = whole_number("steps_of_a_file", steps_of_a_file, least=1, rule=rule)
    with files.write_folder(path_of("path", path, error=DemonstrationError)) as partial:
        for place, first in enumerate(range(0, len(data), steps_of_a_file)):
            write_parquet(data, partial / f"part-{place:05}.parquet", steps=slice(first, first + steps_of_a_file))


def _files(folder: Path) -> list[Path]:
    names = sorted(file.name for file in folder.iterdir() if file.suffix.lower() in _SUFFIXES)
    if not (kept := [name for name in names if name[0] not in "._"]):
        raise DemonstrationError(f"{folder} has no files {', '.join(_SUFFIXES)}: check the path")
    return [files.file_in(folder, name) for name in kept]


@final
class _Part:
    """A file of a folder: its schema and notes, and its rows in blocks."""

    def __init__(self, path: Path, demonstrator: Labeller | None) -> None:
        self.path, self.is_parquet, self.bytes = path, path.suffix.lower() == ".parquet", path.stat().st_size
        self._kind = "parquet" if self.is_parquet else "Arrow"
        with refuse_damage(path, self._kind, pa.ArrowException):
            source = files.arrow_source(path)
            schema = pq.read_schema(source) if self.is_parquet else files.arrow_reader(source).schema
        self.notes = files.schema_notes(schema, path)
        self.wanted, self.who = _columns_to_read(path, schema.names, demonstrator, self.notes)
        self.types = {name: _plain(schema.field(name).type) for name in self.wanted}
        self.words = [name for name in self.wanted if is_text(schema.field(name).type)]

    def blocks(self, store: Store) -> Iterator[tuple[int, pa.Table, float]]:
        """The first row of each block, the block, validated, and the share of the file read so far."""
        first = 0
        with refuse_damage(self.path, self._kind, pa.ArrowException):
            for batch, share in self._parquet_batches(store) if self.is_parquet else self._arrow_batches(store):
                table = pa.table(batch)
                table.validate(full=True)
                for name in self.words:
                    if not pa.types.is_dictionary(table.schema.field(name).type):
                        place = table.column_names.index(name)
                        table = table.set_column(place, name, table.column(name).dictionary_encode())
                if len(table):
                    yield first, table, share
                first += len(table)

    def _parquet_batches(self, store: Store) -> Iterator[tuple[pa.RecordBatch, float]]:
        source = files.arrow_source(self.path)
        with source, pq.ParquetFile(source, read_dictionary=self.words, pre_buffer=False) as file:
            done, total = 0, max(1, file.metadata.num_rows)
            rows = store.rows_at_once(_row_bytes(file.metadata))
            for batch in file.iter_batches(rows, columns=list(self.wanted), use_threads=False):
                done += len(batch)
                yield batch, min(1.0, done / total)

    def _arrow_batches(self, store: Store) -> Iterator[tuple[pa.RecordBatch, float]]:
        """Slices of the record batches, each of which is read whole; a stream only tells its position."""
        source = files.arrow_source(self.path)
        reader = files.arrow_reader(source)
        count = getattr(reader, "num_record_batches", None)
        batches = reader if count is None else map(reader.get_batch, range(count))
        before = 0.0
        for place, batch in enumerate(batches, 1):
            after = source.tell() / max(1, self.bytes) if count is None else place / count
            rows = store.rows_at_once(batch.nbytes // max(1, len(batch)))
            chosen = batch.select(list(self.wanted))
            for first in range(0, len(chosen), rows):
                part = chosen.slice(first, rows)
                yield part, before + (after - before) * (first + len(part)) / len(chosen)
            before = after


def _plain(kind: pa.DataType) -> pa.DataType:
    """A type as all files must have it: lists of any length, text in any form."""
    if is_text(kind):
        return pa.string()
    return pa.list_(_plain(kind.value_type)) if is_list(kind) else kind


def _row_bytes(footer: Any) -> int:
    """The approximate size of a decoded row, from the footer."""
    total, rows = 0, max(1, footer.num_rows)
    for group in map(footer.row_group, range(footer.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            total += max(0, column.num_values) * files.WIDTH.get(column.physical_type, 16)
    return int(min(total // rows + 1, 2**32))


def _check_alike(first: _Part, other: _Part) -> None:
    if differs := next(iter(first.types.items() ^ other.types.items()), None):
        found = f"column {differs[0]!r} is {first.types.get(differs[0], 'absent')} in {first.path.name} and "
        found += f"{other.types.get(differs[0], 'absent')} in {other.path.name}"
        raise DemonstrationError(f"{found}: give all files of a folder the same columns")
    for note in ("observation_shape", "encoding", "fps"):
        if first.notes.get(note) != other.notes.get(note):
            found = f"the notes on {note!r} differ between {first.path.name} and {other.path.name}"
            raise DemonstrationError(f"{found}: write all files of a folder alike")


@final
class _Columns:
    """The columns of a folder, written to the store block by block, and what all blocks have in common."""

    def __init__(self, store: Store, parts: Sequence[_Part]) -> None:
        for other in parts[1:]:
            _check_alike(parts[0], other)
        self._store, self._rows, self._episodes = store, 0, 0
        self._notes, self._action_count = parts[0].notes, max(part.notes.get("action_count", 0) for part in parts)
        named = [part.notes.get("names", []) for part in parts]
        alike = parts[0].who == "demonstrator" and all(names == named[0] for names in named)
        self._noted_names = tuple(named[0]) if alike else ()  # names that differ between files have no common order
        self._files: dict[str, ColumnFile] = {}
        self._kinds: dict[str, tuple[np.dtype, tuple[int, ...]]] = {}
        self._demonstrators = {name: place for place, name in enumerate(self._noted_names)}
        self._texts: dict[str, dict[str, int]] = {}
        self._numbered = False
        self._labels: list[Array] = []
        self._label_files: list[Path] = []  # in which each array of labels was read
        self._last: tuple[Any, str] | None = None  # the episode and demonstrator of the last step
        self._taken = np.empty(0, dtype=np.int64)

    def append(self, table: pa.Table, part: _Part, first: int) -> None:
        """Validate a block of a file, and write its columns."""
        try:
            values = _values(table, part.who, part.notes, part.path)
            width = np.shape(values["legal"])[-1] if "legal" in values else 0
            most = np.max(values["actions"], initial=1) if values["actions"].dtype.kind in "iu" else 1
            known: dict[str, Any] = {"action_count": max(width, int(most) + 1), "fps": part.notes.get("fps")}
            block = Demonstrations(**values, **known, names=self._noted_names)
            label, before = values["episode"][0], self._last
            continues = before is not None and before[0] == label
            if before and continues and before[1] != (who := block.names[block.demonstrator[0]]):
                rules.episode(np.array([label] * 2), np.array([0, 1]), (before[1], who))  # refuses it
        except DemonstrationError as error:
            rows = f"rows {first:,} to {first + len(table) - 1:,}"
            raise DemonstrationError(f"{part.path}, {rows}: {error}") from error
        if block.arrays != files.noted_arrays(self._notes):
            found = f"{part.path} has other observations than the files before it"
            raise DemonstrationError(f"{found}: write all files with the same arrays", code="observation-arrays")
        self._numbered = values["demonstrator"].dtype.kind in "iu"
        own = [self._demonstrators.setdefault(name, len(self._demonstrators)) for name in block.names]
        if block.discrete:
            self._taken = np.union1d(self._taken, block.actions)
        episode = block.episode + self._episodes - continues
        self._write("demonstrator", np.array(own)[block.demonstrator], part)
        self._write("episode", episode, part)
        for name in ("observations", "actions", *_OPTIONAL.values()):
            if (column := getattr(block, name)) is not None:
                self._write(name, column, part)
        for name, column in block.skills.items():
            self._write(SKILL + name, self._codes(name, column), part)
        starts = block.episode_bounds[:-1]
        self._labels.append(values["episode"][starts[1:] if continues else starts])
        self._label_files.append(part.path)
        self._last = (values["episode"][-1], block.names[block.demonstrator[-1]])
        self._episodes, self._rows = int(episode[-1]) + 1, self._rows + len(block)

    def _codes(self, name: str, column: Array) -> Array:
        """A skill column with codes for text, whose longest label is known only after the last block."""
        if column.dtype.kind != "U":
            return column
        known = self._texts.setdefault(name, {})
        found, index = np.unique(column, return_inverse=True)
        return np.array([known.setdefault(text, len(known)) for text in found.tolist()])[index]

    def _write(self, name: str, column: Array, part: _Part) -> None:
        kind = (column.dtype, column.shape[1:])
        if self._kinds.setdefault(name, kind) != kind:
            (dtype, shape), found = self._kinds[name], f"{name} are {kind[0]} of shape {kind[1]} in {part.path}"
            raise DemonstrationError(f"{found}, and {dtype} of {shape} before: give all rows the same shape")
        if name not in self._files:
            self._files[name] = ColumnFile(self._store)
        self._files[name].append(column)

    def demonstrations(self, source: Source) -> Demonstrations:
        """All blocks together."""
        if not self._rows:
            raise DemonstrationError("there are no steps: pass at least one observation")
        labels = self._checked_labels()
        columns: dict[str, Any] = {name: file.mapped(*self._kinds[name]) for name, file in self._files.items()}
        action_count = rules.action_count(self._taken, self._action_count) if len(self._taken) else 0
        if "legal" in columns and columns["legal"].shape[1] != action_count:
            rules.legal(columns["legal"][:1], columns["actions"][:1], action_count)
        names, place = self._names()
        store, who, episode = self._store, columns["demonstrator"], columns["episode"]
        if (place != np.arange(len(place))).any():
            columns["demonstrator"] = store.derived(who, lambda codes: place[codes])
        columns["source_episode"] = store.derived(episode, lambda numbers: labels[numbers])
        skills = [name.removeprefix(SKILL) for name in columns if name.startswith(SKILL)]
        columns["skills"] = {name: columns.pop(SKILL + name) for name in skills}
        for name, words in self._texts.items():
            columns["skills"][name] = store.derived(columns["skills"][name], np.array([*words]).__getitem__)
        notes = self._notes
        seen, acted = columns["observations"], columns["actions"]
        encoding = rules.optional(rules.encoding, files.noted_encoding(notes), seen, acted, action_count)
        known = {"encoding": encoding, "arrays": files.noted_arrays(notes), "fps": notes.get("fps"), "source": source}
        return Demonstrations(**columns, **known, names=names, action_count=action_count, store=store)

    def _checked_labels(self) -> Array:
        """The label of every episode; refuses one whose steps are interrupted by others."""
        labels = np.concatenate(self._labels)
        _, first, index = np.unique(labels, return_index=True, return_inverse=True)
        if len(again := np.flatnonzero(first[index] != np.arange(len(labels)))):
            ends = np.cumsum([len(each) for each in self._labels])
            at = np.searchsorted(ends, [first[index][again[0]], again[0]], "right")
            one, other = (self._label_files[place] for place in at.tolist())
            found = f"episode {labels[again[0]]} is interrupted by other steps"
            if one == other:
                raise DemonstrationError(f"{found} in {one}: sort the steps by episode and time")
            raise DemonstrationError(
                f"{found}, in {one.name} and again in {other.name}: number the episodes of a folder through all its "
                "files, or, if this is one episode, sort the steps by episode and time"
            )
        return labels

    def _names(self) -> tuple[tuple[str, ...], Array]:
        """The names in the order in which `Demonstrations` puts them, and the place of each code among them."""
        if self._noted_names:
            return self._noted_names, np.arange(len(self._noted_names))
        names = sorted(self._demonstrators, key=int) if self._numbered else sorted(self._demonstrators)
        index = {name: place for place, name in enumerate(names)}
        return tuple(names), np.array([index[name] for name in self._demonstrators])


@final
class _Parquet(AbstractFormat):
    name, suffixes, title = "parquet", (".parquet",), "parquet files"
    read, write = staticmethod(read_parquet), staticmethod(write_parquet)

    def columns(self, path: Path) -> Sequence[str]:
        return files.ParquetFile(path).schema.names


@final
class _Folder(AbstractFormat):
    name, suffixes, title = "parquet-folder", ("",), "folders of parquet or Arrow files"
    read, write = staticmethod(read_parts), staticmethod(write_parts)
    reading = (
        Option("memory_gib", float | None, "The memory, in GiB, for blocks and tables of counts; 2 by default."),
        Option("cache", Path | None, "The folder for decoded columns; the system's temporary folder by default."),
    )

    def columns(self, path: Path) -> Sequence[str]:
        return _Part(_files(path)[0], None).wanted

    def recognises(self, path: Path) -> bool:
        return path.is_dir() and any(file.suffix.lower() in _SUFFIXES for file in path.iterdir())


FORMAT, FOLDER = _Parquet(), _Folder()
