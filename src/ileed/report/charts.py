"""Charts: small SVG, drawn in percent of the width, so that one drawing serves a phone, a screen and paper.

Colours are classes, which charts.css sets, in a page for light and dark; a chart in a file carries the light ones.
docs/decisions/report.md says why charts are drawn by hand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from ileed.report.page import WIDTH, Rows, decimal, escape


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
        """Round values: at least two, at most `most`."""
        rough = (self.high - self.low) / most
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * each for each in (1, 2, 2.5, 5, 10) if power * each >= rough)
        first = math.ceil(self.low / step - 1e-9)
        return [step * k for k in range(first, math.floor(self.high / step + 1e-9) + 1)]


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


def interval_rows(
    name: str,
    description: str,
    rows: Sequence[tuple[str, tuple[float, float, float]]],
    *,
    title: str,
    legend: Sequence[tuple[str, str]],
    reference: float | None = None,
    known: Sequence[float | None] | None = None,
    before: Sequence[float] = (),
) -> Rows:
    """A label, an estimate and its interval in each row; perhaps with a known value, and the value of before."""
    known = known or [None] * len(rows)
    scale = Scale.of([0.0, reference, *known, *before, *(end for _, each in rows for end in each)])
    drawings = [
        interval(scale, value, (low, high), known=truth, reference=reference)
        for (_, (value, low, high)), truth in zip(rows, known, strict=True)
    ]
    if before:
        drawings = [interval(scale, each, mark="two") + own for each, own in zip(before, drawings, strict=True)]
    numbers = [decimal(value) for _, (value, _, _) in rows]
    return Rows(name, description, [label for label, _ in rows], drawings, numbers, axis(scale), title, legend)


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

    def drawn(self, x: Scale, y: Scale, height: int) -> str:
        points = " ".join(f"{x(a) * WIDTH / 100:.1f},{(100 - y(b)) * height / 100:.1f}" for a, b in self.points)
        shape = "polygon" if self.kind == "band" else "polyline"
        return f'<{shape} class="{self.kind}" points="{points}" vector-effect="non-scaling-stroke"/>'


def lines(curves: Sequence[Curve], x: Scale, y: Scale, *, height: int, across: str, marked: str = "") -> str:
    """Curves over two axes; `marked` is drawn behind them, `across` says what the horizontal axis is."""
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
    """A histogram: a bar for each count between two edges, with words to hover over."""
    x, y = Scale(edges[0], edges[-1]), Scale.of([0.0, *map(float, counts)])
    drawn = "".join(
        f'<rect class="one" x="{x(low) + 0.1:.2f}%" width="{max(0.1, x(high) - x(low) - 0.2):.2f}%" '
        f'y="{100 - y(count):.2f}%" height="{y(count)}%"><title>{low:.2f} to {high:.2f}: {count:,}</title></rect>'
        for (low, high), count in zip(pairwise(edges), counts, strict=True)
    )
    return lines([], x, y, height=height, across=across, marked=drawn)


def shade(x: Scale, first: float, last: float) -> str:
    """A segment of the horizontal axis, marked from top to bottom."""
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
    """A path in a plane before a cloud of points, its start as a dot and one segment marked."""
    behind = "".join(f'<circle class="other" cx="{x(a)}%" cy="{100 - y(b)}%" r="1.5"/>' for a, b in cloud)
    drawn = Curve(points, "one").drawn(x, y, height)
    if stretch is not None:
        drawn += Curve(points[stretch[0] : stretch[1] + 1], "two").drawn(x, y, height)
    start = f'<circle class="one" cx="{x(points[0][0])}%" cy="{100 - y(points[0][1])}%" r="4.5"/>'
    inner = f'<svg width="100%" height="100%" viewBox="0 0 {WIDTH} {height}" preserveAspectRatio="none">{drawn}</svg>'
    return f'<svg x="0" y="5" width="100%" height="{height}" overflow="visible">{behind}{inner}{start}</svg>'


def _anchor(percent: float) -> str:
    """Words at the ends of an axis stay inside it."""
    return "start" if percent < 3 else "end" if percent > 97 else "middle"


def _labelled(ticks: Sequence[float]) -> list[tuple[float, str]]:
    """Ticks with their numbers, all with as many decimals as the closest two need."""
    step = min((after - before for before, after in pairwise(ticks)), default=1.0)
    digits = next((each for each in range(7) if abs(step * 10**each - round(step * 10**each)) < 1e-6), 7)
    texts = (f"{0.0 if abs(tick) < 1e-12 else tick:,.{digits}f}" for tick in ticks)
    return [(tick, text.replace("-", "\N{MINUS SIGN}")) for tick, text in zip(ticks, texts, strict=True)]
