"""Charts: small SVG, drawn in percent of the width, so that one drawing serves a phone, a screen and paper.

Colours are classes, which the style sheet of the page sets for light and dark; a chart as a file of its own carries
the light ones. docs/decisions/report.md says why they are drawn by hand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple, final

from ileed.errors import require
from ileed.report.text import escape, short

HEAT = ("#f2f7fc", "#dfecf7", "#cbdff1", "#abcfe6", "#82badb", "#5aa2cf", "#2a72b0", "#185fa1", "#0a4a90", "#08306b")
_LIGHT = {
    "ink": "#1f2933",
    "muted": "#52606d",
    "line": "#c6ced6",
    "one": "#0072b2",
    "two": "#b84a00",
    "faint": "#a9c9e3",
}
_WIDTH, _LABELS, _NUMBERS, _ROW = 800, 190, 60, 26


class Scale(NamedTuple):
    """Where values lie between the left (or the bottom) and the right (or the top) of a chart."""

    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float | None], *, zero: bool = True) -> Scale:
        """From zero, or the least value, to the greatest, with a margin; values that are not finite do not count."""
        finite = [value for value in values if value is not None and math.isfinite(value)]
        low, high = min(finite, default=0.0), max(finite, default=1.0)
        if zero:
            low, high = min(0.0, low), max(0.0, high)
        margin = 0.04 * (high - low) or 0.5
        return cls(low if zero and low == 0 else low - margin, high + margin)

    def __call__(self, value: float) -> float:
        """Percent of the way, inside the chart."""
        return round(min(100.0, max(0.0, 100 * (value - self.low) / (self.high - self.low))), 2)

    def ticks(self, most: int = 5) -> list[float]:
        """Round values, at most so many and two at least."""
        rough = (self.high - self.low) / most
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * each for each in (1, 2, 2.5, 5, 10) if power * each >= rough)
        first = math.ceil(self.low / step - 1e-9)
        return [step * k for k in range(first, math.floor(self.high / step + 1e-9) + 1)]


@final
@dataclass(frozen=True)
class Chart:
    """A chart of its own: `body` is drawn in percent of the width and in pixels of the height."""

    name: str
    description: str
    body: str
    height: int
    legend: Sequence[tuple[str, str]] = ()

    def html(self) -> str:
        about = f'role="img" aria-label="{escape(self.description)}"'
        drawing = f'<svg class="chart" width="100%" height="{self.height}" {about}>{self.body}</svg>'
        caption = f"<figcaption>{escape(self.description)}</figcaption>"
        return f"<figure>{caption}{legend(self.legend)}{drawing}</figure>\n"

    def file(self) -> str:
        """A file of its own."""
        inner = f'<svg x="10" y="34" width="{_WIDTH - 20}" height="{self.height}" overflow="visible">{self.body}</svg>'
        return _file(self.description, self.height + 44, _file_legend(self.legend) + inner)

    @property
    def figure(self) -> Chart | Rows | None:
        return self


@final
@dataclass(frozen=True)
class Rows:
    """A drawing for each row of a table, which share one axis; as a file with the labels beside them."""

    name: str
    description: str
    labels: Sequence[str]
    drawings: Sequence[str]
    numbers: Sequence[str]
    axis: str
    title: str
    legend: Sequence[tuple[str, str]] = ()

    def cells(self) -> list[str]:
        """The drawing of each row as a cell holds it."""
        return [f'<svg class="plot" width="100%" height="22" aria-hidden="true">{each}</svg>' for each in self.drawings]

    def head(self) -> str:
        """The axis, for the head of the column."""
        return f'<svg class="plot" width="100%" height="16" aria-hidden="true">{self.axis}</svg>'

    def file(self) -> str:
        """A file of its own."""
        width, parts = _WIDTH - _LABELS - _NUMBERS, [_file_legend(self.legend)]
        for k, (label, drawing, value) in enumerate(zip(self.labels, self.drawings, self.numbers, strict=True)):
            y = 36 + k * _ROW
            parts.append(f'<text x="{_LABELS - 10}" y="{y + 16}" text-anchor="end">{escape(short(label, 26))}</text>')
            parts.append(f'<svg x="{_LABELS}" y="{y}" width="{width}" height="22" overflow="visible">{drawing}</svg>')
            parts.append(f'<text x="{_WIDTH - _NUMBERS + 8}" y="{y + 16}">{escape(value)}</text>')
        end = 36 + len(self.labels) * _ROW
        parts.append(f'<svg x="{_LABELS}" y="{end}" width="{width}" height="18">{self.axis}</svg>')
        middle = _LABELS + width // 2
        parts.append(
            f'<text class="muted" x="{middle}" y="{end + 34}" text-anchor="middle">{escape(self.title)}</text>'
        )
        return _file(self.description, end + 44, "".join(parts))


def file_of(figure: Chart | Rows, format: Literal["svg", "png"]) -> bytes:  # noqa: A002 (as `figures` calls it)
    """The content of a file with the chart."""
    drawing = figure.file()
    if format == "svg":
        return drawing.encode()
    return bytes(require("vl_convert", extra="report").svg_to_png(drawing, scale=2))


def interval(
    scale: Scale,
    value: float,
    bounds: tuple[float, float] | None = None,
    *,
    mark: Literal["one", "two"] = "one",
    known: float | None = None,
    reference: float | None = None,
) -> str:
    """A mark at `value`, a line over its interval, a thin line at `reference` and a diamond at the `known` value."""
    parts = []
    if reference is not None:
        parts.append(f'<line class="reference" x1="{scale(reference)}%" x2="{scale(reference)}%" y1="0" y2="22"/>')
    if bounds is not None and all(map(math.isfinite, bounds)):
        low, high = scale(bounds[0]), scale(bounds[1])
        ends = "".join(f'<line class="{mark}" x1="{x}%" x2="{x}%" y1="7" y2="15"/>' for x in (low, high))
        parts.append(f'<line class="{mark}" x1="{low}%" x2="{high}%" y1="11" y2="11"/>{ends}')
    if math.isfinite(value):
        at = scale(value)
        if mark == "one":
            parts.append(f'<circle class="{mark}" cx="{at}%" cy="11" r="4.5"/>')
        else:
            parts.append(
                f'<svg x="{at}%" overflow="visible"><rect class="{mark}" x="-4" y="7" width="8" height="8"/></svg>'
            )
    if known is not None and math.isfinite(known):
        path = '<path class="known" d="M0 4.5 6.5 11 0 17.5-6.5 11Z"/>'
        parts.append(f'<svg x="{scale(known)}%" overflow="visible">{path}</svg>')
    return "".join(parts)


def axis(scale: Scale) -> str:
    """Numbers under, or over, drawings that share a scale."""
    return "".join(
        f'<text class="tick" x="{scale(tick)}%" y="12" text-anchor="{_anchor(scale(tick))}">{words}</text>'
        for tick, words in _labelled(scale.ticks())
    )


def strip(levels: Sequence[tuple[int, bool, str]]) -> str:
    """Cells side by side: how dark from 0 to 9, whether anybody was there, and words to hover over."""
    width = 100 / len(levels)
    parts = []
    for k, (level, seen, words) in enumerate(levels):
        x, y, height = (k * width, 1, 20) if seen else ((k + 0.3) * width, 8, 6)
        size = f'x="{x:.2f}%" y="{y}" width="{width * (0.92 if seen else 0.4):.2f}%" height="{height}"'
        parts.append(f'<rect class="h{level}" {size}><title>{escape(words)}</title></rect>')
    return "".join(parts)


class Curve(NamedTuple):
    """Points of a curve, and the class that says how it is drawn."""

    points: Sequence[tuple[float, float]]
    kind: str


def lines(curves: Sequence[Curve], x: Scale, y: Scale, *, height: int, across: str, marked: str = "") -> str:
    """Curves over two axes; `marked` is drawn behind them, `across` says what the horizontal axis is."""
    parts = [f'<svg x="0" y="8" width="100%" height="{height}" overflow="visible">{marked}']
    for tick in y.ticks(4):
        at = 100 - y(tick)
        parts.append(f'<line class="grid" x1="0" x2="100%" y1="{at}%" y2="{at}%"/>')
    parts.append(f'<svg width="100%" height="100%" viewBox="0 0 {_WIDTH} {height}" preserveAspectRatio="none">')
    for curve in curves:
        points = " ".join(f"{x(a) * _WIDTH / 100:.1f},{(100 - y(b)) * height / 100:.1f}" for a, b in curve.points)
        shape = "polygon" if curve.kind == "band" else "polyline"
        parts.append(f'<{shape} class="{curve.kind}" points="{points}" vector-effect="non-scaling-stroke"/>')
    parts.append("</svg>")
    for tick, words in _labelled(y.ticks(4)):
        parts.append(f'<text class="tick halo" x="2" y="{100 - y(tick)}%" dy="-3">{words}</text>')
    parts.append("</svg>")
    bottom = height + 8
    for tick, words in _labelled(x.ticks(4)):
        at = x(tick)
        place = f'x="{at}%" y="{bottom + 16}" text-anchor="{_anchor(at)}"'
        parts.append(f'<line class="axis" x1="{at}%" x2="{at}%" y1="{bottom}" y2="{bottom + 4}"/>')
        parts.append(f'<text class="tick" {place}>{words}</text>')
    parts.append(f'<line class="axis" x1="0" x2="100%" y1="{bottom}" y2="{bottom}"/>')
    parts.append(f'<text class="muted" x="50%" y="{bottom + 33}" text-anchor="middle">{escape(across)}</text>')
    return "".join(parts)


def bars(edges: Sequence[float], counts: Sequence[int], *, height: int, across: str) -> str:
    """A histogram: a bar for each count between two edges, with words to hover over."""
    x, y = Scale(edges[0], edges[-1]), Scale.of([0.0, *map(float, counts)])
    drawn = "".join(
        f'<rect class="one" x="{x(low) + 0.1:.2f}%" width="{max(0.1, x(high) - x(low) - 0.2):.2f}%" '
        f'y="{100 - y(count):.2f}%" height="{y(count)}%"><title>{low:.2f} to {high:.2f}: {count:,}</title></rect>'
        for (low, high), count in zip(pairwise(edges), counts, strict=True)
    )
    return lines([], x, y, height=height, across=across, marked=drawn)


def shade(x: Scale, first: float, last: float) -> str:
    """A stretch of the horizontal axis, marked from top to bottom."""
    left, right = x(first), x(last)
    return f'<rect class="marked" x="{left}%" y="0" width="{max(0.3, right - left):.2f}%" height="100%"/>'


def dots(points: Sequence[tuple[float, float, str, str]], x: Scale, y: Scale, *, height: int, across: str) -> str:
    """A dot for each (x, y, class, words to hover over), over the same axes as curves."""
    drawn = "".join(
        f'<circle class="{kind}" cx="{x(a)}%" cy="{100 - y(b)}%" r="{6 if kind == "two" else 4}">'
        f"<title>{escape(words)}</title></circle>"
        for a, b, kind, words in points
    )
    over = f'<svg x="0" y="8" width="100%" height="{height}" overflow="visible">{drawn}</svg>'
    return lines([], x, y, height=height, across=across) + over


def path(
    cloud: Sequence[tuple[float, float]],
    points: Sequence[tuple[float, float]],
    stretch: tuple[int, int] | None,
    x: Scale,
    y: Scale,
    *,
    height: int,
) -> str:
    """A path in a plane before a cloud of points, its start as a dot and one stretch of it marked."""
    dots_ = "".join(f'<circle class="other" cx="{x(a)}%" cy="{100 - y(b)}%" r="1.5"/>' for a, b in cloud)
    parts = [(points, "one"), *([(points[stretch[0] : stretch[1] + 1], "two")] if stretch else [])]
    drawn = "".join(
        f'<polyline class="{kind}" points="{" ".join(_corner(x(a), 100 - y(b), height) for a, b in some)}" '
        'vector-effect="non-scaling-stroke"/>'
        for some, kind in parts
    )
    start = f'<circle class="one" cx="{x(points[0][0])}%" cy="{100 - y(points[0][1])}%" r="4.5"/>'
    inner = f'<svg width="100%" height="100%" viewBox="0 0 {_WIDTH} {height}" preserveAspectRatio="none">{drawn}</svg>'
    return f'<svg x="0" y="5" width="100%" height="{height}" overflow="visible">{dots_}{inner}{start}</svg>'


def _corner(across: float, down: float, height: int) -> str:
    return f"{across * _WIDTH / 100:.1f},{down * height / 100:.1f}"


def legend(marks: Sequence[tuple[str, str]]) -> str:
    """What each class of mark is, in words."""
    if not marks:
        return ""
    items = "".join(
        f'<li><svg width="22" height="12" aria-hidden="true">{_sign(kind)}</svg>{escape(words)}</li>'
        for kind, words in marks
    )
    return f'<ul class="legend">{items}</ul>'


def _sign(kind: str) -> str:
    if kind == "one":
        return '<line class="one" x1="1" x2="21" y1="6" y2="6"/><circle class="one" cx="11" cy="6" r="4.5"/>'
    if kind == "two-square":
        line = '<line class="two" x1="1" x2="21" y1="6" y2="6"/>'
        return f'{line}<rect class="two" x="7" y="2" width="8" height="8"/>'
    if kind == "known":
        return '<path class="known" d="M11 0 17 6 11 12 5 6Z"/>'
    if kind.startswith("dot-"):
        return f'<circle class="{kind[4:]}" cx="11" cy="6" r="4.5"/>'
    if kind == "reference":
        return '<line class="reference" x1="11" x2="11" y1="0" y2="12"/>'
    if kind in ("marked", "band", "h2", "h8"):
        return f'<rect class="{kind}" x="1" y="1" width="20" height="10"/>'
    return f'<line class="{kind}" x1="1" x2="21" y1="6" y2="6"/>'


def _file_legend(marks: Sequence[tuple[str, str]]) -> str:
    parts, x = [], 12
    for kind, words in marks:
        parts.append(f'<svg x="{x}" y="8" width="22" height="12">{_sign(kind)}</svg>')
        parts.append(f'<text x="{x + 28}" y="18">{escape(words)}</text>')
        x += 50 + 7 * len(words)
    return "".join(parts)


def _file(description: str, height: int, body: str) -> str:
    """A drawing with the light colours, on white."""
    size = f'width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" class="ileed-figure" {size} role="img">'
    return f"{head}<title>{escape(description)}</title><style>{_styles()}</style>{_WHITE}{body}</svg>\n"


_WHITE = '<rect width="100%" height="100%" fill="#fff"/>'


def _styles() -> str:
    light = _LIGHT
    rules = [f"text{{font:12px system-ui,Helvetica,Arial,sans-serif;fill:{light['ink']}}}"]
    rules += [f".muted,.tick{{fill:{light['muted']}}}", "circle.one,circle.two,rect.two{stroke:#fff}"]
    for kind in ("one", "two"):
        rules.append(f"line.{kind},polyline.{kind}{{stroke:{light[kind]};stroke-width:2;fill:none}}")
        rules.append(f"circle.{kind},rect.{kind}{{fill:{light[kind]}}}")
    rules.append(f".grid,.axis,.reference{{stroke:{light['line']}}}")
    rules.append(f".known{{fill:none;stroke:{light['two']};stroke-width:2}}")
    rules.append(f"polyline.other,line.other{{fill:none;stroke:{light['line']}}}circle.other{{fill:{light['faint']}}}")
    rules.append("polyline.dashed,line.dashed{fill:none;stroke:#0072b2;stroke-width:2;stroke-dasharray:5 3}")
    rules.append(f".band{{fill:{light['one']};fill-opacity:.18}}.marked{{fill:{light['two']};fill-opacity:.16}}")
    rules += [f".h{level}{{fill:{colour}}}" for level, colour in enumerate(HEAT)]
    return "".join(rules)


def _anchor(percent: float) -> str:
    """Words at the ends of an axis stay inside it."""
    return "start" if percent < 3 else "end" if percent > 97 else "middle"


def _labelled(ticks: Sequence[float]) -> list[tuple[float, str]]:
    """Ticks with their numbers, all with as many decimals as the closest two need."""
    step = min((after - before for before, after in pairwise(ticks)), default=1.0)
    digits = next((each for each in range(7) if abs(step * 10**each - round(step * 10**each)) < 1e-6), 7)
    texts = (f"{0.0 if abs(tick) < 1e-12 else tick:,.{digits}f}" for tick in ticks)
    return [(tick, text.replace("-", "\N{MINUS SIGN}")) for tick, text in zip(ticks, texts, strict=True)]
