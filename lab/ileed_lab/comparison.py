"""What was measured, with its interval, beside what was published; and how that reads in a table."""

from __future__ import annotations

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

from ileed.errors import SettingsError
from ileed.evaluation import Scores
from ileed_lab.catalogue import EXPERIMENTS
from ileed_lab.grid import Measured, read_cell

__all__ = [
    "Comparison",
    "Estimate",
    "Records",
    "Verdict",
    "beside",
    "counted",
    "difference",
    "distinct",
    "shown",
    "table",
    "verdict",
]

ROUNDING = 0.005
"""How far a published number, rounded to two places, may lie from what was measured."""

_NORMAL = NormalDist().inv_cdf(0.975)


@final
@dataclass(frozen=True)
class Estimate:
    """A mean over trials, and where it would lie over ever more of them with 95 % confidence."""

    mean: float
    low: float
    high: float
    trials: int
    deviation: float = 0.0
    """Standard deviation over trials."""

    @classmethod
    def over(cls, values: Iterable[float]) -> Self | None:
        """The mean of what trials measured, with a bootstrap interval; None where there are none."""
        measured = np.array(list(values), dtype=np.float64)
        if not len(measured):
            return None
        scores = Scores(measured)
        deviation = float(measured.std(ddof=1)) if len(measured) > 1 else 0.0
        return cls(scores.mean, *scores.interval, len(measured), deviation)

    @classmethod
    def share(cls, hits: int, trials: int) -> Self:
        """The share of trials in which something happened, with Wilson's interval."""
        share, pull = hits / trials, _NORMAL**2 / trials
        middle = (share + pull / 2) / (1 + pull)
        reach = math.sqrt(pull * (share * (1 - share) + pull / 4)) / (1 + pull)
        # The share itself bounds it against rounding: nothing above 1 where all happened, nothing below 0 where none.
        low, high = max(middle - reach, 0.0), min(middle + reach, 1.0)
        return cls(share, min(low, share), max(high, share), trials)

    @classmethod
    def recorded(cls, mean: float, standard_error: float, *, trials: int) -> Self:
        """A mean whose standard error was recorded with it."""
        return cls(mean, mean - _NORMAL * standard_error, mean + _NORMAL * standard_error, trials)


def difference(one: Mapping[int, float], other: Mapping[int, float]) -> Estimate | None:
    """By how much one is above the other in the trials that both did, on the same demonstrations and episodes."""
    return Estimate.over(one[trial] - other[trial] for trial in sorted(one.keys() & other.keys()))


class Verdict(Enum):
    """How ours compares with a published number."""

    ABOVE = "above"
    EQUAL = "equal"
    BELOW = "below"
    OPEN = "one trial"
    NOT_RUN = "not run"


def verdict(ours: Estimate | None, published: float) -> Verdict:
    """Above or below where our whole interval lies beyond all that rounds to the published number, else equal."""
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
    """One cell of ours beside one published number."""

    where: str
    ours: Estimate | None
    published: float
    published_deviation: float | None = None
    """Standard deviation over the paper's trials, where it is told."""
    less_is_better: bool = False

    @property
    def verdict(self) -> Verdict:
        return verdict(self.ours, self.published)

    @property
    def by_mean(self) -> Verdict:
        """The verdict on the mean alone, as if it were certain."""
        ours = self.ours
        return verdict(ours and Estimate(ours.mean, ours.mean, ours.mean, ours.trials), self.published)

    @property
    def is_worse(self) -> bool:
        """Ours is clearly on the wrong side of the published number."""
        return self.verdict is (Verdict.ABOVE if self.less_is_better else Verdict.BELOW)

    @property
    def words(self) -> str:
        """The verdict and the published number, in bold where ours is worse."""
        number = f"{self.published:.2f}"
        if self.published_deviation is not None:
            number += f" ± {self.published_deviation:.2f}"
        words = {
            Verdict.ABOVE: f"above {number}",
            Verdict.EQUAL: f"equal to {number}",
            Verdict.BELOW: f"below {number}",
            Verdict.NOT_RUN: f"published {number}",
        }
        if self.verdict is Verdict.OPEN:
            return f"one trial, {words[self.by_mean]}"
        return f"**{words[self.verdict]}**" if self.is_worse else words[self.verdict]


def shown(
    ours: Estimate | None,
    *,
    digits: int = 3,
    planned: int | None = None,
    signed: bool = False,
    with_deviation: bool = False,
) -> str:
    """Ours as a cell of a table; the number of trials is told where it is not the planned one."""
    if ours is None:
        return "not run"
    mean, low, high = _number(ours.mean, digits, signed), _number(ours.low, digits), _number(ours.high, digits)
    spread = f" ± {ours.deviation:.{digits}f}<br>" if with_deviation else " "
    interval = "" if math.isinf(ours.high - ours.low) else f"{spread}({low} to {high})"
    trials = "" if planned in (None, ours.trials) else f", {ours.trials} of {planned} trials"
    return f"{mean}{interval}{trials}"


def beside(comparison: Comparison, *, digits: int = 3, planned: int | None = None) -> str:
    """Ours above, the verdict and the published number under it."""
    with_deviation = comparison.published_deviation is not None
    ours = shown(comparison.ours, digits=digits, planned=planned, with_deviation=with_deviation)
    return f"{ours}<br>{comparison.words}"


def counted(comparisons: Sequence[Comparison]) -> str:
    """A sentence that counts verdicts, and names every cell in which ours is worse."""
    count = Counter(each.verdict for each in comparisons)
    good = Verdict.BELOW if comparisons[0].less_is_better else Verdict.ABOVE
    judged = len(comparisons) - count[Verdict.NOT_RUN] - count[Verdict.OPEN]
    at_least = f"at or {good.value} in {count[good] + count[Verdict.EQUAL]} of {plural(judged, 'cell')}"
    parts = [f"{at_least} ({count[good]} {good.value}, {count[Verdict.EQUAL]} equal)"] if judged else []
    worse = [
        f"{each.where} ({_number(each.ours.mean, 3)} against {each.published:.2f})"
        for each in comparisons
        if each.ours is not None and each.is_worse
    ]
    if worse:
        bad = Verdict.ABOVE if good is Verdict.BELOW else Verdict.BELOW
        parts.append(f"**{bad.value}** in {listed(worse)}")
    if count[Verdict.OPEN]:
        alone = Counter(each.by_mean.value for each in comparisons if each.verdict is Verdict.OPEN)
        numbers = listed([f"{alone[word]} {word}" for word in ("above", "equal", "below") if alone[word]])
        parts.append(f"{count[Verdict.OPEN]} with one trial and so without an interval, by the number alone {numbers}")
    if count[Verdict.NOT_RUN]:
        parts.append(f"{count[Verdict.NOT_RUN]} not run")
    return "; ".join(parts) + "."


def distinct(words: Iterable[str]) -> list[str]:
    """Each of the words once, in the order in which they first stand there."""
    return list(dict.fromkeys(words))


def listed(words: Sequence[str]) -> str:
    """Words as a sentence lists them.

    >>> listed(["Empty", "Lava", "Unlock"])
    'Empty, Lava and Unlock'
    """
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def plural(count: int, word: str) -> str:
    """A number of things."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table as Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def _number(value: float, digits: int, signed: bool = False) -> str:
    """Rounded, with no sign before a zero."""
    rounded = round(value, digits) + 0.0
    return f"{rounded:{'+' if signed and rounded else ''}.{digits}f}"


@final
@dataclass(frozen=True)
class Records:
    """Every cell of a family of experiments under a directory of results, to be asked by experiment and method."""

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
        """What was measured, by trial; nothing where the cell was not run, and no trial that failed."""
        cell = self._cells.get((experiment, method, frozenset(setting.items())), {"trials": []})
        return {trial["trial"]: trial for trial in cell["trials"] if "failed" not in trial}

    def cells(self, experiment: str) -> list[dict[str, Any]]:
        """The cells of an experiment that were run, as they lie in their files."""
        return [cell for (name, _, _), cell in self._cells.items() if name == experiment]

    @property
    def experiments(self) -> list[str]:
        """Those that were run, known ones first and in their order."""
        found = {name for name, _, _ in self._cells}
        return [*(name for name in EXPERIMENTS if name in found), *sorted(found - EXPERIMENTS.keys())]
