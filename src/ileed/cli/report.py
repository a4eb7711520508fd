"""`ileed report`: a run, or a comparison of two, as one page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tyro.conf import OmitArgPrefixes, Positional

from ileed.cli.console import Output, bar
from ileed.cli.data import Naming, OfData, Reading
from ileed.errors import SettingsError
from ileed.runs import stores

if TYPE_CHECKING:
    from ileed.data import Demonstrations


@dataclass(frozen=True)
class Report:
    """Write the report of a run, or a comparison of two runs, as one HTML page.

    A run directory does not hold the data. With --data the page also has kinds of state, episodes to look at, and what
    is wrong with the data.
    """

    run: Positional[Path]
    """A run directory of `ileed fit`."""
    other: Positional[Path | None] = None
    """Another run directory: the page compares the two."""
    data: Path | None = None
    """The file that the run was fitted to; the options below say how to read it, as for `ileed fit`."""
    out: Path | None = None
    """The file to write; report.html (or comparison.html) in the run directory by default."""
    anonymise: bool = False
    """Show pseudonyms in place of names."""
    figures: Path | None = None
    """A directory for the charts as SVG files as well."""
    table: Path | None = None
    """A file for the ranking of all demonstrators as well, .csv or .parquet."""
    naming: OmitArgPrefixes[Naming] = Naming()  # noqa: RUF009 (frozen)
    """Where the data set names its demonstrators."""
    reading: OmitArgPrefixes[Reading] = Reading()  # noqa: RUF009 (frozen)
    """Options of one format or another, which others refuse."""

    def __call__(self) -> None:
        from ileed import runs
        from ileed.report import check_table

        for option in ("figures", "table"):
            if self.other is not None and getattr(self, option) is not None:
                raise SettingsError(f"two runs are compared without --{option}: leave it out")
        out = self.out or self.run / ("report.html" if self.other is None else "comparison.html")
        runs.check_page(out)
        if self.table is not None:
            check_table(self.table)
        data = None
        if self.data is not None:
            data = OfData(self.data, self.naming, self.reading, self.anonymise).read_named()
        replaced = [out] if stores.exists(out) else []
        with bar("writing the report"):
            written = self._write(out, data)
        for path in written:
            Output().say(f"{'replaced' if path in replaced else 'wrote'} {stores.name_of(path)}")

    def _write(self, out: Path, data: Demonstrations | None) -> list[Path]:
        """Write the page and what else is asked for; figures first, since they alone can still be refused."""
        from ileed.report import compare_runs, figures, people_table, report

        if self.other is not None:
            return [compare_runs(self.run, self.other, out=out, data=data, anonymise=self.anonymise)]
        drawn: list[Path] = []
        if self.figures is not None:
            drawn += figures(self.run, self.figures, data=data, anonymise=self.anonymise).values()
        page = report(self.run, out=out, data=data, anonymise=self.anonymise)
        tables = [] if self.table is None else [people_table(self.run, self.table, anonymise=self.anonymise)]
        return [page, *drawn, *tables]
