"""EnvPool: the same environments in C++, one for each episode, all in one pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt

from ileed.errors import require

__all__ = ["Pool"]


@final
class Pool:
    """Episodes of a MiniGrid environment, each played once in a C++ environment that was made with its seed.

    EnvPool seeds an environment when it is made, and no more when it is reset: so that an episode depends on its own
    seed and on nothing that was played before, no environment plays a second one. All of them are made and reset
    together, which takes some 20 microseconds each. One thread steps them beside the caller's; it ends with `close`.
    """

    def __init__(self, environment: str, seeds: Sequence[int], *, rows: int) -> None:
        envpool = require("envpool", extra="fast")
        self._pool: Any = envpool.make_gymnasium(environment, num_envs=len(seeds), seed=list(seeds), num_threads=1)
        self._first = self._pool.reset()[0]["image"].reshape(len(seeds), -1)
        self._playing = np.zeros(rows, dtype=np.int32)

    def begin(self, rows: npt.NDArray[np.int64], episodes: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """Let each of these rows play an episode from now on; what is seen there first, (row, feature)."""
        self._playing[rows] = episodes
        return np.asarray(self._first[episodes])

    def step(
        self, rows: npt.NDArray[np.int64], actions: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
        """What these rows see next, (row, feature), what they earned, and whose episode is over, (row,)."""
        episodes = self._playing[rows]
        # All that EnvPool could work out by itself is said, because to do so it copies every seed at every step.
        step = {"action": actions.astype(np.int32), "env_id": episodes, "players": {"env_id": episodes}}
        seen, rewards, terminated, truncated, _ = self._pool.step(step)
        return seen["image"].reshape(len(rows), -1), rewards, terminated | truncated

    def close(self) -> None:
        """End the thread, which lives as long as the pool does."""
        self._pool = None
