"""`ileed rate`, `ileed evaluate`, `ileed report` and `ileed demo`: ratings, scores and reports by fitted policies."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.table import Table
from tyro.conf import OmitArgPrefixes, Positional

from ileed import stores
from ileed.checking import at_least_one
from ileed.cli.console import Output, after_delay, bar, fit_bar, print_json
from ileed.cli.data import Columns, Folder, OfData, Robomimic
from ileed.errors import IleedError, SettingsError, require_all

if TYPE_CHECKING:
    from ileed.demonstrations import Demonstrations


@dataclass(frozen=True)
class Evaluate:
    """Evaluate a fitted policy in a task or a gymnasium environment: mean reward with a 95 % interval."""

    run: Positional[Path]
    """A run directory of `ileed fit`."""
    task: str | None = None
    """The name of a task, for example minigrid/obstacles; give this or --env."""
    env: str | None = None
    """The id of a gymnasium environment, for example CartPole-v1; give this or --task."""
    episodes: int = 500
    """The number of episodes."""
    seed: int = 0
    """The seed of the episodes."""
    max_steps: int | None = None
    """The length of an episode of --env at most; the environment's own limit by default."""
    json: bool = False
    """Print JSON instead of text."""

    def __call__(self) -> None:
        from ileed import tasks
        from ileed.evaluation import evaluate
        from ileed.methods import load
        from ileed.tasks.gymnasium import GymnasiumTask

        at_least_one(episodes=self.episodes, max_steps=self.max_steps)
        if (self.task is None) == (self.env is None):
            found = "neither" if self.task is None else "both"
            raise SettingsError(f"{found} of --task and --env given: give one of them, for example --env CartPole-v1")
        if self.task is not None and self.max_steps is not None:
            raise SettingsError("--max-steps is for --env, since tasks have their own limits: leave it out")
        task = GymnasiumTask(self.env, max_steps=self.max_steps) if self.env else tasks.task(str(self.task))
        policy = load(self.run).policy
        with bar(f"evaluating in {task.name}") as progress:
            scores = evaluate(policy, task, episodes=self.episodes, seed=self.seed, progress=progress)
        if self.json:
            print_json({"mean": scores.mean, "interval": scores.interval, "episodes": len(scores.rewards)})
        else:
            Output().say(f"mean reward {scores}")


@dataclass(frozen=True)
class Rate:
    """Rate people by the policy of a run, whether or not the run has seen them, with intervals.

    Expertise is relative to the mean over the people of the run. Where the data are those of the run, its report has
    better estimates: by policies that have not seen them. A run with outcomes (`ileed fit --outcome`) rates newcomers
    on its scale of skill, by actions as far as these predict outcomes, and by outcomes of their own with --outcome.
    """

    run: Positional[Path]
    """A run directory of `ileed fit`."""
    people: OmitArgPrefixes[OfData]
    """The data of those to rate."""
    outcome: str | None = None
    """How these episodes went, in the units of the run: success, reward, duration, or a column constant in episodes."""
    better: Literal["higher", "lower"] | None = None
    """Which outcomes are better; as in the run by default."""

    def __call__(self) -> None:
        from ileed.cli.fitting import evidence_summary, ratings_summary, ratings_table, say_ratings
        from ileed.methods import load

        fitted = load(self.run)
        data = self.people.read_named(fitted.policy.encoding)
        if self.people.anonymise:
            fitted, data = fitted.anonymise_with(data)
        with bar("rating") as advance:
            ratings = fitted.assess(data, progress=after_delay(advance), outcome=self.outcome, better=self.better)
        evidence = ratings.evidence if self.outcome is not None else None
        if self.people.json:
            print_json(ratings_summary(ratings) | evidence_summary(evidence))
            return
        console = Output()
        console.print(ratings_table(ratings))
        say_ratings(console, ratings)
        if evidence is not None:
            console.say(evidence.sentence())


@dataclass(frozen=True)
class Report:
    """Write the report of a run, or a comparison of two runs, as one HTML page.

    A run directory does not hold the data. With --data the page also has kinds of state, episodes to look at, and what
    is wrong with the data.
    """

    run: Positional[Path]
    """A run directory of `ileed fit`."""
    other: Positional[Path | None] = None
    """Another run directory: the page compares the two."""
    data: Path | None = None
    """The file that the run was fitted to; the options below say how to read it, as for `ileed fit`."""
    out: Path | None = None
    """The file to write; report.html (or comparison.html) in the run directory by default."""
    anonymise: bool = False
    """Show pseudonyms in place of names."""
    figures: Path | None = None
    """A directory for the charts as SVG files as well."""
    table: Path | None = None
    """A file for the ranking of everybody as well, .csv or .parquet."""
    columns: OmitArgPrefixes[Columns] = Columns()  # noqa: RUF009 (frozen)
    """The columns of a table."""
    robomimic: OmitArgPrefixes[Robomimic] = Robomimic()  # noqa: RUF009 (frozen)
    """Options for robomimic's files (.hdf5, .h5) and LeRobot's folders."""
    folder: OmitArgPrefixes[Folder] = Folder()  # noqa: RUF009 (frozen)
    """Options for a folder of parquet or Arrow files."""

    def __call__(self) -> None:
        from ileed import runs
        from ileed.report import check_table

        if self.other is not None and self.figures is not None:
            raise SettingsError("two runs are compared without --figures: leave it out")
        if self.other is not None and self.table is not None:
            raise SettingsError("two runs are compared without --table: leave it out")
        out = self.out or self.run / ("report.html" if self.other is None else "comparison.html")
        runs.check_page(out)
        if self.table is not None:
            check_table(self.table)
        data = None
        if self.data is not None:
            data = OfData(
                self.data, self.columns, self.anonymise, robomimic=self.robomimic, folder=self.folder
            ).read_named()
        replaced = [out] if stores.exists(out) else []
        with bar("writing the report"):
            written = self._write(out, data)
        for path in written:
            Output().say(f"{'replaced' if path in replaced else 'wrote'} {stores.name_of(path)}")

    def _write(self, out: Path, data: Demonstrations | None) -> list[Path]:
        """Write the page and what else is asked for; figures first, since they alone can still be refused."""
        from ileed.report import compare_runs, figures, people_table, report

        if self.other is not None:
            return [compare_runs(self.run, self.other, out=out, data=data, anonymise=self.anonymise)]
        drawn: list[Path] = []
        if self.figures is not None:
            drawn += figures(self.run, self.figures, data=data, anonymise=self.anonymise).values()
        page = report(self.run, out=out, data=data, anonymise=self.anonymise)
        tables = [] if self.table is None else [people_table(self.run, self.table, anonymise=self.anonymise)]
        return [page, *drawn, *tables]


@dataclass(frozen=True)
class Demo:
    """Fit, evaluate and report on the data that ship with the package: ten demonstrators, one of them competent."""

    out: Path = Path("runs/demo")
    """The run directory; an existing run of the same data is replaced."""
    overwrite: bool = False
    """Replace an existing run of other data too, which is an error otherwise."""
    episodes: int = 500
    """The number of episodes of each policy."""
    seed: int = 0
    """The seed of all random numbers."""
    figures: Path | None = None
    """A directory for the charts as SVG files as well."""
    json: bool = False
    """Print JSON instead of text."""

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
        overwrite = self.overwrite
        with suppress(IleedError, KeyError, TypeError):
            overwrite |= runs.read_run(self.out).provenance["data"]["fingerprint"] == data.fingerprint()
        runs.check_destination(self.out, overwrite=overwrite)
        runs.check_page(self.out / "report.html")
        task = MiniGridTask("minigrid/obstacles")
        require_all({"minigrid": "minigrid"} if task.scoring_engine == "minigrid" else {})
        truth = dict(zip(data.names, simulation.POPULATIONS["beta-1"], strict=True))
        console = Output(quiet=self.json)
        console.say(repr(data))
        with fit_bar("fitting BC") as progress:
            cloned = bc().fit(data, seed=self.seed, progress=progress)
        with fit_bar("fitting ILEED") as progress:
            fitted = Ileed().fit(data, seed=self.seed, progress=progress)
        expert, skill = tasks.expert(task.name), max(truth.values())
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
        table = Table("policy", "mean reward", "95 % interval", title=f"{task.name}, {self.episodes} episodes each")
        for name, score in scores.items():
            low, high = score.interval
            table.add_row(name, f"{score.mean:.2f}", f"{low:.2f} to {high:.2f}")
        console.print(table)
        console.say(f"open {stores.name_of(page)} in a browser")
        if self.json:
            means = {name: {"mean": score.mean, "interval": score.interval} for name, score in scores.items()}
            print_json(summary(fitted) | {"truth": truth, "report": stores.name_of(page), "scores": means})
