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
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from ileed import memory, runs
from ileed.demonstrations import Array, Demonstrations, rules
from ileed.errors import DemonstrationError, brief, require
from ileed.readers import hdf5
from ileed.readers.labels import Labeller, by_column, by_mask, by_one
from ileed.wording import did_you_mean

_ROBOT = ("eef_pos", "eef_quat", "gripper_qpos")
_LOW_DIMENSIONAL = ("object", *(f"robot0_{part}" for part in _ROBOT))
_SECOND_ARM = tuple(f"robot1_{part}" for part in _ROBOT)
_TIERS = ("worse", "okay", "better")
_OPERATOR = re.compile(r"(worse|okay|better)_operator_(\d+)")
_DEMONSTRATOR = "demonstrator"
_MANY_PEOPLE = 1000  # numbered without names; more of them only where there are as many steps


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
    with hdf5.opened(Path(path)) as file:
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
    with hdf5.opened(path, copy) as file:
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
            demo = hdf5.member(group, name)
            if _DEMONSTRATOR in demo:
                del demo[_DEMONSTRATOR]
            demo[_DEMONSTRATOR] = np.broadcast_to(np.asarray(label, dtype=np.int64), steps)
        for mask in _mask_names(file):
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
    with hdf5.opened(path) as file:
        group, episodes = _episodes(file, path)
        if silent := [name for name in episodes if hdf5.member(group, f"{name}/{_DEMONSTRATOR}") is None]:
            raise DemonstrationError(
                f"{silent[0]} of {path} does not say who demonstrated: "
                "ileed.label_robomimic(path, out, demonstrator=by_mask(...)) writes a copy of the file that does"
            )
        indices = {name: _values(group, name, _DEMONSTRATOR) for name in episodes}
        if odd := [name for name, index in indices.items() if index.dtype.kind not in "iu" or index.min() < 0]:
            raise DemonstrationError(
                f"{_DEMONSTRATOR!r} of {odd[0]} of {path} does not index names: it must hold whole numbers from zero"
            )
        highest = max(int(index.max()) for index in indices.values())
        names = tuple(_notes(group).get("names", ()))
        if not names and highest < max(_MANY_PEOPLE, sum(map(len, indices.values()))):
            names = tuple(str(number) for number in range(highest + 1))
        if highest >= len(names):
            raise DemonstrationError(f"demonstrator {highest} of {path} has no name: there are {len(names)} names")
        return names


def _episodes(file: Any, path: Path) -> tuple[Any, list[str]]:
    group = hdf5.member(file, "data")
    if not hdf5.is_group(group):
        raise DemonstrationError(f"{path} has no group 'data': robomimic keeps its episodes there; is it such a file?")
    episodes = sorted((name for name in group if hdf5.is_group(hdf5.member(group, name))), key=_by_number)
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
    actions = _joined(group, episodes, "actions")
    lengths = [len(hdf5.member(group, f"{name}/actions")) for name in episodes]
    skills = hdf5.member(group, f"{episodes[0]}/skill")
    kinds = notes.get("skills", {})
    return Demonstrations(
        observations=_shaped(seen, notes) if keys == notes.get("observations") else seen,
        actions=actions,
        demonstrator=np.concatenate(
            [np.broadcast_to(labels[name], length) for name, length in zip(episodes, lengths, strict=True)]
        ),
        episode=np.repeat(np.arange(len(episodes)), lengths),
        names=names,
        rewards=_optional(group, episodes, "rewards"),
        terminals=_optional(group, episodes, "dones"),
        skills={
            name: _restored(name, _joined(group, episodes, f"skill/{name}"), kinds.get(name))
            for name in (skills if hdf5.is_group(skills) else ())
        },
    )


def _by_number(name: str) -> list[tuple[int, str]]:
    """Sorts demo_10 after demo_2."""
    return [(int(part), "") if part.isdecimal() and len(part) < 19 else (-1, part) for part in re.split(r"(\d+)", name)]


def _notes(group: Any) -> dict[str, Any]:
    """What our writer noted of the file; whatever is not of the kind that it notes is refused."""
    text = group.attrs.get("ileed", "{}")
    try:
        notes = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise DemonstrationError(
            f"the attribute 'ileed' of 'data' is not JSON ({brief(error)}): write the file anew"
        ) from error
    rules_of = {
        "observations": ("a list of strings", _are_words),
        "names": ("a list of strings", _are_words),
        "observation_shape": ("a list of whole numbers, zero or more", _is_shape),
        "skills": ("an object of strings", lambda value: isinstance(value, dict) and _are_words(list(value.values()))),
    }
    if not isinstance(notes, dict):
        raise DemonstrationError(
            f"the attribute 'ileed' of 'data' holds {brief(notes)}: it must be a JSON object; write the file anew"
        )
    for name, (rule, holds) in rules_of.items():
        if name in notes and not holds(notes[name]):
            raise DemonstrationError(
                f"{name!r} in the attribute 'ileed' of 'data' is {brief(notes[name])}: it must be {rule}; "
                "write the file anew"
            )
    return notes


def _are_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(size, int) and not isinstance(size, bool) and 0 <= size < 2**63 for size in value
    )


def _shaped(seen: Array, notes: Mapping[str, Any]) -> Array:
    """Observations in the shape that our writer noted."""
    shape = notes.get("observation_shape")
    if not shape:
        return seen
    if math.prod(shape) != seen.shape[1]:
        raise DemonstrationError(
            f"an observation has {seen.shape[1]:,} numbers but the attribute 'ileed' of 'data' says that its shape is "
            f"{tuple(shape)}: the product must be the number; write the file anew"
        )
    return seen.reshape(len(seen), *shape)


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
    group = hdf5.member(file, "data")
    if isinstance(labeller, by_one):
        return (labeller.name,), dict.fromkeys(episodes, 0)
    if isinstance(labeller, by_column):
        return (), {name: _values(group, name, labeller.column) for name in episodes}
    if labeller is not None and not isinstance(labeller, by_mask):
        raise DemonstrationError(
            f"{labeller!r} does not apply to robomimic files: use by_mask(...) (at the command: --masks)"
        )
    operators = tuple(sorted((name for name in _mask_names(file) if _OPERATOR.fullmatch(name)), key=_by_number))
    own = hdf5.member(group, f"{episodes[0]}/{_DEMONSTRATOR}") is not None
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


def _mask_names(file: Any) -> list[str]:
    masks = hdf5.member(file, "mask")
    return list(masks) if hdf5.is_group(masks) else []


def _mask(file: Any, name: str) -> set[str]:
    """The names of the episodes that a mask lists."""
    if name not in _mask_names(file):
        meant = did_you_mean(name, _mask_names(file))
        raise DemonstrationError(f"there is no mask {name!r}{meant}: {_known(file)}; name one of these")
    mask = hdf5.member(file, f"mask/{name}")
    if not hdf5.is_data_set(mask):
        found = "a group" if hdf5.is_group(mask) else "empty"
        raise DemonstrationError(f"mask {name!r} is {found}: it must be a data set that lists names of episodes")
    members = hdf5.read(mask, f"mask/{name}")
    if members.ndim != 1 or (members.dtype.kind != "U" and len(members)):
        raise DemonstrationError(
            f"mask {name!r} holds {members.dtype} of shape {members.shape}: it must be a list of names of episodes"
        )
    return set(members.tolist())


def _known(file: Any) -> str:
    masks = sorted(_mask_names(file), key=_by_number)
    return f"the file has {rules.listed(masks, most=12)}" if masks else "the file has no masks"


def _observation_keys(group: Any, episode: str, asked: Sequence[str] | None, notes: Mapping[str, Any]) -> list[str]:
    there = hdf5.member(group, f"{episode}/obs")
    if not hdf5.is_group(there) or not len(there):
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
    found = {key: hdf5.member(there, key) for key in sorted(there)}
    rows = [key for key, item in found.items() if hdf5.is_data_set(item) and item.ndim <= 2]
    if not rows:
        raise DemonstrationError(
            f"{episode} has images only ({rules.listed(sorted(there))}): name those to read with observations=[...] "
            "(at the command: --observations KEY ...)"
        )
    return rows


def _data_set(group: Any, episode: str, name: str) -> Any:
    """One data set of an episode, which must have one row for each of its actions."""
    demo = hdf5.member(group, episode)
    found = [hdf5.member(demo, needed) for needed in ("actions", name)]
    for needed, item in zip(("actions", name), found, strict=True):
        if not hdf5.is_data_set(item):
            raise DemonstrationError(
                f"{hdf5.named(episode)} has no {needed!r}: it has {rules.listed(sorted(demo), most=12)}"
            )
    actions, values = found
    steps, rows = (len(item) if item.ndim else 1 for item in (actions, values))
    if steps == 0:
        raise DemonstrationError(f"{hdf5.named(episode)} has no steps: remove it from the file")
    if rows != steps or values.ndim == 0:
        raise DemonstrationError(
            f"{hdf5.named(episode)} has {steps:,} actions but {rows:,} rows of {name!r}: there must be one "
            "for each step"
        )
    return values


def _values(group: Any, episode: str, name: str) -> Array:
    """One data set of an episode, with one row for each of its actions."""
    values = hdf5.read(_data_set(group, episode, name), f"{episode}/{name}")
    rules.finite(f"{name!r} of {hdf5.named(episode)}", values)
    return values


def _joined(group: Any, episodes: Sequence[str], name: str) -> Array:
    """One data set of all episodes, end to end."""
    memory.check_fits(repr(name), sum(hdf5.decoded_bytes(_data_set(group, episode, name)) for episode in episodes))
    parts = [_values(group, episode, name) for episode in episodes]
    for episode, part in zip(episodes, parts, strict=True):
        if part.shape[1:] != parts[0].shape[1:]:
            raise DemonstrationError(
                f"a row of {name!r} has shape {part.shape[1:]} in {episode} and {parts[0].shape[1:]} in {episodes[0]}: "
                "all episodes must agree"
            )
    return np.concatenate(parts)


def _optional(group: Any, episodes: Sequence[str], name: str) -> Array | None:
    having = [episode for episode in episodes if hdf5.member(group, f"{episode}/{name}") is not None]
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


def _restored(name: str, values: Array, kind: str | None) -> Array:
    """A skill column in the type that our writer noted, where it noted one."""
    if kind is None:
        return values
    if not (match := _LABEL_TYPE.fullmatch(kind)) or (match["kind"] == "U") != (values.dtype.kind == "U"):
        raise DemonstrationError(
            f"skill {name!r} is noted as of type {brief(kind)} and stored as {values.dtype}: write the file anew"
        )
    if match["kind"] == "U":
        memory.check_fits(f"skill {name!r}", 4 * int(match["size"]) * len(values))
    return values.astype(kind)


_LABEL_TYPE = re.compile(r"[<>|=]?(?P<kind>[biufU])(?P<size>\d{1,6})")


_WORTH_COMPRESSING = 1024  # bytes; below that, what describes the compression outweighs what it saves


def _store(demo: Any, name: str, values: Array, compress: bool) -> None:
    options = {"compression": "gzip", "compression_opts": 4, "shuffle": True}
    demo.create_dataset(name, data=values, **(options if compress and values.nbytes >= _WORTH_COMPRESSING else {}))
