"""Recurrent cloning in Square, on the episodes of six operators that `ileed.curate` keeps by default, and on others."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, final

import numpy as np

from ileed import Curated, Demonstrations, Fitted, Ileed, bc_rnn, curate, envs
from ileed.envs.abstract_task import AbstractTask
from ileed_lab.curation.experiment import Trained
from ileed_lab.curation.subsets import Subset, best_episodes
from ileed_lab.grid import Setting, scoring_seed
from ileed_lab.in_turn import AbstractInTurn
from ileed_lab.learners import PAPERS_STEPS
from ileed_lab.records import Measured
from ileed_lab.square.experiment import ENVIRONMENTS, SMALL, AbstractSquare, Square

__all__ = ["ROLLOUTS", "SELECTIONS", "Cloned", "CurationSquare", "Judge", "Judged", "Own", "tiers"]

TIERS = ("worse", "okay", "better")
FIRST_TRIAL = 2_000
"""Trial k has the seed and the scoring episodes of trial 2,000 + k: earlier results, which curation was changed after,
have others."""
ROLLOUTS = 100
"""Episodes in which each policy is scored."""
STEPS = 4_000
"""Of every recurrent fit."""
POLICY = replace(SMALL, shared_standard_deviations=True)
CLONE = bc_rnn(policy=POLICY, steps=STEPS)
OWN = Ileed(policy=POLICY, restarts=1, steps=STEPS, folds=0)
"""ILEED with the network and the steps of the trainer, and without ratings, which its policy does not depend on."""
RULES: Mapping[str, Mapping[str, Any]] = {"weighted": {"weight": True}, "half": {"keep": 0.5}, "curated": {}}
"""Rules of `ileed.curate`; without one, what it recommends."""
SELECTIONS = ("everything", "weighted", "half-random", "half-oracle", "half", "curated")
"""What a policy is cloned from. The weights are those of the rule; random episodes and those of the oracle, as many as
the best half, have none."""


def tiers(data: Demonstrations) -> tuple[float, ...]:
    """The tier of each operator, for the oracle, and to tell what was kept: 0 is worse, 1 okay and 2 better."""
    return tuple(float(TIERS.index(name.split("_")[0])) for name in data.names)


@final
@dataclass(frozen=True, eq=False)
class Judgement:
    """A fit, and what each rule keeps by it."""

    fitted: Fitted
    curated: Mapping[str, Curated]
    seconds: float
    """That the fit took."""
    seconds_of_curation: float
    """That all rules took together."""

    def summary(self, data: Demonstrations) -> Measured:
        """The ratings of operators, what is recommended and why, and what every rule keeps."""
        rated, found = self.fitted.expertise.ratings, self.curated["curated"]
        expertise = self.fitted.expertise.by_demonstrator()
        own = [[expertise[name] for name in data.names if name.startswith(tier)] for tier in TIERS]
        length = found.length_correlation.value
        best = found.recommendation.best
        return {
            "expertise": expertise,
            "tiers_in_order": all(max(low) < min(high) for low, high in pairwise(own)),
            "horizon": None if rated is None else rated.by.horizon,
            "reliability": None if rated is None else rated.by.reliability,
            "sentence": "" if rated is None else rated.sentence(),
            "recommended": "everything" if best is None else best.name,
            "comparisons": [
                {"name": each.name, "gain": each.gain, "low": each.low, "high": each.high} for each in found.comparisons
            ],
            "rules": {name: each.sentence for name, each in self.curated.items()},
            "effective_episodes": {name: each.effective_size for name, each in self.curated.items()},
            "within_reliability": None if math.isnan(found.within_reliability) else found.within_reliability,
            "length_correlation": None if math.isnan(length) else length,
            "curation_seconds": round(self.seconds_of_curation, 1),
        }


@final
@dataclass(frozen=True)
class Judge:
    """Curates as a user does who changes nothing."""

    method: Ileed = Ileed(restarts=20, **PAPERS_STEPS)  # noqa: RUF009 (frozen)
    """Its policy acts nowhere, and ratings do not depend on how it is optimised."""

    def __call__(self, data: Demonstrations, *, seed: int, device: str) -> Judgement:
        """The fit with this seed, and what the rules keep; remembered, since several selections need the same."""
        key = self, data.fingerprint, seed, device
        if key not in _JUDGED:
            _JUDGED[key] = self._judge(data, seed, device)
        return _JUDGED[key]

    def _judge(self, data: Demonstrations, seed: int, device: str) -> Judgement:
        began = time.monotonic()
        fitted = self.method.fit(data, seed=seed, device=device)
        fit = time.monotonic() - began
        scored = {name: curate(fitted, data, **rule) for name, rule in RULES.items()}
        found = {name: each if each.rule.is_given else each.recommended() for name, each in scored.items()}
        return Judgement(fitted, found, fit, time.monotonic() - began - fit)


_JUDGED: dict[tuple[Judge, str, int, str], Judgement] = {}


@final
@dataclass(frozen=True)
class Cloned(AbstractInTurn):
    """Recurrent cloning on the episodes of a selection, with their weights; trial k has the seed 2,000 + k.

    All trials have the curation of the judge with seed 0. A selection of the same episodes and weights as an earlier
    one of `SELECTIONS` would have the same policy, bit by bit: nothing is trained, and `same_as` names the earlier one.
    """

    selection: str
    trainer: Ileed = CLONE
    judge: Judge = Judge()

    def subset(self, selection: str, data: Demonstrations, *, seed: int, device: str) -> Subset:
        """The episodes of a selection, and their weights where these differ."""
        if selection == "everything":
            return Subset(np.ones(data.episode_count, dtype=bool))
        curated = self.judge(data, seed=0, device=device).curated
        if selection in RULES:
            kept, weights = curated[selection].kept, curated[selection].weights
            return Subset(kept, None if np.allclose(weights, 1) else weights)
        score = {"half-random": np.zeros(len(data.names)), "half-oracle": np.asarray(tiers(data))}[selection]
        size = int(curated["half"].kept.sum())
        return Subset(best_episodes(score[data.episode_demonstrator], size, seed=seed))

    def fit(self, demonstrations: Demonstrations, *, seed: int, device: str = "auto") -> Trained:
        data, seed = demonstrations, FIRST_TRIAL + seed
        chosen = self.subset(self.selection, data, seed=seed, device=device)
        earlier = SELECTIONS[: SELECTIONS.index(self.selection)]
        same = (name for name in earlier if _are_equal(self.subset(name, data, seed=seed, device=device), chosen))
        summary = chosen.summary(data, tiers(data))
        if (first := next(same, None)) is not None:
            return Trained(None, summary | {"same_as": first}, 0.0)
        began = time.monotonic()
        fitted = self.trainer.fit(chosen.of(data), seed=seed, device=device, weights=chosen.weights, check_width=False)
        return Trained(fitted.policy, summary, time.monotonic() - began)


def _are_equal(one: Subset, other: Subset) -> bool:
    """Whether a policy learns the same from both."""
    if one.weights is None or other.weights is None:
        return one.weights is other.weights and np.array_equal(one.kept, other.kept)
    return np.array_equal(one.kept, other.kept) and np.array_equal(one.weights, other.weights)


@final
@dataclass(frozen=True)
class Own(AbstractInTurn):
    """ILEED with a recurrent policy, jointly with expertise, from everything: the policy that needs no curation."""

    method: Ileed = OWN

    def fit(self, demonstrations: Demonstrations, *, seed: int, device: str = "auto") -> Trained:
        fitted = self.method.fit(demonstrations, seed=FIRST_TRIAL + seed, device=device)
        summary = {"expertise": fitted.expertise.by_demonstrator()}
        return Trained(fitted.policy, summary, float(fitted.provenance["seconds"]))


@final
@dataclass(frozen=True)
class Judged(AbstractInTurn):
    """The fit by which episodes are curated, with the seed of the trial; that of trial 0 curates for all trials."""

    judge: Judge = Judge()

    def fit(self, demonstrations: Demonstrations, *, seed: int, device: str = "auto") -> Trained:
        found = self.judge(demonstrations, seed=seed, device=device)
        return Trained(None, found.summary(demonstrations), found.seconds)


@final
@dataclass(frozen=True)
class CurationSquare(AbstractSquare):
    """Recurrent cloning on each selection of the episodes of six operators, ILEED's own policy, and the judge.

    `data` is what `robot/square` learns from. All trials have these demonstrations and one curation of them; they
    differ in the seed of every policy's fit and in the initial states of scoring, which are the same for all policies
    of a trial.
    """

    name: str = "curation/square"
    trials: int = 10
    has_continuous_actions: ClassVar[bool] = True

    @property
    def numbers(self) -> Mapping[str, Any]:
        return {"episodes": ROLLOUTS, "environments": ENVIRONMENTS, "first_trial": FIRST_TRIAL, "judge_seed": 0}

    def settings(self) -> Sequence[Setting]:
        return [{"trainer": "bc-rnn"}]

    def methods(self, setting: Setting) -> Mapping[str, Any]:
        return {**{selection: Cloned(selection) for selection in SELECTIONS}, "ileed": Own(), "judge": Judged()}

    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[Demonstrations]:
        return Square(self.data).demonstrations({"operators": "All"}, trials)

    def task(self, setting: Setting) -> AbstractTask:
        return envs.task("robot/square")

    def measure(self, setting: Setting, method: str, trial: int, fit: Trained) -> Measured:
        """Which episodes succeeded, and what the policy was learned from; without a policy, the summary."""
        return dict(fit.summary) if fit.policy is None else {**_success(fit.policy, trial), **fit.summary}


def _success(policy: Any, trial: int) -> Measured:
    """The outcome of every episode, from the initial states of the trial."""
    from ileed_lab.square.task import SquareTask

    seed = scoring_seed(FIRST_TRIAL + trial)
    played = SquareTask().rollouts(policy, episodes=ROLLOUTS, seed=seed, environments=ENVIRONMENTS)
    return {
        "success": float(played.success.mean()),
        "successes": "".join("1" if each else "0" for each in played.success),
        "furthest_phase": np.bincount(played.phase, minlength=4).tolist(),
    }
