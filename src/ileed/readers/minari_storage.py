"""How Minari stores episodes: as groups of one HDF5 file, or as one Arrow or parquet file each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, final

import pyarrow as pa

from ileed.demonstrations import Array
from ileed.demonstrations.columns import is_text
from ileed.demonstrations.rules import listed
from ileed.errors import DemonstrationError, brief, refuse_damage
from ileed.readers import hdf5
from ileed.readers.folders import file_in, read_arrow, read_json
from ileed.readers.parquet import ParquetFile, as_numpy

MAIN = "main_data.hdf5"
_EPISODE = re.compile(r"episode_(\d{1,9})")


class Storage(Protocol):
    """The episodes of a data set by number; a place is a column, or an entry of a Dict such as `observations/goal`."""

    episodes: list[int]

    def places(self, episode: int) -> dict[str, bool]:
        """Every place of an episode, and whether it holds numbers."""

    def metadata(self, episode: int) -> dict[str, Any]:
        """What is known of an episode, by name; inner names as `options/level`."""

    def decoded_bytes(self, episode: int, places: Sequence[str]) -> int:
        """What these places take in memory."""

    def read(self, episode: int, places: Sequence[str]) -> dict[str, Array]:
        """The values of these places, (row, ...) each, without rows that only pad."""


@contextmanager
def open_storage(folder: Path, kind: object) -> Iterator[Storage]:
    """The storage in a folder, of the kind that its metadata.json states (`data_format`)."""
    if kind == "hdf5":
        file = file_in(folder, MAIN)
        with hdf5.open_file(file) as opened:
            yield _Hdf5(opened)
    elif kind in ("arrow", "parquet"):
        yield _Arrow(folder, str(kind))
    else:
        raise DemonstrationError(f"data_format is {brief(kind)} in {folder}: it must be 'hdf5', 'arrow' or 'parquet'")


@final
class _Hdf5:
    """A group for each episode, and its metadata as the group's attributes."""

    def __init__(self, file: Any) -> None:
        groups = {name: _EPISODE.fullmatch(name) for name, item in file.items() if hdf5.is_group(item)}
        self._groups = {int(match[1]): file[name] for name, match in groups.items() if match}
        self.episodes = sorted(self._groups)

    def places(self, episode: int) -> dict[str, bool]:
        found: dict[str, bool] = {}

        def note(name: str, item: Any) -> None:
            if hdf5.is_data_set(item):
                found[name] = item.dtype.kind in "biuf"

        self._groups[episode].visititems(note)  # visits each item once, whatever links to it
        return found

    def metadata(self, episode: int) -> dict[str, Any]:
        return dict(self._groups[episode].attrs)

    def _item(self, episode: int, place: str) -> Any:
        item = self._groups[episode].get(place)
        if not hdf5.is_data_set(item) or not item.ndim:
            found = listed(sorted(self._groups[episode]), most=12)
            raise DemonstrationError(f"episode {episode} has no rows of {place!r}: it has {found}")
        return item

    def decoded_bytes(self, episode: int, places: Sequence[str]) -> int:
        return sum(hdf5.decoded_bytes(self._item(episode, place)) for place in places)

    def read(self, episode: int, places: Sequence[str]) -> dict[str, Array]:
        found = {place: hdf5.read(self._item(episode, place), f"episode_{episode}/{place}") for place in places}
        return {place: _plain(values, episode, place) for place, values in found.items()}


@final
class _Arrow:
    """A folder for each episode with one file of its rows; the last row pads every column but observations."""

    def __init__(self, folder: Path, kind: str) -> None:
        self._folder, self._kind = folder, kind
        numbers = (item.name for item in folder.iterdir() if item.is_dir())
        self.episodes = sorted(int(name) for name in numbers if re.fullmatch(r"0|[1-9]\d{0,8}", name))

    def _file(self, episode: int) -> Path:
        inside = self._folder / str(episode)
        names = sorted(item.name for item in inside.iterdir() if item.suffix == f".{self._kind}")
        if len(names) != 1:
            raise DemonstrationError(f"{inside} has {len(names)} files of the kind {self._kind}: it must have one")
        return file_in(self._folder, str(episode), names[0])

    def _table(self, episode: int, places: Sequence[str] | None = None) -> pa.Table:
        file = self._file(episode)
        if self._kind == "arrow":
            table = read_arrow(file)
        else:
            opened = ParquetFile(file)
            wanted = {place.partition("/")[0] for place in places or opened.schema.names}
            table = opened.read([name for name in opened.schema.names if name in wanted])
        if len(set(table.column_names)) < len(table.column_names):
            raise DemonstrationError(f"{file} has two columns of one name: each must have its own")
        return table

    def places(self, episode: int) -> dict[str, bool]:
        return dict(_leaves(self._table(episode).schema))

    def metadata(self, episode: int) -> dict[str, Any]:
        return dict(_flatten(read_json(file_in(self._folder, str(episode), "metadata.json"))))

    def decoded_bytes(self, episode: int, places: Sequence[str]) -> int:
        return self._file(episode).stat().st_size

    def read(self, episode: int, places: Sequence[str]) -> dict[str, Array]:
        table, found = self._table(episode, places), {}
        with refuse_damage(self._file(episode), self._kind, pa.ArrowException):
            for place in places:
                values = _column(table, episode, place)
                found[place] = values if place.startswith(("observations", "infos")) else values[:-1]
        return found


def _leaves(fields: Any, before: str = "", depth: int = 0) -> Iterator[tuple[str, bool]]:
    """The place of every column that is no struct, and whether it holds numbers, in lists or alone."""
    for field in fields:
        kind = field.type
        if pa.types.is_struct(kind) and depth < 20:
            yield from _leaves(
                [kind.field(number) for number in range(kind.num_fields)], f"{before}{field.name}/", depth + 1
            )
            continue
        while isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
            kind = kind.value_type
        is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        yield f"{before}{field.name}", bool(is_number)


def _column(table: pa.Table, episode: int, place: str) -> Array:
    """(row, ...) numbers or words of a place in an episode's table."""
    first, *inner = place.split("/")
    if first not in table.column_names:
        raise DemonstrationError(f"episode {episode} has no {first!r}: it has {listed(table.column_names, most=12)}")
    array = table.column(first).combine_chunks()
    array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    for name in inner:
        if not pa.types.is_struct(array.type) or array.type.get_field_index(name) < 0:
            raise DemonstrationError(f"episode {episode} has no {place!r}: all episodes must have the same entries")
        array = array.field(name)
    if is_text(array.type) and not pa.types.is_dictionary(array.type):
        array = array.dictionary_encode()
    return _plain(as_numpy(place, pa.chunked_array([array])), episode, place)


def _plain(values: Array, episode: int, place: str) -> Array:
    """Numbers or words; what is neither is refused."""
    if values.dtype.kind not in "biufU":
        found = f"{place!r} of episode {episode} holds {values.dtype.name}"
        raise DemonstrationError(f"{found}: it must hold numbers, or words of a label")
    return values


def _flatten(values: Mapping[str, Any], before: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict) and depth < 20:
            yield from _flatten(value, f"{before}{name}/", depth + 1)
        else:
            yield f"{before}{name}", value
