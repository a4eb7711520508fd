"""Comparing demonstrator models: the right one is preferred, the simplest where the data cannot choose."""

from __future__ import annotations

from dataclasses import replace
from math import isnan, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from scipy.stats import spearmanr
from test_slips import habitual, method, repeating
from test_third_party import ACTIONS, simulated

import ileed
from ileed.parallel import LocalExecutor
from ileed.rating.ranks import orders_alike, rank_correlation
from ileed.selection import CANDIDATES, MODEL_FOLDS, MODEL_RESTARTS, Folds, ModelComparison, demonstrator_models

FEW = (ileed.UniformMixture(), ileed.BiasedMixture(), ileed.Persistent())


def uniform(random, person, right, previous):
    return right if random.random() < (0.9, 0.6, 0.3, 0.1)[person] else int(random.integers(ACTIONS))


@pytest.mark.parametrize(("act", "right"), [(uniform, 0), (habitual, 1), (repeating, 2)])
def test_the_model_that_people_follow_is_preferred(act, right):
    found = ileed.compare(simulated(act, people=4), seed=0, models=FEW, method=method(None, steps=300), device="cpu")
    assert found.chosen == right
    assert found.preferred.startswith(type(FEW[right]).__name__)
    assert found.table()["preferred"].to_pylist().index(True) == right


def three_folds(data):
    return Folds.of(data, seed=0, members=MODEL_RESTARTS, count=MODEL_FOLDS)


def comparison(costs, errors, expertise=((),) * 3):
    return ModelComparison(("A()", "B()", "C()"), costs, errors, 100, expertise)


@pytest.mark.parametrize(
    ("costs", "errors", "chosen"),
    [
        ((0.5, 0.5, 0.5), (0.0, 0.0, 0.0), 0),
        ((0.52, 0.5, 0.49), (0.02, 0.02, 0.0), 1),
        ((0.52, 0.5, 0.49), (0.04, 0.02, 0.0), 0),
        ((0.9, 0.8, 0.1), (0.01, 0.01, 0.0), 2),
    ],
)
def test_the_simplest_within_one_standard_error_of_the_best_is_chosen(costs, errors, chosen):
    assert comparison(costs, errors).chosen == chosen


def test_the_sentence_says_whether_the_order_of_people_depends_on_the_model():
    alike = comparison((0.5, 0.4, 0.6), (0.01, 0.0, 0.01), ((0.1, 0.2, 0.3),) * 3)
    assert "all models rank demonstrators alike" in alike.sentence()
    assert "0.100 nats per held-out action below A()" in alike.sentence()
    other = replace(alike, expertise=((0.3, 0.2, 0.1), (0.1, 0.2, 0.3), (0.1, 0.2, 0.3)))
    assert "depends on the model" in other.sentence()
    assert other.rank_correlations[0] == pytest.approx(-1)
    assert all(isnan(value) for value in comparison((0.5, 0.4, 0.6), (0.0,) * 3).rank_correlations)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=30))
def test_the_rank_correlation_is_that_of_scipy_also_with_ties(pairs):
    first, second = np.array(pairs, dtype=float).T
    expected = nan if np.ptp(first) == 0 or np.ptp(second) == 0 else spearmanr(first, second).statistic
    assert rank_correlation(first, second) == pytest.approx(expected, nan_ok=True)


def test_a_constant_has_no_order_and_agrees_with_another_constant_alone():
    increasing, constant = (0.1, 0.2, 0.3), (0.5, 0.5, 0.5)
    assert isnan(rank_correlation(constant, increasing))
    assert not orders_alike(constant, increasing)
    assert not orders_alike(increasing, constant)
    assert orders_alike(constant, constant)
    assert isnan(rank_correlation([0.5], [0.7]))


def test_models_do_not_order_demonstrators_alike_where_one_gives_all_the_same_expertise():
    increasing, constant = (0.1, 0.2, 0.3), (1.0, 1.0, 1.0)
    costs, errors = (0.5, 0.4, 0.6), (0.01, 0.0, 0.01)  # the second model is chosen
    for expertise in ((constant, increasing, increasing), (increasing, constant, increasing)):
        found = comparison(costs, errors, expertise)
        assert "alike" not in found.sentence()
        assert "depends on the model" in found.sentence()
        assert isnan(found.rank_correlations[0])
    assert "alike" not in comparison(costs, errors, (constant,) * 3).sentence()
    assert "alike" in comparison(costs, errors, ((), increasing, increasing)).sentence()


def test_the_table_has_errors_of_differences_from_the_preferred_model_and_not_from_the_cheapest():
    """Costs of A and B vary together over episodes, so that their difference is surer than that of either from C."""
    folds = three_folds(simulated(uniform, people=4, episodes=5))
    steps, random = folds.held_out_steps, np.random.default_rng(0)
    assert len(set(steps)) == 1
    common = random.normal(size=len(steps))
    common -= common @ steps / steps.sum()
    first = steps * (0.5 + 0.1 * common)
    costs = [first + 0.06 * steps, first + 0.01 * steps * random.normal(size=len(steps)), 0.49 * steps]
    found = ModelComparison.of(folds, demonstrator_models(FEW), [(cost, ()) for cost in costs])
    assert (found.chosen, int(np.argmin(found.nats_per_action))) == (1, 2)
    rows = found.table().to_pylist()
    assert rows[1]["standard_error"] == 0
    for row, cost in zip(rows, costs, strict=True):
        apart = (cost - costs[1]) / steps.sum()  # episodes of one length: the error of a sum is that of its terms
        by_hand = np.sqrt(len(steps)) * apart.std()
        assert row["standard_error"] == pytest.approx(by_hand)
        assert row["high"] - row["low"] == pytest.approx(2 * 1.96 * row["standard_error"])
    assert rows[0]["standard_error"] < rows[2]["standard_error"] / 3
    assert f"standard error {rows[0]['standard_error']:.3f}" in found.sentence()
    assert "Persistent() costs less, within one standard error" in found.sentence()


def test_every_episode_is_judged_by_members_that_have_not_seen_it():
    data = simulated(uniform, people=4, episodes=5)
    folds = three_folds(data)
    assert folds.weights.shape == (MODEL_FOLDS * MODEL_RESTARTS, data.episode_count)
    for member, weights in enumerate(folds.weights):
        np.testing.assert_array_equal(weights > 0, folds.fold != member // MODEL_RESTARTS)


def test_auto_fits_with_the_model_that_is_preferred_and_a_run_keeps_why(tmp_path):
    data = simulated(habitual, people=4)
    fitted = method("auto", steps=300).fit(data, seed=0, device="cpu")
    assert fitted.comparison is not None
    assert fitted.comparison.models[fitted.comparison.chosen].startswith(type(fitted.joint.parts.demonstrator).__name__)
    assert "Biased" in fitted.comparison.preferred or "biased" in fitted.comparison.preferred
    fitted.save(tmp_path / "run")
    loaded = ileed.load(tmp_path / "run")
    assert loaded.comparison == fitted.comparison
    assert loaded.method.demonstrator == "auto"


def test_models_that_do_not_describe_the_data_are_left_out_or_refused_where_they_are_named():
    data = simulated(uniform, people=4, episodes=3)
    found = ileed.compare(data, seed=0, method=method(None, steps=2), device="cpu")
    assert len(found.models) == sum(model.discrete for model in CANDIDATES)
    with pytest.raises(ileed.SettingsError, match="VarianceScaling models continuous actions"):
        ileed.compare(data, seed=0, models=[ileed.VarianceScaling()], device="cpu")
    with refused("models-empty", ileed.SettingsError):
        ileed.compare(data, seed=0, models=[], device="cpu")
    with refused("demonstrator-invalid", ileed.SettingsError):
        ileed.Ileed(demonstrator="automatic")


def test_the_same_seed_compares_alike_here_and_by_the_workers_of_an_executor():
    data, heard = simulated(uniform, people=4, episodes=4), []
    settings = {"seed": 3, "models": FEW, "method": method(None, steps=20), "device": "cpu"}
    with LocalExecutor(2) as workers:
        elsewhere = ileed.compare(data, **settings, executor=workers, progress=heard.append)
    assert ileed.compare(data, **settings) == elsewhere
    assert [(at.step, at.steps) for at in heard] == [(done, 3) for done in range(4)]


def test_the_command_compares_models_in_a_table_that_fits_a_narrow_terminal(tmp_path, capsys, monkeypatch):
    from ileed.cli import run

    monkeypatch.setenv("COLUMNS", "80")
    ileed.write_parquet(simulated(uniform, people=4, episodes=3), tmp_path / "data.parquet")
    words = ["compare", str(tmp_path / "data.parquet"), "--steps", "2", "--restarts", "1", "--expertise", "Constant()"]
    assert run(words) == 0
    shown = capsys.readouterr().out
    assert "Persistent(biased=True)" in shown
    assert "(preferred)" in shown
