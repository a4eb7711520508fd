"""`ileed demonstrate`: simulated demonstrators of known skill."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tyro.conf import Positional

from ileed.cli.console import Output, bar
from ileed.errors import SettingsError, at_least_one
from ileed.runs import stores

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
        out = stores.name_of(self.out)
        if stores.exists(self.out):
            raise SettingsError(f"{out} exists already: choose another place, or remove it first")
        from ileed import envs
        from ileed.envs import simulation
        from ileed.formats import write_parquet
        from ileed_lab.minigrid.sequence import actor_by_stage, experts, multi_skill

        task: Any = envs.task(self.task)
        skill: Any = simulation.POPULATIONS[self.population]
        if self.task == "minigrid/skills":
            skill = multi_skill(self.beta)
        if hasattr(task, "write_demonstrations"):  # a task with demonstrators of its own
            with bar(f"playing {self.task}") as advance:
                data = task.write_demonstrations(self.out, episodes=self.episodes, seed=self.seed, progress=advance)
        else:
            policy = actor_by_stage(experts(task), task)
            with bar(f"playing {self.task}") as advance:
                data = simulation.demonstrate(
                    task, policy, skill=skill, steps=self.steps, seed=self.seed, progress=advance
                )
            write_parquet(data, self.out)
        Output().say(f"wrote {data.episode_count:,} episodes to {out}")
