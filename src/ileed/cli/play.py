"""`ileed evaluate` and `ileed demo`: policies that play a task."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from tyro.conf import Positional

from ileed.cli.console import Output, at_least_one, bar, fit_bar, print_json
from ileed.errors import IleedError, SettingsError, require_all

if TYPE_CHECKING:
    from ileed.tasks import AbstractTask

__all__ = ["Demo", "Evaluate"]


@dataclass(frozen=True)
class Evaluate:
    """Let a fitted policy play a task or a gymnasium environment and say how well it does, with a 95 % interval."""

    run: Positional[Path]
    """A run directory, as `ileed fit` writes it."""
    task: str | None = None
    """One of our tasks, for example minigrid/obstacles; or else --env."""
    env: str | None = None
    """A gymnasium environment by its id, for example CartPole-v1; or else --task."""
    episodes: int = 500
    """How many episodes to play."""
    seed: int = 0
    """Fixes the episodes."""
    max_steps: int | None = None
    """Ends every episode of --env after so many steps; by default the environment's own limit does."""
    json: bool = False
    """Print JSON for a script instead of text for a person."""

    def __call__(self) -> None:
        from ileed.evaluation import evaluate
        from ileed.methods import load

        at_least_one(episodes=self.episodes, max_steps=self.max_steps)
        task = self._playable()
        fitted = load(self.run)
        task.actor_from(fitted.policy)  # refuses a policy that cannot play there before a bar is shown
        with bar(f"playing {task.name}") as advance:
            scores = evaluate(fitted.policy, task, episodes=self.episodes, seed=self.seed, progress=advance)
        if self.json:
            print_json({"mean": scores.mean, "interval": scores.interval, "episodes": len(scores.rewards)})
        else:
            Output().say(f"mean reward {scores}")

    def _playable(self) -> AbstractTask:
        from ileed import tasks
        from ileed.tasks.gymnasium import GymnasiumTask

        if (self.task is None) == (self.env is None):
            found = "neither" if self.task is None else "both"
            raise SettingsError(f"{found} of --task and --env: pass one of them, for example --env CartPole-v1")
        if self.env is not None:
            return GymnasiumTask(self.env, max_steps=self.max_steps)
        if self.max_steps is not None:
            raise SettingsError("--max-steps is for --env: our own tasks have limits of their own")
        return tasks.task(str(self.task))


@dataclass(frozen=True)
class Demo:
    """Show the whole job on data that ship with the package: ten demonstrators, of whom one is competent."""

    out: Path = Path("runs/demo")
    """Where the run directory and its report.html go; a run of the same data that is already there is replaced."""
    overwrite: bool = False
    """Replace a run of other data that is already there, which is refused otherwise."""
    episodes: int = 500
    """How many episodes each policy plays."""
    seed: int = 0
    """Fixes all chance."""
    figures: Path | None = None
    """A directory to write each chart to as well, as SVG."""
    json: bool = False
    """Print JSON for a script instead of text for a person."""

    def __call__(self) -> None:
        from ileed import runs, simulation, tasks
        from ileed.cli.fitting import ranking, summary
        from ileed.evaluation import Scores, evaluate, rank_loss
        from ileed.methods import Ileed, bc
        from ileed.readers import shipped
        from ileed.report import figures, report
        from ileed.tasks.minigrid import MiniGridTask

        at_least_one(episodes=self.episodes)
        data = shipped()
        overwrite = self.overwrite or _data_of(self.out) == data.fingerprint()
        runs.check_destination(self.out, overwrite=overwrite)
        runs.check_page(self.out / "report.html")
        task = MiniGridTask("minigrid/obstacles")
        drawing = {"altair": "report", "vl_convert": "report"}  # used at the end, but checked before the fits
        require_all(drawing | ({"minigrid": "minigrid"} if task.scoring_engine == "minigrid" else {}))
        truth = dict(zip(data.names, simulation.POPULATIONS["beta-1"], strict=True))
        best = max(truth, key=lambda name: truth[name])
        console = Output(quiet=self.json)
        console.say(repr(data))
        with fit_bar("cloning everybody (BC)") as progress:
            cloned = bc().fit(data, seed=self.seed, progress=progress)
        with fit_bar("estimating expertise (ILEED)") as progress:
            fitted = Ileed().fit(data, seed=self.seed, progress=progress)
        players = {
            "BC": cloned.policy,
            "ILEED": fitted.policy,
            "best demonstrator": simulation.slipping(tasks.expert(task.name), task, skill=truth[best], seed=self.seed),
        }
        scores: dict[str, Scores] = {}
        for name, player in players.items():
            with bar(f"playing as {name}") as advance:
                scores[name] = evaluate(player, task, episodes=self.episodes, seed=self.seed, progress=advance)
        fitted.save(self.out, overwrite=overwrite)
        page = report(self.out, truth=truth, scores=scores, command="ileed demo")
        if self.figures is not None:
            figures(self.out, self.figures, truth=truth, scores=scores)
        console.print(ranking(fitted, truth))
        console.say(f"rank loss {rank_loss(fitted.expertise.by_demonstrator(), truth):.2f} (0 is a perfect order)")
        table = Table("policy", "mean reward", "95 % interval", title=f"{task.name}, {self.episodes} episodes each")
        for name, score in scores.items():
            low, high = score.interval
            table.add_row(name, f"{score.mean:.2f}", f"{low:.2f} to {high:.2f}")
        console.print(table)
        console.say(f"open {page} in a browser")
        if self.json:
            print_json(
                summary(fitted)
                | {"truth": truth, "report": str(page)}
                | {"scores": {name: {"mean": item.mean, "interval": item.interval} for name, item in scores.items()}}
            )


def _data_of(path: Path) -> str | None:
    """The fingerprint of the data that a run was fitted to; nothing where there is no run."""
    from ileed import runs

    try:
        return str(runs.read_run(path).provenance["data"]["fingerprint"])
    except (IleedError, KeyError, TypeError):
        return None
