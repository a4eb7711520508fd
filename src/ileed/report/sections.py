"""Sections of a report: sentences about a fit, and the rows of its charts.

Sentences are plain text, with code between backquotes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, product
from types import ModuleType
from typing import Any, Self, final

import numpy as np

from ileed.errors import SettingsError
from ileed.evaluation import Scores, rank_loss
from ileed.model.demonstrators import OneVersusRest, VarianceScaling
from ileed.model.expertise import Constant, Embedded
from ileed.policy import Fitted
from ileed.report.charts import Figure, Row, heat_map, learning_chart, ranking_chart, restart_chart, score_chart
from ileed.report.people import SHOWN, Person, Shown, demonstrators, labels_of, number, people_of, verdict

_CURVES = 40  # learning curves at most
_RECORDS = 80  # points of a learning curve at most
_DOTS = 150  # restarts shown as dots at most
_SKILLS = 60  # skills side by side at most
_FEW_STEPS = 1000  # steps of a person below which the ranking is called imprecise
_TIED_NATS = 0.01  # restarts this close to the best are said to have found the same optimum

_WHO, _WHERE = "Who follows the learned policy most closely", "Where each person is good"


@final
@dataclass(frozen=True)
class Section:
    """A heading, paragraphs, a chart after the first of them, and a table of people to unfold."""

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
        if not fitted.estimates_expertise:
            perfect = "Behaviour cloning assumes that every demonstrator is perfect"
            advice = "Fit with `ileed.Ileed()` to estimate expertise."
            who = Section(_WHO, [f"{perfect}, so there is no ranking. {advice}"])
            where = Section(_WHERE, [f"{perfect} in all states."])
            return cls(
                f"Behaviour cloning of {demonstrators(len(people))}, who are assumed to be equally good.",
                "",
                "One policy was learned from all demonstrations alike.",
                [who, *rewards, _restarts(fitted), _learning(fitted), where],
            )
        where = _where(fitted, Shown.of([person for person in people if person.is_ranked]))
        return cls(
            verdict(people),
            "Expertise is relative: the data determine how people compare with each other, and the common level only "
            "if the policy is sharp. Read ratios and order; do not read 0.8 as “right 80 % of the time”.",
            "Several people demonstrated the same task. The fit learned one policy from all of them and estimated how "
            "closely each person follows it, without any information about their skill.",
            [_ranking(fitted, people), *rewards, _restarts(fitted), _learning(fitted), where],
        )


def _ranking(fitted: Fitted, people: Sequence[Person]) -> Section:
    shown = Shown.of(people)
    text = [
        f"Expertise ranges from 0 ({_zero(fitted)}) to 1 (exactly as the learned policy). Each bar is the mean over "
        "the person's own steps, and the dark line is the range of the middle 80 % of these steps. A long line means "
        "that the person is good in some states and poor in others; it is not a margin of error.",
        "Expertise measures agreement with the policy, not success at the task: no reward was used.",
    ]
    if isinstance(fitted.joint.parts.expertise, Embedded) and fitted.joint.parts.expertise.shared:
        text.append(
            "In this run all demonstrators share one set of skills, by assumption: they differ only in the states that "
            "they met."
        )
    if shown.left_out:
        omitted = f"{shown.left_out:,} demonstrators between them are left out"
        text.append(f"The {SHOWN} highest and the {SHOWN} lowest are shown; {omitted}.")
    if (steps_each := fitted.provenance["data"]["steps"] / len(people)) < _FEW_STEPS:
        text.append(
            f"A person has only {steps_each:,.0f} steps on average, so the estimates are imprecise, and neighbours in "
            "the ranking may be in the wrong order."
        )
    if unranked := sum(not person.is_ranked for person in people):
        text.append(
            f"{demonstrators(unranked).capitalize()} {'has' if unranked == 1 else 'have'} no step that the fit learned "
            "from (none in the data, or all of weight 0) and cannot be ranked."
        )
    known = {person.label: person.known for person in people if person.known is not None and person.is_ranked}
    if pairs := sum(one != other for one, other in combinations(known.values(), 2)):
        wrong = rank_loss({p.label: p.expertise for p in people if p.label in known}, known) * pairs
        text.append(
            f"The known skill of {demonstrators(len(known))} is marked in orange. The estimate puts {wrong:.4g} of "
            f"{pairs:,} pairs of different skill in the wrong order. Compare order and proportions, not levels."
        )
    description = f"Bars of estimated expertise: {people[0].label} is highest, {people[-1].label} is lowest"
    rows = [_ranking_row(person) for person in shown.persons if person.is_ranked]
    figure = Figure("ranking", description, partial(ranking_chart, rows=rows, people=shown.labels))
    return Section(_WHO, text, figure, numbers=shown)


def _ranking_row(person: Person) -> Row:
    row = {name: getattr(person, name) for name in ("expertise", "low", "high", "known")}
    steps = f"10 to 90 % of steps {person.low:.3f} to {person.high:.3f}"
    skill = "" if person.known is None else f", known skill {person.known:.3f}"
    tooltip = f"{person.label}: expertise {person.expertise:.3f}, {steps}{skill}"
    return row | {"person": person.label, "value": f"{person.expertise:.2f}", "tooltip": tooltip}


def _zero(fitted: Fitted) -> str:
    """What a person of no expertise would do."""
    demonstrator = fitted.joint.parts.demonstrator
    if isinstance(demonstrator, OneVersusRest):
        return f"always something else than the policy; acting at random is {1 / fitted.joint.sizes.actions:.2f}"
    return "no precision at all" if isinstance(demonstrator, VarianceScaling) else "at random"


def _rewards(scores: Mapping[str, Scores]) -> Section:
    rows: list[Row] = []
    for (name, score), label in zip(scores.items(), labels_of(list(scores)), strict=True):
        mean, (low, high) = float(score.mean), score.interval
        if not math.isfinite(mean):
            raise SettingsError(f"the score of {name!r} is {mean}: pass finite scores")
        row = {"policy": label, "mean": mean, "tooltip": f"{mean:.2f} (one episode)"}
        if math.isfinite(low) and math.isfinite(high):
            row |= {"low": low, "high": high, "tooltip": f"{mean:.2f} ({low:.2f} to {high:.2f})"}
        rows.append(row)
    text = (
        "Each bar is the mean reward of an episode in the task, and the line is its 95 % confidence interval, given "
        "the fitted policy. If two lines overlap widely, the difference may be due to chance."
    )
    description = "Mean scores: " + "; ".join(f"{row['policy']} {row['tooltip']}" for row in rows)
    return Section("Rewards of the policies", [text], Figure("scores", description, partial(score_chart, rows=rows)))


def _restarts(fitted: Fitted) -> Section:
    heading = "Agreement of the restarts"
    costs = fitted.restarts.nats_per_action
    if len(costs) == 1:
        text = [
            f"There was one restart only ({fitted.nats_per_action:.4f} nats per action), so the effect of the random "
            "initialisation is unknown. Raise `restarts` to see it."
        ]
        return Section(heading, text)
    order = np.argsort(costs, kind="stable")[: np.isfinite(costs).sum()]  # restarts that were lost have infinite cost
    best, worst = float(costs[order[0]]), float(costs[order[-1]])
    close = int((costs[order] - fitted.nats_per_action <= _TIED_NATS).sum())
    text = [
        f"The fit was made from {number(len(costs))} random initialisations, and the restart of lowest cost was kept. "
        "The cost is the mean negative log-likelihood of an action in the "
        f"{'data' if fitted.history.held_out is None else 'held-out episodes'}, in nats per action; lower is better.",
        f"{number(close).capitalize()} of {len(order):,} restarts ended within {_TIED_NATS} nats of the best; the "
        f"range is {worst - best:.3f} nats. If only one restart reaches the lowest cost, a better fit may exist: "
        "raise `restarts`, and compare the rankings of two seeds.",
    ]
    if lost := len(costs) - len(order):
        text.append(f"{number(lost).capitalize()} of the restarts became non-finite and cannot be shown.")
    if len(order) > _DOTS:
        text.append(f"{_DOTS} of the restarts are shown, evenly spaced from the best to the worst.")
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
    history, chosen, outcome = fitted.history, fitted.restarts.chosen, fitted.outcome.value
    others = [member for member in np.argsort(fitted.restarts.nats_per_action, kind="stable") if member != chosen]
    drawn = [others[index] for index in _evenly_spaced(len(others), _CURVES - 1)]
    curves = [("other restarts", member, history.nats_per_action) for member in drawn]
    curves.append(("kept", chosen, history.nats_per_action))
    text = [f"Cost in nats per action at each optimisation step; lower is better. {_as_sentence(outcome)}"]
    if fitted.width_sentence:
        text.append(_as_sentence(fitted.width_sentence))
    if history.held_out is not None:
        curves.append(("kept, on held-out episodes", chosen, history.held_out))
        text.append(
            "The dashed curve is the cost on held-out episodes. Where it rises while the other falls, the fit "
            "overfits; the parameters at its lowest point were kept."
        )
    if len(drawn) < len(others):
        text.append(f"{len(drawn)} of the {len(others):,} other restarts are shown, evenly spaced by their cost.")
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
    if isinstance(fitted.joint.parts.expertise, Constant):
        text = "In this run each person's expertise is the same in all states, by assumption."
        return Section(_WHERE, [f"{text} Fit with `expertise=ileed.Embedded()` to let it depend on the state."])
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
    text = ["Each row is a person, best first; each column is a skill. Darker means closer to the learned policy."]
    if len(names) > len(skills):
        text.append(f"The first {len(skills)} of {len(names):,} skills are shown.")
    draw = partial(heat_map, cells=cells, people=people.labels, columns=skills, title="skill", named=True)
    return Section(_WHERE, text, Figure("skills", "Heat map of expertise, demonstrators by skills", draw))


def _by_state(fitted: Fitted, people: Shown) -> Section:
    expertise, visits = fitted.expertise.summary.states.numpy(), fitted.expertise.summary.visits.numpy()
    in_state = visits.sum(0)
    if in_state.max() < 2:
        text = (
            "No observation occurs twice in these data, so there are no states in which to compare people. The dark "
            "lines in the ranking show how much each person's expertise varies; `fitted.expertise(observations, name)` "
            "gives it for any observations."
        )
        return Section(_WHERE, [text])
    share = in_state.sum() / fitted.provenance["data"]["steps"]
    which = "observations in the data" if share == 1 else f"most frequent observations ({share * 100:.0f} % of steps)"
    paragraphs = [
        f"Each row is a person, best first; each column is one of the {len(in_state)} {which}. Darker means closer to "
        "the learned policy. A small mark means that the person was never in that state: its colour is a prediction of "
        "the model.",
        "Columns run from the states with the highest mean expertise to those with the lowest. On a wide screen, hover "
        "over a cell to see its numbers; states are numbered by frequency.",
    ]
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

    return Section(_WHERE, paragraphs, Figure("states", "Heat map of expertise, demonstrators by states", draw))


def _cell(person: Person, column: str, note: str, *, expertise: float, visited: bool) -> Row:
    tooltip = f"{_short(person.label)}, {note}"
    return {"person": person.label, "column": column, "expertise": expertise, "visited": visited, "tooltip": tooltip}


def _evenly_spaced(count: int, most: int) -> list[int]:
    """Indices of `count` things, or of at most `most` of them, evenly spaced from the first to the last."""
    indices: list[int] = np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(int)).tolist()
    return indices


def _as_sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def _short(label: str) -> str:
    """A label that can be repeated in thousands of cells."""
    return label if len(label) <= 24 else f"{label[:23]}…"
