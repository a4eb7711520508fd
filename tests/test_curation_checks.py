"""Curation that does not hurt: scores by demonstrator and state, preserved states, effective weights, checked gains."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import follows

import ileed
from ileed.curation import Rule
from ileed.curation.rules import LARGEST_FACTOR, LEAST_EFFECTIVE, Units, effective_size, match_strata, temper
from ileed.curation.scores import Score, relative_noise, within_reliability
from ileed.curation.states import StateGroups, cluster_steps
from ileed.curation.validation import Comparison, Material, Recommendation, _student_of_four

QUICK = ileed.Ileed(policy=ileed.MixtureMLP(hidden=(16,), modes=1), restarts=1, steps=300, learning_rate=0.01, folds=2)


def operators(noise, *, seed, spread=0.0, episodes=16, steps=30):
    """Demonstrators of one rule, each with its own noise, which varies between episodes by a factor exp(spread z)."""
    random = np.random.default_rng(seed)
    count = len(noise) * episodes
    who = np.repeat(np.arange(len(noise)), episodes)
    seen = 0.5 * random.normal(size=(count, 1, 3)) + random.normal(size=(count, steps, 3))
    level = np.asarray(noise)[who] * np.exp(spread * random.normal(size=count))
    rule = np.tanh(seen[..., :2] + seen[..., [2]])
    acted = rule + level[:, None, None] * random.normal(size=(count, steps, 2))
    return ileed.Demonstrations(
        observations=seen.reshape(-1, 3).astype(np.float32),
        actions=acted.reshape(-1, 2).astype(np.float32),
        demonstrator=np.repeat(who, steps),
        episode=np.repeat(np.arange(count), steps),
    )


@cache
def _fitted(noise, seed, other):
    data = operators(noise, seed=seed, **dict(other))
    return data, QUICK.fit(data, seed=0, device="cpu")


def fitted(noise=(0.2, 0.3, 0.5, 0.8), seed=1, **other):
    return _fitted(noise, seed, tuple(other.items()))


def scores_of(values):
    values = np.asarray(values, dtype=np.float64)
    return {"expertise": Score(values, values, values, np.ones(len(values)))}


def units_of(steps, strata):
    return Units(steps, np.arange(len(steps)), None, strata)


# --- weights


@given(st.integers(0, 10_000))
def test_the_weighted_share_of_every_stratum_is_its_share_in_the_whole(seed):
    """Shares within a factor of two are matched exactly, and units of one stratum keep their ratios."""
    random = np.random.default_rng(seed)
    strata, weights = np.arange(40) % 4, random.uniform(0.9, 1.1, 40)
    whole = random.uniform(70, 110, 4)
    found = match_strata(weights, strata, whole)
    np.testing.assert_allclose(np.bincount(strata, found) / found.sum(), whole / whole.sum())
    np.testing.assert_allclose((found / weights)[strata == 0], (found / weights)[0])


def test_units_are_weighted_by_the_ratio_of_shares():
    weights = match_strata(np.ones(10), np.array([0] * 6 + [1] * 4), np.array([50, 50]))
    np.testing.assert_allclose(weights, [5 / 6] * 6 + [5 / 4] * 4)


def test_a_match_out_of_reach_leaves_factors_within_their_bounds():
    weights = match_strata(np.ones(10), np.array([0] * 9 + [1]), np.array([10, 80, 10]))  # nothing of the third is kept
    np.testing.assert_allclose(weights, [1 / LARGEST_FACTOR] * 9 + [LARGEST_FACTOR])


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=40))
def test_tempering_takes_the_largest_power_that_is_effective_enough(scores):
    """Against a search of a thousand powers; the effective size falls in the power."""
    scores = np.array(scores)
    weights, power = temper(scores)
    assert effective_size(weights) >= LEAST_EFFECTIVE * len(scores) * (1 - 1e-9)
    if scores.max() <= 0 or power == 1:
        return
    raised = np.maximum(scores / scores.max(), 1e-3)
    powers = np.linspace(0, 1, 1001)
    sizes = np.array([effective_size(raised**each) for each in powers])
    assert (np.diff(sizes) <= 1e-9 * len(scores)).all()
    best = powers[sizes >= LEAST_EFFECTIVE * len(scores)].max()
    assert best <= power + 1e-9
    assert power <= best + 1 / 1000


@given(st.integers(0, 10_000), st.booleans(), st.sampled_from([None, 0.5]))
def test_weights_keep_half_of_the_effective_sample_size_with_and_without_coverage(seed, coverage, keep):
    random = np.random.default_rng(seed)
    scores, strata = scores_of(np.exp(3 * random.normal(size=40))), random.integers(0, 4, 40)
    rule, units = (
        Rule(weight=True, keep=keep, coverage=coverage).of_actions(discrete=False),
        units_of(random.integers(1, 90, 40), strata),
    )
    kept = rule.choose(scores, units)
    weights = rule.weights(scores, units, kept)
    assert effective_size(weights) >= LEAST_EFFECTIVE * kept.sum() * (1 - 1e-9)
    np.testing.assert_allclose(np.average(weights[kept], weights=units.steps[kept]), 1)


def test_weights_of_continuous_actions_are_a_power_of_the_signal_to_noise_ratio():
    data, fit = fitted(noise=(0.2, 0.2, 0.2, 1.5))
    curated = ileed.curate(fit, data, weight=True, coverage=False)
    table = fit.expertise.table()
    absolute = curated.scores["expertise"].estimate * curated.units.reference
    ratio = np.log(absolute / (1 - absolute))
    slope = np.polyfit(ratio, np.log(curated.weights), 1)
    np.testing.assert_allclose(np.polyval(slope, ratio), np.log(curated.weights), atol=0.02)
    assert 0 < slope[0] <= 1 + 1e-6
    assert curated.effective_size >= LEAST_EFFECTIVE * table["episodes"].to_numpy().sum()


@given(st.integers(0, 10_000), st.sampled_from([0.2, 0.5, 0.75]))
def test_every_stratum_keeps_its_share_and_the_best_of_it(seed, keep):
    random = np.random.default_rng(seed)
    score, strata = random.normal(size=60), random.integers(0, 4, 60)
    units = units_of(np.full(60, 10), strata)
    kept = Rule(keep=keep, coverage=True).choose(scores_of(score), units)
    assert kept.sum() == round(keep * 60)
    for each in range(4):
        own = strata == each
        assert (kept & own).sum() >= int(keep * own.sum())
        assert score[own & kept].min(initial=np.inf) >= score[own & ~kept].max(initial=-np.inf)


def test_discrete_actions_are_selected_by_score_alone_unless_coverage_is_asked_for():
    data = follows([0.95, 0.6, 0.3], steps=200, actions=4, seed=1)
    fit = ileed.Ileed(policy=ileed.CategoricalMLP(hidden=(8,)), restarts=1, steps=100, folds=2).fit(data, seed=0)
    plain = ileed.curate(fit, data, keep=0.5)
    score = plain.scores["expertise"].estimate
    assert score[plain.kept].min() >= score[~plain.kept].max()
    assert (plain.weights == 1).all()
    weights = ileed.curate(fit, data, weight=True).weights
    np.testing.assert_allclose(weights / score, (weights / score)[0])  # in proportion to the score
    matched = ileed.curate(fit, data, keep=0.5, coverage=True, adjust=True)
    assert matched.kept.sum() == plain.kept.sum()
    assert (matched.kept != plain.kept).any()


def test_weights_give_the_states_in_which_episodes_begin_their_shares_in_the_whole():
    data, fit = fitted()
    for rule in ({"keep": 0.5}, {"weight": True}):
        matched = ileed.curate(fit, data, **rule)
        share = np.bincount(matched.units.strata, matched.unit_weights) / matched.unit_weights.sum()
        np.testing.assert_allclose(share, np.bincount(matched.units.strata) / data.episode_count)
    assert (ileed.curate(fit, data, keep=0.5, coverage=False).weights == 1).all()


# --- scores


def test_scores_of_episodes_are_shrunk_towards_the_rating_of_the_demonstrator_by_their_reliability():
    """The episodes' own scores are those without shrinkage: what is left of their deviations is the reliability."""
    data, fit = fitted()
    curated = ileed.curate(fit, data)
    reliability = curated.within_reliability
    assert reliability < 0.5
    table = fit.expertise.table()
    rating = dict(zip(table["demonstrator"].to_pylist(), table["expertise"].to_pylist(), strict=True))
    rated = np.array([rating[data.names[each]] for each in data.episode_demonstrator])
    found = curated.scores["expertise"].estimate
    assert abs(found - rated).max() < 0.1 * rated.min() + reliability * abs(rated - rated.mean()).max()
    whole = Score(*(np.array([0.5]) for _ in range(4)))
    own = Score(*(np.array([0.7, 0.3]) for _ in range(4)))
    np.testing.assert_allclose(own.pooled(whole, np.array([0, 0]), 0.25).estimate, [0.55, 0.45])
    np.testing.assert_allclose(own.pooled(whole, np.array([0, 0]), 0.0).estimate, [0.5, 0.5])


def test_episodes_that_differ_reliably_keep_scores_of_their_own_in_that_order():
    data, fit = fitted(noise=(0.3, 0.3, 0.3), spread=0.9, episodes=20, steps=40)
    curated = ileed.curate(fit, data)
    assert curated.within_reliability > 0.7
    truth = [np.std(data.actions[data.episode == each] - rule_of(data, each)) for each in range(data.episode_count)]
    score = curated.scores["expertise"].estimate
    own = data.episode_demonstrator == 0
    assert ileed.rating.ranks.rank_correlation(score[own], -np.array(truth)[own]) > 0.7


def rule_of(data, episode):
    seen = data.observations[data.episode == episode]
    return np.tanh(seen[:, :2] + seen[:, [2]])


@pytest.mark.parametrize("reliable", [True, False])
def test_reliability_within_demonstrators_is_high_only_for_differences_that_last(reliable):
    """Over 20 draws (seeds 0 to 19) of 60 episodes of 20 steps: the reliability of a mean of 20 numbers with equal
    variances between and within episodes is 20/21; without a difference it is 0, and above 0.5 in at most one draw."""
    found = []
    for seed in range(20):
        data, random = operators([1.0] * 3, seed=0, episodes=20, steps=20), np.random.default_rng(seed)
        lasting = random.normal(size=data.episode_count) if reliable else np.zeros(data.episode_count)
        index = random.normal(size=len(data)) + lasting[data.episode] + 5 * data.demonstrator
        found.append(within_reliability(index, data, 1))
    if reliable:
        np.testing.assert_allclose(np.mean(found), 20 / 21, atol=0.05)  # ranks and centring cost a little
    else:
        assert np.sum(np.array(found) > 0.5) <= 1


def test_odd_and_even_segments_share_no_window_of_the_horizon():
    """Moving averages of white noise are equally reliable to it: not at all."""
    found = []
    for seed in range(20):
        data, random = operators([1.0] * 3, seed=0, episodes=20, steps=40), np.random.default_rng(seed)
        noise = random.normal(size=len(data))
        window = np.convolve(noise, np.ones(10) / 10)[9 : 9 + len(data)]  # over this step and the next nine
        found.append(within_reliability(window, data, 10))
    assert np.mean(found) < 0.25


def test_noise_that_is_a_product_of_demonstrator_and_state_is_corrected_to_that_of_the_demonstrator():
    """With 500 steps or more in each cluster, up to the prior of 50 steps: within 15%."""
    data = operators([1.0] * 3, seed=3, episodes=40, steps=100)
    cluster = cluster_steps(data, data.observations.T, seed=0) % 4
    state, skill = np.linspace(0.5, 2, cluster.max() + 1), np.array([0.3, 0.6, 0.9])
    corrected = relative_noise(state[cluster] * skill[data.demonstrator], StateGroups(data, cluster))
    relative = corrected / skill[data.demonstrator]
    np.testing.assert_allclose(relative, relative.mean(), rtol=0.15)


def test_a_state_that_only_a_poor_demonstrator_visits_is_not_taken_for_a_difficult_one():
    data = operators([1.0, 1.0], seed=3, episodes=40, steps=50)
    cluster = (data.demonstrator == 1) & (np.arange(len(data)) % 2 == 1)
    noise = np.where(data.demonstrator == 1, 2.0, 1.0)
    corrected = relative_noise(noise, StateGroups(data, cluster.astype(np.int64)))
    np.testing.assert_allclose(
        corrected[data.demonstrator == 1] / corrected[data.demonstrator == 0].mean(), 2, rtol=1e-6
    )


# --- comparisons


@pytest.mark.campaign
def test_equal_demonstrators_are_all_kept():
    """Each population is curated with probability 5% at most; two or more of six then with 3.3%. Seeds 0 to 5."""
    curated = []
    for seed in range(6):
        data, fit = fitted(noise=(0.4,) * 4, seed=seed, episodes=10)
        curated.append(ileed.curate(fit, data).recommended())
    assert sum(not each.kept.all() or (each.weights != 1).any() for each in curated) <= 1


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.campaign)])
def test_a_harmful_demonstrator_is_dropped_or_weighted_down(seed):
    data, fit = fitted(noise=(0.2, 0.2, 0.2, 1.5), seed=seed)
    curated = ileed.curate(fit, data)
    assert curated.recommendation.best is not None
    chosen = curated.recommended()
    weight = [chosen.step_weights[data.demonstrator == each].mean() for each in range(4)]
    assert weight[3] < 0.6 * min(weight[:3])
    assert chosen.comparisons == curated.recommendation.comparisons


def test_a_selection_of_the_worst_is_worse_by_its_interval():
    data, fit = fitted(noise=(0.2, 0.2, 0.2, 1.5))
    worst = {each: bool(data.episode_demonstrator[each] == 3) for each in range(data.episode_count)}
    found = ileed.curate(fit, data, keep=0.5).marked(worst).check(seed=0)
    assert found.is_worse
    assert found.low <= found.gain <= found.high < 0


def test_a_comparison_is_the_same_for_the_same_seed_and_another_for_another():
    data, fit = fitted()
    one, same = (ileed.curate(fit, data, keep=0.5).check(seed=3) for _ in range(2))
    assert one == same
    assert ileed.curate(fit, data, keep=0.5).check(seed=4) != one


def test_everything_compared_with_itself_gains_nothing():
    data, fit = fitted()
    found = ileed.curate(fit, data).check(seed=0)
    assert (found.gain, found.low, found.high) == (0, 0, 0)


@pytest.mark.parametrize(
    "rule",
    [{"keep": 0.3, "unit": "stretch"}, {"steps": 400}, {"above": 0.9, "probability": 0.5}, {"weight": True}],
    ids=str,
)
@pytest.mark.parametrize("discrete", [True, False])
def test_every_rule_is_compared_with_everything_for_both_kinds_of_actions(rule, discrete):
    data, fit = fitted_discrete() if discrete else fitted()
    found = ileed.curate(fit, data, stretch=10, **rule).check(seed=0)
    assert found.low < found.gain < found.high


@cache
def fitted_discrete():
    data = follows([0.95, 0.9, 0.3, 0.2], steps=300, actions=4, seed=1)
    data = replace(data, legal=np.ones((len(data), data.action_count), dtype=bool))
    method = ileed.Ileed(policy=ileed.CategoricalMLP(hidden=(8,)), restarts=1, steps=200, learning_rate=0.02, folds=2)
    return data, method.fit(data, seed=0, device="cpu")


def test_random_demonstrators_of_discrete_actions_are_dropped_or_weighted_down():
    data, fit = fitted_discrete()
    chosen = ileed.curate(fit, data).recommended()
    weight = np.array([chosen.step_weights[data.demonstrator == each].mean() for each in range(4)])
    assert weight[2:].max() < weight[:2].min()


def test_too_few_episodes_are_not_compared_and_all_are_kept():
    data, fit = fitted(noise=(0.2, 0.5), episodes=4)
    curated = ileed.curate(fit, data)
    assert np.isnan(curated.check(seed=0).gain)
    assert curated.recommended().kept.all()


def test_the_best_of_those_that_are_better_by_their_interval_is_recommended():
    made = [Comparison("a", 0.3, -0.1, 0.7, 0.98), Comparison("b", 0.1, 0.05, 0.15, 0.98)]
    assert Recommendation(tuple(made)).best == made[1]
    assert Recommendation(tuple(made[:1])).best is None


def test_a_gain_that_is_certain_and_small_is_not_recommended():
    small = Comparison("a", 0.04, 0.02, 0.06, 0.98, least=0.1)
    assert not small.is_better
    assert replace(small, least=0.0).is_better
    assert Recommendation((small,)).best is None


def test_every_state_cluster_counts_by_its_share_of_the_steps():
    """Weights of errors have a mean of 1 in each cluster, also where one demonstrator is almost alone in one."""
    data, _ = fitted(noise=(0.2, 0.5), episodes=4)
    cluster = (data.demonstrator == 0) & (np.arange(len(data)) % 10 != 0)
    material = Material(data, data.observations.T, np.array([0.9, 0.5]), True, cluster.astype(np.int64))
    weights = material.importance()
    for each in (0, 1):
        assert weights[cluster == each].mean() == pytest.approx(1)
    assert material._replace(cluster=None).importance()[cluster].mean() > 1.2


@pytest.mark.parametrize(("probability", "quantile"), [(0.975, 2.776445), (0.95, 2.131847), (0.995, 4.604095)])
def test_quantiles_of_four_degrees_of_freedom_are_those_of_tables(probability, quantile):
    assert _student_of_four(probability) == pytest.approx(quantile, abs=1e-6)
