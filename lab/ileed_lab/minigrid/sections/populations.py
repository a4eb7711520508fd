"""The section about populations of demonstrators, with BC, ILEED and GAIL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import final

from ileed import Ileed
from ileed.errors import counted
from ileed_lab.catalogue import EXPERIMENTS
from ileed_lab.comparison import (
    Comparison,
    Estimate,
    Records,
    count_verdicts,
    difference,
    format_comparison,
    format_estimate,
    join_words,
    markdown_table,
)
from ileed_lab.minigrid.sections import Paper, Section, Show, task_title

__all__ = ["populations"]


@final
@dataclass(frozen=True)
class _Row:
    """A row of the tables: a method of ours, and the published column that it is compared with."""

    label: str
    method: str
    column: str
    field: str = "reward"
    experiment: str = "minigrid/populations"

    @property
    def planned(self) -> int | None:
        """The number of trials that a cell need not state."""
        return None if self in _GAIL else EXPERIMENTS[self.experiment].trials

    def rewards(self, records: Records, task: str, population: str) -> dict[int, float]:
        found = records.trials(self.experiment, self.method, task=f"minigrid/{task}", population=population)
        return {number: trial[self.field] for number, trial in found.items()}

    def comparison(self, records: Records, task: str, population: str, numbers: Mapping[str, float]) -> Comparison:
        ours = Estimate.over(self.rewards(records, task, population).values())
        return Comparison(f"{task_title(task)} {population}", ours, numbers[self.column])

    def trials(self, cells: Sequence[Comparison]) -> str:
        """The number of trials, where it is not the planned one."""
        counts = sorted({cell.ours.trials for cell in cells if cell.ours is not None})
        if self.planned is not None or not counts:
            return ""
        return "<br>" + (counted(counts[0], "trial") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} trials")


_BC = _Row("BC", "bc", "bc")
_ILEED = _Row("ILEED", "ileed", "ileed")
_ENSEMBLE = _Row("ILEED ensemble", "ileed", "ileed", field="ensemble_reward")
_GAIL = (
    _Row("GAIL, variable", "variable", "gail", experiment="minigrid/gail"),
    _Row("GAIL, absorbing", "absorbing", "gail", experiment="minigrid/gail"),
)
_ROWS = (
    *(_BC, *_GAIL, _ILEED, _ENSEMBLE),
    _Row("ILEED embedded", "embedded", "ileed"),
    _Row("ILEED with dynamics", "dynamics", "ileed"),
    _Row("ILEED one-versus-rest", "one-versus-rest", "ileed"),
)


def populations(records: Records, paper: Paper, show: Show) -> Section:
    """Reward of every method in every task and population, published and ours."""
    compared: dict[str, list[Comparison]] = {row.label: [] for row in _ROWS}
    gains: dict[str, Estimate | None] = {}
    tables = []
    for task, numbers in paper["populations"].items():
        rows = []
        for row in _ROWS:
            cells = [row.comparison(records, task, *population) for population in numbers.items()]
            compared[row.label] += cells
            rows.append(
                [row.label + row.trials(cells), *(format_comparison(cell, planned=row.planned) for cell in cells)]
            )
        gains_here = {
            f"{task_title(task)} {population}": difference(
                _ILEED.rewards(records, task, population), _BC.rewards(records, task, population)
            )
            for population in numbers
        }
        gains |= gains_here
        rows.append(["ILEED minus our BC", *(format_estimate(gain, signed=True) for gain in gains_here.values())])
        of_ileed = compared[_ILEED.label][-len(numbers) :]
        heading = f"### {task_title(task)}"
        tables += [heading, markdown_table(["", *numbers], rows), f"ILEED: {count_verdicts(of_ileed)}"]
    paragraphs = [
        *_introduction(paper),
        *tables,
        "### GAIL",
        "\n".join(f"- {row.label}: {count_verdicts(compared[row.label])}" for row in _GAIL),
        _sampled_actions(records),
        show("gail", "Training curves of GAIL with variable and with absorbing horizons"),
    ]
    claims = [*(_claim(label, compared[label]) for label in (_ILEED.label, _ENSEMBLE.label)), _minus_bc(gains)]
    return Section("Populations", paragraphs, compared, claims)


def _introduction(paper: Paper) -> list[str]:
    experiment = EXPERIMENTS["minigrid/populations"]
    return [
        f"Ten demonstrators, {experiment.plan['steps']:,} steps each, follow the expert with a given probability and "
        "otherwise act uniformly at random. beta-1: one with 0.99 and nine with 0.01; beta-5: five and five; beta-10: "
        "all with 0.99; unif: 0.05, 0.15, ... 0.95. Mean episodic reward, published over "
        f"{paper['trials']['populations']} trials, ours over {experiment.trials} unless a cell says otherwise, with "
        f"{experiment.plan['episodes']} episodes in each.",
        "*ILEED* is the paper's method: one number of expertise for each demonstrator, the most likely of "
        f"{Ileed().usual_restarts} restarts; BC is selected in the same way. The rows under ILEED have no published "
        f"counterpart and are compared with the published ILEED: an *ensemble* of the {experiment.plan['ensemble']} "
        "most likely restarts of the same fit; expertise by state (*embedded*), without and with the auxiliary loss of "
        "*latent dynamics*; and the *one-versus-rest* likelihood of the authors' public code.",
        "*GAIL* is the only method that acts in the environment while it learns. It has no restarts: a trial is one "
        "run. With a variable horizon the length of an episode leaks reward; with an absorbing horizon an episode is "
        "continued to a fixed length in an absorbing state. Its settings are the paper's where the paper states them; "
        "the others were [tuned](decisions/gail.md) on Obstacles beta-10.",
    ]


def _sampled_actions(records: Records) -> str:
    """The reward of GAIL with sampled actions, as in its training, where that was measured."""
    parts = []
    for row in _GAIL:
        cells = [cell for cell in records.cells(row.experiment) if cell["method"] == row.method]
        trials = [trial for cell in cells for trial in cell["trials"] if "sampled_reward" in trial]
        if trials:
            likeliest, sampled = (fmean(trial[field] for trial in trials) for field in ("reward", "sampled_reward"))
            parts.append(f"{likeliest:.3f} and {sampled:.3f} ({row.label})")
    if not parts:
        return ""
    return (
        "GAIL is scored by its most likely actions, as all methods are, but samples actions during training. The mean "
        f"rewards of the two over all cells are {join_words(parts)}."
    )


def _claim(label: str, comparisons: Sequence[Comparison]) -> str:
    means = [(round(each.ours.mean, 2), each.published) for each in comparisons if each.ours is not None]
    reached = sum(ours >= published for ours, published in means)
    return (
        f"{label} compared with the published ILEED: {count_verdicts(comparisons)} By the mean alone, rounded as the "
        f"published numbers are, at or above in {reached} of {len(means)}."
    )


def _minus_bc(gains: Mapping[str, Estimate | None]) -> str:
    known = {where: gain for where, gain in gains.items() if gain is not None}
    above = [where for where, gain in known.items() if gain.low > 0]
    below = [f"{where} ({format_estimate(gain, signed=True)})" for where, gain in known.items() if gain.high < 0]
    rest = (
        f"**below** it in {join_words(below)}" if below else "and below it in none, by the interval of the difference"
    )
    return (
        "ILEED compared with our own BC, on the same demonstrations and in the same episodes: above it in "
        f"{len(above)} of {len(known)} cells, {rest}."
    )
