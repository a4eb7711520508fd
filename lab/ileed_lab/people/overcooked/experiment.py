"""The experiment: does expertise of pairs in Overcooked go with their scores, which no model sees?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self, final

import numpy as np

from ileed import BiasedMixture, Demonstrations, Perfect, Persistent, SettingsError, UniformMixture
from ileed_lab.grid import AbstractExperiment, Setting
from ileed_lab.learners import Learner
from ileed_lab.people.learners import METHOD, Agreement, Compared, CrossFitted
from ileed_lab.people.measures import Outcomes, measure
from ileed_lab.people.overcooked.trials import Trial, read_trials
from ileed_lab.people.overcooked.views import ACTIONS, steps
from ileed_lab.records import Measured

__all__ = ["Overcooked", "demonstrations"]

MODELS = {
    "uniform": UniformMixture(),
    "persistent": Persistent(),
    "biased": BiasedMixture(),
    "persistent-biased": Persistent(biased=True),
}


@final
@dataclass(frozen=True)
class Overcooked(AbstractExperiment):
    """Pairs of people in five kitchens; a demonstrator is a pair, and an episode one of its trials.

    The score belongs to the pair, so both players' steps are the pair's. Trials of the experiment differ in the seeds
    of fits, folds and resampling.
    """

    data: Path | None = None
    name: str = "people/overcooked"
    trials: int = 1
    block: ClassVar[int] = 1
    data_file: ClassVar[str] = "overcooked_ai-1.1.0.tar.gz"

    def with_data(self, data: Path | None) -> Self:
        return replace(self, data=data)

    @property
    def plan(self) -> Mapping[str, Any]:
        return {} if self.data is None else {"data": _data(self.data).fingerprint()}

    def settings(self) -> Sequence[Setting]:
        return [{"demonstrators": "pairs"}]

    def methods(self, setting: Setting) -> Mapping[str, Learner]:
        models = {name: CrossFitted(replace(METHOD, demonstrator=model)) for name, model in MODELS.items()}
        cloning = replace(METHOD, expertise=Perfect())
        return {
            **models,
            "agreement": Agreement(cloning),
            "compare": Compared(replace(METHOD, steps=1_000), tuple(MODELS.values())),
        }

    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[Demonstrations]:
        return [_data(self._path)] * len(trials)

    def measure(self, setting: Setting, method: str, trial: int, fit: Any) -> Measured:
        played = _trials(self._path)
        outcomes = Outcomes(played, list(dict.fromkeys(each.person for each in played)))
        return measure(method)(fit, outcomes, trial)

    @property
    def _path(self) -> Path:
        if self.data is None:
            raise SettingsError(
                "people/overcooked learns from published trials: pass --data overcooked_ai-1.1.0.tar.gz, which "
                "`pip download overcooked-ai==1.1.0 --no-deps --no-binary :all:` fetches"
            )
        return self.data


def demonstrations(trials: Sequence[Trial]) -> Demonstrations:
    """The steps in which somebody did something: in most nobody presses a key."""
    rows = [(trial, number, *step) for number, trial in enumerate(trials) for step in steps(trial)]
    return Demonstrations(
        observations=np.stack([row[2] for row in rows]),
        actions=np.array([row[3] for row in rows]),
        demonstrator=np.array([row[0].person for row in rows]),
        episode=np.array([row[1] for row in rows]),
        names=tuple(dict.fromkeys(trial.person for trial in trials)),
        action_count=len(ACTIONS),
    )


@cache
def _trials(path: Path) -> list[Trial]:
    return read_trials(path)


@cache
def _data(path: Path) -> Demonstrations:
    return demonstrations(_trials(path))
