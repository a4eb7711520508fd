"""Minari's data sets: folders of HDF5, Arrow or parquet files, read and written without Minari itself.

`data/metadata.json` states the spaces and the storage. Each episode has observations (one more than actions), actions,
rewards, terminations, truncations and infos, and its own metadata, where users of Minari name the demonstrator.
docs/howto/formats.md says what our writer has to fill in.
"""

from __future__ import annotations

import io
import json
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa

from ileed import _memory
from ileed.data import Array, Demonstrations, Source
from ileed.data.columns import is_list
from ileed.data.encoding import join_parts
from ileed.data.rules import as_array, listed
from ileed.errors import DemonstrationError, brief, path_of, refuse_damage, whole_number
from ileed.formats import core, files
from ileed.formats.core import AbstractFormat, Candidate, Labeller, by_column, by_episode_metadata

DEMONSTRATOR = "demonstrator"
LEGAL, SKILL = "infos/legal", "infos/skill/"  # where our writer puts what Minari has no column for
TIMESTAMPS = "infos/timestamps"
_BOOKKEEPING = ("id", "total_steps", "seed")  # metadata of every episode that Minari itself writes
MAIN = "main_data.hdf5"
_EPISODE = re.compile(r"episode_(\d{1,9})")
_VERSION = "0.5.4"  # of Minari, whose storage this is
_IDENTIFIER = re.compile(r"[-_\w]+-v\d+", re.ASCII)
_OPTIONAL = {"rewards": "rewards", "terminations": "terminals"}
_LOOKUPS = (by_episode_metadata, by_column)


def read_minari(
    path: str | Path, *, demonstrator: Labeller | None = None, observations: Sequence[str] | None = None
) -> Demonstrations:
    """Read demonstrations from a folder of Minari, or from the folder `data` inside it.

    The observation after an episode's last action is left out, since no action was taken there. Discrete actions are
    numbered from zero, whatever the space starts from. Images in JPEG are not read.

    Args:
        path: The folder.
        demonstrator: `by_episode_metadata(...)` or `by_column(...)` for an entry of the episodes' metadata or infos, or
            `by_one(...)`; None takes the metadata `demonstrator`, as our writer saves it.
        observations: Entries of a Dict or Tuple to join in this order, inner ones as `goal/position`. None takes all
            that are numbers, in the order of their names, and warns of those it leaves out.
    """
    path = path_of("path", path, error=DemonstrationError)
    asked = core.observation_keys(observations)
    source = Source.of(path, read_minari, demonstrator=demonstrator, observations=asked)
    folder = _data_folder(path)
    with _opened(path) as (about, storage):
        notes = files.read_notes(about.get("ileed", "{}"), f"{folder / 'metadata.json'} under 'ileed'")
        space = _space(about, "action_space")
        if not storage.episodes:
            raise DemonstrationError(f"{folder} holds no episodes: choose a data set that has some")
        there = storage.places(storage.episodes[0])
        if "actions" not in there:
            kind = space.get("type", "missing")
            raise DemonstrationError(f"the actions of {path} are {brief(kind)}: they must be one array of numbers")
        names, labels = _who(storage, demonstrator, notes, folder)
        seen = _observation_places(folder, there, asked, about)
        ours = [name for name in there if notes and (name == LEGAL or name.startswith(SKILL))]
        ours += [TIMESTAMPS] if "fps" in notes and TIMESTAMPS in there else []
        kept = [name for name, to in _OPTIONAL.items() if name in there and to not in notes.get("absent", ())]
        wanted = [*seen, "actions", *ours, *kept]
        _memory.check_fits(folder, sum(storage.decoded_bytes(each, wanted) for each in storage.episodes))
        episodes = {each: storage.read(each, wanted) for each in storage.episodes}
    steps = [len(each["actions"]) for each in episodes.values()]
    columns = {name: _join(name, episodes) for name in wanted}
    observation_space, actions = _space(about, "observation_space"), _actions(columns["actions"], space)
    action_count = notes.get("action_count", space["n"] if space.get("type") == "Discrete" else 0)
    if seen == ["observations"]:
        shape, encoding = observation_space.get("shape"), files.noted_encoding(notes)
        joined: dict[str, Any] = {"observations": _reshape(columns["observations"], shape), "encoding": encoding}
        joined["arrays"] = files.noted_arrays(notes)
    else:
        parts = {name: _reshape(columns[name], _entry(observation_space, name).get("shape")) for name in seen}
        named = {name.removeprefix("observations/"): part for name, part in parts.items()}
        joined = core.join_observations(named, actions, {"action_count": action_count}, "")
    skills = {name.removeprefix(SKILL): columns[name] for name in ours if name.startswith(SKILL)}
    return Demonstrations(
        **joined,
        actions=actions,
        demonstrator=np.repeat(as_array("demonstrator", labels), steps),
        episode=np.repeat(np.arange(len(steps)), steps),
        source_episode=np.repeat([*episodes], steps),
        names=names,
        **{_OPTIONAL[name]: columns[name] for name in kept},
        legal=columns.get(LEGAL),
        skills=files.skills_as_noted(skills, notes),
        action_count=action_count,
        fps=notes.get("fps"),
        timestamps=columns.get(TIMESTAMPS),
        source=source,
    )


def _join(name: str, episodes: Mapping[int, Mapping[str, Array]]) -> Any:
    """A column of all episodes end to end, without the row after an episode's last action."""
    parts = {}
    for number, columns in episodes.items():
        rows, steps = len(columns[name]), len(columns["actions"])
        if rows not in (steps, steps + 1):
            found = f"episode {number} has {rows:,} {name} and {steps:,} actions"
            raise DemonstrationError(f"{found}: it must have as many of each, or one more", code="episode-lengths")
        parts[f"episode {number}"] = columns[name][:steps]
    return join_parts(repr(name), parts, len(episodes))


def _data_folder(path: Path) -> Path:
    """The folder with metadata.json: `data` inside a data set, or the path itself."""
    return path / "data" if (path / "data" / "metadata.json").exists() else path


# --- spaces, as Minari writes them


def _space(about: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A space of gymnasium as a JSON object; empty where the data set names an environment instead."""
    found = files.parse_json(about.get(name, "{}"))
    if not isinstance(found, dict):
        raise DemonstrationError(f"{name} is {brief(found)} in metadata.json: it must be a space in JSON")
    for entry in ("n", "start") if found.get("type") == "Discrete" else ():
        rule = "a Discrete space has a whole number there"
        found[entry] = whole_number(f"{entry!r} of {name}", found.get(entry, 0), rule=rule, error=DemonstrationError)
    return found


def _entry(space: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    """The space of an entry such as `observations/goal`; empty where it is not stated."""
    found: Any = space
    for name in place.split("/")[1:]:
        inner = found.get("subspaces") if isinstance(found, Mapping) else None
        if isinstance(inner, list):
            inner = {key: each for number, each in enumerate(inner) for key in (str(number), f"_index_{number}")}
        found = inner.get(name) if isinstance(inner, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _is_image(space: Mapping[str, Any]) -> bool:
    """Whether Minari takes a space for images, which it stores as JPEG unless `jpeg_encoding` is off."""
    shape: Any = space.get("shape")
    large = isinstance(shape, list) and len(shape) in (2, 3) and all(isinstance(each, int) for each in shape)
    if not large or space.get("dtype") != "uint8" or min(shape[:2]) < 32:
        return False
    with refuse_damage(Path("metadata.json"), "JSON"):
        low, high = (np.asarray(space.get(bound), dtype=np.float64) for bound in ("low", "high"))
        return bool((low == 0).all() and (high == 255).all())


def _observation_places(
    folder: Path, there: Mapping[str, bool], asked: Sequence[str] | None, about: Mapping[str, Any]
) -> list[str]:
    """The places of the observations to join, as `read_minari` says."""
    space, jpeg = _space(about, "observation_space"), about.get("jpeg_encoding", True) is not False
    inside = sorted(name for name in there if name.partition("/")[0] == "observations")
    images = [name for name in inside if _is_image(_entry(space, name))]
    encoder = "turn images into a column of features first, as docs/howto/images.md does"
    entries = [name.removeprefix("observations/") for name in inside]
    if not inside:
        raise DemonstrationError("the episodes have no observations: choose a data set that has some")
    if inside == ["observations"]:
        if asked is not None:
            raise DemonstrationError("observations are one array, without entries to name: leave `observations` out")
        if images and jpeg:
            raise DemonstrationError(f"the observations are images in JPEG, which are not read: {encoder}")
        return inside
    files.check_there(folder, "observation", asked or (), entries)
    usual = [name for name in inside if there[name] and name not in images]
    chosen = usual if asked is None else [f"observations/{name}" for name in asked]
    if not chosen or (jpeg and any(name in images for name in chosen)):
        raise DemonstrationError(
            f"the observations {listed(asked or entries)} are no numbers: {encoder}, or name others"
        )
    if asked is None and len(chosen) < len(inside):
        left = [name.removeprefix("observations/") for name in inside if name not in chosen]
        warnings.warn(f"observations that are no numbers are left out: {listed(left, most=12)}.", stacklevel=3)
    return chosen


# --- values


def _reshape(values: Array, shape: Any) -> Array:
    """(row, ...) observations in the shape that their space states; a single number becomes a row of one."""
    stated = tuple(shape) if isinstance(shape, list) and all(isinstance(each, int) for each in shape) else ()
    if stated and min(stated) > 0 and math.prod(stated) == math.prod(values.shape[1:]):
        return values.reshape(len(values), *stated)
    return values[:, None] if values.ndim == 1 else values


def _actions(values: Array, space: Mapping[str, Any]) -> Array:
    """(step,) discrete actions counted from zero, or (step, dimension) continuous ones."""
    if space.get("type") == "Discrete" and values.dtype.kind in "iu":
        return values.reshape(len(values), -1)[:, 0] - space["start"] if values.size else values
    if values.dtype.kind == "f":
        return values.reshape(len(values), math.prod(values.shape[1:]))
    return values


# --- who demonstrated


def _who(
    storage: _Hdf5 | _Arrow, labeller: Labeller | None, notes: Mapping[str, Any], folder: Path
) -> tuple[tuple[str, ...], list[str | int]]:
    """The noted order of names, and the label of each episode."""
    episodes = storage.episodes
    known = core.labels_of(labeller, [str(each) for each in episodes], *_LOOKUPS, title="Minari's data sets")
    if known is not None:
        return (), list(known)
    name = DEMONSTRATOR if labeller is None else str(labeller.place)
    found = {each: storage.metadata(each) for each in episodes}
    lacking = [each for each in episodes if name not in found[each]]
    if lacking and labeller is not None and f"infos/{name}" in storage.places(episodes[0]):
        lacking, found = [], {each: {name: _constant(storage, each, f"infos/{name}")} for each in episodes}
    if lacking:
        there = f"episode {lacking[0]} has {listed(sorted(found[lacking[0]]), 12) or 'none'}"
        if labeller is None:
            raise core.unnamed(folder, f"no metadata {name!r}, {there}", *_LOOKUPS)
        raise DemonstrationError(
            f"{len(lacking):,} of {len(episodes):,} episodes have no metadata {name!r}: {there}; name another, or add "
            "it with the method update_episode_metadata of Minari's storage"
        )
    labels = [_label(found[each][name], name, each) for each in episodes]
    return files.names_as_noted(labels, notes) if labeller is None else (), labels


def _constant(storage: _Hdf5 | _Arrow, episode: int, place: str) -> Any:
    """The value that a column has in every row of an episode."""
    values = np.unique(storage.read(episode, [place])[place])
    if len(values) != 1:
        found = f"{place!r} of episode {episode} has {len(values)} values"
        raise DemonstrationError(f"{found}: an episode has one demonstrator")
    return values[0]


def _label(value: Any, name: str, episode: int) -> str | int:
    """A name or a whole number."""
    if (label := core.plain_label(value)) is None:
        found = f"{name!r} of episode {episode} is {brief(value.item() if isinstance(value, np.generic) else value)}"
        raise DemonstrationError(f"{found}: a name or a whole number is needed to say who demonstrated")
    return label


def _candidates(path: Path) -> list[Candidate]:
    """Metadata of episodes, and infos that are constant in each, which hold a name or a whole number."""
    found = []
    with _opened(path) as (_, storage):
        places = storage.places(storage.episodes[0]) if storage.episodes else {}
        others = [name for name in places if name not in (LEGAL, TIMESTAMPS) and not name.startswith(SKILL)]
        infos = [name for name in others if name.startswith("infos/")]
        for episode in storage.episodes:
            values: dict[str, Any] = {}
            for place in infos:
                with suppress(DemonstrationError):  # absent from this episode, not constant, or not numbers or words
                    values[place.removeprefix("infos/")] = _constant(storage, episode, place)
            about = storage.metadata(episode)
            found.append(values | {name: about[name] for name in about if name not in _BOOKKEEPING})
    return core.candidates("episode metadata {}", found)


# --- storage of episodes: groups of one HDF5 file, or one Arrow or parquet file each
#
# A place is a column, or an entry of a Dict such as `observations/goal`. `places` says which of them hold numbers, and
# `read` leaves out padding rows. In metadata, inner names stand as `options/level`.


@contextmanager
def _opened(path: Path) -> Iterator[tuple[dict[str, Any], _Hdf5 | _Arrow]]:
    """The content of metadata.json, and the storage of the kind that it states (`data_format`)."""
    folder = _data_folder(path)
    about = files.read_json(files.file_in(folder, "metadata.json"))
    kind = about.get("data_format")
    if kind == "hdf5":
        with files.open_hdf5(files.file_in(folder, MAIN)) as opened:
            yield about, _Hdf5(opened)
    elif kind in ("arrow", "parquet"):
        yield about, _Arrow(folder, str(kind))
    else:
        raise DemonstrationError(f"data_format is {brief(kind)} in {folder}: it must be 'hdf5', 'arrow' or 'parquet'")


@final
class _Hdf5:
    """A group for each episode, and its metadata as the group's attributes."""

    def __init__(self, file: Any) -> None:
        groups = {name: _EPISODE.fullmatch(name) for name, item in file.items() if files.is_group(item)}
        self._groups = {int(match[1]): file[name] for name, match in groups.items() if match}
        self.episodes = sorted(self._groups)

    def places(self, episode: int) -> dict[str, bool]:
        found: dict[str, bool] = {}

        def note(name: str, item: Any) -> None:
            if files.is_data_set(item):
                found[name] = item.dtype.kind in "biuf"

        self._groups[episode].visititems(note)  # visits each item once, whatever links to it
        return found

    def metadata(self, episode: int) -> dict[str, Any]:
        return dict(self._groups[episode].attrs)

    def _item(self, episode: int, place: str) -> Any:
        item = self._groups[episode].get(place)
        if not files.is_data_set(item) or not item.ndim:
            found = listed(sorted(self._groups[episode]), most=12)
            raise DemonstrationError(f"episode {episode} has no rows of {place!r}: it has {found}")
        return item

    def decoded_bytes(self, episode: int, places: Sequence[str]) -> int:
        return sum(files.decoded_bytes(self._item(episode, place)) for place in places)

    def read(self, episode: int, places: Sequence[str]) -> dict[str, Array]:
        found = {place: files.read_hdf5(self._item(episode, place), f"episode_{episode}/{place}") for place in places}
        return _checked(found, episode)


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
        return files.file_in(self._folder, str(episode), names[0])

    def _table(self, episode: int, places: Sequence[str] | None = None) -> pa.Table:
        if self._kind == "arrow":
            return files.read_arrow(self._file(episode))
        opened = files.ParquetFile(self._file(episode))
        wanted = {place.partition("/")[0] for place in places or opened.schema.names}
        return opened.read([name for name in opened.schema.names if name in wanted])

    def places(self, episode: int) -> dict[str, bool]:
        return dict(_leaves(self._table(episode).schema))

    def metadata(self, episode: int) -> dict[str, Any]:
        return dict(_flatten(files.read_json(files.file_in(self._folder, str(episode), "metadata.json"))))

    def decoded_bytes(self, episode: int, places: Sequence[str]) -> int:
        return self._file(episode).stat().st_size

    def read(self, episode: int, places: Sequence[str]) -> dict[str, Array]:
        table = self._table(episode, places)
        found = {place: _column(table, episode, place) for place in places}
        padded = {place: not place.startswith(("observations", "infos")) for place in places}
        return _checked({place: each[:-1] if padded[place] else each for place, each in found.items()}, episode)


def _leaves(fields: Any, before: str = "", depth: int = 0) -> Iterator[tuple[str, bool]]:
    """The place of every column that is no struct, and whether it holds numbers, in lists or alone."""
    for field in fields:
        kind = field.type
        if pa.types.is_struct(kind) and depth < 20:
            inner = [kind.field(number) for number in range(kind.num_fields)]
            yield from _leaves(inner, f"{before}{field.name}/", depth + 1)
            continue
        while is_list(kind):
            kind = kind.value_type
        is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        yield f"{before}{field.name}", bool(is_number)


def _column(table: pa.Table, episode: int, place: str) -> Array:
    """(row, ...) numbers or words of a place in an episode's table."""
    first, *inner = place.split("/")
    files.check_there(f"episode {episode}", "column", [first], table.column_names)
    array = table.column(first).combine_chunks()
    for name in inner:
        if not pa.types.is_struct(array.type) or array.type.get_field_index(name) < 0:
            raise DemonstrationError(f"episode {episode} has no {place!r}: all episodes must have the same entries")
        array = array.field(name)
    return files.as_numpy(place, pa.chunked_array([array]))


def _checked(columns: dict[str, Array], episode: int) -> dict[str, Array]:
    """Columns of numbers or words; others are refused."""
    for place, values in columns.items():
        if values.dtype.kind not in "biufU":
            found = f"{place!r} of episode {episode} holds {values.dtype.name}"
            raise DemonstrationError(f"{found}: it must hold numbers, or words of a label")
    return columns


def _flatten(values: Mapping[str, Any], before: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict) and depth < 20:
            yield from _flatten(value, f"{before}{name}/", depth + 1)
        else:
            yield f"{before}{name}", value


# --- writing


def write_minari(data: Demonstrations, path: str | Path, *, metadata: Mapping[str, Any] | None = None) -> None:
    """Write demonstrations as a new folder that Minari loads, completely or not at all.

    The name of each episode's demonstrator becomes its metadata `demonstrator`. `metadata` are further entries of the
    data set's own, such as `author`, `description`, `env_spec` or `dataset_id`. By default `dataset_id` is the folder's
    name, which Minari requires to end in a version, as in `lift-v0`.

    Minari requires some columns that data may lack: rewards are then zero, terminations false, an episode that does not
    end in a termination is truncated at its last step, and the observation after the last action repeats the one before
    it.
    """
    path = path_of("path", path, error=DemonstrationError)
    for name in data.skills:
        files.check_name(name)
    discrete = {"type": "Discrete", "dtype": "int64", "start": 0, "n": data.action_count}
    identifier = path.name if _IDENTIFIER.fullmatch(path.name) else f"{re.sub(r'[^-_0-9A-Za-z]', '_', path.name)}-v0"
    content = _episodes(data)
    about = {
        "total_episodes": data.episode_count,
        "total_steps": len(data),
        "data_format": "hdf5",
        "jpeg_encoding": False,
        "observation_space": json.dumps(_box(data.observations)),
        "action_space": json.dumps(discrete if data.action_count else _box(data.actions)),
        "dataset_id": identifier,
        "minari_version": _VERSION,
        "dataset_size": round(len(content) / 1e6, 1),
        **(metadata or {}),
        "ileed": json.dumps(files.notes_of(data)),
    }
    with files.write_folder(path) as folder:
        (folder / "data").mkdir()
        (folder / "data" / MAIN).write_bytes(content)
        (folder / "data" / "metadata.json").write_text(json.dumps(about))


def _box(values: Array) -> dict[str, Any]:
    """The space of all values of this type and shape, as Minari writes gymnasium's Box."""
    kind, shape = values.dtype, values.shape[1:]
    limits = np.iinfo(kind) if kind.kind in "iu" else None
    low, high = (0, 1) if kind.kind == "b" else (-np.inf, np.inf) if limits is None else (limits.min, limits.max)
    bounds = {name: np.full(shape, bound).tolist() for name, bound in (("low", low), ("high", high))}
    return {"type": "Box", "dtype": str(kind.newbyteorder("=")), "shape": list(shape), **bounds}


def _episodes(data: Demonstrations) -> bytes:
    """The HDF5 file with a group for each episode."""
    steps, bounds = len(data), data.episode_bounds
    ends = np.zeros(steps, dtype=bool)
    ends[bounds[1:] - 1] = True
    terminations = np.zeros(steps, dtype=bool) if data.terminals is None else data.terminals
    columns: dict[str, Array] = {
        "actions": data.actions,
        "rewards": np.zeros(steps, dtype=np.float32) if data.rewards is None else data.rewards,
        "terminations": terminations,
        "truncations": ends & ~terminations,
    }
    longer = {"observations": data.observations, LEGAL: data.legal, TIMESTAMPS: data.timestamps}  # by one row
    longer |= {SKILL + name: values for name, values in data.skills.items()}
    content = io.BytesIO()
    with files.new_hdf5(content, track_order=True) as file:
        for number, (start, stop) in enumerate(pairwise(bounds)):
            group = file.create_group(f"episode_{number}")
            who = data.names[data.demonstrator[start]]
            group.attrs.update({"id": number, "total_steps": int(stop - start), DEMONSTRATOR: who})
            parts = {name: values[start:stop] for name, values in columns.items()}
            for name, values in longer.items():
                if values is not None:
                    parts[name] = np.concatenate([values[start:stop], values[stop - 1 : stop]])
            files.write_columns(group, parts)
    return content.getvalue()


@final
class _Minari(AbstractFormat):
    name, suffixes, title, extra = "minari", ("",), "Minari's data sets", files.HDF5_EXTRA
    read, write, candidates = staticmethod(read_minari), staticmethod(write_minari), staticmethod(_candidates)
    reading = (core.OBSERVATIONS,)

    def columns(self, path: Path) -> Sequence[str]:
        with _opened(path) as (_, storage):
            return sorted(storage.places(storage.episodes[0])) if storage.episodes else []

    def recognises(self, path: Path) -> bool:
        folder = _data_folder(path)
        has_episodes = (folder / MAIN).exists() or (folder / "0" / "metadata.json").exists()
        return has_episodes and (folder / "metadata.json").exists()


FORMAT = _Minari()
