"""LeRobot folders, v3.0 and v2.1: frames in parquet files, described in meta/.

Low-dimensional features are read with pyarrow alone; images and videos are not opened. docs/decisions/lerobot.md has
the layout, and what our writer adds so that its folders are read back exactly.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ileed import _memory
from ileed.data import Array, Demonstrations, Source
from ileed.data.columns import is_text
from ileed.data.encoding import numbered_names
from ileed.data.rules import listed
from ileed.errors import DemonstrationError, brief, counted, one_of, path_of, printable, refuse_damage, whole_number
from ileed.formats import core, files
from ileed.formats.core import AbstractFormat, Candidate, Labeller, Option, by_column
from ileed.formats.parquet import SKILL

VERSIONS = ("v3.0", "v2.1")
STATES = ("observation.state", "observation.environment_state")
NOTES = "meta/ileed.json"
TASK = "task"
_IMAGES = ("video", "image")
_OPTIONAL = {"next.reward": "rewards", "next.done": "terminals", "legal": "legal", "timestamp": "timestamps"}
_OWN = ("index", "episode_index", "frame_index", "task_index", "action", *_OPTIONAL)
_OWN_OF_EPISODES = re.compile(r"episode_index|tasks|length|dataset_.*|(stats|videos|data|meta)/.*")
OPERATOR = "operator"
_FPS = 10
_FILES_IN_CHUNK = 1000
_FILE_BYTES = 100 << 20  # after which lerobot begins another data file
_QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
_DATA = {
    "v3.0": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
    "v2.1": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
}


def read_lerobot(
    path: str | Path, *, demonstrator: Labeller | None = None, observations: Sequence[str] | None = None
) -> Demonstrations:
    """Read demonstrations from a LeRobot folder.

    Where the folder has several tasks, they become the skill column `task`. A whole number as action is discrete. The
    folder's `fps` and timestamps are kept for `write_lerobot`.

    Args:
        path: The folder.
        demonstrator: `by_column(...)` for a feature of every frame or a column of meta/episodes,
            `by_episode_table(...)` for a CSV file, or `by_one(...)`. None takes the feature that our writer noted;
            other folders are refused, with the features that may be meant.
        observations: Features whose numbers are joined in this order. None takes those that our writer noted, or
            `observation.state` and `observation.environment_state`, and warns of videos and images left out.
    """
    path = path_of("path", path, error=DemonstrationError)
    asked = core.observation_keys(observations)
    source = Source.of(path, read_lerobot, demonstrator=demonstrator, observations=asked)
    folder = _Folder(path)
    keys = folder.observation_keys(asked)
    who = _labeller(folder, demonstrator)
    optional = [name for name in _OPTIONAL if name in folder.columns and (name != "timestamp" or folder.fps)]
    skills = [name for name in folder.columns if name.startswith(SKILL)]
    others = [name for name in ("task_index", who.place) if name in folder.columns]
    frames = folder.frames([*keys, "action", "episode_index", *optional, *skills, *others])
    counts = _check_episodes(path, frames["episode_index"])
    actions, parts = _as_rows(frames["action"]), {key: frames[key] for key in keys}
    inputs, dimensions = folder.input_names(parts), actions.shape[1] if actions.ndim == 2 else 0
    named = {"inputs": inputs, "action": folder.names_of("action", dimensions)}
    present: dict[str, Any] = {_OPTIONAL[name]: frames[name] for name in optional}
    labels, noted = _labels(folder, who, frames, counts), folder.notes.get("names", ())
    is_noted = labels.dtype.kind == "U" and set(noted) >= set(np.unique(labels).tolist())
    return Demonstrations(
        **core.join_observations(parts, actions, folder.notes, NOTES, **named),
        actions=actions,
        demonstrator=labels,
        episode=frames["episode_index"],
        names=tuple(noted) if is_noted else (),
        **present,
        skills={name.removeprefix(SKILL): _as_rows(frames[name]) for name in skills} | folder.tasks(frames),
        action_count=folder.notes.get("action_count", 0),
        fps=folder.fps,
        source=source,
    )


def _as_rows(values: Array) -> Array:
    """Floating-point actions or skills as rows; labels unchanged."""
    return values[:, None] if values.ndim == 1 and values.dtype.kind == "f" else values


class _Folder:
    """A LeRobot folder: meta/info.json, and the footers of its parquet files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.info = files.read_json(self.file("meta/info.json"))
        self.fps = self.info.get("fps")
        self.version = self.info.get("codebase_version")
        if self.version not in VERSIONS:
            raise DemonstrationError(
                f"{path} is a LeRobot folder of version {brief(self.version)}: convert it with lerobot to one of "
                f"{listed(VERSIONS)}"
            )
        self.features: dict[str, Any] = self.info.get("features") or {}
        if not isinstance(self.features, dict) or not all(isinstance(each, dict) for each in self.features.values()):
            raise DemonstrationError(f"{path / 'meta/info.json'} describes no features: it must hold an object of them")
        notes = self.file(NOTES)
        self.notes = files.read_notes(notes.read_text("utf-8", "replace"), NOTES) if notes.is_file() else {}
        self.data_files = self.parquet_files("data")
        if not self.data_files:
            raise DemonstrationError(f"{path} has no data/chunk-000/*.parquet: copy or download the folder whole")
        self.columns: list[str] = self.data_files[0].schema.names
        if repeated := next((name for name in self.columns if self.columns.count(name) > 1), None):
            raise DemonstrationError(f"the data of {path} have two columns {brief(repeated)}: keep one of them")

    def file(self, name: str) -> Path:
        """A file of the folder, which need not exist; a link is followed only into the Hub's cache."""
        file = self.path / name
        if files.leads_out(file, self.path):
            message = f"{brief(name)} is a link out of {self.path}, which is not followed: copy the file"
            raise DemonstrationError(message, code="link-out-of-folder")
        return file

    def parquet_files(self, under: str) -> list[files.ParquetFile]:
        """The parquet files chunk-000/file-000.parquet and so on, in the order of their numbers."""
        names = [str(file.relative_to(self.path)) for file in self.path.glob(f"{under}/*/*.parquet")]
        numbered = sorted(names, key=lambda name: ([int(part) for part in re.findall(r"\d{1,18}", name)], name))
        return [files.ParquetFile(self.file(name)) for name in numbered]

    def frames(self, names: Sequence[str]) -> dict[str, Array]:
        """Columns of all frames: (frame,) values or (frame, number)."""
        files.check_there(self.path, "feature", names, self.columns)
        wanted = list(dict.fromkeys(names))
        with refuse_damage(self.path, "LeRobot", pa.ArrowException):
            _memory.check_fits(self.path, sum(file.decoded_bytes(wanted) for file in self.data_files))
            table = pa.concat_tables([file.read(wanted).replace_schema_metadata() for file in self.data_files])
        stated = self.info.get("total_frames")
        if len(table) != stated or stated == 0:
            raise DemonstrationError(
                f"the data of {self.path} hold {len(table):,} frames and meta/info.json counts {brief(stated)}: "
                "copy or download the folder whole"
            )
        return {name: _flat(name, table.column(name)) for name in wanted}

    def observation_keys(self, asked: Sequence[str] | None) -> list[str]:
        """The features to join as observations; to read images, admit their names here and decode them in `frames`."""
        images = [name for name, feature in self.features.items() if feature.get("dtype") in _IMAGES]
        if image := next((name for name in asked or () if name in images), None):
            message = f"{image!r} holds images, which are not read: name a feature of numbers"
            raise DemonstrationError(message, code="observation-image")
        if chosen := asked or self.notes.get("observations"):
            return list(chosen)
        usual = [name for name in STATES if name in self.columns]
        if not usual:
            others = [name for name in self.columns if name.startswith("observation") and name not in images]
            raise DemonstrationError(
                f"{self.path} has no {STATES[0]!r}; other observations: {listed(others, 20) or 'none'}. Name features "
                "with observations=[...] (at the command: --observations), or add a column of numbers, such as an "
                "encoder's output for each image"
            )
        if images:
            warnings.warn(
                f"{counted(len(images), 'feature')} of images left out ({listed(images, show=printable)}): "
                f"observations are {listed(usual, show=printable)}.",
                stacklevel=3,
            )
        return usual

    def input_names(self, parts: Mapping[str, Array]) -> list[str]:
        """The names of the numbers of observations in meta/info.json, by default `feature[0]` and so on."""
        widths = {key: values.size // len(values) for key, values in parts.items()}
        named = {key: self.names_of(key, width) for key, width in widths.items()}
        inputs = [each for key in parts for each in named[key] or numbered_names(key, widths[key])]
        if len(set(inputs)) == len(inputs):
            return inputs
        full = {key: [f"{key}.{name}" for name in named[key]] for key in parts}  # two arms with the same joints
        return [each for key in parts for each in full[key] or numbered_names(key, widths[key])]

    def names_of(self, feature: str, width: int) -> list[str]:
        """The name of each number of a feature; empty unless info.json has distinct names for all of them."""
        found = self.features.get(feature, {}).get("names")
        while isinstance(found, dict) and len(found) == 1:  # as in {"motors": [...]}
            found = next(iter(found.values()))
        are_names = isinstance(found, list) and all(isinstance(name, str) for name in found)
        return found if are_names and len(set(found)) == len(found) == width else []

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The objects in a file of meta/ in v2.1, one in each line."""
        path = self.file(f"meta/{name}.jsonl")
        with refuse_damage(path, "JSON"):
            rows = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
            if not all(isinstance(row, dict) for row in rows):
                raise ValueError("a line holds no object")
            return rows

    def pairs(self, name: str, key: str, column: str, parts: Sequence[files.ParquetFile]) -> list[tuple[Any, Any]]:
        """Two columns of a table in meta/, in the rows that have a value in the second."""
        if self.version == "v2.1":
            return [(row.get(key), row[column]) for row in self.lines(name) if row.get(column) is not None]
        found: list[tuple[Any, Any]] = []
        for file in parts:
            files.check_there(file.path, "column", (key, column), file.schema.names)
            table = file.read([key, column])
            present = table.filter(table.column(column).is_valid())
            found += zip(*(_flat(each, present.column(each)).tolist() for each in (key, column)), strict=True)
        return found

    @cached_property
    def episode_files(self) -> list[files.ParquetFile]:
        """The files of meta/episodes in v3.0."""
        return self.parquet_files("meta/episodes") if self.version == "v3.0" else []

    @cached_property
    def episode_columns(self) -> list[str]:
        """The columns of meta/episodes that are not lerobot's own."""
        first: list[Any] = [file.schema.names for file in self.episode_files] or (
            self.lines("episodes") if self.version == "v2.1" else [[]]
        )
        return [name for each in first[:1] for name in each if not _OWN_OF_EPISODES.fullmatch(name)]

    def episode_labels(self, column: str) -> dict[int, str | int]:
        """The name or whole number in a column of meta/episodes, for each episode that has one."""
        found = self.pairs("episodes", "episode_index", column, self.episode_files)
        numbers, labels = [number for number, _ in found], [core.plain_label(label) for _, label in found]
        kinds = {type(label) for label in labels} | {type(number) for number in numbers}
        if not kinds <= {str, int} or len({type(label) for label in labels}) > 1 or len({*numbers}) < len(numbers):
            rule = "it must hold a name or a whole number for each episode, in one row"
            raise DemonstrationError(f"{column!r} of meta/episodes in {self.path} cannot name demonstrators: {rule}")
        return dict(zip(numbers, labels, strict=True))

    def tasks(self, frames: Mapping[str, Array]) -> dict[str, Array]:
        """The skill column of tasks, if our writer noted it, or if another folder has several tasks."""
        noted = TASK in self.notes.get("skills", {}) and SKILL + TASK not in self.columns
        index = frames.get("task_index")
        if index is None or (self.notes and not noted) or not (noted or (index != index[0]).any()):
            return {}
        parts = [files.ParquetFile(self.file("meta/tasks.parquet"))] if self.version == "v3.0" else []
        column = "__index_level_0__" if parts and TASK not in parts[0].schema.names else TASK  # pandas' index
        tasks = self.pairs("tasks", "task_index", column, parts)
        if strange := next((each for each in tasks if [*map(type, each)] != [int, str]), None):
            rule = "each task must be a number and a text"
            raise DemonstrationError(f"meta/tasks of {self.path} has {brief(strange)}: {rule}")
        words, (distinct, place) = dict(tasks), np.unique(index, return_inverse=True)
        if unknown := set(distinct.tolist()) - words.keys():
            raise DemonstrationError(f"task {min(unknown)} of {self.path} is not in meta/tasks: copy the folder whole")
        labels = np.array([words[number] for number in distinct.tolist()], dtype=np.str_)
        _memory.check_fits("the tasks", labels.itemsize * len(index))
        return {TASK: labels[place]}


def _flat(name: str, column: pa.ChunkedArray) -> Array:
    """(row,) values or (row, number) of a column of lists, also nested ones; a list of one value is that value."""
    values = files.as_numpy(name, column)
    rows = values.reshape(len(values), -1) if len(values) else values
    return rows[:, 0] if len(rows) and rows.shape[1] == 1 else rows


def _check_episodes(path: Path, episode: Array) -> Array:
    """The number of frames of each episode; refuses episodes that are not numbered from zero in order."""
    if episode.dtype.kind not in "iu" or episode.ndim != 1:
        raise DemonstrationError(f"episode_index of {path} holds {episode.dtype}: it must hold whole numbers")
    episode = episode.astype(np.int64)
    jumps = np.flatnonzero((step := np.diff(episode)) * (step - 1))
    if episode[0] != 0 or len(jumps):
        place = int(jumps[0]) + 1 if episode[0] == 0 else 0
        before = f"episode {episode[place - 1]}" if place else "nothing"
        raise DemonstrationError(
            f"episode {episode[place]} of {path} follows {before}: episodes must be numbered 0, 1, ... in order, as "
            "lerobot writes them; copy or download the folder whole",
            code="episode-order",
        )
    return np.bincount(episode)


def _labeller(folder: _Folder, labeller: Labeller | None) -> Labeller:
    """Where to look for the demonstrators; folders of other programs do not say."""
    if labeller is None and "demonstrator" in folder.notes:
        labeller = by_column(str(folder.notes["demonstrator"]))
    if labeller is None:
        found = [f"{each.place} ({each.values:,} values, {each.option})" for each in _candidates(folder.path)]
        there = f"it may be {listed(found, 12, show=printable)}" if found else "no feature seems to"
        raise core.unnamed(folder.path, there, by_column)
    known = [*folder.columns, *folder.episode_columns]
    if labeller.place is not None and labeller.place not in known:
        files.check_there(folder.path, "feature", [labeller.place], [name for name in known if name not in _OWN])
    return labeller


def _labels(folder: _Folder, labeller: Labeller, frames: Mapping[str, Array], counts: Array) -> Array:
    """The demonstrator of each frame."""
    episodes, place = range(len(counts)), str(labeller.place)
    labels: Sequence[str | int] | None = core.labels_of(
        labeller, [str(number) for number in episodes], by_column, title="LeRobot folders"
    )
    if labels is None and place in frames:
        return frames[place]
    if labels is None:
        found = folder.episode_labels(place)
        if found.keys() != {*episodes}:
            raise DemonstrationError(
                f"{place!r} of meta/episodes has {len(found):,} values and there are {len(counts):,} "
                "episodes: each needs one"
            )
        labels = [found[number] for number in episodes]
    column = np.array(labels)
    _memory.check_fits("the demonstrator", column.itemsize * int(counts.sum()))
    return np.repeat(column, counts)


def _candidates(path: Path) -> list[Candidate]:
    """Features that are constant in each episode, columns of meta/episodes, and tables beside the data."""
    folder = _Folder(path)
    schema = folder.data_files[0].schema
    names = [name for name in folder.columns if name not in _OWN and not name.startswith(("observation", SKILL))]
    names = [name for name in names if is_text(schema.field(name).type) or pa.types.is_integer(schema.field(name).type)]
    frames = folder.frames(["episode_index", *names])
    counts = _check_episodes(path, frames["episode_index"])
    first = {name: frames[name][np.cumsum(counts) - counts] for name in names}
    same = [name for name in names if (frames[name] == np.repeat(first[name], counts)).all()]
    constant = [{name: first[name][episode] for name in same} for episode in range(len(counts))]
    about = []
    for name in folder.episode_columns:
        with suppress(DemonstrationError):  # not a column of names or whole numbers
            about += [{name: label} for label in folder.episode_labels(name).values()]
    tables = [*core.episode_tables(path), *core.episode_tables(path / "meta")]
    return [*core.candidates("feature {}", constant), *core.candidates("meta/episodes {}", about), *tables]


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
    """Write demonstrations as a LeRobot folder, completely or not at all; a path that holds anything is refused.

    The demonstrator is the feature `operator` of every frame, which lerobot's own tools keep when they delete or split
    episodes.

    Args:
        data: The demonstrations.
        path: The folder to write.
        observations: How many numbers of an observation each feature takes, in order; None puts all into
            `observation.state`. ACT and Diffusion, without images, need `observation.environment_state`.
        version: "v3.0" or "v2.1".
        fps: The frame rate. None takes that of the data, or 10 if they have none. If it differs from that of the data,
            frame k of an episode gets the timestamp k / `fps`.
        task: The description of the task. Labels in the skill column `task` take precedence.
        robot_type: The robot, for meta/info.json.
    """
    path = path_of("path", path, error=DemonstrationError)
    one_of("version", version, VERSIONS)
    if fps is not None:
        whole_number("fps", fps, least=1, rule="pass a whole number of frames per second, one or more")
    rate = _frame_rate(data, fps)
    keys = core.division(data, observations, STATES[0])
    tasks, index = _tasks(data, task)
    columns = _columns(data, keys, index, rate)
    features = {name: _feature(values) for name, values in columns.items()}
    if data.encoding is not None and len(keys) == 1:
        features[next(iter(keys))]["names"] = list(data.encoding.inputs)
    info = {
        "codebase_version": version,
        "robot_type": robot_type,
        "total_episodes": data.episode_count,
        "total_frames": len(data),
        "total_tasks": len(tasks),
        "chunks_size": _FILES_IN_CHUNK,
        "fps": rate,
        "splits": {"train": f"0:{data.episode_count}"},
        "data_path": _DATA[version],
        "video_path": None,
        "features": features,
    }
    episodes = []
    for number, (start, stop) in enumerate(pairwise(data.episode_bounds.tolist())):
        named = [tasks[each] for each in np.unique(index[start:stop]).tolist()]
        episodes.append({"episode_index": number, "tasks": named, "length": stop - start})
    with files.write_folder(path) as folder:
        (_write_v3 if version == "v3.0" else _write_v2)(folder, info, columns, episodes, tasks)
        notes = files.notes_of(data, demonstrator=OPERATOR, observations=list(keys), fps=rate)
        _write_text(folder / NOTES, [json.dumps(notes)])


def _frame_rate(data: Demonstrations, asked: int | None) -> float:
    """Frames per second in the folder: the requested rate, that of the data, or 10."""
    return next(rate for rate in (asked, data.fps, _FPS) if rate is not None)


def _tasks(data: Demonstrations, task: str) -> tuple[list[str], Array]:
    """The description of every task, and the index of each frame's."""
    values = data.skills.get(TASK)
    if values is None or values.dtype.kind != "U":
        return [task], np.zeros(len(data), dtype=np.int64)
    labels, index = np.unique(values, return_inverse=True)
    return labels.tolist(), index.astype(np.int64)


def _columns(data: Demonstrations, keys: Mapping[str, int], tasks: Array, fps: float) -> dict[str, Array]:
    """Every feature of the folder: (frame,) values, or (frame, number)."""
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
    columns = core.divided(data.observations, keys) | {name: each for name, each in others.items() if each is not None}
    return {name: each[:, 0] if each.ndim == 2 and each.shape[1] == 1 else each for name, each in columns.items()}


def _feature(values: Array) -> dict[str, Any]:
    kind = "string" if values.dtype.kind == "U" else values.dtype.name
    return {"dtype": kind, "shape": [1 if values.ndim == 1 else values.shape[1]], "names": None}


def _statistics(columns: Mapping[str, Array], of: slice, *, quantiles: bool) -> dict[str, dict[str, list[Any]]]:
    """Statistics by which lerobot normalises: for each numeric feature, one per dimension."""
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


_Rows = Sequence[dict[str, Any]]


def _write_v3(
    folder: Path, info: dict[str, Any], columns: Mapping[str, Array], episodes: _Rows, tasks: list[str]
) -> None:
    """Write many episodes into each data file, one row group each, and meta/episodes and meta/tasks as parquet."""
    _write_json(folder / "meta/info.json", info | {"data_files_size_in_mb": 100, "video_files_size_in_mb": 200})
    _write_json(folder / "meta/stats.json", _statistics(columns, slice(None), quantiles=True))
    table = pa.table({name: files.as_arrow(values) for name, values in columns.items()})
    bounds = np.cumsum([0, *(episode["length"] for episode in episodes)])
    begins = (bounds[:-1] * (table.nbytes / len(table))).astype(np.int64) // _FILE_BYTES
    rows: list[dict[str, Any]] = []
    for number, begin in enumerate(np.unique(begins)):
        chunk, place = divmod(number, _FILES_IN_CHUNK)
        target = _parent(folder / _DATA["v3.0"].format(chunk_index=chunk, file_index=place))
        with pq.ParquetWriter(target, table.schema, compression="snappy") as writer:
            for episode in np.flatnonzero(begins == begin).tolist():
                start, stop = bounds[episode : episode + 2].tolist()
                writer.write_table(table.slice(start, stop - start))
                row: dict[str, Any] = {"data/chunk_index": chunk, "data/file_index": place}
                row |= {"dataset_from_index": start, "dataset_to_index": stop} | episodes[episode]
                for name, found in _statistics(columns, slice(start, stop), quantiles=True).items():
                    row |= {f"stats/{name}/{kind}": each for kind, each in found.items()}
                rows.append(row | {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0})
    pq.write_table(pa.Table.from_pylist(rows), _parent(folder / "meta/episodes/chunk-000/file-000.parquet"))
    about = pa.table({"task_index": pa.array(range(len(tasks)), pa.int64()), "__index_level_0__": tasks})
    kinds = (("task_index", "task_index", "int64", "int64"), (None, "__index_level_0__", "unicode", "object"))
    described = [
        {"name": name, "field_name": field, "pandas_type": kind, "numpy_type": stored, "metadata": None}
        for name, field, kind, stored in kinds
    ]
    pandas = {"index_columns": ["__index_level_0__"], "column_indexes": [], "columns": described}  # as lerobot reads it
    pq.write_table(about.replace_schema_metadata({"pandas": json.dumps(pandas)}), folder / "meta/tasks.parquet")


def _write_v2(
    folder: Path, info: dict[str, Any], columns: Mapping[str, Array], episodes: _Rows, tasks: list[str]
) -> None:
    """Write a data file for each episode, and the tables of meta/ as lines of JSON."""
    chunks = {"total_chunks": -(-len(episodes) // _FILES_IN_CHUNK), "total_videos": 0}
    _write_json(folder / "meta/info.json", info | chunks)
    table, start, statistics = pa.table({name: files.as_arrow(values) for name, values in columns.items()}), 0, []
    for number, episode in enumerate(episodes):
        name = _DATA["v2.1"].format(episode_chunk=number // _FILES_IN_CHUNK, episode_index=number)
        pq.write_table(table.slice(start, episode["length"]), _parent(folder / name))
        found = _statistics(columns, slice(start, start + episode["length"]), quantiles=False)
        statistics.append({"episode_index": number, "stats": found})
        start += episode["length"]
    described = [{"task_index": number, "task": task} for number, task in enumerate(tasks)]
    for name, rows in (("episodes", episodes), ("episodes_stats", statistics), ("tasks", described)):
        _write_text(folder / f"meta/{name}.jsonl", map(json.dumps, rows))


def _parent(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    _write_text(path, [json.dumps(value, indent=4)])


def _write_text(path: Path, lines: Iterable[str]) -> None:
    _parent(path).write_text("".join(f"{line}\n" for line in lines), "utf-8")


@final
class _LeRobot(AbstractFormat):
    name, suffixes, title = "lerobot", ("",), "LeRobot folders"
    read, write, candidates = staticmethod(read_lerobot), staticmethod(write_lerobot), staticmethod(_candidates)
    reading = (core.OBSERVATIONS,)
    writing = (
        core.DIVIDE,
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
