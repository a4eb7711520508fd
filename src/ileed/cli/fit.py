"""`ileed fit`: from a data set to a run directory."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from tyro.conf import OmitArgPrefixes, arg

from ileed import runs
from ileed._torch import resolve_device
from ileed.cli.console import Output, fit_bar, print_json
from ileed.cli.data import OfData, column_names
from ileed.cli.results import say_fit, summary
from ileed.errors import SettingsError
from ileed.fitting import ProgressCallback
from ileed.integrations.loggers import check_logger, logger
from ileed.methods import Fitted, Ileed
from ileed.model.demonstrators import AbstractDemonstratorModel
from ileed.model.parts import parts_of_kind
from ileed.parallel import AbstractExecutor, executor
from ileed.parallel.processes import Processes
from ileed.parallel.runtime import several_processes
from ileed.runs import stores

_DATA_ARE_SHARED = (
    "all restarts are one block, whose data the {} processes share at every step: --member-block {} deals out the "
    "restarts instead, which is faster for all but large data"
)
_MODELS = tuple(part.__name__.lower() for part in parts_of_kind(AbstractDemonstratorModel))


@dataclass(frozen=True, kw_only=True)
class Settings(Ileed):  # type: ignore[misc]  # final for users: here one option has another name, and nothing else
    """The settings of `ileed.Ileed`, with the demonstrator model as --demonstrator-model."""

    demonstrator: Annotated[AbstractDemonstratorModel[Any] | Literal["auto"] | None, arg(name="demonstrator-model")] = (
        None
    )
    """How a demonstrator of given expertise acts; auto chooses by held-out episodes, none is the paper's."""


@dataclass(frozen=True)
class OfMethod(OfData):
    """A command that fits to a data set by the settings of `ileed.Ileed`."""

    seed: int = 0
    """The seed of all random numbers: the same seed on the same machine gives the same bits."""
    device: str = "auto"
    """cpu, cuda, or auto for the best available."""
    executor: str = ""
    """Fit models or blocks of restarts (--member-block) in parallel: local, ray (a Ray cluster) or slurm (jobs)."""
    workers: int | None = None
    """The number of workers of an executor; as many as there are cores by default."""
    method: OmitArgPrefixes[Settings] = Settings()
    """The settings of `ileed.Ileed`, written as in Python."""

    def check_machine(self) -> None:
        """Refuse a device that is not there, and workers without an executor, before a large file is read."""
        resolve_device(self.device)
        if self.workers is not None and not self.executor:
            raise SettingsError("--workers says how many fits run at once, but not where: add --executor local, say")

    def open_executor(self) -> AbstractContextManager[AbstractExecutor | None]:
        """The executor, if one is asked for."""
        return executor(self.executor, self.workers) if self.executor else nullcontext()


@dataclass(frozen=True)
class Fit(OfMethod):
    """Fit a policy and the expertise of every demonstrator to a data set; save the run.

    A parquet file has the columns that `ileed.formats.parquet` lists, a table one column for each feature. After an
    interruption the same command continues from the last checkpoint.
    """

    takes_several_processes: ClassVar[bool] = True
    out: Path | None = None
    """The run directory; runs/NAME-OF-DATA by default."""
    overwrite: bool = False
    """Replace an existing run, which is an error otherwise; other files in the directory stay."""
    check_width: bool | None = None
    """Compare widths of the policy on held-out episodes; by default only if --policy is not given, to choose one."""
    outcome: str | None = None
    """How episodes went, as evidence of skill: success, reward, duration, or a skill column constant in episodes."""
    better: Literal["higher", "lower"] | None = None
    """Which outcomes are better; higher by default, and to be given with --outcome duration."""
    log: str | None = None
    """Log progress and results to tensorboard, wandb or trackio as well."""
    log_to: str | None = None
    """The folder of TensorBoard's files, OUT.tensorboard by default; or the project of the others, ileed by default."""

    def __call__(self) -> None:
        with several_processes() as job:
            self._fit(job)

    def _fit(self, job: Processes) -> None:
        out = self._out
        self.check_file()  # before a run of that name is mentioned
        if job.leads:
            runs.check_destination(out, overwrite=self.overwrite)
        self.check_machine()
        if (column := self.naming.demonstrator or "").partition("(")[0].strip().lower() in _MODELS:
            found = f"--demonstrator {column} is a demonstrator model, but this option names a column"
            raise SettingsError(f"{found}: write --demonstrator-model {column}")
        if self.log is not None:
            check_logger(self.log)
        elif self.log_to is not None:
            raise SettingsError("--log-to says where to log, but not with what: add --log tensorboard, say")
        data = self.read()
        method = Ileed(**vars(self.method))
        restarts = method.for_data(data).usual_restarts
        if method.member_block is not None and method.member_block > restarts:
            found = f"--member-block is {method.member_block}, but there are {restarts} restarts to deal out"
            raise SettingsError(f"{found}: pass {restarts} or fewer")
        if job.count > 1 and method.member_block is None:
            warnings.warn(_DATA_ARE_SHARED.format(job.count, -(-restarts // job.count)), stacklevel=1)
        if self.executor and method.member_block is None:
            raise SettingsError(
                "--executor deals out blocks of restarts, but restarts are one block: add --member-block"
            )
        with (
            self.open_executor() as workers,
            fit_bar("fitting", quiet=not job.leads) as bar,
            self._logged(method, bar, leads=job.leads) as (progress, log_result),
        ):
            fitted = method.fit(
                data,
                seed=self.seed,
                device=self.device,
                check_width=self.check_width,
                progress=progress,
                checkpoint=runs.checkpoint_path(out),
                outcome=self.outcome,
                better=self.better,
                executor=workers,
                processes=job,
            )
            log_result(fitted)
        if not job.leads:
            return
        fitted.save(out, overwrite=self.overwrite)
        if self.json:
            print_json(summary(fitted) | column_names(data) | {"run": stores.name_of(out)})
            return
        say_fit(Output(), fitted, stores.name_of(out))

    def after_an_interrupt(self) -> str:
        """Whether there is a checkpoint to continue from."""
        path = runs.checkpoint_path(self._out)
        if any(path.parent.glob(f"{escape(path.name)}*")):  # of the fit, or of one that compares widths
            return "the same command goes on from the last checkpoint"
        return "nothing was saved yet, so the same command starts from the beginning"

    @contextmanager
    def _logged(
        self, method: Ileed, bar: ProgressCallback, *, leads: bool
    ) -> Iterator[tuple[ProgressCallback, Callable[[Fitted], object]]]:
        """The progress callback of the fit, and what takes its result: with a logger, or the bar alone."""
        if self.log is None or not leads:
            yield bar, lambda fitted: None
            return
        settings = {"method": runs.plain(method), "seed": self.seed}
        with logger(self.log, self._out, to=self.log_to, settings=settings, then=bar) as log:
            yield log, log.result

    @property
    def _out(self) -> Path:
        return self.out or Path("runs") / Path(stores.base_name(self.data)).stem
