"""Training of the experts of the MiniGrid tasks, with stable-baselines3."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from ileed import RunError
from ileed.envs.abstract_task import Progress
from ileed.envs.minigrid import ENVIRONMENTS, OBSERVATION_SIZE, Expert, MiniGridTask, make_environment
from ileed.errors import at_least_one, require
from ileed.parallel.runtime import threads
from ileed_lab.expert_files import save_expert
from ileed_lab.stable_baselines import generators_restored, policy_layers

__all__ = ["PRETRAINING", "Pretraining", "pretrain"]


@dataclass(frozen=True, kw_only=True)
class Pretraining:
    """Settings of proximal policy optimisation (PPO).

    J. Schulman, F. Wolski, P. Dhariwal, A. Radford and O. Klimov. Proximal Policy Optimization Algorithms. 2017.
    <https://arxiv.org/abs/1707.06347>
    """

    timesteps: int
    """Steps to take in all environments together."""
    environments: int = 32
    """How many environments are stepped at once."""
    steps: int = 64
    """Steps taken in each environment between two updates."""
    batch: int = 256
    """Steps in one optimisation step."""
    epochs: int = 6
    """How often each step is used."""
    learning_rate: float = 1e-3
    """Falls linearly to zero."""
    entropy: float = 0.01
    """Weight of the policy's entropy; falls linearly to zero at four fifths of the training, until the policy is nearly
    deterministic: one that needs random actions to leave a corner stays there when it takes its most likely action."""
    discount: float = 0.99
    """Of a reward one step later."""
    hidden: tuple[int, int] = (32, 32)
    """Units in the two layers of the policy, and in those of the value function, which is not saved."""
    looks: int = 20
    """How often during training the most likely actions are scored; the best network of all is kept."""
    episodes: int = 200
    """Episodes of such a score; five times as many, and others, for the score that is saved with the expert."""


PRETRAINING = {
    "minigrid/empty": Pretraining(timesteps=150_000),
    "minigrid/obstacles": Pretraining(timesteps=600_000),
    "minigrid/lava": Pretraining(timesteps=300_000),
    "minigrid/unlock": Pretraining(timesteps=2_000_000),
}
"""The settings of the shipped experts."""


def pretrain(
    task: str,
    *,
    path: str | Path,
    seed: int = 0,
    settings: Pretraining | None = None,
    timesteps: int | None = None,
    progress: Progress | None = None,
) -> Expert:
    """Train an expert with stable-baselines3's PPO and write its policy network to `path`.

    `settings` and `timesteps` default to those of the shipped expert; with neither given, and the versions that the
    shipped expert states in its `origin`, the result equals it. Needs the extra `minigrid`.
    """
    scored = MiniGridTask(task, engine="minigrid")  # so that the shipped experts can be trained again
    chosen = settings or PRETRAINING[task]
    if timesteps is not None:
        chosen = replace(chosen, timesteps=timesteps)
    at_least_one(timesteps=chosen.timesteps)
    if not Path(path).absolute().parent.is_dir():
        raise RunError(
            f"there is no directory {Path(path).parent} to write the expert to; make it, or choose another path"
        )
    with generators_restored(), threads(1):
        found = _best_network(task, scored, chosen, seed, progress)
    if progress is not None:
        progress(chosen.timesteps, chosen.timesteps)
    rewards = scored.score(found, episodes=5 * chosen.episodes, seed=1)
    expert = Expert(
        found.layers,
        {
            "task": task,
            "environment": ENVIRONMENTS[task].id,
            "algorithm": "proximal policy optimisation (stable-baselines3)",
            "settings": json.dumps(asdict(chosen)),
            "seed": str(seed),
            "versions": json.dumps({name: version(name) for name in VERSIONS}),
            "reward": f"{rewards.mean():.4f} over {len(rewards)} episodes of seed 1, most likely actions",
        },
    )
    save_expert(expert, path)
    return expert


def _best_network(task: str, scored: MiniGridTask, chosen: Pretraining, seed: int, progress: Progress | None) -> Expert:
    """Train, score the network now and then, and return the best one."""
    callbacks = require("stable_baselines3.common.callbacks", package="ileed-lab")
    model = _ppo(task, chosen, seed)
    best: tuple[float, Expert] | None = None

    class Scoring(callbacks.BaseCallback):  # type: ignore[name-defined, misc]
        """Lowers the weight of the entropy, and keeps the best network."""

        looked = 0

        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            nonlocal best
            share = self.num_timesteps / chosen.timesteps
            model.ent_coef = chosen.entropy * max(0.0, 1 - share / 0.8)
            if progress is not None:
                progress(min(self.num_timesteps, chosen.timesteps), chosen.timesteps)
            if share * chosen.looks >= self.looked + 1:
                self.looked = int(share * chosen.looks)
                best = _better(best, _policy_network(model), scored, episodes=chosen.episodes)

    model.learn(chosen.timesteps, callback=Scoring())
    return _better(best, _policy_network(model), scored, episodes=chosen.episodes)[1]


def _ppo(task: str, chosen: Pretraining, seed: int) -> Any:
    vec_env = require("stable_baselines3.common.vec_env", package="ileed-lab")
    return require("stable_baselines3", package="ileed-lab").PPO(
        "MlpPolicy",
        vec_env.DummyVecEnv([partial(_flat_environment, task)] * chosen.environments),
        seed=seed,
        device="cpu",
        n_steps=chosen.steps,
        batch_size=chosen.batch,
        n_epochs=chosen.epochs,
        learning_rate=lambda remaining: chosen.learning_rate * remaining,
        ent_coef=chosen.entropy,
        gamma=chosen.discount,
        policy_kwargs={"net_arch": list(chosen.hidden)},
    )


VERSIONS = ("torch", "gymnasium", "minigrid", "stable-baselines3")


def _flat_environment(name: str) -> Any:
    spaces = require("gymnasium.spaces", extra="minigrid")
    environment = make_environment(name)
    environment.observation_space = spaces.Box(0, 255, (OBSERVATION_SIZE,), np.uint8)
    return environment


def _better(
    best: tuple[float, Expert] | None, expert: Expert, task: MiniGridTask, *, episodes: int
) -> tuple[float, Expert]:
    reward = float(task.score(expert, episodes=episodes, seed=0).mean())
    return best if best is not None and best[0] > reward else (reward, expert)


def _policy_network(model: Any) -> Expert:
    return Expert(policy_layers(model), {})
