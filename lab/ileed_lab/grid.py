"""A grid: settings times methods times trials; each cell is a file with what every trial measured."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self, final

from ileed import Demonstrations, RunError, SettingsError, runs
from ileed.envs.abstract_task import AbstractTask
from ileed.parallel.runtime import stream
from ileed_lab.learners import Learner
from ileed_lab.records import Measured, read_cell, recorded_plan, recorded_settings, recorded_trial

__all__ = ["AbstractExperiment", "AbstractFileExperiment", "Cell", "Setting", "cells", "scoring_seed"]

Setting = Mapping[str, Any]
"""Where demonstrations come from, as in {"task": "minigrid/empty", "population": "unif"}."""


class AbstractExperiment(ABC):
    """A question that many trials answer: settings that produce data, methods that learn from them, and a measure.

    Laws: demonstrations depend on the setting and the trial alone, and all methods of a setting see the same; a trial's
    measurements depend on its demonstrations, method and number alone, so that trials may be run in any order, on any
    machine, and some of them later.
    """

    name: str
    """As in 'minigrid/populations'."""
    trials: int
    """How many the published table has, or ours where none is published."""
    block: ClassVar[int] = 5
    """Trials that a core runs as one job: enough for their fits to run side by side, few enough to lose little.

    With one, a core also runs one method at a time: for experiments whose fits take minutes."""
    data_file: ClassVar[str | None] = None
    """The name that the documentation gives to the file of demonstrations; None where demonstrations are simulated."""
    has_continuous_actions: ClassVar[bool] = False
    """Whether settings of `Ileed` that are None stand for those of continuous actions."""

    def with_data(self, data: Path | None) -> Self:
        """This experiment on a file of demonstrations; those that simulate their own refuse one."""
        if data is not None:
            raise SettingsError(f"{self.name} simulates its own demonstrations: leave out --data")
        return self

    @abstractmethod
    def settings(self) -> Sequence[Setting]:
        """Every setting, in the order of the table."""

    @abstractmethod
    def methods(self, setting: Setting) -> Mapping[str, Learner | None]:
        """The learners of a setting, by name; None where nothing is fitted and the demonstrators are measured."""

    @abstractmethod
    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[Demonstrations | None]:
        """The data of each of these trials; None where nothing is fitted."""

    def task(self, setting: Setting) -> AbstractTask:
        """The task in which learned policies are scored, if they are."""
        raise SettingsError(f"{self.name} has no task to play in")

    @abstractmethod
    def measure(self, setting: Setting, method: str, trial: int, fit: Any) -> Measured:
        """What is recorded of a trial; `fit` is an `Ensemble`, what a baseline returned, or None."""

    @property
    @abstractmethod
    def plan(self) -> Mapping[str, Any]:
        """The numbers that measurements depend on, such as episodes: results of different plans are not mixed."""


@dataclass(frozen=True)
class AbstractFileExperiment(AbstractExperiment):
    """An experiment that learns from a file of demonstrations; the catalogue lists it without one."""

    data: Path | None = None
    source: ClassVar[str]
    """What the experiment learns from and where the file comes from, for the error without one."""

    def with_data(self, data: Path | None) -> Self:
        return replace(self, data=data)

    @property
    def file(self) -> Path:
        if self.data is None:
            raise SettingsError(f"{self.name} learns from {self.source}", code="data-missing")
        return self.data

    @property
    def numbers(self) -> Mapping[str, Any]:
        """The plan without the file."""
        return {}

    @abstractmethod
    def fingerprint(self) -> Any:
        """A digest of the demonstrations in the file."""

    @property
    def plan(self) -> Mapping[str, Any]:
        return {**self.numbers} if self.data is None else {**self.numbers, "data": self.fingerprint()}


@final
@dataclass(frozen=True)
class Cell:
    """One setting and one method of an experiment: a row of trials, in one file."""

    experiment: AbstractExperiment
    setting: Setting
    method: str

    @property
    def learner(self) -> Learner | None:
        """What is fitted in this cell, if anything."""
        return self.experiment.methods(self.setting)[self.method]

    @property
    def slug(self) -> str:
        """The file's name, as in 'empty_beta-1_bc'."""
        words = [str(value).rsplit("/", 1)[-1] for value in self.setting.values()]
        return "_".join([*words, self.method]).replace(" ", "-")

    def path(self, results: Path) -> Path:
        """The cell's file in a directory of results."""
        return results / self.experiment.name / f"{self.slug}.json"

    def header(self) -> dict[str, Any]:
        """What the measurements depend on."""
        return {
            "experiment": self.experiment.name,
            "setting": dict(self.setting),
            "method": self.method,
            "settings": recorded_settings(self.learner, continuous=self.experiment.has_continuous_actions),
            "plan": recorded_plan(self.experiment.plan),
        }

    def read(self, results: Path) -> dict[int, Measured]:
        """The finished trials, by number; refuses a file that was made with other settings."""
        path = self.path(results)
        if not path.exists():
            return {}
        content = read_cell(path)
        for name, value in self.header().items():
            if content.get(name) != value:
                raise RunError(
                    f"{path} was made with another {name}: leave out --resume to start again, or choose another --out"
                )
        return {trial["trial"]: trial for trial in content["trials"]}

    def write(self, results: Path, trials: Iterable[Measured], origins: Sequence[Mapping[str, Any]]) -> None:
        """Write the whole cell: trials in order, and where which of them were made."""
        ordered = sorted(trials, key=lambda trial: trial["trial"])
        lines = ",\n    ".join(json.dumps(recorded_trial(trial)) for trial in ordered)
        text = json.dumps(self.header() | {"made": list(origins), "trials": []}, indent=2)
        runs.write_file(self.path(results), (text.removesuffix("[]\n}") + f"[\n    {lines}\n  ]\n}}\n").encode())

    def origins(self, results: Path) -> list[dict[str, Any]]:
        """Where the trials so far were made."""
        path = self.path(results)
        return list(read_cell(path)["made"]) if path.exists() else []


def scoring_seed(trial: int) -> int:
    """Episodes of scoring are the same for all that is compared within a trial, and differ from the demonstrations."""
    return stream(trial, "scoring").initial_seed()


def cells(
    experiment: AbstractExperiment, *, methods: Sequence[str] | None = None, settings: Sequence[str] | None = None
) -> list[Cell]:
    """Every cell of an experiment, or those of some methods, and of the settings that have one of some values."""
    return [
        Cell(experiment, setting, method)
        for setting in experiment.settings()
        if settings is None or any(str(value) in settings for value in setting.values())
        for method in experiment.methods(setting)
        if methods is None or method in methods
    ]
