"""A point at a fork, in numpy alone: right is the goal and earns 1, left ends the episode and earns nothing.

Most demonstrators of the usual data go left, so whoever clones them does; rewards alone say that right is better. Tests
play here, and so does the comparison with d3rlpy, whose environment has no ileed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
GOAL, TRAP = np.array([0.8, 0.0]), np.array([-0.8, 0.0])
RADIUS, STRIDE, LIMIT = 0.15, 0.1, 40


class Fork:
    """Many points at once; a row that is over stays where it is."""

    def __init__(self, rows: int, seed: int) -> None:
        chance = np.random.default_rng(seed)
        self.at = np.stack([chance.uniform(-0.2, 0.2, rows), chance.uniform(-0.6, 0.6, rows)], axis=1)
        self.earned, self.over = np.zeros(rows), np.zeros(rows, dtype=bool)

    def step(self, actions: Array) -> tuple[Array, Array]:
        """Rewards, and where the task ended; neither counts in rows that were over before."""
        moved = np.clip(self.at + STRIDE * np.clip(actions, -1, 1), -1, 1)
        self.at = np.where(self.over[:, None], self.at, moved)
        reached, fell = (np.linalg.norm(self.at - place, axis=1) < RADIUS for place in (GOAL, TRAP))
        rewards, ended = (reached & ~self.over).astype(float), (reached | fell) & ~self.over
        self.earned += rewards
        self.over |= ended
        return rewards, ended


def demonstrations(*, episodes: int, good: float, seed: int) -> dict[str, Array]:
    """Columns of a data set in which a share `good` of the episodes goes right and the others left, with some noise."""
    chance = np.random.default_rng(seed)
    world = Fork(episodes, seed)
    heads_right = np.arange(episodes) < round(good * episodes)
    aim = np.where(heads_right[:, None], GOAL, TRAP)
    rows: list[tuple[Array, ...]] = []
    for _ in range(LIMIT):
        playing = np.flatnonzero(~world.over)
        seen, away = world.at[playing].copy(), aim[playing] - world.at[playing]
        actions = 0.7 * away / np.linalg.norm(away, axis=1, keepdims=True) + chance.normal(0, 0.2, away.shape)
        taken = np.zeros((episodes, 2))
        taken[playing] = actions.clip(-1, 1)
        rewards, ended = world.step(taken)
        rows.append((playing, seen, taken[playing], rewards[playing], ended[playing]))
    episode, seen, actions, rewards, ended = (np.concatenate(column) for column in zip(*rows, strict=True))
    order = np.argsort(episode, kind="stable")
    return {
        "observations": seen[order].astype(np.float32),
        "actions": actions[order].astype(np.float32),
        "episode": episode[order],
        "demonstrator": np.where(heads_right, "right", "left")[episode[order]],
        "rewards": rewards[order].astype(np.float32),
        "terminals": ended[order],
    }


def successes(act: Callable[[Array, Array], Array], *, episodes: int, seed: int) -> Array:
    """Which episodes an actor of (observations, starts) brings to the goal."""
    world, starts = Fork(episodes, seed), np.ones(episodes, dtype=bool)
    for _ in range(LIMIT):
        world.step(np.asarray(act(world.at.copy(), starts.copy()), dtype=float))
        starts[:] = False
    return world.earned > 0
