"""`ileed pretrain`, `ileed reproduce` and `ileed tables`: the paper's experiments, and the pages about them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from ileed.checking import at_least_one
from ileed.cli.console import Output, bar

__all__ = ["Pretrain", "Reproduce", "Tables"]


@dataclass(frozen=True)
class Pretrain:
    """Train the expert of a task again, as the shipped one was trained."""

    task: Positional[str]
    """For example minigrid/obstacles."""
    out: Path
    """The safetensors file to write."""
    seed: int = 0
    """Seed of all random numbers."""
    timesteps: int | None = None
    """Steps to train for; as many as the shipped expert's by default."""

    def __call__(self) -> None:
        from ileed_lab.minigrid.pretraining import pretrain

        at_least_one(timesteps=self.timesteps)
        with bar(f"training in {self.task}") as advance:
            expert = pretrain(self.task, path=self.out, seed=self.seed, timesteps=self.timesteps, progress=advance)
        Output().say(f"wrote {expert!r} to {self.out}")


@dataclass(frozen=True)
class Reproduce:
    """Run an experiment of the paper, or one beyond it, and write what every trial measured.

    With --resume an interrupted run continues, and a larger --trials adds trials.
    """

    experiment: Positional[str]
    """For example minigrid/populations."""
    out: Path = Path("runs/reproduction")
    """The directory of results, one file for each cell; those of the repository are in results/."""
    trials: int | None = None
    """Number of trials; as many as published by default."""
    methods: tuple[str, ...] = ()
    """Only these of the experiment's methods."""
    settings: tuple[str, ...] = ()
    """Only settings with one of these values, as in --settings All Worse."""
    resume: bool = False
    """Keep the finished trials."""
    device: str = "auto"
    """cpu, cuda, or auto for the best there is."""
    workers: int | None = None
    """Processes or jobs to run at once; as many as there are cores by default."""
    executor: str = "local"
    """Where trials run: local (processes of this machine), ray (a Ray cluster) or slurm (jobs, through submitit)."""
    data: Path | None = None
    """The file of demonstrations, for the experiments that learn from one: a robomimic file for robot/square."""

    def __call__(self) -> None:
        from ileed_lab import experiments
        from ileed_lab.records import read_cell

        at_least_one(workers=self.workers)
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
                executor=self.executor,
                progress=advance,
            )
        failed = sum("failed" in trial for path in paths for trial in read_cell(path)["trials"])
        Output().say(
            f"wrote {len(paths)} cells to {self.out / chosen.name}"
            + (f"; {failed} of their trials failed, and the records say why" if failed else "")
        )


@dataclass(frozen=True)
class Tables:
    """Write the pages of published and reproduced numbers, from results of `ileed reproduce`."""

    results: Path = Path("results")
    """The directory of results: --out of `ileed reproduce`."""
    out: Path = Path("docs/reproduction.md")
    """The Markdown file to write; it shows those of its figures that are in `images` beside it."""

    robot: Path = Path("docs/robot.md")
    """The same for the page about robots."""

    chess: Path = Path("docs/chess.md")
    """The same for the page about chess."""

    calibration: Path = Path("docs/calibration.md")
    """The same for the page about intervals."""

    crowd: Path = Path("docs/crowd.md")
    """The same for the page about crowds."""

    curation: Path = Path("docs/curation.md")
    """The same for the page about curation."""

    hanabi: Path = Path("docs/hanabi.md")
    """The same for the page about Hanabi."""

    overcooked: Path = Path("docs/overcooked.md")
    """The same for the page about Overcooked."""

    operators: Path = Path("docs/real-operators.md")
    """The same for the page about real operators."""

    simulated: Path = Path("docs/operators.md")
    """The same for the page about simulated operators."""

    def __call__(self) -> None:
        from ileed_lab.calibration.page import write_calibration_page
        from ileed_lab.chess.page import write_chess_page
        from ileed_lab.crowd.page import write_crowd_page
        from ileed_lab.curation.page import write_curation_page
        from ileed_lab.minigrid.page import write_page
        from ileed_lab.operators.page import write_simulated_operators_page
        from ileed_lab.people.hanabi.page import write_hanabi_page
        from ileed_lab.people.overcooked.page import write_overcooked_page
        from ileed_lab.people.racing.page import write_operators_page
        from ileed_lab.square.page import write_robot_page

        write_page(self.results, self.out)
        write_robot_page(self.results, self.robot)
        write_chess_page(self.results, self.chess)
        write_calibration_page(self.results, self.calibration)
        write_crowd_page(self.results, self.crowd)
        write_curation_page(self.results, self.curation)
        write_hanabi_page(self.results, self.hanabi)
        write_overcooked_page(self.results, self.overcooked)
        write_operators_page(self.results, self.operators)
        write_simulated_operators_page(self.results, self.simulated)
        pages = [self.out, self.robot, self.chess, self.calibration, self.crowd, self.curation]
        pages += [self.hanabi, self.overcooked, self.operators]
        Output().say(f"wrote {', '.join(map(str, pages))} and {self.simulated}")
