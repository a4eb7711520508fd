"""Running a grid: simulate, fit and score on all cores, with the fits on a GPU where there is one."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar, final

import torch

from ileed import Demonstrations, IleedError, SettingsError, runs
from ileed.checking import whole_number
from ileed.runtime import resolve_device
from ileed.wording import did_you_mean
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
    progress: ProgressCallback | None = None,
) -> list[Path]:
    """Run every cell of an experiment, or those of some methods and settings, and write each to a file under `out`.

    Trials 0, 1, ... are run, as many as published by default. With `resume` those already in the files are kept; a
    file is written again whenever more of its trials are finished, so an interruption loses little. A trial that fails
    is recorded as such. Under the checkout's results/ nothing is written while its code has uncommitted changes. On a
    GPU all trials of a cell are fitted together while the cores simulate and score.
    """
    refuse_uncommitted(out)
    rule = "an experiment needs one or more, a whole number"
    count = experiment.trials if trials is None else whole_number("trials", trials, least=1, rule=rule)
    cores = len(os.sched_getaffinity(0))
    rule = "it needs one or more, a whole number, or None for as many as there are cores"
    processes = cores if workers is None else whole_number("workers", workers, least=1, rule=rule)
    grid = cells(experiment, methods=methods, settings=settings)
    if not grid:
        raise SettingsError(_refusal_of_nothing(experiment, methods, settings))
    done = {cell.slug: cell.read(out) if resume else {} for cell in grid}
    made = {cell.slug: cell.origins(out) if resume else [] for cell in grid}
    total = len(grid) * count
    torch_device = resolve_device(device)
    run = _run_on_gpu if torch_device.type == "cuda" else _run_on_cores
    began = time.monotonic()
    for cell, measured in run(experiment, _jobs(grid, done, count), str(torch_device), processes):
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
            progress(finished, total)
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
    experiment: AbstractExperiment, jobs: Sequence[Job], device: str, workers: int
) -> Iterator[tuple[Cell, list[Measured]]]:
    """Each core takes a block of trials from data to measurement, with all methods that share the data.

    First trials come first, so that an interrupted run has some of every cell.
    """
    tasks = sorted((task for job in jobs for task in _core_tasks(experiment, *job)), key=lambda task: task[1][0])
    with _process_pool(min(workers, max(len(tasks), 1))) as pool:
        waiting = {pool.submit(_run_block, own, trials): own for own, trials in tasks}
        for future, own in _as_completed(waiting):
            yield from zip(own, future.result(), strict=True)


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
    experiment: AbstractExperiment, jobs: Sequence[Job], device: str, workers: int
) -> Iterator[tuple[Cell, list[Measured]]]:
    """The cores simulate ahead and score behind; the fits, all trials of a cell together, run here in between."""
    scoring: dict[Future[list[Measured]], Cell] = {}
    with _process_pool(workers) as pool:
        ahead = [
            [pool.submit(experiment.demonstrations, setting, block) for block in _blocks(trials, experiment.block)]
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
                        scoring[pool.submit(_score, cell, trial, pickle.dumps(attempt))] = cell
                else:
                    scoring |= {pool.submit(_run_trial, cell, trial): cell for trial in trials}
                for future in [future for future in scoring if future.done()]:
                    yield scoring.pop(future), future.result()
        for future, cell in _as_completed(scoring):
            yield cell, future.result()


def _is_fitted_on_gpu(cell: Cell) -> bool:
    return cell.learner is not None and runs_on(cell.learner, "cuda")


_Waiting = TypeVar("_Waiting")


def _as_completed(waiting: dict[Future[Any], _Waiting]) -> Iterator[tuple[Future[Any], _Waiting]]:
    while waiting:
        for future in wait(waiting, return_when=FIRST_COMPLETED).done:
            yield future, waiting.pop(future)


@contextmanager
def _process_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Fresh processes, one thread each; jobs that have not begun are dropped when the run is interrupted."""
    pool = ProcessPoolExecutor(
        workers, mp_context=get_context("forkserver"), initializer=torch.set_num_threads, initargs=(1,)
    )
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _score(cell: Cell, trial: int, packed: bytes) -> list[Measured]:
    # Packed by this run itself and never a file: torch would pass every tensor through a file descriptor of its own.
    return [_measure(cell, trial, pickle.loads(packed))]


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
