"""The interface of a format, labellers, which say where a data set names its demonstrators, and what formats share."""

from __future__ import annotations

import csv
import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, final

import numpy as np

from ileed.data import Array, Demonstrations, Encoding
from ileed.data.encoding import numbered_names
from ileed.data.rules import listed
from ileed.errors import (
    DemonstrationError,
    SettingsError,
    UnnamedDemonstratorError,
    brief,
    did_you_mean,
    path_of,
    refuse_damage,
    text,
    texts_or_none,
    whole_number,
)
from ileed.formats.files import check_there, noted_arrays, noted_encoding, shape_as_noted

# --- who demonstrated


class Candidate(NamedTuple):
    """A place in a file that may name the demonstrators, and the option of the command that selects it.

    `values` counts the distinct values and `episodes` the episodes that have one.
    """

    place: str
    values: int
    episodes: int
    option: str


class Labeller:
    """Says who demonstrated each episode, or where the data set says so; each format accepts some kinds."""

    option: ClassVar[str] = ""
    """The option of the command."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            text(name, value, error=DemonstrationError)

    def labels(self, episodes: Sequence[str]) -> list[str] | None:
        """The demonstrator of each episode, or None if the data set holds them."""
        return None

    @property
    def place(self) -> str | None:
        """The name of the column, feature or entry of metadata to look up, if there is one."""
        return None


@final
@dataclass(frozen=True)
class by_column(Labeller):  # noqa: N801 (reads as a phrase: read(..., demonstrator=by_column("operator")))
    """A column of the data set names the demonstrator of each step."""

    option: ClassVar[str] = "--demonstrator"
    column: str

    @property
    def place(self) -> str:
        return self.column


@final
@dataclass(frozen=True)
class by_one(Labeller):  # noqa: N801
    """One demonstrator, of this name, recorded the whole data set."""

    option: ClassVar[str] = "--one"
    name: str

    def labels(self, episodes: Sequence[str]) -> list[str]:
        return [self.name] * len(episodes)


@final
@dataclass(frozen=True)
class by_episode_metadata(Labeller):  # noqa: N801
    """The metadata of each episode name its demonstrator under this key, as in Minari's data sets."""

    option: ClassVar[str] = "--demonstrator"
    name: str

    @property
    def place(self) -> str:
        return self.name


@final
@dataclass(frozen=True, init=False)
class by_mask(Labeller):  # noqa: N801
    """Each named mask of a robomimic file lists the episodes of one demonstrator, who takes the mask's name.

    Without names, robomimic's own operators: every mask called `{better,okay,worse}_operator_N`. An episode in none of
    the masks is an error, or is left out with `unmatched="drop"`.

    >>> by_mask("better_operator_1", "worse_operator_1", unmatched="drop")
    by_mask(names=('better_operator_1', 'worse_operator_1'), unmatched='drop')
    """

    option: ClassVar[str] = "--masks"
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


_EPISODE = "episode"


@final
@dataclass(frozen=True)
class by_episode_table(Labeller):  # noqa: N801
    """A CSV file with the columns `episode` and `operator` names the demonstrator of each episode.

    An episode is named as in the data: by its number, or as a robomimic file calls it (`demo_17`). `column` is the name
    of the second column, where it is not `operator`. Other columns and rows of other episodes are ignored.
    """

    option: ClassVar[str] = "--episode-table"
    path: str | os.PathLike[str]
    column: str = "operator"

    def __post_init__(self) -> None:
        if isinstance(self.path, os.PathLike):
            object.__setattr__(self, "path", os.fspath(self.path))
        super().__post_init__()

    def labels(self, episodes: Sequence[str]) -> list[str]:
        found: dict[str, str] = {}
        for episode, name in self._rows():
            if found.setdefault(episode, name) != name:
                both = f"{found[episode]!r} and {name!r}"
                raise DemonstrationError(f"{self.path} gives episode {episode} to {both}: each episode belongs to one")
        if absent := [episode for episode in episodes if not found.get(episode)]:
            count = f"{len(absent):,} of {len(episodes):,} episodes"
            raise DemonstrationError(
                f"{count} have no {self.column} in {self.path} (first: {absent[0]}): add a row for each episode, by "
                "the name or number that it has in the data"
            )
        return [found[episode] for episode in episodes]

    def _rows(self) -> list[tuple[str, str]]:
        """The episode and the demonstrator of each row."""
        path = path_of("path", self.path, error=DemonstrationError)
        if not os.path.isfile(path):
            raise DemonstrationError(f"there is no file {brief(str(path))}: check the path")
        with refuse_damage(path, "CSV", csv.Error, advice="save it as UTF-8, with a header"):
            content = path.read_text("utf-8-sig")
            first = content.partition("\n")[0]
            separator = max(",", ";", "\t", key=first.count)
            header, *rows = list(csv.reader(content.splitlines(), delimiter=separator)) or [[]]
        check_there(path, "column", (_EPISODE, self.column), header)
        if repeated := [name for name in (_EPISODE, self.column) if header.count(name) > 1]:
            raise DemonstrationError(f"{path} has the column {repeated[0]!r} twice: keep one of them")
        places = header.index(_EPISODE), header.index(self.column)
        if short := next((row for row in rows if row and len(row) <= max(places)), None):
            raise DemonstrationError(f"{path} has the row {brief(short)}: give every row as many values as the header")
        return [(row[places[0]].strip(), row[places[1]].strip()) for row in rows if row]


def episode_tables(folder: Path) -> list[Candidate]:
    """The CSV files in a folder whose header has `episode` and `operator`."""
    found = []
    for path in sorted(folder.glob("*.csv")):
        with suppress(DemonstrationError):
            rows = by_episode_table(path)._rows()
            names = {name for _, name in rows if name}
            found.append(Candidate(f"table {path.name}", len(names), len(rows), f"--episode-table {path}"))
    return found


def candidates(kind: str, episodes: Iterable[Mapping[str, Any]]) -> list[Candidate]:
    """The candidates of one kind: the entries of episodes that hold names or whole numbers."""
    found: dict[str, list[str | int]] = {}
    for values in episodes:
        for name, value in values.items():
            if (label := plain_label(value)) is not None:
                found.setdefault(name, []).append(label)
    return [
        Candidate(kind.format(name), len(set(labels)), len(labels), f"--demonstrator {name}")
        for name, labels in sorted(found.items())
    ]


def labels_of(
    labeller: Labeller | None, episodes: Sequence[str], *lookups: type[Labeller], title: str
) -> list[str] | None:
    """The labels that a labeller knows itself, or None if it is one of the `lookups` in the data set."""
    labels = None if labeller is None else labeller.labels(episodes)
    if labels is None:
        check_lookup(labeller, *lookups, title=title)
    return labels


def check_lookup(labeller: Labeller | None, *lookups: type[Labeller], title: str) -> None:
    """Refuse a labeller that the format called `title` cannot look up."""
    if labeller is not None and not isinstance(labeller, lookups):
        message = f"{labeller!r} does not apply to {title}: use {_ways(lookups)}"
        raise DemonstrationError(message, code="labeller-unsupported")


def unnamed(path: Path, found: str, *lookups: type[Labeller]) -> UnnamedDemonstratorError:
    """The error for a data set that does not name its demonstrators; `found` is what it has instead."""
    message = f"{path} does not say who demonstrated: {found}; use {_ways((*lookups, by_episode_table, by_one))}"
    return UnnamedDemonstratorError(message, code="demonstrator-unnamed")


def _ways(kinds: Sequence[type[Labeller]]) -> str:
    options = dict.fromkeys(kind.option for kind in kinds)
    calls = [f"{kind.__name__}(...)" for kind in kinds]
    return f"{_either(calls)} (at the command: {_either([*options])})"


def _either(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]


def plain_label(value: Any) -> str | int | None:
    """A value as the label of a demonstrator: a name or a whole number; None for anything else."""
    plain = value.item() if isinstance(value, np.generic) else value
    return plain if isinstance(plain, str) or (isinstance(plain, int) and not isinstance(plain, bool)) else None


# --- observations by key


def observation_keys(observations: object) -> tuple[str, ...] | None:
    """The option `observations` of a reader: names of keys, at least one, or None for the format's default."""
    keys = texts_or_none("observations", observations, error=DemonstrationError)
    if keys == ():
        message = "observations is empty: name one or more, or pass None for the default"
        raise DemonstrationError(message, code="observations-empty")
    return keys


def join_observations(
    parts: Mapping[str, Array],
    actions: Array,
    notes: Mapping[str, Any],
    place: str,
    *,
    inputs: Sequence[str] = (),
    action: Sequence[str] = (),
) -> dict[str, Any]:
    """The observations under several keys side by side, and their names, as `Demonstrations` takes them.

    Args:
        parts: (step, ...) the observations under each key.
        actions: (step,) discrete or (step, dimension) continuous actions.
        notes: those of our writer, whose shape and encoding apply if it wrote the same keys.
        place: where the notes stand.
        inputs: the name of each number; by default its key, with an index where the key holds several.
        action: the name of each dimension of a continuous action.
    """
    flat = [values.reshape(len(values), -1) for values in parts.values()]
    joined = np.concatenate(flat, axis=1)
    if [*parts] == notes.get("observations"):
        joined = shape_as_noted(joined, notes, place)
        return {"observations": joined, "encoding": noted_encoding(notes), "arrays": noted_arrays(notes)}
    if not inputs:
        widths = zip(parts, flat, strict=True)
        inputs = [name for key, part in widths for name in numbered_names(key, part.shape[1])]
    count = notes.get("action_count", 0)
    return {
        "observations": joined,
        "encoding": Encoding.of_numbers(inputs, actions, action_count=count, action=action),
    }


def division(data: Demonstrations, observations: Mapping[str, int] | None, default: str) -> dict[str, int]:
    """How many numbers of an observation each key takes; without a choice of the caller, `default` takes all."""
    keys = {default: data.observation_size} if observations is None else dict(observations)
    for key, taken in keys.items():
        text("a key of observations", key, error=DemonstrationError)
        rule = "pass how many numbers of an observation it takes, one or more"
        whole_number(f"the key {key!r} of observations", taken, least=1, rule=rule, error=DemonstrationError)
    if (total := sum(keys.values())) != data.observation_size:
        found = f"the keys {keys} take {total} numbers but an observation has {data.observation_size}"
        raise DemonstrationError(f"{found}: they must take them all", code="observations-division")
    return keys


def divided(rows: Array, keys: Mapping[str, int]) -> dict[str, Array]:
    """(step, number) the part of observations that each key takes."""
    parts = np.split(rows.reshape(len(rows), -1), np.cumsum([*keys.values()])[:-1], axis=1)
    return dict(zip(keys, parts, strict=True))


# --- the interface


@final
@dataclass(frozen=True)
class Option:
    """An option of a format as the command offers it: the name of the keyword argument, the type, one line of help.

    `parse` converts the value at the command to the one that the format takes. `flag` is `--name` by default.
    """

    name: str
    kind: Any
    help: str
    flag: str = ""
    parse: Callable[[Any], Any] = lambda value: value

    def __post_init__(self) -> None:
        object.__setattr__(self, "flag", self.flag or f"--{self.name.replace('_', '-')}")


def _part(word: str) -> tuple[str, int]:
    name, _, count = word.rpartition("=")
    if not name or not count.isdecimal() or len(count) > 9:
        raise SettingsError(f"--divide is {word!r}: give a name and a number, as in observation.state=9")
    return name, int(count)


OBSERVATIONS = Option(
    "observations",
    tuple[str, ...],
    "Keys or features of the observations to concatenate, in this order; by default the low-dimensional ones.",
    parse=list,
)
DIVIDE = Option(
    "observations",
    tuple[str, ...],
    "How many numbers of an observation each feature takes (robomimic, lerobot), as in observation.state=9 ....",
    flag="--divide",
    parse=lambda words: dict(map(_part, words)),
)


class AbstractFormat(ABC):
    """A format of data sets, on disk as a file or a folder.

    `name` is what `ileed.write(format=...)` takes, `suffixes` are the endings of its files in small letters ("" for a
    folder), `title` is what messages call such data sets, and `extra` is the extra of ileed that reading or writing
    needs. `reading` and `writing` describe options that the command offers.

    `write(data, path, *, ...)` writes what `read` reads back; it is None for formats that are only read. A keyword
    argument `progress` of `read` is called with the number of bytes read and their total.

    Laws, which `ileed.testing.check_format` checks:

    - `read` returns the same demonstrations every time, and changes no file.
    - `write` writes a data set completely or not at all, and refuses data that the format cannot hold.
    - `read` returns exactly what was written, and `can_read` is true of it.
    - A damaged file raises an `IleedError` of one line.
    - Options are keyword-only, and None by default.
    """

    name: str
    suffixes: tuple[str, ...]
    title: str = ""
    extra: str | None = None
    reading: tuple[Option, ...] = ()
    writing: tuple[Option, ...] = ()
    write: Callable[..., None] | None = None

    def __init_subclass__(cls) -> None:
        text("name", cls.name, error=DemonstrationError)
        if not isinstance(cls.suffixes, tuple) or not all(map(_is_suffix, cls.suffixes)):
            rule = "it must be a tuple of endings in small letters, as in ('.steps',), with '' for a folder"
            raise DemonstrationError(f"suffixes of {cls.__name__} is {brief(cls.suffixes)}: {rule}")

    @abstractmethod
    def read(self, path: Path, *args: Any, **options: Any) -> Demonstrations:
        """The demonstrations of a data set.

        The keyword argument `demonstrator` is a `Labeller`, or None for the place where the format keeps the
        demonstrators; further keyword arguments are options of the format.
        """

    @abstractmethod
    def columns(self, path: Path) -> Sequence[str]:
        """The names of the columns of a data set; reads as little of it as possible."""

    def recognises(self, path: Path) -> bool:
        """Whether a path with one of the suffixes holds this format, where others have the same suffix."""
        return True

    def candidates(self, path: Path) -> Sequence[Candidate]:
        """The places that may name the demonstrators, for a user who has to choose one."""
        return ()

    def labeller(self, demonstrator: Labeller | str | None) -> Labeller | None:
        """The labeller that a caller of `ileed.read` means; text is ambiguous unless every place is a column."""
        if isinstance(demonstrator, str):
            rule = f"pass where the name stands, as in by_column({demonstrator!r})"
            raise DemonstrationError(f"demonstrator is {brief(demonstrator)}: {rule}")
        return demonstrator

    def resolve(self, data: Demonstrations, **options: Any) -> dict[str, float]:
        """Settings that `write` derives from the data where its options leave them open."""
        return {}

    @final
    def can_read(self, path: Path) -> bool:
        """Whether a path is of this format."""
        suffix = "" if path.is_dir() else path.suffix.lower()  # a folder may be called square.v3
        return suffix in self.suffixes and self.recognises(path)

    def can_read_with(self, path: Path, options: Collection[str]) -> bool:
        """Whether a path is of this format when these options are given, which may tell it from another format."""
        return self.can_read(path)

    @property
    def options(self) -> tuple[str, ...]:
        """The names of the options of `read`."""
        return _options(self.read, ("path", "demonstrator", "progress"))

    @property
    def write_options(self) -> tuple[str, ...]:
        """The names of the options of `write`."""
        return () if self.write is None else _options(self.write, ("data", "path"))


def _is_suffix(value: object) -> bool:
    return value == "" or (isinstance(value, str) and value.startswith(".") and value == value.lower())


def _options(function: Callable[..., Any], own: Collection[str]) -> tuple[str, ...]:
    return tuple(name for name in inspect.signature(function).parameters if name not in own)


def check_options(given: Iterable[str], known: Sequence[str], what: str) -> None:
    """Refuse an option that a reader or writer does not have."""
    if unknown := next((name for name in given if name not in known), None):
        rule = f"the options of these are {', '.join(known)}" if known else "leave it out"
        raise DemonstrationError(f"{unknown} does not apply to {what}{did_you_mean(unknown, known)}: {rule}")


def flat_table(path: Path, names: Sequence[str]) -> DemonstrationError:
    """The error for a table whose columns were given no roles."""
    return DemonstrationError(
        f"{path} is a flat table with the columns {listed(names, most=20)}: say which is the action and which "
        "names the demonstrator, with --action and --demonstrator, or in Python with "
        "ileed.read(path, action=..., demonstrator=...), which is ileed.from_table"
    )
