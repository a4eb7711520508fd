"""The paper's robot experiment: six operators of three skill tiers, alone and together, in Square."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np

from ileed import (
    Constant,
    Demonstrations,
    Difficulty,
    Embedded,
    Ileed,
    MixtureLSTM,
    MixtureMLP,
    Perfect,
    SettingsError,
    Skills,
    VarianceScaling,
    bc_rnn,
    envs,
    read,
)
from ileed.data import Array
from ileed.envs.abstract_task import AbstractTask
from ileed_lab.baselines import Bcq, Cql, Hbc, Iris
from ileed_lab.grid import AbstractFileExperiment, Setting, scoring_seed
from ileed_lab.learners import Ensemble, Learner, expertise_by_label, likeliest
from ileed_lab.records import Measured

__all__ = ["BASELINES", "BY_STATE", "SUBSETS", "SUBSETS_BY_STATE", "AbstractSquare", "Scaling", "Square", "ileed_rnn"]

SUBSETS: Mapping[str, tuple[str, ...]] = {
    "All": ("worse", "okay", "better"),
    "Worse": ("worse",),
    "Okay": ("okay",),
    "Better": ("better",),
    "Worse-Okay": ("worse", "okay"),
    "Worse-Better": ("worse", "better"),
    "Okay-Better": ("okay", "better"),
}
"""The tiers whose operators a policy is learned from, in the order of the paper's table."""

SMALL = MixtureLSTM(hidden=(100, 100))
"""A quarter of the paper's units: enough for these data, and fitted on a core in minutes."""
FLAT = MixtureMLP(hidden=(100, 100), shared_standard_deviations=True)
"""The same without recurrence."""
STEPS, STEPS_OF_LARGE = 8_000, 6_000
ROLLOUTS = 200
"""Episodes of BC-RNN and ILEED in each trial; 50 are too few to tell methods apart."""
ROLLOUTS_OF_OTHERS = 50
CHECKPOINTS = (4_000, 6_000)
"""Steps after which BC-RNN and ILEED are also scored, with as many episodes as the other baselines.

A shorter fit is the same fit, stopped early: a step depends on the seed and its number alone."""
ENVIRONMENTS = 20
"""Episodes played side by side in a process, which saves half of the time."""
BASELINES: Mapping[str, type[Hbc | Iris | Bcq | Cql]] = {"hbc": Hbc, "iris": Iris, "bcq": Bcq, "cql": Cql}
"""The offline baselines by their names as methods."""
BY_STATE: Mapping[str, Embedded | Difficulty] = {
    "ileed-common-state": Embedded(hidden=(16, 16), shared=True),
    "ileed-difficulty": Difficulty(hidden=(16, 16)),
    "ileed-interaction": Difficulty(hidden=(16, 16), easiness=False),
}
"""Expertise by state with an effect of the state that is common to all demonstrators alone, with it, and without it."""
SUBSETS_BY_STATE = ("Worse", "Better", "Okay-Better")
"""Where these are run: "ileed-by-state" was below "ileed" by the whole interval there, and in no other subset."""


@dataclass(frozen=True)
class AbstractSquare(AbstractFileExperiment):
    """An experiment on demonstrations in Square."""

    block: ClassVar[int] = 1
    data_file: ClassVar[str] = "square.hdf5"
    source: ClassVar[str] = (
        "a file of demonstrations: pass --data with robomimic's Square Multi-Human file, or with one that "
        "`ileed demonstrate robot/square --out square.hdf5` wrote"
    )

    def fingerprint(self) -> str:
        return _read(self.file).fingerprint


@final
@dataclass(frozen=True)
class Square(AbstractSquare):
    """Operators of three skill tiers in Square: which method learns what from which of them.

    `data` is a robomimic file with a mask for every operator: its own Multi-Human file, or ours, which
    `ileed demonstrate robot/square` writes. All policies of a trial are scored from the same initial states.
    """

    name: str = "robot/square"
    trials: int = 3

    @property
    def numbers(self) -> Mapping[str, Any]:
        return {"episodes": ROLLOUTS, "episodes_of_others": ROLLOUTS_OF_OTHERS, "environments": ENVIRONMENTS}

    def settings(self) -> Sequence[Setting]:
        return [{"operators": subset} for subset in SUBSETS]

    def methods(self, setting: Setting) -> Mapping[str, Learner]:
        shared = replace(SMALL, shared_standard_deviations=True)
        cloning, ours = bc_rnn(policy=SMALL, steps=STEPS), ileed_rnn(policy=shared, steps=STEPS)
        by_state = BY_STATE if setting["operators"] in SUBSETS_BY_STATE else {}
        return {
            "bc-rnn": cloning,
            "bc-rnn-shared": bc_rnn(policy=shared, steps=STEPS),
            "ileed": ours,
            "ileed-by-state": ileed_rnn(policy=shared, expertise=Embedded(hidden=(16, 16)), steps=STEPS),
            "ileed-no-memory": ileed_rnn(policy=FLAT, steps=STEPS, batch_size=256),
            "bc-rnn-large": bc_rnn(steps=STEPS_OF_LARGE),
            "ileed-large": ileed_rnn(steps=STEPS_OF_LARGE),
            **{name: baseline() for name, baseline in BASELINES.items()},
            **{checkpoint("bc-rnn", steps): replace(cloning, steps=steps) for steps in CHECKPOINTS},
            **{checkpoint("ileed", steps): replace(ours, steps=steps) for steps in CHECKPOINTS},
            **{name: replace(ours, expertise=expertise) for name, expertise in by_state.items()},
        }

    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[Demonstrations]:
        data = _read(self.file)
        chosen = [name for name in data.names if name.split("_")[0] in SUBSETS[setting["operators"]]]
        if len(chosen) < 2:
            raise SettingsError(
                f"{self.data} names {len(chosen)} operators for {setting['operators']}: its masks must be called "
                "better_operator_1, okay_operator_2 and so on"
            )
        return [data.by(*chosen) for _ in trials]

    def task(self, setting: Setting) -> AbstractTask:
        return envs.task("robot/square")

    def measure(self, setting: Setting, method: str, trial: int, fit: Any) -> Measured:
        """Which episodes succeeded, how long those took, and the estimate of every operator's expertise."""
        from ileed_lab.square.task import SquareTask

        is_baseline = method in BASELINES
        fitted = fit if is_baseline else likeliest(fit)
        played = SquareTask().rollouts(
            fitted.policy,
            episodes=ROLLOUTS_OF_OTHERS if is_baseline or is_checkpoint(method) else ROLLOUTS,
            seed=scoring_seed(trial),
            environments=ENVIRONMENTS,
        )
        measured: Measured = {
            "success": float(played.success.mean()),
            "successes": "".join("1" if each else "0" for each in played.success),
            "steps_to_success": float(played.steps[played.success].mean()) if played.success.any() else None,
            "furthest_phase": np.bincount(played.phase, minlength=4).tolist(),
        }
        if not is_baseline:
            measured["nats_per_action"] = fitted.nats_per_action
            if fitted.estimates_expertise:
                measured["expertise"] = fitted.expertise.by_demonstrator()
        return measured


def checkpoint(method: str, steps: int) -> str:
    """The name of a method that is scored before its last step."""
    return f"{method}-at-{steps}"


def is_checkpoint(method: str) -> bool:
    """Whether a method has a name that `checkpoint` gave."""
    return "-at-" in method


def ileed_rnn(**settings: Any) -> Ileed:
    """ILEED with the recurrent policy of `bc_rnn`, the paper's demonstrator model and one number for every operator."""
    usual: dict[str, Any] = {
        "policy": MixtureLSTM(shared_standard_deviations=True),
        "demonstrator": VarianceScaling(),
        "expertise": Constant(),
        "restarts": 1,
        "learning_rate": 1e-3,
    }
    return Ileed(**(usual | settings))


@cache
def _read(path: Path) -> Demonstrations:
    return read(path)


@final
@dataclass(frozen=True)
class Scaling(AbstractSquare):
    """Settings of the continuous model: which ones distinguish operators, and predict held-out actions.

    A fifth of every operator's episodes is held out. The measures are the cost of the held-out actions, the estimated
    expertise, and the action error: the mean absolute difference of the policy's actions from those of the better
    operators in held-out episodes.
    """

    name: str = "robot/scaling"
    trials: int = 3
    steps: int = 3_000

    def settings(self) -> Sequence[Setting]:
        return [{"operators": "All"}]

    def methods(self, setting: Setting) -> Mapping[str, Ileed]:
        by_state, shared = SMALL, replace(SMALL, shared_standard_deviations=True)
        learned, everything = replace(SMALL, fixed_standard_deviation=None), VarianceScaling(exempt=())
        return {
            "cloning": bc_rnn(policy=by_state, steps=self.steps),
            "cloning, shared": bc_rnn(policy=shared, steps=self.steps),
            "as published": self._ileed(policy=learned, demonstrator=everything, skill_learning_rate=1e-4),
            "as published, faster": self._ileed(policy=learned, demonstrator=everything),
            "gripper exempt": self._ileed(policy=learned),
            "gripper steady": self._ileed(policy=by_state),
            "gripper steady, slower": self._ileed(policy=by_state, skill_learning_rate=1e-4),
            "higher floor": self._ileed(policy=replace(by_state, standard_deviation_floor=0.1)),
            "shared": self._ileed(policy=shared),
            "shared, deviation": self._ileed(policy=shared, demonstrator=VarianceScaling(scaled="standard_deviation")),
            "shared, by phase": self._ileed(policy=shared, expertise=Skills("phase")),
            "shared, embedded": self._ileed(policy=shared, expertise=Embedded(hidden=(16, 16))),
            "shared, no memory": self._ileed(policy=FLAT, batch_size=256),
        }

    def _ileed(self, **settings: Any) -> Ileed:
        return ileed_rnn(steps=self.steps, **settings)

    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[Demonstrations]:
        data = Square(self.data).demonstrations(setting, [0])[0]
        return [data.select(~_is_held_out(data)) for _ in trials]

    def task(self, setting: Setting) -> AbstractTask:
        return envs.task("robot/square")

    def measure(self, setting: Setting, method: str, trial: int, fit: Ensemble) -> Measured:
        data = Square(self.data).demonstrations(setting, [0])[0]
        held_out, fitted = data.select(_is_held_out(data)), likeliest(fit)
        nats = fitted.nats(held_out)
        better = held_out.by(*(name for name in held_out.names if name.startswith("better")))
        measured: Measured = {
            "nats_per_action": fitted.nats_per_action,
            "held_out_nats": float(nats.mean()),
            "held_out_nats_by_operator": {
                name: float(nats[held_out.demonstrator == person].mean()) for person, name in enumerate(held_out.names)
            },
            "action_error": _action_error(fitted.policy, better),
        }
        if fitted.estimates_expertise:
            measured["expertise"] = fitted.expertise.by_demonstrator()
        by_state = self.methods(setting)[method].expertise not in (Perfect(), Constant())
        if "phase" in held_out.skills and by_state:
            measured["expertise_by_phase"] = expertise_by_label(fitted, fit.data, "phase")
        return measured


def _is_held_out(data: Demonstrations) -> Array:
    """The steps of every fifth episode of all demonstrators."""
    people = data.episode_demonstrator
    number = np.array([(people[:episode] == person).sum() for episode, person in enumerate(people)])
    return np.asarray(number % 5 == 4)[data.episode]


def _action_error(policy: Any, data: Demonstrations) -> float:
    """Mean absolute difference of the policy's likeliest actions from those of the data, without binary dimensions."""
    lengths = np.bincount(data.episode)
    first = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    measured = [axis for axis in range(data.actions.shape[1]) if axis not in data.binary_dimensions]
    state, errors = None, []
    for step in range(lengths.max()):
        rows = first + np.minimum(step, lengths - 1)
        actions, state = policy.predict(data.observations[rows], state, np.full(len(rows), step == 0))
        error = np.abs(actions - data.actions[rows])[:, measured].mean(1)
        errors += error[step < lengths].tolist()
    return float(np.mean(errors))
