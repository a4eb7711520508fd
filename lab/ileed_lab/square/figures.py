"""Figures of the robot experiment: success by method and operators, and expertise by operator and phase."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import exp, log
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import Any

from ileed import SettingsError
from ileed.errors import counted, require
from ileed_lab.comparison import Estimate, Records
from ileed_lab.drawing import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    Row,
    as_svg,
    colour_scale,
    estimate_row,
    names_in,
    panel_heading,
    published_rings,
    rows_where,
    with_title,
)
from ileed_lab.square.experiment import BASELINES, SUBSETS
from ileed_lab.square.operators import OPERATORS
from ileed_lab.square.success_section import METHOD_NAMES, published_square
from ileed_lab.square.task import PHASES

__all__ = ["skills", "success"]


# --- success

_COLOURS = {
    "bc-rnn": ORANGE,
    "bc-rnn-shared": ORANGE,
    "ileed": BLUE,
    "ileed-by-state": SKY,
    "ileed-no-memory": SKY,
    "hbc": GREEN,
    "iris": PURPLE,
    "bcq": PURPLE,
    "cql": PURPLE,
}


def _method_name(method: str) -> str:
    uses_rewards = method in BASELINES and BASELINES[method].uses_rewards
    return METHOD_NAMES[method] + (" (rewards)" if uses_rewards else "")


_METHODS: Mapping[str, tuple[str, str]] = {
    method: (_method_name(method), colour) for method, colour in _COLOURS.items()
}
"""The name and the colour of each method."""
_WIDTH = 92


def success(results: Path) -> bytes:
    """Share of successful episodes by operators and method, from the results of `robot/square`; an SVG."""
    records = Records(results, family="robot")
    rows = [row for subset in SUBSETS for method in _METHODS for row in _rows(records, subset, method)]
    if not rows:
        raise SettingsError(f"{results} has no robot/square: `ileed reproduce robot/square --data FILE` measures it")
    return _draw(_success, rows)


def _rows(records: Records, subset: str, method: str) -> list[Row]:
    trials = records.trials("robot/square", method, operators=subset)
    if not trials:
        return []
    number = published_square()[subset].get(method)
    played = "".join(trial["successes"] for trial in trials.values())
    alone = [100 * float(trial["success"]) for trial in trials.values()]
    where = {"subset": subset, "method": _METHODS[method][0], "alone": alone}
    return [where | _in_percent(Estimate.share(played.count("1"), len(played))) | {"published": number and number[0]}]


def _in_percent(share: Estimate) -> Row:
    return estimate_row(Estimate(100 * share.mean, 100 * share.low, 100 * share.high, share.trials))


def _success(alt: ModuleType, rows: list[Row]) -> Any:
    methods = names_in([name for name, _ in _METHODS.values()], rows, "method")
    subsets = names_in(SUBSETS, rows, "subset")
    panels = [_panel(alt, rows_where(rows, subset=subset), methods, first=subset == subsets[0]) for subset in subsets]
    return with_title(
        alt,
        alt.hconcat(*panels, spacing=12),
        "Which method learns most from operators of unknown skill?",
        "Percent of episodes in which the nut is put on the peg, pooled over trials, with Wilson's 95% interval. "
        "Small marks: single trials, each a fit of its own. Hollow: published, for people's data instead of ours. "
        "Columns: the operators whose demonstrations were used. Shared: one standard deviation for all states.",
    )


def _panel(alt: ModuleType, rows: list[Row], methods: list[str], *, first: bool) -> Any:
    scale = alt.Scale(domain=[-4, 104], nice=False)
    axis = alt.Axis(values=[0, 50, 100])

    def x(field: str) -> Any:
        return alt.X(field, title="success, %", scale=scale, axis=axis)

    y_axis = alt.Axis(labels=first, ticks=False, domain=False, grid=True, labelLimit=0, labelPadding=8)
    base = alt.Chart(alt.Data(values=rows)).encode(
        y=alt.Y("method:N", sort=None, title=None, scale=alt.Scale(domain=methods), axis=y_axis),
        color=colour_scale(alt, "method:N", dict(_METHODS.values())),
    )
    layers = [
        base.transform_flatten(["alone"]).mark_tick(aria=False, thickness=1, size=9).encode(x=x("alone:Q")),
        base.mark_rule(aria=False, strokeWidth=2.5).encode(x=x("low:Q"), x2="high:Q"),
        base.mark_point(filled=True, size=45, opacity=1).encode(x=x("mean:Q"), description="label:N"),
        published_rings(base).encode(x=x("published:Q")),
        panel_heading(alt, rows[0]["subset"], _WIDTH),
    ]
    return alt.layer(*layers).properties(width=_WIDTH, height=alt.Step(20))


# --- skills


def skills(results: Path) -> bytes:
    """Expertise of every operator in each phase, true and estimated by state, from `robot/scaling`; an SVG."""
    trials = Records(results, family="robot").trials("robot/scaling", "shared, embedded", operators="All").values()
    if not trials:
        raise SettingsError(f"{results} has no robot/scaling: `ileed reproduce robot/scaling --data FILE` measures it")
    true = _relative({operator.name: {phase: s**-2 for phase, s in _noise(operator)} for operator in OPERATORS})
    found = [_relative(trial["expertise_by_phase"]) for trial in trials]
    rows = [
        {"operator": name, "tier": name.split("_")[0], "who": f"operator {name[-1]}", "phase": phase}
        | {"true": true[name][phase]}
        | _mean_and_range(each[name][phase] for each in found)
        for name in true
        for phase in PHASES
    ]
    return _draw(_skills, rows)


def _noise(operator: Any) -> Iterable[tuple[str, float]]:
    return zip(PHASES, operator.noise, strict=True)


def _relative(expertise: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Divided by its geometric mean over operators and phases, since only ratios are identified."""
    middle = exp(fmean(log(value) for own in expertise.values() for value in own.values()))
    return {name: {phase: value / middle for phase, value in own.items()} for name, own in expertise.items()}


def _mean_and_range(values: Iterable[float]) -> Row:
    """Geometric mean, least and greatest."""
    each = list(values)
    middle = exp(fmean(log(value) for value in each))
    label = f"{middle:.2f} ({min(each):.2f} to {max(each):.2f})"
    return {"mean": middle, "low": min(each), "high": max(each), "label": label, "fits": len(each)}


def _skills(alt: ModuleType, rows: list[Row]) -> Any:
    ends = [row[name] for row in rows for name in ("low", "high", "true")]
    panels = [
        _tier(alt, rows_where(rows, tier=tier), (min(ends) / 1.3, max(ends) * 1.3), first=tier == "better")
        for tier in ("better", "okay", "worse")
    ]
    return with_title(
        alt,
        alt.hconcat(*panels, spacing=16),
        "Who is good at what?",
        "Expertise by phase of the task, relative to the geometric mean over operators and phases. Solid: estimated "
        "from actions alone by an embedding of states, without phases or skills; geometric mean and range of "
        f"{counted(rows[0]['fits'], 'fit')}. Dashed: true, one over the variance of the operator's noise. Estimates "
        "differ less than the true values, since an operator's motion varies by more than this noise.",
    )


def _tier(alt: ModuleType, rows: list[Row], domain: tuple[float, float], *, first: bool) -> Any:
    scale = alt.Scale(type="log", domain=list(domain), nice=False)
    axis = alt.Axis(values=[0.1, 0.3, 1, 3, 10], labels=first, ticks=first, format="~r")
    colours = {"operator 1": BLUE, "operator 2": ORANGE}

    def y(field: str) -> Any:
        return alt.Y(field, title="relative expertise" if first else None, scale=scale, axis=axis)

    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("phase:N", sort=None, title=None, axis=alt.Axis(labelAngle=0)),
        color=colour_scale(alt, "who:N", colours),
    )
    width = 200
    names = base.transform_filter(f"datum.phase == '{PHASES[-1]}'").mark_text(
        aria=False, align="left", dx=8, fontSize=12, fontWeight="bold"
    )
    layers = [
        base.mark_line(aria=False, strokeWidth=1.5, strokeDash=[4, 3], opacity=0.7).encode(y=y("true:Q")),
        base.mark_line(aria=False, strokeWidth=2).encode(y=y("mean:Q")),
        base.mark_rule(aria=False, strokeWidth=2.5).encode(y=y("low:Q"), y2="high:Q"),
        base.mark_point(filled=True, size=45, opacity=1).encode(y=y("mean:Q"), description="label:N"),
        names.encode(y=y("mean:Q"), text="who:N"),
        panel_heading(alt, f"{rows[0]['tier']} operators", width),
    ]
    return alt.layer(*layers).properties(width=width, height=230)


def _draw(chart: Callable[[ModuleType, list[Row]], Any], rows: list[Row]) -> bytes:
    return as_svg(chart(require("altair", package="ileed-lab"), rows))
