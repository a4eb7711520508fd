"""Files of curation: tables to read, and what each trainer reads to keep, drop or weight episodes.

The data that were curated are read or copied, and never changed. `ileed.runs.files` replaces the folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ileed import runs
from ileed.data import Array
from ileed.data.rules import listed
from ileed.data.source import are_episode_pseudonyms
from ileed.errors import (
    DemonstrationError,
    RunError,
    SettingsError,
    brief,
    cell_text,
    one_of,
    printable,
    refuse_damage,
    require,
)
from ileed.formats import write_openpi_filter, write_robomimic
from ileed.formats.robomimic import copy_robomimic
from ileed.runs.files import Ours, check_local, csv_bytes, is_taken, replace_folder

if TYPE_CHECKING:
    from ileed.curation.curated import Curated

_SUMMARY = "curated.json"
_MARK = {"ileed": "curated episodes"}  # the first entry of the summary
_KEEP, _BAND, _BANDS = "ileed_keep", "ileed_band_", 3


def write(curated: Curated, path: Path, format: str | None, source: Path | None, *, overwrite: bool) -> list[Path]:  # noqa: A002
    """Write the folder; see `Curated.write`."""
    writes = None if format is None else _WRITERS[one_of("format", format, _WRITERS)]
    if source is not None and not os.path.exists(source):
        message = f"source is {source}, which does not exist: pass where the data were read from"
        raise DemonstrationError(message, code="source-missing")
    _check_keys(curated)
    _check_source(curated, source)
    check_destination(path, source, overwrite=overwrite)
    with replace_folder(path, _OURS if overwrite else None) as partial:
        pq.write_table(curated.episodes, partial / "episodes.parquet")
        pq.write_table(curated.stretch_table, partial / "stretches.parquet")
        (partial / "episodes.csv").write_bytes(csv_bytes(curated.episodes))
        if writes is not None:
            writes(curated, partial, path, source)
        files = sorted([_SUMMARY, *(file.name for file in partial.iterdir())])
        about = {**_MARK, **summary(curated), "files": files, "provenance": runs.provenance()}
        _write_json(partial / _SUMMARY, about)
    return [path / name for name in files]


def _check_keys(curated: Curated) -> None:
    """Refuse keys that are not valid, or not unique, as text in JSON and CSV files."""
    hint, first = "name the episodes uniquely with source_episode=", dict[str, int]()
    keys = [str(key) for key in curated.data.episode_keys.tolist()]
    for number, key in enumerate(keys):
        if key != key.encode(errors="replace").decode():
            message = f"the episode key {brief(key)} is not valid Unicode: {hint}"
            raise DemonstrationError(message, code="episode-key-invalid")
        if (other := first.setdefault(cell_text(key), number)) != number:
            both = f"episodes {other} and {number} have the keys {brief(keys[other])} and {brief(key)}"
            message = f"{both}, which are the same in the files to write: {hint}"
            raise DemonstrationError(message, code="episode-keys-alike")


def _check_source(curated: Curated, source: Path | None) -> None:
    """Refuse a source that no longer contains the episodes that were scored."""
    read_from = curated.data.source
    if read_from is None or read_from.holds(curated.data, source):
        return
    if source is None or source.resolve() == read_from.path.resolve():
        found = f"{read_from.path} has changed since the demonstrations were read"
        raise DemonstrationError(f"{found}: read it and curate again", code="source-changed")
    found = f"{source} does not hold the episodes that were read from {read_from.path}"
    advice = "pass as source= the file that the demonstrations were read from"
    raise DemonstrationError(f"{found}: {advice}", code="source-differs")


def check_destination(path: Path, source: Path | None, *, overwrite: bool) -> None:
    """Refuse a folder that contains the data, or that exists and is no folder of curated episodes to overwrite."""
    check_local(path)
    check_holds_no_data(path, source)
    if not is_taken(path):
        return
    if not _files_of(path) or os.path.islink(path):
        message = f"{path} exists and holds no curated episodes that could be replaced: choose another place"
        raise RunError(message, code="folder-not-ours")
    if not overwrite:
        message = f"{path} holds curated episodes: choose another place, or overwrite (at the command: --overwrite)"
        raise RunError(message, code="folder-exists")


def check_holds_no_data(path: Path, source: Path | None) -> None:
    """Refuse a folder that contains the data that are curated."""
    if source is not None and Path(os.path.realpath(source)).is_relative_to(os.path.realpath(path)):
        message = f"{path} holds the data that are curated ({source}): choose another folder to write to"
        raise RunError(message, code="folder-holds-data")


def version(path: Path) -> str:
    """A digest of the content of a folder of curated episodes; empty if there is none."""
    try:
        return hashlib.blake2b((path / _SUMMARY).read_bytes(), digest_size=16).hexdigest()
    except OSError:
        return ""


def _files_of(folder: Path) -> list[str]:
    """The files that an earlier call wrote to a folder, by its summary."""
    try:
        found = json.loads((folder / _SUMMARY).read_bytes())
    except (OSError, ValueError, RecursionError):
        return []
    files = found.get("files") if isinstance(found, dict) and found.get("ileed") == _MARK["ileed"] else None
    return [name for name in files if isinstance(name, str)] if isinstance(files, list) else []


_OURS = Ours(_SUMMARY, _files_of)


def summary(curated: Curated) -> dict[str, Any]:
    """The result for programs: rule, counts, thresholds, reliability, comparisons, shares, correlation."""
    measures = ("gain", "low", "high", "confidence_level", "is_better", "is_worse")
    return {
        "rule": curated.sentence,
        "judged_by": curated.judged_by,
        "score": curated.rule.by,
        "bounds": dict(curated.rule.bounds),
        "confidence_level": curated.confidence_level,
        "episodes": len(curated.kept),
        "kept_episodes": int(curated.kept.sum()),
        "steps": len(curated.data),
        "kept_steps": int(curated.kept_steps.sum()),
        "kept_keys": _plain(curated.keys),
        "within_reliability": _number(curated.within_reliability),
        "effective_size": curated.effective_size,
        "comparisons": [
            {"selection": each.name, **{name: _number(getattr(each, name)) for name in measures}}
            for each in curated.comparisons
        ],
        "length_correlation": {name: _number(value) for name, value in curated.length_correlation._asdict().items()},
        **({"explained": curated.explained} if curated.explained else {}),
        "people": curated.people().to_pylist(),
    }


def _number(value: float) -> float | None:
    return None if np.isnan(value) else value


def _plain(values: Array) -> list[Any]:
    """Keys for JSON: whole numbers as numbers, all others as text."""
    return [value if isinstance(value, int) else str(value) for value in values.tolist()]


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _openpi(curated: Curated, partial: Path, path: Path, source: Path | None) -> None:
    """`openpi.json`: the kept ranges of steps of each episode; adjacent segments make one range."""
    data, kept = curated.data, curated.kept_steps
    keys = _plain(data.episode_keys)
    if data.has_pseudonyms and are_episode_pseudonyms(keys):
        raise SettingsError(
            "episodes have pseudonyms, since their keys contain names, and openpi finds them by their keys: pass "
            "format=None (at the command: --format tables)",
            code="episode-keys-are-pseudonyms",
        )
    ranges: dict[str, list[tuple[int, int]]] = {}
    for number, first in enumerate(data.episode_bounds[:-1].tolist()):
        own = kept[first : data.episode_bounds[number + 1]].astype(np.int8)
        change = np.flatnonzero(np.diff(own, prepend=0, append=0)).tolist()
        if change:
            ranges[str(keys[number])] = list(zip(change[::2], change[1::2], strict=True))
    write_openpi_filter(ranges, partial / "openpi.json")


def _minari(curated: Curated, partial: Path, path: Path, source: Path | None) -> None:
    """`minari.json`: the indices of the kept episodes."""
    _write_json(partial / "minari.json", {"episode_indices": _numbers(curated, "Minari").tolist()})


def _numbers(curated: Curated, format: str) -> Array:  # noqa: A002
    """The keys of the kept episodes, in a format that numbers episodes."""
    keys = curated.keys
    if keys.dtype.kind not in "iu":
        found = f"episodes are called {listed(_plain(keys), most=3)}, but {format} numbers them"
        message = f"{found}: pass format=None, or read them from such data"
        raise SettingsError(message, code="episode-keys-not-numbers")
    return keys


def _lerobot(curated: Curated, partial: Path, path: Path, source: Path | None) -> None:
    """`sample_weights.parquet`, one row for each frame, and commands that keep or delete episodes."""
    keep = _numbers(curated, "lerobot")
    index, episode, weight = _frames(curated, source)
    columns = {"index": pa.array(index, pa.int64()), "weight": pa.array(weight, pa.float32())}
    pq.write_table(pa.table(columns), partial / "sample_weights.parquet")
    drop = np.setdiff1d(episode, keep)
    name = "DATASET" if source is None else source.resolve().name
    root = "" if source is None else f" --root={shlex.quote(str(source.resolve()))}"
    new = "" if source is None else f" --new_root={shlex.quote(f'{source.resolve()}_kept')}"
    train_root = root.replace("--root", "--dataset.root")
    text = [
        f"# {printable(curated.sentence)}",
        "# Train on the kept episodes; add the options of your policy:",
        f"lerobot-train --dataset.repo_id={shlex.quote(name)}{train_root} --dataset.episodes='{_list(keep)}'",
        "# Or make a new data set without the others; the old one stays as it is:",
        f"lerobot-edit-dataset --repo_id={shlex.quote(name)}{root} --new_repo_id={shlex.quote(f'{name}_kept')}{new} "
        f"--operation.type=delete_episodes --operation.episode_indices='{_list(drop)}'",
    ]
    text = text if len(drop) else text[:3]  # lerobot refuses to delete nothing
    (partial / "lerobot.txt").write_text("\n".join(text) + "\n", encoding="utf-8")


def _list(numbers: Array) -> str:
    return "[" + ",".join(map(str, numbers.tolist())) + "]"


def _frames(curated: Curated, source: Path | None) -> tuple[Array, Array, Array]:
    """The global index, the episode and the weight of each frame of a LeRobot folder; 0 if it was not curated."""
    data, keys = curated.data, curated.data.episode_keys
    if source is None:
        if not np.array_equal(keys, np.arange(len(keys))):
            message = "the data are some episodes of a folder: pass source=, the folder that they were read from"
            raise SettingsError(message, code="source-needed")
        return np.arange(len(data)), data.episode, curated.step_weights
    with refuse_damage(source, "LeRobot", pa.ArrowException):
        files = sorted((source / "data").glob("*/*.parquet"))
        frames = pa.concat_tables([pq.read_table(file, columns=["index", "episode_index"]) for file in files])
        index, episode = (frames[name].to_numpy() for name in ("index", "episode_index"))
    order = np.lexsort((index, episode))
    index, episode = index[order], episode[order]
    first, steps = np.searchsorted(episode, keys), np.diff(data.episode_bounds)
    if (wrong := np.searchsorted(episode, keys, side="right") - first != steps).any():
        number = int(wrong.argmax())
        found = f"episode {keys[number]} has {steps[number]:,} steps here and another number in {source}"
        advice = "pass as source= the folder that the data were read from"
        raise SettingsError(f"{found}: {advice}", code="source-differs")
    weight = np.zeros(len(index))
    weight[(first - data.episode_bounds[:-1])[data.episode] + np.arange(len(data))] = curated.step_weights
    back = np.argsort(index)
    return index[back], episode[back], weight[back]


def _robomimic(curated: Curated, partial: Path, path: Path, source: Path | None) -> None:
    """A copy of the file with the mask `ileed_keep` and a mask for each band, and settings with weights of bands."""
    h5py, data = require("h5py", extra="robot"), curated.data
    bands, steps = _bands(curated), np.diff(data.episode_bounds)
    masks = {_KEEP: np.flatnonzero(curated.kept)} | {f"{_BAND}{number + 1}": each for number, each in enumerate(bands)}
    name = "curated.hdf5" if source is None or data.has_pseudonyms else source.name
    if source is None:
        write_robomimic(data, partial / name, masks={mask: members.tolist() for mask, members in masks.items()})
    else:
        if data.has_pseudonyms:  # a plain copy would contain the names
            copy_robomimic(source, partial / name, data)
        else:
            shutil.copyfile(source, partial / name)
        keys = np.array(_plain(data.episode_keys), dtype=np.str_)
        with refuse_damage(source, "HDF5"), h5py.File(partial / name, "r+") as file:
            for key, count in zip(keys, steps.tolist(), strict=True):
                if f"data/{key}" not in file or len(file[f"data/{key}/actions"]) != count:
                    found = f"{source} has no episode {key!r} of {count:,} steps"
                    advice = "pass as source= the file that the data were read from"
                    raise DemonstrationError(f"{found}: {advice}", code="source-differs")
            for old in [mask for mask in file.get("mask", ()) if mask == _KEEP or mask.startswith(_BAND)]:
                del file["mask"][old]
            for mask, members in masks.items():
                file[f"mask/{mask}"] = np.char.encode(keys[members], "utf-8")
    weight = [float(np.average(curated.scores[curated.rule.by].estimate[each], weights=steps[each])) for each in bands]
    mean = np.average(weight, weights=[steps[each].sum() for each in bands]) or 1.0
    entries = [
        {"path": str(path.resolve() / name), "filter_key": f"{_BAND}{number + 1}", "weight": round(each / mean, 4)}
        for number, each in enumerate(weight)
    ]
    _write_json(partial / "robomimic_bands.json", {"train": {"data": entries, "normalize_weights_by_ds_size": False}})
    kept = {"data": str(path.resolve() / name), "hdf5_filter_key": _KEEP}  # every release takes it in this form
    _write_json(partial / "robomimic_keep.json", {"train": kept})


def _bands(curated: Curated) -> list[Array]:
    """The kept episodes in bands of about equal numbers, the best first."""
    kept = np.flatnonzero(curated.kept)
    order = kept[np.argsort(-curated.scores[curated.rule.by].estimate[kept], kind="stable")]
    return [np.sort(band) for band in np.array_split(order, min(_BANDS, len(order)))]


_WRITERS: Mapping[str, Callable[[Curated, Path, Path, Path | None], None]] = {
    "lerobot": _lerobot,
    "minari": _minari,
    "openpi": _openpi,
    "robomimic": _robomimic,
}
