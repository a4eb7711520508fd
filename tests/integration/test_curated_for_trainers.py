"""What `ileed curate` writes for robomimic and Minari is read by robomimic's own training script and by Minari."""

from __future__ import annotations

import json
import subprocess
import warnings
from pathlib import Path

import numpy as np
import pytest

import ileed
from ileed.cli import run as ileed_command
from ileed.formats import shipped

ROOT = Path(__file__).parents[2]
ROBOMIMIC = ROOT / ".cache" / "robomimic" / "bin" / "python"


def command(*words: object) -> None:
    assert ileed_command([str(word) for word in words]) == 0


def fit_and_curate(path: Path, home: Path, *options: object) -> Path:
    """Fit for a moment and keep half of the episodes, as a user does; the curated folder."""
    command("fit", path, "--out", home / "fit", "--restarts", 1, "--steps", 50, *options)
    command("curate", home / "fit", path, "--keep", 0.5, "--no-check", "--out", home / "curated", *options)
    return home / "curated"


def merged(settings: dict, others: dict) -> dict:
    """Settings of robomimic with others on top, as its own `config.update` merges them."""
    both = {
        name: merged(settings[name], others[name])
        for name in settings.keys() & others.keys()
        if isinstance(others[name], dict)
    }
    return {**settings, **others, **both}


@pytest.mark.campaign
@pytest.mark.xdist_group("robomimic")
@pytest.mark.skipif(not ROBOMIMIC.exists(), reason="robomimic has no environment here: run make robomimic")
def test_robomimics_training_script_trains_on_the_episodes_that_curate_kept(tmp_path):
    source = tmp_path / "square.hdf5"
    ileed.write_robomimic(shipped("square"), source)
    before = source.read_bytes()
    curated = fit_and_curate(source, tmp_path)
    assert source.read_bytes() == before
    kept = ileed.read(curated / "square.hdf5", filter_key="ileed_keep")
    config = {
        "algo_name": "bc",
        "experiment": {
            "name": "curated",
            "validate": False,
            "render_video": False,
            "rollout": {"enabled": False},
            "logging": {"log_tb": False},
            "save": {"every_n_epochs": 2},
            "epoch_every_n_steps": 5,
        },
        "train": {
            "output_dir": str(tmp_path / "out"),
            "num_epochs": 2,
            "batch_size": 16,
            "seq_length": 5,
            "cuda": False,
        },
        "algo": {"rnn": {"enabled": True, "horizon": 5, "hidden_dim": 16, "num_layers": 1}, "actor_layer_dims": []},
        "observation": {"modalities": {"obs": {"low_dim": ["flat"]}}},
    }
    config["train"]["dataset_keys"] = ["actions"]  # robomimic asks for rewards and dones that it does not use
    config = merged(config, json.loads((curated / "robomimic_keep.json").read_text()))
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = [ROBOMIMIC, "-m", "robomimic.scripts.train", "--config", tmp_path / "config.json"]
    environment = {"OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    found = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=400, cwd=tmp_path)
    printed = found.stdout + found.stderr
    assert "finished run successfully!" in printed, printed[-3000:]
    assert "filter_key=ileed_keep" in printed
    assert f"num_demos={kept.episode_count}\n" in printed
    assert f"num_sequences={len(kept)}\n" in printed
    assert list((tmp_path / "out").rglob("model_epoch_2.pth"))


def test_minari_loads_the_episodes_that_curate_kept(tmp_path, monkeypatch):
    minari = pytest.importorskip("minari", reason="Minari is not installed: pip install minari h5py pillow")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    data = shipped()
    data = data.select(data.episode % 24 == 0)
    ileed.write(data, tmp_path / "people-v0", format="minari")
    curated = fit_and_curate(tmp_path / "people-v0", tmp_path)
    kept = json.loads((curated / "minari.json").read_text())["episode_indices"]
    assert kept == json.loads((curated / "curated.json").read_text())["kept_keys"]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="minari")
        whole = minari.load_dataset("people-v0")
        subset = minari.MinariDataset(whole.storage, episode_indices=np.array(kept))
        assert (subset.total_episodes, whole.total_episodes) == (30, 60)
        for episode, number in zip(subset.iterate_episodes(), kept, strict=True):
            own = data.episode == number
            assert episode.id == number
            np.testing.assert_array_equal(episode.observations[:-1], data.observations[own])
            np.testing.assert_array_equal(episode.actions, data.actions[own])
