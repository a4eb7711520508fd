"""Rating from play: how expert somebody is in king-and-pawn endgames, told from the moves alone, beside the rating.

An engine says what every legal move is worth. That makes a policy, which prefers a move the more it is worth, and
people are rated by it (`ileed.rate`): expertise is how much somebody's moves look like that policy's rather than like
any legal ones. It is a comparison and has no unit. Nothing is learned, so that a newcomer is rated at once.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch.distributions import Categorical

from ileed.demonstrations import Array
from ileed.deprecation import renamed_arguments
from ileed.errors import DemonstrationError, SettingsError, require
from ileed.fitted.rating import Ratings, rate
from ileed.runtime import stream
from ileed_lab.chess import board
from ileed_lab.chess.consulting import people
from ileed_lab.chess.engine import Engine, Evaluation, Thinking, ask_each
from ileed_lab.chess.experiment import consulted_table, fingerprint_of
from ileed_lab.chess.extraction import extract
from ileed_lab.chess.positions import by_player, demonstrations, rating_bins, read_positions
from ileed_lab.grid import AbstractExperiment, Measured, Setting
from ileed_lab.ranking import rank_correlation

__all__ = ["ChessRating", "PlayerRating", "expected_points", "rate_players", "read_games"]

LEAST = 20
"""Moves below which an interval of expertise is nearly as wide as its range."""
NODES = 5_000
"""What the engine thinks about each position, all its moves together."""
TEMPERATURE = 0.01
"""Expected points by which a move must be better for the policy to choose it e times as often.

A round number, chosen after others were seen: the order of players hardly depends on it, the level of everybody's
expertise does."""
_PAWNS_A_LOGIT = 2.72
"""An advantage of so many pawns makes the odds e to 1, by lichess's own curve of winning chances."""

Progress = Callable[[int, int], None]


# --- people


@final
@dataclass(frozen=True)
class PlayerRating:
    """What a player's moves say, beside the rating that others gave."""

    player: str
    rating: float | None
    """The mean over the player's moves, where any has one."""
    moves: int
    games: int
    expertise: float
    low: float
    high: float


def read_games(path: str | Path) -> pa.Table:
    """The positions of a file: a table that `ileed chess extract` wrote, or games as PGN, plain or compressed."""
    path = Path(path)
    if ".pgn" not in path.suffixes[-2:]:
        return read_positions(path)
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "positions.parquet"
        extract([path], out, workers=1)
        return read_positions(out)


@renamed_arguments(certainty="confidence_level")
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
    """The expertise of everybody with `least` moves or more, or of the `players` named, most expert first.

    The engine is asked about each of their positions. The interval is the likelihood's, which takes a player's moves
    for independent given the expertise; `progress` hears of (positions done, positions in all).
    """
    table, _ = people(table)
    if players is not None:
        known = set(table.column("player").to_pylist())
        if strangers := [name for name in players if name not in known]:
            raise DemonstrationError(
                f"{strangers[0]!r} made no move with kings and pawns alone: write the name as it is in the games, "
                "or add games"
            )
        table = table.filter(pc.is_in(table.column("player"), value_set=pa.array(players, pa.string())))
    if not len(table):
        raise DemonstrationError("nobody made a move with kings and pawns alone in these games: add games")
    table = _in_order(by_player(table, least=least))
    worth = expected_points(table.column("fen").to_pylist(), nodes=nodes, workers=workers, progress=progress)
    ratings = _rated(table, table.column("player").to_pylist(), worth / TEMPERATURE, confidence_level=confidence_level)
    given = table.group_by("player").aggregate([("mover_rating", "mean"), ("game_id", "count_distinct")])
    beside = {row["player"]: row for row in given.to_pylist()}
    found = [
        PlayerRating(
            name, beside[name]["mover_rating_mean"], int(moves), beside[name]["game_id_count_distinct"], *estimate
        )
        for name, moves, estimate in zip(ratings.names, ratings.steps, _estimates(ratings), strict=True)
    ]
    return sorted(found, key=lambda each: -each.expertise)


def _rated(table: pa.Table, names: Sequence[str], advice: Array, **options: Any) -> Ratings:
    """Ratings by a policy whose log-odds are (move, action) `advice`, in nats, beside a table in order."""
    data = demonstrations(table, names)
    assert data.legal is not None  # chess has them
    logits = torch.from_numpy(advice.astype(np.float32)).masked_fill(~torch.tensor(data.legal), -torch.inf)
    return rate(Categorical(logits=logits), data, pooled=False, **options)


def _estimates(ratings: Ratings) -> list[tuple[float, float, float]]:
    alone = ratings.alone
    return list(zip(alone.expertise.tolist(), alone.low.tolist(), alone.high.tolist(), strict=True))


def _in_order(table: pa.Table) -> pa.Table:
    """By game, player and ply: the order in which demonstrations stand, so that advice can stand beside them."""
    return table.sort_by([(name, "ascending") for name in ("game_id", "player", "ply")])


# --- the engine


def expected_points(
    fens: Sequence[str], *, nodes: int = NODES, workers: int = 2, progress: Progress | None = None
) -> Array:
    """(position, action) what each legal move is worth by the engine: 1 for a win, 1/2 for a draw; 0 where illegal.

    A position is asked about once however often it occurs.
    """
    distinct = list(dict.fromkeys(fens))
    found: dict[int, dict[str, float]] = {}
    for place, pawns in ask_each(distinct, _pawns_by_move, thinking=Thinking(nodes=nodes), workers=workers):
        found[place] = pawns
        if progress is not None:
            progress(len(found), len(distinct))
    rows = [(place, move, pawns) for place, moves in found.items() for move, pawns in moves.items()]
    places, moves, advantage = zip(*rows, strict=True)
    worth = np.zeros((len(distinct), board.ACTION_COUNT))
    actions = board.actions_of([distinct[place] for place in places], moves)
    worth[list(places), actions] = 1 / (1 + np.exp(-np.array(advantage) / _PAWNS_A_LOGIT))
    number = {fen: place for place, fen in enumerate(distinct)}
    return worth[[number[fen] for fen in fens]]


def _pawns_by_move(engine: Engine, fen: str) -> dict[str, float]:
    """What each legal move is worth to the mover, in pawns; a mate is about 100."""
    position = require("chess", package="ileed-lab").Board(fen)
    # A lone bishop or knight cannot mate, but within few nodes the engine still counts what it is worth.
    return {
        move.uci(): 0.0 if _cannot_be_won(position, move) else _pawns(worth)
        for move, worth in engine.evaluations(position).items()
    }


def _pawns(worth: Evaluation) -> float:
    """A mate is about a hundred, the nearer the more."""
    if worth.mate is not None:
        return (100 - abs(worth.mate) / 100) * (1 if worth.mate > 0 else -1)
    assert worth.centipawns is not None
    return worth.centipawns / 100


def _cannot_be_won(position: Any, move: Any) -> bool:
    after = position.copy(stack=False)
    after.push(move)
    return bool(after.is_insufficient_material())


# --- the experiment


GROUPS = {"bins": 5, "deciles": 10}
"""People of like rating are also rated together, in so many groups."""
_CERTAIN = 50.0
"""Nats by which an engine's own move is preferred where its choice is all that is known."""
_RESAMPLES = 2_000


@final
@dataclass(frozen=True)
class ChessRating(AbstractExperiment):
    """People rated by their play: does expertise rise with the rating that others gave them?

    `data` is a table of positions in which an engine was consulted (`ileed chess consult`). "worth" rates by what the
    engine says every legal move is worth; "agreement" by the one move that it was seen to make, as if all others were
    equally bad. Groups of like rating have intervals from resampled games, single players the likelihood's. Of players
    no name is recorded.
    """

    data: Path | None = None
    name: str = "chess/rating"
    trials: int = 1
    block: ClassVar[int] = 1

    @property
    def plan(self) -> Mapping[str, Any]:
        known = {} if self.data is None else {"data": fingerprint_of(self.data)}
        return {"least": LEAST, "nodes": NODES, "temperature": TEMPERATURE} | known

    def settings(self) -> Sequence[Setting]:
        return [{"people": "all"}]

    def methods(self, setting: Setting) -> Mapping[str, None]:
        return {"worth": None, "agreement": None}

    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[None]:
        return [None for _ in trials]

    def measured(self, setting: Setting, method: str, trial: int, found: None) -> Measured:
        humans, engine = people(consulted_table(self.data))
        table = _in_order(humans.filter(pc.is_valid(humans.column("mover_rating"))))
        if method == "agreement":
            advice = _CERTAIN * _chosen(table, engine)
        else:
            advice = expected_points(table.column("fen").to_pylist(), workers=1) / TEMPERATURE
        measured: Measured = {
            kind: _rows(table, rating_bins(table, bins=groups), advice, interval="episodes")
            for kind, groups in GROUPS.items()
        }
        names = np.array(table.column("player").to_pylist())
        each, count = np.unique(names, return_counts=True)
        enough = np.isin(names, each[count >= LEAST])
        rows = _rows(table.filter(pa.array(enough)), names[enough].tolist(), advice[enough])
        pairs = np.array([[row["rating"], row["expertise"]] for row in rows])
        return measured | {"players": rows} | _correlation(pairs)


def _rows(table: pa.Table, names: Sequence[str], advice: Array, **options: Any) -> list[Measured]:
    """What is recorded of everybody named, by rising rating."""
    ratings = _rated(table, names, advice, **options)
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


def _chosen(table: pa.Table, engine: pa.Table) -> Array:
    """(move, action) 1 where an action is what the engine was seen to do in that position."""
    fens = engine.column("fen").to_pylist()
    actions = dict(zip(fens, board.actions_of(fens, engine.column("move").to_pylist()).tolist(), strict=True))
    asked = [actions.get(fen, -1) for fen in table.column("fen").to_pylist()]
    if lacking := asked.count(-1):
        raise SettingsError(
            f"{lacking:,} of {len(asked):,} positions lack the engine's move: let `ileed chess consult` add it"
        )
    return np.eye(board.ACTION_COUNT)[asked]


def _correlation(pairs: Array) -> Measured:
    """Spearman's rank correlation of two columns, and its 95 % interval from rows drawn anew."""
    random = np.random.default_rng(stream(0, "rank correlation").initial_seed())
    drawn = random.integers(len(pairs), size=(_RESAMPLES, len(pairs)))
    low, high = np.quantile([rank_correlation(*pairs[rows].T) for rows in drawn], (0.025, 0.975))
    return {"rank_correlation": rank_correlation(*pairs.T), "low": float(low), "high": float(high)}
