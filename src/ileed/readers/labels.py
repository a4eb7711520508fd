"""Labels: where in a file it stands who the demonstrator was. Never guessed, since a wrong label is a wrong result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final


class Labeller:
    """Says where a file names its demonstrators; each reader knows which kinds it can follow."""


@final
@dataclass(frozen=True)
class by_column(Labeller):  # noqa: N801 (reads as a phrase: read(..., demonstrator=by_column("operator")))
    """The demonstrator stands in a column of the table, one value for each step."""

    column: str
