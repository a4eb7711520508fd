"""The figures of the page about curation: differences by trainer and population, rewards and success by selection."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ileed import SettingsError
from ileed.errors import require
from ileed_lab.comparison import Records, unique
from ileed_lab.curation.differences import Row, over_trials, paired, row_of_square, rows_of
from ileed_lab.curation.page import NAMES
from ileed_lab.curation.square_section import SQUARE_NAMES, percent
from ileed_lab.drawing import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    as_svg,
    axis_range,
    colour_scale,
    estimate_row,
    panel_heading,
    task_title,
    with_title,
)
from ileed_lab.drawing import Row as Drawn

__all__ = ["differences_figure", "rewards_figure", "square_figure"]

_AGAINST = {"everything": BLUE, "random episodes": ORANGE}
_SELECTIONS = {
    "everything": ("everything", INK),
    "above": ("above the mean", BLUE),
    "above-random": ("random, as many", ORANGE),
    "above-oracle": ("oracle, as many", GREEN),
    "ileed": ("ILEED's own policy", PURPLE),
}
_SQUARE = "BC-RNN of ours"
_WIDTH, _STEP = 170, 26


def differences_figure(results: Path) -> bytes:
    """What the rule above the mean gains on everything and on as many random episodes; an SVG."""
    rows = _rows(results)
    drawn: list[Drawn] = []
    for row in rows:
        for name, other in (("everything", "everything"), ("random episodes", "above-random")):
            found = paired(row.rewards("above"), row.rewards(other))
            if found is not None:
                drawn.append(_fields(row) | {"kind": name} | estimate_row(found))
    alt = require("altair", package="ileed-lab")
    caption = (
        "Mean difference of episodic reward over trials, with Student's 95% interval: what the rule above the mean "
        "keeps, less everything (blue) and less as many random episodes (orange)."
    )
    return _drawn(alt, drawn, _AGAINST, "difference of reward", "Do curated episodes make better policies?", caption)


def rewards_figure(results: Path) -> bytes:
    """The reward of each selection of episodes; an SVG."""
    drawn: list[Drawn] = []
    for row in _rows(results):
        for name, (words, _) in _SELECTIONS.items():
            found = over_trials(row.rewards(name))
            if found is not None:
                drawn.append(_fields(row) | {"kind": words} | estimate_row(found))
    alt = require("altair", package="ileed-lab")
    words = "; ".join(f"{_COLOURS[colour]}: {name}" for name, colour in _SELECTIONS.values())
    caption = f"Mean episodic reward over trials, with Student's 95% interval. Marks are {words}."
    return _drawn(alt, drawn, dict(_SELECTIONS.values()), "reward", "Which episodes make the best policy?", caption)


def square_figure(results: Path) -> bytes:
    """The success of each selection of episodes in Square; an SVG."""
    row = row_of_square(Records(results, family="curation"))
    drawn: list[Drawn] = []
    for name, words in SQUARE_NAMES.items():
        found = percent(over_trials(row.rewards(name)))
        if found is not None:
            drawn.append({"trainer": _SQUARE, "where": words, "kind": "success"} | estimate_row(found))
    if not drawn:
        raise SettingsError(f"{results} has no curation in Square: `ileed reproduce curation/square` measures it")
    alt = require("altair", package="ileed-lab")
    caption = "Percent of episodes that succeeded, mean over trials, with Student's 95% interval."
    question = "Which episodes make the best policy in Square?"
    return _drawn(alt, drawn, {"success": BLUE}, "percent succeeded", question, caption)


_COLOURS = {
    INK: "black",
    GREY: "grey",
    BLUE: "blue",
    ORANGE: "orange",
    GREEN: "green",
    PURPLE: "purple",
}


def _rows(results: Path) -> list[Row]:
    rows = [row for row in rows_of(Records(results, family="curation")) if row.was_run]
    if not rows:
        raise SettingsError(f"{results} has no curation: `ileed reproduce curation/minigrid` measures it")
    return rows


def _fields(row: Row) -> Drawn:
    return {"trainer": NAMES[row.trainer], "where": f"{task_title(row.task)} {row.population}"}


def _drawn(
    alt: ModuleType,
    rows: list[Drawn],
    colours: dict[str, str],
    title: str,
    question: str,
    caption: str,
) -> bytes:
    places = unique(row["where"] for row in rows)
    trainers = unique(row["trainer"] for row in rows)
    domain = axis_range(rows)
    panels = [
        _panel(alt, [row for row in rows if row["trainer"] == trainer], places, colours, (domain, title), trainer)
        for trainer in trainers
    ]
    panels = [panel.properties(height=alt.Step(_STEP, **{"for": "position"})) for panel in panels]
    return as_svg(with_title(alt, alt.hconcat(*panels, spacing=14), question, caption))


def _panel(
    alt: ModuleType,
    rows: list[Drawn],
    places: Sequence[str],
    colours: dict[str, str],
    axis: tuple[tuple[float, float], str],
    trainer: str,
) -> Any:
    (low, high), title = axis
    scale = alt.Scale(domain=[low, high], nice=False)

    def x(field: str) -> Any:
        return alt.X(field, title=title, scale=scale, axis=alt.Axis(tickCount=4))

    first = trainer in (NAMES["bc"], _SQUARE)
    y_axis = alt.Axis(labels=first, ticks=False, domain=False, grid=True, labelLimit=0, labelPadding=8)
    base = alt.Chart(alt.Data(values=rows)).encode(
        y=alt.Y("where:N", sort=None, title=None, scale=alt.Scale(domain=list(places)), axis=y_axis),
        yOffset=alt.YOffset("kind:N", sort=None, scale=alt.Scale(domain=list(colours))),
        color=colour_scale(alt, "kind:N", colours),
    )
    zero = alt.Chart(alt.Data(values=[{"zero": 0}])).mark_rule(color=GREY, strokeDash=[4, 4], aria=False)
    layers = [
        *([zero.encode(x=x("zero:Q"))] if low <= 0 <= high else []),
        base.mark_rule(aria=False, strokeWidth=2).encode(x=x("low:Q"), x2="high:Q"),
        base.mark_point(filled=True, size=32, opacity=1).encode(x=x("mean:Q"), description="label:N"),
        panel_heading(alt, trainer.replace("BC of ours", "our BC").removesuffix(" network"), _WIDTH),
    ]
    return alt.layer(*layers).properties(width=_WIDTH)
