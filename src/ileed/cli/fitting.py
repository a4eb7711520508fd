"""`ileed fit`: from a data set to a run directory; and the tables and summaries of fits and ratings."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from glob import escape
from math import isnan
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from rich.table import Column, Table
from tyro.conf import OmitArgPrefixes, arg

from ileed import processes, runs, stores
from ileed._torch import resolve_device
from ileed.cli.console import Output, fit_bar, plain, print_json
from ileed.cli.data import OfData, column_names
from ileed.demonstrations import Array
from ileed.errors import SettingsError
from ileed.executors import deal_blocks, executor
from ileed.fitted import Fitted
from ileed.fitted.evidence import SkillEvidence
from ileed.fitted.population import places_to_show
from ileed.fitted.ratings import Ratings
from ileed.fitting import ProgressCallback
from ileed.integrations.loggers import check_logger, logger
from ileed.methods import Ileed
from ileed.model.demonstrators import AbstractDemonstratorModel
from ileed.model.parts import parts_of_kind

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
    """How a person of given expertise acts; auto chooses by held-out episodes, none is the paper's."""


@dataclass(frozen=True)
class Fit(OfData):
    """Fit a policy and the expertise of every demonstrator to a data set; save the run.

    A parquet file has the columns that `ileed.readers.parquet` lists, a table one column for each feature. After an
    interruption the same command continues from the last checkpoint.
    """

    takes_several_processes: ClassVar[bool] = True
    out: Path | None = None
    """The run directory; runs/NAME-OF-DATA by default."""
    overwrite: bool = False
    """Replace an existing run, which is an error otherwise; other files in the directory stay."""
    seed: int = 0
    """The seed of all random numbers: the same seed on the same machine gives the same bits."""
    device: str = "auto"
    """cpu, cuda, or auto for the best available."""
    check_width: bool | None = None
    """Compare widths of the policy on held-out episodes; by default only if --policy is not given, to choose one."""
    executor: str = ""
    """Have blocks of restarts (--member-block) fitted by workers: local, ray (a Ray cluster) or slurm (jobs)."""
    workers: int | None = None
    """Blocks to fit at once with an executor; as many as there are cores by default."""
    outcome: str | None = None
    """How episodes went, as evidence of skill: success, reward, duration, or a skill column constant in episodes."""
    better: Literal["higher", "lower"] | None = None
    """Which outcomes are better; higher by default, and to be given with --outcome duration."""
    log: str | None = None
    """Log progress and results to tensorboard, wandb or trackio as well."""
    log_to: str | None = None
    """The folder of TensorBoard's files, OUT.tensorboard by default; or the project of the others, ileed by default."""
    method: OmitArgPrefixes[Settings] = Settings()
    """The settings of `ileed.Ileed`, written as in Python."""

    def __call__(self) -> None:
        out, job = self._out, processes.current()
        self.check_file()  # before a run of that name is mentioned
        if job.leads:
            runs.check_destination(out, overwrite=self.overwrite)
        resolve_device(self.device)  # an error now, not after a large file was read
        if (column := self.columns.demonstrator or "").partition("(")[0].strip().lower() in _MODELS:
            found = f"--demonstrator {column} is a demonstrator model, but this option names a column"
            raise SettingsError(f"{found}: write --demonstrator-model {column}")
        if self.log is not None:
            check_logger(self.log)
        elif self.log_to is not None:
            raise SettingsError("--log-to says where to log, but not with what: add --log tensorboard, say")
        if self.workers is not None and not self.executor:
            raise SettingsError("--workers says how many fits run at once, but not where: add --executor local, say")
        data = self.read()
        method = Ileed(**vars(self.method))
        if method.member_block is not None and method.member_block > method.restarts:
            found = f"--member-block is {method.member_block}, but there are {method.restarts} restarts to deal out"
            raise SettingsError(f"{found}: pass {method.restarts} or fewer")
        if job.count > 1 and method.member_block is None:
            warnings.warn(_DATA_ARE_SHARED.format(job.count, -(-method.restarts // job.count)), stacklevel=1)
        if self.executor and method.member_block is None:
            raise SettingsError(
                "--executor deals out blocks of restarts, but restarts are one block: add --member-block"
            )
        with (
            self._workers(),
            fit_bar("fitting", quiet=not job.leads) as bar,
            self._logged(method, bar) as (progress, log_result),
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
            )
            log_result(fitted)
        if not job.leads:
            return
        fitted.save(out, overwrite=self.overwrite)
        if self.json:
            print_json(summary(fitted) | column_names(data) | {"run": stores.name_of(out)})
            return
        _say_fit(Output(), fitted, stores.name_of(out))

    def after_an_interrupt(self) -> str:
        """Whether there is a checkpoint to continue from."""
        path = runs.checkpoint_path(self._out)
        if any(path.parent.glob(f"{escape(path.name)}*")):  # of the fit, or of one that compares widths
            return "the same command goes on from the last checkpoint"
        return "nothing was saved yet, so the same command starts from the beginning"

    @contextmanager
    def _workers(self) -> Iterator[None]:
        """Deal the blocks of all fits to an executor, where one is named."""
        if not self.executor:
            yield
            return
        with executor(self.executor, self.workers) as workers, deal_blocks(workers):
            yield

    @contextmanager
    def _logged(
        self, method: Ileed, bar: ProgressCallback
    ) -> Iterator[tuple[ProgressCallback, Callable[[Fitted], object]]]:
        """The progress callback of the fit, and what takes its result: with a logger, or the bar alone."""
        if self.log is None or not processes.current().leads:
            yield bar, lambda fitted: None
            return
        settings = {"method": runs.plain(method), "seed": self.seed}
        with logger(self.log, self._out, to=self.log_to, settings=settings, then=bar) as log:
            yield log, log.result

    @property
    def _out(self) -> Path:
        return self.out or Path("runs") / Path(stores.base_name(self.data)).stem


def _say_fit(console: Output, fitted: Fitted, saved: str) -> None:
    """The results of a fit for a terminal, and where it was saved."""
    if fitted.estimates_expertise:
        console.print(ranking(fitted))
    if fitted.expertise.ratings is not None:
        say_ratings(console, fitted.expertise.ratings)
    if fitted.evidence is not None:
        console.say(fitted.evidence.sentence())
    if fitted.width is not None:
        console.say(fitted.width_sentence)
    if fitted.comparison is not None:
        console.say(fitted.comparison.sentence())
    console.say(f"{fitted.nats_per_action:.4f} nats per action; {fitted.outcome.value}")
    console.say(f"saved in {saved}; next: ileed report {shlex.quote(saved)}")


def summary(fitted: Fitted) -> dict[str, Any]:
    """The results of a fit, for JSON."""
    found: dict[str, Any] = {
        "nats_per_action": fitted.nats_per_action,
        "outcome": fitted.outcome.value,
        "width": fitted.width_sentence or None,
        "demonstrator_model": fitted.comparison.sentence() if fitted.comparison is not None else None,
        "restarts": [float(cost) for cost in fitted.restarts.nats_per_action],
        "seconds": fitted.provenance["seconds"],
    }
    if fitted.estimates_expertise:
        own = fitted.expertise.by_demonstrator()
        found["expertise"] = {name: own[name] for name, _ in fitted.expertise.ranking()}
    if fitted.expertise.ratings is not None:
        found |= ratings_summary(fitted.expertise.ratings)
    return found | evidence_summary(fitted.evidence)


def evidence_summary(evidence: SkillEvidence | None) -> dict[str, Any]:
    """What actions and outcomes say alone, for JSON; empty without outcomes."""
    if evidence is None:
        return {}
    weight = evidence.weight._asdict()
    return {"evidence": {"table": evidence.table().to_pylist(), "weight": weight, "summary": evidence.sentence()}}


def ratings_summary(ratings: Ratings) -> dict[str, Any]:
    """Ratings for JSON."""
    table = ratings.table()
    told = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
    found = {"table": table.to_pylist(), "scale": told["scale"], "order": ratings.sentence()}
    return found if ratings.curves is None else found | {"drift": ratings.drift().to_pylist()}


def say_ratings(console: Output, ratings: Ratings) -> None:
    """Who can be told apart, and who improves or tires where expertise changes from episode to episode."""
    console.say(ratings.sentence())
    if ratings.curves is not None:
        console.say(ratings.curves.sentence(ratings.confidence_level))


ALL, ENDS, UNCERTAIN = 50, 15, 10
"""Up to how many people are all listed; of more, how many from either end and how many of the most uncertain."""


def _listed(table: Table, rows: list[list[str]], width: Array) -> None:
    """Add the rows of people, best first, or of the first, the last and those of greatest `width` between them."""
    shown = range(len(rows)) if len(rows) <= ALL else places_to_show(width, ends=ENDS, between=UNCERTAIN)
    for place, row in enumerate(shown):
        if place and (left := row - shown[place - 1] - 1):
            table.add_row(f"... {left:,} more ...", style="dim")
        table.add_row(*rows[row])


def _note(count: int, where: str) -> str:
    return f"{ENDS} from either end and the {UNCERTAIN} most uncertain of {count:,}; {where}"


def ratings_table(ratings: Ratings) -> Table:
    """A table of people, best first, with intervals of expertise relative to the mean over people, and of ranks."""
    found = ratings.table()
    percent = f"{100 * ratings.confidence_level:.0f} %"
    columns = [Column(name, justify="right") for name in ("expertise", f"{percent} interval", "rank", "steps")]
    notes = _note(found.num_rows, "--json has all") if found.num_rows > ALL else None
    table = Table("demonstrator", *columns, title=found.schema.metadata[b"scale"].decode(), caption=notes)
    rows = []
    for row in found.to_pylist():
        ranks = "{rank_low} to {rank_high}" if row["rank_low"] < row["rank_high"] else "{rank_low}"
        cells = (f"{row['expertise']:.2f}", f"{row['low']:.2f} to {row['high']:.2f}", ranks.format(**row))
        rows.append([plain(row["demonstrator"]), *cells, f"{row['steps']:,}"])
    _listed(table, rows, found["high"].to_numpy() - found["low"].to_numpy())
    return table


def ranking(fitted: Fitted, truth: Mapping[str, float] | None = None) -> Table:
    """A table of demonstrators in the order of `Expertise.ranking`, as reports have it.

    It has intervals, or without ratings the 10 to 90 % range of expertise over each demonstrator's steps.
    """
    ranked, ratings = fitted.expertise.ranking(), fitted.expertise.ratings
    people = [name for name, value in ranked if not isnan(value)]
    unknown = [plain(name) for name, value in ranked if isnan(value)]
    notes = [_note(len(people), "ileed report RUN --table FILE has all")] if len(people) > ALL else []
    if unknown:
        notes.append(f"{', '.join(unknown[:6])}{', ...' if len(unknown) > 6 else ''}: no step was learned from")
    columns, cells, width = _spread_of_steps(fitted) if ratings is None else _interval_cells(fitted)
    names = ["expertise", *columns, *([] if truth is None else ["truth"])]
    scale = "compare ratios, not levels" if ratings is None else "divided by its mean over demonstrators"
    title, caption = f"expertise, best first ({scale})", "; ".join(notes) or None
    table = Table("demonstrator", *(Column(name, justify="right") for name in names), title=title, caption=caption)
    rows = [[plain(name), *cells[name], *([] if truth is None else [f"{truth[name]:.2f}"])] for name in people]
    _listed(table, rows, np.array([width[name] for name in people]))
    return table


_Cells = tuple[list[str], dict[str, list[str]], dict[str, float]]  # titles, and everybody's cells and uncertainty


def _spread_of_steps(fitted: Fitted) -> _Cells:
    quantiles = dict(zip(fitted.expertise.names, fitted.expertise.summary.quantiles.tolist(), strict=True))
    own = fitted.expertise.by_demonstrator()
    cells = {name: [f"{own[name]:.3f}", f"{each[2]:.2f} to {each[18]:.2f}"] for name, each in quantiles.items()}
    return ["10 to 90 % of steps"], cells, {name: each[18] - each[2] for name, each in quantiles.items()}


def _interval_cells(fitted: Fitted) -> _Cells:
    words = ("{expertise:.2f}", "{low:.2f} to {high:.2f}", "{rank_low} to {rank_high}")
    numbers = {name: str(number) for number, name in enumerate(fitted.expertise.names)}  # a table holds no stray name
    rows = {row["demonstrator"]: row for row in fitted.renamed(numbers).expertise.table().to_pylist()}
    cells = {name: [each.format(**rows[number]) for each in words] for name, number in numbers.items()}
    width = {name: rows[number]["high"] - rows[number]["low"] for name, number in numbers.items()}
    return ["95 % interval", "rank"], cells, width
