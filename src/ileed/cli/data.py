"""`ileed inspect`, and the options by which commands read a data set."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from rich.table import Table
from tyro.conf import OmitArgPrefixes, Positional, arg

from ileed import stores
from ileed.cli.console import Output, after_delay, bar, plain, print_json
from ileed.errors import DemonstrationError, SettingsError, UnnamedDemonstratorError
from ileed.wording import counted

if TYPE_CHECKING:
    from ileed.demonstrations import Demonstrations, Encoding
    from ileed.indicators import Indicators
    from ileed.readers import Labeller

_MOST_ROWS = 12


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

    def read(self, path: Path, encoding: Encoding | None = None) -> Demonstrations:
        """The demonstrations in a table, encoded as those of a fit where its encoding is passed."""
        from ileed.readers import from_table

        options: dict[str, Any] = {name: value or None for name, value in vars(self).items()}
        options["action"] = self.action[0] if len(self.action) == 1 else self.action
        return from_table(path, **options, encoding=None if self.features else encoding)


@dataclass(frozen=True)
class Robomimic:
    """Options for robomimic's files (.hdf5, .h5) and LeRobot's folders; masks are robomimic's alone."""

    masks: tuple[str, ...] = ()
    """Masks, each with the episodes of one demonstrator; by default better_operator_1 and the like."""
    unmatched: Literal["error", "drop"] = "error"
    """Episodes in none of the masks: an error, or left out."""
    one: str | None = None
    """The name of the demonstrator, if the file has only one."""
    episode_table: Path | None = None
    """A CSV file with the columns episode and operator, which says who demonstrated each episode."""
    observations: tuple[str, ...] = ()
    """Keys or features of the observations to concatenate, in this order; by default the low-dimensional ones."""
    filter_key: str | None = None
    """A mask: only its episodes are read."""

    def labeller(self, column: str | None) -> Labeller | None:
        """Where the file names the demonstrator: in a column or by masks; or the one demonstrator of the whole file."""
        from ileed.readers import by_column, by_episode_table, by_mask, by_one

        found: dict[str, Labeller] = {}
        if column is not None:
            found["--demonstrator"] = by_column(column)
        if self.masks or self.unmatched != "error":
            found["--masks or --unmatched"] = by_mask(*self.masks, unmatched=self.unmatched)
        if self.one is not None:
            found["--one"] = by_one(self.one)
        if self.episode_table is not None:
            found["--episode-table"] = by_episode_table(self.episode_table)
        if len(found) > 1:
            raise SettingsError(f"{' and '.join(found)} each say who demonstrated: give one of them")
        return next(iter(found.values()), None)


@dataclass(frozen=True)
class Folder:
    """Options for a folder of parquet or Arrow files, which may be larger than memory."""

    memory_gib: float | None = None
    """The memory, in GiB, that blocks and tables of counts may take; 2 by default."""
    cache: Path | None = None
    """The folder in which columns are kept as long as the command runs; the system's temporary folder by default."""


@dataclass(frozen=True)
class OfData:
    """A command about a data set."""

    data: Positional[Path]
    """A file (.parquet, .hdf5, .h5, .npz), a folder, with --action a table (.csv, .tsv), or --repo-id OWNER/NAME."""
    columns: OmitArgPrefixes[Columns] = Columns()
    """The columns of a table."""
    anonymise: bool = False
    """Replace names by pseudonyms in all that is shown and saved; the same data have the same pseudonyms everywhere."""
    json: bool = False
    """Print JSON instead of text."""
    robomimic: OmitArgPrefixes[Robomimic] = Robomimic()
    """Options for robomimic's files (.hdf5, .h5) and LeRobot's folders."""
    folder: OmitArgPrefixes[Folder] = Folder()
    """Options for a folder of parquet or Arrow files."""

    @property
    def place(self) -> Path:
        """Where the data lie: those of the Hugging Face hub are downloaded once."""
        from ileed.readers.hub import local_copy

        return Path(local_copy(self.data))

    def check_file(self) -> None:
        """Refuse a file that is not there; an address is asked only when it is read."""
        if not stores.address_of(self.data) and not str(self.data).startswith("hf:") and not self.data.exists():
            raise DemonstrationError(f"there is no file {plain(str(self.data))}: check the path")

    def read(self, encoding: Encoding | None = None) -> Demonstrations:
        """The demonstrations in the file, with pseudonyms where these are asked for."""
        data = self.read_named(encoding)
        return data.anonymise() if self.anonymise else data

    def read_named(self, encoding: Encoding | None = None) -> Demonstrations:
        """The demonstrations in the file with the names that it has; with --anonymise, no message contains these.

        With the `encoding` of a fit, the columns of a table are read as those of the fit were.
        """
        columns, labeller = self.columns, self.robomimic.labeller(self.columns.demonstrator)
        if not columns.action and (columns.episode or columns.features or columns.skills):
            raise DemonstrationError("columns of a table are named, but not that of the action: add --action")
        if columns.action and columns.demonstrator is None:
            raise DemonstrationError("--action names a column, but that of the demonstrator is missing: --demonstrator")
        if self.anonymise:
            self.check_file()
        with names_withheld(stores.name_of(self.data)) if self.anonymise else nullcontext():
            return self._read(labeller, encoding)

    def _read(self, labeller: Labeller | None, encoding: Encoding | None) -> Demonstrations:
        """The demonstrations in the file: a table with named columns, or another format that `ileed.read` knows."""
        from ileed.readers import read
        from ileed.readers.hub import local_copy

        if not stores.address_of(self.data):
            local_copy(self.data)  # the hub shows bars of its own
        if self.columns.action:
            with bar("reading"):
                return self.columns.read(self.data, encoding)
        options = {"observations": list(self.robomimic.observations), "filter_key": self.robomimic.filter_key}
        options |= vars(self.folder)
        given: dict[str, Any] = {name: value for name, value in options.items() if value not in (None, [])}
        with bar("reading") as advance:
            return read(self.data, demonstrator=labeller, progress=after_delay(advance), **given)


@contextmanager
def names_withheld(place: str) -> Iterator[None]:
    """Withhold the reasons for which data cannot be read, and warnings: they may quote names from the file."""
    found = f"{place} {{}}, which may contain names: `ileed inspect` without --anonymise shows {{}}"
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            yield
    except DemonstrationError:
        raise DemonstrationError(found.format("cannot be read for a reason", "it")) from None
    if told:
        warnings.warn(found.format("was read with warnings", "them"), stacklevel=1)


@dataclass(frozen=True)
class Inspect(OfData):
    """Describe a data set and list its problems.

    A parquet file has the columns that `ileed.readers.parquet` lists, a table one column for each feature. Where a file
    does not say who demonstrated, the places that may are listed, with the option that names each.
    """

    imports: ClassVar[str] = "ileed.readers"  # and not torch, which takes longer than to read a large file

    own_policies: bool = False
    """Fit a policy to each demonstrator too: how consistent each is, and how far from what all do."""

    def __call__(self) -> None:
        from ileed.indicators import indicators

        try:
            data = self.read()
        except UnnamedDemonstratorError as error:
            self._list_candidates(error)
            return
        with bar("checking"):
            findings = data.check()
            is_described = self.own_policies or not data.discrete  # own policies of discrete actions are refused
            movement = indicators(data, own_policies=self.own_policies) if is_described else None
        if self.json:
            steps_each = dict(zip(data.names, data.steps_each.tolist(), strict=True))
            counts = {"steps": len(data), "episodes": data.episode_count, "demonstrators": steps_each}
            listed = [finding._asdict() for finding in findings]
            print_json(counts | column_names(data) | {"findings": listed} | _indicators_json(movement))
            return
        console = Output()
        console.say(repr(data))
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
        for finding in findings:
            table.add_row(f"[bold]{plain(finding.about)}[/bold]", plain(finding.says))
        console.print(table if findings else "no problems found: every demonstrator has enough data")
        if movement is not None:
            _print_indicators(console, movement)

    def _list_candidates(self, error: UnnamedDemonstratorError) -> None:
        """The places of the file that may say who demonstrated; without any, the error itself."""
        from ileed.readers import reader_of

        candidates = reader_of(self.place).candidates(self.place)
        if self.json:
            print_json({"candidates": [each._asdict() for each in candidates]})
            return
        if not candidates:
            raise error
        console = Output()
        console.say(
            f"{stores.name_of(self.data)} does not say who demonstrated. These places may: name one by its option."
        )
        table = Table("place", "values", "episodes", "option", box=None, padding=(0, 2, 0, 2))
        for each in candidates:
            table.add_row(plain(each.place), f"{each.values:,}", f"{each.episodes:,}", plain(each.option))
        console.print(table)
        console.say(
            "Otherwise: --episode-table FILE (a CSV file with the columns episode and operator), or --one NAME."
        )


def _indicators_json(movement: Indicators | None) -> dict[str, Any]:
    if movement is None:
        return {}
    columns = {"demonstrator": movement.names} | {k: v.tolist() for k, v in movement.demonstrator_columns().items()}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return {"time_unit": movement.time_unit, "indicators": rows}


def _print_indicators(console: Output, movement: Indicators) -> None:
    """The means of the indicators by demonstrator; those of the first demonstrators where there are many."""
    shown = {
        "duration": (f"{movement.time_unit}s", ",.1f"),
        "path_length": ("path", ",.1f"),
        "speed": ("speed", ".2f"),
        "idle_share": ("idle", ".0%"),
        "spectral_arc_length": ("arc length", ".2f"),
        "log_dimensionless_jerk": ("jerk", ".2f"),
        "own_policy_residual": ("residual", ".2f"),
        "distance_from_common": ("distance", ".2f"),
    }
    shown = {name: how for name, how in shown.items() if name in movement.means}
    table = Table("demonstrator", box=None, padding=(0, 1, 0, 2))
    for heading, _ in shown.values():
        table.add_column(heading, justify="right", no_wrap=True)
    for number, name in enumerate(movement.names[:_MOST_ROWS]):
        means = [(movement.means[each][number], how) for each, (_, how) in shown.items()]
        table.add_row(plain(name), *(format(mean, how) if isfinite(mean) else "-" for mean, how in means))
    console.say("indicators of movement, means over episodes:")
    console.print(table)
    if (more := len(movement.names) - _MOST_ROWS) > 0:
        console.say(f"  and {counted(more, 'demonstrator')} more: --json has all, with intervals")


def column_names(data: Demonstrations) -> dict[str, Any]:
    """The names of features and actions, where the data came from a table."""
    if (encoding := data.encoding) is None:
        return {}
    actions = {"columns": list(encoding.action), "labels": list(encoding.labels)}
    return {"features": list(encoding.inputs), "actions": actions}
