"""`ileed inspect`: what a data set holds; and how the command reads one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.table import Table
from tyro.conf import OmitArgPrefixes, Positional

from ileed.cli.console import Output, plain, print_json
from ileed.cli.table import Columns
from ileed.errors import SettingsError

if TYPE_CHECKING:
    from ileed.demonstrations import Demonstrations
    from ileed.readers import Labeller

__all__ = ["Inspect", "Robomimic", "names", "read_data"]


@dataclass(frozen=True)
class Robomimic:
    """How to read robomimic's files (.hdf5, .h5)."""

    masks: tuple[str, ...] = ()
    """Masks that list the episodes of one demonstrator each; better_operator_1 and its like by default."""
    unmatched: Literal["error", "drop"] = "error"
    """What to do with episodes that are in none of the masks: refuse the file, or leave them out."""
    one: str | None = None
    """The name of the one demonstrator of whom the whole file is."""
    observations: tuple[str, ...] = ()
    """Keys of observations to join, in this order; the low-dimensional ones by default."""
    filter_key: str | None = None
    """A mask: only its episodes are read."""

    def labeller(self, column: str | None) -> Labeller | None:
        """Where the file says who demonstrated: in a column, in masks, or nowhere since it was one person."""
        from ileed.readers import by_column, by_mask, by_one

        by_masks = self.masks or self.unmatched != "error"
        given = {
            "--demonstrator": column is not None,
            "--masks or --unmatched": bool(by_masks),
            "--one": self.one is not None,
        }
        if len(asked := [option for option, here in given.items() if here]) > 1:
            raise SettingsError(f"{' and '.join(asked)} each say who demonstrated: give one of them")
        if column is not None:
            return by_column(column)
        if self.one is not None:
            return by_one(self.one)
        return by_mask(*self.masks, unmatched=self.unmatched) if by_masks else None

    def options(self) -> dict[str, Any]:
        """What else the reader is told, by its own names."""
        options = {"observations": list(self.observations) or None, "filter_key": self.filter_key}
        return {name: value for name, value in options.items() if value is not None}


@dataclass(frozen=True)
class Inspect:
    """Say what a data set holds, and what in it is wrong or thin."""

    data: Positional[Path]
    """A parquet file (.parquet; see `ileed.readers.parquet` for the columns), one of robomimic's (.hdf5, .h5), or, with
    --action, a table with a column for each feature (.csv, .tsv, .parquet)."""
    columns: OmitArgPrefixes[Columns] = Columns()  # noqa: RUF009 (frozen)
    """Which columns of a table are which."""
    anonymise: bool = False
    """Show pseudonyms in place of names; the same data have the same pseudonyms in every output."""
    json: bool = False
    """Print JSON for a script instead of text for a person."""
    robomimic: OmitArgPrefixes[Robomimic] = Robomimic()

    def __call__(self) -> None:
        data = read_data(self.data, self.columns, self.robomimic, anonymise=self.anonymise)
        findings = data.check()
        if self.json:
            print_json(
                {
                    "steps": len(data),
                    "episodes": data.episode_count,
                    "demonstrators": dict(zip(data.names, data.steps_each.tolist(), strict=True)),
                    **names(data),
                    "findings": [{"about": finding.about, "says": finding.says} for finding in findings],
                }
            )
            return
        console = Output()
        console.say(repr(data))
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
        for finding in findings:
            table.add_row(f"[bold]{plain(finding.about)}[/bold]", plain(finding.says))
        console.print(table if findings else "nothing stands out: enough data from everybody, and all of it sound")


def read_data(path: Path, columns: Columns, robomimic: Robomimic, *, anonymise: bool = False) -> Demonstrations:
    """Demonstrations from a file: a table by its named columns, another by what it or the options say of who did it."""
    from ileed.readers import read

    labeller = robomimic.labeller(columns.demonstrator)
    table = columns.read(path)
    data = read(path, demonstrator=labeller, **robomimic.options()) if table is None else table
    return data.anonymise() if anonymise else data


def names(data: Demonstrations) -> dict[str, Any]:
    """The names of a table's features and actions, where the data came from one."""
    if (encoding := data.encoding) is None:
        return {}
    actions = {"columns": list(encoding.action), "labels": list(encoding.labels)}
    return {"features": list(encoding.inputs), "actions": actions}
