"""The experiment: do policies learned from slower drivers predict the fastest better when skill is estimated?"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from ileed import Demonstrations, Fitted, Ileed, MixtureMLP, curate
from ileed.data import Array
from ileed_lab.grid import Setting
from ileed_lab.learners import Learner
from ileed_lab.outcome_weights import outcome_weights
from ileed_lab.people.racing.experiment import AbstractRacing
from ileed_lab.people.racing.laps import RacingLaps, lap_times, medians_by_driver
from ileed_lab.records import Measured
from ileed_lab.regression import Regression, Regressor

__all__ = ["ADVANTAGE", "LEFT_OUT", "METHOD", "ORACLE_DRIVERS", "RULES", "RacingPolicies", "split_drivers"]

LEFT_OUT = (1, 2, 3)
"""How many of the fastest drivers no policy learns from."""
ORACLE_DRIVERS = 4
RULES: Mapping[str, Mapping[str, Any]] = {
    "curated": {},
    "best half": {"keep": 0.5},
    "weighted": {"weight": True},
}
"""Arguments of `ileed.curate` for the data that the trainer learns from; the first are its defaults."""
ADVANTAGE = "advantage weights"
"""The weights of laps by which a fit with lap times learns its own policy: rules of curation do not use them."""
OWN = "own policy"
TRAINED = "trained"
METHOD = Ileed(policy=MixtureMLP(hidden=(128, 128), modes=1, standard_deviation_floor=0.05))
"""`Ileed()` at one width, that which it chose without the two fastest drivers."""


@final
@dataclass(frozen=True, eq=False)
class TrainedPolicies:
    """Policies by name, and the fit that they come from, if any."""

    regressors: Mapping[str, Regressor]
    seconds: float
    fitted: Fitted | None = None
    kept: Mapping[str, float] | None = None
    """The effective share of steps that each regressor learned from."""

    @property
    def actors(self) -> Mapping[str, Callable[[Array], Array]]:
        """Functions from observations to mean actions."""
        found = {name: each.act for name, each in self.regressors.items()}
        return found if self.fitted is None else {OWN: self._own_actions} | found

    def _own_actions(self, observations: Array) -> Array:
        assert self.fitted is not None
        policy: Any = self.fitted.policy
        return np.asarray(policy.distribution(observations).mean)


@final
@dataclass(frozen=True)
class PlainTraining:
    """The trainer on the laps of all drivers, or of the fastest ones by median lap time: an oracle."""

    trainer: Regression = Regression()  # noqa: RUF009 (frozen)
    fastest: int | None = None
    devices: ClassVar[tuple[str, ...]] = ("cpu",)

    def fit(self, demonstrations: Demonstrations, *, seed: int, device: str = "auto") -> Any:
        data, began, weights = demonstrations, time.monotonic(), None
        if self.fastest is not None:
            weights = np.isin(data.demonstrator, fastest_drivers(data)[: self.fastest]).astype(np.float64)
        found = {TRAINED: self.trainer.fit(data, seed=seed, weights=weights)}
        kept = 1.0 if weights is None else float(weights.mean())
        return TrainedPolicies(found, time.monotonic() - began, kept={TRAINED: kept})


@final
@dataclass(frozen=True)
class CuratedTraining:
    """A fit of the library: its own policy, and the same trainer on its curated data, and by its advantage weights."""

    method: Ileed
    trainer: Regression = Regression()  # noqa: RUF009 (frozen)
    is_told_times: bool = False
    """Whether the fit takes the lap times as `outcome`."""
    devices: ClassVar[tuple[str, ...]] = ("cpu",)

    def fit(self, demonstrations: Demonstrations, *, seed: int, device: str = "auto") -> Any:
        data, began = demonstrations, time.monotonic()
        outcome: Mapping[str, Any] = {"outcome": lap_times(data), "better": "lower"} if self.is_told_times else {}
        fitted = self.method.fit(data, seed=seed, device="cpu", **outcome)
        each = {name: curate(fitted, data, **rule) for name, rule in RULES.items()}
        weights = {name: (own if RULES[name] else own.recommended()).step_weights for name, own in each.items()}
        if self.is_told_times:
            weights[ADVANTAGE] = outcome_weights(fitted, data, **outcome)[data.episode]
        trained: dict[bytes, Regressor] = {}  # what is recommended is often one of the other rules
        for own in weights.values():
            if own.tobytes() not in trained:
                trained[own.tobytes()] = self.trainer.fit(data, seed=seed, weights=own)
        found = {name: trained[own.tobytes()] for name, own in weights.items()}
        kept = {name: float(own.sum() ** 2 / np.square(own).sum() / len(own)) for name, own in weights.items()}
        return TrainedPolicies(found, time.monotonic() - began, fitted, kept)


@final
@dataclass(frozen=True)
class RacingPolicies(AbstractRacing):
    """Policies that learn without the fastest drivers, and predict these; a trial is a network of each policy."""

    name: str = "people/racing-policies"
    trials: int = 3

    @property
    def numbers(self) -> Mapping[str, Any]:
        return {"rules": {name: dict(rule) for name, rule in RULES.items()}}

    def settings(self) -> Sequence[Setting]:
        return [{"left_out": count} for count in LEFT_OUT]

    def methods(self, setting: Setting) -> Mapping[str, Learner]:
        return {
            "everyone": PlainTraining(),
            "oracle": PlainTraining(fastest=ORACLE_DRIVERS),
            "default": CuratedTraining(METHOD),
            "outcome": CuratedTraining(METHOD, is_told_times=True),
        }

    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[Demonstrations]:
        training, _ = split_drivers(self.laps, setting["left_out"])
        return [training] * len(trials)

    def measure(self, setting: Setting, method: str, trial: int, fit: Any) -> Measured:
        _, held_out = split_drivers(self.laps, setting["left_out"])
        return measure_policies(fit, held_out)


def measure_policies(policies: TrainedPolicies, held_out: Demonstrations) -> Measured:
    """The mean squared error of each lap by each policy, and whose lap it is."""
    steps = np.bincount(held_out.episode)

    def errors(act: Callable[[Array], Array]) -> list[float]:
        squared = np.square(act(held_out.observations) - held_out.actions).mean(1)
        return (np.bincount(held_out.episode, squared) / steps).tolist()

    return {
        "errors": {name: errors(act) for name, act in policies.actors.items()},
        "driver": held_out.episode_demonstrator.tolist(),
        "steps": steps.tolist(),
        "kept": dict(policies.kept or {}),
    }


def split_drivers(laps: RacingLaps, left_out: int) -> tuple[Demonstrations, Demonstrations]:
    """The laps of all but the fastest drivers, with rewards; and those of the fastest."""
    order = np.argsort(laps.median_lap_time)
    names = laps.data.names
    fastest = [names[each] for each in order[:left_out]]
    return laps.rewarded.by(*(name for name in names if name not in fastest)), laps.data.by(*fastest)


def fastest_drivers(data: Demonstrations) -> Array:
    """(driver,) drivers by median lap time, fastest first, of laps with rewards."""
    return np.argsort(medians_by_driver(lap_times(data), data.episode_demonstrator))
