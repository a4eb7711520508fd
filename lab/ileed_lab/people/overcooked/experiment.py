"""The experiment: does expertise of pairs in Overcooked correlate with their scores, which no model sees?"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np

from ileed import (
    BiasedMixture,
    CategoricalMLP,
    Confusion,
    Demonstrations,
    Perfect,
    Persistent,
    UniformMixture,
)
from ileed.model.demonstrators import AbstractDemonstratorModel
from ileed_lab.grid import AbstractFileExperiment, Setting
from ileed_lab.learners import Learner
from ileed_lab.people import learners
from ileed_lab.people.learners import Agreement, Agreements, Compared, CrossFitted
from ileed_lab.people.measures import Outcomes, measure
from ileed_lab.people.overcooked.trials import Trial, read_trials
from ileed_lab.people.overcooked.views import ACTIONS, steps
from ileed_lab.records import Measured

__all__ = ["METHOD", "MODELS", "AbstractOvercooked", "Overcooked", "demonstrations", "pairs_of", "trials_of"]

METHOD = replace(learners.METHOD, policy=CategoricalMLP(hidden=(64, 64)))
"""That of Hanabi, with a network chosen by what cloning makes of held-out games, before any score was looked at."""
MODELS: Mapping[str, AbstractDemonstratorModel[Any]] = {
    "uniform": UniformMixture(),
    "shared-habit": BiasedMixture(shared=True),
    "persistent": Persistent(),
    "biased": BiasedMixture(),
    "persistent-biased": Persistent(biased=True),
    "confusion": Confusion(),
}


@dataclass(frozen=True)
class AbstractOvercooked(AbstractFileExperiment):
    """An experiment on the published games of pairs."""

    block: ClassVar[int] = 1
    data_file: ClassVar[str] = "overcooked_ai-1.1.0.tar.gz"
    source: ClassVar[str] = (
        "published games: pass --data overcooked_ai-1.1.0.tar.gz, which "
        "`pip download overcooked-ai==1.1.0 --no-deps --no-binary :all:` fetches"
    )

    def fingerprint(self) -> str:
        return pairs_of(self.file).fingerprint


@final
@dataclass(frozen=True)
class Overcooked(AbstractOvercooked):
    """Pairs of demonstrators in five kitchens; a demonstrator is a pair, and an episode one of its games.

    The score belongs to the pair, so both players' steps are the pair's. Trials of the experiment differ in the seeds
    of fits, folds and resampling.
    """

    name: str = "people/overcooked"
    trials: int = 1

    def settings(self) -> Sequence[Setting]:
        return [{"demonstrators": "pairs"}]

    def methods(self, setting: Setting) -> Mapping[str, Learner]:
        models = {name: CrossFitted(replace(METHOD, demonstrator=model)) for name, model in MODELS.items()}
        return {
            **models,
            "agreement": Agreement(replace(METHOD, expertise=Perfect())),
            "pace": Pace(),
            "compare": Compared(replace(METHOD, steps=1_000), tuple(MODELS.values())),
        }

    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[Demonstrations]:
        return [pairs_of(self.file)] * len(trials)

    def measure(self, setting: Setting, method: str, trial: int, fit: Any) -> Measured:
        played = trials_of(self.file)
        outcomes = Outcomes(played, list(dict.fromkeys(each.person for each in played)))
        return measure("agreement" if method == "pace" else method)(fit, outcomes, trial)


@final
@dataclass(frozen=True)
class Pace:
    """An index that looks at no action: how many steps of a game have one, whatever it is."""

    def fit(self, demonstrations: Demonstrations, *, seed: int, device: str = "auto") -> Any:
        began, made = time.monotonic(), np.bincount(demonstrations.episode)
        return Agreements(made, np.ones(len(made)), 0.0, time.monotonic() - began)


def demonstrations(trials: Sequence[Trial]) -> Demonstrations:
    """The steps in which a demonstrator did something: in more than half of them a player presses no key."""
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
def trials_of(path: Path) -> list[Trial]:
    """Every game of the source package, read once."""
    return read_trials(path)


@cache
def pairs_of(path: Path) -> Demonstrations:
    """The steps of all games, made once."""
    return demonstrations(trials_of(path))
