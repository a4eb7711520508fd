"""robomimic's half of `offline_side_by_side.py`: runs where robomimic is installed, and needs no ileed."""

from __future__ import annotations

import json
import sys
from typing import Any

import fork
import numpy as np
import torch

PLACE = "place"


def settings(method: str, common: dict[str, Any]) -> Any:
    """robomimic's config with what both sides share, and its own defaults elsewhere."""
    from robomimic.config import config_factory

    config = config_factory(method)
    with config.values_unlocked():
        above = config.algo.value_planner if method == "iris" else config.algo
        seen = config.observation.value_planner if method == "iris" else config.observation
        planner, actor, hidden = above.planner, config.algo.actor, common["hidden"]
        planner.optim_params.goal_network.learning_rate.initial = common["learning_rate"]
        planner.vae.kl_weight = common["planner_divergence_weight"]
        planner.vae.encoder_layer_dims = planner.vae.decoder_layer_dims = planner.vae.prior_layer_dims = hidden
        prior = planner.vae.prior
        prior.learn = prior.is_conditioned = prior.use_gmm = prior.gmm_learn_weights = True
        actor.optim_params.policy.learning_rate.initial = common["learning_rate"]
        actor.rnn.hidden_dim, actor.rnn.num_layers, actor.actor_layer_dims = common["policy_hidden"], 1, ()
        of_planner, of_actor = seen.planner.modalities, config.observation.actor.modalities
        of_planner.obs.low_dim = of_planner.subgoal.low_dim = of_actor.obs.low_dim = [PLACE]
        # HBC gives its actor the subgoal's name at a place where nothing reads it; without this line it would see none.
        of_actor.goal.low_dim = [PLACE]
        if method == "iris":
            _value(above.value, common)
            seen.value.modalities.obs.low_dim = [PLACE]
    return config


def _value(value: Any, common: dict[str, Any]) -> None:
    for part in (value.optim_params.critic, value.optim_params.action_sampler):
        part.learning_rate.initial = common["learning_rate"]
    value.discount, value.target_tau = common["discount"], common["target_rate"]
    value.critic.layer_dims, value.critic.num_action_samples = common["hidden"], common["samples"]
    value.critic.num_action_samples_rollout = common["samples"]
    vae = value.action_sampler.vae
    vae.latent_dim, vae.kl_weight = common["value_latent"], common["value_divergence_weight"]
    vae.encoder_layer_dims = vae.decoder_layer_dims = common["hidden"]


def windows(data: dict[str, Any], length: int) -> dict[str, Any]:
    """Every stretch of so many steps, the last one of an episode repeated, as robomimic's loader has them."""
    lengths = np.bincount(data["episode"])
    last = np.repeat(np.cumsum(lengths) - 1, lengths)
    index = np.minimum(np.arange(len(last))[:, None] + np.arange(length), last[:, None])
    moved = np.clip(data["observations"] + fork.STRIDE * data["actions"], -1, 1).astype(np.float32)
    columns = {name: data[name][index].astype(np.float32) for name in ("actions", "rewards")}
    columns["dones"] = data["terminals"][index].astype(np.float32)
    batches = {name: torch.from_numpy(values) for name, values in columns.items()}
    places = {"obs": data["observations"][index], "next_obs": moved[index]}
    return batches | {name: {PLACE: torch.from_numpy(values)} for name, values in places.items()}


def won(method: str, common: dict[str, Any], data: dict[str, Any], seed: int) -> int:
    """How many episodes robomimic's algorithm brings to the goal."""
    import robomimic.utils.obs_utils as observations
    from robomimic.algo import algo_factory

    torch.manual_seed(seed)
    chance = np.random.default_rng(seed)
    config = settings(method, common)
    observations.initialize_obs_utils_with_config(config)
    algorithm = algo_factory(method, config, {PLACE: [2]}, 2, torch.device("cpu"))
    everything = windows(data, config.train.seq_length)
    algorithm.set_train()
    for _ in range(common["hierarchy_steps"]):
        rows = torch.from_numpy(chance.integers(len(data["episode"]), size=common["batch_size"]))
        batch = {
            name: {key: part[rows] for key, part in column.items()} if isinstance(column, dict) else column[rows]
            for name, column in everything.items()
        }
        algorithm.train_on_batch(algorithm.process_batch_for_training(batch), epoch=1)
    algorithm.set_eval()
    algorithm.reset()

    def act(seen: Any, _: Any) -> Any:
        with torch.no_grad():
            return algorithm.get_action({PLACE: torch.from_numpy(seen.astype(np.float32))}).numpy()

    return int(fork.successes(act, **common["play"]).sum())


def main() -> None:
    """Read settings as JSON from the first argument, write successes as JSON to standard output."""
    import robomimic

    common = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    data = fork.demonstrations(**common["data"])
    found = {method: [won(method, common, data, seed) for seed in common["seeds"]] for method in ("hbc", "iris")}
    sys.stdout.write("\n" + json.dumps({"successes": found, "version": robomimic.__version__}))


if __name__ == "__main__":
    main()
