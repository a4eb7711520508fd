"""Tables, summaries and sentences of fits and ratings, which several commands print."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from math import isnan
from typing import Any

import numpy as np
from rich.table import Column, Table

from ileed.cli.console import Output, plain
from ileed.data import Array
from ileed.methods import Fitted
from ileed.rating.outcomes import SkillEvidence
from ileed.rating.ratings import Ratings, places_to_show


def say_fit(console: Output, fitted: Fitted, saved: str) -> None:
    """The results of a fit for a terminal, and where it was saved."""
    if fitted.estimates_expertise:
        console.print(ranking(fitted))
    if fitted.expertise.ratings is not None:
        say_ratings(console, fitted.expertise.ratings)
    if fitted.evidence is not None:
        console.say(fitted.evidence.sentence())
    if fitted.width is not None:
        console.say(fitted.width_sentence)
    if fitted.comparison is not None:
        console.say(fitted.comparison.sentence())
    console.say(f"{fitted.nats_per_action:.4f} nats per action; {fitted.outcome.value}")
    console.say(f"saved in {saved}; next: ileed report {shlex.quote(saved)}")


def summary(fitted: Fitted) -> dict[str, Any]:
    """The results of a fit, for JSON."""
    found: dict[str, Any] = {
        "nats_per_action": fitted.nats_per_action,
        "outcome": fitted.outcome.value,
        "width": fitted.width_sentence or None,
        "demonstrator_model": fitted.comparison.sentence() if fitted.comparison is not None else None,
        "restarts": [float(cost) for cost in fitted.restarts.nats_per_action],
        "seconds": fitted.provenance["seconds"],
    }
    if fitted.estimates_expertise:
        own = fitted.expertise.by_demonstrator()
        found["expertise"] = {name: own[name] for name, _ in fitted.expertise.ranking()}
    if fitted.expertise.ratings is not None:
        found |= ratings_summary(fitted.expertise.ratings)
    return found | evidence_summary(fitted.evidence)


def evidence_summary(evidence: SkillEvidence | None) -> dict[str, Any]:
    """What actions and outcomes say alone, for JSON; empty without outcomes."""
    if evidence is None:
        return {}
    weight = evidence.weight._asdict()
    return {"evidence": {"table": evidence.table().to_pylist(), "weight": weight, "summary": evidence.sentence()}}


def ratings_summary(ratings: Ratings) -> dict[str, Any]:
    """Ratings for JSON."""
    table = ratings.table()
    told = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
    found = {"table": table.to_pylist(), "scale": told["scale"], "order": ratings.sentence()}
    return found if ratings.curves is None else found | {"drift": ratings.drift().to_pylist()}


def say_ratings(console: Output, ratings: Ratings) -> None:
    """Who can be told apart, and who improves or tires where expertise changes from episode to episode."""
    console.say(ratings.sentence())
    if ratings.curves is not None:
        console.say(ratings.curves.sentence(ratings.confidence_level))


ALL, ENDS, UNCERTAIN = 50, 15, 10
"""The longest list of demonstrators; of more, the number from either end and of the most uncertain."""


def _listed(table: Table, rows: list[list[str]], width: Array) -> None:
    """Add rows, best first; of many, the first, the last and those of greatest `width` between them."""
    shown = range(len(rows)) if len(rows) <= ALL else places_to_show(width, ends=ENDS, between=UNCERTAIN)
    for place, row in enumerate(shown):
        if place and (left := row - shown[place - 1] - 1):
            table.add_row(f"... {left:,} more ...", style="dim")
        table.add_row(*rows[row])


def _note(count: int, where: str) -> str:
    return f"{ENDS} from either end and the {UNCERTAIN} most uncertain of {count:,}; {where}"


def ratings_table(ratings: Ratings) -> Table:
    """A table of demonstrators, best first, with intervals of relative expertise and of ranks."""
    found = ratings.table()
    percent = f"{100 * ratings.confidence_level:.0f} %"
    columns = [Column(name, justify="right") for name in ("expertise", f"{percent} interval", "rank", "steps")]
    notes = _note(found.num_rows, "--json has all") if found.num_rows > ALL else None
    table = Table("demonstrator", *columns, title=found.schema.metadata[b"scale"].decode(), caption=notes)
    rows = []
    for row in found.to_pylist():
        ranks = "{rank_low} to {rank_high}" if row["rank_low"] < row["rank_high"] else "{rank_low}"
        cells = (f"{row['expertise']:.2f}", f"{row['low']:.2f} to {row['high']:.2f}", ranks.format(**row))
        rows.append([plain(row["demonstrator"]), *cells, f"{row['steps']:,}"])
    _listed(table, rows, found["high"].to_numpy() - found["low"].to_numpy())
    return table


def ranking(fitted: Fitted, truth: Mapping[str, float] | None = None) -> Table:
    """A table of demonstrators in the order of `Expertise.ranking`, as reports have it.

    It has intervals, or without ratings the 10 to 90 % range of expertise over each demonstrator's steps.
    """
    ranked, ratings = fitted.expertise.ranking(), fitted.expertise.ratings
    people = [name for name, value in ranked if not isnan(value)]
    unknown = [plain(name) for name, value in ranked if isnan(value)]
    notes = [_note(len(people), "ileed report RUN --table FILE has all")] if len(people) > ALL else []
    if unknown:
        notes.append(f"{', '.join(unknown[:6])}{', ...' if len(unknown) > 6 else ''}: no step was learned from")
    columns, cells, width = _spread_of_steps(fitted) if ratings is None else _interval_cells(fitted)
    names = ["expertise", *columns, *([] if truth is None else ["truth"])]
    scale = "compare ratios, not levels" if ratings is None else "divided by its mean over demonstrators"
    title, caption = f"expertise, best first ({scale})", "; ".join(notes) or None
    table = Table("demonstrator", *(Column(name, justify="right") for name in names), title=title, caption=caption)
    rows = [[plain(name), *cells[name], *([] if truth is None else [f"{truth[name]:.2f}"])] for name in people]
    _listed(table, rows, np.array([width[name] for name in people]))
    return table


_Cells = tuple[list[str], dict[str, list[str]], dict[str, float]]  # titles, cells and uncertainty by name


def _spread_of_steps(fitted: Fitted) -> _Cells:
    quantiles = dict(zip(fitted.expertise.names, fitted.expertise.summary.quantiles.tolist(), strict=True))
    own = fitted.expertise.by_demonstrator()
    cells = {name: [f"{own[name]:.3f}", f"{each[2]:.2f} to {each[18]:.2f}"] for name, each in quantiles.items()}
    return ["10 to 90 % of steps"], cells, {name: each[18] - each[2] for name, each in quantiles.items()}


def _interval_cells(fitted: Fitted) -> _Cells:
    words = ("{expertise:.2f}", "{low:.2f} to {high:.2f}", "{rank_low} to {rank_high}")
    numbers = {name: str(number) for number, name in enumerate(fitted.expertise.names)}  # a table holds no stray name
    rows = {row["demonstrator"]: row for row in fitted.renamed(numbers).expertise.table().to_pylist()}
    cells = {name: [each.format(**rows[number]) for each in words] for name, number in numbers.items()}
    width = {name: rows[number]["high"] - rows[number]["low"] for name, number in numbers.items()}
    return ["95 % interval", "rank"], cells, width
