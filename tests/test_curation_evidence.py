"""Whether curation helps: subsets of the asked size, an oracle that sees skill alone, a page from records."""

import csv
import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import follows

import ileed
from ileed_lab.comparison import Records
from ileed_lab.curation import subsets
from ileed_lab.curation.differences import over_trials, paired, rows_of
from ileed_lab.curation.experiment import OURS, Cloning, CurationMiniGrid, Trained
from ileed_lab.curation.figures import differences_figure, rewards_figure, square_figure
from ileed_lab.curation.others import CurationTrainers
from ileed_lab.curation.page import NAMES, curation_page
from ileed_lab.curation.square import SELECTIONS as IN_SQUARE
from ileed_lab.curation.square import Cloned, CurationSquare, Judge, Judged, Own, tiers
from ileed_lab.curation.subsets import OTHERS, RULES, SELECTIONS, Curator, best_episodes, select
from ileed_lab.grid import Cell

SKILL = (0.95, 0.9, 0.5, 0.4, 0.3)
QUICK = ileed.Ileed(policy=ileed.CategoricalMLP(hidden=(8,)), restarts=1, steps=200, learning_rate=0.02, folds=2)


@cache
def data():
    """Five people of known skill, in episodes of different lengths, some of which are rewarded."""
    made = follows(list(SKILL), steps=400, actions=4, seed=1)
    random = np.random.default_rng(0)
    episode = np.cumsum(random.random(len(made)) < 0.08)
    episode = np.unique(episode * 10 + made.demonstrator, return_inverse=True)[1]
    order = np.argsort(episode, kind="stable")
    return ileed.Demonstrations(
        observations=made.observations[order],
        actions=made.actions[order],
        demonstrator=made.demonstrator[order],
        episode=episode[order],
        rewards=random.integers(0, 2, len(made)).astype(np.float32),
    )


@cache
def curation(seed=0):
    return Curator(QUICK)(data(), seed=seed, device="cpu")


def chosen(selection, seed=0, **other):
    return select(selection, **({"data": data(), "curation": curation(), "skills": SKILL, "seed": seed} | other))


# --- subsets


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.data())
def test_as_many_episodes_as_asked_for_are_chosen_and_no_other_has_a_higher_score(scores, drawn):
    size = drawn.draw(st.integers(1, len(scores)))
    kept = best_episodes(np.array(scores), size, seed=drawn.draw(st.integers(0, 99)))
    assert kept.sum() == size
    assert np.array(scores)[kept].min() >= max(np.array(scores)[~kept], default=-1)


def test_chance_decides_among_equals():
    kept = [best_episodes(np.zeros(50), 10, seed=seed) for seed in range(20)]
    assert len({each.tobytes() for each in kept}) == 20
    assert 0.1 < np.mean(kept, axis=0)[:25].mean() < 0.3  # not the first ones


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("other", OTHERS)
def test_every_other_way_keeps_as_many_episodes_as_the_rule(rule, other):
    assert chosen(f"{rule}-{other}").kept.sum() == chosen(rule).kept.sum() < data().episode_count


@pytest.mark.parametrize("selection", SELECTIONS)
def test_a_selection_is_the_same_for_the_same_seed(selection):
    again = Curator(replace(QUICK))(data(), seed=0, device="cpu")
    one, two = chosen(selection), chosen(selection, curation=again)
    assert (one.kept == two.kept).all()
    assert (one.weights is None) == (two.weights is None) == (selection != "weighted")


def test_random_episodes_depend_on_the_seed_and_on_nothing_that_was_judged():
    assert (chosen("half-random").kept != chosen("half-random", seed=1).kept).any()
    assert (chosen("half-random").kept == chosen("half-random", skills=SKILL[::-1]).kept).all()


def test_the_oracle_sees_true_skill_and_nothing_of_the_episodes():
    own = data()
    scrambled = replace(own, actions=own.actions[::-1], rewards=own.rewards[::-1])
    one, two = chosen("half-oracle"), chosen("half-oracle", data=scrambled)
    assert (one.kept == two.kept).all()
    skill = np.array(SKILL)[own.episode_demonstrator]
    assert skill[one.kept].min() >= skill[~one.kept].max()


@pytest.mark.parametrize("selection", [name for name in SELECTIONS if "oracle" not in name])
def test_only_the_oracle_sees_true_skill(selection):
    unknown = chosen(selection, skills=[float("nan")] * len(SKILL))
    assert (unknown.kept == chosen(selection).kept).all()


def test_length_takes_the_shortest_and_reward_the_best_paid():
    steps, returns = np.bincount(data().episode), np.bincount(data().episode, data().rewards)
    short, paid = chosen("half-length").kept, chosen("half-reward").kept
    assert steps[short].max() <= steps[~short].min()
    assert returns[paid].min() >= returns[~paid].max()


def test_without_rewards_there_is_no_choice_by_them():
    with pytest.raises(ileed.SettingsError, match="have no rewards"):
        chosen("half-reward", data=replace(data(), rewards=None))


def test_a_rule_that_finds_nothing_keeps_everything_and_says_why(monkeypatch):
    monkeypatch.setattr(subsets, "RULES", {"above": {"above": 1e6}})
    found = subsets._curated(curation().fitted, data(), 0)
    assert found.subsets["above"].kept.all()
    assert "lower above" in found.sentences["above"]


def test_the_summary_of_a_selection_has_its_true_skill():
    summary = chosen("half").summary(data(), SKILL)
    assert summary["episodes"] == chosen("half").kept.sum()
    assert summary["steps"] == len(chosen("half").of(data()))
    assert 0.3 <= summary["skill"] <= 0.95


@pytest.mark.parametrize("selection", ["everything", "weighted", "half", "half-oracle"])
def test_a_clone_of_a_subset_is_that_of_the_subset_alone(selection):
    trainer = ileed.bc(policy=ileed.CategoricalMLP(hidden=(4,)), restarts=2, steps=30)
    clone = Cloning(selection, trainer, SKILL, Curator(QUICK)).fit(data(), seed=0, device="cpu")
    subset = chosen(selection)
    alone = trainer.fit(subset.of(data()), seed=0, device="cpu", weights=subset.weights, check_width=False)
    seen = data().observations[:50]
    np.testing.assert_allclose(clone.policy.distribution(seen).probs, alone.policy.distribution(seen).probs, atol=1e-4)


# --- the experiment


def test_the_experiment_scores_a_clone_and_the_best_demonstrator_in_the_same_episodes():
    experiment, setting = CurationMiniGrid(), {"task": "minigrid/empty", "population": "beta-1"}
    measured = experiment.measure(setting, "demonstrators", 0, None)
    assert 0.9 * measured["expert"] <= measured["reward"] <= 1
    expert = Trained(ileed.envs.expert("minigrid/empty"), {"episodes": 3}, 0.0)
    found = experiment.measure(setting, "bc-everything", 0, expert)
    assert found == {"reward": pytest.approx(measured["expert"]), "episodes": 3}


def test_trials_are_not_those_on_which_curation_was_tried():
    setting = {"task": "minigrid/empty", "population": "beta-5"}
    (ours,) = CurationMiniGrid().demonstrations(setting, [0])
    (others,) = CurationTrainers().demonstrations({"trainer": "imitation-bc", **setting}, [0])
    assert ours.fingerprint == others.fingerprint
    assert (ours.names, ours.episode_count > 100) == (tuple(f"demonstrator {k}" for k in range(1, 11)), True)


# --- Square


@cache
def operators(seed=0):
    """Six operators of three tiers, who move as they see, with more noise the worse they are."""
    random = np.random.default_rng(seed)
    names = tuple(f"{tier}_operator_{number}" for tier in ("better", "okay", "worse") for number in (1, 2))
    seen = random.normal(size=(720, 3))
    who = np.repeat(np.arange(6), 120)
    noise = random.normal(size=(720, 2)) * np.array([0.05, 0.05, 0.3, 0.3, 0.8, 0.8])[who][:, None]
    episode = np.arange(720) // 4
    return ileed.Demonstrations(
        observations=seen, actions=seen[:, :2] + noise, demonstrator=who, episode=episode, names=names
    )


BRIEF = ileed.MixtureLSTM(hidden=(4,), length=3, shared_standard_deviations=True)
CLONE = ileed.bc_rnn(policy=BRIEF, steps=5)
JUDGE = Judge(ileed.Ileed(policy=ileed.MixtureMLP(hidden=(8,), modes=1), restarts=2, steps=200, learning_rate=0.02))


def cloned(selection, seed=0, judge=JUDGE):
    return Cloned(selection, CLONE, judge).fit(operators(), seed=seed, device="cpu")


def test_the_oracle_of_square_knows_the_tier_of_the_operator():
    assert tiers(operators()) == (2, 2, 1, 1, 0, 0)
    chosen = Cloned("half-oracle", CLONE, JUDGE).subset("half-oracle", operators(), seed=0, device="cpu")
    kept = np.array(tiers(operators()))[operators().episode_demonstrator][chosen.kept]
    assert sorted(kept) == [1] * 30 + [2] * 60


def test_halves_in_square_have_as_many_episodes_and_random_ones_differ_between_trials():
    clone = Cloned("half", CLONE, JUDGE)
    halves = [clone.subset(name, operators(), seed=0, device="cpu") for name in IN_SQUARE if name.startswith("half")]
    assert {int(each.kept.sum()) for each in halves} == {90}
    drawn = [clone.subset("half-random", operators(), seed=seed, device="cpu").kept for seed in (0, 1)]
    assert (drawn[0] != drawn[1]).any()


def test_weights_in_square_are_those_that_curation_gives():
    chosen = Cloned("weighted", CLONE, JUDGE).subset("weighted", operators(), seed=0, device="cpu")
    expected = ileed.curate(JUDGE(operators(), seed=0, device="cpu").fitted, operators(), weight=True)
    assert chosen.kept.all()
    np.testing.assert_array_equal(chosen.weights, expected.weights)
    alone = CLONE.fit(operators(), seed=2_001, device="cpu", weights=expected.weights, check_width=False)
    seen = operators().observations[:5]
    assert (cloned("weighted", seed=1).policy.predict(seen)[0] == alone.policy.predict(seen)[0]).all()


def test_a_selection_that_equals_an_earlier_one_names_it_and_trains_nothing():
    recommended = JUDGE(operators(), seed=0, device="cpu").curated["curated"]
    curated = cloned("curated")
    best = recommended.recommendation.best
    assert (
        curated.summary.get("same_as")
        == {
            "everything": "everything",
            "weights": "weighted",
            "the best 75%": None,
            "the best 50%": "half",
        }["everything" if best is None else best.name]
    )
    assert (curated.policy is None) == ("same_as" in curated.summary)
    assert "same_as" not in cloned("half-random").summary


def test_the_judge_of_square_tells_the_order_of_the_tiers_and_what_it_recommends():
    summary = Judged(JUDGE).fit(operators(), seed=0, device="cpu").summary
    assert summary["tiers_in_order"] is True
    assert summary["expertise"].keys() == set(operators().names)
    assert [each["name"] for each in summary["comparisons"]] == ["weights", "the best 75%", "the best 50%"]
    assert CurationSquare().measure({}, "judge", 0, Judged(JUDGE).fit(operators(), seed=0, device="cpu")) == summary
    own = Own(ileed.Ileed(policy=BRIEF, restarts=1, steps=5, folds=0)).fit(operators(), seed=0, device="cpu")
    assert own.policy.recurrent


# --- the page


def write(results, experiment, setting, method, rewards, **summary):
    trials = [
        {"trial": trial, "reward": reward, **summary, "fit_seconds": 1.0, "score_seconds": 1.0}
        for trial, reward in enumerate(rewards)
    ]
    origin = {"commit": "0123456789ab", "date": "2026-01-01", "machine": "Linux", "device": "cpu"}
    Cell(experiment, setting, method).write(results, trials, [origin])


@pytest.fixture
def results(tmp_path):
    """Curation helps one trainer in one population of two, and hurts another trainer; the rest was not run."""
    ours, others, summary = CurationMiniGrid(), CurationTrainers(), {"episodes": 10, "steps": 100, "skill": 0.5}
    first, second, *_ = ours.settings()
    for setting, everything in ((first, 0.5), (second, 0.9)):
        write(tmp_path, ours, setting, "demonstrators", [0.9, 0.9, 0.9], expert=0.9)
        write(tmp_path, ours, setting, "ileed", [0.9, 0.9, 0.9], length_correlation=-0.25, rules={})
        for selection in SELECTIONS:
            lift = 0.0 if selection == "everything" or "random" in selection else 0.9 - everything
            rewards = [everything + lift, everything + lift, everything + lift]
            write(tmp_path, ours, setting, f"bc-{selection}", rewards, **summary)
    setting = {"trainer": "imitation-bc", **first}
    made = {"release": "imitation 1.0", "trainer_settings": {"batches": 3}}
    for selection, reward in (("everything", 0.9), ("above", 0.4), ("above-random", 0.5)):
        write(tmp_path, others, setting, selection, [reward, reward, reward + 0.01], **summary, **made)
    return tmp_path


def test_the_page_says_where_curation_helps_where_it_does_not_and_what_was_not_run(results):
    made = curation_page(results)
    page = made.text + made.details_text
    ours, others = NAMES["bc"], NAMES["imitation-bc"]
    assert f"| {ours} | above the mean | 2 with a competent demonstrator | 1 better, 1 nothing to gain |" in page
    assert f"| {others} | above the mean | 1 with a competent demonstrator | 1 worse | 1 worse |" in page
    assert f"| {others} | Empty beta-1 | above the mean | worse than everything | -0.500 (-0.500 to -0.500) |" in page
    differences = list(csv.reader(made.downloads["curation-differences.csv"].splitlines()))
    assert ["above the mean", ours, "Empty beta-1", "yes", "3", "+0.400 (0.400 to 0.400)"] in [
        row[:6] for row in differences
    ]
    missing = ["above the mean", NAMES["robomimic-bc-rnn"], "Lava unif", "?", "not run", "not run"]
    assert missing in [row[:6] for row in differences]
    assert "| -0.25 (-0.25 to -0.25) |" in page
    assert "imitation 1.0: batches 3" in page


def test_the_page_tells_success_in_square_in_percentage_points(results):
    square = CurationSquare()
    (setting,) = square.settings()
    kept = {"episodes": 150, "steps": 9_000, "skill": 1.5}
    compared = [{"name": "weights", "gain": 0.02, "low": -0.01, "high": 0.05}]
    judged = {
        "expertise": {"ann": 0.5},
        "tiers_in_order": True,
        "horizon": 5,
        "reliability": 0.9,
        "sentence": "ann is alone",
        "recommended": "everything",
        "comparisons": compared,
        "length_correlation": -0.5,
    }
    origin = {"commit": "0123456789ab", "date": "2026-01-01", "machine": "Linux", "device": "cpu"}
    for method in square.methods(setting):
        lift = {"weighted": 0.2, "half": -0.1}.get(method, 0.0)
        summary = {"success": 0.5 + lift, **({} if method == "ileed" else kept)}
        summary = {"curated": kept | {"same_as": "weighted"}, "judge": judged}.get(method, summary)
        trials = [{"trial": k, **summary} for k in range(3)]
        Cell(square, setting, method).write(results, trials, [origin])
    made = curation_page(results)
    page = made.text + made.details_text
    assert "- Everything, weighted: **above** everything (+20.0 (20.0 to 20.0) points, 3 trials)" in page
    assert "- The best half: **below** everything (-10.0 (-10.0 to -10.0) points, 3 trials)" in page
    assert "- Curated with defaults: **above** everything (+20.0 (20.0 to 20.0) points, 3 trials)" in page
    row = "| 3 | 150 | 9,000 | 1.50 | 70.0 (70.0 to 70.0) | **+20.0 (20.0 to 20.0)** |"
    assert f"| everything, weighted {row}" in page
    assert f"| curated with defaults, the same as everything, weighted {row}" in page
    assert "in order in 3 of 3 fits" in page
    assert "| gain of weights | +2.0% [-1.0%, +5.0%] | +2.0% [-1.0%, +5.0%] |" in page
    assert b"percent succeeded" in square_figure(results)


def test_the_page_of_no_results_says_that_nothing_was_run(tmp_path):
    made = curation_page(tmp_path)
    page = made.text + made.details_text
    assert "Nothing was run." in page
    assert "images/" not in page
    assert "Square" not in page


def test_every_trainer_of_the_page_has_a_name(results):
    rows = list(rows_of(Records(results, family="curation")))
    assert {row.trainer for row in rows} == NAMES.keys()
    assert sum(row.trainer in OURS for row in rows) == 16 * len(OURS)


def test_an_interval_over_trials_is_students():
    found = over_trials({0: 1.0, 1: 2.0, 2: 3.0})
    assert (found.mean, found.low) == (2.0, pytest.approx(2 - 4.302653 / 3**0.5, abs=1e-4))
    assert paired({0: 1.0, 2: 5.0}, {0: 0.5, 1: 9.0}).mean == 0.5
    assert over_trials({}) is None


def test_figures_are_drawn_from_the_same_rows(results):
    assert b"Empty beta-1" in differences_figure(results)
    assert b"oracle, as many" in rewards_figure(results)


def test_records_hold_the_rules_that_were_fixed():
    header = CurationMiniGrid().settings()[0]
    cell = Cell(CurationMiniGrid(), header, "bc-above")
    assert json.loads(json.dumps(cell.header()))["settings"]["selection"] == "above"
    assert RULES == {
        "above": {"above": 1.0, "probability": 0.9, "at_least": 5},
        "half": {"keep": 0.5, "at_least": 5},
    }
