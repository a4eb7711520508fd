"""Gold players: who is gold, who is rated by whom, and what the page says of it."""

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import chess
import chess.pgn
import numpy as np
import pytest
from refusals import refused

from ileed import CategoricalMLP
from ileed.errors import SettingsError
from ileed_lab.chess import gold
from ileed_lab.chess.every_move import extract_moves, read_moves
from ileed_lab.chess.gold import BINS, LEARNED_BEFORE, METHOD, POINTS, ChessGold, GameFolds, RatedByGame
from ileed_lab.chess.gold_section import gold_section

GAMES, PLIES = 120, 24
SMALL = replace(METHOD, policy=CategoricalMLP(hidden=(8,)), steps=100, batch_size=256, held_out=0.0)
RATED = {"games": "kept", "bins": "rating"}


def favourite(board: chess.Board) -> chess.Move:
    """The move of the greatest piece to the farthest square of those that are legal: a rule that can be learned."""
    turned = 0 if board.turn else 56
    return max(
        board.legal_moves, key=lambda move: (board.piece_type_at(move.from_square), move.to_square ^ turned, move.uci())
    )


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Games of forty players; the greater the rating, the more of their moves follow a rule."""
    chance, folder, texts = random.Random(0), tmp_path_factory.mktemp("gold"), []
    for _ in range(GAMES):
        game, board = chess.pgn.Game(), chess.Board()
        players = chance.sample(range(40), 2)
        ratings = [1000 + 25 * player + chance.randrange(100) for player in players]
        for side, player, rating in zip(("White", "Black"), players, ratings, strict=True):
            game.headers[side], game.headers[f"{side}Elo"] = f"player {player}", str(rating)
        node: chess.pgn.GameNode = game
        for ply in range(PLIES):
            follows = chance.random() < (ratings[ply % 2] - 1000) / 1100
            node = node.add_variation(favourite(board) if follows else chance.choice(list(board.legal_moves)))
            board.push(node.move)
        texts.append(str(game))
    (folder / "games.pgn").write_text("\n\n".join(texts) + "\n")
    extract_moves(folder / "games.pgn", folder / "moves.parquet")
    return folder / "moves.parquet"


def test_six_bins_by_rating_hold_every_move_and_say_whose_players_are_gold_elsewhere(file: Path):
    data = ChessGold(file).demonstrations(RATED, [0])[0]
    table = read_moves(file).to_pylist()
    assert len(data) == len(table) == GAMES * PLIES
    assert len(data.names) == BINS
    assert min(data.steps_each) > len(data) / BINS / 2
    by_episode = {2 * row["game"] + row["ply"] % 2: (row["player"], row["rating"]) for row in table}
    bins = {episode: int(who) for episode, who in zip(data.source_episode, data.demonstrator, strict=True)}
    for lower in range(BINS - 1):
        top = max(by_episode[episode][1] for episode, own in bins.items() if own == lower)
        assert top <= min(by_episode[episode][1] for episode, own in bins.items() if own == lower + 1)
    gold_players = {by_episode[episode][0] for episode, own in bins.items() if own == BINS - 1}
    expected = [by_episode[episode][0] in gold_players for episode in data.source_episode.tolist()]
    assert data.skills[LEARNED_BEFORE].tolist() == expected
    assert 0 < sum(expected) < len(expected)


def test_shuffled_bins_are_as_large_and_games_for_development_are_a_third(file: Path):
    real, dealt = (ChessGold(file).demonstrations(RATED | {"bins": bins}, [0])[0] for bins in ("rating", "shuffled"))
    np.testing.assert_array_equal(real.observations, dealt.observations)
    assert Counter(real.episode_demonstrator.tolist()) == Counter(dealt.episode_demonstrator.tolist())
    assert (real.demonstrator != dealt.demonstrator).mean() > 0.5  # five in six, by chance
    part = ChessGold(file).demonstrations({"games": "development", "bins": "rating"}, [0])[0]
    games = np.unique(part.source_episode // 2)
    assert len(games) == GAMES / 3
    assert not gold.is_kept(np.arange(GAMES))[games].any()


class Recorded:
    """A method that remembers what it was fitted to."""

    nats_per_action = 0.0

    def __init__(self) -> None:
        self.learned: list[Any] = []
        self.told: list[Any] = []

    def fit(self, data: Any, *, gold: Any, **_: Any) -> "Recorded":
        self.learned.append(data)
        self.told.append(gold)
        return self


@pytest.mark.parametrize("learns_from", ["gold", "people", "told"])
def test_every_kept_game_is_rated_once_by_a_policy_that_has_not_seen_it(file: Path, monkeypatch, learns_from):
    data = ChessGold(file).demonstrations(RATED, [0])[0]
    rated: list[Any] = []

    def rate(fitted: Any, part: Any) -> tuple[np.ndarray, ...]:
        rated.append(part)
        return (np.zeros(1),) * 6

    monkeypatch.setattr(gold, "_rate", rate)
    method = Recorded()
    GameFolds(method, learns_from, "kept").fit(data, seed=0)  # type: ignore[arg-type]
    games = [np.unique(part.source_episode // 2) for part in rated]
    assert sorted(np.concatenate(games).tolist()) == np.flatnonzero(gold.is_kept(np.arange(GAMES))).tolist()
    assert sum(map(len, rated)) == len(np.concatenate(games)) * PLIES, "all moves of a game"
    for learned, own in zip(method.learned, games, strict=True):
        assert not set(np.unique(learned.source_episode // 2).tolist()) & set(own.tolist())
        if learns_from == "gold":
            assert set(learned.demonstrator.tolist()) == {BINS - 1}
        else:
            assert learned.episode_count < data.episode_count / BINS
    assert method.told == [[data.names[-1]] if learns_from == "told" else None] * len(rated)


def test_expertise_by_gold_players_rises_where_the_skill_does_and_not_where_bins_are_shuffled(file: Path):
    """One data set with fixed seeds; the slope over the true shares of moves that follow the rule is .13 a bin."""
    slopes = {}
    for bins in ("rating", "shuffled"):
        data = ChessGold(file).demonstrations(RATED | {"bins": bins}, [0])[0]
        found = ChessGold(file).measure({}, "gold", 0, GameFolds(SMALL, "gold", "kept").fit(data, seed=0, device="cpu"))
        every = found["all"]
        assert every["games"] == GAMES * 2 / 3
        assert sum(row["steps"] for row in every["bins"]) == every["games"] * PLIES
        slopes[bins] = every["slope"], *every["slope_interval"], every["slope_above_zero"]
    assert slopes["rating"][3] > 0.99
    assert slopes["rating"][1] > slopes["shuffled"][0]
    assert slopes["shuffled"][1] < 0 < slopes["shuffled"][2], "the control is flat, at an error rate of .05"


def rated_by_game(top: np.ndarray, *, games: int = 20) -> RatedByGame:
    """Curves whose peaks are known, and alike in all games; every other game is in the opening."""
    bins = np.repeat(np.arange(len(top)), games)
    game = np.tile(np.arange(games), len(top))
    return RatedByGame(
        bin=bins,
        game=game,
        opening=game % 2 == 0,
        learned_before=bins == BINS - 1,
        steps=np.full(len(bins), 3),
        curves=-((POINTS[None] - top[bins][:, None]) ** 2),
        nats_per_action=[1.0],
        seconds=0.0,
    )


def test_expertise_slope_and_shares_are_those_of_curves_whose_peaks_are_known():
    top = np.array([0.3, 0.4, 0.5, 0.6, 0.7, 0.65])
    found = rated_by_game(top).measured(0)
    every = found["all"]
    np.testing.assert_allclose([row["expertise"] for row in every["bins"]], top, atol=1e-9)
    assert all(row["standard_error"] < 1e-9 and row["steps"] == 60 for row in every["bins"])
    assert every["slope"] == pytest.approx(0.1), "the gold bin is left out of the slope"
    assert (every["rises"], every["rises_strictly"], every["gold_above_all"]) == (True, 1.0, 0.0)
    assert np.argmax(every["peak"]) == 4
    assert [row["steps"] for row in found["after the opening"]["bins"]] == [30] * BINS
    assert len(found["players never gold"]["bins"]) == BINS - 1
    assert found["players never gold"]["gold_above_all"] is None
    fallen = rated_by_game(top[[0, 2, 1, 3, 4, 5]]).measured(0)["all"]
    assert (fallen["slope_above_zero"], fallen["rises_strictly"]) == (1.0, 0.0)


class Told:
    """Records that hold given results."""

    def __init__(self, found: dict[tuple[str, str], Any]) -> None:
        self.found = found

    def trials(self, experiment: str, method: str, *, games: str, bins: str) -> dict[int, Any]:
        return {0: self.found[method, bins]} if games == "kept" and (method, bins) in self.found else {}


def section(found: dict[tuple[str, str], Any]) -> str:
    """Findings and details, one after the other."""
    findings, details = gold_section(Told(found))
    return "\n".join([*findings, *details])


def test_the_section_says_what_was_found_whichever_way_it_went():
    rising = rated_by_game(np.array([0.3, 0.4, 0.5, 0.6, 0.7, 0.8])).measured(0)
    falling = rated_by_game(np.array([0.7, 0.6, 0.5, 0.4, 0.3, 0.2])).measured(0)
    assert section({}) == ""
    text = section({("gold", "rating"): rising, ("people", "rating"): falling})
    assert "**rises with the rating**" in text
    assert "greatest in bin 1 of 6 in 100.0%" in text
    assert "The control" not in text, "it was not run"
    text = section({("gold", "rating"): falling, ("gold", "shuffled"): rising})
    assert "does not rise clearly" in text
    assert "shuffled bins is not flat" in text


def test_models_that_were_compared_are_shown_with_the_preferred_one():
    rising = rated_by_game(np.array([0.3, 0.4, 0.5, 0.6, 0.7, 0.8])).measured(0)
    row = {"nats_per_action": 2.0, "more_than_preferred": 0.0, "standard_error": 0.0, "expertise": [0.5] * BINS}
    names = ("UniformMixture()", "Boltzmann()")
    models = [row | {"model": name, "preferred": name == names[1]} for name in names]
    found = {"preferred": "Boltzmann()", "sentence": "Boltzmann() is preferred", "steps": 1000, "models": models}
    text = section({("gold", "rating"): rising, ("compare", "rating"): found})
    assert "`Boltzmann()` (preferred)" in text
    assert "(1,000 moves)" in text


def test_parts_without_moves_of_some_bin_are_left_out():
    """Short games have no moves after the opening."""
    rated = rated_by_game(np.array([0.3, 0.4, 0.5, 0.6, 0.7, 0.8]))
    found = replace(rated, opening=np.ones_like(rated.opening)).measured(0)
    assert "all" in found
    assert "after the opening" not in found
    assert "gold, after the opening" not in section({("gold", "rating"): found})


def test_no_file_is_refused_with_the_command_that_writes_one():
    with refused("data-missing", SettingsError):
        ChessGold().demonstrations(RATED, [0])
