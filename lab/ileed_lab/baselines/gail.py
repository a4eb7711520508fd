"""Generative adversarial imitation learning: a critic learns what demonstrators do, a policy practises to please it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, final, get_args

import numpy as np
import numpy.typing as npt
import torch

from ileed import runs
from ileed.demonstrations import Demonstrations
from ileed.errors import DemonstrationError, RunError, SettingsError, brief, require
from ileed.runtime import keep_freed_memory, stream, threads
from ileed.tasks import AbstractTask, Progress
from ileed.tasks.minigrid import MiniGridTask
from ileed_lab.baselines.critic import Behaviour, Critic
from ileed_lab.baselines.practice import Practice, vectorised
from ileed_lab.expert_files import check_layers
from ileed_lab.generators import generators_restored

__all__ = ["FittedGail", "Gail", "GailPolicy", "Iteration"]

Horizon = Literal["variable", "absorbing"]

CRITIC_BATCH = 1_000
"""Steps in a gradient step of the implementation that the paper's learning rate was made for; see `docs`."""
TRACE = 0.95
"""Lambda of generalised advantage estimation."""
CONJUGATE_STEPS = 10
DAMPING = 0.01
VALUE_EPOCHS = 10
VALUE_BATCH = 1_600
VALUE_LEARNING_RATE = 1e-3


@final
@dataclass(frozen=True, kw_only=True)
class Gail:
    """Generative adversarial imitation learning with a Wasserstein critic and trust region policy optimisation.

    It plays in the task while it learns, `iterations` times `batch_size` steps, which neither behaviour cloning nor
    ileed does: an easier problem, not a like for like comparison. It never sees the task's rewards, and takes all
    demonstrations together, whoever they are of. A fit is one run without restarts: at a saddle point no cost says
    which of several was best. Defaults are the paper's where it names them. Needs the extra `minigrid`; with the extra
    `fast` as well it takes a fraction of the time.
    """

    horizon: Horizon = "absorbing"
    """What becomes of an episode that ends early. 'variable' is the plain procedure: nothing, and then a constant in
    the critic's score, which means nothing, decides whether ending pays. 'absorbing' values the end as the critic
    values a state after it that lasts until the task's limit of steps."""
    iterations: int = 120
    """How often the critic and then the policy are improved."""
    batch_size: int = 8_000
    """Steps of practice in each, in all environments together."""
    environments: int = 200
    """Environments stepped at once; must divide `batch_size`."""
    hidden: tuple[int, ...] = (32, 32)
    """Units in the policy's layers, and in those of the value function."""
    step_size: float = 0.01
    """How far a policy may go from the one before, in nats of mean Kullback-Leibler divergence."""
    discount: float = 0.99
    """What a reward one step later is worth."""
    critic_hidden: tuple[int, ...] = (64, 64)
    """Units in the critic's layers."""
    critic_epochs: int = 50
    """Gradient steps of the critic in each iteration, each over the whole batch."""
    critic_learning_rate: float = 1e-4
    """For every 1,000 steps of the batch: 8 times that with the batch of 8,000."""
    critic_kept: float = 0.6
    """Probability of a hidden unit of the critic to take part in a gradient step."""
    critic_penalty: float = 1.0
    """Weight of the penalty on slopes other than one."""
    critic_clip: float = 50.0
    """Bound on the norm of the critic's gradient."""

    def __post_init__(self) -> None:
        if self.horizon not in get_args(Horizon):
            raise SettingsError(f"there is no horizon {self.horizon!r}; choose 'variable' or 'absorbing'")
        for name in ("iterations", "batch_size", "environments", "critic_epochs"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} is {getattr(self, name)}, but there must be at least one")
        if self.batch_size % self.environments or self.batch_size == 1:
            raise SettingsError(
                f"{self.environments} environments cannot share {self.batch_size} steps equally; "
                "choose a batch_size of two or more that is a multiple of environments"
            )
        if not 0 < self.critic_kept <= 1:
            raise SettingsError(f"critic_kept is {self.critic_kept}, but a probability above 0 and up to 1 is needed")

    def fit(
        self, demonstrations: Demonstrations, *, task: AbstractTask, seed: int, progress: Progress | None = None
    ) -> FittedGail:
        """Learn from demonstrations of a MiniGrid task by practising in it; the same seed gives the same bits.

        `progress` is told the steps of practice taken, and of how many.
        """
        begun = time.perf_counter()
        world = _fitting_task(demonstrations, task)
        contrib = require("sb3_contrib", package="ileed-lab")
        logger = require("stable_baselines3.common.logger", package="ileed-lab")
        practice = Practice.of(world, environments=self.environments, seed=seed)
        demonstrated = _demonstrated(demonstrations, limit=practice.worlds.limit if self._absorbing else None)
        keep_freed_memory()
        with generators_restored(), threads(1):
            learner = contrib.TRPO(
                "MlpPolicy",
                vectorised(
                    practice,
                    environments=self.environments,
                    observation_size=world.observation_size,
                    action_count=world.action_count,
                ),
                seed=stream(seed, "generator").initial_seed() & 0x7FFF_FFFF,
                device="cpu",
                n_steps=self.batch_size // self.environments,
                gamma=self.discount,
                gae_lambda=TRACE,
                target_kl=self.step_size,
                cg_max_steps=CONJUGATE_STEPS,
                cg_damping=DAMPING,
                n_critic_updates=VALUE_EPOCHS,
                batch_size=math.gcd(self.batch_size, VALUE_BATCH),  # parts of equal size, or TRPO would warn
                learning_rate=VALUE_LEARNING_RATE,
                policy_kwargs={"net_arch": list(self.hidden)},
            )
            learner.set_logger(logger.Logger(folder=None, output_formats=[]))
            critic = Critic(
                centre=demonstrated.observations.mean(axis=0),
                action_count=world.action_count,
                hidden=self.critic_hidden,
                learning_rate=self.critic_learning_rate * self.batch_size / CRITIC_BATCH,
                kept=self.critic_kept,
                penalty=self.critic_penalty,
                clip=self.critic_clip,
                generator=stream(seed, "critic"),
            )
            judge = _Judge(self, demonstrated, practice, critic, begun=begun, progress=progress)
            learner.learn(self.iterations * self.batch_size, callback=_after_practice(judge), log_interval=None)
        return FittedGail(policy=_policy(learner), history=tuple(judge.history), method=self)

    @property
    def _absorbing(self) -> bool:
        return self.horizon == "absorbing"


@final
@dataclass(frozen=True, kw_only=True)
class Iteration:
    """One point of the training curve."""

    steps: int
    """Steps of practice so far."""
    critic_gap: float
    """The critic's mean score of demonstrations minus that of practice; near zero it cannot tell them apart."""
    episodic_reward: float | None
    """Mean sum of the task's rewards over the episodes that came to an end in this iteration, if any did. Nothing is
    learned from it. The policy draws its actions here; `evaluate` takes the most likely ones."""
    entropy: float
    """Mean uncertainty of the policy about its next action, in nats."""
    seconds: float
    """Since the fit began."""


@final
@dataclass(frozen=True, eq=False)
class GailPolicy:
    """A learned policy: layers of tanh and a score for every action, on numpy alone.

    Has stable-baselines3's `predict`, so that `ileed.evaluation.evaluate` takes it. Draws, where asked to, come from a
    stream of its own that starts anew with every policy.
    """

    layers: tuple[tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]], ...]
    """Weight (out, in) and bias (out,) of each layer, the last one giving the actions' scores."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_generator", stream(0, "act"))

    def __repr__(self) -> str:
        sizes = [self.layers[0][0].shape[1], *(len(bias) for _, bias in self.layers)]
        return f"GailPolicy({' x '.join(map(str, sizes))})"

    def probabilities(self, observations: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """The probability of every action, (place, action), for observations (place, feature)."""
        values = np.asarray(observations, dtype=np.float32)
        *hidden, (weight, bias) = self.layers
        for hidden_weight, hidden_bias in hidden:
            values = np.tanh(values @ hidden_weight.T + hidden_bias)
        scores = (values @ weight.T + bias).astype(np.float64)
        likelihoods = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return np.asarray(likelihoods / likelihoods.sum(axis=-1, keepdims=True))

    def predict(
        self,
        observation: npt.NDArray[Any],
        state: tuple[npt.NDArray[Any], ...] | None = None,
        episode_start: npt.NDArray[np.bool_] | None = None,
        deterministic: bool = True,
    ) -> tuple[npt.NDArray[np.int64], tuple[npt.NDArray[Any], ...] | None]:
        """The most likely action, or one drawn, for one observation or a batch of them."""
        probabilities = self.probabilities(np.atleast_2d(observation))
        if deterministic:
            actions = probabilities.argmax(axis=-1)
        else:
            generator: torch.Generator = self._generator  # type: ignore[attr-defined]
            actions = torch.multinomial(torch.from_numpy(probabilities), 1, generator=generator)[:, 0].numpy()
        return (actions[0] if np.ndim(observation) == 1 else actions), state

    def save(self, path: str | Path) -> None:
        """Write the layers to one safetensors file."""
        tensors = {f"{number}.weight": torch.tensor(weight) for number, (weight, _) in enumerate(self.layers)}
        tensors |= {f"{number}.bias": torch.tensor(bias) for number, (_, bias) in enumerate(self.layers)}
        runs.write_tensors(Path(path), tensors, {"kind": "GailPolicy"})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote."""
        tensors, notes = runs.read_tensors(Path(path))
        if notes.get("kind") != "GailPolicy":
            raise RunError(f"{path} does not hold a policy of GAIL; pass a file that GailPolicy.save wrote")
        try:
            pairs = [(tensors[f"{number}.weight"], tensors[f"{number}.bias"]) for number in range(len(tensors) // 2)]
            layers = tuple((weight.numpy(), bias.numpy()) for weight, bias in pairs)
            check_layers(layers)
        except (KeyError, TypeError, ValueError) as error:
            reason = f"there is no {error}" if isinstance(error, KeyError) else brief(error)
            raise RunError(f"{path} does not hold a policy of GAIL ({reason}); fit one again") from error
        return cls(layers)


@final
@dataclass(frozen=True, eq=False)
class FittedGail:
    """A fit: `policy` to act with, and `history`, the training curve, to judge it by."""

    policy: GailPolicy
    history: tuple[Iteration, ...]
    method: Gail

    @property
    def seconds(self) -> float:
        """How long the fit took."""
        return self.history[-1].seconds

    def __repr__(self) -> str:
        last = self.history[-1]
        return f"FittedGail({self.method.horizon} horizon, {last.steps:,} steps of practice in {last.seconds:.0f} s)"


@final
class _Judge:
    """Scores each batch of practice with a critic that has just learned from it."""

    def __init__(
        self,
        method: Gail,
        demonstrated: Behaviour,
        practice: Practice,
        critic: Critic,
        *,
        begun: float,
        progress: Progress | None,
    ) -> None:
        self._method, self._demonstrated, self._practice, self._critic = method, demonstrated, practice, critic
        self._begun, self._progress = begun, progress
        self._deviation = _RunningDeviation()
        self.history: list[Iteration] = []

    def __call__(self, batch: Any) -> None:
        """Add the critic's scores to the rewards of a `RolloutBuffer`, in units of their spread so far.

        The task's are not there: it holds zeros, but where an episode was cut by time. There stands what the value
        function expects of the rest, since a time-out is no end.
        """
        method, ledger = self._method, self._practice.close_books()
        practised = Behaviour(
            observations=batch.observations.reshape(method.batch_size, -1),
            actions=batch.actions.reshape(-1).astype(np.int64),
            absorbed=ledger.absorbed if method.horizon == "absorbing" else 0,
            ends=ledger.ends if method.horizon == "absorbing" else 0,
        )
        contrast = self._critic.contrast(self._demonstrated, practised)
        self._critic.learn(contrast, epochs=method.critic_epochs)
        scores = self._critic.scores(contrast)
        origin = scores[-1] if method.horizon == "absorbing" else 0.0
        rewards = (scores - origin)[contrast.row].numpy()
        batch.rewards += self._deviation.scaled(rewards).reshape(batch.rewards.shape)
        self._record(ledger.rewards, gap=float(contrast.weight @ scores), entropy=float(-batch.log_probs.mean()))

    def _record(self, rewards: tuple[float, ...], *, gap: float, entropy: float) -> None:
        steps = (len(self.history) + 1) * self._method.batch_size
        self.history.append(
            Iteration(
                steps=steps,
                critic_gap=gap,
                episodic_reward=sum(rewards) / len(rewards) if rewards else None,
                entropy=entropy,
                seconds=time.perf_counter() - self._begun,
            )
        )
        if self._progress is not None:
            self._progress(steps, self._method.iterations * self._method.batch_size)


@final
class _RunningDeviation:
    """The standard deviation of all numbers seen so far."""

    def __init__(self) -> None:
        self._count, self._sum, self._squares = 0, 0.0, 0.0

    def scaled(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The values in units of the deviation of these and all before."""
        self._count += len(values)
        self._sum += float(values.sum(dtype=np.float64))
        self._squares += float(np.square(values, dtype=np.float64).sum())
        variance = self._squares / self._count - (self._sum / self._count) ** 2
        return values / np.float32(math.sqrt(max(variance, 0.0)) + 1e-8)


def _after_practice(judge: Callable[[Any], None]) -> Any:
    """A callback of stable-baselines3 that lets rewards be given once a batch is complete, and reckons with them."""
    callbacks = require("stable_baselines3.common.callbacks", package="ileed-lab")

    class AfterPractice(callbacks.BaseCallback):  # type: ignore[name-defined, misc]
        def _on_step(self) -> bool:
            return True

        def _on_rollout_end(self) -> None:
            batch = self.model.rollout_buffer
            judge(batch)
            batch.compute_returns_and_advantage(last_values=self.locals["values"], dones=self.locals["dones"])

    return AfterPractice()


def _fitting_task(demonstrations: Demonstrations, task: AbstractTask) -> MiniGridTask:
    """The task, if the demonstrations are of it as far as can be seen, and it can be practised."""
    if not isinstance(task, MiniGridTask):
        raise SettingsError(f"GAIL cannot practise in {task.name}; pass one of the single MiniGrid tasks")
    if not demonstrations.discrete:
        raise DemonstrationError(
            f"these demonstrations have continuous actions, but {task.name} has {task.action_count} to choose from; "
            "pass demonstrations of that task"
        )
    for what, found, needed in (
        ("numbers in an observation", demonstrations.observation_size, task.observation_size),
        ("actions", demonstrations.action_count, task.action_count),
    ):
        if found != needed:
            raise DemonstrationError(
                f"these demonstrations have {found} {what}, but {task.name} has {needed}; "
                "pass demonstrations of that task"
            )
    return task


def _demonstrated(demonstrations: Demonstrations, *, limit: int | None) -> Behaviour:
    """All demonstrations together, each ended episode padded up to `limit` if there is one.

    An episode that was cut, by the task's limit or where a demonstrator's steps were spent, is not padded: nobody knows
    when it would have ended. Its steps count like all others.
    """
    flat = demonstrations.observations.reshape(len(demonstrations), -1)
    observations = flat.astype(np.uint8)
    if not np.array_equal(observations, flat):
        raise DemonstrationError(
            "these observations are not all whole numbers from 0 to 255, as MiniGrid's views are; pass them unscaled"
        )
    if limit is None:
        return Behaviour(observations, demonstrations.actions)
    if demonstrations.terminals is None:
        raise DemonstrationError(
            "these demonstrations do not say which episodes the task ended, so an absorbing horizon cannot pad them; "
            "pass terminals, or choose horizon='variable'"
        )
    ended = demonstrations.episode[demonstrations.terminals]
    left = limit - np.bincount(demonstrations.episode)[ended]
    return Behaviour(observations, demonstrations.actions, absorbed=int(left.clip(min=0).sum()), ends=len(ended))


def _policy(learner: Any) -> GailPolicy:
    linear = [*learner.policy.mlp_extractor.policy_net[::2], learner.policy.action_net]
    return GailPolicy(tuple((_copied(layer.weight), _copied(layer.bias)) for layer in linear))


def _copied(parameter: torch.Tensor) -> npt.NDArray[np.float32]:
    return parameter.detach().numpy().copy()
