"""Sections of a report: the sentences of text.toml that apply to a fit, with its tables and charts.

To add a section, write a function that returns one and name it in `Content.of`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import final

import numpy as np

from ileed.demonstrations import Demonstrations
from ileed.errors import SettingsError
from ileed.evaluation import Scores, rank_loss
from ileed.fitted import Fitted
from ileed.report.advice import next_steps, quality
from ileed.report.charts import Chart, Rows, Scale, axis, bars, interval, strip
from ileed.report.drift import drift_sections
from ileed.report.episodes import Episodes
from ileed.report.evidence import Evidence
from ileed.report.health import health_sections
from ileed.report.kinds import PeopleByKind
from ileed.report.layout import Section, Top
from ileed.report.people import SHOWN, UNCERTAIN, Person, labels_of, people_of, shown_of
from ileed.report.slips import slip_sections
from ileed.report.tables import Cell, Column, Table, decimals, person_name, rated, whole, words
from ileed.report.text import NOTHING, as_sentence, between, decimal, demonstrators, number, say, short

_BARS = 40  # of a histogram
_MOST_KNOWN = 2_000  # people of known skill, of whom all pairs are compared
_SKILLS = 60  # skills side by side at most
_FEW_STEPS = 400  # steps of a person below which the ranking is called imprecise


@final
@dataclass(frozen=True)
class Content:
    """What is said first, how to read it, and the sections."""

    top: Top
    caution: str
    introduction: str
    sections: Sequence[Section]

    @property
    def verdict(self) -> str:
        return self.top.verdict

    @property
    def figures(self) -> list[Chart | Rows]:
        """The charts that can stand alone."""
        every = (block.figure for section in self.sections for block in section.blocks)
        return [figure for figure in every if figure is not None]

    @classmethod
    def of(
        cls,
        fitted: Fitted,
        truth: Mapping[str, float],
        scores: Mapping[str, Scores],
        data: Demonstrations | None = None,
    ) -> Content:
        """The content for a fit, with known skill, scores of policies and the data of the fit, where there are any."""
        people = people_of(fitted, truth, data)
        rewards = [_rewards(scores)] if scores else []
        if not fitted.estimates_expertise:
            who = Section("ranking", _WHO, [say("cloning_who")])
            advice = [("Fit", say("advice_cloning"))]
            top = Top(say("cloning", who=demonstrators(len(people))), "", advice, quality(fitted, people, data))
            return cls(top, "", say("cloning_introduction"), [who, *rewards, *health_sections(fitted)])
        shown = [people[place] for place in shown_of(people)]
        names = [fitted.expertise.names[person.index] for person in shown]
        evidence = None if data is None else Evidence.of(fitted, data, names)
        kinds = None if evidence is None else PeopleByKind.of(evidence, shown)
        episodes = None if evidence is None else Episodes.of(evidence, people)
        advice = next_steps(fitted, people, kinds, episodes)
        top = Top(_verdict(fitted, people), _sure(fitted, people), advice, quality(fitted, people, data))
        over_time = drift_sections(fitted, shown)
        where = _where(fitted, shown, kinds, data)
        sections = [_ranking(fitted, people), *over_time, *where, *_episodes(episodes), *rewards]
        last = [*slip_sections(fitted, shown), *health_sections(fitted)]
        introduction = say("introduction" if fitted.evidence is None else "introduction_outcomes")
        return cls(top, say("caution"), introduction, [*sections, *last])


_WHO, _WHERE = "Who follows the learned policy most closely", "Who is good where"


def _verdict(fitted: Fitted, people: Sequence[Person]) -> str:
    """In what order people are and how sure that is, or without intervals who differs most from the others."""
    ratings = fitted.expertise.ratings
    if ratings is not None and len(ratings.names) > 1:
        return as_sentence(ratings.renamed(_short_names(fitted)).sentence())
    seen = [person for person in people if person.is_ranked]
    if len(seen) < 2 or seen[0].expertise <= 0:
        return say("one_person", who=demonstrators(len(seen)))
    relative = [person.expertise / seen[0].expertise for person in seen]
    if relative[-1] > 0.9:
        return say("equal", count=number(len(seen)))
    gaps = [before - after for before, after in pairwise(relative)]
    if max(gaps) < 0.3:
        return say("gradual", best=seen[0].label, worst=seen[-1].label, percent=relative[-1] * 100)
    above = gaps.index(max(gaps)) + 1
    far = "far " if np.mean(relative[:above]) >= 2 * np.mean(relative[above:]) else ""
    few, others, how = seen[:above], seen[above:], "more"
    if len(few) > len(others):
        few, others, how = others, few, "less"
    *before, last = (person.label for person in few)
    who = f"{', '.join(before)} and {last}" if before else last
    if len(few) > 3:
        who = f"{number(len(few)).capitalize()} of the {number(len(seen))} demonstrators"
    follow = "follows" if len(few) == 1 else "follow"
    rest = others[0].label if len(others) == 1 else f"the {number(len(others))} others"
    return f"{who} {follow} the learned policy {far}{how} closely than {rest}."


def _short_names(fitted: Fitted) -> dict[str, str]:
    """The short label of each demonstrator, by name."""
    names = fitted.expertise.names
    return dict(zip(names, map(short, labels_of(names)), strict=True))


def _evidence(fitted: Fitted) -> str:
    """What actions and outcomes say, each alone; empty without outcomes."""
    return "" if fitted.evidence is None else as_sentence(fitted.evidence.renamed(_short_names(fitted)).sentence())


def _sure(fitted: Fitted, people: Sequence[Person]) -> str:
    """The highest and the lowest estimate with their intervals, or that there are none."""
    ranked = [person for person in people if person.rated is not None]
    if not ranked:
        return say("no_intervals")
    ends = []
    for person in (ranked[0], ranked[-1])[: len(ranked)]:
        assert person.rated is not None
        found = f"{decimal(person.rated.expertise)} ({between(person.rated.low, person.rated.high)})"
        ends.append(f"{short(person.label)} has {found}")
    return say("sure", best=ends[0], worst=ends[-1]) if len(ends) > 1 else ""


def _ranking(fitted: Fitted, people: Sequence[Person]) -> Section:
    parts, ratings = fitted.joint.parts, fitted.expertise.ratings
    is_rated = any(person.rated is not None for person in people)
    zero = parts.demonstrator.at_expertise_zero(fitted.joint.sizes)
    first = say("ranking_rated") if is_rated else say("ranking", zero=zero)
    steps = fitted.provenance["data"]["steps"] / len(people)
    unranked = sum(not person.is_ranked for person in people)
    left = len(people) - len(shown_of(people))
    shown = {"first": SHOWN, "uncertain": UNCERTAIN, "left": f"{left:,}"}
    have = "has" if unranked == 1 else "have"
    notes = [
        say("groups") if is_rated else "",
        say("cross_fitted", folds=ratings.by.folds) if is_rated and ratings is not None and ratings.by.folds else "",
        as_sentence(ratings.by.identification) if is_rated and ratings is not None else "",
        _evidence(fitted),
        say("alternatives", count=number(len(fitted.restarts.alternatives))) if fitted.restarts.alternatives else "",
        say("no_reward") if fitted.evidence is None else "",
        say("shared_skills") if not parts.expertise.distinguishes_demonstrators else "",
        say("left_out", **shown) if left else "",
        say("few_steps", steps=steps) if steps < _FEW_STEPS else "",
        say("unranked", who=demonstrators(unranked).capitalize(), have=have) if unranked else "",
        _known_skill(people),
    ]
    charts = [_histogram(people, is_rated)] if left else []
    return Section("ranking", _WHO, [first], [_ranking_table(people, is_rated), *charts], notes)


def _histogram(people: Sequence[Person], is_rated: bool) -> Chart:
    """How many people have which expertise, where the table leaves some out."""
    values = np.array([_estimate(person)[0] for person in people if person.is_ranked])
    counts, edges = np.histogram(values, bins=_BARS, range=(0.0, max(1.0, float(values.max(initial=1.0)))))
    scale = "expertise divided by its mean over people" if is_rated else "expertise"
    middle = f"half of {len(values):,} people lie between {decimal(np.quantile(values, 0.25))} and "
    told = f"How many people have which expertise: {middle}{decimal(np.quantile(values, 0.75))}"
    body = bars(edges.tolist(), counts.tolist(), height=180, across=f"{scale}; height is people")
    return Chart("people", told, body, 226)


def _known_skill(people: Sequence[Person]) -> str:
    known = {person.label: person.known for person in people if person.known is not None and person.is_ranked}
    if len(known) > _MOST_KNOWN:  # of whom every pair would be compared
        return ""
    pairs = sum(one != other for one, other in combinations(known.values(), 2))
    if not pairs:
        return ""
    values = {p.label: p.expertise if p.rated is None else p.rated.expertise for p in people if p.label in known}
    return say("known_skill", who=demonstrators(len(known)), wrong=rank_loss(values, known) * pairs, pairs=pairs)


def _ranking_table(people: Sequence[Person], is_rated: bool) -> Table:
    shown = shown_of(people)
    known = [person.known for person in people if person.known is not None]
    level = float(np.mean(known)) or 1.0 if is_rated and known else 1.0
    values = [_estimate(person) for person in people]
    marks = [None if person.known is None else person.known / level for person in people]
    scale = Scale.of([0.0, 1.0, *(end for place in shown for end in (*values[place], marks[place]))])
    drawings = [
        interval(scale, values[k][0], values[k][1:], known=marks[k], reference=1.0 if is_rated else None) for k in shown
    ]
    span = "95 % interval" if is_rated else "middle 80 % of their own steps"
    columns = [
        Column("person", ("person",)),
        Column("expertise", ("expertise", "low", "high"), span),
        *([Column("rank", ("rank_low", "rank_high"), span), Column("group", ("group",))] if is_rated else []),
        Column("steps", ("steps",)),
        Column("episodes", ("episodes",)),
        *([Column("known skill", ("known_skill",))] if known else []),
    ]
    rows = [_ranking_row(person, is_rated, bool(known)) for person in people]
    groups = [0 if person.rated is None else person.rated.group for person in people]
    starts = frozenset(k for k in range(1, len(people)) if groups[k] != groups[k - 1])
    legend = [("one", f"expertise with {span}")]
    legend += [("known", "known skill, divided by its mean")] if known else []
    legend += [("reference", "mean over people")] if is_rated else []
    title = "expertise divided by its mean over people" if is_rated else "expertise"
    labels, numbers = [people[k].label for k in shown], [decimal(values[k][0]) for k in shown]
    told = f"Expertise of people: {people[0].label} is highest"
    drawing = Rows("ranking", told, labels, drawings, numbers, axis(scale), title, legend)
    return Table("ranking", "People, best first", columns, rows, drawing, shown, starts)


def _estimate(person: Person) -> tuple[float, float, float]:
    if person.rated is None:
        return person.expertise, person.low, person.high
    return person.rated.expertise, person.rated.low, person.rated.high


def _ranking_row(person: Person, is_rated: bool, with_known: bool) -> list[Cell]:
    cells = [person_name(person.label), rated(*_estimate(person))]
    if is_rated:
        low, high, group = (None, None, None) if person.rated is None else person.rated[3:]
        ranks = NOTHING if low is None else f"{low:,}" if low == high else f"{low:,} to {high:,}"
        cells += [Cell(ranks, math.inf if low is None else low, (low, high), "n"), whole(group)]
    cells += [whole(person.steps), whole(person.episodes)]
    return [*cells, decimals(person.known)] if with_known else cells


def _where(
    fitted: Fitted, people: Sequence[Person], kinds: PeopleByKind | None, data: Demonstrations | None
) -> list[Section]:
    if kinds is not None:
        source = (
            say("kinds_given", column=short(kinds.evidence.kinds.column or "")) if kinds.evidence.kinds.column else ""
        )
        text = [source or say("kinds_found"), say("kinds_map")]
        notes = [say("in_sample"), say("part_of_data") if kinds.evidence.is_part else ""]
        weak = Section("weak", "Where everybody is weak", [text[0], say("kinds_weak")], [kinds.kinds_table()], notes)
        return [Section("kinds", _WHERE, text[1:], [kinds.people_table()], [say("kinds_names")]), weak]
    missing = [say("kinds_no_data" if data is None else "kinds_not_rated")]
    ranked = [person for person in people if person.is_ranked]
    if not fitted.joint.parts.expertise.depends_on_state:
        return [Section("kinds", _WHERE, [say("same_everywhere"), *missing])]
    block = _by_skill(fitted, ranked) if fitted.expertise.skill_names else _by_state(fitted, ranked)
    if block is None:
        return [Section("kinds", _WHERE, missing)]
    text = [say("skills") if fitted.expertise.skill_names else say("states")]
    return [Section("kinds", _WHERE, text, [block], missing)]


def _by_skill(fitted: Fitted, people: Sequence[Person]) -> Table:
    skills = labels_of(fitted.expertise.skill_names)[:_SKILLS]
    values = [list(of_person.values()) for of_person in fitted.expertise.by_skill().values()]
    top = max((value for row in values for value in row if math.isfinite(value)), default=1.0) or 1.0
    rows = []
    for person in people:
        found = values[person.index][: len(skills)]
        rows.append([person_name(person.label), *(rated(each, None, None, heat=_level(each, top)) for each in found)])
    rows = [[cell._replace(values=cell.values[:1]) for cell in row] for row in rows]
    columns = [Column(name, (name,)) for name in ("person", *skills)]
    return Table("skills", "People by skill, best first", columns, rows, is_map=True)


def _by_state(fitted: Fitted, people: Sequence[Person]) -> Table | None:
    """A strip of the most frequent observations for each person; None where no observation occurs twice."""
    expertise, visits = fitted.expertise.summary.states.numpy(), fitted.expertise.summary.visits.numpy()
    if visits.sum(0).max() < 2 or not people:
        return None
    known = ~np.isnan(expertise)
    mean = (np.where(known, expertise, 0) * visits).sum(0) / (visits * known).sum(0).clip(min=1)
    order = np.argsort(-mean, kind="stable").tolist()
    top = float(np.nanmax(expertise)) or 1.0
    drawings, rows = [], []
    for person in people:
        value, count = expertise[person.index], visits[person.index]
        cells = [
            (
                _level(float(value[k]), top),
                bool(count[k]),
                f"state {k + 1}: {value[k]:.2f}, {f'steps: {count[k]:,}' if count[k] else 'never there'}",
            )
            for k in order
        ]
        drawings.append(strip(cells))
        mine = float(np.average(value, weights=count)) if count.sum() else float("nan")
        rows.append([person_name(person.label), decimals(mine), whole(int(count.sum()))])
    columns = [Column("person", ("person",)), Column("mean there", ("expertise",)), Column("steps there", ("steps",))]
    labels, numbers = [person.label for person in people], ["" for _ in people]
    marks = [("h8", "expert there"), ("h2", "not expert there")]
    title = f"the {len(order)} most frequent observations, best to worst"
    drawing = Rows("states", "Expertise of people in frequent states", labels, drawings, numbers, "", title, marks)
    return Table("states", "People in the most frequent states", columns, rows, drawing)


def _level(value: float, top: float) -> int:
    return min(9, max(0, int(10 * value / top))) if math.isfinite(value) else 0


def _episodes(episodes: Episodes | None) -> list[Section]:
    if episodes is None:
        return []
    text = [say("episodes")]
    notes = [say("episodes_rule"), say("episodes_numbered"), say("in_sample")]
    notes.append(say("part_of_data") if episodes.evidence.is_part else "")
    charts = episodes.along()
    listed = Section("episodes", "Episodes to look at", text, [episodes.table()], notes)
    if not charts:
        return [listed]
    text = [say("along"), say("along_sights") if episodes.has_sights else ""]
    return [listed, Section("along", "Expertise along single episodes", text, charts, side_by_side=True)]


def _rewards(scores: Mapping[str, Scores]) -> Section:
    names, rows, values = labels_of(list(scores)), [], []
    for (name, score), label in zip(scores.items(), names, strict=True):
        mean, (low, high) = float(score.mean), score.interval
        if not math.isfinite(mean):
            raise SettingsError(f"the score of {name!r} is {mean}: pass finite scores")
        values.append((mean, low, high))
        rows.append([words(label), rated(mean, low, high)])
    scale = Scale.of([0.0, *(end for each in values for end in each)])
    drawings = [interval(scale, mean, (low, high)) for mean, low, high in values]
    numbers, marks = [decimal(mean) for mean, _, _ in values], [("one", "mean with 95 % interval")]
    title = "mean reward of an episode"
    drawing = Rows("scores", "Mean rewards of policies", names, drawings, numbers, axis(scale), title, marks)
    columns = [Column("policy", ("policy",)), Column("mean reward", ("mean", "low", "high"), "95 % interval")]
    table = Table("rewards", "Rewards of policies", columns, rows, drawing)
    return Section("rewards", "Rewards of the policies", [say("rewards")], [table])
