"""The critic of GAIL: a function of observation and action that takes the place of the reward.

Among functions f of slope about one the critic maximises the Wasserstein distance between the demonstrations and the
steps that the policy takes,

    E_demonstrations f(s, a) - E_policy f(s, a) - penalty * E_lines (|grad f| - 1)^2,

where the penalty is taken at random points of lines between the two. Adding a constant to f does not change the
distance, so where episodes differ in length the constant decides whether ending an episode pays; `Behaviour` says how
that is settled.

I. Gulrajani, F. Ahmed, M. Arjovsky, V. Dumoulin and A. Courville. Improved Training of Wasserstein GANs. *NeurIPS*,
2017. <https://arxiv.org/abs/1704.00028>
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ileed.model.nets import uniform

__all__ = ["Behaviour", "Contrast", "Critic", "scores", "slopes"]

Layers = Sequence[tuple[Tensor, Tensor]]
"""Weight (out, in) and bias (out,) of each layer."""

OBSERVATION_SCALE = 5
"""Centred observations are divided by this, so that most inputs are between -1 and 1, as those of a one-hot action."""
ABSORBING = 0.25
"""Value of the input that marks the absorbing state. It is small, since a slope of one over a large distance would make
the value of ending an episode dominate that of acting."""
LINES = 1_000
"""Points at which the slope is penalised in every optimisation step."""


@final
@dataclass(frozen=True, eq=False)
class Behaviour:
    """Steps that were taken in a task, and how many steps their episodes would have spent in an absorbing state.

    An episode that the task ended after T of at most H steps stands for T steps and H - T more in one absorbing state,
    so that all episodes have H steps. Those steps need not be played: with f(absorbing) = c the padded return is
    sum_t f(s_t, a_t) + (H - T) c = H c + sum_t (f(s_t, a_t) - c), which is the return of the unpadded episode under the
    reward f - c (and with a discount too, for endless padding). Only the critic needs the weight of the absorbing
    state, to learn c.
    """

    observations: npt.NDArray[np.uint8]
    """(step, feature)."""
    actions: npt.NDArray[np.int64]
    """(step,)."""
    absorbed: int = 0
    """Steps in the absorbing state, summed over episodes; 0 where horizons are variable."""
    ends: int = 0
    """Episodes that entered it."""

    def __len__(self) -> int:
        return len(self.actions)


@final
@dataclass(frozen=True, eq=False)
class Contrast:
    """Two behaviours side by side: each distinct (observation, action) once, and the absorbing state in the last row.

    Counting equal steps once makes the distance exact and cheap: ten thousand steps hold a few hundred distinct ones in
    the easier tasks, and steps that both behaviours share cancel before the critic sees them. Inputs that never vary
    are left out: centred, they are zero.
    """

    inputs: Tensor
    """The critic's inputs, (row, used): those that are not zero in every row."""
    used: Tensor
    """Which inputs these are, (used,)."""
    weight: Tensor
    """Share of the demonstrated time minus share of the policy's time, (row,)."""
    demonstrated: Tensor
    """Probability of a row to be one end of a line, (row,): by steps, where an end of an episode counts as one."""
    generated: Tensor
    """Probability of a row to be the other end, (row,), from the policy's steps."""
    row: Tensor
    """The row of each of the policy's steps, (step,)."""

    def lines(self, count: int, generator: torch.Generator) -> Tensor:
        """Random points between demonstrated and generated rows, (count, input)."""
        one, other = (
            torch.multinomial(probability, count, replacement=True, generator=generator)
            for probability in (self.demonstrated, self.generated)
        )
        return torch.lerp(self.inputs[one], self.inputs[other], torch.rand(count, 1, generator=generator))


@final
class Critic:
    """A network with rectifiers that learns to tell demonstrations from the policy's steps.

    `kept` is the probability of a hidden unit to take part in an optimisation step (one minus the dropout rate); one
    mask serves the whole step, so that each is a step of one smaller network.
    """

    def __init__(
        self,
        *,
        centre: npt.NDArray[np.floating],
        action_count: int,
        hidden: Sequence[int],
        learning_rate: float,
        kept: float,
        penalty: float,
        clip: float,
        generator: torch.Generator,
    ) -> None:
        self._centre, self._action_count = centre.astype(np.float32), action_count
        self._kept, self._penalty, self._clip, self._generator = kept, penalty, clip, generator
        sizes = (len(centre) + action_count + 1, *hidden, 1)
        self._layers = [
            (_random_parameter((after, before), before, generator), _random_parameter((after,), before, generator))
            for before, after in pairwise(sizes)
        ]
        self._parameters = [tensor for layer in self._layers for tensor in layer]
        self._optimiser = torch.optim.RMSprop(self._parameters, lr=learning_rate, alpha=0.9)

    def contrast(self, demonstrated: Behaviour, generated: Behaviour) -> Contrast:
        """Both behaviours as the critic compares them."""
        observations = np.concatenate([demonstrated.observations, generated.observations])
        actions = np.concatenate([demonstrated.actions, generated.actions])
        first, row = _distinct_rows(np.column_stack([observations, actions.astype(np.uint8)]))
        absorbing = len(first)
        inputs = np.zeros((absorbing + 1, len(self._centre) + self._action_count + 1), dtype=np.float32)
        inputs[:-1, : len(self._centre)] = (observations[first] - self._centre) / OBSERVATION_SCALE
        inputs[np.arange(absorbing), len(self._centre) + actions[first]] = 1
        inputs[-1, -1] = ABSORBING
        rows = row[: len(demonstrated)], row[len(demonstrated) :]
        steps = [np.bincount(own, minlength=absorbing + 1).astype(np.float32) for own in rows]
        both = (demonstrated, generated)
        time = [_shares(count, absorbing, own.absorbed) for count, own in zip(steps, both, strict=True)]
        probability = [_shares(count, absorbing, own.ends) for count, own in zip(steps, both, strict=True)]
        used = np.flatnonzero(inputs.any(axis=0))
        return Contrast(
            inputs=torch.from_numpy(inputs[:, used]),
            used=torch.from_numpy(used),
            weight=torch.from_numpy(time[0] - time[1]),
            demonstrated=torch.from_numpy(probability[0]),
            generated=torch.from_numpy(probability[1]),
            row=torch.from_numpy(rows[1]),
        )

    def learn(self, contrast: Contrast, *, epochs: int) -> None:
        """Take one optimisation step an epoch, each over all rows."""
        for _ in range(epochs):
            layers = self._with_dropout(contrast.used)
            distance = contrast.weight @ scores(layers, contrast.inputs)
            slope = slopes(layers, contrast.lines(LINES, self._generator))
            loss = self._penalty * (slope - 1).square().mean() - distance
            self._optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self._parameters, self._clip)
            self._optimiser.step()

    @torch.no_grad()
    def scores(self, contrast: Contrast) -> Tensor:
        """The score of every row, (row,), by the whole network."""
        (weight, bias), *rest = self._layers
        return scores([(weight[:, contrast.used], bias), *rest], contrast.inputs)

    def _with_dropout(self, used: Tensor) -> Layers:
        """The network on the used inputs, with some hidden units dropped and the others scaled up to compensate."""
        (weight, bias), *rest = self._layers
        return [(weight[:, used], bias), *((after * self._mask(after.shape[1]), bias) for after, bias in rest)]

    def _mask(self, units: int) -> Tensor:
        return (torch.rand(units, generator=self._generator) < self._kept) / self._kept


def scores(layers: Layers, inputs: Tensor) -> Tensor:
    """The network's output, (row,), for inputs (row, input)."""
    *hidden, (weight, bias) = layers
    for hidden_weight, hidden_bias in hidden:
        inputs = torch.addmm(hidden_bias, inputs, hidden_weight.T).relu()
    return inputs @ weight[0] + bias


def slopes(layers: Layers, inputs: Tensor) -> Tensor:
    """The norm of the output's gradient with respect to the input, (row,), for inputs (row, input).

    A network with rectifiers is linear around any input, so the gradient is the product of the weights of those units
    that are active there; written out, it needs no second differentiation.
    """
    *hidden, (weight, _) = layers
    active = []
    for hidden_weight, hidden_bias in hidden:
        values = torch.addmm(hidden_bias, inputs, hidden_weight.T)
        active.append(values > 0)
        inputs = values.relu()
    gradient = weight
    for (hidden_weight, _), units in zip(reversed(hidden), reversed(active), strict=True):
        gradient = (gradient * units) @ hidden_weight
    return gradient.norm(dim=1)


def _random_parameter(shape: tuple[int, ...], inputs: int, generator: torch.Generator) -> Tensor:
    return uniform(shape, inputs**-0.5, [generator])[0].requires_grad_()


def _shares(steps: npt.NDArray[np.float32], absorbing: int, more: int) -> npt.NDArray[np.float32]:
    counts = steps.copy()
    counts[absorbing] = more
    return np.asarray(counts / counts.sum())


def _distinct_rows(rows: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The first row of each distinct kind, and the kind of every row."""
    whole = np.ascontiguousarray(rows).view(np.dtype((np.void, rows.shape[1]))).ravel()
    kinds: dict[Any, int] = {}
    kind = np.fromiter((kinds.setdefault(row, len(kinds)) for row in whole.tolist()), np.int64, len(rows))
    return np.unique(kind, return_index=True)[1], kind
