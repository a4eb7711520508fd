"""Readers: what a format of files offers, and the formats that there are, ours and those of other packages.

A package adds a format by an entry point of the group `ileed.readers` whose value is a `Reader`; a format of ours is a
module beside this one, with a `READER`, and its name in `_OURS`. What the library brings itself goes first.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import final

from ileed import plugins
from ileed.checking import instance_of
from ileed.demonstrations import Demonstrations
from ileed.errors import DemonstrationError

GROUP = "ileed.readers"
_OURS = ("parquet", "robomimic", "tables")


@final
@dataclass(frozen=True)
class Reader:
    """A format of files that hold demonstrations.

    `read(path, *, demonstrator, ...)` returns the demonstrations of a file. `demonstrator` is a `Labeller` that says
    where the file names its demonstrators, or None for the format's own place; further keyword arguments are options of
    the format. `columns(path)` returns the names that the columns of a file have, and reads no more than it must.
    """

    name: str
    suffixes: tuple[str, ...]
    read: Callable[..., Demonstrations]
    columns: Callable[[Path], Sequence[str]]

    def can_read(self, path: Path) -> bool:
        """Whether a file has a suffix of this format."""
        return path.suffix.lower() in self.suffixes

    @property
    def options(self) -> tuple[str, ...]:
        """The names of the format's own options."""
        return tuple(name for name in inspect.signature(self.read).parameters if name not in ("path", "demonstrator"))


def readers() -> Iterator[Reader]:
    """Every format that can be read, ours first; a package that contributes one is imported when its turn comes."""
    for name in _OURS:
        yield import_module(f"ileed.readers.{name}").READER
    for point in plugins.contributed(GROUP).values():
        rule = "an entry point of the group ileed.readers must name an ileed.readers.Reader"
        yield instance_of(point.name, plugins.loaded(point), Reader, rule=rule, error=DemonstrationError)


def reader_of(path: Path) -> Reader:
    """The first reader that can read a file."""
    if found := next((reader for reader in readers() if reader.can_read(path)), None):
        return found
    known = ", ".join(suffix for reader in readers() for suffix in reader.suffixes)
    raise DemonstrationError(f"{path.name} is of no known format: there are readers for {known}")
