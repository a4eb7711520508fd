"""`ileed pretrain`, `ileed reproduce` and `ileed tables`: the paper's experiments, and the pages about them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from ileed.cli.console import Output, bar
from ileed.errors import at_least_one

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
    """Write the result pages, and a page of details for each in the folder `details` beside it.

    The numbers are read from the results of `ileed reproduce`.
    """

    results: Path = Path("results")
    """The directory of results: --out of `ileed reproduce`."""
    out: Path = Path("docs")
    """The directory of pages, which show the figures in its folder `images`."""

    def __call__(self) -> None:
        from ileed_lab.calibration.page import calibration_page
        from ileed_lab.chess.page import chess_page
        from ileed_lab.crowd.page import crowd_page
        from ileed_lab.curation.page import curation_page
        from ileed_lab.minigrid.page import reproduction_page
        from ileed_lab.operators.page import simulated_operators_page
        from ileed_lab.people.hanabi.page import hanabi_page
        from ileed_lab.people.overcooked.page import overcooked_page
        from ileed_lab.people.racing.page import operators_page
        from ileed_lab.square.page import robot_page

        pages = [reproduction_page(self.results, images=self.out / "images")]
        others = [robot_page, chess_page, calibration_page, crowd_page, curation_page, hanabi_page, overcooked_page]
        pages += [make(self.results) for make in (*others, operators_page, simulated_operators_page)]
        for page in pages:
            page.write(self.out / f"{page.name}.md")
        Output().say(f"wrote {', '.join(page.name for page in pages)} to {self.out}")
