"""Trials of pairs in Overcooked: a pickle that may ask for nothing but a table, and what a player sees."""

import json
import os
import pickle
import types

import numpy as np
import pytest

from ileed import DemonstrationError, IleedError, SettingsError
from ileed_lab.people.measures import AgreementIndex, Outcomes
from ileed_lab.people.overcooked import playing
from ileed_lab.people.overcooked.experiment import Overcooked, Pace, demonstrations
from ileed_lab.people.overcooked.page import overcooked_page
from ileed_lab.people.overcooked.playing import Simulator, play
from ileed_lab.people.overcooked.policies import GAMES, OvercookedPolicies, better_half
from ileed_lab.people.overcooked.trials import Trial, read_table, read_trials
from ileed_lab.people.overcooked.views import ACTIONS, steps, view

TILES = ("XXPXX", "O  2O", "X1  X", "XDXSX")  # the cramped room


def state(*, held: str | None = None, onions: int = 0) -> dict:
    """One player at the left, below the onions' row, facing up; the other at the upper right."""
    first = {"position": [1, 2], "orientation": [0, -1]}
    if held is not None:
        first["held_object"] = {"name": held, "position": [1, 2]}
    pot = {"2,0": {"name": "soup", "position": [2, 0], "state": ["onion", onions, 0]}} if onions else {}
    return {"players": [first, {"position": [3, 1], "orientation": [1, 0]}], "objects": pot}


def trial(*actions: str, person: str = "pair 1") -> Trial:
    return Trial(person, "cramped_room", TILES, tuple(repr(state()) for _ in actions), actions, score=20)


ONIONS, DISHES, SERVING, FILLABLE, COOKING = (slice(59 + 5 * k, 64 + 5 * k) for k in range(5))


def test_the_way_to_everything_is_seen():
    """From (1, 2): onions at (0, 1) lie up and then left, dishes at (1, 3) below, serving at (3, 3) to the right."""
    seen = view(trial(), state(), 0)
    assert seen[ONIONS].tolist() == pytest.approx([1, 0, 0, 0, 0.2])
    assert seen[DISHES].tolist() == pytest.approx([0, 1, 0, 0, 0.1])
    assert seen[SERVING].tolist() == pytest.approx([0, 0, 0, 1, 0.3])


def test_a_full_pot_takes_no_onion():
    some, full = (view(trial(), state(onions=count), 0) for count in (2, 3))
    assert some[FILLABLE].any()
    assert not some[COOKING].any()
    assert full[COOKING].any()
    assert not full[FILLABLE].any()


def test_each_player_sees_the_kitchen_from_their_own_place():
    assert not np.array_equal(view(trial(), state(), 0), view(trial(), state(), 1))
    assert not np.array_equal(view(trial(), state(held="onion"), 0), view(trial(), state(), 0))


def test_steps_without_an_action_are_left_out():
    made = trial("[[0, 0], [0, 0]]", "[[0, -1], [0, 0]]", "['INTERACT', [1, 0]]")
    assert [ACTIONS[action] for _, action in steps(made)] == ["up", "interact", "right"]


def test_a_pair_is_a_demonstrator_and_a_trial_an_episode():
    data = demonstrations([trial("[[1, 0], [0, 1]]"), trial("[[1, 0], [0, 0]]", person="pair 2")])
    assert data.names == ("pair 1", "pair 2")
    assert data.steps_each.tolist() == [2, 1]
    assert data.episode_count == 2


@pytest.mark.parametrize("harm", [print, eval, os.system, types.SimpleNamespace])
def test_a_pickle_that_asks_for_anything_but_a_table_is_refused(harm):
    with pytest.raises(DemonstrationError, match="is not part of a table"):
        read_table(pickle.dumps(harm))


def test_what_is_no_package_is_refused(tmp_path):
    (tmp_path / "x").write_bytes(b"no archive")
    with pytest.raises(DemonstrationError, match="cannot be read"):
        read_trials(tmp_path / "x")
    with pytest.raises(DemonstrationError, match="no pickled table"):
        read_table(b"")
    with pytest.raises(SettingsError, match="pass --data"):
        Overcooked().demonstrations({"demonstrators": "pairs"}, [0])


def test_a_page_without_results_says_so(tmp_path):
    assert "Nothing was run." in overcooked_page(tmp_path).text


def test_pace_counts_actions_whatever_they_are():
    both = [trial("[[1, 0], [0, 1]]", "[[0, 0], [0, 1]]"), trial("['INTERACT', [0, 0]]", person="pair 2")]
    index = AgreementIndex(Pace().fit(demonstrations(both), seed=0), Outcomes(both, ["pair 1", "pair 2"]))
    assert index.of(np.ones(2)).tolist() == [3, 1]


def test_the_better_half_is_by_the_median_of_each_kitchen():
    games = [
        Trial(f"pair {score}", kitchen, TILES, (), (), score)
        for kitchen, scores in (("cramped_room", (10, 20, 30)), ("random0", (1, 2)))
        for score in scores
    ]
    assert [each.score for each in better_half(games)] == [20, 30, 2]


def test_without_its_environment_the_simulator_says_how_to_make_it(monkeypatch, tmp_path):
    monkeypatch.setattr(playing, "ENVIRONMENT", tmp_path)
    with pytest.raises(IleedError, match=r"overcooked_environment\.sh makes"):
        Simulator()


@pytest.fixture(scope="module")
def simulator():
    if not (playing.ENVIRONMENT / "bin" / "python").exists():
        pytest.skip("tests/overcooked_environment.sh makes the environment of overcooked-ai")
    with Simulator() as found:
        yield found


UP, DOWN, LEFT, RIGHT, INTERACT = range(5)


def carry_onions(simulator: Simulator, rules: str, *then: int) -> list[dict]:
    """The first player takes three onions to the pot, and then does something else."""
    states = simulator.start([TILES], rules)
    made = [UP, LEFT, INTERACT, RIGHT, UP, INTERACT]  # from (1, 2): an onion at (0, 1), the pot at (2, 0)
    for first in [*made, *[LEFT, LEFT, INTERACT, RIGHT, UP, INTERACT] * 2, *then]:
        states, _ = simulator.step(np.array([[first, RIGHT]]))
    return [each for each in states[0]["objects"].values() if each["name"] == "soup"]


def test_pots_begin_by_themselves_by_the_rules_of_2019_alone(simulator):
    (by_itself,), (waiting,) = (carry_onions(simulator, rules, RIGHT) for rules in playing.RULES)
    assert by_itself["state"] == ["onion", 3, 2]
    assert waiting["state"] == ["onion", 3, 0]
    (told,) = carry_onions(simulator, "1.1.0", INTERACT, RIGHT)
    assert told["state"] == ["onion", 3, 2]


def test_a_recorded_step_is_checked_against_what_follows_it(simulator):
    still, moved = state(), state()
    moved["players"][0] = {"position": [1, 1], "orientation": [0, -1]}
    up, stay = "[[0, -1], [0, 0]]", "[[0, 0], [0, 0]]"
    made = Trial("pair 1", "cramped_room", TILES, (repr(still), repr(moved), repr(still)), (up, stay, stay), score=0)
    assert simulator.check(made, "2019") == {"steps": 2, "alike": 1, "soups": 0}


class Still:
    """A simulator in which nothing happens; it keeps what players do."""

    def __init__(self):
        self.actions = []

    def start(self, maps, rules):
        return [state() for _ in maps]

    def step(self, actions):
        self.actions.append(actions.tolist())
        return [state() for _ in actions], np.ones(len(actions))


class Lopsided:
    """The same probabilities everywhere."""

    def distribution(self, observations):
        return types.SimpleNamespace(logits=np.tile(np.log([0.1, 0.1, 0.1, 0.1, 0.6]), (len(observations), 1)))


def test_both_players_follow_the_policy_and_draws_depend_on_the_seed():
    def made(seed=None):
        kitchen, noise = Still(), None if seed is None else np.random.default_rng(seed)
        soups = play(kitchen, Lopsided(), [trial()] * 100, rules="2019", steps=5, noise=noise)
        assert soups.tolist() == [5] * 100
        return np.array(kitchen.actions)  # (step, game, player)

    assert (made() == INTERACT).all()
    assert np.array_equal(made(0), made(0))
    assert not np.array_equal(made(0), made(1))
    # 1,000 draws of probability .6: a standard error of .016, and four of them are exceeded once in 16,000 runs
    assert (made(0) == INTERACT).mean() == pytest.approx(0.6, abs=0.064)


def test_the_page_says_how_far_ileed_is_from_cloning(tmp_path):
    """Three fits in which ILEED delivers two soups more than cloning in every game."""
    names = ("asymmetric_advantages", "coordination_ring", "cramped_room", "random0", "random3")
    for method, more in (("bc", 0), ("uniform", 2)):
        trials = [
            {"trial": k, "fit_seconds": 1}
            | {"soups": {words: {name: [4 + k + more] * games for name in names} for words, games in GAMES.items()}}
            for k in range(3)
        ]
        made = [{"commit": "abc", "date": "2026-11-16", "machine": "one", "device": "cpu"}]
        cell = {"experiment": OvercookedPolicies().name, "method": method, "setting": {"demonstrators": "pairs"}}
        path = tmp_path / OvercookedPolicies().name / f"pairs_{method}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(cell | {"settings": {}, "plan": {}, "made": made, "trials": trials}))
    page = overcooked_page(tmp_path).text
    assert "ILEED, uniform slips, is above BC in soups delivered (+2.00 (2.00 to 2.00), 3 fits)." in page
    assert "ILEED, repeated actions" not in page
