"""Report: one HTML page about a run directory, and its charts as files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from ileed import runs
from ileed.checking import path_of
from ileed.errors import RunError, SettingsError
from ileed.evaluation import Scores
from ileed.fitted import Fitted
from ileed.methods import load
from ileed.pseudonyms import pseudonyms
from ileed.report.charts import file_of, require_drawing
from ileed.report.page import page
from ileed.report.sections import Content

__all__ = ["figures", "report"]

_MARKS = {"svg": (b"<svg ", b'class="marks"'), "png": (b"\x89PNG\r\n\x1a\n", b"")}  # at the start of Vega's files


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
    require_drawing()
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

    The names are "ranking", "scores", "restarts", "learning", "states" and "skills", as far as the run has them. An
    existing chart is replaced; any other file is an error before a chart is written.
    """
    if format not in ("svg", "png"):
        raise SettingsError(f"format is {format!r}: choose 'svg' or 'png'")
    require_drawing()
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
