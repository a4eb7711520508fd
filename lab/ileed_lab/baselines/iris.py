"""Implicit reinforcement without interaction: hierarchical cloning whose subgoals are chosen by their value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from ileed.errors import SettingsError
from ileed_lab.baselines.bcq import Bcq
from ileed_lab.baselines.hbc import GuidedActor, Hbc, Judge
from ileed_lab.baselines.offline import AbstractOffline, Beginner, at_least_one
from ileed_lab.baselines.replay import Replay

__all__ = ["Iris"]


@final
@dataclass(frozen=True, kw_only=True)
class Iris(AbstractOffline):
    """IRIS (Mandlekar et al., 2020): the planner and policy of HBC, and the critics of BCQ to choose among subgoals.

    Of `candidates` subgoals that the planner draws, the policy is told the one where BCQ's best action is worth most.
    It uses rewards, which behaviour cloning and ileed do not see. See docs/decisions/offline-baselines.md for what
    differs from robomimic.
    """

    title: ClassVar[str] = "IRIS"
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

    def begin(self, replay: Replay, *, seed: int) -> Beginner[GuidedActor]:
        guided, of_hierarchy = self.hierarchy.begin(replay, seed=seed)
        value, of_value = self.value.begin(replay, seed=seed)
        judge = Judge(value, candidates=self.candidates, actions=self.value_actions)
        return Beginner(guided.judged_by(judge, seed=seed), {**of_hierarchy, **of_value})
