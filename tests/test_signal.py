"""Ratings of continuous actions by the variance that the policy explains: laws, oracles, horizons and reliability."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.distributions import Normal, StudentT

import ileed
from ileed.methods.ileed import RATER_HIDDEN
from ileed.rating.posterior import GRID, mean_and_interval, peak, posterior
from ileed.rating.ratings import LEAST_RELIABILITY
from ileed.rating.signal import (
    LogNoise,
    Moments,
    Scale,
    SumsOfSquares,
    actions_ahead,
    block_of,
    chosen_horizon,
    reliability_of,
)
from ileed.rating.step_likelihood import curves

PEOPLE, EPISODES, LENGTH = 6, 10, 60


def operators(noise, *, size=1.0, people=PEOPLE, episodes=EPISODES, seed=0, fps=None):
    """Demonstrators who follow a smooth policy of a state that drifts, each with `noise` and a `size` of actions."""
    random = np.random.default_rng(seed)
    count = people * episodes
    state = np.cumsum(random.normal(size=(count, LENGTH, 2)), axis=1) / 4
    state += random.normal(size=(count, 1, 2))
    who = np.repeat(np.arange(people), episodes)
    mean = np.sin(state @ np.array([[1.0, 0.3], [-0.4, 1.2]]))
    level, scale = (np.broadcast_to(each, people)[who][:, None, None] for each in (noise, size))
    actions = scale * (mean + level * random.normal(size=mean.shape))
    return ileed.Demonstrations(
        observations=state.reshape(-1, 2).astype(np.float32),
        actions=actions.reshape(-1, 2).astype(np.float32),
        demonstrator=np.repeat(who, LENGTH),
        episode=np.repeat(np.arange(count), LENGTH),
        names=tuple(f"operator {number}" for number in range(people)),
        fps=fps,
    )


def method(**settings):
    usual = {"policy": ileed.MixtureMLP(hidden=(16,), modes=1), "restarts": 2, "steps": 400, "folds": 4}
    return ileed.Ileed(**(usual | settings | {"learning_rate": 1e-2}))


NOISE = np.array([0.1, 0.3, 0.5, 0.8, 1.2, 2.0])


@pytest.fixture(scope="module")
def fitted():
    return method().fit(operators(NOISE), seed=0, device="cpu")


# --- mean actions over a horizon


@pytest.mark.parametrize("horizon", [1, 2, 7, 1000])
def test_an_action_ahead_is_the_mean_of_the_next_steps_of_its_episode(horizon):
    data = operators(1.0, people=2, episodes=2)
    found = actions_ahead(data, [horizon]).actions
    for step in (0, 1, LENGTH - 1, LENGTH, 3 * LENGTH - 2):
        end = min(step + horizon, (step // LENGTH + 1) * LENGTH)
        np.testing.assert_allclose(found[step], data.actions[step:end].astype(float).mean(0), atol=1e-12)


def test_horizons_stand_one_after_the_other():
    data = operators(1.0, people=2, episodes=2)
    both = actions_ahead(data, [3, 5]).actions
    np.testing.assert_array_equal(both[:, :2], actions_ahead(data, [3]).actions)
    np.testing.assert_array_equal(both[:, 2:], actions_ahead(data, [5]).actions)


def test_a_horizon_in_seconds_follows_the_rate_of_the_data():
    data = operators(1.0, people=2, episodes=2, fps=20.0)
    assert ileed.SignalScaling(horizon="0.5s").horizons(data) == (10,)
    assert ileed.SignalScaling(horizon=7).horizons(data) == (7,)
    assert ileed.SignalScaling().horizons(data) == (1, 2, 4, 8)  # a quarter of 60 steps is 15
    with pytest.raises(ileed.SettingsError, match="the data have no rate"):
        ileed.SignalScaling(horizon="0.5s").horizons(replace(data, fps=None))


# --- noise


def moments_of(y, m, episodes):
    starts = np.flatnonzero(np.append(True, np.diff(episodes)))

    def sums(values):
        return np.add.reduceat(values, starts)

    return Moments(np.bincount(episodes), *(sums(each) for each in (y, y * y, m * m, y * m, 0 * y)))


def draw(seed=0, count=400, dimensions=3):
    random = np.random.default_rng(seed)
    m = random.normal(size=(count, dimensions))
    episodes = np.repeat(np.arange(4), count // 4)
    return m + random.normal(size=m.shape) * [0.2, 0.5, 1.0], m, episodes


def test_expertise_is_the_share_of_the_variance_within_episodes_that_the_policy_explains():
    """Against a loop over the episodes of each demonstrator, without gains."""
    y, m, episodes = draw()
    noise, owner = np.array([0.1, 0.4, 2.0]), np.array([0, 0, 1, 1])
    scale = Scale(5, np.zeros(3), noise, gain=False, shrinkage=4.0)
    found = scale.log_noise(moments_of(y, m, episodes), owner, 2)
    for person in range(2):
        own = [episodes == episode for episode in np.flatnonzero(owner == person)]
        residual = sum(((y[steps] - m[steps]) ** 2 / noise).sum() for steps in own)
        total = sum((y[steps].var(0) * len(y[steps]) / noise).sum() for steps in own)
        assert found[person] == pytest.approx(np.log(residual / total))


def test_the_error_of_the_policy_is_no_noise():
    """Predictions with an error of known variance give the noise of predictions without; 4,000 steps, within 5%."""
    y, m, episodes = draw(count=4_000)
    error = np.random.default_rng(1).normal(size=m.shape) * 0.3
    scale, owner = Scale(1, np.zeros(3), np.ones(3), gain=False, shrinkage=4.0), np.array([0, 0, 1, 1])
    wrong = moments_of(y, m + error, episodes)
    known = wrong._replace(error=np.full_like(wrong.yy, 0.09 * 1_000))
    right = scale.log_noise(moments_of(y, m, episodes), owner, 2)
    np.testing.assert_allclose(scale.log_noise(known, owner, 2), right, atol=0.05)
    assert (scale.log_noise(wrong, owner, 2) > 0.1 + right).all()


@pytest.mark.parametrize("size", [0.1, 3.0])
def test_the_size_of_a_demonstrators_actions_earns_nothing(size):
    """Scaling all actions of one demonstrator leaves their noise as it is, but for the prior of gains."""
    y, m, episodes = draw()
    owner = np.array([0, 0, 1, 1])
    scale = Scale(5, np.zeros(3), np.ones(3), gain=True, shrinkage=0.0)
    smaller = np.where((episodes < 2)[:, None], size * y, y)
    before, after = (scale.log_noise(moments_of(each, m, episodes), owner, 2) for each in (y, smaller))
    np.testing.assert_allclose(after, before, rtol=1e-9)


def sums_of(residual, total):
    return SumsOfSquares(np.asarray(residual, float), np.asarray(total, float), np.ones(len(residual)))


def test_the_variance_of_log_noise_is_that_of_the_jackknife_shrunk_towards_the_mean_of_all():
    """Against a loop that deletes one episode after the other; four degrees of freedom are the prior."""
    random = np.random.default_rng(0)
    owner, steps = np.repeat([0, 1, 2], [5, 9, 2]), random.integers(20, 60, size=16)
    cells = sums_of(random.uniform(1, 3, 16), random.uniform(4, 9, 16))
    found = LogNoise.of(cells, steps, owner, 3, policy=0.01, variation=None)
    per_step, counts = [], np.bincount(owner)
    for person in range(3):
        own = np.flatnonzero(owner == person)
        left = [[each for each in own if each != out] for out in own]
        deleted = np.array([np.log(cells.residual[rest].sum() / cells.total[rest].sum()) for rest in left])
        jackknife = (len(own) - 1) / len(own) * ((deleted - deleted.mean()) ** 2).sum()
        per_step.append(jackknife * steps[own].sum())
    mean = np.average(per_step, weights=counts - 1)
    assert found.variation == pytest.approx(mean)
    for person, count in enumerate(counts):
        shrunk = (4 * mean + (count - 1) * per_step[person]) / (count + 3)
        assert found.variance[person] == pytest.approx(shrunk / steps[owner == person].sum() + 0.01)
        assert found.freedom[person] == count + 3


def test_the_likelihood_of_expertise_is_students_t_about_the_log_of_the_noise():
    noise = LogNoise(np.array([-1.0, -0.3]), np.array([0.04, 0.2]), np.array([6, 20]), 1.0)
    points = np.array([0.1, 0.6, 0.9])
    found = noise.curves(np.arange(2), points)
    for person in range(2):
        density = StudentT(float(noise.freedom[person]), noise.estimate[person], noise.variance[person] ** 0.5)
        expected = density.log_prob(torch.tensor(np.log(1 - points))).numpy()
        np.testing.assert_allclose(found[person] - found[person, 0], expected - expected[0], atol=1e-6)


def test_one_episode_each_says_that_expertise_is_hardly_known():
    cells, steps, owner = sums_of([1.0, 2.0], [4.0, 4.0]), np.array([50, 50]), np.arange(2)
    found = LogNoise.of(cells, steps, owner, 2, policy=0.0, variation=None)
    np.testing.assert_allclose(found.variance, 2 / 50)
    known = LogNoise.of(cells, steps, owner, 2, policy=0.0, variation=20.0)
    np.testing.assert_allclose(known.variance, 20 / 50)


@pytest.mark.parametrize("variation", [0.0, 0.5])
def test_intervals_hold_the_expertise_of_demonstrators_whose_policy_is_known(variation):
    """30 populations of 6 demonstrators with 12 episodes each: 84% of 180 is 2.7 standard errors below 90%."""
    random, held = np.random.default_rng(0), []
    for _ in range(30):
        level = random.uniform(0.3, 0.9, size=6)
        owner = np.repeat(np.arange(6), 12)
        noise = ((1 - level) / level)[owner] * np.exp(variation * random.normal(size=72) - variation**2 / 2)
        signal = random.gamma(4, 1 / 4, size=72)
        total = 40 * (signal + noise)
        cells = sums_of(noise * random.chisquare(40, size=72), total)
        found = LogNoise.of(cells, np.full(72, 40), owner, 6, policy=0.0, variation=None)
        shares, _ = posterior(found.curves(np.arange(6), GRID), None)
        _, low, high = mean_and_interval(shares, 0.9)
        held.append((level >= low) & (level <= high))
    assert np.mean(held) >= 0.84


def test_gains_are_shrunk_towards_one_the_more_the_fewer_steps():
    _, m, episodes = draw()
    for count, near in ((400, 2.0), (4, 1.0)):
        part = slice(0, 400, 400 // count)
        moments = moments_of(2 * m[part], m[part], episodes[part])
        scale = Scale(5, np.zeros(3), np.ones(3), gain=True, shrinkage=4.0)
        found = scale.gains(moments, np.zeros(4, dtype=int), 1)
        assert abs(found - near).max() < abs(found - (3 - near)).min()


def test_an_exempt_dimension_counts_for_nothing():
    y, m, episodes = draw()
    noise = np.array([0.1, 0.4, np.inf])
    scale = Scale(5, np.zeros(3), noise, gain=True, shrinkage=4.0)
    assert scale.dimensions == 2
    wild = y + np.array([0.0, 0.0, 100.0])
    owner = np.zeros(4, dtype=int)
    np.testing.assert_allclose(
        scale.log_noise(moments_of(wild, m, episodes), owner, 1),
        scale.log_noise(moments_of(y, m, episodes), owner, 1),
    )


def test_the_likelihood_of_steps_is_gaussian_in_their_noise_shares():
    """Against torch's density of one residual for each step, whose variance is the share of noise."""
    shares = np.random.default_rng(0).chisquare(1, size=50) * 0.3
    block, owner = block_of(np.arange(50), shares, 1.0), np.repeat([0, 1], 25)
    points = np.array([0.2, 0.7, 0.95])
    found = curves([block], owner, 2, points=points)
    for place, rho in enumerate(points):
        density = Normal(0.0, torch.tensor(1 - rho, dtype=torch.float64).sqrt()).log_prob(torch.tensor(np.sqrt(shares)))
        constant = 0.5 * np.log(2 * np.pi) * 25
        each = density.reshape(2, 25).sum(1).numpy() + constant
        np.testing.assert_allclose(found[:, place], each)
        np.testing.assert_allclose(block.at(torch.tensor([rho]), 1.0).reshape(2, 25).sum(1), each)


def test_the_likeliest_expertise_is_the_share_of_variance_that_is_explained():
    shares = np.random.default_rng(0).chisquare(1, size=500) * 0.3
    found = curves([block_of(np.arange(500), shares, 0.25)], np.zeros(500, dtype=int), 1)
    assert peak(found, GRID)[0] == pytest.approx(1 - shares.mean(), abs=1e-3)


# --- reliability


def reliability(noise, seed):
    """Reliability by the true policy, without a fit."""
    data = operators(noise, seed=seed, episodes=20)
    y = data.actions.astype(float)
    m = np.sin(data.observations @ np.array([[1.0, 0.3], [-0.4, 1.2]]))
    moments = Moments.of(data.episode_bounds[:-1], y, m, 0 * y)
    scale = Scale.of(moments, np.zeros(2), 1, ileed.SignalScaling())
    return scale.reliability(moments, data, np.tile(np.arange(4), data.episode_count // 4))


def test_demonstrators_who_do_not_differ_have_no_reliable_ratings():
    """0.5 is F(5, 18) = 2, which chance exceeds in 13 of 100 populations of Gaussian ratings."""
    found = np.array([reliability(0.5, seed) for seed in range(40)])
    assert (found < LEAST_RELIABILITY).mean() >= 0.7
    assert ((found >= 0) & (found <= 1)).all()


def test_demonstrators_who_differ_have_reliable_ratings():
    assert min(reliability(NOISE, seed) for seed in range(5)) > 0.9


def test_reliability_is_what_random_halves_agree_on():
    """Against the correlation of 2,000 random halves, stepped up by the formula of Spearman and Brown; within 0.03."""
    random = np.random.default_rng(0)
    ratings = random.normal(size=(200, 1)) + random.normal(size=(200, 6))
    halves = []
    for _ in range(2_000):
        order = random.permuted(np.arange(6))
        one, other = ratings[:, order[:3]].mean(1), ratings[:, order[3:]].mean(1)
        halves.append(np.corrcoef(one, other)[0, 1])
    expected = 2 * np.mean(halves) / (1 + np.mean(halves))
    assert reliability_of(ratings) == pytest.approx(expected, abs=0.03)


def test_reliability_needs_replicates_and_three_demonstrators():
    ratings = np.random.default_rng(0).normal(size=(5, 3))
    assert np.isnan(reliability_of(ratings[:, :1]))
    assert np.isnan(reliability_of(ratings[:2]))
    ratings[0, 1:] = np.nan  # a demonstrator of one fold counts where others have several
    assert 0 <= reliability_of(ratings) <= 1
    assert reliability_of(np.repeat(ratings[1:, :1], 3, axis=1)) == 1


@pytest.mark.parametrize(
    ("reliability", "place"),
    [
        ((0.5, 0.905, 0.9, 0.7), 2),
        ((0.2, 0.79, 0.8, 0.77), 2),
        ((float("nan"), float("nan")), 0),
        ((float("nan"), 0.4), 1),
    ],
)
def test_the_longest_horizon_about_as_reliable_as_the_best_is_taken(reliability, place):
    assert chosen_horizon(reliability) == place


# --- fits


def test_demonstrators_are_ordered_by_their_noise(fitted):
    names = [f"operator {number}" for number in range(PEOPLE)]
    assert [name for name, _ in fitted.expertise.ranking()] == names
    own = fitted.expertise.by_demonstrator()
    assert own == dict(zip(names, fitted.expertise.table(relative=False)["expertise"].to_pylist(), strict=True))
    assert fitted.expertise.ratings.by.reliability > 0.9
    assert fitted.expertise.ratings.by.horizon in fitted.rater.horizons


def test_hesitant_demonstrators_are_not_above_decisive_ones():
    """Of two groups with equal noise relative to their actions, that with actions a fifth as large is not better."""
    noise, size = np.array([0.3, 0.3, 0.3, 1.2, 1.2, 1.2]), np.array([1.0, 1.0, 1.0, 0.2, 0.2, 0.2])
    data = operators(noise, size=size)
    own = method().fit(data, seed=0, device="cpu").expertise.by_demonstrator()
    assert min([*own.values()][:3]) > max([*own.values()][3:])
    paper = method(demonstrator=ileed.VarianceScaling()).fit(data, seed=0, device="cpu")
    wrong = paper.expertise.ratings.by_demonstrator()
    assert max([*wrong.values()][:3]) < max([*wrong.values()][3:])


def test_the_order_of_equal_demonstrators_is_withheld():
    data = operators(0.5, seed=3)
    ratings = method().fit(data, seed=0, device="cpu").expertise.ratings
    assert ratings.by.reliability < LEAST_RELIABILITY
    assert len(ratings.groups()) == 1
    assert "reliability" in ratings.sentence()
    table = ratings.table()
    assert set(table["rank_low"].to_pylist()) == {1}
    assert set(table["rank_high"].to_pylist()) == {PEOPLE}


def test_a_rater_is_saved_and_loaded_to_the_same_bits(fitted, tmp_path):
    data, other = operators(NOISE), operators(NOISE, seed=5)
    fitted.save(tmp_path / "run")
    loaded = ileed.load(tmp_path / "run")
    for each in (data, other):
        np.testing.assert_array_equal(loaded.rater.judge(each)._shares, fitted.rater.judge(each)._shares)
    assert loaded.expertise.by_demonstrator() == fitted.expertise.by_demonstrator()
    assert loaded.rater.reliability == fitted.rater.reliability


def test_newcomers_are_rated_on_the_scale_of_the_fit(fitted):
    """Operator 1 as a newcomer, by policies most of which have seen those episodes, is rated slightly higher."""
    data = replace(operators(NOISE).by("operator 1"), names=("newcomer",))
    newcomer = fitted.assess(data)
    known = fitted.expertise.ratings["operator 1"].expertise
    assert known - 0.02 < newcomer["newcomer"].expertise < known + 0.1
    assert newcomer.by.horizon == fitted.expertise.ratings.by.horizon


def test_a_fit_judges_its_own_episodes_by_policies_that_have_not_seen_them(fitted):
    data = operators(NOISE)
    held_out_shares = fitted.rater.judge(data)._shares
    seen_by_most = fitted.rater.judge(replace(data, names=tuple(f"other {k}" for k in range(PEOPLE))))._shares
    assert seen_by_most.mean() < held_out_shares.mean()
    assert "none of which has seen" in ileed.curate(fitted, data).judged_by


def test_a_given_horizon_is_used_and_the_policy_does_not_depend_on_it():
    data = operators(NOISE, episodes=6)
    fits = [
        method(demonstrator=ileed.SignalScaling(horizon=horizon), steps=50).fit(data, seed=0, device="cpu")
        for horizon in (2, 6)
    ]
    assert [each.expertise.ratings.by.horizon for each in fits] == [2, 6]
    np.testing.assert_array_equal(*(each.policy.act(data.observations[:50]) for each in fits))


def test_policies_that_rate_have_the_width_that_is_given_or_one_of_their_own():
    data = operators(NOISE, episodes=6)
    given = method(policy=ileed.MixtureMLP(hidden=(12,)), steps=20).fit(data, seed=0, device="cpu")
    assert given.rater.joint.parts.policy.hidden == (12,)
    chosen = method(policy=None, steps=20, restarts=1).fit(data, seed=0, device="cpu")
    assert chosen.width is not None
    assert chosen.rater.joint.parts.policy.hidden == RATER_HIDDEN


def test_a_recurrent_policy_is_rated_too():
    policy = ileed.MixtureLSTM(hidden=(8,), modes=1)
    fitted = method(policy=policy, steps=60, folds=3).fit(operators(NOISE, episodes=5), seed=0, device="cpu")
    assert fitted.expertise.ratings is not None
    assert fitted.rater.joint.parts.policy.length == 1


def test_the_sentence_says_so_where_duration_explains_the_order():
    """Nine demonstrators whose episodes are the longer the more noise they have."""
    random, parts = np.random.default_rng(0), []
    for person in range(9):
        for _ in range(6):
            length = 20 + 8 * person
            state = np.cumsum(random.normal(size=(length, 2)), axis=0) / 4
            action = np.sin(state) + 0.2 * person * random.normal(size=state.shape)
            parts.append((state, action, person))
    data = ileed.Demonstrations(
        observations=np.concatenate([state for state, _, _ in parts]).astype(np.float32),
        actions=np.concatenate([action for _, action, _ in parts]).astype(np.float32),
        demonstrator=np.concatenate([[f"operator {person}"] * len(state) for state, _, person in parts]),
        episode=np.concatenate([[number] * len(state) for number, (state, _, _) in enumerate(parts)]),
    )
    ratings = method(steps=200).fit(data, seed=0, device="cpu").expertise.ratings
    assert "duration" in ratings.by.explained
    assert ratings.sentence().endswith(ratings.by.explained)
    short = operators(NOISE)
    assert method(steps=50).fit(short, seed=0, device="cpu").expertise.ratings.by.explained == ""
