"""LeRobot's folders, v3.0 and v2.1: frames in parquet files, and in meta/ what describes them.

Low-dimensional features are read, with pyarrow alone; images and videos are not opened. docs/decisions/lerobot.md has
the layout, and what our writer adds so that what is written is read back exactly.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ileed import memory
from ileed.checking import path_of, texts_or_none
from ileed.demonstrations import Array, Demonstrations, Encoding, Source
from ileed.demonstrations.columns import is_text
from ileed.demonstrations.encoding import numbered_names
from ileed.demonstrations.rules import listed
from ileed.errors import DemonstrationError, UnnamedDemonstratorError, brief, refuse_damage
from ileed.readers.episode_table import by_episode_table, episode_tables
from ileed.readers.folders import leads_out
from ileed.readers.parquet import ParquetFile, as_numpy, numbers, read_encoding
from ileed.readers.reader import Candidate, Labeller, Reader, by_column, by_one, read_notes, shape_as_noted
from ileed.wording import counted, did_you_mean, printable

VERSIONS = ("v3.0", "v2.1")
STATES = ("observation.state", "observation.environment_state")
SKILL = "skill."
NOTES = "meta/ileed.json"
TASK = "task"
_IMAGES = ("video", "image")
_OPTIONAL = {"next.reward": "rewards", "next.done": "terminals", "legal": "legal", "timestamp": "timestamps"}
_OWN = ("index", "episode_index", "frame_index", "task_index", "action", *_OPTIONAL)
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
    of_frames = [who.column] if isinstance(who, by_column) and who.column in folder.columns else []
    skills = [name for name in folder.columns if name.startswith(SKILL)]
    optional = [name for name in (*_OPTIONAL, "task_index") if name in folder.columns]
    if folder.info.get("fps") is None:
        optional = [name for name in optional if name != "timestamp"]
    frames = folder.frames([*keys, "action", "episode_index", *optional, *skills, *of_frames])
    episode, acted = frames("episode_index"), frames("action")
    counts = _check_episodes(folder, episode)
    parts = [frames(key).reshape(len(episode), -1) for key in keys]
    seen, widths = np.concatenate(parts, axis=1), [part.shape[1] for part in parts]
    acted = acted[:, None] if acted.ndim == 1 and acted.dtype.kind == "f" else acted
    noted, count = keys == folder.notes.get("observations"), folder.notes.get("action_count", 0)
    encoding = read_encoding(folder.notes.get("encoding")) if noted else folder.encoding(keys, widths, acted, count)
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
        skills={name.removeprefix(SKILL): _weights(frames(name)) for name in skills} | folder.tasks(frames, optional),
        action_count=count,
        encoding=encoding,
        fps=folder.info.get("fps"),
        source=source,
    )


def _weights(values: Array) -> Array:
    """A skill column: labels as they are, numbers as weights of one skill."""
    return values[:, None] if values.ndim == 1 and values.dtype.kind == "f" else values


class _Folder:
    """A LeRobot folder: what meta/info.json says, and the parquet files, of which only the footers were read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.info = _read_object(self.file("meta/info.json"))
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
            memory.check_fits(self.path, sum(file.decoded_bytes(wanted) for file in self.files))
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
        memory.check_fits("the tasks", 4 * longest * len(index))
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
    if not isinstance(labeller, by_column | by_one | by_episode_table):
        raise DemonstrationError(
            f"{labeller!r} does not apply to LeRobot folders: use by_column(...) (at the command: --demonstrator NAME)"
        )
    known = [*folder.columns, *folder.columns_of_episodes]
    if isinstance(labeller, by_column) and labeller.column not in known:
        others = [name for name in known if name not in _OWN]
        meant = did_you_mean(labeller.column, others)
        raise DemonstrationError(
            f"{folder.path} has no feature {labeller.column!r}{meant}: it has {listed(others, 20)}; name one of these"
        )
    return labeller


def _labels_by_episode(folder: _Folder, labeller: Labeller, counts: Array) -> Array:
    """Who demonstrated each frame, from what is said of whole episodes."""
    if isinstance(labeller, by_one):
        found = np.array([labeller.name] * len(counts))
    elif isinstance(labeller, by_episode_table):
        found = np.array(labeller.labels([str(number) for number in range(len(counts))]))
    else:
        assert isinstance(labeller, by_column)
        numbers, values = folder.episodes(labeller.column)
        order = np.argsort(numbers, kind="stable")
        if not np.array_equal(numbers[order], np.arange(len(counts))):
            raise DemonstrationError(
                f"{labeller.column!r} of meta/episodes has {len(numbers):,} values and there are {len(counts):,} "
                "episodes: each needs one"
            )
        found = values[order]
    memory.check_fits("the demonstrator", found.itemsize * int(counts.sum()))
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
        while isinstance(array, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
            lengths = np.unique(numbers(array.value_lengths()))
            if array.null_count or len(lengths) > 1:
                raise DemonstrationError(f"column {name!r} has lists of {len(lengths)} lengths: all must have the same")
            array = array.flatten()
        array = array.dictionary_encode() if is_text(array.type) else array
        found = as_numpy(name, pa.chunked_array([array]))
        return found if len(found) == rows else found.reshape(rows, -1)
    return as_numpy(name, column)


def _read_object(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object."""
    with refuse_damage(path, "JSON"):
        found = json.loads(path.read_text("utf-8"))
        if not isinstance(found, dict):
            raise ValueError("it holds no object")
        return found


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """A file with one JSON object on each line."""
    with refuse_damage(path, "JSON"):
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
        if not all(isinstance(row, dict) for row in rows):
            raise ValueError("a line holds no object")
        return rows


def _write(data: Demonstrations, path: str | Path, **options: Any) -> None:
    from ileed.readers.lerobot_writer import write_lerobot  # which builds on this module

    write_lerobot(data, path, **options)


READER = Reader(
    "lerobot",
    ("",),
    read_lerobot,
    columns=lambda path: _Folder(path).columns,
    recognises=lambda path: (path / "meta" / "info.json").is_file(),
    write=_write,
    candidates=_candidates,
)
