"""lerobot's action chunking with transformers (ACT), by its own training script.

Its defaults are 100,000 batches of 8 for transformers of 512 numbers, made for images. Here states alone are seen, by
one layer of 64 numbers; 5 actions are learned at once, of which the first is taken; the learning rate is 1e-3 (theirs
is a hundredth of it) and there are 800 batches of 32, which take a minute on one core. Observations are not normalised,
and neither are actions that are vectors with a one at the action's place.
"""

from __future__ import annotations

import json
import sys

import numpy as np

from .answering import Array, Lesson, Trained, answer

STEPS, BATCH_SIZE, LEARNING_RATE, CHUNK = 800, 32, 1e-3, 5
SIZES = {
    "dim_model": 64,
    "n_heads": 4,
    "dim_feedforward": 128,
    "n_encoder_layers": 1,
    "n_vae_encoder_layers": 1,
    "latent_dim": 8,
}


def train(lesson: Lesson) -> Trained:
    """Run lerobot's training script, and load the policy that it saved with what goes before and after it."""
    import lerobot
    import torch
    from lerobot.policies.act.modeling_act import ACTPolicy
    from lerobot.policies.factory import make_pre_post_processors
    from lerobot.scripts.lerobot_train import main

    sys.argv = ["lerobot-train", *_options(lesson)]
    main()
    (saved,) = (lesson.folder / "run").glob(f"checkpoints/*{STEPS}/pretrained_model")
    policy = ACTPolicy.from_pretrained(saved)
    before, after = make_pre_post_processors(policy.config, pretrained_path=str(saved))
    policy.eval()
    own = policy.config.robot_state_feature.shape[0]

    def act(observations: Array, _: Array) -> Array:
        seen = torch.from_numpy(observations.astype(np.float32))
        policy.reset()  # it would otherwise take what is left of the last chunk
        with torch.no_grad():
            batch = before({"observation.state": seen[:, :own], "observation.environment_state": seen[:, own:]})
            return np.asarray(after(policy.select_action(batch)))

    settings = {"steps": STEPS, "batch_size": BATCH_SIZE, "learning_rate": LEARNING_RATE, "chunk_size": CHUNK}
    return Trained(act, f"lerobot {lerobot.__version__}", settings | SIZES)


def _options(lesson: Lesson) -> list[str]:
    normalised = {"STATE": "IDENTITY", "ENV": "IDENTITY", "VISUAL": "IDENTITY"}
    normalised["ACTION"] = "IDENTITY" if lesson.action_count else "MEAN_STD"
    policy = {"type": "act", "device": "cpu", "push_to_hub": "false", "chunk_size": CHUNK, "n_action_steps": 1, **SIZES}
    policy |= {"optimizer_lr": LEARNING_RATE, "normalization_mapping": json.dumps(normalised)}
    others = {
        "dataset.repo_id": "local/data",
        "dataset.root": lesson.data,
        "output_dir": lesson.folder / "run",
        "seed": lesson.seed,
        "steps": STEPS,
        "save_freq": STEPS,
        "batch_size": BATCH_SIZE,
        "num_workers": 0,
        "wandb.enable": "false",
    }
    return [f"--policy.{name}={value}" for name, value in policy.items()] + [
        f"--{name}={value}" for name, value in others.items()
    ]


if __name__ == "__main__":
    answer(train)
