"""The figure of the page about real operators: expertise of each driver by median lap time, before and after."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ileed import SettingsError
from ileed.errors import require
from ileed_lab.comparison import Records
from ileed_lab.drawing import BLUE, INK, ORANGE, Row, as_svg, panel_heading, vertical_axis, with_title
from ileed_lab.people.racing.found import FoundScores

__all__ = ["drivers_figure"]

_PANELS = {"paper": ("the paper's noise model", ORANGE), "default": ("default", BLUE)}
_WIDTH, _HEIGHT = 330, 300


def drivers_figure(results: Path) -> bytes:
    """Expertise of each driver with its interval, by median lap time; an SVG with a panel for each model."""
    scores = FoundScores.of(Records(results, family="people"))
    if missing := [name for name in _PANELS if name not in scores.trials]:
        raise SettingsError(f"{results} has no record of {missing[0]!r}: run `ileed reproduce people/racing` first")
    alt = require("altair", package="ileed-lab")
    panels = [_panel(alt, scores, name) for name in _PANELS]
    caption = (
        "Expertise divided by its mean over drivers, with 95% intervals; first of several seeds. No model sees a lap "
        "time. Numbers are Spearman correlations of expertise with minus the median lap time, mean over seeds."
    )
    chart = alt.hconcat(*panels, spacing=36)
    return as_svg(with_title(alt, chart, "Are drivers with shorter lap times rated higher?", caption))


def _panel(alt: ModuleType, scores: FoundScores, method: str) -> Any:
    words, colour = _PANELS[method]
    drivers = scores.first(method)["drivers"]
    mean = float(np.mean([row["score"] for row in drivers]))
    rows: list[Row] = [
        {
            "driver": row["driver"],
            "time": row["median_lap_time"],
            **{name: row.get(name, row["score"]) / mean for name in ("score", "low", "high")},
        }
        for row in drivers
    ]
    ends = [row[name] for row in rows for name in ("low", "high")]
    margin = 0.06 * (max(ends) - min(ends)) or 0.05
    y = vertical_axis(alt, (min(ends) - margin, max(ends) + margin), "relative expertise")
    x = alt.X("time:Q", title="median lap time, seconds", scale=alt.Scale(zero=False, padding=18))
    base = alt.Chart(alt.Data(values=rows)).encode(x=x)
    layers = [
        base.mark_rule(aria=False, strokeWidth=1.5, color=colour).encode(y=y("low:Q"), y2="high:Q"),
        base.mark_point(filled=True, size=45, opacity=1, color=colour).encode(y=y("score:Q"), description="driver:N"),
        base.mark_text(aria=False, align="left", dx=6, dy=-5, fontSize=10, color=INK).encode(
            y=y("score:Q"), text="driver:N"
        ),
        panel_heading(alt, f"{words}: {scores.over_seeds(method, 'correlations', 'drivers').value:.2f}", _WIDTH),
    ]
    return alt.layer(*layers).properties(width=_WIDTH, height=_HEIGHT)
