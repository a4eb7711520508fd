"""People by kind of state: who is good where, and where everybody is weak, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np

from ileed.demonstrations import Array
from ileed.report.charts import Rows, Scale, axis, interval
from ileed.report.evidence import Estimate, Evidence
from ileed.report.people import Person
from ileed.report.tables import Cell, Column, Table, person_name, rated, words
from ileed.report.text import decimal, short

_ENOUGH_STEPS = 5  # of a person in a kind of state, to be shown there


class Gap(NamedTuple):
    """Somebody who is below the best quarter of people in a kind of state."""

    person: Person
    kind: str
    expertise: float
    low: float
    high: float
    best: float
    steps: int


@final
@dataclass(frozen=True, eq=False)
class PeopleByKind:
    """Expertise of people in kinds of state: `found` in the order of `people`, then of kinds."""

    evidence: Evidence
    people: Sequence[Person]
    found: Estimate
    steps: Array
    """(person, kind) how many steps of theirs were looked at."""
    everybody: Estimate
    """(kind,) by the steps of all people together, divided by that of all kinds together."""

    @classmethod
    def of(cls, evidence: Evidence, people: Sequence[Person]) -> PeopleByKind:
        names, kinds = evidence.fitted.expertise.names, evidence.kinds
        place = {name: who for who, name in enumerate(evidence.data.names)}
        people = [person for person in people if person.is_ranked and names[person.index] in place]
        row = np.full(len(evidence.data.names), -1)
        row[[place[names[person.index]] for person in people]] = np.arange(len(people))
        owner, count = row[evidence.data.episode_demonstrator], len(kinds.names)
        unit = np.where(owner[evidence.episode] >= 0, owner[evidence.episode] * count + evidence.kind, -1)
        found = evidence.rate(unit, len(people) * count)
        of_step = owner[evidence.data.episode]
        steps = np.bincount((of_step * count + kinds.of_step)[of_step >= 0], minlength=len(people) * count)
        together = float(evidence.rate(np.zeros_like(evidence.kind), 1).expertise[0])
        by_kind = evidence.rate(evidence.kind, count)
        ends = (by_kind.expertise / together, by_kind.low / together, by_kind.high / together)
        everybody = Estimate(*ends, by_kind.population)
        return cls(evidence, people, found, steps.reshape(-1, count), everybody)

    @property
    def count(self) -> int:
        return len(self.evidence.kinds.names)

    def kind(self, number: int) -> str:
        """A kind in a sentence."""
        kinds = self.evidence.kinds
        if kinds.column is not None:
            return f"“{short(kinds.names[number])}”"
        return f"states of kind {kinds.names[number]} ({kinds.descriptions[number]})"

    def gaps(self) -> tuple[list[Gap], list[Person]]:
        """Where somebody is surely below the best quarter there, the most costly first: gap times steps.

        Those who are so in every one of several kinds of state are returned apart.
        """
        shape, enough = self.steps.shape, self.steps >= _ENOUGH_STEPS
        value, low, high = (each.reshape(shape) for each in self.found[:3])
        best = np.full(self.count, np.nan)
        for kind in np.flatnonzero(enough.sum(0) > 1):
            there = np.sort(value[enough[:, kind], kind])[::-1]
            best[kind] = there[: max(1, len(there) // 4)].mean()
        below = enough & (high < best)
        everywhere = (below.sum(1) == enough.sum(1)) & (below.sum(1) > 1)
        found = []
        for person, kind in zip(*np.nonzero(below & ~everywhere[:, None]), strict=True):
            numbers = (float(value[person, kind]), float(low[person, kind]), float(high[person, kind]))
            steps = int(self.steps[person, kind])
            found.append(Gap(self.people[person], self.kind(int(kind)), *numbers, float(best[kind]), steps))
        costly = sorted(found, key=lambda gap: -(gap.best - gap.expertise) * gap.steps)
        return costly, [self.people[person] for person in np.flatnonzero(everywhere).tolist()]

    def kinds_table(self) -> Table:
        """Kinds of state, the weakest first, by the steps of everybody."""
        kinds, found = self.evidence.kinds, self.everybody
        share = np.bincount(kinds.of_step, minlength=self.count) / len(kinds.of_step)
        order = np.argsort(found.expertise, kind="stable").tolist()
        rows: list[list[Cell]] = []
        for each in order:
            numbers = self.evidence.numbers
            places = ", ".join(f"{numbers[episode]}:{step}" for episode, step in kinds.examples[each])
            part = Cell(f"{100 * share[each]:.0f} %", float(share[each]), (float(share[each]),), "n")
            values = (float(found.expertise[each]), float(found.low[each]), float(found.high[each]))
            rows.append(
                [
                    words(kinds.names[each]),
                    rated(*values),
                    words(kinds.descriptions[each], wide=True),
                    part,
                    words(places),
                ]
            )
        columns = [
            Column("kind", ("kind",)),
            Column("everybody", ("expertise", "low", "high"), "expertise of all steps together; 95 % interval"),
            Column("what sets it apart", ("description",)),
            Column("steps", ("share_of_steps",)),
            Column("examples", ("examples",), "episode:step"),
        ]
        scale = Scale.of([0.0, 1.0, *found.high.tolist()])
        drawings = [
            interval(scale, float(found.expertise[k]), (float(found.low[k]), float(found.high[k])), reference=1.0)
            for k in order
        ]
        numbers_ = [decimal(float(found.expertise[each])) for each in order]
        labels = [kinds.names[each] for each in order]
        title = "expertise of everybody (1 is all states together)"
        marks = [("one", "expertise with 95 % interval"), ("reference", "all states together")]
        drawing = Rows("kinds", "Expertise by kind of state", labels, drawings, numbers_, axis(scale), title, marks)
        return Table("kinds-of-state", "Kinds of state, weakest first", columns, rows, drawing)

    def people_table(self) -> Table:
        """People, best first, by kinds of state; darker is better, and empty where somebody hardly ever was."""
        kinds, shape = self.evidence.kinds, self.steps.shape
        value, low, high = (each.reshape(shape) for each in self.found[:3])
        top = max(float(value[self.steps >= _ENOUGH_STEPS].max(initial=0.0)), 1e-9)
        columns = [Column("person", ("person",))]
        for name in kinds.names:
            columns.append(Column(name, (f"{name} expertise", f"{name} low", f"{name} high", f"{name} steps")))
        rows = []
        for row, person in enumerate(self.people):
            cells = [person_name(person.label)]
            for kind in range(self.count):
                steps = int(self.steps[row, kind])
                if steps < _ENOUGH_STEPS:
                    cells.append(Cell("·", -1.0, (None, None, None, steps), "n none"))
                    continue
                found = float(value[row, kind])
                cell = rated(found, float(low[row, kind]), float(high[row, kind]), heat=min(9, int(10 * found / top)))
                cells.append(cell._replace(values=(*cell.values, steps)))
            rows.append(cells)
        return Table("people-by-kind", "People by kind of state, best first", columns, rows, is_map=True)
