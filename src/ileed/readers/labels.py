"""Labels: where in a file it stands who the demonstrator was. Never guessed, since a wrong label is a wrong result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

from ileed.checking import text
from ileed.errors import DemonstrationError


class Labeller:
    """Says where a file names its demonstrators; each reader knows which kinds it can follow."""

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
