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

from ileed import runs
from ileed.checking import whole_number
from ileed.demonstrations import Demonstrations
from ileed.errors import IleedError, SettingsError
from ileed.methods import Ileed
from ileed.runtime import resolve_device
from ileed.wording import did_you_mean
from ileed_lab.baselines import AbstractOffline, Gail
from ileed_lab.grid import AbstractExperiment, Cell, Measured, Setting, cells

__all__ = ["reproduce"]

Watch = Callable[[int, int], None]
"""Told how many trials are done in all cells together, and of how many."""


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
    progress: Watch | None = None,
) -> list[Path]:
    """Run every cell of an experiment, or those of some methods and settings, and write each to a file under `out`.

    Trials 0, 1, ... are done, as many as published by default. With `resume` those already in the files are kept; a
    file is written anew whenever more of its trials are done, so an interruption loses little. A trial that fails is
    recorded as such. Under the checkout's results/ nothing is written while its code has uncommitted changes. On a GPU
    all trials of a cell are fitted at once while the cores simulate and score.
    """
    runs.refuse_uncommitted(out)
    rule = "an experiment needs one or more, a whole number"
    count = experiment.trials if trials is None else whole_number("trials", trials, least=1, rule=rule)
    cores = len(os.sched_getaffinity(0))
    rule = "it needs one or more, a whole number, or None for as many as there are cores"
    processes = cores if workers is None else whole_number("workers", workers, least=1, rule=rule)
    grid = cells(experiment, methods=methods, settings=settings)
    if not grid:
        raise SettingsError(_nothing_chosen(experiment, methods, settings))
    done = {cell.slug: cell.read(out) if resume else {} for cell in grid}
    made = {cell.slug: cell.origins(out) if resume else [] for cell in grid}
    total = len(grid) * count
    place = resolve_device(device)
    results = (_on_a_gpu if place.type == "cuda" else _on_cores)(
        experiment, _missing(grid, done, count), str(place), processes
    )
    began = time.monotonic()
    for cell, measured in results:
        for trial in measured:
            done[cell.slug][trial["trial"]] = trial
        origin = runs.provenance() | {
            "device": torch.cuda.get_device_name(place) if place.type == "cuda" else "cpu",
            "trials": [trial["trial"] for trial in measured],
            "seconds_since_start": round(time.monotonic() - began, 1),
        }
        made[cell.slug] = _joined(made[cell.slug], origin)
        cell.write(out, done[cell.slug].values(), made[cell.slug])
        if progress is not None:
            finished = sum(len([trial for trial in each if trial < count]) for each in done.values())
            progress(finished, total)
    return [cell.path(out) for cell in grid]


def _nothing_chosen(
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


def _missing(grid: Sequence[Cell], done: dict[str, dict[int, Measured]], count: int) -> list[Job]:
    jobs: dict[tuple[str, tuple[int, ...]], Job] = {}
    for cell in grid:
        lacking = [trial for trial in range(count) if trial not in done[cell.slug]]
        if lacking:
            key = repr(sorted(cell.setting.items())), tuple(lacking)
            jobs.setdefault(key, (cell.setting, [], lacking))[1].append(cell)
    return list(jobs.values())


def _joined(made: list[dict[str, Any]], origin: dict[str, Any]) -> list[dict[str, Any]]:
    """Origins with one more; blocks of the same run are one entry."""
    same = ("commit", "machine", "device", "ileed", "torch", "numpy", "python")
    if made and all(made[-1].get(name) == origin.get(name) for name in same):
        return [*made[:-1], origin | {"trials": sorted({*made[-1]["trials"], *origin["trials"]})}]
    return [*made, origin]


def _on_cores(
    experiment: AbstractExperiment, jobs: Sequence[Job], device: str, workers: int
) -> Iterator[tuple[Cell, list[Measured]]]:
    """Each core takes a block of trials from data to measurement, with all methods that share the data.

    First trials come first, so that an interrupted run has some of every cell.
    """
    units = sorted((unit for job in jobs for unit in _units(experiment, *job)), key=lambda unit: unit[1][0])
    with _pool(min(workers, max(len(units), 1))) as pool:
        waiting = {pool.submit(_whole, own, trials): own for own, trials in units}
        for future, own in _as_completed(waiting):
            yield from zip(own, future.result(), strict=True)


def _units(
    experiment: AbstractExperiment, setting: Setting, own: Sequence[Cell], trials: Sequence[int]
) -> Iterator[tuple[list[Cell], Sequence[int]]]:
    """What a core does at a time; a fit that takes long is alone, others share the data that they learn from."""
    alone = [
        cell
        for cell in own
        if experiment.block == 1 or (cell.learner is not None and not isinstance(cell.learner, Ileed))
    ]
    yield from (([cell], [trial]) for cell in alone for trial in trials)
    together = [cell for cell in own if cell not in alone]
    if together:
        yield from ((together, block) for block in _blocks(trials, experiment.block))


def _blocks(trials: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    return (trials[start : start + size] for start in range(0, len(trials), size))


def _on_a_gpu(
    experiment: AbstractExperiment, jobs: Sequence[Job], device: str, workers: int
) -> Iterator[tuple[Cell, list[Measured]]]:
    """The cores simulate ahead and score behind; the fits, all trials of a cell at once, are done here in between."""
    scoring: dict[Future[list[Measured]], Cell] = {}
    with _pool(workers) as pool:
        ahead = [
            [pool.submit(experiment.demonstrations, setting, block) for block in _blocks(trials, experiment.block)]
            if any(_fits_on_a_gpu(cell) for cell in own)
            else []
            for setting, own, trials in jobs
        ]
        for (_, own, trials), data in zip(jobs, ahead, strict=True):
            datasets = [each for future in data for each in future.result() if each is not None]
            data.clear()
            for cell in own:
                if _fits_on_a_gpu(cell):
                    for trial, found in zip(trials, _found(cell, trials, datasets, device), strict=True):
                        scoring[pool.submit(_scored, cell, trial, pickle.dumps(found))] = cell
                else:
                    scoring |= {pool.submit(_only, cell, trial): cell for trial in trials}
                for future in [future for future in scoring if future.done()]:
                    yield scoring.pop(future), future.result()
        for future, cell in _as_completed(scoring):
            yield cell, future.result()


def _fits_on_a_gpu(cell: Cell) -> bool:
    """GAIL plays while it learns, and that is work for the cores."""
    return cell.learner is not None and not isinstance(cell.learner, Gail)


_Waiting = TypeVar("_Waiting")


def _as_completed(waiting: dict[Future[Any], _Waiting]) -> Iterator[tuple[Future[Any], _Waiting]]:
    while waiting:
        for future in wait(waiting, return_when=FIRST_COMPLETED).done:
            yield future, waiting.pop(future)


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Fresh processes, one thread each; what has not begun is dropped when the run is interrupted."""
    pool = ProcessPoolExecutor(
        workers, mp_context=get_context("forkserver"), initializer=torch.set_num_threads, initargs=(1,)
    )
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _scored(cell: Cell, trial: int, packed: bytes) -> list[Measured]:
    # Packed by this run itself and never a file: torch would pass every tensor through a file descriptor of its own.
    return [_recorded(cell, trial, pickle.loads(packed))]


def _only(cell: Cell, trial: int) -> list[Measured]:
    return _whole([cell], [trial])[0]


def _whole(own: Sequence[Cell], trials: Sequence[int]) -> list[list[Measured]]:
    """A block of trials from data to measurement, on one core, for cells that share their data."""
    experiment, setting = own[0].experiment, own[0].setting
    data = experiment.demonstrations(setting, trials)
    return [
        [_recorded(cell, trial, each) for trial, each in zip(trials, _found(cell, trials, data, "cpu"), strict=True)]
        for cell in own
    ]


@final
@dataclass(frozen=True)
class _Failed:
    """In place of what a learner found: why it found nothing."""

    reason: str


def _found(cell: Cell, trials: Sequence[int], data: Sequence[Demonstrations | None], device: str) -> Iterator[Any]:
    """What the learner of a cell found in each trial, as soon as it is there; `_Failed` where its fit failed.

    Where fits side by side fail, each is done again alone, so that the trial at fault is the only one lost.
    """
    learner = cell.learner
    if learner is None:
        yield from (None for _ in trials)
        return
    known = [each for each in data if each is not None]
    if len(trials) > 1 and isinstance(learner, Ileed | AbstractOffline):
        fit_each = learner.fit_each
        try:
            together = fit_each(known, seeds=trials, device=device)
        except Exception:
            pass  # which of them failed shows below
        else:
            yield from together
            return
    for trial, each in zip(trials, known, strict=True):
        try:
            found = _fitted(cell, trial, each, device)
        except Exception as error:
            found = _Failed(_reason(error))
        yield found


def _fitted(cell: Cell, trial: int, data: Demonstrations, device: str) -> Any:
    learner = cell.learner
    assert learner is not None  # `_found` asks for a fit only where there is something to fit
    if isinstance(learner, Ileed):
        return learner.fit_each([data], seeds=[trial], device=device)[0]
    if isinstance(learner, Gail):
        return learner.fit(data, task=cell.experiment.task(cell.setting), seed=trial)
    return learner.fit(data, seed=trial, device=device)


def _reason(error: Exception) -> str:
    """The sentence of an error of ours; of another, its kind as well."""
    return str(error) if isinstance(error, IleedError) else f"{type(error).__name__}: {error}"


def _recorded(cell: Cell, trial: int, found: Any) -> Measured:
    began = time.monotonic()
    try:
        if isinstance(found, _Failed):
            measured = {"failed": found.reason}
        else:
            measured = cell.experiment.measured(cell.setting, cell.method, trial, found)
    except Exception as error:
        measured = {"failed": _reason(error)}
    spent = {
        "fit_seconds": round(getattr(found, "seconds", 0.0), 3),
        "score_seconds": round(time.monotonic() - began, 3),
    }
    return {"trial": trial} | measured | spent
