"""What is fitted to games of people: cross-fitted ratings of demonstrators and of games, and plain cloning to compare
with."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from ileed import CategoricalMLP, Constant, Demonstrations, Fitted, Ileed, compare
from ileed.data import Array
from ileed.model.demonstrators import AbstractDemonstratorModel
from ileed.parallel.runtime import stream
from ileed.rating.ratings import Ratings
from ileed_lab.learners import Comparison

__all__ = ["METHOD", "Agreement", "Agreements", "Alone", "Compared", "CrossFitted", "RatedGames", "game_curves"]

METHOD = Ileed(
    policy=CategoricalMLP(hidden=(32,)),
    expertise=Constant(),
    restarts=1,
    steps=2_000,
    batch_size=512,
    learning_rate=3e-3,
)
"""One number of expertise for each demonstrator; chosen by held-out games, before any score was looked at."""


@final
@dataclass(frozen=True)
class RatedGames:
    """Every demonstrator rated by policies that have not seen their games, and every game likewise."""

    people: Ratings
    games: Ratings
    seconds: float


@final
@dataclass(frozen=True)
class CrossFitted:
    """A method of the library, cross-fitted: the same policies rate demonstrators and games."""

    method: Ileed

    def fit(self, demonstrations: Demonstrations, *, seed: int, device: str = "auto") -> Any:
        began = time.monotonic()
        people, games = (
            self.method.cross_fit(demonstrations, seed=seed, by=by, device=device) for by in ("demonstrator", "episode")
        )
        return RatedGames(people, games, time.monotonic() - began)


def game_curves(games: Ratings) -> Array:
    """(game, point) the log-likelihood of each game by expertise, up to a constant: its posterior without the prior."""
    assert games.shares is not None
    assert games.population is not None
    least = np.finfo(np.float64).tiny
    return np.log(np.maximum(games.shares, least)) - np.log(np.maximum(games.population.share, least))


@final
@dataclass(frozen=True)
class Agreements:
    """For each game, the steps in which the demonstrator did what is likeliest by a policy of other demonstrators, and
    all steps."""

    agreeing: Array
    steps: Array
    nats_per_action: float
    seconds: float


@final
@dataclass(frozen=True)
class Agreement:
    """The naive index: how often a demonstrator does what a policy that is cloned from other demonstrators would do.

    Demonstrators are split into folds, and each fold is rated by a policy that has not seen any of its demonstrators.
    """

    method: Ileed
    folds: int = 5

    def fit(self, demonstrations: Demonstrations, *, seed: int, device: str = "auto") -> Any:
        data, began = demonstrations, time.monotonic()
        random = np.random.default_rng(stream(seed, "people").initial_seed())
        fold = random.permutation(len(data.names)) % self.folds
        agrees, nats = np.zeros(len(data), dtype=bool), np.zeros(len(data))
        for number in range(self.folds):
            own = fold[data.demonstrator] == number
            fitted = self.method.fit(data.select(~own), seed=seed, device=device, check_width=False)
            log_policy = _log_policy(fitted, data.observations[own])
            agrees[own] = log_policy.argmax(1) == data.actions[own]
            nats[own] = -log_policy[np.arange(own.sum()), data.actions[own]]
        return Agreements(
            np.bincount(data.episode, weights=agrees),
            np.bincount(data.episode),
            float(nats.mean()),
            time.monotonic() - began,
        )


@final
@dataclass(frozen=True)
class Clones:
    """How well each demonstrator's last games are predicted by a policy that is cloned from their earlier ones."""

    rows: Sequence[dict[str, Any]]
    seconds: float


@final
@dataclass(frozen=True)
class Alone:
    """Each demonstrator cloned alone, from all but the last fifth of their games, which are predicted."""

    method: Ileed

    def fit(self, demonstrations: Demonstrations, *, seed: int, device: str = "auto") -> Any:
        began, rows = time.monotonic(), []
        for name in demonstrations.names:
            own = demonstrations.by(name)
            earlier = own.episode < own.episode_count * 4 // 5
            fitted = self.method.fit(own.select(earlier), seed=seed, device=device, check_width=False)
            later = own.select(~earlier)
            log_policy = _log_policy(fitted, later.observations)
            right = log_policy.argmax(1) == later.actions
            nats = -log_policy[np.arange(len(later)), later.actions]
            rows.append(
                {
                    "demonstrator": name,
                    "games": own.episode_count,
                    "predicted": len(later),
                    "nats_per_action": float(nats.mean()),
                    "nats_by_game": _means(nats, later.episode),
                    "right": float(right.mean()),
                }
            )
        return Clones(rows, time.monotonic() - began)


def _log_policy(fitted: Fitted, observations: Array) -> Array:
    """(step, action) of a categorical policy."""
    policy: Any = fitted.policy
    return np.asarray(policy.distribution(observations).logits)


def _means(values: Array, game: Array) -> list[float]:
    return (np.bincount(game, weights=values) / np.bincount(game)).round(4).tolist()


@final
@dataclass(frozen=True)
class Compared:
    """Demonstrator models side by side, by held-out games."""

    method: Ileed
    models: tuple[AbstractDemonstratorModel[Any], ...]

    def fit(self, demonstrations: Demonstrations, *, seed: int, device: str = "auto") -> Any:
        began = time.monotonic()
        found = compare(demonstrations, seed=seed, models=self.models, method=self.method, device=device)
        return Comparison(found, time.monotonic() - began)
