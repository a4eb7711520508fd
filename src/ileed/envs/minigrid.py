"""The paper's four MiniGrid tasks, their engines, and the experts that ship for them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple, final, get_args

import numpy as np
import numpy.typing as npt
from safetensors import safe_open

from ileed.envs.abstract_task import (
    AbstractTask,
    Actor,
    Array,
    Environments,
    Flags,
    Numbers,
    Playthrough,
    Progress,
    Stepped,
    episode_seed,
    open_rows,
    play_rows,
    score_rows,
)
from ileed.errors import IleedError, SettingsError, at_least_one, require

__all__ = ["ENVIRONMENTS", "Expert", "MiniGridTask", "Pool", "expert_path", "make_environment", "shipped_expert"]


class Environment(NamedTuple):
    """A MiniGrid environment, described without importing it."""

    id: str
    action_count: int


ENVIRONMENTS = {
    "minigrid/empty": Environment("MiniGrid-Empty-Random-6x6-v0", action_count=7),
    "minigrid/obstacles": Environment("MiniGrid-Dynamic-Obstacles-Random-6x6-v0", action_count=3),
    "minigrid/lava": Environment("MiniGrid-LavaGapS5-v0", action_count=7),
    "minigrid/unlock": Environment("MiniGrid-Unlock-v0", action_count=7),
}
"""The environment of each task."""

Engine = Literal["envpool", "minigrid"]  # which steps the environments: C++ or Python
OBSERVATION_SIZE = 7 * 7 * 3
BLOCK = 1_024  # least number of episodes in a pool, which takes about 10 KB for each
NOTHING = (1, 0, 0)  # minigrid's encoding of an empty cell
VIEWS = 100_000  # cached at most, in about 50 MB


@final
@dataclass(frozen=True)
class MiniGridTask(AbstractTask):
    """A MiniGrid environment whose observation is its 7 x 7 x 3 image, flattened, without mission and direction.

    Playing needs the extra `minigrid`. `score` is many times faster with EnvPool, from the extra `fast`: the same rules
    with another random generator, so a seed gives other episodes than minigrid's. `play` always uses minigrid, so that
    a seed gives the same data everywhere.
    """

    name: str
    engine: Literal["auto"] | Engine = field(default="auto", kw_only=True, repr=False)
    """Steps the environments of `score`; "auto" is EnvPool if it is installed."""
    observation_size = OBSERVATION_SIZE

    def __post_init__(self) -> None:
        if self.name not in ENVIRONMENTS:
            raise SettingsError(f"there is no MiniGrid task {self.name!r}; the tasks are {', '.join(ENVIRONMENTS)}")
        if self.engine not in ("auto", *get_args(Engine)):
            raise SettingsError(f"there is no engine {self.engine!r}; choose 'auto', 'envpool' or 'minigrid'")
        if self.engine == "envpool":
            require("envpool.minigrid", extra="fast")
        object.__setattr__(self, "action_count", ENVIRONMENTS[self.name].action_count)

    @property
    def scoring_engine(self) -> Engine:
        """The engine that `score` uses."""
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
        at_least_one(episodes=episodes, environments=environments)
        width, rewards = min(environments, episodes), []
        # no block has fewer episodes than rows, so that every row starts one
        for block in np.array_split(np.arange(episodes), max(1, episodes // max(BLOCK, width))):
            tell = None if progress is None else lambda done, _, b=int(block[0]), p=progress: p(b + done, episodes)
            with self._environments(seed, block, width) as rows:
                rewards.append(score_rows(self, actor, rows, block, width, tell))
        return np.concatenate(rewards)

    def _environments(self, seed: int, episodes: Numbers, width: int) -> AbstractContextManager[Environments]:
        if self.scoring_engine == "minigrid":
            return open_rows(partial(make_environment, self.name, {}), [seed] * width)
        seeds = [episode_seed(seed, episode) for episode in episodes.tolist()]
        return closing(Pool(ENVIRONMENTS[self.name].id, seeds, rows=width, first=int(episodes[0])))

    def play(self, actor: Actor, *, steps: int, seeds: Sequence[int], progress: Progress | None = None) -> Playthrough:
        with open_rows(partial(make_environment, self.name, {}), seeds) as rows:
            return play_rows(self, actor, rows, steps, len(seeds), progress)


def make_environment(name: str, views: dict[bytes, Array] | None = None) -> Any:
    """An unwrapped environment of `ENVIRONMENTS` whose observation is the flat image.

    Rendering takes 90% of minigrid's time and states recur, so images are cached by state in `views`, which
    environments of the same name may share.
    """
    drawn: dict[bytes, Array] = {} if views is None else views
    gymnasium = require("gymnasium", extra="minigrid")
    require("minigrid", extra="minigrid")
    world = gymnasium.make(ENVIRONMENTS[name].id, disable_env_checker=True).unwrapped
    draw = world.gen_obs

    def view() -> Array:
        things = [NOTHING if thing is None else thing.encode() for thing in (world.carrying, *world.grid.grid)]
        state = bytes([*world.agent_pos, world.agent_dir, *chain.from_iterable(things)])
        if state not in drawn:
            if len(drawn) >= VIEWS:
                drawn.clear()
            drawn[state] = draw()["image"].ravel()
        return drawn[state].copy()

    world.gen_obs = view
    return world


@final
class Pool:
    """Episodes of a MiniGrid environment, numbered from `first`, each in its own C++ environment of EnvPool.

    EnvPool seeds an environment when it is made, not when it is reset, so each environment plays a single episode. One
    thread besides the caller's steps them; it ends with `close`.
    """

    def __init__(self, environment: str, seeds: Sequence[int], *, rows: int, first: int = 0) -> None:
        envpool = require("envpool", extra="fast")
        self._pool: Any = envpool.make_gymnasium(environment, num_envs=len(seeds), seed=list(seeds), num_threads=1)
        self._seen_first = self._pool.reset()[0]["image"].reshape(len(seeds), -1)
        self._playing, self._first = np.zeros(rows, dtype=np.int32), first

    def begin(self, rows: Numbers, episodes: Numbers) -> Array:
        self._playing[rows] = episodes - self._first
        return np.asarray(self._seen_first[self._playing[rows]])

    def step(self, rows: Numbers, actions: Array) -> Stepped:
        episodes = self._playing[rows]
        # stated in full, because EnvPool would copy every seed at every step to infer the rest
        step = {"action": actions.astype(np.int32), "env_id": episodes, "players": {"env_id": episodes}}
        seen, rewards, terminated, truncated, _ = self._pool.step(step)
        return seen["image"].reshape(len(rows), -1), rewards, terminated, truncated

    def close(self) -> None:
        """End the thread, which lives as long as the pool."""
        self._pool = None


@final
@dataclass(frozen=True, eq=False)
class Expert:
    """A trained policy: an MLP with tanh layers, as an `Actor` that needs only numpy."""

    layers: tuple[tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]], ...]  # weight (out, in) and bias (out,)
    origin: dict[str, str]  # task, settings, seed, versions and mean reward

    def __repr__(self) -> str:
        sizes = [weight.shape[1] for weight, _ in self.layers] + [self.action_count]
        return f"Expert({self.origin.get('task', 'task unknown')}, {' x '.join(map(str, sizes))})"

    @property
    def action_count(self) -> int:
        """The number of actions."""
        return len(self.layers[-1][1])

    def __call__(self, observations: Array, starts: Flags | None = None) -> Numbers:
        """(env,) most likely actions for (env, 147) observations; the first of ties."""
        return np.asarray(self._scores(observations).argmax(axis=-1))

    def probabilities(self, observations: Array) -> npt.NDArray[np.float64]:
        """(env, action) probabilities for (env, 147) observations."""
        scores = self._scores(observations).astype(np.float64)
        likelihoods = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return np.asarray(likelihoods / likelihoods.sum(axis=-1, keepdims=True))

    def _scores(self, observations: Array) -> npt.NDArray[np.float32]:
        values = np.asarray(observations, dtype=np.float32)
        *hidden, (weight, bias) = self.layers
        for hidden_weight, hidden_bias in hidden:
            values = np.tanh(values @ hidden_weight.T + hidden_bias)
        return np.asarray(values @ weight.T + bias)


def expert_path(task: str) -> Path:
    """The file of the expert that ships for a task."""
    return Path(__file__).parent / "experts" / f"{task.replace('/', '-')}.safetensors"


def shipped_expert(task: str) -> Expert:
    """The expert that ships for one of `ENVIRONMENTS`."""
    with safe_open(expert_path(task), framework="numpy") as file:
        numbers = range(len(file.keys()) // 2)
        layers = tuple((file.get_tensor(f"{n}.weight"), file.get_tensor(f"{n}.bias")) for n in numbers)
        return Expert(layers, json.loads(file.metadata()["origin"]))
