"""Numbers of any size and type reach the networks with their distinctions, and a fit that they spoil warns."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ileed
from ileed.data.collapsing import LARGEST_CODE, single_holds
from ileed.errors import IleedWarning
from ileed.fitting import Outcome

SKILL = np.array([0.95, 0.8, 0.65, 0.5, 0.35, 0.2])
STEPS = 300  # of each demonstrator
METHOD = ileed.Ileed(
    policy=ileed.CategoricalMLP(hidden=(16,)),
    expertise=ileed.Constant(),
    restarts=2,
    steps=300,
    learning_rate=2e-2,
    skill_learning_rate=2e-2,
)
UNITS = {
    "ADC counts around 2048": lambda x: np.rint(2048 + 100 * x).astype(np.int64),
    "unsigned ADC counts": lambda x: np.rint(2048 + 100 * x).astype(np.uint16),
    "int64 near 1e15": lambda x: 10**15 + np.rint(1000 * x).astype(np.int64),
    "UTM metres with centimetres": lambda x: 5e6 + x.round(2),
    "Unix seconds with milliseconds": lambda x: 1.7e9 + x.round(3),
    "a standard deviation of 1e-9": lambda x: 1e-9 * x,
    "a standard deviation of 1e-9 around 1": lambda x: 1 + 1e-9 * x,
    "a standard deviation of 1e-9 in float32": lambda x: (1e-9 * x).astype(np.float32),
}


def standard() -> np.ndarray:
    """(step, 2) independent standard normal numbers, with three digits behind the point."""
    return np.random.default_rng(0).normal(size=(STEPS * len(SKILL), 2)).round(3)


def world(observations: np.ndarray, **columns: Any) -> ileed.Demonstrations:
    """Six demonstrators who see observations made of `standard()` and follow the signs of both numbers, or err."""
    rng = np.random.default_rng(1)
    seen, who = standard(), np.repeat(np.arange(len(SKILL)), STEPS)
    best = 2 * (seen[:, 0] > 0) + (seen[:, 1] > 0)
    actions = np.where(rng.random(len(who)) < SKILL[who], best, rng.integers(0, 4, size=len(who)))
    names = tuple(f"demonstrator {number}" for number in range(len(SKILL)))
    episode = np.arange(len(who)) // 10
    return ileed.Demonstrations(
        observations=observations, actions=actions, demonstrator=who, episode=episode, names=names, **columns
    )


def fit(data: ileed.Demonstrations, **settings: Any) -> ileed.Fitted:
    """A small fit, which may warn of the data."""
    with warnings.catch_warnings(action="ignore", category=IleedWarning):
        return replace(METHOD, **settings).fit(data, seed=0, device="cpu")


@pytest.fixture(scope="module")
def plain() -> ileed.Fitted:
    return fit(world(standard()))


@pytest.mark.parametrize("unit", UNITS)
def test_the_unit_and_type_of_observations_do_not_change_who_is_better(unit, plain):
    fitted = fit(world(UNITS[unit](standard())))
    assert fitted.nats_per_action == pytest.approx(plain.nats_per_action, abs=0.02)  # counts are coarser
    found = [*fitted.expertise.by_demonstrator().values()]
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize("unit", ["UTM metres with centimetres", "Unix seconds with milliseconds", "int64 near 1e15"])
def test_rows_that_differ_in_the_data_differ_for_the_networks(unit):
    data = world(UNITS[unit](standard()))
    distinct = len(np.unique(data.observations, axis=0))
    assert data.collapsed().unique_count == distinct
    seen = fit(data, steps=1, restarts=1).normaliser(torch.from_numpy(np.array(data.observations)))
    assert seen.dtype == torch.float32
    assert len(np.unique(seen.numpy().T, axis=0)) == distinct


@pytest.mark.parametrize("unit", ["ADC counts around 2048", "Unix seconds with milliseconds", "int64 near 1e15"])
def test_a_folder_is_standardised_block_by_block_as_data_in_memory_are(unit, tmp_path, monkeypatch):
    monkeypatch.setattr("ileed.data.source._BLOCKS_IN_MEMORY", 10**9)  # the smallest blocks: 1,024 rows
    data = world(UNITS[unit](standard()))
    ileed.write(data, tmp_path / "part.parquet")
    mapped = ileed.read(tmp_path, memory_gib=0.01)
    assert mapped.store.is_on_disk
    normalisers = [fit(each, steps=1, restarts=1).normaliser for each in (data, mapped)]
    in_memory, in_blocks = (each(torch.from_numpy(np.array(data.observations))) for each in normalisers)
    torch.testing.assert_close(in_blocks, in_memory)
    assert mapped.collapsed().unique_count >= len(np.unique(data.observations, axis=0))


def test_a_table_keeps_digits_that_single_precision_does_not_hold():
    data = world(standard())
    table = {"seconds": 1.7e9 + standard()[:, 0], "metres": 5e6 + standard()[:, 1].round(2)}
    columns = {"action": data.actions, "who": np.array(data.names)[data.demonstrator], "episode": data.episode}
    read = ileed.from_table(table | columns, action="action", demonstrator="who", episode="episode")
    assert read.collapsed().unique_count == len(np.unique(read.observations, axis=0))
    assert read.collapsed().unique_count > 0.9 * len(data)
    one = {name: values[:1] for name, values in table.items()}  # which a policy encodes as it did the whole table
    np.testing.assert_array_equal(read.encoding.encode(one), read.observations[:1])


def test_small_codes_are_read_as_they_are_and_larger_integers_are_standardised():
    rng = np.random.default_rng(0)
    codes = rng.integers(-LARGEST_CODE, LARGEST_CODE + 1, size=(STEPS * len(SKILL), 1))
    flags, counts = codes > 0, rng.integers(0, 256, size=codes.shape)
    data = world(np.hstack([codes, flags, counts, counts + 10**6]))
    normaliser = fit(data, steps=1, restarts=1).normaliser
    assert normaliser.shift[:2].tolist() == [0, 0]
    assert normaliser.scale[:2].tolist() == [1, 1]
    seen = normaliser(torch.from_numpy(np.array(data.observations)))[2:]
    torch.testing.assert_close(seen.mean(1), torch.zeros(2), rtol=0, atol=1e-3)  # float32 rounds a mean of a million
    torch.testing.assert_close(seen.std(1, correction=0), torch.ones(2), rtol=0, atol=1e-5)


def test_the_observations_of_minigrid_keep_their_values():
    data = ileed.read(Path(ileed.__file__).parent / "formats" / "shipped" / "obstacles-beta-1.parquet")
    normaliser = fit(data, steps=1, restarts=1).normaliser
    seen = normaliser(torch.from_numpy(np.array(data.observations[:100])))
    np.testing.assert_array_equal(seen.T, data.observations[:100][:, normaliser.kept])
    assert normaliser.scale.dtype == torch.float32


@pytest.mark.parametrize(
    ("values", "holds"),
    [
        ([36.6, 125.3, -0.001, 0.1, 999999.0], True),
        (np.arange(2**24), True),
        (np.array([0.75, 12.5]) * 2.0**-10, True),
        ([123456.7, 1.0], False),
        ([5123456.78], False),
        ([1.7e9 + 0.001], False),
        ([np.pi], False),
        ([1e-300], False),
        (np.array([2**24 + 1]), False),
        (np.array([10**15 + 1]), False),
        (np.array([200], dtype=np.uint8), True),
    ],
    ids=str,
)
def test_single_precision_is_used_where_it_keeps_every_digit(values, holds):
    assert single_holds(np.asarray(values)) is holds


def test_decimals_of_six_digits_stay_apart_in_single_precision():
    """A law: whatever `single_holds` accepts, float32 does not merge."""
    rng = np.random.default_rng(0)
    mantissa, exponent = rng.integers(100_000, 1_000_000, size=20_000), rng.integers(-12, 12, size=20_000)
    values = np.unique([float(f"{one}e{other}") for one, other in zip(mantissa, exponent, strict=True)])
    assert single_holds(values)
    assert len(np.unique(values.astype(np.float32))) == len(values)


def test_a_saved_fit_in_double_precision_gives_the_same_answers(tmp_path):
    data = world(UNITS["Unix seconds with milliseconds"](standard()))
    fitted = fit(data, steps=5)
    fitted.save(tmp_path / "run")
    again, before = (
        each.policy.distribution(data.observations).logits for each in (ileed.load(tmp_path / "run"), fitted)
    )
    torch.testing.assert_close(again, before, rtol=0, atol=0)


def test_an_onnx_policy_reads_double_precision_where_the_data_need_it(tmp_path):
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    data = world(UNITS["Unix seconds with milliseconds"](standard()))
    fitted = fit(data, steps=20)
    fitted.policy.to_onnx(tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx", providers=["CPUExecutionProvider"])
    action = session.run(["action"], {"observations": np.array(data.observations[:50])})[0]
    np.testing.assert_array_equal(action, fitted.policy.act(data.observations[:50]))
    assert len(np.unique(action)) > 1


# --- findings and warnings


def serious(data: ileed.Demonstrations) -> list[str]:
    """What the serious findings are about."""
    return [finding.about for finding in data.check() if finding.serious]


def test_a_column_that_an_outlier_makes_constant_is_a_finding_and_a_warning():
    seen = standard()
    seen[7, 1] = 1e15
    assert serious(world(seen)) == ["observations[1]"]
    with pytest.warns(IleedWarning, match=r"observations\[1\]"):
        replace(METHOD, steps=1).fit(world(seen), seed=0, device="cpu")


def test_continuous_actions_that_single_precision_does_not_tell_apart_are_a_finding():
    columns: dict[str, Any] = {"demonstrator": np.arange(400) // 100, "episode": np.arange(400) // 20}
    rng = np.random.default_rng(0)
    metres = 5e6 + rng.normal(size=(400, 2)) * [1, 1e6]
    data = ileed.Demonstrations(observations=rng.normal(size=(400, 1)), actions=metres, **columns)
    assert serious(data) == ["actions[0]"]
    table = {"seen": rng.normal(size=400), "x": metres[:, 0], "y": metres[:, 1]} | columns
    assert serious(ileed.from_table(table, action=["x", "y"], demonstrator="demonstrator", episode="episode")) == ["x"]


def test_integers_that_are_not_standardised_on_request_are_warned_of():
    data = world(UNITS["int64 near 1e15"](standard()))
    assert serious(data) == []
    with pytest.warns(IleedWarning, match=r"observations\[0\]"):
        ileed.Ileed(**vars(METHOD) | {"steps": 1, "normalise": False}).fit(
            data, seed=0, device="cpu", check_width=False
        )


def test_a_fit_that_is_worse_than_guessing_warns_and_says_so_in_its_outcome():
    data = world(np.rint(1e4 * standard()).astype(np.int64))
    method = ileed.bc(policy=METHOD.policy, restarts=1, steps=1, normalise=False)
    with pytest.warns(IleedWarning, match="worse than guessing"):
        fitted = method.fit(data, seed=0, device="cpu")
    assert fitted.outcome is Outcome.WORSE_THAN_GUESSING


@pytest.mark.parametrize("unit", [unit for unit in UNITS if "Unix" not in unit])  # which is a finding of its own
def test_a_fit_that_learns_something_does_not_warn(unit):
    data = world(UNITS[unit](standard()))
    assert serious(data) == []
    METHOD.fit(data, seed=0, device="cpu")
