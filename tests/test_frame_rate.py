"""Frame rate and timestamps: a LeRobot folder is written with those of the source, whatever lies in between."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pyarrow.parquet as pq
import pytest
from strategies import world

import ileed
from ileed.cli import run
from ileed.errors import DemonstrationError

FORMATS = {"parquet": "a.parquet", "parquet-folder": "a", "robomimic": "a.hdf5", "minari": "a", "imitation": "a"}


@cache
def clocked():
    """Demonstrations at 20 frames per second, whose clock starts late and jitters, as a recorder's does."""
    data = world(floating=True, discrete=False)
    frame = np.arange(len(data)) - np.searchsorted(data.episode, data.episode)
    jitter = np.random.default_rng(0).uniform(0, 0.004, size=len(data))
    return replace(data, fps=20, timestamps=(0.5 + frame / 20 + jitter).astype(np.float32))


def folder_at(path, fps, timestamps=None):
    ileed.write(world(floating=True, discrete=False), path, format="lerobot", fps=fps)
    if timestamps is not None:
        for file in path.glob("data/*/*.parquet"):
            table = pq.read_table(file)
            place = table.column_names.index("timestamp")
            pq.write_table(table.set_column(place, "timestamp", [timestamps[table["index"].to_numpy()]]), file)
    return path


def clock_of(folder):
    """The frame rate that a folder states, and the timestamp of every frame."""
    files = sorted(folder.glob("data/*/*.parquet"))
    stamps = np.concatenate([pq.read_table(file)["timestamp"].to_numpy() for file in files])
    return json.loads((folder / "meta/info.json").read_text())["fps"], stamps


@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
def test_kept_episodes_of_a_lerobot_folder_are_written_with_its_rate_and_timestamps(tmp_path, version):
    stamps = clocked().timestamps.astype(np.float32)
    data = ileed.read(folder_at(tmp_path / "set", 20, stamps))
    policy = ileed.MixtureMLP(hidden=(4,), modes=1)
    fitted = ileed.Ileed(policy=policy, restarts=1, steps=2, folds=0).fit(data, seed=0, device="cpu")
    curated = ileed.curate(fitted, data, keep=0.5)
    ileed.write(curated.demonstrations(), tmp_path / "kept", format="lerobot", version=version)
    rate, found = clock_of(tmp_path / "kept")
    assert rate == 20
    np.testing.assert_array_equal(found, stamps[curated.kept_steps])


def test_the_command_converts_a_folder_of_thirty_frames_per_second_to_one(tmp_path, capsys):
    folder_at(tmp_path / "set", 30)
    assert run(["convert", str(tmp_path / "set"), str(tmp_path / "new"), "--format", "lerobot", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fps"] == 30
    for found, expected in zip(clock_of(tmp_path / "new"), clock_of(tmp_path / "set"), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("name", "place"), FORMATS.items(), ids=FORMATS)
def test_rate_and_timestamps_survive_every_format_in_between(tmp_path, name, place):
    if name in ("robomimic", "minari"):
        pytest.importorskip("h5py")
    ileed.write(clocked(), tmp_path / place, format=name)
    found = ileed.read(tmp_path / place)
    assert found.fps == 20
    np.testing.assert_array_equal(found.timestamps, clocked().timestamps)
    ileed.write(found, tmp_path / "out", format="lerobot")
    rate, stamps = clock_of(tmp_path / "out")
    assert rate == 20
    np.testing.assert_array_equal(stamps, clocked().timestamps.astype(np.float32))


def test_the_control_frequency_of_a_robomimic_file_is_the_frame_rate(tmp_path):
    pytest.importorskip("h5py")
    env = {"env_name": "Square", "type": 1, "env_kwargs": {"control_freq": 20}}
    data = world(floating=True, discrete=False)
    ileed.write_robomimic(data, tmp_path / "a.hdf5", env_args=env)
    ileed.write(ileed.read(tmp_path / "a.hdf5"), tmp_path / "out", format="lerobot")
    assert clock_of(tmp_path / "out")[0] == 20


def test_selections_keep_rate_and_timestamps():
    data = clocked()
    for part in (data.by(data.names[0]), data.select(data.episode > 0), data.anonymise()):
        assert part.fps == 20
    np.testing.assert_array_equal(data.select(data.episode > 0).timestamps, data.timestamps[data.episode > 0])


def test_another_rate_that_is_asked_for_makes_timestamps_of_its_own(tmp_path):
    ileed.write(clocked(), tmp_path / "same", format="lerobot", fps=20)
    np.testing.assert_array_equal(clock_of(tmp_path / "same")[1], clocked().timestamps.astype(np.float32))
    ileed.write(clocked(), tmp_path / "other", format="lerobot", fps=5)
    rate, stamps = clock_of(tmp_path / "other")
    frame = np.arange(len(clocked())) - np.searchsorted(clocked().episode, clocked().episode)
    assert rate == 5
    np.testing.assert_array_equal(stamps, (frame / 5).astype(np.float32))


def test_a_column_called_timestamp_of_the_users_own_parquet_file_is_left_alone(tmp_path):
    data = world(floating=True, discrete=False)
    ileed.write(data, tmp_path / "a.parquet")
    table = pq.read_table(tmp_path / "a.parquet")
    pq.write_table(table.append_column("timestamp", [["noon"] * len(data)]), tmp_path / "a.parquet")
    assert ileed.read(tmp_path / "a.parquet").timestamps is None


def test_neither_fit_nor_equality_depends_on_the_clock():
    plain = replace(clocked(), fps=None, timestamps=None)
    assert plain.fingerprint == clocked().fingerprint
    assert plain.equals(clocked())


@pytest.mark.parametrize(
    "wrong", [{"fps": 0}, {"fps": "20"}, {"fps": 10**400}, {"fps": True}, {"fps": None}, {"timestamps": [0.0]}]
)
def test_a_clock_that_cannot_be_right_is_refused(wrong):
    with pytest.raises(DemonstrationError, match=r"fps|timestamps"):
        replace(clocked(), **wrong)
