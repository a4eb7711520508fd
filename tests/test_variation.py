"""Episode-to-episode variation of skill widens the intervals of demonstrators and limits claims about their order."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

import ileed
from ileed import Demonstrations, rate
from ileed.rating.posterior import GRID, INSIDE, SPREADS, MarginalCurves, points_for, posterior, posterior_of_means
from ileed.report.evidence import Demonstrator, demonstrators_of
from ileed.report.sections import next_steps

ACTIONS = 7


def sigmoid(logit):
    return 1 / (1 + np.exp(-logit))


def play(seed, *, demonstrators=8, episodes=2, steps=200, spread=0.7, level=None):
    """Demonstrations whose best action is always 0, each demonstrator's mean expertise, and that of each episode."""
    chance = np.random.default_rng(seed)
    level = chance.uniform(0.1, 0.95, demonstrators) if level is None else np.array(level)
    nodes, weights = np.polynomial.hermite_e.hermegauss(61)
    logit = np.log(level / (1 - level))
    mean = sigmoid(logit[:, None] + spread * nodes) @ weights / weights.sum()
    owner = np.repeat(np.arange(len(level)), episodes)
    own = sigmoid(logit[owner] + spread * chance.normal(size=len(owner)))
    episode = np.repeat(np.arange(len(owner)), steps)
    follows = chance.random(len(episode)) < own[episode]
    data = Demonstrations(
        observations=np.zeros((len(episode), 1)),
        actions=np.where(follows, 0, chance.integers(ACTIONS, size=len(episode))),
        demonstrator=owner[episode],
        episode=episode,
        names=tuple(f"operator {number}" for number in range(len(level))),
        action_count=ACTIONS,
    )
    return data, mean, own


def policy_for(data):
    return np.eye(ACTIONS)[np.zeros(len(data), dtype=int)]


def curve(right, wrong, rho):
    """Log-likelihood of steps that follow a deterministic policy or not."""
    return right * np.log(rho + (1 - rho) / ACTIONS) + wrong * np.log((1 - rho) / ACTIONS + 1e-300)


def curves_of(counts, owner):
    right, wrong = np.array(counts).T[..., None]
    by_episode = curve(right, wrong, points_for(len(counts)))
    whole = np.zeros((max(owner) + 1, len(GRID)))
    np.add.at(whole, owner, curve(right, wrong, GRID))
    return whole, by_episode


def test_the_marginal_likelihood_is_the_integral_over_each_episodes_expertise():
    counts, owner = [(30, 20), (45, 5)], np.array([0, 0])
    found = MarginalCurves.of(*curves_of(counts, owner), owner)
    spread, center = 5, 0.4  # of SPREADS; on the logit scale
    mean = quad(lambda x: sigmoid(x) * norm.pdf(x, center, SPREADS[spread]), -10, 10)[0]

    def episode(right, wrong):
        return quad(lambda x: np.exp(curve(right, wrong, sigmoid(x))) * norm.pdf(x, center, SPREADS[spread]), -8, 8)[0]

    by_hand = sum(np.log(episode(*each)) for each in counts)
    # 250 points of expertise and linear interpolation between means: to a thousandth of a nat here
    assert np.interp(mean, INSIDE, found.at(spread)[0]) == pytest.approx(by_hand, abs=2e-3)


def test_without_variation_the_curve_is_the_sum_over_episodes():
    owner = np.array([0, 0, 1])
    whole, by_episode = curves_of([(30, 20), (45, 5), (9, 1)], owner)
    assert np.array_equal(MarginalCurves.of(whole, by_episode, owner).at(0), whole[:, 1:-1])


def test_one_step_episodes_say_as_much_as_independent_steps():
    """One Bernoulli step has the same likelihood of its mean whatever varies, so the interval is the same."""
    data, _, _ = play(0, demonstrators=3, episodes=60, steps=1, spread=0.0)
    found = rate(policy_for(data), data)
    alone = rate(policy_for(data), data, pooled=False).alone.expertise
    blocks = [curve(right, 60 - right, GRID) for right in (np.bincount(data.demonstrator, data.actions == 0))]
    shares, _ = posterior(np.array(blocks), None)
    assert found.pooled.expertise == pytest.approx(shares @ INSIDE, abs=3e-3)
    assert alone.shape == (3,)


@pytest.mark.parametrize("episodes", [2, 3, 5])
def test_intervals_hold_the_mean_expertise_of_demonstrators_whose_episodes_vary(episodes):
    """Nominal 90%; the standard error over 25 populations is about 0.025, and the bounds lie three of them away.

    Intervals that took all steps of a demonstrator as independent held 31 to 35%.
    """
    held = []
    for seed in range(25):
        data, mean, _ = play(1000 * episodes + seed, episodes=episodes)
        table = rate(policy_for(data), data).table(confidence_level=0.9)
        order = [data.names.index(name) for name in table["demonstrator"].to_pylist()]
        truth = (mean / mean.mean())[order]
        held.append(((table["low"].to_numpy() <= truth) & (truth <= table["high"].to_numpy())).mean())
    assert 0.82 <= np.mean(held) <= 0.97


def test_the_spread_of_episodes_is_learned_and_handed_to_newcomers():
    calm, lively = (
        rate(policy_for(data), data).population for data in (play(1, episodes=20, spread=s)[0] for s in (0.0, 1.2))
    )
    assert calm.episode_spread @ SPREADS < 0.2
    assert lively.episode_spread @ SPREADS == pytest.approx(1.2, abs=0.25)
    newcomer = play(2, demonstrators=1, episodes=1, level=[0.5], spread=0.0)[0]
    width = {}
    for name, population in (("calm", calm), ("lively", lively)):
        found = rate(policy_for(newcomer), newcomer, pooled=population).pooled
        width[name] = float(found.high[0] - found.low[0])
    assert width["lively"] > 2 * width["calm"]


def test_a_newcomer_is_rated_alike_alone_and_among_others_when_episodes_vary():
    data, _, _ = play(3, episodes=4)
    population = rate(policy_for(data), data).population
    together = rate(policy_for(data), data, pooled=population)
    for name in data.names[:3]:
        alone = data.by(name)
        assert rate(policy_for(alone), alone, pooled=population)[name] == pytest.approx(together[name], abs=1e-12)


def test_spreads_that_are_ruled_out_do_not_matter():
    owner = np.repeat(np.arange(4), 30)
    counts = np.stack([np.full(120, 40), np.full(120, 10)], axis=1)  # episodes more alike than chance
    shares, population = posterior_of_means(MarginalCurves.of(*curves_of(counts, owner), owner), None)
    assert population.episode_spread.sum() == pytest.approx(1)
    assert population.episode_spread[-1] == 0
    assert shares.sum(1) == pytest.approx(np.ones(4))


@cache
def fitted_to(demonstrators, episodes):
    """A small cross-fitted fit of demonstrators who differ clearly."""
    level = np.linspace(0.95, 0.3, demonstrators)
    data, _, _ = play(5, episodes=episodes, steps=100, spread=0.1, level=level)
    observed = np.random.default_rng(0).normal(size=(len(data), 2))
    method = ileed.Ileed(
        policy=ileed.CategoricalMLP(hidden=(4,)),
        expertise=ileed.Constant(),
        restarts=1,
        steps=200,
        learning_rate=0.02,
        folds=2,
    )
    return method.fit(replace(data, observations=observed), seed=0, device="cpu")


def test_two_demonstrators_are_not_ordered_by_a_policy_that_they_taught():
    ratings = fitted_to(2, 6).expertise.ratings
    assert ratings.not_identified
    assert ratings.not_identified in ratings.sentence()
    assert len(ratings.groups()) == 1


def test_two_demonstrators_are_ordered_by_a_policy_that_is_given():
    data, _, _ = play(6, episodes=6, level=[0.95, 0.2], spread=0.1)
    assert rate(policy_for(data), data).groups() == [("operator 0",), ("operator 1",)]


@pytest.mark.parametrize(("episodes", "is_identified"), [(2, False), (3, True)])
def test_fewer_than_three_episodes_each_support_no_order(episodes, is_identified):
    ratings = fitted_to(3, episodes).expertise.ratings
    assert bool(ratings.not_identified) is not is_identified
    assert (len(ratings.groups()) > 1) is is_identified
    assert ("operator 0 is better" in ratings.sentence()) is is_identified


def test_two_long_episodes_do_not_make_a_narrow_interval():
    """Two operators, two recordings of 370 steps each: the ratio of their expertise is hardly known."""
    data, _, _ = play(7, demonstrators=2, episodes=2, steps=370, level=[0.8, 0.4])
    table = rate(policy_for(data), data).table(confidence_level=0.95)
    assert (table["high"].to_numpy() - table["low"].to_numpy()).min() > 0.3


def test_a_report_advises_no_demonstrator_to_train_where_no_order_is_identified():
    class Clusters:
        def gaps(self):
            return [], [Demonstrator(0, 1, "operator 0", 0.5, (0.5, 0.4, 0.6))]

    for demonstrators, episodes, is_identified in ((2, 6, False), (3, 2, False), (3, 3, True)):
        fitted = fitted_to(demonstrators, episodes)
        advice = dict(next_steps(fitted, demonstrators_of(fitted, {}), Clusters(), None))
        assert ("Train" in advice) is is_identified
