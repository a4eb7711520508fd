"""Progress, learning curves and outcomes of an optimisation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from statistics import mode
from typing import Any, NamedTuple, final

import numpy as np

from ileed.data import Array
from ileed.model.joint import Joint

_ENOUGH_STEPS = 200  # to learn the marginal frequencies of actions
_WORSE, _FAR_WORSE = 0.01, 1.0  # nats per dimension of an action
_WRONG_END = 8.0  # nats for the wrong value of a binary dimension, whose standard deviation is fixed at a quarter


class Outcome(StrEnum):
    """How a fit ended, as a sentence; `History.outcome` states the test."""

    CONVERGED = "the best restart stopped improving"
    STEPS_SPENT = "the steps were spent while the cost still fell: raise `steps` if held-out episodes gain by it"
    NO_BETTER_THAN_GUESSING = (
        "the best restart stopped improving and explains the actions no better than guessing: "
        "check that observations, actions and demonstrators belong together"
    )
    WORSE_THAN_GUESSING = (
        "the fit is worse than guessing the action without looking at the observation: check `ileed inspect`, lower "
        "learning_rate, or leave normalise at its default"
    )


class Progress(NamedTuple):
    """Progress in a `stage` of a fit; `nats_per_action` is the cost of the best member so far.

    The cost is NaN before it is known, and in the stage "rating". `unit` is what `step` counts: optimisation steps;
    steps of the data in "rating"; blocks of restarts or models if an executor fits them.
    """

    step: int
    steps: int
    nats_per_action: float
    stage: str = "fitting"
    unit: str = "steps"


ProgressCallback = Callable[[Progress], None]


@final
@dataclass(frozen=True, eq=False)
class History:
    """The learning curves of all members: costs in nats per action, lower is better.

    With mini-batches a cost is the running mean over an epoch, or over 100 batches if an epoch is longer; the last
    record is the cost of all the data. `held_out` is the cost on held-out episodes, if there are any.
    """

    step: Array  # (record,)
    nats_per_action: Array  # (record, member)
    held_out: Array | None = None  # (record, member)

    def outcome(self, member: int, guessing_nats: float) -> Outcome:
        """Whether a member was still improving at the end, and whether it learned anything.

        It converged if its mean cost over the last tenth of the steps is below that of the tenth before by less than
        0.001 nats and by less than a twentieth of its total improvement; a difference below two standard errors counts
        as none. It learned something if its cost is below `guessing_nats`, the cost of the best guess that ignores the
        observation, by more than 0.001 nats.
        """
        costs = self.nats_per_action[:, member]
        late, last = (
            costs[(self.step > low * self.step[-1]) & (self.step <= high * self.step[-1])]
            for low, high in ((0.8, 0.9), (0.9, 1.0))
        )
        if min(len(late), len(last)) < 2:
            return Outcome.STEPS_SPENT
        improvement = late.mean() - last.mean()
        noise = 2 * np.hypot(late.std(ddof=1) / len(late) ** 0.5, last.std(ddof=1) / len(last) ** 0.5)
        whole = costs[0] - costs[-1]
        if not improvement < min(max(1e-3, noise), max(0.05 * whole, noise)):
            return Outcome.STEPS_SPENT
        return Outcome.CONVERGED if costs[-1] < guessing_nats - 1e-3 else Outcome.NO_BETTER_THAN_GUESSING

    def rows(self) -> Iterator[dict[str, Any]]:
        """One plain mapping per record, as in history.jsonl."""
        for k, step in enumerate(self.step.tolist()):
            row: dict[str, Any] = {"step": step, "nats_per_action": _rounded(self.nats_per_action[k])}
            yield row if self.held_out is None else row | {"held_out": _rounded(self.held_out[k])}

    @classmethod
    def of(cls, rows: list[Mapping[str, Any]]) -> History:
        held_out = [row["held_out"] for row in rows if "held_out" in row]
        return cls(
            step=np.array([row["step"] for row in rows]),
            nats_per_action=np.array([row["nats_per_action"] for row in rows], dtype=np.float64),
            held_out=np.array(held_out, dtype=np.float64) if held_out else None,
        )


@final
@dataclass(frozen=True, eq=False)
class OptimisationResult:
    """All members of an optimisation, with their costs in nats per action."""

    joint: Joint
    nats_per_action: Array  # (member,) of the whole data set, or of the held-out episodes
    history: History
    guessing_nats: float  # the cost of the best guess that ignores the observation

    @property
    def chosen(self) -> int:
        """The member with the lowest cost."""
        return int(np.nanargmin(self.nats_per_action))

    @property
    def outcome(self) -> Outcome:
        """How the member with the lowest cost ended."""
        return self.outcome_of([self.chosen])

    def outcome_of(self, members: Sequence[int]) -> Outcome:
        """How most of these members ended, the likeliest first, or whether they are worse than guessing.

        They are if their mean cost, on held-out episodes if there are any, exceeds `guessing_nats` by 0.01 nats per
        dimension of the action after at least 200 steps. After fewer steps the margin is 1 nat, and continuous
        actions, whose density has no bound, are not judged.
        """
        sizes, is_short = self.joint.sizes, self.history.step[-1] < _ENOUGH_STEPS
        if sizes.action_count:
            margin = _FAR_WORSE if is_short else _WORSE
        else:
            margin = inf if is_short else sizes.actions * _WORSE + len(sizes.binary_dimensions) * _WRONG_END
        if self.nats_per_action[list(members)].mean() > self.guessing_nats + margin:
            return Outcome.WORSE_THAN_GUESSING
        return mode(self.history.outcome(member, self.guessing_nats) for member in members)

    def part(self, joint: Joint, first: int, guessing_nats: float) -> OptimisationResult:
        """The result of one model among several that were optimised side by side."""
        own = slice(first, first + len(next(joint.parameters())))
        held_out = None if self.history.held_out is None else self.history.held_out[:, own]
        history = History(self.history.step, self.history.nats_per_action[:, own], held_out)
        return OptimisationResult(joint, self.nats_per_action[own], history, guessing_nats)


def _rounded(costs: Array) -> list[float | None]:
    return [round(float(cost), 6) if np.isfinite(cost) else None for cost in costs]
