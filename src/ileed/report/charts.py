"""SVG charts in percent of the width, so that one drawing fits a phone, a screen and paper.

Colours are classes of charts.css: in a page for light and dark mode, in a file for light mode. docs/decisions/report.md
says why charts are drawn by hand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from ileed.report.page import WIDTH, Rows, decimal, escape


class Scale(NamedTuple):
    """The values at the left (or bottom) and the right (or top) of a chart."""

    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float | None], *, zero: bool = True) -> Scale:
        """From zero, or the smallest value, to the largest, with a margin; values that are not finite are ignored."""
        finite = [value for value in values if value is not None and math.isfinite(value)]
        low, high = min(finite, default=0.0), max(finite, default=1.0)
        if zero:
            low, high = min(0.0, low), max(0.0, high)
        margin = 0.04 * (high - low) or 0.5
        return cls(low if zero and low == 0 else low - margin, high + margin)

    def __call__(self, value: float) -> float:
        """The position in percent, clipped to the chart."""
        return round(min(100.0, max(0.0, 100 * (value - self.low) / (self.high - self.low))), 2)

    def ticks(self, most: int = 5) -> list[float]:
        """About `most` round values."""
        rough = (self.high - self.low) / most
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * each for each in (1, 2, 2.5, 5, 10) if power * each >= rough)
        first = math.ceil(self.low / step - 1e-9)
        return [step * k for k in range(first, math.floor(self.high / step + 1e-9) + 1)]


def _interval(scale: Scale, estimate: tuple[float, float, float], kind: Literal["one", "two"]) -> str:
    """A mark at an estimate, a circle or a square, and a line over its interval, as far as they are finite."""
    value, *bounds = estimate
    drawn = ""
    if all(map(math.isfinite, bounds)):
        low, high = (scale(bound) for bound in bounds)
        ends = "".join(f'<line class="{kind}" x1="{x}%" x2="{x}%" y1="7" y2="15"/>' for x in (low, high))
        drawn = f'<line class="{kind}" x1="{low}%" x2="{high}%" y1="11" y2="11"/>{ends}'
    if math.isfinite(value) and kind == "one":
        drawn += f'<circle class="one" cx="{scale(value)}%" cy="11" r="4.5"/>'
    elif math.isfinite(value):
        square = '<rect class="two" x="-4" y="7" width="8" height="8"/>'
        drawn += f'<svg x="{scale(value)}%" overflow="visible">{square}</svg>'
    return drawn


def interval_rows(
    name: str,
    description: str,
    rows: Sequence[tuple[str, tuple[float, float, float]]],
    *,
    title: str,
    legend: Sequence[tuple[str, str]],
    reference: float | None = None,
    known: Sequence[float | None] = (),
    second: Sequence[tuple[float, float, float]] = (),
) -> Rows:
    """A row with a label and an estimate with its interval, for each of `rows`.

    A row may also have a diamond at a `known` value, and a second estimate below the first. A thin line marks the
    `reference`.
    """
    ends = [end for estimate in [*(each for _, each in rows), *second] for end in estimate]
    scale = Scale.of([0.0, reference, *known, *ends])
    drawings = []
    for place, (_, estimate) in enumerate(rows):
        drawn = _interval(scale, estimate, "one")
        if second:
            other = _interval(scale, second[place], "two")
            drawn = f'<svg y="-5" overflow="visible">{drawn}</svg><svg y="5" overflow="visible">{other}</svg>'
        if reference is not None:
            at = scale(reference)
            drawn = f'<line class="reference" x1="{at}%" x2="{at}%" y1="0" y2="22"/>{drawn}'
        if known and (value := known[place]) is not None:
            diamond = '<path class="known" d="M0 4.5 6.5 11 0 17.5-6.5 11Z"/>'
            drawn += f'<svg x="{scale(value)}%" overflow="visible">{diamond}</svg>'
        drawings.append(drawn)
    numbers = [decimal(estimate[0]) for _, estimate in rows]
    return Rows(name, description, [label for label, _ in rows], drawings, numbers, _axis(scale), title, legend)


def _axis(scale: Scale) -> str:
    """The tick labels of drawings that share a scale."""
    return "".join(
        f'<text class="tick" x="{scale(tick)}%" y="12" text-anchor="{_anchor(scale(tick))}">{words}</text>'
        for tick, words in _labelled(scale.ticks())
    )


class Curve(NamedTuple):
    """Points of a curve, and the class of its style."""

    points: Sequence[tuple[float, float]]
    kind: str

    def drawn(self, x: Scale, y: Scale, height: int) -> str:
        points = " ".join(f"{x(a) * WIDTH / 100:.1f},{(100 - y(b)) * height / 100:.1f}" for a, b in self.points)
        shape = "polygon" if self.kind == "band" else "polyline"
        return f'<{shape} class="{self.kind}" points="{points}" vector-effect="non-scaling-stroke"/>'


def lines(curves: Sequence[Curve], x: Scale, y: Scale, *, height: int, across: str, marked: str = "") -> str:
    """Curves over two axes; `marked` is drawn behind them, `across` is the title of the horizontal axis."""
    parts = [f'<svg x="0" y="8" width="100%" height="{height}" overflow="visible">{marked}']
    for tick in y.ticks(4):
        at = 100 - y(tick)
        parts.append(f'<line class="grid" x1="0" x2="100%" y1="{at}%" y2="{at}%"/>')
    parts.append(f'<svg width="100%" height="100%" viewBox="0 0 {WIDTH} {height}" preserveAspectRatio="none">')
    parts += [*(curve.drawn(x, y, height) for curve in curves), "</svg>"]
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
    """A histogram: a bar for each count between two edges."""
    x, y = Scale(edges[0], edges[-1]), Scale.of([0.0, *map(float, counts)])
    drawn = "".join(
        f'<rect class="one" x="{x(low) + 0.1:.2f}%" width="{max(0.1, x(high) - x(low) - 0.2):.2f}%" '
        f'y="{100 - y(count):.2f}%" height="{y(count)}%"><title>{low:.2f} to {high:.2f}: {count:,}</title></rect>'
        for (low, high), count in zip(pairwise(edges), counts, strict=True)
    )
    return lines([], x, y, height=height, across=across, marked=drawn)


def band(
    at: Sequence[float],
    estimates: Sequence[Sequence[float]],
    mean: float,
    y: Scale,
    *,
    across: str,
    segment: tuple[int, int] | None = None,
) -> str:
    """A curve of values over a band from low to high, a thin line at the mean, and perhaps a shaded segment."""
    x, marked = Scale(at[0], max(at[-1], at[0] + 1)), ""
    if segment is not None:
        left, right = x(segment[0] - 0.5), x(segment[1] + 0.5)
        marked = f'<rect class="marked" x="{left}%" y="0" width="{max(0.3, right - left):.2f}%" height="100%"/>'
    value, low, high = (list(zip(at, each, strict=True)) for each in estimates)
    ends = [(at[0], mean), (at[-1], mean)]
    curves = [Curve([*high, *reversed(low)], "band"), Curve(ends, "other"), Curve(value, "one")]
    return lines(curves, x, y, height=120, across=across, marked=marked)


def path(
    cloud: Sequence[tuple[float, float]],
    points: Sequence[tuple[float, float]],
    segment: tuple[int, int] | None,
    x: Scale,
    y: Scale,
    *,
    height: int,
) -> str:
    """A path in a plane in front of a cloud of points, with a dot at its start and one segment marked."""
    behind = "".join(f'<circle class="other" cx="{x(a)}%" cy="{100 - y(b)}%" r="1.5"/>' for a, b in cloud)
    drawn = Curve(points, "one").drawn(x, y, height)
    if segment is not None:
        drawn += Curve(points[segment[0] : segment[1] + 1], "two").drawn(x, y, height)
    start = f'<circle class="one" cx="{x(points[0][0])}%" cy="{100 - y(points[0][1])}%" r="4.5"/>'
    inner = f'<svg width="100%" height="100%" viewBox="0 0 {WIDTH} {height}" preserveAspectRatio="none">{drawn}</svg>'
    return f'<svg x="0" y="5" width="100%" height="{height}" overflow="visible">{behind}{inner}{start}</svg>'


def _anchor(percent: float) -> str:
    """The anchor that keeps a tick label inside its axis."""
    return "start" if percent < 3 else "end" if percent > 97 else "middle"


def _labelled(ticks: Sequence[float]) -> list[tuple[float, str]]:
    """Ticks with their labels, all with the same number of decimals."""
    step = min((after - before for before, after in pairwise(ticks)), default=1.0)
    digits = next((each for each in range(7) if abs(step * 10**each - round(step * 10**each)) < 1e-6), 7)
    texts = (f"{0.0 if abs(tick) < 1e-12 else tick:,.{digits}f}" for tick in ticks)
    return [(tick, text.replace("-", "\N{MINUS SIGN}")) for tick, text in zip(ticks, texts, strict=True)]
