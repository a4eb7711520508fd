"""The experiment: what do policies learned from pairs deliver in the package's simulator, by cloning and by ILEED?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, final

import numpy as np

from ileed import Demonstrations, Perfect
from ileed.parallel.runtime import stream
from ileed_lab.grid import Setting
from ileed_lab.learners import Learner, likeliest
from ileed_lab.people.overcooked.experiment import (
    METHOD,
    MODELS,
    AbstractOvercooked,
    demonstrations,
    pairs_of,
    trials_of,
)
from ileed_lab.people.overcooked.playing import RULES, Simulator, play
from ileed_lab.people.overcooked.trials import Trial
from ileed_lab.records import Measured

__all__ = ["GAMES", "STEPS", "OvercookedPolicies"]

STEPS = 400
"""Of a game: the package's own horizon."""
GAMES = {"drawn": 6, "likeliest": 1, "drawn, rules of 1.1.0": 2}
"""In each kitchen, by how actions are chosen and by which rules; likeliest actions make the same game every time."""
SOUP = 5
"""The recorded score of a soup."""
BETTER = "better half"


@final
@dataclass(frozen=True)
class OvercookedPolicies(AbstractOvercooked):
    """One policy learned from all pairs plays both players in each of the five kitchens.

    Trials differ in the seeds of fits and of play. In "better half" the learner is given the games of each kitchen
    that score at least the median there; other learners do not see scores.
    """

    name: str = "people/overcooked-policies"
    trials: int = 5

    @property
    def numbers(self) -> Mapping[str, Any]:
        return {"steps": STEPS, "games": GAMES}

    def settings(self) -> Sequence[Setting]:
        return [{"demonstrators": "pairs"}, {"demonstrators": BETTER}]

    def methods(self, setting: Setting) -> Mapping[str, Learner | None]:
        method = replace(METHOD, folds=0)
        cloning = replace(method, expertise=Perfect())
        if setting["demonstrators"] == BETTER:
            return {"bc": cloning}
        models = {name: replace(method, demonstrator=MODELS[name]) for name in ("uniform", "persistent")}
        return {"people": None, "bc": cloning, **models}

    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[Demonstrations]:
        own = _better_half if setting["demonstrators"] == BETTER else pairs_of
        return [own(self.file)] * len(trials)

    def measure(self, setting: Setting, method: str, trial: int, fit: Any) -> Measured:
        if fit is None:
            return _recorded(self.file)
        policy = likeliest(fit).policy
        kitchens = {each.partner: each for each in trials_of(self.file)}
        soups: dict[str, dict[str, list[float]]] = {}
        with Simulator() as simulator:
            for words, games in GAMES.items():
                noise = np.random.default_rng(stream(trial, "playing", words).initial_seed())
                delivered = play(
                    simulator,
                    policy,
                    [kitchen for name in sorted(kitchens) for kitchen in [kitchens[name]] * games],
                    rules=RULES["1.1.0" in words],
                    steps=STEPS,
                    noise=noise if words.startswith("drawn") else None,
                )
                by_kitchen = delivered.reshape(len(kitchens), games).tolist()
                soups[words] = dict(zip(sorted(kitchens), by_kitchen, strict=True))
        return {"soups": soups}


@cache
def _better_half(path: Path) -> Demonstrations:
    return demonstrations(better_half(trials_of(path)))


def better_half(trials: Sequence[Trial]) -> list[Trial]:
    """Those with at least the median score of their kitchen."""
    scores: dict[str, list[int]] = {}
    for each in trials:
        scores.setdefault(each.partner, []).append(each.score)
    return [each for each in trials if each.score >= np.median(scores[each.partner])]


@cache
def _recorded(path: Path) -> Measured:
    """What demonstrators delivered, and whether the simulator makes of their actions what was recorded, by each of the
    rules.

    It is the same in all trials.
    """
    trials = trials_of(path)
    with Simulator() as simulator:
        checked = {rules: [simulator.check(each, rules) for each in trials] for rules in RULES}
    soups: dict[str, list[float]] = {}
    for each in trials:
        soups.setdefault(each.partner, []).append(each.score / SOUP * STEPS / len(each.states))
    return {
        "soups": soups,
        "acting": len(pairs_of(path)) / sum(2 * len(each.states) for each in trials),
        "checked": {
            rules: {name: sum(each[name] for each in rows) for name in ("steps", "alike", "soups")}
            for rules, rows in checked.items()
        },
        "recorded_soups": sum(each.score for each in trials) / SOUP,
    }
