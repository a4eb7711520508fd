"""A grid: settings times methods times trials, each cell a file of what every trial measured."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, final

from ileed import runs
from ileed.demonstrations import Demonstrations
from ileed.deprecation import current_names
from ileed.errors import RunError, SettingsError
from ileed.methods import Ileed
from ileed.runtime import stream
from ileed.tasks import AbstractTask
from ileed_lab.baselines import Gail

Measured = dict[str, Any]
"""What one trial of one cell measured, as JSON holds it."""

Setting = Mapping[str, Any]
"""Where demonstrations come from, as in {"task": "minigrid/empty", "population": "unif"}."""


class LearnsAlone(Protocol):
    """A method that learns from demonstrations and nothing else, one trial at a time."""

    def fit(self, demonstrations: Demonstrations, *, seed: int, device: str) -> Any:
        """What it learned."""
        ...


Learner = Ileed | Gail | LearnsAlone
"""Whatever a cell can hold; its settings are a frozen dataclass."""


class AbstractExperiment(ABC):
    """A question put to many trials: settings in which data arise, methods that learn from them, and a measure.

    Laws: demonstrations depend on the setting and the trial alone, and all methods of a setting see the same; a trial's
    measurements depend on its demonstrations, method and number alone, so that trials may be done in any order, on any
    machine, and some of them later.
    """

    name: str
    """As in 'minigrid/populations'."""
    trials: int
    """How many the published table has, or ours where none is published."""
    block: ClassVar[int] = 5
    """Trials that a core takes at once: enough for their fits to run side by side, few enough to lose little.

    With one, a core also takes one method at a time: for experiments whose fits take minutes."""

    @abstractmethod
    def settings(self) -> Sequence[Setting]:
        """Every setting, in the order of the table."""

    @abstractmethod
    def methods(self, setting: Setting) -> Mapping[str, Learner | None]:
        """What learns in a setting, by name; None stands for no learning, where the demonstrators are measured."""

    @abstractmethod
    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[Demonstrations | None]:
        """The data of each of these trials; None where nothing learns."""

    def task(self, setting: Setting) -> AbstractTask:
        """Where the learned policies play, if they do."""
        raise SettingsError(f"nobody plays in {self.name}")

    @abstractmethod
    def measured(self, setting: Setting, method: str, trial: int, found: Any) -> Measured:
        """What is recorded of a trial; `found` is an `Ensemble`, what another learner gave, or None."""

    @property
    @abstractmethod
    def plan(self) -> Mapping[str, Any]:
        """The numbers that measurements depend on, such as episodes played: results of another plan are not mixed."""


@final
@dataclass(frozen=True)
class Cell:
    """One setting and one method of an experiment: a row of trials, kept in one file."""

    experiment: AbstractExperiment
    setting: Setting
    method: str

    @property
    def learner(self) -> Learner | None:
        """What learns in this cell."""
        return self.experiment.methods(self.setting)[self.method]

    @property
    def slug(self) -> str:
        """The file's name, as in 'empty_beta-1_bc'."""
        words = [str(value).rsplit("/", 1)[-1] for value in self.setting.values()]
        return "_".join([*words, self.method]).replace(" ", "-")

    def path(self, results: Path) -> Path:
        """Where the cell lies among results."""
        return results / self.experiment.name / f"{self.slug}.json"

    def header(self) -> dict[str, Any]:
        """What the measurements depend on."""
        return {
            "experiment": self.experiment.name,
            "setting": dict(self.setting),
            "method": self.method,
            "settings": json.loads(json.dumps(runs.plain(self.learner))),
            "plan": json.loads(json.dumps(dict(self.experiment.plan))),
        }

    def read(self, results: Path) -> dict[int, Measured]:
        """The trials that are done, by number; refuses a file made with other settings."""
        path = self.path(results)
        if not path.exists():
            return {}
        kept = read_cell(path)
        for name, value in self.header().items():
            if current_names(kept.get(name)) != value:
                raise RunError(
                    f"{path} was made with another {name}: leave out --resume to start anew, or choose another --out"
                )
        return {trial["trial"]: trial for trial in kept["trials"]}

    def write(self, results: Path, trials: Iterable[Measured], origins: Sequence[Mapping[str, Any]]) -> None:
        """Write the cell whole: trials in order, and where which of them were made."""
        ordered = sorted(trials, key=lambda trial: trial["trial"])
        lines = ",\n    ".join(json.dumps(rounded(trial)) for trial in ordered)
        text = json.dumps(self.header() | {"made": list(origins), "trials": []}, indent=2)
        runs.write_file(self.path(results), (text.removesuffix("[]\n}") + f"[\n    {lines}\n  ]\n}}\n").encode())

    def origins(self, results: Path) -> list[dict[str, Any]]:
        """Where the trials so far were made."""
        path = self.path(results)
        return list(read_cell(path)["made"]) if path.exists() else []


def read_cell(path: Path) -> dict[str, Any]:
    """A cell's file as it lies there."""
    try:
        kept = json.loads(path.read_text())
        return dict(kept) | {"trials": list(kept["trials"]), "made": list(kept["made"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} is not a cell of results ({error}): restore or remove it") from error


def rounded(value: Any) -> Any:
    """Numbers to six places: finer than any error bar here, and short enough to read."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, Mapping):
        return {name: rounded(item) for name, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list | tuple) else value


def scoring_seed(trial: int) -> int:
    """Episodes of scoring are the same for all that is compared within a trial, and no trial's demonstrations."""
    return stream(trial, "scoring").initial_seed()


def cells(
    experiment: AbstractExperiment, *, methods: Sequence[str] | None = None, settings: Sequence[str] | None = None
) -> list[Cell]:
    """Every cell of an experiment, or those of some methods, and of the settings that hold one of some values."""
    return [
        Cell(experiment, setting, method)
        for setting in experiment.settings()
        if settings is None or any(str(value) in settings for value in setting.values())
        for method in experiment.methods(setting)
        if methods is None or method in methods
    ]


__all__ = [
    "AbstractExperiment",
    "Cell",
    "Learner",
    "LearnsAlone",
    "Measured",
    "Setting",
    "cells",
    "read_cell",
    "scoring_seed",
]
