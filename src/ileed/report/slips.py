"""How people err: what was learned of their slips, and which demonstrator model held-out episodes prefer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ileed.demonstrations import Array
from ileed.fitted import Fitted
from ileed.fitted.comparison import ModelComparison
from ileed.report.layout import Section
from ileed.report.people import Person
from ileed.report.tables import Cell, Column, Table, decimals, person_name, words
from ileed.report.text import as_sentence, say

_DIMENSIONS = 6  # of an action that the page shows
_PEOPLE = 200  # rows of the page at most; the CSV file has everybody


def slip_sections(fitted: Fitted, people: Sequence[Person]) -> list[Section]:
    """The section about slips; none where the demonstrator model has nothing to learn and was not compared."""
    blocks, text = [], []
    if fitted.comparison is not None:
        text.append(as_sentence(fitted.comparison.sentence()))
        blocks.append(_models(fitted.comparison))
    slips, ranked = fitted.slips, [person for person in people if person.is_ranked]
    if slips:
        text.append(say("slips" if fitted.joint.sizes.discrete else "slips_continuous"))
    if "repeat" in slips and len(slips["repeat"]) == 1:
        text.append(say("slips_repeat", share=f"{100 * float(slips['repeat'][0]):.0f}"))
    if len(slips.get("correlation", ())) == 1:
        each = ", ".join(f"{share:.2f}" for share in slips["correlation"][0])
        text.append(say("slips_correlation", each=each))
    if (table := _biases(fitted, slips, ranked)) is not None or (table := _slips(fitted, slips, ranked)) is not None:
        blocks.append(table)
    return [Section("slips", "How people err", text, blocks)] if text else []


def _models(found: ModelComparison) -> Table:
    columns = [Column("demonstrator model", ("model",)), Column("nats per held-out action", ("nats_per_action",))]
    columns += [Column("above the preferred", ("more_than_preferred",)), Column("standard error", ("standard_error",))]
    rows = [
        [
            words(f"{row['model']}{' (preferred)' if row['preferred'] else ''}", wide=True),
            decimals(row["nats_per_action"], 4),
            decimals(row["more_than_preferred"], 4),
            decimals(row["standard_error"], 4),
        ]
        for row in found.table().to_pylist()
    ]
    return Table("models", "Demonstrator models by held-out episodes, the simplest first", columns, rows)


def _biases(fitted: Fitted, slips: dict[str, Array], people: Sequence[Person]) -> Table | None:
    """Each person's offset, gain and correlation of noise in every dimension of continuous actions."""
    titles = {"offset": "offset of", "gain": "gain of", "correlation": "lasting noise in"}
    own = [name for name in titles if len(slips.get(name, ())) > 1]
    if not own or not people:
        return None
    encoding, count = fitted.policy.encoding, fitted.joint.sizes.actions
    names = list(encoding.action) if encoding is not None else [f"action {number}" for number in range(count)]
    exempt = getattr(fitted.joint.parts.demonstrator, "exempt", None) or ()
    kept = [number for number in range(count) if number not in exempt]
    places = [(name, number) for number in kept[:_DIMENSIONS] for name in own]
    columns = [Column("person", ("person",))]
    columns += [Column(f"{titles[name]} {names[number]}", (f"{name}_{number}",)) for name, number in places]
    cells = [
        [person_name(person.label), *(decimals(float(slips[name][person.index, number])) for name, number in places)]
        for person in people
    ]
    shown = range(min(len(cells), _PEOPLE))
    return Table("slips", "Where people act beside the policy, most expert first", columns, cells, shown=shown)


def _slips(fitted: Fitted, slips: dict[str, Array], people: Sequence[Person]) -> Table | None:
    """What each person does where they do not follow the policy."""
    labels = fitted.policy.encoding.labels if fitted.policy.encoding is not None else ()
    names = [str(label) for label in labels] or [f"action {number}" for number in range(fitted.joint.sizes.actions)]
    columns, cells = [Column("person", ("person",))], [[person_name(person.label)] for person in people]

    def add(title: str, key: str, value: Sequence[Cell]) -> None:
        columns.append(Column(title, (key,)))
        for row, cell in zip(cells, value, strict=True):
            row.append(cell)

    if "slip" in slips and slips["slip"].ndim == 2:
        each = [slips["slip"][person.index] for person in people]
        add("most frequent slip", "slip", [words(names[int(own.argmax())]) for own in each])
        add("share of slips", "share", [decimals(float(own.max())) for own in each])
    if len(slips.get("repeat", ())) > 1:
        add("repeats the last action", "repeat", [decimals(float(slips["repeat"][person.index])) for person in people])
    if "confused" in slips:
        pairs = [np.unravel_index(slips["confused"][person.index].argmax(), (len(names),) * 2) for person in people]
        add("most confused", "confused", [words(f"{names[done]} for {names[meant]}") for meant, done in pairs])
        shares = [float(slips["confused"][person.index].max()) for person in people]
        add("share of those slips", "share", [decimals(share) for share in shares])
    if len(columns) == 1 or not people:
        return None
    shown = range(min(len(cells), _PEOPLE))
    return Table("slips", "What people do where they do not follow the policy, best first", columns, cells, shown=shown)
