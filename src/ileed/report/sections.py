"""Sections of a report: functions from its `Content` to headings, sentences of text.toml, tables and charts.

To add a section, write such a function, which returns an empty list if the content lacks what the section needs, and
add it to `SECTIONS`.
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
from ileed.errors import SettingsError, counted, printable
from ileed.methods import Fitted
from ileed.report.charts import Curve, Scale, band, bars, interval_rows, lines, path
from ileed.report.evidence import (
    ENOUGH_STEPS,
    HALF,
    SHOWN,
    UNCERTAIN,
    ByCluster,
    Demonstrator,
    Episodes,
    Evidence,
    Interval,
    Segment,
    are_images,
    demonstrators_of,
    estimate_of,
    labels_of,
    png,
    shown_of,
    worst_segment,
)
from ileed.report.page import (
    NOTHING,
    Block,
    Cell,
    Chart,
    Column,
    Frames,
    Live,
    Page,
    Section,
    Table,
    Top,
    as_sentence,
    decimal,
    decimals,
    enumerated,
    escape,
    estimate_column,
    in_words,
    name_cell,
    rated,
    say,
    say_if,
    short,
    whole,
    words,
)

SCALE = "expertise divided by its mean over demonstrators"
DEMONSTRATOR = Column("demonstrator", lambda each: name_cell(each.label))
_LEARNED = 200  # the largest number of rows of learned parameters in the page
_DRIFTS, _DRIFT_CHARTS = 60, 6  # the largest numbers of rows of the table of drift, and of its curves
_BARS = 40  # of a histogram
_MOST_KNOWN = 2_000  # demonstrators of known skill, of whom all pairs are compared
_SKILLS = 60  # the largest number of skills side by side
_FEW_STEPS = 400  # steps of a demonstrator below which the ranking is called imprecise
_PAIRS, _PRACTICE, _LOOK, _FINDINGS = 2, 2, 4, 5  # the largest numbers of pieces of advice of each kind, and findings
_FEW = 5  # episodes of a demonstrator below which their variation is unknown
_MOST_EPISODES = 500  # of one demonstrator, that are worth asking for
_LISTED = 20  # episodes in the page
_CLOUD = 400  # states behind a path
_FRAMES = 4  # of an episode
_CURVES, _RECORDS = 40, 80  # the largest numbers of learning curves and of points of each
_TIED_NATS = 0.01  # restarts this close to the best are said to have found the same optimum
_ABSOLUTE = re.compile(r"""(?<![\w./\\:-])(?:~|[A-Za-z]:)?[\\/](?:[^\s'"\\/]+[\\/])*([^\s'"\\/]*)""")
_CHOSEN = ("restarts", "steps", "learning_rate", "decay", "batch_size", "normalise")  # None: chosen from the data


@final
@dataclass(frozen=True, eq=False)
class Content:
    """What a report is about: a fit, the known skill of demonstrators, scores of policies, and the data if given."""

    fitted: Fitted
    truth: Mapping[str, float]
    scores: Mapping[str, Scores]
    data: Demonstrations | None = None

    @cached_property
    def demonstrators(self) -> list[Demonstrator]:
        """All demonstrators, best first."""
        return demonstrators_of(self.fitted, self.truth, self.data)

    @cached_property
    def shown(self) -> list[Demonstrator]:
        """The demonstrators in the tables of the page."""
        return [self.demonstrators[place] for place in shown_of(self.demonstrators)]

    @cached_property
    def short_names(self) -> dict[str, str]:
        """The short label of each demonstrator, by name."""
        return {self.fitted.expertise.names[each.index]: each.name for each in self.demonstrators}

    @cached_property
    def evidence(self) -> Evidence | None:
        """The evidence of the data; None without them, and if expertise is not one number."""
        names = [self.fitted.expertise.names[each.index] for each in self.shown]
        return None if self.data is None else Evidence.of(self.fitted, self.data, names)

    @cached_property
    def by_cluster(self) -> ByCluster | None:
        return None if self.evidence is None else ByCluster.of(self.evidence, self.shown)

    @cached_property
    def episodes(self) -> Episodes | None:
        return None if self.evidence is None else Episodes.of(self.evidence, self.demonstrators)

    @cached_property
    def sections(self) -> list[Section]:
        makers = SECTIONS if self.fitted.estimates_expertise else (cloning, rewards, health)
        return [section for maker in makers for section in maker(self)]

    @property
    def verdict(self) -> str:
        """The order of demonstrators and its certainty; without ratings, who follows the policy most and least."""
        if not self.fitted.estimates_expertise:
            return say("cloning", who=counted(len(self.demonstrators), "demonstrator"))
        ratings = self.fitted.expertise.ratings
        if ratings is not None and len(ratings.names) > 1:
            return self.sentence(ratings.renamed(self.short_names).sentence())
        ranked = [each for each in self.demonstrators if each.is_ranked]
        if len(ranked) < 2 or ranked[0].own <= 0:
            return say("one_demonstrator", who=counted(len(ranked), "demonstrator"))
        ratio = ranked[-1].own / ranked[0].own
        best, worst = ranked[0].name, ranked[-1].name
        return say(
            "equal" if ratio > 0.9 else "unequal", count=len(ranked), best=best, worst=worst, percent=100 * ratio
        )

    def sentence(self, text: str) -> str:
        """Words about demonstrators as a sentence, which may begin with a name."""
        return as_sentence(text, names=self.short_names.values())

    @property
    def top(self) -> Top:
        """The top of the page."""
        findings = quality(self.fitted, self.demonstrators, self.data)
        if not self.fitted.estimates_expertise:
            return Top(self.verdict, "", [("Fit", say("advice_cloning"))], findings)
        advice = next_steps(self.fitted, self.demonstrators, self.by_cluster, self.episodes)
        return Top(self.verdict, _certainty(self.demonstrators), advice, findings)

    @property
    def figures(self) -> list[Chart]:
        """The charts that can be written to files."""
        every = (block.figure for section in self.sections for block in section.blocks)
        return [figure for figure in every if figure is not None]

    def page(self, title: str, *, command: str | None = None, live: Live | None = None) -> Page:
        """The page: the top, the sections, then settings and provenance."""
        fitted, data, sizes = self.fitted, self.fitted.provenance["data"], self.fitted.joint.sizes
        tiles = {
            "demonstrators": f"{len(fitted.expertise.names):,}",
            "episodes": f"{data['episodes']:,}",
            "steps": f"{data['steps']:,}",
            "nats per action": f"{fitted.nats_per_action:.3f}",
        }
        if sizes.action_count and not sizes.has_legal_actions:
            tiles["nats by guessing"] = f"{math.log(sizes.action_count):.3f}"
        tiles["restarts"] = f"{len(fitted.restarts.nats_per_action):,}"
        introduction = say("cloning_introduction")
        if fitted.estimates_expertise:
            introduction = say("introduction" if fitted.evidence is None else "introduction_outcomes")
            introduction += " " + say("caution")
        small_print = settings_of(fitted, command)
        return Page(title, self.top, list(tiles.items()), introduction, self.sections, small_print, live)


def _certainty(demonstrators: Sequence[Demonstrator]) -> str:
    """The highest and the lowest estimate with their intervals, or that there are none."""
    found = [each for each in demonstrators if each.is_rated]
    if not found:
        return say("no_intervals")
    best, worst = (f"{each.name} has {in_words(each.estimate)}" for each in (found[0], found[-1]))
    return say_if(len(found) > 1, "certainty", best=best, worst=worst)


def next_steps(
    fitted: Fitted, demonstrators: Sequence[Demonstrator], by_cluster: ByCluster | None, episodes: Episodes | None
) -> list[tuple[str, str]]:
    """Advice: a verb and a sentence each."""
    ratings = fitted.expertise.ratings
    tells_skill = ratings is None or ratings.by.orders_by_skill
    advice = [] if tells_skill else [("Add", say("advice_outcomes"))]
    advice += [("Ask", text) for text in _ask_for_more(fitted, demonstrators)]
    if by_cluster is not None and tells_skill and not (ratings is not None and ratings.not_identified):
        gaps, everywhere = by_cluster.gaps()
        if everywhere:
            advice.append(("Train", say("advice_train_all", who=enumerated([each.name for each in everywhere]))))
        for gap in gaps[:_PRACTICE]:
            own, best = in_words(gap.estimate), decimal(gap.best)
            advice.append(("Train", say("advice_train", who=gap.who.name, cluster=gap.cluster, own=own, best=best)))
    if episodes is not None:
        low, drop = episodes.low_for_them, episodes.to_drop
        which = enumerated([episodes.label(each) for each in low or episodes.order[:1]], most=_LOOK)
        look = ("advice_look" if len(low) == 1 else "advice_look_several") if low else "advice_look_lowest"
        advice.append(("Look", say(look, which=which)))
        if drop and tells_skill:
            advice.append(("Drop", say("advice_drop", drop=len(drop), count=len(episodes.demonstrators))))
        else:
            advice.append(("Keep", say("advice_keep" if tells_skill else "advice_keep_unrated")))
    return advice or [("Keep", say("advice_nothing"))]


def _ask_for_more(fitted: Fitted, demonstrators: Sequence[Demonstrator]) -> list[str]:
    """Which demonstrators should record more episodes: neighbours in the ranking that cannot be distinguished."""
    ratings, names = fitted.expertise.ratings, fitted.expertise.names
    ranked = [each for each in demonstrators if each.is_rated]
    if ratings is None or len(ranked) < 2:
        return []
    pairs = [
        (one.rank > 3, ratings.episodes_to_settle(names[one.index], names[other.index]), one.name, other.name)
        for one, other in pairwise(ranked[:50])
    ]
    open_pairs = sorted((pair for pair in pairs if 0 < pair[1] <= _MOST_EPISODES), key=lambda pair: pair[:2])
    if not open_pairs:
        few = [each.name for each in ranked if (each.episodes or _FEW) < _FEW]
        return [say("advice_ask_few", who=enumerated(few), few=_FEW)] if few else []
    return [
        say("advice_ask", one=one, other=other, episodes=counted(int(more), "more episode"))
        for _, more, one, other in open_pairs[:_PAIRS]
    ]


def quality(fitted: Fitted, demonstrators: Sequence[Demonstrator], data: Demonstrations | None) -> list[str]:
    """Findings about the data: those of `check`, or what the run knows without the data."""
    steps = [each.steps for each in demonstrators if each.steps is not None]
    findings = []
    if steps:
        span = f"{min(steps):,}" if min(steps) == max(steps) else f"{min(steps):,} to {max(steps):,}"
        findings.append(say("quality_steps", span=span))
    unranked = [each.name for each in demonstrators if not each.is_ranked]
    if unranked and fitted.estimates_expertise:
        findings.append(say("quality_unranked", who=enumerated(unranked)))
    if data is None:
        return [*findings, say("quality_no_data")]
    if data.fingerprint != fitted.provenance["data"].get("fingerprint"):
        findings.append(say("quality_other_data"))
    found = [f"{printable(short(each.about, 40))}: {printable(each.says)}." for each in data.check()]
    more = [say("quality_more", count=len(found) - _FINDINGS)] if len(found) > _FINDINGS else []
    return [*findings, *(found[:_FINDINGS] or [say("quality_good")]), *more]


_RANKING = "Who follows the learned policy most closely"


def cloning(_: Content) -> list[Section]:
    """For behaviour cloning: why there is no ranking."""
    return [Section("ranking", _RANKING, [say("cloning_who")])]


def ranking(content: Content) -> list[Section]:
    """The ranking, with notes on its basis."""
    fitted, everyone = content.fitted, content.demonstrators
    parts, ratings = fitted.joint.parts, fitted.expertise.ratings
    is_rated = any(each.is_rated for each in everyone)
    steps = fitted.provenance["data"]["steps"] / len(everyone)
    left, alternatives = len(everyone) - len(content.shown), len(fitted.restarts.alternatives)
    notes = []
    if is_rated and ratings is not None:
        cross_fitted = say_if(ratings.by.folds, "cross_fitted", folds=ratings.by.folds)
        notes = [say("groups"), cross_fitted, as_sentence(ratings.by.identification)]
    if fitted.evidence is not None:
        notes.append(content.sentence(fitted.evidence.renamed(content.short_names).sentence()))
    notes += [
        say_if(alternatives, "alternatives", count=alternatives),
        say_if(fitted.evidence is None, "no_reward"),
        say_if(not parts.expertise.distinguishes_demonstrators, "shared_skills"),
        say_if(left, "left_out", first=SHOWN, uncertain=UNCERTAIN, left=left),
        say_if(steps < _FEW_STEPS, "few_steps", steps=steps),
        _known_skill(everyone),
    ]
    charts = [_histogram(everyone, is_rated)] if left else []
    zero = parts.demonstrator.at_expertise_zero(fitted.joint.sizes)
    text = [say("ranking_rated") if is_rated else say("ranking", zero=zero)]
    return [Section("ranking", _RANKING, text, [_ranking_table(everyone, is_rated), *charts], notes)]


def _ranking_table(everyone: Sequence[Demonstrator], is_rated: bool) -> Table:
    shown, title = shown_of(everyone), SCALE if is_rated else "expertise"
    known = [each.known for each in everyone if each.known is not None]
    level = float(np.mean(known)) or 1.0 if is_rated and known else 1.0
    span = "95% interval" if is_rated else "middle 80% of their own steps"
    columns = [DEMONSTRATOR, estimate_column("expertise", lambda each: each.estimate, about=span)]
    if is_rated:
        columns.append(Column("rank", _ranks, ("rank_low", "rank_high"), span))
        columns.append(Column("group", lambda each: whole(each.group)))
    columns += [Column("steps", lambda each: whole(each.steps)), Column("episodes", lambda each: whole(each.episodes))]
    legend = [("one", f"expertise with {span}")]
    if known:
        columns.append(Column("known skill", lambda each: decimals(each.known), ("known_skill",)))
        legend.append(("known", "known skill, divided by its mean"))
    if is_rated:
        legend.append(("reference", "mean over demonstrators"))
    drawing = interval_rows(
        "ranking",
        f"Expertise of demonstrators: {everyone[0].label} is highest",
        [(everyone[place].label, everyone[place].estimate) for place in shown],
        reference=1.0 if is_rated else None,
        known=[None if (skill := everyone[place].known) is None else skill / level for place in shown],
        title=title,
        legend=legend,
    )
    starts = frozenset(k for k in range(1, len(everyone)) if everyone[k].group != everyone[k - 1].group)
    return Table("ranking", "Demonstrators, best first", columns, everyone, drawing, shown, starts)


def _ranks(each: Demonstrator) -> Cell:
    if each.ranks is None:
        return Cell(NOTHING, math.inf, (None, None), "n")
    low, high = each.ranks
    return Cell(f"{low:,}" if low == high else f"{low:,} to {high:,}", low, each.ranks, "n")


def _histogram(everyone: Sequence[Demonstrator], is_rated: bool) -> Chart:
    """The number of demonstrators by expertise."""
    values = np.array([each.estimate[0] for each in everyone if each.is_ranked])
    counts, edges = np.histogram(values, bins=_BARS, range=(0.0, max(1.0, float(values.max(initial=1.0)))))
    low, high = (decimal(float(each)) for each in np.quantile(values, (0.25, 0.75)))
    description = f"Number of demonstrators by expertise: half of {len(values):,} are between {low} and {high}"
    across = f"{SCALE if is_rated else 'expertise'}; height is demonstrators"
    return Chart("demonstrators", description, bars(edges.tolist(), counts.tolist(), height=180, across=across), 226)


def _known_skill(everyone: Sequence[Demonstrator]) -> str:
    known = {each.label: each.known for each in everyone if each.known is not None and each.is_ranked}
    if len(known) > _MOST_KNOWN:
        return ""
    pairs = sum(one != other for one, other in combinations(known.values(), 2))
    if not pairs:
        return ""
    values = {each.label: each.estimate[0] for each in everyone if each.label in known}
    wrong, who = rank_loss(values, known) * pairs, counted(len(known), "demonstrator")
    return say("known_skill", who=who, wrong=wrong, pairs=pairs)


def drift(content: Content) -> list[Section]:
    """Which demonstrators improve and which tire, for fits in which expertise changes from episode to episode."""
    ratings, names = content.fitted.expertise.ratings, content.fitted.expertise.names
    if ratings is None or ratings.curves is None:
        return []
    by_name = {names[each.index]: each for each in content.shown}
    rows = [row for row in ratings.drift(confidence_level=0.95).to_pylist() if row["demonstrator"] in by_name]

    def estimate(row: Mapping[str, Any], name: str) -> Interval:
        return row[name], row[f"{name}_low"], row[f"{name}_high"]

    def column(title: str, name: str) -> Column:
        return estimate_column(title, lambda row: estimate(row, name), name, about="95% interval")

    def verdict(row: Mapping[str, Any]) -> Cell:
        return words(row["verdict"])._replace(values=(row["verdict"], row["probability_improves"]))

    columns = [
        Column("demonstrator", lambda row: name_cell(by_name[row["demonstrator"]].label)),
        column("last episode", "last"),
        Column("verdict", verdict, ("verdict", "probability_improves")),
        column("change", "change"),
        column("first episode", "first"),
        Column("episodes", lambda row: whole(row["episodes"])),
    ]
    drawing = interval_rows(
        "drift",
        "Expertise in the first and the last episode",
        [(by_name[row["demonstrator"]].label, estimate(row, "last")) for row in rows[:_DRIFTS]],
        second=[estimate(row, "first") for row in rows[:_DRIFTS]],
        reference=1.0,
        title=SCALE,
        legend=[("one", "last episode"), ("two-square", "first episode"), ("reference", "mean over demonstrators")],
    )
    shown = range(min(len(rows), _DRIFTS))
    table = Table("drift", "Demonstrators, those who improve most first", columns, rows, drawing, shown)
    text = [say("drift"), content.sentence(ratings.curves.renamed(content.short_names).sentence(0.95))]
    charts = _drift_charts(rows, by_name, ratings.curve(confidence_level=0.95).to_pylist())
    return [
        Section("drift", "Who improves and who tires", text, [table], [say("drift_rule"), say("drift_order")]),
        Section("curves", "Learning curves of demonstrators", [say("drift_curves")], charts, side_by_side=True),
    ]


def _drift_charts(
    rows: Sequence[Mapping[str, Any]], by_name: Mapping[str, Demonstrator], points: Sequence[Mapping[str, Any]]
) -> list[Chart]:
    """The learning curves of the most certain changes, on one scale."""
    certain = sorted(rows, key=lambda row: -abs(row["probability_improves"] - 0.5))[:_DRIFT_CHARTS]
    chosen = sorted(certain, key=lambda row: -row["change"])
    own = {row["demonstrator"]: [p for p in points if p["demonstrator"] == row["demonstrator"]] for row in chosen}
    y = Scale.of([0.0, 1.0, *(point["high"] for each in own.values() for point in each)])
    charts = []
    for each in chosen:
        who, curve = by_name[each["demonstrator"]], own[each["demonstrator"]]
        number = [point["episode"] + 1 for point in curve]
        values = [[point[name] for point in curve] for name in ("expertise", "low", "high")]
        change = in_words((each["change"], each["change_low"], each["change_high"]))
        description = f"{who.name}: {each['verdict']}; change {change}"
        body = band(number, values, 1.0, y, across="the demonstrator's own episode")
        charts.append(Chart(f"curve-{who.rank}", description, body, 166))
    return charts


def states(content: Content) -> list[Section]:
    """Expertise by state cluster; without the data, by the skills of the fit."""
    fitted, found, heading = content.fitted, content.by_cluster, "Who is good where"
    if found is not None:
        column = found.evidence.clusters.column
        source = say("clusters_given", column=short(column)) if column else say("clusters_found")
        notes = [say("in_sample"), say_if(found.evidence.is_part, "part_of_data")]
        text = [source, say("clusters_weak")]
        return [
            Section("kinds", heading, [say("clusters_map")], [_by_cluster_table(found)], [say("clusters_names")]),
            Section("weak", "Where all are weak", text, [_clusters_table(found)], notes),
        ]
    missing = say("clusters_no_data" if content.data is None else "clusters_not_rated")
    if not fitted.joint.parts.expertise.depends_on_state:
        return [Section("kinds", heading, [say("same_everywhere"), missing])]
    if not fitted.expertise.skill_names:
        return [Section("kinds", heading, [missing])]
    return [Section("kinds", heading, [say("skills")], [_by_skill_table(content)], [missing])]


def _clusters_table(found: ByCluster) -> Table:
    """State clusters, weakest first, by the steps of all demonstrators."""
    clusters, numbers = found.evidence.clusters, found.evidence.numbers
    share = (np.bincount(clusters.of_step, minlength=len(clusters.names)) / len(clusters.of_step)).tolist()
    order = np.argsort(found.of_all.expertise, kind="stable").tolist()

    def examples(each: int) -> Cell:
        return words(", ".join(f"{numbers[episode]}:{step}" for episode, step in clusters.examples[each]))

    columns = [
        Column("cluster", lambda each: words(clusters.names[each])),
        estimate_column(
            "expertise", lambda each: estimate_of(found.of_all, each), about="of all steps together; 95% interval"
        ),
        Column("distinguishing features", lambda each: words(clusters.descriptions[each], wide=True), ("description",)),
        Column("steps", lambda each: Cell(f"{share[each]:.0%}", share[each], (share[each],), "n"), ("share_of_steps",)),
        Column("examples", examples, about="episode:step"),
    ]
    drawing = interval_rows(
        "kinds",
        "Expertise by state cluster",
        [(clusters.names[each], estimate_of(found.of_all, each)) for each in order],
        reference=1.0,
        title="expertise of all demonstrators (1 is all states together)",
        legend=[("one", "expertise with 95% interval"), ("reference", "all states together")],
    )
    return Table("state-clusters", "State clusters, weakest first", columns, order, drawing)


def _by_cluster_table(found: ByCluster) -> Table:
    """Demonstrators, best first, by state cluster; darker is better, and cells with few steps are empty."""
    count, top = found.steps.shape[1], float(found.found.expertise[found.enough.ravel()].max(initial=0.0))

    def column(cluster: int, name: str) -> Column:
        def cell(who: int) -> Cell:
            steps = int(found.steps[who, cluster])
            if steps < ENOUGH_STEPS:
                return Cell("·", -1.0, (None, None, None, steps), "n none")
            estimate = estimate_of(found.found, who * count + cluster)
            shown = rated(estimate, heat=_shade(estimate[0], top))
            return shown._replace(values=(*shown.values, steps))

        return Column(name, cell, tuple(f"{name} {each}" for each in ("expertise", "low", "high", "steps")))

    clusters = [column(cluster, name) for cluster, name in enumerate(found.evidence.clusters.names)]
    who = Column("demonstrator", lambda number: name_cell(found.demonstrators[number].label))
    caption, rows = "Demonstrators by state cluster, best first", range(len(found.demonstrators))
    return Table("demonstrators-by-cluster", caption, [who, *clusters], rows, is_map=True)


def _by_skill_table(content: Content) -> Table:
    expertise = content.fitted.expertise
    values = [list(own.values()) for own in expertise.by_skill().values()]
    top = max((value for own in values for value in own if math.isfinite(value)), default=1.0)

    def column(skill: int, name: str) -> Column:
        def cell(each: Demonstrator) -> Cell:
            value = values[each.index][skill]
            return decimals(value)._replace(kind=f"n h{_shade(value, top)}")

        return Column(name, cell)

    skills = [column(skill, name) for skill, name in enumerate(labels_of(expertise.skill_names)[:_SKILLS])]
    ranked = [each for each in content.shown if each.is_ranked]
    return Table("skills", "Demonstrators by skill, best first", [DEMONSTRATOR, *skills], ranked, is_map=True)


def _shade(value: float, top: float) -> int:
    """How dark a cell is, from 0 to 9."""
    return min(9, max(0, int(10 * value / (top or 1.0)))) if math.isfinite(value) else 0


def episodes(content: Content) -> list[Section]:
    """Episodes to look at, and expertise along some of them."""
    if (found := content.episodes) is None:
        return []
    notes = [say("episodes_rule"), say("episodes_numbered"), say("in_sample")]
    notes.append(say_if(found.evidence.is_part, "part_of_data"))
    listed = Section("episodes", "Episodes to look at", [say("episodes")], [_episodes_table(found)], notes)
    drawn = found.to_draw
    if not drawn:
        return [listed]
    blocks: list[Block] = []
    for episode, by_step in zip(drawn, found.evidence.along(np.array(drawn)), strict=True):
        blocks += _along(found, episode, by_step)
    text = [say("along"), say_if(len(blocks) > len(drawn), "along_sights")]
    return [listed, Section("along", "Expertise along single episodes", text, blocks, side_by_side=True)]


def _episodes_table(found: Episodes) -> Table:
    """All episodes: those that are low for their demonstrator first, then the lowest."""
    rewards, low, drop = found.evidence.data.rewards, set(found.low_for_them), set(found.to_drop)
    order = list(dict.fromkeys([*found.low_for_them[: _LISTED // 2], *found.order]))

    def number(each: int) -> Cell:
        return Cell(str(found.number(each)), found.number(each), (found.number(each),))

    def note(each: int) -> Cell:
        notes = ["low for this demonstrator"] * (each in low) + ["may be left out"] * (each in drop)
        return words(", ".join(notes) or NOTHING)

    columns = [
        Column("episode", number),
        estimate_column("expertise", lambda each: estimate_of(found.found, each), about=f"{SCALE}; 95% interval"),
        Column("demonstrator", lambda each: words(found.demonstrators[each].label)),
        Column("steps", lambda each: whole(found.steps(each).stop - found.steps(each).start)),
        Column("note", note),
    ]
    if rewards is not None:
        columns.insert(4, Column("reward", lambda each: decimals(float(rewards[found.steps(each)].sum()))))
    drawing = interval_rows(
        "episodes",
        "Expertise of episodes",
        [(found.label(each), estimate_of(found.found, each)) for each in order[:_LISTED]],
        reference=found.good * HALF,
        title=SCALE,
        legend=[("one", "expertise with 95% interval"), ("reference", "half of the top quartile")],
    )
    return Table("episodes", "Episodes, lowest first", columns, order, drawing, range(min(_LISTED, len(order))))


def _along(found: Episodes, episode: int, by_step: np.ndarray[Any, Any]) -> list[Block]:
    """Expertise step by step, with the lowest segment marked, and frames or the path of the episode if possible."""
    windows, expected = found.windows(by_step), found.expected(episode)
    segment, last = worst_segment(windows, expected), len(by_step) - 1
    y, values = Scale.of([0.0, expected, *windows.high.tolist()]), [each.tolist() for each in windows]
    where = "no segment is below" if segment is None else f"lowest in steps {segment.first} to {segment.last}"
    description = f"Episode {found.label(episode)}: {in_words(estimate_of(found.found, episode))}; {where}"
    body = band(range(last + 1), values, expected, y, across="step of the episode", segment=segment)
    chart = Chart(f"episode-{found.number(episode)}", description, body, 166)
    observations, number, steps = found.evidence.data.observations, found.number(episode), found.steps(episode)
    if are_images(observations):
        ends = segment or Segment(0, last)
        chosen = np.unique(np.linspace(*ends, _FRAMES).round().astype(int)).tolist()
        images = [(f"step {step}", png(observations[steps.start + step])) for step in chosen]
        return [chart, Frames(say("frames", episode=number), images)]
    if (plane := found.plane) is None:
        return [chart]
    x, y = (Scale.of(plane[:, k].tolist(), zero=False) for k in (0, 1))
    cloud = plane[:: max(1, len(plane) // _CLOUD)].tolist()
    body = path(cloud, plane[steps].tolist(), segment, x, y, height=130)
    marks = [("dot-other", "all states"), ("one", "this episode"), *([("two", "segment")] if segment else [])]
    return [chart, Chart(f"path-{number}", say("path", episode=number), body, 140, marks)]


def rewards(content: Content) -> list[Section]:
    """Mean rewards of policies, if they are given."""
    if not content.scores:
        return []
    found = []
    for (name, score), label in zip(content.scores.items(), labels_of(list(content.scores)), strict=True):
        if not math.isfinite(score.mean):
            raise SettingsError(f"the score of {name!r} must be finite, got {score.mean}", code="score-not-finite")
        found.append((label, (float(score.mean), *score.interval)))
    title, marks = "mean reward of an episode", [("one", "mean with 95% interval")]
    drawing = interval_rows("scores", "Mean rewards of policies", found, title=title, legend=marks)
    mean = Column("mean reward", lambda each: rated(each[1]), ("mean", "low", "high"), "95% interval")
    columns = [Column("policy", lambda each: words(each[0])), mean]
    table = Table("rewards", "Rewards of policies", columns, found, drawing)
    return [Section("rewards", "Rewards of the policies", [say("rewards")], [table])]


def learned(content: Content) -> list[Section]:
    """What the demonstrator model reports; nothing if it learned nothing and was not compared."""
    fitted, ranked = content.fitted, [each for each in content.shown if each.is_ranked]
    found = fitted.learned
    text, blocks = list(found.sentences), []
    if fitted.comparison is not None:
        text.insert(0, as_sentence(fitted.comparison.sentence()))
        names = {
            "nats_per_action": "nats per held-out action",
            "more_than_preferred": "above the preferred",
            "standard_error": "standard error",
        }

        def model(row: Mapping[str, Any]) -> Cell:
            return words(f"{row['model']}{' (preferred)' if row['preferred'] else ''}", wide=True)

        def cost(name: str) -> Column:
            return Column(names[name], lambda row: decimals(row[name], 4), (name,))

        columns = [Column("demonstrator model", model, ("model",)), *map(cost, names)]
        caption = "Demonstrator models by held-out episodes, the simplest first"
        blocks.append(Table("models", caption, columns, fitted.comparison.table().to_pylist()))
    if found.columns and ranked:

        def parameter(values: Sequence[float] | Sequence[str]) -> Callable[[Demonstrator], Cell]:
            return lambda each: words(own) if isinstance(own := values[each.index], str) else decimals(own)

        columns = [Column(each.title, parameter(each.values), (each.name,)) for each in found.columns]
        shown = range(min(len(ranked), _LEARNED))
        blocks.append(Table("learned", found.caption, [DEMONSTRATOR, *columns], ranked, shown=shown))
    return [Section("learned", "What the model learned about demonstrators", text, blocks)] if text else []


def health(content: Content) -> list[Section]:
    """The progress and outcome of the fit: agreement of restarts, and learning curves."""
    fitted, history = content.fitted, content.fitted.history
    costs, chosen = fitted.restarts.nats_per_action, fitted.restarts.chosen
    order = [member for member in np.argsort(costs, kind="stable").tolist() if np.isfinite(costs[member])]
    text = [
        say("outcome", outcome=as_sentence(fitted.outcome.value), cost=decimal(fitted.nats_per_action, 3)),
        as_sentence(fitted.width_sentence),
    ]
    if len(costs) == 1:
        text.append(say("one_restart"))
    else:
        close, lost = int((costs - fitted.nats_per_action <= _TIED_NATS).sum()), len(costs) - len(order)
        data = "data" if history.held_out is None else "held-out episodes"
        span = {"best": costs[order[0]], "worst": costs[order[-1]]}
        text.append(say("restarts", count=len(costs), data=data, close=close, tied=_TIED_NATS, **span))
        text.append(say_if(lost, "restarts_lost", lost=counted(lost, "restart")))
    others = [member for member in order if member != chosen]
    wanted = [("other", member, history.nats_per_action) for member in others[: _CURVES - 1]]
    wanted.append(("two", chosen, history.nats_per_action))
    if history.held_out is not None:
        wanted.append(("dashed", chosen, history.held_out))
    count = len(history.step)
    records = np.unique(np.linspace(0, count - 1, min(_RECORDS, count)).round().astype(int))
    step = [float(history.step[k]) for k in records]
    curves = [
        Curve([each for each in zip(step, found[records, member].tolist(), strict=True) if np.isfinite(each[1])], kind)
        for kind, member, found in wanted
    ]
    late = [cost for curve in curves for at, cost in curve.points if at >= step[-1] / 20]
    x, y = Scale(step[0], max(step[-1], step[0] + 1)), Scale.of(late, zero=False)
    body = lines(curves, x, y, height=180, across="optimisation step; height is nats per action")
    description = f"Learning curves; the kept restart ends at {fitted.nats_per_action:.4f} nats per action"
    marks = [("two", "kept"), ("dashed", "kept, on held-out episodes"), ("other", "other restarts")]
    kinds = {curve.kind for curve in curves}
    chart = Chart("learning", description, body, 226, [mark for mark in marks if mark[0] in kinds])
    notes = [
        say("learning"),
        say_if(history.held_out is not None, "held_out"),
        say_if(len(others) > _CURVES - 1, "curves_shown", shown=_CURVES - 1, others=len(others)),
    ]
    return [Section("fit", "How the fit went", text, [chart], notes)]


def settings_of(fitted: Fitted, command: str | None) -> str:
    """The Python call of the fit, and all settings and provenance, as HTML."""
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
    """Labels or categories; of a long list, the number of the rest."""
    more = [f"and {len(values) - most:,} more"] if len(values) > most else []
    return ", ".join([*("missing" if value is None else str(value) for value in values[:most]), *more])


def _constructor_call(value: Any) -> str:
    """The Python call that makes these settings, without arguments that have their default value."""
    if not is_dataclass(value):
        return repr(value)
    changed = [item.name for item in fields(value) if getattr(value, item.name) != item.default]
    arguments = ", ".join(f"{name}={_constructor_call(getattr(value, name))}" for name in changed)
    return f"ileed.{type(value).__name__}({arguments})"


def _entries(values: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    """Labels and values in words; nested mappings are flattened, with their name as a prefix."""
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
    """Entries as a definition list; absolute paths are cut to their last part, because they are private."""
    texts = [(escape(name), escape(_ABSOLUTE.sub(r"\1", value))) for name, value in entries]
    cells = (f"<dt>{name}</dt><dd>{f'<code>{value}</code>' if code else value}</dd>" for name, value in texts)
    return f"<dl class=settings>{''.join(cells)}</dl>"


def differing_settings(one: Fitted, other: Fitted) -> list[tuple[str, str, str]]:
    """Settings and provenance in which two runs differ: the name and both values."""
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
