"""What is known of demonstrators and states: who is expert, and the right actions in some states."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_slips import erring_alike, estimates, habitual, method
from test_third_party import ACTIONS, STATES, simulated

import ileed

RIGHT = np.arange(STATES) % ACTIONS


def answers(*states: int) -> tuple[np.ndarray, np.ndarray]:
    return np.eye(STATES)[list(states)], RIGHT[list(states)]


def fitted(data, known=None, **settings):
    return method(ileed.UniformMixture(), **settings).fit(data, seed=0, device="cpu", gold=known)


@pytest.mark.parametrize("model", [ileed.UniformMixture(), ileed.Confusion()], ids=repr)
def test_a_majority_that_errs_alike_is_corrected_by_answers_in_two_of_six_states(model):
    """Six of ten people mostly take the next action; answers say whom to believe, in the other four states too."""
    data = simulated(erring_alike, people=10, episodes=10)
    believed, corrected = (
        method(model, steps=300).fit(data, seed=0, device="cpu", gold=known)
        for known in (None, ileed.Known(answers=answers(0, 1)))
    )
    assert (believed.policy.act(np.eye(STATES)) == RIGHT).mean() < 0.5
    np.testing.assert_array_equal(corrected.policy.act(np.eye(STATES)), RIGHT)
    assert estimates(corrected)[:4].min() > 0.7 > 0.3 > estimates(corrected)[4:].max()


def test_an_answer_is_soft():
    """Both demonstrators are nearly always right: a wrong answer is believed only if it counts for much."""
    data = simulated(lambda random, person, right, previous: right, people=2, episodes=5)
    wrong = np.eye(STATES)[[0]], [(RIGHT[0] + 1) % ACTIONS]
    for steps, believed in ((0.1, False), (100.0, True)):
        policy = fitted(data, ileed.Known(answers=wrong, answer_steps=steps), steps=200).policy
        assert (policy.act(np.eye(STATES)[[0]])[0] != RIGHT[0]) == believed
        np.testing.assert_array_equal(policy.act(np.eye(STATES)[1:]), RIGHT[1:])


def test_members_in_blocks_hear_what_is_known_as_all_at_once():
    data = simulated(habitual, people=4, episodes=4)
    known = ileed.Known(gold=["person 1"], answers=answers(0))
    weights = np.random.default_rng(0).uniform(0.5, 1.5, size=(2, data.episode_count))
    together, apart = (
        method(ileed.UniformMixture(), steps=50, restarts=2, member_block=block).fit(
            data, seed=0, device="cpu", weights=weights, gold=known
        )
        for block in (None, 1)
    )
    np.testing.assert_allclose(estimates(together), estimates(apart), atol=1e-5)


@pytest.mark.parametrize("batch_size", [None, 50])
def test_processes_that_share_a_batch_add_up_to_its_objective(batch_size):
    data = simulated(habitual, people=4, episodes=4)
    known = ileed.Known(gold=["person 1"], answers=answers(0, 3))
    settings = method(ileed.UniformMixture(), batch_size=batch_size)
    cpu = torch.device("cpu")
    start = settings._start(data, 0, cpu).with_knowledge(known, cpu)
    sampler, shares = start.prepared.sampler, [start.prepared.sampler.share(place, 2) for place in range(2)]
    for each in (sampler, *shares):
        each.load(3)
    whole, *parts = (each.batch() for each in (sampler, *shares))
    objectives = [start.joint.objective(part).total * part.total_weight for part in parts]
    torch.testing.assert_close(sum(objectives) / whole.total_weight, start.joint.objective(whole).total)


def test_answers_pull_continuous_policies_and_what_is_known_is_heard_in_every_stage(tmp_path):
    """Folds and the fit itself; the run directory says what was known."""
    random = np.random.default_rng(0)
    seen = random.normal(size=(200, 2))
    data = ileed.Demonstrations(
        observations=seen,
        actions=seen[:, :1] + random.normal(size=(200, 1)),
        demonstrator=np.repeat([0, 1], 100),
        episode=np.repeat(np.arange(20), 10),
        source_episode=np.array([f"demo_{number}" for number in np.repeat(np.arange(20), 10)]),
    )
    known = ileed.Known(gold=["1"], answers=(np.zeros((1, 2)), np.full((1, 1), 3.0)), answer_steps=100.0)
    head = ileed.MixtureMLP(hidden=(8,), modes=1)
    short = ileed.Ileed(policy=head, restarts=1, steps=40, folds=2, learning_rate=0.03)
    told, free = (short.fit(data, seed=0, device="cpu", gold=gold) for gold in (known, None))
    assert told.policy.act(np.zeros((1, 2)))[0, 0] > free.policy.act(np.zeros((1, 2)))[0, 0] + 0.5
    told.save(tmp_path / "run")
    saved = ileed.load(tmp_path / "run").provenance["known"]
    assert saved["gold"] == [[1, 10.0]]
    assert (saved["answers"]["states"], saved["answer_steps"]) == (1, 100.0)


def test_a_checkpoint_belongs_to_the_answers_that_it_was_made_with(tmp_path):
    data = simulated(habitual, people=4, episodes=2)
    options = {"seed": 0, "device": "cpu", "checkpoint": tmp_path / "fit", "checkpoint_seconds": 0.0}
    short = method(ileed.UniformMixture(), steps=5)
    short.fit(data, gold=ileed.Known(answers=answers(0, 1)), **options)
    short.fit(data, gold=ileed.Known(answers=answers(0, 1)), **options)
    with pytest.raises(ileed.IleedError, match="belongs to a fit with other settings"):
        short.fit(data, gold=ileed.Known(answers=answers(0, 2)), **options)


@pytest.mark.parametrize(
    ("known", "says"),
    [
        (ileed.Known(answers=(np.eye(STATES), [0])), "answers cannot be read"),
        (ileed.Known(answers=(np.eye(STATES)[:1], [ACTIONS])), "answers have action 3, but the data have"),
        (ileed.Known(answers=(np.eye(STATES)[:1, :2], [0])), "answers have shapes"),
        (ileed.Known(answers=answers(0), answer_steps=float("nan")), "answer_steps"),
    ],
)
def test_answers_in_other_states_are_refused(known, says):
    with pytest.raises(ileed.SettingsError, match=says):
        fitted(simulated(habitual, people=4, episodes=2), known, steps=1)


# --- ratings


@pytest.mark.parametrize("gold", range(4))
def test_the_fit_and_its_ratings_hear_who_is_gold(gold):
    data, name = simulated(habitual, people=4, episodes=10), f"person {gold}"
    expertise = fitted(data, [name], steps=200, restarts=2, folds=2).expertise
    assert expertise.by_demonstrator()[name] > 0.9
    assert expertise.table()["demonstrator"].to_pylist()[0] == name
    assert expertise.ranking()[0][0] == name


def test_ratings_of_very_many_people_hear_what_is_known(monkeypatch):
    """They are rated in parts, by the same likelihood; with nothing known, person 3 is not the best."""
    data = simulated(habitual, people=4, episodes=10)
    monkeypatch.setattr("ileed.data.rules.MANY_DEMONSTRATORS", 3)
    monkeypatch.setattr("ileed.rating.ratings.OWNERS_AT_ONCE", 3)
    best = [
        fitted(data, known, steps=20, restarts=1, folds=2).expertise.table()["demonstrator"].to_pylist()[0]
        for known in (["person 3"], None)
    ]
    assert best[0] == "person 3" != best[1]
