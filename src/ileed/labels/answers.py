"""A table of labels as numbers, sorted once so that every sum over tasks or workers is one pass.

Workers enter the likelihood only by which label they gave, so the answers are counted by *cell*: a pair of a worker and
a label that this worker has given.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, final

import numpy as np

from ileed.data import Array, Demonstrations
from ileed.data.encoding import Label
from ileed.data.rules import listed
from ileed.errors import DemonstrationError
from ileed.formats.crowd import GOLD, TASK


@final
@dataclass(frozen=True, eq=False)
class Cells:
    """Every pair of a worker and a label that the worker has given, in the order of workers."""

    worker: Array
    """(cell,) the worker's number."""
    label: Array
    """(cell,) the label's number."""
    workers: int
    labels: int

    def per_worker(self, values: Array) -> Array:
        """(worker, ...) sums over the cells of each worker."""
        return np.add.reduceat(values, self._first, axis=0)

    def per_label(self, values: Array) -> Array:
        """(label, ...) sums over the cells of each label."""
        found = np.zeros((self.labels, *values.shape[1:]))
        np.add.at(found, self.label, values)
        return found

    @cached_property
    def _first(self) -> Array:
        return np.searchsorted(self.worker, np.arange(self.workers))

    @cached_property
    def own(self) -> tuple[Array, Array]:
        """Index of a (cell, label) array at each cell's own label."""
        return np.arange(len(self.label)), self.label


@final
@dataclass(frozen=True, eq=False)
class Answers:
    """Who gave which label to which task, and the gold labels that are known."""

    tasks: tuple[str, ...]
    workers: tuple[str, ...]
    classes: tuple[Label, ...]
    task: Array
    """(answer,) the task's number."""
    worker: Array
    """(answer,) the worker's number."""
    label: Array
    """(answer,) the number of the label that was given."""
    gold: Array
    """(task,) the number of the true label, -1 where it is not known."""

    @classmethod
    def of(cls, data: Demonstrations, *, gold: bool = False, repeats: Literal["error", "count"] = "error") -> Answers:
        """The answers of demonstrations that `from_answers` returned, with gold labels if `gold`."""
        if TASK not in data.skills or data.encoding is None or not data.encoding.labels:
            raise DemonstrationError("these demonstrations are not a table of labels: read it with ileed.from_answers")
        task, worker, label = data.observations[:, 0], data.demonstrator, data.actions
        tasks = np.empty(int(task.max()) + 1, dtype=data.skills[TASK].dtype)
        tasks[task] = data.skills[TASK]
        found = cls(
            tuple(tasks.tolist()),
            tuple(data.names),
            data.encoding.labels,
            np.asarray(task, dtype=np.int64),
            np.asarray(worker, dtype=np.int64),
            np.asarray(label, dtype=np.int64),
            _gold(data, task, len(tasks)) if gold else np.full(len(tasks), -1),
        )
        for role, words in (("label", found.classes), ("task", found.tasks), ("worker", found.workers)):
            if "" in words:
                raise DemonstrationError(f"a {role} is empty, and an answer needs one: fill it in, or drop those rows")
        if repeats == "error":
            found._refuse_repeats()
        return found

    def __len__(self) -> int:
        return len(self.task)

    def _refuse_repeats(self) -> None:
        pair = np.sort(self.worker * len(self.tasks) + self.task)
        twice = pair[1:][pair[1:] == pair[:-1]]
        if len(twice):
            worker, task = self.workers[twice[0] // len(self.tasks)], self.tasks[twice[0] % len(self.tasks)]
            count = len(np.unique(twice))
            raise DemonstrationError(
                f"worker {worker!r} answered task {task!r} more than once ({count:,} such pairs), and a worker is "
                "asked once: drop the others, or pass repeats='count' to take each as independent"
            )

    @cached_property
    def cells(self) -> Cells:
        pair = self._by_cell[2]
        return Cells(pair // len(self.classes), pair % len(self.classes), len(self.workers), len(self.classes))

    @cached_property
    def cell(self) -> Array:
        """(answer,) the number of each answer's cell."""
        order, first, _ = self._by_cell
        found = np.empty(len(self), dtype=np.int64)
        found[order] = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(self))))
        return found

    def per_task(self, values: Array) -> Array:
        """(task, label) sums over the answers of each task, of values given by (cell, label)."""
        cell, first = self._by_task
        return np.add.reduceat(values.take(cell, axis=0), first, axis=0)

    def per_cell(self, values: Array) -> Array:
        """(cell, label) sums over the answers of each cell, of values given by (task, label)."""
        first = self._by_cell[1]
        return np.add.reduceat(values.take(self._task_by_cell, axis=0), first, axis=0)

    @cached_property
    def votes(self) -> Array:
        """(task, label) how many workers gave each label."""
        size = len(self.tasks) * len(self.classes)
        found = np.bincount(self.task * len(self.classes) + self.label, minlength=size)
        return found.reshape(len(self.tasks), -1).astype(float)

    @cached_property
    def _by_cell(self) -> tuple[Array, Array, Array]:
        """Answers in the order of cells; the first of each cell; the pair that each cell stands for."""
        pair = self.worker * len(self.classes) + self.label
        order = np.argsort(pair, kind="stable")
        found, first = np.unique(pair[order], return_index=True)
        return order, first, found

    @cached_property
    def _task_by_cell(self) -> Array:
        return self.task[self._by_cell[0]]

    @cached_property
    def _by_task(self) -> tuple[Array, Array]:
        """The cells of the answers in the order of tasks, and the first answer of each task."""
        order = np.argsort(self.task, kind="stable")
        return self.cell[order], np.searchsorted(self.task[order], np.arange(len(self.tasks)))


def _gold(data: Demonstrations, task: Array, count: int) -> Array:
    """(task,) the number of the gold label, -1 where there is none; refuses a label that no worker gave."""
    found = np.full(count, -1)
    if GOLD not in data.skills or data.encoding is None:
        raise DemonstrationError("there are no gold labels: pass gold= to ileed.from_answers, or leave gold out here")
    words = {str(label): number for number, label in enumerate(data.encoding.labels)} | {"": -1}
    distinct, inverse = np.unique(data.skills[GOLD], return_inverse=True)
    if unknown := [str(word) for word in distinct if str(word) not in words]:
        known = listed([str(label) for label in data.encoding.labels], most=12)
        raise DemonstrationError(
            f"the gold label {unknown[0]!r} was given by no worker, and the labels are {known}: correct it, or leave "
            "those tasks out of gold"
        )
    found[task] = np.array([words[str(word)] for word in distinct])[inverse]
    return found
