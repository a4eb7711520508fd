"""Figures of the experiments, drawn from the cells that lie among results.

    python -m ileed_lab.minigrid.figures --results results --out docs/images

Filled marks are ours, hollow ones are published, bars and bands are where a mean over trials lies with 95 % confidence.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import Any

import numpy as np

from ileed import runs
from ileed.errors import require
from ileed.simulation import POPULATIONS
from ileed_lab.comparison import Estimate, Records
from ileed_lab.drawing import (
    BLUE,
    CONFIG,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    SKY,
    Row,
    Size,
    as_row,
    coloured,
    curves_with_bands,
    end_labels,
    estimated,
    measured_in,
    panel_heading,
    ring_where_published,
    rows_where,
    shown_range,
    span,
    task_name,
    task_title,
    those_present,
    titled,
    vertical_axis,
)
from ileed_lab.grid import Measured
from ileed_lab.minigrid.beyond_figures import how_much, wrong_noise
from ileed_lab.minigrid.experiment import TASKS
from ileed_lab.minigrid.page import published
from ileed_lab.minigrid.sequence import multi_skill

__all__ = ["figures"]


def figures(results: Path, out: Path) -> dict[str, Path]:
    """Write every figure whose cells lie in `results`, and return where each one is, by name.

    The names are "populations", "restarts", "calibration", "how-much", "wrong-noise" and "gail"; a file is called
    reproduction-NAME.svg. The figure of trajectories needs a fit: `ileed_lab.minigrid.trajectories` makes it.
    """
    alt, convert = require("altair", extra="report"), require("vl_convert", extra="report")
    records, written = Records(results), {}
    for name, draw in _FIGURES.items():
        chart = draw(alt, records)
        if chart is not None:
            drawn = convert.vegalite_to_svg(chart.to_dict() | {"config": CONFIG})
            written[name] = out / f"reproduction-{name}.svg"
            runs.write_file(written[name], str(drawn).encode())
    return written


# --- populations


_POPULATIONS = {
    "beta-1": "one good, nine random",
    "beta-5": "five good, five random",
    "beta-10": "ten good",
    "unif": "from poor to good",
}
_METHODS: Mapping[str, tuple[str, str, str, str | None, str]] = {
    "BC": ("minigrid/populations", "bc", "reward", "bc", ORANGE),
    "ILEED": ("minigrid/populations", "ileed", "reward", "ileed", BLUE),
    "ILEED committee": ("minigrid/populations", "ileed", "committee_reward", None, SKY),
    "GAIL variable": ("minigrid/gail", "variable", "reward", "gail", GREEN),
    "GAIL absorbing": ("minigrid/gail", "absorbing", "reward", None, PURPLE),
}
"""Experiment, method, what is measured, the published column to stand beside, and colour."""


def _populations(alt: ModuleType, records: Records) -> Any:
    rows: list[Row] = []
    for task in TASKS:
        for population in POPULATIONS:
            for method, (experiment, name, field, column, _) in _METHODS.items():
                trials = records.trials(experiment, name, task=task, population=population).values()
                line = f"{population}|{method}"
                where = {"task": task, "experiment": experiment, "line": line, "method": method}
                theirs = _published("populations", task_name(task), population, column)
                rows += estimated(measured_in(trials, field), **where, published=theirs)
    if not any(row["experiment"] == "minigrid/populations" for row in rows):
        return None
    lines: list[str] = []
    for population, words in _POPULATIONS.items():
        own = [line for method in _METHODS if (line := f"{population}|{method}") in {row["line"] for row in rows}]
        lines += [words, *own] if own else []
    tasks = those_present(TASKS, rows, "task")
    panels = [
        _population_panel(alt, rows_where(rows, task=task), _expert(records, task), lines, first=task == tasks[0])
        for task in tasks
    ]
    playing = rows_where(rows, experiment="minigrid/gail")
    counts = span(row["trials"] for row in rows_where(rows, experiment="minigrid/populations"))
    counts += f" (GAIL: {span(row['trials'] for row in playing)})" if playing else ""
    return titled(
        alt,
        alt.hconcat(*panels, spacing=14),
        "Does ILEED learn more than behaviour cloning from a mixed group of demonstrators?",
        f"Filled: ours, mean of {counts} trials with its 95 % interval. Hollow: published. Dashed line: the expert "
        "itself. Ten demonstrators in each group; a good one follows the expert with probability 0.99, a random one "
        "with 0.01.",
    )


def _population_panel(alt: ModuleType, rows: list[Row], expert: float | None, lines: list[str], *, first: bool) -> Any:
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
        return alt.X(field, title="reward of an episode", scale=scale, axis=x_axis)

    base = alt.Chart(alt.Data(values=rows)).encode(
        y=alt.Y("line:N", sort=None, title=None, scale=alt.Scale(domain=lines), axis=y_axis),
        color=coloured(alt, "method:N", {method: colour for method, (*_, colour) in _METHODS.items()}),
    )
    width = 138
    layers = [
        base.mark_rule(aria=False, strokeWidth=2.5).encode(x=x("low:Q"), x2="high:Q"),
        base.mark_point(filled=True, size=45, opacity=1).encode(x=x("mean:Q"), description="told:N"),
        ring_where_published(base).encode(x=x("published:Q")),
        panel_heading(alt, task_title(rows[0]["task"]), width),
    ]
    if expert is not None:
        at = alt.Chart(alt.Data(values=[{"mean": expert}]))
        layers.insert(0, at.mark_rule(aria=False, strokeDash=[4, 3], color=INK).encode(x=x("mean:Q")))
    return alt.layer(*layers).properties(width=width, height=alt.Step(17))


# --- restarts


_RIVALS = {"mean": GREY, "best": ORANGE}
"""Whom a policy is held against among the demonstrators, with a colour."""


def _restarts(alt: ModuleType, records: Records) -> Any:
    found = {task: list(records.trials("minigrid/restarts", "ileed", task=task).values()) for task in TASKS}
    found = {task: trials for task, trials in found.items() if trials}
    if not found:
        return None
    first = next(iter(found))
    rewards = [_reward_by_restarts(alt, task, trials, first=task == first) for task, trials in found.items()]
    beaten = [_beaten_by_restarts(alt, task, trials, first=task == first) for task, trials in found.items()]
    return titled(
        alt,
        alt.concat(*rewards, *beaten, columns=len(found), spacing={"row": 16, "column": 10}),
        "How many restarts does it take to beat the demonstrators?",
        f"Mean of {span(map(len, found.values()))} trials with its 95 % interval; ten demonstrators whose noise is "
        "drawn from 0 to 0.5. The likeliest of so many restarts acts alone; in the committee the likeliest ten of 20 "
        "act together. Above: what that earns (blue), and what the mean and the best demonstrator earn. Below: how "
        "often it earns as much as they do or more; filled is ours, hollow is published.",
    )


def _choices(trials: Sequence[Measured]) -> dict[str, list[float]]:
    """What each choice among restarts earned, trial by trial."""
    alone = {among: [trial["best_of"][among] for trial in trials] for among in trials[0]["best_of"]}
    return alone | {"committee": [trial["committee"] for trial in trials]}


def _demonstrators(trials: Sequence[Measured]) -> dict[str, list[float]]:
    shown = [trial["demonstrators"] for trial in trials]
    return {"mean": [fmean(rewards) for rewards in shown], "best": [max(rewards) for rewards in shown]}


def _reward_by_restarts(alt: ModuleType, task: str, trials: Sequence[Measured], *, first: bool) -> Any:
    size, choices = (116, 150), _choices(trials)
    rows = [row for k, name in enumerate(choices) for row in estimated(choices[name], choice=name, place=k)]
    lines = [row for rival, rewards in _demonstrators(trials).items() for row in estimated(rewards, rival=rival)]
    domain = shown_range([*rows, *lines])
    y = vertical_axis(alt, domain, "reward of an episode" if first else None)
    rivals = alt.Chart(alt.Data(values=lines)).encode(color=coloured(alt, "rival:N", _RIVALS))
    base = alt.Chart(alt.Data(values=rows)).encode(x=_choice_axis(alt, list(choices), title=None))
    alone = base.transform_filter("datum.choice != 'committee'")
    return alt.layer(
        rivals.mark_rect(aria=False, opacity=0.18).encode(y=y("low:Q"), y2="high:Q"),
        rivals.mark_rule(aria=False, strokeWidth=2).encode(y=y("mean:Q")),
        alone.mark_line(aria=False, color=BLUE, strokeWidth=1).encode(y=y("mean:Q")),
        base.mark_rule(aria=False, color=BLUE, strokeWidth=2.5).encode(y=y("low:Q"), y2="high:Q"),
        base.mark_point(color=BLUE, filled=True, size=55, opacity=1).encode(y=y("mean:Q"), description="told:N"),
        end_labels(alt, {row["rival"]: row["mean"] for row in lines}, _RIVALS, y, domain, size),
        panel_heading(alt, task_title(task), size[0]),
    ).properties(width=size[0], height=size[1])


def _beaten_by_restarts(alt: ModuleType, task: str, trials: Sequence[Measured], *, first: bool) -> Any:
    """As on the page of tables, a tie counts."""
    size, choices, domain = (116, 110), _choices(trials), (-0.06, 1.06)
    rows: list[Row] = []
    for place, (choice, rewards) in enumerate(choices.items()):
        for rival, rivals in _demonstrators(trials).items():
            hits = sum(ours >= theirs for ours, theirs in zip(rewards, rivals, strict=True))
            row = {
                "choice": choice,
                "place": place + (0.09 if rival == "best" else -0.09),
                "rival": rival,
                "published": _published("restarts", task_name(task), choice, rival),
            }
            numbers = as_row(Estimate.share(hits, len(trials)))
            rows.append(row | numbers | {"told": f"as much as the {rival} or more: {numbers['told']}"})
    y = vertical_axis(alt, domain, "share of trials" if first else None, values=[0, 0.5, 1], numbered=first)
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=_choice_axis(alt, list(choices), title="restarts"), color=coloured(alt, "rival:N", _RIVALS)
    )
    last = {row["rival"]: row["mean"] for row in rows if row["choice"] == "committee"}
    alone = base.transform_filter("datum.choice != 'committee'")
    return alt.layer(
        alone.mark_line(aria=False, strokeWidth=1).encode(y=y("mean:Q")),
        base.mark_rule(aria=False, strokeWidth=2.5).encode(y=y("low:Q"), y2="high:Q"),
        base.mark_point(filled=True, size=45, opacity=1).encode(y=y("mean:Q"), description="told:N"),
        ring_where_published(base).encode(y=y("published:Q")),
        end_labels(alt, last, _RIVALS, y, domain, size),
    ).properties(width=size[0], height=size[1])


def _choice_axis(alt: ModuleType, choices: list[str], *, title: str | None) -> Any:
    words = [["com-", "mittee"] if choice == "committee" else choice for choice in choices]
    told = f"{json.dumps(words)}[datum.value]"
    axis = alt.Axis(values=list(range(len(choices))), labelExpr=told, labelOverlap=False, grid=False)
    return alt.X("place:Q", scale=alt.Scale(domain=[-0.5, len(choices) - 0.5], nice=False), axis=axis, title=title)


# --- calibration


_BIN = 0.04
"""Estimates this close are one dot."""


def _calibration(alt: ModuleType, records: Records) -> Any:
    found = {
        float(cell["setting"]["beta"]): [trial for trial in cell["trials"] if "expertise" in trial]
        for cell in records.cells("minigrid/skills")
        if cell["method"] == "ileed"
    }
    found = {beta: found[beta] for beta in sorted(found) if found[beta]}
    if not found:
        return None
    parts = list(next(iter(multi_skill(1.0).values())))
    panels = []
    for part in parts:
        for beta, trials in found.items():
            edges = {"first": beta == next(iter(found)), "top": part == parts[0], "bottom": part == parts[-1]}
            panels.append(_calibration_panel(alt, beta, part, trials, **edges))
    return titled(
        alt,
        alt.concat(*panels, columns=len(found), spacing={"row": 10, "column": 10}),
        "Is expertise that depends on the state estimated rightly?",
        "Each dot is one demonstrator's mean estimate in a part of the multi-skill task, the larger the more trials "
        f"(of {span(map(len, found.values()))}) gave it; a bar is the mean over trials. Who is skilled in that part "
        "has a true expertise of 1 (blue), the two others have beta (orange, side by side). On the line the estimate "
        "is true; the mean distance from it stands in each panel.",
    )


def _calibration_panel(
    alt: ModuleType, beta: float, part: str, trials: Sequence[Measured], *, first: bool, top: bool, bottom: bool
) -> Any:
    dots: list[Row] = []
    means: list[Row] = []
    distances: list[float] = []
    for person, skill in multi_skill(beta).items():
        own = person == f"skilled in {task_name(part)}"
        estimates = np.array([trial["expertise"][person][part] for trial in trials])
        distances += np.abs(estimates - skill[part]).tolist()
        beside = 0.0 if own else -0.045 if all(row["own"] for row in means) else 0.045
        at = {"true": skill[part] + beside, "own": own}
        heights, counts = np.unique(np.round(estimates / _BIN) * _BIN, return_counts=True)
        for height, count in zip(heights.tolist(), counts.tolist(), strict=True):
            told = f"{person}: about {height:.2f} in {count} of {len(trials)} trials"
            dots.append(at | {"estimated": height, "share": count / len(trials), "told": told})
        means.append(at | {"estimated": float(estimates.mean())})
    size, ticks = (124, 118), [0, 0.5, 1]
    x = alt.X(
        "true:Q",
        scale=alt.Scale(domain=[-0.12, 1.12], nice=False),
        title="true expertise" if bottom else None,
        axis=alt.Axis(values=ticks, labels=bottom, ticks=bottom),
    )
    y = vertical_axis(
        alt, (-0.28, 1.12), [task_title(part), "estimated"] if first else None, values=ticks, numbered=first
    )
    colour = alt.condition("datum.own", alt.value(BLUE), alt.value(ORANGE))
    area = alt.Size("share:Q", legend=None, scale=alt.Scale(domain=[0, 1], range=[4, 150]))

    def marks(*rows: Row) -> Any:
        return alt.Chart(alt.Data(values=list(rows))).encode(x=x, y=y("estimated:Q"))

    diagonal = marks({"true": 0, "estimated": 0}, {"true": 1, "estimated": 1})
    error = marks({"true": 1.1, "estimated": -0.19, "told": f"off by {fmean(distances):.2f}"})
    layers = [
        diagonal.mark_line(aria=False, color=GREY, strokeWidth=1.2),
        marks(*dots).mark_circle(opacity=0.55).encode(color=colour, size=area, description="told:N"),
        marks(*means)
        .mark_tick(aria=False, orient="horizontal", width=11, thickness=2.5, opacity=1)
        .encode(color=colour),
        error.mark_text(aria=False, align="right", fontSize=12, color=INK).encode(text="told:N"),
    ]
    if top:
        layers.append(panel_heading(alt, f"beta {beta:g}", size[0]))
    return alt.layer(*layers).properties(width=size[0], height=size[1])


# --- GAIL


_HORIZONS = {"variable": GREEN, "absorbing": PURPLE}
_POINTS = 40
"""Of a training curve, about so many are drawn."""


def _gail(alt: ModuleType, records: Records) -> Any:
    rows: list[Row] = []
    for cell in records.cells("minigrid/gail"):
        if cell["method"] in _HORIZONS:
            where = {"task": cell["setting"]["task"], "population": cell["setting"].get("population", "")}
            rows += _mean_curve(measured_in(cell["trials"], "curve"), kind=cell["method"], **where)
    if not rows:
        return None
    tasks, populations = those_present(TASKS, rows, "task"), those_present((*POPULATIONS, ""), rows, "population")
    panels = []
    for population in populations:
        for task in tasks:
            below = min(row["low"] for row in rows_where(rows, task=task)) < -0.1
            panel = _gail_panel(
                alt,
                rows_where(rows, task=task, population=population),
                (min(240, 520 // len(tasks)), 90),
                expert=_expert(records, task),
                below=below,
                heading=task_title(task) if population == populations[0] else None,
                title=[*_POPULATIONS.get(population, "").split(", "), "reward"] if task == tasks[0] else None,
                bottom=population == populations[-1],
                labels=task == tasks[-1],
            )
            panels.append(panel)
    return titled(
        alt,
        alt.concat(*panels, columns=len(tasks), spacing={"row": 12, "column": 10}),
        "How does GAIL learn, when it may play in the environment?",
        f"Reward of an episode while it learns; mean of {span(row['trials'] for row in rows)} trials with its 95 % "
        "interval. Variable (green): episodes end when the task ends them. Absorbing (purple, dashed): they go on in "
        "an absorbing state to a fixed length. Thin line: the expert itself.",
    )


def _mean_curve(curves: Iterable[Sequence[Mapping[str, Any]]], **what: Any) -> list[Row]:
    """The mean over trials of reward by environment steps, at the steps of the first, where all trials have been."""
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
        rows += estimated([float(np.interp(step, curve[:, 0], curve[:, 1])) for curve in known], x=step, **what)
    return rows


def _gail_panel(
    alt: ModuleType,
    rows: list[Row],
    size: Size,
    *,
    expert: float | None,
    below: bool,
    heading: str | None,
    title: list[str] | None,
    bottom: bool,
    labels: bool,
) -> Any:
    thousands = alt.Axis(tickCount=2, grid=False, labelExpr="datum.value ? format(datum.value, '~s') : '0'")
    scale = alt.Scale(nice=False, zero=True)
    x = alt.X("x:Q", title="environment steps" if bottom else None, axis=thousands, scale=scale)
    domain = (-1.1 if below else -0.06, 1.06)
    y = vertical_axis(alt, domain, title, values=[-1, 0, 1] if below else [0, 0.5, 1])
    curves = curves_with_bands(
        alt, rows, _HORIZONS, x, y, domain, size, labels=labels, points=False, dashed="absorbing"
    )
    layers = [curves]
    if expert is not None:
        layers.append(
            alt.Chart(alt.Data(values=[{"mean": expert}])).mark_rule(aria=False, color=INK).encode(y=y("mean:Q"))
        )
    if heading is not None:
        layers.append(panel_heading(alt, heading, size[0]))
    return alt.layer(*layers).properties(width=size[0], height=size[1])


_paper = cache(published)


def _published(*path: str | None) -> float | None:
    found: Any = _paper()
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _expert(records: Records, task: str) -> float | None:
    """What the expert of a task earns when it always follows itself."""
    rewards = measured_in(records.trials("minigrid/experts", "uniform noise", task=task, beta=1.0).values(), "reward")
    return fmean(rewards) if rewards else None


_FIGURES: Mapping[str, Callable[[ModuleType, Records], Any]] = {
    "populations": _populations,
    "restarts": _restarts,
    "calibration": _calibration,
    "how-much": how_much,
    "wrong-noise": wrong_noise,
    "gail": _gail,
}
"""From Altair and the records to a chart, or None where the cells are missing."""


def main() -> None:
    """Draw all figures that the results allow."""
    reader = argparse.ArgumentParser(description="Draw the figures of the experiments from their results.")
    reader.add_argument("--results", type=Path, default=Path("results"))
    reader.add_argument("--out", type=Path, default=Path("docs/images"))
    asked = reader.parse_args()
    figures(asked.results, asked.out)


if __name__ == "__main__":
    main()
