"""A table like that of a triage desk, whose answer is known: who decided what in which case, and how skilled each was.

Thirty nurses take 200 cases each. A case has six numbers and a way of arrival; the best of four decisions follows from
them by a rule with products and thresholds. With probability `skill` a nurse takes the best decision, and otherwise one
of the four uniformly at random. Skills are evenly spread from .35 to .95, in random order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

DECISIONS = ("admit", "discharge", "observe", "refer")
ARRIVALS = ("ambulance", "referral", "walk-in")
NUMBERS = ("age", "systolic", "pulse", "temperature", "oxygen", "pain")


def triage(seed: int, *, people: int = 30, cases: int = 200) -> tuple[dict[str, Any], dict[str, float]]:
    """Columns of the table, one row a case, and every nurse's skill by name; the rows are in random order."""
    rng = np.random.default_rng(seed)
    steps = people * cases
    columns = case_columns(rng, steps)
    best = best_decision(columns)
    names = np.array([f"nurse {number:02d}" for number in range(1, people + 1)])
    skill = rng.permutation(np.linspace(0.35, 0.95, people))
    nurse = rng.permutation(np.repeat(np.arange(people), cases))
    follows = rng.random(steps) < skill[nurse]
    decision = np.where(follows, best, rng.choice(DECISIONS, size=steps))
    columns = {"case": np.arange(steps), "nurse": names[nurse]} | columns | {"decision": decision}
    return columns, dict(zip(names.tolist(), skill.tolist(), strict=True))


def case_columns(rng: np.random.Generator, count: int) -> dict[str, Any]:
    """The features of so many cases: six columns of numbers, of which two are whole numbers, and one of words."""
    return {
        "age": rng.integers(1, 96, size=count),
        "systolic": rng.normal(125, 22, size=count).round(1),
        "pulse": rng.normal(85, 18, size=count).round(1),
        "temperature": rng.normal(37.4, 0.9, size=count).round(2),
        "oxygen": (100 - rng.gamma(2.0, 2.2, size=count)).round(1),
        "pain": rng.integers(0, 11, size=count),
        "arrival": rng.choice(ARRIVALS, size=count, p=(0.3, 0.2, 0.5)),
    }


def best_decision(columns: dict[str, Any]) -> Any:
    """The best decision in each case, as text: the largest of four scores, none of which is linear in the features."""
    age, systolic, pulse, temperature, oxygen, pain = (
        (np.asarray(columns[name], dtype=float) - centre) / unit
        for name, centre, unit in zip(NUMBERS, (48, 125, 85, 37.4, 95.6, 5), (27, 22, 18, 0.9, 3.1, 3.2), strict=True)
    )
    ambulance, referral = (np.asarray(columns["arrival"]) == kind for kind in ("ambulance", "referral"))
    scores = {
        "admit": 1.2 * pulse * temperature - oxygen + 0.8 * ambulance,
        "discharge": 0.6 + 0.8 * oxygen - np.abs(systolic) - 0.5 * pain * (1 + ambulance),
        "observe": np.abs(systolic) + 0.9 * age * pain - 0.4 * referral,
        "refer": 0.7 * pain - 0.9 * pulse * systolic + 1.2 * referral - 0.3,
    }
    return np.array(DECISIONS)[np.argmax([scores[name] for name in DECISIONS], axis=0)]
