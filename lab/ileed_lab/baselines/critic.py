"""The critic: a function of observation and action that is high where demonstrators go and low where practice goes.

It stands in for the reward. Among functions f of slope about one it maximises the Wasserstein gap

    E_demonstrations f(s, a) - E_practice f(s, a),

and the slope is kept near one by a penalty on lines between the two: (|grad f| - 1)^2. Adding a constant to f changes
nothing in the gap, so where episodes differ in length the constant decides whether living or dying pays. `Behaviour`
says how that is settled.
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

from ileed.nets import uniform

__all__ = ["Behaviour", "Contrast", "Critic", "scores", "slopes"]

Layers = Sequence[tuple[Tensor, Tensor]]
"""Weight (out, in) and bias (out,) of each layer."""

UNIT = 5
"""What an observation is divided by, its mean taken off: then most numbers of a view lie within one of zero, as an
action's do, a single 1 among zeros."""
ABSORBING = 0.25
"""How far the absorbing state stands off along an input of its own: apart, yet close to everything, since a slope of
one over a long way would let the worth of ending drown that of acting."""
LINES = 1_000
"""Lines on which the slope is looked at in every gradient step."""


@final
@dataclass(frozen=True, eq=False)
class Behaviour:
    """Steps that were taken in a task, and how many steps their episodes would have spent in an absorbing state.

    An episode that the task ended after T of at most H steps stands for T steps and H - T more in one absorbing state,
    so that all episodes have H. Nobody needs to play those: with f(absorbing) = c the padded return is
    sum_t f(s_t, a_t) + (H - T) c = H c + sum_t (f(s_t, a_t) - c), which is the return of the unpadded episode under the
    reward f - c (and so it is with a discount, for endless padding). Only the critic must be told the weight of the
    absorbing state, to learn c.
    """

    observations: npt.NDArray[np.uint8]
    """What was seen, (step, feature)."""
    actions: npt.NDArray[np.int64]
    """What was done, (step,)."""
    absorbed: int = 0
    """Steps in the absorbing state, of all episodes together; 0 where horizons are variable."""
    ends: int = 0
    """Episodes that entered it."""

    def __len__(self) -> int:
        return len(self.actions)


@final
@dataclass(frozen=True, eq=False)
class Contrast:
    """Two behaviours side by side: each distinct (observation, action) once, and the absorbing state in the last row.

    Counting equal steps once makes the gap exact and cheap: ten thousand steps hold a few hundred distinct ones in the
    easier tasks. It also lets what both sides share cancel before the critic sees it. Inputs that never vary are left
    out: centred, they are zero.
    """

    inputs: Tensor
    """What the critic reads, (row, used): those of its inputs that are not zero in every row."""
    used: Tensor
    """Which inputs these are, (used,)."""
    weight: Tensor
    """Share of the demonstrated time minus share of the practised time, (row,)."""
    demonstrated: Tensor
    """Chance of a row to be the one end of a line, (row,): by steps taken, every end of an episode counting as one."""
    practised: Tensor
    """Chance of a row to be the other end, (row,)."""
    row: Tensor
    """The row of each practised step, (step,)."""

    def lines(self, count: int, generator: torch.Generator) -> Tensor:
        """Random points between demonstrated and practised rows, (count, input)."""
        one, other = (
            torch.multinomial(chance, count, replacement=True, generator=generator)
            for chance in (self.demonstrated, self.practised)
        )
        return torch.lerp(self.inputs[one], self.inputs[other], torch.rand(count, 1, generator=generator))


@final
class Critic:
    """A network with rectifiers that learns to tell demonstrations from practice.

    `kept` is the probability of a hidden unit to take part in a gradient step; one draw serves the whole step, so each
    is a step of one smaller network.
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
            (_drawn((after, before), before, generator), _drawn((after,), before, generator))
            for before, after in pairwise(sizes)
        ]
        self._parameters = [tensor for layer in self._layers for tensor in layer]
        self._optimiser = torch.optim.RMSprop(self._parameters, lr=learning_rate, alpha=0.9)

    def contrast(self, demonstrated: Behaviour, practised: Behaviour) -> Contrast:
        """Both behaviours as the critic compares them."""
        observations = np.concatenate([demonstrated.observations, practised.observations])
        actions = np.concatenate([demonstrated.actions, practised.actions])
        first, row = _distinct(np.column_stack([observations, actions.astype(np.uint8)]))
        absorbing = len(first)
        inputs = np.zeros((absorbing + 1, len(self._centre) + self._action_count + 1), dtype=np.float32)
        inputs[:-1, : len(self._centre)] = (observations[first] - self._centre) / UNIT
        inputs[np.arange(absorbing), len(self._centre) + actions[first]] = 1
        inputs[-1, -1] = ABSORBING
        rows = row[: len(demonstrated)], row[len(demonstrated) :]
        steps = [np.bincount(own, minlength=absorbing + 1).astype(np.float32) for own in rows]
        both = (demonstrated, practised)
        time = [_shares(count, absorbing, own.absorbed) for count, own in zip(steps, both, strict=True)]
        chance = [_shares(count, absorbing, own.ends) for count, own in zip(steps, both, strict=True)]
        used = np.flatnonzero(inputs.any(axis=0))
        return Contrast(
            inputs=torch.from_numpy(inputs[:, used]),
            used=torch.from_numpy(used),
            weight=torch.from_numpy(time[0] - time[1]),
            demonstrated=torch.from_numpy(chance[0]),
            practised=torch.from_numpy(chance[1]),
            row=torch.from_numpy(rows[1]),
        )

    def learn(self, contrast: Contrast, *, epochs: int) -> None:
        """Take one gradient step an epoch, each over all rows."""
        for _ in range(epochs):
            layers = self._thinned(contrast.used)
            gap = contrast.weight @ scores(layers, contrast.inputs)
            steepness = slopes(layers, contrast.lines(LINES, self._generator))
            loss = self._penalty * (steepness - 1).square().mean() - gap
            self._optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self._parameters, self._clip)
            self._optimiser.step()

    @torch.no_grad()
    def scores(self, contrast: Contrast) -> Tensor:
        """The score of every row, (row,), by the whole network."""
        (weight, bias), *rest = self._layers
        return scores([(weight[:, contrast.used], bias), *rest], contrast.inputs)

    def _thinned(self, used: Tensor) -> Layers:
        """The network without its other inputs and without some hidden units, the rest making up for these."""
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
    """The length of the output's gradient with respect to the input, (row,), for inputs (row, input).

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


def _drawn(shape: tuple[int, ...], inputs: int, generator: torch.Generator) -> Tensor:
    return uniform(shape, inputs**-0.5, [generator])[0].requires_grad_()


def _shares(steps: npt.NDArray[np.float32], absorbing: int, more: int) -> npt.NDArray[np.float32]:
    counts = steps.copy()
    counts[absorbing] = more
    return np.asarray(counts / counts.sum())


def _distinct(rows: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The first row of each distinct kind, and the kind of every row."""
    whole = np.ascontiguousarray(rows).view(np.dtype((np.void, rows.shape[1]))).ravel()
    kinds: dict[Any, int] = {}
    kind = np.fromiter((kinds.setdefault(row, len(kinds)) for row in whole.tolist()), np.int64, len(rows))
    return np.unique(kind, return_index=True)[1], kind
