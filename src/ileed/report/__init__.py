"""Report: one HTML page about a run directory, or about two of them, and its charts and tables as files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import pyarrow as pa
from pyarrow import parquet
from torch import nn

from ileed import runs
from ileed._torch import default_modes
from ileed.data import Demonstrations, check_demonstrations
from ileed.data.source import pseudonyms
from ileed.envs.evaluation import Scores
from ileed.errors import RunError, SettingsError, brief, instance_of, one_of, path_of, printable, true_or_false
from ileed.methods import Fitted, load
from ileed.model.modules import Factory
from ileed.report.comparison import comparison_page
from ileed.report.evidence import data_of_run, labels_of
from ileed.report.page import Page
from ileed.report.sections import Content
from ileed.runs import stores
from ileed.runs.files import is_taken

__all__ = ["compare_runs", "figures", "people_table", "report"]

_RULE = "pass the path of a run directory: fitted.save(path), then report(path)"

_MARKS = {"svg": b'<svg xmlns="http://www.w3.org/2000/svg" class="ileed-figure"', "png": b"\x89PNG\r\n\x1a\n"}


@default_modes()
def report(
    path: str | Path,
    *,
    out: str | Path | None = None,
    title: str | None = None,
    data: Demonstrations | None = None,
    truth: Mapping[str, float] | None = None,
    scores: Mapping[str, Scores] | None = None,
    command: str | None = None,
    anonymise: bool = False,
    policy: nn.Module | Factory | None = None,
) -> Path:
    """Write the report of a run directory as one self-contained HTML file, and return its path.

    Args:
        path: the run directory.
        out: the file to write, by default report.html in the run directory. An existing report is replaced; any other
            file is not.
        title: the title of the page.
        data: the data of the run. With them, the page also shows state clusters, episodes, and problems of the data,
            which a run directory does not contain.
        truth: the known skill of some or all demonstrators, from 0 to 1, to be shown beside the estimate.
        scores: scores of policies by name, in the order of the chart, as `evaluate` returns them (a mean and an
            interval suffice).
        command: the command that made the run.
        anonymise: whether to show the pseudonyms of `Demonstrations.anonymise` instead of names.
        policy: as in `ileed.load`.
    """
    run, target = _paths("path", path, "report.html", out)
    _check_words(title=title, command=command)
    content = _content(run, data, truth, scores, anonymise=anonymise, policy=policy)
    title = title or f"Demonstrator report: {labels_of([stores.base_name(run)])[0]}"
    return _write(target, content.page(title, command=command))


@default_modes()
def compare_runs(
    path: str | Path,
    other: str | Path,
    *,
    out: str | Path | None = None,
    title: str | None = None,
    data: Demonstrations | None = None,
    anonymise: bool = False,
) -> Path:
    """Write a page that compares two run directories by the demonstrators in both, and return its path.

    The file is `out`, or comparison.html in the first run directory. With `data` of both runs, their costs on these are
    compared, with an interval.
    """
    run, target = _paths("path", path, "comparison.html", out)
    second = path_of("other", other, rule=_RULE)
    _check_words(title=title)
    true_or_false("anonymise", anonymise)
    one, two, data = _load_both(run, second, anonymise, data)
    names = (stores.base_name(run), stores.base_name(second))
    return _write(target, comparison_page(one, two, names, title=title, data=data))


def _paths(name: str, path: str | Path, default: str, out: str | Path | None) -> tuple[Path, Path]:
    """The run directory and the page to write, if that would not replace another file."""
    run = path_of(name, path, rule=_RULE)
    target = run / default if out is None else path_of("out", out)
    runs.check_page(target)
    return run, target


def _write(target: Path, page: Page) -> Path:
    runs.write_file(target, page.html().encode("utf-8"))
    return target


@default_modes()
def figures(
    path: str | Path,
    out_dir: str | Path,
    *,
    format: Literal["svg", "png"] = "svg",  # noqa: A002 (as in altair and matplotlib)
    data: Demonstrations | None = None,
    truth: Mapping[str, float] | None = None,
    scores: Mapping[str, Scores] | None = None,
    anonymise: bool = False,
) -> dict[str, Path]:
    """Write each chart of the report to a file, and return the paths by the names of the charts.

    The names are those of the charts that the page has, such as "ranking" and "learning". Existing charts are replaced;
    if any other file is in the way, nothing is written. PNG files need the extra `report`.
    """
    one_of("format", format, _MARKS)
    charts = _content(path, data, truth, scores, anonymise=anonymise).figures
    drawn = {chart.name: chart.file(format) for chart in charts}
    paths = {name: path_of("out_dir", out_dir) / f"{name}.{format}" for name in drawn}
    for place in paths.values():
        if stores.exists(place) and not runs.read_head(place).startswith(_MARKS[format]):
            found = f"{stores.name_of(place)} exists and is not a figure of ileed"
            raise RunError(f"{found}: choose another place, or move it away", code="figure-not-ours")
    for name, content in drawn.items():
        runs.write_file(paths[name], content)
    return paths


@default_modes()
def people_table(path: str | Path, out: str | Path, *, anonymise: bool = False) -> Path:
    """Write the ranking of all demonstrators to a new .csv or .parquet file, and return its path.

    The ranking is `Expertise.table`, or without ratings the names and the fit's own expertise.
    """
    target = check_table(out)
    expertise = _content(path, anonymise=anonymise).fitted.expertise
    if expertise.ratings is None:
        names, values = zip(*expertise.ranking(), strict=True)
        table = pa.table({"demonstrator": list(map(printable, names)), "expertise": values})
    else:
        table = expertise.table()
    if target.suffix == ".csv":
        runs.write_file(target, runs.csv_bytes(table))
    else:
        content = pa.BufferOutputStream()
        parquet.write_table(table, content)
        runs.write_file(target, content.getvalue().to_pybytes())
    return target


def check_table(out: str | Path) -> Path:
    """The path of a new table, or an error if `people_table` could not write it."""
    target = path_of("out", out, rule="pass the path of a .csv or .parquet file")
    if target.suffix not in (".csv", ".parquet"):
        raise SettingsError(f"{stores.name_of(target)} is neither .csv nor .parquet: name one of these")
    if is_taken(target):
        raise RunError(f"{stores.name_of(target)} exists already: choose another place, or move it away")
    return target


def _check_words(**words: str | None) -> None:
    for name, value in words.items():
        instance_of(name, value, str | None, rule="pass text, or None")


def _content(
    path: str | Path,
    data: Demonstrations | None = None,
    truth: Mapping[str, float] | None = None,
    scores: Mapping[str, Scores] | None = None,
    *,
    anonymise: bool,
    policy: nn.Module | Factory | None = None,
) -> Content:
    """The content of a report, with pseudonyms if `anonymise` or if the fit has them."""
    instance_of("truth", truth, Mapping | None, rule="pass the known skill of demonstrators by name, or None")
    instance_of("scores", scores, Mapping | None, rule="pass what ileed.evaluate returns for policies by name, or None")
    for name, found in (scores or {}).items():
        if not isinstance(name, str) or not (hasattr(found, "mean") and hasattr(found, "interval")):
            raise SettingsError(
                f"scores has {brief(found)} for {brief(name)}: pass what ileed.evaluate returns by name"
            )
    true_or_false("anonymise", anonymise)
    fitted, known = load(path, policy=policy), dict(truth or {})
    if data is not None:
        check_demonstrations(data)
        named, data = data.names, fitted.match_names(fitted.policy.match(data), allow_new=False)
        known = _renamed(known, named, data.names)
    if anonymise:
        named = fitted.expertise.names
        fitted, data = (fitted.anonymise(), None) if data is None else fitted.anonymise_with(data)
        known = _renamed(known, named, fitted.expertise.names)
    return Content(fitted, known, scores or {}, None if data is None else data_of_run(fitted, data))


def _renamed(known: Mapping[str, float], before: tuple[str, ...], after: tuple[str, ...]) -> dict[str, float]:
    names = dict(zip(before, after, strict=True))
    return {names.get(name, name): value for name, value in known.items()}


def _load_both(
    one: Path, other: Path, anonymise: bool, data: Demonstrations | None
) -> tuple[Fitted, Fitted, Demonstrations | None]:
    """Two fits and the data of both; with the same pseudonyms if `anonymise` or if a fit has pseudonyms."""
    fits = load(one), load(other)
    have_pseudonyms = [fitted.has_pseudonyms for fitted in fits]
    if data is not None:
        check_demonstrations(data)
        found = [fitted.match_names(fitted.policy.match(data), allow_new=False) for fitted in fits]
        if anonymise or any(have_pseudonyms):
            hidden = [fitted.anonymise_with(each) for fitted, each in zip(fits, found, strict=True)]
            fits, found = (hidden[0][0], hidden[1][0]), [each for _, each in hidden]
        for fitted, each in zip(fits, found, strict=True):
            data_of_run(fitted, each)
        return *fits, found[0]
    fingerprints = [fitted.provenance["data"].get("fingerprint") for fitted in fits]
    if any(have_pseudonyms) and not (all(have_pseudonyms) and fingerprints[0] == fingerprints[1]):
        raise SettingsError(
            "a run has pseudonyms, which match neither names nor pseudonyms of other data: pass the data of both runs "
            "(at the command: --data)",
            code="pseudonyms-unmatched",
        )
    if anonymise and not any(have_pseudonyms):
        names = tuple(dict.fromkeys([*fits[0].expertise.names, *fits[1].expertise.names]))
        shown = pseudonyms(names, key=str(fingerprints[0]))
        return fits[0].renamed(shown), fits[1].renamed(shown), None
    return *fits, None
