"""imitation's trajectories: a folder that HuggingFace's `datasets` saved, or an older npz file; nothing is unpickled.

A row of the folder's Arrow table is a trajectory: `obs` (one more than actions), `acts`, `infos` (one text of JSON for
each action, as jsonpickle writes it), `terminal` (whether it ended the task) and optionally `rews`. The infos, parsed
as plain JSON, name the demonstrator. What is written is read back exactly.
"""

from __future__ import annotations

import json
import math
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import pyarrow as pa

from ileed import _memory
from ileed.data import Array, Demonstrations, Source
from ileed.data.columns import is_list
from ileed.data.encoding import join_episodes
from ileed.data.rules import listed
from ileed.errors import DemonstrationError, brief, path_of, refuse_damage
from ileed.formats import core, files
from ileed.formats.core import AbstractFormat, Candidate, Labeller, by_column

_NEEDED = ("obs", "acts", "terminal")
_STATE, _ABOUT, _DATA = "state.json", "dataset_info.json", "data-00000-of-00001.arrow"
_DEMONSTRATOR = "demonstrator"
_DAMAGE = (zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, EOFError)
_MOST_NUMBERS = 2**31 - 1  # of a column: Arrow's lists count them in 32 bits


class _Trajectories(NamedTuple):
    """Trajectories as saved: episodes as `Demonstrations.from_episodes` takes them, parsed infos, and notes."""

    episodes: list[dict[str, Any]]
    infos: list[list[dict[str, Any]]] | None
    notes: dict[str, Any]


def read_imitation(path: str | Path, *, demonstrator: Labeller | None = None) -> Demonstrations:
    """Read demonstrations that imitation saved (`imitation.data.serialize.save`), or our own writer.

    `demonstrator` is `by_column(...)`, which names a key of the infos, or `by_one(...)`; None takes the key
    `demonstrator` of the infos, as our writer saves it. The infos of an npz file are pickled and never read, so it
    needs `by_one`. The observation after the last action is left out, since no action was taken there.
    """
    path = path_of("path", path, error=DemonstrationError)
    source = Source.of(path, read_imitation, demonstrator=demonstrator)
    found = _read_folder(path) if path.is_dir() else _read_npz(path)
    if not found.episodes:
        raise DemonstrationError(f"{path} holds no trajectories: choose one that has some")
    names, labels = _who(path, found, demonstrator)
    columns = join_episodes(found.episodes, labels)
    columns |= {"encoding": files.noted_encoding(found.notes), "arrays": files.noted_arrays(found.notes)}
    if "terminals" in found.notes.get("absent", ()):
        columns["terminals"] = None
    return Demonstrations(
        **columns,
        **_from_infos(found),
        names=names,
        action_count=found.notes.get("action_count", 0),
        fps=found.notes.get("fps"),
        source=source,
    )


def _read_folder(path: Path) -> _Trajectories:
    table = _table(path)
    files.check_there(path, "column", _NEEDED, table.column_names)
    parts: dict[str, list[Any]] = {}
    for name in ("obs", "acts", "rews"):
        if name in table.column_names:
            parts[name] = _rows(name, _whole(table, name))
    terminal = files.as_numpy("terminal", table.column("terminal"))
    if terminal.dtype.kind != "b" or terminal.ndim > 1:
        raise DemonstrationError(f"terminal of {path} holds {terminal.dtype}: it must be true or false for each row")
    parts["terminal"] = terminal.tolist()
    infos = None
    if "infos" in table.column_names and table.schema.field("infos").type == pa.list_(pa.string()):
        infos = [[_info(text) for text in texts] for texts in _whole(table, "infos").to_pylist()]
    return _Trajectories(_episodes(parts), infos, files.schema_notes(table.schema, path))


def _table(path: Path) -> pa.Table:
    """The rows of all Arrow files that state.json lists; they lie in the folder itself."""
    listing = files.read_json(files.file_in(path, _STATE)).get("_data_files")
    entries = listing if isinstance(listing, list) else []
    names: list[Any] = [each.get("filename") for each in entries if isinstance(each, dict)]
    if not names or not all(isinstance(name, str) and name and Path(name).name == name for name in names):
        raise DemonstrationError(f"{path / _STATE} lists {brief(listing)}: it must name the Arrow files beside it")
    found = [files.file_in(path, name) for name in names]
    _memory.check_fits(path, sum(file.stat().st_size for file in found))
    with refuse_damage(path, "Arrow", pa.ArrowException):
        return pa.concat_tables([files.read_arrow(file) for file in found])


def _whole(table: pa.Table, name: str) -> pa.Array:
    """A column without missing values, in one piece."""
    array = table.column(name).combine_chunks()
    if array.null_count:
        raise DemonstrationError(f"{name!r} is missing in {array.null_count:,} trajectories: leave these out")
    return array


def _rows(name: str, array: pa.Array) -> list[Array]:
    """(row, ...) numbers of each trajectory, from lists of rows, which may be lists themselves."""
    values = files.as_numpy(name, pa.chunked_array([array.flatten()])) if is_list(array.type) else np.empty(0, object)
    if values.dtype.kind not in "biuf":
        raise DemonstrationError(f"{name!r} holds {brief(str(array.type))}: it must be a list of numbers in each row")
    ends = np.cumsum(files.numbers(array.value_lengths()), dtype=np.int64)
    return np.split(values, ends[:-1]) if len(ends) else []


def _episodes(parts: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """The parts of each trajectory by name; observations and continuous actions of one number become rows of one."""
    for name, kinds in (("obs", "biuf"), ("acts", "f")):
        parts[name] = [rows[:, None] if rows.ndim == 1 and rows.dtype.kind in kinds else rows for rows in parts[name]]
    return [dict(zip(parts, each, strict=True)) for each in zip(*parts.values(), strict=True)]


def _info(text: Any) -> dict[str, Any]:
    """An info as plain JSON; what jsonpickle made of Python's objects stays a description of them."""
    found = files.parse_json(text)
    return found if isinstance(found, dict) else {}


def _read_npz(path: Path) -> _Trajectories:
    """Trajectories of an older version of imitation, without their infos."""
    advice = "save it again with imitation's serialize.save, which makes a folder"
    with refuse_damage(path, "npz", *_DAMAGE):
        with zipfile.ZipFile(path) as archive:
            sizes = {each.filename.removesuffix(".npy"): each.file_size for each in archive.infolist()}
        files.check_there(path, "array", (*_NEEDED, "indices"), sorted(sizes))
        wanted = [name for name in (*_NEEDED, "indices", "rews") if name in sizes]
        _memory.check_fits(path, sum(sizes[name] for name in wanted))
        values = {}
        with np.load(path, allow_pickle=False) as opened:
            for name in wanted:
                try:
                    values[name] = np.atleast_1d(opened[name])
                except ValueError as error:
                    if "allow_pickle" not in str(error):
                        raise
                    found = f"{name!r} of {path} is pickled, and pickles are never read: they can run any program"
                    raise DemonstrationError(f"{found}; {advice}") from error
        at = values["indices"]
        if at.dtype.kind not in "iu" or at.ndim != 1 or (np.diff(at, prepend=0, append=len(values["acts"])) < 0).any():
            raise DemonstrationError(f"'indices' of {path} do not divide its {len(values['acts']):,} actions: {advice}")
        parts: dict[str, list[Any]] = {name: np.split(values[name], at) for name in ("acts", "rews") if name in values}
        parts["obs"] = np.split(values["obs"], at + np.arange(1, len(at) + 1))
        if len(values["terminal"]) != len(at) + 1 or not np.isin(values["terminal"], (0, 1)).all():
            raise DemonstrationError(
                f"'terminal' of {path} must be true or false for each of {len(at) + 1} trajectories"
            )
        parts["terminal"] = [bool(each) for each in values["terminal"]]
    return _Trajectories(_episodes(parts), None, {})


def _who(path: Path, found: _Trajectories, labeller: Labeller | None) -> tuple[tuple[str, ...], list[str | int]]:
    """The noted order of names, and the label of each trajectory."""
    numbers = [str(number) for number in range(len(found.episodes))]
    known = core.labels_of(labeller, numbers, by_column, title="imitation's trajectories")
    if known is not None:
        return (), list(known)
    if found.infos is None:
        raise core.unnamed(path, "its infos are pickled, and therefore not read")
    key = _DEMONSTRATOR if labeller is None else str(labeller.place)
    labels = []
    for number, infos in enumerate(found.infos):
        values = {json.dumps(info[key]): info[key] for info in infos if key in info}
        if not values and labeller is None:
            keys = listed(sorted({name for info in infos for name in info}), most=12) or "no keys"
            raise core.unnamed(path, f"the infos of trajectory {number} have {keys}", by_column)
        value = core.plain_label(next(iter(values.values()), None))
        if len(values) != 1 or value is None:
            told = listed([*values.values()]) or "nothing"
            rule = "it must be the same name or whole number, as plain JSON, in each info that has it"
            raise DemonstrationError(f"{key!r} in the infos of trajectory {number} is {told}: {rule}")
        labels.append(value)
    return files.names_as_noted(labels, found.notes) if labeller is None else (), labels


def _from_infos(found: _Trajectories) -> dict[str, Any]:
    """The legal actions, the timestamps and the skills that our writer put into the infos."""
    if found.infos is None or not found.notes:
        return {}
    infos = [info for each in found.infos for info in each]
    names = {"legal", "timestamps"} if "fps" in found.notes else {"legal"}
    try:
        columns = {name: np.array([info[name] for info in infos]) for name in names if infos and name in infos[0]}
        skills = {name: np.array([info["skill"][name] for info in infos]) for name in found.notes.get("skills", ())}
        return columns | {"skills": files.skills_as_noted(skills, found.notes)}
    except (LookupError, TypeError, ValueError) as error:
        raise DemonstrationError(f"the infos lack what the notes announce ({brief(error)}): write it again") from error


def _candidates(path: Path) -> list[Candidate]:
    """Keys of the infos that hold one name or whole number in each trajectory."""
    constant = []
    for infos in (_read_folder(path).infos or ()) if path.is_dir() else ():
        labels: dict[str, set[Any]] = {}
        for key, value in (entry for info in infos for entry in info.items()):
            labels.setdefault(key, set()).add(core.plain_label(value))
        constant.append({key: next(iter(each)) for key, each in labels.items() if len(each) == 1})
    return core.candidates("key {} of the infos", constant)


# --- writing


def write_imitation(data: Demonstrations, path: str | Path) -> None:
    """Write demonstrations as a new folder that `imitation.data.serialize.load` loads, completely or not at all.

    Each info holds the name of the demonstrator. imitation expects an observation after the last action, which repeats
    the one before it, and one `terminal` for each trajectory: a terminal before the end of an episode is refused.
    """
    path = path_of("path", path, error=DemonstrationError)
    if path.suffix.lower() == ".npz":
        raise DemonstrationError("imitation's npz files hold pickles, which are not written: name a folder instead")
    if unsafe := next((name for name in data.skills if name.startswith("py/")), None):
        rule = "imitation would take it for an object of Python; rename the skill"
        raise DemonstrationError(f"skill {unsafe!r} begins with 'py/', and {rule}")
    bounds = data.episode_bounds
    last = bounds[1:] - 1
    terminals = np.zeros(len(data), dtype=bool) if data.terminals is None else data.terminals
    if len(early := np.setdiff1d(np.flatnonzero(terminals), last)):
        episode = int(data.episode[early[0]])
        raise DemonstrationError(
            f"episode {episode} goes on after a terminal, which imitation cannot say: split it there"
        )
    seen = data.observations[np.insert(np.arange(len(data)), last + 1, last)]
    columns = {
        "obs": _lists(seen, bounds + np.arange(len(bounds))),
        "acts": _lists(data.actions, bounds),
        "infos": pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), pa.array(_infos(data), pa.string())),
        "terminal": pa.array(terminals[last]),
    }
    if data.rewards is not None:
        columns["rews"] = _lists(data.rewards, bounds)
    table = pa.table(columns).replace_schema_metadata({"ileed": json.dumps(files.notes_of(data))})
    state: dict[str, Any] = {
        "_data_files": [{"filename": _DATA}],
        "_fingerprint": data.fingerprint[:16],
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
    with files.write_folder(path) as folder:
        with pa.ipc.new_stream(folder / _DATA, table.schema) as stream:
            stream.write_table(table)
        (folder / _STATE).write_text(json.dumps(state, indent=2))
        about = {"citation": "", "description": "trajectories written by ileed", "homepage": "", "license": ""}
        (folder / _ABOUT).write_text(json.dumps(about, indent=2))


def _lists(values: Array, bounds: Array) -> pa.Array:
    """(row, ...) numbers as nested lists, one for each trajectory, which goes from one bound to the next."""
    if values.size > _MOST_NUMBERS:
        raise DemonstrationError(f"a column of {values.size:,} numbers is too long for imitation's files: write parts")
    found = pa.array(np.ascontiguousarray(values).reshape(-1))
    for axis in range(values.ndim - 1, 0, -1):
        rows = math.prod(values.shape[:axis])
        found = pa.ListArray.from_arrays(pa.array(np.arange(rows + 1) * values.shape[axis], pa.int32()), found)
    return pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), found)


def _infos(data: Demonstrations) -> list[str]:
    """The info of each step: the demonstrator, the legal actions, the time and the skills."""
    infos: list[dict[str, Any]] = [{_DEMONSTRATOR: data.names[who]} for who in data.demonstrator]
    for name, column in (("legal", data.legal), ("timestamps", data.timestamps)):
        for info, value in zip(infos, column.tolist(), strict=True) if column is not None else ():
            info[name] = value
    skills: Mapping[str, Sequence[Any]] = {name: values.tolist() for name, values in data.skills.items()}
    for number, info in enumerate(infos if skills else ()):
        info["skill"] = {name: values[number] for name, values in skills.items()}
    return [json.dumps(info) for info in infos]


@final
class _Imitation(AbstractFormat):
    name, suffixes, title = "imitation", ("", ".npz"), "imitation's trajectories"
    read, write, candidates = staticmethod(read_imitation), staticmethod(write_imitation), staticmethod(_candidates)

    def columns(self, path: Path) -> Sequence[str]:
        if path.is_dir():
            return list(_table(path).column_names)
        with refuse_damage(path, "npz", *_DAMAGE), zipfile.ZipFile(path) as archive:
            return sorted(name.removesuffix(".npy") for name in archive.namelist())

    def recognises(self, path: Path) -> bool:
        return path.suffix.lower() == ".npz" or all((path / name).exists() for name in (_STATE, _ABOUT))


FORMAT = _Imitation()
