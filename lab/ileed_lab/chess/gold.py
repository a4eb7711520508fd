"""Gold demonstrators in chess: does expertise rise with the rating if the strongest players are known to be strong?

There is no engine. Players are in six bins by rating, and the sixth is named gold. A policy is learned from the moves
of gold players alone and rates all others, in games that it has not seen.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, final

import numpy as np
import pyarrow as pa

from ileed import Boltzmann, CategoricalMLP, Constant, Demonstrations, Ileed, Perfect, UniformMixture
from ileed import compare as compare_models
from ileed.data import Array
from ileed.parallel.runtime import stream
from ileed.rating.answers import likelihood_by_policy
from ileed.rating.posterior import GRID, peak
from ileed_lab.chess.every_move import demonstrations, read_moves
from ileed_lab.chess.positions import rating_bins
from ileed_lab.grid import AbstractFileExperiment, Setting
from ileed_lab.learners import Comparison, Learner
from ileed_lab.records import Measured

__all__ = ["BINS", "DRAWS", "FOLDS", "OPENING", "ChessGold"]

BINS = 6
FOLDS = 3
DRAWS = 1_000
OPENING = 10
"""Moves of each player that count as the opening."""
POINTS = GRID[::8]
"""Points of expertise at which the likelihood of a game is kept."""
_KEPT = 3  # one game in this many is for development
LEARNED_BEFORE = "is gold in another game"


@final
@dataclass(frozen=True)
class ChessGold(AbstractFileExperiment):
    """Six bins of players by rating, with all their moves; the sixth is gold.

    A third of the games is for development: settings were chosen by them, and figures are of the other games, the
    kept ones. Under "shuffled" bins are permuted over episodes, the moves of one player in one game, so that
    gold players are any players.
    """

    name: str = "chess/gold"
    trials: int = 1
    block: ClassVar[int] = 1
    data_file: ClassVar[str] = "moves.parquet"
    source: ClassVar[str] = "every move of games: pass --data with a file that `ileed chess extract --every-move` wrote"

    @property
    def numbers(self) -> Mapping[str, Any]:
        return {"bins": BINS, "folds": FOLDS, "draws": DRAWS, "opening": OPENING}

    def fingerprint(self) -> str:
        return _fingerprint(self.file)

    def settings(self) -> Sequence[Setting]:
        return [
            {"games": "kept", "bins": "rating"},
            {"games": "kept", "bins": "shuffled"},
            {"games": "development", "bins": "rating"},
        ]

    def methods(self, setting: Setting) -> Mapping[str, Learner]:
        part = setting["games"]
        cloned = replace(METHOD, expertise=Perfect())
        found: dict[str, Learner] = {
            "gold": GameFolds(cloned, "gold", part),
            "people": GameFolds(METHOD, "people", part),
        }
        if setting["bins"] == "rating" and part == "kept":
            found["told"] = GameFolds(METHOD, "told", part)
            found["compare"] = Compared(replace(METHOD, policy=CategoricalMLP(hidden=(32,)), steps=500, held_out=0.0))
        return found

    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[Demonstrations]:
        return [_demonstrations(self.file, setting["games"], setting["bins"], trial) for trial in trials]

    def measure(self, setting: Setting, method: str, trial: int, fit: Any) -> Measured:
        measured: Measured = _measured_comparison(fit) if method == "compare" else fit.measured(trial)
        return measured


METHOD = Ileed(
    policy=CategoricalMLP(hidden=(128,)),
    expertise=Constant(),
    restarts=1,
    steps=2_000,
    batch_size=512,
    held_out=0.1,
    folds=0,
)
"""Chosen by the cost of held-out moves in the games for development."""


def is_kept(game: Array) -> Array:
    """Whether each game, by its number, is one of those that figures are of."""
    deal = np.random.default_rng(1).permutation(int(game.max()) + 1)
    return np.asarray(deal[game] % _KEPT != 0)


@cache
def _fingerprint(path: Path) -> str:
    """A digest of the moves of a table."""
    table, digest = read_moves(path), hashlib.blake2b(digest_size=16)
    for name in ("game", "ply", "rating", "action"):
        digest.update(table.column(name).to_numpy().astype(np.int64).tobytes())
    return digest.hexdigest()


@cache
def _demonstrations(path: Path, games: str, bins: str, trial: int) -> Demonstrations:
    table = read_moves(path)
    ratings = table.column("rating")
    labels = np.array(rating_bins(pa.table({"mover_rating": ratings}), bins=BINS))
    order = sorted(set(labels.tolist()))
    game = table.column("game").to_numpy()
    if bins == "shuffled":
        episode = 2 * game.astype(np.int64) + table.column("ply").to_numpy() % 2
        _, first, own = np.unique(episode, return_index=True, return_inverse=True)
        random = np.random.default_rng(stream(trial, "shuffled").initial_seed())
        labels = random.permutation(labels[first])[own]
    player = table.column("player").combine_chunks().indices.to_numpy()
    gold_players = np.unique(player[labels == order[-1]])
    known = np.isin(player, gold_players).astype(np.int64)
    if games == "development":
        chosen = ~is_kept(game)
        table, labels, known = table.filter(pa.array(chosen)), labels[chosen], known[chosen]
    return demonstrations(table, labels.tolist(), order=order, skills={LEARNED_BEFORE: known})


@final
@dataclass(frozen=True, eq=False)
class RatedByGame:
    """The likelihood of each bin's moves in each game by expertise, and what is known of the moves.

    Every column is (part, ...); a part is moves of one bin in one game that are alike in the opening and in whether
    the player is gold in another game.
    """

    bin: Array
    game: Array
    opening: Array
    learned_before: Array
    steps: Array
    curves: Array
    nats_per_action: Sequence[float]
    """Of the policy on held-out moves of those that it learned from, by fold."""
    seconds: float

    def measured(self, trial: int) -> Measured:
        """Expertise of each bin with standard errors over games; of all moves, and of parts with all lower bins."""
        every = np.ones(len(self.bin), dtype=bool)
        parts = {"all": every, "after the opening": ~self.opening, "players never gold": ~self.learned_before}
        return {
            "nats_per_action": list(self.nats_per_action),
            **{
                words: self._trend(chosen, trial)
                for words, chosen in parts.items()
                if set(range(BINS - 1)) <= set(self.bin[chosen].tolist())
            },
        }

    def _trend(self, chosen: Array, trial: int) -> Measured:
        games, game = np.unique(self.game[chosen], return_inverse=True)
        random = np.random.default_rng(stream(trial, "games").initial_seed())
        drawn = random.multinomial(len(games), np.full(len(games), 1 / len(games)), size=DRAWS)
        counts = np.concatenate([np.ones((1, len(games))), drawn])
        own, found = self.bin[chosen], []
        present = [number for number in range(BINS) if (own == number).any()]
        for number in present:
            rows = np.flatnonzero(own == number)
            by_game = np.zeros((len(games), len(POINTS)))
            np.add.at(by_game, game[rows], self.curves[chosen][rows])
            found.append(peak(counts @ by_game, POINTS))
        expertise = np.stack(found, axis=1)  # (draw, bin): all games first, then resampled ones
        others = expertise[:, : BINS - 1]
        slope = np.polyfit(np.arange(BINS - 1), others.T, 1)[0]
        rises = np.asarray((np.diff(others) > 0).all(1))
        return {
            "bins": [
                {
                    "steps": int(self.steps[chosen][own == number].sum()),
                    "expertise": float(values[0]),
                    "standard_error": float(values[1:].std(ddof=1)),
                }
                for number, values in zip(present, expertise.T, strict=True)
            ],
            "games": len(games),
            "slope": float(slope[0]),
            "slope_interval": np.quantile(slope[1:], (0.025, 0.975)).tolist(),
            "slope_above_zero": float((slope[1:] > 0).mean()),
            "rises": bool(rises[0]),
            "rises_strictly": float(rises[1:].mean()),
            "gold_above_all": float((expertise[1:, -1:] > others[1:]).all(1).mean()) if len(present) == BINS else None,
            "peak": np.bincount(expertise[1:].argmax(1), minlength=len(present)).tolist(),
        }


@final
@dataclass(frozen=True)
class GameFolds:
    """Every demonstrator rated by policies that have not seen their games: games are dealt into folds.

    The policies learn from gold moves alone ("gold"); from as many moves of all demonstrators ("people"); or from
    those with soft gold labels, by `fit(gold=)` ("told").
    """

    method: Ileed
    learns_from: Literal["gold", "people", "told"]
    games: str
    folds: int = FOLDS

    def fit(self, demonstrations: Demonstrations, *, seed: int, device: str = "auto") -> Any:
        data, began = demonstrations, time.monotonic()
        assert data.source_episode is not None
        game = data.source_episode // 2
        rated = is_kept(game) if self.games == "kept" else np.ones(len(data), dtype=bool)
        random = np.random.default_rng(stream(seed, "folds of games").initial_seed())
        fold = (random.permutation(int(game.max()) + 1) % self.folds)[game]
        learned = self._learned(data, random)
        gold = [data.names[-1]] if self.learns_from == "told" else None
        found, nats = [], []
        for number in range(self.folds):
            fitted = self.method.fit(
                data.select(learned & (fold != number)), seed=seed, device=device, check_width=False, gold=gold
            )
            nats.append(float(fitted.nats_per_action))
            found.append(_rate(fitted, data.select(rated & (fold == number))))
        names = ("bin", "game", "opening", "learned_before", "steps", "curves")
        columns: dict[str, Any] = {name: np.concatenate(each) for name, *each in zip(names, *found, strict=True)}
        return RatedByGame(**columns, nats_per_action=nats, seconds=time.monotonic() - began)

    def _learned(self, data: Demonstrations, random: np.random.Generator) -> Array:
        """(step,) what may be learned from: gold moves, or every sixth episode of all demonstrators."""
        if self.learns_from == "gold":
            return np.asarray(data.demonstrator == len(data.names) - 1)
        return np.asarray((random.permutation(data.episode_count) % len(data.names) == 0)[data.episode])


def _rate(fitted: Any, data: Demonstrations) -> tuple[Array, ...]:
    """The columns of `RatedByGame`, for moves that a fit has not seen."""
    assert data.source_episode is not None
    starts = np.searchsorted(data.episode, np.arange(data.episode_count))
    opening = np.arange(len(data)) - starts[data.episode] < OPENING
    game, known = data.source_episode // 2, data.skills[LEARNED_BEFORE]
    keys = np.stack([data.demonstrator, game, opening, known]).astype(np.int64)
    parts, part = np.unique(keys, axis=1, return_inverse=True)
    likelihood = likelihood_by_policy(fitted.policy, data, UniformMixture())
    found = likelihood.summed(part.ravel(), parts.shape[1], POINTS)
    number, game, in_opening, known = parts
    return number, game, in_opening.astype(bool), known.astype(bool), np.bincount(part.ravel()), found


@final
@dataclass(frozen=True)
class Compared:
    """Demonstrator models side by side on every sixth episode, by held-out episodes."""

    method: Ileed

    def fit(self, demonstrations: Demonstrations, *, seed: int, device: str = "auto") -> Any:
        data, began = demonstrations, time.monotonic()
        random = np.random.default_rng(stream(seed, "compared").initial_seed())
        some = (random.permutation(data.episode_count) % len(data.names) == 0)[data.episode]
        models = (UniformMixture(), Boltzmann())
        found = compare_models(data.select(some), seed=seed, models=models, method=self.method, device=device)
        return Comparison(found, time.monotonic() - began)


def _measured_comparison(fit: Comparison) -> Measured:
    """The comparison, on how many moves, and the expertise of the bins by each model."""
    measured, found = fit.measured(), fit.found
    models = [row | {"expertise": list(own)} for row, own in zip(measured["models"], found.expertise, strict=True)]
    return measured | {"steps": found.held_out_steps, "models": models}
