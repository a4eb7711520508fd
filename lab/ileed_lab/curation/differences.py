"""Differences between policies of the same trials, as the page about curation and its figures read them from records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.special import stdtrit

from ileed_lab.comparison import Estimate, Records
from ileed_lab.curation.experiment import COMPETENT, OURS, CurationMiniGrid
from ileed_lab.records import Measured

__all__ = ["Row", "over_trials", "paired", "rows_of", "verdict"]


def over_trials(values: Mapping[int, float]) -> Estimate | None:
    """The mean over trials with Student's 95 % interval, since they are few; None where there are none."""
    measured = np.array(list(values.values()), dtype=np.float64)
    if not len(measured):
        return None
    mean = float(measured.mean())
    if len(measured) == 1:
        return Estimate(mean, -np.inf, np.inf, 1)
    deviation = float(measured.std(ddof=1))
    reach = float(stdtrit(len(measured) - 1, 0.975)) * deviation / len(measured) ** 0.5
    return Estimate(mean, mean - reach, mean + reach, len(measured), deviation)


def paired(one: Mapping[int, float], other: Mapping[int, float]) -> Estimate | None:
    """The mean of one minus the other over the trials of both, which have the same demonstrations and episodes."""
    return over_trials({trial: one[trial] - other[trial] for trial in sorted(one.keys() & other.keys())})


def verdict(difference: Estimate | None) -> str:
    """Better or worse where the whole interval is above or below zero."""
    if difference is None:
        return "not run"
    if difference.low > 0:
        return "better"
    return "worse" if difference.high < 0 else "not told apart"


@final
@dataclass(frozen=True, eq=False)
class Row:
    """One trainer in one population: the reward of every trial by selection, and what is compared beside them."""

    trainer: str
    task: str
    population: str
    selections: Mapping[str, Mapping[int, Measured]]
    """The trials of each selection, by number."""
    ileed: Mapping[int, Measured]
    demonstrators: Mapping[int, Measured]

    def rewards(self, selection: str) -> dict[int, float]:
        """The reward of each trial; of ILEED's own policy, the best demonstrator or the expert where these are named."""
        if selection == "expert":
            return {number: trial["expert"] for number, trial in self.demonstrators.items()}
        beside = {"ileed": self.ileed, "demonstrator": self.demonstrators}
        trials = beside[selection] if selection in beside else self.selections.get(selection, {})
        return {number: trial["reward"] for number, trial in trials.items()}

    @property
    def competent(self) -> bool | None:
        """Whether a demonstrator earns nearly what the expert does; None where nobody was measured."""
        best, expert = over_trials(self.rewards("demonstrator")), over_trials(self.rewards("expert"))
        return None if best is None or expert is None else best.mean >= COMPETENT * expert.mean

    @property
    def was_run(self) -> bool:
        """Whether any of its trials is there."""
        return any(self.selections.values())


def rows_of(records: Records) -> Iterator[Row]:
    """Every trainer in every population, in the order of the page; those that were not run have no trials."""
    experiment = CurationMiniGrid()
    for trainer in OURS:
        for setting in experiment.settings():
            methods = [name for name in experiment.methods(setting) if name not in ("ileed", "demonstrators")]
            found = {name: records.trials(experiment.name, name, **setting) for name in methods}
            prefix = f"{trainer}-"
            own = {name: found[f"{prefix}{name}"] for name in _selections(experiment, setting, trainer)}
            beside = [records.trials(experiment.name, name, **setting) for name in ("ileed", "demonstrators")]
            yield Row(trainer, setting["task"], setting["population"], own, *beside)


def _selections(experiment: CurationMiniGrid, setting: Mapping[str, str], trainer: str) -> list[str]:
    found = experiment.methods(setting)
    return [each.selection for name, each in found.items() if name.startswith(trainer) and each is not None]
