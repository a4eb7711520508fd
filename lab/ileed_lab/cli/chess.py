"""`ileed chess`: from games to positions, to an engine's moves, to players' expertise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from tyro.conf import Positional

from ileed.cli.console import Output, bar, plain, print_json
from ileed.errors import SettingsError, at_least_one

if TYPE_CHECKING:
    from ileed_lab.chess.rating import PlayerRating

__all__ = ["Consult", "Extract", "Rate"]


@dataclass(frozen=True)
class Extract:
    """Write every position with kings and pawns alone, and the move made in it, from files of games.

    With --resume an interrupted extraction continues where it stopped.
    """

    games: Positional[tuple[Path, ...]]
    """PGN (.pgn, .pgn.gz, .pgn.zst), or tables of games in SAN (.csv, .csv.gz)."""
    out: Path
    """The parquet file to write."""
    workers: int | None = None
    """Processes to run at once; as many as there are cores by default, and one for small files."""
    executor: str = "local"
    """Where they run: local (processes of this machine), ray (a Ray cluster) or slurm (jobs, through submitit)."""
    resume: bool = False
    """Continue an interrupted extraction."""
    every_move: bool = False
    """Write every move of one file of games, with any pieces on the board, for `ileed reproduce chess/gold`."""

    def __call__(self) -> None:
        from ileed_lab.chess.every_move import extract_moves
        from ileed_lab.chess.extraction import extract

        at_least_one(workers=self.workers)
        if self.every_move and (len(self.games) != 1 or self.resume or self.workers or self.executor != "local"):
            raise SettingsError("--every-move takes one file, and no --resume, --workers or --executor: leave them out")
        with bar("reading games") as advance:
            if self.every_move:
                found = extract_moves(self.games[0], self.out, progress=advance)
            else:
                found = extract(
                    self.games,
                    self.out,
                    workers=self.workers,
                    executor=self.executor,
                    resume=self.resume,
                    progress=advance,
                )
        console, what = Output(), "moves" if self.every_move else "positions"
        console.say(f"wrote {found.positions:,} {what} of {found.kept:,} games to {self.out}")
        console.say(f"{found.games:,} games read, {sum(found.damaged.values()):,} of them damaged")
        for reason, count in (*found.damaged.items(), *((f"left out: {why}", n) for why, n in found.left_out.items())):
            console.say(f"  {count:>9,}  {reason}")
        for name, fault in found.cut_short.items():
            console.say(f"{name} {fault}; what came before that is in the table")


@dataclass(frozen=True)
class Consult:
    """Add Stockfish's move in every position of a table, as the moves of one more player."""

    positions: Positional[Path]
    """A table that `ileed chess extract` wrote."""
    out: Path
    """The parquet file to write: the table, and the engine's moves after it."""
    nodes: int = 15_000
    """Nodes of the engine's search in each position."""
    workers: int = 2
    """Engines that run at once."""

    def __call__(self) -> None:
        from ileed_lab.chess.consulting import consult
        from ileed_lab.chess.positions import read_positions, write_positions

        at_least_one(nodes=self.nodes, workers=self.workers)
        with bar("asking Stockfish") as advance:
            table = consult(read_positions(self.positions), nodes=self.nodes, workers=self.workers, progress=advance)
        write_positions(table, self.out)
        Output().say(f"wrote {len(table):,} moves to {self.out}, half of them Stockfish's")


@dataclass(frozen=True)
class Rate:
    """Estimate the expertise of players from their moves with kings and pawns alone, beside their ratings."""

    positions: Positional[Path]
    """A table that `ileed chess extract` wrote, or games as PGN (.pgn, .pgn.gz, .pgn.zst)."""
    player: tuple[str, ...] = ()
    """Only these players; all by default."""
    least: int = 20
    """Fewest moves of a player."""
    nodes: int = 5_000
    """Nodes of the engine's search in each position."""
    workers: int = 2
    """Engines that run at once."""
    json: bool = False
    """Print JSON for a script instead of text for a person."""

    def __call__(self) -> None:
        from ileed_lab.chess.rating import rate_players, read_games

        at_least_one(least=self.least, nodes=self.nodes, workers=self.workers)
        with bar("asking Stockfish") as advance:
            found = rate_players(
                read_games(self.positions),
                least=self.least,
                players=self.player or None,
                nodes=self.nodes,
                workers=self.workers,
                progress=advance,
            )
        if self.json:
            print_json({"players": [vars(each) for each in found]})
        else:
            Output().print(_players_table(found))


def _players_table(found: Sequence[PlayerRating]) -> Table:
    """Players best first, with their expertise and their rating."""
    table = Table("player", title="expertise by play, best first (relative: it has no unit)")
    for words in ("expertise", "95% interval", "moves", "games", "rating"):
        table.add_column(words, justify="right")
    for each in found:
        interval = f"{each.low:.2f} to {each.high:.2f}"
        rating = "unknown" if each.rating is None else f"{each.rating:.0f}"
        table.add_row(plain(each.player), f"{each.expertise:.2f}", interval, str(each.moves), str(each.games), rating)
    return table
