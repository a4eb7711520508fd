"""The figure of the page about intervals: coverage by confidence level."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

from ileed.errors import require
from ileed_lab.calibration.designs import DESIGNS
from ileed_lab.calibration.experiment import LEVELS
from ileed_lab.calibration.page import coverage
from ileed_lab.comparison import Records
from ileed_lab.drawing import GREY, Row, as_svg, with_title

__all__ = ["coverage_figure"]

_SHOWN = [name for name in DESIGNS if "steps" not in name]


def coverage_figure(results: Path) -> bytes:
    """Coverage of intervals by their confidence level, for each design; an SVG."""
    records = Records(results, family="calibration")
    rows: list[Row] = []
    for name in _SHOWN:
        trials = list(records.trials("calibration/coverage", "cross-fitted", design=name).values())
        for level in LEVELS if trials else ():
            found = coverage(trials, level)
            assert found is not None
            rows.append({"design": name, "level": level, "share": found.mean, "low": found.low, "high": found.high})
    return as_svg(_chart(require("altair", package="ileed-lab"), rows))


def _chart(alt: ModuleType, rows: list[Row]) -> Any:
    axis = alt.Axis(format="%", values=[0.5, 0.6, 0.7, 0.8, 0.9, 1.0], grid=False)
    scale = alt.Scale(domain=[0.35, 1.0], nice=False)
    x = alt.X("level:Q", title="confidence level", scale=alt.Scale(domain=[0.46, 1.0], nice=False), axis=axis)

    def y(field: str) -> Any:
        return alt.Y(field, title="intervals that hold the truth", scale=scale, axis=axis)

    colour = alt.Color("design:N", sort=_SHOWN, title=None, scale=alt.Scale(scheme="tableau10"))
    ends = [{"level": 0.46, "share": 0.46}, {"level": 1.0, "share": 1.0}]
    base = alt.Chart(alt.Data(values=rows)).encode(x=x, color=colour)
    diagonal = alt.Chart(alt.Data(values=ends)).mark_line(color=GREY, strokeDash=[4, 4], aria=False)
    chart = alt.layer(
        diagonal.encode(x=x, y=y("share:Q")),
        base.mark_line(strokeWidth=2, aria=False).encode(y=y("share:Q")),
        base.mark_rule(strokeWidth=1.5, aria=False).encode(y=y("low:Q"), y2="high:Q"),
        base.mark_point(filled=True, size=45, opacity=1).encode(y=y("share:Q")),
    ).properties(width=560, height=340)
    caption = (
        "Dashed: as many as stated. Bars: 95% intervals over populations. Wrong noise has errors no model describes."
    )
    return with_title(alt, chart, "Do intervals hold the truth as often as they say?", caption)
