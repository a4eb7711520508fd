"""robomimic's recurrent behaviour cloning (BC-RNN), by the function that its training script runs.

Its defaults are 200,000 batches of 100 windows of 10 steps for an LSTM of two layers of 400, and a learning rate of
1e-4. Here that rate is 1e-3, and there are no further layers. Where actions are continuous it is an LSTM of two layers
of 100 and 4,000 batches, with a mixture of Gaussians as its head, as in robomimic's study, and observations are
normalised in the file (robomimic 0.3's own option stops with a recurrent policy at a mismatch of shapes). Where they
are vectors with a one at the action's place, it is one layer of 64 and 1,000 batches, which take half a minute on one
core, with least squares, whose answer is the probability of each action.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .answering import Array, Lesson, Trained, answer

BATCHES_IN_EPOCH, BATCH_SIZE, HORIZON, LEARNING_RATE = 100, 100, 10, 1e-3
NUMBERED = {"epochs": 10, "hidden": 64, "layers": 1}
"""Where each action is a vector with a one at its place."""
CONTINUOUS = {"epochs": 40, "hidden": 100, "layers": 2}
KEY = "flat"  # of observations, as ileed writes them


def train(lesson: Lesson) -> Trained:
    """Let robomimic train and save, and load what it saved."""
    import robomimic
    import torch
    from robomimic.scripts.train import train as train_script
    from robomimic.utils.file_utils import policy_from_checkpoint

    scaling = (0.0, 1.0) if lesson.action_count else _normalise(lesson)
    config, asked = _config(lesson), torch.set_num_threads
    torch.set_num_threads = lambda nthreads: None  # robomimic takes two threads, whatever it is given
    try:
        train_script(config, torch.device("cpu"))
    finally:
        torch.set_num_threads = asked
    (saved,) = (lesson.folder / "run").rglob("model_epoch_*.pth")
    loaded, _ = policy_from_checkpoint(ckpt_path=str(saved), device=torch.device("cpu"))
    torch.manual_seed(lesson.seed)
    sizes = _sizes(lesson)
    settings: dict[str, Any] = {
        "epochs": sizes["epochs"],
        "batches_in_epoch": BATCHES_IN_EPOCH,
        "batch_size": BATCH_SIZE,
        "hidden": sizes["hidden"],
    }
    settings |= {"horizon": HORIZON, "learning_rate": LEARNING_RATE, "mixture": bool(config.algo.gmm.enabled)}
    if sizes["layers"] > 1:
        settings["layers"] = sizes["layers"]
    if not lesson.action_count:
        settings["normalised"] = True
    return Trained(_Rows(loaded.policy, *scaling), f"robomimic {robomimic.__version__}", settings)


def _sizes(lesson: Lesson) -> dict[str, int]:
    return NUMBERED if lesson.action_count else CONTINUOUS


def _normalise(lesson: Lesson) -> tuple[Array, Array]:
    """Shift and scale every observation of the file, which is the trainer's own; by what, (number,) each."""
    import h5py

    with h5py.File(lesson.data, "r+") as file:
        columns = [demo["obs"][KEY] for demo in file["data"].values()]
        rows = np.concatenate([column[()] for column in columns])
        shift, scale = rows.mean(0), rows.std(0) + 1e-3
        for column in columns:
            column[...] = (column[()] - shift) / scale
    return shift, scale


def _config(lesson: Lesson) -> Any:
    from robomimic.config import config_factory

    config, sizes = config_factory("bc"), _sizes(lesson)
    epochs = sizes["epochs"]
    with config.values_unlocked():
        config.experiment.name = "clone"
        config.experiment.validate = config.experiment.rollout.enabled = config.experiment.render_video = False
        config.experiment.logging.terminal_output_to_txt = config.experiment.logging.log_tb = False
        config.experiment.save.enabled, config.experiment.save.every_n_epochs = True, epochs
        config.experiment.epoch_every_n_steps = BATCHES_IN_EPOCH
        config.train.data, config.train.output_dir = str(lesson.data), str(lesson.folder / "run")
        config.train.dataset_keys = ["actions"]
        config.train.seed, config.train.cuda = lesson.seed, False
        config.train.num_epochs, config.train.batch_size, config.train.seq_length = epochs, BATCH_SIZE, HORIZON
        config.observation.modalities.obs.low_dim = [KEY]
        config.algo.optim_params.policy.learning_rate.initial = LEARNING_RATE
        config.algo.actor_layer_dims = ()
        config.algo.rnn.enabled, config.algo.rnn.horizon = True, HORIZON
        config.algo.rnn.hidden_dim, config.algo.rnn.num_layers = sizes["hidden"], sizes["layers"]
        config.algo.gmm.enabled = lesson.action_count == 0
    config.lock()
    return config


class _Rows:
    """Rows that begin their episodes at different times; each does what robomimic's rollouts do.

    robomimic resets the hidden state every `HORIZON` steps of an episode, for all rows of a batch at once. Here
    each row has its own count of steps.
    """

    def __init__(self, algorithm: Any, shift: Array | float, scale: Array | float) -> None:
        algorithm.set_eval()
        self._shift, self._scale = shift, scale
        self._network = algorithm.nets["policy"]
        self._steps = np.zeros(0, dtype=np.int64)
        self._memory: Any = None

    def __call__(self, observations: Array, starts: Array) -> Array:
        import torch

        rows = len(observations)
        empty = self._network.get_rnn_init_state(batch_size=rows, device=torch.device("cpu"))
        if len(self._steps) != rows:
            self._steps, self._memory = np.zeros(rows, dtype=np.int64), empty
        self._steps[starts] = 0
        resets = torch.from_numpy(self._steps % HORIZON == 0)[None, :, None]
        memory = tuple(torch.where(resets, new, old) for new, old in zip(empty, self._memory, strict=True))
        with torch.no_grad():
            normal = (observations - self._shift) / self._scale
            seen = {KEY: torch.from_numpy(normal.astype(np.float32))}
            actions, self._memory = self._network.forward_step(seen, goal_dict=None, rnn_state=memory)
        self._steps += 1
        return np.asarray(actions)


if __name__ == "__main__":
    answer(train)
