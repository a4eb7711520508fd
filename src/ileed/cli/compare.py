"""`ileed compare`: which demonstrator model explains held-out episodes best."""

from __future__ import annotations

from dataclasses import dataclass

from rich.table import Column, Table

from ileed.cli.console import Output, fit_bar, print_json
from ileed.cli.fit import OfMethod
from ileed.methods import Ileed, compare
from ileed.selection import ModelComparison


@dataclass(frozen=True)
class Compare(OfMethod):
    """Compare demonstrator models by held-out log-likelihood: how demonstrators err.

    Each model is fitted to some of the episodes and scored on the others. Preferred is the simplest model within one
    standard error of the best; `ileed fit DATA --demonstrator-model auto` fits with it.
    """

    def __call__(self) -> None:
        self.check_machine()
        data, method = self.read(), Ileed(**vars(self.method))
        models = None if method.model is None else [method.model]
        with self.open_executor() as own, fit_bar("comparing") as progress:
            found = compare(
                data,
                seed=self.seed,
                models=models,
                method=method,
                device=self.device,
                executor=own,
                progress=progress,
            )
        if self.json:
            print_json({"models": found.table().to_pylist(), "preferred": found.preferred, "says": found.sentence()})
            return
        console = Output()
        console.print(_table(found))
        console.say(found.sentence())


def _table(found: ModelComparison) -> Table:
    """The models in the order in which they are preferred where the data cannot choose."""
    title = f"nats per action on {found.held_out_steps:,} held-out steps, lower is better"
    caption = "above: than the preferred, with its standard error; order: rank correlation with the preferred"
    names = ("nats", "above", "order")
    first = Column("model", no_wrap=True)
    table = Table(first, *(Column(name, justify="right", no_wrap=True) for name in names), title=title, caption=caption)
    for row in found.table().to_pylist():
        mark = " (preferred)" if row["preferred"] else ""
        words = ("{nats_per_action:.4f}", "{more_than_preferred:+.4f} ± {standard_error:.4f}", "{rank_correlation:.2f}")
        table.add_row(row["model"] + mark, *(each.format(**row) for each in words))
    return table
