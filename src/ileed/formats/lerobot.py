"""LeRobot folders, v3.0 and v2.1: frames in parquet files, and their description in meta/.

Low-dimensional features are read with pyarrow alone; images and videos are not opened. docs/decisions/lerobot.md has
the layout, and what our writer adds so that what it writes is read back exactly.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ileed import _memory
from ileed.data import Array, Demonstrations, Encoding, Source
from ileed.data.columns import is_list, is_text
from ileed.data.encoding import numbered_names
from ileed.data.rules import listed
from ileed.errors import (
    DemonstrationError,
    UnnamedDemonstratorError,
    brief,
    counted,
    did_you_mean,
    one_of,
    path_of,
    printable,
    refuse_damage,
    texts_or_none,
    whole_number,
)
from ileed.formats.core import (
    DIVIDE,
    OBSERVATIONS,
    AbstractFormat,
    Candidate,
    Labeller,
    Option,
    accept,
    by_column,
    by_episode_table,
    by_one,
    episode_tables,
)
from ileed.formats.files import leads_out, noted_encoding, notes_of, read_json, read_notes, shape_as_noted, write_folder
from ileed.formats.parquet import SKILL, ParquetFile, as_arrow, as_numpy, numbers

VERSIONS = ("v3.0", "v2.1")
STATES = ("observation.state", "observation.environment_state")
NOTES = "meta/ileed.json"
TASK = "task"
_IMAGES = ("video", "image")
_OPTIONAL = {"next.reward": "rewards", "next.done": "terminals", "legal": "legal", "timestamp": "timestamps"}
_OWN = ("index", "episode_index", "frame_index", "task_index", "action", *_OPTIONAL)
OPERATOR = "operator"
_FPS = 10
_FILES_IN_CHUNK = 1000
_FILE_BYTES = 100 << 20  # of a data file, beyond which the next begins, as lerobot has it
_QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
_DATA = {
    "v3.0": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
    "v2.1": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
}
_OWN_OF_EPISODES = re.compile(r"episode_index|tasks|length|dataset_.*|(stats|videos|data|meta)/.*")


def read_lerobot(
    path: str | Path, *, demonstrator: Labeller | None = None, observations: Sequence[str] | None = None
) -> Demonstrations:
    """Read demonstrations from a LeRobot folder, frame by frame, episodes by their numbers.

    `demonstrator` is `by_column(...)` for a feature of every frame or a column of meta/episodes, or
    `by_episode_table(...)` for a CSV file, or `by_one(...)`. None takes the feature that our writer noted; in other
    folders it is refused, with the features that may be meant.

    `observations` names features, whose numbers are joined in that order. None takes those that our writer noted, or
    `observation.state` and `observation.environment_state`; videos and images are then left out, with a warning. A
    whole number as action is discrete. Where a folder has several tasks, they are the skill column `task`. The folder's
    `fps` and timestamps are kept, for `write_lerobot`.
    """
    path = path_of("path", path, error=DemonstrationError)
    asked = texts_or_none("observations", observations, error=DemonstrationError)
    source = Source.of(path, read_lerobot, demonstrator=demonstrator, observations=asked)
    folder = _Folder(path)
    keys = folder.observation_keys(asked)
    who = _place_of_demonstrator(folder, demonstrator)
    of_frames = [who.place] if who.place in folder.columns else []
    skills = [name for name in folder.columns if name.startswith(SKILL)]
    optional = [name for name in (*_OPTIONAL, "task_index") if name in folder.columns]
    if folder.info.get("fps") is None:
        optional = [name for name in optional if name != "timestamp"]
    frames = folder.frames([*keys, "action", "episode_index", *optional, *skills, *of_frames])
    episode, acted = frames("episode_index"), _as_lists(frames("action"))
    counts = _check_episodes(folder, episode)
    parts = [frames(key).reshape(len(episode), -1) for key in keys]
    seen, widths = np.concatenate(parts, axis=1), [part.shape[1] for part in parts]
    noted, count = keys == folder.notes.get("observations"), folder.notes.get("action_count", 0)
    encoding = noted_encoding(folder.notes) if noted else folder.encoding(keys, widths, acted, count)
    names, labels = (), frames(of_frames[0]) if of_frames else _labels_by_episode(folder, who, counts)
    if labels.dtype.kind == "U" and set(found := folder.notes.get("names", ())) >= set(np.unique(labels).tolist()):
        names = tuple(found)
    present: dict[str, Any] = {to: frames(name) for name, to in _OPTIONAL.items() if name in optional}
    return Demonstrations(
        observations=shape_as_noted(seen, folder.notes, NOTES) if noted else seen,
        actions=acted,
        demonstrator=labels,
        episode=episode,
        names=names,
        **present,
        skills={name.removeprefix(SKILL): _as_lists(frames(name)) for name in skills} | folder.tasks(frames, optional),
        action_count=count,
        encoding=encoding,
        fps=folder.info.get("fps"),
        source=source,
    )


def _as_lists(values: Array) -> Array:
    """Floating-point numbers, of an action or a skill, as rows of one each; labels as they are."""
    return values[:, None] if values.ndim == 1 and values.dtype.kind == "f" else values


class _Folder:
    """A LeRobot folder: what meta/info.json says, and the parquet files, of which only the footers were read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.info = read_json(self.file("meta/info.json"))
        self.version = self.info.get("codebase_version")
        if self.version not in VERSIONS:
            known = " and ".join(VERSIONS)
            raise DemonstrationError(
                f"{path} is a LeRobot folder of version {brief(self.version)}: {known} are read; lerobot converts it"
            )
        self.features: dict[str, Any] = self.info.get("features") or {}
        if not isinstance(self.features, dict) or not all(isinstance(each, dict) for each in self.features.values()):
            raise DemonstrationError(f"{path / 'meta/info.json'} describes no features: it must hold an object of them")
        notes = self.file(NOTES)
        self.notes = read_notes(notes.read_text("utf-8", "replace"), NOTES) if notes.is_file() else {}
        self.files = self.parquet_files("data")
        if not self.files:
            raise DemonstrationError(f"{path} has no data/chunk-000/*.parquet: copy or download the folder whole")
        self.columns: list[str] = self.files[0].schema.names
        if repeated := next((name for name in self.columns if self.columns.count(name) > 1), None):
            raise DemonstrationError(f"the data of {path} have two columns {brief(repeated)}: keep one of them")

    def file(self, name: str) -> Path:
        """A file of the folder; a link out of it is followed only where the Hub's cache keeps its files."""
        file = self.path / name
        if leads_out(file, self.path):
            raise DemonstrationError(
                f"{brief(name)} is a link out of {self.path}, which is not followed: copy the file"
            )
        return file

    def parquet_files(self, under: str) -> list[ParquetFile]:
        """The parquet files chunk-000/file-000.parquet and so on, in the order of their numbers."""
        names = [str(file.relative_to(self.path)) for file in self.path.glob(f"{under}/*/*.parquet")]
        numbered = sorted(names, key=lambda name: ([int(part) for part in re.findall(r"\d{1,18}", name)], name))
        return [ParquetFile(self.file(name)) for name in numbered]

    def encoding(self, keys: Sequence[str], widths: Sequence[int], acted: Array, count: int) -> Encoding | None:
        """The names that meta/info.json gives the numbers of features; those without one are `feature[0]` and so on."""
        features = [(key, width, self._names(key, width)) for key, width in zip(keys, widths, strict=True)]
        named = [(key, numbered_names(key, width), found) for key, width, found in features]
        inputs = [each for _, numbered, found in named for each in found or numbered]
        if len(set(inputs)) < len(inputs):  # such as two arms whose joints have the same names
            inputs = [each for key, numbered, found in named for each in [f"{key}.{one}" for one in found] or numbered]
        dimensions = acted.shape[1] if acted.ndim == 2 else 0
        return Encoding.of_numbers(inputs, acted, action_count=count, action=self._names("action", dimensions))

    def _names(self, feature: str, width: int) -> list[str]:
        """The name of each number of a feature; none where info.json has no distinct names for all of them."""
        found = self.features.get(feature, {}).get("names")
        while isinstance(found, dict) and len(found) == 1:  # as in {"motors": [...]}
            found = next(iter(found.values()))
        are_names = isinstance(found, list) and all(isinstance(name, str) for name in found)
        return found if are_names and len(set(found)) == len(found) == width else []

    def frames(self, names: Sequence[str]) -> Callable[[str], Array]:
        """Reads columns of every frame from all files; the function that returns gives one of them."""
        if missing := next((name for name in names if name not in self.columns), None):
            meant = did_you_mean(missing, self.columns)
            raise DemonstrationError(
                f"{self.path} has no feature {missing!r}{meant}: its data have {listed(self.columns, 20)}"
            )
        wanted = list(dict.fromkeys(names))
        with refuse_damage(self.path, "LeRobot", pa.ArrowException):
            _memory.check_fits(self.path, sum(file.decoded_bytes(wanted) for file in self.files))
            table = pa.concat_tables([file.read(wanted).replace_schema_metadata() for file in self.files])
        stated = self.info.get("total_frames")
        if len(table) != stated or stated == 0:
            raise DemonstrationError(
                f"the data of {self.path} hold {len(table):,} frames and meta/info.json counts {brief(stated)}: "
                "copy or download the folder whole"
            )

        def column(name: str) -> Array:
            with refuse_damage(self.path, "LeRobot", pa.ArrowException):
                return _as_rows(name, table.column(name))

        return column

    def episodes(self, column: str) -> tuple[Array, Array]:
        """A column of meta/episodes: numbers of episodes, and the value of each."""
        path = self.file("meta/episodes.jsonl")
        if self.version == "v2.1":
            rows = [row for row in _read_lines(path) if row.get(column) is not None]
            with refuse_damage(path, "JSON"):
                table = pa.table({name: [row[name] for row in rows] for name in ("episode_index", column)})
        else:
            parts = [file.read(["episode_index", column]) for file in self.files_of_episodes]
            with refuse_damage(path.with_suffix(""), "LeRobot", pa.ArrowException):
                table = pa.concat_tables([part.replace_schema_metadata() for part in parts])
        with refuse_damage(path, "LeRobot", pa.ArrowException):
            there = table.filter(table.column(column).is_valid())
            return _as_rows("episode_index", there.column("episode_index")), _as_rows(column, there.column(column))

    @cached_property
    def files_of_episodes(self) -> list[ParquetFile]:
        return self.parquet_files("meta/episodes")

    @cached_property
    def columns_of_episodes(self) -> list[str]:
        """The columns of meta/episodes that are not lerobot's own."""
        if self.version == "v2.1":
            names = [name for row in _read_lines(self.file("meta/episodes.jsonl"))[:1] for name in row]
        else:
            names = self.files_of_episodes[0].schema.names if self.files_of_episodes else []
        return [name for name in names if not _OWN_OF_EPISODES.fullmatch(name)]

    def observation_keys(self, asked: Sequence[str] | None) -> list[str]:
        """The features to join as observations, as `read_lerobot` says."""
        images = [name for name, feature in self.features.items() if feature.get("dtype") in _IMAGES]
        if asked is not None and not asked:
            raise DemonstrationError("observations is empty: name a feature, or pass None for the usual ones")
        if shown := next((name for name in asked or () if name in images), None):
            raise DemonstrationError(f"{shown!r} is of images, and numbers are needed: name a low-dimensional feature")
        if chosen := asked or self.notes.get("observations"):
            return list(chosen)
        usual = [name for name in STATES if name in self.columns]
        if not usual:
            others = [name for name in self.columns if name.startswith("observation") and name not in images]
            there = f"others are {listed(others, 20)}" if others else "it has no others"
            raise DemonstrationError(
                f"{self.path} has no {STATES[0]!r}, and {there}: name features with observations=[...] (at the "
                "command: --observations), or add a column of numbers, such as an encoder's output for each image"
            )
        if images:
            warnings.warn(
                f"{counted(len(images), 'feature')} of images left out ({listed(images, show=printable)}): "
                f"observations are {listed(usual, show=printable)}.",
                stacklevel=3,
            )
        return usual

    def tasks(self, frames: Callable[[str], Array], columns: Sequence[str]) -> dict[str, Array]:
        """The skill column of tasks, where our writer noted it, or another folder has several."""
        noted = TASK in self.notes.get("skills", {}) and SKILL + TASK not in self.columns
        if "task_index" not in columns or (self.notes and not noted):
            return {}
        index = frames("task_index")
        if not noted and (index == index[0]).all():
            return {}
        tasks = list(self._tasks())
        if strange := next((each for each in tasks if [*map(type, each)] != [int, str]), None):
            raise DemonstrationError(
                f"meta/tasks of {self.path} has {brief(strange)}: each task is a number and a text"
            )
        words = dict(tasks)
        if unknown := set(np.unique(index).tolist()) - words.keys():
            raise DemonstrationError(f"task {min(unknown)} of {self.path} is not in meta/tasks: copy the folder whole")
        distinct, place = np.unique(index, return_inverse=True)
        longest = max(len(words[number]) for number in distinct.tolist())
        _memory.check_fits("the tasks", 4 * longest * len(index))
        return {TASK: np.array([words[number] for number in distinct.tolist()], dtype=np.str_)[place]}

    def _tasks(self) -> Iterator[tuple[Any, Any]]:
        path = self.file("meta/tasks.parquet")
        if self.version == "v2.1":
            rows = _read_lines(self.file("meta/tasks.jsonl"))
            yield from ((row.get("task_index"), row.get("task")) for row in rows)
            return
        file = ParquetFile(path)
        with refuse_damage(path, "LeRobot", pa.ArrowException):
            name = next(name for name in (TASK, "__index_level_0__") if name in file.schema.names)  # pandas' index
            table = file.read(["task_index", name])
            yield from zip(*(as_numpy(each, table.column(each)).tolist() for each in ("task_index", name)), strict=True)


def _check_episodes(folder: _Folder, episode: Array) -> Array:
    """How many frames each episode has; episodes must be numbered from zero and stand in order."""
    if episode.dtype.kind not in "iu" or episode.ndim != 1:
        raise DemonstrationError(f"episode_index of {folder.path} holds {episode.dtype}: it must hold whole numbers")
    episode = episode.astype(np.int64)
    jumps = np.flatnonzero((step := np.diff(episode)) * (step - 1))
    if episode[0] != 0 or len(jumps):
        place = int(jumps[0]) + 1 if episode[0] == 0 else 0
        before = f"episode {episode[place - 1]}" if place else "nothing"
        raise DemonstrationError(
            f"episode {episode[place]} of {folder.path} follows {before}: episodes must be numbered 0, 1, ... and "
            "stand in order, as lerobot writes them; copy or download the folder whole"
        )
    return np.bincount(episode)


def _place_of_demonstrator(folder: _Folder, labeller: Labeller | None) -> Labeller:
    """Where to look for who demonstrated; a folder of others does not say."""
    noted = folder.notes.get("demonstrator")
    labeller = by_column(str(noted)) if labeller is None and noted is not None else labeller
    if labeller is None:
        found = [f"{each.place} ({each.values:,} values, {each.option})" for each in _candidates(folder.path)]
        there = f"it may be {listed(found, 12, show=printable)}" if found else "no feature of it may be meant"
        raise UnnamedDemonstratorError(
            f"{folder.path} does not say who demonstrated, and {there}: name one with by_column(...) (at the command: "
            "--demonstrator NAME), a CSV file episode,operator with by_episode_table(...) (--episode-table FILE), or "
            "one person with by_one(...) (--one NAME)"
        )
    use = "by_column(...) (at the command: --demonstrator NAME)"
    accept(labeller, by_column, by_one, by_episode_table, title="LeRobot folders", use=use)
    known = [*folder.columns, *folder.columns_of_episodes]
    if labeller.place is not None and labeller.place not in known:
        others = [name for name in known if name not in _OWN]
        meant = did_you_mean(labeller.place, others)
        raise DemonstrationError(
            f"{folder.path} has no feature {labeller.place!r}{meant}: it has {listed(others, 20)}; name one of these"
        )
    return labeller


def _labels_by_episode(folder: _Folder, labeller: Labeller, counts: Array) -> Array:
    """The demonstrator of each frame, from the labels of whole episodes."""
    if labeller.place is None:
        found = np.array(labeller.labels([str(number) for number in range(len(counts))]))
    else:
        numbers, values = folder.episodes(labeller.place)
        order = np.argsort(numbers, kind="stable")
        if not np.array_equal(numbers[order], np.arange(len(counts))):
            raise DemonstrationError(
                f"{labeller.place!r} of meta/episodes has {len(numbers):,} values and there are {len(counts):,} "
                "episodes: each needs one"
            )
        found = values[order]
    _memory.check_fits("the demonstrator", found.itemsize * int(counts.sum()))
    return np.repeat(found, counts)


def _candidates(path: Path) -> list[Candidate]:
    """Features that are constant in each episode, columns of meta/episodes, and tables beside the data."""
    folder = _Folder(path)
    found = []
    names = [name for name in folder.columns if name not in _OWN and not name.startswith(("observation", SKILL))]
    kinds = {name: folder.files[0].schema.field(name).type for name in names}
    names = [name for name in names if is_text(kinds[name]) or pa.types.is_integer(kinds[name])]
    frames = folder.frames(["episode_index", *names])
    counts = _check_episodes(folder, frames("episode_index"))
    starts = np.cumsum(counts) - counts
    for name in names:
        values = frames(name)
        if values.ndim == 1 and (values == np.repeat(values[starts], counts)).all():
            found.append(_candidate(f"feature {name}", values[starts], name))
    for name in folder.columns_of_episodes:
        values = folder.episodes(name)[1]
        if values.ndim == 1 and values.dtype.kind in "iuU" and len(values):
            found.append(_candidate(f"meta/episodes {name}", values, name))
    return [*found, *episode_tables(path), *episode_tables(path / "meta")]


def _candidate(place: str, values: Array, name: str) -> Candidate:
    return Candidate(place, len(np.unique(values)), len(values), f"--demonstrator {name}")


def _as_rows(name: str, column: pa.ChunkedArray) -> Array:
    """(row,) values or (row, number) of a column of lists, also nested ones; a list of one value is that value."""
    if not isinstance(column.type, pa.DictionaryType):
        array, rows = column.combine_chunks(), len(column)
        array = array.storage if isinstance(array, pa.ExtensionArray) else array
        while is_list(array.type):
            lengths = np.unique(numbers(array.value_lengths()))
            if array.null_count or len(lengths) > 1:
                raise DemonstrationError(f"column {name!r} has lists of {len(lengths)} lengths: all must have the same")
            array = array.flatten()
        array = array.dictionary_encode() if is_text(array.type) else array
        found = as_numpy(name, pa.chunked_array([array]))
        return found if len(found) == rows else found.reshape(rows, -1)
    return as_numpy(name, column)


def _read_lines(path: Path) -> list[dict[str, Any]]:
    with refuse_damage(path, "JSON"):
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
        if not all(isinstance(row, dict) for row in rows):
            raise ValueError("a line holds no object")
        return rows


# --- writing


def write_lerobot(
    data: Demonstrations,
    path: str | Path,
    *,
    observations: Mapping[str, int] | None = None,
    version: str = "v3.0",
    fps: int | None = None,
    task: str = "demonstration",
    robot_type: str | None = None,
) -> None:
    """Write demonstrations as a LeRobot folder, whole or not at all; an existing path is refused.

    `observations` divides the numbers of an observation among features, by how many each takes in order (None: all in
    `observation.state`). ACT and Diffusion, without images, need `observation.environment_state`. Who demonstrated is
    the feature `operator` of every frame, which lerobot's own tools keep when they delete or split.

    Frame rate and timestamps are those of `data`. Another `fps` gives frame k of an episode the timestamp k / `fps`;
    data without a frame rate have 10 frames per second unless it is passed. `task` describes the task in words; where
    the skill column `task` has labels, these do.
    """
    path = path_of("path", path, error=DemonstrationError)
    one_of("version", version, VERSIONS)
    if fps is not None:
        whole_number("fps", fps, least=1, rule="pass a whole number of frames per second, one or more")
    rate = _frame_rate(data, fps)
    if os.path.lexists(path):
        raise DemonstrationError(f"{path} exists already: choose another place, or remove it first")
    keys = {STATES[0]: data.observation_size} if observations is None else dict(observations)
    labels, tasks = _tasks(data, task)
    columns = _columns(data, keys, tasks, rate)
    bounds = data.episode_bounds
    features = {name: _feature(values) for name, values in columns.items()}
    if data.encoding is not None and len(keys) == 1:
        features[next(iter(keys))]["names"] = list(data.encoding.inputs)
    info = {
        "codebase_version": version,
        "robot_type": robot_type,
        "total_episodes": data.episode_count,
        "total_frames": len(data),
        "total_tasks": len(labels),
        "chunks_size": _FILES_IN_CHUNK,
        "fps": rate,
        "splits": {"train": f"0:{data.episode_count}"},
        "data_path": _DATA[version],
        "video_path": None,
        "features": features,
    }
    with write_folder(path) as folder:
        (folder / "meta").mkdir()
        (_write_v3 if version == "v3.0" else _write_v2)(folder, info, columns, bounds, labels)
        notes = notes_of(data, demonstrator=OPERATOR, observations=list(keys), fps=rate)
        (folder / NOTES).write_text(json.dumps(notes) + "\n", "utf-8")


def _frame_rate(data: Demonstrations, asked: int | None) -> float:
    """Frames per second in the folder: as asked for, or that of the data, or 10 for data that state none."""
    return next(rate for rate in (asked, data.fps, _FPS) if rate is not None)


def _tasks(data: Demonstrations, task: str) -> tuple[list[str], Array]:
    """Every task in words, and the number of each frame's."""
    values = data.skills.get(TASK)
    if values is None or values.dtype.kind != "U":
        return [task], np.zeros(len(data), dtype=np.int64)
    labels, index = np.unique(values, return_inverse=True)
    return labels.tolist(), index.astype(np.int64)


def _columns(data: Demonstrations, keys: Mapping[str, int], tasks: Array, fps: float) -> dict[str, Array]:
    """Every feature of the folder: (frame,) values, or (frame, number)."""
    if (taken := sum(keys.values())) != data.observation_size or min(keys.values(), default=0) < 1:
        found = f"the features {dict(keys)} take {taken} numbers but an observation has {data.observation_size}"
        raise DemonstrationError(f"{found}: they must take them all, one or more each")
    flat = data.observations.reshape(len(data), -1)
    parts = np.split(flat, np.cumsum([*keys.values()])[:-1], axis=1)
    columns: dict[str, Array] = dict(zip(keys, parts, strict=True))
    frame = np.arange(len(data)) - data.episode_bounds[data.episode]
    seconds = frame / fps if data.timestamps is None or fps != data.fps else data.timestamps
    others = {
        "action": data.actions,
        OPERATOR: np.array(data.names)[data.demonstrator],
        "next.reward": data.rewards,
        "next.done": data.terminals,
        "legal": data.legal,
        **{SKILL + name: each for name, each in data.skills.items() if name != TASK or each.dtype.kind != "U"},
        "timestamp": seconds.astype(np.float32),
        "frame_index": frame,
        "episode_index": data.episode,
        "index": np.arange(len(data)),
        "task_index": tasks,
    }
    if wrong := next((name for name in (*keys, *others) if "/" in name or (name in keys and name in others)), None):
        raise DemonstrationError(
            f"{wrong!r} cannot name a feature of its own in a LeRobot folder: rename it, without '/'"
        )
    columns |= {name: values for name, values in others.items() if values is not None}
    return {name: each[:, 0] if each.ndim == 2 and each.shape[1] == 1 else each for name, each in columns.items()}


def _feature(values: Array) -> dict[str, Any]:
    kind = "string" if values.dtype.kind == "U" else values.dtype.name
    return {"dtype": kind, "shape": [1 if values.ndim == 1 else values.shape[1]], "names": None}


def _statistics(columns: Mapping[str, Array], of: slice, *, quantiles: bool) -> dict[str, dict[str, list[Any]]]:
    """What lerobot normalises by: for each feature of numbers, one for each dimension, from some of the frames."""
    found: dict[str, dict[str, list[Any]]] = {}
    for name, values in columns.items():
        if values.dtype.kind == "U":
            continue
        rows = values[of].reshape(len(values[of]), -1)
        numbers = rows.astype(np.float64)
        each = {"min": rows.min(axis=0), "max": rows.max(axis=0)}
        each |= {"mean": numbers.mean(axis=0), "std": numbers.std(axis=0), "count": np.array([len(rows)])}
        if quantiles:
            each |= dict(zip(_QUANTILES, np.quantile(numbers, [*_QUANTILES.values()], axis=0), strict=True))
        found[name] = {kind: value.tolist() for kind, value in each.items()}
    return found


def _episodes(columns: Mapping[str, Array], bounds: Array, labels: list[str], *, quantiles: bool) -> Iterable[Any]:
    """What meta/ says of each episode: number, tasks and length; and its statistics."""
    for number, (start, stop) in enumerate(pairwise(bounds.tolist())):
        tasks = [labels[task] for task in np.unique(columns["task_index"][start:stop]).tolist()]
        about = {"episode_index": number, "tasks": tasks, "length": stop - start}
        yield about, _statistics(columns, slice(start, stop), quantiles=quantiles)


def _write_v3(
    folder: Path, info: dict[str, Any], columns: Mapping[str, Array], bounds: Array, labels: list[str]
) -> None:
    """Many episodes in a file, one row group each; meta/episodes and meta/tasks as parquet files."""
    sizes = {"data_files_size_in_mb": 100, "video_files_size_in_mb": 200}
    _write_json(folder / "meta/info.json", info | sizes)
    _write_json(folder / "meta/stats.json", _statistics(columns, slice(None), quantiles=True))
    table = pa.table({name: as_arrow(values) for name, values in columns.items()})
    begins = (bounds[:-1] * (table.nbytes / len(table))).astype(np.int64) // _FILE_BYTES
    numbers, file = np.unique(begins, return_inverse=True)
    rows = []
    for number in range(len(numbers)):
        chunk, place = divmod(number, _FILES_IN_CHUNK)
        target = _parent(folder / _DATA["v3.0"].format(chunk_index=chunk, file_index=place))
        with pq.ParquetWriter(target, table.schema, compression="snappy") as writer:
            for episode in np.flatnonzero(file == number).tolist():
                start, stop = bounds[episode : episode + 2].tolist()
                writer.write_table(table.slice(start, stop - start))
                rows.append({"data/chunk_index": chunk, "data/file_index": place})
                rows[-1] |= {"dataset_from_index": start, "dataset_to_index": stop}
    for row, (about, statistics) in zip(rows, _episodes(columns, bounds, labels, quantiles=True), strict=True):
        row |= about | {
            f"stats/{name}/{kind}": each for name, found in statistics.items() for kind, each in found.items()
        }
        row |= {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0}
    pq.write_table(pa.Table.from_pylist(rows), _parent(folder / "meta/episodes/chunk-000/file-000.parquet"))
    tasks = pa.table({"task_index": pa.array(range(len(labels)), pa.int64()), "__index_level_0__": labels})
    kinds = (("task_index", "task_index", "int64", "int64"), (None, "__index_level_0__", "unicode", "object"))
    described = [
        {"name": name, "field_name": field, "pandas_type": kind, "numpy_type": stored, "metadata": None}
        for name, field, kind, stored in kinds
    ]
    pandas = {"index_columns": ["__index_level_0__"], "column_indexes": [], "columns": described}  # as lerobot reads it
    pq.write_table(tasks.replace_schema_metadata({"pandas": json.dumps(pandas)}), folder / "meta/tasks.parquet")


def _write_v2(
    folder: Path, info: dict[str, Any], columns: Mapping[str, Array], bounds: Array, labels: list[str]
) -> None:
    """A file for each episode; meta/ has one JSON object a line for each episode, its statistics, and each task."""
    episodes = len(bounds) - 1
    _write_json(folder / "meta/info.json", info | {"total_chunks": -(-episodes // _FILES_IN_CHUNK), "total_videos": 0})
    table = pa.table({name: as_arrow(values) for name, values in columns.items()})
    for number, (start, stop) in enumerate(pairwise(bounds.tolist())):
        name = _DATA["v2.1"].format(episode_chunk=number // _FILES_IN_CHUNK, episode_index=number)
        pq.write_table(table.slice(start, stop - start), _parent(folder / name))
    about = list(_episodes(columns, bounds, labels, quantiles=False))
    _write_lines(folder / "meta/episodes.jsonl", (each for each, _ in about))
    statistics = ({"episode_index": each["episode_index"], "stats": found} for each, found in about)
    _write_lines(folder / "meta/episodes_stats.jsonl", statistics)
    _write_lines(
        folder / "meta/tasks.jsonl", ({"task_index": number, "task": task} for number, task in enumerate(labels))
    )


def _parent(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=4) + "\n", "utf-8")


def _write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


@final
class _LeRobot(AbstractFormat):
    name, suffixes, title = "lerobot", ("",), "LeRobot folders"
    read, write, candidates = staticmethod(read_lerobot), staticmethod(write_lerobot), staticmethod(_candidates)
    reading = (OBSERVATIONS,)
    writing = (
        DIVIDE,
        Option(
            "version",
            Literal["v3.0", "v2.1"] | None,
            "The version of a LeRobot folder; v3.0 by default.",
            "--lerobot-version",
        ),
        Option(
            "fps", int | None, "Frames per second of a LeRobot folder; by default those of the data, or 10 if unknown."
        ),
    )

    def columns(self, path: Path) -> Sequence[str]:
        return _Folder(path).columns

    def recognises(self, path: Path) -> bool:
        return (path / "meta" / "info.json").is_file()

    def resolve(self, data: Demonstrations, **options: Any) -> dict[str, float]:
        return {"fps": _frame_rate(data, options.get("fps"))}


FORMAT = _LeRobot()
