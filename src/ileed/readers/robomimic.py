"""robomimic's HDF5: one group for each episode. What is written is read back exactly.

docs/decisions/robomimic.md has the layout: data/demo_k with obs, actions, rewards and dones, and a mask for each subset
of episodes, as robomimic has them; besides, `demonstrator` and skills beside the actions, and the attribute `ileed`.
"""

from __future__ import annotations

import io
import json
import re
import warnings
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ileed import memory, runs
from ileed.checking import path_of, texts_or_none
from ileed.demonstrations import Array, Demonstrations, Encoding, Source, rules
from ileed.demonstrations.encoding import numbered_names
from ileed.demonstrations.episodes import join_parts
from ileed.demonstrations.rules import listed
from ileed.errors import DemonstrationError, UnnamedDemonstratorError
from ileed.readers import hdf5
from ileed.readers.episode_table import by_episode_table
from ileed.readers.notes import skills_as_noted
from ileed.readers.parquet import read_encoding
from ileed.readers.reader import Candidate, Labeller, Reader, by_column, by_mask, by_one, read_notes, shape_as_noted
from ileed.wording import did_you_mean, printable

_ROBOT = ("eef_pos", "eef_quat", "gripper_qpos")
_LOW_DIMENSIONAL = ("object", *(f"robot0_{part}" for part in _ROBOT))
_SECOND_ARM = tuple(f"robot1_{part}" for part in _ROBOT)
OPERATOR = re.compile(r"(worse|okay|better)_operator_(\d+)")
DEMONSTRATOR, TIMESTAMPS = "demonstrator", "timestamps"
_NOTES = "the attribute 'ileed' of 'data'"


def read_robomimic(
    path: str | Path,
    *,
    demonstrator: Labeller | None = None,
    observations: Sequence[str] | None = None,
    filter_key: str | None = None,
) -> Demonstrations:
    """Read demonstrations from a robomimic file, episodes in the order of their numbers.

    `demonstrator` is `by_mask(...)`, `by_column(...)` for a data set of one value a step beside the actions,
    `by_episode_table(...)` for a CSV file, or `by_one(...)`; None takes the data set `demonstrator` where there is one,
    otherwise robomimic's operator masks. `filter_key` names a mask, and only its episodes are read. Masks may name
    episodes that the file does not hold.

    `observations` names keys, whose numbers are joined in that order. None takes those that our writer noted, or
    robomimic's low-dimensional ones (object, and eef_pos, eef_quat and gripper_qpos of each arm), or every key that
    holds a number or a row of numbers a step, in alphabetical order. Numbers keep the type that they have in the file.
    """
    path = path_of("path", path, error=DemonstrationError)
    observations = texts_or_none("observations", observations, error=DemonstrationError)
    options: dict[str, Any] = {"demonstrator": demonstrator, "observations": observations, "filter_key": filter_key}
    source = Source.of(path, read_robomimic, **options)
    with hdf5.open_file(path) as opened:
        file = _File(opened, path, filter_key)
        names, labels = _who(file, demonstrator)
        episodes = [name for name in file.episodes if name in labels]
        keys = file.observation_keys(episodes[0], observations)
        seen = [file.join(episodes, f"obs/{key}") for key in keys]
        flat = [values.reshape(len(values), -1) for values in seen]
        joined, actions = np.concatenate(flat, axis=1), file.join(episodes, "actions")
        is_noted = keys == file.notes.get("observations")
        inputs = [each for key, part in zip(keys, flat, strict=True) for each in numbered_names(key, part.shape[1])]
        encoding = read_encoding(file.notes.get("encoding")) if is_noted else Encoding.of_numbers(inputs, actions)
        lengths = [len(labels[name]) for name in episodes]
        return Demonstrations(
            observations=shape_as_noted(joined, file.notes, _NOTES) if is_noted else joined,
            actions=actions,
            demonstrator=np.concatenate([labels[name] for name in episodes]),
            episode=np.repeat(np.arange(len(episodes)), lengths),
            source_episode=np.repeat(np.array(episodes), lengths),
            names=names,
            rewards=file.join(episodes, "rewards", optional=True),
            terminals=file.join(episodes, "dones", optional=True),
            skills=file.skills(episodes),
            encoding=encoding,
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
    with hdf5.open_file(path, copy) as opened:
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
    with hdf5.open_file(Path(path)) as opened:
        file = _File(opened, Path(path))
        if silent := [name for name in file.episodes if DEMONSTRATOR not in file.group[name]]:
            raise DemonstrationError(
                f"{printable(silent[0], 160)} of {path} does not say who demonstrated: ileed.label_robomimic adds it"
            )
        index = np.concatenate([file.values(name, DEMONSTRATOR) for name in file.episodes])
        numbered = range(min(max(0, int(index.max())) + 1, len(index)))  # no more people than steps
        names = tuple(file.notes.get("names", ())) or tuple(map(str, numbered))
        rules.demonstrator(index, names, len(index))  # refuses a number that has no name
        return names


def actions_of(path: str | Path, filter_key: str | None = None) -> Array:
    """(step, dimension) the actions of a robomimic file, of all episodes or of those of one mask."""
    with hdf5.open_file(Path(path)) as opened:
        file = _File(opened, Path(path), filter_key)
        found: Array = file.join(file.episodes, "actions")
        return found


def _by_number(name: str) -> list[tuple[int, str]]:
    """Sorts demo_10 after demo_2."""
    return [(int(part), "") if part.isdecimal() and len(part) < 19 else (-1, part) for part in re.split(r"(\d+)", name)]


class _File:
    """An open robomimic file: its episodes and masks in the order of their numbers, and what our writer noted."""

    def __init__(self, file: Any, path: Path, filter_key: str | None = None) -> None:
        self.file, self.path, self.is_filtered = file, path, filter_key is not None
        self.group = file.get("data")
        if not hdf5.is_group(self.group):
            raise DemonstrationError(f"{path} has no group 'data', where robomimic keeps episodes: choose such a file")
        episodes = [name for name, item in self.group.items() if hdf5.is_group(item)]
        if not episodes:
            raise DemonstrationError(f"{path} holds no demonstrations: its group 'data' is empty")
        self.notes = read_notes(self.group.attrs.get("ileed", "{}"), _NOTES)
        kept = episodes if filter_key is None else self.mask(filter_key)
        self.episodes = sorted((name for name in episodes if name in kept), key=_by_number)
        if not self.episodes:
            raise DemonstrationError(f"mask {filter_key!r} names no demonstration that {path} holds: choose another")

    @cached_property
    def masks(self) -> list[str]:
        """The names of all masks."""
        masks = self.file.get("mask")
        return sorted(masks, key=_by_number) if hdf5.is_group(masks) else []

    @property
    def known(self) -> str:
        """The end of a sentence that says which masks there are."""
        return f"the file has {listed(self.masks, most=12)}" if self.masks else "the file has no masks"

    def mask(self, name: str) -> set[str]:
        """The names of the episodes that a mask lists."""
        if name not in self.masks:
            meant = did_you_mean(name, self.masks)
            raise DemonstrationError(f"there is no mask {name!r}{meant}: {self.known}; name one of these")
        mask = self.file[f"mask/{name}"]
        members = hdf5.read(mask, f"mask/{name}") if hdf5.is_data_set(mask) else None
        if members is not None and members.ndim == 1 and (members.dtype.kind == "U" or not len(members)):
            return set(members.tolist())
        found = "is a group" if hdf5.is_group(mask) else "is empty"
        found = found if members is None else f"holds {members.dtype} of shape {members.shape}"
        raise DemonstrationError(f"mask {name!r} {found}: it must be a data set that lists names of episodes")

    @property
    def fps(self) -> float | None:
        """Steps per second: as our writer noted, or the control frequency of robosuite's environment in `env_args`."""
        if "fps" in self.notes:
            return self.notes["fps"]
        try:
            found = json.loads(self.group.attrs.get("env_args", "{}"))["env_kwargs"]["control_freq"]
            return rules.fps(found)
        except (TypeError, ValueError, LookupError, RecursionError, DemonstrationError):
            return None

    def observation_keys(self, episode: str, asked: Sequence[str] | None) -> list[str]:
        """The keys of the observations to join, as `read_robomimic` says."""
        group, named = self.group.get(f"{episode}/obs"), printable(episode, 160)
        there = sorted(group) if hdf5.is_group(group) else []
        if not there:
            raise DemonstrationError(f"{named} has no observations: robomimic's dataset_states_to_obs.py makes them")
        if asked is not None and not asked:
            raise DemonstrationError("observations is empty: name a key, or pass None for the usual ones")
        if unknown := [key for key in asked or () if key not in there]:
            meant = did_you_mean(unknown[0], there)
            raise DemonstrationError(f"there is no observation {unknown[0]!r}{meant}: the file has {listed(there, 20)}")
        if chosen := asked or self.notes.get("observations"):
            return list(chosen)
        if all(key in there for key in _LOW_DIMENSIONAL):
            return [*_LOW_DIMENSIONAL, *(key for key in _SECOND_ARM if key in there)]
        if rows := [key for key in there if hdf5.is_data_set(group[key]) and group[key].ndim <= 2]:
            return rows
        raise DemonstrationError(
            f"{named} has images only ({listed(there)}): name some: observations=[...] (at the command: --observations)"
        )

    def data_set(self, episode: str, name: str) -> Any:
        """One data set of an episode, which must have one row for each of its actions."""
        demo, named = self.group[episode], printable(episode, 160)
        found = {needed: demo.get(needed) for needed in ("actions", name)}
        if lacking := [needed for needed, item in found.items() if not hdf5.is_data_set(item)]:
            raise DemonstrationError(f"{named} has no {lacking[0]!r}: it has {listed(sorted(demo), most=12)}")
        steps, rows = (len(found[needed]) if found[needed].ndim else 1 for needed in ("actions", name))
        if steps == 0:
            raise DemonstrationError(f"{named} has no steps: remove it from the file")
        if rows != steps or found[name].ndim == 0:
            raise DemonstrationError(f"{named} has {steps:,} actions but {rows:,} rows of {name!r}: give as many")
        return found[name]

    def values(self, episode: str, name: str) -> Array:
        """The values of one data set of an episode, (step, ...)."""
        values = hdf5.read(self.data_set(episode, name), f"{episode}/{name}")
        rules.check_finite(f"{name!r} of {printable(episode, 160)}", values)
        return values

    def join(self, episodes: Sequence[str], name: str, *, optional: bool = False) -> Any:
        """One data set of several episodes, end to end; an optional one is None where no episode has it."""
        there = [each for each in episodes if not optional or self.group.get(f"{each}/{name}") is not None]
        memory.check_fits(repr(name), sum(hdf5.decoded_bytes(self.data_set(each, name)) for each in there))
        return join_parts(repr(name), {each: self.values(each, name) for each in there}, len(episodes))

    def skills(self, episodes: Sequence[str]) -> dict[str, Array]:
        """The skill columns, in the types that our writer noted, where it noted any."""
        there = self.group.get(f"{episodes[0]}/skill")
        found = {name: self.join(episodes, f"skill/{name}") for name in (there if hdf5.is_group(there) else ())}
        return skills_as_noted(found, self.notes)


def _who(file: _File, labeller: Labeller | None) -> tuple[tuple[str, ...], dict[str, Array]]:
    """The names, and for each episode that has a demonstrator the label of each step: a word, or an index of names."""
    episodes = file.episodes
    if isinstance(labeller, by_one):
        return (labeller.name,), _repeat(file, dict.fromkeys(episodes, 0))
    if isinstance(labeller, by_column):
        return (), {name: file.values(name, labeller.column) for name in episodes}
    if isinstance(labeller, by_episode_table):
        people = dict(zip(episodes, labeller.labels(episodes), strict=True))
        names = tuple(sorted(set(people.values())))
        return names, _repeat(file, {name: names.index(person) for name, person in people.items()})
    if labeller is not None and not isinstance(labeller, by_mask):
        raise DemonstrationError(
            f"{labeller!r} does not apply to robomimic files: use by_mask(...) (at the command: --masks)"
        )
    operators = tuple(name for name in file.masks if OPERATOR.fullmatch(name))
    names = (labeller.names if labeller else ()) or operators
    if DEMONSTRATOR in file.group[episodes[0]] and (labeller is None or not names):
        return tuple(file.notes.get("names", ())), {name: file.values(name, DEMONSTRATOR) for name in episodes}
    if not names:
        raise UnnamedDemonstratorError(
            f"{file.path} does not say who demonstrated: it has no operator masks and no data set 'demonstrator' "
            f"({file.known}); name masks with by_mask(...) (at the command: --masks NAME ...), or one person with "
            "by_one(...) (at the command: --one NAME)"
        )
    members = {name: file.mask(name).intersection(episodes) for name in names}
    here = [name for name in names if members[name]]
    if not here:
        raise DemonstrationError(f"no demonstration of the file is in the masks {listed(names)}: {file.known}")
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
    if left and (labeller is None or labeller.unmatched == "error"):
        raise DemonstrationError(
            f"{len(left):,} of {len(episodes):,} episodes match no mask (first: {printable(left[0], 160)}); pass "
            "unmatched='drop' (at the command: --unmatched drop)"
        )
    return tuple(here), _repeat(file, owner)


def _repeat(file: _File, owner: dict[str, int]) -> dict[str, Array]:
    """Each episode's label at each of its steps; these are read, so that what is only declared takes no memory."""
    return {name: np.full(len(file.values(name, "actions")), number) for name, number in owner.items()}


def _columns(path: Path) -> list[str]:
    """The data sets of the first episode."""
    with hdf5.open_file(path) as opened:
        file = _File(opened, path)
        return sorted(file.group[file.episodes[0]])


def _candidates(path: Path) -> list[Candidate]:
    """The masks that name episodes of the file, and data sets beside the actions that are constant in each episode."""
    with hdf5.open_file(path) as opened:
        file = _File(opened, path)
        masks = {name: len(file.mask(name).intersection(file.episodes)) for name in file.masks}
        found = [Candidate(f"mask {name}", 1, count, f"--masks {name}") for name, count in masks.items() if count]
        for name in sorted(set(file.group[file.episodes[0]]) - {"actions", "rewards", "dones"}):
            there = [each for each in file.episodes if hdf5.is_data_set(file.group[each].get(name))]
            if len(there) < len(file.episodes) or file.group[there[0]][name].ndim != 1:
                continue
            values = [np.unique(file.values(each, name)).tolist() for each in there]
            if all(len(each) == 1 and not isinstance(each[0], float) for each in values):
                people = len({each[0] for each in values})
                found.append(Candidate(f"data set {name}", people, len(there), f"--demonstrator {name}"))
        return found


def _write(data: Demonstrations, path: str | Path, **options: Any) -> None:
    from ileed.readers.robomimic_writer import write_robomimic  # which builds on this module

    write_robomimic(data, path, **options)


READER = Reader("robomimic", (".hdf5", ".h5"), read_robomimic, columns=_columns, write=_write, candidates=_candidates)
