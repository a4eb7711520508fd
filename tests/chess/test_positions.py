"""The table of positions: read from either kind of file, divided by rating, and made into demonstrations."""

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from refusals import refused

from ileed.errors import DemonstrationError
from ileed_lab.chess import board
from ileed_lab.chess.positions import (
    SCHEMA,
    by_player,
    demonstrations,
    rating_bins,
    read_positions,
    with_king_centred_planes,
    with_mirror_images,
)

SHARED = Path(__file__).parents[3] / "shared" / "data" / "chess" / "kp_kaggle_cc0.csv.gz"
WHITE, BLACK = "4k3/4p3/8/8/8/8/4P3/4K3 w - -", "4k3/4p3/8/8/8/4P3/8/4K3 b - -"


def table(*rows):
    """Rows of (game, ply, fen, move, rating, player); what else there is does not matter here."""
    columns = zip(*rows, strict=True)
    names = ("game_id", "ply", "fen", "move", "mover_rating", "player")
    found = dict(zip(names, map(list, columns), strict=True)) | {"result": ["1-0"] * len(rows)}
    empty = [None] * len(rows)
    return pa.table({field.name: found.get(field.name, empty) for field in SCHEMA}, schema=SCHEMA)


GAMES = table(
    ("one", 80, WHITE, "e2e3", 1500, "ann"),
    ("one", 81, BLACK, "e7e5", 1400, "bob"),
    ("one", 82, WHITE, "e1d2", 1500, "ann"),
    ("two", 60, WHITE, "e2e4", 1410, "bob"),
)


def test_an_episode_is_what_one_player_did_in_one_game_in_order_of_time():
    shuffled = GAMES.take([2, 3, 1, 0])
    data = demonstrations(shuffled, shuffled.column("player").to_pylist())
    assert data.names == ("ann", "bob")
    done = [(int(episode), data.names[who], board.ACTIONS[action]) for episode, who, action in
            zip(data.episode, data.demonstrator, data.actions, strict=True)]  # fmt: skip
    assert done == [(0, "ann", "e2e3"), (0, "ann", "king NW"), (1, "bob", "e2e4"), (2, "bob", "e2e4")]
    assert data.action_count == board.ACTION_COUNT
    assert data.legal is not None
    np.testing.assert_array_equal(data.legal, board.encode([WHITE, WHITE, WHITE, BLACK]).legal)


def test_names_stand_in_the_order_that_was_asked_for():
    data = demonstrations(GAMES, ["low", "high", "low", "high"], order=["high", "nobody", "low"])
    assert data.names == ("high", "nobody", "low")
    assert data.steps_each.tolist() == [2, 0, 2]


def test_labels_that_do_not_fit_the_table_are_refused():
    with refused("demonstrators-count", DemonstrationError):
        demonstrations(GAMES, ["a", "b", "c"])
    with refused("moves-missing", DemonstrationError):
        demonstrations(GAMES.slice(0, 0), [])
    with pytest.raises(DemonstrationError, match="two demonstrators"):
        demonstrations(GAMES, ["a", "b", "c", "b"])


def test_what_is_written_is_read(tmp_path):
    pq.write_table(GAMES, tmp_path / "games.parquet")
    assert read_positions(tmp_path / "games.parquet").equals(GAMES)


def test_a_table_of_commas_is_read_under_either_names(tmp_path):
    lines = [
        "game_id,ply,fen,move_uci,mover_rating,opp_rating,player,time_control,date,result,remark",
        f"1e5,80,{WHITE},e2e3,1500,,007,10+0,2017.08.22,1-0,x",
    ]
    (tmp_path / "games.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    (row,) = read_positions(tmp_path / "games.csv.gz").to_pylist()
    assert row == {
        **{"game_id": "1e5", "ply": 80, "fen": WHITE, "move": "e2e3", "mover_rating": 1500, "opponent_rating": None},
        **{"player": "007", "clock": None, "time_control": "10+0", "date": "2017.08.22", "result": "1-0"},
    }


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ("game_id,ply,fen,player\na,1,b,c", "column-missing"),
        ("game_id,ply,fen,move,player\na,many,b,c,d", "column-type"),
        ("game_id,ply,fen,move,player\na,1,b,,d", "column-incomplete"),
        ("", "positions-unreadable"),
    ],
)
def test_a_file_that_is_no_table_of_positions_is_refused_in_one_sentence(tmp_path, lines, code):
    (tmp_path / "games.csv").write_text(lines)
    with refused(code, DemonstrationError) as error:
        read_positions(tmp_path / "games.csv")
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_refused_too(tmp_path):
    with refused("positions-unreadable", DemonstrationError):
        read_positions(tmp_path / "games.parquet")


def rated(ratings):
    return table(*(("game", ply, WHITE, "e2e3", rating, "ann") for ply, rating in enumerate(ratings)))


@given(st.lists(st.integers(600, 2900), min_size=10, max_size=60, unique=True), st.integers(2, 5))
def test_bins_are_even_where_ratings_differ_and_rise_with_them(ratings, bins):
    labels = rating_bins(rated(ratings), bins=bins)
    names = sorted(set(labels))
    counts = [labels.count(name) for name in names]
    assert len(names) == bins
    assert max(counts) - min(counts) <= 1
    by_rating = [label for _, label in sorted(zip(ratings, labels, strict=True))]
    assert by_rating == sorted(by_rating)


@given(st.lists(st.sampled_from([1000, 1200, 1400, 1600, 1800, 2000]), min_size=8, max_size=40))
def test_equal_ratings_stay_together(ratings):
    try:
        labels = rating_bins(rated(ratings), bins=3)
    except DemonstrationError:  # too few distinct ratings for three bins
        reject()
    assert len(set(zip(ratings, labels, strict=True))) == len(set(ratings))


def test_a_label_tells_the_ratings_that_are_in_it():
    assert rating_bins(rated([1000, 1100, 1200, 1300]), bins=2) == ["1: 1000-1100"] * 2 + ["2: 1200-1300"] * 2


def test_what_cannot_be_divided_is_refused():
    with refused("ratings-missing", DemonstrationError):
        rating_bins(rated([1000, None]))
    with refused("bins-invalid", DemonstrationError):
        rating_bins(rated([1000, 1100]), bins=1)
    with refused("bin-empty", DemonstrationError):
        rating_bins(rated([1000, 1000, 1000]), bins=2)
    with refused("moves-missing", DemonstrationError):
        rating_bins(GAMES.slice(0, 0))


def test_players_with_enough_moves_are_kept():
    assert set(by_player(GAMES, least=2).column("player").to_pylist()) == {"ann", "bob"}
    some = by_player(GAMES.slice(0, 3), least=2)
    assert some.column("player").to_pylist() == ["ann", "ann"]
    with refused("moves-too-few", DemonstrationError):
        by_player(GAMES, least=9)
    with refused("least-invalid", DemonstrationError):
        by_player(GAMES, least=0)


def test_a_mirror_image_lies_in_the_episode_of_what_it_mirrors():
    data = demonstrations(GAMES, GAMES.column("player").to_pylist())
    both = with_mirror_images(data)
    assert len(both) == 2 * len(data)
    assert both.episode_demonstrator.tolist() == data.episode_demonstrator.tolist()
    first = both.select(both.episode == 0)
    assert [board.ACTIONS[action] for action in first.actions] == ["e2e3", "king NW", "d2d3", "king NE"]
    assert with_mirror_images(both).collapsed().count.sum() == 4 * len(data)
    assert len(with_mirror_images(both).collapsed().count) == len(both.collapsed().count)


def test_more_is_seen_and_nothing_else_changed_around_the_king():
    data = demonstrations(GAMES, GAMES.column("player").to_pylist())
    around = with_king_centred_planes(data)
    np.testing.assert_array_equal(around.observations, board.with_king_centred_planes(data.observations))
    assert replace(around, observations=data.observations).equals(data)
    with refused("observations-shape", DemonstrationError):
        with_mirror_images(around)


@pytest.mark.skipif(not SHARED.exists(), reason="the shared chess data are not here")
def test_the_real_games_become_demonstrations():
    games = read_positions(SHARED)
    labels = rating_bins(games)
    data = demonstrations(games, labels)
    assert len(data) == 10_934
    assert len(data.names) == 5
    assert data.steps_each.max() - data.steps_each.min() < 0.03 * len(data) / 5
    assert data.episode_count == len(
        set(zip(games.column("game_id").to_pylist(), games.column("player").to_pylist(), strict=True))
    )
    assert 7 < data.legal.sum(1).mean() < 8
