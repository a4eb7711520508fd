"""The paper's four MiniGrid tasks, the experts trained in them, and how they were trained."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self, final

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as safetensors_bytes

from ileed._torch import stream, threads
from ileed.errors import IleedError, RunError, SettingsError, require
from ileed.tasks import AbstractTask, Actor, Playthrough, Progress, answered

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

VIEW = 7
OBSERVATION_SIZE = VIEW * VIEW * 3


@final
@dataclass(frozen=True)
class MiniGridTask(AbstractTask):
    """A MiniGrid environment seen as the 147 numbers of its 7 x 7 x 3 view, in whole numbers of 8 bits.

    The observation is minigrid's own image, flattened; what is left out is the mission, which never varies within a
    task (`flat_with_mission` puts it back), and the compass. Playing needs the extra `minigrid`; the rest does not.
    """

    _name: str

    def __post_init__(self) -> None:
        if self._name not in ENVIRONMENTS:
            raise SettingsError(f"there is no MiniGrid task {self._name!r}; the tasks are {', '.join(ENVIRONMENTS)}")

    def __repr__(self) -> str:
        return f"MiniGridTask(name={self._name!r})"

    @property
    def name(self) -> str:
        return self._name

    @property
    def observation_size(self) -> int:
        return OBSERVATION_SIZE

    @property
    def action_count(self) -> int:
        return ENVIRONMENTS[self._name].action_count

    def score(
        self, actor: Actor, *, episodes: int, seed: int, environments: int = 64, progress: Progress | None = None
    ) -> npt.NDArray[np.float64]:
        """Sum of rewards of each of exactly `episodes` episodes, in the order of their numbers.

        Episode k starts from the reset seed of `(seed, k)`. An environment that has finished one takes the next that
        nobody has started, so that long episodes are counted like short ones; when none are left its row stays in the
        batch, unmoved, and its actions are not used.
        """
        _at_least_one(episodes=episodes, environments=environments)
        width = min(environments, episodes)
        worlds = [_environment(self._name) for _ in range(width)]
        playing: list[int | None] = list(range(width))
        observations = np.stack([world.reset(seed=_reset_seed(seed, row))[0] for row, world in enumerate(worlds)])
        starts = np.ones(width, dtype=bool)
        rewards = np.zeros(episodes)
        begun, done = width, 0
        while done < episodes:
            actions = answered(actor, self, observations, starts)
            starts[:] = False
            for row, episode in enumerate(playing):
                if episode is None:
                    continue
                observations[row], reward, terminated, truncated, _ = worlds[row].step(actions[row].item())
                rewards[episode] += reward
                if not (terminated or truncated):
                    continue
                done += 1
                playing[row] = begun if begun < episodes else None
                if begun < episodes:
                    observations[row] = worlds[row].reset(seed=_reset_seed(seed, begun))[0]
                    starts[row] = True
                    begun += 1
                if progress is not None:
                    progress(done, episodes)
        return rewards

    def play(self, actor: Actor, *, steps: int, seeds: Sequence[int], progress: Progress | None = None) -> Playthrough:
        """Play `steps` steps in each of `len(seeds)` environments at once, episode after episode, and keep them all.

        Episode k of environment e starts from the reset seed of `(seeds[e], k)`. The last episode of an environment is
        cut where its steps are spent.
        """
        _at_least_one(steps=steps, environments=len(seeds))
        width = len(seeds)
        worlds = [_environment(self._name) for _ in seeds]
        now = np.stack([world.reset(seed=_reset_seed(own, 0))[0] for world, own in zip(worlds, seeds, strict=True)])
        starts = np.ones(width, dtype=bool)
        observations = np.empty((width, steps, OBSERVATION_SIZE), dtype=now.dtype)
        actions = np.empty((width, steps), dtype=np.int64)
        rewards = np.empty((width, steps), dtype=np.float32)
        terminals = np.zeros((width, steps), dtype=bool)
        episode = np.zeros((width, steps), dtype=np.int64)
        begun = np.zeros(width, dtype=np.int64)
        for step in range(steps):
            observations[:, step] = now
            chosen = answered(actor, self, now, starts)
            actions[:, step] = chosen
            episode[:, step] = begun
            starts[:] = False
            for row, world in enumerate(worlds):
                now[row], rewards[row, step], terminals[row, step], truncated, _ = world.step(chosen[row].item())
                if terminals[row, step] or truncated:
                    begun[row] += 1
                    now[row] = world.reset(seed=_reset_seed(seeds[row], int(begun[row])))[0]
                    starts[row] = True
            if progress is not None:
                progress(step + 1, steps)
        first_episode = np.concatenate([[0], np.cumsum(episode[:, -1] + 1)[:-1]])
        return Playthrough(
            observations=observations.reshape(width * steps, OBSERVATION_SIZE),
            actions=actions.ravel(),
            rewards=rewards.ravel(),
            terminals=terminals.ravel(),
            episode=(episode + first_episode[:, None]).ravel(),
            environment=np.repeat(np.arange(width), steps),
        )


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


def _at_least_one(**counts: int) -> None:
    for what, count in counts.items():
        if count < 1:
            raise SettingsError(f"{what}={count}, but there must be at least one")


def _reset_seed(seed: int, episode: int) -> int:
    # 31 bits, because other builds of the same environments take no longer seeds.
    return stream(seed, "episode", episode).initial_seed() & 0x7FFF_FFFF


def _environment(name: str) -> Any:
    """A fresh minigrid environment, bare of wrappers, whose observation is the flat view and nothing else."""
    gymnasium = require("gymnasium", extra="minigrid")
    require("minigrid", extra="minigrid")
    world = gymnasium.make(ENVIRONMENTS[name].id, disable_env_checker=True).unwrapped
    world.gen_obs = partial(_view, world, _drawing(name), world.gen_obs_grid)
    return world


@dataclass(frozen=True)
class _Drawing:
    """What it takes to draw the view of one task quickly: shared by all its environments, filled by use."""

    byte: dict[tuple[int, int, int], int]
    """Kind, colour and state of a thing, packed into one number below 256."""
    triple: npt.NDArray[np.uint8]
    """The same, unpacked, (byte, 3)."""
    outside: bytes
    """What lies beyond the grid."""
    cells: npt.NDArray[np.int64]
    """The grid cell at each place of the view, (direction, x, y, place); one past the last cell is outside."""
    hidden: dict[bytes, npt.NDArray[np.bool_]]
    """Which places cannot be seen, for every view met so far, where walls hide what is behind them."""


EMPTY = 1
UNDERFOOT = VIEW * (VIEW // 2) + VIEW - 1
"""The place in the view where the agent stands; it shows what is carried."""


def _view(world: Any, drawing: _Drawing, reference: Callable[[], Any]) -> npt.NDArray[np.uint8]:
    """What minigrid's `gen_obs()["image"].ravel()` gives, in a twentieth of the time.

    Nine tenths of minigrid's time go into drawing: it copies the grid, turns it and encodes it thing by thing. Here a
    cell is a byte and the view a lookup of 49 of them by position and direction. Which places are hidden is worked out
    by minigrid itself when such a view first occurs, then remembered.
    """
    byte = drawing.byte
    cells = bytes([EMPTY if thing is None else byte[thing.encode()] for thing in world.grid.grid])
    x, y = world.agent_pos
    view = np.frombuffer(cells + drawing.outside, dtype=np.uint8)[drawing.cells[world.agent_dir, x, y]]
    hidden = None
    if not world.see_through_walls:
        key = view.tobytes()
        if key not in drawing.hidden:
            drawing.hidden[key] = ~reference()[1].ravel()
        hidden = drawing.hidden[key]
    view[UNDERFOOT] = EMPTY if world.carrying is None else byte[world.carrying.encode()]
    image = drawing.triple[view]
    if hidden is not None:
        image[hidden] = 0
    return np.asarray(image.ravel())


@cache
def _drawing(name: str) -> _Drawing:
    constants = require("minigrid.core.constants", extra="minigrid")
    kinds, colours, states = constants.OBJECT_TO_IDX, constants.COLOR_TO_IDX, constants.STATE_TO_IDX
    triples = [(k, c, s) for s in range(len(states)) for c in range(len(colours)) for k in range(len(kinds))]
    byte = {triple: number for number, triple in enumerate(triples)}
    assert len(triples) <= 256
    assert byte[(kinds["empty"], 0, 0)] == EMPTY
    return _Drawing(
        byte=byte,
        triple=np.array(triples, dtype=np.uint8),
        outside=bytes([byte[(kinds["wall"], colours["grey"], 0)]]),
        cells=_cells_in_view(ENVIRONMENTS[name].id),
        hidden={},
    )


def _cells_in_view(environment: str) -> npt.NDArray[np.int64]:
    """Found by letting minigrid cut and turn a grid whose cells hold their own numbers."""
    world = require("gymnasium", extra="minigrid").make(environment, disable_env_checker=True).unwrapped
    width, height = world.grid.width, world.grid.height
    numbered = type(world.grid)(width, height)
    numbered.grid = list(range(width * height))
    cells = np.empty((4, width, height, VIEW * VIEW), dtype=np.int64)
    for direction, x, y in np.ndindex(4, width, height):
        world.agent_pos, world.agent_dir = (x, y), direction
        left, top, _, _ = world.get_view_exts()
        view = numbered.slice(left, top, VIEW, VIEW)
        for _ in range(direction + 1):
            view = view.rotate_left()
        places = [view.get(i, j) for i in range(VIEW) for j in range(VIEW)]
        cells[direction, x, y] = [place if isinstance(place, int) else width * height for place in places]
    return cells


@final
@dataclass(frozen=True, eq=False)
class Expert:
    """A trained policy: two layers of tanh and a score for every action; an `Actor` that takes the most likely action.

    Reads observations of 147 numbers as they are. Runs on numpy alone.
    """

    layers: tuple[tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]], ...]
    """Weight (out, in) and bias (out,) of each layer, the last one giving the actions' scores."""
    origin: dict[str, str]
    """Where it comes from: task, settings, seed, versions, and the reward that it reached."""

    def __repr__(self) -> str:
        sizes = [weight.shape[1] for weight, _ in self.layers] + [self.action_count]
        return f"Expert({self.origin.get('task', 'task unknown')}, {' x '.join(map(str, sizes))})"

    @property
    def action_count(self) -> int:
        """How many actions there are."""
        return len(self.layers[-1][1])

    def __call__(
        self, observations: npt.NDArray[Any], starts: npt.NDArray[np.bool_] | None = None
    ) -> npt.NDArray[np.int64]:
        """The most likely action (env,) for observations (env, 147); of equals the first."""
        return np.asarray(self._scores(observations).argmax(axis=-1))

    def probabilities(self, observations: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """The probability of every action, (env, action), for observations (env, 147)."""
        scores = self._scores(observations).astype(np.float64)
        likelihoods = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return np.asarray(likelihoods / likelihoods.sum(axis=-1, keepdims=True))

    def _scores(self, observations: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        values = np.asarray(observations, dtype=np.float32)
        *hidden, (weight, bias) = self.layers
        for hidden_weight, hidden_bias in hidden:
            values = np.tanh(values @ hidden_weight.T + hidden_bias)
        return np.asarray(values @ weight.T + bias)

    def save(self, path: str | Path) -> None:
        """Write the weights and their origin to one safetensors file."""
        tensors = {}
        for number, (weight, bias) in enumerate(self.layers):
            tensors[f"{number}.weight"], tensors[f"{number}.bias"] = weight, bias
        content = safetensors_bytes(tensors, metadata={"origin": json.dumps(self.origin)})
        unfinished = Path(path).with_name(Path(path).name + ".unfinished")
        try:
            unfinished.write_bytes(content)
            unfinished.replace(path)
        except OSError as error:
            unfinished.unlink(missing_ok=True)
            raise RunError(f"the expert cannot be written to {path}: {error.strerror}; choose another path") from error

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote."""
        try:
            with safe_open(path, framework="numpy") as file:
                count = len(file.keys()) // 2
                layers = tuple((file.get_tensor(f"{n}.weight"), file.get_tensor(f"{n}.bias")) for n in range(count))
                return cls(layers, json.loads(file.metadata()["origin"]))
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise RunError(
                f"{path} does not hold an expert that can be read ({error}); "
                "train one with ileed.tasks.minigrid.pretrain"
            ) from error


def expert_path(task: str) -> Path:
    """Where the expert that ships for a task lies."""
    return Path(__file__).parent / "experts" / f"{task.replace('/', '-')}.safetensors"


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
    world = MiniGridTask(task)
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
