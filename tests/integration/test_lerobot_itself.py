"""lerobot itself, in an environment of its own, opens and trains on our folders, and we read what it writes."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from strategies import world

import ileed
from ileed import Demonstrations, by_column
from ileed.cli import run as ileed_command
from ileed.formats import format_of, lerobot

ROOT = Path(__file__).parents[2]
SIDE = Path(__file__).with_name("lerobot_side.py")
OF_VERSION = {"v3.0": ("0.6.1", ROOT / ".cache" / "lerobot"), "v2.1": ("0.3.3", ROOT / ".cache" / "lerobot-0.3.3")}
TOY = ROOT.parent / "shared" / "data" / "lerobot" / "v3_toy"
TRAIN = {"v3.0": "lerobot.scripts.lerobot_train", "v2.1": "lerobot.scripts.train"}
SMALL = (
    "dim_model=16",
    "n_heads=2",
    "dim_feedforward=16",
    "n_encoder_layers=1",
    "n_vae_encoder_layers=1",
    "latent_dim=4",
)

pytestmark = [pytest.mark.campaign, pytest.mark.xdist_group("lerobot")]


@pytest.fixture(params=OF_VERSION)
def version(request) -> str:
    needs(request.param)
    return str(request.param)


def needs(version: str) -> None:
    release, home = OF_VERSION[version]
    if not (home / "bin" / "python").exists():
        pytest.skip(f"lerobot {release} has no environment here: run tests/lerobot_environment.sh {release}")


def run(version: str, *arguments: object, home: Path) -> str:
    """What lerobot's Python prints, away from this test's environment, without network and on one thread."""
    environment = {"OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin", "HOME": str(home), "HF_HUB_OFFLINE": "1"}
    environment |= {"HF_HOME": str(home / "hub"), "WANDB_MODE": "disabled", "CUDA_VISIBLE_DEVICES": ""}
    words = [str(OF_VERSION[version][1] / "bin" / "python"), *map(str, arguments)]
    found = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=500, cwd=home)
    assert found.returncode == 0, found.stderr[-3000:]
    return found.stdout + found.stderr


def show(version: str, folder: Path, *episodes: int, home: Path) -> dict:
    printed = run(version, SIDE, "show", folder, *episodes, home=home)
    return json.loads(next(line for line in printed.splitlines() if line.startswith('{"columns"')))


def robot(episodes: int = 8, steps: int = 12) -> Demonstrations:
    """Two people who move as the state says; the second with noise."""
    random = np.random.default_rng(0)
    seen = random.normal(size=(episodes * steps, 5)).astype(np.float32)
    who = np.repeat(np.arange(episodes) % 2, steps)
    acted = seen[:, :2] + (0.5 * who[:, None] * random.normal(size=(len(seen), 2))).astype(np.float32)
    return Demonstrations(
        observations=seen,
        actions=acted.astype(np.float32),
        demonstrator=who,
        episode=np.repeat(np.arange(episodes), steps),
        names=("ann", "bob"),
        rewards=random.normal(size=len(seen)),
    )


def test_lerobot_opens_what_we_write(version, tmp_path, monkeypatch):
    data = world([6, 4, 5, 7, 3], discrete=False, floating=True, optional=["rewards", "terminals", "phase", "load"])
    task = np.array(["lift", "push"])[data.episode % 2]
    data = Demonstrations(**{**vars(data), "skills": {**data.skills, "task": task}})
    monkeypatch.setattr(lerobot, "_FILE_BYTES", 700)  # several files
    monkeypatch.setattr(lerobot, "_FILES_IN_CHUNK", 2)
    ileed.write(data, tmp_path / "data", format="lerobot", version=version, fps=5)
    assert len(list((tmp_path / "data" / "data").glob("chunk-*"))) > 1
    found = show(version, tmp_path / "data", home=tmp_path)
    columns = found["columns"]
    np.testing.assert_array_equal(np.float32(columns["observation.state"]), data.observations)
    np.testing.assert_array_equal(np.float32(columns["action"]), data.actions)
    np.testing.assert_array_equal(np.float32(columns["next.reward"]).ravel(), data.rewards)
    np.testing.assert_array_equal(np.ravel(columns["next.done"]), data.terminals)
    np.testing.assert_array_equal(np.float32(columns["skill.load"]), data.skills["load"])
    assert columns["operator"] == [data.names[person] for person in data.demonstrator]
    assert columns["task"] == task.tolist()
    assert columns["episode_index"] == data.episode.tolist()
    np.testing.assert_allclose(found["mean"]["action"], data.actions.mean(axis=0), rtol=1e-5)
    some = show(version, tmp_path / "data", 1, 3, home=tmp_path)["columns"]
    assert some["operator"] == [
        data.names[data.demonstrator[step]] for step in range(len(data)) if data.episode[step] in (1, 3)
    ]


def test_we_read_what_lerobot_writes(version, tmp_path):
    run(version, SIDE, "make", tmp_path / "data", home=tmp_path)
    path = tmp_path / "data"
    assert [each.option for each in format_of(path).candidates(path)] == ["--demonstrator collector_id"]
    data = ileed.read(path, demonstrator=by_column("collector_id"))
    assert (len(data), data.names, data.action_count) == (18, ("ann", "bob"), 3)
    assert data.episode_demonstrator.tolist() == [0, 1, 0, 1]
    frames = [(episode, step) for episode, steps in enumerate((5, 3, 6, 4)) for step in range(steps)]
    np.testing.assert_array_equal(data.observations[:, 3:], np.array(frames))
    np.testing.assert_array_equal(data.actions, [sum(each) % 3 for each in frames])
    np.testing.assert_array_equal(data.rewards, [step for _, step in frames])
    assert np.flatnonzero(data.terminals).tolist() == [4, 7, 13, 17]
    assert data.skills["task"].tolist() == ["lift"] * 8 + ["push"] * 10
    shown = show(version, path, home=tmp_path)["columns"]
    np.testing.assert_array_equal(data.observations[:, :3], np.float32(shown["observation.state"]))


def test_who_demonstrated_survives_lerobots_own_tool(version, tmp_path):
    if version == "v2.1":
        pytest.skip("lerobot 0.3.3 has no tool that deletes episodes")
    data = robot()
    ileed.write(data, tmp_path / "data", format="lerobot")
    run(version, SIDE, "delete", tmp_path / "data", tmp_path / "fewer", 1, home=tmp_path)
    found = ileed.read(tmp_path / "fewer", demonstrator=by_column("operator"))
    kept = data.episode != 1
    np.testing.assert_array_equal(found.observations, data.observations[kept])
    np.testing.assert_array_equal(found.demonstrator, data.demonstrator[kept])


def train(version: str, folder: Path, home: Path, *, episodes: list[int] | None = None) -> str:
    """What lerobot's own training script prints, for a small ACT and three steps; the run is `home/run`."""
    options = [f"--policy.{each}" for each in ("type=act", "device=cpu", "push_to_hub=false", "chunk_size=4", *SMALL)]
    options += ["--policy.n_action_steps=4", "--dataset.repo_id=local/data", f"--dataset.root={folder}"]
    options += [] if episodes is None else [f"--dataset.episodes={episodes}"]
    options += ["--steps=3", "--batch_size=4", "--num_workers=0", "--log_freq=1", "--wandb.enable=false"]
    options += [f"--output_dir={home / 'run'}", "--save_freq=3"]
    printed = run(version, "-m", TRAIN[version], *options, home=home)
    assert (home / "run/checkpoints/000003/pretrained_model/model.safetensors").exists()
    return printed


def test_lerobots_training_script_runs_on_chosen_episodes(version, tmp_path):
    keys = {"observation.state": 3, "observation.environment_state": 2}
    ileed.write(robot(), tmp_path / "data", format="lerobot", version=version, observations=keys)
    episodes = [0, 2, 4, 6] if version == "v3.0" else [0, 1, 2, 3]  # 0.3.3 fails where numbers are skipped
    printed = train(version, tmp_path / "data", tmp_path, episodes=episodes)
    assert "num_episodes=4" in printed
    assert "num_frames=48" in printed


# --- a folder that is not ours: inspect, fit, curate, and lerobot reads what curate wrote


def curate(folder: Path, who: str, home: Path, capsys) -> list[int]:
    """Inspect, fit and curate at the command, as a user does; the kept episodes, by the line for lerobot-train."""
    assert command("inspect", folder) == 0
    assert f"--demonstrator {who}" in capsys.readouterr().out
    assert command("fit", folder, "--demonstrator", who, "--out", home / "fit", "--restarts", 1, "--steps", 50) == 0
    options = ("--demonstrator", who, "--keep", 0.6, "--out", home / "curated")
    assert command("curate", home / "fit", folder, *options) == 0
    lines = (home / "curated/lerobot.txt").read_text().splitlines()
    words = shlex.split(next(line for line in lines if line.startswith("lerobot-train ")))
    assert f"--dataset.root={folder}" in words
    kept = json.loads(next(word for word in words if word.startswith("--dataset.episodes=")).partition("=")[2])
    assert kept == json.loads((home / "curated/curated.json").read_text())["kept_keys"]
    return kept


def command(*words: object) -> int:
    return ileed_command([str(word) for word in words])


def test_what_is_curated_from_a_v3_folder_of_lerobots_own_is_read_by_its_class_its_tool_and_its_trainer(
    tmp_path, capsys
):
    needs("v3.0")
    folder = tmp_path / "data"
    run("v3.0", SIDE, "make", folder, "robot", home=tmp_path)
    kept = curate(folder, "collector_id", tmp_path, capsys)
    assert len(kept) == 6
    assert set(kept) >= {0, 2, 4, 6, 8}  # those without noise
    assert set(show("v3.0", folder, *kept, home=tmp_path)["columns"]["episode_index"]) == set(kept)
    assert "dataset.num_episodes=6" in train("v3.0", folder, tmp_path, episodes=kept)
    edit = next(line for line in (tmp_path / "curated/lerobot.txt").read_text().splitlines() if "edit-dataset" in line)
    run("v3.0", "-m", "lerobot.scripts.lerobot_edit_dataset", *shlex.split(edit)[1:], home=tmp_path)
    fewer = ileed.read(tmp_path / "data_kept", demonstrator=by_column("collector_id"))
    whole = ileed.read(folder, demonstrator=by_column("collector_id"))
    np.testing.assert_array_equal(fewer.observations, whole.observations[np.isin(whole.episode, kept)])


def test_what_is_curated_from_a_v2_folder_of_lerobots_own_is_written_as_a_new_folder_and_trained_on(tmp_path, capsys):
    needs("v2.1")
    folder = tmp_path / "data"
    run("v2.1", SIDE, "make", folder, "robot", home=tmp_path)
    kept = curate(folder, "collector_id", tmp_path, capsys)
    assert set(show("v2.1", folder, *kept, home=tmp_path)["columns"]["episode_index"]) == set(kept)
    data = ileed.read(folder, demonstrator=by_column("collector_id"))
    keys = {"observation.state": 3, "observation.environment_state": 2}
    chosen = data.select(np.isin(data.episode, kept))  # 0.3.3 fails where numbers are skipped
    ileed.write(chosen, tmp_path / "kept", format="lerobot", version="v2.1", observations=keys)
    assert "num_episodes=6" in train("v2.1", tmp_path / "kept", tmp_path)


def test_what_is_curated_from_the_toy_folder_is_read_by_lerobot(tmp_path, capsys):
    needs("v3.0")
    if not TOY.exists():
        pytest.skip("the toy folder of LeRobot v3.0 is not beside the repository")
    folder = shutil.copytree(TOY, tmp_path / "data")
    kept = curate(folder, "operator_id", tmp_path, capsys)
    assert len(kept) == 2
    columns = show("v3.0", folder, *kept, home=tmp_path)["columns"]
    assert sorted(set(columns["episode_index"])) == kept
    data = ileed.read(folder, demonstrator=by_column("operator_id"))
    keys = {"observation.state": 3, "observation.environment_state": 2}  # ACT does not learn from states alone
    ileed.write(data, tmp_path / "divided", format="lerobot", observations=keys)
    printed = train("v3.0", tmp_path / "divided", tmp_path, episodes=kept)
    assert f"dataset.num_frames={np.isin(data.episode, kept).sum()}" in printed
