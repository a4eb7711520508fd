"""`ileed fit` and `ileed report`: from data to a run directory, and from there to a page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tyro.conf import OmitArgPrefixes, Positional

from ileed import runs
from ileed.cli.console import climbing, plain, print_json
from ileed.cli.data import read_data
from ileed.methods import Ileed
from ileed.policy import Fitted
from ileed.report import figures, report

__all__ = ["Fit", "Report", "ranking", "summary"]


@dataclass(frozen=True)
class Fit:
    """Learn one policy and everybody's expertise from a data set, and save the run.

    An interrupted fit goes on where it was when the same command is given again.
    """

    data: Positional[Path]
    """A parquet file of demonstrations."""
    out: Path | None = None
    """Where the run directory goes; runs/NAME-OF-DATA by default."""
    who: str | None = None
    """The column that says who did it, if it is not called demonstrator."""
    seed: int = 0
    """Fixes all chance: the same seed on the same machine gives the same bits."""
    device: str = "auto"
    """cpu, cuda, or auto for the best there is."""
    json: bool = False
    """Print JSON for a script instead of text for a person."""
    method: OmitArgPrefixes[Ileed] = Ileed()  # noqa: RUF009
    """How to learn: each of these is a setting of `ileed.Ileed` in Python, and written the same way."""

    def __call__(self) -> None:
        out = self.out or Path("runs") / self.data.stem
        runs.check_replaceable(out)
        data = read_data(self.data, self.who)
        with climbing("fitting") as watch:
            fitted = self.method.fit(
                data,
                seed=self.seed,
                device=self.device,
                progress=watch,
                checkpoint=out.with_name(out.name + ".checkpoint"),
            )
        fitted.save(out)
        if self.json:
            print_json(summary(fitted) | {"run": str(out)})
            return
        console = Console()
        if fitted.estimates_expertise:
            console.print(ranking(fitted))
        console.print(f"{fitted.nats_per_action:.4f} nats per action; {fitted.outcome.value}", highlight=False)
        console.print(f"saved in {out}; next: ileed report {out}", highlight=False)


@dataclass(frozen=True)
class Report:
    """Draw a run as one self-contained page to read in a browser."""

    run: Positional[Path]
    """A run directory, as `ileed fit` writes it."""
    out: Path | None = None
    """Where the page goes; report.html inside the run by default."""
    figures: Path | None = None
    """A directory to write each chart to as well, as SVG."""

    def __call__(self) -> None:
        console = Console()
        console.print(f"wrote {report(self.run, out=self.out)}", highlight=False)
        if self.figures is not None:
            for path in figures(self.run, self.figures).values():
                console.print(f"wrote {path}", highlight=False)


def summary(fitted: Fitted) -> dict[str, Any]:
    """A fit as a script reads it."""
    found: dict[str, Any] = {
        "nats_per_action": fitted.nats_per_action,
        "outcome": fitted.outcome.value,
        "restarts": [float(cost) for cost in fitted.restarts.nats_per_action],
        "seconds": fitted.provenance["seconds"],
    }
    return found | ({"expertise": fitted.expertise.by_demonstrator()} if fitted.estimates_expertise else {})


def ranking(fitted: Fitted, truth: Mapping[str, float] | None = None, most: int = 40) -> Table:
    """Demonstrators best first, with the spread of their expertise over their own states."""
    people = fitted.expertise.ranking()
    left_out = len(people) - most
    table = Table(
        title="expertise, best first (a comparison: ratios are what the data fix)",
        caption=f"{left_out:,} more in the run's report" if left_out > 0 else None,
    )
    table.add_column("demonstrator")
    table.add_column("expertise", justify="right")
    table.add_column("in 8 of 10 of their states")
    if truth is not None:
        table.add_column("truth", justify="right")
    quantiles = dict(zip(fitted.expertise.names, fitted.expertise.survey.quantiles.tolist(), strict=True))
    for name, value in people[:most]:
        low, high = quantiles[name][2], quantiles[name][18]
        row = [plain(name), f"{value:.3f}", f"{low:.2f} to {high:.2f}"]
        table.add_row(*row, *([] if truth is None else [f"{truth[name]:.2f}"]))
    return table
