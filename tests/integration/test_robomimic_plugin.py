"""robomimic itself, in an environment of its own, opens our files, trains `ileed`, and rolls the result out."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from ileed import Demonstrations, write_robomimic
from ileed_lab.square.world import ENV_ARGS

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".cache" / "robomimic" / "bin" / "python"
SQUARE = {"object": 14, "robot0_eef_pos": 3, "robot0_eef_quat": 4, "robot0_gripper_qpos": 2}
LOAD = "import torch; from ileed.integrations import robomimic as plugin; plugin.register()\n"
BUILD = (  # an algorithm by robomimic's factory, without its train script
    LOAD + "import json\n"
    "import robomimic.utils.obs_utils as obs\n"
    "from robomimic.algo import algo_factory\n"
    "from robomimic.config import config_factory\n"
    f"shapes = { ({key: [size] for key, size in SQUARE.items()})!r}\n"
    "def build(name, dataset, **options):\n"
    "    config = config_factory(name)\n"
    "    config.train.data = dataset\n"
    "    config.algo.gmm.enabled = config.algo.rnn.enabled = True\n"
    "    config.algo.gmm.num_modes, config.algo.rnn.hidden_dim, config.algo.actor_layer_dims = 2, 16, ()\n"
    "    config.algo.optim_params.policy.learning_rate.initial = 1e-2\n"
    "    for option, value in options.items():\n"
    "        config.algo.ileed[option] = value\n"
    "    config.lock()\n"
    "    obs.initialize_obs_utils_with_config(config)\n"
    "    return algo_factory(name, config, shapes, 7, torch.device('cpu'))\n"
)

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.xdist_group("robomimic"),
    pytest.mark.skipif(
        not PYTHON.exists(), reason="robomimic has no environment here: run tests/robomimic_environment.sh"
    ),
]


def run(*arguments: str | Path, **options) -> subprocess.CompletedProcess[str]:
    """robomimic's Python, away from this test's environment, on one thread."""
    environment = {"OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin", "HOME": str(options.get("cwd", ROOT))}
    return subprocess.run([PYTHON, *arguments], capture_output=True, text=True, env=environment, timeout=400, **options)


def answer(code: str, **options) -> object:
    """What a program prints, as JSON, on its last line."""
    found = run("-c", code, **options)
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout.splitlines()[-1])


def two_operators(*, steps=40, episodes=30, seed=0, noise=(0.05, 0.3), size=(1.0, 1.0)) -> Demonstrations:
    """One policy, with noise and a size of actions of each operator. The last action is a gripper, without noise."""
    random = np.random.default_rng(seed)
    seen = random.uniform(-1, 1, size=(episodes * steps, 23)).astype(np.float32)
    who = np.repeat(np.arange(episodes) % 2, steps)
    errors = np.take(noise, who)[:, None] * random.normal(size=(len(seen), 6))
    moved = np.take(size, who)[:, None] * (0.5 * seen[:, :6] + errors)
    acted = np.concatenate([moved, np.sign(seen[:, 6:7])], axis=1)
    return Demonstrations(
        observations=seen,
        actions=acted.astype(np.float32),
        demonstrator=who,
        episode=np.repeat(np.arange(episodes), steps),
        names=("better_operator_1", "worse_operator_1"),
    )


def settings(folder: Path, **changes) -> Path:
    """A small network, a few epochs, and no rollouts unless asked for."""
    config = {
        "algo_name": "ileed",
        "experiment": {
            "name": "small",
            "validate": False,
            "logging": {"terminal_output_to_txt": True, "log_tb": False, "log_wandb": False},
            "save": {"enabled": True, "every_n_epochs": changes.get("epochs", 3)},
            "epoch_every_n_steps": changes.get("each", 50),
            "render_video": False,
            "rollout": changes.get("rollout", {"enabled": False}),
        },
        "train": {
            "output_dir": str(folder / "out"),
            "num_epochs": changes.get("epochs", 3),
            "batch_size": 32,
            "cuda": False,
        },
        "algo": {
            "optim_params": {"policy": {"learning_rate": {"initial": 1e-2}}},
            "rnn": {"enabled": changes.get("recurrent", True), "hidden_dim": 16},
            "actor_layer_dims": changes.get("layers", []),
            "gmm": {"enabled": True, "num_modes": 2},
            "ileed": {"skill_learning_rate": 1e-2},
        },
        "observation": {"modalities": {"obs": {"low_dim": list(SQUARE)}}},
    }
    path = folder / "ileed.json"
    path.write_text(json.dumps(config))
    return path


def train(folder: Path, dataset: Path, **changes) -> subprocess.CompletedProcess[str]:
    config = settings(folder, **changes)
    return run("-m", "ileed.integrations.robomimic", "--config", config, "--dataset", dataset, cwd=folder)


def logged(folder: Path, name: str) -> list[float]:
    """A quantity of every epoch, from robomimic's own log."""
    (log,) = (folder / "out").rglob("log.txt")
    return [float(value) for value in re.findall(rf'"{re.escape(name)}": (\S+?),?\n', log.read_text())]


def checkpoint(folder: Path) -> Path:
    return max((folder / "out").rglob("model_epoch_*.pth"), key=lambda path: path.stat().st_mtime)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("robomimic") / "two.hdf5"
    write_robomimic(two_operators(), path, observations=SQUARE, valid=[0, 1])
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory, dataset) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    found = train(folder, dataset)
    assert found.returncode == 0, found.stdout + found.stderr
    return folder


def test_robomimics_own_loader_opens_what_we_write(dataset):
    data = two_operators()
    found = answer(
        "import json, numpy\n"
        "import robomimic.utils.obs_utils as obs\n"
        "from robomimic.utils.dataset import SequenceDataset\n"
        f"keys = {list(SQUARE)!r}\n"
        "obs.initialize_obs_utils_with_obs_specs({'obs': {'low_dim': keys}})\n"
        "columns = ('actions', 'rewards', 'dones', 'demonstrator')\n"
        f"opened = SequenceDataset({str(dataset)!r}, keys, columns, seq_length=10, load_next_obs=False,\n"
        "                         hdf5_cache_mode='all', filter_by_attribute='worse_operator_1_train')\n"
        "last = opened[len(opened) - 1]\n"
        "print(json.dumps([len(opened), opened.demos, last['actions'].tolist(), last['obs']['object'].tolist(),\n"
        "                  last['demonstrator'].tolist(), numpy.shape(last['rewards'])]))\n"
    )
    steps, demos, actions, seen, who, rewards = found
    assert demos == [f"demo_{number}" for number in range(3, 30, 2)]
    assert steps == 14 * 40
    np.testing.assert_array_equal(actions, np.repeat(data.actions[-1:], 10, axis=0))  # the last step, padded
    np.testing.assert_array_equal(seen, np.repeat(data.observations[-1:, :14], 10, axis=0))
    assert who == [1] * 10
    assert rewards == [10, 1]  # absent, so zero


def test_robomimics_train_script_learns_the_policy_and_who_is_the_steadier(trained):
    loss = logged(trained, "Loss")
    assert len(loss) == 3
    assert loss[-1] < loss[0] - 1  # nats per action
    better = logged(trained, "Expertise/better_operator_1")
    worse = logged(trained, "Expertise/worse_operator_1")
    assert len(better) == 3
    assert better[-1] > worse[-1] + 0.1


def test_the_checkpoint_holds_expertise_and_acts_where_the_data_are_not(trained, dataset):
    dataset_now = dataset.with_name("moved.hdf5")
    dataset.rename(dataset_now)
    try:
        saved, actions = answer(
            LOAD + "import json, numpy, robomimic.utils.file_utils as files\n"
            "torch.manual_seed(0)\n"
            f"policy, saved = files.policy_from_checkpoint(ckpt_path={str(checkpoint(trained))!r}, device='cpu')\n"
            "policy.start_episode()\n"
            "seen = {'object': numpy.ones(14), 'robot0_eef_pos': numpy.ones(3), 'robot0_eef_quat': numpy.ones(4),\n"
            "        'robot0_gripper_qpos': numpy.ones(2)}\n"
            "acts = policy(ob=seen).tolist()\n"
            "kept = json.loads(saved['config'])['algo']['ileed']\n"
            "kept |= {name: values.tolist() for name, values in saved['model'].items() if 'policy' not in name}\n"
            "print(json.dumps([kept, acts]))\n"
        )
    finally:
        dataset_now.rename(dataset)
    assert saved["demonstrators"] == ["better_operator_1", "worse_operator_1"]
    assert saved["skill.logits"][0] > saved["skill.logits"][1]
    np.testing.assert_allclose(saved["centre"], two_operators().actions.mean(0), atol=1e-6)
    assert np.shape(saved["demonstrator.gain"]) == np.shape(saved["demonstrator.precision"]) == (1, 7, 2)
    assert len(actions) == 7


def test_with_perfect_operators_the_loss_is_robomimics_own(dataset):
    """Expertise one is behaviour cloning: the same weights and batch cost what robomimic's BC-RNN-GMM says."""
    ours, theirs = answer(
        BUILD + f"ours, theirs = (build(name, {str(dataset)!r}) for name in ('ileed', 'bc'))\n"
        "theirs.nets['policy'].load_state_dict(ours.nets['policy'].state_dict())\n"
        "ours.nets['skill'].logits.data.fill_(40.0)\n"
        "batch = {'obs': {key: torch.randn(8, 10, *shape) for key, shape in shapes.items()},\n"
        "         'actions': torch.randn(8, 10, 7), 'demonstrator': torch.ones(8, 10)}\n"
        "def loss(model):\n"
        "    model.set_train()\n"
        "    info = model.train_on_batch(model.process_batch_for_training(batch), 1, validate=True)\n"
        "    return info['losses']['action_loss'].item()\n"
        "print(json.dumps([loss(ours), loss(theirs)]))\n"
    )
    assert ours == pytest.approx(theirs, rel=1e-6)  # single precision, the same operations


def test_an_operator_of_small_actions_does_not_look_more_expert_by_default(tmp_path):
    """The worse operator, in actions 0.3 times as large, has the smaller absolute noise: 0.3 * 0.3 against 0.15."""
    path = tmp_path / "small.hdf5"
    write_robomimic(two_operators(noise=(0.15, 0.3), size=(1.0, 0.3)), path, observations=SQUARE)
    found = answer(
        BUILD + "from torch.utils.data import DataLoader\n"
        "from robomimic.utils.dataset import SequenceDataset\n"
        "def ratings(**options):\n"
        "    torch.manual_seed(0)\n"
        f"    model = build('ileed', {str(path)!r}, skill_learning_rate=1e-2, **options)\n"
        f"    data = SequenceDataset({str(path)!r}, list(shapes), ('actions', 'demonstrator'), seq_length=10,\n"
        "                           load_next_obs=False, hdf5_cache_mode='all')\n"
        "    model.set_train()\n"
        "    for epoch in range(12):\n"
        "        for batch in DataLoader(data, batch_size=32, shuffle=True):\n"
        "            info = model.train_on_batch(model.process_batch_for_training(batch), epoch)\n"
        "    log = model.log_info(info)\n"
        "    return [log[f'Expertise/{name}_operator_1'] for name in ('better', 'worse')]\n"
        "kinds = {}, {'demonstrator_model': 'signal'}, {'demonstrator_model': 'variance'}\n"
        "print(json.dumps([ratings(**options) for options in kinds]))\n"
    )
    (better, worse), by_signal, (precise, small) = found
    assert better > 2 * worse  # 4 in truth, the ratio of (signal-to-noise ratios)^2
    assert by_signal == [better, worse]  # the default
    assert small > precise  # the paper's model: (0.15 / 0.09)^2 in truth


def test_settings_that_contradict_the_demonstrator_model_are_refused(dataset):
    wrong = [{"demonstrator_model": "gain"}, {"scaled": "standard_deviation"}, {"exempt_actions": [7]}]
    found = answer(
        BUILD + "def refused(options):\n"
        "    try:\n"
        f"        build('ileed', {str(dataset)!r}, **options)\n"
        "    except plugin.SettingsError as error:\n"
        "        return next(iter(options)) if next(iter(options)) in str(error) else str(error)\n"
        f"print(json.dumps([refused(options) for options in {wrong!r}]))\n"
    )
    assert found[:2] == ["demonstrator_model", "scaled"]
    assert "dimension 7" in found[2]


def test_without_a_recurrent_network_it_trains_as_well(tmp_path, dataset):
    found = train(tmp_path, dataset, recurrent=False, layers=[32], epochs=2)
    assert found.returncode == 0, found.stdout + found.stderr
    loss = logged(tmp_path, "Loss")
    assert loss[-1] < loss[0]
    assert logged(tmp_path, "Expertise/better_operator_1")[-1] > logged(tmp_path, "Expertise/worse_operator_1")[-1]


def test_a_file_that_does_not_say_who_is_refused(tmp_path, dataset):
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "silent.hdf5"
    path.write_bytes(dataset.read_bytes())
    with h5py.File(path, "r+") as file:
        del file["data/demo_4/demonstrator"]
    found = train(tmp_path, path)
    assert found.returncode == 1
    (log,) = (tmp_path / "out").rglob("log.txt")
    assert "demo_4 of" in found.stdout + log.read_text()
    assert "does not say who demonstrated: ileed.label_robomimic" in found.stdout + log.read_text()


def test_a_policy_without_a_mixture_is_refused(tmp_path, dataset):
    config = settings(tmp_path)
    config.write_text(config.read_text().replace('"gmm": {"enabled": true', '"gmm": {"enabled": false'))
    found = run("-m", "ileed.integrations.robomimic", "--config", config, "--dataset", dataset, cwd=tmp_path)
    assert found.returncode == 1
    (log,) = (tmp_path / "out").rglob("log.txt")
    assert "set algo.gmm.enabled" in found.stdout + log.read_text()


@pytest.mark.skipif(
    not list(PYTHON.parents[1].glob("lib/*/site-packages/robosuite")),
    reason="robosuite is not beside robomimic: run tests/robomimic_environment.sh rollouts",
)
def test_robomimics_own_rollouts_score_the_policy_in_the_simulator(tmp_path):
    path = tmp_path / "square.hdf5"
    write_robomimic(two_operators(episodes=4), path, observations=SQUARE, env_args=ENV_ARGS)
    rollout = {"enabled": True, "n": 2, "horizon": 20, "rate": 1, "warmstart": 0}
    found = train(tmp_path, path, epochs=1, each=3, rollout=rollout)
    assert found.returncode == 0, found.stdout + found.stderr
    assert logged(tmp_path, "Horizon") == [20]  # a policy cloned from random operators does not finish early
    assert logged(tmp_path, "Success_Rate") == [0]
