"""What commands print: text, tables and JSON on standard output, and progress bars on standard error."""

from __future__ import annotations

import json
import math
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column, Table

from ileed.cli import is_silent
from ileed.errors import printable

if TYPE_CHECKING:
    from ileed.fitting import Progress as FitProgress
    from ileed.fitting import ProgressCallback
    from ileed.methods import Fitted
    from ileed.rating.outcomes import SkillEvidence
    from ileed.rating.ratings import Ratings

_LONGEST_NAME = 200
_BAR_DELAY = 2.0  # seconds
_ALL, _ENDS, _UNCERTAIN = 50, 15, 10
"""The longest list of demonstrators that is printed whole; of a longer one, the rows at either end and between them."""


class Output(Console):
    """Standard output for text, without highlighting."""

    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__(quiet=quiet, highlight=False)

    def say(self, text: str) -> None:
        """Print lines unwrapped; markup and terminal escapes in them have no effect."""
        for each in text.split("\n"):
            self.print(printable(each), markup=False, soft_wrap=True)

    def on_broken_pipe(self) -> NoReturn:
        """Raise an error, which `run` turns into an exit code; rich would end the process."""
        raise BrokenPipeError


def plain(text: str) -> str:
    """Text from the data for a cell of a table: shortened, without markup or terminal escapes."""
    return escape(printable(text, most=_LONGEST_NAME))


def print_json(value: Mapping[str, Any]) -> None:
    """Print strict JSON; numbers that are not finite become null."""
    finite = json.loads(json.dumps(value), parse_constant=lambda _: None)
    print(json.dumps(finite, indent=2))  # noqa: T201


@contextmanager
def fit_bar(words: str, *, quiet: bool = False) -> Iterator[ProgressCallback]:
    """The progress callback of a fit: a bar with the stage, the best cost so far, and the time left in the stage."""
    with bar(words, quiet=quiet) as advance:

        def progress(at: FitProgress) -> None:
            stage = "" if at.stage == "fitting" else at.stage
            count = "" if at.unit == "steps" else f"{at.unit}, {at.step:,} of {at.steps:,}"
            best = f"best {at.nats_per_action:.4f} nats" if math.isfinite(at.nats_per_action) else ""
            advance(at.step, at.steps, ", ".join(filter(None, (stage, count, best))))

        yield progress


@contextmanager
def bar(words: str, *, quiet: bool = False, late: bool = False) -> Iterator[Callable[..., None]]:
    """A progress callback that draws a bar with the time left; it takes the number done, the total and a note.

    The bar appears with the first report or after a delay, so that errors before the work are printed without a bar.
    A `late` bar appears only after the delay, so that short work shows none.
    """
    start = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[done]}"), TimeElapsedColumn())
    end = (TextColumn("{task.fields[left]}"), TimeRemainingColumn())
    bars = Progress(*start, *end, console=Console(stderr=True, quiet=quiet or is_silent()))
    task = bars.add_task(plain(words), total=None, done="", left="")  # how much is done is not known yet
    timer = threading.Timer(_BAR_DELAY, bars.start)
    timer.daemon = True
    timer.start()

    def advance(done: int, total: int, note: str = "") -> None:
        if not late:
            bars.start()
        now = bars.tasks[0]
        if done < now.completed:  # a new stage: its time left starts again, the elapsed time goes on
            began = now.start_time
            bars.reset(task)
            now.start_time = began
        share = f"{done / total if total else 0:>4.0%}"
        bars.update(task, completed=done, total=total, done=f"{share} {note}".rstrip(), left="left")

    try:
        yield advance
    finally:
        timer.cancel()
        timer.join()
        if bars.live.is_started:
            bars.stop()


def numbers(first: str, *names: str, title: str | None = None, caption: str | None = None) -> Table:
    """An empty table with a column of names and columns of numbers."""
    columns = (Column(name, justify="right", no_wrap=True) for name in names)
    return Table(Column(first, no_wrap=True), *columns, title=title, caption=caption)


def say_fit(console: Output, fitted: Fitted, saved: str) -> None:
    """Print the results of a fit and where it was saved."""
    if fitted.estimates_expertise:
        console.print(ranking(fitted))
    if fitted.expertise.ratings is not None:
        say_ratings(console, fitted.expertise.ratings)
    for found in (fitted.evidence, fitted.comparison):
        if found is not None:
            console.say(found.sentence())
    if fitted.width is not None:
        console.say(fitted.width_sentence)
    console.say(f"{fitted.nats_per_action:.4f} nats per action; {fitted.outcome.value}")
    console.say(f"saved in {saved}; next: ileed report {shlex.quote(saved)}")


def say_ratings(console: Output, ratings: Ratings) -> None:
    """Print which demonstrators can be distinguished, and which improve or tire."""
    console.say(ratings.sentence())
    if ratings.curves is not None:
        console.say(ratings.curves.sentence(ratings.confidence_level))


def summary(fitted: Fitted) -> dict[str, Any]:
    """The results of a fit, for JSON."""
    found: dict[str, Any] = {
        "nats_per_action": fitted.nats_per_action,
        "outcome": fitted.outcome.value,
        "width": fitted.width_sentence or None,
        "demonstrator_model": fitted.comparison.sentence() if fitted.comparison is not None else None,
        "restarts": fitted.restarts.nats_per_action.tolist(),
        "seconds": fitted.provenance["seconds"],
    }
    if fitted.estimates_expertise:
        own = fitted.expertise.by_demonstrator()
        found["expertise"] = {name: own[name] for name, _ in fitted.expertise.ranking()}
    if fitted.expertise.ratings is not None:
        found |= ratings_summary(fitted.expertise.ratings)
    return found | evidence_summary(fitted.evidence)


def evidence_summary(evidence: SkillEvidence | None) -> dict[str, Any]:
    """The evidence of actions and outcomes about skill, for JSON; empty without outcomes."""
    if evidence is None:
        return {}
    weight = evidence.weight._asdict()
    return {"evidence": {"table": evidence.table().to_pylist(), "weight": weight, "summary": evidence.sentence()}}


def ratings_summary(ratings: Ratings) -> dict[str, Any]:
    """Ratings, for JSON."""
    table = ratings.table()
    scale = table.schema.metadata[b"scale"].decode()
    found = {"table": table.to_pylist(), "scale": scale, "order": ratings.sentence()}
    return found if ratings.curves is None else found | {"drift": ratings.drift().to_pylist()}


def ranking(fitted: Fitted, truth: Mapping[str, float] | None = None) -> Table:
    """A table of demonstrators in the order of `Expertise.ranking`, with intervals.

    Without ratings it has the range of the middle 80% of steps in place of intervals.
    """
    ranked, everything = fitted.expertise.ranking(), "ileed report RUN --table FILE has all"
    unknown = [name for name, value in ranked if math.isnan(value)]
    if fitted.expertise.ratings is not None:
        return ratings_table(fitted.expertise.ratings, truth, unknown=unknown, everything=everything)
    quantiles = dict(zip(fitted.expertise.names, fitted.expertise.summary.quantiles.tolist(), strict=True))
    rows = {}
    for name, value in ranked[: len(ranked) - len(unknown)]:
        low, high = quantiles[name][2], quantiles[name][-3]  # the 10% and 90% of 21 quantiles
        rows[name] = ([f"{value:.3f}", f"{low:.2f} to {high:.2f}"], high - low)
    title = "expertise, best first (compare ratios, not levels)"
    return _listed(rows, ("expertise", "10% to 90% of steps"), truth, title, unknown, everything)


def ratings_table(
    ratings: Ratings,
    truth: Mapping[str, float] | None = None,
    *,
    unknown: Sequence[str] = (),
    everything: str = "--json has all",
) -> Table:
    """A table of demonstrators, best first, with intervals of relative expertise and of ranks."""
    found, rows = ratings.table(), {}
    for place, row in zip(ratings.order, found.to_pylist(), strict=True):
        ranks = "{rank_low} to {rank_high}" if row["rank_low"] < row["rank_high"] else "{rank_low}"
        cells = [each.format(**row) for each in ("{expertise:.2f}", "{low:.2f} to {high:.2f}", ranks, "{steps:,}")]
        rows[ratings.names[place]] = (cells, row["high"] - row["low"])
    columns = ("expertise", f"{ratings.confidence_level:.0%} interval", "rank", "steps")
    title = f"{found.schema.metadata[b'scale'].decode()}, best first"
    return _listed(rows, columns, truth, title, unknown, everything)


def _listed(
    rows: Mapping[str, tuple[Sequence[str], float]],
    columns: Sequence[str],
    truth: Mapping[str, float] | None,
    title: str,
    unknown: Sequence[str],
    everything: str,
) -> Table:
    """Rows of cells by demonstrator, each with the width of its interval; both ends and the widest of a long list."""
    from numpy import array

    from ileed.rating.ratings import places_to_show

    names, notes = [name for name in rows if name not in set(unknown)], []
    shown = list(range(len(names)))
    if len(names) > _ALL:
        shown = places_to_show(array([rows[name][1] for name in names]), ends=_ENDS, between=_UNCERTAIN)
        notes.append(f"{_ENDS} from either end and the {_UNCERTAIN} most uncertain of {len(names):,}; {everything}")
    if unknown:
        listed = ", ".join([plain(name) for name in unknown[:6]] + ["..."] * (len(unknown) > 6))
        notes.append(f"the fit learned from no step of {listed}")
    table = numbers("demonstrator", *columns, *["truth"] * (truth is not None), title=title, caption="; ".join(notes))
    for before, place in zip([-1, *shown], shown, strict=False):
        if left := place - before - 1:
            table.add_row(f"... {left:,} more ...", style="dim")
        known = [] if truth is None else [f"{truth[names[place]]:.2f}"]
        table.add_row(plain(names[place]), *rows[names[place]][0], *known)
    return table
