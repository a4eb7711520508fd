"""Tables of labels: (task, worker, label) in; label probabilities, workers with intervals and confusion matrices out.

A task has no features, so the policy is a table: the probabilities of every task's labels. See docs/howto/labels.md.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import numpy as np

from ileed._torch import default_modes
from ileed.checking import callable_or_none, number, one_of, seed_of, whole_number
from ileed.demonstrations import Array, Demonstrations
from ileed.errors import DemonstrationError
from ileed.labelling import expectation
from ileed.labelling.answers import Answers
from ileed.labelling.expectation import ProgressCallback
from ileed.labelling.labels import Labels
from ileed.labelling.models import MODELS
from ileed.readers.crowd import ANSWERS, from_answers, read_folder

__all__ = ["Labelling", "Labels", "label"]

Model = Literal["auto", "uniform", "biased", "confusion"]


@final
@dataclass(frozen=True, kw_only=True)
class Labelling:
    """Settings of the labels of tasks; `fit` returns `Labels`, `fit_predict` and `fit_predict_proba` are crowd-kit's.

    >>> answers = {"task": [1, 1, 1, 2, 2, 2], "worker": ["ann", "bob", "cy"] * 2,
    ...            "label": ["cat", "cat", "dog", "dog", "dog", "dog"]}
    >>> Labelling(model="uniform").fit(answers).labels
    {'1': 'cat', '2': 'dog'}
    """

    model: Model = "auto"
    """How workers err: slips are uniform, or go to favourite labels ("biased"), or depend on the true label
    ("confusion"); "auto" takes the likeliest of the three."""
    restarts: int = 4
    """The majority vote, and so many starts less one with random weights of workers; the likeliest is kept."""
    iterations: int = 1000
    """At most so many."""
    tolerance: float = 1e-6
    """It has converged where an iteration gains fewer nats an answer."""
    gold_confidence: float = 1.0
    """The probability that a gold label is right; with 1 gold labels are not questioned."""
    repeats: Literal["error", "count"] = "error"
    """A worker who answers a task twice: an error, or each answer counts as independent."""

    def __post_init__(self) -> None:
        one_of("model", self.model, ("auto", *MODELS))
        one_of("repeats", self.repeats, ("error", "count"))
        for name in ("restarts", "iterations"):
            whole_number(name, getattr(self, name), least=1, rule="labelling needs one or more, a whole number")
        number("tolerance", self.tolerance, rule="nats an answer, above zero", within=lambda value: value > 0)
        rule = "the probability that a gold label is right, above 0 and at most 1"
        number("gold_confidence", self.gold_confidence, rule=rule, within=lambda value: 0 < value <= 1)

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
        """Labels from a table as `ileed.from_answers` takes it, from what that returns, or from a folder of answers.

        `gold` is a table of true labels; True takes those that the folder, or the demonstrations, have.
        """
        callable_or_none("progress", progress, rule="pass a function of the iterations done and of all, or None")
        data = _read(table, gold, {"task": task, "worker": worker, "label": label})
        answers = Answers.of(data, gold=gold is not None and gold is not False, repeats=self.repeats)
        found = expectation.fit(
            expectation.Problem(answers, self._log_gold(answers)),
            list(MODELS) if self.model == "auto" else [self.model],
            restarts=self.restarts,
            seed=seed_of(seed),
            iterations=self.iterations,
            tolerance=self.tolerance,
            progress=progress,
        )
        best = found[0]
        return Labels(
            answers,
            best.model,
            best.probabilities,
            best.workers,
            {each.model: each.evidence for each in found},
            best.objective,
            best.has_converged,
            _index(table, task, answers.tasks),
        )

    def fit_predict(self, table: Any, **options: Any) -> Any:
        """The likeliest label of every task; `options` are those of `fit`."""
        return self.fit(table, **options).labels

    def fit_predict_proba(self, table: Any, **options: Any) -> Any:
        """The probability of every label of every task; `options` are those of `fit`."""
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
    """The true label of every task, and how good every worker is, from a table of (task, worker, label).

    `table` and `gold` are as in `from_answers`: crowd-kit's DataFrame, any other table, a CSV or parquet file, or a
    folder. Gold labels are taken as true; True takes those of a folder, which are not looked at otherwise. Other
    settings are those of `Labelling`.
    """
    options: dict[str, Any] = {"task": task, "worker": worker, "label": label}
    return Labelling(model=model).fit(table, gold=gold, seed=seed, progress=progress, **options)


def _read(table: Any, gold: Any, columns: Mapping[str, str | None]) -> Demonstrations:
    """The demonstrations of a table or a folder of answers, or as they are, with gold labels where these are given."""
    none_given = gold is None or isinstance(gold, bool)
    if isinstance(table, Demonstrations):
        if not none_given:
            raise DemonstrationError("these answers are read already: pass gold to ileed.from_answers, and True here")
        return table
    if isinstance(table, str | os.PathLike) and os.path.isdir(table):
        if none_given:
            return read_folder(Path(table))
        table = Path(table) / ANSWERS
    return from_answers(table, gold=None if none_given else gold, **columns)


def _index(table: Any, task: str | None, tasks: Sequence[str]) -> Any:
    """The tasks as an index of pandas, with the type that they have in a DataFrame of pandas; None for other tables."""
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(table, pandas.DataFrame):
        return None
    name = task or next(name for name in ("task", "question") if name in table)
    return pandas.Index(tasks, name=name).astype(table[name].dtype)
