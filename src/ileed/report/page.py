"""Page: the report as one HTML file, with its style, its charts and how the run was made."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from ileed import runs
from ileed.fitted import Fitted
from ileed.report.charts import Drawing
from ileed.report.people import Person, Shown
from ileed.report.sections import Content, Section
from ileed.wording import printable

_STYLE = Path(__file__).with_name("style.css")
_ABSOLUTE = re.compile(r"""(?<![\w./\\:-])(?:~|[A-Za-z]:)?[\\/](?:[^\s'"\\/]+[\\/])*([^\s'"\\/]*)""")


def page(title: str, fitted: Fitted, content: Content, drawing: Drawing, *, command: str | None) -> str:
    """The whole page: the verdict first, then the sections, then how the run was made."""
    sections = "".join(_section(section, drawing) for section in content.sections)
    return f"""{runs.PAGE_HEAD.decode()}{runs.PAGE_MARK.decode()}
<title>{_escaped(title)}</title>
<style>
{_STYLE.read_text(encoding="utf-8")}</style>
</head>
<body>
<main>
<header>
<h1>{_escaped(title)}</h1>
<p class="verdict">{_escaped(content.verdict)}</p>
{f'<p class="small">{_marked(content.caution)}</p>' if content.caution else ""}
{_key_figures(fitted)}
<p class="outcome"><b>How it ended:</b> {_marked(fitted.outcome.value)}.</p>
<p>{_marked(content.introduction)}</p>
</header>
{sections}<section>
<h2>How this was made</h2>
{_made(fitted, command)}
</section>
</main>
</body>
</html>
"""


def _key_figures(fitted: Fitted) -> str:
    made, sizes = fitted.provenance, fitted.joint.sizes
    guessing = f"guessing: {math.log(sizes.actions):.2f}" if sizes.discrete and not sizes.has_legal_actions else ""
    tiles = {
        "demonstrators": f"{len(fitted.expertise.names):,}",
        "episodes": f"{made['data']['episodes']:,}",
        "steps": f"{made['data']['steps']:,}",
        f"nats per action{f'<small>{guessing}</small>' if guessing else ''}": f"{fitted.nats_per_action:.3f}",
        "restarts": f"{len(fitted.restarts.nats_per_action):,}",
        "seconds": f"{made['seconds']:,.1f}",
        "seed": f"{made['seed']}",
    }
    cells = "".join(f"<div><dt>{label}</dt><dd>{_escaped(value)}</dd></div>" for label, value in tiles.items())
    return f'<dl class="tiles">{cells}</dl>'


def _section(section: Section, drawing: Drawing) -> str:
    first, *others = section.paragraphs
    figure = "" if section.figure is None else f"<figure>{drawing.inline(section.figure)}</figure>\n"
    rest = "".join(f"<p>{_marked(paragraph)}</p>\n" for paragraph in others)
    numbers = _numbers(section.numbers) if section.numbers else ""
    return f"<section>\n<h2>{section.heading}</h2>\n<p>{_marked(first)}</p>\n{figure}{rest}{numbers}</section>\n"


def _numbers(people: Shown) -> str:
    """A table to unfold, with a column of known skill where anybody's is."""
    has_known = any(person.known is not None for person in people.persons)

    def row(person: Person) -> str:
        values = [f"{value:.3f}" for value in (person.expertise, person.low, person.high)]
        if has_known:
            values.append("" if person.known is None else f"{person.known:.3f}")
        cells = "".join(f"<td>{value}</td>" for value in values)
        return f"<tr><td>{person.rank}</td><th scope=row>{_escaped(person.label)}</th>{cells}</tr>"

    names = ["", "demonstrator", "expertise", "10 %", "90 %", *(["known"] if has_known else [])]
    head = "".join(f"<th scope=col>{name}</th>" for name in names)
    gap = [f'<tr><td></td><td colspan="4">{gap}</td></tr>' for gap in people.gap]
    body = "".join([*map(row, people.first), *gap, *map(row, people.last)])
    return (
        f"<details><summary>The numbers</summary><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></details>\n"
    )


def _made(fitted: Fitted, command: str | None) -> str:
    call = f"{_changed(fitted.method)}.fit(demonstrations, seed={fitted.provenance['seed']})"
    entries = [*([("command", command)] if command else []), ("the same in Python", call)]
    settings = vars(fitted.method) | vars(fitted.joint.parts)
    return (
        f"{_defined(entries, code=True)}\n{_table(fitted)}<h3>Settings</h3>\n{_defined(_readable(settings))}\n"
        f"<h3>Provenance</h3>\n{_defined(_readable(fitted.provenance))}\n"
    )


def _table(fitted: Fitted) -> str:
    """The columns that the fit learned from, where the data came from a table."""
    encoding = fitted.policy.encoding
    if encoding is None:
        return ""
    features = [
        (feature.name, "number" if feature.categories is None else ", ".join(_names(feature.categories)))
        for feature in encoding.features
    ]
    actions = [(", ".join(encoding.action), ", ".join(_names(encoding.labels)) or "continuous")]
    return f"<h3>Actions</h3>\n{_defined(actions)}\n<h3>Features</h3>\n{_defined(features)}\n"


def _names(values: Sequence[Any], most: int = 40) -> list[str]:
    """Labels or categories as they are read, and how many more there are."""
    more = [f"and {len(values) - most:,} more"] if len(values) > most else []
    return [*("missing" if value is None else str(value) for value in values[:most]), *more]


def _changed(value: Any) -> str:
    """A setting as one would write it, without what is left at its default."""
    if not is_dataclass(value):
        return repr(value)
    changed = [item.name for item in fields(value) if getattr(value, item.name) != item.default]
    return f"ileed.{type(value).__name__}({', '.join(f'{name}={_changed(getattr(value, name))}' for name in changed)})"


def _readable(values: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    """Entries as a reader would name them: mappings opened, underscores gone, None in words."""
    entries: list[tuple[str, str]] = []
    for name, value in values.items():
        label = f"{before}{name.replace('_', ' ')}"
        if isinstance(value, Mapping):
            entries += _readable(value, f"{label}: ")
        elif value is None:
            entries.append((label, "chosen by the data" if name in ("batch_size", "normalise") else "none"))
        elif isinstance(value, int) and not isinstance(value, bool) and name != "seed":
            entries.append((label, f"{value:,}"))
        else:
            entries.append((label, str(value)))
    return entries


def _defined(entries: Sequence[tuple[str, str]], *, code: bool = False) -> str:
    """Entries as a list of definitions, with absolute paths cut to their last part.

    A report is passed on, and its maker's folders are nobody's affair.
    """
    told = [(_escaped(name), _escaped(_ABSOLUTE.sub(r"\1", value))) for name, value in entries]
    cells = (f"<dt>{name}</dt><dd>{f'<code>{value}</code>' if code else value}</dd>" for name, value in told)
    return f"<dl class=made>{''.join(cells)}</dl>"


def _escaped(text: str) -> str:
    return html.escape(printable(text))


def _marked(text: str) -> str:
    """Our own sentences, in which `code` stands between backquotes."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(text, quote=False))
