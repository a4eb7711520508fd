"""Crowd tables (task, worker, label) from CSV, parquet, pandas, polars or Arrow.

A task has no features: its number is the whole observation, one integer, which models with a state for each task can
use as an index. Each answer is an episode of one step. docs/decisions/tables.md says why gold is a skill column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ileed.data import Array, Demonstrations
from ileed.data.columns import Column
from ileed.data.rules import listed
from ileed.errors import DemonstrationError, instance_of
from ileed.formats import core
from ileed.formats.core import AbstractFormat, Labeller, by_column
from ileed.formats.files import check_there, file_in
from ileed.formats.tables import from_table, open_table

TASK, GOLD = "task", "gold"  # skill columns: the name of each row's task, and its true label
_INDEX = "task number"
_EXACT = 2.0**53  # below which a floating-point number holds every whole one
_USUAL = {
    "task": ("task", "question"),
    "worker": ("worker",),
    "label": ("label", "answer"),
    "true label": ("true_label", "truth", "gold", "label", "answer"),
}
ANSWERS, _TRUTH = "answer.csv", "truth.csv"


def from_answers(
    table: Any, *, task: str | None = None, worker: str | None = None, label: str | None = None, gold: Any = None
) -> Demonstrations:
    """Demonstrations from a table of answers: the observation is the task's number, the action is the label.

    Tasks are numbered in the order of their names; the skill column `task` holds those names, `encoding` the names of
    labels. True labels become the skill column `gold`, empty where they are unknown. No fit uses either by default.

    Args:
        table: As in `from_table`.
        task, worker, label: The columns, by default called as in crowd-kit (task, worker, label) or question, worker,
            answer.
        gold: True labels of some tasks: a table (task, and true_label or truth), or a pandas Series indexed by task.

    >>> answers = {"task": ["t1", "t1", "t2", "t2"], "worker": ["ann", "bob", "ann", "bob"],
    ...            "label": ["cat", "dog", "dog", "dog"]}
    >>> data = from_answers(answers, gold={"task": ["t1"], "true_label": ["cat"]})
    >>> data.observations.tolist(), data.encoding.decode(data.actions).tolist()
    ([[0], [0], [1], [1]], ['cat', 'dog', 'dog', 'dog'])
    >>> data.skills["gold"].tolist()
    ['cat', 'cat', '', '']
    """
    given = {"task": task, "worker": worker, "label": label}
    for role, name in given.items():
        instance_of(role, name, str | None, rule="pass the name of a column, or None", error=DemonstrationError)
    possible = {role: [name] if name else _USUAL[role] for role, name in given.items()}
    found = open_table(table, wanted=None, as_text=(*possible["task"], *possible["worker"]), infer=possible["label"])
    names = {role: _column(found, role, name) for role, name in given.items()}
    tasks, index = _number(Column.of(found, names["task"]))
    columns = {_INDEX: pa.array(index), names["worker"]: found.column(names["worker"])}
    columns[names["label"]] = _whole(found, names["label"])
    data = from_table(columns, action=names["label"], demonstrator=names["worker"], features=[_INDEX])
    skills = {TASK: np.array(tasks)[index]}
    if gold is not None:
        skills[GOLD] = _gold(gold, names["task"], tasks)[index]
    return replace(data, observations=index[:, None], skills=skills)


def _column(table: pa.Table, role: str, name: str | None) -> str:
    """The column of a role: the given name, or the one of the usual names that the table has."""
    if name is not None:
        check_there("the table", "column", [name], table.column_names)
        return name
    there = [each for each in _USUAL[role] if each in table.column_names]
    if len(there) != 1:
        found = "two of the columns" if there else "none of the columns"
        has = f"the table has {listed(table.column_names, most=12)}, {found} {listed(_USUAL[role])}"
        raise DemonstrationError(f"{has}: say which holds the {role}, with {role}=")
    return there[0]


def _whole(table: pa.Table, name: str) -> pa.ChunkedArray:
    """The labels; whole floating-point ones, as pandas stores integers with gaps, become integers again."""
    labels = table.column(name)
    if not pa.types.is_floating(labels.type):
        return labels
    known = labels.drop_null().to_numpy()
    if not (np.abs(known) < _EXACT).all():
        return labels  # missing, infinite or too large: `from_table` refuses them
    if len(fractional := known[known != np.floor(known)]):
        found = f"the label {fractional[0]:g} in the column {name!r} is a number with a fraction"
        raise DemonstrationError(f"{found}, and a label is one of several names or whole numbers: round or name them")
    return labels.cast(pa.int64())


def _number(column: Column) -> tuple[tuple[str, ...], Array]:
    """The names of all tasks, numbers in numerical order, and each row's index into them."""
    column.check_present(role="the task")
    text = column.text()
    words = pc.unique(text).to_pylist()
    whole = all(word.removeprefix("-").isdecimal() and len(word) < 19 for word in words)
    names = tuple(sorted(words, key=(lambda word: (int(word), word)) if whole else None))
    return names, np.asarray(pc.index_in(text, value_set=pa.array(names, text.type)).to_numpy(), dtype=np.int64)


def _gold(gold: Any, task: str, tasks: Sequence[str]) -> Array:
    """The true label of each task, empty where none is known."""
    table = gold.to_frame().reset_index() if hasattr(gold, "to_frame") and hasattr(gold, "index") else gold
    found = open_table(table, wanted=None, as_text=(task, *_USUAL["task"], *_USUAL["true label"]), infer=())
    column = task if task in found.column_names else _column(found, "task", None)
    others = [name for name in found.column_names if name != column]
    label = others[0] if len(others) == 1 else _column(found, "true label", None)
    about, true = Column.of(found, column), Column.of(found, label)
    about.check_present(role="the task")
    true.check_present(role="the true label")
    known: dict[str, str] = {}
    for name, word in zip(about.text().to_pylist(), true.text().to_pylist(), strict=True):
        if known.setdefault(name, word) != word:
            both = f"{known[name]!r} and {word!r}"
            raise DemonstrationError(f"task {name!r} has two true labels, {both}: give each task one")
    if known and not set(known) & set(tasks):
        found = f"none of the {len(known):,} tasks with a true label (first: {next(iter(known))!r}) has an answer"
        raise DemonstrationError(f"{found}: name tasks there as in the answers (first: {tasks[0]!r})")
    return np.array([known.get(name, "") for name in tasks])


def read_folder(path: str | Path, *, demonstrator: Labeller | None = None) -> Demonstrations:
    """Read a folder of answer.csv (question, worker, answer) and, optionally, truth.csv (question, truth)."""
    core.check_lookup(demonstrator, by_column, title="crowd tables")
    worker = None if demonstrator is None else demonstrator.place
    gold = file_in(Path(path), _TRUTH) if (Path(path) / _TRUTH).exists() else None
    return from_answers(file_in(Path(path), ANSWERS), worker=worker, gold=gold)


@final
class _Crowd(AbstractFormat):
    name, suffixes, title = "crowd", ("",), "crowd tables"
    read = staticmethod(read_folder)

    def columns(self, path: Path) -> Sequence[str]:
        return list(open_table(file_in(path, ANSWERS), wanted=None, as_text=(), infer=()).column_names)

    def recognises(self, path: Path) -> bool:
        return (path / ANSWERS).is_file()


FORMAT = _Crowd()
