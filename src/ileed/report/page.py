"""An HTML page: a header, sections of text, tables and charts, and a content policy that allows one script of ours.

Tables can be sorted in the page and downloaded as CSV. The sentences are in text.toml; names and other text from
outside are escaped here.
"""

from __future__ import annotations

import base64
import hashlib
import html
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate
from pathlib import Path
from string import Template
from typing import Any, Literal, NamedTuple, Protocol, final

import pyarrow as pa

from ileed import runs
from ileed.errors import cell_text, counted, printable, require

NOTHING = "\N{EN DASH}"  # in an empty cell
HEAT = ("#f2f7fc", "#dfecf7", "#cbdff1", "#abcfe6", "#82badb", "#5aa2cf", "#2a72b0", "#185fa1", "#0a4a90", "#08306b")
WIDTH, _MARGIN, _LABELS, _NUMBERS, _ROW = 800, 10, 180, 50, 26  # of a chart in a file
_CSV_BYTES = 400_000  # the largest CSV of a table, so that the page stays small whatever the data
_TOGETHER = re.compile(r"(?<=\d) (?=%)|(?<=above) (?=\.\d)|(?<=\d) (?=to \S?\d)|(?<=\d to) (?=\S?\d)")
_HOME = Path(__file__).parent
_TEXT = tomllib.loads((_HOME / "text.toml").read_text(encoding="utf-8"))


def say(name: str, **values: Any) -> str:
    """The sentence with this name in text.toml, with values filled in."""
    return str(_TEXT[name]).format(**values)


def say_if(applies: object, name: str, **values: Any) -> str:
    """The same if it applies, otherwise nothing."""
    return say(name, **values) if applies else ""


def as_sentence(words: str, names: Iterable[str] = ()) -> str:
    """Words as a sentence; one of `names` at the beginning keeps its case."""
    if not words:
        return ""
    return f"{words if words.startswith(tuple(names)) else words[0].upper() + words[1:]}."


def enumerated(words: Sequence[str], most: int = 4) -> str:
    """Words with commas and a last "and"; a long list is cut, with the number of the rest."""
    if len(words) > most:
        words = [*words[: most - 1], f"{len(words) - most + 1:,} more"]
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def short(label: str, most: int = 28) -> str:
    """A label that is short enough to be repeated."""
    return label if len(label) <= most else f"{label[: most - 1]}…"


def decimal(value: float | None, digits: int = 2) -> str:
    """A number with `digits` decimals, or a dash."""
    if value is None or not math.isfinite(value):
        return NOTHING
    shown = f"{value:,.{digits}f}"
    return shown.lstrip("-") if not float(shown.replace(",", "")) else shown.replace("-", "\N{MINUS SIGN}")


def between(low: float | None, high: float | None, digits: int = 2) -> str:
    """An interval in words; empty if there is none."""
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return ""
    return f"{decimal(low, digits)} to {decimal(high, digits)}"


def in_words(estimate: tuple[float, float, float], digits: int = 2) -> str:
    """An estimate and its interval in words."""
    value, low, high = estimate
    return f"{decimal(value, digits)} ({between(low, high, digits)})"


def escape(text: str) -> str:
    """Text from outside, as HTML."""
    return html.escape(printable(text))


def with_code(text: str) -> str:
    """A sentence of ours as HTML, with code between backquotes and without line breaks inside intervals."""
    whole = _TOGETHER.sub("\N{NO-BREAK SPACE}", html.escape(printable(text), quote=False))
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", whole)


class Block(Protocol):
    """A table or a chart in a section; its figure, if it has one, can also be written to a file."""

    def html(self) -> str: ...

    @property
    def figure(self) -> Chart | None: ...


@final
@dataclass(frozen=True)
class Chart:
    """A chart; `body` is drawn in percent of the width and in pixels of the height."""

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

    def file(self, format: Literal["svg", "png"]) -> bytes:  # noqa: A002 (as in `figures`)
        """The content of a file with the chart, in the colours of light mode on white."""
        size = f'width="{WIDTH}" height="{self.height + 44}" viewBox="0 0 {WIDTH} {self.height + 44}"'
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="ileed-figure" {size} role="img">',
            f"<title>{escape(self.description)}</title><style>{_style_of_files()}</style>",
            '<rect width="100%" height="100%" fill="#fff"/>',
        ]
        x = 12
        for kind, words in self.legend:
            parts.append(f'<svg x="{x}" y="8" width="22" height="12">{_SIGNS[kind]}</svg>')
            parts.append(f'<text x="{x + 28}" y="18">{escape(words)}</text>')
            x += 50 + 7 * len(words)
        place = f'x="{_MARGIN}" y="34" width="{WIDTH - 2 * _MARGIN}" height="{self.height}"'
        drawing = f'{"".join(parts)}<svg {place} overflow="visible">{self.body}</svg></svg>\n'
        if format == "svg":
            return drawing.encode()
        return bytes(require("vl_convert", extra="report").svg_to_png(drawing, scale=2))

    @property
    def figure(self) -> Chart:
        return self


@final
@dataclass(frozen=True)
class Rows:
    """A drawing for each row of a table, on one shared axis."""

    name: str
    description: str
    labels: Sequence[str]
    drawings: Sequence[str]
    numbers: Sequence[str]
    axis: str
    title: str
    legend: Sequence[tuple[str, str]] = ()

    def cells(self) -> list[str]:
        """The drawing of each row, for a cell."""
        return [f'<svg class="plot" width="100%" height="22" aria-hidden="true">{each}</svg>' for each in self.drawings]

    def head(self) -> str:
        """The axis, for the header of the column."""
        return f'<svg class="plot" width="100%" height="16" aria-hidden="true">{self.axis}</svg>'

    def chart(self) -> Chart:
        """The rows without the table, with the labels beside them."""
        width, parts = WIDTH - 2 * _MARGIN - _LABELS - _NUMBERS, []
        for k, (label, drawing, value) in enumerate(zip(self.labels, self.drawings, self.numbers, strict=True)):
            y = k * _ROW
            parts.append(f'<text x="{_LABELS - 10}" y="{y + 16}" text-anchor="end">{escape(short(label, 26))}</text>')
            parts.append(f'<svg x="{_LABELS}" y="{y}" width="{width}" height="22" overflow="visible">{drawing}</svg>')
            parts.append(f'<text x="{_LABELS + width + 8}" y="{y + 16}">{escape(value)}</text>')
        end, title = len(self.labels) * _ROW, f'text-anchor="middle">{escape(self.title)}</text>'
        parts.append(f'<svg x="{_LABELS}" y="{end}" width="{width}" height="18">{self.axis}</svg>')
        parts.append(f'<text class="muted" x="{_LABELS + width // 2}" y="{end + 34}" {title}')
        return Chart(self.name, self.description, "".join(parts), end + 36, self.legend)


@final
@dataclass(frozen=True)
class Frames:
    """Frames of an episode: images as PNG, each with a caption."""

    description: str
    images: Sequence[tuple[str, bytes]]
    figure: None = None

    def html(self) -> str:
        source = "data:image/png;base64,"
        shown = "".join(
            f'<li><img alt="observation at {escape(words)}" src="{source}{base64.b64encode(png).decode()}">'
            f"<span>{escape(words)}</span></li>"
            for words, png in self.images
        )
        return f'<figure><figcaption>{escape(self.description)}</figcaption><ul class="frames">{shown}</ul></figure>\n'


def legend(marks: Sequence[tuple[str, str]]) -> str:
    """The meaning of each class of marks."""
    if not marks:
        return ""
    items = "".join(
        f'<li><svg width="22" height="12" aria-hidden="true">{_SIGNS[kind]}</svg>{escape(words)}</li>'
        for kind, words in marks
    )
    return f'<ul class="legend">{items}</ul>'


_SIGNS = {
    "one": '<line class="one" x1="1" x2="21" y1="6" y2="6"/><circle class="one" cx="11" cy="6" r="4.5"/>',
    "two-square": '<line class="two" x1="1" x2="21" y1="6" y2="6"/>'
    '<rect class="two" x="7" y="2" width="8" height="8"/>',
    "known": '<path class="known" d="M11 0 17 6 11 12 5 6Z"/>',
    "reference": '<line class="reference" x1="11" x2="11" y1="0" y2="12"/>',
    "dot-other": '<circle class="other" cx="11" cy="6" r="4.5"/>',
    **{kind: f'<line class="{kind}" x1="1" x2="21" y1="6" y2="6"/>' for kind in ("two", "other", "dashed")},
}


class Cell(NamedTuple):
    """The content of a cell, its sort key, and its values in the CSV file."""

    html: str
    sort: float | str
    values: tuple[object, ...]
    kind: str = ""


def words(text: str, *, wide: bool = False) -> Cell:
    """Text from outside; `wide` text may take several lines."""
    return Cell(escape(text), printable(text).casefold(), (text,), "w" if wide else "")


def whole(count: int | None) -> Cell:
    """A count, or a dash."""
    return Cell(NOTHING if count is None else f"{count:,}", -math.inf if count is None else count, (count,), "n")


def decimals(value: float | None, digits: int = 2) -> Cell:
    """A number with `digits` decimals, or a dash."""
    return Cell(decimal(value, digits), _sorted_by(value), (value,), "n")


def rated(estimate: Sequence[float | None], *, heat: int | None = None) -> Cell:
    """An estimate and its interval; `heat` from 0 to 9 is the darkness of the cell."""
    value, low, high = estimate
    span = between(low, high)
    shown = f"{decimal(value)}{f' <small>{span}</small>' if span else ''}"
    return Cell(shown, _sorted_by(value), (value, low, high), "n" if heat is None else f"n h{heat}")


def _sorted_by(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) else -math.inf


def name_cell(label: str) -> Cell:
    """The label of a demonstrator, which may break after a sign that joins words."""
    return words(label)._replace(html=re.sub(r"([_./-])", r"\1<wbr>", escape(short(label, 60))), kind="name")


class Column(NamedTuple):
    """A column: its title, the cell of each row, and the names of its values in the CSV file, by default the title."""

    title: str
    cell: Callable[[Any], Cell]
    names: tuple[str, ...] = ()
    about: str = ""


def estimate_column(
    title: str, estimate: Callable[[Any], Sequence[float | None]], name: str = "", *, about: str
) -> Column:
    """A column of estimates with intervals, named `name`, `low` and `high` in the CSV file; with prefixes if `name`."""
    names = (name, f"{name}_low", f"{name}_high") if name else (title, "low", "high")
    return Column(title, lambda row: rated(estimate(row)), names, about)


@final
@dataclass(frozen=True)
class Table:
    """A table with a row for each of `rows`, named by its first cell; `drawing` is shown after the second column.

    `shown` are the rows in the page, by default all; the CSV file has all rows up to `_CSV_BYTES`.
    """

    name: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Any]
    drawing: Rows | None = None
    shown: Sequence[int] | None = None
    starts: frozenset[int] = frozenset()
    """Rows above which a line separates groups."""
    is_map: bool = False
    """Whether cells are shades of a map, of equal width."""

    @property
    def figure(self) -> Chart | None:
        return None if self.drawing is None else self.drawing.chart()

    @cached_property
    def cells(self) -> list[list[Cell]]:
        return [[column.cell(row) for column in self.columns] for row in self.rows]

    def html(self) -> str:
        shown = range(len(self.rows)) if self.shown is None else self.shown
        plots = [] if self.drawing is None else self.drawing.cells()
        body = []
        for place, row in enumerate(shown):
            if place and (left := row - shown[place - 1] - 1):
                span = len(self.columns) + bool(plots)
                body.append(f'<tr class="gap"><td colspan="{span}">… {left:,} others …</td></tr>')
            first, *others = self.cells[row]
            cells = [f"<td{_attributes(cell)}>{cell.html}</td>" for cell in others]
            if plots:
                cells.insert(1, f'<td class="plotted">{plots[place]}</td>')
            group = ' class="start"' if row in self.starts else ""
            body.append(f"<tr{group}><th scope=row{_attributes(first)}>{first.html}</th>{''.join(cells)}</tr>")
        titles = [_head(column) for column in self.columns]
        if self.drawing is not None:
            titles.insert(2, f'<td class="plotted">{self.drawing.head()}</td>')
        kind = ' class="map"' if self.is_map else ""
        table = f"<table{kind}><caption>{escape(self.caption)}</caption><thead><tr>{''.join(titles)}</tr></thead>"
        marks = "" if self.drawing is None else legend(self.drawing.legend)
        scrolls = f'role="region" tabindex="0" aria-label="Table: {escape(self.caption)}"'
        return (
            f'{marks}<div class="scroll" {scrolls}>{table}<tbody>{"".join(body)}</tbody></table></div>{self._link()}\n'
        )

    def _link(self) -> str:
        content, count = self.csv()
        left = len(self.rows) - count
        encoded = base64.b64encode(content.encode()).decode()
        link = f'<a download="{self.name}.csv" href="data:text/csv;charset=utf-8;base64,{encoded}">{self.name}.csv</a>'
        more = say_if(left, "csv_cut", count=count, left=left)
        return f'<p class="csv">Download {link} ({counted(count, "row")}){more}</p>'

    def csv(self) -> tuple[str, int]:
        """The table as CSV, and the number of its rows."""
        names = [name for column in self.columns for name in column.names or (column.title,)]
        rows = [[_csv_value(value) for cell in row for value in cell.values] for row in self.cells]
        columns = [pa.array(column) for column in zip(*rows, strict=True)] or [pa.nulls(0)] * len(names)
        lines = runs.csv_bytes(pa.table(columns, names)).splitlines(keepends=True)  # no cell has a line end
        ends = list(accumulate(map(len, lines)))
        count = max(1, sum(end <= _CSV_BYTES for end in ends))
        return b"".join(lines[:count]).decode(), count - 1


def _attributes(cell: Cell) -> str:
    kind = f' class="{cell.kind}"' if cell.kind else ""
    if isinstance(cell.sort, str):
        return kind
    return f'{kind} data-v="{cell.sort:.6g}"'


def _head(column: Column) -> str:
    about = f' title="{escape(column.about)}"' if column.about else ""
    return f'<th scope=col><button type="button"{about}>{escape(column.title)}</button></th>'


def _csv_value(value: object) -> object:
    """A value for Arrow with at most six digits; numbers that are not finite become None."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return cell_text(value) if isinstance(value, str) else value


@final
@dataclass(frozen=True)
class Section:
    """A heading, paragraphs, tables and charts, and notes; empty paragraphs and notes are left out."""

    name: str
    heading: str
    paragraphs: Sequence[str]
    blocks: Sequence[Block] = ()
    notes: Sequence[str] = ()
    side_by_side: bool = False

    def html(self) -> str:
        before = "".join(f"<p>{with_code(each)}</p>\n" for each in self.paragraphs if each)
        blocks = "".join(block.html() for block in self.blocks)
        if self.side_by_side and len(self.blocks) > 1:
            blocks = f'<div class="beside">{blocks}</div>\n'
        notes = "".join(f"<li>{with_code(each)}</li>\n" for each in self.notes if each)
        after = f'<ul class="notes">{notes}</ul>\n' if notes else ""
        head = (
            f'<section id="{self.name}" aria-labelledby="{self.name}-h">\n<h2 id="{self.name}-h">{self.heading}</h2>\n'
        )
        return f"{head}{before}{blocks}{after}</section>\n"


class Top(NamedTuple):
    """The top of a page: the verdict, its certainty, advice as (verb, sentence), and findings about the data."""

    verdict: str
    certainty: str
    advice: Sequence[tuple[str, str]]
    quality: Sequence[str]
    heading: str = "What to do next"


class Live(NamedTuple):
    """The additions of a served page: a part before the report, with its style and script."""

    html: str
    style: str
    script: str


class Page(NamedTuple):
    """A page: title, top, tiles of numbers, sections, and settings and provenance at the end."""

    title: str
    top: Top
    tiles: Sequence[tuple[str, str]]
    introduction: str
    sections: Sequence[Section]
    small_print: str
    """As HTML."""
    live: Live | None = None

    @property
    def scripts(self) -> list[str]:
        """The script of every page, and that of a live page."""
        return [_read("page.js"), *([self.live.script] if self.live else [])]

    @property
    def policy(self) -> str:
        """The content security policy: scripts and styles by their hashes, and the server of a live page."""
        scripts = " ".join(f"'{_hash(each)}'" for each in self.scripts)
        asks = "connect-src 'self'; img-src data: blob:" if self.live else "img-src data:"
        styles = f"'{_hash(self.style)}'"
        parts = ("default-src 'none'", f"script-src {scripts}", f"style-src {styles}", asks)
        return "; ".join([*parts, "base-uri 'none'", "form-action 'none'"])

    @property
    def style(self) -> str:
        return style() + (self.live.style if self.live else "")

    def html(self) -> str:
        """The whole page; it makes no requests unless it is live."""
        tiles = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in self.tiles)
        advice = "".join(
            f"<li><b>{escape(kind)}</b> <span>{with_code(text)}</span></li>" for kind, text in self.top.advice
        )
        links = "".join(f'<li><a href="#{each.name}">{each.heading}</a></li>' for each in self.sections)
        return Template(_read("page.html")).substitute(
            mark=runs.PAGE_MARK.decode(),
            policy=self.policy,
            title=escape(self.title),
            style=self.style,
            live=self.live.html if self.live else "",
            scripts="\n".join(f"<script>{script}</script>" for script in self.scripts),
            verdict=with_code(self.top.verdict),
            certainty=with_code(self.top.certainty),
            introduction=with_code(self.introduction),
            tiles=tiles,
            advice=advice,
            heading=self.top.heading,
            quality="".join(f"<li>{with_code(each)}</li>" for each in self.top.quality),
            links=links,
            sections="".join(section.html() for section in self.sections),
            small_print=self.small_print,
        )


@cache
def style() -> str:
    """The style sheet of a page."""
    inks = ["#fff" if level > 5 else "#1f2933" for level in range(len(HEAT))]
    cells = "".join(f"td.h{k}{{background:{each};color:{inks[k]}}}" for k, each in enumerate(HEAT))
    return f"{_read('page.css')}{_read('charts.css')}{cells}\n"


@cache
def _style_of_files() -> str:
    """The style sheet of a chart in a file, in the colours of light mode."""
    light = dict(re.findall(r"--(\w+): ([^;]+);", _read("page.css").partition("@media")[0]))
    return re.sub(r"var\(--(\w+)\)", lambda name: light[name[1]], _read("charts.css"))


def _read(name: str) -> str:
    return (_HOME / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """The source expression of a content policy for this text."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
