"""Answers as arrays, models of workers, and expectation-maximisation.

A model of workers is p(a | y, i), the probability that worker i gives label a to a task with true label y. Each worker
has Dirichlet posteriors under a prior that all workers share and that is learned, so an iteration of variational
expectation-maximisation is exact and never lowers the evidence bound. Workers enter the likelihood only by the labels
they gave, so sums run over *cells*: pairs of a worker and a label that this worker has given.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple, Self, final

import numpy as np
import torch

from ileed.data import Array, Demonstrations
from ileed.data.encoding import Label
from ileed.data.rules import listed
from ileed.errors import DemonstrationError
from ileed.formats.crowd import GOLD, TASK


@final
@dataclass(frozen=True, eq=False)
class Cells:
    """Pairs of a worker and a label that the worker has given, sorted by worker."""

    worker: Array  # (cell,)
    label: Array  # (cell,)
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
    """Labels given by workers to tasks, and the known gold labels."""

    tasks: tuple[str, ...]
    workers: tuple[str, ...]
    classes: tuple[Label, ...]
    task: Array  # (answer,) index into tasks
    worker: Array  # (answer,) index into workers
    label: Array  # (answer,) index into classes
    gold: Array  # (task,) index of the true label, -1 if unknown

    @classmethod
    def of(cls, data: Demonstrations, *, gold: bool = False, repeats: Literal["error", "count"] = "error") -> Answers:
        """Convert demonstrations that `from_answers` returned, with gold labels if `gold`."""
        if TASK not in data.skills or data.encoding is None or not data.encoding.labels:
            raise DemonstrationError("these demonstrations are not a table of labels: read it with ileed.from_answers")
        task = np.asarray(data.observations[:, 0], dtype=np.int64)
        tasks = np.empty(int(task.max()) + 1, dtype=data.skills[TASK].dtype)
        tasks[task] = data.skills[TASK]
        found = cls(
            tasks=tuple(tasks.tolist()),
            workers=tuple(data.names),
            classes=data.encoding.labels,
            task=task,
            worker=data.demonstrator,
            label=data.actions,
            gold=_gold(data, data.encoding.labels, task) if gold else np.full(len(tasks), -1),
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
        pairs, counts = np.unique(self.worker * len(self.tasks) + self.task, return_counts=True)
        twice = pairs[counts > 1]
        if len(twice):
            worker, task = self.workers[twice[0] // len(self.tasks)], self.tasks[twice[0] % len(self.tasks)]
            raise DemonstrationError(
                f"worker {worker!r} answered task {task!r} more than once ({len(twice):,} such pairs), and a worker is "
                "asked once: drop the others, or pass repeats='count' to treat each as independent"
            )

    @cached_property
    def _pairs(self) -> tuple[Array, Array]:
        return np.unique(self.worker * len(self.classes) + self.label, return_inverse=True)

    @cached_property
    def cells(self) -> Cells:
        pair = self._pairs[0]
        return Cells(pair // len(self.classes), pair % len(self.classes), len(self.workers), len(self.classes))

    @property
    def cell(self) -> Array:
        """(answer,) index of each answer's cell."""
        return self._pairs[1]

    def per_task(self, values: Array) -> Array:
        """(task, label) sums of (cell, label) values over the answers of each task."""
        cell, first = self._by_task
        return np.add.reduceat(values.take(cell, axis=0), first, axis=0)

    def per_cell(self, values: Array) -> Array:
        """(cell, label) sums of (task, label) values over the answers of each cell."""
        task, first = self._by_cell
        return np.add.reduceat(values.take(task, axis=0), first, axis=0)

    @property
    def votes(self) -> Array:
        """(task, label) the number of workers who gave each label."""
        size = len(self.tasks) * len(self.classes)
        found = np.bincount(self.task * len(self.classes) + self.label, minlength=size)
        return found.reshape(len(self.tasks), -1).astype(float)

    @cached_property
    def _by_cell(self) -> tuple[Array, Array]:
        return _grouped(self.task, self.cell)

    @cached_property
    def _by_task(self) -> tuple[Array, Array]:
        return _grouped(self.cell, self.task)


def _grouped(values: Array, group: Array) -> tuple[Array, Array]:
    """Values sorted by their group, and the position of the first of each group."""
    order = np.argsort(group, kind="stable")
    return values[order], np.searchsorted(group[order], np.arange(int(group.max()) + 1))


def _gold(data: Demonstrations, classes: Sequence[Label], task: Array) -> Array:
    """(task,) index of the gold label, -1 if unknown; a label that no worker gave is refused."""
    if GOLD not in data.skills:
        raise DemonstrationError("there are no gold labels: pass gold= to ileed.from_answers, or leave gold out here")
    numbers = {str(label): number for number, label in enumerate(classes)} | {"": -1}
    distinct, inverse = np.unique(data.skills[GOLD], return_inverse=True)
    if unknown := [str(word) for word in distinct if str(word) not in numbers]:
        known = listed([str(label) for label in classes], most=12)
        raise DemonstrationError(
            f"the gold label {unknown[0]!r} was given by no worker, and the labels are {known}: correct it, or leave "
            "those tasks out of gold"
        )
    found = np.full(int(task.max()) + 1, -1)
    found[task] = np.array([numbers[str(word)] for word in distinct])[inverse]
    return found


# --- distributions


def digamma(values: Array) -> Array:
    """The derivative of log Gamma."""
    return torch.digamma(torch.from_numpy(values)).numpy()


def lgamma(values: Array) -> Array:
    """log Gamma."""
    return torch.lgamma(torch.from_numpy(values)).numpy()


def logit_moments(mean: Array, standard_deviation: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of the logit of a Beta variable with these moments."""
    total = mean * (1 - mean) / standard_deviation**2 - 1
    both = torch.from_numpy(np.maximum(np.stack([mean * total, (1 - mean) * total]), 1e-3))
    centre = torch.digamma(both[0]) - torch.digamma(both[1])
    return centre.numpy(), torch.polygamma(1, both).sum(0).sqrt().numpy()


def population_update(prior: Array, gain: Array, total_gain: Array, mode: Array) -> Array:
    """One step of a prior's parameters towards the maximum of the evidence, which never decreases.

    The fixed point of Minka (2000), *Estimating a Dirichlet distribution*, with a Gamma prior on each parameter that
    has the weight of one worker:

        a_k <- (a_k sum_i [psi(a_k + N_ik) - psi(a_k)] + m_k) / (sum_i [psi(a_0 + N_i0) - psi(a_0)] + 1)

    Args:
        prior: a.
        gain: the sums over workers in the numerator, by outcome.
        total_gain: the sum in the denominator.
        mode: m, the mode of the Gamma prior.
    """
    return np.asarray((prior * gain + mode) / (np.asarray(total_gain)[..., None] + 1))


def gamma_log_density(prior: Array, mode: Array) -> float:
    """Log-density of parameters under their Gamma prior with rate 1 and the given mode."""
    return float((mode * np.log(prior) - prior - lgamma(mode + 1)).sum())


@final
@dataclass(frozen=True, eq=False)
class Dirichlets:
    """A posterior Dirichlet(a + N_i) for each worker over the labels of cells, under the prior Dirichlet(a).

    Cells that a worker lacks have no counts and contribute nothing. If outcomes depend on the true label y, there is a
    posterior for each worker and y.
    """

    cells: Cells
    mode: Array  # ([true label,] label) the mode of the Gamma prior on a
    prior: Array  # ([true label,] label) a
    counts: Array  # (cell[, true label]) N, the expected answers

    @classmethod
    def start(cls, cells: Cells, mode: Array, prior: Array) -> Self:
        """The prior, without answers."""
        return cls(cells, mode, prior, np.zeros((len(cells.label), *prior.shape[:-1])))

    def updated(self, counts: Array) -> Self:
        """The posteriors given these counts, and the prior after one step."""
        shown, total = self._shown, self.total
        gain = self.cells.per_label(digamma(shown + counts) - digamma(shown)).T
        total_gain = (digamma(total + self.cells.per_worker(counts)) - digamma(total)).sum(0)
        return replace(self, prior=population_update(self.prior, gain, total_gain, self.mode), counts=counts)

    @property
    def total(self) -> Array:
        """([true label]) a_0, the sum of the prior's parameters."""
        return np.asarray(self.prior.sum(-1))

    @property
    def _shown(self) -> Array:
        """(cell[, true label]) a of each cell's label."""
        return self.prior.T[self.cells.label]

    @cached_property
    def per_worker(self) -> Array:
        """(worker[, true label]) expected answers."""
        return self.cells.per_worker(self.counts)

    @cached_property
    def expected_log(self) -> Array:
        """(cell[, true label]) expected log-probability of each cell's label."""
        total = self.total + self.per_worker
        return np.asarray(digamma(self._shown + self.counts) - digamma(total)[self.cells.worker])

    @property
    def divergence(self) -> float:
        """Kullback-Leibler divergence of posteriors from the prior, minus the log-density of the prior, in nats.

        KL(Dir(a + N), Dir(a)) = N . E[log C] - (log B(a + N) - log B(a))
        """
        gain = _sum_of_gains(self._shown, self.counts) - _sum_of_gains(self.total, self.per_worker)
        return float((self.counts * self.expected_log).sum()) - gain - gamma_log_density(self.prior, self.mode)

    def means(self) -> Array:
        """(worker[, true label], label) posterior means of the probability of each label."""
        found = np.tile(self.prior, (self.cells.workers, *[1] * self.prior.ndim))
        found[self.cells.worker, ..., self.cells.label] += self.counts
        return found / found.sum(-1, keepdims=True)


def _sum_of_gains(prior: Array, counts: Array) -> float:
    return float((lgamma(prior + counts) - lgamma(prior)).sum())


# --- models of workers


@dataclass(frozen=True, eq=False)
class AbstractWorkers(ABC):
    """Posteriors of the parameters of all workers, given expected counts of true labels.

    Laws: `log_likelihood` is E[log p(a | y, i)], with slips summed out, so its exponential sums to at most one over
    labels; an update with the counts that follow from it never lowers the evidence bound; workers who gave the same
    answers to the same tasks have the same posterior.
    """

    cells: Cells

    @abstractmethod
    def updated(self, counts: Array) -> Self:
        """The posteriors given (cell, label) expected counts of true labels, and the population after one step."""

    @property
    @abstractmethod
    def log_likelihood(self) -> Array:
        """(cell, label) expected log-probability of the cell's label, by true label."""

    @property
    @abstractmethod
    def parts(self) -> tuple[Dirichlets, ...]:
        """The learned posteriors."""

    @property
    def divergence(self) -> float:
        """Kullback-Leibler divergence of posteriors from priors, minus the log-density of the population, in nats."""
        return sum(part.divergence for part in self.parts)

    @property
    def population_size(self) -> int:
        """The number of learned parameters of the population."""
        return sum(part.prior.size for part in self.parts)

    @abstractmethod
    def confusion(self) -> Array:
        """(worker, true label, label) posterior means of p(a | y, i)."""

    @abstractmethod
    def expertise(self, answers: Answers, probabilities: Array) -> tuple[Array, Array]:
        """(worker,) posterior mean and standard deviation of expertise over the worker's own tasks.

        `probabilities` are those of (task, label). Uncertainty about true labels widens the posterior: the number of
        answers is multiplied by the share of information that remains (Louis, 1982).
        """


def _information_left(answers: Answers, complete: Array, missing: Array) -> Array:
    """(worker,) the share of the information of known labels that remains, from (answer,) information."""
    whole, lost = (np.bincount(answers.worker, each, len(answers.workers)) for each in (complete, missing))
    return np.clip(1 - lost / np.maximum(whole, 1e-12), 0.01, 1.0)


@final
@dataclass(frozen=True, eq=False)
class Confusion(AbstractWorkers):
    """p(a | y, i) = C_i[y, a], with C_i[y] ~ Dirichlet(A[y]) and the population A learned.

    Dawid and Skene (1979) with a prior; with A fixed it is Bayesian classifier combination (Kim and Ghahramani, 2012).
    The expertise of a worker is the mean of the diagonal over the true labels of the worker's own tasks.
    """

    rows: Dirichlets

    @classmethod
    def start(cls, cells: Cells) -> Self:
        """The prior, whose mode is two correct answers for each wrong one."""
        mode = np.where(np.eye(cells.labels, dtype=bool), 2.0, 1.0 / max(cells.labels - 1, 1))
        return cls(cells, Dirichlets.start(cells, mode, mode))

    def updated(self, counts: Array) -> Self:
        return replace(self, rows=self.rows.updated(counts))

    @property
    def parts(self) -> tuple[Dirichlets, ...]:
        return (self.rows,)

    @property
    def log_likelihood(self) -> Array:
        return self.rows.expected_log

    def confusion(self) -> Array:
        return self.rows.means()

    def expertise(self, answers: Answers, probabilities: Array) -> tuple[Array, Array]:
        prior, counted = self.rows.prior, self.rows.per_worker
        right = np.tile(np.diag(prior), (self.cells.workers, 1))
        right[self.cells.worker, self.cells.label] += self.rows.counts[self.cells.own]
        right /= self.rows.total + counted
        of_task, true = right[answers.worker], probabilities[answers.task]
        # the score of a common shift of the logits of the diagonal is [y = a] - C[y, y]
        score = np.eye(self.cells.labels)[answers.label] - of_task
        missing = (true * score**2).sum(1) - (true * score).sum(1) ** 2
        left = _information_left(answers, (true * of_task * (1 - of_task)).sum(1), missing)
        weights = counted / counted.sum(1, keepdims=True)
        variance = right * (1 - right) / (self.rows.total + counted * left[:, None] + 1)
        return (weights * right).sum(1), np.sqrt((weights**2 * variance).sum(1))


@final
@dataclass(frozen=True, eq=False)
class Mixture(AbstractWorkers):
    """p(a | y, i) = rho_i [a = y] + (1 - rho_i) b_i(a): the true label, or a slip that does not depend on the task.

    The expertise is rho_i ~ Beta with a learned population. Slips are uniform (`UniformMixture`, which is Dawid-Skene
    with one coin), or b_i ~ Dirichlet with a learned population (`BiasedMixture`, which is MACE of Hovy et al., 2013).
    """

    skill: Dirichlets  # of rho: each worker has two cells, for answers that are not slips and slips
    slips: Dirichlets | None  # of b; None for uniform slips

    @classmethod
    def start(cls, cells: Cells, *, biased: bool) -> Self:
        """The prior, whose mode is two known answers for each slip."""
        coin = Cells(np.repeat(np.arange(cells.workers), 2), np.tile([0, 1], cells.workers), cells.workers, 2)
        mode = np.array([2.0, 1.0])
        even = np.ones(cells.labels)
        return cls(cells, Dirichlets.start(coin, mode, mode), Dirichlets.start(cells, even, even) if biased else None)

    def updated(self, counts: Array) -> Self:
        known = counts[self.cells.own] * self._knows
        slipped = counts.sum(1) - known
        of_worker = self.cells.per_worker(np.stack([known, slipped], axis=1))
        slips = None if self.slips is None else self.slips.updated(slipped)
        return replace(self, skill=self.skill.updated(of_worker.reshape(-1)), slips=slips)

    @property
    def parts(self) -> tuple[Dirichlets, ...]:
        return (self.skill,) if self.slips is None else (self.skill, self.slips)

    @cached_property
    def _log_skill(self) -> Array:
        """(cell, 2) expected logarithms of rho and 1 - rho."""
        return self.skill.expected_log.reshape(-1, 2)[self.cells.worker]

    @cached_property
    def log_likelihood(self) -> Array:
        log_slip = -np.log(self.cells.labels) if self.slips is None else self.slips.expected_log
        slips = self._log_skill[:, 1] + log_slip
        found = np.tile(slips[:, None], (1, self.cells.labels))
        found[self.cells.own] = np.logaddexp(self._log_skill[:, 0], slips)
        return found

    @property
    def _knows(self) -> Array:
        """(cell,) the probability that a correct answer was no slip."""
        return np.exp(self._log_skill[:, 0] - self.log_likelihood[self.cells.own])

    def confusion(self) -> Array:
        rho, labels = self.skill.means()[:, :1, None], self.cells.labels
        slips = np.full((self.cells.workers, labels), 1 / labels) if self.slips is None else self.slips.means()
        return rho * np.eye(labels) + (1 - rho) * slips[:, None, :]

    def expertise(self, answers: Answers, probabilities: Array) -> tuple[Array, Array]:
        rho = self.skill.means()[:, 0]
        of_answer = rho[answers.worker]
        knows = probabilities[answers.task, answers.label] * self._knows[answers.cell]
        left = _information_left(answers, of_answer * (1 - of_answer), knows * (1 - knows))
        answered = self.skill.total + self.skill.per_worker * left + 1
        return rho, np.sqrt(rho * (1 - rho) / answered)


class Model(NamedTuple):
    """A model of workers: its prior, given the cells, and its description in messages."""

    start: Callable[[Cells], AbstractWorkers]
    title: str


MODELS: Mapping[str, Model] = {
    "uniform": Model(lambda cells: Mixture.start(cells, biased=False), "uniform slips"),
    "biased": Model(lambda cells: Mixture.start(cells, biased=True), "slips to favourite labels"),
    "confusion": Model(Confusion.start, "a confusion matrix"),
}


# --- expectation-maximisation

_ROUND = 20  # iterations between two eliminations of restarts
ProgressCallback = Callable[[int, int], None]
"""Called with the number of iterations done and the maximum."""


@final
@dataclass(frozen=True, eq=False)
class Restart:
    """A model from one initialisation, after some iterations."""

    model: str
    probabilities: Array  # (task, label) posterior of the true label
    workers: AbstractWorkers
    objective: tuple[float, ...] = ()
    """The evidence bound of all answers after each iteration, in nats; it never decreases."""
    has_converged: bool = False

    def step(self, answers: Answers, log_gold: Array, least: float) -> Restart:
        """Update workers, then label probabilities; it has converged if it gains less than `least` nats."""
        workers = self.workers.updated(answers.per_cell(self.probabilities))
        counts = self.probabilities.sum(0)
        total = np.array([counts.sum() + len(counts)])
        log_class = digamma(counts + 1) - digamma(total)
        joint = answers.per_task(workers.log_likelihood) + log_class + log_gold
        most = joint.max(1, keepdims=True)
        joint = np.exp(joint - most)
        evidence = joint.sum(1, keepdims=True)
        gain = lgamma(counts + 1).sum() - float((lgamma(total) - lgamma(np.array([float(len(counts))])))[0])
        divergence = workers.divergence + float((counts * log_class).sum()) - gain
        objective = (*self.objective, float((most + np.log(evidence)).sum() - divergence))
        converged = len(objective) > 1 and objective[-1] - objective[-2] < least
        return Restart(self.model, joint / evidence, workers, objective, converged)

    @property
    def evidence(self) -> float:
        """The objective minus the Bayesian information criterion's penalty for the population, a point estimate."""
        return self.objective[-1] - 0.5 * self.workers.population_size * float(np.log(self.workers.cells.workers))

    @property
    def reach(self) -> float:
        """A value that the evidence will hardly exceed: the gain of the last ten iterations, twenty times over."""
        return self.evidence + (0 if self.has_converged else 20 * (self.objective[-1] - self.objective[-11]))


def fit(
    answers: Answers,
    log_gold: Array,
    models: Sequence[str],
    *,
    restarts: int,
    seed: int,
    iterations: int,
    tolerance: float,
    progress: ProgressCallback | None = None,
) -> list[Restart]:
    """The likeliest restart of each model, the likeliest model first.

    All restarts run side by side until an iteration gains less than `tolerance` nats per answer. Every twenty
    iterations the less likely half of each model's restarts is dropped, and models that cannot become the likeliest
    stop.

    Args:
        answers: the answers.
        log_gold: (task, label) log-probability given gold labels, zero if unknown.
        models: keys of `MODELS`.
        restarts: the number for each model.
        seed: of the initial weights of workers.
        iterations: their maximum number.
        tolerance: of convergence.
        progress: called after each iteration.
    """
    running = [start for model in models for start in _restarts(answers, log_gold, model, restarts, seed)]
    least, stopped = tolerance * len(answers), list[Restart]()
    for number in range(iterations):
        running = [each if each.has_converged else each.step(answers, log_gold, least) for each in running]
        if all(each.has_converged for each in running):
            break
        if (number + 1) % _ROUND == 0:
            running = [each for model in models for each in _likelier_half(running, model)]
            best = max(each.evidence for each in running)
            stopped += [each for each in running if each.reach < best]
            running = [each for each in running if each.reach >= best]
        if progress is not None:
            progress(number + 1, iterations)
    found = [_likelier_half([*running, *stopped], model)[0] for model in models]
    return sorted(found, key=lambda each: -each.evidence)


def _likelier_half(running: Sequence[Restart], model: str) -> list[Restart]:
    """The half of a model's restarts with the greatest objective, in descending order."""
    own = sorted((each for each in running if each.model == model), key=lambda each: -each.objective[-1])
    return own[: (len(own) + 1) // 2]


def _restarts(answers: Answers, log_gold: Array, model: str, restarts: int, seed: int) -> list[Restart]:
    """The majority vote, and votes with random weights of workers."""
    workers = MODELS[model].start(answers.cells)
    chance = np.random.default_rng([abs(seed), int(seed < 0)])
    own = np.zeros((len(answers.cells.label), len(answers.classes)))
    found = []
    for number in range(restarts):
        weight = np.ones(len(answers.workers)) if number == 0 else chance.exponential(size=len(answers.workers))
        own[answers.cells.own] = weight[answers.cells.worker]
        votes = (answers.per_task(own) + 1e-9) * np.exp(log_gold)
        found.append(Restart(model, votes / votes.sum(1, keepdims=True), workers))
    return found
