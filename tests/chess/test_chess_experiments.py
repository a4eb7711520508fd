"""The experiments about chess: what each trial learns from, and what becomes of its results on the page."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from needs import stockfish
from refusals import refused

from ileed import CategoricalMLP
from ileed.errors import DemonstrationError, SettingsError
from ileed_lab.chess import board
from ileed_lab.chess.consulting import ENGINE, consult, people
from ileed_lab.chess.crossfitting import ChessCrossFitting
from ileed_lab.chess.experiment import LARGE, ChessEngines, ChessExpertise, ChessPolicy
from ileed_lab.chess.page import _ratio, chess_page, published_chess
from ileed_lab.chess.players import engine_moves
from ileed_lab.chess.positions import SCHEMA, write_positions
from ileed_lab.grid import cells
from ileed_lab.learners import Rated

GAMES = 40


@pytest.fixture(scope="module")
def table() -> pa.Table:
    """Forty games of two rated players each, five moves a player, with the engine's answers."""
    shipped, engine = people(engine_moves("strengths"))
    best = dict(zip(engine.column("fen").to_pylist(), engine.column("move").to_pylist(), strict=True))
    rows = shipped.slice(0, GAMES * 10).to_pylist()
    human = [
        row
        | {
            "game_id": f"game {number // 10}",
            "ply": number % 10,
            "player": f"player {number % 2} of {number // 10}",
            "mover_rating": 1000 + 20 * (number // 10) + number % 2,
        }
        for number, row in enumerate(rows)
    ]
    asked = [row | {"player": ENGINE, "mover_rating": None, "move": best[row["fen"]]} for row in human]
    return pa.Table.from_pylist(human + asked, schema=SCHEMA)


@pytest.fixture(scope="module")
def file(table: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("chess") / "consulted.parquet"
    write_positions(table, path)
    return path


def test_the_first_trial_has_every_move_once_and_the_engine_as_often_as_it_is_asked(file: Path):
    for setting in ChessExpertise(file).settings():
        data = ChessExpertise(file).demonstrations(setting, [0])[0]
        counts = dict(zip(data.names, data.steps_each.tolist(), strict=True))
        assert counts.pop(ENGINE, 0) == setting["engine"] * GAMES * 10
        assert list(counts.values()) == [GAMES * 2] * 5 or setting["bins"] == "shuffled"
        assert sum(counts.values()) == GAMES * 10


def test_other_trials_resample_whole_games_with_the_engines_moves(file: Path):
    one, other = ChessExpertise(file).demonstrations({"bins": "rating", "engine": 3}, [1, 2])
    for data in (one, other):
        counts = dict(zip(data.names, data.steps_each.tolist(), strict=True))
        assert counts[ENGINE] == 3 * GAMES * 10
        human = data.demonstrator != data.index_of(ENGINE)
        seen = Counter(map(bytes, data.observations[human]))
        answered = Counter(map(bytes, data.observations[~human]))
        assert answered == {place: 3 * times for place, times in seen.items()}
    assert not np.array_equal(one.observations, other.observations)


def test_cross_fitting_has_the_moves_of_people_alone_with_intervals_for_every_bin(file: Path):
    experiment = ChessCrossFitting(file)
    data = experiment.demonstrations({"bins": "rating"}, [0])[0]
    assert ENGINE not in data.names
    method = Rated(replace(LARGE, policy=CategoricalMLP(hidden=(4,)), steps=20), folds=2)
    measured = experiment.measure({"bins": "rating"}, "cross-fitted", 0, method.fit(data, seed=0, device="cpu"))
    assert [row["demonstrator"] for row in measured["bins"]] == sorted(data.names)
    assert all(row["low"] < row["expertise"] < row["high"] for row in measured["bins"])


def test_shuffled_bins_are_as_large_as_the_real_ones_and_leave_the_moves_alone(file: Path):
    real = ChessExpertise(file).demonstrations({"bins": "rating", "engine": 0}, [0])[0]
    dealt = ChessExpertise(file).demonstrations({"bins": "shuffled", "engine": 0}, [0])[0]
    assert dealt.names == real.names
    np.testing.assert_array_equal(dealt.observations, real.observations)
    np.testing.assert_array_equal(dealt.actions, real.actions)
    assert Counter(dealt.episode_demonstrator.tolist()) == Counter(real.episode_demonstrator.tolist())
    assert (dealt.demonstrator != real.demonstrator).mean() > 0.5  # four in five, by chance


def test_every_game_is_judged_in_one_trial_and_learned_from_in_all_others(file: Path):
    experiment = ChessPolicy(file)
    learned = experiment.demonstrations({"engine": 0}, range(experiment.trials))
    # Mirror images double the moves, and each game is left out once.
    assert sum(len(data) for data in learned) == 2 * (experiment.trials - 1) * GAMES * 10
    assert all(data.observations.shape[1] == 939 for data in learned)


def test_engines_stand_in_the_same_positions_and_the_strongest_answers_for_each_of_them():
    for setting in ChessEngines().settings():
        data = ChessEngines().demonstrations(setting, [0])[0]
        rivals = [name for name in data.names if name != ENGINE]
        assert len(rivals) == (5 if setting["players"] == "strengths" else 20)
        counts = dict(zip(data.names, data.steps_each.tolist(), strict=True))
        assert len({counts[name] for name in rivals}) == 1
        assert counts.get(ENGINE, 0) == setting["engine"] * sum(counts[name] for name in rivals)


def test_a_file_without_the_engine_and_no_file_at_all_are_refused_in_a_sentence(table: pa.Table, tmp_path: Path):
    humans, _ = people(table)
    write_positions(humans, tmp_path / "positions.parquet")
    for data, words in ((tmp_path / "positions.parquet", "engine-moves-missing"), (None, "data-missing")):
        with refused(words, SettingsError):
            ChessExpertise(data).demonstrations({"bins": "rating", "engine": 0}, [0])


@stockfish
def test_a_consulted_table_keeps_what_people_did_and_adds_a_legal_move_for_each(table: pa.Table):
    humans = people(table)[0].slice(0, 30)
    heard: list[tuple[int, int]] = []
    both = consult(humans, nodes=200, progress=lambda done, total: heard.append((done, total)))
    kept, engine = people(both)
    assert kept.equals(humans)
    for name in ("game_id", "ply", "fen"):
        assert engine.column(name).equals(humans.column(name))
    assert engine.column("mover_rating").null_count == len(engine)
    board.actions_of(engine.column("fen").to_pylist(), engine.column("move").to_pylist())  # refuses illegal ones
    assert heard[-1][0] == heard[-1][1] == len(pc.unique(humans.column("fen")))
    with pytest.raises(DemonstrationError, match="already"):
        consult(both)


def test_an_interval_over_games_is_that_of_a_mean_where_games_are_equally_long():
    losses = np.random.default_rng(0).normal(-1, 2, size=400)
    found = _ratio(np.full(400, 7.0), 7.0 * losses)
    assert found.mean == pytest.approx(losses.mean())
    reach = 1.96 * losses.std() / 20
    assert found.low == pytest.approx(losses.mean() - reach, abs=0.15 * reach)
    assert found.high == pytest.approx(losses.mean() + reach, abs=0.15 * reach)


def test_the_page_says_what_was_not_run_and_what_was_published(tmp_path: Path):
    made = chess_page(tmp_path)
    text = made.text + made.details_text
    assert text.count("Not run.") == 4
    assert published_chess()["expertise"] == sorted(published_chess()["expertise"])


def test_settings_choose_cells_by_any_of_their_values():
    chosen = cells(ChessEngines(), settings=["twenty"], methods=["ileed"])
    assert [cell.slug for cell in chosen] == ["twenty_0_ileed", "twenty_10_ileed"]
