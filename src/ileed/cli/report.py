"""`ileed report`: a run, or a comparison of two, as one page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import OmitArgPrefixes, Positional, arg

from ileed.cli.console import Output, bar
from ileed.cli.data import Naming, OfData, Reading
from ileed.cli.parsing import RunPath
from ileed.errors import SettingsError
from ileed.runs import stores


@dataclass(frozen=True)
class Report:
    """Write the report of a run, or a comparison of two runs, as one HTML page.

    A run directory does not contain the data. With --data, the page also shows state clusters, episodes to look at, and
    problems of the data.
    """

    run: RunPath
    other: Annotated[Positional[Path | None], arg(metavar="[OTHER]")] = None
    """Another run directory, to compare the two."""
    data: Path | None = None
    """The data that the run was fitted to; the options below are those of `ileed fit`."""
    out: Path | None = None
    """The file to write; by default report.html, or comparison.html, in the run directory."""
    anonymise: bool = False
    """Show pseudonyms instead of names."""
    figures: Path | None = None
    """Also write the charts as SVG files to this directory."""
    table: Path | None = None
    """Also write the ranking of all demonstrators to this file, .csv or .parquet."""
    naming: OmitArgPrefixes[Naming] = Naming()  # noqa: RUF009 (frozen)
    """Where the data set names its demonstrators."""
    reading: OmitArgPrefixes[Reading] = Reading()  # noqa: RUF009 (frozen)
    """Options that apply to some formats only."""

    def __call__(self) -> None:
        from ileed import runs
        from ileed.report import check_table, compare_runs, figures, people_table, report

        for option in ("figures", "table"):
            if self.other is not None and getattr(self, option) is not None:
                raise SettingsError(f"--{option} does not apply to a comparison of two runs: leave it out")
        out = self.out or self.run / ("report.html" if self.other is None else "comparison.html")
        runs.check_page(out)
        if self.table is not None:
            check_table(self.table)
        data = None
        if self.data is not None:
            data = OfData(self.data, self.naming, self.reading, self.anonymise).read_named()
        verb = "replaced" if stores.exists(out) else "wrote"
        options: dict[str, Any] = {"data": data, "anonymise": self.anonymise}
        others: list[Path] = []
        with bar("writing the report"):
            if self.other is not None:
                compare_runs(self.run, self.other, out=out, **options)
            else:
                if self.figures is not None:  # first, because only figures can still be refused
                    others += figures(self.run, self.figures, **options).values()
                report(self.run, out=out, **options)
                if self.table is not None:
                    others.append(people_table(self.run, self.table, anonymise=self.anonymise))
        Output().say("\n".join(f"{verb if each is out else 'wrote'} {stores.name_of(each)}" for each in [out, *others]))
