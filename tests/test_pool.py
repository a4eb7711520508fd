"""EnvPool against minigrid: the same rules to the step, the same chance within its error, and nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from statistics import NormalDist

import numpy as np
import pytest

from ileed.envs import expert, names, simulation
from ileed.envs.abstract_task import SeparateEnvironments, episode_seed
from ileed.envs.minigrid import ENVIRONMENTS, MiniGridTask, Pool, make_environment
from ileed.errors import IleedError

gymnasium = pytest.importorskip("gymnasium", reason="playing needs the extra 'minigrid'")
pytest.importorskip("minigrid", reason="EnvPool is compared with minigrid, from the extra 'minigrid'")
pytest.importorskip("envpool.minigrid", reason="fast scoring needs the extra 'fast'")


def in_the_state_of(state, name):
    """A minigrid environment in the state that EnvPool says one of its own is in."""
    from minigrid.core.grid import Grid

    world = gymnasium.make(ENVIRONMENTS[name].id, disable_env_checker=True).unwrapped
    world.reset(seed=0)
    world.grid, _ = Grid.decode(np.array(state.grid, dtype=np.uint8).reshape(state.width, state.height, 3))
    world.agent_pos, world.agent_dir = tuple(state.agent_pos), state.agent_dir
    world.door = next((thing for thing in world.grid.grid if thing and thing.type == "door"), None)
    world.obstacles = [world.grid.get(*place) for place in places_of_obstacles(state)]
    for obstacle, place in zip(world.obstacles, places_of_obstacles(state), strict=True):
        obstacle.cur_pos = place
    return world


def places_of_obstacles(state):
    return [tuple(place) for place in np.array(state.obstacle_positions, dtype=int).reshape(-1, 2).tolist()]


def moving_obstacles_as_in(state, world):
    """What minigrid calls to move an obstacle, moving it to where it went in EnvPool instead of drawing a place."""
    places = places_of_obstacles(state)
    destination = {id(obstacle): place for obstacle, place in zip(world.obstacles, places, strict=True)}

    def place(obstacle, **_):
        if destination[id(obstacle)] == obstacle.cur_pos:
            raise RecursionError("there is no free place around it")
        obstacle.cur_pos = destination[id(obstacle)]
        world.grid.set(*obstacle.cur_pos, obstacle)

    return place


@pytest.mark.parametrize("name", names())
def test_the_same_actions_from_the_same_state_do_the_same(name):
    """From EnvPool's beginnings, acted half by the expert and half at random, so that doors open, goals are reached,
    lava is met and time runs out. Where obstacles go is chance, so minigrid's are sent where EnvPool's went. EnvPool
    works out rewards in numbers of 32 bits, hence their tolerance.
    """
    count, chance, policy, ends = 60, np.random.default_rng(0), expert(name), Counter()
    with closing(Pool(ENVIRONMENTS[name].id, range(count), rows=count)) as pool:
        rows = np.arange(count)
        seen = pool.begin(rows, rows)
        worlds = [in_the_state_of(state, name) for state in pool._pool.debug_states()]
        for row, world in enumerate(worlds):
            np.testing.assert_array_equal(seen[row], world.gen_obs()["image"].ravel())
        while len(rows):
            # Some only ever act at random, and so meet the limit of time.
            guided = (chance.random(len(rows)) < 0.5) & (rows % 4 > 0)
            actions = np.where(guided, policy(seen), chance.integers(policy.action_count, size=len(rows)))
            seen, rewards, terminated, truncated = pool.step(rows, actions)
            over = terminated | truncated
            states = pool._pool.debug_states(rows)
            for place, row in enumerate(rows):
                world = worlds[row]
                if world.obstacles:
                    world.place_obj = moving_obstacles_as_in(states[place], world)
                view, reward, terminated, truncated, _ = world.step(actions[place].item())
                np.testing.assert_array_equal(seen[place], view["image"].ravel())
                assert over[place] == (terminated or truncated)
                assert abs(rewards[place] - reward) < 1e-7
                if over[place]:
                    ends["time" if truncated else "success" if reward > 0 else "failure"] += 1
            rows, seen = rows[~over], seen[~over]
    assert set(ends) == {"success", "time" if name in ("minigrid/empty", "minigrid/unlock") else "failure"}


def test_an_episode_runs_out_of_time_when_minigrid_says():
    """An actor that only turns never ends an episode by itself, in any of the tasks."""
    for name in names():
        limit = gymnasium.make(ENVIRONMENTS[name].id).unwrapped.max_steps
        with closing(Pool(ENVIRONMENTS[name].id, [1], rows=1)) as pool:
            row = np.zeros(1, dtype=np.int64)
            pool.begin(row, row)
            steps = [pool.step(row, np.zeros(1, dtype=np.int64)) for _ in range(limit)]
        assert [bool(terminated[0]) for _, _, terminated, _ in steps] == [False] * limit
        assert [bool(truncated[0]) for _, _, _, truncated in steps] == [False] * (limit - 1) + [True]


# Chance


def played(worlds, actor, count):
    """Reward and length of `count` episodes, each in a row of its own."""
    rewards, lengths, rows = np.zeros(count), np.zeros(count), np.arange(count)
    seen, starts = worlds.begin(rows, rows), np.ones(count, dtype=bool)
    while len(rows):
        seen[rows], earned, terminated, truncated = worlds.step(rows, actor(seen, starts)[rows])
        rewards[rows] += earned
        lengths[rows] += 1
        rows, starts = rows[~(terminated | truncated)], np.zeros(count, dtype=bool)
    return rewards, lengths


def python_environments(name, rows):
    """One minigrid environment for each row; episode k is reset with the seed k, as the pools here are."""
    worlds = [make_environment(name) for _ in range(rows)]
    return SeparateEnvironments(lambda row, episode: (worlds[row], worlds[row].reset(seed=episode)[0]))


def deviations(one, other):
    """How many standard errors lie between two means."""
    error = np.sqrt(one.var() / len(one) + other.var() / len(other))
    return abs(one.mean() - other.mean()) / error


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("skill", [1.0, 0.5])
def test_both_engines_pay_the_same_and_last_as_long(name, skill):
    """A thousand episodes by each, of the expert and of one that slips half the time: the means of reward, and those of
    length, differ by less than chance makes them once in 10,000 times. With these 16 comparisons, engines that are
    equal would fail with one in some 600 seeds.
    """
    count, task = 1_000, MiniGridTask(name)

    def actor():
        return simulation.demonstrator_actor(expert(name), task, skill=skill, seed=3)

    with closing(Pool(ENVIRONMENTS[name].id, range(count), rows=count)) as pool:
        fast = played(pool, actor(), count)
    slow = played(python_environments(name, rows=count), actor(), count)
    bound = NormalDist().inv_cdf(1 - 1e-4 / 2)
    assert deviations(fast[0], slow[0]) < bound
    assert deviations(fast[1], slow[1]) < bound


def assert_equally_frequent(one, other):
    """Two samples of one distribution over several outcomes: chi-square at an error rate of 1 in 10,000.

    The bound is Wilson and Hilferty's cube of a normal quantile.
    """
    outcomes = sorted(one | other)
    assert len(outcomes) > 1
    counts = np.array([[sample[outcome] for outcome in outcomes] for sample in (one, other)], dtype=float)
    expected = counts.sum(1, keepdims=True) * counts.sum(0) / counts.sum()
    assert expected.min() > 5  # where the approximation holds
    freedom = len(outcomes) - 1
    spread = 2 / (9 * freedom)
    bound = freedom * (1 - spread + NormalDist().inv_cdf(1 - 1e-4) * spread**0.5) ** 3
    assert ((counts - expected) ** 2 / expected).sum() < bound


@pytest.mark.parametrize("name", ["minigrid/empty", "minigrid/lava"])
def test_episodes_begin_alike_and_equally_often(name):
    """Few beginnings are possible here, and all of them are told apart by what is seen first."""
    count = 2_000
    rows = np.arange(count)
    with closing(Pool(ENVIRONMENTS[name].id, range(count), rows=count)) as pool:
        fast = Counter(view.tobytes() for view in pool.begin(rows, rows))
    worlds = python_environments(name, rows=1)
    slow = Counter(worlds.begin(np.zeros(1, dtype=int), rows[[row]]).tobytes() for row in rows)
    assert_equally_frequent(fast, slow)


def test_obstacles_move_alike():
    """The step that each of three obstacles takes first, in two thousand episodes by each engine; few cannot move."""
    count, name = 2_000, "minigrid/obstacles"
    rows, turn = np.arange(count), np.zeros(count, dtype=int)
    with closing(Pool(ENVIRONMENTS[name].id, range(count), rows=count)) as pool:
        pool.begin(rows, rows)
        before = np.array([places_of_obstacles(state) for state in pool._pool.debug_states()])
        pool.step(rows, turn)
        after = np.array([places_of_obstacles(state) for state in pool._pool.debug_states()])
    fast = Counter(map(tuple, (after - before).reshape(-1, 2).tolist()))
    slow: Counter[tuple[int, ...]] = Counter()
    world = gymnasium.make(ENVIRONMENTS[name].id, disable_env_checker=True).unwrapped
    for seed in range(count):
        world.reset(seed=seed)
        places = np.array([obstacle.cur_pos for obstacle in world.obstacles])
        world.step(0)
        moved = np.array([obstacle.cur_pos for obstacle in world.obstacles]) - places
        slow.update(map(tuple, moved.tolist()))
    assert max(fast.pop((0, 0), 0), slow.pop((0, 0), 0)) < 20
    assert_equally_frequent(fast, slow)


# The engine as a choice


def test_the_score_is_what_one_environment_after_the_other_pays():
    """An independent loop over pools of one, so that no episode is lost, counted twice, cut, or moved by another."""
    import envpool

    world, policy = MiniGridTask("minigrid/lava", engine="envpool"), expert("minigrid/lava")
    paid = []
    for episode in range(9):
        alone = envpool.make_gymnasium(
            ENVIRONMENTS["minigrid/lava"].id, num_envs=1, seed=episode_seed(5, episode), num_threads=1
        )
        seen, _ = alone.reset()
        total, over = 0.0, False
        while not over:
            seen, reward, terminated, truncated, _ = alone.step(policy(seen["image"].reshape(1, -1)))
            total, over = total + reward[0], terminated[0] or truncated[0]
        paid.append(total)
    assert len(set(paid)) > 1
    np.testing.assert_array_equal(world.score(policy, episodes=9, seed=5, environments=4), paid)


def test_the_engine_named_is_the_one_used():
    """Where EnvPool is installed 'auto' is EnvPool, whose episodes of the same seed are others than minigrid's."""
    policy = expert("minigrid/obstacles")
    rewards = {
        engine: MiniGridTask("minigrid/obstacles", engine=engine).score(policy, episodes=30, seed=0)
        for engine in ("auto", "envpool", "minigrid")
    }
    assert MiniGridTask("minigrid/obstacles").scoring_engine == "envpool"
    assert MiniGridTask("minigrid/obstacles", engine="minigrid").scoring_engine == "minigrid"
    np.testing.assert_array_equal(rewards["auto"], rewards["envpool"])
    assert not np.array_equal(rewards["auto"], rewards["minigrid"])


def test_playing_is_always_minigrids():
    policy = expert("minigrid/obstacles")
    fast, slow = (
        MiniGridTask("minigrid/obstacles", engine=engine).play(policy, steps=40, seeds=[1, 2])
        for engine in ("envpool", "minigrid")
    )
    np.testing.assert_array_equal(fast.observations, slow.observations)


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="threads are counted where Linux lists them")
def test_no_thread_outlives_a_score_even_one_that_failed():
    def stumble(observations, starts):
        raise RuntimeError("the actor stumbled")

    world, before = MiniGridTask("minigrid/lava", engine="envpool"), len(os.listdir("/proc/self/task"))
    world.score(expert("minigrid/lava"), episodes=50, seed=0)
    with pytest.raises(RuntimeError, match="stumbled") as kept:
        world.score(stumble, episodes=50, seed=0)
    patience = time.monotonic() + 5  # the system lists a thread for a moment after it was joined
    while len(os.listdir("/proc/self/task")) > before and time.monotonic() < patience:
        time.sleep(0.01)
    assert len(os.listdir("/proc/self/task")) <= before, kept


def test_an_engine_that_does_not_exist_is_refused():
    with pytest.raises(IleedError, match="no engine 'rust'; choose 'auto', 'envpool' or 'minigrid'"):
        MiniGridTask("minigrid/lava", engine="rust")


def test_without_envpool_it_is_refused_by_name_and_not_missed_otherwise():
    """In a process of its own, where EnvPool cannot be imported."""
    probe = """
import sys
sys.modules["envpool"] = None
from ileed.envs import expert
from ileed.envs.minigrid import MiniGridTask
world = MiniGridTask("minigrid/lava")
print(world.scoring_engine, len(world.score(expert("minigrid/lava"), episodes=2, seed=0)))
try:
    MiniGridTask("minigrid/lava", engine="envpool")
except ValueError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-W", "error", "-c", probe], capture_output=True, text=True, check=True)
    first, second = run.stdout.splitlines()
    assert first == "minigrid 2"
    assert "pip install 'ileed[fast]'" in second
