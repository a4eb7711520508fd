"""What a climb tells: where it is, how its costs went, and how it ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, final

import numpy as np

from ileed.demonstrations import Array
from ileed.model.joint import Joint


class Outcome(StrEnum):
    """How a climb ended, as a sentence."""

    CONVERGED = "the best restart stopped improving"
    STEPS_SPENT = "the step budget ran out first: raise `steps`, or read the curve in `history`"


_SETTLED_NATS = 1e-3  # an improvement below this over the last tenth of the steps is called converged


class Progress(NamedTuple):
    """Where a climb is: `nats_per_action` is the best member's cost so far."""

    step: int
    steps: int
    nats_per_action: float


Watcher = Callable[[Progress], None]


@final
@dataclass(frozen=True, eq=False)
class History:
    """The learning curve of every member: costs in nats per action, lower is better.

    `held_out` is the cost on held-out episodes, where there are any.
    """

    step: Array  # (record,)
    nats_per_action: Array  # (record, member)
    held_out: Array | None = None  # (record, member)

    @property
    def outcome(self) -> Outcome:
        """Whether the best member was still improving when the steps were spent."""
        best = np.nan_to_num(self.nats_per_action, nan=np.inf).min(axis=1)
        before, last = best[max(0, int(len(best) * 0.9) - 1)], best[-1]
        settled = len(best) > 1 and np.isfinite(last) and before < last + _SETTLED_NATS
        return Outcome.CONVERGED if settled else Outcome.STEPS_SPENT

    def rows(self) -> Iterator[dict[str, Any]]:
        """One plain mapping for each record, as history.jsonl holds them."""
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
class Ascent:
    """What a climb found: all members as they ended, and each one's cost in nats per action."""

    joint: Joint
    nats_per_action: Array  # (member,) of the whole data set, or of the held-out episodes
    history: History
    outcome: Outcome

    @property
    def chosen(self) -> int:
        """The member of least cost."""
        return int(np.nanargmin(self.nats_per_action))

    def part(self, joint: Joint, first: int) -> Ascent:
        """What was found for the members of one model among several that climbed side by side."""
        own = slice(first, first + len(next(joint.parameters())))
        held_out = None if self.history.held_out is None else self.history.held_out[:, own]
        history = History(self.history.step, self.history.nats_per_action[:, own], held_out)
        return Ascent(joint, self.nats_per_action[own], history, history.outcome)


def _rounded(costs: Array) -> list[float | None]:
    return [round(float(cost), 6) if np.isfinite(cost) else None for cost in costs]
