"""The figure of the page about simulated operators: how well each score follows success."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

from ileed import SettingsError
from ileed.errors import require
from ileed_lab.comparison import Records
from ileed_lab.drawing import BLUE, GREY, INK, Row, as_svg, panel_heading, with_title
from ileed_lab.operators.pick_place_section import ESTIMATES, SCORES, FoundPickPlace

__all__ = ["scores_figure"]

_WIDTH, _ROW = 250, 24


def scores_figure(results: Path) -> bytes:
    """Correlation of every score with the success of operators; an SVG with a panel for each tolerance."""
    found = FoundPickPlace(Records(results, family="operators"))
    if not found.tolerances:
        raise SettingsError("nothing to draw: run `ileed reproduce operators/pick-place` first", code="no-record")
    alt = require("altair", package="ileed-lab")
    chart = alt.hconcat(*(_panel(alt, found, each) for each in found.tolerances), spacing=24)
    caption = (
        "Spearman correlation of each score with the success of eight teleoperators, which no score but the second "
        "sees; mean over trials with 95% intervals."
    )
    return as_svg(with_title(alt, chart, "Which scores follow the success of operators?", caption))


def _panel(alt: ModuleType, found: FoundPickPlace, tolerance: str) -> Any:
    estimates = {
        words.strip("*").replace("`", ""): found.estimate(name, tolerance) for name, words in ESTIMATES.items()
    }
    estimates |= {words: found.score(name, tolerance) for name, words in SCORES.items()}
    rows: list[Row] = [
        {"score": words, "mean": own.mean, "low": own.low, "high": own.high, "ours": words.startswith("ILEED")}
        for words, own in estimates.items()
        if own is not None
    ]
    is_first = tolerance == found.tolerances[0]
    axis = alt.Axis(labelLimit=400, ticks=False, domain=False) if is_first else None
    y = alt.Y("score:N", sort=list(estimates), title=None, axis=axis)
    scale = alt.Scale(domain=[-0.4, 1.0], nice=False)
    x = alt.X("mean:Q", title="correlation with success", scale=scale, axis=alt.Axis(values=[-0.4, 0, 0.5, 1.0]))
    colour = alt.condition("datum.ours", alt.value(BLUE), alt.value(GREY))
    base = alt.Chart(alt.Data(values=rows)).encode(y=y)
    zero = alt.Chart(alt.Data(values=[{"mean": 0}])).mark_rule(color=INK, strokeWidth=1, aria=False).encode(x=x)
    layers = [
        zero,
        base.mark_rule(aria=False, strokeWidth=2).encode(x=alt.X("low:Q", scale=scale), x2="high:Q", color=colour),
        base.mark_point(filled=True, size=60, opacity=1).encode(x=x, color=colour, description="score:N"),
        panel_heading(alt, f"{tolerance} tolerance", _WIDTH),
    ]
    return alt.layer(*layers).properties(width=_WIDTH, height=_ROW * len(rows))
