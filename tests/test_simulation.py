"""Simulation: demonstrators act with the skill that they were given, each with chance of their own."""

from __future__ import annotations

import numpy as np
import pytest

from ileed.errors import IleedError
from ileed.model.demonstrators import Boltzmann, OneVersusRest, UniformMixture, VarianceScaling
from ileed.simulation import POPULATIONS, demonstrate
from ileed.tasks import AbstractTask, Playthrough, expert, task


class Corridor(AbstractTask):
    """A task without an environment: noise is seen, nothing is earned, and every tenth step starts an episode."""

    name, observation_size, action_count = "corridor", 4, 5

    def score(self, actor, *, episodes, seed, environments=64, progress=None):
        raise NotImplementedError

    def play(self, actor, *, steps, seeds, progress=None):
        seen = np.stack([np.random.default_rng(seed).integers(5, size=(steps, 4)) for seed in seeds])
        starts = np.zeros((len(seeds), steps), dtype=bool)
        starts[:, ::10] = True
        acted = np.stack([actor(seen[:, step], starts[:, step]) for step in range(steps)], axis=1)
        everything = len(seeds) * steps
        return Playthrough(
            observations=seen.reshape(everything, 4),
            actions=acted.ravel(),
            rewards=np.zeros(everything, dtype=np.float32),
            terminals=np.zeros(everything, dtype=bool),
            episode=np.cumsum(starts.ravel()) - 1,
            environment=np.repeat(np.arange(len(seeds)), steps),
        )


class Leaning:
    """Prefers the action that the first number names, and is known to."""

    def __call__(self, observations, starts=None):
        return observations[:, 0]

    def probabilities(self, observations):
        return 0.1 + 0.5 * np.eye(5)[observations[:, 0]]


@pytest.mark.parametrize("skill", [0.0, 0.3, 0.9, 1.0])
@pytest.mark.parametrize(
    ("model", "sample", "expected"),
    [
        (UniformMixture(), False, lambda skill: skill + (1 - skill) / 5),
        (UniformMixture(), True, lambda skill: 0.6 * skill + (1 - skill) / 5),
        (OneVersusRest(), False, lambda skill: skill),
        (Boltzmann(), True, lambda skill: 0.6**skill / (0.6**skill + 4 * 0.1**skill)),
    ],
    ids=["uniform", "uniform, sampled", "one versus rest", "Boltzmann, sampled"],
)
def test_the_policy_is_followed_as_often_as_the_model_says(model, sample, expected, skill):
    """20,000 steps with seed 0; five standard errors are at most 0.018, so a right program fails once in a million."""
    data = demonstrate(Corridor(), Leaning(), skill=[skill] * 100, steps=200, seed=0, demonstrator=model, sample=sample)
    followed = (data.actions == data.observations[:, 0]).mean()
    assert followed == pytest.approx(expected(skill), abs=0.018)


def test_slips_are_spread_evenly_over_the_actions():
    """Of 20,000 steps of pure chance each of 5 actions takes a fifth, within five standard errors."""
    data = demonstrate(Corridor(), Leaning(), skill=[0.0] * 100, steps=200, seed=0)
    np.testing.assert_allclose(np.bincount(data.actions) / 20_000, 0.2, atol=5 * (0.16 / 20_000) ** 0.5)


def test_adding_a_demonstrator_changes_no_other():
    few = demonstrate(Corridor(), Leaning(), skill={"ann": 0.9, "bob": 0.2}, steps=50, seed=1)
    more = demonstrate(Corridor(), Leaning(), skill={"cat": 0.5, "ann": 0.9, "bob": 0.2}, steps=50, seed=1)
    for name in ("ann", "bob"):
        np.testing.assert_array_equal(more.by(name).actions, few.by(name).actions)
        np.testing.assert_array_equal(more.by(name).observations, few.by(name).observations)


def test_demonstrators_of_equal_skill_do_not_act_alike():
    data = demonstrate(Corridor(), Leaning(), skill=[0.0, 0.0], steps=50, seed=0)
    assert not np.array_equal(data.by("demonstrator 1").actions, data.by("demonstrator 2").actions)


def test_a_seed_fixes_the_data_and_another_changes_it():
    first, again, other = (
        demonstrate(Corridor(), Leaning(), skill=[0.5], steps=50, seed=seed).actions for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_more_steps_begin_with_the_same_steps():
    pytest.importorskip("minigrid", reason="playing needs the extra 'minigrid'")
    world, policy = task("minigrid/empty"), expert("minigrid/empty")
    short, long = (demonstrate(world, policy, skill=[0.5, 0.9], steps=steps, seed=0) for steps in (30, 45))
    for name in short.names:
        np.testing.assert_array_equal(long.by(name).actions[:30], short.by(name).actions)
        np.testing.assert_array_equal(long.by(name).observations[:30], short.by(name).observations)


def test_the_papers_populations_have_ten_demonstrators_each():
    assert {name: len(skills) for name, skills in POPULATIONS.items()} == dict.fromkeys(
        ("beta-1", "beta-5", "beta-10", "unif"), 10
    )
    assert [sum(skills) for skills in POPULATIONS.values()] == pytest.approx([1.08, 5.0, 9.9, 5.0])


def test_minigrid_demonstrations_are_whole_and_the_skilled_earn_more():
    """Every demonstrator has all of their steps, all actions are known, and reward follows skill from .05 to .95."""
    pytest.importorskip("minigrid", reason="playing needs the extra 'minigrid'")
    data = demonstrate(
        task("minigrid/obstacles"), expert("minigrid/obstacles"), skill=(0.05, 0.5, 0.95), steps=600, seed=0
    )
    assert (len(data), data.names) == (1800, ("demonstrator 1", "demonstrator 2", "demonstrator 3"))
    assert (data.action_count, data.observations.shape, data.observations.dtype) == (3, (1800, 147), np.uint8)
    rewards = [data.by(name).rewards.sum() / data.by(name).episode_count for name in data.names]
    assert rewards == sorted(rewards)
    best = expert("minigrid/obstacles")(data.observations)
    shares = [(best == data.actions)[data.demonstrator == index].mean() for index in range(3)]
    assert shares == pytest.approx([skill + (1 - skill) / 3 for skill in (0.05, 0.5, 0.95)], abs=0.1)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"skill": [0.5, 1.2]}, "the skill of 'demonstrator 2' is 1.2"),
        ({"skill": {"ann": float("nan")}}, "the skill of 'ann' is nan"),
        ({"skill": []}, "names no demonstrator"),
        ({"skill": [0.5], "sample": True}, "has no probabilities"),
        ({"skill": [0.5], "demonstrator": VarianceScaling()}, "is for continuous actions"),
    ],
)
def test_settings_that_make_no_demonstrator_are_refused(settings, sentence):
    with pytest.raises(IleedError, match=sentence):
        demonstrate(Corridor(), lambda observations, starts: observations[:, 0], steps=10, seed=0, **settings)


def test_an_expert_of_another_task_is_refused():
    with pytest.raises(IleedError, match="was it made for another task"):
        demonstrate(Corridor(), lambda observations, starts: np.full(len(starts), 6), skill=[1.0], steps=10, seed=0)
