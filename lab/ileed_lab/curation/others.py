"""Other projects' trainers, each in an environment of its own, on the episodes that curation keeps and on others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

from ileed import Demonstrations
from ileed.envs.minigrid import MiniGridTask
from ileed.envs.simulation import POPULATIONS
from ileed_lab.curation import foreign
from ileed_lab.curation.experiment import FIRST_TRIAL, CurationMiniGrid
from ileed_lab.curation.subsets import OTHERS, Curator, Subset, select
from ileed_lab.grid import AbstractExperiment, Setting
from ileed_lab.in_turn import AbstractInTurn
from ileed_lab.minigrid.measures import EPISODES, STEPS, TASKS, mean_reward
from ileed_lab.records import Measured

__all__ = ["WHERE", "CurationTrainers", "Prepared", "Taught"]

WHERE: Mapping[str, Sequence[Setting]] = {
    "imitation-bc": [{"task": task, "population": group} for group in ("beta-1", "unif") for task in TASKS],
    "robomimic-bc-rnn": [{"task": task, "population": group} for group in ("beta-1", "unif") for task in TASKS],
    "lerobot-act": [{"task": "minigrid/empty", "population": "beta-1"}],
}
"""The populations in which each of these trainers is tried: one competent demonstrator among ten, and ten of all
skills."""


@final
@dataclass(eq=False)
class Prepared:
    """The episodes that another project's trainer will learn from; it does so when it is measured."""

    data: Demonstrations
    subset: Subset
    seed: int
    seconds: float = 0.0
    """That training took, once it is over."""


@final
@dataclass(frozen=True)
class Taught(AbstractInTurn):
    """A trainer of another project, on the episodes of a selection."""

    trainer: str
    selection: str
    skills: tuple[float, ...]
    curator: Curator = Curator()  # noqa: RUF009 (frozen)
    devices: ClassVar[tuple[str, ...]] = ("cpu",)

    def fit(self, demonstrations: Demonstrations, *, seed: int, device: str = "auto") -> Prepared:
        """Choose the episodes."""
        curation = None
        if self.selection != "everything":
            curation = self.curator(demonstrations, seed=seed, device="cpu")
        chosen = select(self.selection, demonstrations, curation=curation, skills=self.skills, seed=seed)
        return Prepared(demonstrations, chosen, seed)


@final
@dataclass(frozen=True)
class CurationTrainers(AbstractExperiment):
    """Trainers of other projects in some of the populations, on each selection of their episodes."""

    name: str = "curation/trainers"
    trials: int = 5
    block: ClassVar[int] = 2

    @property
    def plan(self) -> Mapping[str, Any]:
        return {"episodes": EPISODES, "steps": STEPS, "first_trial": FIRST_TRIAL}

    def settings(self) -> Sequence[Setting]:
        return [{"trainer": trainer, **setting} for trainer, settings in WHERE.items() for setting in settings]

    def methods(self, setting: Setting) -> Mapping[str, Any]:
        selections = ["everything", "above", *(f"above-{other}" for other in OTHERS)]
        if foreign.TRAINERS[setting["trainer"]].takes_weights:
            selections.append("weighted")
        skills = POPULATIONS[setting["population"]]
        return {selection: Taught(setting["trainer"], selection, skills) for selection in selections}

    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[Demonstrations]:
        return CurationMiniGrid().demonstrations(setting, trials)

    def task(self, setting: Setting) -> MiniGridTask:
        return CurationMiniGrid().task(setting)

    def measure(self, setting: Setting, method: str, trial: int, fit: Prepared) -> Measured:
        """The reward, the project's release and settings, and what the policy was learned from."""
        chosen = fit.subset.of(fit.data)
        with foreign.train(setting["trainer"], chosen, seed=fit.seed, episode_weights=fit.subset.weights) as policy:
            fit.seconds = policy.seconds
            reward = mean_reward(policy, self.task(setting), trial=FIRST_TRIAL + trial)
            made = {"release": policy.release, "trainer_settings": dict(policy.settings)}
        return {"reward": reward, **fit.subset.summary(fit.data, POPULATIONS[setting["population"]]), **made}
