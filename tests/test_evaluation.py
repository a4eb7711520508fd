"""Evaluation: rewards, how sure we are of them, and whether a ranking is right."""

from __future__ import annotations

import numpy as np
import pytest

from ileed.envs import expert, task
from ileed.envs.evaluation import Scores, evaluate, rank_loss
from ileed.errors import IleedError

KNOWN = {"ann": 0.9, "bob": 0.5, "cat": 0.5, "dan": 0.1}


class Remembering:
    """Has stable-baselines3's `predict`, and checks that it is handed the state that it returned last."""

    def __init__(self):
        self.state = None
        self.starts = 0

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        assert deterministic
        assert observation.shape == (len(episode_start), 147)
        assert state is self.state
        self.state = object()
        self.starts += episode_start.sum()
        return expert("minigrid/lava")(observation), self.state


def test_a_policy_with_predict_is_handed_its_state_and_every_start():
    pytest.importorskip("minigrid", reason="playing needs the extra 'minigrid'")
    policy = Remembering()
    scores = evaluate(policy, task("minigrid/lava"), episodes=80, seed=0)
    assert policy.starts == 80
    np.testing.assert_array_equal(
        scores.rewards, evaluate(expert("minigrid/lava"), task("minigrid/lava"), episodes=80, seed=0).rewards
    )


def test_the_same_seed_gives_the_same_scores_and_a_longer_evaluation_begins_with_a_shorter():
    pytest.importorskip("minigrid", reason="playing needs the extra 'minigrid'")
    world, policy = task("minigrid/obstacles"), expert("minigrid/obstacles")
    short, long = (evaluate(policy, world, episodes=count, seed=4) for count in (10, 25))
    np.testing.assert_array_equal(long.rewards[:10], short.rewards)


def test_the_interval_holds_the_true_mean_as_often_as_it_says():
    """Of 100 evaluations of 100 episodes from a skewed reward, 95 % should cover, within four standard errors."""
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(100):
        scores = Scores(np.where(generator.random(100) < 0.9, 0.95, -1.0))
        low, high = scores.interval
        covered += low <= 0.9 * 0.95 - 0.1 <= high
    assert 0.86 < covered / 100 < 1


def test_the_interval_narrows_with_the_root_of_the_episodes():
    rewards = np.random.default_rng(0).random(100)
    narrow, wide = Scores(np.tile(rewards, 16)).interval, Scores(rewards).interval
    assert (wide[1] - wide[0]) / (narrow[1] - narrow[0]) == pytest.approx(4, rel=0.1)
    assert wide[0] < narrow[0] < Scores(rewards).mean < narrow[1] < wide[1]


def test_scores_print_what_a_reader_needs():
    assert str(Scores(np.full(1500, 0.914))) == "0.91 (0.91 to 0.91 over 1,500 episodes)"
    assert str(Scores(np.array([0.5]))) == "0.50 (1 episode)"
    assert Scores(np.array([0.5])).interval == (-np.inf, np.inf)


def test_scores_cannot_be_changed():
    rewards = np.zeros(3)
    scores = Scores(rewards)
    rewards[0] = 1
    assert scores.mean == 0
    with pytest.raises(ValueError, match="read-only"):
        scores.rewards[0] = 1


@pytest.mark.parametrize("rewards", [[], [[1.0]], [np.nan, 1.0]])
def test_rewards_that_have_no_mean_are_refused(rewards):
    with pytest.raises(IleedError):
        Scores(np.array(rewards))


def test_rank_loss_is_zero_for_any_increasing_estimate_and_one_for_any_decreasing():
    assert rank_loss({name: skill**3 - 7 for name, skill in KNOWN.items()} | {"cat": -6.9}, KNOWN) == 0
    assert rank_loss({name: -skill for name, skill in KNOWN.items()}, KNOWN) == 1


def test_rank_loss_of_an_estimate_and_of_its_inverse_add_up_to_one():
    generator = np.random.default_rng(0)
    for _ in range(20):
        estimate = {name: float(generator.integers(3)) for name in KNOWN}
        inverse = {name: -value for name, value in estimate.items()}
        assert rank_loss(estimate, KNOWN) + rank_loss(inverse, KNOWN) == pytest.approx(1)


def test_rank_loss_by_hand():
    """Five pairs differ in known skill: ann and bob are inverted, cat and dan are tied, the other three are right."""
    assert rank_loss({"ann": 0.6, "bob": 0.7, "cat": 0.2, "dan": 0.2}, KNOWN) == pytest.approx((1 + 0.5) / 5)


@pytest.mark.parametrize(
    ("estimated", "known", "sentence"),
    [
        ({"ann": 1.0}, {"bob": 1.0}, "'ann' is named in only one"),
        ({"ann": 1.0, "bob": 0.5}, {"ann": 0.3, "bob": 0.3}, "no two demonstrators differ"),
        ({"ann": float("nan"), "bob": 0.5}, {"ann": 0.3, "bob": 0.4}, "'ann' is not a finite number"),
    ],
)
def test_rankings_that_cannot_be_compared_are_refused(estimated, known, sentence):
    with pytest.raises(IleedError, match=sentence):
        rank_loss(estimated, known)
