"""Labels and ranks of workers, on the public tables and on simulated ones, by our methods and by crowd-kit's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self, final

import numpy as np

from ileed import Demonstrations, SettingsError, read
from ileed.data import Array
from ileed_lab.crowd.labellers import CrowdKit, Labelled, Ours
from ileed_lab.crowd.simulated import FIRST_SEED, KINDS, simulate
from ileed_lab.grid import AbstractExperiment, Setting
from ileed_lab.learners import Learner
from ileed_lab.records import Measured

__all__ = ["CROWDKIT", "OURS", "SETS", "CrowdLabels", "CrowdSimulated", "spearman"]

OURS = {"ileed": Ours(), "uniform": Ours("uniform"), "biased": Ours("biased"), "confusion": Ours("confusion")}
CROWDKIT = {name: CrowdKit(name) for name in ("MajorityVote", "DawidSkene", "OneCoinDawidSkene", "GLAD", "MACE")}
SETS = ("dog", "face")
_SHUFFLED = " shuffled"


def spearman(one: Array, other: Array) -> float:
    """Rank correlation, with mean ranks where values are equal; 0 where one side does not vary."""

    def ranks(values: Array) -> Array:
        _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
        return (np.cumsum(counts) - (counts - 1) / 2)[place]

    first, second = ranks(np.round(one, 12)), ranks(np.round(other, 12))
    if first.std() == 0 or second.std() == 0:
        return 0.0
    return float(np.corrcoef(first, second)[0, 1])


def _measured(fit: Labelled, data: Demonstrations, true: Array) -> Measured:
    """Which tasks are labelled rightly, and the workers' skill beside the share of their answers that is right."""
    task = data.observations[:, 0]
    accuracy = np.bincount(data.demonstrator, data.actions == true[task]) / np.bincount(data.demonstrator)
    right = fit.policy == true
    measured: Measured = {
        "accuracy": float(right.mean()),
        "right": "".join("01"[int(each)] for each in right),
        "rank": spearman(fit.skill, accuracy),
        "skill": [round(float(each), 5) for each in fit.skill],
        "worker_accuracy": [round(float(each), 5) for each in accuracy],
    }
    if fit.version:
        measured["crowd_kit"] = fit.version
    if (found := fit.found) is not None:
        expertise = found.worker_table()["expertise"].to_numpy()
        measured |= {
            "model": found.model,
            "iterations": found.n_iterations,
            "log_evidence": dict(found.log_evidence),
            "rank_of_expertise": spearman(expertise, accuracy),
            "stated": float(found.probabilities.max(1).mean()),
        }
    return measured


@final
@dataclass(frozen=True)
class CrowdLabels(AbstractExperiment):
    """Are labels better than those of crowd-kit on public tables? Trial k is the seed k of methods that draw.

    In a shuffled table the labels are permuted over all answers: a control without any signal.
    """

    data: Path | None = None
    name: str = "crowd/labels"
    trials: int = 10
    block: ClassVar[int] = 1
    data_file: ClassVar[str] = "crowd"

    def with_data(self, data: Path | None) -> Self:
        if data is None or not all((data / name / "answer.csv").is_file() for name in SETS):
            raise SettingsError(
                f"--data is {data}: {self.name} needs a folder with {' and '.join(SETS)}, each with answer.csv "
                "(question, worker, answer) and truth.csv (question, truth)",
                code="data-missing",
            )
        return replace(self, data=data)

    @property
    def plan(self) -> Mapping[str, Any]:
        known = {} if self.data is None else {"data": [read(self.data / name).fingerprint for name in SETS]}
        return {"sets": list(SETS)} | known

    def settings(self) -> Sequence[Setting]:
        return [{"data": name + end} for end in ("", _SHUFFLED) for name in SETS]

    def methods(self, setting: Setting) -> Mapping[str, Learner]:
        if setting["data"].endswith(_SHUFFLED):
            return {"ileed": OURS["ileed"], "MajorityVote": CROWDKIT["MajorityVote"]}
        return {**OURS, **CROWDKIT}

    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[Demonstrations]:
        return [self._answers(setting, trial)[0] for trial in trials]

    def measure(self, setting: Setting, method: str, trial: int, fit: Labelled) -> Measured:
        return _measured(fit, *self._answers(setting, trial))

    def _answers(self, setting: Setting, trial: int) -> tuple[Demonstrations, Array]:
        """The answers without gold labels, and the true labels of all tasks."""
        assert self.data is not None
        name = setting["data"].removesuffix(_SHUFFLED)
        found = read(self.data / name)
        assert found.encoding is not None
        numbers = {str(label): number for number, label in enumerate(found.encoding.labels)}
        true = np.zeros(int(found.observations.max()) + 1, dtype=int)
        true[found.observations[:, 0]] = [numbers[word] for word in found.skills["gold"]]
        answers = replace(found, skills={"task": found.skills["task"]})
        if setting["data"].endswith(_SHUFFLED):
            answers = replace(answers, actions=np.random.default_rng(trial).permutation(answers.actions))
        return answers, true


@final
@dataclass(frozen=True)
class CrowdSimulated(AbstractExperiment):
    """Labels, ranks, intervals and confusion matrices where all of them are known. Trial k is one crowd."""

    name: str = "crowd/simulated"
    trials: int = 20
    block: ClassVar[int] = 1

    @property
    def plan(self) -> Mapping[str, Any]:
        return {"first_seed": FIRST_SEED}

    def settings(self) -> Sequence[Setting]:
        return [{"workers": kind} for kind in KINDS]

    def methods(self, setting: Setting) -> Mapping[str, Learner]:
        return {**OURS, **CROWDKIT}

    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[Demonstrations]:
        return [simulate(setting["workers"], FIRST_SEED + trial).data for trial in trials]

    def measure(self, setting: Setting, method: str, trial: int, fit: Labelled) -> Measured:
        crowd = simulate(setting["workers"], FIRST_SEED + trial)
        measured = _measured(fit, crowd.data, crowd.true)
        measured = {
            name: value for name, value in measured.items() if name not in ("right", "skill", "worker_accuracy")
        }
        if (found := fit.found) is None:
            return measured
        weights = np.bincount(crowd.true, minlength=crowd.confusion.shape[1]) / len(crowd.true)
        squares = np.square(found.confusion - crowd.confusion).mean(2) @ weights
        measured["matrix_error"] = float(np.sqrt(squares.mean()))
        if found.model == "confusion" or crowd.rho is not None:
            own = np.zeros(crowd.confusion.shape[:2])
            np.add.at(own, (crowd.data.demonstrator, crowd.true[crowd.data.observations[:, 0]]), 1)
            diagonal = (own * np.einsum("iyy->iy", crowd.confusion)).sum(1) / own.sum(1)
            truth = diagonal if found.model == "confusion" or crowd.rho is None else crowd.rho
            table = found.worker_table()
            low, high = table["low"].to_numpy(), table["high"].to_numpy()
            measured["held"] = float(((low <= truth) & (truth <= high)).mean())
        return measured
