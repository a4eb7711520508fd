"""Executors: where independent fits run. Processes of this machine, a Ray cluster, or the jobs of SLURM.

An executor is a `concurrent.futures.Executor`, used in a `with` statement. Calls run elsewhere, as many at once as it
has workers; each is lost alone where its worker is killed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ileed.errors import SettingsError, did_you_mean
from ileed.parallel.abstract_executor import AbstractExecutor, WorkerLostError
from ileed.parallel.local import LocalExecutor
from ileed.parallel.ray import RayExecutor
from ileed.parallel.slurm import SlurmExecutor

__all__ = [
    "EXECUTORS",
    "AbstractExecutor",
    "LocalExecutor",
    "RayExecutor",
    "SlurmExecutor",
    "WorkerLostError",
    "executor",
]

EXECUTORS: Mapping[str, Callable[[int | None], AbstractExecutor]] = {
    "local": LocalExecutor,
    "ray": RayExecutor,
    "slurm": SlurmExecutor,
}
"""The executors by name; each takes the number of calls to run at once, or None for its default."""


def executor(name: str, workers: int | None = None) -> AbstractExecutor:
    """The executor of that name, with `workers` calls at once."""
    if name not in EXECUTORS:
        raise SettingsError(
            f"no executor is called {name!r}{did_you_mean(name, list(EXECUTORS))}; there are {', '.join(EXECUTORS)}"
        )
    return EXECUTORS[name](workers)
