"""GAIL: the critic against arithmetic, rollouts against hand-made environments, and a fit that learns."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from ileed import envs
from ileed.data import Demonstrations
from ileed.envs import simulation
from ileed.envs.evaluation import evaluate
from ileed.envs.minigrid import ENVIRONMENTS, MiniGridTask
from ileed.errors import IleedError
from ileed_lab.baselines import Gail, GailPolicy
from ileed_lab.baselines.critic import ABSORBING, OBSERVATION_SCALE, Behaviour, Critic, scores, slopes
from ileed_lab.baselines.gail import _CriticRewards, _demonstrated_behaviour
from ileed_lab.baselines.rollouts import PooledEnvironments, PythonEnvironments, Rollouts, as_vec_env
from ileed_lab.expert_files import save_expert
from ileed_lab.minigrid.sequence import multi_skill_task

EMPTY = MiniGridTask("minigrid/empty")
TINY = Gail(task=EMPTY, iterations=2, batch_size=60, environments=6, critic_epochs=3)


@pytest.fixture(scope="module")
def empty():
    for module in ("gymnasium", "minigrid", "stable_baselines3", "sb3_contrib"):
        pytest.importorskip(module, reason="GAIL plays with the extra 'minigrid'")
    return envs.task("minigrid/empty")


@pytest.fixture(scope="module")
def demonstrations(empty):
    return simulation.demonstrate(empty, envs.expert(empty.name), skill=[0.99, 0.5], steps=120, seed=0)


def hand_made(ended, lengths, **columns):
    """Views of zeros, in episodes of these lengths, of which some were ended by the task."""
    steps, last = sum(lengths), np.cumsum(lengths) - 1
    ends = np.zeros(steps, dtype=bool)
    ends[last] = ended
    return Demonstrations(
        **{
            "observations": np.zeros((steps, 147), dtype=np.uint8),
            "actions": np.zeros(steps, dtype=np.int64),
            "demonstrator": np.zeros(steps, dtype=np.int64),
            "episode": np.repeat(np.arange(len(lengths)), lengths),
            "terminals": ends,
            "action_count": 7,
        }
        | columns
    )


# The critic


def small_network(seed=0, sizes=(5, 4, 3, 1)):
    chance = np.random.default_rng(seed)
    return [(chance.normal(size=(after, before)), chance.normal(size=after)) for before, after in pairwise(sizes)]


def output(layers, inputs):
    for weight, bias in layers[:-1]:
        inputs = np.maximum(inputs @ weight.T + bias, 0)
    return (inputs @ layers[-1][0].T + layers[-1][1])[..., 0]


def slope_by_differences(layers, inputs, step=1e-6):
    ways = step * np.eye(inputs.shape[1])
    differences = [output(layers, inputs + way) - output(layers, inputs - way) for way in ways]
    return np.linalg.norm(np.stack(differences, axis=1) / (2 * step), axis=1)


def as_tensors(layers):
    return [(torch.tensor(weight), torch.tensor(bias)) for weight, bias in layers]


def test_scores_and_slopes_are_those_of_the_network_by_finite_differences():
    layers, inputs = small_network(), np.random.default_rng(1).normal(size=(40, 5))
    np.testing.assert_allclose(scores(as_tensors(layers), torch.tensor(inputs)), output(layers, inputs), rtol=1e-12)
    # 1e-8: central differences of a piecewise linear function have rounding error alone, away from the corners
    np.testing.assert_allclose(
        slopes(as_tensors(layers), torch.tensor(inputs)), slope_by_differences(layers, inputs), atol=1e-8
    )


def test_the_gradient_of_the_penalty_is_that_of_finite_differences_of_slopes():
    """Both the slope and its derivative with respect to every weight are found without calculus."""
    layers, inputs = small_network(), np.random.default_rng(1).normal(size=(40, 5))

    def penalty():
        return ((slope_by_differences(layers, inputs) - 1) ** 2).mean()

    tensors = [(weight.requires_grad_(), bias) for weight, bias in as_tensors(layers)]
    (slopes(tensors, torch.tensor(inputs)) - 1).square().mean().backward()
    step, checked = 1e-4, 0
    for (weight, _), (tensor, _) in zip(layers, tensors, strict=True):
        for place in np.ndindex(weight.shape):
            before = weight[place]
            weight[place] = before + step
            above = penalty()
            weight[place] = before - step
            below = penalty()
            weight[place] = before
            # rounding in the slopes, about 1e-9, divided by the step
            assert tensor.grad[place].item() == pytest.approx((above - below) / (2 * step), abs=1e-4)
            checked += 1
    assert checked == 5 * 4 + 4 * 3 + 3


def a_critic(**settings):
    usual = {"hidden": (8, 8), "learning_rate": 1e-2, "kept": 1.0, "penalty": 1.0, "clip": 50.0}
    generator = torch.Generator().manual_seed(0)
    return Critic(centre=np.zeros(2), action_count=3, generator=generator, **(usual | settings))


def behaviour(seed, steps, **ends):
    chance = np.random.default_rng(seed)
    return Behaviour(chance.integers(0, 3, (steps, 2)).astype(np.uint8), chance.integers(0, 3, steps), **ends)


def test_a_contrast_weighs_each_distinct_step_by_its_share_of_time():
    """Against a count of the steps themselves, the absorbing state counted by its steps."""
    one, other = behaviour(0, 50, absorbed=30, ends=4), behaviour(1, 70, absorbed=10, ends=2)
    contrast = a_critic().contrast(one, other)
    expected = Counter()
    for sign, own in ((1, one), (-1, other)):
        for seen, action in zip(own.observations, own.actions, strict=True):
            step = (*(seen / OBSERVATION_SCALE).astype(np.float32).tolist(), *np.eye(3)[action].tolist(), 0.0)
            expected[step] += sign / (len(own) + own.absorbed)
        expected[(0.0,) * 5 + (ABSORBING,)] += sign * own.absorbed / (len(own) + own.absorbed)
    found = dict(zip(map(tuple, contrast.inputs.tolist()), contrast.weight.tolist(), strict=True))
    assert found.keys() == expected.keys()
    for step, weight in expected.items():
        assert found[step] == pytest.approx(weight, abs=1e-7)  # single precision
    np.testing.assert_array_equal(contrast.inputs[contrast.row][:, 2:5].argmax(1), other.actions)


def test_without_ends_the_absorbing_state_has_no_part():
    contrast = a_critic().contrast(behaviour(0, 50), behaviour(1, 70))
    assert [float(column[-1]) for column in (contrast.weight, contrast.demonstrated, contrast.generated)] == [0, 0, 0]


def test_the_critic_learns_who_did_what_with_a_slope_of_about_one():
    """Two single steps that differ in their action, sqrt(2) apart: of slope one, f differs by that."""
    one, other = (Behaviour(np.zeros((5, 2), dtype=np.uint8), np.full(5, action)) for action in (0, 1))
    critic = a_critic()
    contrast = critic.contrast(one, other)
    critic.learn(contrast, epochs=500)
    gap = float(contrast.weight @ critic.scores(contrast))
    # The optimum of -gap + (gap / sqrt(2) - 1)^2 is at slope 1 + 1 / sqrt(2), a gap of 1 + sqrt(2).
    assert gap == pytest.approx(1 + 2**0.5, rel=0.05)


# Padding


def test_only_episodes_that_the_task_ended_are_padded():
    """Of a limit of 10: ended after 3 leaves 7, ended at the limit 0, cut after 4 nothing, ended after 1 leaves 9."""
    data = hand_made(ended=[True, True, False, True], lengths=[3, 10, 4, 1])
    padded = _demonstrated_behaviour(data, limit=10)
    assert (padded.absorbed, padded.ends, len(padded)) == (7 + 0 + 9, 3, 18)
    plain = _demonstrated_behaviour(data, limit=None)
    assert (plain.absorbed, plain.ends, len(plain)) == (0, 0, 18)


class Corridor:
    """Four environments that end after 2, 3, 5 steps and never, truncated after 5. They show the step's number."""

    limit = 5
    ends_after = np.array([2, 3, 5, 99])

    def reset(self):
        self.at = np.zeros(4, dtype=np.int64)
        return self.seen(np.arange(4))

    def seen(self, rows):
        return np.stack([rows, self.at[rows]], axis=1).astype(np.uint8)

    def step(self, actions):
        self.at += 1
        return self.seen(np.arange(4)), np.full(4, 0.5), self.at == self.ends_after, self.at >= self.limit

    def reset_rows(self, rows):
        assert (self.at[rows] > 0).all()
        self.at[rows] = 0
        return self.seen(rows)


def test_finished_episodes_have_their_rewards_and_the_steps_left_to_the_limit():
    rollouts = Rollouts(Corridor())
    rollouts.reset()
    for _ in range(6):
        observations, over, truncated = rollouts.step(np.zeros(4, dtype=np.int64))
        assert (observations[over, 1] == 0).all()
        assert all(last[1] == 5 for last in truncated.values())
        assert set(truncated) <= {3}, "an episode that ends with the last step is not truncated"
    finished = rollouts.pop_finished()
    assert sorted(finished.rewards) == [1.0] * 3 + [1.5] * 2 + [2.5] * 2
    assert (finished.absorbed, finished.ends) == (3 * 3 + 2 * 2 + 0, 6)
    assert rollouts.pop_finished().rewards == ()


def test_the_learner_sees_no_reward_but_sees_truncation(empty):
    worlds = as_vec_env(Rollouts(Corridor()), environments=4, observation_size=2, action_count=3)
    worlds.reset()
    for _ in range(5):
        observations, rewards, dones, notes = worlds.step(np.zeros(4, dtype=np.int64))
        assert not rewards.any()
    assert dones.tolist() == [False, False, True, True]
    assert [note.get("TimeLimit.truncated", False) for note in notes] == [False, False, False, True]
    assert notes[3]["terminal_observation"].tolist() == [3, 5]
    assert observations[3].tolist() == [3, 0]


class Batch:
    """As much of stable-baselines3's buffer as is read, one step of every environment in each row."""

    def __init__(self, observations, actions):
        self.observations, self.actions = observations, actions
        self.rewards = np.zeros(actions.shape[:2], dtype=np.float32)
        self.log_probs = np.full(actions.shape[:2], -0.5, dtype=np.float32)


@pytest.mark.parametrize("horizon", ["variable", "absorbing"])
def test_a_score_is_counted_from_that_of_the_absorbing_state(horizon):
    """Then the return of an episode is that of one padded up to the limit, minus a number that all episodes share."""
    rollouts = Rollouts(Corridor())
    method = Gail(task=EMPTY, horizon=horizon, batch_size=20, environments=4)
    seen, actions = [rollouts.reset()], np.random.default_rng(0).integers(0, 3, (5, 4, 1))
    for step in actions:
        seen.append(rollouts.step(step[:, 0])[0])
    demonstrated = behaviour(0, 50, absorbed=30, ends=4) if horizon == "absorbing" else behaviour(0, 50)
    critic = a_critic(kept=0.6)
    batch = Batch(np.stack(seen[:-1]), actions.astype(np.float32))
    rewards = _CriticRewards(method, demonstrated, rollouts, critic, began=0.0)
    rewards(batch)
    ends = {"absorbed": 3 * 2 + 2, "ends": 4} if horizon == "absorbing" else {}
    contrast = critic.contrast(demonstrated, Behaviour(batch.observations.reshape(20, 2), actions.ravel(), **ends))
    learned = critic.scores(contrast)
    origin = learned[-1] if horizon == "absorbing" else 0
    expected = (learned[contrast.row] - origin).numpy()
    np.testing.assert_allclose(batch.rewards.ravel(), expected / expected.std(), rtol=1e-4)
    assert rewards.history[0].entropy == pytest.approx(0.5)
    assert rewards.history[0].critic_gap == pytest.approx(float(contrast.weight @ learned))


# Environments


@pytest.mark.parametrize("name", envs.names())
def test_both_engines_have_the_same_limit_and_truncate_there(empty, name):
    """An actor that only turns left is truncated after exactly that many steps, and reset."""
    pytest.importorskip("envpool", reason="C++ environments need the extra 'fast'")
    engines = PythonEnvironments(name, [3, 4]), PooledEnvironments(ENVIRONMENTS[name].id, [3, 4])
    assert engines[0].limit == engines[1].limit
    if name == "minigrid/obstacles":
        return  # there a moving obstacle may end the episode of an actor that only turns
    for environments in engines:
        rollouts = Rollouts(environments)
        first = rollouts.reset()
        for step in range(1, environments.limit + 1):
            observations, over, truncated = rollouts.step(np.zeros(2, dtype=np.int64))
            assert over.tolist() == [step == environments.limit] * 2
        assert sorted(truncated) == [0, 1]
        assert observations.shape == first.shape == (2, 147)
        assert rollouts.pop_finished().rewards == (0.0, 0.0)


# Fitting


def bits(fitted):
    curve = [replace(point, seconds=0.0) for point in fitted.history]
    return curve, [array.tobytes() for layer in fitted.policy.layers for array in layer]


@pytest.mark.parametrize("engine", ["envpool", "minigrid"])
@pytest.mark.parametrize("horizon", ["variable", "absorbing"])
def test_a_seed_fixes_every_bit(demonstrations, engine, horizon):
    if engine == "envpool":
        pytest.importorskip("envpool", reason="C++ environments need the extra 'fast'")
    method = replace(TINY, task=MiniGridTask("minigrid/empty", engine=engine), horizon=horizon)
    once = bits(method.fit(demonstrations, seed=1))
    assert bits(method.fit(demonstrations, seed=1)) == once
    assert bits(method.fit(demonstrations, seed=2)) != once


def test_rewards_and_names_of_the_demonstrations_do_not_matter(demonstrations, empty):
    anonymous = replace(
        demonstrations, rewards=None, demonstrator=np.zeros(len(demonstrations), dtype=np.int64), names=("all",)
    )
    assert bits(TINY.fit(anonymous, seed=1)) == bits(TINY.fit(demonstrations, seed=1))


def test_no_global_generator_is_moved(demonstrations, empty):
    def state():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002

    before, threads = state(), torch.get_num_threads()
    TINY.fit(demonstrations, seed=1)
    assert (state(), torch.get_num_threads()) == (before, threads)


def test_the_curve_counts_environment_steps(demonstrations):
    fitted = TINY.fit(demonstrations, seed=1)
    assert [point.steps for point in fitted.history] == [60, 120]
    assert fitted.history[0].entropy == pytest.approx(np.log(7), abs=0.01), "a new policy knows nothing"
    assert 0 < fitted.history[0].seconds < fitted.history[1].seconds


def test_a_policy_is_the_network_that_was_trained_and_survives_a_file(demonstrations, empty, tmp_path):
    policy = TINY.fit(demonstrations, seed=1).policy
    policy.save(tmp_path / "policy.safetensors")
    again = GailPolicy.load(tmp_path / "policy.safetensors")
    seen = demonstrations.observations[:50]
    np.testing.assert_array_equal(again.probabilities(seen), policy.probabilities(seen))
    actions, state = again.predict(seen)
    assert state is None
    np.testing.assert_array_equal(actions, policy.probabilities(seen).argmax(1))
    assert again.predict(seen[0])[0] == actions[0]
    drawn, _ = again.predict(np.repeat(seen[:1], 3_000, axis=0), deterministic=False)
    shares = np.bincount(drawn, minlength=7) / 3_000
    np.testing.assert_allclose(
        shares, policy.probabilities(seen[:1])[0], atol=0.04
    )  # four standard deviations, seed fixed
    assert evaluate(again, empty, episodes=3).rewards.shape == (3,)


def test_a_file_of_something_else_is_refused(tmp_path):
    path = tmp_path / "expert.safetensors"
    save_expert(envs.expert("minigrid/empty"), path)
    with pytest.raises(IleedError, match="does not hold a policy of GAIL"):
        GailPolicy.load(path)


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"actions": np.zeros((5, 2)), "action_count": 0}, "continuous actions"),
        (
            {"observations": np.zeros((5, 12), dtype=np.uint8)},
            "12 numbers in an observation, but minigrid/empty has 147",
        ),
        ({"action_count": 3}, "3 actions, but minigrid/empty has 7"),
        ({"observations": np.full((5, 147), 0.5)}, "whole numbers from 0 to 255"),
        ({"terminals": None}, "do not say which episodes the task ended"),
    ],
)
def test_demonstrations_of_something_else_are_refused_in_one_sentence(empty, changed, rule):
    with pytest.raises(IleedError, match=rule):
        TINY.fit(hand_made(ended=[True], lengths=[5], **changed), seed=0)


def test_a_task_without_a_single_environment_is_refused():
    with pytest.raises(IleedError, match="cannot play in minigrid/skills"):
        replace(TINY, task=multi_skill_task())


def test_a_device_other_than_the_cpu_is_refused(demonstrations):
    with pytest.raises(IleedError, match="device is 'cuda', but GAIL runs on the CPU alone"):
        TINY.fit(demonstrations, seed=0, device="cuda")


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"horizon": "fixed"}, "no horizon 'fixed'"),
        ({"iterations": 0}, "iterations is 0"),
        ({"environments": 7}, "7 environments cannot share 60 steps"),
        ({"critic_kept": 0.0}, "critic_kept is 0"),
    ],
)
def test_impossible_settings_are_refused_when_made(changed, rule):
    with pytest.raises(IleedError, match=rule):
        replace(TINY, **changed)


def test_with_an_absorbing_horizon_it_learns_to_reach_the_goal(empty):
    """A policy at random earns about 0.1 here and the demonstrators 0.97."""
    pytest.importorskip("envpool", reason="takes minutes without the extra 'fast'")
    data = simulation.demonstrate(empty, envs.expert(empty.name), skill=[0.99] * 10, steps=1_000, seed=0)
    fitted = Gail(task=empty, iterations=16).fit(data, seed=0)
    assert evaluate(fitted.policy, empty, episodes=200).mean > 0.8
    assert fitted.history[-1].episodic_reward > 0.8
    assert fitted.history[-1].critic_gap < fitted.history[0].critic_gap
