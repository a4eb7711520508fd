"""The judge: the loss of a move, by Stockfish's evaluation of the position before and after it.

Evaluations are in pawns and from the mover's side. The paper sets every position with an inevitable mate to 100 pawns
for the side that mates, so that its mean is dominated by how often a mate is found; a capped variant, with evaluations
clipped to 10 pawns, is reported beside it everywhere.
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

from ileed import IleedError, RunError
from ileed.errors import require
from ileed_lab.chess.engine import Engine, Evaluation, Thinking, ask_each, find_stockfish

__all__ = ["CAP", "MATE", "Judge", "Losses"]

Array = npt.NDArray[np.float64]
Progress = Callable[[int, int], None]

MATE = 100.0
"""Evaluation of an inevitable mate in pawns, as in the paper."""
CAP = 10.0
"""Bound of evaluations in the capped variant, in pawns."""
_LOST, _DRAWN = Evaluation(centipawns=None, mate=0), Evaluation(centipawns=0, mate=None)
_SECONDS_BETWEEN_WRITES = 2.0
"""Seconds between two writes to the cache: what a killed process may lose."""


@final
@dataclass(frozen=True, eq=False)
class Losses:
    """The change of evaluation by each move for the mover, in pawns; a mistake is negative, as in the paper."""

    paper: Array
    """Difference of evaluations in which a mate is worth 100 pawns."""
    capped: Array
    """Difference of evaluations clipped to 10 pawns either way."""


@final
@dataclass(frozen=True, kw_only=True)
class Judge:
    """Stockfish at full strength, `nodes` (or `seconds`, and nodes=None) a position.

    With nodes the evaluation is the same on every run; 50,000 nodes distinguished won from drawn in 600 of 600 random
    positions of king and pawn against king, and 5,000 to 20,000 in all but one or two. `cache` is a file of evaluations
    by position, engine version and limit: several processes may share it, and one that is killed loses its last two
    seconds. `workers` is the number of engines that run at once, and `engine` their executable, if not the installed
    one.
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
        """Evaluations of positions for the side to move, in pawns; a mate is 100.

        Castling and en passant are part of a position, the moves since the last capture are not. Every distinct
        position is evaluated once, whichever side is to move in it.
        """
        return self._evaluate_boards([_board(fen) for fen in fens], progress)

    def losses(self, fens: Sequence[str], moves: Sequence[str], progress: Progress | None = None) -> Losses:
        """Losses of moves (UCI): the evaluation after the move minus that before it, for the mover."""
        if len(fens) != len(moves):
            raise IleedError(
                f"{len(fens)} positions but {len(moves)} moves: give one move for each position", code="moves-count"
            )
        before = [_board(fen) for fen in fens]
        after = [_board_after(board, move) for board, move in zip(before, moves, strict=True)]
        values = self._evaluate_boards(before + after, progress)
        earlier, later = values[: len(fens)], -values[len(fens) :]
        return Losses(paper=later - earlier, capped=np.clip(later, -CAP, CAP) - np.clip(earlier, -CAP, CAP))

    def _evaluate_boards(self, boards: Sequence[Any], progress: Progress | None) -> Array:
        keys = [_key(board) for board in boards]
        distinct = dict(zip(keys, boards, strict=True))
        known = {key: over for key, board in distinct.items() if (over := _final_evaluation(board)) is not None}
        known |= self._search([key for key in distinct if key not in known], progress)
        return np.array([_pawns(known[key]) for key in keys])

    def _search(self, keys: Sequence[str], progress: Progress | None) -> Mapping[str, Evaluation]:
        """The evaluations of these positions, from the cache where it has them, else from the engine."""
        if self.cache is None or not keys:
            return dict(self._answers(keys, total=len(keys), progress=progress))
        judge = f"{_engine_name(self.engine or find_stockfish())}, {self._thinking.limit}"
        with _open_cache(self.cache) as connection:
            found = dict(_read_cache(connection, judge, keys))
            missing = [key for key in keys if key not in found]
            fresh: list[tuple[str, Evaluation]] = []
            written = time.monotonic()
            try:
                for key, evaluation in self._answers(missing, total=len(keys), progress=progress):
                    found[key] = evaluation
                    fresh.append((key, evaluation))
                    if time.monotonic() - written > _SECONDS_BETWEEN_WRITES:
                        _write_cache(connection, judge, fresh)
                        fresh, written = [], time.monotonic()
            finally:
                _write_cache(connection, judge, fresh)
        return found

    def _answers(
        self, keys: Sequence[str], *, total: int, progress: Progress | None
    ) -> Iterator[tuple[str, Evaluation]]:
        answers = ask_each(keys, _evaluate, thinking=self._thinking, workers=self.workers, path=self.engine)
        for done, (number, evaluation) in enumerate(answers, start=total - len(keys) + 1):
            if progress is not None:
                progress(done, total)
            yield keys[number], evaluation


def _evaluate(engine: Engine, key: str) -> Evaluation:
    return engine.evaluation(_board(key))


def _board(fen: str) -> Any:
    """A valid position: the engine itself does not check it, and crashes on some invalid ones."""
    chess = require("chess", package="ileed-lab")
    try:
        board = chess.Board(fen)
    except ValueError as error:
        raise IleedError(
            f"{fen!r} is not a position ({error}): write it in Forsyth-Edwards notation", code="position-invalid"
        ) from error
    if not board.is_valid():
        raise IleedError(
            f"{fen!r} cannot occur in a game ({board.status().name}): correct or drop it", code="position-impossible"
        )
    return board


def _board_after(board: Any, move: str) -> Any:
    after = board.copy(stack=False)
    try:
        after.push(after.parse_uci(move))
    except ValueError as error:
        raise IleedError(
            f"{move!r} is not a legal move in {board.fen()!r}: give moves as in 'e2e4'", code="moves-illegal"
        ) from error
    return after


def _key(board: Any) -> str:
    """A position from the mover's side, as White's: board, side, castling and en passant where it is possible."""
    seen = board if board.turn else board.mirror()
    return str(seen.fen(en_passant="legal")).rsplit(" ", 2)[0]


def _final_evaluation(board: Any) -> Evaluation | None:
    """The evaluation of a finished game by the rules, or None."""
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
def _open_cache(path: Path) -> Iterator[sqlite3.Connection]:
    """The cache of evaluations; SQLite locks it for writers and rolls back what a killed one had half written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(path, timeout=60)) as connection:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS evaluations (judge TEXT, position TEXT, centipawns INTEGER, mate INTEGER, "
                "PRIMARY KEY (judge, position)) WITHOUT ROWID"
            )
            yield connection
    except (OSError, sqlite3.Error) as error:
        raise RunError(
            f"the evaluations in {path} cannot be used ({error}): choose another cache, or remove it",
            code="cache-damaged",
        ) from error


def _read_cache(connection: sqlite3.Connection, judge: str, keys: Iterable[str]) -> Iterator[tuple[str, Evaluation]]:
    for key in keys:
        row = connection.execute(
            "SELECT centipawns, mate FROM evaluations WHERE judge = ? AND position = ?", (judge, key)
        ).fetchone()
        if row is not None:
            yield key, Evaluation(*row)


def _write_cache(connection: sqlite3.Connection, judge: str, fresh: Iterable[tuple[str, Evaluation]]) -> None:
    with connection:
        connection.executemany(
            "INSERT OR IGNORE INTO evaluations VALUES (?, ?, ?, ?)",
            [(judge, key, evaluation.centipawns, evaluation.mate) for key, evaluation in fresh],
        )
