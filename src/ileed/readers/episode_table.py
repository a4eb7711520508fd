"""A table beside the data that says who demonstrated each episode, where the data themselves do not."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import final

from ileed.checking import path_of
from ileed.demonstrations.rules import listed
from ileed.errors import DemonstrationError, brief, refuse_damage
from ileed.readers.reader import Candidate, Labeller
from ileed.wording import did_you_mean

_EPISODE = "episode"


@final
@dataclass(frozen=True)
class by_episode_table(Labeller):  # noqa: N801 (reads as a phrase, like by_column)
    """A CSV file with the columns `episode` and `operator`, one row for each episode, says who demonstrated it.

    An episode is named as in the data: by its number, or as a robomimic file calls it (`demo_17`). `column` is the name
    of the second column, where it is not `operator`; further columns are ignored, and so are rows of other episodes.
    """

    path: str | os.PathLike[str]
    column: str = "operator"

    def __post_init__(self) -> None:
        if isinstance(self.path, os.PathLike):
            object.__setattr__(self, "path", os.fspath(self.path))
        super().__post_init__()

    def labels(self, episodes: Sequence[str]) -> list[str]:
        """The demonstrator of each of these episodes."""
        found: dict[str, str] = {}
        for episode, person in self._rows():
            if found.setdefault(episode, person) != person:
                both = f"{found[episode]!r} and {person!r}"
                raise DemonstrationError(f"{self.path} gives episode {episode} to {both}: each episode belongs to one")
        if absent := [name for name in episodes if not found.get(name)]:
            count = f"{len(absent):,} of {len(episodes):,} episodes"
            raise DemonstrationError(
                f"{count} have no {self.column} in {self.path} (first: {absent[0]}): add a row for each episode, by "
                "the name or number that it has in the data"
            )
        return [found[name] for name in episodes]

    def _rows(self) -> list[tuple[str, str]]:
        path = path_of("path", self.path, error=DemonstrationError)
        if not os.path.isfile(path):
            raise DemonstrationError(f"there is no file {brief(str(path))}: check the path")
        with refuse_damage(path, "CSV", csv.Error, advice="save it as UTF-8, with a header"):
            header, *rows = _parse(path) or [[]]
        for name in (_EPISODE, self.column):
            if header.count(name) != 1:
                twice = "has the column twice" if name in header else f"has no column {name!r}"
                raise DemonstrationError(
                    f"{path} {twice}{did_you_mean(name, header)}: it has {listed(header, most=12)}, and needs "
                    f"{_EPISODE!r} and {self.column!r} once each"
                )
        places = header.index(_EPISODE), header.index(self.column)
        if short := next((row for row in rows if row and len(row) <= max(places)), None):
            raise DemonstrationError(f"{path} has the row {brief(short)}: give every row as many values as the header")
        return [(row[places[0]].strip(), row[places[1]].strip()) for row in rows if row]


def _parse(path: Path) -> list[list[str]]:
    """The rows of a CSV file, separated by what its first line has most of."""
    text = path.read_text("utf-8-sig")
    first = text.partition("\n")[0]
    return list(csv.reader(text.splitlines(), delimiter=max(",", ";", "\t", key=first.count)))


def episode_tables(folder: Path) -> list[Candidate]:
    """The CSV files in a folder whose header has `episode` and `operator`."""
    found = []
    for path in sorted(folder.glob("*.csv")):
        with suppress(DemonstrationError):
            rows = by_episode_table(path)._rows()
            people = {person for _, person in rows if person}
            found.append(Candidate(f"table {path.name}", len(people), len(rows), f"--episode-table {path}"))
    return found
