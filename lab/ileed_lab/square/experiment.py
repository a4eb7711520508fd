"""The paper's robot experiment: six operators of three tiers, alone and together, in Square."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np

from ileed import tasks
from ileed.demonstrations import Array, Demonstrations
from ileed.errors import SettingsError
from ileed.fitted import Ensemble
from ileed.methods import Ileed, bc_rnn
from ileed.model.demonstrators import VarianceScaling
from ileed.model.expertise import Constant, Embedded, Perfect, Skills
from ileed.model.policies import MixtureLSTM, MixtureMLP
from ileed.readers import read
from ileed.tasks import AbstractTask
from ileed_lab.baselines import Bcq, Cql, Hbc, Iris
from ileed_lab.grid import AbstractExperiment, Learner, Measured, Setting, scoring_seed

__all__ = ["SUBSETS", "Scaling", "Square", "ileed_rnn"]

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
"""A quarter of the paper's units: enough for these data, and trained on a core in minutes."""
FLAT = MixtureMLP(hidden=(100, 100), shared_standard_deviations=True)
"""The same without a memory."""
STEPS, STEPS_OF_LARGE = 8_000, 6_000
ROLLOUTS = 200
"""Episodes that BC-RNN and ILEED play in each trial; 50 alone cannot tell methods apart."""
ROLLOUTS_OF_OTHERS = 50
CHECKPOINTS = (4_000, 6_000)
"""Steps at which BC-RNN and ILEED are also looked at, with as many episodes as the other baselines play.

A fit of so many steps is the same fit, stopped there: a step depends on the seed and on its number alone."""
ENVIRONMENTS = 20
"""Episodes played side by side in a process, which saves half of the time."""


@final
@dataclass(frozen=True)
class Square(AbstractExperiment):
    """Operators of three tiers in Square: who learns what from which of them.

    `data` is a robomimic file with a mask for every operator: its own Multi-Human file, or ours, which
    `ileed demonstrate robot/square` makes. Policies of the same trial meet the same initial states.
    """

    data: Path | None = None
    name: str = "robot/square"
    trials: int = 3
    block: ClassVar[int] = 1

    @property
    def plan(self) -> Mapping[str, Any]:
        played = {"episodes": ROLLOUTS, "episodes_of_others": ROLLOUTS_OF_OTHERS, "environments": ENVIRONMENTS}
        return played | ({} if self.data is None else {"data": _read(self.data).fingerprint()})

    def settings(self) -> Sequence[Setting]:
        return [{"operators": subset} for subset in SUBSETS]

    def methods(self, setting: Setting) -> Mapping[str, Learner]:
        shared = replace(SMALL, shared_standard_deviations=True)
        cloning, ours = bc_rnn(policy=SMALL, steps=STEPS), ileed_rnn(policy=shared, steps=STEPS)
        return {
            "bc-rnn": cloning,
            "bc-rnn-shared": bc_rnn(policy=shared, steps=STEPS),
            "ileed": ours,
            "ileed-by-state": ileed_rnn(policy=shared, expertise=Embedded(hidden=(16, 16)), steps=STEPS),
            "ileed-no-memory": ileed_rnn(policy=FLAT, steps=STEPS),
            "bc-rnn-large": bc_rnn(steps=STEPS_OF_LARGE),
            "ileed-large": ileed_rnn(steps=STEPS_OF_LARGE),
            "hbc": Hbc(),
            "iris": Iris(),
            "bcq": Bcq(),
            "cql": Cql(),
            **{checkpoint("bc-rnn", steps): replace(cloning, steps=steps) for steps in CHECKPOINTS},
            **{checkpoint("ileed", steps): replace(ours, steps=steps) for steps in CHECKPOINTS},
        }

    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[Demonstrations]:
        data = _read(self._file())
        chosen = [name for name in data.names if name.split("_")[0] in SUBSETS[setting["operators"]]]
        if len(chosen) < 2:
            raise SettingsError(
                f"{self.data} names {len(chosen)} operators for {setting['operators']}: its masks must be called "
                "better_operator_1, okay_operator_2 and so on"
            )
        return [data.by(*chosen) for _ in trials]

    def task(self, setting: Setting) -> AbstractTask:
        return tasks.task("robot/square")

    def measured(self, setting: Setting, method: str, trial: int, found: Any) -> Measured:
        """Which episodes succeeded, how long those took, and the estimate of every operator's expertise."""
        from ileed_lab.square.task import SquareTask

        fitted = found.best().fitted() if isinstance(found, Ensemble) else found
        thoroughly = isinstance(found, Ensemble) and "-at-" not in method
        played = SquareTask().rollouts(
            fitted.policy,
            episodes=ROLLOUTS if thoroughly else ROLLOUTS_OF_OTHERS,
            seed=scoring_seed(trial),
            environments=ENVIRONMENTS,
        )
        measured: Measured = {
            "success": float(played.success.mean()),
            "successes": "".join("1" if each else "0" for each in played.success),
            "steps_to_success": float(played.steps[played.success].mean()) if played.success.any() else None,
            "furthest_phase": np.bincount(played.phase, minlength=4).tolist(),
        }
        if isinstance(found, Ensemble):
            measured["nats_per_action"] = fitted.nats_per_action
            if fitted.estimates_expertise:
                measured["expertise"] = fitted.expertise.by_demonstrator()
        return measured

    def _file(self) -> Path:
        if self.data is None:
            raise SettingsError(
                "robot/square learns from a file of demonstrations: pass --data with robomimic's Square Multi-Human "
                "file, or with one that `ileed demonstrate robot/square --out square.hdf5` wrote"
            )
        return self.data


def checkpoint(method: str, steps: int) -> str:
    """The name of a method that is looked at before its last step."""
    return f"{method}-at-{steps}"


def ileed_rnn(**settings: Any) -> Ileed:
    """ILEED as robots need it, beside `bc_rnn`: one number for every operator."""
    usual: dict[str, Any] = {
        "policy": MixtureLSTM(shared_standard_deviations=True),
        "expertise": Constant(),
        "restarts": 1,
    }
    return Ileed(**(usual | settings))


@cache
def _read(path: Path) -> Demonstrations:
    return read(path)


@final
@dataclass(frozen=True)
class Scaling(AbstractExperiment):
    """How the continuous model is best set: which choice tells operators apart, and predicts what they do next.

    A fifth of every operator's episodes is kept from the fit. The cost of those is the measure, beside the estimated
    expertise, and beside how far the policy's aim lies from what the better operators did there.
    """

    data: Path | None = None
    name: str = "robot/scaling"
    trials: int = 3
    block: ClassVar[int] = 1
    steps: int = 3_000

    @property
    def plan(self) -> Mapping[str, Any]:
        return {} if self.data is None else {"data": _read(self.data).fingerprint()}

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
            "shared, no memory": self._ileed(policy=FLAT),
        }

    def _ileed(self, **settings: Any) -> Ileed:
        return ileed_rnn(steps=self.steps, **settings)

    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[Demonstrations]:
        data = Square(self.data).demonstrations(setting, [0])[0]
        return [data.select(~_kept_back(data)) for _ in trials]

    def task(self, setting: Setting) -> AbstractTask:
        return tasks.task("robot/square")

    def measured(self, setting: Setting, method: str, trial: int, found: Ensemble) -> Measured:
        data = Square(self.data).demonstrations(setting, [0])[0]
        held_out, fitted = data.select(_kept_back(data)), found.best().fitted()
        nats = fitted.nats(held_out)
        better = held_out.by(*(name for name in held_out.names if name.startswith("better")))
        measured: Measured = {
            "nats_per_action": fitted.nats_per_action,
            "held_out_nats": float(nats.mean()),
            "held_out_nats_by_operator": {
                name: float(nats[held_out.demonstrator == person].mean()) for person, name in enumerate(held_out.names)
            },
            "error_of_aim": _error_of_aim(fitted.policy, better),
        }
        if fitted.estimates_expertise:
            measured["expertise"] = fitted.expertise.by_demonstrator()
        if "phase" in held_out.skills and not isinstance(fitted.joint.parts.expertise, Perfect | Constant):
            measured["expertise_by_phase"] = fitted.expertise.by_label(found.data, "phase")
        return measured


def _kept_back(data: Demonstrations) -> Array:
    """The steps of every fifth episode of everybody."""
    people = data.episode_demonstrator
    number = np.array([(people[:episode] == person).sum() for episode, person in enumerate(people)])
    return np.asarray(number % 5 == 4)[data.episode]


def _error_of_aim(policy: Any, data: Demonstrations) -> float:
    """Mean distance of the policy's likeliest actions from those of the data, in the dimensions that have a spread."""
    lengths = np.bincount(data.episode)
    first = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    measured = [axis for axis in range(data.actions.shape[1]) if axis not in data.binary_dimensions]
    state, errors = None, []
    for moment in range(lengths.max()):
        rows = first + np.minimum(moment, lengths - 1)
        aimed, state = policy.predict(data.observations[rows], state, np.full(len(rows), moment == 0))
        off = np.abs(aimed - data.actions[rows])[:, measured].mean(1)
        errors += off[moment < lengths].tolist()
    return float(np.mean(errors))
