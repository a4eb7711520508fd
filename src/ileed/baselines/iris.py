"""Implicit reinforcement without interaction: hierarchical cloning whose subgoals are chosen by their value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from ileed._torch import resolve_device
from ileed.baselines.bcq import Bcq
from ileed.baselines.hbc import Hbc, Judge
from ileed.baselines.offline import FittedOffline, OfflinePolicy, Replay, at_least_one
from ileed.demonstrations import Demonstrations
from ileed.errors import SettingsError
from ileed.tasks import Progress

__all__ = ["Iris"]


@final
@dataclass(frozen=True, kw_only=True)
class Iris:
    """IRIS (Mandlekar et al., 2020): the planner and policy of HBC, and the critics of BCQ to choose among subgoals.

    Of `candidates` subgoals that the planner draws, the policy is told the one where BCQ's best action is worth most.
    It uses rewards, which behaviour cloning and ileed do not see. See docs/decisions/offline-baselines.md for what
    differs from robomimic.
    """

    uses_rewards: ClassVar[bool] = True

    hierarchy: Hbc = Hbc()  # noqa: RUF009 (frozen)
    """The planner and the policy."""
    value: Bcq = Bcq()  # noqa: RUF009 (frozen)
    """The value of being somewhere."""
    candidates: int = 100
    """Subgoals to choose from."""
    value_actions: int = 10
    """Actions drawn to value each."""

    def __post_init__(self) -> None:
        at_least_one(self, "candidates", "value_actions")
        if self.value_actions > self.value.candidates:
            raise SettingsError(
                f"value_actions is {self.value_actions}, but value draws only {self.value.candidates} candidates; "
                "raise value.candidates, or take fewer"
            )

    def fit(
        self, demonstrations: Demonstrations, *, seed: int, device: str = "auto", progress: Progress | None = None
    ) -> FittedOffline:
        """Learn from demonstrations with rewards and terminals; the same seed gives the same bits on a CPU."""
        replay = Replay(demonstrations, method="IRIS", with_rewards=True, device=resolve_device(device))
        total = self.hierarchy.steps + self.value.steps
        actor, hierarchy_curve = self.hierarchy.learn(replay, seed=seed, progress=_part(progress, 0, total))
        value, value_curve = self.value.learn(replay, seed=seed, progress=_part(progress, self.hierarchy.steps, total))
        judge = Judge(value, candidates=self.candidates, actions=self.value_actions)
        policy = OfflinePolicy(actor.judged_by(judge, seed=seed), replay.units)
        return FittedOffline(policy, {"hierarchy": hierarchy_curve, "value": value_curve}, self)


def _part(progress: Progress | None, before: int, total: int) -> Progress | None:
    return None if progress is None else lambda done, _: progress(before + done, total)
