"""`ileed inspect`: what a data set holds; and how the command reads one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tyro.conf import Positional

from ileed.cli.console import plain, print_json
from ileed.demonstrations import Demonstrations
from ileed.readers import by_column, read

__all__ = ["Inspect", "read_data"]


@dataclass(frozen=True)
class Inspect:
    """Say what a data set holds, and what in it is wrong or thin."""

    data: Positional[Path]
    """A parquet file (see `ileed.readers.parquet` for the columns)."""
    who: str | None = None
    """The column that says who did it, if it is not called demonstrator."""
    json: bool = False
    """Print JSON for a script instead of text for a person."""

    def __call__(self) -> None:
        data = read_data(self.data, self.who)
        findings = data.check()
        if self.json:
            print_json(
                {
                    "steps": len(data),
                    "episodes": data.episode_count,
                    "demonstrators": {
                        name: int(count) for name, count in zip(data.names, data.steps_each, strict=True)
                    },
                    "findings": [{"about": finding.about, "says": finding.says} for finding in findings],
                }
            )
            return
        console = Console()
        console.print(repr(data), highlight=False, markup=False, soft_wrap=True)
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
        for finding in findings:
            table.add_row(f"[bold]{plain(finding.about)}[/bold]", plain(finding.says))
        console.print(table if findings else "nothing stands out: enough data from everybody, and all of it sound")


def read_data(path: Path, column: str | None) -> Demonstrations:
    """Demonstrations from a file, with `column` in place of its own for who did it."""
    return read(path, demonstrator=None if column is None else by_column(column))
