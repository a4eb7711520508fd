"""Report: one HTML page about a run directory, and its charts as files."""

from __future__ import annotations

import html
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from string import Template
from typing import Any, Literal

from ileed import runs
from ileed.checking import path_of
from ileed.errors import RunError, SettingsError, require_all
from ileed.evaluation import Scores
from ileed.fitted import Fitted
from ileed.methods import load
from ileed.pseudonyms import pseudonyms
from ileed.report.charts import LIBRARIES, Figure, file_of, inline
from ileed.report.people import Person, Shown
from ileed.report.sections import Content, Section
from ileed.wording import printable

__all__ = ["figures", "report"]

_MARKS = {"svg": (b"<svg ", b'class="marks"'), "png": (b"\x89PNG\r\n\x1a\n", b"")}  # at the start of Vega's files
_PAGE = Path(__file__).with_name("page.html")
_ABSOLUTE = re.compile(r"""(?<![\w./\\:-])(?:~|[A-Za-z]:)?[\\/](?:[^\s'"\\/]+[\\/])*([^\s'"\\/]*)""")


def report(
    path: str | Path,
    *,
    out: str | Path | None = None,
    title: str | None = None,
    truth: Mapping[str, float] | None = None,
    scores: Mapping[str, Scores] | None = None,
    command: str | None = None,
    anonymise: bool = False,
) -> Path:
    """Write the report of a run directory as one HTML file without scripts or external files, and return its path.

    The file is `out`, or report.html in the run directory; an existing report is replaced, any other file is not.
    `truth` is the known skill of some or all demonstrators, from 0 to 1, shown beside the estimate. `scores` are those
    of policies by name, as `evaluate` returns them (a mean and an interval suffice), in the order of the chart.
    `command` is the command that made the run. With `anonymise` the report shows the pseudonyms of
    `Demonstrations.anonymise` in place of names.
    """
    rule = "pass the path of a run directory: fitted.save(path), then report(path)"
    run = path_of("path", path, rule=rule)
    require_all(LIBRARIES)
    target = run / "report.html" if out is None else Path(out)
    runs.check_page(target)
    fitted, truth = _load(run, truth or {}, anonymise)
    title = title or f"Demonstrator report: {run.resolve().name}"
    content = page(title, fitted, Content.of(fitted, truth, scores or {}), command=command)
    runs.write_file(target, content.encode("utf-8"))
    return target


def figures(
    path: str | Path,
    out_dir: str | Path,
    *,
    format: Literal["svg", "png"] = "svg",  # noqa: A002 (the word that users of altair and matplotlib know)
    truth: Mapping[str, float] | None = None,
    scores: Mapping[str, Scores] | None = None,
    anonymise: bool = False,
) -> dict[str, Path]:
    """Write each chart of the report to a file, and return the paths by the names of the charts.

    The names are those of the sections' charts, such as "ranking", "learning" and "states", as far as the run has them.
    An existing chart is replaced; any other file is an error before a chart is written.
    """
    if format not in _MARKS:
        raise SettingsError(f"format is {format!r}: choose 'svg' or 'png'")
    require_all(LIBRARIES)
    fitted, truth = _load(path, truth or {}, anonymise)
    sections = Content.of(fitted, truth, scores or {}).sections
    charts = [section.figure for section in sections if section.figure is not None]
    paths = {chart.name: Path(out_dir) / f"{chart.name}.{format}" for chart in charts}
    begins, holds = _MARKS[format]
    for path in paths.values():
        head = runs.read_head(path)
        if os.path.lexists(path) and not (head.startswith(begins) and holds in head):
            raise RunError(f"{path} exists and is not a figure of ours: choose another place, or move it away")
    for chart in charts:
        runs.write_file(paths[chart.name], file_of(chart, format))
    return paths


def _load(path: str | Path, truth: Mapping[str, float], anonymise: bool) -> tuple[Fitted, Mapping[str, float]]:
    """The fit and the known skill, with pseudonyms if `anonymise`."""
    fitted = load(path)
    if not anonymise:
        return fitted, truth
    names = pseudonyms(fitted.expertise.names, key=str(fitted.provenance["data"]["fingerprint"]))
    return fitted.renamed(names), {names.get(name, name): value for name, value in truth.items()}


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
