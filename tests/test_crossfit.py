"""Cross-fitting: people rated by policies that have not seen their episodes, and what can be said of their order."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from refusals import refused

import ileed
from ileed.errors import SettingsError
from ileed.model.distributions import mixture
from ileed.model.nets import members
from ileed.rating.posterior import draws, mean_and_interval, posterior
from ileed.rating.step_likelihood import free_scales
from ileed.selection import deal_episodes, fold_weights
from ileed_lab.calibration.designs import DESIGNS, DEVELOPMENT_SEED

FEW = {"restarts": 2, "steps": 300, "learning_rate": 0.01}


@cache
def population():
    """250 steps of each of eight people, few enough for a policy to remember."""
    return DESIGNS["250 steps"].population(DEVELOPMENT_SEED)


@cache
def fit():
    return replace(DESIGNS["250 steps"].method, steps=500, folds=5).fit(population().data, seed=0, device="cpu")


def test_fits_are_cross_fitted_by_default_but_for_recurrent_policies():
    data = population().data
    method = replace(DESIGNS["250 steps"].method, restarts=1, steps=5)
    assert method.fit(data, seed=0, device="cpu").expertise.ratings.by.folds == 5
    recurrent = DESIGNS["recurrent"]
    few = replace(recurrent.method, restarts=1, steps=2)
    assert few.fit(recurrent.population(0).data, seed=0, device="cpu").expertise.ratings is None


def test_the_episodes_of_a_demonstrator_are_spread_evenly_over_folds():
    data = population().data
    fold = deal_episodes(data, 3, seed=1)
    for person in range(len(data.names)):
        counts = np.bincount(fold[data.episode_demonstrator == person], minlength=3)
        assert counts.max() - counts.min() <= 1
    assert not np.array_equal(fold, deal_episodes(data, 3, seed=2))


@pytest.mark.parametrize("design", ["250 steps", "Gaussian mixture"])
def test_no_member_learns_from_the_fold_that_it_rates(design):
    data = DESIGNS[design].population(DEVELOPMENT_SEED).data
    fold = deal_episodes(data, 4, seed=0)
    weights = fold_weights(data, fold, np.ones(len(fold)), members=3, seed=0).reshape(4, 3, -1)
    for number in range(4):
        assert (weights[number][:, fold == number] == 0).all()
        assert (weights[number][:, fold != number] > 0).all()


def test_members_for_continuous_actions_are_replicates_of_a_bootstrap_and_others_are_not():
    for design, differ in (("250 steps", False), ("Gaussian mixture", True)):
        data = DESIGNS[design].population(DEVELOPMENT_SEED).data
        first, second = fold_weights(
            data, deal_episodes(data, 2, seed=0), np.ones(data.episode_count), members=2, seed=0
        )[:2]
        assert (not np.array_equal(first, second)) == differ


def squared_error(table, found, column="expertise"):
    """Of relative expertise, by a table of ratings."""
    order = [found.data.names.index(name) for name in table["demonstrator"].to_pylist()]
    return np.square(table[column].to_numpy() - found.relative[order]).mean()


@pytest.mark.campaign
def test_cross_fitted_expertise_is_nearer_the_truth_than_in_sample():
    """At 250 steps a person the policy fits noise. Over three populations the bound of 1.3 times is loose."""
    errors = []
    for seed in range(DEVELOPMENT_SEED, DEVELOPMENT_SEED + 3):
        found = DESIGNS["250 steps"].population(seed)
        table = replace(DESIGNS["250 steps"].method, folds=5).fit(found.data, seed=0, device="cpu").expertise.table()
        oracle = ileed.rate(np.eye(7)[found.best_action], found.data).table()
        errors.append(
            [squared_error(table, found), squared_error(table, found, "in_sample"), squared_error(oracle, found)]
        )
    cross_fitted, in_sample, by_oracle = np.sqrt(np.mean(errors, axis=0))
    assert cross_fitted < in_sample
    assert cross_fitted < 1.3 * by_oracle


def test_the_fit_itself_is_the_same_bit_for_bit_with_folds_and_without():
    with_folds = fit()
    without = replace(with_folds.method, folds=0).fit(population().data, seed=0, device="cpu")
    for name, values in without.joint.state_dict().items():
        assert torch.equal(values, with_folds.joint.state_dict()[name])
    with pytest.raises(SettingsError, match="folds"):
        without.expertise.table()


def test_a_table_is_best_first_names_its_scale_and_has_ranks_within_their_bounds():
    table = fit().expertise.table(confidence_level=0.8)
    assert table.column_names[:8] == [
        "demonstrator", "steps", "episodes", "expertise", "low", "high", "rank_low", "rank_high"
    ]  # fmt: skip
    assert table.schema.metadata == {
        b"scale": b"expertise divided by its mean over demonstrators",
        b"confidence_level": b"0.8",
    }
    columns = {name: table[name].to_numpy() for name in table.column_names[1:]}
    assert (np.diff(columns["expertise"]) <= 0).all()
    assert columns["expertise"].mean() == pytest.approx(1, abs=1e-9)
    assert (columns["low"] < columns["expertise"]).all()
    assert (columns["expertise"] < columns["high"]).all()
    place = np.arange(1, table.num_rows + 1)
    assert (columns["rank_low"] <= place).all()
    assert (place <= columns["rank_high"]).all()
    wider = fit().expertise.table(confidence_level=0.99)
    assert (wider["high"].to_numpy() - wider["low"].to_numpy() > columns["high"] - columns["low"]).all()


def test_absolute_expertise_is_from_zero_to_one():
    table = fit().expertise.table(relative=False)
    assert 0 < table["low"].to_numpy().min() < table["high"].to_numpy().max() < 1
    assert table.schema.metadata[b"scale"] == b"expertise by the policy as it is"


def test_the_probabilities_of_two_orders_add_up_to_one_and_agree_with_draws():
    expertise = fit().expertise
    drawn = draws(expertise.ratings.shares)
    for one, other in ((0, 1), (2, 5)):
        names = expertise.names[one], expertise.names[other]
        probability = expertise.probability_better(*names)
        assert probability + expertise.probability_better(*names[::-1]) == pytest.approx(1)
        assert probability == pytest.approx((drawn[:, one] > drawn[:, other]).mean(), abs=0.03)  # 4,000 draws
    with pytest.raises(KeyError, match="'nobody'"):
        expertise.probability_better("nobody", expertise.names[0])


def ratings_at(*levels, width=0.01):
    """Ratings whose posteriors are narrow around these levels."""
    inside = ileed.rating.posterior.INSIDE
    shares = np.exp(-((inside[None] - np.array(levels)[:, None]) ** 2) / (2 * width**2))
    shares /= shares.sum(1, keepdims=True)
    return replace(
        fit().expertise.ratings,
        names=tuple("abcdefgh"[: len(levels)]),
        shares=shares,
        episodes=np.full(len(levels), 10),
    )


def test_groups_split_where_all_above_are_better_than_all_below():
    found = ratings_at(0.3, 0.9, 0.31, 0.305)
    assert found.groups(0.95) == [("b",), ("c", "d", "a")]
    assert found.sentence() == "b is better than all others (probability above .99); the other 3 cannot be told apart"
    assert ratings_at(0.5, 0.5).groups() == [("a", "b")] or ratings_at(0.5, 0.5).groups() == [("b", "a")]
    assert ratings_at(0.5, 0.5, 0.5).sentence() == "the 3 demonstrators cannot be told apart"
    crowd = ratings_at(*np.linspace(0.8, 0.805, 6), 0.2).sentence()
    assert crowd == "the best 6 are better than all others (probability above .99)"
    assert ratings_at(0.5).sentence() == "there is one demonstrator"
    assert ratings_at(0.1, 0.3, 0.5, 0.7).sentence().endswith("the other 2 fall into 2 groups")


def test_more_episodes_are_needed_the_nearer_two_people_are():
    near, far = ratings_at(0.5, 0.505), ratings_at(0.5, 0.51)
    assert near.episodes_to_settle("a", "b") > far.episodes_to_settle("a", "b") > 0
    assert ratings_at(0.2, 0.8).episodes_to_settle("a", "b") == 0
    assert ratings_at(0.5, 0.5).episodes_to_settle("a", "b") == np.inf


def test_a_saved_run_keeps_its_intervals_without_the_data(tmp_path):
    fit().save(tmp_path / "run")
    loaded = ileed.load(tmp_path / "run")
    assert loaded.expertise.table().equals(fit().expertise.table())
    assert loaded.expertise.ratings.by == fit().expertise.ratings.by
    newcomers = population().newcomers
    assert loaded.assess(newcomers).table().equals(fit().assess(newcomers).table())


def test_names_in_the_table_follow_pseudonyms():
    names = {name: f"x{number}" for number, name in enumerate(fit().expertise.names)}
    table = fit().renamed(names).expertise.table()
    assert set(table["demonstrator"].to_pylist()) == set(names.values())


@pytest.mark.parametrize("design", ["250 steps", "Gaussian mixture", "recurrent"])
def test_newcomers_are_assessed_by_any_policy_and_never_called_perfect_or_hopeless_from_five_steps(design):
    found = DESIGNS[design].population(DEVELOPMENT_SEED + 1)
    method = replace(DESIGNS[design].method, restarts=2, steps=100, folds=2)
    ratings = method.fit(found.data, seed=0, device="cpu").assess(found.newcomers)
    few = ratings.pooled.expertise[ratings.steps <= 5]
    assert len(few) == 2
    assert ((few > 0.01) & (few < 0.99)).all()
    assert ratings.table()["demonstrator"].to_pylist() != list(ratings.names)  # best first
    assert ratings.reference is not None


def test_a_newcomer_is_rated_alike_alone_and_among_others():
    newcomers = population().newcomers
    among = fit().assess(newcomers)
    name = newcomers.names[3]
    alone = fit().assess(newcomers.by(name))
    assert alone[name] == pytest.approx(among[name], abs=1e-9)


def test_an_assumed_temperature_is_used_and_an_impossible_one_refused():
    assumed = replace(fit().method, temperature=1.0, steps=50).fit(population().data, seed=0, device="cpu")
    assert assumed.expertise.ratings.by.temperature == 1
    with refused("temperature-invalid", SettingsError):
        ileed.Ileed(temperature=0)
    with refused("folds-invalid", SettingsError):
        ileed.Ileed(folds=-1)


def test_a_fit_says_whether_the_level_of_expertise_is_fixed_or_ratios_alone():
    """Where people err uniformly around one best action the held-out steps fix the level; a Gaussian's never do."""
    low, high = fit().expertise.ratings.by.levels
    assert 0 < low <= high < 1
    assert fit().expertise.ratings.by.identification in repr(fit())
    method = replace(DESIGNS["Gaussian mixture"].method, restarts=1, steps=100, folds=2)
    found = method.fit(DESIGNS["Gaussian mixture"].population(DEVELOPMENT_SEED).data, seed=0, device="cpu")
    low, high = found.expertise.ratings.by.levels
    assert high > 2 * low
    assert "ratios of expertise and not its level" in repr(found)


@pytest.mark.parametrize(("lost", "rated"), [([1], True), ([2, 3], False)])
def test_a_member_of_a_fold_that_is_lost_costs_nothing_unless_it_was_the_last(monkeypatch, lost, rated):
    real = ileed.fitting.optimise

    def losing(joint, prepared, *arguments, **options):
        result = real(joint, prepared, *arguments, **options)
        if len(result.nats_per_action) == 4:  # two folds of two members
            result.nats_per_action[lost] = np.inf
        return result

    monkeypatch.setattr("ileed.fitting.blocks.optimise", losing)
    method = replace(fit().method, restarts=2, steps=20, folds=2)
    found = method.fit(population().data, seed=0, device="cpu")
    assert (found.expertise.ratings is not None) == rated


def test_behaviour_cloning_is_not_rated():
    method = replace(ileed.bc(**FEW), policy=fit().method.policy, folds=5)
    assert method.fit(population().data, seed=0, device="cpu").expertise.ratings is None


def test_disagreement_is_the_mean_square_distance_to_the_nearest_component():
    """Against a loop over components, in one dimension."""
    random = torch.Generator().manual_seed(0)
    means = torch.randn(3, 1, 4, 2, 1, generator=random)  # (distribution, member, row, mode, dimension)
    logits, deviations = torch.zeros(1, 4, 2), torch.ones(1, 4, 2, 1)
    own, *others = (mixture(logits, each, deviations) for each in means)
    found = own.disagreement(others)
    for row in range(4):
        for mode in range(2):
            here = means[0, 0, row, mode, 0]
            nearest = [min((here - means[other, 0, row, k, 0]) ** 2 for k in range(2)) for other in (1, 2)]
            assert found[0, row, mode, 0] == pytest.approx(float(sum(nearest)) / 2)
    assert own.disagreement([]) is None


def test_a_policys_own_error_would_otherwise_be_laid_to_the_best():
    """Two people of variances 0.04 and 0.16, seen by a policy whose mean is off by 0.2: expertise in a ratio of four.

    Without the error's variance the ratio is that of 0.08 to 0.20, which is 2.5.
    """
    rho, grid = np.array([0.25, 1.0]), np.maximum(ileed.rating.posterior.GRID, 1e-6)
    variance, square = 0.04 / grid + 0.04, 0.04 / rho + 0.04
    curves = -2000 * (np.log(variance)[None] + square[:, None] / variance)
    shares, _ = posterior(curves, None)
    estimate = mean_and_interval(shares, 0.95).expertise
    assert estimate[1] / estimate[0] == pytest.approx(4, rel=0.05)


def phases():
    """Two people in two phases: ann is good in the first, bob in the second, and cy is never in the second."""
    random = np.random.default_rng(0)
    steps = 600
    who = np.repeat(np.arange(3), steps)
    phase = np.where(who == 2, 0, random.integers(0, 2, size=3 * steps))
    seen = random.integers(0, 4, size=3 * steps)
    skill = np.array([[0.95, 0.2], [0.2, 0.95], [0.6, 0.6]])[who, phase]
    acted = np.where(random.random(3 * steps) < skill, seen, random.integers(0, 4, size=3 * steps))
    return ileed.Demonstrations(
        observations=np.eye(4, dtype=np.int64)[seen],
        actions=acted,
        demonstrator=np.array(["ann", "bob", "cy"])[who],
        episode=np.arange(3 * steps) // 20,
        skills={"phase": np.array(["reach", "grasp"])[phase]},
    )


@cache
def in_phases():
    method = ileed.Ileed(policy=ileed.CategoricalMLP(hidden=(8,)), expertise=ileed.Constant(), folds=5, **FEW)
    return method.fit(phases(), seed=0, device="cpu")


def test_people_are_rated_in_each_kind_of_state_and_in_each_episode():
    table = in_phases().assess(phases(), by="phase").table()
    found = {(row["demonstrator"], row["phase"]): row["expertise"] for row in table.to_pylist()}
    assert found.keys() == {("ann", "reach"), ("ann", "grasp"), ("bob", "reach"), ("bob", "grasp"), ("cy", "reach")}
    assert found["ann", "reach"] > 2 * found["ann", "grasp"]
    assert found["bob", "grasp"] > 2 * found["bob", "reach"]
    episodes = in_phases().assess(phases(), by="episode").table()
    assert episodes.num_rows == phases().episode_count
    assert set(episodes["steps"].to_pylist()) == {20}
    with pytest.raises(ileed.DemonstrationError, match="no skill column 'phases'"):
        in_phases().assess(phases(), by="phases")


def test_expertise_over_common_states_counts_kinds_alike_for_all_and_says_which_states_a_demonstrator_missed():
    """Ann's 600 steps are half in each phase; the steps of all are not, because cy is in the first alone."""
    ratings = in_phases().assess(phases(), by="phase")
    rows = {row["demonstrator"]: row for row in ratings.standardised().to_pylist()}
    reach = (phases().skills["phase"] == "reach").mean()
    by_kind = {(row["demonstrator"], row["phase"]): row["expertise"] for row in ratings.table().to_pylist()}
    expected = reach * by_kind["ann", "reach"] + (1 - reach) * by_kind["ann", "grasp"]
    assert rows["ann"]["expertise"] == pytest.approx(expected, rel=1e-6)
    assert rows["ann"]["overlap"] == pytest.approx(1)
    assert rows["cy"]["overlap"] == pytest.approx(reach)
    assert rows["cy"]["high"] - rows["cy"]["low"] > 2 * (rows["ann"]["high"] - rows["ann"]["low"])
    with pytest.raises(SettingsError, match="by=COLUMN"):
        in_phases().expertise.ratings.standardised()


def test_one_number_a_person_leaves_one_scale_free_and_labels_one_for_each_skill():
    expertise = np.random.default_rng(0).uniform(0.1, 0.9, size=(6, 5))
    assert free_scales(np.ones((5, 1)), np.repeat(expertise[:, :1], 5, axis=1)) == 1
    labels = np.eye(3)[[0, 1, 2, 1, 0]]
    assert free_scales(labels, expertise[:, [0, 1, 2, 1, 0]]) == 3


def test_skills_that_are_combined_leave_no_scale_free():
    # the condition of the paper: the embedding of one state depends on those of others
    chance = np.random.default_rng(0)
    embedding, skill = np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5], [0.3, 0.9]]), chance.normal(size=(2, 6))
    expertise = 1 / (1 + np.exp(-(embedding @ skill).T))
    assert free_scales(embedding, expertise) == 0
    assert free_scales(embedding, expertise[:1]) > 0  # of one person, anything can be made up for


def test_restarts_that_are_as_likely_and_order_people_otherwise_are_both_shown(tmp_path):
    found = fit().ensemble.top(2)
    skill = found.joint.expertise.skill
    joint = members(found.joint, [0, 0])
    joint.expertise.skill[1] = skill[0].flip(-1)  # other people are good
    twins = replace(
        found, result=replace(found.result, joint=joint, nats_per_action=np.array([1.0, 1.0])), restarts=(0, 1)
    )
    (other,) = twins.alternatives()
    fitted = twins.best().fitted()
    assert fitted.restarts.alternatives == (tuple(other.values()),)
    assert "as likely" in repr(fitted)
    assert replace(twins, result=replace(twins.result, nats_per_action=np.array([1.0, 1.1]))).alternatives() == []
    joint.expertise.skill[1] = 0.0  # all are equally good, another order than the first one's
    assert [set(each.values()) for each in twins.alternatives()] == [{0.5}]
    fitted = replace(fitted, method=replace(fitted.method, restarts=2, ensemble=1), width=None)
    fitted.save(tmp_path / "run")
    assert ileed.load(tmp_path / "run").restarts.alternatives == fitted.restarts.alternatives


def test_the_cost_of_strangers_is_refused_with_a_word_on_how_to_rate_them():
    with pytest.raises(ileed.DemonstrationError, match="assess"):
        fit().nats(population().newcomers)


def test_episodes_without_a_name_are_each_a_person_of_their_own_under_the_population():
    known = population().data
    unnamed = replace(known, names=("unknown",), demonstrator=np.zeros_like(known.demonstrator)).each_episode()
    ratings = fit().assess(unnamed)
    by_episode = fit().assess(known, by="episode")
    assert len(ratings.names) == known.episode_count
    assert ratings.names[:2] == ("episode 1", "episode 2")
    np.testing.assert_allclose(ratings.alone.expertise, by_episode.alone.expertise)
    assert ratings.population is fit().expertise.ratings.population


def test_kinds_of_state_and_episodes_are_cross_fitted_on_request():
    data = replace(population().data, skills={"half": np.where(population().data.observations[:, 0] > 0, "up", "down")})
    method = replace(DESIGNS["250 steps"].method, steps=200, restarts=1, folds=5)
    kinds = method.cross_fit(data, seed=0, by="half", device="cpu")
    assert kinds.by.folds == 5
    assert set(kinds.parts["half"]) == {"up", "down"}
    assert len(kinds.names) == 2 * len(data.names)
    rated = method.cross_fit(data, seed=0, device="cpu")
    whole = dict(zip(rated.names, rated.alone.expertise, strict=True))
    for person in data.names:  # a person's estimate lies between those of the two kinds
        own = [
            rho for name, rho in zip(kinds.parts["demonstrator"], kinds.alone.expertise, strict=True) if name == person
        ]
        assert min(own) - 0.05 <= whole[person] <= max(own) + 0.05
    with pytest.raises(SettingsError, match="two episodes"):
        method.cross_fit(data.select(data.episode == 0), seed=0, device="cpu")


def test_many_continuous_steps_are_rated_as_few_are(monkeypatch):
    """Beyond `MANY_STEPS` likelihoods are interpolated; some episodes choose the temperature, here all of them."""
    data = DESIGNS["Gaussian mixture"].population(DEVELOPMENT_SEED).data
    method = replace(DESIGNS["Gaussian mixture"].method, restarts=2, steps=50, folds=3)
    by_person, by_episode = (method.cross_fit(data, seed=0, by=by, device="cpu") for by in ("demonstrator", "episode"))
    monkeypatch.setattr("ileed.methods.crossfit.MANY_STEPS", 10)
    monkeypatch.setattr("ileed.methods.crossfit.SOME_STEPS", len(data))
    for by, exact in {"demonstrator": by_person, "episode": by_episode}.items():
        found = method.cross_fit(data, seed=0, by=by, device="cpu")
        assert found.by.temperature == exact.by.temperature
        for part in ("expertise", "low", "high"):
            # the grid itself has a spacing of 0.0016 in the arc sine of the root
            np.testing.assert_allclose(getattr(found.best, part), getattr(exact.best, part), rtol=2e-3, atol=1e-4)
    monkeypatch.setattr("ileed.methods.crossfit.SOME_STEPS", len(data) // 3)
    some = method.cross_fit(data, seed=0, device="cpu")
    np.testing.assert_array_equal(some.best.expertise.argsort(), by_person.best.expertise.argsort())
