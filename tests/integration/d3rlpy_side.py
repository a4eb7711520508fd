"""d3rlpy's half of `offline_side_by_side.py`: runs where d3rlpy is installed and knows nothing of ileed."""

from __future__ import annotations

import json
import sys
from typing import Any

import fork
import numpy as np


def learner(method: str, common: dict[str, Any]) -> Any:
    """d3rlpy's BCQ or CQL with what both sides share, and its own defaults elsewhere."""
    import d3rlpy

    encoder = d3rlpy.models.VectorEncoderFactory(hidden_units=common["hidden"])
    shared = {
        "observation_scaler": d3rlpy.preprocessing.StandardObservationScaler(),
        "action_scaler": d3rlpy.preprocessing.MinMaxActionScaler(),
        "actor_encoder_factory": encoder,
        "critic_encoder_factory": encoder,
        "actor_learning_rate": common["learning_rate"],
        "critic_learning_rate": common["learning_rate"],
        "batch_size": common["batch_size"],
        "gamma": common["discount"],
        "tau": common["target_rate"],
        "n_action_samples": common["samples"],
    }
    if method == "bcq":
        return d3rlpy.algos.BCQConfig(
            imitator_encoder_factory=encoder,
            imitator_learning_rate=common["learning_rate"],
            action_flexibility=common["perturbation"],
            **shared,
        ).create()
    return d3rlpy.algos.CQLConfig(
        initial_temperature=common["entropy_weight"],
        temp_learning_rate=common["learning_rate"],
        initial_alpha=common["conservative_weight"],
        alpha_learning_rate=0.0,
        alpha_threshold=0.0,
        conservative_weight=1.0,
        **shared,
    ).create()


def main() -> None:
    """Read settings as JSON from the first argument, write successes as JSON to standard output."""
    import d3rlpy

    common = json.loads(sys.argv[1])
    data = fork.demonstrations(**common["data"])
    last = np.append(data["episode"][1:] != data["episode"][:-1], True)
    columns = {name: data[name] for name in ("observations", "actions", "rewards")}
    ended = data["terminals"].astype(np.float32)
    dataset = d3rlpy.dataset.MDPDataset(**columns, terminals=ended, timeouts=last.astype(np.float32) * (1 - ended))
    found: dict[str, list[int]] = {"bcq": [], "cql": []}
    for method, counts in found.items():
        for seed in common["seeds"]:
            d3rlpy.seed(seed)
            algorithm = learner(method, common)
            algorithm.fit(
                dataset,
                n_steps=common["steps"],
                n_steps_per_epoch=common["steps"],
                logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
                show_progress=False,
            )
            won = fork.successes(
                lambda seen, starts, algorithm=algorithm: algorithm.predict(seen.astype(np.float32)),
                **common["play"],
            )
            counts.append(int(won.sum()))
    sys.stdout.write("\n" + json.dumps({"successes": found, "version": d3rlpy.__version__}))


if __name__ == "__main__":
    main()
