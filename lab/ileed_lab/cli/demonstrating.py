"""`ileed demonstrate`: simulated demonstrators of known skill."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tyro.conf import Positional

from ileed.cli.console import Output, at_least_one, bar

if TYPE_CHECKING:
    from ileed.demonstrations import Demonstrations

__all__ = ["Demonstrate"]


@dataclass(frozen=True)
class Demonstrate:
    """Simulate demonstrators of known skill in a task and write their demonstrations."""

    task: Positional[str]
    """For example minigrid/obstacles, or robot/square, whose six operators need no other setting but --episodes."""
    out: Path
    """The file to write: parquet, and robomimic's HDF5 for robot/square."""
    population: Literal["beta-1", "beta-5", "beta-10", "unif"] = "unif"
    """One of the paper's populations of ten demonstrators; for single tasks."""
    beta: float = 0.1
    """Skill of each of the paper's three demonstrators outside the stage they are skilled in; for minigrid/skills."""
    steps: int = 1000
    """Steps of each demonstrator."""
    episodes: int = 50
    """Episodes of each operator, in robot/square."""
    seed: int = 0
    """Seed of all random numbers."""

    def __call__(self) -> None:
        at_least_one(steps=self.steps, episodes=self.episodes)
        from ileed import simulation, tasks
        from ileed.readers import write_parquet

        task = tasks.task(self.task)
        with bar(f"playing {self.task}") as advance:
            own = task.write_demonstrations(self.out, episodes=self.episodes, seed=self.seed, progress=advance)
        if own is not None:
            return self._say_written(own)
        experts = tasks.experts(self.task)
        with bar(f"playing {self.task}") as advance:
            data = simulation.demonstrate(
                task,
                experts,
                skill=simulation.multi_skill(self.beta)
                if self.task == "minigrid/skills"
                else simulation.POPULATIONS[self.population],
                steps=self.steps,
                seed=self.seed,
                progress=advance,
            )
        write_parquet(data, self.out)
        return self._say_written(data)

    def _say_written(self, data: Demonstrations) -> None:
        Output().say(f"wrote {data.episode_count:,} episodes to {self.out}")
