"""Tables of a report: shown as HTML that can be sorted, and whole as CSV in a link of the page."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, final

import pyarrow as pa

from ileed import runs
from ileed.report.charts import Rows, legend
from ileed.report.text import NOTHING, between, decimal, escape, say, short
from ileed.wording import cell_text, printable

_CSV_BYTES = 400_000  # of a table as CSV at most, so that the page stays small whatever the data


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
    """A number with so many decimals."""
    known = value is not None and math.isfinite(value)
    return Cell(decimal(value, digits), value if known and value is not None else -math.inf, (value,), "n")


def rated(value: float, low: float | None, high: float | None, *, heat: int | None = None) -> Cell:
    """An estimate and its interval; `heat` from 0 to 9 is how dark the cell is."""
    span = between(low, high)
    shown = f"{decimal(value)}{f' <small>{span}</small>' if span else ''}"
    sort = value if math.isfinite(value) else -math.inf
    return Cell(shown, sort, (value, low, high), "n" if heat is None else f"n h{heat}")


def person_name(label: str) -> Cell:
    """The label of a person, whose line may end after a sign that joins words."""
    return words(label)._replace(html=re.sub(r"([_./-])", r"\1<wbr>", escape(short(label, 60))), kind="name")


class Column(NamedTuple):
    """A column: its title, and the names of its values in the CSV file."""

    title: str
    names: tuple[str, ...]
    about: str = ""


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
        marks = legend(self.drawing.legend) if self.drawing is not None else ""
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
        names = [name for column in self.columns for name in column.names]
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
