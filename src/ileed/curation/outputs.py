"""Files of curation: tables for people, and what each trainer reads to keep, drop or weight episodes.

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
    from ileed.curation import Curated

_SUMMARY = "curated.json"
_MARK = {"ileed": "curated episodes"}  # the first entry of the summary
_KEEP, _BAND, _BANDS = "ileed_keep", "ileed_band_", 3


def write(curated: Curated, path: Path, format: str | None, source: Path | None, *, overwrite: bool) -> list[Path]:  # noqa: A002
    """Write the folder; see `Curated.write`."""
    writes = None if format is None else _WRITERS[one_of("format", format, _WRITERS)]
    if source is not None and not os.path.exists(source):
        raise DemonstrationError(f"there is no {source}, where the data are said to come from: check the path")
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
    """Refuse keys of episodes that are not one episode's alone in every file, as text, JSON or CSV."""
    keys = [str(key) for key in curated.data.episode_keys.tolist()]
    hint = "name the episodes uniquely with source_episode="
    if broken := next((key for key in keys if key != key.encode(errors="replace").decode()), None):
        raise DemonstrationError(f"the episode key {brief(broken)} is not valid Unicode: {hint}")
    first: dict[str, int] = {}
    for number, key in enumerate(keys):
        if (other := first.setdefault(cell_text(key), number)) != number:
            both = f"episodes {other} and {number} have the keys {brief(keys[other])} and {brief(key)}"
            raise DemonstrationError(f"{both}, which are the same in the files to write: {hint}")


def _check_source(curated: Curated, source: Path | None) -> None:
    """Refuse to write about a file that no longer holds the episodes that were scored."""
    read_from = curated.data.source
    if read_from is None or read_from.holds(curated.data, source):
        return
    if source is None or source.resolve() == read_from.path.resolve():
        found = f"{read_from.path} has changed since the demonstrations were read"
        raise DemonstrationError(f"{found}: read it and curate again")
    found = f"{source} does not hold the episodes that were read from {read_from.path}"
    raise DemonstrationError(f"{found}: pass as source= the file that the demonstrations were read from")


def check_destination(path: Path, source: Path | None, *, overwrite: bool) -> None:
    """Refuse a folder that holds the data, or that exists and is not a folder of curated episodes to overwrite."""
    check_local(path)
    check_holds_no_data(path, source)
    if not is_taken(path):
        return
    if not _files_of(path) or os.path.islink(path):
        raise RunError(f"{path} is there, and holds no curated episodes that could be replaced: choose another place")
    if not overwrite:
        raise RunError(
            f"{path} holds curated episodes: choose another place, or overwrite (at the command: --overwrite)"
        )


def check_holds_no_data(path: Path, source: Path | None) -> None:
    """Refuse a folder that holds the data that are curated."""
    if source is not None and Path(os.path.realpath(source)).is_relative_to(os.path.realpath(path)):
        raise RunError(f"{path} holds the data that are curated ({source}): choose another folder to write to")


def version(path: Path) -> str:
    """Names the content of a folder of curated episodes; empty if there is none."""
    try:
        return hashlib.blake2b((path / _SUMMARY).read_bytes(), digest_size=16).hexdigest()
    except OSError:
        return ""


def _files_of(folder: Path) -> list[str]:
    """The files that we wrote to a folder of curated episodes, by its summary; none if it has no summary of ours."""
    try:
        found = json.loads((folder / _SUMMARY).read_bytes())
    except (OSError, ValueError, RecursionError):
        return []
    files = found.get("files") if isinstance(found, dict) and found.get("ileed") == _MARK["ileed"] else None
    return [name for name in files if isinstance(name, str)] if isinstance(files, list) else []


_OURS = Ours(_SUMMARY, _files_of)


def summary(curated: Curated) -> dict[str, Any]:
    """What a program reads of the result: the rule, counts, bounds, reliability, comparisons, shares, correlation."""
    correlation = dict(zip(("value", "low", "high"), curated.length_correlation, strict=True))
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
            {
                "selection": each.name,
                "gain": _number(each.gain),
                "low": _number(each.low),
                "high": _number(each.high),
                "confidence_level": each.confidence_level,
                "is_better": each.is_better,
                "is_worse": each.is_worse,
            }
            for each in curated.comparisons
        ],
        "length_correlation": {name: _number(value) for name, value in correlation.items()},
        **({"explained": curated.explained} if curated.explained else {}),
        "people": curated.people().to_pylist(),
    }


def _number(value: float) -> float | None:
    return None if np.isnan(value) else value


def _plain(values: Array) -> list[Any]:
    """Keys as JSON holds them: whole numbers as numbers, all else as text."""
    return [value if isinstance(value, int) else str(value) for value in values.tolist()]


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _openpi(curated: Curated, partial: Path, path: Path, source: Path | None) -> None:
    """The kept ranges of steps of every episode; stretches that follow each other make one range."""
    data, kept = curated.data, curated.kept_steps
    new_episode = np.append(True, np.diff(data.episode) > 0)
    begins = np.flatnonzero(kept & (new_episode | ~np.append(False, kept[:-1])))
    ends = np.flatnonzero(kept & (np.append(new_episode[1:], True) | ~np.append(kept[1:], False))) + 1
    first, keys = np.searchsorted(data.episode, data.episode[begins]), _plain(data.episode_keys)
    if data.has_pseudonyms and are_episode_pseudonyms(keys):
        raise SettingsError(
            "episodes have pseudonyms, since their keys contain names, and openpi finds them by their keys: pass "
            "format=None (at the command: --format tables)"
        )
    ranges: dict[str, list[tuple[int, int]]] = {}
    for episode, start, end in zip(
        data.episode[begins], (begins - first).tolist(), (ends - first).tolist(), strict=True
    ):
        ranges.setdefault(str(keys[episode]), []).append((start, end))
    write_openpi_filter(ranges, partial / "openpi.json")


def _minari(curated: Curated, partial: Path, path: Path, source: Path | None) -> None:
    _write_json(partial / "minari.json", {"episode_indices": _numbers(curated, "Minari").tolist()})


def _numbers(curated: Curated, format: str) -> Array:  # noqa: A002
    """The numbers that the kept episodes have in a format that numbers them."""
    keys = curated.keys
    if keys.dtype.kind not in "iu":
        found = f"episodes are called {listed(_plain(keys), most=3)}"
        raise SettingsError(f"{found}, and {format} numbers them: pass format=None, or read them from such data")
    return keys


def _lerobot(curated: Curated, partial: Path, path: Path, source: Path | None) -> None:
    """`sample_weights.parquet`, one row for each frame, and the command lines that keep or delete episodes."""
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
    """The global number, the episode and the weight of every frame of a LeRobot folder; 0 for those not curated."""
    data, keys = curated.data, curated.data.episode_keys
    if source is None:
        if not np.array_equal(keys, np.arange(len(keys))):
            raise SettingsError("the data are some episodes of a folder: pass source=, the folder they were read from")
        return np.arange(len(data)), data.episode, curated.step_weights
    with refuse_damage(source, "LeRobot", pa.ArrowException):
        files = sorted((source / "data").glob("*/*.parquet"))
        frames = pa.concat_tables([pq.read_table(file, columns=["index", "episode_index"]) for file in files])
        index, episode = (frames[name].to_numpy() for name in ("index", "episode_index"))
    order = np.lexsort((index, episode))
    index, episode = index[order], episode[order]
    first, steps = np.searchsorted(episode, keys), np.bincount(data.episode)
    if (wrong := np.searchsorted(episode, keys, side="right") - first != steps).any():
        number = int(wrong.argmax())
        found = f"episode {keys[number]} has {steps[number]:,} steps here and another number in {source}"
        raise SettingsError(f"{found}: pass as source= the folder that the data were read from")
    weight = np.zeros(len(index))
    starts = np.searchsorted(data.episode, np.arange(len(keys)))
    weight[first[data.episode] + np.arange(len(data)) - starts[data.episode]] = curated.step_weights
    back = np.argsort(index)
    return index[back], episode[back], weight[back]


def _robomimic(curated: Curated, partial: Path, path: Path, source: Path | None) -> None:
    """A copy of the file with the mask `ileed_keep` and one for each band, and the bands' weights for its settings."""
    h5py = require("h5py", extra="robot")
    bands = _bands(curated)
    masks = {_KEEP: np.flatnonzero(curated.kept)} | {f"{_BAND}{number + 1}": each for number, each in enumerate(bands)}
    is_anonymous = curated.data.has_pseudonyms
    name = "curated.hdf5" if source is None or is_anonymous else source.name
    if source is None:
        asked = {mask: members.tolist() for mask, members in masks.items()}
        write_robomimic(curated.data, partial / name, masks=asked)
    else:
        if is_anonymous:  # a plain copy would contain the names
            copy_robomimic(source, partial / name, curated.data)
        else:
            shutil.copyfile(source, partial / name)
        keys = np.array(_plain(curated.data.episode_keys), dtype=np.str_)
        with refuse_damage(source, "HDF5"), h5py.File(partial / name, "r+") as file:
            if missing := [key for key in keys if f"data/{key}" not in file]:
                raise SettingsError(
                    f"{source} has no episode {missing[0]!r}: pass the file that the data were read from"
                )
            lengths = zip(keys, np.bincount(curated.data.episode).tolist(), strict=True)
            if other := next((key for key, steps in lengths if len(file[f"data/{key}/actions"]) != steps), None):
                raise SettingsError(
                    f"{source} has another number of steps in {other!r}: pass the file that the data were read from"
                )
            for old in [mask for mask in file.get("mask", ()) if mask == _KEEP or mask.startswith(_BAND)]:
                del file["mask"][old]
            for mask, members in masks.items():
                file[f"mask/{mask}"] = np.char.encode(keys[members], "utf-8")
    steps = np.bincount(curated.data.episode)
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
