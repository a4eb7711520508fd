"""Page: the report as one HTML file, with its style, its charts and the settings and provenance of the run."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from string import Template
from typing import Any

from ileed import runs
from ileed.fitted import Fitted
from ileed.report.charts import Figure, inline
from ileed.report.people import Person, Shown
from ileed.report.sections import Content, Section
from ileed.wording import printable

_PAGE = Path(__file__).with_name("page.html")
_ABSOLUTE = re.compile(r"""(?<![\w./\\:-])(?:~|[A-Za-z]:)?[\\/](?:[^\s'"\\/]+[\\/])*([^\s'"\\/]*)""")


def page(
    title: str, fitted: Fitted, content: Content, *, command: str | None, draw: Callable[[Figure], str] = inline
) -> str:
    """The whole page: the verdict, the sections, then the settings and provenance."""
    return Template(_PAGE.read_text(encoding="utf-8")).substitute(
        head=(runs.PAGE_HEAD + runs.PAGE_MARK).decode(),
        title=_escape(title),
        verdict=_escape(content.verdict),
        caution=_with_code(content.caution),
        tiles=_key_figures(fitted),
        outcome=_with_code(fitted.outcome.value),
        introduction=_with_code(content.introduction),
        sections="".join(_section(section, draw) for section in content.sections),
        settings=_settings(fitted, command),
    )


def _key_figures(fitted: Fitted) -> str:
    provenance, sizes = fitted.provenance, fitted.joint.sizes
    guessing = f"guessing: {math.log(sizes.actions):.2f}" if sizes.discrete and not sizes.has_legal_actions else ""
    tiles = {
        "demonstrators": f"{len(fitted.expertise.names):,}",
        "episodes": f"{provenance['data']['episodes']:,}",
        "steps": f"{provenance['data']['steps']:,}",
        f"nats per action{f'<small>{guessing}</small>' if guessing else ''}": f"{fitted.nats_per_action:.3f}",
        "restarts": f"{len(fitted.restarts.nats_per_action):,}",
        "seconds": f"{provenance['seconds']:,.1f}",
    }
    cells = "".join(f"<div><dt>{label}</dt><dd>{_escape(value)}</dd></div>" for label, value in tiles.items())
    return f'<dl class="tiles">{cells}</dl>'


def _section(section: Section, draw: Callable[[Figure], str]) -> str:
    first, *others = filter(None, section.paragraphs)
    figure = "" if section.figure is None else f"<figure>{draw(section.figure)}</figure>\n"
    rest = "".join(f"<p>{_with_code(paragraph)}</p>\n" for paragraph in others)
    numbers = _numbers(section.numbers) if section.numbers else ""
    return f"<section>\n<h2>{section.heading}</h2>\n<p>{_with_code(first)}</p>\n{figure}{rest}{numbers}</section>\n"


def _numbers(people: Shown) -> str:
    """A table to unfold, with a column of known skill if there is any."""
    columns = {"expertise": "expertise", "10 %": "low", "90 %": "high"}
    if any(person.known is not None for person in people.persons):
        columns["known"] = "known"

    def row(person: Person) -> str:
        values = (getattr(person, name) for name in columns.values())
        cells = "".join(f"<td>{'' if value is None else f'{value:.3f}'}</td>" for value in values)
        return f"<tr><td>{person.rank}</td><th scope=row>{_escape(person.label)}</th>{cells}</tr>"

    head = "".join(f"<th scope=col>{name}</th>" for name in ("", "demonstrator", *columns))
    gap = f'<tr><td></td><td colspan="4">… {people.left_out:,} others …</td></tr>'
    body = "".join(people.with_gap(list(map(row, people.persons)), gap))
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<details><summary>The numbers</summary>{table}</details>\n"


def _settings(fitted: Fitted, command: str | None) -> str:
    call = f"{_constructor_call(fitted.method)}.fit(demonstrations, seed={fitted.provenance['seed']})"
    entries = [*([("command", command)] if command else []), ("in Python", call)]
    settings = vars(fitted.method) | vars(fitted.joint.parts)
    lists = {"Settings": _entries(settings), "Provenance": _entries(fitted.provenance)}
    if (table := fitted.policy.encoding) is not None:
        features = [(each.name, _join(each.categories) if each.categories else "number") for each in table.features]
        actions = [(", ".join(table.action), _join(table.labels) or "continuous")]
        lists = {"Actions": actions, "Features": features} | lists
    headed = "".join(f"<h3>{heading}</h3>\n{_definitions(each)}\n" for heading, each in lists.items())
    return f"{_definitions(entries, code=True)}\n{headed}"


def _join(values: Sequence[Any], most: int = 40) -> str:
    """Labels or categories, and how many more there are."""
    more = [f"and {len(values) - most:,} more"] if len(values) > most else []
    return ", ".join([*("missing" if value is None else str(value) for value in values[:most]), *more])


def _constructor_call(value: Any) -> str:
    """The Python call that makes these settings; fields with their default values are left out."""
    if not is_dataclass(value):
        return repr(value)
    changed = [item.name for item in fields(value) if getattr(value, item.name) != item.default]
    arguments = ", ".join(f"{name}={_constructor_call(getattr(value, name))}" for name in changed)
    return f"ileed.{type(value).__name__}({arguments})"


def _entries(values: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    """Labels and values in words; the entries of a nested mapping follow its name."""
    entries: list[tuple[str, str]] = []
    for name, value in values.items():
        label = f"{before}{'unique observations' if name == 'places' else name.replace('_', ' ')}"
        if isinstance(value, Mapping):
            entries += _entries(value, f"{label}: ")
            continue
        default = "chosen from the data" if name in ("batch_size", "normalise") else "none"
        text = f"{value:,}" if type(value) is int and name != "seed" else str(value)
        entries.append((label, default if value is None else text))
    return entries


def _definitions(entries: Sequence[tuple[str, str]], *, code: bool = False) -> str:
    """Entries as a list of definitions; absolute paths are cut to their last part, since they are private."""
    texts = [(_escape(name), _escape(_ABSOLUTE.sub(r"\1", value))) for name, value in entries]
    cells = (f"<dt>{name}</dt><dd>{f'<code>{value}</code>' if code else value}</dd>" for name, value in texts)
    return f"<dl class=settings>{''.join(cells)}</dl>"


def _escape(text: str) -> str:
    return html.escape(printable(text))


def _with_code(text: str) -> str:
    """A sentence of ours as HTML, with code between backquotes."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(text, quote=False))
