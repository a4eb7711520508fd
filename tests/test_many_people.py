"""Very many people: learned from in batches of people, rated in parts, and placed by the distribution of all."""

from dataclasses import replace

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from refusals import refused
from rich.console import Console

import ileed
from ileed.cli.console import ranking, ratings_table
from ileed.errors import RunError, SettingsError
from ileed.fitting.loop import PartialJoint, demonstrator_parameters
from ileed.fitting.preparing import OptimiserSettings, prepare
from ileed.fitting.stages import Stages
from ileed.methods.expertise import QUANTILES, _over_steps
from ileed.model.joint import Joint
from ileed.model.slips import BiasedMixture
from ileed.rating.posterior import INSIDE, thinned
from ileed.rating.ranks import rank_correlation
from ileed.rating.ratings import boundaries, places_to_show
from ileed.report import people_table

PEOPLE = 240
FEW = ileed.Ileed(policy=ileed.CategoricalMLP(hidden=(8,)), restarts=2, steps=160, learning_rate=0.01, folds=5)


def crowd(people=PEOPLE, *, continuous=False, legal=False, seed=0):
    """People of uniform skill among twelve states, with four to sixty steps in episodes of four, and their skills."""
    chance = np.random.default_rng(seed)
    steps = 4 * chance.integers(1, 16, size=people)
    who, skill = np.repeat(np.arange(people), steps), chance.uniform(size=people)
    state = chance.integers(12, size=len(who))
    action = np.where(chance.random(len(who)) < skill[who], state % 3, chance.integers(3, size=len(who)))
    data = ileed.Demonstrations(
        observations=np.eye(12, dtype=np.float32)[state],
        actions=action[:, None] + chance.normal(size=(len(who), 1)) if continuous else action,
        demonstrator=who,
        episode=np.arange(len(who)) // 4,
        names=tuple(f"person {k}" for k in range(people)),
        legal=np.ones((len(who), 3), dtype=bool) if legal else None,
        action_count=0 if continuous else 3,
    )
    return data, skill


@pytest.fixture(autouse=True)
def _many(monkeypatch):
    monkeypatch.setattr("ileed.data.rules.MANY_DEMONSTRATORS", 100)
    monkeypatch.setattr("ileed.rating.ratings.OWNERS_AT_ONCE", 64)
    monkeypatch.setattr("ileed.fitting.batches._COUNTS_AT_ONCE", 1500)


@pytest.fixture(scope="module")
def fitted():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ileed.data.rules.MANY_DEMONSTRATORS", 100)
        patch.setattr("ileed.rating.ratings.OWNERS_AT_ONCE", 64)
        patch.setattr("ileed.fitting.batches._COUNTS_AT_ONCE", 1500)
        return FEW.fit(crowd()[0], seed=0, device="cpu")


def start(data, parts=None, **settings):
    parts = parts or FEW.parts(data)
    optimiser = OptimiserSettings(**settings)
    prepared = prepare(data, parts, optimiser, seed=0, device=torch.device("cpu"), members=2)
    joint = Joint(parts, prepared.sizes, [torch.Generator().manual_seed(k) for k in range(2)])
    return prepared.sampler, joint


@pytest.mark.parametrize("legal", [False, True])
def test_an_epoch_has_all_demonstrators_with_all_of_their_steps(legal):
    data, _ = crowd(legal=legal)
    sampler, _ = start(data)
    assert 1 < sampler.epoch < 10
    seen = torch.zeros(PEOPLE)
    for step in range(sampler.epoch):
        sampler.load(step)
        batch = sampler.batch()
        assert len(sampler.demonstrators) == sampler.demonstrators_at_once == len(sampler.demonstrators.unique())
        assert float(batch.weight.sum()) == data.steps_each[sampler.demonstrators.numpy()].sum()
        seen[sampler.demonstrators] += 1
    assert seen.min() == 1
    assert seen.sum() == sampler.epoch * sampler.demonstrators_at_once


def test_a_mean_over_all_people_is_not_taken_over_a_part_of_them():
    """Expertise without easiness is centred over all demonstrators: no batch has only some of them."""
    data, _ = crowd()
    sampler, joint = start(data, replace(FEW, expertise=ileed.Difficulty(easiness=False)).parts(data))
    assert joint.parts.expertise.measures_from_mean
    assert sampler.demonstrators_at_once is None


def test_all_batches_together_cost_what_the_whole_data_cost(monkeypatch):
    data, _ = crowd()
    in_parts, joint = start(data)
    monkeypatch.setattr("ileed.data.rules.MANY_DEMONSTRATORS", PEOPLE)
    whole, _ = start(data)
    costs = [
        batch.mean_cost(joint.log_likelihood(batch)) * batch.total_weight
        for batch in in_parts.everything(held_out=False)
    ]
    expected = joint.objective(whole.batch()).negative_log_likelihood
    torch.testing.assert_close(sum(costs) / len(data), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("model", [None, BiasedMixture()])
def test_a_batch_of_demonstrators_has_the_gradients_of_the_whole_and_updates_no_others(model):
    data, _ = crowd()
    sampler, joint = start(data, replace(FEW, demonstrator=model).parts(data))
    names = demonstrator_parameters(joint)
    assert "expertise.skill" in names
    assert len(names) == 1 + (model is not None)
    part = PartialJoint(joint, sampler.demonstrators_at_once, 0.01, 1)
    sampler.load(1)
    part.load(sampler.demonstrators)
    batch = sampler._of(sampler.demonstrators, sampler._weight, of_part=False)
    batch.mean_cost(joint.log_likelihood(batch)).sum().backward()
    expected = {name: parameter.grad.clone() for name, parameter in joint.named_parameters()}
    joint.zero_grad()
    small = sampler.batch()
    small.mean_cost(part.joint.log_likelihood(small)).sum().backward()
    for name, parameter in part.joint.named_parameters():
        wanted = expected[name][..., sampler.demonstrators] if name in names else expected[name]
        torch.testing.assert_close(parameter.grad, wanted, rtol=1e-4, atol=1e-7)
    before = {name: joint.get_parameter(name).detach().clone() for name in names}
    part.adam.step(sampler.demonstrators, part.own, 1)
    others = np.setdiff1d(np.arange(PEOPLE), sampler.demonstrators.numpy())
    for name in names:
        after = joint.get_parameter(name).detach()
        torch.testing.assert_close(after[..., others], before[name][..., others], rtol=0, atol=0)
        moved = (after - before[name])[..., sampler.demonstrators].abs()
        assert (moved > 0).any(dim=-1).all()
        assert float(moved.max()) <= 0.0101  # Adam's first step is the rate


def test_many_people_are_ordered_rightly_with_intervals_that_hold_the_truth(fitted):
    data, skill = crowd()
    ratings = fitted.expertise.ratings
    assert ratings.shares.shape == (PEOPLE, 200)
    enough = data.steps_each >= 40
    assert rank_correlation(ratings.best.expertise[enough], skill[enough]) > 0.9
    inside = (ratings.best.low <= skill) & (skill <= ratings.best.high)
    assert inside.mean() > 0.85  # of 95 %: the policy that learned from few steps is not exact
    assert "of 240 demonstrators are above the mean" in ratings.sentence()


@pytest.fixture(scope="module")
def folds():
    return FEW.fit_folds(crowd()[0], None, Stages(0, torch.device("cpu")))


@pytest.fixture(scope="module")
def at_once(folds):
    """All demonstrators at once, as small data are rated."""
    return folds.rate(temperature=0.5)


def test_ratings_in_parts_are_those_of_all_at_once(folds, at_once):
    in_parts = folds.rate(temperature=0.5)
    np.testing.assert_allclose(in_parts.alone.expertise, at_once.alone.expertise, atol=1e-6)
    assert in_parts.by.dispersion == pytest.approx(at_once.by.dispersion, rel=0.1)  # of a third of the people
    np.testing.assert_allclose(in_parts.pooled.expertise, at_once.pooled.expertise, atol=0.03)
    np.testing.assert_array_equal(in_parts.episodes, at_once.episodes)
    np.testing.assert_allclose(in_parts.shares.sum(1), 1)


def test_people_whom_a_fit_has_not_seen_are_assessed_in_parts(fitted, monkeypatch):
    others, _ = crowd(150, seed=1)
    in_parts = fitted.assess(others)
    monkeypatch.setattr("ileed.data.rules.MANY_DEMONSTRATORS", PEOPLE)
    at_once = fitted.assess(others)
    for one, other in zip(in_parts.pooled, at_once.pooled, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    assert in_parts.reference == at_once.reference
    rated = ileed.rate(fitted.policy, others)
    monkeypatch.setattr("ileed.data.rules.MANY_DEMONSTRATORS", 149)
    in_parts = ileed.rate(fitted.policy, others)
    np.testing.assert_allclose(in_parts.alone.expertise, rated.alone.expertise, atol=1e-6)
    np.testing.assert_allclose(in_parts.pooled.expertise, rated.pooled.expertise, atol=0.03)  # by half of the people


def test_places_by_the_distribution_of_all_are_those_of_joint_draws(at_once, monkeypatch):
    by_distribution = at_once.table()
    monkeypatch.setattr("ileed.data.rules.MANY_DEMONSTRATORS", PEOPLE)
    by_draws = at_once.table()
    other = dict(zip(by_draws["demonstrator"].to_pylist(), by_draws.to_pylist(), strict=True))
    for row in by_distribution.to_pylist():
        same = other[row["demonstrator"]]
        for name in ("expertise", "low", "high"):
            assert row[name] == pytest.approx(same[name], abs=0.06)
        for name in ("rank_low", "rank_high"):
            assert abs(row[name] - same[name]) <= PEOPLE / 20


def test_pairs_and_groups_of_many_are_those_of_few(at_once, monkeypatch):
    first, last = (at_once.table()["demonstrator"][place].as_py() for place in (0, -1))
    far = at_once.shares.copy()
    far[:5] = np.eye(len(INSIDE))[-1]  # five people beyond doubt
    apart = replace(at_once, shares=far)
    many = at_once.probability_better(first, last), apart.groups()
    monkeypatch.setattr("ileed.data.rules.MANY_DEMONSTRATORS", PEOPLE)
    few = at_once.probability_better(first, last), replace(apart).groups()
    assert many[0] == pytest.approx(few[0], abs=1e-12)
    assert many[1] == few[1]


def test_a_boundary_that_would_take_too_many_pairs_is_not_claimed(monkeypatch):
    shares = np.eye(len(INSIDE))[np.r_[np.full(50, 900), np.full(50, 100)]]
    assert boundaries(shares, 0.95)[1].argmax() == 49
    monkeypatch.setattr("ileed.rating.ratings._PAIRS", 100)
    assert boundaries(shares, 0.95)[1].max() <= 0.5
    assert thinned(shares).shape == (100, 200)


def test_means_and_quantiles_over_steps_are_those_of_each_person_alone():
    chance = np.random.default_rng(3)
    person = np.sort(chance.integers(30, size=400))
    person = person[person != 7]  # who has no step
    own, count = chance.random(len(person)).astype(np.float32), chance.integers(1, 5, size=len(person))
    last = np.flatnonzero(np.append(np.diff(person), 1))
    count[last] += 101 - np.bincount(person, weights=count).astype(int)[person[last]]  # a prime: no step is a quantile
    means, quantiles = _over_steps(own, person, count, 31)
    for number in range(31):
        steps = np.repeat(own[person == number].astype(np.float64), count[person == number])
        expected = np.quantile(steps, np.linspace(0, 1, QUANTILES), method="inverted_cdf") if len(steps) else np.nan
        np.testing.assert_allclose(means[number], steps.mean() if len(steps) else np.nan, rtol=1e-12)
        np.testing.assert_allclose(quantiles[number], expected, rtol=1e-12)


def test_a_fit_of_many_people_is_saved_and_resumed(fitted, tmp_path):
    fitted.save(tmp_path / "run")
    again = ileed.load(tmp_path / "run")
    assert again.expertise.table().equals(fitted.expertise.table())

    def stop(progress):
        if progress.step >= 80:
            raise KeyboardInterrupt

    for interrupted in (stop, None):
        try:
            method = replace(FEW, folds=0)
            found = method.fit(
                crowd()[0],
                seed=0,
                device="cpu",
                progress=interrupted,
                checkpoint=tmp_path / "c",
                checkpoint_seconds=0.0,
            )
        except KeyboardInterrupt:
            continue
    torch.testing.assert_close(found.joint.expertise.skill, fitted.joint.expertise.skill, rtol=0, atol=0)


def test_gold_people_are_taken_to_be_expert_and_pairs_refused():
    data, _ = crowd()
    quick = replace(FEW, steps=60, folds=0, restarts=1)
    own = quick.fit(data, seed=0, device="cpu").expertise.by_demonstrator()
    gold = quick.fit(data, seed=0, device="cpu", gold=["person 3"]).expertise.by_demonstrator()
    assert gold["person 3"] > own["person 3"]
    with refused("better-too-many"):
        quick.fit(data, seed=0, device="cpu", gold=ileed.Known(better=[("person 3", "person 4")]))


def test_continuous_actions_of_many_people_are_rated():
    data, _ = crowd(continuous=True)
    method = ileed.Ileed(policy=ileed.MixtureMLP(hidden=(4,), modes=1), restarts=1, steps=20, folds=5)
    assert np.isfinite(method.fit(data, seed=0, device="cpu").expertise.table()["expertise"].to_numpy()).all()


def test_tables_show_both_ends_and_the_most_uncertain(fitted, tmp_path):
    for table in (ranking(fitted), ratings_table(fitted.expertise.ratings)):
        console = Console(width=200, record=True)
        console.print(table)
        text = console.export_text()
        assert "15 from either end and the 10 most uncertain of 240" in text
        rows = fitted.expertise.table()["demonstrator"].to_pylist()
        assert all(f"{name} " in text for name in (rows[0], rows[14], rows[-1]))
        assert 40 <= text.count("person ") <= 42
    assert places_to_show(np.array([0, 0, 1, 3, 2, 0, 9]), ends=2, between=2) == [0, 1, 3, 4, 5, 6]
    fitted.save(tmp_path / "run")
    page = ileed.report(tmp_path / "run", data=crowd()[0]).read_text()
    assert "Number of demonstrators by expertise" in page
    assert page.count("<th scope=row") < 240


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_the_table_of_all_demonstrators_is_a_file(fitted, tmp_path, suffix):
    fitted.save(tmp_path / "run")
    path = people_table(tmp_path / "run", tmp_path / f"people{suffix}")
    read = pyarrow.csv.read_csv if suffix == ".csv" else pyarrow.parquet.read_table
    assert read(path)["demonstrator"].to_pylist() == fitted.expertise.table()["demonstrator"].to_pylist()
    with pytest.raises(RunError, match="exists already"):
        people_table(tmp_path / "run", path)
    with pytest.raises(SettingsError, match=r"neither .csv nor .parquet"):
        people_table(tmp_path / "run", tmp_path / "people.txt")
