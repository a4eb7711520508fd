"""Charts: rows of plain values drawn with Altair, as files or as elements of a page.

They are static SVG, not the interactive bundle. The bundle weighs 0.9 MB before the first chart, needs scripts (which
mail programs, CI artefact viewers and strict browsers refuse), and does not print at the reader's width. What it would
give is kept: hovering tells each mark's numbers (SVG titles), text can be selected, and every chart is drawn twice, for
wide and for narrow screens, between which the style sheet chooses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, final
from xml.etree import ElementTree

from ileed.errors import require

Row = dict[str, Any]

_BLUE, _ORANGE, _INK, _GREY = "#0072B2", "#D55E00", "#1f2933", "#a3acb5"  # blue and orange of Okabe and Ito
_PALE_BLUE, _PALE_GREY = "#7db8da", "#c9d0d6"
_SVG = "http://www.w3.org/2000/svg"

_TEXT = {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "labelColor": _INK, "titleColor": _INK}
_CONFIG: dict[str, Any] = {
    "background": "white",
    "padding": {"left": 16, "right": 8, "top": 4, "bottom": 4},  # room for a reader's font that is wider than ours
    "font": "sans-serif",
    "view": {"stroke": None},
    "axis": {**_TEXT, "gridColor": "#e6e9ec", "domainColor": _GREY, "tickColor": _GREY, "labelOverlap": True},
    "axisY": {"titlePadding": 12},
    "legend": {
        **_TEXT,
        "orient": "top",
        "symbolStrokeWidth": 3,
        "symbolOpacity": 1,
        "labelLimit": 0,
        "columnPadding": 32,
    },
}


@final
@dataclass(frozen=True)
class Figure:
    """A chart by name, what it shows in words, and how to draw it: `draw(altair, narrow)`."""

    name: str
    description: str
    draw: Callable[[ModuleType, bool], Any]


@final
class Drawing:
    """The libraries that draw, asked for before any work is done."""

    def __init__(self) -> None:
        self._altair = require("altair", extra="report")
        self._convert = require("vl_convert", extra="report")

    def file(self, figure: Figure, format: Literal["svg", "png"]) -> bytes:  # noqa: A002 (as `figures` calls it)
        """The chart as it would lie on a disk."""
        specification = self._specification(figure, narrow=False)
        if format == "png":
            return bytes(self._convert.vegalite_to_png(specification, scale=2))
        return str(self._convert.vegalite_to_svg(specification)).encode("utf-8")

    def inline(self, figure: Figure) -> str:
        """The chart for wide and for narrow screens, as elements of a page."""
        return "".join(
            _tidied(self._convert.vegalite_to_svg(self._specification(figure, narrow=narrow)), figure, kind)
            for narrow, kind in ((False, "wide"), (True, "narrow"))
        )

    def _specification(self, figure: Figure, *, narrow: bool) -> dict[str, Any]:
        specification: dict[str, Any] = figure.draw(self._altair, narrow).to_dict()
        specification["config"] = _CONFIG
        specification["width"] = 372 if narrow else 800
        specification["autosize"] = {"type": "fit-x", "contains": "padding"}
        return specification


def ranking_chart(alt: ModuleType, narrow: bool, *, rows: list[Row], people: list[str]) -> Any:
    """A bar for each person's `expertise`, a line from `low` to `high`, and a tick at `known` where there is one."""
    mean, spread, skill = "estimated expertise", "middle 80 % of their own steps", "known skill"
    has_known = any("known" in row for row in rows)
    colours = {mean: _PALE_BLUE, spread: _INK} | ({skill: _ORANGE} if has_known else {})
    keyed = _keyed(alt, narrow, colours, symbol="square")
    x = alt.X("expertise:Q", scale=alt.Scale(domain=[0, 1]), title="expertise", axis=alt.Axis(tickCount=5))
    base = alt.Chart(alt.Data(values=rows)).encode(y=_by_person(alt, narrow, people))

    def called(kind: str) -> Any:
        return base.transform_calculate(kind=f"'{kind}'").encode(color=keyed)

    layers = [
        called(mean).mark_bar(height={"band": 0.72}).encode(x=x, description="told:N"),
        called(spread).mark_rule(strokeWidth=2, aria=False).encode(x="low:Q", x2="high:Q"),
        base.mark_text(align="left", dx=6, fontSize=12, color=_INK, aria=False).encode(x=alt.datum(1), text="value:N"),
    ]
    if has_known:
        known = called(skill).transform_filter("isValid(datum.known)")
        layers.append(known.mark_tick(thickness=4, height=15, opacity=1, aria=False).encode(x="known:Q"))
    padding = {"left": 16, "right": 40, "top": 4, "bottom": 4}
    return alt.layer(*layers).properties(height=_height(alt, people), padding=padding)


def score_chart(alt: ModuleType, narrow: bool, *, rows: list[Row]) -> Any:
    """A bar for each policy's `mean`, with a line from `low` to `high` where these are known."""
    axis = alt.Axis(labelLimit=110 if narrow else 220, ticks=False, domain=False, labelPadding=8)
    base = alt.Chart(alt.Data(values=rows)).encode(y=alt.Y("policy:N", sort=None, title=None, axis=axis))
    ends = [0.0, *(row[end] for row in rows for end in ("low", "high", "mean") if end in row)]
    x = alt.X(
        "mean:Q",
        title="mean reward of an episode",
        scale=alt.Scale(domain=[min(ends), max(ends)]),
        axis=alt.Axis(tickCount=5),
    )
    sure = base.transform_filter("isValid(datum.low)")
    text = base.mark_text(align="left", baseline="top", dx=4, dy=12, fontSize=12, color=_INK, aria=False)
    return alt.layer(
        base.mark_bar(height={"band": 0.4}, color=_PALE_BLUE).encode(x=x, description="told:N"),
        sure.mark_rule(strokeWidth=2, color=_INK, aria=False).encode(x="low:Q", x2="high:Q"),
        text.encode(x=alt.datum(min(ends)), text="told:N"),
    ).properties(height=alt.Step(52))


def restart_chart(alt: ModuleType, narrow: bool, *, rows: list[Row]) -> Any:
    """A dot for each restart: its `cost` over its `rank`, the kept one larger."""
    return (
        alt.Chart(alt.Data(values=rows))
        .mark_circle(opacity=1)
        .encode(
            x=alt.X(
                "rank:Q",
                title="restart, best first",
                scale=alt.Scale(domain=[0.5, rows[-1]["rank"] + 0.5], nice=False),
                axis=alt.Axis(grid=False, tickMinStep=1, format=",d", tickCount=5 if narrow else 10),
            ),
            y=alt.Y("cost:Q", title="nats per action", scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=5)),
            color=_keyed(alt, narrow, {"kept": _ORANGE, "other restarts": _GREY}, symbol="circle"),
            size=alt.condition("datum.kind == 'kept'", alt.value(140), alt.value(60)),
            description="told:N",
        )
        .properties(height=200)
    )


def learning_chart(alt: ModuleType, narrow: bool, *, rows: list[Row], domain: tuple[float, float]) -> Any:
    """A curve of `cost` over `step` for each `curve`; costs outside the domain are cut off."""
    kept, held_out, others = "kept", "kept, on held-out episodes", "other restarts"
    colours = {kept: _ORANGE, held_out: _BLUE, others: _PALE_GREY}
    lines: dict[str, dict[str, Any]] = {
        others: {"strokeWidth": 1},
        kept: {"strokeWidth": 2.5},
        held_out: {"strokeWidth": 2.5, "strokeDash": [5, 3]},
    }
    if not any(row["kind"] == held_out for row in rows):
        del colours[held_out], lines[held_out]
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("step:Q", title="step", axis=alt.Axis(grid=False, tickCount=4 if narrow else 8)),
        y=alt.Y("cost:Q", title="nats per action", scale=alt.Scale(domain=list(domain), nice=True)),
        color=_keyed(alt, narrow, colours, symbol="stroke"),
        detail="curve:N",
    )
    return alt.layer(
        *(
            base.transform_filter(f"datum.kind == '{kind}'").mark_line(**line, clip=True, aria=False)
            for kind, line in lines.items()
        )
    ).properties(height=240)


def heat_map(
    alt: ModuleType,
    narrow: bool,
    *,
    cells: list[Row],
    people: list[str],
    columns: list[str],
    title: str,
    named: bool,
) -> Any:
    """A cell for each person and column, dark where `expertise` is high and small where the person never was.

    Columns that are `named` carry their names, and the cells their values where there is room.
    """
    highest = max(cell["expertise"] for cell in cells)
    base = alt.Chart(alt.Data(values=cells)).encode(
        x=alt.X(
            "column:N",
            sort=None,
            title=title,
            scale=alt.Scale(domain=columns),
            axis=alt.Axis(labels=named, ticks=False, domain=False, labelAngle=0 if len(columns) <= 8 else -60),
        ),
        y=_by_person(alt, narrow, people),
        color=alt.Color(
            "expertise:Q",
            scale=alt.Scale(scheme="cividis", reverse=True, domain=[0, highest]),
            legend=alt.Legend(orient="top", title="expertise", gradientLength=160, format=".2~f", tickCount=3),
        ),
        description="told:N",
    )
    layers = [base.transform_filter("datum.visited").mark_rect(width={"band": 0.94}, height={"band": 0.94})]
    if not all(cell["visited"] for cell in cells):
        unseen = base.transform_filter("!datum.visited")
        layers.append(unseen.mark_rect(width={"band": 0.3}, height={"band": 0.25}))
    if named and len(columns) <= (4 if narrow else 10):
        ink = alt.condition(f"datum.expertise > {0.5 * highest}", alt.value("white"), alt.value(_INK))
        text = base.mark_text(fontSize=12, aria=False)
        layers.append(text.encode(text=alt.Text("expertise:Q", format=".2f"), color=ink))
    return alt.layer(*layers).properties(height=_height(alt, people))


def _keyed(alt: ModuleType, narrow: bool, colours: Mapping[str, str], *, symbol: str) -> Any:
    """The colour of marks that are told apart by their `kind`, with a legend."""
    return alt.Color(
        "kind:N",
        scale=alt.Scale(domain=list(colours), range=list(colours.values())),
        legend=alt.Legend(orient="top", title=None, symbolType=symbol, columns=1 if narrow else len(colours)),
    )


def _by_person(alt: ModuleType, narrow: bool, people: list[str]) -> Any:
    return alt.Y(
        "person:N",
        sort=None,
        title=None,
        scale=alt.Scale(domain=people),
        axis=alt.Axis(labelLimit=110 if narrow else 220, ticks=False, domain=False, labelPadding=8, labelOverlap=False),
    )


def _height(alt: ModuleType, people: list[str]) -> Any:
    return alt.Step(24 if len(people) <= 25 else 16)


def _tidied(drawn: str, figure: Figure, kind: str) -> str:
    """A chart to stand among others in one page: its ids its own, and what each mark says as a title to hover over."""
    ElementTree.register_namespace("", _SVG)
    root = ElementTree.fromstring(drawn)
    drawn_ids = [element.attrib["id"] for element in root.iter() if "id" in element.attrib]
    ids = {before: f"{figure.name}-{kind}-{k}" for k, before in enumerate(drawn_ids)}  # theirs count on between charts
    for parent in root.iter():
        for child in list(parent):
            if child.get("class") in ("foreground", "background") and child.get("d") in ("", "M0,0h0v0h0Z"):
                parent.remove(child)
    for element in root.iter():
        told, symbol = element.get("aria-label"), element.tag in (f"{{{_SVG}}}path", f"{{{_SVG}}}line")
        for name in ("aria-label", "aria-roledescription", "aria-hidden", "role", "class", "font-family"):
            element.attrib.pop(name, None)
        if element.get("opacity") == "1":
            del element.attrib["opacity"]
        if told and symbol and kind == "wide":  # where the screen is narrow there is rarely a mouse to hover with
            ElementTree.SubElement(element, f"{{{_SVG}}}title").text = told
        for name, value in element.attrib.items():
            element.set(name, ids[value] if name == "id" else _plainer(value, ids))
    root.attrib |= {"class": kind, "role": "img", "aria-label": figure.description}
    return ElementTree.tostring(root, encoding="unicode")


def _plainer(value: str, ids: Mapping[str, str]) -> str:
    """An attribute's value in fewer letters: new ids, colours as hexadecimals, a tenth of a pixel at the finest."""
    if value.startswith("url(#"):
        return f"url(#{ids[value[5:-1]]})"
    if value.startswith("rgb("):
        return "#" + "".join(f"{int(part):02x}" for part in re.findall(r"\d+", value)[:3])
    return re.sub(r"-?\d+\.\d{2,}", lambda number: f"{float(number[0]):.1f}", value)
