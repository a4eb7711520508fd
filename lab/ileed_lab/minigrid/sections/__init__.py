"""The sections of the MiniGrid page, one module each; no measured number in them is typed by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, final

from ileed_lab.comparison import Comparison, Estimate, Records

__all__ = ["Paper", "Section", "Show", "expert_reward", "task_title"]

Paper = Mapping[str, Any]
"""The published numbers by table, as `published.toml` has them."""

Show = Callable[[str, str], str]
"""From a figure's name and its description to Markdown; empty if there is no such figure."""


@final
@dataclass(frozen=True)
class Section:
    """A section of the details page, and its comparisons with published numbers, by what is compared."""

    title: str
    paragraphs: Sequence[str]
    comparisons: Mapping[str, Sequence[Comparison]]
    conclusions: Sequence[str] = ()
    """What the result page leads with."""


def task_title(task: str) -> str:
    """As in 'Empty'."""
    return task.removeprefix("minigrid/").capitalize()


def expert_reward(records: Records, task: str, beta: float, method: str) -> Estimate | None:
    """Reward of a task's expert when it follows its policy with probability beta."""
    trials = records.trials("minigrid/experts", method, task=f"minigrid/{task}", beta=beta).values()
    if not trials:
        return None
    error = math.sqrt(sum(trial["standard_error"] ** 2 for trial in trials)) / len(trials)
    return Estimate.from_standard_error(fmean(trial["reward"] for trial in trials), error, trials=len(trials))
