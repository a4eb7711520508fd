"""Pick and place by eight teleoperators: does expertise agree with success, and what do policies learn from it?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import numpy as np
import numpy.typing as npt

from ileed import Demonstrations, Ileed, evaluate
from ileed_lab.grid import AbstractExperiment, Setting, scoring_seed
from ileed_lab.operators.learners import (
    METHOD,
    RATING_METHOD,
    SELECTIONS,
    TRAINER,
    Cloned,
    Cloning,
    Estimate,
    Estimator,
    expertise_of,
)
from ileed_lab.operators.pick_place import TASK_FEATURES, TOLERANCES, PickPlaceTask
from ileed_lab.operators.recording import demonstrations, episode_success
from ileed_lab.operators.teleoperators import OPERATORS, record_operators, success_rates
from ileed_lab.quality import (
    DEFINITIONS,
    AbstractQuality,
    CloningLoss,
    Definition,
    EpisodeLength,
    JerkAndIdle,
    MutualInformation,
    Random,
    SpectralArcLength,
)
from ileed_lab.ranking import rank_correlation
from ileed_lab.records import Measured
from ileed_lab.regression import Regression

__all__ = ["FIRST_TRIAL", "QUALITIES", "PickPlace"]

FIRST_TRIAL = 1_000
"""Trial k has the demonstrations of seed 1,000 + k: the constants of the operators were tuned on others."""
TRUTH_SEED = 0
"""Of the episodes by which the success of operators is known."""
HORIZON = 16
"""Steps over which the definitions of expertise average actions: 0.8 s."""
QUALITIES: Mapping[str, AbstractQuality] = {
    "episode-length": EpisodeLength(),
    "spectral-arc-length": SpectralArcLength(),
    "jerk-and-idle": JerkAndIdle(),
    "bc-log-likelihood": CloningLoss(),
    "mutual-information": MutualInformation(),
    **{f"definition-{kind}": Definition(kind, horizon=HORIZON) for kind in DEFINITIONS},
    "random": Random(),
}
"""Scores of episodes by other methods."""


@final
@dataclass(frozen=True)
class PickPlace(AbstractExperiment):
    """Eight operators in two tolerances. Trial k is one set of demonstrations; the operators are the same in all.

    `operators` measures them and fits nothing: their success, and how well scores of data quality predict it. `ileed`
    estimates expertise, and `ileed-outcome` is also given the success of every episode. `ileed-without-task` has the
    object and the goal deleted from the observations, which should change any measure of skill. The others clone
    selections of the episodes.
    """

    name: str = "operators/pick-place"
    trials: int = 4
    method: Ileed = METHOD
    rating_method: Ileed = RATING_METHOD
    trainer: Regression = TRAINER
    episodes: int = 30
    """Of each operator's demonstrations."""
    rollouts: int = 400
    """Episodes in which each policy is scored."""
    truth_episodes: int = 500
    """Episodes by which the success of each operator is known."""
    qualities: Mapping[str, AbstractQuality] = field(default_factory=lambda: QUALITIES)
    """Scores of data quality beside expertise."""
    block: ClassVar[int] = 2
    has_continuous_actions: ClassVar[bool] = True

    @property
    def plan(self) -> Mapping[str, Any]:
        return {
            "operators": len(OPERATORS),
            "episodes": self.episodes,
            "rollouts": self.rollouts,
            "truth_episodes": self.truth_episodes,
            "truth_seed": TRUTH_SEED,
            "first_trial": FIRST_TRIAL,
        }

    def settings(self) -> Sequence[Setting]:
        return [{"tolerance": tolerance} for tolerance in TOLERANCES]

    def methods(self, setting: Setting) -> Mapping[str, Estimator | Cloning | None]:
        estimator = Estimator(self.rating_method)
        return {
            "operators": None,
            "ileed": Estimator(self.method),
            "ileed-outcome": Estimator(self.method, outcome=True),
            "ileed-without-task": Estimator(self.rating_method, hidden=TASK_FEATURES),
            **{f"bc-{selection}": Cloning(selection, self.trainer, estimator) for selection in SELECTIONS},
        }

    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[Demonstrations]:
        task = self.task(setting)
        seeds = [FIRST_TRIAL + trial for trial in trials]
        return [demonstrations(record_operators(task, episodes=self.episodes, seed=seed)) for seed in seeds]

    def task(self, setting: Setting) -> PickPlaceTask:
        return PickPlaceTask(setting["tolerance"])

    def measure(self, setting: Setting, method: str, trial: int, fit: Any) -> Measured:
        task = self.task(setting)
        truth = success_rates(task, episodes=self.truth_episodes, seed=TRUTH_SEED)
        if fit is None:
            (data,) = self.demonstrations(setting, [trial])
            scores = {name: quality.scores(data, seed=trial) for name, quality in self.qualities.items()}
            return _operators(data, truth, scores)
        if method.startswith("bc-"):
            (data,) = self.demonstrations(setting, [trial])
            act = fit.policy.act
            return self._policy(lambda seen, _: act(seen), task, trial) | _selection(fit, data, truth)
        own = {} if method == "ileed-without-task" else self._policy(fit.policy, task, trial)
        return own | _agreement(fit, truth)

    def _policy(self, policy: Any, task: PickPlaceTask, trial: int) -> Measured:
        """Success in closed loop, from initial states that all policies of a trial have in common."""
        rewards = evaluate(policy, task, episodes=self.rollouts, seed=scoring_seed(FIRST_TRIAL + trial)).rewards
        return {"success": float(rewards.mean()), "successes": "".join("1" if each else "0" for each in rewards)}


def _operators(
    data: Demonstrations, truth: npt.NDArray[np.float64], scores: Mapping[str, npt.NDArray[np.float64]]
) -> Measured:
    """Every operator's success and length of episodes, and how well scores of data quality agree with success.

    The score of an operator is the mean over episodes.
    """
    success, steps = episode_success(data), np.bincount(data.episode)
    observed, length = (_by_operator(data, values) for values in (success, steps))
    return {
        "success": dict(zip(data.names, truth.tolist(), strict=True)),
        "observed_success": dict(zip(data.names, observed.tolist(), strict=True)),
        "steps": dict(zip(data.names, length.tolist(), strict=True)),
        "observed_correlation": rank_correlation(observed, truth),
        "scores": {
            name: {
                "correlation": rank_correlation(_by_operator(data, own), truth),
                "episode_correlation": rank_correlation(own, success),
                "within_correlation": _within(data, own, success),
            }
            for name, own in scores.items()
        },
    }


def _agreement(fit: Estimate, truth: npt.NDArray[np.float64]) -> Measured:
    """Rank correlations of expertise with success: over operators, over episodes, and over those of one operator."""
    data, expertise = fit.data, expertise_of(fit.fitted)
    scores = fit.curate("curated").episodes["expertise"].to_numpy()
    success, ratings = episode_success(data), fit.fitted.expertise.ratings
    return {
        "expertise": dict(zip(data.names, expertise.tolist(), strict=True)),
        "correlation": rank_correlation(expertise, truth),
        "episode_correlation": rank_correlation(scores, success),
        "within_correlation": _within(data, scores, success),
        "mean_expertise": float(np.mean([*fit.fitted.expertise.by_demonstrator().values()])),
        "reliability": None if ratings is None else ratings.by.reliability,
        "sentence": None if ratings is None else ratings.sentence(),
        "warnings": list(fit.warnings),
    }


def _selection(fit: Cloned, data: Demonstrations, truth: npt.NDArray[np.float64]) -> Measured:
    """What a policy was cloned from: how much, whether weighted, and how successful."""
    who, success = data.episode_demonstrator[fit.kept], episode_success(data)[fit.kept]
    return {
        "episodes": int(fit.kept.sum()),
        "is_weighted": fit.is_weighted,
        "successful": float(success.mean()),
        "skill": float(truth[who].mean()),
        "rule": fit.sentence,
    }


def _by_operator(data: Demonstrations, values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """(operator,) the mean of values of episodes."""
    who = data.episode_demonstrator
    return np.asarray(np.bincount(who, values) / np.bincount(who))


def _within(data: Demonstrations, index: npt.NDArray[Any], success: npt.NDArray[np.bool_]) -> float | None:
    """The mean over operators of the rank correlation within their episodes; None if all outcomes of each are equal."""
    own = [data.episode_demonstrator == each for each in range(len(data.names))]
    found = [rank_correlation(index[each], success[each]) for each in own if 0 < success[each].mean() < 1]
    return float(np.mean(found)) if found else None
