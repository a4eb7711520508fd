"""Figures of the experiments, drawn from the cells that lie among results.

    python -m ileed.experiments.figures --results results --out docs/images

Filled marks are ours, hollow ones are published, bars and bands are where a mean over trials lies with 95 % confidence.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from math import isfinite
from pathlib import Path
from statistics import fmean
from textwrap import wrap
from types import ModuleType
from typing import Any

import numpy as np

from ileed import runs
from ileed.errors import require
from ileed.experiments.comparison import Estimate, Records
from ileed.experiments.grid import Measured
from ileed.experiments.minigrid import GENERATORS, TASKS
from ileed.experiments.tables import published
from ileed.simulation import POPULATIONS, multi_skill

__all__ = ["figures"]

Row = dict[str, Any]
Size = tuple[int, int]
Vertical = Callable[[str], Any]
"""From a field to its place on the vertical axis that all layers of a panel share."""

_BLUE, _ORANGE, _SKY, _GREEN, _PURPLE = "#0072B2", "#D55E00", "#3a9bd4", "#009E73", "#a8598a"  # after Okabe and Ito
_INK, _GREY, _PALE = "#1f2933", "#77818b", "#c9d0d6"
_LETTERS = 126  # in a line of explanation, short enough for a reader's font that is wider than ours

_TEXT = {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "labelColor": _INK, "titleColor": _INK}
_CONFIG: dict[str, Any] = {
    "background": "white",
    "padding": {"left": 10, "right": 12, "top": 6, "bottom": 6},
    "font": "sans-serif",
    "view": {"stroke": None},
    "axis": {**_TEXT, "gridColor": "#e6e9ec", "domainColor": _PALE, "tickColor": _PALE},
    "title": {
        "anchor": "start",
        "color": _INK,
        "fontSize": 16,
        "subtitleColor": _INK,
        "subtitleFontSize": 12,
        "subtitlePadding": 6,
        "subtitleLineHeight": 17,
        "offset": 14,
    },
}


def figures(results: Path, out: Path) -> dict[str, Path]:
    """Write every figure whose cells lie in `results`, and return where each one is, by name.

    The names are "populations", "restarts", "calibration", "how-much", "wrong-noise" and "gail"; a file is called
    reproduction-NAME.svg. The figure of trajectories needs a fit: `ileed.experiments.trajectories` makes it.
    """
    alt, convert = require("altair", extra="report"), require("vl_convert", extra="report")
    records, written = Records(results), {}
    for name, draw in _FIGURES.items():
        chart = draw(alt, records)
        if chart is not None:
            drawn = convert.vegalite_to_svg(chart.to_dict() | {"config": _CONFIG})
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
    "BC": ("minigrid/populations", "bc", "reward", "bc", _ORANGE),
    "ILEED": ("minigrid/populations", "ileed", "reward", "ileed", _BLUE),
    "ILEED committee": ("minigrid/populations", "ileed", "committee_reward", None, _SKY),
    "GAIL variable": ("minigrid/gail", "variable", "reward", "gail", _GREEN),
    "GAIL absorbing": ("minigrid/gail", "absorbing", "reward", None, _PURPLE),
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
                theirs = _published("populations", _short(task), population, column)
                rows += _estimated(_of(trials, field), **where, published=theirs)
    if not any(row["experiment"] == "minigrid/populations" for row in rows):
        return None
    lines: list[str] = []
    for population, words in _POPULATIONS.items():
        own = [line for method in _METHODS if (line := f"{population}|{method}") in {row["line"] for row in rows}]
        lines += [words, *own] if own else []
    tasks = _present(TASKS, rows, "task")
    panels = [
        _population_panel(alt, _where(rows, task=task), _expert(records, task), lines, first=task == tasks[0])
        for task in tasks
    ]
    playing = _where(rows, experiment="minigrid/gail")
    counts = _span(row["trials"] for row in _where(rows, experiment="minigrid/populations"))
    counts += f" (GAIL: {_span(row['trials'] for row in playing)})" if playing else ""
    return _titled(
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
        color=_coloured(alt, "method:N", {method: colour for method, (*_, colour) in _METHODS.items()}),
    )
    width = 138
    layers = [
        base.mark_rule(aria=False, strokeWidth=2.5).encode(x=x("low:Q"), x2="high:Q"),
        base.mark_point(filled=True, size=45, opacity=1).encode(x=x("mean:Q"), description="told:N"),
        _hollow(base).encode(x=x("published:Q")),
        _heading(alt, _title(rows[0]["task"]), width),
    ]
    if expert is not None:
        at = alt.Chart(alt.Data(values=[{"mean": expert}]))
        layers.insert(0, at.mark_rule(aria=False, strokeDash=[4, 3], color=_INK).encode(x=x("mean:Q")))
    return alt.layer(*layers).properties(width=width, height=alt.Step(17))


# --- restarts


_RIVALS = {"mean": _GREY, "best": _ORANGE}
"""Whom a policy is held against among the demonstrators, with a colour."""


def _restarts(alt: ModuleType, records: Records) -> Any:
    found = {task: list(records.trials("minigrid/restarts", "ileed", task=task).values()) for task in TASKS}
    found = {task: trials for task, trials in found.items() if trials}
    if not found:
        return None
    first = next(iter(found))
    rewards = [_reward_by_restarts(alt, task, trials, first=task == first) for task, trials in found.items()]
    beaten = [_beaten_by_restarts(alt, task, trials, first=task == first) for task, trials in found.items()]
    return _titled(
        alt,
        alt.concat(*rewards, *beaten, columns=len(found), spacing={"row": 16, "column": 10}),
        "How many restarts does it take to beat the demonstrators?",
        f"Mean of {_span(map(len, found.values()))} trials with its 95 % interval; ten demonstrators whose noise is "
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
    rows = [row for k, name in enumerate(choices) for row in _estimated(choices[name], choice=name, place=k)]
    lines = [row for rival, rewards in _demonstrators(trials).items() for row in _estimated(rewards, rival=rival)]
    domain = _domain([*rows, *lines])
    y = _vertical(alt, domain, "reward of an episode" if first else None)
    rivals = alt.Chart(alt.Data(values=lines)).encode(color=_coloured(alt, "rival:N", _RIVALS))
    base = alt.Chart(alt.Data(values=rows)).encode(x=_choice_axis(alt, list(choices), title=None))
    alone = base.transform_filter("datum.choice != 'committee'")
    return alt.layer(
        rivals.mark_rect(aria=False, opacity=0.18).encode(y=y("low:Q"), y2="high:Q"),
        rivals.mark_rule(aria=False, strokeWidth=2).encode(y=y("mean:Q")),
        alone.mark_line(aria=False, color=_BLUE, strokeWidth=1).encode(y=y("mean:Q")),
        base.mark_rule(aria=False, color=_BLUE, strokeWidth=2.5).encode(y=y("low:Q"), y2="high:Q"),
        base.mark_point(color=_BLUE, filled=True, size=55, opacity=1).encode(y=y("mean:Q"), description="told:N"),
        _labels(alt, {row["rival"]: row["mean"] for row in lines}, _RIVALS, y, domain, size),
        _heading(alt, _title(task), size[0]),
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
                "published": _published("restarts", _short(task), choice, rival),
            }
            numbers = _numbers(Estimate.share(hits, len(trials)))
            rows.append(row | numbers | {"told": f"as much as the {rival} or more: {numbers['told']}"})
    y = _vertical(alt, domain, "share of trials" if first else None, values=[0, 0.5, 1], numbered=first)
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=_choice_axis(alt, list(choices), title="restarts"), color=_coloured(alt, "rival:N", _RIVALS)
    )
    last = {row["rival"]: row["mean"] for row in rows if row["choice"] == "committee"}
    alone = base.transform_filter("datum.choice != 'committee'")
    return alt.layer(
        alone.mark_line(aria=False, strokeWidth=1).encode(y=y("mean:Q")),
        base.mark_rule(aria=False, strokeWidth=2.5).encode(y=y("low:Q"), y2="high:Q"),
        base.mark_point(filled=True, size=45, opacity=1).encode(y=y("mean:Q"), description="told:N"),
        _hollow(base).encode(y=y("published:Q")),
        _labels(alt, last, _RIVALS, y, domain, size),
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
    return _titled(
        alt,
        alt.concat(*panels, columns=len(found), spacing={"row": 10, "column": 10}),
        "Is expertise that depends on the state estimated rightly?",
        "Each dot is one demonstrator's mean estimate in a part of the multi-skill task, the larger the more trials "
        f"(of {_span(map(len, found.values()))}) gave it; a bar is the mean over trials. Who is skilled in that part "
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
        own = person == f"skilled in {_short(part)}"
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
    y = _vertical(alt, (-0.28, 1.12), [_title(part), "estimated"] if first else None, values=ticks, numbered=first)
    colour = alt.condition("datum.own", alt.value(_BLUE), alt.value(_ORANGE))
    area = alt.Size("share:Q", legend=None, scale=alt.Scale(domain=[0, 1], range=[4, 150]))

    def marks(*rows: Row) -> Any:
        return alt.Chart(alt.Data(values=list(rows))).encode(x=x, y=y("estimated:Q"))

    diagonal = marks({"true": 0, "estimated": 0}, {"true": 1, "estimated": 1})
    error = marks({"true": 1.1, "estimated": -0.19, "told": f"off by {fmean(distances):.2f}"})
    layers = [
        diagonal.mark_line(aria=False, color=_GREY, strokeWidth=1.2),
        marks(*dots).mark_circle(opacity=0.55).encode(color=colour, size=area, description="told:N"),
        marks(*means)
        .mark_tick(aria=False, orient="horizontal", width=11, thickness=2.5, opacity=1)
        .encode(color=colour),
        error.mark_text(aria=False, align="right", fontSize=12, color=_INK).encode(text="told:N"),
    ]
    if top:
        layers.append(_heading(alt, f"beta {beta:g}", size[0]))
    return alt.layer(*layers).properties(width=size[0], height=size[1])


# --- how much


_LEARNERS = {"BC": _ORANGE, "ILEED": _BLUE}
_MEASURES = {
    "reward": ["reward of", "an episode"],
    "rank_loss": ["rank loss: share of", "pairs misordered"],
    "fit_seconds": ["seconds of a fit", "of all restarts"],
}
_USUAL = {"demonstrators": 10, "steps": 1_000}


def _how_much(alt: ModuleType, records: Records) -> Any:
    cells = [cell for cell in records.cells("minigrid/how-much") if cell["method"].upper() in _LEARNERS]
    columns = {
        "demonstrators, 1,000 steps each": _swept(cells, "demonstrators"),
        "steps of each of 10 demonstrators": _swept(cells, "steps"),
        "restarts, the likeliest kept": _swept_restarts(cells),
    }
    columns = {title: rows for title, rows in columns.items() if rows}
    if not columns:
        return None
    size, panels = (186, 120), []
    for measure, words in _MEASURES.items():
        own = {title: _where(rows, measure=measure) for title, rows in columns.items()}
        everything = [row for rows in own.values() for row in rows]
        if not everything:
            continue
        domain = _domain(everything, least=None if measure == "reward" else 0.0)
        for title, rows in own.items():
            first, bottom = title == next(iter(own)), measure == list(_MEASURES)[-1]
            places = sorted({row["x"] for row in columns[title]})
            x = alt.X(
                "x:Q",
                title=title if bottom else None,
                scale=alt.Scale(type="log", domain=[0.85 * places[0], 1.18 * places[-1]], nice=False),
                axis=alt.Axis(values=places, format=",d", grid=False),
            )
            y = _vertical(alt, domain, words if first else None, numbered=first)
            panels.append(_curves(alt, rows, _LEARNERS, x, y, domain, size))
    devices = sorted({origin["device"] for cell in cells for origin in cell["made"] if "device" in origin})
    on = f" ({' and '.join(devices)})" if devices else ""
    return _titled(
        alt,
        alt.concat(*panels, columns=len(columns), spacing={"row": 14, "column": 14}),
        "How much data and how many restarts are enough, and what do they cost?",
        "Obstacles, demonstrators of evenly spread skill from 0.05 to 0.95. Mean of "
        f"{_span(row['trials'] for rows in columns.values() for row in rows)} trials with its 95 % interval. Cost: one "
        f"trial's share of the time in which many were fitted side by side{on}; the likeliest of fewer restarts is "
        "taken from the same fit, so there is one cost for all of them. BC ranks nobody.",
    )


def _swept(cells: Sequence[Mapping[str, Any]], name: str) -> list[Row]:
    """What was measured where the setting differs from the usual one in nothing but `name`."""
    rest = {key: value for key, value in _USUAL.items() if key != name}
    own = [cell for cell in cells if all(cell["setting"].get(key) == value for key, value in rest.items())]
    return [
        row
        for cell in sorted(own, key=lambda cell: float(cell["setting"][name]))
        for measure in _MEASURES
        for row in _estimated(
            _of(cell["trials"], measure), x=cell["setting"][name], kind=cell["method"].upper(), measure=measure
        )
    ]


def _swept_restarts(cells: Sequence[Mapping[str, Any]]) -> list[Row]:
    """What the likeliest of fewer restarts did in the usual setting, and what all of them cost."""
    rows = []
    for cell in [cell for cell in cells if dict(cell["setting"]) == _USUAL]:
        kind, trials = cell["method"].upper(), [trial for trial in cell["trials"] if "best_of" in trial]
        for among in sorted({int(among) for trial in trials for among in trial["best_of"]}):
            chosen = [trial["best_of"][str(among)] for trial in trials]
            for measure in ("reward", "rank_loss"):
                rows += _estimated(_of(chosen, measure), x=among, kind=kind, measure=measure)
        every = (cell.get("settings") or {}).get("restarts")
        if every:
            rows += _estimated(_of(trials, "fit_seconds"), x=every, kind=kind, measure="fit_seconds")
    return rows


# --- the wrong noise


_MODELS = {"bc": "BC", "uniform": "uniform", "one-versus-rest": "one-versus-rest", "boltzmann": "Boltzmann"}
_ERRING = {
    "uniform": "any action",
    "one-versus-rest": "any but the best",
    "boltzmann": "softened choice",
    "persistent": "the same again",
    "biased": "always forward",
}


def _wrong_noise(alt: ModuleType, records: Records) -> Any:
    rows: list[Row] = []
    for task in TASKS:
        for generator in GENERATORS:
            for model in _MODELS:
                trials = records.trials("minigrid/wrong-noise", model, task=task, generator=generator).values()
                for measure in ("reward", "rank_loss"):
                    where = {"task": task, "generator": generator, "model": model, "measure": measure}
                    rows += _estimated(_of(trials, measure), **where)
    if not rows:
        return None
    tasks, generators = _present(TASKS, rows, "task"), _present(GENERATORS, rows, "generator")
    grids = []
    for task in tasks:
        own, last = _where(rows, task=task), task == tasks[-1]
        by_reward = _matrix(alt, own, rows, "reward", list(_MODELS), generators, named=True, last=last)
        by_rank = _matrix(alt, own, rows, "rank_loss", list(_MODELS)[1:], generators, named=False, last=last)
        grids.append(alt.hconcat(by_reward, by_rank, spacing=16).resolve_scale(color="independent"))
    return _titled(
        alt,
        alt.vconcat(*grids, spacing=16).resolve_scale(color="independent"),
        "What does it cost to assume the wrong kind of error?",
        "Rows: what demonstrators do when they slip. Columns: what is assumed of them; framed where that is what they "
        f"do. Darker is worse. Mean of {_span(row['trials'] for row in rows)} trials ± half of its 95 % interval. Rank "
        "loss: share of pairs put in the wrong order; 0 is best, 0.5 is chance.",
    )


def _matrix(
    alt: ModuleType,
    own: list[Row],
    everything: list[Row],
    measure: str,
    models: Sequence[str],
    generators: Sequence[str],
    *,
    named: bool,
    last: bool,
) -> Any:
    """A cell for each way of erring and each model, its colour on the scale of everything that was so measured."""
    values = [row["mean"] for row in _where(everything, measure=measure)] or [0.0]
    worst, best = (min(values), max(values)) if measure == "reward" else (max(values), 0.0)
    cells: list[Row] = []
    for generator in generators:
        for model in models:
            cell: Row = {"assumed": _MODELS[model], "erring": _two_lines(generator), "told": "not run"}
            for row in _where(own, measure=measure, generator=generator, model=model):
                mean, reach = row["mean"], (row["high"] - row["low"]) / 2
                is_dark = abs(mean - worst) < abs(mean - best)
                cell |= {
                    "told": f"{mean:.2f} ± {reach:.2f}",
                    "mean": mean,
                    "dark": is_dark,
                    "right": model == generator,
                }
            cells.append(cell)
    axis = {"ticks": False, "domain": False, "labelOverlap": False, "labelLimit": 0, "labelPadding": 6}
    x_axis = alt.Axis(labelAngle=0, labels=last, **axis)
    y_axis = alt.Axis(labels=named, labelExpr="split(datum.label, '|')", labelLineHeight=13, labelOffset=-6, **axis)
    base = alt.Chart(alt.Data(values=cells)).encode(
        x=alt.X("assumed:N", sort=None, title="assumed" if last else None, axis=x_axis),
        y=alt.Y("erring:N", sort=None, title=None, axis=y_axis),
    )
    colour = alt.Color("mean:Q", legend=None, scale=alt.Scale(scheme="cividis", domain=[worst, best]))
    ink = alt.condition("datum.dark", alt.value("white"), alt.value(_INK))
    band = {"width": {"band": 0.96}, "height": {"band": 0.92}}
    words = {"reward": "reward of an episode", "rank_loss": "rank loss"}[measure]
    return alt.layer(
        base.transform_filter("isValid(datum.mean)").mark_rect(aria=False, **band).encode(color=colour),
        base.transform_filter("datum.right").mark_rect(aria=False, fill=None, stroke=_INK, strokeWidth=3, **band),
        base.mark_text(aria=False, fontSize=12).encode(text="told:N", color=ink),
    ).properties(
        width=alt.Step(94),
        height=alt.Step(34),
        title=alt.Title(f"{_title(own[0]['task'])}: {words}", fontSize=13, offset=6),
    )


def _two_lines(generator: str) -> str:
    """What a way of erring is called, and what it does."""
    return f"{_MODELS.get(generator, generator)}|{_ERRING[generator]}"


# --- GAIL


_HORIZONS = {"variable": _GREEN, "absorbing": _PURPLE}
_POINTS = 40
"""Of a training curve, about so many are drawn."""


def _gail(alt: ModuleType, records: Records) -> Any:
    rows: list[Row] = []
    for cell in records.cells("minigrid/gail"):
        if cell["method"] in _HORIZONS:
            where = {"task": cell["setting"]["task"], "population": cell["setting"].get("population", "")}
            rows += _mean_curve(_of(cell["trials"], "curve"), kind=cell["method"], **where)
    if not rows:
        return None
    tasks, populations = _present(TASKS, rows, "task"), _present((*POPULATIONS, ""), rows, "population")
    panels = []
    for population in populations:
        for task in tasks:
            below = min(row["low"] for row in _where(rows, task=task)) < -0.1
            panel = _gail_panel(
                alt,
                _where(rows, task=task, population=population),
                (min(240, 520 // len(tasks)), 90),
                expert=_expert(records, task),
                below=below,
                heading=_title(task) if population == populations[0] else None,
                title=[*_POPULATIONS.get(population, "").split(", "), "reward"] if task == tasks[0] else None,
                bottom=population == populations[-1],
                labels=task == tasks[-1],
            )
            panels.append(panel)
    return _titled(
        alt,
        alt.concat(*panels, columns=len(tasks), spacing={"row": 12, "column": 10}),
        "How does GAIL learn, when it may play in the environment?",
        f"Reward of an episode while it learns; mean of {_span(row['trials'] for row in rows)} trials with its 95 % "
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
        rows += _estimated([float(np.interp(step, curve[:, 0], curve[:, 1])) for curve in known], x=step, **what)
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
    y = _vertical(alt, domain, title, values=[-1, 0, 1] if below else [0, 0.5, 1])
    curves = _curves(alt, rows, _HORIZONS, x, y, domain, size, labels=labels, points=False, dashed="absorbing")
    layers = [curves]
    if expert is not None:
        layers.append(
            alt.Chart(alt.Data(values=[{"mean": expert}])).mark_rule(aria=False, color=_INK).encode(y=y("mean:Q"))
        )
    if heading is not None:
        layers.append(_heading(alt, heading, size[0]))
    return alt.layer(*layers).properties(width=size[0], height=size[1])


# --- what the figures share


def _titled(alt: ModuleType, chart: Any, question: str, explanation: str) -> Any:
    return chart.properties(title=alt.Title(question, subtitle=wrap(explanation, _LETTERS)))


def _heading(alt: ModuleType, words: str, width: int) -> Any:
    """A panel's heading as a mark: a title would stand higher over a panel whose uppermost number sticks out."""
    text = alt.Chart(alt.Data(values=[{"heading": words}])).mark_text(
        aria=False, fontSize=13, fontWeight="bold", color=_INK
    )
    return text.encode(x=alt.value(width / 2), y=alt.value(-14), text="heading:N")


def _vertical(
    alt: ModuleType,
    domain: tuple[float, float],
    title: str | list[str] | None,
    *,
    values: Sequence[float] | None = None,
    numbered: bool = True,
) -> Vertical:
    """One axis to give to every layer of a panel: a layer that has none of its own would take the title away."""
    ticks: dict[str, Any] = {"tickCount": 4} if values is None else {"values": list(values)}
    axis, scale = alt.Axis(labels=numbered, ticks=numbered, **ticks), alt.Scale(domain=list(domain), nice=False)
    return lambda field: alt.Y(field, title=title, scale=scale, axis=axis)


def _coloured(alt: ModuleType, field: str, colours: Mapping[str, str]) -> Any:
    return alt.Color(field, legend=None, scale=alt.Scale(domain=list(colours), range=list(colours.values())))


def _hollow(base: Any) -> Any:
    """A ring where a number is published, wide enough to be seen around ours."""
    known = base.transform_filter("isValid(datum.published)").transform_calculate(
        told="'published: ' + datum.published"
    )
    return known.mark_point(filled=False, size=120, strokeWidth=1.5, opacity=1).encode(description="told:N")


def _curves(
    alt: ModuleType,
    rows: list[Row],
    colours: Mapping[str, str],
    x: Any,
    y: Vertical,
    domain: tuple[float, float],
    size: Size,
    *,
    labels: bool = True,
    points: bool = True,
    dashed: str | None = None,
) -> Any:
    """A curve with its band for each `kind`, named at its end."""
    base = alt.Chart(alt.Data(values=rows)).encode(x=x, color=_coloured(alt, "kind:N", colours))
    pattern = alt.condition(f"datum.kind == '{dashed}'", alt.value([5, 3]), alt.value([1, 0]))
    layers = [
        base.mark_area(aria=False, opacity=0.2).encode(y=y("low:Q"), y2="high:Q"),
        base.mark_line(aria=False, strokeWidth=2).encode(y=y("mean:Q"), strokeDash=pattern),
    ]
    if points:
        layers.append(base.mark_rule(aria=False, strokeWidth=1.5).encode(y=y("low:Q"), y2="high:Q"))
        layers.append(base.mark_point(filled=True, size=40, opacity=1).encode(y=y("mean:Q"), description="told:N"))
    if labels and rows:
        ends = {row["kind"]: row["mean"] for row in sorted(rows, key=lambda row: float(row["x"]))}
        layers.append(_labels(alt, ends, colours, y, domain, size))
    return alt.layer(*layers).properties(width=size[0], height=size[1])


def _labels(
    alt: ModuleType,
    heights: Mapping[str, float],
    colours: Mapping[str, str],
    y: Vertical,
    domain: tuple[float, float],
    size: Size,
) -> Any:
    """Names at the right of a panel, each beside its line, moved apart where they would overlap."""
    line = 13 * (domain[1] - domain[0]) / size[1]
    placed: dict[str, float] = {}
    for name in sorted(heights, key=lambda name: heights[name]):
        placed[name] = max([heights[name], *(other + line for other in placed.values())])
    excess = max([0.0, *(height - domain[1] for height in placed.values())])
    told = [{"name": name, "mean": height - excess} for name, height in placed.items()]
    text = alt.Chart(alt.Data(values=told)).mark_text(aria=False, align="left", fontSize=12, fontWeight="bold")
    colour = _coloured(alt, "name:N", colours)
    return text.encode(x=alt.value(size[0] + 4), y=y("mean:Q"), text="name:N", color=colour)


def _domain(rows: Sequence[Row], *, least: float | None = None) -> tuple[float, float]:
    """From the lowest to the highest interval, with some room; from `least` where that is given."""
    low, high = min(row["low"] for row in rows), max(row["high"] for row in rows)
    room = 0.06 * (high - low) or 0.05
    return (low - room if least is None else least - room / 2), high + room


def _of(trials: Iterable[Measured], measure: str) -> list[Any]:
    """What was measured, in the trials that have it."""
    return [trial[measure] for trial in trials if trial.get(measure) is not None and "failed" not in trial]


def _estimated(values: Iterable[float], **what: Any) -> list[Row]:
    """A row with the mean and its interval, or none where nothing was measured."""
    ours = Estimate.over(values)
    return [] if ours is None else [what | _numbers(ours)]


def _numbers(ours: Estimate) -> Row:
    """A single trial has no interval, and none is drawn."""
    low, high = (end if isfinite(end) else ours.mean for end in (ours.low, ours.high))
    told = f"{ours.mean:.3f} ({low:.3f} to {high:.3f})"
    return {"mean": ours.mean, "low": low, "high": high, "trials": ours.trials, "told": told}


def _where(rows: Iterable[Row], **what: Any) -> list[Row]:
    return [row for row in rows if all(row[name] == value for name, value in what.items())]


def _present(names: Iterable[str], rows: Iterable[Row], field: str) -> list[str]:
    """Those of the names that occur, in their order."""
    found = {row[field] for row in rows}
    return [name for name in names if name in found]


_paper = cache(published)


def _published(*path: str | None) -> float | None:
    found: Any = _paper()
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _expert(records: Records, task: str) -> float | None:
    """What the expert of a task earns when it always follows itself."""
    rewards = _of(records.trials("minigrid/experts", "uniform noise", task=task, beta=1.0).values(), "reward")
    return fmean(rewards) if rewards else None


def _span(counts: Iterable[int]) -> str:
    """One number, or from the least to the most."""
    known = sorted(set(counts))
    return f"{known[0]}" if len(known) == 1 else f"{known[0]} to {known[-1]}"


def _short(task: str) -> str:
    return task.rsplit("/", 1)[-1]


def _title(task: str) -> str:
    return _short(task).capitalize()


_FIGURES: Mapping[str, Callable[[ModuleType, Records], Any]] = {
    "populations": _populations,
    "restarts": _restarts,
    "calibration": _calibration,
    "how-much": _how_much,
    "wrong-noise": _wrong_noise,
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
