"""Engine players: what they record can be replayed, and the strong ones lose less."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from needs import stockfish
from refusals import refused

from ileed.errors import IleedError, SettingsError
from ileed_lab.chess.engine import Thinking
from ileed_lab.chess.judging import Judge
from ileed_lab.chess.players import STRENGTHS, STRONGEST, TWENTY, Player, answer, engine_moves, play, starting_positions

chess = pytest.importorskip("chess", reason="the package chess is absent: pip install 'ileed[chess]'")


QUICK = (Player(name="one", thinking=Thinking(nodes=1)), Player(name="many", thinking=Thinking(nodes=300)))


def replay(table: pa.Table) -> int:
    """Play every recorded game again on a board; the number of games."""
    games = [list(rows) for _, rows in groupby(table.to_pylist(), key=lambda row: row["game_id"])]
    assert len({game[0]["game_id"] for game in games}) == len(games)
    for game in games:
        board = chess.Board(game[0]["fen"])
        assert board.is_valid()
        for ply, row in enumerate(game):
            assert row["ply"] == ply
            assert row["fen"] == " ".join(board.fen().split()[:4])
            assert not board.occupied & ~(board.kings | board.pawns)
            move = chess.Move.from_uci(row["move"])
            assert move in board.legal_moves
            board.push(move)
        assert len({(row["player"], row["result"]) for row in game}) == 1
        assert result(board, len(game)) == game[0]["result"]
    return len(games)


def result(board: Any, plies: int) -> str:
    if board.is_checkmate():
        return "0-1" if board.turn else "1-0"
    if board.is_stalemate() or board.is_insufficient_material() or board.is_repetition(3):
        return "1/2-1/2"
    assert board.occupied & ~(board.kings | board.pawns) or plies == 100
    return "*"


@stockfish
def test_recorded_games_can_be_replayed() -> None:
    seen: list[tuple[int, int]] = []
    table = play(QUICK, starts=4, seed=3, progress=lambda *step: seen.append(step))
    assert replay(table) == 8
    assert seen == [(game, 8) for game in range(1, 9)]
    assert table.schema.field("ply").type == pa.int16()
    assert table["mover_rating"].null_count == len(table)


@stockfish
def test_the_seed_decides_all_where_the_engine_has_no_chance_of_its_own() -> None:
    tables = [play(QUICK, starts=3, seed=seed, workers=workers) for seed, workers in ((5, 1), (5, 2), (6, 1))]
    assert tables[0].equals(tables[1])
    assert not tables[0].equals(tables[2])


@stockfish
def test_starting_positions_are_balanced_and_the_first_do_not_depend_on_how_many_follow() -> None:
    fens = starting_positions(12, seed=0)
    assert len(set(fens)) == 12
    assert np.abs(Judge(nodes=5_000).evaluations(fens)).max() <= 1.5
    for fen in fens:
        board = chess.Board(fen)
        assert not board.is_check()
        assert 2 <= len(board.pieces(chess.PAWN, chess.WHITE)) == len(board.pieces(chess.PAWN, chess.BLACK)) <= 5
    assert starting_positions(5, seed=0) == fens[:5]


@pytest.mark.parametrize(("name", "players"), [("strengths", STRENGTHS), ("twenty", TWENTY)])
def test_shipped_moves_are_legal_and_every_player_moved_in_every_position(
    name: str, players: tuple[Player, ...]
) -> None:
    rows = engine_moves(name).to_pylist()
    players = (*players, STRONGEST)
    assert list(dict.fromkeys(row["player"] for row in rows)) == [player.name for player in players]
    positions = {player.name: [row["fen"] for row in rows if row["player"] == player.name] for player in players}
    first = positions[players[0].name]
    assert len(set(first)) == len(first) >= 800
    assert all(fens == first for fens in positions.values())
    for row in rows[:: len(players)]:
        assert chess.Move.from_uci(row["move"]) in chess.Board(row["fen"]).legal_moves


@stockfish
def test_asked_players_answer_as_they_would_when_asked_alone() -> None:
    fens = starting_positions(4, seed=3)
    player = Player(name="nodes-200", thinking=Thinking(nodes=200))
    told: list[tuple[int, int]] = []
    together = answer([player, *QUICK], fens, progress=lambda done, total: told.append((done, total))).to_pylist()
    alone = answer([player], fens, workers=1).to_pylist()
    assert [row for row in together if row["player"] == player.name] == alone
    assert told[-1] == (len(together), len(together)) == (4 * (1 + len(QUICK)),) * 2


@stockfish
def test_the_strongest_shipped_player_loses_less_than_the_weakest() -> None:
    table = engine_moves("strengths")
    generator, judge = np.random.default_rng(0), Judge(nodes=5_000)
    means, errors = [], []
    for player in (STRENGTHS[0], STRENGTHS[-1]):
        rows = [row for row in table.to_pylist() if row["player"] == player.name]
        chosen = [rows[place] for place in generator.choice(len(rows), 300, replace=False)]
        capped = judge.losses([row["fen"] for row in chosen], [row["move"] for row in chosen]).capped
        means.append(capped.mean())
        errors.append(capped.std() / len(capped) ** 0.5)
    # Three standard errors: a false alarm once in a thousand were they equally strong, and they are much further apart.
    assert means[1] - means[0] > 3 * np.hypot(*errors)


def test_players_need_names_of_their_own_and_unknown_sets_are_refused() -> None:
    with refused("names-shared", SettingsError):
        play([QUICK[0], QUICK[0]], starts=1, seed=0)
    with refused("players-unknown", IleedError):
        engine_moves("forty")
