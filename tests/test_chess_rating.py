"""Rating from play: what moves are worth, who comes out ahead, and the pictures of it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from needs import stockfish
from refusals import refused
from scipy.optimize import minimize_scalar
from scipy.stats import spearmanr

from ileed.cli import run
from ileed.errors import DemonstrationError, SettingsError
from ileed_lab.chess import board
from ileed_lab.chess.consulting import ENGINE, people
from ileed_lab.chess.experiment import PAPER
from ileed_lab.chess.figures import Board, Differences, calibration, draw_boards, greatest_differences
from ileed_lab.chess.players import STRENGTHS, engine_moves
from ileed_lab.chess.positions import read_positions, write_positions
from ileed_lab.chess.rating import ChessRating, _correlation, expected_points, rate_players, read_games
from ileed_lab.grid import Cell

chess = pytest.importorskip("chess", reason="the package chess is absent: pip install 'ileed[chess]'")

SHARED = Path(__file__).parents[2] / "shared" / "data" / "chess" / "kp_kaggle_cc0.csv.gz"


@cache
def rated_engines(positions: int) -> pa.Table:
    """Engines of the shipped set, each as strong as it is rated, and the strongest consulted: in some positions."""
    table = engine_moves("strengths")
    table = table.filter(pc.is_in(table.column("game_id"), pa.array([f"position/{k}" for k in range(positions)])))
    usual = {player.name: 1000 + 300 * place for place, player in enumerate(STRENGTHS)}
    form = {f"position/{k}": 10 * (k % 3 - 1) for k in range(positions)}
    rows = zip(table.column("player").to_pylist(), table.column("game_id").to_pylist(), strict=True)
    ratings = pa.array([usual[name] + form[game] if name in usual else None for name, game in rows], pa.int16())
    return table.set_column(table.schema.get_field_index("mover_rating"), "mover_rating", ratings)


@cache
def measured_agreement(folder: Path) -> dict[str, Any]:
    write_positions(rated_engines(300), folder / "engines.parquet")
    return ChessRating(data=folder / "engines.parquet").measure({"people": "all"}, "agreement", 0, None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("rating")


# --- what moves are worth


@stockfish
def test_a_mate_is_worth_a_win_and_what_leaves_a_draw_is_worth_half():
    fen = "7k/5P2/6K1/8/8/8/8/8 w - -"
    worth = expected_points([fen], workers=1)[0]
    [queen, rook, bishop, knight, stalemate] = board.actions_of([fen] * 5, ["f7f8q", "f7f8r", "f7f8b", "f7f8n", "g6h6"])
    assert min(worth[queen], worth[rook]) > 0.999
    np.testing.assert_allclose(worth[[bishop, knight, stalemate]], 0.5, atol=1e-3)
    assert (worth[~board.encode([fen]).legal[0]] == 0).all()


@stockfish
def test_every_legal_move_is_worth_something_in_whatever_order_positions_come():
    fens = rated_engines(12).column("fen").to_pylist()
    worth = expected_points(fens, nodes=500)
    assert ((worth > 0) == board.encode(fens).legal).all()
    np.testing.assert_array_equal(expected_points(fens[::-1], nodes=500, workers=1), worth[::-1])


# --- who is expert


@stockfish
def test_engines_come_out_in_the_order_of_their_strength():
    """All in the same positions, so that chance in them is shared; neighbours at the top differ by less than that."""
    found = {each.player: each for each in rate_players(rated_engines(150))}
    assert ENGINE not in found
    order = [found[player.name].expertise for player in STRENGTHS]
    assert order[0] < order[1] < order[2] < min(order[3:])
    weakest, strongest = found[STRENGTHS[0].name], found[STRENGTHS[-1].name]
    assert weakest.low < weakest.expertise < weakest.high < strongest.low
    assert (weakest.rating, weakest.moves, weakest.games) == (1000, 150, 150)


@stockfish
def test_a_player_has_the_same_rating_alone_and_among_others():
    table = rated_engines(25)
    among = {each.player: each for each in rate_players(table, nodes=500)}
    [alone] = rate_players(table, nodes=500, players=["skill-2"])
    assert vars(alone) == pytest.approx(vars(among["skill-2"]), abs=1e-6)  # single precision, summed in another order


def test_a_player_who_cannot_be_rated_is_refused_with_the_reason():
    table = rated_engines(5)
    with refused("player-unknown", DemonstrationError):
        rate_players(table, players=["nobody"])
    with refused("moves-too-few", DemonstrationError):
        rate_players(table)
    with refused("moves-missing", DemonstrationError):
        rate_players(table.slice(0, 0))


# --- the experiment


def test_agreement_is_rated_as_the_likelihood_has_it(folder):
    """The oracle: the likelihood of agreeing or not beyond chance, made greatest by a search of its own."""
    table, engine = people(rated_engines(300))
    best = dict(zip(engine.column("fen").to_pylist(), engine.column("move").to_pylist(), strict=True))
    choices = {fen: int(legal.sum()) for fen, legal in zip(best, board.encode(list(best)).legal, strict=True)}
    rows = measured_agreement(folder)["players"]
    assert [row["rating"] for row in rows] == [1000, 1300, 1600, 1900, 2200]
    for row, player in zip(rows, STRENGTHS, strict=True):
        own = [move for move in table.to_pylist() if move["player"] == player.name]
        agrees = np.array([move["move"] == best[move["fen"]] for move in own])
        count = np.array([choices[move["fen"]] for move in own])
        found = minimize_scalar(
            lambda rho, agrees=agrees, count=count: -np.log(rho * agrees + (1 - rho) / count).sum(),
            bounds=(0, 1 - 1e-9),
            method="bounded",
            options={"xatol": 1e-6},
        )
        assert row["expertise"] == pytest.approx(found.x, abs=1e-3)  # the grid's own step
        assert row["low"] < row["expertise"] < row["high"]


def test_what_is_measured_does_not_depend_on_the_order_of_rows(folder):
    table = rated_engines(300)
    write_positions(table.take(np.random.default_rng(0).permutation(len(table))), folder / "shuffled.parquet")
    again = ChessRating(data=folder / "shuffled.parquet").measure({"people": "all"}, "agreement", 0, None)
    for kind in ("players", "bins"):
        for row, same in zip(measured_agreement(folder)[kind], again[kind], strict=True):
            assert (row["rating"], row["moves"]) == (same["rating"], same["moves"])
            assert row["expertise"] == pytest.approx(same["expertise"], abs=1e-9)


def test_the_rank_correlation_is_spearmans_also_with_ties():
    random = np.random.default_rng(1)
    pairs = random.integers(0, 6, size=(40, 2)).astype(float)
    pairs[:, 1] += pairs[:, 0]
    found = _correlation(pairs)
    assert found["rank_correlation"] == pytest.approx(spearmanr(*pairs.T).statistic)
    assert found["low"] < found["rank_correlation"] < found["high"]


def test_no_name_of_a_player_is_recorded(folder):
    told = json.dumps(measured_agreement(folder))
    assert not any(player.name in told for player in STRENGTHS)


def test_a_table_that_cannot_be_rated_is_refused(folder):
    with refused("data-missing", SettingsError):
        ChessRating().measure({"people": "all"}, "agreement", 0, None)
    humans, engine = people(rated_engines(30))
    for asked, words in ((0, "engine-moves-missing"), (10, "engine-moves-missing")):
        file = folder / f"asked-{asked}.parquet"
        write_positions(pa.concat_tables([humans, engine.slice(0, asked)]), file)
        with refused(words, SettingsError):
            ChessRating(data=file).measure({"people": "all"}, "agreement", 0, None)


@stockfish
@pytest.mark.skipif(not SHARED.exists(), reason="the shared chess data are not here")
def test_the_strongest_of_real_players_are_more_expert_than_the_weakest():
    """Some 300 moves at either end of the ratings: always the same moves, and an engine that always says the same."""
    table = read_positions(SHARED)
    table = table.take(pc.sort_indices(table, sort_keys=[("mover_rating", "ascending"), ("game_id", "ascending")]))
    ends = {"weak": table.slice(0, 300), "strong": table.slice(len(table) - 300)}
    renamed = [
        rows.set_column(rows.schema.get_field_index("player"), "player", pa.array([name] * 300))
        for name, rows in ends.items()
    ]
    strong, weak = rate_players(pa.concat_tables(renamed), nodes=2_000)
    assert (strong.player, weak.player) == ("strong", "weak")
    assert strong.expertise > weak.high


# --- the command


GAME = """[White "Ann"]
[Black "Bob"]
[WhiteElo "1500"]
[BlackElo "1400"]
[Result "*"]
[SetUp "1"]
[FEN "4k3/4p3/8/8/8/8/4P3/4K3 w - - 0 1"]

1. Kd2 Kd7 2. Kd3 Kd6 3. Kd4 e5+ 4. Ke4 Ke6 *
"""


@stockfish
def test_the_command_rates_games_as_they_come(tmp_path, capsys):
    games = tmp_path / "games.pgn"
    games.write_text(GAME)
    assert len(read_games(games)) == 8
    assert run(["chess", "rate", str(games), "--least", "4", "--nodes", "300", "--workers", "1", "--json"]) == 0
    found = {each["player"]: each for each in json.loads(capsys.readouterr().out)["players"]}
    assert {name: (each["rating"], each["moves"], each["games"]) for name, each in found.items()} == {
        "Ann": (1500, 4, 1),
        "Bob": (1400, 4, 1),
    }
    assert run(["chess", "rate", str(games), "--player", "Ann", "--least", "4", "--nodes", "300"]) == 0
    told = capsys.readouterr().out
    assert "Ann" in told
    assert "Bob" not in told
    assert "1500" in told


def test_the_command_says_who_has_too_few_moves(tmp_path, capsys):
    write_positions(rated_engines(3), tmp_path / "few.parquet")
    assert run(["chess", "rate", str(tmp_path / "few.parquet")]) == 2
    assert "the most is 3" in capsys.readouterr().err


# --- the pictures


def test_the_calibration_shows_every_group_and_player(folder):
    pytest.importorskip("vl_convert", reason="drawing needs vl-convert-python: pip install 'ileed[report]'")
    experiment = ChessRating(data=folder / "engines.parquet")
    measured = measured_agreement(folder)
    Cell(experiment, {"people": "all"}, "worth").write(folder / "results", [{"trial": 0} | measured], [{}])
    drawn = calibration(folder / "results").decode()
    labels = re.findall(r'aria-label="((?:player|decile)[^"]*)"', drawn)
    assert len(labels) == len(measured["players"]) + len(measured["deciles"])
    assert all(any(f"rated {row['rating']:.0f}" in label for label in labels) for row in measured["players"])


def test_a_calibration_that_was_not_measured_is_refused(tmp_path):
    with refused("results-missing", SettingsError):
        calibration(tmp_path)


def test_boards_are_drawn_with_all_that_stands_on_them():
    many, few = "4k3/4p3/8/8/8/8/PP2P3/4K3 w - -", "8/8/4k3/8/p7/8/8/K7 b - -"
    boards = (Board(many, "e2e4", 0.25, 0.75), Board(few, "a4a3", 0, 1))
    root = ElementTree.fromstring(draw_boards(Differences(boards, 7, 0.125)))
    assert "Mean over 7 fits" in " ".join(root.itertext())
    groups = [each for each in root if each.tag.endswith("}g")]
    for group, each in zip(groups, boards, strict=True):
        pieces = [path for path in group if "scale" in path.get("transform", "")]
        assert len(pieces) == sum(letter.isalpha() for letter in each.fen.split()[0])
        assert f"expertise {each.low:.2f}" in " ".join(group.itertext())


@stockfish
def test_positions_of_greatest_difference_are_of_different_games_with_moves_of_the_engine(folder):
    table = rated_engines(300)
    write_positions(table, folder / "engines.parquet")
    greatest = greatest_differences(folder / "engines.parquet", method=replace(PAPER, steps=30), fits=2)
    assert -1 <= greatest.agreement < 1
    found = greatest.boards
    _, engine = people(table)
    best = dict(zip(engine.column("fen").to_pylist(), engine.column("move").to_pylist(), strict=True))
    assert len({each.fen for each in found}) == 4
    assert all(each.move == best[each.fen] for each in found)
    differences = [each.high - each.low for each in found]
    assert differences == sorted(differences, reverse=True)
    assert all(chess.Board(each.fen).legal_moves.count() > 1 for each in found)
