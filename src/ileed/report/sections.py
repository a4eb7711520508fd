"""Sections of a report: the sentences of text.toml that apply to a fit, with its tables and charts.

To add a section, write a function from the `Content` of a report to its sections, none where the content lacks what
they need, and name it in `SECTIONS`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from itertools import combinations, pairwise
from typing import Any, final

import numpy as np

from ileed.data import Demonstrations
from ileed.envs.evaluation import Scores, rank_loss
from ileed.errors import SettingsError, printable
from ileed.methods import Fitted
from ileed.rating.learning_curves import IMPROVES, TIRES, UNDECIDED
from ileed.report.charts import Curve, Scale, bars, dots, interval_rows, lines, strip
from ileed.report.episodes import Episodes
from ileed.report.evidence import Evidence, PeopleByKind
from ileed.report.page import (
    DEMONSTRATOR,
    NOTHING,
    Cell,
    Chart,
    Column,
    Live,
    Page,
    Rows,
    Section,
    Table,
    Top,
    as_sentence,
    decimal,
    decimals,
    demonstrators,
    enumerated,
    escape,
    in_words,
    number,
    person_name,
    rated,
    say,
    say_if,
    short,
    whole,
    words,
)
from ileed.report.people import SHOWN, UNCERTAIN, Person, labels_of, people_of, shown_of
from ileed.selection import ModelComparison

_PEOPLE = 200  # rows of the page at most, of what was learned; the CSV file has every demonstrator
_DRIFTS, _DRIFT_CHARTS = 60, 6  # rows of the table of drift, and curves that are drawn
_BARS = 40  # of a histogram
_MOST_KNOWN = 2_000  # demonstrators of known skill at most, of whom all pairs are compared
_SKILLS = 60  # skills side by side at most
_FEW_STEPS = 400  # steps of a demonstrator below which the ranking is called imprecise
_PAIRS, _PRACTICE, _LOOK, _FINDINGS = 2, 2, 4, 5  # pieces of advice of each kind, and findings, at most
_FEW = 5  # episodes of a demonstrator below which their variation is unknown
_MOST_EPISODES = 500  # of one demonstrator, that are worth asking for
_ABSOLUTE = re.compile(r"""(?<![\w./\\:-])(?:~|[A-Za-z]:)?[\\/](?:[^\s'"\\/]+[\\/])*([^\s'"\\/]*)""")
_CHOSEN = ("restarts", "steps", "learning_rate", "decay", "batch_size", "normalise")  # from the data, where None
_CURVES = 40  # learning curves at most
_RECORDS = 80  # points of a learning curve at most
_DOTS = 150  # restarts shown as dots at most
_TIED_NATS = 0.01  # restarts this close to the best are said to have found the same optimum


@final
@dataclass(frozen=True, eq=False)
class Content:
    """What a report is about: a fit, its demonstrators in order, scores of policies, and the data if given."""

    fitted: Fitted
    people: Sequence[Person]
    scores: Mapping[str, Scores]
    data: Demonstrations | None

    @classmethod
    def of(
        cls,
        fitted: Fitted,
        truth: Mapping[str, float],
        scores: Mapping[str, Scores],
        data: Demonstrations | None = None,
    ) -> Content:
        """The content for a fit, with known skill, scores of policies and the data of the fit, where there are any."""
        return cls(fitted, people_of(fitted, truth, data), scores, data)

    @cached_property
    def shown(self) -> list[Person]:
        """The demonstrators that tables show."""
        return [self.people[place] for place in shown_of(self.people)]

    @cached_property
    def evidence(self) -> Evidence | None:
        """What the data say; None without them, and where expertise is not one number."""
        names = [self.fitted.expertise.names[person.index] for person in self.shown]
        return None if self.data is None else Evidence.of(self.fitted, self.data, names)

    @cached_property
    def kinds(self) -> PeopleByKind | None:
        return None if self.evidence is None else PeopleByKind.of(self.evidence, self.shown)

    @cached_property
    def episodes(self) -> Episodes | None:
        return None if self.evidence is None else Episodes.of(self.evidence, self.people)

    @cached_property
    def sections(self) -> list[Section]:
        return [section for made in SECTIONS for section in made(self)]

    @property
    def verdict(self) -> str:
        if not self.fitted.estimates_expertise:
            return say("cloning", who=demonstrators(len(self.people)))
        return _verdict(self.fitted, self.people)

    @property
    def top(self) -> Top:
        """What stands above the fold."""
        about_data = quality(self.fitted, self.people, self.data)
        if not self.fitted.estimates_expertise:
            return Top(self.verdict, "", [("Fit", say("advice_cloning"))], about_data)
        advice = next_steps(self.fitted, self.people, self.kinds, self.episodes)
        return Top(self.verdict, _sure(self.people), advice, about_data)

    @property
    def figures(self) -> list[Chart | Rows]:
        """The charts that can stand alone."""
        every = (block.figure for section in self.sections for block in section.blocks)
        return [figure for figure in every if figure is not None]

    def page(self, title: str, *, command: str | None = None, live: Live | None = None) -> Page:
        """The page: what to know first, the sections, then the settings and provenance."""
        fitted, data, sizes = self.fitted, self.fitted.provenance["data"], self.fitted.joint.sizes
        introduction = "introduction" if fitted.evidence is None else "introduction_outcomes"
        tiles = {
            "demonstrators": f"{len(fitted.expertise.names):,}",
            "episodes": f"{data['episodes']:,}",
            "steps": f"{data['steps']:,}",
            "nats per action": f"{fitted.nats_per_action:.3f}",
        }
        if sizes.action_count and not sizes.has_legal_actions:
            tiles["nats by guessing"] = f"{math.log(sizes.action_count):.3f}"
        tiles["restarts"] = f"{len(fitted.restarts.nats_per_action):,}"
        return Page(
            title=title,
            top=self.top,
            tiles=list(tiles.items()),
            caution=say("caution") if fitted.estimates_expertise else "",
            introduction=say(introduction if fitted.estimates_expertise else "cloning_introduction"),
            sections=self.sections,
            small_print=settings_of(fitted, command),
            live=live,
        )


def _verdict(fitted: Fitted, people: Sequence[Person]) -> str:
    """The order of demonstrators and its certainty; without intervals, who differs most from the others."""
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


def _sure(people: Sequence[Person]) -> str:
    """The highest and the lowest estimate with their intervals, or that there are none."""
    ranked = [person for person in people if person.rated is not None]
    if not ranked:
        return say("no_intervals")
    best, worst = (f"{short(each.label)} has {in_words(*each.estimate)}" for each in (ranked[0], ranked[-1]))
    return say("sure", best=best, worst=worst) if len(ranked) > 1 else ""


def next_steps(
    fitted: Fitted, people: Sequence[Person], kinds: PeopleByKind | None, episodes: Episodes | None
) -> list[tuple[str, str]]:
    """What to do next: a word for the kind of advice, and a sentence."""
    ratings = fitted.expertise.ratings
    tells_skill = ratings is None or ratings.by.orders_by_skill
    advice = [] if tells_skill else [("Add", say("advice_outcomes"))]
    advice += [("Ask", text) for text in _ask_for_more(fitted, people)]
    if kinds is not None and tells_skill and not (ratings is not None and ratings.not_identified):
        advice += [("Train", text) for text in _train(kinds)]
    if episodes is not None:
        look, drop = episodes.low_for_them, episodes.to_drop
        which = enumerated([episodes.label(each) for each in look or episodes.order[:1]], most=_LOOK)
        low = say("advice_look", which=which, lie="lies" if len(look) == 1 else "lie")
        advice.append(("Look", low if look else say("advice_look_lowest", which=which)))
        if drop and tells_skill:
            count = f"{len(episodes.people):,}"
            advice.append(("Drop", say("advice_drop", drop=f"{len(drop):,}", count=count)))
        else:
            advice.append(("Keep", say("advice_keep" if tells_skill else "advice_keep_unrated")))
    return advice or [("Keep", say("advice_nothing"))]


def _train(kinds: PeopleByKind) -> list[str]:
    """Who is clearly below the top quartile in all state clusters, and in which the others are."""
    gaps, everywhere = kinds.gaps()
    who = enumerated([short(person.label) for person in everywhere])
    told = [say("advice_train_all", who=who)] if everywhere else []
    for gap in gaps[:_PRACTICE]:
        own = in_words(gap.expertise, gap.low, gap.high)
        told.append(say("advice_train", who=short(gap.person.label), kind=gap.kind, own=own, best=decimal(gap.best)))
    return told


def _ask_for_more(fitted: Fitted, people: Sequence[Person]) -> list[str]:
    """Whose further episodes would settle an open question: neighbours in the ranking who cannot be distinguished."""
    ratings = fitted.expertise.ratings
    ranked = [person for person in people if person.rated is not None]
    if ratings is None or len(ranked) < 2:
        return []
    names = fitted.expertise.names
    pairs = [
        (ratings.episodes_to_settle(names[one.index], names[other.index]), one, other)
        for one, other in pairwise(ranked[:50])
    ]
    settled = sorted((pair[1].rank > 3, pair[0], k) for k, pair in enumerate(pairs) if 0 < pair[0] <= _MOST_EPISODES)
    if not settled:
        few = [short(person.label) for person in ranked if (person.episodes or _FEW) < _FEW]
        return [say("advice_ask_few", who=enumerated(few), few=_FEW)] if few else []
    told = []
    for _, more, k in settled[:_PAIRS]:
        one, other = (short(person.label) for person in pairs[k][1:])
        told.append(say("advice_ask", one=one, other=other, more=f"{int(more):,}", s="s" if more > 1 else ""))
    return told


def quality(fitted: Fitted, people: Sequence[Person], data: Demonstrations | None) -> list[str]:
    """Findings about the data: those of `check`, or what the run knows without the data."""
    steps = [person.steps for person in people if person.steps is not None]
    told = []
    if steps:
        span = f"{min(steps):,}" if min(steps) == max(steps) else f"{min(steps):,} to {max(steps):,}"
        told.append(say("quality_steps", span=span))
    unranked = [person.label for person in people if not person.is_ranked]
    if unranked and fitted.estimates_expertise:
        told.append(say("quality_unranked", who=enumerated([short(each) for each in unranked])))
    if data is None:
        return [*told, say("quality_no_data")]
    if data.fingerprint != fitted.provenance["data"].get("fingerprint"):
        told.append(say("quality_other_data"))
    found = _findings(data)
    if not found:
        return [*told, say("quality_good")]
    more = [say("quality_more", count=len(found) - _FINDINGS)] if len(found) > _FINDINGS else []
    return [*told, *found[:_FINDINGS], *more]


def _findings(data: Demonstrations) -> list[str]:
    """What `check` finds; one sentence where it finds the same about several."""
    alike: dict[str, list[tuple[str, str]]] = {}
    for each in data.check():
        fact, colon, why = printable(each.says).partition(": ")
        alike.setdefault(why if colon else fact, []).append((printable(short(each.about, 40)), fact if colon else ""))
    told = []
    for why, found in alike.items():
        if len(found) == 1:
            told.append(f"{found[0][0]}: {': '.join(filter(None, (found[0][1], why)))}.")
        else:
            subjects = [f"{about} ({fact})" if fact else about for about, fact in found]
            told.append(f"{enumerated(subjects, most=3)}: {why}.")
    return told


def ranking(content: Content) -> list[Section]:
    """The ranking, with notes on what it rests on; for behaviour cloning, that there is none."""
    fitted, people = content.fitted, content.people
    who = "Who follows the learned policy most closely"
    if not fitted.estimates_expertise:
        return [Section("ranking", who, [say("cloning_who")])]
    parts, ratings = fitted.joint.parts, fitted.expertise.ratings
    is_rated = any(person.rated is not None for person in people)
    zero = parts.demonstrator.at_expertise_zero(fitted.joint.sizes)
    steps = fitted.provenance["data"]["steps"] / len(people)
    unranked = sum(not person.is_ranked for person in people)
    left, alternatives = len(people) - len(content.shown), len(fitted.restarts.alternatives)
    of_ratings = []
    if is_rated and ratings is not None:
        cross_fitted = say_if(ratings.by.folds, "cross_fitted", folds=ratings.by.folds)
        of_ratings = [say("groups"), cross_fitted, as_sentence(ratings.by.identification)]
    outcomes = fitted.evidence and fitted.evidence.renamed(_short_names(fitted)).sentence()
    notes = [
        *of_ratings,
        as_sentence(outcomes or ""),
        say_if(alternatives, "alternatives", count=number(alternatives)),
        say_if(fitted.evidence is None, "no_reward"),
        say_if(not parts.expertise.distinguishes_demonstrators, "shared_skills"),
        say_if(left, "left_out", first=SHOWN, uncertain=UNCERTAIN, left=f"{left:,}"),
        say_if(steps < _FEW_STEPS, "few_steps", steps=steps),
        say_if(unranked, "unranked", who=demonstrators(unranked).capitalize(), have="has" if unranked == 1 else "have"),
        _known_skill(people),
    ]
    charts = [_histogram(people, is_rated)] if left else []
    text = [say("ranking_rated") if is_rated else say("ranking", zero=zero)]
    return [Section("ranking", who, text, [_ranking_table(people, is_rated), *charts], notes)]


def _histogram(people: Sequence[Person], is_rated: bool) -> Chart:
    """Number of demonstrators by expertise, where the table leaves some out."""
    values = np.array([person.estimate[0] for person in people if person.is_ranked])
    counts, edges = np.histogram(values, bins=_BARS, range=(0.0, max(1.0, float(values.max(initial=1.0)))))
    scale = "expertise divided by its mean over demonstrators" if is_rated else "expertise"
    middle = f"half of {len(values):,} demonstrators are between {decimal(np.quantile(values, 0.25))} and "
    told = f"Number of demonstrators by expertise: {middle}{decimal(np.quantile(values, 0.75))}"
    body = bars(edges.tolist(), counts.tolist(), height=180, across=f"{scale}; height is demonstrators")
    return Chart("people", told, body, 226)


def _known_skill(people: Sequence[Person]) -> str:
    known = {person.label: person.known for person in people if person.known is not None and person.is_ranked}
    if len(known) > _MOST_KNOWN:  # of whom every pair would be compared
        return ""
    pairs = sum(one != other for one, other in combinations(known.values(), 2))
    if not pairs:
        return ""
    values = {p.label: p.estimate[0] for p in people if p.label in known}
    return say("known_skill", who=demonstrators(len(known)), wrong=rank_loss(values, known) * pairs, pairs=pairs)


def _ranking_table(people: Sequence[Person], is_rated: bool) -> Table:
    shown = shown_of(people)
    known = [person.known for person in people if person.known is not None]
    level = float(np.mean(known)) or 1.0 if is_rated and known else 1.0
    marks = [None if (skill := people[place].known) is None else skill / level for place in shown]
    span = "95% interval" if is_rated else "middle 80% of their own steps"
    columns = [
        DEMONSTRATOR,
        Column("expertise", ("expertise", "low", "high"), span),
        *([Column("rank", ("rank_low", "rank_high"), span), Column("group")] if is_rated else []),
        Column("steps"),
        Column("episodes"),
        *([Column("known skill", ("known_skill",))] if known else []),
    ]
    groups = [0 if person.rated is None else person.rated.group for person in people]
    legend = [("one", f"expertise with {span}")]
    legend += [("known", "known skill, divided by its mean")] if known else []
    legend += [("reference", "mean over demonstrators")] if is_rated else []
    estimates = [(people[place].label, people[place].estimate) for place in shown]
    drawing = interval_rows(
        "ranking",
        f"Expertise of demonstrators: {people[0].label} is highest",
        estimates,
        reference=1.0 if is_rated else None,
        known=marks,
        title="expertise divided by its mean over demonstrators" if is_rated else "expertise",
        legend=legend,
    )
    rows = [_ranking_row(person, is_rated, bool(known)) for person in people]
    starts = frozenset(k for k in range(1, len(people)) if groups[k] != groups[k - 1])
    return Table("ranking", "Demonstrators, best first", columns, rows, drawing, shown, starts)


def _ranking_row(person: Person, is_rated: bool, with_known: bool) -> list[Cell]:
    cells = [person_name(person.label), rated(*person.estimate)]
    if is_rated:
        low, high, group = (None, None, None) if person.rated is None else person.rated[3:]
        ranks = NOTHING if low is None else f"{low:,}" if low == high else f"{low:,} to {high:,}"
        cells += [Cell(ranks, math.inf if low is None else low, (low, high), "n"), whole(group)]
    cells += [whole(person.steps), whole(person.episodes)]
    return [*cells, decimals(person.known)] if with_known else cells


def drift(content: Content) -> list[Section]:
    """Who improves and who tires, and how; none where a fit takes expertise to be the same in all episodes."""
    ratings, names = content.fitted.expertise.ratings, content.fitted.expertise.names
    if not content.fitted.estimates_expertise or ratings is None or ratings.curves is None:
        return []
    by_name = {row["demonstrator"]: row for row in ratings.drift(confidence_level=0.95).to_pylist()}
    found = [(person, by_name.get(names[person.index].encode(errors="replace").decode())) for person in content.shown]
    drifts = sorted([(person, row) for person, row in found if row is not None], key=lambda each: -each[1]["change"])
    text, notes = [say("drift"), _drift_verdict(drifts)], [say("drift_rule"), say("drift_order")]
    charts = _drift_charts(drifts, ratings.curve(confidence_level=0.95).to_pylist())
    return [
        Section("drift", "Who improves and who tires", text, [_drift_table(drifts)], notes),
        Section("curves", "Learning curves of demonstrators", [say("drift_curves")], charts, side_by_side=True),
    ]


_Drifts = Sequence[tuple[Person, Mapping[str, Any]]]


def _drift_verdict(found: _Drifts) -> str:
    """Who improves, who tires and for how many no change is clear, in words."""
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


def _drift_table(found: _Drifts) -> Table:
    def of(row: Mapping[str, Any], name: str) -> tuple[float, float, float]:
        return row[name], row[f"{name}_low"], row[f"{name}_high"]

    def column(title: str, name: str) -> Column:
        return Column(title, (name, f"{name}_low", f"{name}_high"), "95% interval")

    rows = [
        [
            person_name(person.label),
            rated(*of(row, "last")),
            words(row["verdict"])._replace(values=(row["verdict"], row["probability_improves"])),
            rated(*of(row, "change")),
            rated(*of(row, "first")),
            whole(row["episodes"]),
        ]
        for person, row in found
    ]
    columns = [
        DEMONSTRATOR,
        column("last episode", "last"),
        Column("verdict", ("verdict", "probability_improves")),
        column("change", "change"),
        column("first episode", "first"),
        Column("episodes"),
    ]
    drawing = interval_rows(
        "drift",
        "Expertise in the first and the last episode",
        [(person.label, of(row, "last")) for person, row in found[:_DRIFTS]],
        before=[row["first"] for _, row in found[:_DRIFTS]],
        reference=1.0,
        title="expertise divided by its mean over demonstrators",
        legend=[
            ("one", "last episode with 95% interval"),
            ("two-square", "first episode"),
            ("reference", "mean over demonstrators"),
        ],
    )
    shown = range(min(len(found), _DRIFTS))
    return Table("drift", "Demonstrators, those who improve most first", columns, rows, drawing, shown)


def _drift_charts(found: _Drifts, points: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """The curves of those who change most surely, improving and tiring in turn, on one scale."""
    sure = sorted(found, key=lambda each: -abs(each[1]["probability_improves"] - 0.5))[:_DRIFT_CHARTS]
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
        change = in_words(row["change"], row["change_low"], row["change_high"])
        told = f"{short(person.label)}: {row['verdict']}; change {change}"
        body = lines(curves, x, y, height=120, across="the demonstrator's own episode")
        charts.append(Chart(f"curve-{person.rank}", told, body, 166))
    return charts


def states(content: Content) -> list[Section]:
    """Who is good where: by state cluster with the data, otherwise by skills or frequent states of the fit."""
    fitted, kinds, heading = content.fitted, content.kinds, "Who is good where"
    if not fitted.estimates_expertise:
        return []
    if kinds is not None:
        column = kinds.evidence.kinds.column
        source = say("kinds_given", column=short(column)) if column else say("kinds_found")
        notes = [say("in_sample"), say_if(kinds.evidence.is_part, "part_of_data")]
        return [
            Section("kinds", heading, [say("kinds_map")], [kinds.people_table()], [say("kinds_names")]),
            Section("weak", "Where all are weak", [source, say("kinds_weak")], [kinds.kinds_table()], notes),
        ]
    missing = say("kinds_no_data" if content.data is None else "kinds_not_rated")
    ranked = [person for person in content.shown if person.is_ranked]
    if not fitted.joint.parts.expertise.depends_on_state:
        return [Section("kinds", heading, [say("same_everywhere"), missing])]
    block = _by_skill(fitted, ranked) if fitted.expertise.skill_names else _by_state(fitted, ranked)
    if block is None:
        return [Section("kinds", heading, [missing])]
    return [
        Section("kinds", heading, [say("skills" if fitted.expertise.skill_names else "states")], [block], [missing])
    ]


def _by_skill(fitted: Fitted, people: Sequence[Person]) -> Table:
    skills = labels_of(fitted.expertise.skill_names)[:_SKILLS]
    values = [list(of_person.values())[: len(skills)] for of_person in fitted.expertise.by_skill().values()]
    top = max((value for row in values for value in row if math.isfinite(value)), default=1.0) or 1.0
    rows = [
        [
            person_name(person.label),
            *(decimals(value)._replace(kind=f"n h{_level(value, top)}") for value in values[person.index]),
        ]
        for person in people
    ]
    columns = [DEMONSTRATOR, *(Column(name) for name in skills)]
    return Table("skills", "Demonstrators by skill, best first", columns, rows, is_map=True)


def _by_state(fitted: Fitted, people: Sequence[Person]) -> Table | None:
    """A strip of the most frequent observations for each demonstrator; None where no observation occurs twice."""
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
    columns = [
        DEMONSTRATOR,
        Column("mean there", ("expertise",)),
        Column("steps there", ("steps",)),
    ]
    labels, numbers = [person.label for person in people], ["" for _ in people]
    marks = [("h8", "expert there"), ("h2", "not expert there")]
    title = f"the {len(order)} most frequent observations, best to worst"
    drawing = Rows(
        "states", "Expertise of demonstrators in frequent states", labels, drawings, numbers, "", title, marks
    )
    return Table("states", "Demonstrators in the most frequent states", columns, rows, drawing)


def _level(value: float, top: float) -> int:
    return min(9, max(0, int(10 * value / top))) if math.isfinite(value) else 0


def episodes(content: Content) -> list[Section]:
    """Episodes to look at, and expertise along some of them."""
    if (found := content.episodes) is None:
        return []
    is_part = say_if(found.evidence.is_part, "part_of_data")
    notes = [say("episodes_rule"), say("episodes_numbered"), say("in_sample"), is_part]
    listed = Section("episodes", "Episodes to look at", [say("episodes")], [found.table()], notes)
    if not (charts := found.along()):
        return [listed]
    text = [say("along"), say_if(found.has_sights, "along_sights")]
    return [listed, Section("along", "Expertise along single episodes", text, charts, side_by_side=True)]


def rewards(content: Content) -> list[Section]:
    """Mean rewards of policies, where they are given."""
    if not content.scores:
        return []
    found = []
    for (name, score), label in zip(content.scores.items(), labels_of(list(content.scores)), strict=True):
        mean = float(score.mean)
        if not math.isfinite(mean):
            raise SettingsError(f"the score of {name!r} is {mean}: pass finite scores")
        found.append((label, (mean, *score.interval)))
    marks = [("one", "mean with 95% interval")]
    drawing = interval_rows(
        "scores", "Mean rewards of policies", found, title="mean reward of an episode", legend=marks
    )
    columns = [Column("policy"), Column("mean reward", ("mean", "low", "high"), "95% interval")]
    rows = [[words(label), rated(*each)] for label, each in found]
    table = Table("rewards", "Rewards of policies", columns, rows, drawing)
    return [Section("rewards", "Rewards of the policies", [say("rewards")], [table])]


def learned(content: Content) -> list[Section]:
    """What the demonstrator model says for itself; none where it learned nothing and was not compared."""
    fitted, ranked = content.fitted, [person for person in content.shown if person.is_ranked]
    if not fitted.estimates_expertise:
        return []
    found = fitted.learned
    text, blocks = list(found.sentences), []
    if fitted.comparison is not None:
        text.insert(0, as_sentence(fitted.comparison.sentence()))
        blocks.append(_models(fitted.comparison))
    if found.columns and ranked:
        columns = [DEMONSTRATOR, *(Column(each.title, (each.name,)) for each in found.columns)]
        rows = [[person_name(person.label)] for person in ranked]
        for row, person in zip(rows, ranked, strict=True):
            own = (each.values[person.index] for each in found.columns)
            row += [words(value) if isinstance(value, str) else decimals(value) for value in own]
        blocks.append(Table("learned", found.caption, columns, rows, shown=range(min(len(rows), _PEOPLE))))
    return [Section("learned", "What the model learned about demonstrators", text, blocks)] if text else []


def _models(found: ModelComparison) -> Table:
    columns = [Column("demonstrator model", ("model",)), Column("nats per held-out action", ("nats_per_action",))]
    columns += [Column("above the preferred", ("more_than_preferred",)), Column("standard error", ("standard_error",))]
    rows = [
        [
            words(f"{row['model']}{' (preferred)' if row['preferred'] else ''}", wide=True),
            *(decimals(row[name], 4) for column in columns[1:] for name in column.names),
        ]
        for row in found.table().to_pylist()
    ]
    return Table("models", "Demonstrator models by held-out episodes, the simplest first", columns, rows)


def health(content: Content) -> list[Section]:
    """How the fit went: how far its restarts agree, and how the cost fell."""
    fitted = content.fitted
    outcome = say("outcome", outcome=as_sentence(fitted.outcome.value), cost=decimal(fitted.nats_per_action, 3))
    (restarts, of_restarts), (learning, of_learning) = _restarts(fitted), _learning(fitted)
    text, notes = [outcome, as_sentence(fitted.width_sentence)], [*of_restarts, *of_learning]
    return [Section("fit", "How the fit went", text, [*restarts, learning], notes, side_by_side=True)]


def _restarts(fitted: Fitted) -> tuple[list[Chart], list[str]]:
    costs = fitted.restarts.nats_per_action
    if len(costs) == 1:
        return [], [say("one_restart", cost=fitted.nats_per_action)]
    order = np.argsort(costs, kind="stable")[: np.isfinite(costs).sum()]  # restarts that were lost have infinite cost
    best, worst, lost = float(costs[order[0]]), float(costs[order[-1]]), len(costs) - len(order)
    close = number(int((costs[order] - fitted.nats_per_action <= _TIED_NATS).sum())).capitalize()
    data = "data" if fitted.history.held_out is None else "held-out episodes"
    text = [
        say("restarts", count=number(len(costs)), data=data),
        say("restarts_agree", close=close, count=len(order), tied=_TIED_NATS, range=worst - best),
        say_if(lost, "restarts_lost", lost=number(lost).capitalize()),
        say_if(len(order) > _DOTS, "restarts_shown", shown=_DOTS),
    ]
    points = [
        (
            float(rank + 1),
            float(costs[order[rank]]),
            "two" if order[rank] == fitted.restarts.chosen else "other",
            f"restart {order[rank] + 1}: {costs[order[rank]]:.4f} nats per action",
        )
        for rank in _evenly_spaced(len(order), _DOTS)
    ]
    x, y = Scale(0.5, len(order) + 0.5), Scale.of([best, worst], zero=False)
    body = dots(points, x, y, height=180, across="restart, best first; height is nats per action")
    told = f"Cost of each restart, lowest first, from {best:.4f} to {worst:.4f} nats per action"
    marks = [("dot-two", "kept"), ("dot-other", "other restarts")]
    return [Chart("restarts", told, body, 226, marks)], text


def _learning(fitted: Fitted) -> tuple[Chart, list[str]]:
    history, chosen = fitted.history, fitted.restarts.chosen
    others = [member for member in np.argsort(fitted.restarts.nats_per_action, kind="stable") if member != chosen]
    drawn = [others[index] for index in _evenly_spaced(len(others), _CURVES - 1)]
    wanted = [("other", member, history.nats_per_action) for member in drawn]
    wanted.append(("two", chosen, history.nats_per_action))
    if history.held_out is not None:
        wanted.append(("dashed", chosen, history.held_out))
    records = _evenly_spaced(len(history.step), _RECORDS)
    step = [float(history.step[k]) for k in records]
    curves = [
        Curve([each for each in zip(step, costs[records, member].tolist(), strict=True) if np.isfinite(each[1])], kind)
        for kind, member, costs in wanted
    ]
    late = [cost for curve in curves for at, cost in curve.points if at >= step[-1] / 20]
    x, y = Scale(step[0], max(step[-1], step[0] + 1)), Scale.of(late, zero=False)
    body = lines(curves, x, y, height=180, across="optimisation step; height is nats per action")
    told = f"Learning curves; the kept restart ends at {fitted.nats_per_action:.4f} nats per action"
    marks = [("two", "kept"), ("dashed", "kept, on held-out episodes"), ("other", "other restarts")]
    kinds = {curve.kind for curve in curves}
    text = [
        say("learning"),
        say_if(history.held_out is not None, "held_out"),
        say_if(len(drawn) < len(others), "curves_shown", shown=len(drawn), others=len(others)),
    ]
    return Chart("learning", told, body, 226, [mark for mark in marks if mark[0] in kinds]), text


def _evenly_spaced(count: int, most: int) -> list[int]:
    """Indices of `count` things, or of at most `most` of them, evenly spaced from the first to the last."""
    return list(np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(int)).tolist())


def settings_of(fitted: Fitted, command: str | None) -> str:
    """The call that makes the method again, and all settings, as HTML; paths are cut to their last part."""
    call = f"{_constructor_call(fitted.method)}.fit(demonstrations, seed={fitted.provenance['seed']})"
    entries = [*([("command", command)] if command else []), ("in Python", call)]
    settings = vars(fitted.method) | vars(fitted.joint.parts)
    lists = {"Settings": _entries(settings), "Provenance": _entries(fitted.provenance)}
    if (table := fitted.policy.encoding) is not None:
        features = [(each.name, _join(each.categories) if each.categories else "number") for each in table.features]
        actions = [(", ".join(table.action), _join(table.labels) or "continuous")]
        lists = {"Actions": actions, "Features": features} | lists
    headed = "".join(
        f"<details><summary>{heading}</summary>{_definitions(each)}</details>\n" for heading, each in lists.items()
    )
    return f"{_definitions(entries, code=True)}\n{headed}"


def _join(values: Sequence[Any], most: int = 40) -> str:
    """Labels or categories, and how many more there are."""
    more = [f"and {len(values) - most:,} more"] if len(values) > most else []
    return ", ".join([*("missing" if value is None else str(value) for value in values[:most]), *more])


def _constructor_call(value: Any) -> str:
    """The Python call that makes these settings; fields with their default values are left out."""
    if not is_dataclass(value):
        return repr(value)
    changed = [item.name for item in fields(value) if getattr(value, item.name) != item.default]
    arguments = ", ".join(f"{name}={_constructor_call(getattr(value, name))}" for name in changed)
    return f"ileed.{type(value).__name__}({arguments})"


def _entries(values: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    """Labels and values in words; the entries of a nested mapping follow its name."""
    entries: list[tuple[str, str]] = []
    for name, value in values.items():
        label = f"{before}{'unique observations' if name == 'places' else name.replace('_', ' ')}"
        if isinstance(value, Mapping):
            entries += _entries(value, f"{label}: ")
            continue
        default = "chosen from the data" if name in _CHOSEN else "none"
        text = f"{value:,}" if type(value) is int and name != "seed" else str(value)
        entries.append((label, default if value is None else text))
    return entries


def _definitions(entries: Sequence[tuple[str, str]], *, code: bool = False) -> str:
    """Entries as a list of definitions; absolute paths are cut to their last part, since they are private."""
    texts = [(escape(name), escape(_ABSOLUTE.sub(r"\1", value))) for name, value in entries]
    cells = (f"<dt>{name}</dt><dd>{f'<code>{value}</code>' if code else value}</dd>" for name, value in texts)
    return f"<dl class=settings>{''.join(cells)}</dl>"


def differing_settings(one: Fitted, other: Fitted) -> list[tuple[str, str, str]]:
    """Settings and provenance of two runs that are not the same: the name, and the value in each."""
    both = [dict(_entries(vars(each.method) | vars(each.joint.parts) | dict(each.provenance))) for each in (one, other)]
    names = dict.fromkeys([*both[0], *both[1]])
    rows = [(name, *(_ABSOLUTE.sub(r"\1", each.get(name, "none")) for each in both)) for name in names]
    return [(name, first, second) for name, first, second in rows if first != second]


SECTIONS: tuple[Callable[[Content], Sequence[Section]], ...] = (
    ranking,
    drift,
    states,
    episodes,
    rewards,
    learned,
    health,
)
"""The sections of a report, in their order."""
