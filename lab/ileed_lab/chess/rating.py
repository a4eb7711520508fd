"""Rating from play: expertise in king-and-pawn endgames, estimated from the moves alone, beside the players' ratings.

An engine evaluates every legal move. A policy that prefers moves of higher evaluation stands for an expert, and
demonstrators are rated by it (`ileed.rate`): expertise is how much a demonstrator's moves resemble that policy's rather
than random legal moves. It is relative and has no unit. Nothing is learned, so that a new player is rated at once.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch.distributions import Categorical

from ileed import DemonstrationError, SettingsError, rate
from ileed.data import Array
from ileed.errors import require
from ileed.parallel.runtime import stream
from ileed.rating.ratings import Ratings
from ileed_lab.chess import board
from ileed_lab.chess.consulting import people
from ileed_lab.chess.engine import Engine, Evaluation, Thinking, ask_each
from ileed_lab.chess.experiment import AbstractConsulted
from ileed_lab.chess.extraction import extract
from ileed_lab.chess.positions import by_player, demonstrations, rating_bins, read_positions
from ileed_lab.grid import Setting
from ileed_lab.ranking import rank_correlation
from ileed_lab.records import Measured

__all__ = ["ChessRating", "PlayerRating", "expected_points", "rate_players", "read_games"]

LEAST = 20
"""Fewest moves of a player: with fewer, the interval of expertise is nearly as wide as its range."""
NODES = 5_000
"""Nodes of the engine's search in each position, for all its moves together."""
TEMPERATURE = 0.01
"""Expected points by which a move must be better for the policy to choose it e times as often.

A round number, chosen after other values had been tried on the same games: the order of players hardly depends on it,
the level of every demonstrator's expertise does."""
_PAWNS_A_LOGIT = 2.72
"""The advantage in pawns at which the odds of winning are e to 1, by lichess's curve of winning chances."""

Progress = Callable[[int, int], None]


# --- demonstrators


@final
@dataclass(frozen=True)
class PlayerRating:
    """A player's expertise by play, beside the rating."""

    player: str
    rating: float | None
    """The mean over the player's moves, where any has one."""
    moves: int
    games: int
    expertise: float
    low: float
    high: float


def read_games(path: str | Path) -> pa.Table:
    """The positions of a file: a table of `ileed chess extract`, or games as PGN, plain or compressed."""
    path = Path(path)
    if ".pgn" not in path.suffixes[-2:]:
        return read_positions(path)
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "positions.parquet"
        extract([path], out, workers=1)
        return read_positions(out)


def rate_players(
    table: pa.Table,
    *,
    least: int = LEAST,
    players: Sequence[str] | None = None,
    nodes: int = NODES,
    workers: int = 2,
    confidence_level: float = 0.95,
    progress: Progress | None = None,
) -> list[PlayerRating]:
    """The expertise of all demonstrators with `least` moves or more, or of the `players` named, most expert first.

    The engine evaluates each of their positions. The interval, of level `confidence`, is the likelihood's, which takes
    a player's moves as independent given the expertise; `progress` is called with (positions done, all positions).
    """
    table, _ = people(table)
    if players is not None:
        known = set(table.column("player").to_pylist())
        if strangers := [name for name in players if name not in known]:
            raise DemonstrationError(
                f"{strangers[0]!r} made no move with kings and pawns alone: write the name as it is in the games, "
                "or add games",
                code="player-unknown",
            )
        table = table.filter(pc.is_in(table.column("player"), value_set=pa.array(players, pa.string())))
    if not len(table):
        raise DemonstrationError("these games have no move with kings and pawns alone: add games", code="moves-missing")
    table = _in_order(by_player(table, least=least))
    points = expected_points(table.column("fen").to_pylist(), nodes=nodes, workers=workers, progress=progress)
    ratings = _rate(table, table.column("player").to_pylist(), points / TEMPERATURE, confidence_level=confidence_level)
    given = table.group_by("player").aggregate([("mover_rating", "mean"), ("game_id", "count_distinct")])
    beside = {row["player"]: row for row in given.to_pylist()}
    found = [
        PlayerRating(
            name, beside[name]["mover_rating_mean"], int(moves), beside[name]["game_id_count_distinct"], *estimate
        )
        for name, moves, estimate in zip(ratings.names, ratings.steps, _estimates(ratings), strict=True)
    ]
    return sorted(found, key=lambda each: -each.expertise)


def _rate(table: pa.Table, names: Sequence[str], advice: Array, **options: Any) -> Ratings:
    """Ratings by a policy with these logits (move, action), one row for each row of an ordered table."""
    data = demonstrations(table, names)
    assert data.legal is not None  # chess has them
    logits = torch.from_numpy(advice.astype(np.float32)).masked_fill(~torch.tensor(data.legal), -torch.inf)
    return rate(Categorical(logits=logits), data, pooled=False, **options)


def _estimates(ratings: Any) -> list[tuple[float, float, float]]:
    alone = ratings.alone
    return list(zip(alone.expertise.tolist(), alone.low.tolist(), alone.high.tolist(), strict=True))


def _in_order(table: pa.Table) -> pa.Table:
    """By game, player and ply: the order of demonstrations, so that rows of logits match them."""
    return table.sort_by([(name, "ascending") for name in ("game_id", "player", "ply")])


# --- the engine


def expected_points(
    fens: Sequence[str], *, nodes: int = NODES, workers: int = 2, progress: Progress | None = None
) -> Array:
    """(position, action) expected points of each legal move by the engine: 1 is a win, 1/2 a draw; 0 where illegal.

    Each distinct position is searched once.
    """
    distinct = list(dict.fromkeys(fens))
    found: dict[int, dict[str, float]] = {}
    for number, pawns in ask_each(distinct, _pawns_by_move, thinking=Thinking(nodes=nodes), workers=workers):
        found[number] = pawns
        if progress is not None:
            progress(len(found), len(distinct))
    rows = [(number, move, pawns) for number, moves in found.items() for move, pawns in moves.items()]
    numbers, moves, advantage = zip(*rows, strict=True)
    points = np.zeros((len(distinct), board.ACTION_COUNT))
    actions = board.actions_of([distinct[number] for number in numbers], moves)
    points[list(numbers), actions] = 1 / (1 + np.exp(-np.array(advantage) / _PAWNS_A_LOGIT))
    number_of = {fen: number for number, fen in enumerate(distinct)}
    return points[[number_of[fen] for fen in fens]]


def _pawns_by_move(engine: Engine, fen: str) -> dict[str, float]:
    """The evaluation of each legal move for the mover, in pawns; a mate is about 100."""
    position = require("chess", package="ileed-lab").Board(fen)
    # A lone bishop or knight cannot mate, but within few nodes the engine still counts its material.
    return {
        move.uci(): 0.0 if _cannot_be_won(position, move) else _pawns(evaluation)
        for move, evaluation in engine.evaluations(position).items()
    }


def _pawns(evaluation: Evaluation) -> float:
    """A mate is about 100, and more the nearer it is."""
    if evaluation.mate is not None:
        return (100 - abs(evaluation.mate) / 100) * (1 if evaluation.mate > 0 else -1)
    assert evaluation.centipawns is not None
    return evaluation.centipawns / 100


def _cannot_be_won(position: Any, move: Any) -> bool:
    after = position.copy(stack=False)
    after.push(move)
    return bool(after.is_insufficient_material())


# --- the experiment


GROUPS = {"bins": 5, "deciles": 10}
"""Number of groups of players of similar rating, which are also rated together."""
_DETERMINISTIC = 50.0
"""Logit of the engine's move where only that move is known."""
_RESAMPLES = 2_000


@final
@dataclass(frozen=True)
class ChessRating(AbstractConsulted):
    """Demonstrators rated by their play: does expertise rise with their rating?

    `data` is a table of positions with the moves of an engine (`ileed chess consult`). "worth" rates by the engine's
    evaluation of every legal move; "agreement" by the engine's own move alone, as if all others were equally bad.
    Groups of similar rating have intervals from resampled games, single players the likelihood's. No names of players
    are recorded.
    """

    name: str = "chess/rating"
    trials: int = 1

    @property
    def numbers(self) -> Mapping[str, Any]:
        return {"least": LEAST, "nodes": NODES, "temperature": TEMPERATURE}

    def settings(self) -> Sequence[Setting]:
        return [{"people": "all"}]

    def methods(self, setting: Setting) -> Mapping[str, None]:
        return {"worth": None, "agreement": None}

    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[None]:
        return [None for _ in trials]

    def measure(self, setting: Setting, method: str, trial: int, fit: None) -> Measured:
        humans, engine = self.tables()
        table = _in_order(humans.filter(pc.is_valid(humans.column("mover_rating"))))
        if method == "agreement":
            logits = _DETERMINISTIC * _engine_choice(table, engine)
        else:
            logits = expected_points(table.column("fen").to_pylist(), workers=1) / TEMPERATURE
        measured: Measured = {
            kind: _rows(table, rating_bins(table, bins=groups), logits, interval="episodes")
            for kind, groups in GROUPS.items()
        }
        names = np.array(table.column("player").to_pylist())
        each, count = np.unique(names, return_counts=True)
        enough = np.isin(names, each[count >= LEAST])
        rows = _rows(table.filter(pa.array(enough)), names[enough].tolist(), logits[enough])
        pairs = np.array([[row["rating"], row["expertise"]] for row in rows])
        return measured | {"players": rows} | _correlation(pairs)


def _rows(table: pa.Table, names: Sequence[str], logits: Array, **options: Any) -> list[Measured]:
    """Rating and expertise of all demonstrators, by rising rating."""
    ratings = _rate(table, names, logits, **options)
    given, who = table.column("mover_rating").to_numpy(), np.asarray(names)
    rows = [
        {
            "rating": float(given[who == name].mean()),
            "moves": int(moves),
            "expertise": expertise,
            "low": low,
            "high": high,
        }
        for name, moves, (expertise, low, high) in zip(ratings.names, ratings.steps, _estimates(ratings), strict=True)
    ]
    return sorted(rows, key=lambda row: row["rating"])


def _engine_choice(table: pa.Table, engine: pa.Table) -> Array:
    """(move, action) 1 for the engine's action in that position, else 0."""
    fens = engine.column("fen").to_pylist()
    actions = dict(zip(fens, board.actions_of(fens, engine.column("move").to_pylist()).tolist(), strict=True))
    asked = [actions.get(fen, -1) for fen in table.column("fen").to_pylist()]
    if lacking := asked.count(-1):
        raise SettingsError(
            f"{lacking:,} of {len(asked):,} positions lack the engine's move: let `ileed chess consult` add it",
            code="engine-moves-missing",
        )
    return np.eye(board.ACTION_COUNT)[asked]


def _correlation(pairs: Array) -> Measured:
    """Spearman's rank correlation of two columns, and its 95% interval from resampled rows."""
    random = np.random.default_rng(stream(0, "rank correlation").initial_seed())
    resampled = random.integers(len(pairs), size=(_RESAMPLES, len(pairs)))
    low, high = np.quantile([rank_correlation(*pairs[rows].T) for rows in resampled], (0.025, 0.975))
    return {"rank_correlation": rank_correlation(*pairs.T), "low": float(low), "high": float(high)}
