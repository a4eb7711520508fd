"""Executors: where independent fits run. Processes of this machine, a Ray cluster, or the jobs of SLURM.

An executor is a `concurrent.futures.Executor`, used in a `with` statement. Calls run elsewhere, as many at once as it
has workers; each is lost alone where its worker is killed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager

from ileed.errors import SettingsError
from ileed.executors.executor import AbstractExecutor, WorkerLostError
from ileed.executors.local import LocalExecutor
from ileed.executors.ray import RayExecutor
from ileed.executors.slurm import SlurmExecutor
from ileed.wording import did_you_mean

__all__ = [
    "EXECUTORS",
    "AbstractExecutor",
    "LocalExecutor",
    "RayExecutor",
    "SlurmExecutor",
    "WorkerLostError",
    "deal_blocks",
    "dealt_to",
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


_dealt_to: list[Executor | None] = [None]


@contextmanager
def deal_blocks(executor: Executor) -> Iterator[None]:
    """Let an executor compute the blocks of members of every fit in this block, to the same bits as without it.

    Blocks have the size `Ileed(member_block=)`; restarts, replicates with weights of their own and the policies of
    cross-fitting are members alike.
    """
    _dealt_to.append(executor)
    try:
        yield
    finally:
        _dealt_to.pop()


def dealt_to() -> Executor | None:
    """The executor that blocks of members are dealt to; None within no `deal_blocks`."""
    return _dealt_to[-1]
