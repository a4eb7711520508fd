"""Demonstrator models with learned slips: what they learn is what people do, for people of the fit and for others."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from strategies import world
from test_third_party import ACTIONS, simulated

import ileed
from ileed import runs
from ileed.rating.answers import joint_with_newcomers
from ileed.testing import check_demonstrator_model

MODELS = (
    ileed.BiasedMixture(),
    ileed.BiasedMixture(shared=True),
    ileed.Persistent(),
    ileed.Persistent(per_person=True),
    ileed.Persistent(biased=True),
    ileed.Persistent(per_person=True, biased=True),
    ileed.Confusion(),
)
RHO = (0.9, 0.7, 0.5, 0.3)
FAVOURITE = (0, 1, 2, 0)
HABITS = np.full((4, ACTIONS), 0.2 / ACTIONS) + 0.8 * np.eye(ACTIONS)[list(FAVOURITE)]


def habitual(random, person, right, previous):
    """A slip goes to the person's favourite action in 8 of 10 cases, and anywhere in the others."""
    return right if random.random() < RHO[person % 4] else int(random.choice(ACTIONS, p=HABITS[person % 4]))


def repeating(random, person, right, previous):
    """A slip repeats the action before in 6 of 10 cases."""
    if random.random() < RHO[person % 4]:
        return right
    return previous if previous >= 0 and random.random() < 0.6 else int(random.integers(ACTIONS))


def mistaking(random, person, right, previous):
    """A slip takes the next action for the right one."""
    return right if random.random() < RHO[person % 4] else (right + 1) % ACTIONS


def method(model, **settings):
    usual = {
        "policy": ileed.CategoricalMLP(hidden=()),
        "expertise": ileed.Constant(),
        "restarts": 4,
        "steps": 600,
        "learning_rate": 0.05,
        "skill_learning_rate": 0.05,
        "folds": 0,
    }
    return ileed.Ileed(demonstrator=model, **(usual | settings))


def estimates(fitted) -> np.ndarray:
    return np.array(list(fitted.expertise.by_demonstrator().values()))


@pytest.mark.parametrize("model", MODELS, ids=repr)
@pytest.mark.parametrize("actions", [2, 4])
def test_every_model_keeps_the_laws_of_demonstrator_models(model, actions):
    check_demonstrator_model(model, actions=actions)


@pytest.mark.parametrize("model", [ileed.BiasedMixture(), ileed.Persistent(biased=True)], ids=repr)
def test_habits_and_expertise_are_recovered(model):
    """1,500 steps each: 150 to 1,050 slips, so that a share has a standard error of 0.03 at most."""
    fitted = method(model).fit(simulated(habitual, people=4), seed=0, device="cpu")
    np.testing.assert_allclose(fitted.slips["slip"], HABITS, atol=0.1)
    np.testing.assert_allclose(estimates(fitted), RHO, atol=0.05)


def test_the_probability_of_repeating_is_recovered_and_expertise_with_it():
    fitted = method(ileed.Persistent()).fit(simulated(repeating, people=4), seed=0, device="cpu")
    np.testing.assert_allclose(fitted.slips["repeat"], 0.6, atol=0.1)
    np.testing.assert_allclose(estimates(fitted), RHO, atol=0.05)


def test_confusion_says_which_action_is_taken_for_which():
    fitted = method(ileed.Confusion()).fit(simulated(mistaking, people=4), seed=0, device="cpu")
    np.testing.assert_allclose(
        fitted.slips["confused"], np.tile(np.roll(np.eye(ACTIONS), 1, axis=1), (4, 1, 1)), atol=0.1
    )
    np.testing.assert_allclose(estimates(fitted), RHO, atol=0.1)


def erring_alike(random, person, right, previous):
    """Four are expert; six take the next action in 8 of 10 cases."""
    return right if random.random() < ((0.95, 0.9, 0.9, 0.85)[person] if person < 4 else 0.2) else (right + 1) % ACTIONS


def test_a_majority_that_errs_alike_is_believed_unless_one_of_the_others_is_gold():
    """The two orders are as likely; the one under which people follow the policy more often is taken without gold."""
    data = simulated(erring_alike, people=10, episodes=20)
    found = estimates(method(ileed.Confusion()).fit(data, seed=0, device="cpu"))
    assert found[:4].max() < 0.3
    assert found[4:].min() > 0.7
    told = estimates(method(ileed.Confusion()).fit(data, seed=0, device="cpu", gold=["person 0"]))
    assert told[:4].min() > 0.8
    assert told[4:].max() < 0.3


def test_people_with_few_slips_have_the_habits_of_the_prior():
    data = simulated(habitual, people=4, episodes=1, steps=2)
    fitted = method(ileed.BiasedMixture(pseudo_counts=1000.0)).fit(data, seed=0, device="cpu")
    np.testing.assert_allclose(fitted.slips["slip"], 1 / ACTIONS, atol=0.02)


def test_the_prior_counts_as_much_in_mini_batches_as_in_the_whole():
    """It is divided by the weight of all the data, so that a mini-batch has its share of it."""
    data = simulated(habitual, people=4, episodes=10)
    whole, parts = (
        method(ileed.BiasedMixture(pseudo_counts=50.0), batch_size=size, steps=2_000).fit(data, seed=0, device="cpu")
        for size in (None, 100)
    )
    np.testing.assert_allclose(parts.slips["slip"], whole.slips["slip"], atol=0.06)


@pytest.mark.parametrize("model", MODELS[:1] + MODELS[4:], ids=repr)
def test_newcomers_are_rated_with_habits_of_their_own(model):
    act = mistaking if isinstance(model, ileed.Confusion) else habitual
    data = simulated(act, people=6)
    known = data.by(*data.names[:4])
    fitted = method(model).fit(known, seed=0, device="cpu")
    rated = fitted.assess(data)
    np.testing.assert_allclose(rated.best.expertise, [*RHO, 0.9, 0.7], atol=0.09)


def test_people_of_the_fit_keep_their_parameters_beside_newcomers():
    data = simulated(habitual, people=6, episodes=10)
    fitted = method(ileed.BiasedMixture(), steps=100).fit(data.by(*data.names[:4]), seed=0, device="cpu")
    known = np.array([0, 1, 2, 3, -1, -1])
    joint = joint_with_newcomers(fitted.joint, fitted.normaliser, data, known, ())
    before, after = (each.demonstrator.get_parameter("slip") for each in (fitted.joint, joint))
    assert torch.equal(after[..., :4], before)
    assert not torch.equal(after[..., 4], after[..., 5])


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_runs_with_learned_slips_are_saved_and_loaded(model, tmp_path):
    fitted = method(model, steps=20).fit(simulated(habitual, people=4, episodes=3), seed=0, device="cpu")
    fitted.save(tmp_path / "run")
    loaded = ileed.load(tmp_path / "run")
    assert loaded.joint.parts.demonstrator == model
    assert fitted.slips.keys() == loaded.slips.keys()
    for name, value in fitted.slips.items():
        np.testing.assert_array_equal(loaded.slips[name], value)


@pytest.mark.parametrize("count", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("kind", [ileed.BiasedMixture, ileed.Persistent, ileed.Confusion])
def test_pseudo_counts_that_are_no_count_are_refused(kind, count):
    with pytest.raises(ileed.SettingsError, match="pseudo_counts"):
        kind(pseudo_counts=count)


# --- what is known of people


def test_gold_people_pull_the_policy_to_their_side():
    """Two camps of equal size, each consistent: the data cannot choose, and one gold person does."""

    def act(random, person, right, previous):
        own = right if person < 2 else (right + 1) % ACTIONS
        return own if random.random() < 0.9 else int(random.integers(ACTIONS))

    data = simulated(act, people=4, episodes=20)
    for gold in ("person 0", "person 3"):
        fitted = method(ileed.UniformMixture()).fit(data, seed=0, device="cpu", gold=[gold])
        best = max(fitted.expertise.by_demonstrator().items(), key=lambda item: item[1])[0]
        camp = {"person 0", "person 1"} if gold == "person 0" else {"person 2", "person 3"}
        assert best in camp


def test_gold_is_soft_and_a_known_order_is_heard():
    data = simulated(habitual, people=4)
    free = estimates(method(ileed.BiasedMixture()).fit(data, seed=0, device="cpu"))
    soft = estimates(method(ileed.BiasedMixture()).fit(data, seed=0, device="cpu", gold={"person 3": 0.1}))
    hard = estimates(method(ileed.BiasedMixture()).fit(data, seed=0, device="cpu", gold={"person 3": 100.0}))
    assert free[3] < soft[3] < hard[3]
    order = ileed.Known(better=[("person 3", "person 2")])
    told = estimates(method(ileed.BiasedMixture()).fit(data, seed=0, device="cpu", gold=order))
    assert told[3] - told[2] > free[3] - free[2]


def test_a_run_says_what_was_known_of_people_by_their_numbers(tmp_path):
    known = ileed.Known(gold={"person 2": 3.0}, better=[("person 0", "person 1")])
    data = simulated(habitual, people=4, episodes=2)
    method(ileed.UniformMixture(), steps=2).fit(data, seed=0, device="cpu", gold=known).save(tmp_path / "run")
    assert ileed.load(tmp_path / "run").provenance["known"] == {"gold": [[2, 3.0]], "better": [[0, 1]]}
    plain = method(ileed.UniformMixture(), steps=2).fit(data, seed=0, device="cpu")
    assert "known" not in plain.provenance


@pytest.mark.parametrize(
    ("gold", "says"),
    [
        (["nobody"], "no demonstrator 'nobody'"),
        ("person 0", "gold is 'person 0'"),
        ({"person 0": -1.0}, "gold of 'person 0'"),
        ([f"person {number}" for number in range(4)], "names every demonstrator"),
        (ileed.Known(better=[("person 0", "person 0")]), "better has"),
        (ileed.Known(better=[("person 0", "person 1"), ("person 1", "person 0")]), "above 'person 1' above 'person 0'"),
    ],
)
def test_knowledge_about_no_demonstrator_or_about_all_is_refused(gold, says):
    with pytest.raises(ileed.IleedError, match=says):
        method(ileed.UniformMixture(), steps=1).fit(simulated(habitual, people=4, episodes=2), seed=0, gold=gold)


def test_a_fit_with_gold_people_goes_on_from_its_own_checkpoint_alone(tmp_path):
    data = simulated(habitual, people=4, episodes=3)
    options = {"seed": 0, "device": "cpu", "checkpoint": tmp_path / "fit", "checkpoint_seconds": 0.0}
    short = method(ileed.UniformMixture(), steps=20)
    whole = short.fit(data, **options, gold=["person 0"])
    again = short.fit(data, **options, gold=["person 0"])
    assert whole.nats_per_action == again.nats_per_action
    with pytest.raises(ileed.IleedError, match="belongs to a fit with other settings"):
        short.fit(data, **options)


# --- difficulty


def test_abilities_and_easiness_are_recovered_and_shrinkage_keeps_people_to_one_number():
    """Three states are hard for all: demonstrators differ in ability alone, and the interaction stays small."""
    ability, hard = (2.0, 0.5, -1.0), np.array([0.0, 0.0, 0.0, -2.0, -2.0, -2.0])
    random = np.random.default_rng(0)
    state, who = random.integers(6, size=9_000), np.repeat([0, 1, 2], 3_000)
    rho = 1 / (1 + np.exp(-(np.array(ability)[who] + hard[state])))
    right = state % ACTIONS
    done = np.where(random.random(9_000) < rho, right, random.integers(ACTIONS, size=9_000))
    data = ileed.Demonstrations(
        observations=np.eye(6)[state],
        actions=done,
        demonstrator=who,
        episode=np.arange(9_000) // 50,
        names=("ann", "bob", "cy"),
        action_count=ACTIONS,
    )
    expertise = ileed.Difficulty(dim=1, hidden=())
    fitted = method(None, expertise=expertise, steps=1_500).fit(data, seed=0, device="cpu")
    found = np.stack([fitted.expertise(np.eye(6), name) for name in data.names])
    expected = 1 / (1 + np.exp(-(np.array(ability)[:, None] + hard)))
    # The level of each state shares its scale with the policy there; ratios between people do not. With 500 steps at a
    # hard state a share has a standard error of 0.03, by a mean of 0.25.
    np.testing.assert_allclose(found / found.mean(0), expected / expected.mean(0), atol=0.35)
    loose = method(None, expertise=ileed.Difficulty(dim=1, hidden=(), shrinkage=0.0), steps=1_500)
    free = loose.fit(data, seed=0, device="cpu")
    own, others = (each.joint.expertise.skill[0, 1:].abs().max() for each in (fitted, free))
    assert own < others


@pytest.mark.parametrize("shrinkage", [-1.0, float("nan")])
def test_a_shrinkage_that_is_no_precision_is_refused(shrinkage):
    with pytest.raises(ileed.SettingsError, match="shrinkage"):
        ileed.Difficulty(shrinkage=shrinkage)


def test_a_run_without_easiness_is_saved_and_loaded_and_rates_newcomers_as_if_alone(tmp_path):
    """Those of the fit keep their expertise whoever is rated: v is measured from the mean over the fit's people."""
    data = world((30,) * 6, people=3)
    expertise = ileed.Difficulty(dim=1, hidden=(), easiness=False)
    fitted = method(None, expertise=expertise, steps=20).fit(data.by("ann", "bob"), seed=0, device="cpu")
    fitted.save(tmp_path / "run")
    loaded = ileed.load(tmp_path / "run")
    assert loaded.joint.parts.expertise == expertise
    np.testing.assert_array_equal(
        loaded.expertise(data.observations, "ann"), fitted.expertise(data.observations, "ann")
    )
    together, alone = fitted.assess(data).alone, fitted.assess(data.by("cyd")).alone
    assert together.expertise[2] == pytest.approx(alone.expertise[0], abs=1e-6)


def test_difficulty_of_an_older_run_has_easiness():
    written = {"kind": "Difficulty", "dim": 2, "hidden": [3], "shrinkage": 5.0}
    rebuilt = runs.rebuilt(written, {"Difficulty": ileed.Difficulty})
    assert rebuilt == ileed.Difficulty(hidden=(3,), shrinkage=5.0, easiness=True)
