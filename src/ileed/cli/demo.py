"""`ileed demo`: a fit, an evaluation and a report of the example data of the package."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ileed.cli.console import Output, bar, fit_bar, numbers, print_json, ranking, summary
from ileed.errors import IleedError, at_least_one, require
from ileed.runs import stores


@dataclass(frozen=True)
class Demo:
    """Fit, evaluate and report on the example data of the package: ten demonstrators, one of them skilled."""

    out: Path = Path("runs/demo")
    """The run directory; an existing run of the same data is replaced."""
    overwrite: bool = False
    """Replace an existing run of other data instead of refusing it."""
    episodes: int = 500
    """The number of episodes of each policy."""
    seed: int = 0
    """The seed of all random numbers."""
    figures: Path | None = None
    """Also write the charts as SVG files to this directory."""
    json: bool = False
    """Print JSON instead of text."""

    def __call__(self) -> None:
        from ileed import envs, runs
        from ileed.envs import simulation
        from ileed.envs.evaluation import Scores, evaluate, rank_loss
        from ileed.envs.minigrid import MiniGridTask
        from ileed.formats import shipped
        from ileed.methods import Ileed, bc
        from ileed.report import figures, report

        at_least_one(episodes=self.episodes)
        data = shipped()
        overwrite = self.overwrite
        with suppress(IleedError, KeyError, TypeError):
            overwrite |= runs.read_run(self.out).provenance["data"]["fingerprint"] == data.fingerprint
        runs.check_destination(self.out, overwrite=overwrite)
        runs.check_page(self.out / "report.html")
        task = MiniGridTask("minigrid/obstacles")
        if task.scoring_engine == "minigrid":
            require("minigrid", extra="minigrid")
        truth = dict(zip(data.names, simulation.POPULATIONS["beta-1"], strict=True))
        console = Output(quiet=self.json)
        console.say(repr(data))
        with fit_bar("fitting BC") as progress:
            cloned = bc().fit(data, seed=self.seed, progress=progress)
        with fit_bar("fitting ILEED") as progress:
            fitted = Ileed().fit(data, seed=self.seed, progress=progress)
        expert, skill = envs.expert(task.name), max(truth.values())
        best = simulation.demonstrator_actor(expert, task, skill=skill, seed=self.seed)
        scores: dict[str, Scores] = {}
        for name, player in {"BC": cloned.policy, "ILEED": fitted.policy, "best demonstrator": best}.items():
            with bar(f"evaluating {name}") as advance:
                scores[name] = evaluate(player, task, episodes=self.episodes, seed=self.seed, progress=advance)
        fitted.save(self.out, overwrite=overwrite)
        with bar("writing the report"):
            if self.figures is not None:
                figures(self.out, self.figures, truth=truth, scores=scores)
            page = report(self.out, data=data, truth=truth, scores=scores, command="ileed demo")
        console.print(ranking(fitted, truth))
        if fitted.expertise.ratings is not None:
            console.say(fitted.expertise.ratings.sentence())
        console.say(f"rank loss {rank_loss(dict(fitted.expertise.ranking()), truth):.2f} (0 is a perfect order)")
        table = numbers("policy", "mean reward", "95% interval", title=f"{task.name}, {self.episodes} episodes each")
        for name, score in scores.items():
            table.add_row(name, f"{score.mean:.2f}", "{:.2f} to {:.2f}".format(*score.interval))
        console.print(table)
        console.say(f"open {stores.name_of(page)} in a browser")
        if self.json:
            means = {name: {"mean": score.mean, "interval": score.interval} for name, score in scores.items()}
            print_json(summary(fitted) | {"truth": truth, "report": stores.name_of(page), "scores": means})
