"""The figure of calibration: estimated and true expertise where expertise depends on the state."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from ileed_lab.comparison import Records
from ileed_lab.drawing import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    Row,
    count_range,
    panel_heading,
    task_name,
    task_title,
    vertical_axis,
    with_title,
)
from ileed_lab.minigrid.sequence import multi_skill
from ileed_lab.records import Measured

__all__ = ["calibration"]

_BIN = 0.04
"""Estimates this close are one dot."""


def calibration(alt: ModuleType, records: Records) -> Any:
    """The chart, or None where the cells are missing."""
    found = {
        float(cell["setting"]["beta"]): [trial for trial in cell["trials"] if "expertise" in trial]
        for cell in records.cells("minigrid/skills")
        if cell["method"] == "ileed"
    }
    found = {beta: found[beta] for beta in sorted(found) if found[beta]}
    if not found:
        return None
    stages = list(next(iter(multi_skill(1.0).values())))
    panels = []
    for stage in stages:
        for beta, trials in found.items():
            edges = {"first": beta == next(iter(found)), "top": stage == stages[0], "bottom": stage == stages[-1]}
            panels.append(_panel(alt, beta, stage, trials, **edges))
    return with_title(
        alt,
        alt.concat(*panels, columns=len(found), spacing={"row": 10, "column": 10}),
        "Is expertise that depends on the state estimated correctly?",
        "Each dot is the mean estimate of one demonstrator in one stage of the sequence of tasks; its area is the "
        f"share of trials (of {count_range(map(len, found.values()))}) with that estimate, and a bar is the mean over "
        "trials. The demonstrator who is skilled in the stage has a true expertise of 1 (blue), the two others of beta "
        "(orange, side by side). Estimates on the line are correct; each panel states the mean absolute error.",
    )


class _Estimates(NamedTuple):
    """What a panel shows: dots, means over trials, and the mean absolute error."""

    dots: list[Row]
    means: list[Row]
    error: float


def _estimates(beta: float, stage: str, trials: Sequence[Measured]) -> _Estimates:
    dots: list[Row] = []
    means: list[Row] = []
    errors: list[float] = []
    for person, skill in multi_skill(beta).items():
        own = person == f"skilled in {task_name(stage)}"
        estimates = np.array([trial["expertise"][person][stage] for trial in trials])
        errors += np.abs(estimates - skill[stage]).tolist()
        shift = 0.0 if own else -0.045 if all(row["own"] for row in means) else 0.045
        at = {"true": skill[stage] + shift, "own": own}
        heights, counts = np.unique(np.round(estimates / _BIN) * _BIN, return_counts=True)
        for height, count in zip(heights.tolist(), counts.tolist(), strict=True):
            label = f"{person}: about {height:.2f} in {count} of {len(trials)} trials"
            dots.append(at | {"estimated": height, "share": count / len(trials), "label": label})
        means.append(at | {"estimated": float(estimates.mean())})
    return _Estimates(dots, means, fmean(errors))


def _panel(
    alt: ModuleType, beta: float, stage: str, trials: Sequence[Measured], *, first: bool, top: bool, bottom: bool
) -> Any:
    shown = _estimates(beta, stage, trials)
    size, ticks = (124, 118), [0, 0.5, 1]
    x = alt.X(
        "true:Q",
        scale=alt.Scale(domain=[-0.12, 1.12], nice=False),
        title="true expertise" if bottom else None,
        axis=alt.Axis(values=ticks, labels=bottom, ticks=bottom),
    )
    y = vertical_axis(
        alt, (-0.28, 1.12), [task_title(stage), "estimated"] if first else None, values=ticks, numbered=first
    )
    colour = alt.condition("datum.own", alt.value(BLUE), alt.value(ORANGE))
    area = alt.Size("share:Q", legend=None, scale=alt.Scale(domain=[0, 1], range=[4, 150]))

    def marks(*rows: Row) -> Any:
        return alt.Chart(alt.Data(values=list(rows))).encode(x=x, y=y("estimated:Q"))

    diagonal = marks({"true": 0, "estimated": 0}, {"true": 1, "estimated": 1})
    error = marks({"true": 1.1, "estimated": -0.19, "label": f"error {shown.error:.2f}"})
    layers = [
        diagonal.mark_line(aria=False, color=GREY, strokeWidth=1.2),
        marks(*shown.dots).mark_circle(opacity=0.55).encode(color=colour, size=area, description="label:N"),
        marks(*shown.means)
        .mark_tick(aria=False, orient="horizontal", width=11, thickness=2.5, opacity=1)
        .encode(color=colour),
        error.mark_text(aria=False, align="right", fontSize=12, color=INK).encode(text="label:N"),
    ]
    if top:
        layers.append(panel_heading(alt, f"beta {beta:g}", size[0]))
    return alt.layer(*layers).properties(width=size[0], height=size[1])
