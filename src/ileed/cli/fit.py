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
from ileed.cli.console import Output, fit_bar, print_json, say_fit, summary
from ileed.cli.data import OfData, column_names
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
    "all restarts are one block, so the {} processes share its data at every step: --member-block {} distributes the "
    "restarts instead, which is faster unless the data are large"
)
_MODELS = tuple(part.__name__.lower() for part in parts_of_kind(AbstractDemonstratorModel))


@dataclass(frozen=True, kw_only=True)
class Settings(Ileed):  # type: ignore[misc]  # Ileed is final for users; only the name of one option differs here
    """The settings of `ileed.Ileed`, with --demonstrator-model for the demonstrator model."""

    demonstrator: Annotated[AbstractDemonstratorModel[Any] | Literal["auto"] | None, arg(name="demonstrator-model")] = (
        None
    )
    """How a demonstrator of given expertise acts: auto chooses by held-out episodes, none is the model of the paper."""


@dataclass(frozen=True)
class OfMethod(OfData):
    """A command that fits to a data set with the settings of `ileed.Ileed`."""

    seed: int = 0
    """The seed of all random numbers: the same seed on the same machine gives the same bits."""
    device: str = "auto"
    """cpu, cuda, or auto for the best available."""
    executor: str = ""
    """Fit models or blocks of restarts (--member-block) in parallel: local, ray (a Ray cluster) or slurm (jobs)."""
    workers: int | None = None
    """The number of workers of an executor; the number of cores by default."""
    method: OmitArgPrefixes[Settings] = Settings()
    """The settings of `ileed.Ileed`, written as in Python."""

    def check_machine(self) -> None:
        """Refuse a missing device, and workers without an executor, before a large file is read."""
        resolve_device(self.device)
        if self.workers is not None and not self.executor:
            raise SettingsError("--workers needs an executor: add --executor local, for example")

    def open_executor(self) -> AbstractContextManager[AbstractExecutor | None]:
        """The executor of --executor, or None."""
        return executor(self.executor, self.workers) if self.executor else nullcontext()


@dataclass(frozen=True)
class Fit(OfMethod):
    """Fit a policy and the expertise of every demonstrator to a data set, and save the run.

    A parquet file has the columns that `ileed.formats.parquet` lists; a table has one column per feature. After an
    interruption, the same command continues from the last checkpoint.
    """

    takes_several_processes: ClassVar[bool] = True
    out: Path | None = None
    """The run directory; runs/NAME-OF-DATA by default."""
    overwrite: bool = False
    """Replace an existing run instead of refusing it; other files in the directory are kept."""
    check_width: bool | None = None
    """Compare widths of the policy on held-out episodes; by default only if --policy is not given, to choose one."""
    outcome: str | None = None
    """Outcomes of episodes, as evidence of skill: success, reward, duration, or a skill column constant in episodes."""
    better: Literal["higher", "lower"] | None = None
    """Which outcomes are better; higher by default, required with --outcome duration."""
    log: str | None = None
    """Also log progress and results, to tensorboard, wandb or trackio."""
    log_to: str | None = None
    """The folder for TensorBoard (by default OUT.tensorboard), or the project for wandb and trackio (ileed)."""

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
            found = f"--demonstrator names a column, but {column} is a demonstrator model"
            raise SettingsError(f"{found}: write --demonstrator-model {column}")
        if self.log is not None:
            check_logger(self.log)
        elif self.log_to is not None:
            raise SettingsError("--log-to needs a logger: add --log tensorboard, for example")
        data = self.read()
        method = Ileed(**vars(self.method))
        restarts = method.for_data(data).usual_restarts
        if method.member_block is not None and method.member_block > restarts:
            found = f"--member-block is {method.member_block}, but there are only {restarts} restarts"
            raise SettingsError(f"{found}: pass {restarts} or fewer")
        if job.count > 1 and method.member_block is None:
            warnings.warn(_DATA_ARE_SHARED.format(job.count, -(-restarts // job.count)), stacklevel=1)
        if self.executor and method.member_block is None:
            raise SettingsError("--executor runs blocks of restarts, but there is only one block: add --member-block")
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
        """Say whether there is a checkpoint to continue from."""
        path = runs.checkpoint_path(self._out)
        if any(path.parent.glob(f"{escape(path.name)}*")):  # of the fit, or of the comparison of widths
            return "the same command continues from the last checkpoint"
        return "nothing was saved yet, so the same command starts from the beginning"

    @contextmanager
    def _logged(
        self, method: Ileed, bar: ProgressCallback, *, leads: bool
    ) -> Iterator[tuple[ProgressCallback, Callable[[Fitted], object]]]:
        """The progress callback of the fit and a function that logs its result; without a logger, only the bar."""
        if self.log is None or not leads:
            yield bar, lambda fitted: None
            return
        settings = {"method": runs.plain(method), "seed": self.seed}
        with logger(self.log, self._out, to=self.log_to, settings=settings, then=bar) as log:
            yield log, log.result

    @property
    def _out(self) -> Path:
        return self.out or Path("runs") / Path(stores.base_name(self.data)).stem
