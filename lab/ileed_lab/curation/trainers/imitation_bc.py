"""imitation's behaviour cloning (`imitation.algorithms.bc.BC`), with its own network, optimiser and batch size.

It has no default of how long. Here it is 3,000 batches, ten passes through 10,000 steps, whatever the number of steps:
fewer demonstrations are not learned from for a shorter time. Weights are those of a sampler that draws batches.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .answering import Array, Lesson, Trained, answer

BATCHES, BATCH_SIZE = 3_000, 32


def train(lesson: Lesson) -> Trained:
    """Clone the demonstrations that imitation's own loader reads from the folder."""
    import imitation
    import torch
    from gymnasium import spaces
    from imitation.algorithms import bc
    from imitation.data import rollout, serialize

    torch.manual_seed(lesson.seed)
    trajectories = serialize.load(lesson.data)
    steps = rollout.flatten_trajectories(trajectories)
    numbered = lesson.action_count > 0
    seen = spaces.Box(-np.inf, np.inf, steps.obs.shape[1:], np.float32)
    done = spaces.Discrete(lesson.action_count) if numbered else spaces.Box(-np.inf, np.inf, steps.acts.shape[1:])
    each = None if lesson.weights is None else np.repeat(lesson.weights, [len(one) for one in trajectories])
    clone = bc.BC(
        observation_space=seen,
        action_space=done,
        rng=np.random.default_rng(lesson.seed),
        demonstrations=steps if each is None else _drawn(steps, each),
        batch_size=BATCH_SIZE,
        device="cpu",
    )
    clone.train(n_batches=BATCHES, progress_bar=False)

    def act(observations: Array, _: Array) -> Array:
        return np.asarray(clone.policy.predict(observations.astype(np.float32), deterministic=True)[0])

    return Trained(act, f"imitation {imitation.__version__}", {"batches": BATCHES, "batch_size": BATCH_SIZE})


def _drawn(steps: Any, weights: Array) -> Any:
    """Batches of steps drawn by their weights, as imitation takes them in place of the steps."""
    from imitation.data import types
    from torch.utils.data import DataLoader, WeightedRandomSampler

    sampler = WeightedRandomSampler(weights.tolist(), len(weights), replacement=True)
    return DataLoader(
        steps, batch_size=BATCH_SIZE, sampler=sampler, collate_fn=types.transitions_collate_fn, drop_last=True
    )


if __name__ == "__main__":
    answer(train)
