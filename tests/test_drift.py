"""Drift: expertise that changes from episode to episode is recovered, rated, saved, shown and curated by."""

from __future__ import annotations

import html
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_simulation import Corridor, Leaning

import ileed
from ileed import DemonstrationError, SettingsError
from ileed.cli import run as command
from ileed.envs.simulation import Drifting, demonstrate
from ileed.model.batch import Batch, Sizes
from ileed.model.expertise import practice
from ileed.rating.answers import blocks_of_policy
from ileed.rating.learning_curves import learning_curves
from ileed.rating.step_likelihood import StepLikelihood
from ileed.report.sections import Content

EPISODES, STEPS, ACTIONS, STATES = 40, 60, 4, 12
RIGHT = np.arange(STATES) % ACTIONS
PEOPLE = {"ann": (0.3, 0.9), "bob": (0.9, 0.4), "cy": (0.6, 0.6), "dee": (0.85, 0.85), "eve": (0.5, 0.9)}
METHOD = ileed.Ileed(
    policy=ileed.CategoricalMLP(hidden=()),
    expertise=ileed.Drift(),
    restarts=2,
    steps=300,
    learning_rate=0.05,
    skill_learning_rate=0.05,
    folds=3,
)


def logit(value):
    return np.log(value) - np.log1p(-value)


def drifting(ends, *, episodes=EPISODES, steps=STEPS, seed=0) -> ileed.Demonstrations:
    """Episodes of people whose expertise goes from one number to another; people take turns."""
    random = np.random.default_rng(seed)
    people = [Drifting(first=first, last=last, episodes=episodes) for first, last in ends.values()]
    rho = np.array([[own.at(number) for own in people] for number in range(episodes)])
    who = np.tile(np.arange(len(people)), episodes)
    follows = random.random((rho.size, steps)) < rho.ravel()[:, None]
    state = random.integers(STATES, size=follows.shape)
    action = np.where(follows, RIGHT[state], random.integers(ACTIONS, size=follows.shape))
    return ileed.Demonstrations(
        observations=np.eye(STATES, dtype=np.float32)[state.ravel()],
        actions=action.ravel(),
        demonstrator=np.repeat(who, steps),
        episode=np.repeat(np.arange(rho.size), steps),
        names=tuple(ends),
        action_count=ACTIONS,
    )


def curves_by_truth(data, **settings):
    """Learning curves by the policy that people do follow."""
    right = torch.from_numpy(RIGHT[data.observations.argmax(1)])
    policy = torch.nn.functional.one_hot(right, ACTIONS).double().clamp_min(1e-12).log()
    blocks = blocks_of_policy(lambda part: policy[part], ileed.UniformMixture(), data)
    return learning_curves(StepLikelihood(data, lambda _: blocks), episodes=EPISODES, **settings)


@pytest.fixture(scope="module")
def data():
    return drifting(PEOPLE)


@pytest.fixture(scope="module")
def fitted(data):
    return METHOD.fit(data, seed=0, device="cpu")


@pytest.fixture(scope="module")
def run(fitted, tmp_path_factory):
    path = tmp_path_factory.mktemp("drift") / "run"
    fitted.save(path)
    return path


# --- the model


def net_at(number, episodes=10):
    sizes = Sizes(inputs=1, demonstrators=2, actions=2)
    net = ileed.Drift(episodes=episodes).build(sizes, [torch.Generator().manual_seed(0)])
    batch = Batch.of(
        sizes=sizes,
        observations=torch.zeros(1, 1),
        observation_index=torch.zeros(2, dtype=torch.int64),
        demonstrator=torch.arange(2),
        action=torch.zeros(2, dtype=torch.int64),
        weight=torch.ones(2),
    )
    return net, replace(batch, context={"episode_number": torch.full((2,), number)})


@pytest.mark.parametrize("number", [0, 3, 9, 30])
def test_expertise_against_arithmetic(number):
    net, batch = net_at(number)
    with torch.no_grad():
        net.skill[0] = torch.tensor([[0.5, -1.0], [2.0, 0.25]])
        net.common[:] = -0.5
    done = np.log(1 + number) / np.log(10)
    expected = [1 / (1 + np.exp(-(0.5 + 1.5 * done))), 1 / (1 + np.exp(-(-1.0 - 0.25 * done)))]
    np.testing.assert_allclose(net(None, batch)[0].detach(), expected, atol=1e-6)
    assert net.log_prior().item() == pytest.approx(-0.5 * (2.0**2 + 0.25**2 + 0.5**2))


def test_before_anything_is_learned_no_demonstrator_drifts():
    (net, first), (_, last) = net_at(0), net_at(9)
    assert torch.equal(net(None, first), net(None, last))
    assert torch.equal(net(None, first), net.skill[:, 0].sigmoid())


def test_practice_goes_from_zero_to_one():
    assert practice(torch.tensor([0.0, 39.0]), 40).tolist() == pytest.approx([0, 1])


@pytest.mark.parametrize(
    ("settings", "told"),
    [({"episodes": 1}, "two episodes"), ({"shrinkage": -1.0}, "shrinkage")],
)
def test_settings_that_mean_nothing_are_refused(settings, told):
    with pytest.raises(SettingsError, match=told):
        ileed.Drift(**settings)


def test_people_with_one_episode_each_are_refused():
    with pytest.raises(SettingsError, match="none has two"):
        METHOD.fit(drifting(PEOPLE, episodes=2).each_episode(), seed=0)


def test_what_depends_on_the_episode_is_refused_where_expertise_does_not():
    """Whether the fit has intervals or not."""
    data = drifting(PEOPLE, episodes=2)
    fitted = ileed.Ileed(expertise=ileed.Constant(), restarts=1, steps=2, folds=0).fit(data, seed=0)
    for asked in (
        fitted.expertise.drift,
        fitted.expertise.curve,
        lambda: fitted.expertise(data.observations[:2], data.names[0], episode=1),
    ):
        with pytest.raises(SettingsError, match="fit with expertise=Drift"):
            asked()


# --- recovery and coverage


def standard_errors(ends) -> np.ndarray:
    """Of the change of the logit, by the Fisher information of each person's steps under the true policy."""
    done, found = np.log1p(np.arange(EPISODES)) / np.log(EPISODES), []
    for first, last in ends.values():
        rho = 1 / (1 + np.exp(-(logit(first) + (logit(last) - logit(first)) * done)))
        right = rho + (1 - rho) / ACTIONS
        weight = STEPS * ((1 - 1 / ACTIONS) * rho * (1 - rho)) ** 2 / (right * (1 - right))
        design = np.stack([np.ones_like(done), done])
        found.append(np.linalg.inv((design * weight) @ design.T)[1, 1] ** 0.5)
    return np.array(found)


def test_drift_is_recovered(fitted):
    """Within 3.5 standard errors (0.2 to 0.3 logits) and what the prior takes off; a right fit fails in 1 of 400."""
    net = fitted.joint.expertise
    found = (net.common + net.skill[:, 1])[0].detach().numpy()
    truth, error = np.array([logit(last) - logit(first) for first, last in PEOPLE.values()]), standard_errors(PEOPLE)
    prior = error**2 * abs(truth - truth.mean())
    assert (abs(found - truth) <= 3.5 * error + prior).all(), (found, truth, error)
    ends = [[fitted.expertise(np.eye(STATES)[:1], name, episode=at)[0] for at in (0, EPISODES - 1)] for name in PEOPLE]
    np.testing.assert_allclose(ends, list(PEOPLE.values()), atol=0.2)


def test_cross_fitted_curves_say_who_improves_and_who_tires(fitted):
    """Intervals of 99.9 % hold all five changes with probability 0.995; two who stay the same are told with 0.98."""
    told = {row["demonstrator"]: row for row in fitted.expertise.drift(relative=False).to_pylist()}
    wide = fitted.expertise.drift(relative=False, confidence_level=0.999).to_pylist()
    for row in wide:
        first, last = PEOPLE[row["demonstrator"]]
        assert row["change_low"] <= last - first <= row["change_high"], row
    sure = fitted.expertise.drift(confidence_level=0.99).to_pylist()
    undecided = dict.fromkeys(("cy", "dee"), "cannot be told")
    assert {row["demonstrator"]: row["verdict"] for row in sure} == {
        "ann": "improves",
        "eve": "improves",
        "bob": "tires",
    } | undecided
    changes = [row["change"] for row in told.values()]
    assert changes == sorted(changes, reverse=True)
    said = fitted.expertise.ratings.curves.sentence(0.99)
    improve, tires = "ann and eve improve from episode to episode", "bob tires from episode to episode"
    assert said == f"{improve}; {tires}; for 2, it cannot be told"


def change_curves(seed, drifts):
    """Curves by the true policy of people of whom some drift by Gaussian changes, and those changes."""
    random = np.random.default_rng(seed)
    start, change = random.normal(0.5, 1, 6), random.normal(0.3, 0.8, 6) * np.array(drifts)
    ends = {str(k): (expit(start[k]), expit(start[k] + change[k])) for k in range(6)}
    return curves_by_truth(drifting(ends, steps=15, seed=seed)), change


def test_intervals_of_the_change_cover_the_truth():
    """Of 120 intervals of 95 %, fewer than 105 cover with probability 0.0003."""
    covered = []
    for seed in range(20):
        found, change = change_curves(seed, [True] * 6)
        low, high = np.quantile(found.draws[..., 1], [0.025, 0.975], axis=0)
        covered += [*((low <= change) & (change <= high))]
    assert sum(covered) >= 105


def test_those_who_stay_the_same_among_others_are_seldom_said_to_drift():
    """Of 36, more than 7 are with probability 0.0003 where the rate is 5 %."""
    found = [change_curves(seed, [True] * 3 + [False] * 3)[0].verdicts(0.95)[3:] for seed in range(100, 112)]
    assert sum(verdict != "cannot be told" for verdicts in found for verdict in verdicts) <= 7


def expit(value):
    return float(1 / (1 + np.exp(-value)))


# --- pooling and newcomers


def test_with_few_episodes_the_change_shrinks_towards_the_population_without_a_verdict():
    ends = {str(k): (0.4, 0.85) for k in range(8)}
    data = drifting(ends)
    few = (data.demonstrator > 0) | (data.own_episode_number < 2)
    found = curves_by_truth(data.select(few))
    change = found.draws[..., 1].mean(0)
    assert change[0] == pytest.approx(change[1:].mean(), abs=0.3)
    assert found.verdicts(0.95) == ["cannot be told"] + ["improves"] * 7


def test_newcomers_have_learning_curves_too(fitted, data):
    ends = {"gus": (0.3, 0.9), "hal": (0.9, 0.3)}
    found = fitted.assess(drifting(ends, seed=1))
    verdicts = {row["demonstrator"]: row["verdict"] for row in found.drift().to_pylist()}
    assert verdicts == {"gus": "improves", "hal": "tires"}
    np.testing.assert_array_equal(found.curves.population, fitted.expertise.ratings.curves.population)
    one = fitted.assess(drifting({"ivy": (0.5, 0.5)}, episodes=2).select(np.arange(2 * STEPS) < STEPS))
    assert one.drift().to_pylist()[0]["verdict"] == "cannot be told"


def test_late_episodes_alone_are_rated_where_they_stood(fitted, data):
    late = data.select(data.own_episode_number >= EPISODES // 2)
    row = next(row for row in fitted.assess(late).drift(relative=False).to_pylist() if row["demonstrator"] == "ann")
    assert row["episodes"] == EPISODES // 2
    assert row["first"] == pytest.approx(Drifting(first=0.3, last=0.9, episodes=EPISODES).at(20), abs=0.12)


# --- numbers of episodes


def test_a_selection_keeps_the_numbers_of_episodes_and_a_file_does_too(data, tmp_path):
    late = data.select(data.own_episode_number >= 30)
    assert set(late.own_episode_number) == set(range(30, 40))
    assert set(late.by("ann").own_episode_number) == set(range(30, 40))
    early = data.select(data.own_episode_number < 30)
    assert early.episode_number is None  # as counted
    assert late.fingerprint != replace(late, episode_number=None).fingerprint
    ileed.write_parquet(late, tmp_path / "late.parquet")
    np.testing.assert_array_equal(ileed.read(tmp_path / "late.parquet").own_episode_number, late.own_episode_number)


@pytest.mark.parametrize(
    ("numbers", "told"),
    [([0, 0, 1, 1, -1, -1], "is -1"), ([0, 1, 1, 1, 2, 2], "within an episode"), ([0.5] * 6, "whole")],
)
def test_numbers_that_number_no_episodes_are_refused(numbers, told):
    with pytest.raises(DemonstrationError, match=told):
        ileed.Demonstrations(
            observations=np.zeros((6, 1)), actions=[0] * 6, episode=[0, 0, 1, 1, 2, 2], episode_number=numbers,
            demonstrator=[0] * 6, action_count=2,
        )  # fmt: skip


# --- every way of fitting


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_size": 64},
        {"demonstrator": ileed.Persistent()},
        {"demonstrator": ileed.Confusion()},
        {"policy": ileed.CategoricalMLP(hidden=(4,)), "demonstrator": ileed.Boltzmann()},
    ],
    ids=repr,
)
def test_drift_stands_beside_other_settings(settings, tmp_path):
    fitted = replace(METHOD, steps=5, restarts=1, folds=2, **settings).fit(
        drifting(PEOPLE, episodes=4, steps=15), seed=0, device="cpu"
    )
    fitted.save(tmp_path / "run")
    assert ileed.load(tmp_path / "run").expertise.by_demonstrator() == fitted.expertise.by_demonstrator()


def test_drift_stands_beside_a_recurrent_policy_of_continuous_actions():
    data = drifting(PEOPLE, episodes=4, steps=15)
    moves = replace(
        data, actions=np.eye(ACTIONS, dtype=np.float32)[data.actions] + 0.1 * data.observations[:, :4], action_count=0
    )
    policy = ileed.MixtureLSTM(hidden=(4,), length=5, modes=1)
    fitted = ileed.Ileed(policy=policy, expertise=ileed.Drift(), restarts=1, steps=3, folds=2).fit(
        moves, seed=0, device="cpu"
    )
    assert fitted.expertise.drift().num_rows == len(PEOPLE)


def test_fits_of_several_data_sets_have_each_their_own_number_of_episodes():
    sets = [drifting(PEOPLE, episodes=4, steps=15), drifting(PEOPLE, episodes=6, steps=15)]
    method = replace(METHOD, steps=5, restarts=1, folds=0)
    together = method.fit_each(sets, seeds=[0, 1], device="cpu")
    for data, seed, ensemble in zip(sets, (0, 1), together, strict=True):
        alone = method.fit(data, seed=seed, device="cpu")
        found = ensemble.top(1).fitted()
        assert found.joint.parts.expertise == alone.joint.parts.expertise
        assert found.nats_per_action == pytest.approx(alone.nats_per_action, abs=1e-5)


# --- kept, shown and used


def test_a_loaded_run_has_the_same_curves(fitted, run):
    loaded = ileed.load(run)
    assert loaded.expertise.drift().equals(fitted.expertise.drift())
    assert loaded.expertise.curve().equals(fitted.expertise.curve())
    seen = np.eye(STATES)[:2]
    np.testing.assert_array_equal(loaded.expertise(seen, "ann"), fitted.expertise(seen, "ann", episode=EPISODES - 1))


def test_curves_carry_the_pseudonyms(fitted, data):
    hidden = fitted.renamed(data.pseudonyms())
    assert set(hidden.expertise.drift()["demonstrator"].to_pylist()) == set(data.pseudonyms().values())


def test_a_fit_without_drift_has_no_curves_and_says_what_to_do(data):
    constant = replace(METHOD, expertise=ileed.Constant(), steps=5, folds=2).fit(data, seed=0, device="cpu")
    with pytest.raises(SettingsError, match=r"fit with expertise=Drift\(\)"):
        constant.expertise.drift()
    assert "drift" not in [section.name for section in Content(constant, {}, {}).sections]


def test_the_report_shows_the_curves_and_says_who_improves(fitted, run, tmp_path):
    page = ileed.report(run, out=tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Who improves and who tires" in page
    assert page.count("the demonstrator&#x27;s own episode") + page.count("the demonstrator's own episode") >= len(
        PEOPLE
    )
    said = fitted.expertise.ratings.curves.sentence(0.95)
    assert said in html.unescape(page).replace("\N{NO-BREAK SPACE}", " ")
    assert "bob tires" in said


def test_late_episodes_of_those_who_learned_are_kept_and_those_of_the_tired_are_not(fitted, data):
    curated = ileed.curate(fitted, data, keep=0.5)
    number = data.own_episode_number[np.searchsorted(data.episode, np.arange(data.episode_count))]
    score, who = curated.scores["expertise"].estimate, data.episode_demonstrator
    early, late = number < 10, number >= 30
    assert score[late & (who == 0)].mean() > score[early & (who == 0)].mean() + 0.3
    assert score[late & (who == 1)].mean() < score[early & (who == 1)].mean() - 0.2


def test_the_command_fits_rates_and_says_who_improves(data, tmp_path, capsys):
    path, out = tmp_path / "demos.parquet", tmp_path / "run"
    ileed.write_parquet(data, path)
    settings = "--policy CategoricalMLP(hidden=()) --expertise Drift() --restarts 1 --steps 200 --folds 2 --device cpu"
    rates = "--learning-rate 0.05 --skill-learning-rate 0.05"
    assert command(["fit", str(path), *settings.split(), *rates.split(), "--out", str(out)]) == 0
    assert "bob tires from episode to episode" in " ".join(capsys.readouterr().out.split())
    assert command(["rate", str(out), str(path), "--json"]) == 0
    assert {row["demonstrator"] for row in json.loads(capsys.readouterr().out)["drift"]} == set(PEOPLE)


# --- simulation


def test_simulated_people_drift_as_they_were_told_to():
    own = Drifting(first=0.2, last=0.9, episodes=50)
    assert [own.at(0), own.at(49)] == pytest.approx([0.2, 0.9])
    assert own.change == pytest.approx(logit(0.9) - logit(0.2))
    data = demonstrate(Corridor(), Leaning(), skill={"ann": own, "bob": 0.5}, steps=1_500, seed=0)
    follows, number, ann = data.actions == data.observations[:, 0], data.own_episode_number, data.demonstrator == 0
    for part in (range(10), range(100, 150)):
        steps = ann & np.isin(number, part)
        truth = np.mean([own.at(each) for each in part])
        expected = truth + (1 - truth) / 5  # of five actions, of which a slip takes any
        assert follows[steps].mean() == pytest.approx(expected, abs=4 * 0.5 / steps.sum() ** 0.5)
    still = demonstrate(Corridor(), Leaning(), skill={"ann": 0.3, "bob": 0.5}, steps=1_500, seed=0)
    np.testing.assert_array_equal(data.actions[~ann], still.actions[~ann])


@pytest.mark.parametrize("ends", [(0.0, 0.5), (0.5, 1.0), (-0.1, 0.5)])
def test_skill_that_changes_lies_between_zero_and_one(ends):
    with pytest.raises(SettingsError, match="above 0 and below 1"):
        Drifting(first=ends[0], last=ends[1], episodes=3)
