"""Report: a run directory turned into one page that a person can read, mail and print."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Protocol, final
from xml.etree import ElementTree

import numpy as np

from ileed import runs
from ileed.demonstrations import Array
from ileed.errors import SettingsError, require
from ileed.evaluation import rank_loss
from ileed.methods import load
from ileed.model.demonstrators import OneVersusRest, VarianceScaling
from ileed.model.expertise import Constant, Embedded
from ileed.policy import Fitted

__all__ = ["Scored", "figures", "report"]

# Charts are static SVG, not the interactive bundle. The bundle weighs 0.9 MB before the first chart, needs scripts
# (which mail programs, CI artefact viewers and strict browsers refuse), and does not print at the reader's width. What
# it would give is kept: hovering tells each mark's numbers (SVG titles), text can be selected, and every chart is drawn
# twice, for wide and for narrow screens, between which the style sheet chooses.

_SHOWN = 25  # demonstrators shown from either end where there are more than twice as many
_CURVES = 40  # learning curves drawn
_RECORDS = 80  # points of each curve drawn
_DOTS = 150  # restarts drawn as dots
_COLUMNS = 60  # states or skills side by side
_FEW_STEPS = 200  # steps a person below which neighbours in a ranking are said to be uncertain
_TIED_NATS = 0.01  # restarts this close to the best count as having found the same optimum

_BLUE, _ORANGE, _INK, _GREY = "#0072B2", "#D55E00", "#1f2933", "#a3acb5"  # blue and orange of Okabe and Ito


class Scored(Protocol):
    """What a score must have: a mean, and the interval in which it lies with 95 % confidence, as `Scores` has."""

    @property
    def mean(self) -> float: ...

    @property
    def interval(self) -> tuple[float, float]: ...


def report(
    path: str | Path,
    *,
    out: str | Path | None = None,
    title: str | None = None,
    truth: Mapping[str, float] | None = None,
    scores: Mapping[str, Scored] | None = None,
    command: str | None = None,
) -> Path:
    """Turn a run directory into one HTML file that needs no network and no scripts, and return where it is.

    It goes to `out`, or to report.html in the run directory. `truth` is the known skill of some or all demonstrators,
    from 0 to 1, to be shown beside the estimate; `scores` names policies and how well they did, in the order in which
    to show them; `command` is what made the run, where its provenance does not tell.
    """
    drawing = _Drawing()
    run = Path(path)
    target = run / "report.html" if out is None else Path(out)
    fitted = load(run)
    title = title or f"Demonstrator report: {run.resolve().name}"
    page = _page(title, fitted, _people(fitted, truth), _sections(fitted, truth, scores), command, drawing)
    runs.write_file(target, page.encode("utf-8"))
    return target


def figures(
    path: str | Path,
    out_dir: str | Path,
    *,
    format: Literal["svg", "png"] = "svg",  # noqa: A002 (the word that users of altair and matplotlib know)
    truth: Mapping[str, float] | None = None,
    scores: Mapping[str, Scored] | None = None,
) -> dict[str, Path]:
    """Write each chart of the report as a file of its own, and return where each one is, by name.

    The names are "ranking", "scores", "restarts", "learning", "states" and "skills", as far as the run has them.
    """
    if format not in ("svg", "png"):
        raise SettingsError(f"format is {format!r}: there are 'svg' and 'png'")
    drawing = _Drawing()
    written = {}
    for section in _sections(load(path), truth, scores):
        if section.figure is not None:
            written[section.figure.name] = Path(out_dir) / f"{section.figure.name}.{format}"
            runs.write_file(written[section.figure.name], drawing.file(section.figure, format))
    return written


# What is told


@final
@dataclass(frozen=True)
class _Person:
    """A demonstrator: a printable name that nobody shares, and the expertise with its 10 to 90 % range over states."""

    index: int
    label: str
    expertise: float
    low: float
    high: float
    known: float | None


@final
@dataclass(frozen=True)
class _Figure:
    """A chart by name, what it shows in words, and how to draw it for a wide or a narrow screen."""

    name: str
    description: str
    draw: Callable[[ModuleType, bool], Any]


@final
@dataclass(frozen=True)
class _Section:
    """A heading, paragraphs (HTML already), a chart after the first of them, and numbers to unfold."""

    heading: str
    paragraphs: Sequence[str]
    figure: _Figure | None = None
    numbers: str = ""


def _sections(fitted: Fitted, truth: Mapping[str, float] | None, scores: Mapping[str, Scored] | None) -> list[_Section]:
    people = _people(fitted, truth)
    return [
        _ranking(fitted, people),
        *([_scored(scores)] if scores else []),
        _restarts(fitted),
        _learning(fitted),
        _where(fitted, people),
    ]


def _people(fitted: Fitted, truth: Mapping[str, float] | None) -> list[_Person]:
    """Everybody, best first; those of whom nothing is known stand last."""
    known = _known(fitted, truth)
    survey = fitted.expertise.survey
    quantiles = survey.quantiles.numpy()
    low, high = quantiles[:, quantiles.shape[1] // 10], quantiles[:, -1 - quantiles.shape[1] // 10]
    labels = _labels(fitted.expertise.names)
    people = [
        _Person(index, labels[index], float(value), float(low[index]), float(high[index]), known.get(name))
        for index, (name, value) in enumerate(fitted.expertise.by_demonstrator().items())
    ]
    return sorted(people, key=lambda person: (math.isnan(person.expertise), -person.expertise))


def _known(fitted: Fitted, truth: Mapping[str, float] | None) -> Mapping[str, float]:
    for name, value in (truth or {}).items():
        if name not in fitted.expertise.names:
            raise SettingsError(f"truth names {name!r}, whom this run does not know: it has {fitted.expertise.names}")
        if not 0 <= value <= 1:
            raise SettingsError(f"the known skill of {name!r} is {value}: skill goes from 0 to 1")
    return truth or {}


def _labels(names: Sequence[str]) -> list[str]:
    """Names as a page can hold them: what cannot be printed is replaced, and what then looks alike is numbered."""
    labels: dict[str, None] = {}
    for name in names:
        printed = label = _printable(name).strip()[:200] or "(no name)"
        alike = 1
        while label in labels:
            alike += 1
            label = f"{printed} ({alike})"
        labels[label] = None
    return list(labels)


def _shown(people: Sequence[_Person]) -> tuple[list[_Person], int]:
    """Those to show, and how many are left out between the two halves."""
    left_out = len(people) - 2 * _SHOWN
    return (list(people), 0) if left_out <= 0 else ([*people[:_SHOWN], *people[-_SHOWN:]], left_out)


def _rows(people: Sequence[_Person]) -> list[str]:
    """The labels of those shown, in order, with a row between the halves that says how many are left out."""
    shown, left_out = _shown(people)
    labels = [person.label for person in shown]
    return labels if not left_out else [*labels[:_SHOWN], f"… {left_out:,} others …", *labels[_SHOWN:]]


def _verdict(fitted: Fitted, people: Sequence[_Person]) -> str:
    """The result in one sentence: who stands out, or how expertise falls from the best to the worst."""
    if not fitted.estimates_expertise:
        return f"Plain behaviour cloning of {_people_count(len(people))}: everybody was taken to be equally good."
    known = [person for person in people if not math.isnan(person.expertise)]
    if len(known) < 2 or known[0].expertise <= 0:
        return f"There is data of {_people_count(len(known))} only, so there is nobody to compare with."
    relative = [person.expertise / known[0].expertise for person in known]
    if relative[-1] > 0.9:
        return f"All {_number(len(known))} demonstrators follow the learned policy about equally closely."
    gaps = [before - after for before, after in pairwise(relative)]
    above = gaps.index(max(gaps)) + 1
    if max(gaps) < 0.3:
        return (
            f"Expertise falls step by step from {known[0].label}, who follows the learned policy most closely, "
            f"to {known[-1].label}, whose expertise is {relative[-1] * 100:.0f} % of that."
        )
    far = "far " if np.mean(relative[:above]) >= 2 * np.mean(relative[above:]) else ""
    if above <= len(known) - above:
        return _apart(known[:above], known[above:], len(known), f"{far}more")
    return _apart(known[above:], known[:above], len(known), f"{far}less")


def _apart(few: Sequence[_Person], others: Sequence[_Person], count: int, how: str) -> str:
    follow = "follows" if len(few) == 1 else "follow"
    named = [person.label for person in few]
    who = " and ".join(", ".join(named).rsplit(", ", 1)) if len(few) > 1 else named[0]
    if len(few) > 3:
        who = f"{_number(len(few)).capitalize()} of the {_number(count)} demonstrators"
    rest = others[0].label if len(others) == 1 else f"the {_number(len(others))} others"
    return f"{who} {follow} the learned policy {how} closely than {rest}."


def _ranking(fitted: Fitted, people: Sequence[_Person]) -> _Section:
    heading = "Who follows the learned policy most closely"
    if not fitted.estimates_expertise:
        return _Section(
            heading,
            [
                "This run is behaviour cloning. It takes every demonstrator to be perfect, by assumption, so there is "
                "no ranking. Fit with <code>ileed.Ileed()</code> to estimate who is good."
            ],
        )
    _, left_out = _shown(people)
    text = [
        f"Expertise runs from 0 ({_zero(fitted)}) to 1 (exactly as the learned policy does). Each bar is an average "
        "over that person's own steps; the dark line is where the middle 80 % of those steps lie. A long line means "
        "good in some states and poor in others; it is not a margin of error.",
        "Agreement with the policy is what is measured, not success at the task: no reward was used.",
    ]
    if isinstance(fitted.joint.parts.expertise, Embedded) and fitted.joint.parts.expertise.shared:
        text.append(
            "In this run all demonstrators share one set of skills, by assumption: they differ only in the states that "
            "they met."
        )
    if left_out:
        text.append(
            f"The {_SHOWN} highest and the {_SHOWN} lowest are shown; {left_out:,} demonstrators between them are "
            "left out here."
        )
    steps = fitted.provenance.get("data", {}).get("steps")
    if steps and steps < _FEW_STEPS * len(people):
        text.append(
            f"On average a person took only {steps / len(people):,.0f} steps: neighbours in this ranking may well "
            "belong the other way round."
        )
    if unseen := sum(math.isnan(person.expertise) for person in people):
        text.append(f"{_people_count(unseen).capitalize()} took no step in the data and cannot be ranked.")
    text += _agreement(people)
    described = f"Bars of estimated expertise: {people[0].label} is highest, {people[-1].label} is lowest"
    figure = _Figure("ranking", described, lambda alt, narrow: _ranking_chart(alt, people, narrow=narrow))
    return _Section(heading, text, figure, _ranking_table(people))


def _zero(fitted: Fitted) -> str:
    """What a person of no expertise would do."""
    demonstrator = fitted.joint.parts.demonstrator
    if isinstance(demonstrator, OneVersusRest):
        return f"always something else than the policy; acting at random is {1 / fitted.joint.sizes.actions:.2f}"
    if isinstance(demonstrator, VarianceScaling):
        return "no precision at all"
    return "at random"


def _agreement(people: Sequence[_Person]) -> list[str]:
    """How well the order agrees with known skill, where any two known skills differ."""
    known = {p.label: p.known for p in people if p.known is not None and math.isfinite(p.expertise)}
    values = list(known.values())
    equal = sum(values.count(value) - 1 for value in values) // 2
    pairs = len(values) * (len(values) - 1) // 2 - equal
    if not pairs:
        return []
    wrong = rank_loss({p.label: p.expertise for p in people if p.label in known}, known) * pairs
    return [
        f"Known skill, marked in orange, was given for {_people_count(len(known))}: the estimate puts {wrong:.4g} of "
        f"{pairs:,} pairs in the wrong order. Compare the order and the proportions with it, not the level."
    ]


def _scored(scores: Mapping[str, Scored]) -> _Section:
    rows = []
    for name, label in zip(scores, _labels([str(name) for name in scores]), strict=True):
        mean, (low, high) = float(scores[name].mean), scores[name].interval
        if not math.isfinite(mean):
            raise SettingsError(f"the score of {name!r} is {mean}: pass finite scores")
        sure = math.isfinite(low) and math.isfinite(high)
        told = f"{mean:.2f} ({low:.2f} to {high:.2f})" if sure else f"{mean:.2f} (one episode)"
        rows.append({"policy": label, "mean": mean, "told": told} | ({"low": low, "high": high} if sure else {}))
    described = "Mean scores: " + "; ".join(f"{row['policy']} {row['told']}" for row in rows)
    return _Section(
        "How well the policies do",
        [
            "The mean reward of an episode in the task; the line is where that mean lies with 95 % confidence, as far "
            "as chance in the episodes goes. Lines that overlap widely mean that the difference may be chance."
        ],
        _Figure("scores", described, lambda alt, narrow: _score_chart(alt, rows, narrow=narrow)),
    )


def _restarts(fitted: Fitted) -> _Section:
    heading = "Did the restarts agree?"
    costs = fitted.restarts.nats_per_action
    finite = np.flatnonzero(np.isfinite(costs))
    if len(costs) == 1:
        return _Section(
            heading,
            [
                f"There was one start only ({fitted.nats_per_action:.4f} nats per action), so there is nothing to "
                "compare it with. Raise <code>restarts</code> to learn how much the result owes to chance."
            ],
        )
    order = finite[np.argsort(costs[finite], kind="stable")]
    spread = float(costs[order[-1]] - costs[order[0]])
    close = int((costs[finite] - fitted.nats_per_action <= _TIED_NATS).sum())
    if close == len(finite):
        finding = f"All {_number(close)} ended within {_TIED_NATS} nats of each other: the start hardly mattered."
    elif close == 1:
        finding = (
            f"No other restart came within {_TIED_NATS} nats of the best (they spread over {spread:.3f} nats): a still "
            "better fit may exist. Raise <code>restarts</code>, and compare the rankings of two seeds."
        )
    else:
        finding = (
            f"{_number(close).capitalize()} of {len(finite):,} ended within {_TIED_NATS} nats of the best; all of them "
            f"spread over {spread:.3f} nats."
        )
    text = [
        f"The same fit was begun {_number(len(costs))} times from different random starts, and the one of least cost "
        f"was kept. Cost is the mean negative log-likelihood of {_costed(fitted)}, in nats per action; lower is "
        "better.",
        f"{finding} A wide spread means that some starts got stuck in worse solutions, which is why several are made; "
        "what matters is that more than one reaches the bottom.",
    ]
    if lost := len(costs) - len(finite):
        text.append(f"{_number(lost).capitalize()} of the restarts became non-finite and cannot be shown.")
    if len(order) > _DOTS:
        text.append(f"{_DOTS} of the restarts are drawn, evenly from the best to the worst.")
    ranks = np.unique(np.linspace(0, len(order) - 1, min(_DOTS, len(order))).round().astype(int))
    rows = [
        {
            "rank": int(rank) + 1,
            "cost": float(costs[order[rank]]),
            "kind": "kept" if order[rank] == fitted.restarts.chosen else "other restarts",
            "told": f"restart {order[rank] + 1}: {costs[order[rank]]:.4f} nats per action",
        }
        for rank in ranks
    ]
    described = f"Cost of each restart, lowest first, from {costs[order[0]]:.4f} to {costs[order[-1]]:.4f}"
    return _Section(
        heading, text, _Figure("restarts", described, lambda alt, narrow: _restart_chart(alt, rows, narrow=narrow))
    )


def _costed(fitted: Fitted) -> str:
    return "an action in the held-out episodes" if fitted.history.held_out is not None else "an action in the data"


def _learning(fitted: Fitted) -> _Section:
    heading = "How the fit went"
    history, chosen = fitted.history, fitted.restarts.chosen
    if not len(history.step):
        return _Section(heading, ["This run kept no learning curve."])
    others = [member for member in _by_cost(fitted) if member != chosen]
    drawn = [others[k] for k in np.unique(np.linspace(0, len(others) - 1, min(_CURVES - 1, len(others))).astype(int))]
    curves = [("other restarts", member, history.nats_per_action) for member in drawn]
    curves.append(("kept", chosen, history.nats_per_action))
    if history.held_out is not None:
        curves.append(("kept, on held-out episodes", chosen, history.held_out))
    records = np.unique(np.linspace(0, len(history.step) - 1, min(_RECORDS, len(history.step))).round().astype(int))
    rows: list[dict[str, Any]] = [
        {"step": int(history.step[k]), "cost": float(costs[k, member]), "curve": f"{kind} {member}", "kind": kind}
        for kind, member, costs in curves
        for k in records
        if np.isfinite(costs[k, member])
    ]
    late = [row for row in rows if row["step"] >= history.step[-1] / 20]  # the first steps may lie above the chart
    text = [
        f"Cost in nats per action after each step of the optimiser, lower is better. {_sentence(fitted.outcome.value)} "
        "A curve that still falls at the right edge asks for more <code>steps</code>."
    ]
    if history.held_out is not None:
        text.append(
            "The dashed curve is the cost on episodes that were not learned from. Where it rises while the other "
            "falls, the fit begins to learn the data by heart; the parameters at its lowest point were kept."
        )
    if len(drawn) < len(others):
        text.append(f"{len(drawn)} of the {len(others):,} other restarts are drawn, evenly from the best to the worst.")
    described = f"Learning curves; the kept restart ends at {fitted.nats_per_action:.4f} nats per action"
    domain = [min((row["cost"] for row in late), default=0.0), max((row["cost"] for row in late), default=1.0)]
    return _Section(
        heading,
        text,
        _Figure("learning", described, lambda alt, narrow: _learning_chart(alt, rows, domain, narrow=narrow)),
    )


def _by_cost(fitted: Fitted) -> list[int]:
    order: list[int] = np.argsort(fitted.restarts.nats_per_action, kind="stable").tolist()
    return order


def _where(fitted: Fitted, people: Sequence[_Person]) -> _Section:
    heading = "Where each person is good"
    if not fitted.estimates_expertise:
        return _Section(heading, ["Behaviour cloning takes everybody to be perfect everywhere, by assumption."])
    if isinstance(fitted.joint.parts.expertise, Constant):
        return _Section(
            heading,
            [
                "This run takes each person's expertise to be the same in all states, by assumption, so there is no "
                "map to show. Fit with <code>expertise=ileed.Embedded()</code> to let it depend on the state."
            ],
        )
    return _by_skill(fitted, people, heading) if fitted.expertise.skill_names else _by_state(fitted, people, heading)


def _by_skill(fitted: Fitted, people: Sequence[_Person], heading: str) -> _Section:
    skills = _labels(fitted.expertise.skill_names)[:_COLUMNS]
    values = [list(of_skill.values()) for of_skill in fitted.expertise.by_skill().values()]
    cells = [
        {
            "person": person.label,
            "column": skill,
            "expertise": values[person.index][k],
            "told": f"{_short(person.label)}, {_short(skill)}: expertise {values[person.index][k]:.2f}",
        }
        for person in _shown(people)[0]
        for k, skill in enumerate(skills)
    ]
    text = [
        "Each row is a person, best first; each column is a skill that the data name. Darker is closer to the learned "
        "policy."
    ]
    if len(fitted.expertise.skill_names) > len(skills):
        text.append(f"The first {len(skills)} of {len(fitted.expertise.skill_names):,} skills are shown.")
    return _Section(
        heading,
        text,
        _Figure(
            "skills",
            "Heat map of expertise, demonstrators by skills",
            lambda alt, narrow: _heat_map(alt, cells, _rows(people), skills, "skill", named=True, narrow=narrow),
        ),
    )


def _by_state(fitted: Fitted, people: Sequence[_Person], heading: str) -> _Section:
    survey = fitted.expertise.survey
    expertise, visits = survey.states.numpy(), survey.visits.numpy()
    if not visits.size or visits.sum(0).max() < 2:
        return _Section(
            heading,
            [
                "No observation occurs twice in these data, so there are no states in which to compare people side by "
                "side. The dark lines in the ranking tell how much each person's expertise varies, and "
                "<code>fitted.expertise(observations, name)</code> answers for any observations."
            ],
        )
    steps = fitted.provenance.get("data", {}).get("steps")
    share = f", which make up {visits.sum() / steps * 100:.0f} % of all steps" if steps else ""
    count = min(_COLUMNS, expertise.shape[1])
    text = [
        f"Each row is a person, best first; each column is one of the {count} observations visited most often{share}. "
        "Darker is closer to the learned policy. A small square stands where that person never was: there the value is "
        "what the model expects, not what was seen.",
        "Columns run from the states where people are best to those where they are worst. Hover over a cell for its "
        "numbers; state 1 is the most visited.",
    ]

    def draw(alt: ModuleType, narrow: bool) -> Any:
        columns = min(24, count) if narrow else count
        order = np.argsort(-_mean_expertise(expertise, visits)[:columns], kind="stable")
        cells = _cells(_shown(people)[0], expertise[:, order], visits[:, order], order)
        labels = [f"{state + 1}" for state in order]
        told = f"the {columns} most visited states, best to worst" if narrow else "states, from best to worst"
        return _heat_map(alt, cells, _rows(people), labels, told, named=False, narrow=narrow)

    return _Section(heading, text, _Figure("states", "Heat map of expertise, demonstrators by states", draw))


def _mean_expertise(expertise: Array, visits: Array) -> Array:
    """Each state's expertise, averaged over the steps that were taken there."""
    return np.asarray((expertise * visits).sum(0) / visits.sum(0).clip(min=1))


def _cells(people: Sequence[_Person], expertise: Array, visits: Array, states: Array) -> list[dict[str, Any]]:
    return [
        {
            "person": person.label,
            "column": f"{state + 1}",
            "expertise": round(float(expertise[person.index, k]), 3),
            "visited": bool(visits[person.index, k]),
            "told": f"{_short(person.label)}, state {state + 1}: {expertise[person.index, k]:.2f}, "
            + (f"steps: {visits[person.index, k]:,}" if visits[person.index, k] else "never there"),
        }
        for person in people
        for k, state in enumerate(states.tolist())
    ]


# How it is drawn


@final
class _Drawing:
    """The libraries that draw, asked for before any work is done."""

    def __init__(self) -> None:
        self._altair = require("altair", extra="report")
        self._convert = require("vl_convert", extra="report")

    def file(self, figure: _Figure, kind: str) -> bytes:
        specification = self._specification(figure, narrow=False)
        if kind == "png":
            return bytes(self._convert.vegalite_to_png(specification, scale=2))
        return str(self._convert.vegalite_to_svg(specification)).encode("utf-8")

    def inline(self, figure: _Figure) -> str:
        """The chart for wide and for narrow screens, as elements of a page."""
        return "".join(
            _tidied(self._convert.vegalite_to_svg(self._specification(figure, narrow=narrow)), figure, kind)
            for narrow, kind in ((False, "wide"), (True, "narrow"))
        )

    def _specification(self, figure: _Figure, *, narrow: bool) -> dict[str, Any]:
        specification: dict[str, Any] = figure.draw(self._altair, narrow).to_dict()
        specification["config"] = _CONFIG
        specification["width"] = 372 if narrow else 800
        specification["autosize"] = {"type": "fit-x", "contains": "padding"}
        return specification


_TEXT = {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "labelColor": _INK, "titleColor": _INK}
_CONFIG: dict[str, Any] = {
    "background": "white",
    "padding": {"left": 16, "right": 8, "top": 4, "bottom": 4},  # room for a reader's font that is wider than ours
    "font": "sans-serif",
    "view": {"stroke": None},
    "axis": {**_TEXT, "gridColor": "#e6e9ec", "domainColor": _GREY, "tickColor": _GREY, "labelOverlap": True},
    "axisY": {"titlePadding": 12},
    "legend": {
        **_TEXT,
        "orient": "top",
        "symbolStrokeWidth": 3,
        "symbolOpacity": 1,
        "labelLimit": 0,
        "columnPadding": 32,
    },
}


def _keyed(alt: ModuleType, colours: Mapping[str, str], *, narrow: bool, symbol: str = "square") -> dict[str, Any]:
    """A scale and a legend for marks that are told apart by name."""
    return {
        "scale": alt.Scale(domain=list(colours), range=list(colours.values())),
        "legend": alt.Legend(orient="top", title=None, symbolType=symbol, columns=1 if narrow else len(colours)),
    }


def _as(chart: Any, kind: str) -> Any:
    """The same rows, all of the kind that the legend calls by this name."""
    return chart.transform_calculate(kind=f"'{kind}'")


def _by_person(alt: ModuleType, rows: Sequence[str], *, narrow: bool) -> Any:
    return alt.Y(
        "person:N",
        sort=None,
        title=None,
        scale=alt.Scale(domain=list(rows)),
        axis=alt.Axis(labelLimit=110 if narrow else 220, ticks=False, domain=False, labelPadding=8, labelOverlap=False),
    )


def _height(alt: ModuleType, rows: int) -> Any:
    return alt.Step(24 if rows <= 25 else 16)


def _ranking_chart(alt: ModuleType, people: Sequence[_Person], *, narrow: bool) -> Any:
    rows = _rows(people)
    values = [
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
        for person in _shown(people)[0]
        if math.isfinite(person.expertise)
    ]
    mean, spread, skill = "estimated expertise", "middle 80 % of their own steps", "known skill"
    colours = {mean: "#7db8da", spread: _INK} | ({skill: _ORANGE} if any("known" in row for row in values) else {})
    keyed = alt.Color("kind:N", **_keyed(alt, colours, narrow=narrow))
    x = alt.X("expertise:Q", scale=alt.Scale(domain=[0, 1]), title="expertise", axis=alt.Axis(tickCount=5))
    base = alt.Chart(alt.Data(values=values)).encode(y=_by_person(alt, rows, narrow=narrow))
    layers = [
        _as(base, mean).mark_bar(height={"band": 0.72}).encode(x=x, color=keyed, description="told:N"),
        _as(base, spread).mark_rule(strokeWidth=2, aria=False).encode(x="low:Q", x2="high:Q", color=keyed),
        base.mark_text(align="left", dx=6, fontSize=12, color=_INK, aria=False).encode(x=alt.datum(1), text="value:N"),
    ]
    if skill in colours:
        known = _as(base, skill).transform_filter("isValid(datum.known)")
        layers.append(known.mark_tick(thickness=4, height=15, opacity=1, aria=False).encode(x="known:Q", color=keyed))
    padding = {"left": 16, "right": 40, "top": 4, "bottom": 4}
    return alt.layer(*layers).properties(height=_height(alt, len(rows)), padding=padding)


def _score_chart(alt: ModuleType, rows: Sequence[Mapping[str, Any]], *, narrow: bool) -> Any:
    base = alt.Chart(alt.Data(values=list(rows))).encode(
        y=alt.Y(
            "policy:N",
            sort=None,
            title=None,
            axis=alt.Axis(labelLimit=110 if narrow else 220, ticks=False, domain=False, labelPadding=8),
        )
    )
    ends = [float(row[end]) for row in rows for end in ("low", "high", "mean") if end in row]
    x = alt.X(
        "mean:Q",
        title="mean reward of an episode",
        scale=alt.Scale(domain=[min(0.0, *ends), max(0.0, *ends)]),
        axis=alt.Axis(tickCount=5),
    )
    return (
        alt.layer(
            base.mark_bar(height={"band": 0.4}, color="#7db8da").encode(x=x, description="told:N"),
            base.transform_filter("isValid(datum.low)")
            .mark_rule(strokeWidth=2, color=_INK, aria=False)
            .encode(x="low:Q", x2="high:Q"),
            base.mark_text(align="left", baseline="top", dx=4, dy=12, fontSize=12, color=_INK, aria=False).encode(
                x=alt.datum(min(0.0, *ends)), text="told:N"
            ),
        )
    ).properties(height=alt.Step(52))


def _restart_chart(alt: ModuleType, rows: Sequence[Mapping[str, Any]], *, narrow: bool) -> Any:
    return (
        alt.Chart(alt.Data(values=list(rows)))
        .mark_circle(opacity=1)
        .encode(
            x=alt.X(
                "rank:Q",
                title="restart, best first",
                scale=alt.Scale(domain=[0.5, rows[-1]["rank"] + 0.5], nice=False),
                axis=alt.Axis(grid=False, tickMinStep=1, format=",d", tickCount=5 if narrow else 10),
            ),
            y=alt.Y("cost:Q", title="nats per action", scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=5)),
            color=alt.Color(
                "kind:N",
                **_keyed(alt, {"kept": _ORANGE, "other restarts": _GREY}, narrow=narrow, symbol="circle"),
            ),
            size=alt.condition("datum.kind == 'kept'", alt.value(140), alt.value(60)),
            description="told:N",
        )
        .properties(height=200)
    )


def _learning_chart(
    alt: ModuleType, rows: Sequence[Mapping[str, Any]], domain: Sequence[float], *, narrow: bool
) -> Any:
    held_out = any(row["kind"] == "kept, on held-out episodes" for row in rows)
    colours = {"kept": _ORANGE, "other restarts": "#c9d0d6"}
    if held_out:
        colours = {"kept": _ORANGE, "kept, on held-out episodes": _BLUE, "other restarts": "#c9d0d6"}
    data = alt.Chart(alt.Data(values=list(rows))).encode(
        x=alt.X("step:Q", title="step", axis=alt.Axis(grid=False, tickCount=4 if narrow else 8)),
        y=alt.Y("cost:Q", title="nats per action", scale=alt.Scale(domain=list(domain), nice=True)),
        color=alt.Color("kind:N", **_keyed(alt, colours, narrow=narrow, symbol="stroke")),
        detail="curve:N",
    )
    layers = [
        data.transform_filter("datum.kind == 'other restarts'").mark_line(strokeWidth=1, clip=True, aria=False),
        data.transform_filter("datum.kind == 'kept'").mark_line(strokeWidth=2.5, clip=True, aria=False),
    ]
    if held_out:
        kept = data.transform_filter("datum.kind == 'kept, on held-out episodes'")
        layers.append(kept.mark_line(strokeWidth=2.5, strokeDash=[5, 3], clip=True, aria=False))
    return alt.layer(*layers).properties(height=240)


def _heat_map(
    alt: ModuleType,
    cells: Sequence[Mapping[str, Any]],
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    *,
    named: bool,
    narrow: bool,
) -> Any:
    highest = max((cell["expertise"] for cell in cells), default=1.0)
    base = alt.Chart(alt.Data(values=list(cells))).encode(
        x=alt.X(
            "column:N",
            sort=None,
            title=title,
            scale=alt.Scale(domain=list(columns)),
            axis=alt.Axis(labels=named, ticks=False, domain=False, labelAngle=0 if len(columns) <= 8 else -60),
        ),
        y=_by_person(alt, rows, narrow=narrow),
        color=alt.Color(
            "expertise:Q",
            scale=alt.Scale(scheme="cividis", reverse=True, domain=[0, highest]),
            legend=alt.Legend(orient="top", title="expertise", gradientLength=160, format=".2~f", tickCount=3),
        ),
        description="told:N",
    )
    layers = [base.transform_filter("datum.visited !== false").mark_rect(stroke="white", strokeWidth=0.5)]
    if any(cell.get("visited") is False for cell in cells):
        layers.append(base.transform_filter("datum.visited === false").mark_square(size=14, opacity=1, strokeWidth=0))
    if named and len(columns) <= (4 if narrow else 10):
        ink = alt.condition(f"datum.expertise > {0.5 * highest}", alt.value("white"), alt.value(_INK))
        text = base.mark_text(fontSize=12, aria=False)
        layers.append(text.encode(text=alt.Text("expertise:Q", format=".2f"), color=ink))
    return alt.layer(*layers).properties(height=_height(alt, len(rows)))


_SVG = "http://www.w3.org/2000/svg"


def _tidied(drawn: str, figure: _Figure, kind: str) -> str:
    """A chart to stand among others in one page: its ids its own, and what each mark says as a title to hover over."""
    ElementTree.register_namespace("", _SVG)
    root = ElementTree.fromstring(drawn)
    drawn_ids = [element.get("id") for element in root.iter() if "id" in element.attrib]
    ids = {
        before: f"{figure.name}-{kind}-{k}" for k, before in enumerate(drawn_ids)
    }  # theirs count on from chart to chart
    for parent in root.iter():
        for child in list(parent):
            if child.get("class") in ("foreground", "background") and child.get("d") in ("", "M0,0h0v0h0Z"):
                parent.remove(child)
    for element in root.iter():
        told, symbol = element.get("aria-label"), element.tag in (f"{{{_SVG}}}path", f"{{{_SVG}}}line")
        for name in ("aria-label", "aria-roledescription", "aria-hidden", "role", "class", "font-family"):
            element.attrib.pop(name, None)
        if element.get("opacity") == "1":
            del element.attrib["opacity"]
        if told and symbol:
            ElementTree.SubElement(element, f"{{{_SVG}}}title").text = told
        for name, value in element.attrib.items():
            element.set(name, ids[value] if name == "id" else _plainer(value, ids))
    root.set("class", kind)
    root.set("role", "img")
    root.set("aria-label", figure.description)
    return ElementTree.tostring(root, encoding="unicode")


def _plainer(value: str, ids: Mapping[str | None, str]) -> str:
    """An attribute's value in fewer letters: new ids, colours as hexadecimals, a tenth of a pixel at the finest."""
    if value.startswith("url(#"):
        return f"url(#{ids[value[5:-1]]})"
    if value.startswith("rgb("):
        return "#" + "".join(f"{int(part):02x}" for part in re.findall(r"\d+", value)[:3])
    return re.sub(r"-?\d+\.\d{2,}", lambda number: f"{float(number[0]):.1f}", value)


# The page


def _page(
    title: str,
    fitted: Fitted,
    people: Sequence[_Person],
    sections: Sequence[_Section],
    command: str | None,
    drawing: _Drawing,
) -> str:
    relative = (
        "Expertise is relative: the data fix how people compare with each other, and only a sharp policy fixes the "
        "common level. Read ratios and order; do not read 0.8 as “right 80 % of the time”."
    )
    told = "".join(_told(section, drawing) for section in sections)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{_escaped(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<header>
<h1>{_escaped(title)}</h1>
<p class="verdict">{_escaped(_verdict(fitted, people))}</p>
{f'<p class="small">{relative}</p>' if fitted.estimates_expertise else ""}
{_key_figures(fitted)}
<p>{_introduction(fitted)}</p>
</header>
{told}<section>
<h2>How this was made</h2>
{_made(fitted, command)}
</section>
</main>
</body>
</html>
"""


def _introduction(fitted: Fitted) -> str:
    if not fitted.estimates_expertise:
        return "One policy was learned from everybody's demonstrations alike."
    return (
        "Several people demonstrated the same task. One policy was learned from all of them, and with it how closely "
        "each person follows that policy. Nobody's skill was given beforehand."
    )


def _told(section: _Section, drawing: _Drawing) -> str:
    first, *others = section.paragraphs
    figure = "" if section.figure is None else f"<figure>{drawing.inline(section.figure)}</figure>\n"
    rest = "".join(f"<p>{paragraph}</p>\n" for paragraph in others)
    return f"<section>\n<h2>{section.heading}</h2>\n<p>{first}</p>\n{figure}{rest}{section.numbers}</section>\n"


def _key_figures(fitted: Fitted) -> str:
    data = fitted.provenance.get("data", {})
    sizes = fitted.joint.sizes
    guessing = f"guessing: {math.log(sizes.actions):.2f}" if sizes.discrete and not sizes.has_legal_actions else ""
    seconds = fitted.provenance.get("seconds")
    tiles = [
        ("demonstrators", f"{len(fitted.expertise.names):,}", ""),
        ("episodes", _grouped(data.get("episodes")), ""),
        ("steps", _grouped(data.get("steps")), ""),
        ("nats per action", f"{fitted.nats_per_action:.3f}", guessing),
        ("restarts", f"{len(fitted.restarts.nats_per_action):,}", ""),
        ("seconds", "unknown" if seconds is None else f"{seconds:,.1f}", ""),
        ("seed", str(fitted.provenance.get("seed", "unknown")), ""),
    ]
    cells = "".join(
        f"<div><dt>{label}{f'<small>{note}</small>' if note else ''}</dt><dd>{_escaped(value)}</dd></div>"
        for label, value, note in tiles
    )
    return (
        f'<dl class="tiles">{cells}</dl>\n<p class="outcome"><b>How it ended:</b> {_marked(fitted.outcome.value)}.</p>'
    )


def _ranking_table(people: Sequence[_Person]) -> str:
    shown, left_out = _shown(people)
    known = any(person.known is not None for person in shown)
    rows = []
    for place, person in enumerate(shown):
        if left_out and place == _SHOWN:
            rows.append(f'<tr><td></td><td colspan="4">… {left_out:,} others …</td></tr>')
        rank = place + 1 + (left_out if place >= _SHOWN else 0)
        skill = "" if person.known is None else f"{person.known:.3f}"
        numbers = [f"{value:.3f}" for value in (person.expertise, person.low, person.high)]
        cells = "".join(f"<td>{value}</td>" for value in (*numbers, *([skill] if known else [])))
        rows.append(f"<tr><td>{rank}</td><th scope=row>{_escaped(person.label)}</th>{cells}</tr>")
    heads = ["", "demonstrator", "expertise", "10 %", "90 %", *(["known"] if known else [])]
    head = "".join(f"<th scope=col>{name}</th>" for name in heads)
    return (
        f"<details><summary>The numbers</summary><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></details>\n"
    )


def _made(fitted: Fitted, command: str | None) -> str:
    provenance = dict(fitted.provenance)
    command = command or provenance.pop("command", None)
    call = f"{_changed(fitted.method)}.fit(demonstrations, seed={provenance.get('seed', '...')})"
    entries = [*([("command", command)] if command else []), ("the same in Python", call)]
    parts = fitted.joint.parts
    method = {item.name: getattr(fitted.method, item.name) for item in _fields(fitted.method)}
    method |= {name: getattr(parts, name) for name in ("policy", "demonstrator", "expertise", "dynamics")}
    return (
        f"<dl class=made>{_defined(entries, code=True)}</dl>\n<h3>Settings</h3>\n"
        f"<dl class=made>{_defined(_readable(method))}</dl>\n<h3>Provenance</h3>\n"
        f"<dl class=made>{_defined(_readable(provenance))}</dl>\n"
    )


def _fields(value: Any) -> Iterable[Any]:
    return fields(value) if is_dataclass(value) else ()


def _changed(value: Any) -> str:
    """A setting as one would write it, without what is left at its default."""
    if not is_dataclass(value):
        return repr(value)
    changed = [item for item in fields(value) if getattr(value, item.name) != item.default]
    return f"ileed.{type(value).__name__}({', '.join(f'{i.name}={_changed(getattr(value, i.name))}' for i in changed)})"


def _readable(values: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    """Entries as a reader would name them: mappings opened, underscores gone, None in words."""
    entries: list[tuple[str, str]] = []
    for name, value in values.items():
        label = f"{before}{name.replace('_', ' ')}"
        if isinstance(value, Mapping):
            entries += _readable(value, f"{label}: ")
        elif value is None:
            entries.append((label, "chosen by the data" if name in ("batch_size", "normalise") else "none"))
        elif isinstance(value, int) and not isinstance(value, bool) and name != "seed":
            entries.append((label, f"{value:,}"))
        else:
            entries.append((label, str(value)))
    return entries


def _defined(entries: Sequence[tuple[str, str]], *, code: bool = False) -> str:
    opened, closed = ("<code>", "</code>") if code else ("", "")
    return "".join(
        f"<dt>{_escaped(name)}</dt><dd>{opened}{_escaped(_without_home(value))}{closed}</dd>" for name, value in entries
    )


_ABSOLUTE = re.compile(r"""(?<![\w./\\:-])(?:~|[A-Za-z]:)?[\\/](?:[^\s'"\\/]+[\\/])*([^\s'"\\/]*)""")


def _without_home(text: str) -> str:
    """Absolute paths cut to their last part: a report is passed on, and its maker's folders are nobody's affair."""
    return _ABSOLUTE.sub(r"\1", text)


def _escaped(text: str) -> str:
    return html.escape(_printable(text))


def _printable(text: str) -> str:
    return "".join(sign if sign.isprintable() else "\ufffd" for sign in text)


def _short(label: str) -> str:
    """What thousands of cells repeat must be short, or the page grows heavy."""
    return label if len(label) <= 24 else f"{label[:23]}…"


def _marked(text: str) -> str:
    """Our own sentences, in which `code` stands between backquotes."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(text))


def _sentence(text: str) -> str:
    return _marked(text[:1].upper() + text[1:]) + "."


def _grouped(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else "unknown"


_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def _number(count: int) -> str:
    words = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
    return words[count] if count < len(words) else f"{count:,}"


def _people_count(count: int) -> str:
    return f"{_number(count)} demonstrator{'' if count == 1 else 's'}"


_STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0; background: #fff; color: #1f2933; font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto,
  "Helvetica Neue", Arial, sans-serif; }
main { max-width: 900px; margin: 0 auto; padding: 40px 24px 64px; overflow-wrap: anywhere; }
h1 { font-size: 1.2rem; font-weight: 600; color: #52606d; margin: 0 0 .5rem; }
h2 { font-size: 1.3rem; line-height: 1.3; margin: 3rem 0 .5rem; padding-top: 1.25rem; border-top: 1px solid #dde2e6; }
h3 { font-size: 1rem; margin: 1.5rem 0 .5rem; }
p { margin: .5rem 0; max-width: 46rem; }
.verdict { font-size: 1.75rem; line-height: 1.25; font-weight: 650; margin: 0 0 .75rem; }
.small { font-size: .875rem; color: #52606d; }
code { font: .875em ui-monospace, "SF Mono", Menlo, Consolas, monospace; background: #f1f4f6; padding: .1em .3em;
  border-radius: 3px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(108px, 1fr)); gap: 8px;
  margin: 1.5rem 0 .75rem; }
.tiles div { background: #f1f4f6; border-radius: 6px; padding: 10px; display: flex;
  flex-direction: column-reverse; justify-content: flex-end; }
.tiles dt { font-size: .75rem; overflow-wrap: normal; color: #52606d; }
.tiles dd { margin: 0; font-size: 1.25rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.tiles small { display: block; font-size: 1em; }
figure { margin: 1.25rem 0; }
svg { display: block; max-width: 100%; height: auto; overflow: visible; }
svg text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
svg path:has(> title):hover { stroke: #1f2933; stroke-width: 1.5; }
svg.narrow { display: none; }
details { margin: 1rem 0; }
summary { cursor: pointer; color: #00588a; }
table { border-collapse: collapse; margin: .75rem 0; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 3px 10px; border-bottom: 1px solid #e6e9ec; }
th { font-weight: 500; }
thead th { color: #52606d; }
th:nth-child(2), td[colspan] { text-align: left; }
.made { display: grid; grid-template-columns: minmax(8rem, max-content) 1fr; gap: 4px 20px; margin: .5rem 0;
  font-size: .9rem; }
.made dt { color: #52606d; }
.made dd { margin: 0; }
@media screen and (max-width: 640px) {
  main { padding: 24px 20px 48px; }
  .verdict { font-size: 1.4rem; }
  svg.wide { display: none; }
  svg.narrow { display: block; }
  th, td { padding: 3px 5px; }
  .made { display: block; }
  .made dd { margin: 0 0 .5rem; }
}
@media print {
  main { max-width: none; padding: 0; }
  section > p, figure, .tiles div { break-inside: avoid; }
  h2 { break-after: avoid; }
}
"""
