"""How fast policies are scored: our scorer with each of its engines, against a plain loop, in one run.

    python benchmarks/rollouts.py --out results/benchmarks/rollouts.json

The plain loop is what a user of gymnasium and minigrid would write: one environment, minigrid's own image as the
observation, one observation at a time through the policy. The policy is the expert that ships for the task, taking its
most likely action. Every round gives all ways as many new episodes, one way after the other, so that what else the
machine does falls on all of them; the speed is that of the median round, from the first environment made to the last
episode counted. Importing libraries is timed apart.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ileed import envs, runs
from ileed.envs.evaluation import Scores
from ileed.envs.minigrid import ENVIRONMENTS, Engine, Expert, MiniGridTask

Way = Callable[[int, int], tuple[list[float], int]]
"""From a number of episodes and a seed to the reward of each episode and the steps taken in all of them."""


def plain(task: str, policy: Expert) -> Way:
    """One environment, one observation, one action."""
    gymnasium, wrappers = import_module("gymnasium"), import_module("minigrid.wrappers")

    def played(episodes: int, seed: int) -> tuple[list[float], int]:
        environment = wrappers.ImgObsWrapper(gymnasium.make(ENVIRONMENTS[task].id))
        rewards, steps = [], 0
        for episode in range(episodes):
            image, _ = environment.reset(seed=seed * episodes + episode)
            total, over = 0.0, False
            while not over:
                action = policy(image.reshape(1, -1))[0]
                image, reward, terminated, truncated, _ = environment.step(action)
                total, over = total + float(reward), terminated or truncated
                steps += 1
            rewards.append(total)
        return rewards, steps

    return played


def ours(task: str, policy: Expert, engine: Engine) -> Way:
    """One call of `score`."""
    world = MiniGridTask(task, engine=engine)

    def played(episodes: int, seed: int) -> tuple[list[float], int]:
        begun, done, steps = 0, 0, 0

        def actor(observations: npt.NDArray[Any], starts: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
            nonlocal begun, steps
            begun += int(starts.sum())
            steps += begun - done  # rows whose episode goes on; the others' actions are not used
            return policy(observations)

        def progress(finished: int, total: int) -> None:
            nonlocal done
            done = finished

        return world.score(actor, episodes=episodes, seed=seed, progress=progress).tolist(), steps

    return played


def measured(task: str, *, episodes: int, rounds: int) -> dict[str, Any]:
    """All ways on one task, with ratios to the plain loop."""
    policy = envs.expert(task)
    ways = {
        "plain loop": plain(task, policy),
        "ours, minigrid": ours(task, policy, "minigrid"),
        "ours, EnvPool": ours(task, policy, "envpool"),
    }
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    rewards: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():  # what is only done once: modules, registries, tables of the view
        way(10, rounds)
    for number in range(rounds):
        for name, way in ways.items():
            began = time.perf_counter()
            earned, steps = way(episodes, number)
            speeds[name].append(steps / (time.perf_counter() - began))
            rewards[name] += earned
    rows: dict[str, Any] = {}
    for name in ways:
        scores, speed = Scores(np.array(rewards[name])), median(speeds[name])
        rows[name] = {
            "steps_per_second": speed,
            "times_plain": speed / median(speeds["plain loop"]),
            "mean_reward": scores.mean,
            "interval": scores.interval,
            "rounds": speeds[name],
        }
        print(f"{task:20} {name:15} {speed:10,.0f} steps/s {rows[name]['times_plain']:6.1f} x plain   {scores}")
    return rows


def main() -> None:
    """Print the table and write it as JSON, with what made it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(envs.names()))
    parser.add_argument("--episodes", type=int, default=1000, help="in every round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="where to write the JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    imports = {}
    for module in ("minigrid", "envpool.minigrid"):
        began = time.perf_counter()
        import_module(module)
        imports[module.partition(".")[0]] = time.perf_counter() - began
    versions = {package: version(package) for package in ("gymnasium", "minigrid", "envpool")}
    record: dict[str, Any] = {
        "provenance": runs.provenance() | versions,
        "settings": {"episodes": options.episodes, "rounds": options.rounds, "policy": "the shipped expert"},
        "import_seconds": imports,
        "tasks": {task: measured(task, episodes=options.episodes, rounds=options.rounds) for task in options.tasks},
    }
    if options.out:
        runs.write_file(options.out, (json.dumps(record, indent=2) + "\n").encode())


if __name__ == "__main__":
    main()
