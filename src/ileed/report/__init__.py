"""Report: a run directory turned into one page that a person can read, mail and print."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from ileed import runs
from ileed.checking import path_of
from ileed.errors import SettingsError
from ileed.methods import load
from ileed.report.charts import Drawing
from ileed.report.page import page
from ileed.report.story import Scored, Story

__all__ = ["Scored", "figures", "report"]


def report(
    path: str | Path,
    *,
    out: str | Path | None = None,
    title: str | None = None,
    truth: Mapping[str, float] | None = None,
    scores: Mapping[str, Scored] | None = None,
    command: str | None = None,
) -> Path:
    """Turn a run directory into one HTML file that needs no network and no scripts, and return where it is.

    It goes to `out`, or to report.html in the run directory. `truth` is the known skill of some or all demonstrators,
    from 0 to 1, to be shown beside the estimate; `scores` names policies and how well they did, in the order in which
    to show them; `command` is what made the run.
    """
    rule = "pass the path of a run directory: fitted.save(path), then report(path)"
    run = path_of("path", path, rule=rule)
    drawing = Drawing()
    target = run / "report.html" if out is None else Path(out)
    fitted = load(run)
    title = title or f"Demonstrator report: {run.resolve().name}"
    content = page(title, fitted, Story.of(fitted, truth or {}, scores or {}), drawing, command=command)
    runs.write_file(target, content.encode("utf-8"))
    return target


def figures(
    path: str | Path,
    out_dir: str | Path,
    *,
    format: Literal["svg", "png"] = "svg",  # noqa: A002 (the word that users of altair and matplotlib know)
    truth: Mapping[str, float] | None = None,
    scores: Mapping[str, Scored] | None = None,
) -> dict[str, Path]:
    """Write each chart of the report as a file of its own, and return where each one is, by name.

    The names are "ranking", "scores", "restarts", "learning", "states" and "skills", as far as the run has them.
    """
    if format not in ("svg", "png"):
        raise SettingsError(f"format is {format!r}: there are 'svg' and 'png'")
    drawing = Drawing()
    written = {}
    for section in Story.of(load(path), truth or {}, scores or {}).sections:
        if section.figure is not None:
            written[section.figure.name] = Path(out_dir) / f"{section.figure.name}.{format}"
            runs.write_file(written[section.figure.name], drawing.file(section.figure, format))
    return written
