"""Evaluation: the reward of a policy in a task, and the agreement of estimated with known skill."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch

from ileed._torch import default_modes, stream
from ileed.data.rules import as_array, read_only
from ileed.envs import all_names
from ileed.envs import task as task_of_name
from ileed.envs.abstract_task import AbstractTask, Progress
from ileed.envs.gymnasium import GymnasiumTask
from ileed.errors import IleedError, SettingsError, instance_of, is_finite, seed_of, whole_number
from ileed.methods import Policy

__all__ = ["Scores", "evaluate", "rank_loss"]

_REWARDS = "one finite number for each episode"
RESAMPLES = 4_000
DRAWS_AT_ONCE = 2**20  # resampled episodes in memory


@final
@dataclass(frozen=True, eq=False)
class Scores:
    """Rewards of finished episodes, with their mean and its confidence interval.

    >>> print(Scores(np.array([0.9, 1.0, 0.95, 0.9, 1.0, 0.95])))
    0.95 (0.92 to 0.98 over 6 episodes)
    """

    rewards: npt.NDArray[np.float64]
    """(episode,) sum of rewards."""

    def __post_init__(self) -> None:
        found = as_array("rewards", self.rewards, _REWARDS)
        if found.dtype.kind not in "biuf" or found.ndim != 1 or not len(found) or not np.isfinite(found).all():
            raise IleedError(
                f"rewards are {found.dtype} of shape {found.shape}: pass {_REWARDS}", code="rewards-invalid"
            )
        object.__setattr__(self, "rewards", read_only(np.array(found, dtype=np.float64)))

    @property
    def mean(self) -> float:
        """Mean episodic reward."""
        return float(self.rewards.mean())

    @cached_property
    def interval(self) -> tuple[float, float]:
        """The 95% CI of the mean, by 4,000 bootstrap resamples of episodes.

        The same rewards give the same interval. It is too narrow below about 30 episodes, and infinite for a single
        one. It covers the randomness of episodes, not that of learning the policy.
        """
        count = len(self.rewards)
        if count == 1:
            return -math.inf, math.inf
        generator = stream(0, "bootstrap", count)
        at_once = max(1, DRAWS_AT_ONCE // count)
        means = [
            self.rewards[torch.randint(count, (rows, count), generator=generator).numpy()].mean(axis=1)
            for rows in [at_once] * (RESAMPLES // at_once) + [RESAMPLES % at_once]
        ]
        low, high = np.quantile(np.concatenate(means), (0.025, 0.975))
        return float(low), float(high)

    def __str__(self) -> str:
        if len(self.rewards) == 1:
            return f"{self.mean:.2f} (1 episode)"
        low, high = self.interval
        return f"{self.mean:.2f} ({low:.2f} to {high:.2f} over {len(self.rewards):,} episodes)"


@default_modes()
def evaluate(
    policy: Any,
    task: AbstractTask | str | Callable[[], Any],
    *,
    episodes: int = 500,
    seed: int = 0,
    max_steps: int | None = None,
    progress: Progress | None = None,
) -> Scores:
    """Play episodes of a task with the most likely actions of a policy.

    Args:
        policy: an object with stable-baselines3's `predict`, or an actor of `ileed.envs`.
        task: a task of `ileed.envs` or its name, the id of a gymnasium environment, or a function that makes one.
        episodes: their number.
        seed: of the environments, so policies evaluated with the same seed start in the same states, and of actions
            that a policy of ileed samples.
        max_steps: truncates every episode of a gymnasium environment; None leaves that to the environment.
        progress: called with the number of finished episodes and `episodes`.
    """
    episodes = whole_number("episodes", episodes, least=1, rule="it must be a whole number, one or more")
    seed = seed_of(seed)
    chosen = _task_of(task, max_steps)
    actor = chosen.actor_from(policy)
    if isinstance(policy, Policy):
        policy.reset(seed)
    return Scores(chosen.score(actor, episodes=episodes, seed=seed, progress=progress))


def _task_of(task: AbstractTask | str | Callable[[], Any], max_steps: int | None) -> AbstractTask:
    """Resolve a task; a name of ours takes precedence over gymnasium's."""
    chosen = task_of_name(task) if isinstance(task, str) and task in all_names() else task
    if isinstance(chosen, str) or callable(chosen):
        return GymnasiumTask(chosen, max_steps=max_steps)
    rule = (
        "it is not a task: pass one of ileed.envs or its name; for an environment of gymnasium pass its id, or a "
        "function that makes one, as in lambda: gymnasium.make('CartPole-v1'), since several run side by side"
    )
    found: AbstractTask = instance_of("task", chosen, AbstractTask, rule=rule)
    if max_steps is not None:
        raise SettingsError(f"max_steps={max_steps} is for environments of gymnasium: {found.name} has its own limit")
    return found


def rank_loss(estimated: Mapping[str, float], known: Mapping[str, float]) -> float:
    """Share of pairs of demonstrators that the estimate orders wrongly: 0 is perfect, 0.5 is chance, 1 is inverted.

    Only pairs whose known skill differs are counted; a tie of the estimate counts half.

    >>> rank_loss({"ann": 0.9, "bob": 0.2, "cat": 0.3}, known={"ann": 0.8, "bob": 0.5, "cat": 0.1})
    0.3333333333333333
    """
    for name, value in (("estimated", estimated), ("known", known)):
        instance_of(name, value, Mapping, rule="pass the skill of each demonstrator by name, as in {'ann': 0.9}")
    if estimated.keys() != known.keys():
        odd = sorted(map(str, estimated.keys() ^ known.keys()))
        raise SettingsError(f"{odd[0]!r} is named in only one of the rankings; both must name the same demonstrators")
    if unfit := [name for name in known if not all(is_finite(each[name]) for each in (estimated, known))]:
        raise SettingsError(f"the skill of {unfit[0]!r} is not a finite number, so it has no place in a ranking")
    pairs = [(better, worse) for better, worse in permutations(known, 2) if known[better] > known[worse]]
    if not pairs:
        raise SettingsError("no two demonstrators differ in known skill, so there is no order to get right or wrong")
    return float(np.mean([(1 - np.sign(estimated[better] - estimated[worse])) / 2 for better, worse in pairs]))
