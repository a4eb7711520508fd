"""`ileed compare`: the demonstrator model that explains held-out episodes best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ileed.cli.console import Output, fit_bar, numbers, print_json
from ileed.cli.fit import OfMethod
from ileed.methods import Ileed, compare


@dataclass(frozen=True)
class Compare(OfMethod):
    """Compare demonstrator models by held-out log-likelihood.

    Each model is fitted to some episodes and scored on the others. The preferred model is the simplest one within one
    standard error of the best; `ileed fit DATA --demonstrator-model auto` uses it.
    """

    def __call__(self) -> None:
        self.check_machine()
        data, method = self.read(), Ileed(**vars(self.method))
        models = None if method.model is None else [method.model]
        options: dict[str, Any] = {"seed": self.seed, "models": models, "method": method, "device": self.device}
        with self.open_executor() as own, fit_bar("comparing") as progress:
            found = compare(data, executor=own, progress=progress, **options)
        rows = found.table().to_pylist()
        if self.json:
            print_json({"models": rows, "preferred": found.preferred, "says": found.sentence()})
            return
        title = f"nats per action on {found.held_out_steps:,} held-out steps, lower is better"
        caption = "above: cost above the preferred model, with its standard error; order: rank correlation with it"
        table = numbers("model", "nats", "above", "order", title=title, caption=caption)
        cells = ("{nats_per_action:.4f}", "{more_than_preferred:+.4f} ± {standard_error:.4f}", "{rank_correlation:.2f}")
        for row in rows:
            mark = " (preferred)" if row["preferred"] else ""
            table.add_row(row["model"] + mark, *(each.format(**row) for each in cells))
        console = Output()
        console.print(table)
        console.say(found.sentence())
