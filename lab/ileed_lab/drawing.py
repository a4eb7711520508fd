"""What the figures of experiments share: colours, axes, curves with intervals, and rows of estimates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from textwrap import wrap
from types import ModuleType
from typing import Any, NamedTuple

from ileed.errors import require
from ileed_lab.comparison import Estimate
from ileed_lab.records import Measured

Row = dict[str, Any]
Size = tuple[int, int]
Vertical = Callable[[str], Any]
"""From a field to its encoding on the vertical axis that all layers of a panel share."""

BLUE, ORANGE, SKY, GREEN, PURPLE = "#0072B2", "#D55E00", "#3a9bd4", "#009E73", "#a8598a"  # after Okabe and Ito
INK, GREY, PALE = "#1f2933", "#77818b", "#c9d0d6"
CAPTION_WIDTH = 126  # letters in a line of a caption, short enough for a reader's font that is wider than ours

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


def as_svg(chart: Any) -> bytes:
    """An Altair chart as an SVG."""
    convert = require("vl_convert", extra="report")
    return str(convert.vegalite_to_svg(chart.to_dict() | {"config": CONFIG})).encode()


def with_title(alt: ModuleType, chart: Any, question: str, caption: str) -> Any:
    """A chart with the question that it answers as its title, and a caption under it."""
    return chart.properties(title=alt.Title(question, subtitle=wrap(caption, CAPTION_WIDTH)))


def panel_heading(alt: ModuleType, words: str, width: int) -> Any:
    """A panel's heading as a mark: a title would be higher over a panel whose uppermost tick label sticks out."""
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
    """One axis for every layer of a panel: a layer without it would remove the title."""
    ticks: dict[str, Any] = {"tickCount": 4} if values is None else {"values": list(values)}
    axis, scale = alt.Axis(labels=numbered, ticks=numbered, **ticks), alt.Scale(domain=list(domain), nice=False)
    return lambda field: alt.Y(field, title=title, scale=scale, axis=axis)


def colour_scale(alt: ModuleType, field: str, colours: Mapping[str, str]) -> Any:
    """A colour for each value of a field, without a legend."""
    return alt.Color(field, legend=None, scale=alt.Scale(domain=list(colours), range=list(colours.values())))


def published_rings(base: Any) -> Any:
    """A ring at each published number, wide enough to be seen around ours."""
    known = base.transform_filter("isValid(datum.published)").transform_calculate(
        label="'published: ' + datum.published"
    )
    return known.mark_point(filled=False, size=120, strokeWidth=1.5, opacity=1).encode(description="label:N")


class Panel(NamedTuple):
    """The vertical axis of a panel, its domain, and the panel's size in pixels."""

    y: Vertical
    domain: tuple[float, float]
    size: Size


def curves_with_intervals(
    alt: ModuleType,
    rows: list[Row],
    colours: Mapping[str, str],
    x: Any,
    panel: Panel,
    *,
    labels: bool = True,
    points: bool = True,
    dashed: str | None = None,
) -> Any:
    """A curve with its interval as a band for each `kind`, labelled at its end."""
    y = panel.y
    base = alt.Chart(alt.Data(values=rows)).encode(x=x, color=colour_scale(alt, "kind:N", colours))
    pattern = alt.condition(f"datum.kind == '{dashed}'", alt.value([5, 3]), alt.value([1, 0]))
    layers = [
        base.mark_area(aria=False, opacity=0.2).encode(y=y("low:Q"), y2="high:Q"),
        base.mark_line(aria=False, strokeWidth=2).encode(y=y("mean:Q"), strokeDash=pattern),
    ]
    if points:
        layers.append(base.mark_rule(aria=False, strokeWidth=1.5).encode(y=y("low:Q"), y2="high:Q"))
        layers.append(base.mark_point(filled=True, size=40, opacity=1).encode(y=y("mean:Q"), description="label:N"))
    if labels and rows:
        ends = {row["kind"]: row["mean"] for row in sorted(rows, key=lambda row: float(row["x"]))}
        layers.append(end_labels(alt, ends, colours, panel))
    return alt.layer(*layers).properties(width=panel.size[0], height=panel.size[1])


def end_labels(alt: ModuleType, heights: Mapping[str, float], colours: Mapping[str, str], panel: Panel) -> Any:
    """Names at the right of a panel, each beside its line, moved apart where they would overlap."""
    low, high = panel.domain
    line = 13 * (high - low) / panel.size[1]
    placed: dict[str, float] = {}
    for name in sorted(heights, key=lambda name: heights[name]):
        placed[name] = max([heights[name], *(other + line for other in placed.values())])
    excess = max([0.0, *(height - high for height in placed.values())])
    rows = [{"name": name, "mean": height - excess} for name, height in placed.items()]
    text = alt.Chart(alt.Data(values=rows)).mark_text(aria=False, align="left", fontSize=12, fontWeight="bold")
    colour = colour_scale(alt, "name:N", colours)
    return text.encode(x=alt.value(panel.size[0] + 4), y=panel.y("mean:Q"), text="name:N", color=colour)


def axis_range(rows: Sequence[Row], *, least: float | None = None) -> tuple[float, float]:
    """From the lowest to the highest end of an interval, with a margin; from `least` where that is given."""
    low, high = min(row["low"] for row in rows), max(row["high"] for row in rows)
    margin = 0.06 * (high - low) or 0.05
    return (low - margin if least is None else least - margin / 2), high + margin


def values_of(trials: Iterable[Measured], measure: str) -> list[Any]:
    """A measure in the trials that have it and did not fail."""
    return [trial[measure] for trial in trials if trial.get(measure) is not None and "failed" not in trial]


def estimate_rows(values: Iterable[float], **fields: Any) -> list[Row]:
    """One row with the mean and its interval, or none where there are no values."""
    ours = Estimate.over(values)
    return [] if ours is None else [fields | estimate_row(ours)]


def estimate_row(ours: Estimate) -> Row:
    """The fields of an estimate; a single trial has no interval, and none is drawn."""
    low, high = (end if isfinite(end) else ours.mean for end in (ours.low, ours.high))
    label = f"{ours.mean:.3f} ({low:.3f} to {high:.3f})"
    return {"mean": ours.mean, "low": low, "high": high, "trials": ours.trials, "label": label}


def rows_where(rows: Iterable[Row], **fields: Any) -> list[Row]:
    """The rows that have these values."""
    return [row for row in rows if all(row[name] == value for name, value in fields.items())]


def names_in(names: Iterable[str], rows: Iterable[Row], field: str) -> list[str]:
    """Those of the names that occur in a field, in their order."""
    found = {row[field] for row in rows}
    return [name for name in names if name in found]


def count_range(counts: Iterable[int]) -> str:
    """One number, or the least and the greatest.

    >>> count_range([20, 20]), count_range([3, 20])
    ('20', '3 to 20')
    """
    known = sorted(set(counts))
    return f"{known[0]}" if len(known) == 1 else f"{known[0]} to {known[-1]}"


def task_name(task: str) -> str:
    """Without its family, as in 'empty'."""
    return task.rsplit("/", 1)[-1]


def task_title(task: str) -> str:
    """As the heading of a panel, as in 'Empty'."""
    return task_name(task).capitalize()
