"""Sequences of tasks: stage after stage as minigrid plays them, scored stage by stage, under every task's laws."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from ileed.envs import expert, names, task
from ileed.envs.abstract_task import as_actor, episode_seed
from ileed.envs.minigrid import ENVIRONMENTS, MiniGridTask
from ileed.errors import IleedError
from ileed_lab.minigrid.sequence import STAGES, TaskSequence, experts, multi_skill_task, stage_seed, stages_of

LONGEST = (288, 100, 144)  # minigrid's own limits of time: 8 x 6 x 6, 4 x 5 x 5 and 4 x 6 x 6 steps


@pytest.fixture(scope="module")
def skills():
    """The paper's multi-skill task; without the extra `minigrid` it cannot be played."""
    pytest.importorskip("minigrid", reason="playing needs the extra 'minigrid'")
    return multi_skill_task()


def by_view(observations, starts):
    """An actor without a hidden state or chance that uses every action: it looks only at what it is shown."""
    return (observations.astype(np.int64) @ np.arange(1, 148)) % 7


def idle(observations, starts):
    """Does nothing, so that every episode lasts as long as it may and earns nothing."""
    return np.full(len(starts), 6)


# Playing


def test_the_stages_are_played_in_turn_as_minigrid_plays_them(skills):
    """Minigrid's own environments are stepped beside ours, with the same seeds and actions."""
    gymnasium = pytest.importorskip("gymnasium", reason="playing needs the extra 'minigrid'")
    chance = np.random.default_rng(0)
    played = skills.play(lambda observations, starts: chance.integers(7, size=2), steps=1200, seeds=[3, 4])
    worlds = [gymnasium.make(ENVIRONMENTS[stage].id, disable_env_checker=True).unwrapped for stage in STAGES]
    assert set(played.phase) == {0, 1, 2}
    for environment, seed in enumerate([3, 4]):
        number, over = -1, True
        for row in np.flatnonzero(played.environment == environment):
            if over:
                number += 1
                world = worlds[number % 3]
                seen, _ = world.reset(seed=episode_seed(seed, number))
            assert played.phase[row] == number % 3
            assert played.episode[row] - played.episode[played.environment == environment][0] == number
            np.testing.assert_array_equal(played.observations[row], seen["image"].ravel())
            seen, reward, terminated, truncated, _ = world.step(played.actions[row])
            assert (played.rewards[row], played.terminals[row]) == (np.float32(reward), terminated)
            over = terminated or truncated


def test_a_failure_leads_on_to_the_next_stage_and_the_last_episode_is_cut(skills):
    played = skills.play(idle, steps=sum(LONGEST) + 300, seeds=[0])
    np.testing.assert_array_equal(np.bincount(played.episode), [*LONGEST, LONGEST[0], 12])
    np.testing.assert_array_equal(played.phase, np.repeat([0, 1, 2, 0, 1], [*LONGEST, LONGEST[0], 12]))
    assert not played.terminals.any()


def test_the_actor_sees_where_a_stage_begins(skills):
    told = []

    def actor(observations, starts):
        told.append(starts[0])
        return by_view(observations, starts)

    played = skills.play(actor, steps=700, seeds=[5])
    np.testing.assert_array_equal(told, np.diff(played.episode, prepend=-1) == 1)


def test_an_environment_does_not_depend_on_its_neighbours(skills):
    alone, among = skills.play(by_view, steps=400, seeds=[8]), skills.play(by_view, steps=400, seeds=[9, 8])
    own = among.environment == 1
    for column in ("observations", "actions", "rewards", "terminals", "phase"):
        np.testing.assert_array_equal(getattr(among, column)[own], getattr(alone, column))
    np.testing.assert_array_equal(among.episode[own] - among.episode[own][0], alone.episode)


def test_a_sequence_of_one_task_plays_like_the_task(skills):
    """Only that it says so: `phase` is 0 throughout, where a task of one piece has none."""
    lava = MiniGridTask("minigrid/lava")
    whole, only = (
        lava.play(by_view, steps=250, seeds=[1, 2]),
        TaskSequence("x", (lava,)).play(by_view, steps=250, seeds=[1, 2]),
    )
    for column in ("observations", "actions", "rewards", "terminals", "episode", "environment"):
        np.testing.assert_array_equal(getattr(only, column), getattr(whole, column))
    assert whole.phase is None
    assert not only.phase.any()


def test_playing_leaves_the_global_generators_alone(skills):
    def generators():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002

    before = generators()
    skills.score(by_view, episodes=2, seed=0)
    skills.play(by_view, steps=20, seeds=[0])
    assert generators() == before


# Scoring


def test_an_episode_is_worth_the_mean_of_its_stages(skills):
    """Each stage is scored as the task that it is, with a seed of its own; experts earn next to all, strangers not."""
    actor = expert("minigrid/empty")
    rewards = skills.score_stages(actor, episodes=12, seed=3)
    for row, stage in zip(rewards, skills.stages, strict=True):
        np.testing.assert_array_equal(row, stage.score(actor, episodes=12, seed=stage_seed(skills, stage, 3)))
    np.testing.assert_allclose(skills.score(actor, episodes=12, seed=3), sum(rewards) / 3, rtol=1e-15)
    assert len({stage_seed(skills, stage, 3) for stage in skills.stages} | {3}) == 4
    assert rewards[2].mean() > 0.9
    assert rewards[0].mean() < 0.5


def test_an_episode_depends_on_its_number_alone(skills):
    """Neither the environments stepped at once nor the episodes asked for change what episode k earns."""
    actor = expert("minigrid/empty")
    one_at_a_time = skills.score(actor, episodes=5, seed=1, environments=1)
    assert len(set(one_at_a_time)) > 1
    np.testing.assert_array_equal(skills.score(actor, episodes=5, seed=1, environments=4), one_at_a_time)
    np.testing.assert_array_equal(skills.score(actor, episodes=8, seed=1)[:5], one_at_a_time)
    assert not np.array_equal(skills.score(actor, episodes=5, seed=2), one_at_a_time)


def test_rows_keep_their_environment_and_say_where_stages_start(skills):
    """Of 7 episodes in 3 stages each start is reported once, in a batch that never changes its width."""
    widths, told = set(), 0

    def actor(observations, starts):
        nonlocal told
        widths.add(len(observations))
        told += starts.sum()
        return by_view(observations, starts)

    skills.score(actor, episodes=7, seed=0, environments=4)
    assert (widths, told) == ({4}, 21)


def test_a_recurrent_policy_begins_each_stage_without_a_hidden_state(skills):
    """It counts its steps since the last start: never more than the longest stage takes."""
    longest = 0

    class Counting:
        def predict(self, observation, state=None, episode_start=None, deterministic=True):
            nonlocal longest
            state = np.where(episode_start, 0, 0 if state is None else state) + 1
            longest = max(longest, *state)
            return np.full(len(state), 6), state

    skills.score(as_actor(Counting()), episodes=2, seed=0, environments=2)
    assert longest == max(LONGEST)


def test_progress_counts_every_stage_and_ends_with_everything_done(skills):
    told = []
    skills.score(by_view, episodes=4, seed=0, progress=lambda done, total: told.append((done, total)))
    assert told == [(done, 12) for done in range(1, 13)]


# Names and refusals


def test_the_multi_skill_task_has_the_papers_stages_and_looks_like_each_of_them():
    world = multi_skill_task()
    assert (world.name, tuple(stage.name for stage in world.stages)) == ("minigrid/skills", STAGES)
    assert (world.observation_size, world.action_count) == (147, 7)
    assert [stage.name for stage in stages_of(world)] == list(STAGES)
    assert stages_of(task("minigrid/lava")) == (task("minigrid/lava"),)


def test_experts_come_by_stage_and_a_sequence_has_none_of_its_own():
    found = experts(multi_skill_task())
    assert {stage: policy.origin["task"] for stage, policy in found.items()} == {stage: stage for stage in STAGES}
    assert list(experts(task("minigrid/lava"))) == ["minigrid/lava"]
    with pytest.raises(IleedError, match="no trained expert ships for minigrid/skills: those that ship"):
        expert("minigrid/skills")
    assert "minigrid/skills" not in names()


@pytest.mark.parametrize(
    ("stages", "sentence"),
    [
        ((), "no stages"),
        (("minigrid/lava", "minigrid/lava"), "same stage twice"),
        (("minigrid/lava", "minigrid/obstacles"), "differ in action_count"),
    ],
)
def test_stages_that_make_no_sequence_are_refused(stages, sentence):
    with pytest.raises(IleedError, match=sentence):
        TaskSequence("odd", tuple(MiniGridTask(stage) for stage in stages))


@pytest.mark.parametrize("counts", [{"steps": 0, "seeds": [1]}, {"steps": 5, "seeds": []}])
def test_nothing_to_play_is_refused(skills, counts):
    with pytest.raises(IleedError, match="at least one"):
        skills.play(idle, **counts)
