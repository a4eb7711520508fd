"""Figures of the experiments that go past the paper: how much is enough, and what the wrong noise costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from ileed_lab.comparison import Records
from ileed_lab.drawing import (
    BLUE,
    INK,
    ORANGE,
    Row,
    curves_with_bands,
    estimated,
    measured_in,
    rows_where,
    shown_range,
    span,
    task_title,
    those_present,
    titled,
    vertical_axis,
)
from ileed_lab.minigrid.experiment import GENERATORS, TASKS

__all__ = ["how_much", "wrong_noise"]


# --- how much


_LEARNERS = {"BC": ORANGE, "ILEED": BLUE}
_MEASURES = {
    "reward": ["reward of", "an episode"],
    "rank_loss": ["rank loss: share of", "pairs misordered"],
    "fit_seconds": ["seconds of a fit", "of all restarts"],
}
_USUAL = {"demonstrators": 10, "steps": 1_000}


def how_much(alt: ModuleType, records: Records) -> Any:
    """A chart of reward, rank loss and cost over three sizes, or None where the cells are missing."""
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
        own = {title: rows_where(rows, measure=measure) for title, rows in columns.items()}
        everything = [row for rows in own.values() for row in rows]
        if not everything:
            continue
        domain = shown_range(everything, least=None if measure == "reward" else 0.0)
        for title, rows in own.items():
            first, bottom = title == next(iter(own)), measure == list(_MEASURES)[-1]
            places = sorted({row["x"] for row in columns[title]})
            x = alt.X(
                "x:Q",
                title=title if bottom else None,
                scale=alt.Scale(type="log", domain=[0.85 * places[0], 1.18 * places[-1]], nice=False),
                axis=alt.Axis(values=places, format=",d", grid=False),
            )
            y = vertical_axis(alt, domain, words if first else None, numbered=first)
            panels.append(curves_with_bands(alt, rows, _LEARNERS, x, y, domain, size))
    devices = sorted({origin["device"] for cell in cells for origin in cell["made"] if "device" in origin})
    on = f" ({' and '.join(devices)})" if devices else ""
    return titled(
        alt,
        alt.concat(*panels, columns=len(columns), spacing={"row": 14, "column": 14}),
        "How much data and how many restarts are enough, and what do they cost?",
        "Obstacles, demonstrators of evenly spread skill from 0.05 to 0.95. Mean of "
        f"{span(row['trials'] for rows in columns.values() for row in rows)} trials with its 95 % interval. Cost: one "
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
        for row in estimated(
            measured_in(cell["trials"], measure), x=cell["setting"][name], kind=cell["method"].upper(), measure=measure
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
                rows += estimated(measured_in(chosen, measure), x=among, kind=kind, measure=measure)
        every = (cell.get("settings") or {}).get("restarts")
        if every:
            rows += estimated(measured_in(trials, "fit_seconds"), x=every, kind=kind, measure="fit_seconds")
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


def wrong_noise(alt: ModuleType, records: Records) -> Any:
    """A chart of ways to err against what is assumed of them, or None where the cells are missing."""
    rows: list[Row] = []
    for task in TASKS:
        for generator in GENERATORS:
            for model in _MODELS:
                trials = records.trials("minigrid/wrong-noise", model, task=task, generator=generator).values()
                for measure in ("reward", "rank_loss"):
                    where = {"task": task, "generator": generator, "model": model, "measure": measure}
                    rows += estimated(measured_in(trials, measure), **where)
    if not rows:
        return None
    tasks, generators = those_present(TASKS, rows, "task"), those_present(GENERATORS, rows, "generator")
    grids = []
    for task in tasks:
        own, last = rows_where(rows, task=task), task == tasks[-1]
        by_reward = _matrix(alt, own, rows, "reward", list(_MODELS), generators, named=True, last=last)
        by_rank = _matrix(alt, own, rows, "rank_loss", list(_MODELS)[1:], generators, named=False, last=last)
        grids.append(alt.hconcat(by_reward, by_rank, spacing=16).resolve_scale(color="independent"))
    return titled(
        alt,
        alt.vconcat(*grids, spacing=16).resolve_scale(color="independent"),
        "What does it cost to assume the wrong kind of error?",
        "Rows: what demonstrators do when they slip. Columns: what is assumed of them; framed where that is what they "
        f"do. Darker is worse. Mean of {span(row['trials'] for row in rows)} trials ± half of its 95 % interval. Rank "
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
    values = [row["mean"] for row in rows_where(everything, measure=measure)] or [0.0]
    worst, best = (min(values), max(values)) if measure == "reward" else (max(values), 0.0)
    cells: list[Row] = []
    for generator in generators:
        for model in models:
            cell: Row = {"assumed": _MODELS[model], "erring": _two_lines(generator), "told": "not run"}
            for row in rows_where(own, measure=measure, generator=generator, model=model):
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
    ink = alt.condition("datum.dark", alt.value("white"), alt.value(INK))
    band = {"width": {"band": 0.96}, "height": {"band": 0.92}}
    words = {"reward": "reward of an episode", "rank_loss": "rank loss"}[measure]
    return alt.layer(
        base.transform_filter("isValid(datum.mean)").mark_rect(aria=False, **band).encode(color=colour),
        base.transform_filter("datum.right").mark_rect(aria=False, fill=None, stroke=INK, strokeWidth=3, **band),
        base.mark_text(aria=False, fontSize=12).encode(text="told:N", color=ink),
    ).properties(
        width=alt.Step(94),
        height=alt.Step(34),
        title=alt.Title(f"{task_title(own[0]['task'])}: {words}", fontSize=13, offset=6),
    )


def _two_lines(generator: str) -> str:
    """What a way of erring is called, and what it does."""
    return f"{_MODELS.get(generator, generator)}|{_ERRING[generator]}"
