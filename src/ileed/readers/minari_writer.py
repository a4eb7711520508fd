"""Writes demonstrations as a data set of Minari, in its HDF5 storage."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ileed.checking import path_of
from ileed.demonstrations import Array, Demonstrations
from ileed.errors import DemonstrationError, require
from ileed.readers.folders import write_folder
from ileed.readers.minari import DEMONSTRATOR, LEGAL, SKILL, TIMESTAMPS
from ileed.readers.minari_storage import MAIN
from ileed.readers.notes import notes_of

_VERSION = "0.5.4"  # of Minari, whose storage this is
_IDENTIFIER = re.compile(r"[-_\w]+-v\d+", re.ASCII)
_COMPRESSED = {"compression": "gzip", "compression_opts": 4, "shuffle": True}
_WORTH_COMPRESSING = 1024  # bytes


def write_minari(data: Demonstrations, path: str | Path, *, metadata: Mapping[str, Any] | None = None) -> None:
    """Write demonstrations as a new folder that Minari loads, whole or not at all.

    The name of each episode's demonstrator becomes its metadata `demonstrator`. `metadata` are further entries of the
    data set's own, such as `author`, `description`, `env_spec` or `dataset_id`; the last is the folder's name by
    default, which Minari wants to end in a version, as in `lift-v0`. Minari demands some columns that data may lack:
    rewards are then zero, terminations false, an episode that does not end in a termination is truncated at its last
    step, and the observation after the last action repeats the one before it.
    """
    require("h5py", extra="robot")
    path = path_of("path", path, error=DemonstrationError)
    for name in data.skills:
        if name in ("", ".") or "/" in name or "\0" in name:
            raise DemonstrationError(f"{name!r} cannot name a part of an HDF5 file: rename the skill, without '/'")
    bounds = np.searchsorted(data.episode, np.arange(data.episode_count + 1))
    action = (
        {"type": "Discrete", "dtype": "int64", "start": 0, "n": data.action_count}
        if data.discrete
        else _box(data.actions)
    )
    identifier = path.name if _IDENTIFIER.fullmatch(path.name) else f"{re.sub(r'[^-_0-9A-Za-z]', '_', path.name)}-v0"
    content = _episodes(data, bounds)
    about = {
        "total_episodes": data.episode_count,
        "total_steps": len(data),
        "data_format": "hdf5",
        "jpeg_encoding": False,
        "observation_space": json.dumps(_box(data.observations)),
        "action_space": json.dumps(action),
        "dataset_id": identifier,
        "minari_version": _VERSION,
        "dataset_size": round(len(content) / 1e6, 1),
        **(metadata or {}),
        "ileed": json.dumps(notes_of(data)),
    }
    with write_folder(path) as folder:
        (folder / "data").mkdir()
        (folder / "data" / MAIN).write_bytes(content)
        (folder / "data" / "metadata.json").write_text(json.dumps(about))


def _box(values: Array) -> dict[str, Any]:
    """The space of all values of this type and shape, as Minari writes gymnasium's Box."""
    kind, shape = values.dtype, values.shape[1:]
    low, high = (-np.inf, np.inf) if kind.kind == "f" else (0, 1) if kind.kind == "b" else _range(kind)
    bounds = {name: np.full(shape, bound).tolist() for name, bound in (("low", low), ("high", high))}
    return {"type": "Box", "dtype": str(kind.newbyteorder("=")), "shape": list(shape), **bounds}


def _range(kind: np.dtype[Any]) -> tuple[int, int]:
    limits = np.iinfo(kind)
    return int(limits.min), int(limits.max)


def _episodes(data: Demonstrations, bounds: Array) -> bytes:
    """The HDF5 file with a group for each episode."""
    import h5py

    steps = len(data)
    ends = np.zeros(steps, dtype=bool)
    ends[bounds[1:] - 1] = True
    terminations = np.zeros(steps, dtype=bool) if data.terminals is None else data.terminals
    columns: dict[str, Array] = {
        "actions": data.actions,
        "rewards": np.zeros(steps, dtype=np.float32) if data.rewards is None else data.rewards,
        "terminations": terminations,
        "truncations": ends & ~terminations,
    }
    longer = {"observations": data.observations}  # by one row, as in Minari
    if data.legal is not None:
        longer[LEGAL] = data.legal
    if data.timestamps is not None:
        longer[TIMESTAMPS] = data.timestamps
    for name, values in data.skills.items():
        longer[SKILL + name] = np.char.encode(values, "utf-8") if values.dtype.kind == "U" else values
    content = io.BytesIO()
    with h5py.File(content, "w", libver=("v110", "v110"), track_order=True) as file:
        for number, (start, stop) in enumerate(pairwise(bounds)):
            group = file.create_group(f"episode_{number}")
            who = data.names[data.demonstrator[start]]
            group.attrs.update({"id": number, "total_steps": int(stop - start), DEMONSTRATOR: who})
            parts = {name: values[start:stop] for name, values in columns.items()}
            parts |= {name: np.concatenate([each[start:stop], each[stop - 1 : stop]]) for name, each in longer.items()}
            for name, part in parts.items():
                group.create_dataset(name, data=part, **(_COMPRESSED if part.nbytes >= _WORTH_COMPRESSING else {}))
    return content.getvalue()
