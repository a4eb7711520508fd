"""The figure of restarts: reward of the policy and how often it reaches its demonstrators, by restarts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import fmean
from types import ModuleType
from typing import Any

from ileed_lab.comparison import Estimate, Records
from ileed_lab.drawing import (
    BLUE,
    GREY,
    ORANGE,
    Panel,
    Row,
    axis_range,
    colour_scale,
    count_range,
    end_labels,
    estimate_row,
    estimate_rows,
    panel_heading,
    published_rings,
    task_name,
    task_title,
    vertical_axis,
    with_title,
)
from ileed_lab.minigrid.charts import published_number
from ileed_lab.minigrid.measures import TASKS
from ileed_lab.records import Measured

__all__ = ["restarts"]

_REFERENCES = {"mean": GREY, "best": ORANGE}
"""The demonstrators that a policy is compared with, with a colour."""


def restarts(alt: ModuleType, records: Records) -> Any:
    """The chart, or None where the cells are missing."""
    found = {task: list(records.trials("minigrid/restarts", "ileed", task=task).values()) for task in TASKS}
    found = {task: trials for task, trials in found.items() if trials}
    if not found:
        return None
    first = next(iter(found))
    rewards = [_reward_panel(alt, task, trials, first=task == first) for task, trials in found.items()]
    shares = [_share_panel(alt, task, trials, first=task == first) for task, trials in found.items()]
    return with_title(
        alt,
        alt.concat(*rewards, *shares, columns=len(found), spacing={"row": 16, "column": 10}),
        "How many restarts does it take to reach the demonstrators?",
        f"{count_range(map(len, found.values()))} trials; ten demonstrators who act at random with a probability drawn "
        "from 0 to 0.5. The likeliest restart acts alone; in the ensemble the ten likeliest of 20 act "
        "together. Top: mean reward of the policy (blue), of the mean and of the best demonstrator, with 95% "
        "bootstrap intervals. Bottom: share of trials in which the policy earns at least as much, with Wilson's 95% "
        "interval; filled is ours, hollow is published.",
    )


def _choices(trials: Sequence[Measured]) -> dict[str, list[float]]:
    """The reward of each choice among restarts, by trial."""
    alone = {among: [trial["best_of"][among] for trial in trials] for among in trials[0]["best_of"]}
    return alone | {"ensemble": [trial["ensemble"] for trial in trials]}


def _demonstrators(trials: Sequence[Measured]) -> dict[str, list[float]]:
    rewards = [trial["demonstrators"] for trial in trials]
    return {"mean": [fmean(each) for each in rewards], "best": [max(each) for each in rewards]}


def _reward_panel(alt: ModuleType, task: str, trials: Sequence[Measured], *, first: bool) -> Any:
    size, choices = (116, 150), _choices(trials)
    rows = [row for k, name in enumerate(choices) for row in estimate_rows(choices[name], choice=name, x=k)]
    lines = [row for name, rewards in _demonstrators(trials).items() for row in estimate_rows(rewards, reference=name)]
    domain = axis_range([*rows, *lines])
    y = vertical_axis(alt, domain, "mean episodic reward" if first else None)
    references = alt.Chart(alt.Data(values=lines)).encode(color=colour_scale(alt, "reference:N", _REFERENCES))
    base = alt.Chart(alt.Data(values=rows)).encode(x=_choice_axis(alt, list(choices), title=None))
    alone = base.transform_filter("datum.choice != 'ensemble'")
    labels = {row["reference"]: row["mean"] for row in lines}
    return alt.layer(
        references.mark_rect(aria=False, opacity=0.18).encode(y=y("low:Q"), y2="high:Q"),
        references.mark_rule(aria=False, strokeWidth=2).encode(y=y("mean:Q")),
        alone.mark_line(aria=False, color=BLUE, strokeWidth=1).encode(y=y("mean:Q")),
        base.mark_rule(aria=False, color=BLUE, strokeWidth=2.5).encode(y=y("low:Q"), y2="high:Q"),
        base.mark_point(color=BLUE, filled=True, size=55, opacity=1).encode(y=y("mean:Q"), description="label:N"),
        end_labels(alt, labels, _REFERENCES, Panel(y, domain, size)),
        panel_heading(alt, task_title(task), size[0]),
    ).properties(width=size[0], height=size[1])


def _share_panel(alt: ModuleType, task: str, trials: Sequence[Measured], *, first: bool) -> Any:
    """As on the page, a tie counts."""
    size, choices, domain = (116, 110), _choices(trials), (-0.06, 1.06)
    rows = _share_rows(task, choices, trials)
    y = vertical_axis(alt, domain, "share of trials" if first else None, values=[0, 0.5, 1], numbered=first)
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=_choice_axis(alt, list(choices), title="restarts"), color=colour_scale(alt, "reference:N", _REFERENCES)
    )
    last = {row["reference"]: row["mean"] for row in rows if row["choice"] == "ensemble"}
    alone = base.transform_filter("datum.choice != 'ensemble'")
    return alt.layer(
        alone.mark_line(aria=False, strokeWidth=1).encode(y=y("mean:Q")),
        base.mark_rule(aria=False, strokeWidth=2.5).encode(y=y("low:Q"), y2="high:Q"),
        base.mark_point(filled=True, size=45, opacity=1).encode(y=y("mean:Q"), description="label:N"),
        published_rings(base).encode(y=y("published:Q")),
        end_labels(alt, last, _REFERENCES, Panel(y, domain, size)),
    ).properties(width=size[0], height=size[1])


def _share_rows(task: str, choices: dict[str, list[float]], trials: Sequence[Measured]) -> list[Row]:
    rows: list[Row] = []
    for x, (choice, rewards) in enumerate(choices.items()):
        for reference, others in _demonstrators(trials).items():
            hits = sum(ours >= theirs for ours, theirs in zip(rewards, others, strict=True))
            row = {
                "choice": choice,
                "x": x + (0.09 if reference == "best" else -0.09),
                "reference": reference,
                "published": published_number("restarts", task_name(task), choice, reference),
            }
            numbers = estimate_row(Estimate.share(hits, len(trials)))
            rows.append(row | numbers | {"label": f"at least as much as the {reference}: {numbers['label']}"})
    return rows


def _choice_axis(alt: ModuleType, choices: list[str], *, title: str | None) -> Any:
    words = [["en-", "semble"] if choice == "ensemble" else choice for choice in choices]
    labels = f"{json.dumps(words)}[datum.value]"
    axis = alt.Axis(values=list(range(len(choices))), labelExpr=labels, labelOverlap=False, grid=False)
    return alt.X("x:Q", scale=alt.Scale(domain=[-0.5, len(choices) - 0.5], nice=False), axis=axis, title=title)
