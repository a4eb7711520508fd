"""Observations by name: several arrays for each step, from demonstrations to a policy's answer."""

import numpy as np
import pytest

import ileed
from ileed import DemonstrationError, Demonstrations

STEPS = 48


def arrays(rng: np.random.Generator) -> dict[str, np.ndarray]:
    state = rng.integers(0, 2, size=(STEPS, 3)).astype(np.float32)
    return {"state": state, "image.wrist": rng.integers(0, 256, size=(STEPS, 4, 5, 3), dtype=np.uint8)}


@pytest.fixture
def data() -> Demonstrations:
    rng = np.random.default_rng(0)
    observations = arrays(rng)
    return Demonstrations(
        observations=observations,
        actions=observations["state"][:, 0].astype(np.int64),
        demonstrator=np.repeat(["ann", "bob"], STEPS // 2),
        episode=np.repeat(np.arange(8), STEPS // 8),
        action_count=2,
    )


def test_arrays_come_back_by_name_in_their_shapes_and_types(data):
    expected = arrays(np.random.default_rng(0))
    found = data.named_observations
    assert list(found) == ["state", "image.wrist"]
    for name, values in expected.items():
        assert found[name].dtype == values.dtype
        np.testing.assert_array_equal(found[name], values)
    assert "image.wrist (4, 5, 3) uint8" in repr(data)


def test_arrays_of_one_type_keep_it():
    frames = arrays(np.random.default_rng(0))["image.wrist"]
    data = Demonstrations(
        observations={"wrist": frames},
        actions=np.arange(STEPS) % 2,
        demonstrator=["a"] * STEPS,
        episode=np.zeros(STEPS, dtype=int),
    )
    assert data.observations.dtype == np.uint8
    assert data.observations.shape == (STEPS, 60)


def test_names_survive_selection_splitting_and_parquet(data, tmp_path):
    assert data.select(data.episode < 3).arrays == data.by("bob").arrays == data.each_episode().arrays == data.arrays
    ileed.write(data, tmp_path / "data.parquet")
    found = ileed.read(tmp_path / "data.parquet")
    assert found.equals(data)
    assert found.fingerprint == data.fingerprint
    np.testing.assert_array_equal(found.named_observations["image.wrist"], data.named_observations["image.wrist"])


def test_names_are_a_part_of_the_fingerprint(data):
    alone = Demonstrations(
        observations=data.observations,
        actions=data.actions,
        demonstrator=data.demonstrator,
        episode=data.episode,
        names=data.names,
        action_count=2,
    )
    assert alone.arrays == ()
    assert alone.fingerprint != data.fingerprint


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda found: {}, "observation-missing"),
        (lambda found: found | {"state": found["state"][:-1]}, "observation-lengths"),
        (lambda found: found | {"state": np.array(["word"] * STEPS)}, "observation-invalid"),
    ],
)
def test_arrays_that_do_not_go_together_are_refused(change, code):
    with pytest.raises(DemonstrationError) as error:
        Demonstrations(
            observations=change(arrays(np.random.default_rng(0))),
            actions=np.zeros(STEPS, dtype=int),
            demonstrator=["ann"] * STEPS,
            episode=np.zeros(STEPS, dtype=int),
        )
    assert error.value.code == code


def test_a_fit_acts_on_arrays_by_name_in_any_order_and_after_loading(data, tmp_path):
    method = ileed.Ileed(policy=ileed.CategoricalMLP(), expertise=ileed.Constant(), restarts=2, steps=20, folds=2)
    fitted = method.fit(data, seed=0, device="cpu")
    observations = data.named_observations
    expected = fitted.policy.act(data.observations)
    fitted.save(tmp_path / "run")
    loaded = ileed.load(tmp_path / "run")
    for policy in (fitted.policy, loaded.policy):
        assert policy.layout.arrays == data.arrays
        np.testing.assert_array_equal(
            policy.act(dict(reversed(observations.items())) | {"more": np.ones(STEPS)}), expected
        )
        one, _ = policy.predict({name: values[0] for name, values in observations.items()})
        assert one == expected[0]
    np.testing.assert_array_equal(loaded.nats(data), fitted.nats(data))


def test_new_data_are_matched_by_name_and_shape(data):
    fitted = ileed.Ileed(policy=ileed.CategoricalMLP(), restarts=1, steps=5, folds=0).fit(data, seed=0, device="cpu")
    columns = {
        "actions": data.actions,
        "demonstrator": data.demonstrator,
        "episode": data.episode,
        "names": data.names,
        "action_count": 2,
    }
    found = data.named_observations
    swapped = Demonstrations(observations=dict(reversed(found.items())), **columns)
    np.testing.assert_array_equal(fitted.nats(swapped), fitted.nats(data))
    for observations, code in (
        ({"state": found["state"]}, "observation-missing"),
        (found | {"state": found["state"][:, :2]}, "observation-shape"),
        (data.observations, "observation-names"),
    ):
        with pytest.raises(DemonstrationError) as error:
            fitted.nats(Demonstrations(observations=observations, **columns))
        assert error.value.code == code
