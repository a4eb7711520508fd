"""Drift over time: who improves from episode to episode, who tires, and who cannot be told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ileed.fitted import Fitted
from ileed.fitted.learning import IMPROVES, TIRES, UNDECIDED
from ileed.report.charts import Chart, Curve, Rows, Scale, axis, interval, lines
from ileed.report.layout import Section
from ileed.report.people import Person
from ileed.report.tables import Cell, Column, Table, person_name, rated, whole, words
from ileed.report.text import between, decimal, demonstrators, enumerated, say, short

_CHARTS = 6  # people whose curves are drawn
_PEOPLE = 60  # rows of the page at most; the CSV file has everybody who is shown elsewhere
_SPAN = "95 % interval"


def drift_sections(fitted: Fitted, people: Sequence[Person]) -> list[Section]:
    """The section about drift; none where a fit takes expertise to be the same in all episodes."""
    ratings = fitted.expertise.ratings
    if ratings is None or ratings.curves is None:
        return []
    by_name = {row["demonstrator"]: row for row in ratings.drift(confidence_level=0.95).to_pylist()}
    names = [name.encode(errors="replace").decode() for name in fitted.expertise.names]
    found = [(person, by_name[names[person.index]]) for person in people if names[person.index] in by_name]
    found.sort(key=lambda each: -each[1]["change"])
    text = [say("drift"), _verdict(found)]
    charts = _charts(found, ratings.curve(confidence_level=0.95).to_pylist())
    notes = [say("drift_rule"), say("drift_order")]
    listed = Section("drift", "Who improves and who tires", text, [_table(found)], notes)
    curves = Section("curves", "Learning curves of people", [say("drift_curves")], charts, side_by_side=True)
    return [listed, curves]


_Found = Sequence[tuple[Person, Mapping[str, Any]]]


def _verdict(found: _Found) -> str:
    """Who improves, who tires and of how many it cannot be told, in words."""
    told = []
    for verdict, one, several in ((IMPROVES, "improves", "improve"), (TIRES, "tires", "tire")):
        who = [
            f"{short(person.label)} ({decimal(row['first'])} to {decimal(row['last'])})"
            for person, row in (found if verdict == IMPROVES else reversed(found))
            if row["verdict"] == verdict
        ]
        if who:
            told.append(f"{enumerated(who)} {one if len(who) == 1 else several}.")
    open_ = sum(row["verdict"] == UNDECIDED for _, row in found)
    if open_ == len(found):
        return say("drift_nobody", who=demonstrators(open_))
    if open_:
        told.append(say("drift_open", who=demonstrators(open_)))
    return " ".join(told)


def _table(found: _Found) -> Table:
    shown = list(range(min(len(found), _PEOPLE)))
    scale = Scale.of([0.0, 1.0, *(row[end] for _, row in found for end in ("first", "last_high", "last_low"))])
    drawings, rows = [], []
    for person, row in found:
        last = interval(scale, row["last"], (row["last_low"], row["last_high"]), reference=1.0)
        drawings.append(interval(scale, row["first"], mark="two") + last)
        cells: list[Cell] = [person_name(person.label), rated(row["last"], row["last_low"], row["last_high"])]
        verdict = words(row["verdict"])._replace(values=(row["verdict"], row["probability_improves"]))
        cells += [verdict, rated(row["change"], row["change_low"], row["change_high"])]
        rows.append([*cells, rated(row["first"], row["first_low"], row["first_high"]), whole(row["episodes"])])
    columns = [
        Column("person", ("person",)),
        Column("last episode", ("last", "last_low", "last_high"), _SPAN),
        Column("verdict", ("verdict", "probability_improves")),
        Column("change", ("change", "change_low", "change_high"), _SPAN),
        Column("first episode", ("first", "first_low", "first_high"), _SPAN),
        Column("episodes", ("episodes",)),
    ]
    labels = [person.label for person, _ in found[: len(shown)]]
    numbers = [decimal(row["last"]) for _, row in found[: len(shown)]]
    marks = [("one", f"last episode with {_SPAN}"), ("two-square", "first episode"), ("reference", "mean over people")]
    title = "expertise divided by its mean over people"
    told = "Expertise in the first and the last episode"
    drawing = Rows("drift", told, labels, drawings[: len(shown)], numbers, axis(scale), title, marks)
    return Table("drift", "People, those who improve most first", columns, rows, drawing, shown)


def _charts(found: _Found, points: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """The curves of those who change most surely, improving and tiring in turn, on one scale."""
    sure = sorted(found, key=lambda each: -abs(each[1]["probability_improves"] - 0.5))[:_CHARTS]
    chosen = sorted(sure, key=lambda each: -each[1]["change"])
    by_name: dict[str, list[Mapping[str, Any]]] = {row["demonstrator"]: [] for _, row in chosen}
    for point in points:
        if point["demonstrator"] in by_name:
            by_name[point["demonstrator"]].append(point)
    y = Scale.of([0.0, 1.0, *(point["high"] for own in by_name.values() for point in own)])
    charts = []
    for person, row in chosen:
        own = [(p["episode"] + 1, p["low"], p["expertise"], p["high"]) for p in by_name[row["demonstrator"]]]
        x = Scale(own[0][0], max(own[-1][0], own[0][0] + 1))
        band = [*((at, high) for at, _, _, high in own), *((at, low) for at, low, _, _ in reversed(own))]
        mean = [(own[0][0], 1.0), (own[-1][0], 1.0)]
        curves = [Curve(band, "band"), Curve(mean, "other"), Curve([(at, value) for at, _, value, _ in own], "one")]
        change = f"{decimal(row['change'])} ({between(row['change_low'], row['change_high'])})"
        told = f"{short(person.label)}: {row['verdict']}; change {change}"
        body = lines(curves, x, y, height=120, across="the person's own episode")
        charts.append(Chart(f"curve-{person.rank}", told, body, 166))
    return charts
