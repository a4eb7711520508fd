"""Does training on a selection pay? Policies trained on it and on everything, compared on held-out episodes.

Small networks are trained in five folds of episodes, on all training episodes and on what a rule selects of them, with
its weights. Held-out steps measure how well they predict the expert component of the data. With pi the trained policy
and rho_i the cross-fitted expertise of the demonstrator, the loss of a step is

    -log(rho_i pi(a | s) + (1 - rho_i) / |A|)       for discrete actions,
    rho_i / (1 - rho_i) |a - pi(s)|^2               for continuous actions whose rho_i is a share of explained variance,
    rho_i |a - pi(s)|^2                             for other continuous actions, whose rho_i is a precision.

Squared errors are of standardised actions. Their weights have a mean of 1 in each state cluster, so that every state
counts as often as in the whole data set: a policy meets states where only poor demonstrators lead as well, and a
selection must not be judged by its own states. The gain is the relative reduction of the held-out loss. Its interval is
the wider of two: over held-out episodes, by the linearised variance of a ratio of sums, and Student's over folds, which
includes the randomness of training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from ileed._torch import numpy_stream, stream, threads
from ileed.curation.states import folds_of_episodes
from ileed.data import Array, Demonstrations

FOLDS = 5
LEAST_EPISODES = 2 * FOLDS
LEAST_GAIN = 0.1
"""The least gain of continuous actions with which a selection is recommended. Smaller gains need not carry over to
closed loop: with weights of a gain of 4%, success in Square was lower (docs/decisions/curation.md)."""
_HIDDEN = 64
_BATCH = 256
_LEAST_STEPS, _MOST_STEPS, _EPOCHS = 100, 1_000, 20
_RATE = 3e-3
_AT_ONCE = 8_192
_LARGEST_EXPERTISE = 0.98  # in a loss, so that no demonstrator decides alone

Weigh = Callable[[Array], Array]
"""From (episode,) which are for training to (step,) the weight of every step."""


class Material(NamedTuple):
    """What policies are trained on and judged by."""

    data: Demonstrations
    inputs: Array
    """(input, step)."""
    expertise: Array
    """(demonstrator,) cross-fitted, from 0 to 1."""
    is_signal: bool
    """Whether expertise is a share of explained variance."""
    cluster: Array | None = None
    """(step,) the state cluster of each step; None counts all steps as one cluster."""

    def importance(self) -> Array:
        """(step,) the weight of squared errors, with mean 1 in each state cluster."""
        rho = np.clip(self.expertise, 1 - _LARGEST_EXPERTISE, _LARGEST_EXPERTISE)
        weight = (rho / (1 - rho) if self.is_signal else rho)[self.data.demonstrator]
        cluster = np.zeros(len(weight), dtype=np.int64) if self.cluster is None else self.cluster
        mean = np.bincount(cluster, weight) / np.maximum(np.bincount(cluster), 1)
        return np.asarray(weight / mean[cluster])


@final
@dataclass(frozen=True)
class Comparison:
    """The gain of training on a selection rather than on everything: the relative reduction of the held-out loss.

    NaN with too few episodes to compare.
    """

    name: str
    """Of the selection."""
    gain: float
    low: float
    high: float
    confidence_level: float
    least: float = 0.0
    """The least gain with which a selection is recommended, if its interval excludes zero too."""

    @property
    def is_better(self) -> bool:
        return self.low > 0 and self.gain >= self.least

    @property
    def is_worse(self) -> bool:
        return self.high < 0

    @property
    def sentence(self) -> str:
        """The comparison in words."""
        if np.isnan(self.gain):
            return f"too few episodes to compare {self.name} with everything: {LEAST_EPISODES} or more are needed"
        verdict = "better than" if self.low > 0 else "worse than" if self.is_worse else "not distinguishable from"
        interval = f"{self.gain:+.1%} [{self.low:+.1%}, {self.high:+.1%}]"
        small = f", less than {self.least:.0%}" if self.low > 0 and not self.is_better else ""
        return f"{self.name}: {verdict} everything on held-out episodes, gain {interval}{small}"


@final
@dataclass(frozen=True)
class Recommendation:
    """The selection to train on: everything, unless a candidate is better by its interval, and by enough.

    Intervals hold for all candidates together (Bonferroni): if no selection is better, the chance of recommending one
    is at most one minus the confidence level.
    """

    comparisons: tuple[Comparison, ...]

    @property
    def best(self) -> Comparison | None:
        """The candidate of the greatest gain among those that are better; None for everything."""
        better = [each for each in self.comparisons if each.is_better]
        return max(better, key=lambda each: each.gain, default=None)

    @property
    def sentence(self) -> str:
        """The recommendation in words."""
        if self.best is not None:
            return f"recommended: {self.best.sentence}"
        if all(np.isnan(each.gain) for each in self.comparisons):
            return f"recommended: everything, since fewer than {LEAST_EPISODES} episodes cannot be compared"
        least = max((each.least for each in self.comparisons), default=0.0)
        enough = f" and by {least:.0%} or more" if least else ""
        return f"recommended: everything, since no selection predicts held-out episodes better by its interval{enough}"


def compare_with_everything(
    material: Material, candidates: Mapping[str, Weigh], *, level: float, seed: int
) -> tuple[Comparison, ...]:
    """One comparison for each candidate; their intervals hold for all of them together."""
    level, least = 1 - (1 - level) / max(1, len(candidates)), 0.0 if material.data.discrete else LEAST_GAIN
    count = material.data.episode_count
    if count < LEAST_EPISODES or not len(material.inputs):
        return tuple(Comparison(name, np.nan, np.nan, np.nan, level, least) for name in candidates)
    fold = folds_of_episodes(material.data, FOLDS, seed=seed)
    losses = np.empty((1 + len(candidates), count))
    for number in range(FOLDS):
        losses[:, fold == number] = _held_out(material, [*candidates.values()], fold == number, (seed, number))
    each = zip(candidates, losses[1:], strict=True)
    return tuple(Comparison(name, *_gain(losses[0], own, fold, level), level, least) for name, own in each)


def _gain(everything: Array, own: Array, fold: Array, level: float) -> tuple[float, float, float]:
    """The relative reduction of the summed loss of episodes, and its interval."""
    total, count = everything.sum(), len(everything)
    if total <= 0:
        return 0.0, 0.0, 0.0
    gain = float((everything - own).sum() / total)
    residual = everything - own - gain * everything
    over_episodes = np.sqrt((residual**2).sum() * count / (count - 1)) / total
    sums = np.stack([np.bincount(fold, values, FOLDS) for values in (everything, own)])
    each = (sums[0] - sums[1]) / np.maximum(sums[0], 1e-12)
    over_folds = each.std(ddof=1) / np.sqrt(FOLDS)
    probability = (1 + level) / 2
    reach = max(NormalDist().inv_cdf(probability) * over_episodes, _student_of_four(probability) * over_folds)
    return gain, gain - float(reach), gain + float(reach)


def _student_of_four(probability: float) -> float:
    """The quantile, above 1/2, of Student's distribution with four degrees of freedom (Shaw, 2006)."""
    assert FOLDS == 5
    root = np.sqrt(4 * probability * (1 - probability))
    return float(2 * np.sqrt(np.cos(np.arccos(root) / 3) / root - 1))


@threads(1)
def _held_out(material: Material, candidates: Sequence[Weigh], held_out: Array, key: tuple[int, int]) -> Array:
    """(candidate, episode) summed losses of the held-out episodes; the first candidate is everything."""
    data = material.data
    training = ~held_out[data.episode]
    weights = np.stack([training.astype(np.float64), *(weigh(~held_out) for weigh in candidates)])
    weights[weights.sum(1) <= 0] = training
    is_same = [next(first for first in range(len(weights)) if (weights[first] == row).all()) for row in weights]
    distinct = sorted(set(is_same))
    networks = _Networks(material, len(distinct), key)
    networks.train(weights[distinct])
    steps = np.flatnonzero(~training)
    own = np.unique(data.episode[steps], return_inverse=True)[1]
    losses = np.zeros((len(distinct), int(held_out.sum())))
    for first in range(0, len(steps), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        for row, values in enumerate(networks.losses(steps[part])):
            losses[row] += np.bincount(own[part], values, losses.shape[1])
    return losses[[distinct.index(each) for each in is_same]]


@final
class _CrossEntropy:
    """The loss of discrete actions, with outputs for each action."""

    def __init__(self, material: Material) -> None:
        self._data, self._expertise, self.outputs = material.data, material.expertise, material.data.action_count

    def training(self, answers: Tensor, rows: Array) -> Tensor:
        """(candidate, row, 1)."""
        legal = self._data.legal
        if legal is not None:
            answers = answers.masked_fill(~torch.from_numpy(np.asarray(legal[rows], dtype=bool)), -torch.inf)
        chosen = torch.from_numpy(self._data.actions[rows].astype(np.int64))
        return -answers.log_softmax(2).gather(2, chosen[..., None])

    def held_out(self, answers: Tensor, rows: Array) -> Array:
        """(candidate, step)."""
        steps, legal = rows[0], self._data.legal
        policy = (-self.training(answers, rows)[..., 0]).double().exp().numpy()
        rho = np.clip(self._expertise[self._data.demonstrator[steps]], 1 - _LARGEST_EXPERTISE, _LARGEST_EXPERTISE)
        possible = self.outputs if legal is None else legal[steps].sum(1)
        return np.asarray(-np.log(rho * policy + (1 - rho) / possible))


@final
class _SquaredError:
    """The loss of continuous actions, which are standardised."""

    def __init__(self, material: Material) -> None:
        actions, self._importance = material.data.actions, material.importance()
        scale = actions.std(0)
        self._actions, self._centre = actions, actions.mean(0)
        self._scale, self.outputs = np.where(scale > 1e-9, scale, np.inf), material.data.action_size

    def training(self, answers: Tensor, rows: Array) -> Tensor:
        """(candidate, row, dimension)."""
        targets = ((self._actions[rows] - self._centre) / self._scale).astype(np.float32)
        return (answers - torch.from_numpy(targets)) ** 2

    def held_out(self, answers: Tensor, rows: Array) -> Array:
        """(candidate, step)."""
        return np.asarray(self.training(answers, rows).mean(2).double().numpy() * self._importance[rows[0]])


@final
class _Networks:
    """One network of two hidden layers for each candidate, with equal initial values and random numbers."""

    def __init__(self, material: Material, count: int, key: tuple[int, int]) -> None:
        self._material, self._key = material, key
        self._loss = (_CrossEntropy if material.data.discrete else _SquaredError)(material)
        chance = stream(key[0], "policies of curation", key[1])
        self._layers: list[tuple[Tensor, Tensor]] = []
        for before, after in pairwise((len(material.inputs), _HIDDEN, _HIDDEN, self._loss.outputs)):
            weight = torch.randn(1, before, after, generator=chance) / before**0.5
            bias = torch.zeros(count, 1, after)
            self._layers.append((weight.repeat(count, 1, 1).requires_grad_(), bias.requires_grad_()))

    def train(self, weights: Array) -> None:
        """Fit each network to steps sampled in proportion to (candidate, step) weights."""
        most = int((weights > 0).sum(1).max())
        steps = min(_MOST_STEPS, max(_LEAST_STEPS, _EPOCHS * most // _BATCH))
        uniform = numpy_stream(self._key[0], "batches of curation", self._key[1]).random((steps, _BATCH))
        sums = np.cumsum(weights, axis=1)
        drawn = [np.searchsorted(row, uniform * row[-1], side="right") for row in sums]
        rows = np.minimum(np.stack(drawn, axis=1), weights.shape[1] - 1)  # (optimisation step, candidate, row)
        optimiser = torch.optim.Adam([each for layer in self._layers for each in layer], lr=_RATE)
        for step, batch in enumerate(rows):
            optimiser.param_groups[0]["lr"] = _RATE * (1 - step / steps)
            optimiser.zero_grad()
            self._loss.training(self._answers(batch), batch).mean((1, 2)).sum().backward()
            optimiser.step()

    def _answers(self, rows: Array) -> Tensor:
        """(candidate, row, output) at (candidate, row) steps."""
        found = torch.from_numpy(np.asarray(self._material.inputs[:, rows], dtype=np.float32)).permute(1, 2, 0)
        for number, (weight, bias) in enumerate(self._layers):
            found = torch.baddbmm(bias, found, weight)
            found = found if number == len(self._layers) - 1 else found.relu()
        return found

    @torch.no_grad()
    def losses(self, steps: Array) -> Array:
        """(candidate, step) held-out losses."""
        rows = np.broadcast_to(steps, (len(self._layers[0][0]), len(steps)))
        return self._loss.held_out(self._answers(rows), rows)
