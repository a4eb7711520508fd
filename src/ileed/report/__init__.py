"""Report: a run directory turned into one page that a person can read, mail and print."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from ileed import runs
from ileed.checking import path_of
from ileed.errors import RunError, SettingsError
from ileed.fitted import Fitted
from ileed.methods import load
from ileed.pseudonyms import pseudonyms
from ileed.report.charts import Drawing
from ileed.report.page import page
from ileed.report.sections import Content, Scored

__all__ = ["Scored", "figures", "report"]


def report(
    path: str | Path,
    *,
    out: str | Path | None = None,
    title: str | None = None,
    truth: Mapping[str, float] | None = None,
    scores: Mapping[str, Scored] | None = None,
    command: str | None = None,
    anonymise: bool = False,
) -> Path:
    """Turn a run directory into one HTML file that needs no network and no scripts, and return where it is.

    It goes to `out`, or to report.html in the run directory. `truth` is the known skill of some or all demonstrators,
    from 0 to 1, to be shown beside the estimate; `scores` names policies and how well they did, in the order in which
    to show them; `command` is what made the run. With `anonymise` people have pseudonyms in place of names, as
    `Demonstrations.anonymise` gives them. A report that is already there is replaced; any other file is not.
    """
    rule = "pass the path of a run directory: fitted.save(path), then report(path)"
    run = path_of("path", path, rule=rule)
    drawing = Drawing()
    target = run / "report.html" if out is None else Path(out)
    runs.check_page(target)
    fitted, truth = _loaded(run, truth or {}, anonymise)
    title = title or f"Demonstrator report: {run.resolve().name}"
    content = page(title, fitted, Content.of(fitted, truth, scores or {}), drawing, command=command)
    runs.write_file(target, content.encode("utf-8"))
    return target


def figures(
    path: str | Path,
    out_dir: str | Path,
    *,
    format: Literal["svg", "png"] = "svg",  # noqa: A002 (the word that users of altair and matplotlib know)
    truth: Mapping[str, float] | None = None,
    scores: Mapping[str, Scored] | None = None,
    anonymise: bool = False,
) -> dict[str, Path]:
    """Write each chart of the report as a file of its own, and return where each one is, by name.

    The names are "ranking", "scores", "restarts", "learning", "states" and "skills", as far as the run has them. A
    figure that is already there is replaced; a file that is not such a drawing is refused before any is written.
    """
    if format not in ("svg", "png"):
        raise SettingsError(f"format is {format!r}: there are 'svg' and 'png'")
    drawing = Drawing()
    fitted, truth = _loaded(path, truth or {}, anonymise)
    sections = Content.of(fitted, truth, scores or {}).sections
    drawn = [section.figure for section in sections if section.figure is not None]
    written = {figure.name: Path(out_dir) / f"{figure.name}.{format}" for figure in drawn}
    for target in written.values():
        _check_drawing(target, format)
    for figure in drawn:
        runs.write_file(written[figure.name], drawing.file(figure, format))
    return written


def _loaded(path: str | Path, truth: Mapping[str, float], anonymise: bool) -> tuple[Fitted, Mapping[str, float]]:
    """The fit and the known skill, both by pseudonyms where that is asked."""
    fitted = load(path)
    if not anonymise:
        return fitted, truth
    names = pseudonyms(fitted.expertise.names, key=str(fitted.provenance["data"]["fingerprint"]))
    return fitted.renamed(names), {names.get(name, name): value for name, value in truth.items()}


_DRAWINGS = {"svg": (b"<svg ", b'class="marks"'), "png": (b"\x89PNG\r\n\x1a\n", b"")}  # how Vega's files begin


def _check_drawing(path: Path, kind: Literal["svg", "png"]) -> None:
    """Refuse to draw over a file that was not drawn as ours are."""
    if not os.path.lexists(path):
        return
    begins, holds = _DRAWINGS[kind]
    try:
        with path.open("rb") as opened:
            head = opened.read(512)
    except OSError:
        head = b""
    if not head.startswith(begins) or holds not in head:
        raise RunError(f"{path} exists and is not a figure of ours: choose another place, or move it away")
