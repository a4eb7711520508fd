"""Differences between policies of the same trials, as the page about curation and its figures read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.special import stdtrit

from ileed_lab.comparison import Estimate, Records
from ileed_lab.curation.experiment import COMPETENT, OURS, CurationMiniGrid
from ileed_lab.curation.others import CurationTrainers
from ileed_lab.curation.square import SELECTIONS as IN_SQUARE
from ileed_lab.curation.square import CurationSquare
from ileed_lab.curation.subsets import SELECTIONS
from ileed_lab.grid import Setting
from ileed_lab.records import Measured

__all__ = ["OPEN", "VERDICTS", "Row", "over_trials", "paired", "row_of_square", "rows_of"]


def over_trials(values: Mapping[int, float]) -> Estimate | None:
    """The mean over trials with Student's 95% interval, since they are few; None where there are none."""
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


OPEN = "no clear difference"
VERDICTS = ("better", "nothing to gain", OPEN, "worse", "with one trial")
"""How a policy compares with another."""
SATURATED = 0.99
"""There is nothing to gain on a policy that earns this share, or more, of what the expert does."""


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
    measure: str = "reward"
    """What is compared: the mean reward of an episode, or the share of episodes that succeeded."""

    def rewards(self, selection: str) -> dict[int, float]:
        """The reward of each trial; also of ILEED's own policy, of the best demonstrator and of the expert."""
        if selection == "expert":
            return {number: trial["expert"] for number, trial in self.demonstrators.items()}
        beside = {"ileed": self.ileed, "demonstrator": self.demonstrators}
        trials = beside[selection] if selection in beside else self.selections.get(selection, {})
        return {number: trial[self.measure] for number, trial in trials.items()}

    @property
    def competent(self) -> bool | None:
        """Whether a demonstrator earns nearly what the expert does; None where none was measured."""
        best, expert = over_trials(self.rewards("demonstrator")), over_trials(self.rewards("expert"))
        return None if best is None or expert is None else best.mean >= COMPETENT * expert.mean

    def verdict(self, one: str, other: str) -> str:
        """How the policy of one selection compares with that of another: one of `VERDICTS`, or "not run"."""
        difference, reached = paired(self.rewards(one), self.rewards(other)), over_trials(self.rewards(other))
        if difference is None or reached is None:
            return "not run"
        if difference.trials == 1:
            return "with one trial"
        if difference.low > 0 or difference.high < 0:
            return "better" if difference.low > 0 else "worse"
        expert = over_trials(self.rewards("expert"))
        saturated = expert is not None and reached.mean >= SATURATED * expert.mean
        return "nothing to gain" if saturated else OPEN

    @property
    def was_run(self) -> bool:
        """Whether any of its trials is there."""
        return any(self.selections.values())


def rows_of(records: Records) -> Iterator[Row]:
    """Every trainer in every population, in the order of the page; those that were not run have no trials."""
    ours, others = CurationMiniGrid(), CurationTrainers()
    for trainer in OURS:
        for setting in ours.settings():
            found = {each: records.trials(ours.name, f"{trainer}-{each}", **setting) for each in SELECTIONS}
            yield _row(records, trainer, setting, found)
    for setting in others.settings():
        found = {each: records.trials(others.name, each, **setting) for each in others.methods(setting)}
        yield _row(records, setting["trainer"], setting, found)


def _row(records: Records, trainer: str, setting: Setting, found: Mapping[str, Mapping[int, Measured]]) -> Row:
    where = {name: setting[name] for name in ("task", "population")}
    beside = [records.trials(CurationMiniGrid().name, name, **where) for name in ("ileed", "demonstrators")]
    return Row(trainer, setting["task"], setting["population"], found, ileed=beside[0], demonstrators=beside[1])


def row_of_square(records: Records) -> Row:
    """Recurrent cloning in Square, by the share of episodes that succeeded; without trials where it was not run.

    A trial of the same episodes and weights as another selection has the measurements of that one, if it was run.
    """
    square = CurationSquare()
    (setting,) = square.settings()
    found = {each: records.trials(square.name, each, **setting) for each in IN_SQUARE}
    ileed = records.trials(square.name, "ileed", **setting)
    resolved = {
        name: {
            number: found[trial["same_as"]][number] | trial if "same_as" in trial else trial
            for number, trial in trials.items()
            if "same_as" not in trial or number in found[trial["same_as"]]
        }
        for name, trials in found.items()
    }
    return Row(setting["trainer"], "robot/square", "six operators", resolved, ileed, {}, measure="success")
