"""Running a grid: simulate, fit and score on all cores, with the fits on a GPU where there is one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, final

import torch

from ileed import Demonstrations, IleedError, RunError, SettingsError, runs
from ileed.errors import did_you_mean, whole_number
from ileed.parallel import AbstractExecutor, WorkerLostError
from ileed.parallel import executor as executor_of
from ileed.parallel.runtime import resolve_device
from ileed_lab.grid import AbstractExperiment, Cell, Setting, cells
from ileed_lab.learners import fit_one, fit_seconds, fits_together, runs_on
from ileed_lab.records import Measured

__all__ = ["reproduce"]

ProgressCallback = Callable[[int, int], None]
"""Called with the number of finished trials in all cells together, and with that of all trials."""


def refuse_uncommitted(out: Path) -> None:
    """Refuse to write under results/ of our checkout while it has uncommitted changes."""
    results, commit = Path(runs.__file__).resolve().parents[3] / "results", runs.provenance()["commit"]
    if commit is not None and commit.endswith("-dirty") and out.resolve().is_relative_to(results):
        raise SettingsError(
            f"{results} holds records of committed code alone, and this checkout has uncommitted changes ({commit}): "
            "commit them first, or pass another --out"
        )


def reproduce(
    experiment: AbstractExperiment,
    *,
    out: Path,
    trials: int | None = None,
    methods: Sequence[str] | None = None,
    settings: Sequence[str] | None = None,
    resume: bool = False,
    device: str = "auto",
    workers: int | None = None,
    executor: str | AbstractExecutor = "local",
    progress: ProgressCallback | None = None,
) -> list[Path]:
    """Run every cell of an experiment, or those of some methods and settings, and write each to a file under `out`.

    Trials 0, 1, ... are run, as many as published by default. With `resume` those already in the files are kept; a
    file is written again whenever more of its trials are finished, so an interruption loses little. A trial that fails
    is recorded as such; trials whose worker was killed are missing, and `RunError` says so when all others are done.
    Under the checkout's results/ nothing is written while its code has uncommitted changes. On a GPU all trials of a
    cell are fitted together while the cores simulate and score. `executor` is, or names, one of `ileed.parallel`:
    with another than "local" everything but the files is done by its workers, on their cores.
    """
    refuse_uncommitted(out)
    rule = "an experiment needs one or more, a whole number"
    count = experiment.trials if trials is None else whole_number("trials", trials, least=1, rule=rule)
    if workers is not None:
        whole_number("workers", workers, least=1, rule="it needs one or more, or None for the executor's default")
    if not (grid := cells(experiment, methods=methods, settings=settings)):
        raise SettingsError(_refusal_of_nothing(experiment, methods, settings))
    done = {cell.slug: cell.read(out) if resume else {} for cell in grid}
    made = {cell.slug: cell.origins(out) if resume else [] for cell in grid}
    torch_device = resolve_device("cpu" if executor != "local" and device == "auto" else device)
    run = _run_on_gpu if torch_device.type == "cuda" else _run_on_cores
    if run is _run_on_gpu and executor != "local":
        raise SettingsError("workers elsewhere fit on their cores: pass --device cpu, or --executor local")
    workplace = executor_of(executor, workers) if isinstance(executor, str) else executor
    began, lost = time.monotonic(), list[WorkerLostError]()
    for cell, measured in run(experiment, _jobs(grid, done, count), str(torch_device), workplace):
        if isinstance(measured, WorkerLostError):
            lost.append(measured)
            continue
        for trial in measured:
            done[cell.slug][trial["trial"]] = trial
        origin = runs.provenance() | {
            "device": torch.cuda.get_device_name(torch_device) if torch_device.type == "cuda" else "cpu",
            "trials": [trial["trial"] for trial in measured],
            "seconds_since_start": round(time.monotonic() - began, 1),
        }
        made[cell.slug] = _add_origin(made[cell.slug], origin)
        cell.write(out, done[cell.slug].values(), made[cell.slug])
        if progress is not None:
            finished = sum(len([trial for trial in each if trial < count]) for each in done.values())
            progress(finished, len(grid) * count)
    if lost:
        raise RunError(
            f"{len(lost)} of the cells lost trials with the workers that ran them (the last: {lost[-1]}): everything "
            "else is written, and the same command with --resume runs what is missing",
            code="trials-lost",
        )
    return [cell.path(out) for cell in grid]


def _refusal_of_nothing(
    experiment: AbstractExperiment, methods: Sequence[str] | None, settings: Sequence[str] | None
) -> str:
    if methods is not None and not cells(experiment, methods=methods):
        known = sorted({cell.method for cell in cells(experiment)})
        meant = did_you_mean(methods[0], known) if methods else ""
        return f"no method of {experiment.name} is called {list(methods)}{meant}; its methods are {known}"
    known = sorted({str(value) for setting in experiment.settings() for value in setting.values()})
    meant = did_you_mean(settings[0], known) if settings else ""
    return (
        f"no setting of {experiment.name} has {list(settings or ())}{meant} with these methods; "
        f"its settings are {known}"
    )


Job = tuple[Setting, list[Cell], list[int]]
"""Cells of one setting that lack the same trials, so that they can share their data."""


def _jobs(grid: Sequence[Cell], done: dict[str, dict[int, Measured]], count: int) -> list[Job]:
    """The missing trials."""
    jobs: dict[tuple[str, tuple[int, ...]], Job] = {}
    for cell in grid:
        missing = [trial for trial in range(count) if trial not in done[cell.slug]]
        if missing:
            key = repr(sorted(cell.setting.items())), tuple(missing)
            jobs.setdefault(key, (cell.setting, [], missing))[1].append(cell)
    return list(jobs.values())


def _add_origin(made: list[dict[str, Any]], origin: dict[str, Any]) -> list[dict[str, Any]]:
    """Origins with one more; blocks of the same run are one entry."""
    same = ("commit", "machine", "device", "ileed", "torch", "numpy", "python")
    if made and all(made[-1].get(name) == origin.get(name) for name in same):
        return [*made[:-1], origin | {"trials": sorted({*made[-1]["trials"], *origin["trials"]})}]
    return [*made, origin]


def _run_on_cores(
    experiment: AbstractExperiment, jobs: Sequence[Job], device: str, executor: AbstractExecutor
) -> Iterator[tuple[Cell, list[Measured] | WorkerLostError]]:
    """Each core takes a block of trials from data to measurement, with all methods that share the data.

    First trials come first, so that an interrupted run has some of every cell.
    """
    tasks = sorted((task for job in jobs for task in _core_tasks(experiment, *job)), key=lambda task: task[1][0])
    with executor:
        waiting = {executor.submit(_on_one_thread, _run_block, own, trials): own for own, trials in tasks}
        for future, own in _as_completed(waiting):
            measured = _measured(future)
            yield from zip(
                own, [measured] * len(own) if isinstance(measured, WorkerLostError) else measured, strict=True
            )


def _core_tasks(
    experiment: AbstractExperiment, setting: Setting, own: Sequence[Cell], trials: Sequence[int]
) -> Iterator[tuple[list[Cell], Sequence[int]]]:
    """What a core runs at a time; a fit that takes long runs alone, others share the data that they learn from."""
    alone = [
        cell for cell in own if experiment.block == 1 or (cell.learner is not None and not fits_together(cell.learner))
    ]
    yield from (([cell], [trial]) for cell in alone for trial in trials)
    together = [cell for cell in own if cell not in alone]
    if together:
        yield from ((together, block) for block in _blocks(trials, experiment.block))


def _blocks(trials: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    return (trials[start : start + size] for start in range(0, len(trials), size))


def _run_on_gpu(
    experiment: AbstractExperiment, jobs: Sequence[Job], device: str, executor: AbstractExecutor
) -> Iterator[tuple[Cell, list[Measured] | WorkerLostError]]:
    """The cores simulate ahead and score behind; the fits, all trials of a cell together, run here in between."""
    scoring: dict[Future[list[Measured]], Cell] = {}

    def submit(function: Callable[..., _Result], *args: Any) -> Future[_Result]:
        return executor.submit(_on_one_thread, function, *args)

    with executor:
        ahead = [
            [submit(experiment.demonstrations, setting, block) for block in _blocks(trials, experiment.block)]
            if any(_is_fitted_on_gpu(cell) for cell in own)
            else []
            for setting, own, trials in jobs
        ]
        for (_, own, trials), data in zip(jobs, ahead, strict=True):
            datasets = [each for future in data for each in future.result() if each is not None]
            data.clear()
            for cell in own:
                if _is_fitted_on_gpu(cell):
                    for trial, attempt in zip(trials, _fits(cell, trials, datasets, device), strict=True):
                        scoring[submit(_score, cell, trial, attempt)] = cell
                else:
                    scoring |= {submit(_run_trial, cell, trial): cell for trial in trials}
                for future in [future for future in scoring if future.done()]:
                    yield scoring.pop(future), _measured(future)
        for future, cell in _as_completed(scoring):
            yield cell, _measured(future)


def _is_fitted_on_gpu(cell: Cell) -> bool:
    return cell.learner is not None and runs_on(cell.learner, "cuda")


_Waiting = TypeVar("_Waiting")
_Result = TypeVar("_Result")


def _as_completed(waiting: dict[Future[Any], _Waiting]) -> Iterator[tuple[Future[Any], _Waiting]]:
    while waiting:
        for future in wait(waiting, return_when=FIRST_COMPLETED).done:
            yield future, waiting.pop(future)


def _measured(future: Future[list[Any]]) -> list[Any] | WorkerLostError:
    try:
        return future.result()
    except WorkerLostError as error:
        return error


def _on_one_thread(function: Callable[..., _Result], *args: Any) -> _Result:
    """Runs in a worker, of which there are as many as cores."""
    torch.set_num_threads(1)
    return function(*args)


def _score(cell: Cell, trial: int, attempt: _Attempt) -> list[Measured]:
    return [_measure(cell, trial, attempt)]


def _run_trial(cell: Cell, trial: int) -> list[Measured]:
    return _run_block([cell], [trial])[0]


def _run_block(own: Sequence[Cell], trials: Sequence[int]) -> list[list[Measured]]:
    """A block of trials from data to measurement, on one core, for cells that share their data."""
    experiment, setting = own[0].experiment, own[0].setting
    data = experiment.demonstrations(setting, trials)
    return [
        [_measure(cell, trial, each) for trial, each in zip(trials, _fits(cell, trials, data, "cpu"), strict=True)]
        for cell in own
    ]


@final
@dataclass(frozen=True)
class _Attempt:
    """A fit, or why it failed; neither where nothing is fitted."""

    fit: Any = None
    failure: str | None = None


def _fits(cell: Cell, trials: Sequence[int], data: Sequence[Demonstrations | None], device: str) -> Iterator[_Attempt]:
    """The fit of each trial of a cell, as soon as it is there.

    Where fits that run together fail, each is run again alone, so that only the trial that failed is lost.
    """
    learner = cell.learner
    if learner is None:
        yield from (_Attempt() for _ in trials)
        return
    datasets = [each for each in data if each is not None]
    if len(trials) > 1 and fits_together(learner):
        try:
            together = learner.fit_each(datasets, seeds=trials, device=device)
        except Exception:
            pass  # which of them failed shows below
        else:
            yield from map(_Attempt, together)
            return
    for trial, each in zip(trials, datasets, strict=True):
        try:
            attempt = _Attempt(fit_one(learner, each, seed=trial, device=device))
        except Exception as error:
            attempt = _Attempt(failure=_reason(error))
        yield attempt


def _reason(error: Exception) -> str:
    """The sentence of an error of ours; of another, its kind as well."""
    return str(error) if isinstance(error, IleedError) else f"{type(error).__name__}: {error}"


def _measure(cell: Cell, trial: int, attempt: _Attempt) -> Measured:
    began = time.monotonic()
    measured: Measured = {"failed": attempt.failure}
    if attempt.failure is None:
        try:
            measured = cell.experiment.measure(cell.setting, cell.method, trial, attempt.fit)
        except Exception as error:
            measured = {"failed": _reason(error)}
    spent = {
        "fit_seconds": round(fit_seconds(attempt.fit), 3),
        "score_seconds": round(time.monotonic() - began, 3),
    }
    return {"trial": trial} | measured | spent
