"""Demonstrations: every rule is a sentence, selections keep their laws, and collapsing changes no likelihood."""

from __future__ import annotations

from collections import Counter
from dataclasses import FrozenInstanceError, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import (
    CONTINUOUS_MODELS,
    DISCRETE_MODELS,
    EXPERTISES,
    cost_and_gradients,
    demonstrations,
    double,
    joint_of,
    parts_for,
    prepared_for,
    raw_batch,
    world,
)

from ileed import Boltzmann, DemonstrationError, Demonstrations, Skills, UniformMixture

FOUR = {  # two people, two episodes, four steps
    "observations": np.arange(8.0).reshape(4, 2),
    "actions": np.array([0, 1, 1, 0]),
    "demonstrator": np.array(["ann", "ann", "bob", "bob"]),
    "episode": np.array([0, 0, 1, 1]),
}


def four(**changed) -> Demonstrations:
    return Demonstrations(**(FOUR | changed))


# --- rules


def with_value(column: str, index, value) -> np.ndarray:
    array = FOUR[column].copy()
    array[index] = value
    return array


NAN = with_value("observations", (2, 0), np.nan)
INFINITE = with_value("observations", (1, 1), np.inf)
WORDS = np.full((4, 2), "north")
LEGAL = np.ones((4, 2), dtype=bool)

RULES = {  # what is wrong: (columns, fragments of the sentence: what was found, the rule, what to do)
    "no steps": ({"observations": np.zeros((0, 2))}, ["no steps", "at least one"]),
    "no axis": ({"observations": 3.0}, ["no steps", "at least one"]),
    "ragged observations": ({"observations": [[1, 2], [3], [4, 5], [6, 7]]}, ["observations", "ragged", "same shape"]),
    "objects for observations": ({"observations": np.array([[{}, {}]] * 4)}, ["observations", "objects", "numbers"]),
    "words for observations": ({"observations": WORDS}, ["<U5", "not numbers", "encode them"]),
    "one number a step": ({"observations": np.arange(4.0)}, ["(4,)", "observations[:, None]"]),
    "NaN": ({"observations": NAN}, ["NaN", "1 of 4 steps", "step 2", "drop or repair"]),
    "infinite": ({"observations": INFINITE}, ["infinite", "1 of 4 steps", "step 1", "drop or repair"]),
    "beyond single precision": ({"observations": with_value("observations", (3, 0), 1e39)}, ["observations", "step 3"]),
    "too few actions": ({"actions": [0, 1, 1]}, ["4 observations", "3 values in actions", "drop it"]),
    "one action for all": ({"actions": 1}, ["4 observations", "0 values in actions"]),
    "ragged actions": ({"actions": [[1.0], [2.0, 3.0], [1.0], [1.0]]}, ["actions", "ragged", "same shape"]),
    "words for actions": ({"actions": ["up", "up", "up", "down"]}, ["actions are <U4", "not numbers", "whole numbers"]),
    "NaN actions": ({"actions": np.array([[0.0], [np.nan], [0.0], [0.0]])}, ["actions hold NaN", "step 1"]),
    "two columns of whole actions": ({"actions": np.zeros((4, 2), dtype=int)}, ["int64", "(4, 2)", "floating-point"]),
    "three axes of actions": ({"actions": np.zeros((4, 2, 2))}, ["float64", "(4, 2, 2)", "(steps, dimensions)"]),
    "fractional actions": ({"actions": [0.0, 1.5, 1.0, 0.0]}, ["fractional", "1.5", "actions[:, None]"]),
    "floating-point actions": ({"actions": [0.0, 1.0, 1.0, 0.0]}, ["floating-point", "pass integers"]),
    "negative actions": ({"actions": [0, -3, 1, 0]}, ["action -3 is negative", "0, 1"]),
    "more actions than stated": ({"actions": [0, 4, 1, 0], "action_count": 3}, ["action 4", "action_count is 3", "5"]),
    "only one possible action": ({"actions": [0, 0, 0, 0], "action_count": 1}, ["action_count is 1", "2 or more"]),
    "no demonstrator": ({"demonstrator": None}, ["demonstrator", "name"]),
    "too few demonstrators": ({"demonstrator": ["ann", "bob"]}, ["2 values in demonstrator", "one for each step"]),
    "fractional demonstrators": ({"demonstrator": [0.5, 0.5, 1.0, 1.0]}, ["float64", "one name or whole number"]),
    "two columns of demonstrators": ({"demonstrator": np.zeros((4, 2), dtype=int)}, ["(4, 2)", "for each step"]),
    "repeated names": ({"names": ("ann", "bob", "ann")}, ["names repeat", "'ann'", "one name"]),
    "unknown name": ({"names": ("ann", "cyd")}, ["'bob'", "not among the names", "'cyd'", "add it"]),
    "index beyond the names": (
        {"demonstrator": [0, 0, 2, 2], "names": ("ann", "bob")},
        ["demonstrator 2 has no name", "2 names", "0 to 1"],
    ),
    "negative index": ({"demonstrator": [-1, -1, 0, 0], "names": ("ann", "bob")}, ["demonstrator -1 has no name"]),
    "too few episode labels": ({"episode": [0, 0, 1]}, ["3 values in episode", "one for each step"]),
    "fractional episode labels": ({"episode": [0.0, 0.0, 1.0, 1.0]}, ["episode labels are float64", "one label"]),
    "interrupted episode": ({"episode": [7, 8, 7, 8]}, ["episode 7 is interrupted", "sort the steps"]),
    "two people in an episode": ({"episode": [5, 5, 5, 5]}, ["episode 5", "'ann'", "'bob'", "split it"]),
    "too few rewards": ({"rewards": [1.0]}, ["1 values in rewards", "one for each step"]),
    "words for rewards": ({"rewards": ["a", "b", "c", "d"]}, ["rewards are <U1", "one number for each step"]),
    "NaN rewards": ({"rewards": [0.0, np.nan, 0.0, 0.0]}, ["rewards hold NaN", "step 1"]),
    "two columns of rewards": ({"rewards": np.zeros((4, 2))}, ["rewards are float64", "(4, 2)"]),
    "terminals beyond true and false": ({"terminals": [0, 0, 0, 2]}, ["terminals", "true or false"]),
    "too few terminals": ({"terminals": [0, 1]}, ["2 values in terminals"]),
    "legal with continuous actions": (
        {"actions": np.zeros((4, 1)), "legal": LEGAL},
        ["legal", "actions are continuous", "leave legal out"],
    ),
    "legal of the wrong width": ({"legal": np.ones((4, 5))}, ["(4, 5)", "each of the 2 actions"]),
    "legal beyond true and false": ({"legal": 2 * np.ones((4, 2))}, ["legal", "true or false"]),
    "illegal action taken": ({"legal": ~np.eye(2, dtype=bool)[[0, 0, 0, 1]]}, ["1 steps", "action 0", "correct"]),
    "too few skills": ({"skills": {"phase": ["a"]}}, ["1 values in skill column 'phase'", "one for each step"]),
    "fractional skill labels": ({"skills": {"phase": [0.5, 1.0, 1.0, 1.0]}}, ["'phase'", "float64", "one label"]),
    "NaN skills": ({"skills": {"load": np.full((4, 2), np.nan)}}, ["skill column 'load'", "NaN", "4 of 4"]),
}  # fmt: skip


@pytest.mark.parametrize(("columns", "fragments"), RULES.values(), ids=RULES.keys())
def test_each_broken_rule_is_one_sentence_that_says_what_to_do(columns, fragments):
    with pytest.raises(DemonstrationError) as refusal:
        four(**columns)
    sentence = str(refusal.value)
    assert "\n" not in sentence
    for fragment in fragments:
        assert fragment in sentence, sentence


@pytest.mark.parametrize(
    "labels",
    [np.array(["ann", "ann", "bob", "bob"], dtype=object), ["ann", "ann", "bob", "bob"], np.array([7, 7, 9, 9])],
    ids=["objects, as pandas has them", "a list", "whole numbers"],
)
def test_people_may_be_named_by_strings_or_whole_numbers(labels):
    data = four(demonstrator=labels)
    assert data.names == tuple(dict.fromkeys(str(label) for label in labels))
    assert data.demonstrator.tolist() == [0, 0, 1, 1]


def test_names_fix_the_order_of_the_demonstrators():
    data = four(names=("cyd", "bob", "ann"))
    assert data.names == ("cyd", "bob", "ann")
    assert data.demonstrator.tolist() == [2, 2, 1, 1]


def test_episodes_are_numbered_in_order_whatever_their_labels():
    assert four(episode=["z", "z", "b", "b"]).episode.tolist() == [0, 0, 1, 1]


def test_there_are_at_least_two_discrete_actions_and_as_many_as_stated():
    assert four(actions=[0, 0, 0, 0]).action_count == 2
    assert four(actions=[0, 3, 0, 0]).action_count == 4
    assert four(action_count=7).action_count == 7


def test_true_and_false_are_actions_zero_and_one():
    assert four(actions=np.array([False, True, True, False])).actions.tolist() == [0, 1, 1, 0]


@given(demonstrations())
def test_columns_cannot_be_changed(data):
    columns = [value for value in vars(data).values() if isinstance(value, np.ndarray)]
    assert len(columns) >= 4
    for column in [*columns, *data.skills.values()]:
        with pytest.raises(ValueError, match="read-only"):
            column[...] = 0
    with pytest.raises(FrozenInstanceError):
        data.actions = data.actions


# --- from episodes


def test_the_observation_after_the_last_action_is_left_out():
    observations = [np.arange(8.0).reshape(4, 2), np.arange(6.0).reshape(3, 2)]
    episodes = [
        {"observations": observations[0], "actions": [0, 1, 1], "rewards": [0.0, 0.0, 1.0], "terminations": [0, 0, 1]},
        SimpleNamespace(observations=observations[1], actions=[1, 0], rewards=[0.5, 0.5], terminations=[0, 0]),
    ]
    data = Demonstrations.from_episodes(episodes, demonstrator=["ann", "bob"])
    assert data.observations.tolist() == [*observations[0][:3].tolist(), *observations[1][:2].tolist()]
    assert data.actions.tolist() == [0, 1, 1, 1, 0]
    assert data.rewards.tolist() == [0.0, 0.0, 1.0, 0.5, 0.5]
    assert data.terminals.tolist() == [False, False, True, False, False]
    assert data.episode.tolist() == [0, 0, 0, 1, 1]
    assert [data.names[person] for person in data.demonstrator] == ["ann"] * 3 + ["bob"] * 2


@given(demonstrations(optional=("rewards", "terminals")))
def test_cutting_into_episodes_and_joining_them_changes_nothing(data):
    cut = [data.select(data.episode == number) for number in range(data.episode_count)]
    episodes = [
        {
            "observations": np.concatenate([part.observations, part.observations[-1:]]),
            "actions": part.actions,
            "rewards": part.rewards,
            "terminations": part.terminals,
        }
        for part in cut
    ]
    names = [data.names[person] for person in data.episode_demonstrator]
    joined = Demonstrations.from_episodes(
        episodes, demonstrator=names, names=data.names, action_count=data.action_count
    )
    assert joined.equals(data)


EPISODE = {"observations": np.zeros((3, 2)), "actions": [0, 1, 1]}


@pytest.mark.parametrize(
    ("episodes", "people", "fragments"),
    [
        ([EPISODE], ["ann", "bob"], ["1 episodes", "2 demonstrator labels", "one label for each"]),
        ([], [], ["no episodes", "at least one"]),
        ([{"actions": [0]}], ["ann"], ["episode 0 lacks observations", "needs both"]),
        ([EPISODE, {"observations": np.zeros((3, 2))}], ["ann", "bob"], ["episode 1 lacks"]),
        ([EPISODE | {"actions": [0]}], ["ann"], ["episode 0", "3 observations and 1 actions", "one observation more"]),
        ([EPISODE, EPISODE | {"rewards": [0, 0, 0]}], ["ann", "bob"], ["1 of 2 episodes have rewards", "or for none"]),
        (
            [EPISODE, {"observations": np.zeros((3, 5)), "actions": [0, 1, 1]}],
            ["ann", "bob"],
            ["disagree about the shape", "observations", "(2,)", "(5,)"],
        ),
        ([EPISODE | {"observations": [[1, 2], [3], [4, 5]]}], ["ann"], ["episode 0", "observations", "ragged"]),
        ([EPISODE | {"actions": 1}], ["ann"], ["episode 0", "actions"]),
    ],
    ids=[
        "fewer episodes than people",
        "no episodes",
        "no observations",
        "no actions",
        "two observations too many",
        "rewards for some",
        "observations of two shapes",
        "a ragged episode",
        "one action for an episode",
    ],
)
def test_episodes_that_cannot_be_joined_are_refused_in_one_sentence(episodes, people, fragments):
    with pytest.raises(DemonstrationError) as refusal:
        Demonstrations.from_episodes(episodes, demonstrator=people)
    for fragment in fragments:
        assert fragment in str(refusal.value)


# --- selections


@given(demonstrations())
def test_the_steps_of_all_demonstrators_together_are_all_steps(data):
    parts = [data.by(name) for name in data.names]
    assert sum(len(part) for part in parts) == len(data)
    for person, (name, part) in enumerate(zip(data.names, parts, strict=True)):
        assert part.names == (name,)
        assert part.action_count == data.action_count
        np.testing.assert_array_equal(part.actions, data.actions[data.demonstrator == person])
        np.testing.assert_array_equal(part.observations, data.observations[data.demonstrator == person])


def test_several_people_can_be_taken_out_in_any_order():
    data = world(people=3)
    two = data.by(data.names[2], data.names[0])
    assert two.names == (data.names[2], data.names[0])
    for name in two.names:
        np.testing.assert_array_equal(two.by(name).actions, data.by(name).actions)
    assert len(two) == len(data) - len(data.by(data.names[1]))


@given(demonstrations())
def test_selecting_everything_changes_nothing(data):
    assert data.select(np.ones(len(data), dtype=bool)).equals(data)


@given(demonstrations(), st.data())
def test_selecting_twice_is_selecting_what_both_allow(data, choose):
    """WholeBatch episodes are selected, so that their numbering is the same either way."""
    chosen = [
        np.array(choose.draw(st.lists(st.booleans(), min_size=data.episode_count, max_size=data.episode_count)))
        for _ in range(2)
    ]
    one, both = chosen[0][data.episode], (chosen[0] & chosen[1])[data.episode]
    if not both.any():
        with pytest.raises(DemonstrationError, match="no step is left"):
            data.select(both)
        return
    assert data.select(one).select(both[one]).equals(data.select(both))
    assert data.select(both).names == data.names


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(DemonstrationError, match=r"no demonstrator 'eve'.*'ann', 'bob', 'cyd'"):
        world().by("eve")


@given(demonstrations(), st.floats(0.01, 0.99), st.integers(0, 99))
def test_a_split_holds_out_some_but_never_all_episodes_of_a_demonstrator(data, share, seed):
    each = Counter(data.episode_demonstrator.tolist())
    if max(each.values()) < 2:
        with pytest.raises(DemonstrationError, match=r"no demonstrator has two episodes.*held_out=0"):
            data.split(share, generator=np.random.default_rng(seed))
        return
    kept, out = data.split(share, generator=np.random.default_rng(seed))
    assert (kept ^ out).all()
    for person, count in each.items():
        held = int(out[data.episode_demonstrator == person].sum())
        assert held == 0 if count == 1 else 1 <= held <= count - 1
        assert count == 1 or abs(held - share * count) <= 1
    again = data.split(share, generator=np.random.default_rng(seed))
    np.testing.assert_array_equal(again[1], out)


# --- what it looks like


def test_it_prints_what_it_holds():
    assert repr(world([3, 2, 4], people=2, optional=["rewards"])) == (
        "Demonstrations(3 episodes, 9 steps, 2 demonstrators (2-7 steps each),\n"
        "               observations (3,) int64, actions discrete (3), rewards present)"
    )
    assert repr(world([1], people=1, discrete=False, actions=2, shape=(2, 2), floating=True)) == (
        "Demonstrations(1 episode, 1 step, 1 demonstrator,\n"
        "               observations (2, 2) float32, actions (2,) continuous, rewards absent)"
    )


@given(demonstrations())
def test_equality_and_fingerprint_follow_the_values(data):
    same = data.select(np.ones(len(data), dtype=bool))
    assert same.fingerprint == data.fingerprint
    moved = np.array(data.observations)
    moved[-1] += 1
    other = replace(data, observations=moved)
    assert not other.equals(data)
    assert other.fingerprint != data.fingerprint


@pytest.mark.parametrize("column", ["actions", "demonstrator", "episode", "legal", "phase", "names"])
def test_the_fingerprint_notices_every_column_that_a_fit_depends_on(column):
    base = {"names": ("ann", "bob"), "legal": LEGAL, "skills": {"phase": ["a", "b", "a", "b"]}}
    changed = {
        "actions": {"actions": [1, 1, 1, 0]},
        "demonstrator": {"demonstrator": ["ann", "ann", "ann", "ann"]},
        "episode": {"episode": [0, 1, 2, 2]},
        "legal": {"legal": np.array([[1, 0], [1, 1], [1, 1], [1, 1]])},
        "phase": {"skills": {"phase": ["b", "b", "a", "b"]}},
        "names": {"demonstrator": [0, 0, 1, 1], "names": ("ann", "eve")},
    }[column]
    assert four(**(base | changed)).fingerprint != four(**base).fingerprint


# --- collapsing


@given(demonstrations())
def test_collapsed_counts_are_those_of_a_plain_tally(data):
    """Against a dictionary of everything a step is, for discrete actions."""
    collapsed = data.collapsed()
    assert collapsed.count.sum() == len(data)
    np.testing.assert_array_equal(collapsed.weights(data, np.ones(data.episode_count)), collapsed.count)
    flat = data.observations.reshape(len(data), -1)
    varying = flat.max(axis=0) != flat.min(axis=0)
    np.testing.assert_array_equal(collapsed.varying, np.flatnonzero(varying))
    np.testing.assert_array_equal(collapsed.observations[collapsed.step_observation_index], flat[:, varying])
    np.testing.assert_array_equal(
        collapsed.observation_index[collapsed.step_count_index], collapsed.step_observation_index
    )
    np.testing.assert_array_equal(collapsed.action[collapsed.step_count_index], data.actions)
    np.testing.assert_array_equal(collapsed.demonstrator[collapsed.step_count_index], data.demonstrator)
    legal = data.legal if data.legal is not None else np.zeros((len(data), 0))
    seen = [(*row, *allowed) for row, allowed in zip(flat.tolist(), legal.tolist(), strict=True)]
    assert len(collapsed.observations) == len(set(seen))
    if data.discrete:
        tally = Counter(zip(seen, data.actions.tolist(), data.demonstrator.tolist(), strict=True))
        assert sorted(tally.values()) == sorted(collapsed.count.tolist())


@given(demonstrations(discrete=st.just(True)), st.randoms(use_true_random=False))
def test_the_order_of_episodes_does_not_matter_to_the_counts(data, random):
    order = list(range(data.episode_count))
    random.shuffle(order)
    steps = np.concatenate([np.flatnonzero(data.episode == number) for number in order])
    moved = Demonstrations(
        observations=data.observations[steps],
        actions=data.actions[steps],
        demonstrator=data.demonstrator[steps],
        episode=data.episode[steps],
        names=data.names,
        action_count=data.action_count,
        legal=None if data.legal is None else data.legal[steps],
    )
    assert tally(moved) == tally(data)


def tally(data: Demonstrations) -> dict:
    """Counts by what was seen, done and by whom, whatever the order of unique observations."""
    collapsed = data.collapsed()
    legal = np.zeros((len(collapsed.observations), 0)) if collapsed.legal is None else collapsed.legal
    unique_count = [
        (*row, *allowed) for row, allowed in zip(collapsed.observations.tolist(), legal.tolist(), strict=True)
    ]
    return {
        (unique_count[observation_index], action, person): count
        for observation_index, action, person, count in zip(
            collapsed.observation_index.tolist(),
            collapsed.action.tolist(),
            collapsed.demonstrator.tolist(),
            collapsed.count.tolist(),
            strict=True,
        )
    }


def test_a_negative_zero_is_a_zero():
    observations = np.array([[0.0, 1.0], [-0.0, 1.0], [1.0, 0.0], [1.0, -0.0]])
    collapsed = four(observations=observations, actions=[0, 0, 1, 1]).collapsed()
    assert len(collapsed.observations) == 2
    assert collapsed.count.tolist() == [2, 2]
    assert not np.signbit(collapsed.observations).any()


def test_inputs_that_never_vary_are_left_out_also_when_none_does():
    observations = np.stack([np.full(4, 9.0), np.arange(4.0), np.zeros(4)], axis=1)
    assert four(observations=observations).collapsed().varying.tolist() == [1]
    nothing = four(observations=np.ones((4, 3))).collapsed()
    assert nothing.observations.shape == (1, 0)
    assert nothing.count.tolist() == [1, 1, 1, 1]


def test_what_differs_only_in_legal_actions_or_skills_is_another_unique_observation():
    same = np.zeros((4, 1))
    legal = np.array([[1, 1], [1, 1], [0, 1], [1, 1]])
    assert len(four(observations=same, legal=legal).collapsed().observations) == 2
    phased = four(observations=same, skills={"phase": ["a", "b", "a", "b"]})
    assert len(phased.collapsed().observations) == 1
    collapsed = phased.collapsed("phase")
    assert collapsed.skill_names == ("a", "b")
    assert collapsed.skills[collapsed.step_observation_index].tolist() == [[1, 0], [0, 1], [1, 0], [0, 1]]


def test_an_unknown_skill_column_is_answered_with_the_known_ones():
    with pytest.raises(DemonstrationError, match=r"no skill column 'mood'.*'phase', 'load'.*skills="):
        world(optional=["phase", "load"]).collapsed("mood")


@given(demonstrations(), st.integers(0, 99))
def test_the_weights_of_counts_add_up_to_the_step_weights(data, seed):
    weights = np.random.default_rng(seed).random((3, data.episode_count))
    summed = data.collapsed().weights(data, weights)
    assert summed.shape == (3, len(data.collapsed().observation_index))
    np.testing.assert_allclose(
        summed.sum(-1), weights[:, data.episode].sum(-1), rtol=1e-12
    )  # float64, at most 64 terms
    for row, total in zip(weights, summed, strict=True):
        np.testing.assert_allclose(data.collapsed().weights(data, row), total, rtol=0)


# Float64: sums over at most 50 steps through two small layers; both orders of summation agree to about 1e-14.
EXACT = {"rtol": 1e-9, "atol": 1e-11}

ALL_MODELS = (*DISCRETE_MODELS, *CONTINUOUS_MODELS)


@pytest.mark.parametrize("expertise", EXPERTISES, ids=repr)
@pytest.mark.parametrize("model", ALL_MODELS, ids=repr)
@settings(max_examples=4)
@given(seed=st.integers(0, 999))
def test_collapsing_changes_neither_likelihood_nor_gradient(model, expertise, seed):
    data = world(seed=seed, discrete=model.discrete, optional=["phase"])
    same_as_raw(data, model, expertise)


@pytest.mark.parametrize("expertise", EXPERTISES, ids=repr)
@pytest.mark.parametrize("model", [UniformMixture(), Boltzmann()], ids=repr)
@pytest.mark.parametrize("lengths", [[4, 4, 4], [60] * 6], ids=["few observations", "many observations"])
def test_collapsing_with_legal_actions_changes_neither_likelihood_nor_gradient(model, expertise, lengths):
    same_as_raw(world(lengths, optional=["legal", "phase"], shape=(6,)), model, expertise)


def same_as_raw(data: Demonstrations, model, expertise) -> None:
    parts = parts_for(data, model, expertise)
    skill = expertise.column if isinstance(expertise, Skills) else None
    prepared = prepared_for(data, parts, members=2)
    joint = joint_of(parts, prepared.sizes).double()
    raw = cost_and_gradients(joint, raw_batch(data, prepared.sizes, skill=skill))
    collapsed = cost_and_gradients(joint, double(prepared.sampler.batch()))
    assert raw.keys() == collapsed.keys()
    for name, expected in raw.items():
        torch.testing.assert_close(collapsed[name], expected, **EXACT, msg=lambda text, name=name: f"{name}: {text}")
    in_mini_batches = prepared_for(data, parts, members=2, batch_size=5).sampler
    (everything,) = in_mini_batches.everything(held_out=False)
    for name, found in cost_and_gradients(joint, double(everything)).items():
        torch.testing.assert_close(found, raw[name], **EXACT, msg=lambda text, name=name: f"{name}: {text}")
