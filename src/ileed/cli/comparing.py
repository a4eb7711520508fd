"""`ileed compare`: which demonstrator model explains held-out episodes best."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from rich.table import Column, Table
from tyro.conf import OmitArgPrefixes

from ileed._torch import resolve_device
from ileed.cli.console import Output, fit_bar, print_json
from ileed.cli.data import OfData
from ileed.cli.fitting import Settings
from ileed.comparing import ModelComparison, compare, compare_delays
from ileed.errors import SettingsError
from ileed.executors import executor
from ileed.methods import Ileed


@dataclass(frozen=True)
class Compare(OfData):
    """Compare demonstrator models by episodes that they were not fitted to: how people err.

    Each model is fitted to some of the episodes and judged by the others. Preferred is the simplest model within one
    standard error of the best; `ileed fit DATA --demonstrator-model auto` fits with it.
    """

    seed: int = 0
    """The seed of all random numbers: the same seed on the same machine gives the same bits."""
    device: str = "auto"
    """cpu, cuda, or auto for the best available."""
    executor: str = ""
    """Fit models at once: local (processes of this machine), ray (a Ray cluster) or slurm (jobs, through submitit)."""
    workers: int | None = None
    """Models to fit at once with an executor; as many as there are cores by default."""
    delays: tuple[int, ...] = ()
    """Compare these delays instead, in steps: did people act on what they saw so many steps ago?"""
    method: OmitArgPrefixes[Settings] = Settings()  # noqa: RUF009 (frozen)
    """The settings of `ileed.Ileed`, written as in Python."""

    def __call__(self) -> None:
        resolve_device(self.device)  # an error now, not after a large file was read
        if self.workers is not None and not self.executor:
            raise SettingsError(
                "--workers says how many models are fitted at once, but not where: add --executor local"
            )
        data, method = self.read(), Ileed(**vars(self.method))
        models = None if method.model is None else [method.model]
        options: dict[str, Any] = {"seed": self.seed, "method": method, "device": self.device}
        if self.delays and self.executor:
            raise SettingsError("--delays are compared one after the other: leave --executor out")
        where = executor(self.executor, self.workers) if self.executor else nullcontext()
        with where as own, fit_bar("comparing") as progress:
            if self.delays:
                delays = compare_delays(data, delays=self.delays, progress=progress, **options)
                found, says = delays.comparison, delays.sentence()
                more: dict[str, Any] = {"delay": delays.chosen, "by_demonstrator": delays.by_demonstrator}
            else:
                found = compare(data, models=models, executor=own, progress=progress, **options)
                says, more = found.sentence(), {}
        if self.json:
            print_json({"models": found.table().to_pylist(), "preferred": found.preferred, "says": says, **more})
            return
        console = Output()
        console.print(_table(found))
        console.say(says)


def _table(found: ModelComparison) -> Table:
    """The models in the order in which they are preferred where the data cannot choose."""
    title = f"nats per action on {found.held_out_steps:,} held-out steps, lower is better"
    caption = "above: than the preferred, with its standard error; order: rank correlation of people with the preferred"
    names = ("nats", "above", "order")
    first = Column("model", no_wrap=True)
    table = Table(first, *(Column(name, justify="right", no_wrap=True) for name in names), title=title, caption=caption)
    for row in found.table().to_pylist():
        mark = " (preferred)" if row["preferred"] else ""
        words = ("{nats_per_action:.4f}", "{more_than_preferred:+.4f} ± {standard_error:.4f}", "{rank_correlation:.2f}")
        table.add_row(row["model"] + mark, *(each.format(**row) for each in words))
    return table
