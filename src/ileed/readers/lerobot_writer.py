"""Writes demonstrations as a LeRobot folder, v3.0 or v2.1, which lerobot's own programs open; whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ileed import runs
from ileed.checking import one_of, path_of, whole_number
from ileed.demonstrations import Array, Demonstrations
from ileed.errors import DemonstrationError
from ileed.readers.folders import write_folder
from ileed.readers.lerobot import NOTES, SKILL, STATES, TASK, VERSIONS
from ileed.readers.parquet import as_arrow

OPERATOR = "operator"
_FPS = 10
_FILES_IN_CHUNK = 1000
_FILE_BYTES = 100 << 20  # of a data file, beyond which the next begins, as lerobot has it
_QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
_DATA = {
    "v3.0": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
    "v2.1": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
}


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
    rate = frame_rate(data, fps)
    if os.path.lexists(path):
        raise DemonstrationError(f"{path} exists already: choose another place, or remove it first")
    keys = {STATES[0]: data.observation_size} if observations is None else dict(observations)
    labels, tasks = _tasks(data, task)
    columns = _columns(data, keys, tasks, rate)
    bounds = np.searchsorted(data.episode, np.arange(data.episode_count + 1))
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
        _FORMATS[version](folder, info, columns, bounds, labels)
        (folder / NOTES).write_text(json.dumps(_notes(data, keys)) + "\n", "utf-8")


def frame_rate(data: Demonstrations, asked: int | None) -> float:
    """Frames per second in the folder: as asked for, or that of the data, or 10 for data that state none."""
    return next(rate for rate in (asked, data.fps, _FPS) if rate is not None)


def _notes(data: Demonstrations, keys: Mapping[str, int]) -> dict[str, Any]:
    """What a LeRobot folder has no place for."""
    return {
        "format": 1,
        "demonstrator": OPERATOR,
        "names": list(data.names),
        "observations": list(keys),
        "observation_shape": list(data.observations.shape[1:]),
        "action_count": data.action_count,
        "skills": {name: values.dtype.str for name, values in data.skills.items()},
        "encoding": None if data.encoding is None else runs.plain(data.encoding),
    }


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
    _, first = np.unique(data.episode, return_index=True)
    frame = np.arange(len(data)) - first[data.episode]
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


def _statistics(values: Array, *, quantiles: bool) -> dict[str, list[Any]]:
    """What lerobot normalises by, one number for each dimension of a feature."""
    rows = values.reshape(len(values), -1)
    numbers = rows.astype(np.float64)
    found = {"min": rows.min(axis=0), "max": rows.max(axis=0), "mean": numbers.mean(axis=0), "std": numbers.std(axis=0)}
    found["count"] = np.array([len(rows)])
    if quantiles:
        found |= dict(zip(_QUANTILES, np.quantile(numbers, [*_QUANTILES.values()], axis=0), strict=True))
    return {name: each.tolist() for name, each in found.items()}


def _statistics_of_all(
    columns: Mapping[str, Array], rows: slice, *, quantiles: bool
) -> dict[str, dict[str, list[Any]]]:
    numbers = {name: values[rows] for name, values in columns.items() if values.dtype.kind != "U"}
    return {name: _statistics(values, quantiles=quantiles) for name, values in numbers.items()}


def _episodes(columns: Mapping[str, Array], bounds: Array, labels: list[str], *, quantiles: bool) -> Iterable[Any]:
    """What meta/ says of each episode: number, tasks and length; and its statistics."""
    for number, (start, stop) in enumerate(pairwise(bounds.tolist())):
        tasks = [labels[task] for task in np.unique(columns["task_index"][start:stop]).tolist()]
        about = {"episode_index": number, "tasks": tasks, "length": stop - start}
        yield about, _statistics_of_all(columns, slice(start, stop), quantiles=quantiles)


def _write_v3(
    folder: Path, info: dict[str, Any], columns: Mapping[str, Array], bounds: Array, labels: list[str]
) -> None:
    """Many episodes in a file, one row group each; meta/episodes and meta/tasks as parquet files."""
    sizes = {"data_files_size_in_mb": 100, "video_files_size_in_mb": 200}
    _write_json(folder / "meta/info.json", info | sizes)
    _write_json(folder / "meta/stats.json", _statistics_of_all(columns, slice(None), quantiles=True))
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


_FORMATS: Mapping[str, Callable[..., None]] = {"v3.0": _write_v3, "v2.1": _write_v2}


def _parent(path: Path) -> Path:
    """The path, in a folder that exists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=4) + "\n", "utf-8")


def _write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
