"""Minari's data sets: folders of HDF5, Arrow or parquet files, read without Minari itself.

`data/metadata.json` states the spaces and the storage. Each episode has observations (one more than actions), actions,
rewards, terminations, truncations and infos, and metadata of its own, where users of Minari keep who demonstrated.
`ileed.readers.minari_writer` writes them, and docs/howto/formats.md says what it has to fill in.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ileed import memory
from ileed.checking import path_of, texts_or_none, whole_number
from ileed.demonstrations import Array, Demonstrations, Encoding, Source
from ileed.demonstrations.encoding import numbered_names
from ileed.demonstrations.episodes import join_episodes, join_parts
from ileed.demonstrations.rules import listed
from ileed.errors import DemonstrationError, UnnamedDemonstratorError, brief, refuse_damage
from ileed.readers.folders import file_in, read_json
from ileed.readers.minari_storage import MAIN, Storage, open_storage
from ileed.readers.notes import is_absent, names_as_noted, skills_as_noted
from ileed.readers.parquet import read_encoding
from ileed.readers.reader import Candidate, Labeller, Reader, by_column, by_episode_metadata, by_one, read_notes
from ileed.wording import did_you_mean

DEMONSTRATOR = "demonstrator"
LEGAL, SKILL = "infos/legal", "infos/skill/"  # where our writer puts what Minari has no column for
TIMESTAMPS = "infos/timestamps"
_BOOKKEEPING = ("id", "total_steps", "seed")  # metadata of every episode that Minari itself writes
_OPTIONAL = {"rewards": "rewards", "terminations": "terminals"}


def read_minari(
    path: str | Path, *, demonstrator: Labeller | None = None, observations: Sequence[str] | None = None
) -> Demonstrations:
    """Read demonstrations from a folder of Minari, or from the folder `data` inside it.

    `demonstrator` is `by_episode_metadata(...)`, `by_one(...)`, or `by_column(...)` for a name that stands in the
    metadata of episodes or else in their infos; None takes the metadata `demonstrator` that our writer leaves. The
    observation after an episode's last action is left out, since nobody acted on it.

    Where observations are a Dict or Tuple, `observations` names the entries to join, in that order, inner ones as
    `goal/position`; None takes all that are numbers, in the order of their names, and warns of those it leaves out.
    Discrete actions are numbered from zero, whatever the space starts from. Images in JPEG are not read.
    """
    path = path_of("path", path, error=DemonstrationError)
    observations = texts_or_none("observations", observations, error=DemonstrationError)
    source = Source.of(path, read_minari, demonstrator=demonstrator, observations=observations)
    folder = _data_folder(path)
    about = read_json(file_in(folder, "metadata.json"))
    notes = read_notes(about.get("ileed", "{}"), f"{folder / 'metadata.json'} under 'ileed'")
    space = _space(about, "action_space")
    with open_storage(folder, about.get("data_format")) as storage:
        if not storage.episodes:
            raise DemonstrationError(f"{folder} holds no episodes: choose a data set that has some")
        there = storage.places(storage.episodes[0])
        if "actions" not in there:
            kind = space.get("type", "missing")
            raise DemonstrationError(f"the actions of {path} are {brief(kind)}: they must be one array of numbers")
        names, labels = _who(storage, demonstrator, notes, folder)
        seen = _observation_places(there, observations, about)
        kept = _optional_places(there, notes)
        wanted = [*seen, "actions", *kept]
        memory.check_fits(folder, sum(storage.decoded_bytes(each, wanted) for each in storage.episodes))
        episodes = [storage.read(each, wanted) for each in storage.episodes]
        numbers = np.array(storage.episodes)
    shapes = [_entry(_space(about, "observation_space"), name).get("shape") for name in seen]
    for episode in episodes:
        parts = [_reshape(episode.pop(name), shape) for name, shape in zip(seen, shapes, strict=True)]
        episode["observations"] = parts[0] if seen == ["observations"] else _side_by_side(parts)
        episode["actions"] = _actions(episode["actions"], space)
    action_count = notes.get("action_count", space["n"] if space.get("type") == "Discrete" else 0)
    columns = join_episodes(episodes, labels)
    if notes:
        columns["encoding"] = read_encoding(notes.get("encoding"))
    elif seen != ["observations"]:
        columns["encoding"] = Encoding.of_numbers(
            _input_names(seen, parts), columns["actions"], action_count=action_count
        )
    extra = {name: _beside(name, episodes) for name in kept if name not in _OPTIONAL}
    skills = {name.removeprefix(SKILL): values for name, values in extra.items() if name.startswith(SKILL)}
    return Demonstrations(
        **columns,
        source_episode=numbers[columns["episode"]],
        names=names,
        legal=extra.get(LEGAL),
        skills=skills_as_noted(skills, notes),
        action_count=action_count,
        fps=notes.get("fps"),
        timestamps=extra.get(TIMESTAMPS),
        source=source,
    )


def _input_names(seen: Sequence[str], parts: Sequence[Array]) -> list[str]:
    """The name of each number of an observation, from the entries that are joined and one episode's part of each."""
    entries = (name.removeprefix("observations/") for name in seen)
    widths = (math.prod(part.shape[1:]) for part in parts)
    return [each for entry in zip(entries, widths, strict=True) for each in numbered_names(*entry)]


def _optional_places(there: Mapping[str, bool], notes: Mapping[str, Any]) -> list[str]:
    """The places to read beside observations and actions: rewards, terminations, and what our writer added."""
    kept = [name for name in there if notes and (name == LEGAL or name.startswith(SKILL))]
    kept += [TIMESTAMPS] if "fps" in notes and TIMESTAMPS in there else []
    return kept + [name for name, ours in _OPTIONAL.items() if name in there and not is_absent(ours, notes)]


def _data_folder(path: Path) -> Path:
    """The folder with metadata.json: `data` inside a data set, or the path itself."""
    return path / "data" if (path / "data" / "metadata.json").exists() else path


def _recognises(path: Path) -> bool:
    folder = _data_folder(path)
    has_episodes = (folder / MAIN).exists() or (folder / "0" / "metadata.json").exists()
    return has_episodes and (folder / "metadata.json").exists()


# --- spaces, as Minari writes them


def _space(about: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A space of gymnasium as a JSON object; empty where the data set names an environment instead."""
    text = about.get(name, "{}")
    try:
        found = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        found = text
    if not isinstance(found, dict):
        raise DemonstrationError(f"{name} is {brief(found)} in metadata.json: it must be a space in JSON")
    if found.get("type") == "Discrete":
        for entry in ("n", "start"):
            rule = "a Discrete space has a whole number there"
            found[entry] = whole_number(
                f"{entry!r} of {name}", found.get(entry, 0), rule=rule, error=DemonstrationError
            )
    return found


def _entry(space: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    """The space of an entry such as `observations/goal`; empty where it is not stated."""
    found: Any = space
    for name in place.split("/")[1:]:
        inner = found.get("subspaces") if isinstance(found, Mapping) else None
        if isinstance(inner, list):
            inner = {key: each for number, each in enumerate(inner) for key in (str(number), f"_index_{number}")}
        found = inner.get(name) if isinstance(inner, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _is_image(space: Mapping[str, Any]) -> bool:
    """Whether Minari takes a space for images, which it stores as JPEG unless `jpeg_encoding` is off."""
    shape: Any = space.get("shape")
    large = isinstance(shape, list) and len(shape) in (2, 3) and all(isinstance(each, int) for each in shape)
    if not large or space.get("dtype") != "uint8" or min(shape[:2]) < 32:
        return False
    with refuse_damage(Path("metadata.json"), "JSON"):
        low, high = (np.asarray(space.get(bound), dtype=np.float64) for bound in ("low", "high"))
        return bool((low == 0).all() and (high == 255).all())


def _observation_places(there: Mapping[str, bool], asked: Sequence[str] | None, about: Mapping[str, Any]) -> list[str]:
    """The places of the observations to join, as `read_minari` says."""
    space, jpeg = _space(about, "observation_space"), about.get("jpeg_encoding", True) is not False
    inside = sorted(name for name in there if name.partition("/")[0] == "observations")
    images = [name for name in inside if _is_image(_entry(space, name))]
    encoder = "turn images into a column of features first, as docs/howto/images.md does"
    entries = [name.removeprefix("observations/") for name in inside]
    if not inside:
        raise DemonstrationError("the episodes have no observations: choose a data set that has some")
    if inside == ["observations"]:
        if asked is not None:
            raise DemonstrationError("observations are one array, without entries to name: leave `observations` out")
        if images and jpeg:
            raise DemonstrationError(f"the observations are images in JPEG, which are not read: {encoder}")
        return inside
    if asked is not None and not asked:
        raise DemonstrationError("observations is empty: name an entry, or pass None for all that are numbers")
    if unknown := next((name for name in asked or () if name not in entries), None):
        meant = did_you_mean(unknown, entries)
        raise DemonstrationError(f"there is no observation {unknown!r}{meant}: the data have {listed(entries, 20)}")
    chosen = [f"observations/{name}" for name in asked or ()] or [
        name for name in inside if there[name] and name not in images
    ]
    if not chosen or (jpeg and any(name in images for name in chosen)):
        raise DemonstrationError(
            f"the observations {listed(asked or entries)} are no numbers: {encoder}, or name others"
        )
    if asked is None and len(chosen) < len(inside):
        left = [name.removeprefix("observations/") for name in inside if name not in chosen]
        warnings.warn(f"observations that are no numbers are left out: {listed(left, most=12)}.", stacklevel=3)
    return chosen


# --- values


def _reshape(values: Array, shape: Any) -> Array:
    """(row, ...) observations in the shape that their space states; a single number becomes a row of one."""
    stated = tuple(shape) if isinstance(shape, list) and all(isinstance(each, int) for each in shape) else ()
    if stated and min(stated) > 0 and math.prod(stated) == math.prod(values.shape[1:]):
        return values.reshape(len(values), *stated)
    return values[:, None] if values.ndim == 1 else values


def _side_by_side(parts: Sequence[Array]) -> Array:
    if len({len(part) for part in parts}) > 1:
        raise DemonstrationError("entries of the observations have different numbers of rows: give as many of each")
    return np.concatenate([part.reshape(len(part), math.prod(part.shape[1:])) for part in parts], axis=1)


def _actions(values: Array, space: Mapping[str, Any]) -> Array:
    """(step,) discrete actions counted from zero, or (step, dimension) continuous ones."""
    if space.get("type") == "Discrete" and values.dtype.kind in "iu":
        return values.reshape(len(values), -1)[:, 0] - space["start"] if values.size else values
    if values.dtype.kind == "f":
        return values.reshape(len(values), math.prod(values.shape[1:]))
    return values


def _beside(name: str, episodes: Sequence[Mapping[str, Array]]) -> Any:
    """A column of the infos, of which the row after the last action is left out."""
    parts = {f"episode {number}": each[name][: len(each["actions"])] for number, each in enumerate(episodes)}
    return join_parts(repr(name), parts, len(episodes))


# --- who demonstrated


def _who(
    storage: Storage, labeller: Labeller | None, notes: Mapping[str, Any], folder: Path
) -> tuple[tuple[str, ...], list[str | int]]:
    """The noted order of names, and the label of each episode."""
    episodes = storage.episodes
    if isinstance(labeller, by_one):
        return (), [labeller.name] * len(episodes)
    if (named := getattr(labeller, "labels", None)) is not None:  # a labeller that knows the episodes by number
        return (), named([str(each) for each in episodes])
    if labeller is not None and not isinstance(labeller, by_episode_metadata | by_column):
        raise DemonstrationError(
            f"{labeller!r} does not apply to Minari's data sets: use by_episode_metadata(...) (at the command: "
            "--demonstrator NAME)"
        )
    name = DEMONSTRATOR if labeller is None else vars(labeller)[next(iter(vars(labeller)))]
    known = {each: storage.metadata(each) for each in episodes}
    lacking = [each for each in episodes if name not in known[each]]
    if lacking and isinstance(labeller, by_column) and f"infos/{name}" in storage.places(episodes[0]):
        return (), [_only(storage.read(each, [f"infos/{name}"])[f"infos/{name}"], name, each) for each in episodes]
    if lacking:
        there = f"episode {lacking[0]} has {listed(sorted(known[lacking[0]]), most=12)}"
        if labeller is None:
            raise UnnamedDemonstratorError(
                f"{folder} does not say who demonstrated: of metadata, {there}; name one with "
                "by_episode_metadata(...) (at the command: --demonstrator NAME), or one person with by_one(...) "
                "(at the command: --one NAME)"
            )
        raise DemonstrationError(
            f"{len(lacking):,} of {len(episodes):,} episodes have no metadata {name!r}: {there}; name another, or add "
            "it with the method update_episode_metadata of Minari's storage"
        )
    labels = [_label(known[each][name], name, each) for each in episodes]
    return names_as_noted(labels, notes) if labeller is None else (), labels


def _only(values: Array, name: str, episode: int) -> str | int:
    """The one value of a column of an episode."""
    found = np.unique(values)
    if len(found) != 1:
        raise DemonstrationError(
            f"the infos {name!r} of episode {episode} have {len(found)} values: an episode has one demonstrator"
        )
    return _label(found[0], name, episode)


def _label(value: Any, name: str, episode: int) -> str | int:
    """A name or number as it stands in the metadata of an episode."""
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, str) or (isinstance(plain, int) and not isinstance(plain, bool)):
        return plain
    found = f"{name!r} of episode {episode} is {brief(plain)}"
    raise DemonstrationError(f"{found}: a name or a whole number is needed to say who demonstrated")


def _columns(path: Path) -> list[str]:
    """The places of the first episode."""
    folder = _data_folder(path)
    with open_storage(folder, read_json(file_in(folder, "metadata.json")).get("data_format")) as storage:
        return sorted(storage.places(storage.episodes[0])) if storage.episodes else []


def _candidates(path: Path) -> list[Candidate]:
    """Metadata of episodes, and infos that are constant in each, which hold a name or a whole number."""
    folder, found = _data_folder(path), dict[str, list[str | int]]()
    with open_storage(folder, read_json(file_in(folder, "metadata.json")).get("data_format")) as storage:
        places = storage.places(storage.episodes[0]) if storage.episodes else {}
        others = [name for name in places if name not in (LEGAL, TIMESTAMPS) and not name.startswith(SKILL)]
        infos = [name for name in others if name.startswith("infos/")]
        for episode in storage.episodes:
            told = {name: [value] for name, value in storage.metadata(episode).items() if name not in _BOOKKEEPING}
            for name in infos:
                with suppress(DemonstrationError):  # an episode without it, or what is neither number nor word
                    values = storage.read(episode, [name])[name]
                    told.setdefault(
                        name.removeprefix("infos/"), [*np.unique(values)] if values.size == len(values) else []
                    )
            for name, given in told.items():
                with suppress(DemonstrationError):
                    found.setdefault(name, []).extend([_label(given[0], name, episode)] if len(given) == 1 else [])
    return [
        Candidate(f"episode metadata {name}", len(set(labels)), len(labels), f"--demonstrator {name}")
        for name, labels in sorted(found.items())
        if labels
    ]


def _write(data: Demonstrations, path: str | Path, **options: Any) -> None:
    from ileed.readers.minari_writer import write_minari  # which builds on this module

    write_minari(data, path, **options)


READER = Reader("minari", ("",), read_minari, _columns, _recognises, _write, _candidates)
