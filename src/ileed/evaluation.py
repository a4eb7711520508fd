"""Evaluation: how well a policy does in a task, and how well estimated skill agrees with known skill."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch

from ileed import tasks
from ileed._torch import stream
from ileed.checking import seed_of, whole_number
from ileed.errors import IleedError, SettingsError
from ileed.fitted import Policy
from ileed.tasks import AbstractTask, Progress
from ileed.tasks.gymnasium import GymnasiumTask

__all__ = ["Scores", "evaluate", "rank_correlation", "rank_loss"]

RESAMPLES = 4_000


@final
@dataclass(frozen=True, eq=False)
class Scores:
    """Rewards of finished episodes, with their mean and how sure we are of it.

    >>> print(Scores(np.array([0.9, 1.0, 0.95, 0.9, 1.0, 0.95])))
    0.95 (0.92 to 0.98 over 6 episodes)
    """

    rewards: npt.NDArray[np.float64]
    """Sum of rewards of each episode, (episode,)."""

    def __post_init__(self) -> None:
        rewards = np.array(self.rewards, dtype=np.float64)
        if rewards.ndim != 1 or not len(rewards):
            raise IleedError(f"rewards of shape {rewards.shape} cannot be averaged: pass one number for each episode")
        if not np.isfinite(rewards).all():
            raise IleedError(
                f"the reward of episode {int(np.flatnonzero(~np.isfinite(rewards))[0])} is not a finite number"
            )
        rewards.flags.writeable = False
        object.__setattr__(self, "rewards", rewards)

    @property
    def mean(self) -> float:
        """Mean episodic reward."""
        return float(self.rewards.mean())

    @cached_property
    def interval(self) -> tuple[float, float]:
        """Where the mean over ever more such episodes lies, with 95 % confidence, by the percentile bootstrap.

        The episodes are drawn anew, with replacement, 4,000 times, from a fixed stream: the same rewards give the same
        interval. Rewards of these tasks are bounded and very skewed, which a bootstrap takes as it finds. It is too
        narrow below some 30 episodes, of no width where all episodes earned the same, and without bounds for a single
        one. It speaks of chance in the episodes, not of chance in how the policy was learned.
        """
        count = len(self.rewards)
        if count == 1:
            return -math.inf, math.inf
        generator = stream(0, "bootstrap", count)
        blocks = np.array_split(np.empty(RESAMPLES), min(RESAMPLES, 1 + RESAMPLES * count // 1_000_000))
        for means in blocks:
            drawn = torch.randint(count, (len(means), count), generator=generator).numpy()
            means[:] = self.rewards[drawn].mean(axis=1)
        low, high = np.quantile(np.concatenate(blocks), (0.025, 0.975))
        return float(low), float(high)

    def __str__(self) -> str:
        if len(self.rewards) == 1:
            return f"{self.mean:.2f} (1 episode)"
        low, high = self.interval
        return f"{self.mean:.2f} ({low:.2f} to {high:.2f} over {len(self.rewards):,} episodes)"


def evaluate(
    policy: Any,
    task: AbstractTask | str | Callable[[], Any],
    *,
    episodes: int = 500,
    seed: int = 0,
    max_steps: int | None = None,
    progress: Progress | None = None,
) -> Scores:
    """Let a policy play `episodes` episodes of a task, taking its most likely actions, and return what it earned.

    `policy` is anything with stable-baselines3's `predict`, as ours has, or an actor of `ileed.tasks`. `task` is one of
    `ileed.tasks` or its name, the id of a gymnasium environment, or a function that makes one. Policies evaluated with
    the same seed meet the same beginnings.

    `max_steps` ends every episode of a gymnasium environment after so many steps, with what it earned so far; None
    leaves that to the environment. A policy of ours begins its stream of sampled actions anew from the seed.
    """
    episodes = whole_number("episodes", episodes, least=1, rule="a policy plays one or more, a whole number")
    seed = seed_of(seed)
    chosen = _playable(task, max_steps)
    actor = chosen.actor_from(policy)
    if isinstance(policy, Policy):
        policy.reset(seed)
    return Scores(chosen.score(actor, episodes=episodes, seed=seed, progress=progress))


def _playable(task: AbstractTask | str | Callable[[], Any], max_steps: int | None) -> AbstractTask:
    """The task that is meant: of two of the same name ours, not gymnasium's."""
    if isinstance(task, str) and task not in tasks.all_names():
        return GymnasiumTask(task, max_steps=max_steps)
    if callable(task) and not isinstance(task, AbstractTask):
        return GymnasiumTask(task, max_steps=max_steps)
    if max_steps is not None:
        raise SettingsError(f"max_steps={max_steps} is for environments of gymnasium: {task} has a limit of its own")
    if isinstance(task, str):
        return tasks.task(task)
    if isinstance(task, AbstractTask):
        return task
    if hasattr(task, "reset") and hasattr(task, "step"):
        raise SettingsError(
            f"{task} is an environment, and several are played side by side: pass its id, or a function that makes "
            "one, as in lambda: gymnasium.make('CartPole-v1')"
        )
    raise SettingsError(
        f"{task!r} is not a task: pass one of ileed.tasks, its name, the id of a gymnasium environment, or a function "
        "that makes one"
    )


def rank_loss(estimated: Mapping[str, float], known: Mapping[str, float]) -> float:
    """Share of pairs of demonstrators that the estimate puts in the wrong order.

    0 is perfect, 0.5 is chance, 1 is inverted. Only pairs whose known skill differs are counted; a pair that the
    estimate holds equal counts half.

    >>> rank_loss({"ann": 0.9, "bob": 0.2, "cat": 0.3}, known={"ann": 0.8, "bob": 0.5, "cat": 0.1})
    0.3333333333333333
    """
    if estimated.keys() != known.keys():
        odd = sorted(map(str, estimated.keys() ^ known.keys()))
        raise SettingsError(f"{odd[0]!r} is named in only one of the rankings; both must name the same demonstrators")
    if unfit := [name for name in known if not (math.isfinite(estimated[name]) and math.isfinite(known[name]))]:
        raise SettingsError(f"the skill of {unfit[0]!r} is not a finite number, so it has no place in a ranking")
    pairs = [(one, other) for one, other in combinations(known, 2) if known[one] != known[other]]
    if not pairs:
        raise SettingsError("no two demonstrators differ in known skill, so there is no order to get right or wrong")
    return sum(_wrong(estimated, known, one, other) for one, other in pairs) / len(pairs)


def _wrong(estimated: Mapping[str, float], known: Mapping[str, float], one: str, other: str) -> float:
    if estimated[one] == estimated[other]:
        return 0.5
    return float((estimated[one] < estimated[other]) != (known[one] < known[other]))


def rank_correlation(one: npt.ArrayLike, other: npt.ArrayLike) -> float:
    """Spearman's, equals sharing their mean rank; 0 where all are equal, for then nothing is in order.

    >>> rank_correlation([1, 4, 9], [0.1, 0.2, 0.3])
    1.0
    """
    ranks = [_ranks(column) for column in (one, other)]
    return float(np.corrcoef(ranks)[0, 1]) if all(np.ptp(each) for each in ranks) else 0.0


def _ranks(values: npt.ArrayLike) -> npt.NDArray[Any]:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(count) - (count - 1) / 2)[place])
