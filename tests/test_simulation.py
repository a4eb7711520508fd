"""Simulation: demonstrators act with the skill that they were given, each with chance of their own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.distributions import Categorical

from ileed.envs import expert, task
from ileed.envs.abstract_task import AbstractTask, Playthrough
from ileed.envs.simulation import POPULATIONS, demonstrate, demonstrator_actor
from ileed.errors import IleedError
from ileed.formats import shipped
from ileed.model.demonstrators import Boltzmann, OneVersusRest, UniformMixture, VarianceScaling
from ileed_lab.minigrid.noise import Biased, Persistent
from ileed_lab.minigrid.sequence import (
    STAGES,
    actor_by_stage,
    demonstrator_rewards,
    experts,
    multi_skill,
    multi_skill_task,
    stage_seed,
)


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
    ("model", "temperature", "expected"),
    [
        (UniformMixture(), None, lambda skill: skill + (1 - skill) / 5),
        (UniformMixture(), 1.0, lambda skill: 0.6 * skill + (1 - skill) / 5),
        (OneVersusRest(), None, lambda skill: skill),
        (OneVersusRest(), 1.0, lambda skill: 0.6 * skill + 0.1 * (1 - skill)),
        (Boltzmann(), 1.0, lambda skill: 0.6**skill / (0.6**skill + 4 * 0.1**skill)),
        (Persistent(), None, lambda skill: skill + (1 - skill) / 5),
        (Biased((3,)), None, lambda skill: skill + (1 - skill) / 5),
        (Biased((0, 4)), None, lambda skill: skill + (1 - skill) / 5),
    ],
    ids=[
        *("uniform", "uniform, sampled", "one versus rest", "one versus rest, sampled", "Boltzmann, sampled"),
        *("persistent", "favourite", "two favourites"),
    ],
)
def test_the_policy_is_followed_as_often_as_the_model_says(model, temperature, expected, skill):
    """20,000 steps with seed 0; five standard errors are at most 0.018, so a right program fails once in a million.

    What is preferred in the corridor is noise, so that any noise agrees with it in one step of five.
    """
    settings = {"demonstrator": model, "temperature": temperature}
    data = demonstrate(Corridor(), Leaning(), skill=[skill] * 100, steps=200, seed=0, **settings)
    followed = (data.actions == data.observations[:, 0]).mean()
    assert followed == pytest.approx(expected(skill), abs=0.018)


def test_slips_are_spread_evenly_over_the_actions():
    """Of 20,000 steps of pure chance each of 5 actions takes a fifth, within five standard errors."""
    data = demonstrate(Corridor(), Leaning(), skill=[0.0] * 100, steps=200, seed=0)
    np.testing.assert_allclose(np.bincount(data.actions) / 20_000, 0.2, atol=5 * (0.16 / 20_000) ** 0.5)


def test_one_versus_rest_is_at_random_where_skill_is_one_in_so_many():
    """Whatever is preferred, each of 5 actions takes a fifth of some 4,000 steps, within five standard errors."""
    data = demonstrate(Corridor(), Leaning(), skill=[0.2] * 100, steps=200, seed=0, demonstrator=OneVersusRest())
    for preferred in range(5):
        there = data.actions[data.observations[:, 0] == preferred]
        np.testing.assert_allclose(
            np.bincount(there, minlength=5) / len(there), 0.2, atol=5 * (0.16 / len(there)) ** 0.5
        )


@pytest.mark.parametrize("temperature", [0.5, 2.0, 10.0])
def test_temperature_softens_the_policy_that_is_followed(temperature):
    """Probabilities of 0.6 and four times 0.1 to the power 1 / temperature, by hand; the tolerance is as above."""
    data = demonstrate(Corridor(), Leaning(), skill=[1.0] * 100, steps=200, seed=0, temperature=temperature)
    most, others = 0.6 ** (1 / temperature), 4 * 0.1 ** (1 / temperature)
    followed = (data.actions == data.observations[:, 0]).mean()
    assert followed == pytest.approx(most / (most + others), abs=0.018)


# Noise that no model of ours describes


@pytest.mark.parametrize("noise", [Persistent(), Biased((2,)), Biased((0, 1))], ids=repr)
def test_noise_is_a_distribution_that_skill_turns_into_the_policy(noise):
    generator = torch.Generator().manual_seed(0)
    policy = Categorical(logits=torch.randn(60, 5, generator=generator, dtype=torch.float64))
    previous = torch.randint(-1, 5, (60,), generator=generator)
    for skill in (0.0, 0.3, 1.0):
        now = noise.after(previous) if hasattr(noise, "after") else noise
        seen = now.observed(policy, torch.full((60,), skill, dtype=torch.float64)).probs
        torch.testing.assert_close(seen.sum(-1), torch.ones(60, dtype=torch.float64))
        assert (seen >= 0).all()
    torch.testing.assert_close(seen, policy.probs)


def test_the_persistent_repeat_themselves_within_an_episode_only():
    """Without any skill an episode is one action, ten times; which one is drawn again for each of 2,000 episodes."""
    data = demonstrate(Corridor(), Leaning(), skill=[0.0] * 100, steps=200, seed=0, demonstrator=Persistent())
    episodes = data.actions.reshape(2_000, 10)
    assert (episodes == episodes[:, :1]).all()
    np.testing.assert_allclose(np.bincount(episodes[:, 0]) / 2_000, 0.2, atol=5 * (0.16 / 2_000) ** 0.5)


def test_the_biased_slip_towards_their_favourites_alone():
    data = demonstrate(Corridor(), Leaning(), skill=[0.5] * 100, steps=200, seed=0, demonstrator=Biased((1, 3)))
    slips = data.actions[data.actions != data.observations[:, 0]]
    assert set(slips) == {1, 3}
    assert (slips == 1).mean() == pytest.approx(0.5, abs=5 * (0.25 / len(slips)) ** 0.5)


# Chance


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
        ({"skill": [0.5], "temperature": 1.0}, "has no probabilities"),
        ({"skill": [0.5], "demonstrator": VarianceScaling()}, "which are discrete: use UniformMixture"),
    ],
)
def test_settings_that_make_no_demonstrator_are_refused(settings, sentence):
    with pytest.raises(IleedError, match=sentence):
        demonstrate(Corridor(), lambda observations, starts: observations[:, 0], steps=10, seed=0, **settings)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"temperature": 0.0}, "temperature is 0.0, but it must be above 0"),
        ({"demonstrator": Biased((5,))}, "action 5 is a favourite, but there are 5"),
        ({"skill": [{"corridor": 0.5, "attic": 0.5}]}, "given in corridor, attic; give .* each phase of corridor"),
        ({"skill": {"ann": {}}}, "the skill of 'ann' is given in no phase; give .*: corridor"),
        ({"skill": {"ann": {"corridor": 7}}}, "the skill of 'ann' in corridor is 7"),
        ({"policy": {"attic": Leaning()}}, "cannot act: pass something with stable-baselines3's predict"),
    ],
)
def test_settings_that_contradict_the_task_or_each_other_are_refused(settings, sentence):
    with pytest.raises(IleedError, match=sentence):
        demonstrate(Corridor(), **{"policy": Leaning(), "skill": [0.5], "steps": 10, "seed": 0} | settings)


@pytest.mark.parametrize("actions", [(), (1, 1), (-1,)])
def test_favourites_that_are_none_are_refused(actions):
    with pytest.raises(IleedError, match="favourite"):
        Biased(actions)


def test_an_expert_of_another_task_is_refused():
    with pytest.raises(IleedError, match="was it made for another task"):
        demonstrate(Corridor(), lambda observations, starts: np.full(len(starts), 6), skill=[1.0], steps=10, seed=0)


# Several skills


@pytest.fixture(scope="module")
def skills():
    pytest.importorskip("minigrid", reason="playing needs the extra 'minigrid'")
    return multi_skill_task()


def test_the_papers_three_are_perfect_in_one_stage_each():
    table = np.array([list(by_stage.values()) for by_stage in multi_skill(0.2).values()])
    np.testing.assert_array_equal(table, np.where(np.eye(3), 1.0, 0.2))
    assert {tuple(by_stage) for by_stage in multi_skill(0.2).values()} == {STAGES}


def test_skill_and_policy_follow_the_stage_that_a_step_is_in(skills):
    """In their own stage demonstrators act as its expert would; elsewhere in 0.2 + 0.8 / 7 of the steps.

    Five standard errors of the smallest count, some 100 steps, are 0.23.
    """
    policies = experts(skills)
    data = demonstrate(skills, actor_by_stage(policies, skills), skill=multi_skill(0.2), steps=1500, seed=0)
    visited = 0
    for person, (name, by_stage) in enumerate(multi_skill(0.2).items()):
        for stage, skill in by_stage.items():
            rows = (data.demonstrator == person) & (data.skills["phase"] == stage)
            visited += rows.sum()
            followed = (policies[stage](data.observations[rows]) == data.actions[rows]).mean()
            margin = 5 * (0.25 / rows.sum()) ** 0.5 if skill < 1 else 0
            assert followed == pytest.approx(skill + (1 - skill) / 7, abs=margin), (name, stage)
    assert visited == len(data) == 4500
    assert all(len(set(data.skills["phase"][data.episode == number])) == 1 for number in range(data.episode_count))


def test_one_skill_for_all_stages_is_the_same_skill_in_each(skills):
    def made(**skill):
        return demonstrate(skills, actor_by_stage(experts(skills), skills), skill=skill, steps=60, seed=0)

    bob = multi_skill(0.1)["skilled in lava"]
    once, spelled = (made(ann=skill, bob=bob) for skill in (0.3, dict.fromkeys(STAGES, 0.3)))
    assert once.equals(spelled)
    alone = made(bob=bob)
    np.testing.assert_array_equal(alone.actions, once.by("bob").actions)
    np.testing.assert_array_equal(alone.observations, once.by("bob").observations)


def test_one_policy_for_all_stages_is_asked_once_a_step(skills):
    asked = 0

    def policy(observations, starts):
        nonlocal asked
        asked += 1
        return np.full(len(starts), 6)

    data = demonstrate(skills, policy, skill=[1.0], steps=20, seed=0)
    assert asked == 20
    assert set(data.actions) == {6}


# Scoring a demonstrator


def test_a_perfect_demonstrator_earns_what_the_experts_earn_each_in_their_stage(skills):
    policies = experts(skills)
    rewards = demonstrator_rewards(skills, policies, skill=1.0, episodes=6, seed=2)
    for row, stage in zip(rewards, skills.stages, strict=True):
        expected = stage.score(policies[stage.name], episodes=6, seed=stage_seed(skills, stage, 2))
        np.testing.assert_array_equal(row, expected)


def test_a_demonstrator_earns_where_they_are_skilled(skills):
    """FixedBatch seed; without skill Unlock and Lava earn next to nothing, with it nearly all."""
    rewards = demonstrator_rewards(
        skills, experts(skills), skill=multi_skill(0.01)["skilled in lava"], episodes=40, seed=0
    )
    assert rewards.shape == (3, 40)
    unlock, lava, _ = rewards.mean(axis=1)
    assert unlock < 0.2
    assert lava > 0.9


def test_in_a_task_of_one_stage_a_demonstrator_earns_what_their_actor_does():
    pytest.importorskip("minigrid", reason="playing needs the extra 'minigrid'")
    world, policy = task("minigrid/lava"), expert("minigrid/lava")
    actor = demonstrator_actor(policy, world, skill=0.5, seed=4, demonstrator=Persistent())
    rewards = demonstrator_rewards(world, policy, skill=0.5, episodes=20, seed=4, demonstrator=Persistent())
    np.testing.assert_array_equal(rewards, [world.score(actor, episodes=20, seed=4)])
    assert world.score(actor, episodes=3, seed=4).shape == (3,)  # used again, in fewer environments


def test_an_actor_that_would_have_to_know_the_stage_is_refused(skills):
    with pytest.raises(IleedError, match="cannot act"):
        demonstrator_actor(experts(skills), skills, skill=0.5, seed=0)
    with pytest.raises(IleedError, match="demonstrator_rewards"):
        demonstrator_actor(expert("minigrid/lava"), skills, skill=multi_skill(0.1)["skilled in lava"], seed=0)


@pytest.mark.parametrize("stages", [STAGES[:2], (*STAGES, "minigrid/obstacles"), ()])
def test_policies_that_are_not_those_of_the_stages_are_refused(skills, stages):
    with pytest.raises(IleedError, match="give one for each stage of minigrid/skills"):
        actor_by_stage({stage: expert(stage) for stage in stages}, skills)


# What ships


def test_the_data_that_ship_can_be_made_again():
    pytest.importorskip("minigrid", reason="playing needs the extra 'minigrid'")
    name = "minigrid/obstacles"
    made = demonstrate(task(name), expert(name), skill=POPULATIONS["beta-1"], steps=1000, seed=0)
    assert made.equals(shipped())
