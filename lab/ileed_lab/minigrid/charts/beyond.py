"""The figures beyond the paper: how much data is enough, and what a wrong demonstrator model costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from ileed_lab.comparison import Records
from ileed_lab.drawing import (
    BLUE,
    INK,
    ORANGE,
    Panel,
    Row,
    axis_range,
    count_range,
    curves_with_intervals,
    estimate_rows,
    names_in,
    rows_where,
    task_title,
    values_of,
    vertical_axis,
    with_title,
)
from ileed_lab.minigrid.beyond_experiment import GENERATORS
from ileed_lab.minigrid.measures import TASKS

__all__ = ["how_much", "wrong_model"]


# --- how much


_LEARNERS = {"BC": ORANGE, "ILEED": BLUE}
_MEASURES = {
    "reward": ["mean episodic", "reward"],
    "rank_loss": ["rank loss: share of", "pairs misordered"],
    "fit_seconds": ["seconds of a fit", "of all restarts"],
}
_USUAL = {"demonstrators": 10, "steps": 1_000}


def how_much(alt: ModuleType, records: Records) -> Any:
    """A chart of reward, rank loss and seconds by three sizes, or None where the cells are missing."""
    cells = [cell for cell in records.cells("minigrid/how-much") if cell["method"].upper() in _LEARNERS]
    columns = {
        "demonstrators, 1,000 steps each": _rows_by(cells, "demonstrators"),
        "steps of each of 10 demonstrators": _rows_by(cells, "steps"),
        "restarts, the likeliest chosen": _rows_by_restarts(cells),
    }
    columns = {title: rows for title, rows in columns.items() if rows}
    if not columns:
        return None
    size, panels = (186, 120), []
    for measure, words in _MEASURES.items():
        own = {title: rows_where(rows, measure=measure) for title, rows in columns.items()}
        everything = [row for rows in own.values() for row in rows]
        if not everything:
            continue
        domain = axis_range(everything, least=None if measure == "reward" else 0.0)
        for title, rows in own.items():
            first, bottom = title == next(iter(own)), measure == list(_MEASURES)[-1]
            ticks = sorted({row["x"] for row in columns[title]})
            x = alt.X(
                "x:Q",
                title=title if bottom else None,
                scale=alt.Scale(type="log", domain=[0.85 * ticks[0], 1.18 * ticks[-1]], nice=False),
                axis=alt.Axis(values=ticks, format=",d", grid=False),
            )
            y = vertical_axis(alt, domain, words if first else None, numbered=first)
            panels.append(curves_with_intervals(alt, rows, _LEARNERS, x, Panel(y, domain, size)))
    devices = sorted({origin["device"] for cell in cells for origin in cell["made"] if "device" in origin})
    on = f" ({' and '.join(devices)})" if devices else ""
    return with_title(
        alt,
        alt.concat(*panels, columns=len(columns), spacing={"row": 14, "column": 14}),
        "How much data and how many restarts are enough, and how long does a fit take?",
        "Obstacles, demonstrators of evenly spread skill from 0.05 to 0.95. Mean over "
        f"{count_range(row['trials'] for rows in columns.values() for row in rows)} trials, with a 95% bootstrap "
        f"interval. Seconds: one trial's share of the time in which many were fitted side by side{on}; the likeliest "
        "of fewer restarts is taken from the same fit, so there is one time for all of them. BC gives no ranking.",
    )


def _rows_by(cells: Sequence[Mapping[str, Any]], name: str) -> list[Row]:
    """The measures where the setting differs from the usual one in `name` alone."""
    rest = {key: value for key, value in _USUAL.items() if key != name}
    own = [cell for cell in cells if all(cell["setting"].get(key) == value for key, value in rest.items())]
    return [
        row
        for cell in sorted(own, key=lambda cell: float(cell["setting"][name]))
        for measure in _MEASURES
        for row in estimate_rows(
            values_of(cell["trials"], measure), x=cell["setting"][name], kind=cell["method"].upper(), measure=measure
        )
    ]


def _rows_by_restarts(cells: Sequence[Mapping[str, Any]]) -> list[Row]:
    """The measures of the likeliest of fewer restarts in the usual setting, and the seconds of all of them."""
    rows = []
    for cell in [cell for cell in cells if dict(cell["setting"]) == _USUAL]:
        kind, trials = cell["method"].upper(), [trial for trial in cell["trials"] if "best_of" in trial]
        for among in sorted({int(among) for trial in trials for among in trial["best_of"]}):
            chosen = [trial["best_of"][str(among)] for trial in trials]
            for measure in ("reward", "rank_loss"):
                rows += estimate_rows(values_of(chosen, measure), x=among, kind=kind, measure=measure)
        every = (cell.get("settings") or {}).get("restarts")
        if every:
            rows += estimate_rows(values_of(trials, "fit_seconds"), x=every, kind=kind, measure="fit_seconds")
    return rows


# --- wrong demonstrator models


_MODELS = {
    "bc": "BC",
    "uniform": "uniform",
    "one-versus-rest": "one-versus-rest",
    "boltzmann": "Boltzmann",
    "persistent": "persistent",
    "biased": "biased",
    "auto": "auto",
}
_RANDOM_ACTIONS = {
    "uniform": "any action",
    "one-versus-rest": "any but the best",
    "boltzmann": "flattened policy",
    "persistent": "previous action",
    "biased": "always forward",
}


def wrong_model(alt: ModuleType, records: Records) -> Any:
    """A chart of simulated demonstrators by demonstrator models, or None where the cells are missing."""
    rows: list[Row] = []
    for task in TASKS:
        for generator in GENERATORS:
            for model in _MODELS:
                trials = records.trials("minigrid/wrong-noise", model, task=task, generator=generator).values()
                for measure in ("reward", "rank_loss"):
                    where = {"task": task, "generator": generator, "model": model, "measure": measure}
                    rows += estimate_rows(values_of(trials, measure), **where)
    if not rows:
        return None
    tasks, generators = names_in(TASKS, rows, "task"), names_in(GENERATORS, rows, "generator")
    grids = []
    for task in tasks:
        own = rows_where(rows, task=task)
        reward = _matrix(alt, own, rows, "reward", list(_MODELS), generators)
        rank_loss = _matrix(alt, own, rows, "rank_loss", list(_MODELS)[1:], generators)
        grids.append(alt.vconcat(reward, rank_loss, spacing=16).resolve_scale(color="independent"))
    return with_title(
        alt,
        alt.vconcat(*grids, spacing=16).resolve_scale(color="independent"),
        "What does a wrong demonstrator model cost?",
        "Rows: what simulated demonstrators do when they do not follow the expert. Columns: the demonstrator model of "
        "the fit; framed where it is the right one. Darker is worse. Mean over "
        f"{count_range(row['trials'] for row in rows)} trials ± half of its 95% bootstrap interval. Rank loss: share "
        "of pairs put in the wrong order; 0 is best, 0.5 is chance.",
    )


def _matrix(
    alt: ModuleType,
    own: list[Row],
    everything: list[Row],
    measure: str,
    models: Sequence[str],
    generators: Sequence[str],
) -> Any:
    """A cell for each simulated demonstrator and each model; all cells of a measure share one colour scale."""
    values = [row["mean"] for row in rows_where(everything, measure=measure)] or [0.0]
    worst, best = (min(values), max(values)) if measure == "reward" else (max(values), 0.0)
    cells = [
        _matrix_cell(rows_where(own, measure=measure, generator=generator, model=model), generator, model, worst, best)
        for generator in generators
        for model in models
    ]
    axis = {"ticks": False, "domain": False, "labelOverlap": False, "labelLimit": 0, "labelPadding": 6}
    x_axis = alt.Axis(labelAngle=0, **axis)
    y_axis = alt.Axis(labelExpr="split(datum.label, '|')", labelLineHeight=13, labelOffset=-6, **axis)
    base = alt.Chart(alt.Data(values=cells)).encode(
        x=alt.X("model:N", sort=None, title=None, axis=x_axis),
        y=alt.Y("simulated:N", sort=None, title=None, axis=y_axis),
    )
    colour = alt.Color("mean:Q", legend=None, scale=alt.Scale(scheme="cividis", domain=[worst, best]))
    ink = alt.condition("datum.dark", alt.value("white"), alt.value(INK))
    band = {"width": {"band": 0.96}, "height": {"band": 0.92}}
    words = {"reward": "mean episodic reward", "rank_loss": "rank loss"}[measure]
    return alt.layer(
        base.transform_filter("isValid(datum.mean)").mark_rect(aria=False, **band).encode(color=colour),
        base.transform_filter("datum.right").mark_rect(aria=False, fill=None, stroke=INK, strokeWidth=3, **band),
        base.mark_text(aria=False, fontSize=12).encode(text="label:N", color=ink),
    ).properties(
        width=alt.Step(86),
        height=alt.Step(34),
        title=alt.Title(f"{task_title(own[0]['task'])}: {words}", fontSize=13, offset=6),
    )


def _matrix_cell(rows: Sequence[Row], generator: str, model: str, worst: float, best: float) -> Row:
    simulated = f"{_MODELS.get(generator, generator)}|{_RANDOM_ACTIONS[generator]}"
    cell: Row = {"model": _MODELS[model], "simulated": simulated, "label": "not run"}
    for row in rows:
        mean, half_width = row["mean"], (row["high"] - row["low"]) / 2
        cell |= {
            "label": f"{mean:.2f} ± {half_width:.2f}",
            "mean": mean,
            "dark": abs(mean - worst) < abs(mean - best),
            "right": model == generator,
        }
    return cell
