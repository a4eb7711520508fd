"""Report: one HTML page about a run directory, or about two of them, and its charts as files."""

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
from ileed.report.evidence import data_of_run
from ileed.report.page import file_of
from ileed.report.people import labels_of
from ileed.report.sections import Content
from ileed.runs import stores
from ileed.runs.files import is_taken

__all__ = ["compare_runs", "figures", "people_table", "report"]

_RULE = "pass the path of a run directory: fitted.save(path), then report(path)"

_MARKS = {  # at the start of our files, and of those that Vega drew for earlier versions
    "svg": ((b"<svg ", b'class="ileed-figure"'), (b"<svg ", b'class="marks"')),
    "png": ((b"\x89PNG\r\n\x1a\n", b""),),
}


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
    """Write the report of a run directory as one HTML file that fetches nothing, and return its path.

    The file is `out`, or report.html in the run directory; an existing report is replaced, any other file is not.
    `data` are those of the run: with them the page also has state clusters, episodes, and problems of the data,
    which a run directory does not contain. `truth` is the known skill of some or all demonstrators, from 0 to 1, shown
    beside the estimate. `scores` are those of policies by name, as `evaluate` returns them (a mean and an interval
    suffice), in the order of the chart. `command` is the command that made the run. With `anonymise` the report shows
    the pseudonyms of `Demonstrations.anonymise` in place of names. `policy` is as in `ileed.load`.
    """
    run = path_of("path", path, rule=_RULE)
    target = run / "report.html" if out is None else path_of("out", out)
    _check_options(title=title, truth=truth, scores=scores, command=command, anonymise=anonymise)
    runs.check_page(target)
    fitted, known, data = _load(run, truth or {}, anonymise, data, policy)
    title = title or f"Demonstrator report: {labels_of([stores.base_name(run)])[0]}"
    content = Content.of(fitted, known, scores or {}, data).page(title, command=command).html()
    runs.write_file(target, content.encode("utf-8"))
    return target


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
    """Write a page that compares two run directories by the demonstrators that both have, and return its path.

    The file is `out`, or comparison.html in the first run directory. With `data` of both runs, their costs are compared
    on these, with an interval.
    """
    run, second = (path_of(name, each, rule=_RULE) for name, each in (("path", path), ("other", other)))
    target = run / "comparison.html" if out is None else path_of("out", out)
    _check_options(title=title, anonymise=anonymise)
    runs.check_page(target)
    one, two, data = _load_both(run, second, anonymise, data)
    names = (stores.base_name(run), stores.base_name(second))
    content = comparison_page(one, two, names, title=title, data=data).html()
    runs.write_file(target, content.encode("utf-8"))
    return target


@default_modes()
def figures(
    path: str | Path,
    out_dir: str | Path,
    *,
    format: Literal["svg", "png"] = "svg",  # noqa: A002 (the word that users of altair and matplotlib know)
    data: Demonstrations | None = None,
    truth: Mapping[str, float] | None = None,
    scores: Mapping[str, Scores] | None = None,
    anonymise: bool = False,
) -> dict[str, Path]:
    """Write each chart of the report to a file, and return the paths by the names of the charts.

    The names are those of the sections' charts, such as "ranking", "learning" and "states", as far as the run and the
    data have them. An existing chart is replaced; any other file is an error before a chart is written. PNG files need
    the extra `report`.
    """
    one_of("format", format, _MARKS)
    _check_options(truth=truth, scores=scores, anonymise=anonymise)
    fitted, truth, data = _load(path, truth or {}, anonymise, data)
    charts = Content.of(fitted, truth, scores or {}, data).figures
    drawn = {chart.name: file_of(chart, format) for chart in charts}
    paths = {name: path_of("out_dir", out_dir) / f"{name}.{format}" for name in drawn}
    for place in paths.values():
        head = runs.read_head(place)
        is_ours = any(head.startswith(start) and part in head for start, part in _MARKS[format])
        if not is_ours and stores.exists(place):
            found = f"{stores.name_of(place)} exists and is not a figure of ours"
            raise RunError(f"{found}: choose another place, or move it away")
    for name, content in drawn.items():
        runs.write_file(paths[name], content)
    return paths


@default_modes()
def people_table(path: str | Path, out: str | Path, *, anonymise: bool = False) -> Path:
    """Write the ranking of all demonstrators to a new .csv or .parquet file, and return its path.

    It is `Expertise.table` if demonstrators were rated, otherwise their names and the fit's own expertise.
    """
    target = check_table(out)
    fitted, _, _ = _load(path, {}, anonymise)
    expertise, content = fitted.expertise, pa.BufferOutputStream()
    if expertise.ratings is None:
        names, values = zip(*expertise.ranking(), strict=True)
        table = pa.table({"demonstrator": list(map(printable, names)), "expertise": values})
    else:
        table = expertise.table()
    if target.suffix == ".csv":
        runs.write_file(target, runs.csv_bytes(table))
    else:
        parquet.write_table(table, content)
        runs.write_file(target, content.getvalue().to_pybytes())
    return target


def check_table(out: str | Path) -> Path:
    """The path of a table that `people_table` can write; any other is refused."""
    target = path_of("out", out, rule="pass the path of a .csv or .parquet file")
    if target.suffix not in (".csv", ".parquet"):
        raise SettingsError(f"{stores.name_of(target)} is neither .csv nor .parquet: name one of these")
    if is_taken(target):
        raise RunError(f"{stores.name_of(target)} exists already: choose another place, or move it away")
    return target


def _check_options(
    *,
    title: str | None = None,
    truth: Mapping[str, float] | None = None,
    scores: Mapping[str, Scores] | None = None,
    command: str | None = None,
    anonymise: bool = False,
) -> None:
    for name, value in (("title", title), ("command", command)):
        instance_of(name, value, str | None, rule="pass text, or None")
    instance_of("truth", truth, Mapping | None, rule="pass the known skill of demonstrators by name, or None")
    instance_of("scores", scores, Mapping | None, rule="pass what ileed.evaluate returns for policies by name, or None")
    for policy, found in (scores or {}).items():
        if not isinstance(policy, str) or not (hasattr(found, "mean") and hasattr(found, "interval")):
            raise SettingsError(
                f"scores has {brief(found)} for {brief(policy)}: pass what ileed.evaluate returns by name"
            )
    true_or_false("anonymise", anonymise)


def _load(
    path: str | Path,
    truth: Mapping[str, float],
    anonymise: bool,
    data: Demonstrations | None = None,
    policy: nn.Module | Factory | None = None,
) -> tuple[Fitted, Mapping[str, float], Demonstrations | None]:
    """The fit, the known skill and the data, with pseudonyms if `anonymise`, or if the fit has them."""
    fitted, shown = load(path, policy=policy), dict(zip(truth, truth, strict=True))
    if data is not None:
        check_demonstrations(data)
        named, data = data.names, fitted.match_names(fitted.policy.match(data), allow_new=False)
        shown |= dict(zip(named, data.names, strict=True))
    if anonymise:
        named = fitted.expertise.names
        fitted, data = (fitted.anonymise(), None) if data is None else fitted.anonymise_with(data)
        shown |= dict(zip(named, fitted.expertise.names, strict=True))
    if data is not None:
        data = data_of_run(fitted, data)
    return fitted, {shown[name]: value for name, value in truth.items()}, data


def _load_both(
    one: Path, other: Path, anonymise: bool, data: Demonstrations | None
) -> tuple[Fitted, Fitted, Demonstrations | None]:
    """Two fits and the data of both; all with the same pseudonyms if `anonymise`, or if a fit has pseudonyms."""
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
    same = fits[0].provenance["data"].get("fingerprint") == fits[1].provenance["data"].get("fingerprint")
    if any(have_pseudonyms) and not (all(have_pseudonyms) and same):
        raise SettingsError(
            "a run has pseudonyms, which stand for other demonstrators in a run of other data or with names: pass the "
            "data of both runs (at the command: --data), by which they are matched"
        )
    if not anonymise or all(have_pseudonyms):
        return *fits, None
    names = tuple(dict.fromkeys([*fits[0].expertise.names, *fits[1].expertise.names]))
    shown = pseudonyms(names, key=str(fits[0].provenance["data"]["fingerprint"]))
    return fits[0].renamed(shown), fits[1].renamed(shown), None
