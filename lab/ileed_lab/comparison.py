"""Estimates with their intervals, compared with published numbers, and how both are written in a table."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path
from statistics import NormalDist
from typing import Any, Self, final

import numpy as np

from ileed import Scores, SettingsError
from ileed.errors import counted
from ileed_lab.catalogue import EXPERIMENTS
from ileed_lab.records import Measured, read_cell

__all__ = [
    "Comparison",
    "Estimate",
    "Records",
    "Verdict",
    "count_verdicts",
    "csv_table",
    "difference",
    "format_comparison",
    "format_estimate",
    "join_words",
    "markdown_table",
    "unique",
    "verdict",
]

ROUNDING = 0.005
"""Half of the last place of a published number, which is rounded to two places."""

_NORMAL = NormalDist().inv_cdf(0.975)


@final
@dataclass(frozen=True)
class Estimate:
    """A mean over trials, with a 95% interval."""

    mean: float
    low: float
    high: float
    trials: int
    standard_deviation: float = 0.0
    """Over trials."""

    @classmethod
    def over(cls, values: Iterable[float]) -> Self | None:
        """The mean over trials, with a 95% bootstrap interval; None where there are no trials."""
        measured = np.array(list(values), dtype=np.float64)
        if not len(measured):
            return None
        scores = Scores(measured)
        standard_deviation = float(measured.std(ddof=1)) if len(measured) > 1 else 0.0
        return cls(scores.mean, *scores.interval, len(measured), standard_deviation)

    @classmethod
    def share(cls, hits: int, trials: int) -> Self:
        """A share of trials, with Wilson's 95% interval."""
        share, shrinkage = hits / trials, _NORMAL**2 / trials
        centre = (share + shrinkage / 2) / (1 + shrinkage)
        half_width = math.sqrt(shrinkage * (share * (1 - share) + shrinkage / 4)) / (1 + shrinkage)
        # Bounded by the share itself: by rounding alone an end might lie on the wrong side of it, or outside 0 to 1.
        low, high = max(centre - half_width, 0.0), min(centre + half_width, 1.0)
        return cls(share, min(low, share), max(high, share), trials)

    @classmethod
    def from_standard_error(cls, mean: float, standard_error: float, *, trials: int) -> Self:
        """A mean whose standard error is known, with a normal interval."""
        return cls(mean, mean - _NORMAL * standard_error, mean + _NORMAL * standard_error, trials)


def difference(one: Mapping[int, float], other: Mapping[int, float]) -> Estimate | None:
    """The mean of one minus the other, over the trials of both: the same demonstrations and episodes."""
    return Estimate.over(one[trial] - other[trial] for trial in sorted(one.keys() & other.keys()))


class Verdict(Enum):
    """How our estimate compares with a published number."""

    ABOVE = "above"
    EQUAL = "equal"
    BELOW = "below"
    OPEN = "one trial"
    NOT_RUN = "not run"


def verdict(ours: Estimate | None, published: float) -> Verdict:
    """Above or below where the whole interval is above or below all that rounds to the published number, else equal."""
    if ours is None:
        return Verdict.NOT_RUN
    if math.isinf(ours.high - ours.low):
        return Verdict.OPEN
    if ours.low > published + ROUNDING:
        return Verdict.ABOVE
    return Verdict.BELOW if ours.high < published - ROUNDING else Verdict.EQUAL


@final
@dataclass(frozen=True)
class Comparison:
    """One estimate of ours, compared with one published number."""

    where: str
    ours: Estimate | None
    published: float
    published_standard_deviation: float | None = None
    """Over the paper's trials, where it is published."""
    lower_is_better: bool = False

    @property
    def verdict(self) -> Verdict:
        return verdict(self.ours, self.published)

    @property
    def by_mean(self) -> Verdict:
        """The verdict on the mean alone, without its interval."""
        ours = self.ours
        return verdict(ours and Estimate(ours.mean, ours.mean, ours.mean, ours.trials), self.published)

    @property
    def is_worse(self) -> bool:
        """Whether the whole interval of ours is worse than the published number."""
        return self.verdict is (Verdict.ABOVE if self.lower_is_better else Verdict.BELOW)

    @property
    def words(self) -> str:
        """The verdict and the published number, in bold where ours is worse."""
        number = f"{self.published:.2f}"
        if self.published_standard_deviation is not None:
            number += f" ± {self.published_standard_deviation:.2f}"
        words = {
            Verdict.ABOVE: f"above {number}",
            Verdict.EQUAL: f"equal to {number}",
            Verdict.BELOW: f"below {number}",
            Verdict.NOT_RUN: f"published {number}",
        }
        if self.verdict is Verdict.OPEN:
            return f"one trial, {words[self.by_mean]}"
        return f"**{words[self.verdict]}**" if self.is_worse else words[self.verdict]


def format_estimate(
    ours: Estimate | None,
    *,
    digits: int = 3,
    planned: int | None = None,
    signed: bool = False,
    with_standard_deviation: bool = False,
) -> str:
    """An estimate as a cell of a table; the number of trials is stated where it is not the planned one."""
    if ours is None:
        return "not run"
    mean, low, high = _number(ours.mean, digits, signed), _number(ours.low, digits), _number(ours.high, digits)
    spread = f" ± {ours.standard_deviation:.{digits}f}<br>" if with_standard_deviation else " "
    interval = "" if math.isinf(ours.high - ours.low) else f"{spread}({low} to {high})"
    trials = "" if planned in (None, ours.trials) else f", {ours.trials} of {planned} trials"
    return f"{mean}{interval}{trials}"


def format_comparison(comparison: Comparison, *, digits: int = 3, planned: int | None = None) -> str:
    """A cell of a table: our estimate, and on the next line the verdict and the published number."""
    ours = format_estimate(
        comparison.ours,
        digits=digits,
        planned=planned,
        with_standard_deviation=comparison.published_standard_deviation is not None,
    )
    return f"{ours}<br>{comparison.words}"


def count_verdicts(comparisons: Sequence[Comparison]) -> str:
    """A sentence with the number of each verdict, and every cell in which ours is worse."""
    count = Counter(each.verdict for each in comparisons)
    good = Verdict.BELOW if comparisons[0].lower_is_better else Verdict.ABOVE
    judged = len(comparisons) - count[Verdict.NOT_RUN] - count[Verdict.OPEN]
    at_least = f"at or {good.value} in {count[good] + count[Verdict.EQUAL]} of {counted(judged, 'cell')}"
    parts = [f"{at_least} ({count[good]} {good.value}, {count[Verdict.EQUAL]} equal)"] if judged else []
    worse = [
        f"{each.where} ({_number(each.ours.mean, 3)}, published {each.published:.2f})"
        for each in comparisons
        if each.ours is not None and each.is_worse
    ]
    if worse:
        bad = Verdict.ABOVE if good is Verdict.BELOW else Verdict.BELOW
        parts.append(f"**{bad.value}** in {join_words(worse)}")
    if count[Verdict.OPEN]:
        by_mean = Counter(each.by_mean.value for each in comparisons if each.verdict is Verdict.OPEN)
        numbers = join_words([f"{by_mean[word]} {word}" for word in ("above", "equal", "below") if by_mean[word]])
        parts.append(f"{count[Verdict.OPEN]} with one trial and so without an interval, by the mean alone {numbers}")
    if count[Verdict.NOT_RUN]:
        parts.append(f"{count[Verdict.NOT_RUN]} not run")
    return "; ".join(parts) + "."


def unique(words: Iterable[str]) -> list[str]:
    """Each of the words once, in the order in which they first occur."""
    return list(dict.fromkeys(words))


def join_words(words: Sequence[str]) -> str:
    """Words with commas and "and" between them.

    >>> join_words(["Empty", "Lava", "Unlock"])
    'Empty, Lava and Unlock'
    """
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def csv_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The same table as CSV, without the marks of bold text."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([each.replace("**", "") for each in row] for row in (head, *rows))
    return text.getvalue()


def _number(value: float, digits: int, signed: bool = False) -> str:
    """Rounded, with no sign before a zero."""
    rounded = round(value, digits) + 0.0
    return f"{rounded:{'+' if signed and rounded else ''}.{digits}f}"


@final
@dataclass(frozen=True)
class Records:
    """Every cell of a family of experiments in a directory of results, by experiment, method and setting."""

    results: Path
    family: str = "minigrid"

    def __post_init__(self) -> None:
        if not self.results.is_dir():
            raise SettingsError(
                f"{self.results} is not a directory of results: `ileed reproduce EXPERIMENT --out {self.results}` "
                "makes one"
            )

    @cached_property
    def _cells(self) -> Mapping[tuple[str, str, frozenset[tuple[str, Any]]], dict[str, Any]]:
        found = [read_cell(path) for path in sorted(self.results.glob(f"{self.family}/*/*.json"))]
        return {(cell["experiment"], cell["method"], frozenset(cell["setting"].items())): cell for cell in found}

    def trials(self, experiment: str, method: str, **setting: Any) -> dict[int, Measured]:
        """The measurements of a cell, by trial; none where the cell was not run, and no trial that failed."""
        cell = self._cells.get((experiment, method, frozenset(setting.items())), {"trials": []})
        return {trial["trial"]: trial for trial in cell["trials"] if "failed" not in trial}

    def cells(self, experiment: str) -> list[dict[str, Any]]:
        """The content of the cells of an experiment that were run."""
        return [cell for (name, _, _), cell in self._cells.items() if name == experiment]

    @property
    def experiments(self) -> list[str]:
        """The experiments that were run, known ones first and in their order."""
        found = {name for name, _, _ in self._cells}
        return [*(name for name in EXPERIMENTS if name in found), *sorted(found - EXPERIMENTS.keys())]
