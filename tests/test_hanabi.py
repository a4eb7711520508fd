"""Games of Hanabi: what is on the table and what is known before each move, by hand; and the page about people."""

import io
import lzma
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest

from ileed import DemonstrationError, SettingsError
from ileed_lab.grid import cells
from ileed_lab.people import measures
from ileed_lab.people.hanabi.experiment import CAP, Hanabi, demonstrations
from ileed_lab.people.hanabi.games import Game, first_games, read_games
from ileed_lab.people.hanabi.page import hanabi_page
from ileed_lab.people.hanabi.playing import Move, positions
from ileed_lab.people.hanabi.views import ACTIONS, FEATURES, view
from ileed_lab.people.learners import Agreements
from ileed_lab.people.measures import AgreementIndex, Outcomes, correlations

REAL = Path(__file__).parents[2] / "shared" / "data" / "hanabi" / "hanabi.tar.xz"
real = pytest.mark.skipif(
    not REAL.exists(), reason="the games are not here: https://github.com/yawgmoth/HanabiData as hanabi.tar.xz"
)

GREEN, YELLOW, WHITE, BLUE, RED = range(5)
# Player 0 holds green 1, green 1, white 3, blue 4, red 5; player 1 yellow 1, yellow 2, white 1, red 1, red 1.
DECK = (
    *((GREEN, 1), (GREEN, 1), (WHITE, 3), (BLUE, 4), (RED, 5)),
    *((YELLOW, 1), (YELLOW, 2), (WHITE, 1), (RED, 1), (RED, 1)),
    *((BLUE, 5), (GREEN, 2), (BLUE, 1)),
)
MOVES = (
    Move(0, "rank", 1),  # touches all but yellow 2
    Move(1, "play", 0),  # yellow 1, draws blue 5
    Move(0, "colour", RED),
    Move(1, "play", 3),  # the second red 1 of the two: played
    Move(0, "discard", 2),  # white 3
    Move(1, "play", 2),  # red 1 again: fails
)


def features(number: int) -> dict[str, float]:
    seen = view(*list(positions(DECK, MOVES))[number])
    return dict(zip(FEATURES, seen.observation.tolist(), strict=True))


def test_the_table_follows_the_rules():
    table = [position for position, _ in positions(DECK, [*MOVES, Move(0, "rank", 5)])]
    assert [each.clues for each in table] == [8, 7, 7, 6, 6, 7, 7]
    assert [each.lives for each in table] == [3, 3, 3, 3, 3, 3, 2]
    assert table[-1].fireworks == (0, 1, 0, 0, 1)
    assert [held.card for held in table[-1].hands[1]] == [(YELLOW, 2), (WHITE, 1), (BLUE, 5), (GREEN, 2)]
    assert [each.deck for each in table] == [3, 3, 2, 2, 1, 0, 0]
    assert table[-1].discarded.sum() == 2
    assert table[-1].discarded[WHITE, 2] == table[-1].discarded[RED, 0] == 1


def test_a_clue_says_something_of_every_card_of_the_hand():
    _, (position, _), *_ = positions(DECK, MOVES)
    touched, untouched = position.hands[1][0], position.hands[1][1]
    assert touched.rank_clued
    assert not untouched.rank_clued
    assert touched.possible.sum() == 5  # a 1 of any colour
    assert untouched.possible.sum() == 20  # anything but a 1


def test_the_own_cards_are_known_by_clues_and_counting_alone():
    """Player 1 was told of four 1s when nothing was played, so that any 1 can be played."""
    seen = features(1)
    assert seen["own 1: playable"] == 1
    assert seen["own 2: playable"] == 0  # no 1, and nothing is played
    assert (seen["own 1: touched by the last move"], seen["own 2: touched by the last move"]) == (1, 0)
    # player 0 at the first move knows nothing: 15 - 3 ones of 50 - 5 cards can be played
    assert features(0)["own 1: playable"] == pytest.approx((15 - 4) / 45)


def test_the_partners_cards_are_seen():
    seen = features(0)
    assert [seen[f"partner {k}: playable"] for k in range(1, 6)] == [1, 0, 1, 1, 1]
    assert seen["clue rank 1: touched"] == pytest.approx(4 / 5)
    assert seen["clue rank 1: touched, playable, not known"] == pytest.approx(4 / 5)
    assert seen["clue colour 1: touched"] == pytest.approx(2 / 5)  # red: two playable cards, so red is the first colour
    # with a yellow 1 on the table, the partner's other 1s might be yellow: by public cards 12 of 14 can be played
    assert features(2)["partner 2: known playable"] == pytest.approx(12 / 14)
    assert features(2)["clue rank 1: touched, playable, not known"] == pytest.approx(3 / 5)


def test_moves_are_actions_in_the_order_of_the_position():
    actions = [ACTIONS[view(position, move).action] for position, move in positions(DECK, MOVES)]
    assert actions[0] == "clue rank 1"
    assert (actions[1], actions[3], actions[4]) == ("play 1", "play 4", "discard 3")
    assert actions[2] == "clue colour 1"  # red: most cards that can be played and are not known to be


def test_a_move_that_was_made_is_legal_and_a_clue_of_nothing_is_not():
    for position, move in positions(DECK, MOVES):
        seen = view(position, move)
        assert seen.legal[seen.action]
    first = view(*next(positions(DECK, MOVES)))
    assert not first.legal[ACTIONS.index("clue rank 5")]


def test_a_move_of_a_card_that_no_player_holds_is_refused():
    with pytest.raises(DemonstrationError, match="slot 7 of a hand of 5"):
        list(positions(DECK, [Move(0, "play", 7)]))


def game(person: str, number: int, *, score: int = 3, partner: str = "full", seed: int = 1) -> Game:
    return Game(f"{person}{number}", person, partner, seed, DECK, MOVES, score, float(number), 0)


def test_no_player_has_more_games_than_the_cap_and_the_first_are_kept():
    games = [game("ann", k) for k in range(30)] + [game("bob", k) for k in range(3)]
    kept = first_games(games, CAP)
    assert [each.key for each in kept] == [f"ann{k}" for k in range(CAP)] + ["bob0", "bob1", "bob2"]


def test_a_demonstrator_has_the_moves_of_one_player_of_each_game():
    data = demonstrations([(game("ann", 0), 1, "ann"), (game("bob", 0), 1, "bob"), (game("bob", 0), 0, "computer")])
    assert data.names == ("ann", "bob", "computer")
    assert data.steps_each.tolist() == [3, 3, 3]
    assert data.action_count == len(ACTIONS)


def archive(folder: Path, **files: str) -> Path:
    """A compressed archive of texts."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name, text in files.items():
            about = tarfile.TarInfo(name.replace("__", "/").replace("_", "."))
            about.size = len(text.encode())
            tar.addfile(about, io.BytesIO(text.encode()))
    path = folder / "hanabi.tar.xz"
    path.write_bytes(lzma.compress(content.getvalue()))
    return path


LOG = "Treatment: ('outer', 3)\n[]\nMOVE: 0 1 None 1 None 2\nhint\nMOVE: 1 2 4 1 None None\nplay\nScore {}\n"
TABLE = "id, ai, deck, score, time, first\naa, outer, 3, 5, 20.0, yes\naa, outer, 3, 7, 10.0, no\n"


def test_games_are_chained_to_people_and_ordered_by_time(tmp_path):
    path = archive(
        tmp_path,
        games_csv=TABLE,
        log__gameaa_log=LOG.format(5),
        log__gamebb_log="Old GID: aa\n" + LOG.format(7),
        log__surveyaa_log="age 30s\nexp dabbling\n",
    )
    games = read_games(path)
    assert [(each.key, each.person, each.score, each.time) for each in games] == [
        ("bb", "aa", 7, 10),
        ("aa", "aa", 5, 20),
    ]
    assert {each.experience for each in games} == {1}
    assert games[0].moves == (Move(0, "rank", 2), Move(1, "play", 4))


@pytest.mark.parametrize("damage", ["MOVE: 0 9 None 1 None 2", "MOVE: 1 2 None 1 None None", "MOVE:"])
def test_a_damaged_log_is_named(tmp_path, damage):
    path = archive(tmp_path, games_csv=TABLE, log__gameaa_log=LOG.format(5) + damage)
    with pytest.raises(DemonstrationError, match="damaged"):
        read_games(path)


def test_what_is_no_archive_is_refused(tmp_path):
    (tmp_path / "x").write_bytes(b"no archive")
    with pytest.raises(DemonstrationError, match="cannot be read"):
        read_games(tmp_path / "x")
    with pytest.raises(DemonstrationError, match="holds no games"):
        read_games(archive(tmp_path, readme_csv=""))
    with pytest.raises(SettingsError, match="pass --data"):
        Hanabi().demonstrations({"demonstrators": "people"}, [0])


def population(people: int = 40, games: int = 6) -> tuple[list[Game], np.ndarray]:
    """People whose skill moves their scores, with partners and decks that move them more."""
    random = np.random.default_rng(0)
    skill = random.normal(size=people)
    found = []
    for person in range(people):
        for number in range(games):
            partner = ["full", "outer"][random.integers(2)]
            score = 10 + 2 * skill[person] + 8 * (partner == "outer") + 0.1 * random.normal()
            found.append(game(f"p{person:02}", number, score=score, partner=partner))
    return found, skill


def test_adjusted_scores_do_not_depend_on_the_partner():
    games, skill = population()
    outcomes = Outcomes(games, sorted({each.person for each in games}))
    adjusted = outcomes.mean(outcomes.adjusted, np.ones(len(games)))
    np.testing.assert_allclose(adjusted - adjusted.mean(), 2 * (skill - skill.mean()), atol=0.3)


def test_an_index_of_skill_is_found_and_its_permutation_is_not(monkeypatch):
    """The index is the skill itself, so a rank correlation near 1 and a control about 0 within 1.96 / sqrt(39)."""
    monkeypatch.setattr(measures, "DRAWS", 300)
    games, skill = population()
    names = sorted({each.person for each in games})
    outcomes = Outcomes(games, names)
    share = 0.5 + 0.1 * skill[outcomes.person]
    found = correlations(
        AgreementIndex(Agreements(25 * share, np.full(len(games), 25), 0.0, 0.0), outcomes), outcomes, 0
    )
    assert found["adjusted score"]["correlation"] > 0.95
    assert found["adjusted score"]["correlation"] > found["score"]["correlation"]
    assert found["other games"]["correlation"] > 0.95
    low, high = found["score"]["permuted"]
    assert -0.4 < low < -0.2 < 0.2 < high < 0.4
    assert found["adjusted score"]["over_people"][0] > 0.9


def test_the_page_shows_every_index_that_was_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(measures, "DRAWS", 20)
    games, skill = population(people=12)
    outcomes = Outcomes(games, sorted({each.person for each in games}))
    agreements = Agreements(25 * (0.5 + 0.1 * skill[outcomes.person]), np.full(len(games), 25), 0.0, 0.0)
    rated = {
        "correlations": correlations(AgreementIndex(agreements, outcomes), outcomes, 0),
        "people": [
            {"games": 6, "score": 1.0 * k, "adjusted": 1.0 * k, "experience": k % 4, "expertise": 0.5 + k / 100}
            for k in range(12)
        ],
        "computers": [
            {"demonstrator": "computer, full", "rank": 3, "of": 13, "expertise": 0.7123, "low": 0.6, "high": 0.8}
        ],
    }
    model = {"model": "BiasedMixture()", "nats_per_action": 1.234, "more_than_preferred": 0.0, "standard_error": 0.01}
    others = {
        "compare": {
            "sentence": "BiasedMixture() is preferred",
            "preferred": "BiasedMixture()",
            "models": [model | {"rank_correlation": 1.0, "preferred": True}],
        },
        "cloned": {"rows": [{"demonstrator": "person 1", "games": 9, "nats_by_game": [1.0, 2.0], "right": 0.5}]},
    }
    origin = {"commit": "abc", "date": "2026-01-01", "machine": "here", "device": "cpu"}
    for cell in cells(Hanabi()):
        cell.write(tmp_path, [{"trial": 0} | others.get(cell.method, rated)], [origin])
    made = hanabi_page(tmp_path)
    page = made.text + made.details_text
    assert "1.234" in page
    assert "0.712 (0.600 to 0.800)" in page
    assert "| person 1 | 9 | 1.50" in page
    for words in ("`Persistent(biased=True)`", "`Confusion`", "naive", "uniform slips among legal moves"):
        assert words in page
    summary = page.split("## Conclusion")[1]
    assert summary.index("`BiasedMixture`") < summary.index("plain ILEED") < summary.index("naive")


def test_a_page_without_results_says_so(tmp_path):
    assert "Nothing was run." in hanabi_page(tmp_path).text


@real
def test_games_of_the_archive_end_with_their_scores():
    games = read_games(REAL)
    assert len(games) == 2040
    assert len({each.person for each in games}) == 228
    for each in games[::10]:  # all of them did, once
        *_, (position, move) = positions(each.deck, each.moves)
        colour, rank = (0, 0) if move.kind in ("colour", "rank") else position.hands[move.player][move.value].card
        succeeds = move.kind == "play" and position.fireworks[colour] == rank - 1
        assert sum(position.fireworks) + succeeds == each.score


@real
def test_hands_are_those_that_the_log_prints():
    """An oracle that our replay does not read: the log says in words what the person holds after a move."""
    colours = ("green", "yellow", "white", "blue", "red")
    with tarfile.open(REAL) as tar:
        text = {each.name.rsplit("/", 1)[-1]: each for each in tar}
        for each in read_games(REAL)[:40]:
            log = tar.extractfile(text[f"game{each.key}.log"]).read().decode()
            printed = re.findall(r"^You now has (.*)$", log, re.MULTILINE)
            table = list(positions(each.deck, each.moves))
            own = [k for k, (_, move) in enumerate(table) if move.player == 1 and move.kind in ("play", "discard")]
            for k, words in zip(own, printed, strict=True):
                if k + 1 < len(table):
                    held = [f"{colours[colour]} {rank}" for colour, rank in (h.card for h in table[k + 1][0].hands[1])]
                    assert ", ".join(held) == words.strip()
