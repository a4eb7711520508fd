"""Expectation-maximisation: label probabilities and posteriors of workers in turn, from several starts.

The objective is the variational bound on the log-evidence of all answers, in nats. Every iteration raises it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from ileed.demonstrations import Array
from ileed.labelling.answers import Answers, Cells
from ileed.labelling.dirichlet import digamma, gamma_log_density, lgamma
from ileed.labelling.models import AbstractWorkers

__all__ = ["Course", "Problem", "fit"]

_TRIAL = 20  # iterations after which the less likely half of the starts is dropped
ProgressCallback = Callable[[int, int], None]
"""Called with the iterations done, and with the most there can be."""


@final
@dataclass(frozen=True, eq=False)
class Problem:
    """What is fitted: answers, how workers err, and what is known of the true labels beforehand."""

    answers: Answers
    start: Callable[[Cells], AbstractWorkers]
    log_gold: Array
    """(task, label) log-probability by gold labels, zero where none is known."""


@final
@dataclass(frozen=True, eq=False)
class Course:
    """The state of one start after some iterations."""

    probabilities: Array
    """(task, label) posterior of the true label."""
    workers: AbstractWorkers
    objective: tuple[float, ...]
    """The bound on the log-evidence after each iteration, in nats."""

    def step(self, problem: Problem) -> Course:
        """One iteration: workers by label probabilities, then label probabilities by workers."""
        workers = self.workers.updated(problem.answers.per_cell(self.probabilities))
        classes = self.probabilities.sum(0) + 1.0
        log_class = digamma(classes) - digamma(np.array([classes.sum()]))
        joint = problem.answers.per_task(workers.log_likelihood) + log_class + problem.log_gold
        most = joint.max(1, keepdims=True)
        joint -= most
        np.exp(joint, out=joint)
        total = joint.sum(1, keepdims=True)
        joint /= total
        counts = classes - 1.0
        gain = lgamma(classes).sum() - lgamma(np.array([classes.sum()]))[0] + lgamma(np.array([float(len(classes))]))[0]
        evidence = (most + np.log(total)).sum() - workers.divergence - ((counts * log_class).sum() - gain)
        return Course(joint, workers, (*self.objective, float(evidence)))

    def has_converged(self, tolerance: float) -> bool:
        return len(self.objective) > 1 and self.objective[-1] - self.objective[-2] < tolerance


def starts(problem: Problem, *, restarts: int, seed: int) -> list[Course]:
    """The majority vote, and votes in which every worker has a random weight."""
    answers, workers = problem.answers, problem.start(problem.answers.cells)
    chance = np.random.default_rng([seed, 0x1ABE1])
    own = np.zeros((len(answers.cells.label), len(answers.classes)))
    found = []
    for number in range(restarts):
        weight = np.ones(len(answers.workers)) if number == 0 else chance.exponential(size=len(answers.workers))
        own[answers.cells.own] = weight[answers.cells.worker]
        votes = answers.per_task(own) * np.exp(problem.log_gold) + 1e-9
        found.append(Course(votes / votes.sum(1, keepdims=True), workers, ()))
    return found


def fit(
    problem: Problem,
    *,
    restarts: int,
    seed: int,
    iterations: int,
    tolerance: float,
    progress: ProgressCallback | None = None,
) -> Course:
    """The likeliest start, run until an iteration gains less than `tolerance` nats an answer.

    All starts run side by side; the less likely half is dropped after every twenty iterations.
    """
    running: Sequence[Course] = starts(problem, restarts=restarts, seed=seed)
    least = tolerance * len(problem.answers)
    for number in range(iterations):
        running = [each if each.has_converged(least) else each.step(problem) for each in running]
        if all(each.has_converged(least) for each in running):
            break
        if (number + 1) % _TRIAL == 0 and len(running) > 1:
            running = sorted(running, key=lambda each: -each.objective[-1])[: (len(running) + 1) // 2]
        if progress is not None:
            progress(number + 1, iterations)
    return max(running, key=lambda each: each.objective[-1])
