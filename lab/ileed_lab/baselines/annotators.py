"""Models of annotators on demonstrations: Dawid-Skene and GLAD, which know observations by their number alone.

Every distinct observation is a task, every demonstrator a worker and every action a label; the right label of a task is
the action that an expert takes there. A demonstrator who acts several times at the same observation has answered so
many times, each time independently. Both start from the vote of all answers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import logsigmoid

from ileed import Demonstrations, SettingsError
from ileed.data import Collapsed
from ileed_lab.in_turn import AbstractInTurn

__all__ = ["Annotated", "DawidSkene", "Glad", "counted_answers"]

Array = npt.NDArray[Any]
_FLOOR = 1e-10  # of a probability whose logarithm is taken


@final
@dataclass(frozen=True, eq=False)
class Annotated:
    """What a model of annotators says: how good every demonstrator is, and the right action at every observation."""

    expertise: Mapping[str, float]
    """By name, on the method's own scale; higher is better."""
    probabilities: Array
    """(unique observation, action) posterior of the right action."""
    objective: float
    """What was maximised, in nats."""
    seconds: float

    @property
    def policy(self) -> Array:
        """(unique observation,) the likeliest right action; these methods have none at any other observation."""
        return np.asarray(self.probabilities.argmax(1))


def counted_answers(demonstrations: Demonstrations) -> Array:
    """(unique observation, demonstrator, action) how often each demonstrator took each action at each observation."""
    if not demonstrations.discrete:
        raise SettingsError("models of annotators have labels, and these actions are continuous: use discrete actions")
    found = demonstrations.collapsed()
    if not isinstance(found, Collapsed):
        raise SettingsError("models of annotators need observations that repeat, and counts that memory holds")
    size = len(found.observations), len(demonstrations.names), demonstrations.action_count
    answers = np.zeros(size)
    np.add.at(answers, (found.observation_index, found.demonstrator, found.action), found.count)
    return answers


@final
@dataclass(frozen=True)
class DawidSkene(AbstractInTurn):
    """A matrix C_i of confusion for each demonstrator i, by expectation-maximisation of the likelihood, without a
    prior.

    p(a | y, i) = C_i[y, a] and p(y) = q_y, where y is the right action at an observation. Expertise is the mean over a
    demonstrator's own steps of the expected C_i[y, y]. Dawid and Skene, "Maximum likelihood estimation of observer
    error-rates using the EM algorithm", Applied Statistics 28, 1979.
    """

    iterations: int = 1000
    """Maximum number of iterations."""
    tolerance: float = 1e-7
    """It has converged where an iteration gains fewer nats an answer."""
    devices: ClassVar[tuple[str, ...]] = ("cpu",)

    def fit(self, demonstrations: Demonstrations, *, seed: int, device: str = "auto") -> Annotated:
        """Deterministic: the seed does not matter."""
        began = time.monotonic()
        answers = counted_answers(demonstrations)
        people, actions = answers.shape[1:]
        flat, before = answers.reshape(len(answers), -1), -np.inf
        right = answers.sum(1) / answers.sum((1, 2))[:, None]
        for _ in range(self.iterations):
            counts = (right.T @ flat).reshape(actions, people, actions).transpose(1, 0, 2)  # (person, right, taken)
            totals = counts.sum(2, keepdims=True)
            confusion = np.divide(counts, totals, out=np.full_like(counts, 1 / actions), where=totals > 0)
            by_answer = np.log(np.maximum(confusion, _FLOOR)).transpose(0, 2, 1).reshape(-1, actions)
            joint = flat @ by_answer + np.log(np.maximum(right.mean(0), _FLOOR))
            most = joint.max(1, keepdims=True)
            evidence = np.exp(joint - most).sum(1, keepdims=True)
            right, likelihood = np.exp(joint - most) / evidence, float((most + np.log(evidence)).sum())
            if likelihood - before < self.tolerance * answers.sum():
                break
            before = likelihood
        met = np.einsum("sia,sy->iy", answers, right)  # how often each demonstrator met each right action
        expertise = (met * confusion.diagonal(axis1=1, axis2=2)).sum(1) / met.sum(1)
        named = dict(zip(demonstrations.names, expertise.tolist(), strict=True))
        return Annotated(named, right, likelihood, time.monotonic() - began)


@final
@dataclass(frozen=True)
class Glad(AbstractInTurn):
    """One number for each demonstrator and one for each observation: an ability and how easy it is to act rightly
    there.

    A demonstrator i takes the right action at observation s with probability sigmoid(alpha_i beta_s), and each of the
    others equally often. Every action is right equally often beforehand, and alpha_i and log beta_s are Gaussian around
    1 with variance 1. Expertise is alpha_i. Whitehill et al., "Whose vote should count more", NeurIPS 2009, maximise
    this posterior, summed over right actions, by expectation-maximisation; here L-BFGS does, which needs fewer passes.
    """

    iterations: int = 500
    """Maximum number of iterations of L-BFGS."""
    devices: ClassVar[tuple[str, ...]] = ("cpu",)

    def fit(self, demonstrations: Demonstrations, *, seed: int, device: str = "auto") -> Annotated:
        """Deterministic: the seed does not matter."""
        began = time.monotonic()
        answers = torch.from_numpy(counted_answers(demonstrations))
        ability = torch.ones(answers.shape[1], dtype=torch.float64, requires_grad=True)
        log_easiness = torch.ones(len(answers), dtype=torch.float64, requires_grad=True)
        optimiser = torch.optim.LBFGS(
            [ability, log_easiness],
            max_iter=self.iterations,
            tolerance_grad=1e-6,
            tolerance_change=1e-10,
            line_search_fn="strong_wolfe",
        )

        def cost() -> torch.Tensor:
            optimiser.zero_grad()
            cost = -glad_log_posterior(answers, ability, log_easiness)[0]
            cost.backward()
            return cost

        optimiser.step(cost)
        with torch.no_grad():
            objective, joint = glad_log_posterior(answers, ability, log_easiness)
        named = dict(zip(demonstrations.names, ability.tolist(), strict=True))
        return Annotated(named, joint.softmax(1).numpy(), float(objective), time.monotonic() - began)


def glad_log_posterior(
    answers: torch.Tensor, ability: torch.Tensor, log_easiness: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logarithm of GLAD's posterior, up to a constant, and (observation, action) that of p(answers, right action)."""
    actions = answers.shape[2]
    logit = ability * log_easiness.exp()[:, None]  # (observation, demonstrator)
    log_right, log_wrong = logsigmoid(logit), logsigmoid(-logit) - np.log(actions - 1)
    given = answers.sum(2)
    joint = torch.einsum("sia,si->sa", answers, log_right - log_wrong) + (given * log_wrong).sum(1, keepdim=True)
    joint = joint - np.log(actions)
    prior = -0.5 * ((ability - 1).square().sum() + (log_easiness - 1).square().sum())
    return joint.logsumexp(1).sum() + prior, joint
