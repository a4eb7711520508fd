"""Processes of this machine, one for each call at a time."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Callable, Sequence
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from queue import LifoQueue
from typing import Any, final

from ileed.checking import at_least_one
from ileed.executors.executor import AbstractExecutor, Answer, WorkerLostError, answer

_CONTEXT = get_context("forkserver")


@final
class LocalExecutor(AbstractExecutor):
    """Processes of this machine: as many as it has cores, or as many as `workers` says.

    A process is started with the first call for it and serves further ones. One that is killed is replaced; a pool of
    the standard library would give up all calls with it.
    """

    def __init__(self, workers: int | None = None) -> None:
        at_least_one(workers=workers)
        super().__init__(workers or len(os.sched_getaffinity(0)))
        self._free: LifoQueue[_Worker] = LifoQueue()
        self._all = [_Worker() for _ in range(self.workers)]
        for worker in self._all:
            self._free.put(worker)

    def _answer(self, function: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]) -> Answer:
        worker = self._free.get()  # there is one, as there are no more threads than workers; the last used first
        try:
            return worker.answer(function, args, options)
        finally:
            self._free.put(worker)

    def _stop(self) -> None:
        for worker in self._all:
            worker.end()


@final
class _Worker:
    """A process, started when it is first needed, and again after it was lost."""

    def __init__(self) -> None:
        self._process: Any = None
        self._ours: Connection | None = None

    def answer(self, function: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]) -> Answer:
        packed = pickle.dumps((function, args, options))
        try:
            ours = self._start()
            ours.send_bytes(packed)
            found: Answer = pickle.loads(ours.recv_bytes())  # written by our own process, never a file
        except (EOFError, OSError) as error:
            number = self._process and self._process.pid
            self.end()
            raise WorkerLostError(
                f"process {number} was killed while it worked (for lack of memory?): run what is missing again, with "
                "fewer workers if memory is short"
            ) from error
        return found

    def end(self) -> None:
        process, ours, self._process, self._ours = self._process, self._ours, None, None
        if process is not None:
            process.kill()
            process.join()
        if ours is not None:
            ours.close()

    def _start(self) -> Connection:
        if self._ours is None:
            self._ours, theirs = _CONTEXT.Pipe()
            self._process = _CONTEXT.Process(target=_serve, args=(theirs,))
            self._process.start()
            theirs.close()
        return self._ours


def _serve(ours: Connection) -> None:
    """Answer one call after the other until the other end is closed."""
    _end_with_parent()
    while True:
        try:
            packed = ours.recv_bytes()
        except EOFError:
            return
        try:
            found = answer(*pickle.loads(packed))
        except Exception as error:  # what cannot be unpickled here: a function of the user's own script, for example
            found = None, error
        try:
            sent = pickle.dumps(found)
        except Exception as error:
            sent = pickle.dumps((None, TypeError(f"what {found[0] or found[1]!r:.80} is cannot be pickled: {error}")))
        ours.send_bytes(sent)


def _end_with_parent() -> None:
    """Leave interruption to the parent, and end when it ends, however it does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=lambda: (wait([parent.sentinel]), os._exit(1)), daemon=True).start()
