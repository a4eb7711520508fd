"""Sources that change after scoring: nothing is written about episodes that the file no longer holds."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ileed
from ileed import data as demonstrations
from ileed.errors import DemonstrationError


@cache
def robot():
    """Eight episodes of four steps of two operators."""
    random = np.random.default_rng(0)
    return ileed.Demonstrations(
        observations=random.normal(size=(32, 3)).astype(np.float32),
        actions=random.normal(size=(32, 2)).astype(np.float32),
        demonstrator=np.repeat(["ann", "bob"], 16),
        episode=np.repeat(np.arange(8), 4),
    )


@cache
def fit():
    policy = ileed.MixtureMLP(hidden=(4,), modes=1)
    return ileed.Ileed(policy=policy, restarts=1, steps=2, folds=0).fit(robot(), seed=0, device="cpu")


def swap_demos(path):
    """Exchange the contents of two demonstrations, and put the old time of modification back."""
    import h5py

    before = path.stat()
    with h5py.File(path, "r+") as file:
        for old, new in (("demo_1", "demo_x"), ("demo_6", "demo_1"), ("demo_x", "demo_6")):
            file.move(f"data/{old}", f"data/{new}")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def swap_rows(file):
    """Exchange the steps of two episodes of one demonstrator in a parquet file."""
    table = pq.read_table(file)
    order = np.arange(32)
    order[4:8], order[8:12] = np.arange(8, 12), np.arange(4, 8)
    for name in {"observation", "action", "observation.state"} & set(table.column_names):
        place, column = table.column_names.index(name), table[name].combine_chunks()
        table = table.set_column(place, table.schema.field(name), pa.chunked_array([column.take(pa.array(order))]))
    pq.write_table(table, file)


def swap_in_folder(path):
    swap_rows(next((path / "data" if (path / "data").exists() else path).rglob("*.parquet")))


SWAPS = {
    "robomimic": ("set.hdf5", swap_demos),
    "parquet": ("set.parquet", swap_rows),
    "parquet-folder": ("set", swap_in_folder),
    "lerobot": ("set", swap_in_folder),
}


def scored(path, format_, **rule):
    if format_ == "robomimic":
        pytest.importorskip("h5py")
    ileed.write(robot(), path, format=format_)
    return ileed.curate(fit(), ileed.read(path), **(rule or {"keep": 0.5}))


@pytest.mark.parametrize(("format_", "place", "swap"), [(name, *each) for name, each in SWAPS.items()], ids=SWAPS)
def test_a_source_whose_episodes_were_swapped_after_scoring_is_refused_before_anything_is_written(
    tmp_path, format_, place, swap
):
    curated = scored(tmp_path / place, format_)
    trainer = format_ if format_ in ("robomimic", "lerobot") else "openpi"
    source = tmp_path / place if trainer == format_ else None
    swap(tmp_path / place)
    with pytest.raises(DemonstrationError, match="changed"):
        curated.write(tmp_path / "out", format=trainer, source=source)
    assert [path.name for path in tmp_path.iterdir()] == [place]


def test_a_table_that_changed_after_scoring_is_refused(tmp_path):
    lines = [f"{step % 5},{'ab'[step % 2]},{('ann', 'bob')[step // 4 % 2]},{step // 4}" for step in range(32)]
    (tmp_path / "a.csv").write_text("\n".join(["x,decision,nurse,case", *lines]) + "\n")
    data = ileed.from_table(tmp_path / "a.csv", action="decision", demonstrator="nurse", episode="case")
    policy = ileed.CategoricalMLP(hidden=(4,))
    fitted = ileed.Ileed(policy=policy, restarts=1, steps=2, folds=0).fit(data, seed=0, device="cpu")
    curated = ileed.curate(fitted, data, keep=0.5)
    (tmp_path / "a.csv").write_text("\n".join(["x,decision,nurse,case", *lines[16:], *lines[:16]]) + "\n")
    curated.write(tmp_path / "reordered")  # other rows, but every episode under its own label
    (tmp_path / "a.csv").write_text("\n".join(["x,decision,nurse,case", *lines]).replace("0,a,", "3,a,") + "\n")
    with pytest.raises(DemonstrationError, match="changed"):
        curated.write(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_copy_that_holds_other_episodes_is_refused_as_source_and_a_faithful_one_is_taken(tmp_path):
    pytest.importorskip("h5py")
    curated = scored(tmp_path / "a.hdf5", "robomimic")
    shutil.copy(tmp_path / "a.hdf5", tmp_path / "copy.hdf5")
    shutil.copy(tmp_path / "a.hdf5", tmp_path / "other.hdf5")
    swap_demos(tmp_path / "other.hdf5")
    curated.write(tmp_path / "out", format="robomimic", source=tmp_path / "copy.hdf5")
    with pytest.raises(DemonstrationError, match="source="):
        curated.write(tmp_path / "refused", format="robomimic", source=tmp_path / "other.hdf5")
    assert not (tmp_path / "refused").exists()


def test_a_file_that_was_only_touched_or_moved_is_no_other(tmp_path):
    pytest.importorskip("h5py")
    curated = scored(tmp_path / "a.hdf5", "robomimic")
    os.utime(tmp_path / "a.hdf5")
    curated.write(tmp_path / "touched", format="robomimic", source=tmp_path / "a.hdf5")
    os.rename(tmp_path / "a.hdf5", tmp_path / "b.hdf5")
    curated.write(tmp_path / "moved", format="robomimic", source=tmp_path / "b.hdf5")
    curated.write(tmp_path / "tables")
    members = [json.loads((tmp_path / name / "curated.json").read_text())["kept_keys"] for name in ("touched", "moved")]
    assert members == [curated.keys.tolist()] * 2


def test_some_episodes_are_compared_with_the_whole_file(tmp_path):
    pytest.importorskip("h5py")
    ileed.write(robot(), tmp_path / "a.hdf5")
    curated = ileed.curate(fit(), ileed.read(tmp_path / "a.hdf5").by("bob"), keep=0.5)
    os.utime(tmp_path / "a.hdf5")
    curated.write(tmp_path / "out", format="robomimic", source=tmp_path / "a.hdf5")
    swap_demos(tmp_path / "a.hdf5")
    with pytest.raises(DemonstrationError, match="changed"):
        curated.write(tmp_path / "other", format="robomimic", source=tmp_path / "a.hdf5")


def test_an_unchanged_source_is_not_read_again(tmp_path, monkeypatch):
    curated = scored(tmp_path / "a.parquet", "parquet")
    monkeypatch.setattr(demonstrations.source, "_holds_episodes", lambda *_: pytest.fail("it was read again"))
    curated.write(tmp_path / "out")


def test_demonstrations_know_their_source_in_another_process(tmp_path):
    ileed.write(robot(), tmp_path / "a.parquet")
    data = pickle.loads(pickle.dumps(ileed.read(tmp_path / "a.parquet")))
    assert data.source.holds(data)
    swap_rows(tmp_path / "a.parquet")
    assert not data.source.holds(data)


def test_the_fingerprint_of_a_data_set_is_computed_once(tmp_path, monkeypatch):
    ileed.write(robot(), tmp_path / "a.parquet")
    data, digests = ileed.read(tmp_path / "a.parquet"), []
    made = hashlib.blake2b
    monkeypatch.setattr(hashlib, "blake2b", lambda *a, **b: digests.append(a) or made(*a, **b))
    assert data.fingerprint == data.fingerprint
    assert len(digests) == 1
    assert data.fingerprint == robot().fingerprint


def test_the_live_page_saves_nothing_about_a_source_that_changed(tmp_path):
    from ileed.serve import Destination, Marks, Session

    curated = scored(tmp_path / "a.parquet", "parquet")
    marks = Marks.of(tmp_path, curated.data.fingerprint, curated.data.episode_count)
    session = Session(tmp_path, fit(), curated, marks, Destination(tmp_path / "out"))
    swap_rows(tmp_path / "a.parquet")
    with pytest.raises(DemonstrationError, match="changed"):
        session.save()
    assert not (tmp_path / "out").exists()


def test_anonymised_episodes_are_compared_with_those_of_the_source(tmp_path):
    lines = [f"{step % 5},{'ab'[step % 2]},{('ann', 'bob')[step // 4 % 2]},{step // 4}" for step in range(32)]
    (tmp_path / "a.csv").write_text("\n".join(["x,decision,nurse,case", *lines]) + "\n")
    columns = {"action": "decision", "demonstrator": "nurse", "episode": ["nurse", "case"]}
    data = ileed.from_table(tmp_path / "a.csv", **columns).anonymise()
    assert "ann" not in "".join(data.episode_keys.tolist())
    os.utime(tmp_path / "a.csv")
    assert data.source.holds(data)
    (tmp_path / "a.csv").write_text("\n".join(["x,decision,nurse,case", *lines]).replace("0,a,", "3,a,") + "\n")
    assert not data.source.holds(data)
