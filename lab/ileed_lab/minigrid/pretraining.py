"""How an expert is trained in one of the MiniGrid tasks, with stable-baselines3."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ileed.checking import at_least_one
from ileed.errors import RunError, require
from ileed.runtime import threads
from ileed.tasks import Progress
from ileed.tasks.minigrid import ENVIRONMENTS, OBSERVATION_SIZE, Expert, MiniGridTask, make_environment
from ileed_lab.expert_files import save_expert
from ileed_lab.generators import generators_restored

__all__ = ["PRETRAINING", "Pretraining", "pretrain"]


@dataclass(frozen=True, kw_only=True)
class Pretraining:
    """Settings of proximal policy optimisation, as stable-baselines3 names them where no better word was found."""

    timesteps: int
    """Steps to take in all environments together."""
    environments: int = 32
    """How many environments are stepped at once."""
    steps: int = 64
    """Steps taken in each environment between two updates."""
    batch: int = 256
    """Steps in one gradient step."""
    epochs: int = 6
    """How often each step is used."""
    learning_rate: float = 1e-3
    """Falls linearly to zero."""
    entropy: float = 0.01
    """Reward for variety; falls linearly to zero at four fifths of the way, until the policy is all but certain: one
    that relies on chance to get out of a corner stays there when it takes its most likely action."""
    discount: float = 0.99
    """What a reward one step later is worth."""
    hidden: tuple[int, int] = (32, 32)
    """Units in the two layers of the policy, and in those of the value function that is not kept."""
    looks: int = 20
    """How often, on the way, the most likely actions are scored; the best network of all is kept."""
    episodes: int = 200
    """Episodes in such a look; five times as many, and others, in the score that is written down."""


PRETRAINING = {
    "minigrid/empty": Pretraining(timesteps=150_000),
    "minigrid/obstacles": Pretraining(timesteps=600_000),
    "minigrid/lava": Pretraining(timesteps=300_000),
    "minigrid/unlock": Pretraining(timesteps=2_000_000),
}
"""What the shipped experts were trained with."""


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

    `settings` defaults to those of the expert that ships, `timesteps` to theirs; with neither given, and the versions
    that the shipped expert names in its `origin`, its equal comes out. Needs the extra `minigrid`.
    """
    world = MiniGridTask(task, engine="minigrid")  # so that the shipped experts can be made again
    chosen = settings or PRETRAINING[task]
    if timesteps is not None:
        chosen = replace(chosen, timesteps=timesteps)
    at_least_one(timesteps=chosen.timesteps)
    if not Path(path).absolute().parent.is_dir():
        raise RunError(
            f"there is no directory {Path(path).parent} to write the expert to; make it, or choose another path"
        )
    baselines = require("stable_baselines3", package="ileed-lab")
    callbacks = require("stable_baselines3.common.callbacks", package="ileed-lab")
    vectorised = require("stable_baselines3.common.vec_env", package="ileed-lab")

    best: tuple[float, Expert] | None = None
    with generators_restored(), threads(1):
        model = baselines.PPO(
            "MlpPolicy",
            vectorised.DummyVecEnv([partial(_flat_environment, task)] * chosen.environments),
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

        class Watch(callbacks.BaseCallback):  # type: ignore[name-defined, misc]
            """Lets the entropy bonus fall, and keeps the best network."""

            looked = 0

            def _on_step(self) -> bool:
                return True

            def _on_rollout_start(self) -> None:
                nonlocal best
                taken = self.num_timesteps / chosen.timesteps
                model.ent_coef = chosen.entropy * max(0.0, 1 - taken / 0.8)
                if progress is not None:
                    progress(min(self.num_timesteps, chosen.timesteps), chosen.timesteps)
                if taken * chosen.looks >= self.looked + 1:
                    self.looked = int(taken * chosen.looks)
                    best = _better(best, _policy_network(model), world, episodes=chosen.episodes)

        model.learn(chosen.timesteps, callback=Watch())
        _, found = _better(best, _policy_network(model), world, episodes=chosen.episodes)
    if progress is not None:
        progress(chosen.timesteps, chosen.timesteps)
    rewards = world.score(found, episodes=5 * chosen.episodes, seed=1)
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


VERSIONS = ("torch", "gymnasium", "minigrid", "stable-baselines3")


def _flat_environment(name: str) -> Any:
    spaces = require("gymnasium.spaces", extra="minigrid")
    world = make_environment(name)
    world.observation_space = spaces.Box(0, 255, (OBSERVATION_SIZE,), np.uint8)
    return world


def _better(
    best: tuple[float, Expert] | None, expert: Expert, task: MiniGridTask, *, episodes: int
) -> tuple[float, Expert]:
    reward = float(task.score(expert, episodes=episodes, seed=0).mean())
    return best if best is not None and best[0] > reward else (reward, expert)


def _policy_network(model: Any) -> Expert:
    linear = [*model.policy.mlp_extractor.policy_net[::2], model.policy.action_net]
    return Expert(tuple((_copied(layer.weight), _copied(layer.bias)) for layer in linear), {})


def _copied(parameter: torch.Tensor) -> npt.NDArray[np.float32]:
    return parameter.detach().numpy().copy()
