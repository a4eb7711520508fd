"""Tasks: the laws that `AbstractTask` states, MiniGrid against minigrid itself, and the experts that ship."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import numpy as np
import pytest
import torch

from ileed.envs import expert, names, task
from ileed.envs import minigrid as ours
from ileed.envs.abstract_task import as_actor, episode_seed
from ileed.envs.minigrid import ENVIRONMENTS, MiniGridTask, expert_path
from ileed.errors import IleedError, RunError
from ileed_lab.expert_files import load_expert, save_expert
from ileed_lab.minigrid.mission import flat_with_mission
from ileed_lab.minigrid.pretraining import Pretraining, pretrain


@pytest.fixture(scope="session")
def minigrid():
    """The environments themselves; without the extra `minigrid` nothing can be played."""
    pytest.importorskip("gymnasium", reason="playing needs the extra 'minigrid'")
    return pytest.importorskip("minigrid", reason="playing needs the extra 'minigrid'")


@pytest.fixture(params=["minigrid", "envpool"])
def engine(request):
    """Both engines that can score: every law holds with each of them."""
    pytest.importorskip("gymnasium", reason="playing needs the extra 'minigrid'")
    pytest.importorskip(request.param, reason=f"this engine needs the package {request.param}")
    return request.param


def chosen_by_view(action_count):
    """An actor without a hidden state or chance that uses every action: it looks only at what it is shown."""
    weights = np.arange(1, 148)
    return lambda observations, starts: (observations.astype(np.int64) @ weights) % action_count


def global_generators():
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002


def reference(name):
    gymnasium = pytest.importorskip("gymnasium", reason="playing needs the extra 'minigrid'")
    return gymnasium.make(ENVIRONMENTS[name].id, disable_env_checker=True)


# Playing


@pytest.mark.parametrize("name", names())
def test_the_view_is_the_image_that_minigrid_draws(minigrid, name):
    """The reference is stepped beside ours, with the same seeds and actions, through many episodes."""
    world, chance = task(name), np.random.default_rng(0)
    played = world.play(
        lambda observations, starts: chance.integers(world.action_count, size=2), steps=700, seeds=[3, 4]
    )
    minigrid_world = reference(name).unwrapped
    for environment, seed in enumerate([3, 4]):
        rows = np.flatnonzero(played.environment == environment)
        first = played.episode[rows[0]]
        for before, row in zip([None, *rows], rows, strict=False):
            if before is None or played.episode[before] != played.episode[row]:
                seen, _ = minigrid_world.reset(seed=episode_seed(seed, int(played.episode[row] - first)))
            np.testing.assert_array_equal(played.observations[row], seen["image"].ravel())
            seen, reward, terminated, _, _ = minigrid_world.step(played.actions[row])
            assert (played.rewards[row], played.terminals[row]) == (np.float32(reward), terminated)


@pytest.mark.parametrize("name", names())
def test_what_is_known_without_minigrid_is_true_of_it(minigrid, name):
    from minigrid.wrappers import FlatObsWrapper

    world = FlatObsWrapper(reference(name))
    flat, _ = world.reset(seed=0)
    assert world.action_space.n == task(name).action_count
    np.testing.assert_array_equal(flat_with_mission(flat[:147], name), flat)
    np.testing.assert_array_equal(flat_with_mission(np.stack([flat[:147]] * 2), name), np.stack([flat] * 2))


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("actor", [expert, lambda name: chosen_by_view(task(name).action_count)], ids=["expert", "odd"])
def test_an_episode_depends_on_its_number_alone(engine, name, actor):
    """Neither the environments stepped at once nor the episodes asked for change what episode k earns."""
    world = MiniGridTask(name, engine=engine)
    one_at_a_time = world.score(actor(name), episodes=6, seed=1, environments=1)
    np.testing.assert_array_equal(world.score(actor(name), episodes=6, seed=1, environments=4), one_at_a_time)
    np.testing.assert_array_equal(world.score(actor(name), episodes=11, seed=1, environments=64)[:6], one_at_a_time)


def test_many_episodes_are_played_in_blocks_that_do_not_show(engine, monkeypatch):
    """Each block begins all rows again, so a row is never without an episode that it has begun."""
    world, policy, starts_seen = MiniGridTask("minigrid/obstacles", engine=engine), expert("minigrid/obstacles"), []

    def actor(observations, starts):
        starts_seen.append(starts)
        return policy(observations)

    told = []
    at_once = world.score(policy, episodes=23, seed=1, environments=5)
    monkeypatch.setattr(ours, "BLOCK", 7)
    in_blocks = world.score(actor, episodes=23, seed=1, environments=5, progress=lambda *done: told.append(done))
    np.testing.assert_array_equal(in_blocks, at_once)
    assert sum(starts.all() for starts in starts_seen) == 3
    assert np.sum(starts_seen) == 23
    assert told == [(done, 23) for done in range(1, 24)]


def test_the_score_is_what_minigrid_pays_episode_by_episode(minigrid):
    """An independent loop over one environment, so that no episode is lost, counted twice, or cut."""
    world, actor = MiniGridTask("minigrid/lava", engine="minigrid"), expert("minigrid/lava")
    minigrid_world = reference("minigrid/lava")
    paid = []
    for episode in range(9):
        seen, _ = minigrid_world.reset(seed=episode_seed(5, episode))
        total, over = 0.0, False
        while not over:
            action = actor(seen["image"].reshape(1, -1), np.ones(1, dtype=bool))[0]
            seen, reward, terminated, truncated, _ = minigrid_world.step(action)
            total, over = total + reward, terminated or truncated
        paid.append(total)
    assert len(set(paid)) > 1
    np.testing.assert_array_equal(world.score(actor, episodes=9, seed=5, environments=4), paid)


def test_rows_keep_their_environment_and_say_where_episodes_start(engine):
    """Each row's starts, counted, are all the episodes, and the batch never changes its width."""
    widths, starts_seen = set(), 0

    def actor(observations, starts):
        nonlocal starts_seen
        widths.add(len(observations))
        starts_seen += starts.sum()
        return np.full(len(observations), 2)

    MiniGridTask("minigrid/obstacles", engine=engine).score(actor, episodes=23, seed=0, environments=5)
    assert (widths, starts_seen) == ({5}, 23)


def test_a_row_shows_one_episode_until_it_ends_and_stays_as_it_was_when_none_are_left(engine):
    """An idle actor runs all episodes to their limit: rows start together, and the last row left shows nothing new."""
    world, seen = MiniGridTask("minigrid/lava", engine=engine), []

    def idle(observations, starts):
        seen.append((observations, starts))
        return np.full(len(starts), 6)

    world.score(idle, episodes=3, seed=0, environments=2)
    views, starts = np.array([view for view, _ in seen]), np.array([start for _, start in seen])
    assert np.argwhere(starts).tolist() == [[0, 0], [0, 1], [100, 0]]
    assert len(seen) == 200
    assert (views[:100] == views[0]).all()
    assert (views[100:, 0] == views[100, 0]).all()
    assert (views[100:, 1] == views[99, 1]).all()


def test_seeds_differ_and_repeat(engine):
    world = MiniGridTask("minigrid/obstacles", engine=engine)
    actor = expert("minigrid/obstacles")
    first = world.score(actor, episodes=20, seed=0)
    np.testing.assert_array_equal(world.score(actor, episodes=20, seed=0), first)
    assert not np.array_equal(world.score(actor, episodes=20, seed=1), first)


def test_an_environment_does_not_depend_on_its_neighbours(minigrid):
    world, actor = task("minigrid/obstacles"), chosen_by_view(3)
    alone, among = world.play(actor, steps=60, seeds=[8]), world.play(actor, steps=60, seeds=[9, 8])
    own = among.environment == 1
    np.testing.assert_array_equal(among.observations[own], alone.observations)
    np.testing.assert_array_equal(among.actions[own], alone.actions)
    np.testing.assert_array_equal(among.episode[own] - among.episode[own][0], alone.episode)
    assert len(np.unique(among.episode[~own])) + alone.episode[-1] == among.episode[-1]


def test_steps_end_in_a_terminal_unless_they_were_cut(minigrid):
    """In Lava an idle actor runs out of time, which is no terminal; one that walks ahead burns or arrives, which is."""
    world = task("minigrid/lava")
    idle = world.play(lambda observations, starts: np.full(len(starts), 6), steps=250, seeds=[0])
    assert not idle.terminals.any()
    assert idle.episode[-1] == 2
    ahead = world.play(lambda observations, starts: np.full(len(starts), 2), steps=50, seeds=[0, 1, 2])
    terminal, last = np.flatnonzero(ahead.terminals), np.flatnonzero(np.diff(ahead.episode))
    assert len(terminal) > 0
    assert np.isin(terminal, last).all()


def test_progress_ends_with_everything_done(engine):
    told = []
    MiniGridTask("minigrid/lava", engine=engine).score(
        expert("minigrid/lava"), episodes=5, seed=0, progress=lambda done, total: told.append((done, total))
    )
    assert told == [(done, 5) for done in range(1, 6)]


def test_playing_leaves_the_global_generators_alone(engine):
    before = global_generators()
    MiniGridTask("minigrid/obstacles", engine=engine).score(expert("minigrid/obstacles"), episodes=3, seed=0)
    assert global_generators() == before


# What is refused


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (lambda observations, starts: np.full(len(starts), 5), "chose action 5, but minigrid/obstacles has 3 actions"),
        (lambda observations, starts: np.full(len(starts), -1), "chose action -1"),
        (lambda observations, starts: np.zeros(len(starts)), "float64"),
        (lambda observations, starts: 2, r"shape \(\)"),
    ],
)
def test_an_answer_that_is_no_action_is_refused(minigrid, answer, sentence):
    with pytest.raises(IleedError, match=sentence):
        task("minigrid/obstacles").score(answer, episodes=2, seed=0)


def test_an_unknown_task_is_refused_with_the_names_of_the_others():
    with pytest.raises(IleedError, match="no task 'minigrid/maze'; the tasks are minigrid/empty, minigrid/obstacles"):
        task("minigrid/maze")
    with pytest.raises(IleedError, match="the tasks are"):
        expert("chess")


@pytest.mark.parametrize("counts", [{"episodes": 0}, {"episodes": 1, "environments": 0}])
def test_nothing_to_play_is_refused(counts):
    with pytest.raises(IleedError, match="at least one"):
        task("minigrid/lava").score(chosen_by_view(7), seed=0, **counts)


def test_a_policy_that_cannot_act_is_refused():
    with pytest.raises(IleedError, match="cannot act"):
        as_actor("greedy")


def test_the_state_of_a_policy_is_carried_from_step_to_step_with_the_starts():
    """A recurrent policy that counts its steps, row by row, from each start of an episode."""

    class Counting:
        def predict(self, observation, state=None, episode_start=None, deterministic=True):
            count = np.zeros(len(observation)) if state is None else state[0]
            count = np.where(episode_start, 0, count) + 1
            return count, (count,)

    actor, seen = as_actor(Counting()), np.zeros((2, 3))
    starts = np.array([[True, True], [False, False], [True, False]])
    assert [actor(seen, start).tolist() for start in starts] == [[1, 1], [2, 2], [1, 3]]


def test_without_minigrid_tasks_and_experts_are_there_and_playing_names_the_extra():
    """In a process of its own, where the extra's libraries cannot be imported."""
    probe = """
import sys
sys.modules.update(dict.fromkeys(["gymnasium", "minigrid", "stable_baselines3"]))
import numpy as np
from ileed.envs import expert, task
world, actor = task("minigrid/obstacles"), expert("minigrid/obstacles")
assert (world.action_count, world.observation_size) == (3, 147)
assert actor(np.zeros((2, 147), np.uint8)).shape == (2,)
try:
    world.score(actor, episodes=1, seed=0)
except ValueError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-W", "error", "-c", probe], capture_output=True, text=True, check=True)
    assert "pip install 'ileed[minigrid]'" in run.stdout


# Experts


@pytest.mark.parametrize(
    ("name", "reward"),
    [("minigrid/empty", 0.96), ("minigrid/lava", 0.94), ("minigrid/obstacles", 0.92), ("minigrid/unlock", 0.93)],
)
def test_a_shipped_expert_is_good_at_its_task(engine, name, reward):
    """Over 100 fixed episodes, so it cannot fail by chance; the thresholds lie a little below the experts' means."""
    assert MiniGridTask(name, engine=engine).score(expert(name), episodes=100, seed=2).mean() > reward


@pytest.mark.parametrize("name", names())
def test_a_shipped_expert_is_small_and_says_where_it_comes_from(name):
    origin = expert(name).origin
    assert expert_path(name).stat().st_size < 100_000
    assert (origin["task"], origin["environment"]) == (name, ENVIRONMENTS[name].id)
    assert json.loads(origin["settings"])["timesteps"] > 0
    assert json.loads(origin["versions"])["minigrid"]


def test_an_expert_takes_its_most_likely_action():
    observations = np.random.default_rng(0).integers(0, 11, size=(50, 147), dtype=np.uint8)
    actor = expert("minigrid/obstacles")
    probabilities = actor.probabilities(observations)
    np.testing.assert_allclose(probabilities.sum(axis=-1), 1, rtol=1e-12)
    np.testing.assert_array_equal(actor(observations), probabilities.argmax(axis=-1))


def test_writing_an_expert_then_reading_it_changes_nothing(tmp_path):
    written = expert("minigrid/lava")
    save_expert(written, tmp_path / "copy.safetensors")
    read = load_expert(tmp_path / "copy.safetensors")
    assert read.origin == written.origin
    for (weight, bias), (other_weight, other_bias) in zip(read.layers, written.layers, strict=True):
        np.testing.assert_array_equal(weight, other_weight)
        np.testing.assert_array_equal(bias, other_bias)
    assert [path.name for path in tmp_path.iterdir()] == ["copy.safetensors"]


def test_a_file_that_holds_no_expert_is_refused(tmp_path):
    (tmp_path / "broken.safetensors").write_bytes(b"not weights")
    for path in (tmp_path / "broken.safetensors", tmp_path / "absent.safetensors"):
        with pytest.raises(RunError, match="does not hold an expert"):
            load_expert(path)
    with pytest.raises(RunError, match="cannot be written"):
        save_expert(expert("minigrid/lava"), tmp_path / "no such directory" / "expert.safetensors")


def test_retraining_repeats_itself_and_leaves_the_global_generators_alone(minigrid, tmp_path):
    pytest.importorskip("stable_baselines3", reason="training an expert needs the extra 'minigrid'")
    settings = Pretraining(
        timesteps=64, environments=4, steps=16, batch=32, epochs=1, hidden=(8, 8), looks=2, episodes=2
    )
    before = global_generators()
    first = pretrain("minigrid/lava", path=tmp_path / "first.safetensors", seed=3, settings=settings)
    assert global_generators() == before
    pretrain("minigrid/lava", path=tmp_path / "again.safetensors", seed=3, settings=settings)
    assert (tmp_path / "first.safetensors").read_bytes() == (tmp_path / "again.safetensors").read_bytes()
    assert [weight.shape for weight, _ in first.layers] == [(8, 147), (8, 8), (7, 8)]


def test_training_is_refused_before_it_starts_where_it_could_not_be_kept(tmp_path):
    with pytest.raises(RunError, match="there is no directory"):
        pretrain("minigrid/lava", path=tmp_path / "absent" / "expert.safetensors")
    with pytest.raises(IleedError, match="at least one"):
        pretrain("minigrid/lava", path=tmp_path / "expert.safetensors", timesteps=0)


def test_an_expert_computes_what_the_trained_network_does(minigrid):
    """Stable-baselines3's own forward pass is the oracle; float32 sums in another order differ by some 1e-6."""
    baselines = pytest.importorskip("stable_baselines3", reason="training an expert needs the extra 'minigrid'")
    from ileed_lab.minigrid.pretraining import _flat_environment, _policy_network

    with torch.random.fork_rng(devices=[]):
        model = baselines.PPO("MlpPolicy", _flat_environment("minigrid/unlock"), device="cpu", n_steps=8, batch_size=8)
    observations = np.random.default_rng(0).integers(0, 11, size=(20, 147), dtype=np.uint8)
    theirs = model.policy.get_distribution(torch.as_tensor(observations)).distribution.probs.detach().numpy()
    np.testing.assert_allclose(_policy_network(model).probabilities(observations), theirs, atol=1e-5)


@pytest.mark.parametrize("name", names())
def test_a_shipped_expert_passes_every_check_of_its_file(name):
    read, shipped = load_expert(expert_path(name)), expert(name)
    assert (read.origin, repr(read)) == (shipped.origin, repr(shipped))


def test_every_known_task_ships_an_expert():
    assert sorted(path.name for path in expert_path("minigrid/empty").parent.iterdir()) == sorted(
        expert_path(name).name for name in names()
    )
