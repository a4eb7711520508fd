"""The executor's interface: a call is sent elsewhere, and a thread here waits for what comes back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from ileed.errors import RunError

_Parameters = ParamSpec("_Parameters")
_Returned = TypeVar("_Returned")

Answer = tuple[Any, BaseException | None]
"""What a call returned, or what it raised."""


class WorkerLostError(RunError):
    """The process that ran a call is gone, killed or out of memory, and so is its result."""


class AbstractExecutor(ThreadPoolExecutor, ABC):
    """Calls that run elsewhere, as many at once as there are workers, each awaited by a thread of this process.

    Laws, which `tests/conformance` checks for each: a future has what its function returned, or raises what it raised;
    functions and arguments are pickled, so a function has a name in a module; where a worker is killed, the future of
    its call raises `WorkerLostError`, and all others finish; leaving the `with` statement by an exception ends the
    calls that run, and those that have not begun never do.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        super().__init__(workers)

    def submit(
        self, fn: Callable[_Parameters, _Returned], /, *args: _Parameters.args, **kwargs: _Parameters.kwargs
    ) -> Future[_Returned]:
        """Send a call, once a worker is free."""
        return super().submit(self._returned, fn, args, kwargs)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.shutdown(wait=False, cancel_futures=True)
            self._stop()
        self.shutdown(wait=True)
        self._stop()

    @abstractmethod
    def _answer(self, function: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]) -> Answer:
        """`answer` of this call, from a worker, or `WorkerLostError`."""

    @abstractmethod
    def _stop(self) -> None:
        """End the workers with whatever they run, and let go of the cluster."""

    def _returned(self, function: Callable[..., _Returned], args: Sequence[Any], options: dict[str, Any]) -> _Returned:
        value, error = self._answer(function, args, options)
        if error is not None:
            raise error
        return value


def answer(function: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]) -> Answer:
    """Call a function, in a worker. Some executors lose the kind of an exception that is raised, so it is returned."""
    try:
        return function(*args, **options), None
    except BaseException as error:
        return None, error
