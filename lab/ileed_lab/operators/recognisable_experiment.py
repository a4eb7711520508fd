"""Operators that a novice would recognise: where each demonstrator model ranks them, and how often it is wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations
from typing import Any, ClassVar, final

import numpy as np

from ileed import Demonstrations, Ileed, VarianceScaling
from ileed.comparing import CANDIDATES
from ileed_lab.grid import AbstractExperiment, Setting
from ileed_lab.operators.learners import Estimate, Estimator, expertise_of
from ileed_lab.operators.recognisable import SPEEDS, Skill, measure_skill, population, record_population
from ileed_lab.operators.recording import demonstrations
from ileed_lab.ranking import rank_correlation
from ileed_lab.records import Measured

__all__ = ["FIRST_SEED", "Recognisable", "model_name", "wrong_claims"]

FIRST_SEED = 1_000
"""Trial k is the population of seed 1,000 + k: the ranges of traits were tuned on others."""
PROBABILITY = 0.95
"""At which groups are separated, as in the sentence at the top of a report."""


@final
@dataclass(frozen=True)
class Recognisable(AbstractExperiment):
    """Populations of six to eight operators at equal and at unequal speeds; trial k is one population.

    `operators` measures them and fits nothing. `default` is the method as it is, and the others are the same with each
    of the demonstrator models of continuous actions that `ileed.compare` knows.
    """

    name: str = "operators/recognisable"
    trials: int = 20
    method: Ileed = Ileed()  # noqa: RUF009 (frozen)
    episodes: int = 30
    """Of each operator's demonstrations."""
    skill_episodes: int = 500
    """Rollouts by which the skill of each operator is measured."""
    block: ClassVar[int] = 5

    @property
    def plan(self) -> Mapping[str, Any]:
        return {
            "episodes": self.episodes,
            "skill_episodes": self.skill_episodes,
            "probability": PROBABILITY,
            "first_seed": FIRST_SEED,
        }

    def settings(self) -> Sequence[Setting]:
        return [{"speeds": speeds} for speeds in SPEEDS]

    def methods(self, setting: Setting) -> Mapping[str, Estimator | None]:
        models = [*(model for model in CANDIDATES if not model.discrete), VarianceScaling()]
        named = {model_name(model): Estimator(replace(self.method, demonstrator=model)) for model in models}
        return {"operators": None, "default": Estimator(self.method), **named}

    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[Demonstrations]:
        return [self._demonstrations(setting, FIRST_SEED + trial) for trial in trials]

    def measure(self, setting: Setting, method: str, trial: int, fit: Estimate | None) -> Measured:
        seed = FIRST_SEED + trial
        operators = population(setting["speeds"], seed=seed)
        skills = [measure_skill(each, episodes=self.skill_episodes, seed=seed) for each in operators]
        if fit is None:
            steps = np.bincount(self._demonstrations(setting, seed).demonstrator)
            return {
                "operators": [
                    {"name": each.name, "speed": each.speed, **vars(skill)}
                    for each, skill in zip(operators, skills, strict=True)
                ],
                "length_correlation": rank_correlation(-steps, [skill.success for skill in skills]),
            }
        return _agreement(fit, dict(zip((each.name for each in operators), skills, strict=True)))

    def _demonstrations(self, setting: Setting, seed: int) -> Demonstrations:
        operators = population(setting["speeds"], seed=seed)
        return demonstrations(record_population(operators, episodes=self.episodes, seed=seed))


def _agreement(fit: Estimate, skills: Mapping[str, Skill]) -> Measured:
    """Expertise and rank of each operator, their correlation with skill, and the claims that skill contradicts."""
    names, expertise, ratings = fit.fitted.expertise.names, expertise_of(fit.fitted), fit.fitted.expertise.ratings
    measured = {
        "expertise": dict(zip(names, expertise.tolist(), strict=True)),
        "rank": {name: int((expertise > own).sum()) + 1 for name, own in zip(names, expertise, strict=True)},
        "correlation": rank_correlation(expertise, [skills[name].success for name in names]),
        "error_correlation": rank_correlation(expertise, [-skills[name].error for name in names]),
        "warnings": list(fit.warnings),
    }
    if ratings is None:
        return measured
    groups = ratings.groups(PROBABILITY)
    claims, wrong = wrong_claims(groups, skills)
    return measured | {
        "sentence": ratings.sentence(PROBABILITY),
        "groups": [list(group) for group in groups],
        "claims": claims,
        "wrong": wrong,
    }


def wrong_claims(groups: Sequence[Sequence[str]], skills: Mapping[str, Skill]) -> tuple[int, list[list[str]]]:
    """How many pairs the groups put in order, and those whose skill is clearly in the opposite one.

    Clearly: by more than three standard errors of the difference of two success rates. A pair whose difference in
    skill is within the Monte-Carlo error counts as a claim, but never as a wrong one.
    """
    claimed = [(one, other) for above, below in combinations(groups, 2) for one in above for other in below]
    return len(claimed), [[one, other] for one, other in claimed if skills[other].is_clearly_above(skills[one])]


def model_name(model: Any) -> str:
    """The class of a demonstrator model with what differs from its defaults, as in 'persistent-scaling-biased'."""
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", type(model).__name__).lower()
    changed = [(each.name, getattr(model, each.name)) for each in fields(model)]
    changed = [pair for pair, each in zip(changed, fields(model), strict=True) if pair[1] != each.default]
    words = [label if value is True else str(value) for label, value in changed]
    return "-".join([name, *words]).replace("_", "-").replace(" ", "-")
