"""Reaching: the laws that `AbstractTask` states, in a task of continuous actions, and the policy that is known."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from ileed.data import Demonstrations
from ileed.envs import expert, names, task
from ileed.envs.simulation import demonstrate, demonstrator_actor
from ileed.errors import IleedError
from ileed.model.demonstrators import UniformMixture, VarianceScaling
from ileed_lab.minigrid.noise import Persistent
from ileed_lab.minigrid.sequence import demonstrator_rewards
from ileed_lab.reach import ReachExpert, ReachTask

REACH = ReachTask()


def wandering(observations, starts):
    """An actor without a hidden state or chance, beyond what a hand can do, that opens and closes."""
    return np.stack([2 * np.sin(9 * observations[:, 0]), np.cos(7 * observations[:, 3]), observations[:, 1]], axis=1)


def global_generators():
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002


# The task


def test_it_goes_by_its_name_and_counts_no_actions():
    assert task("robot/reach") == REACH
    assert (REACH.action_count, REACH.action_size, REACH.observation_size) == (0, 3, 5)


def test_no_trained_expert_ships_and_the_refusal_says_for_what_one_does():
    assert "robot/reach" not in names()
    with pytest.raises(IleedError, match="no trained expert ships for robot/reach: those that ship are"):
        expert("robot/reach")


@pytest.mark.parametrize("actor", [ReachExpert(), wandering], ids=["expert", "wandering"])
def test_an_episode_depends_on_its_number_alone(actor):
    """Neither the environments stepped at once nor the episodes asked for change what episode k earns."""
    one_at_a_time = REACH.score(actor, episodes=30, seed=1, environments=1)
    np.testing.assert_array_equal(REACH.score(actor, episodes=30, seed=1, environments=7), one_at_a_time)
    np.testing.assert_array_equal(REACH.score(actor, episodes=41, seed=1)[:30], one_at_a_time)


def test_every_episode_starts_once_in_rows_that_never_change_in_number():
    widths, starts_seen = set(), 0

    def actor(observations, starts):
        nonlocal starts_seen
        widths.add(len(observations))
        starts_seen += starts.sum()
        return wandering(observations, starts)

    REACH.score(actor, episodes=23, seed=0, environments=5)
    assert (widths, starts_seen) == ({5}, 23)


def test_an_environment_does_not_depend_on_its_neighbours():
    alone, among = REACH.play(wandering, steps=120, seeds=[8]), REACH.play(wandering, steps=120, seeds=[9, 8])
    own = among.environment == 1
    np.testing.assert_array_equal(among.observations[own], alone.observations)
    np.testing.assert_array_equal(among.actions[own], alone.actions)
    np.testing.assert_array_equal(among.episode[own] - among.episode[own][0], alone.episode)


def test_what_is_played_obeys_the_rules_written_out_for_one_hand():
    """An independent loop over numbers: a hand moves a tenth of its velocity, cut to 1, and closing at the target
    ends the episode and earns 1; the 50th step ends it without.
    """
    played = REACH.play(wandering, steps=400, seeds=[2, 3])
    age = 0
    for row in range(len(played.episode) - 1):
        x, y, goal_x, goal_y, _ = played.observations[row]
        right, up, grip = played.actions[row]
        arrived = grip > 0 and ((x - goal_x) ** 2 + (y - goal_y) ** 2) ** 0.5 < 0.1
        age += 1
        assert (played.rewards[row], played.terminals[row]) == (arrived, arrived)
        if played.environment[row] != played.environment[row + 1]:
            age = 0
            continue
        assert (played.episode[row] != played.episode[row + 1]) == (arrived or age == 50)
        if arrived or age == 50:
            age = 0
            continue
        moved = [
            min(1, max(-1, place + 0.1 * min(1, max(-1, speed))))
            for place, speed in zip((x, y), (right, up), strict=True)
        ]
        expected = [*moved, goal_x, goal_y, 1 if grip > 0 else -1]
        np.testing.assert_allclose(played.observations[row + 1], expected, rtol=0, atol=1e-12)
    assert np.abs(played.actions).max() > 1  # what was told is kept, not what could be done


def test_a_phase_is_near_within_its_distance_and_far_beyond_it():
    seen = np.array([[0, 0, 0.34, 0, -1], [0, 0, 0.25, 0.25, -1], [0, 0, 0.36, 0, -1]])
    assert [REACH.phases[number] for number in REACH.phase(seen)] == ["near", "far", "far"]


def test_playing_leaves_the_global_generators_alone():
    before = global_generators()
    REACH.score(ReachExpert(), episodes=3, seed=0)
    REACH.play(wandering, steps=60, seeds=[0, 1])
    assert global_generators() == before


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (
            lambda observations, starts: np.zeros((len(starts), 2)),
            r"shape \(4, 2\); robot/reach takes 3 floating-point",
        ),
        (lambda observations, starts: np.zeros((len(starts), 3), dtype=int), "int64"),
        (lambda observations, starts: np.zeros(len(starts)), r"shape \(4,\)"),
        (lambda observations, starts: np.full((len(starts), 3), np.nan), r"\[nan, nan, nan\], but .* finite"),
        (lambda observations, starts: np.full((len(starts), 3), np.inf), "finite"),
    ],
)
def test_an_answer_that_is_no_action_is_refused(answer, sentence):
    with pytest.raises(IleedError, match=sentence):
        REACH.score(answer, episodes=4, seed=0)


# The expert


def test_the_expert_always_arrives():
    assert REACH.score(ReachExpert(), episodes=500, seed=0).mean() == 1


def test_the_expert_is_the_distribution_that_its_sentence_describes():
    """Tanh of three times the way left, a deviation from 0.2 to half as much again, and a gripper of two values."""
    seen = np.array([[0.1, 0.2, 0.1, 0.2, -1], [-0.5, 0, 0.5, 0.3, 1]])
    policy = ReachExpert().distribution(seen)
    way = np.hypot(1, 0.3)
    np.testing.assert_allclose(policy.mean, [[0, 0, 1], [np.tanh(3), np.tanh(0.9), -1]], atol=1e-12)
    wide = 0.2 * (1 + 0.5 * np.tanh(way))
    np.testing.assert_allclose(policy.stddev, [[0.2, 0.2, 0.01], [wide, wide, 0.01]], rtol=1e-9)
    np.testing.assert_array_equal(ReachExpert()(seen, np.ones(2, dtype=bool)), policy.mean.numpy())


# Demonstrators of known expertise


def noise(data: Demonstrations):
    """What was done, in deviations of the known policy from what it means."""
    policy = ReachExpert().distribution(data.observations)
    return (data.actions - policy.mean.numpy()) / policy.stddev.numpy()


@pytest.mark.parametrize("exempt", [(), (2,)], ids=["all scaled", "gripper exempt"])
@pytest.mark.parametrize(("scaled", "power"), [("variance", 0.5), ("standard_deviation", 1.0)])
def test_demonstrators_deviate_as_the_model_says(exempt, scaled, power):
    """A deviation over 20 x 500 numbers has a standard error of 0.7 %: five are 3.5 %."""
    for skill in (1.0, 0.3):
        model = VarianceScaling(scaled=scaled, exempt=exempt)
        data = demonstrate(REACH, ReachExpert(), skill=[skill] * 20, steps=500, seed=0, demonstrator=model)
        expected = np.array([skill**-power, skill**-power, 1 if exempt else skill**-power])
        np.testing.assert_allclose(noise(data).std(axis=0), expected, rtol=0.035)
        np.testing.assert_allclose(noise(data).mean(axis=0) / expected, 0, atol=0.05)


def test_a_mixture_is_drawn_from_by_the_weight_of_its_modes():
    """A quarter of 10,000 actions are at one mode and the rest at the other, within five standard errors."""

    class Torn:
        def distribution(self, observations):
            modes = torch.tensor([[-1.0, -1, -1], [1, 1, 1]], dtype=torch.float64).expand(len(observations), 2, 3)
            normal = torch.distributions.Independent(torch.distributions.Normal(modes, 0.01), 1)
            weights = torch.distributions.Categorical(torch.tensor([0.25, 0.75]).expand(len(observations), 2))
            return torch.distributions.MixtureSameFamily(weights, normal)

    data = demonstrate(REACH, Torn(), skill=[1.0] * 20, steps=500, seed=0)
    assert (np.ptp(np.sign(data.actions), axis=1) == 0).all()
    assert (data.actions[:, 0] < 0).mean() == pytest.approx(0.25, abs=5 * (0.1875 / 10_000) ** 0.5)


def test_expertise_follows_the_phase_that_a_step_is_in():
    """Five standard errors of a deviation over some 8,000 numbers are 4 %."""
    skill = {"far": 0.2, "near": 0.9}
    data = demonstrate(REACH, ReachExpert(), skill=[skill] * 20, steps=500, seed=0)
    np.testing.assert_array_equal(data.skills["phase"], np.array(REACH.phases)[REACH.phase(data.observations)])
    for phase, own in skill.items():
        there = noise(data)[data.skills["phase"] == phase]
        np.testing.assert_allclose(there.std(axis=0), own**-0.5, rtol=0.05)


def test_adding_a_demonstrator_changes_no_other_and_more_steps_begin_with_the_same():
    few = demonstrate(REACH, ReachExpert(), skill={"ann": 0.9, "bob": 0.2}, steps=60, seed=1)
    more = demonstrate(REACH, ReachExpert(), skill={"cat": 0.5, "ann": 0.9, "bob": 0.2}, steps=80, seed=1)
    for name in ("ann", "bob"):
        np.testing.assert_array_equal(more.by(name).actions[:60], few.by(name).actions)
        np.testing.assert_array_equal(more.by(name).observations[:60], few.by(name).observations)


def test_the_unskilled_earn_less_and_each_phase_may_have_its_own_skill():
    good, poor = (
        demonstrator_rewards(REACH, ReachExpert(), skill=skill, episodes=200, seed=0)
        for skill in (1.0, {"far": 0.005, "near": 0.005})
    )
    assert good.shape == (1, 200)
    assert good.mean() > poor.mean() + 0.1
    actor = demonstrator_actor(ReachExpert(), REACH, skill={"far": 0.005, "near": 0.005}, seed=0)
    np.testing.assert_array_equal(REACH.score(actor, episodes=200, seed=0), poor[0])


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"demonstrator": UniformMixture()}, "are continuous: use VarianceScaling"),
        ({"demonstrator": Persistent()}, "are continuous: use VarianceScaling"),
        ({"demonstrator": VarianceScaling(exempt=(3,))}, "exempt names dimension 3 but actions of robot/reach have 3"),
        ({"policy": wandering}, r"has no distribution\(observations\)"),
        ({"temperature": 2.0}, "softens discrete actions alone"),
        ({"skill": [{"far": 0.5}]}, "is given in far; give .* for each phase of robot/reach: far, near"),
        ({"skill": [{"far": 0.5, "near": 0.5, "there": 1.0}]}, "is given in far, near, there; give .* far, near"),
    ],
)
def test_settings_that_do_not_go_with_the_task_are_refused(settings, sentence):
    with pytest.raises(IleedError, match=sentence):
        demonstrate(REACH, **{"policy": ReachExpert(), "skill": [0.5], "steps": 10, "seed": 0} | settings)
