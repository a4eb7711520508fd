"""Two optimisations at the same time, each on one thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Event
from typing import TypeVar

from ileed._torch import threads
from ileed.fitting.results import Progress, ProgressCallback

_First = TypeVar("_First")
_Second = TypeVar("_Second")


class _StoppedError(Exception):
    """Ends a thread whose result nobody waits for any more."""


def optimise_both(
    first: Callable[[ProgressCallback], _First],
    second: Callable[[ProgressCallback], _Second],
    callback: ProgressCallback | None,
) -> tuple[_First, _Second]:
    """What two functions of a progress callback return, the second of which runs in a thread of its own.

    `callback` is called in the caller's thread alone: with the progress of the first, and then with what is left of the
    second's, the last report of each of its stages at least. Whatever ends the first early, an interruption or an
    exception of `callback`, ends the second too.
    """
    report = callback or (lambda progress: None)
    latest: dict[str, Progress] = {}  # by stage
    stop = Event()

    def note(progress: Progress) -> None:
        if stop.is_set():
            raise _StoppedError
        latest[progress.stage] = progress

    def report_latest() -> None:
        for stage in list(latest):
            report(latest.pop(stage))

    with ThreadPoolExecutor(1) as thread:
        beside = thread.submit(threads(1)(second), note)
        try:
            found = first(report)
            while not wait([beside], timeout=0.1).done:
                report_latest()
            report_latest()
            return found, beside.result()
        finally:
            stop.set()
