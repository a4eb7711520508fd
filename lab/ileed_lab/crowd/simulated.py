"""Simulated crowds: answers whose true labels and workers are known.

Populations of the page are those of the seeds from `FIRST_SEED`; tests and development use smaller ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from ileed import Demonstrations, from_answers
from ileed.data import Array

__all__ = ["FIRST_SEED", "KINDS", "Crowd", "simulate"]

FIRST_SEED = 1_000
KINDS = ("uniform", "biased", "confusion", "alike")
"""How workers err: three models of ours, and a majority that errs alike."""


@final
@dataclass(frozen=True, eq=False)
class Crowd:
    """Answers, and what is known of them."""

    data: Demonstrations
    true: Array
    """(task,) the true label."""
    confusion: Array
    """(worker, true label, label) p(a | y, i)."""
    rho: Array | None
    """(worker,) of mixtures."""


def simulate(kind: str, seed: int, *, tasks: int = 500, workers: int = 30, labels: int = 4, each: int = 5) -> Crowd:
    """A crowd in which each task is answered by `each` workers at random.

    Frequencies of labels are Dirichlet(5). rho_i is Beta(4, 2), favourite labels are Dirichlet(1); confusion matrices
    have rows from a Dirichlet with 4 at the true label and 1.5 on the others together. In `alike`, six workers of ten
    take label 1 for label 2 and know nine answers of ten otherwise, as the rest do.
    """
    chance = np.random.default_rng(seed)
    true = chance.choice(labels, tasks, p=chance.dirichlet(np.full(labels, 5.0)))
    task = np.repeat(np.arange(tasks), each)
    worker = chance.random((tasks, workers)).argsort(1)[:, :each].ravel()
    rho = chance.beta(4, 2, workers)
    slips = chance.dirichlet(np.ones(labels), workers) if kind == "biased" else np.full((workers, labels), 1 / labels)
    matrix = rho[:, None, None] * np.eye(labels) + (1 - rho)[:, None, None] * slips[:, None]
    if kind == "confusion":
        shape = np.where(np.eye(labels, dtype=bool), 4.0, 1.5 / (labels - 1))
        matrix = chance.gamma(shape, size=(workers, labels, labels))
        matrix /= matrix.sum(2, keepdims=True)
    if kind == "alike":
        matrix = np.tile(0.9 * np.eye(labels) + 0.1 / labels, (workers, 1, 1))
        matrix[: workers * 6 // 10, 1] = matrix[0, 2]
    answer = (chance.random(len(task))[:, None] > matrix[worker, true[task]].cumsum(1)).sum(1).clip(0, labels - 1)
    data = from_answers({"task": task, "worker": [f"worker {number:05d}" for number in worker], "label": answer})
    own = [int(name.split()[1]) for name in data.names]
    return Crowd(data, true, matrix[own], rho[own] if kind in ("uniform", "biased") else None)
