"""`ileed evaluate`: the reward of a fitted policy in a task."""

from __future__ import annotations

from dataclasses import dataclass

from ileed.cli.console import Output, bar, print_json
from ileed.cli.parsing import RunPath
from ileed.errors import SettingsError, at_least_one


@dataclass(frozen=True)
class Evaluate:
    """Evaluate a fitted policy in a task or a gymnasium environment: mean reward with a 95% interval."""

    run: RunPath
    task: str | None = None
    """The name of a task, such as minigrid/obstacles; either this or --env is required."""
    env: str | None = None
    """The id of a gymnasium environment, such as CartPole-v1; either this or --task is required."""
    episodes: int = 500
    """The number of episodes."""
    seed: int = 0
    """The seed of the episodes."""
    max_steps: int | None = None
    """The maximum length of an episode of --env; the environment's own limit by default."""
    json: bool = False
    """Print JSON instead of text."""

    def __call__(self) -> None:
        from ileed import envs
        from ileed.envs.evaluation import evaluate
        from ileed.envs.gymnasium import GymnasiumTask
        from ileed.methods import load

        at_least_one(episodes=self.episodes, max_steps=self.max_steps)
        if (self.task is None) == (self.env is None):
            found = "neither" if self.task is None else "both"
            raise SettingsError(f"{found} of --task and --env given: give one of them, for example --env CartPole-v1")
        if self.task is not None and self.max_steps is not None:
            raise SettingsError("--max-steps applies to --env only, because tasks have their own limits: leave it out")
        task = GymnasiumTask(self.env, max_steps=self.max_steps) if self.env else envs.task(str(self.task))
        policy = load(self.run).policy
        with bar(f"evaluating in {task.name}") as progress:
            scores = evaluate(policy, task, episodes=self.episodes, seed=self.seed, progress=progress)
        if self.json:
            print_json({"mean": scores.mean, "interval": scores.interval, "episodes": len(scores.rewards)})
        else:
            Output().say(f"mean reward {scores}")
