"""What is fitted to operators: estimates of expertise, and policies cloned from selections of episodes."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, final

import numpy as np
import numpy.typing as npt

from ileed import Curated, Demonstrations, Fitted, Ileed, MixtureMLP, Policy, SettingsError, bc, curate
from ileed.fitting import ProgressCallback
from ileed_lab.in_turn import AbstractInTurn
from ileed_lab.operators.recording import episode_success

__all__ = ["RULES", "SELECTIONS", "TRAINER", "Cloned", "Cloning", "Estimate", "Estimator", "expertise_of"]

TRAINER = bc(policy=MixtureMLP(hidden=(128, 128), modes=1), restarts=1, steps=15_000)
"""Chosen by the success of policies cloned from everything and from one exact operator, before anything was curated:
with five modes, or with 6,000 steps, policies cloned from everything hardly ever grasped the object."""
RULES: Mapping[str, Mapping[str, Any]] = {"curated": {}, "half": {"keep": 0.5}}
"""Rules of `ileed.curate`: its defaults, and a stated share."""
SELECTIONS = ("everything", *RULES, "successes")
"""What a policy is cloned from."""


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
        """What a rule of `RULES` keeps, and the scores of all episodes."""
        return _curate(self, rule)


@lru_cache(maxsize=2)
def _curate(estimate: Estimate, rule: str) -> Curated:
    """Remembered, since both the scores and the selection are asked for; without a rule, what is recommended."""
    found = curate(estimate.fitted, estimate.data, seed=estimate.seed, **RULES[rule])
    return found if RULES[rule] else found.recommended()


@final
@dataclass(frozen=True)
class Estimator(AbstractInTurn):
    """A method of the library on the demonstrations, or on a part of what they show."""

    method: Ileed = Ileed()  # noqa: RUF009 (frozen)
    hidden: tuple[int, ...] = ()
    """Features that are deleted from the observations."""
    outcome: bool = False
    """Whether the fit is given the success of every episode, as `fit(..., outcome=)`."""

    def fit(
        self,
        demonstrations: Demonstrations,
        *,
        seed: int,
        device: str = "auto",
        progress: ProgressCallback | None = None,
    ) -> Estimate:
        """The fit; the last few are remembered, since several selections of episodes need the same."""
        key = self, demonstrations.fingerprint(), seed, device
        if key not in _REMEMBERED:
            while len(_REMEMBERED) >= _MOST_REMEMBERED:
                del _REMEMBERED[next(iter(_REMEMBERED))]
            _REMEMBERED[key] = self._fit(demonstrations, seed, device)
        return _REMEMBERED[key]

    def _fit(self, data: Demonstrations, seed: int, device: str) -> Estimate:
        if self.hidden:
            data = replace(data, observations=np.delete(data.observations, self.hidden, axis=1))
        began = time.monotonic()
        evidence: dict[str, Any] = {"outcome": episode_success(data)} if self.outcome else {}
        with _recorded_warnings() as said:
            fitted = self.method.fit(data, seed=seed, device=device, **evidence)
        return Estimate(fitted, data, tuple(str(each.message) for each in said), seed, time.monotonic() - began)


_REMEMBERED: dict[tuple[Estimator, str, int, str], Estimate] = {}
_MOST_REMEMBERED = 20


@final
@dataclass(frozen=True, eq=False)
class Cloned:
    """A policy, and which episodes it was cloned from."""

    policy: Any
    kept: npt.NDArray[np.bool_]
    """(episode,)."""
    is_weighted: bool
    sentence: str
    """The rule of curation in words, with what it kept; empty where nothing was curated."""
    seconds: float


@final
@dataclass(frozen=True)
class Cloning(AbstractInTurn):
    """Behaviour cloning on a selection of episodes, with the weights that curation gives them."""

    selection: str
    trainer: Ileed = TRAINER
    estimator: Estimator = Estimator()
    """By which episodes are curated."""

    def __post_init__(self) -> None:
        if self.selection not in SELECTIONS:
            raise SettingsError(f"selection must be one of {', '.join(SELECTIONS)}, got {self.selection!r}")

    def fit(
        self,
        demonstrations: Demonstrations,
        *,
        seed: int,
        device: str = "auto",
        progress: ProgressCallback | None = None,
    ) -> Cloned:
        data, weights, sentence = demonstrations, None, ""
        kept = np.ones(data.episode_count, dtype=bool)
        if self.selection == "successes":
            kept = episode_success(data)
        elif self.selection in RULES:
            curated = self.estimator.fit(data, seed=seed, device=device).curate(self.selection)
            kept, weights, sentence = curated.kept, curated.weights, curated.sentence
        is_weighted = weights is not None and not np.allclose(weights, 1)
        began = time.monotonic()
        with _recorded_warnings():
            fitted = self.trainer.fit(
                data.select(kept[data.episode]),
                seed=seed,
                device=device,
                weights=weights if is_weighted else None,
                check_width=False,
            )
        return Cloned(fitted.policy, kept, is_weighted, sentence, time.monotonic() - began)


def expertise_of(fitted: Fitted) -> npt.NDArray[np.float64]:
    """(demonstrator,) expertise as its table shows it; in sample where a fit has no ratings."""
    found = fitted.expertise.by_demonstrator()
    if fitted.expertise.ratings is not None:
        table = fitted.expertise.table()
        found = dict(zip(table["demonstrator"].to_pylist(), table["expertise"].to_pylist(), strict=True))
    return np.array([found[name] for name in fitted.expertise.names])


@contextmanager
def _recorded_warnings() -> Iterator[list[warnings.WarningMessage]]:
    """Warnings of the block in a list, instead of on the terminal."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield said
