"""Implicit reinforcement without interaction: hierarchical behaviour cloning with subgoals chosen by their value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from ileed import SettingsError
from ileed_lab.baselines.bcq import Bcq
from ileed_lab.baselines.hbc import Hbc, HierarchicalActor, SubgoalValue
from ileed_lab.baselines.offline import AbstractOffline, Start, at_least_one
from ileed_lab.baselines.replay import Replay

__all__ = ["Iris"]


@final
@dataclass(frozen=True, kw_only=True)
class Iris(AbstractOffline):
    """IRIS: the planner and the policy of HBC, and the critics of BCQ to choose among subgoals.

    The losses are those of `Hbc` and of `Bcq`, each minimised by itself. The planner samples `candidates` subgoals g_k,
    and the policy follows

        argmax_k V(g_k),  V(g) = max_i [w min_j Q_j(g, a_i) + (1 - w) max_j Q_j(g, a_i)],

    with `value_actions` actions a_i sampled from BCQ's autoencoder at g.

    IRIS uses rewards, which behaviour cloning and ileed do not see. docs/decisions/offline-baselines.md lists what
    differs from robomimic.

    A. Mandlekar, F. Ramos, B. Boots, S. Savarese, L. Fei-Fei, A. Garg and D. Fox. IRIS: Implicit Reinforcement without
    Interaction at Scale for Learning Control from Offline Robot Manipulation Data. *ICRA*, 2020.
    <https://arxiv.org/abs/1911.05321>
    """

    title: ClassVar[str] = "IRIS"
    uses_rewards: ClassVar[bool] = True

    hierarchy: Hbc = Hbc()  # noqa: RUF009 (frozen)
    """The planner and the policy."""
    value: Bcq = Bcq()  # noqa: RUF009 (frozen)
    """The value of a state."""
    candidates: int = 100
    """Subgoals to choose from."""
    value_actions: int = 10
    """Actions sampled to estimate the value of each."""

    def __post_init__(self) -> None:
        at_least_one(self, "candidates", "value_actions")
        if self.value_actions > self.value.candidates:
            raise SettingsError(
                f"value_actions is {self.value_actions}, but value samples only {self.value.candidates} candidates; "
                "raise value.candidates, or take fewer"
            )

    def start(self, replay: Replay, *, seed: int) -> Start[HierarchicalActor]:
        actor, hierarchy_trainers = self.hierarchy.start(replay, seed=seed)
        value, value_trainers = self.value.start(replay, seed=seed)
        choice = SubgoalValue(value, candidates=self.candidates, actions=self.value_actions)
        return Start(actor.choose_by(choice, seed=seed), {**hierarchy_trainers, **value_trainers})
