"""Readers: what a format of files offers, how a file says who acted, what our writers note, and the formats there are.

A package adds a format by an entry point of the group `ileed.readers` whose value is a `Reader`; a format of ours is a
module beside this one, with a `READER`, and its name in `_OURS`. What the library brings itself goes first.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple, final

from ileed import plugins
from ileed.checking import instance_of, text
from ileed.demonstrations import Array, Demonstrations
from ileed.demonstrations.rules import is_fps, listed
from ileed.errors import DemonstrationError, IleedError, brief

_OURS = ("parquet", "robomimic", "tables", "lerobot", "minari", "imitation_trajectories", "crowd", "parts")


class Candidate(NamedTuple):
    """A place in a file that may say who demonstrated, and the option of the command that names it.

    `values` counts its different values and `episodes` the episodes that have one.
    """

    place: str
    values: int
    episodes: int
    option: str


@final
@dataclass(frozen=True)
class Reader:
    """A format of files that hold demonstrations.

    `read(path, *, demonstrator, ...)` returns the demonstrations of a file. `demonstrator` is a `Labeller` that says
    where the file names its demonstrators, or None for the format's own place; further keyword arguments are options of
    the format. One of the name `progress` is not: it is a function of the number done and the total, or None, for
    formats that are read in parts. `columns(path)` returns the names that the columns of a file have, and reads no more
    than it must. Where others use the same suffix, or a data set is a folder without one (""), `recognises(path)` tells
    the format. `write(demonstrations, path, ...)`, where there is one, writes what `read` reads back, whole or not at
    all. `candidates(path)` lists the places of a file that may say who demonstrated, for a user who has to name one.
    """

    name: str
    suffixes: tuple[str, ...]
    read: Callable[..., Demonstrations]
    columns: Callable[[Path], Sequence[str]]
    recognises: Callable[[Path], bool] = lambda path: True
    write: Callable[..., None] | None = None
    candidates: Callable[[Path], Sequence[Candidate]] = lambda path: ()

    def __post_init__(self) -> None:
        text("name", self.name, error=DemonstrationError)
        if not isinstance(self.suffixes, tuple) or not all(each == "" or _is_suffix(each) for each in self.suffixes):
            rule = "pass a tuple of endings in small letters, as in ('.steps',), with '' for a folder"
            raise DemonstrationError(f"suffixes is {brief(self.suffixes)}: {rule}")
        for name in ("read", "columns", "recognises", "write", "candidates"):
            if not callable(value := getattr(self, name)) and (name, value) != ("write", None):
                raise DemonstrationError(f"{name} is {brief(value)}: pass a function, as ileed.readers.Reader says")

    def can_read(self, path: Path) -> bool:
        """Whether a file is of this format."""
        suffix = "" if path.is_dir() else path.suffix.lower()  # a folder may be called square.v3
        return suffix in self.suffixes and self.recognises(path)

    @property
    def options(self) -> tuple[str, ...]:
        """The names of the format's own options."""
        own = ("path", "demonstrator", "progress")
        return tuple(name for name in inspect.signature(self.read).parameters if name not in own)

    @property
    def reports_progress(self) -> bool:
        """Whether `read` takes a progress callback."""
        return "progress" in inspect.signature(self.read).parameters


def _is_suffix(value: object) -> bool:
    return isinstance(value, str) and value.startswith(".") and value == value.lower()


def readers() -> Iterator[Reader]:
    """Every format that can be read, ours first; a package that contributes one is imported when its turn comes.

    Contributions that cannot be loaded, or are not a `Reader`, are left out.
    """
    for name in _OURS:
        yield import_module(f"ileed.readers.{name}").READER
    for _, found in _CONTRIBUTED.each():
        if isinstance(found, Reader):
            yield found


def reader_of(path: Path) -> Reader:
    """The first reader that can read a file."""
    if found := next((reader for reader in readers() if reader.can_read(path)), None):
        return found
    known = ", ".join(suffix or f"folders of {reader.name}" for reader in readers() for suffix in reader.suffixes)
    broken = "".join(f"; {error}" for _, error in _CONTRIBUTED.each() if isinstance(error, IleedError))
    raise DemonstrationError(f"{path.name} is of no known format: there are readers for {known}{broken}")


def _check_reader(name: str, found: Any) -> Reader:
    rule = f"an entry point of the group {plugins.READERS} must name an ileed.readers.Reader"
    checked: Reader = instance_of(f"the reader {name}", found, Reader, rule=rule, error=DemonstrationError)
    return checked


_CONTRIBUTED: plugins.Registry[Reader] = plugins.Registry(plugins.READERS, {}, _check_reader)


class Labeller:
    """Says where a file names its demonstrators, never guessed; each reader knows which kinds it can follow."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            text(name, value, error=DemonstrationError)


@final
@dataclass(frozen=True)
class by_column(Labeller):  # noqa: N801 (reads as a phrase: read(..., demonstrator=by_column("operator")))
    """The demonstrator stands in a column of the table, one value for each step."""

    column: str


@final
@dataclass(frozen=True)
class by_one(Labeller):  # noqa: N801
    """Everything in the file was done by one demonstrator, of this name."""

    name: str


@final
@dataclass(frozen=True)
class by_episode_metadata(Labeller):  # noqa: N801
    """The demonstrator stands in the metadata of each episode, under this name, as Minari's data sets have them."""

    name: str


@final
@dataclass(frozen=True, init=False)
class by_mask(Labeller):  # noqa: N801
    """Each named mask of a robomimic file lists the episodes of one demonstrator, who takes the mask's name.

    Without names, robomimic's own operators: every mask called `{better,okay,worse}_operator_N`. An episode in none of
    the masks is an error, or is left out with `unmatched="drop"`.

    >>> by_mask("better_operator_1", "worse_operator_1", unmatched="drop")
    by_mask(names=('better_operator_1', 'worse_operator_1'), unmatched='drop')
    """

    names: tuple[str, ...]
    unmatched: Literal["error", "drop"]

    def __init__(self, *names: str, unmatched: Literal["error", "drop"] = "error") -> None:
        if not isinstance(unmatched, str) or unmatched not in ("error", "drop"):
            raise DemonstrationError(f"unmatched is {brief(unmatched)}: pass 'error' or 'drop'")
        for name in names:
            text("name", name, error=DemonstrationError)
        if repeated := [name for name in names if names.count(name) > 1]:
            raise DemonstrationError(f"mask {repeated[0]!r} is named twice: name each once")
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "unmatched", unmatched)


def _are_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


_NOTES = {
    "names": ("a list of strings", _are_words),
    "observations": ("a list of strings", _are_words),
    "observation_shape": (
        "a list of whole numbers, zero or more",
        lambda value: isinstance(value, list) and value and all(map(_is_count, value)),
    ),
    "action_count": ("a whole number, zero or more", _is_count),
    "fps": ("a number of frames per second above zero", is_fps),
    "skills": ("an object of strings", lambda value: isinstance(value, dict) and _are_words([*value.values()])),
}


def read_notes(text: Any, place: str) -> dict[str, Any]:
    """The JSON object in which our writers keep what a format has no place for, such as the order of names."""
    try:
        notes = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        notes = text
    if not isinstance(notes, dict):
        found = f"the notes in {place} hold {brief(notes)}, which is not JSON of ours"
        raise DemonstrationError(f"{found}: they must be a JSON object")
    for name, (rule, holds) in _NOTES.items():
        if name in notes and not holds(notes[name]):
            found = f"the notes on {name!r} in {place} hold {brief(notes[name])}"
            raise DemonstrationError(f"{found}: {name} must be {rule}; write it again")
    return notes


def shape_as_noted(observations: Array, notes: dict[str, Any], place: str) -> Array:
    """(step, ...) observations in the shape that our writer noted, from the (step, number) that the file holds."""
    shape, width = tuple(notes.get("observation_shape", observations.shape[1:])), math.prod(observations.shape[1:])
    if math.prod(shape) != width:
        found = f"observations have {width:,} numbers but by {place} their shape is {shape}"
        raise DemonstrationError(f"{found}: the product must be the number")
    return observations.reshape(len(observations), *shape)


def flat_table(path: Path, names: Sequence[str]) -> DemonstrationError:
    """The sentence for a flat table that was given without the roles of its columns."""
    return DemonstrationError(
        f"{path} is a flat table with the columns {listed(names, most=20)}: say which is the action and which "
        "names the demonstrator, with --action and --demonstrator, or in Python with "
        "ileed.from_table(path, action=..., demonstrator=...)"
    )
