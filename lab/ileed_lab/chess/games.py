"""Games: from a chunk of PGN text to rows of the table of positions, and a count of what was found."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ileed.errors import require
from ileed_lab.chess.positions import SCHEMA
from ileed_lab.chess.sources import BLANK_LINE, HEADER

__all__ = ["Extracted", "count_damage", "extract_positions", "rated_games"]

_BEFORE_A_GAME = b"\xef\xbb\xbf \t\r\n"  # the byte order mark of some UTF-8 files, and blanks
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
    """Counts of an extraction; of a damaged game the positions before the damage are used."""

    games: int = 0
    """Games read, including those that were left out."""
    kept: int = 0
    """Games with at least one position in the table."""
    positions: int = 0
    damaged: Mapping[str, int] = field(default_factory=dict)
    """Damaged games, each counted by its gravest fault."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Undamaged games that are not used, by reason: another variant, not rated, the same game again."""
    cut_short: Mapping[str, str] = field(default_factory=dict)
    """Files that end too early or whose compression is damaged, by name, and where; what came before is used."""

    def __add__(self, other: Extracted) -> Extracted:
        return Extracted(
            self.games + other.games,
            self.kept + other.kept,
            self.positions + other.positions,
            _sum(self.damaged, other.damaged),
            _sum(self.left_out, other.left_out),
            {**self.cut_short, **other.cut_short},
        )


def _sum(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted((Counter(first) + Counter(second)).items()))


def extract_positions(text: bytes, source: str, start: int) -> tuple[Any, Extracted]:
    """The positions and the counts of a chunk of PGN text that begins at byte `start` of its source."""
    parser = require("rust_pgn_reader_python_binding", package="ileed-lab")
    games, counts = rated_games(text)
    if not games:
        return SCHEMA.empty_table(), counts
    views = parser.parse_games_from_strings(list(games.values()), num_threads=1)
    assert len(views) == len(games)  # every text that is not blank is one game to the parser
    (parsed,) = views.chunks  # one for each thread
    offsets, outcomes = list(games), parsed.outcome
    table, kept = _table(
        parsed, lambda game: _facts(views[game].headers, outcomes[game], f"{source}@{start + offsets[game]}")
    )
    damaged = count_damage(list(games.values()), parsed)
    return table, counts + Extracted(kept=kept, positions=len(table), damaged=damaged)


def rated_games(text: bytes) -> tuple[Mapping[int, str], Extracted]:
    """Games of standard chess by their offsets, without those that say that they are not rated; and how many."""
    left_out: Counter[str] = Counter()
    games: dict[int, str] = {}
    variants, unrated = b"[Variant" in text, b"asual" in text  # most files have neither
    for offset, game in _split(text):
        if variants and _VARIANT.search(game):
            left_out["not standard chess"] += 1
        elif unrated and _UNRATED.search(game):
            left_out["not rated"] += 1
        elif words := game.decode("utf-8", "replace").strip().lstrip("\ufeff").lstrip():
            games[offset] = words
    return games, Extracted(games=len(games) + sum(left_out.values()), left_out=dict(left_out))


def _split(text: bytes) -> Iterator[tuple[int, bytes]]:
    """Games and their offsets: a game begins after a blank line, at a header, or at move 1 after other moves."""
    begin, in_headers = 0, HEADER.match(text.lstrip(_BEFORE_A_GAME)) is not None
    for blank in BLANK_LINE.finditer(text):
        after = blank.end()
        at_headers = HEADER.match(text, after) is not None
        if at_headers or (not in_headers and text.startswith(b"1.", after)):
            yield begin, text[begin:after]
            begin = after
        in_headers = at_headers
    yield begin, text[begin:]


def count_damage(games: Sequence[str], parsed: Any) -> dict[str, int]:
    """Damaged games by reason; the gravest reason comes last and counts."""
    errors = [] if parsed.valid.all() else parsed.parse_errors
    reasons = {
        **{game: "bytes that are not UTF-8" for game, words in enumerate(games) if "\ufffd" in words},
        **{game: "no result at the end" for game, outcome in enumerate(parsed.outcome) if outcome is None},
        **{game: "no headers" for game, words in enumerate(games) if words[0] != "["},
        **{game: _reason(error) for game, error in enumerate(errors) if error is not None},
    }
    return dict(Counter(reasons.values()))


def _reason(error: str) -> str:
    return next((reason for begins, reason in _REASONS.items() if error.startswith(begins)), "another fault")


def _table(parsed: Any, facts_of: Callable[[int], _Facts]) -> tuple[Any, int]:
    """The rows of parsed games, and the number of their games; `facts_of` is called for those games alone."""
    boards = parsed.boards
    kept = _king_and_pawn_positions(boards)
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


def _king_and_pawn_positions(boards: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Which boards, of shape (position, rank, file), have neither knight, bishop, rook nor queen.

    Rank by rank, the home ranks first: most boards are excluded after one rank, so the scan is faster than the parser.
    """
    left: NDArray[np.int64] = np.arange(len(boards))
    for rank in (0, 7, 6, 1, 5, 2, 4, 3):
        officers = _OFFICER[boards[left, rank]].view(np.uint64)[:, 0]
        left = left[officers == 0]
    return left


def _fens(boards: NDArray[np.uint8], white: NDArray[np.bool_], pushed: NDArray[np.int8]) -> list[str]:
    """The first four fields, for White or Black to move; `pushed` is the file of a pawn just moved two squares, or -1.

    The en-passant square is stated if a pawn can capture there, as python-chess does. With kings and pawns alone
    nothing is pinned, so a pawn on the neighbouring file can. Without rooks there is no castling.
    """
    ranks, which = np.unique(np.ascontiguousarray(boards[:, ::-1]).view(np.uint64), return_inverse=True)
    words = [_rank(rank) for rank in ranks.view(np.uint8).reshape(-1, 8).tolist()]
    passing = ["-"] * len(boards)
    for row in np.flatnonzero(pushed >= 0).tolist():
        file, rank, capturer, target = pushed[row], *((4, "P", "6") if white[row] else (3, "p", "3"))
        beside = boards[row, rank, [other for other in (file - 1, file + 1) if 0 <= other < 8]]
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
    """The headers of a game; players and ratings are White's and Black's."""

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
