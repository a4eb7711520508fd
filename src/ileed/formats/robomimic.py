"""robomimic's HDF5: one group for each episode. What is written is read back exactly.

docs/decisions/robomimic.md has the layout: robomimic's own data/demo_k with obs, actions, rewards and dones, and a mask
for each subset of episodes; and our additions, `demonstrator` and skills beside the actions, and the attribute `ileed`.
"""

from __future__ import annotations

import io
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import combinations, pairwise
from numbers import Integral
from pathlib import Path
from typing import Any, cast, final

import numpy as np

from ileed import _memory, runs
from ileed.data import Array, Demonstrations, Source, check_demonstrations, rules
from ileed.data.encoding import join_parts
from ileed.data.rules import listed
from ileed.errors import DemonstrationError, SettingsError, brief, instance_of, path_of, printable, require, text
from ileed.formats import core, files
from ileed.formats.core import AbstractFormat, Candidate, Labeller, Option, by_column, by_mask

_ROBOT = ("eef_pos", "eef_quat", "gripper_qpos")
_LOW_DIMENSIONAL = ("object", *(f"robot0_{part}" for part in _ROBOT))
_SECOND_ARM = tuple(f"robot1_{part}" for part in _ROBOT)
OPERATOR = re.compile(r"(worse|okay|better)_operator_(\d+)")
DEMONSTRATOR, TIMESTAMPS = "demonstrator", "timestamps"
_COPIED = ("actions", "rewards", "dones", "states", "obs", "next_obs", TIMESTAMPS)
_ENVIRONMENT = ("env_name", "env_version", "type", "env_kwargs")
_TIERS = ("worse", "okay", "better")
_NOTES = "the attribute 'ileed' of 'data'"
_LOOKUPS = (by_mask, by_column)


def read_robomimic(
    path: str | Path,
    *,
    demonstrator: Labeller | None = None,
    observations: Sequence[str] | None = None,
    filter_key: str | None = None,
) -> Demonstrations:
    """Read demonstrations from a robomimic file, episodes in the order of their numbers.

    Args:
        path: The file.
        demonstrator: `by_mask(...)`, `by_column(...)` for a data set of one value a step beside the actions,
            `by_episode_table(...)` for a CSV file, or `by_one(...)`; None takes the data set `demonstrator` if there is
            one, and robomimic's operator masks otherwise.
        observations: Keys whose numbers are joined in this order. None takes those that our writer noted, or
            robomimic's low-dimensional ones (object, and eef_pos, eef_quat and gripper_qpos of each arm), or every key
            with one number or one row of numbers a step, in alphabetical order. Numbers keep their type.
        filter_key: A mask, of which only the episodes are read. Masks may name episodes that the file does not hold.
    """
    path = path_of("path", path, error=DemonstrationError)
    options: dict[str, Any] = {"observations": core.observation_keys(observations), "filter_key": filter_key}
    source = Source.of(path, read_robomimic, demonstrator=demonstrator, **options)
    with files.open_hdf5(path) as opened:
        file = _File(opened, path, filter_key)
        names, labels = _who(file, demonstrator)
        episodes = [name for name in file.episodes if name in labels]
        keys = file.observation_keys(episodes[0], options["observations"])
        parts, actions = {key: file.join(episodes, f"obs/{key}") for key in keys}, file.join(episodes, "actions")
        lengths = [len(labels[name]) for name in episodes]
        return Demonstrations(
            **core.join_observations(parts, actions, file.notes, _NOTES),
            actions=actions,
            demonstrator=np.concatenate([labels[name] for name in episodes]),
            episode=np.repeat(np.arange(len(episodes)), lengths),
            source_episode=np.repeat(np.array(episodes), lengths),
            names=names,
            rewards=file.join(episodes, "rewards", optional=True),
            terminals=file.join(episodes, "dones", optional=True),
            skills=file.skills(episodes),
            fps=file.fps,
            timestamps=file.join(episodes, TIMESTAMPS, optional=True) if "fps" in file.notes else None,
            source=source,
        )


def label_robomimic(path: str | Path, out: str | Path, *, demonstrator: Labeller | None = None) -> tuple[str, ...]:
    """Copy a robomimic file with the data set `demonstrator` added to every episode; returns the names that it indexes.

    Images, states and whatever else the file holds stay as they are: this makes a downloaded file ready for
    `ileed.integrations.robomimic`. `demonstrator` is as in `read_robomimic`. Episodes that it drops are removed, and
    masks keep only the names of episodes that the file holds (robomimic cannot open a mask that names others).
    """
    path, target = (path_of(*each, error=DemonstrationError) for each in (("path", path), ("out", out)))
    copy = io.BytesIO()
    with files.open_hdf5(path, copy) as opened:
        file = _File(opened, path)
        names, labels = _who(file, demonstrator)
        ends = np.cumsum([len(label) for label in labels.values()])
        names, index = rules.demonstrator(np.concatenate([*labels.values()]), names, int(ends[-1]))
        for name in set(file.episodes) - set(labels):
            del file.group[name]
        for name, indices in zip(labels, np.split(index, ends[:-1]), strict=True):
            demo = file.group[name]
            if DEMONSTRATOR in demo:
                del demo[DEMONSTRATOR]
            demo[DEMONSTRATOR] = indices
        for mask in file.masks:
            kept = sorted(file.mask(mask) & set(labels), key=_by_number)
            del opened["mask"][mask]
            if kept:
                opened[f"mask/{mask}"] = np.array(kept, dtype="S")
        file.group.attrs["ileed"] = json.dumps({**file.notes, "format": 1, "names": list(names)})
    runs.write_file(target, copy.getvalue())
    return names


def demonstrators_of(path: str | Path) -> tuple[str, ...]:
    """The names that the data set `demonstrator` of a robomimic file indexes; refuses a file that lacks it."""
    with files.open_hdf5(Path(path)) as opened:
        file = _File(opened, Path(path))
        if silent := [name for name in file.episodes if DEMONSTRATOR not in file.group[name]]:
            raise DemonstrationError(
                f"{printable(silent[0], 160)} of {path} does not say who demonstrated: ileed.label_robomimic adds it"
            )
        index = np.concatenate([file.values(name, DEMONSTRATOR) for name in file.episodes])
        numbered = range(min(max(0, int(index.max())) + 1, len(index)))  # no more demonstrators than steps
        names = tuple(file.notes.get("names", ())) or tuple(map(str, numbered))
        rules.demonstrator(index, names, len(index))  # refuses a number that has no name
        return names


def actions_of(path: str | Path, filter_key: str | None = None) -> Array:
    """(step, dimension) the actions of a robomimic file, of all episodes or of those of one mask."""
    with files.open_hdf5(Path(path)) as opened:
        file = _File(opened, Path(path), filter_key)
        return cast("Array", file.join(file.episodes, "actions"))


def _by_number(name: str) -> list[tuple[int, str]]:
    """Sorts demo_10 after demo_2."""
    return [(int(part), "") if part.isdecimal() and len(part) < 19 else (-1, part) for part in re.split(r"(\d+)", name)]


class _File:
    """An open robomimic file: its episodes and masks in the order of their numbers, and our writer's notes."""

    def __init__(self, file: Any, path: Path, filter_key: str | None = None) -> None:
        self.file, self.path, self.is_filtered = file, path, filter_key is not None
        self.group = file.get("data")
        if not files.is_group(self.group):
            raise DemonstrationError(f"{path} has no group 'data', where robomimic keeps episodes: choose such a file")
        episodes = [name for name, item in self.group.items() if files.is_group(item)]
        if not episodes:
            raise DemonstrationError(f"{path} holds no demonstrations: its group 'data' is empty")
        self.notes = files.read_notes(self.group.attrs.get("ileed", "{}"), _NOTES)
        kept = episodes if filter_key is None else self.mask(filter_key)
        self.episodes = sorted((name for name in episodes if name in kept), key=_by_number)
        if not self.episodes:
            raise DemonstrationError(f"mask {filter_key!r} names no demonstration that {path} holds: choose another")

    @cached_property
    def masks(self) -> list[str]:
        """The names of all masks."""
        masks = self.file.get("mask")
        return sorted(masks, key=_by_number) if files.is_group(masks) else []

    def mask(self, name: str) -> set[str]:
        """The names of the episodes that a mask lists."""
        files.check_there(self.path, "mask", [name], self.masks)
        mask = self.file[f"mask/{name}"]
        members = files.read_hdf5(mask, f"mask/{name}") if files.is_data_set(mask) else None
        if members is not None and members.ndim == 1 and (members.dtype.kind == "U" or not len(members)):
            return set(members.tolist())
        found = "is a group" if files.is_group(mask) else "is empty"
        found = found if members is None else f"holds {members.dtype} of shape {members.shape}"
        raise DemonstrationError(f"mask {name!r} {found}: it must be a data set that lists names of episodes")

    @property
    def fps(self) -> float | None:
        """Steps per second: as noted, or the control frequency of robosuite's environment in `env_args`."""
        if "fps" in self.notes:
            return self.notes["fps"]
        try:
            return rules.fps(json.loads(self.group.attrs.get("env_args", "{}"))["env_kwargs"]["control_freq"])
        except (TypeError, ValueError, LookupError, RecursionError):
            return None

    def observation_keys(self, episode: str, asked: Sequence[str] | None) -> list[str]:
        """The keys of the observations to join, as `read_robomimic` says."""
        group, named = self.group.get(f"{episode}/obs"), printable(episode, 160)
        there = sorted(group) if files.is_group(group) else []
        if not there:
            raise DemonstrationError(f"{named} has no observations: robomimic's dataset_states_to_obs.py makes them")
        files.check_there(self.path, "observation", asked or (), there)
        if chosen := asked or self.notes.get("observations"):
            return list(chosen)
        if all(key in there for key in _LOW_DIMENSIONAL):
            return [*_LOW_DIMENSIONAL, *(key for key in _SECOND_ARM if key in there)]
        if rows := [key for key in there if files.is_data_set(group[key]) and group[key].ndim <= 2]:
            return rows
        raise DemonstrationError(
            f"{named} has only images ({listed(there)}): name some with observations=[...] (at the command: "
            "--observations)"
        )

    def data_set(self, episode: str, name: str) -> Any:
        """A data set of an episode, which must have one row for each of its actions."""
        demo, named = self.group[episode], printable(episode, 160)
        found = {needed: demo.get(needed) for needed in ("actions", name)}
        if lacking := [needed for needed, item in found.items() if not files.is_data_set(item)]:
            raise DemonstrationError(f"{named} has no {lacking[0]!r}: it has {listed(sorted(demo), most=12)}")
        steps, rows = (len(found[needed]) if found[needed].ndim else 1 for needed in ("actions", name))
        if steps == 0:
            raise DemonstrationError(f"{named} has no steps: remove it from the file")
        if rows != steps or found[name].ndim == 0:
            raise DemonstrationError(f"{named} has {steps:,} actions but {rows:,} rows of {name!r}: give as many")
        return found[name]

    def values(self, episode: str, name: str) -> Array:
        """The values of a data set of an episode, (step, ...)."""
        values = files.read_hdf5(self.data_set(episode, name), f"{episode}/{name}")
        rules.check_finite(f"{name!r} of {printable(episode, 160)}", values)
        return values

    def join(self, episodes: Sequence[str], name: str, *, optional: bool = False) -> Any:
        """A data set of several episodes, end to end; an optional one is None if no episode has it."""
        there = [each for each in episodes if not optional or self.group.get(f"{each}/{name}") is not None]
        _memory.check_fits(repr(name), sum(files.decoded_bytes(self.data_set(each, name)) for each in there))
        return join_parts(repr(name), {each: self.values(each, name) for each in there}, len(episodes))

    def skills(self, episodes: Sequence[str]) -> dict[str, Array]:
        """The skill columns, in their noted types."""
        there = self.group.get(f"{episodes[0]}/skill")
        found = {name: self.join(episodes, f"skill/{name}") for name in (there if files.is_group(there) else ())}
        return files.skills_as_noted(found, self.notes)

    def repeat(self, labels: Mapping[str, str | int]) -> dict[str, Array]:
        """The label of each episode at each of its steps; a step counts if its action can be read."""
        return {name: np.full(len(self.values(name, "actions")), label) for name, label in labels.items()}


def _who(file: _File, labeller: Labeller | None) -> tuple[tuple[str, ...], dict[str, Array]]:
    """The names, and for each episode of a demonstrator the label of each step: a name, or an index into the names."""
    episodes = file.episodes
    if (known := core.labels_of(labeller, episodes, *_LOOKUPS, title="robomimic files")) is not None:
        return (), file.repeat(dict(zip(episodes, known, strict=True)))
    if labeller is not None and labeller.place is not None:
        return (), {name: file.values(name, labeller.place) for name in episodes}
    asked = cast("by_mask | None", labeller)
    operators = tuple(name for name in file.masks if OPERATOR.fullmatch(name))
    names = (asked.names if asked else ()) or operators
    if DEMONSTRATOR in file.group[episodes[0]] and (asked is None or not names):
        return tuple(file.notes.get("names", ())), {name: file.values(name, DEMONSTRATOR) for name in episodes}
    if not names:
        there = f"it has no data set 'demonstrator' and no operator masks (masks: {listed(file.masks, 12) or 'none'})"
        raise core.unnamed(file.path, there, *_LOOKUPS)
    members = {name: file.mask(name).intersection(episodes) for name in names}
    here = [name for name in names if members[name]]
    if not here:
        raise DemonstrationError(
            f"no episode of the file is in the masks {listed(names)}: name others of {listed(file.masks, 12)}"
        )
    if len(here) < len(names) and not file.is_filtered:  # a filter is the caller's own choice
        warnings.warn(
            f"{len(names) - len(here)} of {len(names)} demonstrators have no demonstration in this file and are left "
            f"out: {listed([name for name in names if name not in here])}.",
            stacklevel=3,
        )
    owner: dict[str, int] = {}
    for number, name in enumerate(here):
        if twice := sorted(members[name] & owner.keys(), key=_by_number):
            both = f"{here[owner[twice[0]]]!r} and {name!r}"
            raise DemonstrationError(f"{printable(twice[0], 160)} is in two masks, {both}: name one of them")
        owner |= dict.fromkeys(members[name], number)
    left = [name for name in episodes if name not in owner]
    if left and (asked is None or asked.unmatched == "error"):
        raise DemonstrationError(
            f"{len(left):,} of {len(episodes):,} episodes match no mask (first: {printable(left[0], 160)}); pass "
            "unmatched='drop' (at the command: --unmatched drop)"
        )
    return tuple(here), file.repeat(owner)


def _candidates(path: Path) -> list[Candidate]:
    """The masks that name episodes of the file, and data sets beside the actions that are constant in each episode."""
    with files.open_hdf5(path) as opened:
        file = _File(opened, path)
        masks = {name: len(file.mask(name).intersection(file.episodes)) for name in file.masks}
        constant: list[dict[str, Any]] = [{} for _ in file.episodes]
        for name in set(file.group[file.episodes[0]]) - {"actions", "rewards", "dones"}:
            items = [file.group[each].get(name) for each in file.episodes]
            if all(files.is_data_set(item) and item.ndim == 1 for item in items):
                values = [np.unique(file.values(each, name)) for each in file.episodes]
                if all(len(each) == 1 for each in values):
                    for entries, each in zip(constant, values, strict=True):
                        entries[name] = each[0]
        found = [Candidate(f"mask {name}", 1, count, f"--masks {name}") for name, count in masks.items() if count]
        return [*found, *core.candidates("data set {}", constant)]


# --- writing


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
    """Write demonstrations of continuous actions as one robomimic file, completely or not at all.

    Each demonstrator's episodes become a mask of that name; names such as `better_operator_1` add robomimic's tiers
    (better, okay, worse) and pairs (worse_okay, ...). Rewards and terminals that the data lack are left out.

    Args:
        data: The demonstrations.
        path: The file to write.
        observations: How many numbers of an observation each key takes, in order; None puts all under `flat`.
        next_observations: The observation after each action, in the shape of `data.observations`.
        env_args: The simulator of robomimic's rollouts; without it a policy can be trained, but not rolled out.
        states: (step, state) simulator states.
        masks: Further masks: the numbers of their episodes.
        valid: The numbers of held-out episodes, which become the mask `valid`, the others `train`; every mask M is
            divided into `M_train` and `M_valid`.
    """
    require("h5py", extra="robot")
    check_demonstrations(data)
    for name, given in (("env_args", env_args), ("observations", observations), ("masks", masks)):
        instance_of(name, given, Mapping | None, rule="pass a mapping, or None", error=DemonstrationError)
    if not data.action_size:
        raise DemonstrationError("actions are discrete: robomimic's are continuous; use write_parquet for these data")
    keys = core.division(data, observations, "flat")
    after = None if next_observations is None else _rows("next_observations", next_observations, len(data))
    if after is not None and after[0].size != data.observation_size:
        raise DemonstrationError(
            f"next_observations have {after[0].size} numbers but observations {data.observation_size}: pass as many"
        )
    columns = {
        "actions": data.actions,
        "rewards": data.rewards,
        "dones": None if data.terminals is None else data.terminals.astype(np.int64),
        "states": None if states is None else _rows("states", states, len(data)),
        DEMONSTRATOR: data.demonstrator,
        TIMESTAMPS: data.timestamps,
    }
    for prefix, rows in (("obs", data.observations), ("next_obs", after)):
        parts = {} if rows is None else core.divided(rows, keys)
        columns |= {f"{prefix}/{key}": part for key, part in parts.items()}
    columns |= {f"skill/{name}": values for name, values in data.skills.items()}
    named = _masks(data, masks or {}, valid)
    for name in (*keys, *named, *data.skills):
        files.check_name(name)
    attributes = {"total": len(data), "env_args": json.dumps(dict(env_args or {}))}
    attributes["ileed"] = json.dumps(files.notes_of(data, observations=list(keys)))
    content = io.BytesIO()
    with files.new_hdf5(content) as file:
        group = file.create_group("data")
        group.attrs.update(attributes)
        for number, (start, stop) in enumerate(pairwise(data.episode_bounds)):
            demo = group.create_group(f"demo_{number}")
            demo.attrs["num_samples"] = int(stop - start)
            present = {name: values[start:stop] for name, values in columns.items() if values is not None}
            files.write_columns(demo, present)
        for name, members in named.items():
            file.create_dataset(f"mask/{name}", data=np.array([f"demo_{number}" for number in members], dtype="S"))
    runs.write_file(path_of("path", path, error=DemonstrationError), content.getvalue())


def copy_robomimic(source: Path, path: Path, data: Demonstrations) -> None:
    """Copy the episodes of `data` from the robomimic file they were read from, with the demonstrators of `data`.

    The copy has the numbers of robomimic's own data sets (images included), the skills of `data` and the masks `train`
    and `valid`. Other masks, data sets and attributes, text above all, may name demonstrators and are left out.
    """
    with files.open_hdf5(source) as old, files.new_hdf5(path) as new:
        group, keys = new.create_group("data"), [str(key) for key in data.episode_keys.tolist()]
        if missing := [key for key in keys if f"data/{key}" not in old]:
            raise SettingsError(f"{source} has no episode {missing[0]!r}: pass the file that the data were read from")
        made, notes = (
            files.read_notes(old["data"].attrs.get(name, "{}"), repr(name)) for name in ("env_args", "ileed")
        )
        kept = {name: notes[name] for name in ("observations", "observation_shape", "skills", "fps") if name in notes}
        group.attrs["total"] = len(data)
        group.attrs["env_args"] = json.dumps({name: made[name] for name in _ENVIRONMENT if name in made})
        group.attrs["ileed"] = json.dumps({"format": 1, "names": list(data.names), **kept})
        who, there = data.episode_demonstrator, set(keys)
        for key, owner, (start, stop) in zip(keys, who, pairwise(data.episode_bounds), strict=True):
            demo = group.create_group(key)
            demo.attrs["num_samples"] = int(stop - start)
            for name in (*_COPIED, *(["skill"] if data.skills else [])):
                _copy_numbers(old[f"data/{key}"].get(name), demo, name, with_text=name == "skill")
            demo[DEMONSTRATOR] = np.full(stop - start, owner)
        masks = {name: np.array(keys)[who == number].tolist() for number, name in enumerate(data.names)}
        for name in ("train", "valid"):
            if name in old.get("mask", {}):
                masks[name] = [key for key in files.read_hdf5(old[f"mask/{name}"], name).tolist() if key in there]
        for name, members in masks.items():
            if members:
                new[f"mask/{name}"] = np.array(members, dtype="S")


def _copy_numbers(item: Any, target: Any, name: str, *, with_text: bool) -> None:
    if files.is_group(item):
        for each in item:
            _copy_numbers(item[each], target.require_group(name), each, with_text=with_text)
    elif files.is_data_set(item) and (with_text or item.dtype.kind in "biuf"):
        item.file.copy(item, target, name=name, without_attrs=True)


def _rows(name: str, values: Any, steps: int) -> Array:
    return rules.column(name, values, steps, dict.fromkeys(range(2, 65), "biuf"), "a row of numbers for each step")


def _masks(
    data: Demonstrations, asked: Mapping[str, Sequence[int]], valid: Sequence[int] | None
) -> dict[str, list[int]]:
    """Every mask of the file: demonstrators, tiers, pairs of tiers, the given masks, and the two parts of each."""
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


@final
class _Robomimic(AbstractFormat):
    name, suffixes, title, extra = "robomimic", (".hdf5", ".h5"), "robomimic files", files.HDF5_EXTRA
    read, write, candidates = staticmethod(read_robomimic), staticmethod(write_robomimic), staticmethod(_candidates)
    reading = (core.OBSERVATIONS, Option("filter_key", str | None, "A mask: only its episodes are read."))
    writing = (core.DIVIDE,)

    def columns(self, path: Path) -> Sequence[str]:
        with files.open_hdf5(path) as opened:
            file = _File(opened, path)
            return sorted(file.group[file.episodes[0]])


FORMAT = _Robomimic()
