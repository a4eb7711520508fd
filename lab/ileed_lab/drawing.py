"""What the figures of experiments share: colours, axes, curves with their bands, and rows of estimates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from textwrap import wrap
from types import ModuleType
from typing import Any

from ileed_lab.comparison import Estimate
from ileed_lab.grid import Measured

Row = dict[str, Any]
Size = tuple[int, int]
Vertical = Callable[[str], Any]
"""From a field to its place on the vertical axis that all layers of a panel share."""

BLUE, ORANGE, SKY, GREEN, PURPLE = "#0072B2", "#D55E00", "#3a9bd4", "#009E73", "#a8598a"  # after Okabe and Ito
INK, GREY, PALE = "#1f2933", "#77818b", "#c9d0d6"
LETTERS = 126  # in a line of explanation, short enough for a reader's font that is wider than ours

TEXT = {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "labelColor": INK, "titleColor": INK}
CONFIG: dict[str, Any] = {
    "background": "white",
    "padding": {"left": 10, "right": 12, "top": 6, "bottom": 6},
    "font": "sans-serif",
    "view": {"stroke": None},
    "axis": {**TEXT, "gridColor": "#e6e9ec", "domainColor": PALE, "tickColor": PALE},
    "title": {
        "anchor": "start",
        "color": INK,
        "fontSize": 16,
        "subtitleColor": INK,
        "subtitleFontSize": 12,
        "subtitlePadding": 6,
        "subtitleLineHeight": 17,
        "offset": 14,
    },
}


def titled(alt: ModuleType, chart: Any, question: str, explanation: str) -> Any:
    """A chart under the question that it answers."""
    return chart.properties(title=alt.Title(question, subtitle=wrap(explanation, LETTERS)))


def panel_heading(alt: ModuleType, words: str, width: int) -> Any:
    """A panel's heading as a mark: a title would stand higher over a panel whose uppermost number sticks out."""
    text = alt.Chart(alt.Data(values=[{"heading": words}])).mark_text(
        aria=False, fontSize=13, fontWeight="bold", color=INK
    )
    return text.encode(x=alt.value(width / 2), y=alt.value(-14), text="heading:N")


def vertical_axis(
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


def coloured(alt: ModuleType, field: str, colours: Mapping[str, str]) -> Any:
    """A colour for each value of a field, without a legend."""
    return alt.Color(field, legend=None, scale=alt.Scale(domain=list(colours), range=list(colours.values())))


def ring_where_published(base: Any) -> Any:
    """A ring where a number is published, wide enough to be seen around ours."""
    known = base.transform_filter("isValid(datum.published)").transform_calculate(
        told="'published: ' + datum.published"
    )
    return known.mark_point(filled=False, size=120, strokeWidth=1.5, opacity=1).encode(description="told:N")


def curves_with_bands(
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
    base = alt.Chart(alt.Data(values=rows)).encode(x=x, color=coloured(alt, "kind:N", colours))
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
        layers.append(end_labels(alt, ends, colours, y, domain, size))
    return alt.layer(*layers).properties(width=size[0], height=size[1])


def end_labels(
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
    colour = coloured(alt, "name:N", colours)
    return text.encode(x=alt.value(size[0] + 4), y=y("mean:Q"), text="name:N", color=colour)


def shown_range(rows: Sequence[Row], *, least: float | None = None) -> tuple[float, float]:
    """From the lowest to the highest interval, with some room; from `least` where that is given."""
    low, high = min(row["low"] for row in rows), max(row["high"] for row in rows)
    room = 0.06 * (high - low) or 0.05
    return (low - room if least is None else least - room / 2), high + room


def measured_in(trials: Iterable[Measured], measure: str) -> list[Any]:
    """What was measured, in the trials that have it."""
    return [trial[measure] for trial in trials if trial.get(measure) is not None and "failed" not in trial]


def estimated(values: Iterable[float], **what: Any) -> list[Row]:
    """A row with the mean and its interval, or none where nothing was measured."""
    ours = Estimate.over(values)
    return [] if ours is None else [what | as_row(ours)]


def as_row(ours: Estimate) -> Row:
    """A single trial has no interval, and none is drawn."""
    low, high = (end if isfinite(end) else ours.mean for end in (ours.low, ours.high))
    told = f"{ours.mean:.3f} ({low:.3f} to {high:.3f})"
    return {"mean": ours.mean, "low": low, "high": high, "trials": ours.trials, "told": told}


def rows_where(rows: Iterable[Row], **what: Any) -> list[Row]:
    """The rows that have these values."""
    return [row for row in rows if all(row[name] == value for name, value in what.items())]


def those_present(names: Iterable[str], rows: Iterable[Row], field: str) -> list[str]:
    """Those of the names that occur, in their order."""
    found = {row[field] for row in rows}
    return [name for name in names if name in found]


def span(counts: Iterable[int]) -> str:
    """One number, or from the least to the most."""
    known = sorted(set(counts))
    return f"{known[0]}" if len(known) == 1 else f"{known[0]} to {known[-1]}"


def task_name(task: str) -> str:
    """Without its family, as in 'empty'."""
    return task.rsplit("/", 1)[-1]


def task_title(task: str) -> str:
    """As it heads a panel."""
    return task_name(task).capitalize()
