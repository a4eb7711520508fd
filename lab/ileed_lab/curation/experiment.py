"""Does curation help? Policies learned from everything, from what curation keeps, and from as many other episodes."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, final

from ileed import CategoricalMLP, Demonstrations, Ileed, bc
from ileed.envs import as_actor
from ileed.envs.minigrid import MiniGridTask
from ileed.envs.simulation import POPULATIONS
from ileed_lab.curation.subsets import SELECTIONS, Curation, Curator, Subset, select
from ileed_lab.grid import AbstractExperiment, Setting
from ileed_lab.in_turn import AbstractInTurn, AbstractSideBySide
from ileed_lab.learners import likeliest
from ileed_lab.minigrid.measures import (
    EPISODES,
    STEPS,
    TASKS,
    demonstrations_of_trials,
    demonstrator_reward,
    mean_reward,
)
from ileed_lab.records import Measured

__all__ = ["COMPETENT", "FIRST_TRIAL", "OURS", "Cloning", "CurationMiniGrid", "Judging"]

COMPETENT = 0.9
"""A population has a competent demonstrator where the best one earns this share, or more, of what the expert does."""
FIRST_TRIAL = 1_000
"""Trial k has the demonstrators and the scoring episodes of trial 1,000 + k: what was tried while this was written was
tried on others."""
OURS: Mapping[str, Ileed] = {
    "bc": bc(),
    "bc-wide": bc(policy=CategoricalMLP(hidden=(32, 32)), restarts=1),
}
"""Our trainers: the paper's network, best of 20 restarts, and one of the usual width, fitted once."""


@final
@dataclass(frozen=True, eq=False)
class Trained:
    """A policy, what it was learned from, and the seconds that its fit took."""

    policy: Any
    summary: Measured
    seconds: float


@final
@dataclass(frozen=True)
class Cloning(AbstractSideBySide):
    """One of our trainers, on the episodes of a selection."""

    selection: str
    trainer: Ileed
    skills: tuple[float, ...]
    """True skill of the demonstrators in their order, for the oracle, and to tell what was kept."""
    curator: Curator = Curator()  # noqa: RUF009 (frozen)

    def subset(self, data: Demonstrations, *, seed: int, device: str) -> Subset:
        """The episodes of the selection."""
        curation = None if self.selection == "everything" else self.curator(data, seed=seed, device=device)
        return select(self.selection, data, curation=curation, skills=self.skills, seed=seed)

    def fit_each(
        self, datasets: Sequence[Demonstrations], *, seeds: Sequence[int], device: str = "auto"
    ) -> list[Trained]:
        """A fit to each subset; those without weights stand side by side."""
        subsets = [self.subset(data, seed=seed, device=device) for data, seed in zip(datasets, seeds, strict=True)]
        chosen = [subset.of(data) for subset, data in zip(subsets, datasets, strict=True)]
        began = time.monotonic()
        if self.selection == "weighted":
            policies = [
                self.trainer.fit(data, seed=seed, device=device, weights=subset.weights, check_width=False).policy
                for data, seed, subset in zip(chosen, seeds, subsets, strict=True)
            ]
        else:
            policies = [likeliest(each).policy for each in self.trainer.fit_each(chosen, seeds=seeds, device=device)]
        seconds = (time.monotonic() - began) / len(datasets)
        summary = [subset.summary(data, self.skills) for subset, data in zip(subsets, datasets, strict=True)]
        return [Trained(policy, each, seconds) for policy, each in zip(policies, summary, strict=True)]


@final
@dataclass(frozen=True)
class Judging(AbstractInTurn):
    """The fit by which episodes are curated: ILEED as it is by default, whose own policy is compared too."""

    curator: Curator = Curator()  # noqa: RUF009 (frozen)

    def fit(self, demonstrations: Demonstrations, *, seed: int, device: str = "auto") -> Trained:
        found = self.curator(demonstrations, seed=seed, device=device)
        return Trained(found.fitted.policy, _summary(found), float(found.fitted.provenance["seconds"]))


def _summary(found: Curation) -> Measured:
    """What the rules kept, in words, and the score's correlation with length where it is defined."""
    correlation = found.length_correlation
    return {
        "length_correlation": None if math.isnan(correlation) else correlation,
        "rules": dict(found.sentences),
    }


@final
@dataclass(frozen=True)
class CurationMiniGrid(AbstractExperiment):
    """Our trainers in every population of the paper's tables, on each selection of its episodes."""

    name: str = "curation/minigrid"
    trials: int = 10
    block: ClassVar[int] = 2

    @property
    def plan(self) -> Mapping[str, Any]:
        return {"episodes": EPISODES, "steps": STEPS, "first_trial": FIRST_TRIAL}

    def settings(self) -> Sequence[Setting]:
        return [{"task": task, "population": population} for task, population in product(TASKS, POPULATIONS)]

    def methods(self, setting: Setting) -> Mapping[str, Cloning | Judging | None]:
        skills = POPULATIONS[setting["population"]]
        cloned = {
            f"{name}-{selection}": Cloning(selection, trainer, skills)
            for name, trainer in OURS.items()
            for selection in SELECTIONS
        }
        return {"demonstrators": None, "ileed": Judging(), **cloned}

    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[Demonstrations]:
        skills = POPULATIONS[setting["population"]]
        return demonstrations_of_trials(setting["task"], {FIRST_TRIAL + trial: skills for trial in trials})

    def task(self, setting: Setting) -> MiniGridTask:
        """Played by minigrid wherever that is, so that all trainers meet the same episodes on every machine."""
        return MiniGridTask(setting["task"], engine="minigrid")

    def measure(self, setting: Setting, method: str, trial: int, fit: Trained | None) -> Measured:
        """The reward, and what the policy was learned from; of the best demonstrator and of the expert, the reward."""
        task, trial = self.task(setting), FIRST_TRIAL + trial
        if fit is None:
            best = max(POPULATIONS[setting["population"]])
            rewards = {
                name: demonstrator_reward(task, skill, episodes=EPISODES, trial=trial)["reward"]
                for name, skill in (("reward", best), ("expert", 1.0))
            }
            return rewards | {"skill": best}
        return {"reward": mean_reward(as_actor(fit.policy), task, trial=trial), **fit.summary}
