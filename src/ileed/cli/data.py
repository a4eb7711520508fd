"""`ileed inspect`, and the options by which commands read a data set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.table import Table
from tyro.conf import OmitArgPrefixes, Positional, arg

from ileed.cli.console import Output, plain, print_json
from ileed.errors import DemonstrationError, SettingsError

if TYPE_CHECKING:
    from ileed.demonstrations import Demonstrations
    from ileed.readers import Labeller


@dataclass(frozen=True)
class Columns:
    """The columns of a table; files of ileed and of robomimic name their own."""

    action: tuple[str, ...] = ()
    """The column of the action, if the file is a table (CSV or parquet); several for a continuous action."""
    demonstrator: Annotated[str | None, arg(aliases=["--who"])] = None
    """The column of the demonstrator, if it is not called demonstrator."""
    episode: tuple[str, ...] = ()
    """The column of the episode in a table, or several columns together; by default each row is an episode."""
    features: tuple[str, ...] = ()
    """The columns of a table that are observations; all others by default."""
    skills: tuple[str, ...] = ()
    """Columns of a table with labels for --expertise "Skills('COLUMN')"."""
    missing: Literal["error", "category"] = "error"
    """Missing values in a table's features: an error, or a category of their own."""

    def read(self, path: Path) -> Demonstrations | None:
        """The demonstrations in a table; None where no column of an action is named."""
        if not self.action:
            if self.episode or self.features or self.skills:
                raise DemonstrationError("columns of a table are named, but not that of the action: add --action")
            return None
        from ileed.readers import from_table

        if self.demonstrator is None:
            raise DemonstrationError("--action names a column, but that of the demonstrator is missing: --demonstrator")
        return from_table(
            path,
            action=self.action[0] if len(self.action) == 1 else self.action,
            demonstrator=self.demonstrator,
            episode=self.episode or None,
            features=self.features or None,
            skills=self.skills or None,
            missing=self.missing,
        )


@dataclass(frozen=True)
class Robomimic:
    """Options for robomimic's files (.hdf5, .h5)."""

    masks: tuple[str, ...] = ()
    """Masks, each with the episodes of one demonstrator; by default better_operator_1 and the like."""
    unmatched: Literal["error", "drop"] = "error"
    """Episodes in none of the masks: an error, or left out."""
    one: str | None = None
    """The name of the demonstrator, if the file has only one."""
    observations: tuple[str, ...] = ()
    """Keys of the observations to concatenate, in this order; by default the low-dimensional ones."""
    filter_key: str | None = None
    """A mask: only its episodes are read."""

    def labeller(self, column: str | None) -> Labeller | None:
        """Where the file names the demonstrator: in a column or by masks; or the one demonstrator of the whole file."""
        from ileed.readers import by_column, by_mask, by_one

        by_masks = bool(self.masks) or self.unmatched != "error"
        options = {
            "--demonstrator": column is not None,
            "--masks or --unmatched": by_masks,
            "--one": self.one is not None,
        }
        if len(given := [option for option, is_given in options.items() if is_given]) > 1:
            raise SettingsError(f"{' and '.join(given)} each say who demonstrated: give one of them")
        if column is not None:
            return by_column(column)
        if self.one is not None:
            return by_one(self.one)
        return by_mask(*self.masks, unmatched=self.unmatched) if by_masks else None


@dataclass(frozen=True)
class Inspect:
    """Describe a data set and list its problems.

    A parquet file has the columns that `ileed.readers.parquet` lists, a table one column for each feature.
    """

    data: Positional[Path]
    """A parquet file (.parquet), one of robomimic (.hdf5, .h5), or with --action a table (.csv, .tsv, .parquet)."""
    columns: OmitArgPrefixes[Columns] = Columns()
    """The columns of a table."""
    anonymise: bool = False
    """Show pseudonyms in place of names; the same data have the same pseudonyms in every output."""
    json: bool = False
    """Print JSON instead of text."""
    robomimic: OmitArgPrefixes[Robomimic] = Robomimic()

    def __call__(self) -> None:
        data = read_data(self.data, self.columns, self.robomimic, anonymise=self.anonymise)
        findings = data.check()
        if self.json:
            steps_each = dict(zip(data.names, data.steps_each.tolist(), strict=True))
            counts = {"steps": len(data), "episodes": data.episode_count, "demonstrators": steps_each}
            listed = [{"about": finding.about, "says": finding.says} for finding in findings]
            print_json(counts | column_names(data) | {"findings": listed})
            return
        console = Output()
        console.say(repr(data))
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
        for finding in findings:
            table.add_row(f"[bold]{plain(finding.about)}[/bold]", plain(finding.says))
        console.print(table if findings else "no problems found: every demonstrator has enough data")


def read_data(path: Path, columns: Columns, robomimic: Robomimic, *, anonymise: bool = False) -> Demonstrations:
    """The demonstrations in a file: a table with named columns, or another format that `ileed.read` knows."""
    from ileed.readers import read

    labeller = robomimic.labeller(columns.demonstrator)
    options: dict[str, Any] = {"observations": list(robomimic.observations), "filter_key": robomimic.filter_key}
    given = {name: value for name, value in options.items() if value not in ([], None)}
    table = columns.read(path)
    data = read(path, demonstrator=labeller, **given) if table is None else table
    return data.anonymise() if anonymise else data


def column_names(data: Demonstrations) -> dict[str, Any]:
    """The names of features and actions, where the data came from a table."""
    if (encoding := data.encoding) is None:
        return {}
    actions = {"columns": list(encoding.action), "labels": list(encoding.labels)}
    return {"features": list(encoding.inputs), "actions": actions}
