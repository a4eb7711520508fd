"""Policies of single demonstrators: noise shows as a residual, another policy as a distance."""

from __future__ import annotations

import json

import numpy as np
import pytest

import ileed
from ileed.cli import run
from ileed.errors import SettingsError
from ileed.rating.own_policies import own_policy_indicators


def operators(noise, sign=None, *, episodes=8, steps=60, seed=0, size=1.0):
    """Operators of one nonlinear policy, or of its negative, with noise in units of the policy's standard deviation."""
    random, parts = np.random.default_rng(seed), []
    for number, (own, follows) in enumerate(zip(noise, sign or [1] * len(noise), strict=True)):
        for _ in range(episodes):
            state = random.uniform(-1, 1, size=(steps, 3))
            aim = np.stack([np.sin(2 * state[:, 0]), state[:, 1] * state[:, 2]], axis=1)
            parts.append((state, size * follows * aim + own * aim.std(0) * random.normal(size=aim.shape), number))
    return ileed.Demonstrations(
        observations=np.concatenate([state for state, _, _ in parts]),
        actions=np.concatenate([action for _, action, _ in parts]),
        demonstrator=np.repeat([f"operator {number}" for _, _, number in parts], steps),
        episode=np.repeat(np.arange(len(parts)), steps),
    )


def means(data, **options):
    """(demonstrator,) the residual and the distance."""
    found = ileed.indicators(data, own_policies=True, **options).means
    return found["own_policy_residual"], found["distance_from_common"]


def test_the_residual_is_the_share_of_the_variance_that_is_noise():
    noise = np.array([0.1, 0.5, 1.0])
    residual, distance = means(operators(noise, episodes=16))
    share = noise**2 / (1 + noise**2)
    np.testing.assert_allclose(residual, share, rtol=0.25)  # the error of the policies adds to it
    assert (distance < 0.1).all()


def test_who_follows_another_policy_exactly_has_a_small_residual_and_a_large_distance():
    residual, distance = means(operators([0.0, 0.0, 0.0, 0.0], [1, 1, 1, -1]))
    assert (residual < 0.01).all()
    assert distance[3] > 4 * distance[:3].max()  # the common policy is half of the others': 9 in the limit


def test_units_of_actions_and_observations_do_not_matter():
    data = operators([0.2, 0.6], [1, -1])
    other = ileed.Demonstrations(
        observations=data.observations * [10, 0.1, 3] + 7,
        actions=data.actions * [0.3, 20] - 4,
        demonstrator=data.demonstrator,
        episode=data.episode,
    )
    for found, expected in zip(means(other), means(data), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)  # rounding, through an eigendecomposition


def test_two_episodes_are_enough_and_one_is_not():
    residual, distance = means(operators([0.1, 0.1], episodes=2))
    assert np.isfinite([residual, distance]).all()
    assert (residual < 0.5).all()
    both = operators([0.1, 0.1], episodes=2)
    residual, distance = means(both.select(both.episode < 3))
    assert np.isfinite([residual[0], distance[0]]).all()
    assert np.isnan([residual[1], distance[1]]).all()


def test_a_single_demonstrator_has_no_distance_from_the_common_policy():
    residual, distance = means(operators([0.5]))
    assert residual[0] > 0.1
    assert distance[0] == pytest.approx(0, abs=1e-12)


def test_a_held_out_episode_is_not_learned_from():
    """Actions that have nothing to do with the state: any policy that has seen them would explain some."""
    data = operators([0.3, 0.3], size=0.0, episodes=4, steps=40)
    residual, _ = means(data)
    assert (residual > 0.95).all()


def test_the_same_seed_gives_the_same_bits():
    data = operators([0.1, 0.5])
    first, again, other = (own_policy_indicators(data, seed=seed)["own_policy_residual"] for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_actions_and_observations_that_never_change_leave_nothing_to_explain():
    still = ileed.Demonstrations(
        observations=np.zeros((12, 1)),
        actions=np.ones((12, 2)),
        demonstrator=[0] * 6 + [1] * 6,
        episode=np.arange(12) // 3,
    )
    residual, distance = means(still)
    assert np.isnan([residual, distance]).all()


def test_intervals_and_correlations_include_the_new_columns():
    data = operators([0.1, 0.3, 0.6, 1.0])
    expertise = {name: 1.0 - 0.1 * number for number, name in enumerate(data.names)}
    found = ileed.indicators(data, columns={"expertise": expertise}, own_policies=True)
    table = found.demonstrators().to_pydict()
    low, mean, high = (np.array(table[f"own_policy_residual{end}"]) for end in ("_low", "", "_high"))
    assert ((low < mean) & (mean < high)).all()
    pairs = {(row["first"], row["second"]): row["over_demonstrators"] for row in found.correlations().to_pylist()}
    assert pairs["own_policy_residual", "expertise"] == pytest.approx(-1)


def test_a_column_by_demonstrator_needs_every_name():
    with pytest.raises(SettingsError, match="operator 1"):
        ileed.indicators(operators([0.1, 0.3]), columns={"expertise": {"operator 0": 1.0}})


def test_discrete_actions_have_no_own_policies():
    data = ileed.Demonstrations(
        observations=np.zeros((4, 1)), actions=[0, 1, 0, 1], demonstrator=[0, 0, 1, 1], episode=[0, 0, 1, 1]
    )
    with pytest.raises(SettingsError, match="own_policies"):
        ileed.indicators(data, own_policies=True)


def test_inspect_shows_own_policies_when_asked(tmp_path, capsys):
    data = operators([0.1, 0.6])
    ileed.write(data, tmp_path / "data.parquet")
    assert run(["inspect", str(tmp_path / "data.parquet"), "--json"]) == 0
    assert "own_policy_residual" not in json.loads(capsys.readouterr().out)["indicators"][0]
    assert run(["inspect", str(tmp_path / "data.parquet"), "--own-policies", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["indicators"]
    assert [row["own_policy_residual"] for row in rows] == pytest.approx(means(data)[0].tolist())
    assert run(["inspect", str(tmp_path / "data.parquet"), "--own-policies"]) == 0
    assert "residual" in capsys.readouterr().out


def test_a_folder_on_disk_has_the_own_policies_of_the_same_data_in_memory(tmp_path):
    data = operators([0.1, 0.6], episodes=3)
    (tmp_path / "parts").mkdir()
    ileed.write(data, tmp_path / "parts" / "all.parquet")
    mapped = ileed.read(tmp_path / "parts")
    assert mapped.store.is_on_disk
    for name, values in own_policy_indicators(mapped).items():
        np.testing.assert_allclose(values, own_policy_indicators(data)[name], rtol=1e-4)  # mapped in single precision
