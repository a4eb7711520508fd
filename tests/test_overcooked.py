"""Trials of pairs in Overcooked: a pickle that may ask for nothing but a table, and what a player sees."""

import os
import pickle
import types

import numpy as np
import pytest

from ileed import DemonstrationError, SettingsError
from ileed_lab.people.overcooked.experiment import Overcooked, demonstrations
from ileed_lab.people.overcooked.page import overcooked_page
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
    assert "Nothing was run." in overcooked_page(tmp_path)
