"""Episode keys: every file that curation writes names episodes so that each leads back to one in the user's file."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from functools import cache

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ileed
from ileed.errors import DemonstrationError

LONG = "/".join(["recordings", "lab", "2026-03-01"] + ["x" * 30] * 5)  # 178 characters
assert len(LONG) > 100


def table(labels, *, more=None, steps=4):
    """Episodes of four steps; ann and bob take turns."""
    random = np.random.default_rng(0)
    rows = len(labels) * steps
    columns = {"case": np.repeat(np.array(labels, dtype=object), steps).tolist()}
    if more is not None:
        columns["part"] = np.repeat(np.array(more, dtype=object), steps).tolist()
    columns |= {"x": random.normal(size=rows), "decision": ["a", "b"] * (rows // 2)}
    columns["nurse"] = np.repeat(np.where(np.arange(len(labels)) % 2, "bob", "ann"), steps).tolist()
    return columns


def read(columns, episode):
    return ileed.from_table(columns, action="decision", demonstrator="nurse", features=["x"], episode=episode)


@cache
def fit():
    data = read(table([str(number) for number in range(8)]), "case")
    policy = ileed.CategoricalMLP(hidden=(4,))
    method = ileed.Ileed(policy=policy, expertise=ileed.Constant(), restarts=1, steps=2, folds=0)
    return method.fit(data, seed=0, device="cpu")


def curate(data, **rule):
    return ileed.curate(fit(), data, **(rule or {"keep": 0.5}))


@cache
def four():
    """Four episodes, half of which are kept."""
    return curate(read(table(["a", "b", "c", "d"]), "case"))


def called(curated, keys):
    """The same, with other keys."""
    return replace(curated, data=replace(curated.data, source_episode=np.array(keys)[curated.data.episode]))


def files_with_keys(folder):
    """The keys of all episodes, and of those that are kept, in each file that names them."""
    parquet = pq.read_table(folder / "episodes.parquet")
    rows = list(csv.DictReader((folder / "episodes.csv").read_text().splitlines()))
    every = {"parquet": parquet["key"].to_pylist(), "csv": [row["key"] for row in rows]}
    kept = {
        "parquet": parquet.filter(parquet["keep"])["key"].to_pylist(),
        "csv": [row["key"] for row in rows if row["keep"] == "true"],
        "curated.json": json.loads((folder / "curated.json").read_text())["kept_keys"],
        "openpi.json": list(json.loads((folder / "openpi.json").read_text())),
    }
    stretches = set(pq.read_table(folder / "stretches.parquet")["key"].to_pylist())
    return every, kept, stretches


def test_labels_longer_than_a_hundred_characters_are_the_keys_of_their_episodes_in_every_file(tmp_path):
    labels = ["3", "2", LONG, "1", "0", f"{LONG}/other"]
    data = read(table(labels), "case")
    assert data.episode_keys.tolist() == labels
    curated = curate(data)
    curated.write(tmp_path / "out", format="openpi")
    every, kept, stretches = files_with_keys(tmp_path / "out")
    assert all(found == labels for found in every.values())
    expected = [label for label, keep in zip(labels, curated.kept, strict=True) if keep]
    assert all(found == expected for found in kept.values())
    assert stretches == set(labels)


def test_long_labels_take_no_more_memory_for_each_step_than_a_reference():
    data = read(table([LONG, f"{LONG}/other"], steps=1_000), "case")
    assert data.source_episode.nbytes == 8 * len(data)


def test_episodes_of_several_columns_have_keys_of_their_own_whatever_the_labels_hold(tmp_path):
    labels, more = (
        ["a, b", "a", "a\\", "a"],
        ["c", "b, c", ", b", "\\, b"],
    )  # the first two are alike when joined as they are
    data = read(table(labels, more=more), ["case", "part"])
    assert len(set(data.episode_keys.tolist())) == 4
    curated = curate(data)
    curated.write(tmp_path / "out", format="openpi")
    every, kept, _ = files_with_keys(tmp_path / "out")
    assert all(found == data.episode_keys.tolist() for found in every.values())
    assert all(found == curated.keys.tolist() for found in kept.values())


def split(key):
    """The labels in a key of several columns."""
    labels, escaped = [""], False
    for sign in key:
        if escaped or sign not in "\\,":
            labels[-1] += sign
            escaped = False
        elif sign == "\\":
            escaped = True
        else:
            labels.append("")
    return [labels[0], *(label.removeprefix(" ") for label in labels[1:])]


@given(st.lists(st.tuples(*[st.text("ab,\\ ", max_size=4)] * 2), min_size=1, max_size=6, unique=True))
def test_the_labels_of_several_columns_can_be_recovered_from_the_key(pairs):
    labels, more = zip(*pairs, strict=True)
    data = read(table([*labels, "end"], more=[*more, "end"], steps=2), ["case", "part"])
    assert [tuple(split(key)) for key in data.episode_keys.tolist()] == [*pairs, ("end", "end")]


@pytest.mark.parametrize("format_", [None, "openpi", "robomimic", "lerobot", "minari"])
def test_keys_that_two_episodes_share_are_refused_by_every_writer(tmp_path, format_):
    keys = ["a", "b", "a", "d"] if format_ in (None, "openpi", "robomimic") else [0, 1, 0, 3]
    with pytest.raises(DemonstrationError, match="episodes 0 and 2"):
        called(four(), keys).write(tmp_path / "out", format=format_)
    assert list(tmp_path.iterdir()) == []


def test_segments_that_were_curated_once_have_no_keys_of_their_own_and_are_refused(tmp_path):
    data = read(table(["a", "b", "c", "d"], steps=8), "case")
    segments = curate(data, keep=0.9, unit="stretch", stretch=2).demonstrations()
    with pytest.raises(DemonstrationError, match="keys"):
        curate(segments).write(tmp_path / "out", format="openpi")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("labels", [["a\n", "a\t"], ["=a", "'=a"]])
def test_labels_that_a_file_cannot_tell_apart_are_refused(tmp_path, labels):
    data = read(table([*labels, "c", "d"]), "case")
    with pytest.raises(DemonstrationError, match="episodes 0 and 1"):
        replace(four(), data=data).write(tmp_path / "out", format="openpi")
    assert list(tmp_path.iterdir()) == []


def test_labels_that_are_not_valid_unicode_are_refused(tmp_path):
    with pytest.raises(DemonstrationError, match="Unicode"):
        called(four(), ["a", "b", "c\udc80", "d"]).write(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_bytes_and_times_as_labels_are_keys_as_text():
    names = ["demo_0", "demo_1", "demo_2", "demo_é"]
    assert called(four(), [name.encode() for name in names]).data.episode_keys.tolist() == names
    days = np.arange("2026-01-01", "2026-01-05", dtype="datetime64[D]").astype("datetime64[ns]")
    assert called(four(), days).data.episode_keys[0] == "2026-01-01T00:00:00.000000000"


def test_long_names_of_robomimic_episodes_are_the_members_of_the_masks(tmp_path):
    h5py = pytest.importorskip("h5py")
    random = np.random.default_rng(0)
    actions = random.normal(size=(32, 2)).astype(np.float32)
    data = ileed.Demonstrations(
        observations=random.normal(size=(32, 3)).astype(np.float32),
        actions=actions,
        demonstrator=np.repeat(["ann", "bob"], 16),
        episode=np.repeat(np.arange(8), 4),
    )
    ileed.write_robomimic(data, tmp_path / "demos.hdf5")
    names = {f"demo_{number}": f"demo_{number}-{'x' * 120}" for number in range(0, 8, 2)}
    with h5py.File(tmp_path / "demos.hdf5", "r+") as file:
        for old, new in names.items():
            file.move(f"data/{old}", f"data/{new}")
    data = ileed.read(tmp_path / "demos.hdf5")
    policy = ileed.MixtureMLP(hidden=(4,), modes=1)
    fitted = ileed.Ileed(policy=policy, restarts=1, steps=2, folds=0).fit(data, seed=0, device="cpu")
    curated = ileed.curate(fitted, data, keep=0.5)
    curated.write(tmp_path / "out", format="robomimic", source=tmp_path / "demos.hdf5")
    kept = ileed.read(tmp_path / "out/demos.hdf5", filter_key="ileed_keep")
    assert set(kept.episode_keys.tolist()) == set(curated.keys.tolist())
    for number, key in enumerate(kept.episode_keys.tolist()):
        here = int(key.removeprefix("demo_").partition("-")[0])
        np.testing.assert_array_equal(kept.actions[kept.episode == number], actions[4 * here : 4 * here + 4])


def test_episodes_of_minari_are_called_by_the_numbers_that_they_have_there(tmp_path):
    h5py = pytest.importorskip("h5py")
    data = read(table(["a", "b", "c", "d"]), "case")
    ileed.write(data, tmp_path / "set-v0", format="minari")
    with h5py.File(tmp_path / "set-v0/data/main_data.hdf5", "r+") as file:
        del file["episode_1"]  # as a tool leaves it that removes an episode
    found = ileed.read(tmp_path / "set-v0")
    assert found.episode_keys.tolist() == [0, 2, 3]
    curate(found, keep=1.0).write(tmp_path / "out", format="minari", source=tmp_path / "set-v0")
    assert json.loads((tmp_path / "out/minari.json").read_text()) == {"episode_indices": [0, 2, 3]}


def test_the_numbers_of_lerobot_episodes_are_those_of_the_folder(tmp_path):
    data = read(table([str(number) for number in range(8)]), "case")
    ileed.write(data, tmp_path / "set", format="lerobot")
    curated = curate(ileed.read(tmp_path / "set").by("bob"), keep=0.6)
    curated.write(tmp_path / "out", format="lerobot", source=tmp_path / "set")
    assert set(curated.keys.tolist()) < {1, 3, 5, 7}
    listed = ",".join(map(str, curated.keys.tolist()))
    assert f"--dataset.episodes='[{listed}]'" in (tmp_path / "out/lerobot.txt").read_text()
