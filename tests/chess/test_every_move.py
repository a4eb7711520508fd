"""Every move of games: python-chess sees the same pieces, rights, moves and choices from the mover's side."""

import gzip
import io

import chess
import chess.pgn
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from test_extraction import BAD, SOUND, damage, games

from ileed import cli
from ileed.errors import IleedError
from ileed_lab.chess import every_move, sources
from ileed_lab.chess.every_move import ACTION_COUNT, FEATURES, demonstrations, extract_moves, read_moves

RATED = '[White "ann"]\n[Black "bob"]\n[WhiteElo "1500"]\n[BlackElo "1600"]\n'


def action_of(board: chess.Board, move: chess.Move) -> int:
    """A kind of piece and its target, by python-chess, for a board that is seen from the mover's side."""
    return (board.piece_type_at(move.from_square) - 1) * 64 + move.to_square


def seen(text: str) -> list[tuple[str, int, np.ndarray, set[int], int]]:
    """Player, rating, observation, legal actions and action of every move of a rated player, by python-chess."""
    rows, handle = [], io.StringIO(text)
    while (game := chess.pgn.read_game(handle)) is not None:
        position, last = game.board(), chess.SquareSet()
        for move in game.mainline_moves():
            side, turned = ("White", 0) if position.turn else ("Black", 56)
            if (rating := game.headers.get(f"{side}Elo", "?")) != "?":
                board = position if position.turn else position.mirror()
                planes = [board.pieces(kind, own) for own in (True, False) for kind in chess.PIECE_TYPES]
                planes.append(last if position.turn else last.mirror())
                squares = np.frombuffer(b"".join(int(plane).to_bytes(8, "little") for plane in planes), dtype=np.uint8)
                rights = [
                    asked(own)
                    for own in (True, False)
                    for asked in (board.has_kingside_castling_rights, board.has_queenside_castling_rights)
                ]
                observation = np.concatenate([np.unpackbits(squares, bitorder="little"), rights])
                legal = {action_of(board, each) for each in board.legal_moves}
                action = (board.piece_type_at(move.from_square ^ turned) - 1) * 64 + (move.to_square ^ turned)
                rows.append((game.headers[side], int(rating), observation, legal, action))
            last = chess.SquareSet([move.to_square])
            position.push(move)
    return rows


@settings(max_examples=15)
@given(st.integers(0, 2**32))
def test_python_chess_sees_the_same_of_every_move(tmp_path_factory, seed):
    folder = tmp_path_factory.getbasetemp()
    text = "\n\n".join([*games(2, seed), f"{RATED}\n1. e4 d5 2. exd5 *"]) + "\n"
    (folder / "every.pgn").write_text(text)
    found = extract_moves(folder / "every.pgn", folder / "every.parquet")
    table, expected = read_moves(folder / "every.parquet"), seen(text)
    assert (found.games, found.positions, found.damaged) == (3, len(expected), {})
    assert table.column("player").to_pylist() == [row[0] for row in expected]
    assert table.column("rating").to_pylist() == [row[1] for row in expected]
    data = demonstrations(table, ["all"] * len(table), order=["all"])
    # an episode is the moves of one player in one game; the table has both players by turns
    game, ply = (table.column(name).to_numpy().astype(np.int64) for name in ("game", "ply"))
    order = np.lexsort((ply, 2 * game + ply % 2))
    assert data.observations.shape == (len(expected), FEATURES)
    for row, source in enumerate(order):
        _, _, observation, legal, action = expected[source]
        np.testing.assert_array_equal(data.observations[row], observation)
        assert set(np.flatnonzero(data.legal[row])) == legal
        assert data.actions[row] == action
    assert data.episode_count == len(np.unique(2 * game + ply % 2))


def test_the_size_of_batches_and_of_chunks_changes_nothing(tmp_path, monkeypatch):
    (tmp_path / "games.pgn.gz").write_bytes(gzip.compress(("\n\n".join(games(30, seed=3)) + "\n").encode()))
    heard: list[tuple[int, int]] = []
    whole = extract_moves(tmp_path / "games.pgn.gz", tmp_path / "whole.parquet")
    monkeypatch.setattr(sources, "CHUNK_BYTES", 3000)
    monkeypatch.setattr(every_move, "_GAMES_AT_A_TIME", 2)
    parts = extract_moves(
        tmp_path / "games.pgn.gz", tmp_path / "parts.parquet", progress=lambda *each: heard.append(each)
    )
    assert whole == parts
    assert read_moves(tmp_path / "whole.parquet").equals(read_moves(tmp_path / "parts.parquet"))
    size = (tmp_path / "games.pgn.gz").stat().st_size
    assert heard == sorted(heard)
    assert heard[-1] == (size, size)


def test_games_that_cannot_be_read_or_are_not_rated_are_left_out_whole_and_counted(tmp_path):
    texts = [
        f"{RATED}\n1. e4 e5 *",
        f"{RATED}\n1. e4 e5 2. Ke3 *",  # an illegal move
        f'[Event "Casual Blitz game"]\n{RATED}\n1. e4 *',
        f'[Variant "Atomic"]\n{RATED}\n1. e4 *',
        f"{SOUND}",  # no ratings
        RATED.replace("1600", "?") + "\n1. d4 d5 *",
    ]
    (tmp_path / "games.pgn").write_text("\n\n".join(texts))
    found = extract_moves(tmp_path / "games.pgn", tmp_path / "moves.parquet")
    assert (found.games, found.kept, found.positions) == (6, 2, 3)
    assert found.damaged == {"an illegal move": 1}
    assert found.left_out == {"not rated": 1, "not standard chess": 1}
    assert read_moves(tmp_path / "moves.parquet").column("player").to_pylist() == ["ann", "bob", "ann"]


@settings(max_examples=20)
@given(damage())
def test_damage_never_crashes_and_gives_legal_moves_or_one_sentence(tmp_path_factory, texts):
    folder = tmp_path_factory.getbasetemp()
    (folder / "damaged.pgn").write_bytes(texts[1])
    try:
        found = extract_moves(folder / "damaged.pgn", folder / "damaged.parquet")
    except IleedError as refused:
        found, said = None, str(refused)
    if found is None:
        assert "has no move of a rated player" in said or "is empty" in said
        return
    table = read_moves(folder / "damaged.parquet")
    assert len(table) == found.positions
    data = demonstrations(table, ["all"] * len(table), order=["all"])
    assert data.legal[np.arange(len(data)), data.actions].all()
    assert data.action_count == ACTION_COUNT


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_cannot_be_a_source_is_refused_in_one_sentence(tmp_path, capsys, name):
    path, content, _ = BAD[name]
    if content is not None:
        (tmp_path / path).write_bytes(content)
    command = ["chess", "extract", str(tmp_path / path), "--every-move", "--out", str(tmp_path / "moves.parquet")]
    assert cli.run(command) == 2
    said = capsys.readouterr().err
    assert said.startswith("ileed: ")
    assert "Traceback" not in said
    assert not (tmp_path / "moves.parquet").exists()


def test_the_command_says_what_it_wrote_and_refuses_what_it_cannot_do(tmp_path, capsys):
    (tmp_path / "games.pgn").write_text(f"{RATED}\n1. e4 e5 *\n")
    (tmp_path / "unrated.pgn").write_text(SOUND)
    games, out = str(tmp_path / "games.pgn"), ["--every-move", "--out", str(tmp_path / "moves.parquet")]
    assert cli.run(["chess", "extract", games, *out]) == 0
    assert "wrote 2 moves of 1 games" in capsys.readouterr().out
    for wrong, words in (
        ([games, games], "takes one file"),
        ([games, "--resume"], "no --resume"),
        ([str(tmp_path / "unrated.pgn")], "has no move of a rated player (1 games, 0 of them damaged)"),
    ):
        assert cli.run(["chess", "extract", *wrong, *out]) == 2
        assert words in " ".join(capsys.readouterr().err.split())


def test_a_table_of_other_columns_or_none_at_all_is_refused(tmp_path):
    (tmp_path / "text.parquet").write_text("no table")
    pq.write_table(pa.table({"game": [1]}), tmp_path / "other.parquet")
    for name, code in (
        ("text", "moves-not-a-table"),
        ("other", "moves-columns"),
        ("absent", "moves-not-a-table"),
    ):
        with refused(code, IleedError):
            read_moves(tmp_path / f"{name}.parquet")
