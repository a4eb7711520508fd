"""What is fitted to operators: estimates of expertise, and policies cloned from selections of episodes."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, final

import numpy as np
import numpy.typing as npt

from ileed import Curated, Demonstrations, Fitted, Ileed, MixtureMLP, Policy, SettingsError, curate
from ileed_lab.in_turn import AbstractInTurn
from ileed_lab.operators.recording import episode_success
from ileed_lab.outcome_weights import outcome_weights
from ileed_lab.regression import Regression, Regressor

__all__ = [
    "METHOD",
    "RATING_METHOD",
    "RULES",
    "SELECTIONS",
    "TRAINER",
    "Cloned",
    "Cloning",
    "Estimate",
    "Estimator",
    "expertise_of",
]

METHOD = Ileed(policy=MixtureMLP(hidden=(128, 128), modes=1, standard_deviation_floor=0.05))
"""`Ileed()` at one width, that which it chose for the first data of either experiment. It may choose others for other
data."""
RATING_METHOD = Ileed(
    policy=MixtureMLP(hidden=(128, 128), standard_deviation_floor=0.05),
    restarts=4,
    steps=2_000,
    learning_rate=1e-3,
    decay=False,
)
"""Where the fit's own policy acts nowhere: ratings do not depend on how it is optimised."""
TRAINER = Regression()
"""Chosen by the success of policies cloned from everything and from exact operators, before anything was curated."""
RULES: Mapping[str, Mapping[str, Any]] = {"curated": {}, "half": {"keep": 0.5}}
"""Rules of `ileed.curate`: its defaults, and a stated share."""
SELECTIONS = ("everything", *RULES, "successes", "outcome", "outcome-curated")
"""What a policy is cloned from. The last two are those of a fit with the success of every episode: its advantage
weights, and `curate` with defaults."""


_Value = TypeVar("_Value")


@final
class Remembered(Generic[_Value]):
    """The last few values by key."""

    def __init__(self, most: int = 20) -> None:
        self._most, self._values = most, dict[Hashable, _Value]()

    def of(self, key: Hashable, make: Callable[[], _Value]) -> _Value:
        if key not in self._values:
            value = make()
            while len(self._values) >= self._most:
                del self._values[next(iter(self._values))]
            self._values[key] = value
        return self._values[key]


@final
@dataclass(frozen=True, eq=False)
class Estimate:
    """A fit, the data as it was shown them, and what it warned of."""

    fitted: Fitted
    data: Demonstrations
    warnings: tuple[str, ...]
    seed: int
    seconds: float

    @property
    def policy(self) -> Policy:
        return self.fitted.policy

    def curate(self, rule: str) -> Curated:
        """What a rule of `RULES` keeps, and the scores of all episodes; without a rule, what is recommended."""
        return _CURATED.of((self, rule), lambda: self._curate(RULES[rule]))

    def _curate(self, rule: Mapping[str, Any]) -> Curated:
        found = curate(self.fitted, self.data, seed=self.seed, **rule)
        return found if rule else found.recommended()


@final
@dataclass(frozen=True)
class Estimator(AbstractInTurn):
    """A method of the library on the demonstrations, or on a part of what they show."""

    method: Ileed = METHOD
    hidden: tuple[int, ...] = ()
    """Features that are deleted from the observations."""
    outcome: bool = False
    """Whether the fit is given the success of every episode, as `fit(..., outcome=)`."""

    def fit(self, demonstrations: Demonstrations, *, seed: int, device: str = "auto") -> Estimate:
        """The fit; the last few are remembered, since several selections of episodes need the same."""
        key = self, demonstrations.fingerprint, seed, device
        return _ESTIMATES.of(key, lambda: self._fit(demonstrations, seed, device))

    def _fit(self, data: Demonstrations, seed: int, device: str) -> Estimate:
        if self.hidden:
            data = replace(data, observations=np.delete(data.observations, self.hidden, axis=1))
        began = time.monotonic()
        evidence: dict[str, Any] = {"outcome": episode_success(data)} if self.outcome else {}
        with _recorded_warnings() as said:
            fitted = self.method.fit(data, seed=seed, device=device, **evidence)
        return Estimate(fitted, data, tuple(str(each.message) for each in said), seed, time.monotonic() - began)


@final
@dataclass(frozen=True, eq=False)
class Cloned:
    """A policy, and which episodes it was cloned from."""

    policy: Regressor
    weights: npt.NDArray[np.float64]
    """(episode,) with a mean of 1 over those that were not left out."""
    sentence: str
    """The rule of curation in words, with what it kept; empty where nothing was curated."""
    seconds: float

    @property
    def kept(self) -> npt.NDArray[np.bool_]:
        """(episode,) whether the policy learned from it."""
        return self.weights > 0

    @property
    def is_weighted(self) -> bool:
        return not np.allclose(self.weights[self.kept], 1)


@final
@dataclass(frozen=True)
class Cloning(AbstractInTurn):
    """Behaviour cloning on a selection of episodes, with the weights that it gives them."""

    selection: str
    trainer: Regression = TRAINER
    estimator: Estimator = Estimator(RATING_METHOD)
    """By which episodes are curated; it is given the success of every episode where the selection says so."""

    def __post_init__(self) -> None:
        if self.selection not in SELECTIONS:
            raise SettingsError(f"selection must be one of {', '.join(SELECTIONS)}, got {self.selection!r}")

    def fit(self, demonstrations: Demonstrations, *, seed: int, device: str = "auto") -> Cloned:
        """The policy; the last few are remembered, since selections may agree."""
        weights, sentence = self._select(demonstrations, seed, device)
        weights = weights / weights[weights > 0].mean()
        began, data = time.monotonic(), demonstrations
        key = self.trainer, data.fingerprint, weights.round(9).tobytes(), seed
        policy = _CLONED.of(key, lambda: self.trainer.fit(data, seed=seed, weights=weights[data.episode]))
        return Cloned(policy, weights, sentence, time.monotonic() - began)

    def _select(self, data: Demonstrations, seed: int, device: str) -> tuple[npt.NDArray[np.float64], str]:
        """(episode,) weights, and the rule in words."""
        if self.selection == "everything":
            return np.ones(data.episode_count), ""
        if self.selection == "successes":
            return episode_success(data).astype(np.float64), ""
        if self.selection in RULES:
            curated = self.estimator.fit(data, seed=seed, device=device).curate(self.selection)
            return curated.unit_weights, curated.sentence
        estimate = replace(self.estimator, outcome=True).fit(data, seed=seed, device=device)
        if self.selection == "outcome":
            return outcome_weights(estimate.fitted, data, episode_success(data)), ""
        curated = estimate.curate("curated")
        return curated.unit_weights, curated.sentence


def expertise_of(fitted: Fitted) -> npt.NDArray[np.float64]:
    """(demonstrator,) expertise as its table shows it; in sample where a fit has no ratings."""
    found = fitted.expertise.by_demonstrator()
    if fitted.expertise.ratings is not None:
        table = fitted.expertise.table()
        found = dict(zip(table["demonstrator"].to_pylist(), table["expertise"].to_pylist(), strict=True))
    return np.array([found[name] for name in fitted.expertise.names])


_ESTIMATES, _CURATED, _CLONED = Remembered[Estimate](), Remembered[Curated](), Remembered[Regressor]()


@contextmanager
def _recorded_warnings() -> Iterator[list[warnings.WarningMessage]]:
    """Warnings of the block in a list, instead of on the terminal."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield said
