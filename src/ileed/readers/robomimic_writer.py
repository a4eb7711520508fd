"""Writes demonstrations as a robomimic file, with the masks that robomimic's own files have."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ileed import runs
from ileed.checking import path_of
from ileed.demonstrations import Array, Demonstrations
from ileed.errors import DemonstrationError, require
from ileed.readers.robomimic import DEMONSTRATOR, OPERATOR

_TIERS = ("worse", "okay", "better")
_COMPRESSED = {"compression": "gzip", "compression_opts": 4, "shuffle": True}
_WORTH_COMPRESSING = 1024  # bytes; below that, what describes the compression outweighs what it saves


def write_robomimic(
    data: Demonstrations,
    path: str | Path,
    *,
    observations: Mapping[str, int] | None = None,
    next_observations: Array | None = None,
    env_args: Mapping[str, Any] | None = None,
    states: Array | None = None,
    masks: Mapping[str, Sequence[int]] | None = None,
    valid: Sequence[int] | None = None,
) -> None:
    """Write demonstrations of continuous actions as one robomimic file, whole or not at all.

    `observations` divides the numbers of an observation among keys, by how many each takes in order (None: all under
    `flat`). `next_observations` has the shape of `data.observations`, `states` is (step, state). `env_args` says which
    simulator robomimic's rollouts make; without it they cannot be run, but training can.

    Each demonstrator's episodes become a mask of that name; names such as `better_operator_1` give robomimic's tiers
    (better, okay, worse) and pairs (worse_okay, ...) too. `masks` adds further ones, by the numbers of their episodes.
    `valid` lists the episodes to hold out: they become the mask `valid`, the others `train`, and every mask M is
    divided into `M_train` and `M_valid`. Rewards and terminals that the data lack are left out.
    """
    require("h5py", extra="robot")
    if data.discrete:
        raise DemonstrationError("actions are discrete: robomimic's are continuous; use write_parquet for these data")
    keys = {"flat": data.observation_size} if observations is None else dict(observations)
    if (taken := sum(keys.values())) != data.observation_size or min(keys.values(), default=0) < 0:
        found = f"the keys {keys} take {taken} numbers but an observation has {data.observation_size}"
        raise DemonstrationError(f"{found}: they must take them all")
    for name, values in (("next_observations", next_observations), ("states", states)):
        if values is not None and len(values) != len(data):
            raise DemonstrationError(f"{len(data):,} steps but {len(values):,} {name}: pass one for each step")
    columns = {
        "actions": data.actions,
        "rewards": data.rewards,
        "dones": None if data.terminals is None else data.terminals.astype(np.int64),
        "states": states,
        DEMONSTRATOR: data.demonstrator,
        **_by_key("obs", data.observations, keys),
        **({} if next_observations is None else _by_key("next_obs", next_observations, keys)),
    }
    for name, values in data.skills.items():
        columns[f"skill/{name}"] = np.char.encode(values, "utf-8") if values.dtype.kind == "U" else values
    notes = {
        "format": 1,
        "observations": list(keys),
        "observation_shape": list(data.observations.shape[1:]),
        "names": list(data.names),
        "skills": {name: values.dtype.str for name, values in data.skills.items()},
    }
    named = _masks(data, masks or {}, valid)
    for name in (*keys, *named, *data.skills):
        if name in ("", ".") or "/" in name or "\0" in name:
            raise DemonstrationError(f"{name!r} cannot name a part of an HDF5 file: rename it, without '/'")
    attributes = {"total": len(data), "env_args": json.dumps(dict(env_args or {})), "ileed": json.dumps(notes)}
    bounds = np.searchsorted(data.episode, np.arange(data.episode_count + 1))
    _write(path, attributes, {name: each for name, each in columns.items() if each is not None}, bounds, named)


def _by_key(group: str, observations: Array, keys: Mapping[str, int]) -> dict[str, Array]:
    """The data set of each key, (step, number), in a group of observations."""
    flat = np.asarray(observations).reshape(len(observations), -1)
    bounds = np.cumsum([0, *keys.values()])
    if bounds[-1] != flat.shape[1]:
        raise DemonstrationError(f"next_observations have {flat.shape[1]} numbers but observations {bounds[-1]}")
    return {f"{group}/{key}": flat[:, start:stop] for key, (start, stop) in zip(keys, pairwise(bounds), strict=True)}


def _masks(
    data: Demonstrations, asked: Mapping[str, Sequence[int]], valid: Sequence[int] | None
) -> dict[str, list[int]]:
    """Every mask of the file: people, tiers, pairs of tiers, those asked for, and the two parts of each."""
    count, who = data.episode_count, data.episode_demonstrator
    for name, members in {**asked, "valid": valid or ()}.items():
        if strange := [number for number in members if not 0 <= number < count]:
            raise DemonstrationError(f"mask {name!r} names episode {strange[0]}: episodes go from 0 to {count - 1}")
    named: list[tuple[str, Sequence[int]]] = []
    tiers: dict[str, list[int]] = {tier: [] for tier in _TIERS}
    for number, name in enumerate(data.names):
        named.append((name, np.flatnonzero(who == number).tolist()))
        if match := OPERATOR.fullmatch(name):
            tiers[match[1]] += named[-1][1]
    pairs = [(f"{one}_{other}", tiers[one], tiers[other]) for one, other in combinations(_TIERS, 2)]
    named += [*tiers.items(), *((name, one + other) for name, one, other in pairs if one and other), *asked.items()]
    if valid is not None:
        for prefix, members in [("", range(count)), *((f"{name}_", members) for name, members in named)]:
            named.append((f"{prefix}train", [number for number in members if number not in valid]))
            named.append((f"{prefix}valid", [number for number in members if number in valid]))
    found: dict[str, list[int]] = {}
    for name, members in named:
        kept = sorted(set(members))
        if kept and found.setdefault(name, kept) != kept:
            raise DemonstrationError(f"there are two masks {name!r}: rename the demonstrator, or the one that you pass")
    return found


def _write(
    path: str | Path,
    attributes: Mapping[str, Any],
    columns: Mapping[str, Array],
    bounds: Array,
    masks: Mapping[str, Sequence[int]],
) -> None:
    import h5py

    content = io.BytesIO()
    with h5py.File(content, "w", libver=("v110", "v110")) as file:  # older versions take twice as much for indices
        group = file.create_group("data")
        group.attrs.update(attributes)
        for number, (start, stop) in enumerate(pairwise(bounds)):
            demo = group.create_group(f"demo_{number}")
            demo.attrs["num_samples"] = int(stop - start)
            for name, values in columns.items():
                part = values[start:stop]
                demo.create_dataset(name, data=part, **(_COMPRESSED if part.nbytes >= _WORTH_COMPRESSING else {}))
        for name, members in masks.items():
            file.create_dataset(f"mask/{name}", data=np.array([f"demo_{number}" for number in members], dtype="S"))
    runs.write_file(path_of("path", path, error=DemonstrationError), content.getvalue())
