"""Episodes: how expert each is, which are worth a look or may be left out, and where within them expertise falls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np

from ileed.demonstrations import Array
from ileed.report.charts import Chart, Curve, Rows, Scale, axis, interval, lines, shade
from ileed.report.evidence import Estimate, Evidence
from ileed.report.people import Person
from ileed.report.sights import Frames, sight_of
from ileed.report.tables import Cell, Column, Table, decimals, rated, whole, words
from ileed.report.text import NOTHING, between, decimal, short

_LISTED, _DRAWN = 20, 6  # episodes in the table of the page, and drawn step by step
_LONG = 10  # steps from which on an episode is drawn
_WINDOW = (5, 25)  # steps over which expertise along an episode is estimated, at least and at most
HALF = 0.5  # of the expertise of the best quarter of people: what lies below it with 97.5 % probability may be left out


class Stretch(NamedTuple):
    """Steps of an episode, from the first to the last, over which its expertise is lowest."""

    first: int
    last: int


@final
@dataclass(frozen=True, eq=False)
class Episodes:
    """Every episode that was looked at, with its person and expertise; `low_for_them` and `to_drop` are of these."""

    evidence: Evidence
    people: Sequence[Person]
    """Of each episode."""
    owner: Array
    """(episode,) the same people, as the data number them."""
    found: Estimate
    good: float
    """Relative expertise of the best quarter of people."""

    @classmethod
    def of(cls, evidence: Evidence, people: Sequence[Person]) -> Episodes:
        place = {name: index for index, name in enumerate(evidence.fitted.expertise.names)}
        by_index = {person.index: person for person in people}
        owner = evidence.data.episode_demonstrator
        theirs = [by_index[place[evidence.data.names[who]]] for who in owner.tolist()]
        values = np.sort(evidence.by_person.expertise[np.unique(owner)])[::-1]
        good = float(values[: max(1, len(values) // 4)].mean())
        return cls(evidence, theirs, owner, evidence.rate_episodes(), good)

    @property
    def low_for_them(self) -> list[int]:
        """Episodes that lie below what their person does otherwise, the clearest first."""
        gap = self.evidence.by_person.low[self.owner] - self.found.high
        return [int(each) for each in np.argsort(-gap, kind="stable") if gap[each] > 0]

    @property
    def to_drop(self) -> list[int]:
        """Episodes below half of what the best quarter of people do, with 97.5 % probability; the lowest first."""
        order = np.argsort(self.found.expertise, kind="stable")
        return [int(each) for each in order if self.found.high[each] < HALF * self.good]

    def number(self, episode: int) -> int:
        """Its number in the data, from 0 on."""
        return int(self.evidence.numbers[episode])

    def label(self, episode: int) -> str:
        return f"{self.number(episode)} ({short(self.people[episode].label)})"

    @property
    def has_sights(self) -> bool:
        """Whether an episode can be drawn."""
        return sight_of(self.evidence, self.lowest, None) is not None

    @property
    def lowest(self) -> int:
        return int(np.argmin(self.found.expertise))

    @property
    def chosen(self) -> list[int]:
        """Episodes to draw: unusually low ones, the lowest of some people, and the highest of all."""
        order = np.argsort(self.found.expertise, kind="stable").tolist()
        long = set(np.flatnonzero(np.bincount(self.evidence.data.episode) >= _LONG).tolist())
        low, order = ([each for each in some if each in long] for some in (self.low_for_them, order))
        lowest = {int(self.owner[each]): each for each in reversed(order)}.values()  # of each person
        chosen = list(dict.fromkeys([*low[:3], *sorted(lowest, key=order.index)]))[: _DRAWN - 1]
        return list(dict.fromkeys([*chosen, *order[-1:]]))

    def table(self) -> Table:
        """All episodes, the lowest first; the page shows those below what their person does, then the lowest."""
        found, order = self.found, np.argsort(self.found.expertise, kind="stable").tolist()
        first = self.low_for_them[: _LISTED // 2]
        order = [*first, *(each for each in order if each not in set(first))]
        low, drop = set(self.low_for_them), set(self.to_drop)
        begins = np.searchsorted(self.evidence.data.episode, np.arange(self.evidence.data.episode_count + 1))
        rewards = self.evidence.data.rewards
        columns = [
            Column("episode", ("episode",)),
            Column("expertise", ("expertise", "low", "high"), "relative to the mean over people; 95 % interval"),
            Column("person", ("person",)),
            Column("steps", ("steps",)),
            *([Column("reward", ("reward",))] if rewards is not None else []),
            Column("note", ("note",)),
        ]
        rows: list[list[Cell]] = []
        for each in order:
            steps = slice(*begins[each : each + 2])
            note = ["low for this person"] * (each in low) + ["may be left out"] * (each in drop)
            values = (float(found.expertise[each]), float(found.low[each]), float(found.high[each]))
            total = [] if rewards is None else [decimals(float(rewards[steps].sum()))]
            name = Cell(str(self.number(each)), self.number(each), (self.number(each),))
            who = words(self.people[each].label)
            size = whole(int(steps.stop - steps.start))
            rows.append([name, rated(*values), who, size, *total, words(", ".join(note) or NOTHING)])
        shown = list(range(min(_LISTED, len(rows))))
        scale = Scale.of([0.0, self.good, *(float(found.high[order[k]]) for k in shown)])
        drawings = [
            interval(
                scale,
                float(found.expertise[e]),
                (float(found.low[e]), float(found.high[e])),
                reference=self.good * HALF,
            )
            for e in (order[k] for k in shown)
        ]
        labels = [self.label(order[k]) for k in shown]
        numbers = [decimal(float(found.expertise[order[k]])) for k in shown]
        title = "relative expertise (1 is the mean over people)"
        marks = [("one", "expertise with 95 % interval"), ("reference", "half of the best quarter of people")]
        drawing = Rows("episodes", "Expertise of episodes", labels, drawings, numbers, axis(scale), title, marks)
        return Table("episodes", "Episodes, lowest first", columns, rows, drawing, shown)

    def along(self) -> list[Chart | Frames]:
        """Expertise step by step in a few episodes, the lowest stretch marked, and what they looked like."""
        chosen = self.chosen
        if not chosen:
            return []
        found = [self._windows(each) for each in self.evidence.along(np.array(chosen))]
        charts: list[Chart | Frames] = []
        for episode, windows in zip(chosen, found, strict=True):
            expected = float(self.evidence.by_person.expertise[self.owner[episode]])
            worst = worst_stretch(windows, expected)
            sight = sight_of(self.evidence, episode, worst)
            charts += [self._chart(episode, windows, expected, worst), *([] if sight is None else [sight])]
        return charts

    def _windows(self, by_step: Array) -> Estimate:
        """Expertise around each step: by the steps of a window, cut at the ends of the episode."""
        half = int(np.clip(len(by_step) // 8, *_WINDOW)) // 2
        summed = np.concatenate([np.zeros((1, by_step.shape[1])), np.cumsum(by_step, axis=0)])
        step = np.arange(len(by_step))
        windows = summed[np.minimum(step + half + 1, len(step))] - summed[np.maximum(step - half, 0)]
        return self.evidence.rate_curves(windows, self.found.population, spread=self.evidence.within)

    def _chart(self, episode: int, windows: Estimate, expected: float, worst: Stretch | None) -> Chart:
        count = len(windows.expertise)
        x = Scale(0, max(1, count - 1))
        top = Scale.of([0.0, expected, *windows.high.tolist()])
        band = [*enumerate(windows.high.tolist()), *reversed(list(enumerate(windows.low.tolist())))]
        curves = [
            Curve(band, "band"),
            Curve([(0, expected), (count - 1, expected)], "other"),
            Curve(list(enumerate(windows.expertise.tolist())), "one"),
        ]
        marked = "" if worst is None else shade(x, worst.first - 0.5, worst.last + 0.5)
        where = "no stretch lies below" if worst is None else f"lowest in steps {worst.first} to {worst.last}"
        span = between(float(self.found.low[episode]), float(self.found.high[episode]))
        told = f"Episode {self.label(episode)}: {decimal(float(self.found.expertise[episode]))} ({span}); {where}"
        body = lines(curves, x, top, height=120, across="step of the episode", marked=marked)
        return Chart(f"episode-{self.number(episode)}", told, body, 166)


def worst_stretch(windows: Estimate, expected: float) -> Stretch | None:
    """The run of steps around which expertise lies below what is expected of the person, longest and lowest; if any."""
    below = np.concatenate([[False], windows.high < expected, [False]])
    first = np.flatnonzero(~below[:-1] & below[1:])
    last = np.flatnonzero(below[:-1] & ~below[1:]) - 1
    if not len(first):
        return None
    lost = [
        float((expected - windows.expertise[one : other + 1]).sum()) for one, other in zip(first, last, strict=True)
    ]
    worst = int(np.argmax(lost))
    return Stretch(int(first[worst]), int(last[worst]))
