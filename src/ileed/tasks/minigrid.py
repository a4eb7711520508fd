"""The paper's four MiniGrid tasks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, final, get_args

import numpy as np
import numpy.typing as npt

from ileed._torch import stream
from ileed.checking import at_least_one
from ileed.errors import IleedError, SettingsError, require
from ileed.tasks import (
    AbstractTask,
    Actor,
    Playthrough,
    Progress,
    World,
    in_lockstep,
    score_in_lockstep,
)
from ileed.tasks.drawing import OBSERVATION_SIZE, flat_view
from ileed.tasks.pool import Pool
from ileed.tasks.pretrained import Expert, expert_path

__all__ = [
    "ENVIRONMENTS",
    "Expert",
    "MiniGridTask",
    "episode_seed",
    "expert_path",
    "flat_with_mission",
    "make_environment",
]


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
        at_least_one(episodes=episodes, environments=environments)
        width = min(environments, episodes)
        rewards = np.zeros(episodes)
        # No block is shorter than the batch is wide, so that every row begins anew with each of them.
        for block in np.array_split(np.arange(episodes), max(1, episodes // max(BLOCK, width))):
            tell = partial(_tell, progress, int(block[0]), episodes)
            with closing(self._worlds([episode_seed(seed, episode) for episode in block.tolist()], width)) as worlds:
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
        worlds = [make_environment(self._name) for _ in seeds]

        def begin(environment: int, episode: int) -> tuple[World, npt.NDArray[np.uint8]]:
            world = worlds[environment]
            return world, world.reset(seed=episode_seed(seeds[environment], episode))[0]

        return in_lockstep(self, actor, begin, steps=steps, environments=len(seeds), progress=progress)


@final
class _Worlds:
    """What `Pool` is, in Python: one minigrid environment for each row, reset to the seed of every episode."""

    def __init__(self, name: str, seeds: Sequence[int], *, rows: int) -> None:
        self._worlds = [make_environment(name) for _ in range(rows)]
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


def episode_seed(seed: int, episode: int) -> int:
    """The seed to reset an environment with for its episode of that number, as `MiniGridTask` does."""
    # 31 bits, because other builds of the same environments take no longer seeds.
    return stream(seed, "episode", episode).initial_seed() & 0x7FFF_FFFF


def make_environment(name: str) -> Any:
    """A fresh minigrid environment, bare of wrappers, whose observation is the flat view and nothing else.

    `name` is one of `ENVIRONMENTS`. Reset it with `episode_seed` to see the episodes that `MiniGridTask` plays.
    """
    gymnasium = require("gymnasium", extra="minigrid")
    require("minigrid", extra="minigrid")
    world = gymnasium.make(ENVIRONMENTS[name].id, disable_env_checker=True).unwrapped
    world.gen_obs = flat_view(world, ENVIRONMENTS[name].id)
    return world
