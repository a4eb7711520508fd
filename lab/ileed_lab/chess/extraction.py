"""Extraction: every position with kings and pawns alone, and the move made in it, out of files of games.

The text streams through in chunks; processes parse them, and what they find is put down in the order of the games. So
the table is the same, byte for byte, however many processes there were and however often they were stopped.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from itertools import islice
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ileed import runs
from ileed.errors import RunError, SettingsError, require
from ileed_lab.chess.positions import SCHEMA
from ileed_lab.chess.sources import BLANK_LINE, HEADER, Chunk, check, chunks, identity

__all__ = ["Extracted", "extract"]

_FORMAT = 1
_CHUNKS_IN_A_PART = 16
_ROWS_IN_A_GROUP = 1 << 15
_WORTH_A_POOL = 16 << 20  # bytes of files; below, starting processes takes longer than parsing does
_PARSER = "rust-pgn-reader-python-binding"

_BEFORE_A_GAME = b"\xef\xbb\xbf \t\r\n"  # the mark at the beginning of some UTF-8 files, and blanks
_PIECES = ".PNBRQKpnbrqk"
_OFFICER = np.isin(np.arange(256), [_PIECES.index(piece) for piece in "NBRQnbrq"])
_SQUARES = [file + rank for rank in "12345678" for file in "abcdefgh"]
_PROMOTIONS = {-1: "", 2: "n", 3: "b", 4: "r", 5: "q"}
_OUTCOMES = {"White": "1-0", "Black": "0-1", "Draw": "1/2-1/2"}
_VARIANT = re.compile(rb'^\[Variant\s+"(?!(?:standard|chess|normal|from position)?")', re.IGNORECASE | re.MULTILINE)
_UNRATED = re.compile(rb'^\[Event\s+"casual [^"\n]*game', re.IGNORECASE | re.MULTILINE)
_REASONS = {
    "illegal move": "an illegal move",
    "failed to parse SAN": "a move that cannot be read",
    "failed to parse FEN": "a starting position that cannot be read",
    "invalid FEN position": "a starting position that cannot be",
}


@final
@dataclass(frozen=True)
class Extracted:
    """What an extraction found; of a damaged game the positions before the damage are kept."""

    games: int = 0
    """Games read, with those that were left out."""
    kept: int = 0
    """Games with at least one position in the table."""
    positions: int = 0
    damaged: Mapping[str, int] = field(default_factory=dict)
    """Games that are not whole, each counted by the gravest thing that is wrong with it."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Sound games that are not asked for, by reason: another variant, not rated, the same game again."""
    cut_short: Mapping[str, str] = field(default_factory=dict)
    """By name, files that end too early or whose compression is damaged, and where; what came before is used."""

    def __add__(self, other: Extracted) -> Extracted:
        return Extracted(
            self.games + other.games,
            self.kept + other.kept,
            self.positions + other.positions,
            _sum(self.damaged, other.damaged),
            _sum(self.left_out, other.left_out),
            {**self.cut_short, **other.cut_short},
        )


def extract(
    sources: Sequence[str | Path],
    out: str | Path,
    *,
    workers: int | None = None,
    resume: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Extracted:
    """Write the table of positions of all games in some files (`ileed_lab.chess.positions` has the columns) as parquet.

    Files are PGN (.pgn, .pgn.gz, .pgn.zst) or tables of games (.csv, also .gz and .zst) with the columns of the public
    set of 20,000 lichess games. Damage is counted, never fatal. Games of other variants are left out, and so are games
    that say they were not rated, and rows of a table whose id came before. `clock` is what the mover had left once the
    move was made. A game without an id is named for its file and the byte it begins at.

    `workers` processes parse, by default as many as there are cores, or this one alone for small files. What is done
    lies in parts beside `out` until all is; with `resume` an interrupted run goes on from there, else it begins anew.
    `progress` is told the bytes of the files done, and of all.
    """
    paths, out = [Path(source) for source in sources], Path(out)
    if not paths:
        raise SettingsError("no file of games was given: name at least one")
    for path in paths:
        check(path)
    if workers is not None and workers < 1:
        raise SettingsError(f"workers is {workers}, and must be at least 1")
    require("rust_pgn_reader_python_binding", package="ileed-lab")
    sizes = [path.stat().st_size for path in paths]
    if workers is None:
        workers = (os.cpu_count() or 1) if sum(sizes) >= _WORTH_A_POOL else 1
    task = {
        "format": _FORMAT,
        "parser": f"{_PARSER} {metadata.version(_PARSER)}",
        "sources": [identity(path) for path in paths],
    }
    folder = out.with_name(out.name + ".parts")
    if resume and not folder.exists() and (done := _finished(out, task)):
        return done
    if not resume:
        _remove(folder)  # of an extraction that was given up
    parts, reached = _resumed(folder, task)
    found = reached.found
    numbered = (
        (index, chunk, paths[index].name)
        for index in range(reached.source, len(paths))
        for chunk in chunks(paths[index], start=reached.after if index == reached.source else 0)
    )
    with _Pool(workers) as pool:
        results = _told(pool.in_order(numbered), sizes, progress)
        while batch := list(islice(results, _CHUNKS_IN_A_PART)):
            for index, chunk, _, counts in batch:
                found += counts + _counted_before(chunk, paths[index].name)
            index, chunk, *_ = batch[-1]
            parts.append(_part(folder, len(parts)))
            table = pa.concat_tables([table for _, _, table, _ in batch])
            _write_part(parts[-1], table, {"task": task, "reached": asdict(_Reached(index, chunk.after, found))})
    _assemble(parts, folder, out, {"task": task, "found": asdict(found), "made_with": _made_with()})
    _remove(folder)
    return found


def _told(
    results: Iterator[_Result], sizes: Sequence[int], progress: Callable[[int, int], None] | None
) -> Iterator[_Result]:
    for index, chunk, table, counts in results:
        if progress is not None:
            progress(sum(sizes[:index]) + chunk.read, sum(sizes))
        yield index, chunk, table, counts


def _counted_before(chunk: Chunk, name: str) -> Extracted:
    """What is known of a chunk before its text is parsed."""
    return Extracted(
        games=sum(chunk.left_out.values()) + sum(chunk.damaged.values()),
        left_out=chunk.left_out,
        damaged=chunk.damaged,
        cut_short={} if chunk.cut_short is None else {name: chunk.cut_short},
    )


def _sum(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted((Counter(first) + Counter(second)).items()))


_Result = tuple[int, Chunk, Any, Extracted]
"""Which file, which chunk of it (its text no longer needed), its table of positions, and its counts."""


@final
class _Pool:
    """Processes that parse, or this process where one is enough; what they give comes in the order of the chunks."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._pool = (
            None
            if workers == 1
            else ProcessPoolExecutor(workers, mp_context=get_context("forkserver"), initializer=_follow_the_parent)
        )

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def in_order(self, numbered: Iterator[tuple[int, Chunk, str]]) -> Iterator[_Result]:
        if self._pool is None:
            for index, chunk, name in numbered:
                yield index, replace(chunk, text=b""), *_positions(chunk.text, name, chunk.start)
            return
        waiting: deque[tuple[int, Chunk, Future[tuple[Any, Extracted]]]] = deque()
        try:
            for index, chunk, name in numbered:
                future = self._pool.submit(_positions, chunk.text, name, chunk.start)
                waiting.append((index, replace(chunk, text=b""), future))
                if len(waiting) > self._workers + 1:  # one ahead of those at work, and no more in memory
                    yield _awaited(waiting.popleft())
            while waiting:
                yield _awaited(waiting.popleft())
        except BrokenProcessPool as error:
            raise RunError(
                f"one of {self._workers} processes was ended from outside (for lack of memory?): go on with resume "
                "and fewer workers"
            ) from error


def _awaited(waiting: tuple[int, Chunk, Future[tuple[Any, Extracted]]]) -> _Result:
    index, chunk, future = waiting
    return index, chunk, *future.result()


def _follow_the_parent() -> None:
    """Leave interruption to the parent, and end when it ends, however it does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=lambda: (wait([parent.sentinel]), os._exit(1)), daemon=True).start()


def _positions(text: bytes, source: str, start: int) -> tuple[Any, Extracted]:
    """The table and the counts of a chunk of PGN text that begins at byte `start` of its source."""
    parser = require("rust_pgn_reader_python_binding", package="ileed-lab")
    left_out: Counter[str] = Counter()
    places: list[int] = []
    games: list[str] = []
    garbled: set[int] = set()
    variants, unrated = b"[Variant" in text, b"asual" in text  # most files have neither, and need no closer look
    for place, game in _split(text):
        if variants and _VARIANT.search(game):
            left_out["not standard chess"] += 1
        elif unrated and _UNRATED.search(game):
            left_out["not rated"] += 1
        else:
            words = game.decode("utf-8", "replace").strip().lstrip("\ufeff").lstrip()
            if "\ufffd" in words:
                garbled.add(len(games))
            if words:
                places.append(start + place)
                games.append(words)
    if not games:
        return SCHEMA.empty_table(), Extracted(games=sum(left_out.values()), left_out=dict(left_out))
    views = parser.parse_games_from_strings(games, num_threads=1)
    assert len(views) == len(games)  # every text that is not blank is one game to the parser
    (parsed,) = views.chunks  # one for each thread
    outcomes = parsed.outcome
    table, kept = _table(parsed, lambda game: _facts(views[game].headers, outcomes[game], f"{source}@{places[game]}"))
    return table, Extracted(
        games=len(games) + sum(left_out.values()),
        kept=kept,
        positions=len(table),
        damaged=_damaged(games, garbled, outcomes, [] if parsed.valid.all() else parsed.parse_errors),
        left_out=dict(left_out),
    )


def _split(text: bytes) -> Iterator[tuple[int, bytes]]:
    """Games and where they begin: at a header after a blank line, or at a move 1 after a blank line after moves."""
    begin, in_headers = 0, HEADER.match(text.lstrip(_BEFORE_A_GAME)) is not None
    for blank in BLANK_LINE.finditer(text):
        after = blank.end()
        at_headers = HEADER.match(text, after) is not None
        if at_headers or (not in_headers and text.startswith(b"1.", after)):
            yield begin, text[begin:after]
            begin = after
        in_headers = at_headers
    yield begin, text[begin:]


def _damaged(
    games: Sequence[str], garbled: set[int], outcomes: Sequence[str | None], errors: Sequence[str | None]
) -> dict[str, int]:
    """Games by what is wrong with them; the gravest reason comes last and stands."""
    reasons = {
        **dict.fromkeys(garbled, "bytes that are not UTF-8"),
        **{game: "no result at the end" for game, outcome in enumerate(outcomes) if outcome is None},
        **{game: "no headers" for game, words in enumerate(games) if words[0] != "["},
        **{game: _reason(error) for game, error in enumerate(errors) if error is not None},
    }
    return dict(Counter(reasons.values()))


def _reason(error: str) -> str:
    return next((reason for begins, reason in _REASONS.items() if error.startswith(begins)), "another fault")


def _table(parsed: Any, facts_of: Callable[[int], _Facts]) -> tuple[Any, int]:
    """The rows of parsed games, and how many games they are of; only those are asked for their facts."""
    boards = parsed.boards
    kept = _with_kings_and_pawns_alone(boards)
    game = np.searchsorted(parsed.position_offsets, kept, side="right") - 1
    ply = kept - parsed.position_offsets[game].astype(np.int64)
    move = parsed.move_offsets[game].astype(np.int64) + ply
    played = (move < parsed.move_offsets[game + 1]) & (ply <= np.iinfo(np.int16).max)
    kept, game, ply, move = kept[played], game[played], ply[played], move[played]
    white = parsed.turn[kept]
    facts = {index: facts_of(index) for index in np.unique(game).tolist()}
    rows = [(facts[index], 0 if is_white else 1) for index, is_white in zip(game.tolist(), white.tolist(), strict=True)]
    columns = {
        "game_id": [fact.game_id for fact, _ in rows],
        "ply": ply,
        "fen": _fens(boards[kept], white, parsed.en_passant[kept]),
        "move": [
            _SQUARES[begin] + _SQUARES[end] + _PROMOTIONS[promotion]
            for begin, end, promotion in zip(
                parsed.from_squares[move].tolist(),
                parsed.to_squares[move].tolist(),
                parsed.promotions[move].tolist(),
                strict=True,
            )
        ],
        "mover_rating": [fact.ratings[mover] for fact, mover in rows],
        "opponent_rating": [fact.ratings[1 - mover] for fact, mover in rows],
        "player": [fact.players[mover] for fact, mover in rows],
        "clock": parsed.clocks[move],
        "time_control": [fact.time_control for fact, _ in rows],
        "date": [fact.date for fact, _ in rows],
        "result": [fact.result for fact, _ in rows],
    }
    arrays = [pa.array(columns[column.name], type=column.type, from_pandas=True) for column in SCHEMA]
    return pa.Table.from_arrays(arrays, schema=SCHEMA), len(facts)


def _with_kings_and_pawns_alone(boards: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Which boards, of shape (position, rank, file), have neither knight, bishop, rook nor queen.

    Rank by rank, those at home first: most boards are out after one look, and the scan costs less than the parser.
    """
    left: NDArray[np.int64] = np.arange(len(boards))
    for rank in (0, 7, 6, 1, 5, 2, 4, 3):
        officers = _OFFICER[boards[left, rank]].view(np.uint64)[:, 0]
        left = left[officers == 0]
    return left


def _fens(boards: NDArray[np.uint8], white: NDArray[np.bool_], pushed: NDArray[np.int8]) -> list[str]:
    """The first four fields, for White or Black to move; `pushed` is the file of a pawn just moved two squares, or -1.

    The square in passing is named if a pawn can capture there, as python-chess does. With kings and pawns alone nothing
    is pinned, so a pawn that stands beside can. Without rooks nobody may castle.
    """
    ranks, which = np.unique(np.ascontiguousarray(boards[:, ::-1]).view(np.uint64), return_inverse=True)
    words = [_rank(rank) for rank in ranks.view(np.uint8).reshape(-1, 8).tolist()]
    passing = ["-"] * len(boards)
    for row in np.flatnonzero(pushed >= 0).tolist():
        file, rank, capturer, target = pushed[row], *((4, "P", "6") if white[row] else (3, "p", "3"))
        beside = boards[row, rank, [place for place in (file - 1, file + 1) if 0 <= place < 8]]
        if _PIECES.index(capturer) in beside:
            passing[row] = "abcdefgh"[file] + target
    return [
        f"{'/'.join([words[rank] for rank in board])} {'w' if is_white else 'b'} - {square}"
        for board, is_white, square in zip(which.reshape(-1, 8).tolist(), white.tolist(), passing, strict=True)
    ]


def _rank(pieces: Sequence[int]) -> str:
    return re.sub(r"\.+", lambda empty: str(len(empty[0])), "".join(_PIECES[piece] for piece in pieces))


@final
@dataclass(frozen=True)
class _Facts:
    """What a game's headers say; players and ratings are White's and Black's."""

    game_id: str
    players: tuple[str, str]
    ratings: tuple[int | None, int | None]
    time_control: str
    date: str
    result: str


def _facts(headers: Mapping[str, str], outcome: str | None, name: str) -> _Facts:
    site = re.fullmatch(r"https?://lichess\.org/(\w+).*", headers.get("Site", ""))
    result = headers.get("Result", "*")
    return _Facts(
        game_id=headers.get("GameId") or (site[1] if site else name),
        players=(headers.get("White", "?"), headers.get("Black", "?")),
        ratings=(_rating(headers.get("WhiteElo", "")), _rating(headers.get("BlackElo", ""))),
        time_control=headers.get("TimeControl", "?"),
        date=headers.get("UTCDate") or headers.get("Date", "????.??.??"),
        result=result if result in _OUTCOMES.values() else _OUTCOMES.get(outcome or "", "*"),
    )


def _rating(written: str) -> int | None:
    return int(written) if re.fullmatch(r"[0-9]{1,4}", written) else None


@final
@dataclass(frozen=True)
class _Reached:
    """Where an extraction stands after a part: which file, where in it the next chunk begins, what was found so far."""

    source: int = 0
    after: int = 0
    found: Extracted = field(default_factory=Extracted)


def _part(folder: Path, number: int) -> Path:
    return folder / f"part-{number:06d}.parquet"


def _write_part(path: Path, table: Any, notes: Mapping[str, Any]) -> None:
    content = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({"ileed": json.dumps(notes)}), content, compression="zstd")
    runs.write_file(path, content.getvalue())


def _resumed(folder: Path, task: Mapping[str, Any]) -> tuple[list[Path], _Reached]:
    """The parts that an interrupted run left, and where it stood."""
    parts = sorted(folder.glob("part-*.parquet"))
    if not parts:
        return [], _Reached()
    notes = _notes(parts[-1])
    if notes is None or parts != [_part(folder, number) for number in range(len(parts))]:
        raise RunError(f"{folder} is damaged: extract anew, without resume")
    if notes["task"] != task:
        raise RunError(
            f"{folder} holds parts of an extraction from other files, or by another version: give the files that it "
            "was begun with, or extract anew, without resume"
        )
    reached = notes["reached"]
    return parts, _Reached(reached["source"], reached["after"], Extracted(**reached["found"]))


def _finished(out: Path, task: Mapping[str, Any]) -> Extracted | None:
    """What is in a table that was made from the same files already."""
    notes = _notes(out) if out.is_file() else None
    return Extracted(**notes["found"]) if notes and notes.get("task") == task else None


def _notes(path: Path) -> dict[str, Any] | None:
    try:
        notes = json.loads((pq.read_schema(path).metadata or {})[b"ileed"])
    except (pa.ArrowException, OSError, ValueError, KeyError):
        return None
    return notes if isinstance(notes, dict) and "task" in notes else None


def _assemble(parts: Sequence[Path], folder: Path, out: Path, notes: Mapping[str, Any]) -> None:
    """Join the parts into one file of equal row groups, a few at a time, and give it its name once it is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = folder / "whole.parquet"
    schema = SCHEMA.with_metadata({"ileed": json.dumps(notes)})
    with whole.open("wb") as file:
        with pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for rows in _groups(pq.read_table(part, use_threads=False) for part in parts):
                writer.write_table(rows.replace_schema_metadata(schema.metadata))
        file.flush()
        os.fsync(file.fileno())
    os.replace(whole, out)


def _groups(tables: Iterator[Any]) -> Iterator[Any]:
    pending = SCHEMA.empty_table()
    for table in tables:
        pending = pa.concat_tables([pending, table.replace_schema_metadata(None)])
        while len(pending) >= _ROWS_IN_A_GROUP:
            yield pending[:_ROWS_IN_A_GROUP].combine_chunks()
            pending = pending[_ROWS_IN_A_GROUP:]
    yield pending.combine_chunks()


def _made_with() -> dict[str, Any]:
    """Versions, without date and machine: the same files give the same bytes."""
    provenance = runs.provenance()
    return {name: provenance[name] for name in ("ileed", "commit", "numpy")} | {"pyarrow": pa.__version__}


def _remove(folder: Path) -> None:
    """Remove our parts, and the folder if nothing else is in it."""
    for part in (*folder.glob("part-*.parquet"), folder / "whole.parquet"):
        runs.remove_file(part)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
