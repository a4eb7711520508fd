"""The command `ileed`: a thin layer of words, bars and tables over the library."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import tyro
from rich.console import Console
from rich.table import Table
from tyro.conf import OmitArgPrefixes, Positional

from ileed import experiments, runs, simulation, tasks
from ileed.cli import chess
from ileed.cli.console import bar, climbing, plain, print_json
from ileed.demonstrations import Demonstrations
from ileed.errors import IleedError
from ileed.evaluation import Scores, evaluate, rank_loss
from ileed.experiments.chess_page import write_chess_page
from ileed.experiments.robot_page import write_robot_page
from ileed.experiments.tables import write_page
from ileed.methods import Ileed, bc, load
from ileed.policy import Fitted
from ileed.readers import by_column, read, shipped, write_parquet, write_robomimic
from ileed.report import figures, report
from ileed.tasks.minigrid import pretrain

_GOOD, _REFUSED, _INTERRUPTED = 0, 2, 130
_EXIT_CODES = "exit codes: 0 done, 2 refused (one sentence says why), 130 interrupted (run it again to go on)"


_PARTS = tyro.constructors.ConstructorRegistry()


@_PARTS.primitive_rule
def _part(asked: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
    """A part of the model is written as in Python, `Embedded(dim=3)`, or by its name alone, `constant`."""
    offered = get_args(asked.type) or (asked.type,)
    kinds = [kind for kind in offered if isinstance(kind, type) and kind.__module__.startswith("ileed.model.")]
    if not kinds:
        return None
    by_name = {kind.__name__.lower(): kind for kind in kinds}
    spelled = "|".join(kind.__name__ for kind in kinds)

    def made(words: list[str]) -> Any:
        if words[0].lower() in ("auto", "none"):
            return None
        try:
            written = ast.parse(words[0], mode="eval").body
            call = written if isinstance(written, ast.Call) else ast.Call(written, [], [])
            if not isinstance(call.func, ast.Name):
                raise TypeError
            arguments = [ast.literal_eval(argument) for argument in call.args]
            options = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
            return by_name[call.func.id.lower()](*arguments, **options)
        except IleedError as error:
            raise ValueError(str(error)) from error
        except (SyntaxError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{words[0]!r} is not one of {spelled}, with options as in Embedded(dim=3)") from error

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="|".join(kind.__name__ for kind in kinds),
        instance_from_str=made,
        is_instance=lambda value: value is None or isinstance(value, tuple(kinds)),
        str_from_instance=lambda value: ["none" if value is None else repr(value)],
    )


@dataclass(frozen=True)
class Inspect:
    """Say what a data set holds, and what in it is wrong or thin."""

    data: Positional[Path]
    """A parquet file (see `ileed.readers.parquet` for the columns)."""
    who: str | None = None
    """The column that says who did it, if it is not called demonstrator."""
    json: bool = False
    """Print JSON for a script instead of text for a person."""

    def __call__(self) -> None:
        data = _read(self.data, self.who)
        findings = data.check()
        if self.json:
            print_json(
                {
                    "steps": len(data),
                    "episodes": data.episode_count,
                    "demonstrators": {
                        name: int(count) for name, count in zip(data.names, data.steps_each, strict=True)
                    },
                    "findings": [{"about": finding.about, "says": finding.says} for finding in findings],
                }
            )
            return
        console = Console()
        console.print(repr(data), highlight=False, markup=False, soft_wrap=True)
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
        for finding in findings:
            table.add_row(f"[bold]{plain(finding.about)}[/bold]", plain(finding.says))
        console.print(table if findings else "nothing stands out: enough data from everybody, and all of it sound")


@dataclass(frozen=True)
class Fit:
    """Learn one policy and everybody's expertise from a data set, and save the run.

    An interrupted fit goes on where it was when the same command is given again.
    """

    data: Positional[Path]
    """A parquet file of demonstrations."""
    out: Path | None = None
    """Where the run directory goes; runs/NAME-OF-DATA by default."""
    overwrite: bool = False
    """Replace a run that is already there, which is refused otherwise; files in it that are not ours stay."""
    who: str | None = None
    """The column that says who did it, if it is not called demonstrator."""
    seed: int = 0
    """Fixes all chance: the same seed on the same machine gives the same bits."""
    device: str = "auto"
    """cpu, cuda, or auto for the best there is."""
    json: bool = False
    """Print JSON for a script instead of text for a person."""
    method: OmitArgPrefixes[Ileed] = Ileed()  # noqa: RUF009
    """How to learn: each of these is a setting of `ileed.Ileed` in Python, and written the same way."""

    def __call__(self) -> None:
        out = self.out or Path("runs") / self.data.stem
        runs.check_destination(out, overwrite=self.overwrite)
        data = _read(self.data, self.who)
        with climbing("fitting") as watch:
            fitted = self.method.fit(
                data,
                seed=self.seed,
                device=self.device,
                progress=watch,
                checkpoint=runs.checkpoint_path(out),
            )
        fitted.save(out, overwrite=self.overwrite)
        if self.json:
            print_json(_summary(fitted) | {"run": str(out)})
            return
        console = Console()
        if fitted.estimates_expertise:
            console.print(_ranking(fitted))
        console.print(f"{fitted.nats_per_action:.4f} nats per action; {fitted.outcome.value}", highlight=False)
        console.print(f"saved in {out}; next: ileed report {out}", highlight=False)


@dataclass(frozen=True)
class Evaluate:
    """Let a fitted policy play a task and say how well it does, with a 95 % interval."""

    run: Positional[Path]
    """A run directory, as `ileed fit` writes it."""
    task: str
    """For example minigrid/obstacles."""
    episodes: int = 500
    """How many episodes to play."""
    seed: int = 0
    """Fixes the episodes."""
    json: bool = False
    """Print JSON for a script instead of text for a person."""

    def __call__(self) -> None:
        fitted, task = load(self.run), tasks.task(self.task)
        with bar(f"playing {self.task}") as advance:
            scores = evaluate(fitted.policy, task, episodes=self.episodes, seed=self.seed, progress=advance)
        if self.json:
            print_json({"mean": scores.mean, "interval": scores.interval, "episodes": len(scores.rewards)})
        else:
            Console().print(f"mean reward {scores}", highlight=False)


@dataclass(frozen=True)
class Report:
    """Draw a run as one self-contained page to read in a browser."""

    run: Positional[Path]
    """A run directory, as `ileed fit` writes it."""
    out: Path | None = None
    """Where the page goes; report.html inside the run by default."""
    figures: Path | None = None
    """A directory to write each chart to as well, as SVG."""

    def __call__(self) -> None:
        console = Console()
        console.print(f"wrote {report(self.run, out=self.out)}", highlight=False)
        if self.figures is not None:
            for path in figures(self.run, self.figures).values():
                console.print(f"wrote {path}", highlight=False)


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
        data, task = shipped(), tasks.task("minigrid/obstacles")
        overwrite = self.overwrite or _data_of(self.out) == data.fingerprint()
        runs.check_destination(self.out, overwrite=overwrite)
        runs.check_page(self.out / "report.html")
        truth = dict(zip(data.names, simulation.POPULATIONS["beta-1"], strict=True))
        best = max(truth, key=lambda name: truth[name])
        console = Console(quiet=self.json)
        console.print(repr(data), highlight=False, markup=False, soft_wrap=True)
        with climbing("cloning everybody (BC)") as watch:
            cloned = bc().fit(data, seed=self.seed, progress=watch)
        with climbing("estimating expertise (ILEED)") as watch:
            fitted = Ileed().fit(data, seed=self.seed, progress=watch)
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
        console.print(_ranking(fitted, truth))
        console.print(f"rank loss {rank_loss(fitted.expertise.by_demonstrator(), truth):.2f} (0 is a perfect order)")
        table = Table("policy", "mean reward", "95 % interval", title=f"{task.name}, {self.episodes} episodes each")
        for name, score in scores.items():
            low, high = score.interval
            table.add_row(name, f"{score.mean:.2f}", f"{low:.2f} to {high:.2f}")
        console.print(table)
        console.print(f"open {page} in a browser", highlight=False)
        if self.json:
            print_json(
                _summary(fitted)
                | {"truth": truth, "report": str(page)}
                | {"scores": {name: {"mean": item.mean, "interval": item.interval} for name, item in scores.items()}}
            )


@dataclass(frozen=True)
class Demonstrate:
    """Simulate demonstrators of known skill in a task and write what they did."""

    task: Positional[str]
    """For example minigrid/obstacles, or robot/square, whose six operators need no other setting but --episodes."""
    out: Path
    """The file to write: parquet, and robomimic's HDF5 for robot/square."""
    population: Literal["beta-1", "beta-5", "beta-10", "unif"] = "unif"
    """One of the paper's groups of ten demonstrators; for tasks of one piece."""
    beta: float = 0.1
    """What each of the paper's three demonstrators is worth outside their own part; for minigrid/skills."""
    steps: int = 1000
    """Steps of each demonstrator."""
    episodes: int = 50
    """Episodes of each operator, in robot/square."""
    seed: int = 0
    """Fixes all chance."""

    def __call__(self) -> None:
        if self.task == "robot/square":
            return self._square()
        task = tasks.task(self.task)
        with bar(f"playing {self.task}") as advance:
            data = simulation.demonstrate(
                task,
                tasks.experts(self.task),
                skill=simulation.multi_skill(self.beta)
                if self.task == "minigrid/skills"
                else simulation.POPULATIONS[self.population],
                steps=self.steps,
                seed=self.seed,
                progress=advance,
            )
        write_parquet(data, self.out)
        return self._wrote(data)

    def _square(self) -> None:
        from ileed.tasks.operators import demonstrate_square
        from ileed.tasks.square import OBSERVATIONS

        with bar(f"playing {self.task}") as advance:
            recorded = demonstrate_square(episodes=self.episodes, seed=self.seed, progress=advance)
        data = recorded.demonstrations
        write_robomimic(data, self.out, observations=OBSERVATIONS, env_args=recorded.env_args, states=recorded.states)
        self._wrote(data)

    def _wrote(self, data: Demonstrations) -> None:
        Console().print(f"wrote {data.episode_count:,} episodes to {self.out}", highlight=False)


@dataclass(frozen=True)
class Pretrain:
    """Train the expert of a task anew, as the one that ships was trained."""

    task: Positional[str]
    """For example minigrid/obstacles."""
    out: Path
    """The safetensors file to write."""
    seed: int = 0
    """Fixes all chance."""
    timesteps: int | None = None
    """Steps to train for; as many as the shipped expert's by default."""

    def __call__(self) -> None:
        with bar(f"training in {self.task}") as advance:
            expert = pretrain(self.task, path=self.out, seed=self.seed, timesteps=self.timesteps, progress=advance)
        Console().print(f"wrote {expert!r} to {self.out}", highlight=False)


@dataclass(frozen=True)
class Reproduce:
    """Run an experiment of the paper, or one that goes past it, and write what every trial measured.

    With --resume an interrupted run goes on, and a larger --trials adds to what is there.
    """

    experiment: Positional[str]
    """For example minigrid/populations."""
    out: Path = Path("runs/reproduction")
    """Where the results go, one file a cell; those that ship with the repository are in results/."""
    trials: int | None = None
    """How many; as many as were published by default."""
    methods: tuple[str, ...] = ()
    """Only these of the experiment's methods."""
    settings: tuple[str, ...] = ()
    """Only settings with one of these values, as in --settings All Worse."""
    resume: bool = False
    """Keep the trials that are done already."""
    device: str = "auto"
    """cpu, cuda, or auto for the best there is."""
    workers: int | None = None
    """Processes to run at once; as many as there are cores by default."""
    data: Path | None = None
    """The file of demonstrations, for the experiments that learn from one: a robomimic file for robot/square."""

    def __call__(self) -> None:
        chosen = experiments.experiment(self.experiment, data=self.data)
        with bar(self.experiment) as advance:
            paths = experiments.reproduce(
                chosen,
                out=self.out,
                trials=self.trials,
                methods=self.methods or None,
                settings=self.settings or None,
                resume=self.resume,
                device=self.device,
                workers=self.workers,
                watch=advance,
            )
        Console().print(f"wrote {len(paths)} cells to {self.out / chosen.name}", highlight=False)


@dataclass(frozen=True)
class Tables:
    """Write the pages of published against reproduced numbers, from results that `ileed reproduce` wrote."""

    results: Path = Path("results")
    """Where they lie: what was given to `ileed reproduce` as --out."""
    out: Path = Path("docs/reproduction.md")
    """The Markdown file to write; it shows those of its pictures that lie in `images` beside it."""

    robot: Path = Path("docs/robot.md")
    """The same for the robot's page."""

    chess: Path = Path("docs/chess.md")
    """And for that of chess."""

    def __call__(self) -> None:
        write_page(self.results, self.out)
        write_robot_page(self.results, self.robot)
        write_chess_page(self.results, self.chess)
        Console().print(f"wrote {self.out}, {self.robot} and {self.chess}", highlight=False)


@dataclass(frozen=True)
class Chess:
    """King-and-pawn endgames of rated players; `ileed chess --help` lists what can be done."""


_COMMANDS: Mapping[str, Callable[..., Any]] = {
    "demo": Demo,
    "inspect": Inspect,
    "fit": Fit,
    "evaluate": Evaluate,
    "report": Report,
    "demonstrate": Demonstrate,
    "pretrain": Pretrain,
    "reproduce": Reproduce,
    "tables": Tables,
    "chess": Chess,
}


def run(arguments: Sequence[str]) -> int:
    """Carry out one command; returns its exit code."""
    of_chess = list(arguments[:1]) == ["chess"]
    command: Any = None
    try:
        command = tyro.extras.subcommand_cli_from_dict(
            dict(chess.COMMANDS if of_chess else _COMMANDS),
            prog="ileed chess" if of_chess else "ileed",
            description="Who is good at what, in which states; and one policy learned from everybody. " + _EXIT_CODES,
            args=list(arguments[1:] if of_chess else arguments),
            config=(tyro.conf.FlagCreatePairsOff,),
            registry=_PARTS,
        )
        command()
    except IleedError as error:
        print(f"ileed: {error}", file=sys.stderr)  # noqa: T201
        return _REFUSED
    except OSError as error:
        print(f"ileed: {error.strerror or error} ({error.filename or 'a file'})", file=sys.stderr)  # noqa: T201
        return _REFUSED
    except KeyboardInterrupt:
        print(f"ileed: interrupted; {_after(command)}", file=sys.stderr)  # noqa: T201
        return _INTERRUPTED
    return _GOOD


def _after(command: Any) -> str:
    """What is left of a command that was interrupted."""
    if isinstance(command, Fit):
        return "the same command goes on from the last checkpoint"
    if hasattr(command, "resume"):
        return "the same command with --resume goes on where it stopped"
    return "no file is left half written"


def _read(path: Path, column: str | None) -> Demonstrations:
    return read(path, demonstrator=None if column is None else by_column(column))


def _data_of(path: Path) -> str | None:
    """The fingerprint of the data that a run was fitted to; nothing where there is no run."""
    try:
        return str(runs.read_run(path).provenance["data"]["fingerprint"])
    except (IleedError, KeyError, TypeError):
        return None


def _summary(fitted: Fitted) -> dict[str, Any]:
    summary: dict[str, Any] = {
        "nats_per_action": fitted.nats_per_action,
        "outcome": fitted.outcome.value,
        "restarts": [float(cost) for cost in fitted.restarts.nats_per_action],
        "seconds": fitted.provenance["seconds"],
    }
    return summary | ({"expertise": fitted.expertise.by_demonstrator()} if fitted.estimates_expertise else {})


def _ranking(fitted: Fitted, truth: Mapping[str, float] | None = None, most: int = 40) -> Table:
    """Demonstrators best first, with the spread of their expertise over their own states."""
    ranking = fitted.expertise.ranking()
    left_out = len(ranking) - most
    table = Table(
        title="expertise, best first (a comparison: ratios are what the data fix)",
        caption=f"{left_out:,} more in the run's report" if left_out > 0 else None,
    )
    table.add_column("demonstrator")
    table.add_column("expertise", justify="right")
    table.add_column("in 8 of 10 of their states")
    if truth is not None:
        table.add_column("truth", justify="right")
    quantiles = dict(zip(fitted.expertise.names, fitted.expertise.survey.quantiles.tolist(), strict=True))
    for name, value in ranking[:most]:
        low, high = quantiles[name][2], quantiles[name][18]
        row = [plain(name), f"{value:.3f}", f"{low:.2f} to {high:.2f}"]
        table.add_row(*row, *([] if truth is None else [f"{truth[name]:.2f}"]))
    return table
