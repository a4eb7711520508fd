"""Crowd labels: from (task, worker, label) to label probabilities and the expertise of workers with intervals.

Tasks have no features, so the policy is a table of label probabilities. Knows nothing of policies, models or fits of
demonstrations. See docs/howto/labels.md.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ileed._torch import default_modes
from ileed.data import Array, Demonstrations
from ileed.data.encoding import Label
from ileed.errors import (
    DemonstrationError,
    SettingsError,
    callable_or_none,
    counted,
    number,
    one_of,
    path_of,
    seed_of,
    whole_number,
)
from ileed.formats.crowd import ANSWERS, from_answers, read_folder
from ileed.labels import models
from ileed.labels.models import MODELS, AbstractWorkers, Answers, ProgressCallback, logit_moments
from ileed.runs.files import csv_bytes, is_taken, replace_folder

__all__ = ["Labelling", "Labels", "label"]

Model = Literal["auto", "uniform", "biased", "confusion"]


@final
@dataclass(frozen=True, kw_only=True)
class Labelling:
    """Settings of label estimation; `fit` returns `Labels`, and `fit_predict` and `fit_predict_proba` follow crowd-kit.

    >>> answers = {"task": [1, 1, 1, 2, 2, 2], "worker": ["ann", "bob", "cy"] * 2,
    ...            "label": ["cat", "cat", "dog", "dog", "dog", "dog"]}
    >>> Labelling(model="uniform").fit(answers).labels
    {'1': 'cat', '2': 'dog'}
    """

    model: Model = "auto"
    """How workers err: uniform slips, slips to favourite labels ("biased"), or by the true label ("confusion");
    "auto" selects the likeliest."""
    restarts: int = 4
    """Initialisations: the majority vote, and `restarts` - 1 votes with random weights of workers."""
    iterations: int = 1000
    """The maximum number of iterations."""
    tolerance: float = 1e-6
    """The gain of an iteration, in nats per answer, below which the fit has converged."""
    gold_confidence: float = 1.0
    """The probability that a gold label is right."""
    repeats: Literal["error", "count"] = "error"
    """Repeated answers of a worker to a task are an error, or count as independent."""

    def __post_init__(self) -> None:
        one_of("model", self.model, ("auto", *MODELS))
        one_of("repeats", self.repeats, ("error", "count"))
        for name in ("restarts", "iterations"):
            whole_number(name, getattr(self, name), least=1, rule="it must be a whole number, one or more")
        number("tolerance", self.tolerance, rule="it must be nats per answer, above zero", above=0)
        rule = "it must be a probability above 0 and at most 1"
        number("gold_confidence", self.gold_confidence, rule=rule, above=0, most=1)

    @default_modes()
    def fit(
        self,
        table: Any,
        *,
        gold: Any = None,
        task: str | None = None,
        worker: str | None = None,
        label: str | None = None,
        seed: int = 0,
        progress: ProgressCallback | None = None,
    ) -> Labels:
        """Estimate labels from a table for `ileed.from_answers`, from its result, or from a folder of answers.

        `gold` is a table of true labels, or True to use those of the folder or the demonstrations.
        """
        callable_or_none("progress", progress, rule="pass a function of two numbers, or None")
        data = _read(table, gold, {"task": task, "worker": worker, "label": label})
        answers = Answers.of(data, gold=gold is not None and gold is not False, repeats=self.repeats)
        found = models.fit(
            answers,
            self._log_gold(answers),
            list(MODELS) if self.model == "auto" else [self.model],
            restarts=self.restarts,
            seed=seed_of(seed),
            iterations=self.iterations,
            tolerance=self.tolerance,
            progress=progress,
        )
        best = found[0]
        return Labels(
            answers=answers,
            model=best.model,
            probabilities=best.probabilities,
            posterior=best.workers,
            log_evidence={each.model: each.evidence for each in found},
            objective=best.objective,
            converged=best.has_converged,
            index=_index(table, task, answers.tasks),
        )

    def fit_predict(self, table: Any, **options: Any) -> Any:
        """The likeliest label of every task; the options are those of `fit`."""
        return self.fit(table, **options).labels

    def fit_predict_proba(self, table: Any, **options: Any) -> Any:
        """The probability of every label of every task; the options are those of `fit`."""
        return self.fit(table, **options).probability_table

    def _log_gold(self, answers: Answers) -> Array:
        known = answers.gold >= 0
        if not known.any():
            return np.zeros((1, 1))
        others = (1 - self.gold_confidence) / (len(answers.classes) - 1)
        found = np.zeros((len(answers.tasks), len(answers.classes)))
        found[known] = np.log(others) if others > 0 else -np.inf
        found[known, answers.gold[known]] = np.log(self.gold_confidence)
        return found


@final
@dataclass(frozen=True, eq=False, repr=False)
class Labels:
    """Label probabilities of every task, and the expertise of every worker with intervals."""

    answers: Answers
    model: str
    """How workers err: "uniform", "biased" or "confusion"."""
    probabilities: Array
    """(task, label) posterior of the true label, in the order of `answers.tasks` and `answers.classes`."""
    posterior: AbstractWorkers
    """Posteriors of all workers."""
    log_evidence: Mapping[str, float]
    """The bound minus a penalty for the population, by model, in nats; a lower limit for models stopped early."""
    objective: tuple[float, ...]
    """The bound after each iteration."""
    converged: bool
    index: Any = None
    """The tasks as a pandas index, if the answers were a pandas DataFrame."""

    @property
    def n_iterations(self) -> int:
        """The number of iterations of the selected restart."""
        return len(self.objective)

    @property
    def labels(self) -> Any:
        """The likeliest label of every task: a pandas Series if a DataFrame was given, otherwise a mapping."""
        names: list[Label] = [self.answers.classes[place] for place in self.probabilities.argmax(1).tolist()]
        if self.index is None:
            return dict(zip(self.answers.tasks, names, strict=True))
        return sys.modules["pandas"].Series(names, index=self.index, name="agg_label")

    @property
    def probability_table(self) -> Any:
        """A row per task and a column per label: a DataFrame if one was given, otherwise an Arrow table."""
        if self.index is None:
            columns = {str(name): self.probabilities[:, place] for place, name in enumerate(self.answers.classes)}
            return pa.table({"task": list(self.answers.tasks)} | columns)
        return sys.modules["pandas"].DataFrame(self.probabilities, index=self.index, columns=list(self.answers.classes))

    @property
    def workers(self) -> Any:
        """`worker_table` with 90% intervals: a DataFrame by worker if one was given, otherwise an Arrow table."""
        table = self.worker_table()
        return table if self.index is None else table.to_pandas().set_index("worker")

    def worker_table(self, *, confidence_level: float = 0.9) -> pa.Table:
        """Answers, expertise with its interval, and the expected share of correct answers of every worker.

        Expertise is rho or, with confusion matrices, the mean of the diagonal over the worker's own tasks. It is shrunk
        towards the population; `accuracy` is not.
        """
        rule = "it must be between 0 and 1"
        level = number("confidence_level", confidence_level, rule=rule, above=0, below=1)
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
        """(worker, true label, label) posterior means of the probability of each label, by true label."""
        return self.posterior.confusion()

    @property
    def log_likelihood(self) -> float:
        """log p(answers) in nats, with workers and label frequencies at their posterior means."""
        cells = self.answers.cells
        shares = (self.probabilities.sum(0) + 1) / (len(self.probabilities) + len(self.answers.classes))
        of_cell = np.log(self.confusion[cells.worker, :, cells.label])
        return float(np.logaddexp.reduce(self.answers.per_task(of_cell) + np.log(shares), axis=1).sum())

    def sentence(self) -> str:
        """A summary in one sentence."""
        sizes = f"{counted(len(self.answers.tasks), 'task')}, {counted(len(self.answers.workers), 'worker')}"
        sure = int((self.probabilities.max(1) >= 0.9).sum())
        model = f"workers err by {MODELS[self.model].title}"
        if len(self.log_evidence) > 1:
            best, second = sorted(self.log_evidence.values(), reverse=True)[:2]
            model += f", {best - second:,.0f} nats likelier than the next model"
        end = "" if self.converged else "; it has not converged: allow more iterations"
        if len(self.answers.task) == len(self.answers.tasks) and (self.answers.gold < 0).all():
            end += "; no task has two answers, so accuracy cannot be estimated"
        found = f"{sure:,} labels have a probability of .9 or more"
        return f"{sizes}, {counted(len(self.answers), 'answer')}: {found}; {model}{end}"

    def __repr__(self) -> str:
        return f"Labels({self.sentence()})"

    def tables(self) -> dict[str, pa.Table]:
        """The tables that `save` writes: labels, workers and confusion."""
        classes = np.array([str(name) for name in self.answers.classes])
        labels = {
            "task": list(self.answers.tasks),
            "label": classes[self.probabilities.argmax(1)],
            "probability": self.probabilities.max(1),
            **{f"p({name})": self.probabilities[:, place] for place, name in enumerate(classes)},
        }
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
        with replace_folder(path) as folder:
            for name, table in self.tables().items():
                if format == "csv":
                    (folder / f"{name}.csv").write_bytes(csv_bytes(table))
                else:
                    pq.write_table(table, folder / f"{name}.parquet")


def label(
    table: Any,
    *,
    model: Model = "auto",
    gold: Any = None,
    task: str | None = None,
    worker: str | None = None,
    label: str | None = None,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> Labels:
    """Estimate the true label of every task and the expertise of every worker from (task, worker, label).

    Use `Labelling` for other settings.

    Args:
        table: a table as for `from_answers` (a DataFrame or other table, a CSV or parquet file), or a folder.
        model: how workers err; see `Labelling`.
        gold: known true labels, which are taken as true; True uses those of a folder, which are ignored otherwise.
        task: the column of tasks, if its name is not recognised.
        worker: the column of workers.
        label: the column of labels.
        seed: of the restarts.
        progress: called with the number of iterations done and their maximum.
    """
    options: dict[str, Any] = {"task": task, "worker": worker, "label": label}
    return Labelling(model=model).fit(table, gold=gold, seed=seed, progress=progress, **options)


def _read(table: Any, gold: Any, columns: Mapping[str, str | None]) -> Demonstrations:
    """Read a table or folder of answers, with gold labels if given; demonstrations are returned unchanged."""
    none_given = gold is None or isinstance(gold, bool)
    if isinstance(table, Demonstrations):
        if not none_given:
            raise DemonstrationError(
                "these answers are Demonstrations: pass gold to ileed.from_answers, and gold=True here"
            )
        return table
    if isinstance(table, str | os.PathLike) and os.path.isdir(table):
        if none_given:
            return read_folder(Path(table))
        table = Path(table) / ANSWERS
    return from_answers(table, gold=None if none_given else gold, **columns)


def _index(table: Any, task: str | None, tasks: Sequence[str]) -> Any:
    """The tasks as a pandas index of the DataFrame's type; None for other tables."""
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(table, pandas.DataFrame):
        return None
    name = task or next(name for name in ("task", "question") if name in table)
    return pandas.Index(tasks, name=name).astype(table[name].dtype)
