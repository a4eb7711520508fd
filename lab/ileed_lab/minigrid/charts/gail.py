"""The figure of GAIL: its training curves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from ileed.envs.simulation import POPULATIONS
from ileed_lab.comparison import Records
from ileed_lab.drawing import (
    GREEN,
    INK,
    PURPLE,
    Panel,
    Row,
    count_range,
    curves_with_intervals,
    estimate_rows,
    names_in,
    panel_heading,
    rows_where,
    task_title,
    values_of,
    vertical_axis,
    with_title,
)
from ileed_lab.minigrid.charts import POPULATION_NAMES, expert_reward
from ileed_lab.minigrid.measures import TASKS

__all__ = ["gail"]

_HORIZONS = {"variable": GREEN, "absorbing": PURPLE}
_POINTS = 40
"""Approximate number of points of a training curve that are drawn."""


def gail(alt: ModuleType, records: Records) -> Any:
    """The chart, or None where the cells are missing."""
    rows: list[Row] = []
    for cell in records.cells("minigrid/gail"):
        if cell["method"] in _HORIZONS:
            where = {"task": cell["setting"]["task"], "population": cell["setting"].get("population", "")}
            rows += _mean_curve(values_of(cell["trials"], "curve"), kind=cell["method"], **where)
    if not rows:
        return None
    tasks, populations = names_in(TASKS, rows, "task"), names_in((*POPULATIONS, ""), rows, "population")
    panels = []
    for population in populations:
        for task in tasks:
            negative = min(row["low"] for row in rows_where(rows, task=task)) < -0.1
            first = [*POPULATION_NAMES.get(population, "").split(", "), "reward"] if task == tasks[0] else None
            domain = (-1.1 if negative else -0.06, 1.06)
            y = vertical_axis(alt, domain, first, values=[-1, 0, 1] if negative else [0, 0.5, 1])
            drawn = _panel(
                alt,
                rows_where(rows, task=task, population=population),
                Panel(y, domain, (min(240, 520 // len(tasks)), 90)),
                expert=expert_reward(records, task),
                heading=task_title(task) if population == populations[0] else None,
                bottom=population == populations[-1],
                labels=task == tasks[-1],
            )
            panels.append(drawn)
    return with_title(
        alt,
        alt.concat(*panels, columns=len(tasks), spacing={"row": 12, "column": 10}),
        "How does GAIL learn while it plays in the environment?",
        f"Episodic reward during training: mean over {count_range(row['trials'] for row in rows)} trials, with a 95% "
        "bootstrap interval. Variable (green): episodes end when the task ends them. Absorbing (purple, dashed): they "
        "continue in an absorbing state to a fixed length. Thin line: the expert.",
    )


def _mean_curve(curves: Iterable[Sequence[Mapping[str, Any]]], **fields: Any) -> list[Row]:
    """Mean over trials of reward by environment steps, at the steps of the first trial that all trials reached."""
    known = [
        np.array([[point["environment_steps"], point["reward"]] for point in curve if point.get("reward") is not None])
        for curve in curves
    ]
    known = [curve for curve in known if len(curve)]
    if not known:
        return []
    start, end = max(curve[0, 0] for curve in known), min(curve[-1, 0] for curve in known)
    steps = [step for step in known[0][:, 0].tolist() if start <= step <= end]
    rows: list[Row] = []
    for step in steps[:: max(1, len(steps) // _POINTS)]:
        rows += estimate_rows([float(np.interp(step, curve[:, 0], curve[:, 1])) for curve in known], x=step, **fields)
    return rows


def _panel(
    alt: ModuleType,
    rows: list[Row],
    panel: Panel,
    *,
    expert: float | None,
    heading: str | None,
    bottom: bool,
    labels: bool,
) -> Any:
    thousands = alt.Axis(tickCount=2, grid=False, labelExpr="datum.value ? format(datum.value, '~s') : '0'")
    scale = alt.Scale(nice=False, zero=True)
    x = alt.X("x:Q", title="environment steps" if bottom else None, axis=thousands, scale=scale)
    layers = [
        curves_with_intervals(alt, rows, _HORIZONS, x, panel, labels=labels, points=False, dashed="absorbing"),
    ]
    if expert is not None:
        line = alt.Chart(alt.Data(values=[{"mean": expert}]))
        layers.append(line.mark_rule(aria=False, color=INK).encode(y=panel.y("mean:Q")))
    if heading is not None:
        layers.append(panel_heading(alt, heading, panel.size[0]))
    return alt.layer(*layers).properties(width=panel.size[0], height=panel.size[1])
