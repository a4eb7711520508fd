"""`ileed report`: from a run directory to a page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from ileed.cli.console import Output

__all__ = ["Report"]


@dataclass(frozen=True)
class Report:
    """Draw a run as one self-contained page to read in a browser."""

    run: Positional[Path]
    """A run directory, as `ileed fit` writes it."""
    out: Path | None = None
    """Where the page goes; report.html inside the run by default."""
    anonymise: bool = False
    """Show pseudonyms in place of names."""
    figures: Path | None = None
    """A directory to write each chart to as well, as SVG."""

    def __call__(self) -> None:
        from ileed.report import figures, report

        console = Output()
        console.say(f"wrote {report(self.run, out=self.out, anonymise=self.anonymise)}")
        if self.figures is not None:
            for path in figures(self.run, self.figures, anonymise=self.anonymise).values():
                console.say(f"wrote {path}")
