"""Charts: rows of plain values drawn with Altair as static SVG, as files or as elements of a page.

docs/decisions/report.md says why they are not interactive. Hovering over a mark shows its numbers (SVG titles), and
every chart of a page is drawn for wide and for narrow screens, between which the style sheet chooses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, final
from xml.etree import ElementTree

Row = dict[str, Any]

_BLUE, _ORANGE, _INK, _GREY = "#0072B2", "#D55E00", "#1f2933", "#a3acb5"  # blue and orange of Okabe and Ito
_PALE_BLUE, _PALE_GREY = "#7db8da", "#c9d0d6"
_SVG = "http://www.w3.org/2000/svg"

LIBRARIES = {"altair": "report", "vl_convert": "report"}  # that draw charts, with the extra that brings them
_THEME = Path(__file__).with_name("theme.json")  # Vega's configuration; padding leaves room for a reader's wider font


@final
@dataclass(frozen=True)
class Figure:
    """A chart: its name, a description in words, and `draw(altair, narrow)`."""

    name: str
    description: str
    draw: Callable[[ModuleType, bool], Any]


def file_of(figure: Figure, format: Literal["svg", "png"]) -> bytes:  # noqa: A002 (as `figures` calls it)
    """The content of a file with the chart."""
    convert, chart = import_module("vl_convert"), specification(figure, narrow=False)
    return convert.vegalite_to_png(chart, scale=2) if format == "png" else convert.vegalite_to_svg(chart).encode()


def inline(figure: Figure) -> str:
    """The chart for wide and for narrow screens, as elements of a page."""
    convert = import_module("vl_convert")
    wide, narrow = (convert.vegalite_to_svg(specification(figure, narrow=narrow)) for narrow in (False, True))
    return _inline_svg(wide, figure, "wide") + _inline_svg(narrow, figure, "narrow")


def specification(figure: Figure, *, narrow: bool) -> dict[str, Any]:
    """What Vega draws: the chart for wide or for narrow screens, as JSON."""
    chart: dict[str, Any] = figure.draw(import_module("altair"), narrow).to_dict()
    autosize = {"type": "fit-x", "contains": "padding"}
    theme = json.loads(_THEME.read_text(encoding="utf-8"))
    return chart | {"config": theme, "width": 372 if narrow else 800, "autosize": autosize}


def bar_chart(
    alt: ModuleType,
    narrow: bool,
    *,
    rows: list[Row],
    names: list[str],
    title: str,
    domain: tuple[float, float],
    marks: Sequence[str],
) -> Any:
    """A bar for each row's `value`, with its `text` at the right, a line from `low` to `high`, and a tick at `known`.

    `marks` says in words what bars, lines and ticks are; those without words are not drawn.
    """
    colour = _colour_by_kind(alt, narrow, dict(zip(marks, (_PALE_BLUE, _INK, _ORANGE), strict=False)), symbol="square")
    x = alt.X("value:Q", title=title, scale=alt.Scale(domain=domain), axis=alt.Axis(tickCount=5))
    base = alt.Chart(alt.Data(values=rows)).encode(y=_by_name(alt, narrow, names))
    kinds = [base.transform_calculate(kind=f"'{mark}'").encode(color=colour) for mark in marks]
    layers = [kinds[0].mark_bar(height={"band": 0.72}).encode(x=x, description="tooltip:N")]
    if len(marks) > 1:
        spread = kinds[1].transform_filter("isValid(datum.low)")
        layers.append(spread.mark_rule(strokeWidth=2, aria=False).encode(x="low:Q", x2="high:Q"))
    if len(marks) > 2:
        known = kinds[2].transform_filter("isValid(datum.known)")
        layers.append(known.mark_tick(thickness=4, height=15, opacity=1, aria=False).encode(x="known:Q"))
    text = base.mark_text(align="left", dx=6, fontSize=12, color=_INK, aria=False)
    layers.append(text.encode(x=alt.value("width"), text="text:N"))
    padding = {"left": 16, "right": 56, "top": 4, "bottom": 4}
    return alt.layer(*layers).properties(height=_row_height(alt, names), padding=padding)


def restart_chart(alt: ModuleType, narrow: bool, *, rows: list[Row]) -> Any:
    """A dot for each restart: its `cost` over its `rank`, the kept one larger."""
    scale = alt.Scale(domain=[0.5, rows[-1]["rank"] + 0.5], nice=False)
    axis = alt.Axis(grid=False, tickMinStep=1, format=",d", tickCount=5 if narrow else 10)
    chart = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("rank:Q", title="restart, best first", scale=scale, axis=axis),
        y=alt.Y("cost:Q", title="nats per action", scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=5)),
        color=_colour_by_kind(alt, narrow, {"kept": _ORANGE, "other restarts": _GREY}, symbol="circle"),
        size=alt.condition("datum.kind == 'kept'", alt.value(140), alt.value(60)),
        description="tooltip:N",
    )
    return chart.mark_circle(opacity=1).properties(height=200)


def learning_chart(alt: ModuleType, narrow: bool, *, rows: list[Row], domain: tuple[float, float]) -> Any:
    """A curve of `cost` over `step` for each `curve`; costs outside the domain are cut off."""
    styles: dict[str, tuple[str, dict[str, Any]]] = {
        "kept": (_ORANGE, {"strokeWidth": 2.5}),
        "kept, on held-out episodes": (_BLUE, {"strokeWidth": 2.5, "strokeDash": [5, 3]}),
        "other restarts": (_PALE_GREY, {"strokeWidth": 1}),
    }
    kinds = [kind for kind in styles if any(row["kind"] == kind for row in rows)]
    colours = {kind: styles[kind][0] for kind in kinds}
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("step:Q", title="step", axis=alt.Axis(grid=False, tickCount=4 if narrow else 8)),
        y=alt.Y("cost:Q", title="nats per action", scale=alt.Scale(domain=list(domain), nice=True)),
        color=_colour_by_kind(alt, narrow, colours, symbol="stroke"),
        detail="curve:N",
    )
    layers = [
        base.transform_filter(f"datum.kind == '{kind}'").mark_line(**styles[kind][1], clip=True, aria=False)
        for kind in reversed(kinds)
    ]
    return alt.layer(*layers).properties(height=240)


def heat_map(
    alt: ModuleType, narrow: bool, *, cells: list[Row], people: list[str], columns: list[str], title: str, named: bool
) -> Any:
    """A cell for each person and column, dark where `expertise` is high, and small where it was not `visited`.

    If the columns are `named`, their names are shown, and the values of the cells where there is room.
    """
    highest = max(cell["expertise"] for cell in cells)
    axis = alt.Axis(labels=named, ticks=False, domain=False, labelAngle=0 if len(columns) <= 8 else -60)
    scale = alt.Scale(scheme="blues", domain=[0, highest])
    legend = alt.Legend(orient="top", title="expertise", gradientLength=160, format=".2~f", tickCount=3)
    base = alt.Chart(alt.Data(values=cells)).encode(
        x=alt.X("column:N", sort=None, title=title, scale=alt.Scale(domain=columns), axis=axis),
        y=_by_name(alt, narrow, people),
        color=alt.Color("expertise:Q", scale=scale, legend=legend),
        description="tooltip:N",
    )
    layers = [base.transform_filter("datum.visited").mark_rect(width={"band": 0.94}, height={"band": 0.94})]
    if not all(cell["visited"] for cell in cells):
        unseen = base.transform_filter("!datum.visited")
        layers.append(unseen.mark_rect(width={"band": 0.3}, height={"band": 0.25}, stroke=_GREY, strokeWidth=0.5))
    if named and len(columns) <= (4 if narrow else 10):
        ink = alt.condition(f"datum.expertise > {0.5 * highest}", alt.value("white"), alt.value(_INK))
        text = base.mark_text(fontSize=12, aria=False)
        layers.append(text.encode(text=alt.Text("expertise:Q", format=".2f"), color=ink))
    return alt.layer(*layers).properties(height=_row_height(alt, people))


def _colour_by_kind(alt: ModuleType, narrow: bool, colours: Mapping[str, str], *, symbol: str) -> Any:
    """A colour for each `kind` of mark, with a legend."""
    scale = alt.Scale(domain=list(colours), range=list(colours.values()))
    legend = alt.Legend(orient="top", title=None, symbolType=symbol, columns=1 if narrow else len(colours))
    return alt.Color("kind:N", scale=scale, legend=legend)


def _by_name(alt: ModuleType, narrow: bool, names: list[str]) -> Any:
    axis = alt.Axis(labelLimit=110 if narrow else 220, ticks=False, domain=False, labelPadding=8, labelOverlap=False)
    return alt.Y("name:N", sort=None, title=None, scale=alt.Scale(domain=names), axis=axis)


def _row_height(alt: ModuleType, names: list[str]) -> Any:
    return alt.Step(24 if len(names) <= 25 else 16)


def _inline_svg(drawing: str, figure: Figure, kind: str) -> str:
    """A chart as an element of a page: ids that no other chart has, and titles to hover over instead of ARIA labels."""
    ElementTree.register_namespace("", _SVG)
    root = ElementTree.fromstring(drawing)
    elements = list(root.iter())
    old_ids = [element.attrib["id"] for element in elements if "id" in element.attrib]
    ids = {old: f"{figure.name}-{kind}-{k}" for k, old in enumerate(old_ids)}
    for element in elements:
        label, is_mark = element.get("aria-label"), element.tag in (f"{{{_SVG}}}path", f"{{{_SVG}}}line")
        for name in ("aria-label", "aria-roledescription", "aria-hidden", "role", "class", "font-family"):
            element.attrib.pop(name, None)
        if label and is_mark and kind == "wide":  # narrow screens rarely have a mouse
            ElementTree.SubElement(element, f"{{{_SVG}}}title").text = label
        for name, value in element.attrib.items():
            element.set(name, ids[value] if name == "id" else _short_attribute(value, ids))
    root.attrib |= {"class": kind, "role": "img", "aria-label": figure.description}
    return ElementTree.tostring(root, encoding="unicode")


def _short_attribute(value: str, ids: Mapping[str, str]) -> str:
    """The value of an attribute with new ids, and with lengths rounded to a tenth of a pixel."""
    if value.startswith("url(#"):
        return f"url(#{ids[value[5:-1]]})"
    return re.sub(r"-?\d+\.\d{2,}", lambda number: f"{float(number[0]):.1f}", value)
