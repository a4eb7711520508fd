"""Environments of gymnasium as tasks: what is shown and done there, and the laws that `AbstractTask` states."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import numpy as np
import pytest
import torch

import ileed
from ileed.cli import run
from ileed.envs.evaluation import evaluate
from ileed.envs.gymnasium import GymnasiumTask
from ileed.errors import IleedError

gymnasium = pytest.importorskip("gymnasium", reason="playing needs gymnasium")
spaces = gymnasium.spaces

from cartpole import cartpole, controller  # noqa: E402 (needs gymnasium)


class Recorded(gymnasium.Env):
    """Shows what it likes and keeps what was done; an episode lasts as many steps as its seed says, and pays 1 each."""

    made: list[Recorded] = []  # noqa: RUF012 (emptied by `fresh`)

    def __init__(self, observed, acted, *, lasts=lambda seed: 1 + seed % 7):
        self.observation_space, self.action_space, self.lasts = observed, acted, lasts
        self.actions, self.closed, self.seeds = [], False, []
        Recorded.made.append(self)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.left = self.lasts(seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        self.actions.append(action)
        self.left -= 1
        return self.observation_space.sample(), 1.0, self.left == 0, False, {}

    def close(self):
        self.closed = True


@pytest.fixture(autouse=True)
def fresh():
    Recorded.made.clear()
    yield
    assert all(each.closed for each in Recorded.made), "every environment is closed, also after an error"


def makes(observed=None, acted=None, **options):
    """A function that makes recorded environments with these spaces."""
    observed, acted = observed or spaces.Box(-1, 1, (3,)), acted or spaces.Discrete(2)
    return lambda: Recorded(observed, acted, **options)


def zeros(observations, starts):
    return np.zeros(len(observations), dtype=np.int64)


@pytest.fixture(scope="module")
def fitted():
    """A policy fitted to six people's CartPole."""
    method = ileed.Ileed(
        policy=ileed.CategoricalMLP(hidden=(16, 16)), expertise=ileed.Constant(), restarts=3, steps=400
    )
    return method.fit(cartpole(seed=0, steps=400), seed=0, device="cpu")


# A policy in an environment


def test_a_policy_learned_from_slips_balances_the_pole_better_than_most_of_its_teachers(fitted):
    """The controller earns 500, a demonstrator of skill 0.4 some 90: the mean of 30 episodes must lie far above."""
    scores = evaluate(fitted.policy, "CartPole-v1", episodes=30, seed=0)
    assert len(scores.rewards) == 30
    assert scores.mean > 250
    low, high = scores.interval
    assert low <= scores.mean <= high
    assert evaluate(controller, "CartPole-v1", episodes=30, seed=0).mean == 500


def test_a_task_of_ours_is_known_by_its_name():
    pytest.importorskip("minigrid", reason="playing needs the extra 'minigrid'")
    expert = ileed.envs.expert("minigrid/lava")
    by_name, by_task = (
        evaluate(expert, task, episodes=5, seed=1) for task in ("minigrid/lava", ileed.envs.task("minigrid/lava"))
    )
    np.testing.assert_array_equal(by_name.rewards, by_task.rewards)


def test_the_score_is_what_gymnasium_pays_episode_by_episode(fitted):
    """An independent loop over one environment that is stepped alone, with the same seeds."""
    from ileed._torch import stream

    environment = gymnasium.make("CartPole-v1")
    paid = []
    for episode in range(12):
        seen, _ = environment.reset(seed=stream(3, "episode", episode).initial_seed() & 0x7FFF_FFFF)
        total, over = 0.0, False
        while not over:
            seen, reward, terminated, truncated, _ = environment.step(int(seen[3] > 0))
            total, over = total + reward, terminated or truncated
        paid.append(total)
    assert len(set(paid)) > 3
    scores = evaluate(lambda seen, starts: (seen[:, 3] > 0).astype(int), "CartPole-v1", episodes=12, seed=3)
    np.testing.assert_array_equal(scores.rewards, paid)


def test_an_episode_depends_on_its_number_alone():
    """Neither the environments stepped at once nor the episodes asked for change what episode k earns."""
    task = GymnasiumTask(makes())
    alone = task.score(zeros, episodes=9, seed=1, environments=1)
    assert len(set(alone)) > 2
    np.testing.assert_array_equal(task.score(zeros, episodes=9, seed=1, environments=4), alone)
    np.testing.assert_array_equal(task.score(zeros, episodes=30, seed=1, environments=64)[:9], alone)


def test_every_episode_that_was_begun_is_counted_however_long_it_is():
    """One long episode among short ones: none of the short ones is counted in its place."""
    task = GymnasiumTask(makes(lasts=lambda seed: 200 if seed % 5 == 0 else 2))
    told = []
    rewards = task.score(zeros, episodes=40, seed=0, environments=8, progress=lambda *done: told.append(done))
    begun = sorted(seed for each in Recorded.made for seed in each.seeds)
    assert len(begun) == 40
    assert sorted(rewards) == sorted(200.0 if seed % 5 == 0 else 2.0 for seed in begun)
    assert told == [(done, 40) for done in range(1, 41)]


def test_the_environments_are_stepped_together_with_one_call_of_the_policy():
    calls = []

    def actor(observations, starts):
        calls.append(len(observations))
        return zeros(observations, starts)

    evaluate(actor, makes(lasts=lambda seed: 5), episodes=50, seed=0)
    assert calls == [50] * 5


def test_playing_leaves_every_global_generator_alone():
    def state():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002

    before = state()
    evaluate(controller, "CartPole-v1", episodes=3, seed=0)
    assert state() == before


def test_played_steps_are_kept_and_end_where_the_task_ends_them():
    played = GymnasiumTask("CartPole-v1").play(
        lambda seen, starts: np.ones(len(seen), dtype=int), steps=40, seeds=[3, 4]
    )
    assert played.observations.shape == (80, 4)
    assert played.terminals.sum() >= 4
    alone = GymnasiumTask("CartPole-v1").play(lambda seen, starts: np.ones(len(seen), dtype=int), steps=40, seeds=[4])
    np.testing.assert_array_equal(played.observations[40:], alone.observations)


def test_demonstrators_of_known_skill_can_be_simulated_in_an_environment():
    """With 2 actions a slip is right half the time, so skill s agrees with the controller in (1 + s) / 2 of the steps.

    The share of 600 steps lies within four standard errors, 0.08, of that.
    """
    skill = {"ann": 0.9, "bob": 0.5, "cy": 0.1}
    data = ileed.demonstrate(GymnasiumTask("CartPole-v1"), controller, skill=skill, steps=600, seed=0)
    agrees = data.actions == controller(data.observations)
    for person, share in enumerate(skill.values()):
        assert agrees[data.demonstrator == person].mean() == pytest.approx((1 + share) / 2, abs=0.08)


class Counting:
    """Has stable-baselines3's `predict` with a state, the number of steps of each row's episode, and acts on it."""

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        assert deterministic
        state = np.zeros(len(observation), dtype=int) if state is None else state
        state = np.where(episode_start, 0, state)
        return state % 2, state + 1


def test_a_recurrent_policy_begins_every_episode_with_an_empty_state():
    evaluate(Counting(), makes(), episodes=20, seed=0)
    for each in Recorded.made:
        begun = 0
        for seed in each.seeds:
            length = each.lasts(seed)
            assert each.actions[begun : begun + length] == [step % 2 for step in range(length)]
            begun += length


def test_a_stable_baselines_policy_plays_where_its_spaces_fit_and_is_refused_elsewhere():
    baselines = pytest.importorskip("stable_baselines3", reason="needs stable-baselines3")
    model = baselines.PPO("MlpPolicy", "CartPole-v1", seed=0, device="cpu", n_steps=8, batch_size=8)
    scores = evaluate(model, "CartPole-v1", episodes=3, seed=0)
    assert scores.mean >= 8
    with pytest.raises(IleedError, match="observations of shape"):
        evaluate(model, "Pendulum-v1", episodes=3, seed=0)


def test_the_same_seed_gives_the_same_rewards_also_from_a_policy_that_samples():
    data = ileed.shipped("square")
    method = ileed.Ileed(
        policy=ileed.MixtureLSTM(hidden=(4,), length=3), expertise=ileed.Constant(), restarts=1, steps=2
    )
    policy = method.fit(data, seed=0, device="cpu").policy
    bounded = spaces.Box(-1, 1, data.actions.shape[1:])

    class Paid(Recorded):
        def step(self, action):
            seen, _, *rest = super().step(action)
            return seen, float(action.sum()), *rest

    def make():
        return Paid(spaces.Box(-1, 1, data.observations.shape[1:]), bounded)

    first, again = (evaluate(policy, make, episodes=6, seed=2).rewards for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert len(set(first)) == 6


# What is shown and what is done


def test_observations_of_a_dict_are_flattened_by_name_in_sorted_order():
    observed = spaces.Dict(
        {
            "zebra": spaces.Box(0, 1, (2, 2)),
            "ape": spaces.Discrete(5, start=10),
            "bear": spaces.Tuple((spaces.MultiBinary(2), spaces.Dict({"d": spaces.MultiDiscrete([3, 4])}))),
        }
    )

    class FixedBatch(Recorded):
        def reset(self, **options):
            super().reset(**options)
            return self.seen(), {}

        def step(self, action):
            return self.seen(), *super().step(action)[1:]

        def seen(self):
            return {
                "zebra": np.array([[0.5, 0.25], [0.125, 1]], np.float32),
                "bear": (np.array([1, 0], np.int8), {"d": np.array([2, 3])}),
                "ape": np.int64(12),
            }

    shown = []

    def actor(observations, starts):
        shown.append(observations)
        return zeros(observations, starts)

    evaluate(actor, lambda: FixedBatch(observed, spaces.Discrete(2)), episodes=2, seed=0)
    np.testing.assert_array_equal(shown[0], [[12, 1, 0, 2, 3, 0.5, 0.25, 0.125, 1]] * 2)


@pytest.mark.parametrize(
    ("observed", "size"),
    [(spaces.Box(0, 255, (3, 4), np.uint8), 12), (spaces.Discrete(5), 1), (spaces.MultiDiscrete([2, 3]), 2)],
    ids=str,
)
def test_any_space_of_numbers_is_a_row_of_them(observed, size):
    shown = []

    def actor(observations, starts):
        shown.append(observations)
        return zeros(observations, starts)

    evaluate(actor, makes(observed), episodes=3, seed=0)
    assert shown[0].shape == (3, size)
    assert shown[0].dtype == observed.dtype


def test_a_policy_is_shown_observations_of_the_shape_that_it_learned_from():
    for shape in [(3, 4), (12,)]:
        data = ileed.Demonstrations(
            observations=np.random.default_rng(0).random((20, *shape)).astype(np.float32),
            actions=np.arange(20) % 2,
            demonstrator=np.arange(20) // 10,
            episode=np.arange(20) // 5,
        )
        policy = ileed.Ileed(restarts=1, steps=1).fit(data, seed=0, device="cpu").policy
        assert len(evaluate(policy, makes(spaces.Box(0, 1, (3, 4))), episodes=5, seed=0).rewards) == 5


def test_discrete_actions_are_numbered_from_zero_whatever_the_space_starts_from():
    evaluate(
        lambda seen, starts: np.full(len(seen), 2),
        makes(acted=spaces.Discrete(3, start=5), lasts=lambda seed: 2),
        episodes=1,
        seed=0,
    )
    assert [each.actions for each in Recorded.made] == [[], [7, 7]]


def test_continuous_actions_are_clipped_to_the_bounds_and_shaped_as_the_space_says():
    box = spaces.Box(np.array([[-1, -2], [-np.inf, 0]], np.float32), np.array([[1, 2], [np.inf, 0.5]], np.float32))
    evaluate(
        lambda seen, starts: np.full((len(seen), 4), [3.0, -3.0, 70.0, 0.25]),
        makes(acted=box, lasts=lambda seed: 1),
        episodes=1,
        seed=0,
    )
    [action] = Recorded.made[1].actions
    np.testing.assert_array_equal(action, np.array([[1, -2], [70, 0.25]], np.float32))
    assert action.dtype == np.float32
    assert box.contains(action)


def test_max_steps_ends_every_episode_there_with_what_it_earned():
    assert set(evaluate(zeros, makes(lasts=lambda seed: 90), episodes=9, seed=0, max_steps=4).rewards) == {4.0}
    assert set(evaluate(controller, "CartPole-v1", episodes=3, seed=0, max_steps=20).rewards) == {20.0}


def test_an_older_version_of_an_environment_is_played_without_a_warning():
    """CartPole-v0 ends after 200 steps; gymnasium warns that it is out of date, which is an error in these tests."""
    assert evaluate(controller, "CartPole-v0", episodes=2, seed=0).mean == 200


# What is refused, in one sentence


def refuses(sentence, policy, task, **options):
    with pytest.raises(IleedError, match=sentence) as refused:
        evaluate(policy, task, episodes=2, seed=0, **options)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("CartPol-v1", r"there is no task or gymnasium environment 'CartPol-v1' \(did you mean 'CartPole-v"),
        ("cartpole-v1", "did you mean 'CartPole-v1'"),
        ("CartPole-v77", "did you mean 'CartPole-v"),
        ("minigrid/obstacle", "did you mean 'minigrid/obstacles'"),
        ("xyzzy", "there is no task or gymnasium environment 'xyzzy';"),
        ("no_such_package:Thing-v0", "cannot make 'no_such_package:Thing-v0': .*no_such_package"),
        ("minigrid:MiniGrid-Empty-5x5-v0", r"shows observations\['mission'\] of MissionSpace"),
    ],
)
def test_an_environment_that_cannot_be_made_is_refused_with_what_was_perhaps_meant(name, sentence):
    refuses(sentence, zeros, name)


def test_an_environment_whose_package_is_missing_is_refused_with_its_name():
    gymnasium.register("Lacking-v0", entry_point=lacking)
    try:
        refuses("gymnasium cannot make 'Lacking-v0': Box2D is not installed", zeros, "Lacking-v0")
    finally:
        del gymnasium.registry["Lacking-v0"]


def lacking():
    raise gymnasium.error.DependencyNotInstalled("Box2D is not installed, you can install it by run `pip`. More.")


def test_without_gymnasium_the_sentence_says_how_to_get_it():
    script = (
        "import sys; sys.modules['gymnasium'] = None; import ileed\n"
        "try: ileed.evaluate(print, 'minigrid/obstacle', episodes=1, seed=0)\n"
        "except ileed.IleedError as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "did you mean 'minigrid/obstacles'?" in said
    assert "pip install 'ileed[" in said


def test_a_policy_made_for_another_environment_is_refused_before_playing(fitted):
    refuses(
        r"observations of shape \(4,\), and Acrobot-v1 shows observations of shape \(6,\)", fitted.policy, "Acrobot-v1"
    )
    four = spaces.Box(-1, 1, (4,))
    refuses("2 discrete actions, and <lambda> takes 1 continuous", fitted.policy, makes(four, spaces.Box(-1, 1, (1,))))
    refuses(
        "one of 2 discrete actions, and <lambda> takes one of 1 discrete",
        fitted.policy,
        makes(four, spaces.Discrete(1)),
    )
    assert not any(each.seeds for each in Recorded.made)


def test_a_continuous_policy_is_refused_where_actions_are_discrete_or_of_another_size():
    data = ileed.shipped("square")
    policy = ileed.Ileed(restarts=1, steps=1).fit(data, seed=0, device="cpu").policy
    seen = spaces.Box(-1, 1, data.observations.shape[1:])
    refuses("7 continuous numbers, and <lambda> takes one of 2 discrete", policy, makes(seen))
    refuses("7 continuous numbers, and <lambda> takes 3", policy, makes(seen, spaces.Box(-1, 1, (3,))))


def test_environments_that_a_policy_cannot_play_are_refused():
    refuses("takes actions of MultiDiscrete", zeros, makes(acted=spaces.MultiDiscrete([2, 2])))
    refuses(r"shows observations\['word'\] of Text", zeros, makes(spaces.Dict({"word": spaces.Text(4)})))
    refuses("returned int, and not a gymnasium.Env", zeros, lambda: 3)
    refuses("not a task: pass", zeros, 3)
    refuses("is not over after 10,000 steps.*pass max_steps", zeros, makes(lasts=lambda seed: 10**9))
    refuses("max_steps=5 is for environments of gymnasium", zeros, "minigrid/empty", max_steps=5)
    refuses("max_steps is 0", zeros, "CartPole-v1", max_steps=0)


def test_an_environment_in_place_of_its_maker_is_refused():
    environment = gymnasium.make("CartPole-v1")
    refuses("pass its id, or a function that makes one", controller, environment)
    refuses("returns the same environment again", controller, lambda: environment)


def test_an_environment_that_breaks_its_own_space_is_refused():
    class Broken(Recorded):
        def reset(self, **options):
            super().reset(**options)
            return np.zeros(5, np.float32), {}

    refuses(
        r"shows observations of shape \(5,\), and its observation_space says \(3,\)",
        zeros,
        lambda: Broken(spaces.Box(-1, 1, (3,)), spaces.Discrete(2)),
    )


@pytest.mark.parametrize(
    "wrong", [{"episodes": 2.5}, {"episodes": "3"}, {"episodes": 0}, {"seed": None}, {"seed": "0"}]
)
def test_counts_and_seeds_that_are_no_whole_numbers_are_refused(wrong):
    with pytest.raises(IleedError, match=next(iter(wrong))):
        evaluate(controller, "CartPole-v1", **{"episodes": 2, "seed": 0} | wrong)


# The command


@pytest.fixture(scope="module")
def saved(fitted, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "cartpole"
    fitted.save(path)
    return path


def test_the_command_evaluates_a_run_in_a_gymnasium_environment(saved, fitted, capsys):
    assert run(["evaluate", str(saved), "--env", "CartPole-v1", "--episodes", "5", "--seed", "3", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    expected = evaluate(fitted.policy, "CartPole-v1", episodes=5, seed=3)
    assert said == {"mean": expected.mean, "interval": list(expected.interval), "episodes": 5}
    assert run(["evaluate", str(saved), "--env", "CartPole-v1", "--episodes", "2", "--max-steps", "9"]) == 0
    assert "mean reward 9.00" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "neither of --task and --env"),
        (["--task", "minigrid/empty", "--env", "CartPole-v1"], "both of --task and --env"),
        (["--task", "minigrid/empty", "--max-steps", "3"], "--max-steps applies to --env"),
        (["--env", "CartPol-v1"], "did you mean 'CartPole-v"),
        (["--env", "Acrobot-v1"], "observations of shape (4,)"),
    ],
)
def test_the_command_refuses_in_one_sentence_before_it_shows_a_bar(saved, capsys, arguments, sentence):
    assert run(["evaluate", str(saved), *arguments]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
