"""Comparison of two runs: both rankings side by side, changes of expertise, and costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ileed.data import Array, Demonstrations, rules
from ileed.errors import counted
from ileed.methods import Fitted
from ileed.rating.posterior import draws, tails
from ileed.report.charts import interval_rows
from ileed.report.evidence import SHOWN, Demonstrator, Interval, demonstrators_of, labels_of
from ileed.report.page import (
    Cell,
    Column,
    Page,
    Section,
    Table,
    Top,
    between,
    decimal,
    decimals,
    enumerated,
    escape,
    estimate_column,
    in_words,
    name_cell,
    say,
    say_if,
    short,
    whole,
    words,
)
from ileed.report.sections import SCALE, differing_settings, settings_of

_RESAMPLES = 2_000  # of episodes, for the interval of a difference of costs
_COMPARED = 2_000  # demonstrators, of whom all pairs are compared


class Change(NamedTuple):
    """A demonstrator in both runs, and the relative expertise in the second run minus that in the first."""

    one: Demonstrator
    other: Demonstrator
    estimate: Interval

    @property
    def is_clear(self) -> bool:
        _, low, high = self.estimate
        return low > 0 or high < 0


def comparison_page(
    one: Fitted, other: Fitted, names: tuple[str, str], *, title: str | None = None, data: Demonstrations | None = None
) -> Page:
    """The page about two runs; with `data` of both, their costs are compared episode by episode."""
    first, second = (short(name, 40) for name in labels_of(names))
    changes = changes_of(one, other)
    shared = [_demonstrators(changes, first, second)] if changes else []
    cost = None if data is None else cost_change(one, other, data)
    runs = {first: one, second: other}
    tiles = [("demonstrators in both", f"{len(changes):,}")]
    tiles += [(f"nats per action, {name}", f"{fitted.nats_per_action:.3f}") for name, fitted in runs.items()]
    both = "".join(
        f"<details><summary>{escape(name)}</summary>{settings_of(fitted, None)}</details>"
        for name, fitted in runs.items()
    )
    return Page(
        title or f"Comparison of two runs: {first} and {second}",
        _top(one, other, changes, first, second),
        tiles,
        " ".join([say("compare_introduction", first=first, second=second), say("caution")]),
        [*shared, _costs(runs, cost), _differences(one, other, first, second)],
        both,
    )


def changes_of(one: Fitted, other: Fitted) -> list[Change]:
    """Demonstrators in both runs, in the order of the first; the ends of intervals are NaN if a run has none."""
    ours, theirs = (
        {fitted.expertise.names[each.index]: each for each in demonstrators_of(fitted, {}) if each.is_ranked}
        for fitted in (one, other)
    )
    shared = [name for name in ours if name in theirs]
    before, after = (_draws(fitted, shared) for fitted in (one, other))
    found = []
    for place, name in enumerate(shared):
        estimate = (theirs[name].own - ours[name].own, math.nan, math.nan)
        if before is not None and after is not None:
            shuffled = np.random.default_rng(place).permutation(len(after))  # makes the draws of the runs independent
            difference = after[shuffled, place] - before[:, place]
            low, high = np.quantile(difference, tails(0.95))
            estimate = float(difference.mean()), float(low), float(high)
        found.append(Change(ours[name], theirs[name], estimate))
    return found


def _draws(fitted: Fitted, names: Sequence[str]) -> Array | None:
    """(draw, demonstrator) relative expertise; None without ratings of all, and for very many demonstrators."""
    ratings = fitted.expertise.ratings
    if ratings is None or ratings.shares is None or not set(names) <= set(ratings.names):
        return None
    if len(ratings.names) > rules.MANY_DEMONSTRATORS:  # thousands of draws of each would not fit in memory
        return None
    place = {name: k for k, name in enumerate(ratings.names)}
    found = draws(ratings.shares)
    relative = found / found.mean(1, keepdims=True)
    return np.asarray(relative[:, [place[name] for name in names]])


def _top(one: Fitted, other: Fitted, changes: Sequence[Change], first: str, second: str) -> Top:
    have_intervals = any(not math.isnan(change.estimate[1]) for change in changes)
    clear = sorted((change for change in changes if change.is_clear), key=lambda change: -change.estimate[0])
    if len(changes) < 2:
        verdict = say("compare_none", count=len(changes))
    else:
        name = "compare_order_alone"
        if have_intervals:
            name = "compare_order" if clear else "compare_order_alike"
        verdict = say(name, percent=100 * _agreement(changes), count=len(clear), all=len(changes))
    up = [change.one.name for change in clear if change.estimate[0] > 0]
    down = [change.one.name for change in reversed(clear) if change.estimate[0] < 0]
    same_data = one.provenance["data"].get("fingerprint") == other.provenance["data"].get("fingerprint")
    cheaper = first if one.nats_per_action <= other.nats_per_action else second
    gap = decimal(abs(one.nats_per_action - other.nats_per_action), 3)
    advice = [
        ("Up", say_if(up, "compare_up", who=enumerated(up), second=second)),
        ("Down", say_if(down, "compare_down", who=enumerated(down), second=second)),
        ("Same", say_if(have_intervals and not clear, "compare_same")),
        ("Cost", say("compare_cost" if same_data else "compare_cost_other", cheaper=cheaper, gap=gap)),
    ]
    ours, theirs = set(one.expertise.names), set(other.expertise.names)
    data = [say("compare_same_data" if same_data else "compare_other_data")]
    for run, only in ((first, len(ours - theirs)), (second, len(theirs - ours))):
        data.append(say_if(only, "compare_only", run=run, who=counted(only, "demonstrator")))
    data.append(say_if(have_intervals, "compare_intervals"))
    return Top(verdict, "", [each for each in advice if each[1]], list(filter(None, data)), "What changed")


def _agreement(changes: Sequence[Change]) -> float:
    """The share of pairs of demonstrators that are in the same order in both runs."""
    rank = np.array([change.other.rank for change in changes[:_COMPARED]])  # in the order of the first run
    return float((rank[:, None] < rank)[np.triu_indices(len(rank), 1)].mean())


def _demonstrators(changes: Sequence[Change], first: str, second: str) -> Section:
    def ranks(change: Change) -> Cell:
        found = change.one.rank, change.other.rank
        return Cell(f"{found[0]:,} \N{RIGHTWARDS ARROW} {found[1]:,}", found[0], found, "n")

    def estimate(title: str, run: int, name: str) -> Column:
        return estimate_column(title, lambda change: change[run].estimate, name, about="95% interval")

    columns = [
        Column("demonstrator", lambda change: name_cell(change.one.label)),
        estimate_column("change", lambda change: change.estimate, about=f"{second} minus {first}; 95% interval"),
        Column("ranks", ranks, ("rank_first", "rank_second"), f"in {first}, then in {second}"),
        estimate(first, 0, "first"),
        estimate(second, 1, "second"),
    ]
    largest = sorted(range(len(changes)), key=lambda k: -abs(changes[k].estimate[0]))
    shown = sorted(largest[: 2 * SHOWN])
    drawing = interval_rows(
        "change",
        "Expertise in two runs",
        [(changes[k].one.label, changes[k].one.estimate) for k in shown],
        second=[changes[k].other.estimate for k in shown],
        reference=1.0,
        title=SCALE,
        legend=[("one", first), ("two-square", second), ("reference", "mean over demonstrators")],
    )
    table = Table("demonstrators", f"Demonstrators, in the order of {first}", columns, changes, drawing, shown)
    text = say("compare_demonstrators", second=second, first=first)
    notes = [say_if(len(shown) < len(changes), "compare_shown", count=len(shown))]
    return Section("demonstrators", "Demonstrators in both runs", [text], [table], notes)


def cost_change(one: Fitted, other: Fitted, data: Demonstrations) -> Interval:
    """The cost of an action of the data by the second run minus that by the first, with a 95% interval by episodes."""
    more = other.nats(data) - one.nats(data)
    total = np.bincount(data.episode, more, minlength=data.episode_count)
    steps = np.bincount(data.episode, minlength=data.episode_count)
    chance = np.random.default_rng(0)
    drawn = [chance.integers(data.episode_count, size=data.episode_count) for _ in range(_RESAMPLES)]
    low, high = np.quantile([total[each].sum() / steps[each].sum() for each in drawn], tails(0.95))
    return float(more.mean()), float(low), float(high)


def _costs(runs: dict[str, Fitted], cost: Interval | None) -> Section:
    def span(run: str) -> Cell:
        costs = runs[run].restarts.nats_per_action
        finite = costs[np.isfinite(costs)]
        return words(between(float(finite.min()), float(finite.max()), 3))

    columns = [
        Column("run", name_cell),
        Column("nats per action", lambda run: decimals(runs[run].nats_per_action, 3), ("nats_per_action",)),
        Column("range over restarts", span, ("range_over_restarts",)),
        Column("restarts", lambda run: whole(len(runs[run].restarts.nats_per_action))),
        Column("outcome", lambda run: words(runs[run].outcome.value.replace("`", ""), wide=True)),
        Column("steps", lambda run: whole(runs[run].provenance["data"]["steps"])),
        Column("episodes", lambda run: whole(runs[run].provenance["data"]["episodes"])),
    ]
    text = [say("compare_costs")]
    if cost is not None:
        first, second = runs
        text.append(say("compare_cost_change", first=first, second=second, found=in_words(cost, 3)))
    return Section("costs", "Cost of the policies", text, [Table("costs", "Costs of two runs", columns, list(runs))])


def _differences(one: Fitted, other: Fitted, first: str, second: str) -> Section:
    title, rows = "Settings that differ", differing_settings(one, other)
    if not rows:
        return Section("differences", title, [say("compare_no_setting")])
    named = (("setting", "setting"), (first, "first"), (second, "second"))

    def column(place: int) -> Column:
        title, name = named[place]
        return Column(title, lambda row: words(row[place]), (name,))

    return Section("differences", title, [], [Table("settings", title, [column(place) for place in range(3)], rows)])
