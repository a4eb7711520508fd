"""Sections: what a report says of a fit, in sentences and in rows to draw.

Sentences are plain text in which `code` stands between backquotes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from types import ModuleType
from typing import Any, Protocol, Self, final

import numpy as np

from ileed.errors import SettingsError
from ileed.evaluation import rank_loss
from ileed.fitted import Fitted
from ileed.report.charts import Figure, Row, heat_map, learning_chart, ranking_chart, restart_chart, score_chart
from ileed.report.people import SHOWN, Person, Shown, demonstrators, labels_of, number, people_of, verdict

_CURVES = 40  # learning curves drawn
_RECORDS = 80  # points of each curve drawn
_DOTS = 150  # restarts drawn as dots
_SKILLS = 60  # skills side by side
_FEW_STEPS = 1000  # steps a person below which a ranking is called rough
_TIED_NATS = 0.01  # restarts this close to the best count as having found the same optimum

_WHO, _WHERE = "Who follows the learned policy most closely", "Where each person is good"


class Scored(Protocol):
    """What a score must have: a mean, and the interval in which it lies with 95 % confidence, as `Scores` has."""

    @property
    def mean(self) -> float: ...

    @property
    def interval(self) -> tuple[float, float]: ...


@final
@dataclass(frozen=True)
class Section:
    """A heading, paragraphs, a chart after the first of them, and people whose numbers can be unfolded."""

    heading: str
    paragraphs: Sequence[str]
    figure: Figure | None = None
    numbers: Shown | None = None


@final
@dataclass(frozen=True)
class Content:
    """The result in one sentence, how to take it, what was done, and a section for each question."""

    verdict: str
    caution: str
    introduction: str
    sections: Sequence[Section]

    @classmethod
    def of(cls, fitted: Fitted, truth: Mapping[str, float], scores: Mapping[str, Scored]) -> Self:
        """The content for a fit, beside the known skill of some demonstrators and the scores of some policies."""
        people = people_of(fitted, truth)
        scored = [_scored(scores)] if scores else []
        if not fitted.estimates_expertise:
            return cls(
                verdict=f"Plain behaviour cloning of {demonstrators(len(people))}: everybody was taken to be equally "
                "good.",
                caution="",
                introduction="One policy was learned from everybody's demonstrations alike.",
                sections=[
                    Section(
                        _WHO,
                        [
                            "This run is behaviour cloning. It takes every demonstrator to be perfect, by assumption, "
                            "so there is no ranking. Fit with `ileed.Ileed()` to estimate who is good."
                        ],
                    ),
                    *scored,
                    _restarts(fitted),
                    _learning(fitted),
                    Section(_WHERE, ["Behaviour cloning takes everybody to be perfect everywhere, by assumption."]),
                ],
            )
        return cls(
            verdict=verdict(people),
            caution="Expertise is relative: the data fix how people compare with each other, and only a sharp policy "
            "fixes the common level. Read ratios and order; do not read 0.8 as “right 80 % of the time”.",
            introduction="Several people demonstrated the same task. One policy was learned from all of them, and with "
            "it how closely each person follows that policy. Nobody's skill was given beforehand.",
            sections=[
                _ranking(fitted, people),
                *scored,
                _restarts(fitted),
                _learning(fitted),
                _where(fitted, Shown.of([person for person in people if not math.isnan(person.expertise)])),
            ],
        )


def _ranking(fitted: Fitted, people: Sequence[Person]) -> Section:
    shown = Shown.of(people)
    text = [
        f"Expertise runs from 0 ({_zero(fitted)}) to 1 (exactly as the learned policy does). Each bar is an average "
        "over that person's own steps; the dark line is where the middle 80 % of those steps lie. A long line means "
        "good in some states and poor in others; it is not a margin of error.",
        "Agreement with the policy is what is measured, not success at the task: no reward was used.",
    ]
    if not fitted.joint.parts.expertise.distinguishes_demonstrators:
        text.append(
            "In this run all demonstrators share one set of skills, by assumption: they differ only in the states that "
            "they met."
        )
    if shown.left_out:
        text.append(
            f"The {SHOWN} highest and the {SHOWN} lowest are shown; {shown.left_out:,} demonstrators between them "
            "are left out here."
        )
    if (steps_each := fitted.provenance["data"]["steps"] / len(people)) < _FEW_STEPS:
        text.append(
            f"On average a person took only {steps_each:,.0f} steps: the estimates are rough, and neighbours may well "
            "belong the other way round."
        )
    if unseen := sum(math.isnan(person.expertise) for person in people):
        have = "has" if unseen == 1 else "have"
        text.append(
            f"{demonstrators(unseen).capitalize()} {have} no step that the fit learned from (none in the data, or all "
            "of weight 0) and cannot be ranked."
        )
    known = {p.label: p.known for p in people if p.known is not None and not math.isnan(p.expertise)}
    if pairs := sum(one != other for one, other in combinations(known.values(), 2)):
        wrong = rank_loss({p.label: p.expertise for p in people if p.label in known}, known) * pairs
        text.append(
            f"Known skill, marked in orange, was given for {demonstrators(len(known))}: the estimate puts {wrong:.4g} "
            f"of {pairs:,} pairs in the wrong order. Compare the order and the proportions with it, not the level."
        )
    rows = [
        {
            "person": person.label,
            "expertise": person.expertise,
            "low": person.low,
            "high": person.high,
            "value": f"{person.expertise:.2f}",
            "told": f"{person.label}: expertise {person.expertise:.3f}, "
            f"10 to 90 % of steps {person.low:.3f} to {person.high:.3f}"
            + ("" if person.known is None else f", known skill {person.known:.3f}"),
        }
        | ({} if person.known is None else {"known": person.known})
        for person in shown.persons
        if not math.isnan(person.expertise)
    ]
    described = f"Bars of estimated expertise: {people[0].label} is highest, {people[-1].label} is lowest"
    figure = Figure("ranking", described, partial(ranking_chart, rows=rows, people=shown.labels))
    return Section(_WHO, text, figure, numbers=shown)


def _zero(fitted: Fitted) -> str:
    """What a person of no expertise would do."""
    return fitted.joint.parts.demonstrator.at_expertise_zero(fitted.joint.sizes)


def _scored(scores: Mapping[str, Scored]) -> Section:
    rows: list[Row] = []
    for (name, score), label in zip(scores.items(), labels_of(list(scores)), strict=True):
        mean, (low, high) = float(score.mean), score.interval
        if not math.isfinite(mean):
            raise SettingsError(f"the score of {name!r} is {mean}: pass finite scores")
        row = {"policy": label, "mean": mean, "told": f"{mean:.2f} (one episode)"}
        if math.isfinite(low) and math.isfinite(high):
            row |= {"low": low, "high": high, "told": f"{mean:.2f} ({low:.2f} to {high:.2f})"}
        rows.append(row)
    described = "Mean scores: " + "; ".join(f"{row['policy']} {row['told']}" for row in rows)
    return Section(
        "How well the policies do",
        [
            "The mean reward of an episode in the task; the line is where that mean lies with 95 % confidence, as far "
            "as chance in the episodes goes. Lines that overlap widely mean that the difference may be chance."
        ],
        Figure("scores", described, partial(score_chart, rows=rows)),
    )


def _restarts(fitted: Fitted) -> Section:
    heading = "Did the restarts agree?"
    costs = fitted.restarts.nats_per_action
    if len(costs) == 1:
        return Section(
            heading,
            [
                f"There was one start only ({fitted.nats_per_action:.4f} nats per action), so there is nothing to "
                "compare it with. Raise `restarts` to learn how much the result owes to chance."
            ],
        )
    order = np.argsort(costs, kind="stable")[: np.isfinite(costs).sum()]  # those that were lost cost infinitely much
    best, worst = float(costs[order[0]]), float(costs[order[-1]])
    close = int((costs[order] - fitted.nats_per_action <= _TIED_NATS).sum())
    if close == len(order):
        finding = f"All {number(close)} ended within {_TIED_NATS} nats of each other: the start hardly mattered."
    elif close == 1:
        finding = (
            f"No other restart came within {_TIED_NATS} nats of the best (they spread over {worst - best:.3f} nats): a "
            "still better fit may exist. Raise `restarts`, and compare the rankings of two seeds."
        )
    else:
        finding = (
            f"{number(close).capitalize()} of {len(order):,} ended within {_TIED_NATS} nats of the best; all of them "
            f"spread over {worst - best:.3f} nats."
        )
    costed = "the data" if fitted.history.held_out is None else "the held-out episodes"
    text = [
        f"The same fit was begun {number(len(costs))} times from different random starts, and the one of least cost "
        f"was kept. Cost is the mean negative log-likelihood of an action in {costed}, in nats per action; lower is "
        "better.",
        f"{finding} A wide spread means that some starts got stuck in worse solutions, which is why several are made; "
        "what matters is that more than one reaches the bottom.",
    ]
    if lost := len(costs) - len(order):
        text.append(f"{number(lost).capitalize()} of the restarts became non-finite and cannot be shown.")
    if len(order) > _DOTS:
        text.append(f"{_DOTS} of the restarts are drawn, evenly from the best to the worst.")
    rows = [
        {
            "rank": rank + 1,
            "cost": float(costs[order[rank]]),
            "kind": "kept" if order[rank] == fitted.restarts.chosen else "other restarts",
            "told": f"restart {order[rank] + 1}: {costs[order[rank]]:.4f} nats per action",
        }
        for rank in _evenly(len(order), _DOTS)
    ]
    described = f"Cost of each restart, lowest first, from {best:.4f} to {worst:.4f}"
    return Section(heading, text, Figure("restarts", described, partial(restart_chart, rows=rows)))


def _learning(fitted: Fitted) -> Section:
    history, chosen = fitted.history, fitted.restarts.chosen
    others = [member for member in np.argsort(fitted.restarts.nats_per_action, kind="stable") if member != chosen]
    drawn = [others[k] for k in np.linspace(0, len(others) - 1, min(_CURVES - 1, len(others))).astype(int)]
    curves = [("other restarts", member, history.nats_per_action) for member in drawn]
    curves.append(("kept", chosen, history.nats_per_action))
    outcome = fitted.outcome.value
    text = [
        f"Cost in nats per action after each step of the optimiser, lower is better. {outcome[0].upper()}{outcome[1:]}."
    ]
    if sentence := fitted.width_sentence:
        text.append(f"{sentence[0].upper()}{sentence[1:]}.")
    if history.held_out is not None:
        curves.append(("kept, on held-out episodes", chosen, history.held_out))
        text.append(
            "The dashed curve is the cost on episodes that were not learned from. Where it rises while the other "
            "falls, the fit begins to learn the data by heart; the parameters at its lowest point were kept."
        )
    if len(drawn) < len(others):
        text.append(f"{len(drawn)} of the {len(others):,} other restarts are drawn, evenly from the best to the worst.")
    rows: list[Row] = [
        {"step": int(history.step[k]), "cost": float(costs[k, member]), "curve": f"{kind} {member}", "kind": kind}
        for kind, member, costs in curves
        for k in _evenly(len(history.step), _RECORDS)
        if np.isfinite(costs[k, member])
    ]
    late = [row["cost"] for row in rows if row["step"] >= history.step[-1] / 20]  # the first may lie above the chart
    domain = (min(late, default=0.0), max(late, default=1.0))  # a kept restart may have diverged after its best step
    described = f"Learning curves; the kept restart ends at {fitted.nats_per_action:.4f} nats per action"
    return Section(
        "How the fit went",
        text,
        Figure("learning", described, partial(learning_chart, rows=rows, domain=domain)),
    )


def _where(fitted: Fitted, people: Shown) -> Section:
    if not fitted.joint.parts.expertise.depends_on_state:
        return Section(
            _WHERE,
            [
                "This run takes each person's expertise to be the same in all states, by assumption, so there is no "
                "map to show. Fit with `expertise=ileed.Embedded()` to let it depend on the state."
            ],
        )
    return _by_skill(fitted, people) if fitted.expertise.skill_names else _by_state(fitted, people)


def _by_skill(fitted: Fitted, people: Shown) -> Section:
    names = fitted.expertise.skill_names
    skills = labels_of(names)[:_SKILLS]
    values = [list(of_person.values()) for of_person in fitted.expertise.by_skill().values()]
    cells = [
        {
            "person": person.label,
            "column": skill,
            "expertise": value,
            "visited": True,
            "told": f"{_short(person.label)}, {_short(skill)}: expertise {value:.2f}",
        }
        for person in people.persons
        for skill, value in zip(skills, values[person.index], strict=False)
    ]
    text = [
        "Each row is a person, best first; each column is a skill that the data name. Darker is closer to the learned "
        "policy."
    ]
    if len(names) > len(skills):
        text.append(f"The first {len(skills)} of {len(names):,} skills are shown.")
    draw = partial(heat_map, cells=cells, people=people.labels, columns=skills, title="skill", named=True)
    return Section(_WHERE, text, Figure("skills", "Heat map of expertise, demonstrators by skills", draw))


def _by_state(fitted: Fitted, people: Shown) -> Section:
    expertise, visits = fitted.expertise.summary.states.numpy(), fitted.expertise.summary.visits.numpy()
    in_state = visits.sum(0)
    if in_state.max() < 2:
        return Section(
            _WHERE,
            [
                "No observation occurs twice in these data, so there are no states in which to compare people side by "
                "side. The dark lines in the ranking tell how much each person's expertise varies, and "
                "`fitted.expertise(observations, name)` answers for any observations."
            ],
        )
    share = in_state.sum() / fitted.provenance["data"]["steps"]
    which = "in the data" if share == 1 else f"visited most often, which make up {share * 100:.0f} % of all steps"
    text = [
        f"Each row is a person, best first; each column is one of the {len(in_state)} observations {which}. "
        "Darker is closer to the learned policy. A small square stands where that person never was: there the value is "
        "what the model expects, not what was seen.",
        "Columns run from the states where people are best to those where they are worst. On a wide screen, hover over "
        "a cell for its numbers; state 1 is the most visited.",
    ]
    known = ~np.isnan(expertise)
    steps = (visits * known).sum(0)
    mean = (np.where(known, expertise, 0) * visits).sum(0) / steps.clip(min=1)  # over the steps that were taken there

    def draw(alt: ModuleType, narrow: bool) -> Any:
        columns = min(24, len(mean)) if narrow else len(mean)
        states = np.argsort(-mean[:columns], kind="stable").tolist()
        cells = [
            {
                "person": person.label,
                "column": f"{state + 1}",
                "expertise": round(float(expertise[person.index, state]), 3),
                "visited": bool(visits[person.index, state]),
                "told": f"{_short(person.label)}, state {state + 1}: {expertise[person.index, state]:.2f}, "
                + (f"steps: {count:,}" if (count := visits[person.index, state]) else "never there"),
            }
            for person in people.persons
            for state in states
        ]
        return heat_map(
            alt,
            narrow,
            cells=cells,
            people=people.labels,
            columns=[f"{state + 1}" for state in states],
            title=f"the {columns} most visited states, best to worst" if narrow else "states, from best to worst",
            named=False,
        )

    return Section(_WHERE, text, Figure("states", "Heat map of expertise, demonstrators by states", draw))


def _evenly(count: int, most: int) -> list[int]:
    """Indices of `count` things, or of at most so many of them, evenly from the first to the last."""
    indices: list[int] = np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(int)).tolist()
    return indices


def _short(label: str) -> str:
    """What thousands of cells repeat must be short, or the page grows heavy."""
    return label if len(label) <= 24 else f"{label[:23]}…"
