"""How workers err: p(a | y, i), the probability that worker i gives label a to a task whose true label is y.

Every model has conjugate posteriors, so that an iteration of variational expectation-maximisation is exact and never
lowers the bound on the evidence. A model only sees sums of answers by cell; see `answers.Cells`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Self, final

import numpy as np

from ileed.demonstrations import Array
from ileed.labelling.answers import Answers, Cells
from ileed.labelling.dirichlet import digamma, gamma_log_density, lgamma, population_update

__all__ = ["MODELS", "AbstractWorkers", "Confusion", "Mixture"]


@dataclass(frozen=True, eq=False)
class AbstractWorkers(ABC):
    """Posteriors of what all workers do, given expected counts of true labels.

    Laws: `log_likelihood` is E[log p(a | y, i)], with slips summed out, so that its exponential sums to at most one
    over labels; an update with the counts that follow from it never lowers the bound on the evidence; workers who gave
    the same answers to the same tasks are alike.
    """

    cells: Cells

    @abstractmethod
    def updated(self, counts: Array) -> Self:
        """The posteriors after (cell, label) expected counts of the true labels, with the population learned anew."""

    @property
    @abstractmethod
    def log_likelihood(self) -> Array:
        """(cell, label) expected log-probability of the cell's label, by true label."""

    @property
    @abstractmethod
    def divergence(self) -> float:
        """Kullback-Leibler divergence of posteriors from priors, minus the log-density of the population, in nats."""

    @property
    @abstractmethod
    def population_size(self) -> int:
        """How many parameters of the population are learned."""

    @abstractmethod
    def confusion(self) -> Array:
        """(worker, true label, label) posterior means of p(a | y, i)."""

    @abstractmethod
    def expertise(self, answers: Answers, probabilities: Array) -> tuple[Array, Array]:
        """(worker,) posterior mean of the expertise over the worker's own tasks, and its standard deviation.

        `probabilities` are those of (task, label). What is not known about the true labels widens the posterior: the
        number of answers is multiplied by the share of information that is left (Louis, 1982).
        """


def _information_left(answers: Answers, complete: Array, missing: Array) -> Array:
    """(worker,) the share of the information of known labels that is left, by answer."""
    whole, lost = (np.bincount(answers.worker, each, len(answers.workers)) for each in (complete, missing))
    return np.clip(1 - lost / np.maximum(whole, 1e-12), 0.01, 1.0)


@final
@dataclass(frozen=True, eq=False)
class Confusion(AbstractWorkers):
    """p(a | y, i) = C_i[y, a], with C_i[y] ~ Dirichlet(A[y]) and the population A learned.

    Dawid and Skene (1979) with a prior; with A fixed it is Bayesian classifier combination (Kim and Ghahramani, 2012).
    The expertise of a worker is the mean of the diagonal over the true labels of the worker's own tasks.
    """

    prior: Array
    """(true label, label) A."""
    counts: Array
    """(cell, true label) expected answers."""

    @classmethod
    def start(cls, cells: Cells) -> Self:
        return cls(cells, _confusion_mode(cells.labels), np.zeros((len(cells.label), cells.labels)))

    def updated(self, counts: Array) -> Self:
        shown, total = self.prior.T[self.cells.label], self.prior.sum(1)
        gain = self.cells.per_label(digamma(shown + counts) - digamma(shown)).T
        total_gain = (digamma(total + self.cells.per_worker(counts)) - digamma(total)).sum(0)
        prior = population_update(self.prior, gain, total_gain, _confusion_mode(self.cells.labels))
        return type(self)(self.cells, prior, counts)

    @cached_property
    def log_likelihood(self) -> Array:
        total = self.prior.sum(1) + self._answers
        return np.asarray(digamma(self.prior.T[self.cells.label] + self.counts) - digamma(total)[self.cells.worker])

    @cached_property
    def _answers(self) -> Array:
        """(worker, true label) expected answers."""
        return self.cells.per_worker(self.counts)

    @property
    def divergence(self) -> float:
        # KL(Dir(a + N), Dir(a)) = N . E[log C] - (log B(a + N) - log B(a))
        shown, total = self.prior.T[self.cells.label], self.prior.sum(1)
        gain = _sum_of_gains(shown, self.counts) - _sum_of_gains(total, self._answers)
        population = gamma_log_density(self.prior, _confusion_mode(self.cells.labels))
        return float((self.counts * self.log_likelihood).sum()) - gain - population

    @property
    def population_size(self) -> int:
        return self.prior.size

    def confusion(self) -> Array:
        found = np.tile(self.prior, (self.cells.workers, 1, 1))
        found[self.cells.worker, :, self.cells.label] += self.counts
        return found / found.sum(2, keepdims=True)

    def expertise(self, answers: Answers, probabilities: Array) -> tuple[Array, Array]:
        right = np.tile(np.diag(self.prior), (self.cells.workers, 1))
        right[self.cells.worker, self.cells.label] += self.counts[self.cells.own]
        right /= self.prior.sum(1) + self._answers
        of_task, true = right[answers.worker], probabilities[answers.task]
        # the score of a common shift of the logits of the diagonal is [y = a] - C[y, y]
        score = np.eye(self.cells.labels)[answers.label] - of_task
        missing = (true * score**2).sum(1) - (true * score).sum(1) ** 2
        left = _information_left(answers, (true * of_task * (1 - of_task)).sum(1), missing)
        weights = self._answers / self._answers.sum(1, keepdims=True)
        variance = right * (1 - right) / (self.prior.sum(1) + self._answers * left[:, None] + 1)
        return (weights * right).sum(1), np.sqrt((weights**2 * variance).sum(1))


def _confusion_mode(labels: int) -> Array:
    """The mode of the prior on the population: two answers that are right for one that is wrong."""
    return np.where(np.eye(labels, dtype=bool), 2.0, 1.0 / max(labels - 1, 1))


def _sum_of_gains(prior: Array, counts: Array) -> float:
    return float((lgamma(prior + counts) - lgamma(prior)).sum())


@final
@dataclass(frozen=True, eq=False)
class Mixture(AbstractWorkers):
    """p(a | y, i) = rho_i [a = y] + (1 - rho_i) b_i(a): the true label, or a slip that does not depend on the task.

    rho_i ~ Beta with a learned population is the expertise. Slips are uniform (`UniformMixture`, which is Dawid-Skene
    with one coin), or b_i ~ Dirichlet with a learned population (`BiasedMixture`, which is MACE of Hovy et al., 2013).
    """

    biased: bool
    skill: Array
    """(2,) the population of rho_i: Beta(knows, slips)."""
    slips: Array
    """(label,) the population of b_i."""
    known: Array
    """(cell,) expected answers that were no slips."""
    slipped: Array
    """(cell,) expected answers that were slips."""

    @classmethod
    def start(cls, cells: Cells, *, biased: bool) -> Self:
        none = np.zeros(len(cells.label))
        return cls(cells, biased, _SKILL_MODE, np.ones(cells.labels), none, none)

    def updated(self, counts: Array) -> Self:
        known = counts[self.cells.own] * self._knows
        slipped = counts.sum(1) - known
        of_worker = self.cells.per_worker(np.stack([known, slipped], axis=1))
        gain = (digamma(self.skill + of_worker) - digamma(self.skill)).sum(0)
        total = self.skill.sum()
        total_gain = (digamma(total + of_worker.sum(1)) - digamma(np.array([total]))).sum()
        skill = population_update(self.skill, gain, total_gain, _SKILL_MODE)
        return type(self)(self.cells, self.biased, skill, self._updated_slips(slipped), known, slipped)

    def _updated_slips(self, slipped: Array) -> Array:
        if not self.biased:
            return self.slips
        shown, total = self.slips[self.cells.label], self.slips.sum()
        gain = self.cells.per_label(digamma(shown + slipped) - digamma(shown))
        total_gain = (digamma(total + self.cells.per_worker(slipped)) - digamma(np.array([total]))).sum()
        return population_update(self.slips, gain, total_gain, np.ones(self.cells.labels))

    @cached_property
    def _of_worker(self) -> Array:
        """(worker, 2) expected answers that were no slips, and slips."""
        return self.cells.per_worker(np.stack([self.known, self.slipped], axis=1))

    @cached_property
    def _log_skill(self) -> Array:
        """(cell, 2) expected logarithms of rho and 1 - rho."""
        found = self.skill + self._of_worker
        return np.asarray(digamma(found) - digamma(found.sum(1))[:, None])[self.cells.worker]

    @cached_property
    def _log_slip(self) -> Array:
        """(cell,) expected logarithm of b."""
        if not self.biased:
            return np.full(len(self.cells.label), -np.log(self.cells.labels))
        total = self.slips.sum() + self._of_worker[:, 1]
        return np.asarray(digamma(self.slips[self.cells.label] + self.slipped) - digamma(total)[self.cells.worker])

    @cached_property
    def log_likelihood(self) -> Array:
        slips = self._log_skill[:, 1] + self._log_slip
        found = np.tile(slips[:, None], (1, self.cells.labels))
        found[self.cells.own] = np.logaddexp(self._log_skill[:, 0], slips)
        return found

    @property
    def _knows(self) -> Array:
        """(cell,) the probability that an answer that is right was no slip."""
        return np.exp(self._log_skill[:, 0] - self.log_likelihood[self.cells.own])

    @property
    def divergence(self) -> float:
        total = self._of_worker.sum(1)
        gain = _sum_of_gains(self.skill, self._of_worker) - _sum_of_gains(self.skill.sum()[None], total)
        found = (self.known * self._log_skill[:, 0] + self.slipped * self._log_skill[:, 1]).sum() - gain
        found -= gamma_log_density(self.skill, _SKILL_MODE)
        if self.biased:
            gain = _sum_of_gains(self.slips[self.cells.label], self.slipped)
            gain -= _sum_of_gains(self.slips.sum()[None], self._of_worker[:, 1])
            found += (self.slipped * self._log_slip).sum() - gain
            found -= gamma_log_density(self.slips, np.ones(self.cells.labels))
        return float(found)

    @property
    def population_size(self) -> int:
        return self.skill.size + self.biased * self.slips.size

    def confusion(self) -> Array:
        rho, slips = self._rho[:, None, None], np.tile(self.slips, (self.cells.workers, 1))
        if self.biased:
            slips[self.cells.worker, self.cells.label] += self.slipped
        slips /= slips.sum(1, keepdims=True)
        return rho * np.eye(self.cells.labels) + (1 - rho) * slips[:, None, :]

    @property
    def _rho(self) -> Array:
        """(worker,) posterior means."""
        found = self.skill + self._of_worker
        return np.asarray(found[:, 0] / found.sum(1))

    def expertise(self, answers: Answers, probabilities: Array) -> tuple[Array, Array]:
        rho = self._rho
        of_answer = rho[answers.worker]
        knows = probabilities[answers.task, answers.label] * self._knows[answers.cell]
        left = _information_left(answers, of_answer * (1 - of_answer), knows * (1 - knows))
        answered = self.skill.sum() + self._of_worker.sum(1) * left + 1
        return rho, np.sqrt(rho * (1 - rho) / answered)


_SKILL_MODE = np.array([2.0, 1.0])
"""The mode of the prior on the population: two answers that are known for one slip."""

MODELS: Mapping[str, Callable[[Cells], AbstractWorkers]] = {
    "uniform": lambda cells: Mixture.start(cells, biased=False),
    "biased": lambda cells: Mixture.start(cells, biased=True),
    "confusion": Confusion.start,
}
"""Each model of workers as its prior has everybody, by name."""
