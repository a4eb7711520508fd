"""Health of a fit: how far its restarts agree, and how the cost fell."""

from __future__ import annotations

import numpy as np

from ileed.fitted import Fitted
from ileed.report.charts import Chart, Curve, Scale, dots, lines
from ileed.report.layout import Section
from ileed.report.text import as_sentence, decimal, number, say

_CURVES = 40  # learning curves at most
_RECORDS = 80  # points of a learning curve at most
_DOTS = 150  # restarts shown as dots at most
_TIED_NATS = 0.01  # restarts this close to the best are said to have found the same optimum


def health_sections(fitted: Fitted) -> list[Section]:
    """How the fit went, the last section: what its restarts and curves tell of it."""
    outcome = say("outcome", outcome=as_sentence(fitted.outcome.value), cost=decimal(fitted.nats_per_action, 3))
    charts, told = [], []
    for make in (_restarts, _learning):
        chart, words = make(fitted)
        charts += [chart] if chart is not None else []
        told += words
    text = [outcome, as_sentence(fitted.width_sentence)]
    return [Section("fit", "How the fit went", text, charts, told, side_by_side=True)]


def _restarts(fitted: Fitted) -> tuple[Chart | None, list[str]]:
    costs = fitted.restarts.nats_per_action
    if len(costs) == 1:
        return None, [say("one_restart", cost=fitted.nats_per_action)]
    order = np.argsort(costs, kind="stable")[: np.isfinite(costs).sum()]  # restarts that were lost have infinite cost
    best, worst, lost = float(costs[order[0]]), float(costs[order[-1]]), len(costs) - len(order)
    close = number(int((costs[order] - fitted.nats_per_action <= _TIED_NATS).sum())).capitalize()
    data = "data" if fitted.history.held_out is None else "held-out episodes"
    text = [
        say("restarts", count=number(len(costs)), data=data),
        say("restarts_agree", close=close, count=len(order), tied=_TIED_NATS, range=worst - best),
        say("restarts_lost", lost=number(lost).capitalize()) if lost else "",
        say("restarts_shown", shown=_DOTS) if len(order) > _DOTS else "",
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
    return Chart("restarts", told, body, 226, [("dot-two", "kept"), ("dot-other", "other restarts")]), text


def _learning(fitted: Fitted) -> tuple[Chart, list[str]]:
    history, chosen = fitted.history, fitted.restarts.chosen
    others = [member for member in np.argsort(fitted.restarts.nats_per_action, kind="stable") if member != chosen]
    drawn = [others[index] for index in _evenly_spaced(len(others), _CURVES - 1)]
    wanted = [("other", member, history.nats_per_action) for member in drawn]
    wanted.append(("two", chosen, history.nats_per_action))
    if history.held_out is not None:
        wanted.append(("dashed", chosen, history.held_out))
    records = _evenly_spaced(len(history.step), _RECORDS)
    points = [[(float(history.step[k]), float(costs[k, member])) for k in records] for _, member, costs in wanted]
    curves = [
        Curve([point for point in each if np.isfinite(point[1])], kind)
        for each, (kind, _, _) in zip(points, wanted, strict=True)
    ]
    late = [cost for curve in curves for step, cost in curve.points if step >= history.step[-1] / 20]
    x = Scale(float(history.step[0]), max(float(history.step[-1]), float(history.step[0]) + 1))
    body = lines(
        curves, x, Scale.of(late, zero=False), height=180, across="optimisation step; height is nats per action"
    )
    told = f"Learning curves; the kept restart ends at {fitted.nats_per_action:.4f} nats per action"
    marks = [("two", "kept"), ("dashed", "kept, on held-out episodes"), ("other", "other restarts")]
    kinds = {curve.kind for curve in curves}
    text = [
        say("learning"),
        say("held_out") if history.held_out is not None else "",
        say("curves_shown", shown=len(drawn), others=len(others)) if len(drawn) < len(others) else "",
    ]
    return Chart("learning", told, body, 226, [mark for mark in marks if mark[0] in kinds]), text


def _evenly_spaced(count: int, most: int) -> list[int]:
    """Indices of `count` things, or of at most `most` of them, evenly spaced from the first to the last."""
    if not count:
        return []
    indices: list[int] = np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(int)).tolist()
    return indices
