"""The figure of the robot experiment: how often each method succeeds, learned from whom.

python -m ileed.experiments.robot_figures --results results --out docs/images
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from ileed import runs
from ileed.errors import SettingsError, require
from ileed.experiments.comparison import Estimate, Records
from ileed.experiments.drawing import (
    BLUE,
    CONFIG,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    Row,
    as_row,
    coloured,
    panel_heading,
    ring_where_published,
    rows_where,
    those_present,
    titled,
)
from ileed.experiments.grid import Measured
from ileed.experiments.robot import SUBSETS
from ileed.experiments.robot_page import published_square

__all__ = ["success"]

_METHODS: Mapping[str, tuple[str, str]] = {
    "bc-rnn": ("BC-RNN", ORANGE),
    "bc-rnn-shared": ("BC-RNN, shared deviations", ORANGE),
    "ileed": ("ILEED", BLUE),
    "ileed-by-state": ("ILEED by state", SKY),
    "ileed-no-memory": ("ILEED without memory", SKY),
    "hbc": ("HBC", GREEN),
    "iris": ("IRIS (rewards)", PURPLE),
    "bcq": ("BCQ (rewards)", PURPLE),
    "cql": ("CQL (rewards)", PURPLE),
}
"""What a method is called, and its colour."""
_WIDTH = 92


def success(results: Path) -> bytes:
    """Share of episodes that succeed, by operators and method, from `robot/square` among results; an SVG."""
    records = Records(results, family="robot")
    rows = [row for subset in SUBSETS for method in _METHODS for row in _rows(records, subset, method)]
    if not rows:
        raise SettingsError(f"{results} has no robot/square: `ileed reproduce robot/square --data FILE` measures it")
    alt, convert = require("altair", extra="report"), require("vl_convert", extra="report")
    chart = _success(alt, rows)
    return str(convert.vegalite_to_svg(chart.to_dict() | {"config": CONFIG})).encode()


def _rows(records: Records, subset: str, method: str) -> list[Row]:
    trials = records.trials("robot/square", method, operators=subset)
    if not trials:
        return []
    told = published_square()[subset].get(method)
    played = "".join(trial["successes"] for trial in trials.values())
    where = {"subset": subset, "method": _METHODS[method][0], "alone": [_percent(trial) for trial in trials.values()]}
    return [where | _in_percent(Estimate.share(played.count("1"), len(played))) | {"published": told and told[0]}]


def _percent(trial: Measured) -> float:
    return 100 * float(trial["success"])


def _in_percent(share: Estimate) -> Row:
    return as_row(Estimate(100 * share.mean, 100 * share.low, 100 * share.high, share.trials))


def _success(alt: ModuleType, rows: list[Row]) -> Any:
    methods = those_present([name for name, _ in _METHODS.values()], rows, "method")
    subsets = those_present(SUBSETS, rows, "subset")
    panels = [_panel(alt, rows_where(rows, subset=subset), methods, first=subset == subsets[0]) for subset in subsets]
    return titled(
        alt,
        alt.hconcat(*panels, spacing=12),
        "Which method learns most from operators of unknown skill?",
        "Percent of episodes in which the nut is put on the peg, of all trials together, with Wilson's 95 % interval. "
        "Small marks: single trials, each a fit of its own. Hollow: published, for people's data instead of ours. "
        "Columns: whose demonstrations were learned from.",
    )


def _panel(alt: ModuleType, rows: list[Row], methods: list[str], *, first: bool) -> Any:
    scale = alt.Scale(domain=[-4, 104], nice=False)
    axis = alt.Axis(values=[0, 50, 100])

    def x(field: str) -> Any:
        return alt.X(field, title="success, %", scale=scale, axis=axis)

    y_axis = alt.Axis(labels=first, ticks=False, domain=False, grid=True, labelLimit=0, labelPadding=8)
    base = alt.Chart(alt.Data(values=rows)).encode(
        y=alt.Y("method:N", sort=None, title=None, scale=alt.Scale(domain=methods), axis=y_axis),
        color=coloured(alt, "method:N", dict(_METHODS.values())),
    )
    layers = [
        base.transform_flatten(["alone"]).mark_tick(aria=False, thickness=1, size=9).encode(x=x("alone:Q")),
        base.mark_rule(aria=False, strokeWidth=2.5).encode(x=x("low:Q"), x2="high:Q"),
        base.mark_point(filled=True, size=45, opacity=1).encode(x=x("mean:Q"), description="told:N"),
        ring_where_published(base).encode(x=x("published:Q")),
        panel_heading(alt, rows[0]["subset"], _WIDTH),
    ]
    return alt.layer(*layers).properties(width=_WIDTH, height=alt.Step(20))


def main() -> None:
    """Draw it."""
    words = argparse.ArgumentParser(description="Draw the figure of the robot experiment from its results.")
    words.add_argument("--results", type=Path, default=Path("results"), help="what `ileed reproduce` wrote")
    words.add_argument("--out", type=Path, default=Path("docs/images"), help="where the picture goes")
    asked = words.parse_args()
    runs.write_file(asked.out / "robot-success.svg", success(asked.results))


if __name__ == "__main__":
    main()
