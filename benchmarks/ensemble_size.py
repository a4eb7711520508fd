"""Ensembles of restarts: the reward of one, three and ten of the likeliest restarts of the same fit.

    python benchmarks/ensemble_size.py fit [--cells NAME ...] [--trials N]   # fit Ileed() and score its ensembles
    python benchmarks/ensemble_size.py page                                  # write docs/decisions/ensemble.md

`fit` keeps the trials that the record already holds, adds those that it lacks, and writes the record after each. A cell
is a setting of a MiniGrid experiment, and trial k has the demonstrations, the seed of the fit (k) and the seed of the
scored episodes of trial k in the tables of docs/reproduction.md. A fit takes one to two minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, final

import ileed
from ileed import runs
from ileed.data import Demonstrations
from ileed.envs import as_actor
from ileed.errors import SettingsError, counted
from ileed.selection import WIDTH_RESTARTS, ModelComparison
from ileed_lab.catalogue import EXPERIMENTS
from ileed_lab.comparison import Estimate, Records, csv_table, format_estimate, join_words, markdown_table, unique
from ileed_lab.grid import Setting, cells, scoring_seed
from ileed_lab.records import Measured
from ileed_lab.result_pages import ResultPage
from ileed_lab.running import refuse_uncommitted

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
RECORD = RESULTS / "benchmarks" / "ensemble-size.json"
PAGE = ROOT / "docs" / "decisions" / "ensemble.md"
SIZES = (1, 3, 10)
EPISODES = 500
TRIALS = 10


@final
@dataclass(frozen=True)
class Case:
    """A setting of an experiment of the tables, in which `Ileed()` is fitted with its default settings."""

    experiment: str
    setting: Setting

    @property
    def name(self) -> str:
        """As in 'populations unlock beta-1'."""
        words = [self.experiment, *map(str, self.setting.values())]
        return " ".join(word.removeprefix("minigrid/") for word in words)

    def demonstrations(self, trial: int) -> Demonstrations:
        """What the same trial of the tables was fitted to."""
        (data,) = EXPERIMENTS[self.experiment].demonstrations(self.setting, [trial])
        assert data is not None
        return data


def _population(task: str, population: str) -> Case:
    return Case("minigrid/populations", {"task": f"minigrid/{task}", "population": population})


def _biased(task: str) -> Case:
    return Case("minigrid/wrong-noise", {"task": f"minigrid/{task}", "generator": "biased"})


CASES = (
    *(Case("minigrid/skills", {"beta": beta}) for beta in (0.5, 0.1, 1.0)),
    *(_biased(task) for task in ("obstacles", "unlock")),
    *(_population(task, population) for population in ("beta-1", "beta-5") for task in ("obstacles", "unlock")),
)


def fit_ensembles(
    method: ileed.Ileed, data: Demonstrations, *, seed: int, sizes: Sequence[int]
) -> tuple[ModelComparison | None, Mapping[int, ileed.Policy]]:
    """What `method.fit(data, seed=seed)` gives, as ensembles of several sizes: the width, and a policy for each size.

    The comparison of widths does not depend on the restarts of the fit that follows it, so few are enough there.
    """
    few = replace(method, restarts=min(WIDTH_RESTARTS, method.usual_restarts), ensemble=1)
    width = few.fit(data, seed=seed, device="cpu").width
    if width is not None:
        method = replace(method, **width.settings[width.chosen])
    (restarts,) = method.fit_each([data], seeds=[seed], device="cpu")
    return width, {size: restarts.top(size).fitted().policy for size in sizes}


def measure(case: Case, trial: int) -> Measured:
    """One trial: the width that was chosen, and the mean reward of each ensemble in the same episodes."""
    data = case.demonstrations(trial)
    began = time.monotonic()
    width, policies = fit_ensembles(ileed.Ileed(), data, seed=trial, sizes=SIZES)
    assert width is not None
    fitted = time.monotonic()
    task = EXPERIMENTS[case.experiment].task(case.setting)
    rewards = {
        str(size): task.score(as_actor(policy), episodes=EPISODES, seed=scoring_seed(trial)).mean()
        for size, policy in policies.items()
    }
    return {
        "trial": trial,
        "hidden": list(width.settings[width.chosen]["policy"].hidden),
        "held_out_nats_per_action": [round(cost, 6) for cost in width.nats_per_action],
        "reward": {size: round(float(reward), 6) for size, reward in rewards.items()},
        "fit_seconds": round(fitted - began, 1),
        "score_seconds": round(time.monotonic() - fitted, 1),
    }


def read_record(path: Path) -> dict[str, Any]:
    """The record at `path`, or an empty one; one that was made with other settings is refused."""
    header = {
        "settings": json.loads(json.dumps(runs.plain(ileed.Ileed()))),
        "plan": {"sizes": list(SIZES), "episodes": EPISODES},
    }
    if not path.exists():
        return header | {"made": [], "cells": []}
    record = dict(json.loads(path.read_text()))
    for name, value in header.items():
        if record[name] != value:
            raise SettingsError(f"{path} was made with another {name}: move it away, or pass another --out")
    return record


def fit(cases: Sequence[Case], *, trials: int, out: Path) -> None:
    """Add to the record the trials that it lacks; first trials come first, so that every cell has some of them."""
    refuse_uncommitted(out)
    record = read_record(out)
    kept: dict[str, dict[str, Any]] = {cell["name"]: cell for cell in record["cells"]}
    added: dict[str, list[int]] = {}
    record["made"].append(runs.provenance() | {"device": "cpu", "trials": added})
    for trial, case in product(range(trials), cases):
        new = {"name": case.name, "experiment": case.experiment, "setting": dict(case.setting), "trials": []}
        cell = kept.get(case.name, new)
        if any(each["trial"] == trial for each in cell["trials"]):
            continue
        measured = measure(case, trial)
        cell["trials"] = sorted([*cell["trials"], measured], key=lambda each: each["trial"])
        kept[case.name] = cell
        added.setdefault(case.name, []).append(trial)
        record["cells"] = [kept[each.name] for each in CASES if each.name in kept]
        runs.write_file(out, (json.dumps(record, indent=1) + "\n").encode())
        print(case.name, measured, flush=True)


SOURCE = """<!-- Generated by `python benchmarks/ensemble_size.py page` from results/minigrid and
results/benchmarks/ensemble-size.json. -->"""
QUESTION = """\
A fit has 20 restarts. The policy is the most likely one, as in the paper, or an ensemble that averages the action
probabilities of the ten most likely. The rule, fixed beforehand: the ensemble becomes the default policy of `Ileed()`
if there is no cell of the MiniGrid tables in which the 95% CI of its reward minus that of the single restart, paired by
trial, lies below zero."""
METHOD = """\
Every difference is ensemble minus single, paired by trial: the same fit, scored in the same episodes. Intervals are
over trials: percentile bootstrap for the tables, Student's t for the fits of `Ileed()`, which have too few trials for
the bootstrap. Differences whose interval lies below zero are bold.

## `Ileed()` with its default settings

The tables have the paper's hidden layers of 4 and 4 units, or 8 and 8 in the column *wider*. `Ileed()` chooses them by
held-out episodes ([width.md](width.md)). Here it was fitted with all defaults (embedded expertise, 20 restarts, 2,000
steps) to the demonstrations of the first trials of settings of the tables: those in which the ensemble is below, and
some neighbours. The single restart and the ensembles of 3 and 10 of each fit played the same {episodes} episodes. The
last column is the ensemble of ten minus the single restart in the same trials of the tables, with hidden layers of 4
and 4 units (in wrong-noise with constant expertise). Ten trials were planned for each setting; skills has six and the
others have three; wrong-noise was extended to six after its first three had been seen."""


@final
@dataclass(frozen=True)
class Difference:
    """By how much the ensemble of ten is above the single likeliest restart in a cell of the tables."""

    experiment: str
    setting: str
    method: str
    single: float
    """Mean reward of the single likeliest restart."""
    by_trial: Mapping[int, float]
    estimate: Estimate

    @property
    def is_below(self) -> bool:
        """The whole interval lies below zero."""
        return self.estimate.high < 0

    def __str__(self) -> str:
        cell = f"{self.experiment.removeprefix('minigrid/')}, {self.setting}, {self.method}"
        return f"{cell}: {format_estimate(self.estimate, signed=True)}; the single restart earns {self.single:.3f}"


def table_differences(records: Records) -> Iterator[Difference]:
    """Every cell of the tables whose record holds the rewards of both, in the order of the tables."""
    for experiment in (EXPERIMENTS[name] for name in records.experiments):
        for cell in cells(experiment):
            trials = records.trials(experiment.name, cell.method, **cell.setting)
            rewards = {trial: _rewards(measured) for trial, measured in trials.items() if _holds_both(measured)}
            by_trial = {trial: ensemble - single for trial, (single, ensemble) in rewards.items()}
            estimate = Estimate.over(by_trial.values())
            if estimate is not None:
                single = fmean(single for single, _ in rewards.values())
                yield Difference(experiment.name, _words(cell.setting), cell.method, single, by_trial, estimate)


def _holds_both(trial: Measured) -> bool:
    return "ensemble" in trial or "ensemble_reward" in trial


def _rewards(trial: Measured) -> tuple[float, float]:
    """Rewards of the single likeliest restart and of the ensemble of ten, as the records of the tables name them."""
    if "ensemble" in trial:
        return trial["best_of"]["20"], trial["ensemble"]
    return trial["reward"], trial["ensemble_reward"]


def _words(setting: Setting) -> str:
    """A setting as a row of a table begins.

    >>> _words({"task": "minigrid/unlock", "population": "beta-1"}), _words({"beta": 0.5})
    ('unlock, beta-1', 'beta 0.5')
    """
    values = [
        value.removeprefix("minigrid/") if isinstance(value, str) else f"{name} {value:,}"
        for name, value in setting.items()
    ]
    return ", ".join(values)


def page() -> ResultPage:
    """The verdict, and every cell of the tables."""
    record = json.loads(RECORD.read_text())
    found = list(table_differences(Records(RESULTS)))
    verdict, cells_below = _verdict(found, record["cells"])
    details = [
        METHOD.format(episodes=record["plan"]["episodes"]),
        _defaults(record["cells"], found),
        _origin(record),
        *cells_below,
        "## Cells of the tables",
        "[ensemble-cells.csv](details/ensemble-cells.csv) has the reward of the ensemble of ten minus that of the "
        "single most likely restart in every cell. Cells of different tables with the same demonstrations and the same "
        "method have the same fits.",
    ]
    rows = [
        [each.experiment, each.setting, each.method, f"{each.estimate.trials}", _in_bold_below(each.estimate)]
        for each in found
    ]
    cells = csv_table(["experiment", "setting", "method", "trials", "difference"], rows)
    return ResultPage(
        "ensemble",
        "An ensemble of restarts as the policy",
        SOURCE,
        [QUESTION, *verdict],
        details,
        {"ensemble-cells.csv": cells},
    )


def _verdict(found: Sequence[Difference], measured: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """The paragraphs of the verdict, and the section with the cells below zero."""
    below = [each for each in found if each.is_below]
    answer = "does not become the default" if below else "becomes the default"
    where = (
        f"the interval lies below zero in {len(below)} of {len(found)} cells"
        if below
        else f"the interval lies below zero in none of {len(found)} cells"
    )
    above = sum(each.estimate.low > 0 for each in found)
    tables = join_words(unique(f"{each.experiment.removeprefix('minigrid/')}" for each in below))
    lines = [
        f"**The ensemble of ten {answer}**: {where}{f' (of {tables})' if below else ''}. It lies above zero in {above}."
    ]
    cells_below = ["## Cells below zero", "\n".join(f"- {each}" for each in below)] if below else []
    compared = {cell["name"]: _minus_single(cell, max(SIZES)) for cell in measured}
    lower = [f"{name} ({format_estimate(each, signed=True)})" for name, each in compared.items() if each.mean < 0]
    clearly = sum(each.high < 0 for each in compared.values())
    lines.append(
        f"`Ileed()` with its default settings was measured in {counted(len(compared), 'setting')} of the tables, which "
        "were chosen after the tables had been seen and have few trials; they supplement the rule's answer. The mean "
        f"difference is below zero in {join_words(lower) if lower else 'none'}; the interval lies below zero in "
        f"{clearly}."
    )
    return lines, cells_below


def _minus_single(cell: Mapping[str, Any], size: int) -> Estimate:
    return mean_of_few([trial["reward"][str(size)] - trial["reward"]["1"] for trial in cell["trials"]])


_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""97.5% quantiles of Student's t distribution with 1, 2, ... degrees of freedom, for up to ten trials."""


def mean_of_few(values: Sequence[float]) -> Estimate:
    """The mean of few trials with a 95% interval of Student's t, since the bootstrap's is too narrow for them.

    >>> format_estimate(mean_of_few([1.0, 2.0, 3.0]))
    '2.000 (-0.484 to 4.484)'
    """
    if not 2 <= len(values) <= len(_STUDENT) + 1:
        found = Estimate.over(values)
        assert found is not None  # a cell is written with its first trial
        return found
    mean, deviation = fmean(values), stdev(values)
    reach = _STUDENT[len(values) - 2] * deviation / len(values) ** 0.5
    return Estimate(mean, mean - reach, mean + reach, len(values), deviation)


def _in_bold_below(estimate: Estimate) -> str:
    return (
        f"**{format_estimate(estimate, signed=True)}**" if estimate.high < 0 else format_estimate(estimate, signed=True)
    )


_NARROW = {"minigrid/skills": "ileed", "minigrid/populations": "embedded", "minigrid/wrong-noise": "uniform"}
"""The method of each table that is closest to `Ileed()` with hidden layers of 4 and 4 units."""


def _defaults(measured: Sequence[Mapping[str, Any]], found: Sequence[Difference]) -> str:
    rows = []
    for cell in measured:
        (narrow,) = [
            each.by_trial
            for each in found
            if (each.experiment, each.setting, each.method)
            == (cell["experiment"], _words(cell["setting"]), _NARROW[cell["experiment"]])
        ]
        in_tables = mean_of_few([narrow[trial["trial"]] for trial in cell["trials"]])
        widths = Counter(trial["hidden"][0] for trial in cell["trials"])
        rows.append(
            [
                f"{cell['experiment'].removeprefix('minigrid/')}, {_words(cell['setting'])}",
                str(len(cell["trials"])),
                ", ".join(f"{width} x {count}" for width, count in sorted(widths.items())),
                f"{fmean(trial['reward']['1'] for trial in cell['trials']):.3f}",
                *(_in_bold_below(_minus_single(cell, size)) for size in SIZES[1:]),
                _in_bold_below(in_tables),
            ]
        )
    ensembles = [f"ensemble of {size} minus single" for size in SIZES[1:]]
    return markdown_table(
        ["setting", "trials", "units chosen", "single, reward", *ensembles, "10 minus single, (4, 4)"], rows
    )


def _origin(record: Mapping[str, Any]) -> str:
    made = [each for each in record["made"] if each["trials"]]
    places = unique(f"{each['machine']} ({each['device']}), torch {each['torch']}" for each in made)
    commits = unique(f"{each['commit']} ({each['date'][:10]})" for each in made)
    seconds = fmean(trial["fit_seconds"] for cell in record["cells"] for trial in cell["trials"])
    origin = f"Fitted on {join_words(places)}, commit {join_words(commits)}"
    return f"{origin}; a fit took {seconds:.0f} s on average on a shared core."


def main() -> None:
    """Run one part of the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("fit", "page"))
    parser.add_argument("--cells", nargs="*", choices=[case.name for case in CASES], metavar="NAME")
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--out", type=Path, default=RECORD)
    asked = parser.parse_args()
    if asked.part == "page":
        page().write(PAGE)
        return
    chosen = [case for case in CASES if asked.cells is None or case.name in asked.cells]
    fit(chosen, trials=asked.trials, out=asked.out)


if __name__ == "__main__":
    main()
