"""Layout of a page: what stands above the fold, sections, and the policy by which the page runs one script of ours."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from string import Template
from typing import NamedTuple, Protocol, final

from ileed import runs
from ileed.report.charts import HEAT, Chart, Rows
from ileed.report.text import escape, with_code

_HOME = Path(__file__).parent


class Block(Protocol):
    """A table or a chart: part of a section, as HTML, and perhaps a figure that can stand alone."""

    def html(self) -> str: ...

    @property
    def figure(self) -> Chart | Rows | None: ...


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
    """What stands above the fold: the verdict, how sure it is, what to do next, and what is to be said of the data."""

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
        return [(_HOME / "page.js").read_text(encoding="utf-8"), *([self.live.script] if self.live else [])]

    @property
    def policy(self) -> str:
        """The content policy: nothing from elsewhere, these scripts by their hashes, and for a live page its server."""
        scripts = " ".join(f"'{_hash(each)}'" for each in self.scripts)
        asks = "connect-src 'self'; img-src data: blob:" if self.live else "img-src data:"
        styles = f"'{_hash(self._style)}'"
        parts = ("default-src 'none'", f"script-src {scripts}", f"style-src {styles}", asks)
        return "; ".join([*parts, "base-uri 'none'", "form-action 'none'"])

    @property
    def _style(self) -> str:
        return f"{_style()}{self.live.style}" if self.live else _style()

    def html(self) -> str:
        """The whole page; unless it is live it asks nothing of anybody."""
        tiles = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in self.tiles)
        advice = "".join(
            f"<li><b>{escape(kind)}</b> <span>{with_code(text)}</span></li>" for kind, text in self.top.advice
        )
        links = "".join(f'<li><a href="#{each.name}">{each.heading}</a></li>' for each in self.sections)
        return Template((_HOME / "page.html").read_text(encoding="utf-8")).substitute(
            mark=runs.PAGE_MARK.decode(),
            policy=self.policy,
            title=escape(self.title),
            style=self._style,
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
def _style() -> str:
    """The style sheet, with the shades of maps, which charts as files have too."""
    inks = ["#fff" if level > 5 else "#1f2933" for level in range(len(HEAT))]
    cells = [f"td.h{k}{{background:{each};color:{inks[k]}}}rect.h{k}{{fill:{each}}}" for k, each in enumerate(HEAT)]
    return f"{(_HOME / 'page.css').read_text(encoding='utf-8')}{''.join(cells)}\n"


def _hash(text: str) -> str:
    """The source expression of a content policy that allows this text alone."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
