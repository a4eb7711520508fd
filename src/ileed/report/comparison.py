"""Comparison of two runs: both rankings side by side, how expertise changed, and the costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ileed.data import Array, Demonstrations, rules
from ileed.methods import Fitted
from ileed.rating.posterior import draws, tails
from ileed.report.charts import Scale, axis, interval
from ileed.report.page import (
    DEMONSTRATOR,
    Cell,
    Column,
    Page,
    Rows,
    Section,
    Table,
    Top,
    between,
    decimal,
    decimals,
    enumerated,
    escape,
    in_words,
    person_name,
    rated,
    say,
    short,
    words,
)
from ileed.report.people import SHOWN, Person, labels_of, people_of
from ileed.report.sections import differing_settings, settings_of

_RESAMPLES = 2_000  # of episodes, for the interval of a difference of costs


class Change(NamedTuple):
    """A demonstrator in both runs, and how much higher relative expertise is in the second."""

    one: Person
    other: Person
    value: float
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        return self.low > 0 or self.high < 0


def comparison_page(
    one: Fitted, other: Fitted, names: tuple[str, str], *, title: str | None = None, data: Demonstrations | None = None
) -> Page:
    """The page about two runs; costs on `data` of both are compared episode by episode."""
    first, second = (short(name, 40) for name in labels_of(names))
    changes = changes_of(one, other)
    cost = None if data is None else cost_change(one, other, data)
    same_data = one.provenance["data"].get("fingerprint") == other.provenance["data"].get("fingerprint")
    people = [_people(changes, first, second)] if changes else []
    sections = [*people, _costs(one, other, (first, second), cost), _differences(one, other, first, second)]
    both = "".join(
        f"<details><summary>{escape(name)}</summary>{settings_of(fitted, None)}</details>"
        for name, fitted in ((first, one), (second, other))
    )
    return Page(
        title=title or f"Comparison of two runs: {first} and {second}",
        top=_top(one, other, changes, (first, second), same_data)._replace(advises="What changed"),
        tiles=[
            ("demonstrators in both", f"{len(changes):,}"),
            (f"nats per action, {first}", f"{one.nats_per_action:.3f}"),
            (f"nats per action, {second}", f"{other.nats_per_action:.3f}"),
        ],
        caution=say("caution"),
        introduction=say("compare_introduction", first=first, second=second),
        sections=sections,
        small_print=both,
    )


def changes_of(one: Fitted, other: Fitted) -> list[Change]:
    """Demonstrators in both runs, in the order of the first; intervals are NaN if a run has none."""
    people = {one.expertise.names[person.index]: person for person in people_of(one, {})}
    others = {other.expertise.names[person.index]: person for person in people_of(other, {})}
    shared = [name for name, person in people.items() if name in others and person.is_ranked and others[name].is_ranked]
    before, after = (_draws(fitted, shared) for fitted in (one, other))
    found = []
    for place, name in enumerate(shared):
        value, low, high = others[name].expertise - people[name].expertise, np.nan, np.nan
        if before is not None and after is not None:
            chance = np.random.default_rng(place).permutation(len(after))  # the draws of the two runs are apart
            difference = after[chance, place] - before[:, place]
            value = float(difference.mean())
            low, high = (float(end) for end in np.quantile(difference, tails(0.95)))
        found.append(Change(people[name], others[name], value, low, high))
    return found


def _draws(fitted: Fitted, names: Sequence[str]) -> Array | None:
    """(draw, demonstrator) relative expertise of these; None if one has no rating, or if very many have."""
    ratings = fitted.expertise.ratings
    if ratings is None or ratings.shares is None or not set(names) <= set(ratings.names):
        return None
    if len(ratings.names) > rules.MANY_PEOPLE:  # thousands of draws of each would not fit in memory
        return None
    place = {name: k for k, name in enumerate(ratings.names)}
    found = draws(ratings.shares)
    relative = found / found.mean(1, keepdims=True)
    return np.asarray(relative[:, [place[name] for name in names]])


def _top(one: Fitted, other: Fitted, changes: Sequence[Change], names: tuple[str, str], same_data: bool) -> Top:
    agree = _agreement(changes)
    with_interval = any(not np.isnan(change.low) for change in changes)
    clear = [change for change in changes if change.is_clear]
    if len(changes) < 2:
        verdict = say("compare_nobody", count=len(changes))
    elif not with_interval:
        verdict = say("compare_order_alone", percent=100 * agree)
    elif not clear:
        verdict = say("compare_order_alike", percent=100 * agree)
    else:
        verdict = say("compare_order", percent=100 * agree, count=f"{len(clear):,}", all=f"{len(changes):,}")
    clear = sorted(clear, key=lambda each: each.value)
    up = [short(change.one.label) for change in reversed(clear) if change.value > 0]
    down = [short(change.one.label) for change in clear if change.value < 0]
    cheaper = names[0] if one.nats_per_action <= other.nats_per_action else names[1]
    gap = decimal(abs(one.nats_per_action - other.nats_per_action), 3)
    advice = [
        *([("Up", say("compare_up", who=enumerated(up), second=names[1]))] if up else []),
        *([("Down", say("compare_down", who=enumerated(down), second=names[1]))] if down else []),
        *([("Same", say("compare_same"))] if with_interval and not clear else []),
        ("Cost", say("compare_cost" if same_data else "compare_cost_other", cheaper=cheaper, gap=gap)),
    ]
    both = [one, other]
    only = [len(set(both[k].expertise.names) - set(both[1 - k].expertise.names)) for k in (0, 1)]
    data = [
        say("compare_same_data" if same_data else "compare_other_data"),
        *(say("compare_only", run=names[k], count=f"{only[k]:,}") for k in (0, 1) if only[k]),
        *([say("compare_intervals")] if with_interval else []),
    ]
    return Top(verdict, "", advice, data)


def _agreement(changes: Sequence[Change]) -> float:
    """The share of pairs of demonstrators that are in the same order in both runs."""
    rank = np.array([[change.one.rank, change.other.rank] for change in changes][:2000])
    above = [np.sign(rank[:, None, k] - rank[None, :, k]) for k in (0, 1)] if len(rank) else []
    pairs = len(rank) * (len(rank) - 1)
    return float(((above[0] == above[1]).sum() - len(rank)) / pairs) if pairs else 1.0


def _people(changes: Sequence[Change], first: str, second: str) -> Section:
    columns = [
        DEMONSTRATOR,
        Column("change", ("change", "low", "high"), f"{second} minus {first}; 95% interval"),
        Column("ranks", ("rank_first", "rank_second"), f"in {first}, then in {second}"),
        Column(first, ("first", "first_low", "first_high")),
        Column(second, ("second", "second_low", "second_high")),
    ]
    rows: list[list[Cell]] = []
    for change in changes:
        ranks = (change.one.rank, change.other.rank)
        shown_ranks = Cell(f"{ranks[0]:,} \N{RIGHTWARDS ARROW} {ranks[1]:,}", ranks[0], ranks, "n")
        estimates = [rated(*person.estimate) for person in change[:2]]
        rows.append([person_name(change.one.label), rated(*change[2:]), shown_ranks, *estimates])
    shown = sorted(sorted(range(len(changes)), key=lambda k: -abs(changes[k].value))[: 2 * SHOWN])
    ends = [end for k in shown for person in changes[k][:2] for end in person.estimate]
    scale = Scale.of([0.0, 1.0, *ends])
    drawings = []
    for k in shown:
        (value, *bounds), (later, *later_bounds) = (person.estimate for person in changes[k][:2])
        one = interval(scale, value, (bounds[0], bounds[1]), reference=1.0)
        other = interval(scale, later, (later_bounds[0], later_bounds[1]), mark="two")
        drawings.append(f'<svg y="-5" overflow="visible">{one}</svg><svg y="5" overflow="visible">{other}</svg>')
    labels, numbers = zip(*((changes[k].one.label, decimal(changes[k].value)) for k in shown), strict=True)
    marks = [("one", first), ("two-square", second), ("reference", "mean over demonstrators")]
    title = "expertise divided by its mean over demonstrators"
    drawing = Rows("change", "Expertise in two runs", labels, drawings, numbers, axis(scale), title, marks)
    table = Table("people", f"Demonstrators, in the order of {first}", columns, rows, drawing, shown)
    notes = [say("compare_shown", count=2 * SHOWN)] if len(shown) < len(changes) else []
    return Section(
        "people", "Demonstrators in both runs", [say("compare_people", second=second, first=first)], [table], notes
    )


def cost_change(one: Fitted, other: Fitted, data: Demonstrations) -> tuple[float, float, float]:
    """The cost of an action of the data by the second run minus that by the first, with a 95% interval by episodes."""
    more = other.nats(data) - one.nats(data)
    total = np.bincount(data.episode, more, minlength=data.episode_count)
    steps = np.bincount(data.episode, minlength=data.episode_count)
    chance = np.random.default_rng(0)
    drawn = [chance.integers(data.episode_count, size=data.episode_count) for _ in range(_RESAMPLES)]
    low, high = np.quantile([total[each].sum() / steps[each].sum() for each in drawn], tails(0.95))
    return float(more.mean()), float(low), float(high)


def _costs(one: Fitted, other: Fitted, names: tuple[str, str], cost: tuple[float, float, float] | None) -> Section:
    columns = [Column("run"), *(Column(name, (name.replace(" ", "_"),)) for name in _COSTS)]
    rows = []
    for name, fitted in zip(names, (one, other), strict=True):
        costs = fitted.restarts.nats_per_action
        finite = costs[np.isfinite(costs)]
        span = between(float(finite.min()), float(finite.max()), 3)
        outcome = words(fitted.outcome.value.replace("`", ""), wide=True)
        made: dict[str, Any] = fitted.provenance["data"]
        data = [words(f"{made['steps']:,}"), words(f"{made['episodes']:,}")]
        cells = [decimals(fitted.nats_per_action, 3), words(span), words(f"{len(costs):,}"), outcome, *data]
        rows.append([person_name(name), *cells])
    table = Table("costs", "Costs of two runs", columns, rows)
    text = [say("compare_costs")]
    if cost is not None:
        text.append(say("compare_cost_change", first=names[0], second=names[1], found=in_words(*cost, 3)))
    return Section("costs", "Cost of the policies", text, [table])


_COSTS = ("nats per action", "range over restarts", "restarts", "outcome", "steps", "episodes")


def _differences(one: Fitted, other: Fitted, first: str, second: str) -> Section:
    title, rows = "Settings that differ", [[words(each) for each in row] for row in differing_settings(one, other)]
    if not rows:
        return Section("differences", title, [say("compare_no_setting")])
    columns = [Column("setting"), Column(first, ("first",)), Column(second, ("second",))]
    return Section("differences", title, [], [Table("settings", title, columns, rows)])
