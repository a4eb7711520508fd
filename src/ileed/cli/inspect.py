"""`ileed inspect`: the content of a data set and its problems."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, ClassVar

from rich.table import Table

from ileed.cli.console import Output, bar, plain, print_json
from ileed.cli.data import OfData, column_names
from ileed.errors import UnnamedDemonstratorError, counted
from ileed.runs import stores

if TYPE_CHECKING:
    from ileed.rating.indicators import Indicators

_MOST_ROWS = 12


@dataclass(frozen=True)
class Inspect(OfData):
    """Describe a data set and list its problems.

    A parquet file has the columns that `ileed.formats.parquet` lists; a table has one column per feature. If a file
    does not name its demonstrators, candidate columns and masks are listed with the option that selects each.
    """

    imports: ClassVar[str] = "ileed.formats"  # not torch, whose import takes longer than reading a large file

    own_policies: bool = False
    """Also fit a policy to each demonstrator, to measure consistency and the distance from the common policy."""

    def __call__(self) -> None:
        from ileed.rating.indicators import indicators

        try:
            data = self.read()
        except UnnamedDemonstratorError as error:
            self._list_candidates(error)
            return
        with bar("checking"):
            findings = data.check()
            is_described = self.own_policies or not data.discrete  # `indicators` refuses own policies if discrete
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
        """Print the places of the file that may name demonstrators; if there are none, raise the error."""
        candidates = self.data_format.candidates(self.place)
        if self.json:
            print_json({"candidates": [each._asdict() for each in candidates]})
            return
        if not candidates:
            raise error
        console = Output()
        name = stores.name_of(self.data)
        console.say(f"{name} does not name its demonstrators. Candidates, with the option that selects each:")
        table = Table("place", "values", "episodes", "option", box=None, padding=(0, 2, 0, 2))
        for each in candidates:
            table.add_row(plain(each.place), f"{each.values:,}", f"{each.episodes:,}", plain(each.option))
        console.print(table)
        console.say("Otherwise: --episode-table FILE (a CSV file with the columns episode and operator) or --one NAME.")


def _indicators_json(movement: Indicators | None) -> dict[str, Any]:
    if movement is None:
        return {}
    columns = {"demonstrator": movement.names} | {k: v.tolist() for k, v in movement.demonstrator_columns().items()}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return {"time_unit": movement.time_unit, "indicators": rows}


def _print_indicators(console: Output, movement: Indicators) -> None:
    """Print the mean indicators of each demonstrator, of the first ones if there are many."""
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
