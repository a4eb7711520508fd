"""The judge agrees with exact results, forgets nothing it has paid for, and needs no engine for what is over."""

from __future__ import annotations

import gzip
import json
import signal
import sqlite3
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from needs import stockfish
from refusals import refused

from ileed.errors import IleedError, RunError, SettingsError
from ileed_lab.chess import judging
from ileed_lab.chess.engine import find_stockfish
from ileed_lab.chess.judging import Judge

chess = pytest.importorskip("chess", reason="the package chess is absent: pip install 'ileed[chess]'")

SHARED = Path(__file__).parents[2].parent / "shared" / "data" / "chess" / "kp_kaggle_sf15_multipv.jsonl.gz"
POSITIONS = (
    "8/5p1p/2p3p1/8/2Pk4/8/4KP1P/8 w - -",
    "8/8/2p5/6kp/1PP2p2/8/6KP/8 b - -",
    "8/8/5K1p/P5p1/8/2Pk4/8/8 b - -",
)
Bits = npt.NDArray[np.bool_]


def beside(square: int) -> list[int]:
    file, rank = square % 8, square // 8
    around = [(file + across, rank + up) for across in (-1, 0, 1) for up in (-1, 0, 1) if across or up]
    return [8 * rank + file for file, rank in around if 0 <= file < 8 and 0 <= rank < 8]


@cache
def king_and_pawn_against_king() -> tuple[Bits, Bits]:
    """Which positions can be, and which of them White, who has the pawn, wins: (side to move, pawn, white, black king).

    Solved backwards, from the pawns that have least far to go; a promotion wins unless the new piece is taken at once,
    because where a queen would stalemate a rook does not.
    """
    near = np.zeros((64, 64), dtype=bool)
    for square in range(64):
        near[square, beside(square)] = True
    possible, won = np.zeros((2, 64, 64, 64), dtype=bool), np.zeros((2, 64, 64, 64), dtype=bool)
    for pawn in range(55, 7, -1):
        attacked = np.zeros(64, dtype=bool)
        attacked[[pawn + step for step, edge in ((7, 0), (9, 7)) if pawn % 8 != edge]] = True
        apart = ~near & ~np.eye(64, dtype=bool)
        apart[pawn, :] = apart[:, pawn] = False
        possible[0, pawn], possible[1, pawn] = apart & ~attacked, apart

        def empty(*squares: int) -> Bits:
            free = np.ones((64, 64), dtype=bool)
            for square in squares:
                free[square, :] = free[:, square] = False
            return free

        ahead = pawn + 8
        if ahead >= 56:
            pushed = empty(ahead) & ~(near[ahead][None, :] & ~near[ahead][:, None])
        else:
            pushed = empty(ahead) & won[1, ahead]
            if pawn < 16:
                pushed |= empty(ahead, ahead + 8) & won[1, ahead + 8]
        count = -1
        while count != (count := int(won[:, pawn].sum())):
            stepped = np.stack([won[1, pawn, beside(king)].any(0) for king in range(64)])
            won[0, pawn] = (pushed | stepped) & possible[0, pawn]
            for king in range(64):
                to = np.array(beside(king))
                legal = ~near[:, to] & ~attacked[to] & (np.arange(64)[:, None] != to)
                lost = won[0, pawn][:, to] & (to != pawn)
                won[1, pawn, :, king] = np.where(legal.any(1), (lost | ~legal).all(1), attacked[king])
            won[1, pawn] &= possible[1, pawn]
    return possible, won


def test_the_exact_solution_has_the_known_number_of_wins() -> None:
    _, won = king_and_pawn_against_king()
    assert won.sum() == 2 * 111_282  # on the files a to d, as every king-and-pawn bitbase counts them


@stockfish
def test_wins_and_draws_of_king_and_pawn_against_king_are_distinguished() -> None:
    possible, won = king_and_pawn_against_king()
    generator = np.random.default_rng(0)
    fens, wins, signs = [], [], []
    for side in (0, 1):
        for win in (False, True):
            places = np.argwhere(possible[side] & (won[side] == win))
            for pawn, white, black in generator.choice(places, 50, replace=False).tolist():
                board = chess.Board(None)
                board.set_piece_map({pawn: chess.Piece.from_symbol("P")})
                board.set_piece_at(white, chess.Piece.from_symbol("K"))
                board.set_piece_at(black, chess.Piece.from_symbol("k"))
                board.turn = side == 0
                fens.append(board.fen())
                wins.append(win)
                signs.append(1 if side == 0 else -1)
    for_white = np.array(signs) * Judge().evaluations(fens)
    # 600 of 600 agreed when the number of nodes was chosen: wins were worth more than 6 pawns, draws less than a third.
    np.testing.assert_array_equal(for_white > 2, wins)
    assert np.abs(for_white[~np.array(wins)]).max() < 1


@stockfish
@pytest.mark.skipif(not SHARED.exists(), reason="the shared file of Stockfish evaluations is absent")
def test_evaluations_rank_positions_as_four_times_the_thought_does() -> None:
    from scipy.stats import spearmanr

    with gzip.open(SHARED, "rt") as file:
        rows = [json.loads(line) for line in file][::12]
    best = np.array([max(row["cp"].values()) for row in rows]) / 100
    ours = Judge().evaluations([row["fen"] for row in rows])
    assert spearmanr(best, ours).statistic > 0.95


@stockfish
def test_a_position_is_worth_the_same_to_either_colour() -> None:
    mirrored = [chess.Board(fen).mirror().fen() for fen in POSITIONS]
    judge = Judge(nodes=2_000)
    np.testing.assert_array_equal(judge.evaluations(POSITIONS), judge.evaluations(mirrored))


@stockfish
def test_a_loss_is_the_evaluation_after_minus_before_from_the_movers_side() -> None:
    judge = Judge(nodes=2_000)
    moves = [str(next(iter(chess.Board(fen).legal_moves))) for fen in POSITIONS]
    after = []
    for fen, move in zip(POSITIONS, moves, strict=True):
        board = chess.Board(fen)
        board.push_uci(move)
        after.append(board.fen())
    losses = judge.losses(POSITIONS, moves)
    before, later = judge.evaluations(POSITIONS), -judge.evaluations(after)
    np.testing.assert_allclose(losses.paper, later - before)
    np.testing.assert_allclose(losses.capped, np.clip(later, -10, 10) - np.clip(before, -10, 10))


@stockfish
def test_giving_mate_is_worth_100_pawns_and_ten_where_capped() -> None:
    judge = Judge(nodes=2_000)
    mate = judge.losses(["7k/8/6K1/8/8/8/8/R7 w - -"], ["a1a8"])
    assert mate.paper[0] == mate.capped[0] == 0  # it was inevitable before as well
    blunder = judge.losses(["7k/R7/8/6K1/8/8/8/8 w - -"], ["a7h7"])
    # The engine scores a draw it has searched as a few hundredths of a pawn either way.
    assert blunder.paper[0] == pytest.approx(-100, abs=0.2)
    assert blunder.capped[0] == pytest.approx(-10, abs=0.2)


def test_what_is_over_needs_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(keys: list[str], *_: object, **__: object) -> list[tuple[int, object]]:
        assert not keys
        return []

    monkeypatch.setattr(judging, "ask_each", refuse)
    mated, stalemated, bare = "R6k/8/6K1/8/8/8/8/8 b - -", "k7/P7/K7/8/8/8/8/8 b - -", "8/8/8/4k3/8/8/4K3/8 w - -"
    np.testing.assert_array_equal(Judge().evaluations([mated, stalemated, bare]), [-100, 0, 0])


def counting(path: Path) -> tuple[Path, Path]:
    """Stockfish behind a script that writes down every word said to it, and that record."""
    record = path / "said.txt"
    engine = path / "counting.sh"
    engine.write_text(f"#!/bin/sh\ntee -a '{record}' | '{find_stockfish()}'\n")
    engine.chmod(0o755)
    return engine, record


def searches(record: Path) -> int:
    return sum(line.startswith("go ") for line in record.read_text().splitlines())


@stockfish
def test_what_was_paid_for_once_costs_nothing_again(tmp_path: Path) -> None:
    engine, record = counting(tmp_path)
    judge = Judge(nodes=1_000, cache=tmp_path / "room" / "evaluations.sqlite", engine=engine)
    mirrored = [chess.Board(fen).mirror().fen() for fen in POSITIONS]
    seen: list[tuple[int, int]] = []
    first = judge.evaluations([*POSITIONS, *mirrored, *POSITIONS], progress=lambda *step: seen.append(step))
    assert searches(record) == len(POSITIONS)
    assert seen == [(1, 3), (2, 3), (3, 3)]
    again = judge.evaluations([*POSITIONS, *mirrored, *POSITIONS])
    assert searches(record) == len(POSITIONS)
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first, Judge(nodes=1_000).evaluations([*POSITIONS, *mirrored, *POSITIONS]))
    Judge(nodes=2_000, cache=judge.cache, engine=engine).evaluations(POSITIONS)
    assert searches(record) == 2 * len(POSITIONS)


PROGRAM = """
import sys
from pathlib import Path
import chess
from ileed_lab.chess.judging import Judge
board, fens = chess.Board("8/5p1p/2p3p1/8/2Pk4/8/4KP1P/8 w - -"), []
for first in list(board.legal_moves):
    board.push(first)
    for second in list(board.legal_moves):
        board.push(second)
        fens.append(board.fen())
        board.pop()
    board.pop()
Judge(nodes=int(sys.argv[2]), cache=Path(sys.argv[1]), workers=1).evaluations(fens)
"""


def rows(cache_file: Path) -> int:
    shelf = sqlite3.connect(cache_file, timeout=60)
    try:
        return int(shelf.execute("SELECT count(*) FROM evaluations").fetchone()[0])
    except sqlite3.OperationalError:  # the table is not there yet
        return 0
    finally:
        shelf.close()


@stockfish
def test_processes_share_a_cache(tmp_path: Path) -> None:
    shelf = tmp_path / "evaluations.sqlite"
    both = [subprocess.Popen([sys.executable, "-c", PROGRAM, str(shelf), "500"]) for _ in range(2)]
    assert [process.wait(120) for process in both] == [0, 0]
    assert rows(shelf) > 50


@stockfish
def test_a_killed_process_leaves_what_it_had_put_away(tmp_path: Path) -> None:
    shelf = tmp_path / "evaluations.sqlite"
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(shelf), "500000"])
    deadline = time.monotonic() + 120
    while not (shelf.exists() and rows(shelf)) and time.monotonic() < deadline:
        time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    left = rows(shelf)
    assert left > 0
    judge = Judge(nodes=500, cache=shelf)
    judge.evaluations(POSITIONS)
    assert rows(shelf) == left + len(POSITIONS)


def test_a_file_that_is_no_cache_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "_engine_name", lambda path: "nobody")
    (tmp_path / "letter.txt").write_text("dear judge, " * 100)
    with refused("cache-damaged", RunError):
        Judge(cache=tmp_path / "letter.txt", engine=tmp_path).evaluations(POSITIONS)


@pytest.mark.parametrize(
    ("fen", "move", "code"),
    [
        ("8/8/8/8 w - -", "e2e4", "position-invalid"),
        ("8/8/8/3kK3/8/8/8/8 w - -", "e5e6", "position-impossible"),
        (POSITIONS[0], "e2e5", "moves-illegal"),
        (POSITIONS[0], "castle", "moves-illegal"),
    ],
)
def test_what_cannot_be_judged_is_named(fen: str, move: str, code: str) -> None:
    with refused(code, IleedError):
        Judge().losses([fen], [move])


def test_moves_and_positions_must_match_and_limits_bound() -> None:
    with refused("moves-count", IleedError):
        Judge().losses(POSITIONS, ["e2e3"])
    with pytest.raises(SettingsError):
        Judge(nodes=None)
