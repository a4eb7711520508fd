"""The paper's four MiniGrid tasks, and how an expert is trained in one of them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, final, get_args

import numpy as np
import numpy.typing as npt
import torch

from ileed._torch import stream, threads
from ileed.errors import IleedError, RunError, SettingsError, require
from ileed.tasks import (
    AbstractTask,
    Actor,
    Playthrough,
    Progress,
    World,
    _at_least_one,
    in_lockstep,
    score_in_lockstep,
)
from ileed.tasks.drawing import OBSERVATION_SIZE, flat_view
from ileed.tasks.pool import Pool
from ileed.tasks.pretrained import Expert, expert_path

__all__ = ["ENVIRONMENTS", "Expert", "MiniGridTask", "Pretraining", "expert_path", "flat_with_mission", "pretrain"]


@dataclass(frozen=True, kw_only=True)
class Environment:
    """What is known of a MiniGrid environment without importing it."""

    id: str
    action_count: int
    mission: str


ENVIRONMENTS = {
    "minigrid/empty": Environment(
        id="MiniGrid-Empty-Random-6x6-v0", action_count=7, mission="get to the green goal square"
    ),
    "minigrid/obstacles": Environment(
        id="MiniGrid-Dynamic-Obstacles-Random-6x6-v0", action_count=3, mission="get to the green goal square"
    ),
    "minigrid/lava": Environment(
        id="MiniGrid-LavaGapS5-v0", action_count=7, mission="avoid the lava and get to the green goal square"
    ),
    "minigrid/unlock": Environment(id="MiniGrid-Unlock-v0", action_count=7, mission="open the door"),
}
"""The tasks by name, with the environment that each one is."""

Engine = Literal["envpool", "minigrid"]
"""What steps the environments: C++ or Python."""

BLOCK = 1_024
"""Episodes for which environments are there at once, at least; a pool takes some 10 KB for each."""


@final
@dataclass(frozen=True)
class MiniGridTask(AbstractTask):
    """A MiniGrid environment seen as the 147 numbers of its 7 x 7 x 3 view, in whole numbers of 8 bits.

    The observation is minigrid's own image, flattened; what is left out is the mission, which never varies within a
    task (`flat_with_mission` puts it back), and the compass. Playing needs the extra `minigrid`; the rest does not.

    `score` is many times faster with EnvPool, from the extra `fast`. Its environments obey the same rules, but draw
    their chance in another way: the same seed gives other episodes than with minigrid.
    """

    _name: str
    engine: Literal["auto"] | Engine = field(default="auto", kw_only=True)
    """What `score` steps environments with; 'auto' is EnvPool where it is installed. `play` always takes minigrid."""

    def __post_init__(self) -> None:
        if self._name not in ENVIRONMENTS:
            raise SettingsError(f"there is no MiniGrid task {self._name!r}; the tasks are {', '.join(ENVIRONMENTS)}")
        if self.engine not in ("auto", *get_args(Engine)):
            raise SettingsError(f"there is no engine {self.engine!r}; choose 'auto', 'envpool' or 'minigrid'")
        if self.engine == "envpool":
            require("envpool.minigrid", extra="fast")

    def __repr__(self) -> str:
        engine = "" if self.engine == "auto" else f", engine={self.engine!r}"
        return f"MiniGridTask(name={self._name!r}{engine})"

    @property
    def name(self) -> str:
        return self._name

    @property
    def observation_size(self) -> int:
        return OBSERVATION_SIZE

    @property
    def action_count(self) -> int:
        return ENVIRONMENTS[self._name].action_count

    @property
    def scoring_engine(self) -> Engine:
        """What `score` steps environments with, here and now."""
        if self.engine != "auto":
            return self.engine
        try:
            require("envpool.minigrid", extra="fast")
        except IleedError:
            return "minigrid"
        return "envpool"

    def score(
        self, actor: Actor, *, episodes: int, seed: int, environments: int = 256, progress: Progress | None = None
    ) -> npt.NDArray[np.float64]:
        """Sum of rewards of each of exactly `episodes` episodes, in the order of their numbers.

        Episode k starts from the reset seed of `(seed, k)`. An environment that has finished one takes the next that
        nobody has started, so that long episodes are counted like short ones; when none are left its row stays in the
        batch, unmoved, and its actions are not used. EnvPool works rewards out in 32 bits, so they may differ from
        minigrid's by 1e-7.
        """
        _at_least_one(episodes=episodes, environments=environments)
        width = min(environments, episodes)
        rewards = np.zeros(episodes)
        # No block is shorter than the batch is wide, so that every row begins anew with each of them.
        for block in np.array_split(np.arange(episodes), max(1, episodes // max(BLOCK, width))):
            tell = partial(_tell, progress, int(block[0]), episodes)
            with closing(self._worlds([_reset_seed(seed, episode) for episode in block.tolist()], width)) as worlds:
                rewards[block] = score_in_lockstep(self, actor, worlds, episodes=len(block), width=width, tell=tell)
        return rewards

    def _worlds(self, seeds: Sequence[int], width: int) -> Pool | _Worlds:
        if self.scoring_engine == "envpool":
            return Pool(ENVIRONMENTS[self._name].id, seeds, rows=width)
        return _Worlds(self._name, seeds, rows=width)

    def play(self, actor: Actor, *, steps: int, seeds: Sequence[int], progress: Progress | None = None) -> Playthrough:
        """Play `steps` steps in each of `len(seeds)` environments at once, episode after episode, and keep them all.

        Episode k of environment e starts from the reset seed of `(seeds[e], k)`. The last episode of an environment is
        cut where its steps are spent. Always plays in minigrid, so that a seed names the same data everywhere.
        """
        worlds = [_environment(self._name) for _ in seeds]

        def begin(environment: int, episode: int) -> tuple[World, npt.NDArray[np.uint8]]:
            world = worlds[environment]
            return world, world.reset(seed=_reset_seed(seeds[environment], episode))[0]

        return in_lockstep(self, actor, begin, steps=steps, environments=len(seeds), progress=progress)


@final
class _Worlds:
    """What `Pool` is, in Python: one minigrid environment for each row, reset to the seed of every episode."""

    def __init__(self, name: str, seeds: Sequence[int], *, rows: int) -> None:
        self._worlds = [_environment(name) for _ in range(rows)]
        self._seeds = seeds

    def begin(self, rows: npt.NDArray[np.int64], episodes: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        seen = np.empty((len(rows), OBSERVATION_SIZE), dtype=np.uint8)
        for place, (row, episode) in enumerate(zip(rows.tolist(), episodes.tolist(), strict=True)):
            seen[place], _ = self._worlds[row].reset(seed=self._seeds[episode])
        return seen

    def step(
        self, rows: npt.NDArray[np.int64], actions: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
        seen = np.empty((len(rows), OBSERVATION_SIZE), dtype=np.uint8)
        rewards, over = np.empty(len(rows)), np.empty(len(rows), dtype=bool)
        for place, (row, action) in enumerate(zip(rows.tolist(), actions.tolist(), strict=True)):
            seen[place], rewards[place], terminated, truncated, _ = self._worlds[row].step(action)
            over[place] = terminated or truncated
        return seen, rewards, over

    def close(self) -> None:
        for world in self._worlds:
            world.close()


def flat_with_mission(observations: npt.NDArray[np.uint8], task: str) -> npt.NDArray[np.uint8]:
    """The observations with the task's mission appended, as minigrid's `FlatObsWrapper` gives them: 2,835 numbers.

    The mission is written as 96 letters of 28 numbers each, one of them 1. It is the same in every observation of a
    task, so it tells a policy nothing; it is here because the paper's policies were given it. Does not need minigrid.
    """
    if task not in ENVIRONMENTS:
        raise SettingsError(f"there is no MiniGrid task {task!r}; the tasks are {', '.join(ENVIRONMENTS)}")
    if observations.shape[-1:] != (OBSERVATION_SIZE,):
        raise IleedError(
            f"these observations have shape {observations.shape}; their last axis must be the {OBSERVATION_SIZE} "
            "numbers of the view"
        )
    letters = np.zeros((96, 28), dtype=np.uint8)
    for place, letter in enumerate(ENVIRONMENTS[task].mission):
        letters[place, "abcdefghijklmnopqrstuvwxyz ,".index(letter)] = 1
    mission = np.broadcast_to(letters.ravel(), (*observations.shape[:-1], letters.size))
    return np.concatenate([observations, mission], axis=-1, dtype=np.uint8)


def _tell(progress: Progress | None, before: int, total: int, done: int) -> None:
    if progress is not None:
        progress(before + done, total)


def _reset_seed(seed: int, episode: int) -> int:
    # 31 bits, because other builds of the same environments take no longer seeds.
    return stream(seed, "episode", episode).initial_seed() & 0x7FFF_FFFF


def _environment(name: str) -> Any:
    """A fresh minigrid environment, bare of wrappers, whose observation is the flat view and nothing else."""
    gymnasium = require("gymnasium", extra="minigrid")
    require("minigrid", extra="minigrid")
    world = gymnasium.make(ENVIRONMENTS[name].id, disable_env_checker=True).unwrapped
    world.gen_obs = flat_view(world, ENVIRONMENTS[name].id)
    return world


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
    _at_least_one(timesteps=chosen.timesteps)
    if not Path(path).absolute().parent.is_dir():
        raise RunError(
            f"there is no directory {Path(path).parent} to write the expert to; make it, or choose another path"
        )
    baselines = require("stable_baselines3", extra="minigrid")
    callbacks = require("stable_baselines3.common.callbacks", extra="minigrid")
    vectorised = require("stable_baselines3.common.vec_env", extra="minigrid")

    best: tuple[float, Expert] | None = None
    with _generators_restored(), threads(1):
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
    expert.save(path)
    return expert


VERSIONS = ("torch", "gymnasium", "minigrid", "stable-baselines3")


def _flat_environment(name: str) -> Any:
    spaces = require("gymnasium.spaces", extra="minigrid")
    world = _environment(name)
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


@contextmanager
def _generators_restored() -> Iterator[None]:
    """Stable-baselines3 seeds every global generator; leave them as they were found."""
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002 (theirs, not ours)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002
