"""Folders of parquet or Arrow files of our schema, read block by block into mapped columns: data larger than memory.

The columns are those of `ileed.formats.parquet`, in files `NAME.parquet`, `NAME.arrow` or `NAME.feather` in the folder
itself. Files are read in the order of their names, and an episode may continue in the next file. All files must agree
on the shape and encoding in their metadata `ileed`. The folder is never written to.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ileed.data import Array, Demonstrations, Source, rules
from ileed.data.columns import is_list, is_text
from ileed.data.source import ColumnFile, Store
from ileed.errors import DemonstrationError, callable_or_none, number, path_of, refuse_damage, whole_number
from ileed.formats import files
from ileed.formats.core import AbstractFormat, Labeller, Option
from ileed.formats.parquet import SKILL, WIDTH, columns_to_read, kept_columns, write_parquet

_SUFFIXES = (".parquet", ".arrow", ".feather")
_LEAST_GIB, _MOST_GIB = 0.01, 1_000_000
MEMORY_GIB = 2.0
STEPS_OF_A_FILE = 1 << 20


def read_parts(
    path: str | Path,
    *,
    demonstrator: Labeller | None = None,
    memory_gib: float | None = None,
    cache: str | Path | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Demonstrations:
    """Demonstrations from a folder of parquet or Arrow files; they may be larger than memory.

    The files are read once, checked block by block by the rules of `Demonstrations`, and kept as mapped columns in
    files without a name in `cache`, the system's temporary folder by default, which take as much space as the columns
    decoded and are gone with the process. `memory_gib`, 2 by default, bounds the memory of blocks and of tables of
    counts; networks, batches and the interpreter come on top. `progress` is called with the number of bytes read, of
    the files as they are on disk, and their total.
    """
    callable_or_none("progress", progress, rule="pass a function of the number done and the total, or None")
    rule = f"pass a number of GiB, from {_LEAST_GIB} to {_MOST_GIB:,}"
    memory_gib = MEMORY_GIB if memory_gib is None else memory_gib
    memory_gib = number("memory_gib", memory_gib, least=_LEAST_GIB, most=_MOST_GIB, rule=rule)
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


def write_parts(data: Demonstrations, path: str | Path, *, steps_of_a_file: int = STEPS_OF_A_FILE) -> None:
    """Write demonstrations as a folder of parquet files of so many steps each, whole or not at all."""
    rule = "a file has a whole number of steps, one or more"
    steps_of_a_file = whole_number("steps_of_a_file", steps_of_a_file, least=1, rule=rule)
    with files.write_folder(path_of("path", path, error=DemonstrationError)) as partial:
        for number_, first in enumerate(range(0, len(data), steps_of_a_file)):
            write_parquet(data, partial / f"part-{number_:05}.parquet", steps=slice(first, first + steps_of_a_file))


def _files(folder: Path) -> list[Path]:
    found = sorted(file for file in folder.iterdir() if file.suffix.lower() in _SUFFIXES and file.name[0] not in "._")
    if out := next((file for file in found if files.leads_out(file, folder)), None):
        raise DemonstrationError(f"{out} leads out of the data set, and is not followed: copy it there")
    if not found:
        raise DemonstrationError(f"{folder} has no files {', '.join(_SUFFIXES)}: check the path")
    return found


@final
class _Part:
    """A file of the folder: its columns, notes and rows."""

    def __init__(self, path: Path, demonstrator: Labeller | None) -> None:
        self.path, self.is_parquet, self.bytes = path, path.suffix.lower() == ".parquet", path.stat().st_size
        with refuse_damage(path, self._kind, pa.ArrowException):
            source = files.arrow_source(path)
            schema = pq.read_schema(source) if self.is_parquet else files.arrow_reader(source).schema
        self.notes = files.schema_notes(schema.metadata, path)
        self.wanted, self.who = columns_to_read(path, schema.names, demonstrator, self.notes)
        self.types = {name: _plain(schema.field(name).type) for name in self.wanted}
        self.words = [name for name in self.wanted if is_text(schema.field(name).type)]

    @property
    def _kind(self) -> str:
        return "parquet" if self.is_parquet else "Arrow"

    def blocks(self, store: Store) -> Iterator[tuple[int, pa.Table, float]]:
        """The first row of each block, the block, checked, and the share of the file that is read with it."""
        first, names = 0, list(self.wanted)
        with refuse_damage(self.path, self._kind, pa.ArrowException):
            batches = self._parquet_batches(names, store) if self.is_parquet else self._arrow_batches(names, store)
            for batch, share in batches:
                table = pa.table(batch)
                table.validate(full=True)
                for name in self.words:
                    if not pa.types.is_dictionary(table.schema.field(name).type):
                        place = table.column_names.index(name)
                        table = table.set_column(place, name, table.column(name).dictionary_encode())
                if len(table):
                    yield first, table, share
                first += len(table)

    def _parquet_batches(self, names: list[str], store: Store) -> Iterator[tuple[pa.RecordBatch, float]]:
        source = files.arrow_source(self.path)
        with source, pq.ParquetFile(source, read_dictionary=self.words, pre_buffer=False) as file:
            rows = store.rows_at_once(_row_bytes(file.metadata))
            done = 0
            for batch in file.iter_batches(rows, columns=names, use_threads=False):
                done += len(batch)
                yield batch, min(1.0, done / max(1, file.metadata.num_rows))

    def _arrow_batches(self, names: list[str], store: Store) -> Iterator[tuple[pa.RecordBatch, float]]:
        """A record batch is read whole, and cut. A stream does not say how many there are, but where it stands."""
        source = files.arrow_source(self.path)
        reader = files.arrow_reader(source)
        count = getattr(reader, "num_record_batches", None)
        batches = reader if count is None else map(reader.get_batch, range(count))
        before = 0.0
        for number_, batch in enumerate(batches, 1):
            after = source.tell() / max(1, self.bytes) if count is None else number_ / count
            rows = store.rows_at_once(batch.nbytes // max(1, len(batch)))
            chosen = batch.select(names)
            for first in range(0, len(chosen), rows):
                part = chosen.slice(first, rows)
                yield part, before + (after - before) * (first + len(part)) / len(chosen)
            before = after


def _plain(kind: pa.DataType) -> pa.DataType:
    """A type as all files must have it: lists of whatever length, words in whatever form."""
    if is_text(kind):
        return pa.string()
    return pa.list_(_plain(kind.value_type)) if is_list(kind) else kind


def _row_bytes(footer: Any) -> int:
    """About how many bytes a row takes once decoded, by what the footer states."""
    total, rows = 0, max(1, footer.num_rows)
    for group in map(footer.row_group, range(footer.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            total += max(0, column.num_values) * WIDTH.get(column.physical_type, 16)
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
    """The columns of a folder as they are read: written block by block, and what all blocks say together."""

    def __init__(self, store: Store, parts: Sequence[_Part]) -> None:
        for other in parts[1:]:
            _check_alike(parts[0], other)
        self._store, self._rows, self._episodes = store, 0, 0
        self._notes, self._action_count = parts[0].notes, max(part.notes.get("action_count", 0) for part in parts)
        named = [part.notes.get("names", []) for part in parts]
        alike = parts[0].who == "demonstrator" and all(names == named[0] for names in named)
        self._noted_names = tuple(named[0]) if alike else ()  # those of files that differ stand in no order
        self._files: dict[str, ColumnFile] = {}
        self._kinds: dict[str, tuple[np.dtype, tuple[int, ...]]] = {}
        self._demonstrators = {name: place for place, name in enumerate(self._noted_names)}
        self._texts: dict[str, dict[str, int]] = {}
        self._numbered = False
        self._labels: list[Array] = []
        self._label_files: list[Path] = []  # in which each array of labels was read
        self._last: tuple[Any, str] | None = None
        self._taken = np.empty(0, dtype=np.int64)

    def append(self, table: pa.Table, part: _Part, first: int) -> None:
        """Check a block of a file, and write its columns."""
        try:
            values = kept_columns(table, part.who, part.notes, part.path)
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
        for name in ("observations", "actions", "rewards", "terminals", "legal", "episode_number", "timestamps"):
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
        """A skill column with numbers for text, whose longest is known when all of it was read."""
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
        """Everything that was read from the source."""
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
        """The label of every episode, after a check that each stands together."""
        labels = np.concatenate(self._labels)
        _, first, index = np.unique(labels, return_index=True, return_inverse=True)
        if len(again := np.flatnonzero(first[index] != np.arange(len(labels)))):
            ends = np.cumsum([len(each) for each in self._labels])
            one, other = (
                self._label_files[np.searchsorted(ends, at, "right")] for at in (first[index][again[0]], again[0])
            )
            found = f"episode {labels[again[0]]} is interrupted by other steps"
            if one == other:
                raise DemonstrationError(f"{found} in {one}: sort the steps by episode and time")
            raise DemonstrationError(
                f"{found}, in {one.name} and again in {other.name}: number the episodes of a folder through all its "
                "files, or, if this is one episode, sort the steps by episode and time"
            )
        return labels

    def _names(self) -> tuple[tuple[str, ...], Array]:
        """The names in the order in which `Demonstrations` puts them, and where each that was found stands."""
        if self._noted_names:
            return self._noted_names, np.arange(len(self._noted_names))
        names = sorted(self._demonstrators, key=int) if self._numbered else sorted(self._demonstrators)
        index = {name: place for place, name in enumerate(names)}
        return tuple(names), np.array([index[name] for name in self._demonstrators])


@final
class _Parts(AbstractFormat):
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


FORMAT = _Parts()
