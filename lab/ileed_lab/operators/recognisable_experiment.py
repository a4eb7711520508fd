"""Operators that a novice would recognise: where each demonstrator model ranks them, and how often it is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, ClassVar, final

import numpy as np

from ileed import Demonstrations, Ileed, MixtureMLP, VarianceScaling
from ileed.methods.crossfit import RESTARTS
from ileed_lab.grid import AbstractExperiment, Setting
from ileed_lab.learners import PAPERS_STEPS
from ileed_lab.operators.learners import Estimate, Estimator, expertise_of
from ileed_lab.operators.recognisable import SPEEDS, Skill, measure_skill, population, record_population
from ileed_lab.operators.recording import demonstrations
from ileed_lab.ranking import rank_correlation
from ileed_lab.records import Measured

__all__ = ["FIRST_SEED", "Recognisable", "wrong_claims"]

FIRST_SEED = 1_000
"""Trial k is the population of seed 1,000 + k: the ranges of traits were tuned on others."""
POLICY = MixtureMLP(hidden=(128, 128), standard_deviation_floor=0.05)
PAPER_POLICY = MixtureMLP(hidden=(32, 32), standard_deviation_floor=0.05)
"""The width that `Ileed(demonstrator=VarianceScaling())` chose for the first population."""
REPLICATION_SEED = 1_000_000
"""Added to the seed of a population for other episodes of the same operators."""
PROBABILITY = 0.95
"""At which groups are separated, as in the sentence at the top of a report."""


@final
@dataclass(frozen=True)
class Recognisable(AbstractExperiment):
    """Populations of six to eight operators at equal and at unequal speeds; trial k is one population.

    `operators` measures them and fits nothing. `default` is the method as it is, and `variance-scaling` the same with
    the paper's demonstrator model.
    """

    name: str = "operators/recognisable"
    trials: int = 10
    method: Ileed = Ileed(policy=POLICY, restarts=RESTARTS, **PAPERS_STEPS)  # noqa: RUF009 (frozen)
    """Its policy acts nowhere, and ratings do not depend on how it is optimised."""
    episodes: int = 30
    """Of each operator's demonstrations."""
    skill_episodes: int = 500
    """Rollouts by which the skill of each operator is measured."""
    block: ClassVar[int] = 5
    has_continuous_actions: ClassVar[bool] = True

    @property
    def plan(self) -> Mapping[str, Any]:
        return {
            "episodes": self.episodes,
            "skill_episodes": self.skill_episodes,
            "probability": PROBABILITY,
            "first_seed": FIRST_SEED,
            "replication_seed": REPLICATION_SEED,
        }

    def settings(self) -> Sequence[Setting]:
        return [{"speeds": speeds} for speeds in SPEEDS]

    def methods(self, setting: Setting) -> Mapping[str, Estimator | None]:
        paper = replace(self.method, demonstrator=VarianceScaling(), policy=PAPER_POLICY)
        return {
            "operators": None,
            "default": Estimator(self.method),
            "outcome": Estimator(self.method, outcome=True),
            "variance-scaling": Estimator(paper),
        }

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
        others = self._demonstrations(setting, seed, episodes_seed=REPLICATION_SEED + seed)
        return _agreement(fit, dict(zip((each.name for each in operators), skills, strict=True)), others)

    def _demonstrations(self, setting: Setting, seed: int, episodes_seed: int | None = None) -> Demonstrations:
        operators = population(setting["speeds"], seed=seed)
        own = seed if episodes_seed is None else episodes_seed
        return demonstrations(record_population(operators, episodes=self.episodes, seed=own))


def _agreement(fit: Estimate, skills: Mapping[str, Skill], others: Demonstrations) -> Measured:
    """Expertise and rank of each operator, their correlation with skill, and the claims that are contradicted.

    `others` are other episodes of the same operators, which the policies of the fit rate too.
    """
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
        "claims_skill": ratings.by.orders_by_skill,
        "reversed": reversed_claims(groups, fit.fitted.assess(others)),
    }


def reversed_claims(groups: Sequence[Sequence[str]], ratings: Any) -> list[list[str]]:
    """Pairs that the groups put in order, and other ratings in the opposite one with the same probability."""
    claimed = [(one, other) for above, below in combinations(groups, 2) for one in above for other in below]
    return [[one, other] for one, other in claimed if ratings.probability_better(other, one) >= PROBABILITY]


def wrong_claims(groups: Sequence[Sequence[str]], skills: Mapping[str, Skill]) -> tuple[int, list[list[str]]]:
    """How many pairs the groups put in order, and those whose skill is clearly in the opposite one.

    Clearly: by more than three standard errors of the difference of two success rates. A pair whose difference in
    skill is within the Monte-Carlo error counts as a claim, but never as a wrong one.
    """
    claimed = [(one, other) for above, below in combinations(groups, 2) for one in above for other in below]
    return len(claimed), [[one, other] for one, other in claimed if skills[other].is_clearly_above(skills[one])]
