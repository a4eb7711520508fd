"""Expectation-maximisation: label probabilities and posteriors of workers in turn, from several starts.

The objective is the variational bound on the log-evidence of all answers, in nats. No iteration lowers it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from ileed.demonstrations import Array
from ileed.labelling.answers import Answers
from ileed.labelling.dirichlet import digamma, lgamma
from ileed.labelling.models import MODELS, AbstractWorkers

__all__ = ["Course", "Problem", "ProgressCallback", "fit"]

_ROUND = 20  # iterations after which starts that are behind are dropped
ProgressCallback = Callable[[int, int], None]
"""Called with the iterations done, and with the most there can be."""


@final
@dataclass(frozen=True, eq=False)
class Problem:
    """What is fitted: answers, and what is known of the true labels beforehand."""

    answers: Answers
    log_gold: Array
    """(task, label) log-probability by gold labels, zero where none is known; (1, 1) where none is known at all."""


@final
@dataclass(frozen=True, eq=False)
class Course:
    """One model from one start, after some iterations."""

    model: str
    probabilities: Array
    """(task, label) posterior of the true label."""
    workers: AbstractWorkers
    objective: tuple[float, ...] = ()
    """The bound on the log-evidence after each iteration, in nats."""
    has_converged: bool = False

    def step(self, problem: Problem, least: float) -> Course:
        """One iteration: workers by label probabilities, then label probabilities by workers.

        It has converged where it gains less than `least` nats.
        """
        workers = self.workers.updated(problem.answers.per_cell(self.probabilities))
        counts = self.probabilities.sum(0)
        total = np.array([counts.sum() + len(counts)])
        log_class = digamma(counts + 1) - digamma(total)
        joint = problem.answers.per_task(workers.log_likelihood) + log_class + problem.log_gold
        most = joint.max(1, keepdims=True)
        joint = np.exp(joint - most)
        evidence = joint.sum(1, keepdims=True)
        gain = lgamma(counts + 1).sum() - float((lgamma(total) - lgamma(np.array([float(len(counts))])))[0])
        divergence = workers.divergence + float((counts * log_class).sum()) - gain
        objective = (*self.objective, float((most + np.log(evidence)).sum() - divergence))
        converged = len(objective) > 1 and objective[-1] - objective[-2] < least
        return replace(
            self, probabilities=joint / evidence, workers=workers, objective=objective, has_converged=converged
        )

    @property
    def evidence(self) -> float:
        """The objective, less half the logarithm of the number of workers for each parameter of the population.

        The population is a point estimate: what it costs to learn it is that of the Bayesian information criterion.
        """
        return self.objective[-1] - 0.5 * self.workers.population_size * float(np.log(self.workers.cells.workers))

    @property
    def reach(self) -> float:
        """A value of the evidence that it will hardly exceed: twenty times the gain of the last ten iterations on."""
        return self.evidence + (0 if self.has_converged else 20 * (self.objective[-1] - self.objective[-11]))


def fit(
    problem: Problem,
    models: Sequence[str],
    *,
    restarts: int,
    seed: int,
    iterations: int,
    tolerance: float,
    progress: ProgressCallback | None = None,
) -> list[Course]:
    """The likeliest start of each model, the likeliest model first.

    All run side by side until an iteration gains less than `tolerance` nats an answer. After every twenty iterations
    the less likely half of the starts of each model is dropped, and a model that cannot reach the likeliest stops.
    """
    running = [start for model in models for start in _starts(problem, model, restarts=restarts, seed=seed)]
    least, stopped = tolerance * len(problem.answers), list[Course]()
    for number in range(iterations):
        running = [each if each.has_converged else each.step(problem, least) for each in running]
        if all(each.has_converged for each in running):
            break
        if (number + 1) % _ROUND == 0:
            running = [each for model in models for each in _likelier_half(running, model)]
            best = max(each.evidence for each in running)
            stopped += [each for each in running if each.reach < best]
            running = [each for each in running if each.reach >= best]
        if progress is not None:
            progress(number + 1, iterations)
    found = [_likelier_half([*running, *stopped], model, keep=1)[0] for model in models]
    return sorted(found, key=lambda each: -each.evidence)


def _likelier_half(running: Sequence[Course], model: str, keep: int | None = None) -> list[Course]:
    """The starts of a model with the greatest objective."""
    own = sorted((each for each in running if each.model == model), key=lambda each: -each.objective[-1])
    return own[: (len(own) + 1) // 2 if keep is None else keep]


def _starts(problem: Problem, model: str, *, restarts: int, seed: int) -> list[Course]:
    """The majority vote, and votes in which every worker has a random weight."""
    answers, workers = problem.answers, MODELS[model](problem.answers.cells)
    chance = np.random.default_rng([abs(seed), int(seed < 0)])
    own = np.zeros((len(answers.cells.label), len(answers.classes)))
    found = []
    for number in range(restarts):
        weight = np.ones(len(answers.workers)) if number == 0 else chance.exponential(size=len(answers.workers))
        own[answers.cells.own] = weight[answers.cells.worker]
        votes = (answers.per_task(own) + 1e-9) * np.exp(problem.log_gold)
        found.append(Course(model, votes / votes.sum(1, keepdims=True), workers))
    return found
