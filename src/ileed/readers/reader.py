"""Readers: what a format of files offers, how a file says who acted, and the formats that there are.

A package adds a format by an entry point of the group `ileed.readers` whose value is a `Reader`; a format of ours is a
module beside this one, with a `READER`, and its name in `_OURS`. What the library brings itself goes first.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal, final

from ileed import plugins
from ileed.checking import instance_of, text
from ileed.demonstrations import Demonstrations
from ileed.errors import DemonstrationError

_OURS = ("parquet", "robomimic", "tables")


@final
@dataclass(frozen=True)
class Reader:
    """A format of files that hold demonstrations.

    `read(path, *, demonstrator, ...)` returns the demonstrations of a file. `demonstrator` is a `Labeller` that says
    where the file names its demonstrators, or None for the format's own place; further keyword arguments are options of
    the format. `columns(path)` returns the names that the columns of a file have, and reads no more than it must. Where
    others use the same suffix, or a data set is a folder without one (""), `recognises(path)` tells the format.
    """

    name: str
    suffixes: tuple[str, ...]
    read: Callable[..., Demonstrations]
    columns: Callable[[Path], Sequence[str]]
    recognises: Callable[[Path], bool] = lambda path: True

    def can_read(self, path: Path) -> bool:
        """Whether a file is of this format."""
        return path.suffix.lower() in self.suffixes and self.recognises(path)

    @property
    def options(self) -> tuple[str, ...]:
        """The names of the format's own options."""
        return tuple(name for name in inspect.signature(self.read).parameters if name not in ("path", "demonstrator"))


def readers() -> Iterator[Reader]:
    """Every format that can be read, ours first; a package that contributes one is imported when its turn comes."""
    for name in _OURS:
        yield import_module(f"ileed.readers.{name}").READER
    for point in plugins.contributed(plugins.READERS).values():
        rule = "an entry point of the group ileed.readers must name an ileed.readers.Reader"
        yield instance_of(point.name, plugins.loaded(point), Reader, rule=rule, error=DemonstrationError)


def reader_of(path: Path) -> Reader:
    """The first reader that can read a file."""
    if found := next((reader for reader in readers() if reader.can_read(path)), None):
        return found
    known = ", ".join(suffix for reader in readers() for suffix in reader.suffixes)
    raise DemonstrationError(f"{path.name} is of no known format: there are readers for {known}")


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
        if unmatched not in ("error", "drop"):
            raise DemonstrationError(f"unmatched is {unmatched!r}: pass 'error' or 'drop'")
        for name in names:
            text("name", name, error=DemonstrationError)
        if repeated := [name for name in names if names.count(name) > 1]:
            raise DemonstrationError(f"mask {repeated[0]!r} is named twice: name each once")
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "unmatched", unmatched)
