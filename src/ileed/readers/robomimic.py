"""robomimic's HDF5: one group an episode. What is written is read back exactly.

| place                     | shape         | meaning                                                              |
|---------------------------|---------------|----------------------------------------------------------------------|
| data/demo_k/obs/KEY       | (step, ...)   | what was seen before acting, one data set for each sensor            |
| data/demo_k/next_obs/KEY  | (step, ...)   | what was seen afterwards (optional; written where it is given)       |
| data/demo_k/actions       | (step, axis)  | what was done                                                        |
| data/demo_k/rewards       | (step,)       | what the step earned (optional)                                      |
| data/demo_k/dones         | (step,)       | whether the task ended there, 0 or 1 (optional)                      |
| data/demo_k/states        | (step, state) | the simulator's own state (optional; not read)                       |
| data/demo_k/demonstrator  | (step,)       | who did it, an index into the names (ours; robomimic keeps masks)    |
| data/demo_k/skill/NAME    | (step, ...)   | which skills the step called for (ours, optional)                    |
| mask/NAME                 | (episode,)    | names of the episodes of a subset: of an operator, a tier, a split   |

`data` has the attributes `total` and `env_args` (JSON) and each episode `num_samples`; files without them are read as
well. Ours has besides, as the attribute `ileed`, a JSON object with `observations` (the keys in order),
`observation_shape`, `names` (the order of demonstrators, also of those without a step) and `skills` (types of labels).
"""

from __future__ import annotations

import io
import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from ileed import runs
from ileed.demonstrations import Array, Demonstrations, rules
from ileed.errors import DemonstrationError, require
from ileed.readers.labels import Labeller, by_column, by_mask, by_one
from ileed.wording import did_you_mean

_ROBOT = ("eef_pos", "eef_quat", "gripper_qpos")
_LOW_DIMENSIONAL = ("object", *(f"robot0_{part}" for part in _ROBOT))
_SECOND_ARM = tuple(f"robot1_{part}" for part in _ROBOT)
_TIERS = ("worse", "okay", "better")
_OPERATOR = re.compile(r"(worse|okay|better)_operator_(\d+)")
_DEMONSTRATOR = "demonstrator"


def read_robomimic(
    path: str | Path,
    *,
    demonstrator: Labeller | None = None,
    observations: Sequence[str] | None = None,
    filter_key: str | None = None,
) -> Demonstrations:
    """Read demonstrations from a robomimic file, episodes in the order of their numbers.

    `demonstrator` is `by_mask(...)`, `by_column(...)` for a data set of one value a step beside the actions, or
    `by_one(...)`; None takes the data set `demonstrator` where there is one, otherwise robomimic's operator masks.
    `filter_key` names a mask, and only its episodes are read. Masks may name episodes that the file does not hold.

    `observations` names keys, whose numbers are joined in that order. None takes the order that our writer noted;
    otherwise robomimic's low-dimensional one, object, robot0_eef_pos, robot0_eef_quat, robot0_gripper_qpos (and the
    same of a second arm); where these are not all there, every key that holds a number or a row of numbers a step, in
    alphabetical order. So images are left out unless they are named. Numbers keep the type that they have in the file.
    """
    with _opened(Path(path)) as file:
        return _read(file, Path(path), demonstrator, observations, filter_key)


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
    compress: bool = True,
) -> None:
    """Write demonstrations of continuous actions as one robomimic file, whole or not at all.

    `observations` divides the numbers of an observation among keys, by how many each takes in order (None: all under
    `flat`). `next_observations` has the shape of `data.observations`, `states` is (step, state). `env_args` says which
    simulator robomimic's rollouts make; without it they cannot be run, but training can.

    Each demonstrator's episodes become a mask of that name; demonstrators called `better_operator_1` and the like give
    robomimic's tiers (better, okay, worse) and pairs (worse_okay, worse_better, okay_better) too. `masks` adds further
    ones, by the numbers of their episodes. `valid` lists the episodes to hold out: they become the mask `valid`, the
    others `train`, and every mask M is divided into `M_train` and `M_valid`. Rewards and terminals that the data lack
    are left out, and robomimic's loader with its usual cache takes them as zero.
    """
    h5py = require("h5py", extra="robot")
    if data.discrete:
        raise DemonstrationError("actions are discrete: robomimic's are continuous; use write_parquet for these data")
    keys = _divided(data, observations)
    named = _masks(data, masks or {}, valid)
    for name in (*keys, *named, *data.skills):
        if name in ("", ".") or "/" in name or "\0" in name:
            raise DemonstrationError(f"{name!r} cannot name a part of an HDF5 file: rename it, without '/'")
    for name, values in (("next_observations", next_observations), ("states", states)):
        if values is not None and len(values) != len(data):
            raise DemonstrationError(f"{len(data):,} steps but {len(values):,} {name}: pass one for each step")
    columns: dict[str, Array | None] = {
        "actions": data.actions,
        "rewards": data.rewards,
        "dones": None if data.terminals is None else data.terminals.astype(np.int64),
        "states": states,
        _DEMONSTRATOR: data.demonstrator,
        **{f"obs/{key}": values for key, values in _parts(data.observations, keys)},
        **{f"next_obs/{key}": values for key, values in _parts(next_observations, keys)},
        **{f"skill/{name}": _storable(values) for name, values in data.skills.items()},
    }
    notes = {
        "format": 1,
        "observations": list(keys),
        "observation_shape": list(data.observations.shape[1:]),
        "names": list(data.names),
        "skills": {name: values.dtype.str for name, values in data.skills.items()},
    }
    bounds = np.searchsorted(data.episode, np.arange(data.episode_count + 1))
    content = io.BytesIO()
    with h5py.File(
        content, "w", libver=("v110", "v110")
    ) as file:  # older versions index small data sets twice as large
        group = file.create_group("data")
        group.attrs["total"] = len(data)
        group.attrs["env_args"] = json.dumps(dict(env_args or {}))
        group.attrs["ileed"] = json.dumps(notes)
        for number in range(data.episode_count):
            start, stop = bounds[number : number + 2]
            demo = group.create_group(f"demo_{number}")
            demo.attrs["num_samples"] = int(stop - start)
            for name, values in columns.items():
                if values is not None:
                    _store(demo, name, values[start:stop], compress)
        for name, members in named.items():
            file.create_dataset(f"mask/{name}", data=np.array([f"demo_{number}" for number in members], dtype="S"))
    runs.write_file(Path(path), content.getvalue())


def label_robomimic(path: str | Path, out: str | Path, *, demonstrator: Labeller | None = None) -> tuple[str, ...]:
    """Copy a robomimic file with the data set `demonstrator` added to every episode; returns the names that it indexes.

    Images, states and whatever else the file holds stay as they are: this makes a downloaded file ready for
    `ileed.integrations.robomimic`. `demonstrator` is as in `read_robomimic`. Episodes that it drops are removed, and
    masks keep only the names of episodes that the file holds (robomimic cannot open a mask that names others).
    """
    path = Path(path)
    copy = io.BytesIO()
    with _opened(path, copy) as file:
        group, episodes = _episodes(file, path)
        names, labels = _labels(file, path, episodes, demonstrator, _notes(group), filtered=False)
        if not names:
            words = {name: np.asarray(label).astype(np.str_) for name, label in labels.items()}
            found = np.unique(np.concatenate(list(words.values())))
            names = tuple(str(word) for word in found)
            labels = {name: np.searchsorted(found, word) for name, word in words.items()}
        for name in set(episodes) - set(labels):
            del group[name]
        for name, label in labels.items():
            steps = len(_values(group, name, "actions"))
            if _DEMONSTRATOR in group[name]:
                del group[name][_DEMONSTRATOR]
            group[name][_DEMONSTRATOR] = np.broadcast_to(np.asarray(label, dtype=np.int64), steps)
        for mask in list(file.get("mask", ())):
            kept = sorted(_mask(file, mask) & set(labels), key=_by_number)
            del file["mask"][mask]
            if kept:
                file[f"mask/{mask}"] = np.array(kept, dtype="S")
        group.attrs["ileed"] = json.dumps({**_notes(group), "format": 1, "names": list(names)})
    runs.write_file(Path(out), copy.getvalue())
    return names


def demonstrators_of(path: str | Path) -> tuple[str, ...]:
    """The names that the data set `demonstrator` of a robomimic file indexes; refuses a file that lacks it."""
    path = Path(path)
    with _opened(path) as file:
        group, episodes = _episodes(file, path)
        if silent := [name for name in episodes if _DEMONSTRATOR not in group[name]]:
            raise DemonstrationError(
                f"{silent[0]} of {path} does not say who demonstrated: "
                "ileed.label_robomimic(path, out, demonstrator=by_mask(...)) writes a copy of the file that does"
            )
        highest = max(int(_values(group, name, _DEMONSTRATOR).max()) for name in episodes)
        names = tuple(_notes(group).get("names", ())) or tuple(str(number) for number in range(highest + 1))
        if highest >= len(names):
            raise DemonstrationError(f"demonstrator {highest} of {path} has no name: there are {len(names)} names")
        return names


@contextmanager
def _opened(path: Path, copy: io.BytesIO | None = None) -> Iterator[Any]:
    """The file to read; or, with `copy`, a copy of it in memory to change."""
    h5py = require("h5py", extra="robot")
    try:
        if copy is not None:
            copy.write(path.read_bytes())
        with h5py.File(path, "r") if copy is None else h5py.File(copy, "r+") as file:
            yield file
    except (OSError, RuntimeError) as error:  # h5py raises either for damage, by where it meets it
        reason = str(error).partition("\n")[0].rstrip(".")
        raise DemonstrationError(f"{path} is not a readable HDF5 file ({reason}): export or copy it again") from error


def _episodes(file: Any, path: Path) -> tuple[Any, list[str]]:
    group = file.get("data")
    if not hasattr(group, "keys"):
        raise DemonstrationError(f"{path} has no group 'data': robomimic keeps its episodes there; is it such a file?")
    episodes = sorted((name for name in group if hasattr(group[name], "keys")), key=_by_number)
    if not episodes:
        raise DemonstrationError(f"{path} holds no demonstrations: its group 'data' is empty")
    return group, episodes


def _read(
    file: Any, path: Path, labeller: Labeller | None, observations: Sequence[str] | None, filter_key: str | None
) -> Demonstrations:
    group, episodes = _episodes(file, path)
    if filter_key is not None:
        wanted = _mask(file, filter_key)
        episodes = [name for name in episodes if name in wanted]
        if not episodes:
            raise DemonstrationError(f"mask {filter_key!r} names no demonstration that {path} holds: choose another")
    notes = _notes(group)
    names, labels = _labels(file, path, episodes, labeller, notes, filtered=filter_key is not None)
    episodes = [name for name in episodes if name in labels]
    keys = _observation_keys(group, episodes[0], observations, notes)
    joined = {f"obs/{key}": _joined(group, episodes, f"obs/{key}") for key in keys}
    seen = np.concatenate([values.reshape(len(values), -1) for values in joined.values()], axis=1)
    lengths = [len(group[name]["actions"]) for name in episodes]
    shape = notes.get("observation_shape")
    skills = group[episodes[0]].get("skill", {})
    kinds = notes.get("skills", {})
    return Demonstrations(
        observations=seen.reshape(len(seen), *shape) if shape and keys == notes.get("observations") else seen,
        actions=_joined(group, episodes, "actions"),
        demonstrator=np.concatenate(
            [np.broadcast_to(labels[name], length) for name, length in zip(episodes, lengths, strict=True)]
        ),
        episode=np.repeat(np.arange(len(episodes)), lengths),
        names=names,
        rewards=_optional(group, episodes, "rewards"),
        terminals=_optional(group, episodes, "dones"),
        skills={name: _restored(_joined(group, episodes, f"skill/{name}"), kinds.get(name)) for name in skills},
    )


def _by_number(name: str) -> list[tuple[int, str]]:
    """Sorts demo_10 after demo_2."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _notes(group: Any) -> dict[str, Any]:
    try:
        notes = json.loads(group.attrs.get("ileed", "{}"))
    except ValueError as error:
        raise DemonstrationError(
            f"the attribute 'ileed' of 'data' is not JSON ({error}): write the file anew"
        ) from error
    return notes if isinstance(notes, dict) else {}


def _labels(
    file: Any,
    path: Path,
    episodes: Sequence[str],
    labeller: Labeller | None,
    notes: Mapping[str, Any],
    *,
    filtered: bool,
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The names, and for each episode that has one its label: a number, a word, or one of them a step."""
    group = file["data"]
    if isinstance(labeller, by_one):
        return (labeller.name,), dict.fromkeys(episodes, 0)
    if isinstance(labeller, by_column):
        return (), {name: _values(group, name, labeller.column) for name in episodes}
    if labeller is not None and not isinstance(labeller, by_mask):
        raise DemonstrationError(
            f"{labeller!r} does not apply to robomimic files: use by_mask(...) (at the command: --masks)"
        )
    operators = tuple(sorted((name for name in file.get("mask", ()) if _OPERATOR.fullmatch(name)), key=_by_number))
    own = _DEMONSTRATOR in group[episodes[0]]
    if own and (labeller is None or not (labeller.names or operators)):
        return tuple(notes.get("names", ())), {name: _values(group, name, _DEMONSTRATOR) for name in episodes}
    names = labeller.names if labeller is not None and labeller.names else operators
    if not names:
        raise DemonstrationError(
            f"{path} does not say who demonstrated: it has no operator masks and no data set 'demonstrator' "
            f"({_known(file)}); name masks with demonstrator=by_mask(...) (at the command: --masks NAME ...), or one "
            "demonstrator with by_one(...) (--one NAME)"
        )
    return _masked(file, episodes, names, labeller or by_mask(), filtered=filtered)


def _masked(
    file: Any, episodes: Sequence[str], names: Sequence[str], labeller: by_mask, *, filtered: bool
) -> tuple[tuple[str, ...], dict[str, Any]]:
    members = {name: _mask(file, name) for name in names}
    here = [name for name in names if not members[name].isdisjoint(episodes)]
    if not here:
        raise DemonstrationError(
            f"no demonstration of the file is in the masks {rules.listed(names)}: name others ({_known(file)})"
        )
    if len(here) < len(names) and not filtered:  # a filter is the caller's own choice
        absent = [name for name in names if name not in here]
        warnings.warn(
            f"{len(absent)} of {len(names)} demonstrators have no demonstration in this file and are left out: "
            f"{rules.listed(absent)}.",
            stacklevel=5,
        )
    labels: dict[str, Any] = {}
    for place, name in enumerate(here):
        for episode in episodes:
            if episode not in members[name]:
                continue
            if episode in labels:
                raise DemonstrationError(
                    f"{episode} is in two masks, {here[labels[episode]]!r} and {name!r}: "
                    "each episode belongs to one demonstrator; name masks that do not overlap"
                )
            labels[episode] = place
    unmatched = [episode for episode in episodes if episode not in labels]
    if unmatched and labeller.unmatched == "error":
        raise DemonstrationError(
            f"{len(unmatched):,} of {len(episodes):,} episodes match no mask (first: {unmatched[0]}); "
            "pass unmatched='drop' (at the command: --unmatched drop) to leave them out"
        )
    return tuple(here), labels


def _mask(file: Any, name: str) -> set[str]:
    if name not in file.get("mask", ()):
        meant = did_you_mean(name, file.get("mask", ()))
        raise DemonstrationError(f"there is no mask {name!r}{meant}: {_known(file)}; name one of these")
    return {member.decode() if isinstance(member, bytes) else str(member) for member in file["mask"][name][()].tolist()}


def _known(file: Any) -> str:
    masks = sorted(file.get("mask", ()), key=_by_number)
    return f"the file has {rules.listed(masks, most=12)}" if masks else "the file has no masks"


def _observation_keys(group: Any, episode: str, asked: Sequence[str] | None, notes: Mapping[str, Any]) -> list[str]:
    there = group[episode].get("obs", {})
    if not there:
        raise DemonstrationError(
            f"{episode} has no observations: robomimic's dataset_states_to_obs.py makes them from a file of states"
        )
    if asked is not None:
        if unknown := [key for key in asked if key not in there]:
            raise DemonstrationError(
                f"there is no observation {unknown[0]!r}{did_you_mean(unknown[0], there)}: "
                f"the file has {rules.listed(sorted(there), most=20)}"
            )
        if not asked:
            raise DemonstrationError("observations is empty: name at least one key, or pass None for the usual ones")
        return list(asked)
    if noted := notes.get("observations"):
        return list(noted)
    if all(key in there for key in _LOW_DIMENSIONAL):
        return [*_LOW_DIMENSIONAL, *(key for key in _SECOND_ARM if key in there)]
    rows = [key for key in sorted(there) if there[key].ndim <= 2]
    if not rows:
        raise DemonstrationError(
            f"{episode} has images only ({rules.listed(sorted(there))}): name those to read with observations=[...] "
            "(at the command: --observations KEY ...)"
        )
    return rows


def _values(group: Any, episode: str, name: str) -> Array:
    """One data set of an episode, with one row for each of its actions."""
    demo = group[episode]
    for needed in ("actions", name):
        if not hasattr(demo.get(needed), "shape"):
            raise DemonstrationError(f"{episode} has no {needed!r}: it has {rules.listed(sorted(demo), most=12)}")
    values = demo[name][()]
    steps = len(demo["actions"])
    found = len(values) if np.ndim(values) else 1
    if steps == 0:
        raise DemonstrationError(f"{episode} has no steps: remove it from the file")
    if found != steps:
        raise DemonstrationError(
            f"{episode} has {steps:,} actions but {found:,} rows of {name!r}: there must be one for each step"
        )
    if values.dtype.kind in "OS":
        values = np.array([word.decode() if isinstance(word, bytes) else str(word) for word in values], dtype=np.str_)
    rules.finite(f"{name!r} of {episode}", values)
    return values


def _joined(group: Any, episodes: Sequence[str], name: str) -> Array:
    """One data set of all episodes, end to end."""
    parts = [_values(group, episode, name) for episode in episodes]
    for episode, part in zip(episodes, parts, strict=True):
        if part.shape[1:] != parts[0].shape[1:]:
            raise DemonstrationError(
                f"a row of {name!r} has shape {part.shape[1:]} in {episode} and {parts[0].shape[1:]} in {episodes[0]}: "
                "all episodes must agree"
            )
    return np.concatenate(parts)


def _optional(group: Any, episodes: Sequence[str], name: str) -> Array | None:
    having = [episode for episode in episodes if name in group[episode]]
    if not having:
        return None
    if len(having) < len(episodes):
        raise DemonstrationError(
            f"{len(having):,} of {len(episodes):,} episodes have {name!r}: give it for every episode or for none"
        )
    return _joined(group, episodes, name)


def _divided(data: Demonstrations, observations: Mapping[str, int] | None) -> dict[str, int]:
    size = data.observation_size
    keys = {"flat": size} if observations is None else dict(observations)
    if sum(keys.values()) != size or min(keys.values(), default=0) < 0:
        raise DemonstrationError(
            f"the keys {keys} take {sum(keys.values())} numbers but an observation has {size}: they must take them all"
        )
    return keys


def _parts(observations: Array | None, keys: Mapping[str, int]) -> Iterator[tuple[str, Array]]:
    if observations is None:
        return
    flat = np.asarray(observations).reshape(len(observations), -1)
    bounds = np.cumsum([0, *keys.values()])
    if flat.shape[1] != bounds[-1]:
        raise DemonstrationError(f"next_observations have {flat.shape[1]} numbers but observations {bounds[-1]}")
    for key, start, stop in zip(keys, bounds, bounds[1:], strict=False):
        yield key, flat[:, start:stop]


def _masks(
    data: Demonstrations, asked: Mapping[str, Sequence[int]], valid: Sequence[int] | None
) -> dict[str, tuple[int, ...]]:
    """Every mask of the file: people, tiers, pairs of tiers, those asked for, and the halves of each."""
    who = data.episode_demonstrator
    people = {name: np.flatnonzero(who == place).tolist() for place, name in enumerate(data.names)}
    tiers = {
        tier: sorted(
            number
            for name, members in people.items()
            if (match := _OPERATOR.fullmatch(name)) and match.group(1) == tier
            for number in members
        )
        for tier in _TIERS
    }
    pairs = {f"{one}_{other}": sorted(tiers[one] + tiers[other]) for one, other in combinations(_TIERS, 2)}
    whole = [(name, members) for name, members in (*people.items(), *tiers.items()) if members]
    whole += [(name, members) for name, members in pairs.items() if all(tiers[tier] for tier in name.split("_"))]
    whole += [(name, sorted(set(members))) for name, members in asked.items()]
    out = set(() if valid is None else valid)
    halves: list[tuple[str, list[int]]] = []
    if valid is not None:
        for name, members in (("", list(range(data.episode_count))), *whole):
            prefix = f"{name}_" if name else ""
            halves.append((f"{prefix}train", [number for number in members if number not in out]))
            halves.append((f"{prefix}valid", [number for number in members if number in out]))
    found: dict[str, tuple[int, ...]] = {}
    for name, members in (*whole, *halves):
        if strange := [number for number in {*members, *out} if not 0 <= number < data.episode_count]:
            raise DemonstrationError(
                f"mask {name!r} names episode {strange[0]}: episodes go from 0 to {data.episode_count - 1}"
            )
        if found.setdefault(name, tuple(int(number) for number in members)) != tuple(members):
            raise DemonstrationError(f"there are two masks {name!r}: rename the demonstrator, or the one that you pass")
    return {name: members for name, members in found.items() if members}


def _storable(values: Array) -> Array:
    return np.char.encode(values, "utf-8") if values.dtype.kind == "U" else values


def _restored(values: Array, kind: str | None) -> Array:
    return values if kind is None else values.astype(kind)


_WORTH_COMPRESSING = 1024  # bytes; below that, what describes the compression outweighs what it saves


def _store(demo: Any, name: str, values: Array, compress: bool) -> None:
    options = {"compression": "gzip", "compression_opts": 4, "shuffle": True}
    demo.create_dataset(name, data=values, **(options if compress and values.nbytes >= _WORTH_COMPRESSING else {}))
