"""Positions: the table of moves with kings and pawns alone, and demonstrations made of it.

One row is one move in one position:

| column          | type              | meaning                                                             |
|-----------------|-------------------|---------------------------------------------------------------------|
| game_id         | string            | which game                                                          |
| ply             | int16             | half-moves played before this position; 0 is the start              |
| fen             | string            | board, side to move, castling, en-passant square                    |
| move            | string            | the move, in UCI                                                    |
| mover_rating    | int16 or null     | rating of the mover                                                 |
| opponent_rating | int16 or null     | rating of the opponent                                              |
| player          | string            | the mover                                                           |
| clock           | float32 or null   | seconds left to the mover                                           |
| time_control    | string            | as the game's header has it                                         |
| date            | string            | as the game's header has it                                         |
| result          | string            | '1-0', '0-1', '1/2-1/2' or '*'                                      |
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from ileed import DemonstrationError, Demonstrations, runs
from ileed.data import Array
from ileed.data.columns import is_text
from ileed.errors import brief
from ileed.formats.files import ParquetFile
from ileed.parallel.runtime import check_fits
from ileed_lab.chess import board

__all__ = [
    "SCHEMA",
    "by_player",
    "demonstrations",
    "rating_bins",
    "read_positions",
    "with_king_centred_planes",
    "with_mirror_images",
    "write_positions",
]

SCHEMA = pa.schema(
    [
        ("game_id", pa.string()),
        ("ply", pa.int16()),
        ("fen", pa.string()),
        ("move", pa.string()),
        ("mover_rating", pa.int16()),
        ("opponent_rating", pa.int16()),
        ("player", pa.string()),
        ("clock", pa.float32()),
        ("time_control", pa.string()),
        ("date", pa.string()),
        ("result", pa.string()),
    ]
)
"""The columns of a table of positions."""

_MAY_BE_NULL = ("mover_rating", "opponent_rating", "clock", "time_control", "date", "result")
_OTHER_NAMES = {"move_uci": "move", "opp_rating": "opponent_rating"}


def read_positions(path: str | Path) -> pa.Table:
    """Read a table of positions from a parquet file, or from a .csv or .csv.gz file with a line of column names.

    `move_uci` and `opp_rating` are read as `move` and `opponent_rating`. Nullable columns may be missing; other columns
    are ignored.
    """
    path = Path(path)
    try:
        table = _read_csv(path) if path.name.endswith((".csv", ".csv.gz")) else _read_parquet(path)
    except (pa.ArrowException, OSError, LookupError, ValueError, TypeError, MemoryError) as error:
        raise DemonstrationError(
            f"{path} cannot be read as a table of positions ({brief(error)}): write it again",
            code="positions-unreadable",
        ) from error
    renamed = [_OTHER_NAMES.get(name, name) for name in table.column_names]
    if repeated := [name for name in SCHEMA.names if renamed.count(name) > 1]:
        raise DemonstrationError(f"{path} has {renamed.count(repeated[0])} columns {repeated[0]!r}: keep one of them")
    table = table.rename_columns(renamed)
    return pa.table([_column(path, table, field) for field in SCHEMA], schema=SCHEMA)


def write_positions(table: pa.Table, path: str | Path) -> None:
    """Write a table of positions to a parquet file, whole or not at all."""
    content = io.BytesIO()
    pq.write_table(table, content, compression="zstd", compression_level=19)
    runs.write_file(Path(path), content.getvalue())


def _read_parquet(path: Path) -> pa.Table:
    """Our columns alone; text as a dictionary, with each distinct word once."""
    file = ParquetFile(path)
    ours = {*SCHEMA.names, *_OTHER_NAMES}
    found = [name for name in dict.fromkeys(file.schema.names) if name in ours]
    if repeated := [name for name in found if file.schema.names.count(name) > 1]:
        raise ValueError(f"it has {file.schema.names.count(repeated[0])} columns {repeated[0]!r}")
    return file.read(found)


def _read_csv(path: Path) -> pa.Table:
    """Every column as strings; an empty field is null."""
    with pa.csv.open_csv(path) as beginning:
        header = beginning.schema.names
    options = pa.csv.ConvertOptions(
        column_types=dict.fromkeys(header, pa.string()), strings_can_be_null=True, null_values=[""]
    )
    batches, size = [], 0
    with pa.csv.open_csv(path, convert_options=options) as blocks:
        for batch in blocks:  # a block at a time, since the size of a compressed file is unknown
            batches.append(batch)
            size += batch.nbytes
            check_fits(path, size)
        return pa.Table.from_batches(batches, schema=blocks.schema)


def _column(path: Path, table: pa.Table, field: pa.Field) -> pa.ChunkedArray:
    """One of our columns, in its type."""
    optional = field.name in _MAY_BE_NULL
    if field.name not in table.column_names:
        if optional:
            return pa.chunked_array([pa.nulls(len(table), field.type)])
        raise DemonstrationError(
            f"{path} has no column {field.name!r}: it has {table.column_names}; rename a column", code="column-missing"
        )
    try:
        column = table.column(field.name)
        if is_text(column.type):
            column = _dense(path, column)
        column = column.cast(field.type)
    except pa.ArrowException as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise DemonstrationError(
            f"column {field.name!r} of {path} is not {field.type} ({reason}): correct or drop those rows",
            code="column-type",
        ) from error
    if column.null_count and not optional:
        raise DemonstrationError(
            f"column {field.name!r} of {path} has {column.null_count:,} missing values: fill or drop those rows",
            code="column-incomplete",
        )
    return column


def _dense(path: Path, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A dictionary column as one word for each row, where that fits in memory."""
    if not pa.types.is_dictionary(column.type):
        return column
    longest = max((pc.max(pc.binary_length(chunk.dictionary)).as_py() or 0 for chunk in column.chunks), default=0)
    check_fits(path, longest * len(column))
    return column.cast(pa.string())


def rating_bins(table: pa.Table, *, bins: int = 5) -> list[str]:
    """A label for each row by the mover's rating, as "1: 784-1394": bins of about equally many moves.

    The edges are percentiles of the rating over moves, as in the paper. Equal ratings are always in one bin: a rating
    that is itself an edge belongs to the bin above it, so that bins of few distinct ratings are uneven.
    """
    if bins < 2:
        raise DemonstrationError(f"bins is {bins}: there must be two or more to compare", code="bins-invalid")
    column = table.column("mover_rating")
    if column.null_count:
        raise DemonstrationError(
            f"{column.null_count:,} of {len(column):,} moves have no rating and belong to no bin: leave those rows out",
            code="ratings-missing",
        )
    ratings = column.to_numpy().astype(np.int64)
    if not len(ratings):
        raise DemonstrationError(
            "the table has no moves, so there is nothing to divide: pass one or more", code="moves-missing"
        )
    edges = np.quantile(ratings, np.arange(1, bins) / bins, method="higher")
    number = np.searchsorted(edges, ratings, side="right")
    if empty := sorted(set(range(bins)) - set(number.tolist())):
        raise DemonstrationError(
            f"bin {empty[0] + 1} of {bins} is empty, since equal ratings are in one bin: ask for fewer bins",
            code="bin-empty",
        )
    width = len(str(bins))
    names = [f"{k + 1:0{width}}: {ratings[number == k].min()}-{ratings[number == k].max()}" for k in range(bins)]
    return [names[k] for k in number.tolist()]


def by_player(table: pa.Table, *, least: int = 1) -> pa.Table:
    """The rows of players with `least` moves or more."""
    if least < 1:
        raise DemonstrationError(f"least is {least}: it must be one move or more", code="least-invalid")
    counts = pc.value_counts(table.column("player"))
    enough = counts.field("values").filter(pc.greater_equal(counts.field("counts"), least))
    if not len(enough):
        most = pc.max(counts.field("counts")).as_py() or 0
        raise DemonstrationError(
            f"no player has {least:,} moves (the most is {most:,}): lower least", code="moves-too-few"
        )
    return table.filter(pc.is_in(table.column("player"), value_set=enough))


def demonstrations(
    table: pa.Table, demonstrator: Sequence[str], *, order: Sequence[str] | None = None
) -> Demonstrations:
    """Demonstrations from a table of positions, with the legal moves of each; `demonstrator` labels each row.

    An episode is the moves of one player in one game, by ply, so that each has one demonstrator; rows are put in that
    order. `order` sets the order of the names, also of those without a move; otherwise they are sorted.
    """
    if len(demonstrator) != len(table):
        raise DemonstrationError(
            f"{len(table):,} moves but {len(demonstrator):,} demonstrator labels: pass one label for each move",
            code="demonstrators-count",
        )
    if not len(table):
        raise DemonstrationError("the table has no moves: pass one or more", code="moves-missing")
    episode, order_of_rows = _episodes(table)
    rows = table.take(order_of_rows)
    fens, moves = (rows.column(name).to_pylist() for name in ("fen", "move"))
    encoded = board.encode(fens)
    return Demonstrations(
        observations=encoded.observations,
        actions=board.actions_of(fens, moves),
        demonstrator=np.asarray(demonstrator, dtype=np.str_)[order_of_rows],
        episode=episode[order_of_rows],
        names=tuple(order or ()),
        legal=encoded.legal,
        action_count=board.ACTION_COUNT,
    )


def _episodes(table: pa.Table) -> tuple[Array, Array]:
    """The episode of each row, numbered as they first appear, and the rows in the order of episodes and plies."""
    numbers: dict[tuple[str, str], int] = {}
    keys = zip(table.column("game_id").to_pylist(), table.column("player").to_pylist(), strict=True)
    episode = np.array([numbers.setdefault(key, len(numbers)) for key in keys])
    return episode, np.lexsort((table.column("ply").to_numpy(), episode))


def with_mirror_images(data: Demonstrations) -> Demonstrations:
    """Demonstrations of chess together with their mirror images, left and right exchanged: twice as many steps.

    An episode's image is appended to it, so that splits by episode and resampled episodes keep the two together. The
    images add no evidence about skill: the effective number of steps for an interval is half.
    """
    if data.legal is None or data.observations.shape[1:] != (board.FEATURES,):
        raise DemonstrationError(
            f"observations of shape {data.observations.shape[1:]} are not boards: make them with demonstrations(table)",
            code="observations-shape",
        )
    image = board.mirror(board.Encoded(data.observations, data.legal))
    order = np.argsort(np.concatenate([data.episode, data.episode]), kind="stable")
    return replace(
        data,
        observations=np.concatenate([data.observations, image.observations])[order],
        legal=np.concatenate([data.legal, image.legal])[order],
        actions=np.concatenate([data.actions, board.mirror_actions(data.actions)])[order],
        demonstrator=np.concatenate([data.demonstrator, data.demonstrator])[order],
        episode=np.concatenate([data.episode, data.episode])[order],
        source_episode=None,
        episode_number=None,
        rewards=None,
        terminals=None,
        skills={name: np.concatenate([values, values])[order] for name, values in data.skills.items()},
    )


def with_king_centred_planes(data: Demonstrations) -> Demonstrations:
    """Demonstrations of chess with the squares around the own king among the inputs.

    Add mirror images first, where they are wanted.
    """
    return replace(data, observations=board.with_king_centred_planes(data.observations))
