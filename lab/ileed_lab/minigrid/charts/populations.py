"""The figure of populations: reward of every method in every task and population."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from ileed.envs.simulation import POPULATIONS
from ileed_lab.comparison import Records
from ileed_lab.drawing import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    SKY,
    Row,
    colour_scale,
    count_range,
    estimate_rows,
    names_in,
    panel_heading,
    published_rings,
    rows_where,
    task_name,
    task_title,
    values_of,
    with_title,
)
from ileed_lab.minigrid.charts import POPULATION_NAMES, expert_reward, published_number
from ileed_lab.minigrid.measures import TASKS

__all__ = ["populations"]

_METHODS: Mapping[str, tuple[str, str, str, str | None, str]] = {
    "BC": ("minigrid/populations", "bc", "reward", "bc", ORANGE),
    "ILEED": ("minigrid/populations", "ileed", "reward", "ileed", BLUE),
    "ILEED ensemble": ("minigrid/populations", "ileed", "ensemble_reward", None, SKY),
    "GAIL variable": ("minigrid/gail", "variable", "reward", "gail", GREEN),
    "GAIL absorbing": ("minigrid/gail", "absorbing", "reward", None, PURPLE),
}
"""Experiment, method, measure, the published column to compare with, and colour."""


def populations(alt: ModuleType, records: Records) -> Any:
    """The chart, or None where the cells are missing."""
    rows: list[Row] = []
    for task in TASKS:
        for population in POPULATIONS:
            for method, (experiment, name, field, column, _) in _METHODS.items():
                trials = records.trials(experiment, name, task=task, population=population).values()
                line = f"{population}|{method}"
                where = {"task": task, "experiment": experiment, "line": line, "method": method}
                number = published_number("populations", task_name(task), population, column)
                rows += estimate_rows(values_of(trials, field), **where, published=number)
    if not any(row["experiment"] == "minigrid/populations" for row in rows):
        return None
    lines: list[str] = []
    for population, words in POPULATION_NAMES.items():
        own = [line for method in _METHODS if (line := f"{population}|{method}") in {row["line"] for row in rows}]
        lines += [words, *own] if own else []
    tasks = names_in(TASKS, rows, "task")
    panels = [
        _panel(alt, rows_where(rows, task=task), expert_reward(records, task), lines, first=task == tasks[0])
        for task in tasks
    ]
    gail = rows_where(rows, experiment="minigrid/gail")
    counts = count_range(row["trials"] for row in rows_where(rows, experiment="minigrid/populations"))
    counts += f" (GAIL: {count_range(row['trials'] for row in gail)})" if gail else ""
    return with_title(
        alt,
        alt.hconcat(*panels, spacing=14),
        "Does ILEED learn more than behaviour cloning from demonstrators of mixed skill?",
        f"Filled: ours, mean over {counts} trials, with a 95% bootstrap interval. Hollow: published. Dashed line: the "
        "expert. Ten demonstrators in each population; a good one follows the expert with probability 0.99, a random "
        "one with 0.01.",
    )


def _panel(alt: ModuleType, rows: list[Row], expert: float | None, lines: list[str], *, first: bool) -> Any:
    ends = [0.0, *(row["low"] for row in rows), *(row["published"] for row in rows if row["published"] is not None)]
    is_heading = "indexof(datum.value, '|') < 0"
    y_axis = alt.Axis(
        labelExpr="indexof(datum.label, '|') < 0 ? datum.label : split(datum.label, '|')[1]",
        labelFontWeight=alt.condition(is_heading, alt.value("bold"), alt.value("normal")),
        gridColor=alt.condition(is_heading, alt.value("white"), alt.value("#e6e9ec")),
        **{"labels": first, "ticks": False, "domain": False, "grid": True, "labelLimit": 0, "labelPadding": 8},
    )
    scale = alt.Scale(domain=[min(ends) - 0.05, 1.05], nice=False)
    x_axis = alt.Axis(values=[-0.5, 0, 0.5, 1], format=".2~f")

    def x(field: str) -> Any:
        return alt.X(field, title="mean episodic reward", scale=scale, axis=x_axis)

    base = alt.Chart(alt.Data(values=rows)).encode(
        y=alt.Y("line:N", sort=None, title=None, scale=alt.Scale(domain=lines), axis=y_axis),
        color=colour_scale(alt, "method:N", {method: colour for method, (*_, colour) in _METHODS.items()}),
    )
    width = 138
    layers = [
        base.mark_rule(aria=False, strokeWidth=2.5).encode(x=x("low:Q"), x2="high:Q"),
        base.mark_point(filled=True, size=45, opacity=1).encode(x=x("mean:Q"), description="label:N"),
        published_rings(base).encode(x=x("published:Q")),
        panel_heading(alt, task_title(rows[0]["task"]), width),
    ]
    if expert is not None:
        at = alt.Chart(alt.Data(values=[{"mean": expert}]))
        layers.insert(0, at.mark_rule(aria=False, strokeDash=[4, 3], color=INK).encode(x=x("mean:Q")))
    return alt.layer(*layers).properties(width=width, height=alt.Step(17))
