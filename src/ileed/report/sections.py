"""Sections of a report: the sentences of text.toml that apply to a fit, and the rows of its charts.

To add a section, write a function that returns one and name it in `Content.of`.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, pairwise, product
from pathlib import Path
from types import ModuleType
from typing import Any, Self, final

import numpy as np

from ileed.errors import SettingsError
from ileed.evaluation import Scores, rank_loss
from ileed.fitted import Fitted
from ileed.fitted.ratings import Ratings
from ileed.report.charts import Figure, Row, bar_chart, heat_map, learning_chart, restart_chart
from ileed.report.people import SHOWN, Person, Shown, labels_of, people_of

_CURVES = 40  # learning curves at most
_RECORDS = 80  # points of a learning curve at most
_DOTS = 150  # restarts shown as dots at most
_SKILLS = 60  # skills side by side at most
_FEW_STEPS = 1000  # steps of a person below which the ranking is called imprecise
_TIED_NATS = 0.01  # restarts this close to the best are said to have found the same optimum

_WHO, _WHERE = "Who follows the learned policy most closely", "Where each person is good"
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_TEXT = tomllib.loads(Path(__file__).with_name("text.toml").read_text(encoding="utf-8"))


@final
@dataclass(frozen=True)
class Section:
    """A heading, paragraphs (empty ones are left out), a chart after the first, and a table of people to unfold."""

    heading: str
    paragraphs: Sequence[str]
    figure: Figure | None = None
    numbers: Shown | None = None


@final
@dataclass(frozen=True)
class Content:
    """The result in one sentence, how to read it, what was done, and the sections."""

    verdict: str
    caution: str
    introduction: str
    sections: Sequence[Section]

    @classmethod
    def of(cls, fitted: Fitted, truth: Mapping[str, float], scores: Mapping[str, Scores]) -> Self:
        """The content for a fit, with the known skill of some demonstrators and the scores of some policies."""
        people = people_of(fitted, truth)
        rewards = [_rewards(scores)] if scores else []
        how = [*rewards, _restarts(fitted), _learning(fitted)]
        if fitted.estimates_expertise:
            who, where = _ranking(fitted, people), _where(fitted, Shown.of([each for each in people if each.is_ranked]))
            sure = [] if fitted.expertise.ratings is None else [_intervals(fitted.expertise.ratings, people)]
            return cls(_verdict(people), _say("caution"), _say("introduction"), [who, *sure, *how, where])
        who, where = Section(_WHO, [_say("cloning_who")]), Section(_WHERE, [_say("cloning_where")])
        verdict = _say("cloning", who=_demonstrators(len(people)))
        return cls(verdict, "", _say("cloning_introduction"), [who, *how, where])


def _verdict(people: Sequence[Person]) -> str:
    """Who differs most from the others, or how expertise decreases from the best to the worst."""
    seen = [person for person in people if person.is_ranked]
    if len(seen) < 2 or seen[0].expertise <= 0:
        return _say("one_person", who=_demonstrators(len(seen)))
    relative = [person.expertise / seen[0].expertise for person in seen]
    if relative[-1] > 0.9:
        return _say("equal", count=_number(len(seen)))
    gaps = [before - after for before, after in pairwise(relative)]
    if max(gaps) < 0.3:
        return _say("gradual", best=seen[0].label, worst=seen[-1].label, percent=relative[-1] * 100)
    above = gaps.index(max(gaps)) + 1
    far = "far " if np.mean(relative[:above]) >= 2 * np.mean(relative[above:]) else ""
    few, others, how = seen[:above], seen[above:], "more"
    if len(few) > len(others):
        few, others, how = others, few, "less"
    *before, last = (person.label for person in few)
    who = f"{', '.join(before)} and {last}" if before else last
    if len(few) > 3:
        who = f"{_number(len(few)).capitalize()} of the {_number(len(seen))} demonstrators"
    follow = "follows" if len(few) == 1 else "follow"
    rest = others[0].label if len(others) == 1 else f"the {_number(len(others))} others"
    return f"{who} {follow} the learned policy {far}{how} closely than {rest}."


def _ranking(fitted: Fitted, people: Sequence[Person]) -> Section:
    shown, parts = Shown.of(people), fitted.joint.parts
    steps = fitted.provenance["data"]["steps"] / len(people)
    unranked = sum(not person.is_ranked for person in people)
    known = {person.label: person.known for person in people if person.known is not None and person.is_ranked}
    pairs = sum(one != other for one, other in combinations(known.values(), 2))
    wrong = rank_loss({p.label: p.expertise for p in people if p.label in known}, known) * pairs if pairs else 0
    text = [
        _say("ranking", zero=parts.demonstrator.at_expertise_zero(fitted.joint.sizes)),
        _say("no_reward"),
        _say("shared_skills") if not parts.expertise.distinguishes_demonstrators else "",
        _say("left_out", shown=SHOWN, others=shown.left_out) if shown.left_out else "",
        _say("few_steps", steps=steps) if steps < _FEW_STEPS else "",
        _say("unranked", who=_demonstrators(unranked).capitalize(), have="has" if unranked == 1 else "have")
        if unranked
        else "",
        _say("known_skill", who=_demonstrators(len(known)), wrong=wrong, pairs=pairs) if pairs else "",
    ]
    rows = []
    for person in (each for each in shown.persons if each.is_ranked):
        skill = "" if person.known is None else f", known skill {person.known:.3f}"
        spread = f"10 to 90 % of steps {person.low:.3f} to {person.high:.3f}"
        tooltip = f"{person.label}: expertise {person.expertise:.3f}, {spread}{skill}"
        rows.append(_bar(person.label, person.expertise, (person.low, person.high), tooltip) | {"known": person.known})
    description = f"Bars of estimated expertise: {people[0].label} is highest, {people[-1].label} is lowest"
    marks = ["estimated expertise", "middle 80 % of their own steps", *(["known skill"] if known else [])]
    draw = partial(bar_chart, rows=rows, names=shown.labels, title="expertise", domain=(0, 1), marks=marks)
    return Section(_WHO, text, Figure("ranking", description, draw), numbers=shown)


def _intervals(ratings: Ratings, people: Sequence[Person]) -> Section:
    shown = Shown.of(people).labels
    ratings = ratings.renamed({ratings.names[person.index]: person.label for person in people})
    rows = []
    for row in ratings.table().to_pylist():
        name, interval = row["demonstrator"], (row["low"], row["high"])
        ranks = f"rank {row['rank_low']} to {row['rank_high']}"
        tooltip = f"{name}: {row['expertise']:.2f} ({interval[0]:.2f} to {interval[1]:.2f}), {ranks}"
        if name in shown:
            rows.append(_bar(name, row["expertise"], interval, tooltip))
    order = ratings.sentence()
    fixed = _as_sentence(ratings.by.identification)
    text = [_say("intervals", folds=ratings.by.folds), _as_sentence(order), fixed, _say("intervals_scale")]
    description = f"Relative expertise with 95 % intervals; {order}"
    domain, marks = (0.0, max(row["high"] for row in rows)), ["relative expertise", "95 % interval"]
    title, names = "expertise divided by its mean over people", [row["name"] for row in rows]
    draw = partial(bar_chart, rows=rows, names=names, title=title, domain=domain, marks=marks)
    return Section("How sure the order is", text, Figure("intervals", description, draw))


def _bar(name: str, value: float, interval: tuple[float, float], tooltip: str) -> Row:
    low, high = interval if all(map(math.isfinite, interval)) else (None, None)
    text = f"{value:,}" if isinstance(value, int) else f"{value:.2f}"
    return {"name": name, "value": value, "low": low, "high": high, "text": text, "tooltip": tooltip}


def _rewards(scores: Mapping[str, Scores]) -> Section:
    rows = []
    for (name, score), label in zip(scores.items(), labels_of(list(scores)), strict=True):
        mean, (low, high) = float(score.mean), score.interval
        if not math.isfinite(mean):
            raise SettingsError(f"the score of {name!r} is {mean}: pass finite scores")
        spread = f"{low:.2f} to {high:.2f}" if math.isfinite(high - low) else "one episode"
        rows.append(_bar(label, mean, (low, high), f"{mean:.2f} ({spread})"))
    means = "Mean rewards: " + "; ".join(f"{row['name']} {row['tooltip']}" for row in rows)
    ends = [0.0, *(row[end] for row in rows for end in ("value", "low", "high") if row[end] is not None)]
    names, marks = [row["name"] for row in rows], ["mean", "95 % confidence interval"]
    title, domain = "mean reward of an episode", (min(ends), max(ends))
    draw = partial(bar_chart, rows=rows, names=names, title=title, domain=domain, marks=marks)
    return Section("Rewards of the policies", [_say("rewards"), f"{means}."], Figure("scores", means, draw))


def _restarts(fitted: Fitted) -> Section:
    heading, costs = "Agreement of the restarts", fitted.restarts.nats_per_action
    if len(costs) == 1:
        return Section(heading, [_say("one_restart", cost=fitted.nats_per_action)])
    order = np.argsort(costs, kind="stable")[: np.isfinite(costs).sum()]  # restarts that were lost have infinite cost
    best, worst, lost = float(costs[order[0]]), float(costs[order[-1]]), len(costs) - len(order)
    close = _number(int((costs[order] - fitted.nats_per_action <= _TIED_NATS).sum())).capitalize()
    data = "data" if fitted.history.held_out is None else "held-out episodes"
    text = [
        _say("restarts", count=_number(len(costs)), data=data),
        _say("restarts_agree", close=close, count=len(order), tied=_TIED_NATS, range=worst - best),
        _say("restarts_lost", lost=_number(lost).capitalize()) if lost else "",
        _say("restarts_shown", shown=_DOTS) if len(order) > _DOTS else "",
    ]
    rows = [
        {
            "rank": rank + 1,
            "cost": float(costs[order[rank]]),
            "kind": "kept" if order[rank] == fitted.restarts.chosen else "other restarts",
            "tooltip": f"restart {order[rank] + 1}: {costs[order[rank]]:.4f} nats per action",
        }
        for rank in _evenly_spaced(len(order), _DOTS)
    ]
    description = f"Cost of each restart, lowest first, from {best:.4f} to {worst:.4f}"
    return Section(heading, text, Figure("restarts", description, partial(restart_chart, rows=rows)))


def _learning(fitted: Fitted) -> Section:
    history, chosen = fitted.history, fitted.restarts.chosen
    others = [member for member in np.argsort(fitted.restarts.nats_per_action, kind="stable") if member != chosen]
    drawn = [others[index] for index in _evenly_spaced(len(others), _CURVES - 1)]
    curves = [("other restarts", member, history.nats_per_action) for member in drawn]
    curves.append(("kept", chosen, history.nats_per_action))
    if history.held_out is not None:
        curves.append(("kept, on held-out episodes", chosen, history.held_out))
    text = [
        _say("learning", outcome=_as_sentence(fitted.outcome.value)),
        _as_sentence(fitted.width_sentence),
        _say("held_out") if history.held_out is not None else "",
        _say("curves_shown", shown=len(drawn), others=len(others)) if len(drawn) < len(others) else "",
    ]
    rows: list[Row] = [
        {"step": int(history.step[k]), "cost": float(costs[k, member]), "curve": f"{kind} {member}", "kind": kind}
        for kind, member, costs in curves
        for k in _evenly_spaced(len(history.step), _RECORDS)
        if np.isfinite(costs[k, member])
    ]
    late = [row["cost"] for row in rows if row["step"] >= history.step[-1] / 20]  # the first may lie above the chart
    domain = (min(late, default=0.0), max(late, default=1.0))  # a kept restart may have diverged after its best step
    description = f"Learning curves; the kept restart ends at {fitted.nats_per_action:.4f} nats per action"
    figure = Figure("learning", description, partial(learning_chart, rows=rows, domain=domain))
    return Section("Learning curves", text, figure)


def _where(fitted: Fitted, people: Shown) -> Section:
    if not fitted.joint.parts.expertise.depends_on_state:
        return Section(_WHERE, [_say("same_everywhere")])
    return _by_skill(fitted, people) if fitted.expertise.skill_names else _by_state(fitted, people)


def _by_skill(fitted: Fitted, people: Shown) -> Section:
    names = fitted.expertise.skill_names
    skills = labels_of(names)[:_SKILLS]
    values = [list(of_person.values()) for of_person in fitted.expertise.by_skill().values()]
    cells = [
        _cell(person, skill, f"{_short(skill)}: expertise {value:.2f}", expertise=value, visited=True)
        for person in people.persons
        for skill, value in zip(skills, values[person.index], strict=False)
    ]
    more = _say("skills_shown", shown=len(skills), count=len(names)) if len(names) > len(skills) else ""
    draw = partial(heat_map, cells=cells, people=people.labels, columns=skills, title="skill", named=True)
    figure = Figure("skills", "Heat map of expertise, demonstrators by skills", draw)
    return Section(_WHERE, [_say("skills"), more], figure)


def _by_state(fitted: Fitted, people: Shown) -> Section:
    expertise, visits = fitted.expertise.summary.states.numpy(), fitted.expertise.summary.visits.numpy()
    in_state = visits.sum(0)
    if in_state.max() < 2:
        return Section(_WHERE, [_say("no_state_twice")])
    share = in_state.sum() / fitted.provenance["data"]["steps"]
    which = "observations in the data" if share == 1 else f"most frequent observations ({share * 100:.0f} % of steps)"
    known = ~np.isnan(expertise)
    steps = (visits * known).sum(0)
    mean = (np.where(known, expertise, 0) * visits).sum(0) / steps.clip(min=1)  # over the steps in that state

    def draw(alt: ModuleType, narrow: bool) -> Any:
        states = np.argsort(-mean[: 24 if narrow else None], kind="stable").tolist()
        cells = []
        for person, state in product(people.persons, states):
            value, count = float(expertise[person.index, state]), visits[person.index, state]
            note = f"state {state + 1}: {value:.2f}, " + (f"steps: {count:,}" if count else "never there")
            cells.append(_cell(person, f"{state + 1}", note, expertise=round(value, 3), visited=bool(count)))
        title = f"the {len(states)} most frequent states, best to worst" if narrow else "states, from best to worst"
        columns = [f"{state + 1}" for state in states]
        return heat_map(alt, narrow, cells=cells, people=people.labels, columns=columns, title=title, named=False)

    text = [_say("states", count=len(in_state), which=which), _say("state_order")]
    return Section(_WHERE, text, Figure("states", "Heat map of expertise, demonstrators by states", draw))


def _cell(person: Person, column: str, note: str, *, expertise: float, visited: bool) -> Row:
    tooltip = f"{_short(person.label)}, {note}"
    return {"name": person.label, "column": column, "expertise": expertise, "visited": visited, "tooltip": tooltip}


def _evenly_spaced(count: int, most: int) -> list[int]:
    """Indices of `count` things, or of at most `most` of them, evenly spaced from the first to the last."""
    indices: list[int] = np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(int)).tolist()
    return indices


def _say(name: str, **values: Any) -> str:
    """The sentence of that name in text.toml, with these values filled in."""
    return str(_TEXT[name]).format(**values)


def _as_sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}." if words else ""


def _number(count: int) -> str:
    """A count for a sentence: in words up to twelve."""
    return _NUMBERS[count] if count < len(_NUMBERS) else f"{count:,}"


def _demonstrators(count: int) -> str:
    return f"{_number(count)} demonstrator{'' if count == 1 else 's'}"


def _short(label: str) -> str:
    """A label that can be repeated in thousands of cells."""
    return label if len(label) <= 24 else f"{label[:23]}…"
