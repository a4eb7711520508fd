"""The judge: what a move costs, by Stockfish's evaluation of the position before and after it.

Evaluations are in pawns and from the mover's side. The paper sets every position with an inevitable mate to 100 pawns
for the side that mates, so that its mean is ruled by how often a mate comes into sight; a capped variant, where no
position is worth more than 10 pawns to anybody, stands beside it everywhere.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt

from ileed.errors import IleedError, RunError, require
from ileed_lab.chess.engine import Engine, Evaluation, Thinking, ask_each, find_stockfish

__all__ = ["CAP", "MATE", "Judge", "Losses"]

Array = npt.NDArray[np.float64]
Progress = Callable[[int, int], None]

MATE = 100.0
"""Pawns that an inevitable mate is worth, as in the paper."""
CAP = 10.0
"""Pawns beyond which the capped variant does not count."""
_LOST, _DRAWN = Evaluation(centipawns=None, mate=0), Evaluation(centipawns=0, mate=None)
_KEPT_EVERY = 2.0
"""Seconds of evaluations that a kill may cost."""


@final
@dataclass(frozen=True, eq=False)
class Losses:
    """What each move changed for the one who made it, in pawns; a mistake is negative, as the paper prints it."""

    paper: Array
    """Difference of evaluations in which a mate is worth 100 pawns."""
    capped: Array
    """Difference of evaluations clipped to 10 pawns either way."""


@final
@dataclass(frozen=True, kw_only=True)
class Judge:
    """Stockfish at full strength, `nodes` (or `seconds`, and nodes=None) a position.

    With nodes the verdict is the same on every run; 50,000 told won from drawn in 600 of 600 random positions of king
    and pawn against king, and 5,000 to 20,000 in all but one or two. `cache` is a file that keeps every evaluation, by
    position, engine version and limit: several processes may share it, and one that is killed loses its last two
    seconds. `workers` is the number of engines that run at once, and `engine` their executable, if not the one that is
    installed.
    """

    nodes: int | None = 50_000
    seconds: float | None = None
    cache: Path | None = None
    workers: int = 2
    engine: Path | None = None

    def __post_init__(self) -> None:
        self._thinking  # noqa: B018 - refuses limits that bound nothing

    @property
    def _thinking(self) -> Thinking:
        return Thinking(nodes=self.nodes, seconds=self.seconds)

    def evaluations(self, fens: Sequence[str], progress: Progress | None = None) -> Array:
        """What positions are worth to the side to move, in pawns, a mate being worth 100.

        Castling and en passant count, the moves since the last capture do not. Every distinct position is evaluated
        once, whichever side is to move in it.
        """
        return self._evaluated([_board(fen) for fen in fens], progress)

    def losses(self, fens: Sequence[str], moves: Sequence[str], progress: Progress | None = None) -> Losses:
        """What moves (UCI) changed for those who made them: the evaluation after the move minus that before it."""
        if len(fens) != len(moves):
            raise IleedError(f"{len(fens)} positions but {len(moves)} moves: give one move for each position")
        before = [_board(fen) for fen in fens]
        after = [_after(board, move) for board, move in zip(before, moves, strict=True)]
        values = self._evaluated(before + after, progress)
        earlier, later = values[: len(fens)], -values[len(fens) :]
        return Losses(paper=later - earlier, capped=np.clip(later, -CAP, CAP) - np.clip(earlier, -CAP, CAP))

    def _evaluated(self, boards: Sequence[Any], progress: Progress | None) -> Array:
        keys = [_key(board) for board in boards]
        distinct = dict(zip(keys, boards, strict=True))
        known = {key: over for key, board in distinct.items() if (over := _over(board)) is not None}
        known |= self._searched([key for key in distinct if key not in known], progress)
        return np.array([_pawns(known[key]) for key in keys])

    def _searched(self, keys: Sequence[str], progress: Progress | None) -> Mapping[str, Evaluation]:
        """What the cache knows of these positions, and what the engine says of the others."""
        if self.cache is None or not keys:
            return dict(self._answers(keys, total=len(keys), progress=progress))
        judge = f"{_engine_name(self.engine or find_stockfish())}, {self._thinking.limit}"
        with _opened(self.cache) as shelf:
            kept = dict(_kept(shelf, judge, keys))
            missing = [key for key in keys if key not in kept]
            fresh: list[tuple[str, Evaluation]] = []
            put_away = time.monotonic()
            try:
                for key, evaluation in self._answers(missing, total=len(keys), progress=progress):
                    kept[key] = evaluation
                    fresh.append((key, evaluation))
                    if time.monotonic() - put_away > _KEPT_EVERY:
                        _keep(shelf, judge, fresh)
                        fresh, put_away = [], time.monotonic()
            finally:
                _keep(shelf, judge, fresh)
        return kept

    def _answers(
        self, keys: Sequence[str], *, total: int, progress: Progress | None
    ) -> Iterator[tuple[str, Evaluation]]:
        answers = ask_each(keys, _evaluate, thinking=self._thinking, workers=self.workers, path=self.engine)
        for done, (place, evaluation) in enumerate(answers, start=total - len(keys) + 1):
            if progress is not None:
                progress(done, total)
            yield keys[place], evaluation


def _evaluate(engine: Engine, key: str) -> Evaluation:
    return engine.evaluation(_board(key))


def _board(fen: str) -> Any:
    """A position that can be: the engine itself checks nothing, and dies of what it cannot capture."""
    chess = require("chess", package="ileed-lab")
    try:
        board = chess.Board(fen)
    except ValueError as error:
        raise IleedError(f"{fen!r} is not a position ({error}): write it in Forsyth-Edwards notation") from error
    if not board.is_valid():
        raise IleedError(f"{fen!r} cannot come about in a game ({board.status().name}): correct or drop it")
    return board


def _after(board: Any, move: str) -> Any:
    after = board.copy(stack=False)
    try:
        after.push(after.parse_uci(move))
    except ValueError as error:
        raise IleedError(f"{move!r} is not a legal move in {board.fen()!r}: give moves as in 'e2e4'") from error
    return after


def _key(board: Any) -> str:
    """A position seen from the mover's side, as White's: board, side, castling and en passant where it is possible."""
    seen = board if board.turn else board.mirror()
    return str(seen.fen(en_passant="legal")).rsplit(" ", 2)[0]


def _over(board: Any) -> Evaluation | None:
    """What the rules alone say of a position, if it is over."""
    if board.is_insufficient_material():
        return _DRAWN
    if any(board.generate_legal_moves()):
        return None
    return _LOST if board.is_check() else _DRAWN


def _pawns(evaluation: Evaluation) -> float:
    if evaluation.mate is not None:
        return MATE if evaluation.mate > 0 else -MATE
    assert evaluation.centipawns is not None
    return evaluation.centipawns / 100


@cache
def _engine_name(path: Path) -> str:
    with Engine(Thinking(nodes=1), path=path) as engine:
        return engine.name


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """The shelf of evaluations; SQLite keeps writers apart and forgets what a killed one had half written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(path, timeout=60)) as shelf:
            shelf.execute(
                "CREATE TABLE IF NOT EXISTS evaluations (judge TEXT, position TEXT, centipawns INTEGER, mate INTEGER, "
                "PRIMARY KEY (judge, position)) WITHOUT ROWID"
            )
            yield shelf
    except (OSError, sqlite3.Error) as error:
        raise RunError(
            f"the evaluations in {path} cannot be used ({error}): choose another cache, or remove it"
        ) from error


def _kept(shelf: sqlite3.Connection, judge: str, keys: Iterable[str]) -> Iterator[tuple[str, Evaluation]]:
    for key in keys:
        row = shelf.execute(
            "SELECT centipawns, mate FROM evaluations WHERE judge = ? AND position = ?", (judge, key)
        ).fetchone()
        if row is not None:
            yield key, Evaluation(*row)


def _keep(shelf: sqlite3.Connection, judge: str, fresh: Iterable[tuple[str, Evaluation]]) -> None:
    with shelf:
        shelf.executemany(
            "INSERT OR IGNORE INTO evaluations VALUES (?, ?, ?, ?)",
            [(judge, key, evaluation.centipawns, evaluation.mate) for key, evaluation in fresh],
        )
