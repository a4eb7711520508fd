"""A page: what stands above the fold, sections of text, tables and charts, and a policy that allows one script of ours.

Tables can be sorted in the page and are whole as CSV in a link. The sentences are in text.toml; text from outside is
escaped here.
"""

from __future__ import annotations

import base64
import hashlib
import html
import math
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from string import Template
from typing import Any, Literal, NamedTuple, Protocol, final

import pyarrow as pa

from ileed import runs
from ileed.errors import cell_text, printable, require

NOTHING = "\N{EN DASH}"  # in a cell
HEAT = ("#f2f7fc", "#dfecf7", "#cbdff1", "#abcfe6", "#82badb", "#5aa2cf", "#2a72b0", "#185fa1", "#0a4a90", "#08306b")
WIDTH, _LABELS, _NUMBERS, _ROW = 800, 190, 60, 26  # of a chart in a file
_CSV_BYTES = 400_000  # of a table as CSV at most, so that the page stays small whatever the data
_IN_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_TOGETHER = re.compile(r"(?<=\d) (?=%)|(?<=above) (?=\.\d)|(?<=\d) (?=to \S?\d)|(?<=\d to) (?=\S?\d)")
_HOME = Path(__file__).parent
_TEXT = tomllib.loads((_HOME / "text.toml").read_text(encoding="utf-8"))


def say(name: str, **values: Any) -> str:
    """The sentence of that name in text.toml, with these values filled in."""
    return str(_TEXT[name]).format(**values)


def say_if(applies: object, name: str, **values: Any) -> str:
    """The same where it applies, else nothing."""
    return say(name, **values) if applies else ""


def as_sentence(words: str) -> str:
    """Words as a sentence; a name at its beginning is left as it is."""
    if words and not words.startswith(("the ", "there ", "every ", "steps ", "none ", "by actions alone, ")):
        return f"{words}."
    return f"{words[0].upper()}{words[1:]}." if words else ""


def number(count: int) -> str:
    """A count for a sentence: in words up to twelve."""
    return _IN_WORDS[count] if count < len(_IN_WORDS) else f"{count:,}"


def demonstrators(count: int) -> str:
    """The number of demonstrators, for a sentence."""
    return f"{number(count)} demonstrator{'' if count == 1 else 's'}"


def enumerated(words: Sequence[str], most: int = 4) -> str:
    """Words with commas and a last "and"; of many the first, and how many more."""
    if len(words) > most:
        words = [*words[: most - 1], f"{len(words) - most + 1:,} more"]
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def short(label: str, most: int = 28) -> str:
    """A label that can be repeated in many places."""
    return label if len(label) <= most else f"{label[: most - 1]}…"


def decimal(value: float | None, digits: int = 2) -> str:
    """A number with `digits` decimals; a dash for none."""
    if value is None or not math.isfinite(value):
        return NOTHING
    shown = f"{value:,.{digits}f}"
    return shown.lstrip("-") if not float(shown.replace(",", "")) else shown.replace("-", "\N{MINUS SIGN}")


def between(low: float | None, high: float | None, digits: int = 2) -> str:
    """An interval in words; empty where there is none."""
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return ""
    return f"{decimal(low, digits)} to {decimal(high, digits)}"


def in_words(value: float, low: float, high: float, digits: int = 2) -> str:
    """An estimate and its interval in words."""
    return f"{decimal(value, digits)} ({between(low, high, digits)})"


def escape(text: str) -> str:
    """Text from outside as HTML."""
    return html.escape(printable(text))


def with_code(text: str) -> str:
    """A sentence of ours as HTML, with code between backquotes and numbers that stay together on a line."""
    whole = _TOGETHER.sub("\N{NO-BREAK SPACE}", html.escape(printable(text), quote=False))
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", whole)


class Block(Protocol):
    """A table or a chart: part of a section, as HTML, and perhaps a figure that can be a file of its own."""

    def html(self) -> str: ...

    @property
    def figure(self) -> Chart | Rows | None: ...


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
        inner = f'<svg x="10" y="34" width="{WIDTH - 20}" height="{self.height}" overflow="visible">{self.body}</svg>'
        return _file(self.description, self.height + 44, _file_legend(self.legend) + inner)

    @property
    def figure(self) -> Chart:
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
        width, parts = WIDTH - _LABELS - _NUMBERS, [_file_legend(self.legend)]
        for k, (label, drawing, value) in enumerate(zip(self.labels, self.drawings, self.numbers, strict=True)):
            y = 36 + k * _ROW
            parts.append(f'<text x="{_LABELS - 10}" y="{y + 16}" text-anchor="end">{escape(short(label, 26))}</text>')
            parts.append(f'<svg x="{_LABELS}" y="{y}" width="{width}" height="22" overflow="visible">{drawing}</svg>')
            parts.append(f'<text x="{WIDTH - _NUMBERS + 8}" y="{y + 16}">{escape(value)}</text>')
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


def legend(marks: Sequence[tuple[str, str]]) -> str:
    """What each class of mark is, in words."""
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
    **{f"dot-{kind}": f'<circle class="{kind}" cx="11" cy="6" r="4.5"/>' for kind in ("two", "other")},
    **{kind: f'<rect class="{kind}" x="1" y="1" width="20" height="10"/>' for kind in ("marked", "band", "h2", "h8")},
    **{kind: f'<line class="{kind}" x1="1" x2="21" y1="6" y2="6"/>' for kind in ("two", "other", "dashed")},
}


def _file_legend(marks: Sequence[tuple[str, str]]) -> str:
    parts, x = [], 12
    for kind, words in marks:
        parts.append(f'<svg x="{x}" y="8" width="22" height="12">{_SIGNS[kind]}</svg>')
        parts.append(f'<text x="{x + 28}" y="18">{escape(words)}</text>')
        x += 50 + 7 * len(words)
    return "".join(parts)


def _file(description: str, height: int, body: str) -> str:
    """A drawing with the light colours, on white."""
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" class="ileed-figure" {size} role="img">'
    white = '<rect width="100%" height="100%" fill="#fff"/>'
    return f"{head}<title>{escape(description)}</title><style>{style_of_files()}</style>{white}{body}</svg>\n"


class Cell(NamedTuple):
    """What a cell shows, what a column is sorted by, and its values in the CSV file."""

    html: str
    sort: float | str
    values: tuple[object, ...]
    kind: str = ""


def words(text: str, *, wide: bool = False) -> Cell:
    """Text from outside; where it is `wide`, it may take several lines."""
    return Cell(escape(text), printable(text).casefold(), (text,), "w" if wide else "")


def whole(count: int | None) -> Cell:
    """A count; empty where it is not known."""
    return Cell(NOTHING if count is None else f"{count:,}", -math.inf if count is None else count, (count,), "n")


def decimals(value: float | None, digits: int = 2) -> Cell:
    """A number with `digits` decimals."""
    known = value is not None and math.isfinite(value)
    return Cell(decimal(value, digits), value if known and value is not None else -math.inf, (value,), "n")


def rated(value: float, low: float | None, high: float | None, *, heat: int | None = None) -> Cell:
    """An estimate and its interval; `heat` from 0 to 9 is how dark the cell is."""
    span = between(low, high)
    shown = f"{decimal(value)}{f' <small>{span}</small>' if span else ''}"
    sort = value if math.isfinite(value) else -math.inf
    return Cell(shown, sort, (value, low, high), "n" if heat is None else f"n h{heat}")


def person_name(label: str) -> Cell:
    """The label of a demonstrator, which may break after a sign that joins words."""
    return words(label)._replace(html=re.sub(r"([_./-])", r"\1<wbr>", escape(short(label, 60))), kind="name")


class Column(NamedTuple):
    """A column: its title, and the names of its values in the CSV file, by default the title."""

    title: str
    names: tuple[str, ...] = ()
    about: str = ""


DEMONSTRATOR = Column("demonstrator", ("person",))


@final
@dataclass(frozen=True)
class Table:
    """Rows of cells, the first of which names the row; `drawing` stands after the second column, row by row.

    `shown` are the rows of the page, None for all; the CSV file has them all, as far as `_CSV_BYTES` allow.
    """

    name: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    drawing: Rows | None = None
    shown: Sequence[int] | None = None
    starts: frozenset[int] = frozenset()
    """Rows above which a line separates groups."""
    is_map: bool = False
    """Cells are shades of a map, of equal width."""

    @property
    def figure(self) -> Rows | None:
        return self.drawing

    def html(self) -> str:
        shown = range(len(self.rows)) if self.shown is None else self.shown
        plots = [] if self.drawing is None else self.drawing.cells()
        body = []
        for place, row in enumerate(shown):
            if place and row != shown[place - 1] + 1:
                body.append(self._gap(row - shown[place - 1] - 1))
            first, *others = self.rows[row]
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

    def _gap(self, count: int) -> str:
        span = len(self.columns) + (self.drawing is not None)
        return f'<tr class="gap"><td colspan="{span}">… {count:,} others …</td></tr>'

    def _link(self) -> str:
        content, count = self.csv()
        left = len(self.rows) - count
        more = say("csv_cut", count=count, left=left) if left else ""
        encoded = base64.b64encode(content.encode()).decode()
        link = f'<a download="{self.name}.csv" href="data:text/csv;charset=utf-8;base64,{encoded}">{self.name}.csv</a>'
        rows = f"{count:,} row{'' if count == 1 else 's'}"
        return f'<p class="csv">Download {link} ({rows}){more}</p>'

    def csv(self) -> tuple[str, int]:
        """The table as CSV, and how many of its rows it holds."""
        names = [name for column in self.columns for name in column.names or (column.title,)]
        rows = [[_csv_value(value) for cell in row for value in cell.values] for row in self.rows]
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
    """A value with six digits at most, as Arrow can hold it; None where a number is not finite."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return cell_text(value) if isinstance(value, str) else value


@final
@dataclass(frozen=True)
class Section:
    """A heading, paragraphs before the tables and charts, and notes after them; empty ones are left out."""

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
    """What stands above the fold: the verdict, its certainty, what to do next, and findings about the data."""

    verdict: str
    sure: str
    advice: Sequence[tuple[str, str]]
    quality: Sequence[str]
    advises: str = "What to do next"


class Live(NamedTuple):
    """What a page that is served has beside the report: a part before it, with a style and a script of its own."""

    html: str
    style: str
    script: str


class Page(NamedTuple):
    """A page: its title, what stands above the fold, tiles of numbers, sections, and at last the small print."""

    title: str
    top: Top
    tiles: Sequence[tuple[str, str]]
    caution: str
    introduction: str
    sections: Sequence[Section]
    small_print: str
    """As HTML."""
    live: Live | None = None

    @property
    def scripts(self) -> list[str]:
        """The script of every page, and that of a live one."""
        return [_read("page.js"), *([self.live.script] if self.live else [])]

    @property
    def policy(self) -> str:
        """The content policy: nothing from elsewhere, these scripts by their hashes, and for a live page its server."""
        scripts = " ".join(f"'{_hash(each)}'" for each in self.scripts)
        asks = "connect-src 'self'; img-src data: blob:" if self.live else "img-src data:"
        styles = f"'{_hash(self.style)}'"
        parts = ("default-src 'none'", f"script-src {scripts}", f"style-src {styles}", asks)
        return "; ".join([*parts, "base-uri 'none'", "form-action 'none'"])

    @property
    def style(self) -> str:
        return style() + (self.live.style if self.live else "")

    def html(self) -> str:
        """The whole page; unless it is live it asks nothing of anybody."""
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
            sure=with_code(self.top.sure),
            caution=with_code(self.caution),
            introduction=with_code(self.introduction),
            tiles=tiles,
            advice=advice,
            advises=self.top.advises,
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
    return f"{_read('page.css')}{_chart_style()}{cells}\n"


@cache
def style_of_files() -> str:
    """The style sheet of a chart in a file, in the colours of light mode."""
    light = dict(re.findall(r"--(\w+): ([^;]+);", _read("page.css").partition("@media")[0]))
    return re.sub(r"var\(--(\w+)\)", lambda name: light[name[1]], _chart_style())


def _chart_style() -> str:
    return _read("charts.css") + "".join(f"rect.h{k}{{fill:{each}}}" for k, each in enumerate(HEAT))


def _read(name: str) -> str:
    return (_HOME / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """The source expression of a content policy that allows this text alone."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
