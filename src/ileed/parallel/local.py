"""Processes of this machine, one for each call at a time."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from queue import LifoQueue
from typing import Any, final

from ileed.errors import at_least_one
from ileed.parallel.abstract_executor import AbstractExecutor, Answer, WorkerLostError, answer


@final
class LocalExecutor(AbstractExecutor):
    """Processes of this machine: as many as it has cores, or as many as `workers` says.

    Each is a pool of its own, started with the first call for it: a pool that loses a process gives up all its calls.
    """

    def __init__(self, workers: int | None = None) -> None:
        at_least_one(workers=workers)
        super().__init__(workers or len(os.sched_getaffinity(0)))
        self._free: LifoQueue[ProcessPoolExecutor] = LifoQueue()
        self._all: set[ProcessPoolExecutor] = set()
        for _ in range(self.workers):
            self._add()

    def _add(self) -> None:
        pool = ProcessPoolExecutor(1, mp_context=get_context("forkserver"), initializer=_end_with_parent)
        self._all.add(pool)
        self._free.put(pool)

    def _answer(self, function: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]) -> Answer:
        packed = pickle.dumps((function, args, options))
        pool = self._free.get()  # there is one, as there are no more threads than workers; the last used first
        try:
            found: Answer = pool.submit(_unpacked_answer, packed).result()
        except BrokenProcessPool as error:
            self._all.remove(pool)
            self._add()
            raise WorkerLostError(
                "a process was killed while it worked (for lack of memory?): run what is missing again, with fewer "
                "workers if memory is short"
            ) from error
        except Exception:  # what was returned cannot be pickled
            self._free.put(pool)
            raise
        self._free.put(pool)
        return found

    def _stop(self) -> None:
        for pool in list(self._all):
            for process in list((pool._processes or {}).values()):
                process.kill()
            pool.shutdown()


def _unpacked_answer(packed: bytes) -> Answer:
    """`answer`, or why the call cannot be unpickled here: a function of the user's own script, for example."""
    try:
        return answer(*pickle.loads(packed))  # written by our own process, never a file
    except Exception as error:
        return None, error


def _end_with_parent() -> None:
    """Leave interruption to the parent, and end when it ends, however it does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=lambda: (wait([parent.sentinel]), os._exit(1)), daemon=True).start()
