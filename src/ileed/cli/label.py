"""`ileed label`: true labels of tasks and the expertise of workers, from a table of answers."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from rich.table import Table
from tyro.conf import Positional, arg

from ileed.cli.console import Output, bar, plain, print_json
from ileed.cli.data import names_withheld
from ileed.errors import SettingsError
from ileed.runs import stores

if TYPE_CHECKING:
    from ileed.data import Demonstrations
    from ileed.labels import Labels

_SHOWN = 10  # workers


@dataclass(frozen=True)
class Label:
    """Estimate the true label of every task and the expertise of every worker from a table of answers.

    --out writes the tables labels, workers and confusion to a new folder, all or none.
    """

    table: Annotated[Positional[Path], arg(metavar="TABLE")]
    """A CSV or parquet file with the columns task, worker and label, or a folder with answer.csv."""
    out: Path | None = None
    """The folder to write; it must not exist yet."""
    gold: Path | None = None
    """A table of known labels of some tasks (task, true_label); truth.csv in a folder is only used if named here."""
    model: Literal["auto", "uniform", "biased", "confusion"] = "auto"
    """The errors of workers: uniform, biased to some labels, a confusion matrix, or the most likely of the three."""
    task: str | None = None
    """The column of the task, if it is not called task or question."""
    worker: str | None = None
    """The column of the worker, if it is not called worker."""
    label: str | None = None
    """The column of the label, if it is not called label or answer."""
    repeats: Literal["error", "count"] = "error"
    """Refuse repeated answers of a worker to a task, or count each as independent."""
    gold_confidence: float = 1.0
    """The probability that a gold label is right."""
    restarts: int = 4
    """The number of random initialisations, of which the most likely is kept."""
    seed: int = 0
    """The seed of all random numbers."""
    format: Literal["csv", "parquet"] = "csv"
    """The format of the tables in --out."""
    anonymise: bool = False
    """Replace names of workers by pseudonyms in all outputs."""
    json: bool = False
    """Print JSON instead of text."""

    def __call__(self) -> None:
        from ileed.labels import Labelling
        from ileed.runs.files import is_taken

        if self.out is not None and is_taken(self.out):
            raise SettingsError(f"{self.out} exists already: choose another place, or remove it first")
        if self.gold is None and self.gold_confidence != 1.0:
            raise SettingsError("--gold-confidence needs gold labels: add --gold TABLE")
        options = {name: getattr(self, name) for name in ("model", "restarts", "repeats", "gold_confidence")}
        method = Labelling(**options)
        with bar("labelling", late=True) as progress:
            with names_withheld(stores.name_of(self.table)) if self.anonymise else nullcontext():
                data = self._read()
            data = data.anonymise() if self.anonymise else data
            found = method.fit(data, gold=self.gold is not None, seed=self.seed, progress=progress)
        if self.out is not None:
            found.save(self.out, format=self.format)
        self._print(found)

    def _read(self) -> Demonstrations:
        from ileed.formats import from_answers
        from ileed.formats.crowd import ANSWERS

        table = self.table / ANSWERS if self.table.is_dir() else self.table
        return from_answers(table, task=self.task, worker=self.worker, label=self.label, gold=self.gold)

    def _print(self, found: Labels) -> None:
        workers = found.worker_table().sort_by([("expertise", "descending")])
        if self.json:
            counts = {"tasks": len(found.answers.tasks), "answers": len(found.answers), "model": found.model}
            print_json(counts | {"log_evidence": dict(found.log_evidence), "workers": workers.to_pylist()})
            return
        console = Output()
        console.say(found.sentence())
        table = Table("worker", "answers", "expertise", "90% interval", "accuracy", box=None, padding=(0, 2, 0, 2))
        rows = workers.to_pylist()
        left = len(rows) - 2 * _SHOWN
        for place, row in enumerate(rows):
            if left <= 0 or place < _SHOWN or place >= len(rows) - _SHOWN:
                interval = f"{row['low']:.3f} to {row['high']:.3f}"
                cells = f"{row['answers']:,}", f"{row['expertise']:.3f}", interval, f"{row['accuracy']:.3f}"
                table.add_row(plain(row["worker"]), *cells)
            elif place == _SHOWN:
                table.add_row(f"... {left:,} more")
        console.print(table)
        if self.out is not None:
            console.say(f"wrote {', '.join(f'{name}.{self.format}' for name in found.tables())} to {self.out}")
