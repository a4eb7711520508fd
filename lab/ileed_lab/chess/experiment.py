"""The paper's chess experiment: endgames of rated players, whose ratings the model does not see."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ileed import Boltzmann, CategoricalMLP, Constant, Demonstrations, Embedded, Ileed, Perfect, SettingsError
from ileed.data import Array
from ileed.parallel.runtime import stream
from ileed_lab.chess import board
from ileed_lab.chess.consulting import ENGINE, people
from ileed_lab.chess.judging import Judge
from ileed_lab.chess.players import engine_moves
from ileed_lab.chess.positions import (
    demonstrations,
    rating_bins,
    read_positions,
    with_king_centred_planes,
    with_mirror_images,
)
from ileed_lab.grid import AbstractExperiment, AbstractFileExperiment, Setting
from ileed_lab.learners import Ensemble, Learner, likeliest
from ileed_lab.ranking import rank_correlation
from ileed_lab.records import Measured

__all__ = ["AbstractConsulted", "ChessEngines", "ChessExpertise", "ChessPolicy"]

BINS = 5
ASKED = (0, 1, 3, 10)
"""How often the engine's move is added for each move of a player: it is always the same move, with more weight."""


@dataclass(frozen=True)
class AbstractConsulted(AbstractFileExperiment):
    """An experiment on a table of positions with the moves of an engine."""

    block: ClassVar[int] = 1
    data_file: ClassVar[str] = "consulted.parquet"
    source: ClassVar[str] = (
        "a table of positions: pass --data with a file that `ileed chess extract` and then `ileed chess consult` wrote"
    )

    def fingerprint(self) -> str:
        return _fingerprint(self.file)

    def tables(self) -> tuple[pa.Table, pa.Table]:
        """The rows of human players, and those of the engine."""
        table = _table(self.file)
        if ENGINE not in pc.unique(table.column("player")).to_pylist():
            raise SettingsError(
                f"{self.file} has no moves of an engine: let `ileed chess consult {self.file} --out FILE` add them",
                code="engine-moves-missing",
            )
        return people(table)


@final
@dataclass(frozen=True)
class ChessExpertise(AbstractConsulted):
    """Five bins of players by rating: does expertise rise with the rating, which the model does not see?

    `data` is a table of positions with the moves of an engine (`ileed chess consult`). Trial 0 has all games once; in
    every other trial games are resampled with replacement, so that the spread over trials is that of a bootstrap over
    games. Under "shuffled" every player of a game is assigned to a bin at random, by the trial, as a control.
    """

    name: str = "chess/expertise"
    trials: int = 101

    def settings(self) -> Sequence[Setting]:
        rated = [{"bins": "rating", "engine": asked} for asked in ASKED]
        return [*rated, *({"bins": "shuffled", "engine": asked} for asked in ASKED if asked in (0, 10))]

    def methods(self, setting: Setting) -> Mapping[str, Learner]:
        return {"ileed": LARGE, "paper": PAPER}

    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[Demonstrations]:
        humans, engine = self.tables()
        bins = rating_bins(humans, bins=BINS)
        return [self._trial(setting, trial, humans, engine, bins) for trial in trials]

    def _trial(
        self, setting: Setting, trial: int, humans: pa.Table, engine: pa.Table, bins: Sequence[str]
    ) -> Demonstrations:
        order = sorted(set(bins))
        if setting["bins"] == "shuffled":
            bins = _shuffle_bins(humans, bins, np.random.default_rng(stream(trial, "shuffled").initial_seed()))
        copies = _copies(humans, np.random.default_rng(stream(trial, "games").initial_seed()) if trial else None)
        rows = np.repeat(np.arange(len(humans)), [copies[game] for game in humans.column("game_id").to_pylist()])
        parts, labels = [humans.take(rows)], [bins[row] for row in rows.tolist()]
        if asked := setting["engine"]:
            times = [asked * copies[game] for game in engine.column("game_id").to_pylist()]
            parts.append(engine.take(np.repeat(np.arange(len(engine)), times)))
            labels += [ENGINE] * sum(times)
            order = [*order, ENGINE]
        return demonstrations(pa.concat_tables(parts), labels, order=order)

    def measure(self, setting: Setting, method: str, trial: int, fit: Ensemble) -> Measured:
        fitted = likeliest(fit)
        expertise = fitted.expertise.by_demonstrator()
        bins = [value for name, value in expertise.items() if name != ENGINE]
        return {
            "expertise": expertise,
            "slope": float(np.polyfit(np.arange(len(bins)), bins, 1)[0]),
            "nats_per_action": fitted.nats_per_action,
        }


PAPER = Ileed(
    policy=CategoricalMLP(hidden=(8, 8)),
    expertise=Embedded(dim=2, hidden=(8, 8)),
    restarts=1,
    steps=4_000,
    batch_size=1024,
)
"""The paper's networks: hidden layers of 8, an embedding in two dimensions, 4,000 steps."""
LARGE = Ileed(
    policy=CategoricalMLP(hidden=(128,)),
    expertise=Constant(),
    restarts=1,
    steps=2_000,
    batch_size=1024,
    learning_rate=3e-3,
)
"""Large enough to memorise the move in every position, and one number of expertise for each bin."""


@final
@dataclass(frozen=True)
class ChessEngines(AbstractExperiment):
    """Engines of known strength: does expertise come out in their order?

    Their moves ship with the package; all of them moved in the same positions. Trials differ in the seed of the fit
    alone.
    """

    name: str = "chess/engines"
    trials: int = 3
    block: ClassVar[int] = 1

    @property
    def plan(self) -> Mapping[str, Any]:
        return {}

    def settings(self) -> Sequence[Setting]:
        return [{"players": players, "engine": asked} for players in ("strengths", "twenty") for asked in (0, 10)]

    def methods(self, setting: Setting) -> Mapping[str, Learner]:
        return {"ileed": LARGE, "boltzmann": replace(LARGE, demonstrator=Boltzmann())}

    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[Demonstrations]:
        rivals, engine = people(engine_moves(setting["players"]))
        asked = setting["engine"] * (len(rivals) // len(engine))
        table = pa.concat_tables([rivals, *[engine] * asked])
        players = table.column("player").to_pylist()
        return [demonstrations(table, players, order=list(dict.fromkeys(players))) for _ in trials]

    def measure(self, setting: Setting, method: str, trial: int, fit: Ensemble) -> Measured:
        fitted = likeliest(fit)
        expertise = fitted.expertise.by_demonstrator()
        weakest_first = [value for name, value in expertise.items() if name != ENGINE]
        return {
            "expertise": expertise,
            "rank_correlation": rank_correlation(weakest_first, range(len(weakest_first))),
            "nats_per_action": fitted.nats_per_action,
        }


NODES = 20_000
"""Nodes of the judge's search in each position."""


@final
@dataclass(frozen=True)
class ChessPolicy(AbstractConsulted):
    """The loss of a move by Stockfish's evaluation: at random, of players, and of policies that learned from
    demonstrators.

    Games are divided into as many folds as there are trials; each trial learns from all but one, and its policies move
    in the positions of that one. Intervals come from resampled games, since the moves of a game are correlated.
    """

    name: str = "chess/policy"
    trials: int = 5

    @property
    def numbers(self) -> Mapping[str, Any]:
        return {"nodes": NODES, "folds": self.trials}

    def settings(self) -> Sequence[Setting]:
        return [{"engine": asked} for asked in (0, 10)]

    def methods(self, setting: Setting) -> Mapping[str, Learner | None]:
        learned = {"bc": replace(GENERAL, expertise=Perfect()), "ileed": GENERAL}
        if setting["engine"]:
            return learned
        small = {"bc-paper": replace(PAPER, expertise=Perfect()), "ileed-paper": PAPER}
        return {"random": None, "people": None} | learned | small

    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[Demonstrations]:
        humans, engine = self.tables()
        bins = rating_bins(humans, bins=BINS)
        order = sorted(set(bins))
        found = []
        for trial in trials:
            own, theirs = (~_is_in_fold(table, trial, self.trials) for table in (humans, engine))
            parts = [humans.filter(pa.array(own))]
            labels = [label for label, keep in zip(bins, own, strict=True) if keep]
            if asked := setting["engine"]:
                rows = np.repeat(np.flatnonzero(theirs), asked)
                parts.append(engine.take(rows))
                labels += [ENGINE] * len(rows)
            names = [*order, ENGINE] if setting["engine"] else order
            both = with_mirror_images(demonstrations(pa.concat_tables(parts), labels, order=names))
            found.append(with_king_centred_planes(both))
        return found

    def measure(self, setting: Setting, method: str, trial: int, fit: Ensemble | None) -> Measured:
        humans, _ = self.tables()
        kept = _is_in_fold(humans, trial, self.trials)
        table = humans.filter(pa.array(kept))
        fens, games = table.column("fen").to_pylist(), table.column("game_id").to_pylist()
        judge = Judge(nodes=NODES, workers=1, cache=_evaluation_cache())
        if fit is None and method == "people":
            moves = {"sampled": table.column("move").to_pylist()}
        elif fit is None:
            moves = {"sampled": _random_moves(fens, trial)}
        else:
            moves = _policy_moves(likeliest(fit).policy, fens, trial)
        losses = {choice: judge.losses(fens, chosen) for choice, chosen in moves.items()}
        measured: Measured = {
            choice: {"by_game": _by_game(games, loss.paper, loss.capped)} | _means(loss.paper, loss.capped)
            for choice, loss in losses.items()
        }
        if method == "people":
            bins = np.array(rating_bins(humans, bins=BINS))[kept]
            loss = losses["sampled"]
            measured["by_bin"] = {
                label: _by_game(np.array(games)[bins == label], loss.paper[bins == label], loss.capped[bins == label])
                for label in sorted(set(bins.tolist()))
            }
        if fit is not None:
            measured["nats_per_action"] = likeliest(fit).nats_per_action
        return measured


GENERAL = Ileed(
    policy=CategoricalMLP(hidden=(128,)),
    expertise=Constant(),
    restarts=1,
    steps=2_000,
    batch_size=512,
    held_out=0.1,
)
"""A policy for unseen positions: its inputs include the squares around the king, and it stops early."""


def _policy_moves(policy: Any, fens: Sequence[str], trial: int) -> dict[str, list[str]]:
    """A policy's moves, sampled and likeliest."""
    observations, legal = board.encode(fens)
    policy.reset(trial)
    choices: dict[str, Callable[[], Array]] = {
        "sampled": lambda: policy.act(board.with_king_centred_planes(observations), legal=legal, sample=True),
        "greedy": lambda: policy.act(board.with_king_centred_planes(observations), legal=legal),
    }
    return {choice: board.moves_of(fens, act()) for choice, act in choices.items()}


def _random_moves(fens: Sequence[str], trial: int) -> list[str]:
    legal = board.encode(fens).legal
    random = np.random.default_rng(stream(trial, "random moves").initial_seed())
    return board.moves_of(fens, np.where(legal, random.random(legal.shape), -1).argmax(1))


def _by_game(games: Sequence[str] | Array, *losses: Array) -> dict[str, list[float]]:
    """For each game the number of judged moves, and the sum of each kind of loss."""
    names, game = np.unique(np.asarray(games), return_inverse=True)
    columns = [np.bincount(game), *(np.bincount(game, weights=loss) for loss in losses)]
    return {str(name): [round(float(column[k]), 3) for column in columns] for k, name in enumerate(names)}


def _means(paper: Array, capped: Array) -> dict[str, float]:
    return {"paper": float(paper.mean()), "capped": float(capped.mean())}


def _is_in_fold(table: pa.Table, fold: int, folds: int) -> Array:
    """Which rows belong to a fold of the games; the fold of a game depends on its name alone."""
    names = table.column("game_id").to_pylist()
    of_game = {name: int(stream(0, "part", name).initial_seed() % folds) for name in set(names)}
    return np.array([of_game[name] == fold % folds for name in names])


def _shuffle_bins(table: pa.Table, bins: Sequence[str], random: np.random.Generator) -> list[str]:
    """A random permutation of the bins over (player, game) episodes."""
    episodes = list(zip(table.column("game_id").to_pylist(), table.column("player").to_pylist(), strict=True))
    own = dict(zip(episodes, bins, strict=True))
    permuted = dict(zip(own, random.permutation(list(own.values())).tolist(), strict=True))
    return [permuted[episode] for episode in episodes]


def _copies(table: pa.Table, random: np.random.Generator | None) -> dict[str, int]:
    """How often each game counts: once, or as often as it is resampled with replacement."""
    games = pc.unique(table.column("game_id")).to_pylist()
    if random is None:
        return dict.fromkeys(games, 1)
    return dict(zip(games, random.multinomial(len(games), np.full(len(games), 1 / len(games))).tolist(), strict=True))


def _evaluation_cache() -> Path:
    """The file of evaluations, so that a second run need not compute them."""
    return Path.home() / ".cache" / "ileed" / "stockfish.sqlite"


@cache
def _table(path: Path) -> pa.Table:
    return read_positions(path)


@cache
def _fingerprint(path: Path) -> str:
    """A digest of the moves of a table."""
    table = _table(path)
    return demonstrations(table, table.column("player").to_pylist()).fingerprint
