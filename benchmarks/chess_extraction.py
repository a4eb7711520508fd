"""Games per second through our extraction beside python-chess's visitor, on the same file in one run; and peak memory.

python benchmarks/chess_extraction.py --games ../shared/data/chess/kaggle_games.csv.gz
python benchmarks/chess_extraction.py --memory --out results/benchmarks/chess-extraction-memory.json

Both are asked for the same: the first four fields of every position with kings and pawns alone, and the move made in
it. With both cores python-chess reads halves of the file in two processes; ours reads the file many times over, since
the processes that it starts import the library first, and that is counted; in this process both are imported before.
Seconds are those of the clock on the wall; with one process each, those of the processor are given as well, which a
busy machine disturbs less. Rates are over all rounds together.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import chess
import chess.pgn
import pyarrow.parquet as pq
import zstandard

from ileed.runs import provenance, write_file
from ileed_lab.chess.extraction import extract

Row = tuple[int, str, str]
"""Ply, first four fields of the FEN, and move."""

_WAYS = ("python_chess", "ours", "python_chess_two", "ours_two")
_RESULTS = {"white": "1-0", "black": "0-1", "draw": "1/2-1/2"}


def main() -> None:
    """Measure speed, or memory, and write one record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=Path, help="the 20k lichess games; random legal games otherwise")
    parser.add_argument("--count", type=int, default=8000, help="how many games the file has")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--copies", type=int, default=50, help="how often ours reads the file with both cores")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/chess-extraction.json"))
    parser.add_argument("--peak-of", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak_of is not None:
        print(json.dumps(_peak(options.peak_of)))
        return
    games = list(_real(options.games, options.count) if options.games else _random(options.count))
    with tempfile.TemporaryDirectory() as folder:
        measured = _memory(games, Path(folder)) if options.memory else _speed(games, Path(folder), options)
    settings = {"games": "lichess" if options.games else "random", "count": len(games), "rounds": options.rounds}
    write_file(
        options.out,
        (json.dumps({"provenance": provenance(), "settings": settings} | measured, indent=2) + "\n").encode(),
    )
    print(json.dumps(measured, indent=2))


def _speed(games: list[str], folder: Path, options: Any) -> dict[str, Any]:
    text = "\n\n".join(games) + "\n"
    whole, many = folder / "games.pgn", folder / "many.pgn"
    whole.write_text(text)
    halves = [folder / "first.pgn", folder / "second.pgn"]
    for half, part in zip(halves, (games[: len(games) // 2], games[len(games) // 2 :]), strict=True):
        half.write_text("\n\n".join(part) + "\n")
    with many.open("w") as file:
        for _ in range(options.copies):
            file.write(text + "\n")
    table, few = folder / "positions.parquet", folder / "few.pgn"
    few.write_text("\n\n".join(games[:10]) + "\n")
    extract([few], table, workers=1)  # imports what it needs, as python-chess is imported above
    seconds: dict[str, list[float]] = {way: [] for way in _WAYS}
    processor: dict[str, list[float]] = {way: [] for way in ("python_chess", "ours")}
    for _ in range(options.rounds):
        theirs = _timed(lambda: _visited(whole), seconds["python_chess"], processor["python_chess"])
        _timed(lambda: extract([whole], table, workers=1), seconds["ours"], processor["ours"])
        _agree(_rows(table), theirs)
        parts = _timed(lambda: _visited_in_two(halves), seconds["python_chess_two"])
        _agree(parts, theirs)
        _timed(lambda: extract([many], table, workers=2), seconds["ours_two"])
        _agree(_rows(table), theirs * options.copies)
    rates = {way: len(games) * options.rounds / sum(found) for way, found in seconds.items()}
    rates["ours_two"] *= options.copies
    return {
        "positions": len(theirs),
        "copies": options.copies,
        "seconds": seconds,
        "processor_seconds": processor,
        "games_per_second": rates,
        "times_faster": {
            "one_process_each": rates["ours"] / rates["python_chess"],
            "one_process_each_by_processor": sum(processor["python_chess"]) / sum(processor["ours"]),
            "two_processes_each": rates["ours_two"] / rates["python_chess_two"],
        },
    }


def _timed(work: Callable[[], Any], seconds: list[float], processor: list[float] | None = None) -> Any:
    began, begun = time.perf_counter(), time.process_time()
    result = work()
    seconds.append(time.perf_counter() - began)
    if processor is not None:
        processor.append(time.process_time() - begun)
    return result


def _agree(ours: list[Row], theirs: list[Row]) -> None:
    if ours != theirs:
        raise SystemExit(f"{len(ours)} rows against {len(theirs)}: the two disagree about positions or moves")


def _rows(table: Path) -> list[Row]:
    columns = pq.read_table(table, columns=["ply", "fen", "move"]).to_pydict()
    return list(zip(columns["ply"], columns["fen"], columns["move"], strict=True))


class _Visitor(chess.pgn.BaseVisitor[list[Row]]):
    """The least that python-chess must do: variations and the building of a tree are skipped."""

    def begin_game(self) -> None:
        self.rows: list[Row] = []

    def begin_variation(self) -> chess.pgn.SkipType:
        return chess.pgn.SKIP

    def visit_move(self, board: chess.Board, move: chess.Move) -> None:
        if not board.knights | board.bishops | board.rooks | board.queens:
            self.rows.append((board.ply(), board.fen().rsplit(" ", 2)[0], move.uci()))

    def result(self) -> list[Row]:
        return self.rows


def _visited(path: Path) -> list[Row]:
    rows: list[Row] = []
    with path.open() as file:
        while (found := chess.pgn.read_game(file, Visitor=_Visitor)) is not None:
            rows += found
    return rows


def _visited_in_two(halves: list[Path]) -> list[Row]:
    with ProcessPoolExecutor(2, mp_context=get_context("fork")) as pool:
        first, second = pool.map(_visited, halves)
    return first + second


def _real(path: Path, count: int) -> Iterator[str]:
    """The first games of the public table, as PGN."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        for number, row in zip(range(count), csv.DictReader(file), strict=False):
            white, black = (row["white_id"], row["white_rating"]), (row["black_id"], row["black_rating"])
            yield _written(number, row["moves"].split(), white, black, _RESULTS[row["winner"]])


def _random(count: int) -> Iterator[str]:
    """Random legal games that like to capture pieces, so that some come down to kings and pawns."""
    chance = random.Random(0)
    for number in range(count):
        board = chess.Board()
        moves: list[str] = []
        while len(moves) < 200 and (legal := list(board.legal_moves)):
            takes = [move for move in legal if (board.piece_type_at(move.to_square) or chess.PAWN) != chess.PAWN]
            move = chance.choice(takes or legal)
            moves.append(board.san(move))
            board.push(move)
        yield _written(number, moves, ("ann", "1500"), ("bob", "1600"), board.result())


def _written(number: int, moves: list[str], white: tuple[str, str], black: tuple[str, str], result: str) -> str:
    """A game as lichess writes it, with clocks."""
    headers = {
        "Event": "Rated Blitz game",
        "Site": f"https://lichess.org/{number:08d}",
        "White": white[0],
        "Black": black[0],
        "Result": result,
        "UTCDate": "2017.01.01",
        "UTCTime": "12:00:00",
        "WhiteElo": white[1],
        "BlackElo": black[1],
        "ECO": "A00",
        "TimeControl": "300+0",
        "Termination": "Normal",
    }
    words = [
        f"{ply // 2 + 1}{'...' if ply % 2 else '.'} {move} {{ [%clk 0:{4 - ply // 80 % 5:02d}:{59 - ply % 60:02d}] }}"
        for ply, move in enumerate(moves)
    ]
    lines = [f'[{name} "{value}"]' for name, value in headers.items()]
    return "\n".join([*lines, "", " ".join([*words, result])])


def _memory(games: list[str], folder: Path) -> dict[str, Any]:
    """Peak memory while files of a hundred thousand and of a million games are extracted, in processes of their own."""
    records: dict[str, Any] = {}
    for count in (100_000, 1_000_000):
        path = folder / f"{count}.pgn.zst"
        with path.open("wb") as file, zstandard.ZstdCompressor(level=1).stream_writer(file) as packed:
            for number in range(count):
                game = games[number % len(games)]
                packed.write((game.replace("lichess.org/", f"lichess.org/{number:08d}x") + "\n\n").encode())
        answer = subprocess.run(
            [sys.executable, __file__, "--peak-of", path], check=True, capture_output=True, text=True
        )
        records[f"{count} games"] = json.loads(answer.stdout)
        path.unlink()
    return {"peak": records}


def _peak(path: Path) -> dict[str, Any]:
    """Extract a file with two processes, and give the most memory that this one and those it started ever held."""
    before = _high_water(os.getpid())
    peaks: dict[int, float] = {}

    def watch(_done: int, _all: int) -> None:
        peaks.update({process: _high_water(process) for process in _family(os.getpid())})

    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        found = extract([path], Path(folder) / "positions.parquet", workers=2, progress=watch)
    seconds = time.perf_counter() - began
    own = _high_water(os.getpid())
    peaks.pop(os.getpid())
    return {
        "games": found.games,
        "positions": found.positions,
        "seconds": seconds,
        "before_mebibytes": before,
        "main_mebibytes": own,
        "each_other_process_mebibytes": sorted(peaks.values()),
    }


def _high_water(process: int) -> float:
    """The most resident memory of a process so far, in MiB; none for one that has ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM")), 0.0)


def _family(process: int) -> list[int]:
    """A process and all that come of it."""
    try:
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return [process]
    return [process, *(one for child in children for one in _family(int(child)))]


if __name__ == "__main__":
    main()
