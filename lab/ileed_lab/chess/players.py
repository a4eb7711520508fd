"""Engine players: Stockfish at known strengths, in king-and-pawn endgames.

Two sets ship with the package (`engine_moves`), and

    python -m ileed_lab.chess.players DIRECTORY

makes them again in some minutes: the same positions, but not the same moves, because Stockfish draws the mistakes of a
limited strength from a generator that is seeded by the time of day. That is why the files are shipped.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa
import torch

from ileed import IleedError, SettingsError
from ileed.errors import require
from ileed.parallel.runtime import stream
from ileed_lab.chess.consulting import ENGINE
from ileed_lab.chess.engine import Engine, Thinking, ask_each
from ileed_lab.chess.judging import Judge
from ileed_lab.chess.positions import SCHEMA, read_positions, write_positions

__all__ = ["STRENGTHS", "STRONGEST", "TWENTY", "Player", "answer", "engine_moves", "play", "starting_positions"]

Progress = Callable[[int, int], None]

_BALANCED = 1.5
"""Greatest absolute evaluation of a starting position, in pawns."""
_LONGEST = 100
"""Half-moves after which a game is stopped."""


@final
@dataclass(frozen=True, kw_only=True)
class Player:
    """Stockfish with these limits, under a name."""

    name: str
    thinking: Thinking


def _skill_level(skill: int) -> Player:
    """A Skill Level of Stockfish, which chooses its move at depth 1 + skill and is searched no deeper."""
    return Player(name=f"skill-{skill}", thinking=Thinking(skill=skill, depth=1 + skill))


def _node_limit(nodes: int) -> Player:
    """Stockfish without a handicap, but with few nodes."""
    return Player(name=f"nodes-{nodes}", thinking=Thinking(nodes=nodes))


STRENGTHS: tuple[Player, ...] = (
    _skill_level(0),
    _skill_level(2),
    _skill_level(5),
    _node_limit(1_000),
    _node_limit(16_000),
)
"""Five strengths, weakest first: in the same 450 positions they lost 0.76, 0.54, 0.30, 0.18 and 0.05 pawns a move, with
standard errors from 0.08 to 0.03 (capped losses, the default judge)."""
TWENTY: tuple[Player, ...] = (
    *(_skill_level(skill) for skill in range(7)),
    *(_node_limit(round(500 * 2 ** (step / 2))) for step in range(13)),
)
"""Twenty players of rising strength. In these endgames the Skill Levels above 7 differ by less than the judge can
measure, so that the stronger players are node limits, each the square root of two times the previous one. Neighbours
there differ by 0.01 pawns a move, but agree with the judge more and more: 58% of moves at 500 nodes, 93% at 32,000."""


STRONGEST = Player(name=ENGINE, thinking=Thinking(nodes=100_000))
"""The engine that is consulted, under the name that `ileed_lab.chess.consulting` gives it."""


def starting_positions(count: int, *, seed: int, judge: Judge | None = None) -> list[str]:
    """Random king-and-pawn positions, two to five pawns a side, in which neither side is ahead by more than 1.5 pawns.

    Pawns are on the four ranks nearest to their own side, and no king is in check. The judge decides which of the
    positions are balanced; None is one with 5,000 nodes.
    """
    judge = judge or Judge(nodes=5_000)
    generator = stream(seed, "starting positions")
    chosen: list[str] = []
    while len(chosen) < count:
        random = [_random_position(generator) for _ in range(4 * (count - len(chosen)))]
        balanced = np.abs(judge.evaluations(random)) <= _BALANCED
        chosen += [fen for fen, keep in zip(random, balanced, strict=True) if keep]
    return chosen[:count]


def play(
    population: Sequence[Player], *, starts: int, seed: int, workers: int = 2, progress: Progress | None = None
) -> pa.Table:
    """Let each player play both sides from the same `starts` starting positions; a row for each move.

    A game is recorded until mate, stalemate, bare kings, the third repetition, the 100th half-move, or a promotion,
    after which there are other pieces than kings and pawns; where it was not over, its result is "*". The seed
    determines the starting positions, and with them all moves of players of skill 20 with a limit of nodes or depth; at
    a lower skill Stockfish does not repeat its moves. `progress` is called with (games played, all games). Players have
    no rating here: the name states the strength.
    """
    if starts < 1:
        raise SettingsError(f"starts is {starts}, but at least one game must be played")
    if len({player.name for player in population}) < len(population):
        raise SettingsError(f"{len(population)} players share names: give each a name of its own", code="names-shared")
    fens = starting_positions(starts, seed=seed, judge=Judge(nodes=5_000, workers=workers))
    rows: list[dict[str, Any]] = []
    for number, player in enumerate(population):
        games: dict[int, list[dict[str, Any]]] = {}
        for start, moves in ask_each(fens, _game, thinking=player.thinking, workers=workers):
            games[start] = [
                {"game_id": f"{player.name}/{seed}/{start}", "player": player.name} | move for move in moves
            ]
            if progress is not None:
                progress(number * starts + len(games), len(population) * starts)
        rows += [move for start in range(starts) for move in games[start]]
    return pa.Table.from_pylist([_NO_HEADERS | row for row in rows], schema=SCHEMA)


def answer(
    population: Sequence[Player], fens: Sequence[str], *, workers: int = 2, progress: Progress | None = None
) -> pa.Table:
    """Ask each player for one move in each of the same positions; a row for each move.

    Players in the same positions can be compared, whereas in games of their own their positions soon differ. `progress`
    is called with (moves made, all moves).
    """
    chess = require("chess", package="ileed-lab")
    rows: list[dict[str, Any]] = []
    for player in population:
        moves = dict(
            ask_each(fens, lambda engine, fen: engine.move(chess.Board(fen)), thinking=player.thinking, workers=workers)
        )
        rows += [
            _NO_HEADERS
            | {"game_id": f"position/{number}", "player": player.name, "ply": 0, "result": "*"}
            | {"fen": fen, "move": moves[number].uci()}
            for number, fen in enumerate(fens)
        ]
        if progress is not None:
            progress(len(rows), len(population) * len(fens))
    return pa.Table.from_pylist(rows, schema=SCHEMA)


_NO_HEADERS = {"mover_rating": None, "opponent_rating": None, "clock": None, "time_control": "-", "date": "?"}
"""The columns of a game without clock and ratings."""


def engine_moves(name: str = "strengths") -> pa.Table:
    """The moves of engine players that ship with the package, weakest player first.

    "strengths": `STRENGTHS` in the same 2,000 positions; "twenty": `TWENTY` in 800 others. The last player of each is
    `STRONGEST`, in the same positions too.
    """
    if name not in _SHIPPED:
        raise IleedError(
            f"no engine moves {name!r} are shipped: there are {', '.join(_SHIPPED)}", code="players-unknown"
        )
    return read_positions(Path(__file__).parent / "data" / _SHIPPED[name][0])


_SHIPPED = {"strengths": ("chess-strengths.parquet", STRENGTHS, 2_000), "twenty": ("chess-twenty.parquet", TWENTY, 800)}
"""File, population and number of positions of each set that is shipped."""


def _random_position(generator: torch.Generator) -> str:
    """A random valid position with kings and a few pawns, without a check."""
    chess = require("chess", package="ileed-lab")
    while True:
        pawns, white_moves = _integer(generator, 2, 6), _integer(generator, 0, 2)
        board = chess.Board(None)
        board.turn = bool(white_moves)
        for color, ranks in ((chess.WHITE, range(1, 5)), (chess.BLACK, range(3, 7))):
            free = [square for square in chess.SQUARES if square // 8 in ranks and board.piece_at(square) is None]
            for number in torch.randperm(len(free), generator=generator)[:pawns].tolist():
                board.set_piece_at(free[number], chess.Piece(chess.PAWN, color))
        free = [square for square in chess.SQUARES if board.piece_at(square) is None]
        kings = torch.randperm(len(free), generator=generator)[:2].tolist()
        for number, color in zip(kings, (chess.WHITE, chess.BLACK), strict=True):
            board.set_piece_at(free[number], chess.Piece(chess.KING, color))
        if board.is_valid() and not board.is_check() and not board.is_game_over():
            return _position(board)


def _integer(generator: torch.Generator, low: int, high: int) -> int:
    return int(torch.randint(low, high, (), generator=generator))


def _game(engine: Engine, start: str) -> list[dict[str, Any]]:
    """The moves of one game, the engine playing both sides."""
    board = require("chess", package="ileed-lab").Board(start)
    moves: list[dict[str, Any]] = []
    while _continues(board):
        move = engine.move(board)
        moves.append({"ply": len(moves), "fen": _position(board), "move": move.uci()})
        board.push(move)
    outcome = board.outcome(claim_draw=False)
    result = outcome.result() if outcome else "1/2-1/2" if board.is_repetition(3) else "*"
    return [move | {"result": result} for move in moves]


def _continues(board: Any) -> bool:
    only_kings_and_pawns = not (board.knights | board.bishops | board.rooks | board.queens)
    return (
        only_kings_and_pawns
        and len(board.move_stack) < _LONGEST
        and not board.is_repetition(3)
        and board.outcome(claim_draw=False) is None
    )


def _position(board: Any) -> str:
    """Board, side, castling and en passant: the fields of a FEN that determine the legal moves."""
    return str(board.fen()).rsplit(" ", 2)[0]


def _write(directory: Path, *, seed: int, workers: int) -> Iterator[str]:
    for number, (file, population, count) in enumerate(_SHIPPED.values()):
        judge = Judge(nodes=5_000, workers=workers)
        positions = starting_positions(count, seed=seed + number, judge=judge)
        table = answer([*population, STRONGEST], positions, workers=workers)
        write_positions(table, directory / file)
        yield f"{directory / file}: {len(table):,} moves of {len(population)} players"


def main() -> None:
    """Write the shipped sets of engine moves again."""
    parser = argparse.ArgumentParser(prog="python -m ileed_lab.chess.players", description=main.__doc__)
    parser.add_argument("directory", type=Path, help="where to write the two parquet files")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the positions; the second file has those of the next seed"
    )
    parser.add_argument("--workers", type=int, default=2, help="engines that run at once")
    arguments = parser.parse_args()
    for line in _write(arguments.directory, seed=arguments.seed, workers=arguments.workers):
        print(line, flush=True)  # noqa: T201 - the answer of a command


if __name__ == "__main__":
    main()
