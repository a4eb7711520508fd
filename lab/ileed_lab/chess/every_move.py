"""Every move of rated games, with all pieces on the board: the table of them, and demonstrations from it.

A position is encoded from the mover's side, as in `ileed_lab.chess.board`: where Black moves, colours are swapped and
ranks mirrored. An observation is 836 numbers, each 0 or 1: twelve planes of 64 squares (own pawns, knights, bishops,
rooks, queens and king, then the other side's), a plane with the square that the other side has just moved to, and four
rights to castle (own to the king's and the queen's side, then the other side's).

One of 384 actions is a kind of piece and the square that it moves to. Two pieces of a kind that can move to the same
square are one action, and so are promotions on a square: both are rare, and what is legal is known for each position.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ileed import DemonstrationError, Demonstrations, runs
from ileed.data import Array
from ileed.errors import require
from ileed_lab.chess.extraction import counts_of_source
from ileed_lab.chess.games import Extracted, count_damage, rated_games
from ileed_lab.chess.sources import check, chunks

__all__ = ["ACTION_COUNT", "FEATURES", "SCHEMA", "demonstrations", "extract_moves", "read_moves"]

KINDS = 6
ACTION_COUNT = KINDS * 64
FEATURES = 13 * 64 + 4
"""Numbers in an observation."""
SCHEMA = pa.schema(
    [
        ("game", pa.int32()),  # from 0 on, in the order of the file, without those that are left out
        ("ply", pa.int16()),
        ("player", pa.dictionary(pa.int32(), pa.string())),
        ("rating", pa.int16()),
        ("board", pa.binary(64)),  # of the mover's side: 0 for empty, 1 to 6 for own pieces, 7 to 12 for the others'
        ("castling", pa.uint8()),  # four bits
        ("answered", pa.int8()),  # the square that the other side has just moved to, or -1
        ("legal", pa.binary(ACTION_COUNT // 8)),  # bits
        ("action", pa.int16()),
    ]
)
_SQUARES = np.arange(64)
_GAMES_AT_A_TIME = 1_000  # which bounds memory: what is legal takes 384 bytes a move before it is packed


def extract_moves(
    source: str | Path, out: str | Path, *, progress: Callable[[int, int], None] | None = None
) -> Extracted:
    """Write a table of every move of the rated games in a file, as parquet, and count them.

    The file is as for `ileed_lab.chess.extraction.extract`. Moves of players without a rating are left out, and so are
    games of which a move cannot be read: `Extracted.damaged` counts them. `progress` is called with the bytes of the
    file read, and of all.
    """
    path = Path(source)
    check(path)
    size, before, number = path.stat().st_size, 0, 0
    parts, found = [SCHEMA.empty_table()], Extracted()
    for chunk in chunks(path):
        texts, counts = rated_games(chunk.text)
        games = list(texts.values())
        found += counts + counts_of_source(chunk, path.name)
        for start in range(0, len(games), _GAMES_AT_A_TIME):
            rows, counts = _rows(games[start : start + _GAMES_AT_A_TIME], number + start)
            parts.append(rows)
            found += counts
            if progress is not None:
                share = min(1.0, (start + _GAMES_AT_A_TIME) / len(games))
                progress(before + int(share * (chunk.read - before)), size)
        before, number = chunk.read, number + len(games)
    if not found.positions:
        raise DemonstrationError(
            f"{path} has no move of a rated player ({found.games:,} games, {sum(found.damaged.values()):,} of them "
            "damaged): give rated games, with WhiteElo and BlackElo among their headers"
        )
    content = io.BytesIO()
    pq.write_table(pa.concat_tables(parts).unify_dictionaries(), content, compression="zstd", compression_level=9)
    runs.write_file(Path(out), content.getvalue())
    return found


def read_moves(path: str | Path) -> pa.Table:
    """The table that `extract_moves` wrote."""
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise DemonstrationError(
            f"{path} is not a table of moves ({error}): write one with extract_moves", code="moves-not-a-table"
        ) from error
    if not table.schema.equals(SCHEMA):
        raise DemonstrationError(
            f"{path} has the columns {table.schema.names}: write it with extract_moves", code="moves-columns"
        )
    return table


def demonstrations(
    table: pa.Table, demonstrator: Sequence[str], *, order: Sequence[str], skills: Mapping[str, Array] | None = None
) -> Demonstrations:
    """Demonstrations of a table of moves; `demonstrator` labels each row, and `order` has all labels.

    An episode is the moves of one player in one game. Its label, `source_episode`, is twice the number of the game,
    and one more for Black.
    """
    ply = table.column("ply").to_numpy()
    episode = 2 * table.column("game").to_numpy().astype(np.int64) + ply % 2
    rows = np.lexsort((ply, episode))
    numbers = {name: number for number, name in enumerate(order)}
    legal = np.unpackbits(_from_binary(table, "legal"), axis=1).view(bool)
    return Demonstrations(
        observations=_observations(table)[rows],
        actions=table.column("action").to_numpy().astype(np.int64)[rows],
        demonstrator=np.array([numbers[name] for name in demonstrator])[rows],
        episode=episode[rows],
        names=tuple(order),
        legal=legal[rows],
        action_count=ACTION_COUNT,
        skills={name: values[rows] for name, values in (skills or {}).items()},
    )


def _observations(table: pa.Table) -> Array:
    board = _from_binary(table, "board")
    found = np.zeros((len(board), FEATURES), dtype=np.uint8)
    for piece in range(2 * KINDS):
        found[:, 64 * piece : 64 * (piece + 1)] = board == piece + 1
    answered = table.column("answered").to_numpy().astype(np.int64)
    row = np.flatnonzero(answered >= 0)
    found[row, 64 * 2 * KINDS + answered[row]] = 1
    castling = table.column("castling").to_numpy()[:, None]
    found[:, -4:] = np.unpackbits(castling, axis=1, bitorder="little")[:, :4]
    return found


def _from_binary(table: pa.Table, name: str) -> Array:
    column = table.column(name).combine_chunks()
    width = column.type.byte_width
    found = np.frombuffer(column.buffers()[1], dtype=np.uint8)
    return found[column.offset * width : (column.offset + len(column)) * width].reshape(-1, width)


def _rows(games: Sequence[str], games_before: int) -> tuple[pa.Table, Extracted]:
    """The rows of some games, and counts of them."""
    parser = require("rust_pgn_reader_python_binding", package="ileed-lab")
    views = parser.parse_games_from_strings(games, num_threads=1, store_legal_moves=True)
    (parsed,) = views.chunks
    game = np.repeat(np.arange(len(views)), np.diff(parsed.move_offsets.astype(np.int64)))
    ply = np.arange(len(game)) - parsed.move_offsets.astype(np.int64)[game]
    at = parsed.position_offsets.astype(np.int64)[game] + ply
    black = ~parsed.turn[at]
    headers = [views[number].headers for number in range(len(views))]
    ratings = np.array([[_rating(each.get(name, "")) for name in ("WhiteElo", "BlackElo")] for each in headers])
    names = np.array([[each.get(name, "?") for name in ("White", "Black")] for each in headers])
    rating = ratings[game, black.astype(int)]
    kept = np.flatnonzero((rating > 0) & parsed.valid[game] & (ply <= np.iinfo(np.int16).max))
    boards = _from_movers_side(parsed.boards.reshape(-1, 64), ~parsed.turn)
    turned = np.where(black, 56, 0)
    origin, target = (each.astype(np.int64) ^ turned for each in (parsed.from_squares, parsed.to_squares))
    answered = np.where(ply == 0, -1, np.roll(target, 1) ^ 56)
    castling = parsed.castling[at].astype(np.uint8)
    castling = np.where(black[:, None], castling[:, [2, 3, 0, 1]], castling)
    action = (boards[at, origin].astype(np.int64) - 1) * 64 + target
    columns = {
        "game": game[kept] + games_before,
        "ply": ply[kept],
        "player": pa.array(names[game, black.astype(int)][kept]).dictionary_encode(),
        "rating": rating[kept],
        "board": _as_binary(boards[at][kept]),
        "castling": np.packbits(castling[kept], axis=1, bitorder="little")[:, 0],
        "answered": answered[kept],
        "legal": _as_binary(np.packbits(_legal(parsed, boards, at), axis=1)[kept]),
        "action": action[kept],
    }
    table = pa.table([pa.array(columns[field.name], type=field.type) for field in SCHEMA], schema=SCHEMA)
    return table, Extracted(kept=len(np.unique(game[kept])), positions=len(table), damaged=count_damage(games, parsed))


def _rating(written: str) -> int:
    return int(written) if written.isdecimal() and len(written) <= 4 else 0


def _from_movers_side(boards: Array, black: Array) -> Array:
    """Boards of White's side, 1 to 6 for White's pieces, as the mover sees them."""
    turned = boards[:, _SQUARES ^ 56]
    turned = np.where(turned == 0, 0, (turned + 5) % 12 + 1).astype(np.uint8)
    return np.where(black[:, None], turned, boards)


def _legal(parsed: Any, boards: Array, at: Array) -> Array:
    """(move, action) what the mover might have done."""
    offsets = parsed.legal_move_offsets.astype(np.int64)
    position = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    turned = np.where(parsed.turn[position], 0, 56)
    squares = (parsed.legal_move_from_squares, parsed.legal_move_to_squares)
    origin, target = (each.astype(np.int64) ^ turned for each in squares)
    found = np.zeros((len(boards), ACTION_COUNT), dtype=bool)
    found[position, (boards[position, origin].astype(np.int64) - 1) * 64 + target] = True
    return found[at]


def _as_binary(rows: Array) -> pa.Array:
    width = rows.shape[1]
    return pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(width), len(rows), [None, pa.py_buffer(np.ascontiguousarray(rows))]
    )
