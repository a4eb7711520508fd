"""Consulting: the moves of an engine in the positions of a table, as one more demonstrator."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from ileed import DemonstrationError
from ileed.errors import require
from ileed_lab.chess.engine import Engine, Thinking, ask_each
from ileed_lab.chess.positions import SCHEMA

__all__ = ["ENGINE", "consult", "people"]

ENGINE = "stockfish"
"""The player whose rows are the engine's."""


def consult(
    table: pa.Table, *, nodes: int = 15_000, workers: int = 2, progress: Callable[[int, int], None] | None = None
) -> pa.Table:
    """The table, and after it the engine's own move in each of its rows, under the name "stockfish".

    Each distinct position is searched once. The engine's row belongs to the same game, so that resampled games include
    the engine's moves; it has no rating.
    """
    if ENGINE in table.column("player").to_pylist():
        raise DemonstrationError(f"the table has moves of {ENGINE!r} already: pass a table of people's moves")
    fens = table.column("fen").to_pylist()
    distinct = list(dict.fromkeys(fens))
    best: dict[str, str] = {}
    for number, move in ask_each(distinct, _best_move, thinking=Thinking(nodes=nodes), workers=workers):
        best[distinct[number]] = move
        if progress is not None:
            progress(len(best), len(distinct))
    nothing = {name: pa.nulls(len(table), SCHEMA.field(name).type) for name in ("mover_rating", "opponent_rating")}
    changed = nothing | {"move": [best[fen] for fen in fens], "player": [ENGINE] * len(table)}
    columns = [
        pa.array(changed[field.name], field.type) if field.name in changed else table.column(field.name)
        for field in SCHEMA
    ]
    return pa.concat_tables([table.select(SCHEMA.names), pa.table(columns, schema=SCHEMA)])


def people(table: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The rows of human players, and those of the engine."""
    theirs = pc.not_equal(table.column("player"), ENGINE)
    return table.filter(theirs), table.filter(pc.invert(theirs))


def _best_move(engine: Engine, fen: str) -> str:
    return str(engine.move(require("chess", package="ileed-lab").Board(fen)).uci())
