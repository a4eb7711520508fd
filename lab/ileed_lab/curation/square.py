"""Trainers in Square, on the episodes of six operators that curation keeps, and on as many others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self, final

import numpy as np

from ileed import Demonstrations, Ileed, bc_rnn, tasks
from ileed.fitting import ProgressCallback
from ileed.tasks import AbstractTask
from ileed_lab.curation import foreign
from ileed_lab.curation.experiment import FIRST_TRIAL, Cloning, Judging, Trained
from ileed_lab.curation.others import Prepared
from ileed_lab.curation.subsets import Curator, select
from ileed_lab.grid import AbstractExperiment, Setting, scoring_seed
from ileed_lab.in_turn import AbstractInTurn
from ileed_lab.records import Measured
from ileed_lab.square.experiment import ENVIRONMENTS, SMALL, Square, ileed_rnn

__all__ = ["ROLLOUTS", "SELECTIONS", "Cloned", "CurationSquare", "Judged", "Taught", "tiers"]

ROLLOUTS = 50
"""Episodes in which each policy is scored."""
STEPS = 4_000
"""Of every recurrent fit: as many batches as robomimic's trainer takes here."""
FOLDS = 5
"""By which the operators are rated; a recurrent policy has none by default."""
POLICY = replace(SMALL, shared_standard_deviations=True)
JUDGE = Curator(replace(ileed_rnn(policy=POLICY, steps=STEPS), folds=FOLDS), seed=FIRST_TRIAL)
"""One curation for all trials, which have the same demonstrations."""
CLONE = bc_rnn(policy=POLICY, steps=STEPS)
OTHERS = ("random", "length", "oracle")
"""Ways to choose as many episodes as a rule keeps. By reward there is none: every demonstration succeeds, with 1."""
SELECTIONS: Mapping[str, Sequence[str]] = {
    "bc-rnn": ("everything", "weighted", "half", *(f"half-{other}" for other in OTHERS), "above", "above-random"),
    "robomimic-bc-rnn": ("everything", "half", "half-random", "half-oracle", "above"),
}
"""What each trainer learns from: a fit and its episodes take two minutes of a core, so the choices that matter most."""


def tiers(data: Demonstrations) -> tuple[float, ...]:
    """The tier of each operator, for the oracle, and to tell what was kept: 0 is worse, 1 okay and 2 better."""
    return tuple(float(("worse", "okay", "better").index(name.split("_")[0])) for name in data.names)


@final
@dataclass(frozen=True)
class Cloned:
    """Our recurrent cloning on the episodes of a selection; trial k has the seed 1,000 + k."""

    selection: str
    trainer: Ileed = CLONE
    curator: Curator = JUDGE

    def fit(
        self,
        demonstrations: Demonstrations,
        *,
        seed: int,
        device: str = "auto",
        progress: ProgressCallback | None = None,
    ) -> Trained:
        return self.fit_each([demonstrations], seeds=[seed], device=device)[0]

    def fit_each(
        self,
        datasets: Sequence[Demonstrations],
        *,
        seeds: Sequence[int],
        device: str = "auto",
        progress: ProgressCallback | None = None,
    ) -> list[Trained]:
        """A fit to each subset."""
        cloning = Cloning(self.selection, self.trainer, tiers(datasets[0]), self.curator)
        return cloning.fit_each(datasets, seeds=[FIRST_TRIAL + seed for seed in seeds], device=device)


@final
@dataclass(frozen=True)
class Judged(AbstractInTurn):
    """Recurrent ILEED as it curates, whose own policy is compared too; with the seed of the trial, and no folds."""

    curator: Curator = JUDGE

    def fit(
        self,
        demonstrations: Demonstrations,
        *,
        seed: int,
        device: str = "auto",
        progress: ProgressCallback | None = None,
    ) -> Trained:
        curation = Judging(self.curator).fit(demonstrations, seed=seed, device=device)
        method = replace(self.curator.method, folds=0)
        fitted = method.fit(demonstrations, seed=FIRST_TRIAL + seed, device=device)
        told = {**curation.told, "expertise": fitted.expertise.by_demonstrator()}
        return Trained(fitted.policy, told, float(fitted.provenance["seconds"]))


@final
@dataclass(frozen=True)
class Taught(AbstractInTurn):
    """A trainer of another project on the episodes of a selection, which it learns from when it is measured."""

    trainer: str
    selection: str
    curator: Curator = JUDGE

    def fit(
        self,
        demonstrations: Demonstrations,
        *,
        seed: int,
        device: str = "auto",
        progress: ProgressCallback | None = None,
    ) -> Prepared:
        """Choose the episodes, by a curation on this device."""
        seed, curation = FIRST_TRIAL + seed, None
        if self.selection != "everything":
            curation = self.curator(demonstrations, seed=seed, device=device)
        chosen = select(self.selection, demonstrations, curation=curation, skills=tiers(demonstrations), seed=seed)
        return Prepared(demonstrations, chosen, seed)


@final
@dataclass(frozen=True)
class CurationSquare(AbstractExperiment):
    """Our recurrent cloning and robomimic's, on each selection of the episodes of six operators.

    `data` is what `robot/square` learns from. All trials have these demonstrations and one curation of them; they
    differ in the seed of every policy's fit and in the initial states of scoring, which are the same for all policies
    of a trial.
    """

    data: Path | None = None
    name: str = "curation/square"
    trials: int = 5
    block: ClassVar[int] = 1
    data_file: ClassVar[str] = Square.data_file

    def with_data(self, data: Path | None) -> Self:
        return replace(self, data=data)

    @property
    def plan(self) -> Mapping[str, Any]:
        played = {"episodes": ROLLOUTS, "environments": ENVIRONMENTS, "first_trial": FIRST_TRIAL, "judge_folds": FOLDS}
        played["judge_seed"] = FIRST_TRIAL
        shown = Square(self.data).plan
        return played | ({"data": shown["data"]} if "data" in shown else {})

    def settings(self) -> Sequence[Setting]:
        return [{"trainer": trainer} for trainer in SELECTIONS]

    def methods(self, setting: Setting) -> Mapping[str, Any]:
        trainer = setting["trainer"]
        if trainer in foreign.TRAINERS:
            return {selection: Taught(trainer, selection) for selection in SELECTIONS[trainer]}
        return {"ileed": Judged(), **{selection: Cloned(selection) for selection in SELECTIONS[trainer]}}

    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[Demonstrations]:
        return Square(self.data).demonstrations({"operators": "All"}, trials)

    def task(self, setting: Setting) -> AbstractTask:
        return tasks.task("robot/square")

    def measure(self, setting: Setting, method: str, trial: int, fit: Any) -> Measured:
        """Which episodes succeeded, and what the policy was learned from."""
        if setting["trainer"] not in foreign.TRAINERS:
            return {**_success(fit.policy, trial), **fit.told}
        told, chosen = fit.subset.told(fit.data, tiers(fit.data)), fit.subset.of(fit.data)
        with foreign.train(setting["trainer"], chosen, seed=fit.seed) as policy:
            fit.seconds = policy.seconds
            made = {"release": policy.release, "trainer_settings": dict(policy.settings)}
            return {**_success(policy, trial), **told, **made}


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
