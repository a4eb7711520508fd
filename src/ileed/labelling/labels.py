"""Labels: what a table of answers says about every task and every worker."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal, final

import numpy as np
import pyarrow as pa

from ileed.checking import number, one_of, path_of
from ileed.demonstrations import Array
from ileed.demonstrations.encoding import Label
from ileed.errors import SettingsError
from ileed.labelling.answers import Answers
from ileed.labelling.dirichlet import logit_moments
from ileed.labelling.models import AbstractWorkers
from ileed.runs.files import csv_bytes
from ileed.runs.replacing import is_taken, replace_folder
from ileed.wording import counted

__all__ = ["Labels"]

_MODELS = {"uniform": "uniform slips", "biased": "slips to favourite labels", "confusion": "a confusion matrix"}


@final
@dataclass(frozen=True, eq=False, repr=False)
class Labels:
    """The true label of every task with its probability, and how good every worker is, with intervals."""

    answers: Answers
    model: str
    """How workers err: "uniform", "biased" or "confusion"."""
    probabilities: Array
    """(task, label) posterior of the true label, in the order of `answers.tasks` and `answers.classes`."""
    posterior: AbstractWorkers
    """What is known of all workers."""
    log_evidence: Mapping[str, float]
    """By model, in nats: the bound less the cost of the population; of a model that was stopped, as far as it got."""
    objective: tuple[float, ...]
    """The bound after each iteration."""
    converged: bool
    index: Any = None
    """The index of tasks of pandas, where the answers were a DataFrame of pandas."""

    @property
    def n_iterations(self) -> int:
        """Iterations of the start that was kept."""
        return len(self.objective)

    @property
    def labels(self) -> Any:
        """The likeliest label of every task: a Series of pandas by task where a DataFrame was given, else a mapping."""
        names: list[Label] = [self.answers.classes[place] for place in self.probabilities.argmax(1).tolist()]
        if self.index is None:
            return dict(zip(self.answers.tasks, names, strict=True))
        return _pandas().Series(names, index=self.index, name="agg_label")

    @property
    def probability_table(self) -> Any:
        """One row for each task and one column for each label: a DataFrame where one was given, else Arrow's table."""
        if self.index is None:
            columns = {str(name): self.probabilities[:, place] for place, name in enumerate(self.answers.classes)}
            return pa.table({"task": list(self.answers.tasks)} | columns)
        return _pandas().DataFrame(self.probabilities, index=self.index, columns=list(self.answers.classes))

    @property
    def workers(self) -> Any:
        """`worker_table` with intervals of 90 %: a DataFrame by worker where one was given, else Arrow's table."""
        table = self.worker_table()
        return table if self.index is None else table.to_pandas().set_index("worker")

    def worker_table(self, *, confidence_level: float = 0.9) -> pa.Table:
        """Every worker: answers, expertise from `low` to `high`, and the expected share of own answers that are right.

        Expertise is rho of the models of slips, and with confusion matrices the mean of the diagonal over the worker's
        own tasks; it is drawn towards the population, `accuracy` is not.
        """
        rule = "an interval has a confidence level between 0 and 1"
        level = number("confidence_level", confidence_level, rule=rule, within=lambda value: 0 < value < 1)
        mean, deviation = self._expertise
        centre, spread = logit_moments(mean, deviation)
        reach = NormalDist().inv_cdf(0.5 + level / 2) * spread
        low, high = (1 / (1 + np.exp(-each)) for each in (centre - reach, centre + reach))
        counts = np.bincount(self.answers.worker, minlength=len(self.answers.workers))
        right = self.probabilities[self.answers.task, self.answers.label]
        columns = {
            "worker": list(self.answers.workers),
            "answers": counts,
            "expertise": mean,
            "low": np.minimum(low, mean),
            "high": np.maximum(high, mean),
            "accuracy": np.bincount(self.answers.worker, right, len(counts)) / counts,
        }
        return pa.table(columns)

    @cached_property
    def _expertise(self) -> tuple[Array, Array]:
        return self.posterior.expertise(self.answers, self.probabilities)

    @property
    def confusion(self) -> Array:
        """(worker, true label, label) the posterior mean of the probability of each label, by true label."""
        return self.posterior.confusion()

    @property
    def log_likelihood(self) -> float:
        """log p(answers) in nats with workers and label frequencies at their posterior means."""
        cells = self.answers.cells
        shares = (self.probabilities.sum(0) + 1) / (len(self.probabilities) + len(self.answers.classes))
        of_cell = np.log(self.confusion[cells.worker, :, cells.label])
        return float(np.logaddexp.reduce(self.answers.per_task(of_cell) + np.log(shares), axis=1).sum())

    def sentence(self) -> str:
        """What was found, in one sentence."""
        sizes = f"{counted(len(self.answers.tasks), 'task')}, {counted(len(self.answers.workers), 'worker')}"
        sure = int((self.probabilities.max(1) >= 0.9).sum())
        model = f"workers err by {_MODELS[self.model]}"
        if len(self.log_evidence) > 1:
            best, second = sorted(self.log_evidence.values(), reverse=True)[:2]
            model += f", {best - second:,.0f} nats likelier than the next model"
        end = "" if self.converged else "; it has not converged: allow more iterations"
        if len(self.answers.task) == len(self.answers.tasks) and (self.answers.gold < 0).all():
            end += "; no task has two answers, so nothing tells how often anybody is right"
        found = f"{sure:,} labels have a probability of .9 or more"
        return f"{sizes}, {counted(len(self.answers), 'answer')}: {found}; {model}{end}"

    def __repr__(self) -> str:
        return f"Labels({self.sentence()})"

    def tables(self) -> dict[str, pa.Table]:
        """What `save` writes, by name: labels, workers and confusion."""
        classes = np.array([str(name) for name in self.answers.classes])
        best = self.probabilities.argmax(1)
        each = {f"p({name})": self.probabilities[:, place] for place, name in enumerate(classes)}
        top = self.probabilities.max(1)
        labels = {"task": list(self.answers.tasks), "label": classes[best], "probability": top} | each
        workers, count = len(self.answers.workers), len(classes)
        matrix = {
            "worker": np.repeat(np.array(self.answers.workers), count * count),
            "true_label": np.tile(np.repeat(classes, count), workers),
            "label": np.tile(classes, workers * count),
            "probability": self.confusion.ravel(),
        }
        return {"labels": pa.table(labels), "workers": self.worker_table(), "confusion": pa.table(matrix)}

    def save(self, path: str | Path, *, format: Literal["csv", "parquet"] = "csv") -> None:  # noqa: A002
        """Write the three tables to a new folder, all of them or none."""
        one_of("format", format, ("csv", "parquet"))
        path = path_of("path", path)
        if is_taken(path):
            raise SettingsError(f"{path} exists already: choose another place, or remove it first")
        from pyarrow import parquet

        with replace_folder(path) as folder:
            for name, table in self.tables().items():
                if format == "csv":
                    (folder / f"{name}.csv").write_bytes(csv_bytes(table))
                else:
                    parquet.write_table(table, folder / f"{name}.parquet")


def _pandas() -> Any:
    return sys.modules["pandas"]  # loaded, since a DataFrame was given
