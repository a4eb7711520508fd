"""Executors: where independent fits run. Processes of this machine, a Ray cluster, or SLURM jobs.

An executor is a `concurrent.futures.Executor`, used in a `with` statement. It runs as many calls at once as it has
workers; if a worker is killed, only the result of its own call is lost.
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from pathlib import Path
from queue import LifoQueue
from typing import Any, ParamSpec, TypeVar, final

from ileed.errors import RunError, SettingsError, at_least_one, did_you_mean, require

__all__ = [
    "EXECUTORS",
    "AbstractExecutor",
    "LocalExecutor",
    "RayExecutor",
    "SlurmExecutor",
    "WorkerLostError",
    "executor",
]

_Parameters = ParamSpec("_Parameters")
_Returned = TypeVar("_Returned")
_Answer = tuple[Any, BaseException | None]  # what a call returned, or what it raised


class WorkerLostError(RunError):
    """The process that ran a call was killed or ran out of memory, and the result is lost."""

    code = "worker-lost"


class AbstractExecutor(ThreadPoolExecutor, ABC):
    """Calls that run elsewhere, each awaited by a thread of this process.

    Laws, which `tests/conformance` checks for every executor: a future returns what its function returned, or raises
    what it raised; functions and arguments are pickled, so a function must be importable by name; if a worker is
    killed, the future of its call raises `WorkerLostError` and all others finish; leaving the `with` statement by an
    exception stops the running calls and cancels the others.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        super().__init__(workers)

    def submit(
        self, fn: Callable[_Parameters, _Returned], /, *args: _Parameters.args, **kwargs: _Parameters.kwargs
    ) -> Future[_Returned]:
        """Send a call once a worker is free."""
        return super().submit(self._returned, partial(fn, *args, **kwargs))

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None:
            self.shutdown(wait=False, cancel_futures=True)
            self._stop()
        self.shutdown(wait=True)
        self._stop()

    @abstractmethod
    def _answer(self, call: Callable[[], Any]) -> _Answer:
        """`_answer_of` the call, computed by a worker, or a `WorkerLostError`."""

    @abstractmethod
    def _stop(self) -> None:
        """Stop the workers and whatever they run, and disconnect from the cluster."""

    def _returned(self, call: Callable[[], _Returned]) -> _Returned:
        value, error = self._answer(call)
        if error is not None:
            raise error
        return value


def _answer_of(call: Callable[[], Any]) -> _Answer:
    """Run a call in a worker. An exception is returned, since some executors lose its class if it is raised."""
    try:
        return call(), None
    except BaseException as error:
        return None, error


@final
class LocalExecutor(AbstractExecutor):
    """Processes of this machine: `workers` of them, by default one per core.

    Each is a pool of its own, started with its first call, because a pool that loses a process gives up all its calls.
    """

    def __init__(self, workers: int | None = None) -> None:
        at_least_one(workers=workers)
        super().__init__(workers or len(os.sched_getaffinity(0)))
        self._free: LifoQueue[ProcessPoolExecutor] = LifoQueue()
        self._pools: set[ProcessPoolExecutor] = set()
        for _ in range(self.workers):
            self._add_pool()

    def _add_pool(self) -> None:
        pool = ProcessPoolExecutor(1, mp_context=get_context("forkserver"), initializer=_end_with_parent)
        self._pools.add(pool)
        self._free.put(pool)

    def _answer(self, call: Callable[[], Any]) -> _Answer:
        packed = pickle.dumps(call)
        pool = self._free.get()  # never waits: there are as many pools as threads
        try:
            found: _Answer = pool.submit(_unpacked_answer, packed).result()
        except BrokenProcessPool as error:
            self._pools.remove(pool)
            self._add_pool()
            raise WorkerLostError(
                "a worker process was killed, perhaps for lack of memory: run what is missing again, with fewer "
                "workers if memory is short"
            ) from error
        except Exception:  # the result cannot be pickled
            self._free.put(pool)
            raise
        self._free.put(pool)
        return found

    def _stop(self) -> None:
        for pool in list(self._pools):
            for process in list((pool._processes or {}).values()):
                process.kill()
            pool.shutdown()


def _unpacked_answer(packed: bytes) -> _Answer:
    """`_answer_of`, or why the call cannot be unpickled here, as for a function of the user's own script."""
    try:
        return _answer_of(pickle.loads(packed))  # written by our own process, never a file
    except Exception as error:
        return None, error


def _end_with_parent() -> None:
    """Leave interrupts to the parent process, and exit whenever it exits."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=lambda: (wait([parent.sentinel]), os._exit(1)), daemon=True).start()


@final
class RayExecutor(AbstractExecutor):
    """Tasks of a Ray cluster, one core each.

    A cluster that was joined before (`ray.init`) or that RAY_ADDRESS names is used and left running; without either, a
    cluster of this machine is started and stopped. All machines of a cluster need the same version of this package.
    """

    def __init__(self, workers: int | None = None) -> None:
        at_least_one(workers=workers)
        ray = require("ray", extra="ray")
        self._ray, self._joined = ray, not ray.is_initialized()
        if self._joined:
            own = {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": workers, "include_dashboard": False}
            ray.init(logging_level="error", log_to_driver=False, **own)
        # lost tasks raise an error; nothing is retried silently
        self._remote = ray.remote(num_cpus=1, max_retries=0)(_answer_of)
        super().__init__(workers or int(ray.cluster_resources().get("CPU", 1)))

    def _answer(self, call: Callable[[], Any]) -> _Answer:
        errors = self._ray.exceptions
        try:
            found: _Answer = self._ray.get(self._remote.remote(call))
        except (errors.RayTaskError, errors.RuntimeEnvSetupError):  # the worker lives, and cannot read the call
            raise
        except errors.RayError as error:
            raise WorkerLostError(
                f"a worker of Ray was lost with its task ({type(error).__name__}): run what is missing again"
            ) from error
        return found

    def _stop(self) -> None:
        if self._joined and self._ray.is_initialized():
            self._ray.shutdown()


@final
class SlurmExecutor(AbstractExecutor):
    """SLURM jobs, through submitit: one per call, at most `workers` in the queue at once, with logs in `folder`.

    Partition, account, time and memory are taken from SLURM's own variables: SBATCH_PARTITION, SBATCH_ACCOUNT,
    SBATCH_TIMELIMIT, SBATCH_MEM_PER_CPU. All machines must see the folder. `cluster="local"` runs the same jobs as
    processes of this machine, to try a command before it is queued.
    """

    def __init__(
        self, workers: int | None = None, *, folder: Path = Path("runs/slurm"), cluster: str = "slurm"
    ) -> None:
        at_least_one(workers=workers)
        submitit = require("submitit", extra="slurm")
        if cluster == "slurm" and shutil.which("sbatch") is None:
            raise SettingsError(
                "there is no sbatch on this machine: run this where SLURM takes jobs, or use another executor"
            )
        self._lost = (submitit.core.utils.UncompletedJobError, submitit.core.utils.FailedJobError)
        self._lock, self._jobs = threading.Lock(), dict[str, Any]()
        self._queue = submitit.AutoExecutor(folder=folder, cluster=cluster)
        self._queue.update_parameters(name="ileed", cpus_per_task=1, timeout_min=24 * 60)
        super().__init__(workers or 64)

    def _answer(self, call: Callable[[], Any]) -> _Answer:
        with self._lock:
            job = self._queue.submit(_answer_of, call)
            self._jobs[job.job_id] = job
        try:
            found: _Answer = job.result()
        except self._lost as error:
            raise WorkerLostError(
                f"job {job.job_id} ended without a result ({job.paths.stderr} has its log): run what is missing again"
            ) from error
        finally:
            self._jobs.pop(job.job_id)
        return found

    def _stop(self) -> None:
        for job in list(self._jobs.values()):
            job.cancel()


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
            f"no executor is called {name!r}{did_you_mean(name, EXECUTORS)}; choose one of {', '.join(EXECUTORS)}"
        )
    return EXECUTORS[name](workers)
