"""Generative adversarial imitation learning: a critic scores how much the policy's steps look like demonstrations."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final, get_args

import numpy as np
import numpy.typing as npt

from ileed import DemonstrationError, Demonstrations, SettingsError
from ileed.envs.minigrid import ENVIRONMENTS, MiniGridTask
from ileed.errors import require
from ileed.parallel.runtime import keep_freed_memory, stream, threads
from ileed_lab.baselines.critic import Behaviour, Critic
from ileed_lab.baselines.gail_policy import GailPolicy
from ileed_lab.baselines.rollouts import Rollouts, as_vec_env
from ileed_lab.stable_baselines import generators_restored, policy_layers

__all__ = ["FittedGail", "Gail", "GailPolicy", "Iteration"]

Horizon = Literal["variable", "absorbing"]

CRITIC_BATCH = 1_000
"""Batch size of the implementation that the paper's learning rate belongs to; see docs/decisions/gail.md."""
GAE_LAMBDA = 0.95
"""Of generalised advantage estimation."""
CONJUGATE_GRADIENT_STEPS = 10
CONJUGATE_GRADIENT_DAMPING = 0.01
VALUE_EPOCHS = 10
VALUE_BATCH = 1_600
VALUE_LEARNING_RATE = 1e-3


@final
@dataclass(frozen=True, kw_only=True)
class Gail:
    """Generative adversarial imitation learning (GAIL) with a Wasserstein critic and trust region policy optimisation.

    A critic f and a policy pi solve the saddle-point problem

        min_pi max_f  E_demonstrations f(s, a) - E_pi f(s, a) - critic_penalty * E_lines (|grad f| - 1)^2,

    in turn: the critic takes `critic_epochs` optimisation steps, then the policy takes one step of trust region policy
    optimisation (TRPO) with f as the reward, within `step_size` nats of Kullback-Leibler divergence.

    GAIL plays in the task while it learns, `iterations` times `batch_size` steps, which neither behaviour cloning nor
    ileed does: the problem is easier, and the comparison is not like for like. It never sees the task's rewards, and
    pools the demonstrations of all demonstrators. A fit is one run without restarts: at a saddle point no loss says
    which of several runs is best. Defaults are the ILEED paper's where it states them. Needs the extra `minigrid`; with
    the extra `fast` as well it takes a fraction of the time.

    J. Ho and S. Ermon. Generative Adversarial Imitation Learning. *NeurIPS*, 2016. <https://arxiv.org/abs/1606.03476>

    The absorbing horizon follows I. Kostrikov, K. K. Agrawal, D. Dwibedi, S. Levine and J. Tompson.
    Discriminator-Actor-Critic. *ICLR*, 2019. <https://arxiv.org/abs/1809.02925>
    """

    devices: ClassVar[tuple[str, ...]] = ("cpu",)
    """Kinds of device that it can be fitted on: it spends its time in environments, which run on the CPU."""

    task: MiniGridTask
    """The task that was demonstrated, in which the policy plays while it learns."""
    horizon: Horizon = "absorbing"
    """How an episode that ends early counts. 'variable' is the plain procedure: it ends there, and an arbitrary
    constant in the critic's score decides whether ending pays. 'absorbing' values the end as the critic values an
    absorbing state that lasts until the task's limit of steps."""
    iterations: int = 120
    """How often the critic and then the policy are improved."""
    batch_size: int = 8_000
    """Environment steps in each iteration, in all environments together."""
    environments: int = 200
    """Environments stepped at once; must divide `batch_size`."""
    hidden: tuple[int, ...] = (32, 32)
    """Units in the policy's layers, and in those of the value function."""
    step_size: float = 0.01
    """Bound on the mean Kullback-Leibler divergence of a policy from the previous one, in nats."""
    discount: float = 0.99
    """Of a reward one step later."""
    critic_hidden: tuple[int, ...] = (64, 64)
    """Units in the critic's layers."""
    critic_epochs: int = 50
    """Optimisation steps of the critic in each iteration, each over the whole batch."""
    critic_learning_rate: float = 1e-4
    """For every 1,000 steps of the batch: 8 times that with the batch of 8,000."""
    critic_kept: float = 0.6
    """Probability of a hidden unit of the critic to take part in an optimisation step."""
    critic_penalty: float = 1.0
    """Weight of the penalty on slopes other than one."""
    critic_clip: float = 50.0
    """Bound on the norm of the critic's gradient."""

    def __post_init__(self) -> None:
        if self.task.name not in ENVIRONMENTS:
            raise SettingsError(f"GAIL cannot play in {self.task.name}; pass one of the single MiniGrid tasks")
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

    def fit(self, demonstrations: Demonstrations, *, seed: int, device: str = "auto") -> FittedGail:
        """Learn from demonstrations of the task by playing in it; the same seed gives the same bits."""
        began = time.perf_counter()
        if device not in ("auto", *self.devices):
            raise SettingsError(f"device is {device!r}, but GAIL runs on the CPU alone; pass 'cpu' or 'auto'")
        _check_demonstrations(demonstrations, self.task)
        logger = require("stable_baselines3.common.logger", package="ileed-lab")
        rollouts = Rollouts.of(self.task, environments=self.environments, seed=seed)
        limit = rollouts.environments.limit if self.horizon == "absorbing" else None
        demonstrated = _demonstrated_behaviour(demonstrations, limit=limit)
        keep_freed_memory()
        with generators_restored(), threads(1):
            learner = self._trpo(rollouts, seed)
            learner.set_logger(logger.Logger(folder=None, output_formats=[]))
            critic = Critic(
                centre=demonstrated.observations.mean(axis=0),
                action_count=self.task.action_count,
                hidden=self.critic_hidden,
                learning_rate=self.critic_learning_rate * self.batch_size / CRITIC_BATCH,
                kept=self.critic_kept,
                penalty=self.critic_penalty,
                clip=self.critic_clip,
                generator=stream(seed, "critic"),
            )
            rewards = _CriticRewards(self, demonstrated, rollouts, critic, began=began)
            learner.learn(self.iterations * self.batch_size, callback=_at_rollout_end(rewards), log_interval=None)
        return FittedGail(policy=GailPolicy(policy_layers(learner)), history=tuple(rewards.history), method=self)

    def _trpo(self, rollouts: Rollouts, seed: int) -> Any:
        """The policy's learner, of sb3-contrib."""
        return require("sb3_contrib", package="ileed-lab").TRPO(
            "MlpPolicy",
            as_vec_env(
                rollouts,
                environments=self.environments,
                observation_size=self.task.observation_size,
                action_count=self.task.action_count,
            ),
            seed=stream(seed, "generator").initial_seed() & 0x7FFF_FFFF,
            device="cpu",
            n_steps=self.batch_size // self.environments,
            gamma=self.discount,
            gae_lambda=GAE_LAMBDA,
            target_kl=self.step_size,
            cg_max_steps=CONJUGATE_GRADIENT_STEPS,
            cg_damping=CONJUGATE_GRADIENT_DAMPING,
            n_critic_updates=VALUE_EPOCHS,
            batch_size=math.gcd(self.batch_size, VALUE_BATCH),  # batches of equal size, or TRPO would warn
            learning_rate=VALUE_LEARNING_RATE,
            policy_kwargs={"net_arch": list(self.hidden)},
        )


@final
@dataclass(frozen=True, kw_only=True)
class Iteration:
    """One point of the training curve."""

    steps: int
    """Environment steps so far."""
    critic_gap: float
    """The critic's mean score of the demonstrations minus that of the policy's steps; near zero it cannot tell them
    apart."""
    episodic_reward: float | None
    """Mean sum of the task's rewards over the episodes that finished in this iteration, if any did. Nothing is learned
    from it. The policy samples its actions here; `evaluate` takes the most likely ones."""
    entropy: float
    """Mean entropy of the policy's next action, in nats."""
    seconds: float
    """Since the start of the fit."""


@final
@dataclass(frozen=True, eq=False)
class FittedGail:
    """A fit: `policy` to act with, and `history`, the training curve."""

    policy: GailPolicy
    history: tuple[Iteration, ...]
    method: Gail

    @property
    def seconds(self) -> float:
        """How long the fit took."""
        return self.history[-1].seconds

    def __repr__(self) -> str:
        last = self.history[-1]
        return f"FittedGail({self.method.horizon} horizon, {last.steps:,} environment steps in {last.seconds:.0f} s)"


@final
class _CriticRewards:
    """Gives every batch of rollouts its rewards: the scores of a critic that has just learned from the batch."""

    def __init__(
        self,
        method: Gail,
        demonstrated: Behaviour,
        rollouts: Rollouts,
        critic: Critic,
        *,
        began: float,
    ) -> None:
        self._method, self._demonstrated, self._rollouts, self._critic = method, demonstrated, rollouts, critic
        self._began = began
        self._running = _RunningStandardDeviation()
        self.history: list[Iteration] = []

    def __call__(self, batch: Any) -> None:
        """Add the critic's scores, divided by their running standard deviation, to the rewards of a `RolloutBuffer`.

        The buffer does not hold the task's rewards. It holds zeros and, where an episode was truncated, the value
        function's estimate of what would have followed, since truncation is not an end of the task.
        """
        method, finished = self._method, self._rollouts.pop_finished()
        absorbing = method.horizon == "absorbing"
        generated = Behaviour(
            observations=batch.observations.reshape(method.batch_size, -1),
            actions=batch.actions.reshape(-1).astype(np.int64),
            absorbed=finished.absorbed if absorbing else 0,
            ends=finished.ends if absorbing else 0,
        )
        contrast = self._critic.contrast(self._demonstrated, generated)
        self._critic.learn(contrast, epochs=method.critic_epochs)
        scores = self._critic.scores(contrast)
        origin = scores[-1] if absorbing else 0.0
        rewards = (scores - origin)[contrast.row].numpy()
        batch.rewards += self._running.standardise(rewards).reshape(batch.rewards.shape)
        self._record(finished.rewards, gap=float(contrast.weight @ scores), entropy=float(-batch.log_probs.mean()))

    def _record(self, rewards: tuple[float, ...], *, gap: float, entropy: float) -> None:
        self.history.append(
            Iteration(
                steps=(len(self.history) + 1) * self._method.batch_size,
                critic_gap=gap,
                episodic_reward=sum(rewards) / len(rewards) if rewards else None,
                entropy=entropy,
                seconds=time.perf_counter() - self._began,
            )
        )


@final
class _RunningStandardDeviation:
    """The standard deviation of all numbers so far."""

    def __init__(self) -> None:
        self._count, self._sum, self._squares = 0, 0.0, 0.0

    def standardise(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The values divided by the standard deviation of these and all previous ones."""
        self._count += len(values)
        self._sum += float(values.sum(dtype=np.float64))
        self._squares += float(np.square(values, dtype=np.float64).sum())
        variance = self._squares / self._count - (self._sum / self._count) ** 2
        return values / np.float32(math.sqrt(max(variance, 0.0)) + 1e-8)


def _at_rollout_end(give_rewards: Callable[[Any], None]) -> Any:
    """A callback of stable-baselines3 that sets the rewards of a complete batch and recomputes its advantages."""
    callbacks = require("stable_baselines3.common.callbacks", package="ileed-lab")

    class AtRolloutEnd(callbacks.BaseCallback):  # type: ignore[name-defined, misc]
        def _on_step(self) -> bool:
            return True

        def _on_rollout_end(self) -> None:
            batch = self.model.rollout_buffer
            give_rewards(batch)
            batch.compute_returns_and_advantage(last_values=self.locals["values"], dones=self.locals["dones"])

    return AtRolloutEnd()


def _check_demonstrations(demonstrations: Demonstrations, task: MiniGridTask) -> None:
    """Refuse demonstrations that cannot be of this task."""
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


def _demonstrated_behaviour(demonstrations: Demonstrations, *, limit: int | None) -> Behaviour:
    """All demonstrations together, each episode that the task ended padded up to `limit` if there is one.

    An episode that was truncated, by the task's limit or where a demonstrator's steps were used up, is not padded:
    its end is unknown. Its steps count like all others.
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
