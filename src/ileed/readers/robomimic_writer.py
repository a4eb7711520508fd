"""Writes demonstrations as a robomimic file, with the masks that robomimic's own files have."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from ileed import runs
from ileed.checking import instance_of, path_of, text, whole_number
from ileed.demonstrations import Array, Demonstrations, check_demonstrations
from ileed.demonstrations.rules import as_array, optional
from ileed.errors import DemonstrationError, SettingsError, brief, require
from ileed.readers import hdf5
from ileed.readers.reader import read_notes
from ileed.readers.robomimic import DEMONSTRATOR, OPERATOR, TIMESTAMPS

_COPIED = ("actions", "rewards", "dones", "states", "obs", "next_obs", TIMESTAMPS)
_ENVIRONMENT = ("env_name", "env_version", "type", "env_kwargs")
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
    check_demonstrations(data)
    for name, given in (("observations", observations), ("env_args", env_args), ("masks", masks)):
        instance_of(name, given, Mapping | None, rule="pass a mapping, or None", error=DemonstrationError)
    if data.discrete:
        raise DemonstrationError("actions are discrete: robomimic's are continuous; use write_parquet for these data")
    keys = _keys(observations, data.observation_size)
    next_observations = optional(_rows, next_observations, "next_observations", len(data))
    states = optional(_rows, states, "states", len(data))
    columns = {
        "actions": data.actions,
        "rewards": data.rewards,
        "dones": None if data.terminals is None else data.terminals.astype(np.int64),
        "states": states,
        DEMONSTRATOR: data.demonstrator,
        TIMESTAMPS: data.timestamps,
        **_by_key("obs", data.observations, keys),
        **({} if next_observations is None else _by_key("next_obs", next_observations, keys)),
    }
    for name, values in data.skills.items():
        columns[f"skill/{name}"] = np.char.encode(values, "utf-8") if values.dtype.kind == "U" else values
    named = _masks(data, masks or {}, valid)
    for name in (*keys, *named, *data.skills):
        if name in ("", ".") or "/" in name or "\0" in name:
            raise DemonstrationError(f"{name!r} cannot name a part of an HDF5 file: rename it, without '/'")
    attributes = {"total": len(data), "env_args": json.dumps(dict(env_args or {}))}
    attributes["ileed"] = json.dumps(_notes(data, keys))
    bounds = np.searchsorted(data.episode, np.arange(data.episode_count + 1))
    _write(path, attributes, {name: each for name, each in columns.items() if each is not None}, bounds, named)


def copy_robomimic(source: Path, path: Path, data: Demonstrations) -> None:
    """Copy the episodes of `data` from the robomimic file they were read from, with the demonstrators of `data`.

    The copy has the numbers of robomimic's own data sets (images included), the skills of `data` and the masks `train`
    and `valid`. Other masks, data sets and attributes, text above all, may name demonstrators and are left out.
    """
    import h5py

    with hdf5.open_file(source) as old, h5py.File(path, "w", libver=("v110", "v110")) as new:
        group, keys = new.create_group("data"), [str(key) for key in data.episode_keys.tolist()]
        if missing := [key for key in keys if f"data/{key}" not in old]:
            raise SettingsError(f"{source} has no episode {missing[0]!r}: pass the file that the data were read from")
        made, notes = (read_notes(old["data"].attrs.get(name, "{}"), repr(name)) for name in ("env_args", "ileed"))
        kept = {name: notes[name] for name in ("observations", "observation_shape", "skills", "fps") if name in notes}
        group.attrs["total"] = len(data)
        group.attrs["env_args"] = json.dumps({name: made[name] for name in _ENVIRONMENT if name in made})
        group.attrs["ileed"] = json.dumps({"format": 1, "names": list(data.names), **kept})
        for key, person, (start, stop) in zip(
            keys, data.episode_demonstrator, pairwise(data.episode_bounds), strict=True
        ):
            demo = group.create_group(key)
            demo.attrs["num_samples"] = int(stop - start)
            for name in (*_COPIED, *(["skill"] if data.skills else [])):
                _copy_numbers(old[f"data/{key}"].get(name), demo, name, with_text=name == "skill")
            demo[DEMONSTRATOR] = np.full(stop - start, person)
        who, there = data.episode_demonstrator, set(keys)
        masks = {name: np.array(keys)[who == number].tolist() for number, name in enumerate(data.names)}
        for name in ("train", "valid"):
            if name in old.get("mask", {}):
                masks[name] = [key for key in hdf5.read(old[f"mask/{name}"], name).tolist() if key in there]
        for name, members in masks.items():
            if members:
                new[f"mask/{name}"] = np.array(members, dtype="S")


def _copy_numbers(item: Any, target: Any, name: str, *, with_text: bool) -> None:
    """Copy a data set, or those of a group, without attributes."""
    if hdf5.is_group(item):
        for each in item:
            _copy_numbers(item[each], target.require_group(name), each, with_text=with_text)
    elif hdf5.is_data_set(item) and (with_text or item.dtype.kind in "biuf"):
        item.file.copy(item, target, name=name, without_attrs=True)


def _keys(observations: Mapping[str, int] | None, size: int) -> dict[str, int]:
    """How many of the numbers of an observation each key takes."""
    keys = {"flat": size} if observations is None else dict(observations)
    for key, taken in keys.items():
        text("a key of observations", key, error=DemonstrationError)
        rule = "it takes a whole number of the numbers of an observation"
        whole_number(f"the key {key!r} of observations", taken, rule=rule, error=DemonstrationError)
    if (total := sum(keys.values())) != size or min(keys.values(), default=0) < 0:
        found = f"the keys {keys} take {total} numbers but an observation has {size}"
        raise DemonstrationError(f"{found}: they must take them all")
    return keys


def _rows(values: Any, name: str, steps: int) -> Array:
    array = as_array(name, values, "a row of numbers for each step")
    if array.dtype.kind not in "biuf" or array.ndim < 2:
        raise DemonstrationError(
            f"{name} are {array.dtype} of shape {array.shape}: pass a row of numbers for each step"
        )
    if len(array) != steps:
        raise DemonstrationError(f"{steps:,} steps but {len(array):,} {name}: pass one for each step")
    return array


def _notes(data: Demonstrations, keys: Mapping[str, int]) -> dict[str, Any]:
    """What a robomimic file has no place for."""
    return {
        "format": 1,
        "observations": list(keys),
        "observation_shape": list(data.observations.shape[1:]),
        "names": list(data.names),
        "skills": {name: values.dtype.str for name, values in data.skills.items()},
        "encoding": None if data.encoding is None else runs.plain(data.encoding),
    } | ({} if data.fps is None else {"fps": data.fps})


def _by_key(group: str, observations: Array, keys: Mapping[str, int]) -> dict[str, Array]:
    """The data set of each key, (step, number), in a group of observations."""
    flat = observations.reshape(len(observations), -1)
    bounds = np.cumsum([0, *keys.values()])
    if bounds[-1] != flat.shape[1]:
        raise DemonstrationError(f"next_observations have {flat.shape[1]} numbers but observations {bounds[-1]}")
    return {f"{group}/{key}": flat[:, start:stop] for key, (start, stop) in zip(keys, pairwise(bounds), strict=True)}


def _masks(
    data: Demonstrations, asked: Mapping[str, Sequence[int]], valid: Sequence[int] | None
) -> dict[str, list[int]]:
    """Every mask of the file: people, tiers, pairs of tiers, those asked for, and the two parts of each."""
    count, who = data.episode_count, data.episode_demonstrator
    for name, members in {**asked, "valid": () if valid is None else valid}.items():
        text("the name of a mask", name, error=DemonstrationError)
        if isinstance(members, str | bytes) or not np.iterable(members):
            raise DemonstrationError(f"mask {name!r} is {brief(members)}: pass the numbers of its episodes")
        if strange := [each for each in members if not isinstance(each, Integral) or not 0 <= each < count]:
            odd = f"mask {name!r} names episode {brief(strange[0])}"
            raise DemonstrationError(f"{odd}: episodes go from 0 to {count - 1}")
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
