"""The figure of a record of benchmarks/scaling.py: a panel for steps, people, members and processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from ileed.errors import require
from ileed_lab.drawing import BLUE, GREY, INK, ORANGE, as_svg, colour_scale, panel_heading, with_title

__all__ = ["draw", "seconds_before", "step_seconds"]

Point = Mapping[str, Any]
SIZE = (270, 190)
HEADINGS = {
    "steps": "Steps of demonstrations",
    "people": "People",
    "members": "Restarts side by side",
    "processes": "Processes",
}
COLOURS = {
    "repeating observations": BLUE,
    "the demo's data": BLUE,
    "a grid of fits": BLUE,
    "no observation twice": ORANGE,
    "in proportion": GREY,
}


def step_seconds(record: Mapping[str, Any], point: Point) -> float:
    """Seconds of a step: of the processor where one thread of a CPU computed, which a busy machine disturbs less."""
    return float(point[f"{_kind(record)}seconds_per_step"])


def seconds_before(record: Mapping[str, Any], point: Point) -> float:
    """Seconds from the call to the first step, of the same kind."""
    return float(point[f"{_kind(record)}seconds_before"])


def _kind(record: Mapping[str, Any]) -> str:
    return "processor_" if record["provenance"]["device"] == "cpu" and record["settings"]["threads"] == 1 else ""


def draw(record: Mapping[str, Any]) -> bytes:
    """The figure as an SVG of at most 800 pixels in width."""
    alt = require("altair", extra="report")
    panels = [_panel(alt, axis, record) for axis in HEADINGS if axis in record["axes"]]
    rows = [alt.hconcat(*panels[first : first + 2], spacing=40) for first in range(0, len(panels), 2)]
    words = {"processes": "Processes: how many times faster than one."} if "processes" in record["axes"] else {}
    if set(record["axes"]) - set(words):
        words["steps"] = (
            "Milliseconds of an optimisation step. Blue: observations repeat and are counted; orange: none occurs "
            "twice, in batches of 256."
        )
    caption = " ".join([*reversed(words.values()), "Dashed: in proportion to the size."])
    chart = alt.vconcat(*rows, spacing=30) if len(rows) > 1 else rows[0]
    return as_svg(with_title(alt, chart, "How does a fit scale?", caption))


def _panel(alt: ModuleType, axis: str, record: Mapping[str, Any]) -> Any:
    points: Sequence[Point] = record["axes"][axis]
    processes = axis == "processes"
    rows = [
        {
            "size": point["size"],
            "kind": point["kind"],
            "value": point["times_first"] if processes else 1000 * step_seconds(record, point),
        }
        for point in points
    ]
    sizes = sorted({row["size"] for row in rows})
    first = min((row for row in rows if row["size"] == sizes[0]), key=lambda row: row["value"])
    ends = (sizes[0], sizes[-1])
    line = [{"size": size, "kind": "in proportion", "value": first["value"] * size / sizes[0]} for size in ends]
    top = max(row["value"] for row in rows)
    title = "times one process" if processes else "ms a step"
    x = alt.X("size:Q", title=None, scale=alt.Scale(type="log", nice=False), axis=alt.Axis(values=sizes, format="~s"))
    low = min(row["value"] for row in rows)
    y_scale = alt.Scale(type="log", domain=[low / 1.5, top * 1.5], nice=False)
    y = alt.Y("value:Q", title=title, scale=y_scale, axis=alt.Axis(tickCount=4, format="~g"))
    colour = colour_scale(alt, "kind:N", {**COLOURS, "": INK})
    drawn = alt.Chart(alt.Data(values=rows)).encode(x=x, y=y, color=colour)
    rule = alt.Chart(alt.Data(values=line)).mark_line(aria=False, clip=True, strokeDash=[5, 3], strokeWidth=1.5)
    layers = [
        rule.encode(x=x, y=y, color=colour),
        drawn.mark_line(aria=False, strokeWidth=2),
        drawn.transform_calculate(label="datum.size + ': ' + format(datum.value, '.3~r')")
        .mark_point(filled=True, size=40, opacity=1)
        .encode(description="label:N"),
        panel_heading(alt, HEADINGS[axis], SIZE[0]),
    ]
    return alt.layer(*layers).properties(width=SIZE[0], height=SIZE[1])
