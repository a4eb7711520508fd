"""`ileed fit`: from data to a run directory; and what is told of a fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from glob import escape
from math import isnan
from pathlib import Path
from typing import Any

from rich.table import Table
from tyro.conf import OmitArgPrefixes, Positional

from ileed import runs
from ileed._torch import resolve_device
from ileed.cli.console import Output, fit_bar, plain, print_json
from ileed.cli.data import Robomimic, names, read_data
from ileed.cli.parsing import SHAPES
from ileed.cli.table import Columns, refuse_model, rename_model_option
from ileed.fitted import Fitted
from ileed.methods import Ileed

__all__ = ["Fit", "ranking", "summary"]

rename_model_option(SHAPES, Ileed)


@dataclass(frozen=True)
class Fit:
    """Learn one policy and everybody's expertise from a data set, and save the run.

    An interrupted fit goes on where it was when the same command is given again.
    """

    data: Positional[Path]
    """A parquet file (.parquet; see `ileed.readers.parquet` for the columns), one of robomimic's (.hdf5, .h5), or, with
    --action and --demonstrator, a table with a column for each feature (.csv, .tsv, .parquet)."""
    out: Path | None = None
    """Where the run directory goes; runs/NAME-OF-DATA by default."""
    overwrite: bool = False
    """Replace a run that is already there, which is refused otherwise; files in it that are not ours stay."""
    columns: OmitArgPrefixes[Columns] = Columns()  # noqa: RUF009 (frozen)
    """Which columns of a table are which."""
    seed: int = 0
    """Fixes all chance: the same seed on the same machine gives the same bits."""
    device: str = "auto"
    """cpu, cuda, or auto for the best there is."""
    check_width: bool | None = None
    """Compare policies of several widths on held-out episodes first; by default where --policy is left open, and then
    the best width is taken."""
    anonymise: bool = False
    """Replace names by pseudonyms before the fit: the run holds no name."""
    json: bool = False
    """Print JSON for a script instead of text for a person."""
    robomimic: OmitArgPrefixes[Robomimic] = Robomimic()  # noqa: RUF009 (frozen)
    method: OmitArgPrefixes[Ileed] = Ileed()  # noqa: RUF009
    """How to learn: each of these is a setting of `ileed.Ileed` in Python, and written the same way."""

    def __call__(self) -> None:
        out = self._out
        runs.check_destination(out, overwrite=self.overwrite)
        resolve_device(self.device)  # refused now rather than after a large file was read
        refuse_model(self.columns.demonstrator)
        data = read_data(self.data, self.columns, self.robomimic, anonymise=self.anonymise)
        with fit_bar("fitting") as progress:
            fitted = self.method.fit(
                data,
                seed=self.seed,
                device=self.device,
                check_width=self.check_width,
                progress=progress,
                checkpoint=runs.checkpoint_path(out),
            )
        fitted.save(out, overwrite=self.overwrite)
        if self.json:
            print_json(summary(fitted) | names(data) | {"run": str(out)})
            return
        console = Output()
        if fitted.estimates_expertise:
            console.print(ranking(fitted))
        if fitted.width is not None:
            console.say(fitted.width_sentence)
        console.say(f"{fitted.nats_per_action:.4f} nats per action; {fitted.outcome.value}")
        console.say(f"saved in {out}; next: ileed report {out}")

    def after_an_interrupt(self) -> str:
        """What is left: a checkpoint to go on from, or nothing."""
        path = runs.checkpoint_path(self._out)
        if any(path.parent.glob(f"{escape(path.name)}*")):  # that of the fit, or of a width that was tried
            return "the same command goes on from the last checkpoint"
        return "nothing was saved yet, so the same command begins anew"

    @property
    def _out(self) -> Path:
        return self.out or Path("runs") / self.data.stem


def summary(fitted: Fitted) -> dict[str, Any]:
    """A fit as a script reads it."""
    found: dict[str, Any] = {
        "nats_per_action": fitted.nats_per_action,
        "outcome": fitted.outcome.value,
        "width": fitted.width_sentence or None,
        "restarts": [float(cost) for cost in fitted.restarts.nats_per_action],
        "seconds": fitted.provenance["seconds"],
    }
    return found | ({"expertise": fitted.expertise.by_demonstrator()} if fitted.estimates_expertise else {})


def ranking(fitted: Fitted, truth: Mapping[str, float] | None = None, most: int = 40) -> Table:
    """Demonstrators best first, with the spread of their expertise over their own states."""
    people = fitted.expertise.ranking()
    unknown = [name for name, value in people if isnan(value)]
    people = people[: len(people) - len(unknown)]
    left_out = len(people) - most
    notes = [f"{left_out:,} more in the run's report"] if left_out > 0 else []
    if unknown:
        notes.append(
            f"{', '.join(map(plain, unknown[:6]))}{', ...' if len(unknown) > 6 else ''}: no step was learned from"
        )
    table = Table(
        title="expertise, best first (a comparison: ratios are what the data fix)",
        caption="; ".join(notes) or None,
    )
    table.add_column("demonstrator")
    table.add_column("expertise", justify="right")
    table.add_column("in 8 of 10 of their states")
    if truth is not None:
        table.add_column("truth", justify="right")
    quantiles = dict(zip(fitted.expertise.names, fitted.expertise.summary.quantiles.tolist(), strict=True))
    for name, value in people[:most]:
        low, high = quantiles[name][2], quantiles[name][18]
        row = [plain(name), f"{value:.3f}", f"{low:.2f} to {high:.2f}"]
        table.add_row(*row, *([] if truth is None else [f"{truth[name]:.2f}"]))
    return table
