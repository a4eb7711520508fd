"""A Ray cluster: the one that RAY_ADDRESS names or that was joined before, or one of this machine alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, final

from ileed.errors import at_least_one, require
from ileed.parallel.abstract_executor import AbstractExecutor, Answer, WorkerLostError, answer


@final
class RayExecutor(AbstractExecutor):
    """Tasks of a Ray cluster, one core each.

    A cluster that was joined before (`ray.init`) or that RAY_ADDRESS names is used and left as it is; without either, a
    cluster of this machine is started and ended. The machines of a cluster need this package at the same version.
    """

    def __init__(self, workers: int | None = None) -> None:
        at_least_one(workers=workers)
        ray = require("ray", extra="ray")
        self._ray, self._joined = ray, not ray.is_initialized()
        if self._joined:
            own = {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": workers, "include_dashboard": False}
            ray.init(logging_level="error", log_to_driver=False, **own)
        # A task that is lost is told of, and not run again without a word.
        self._remote = ray.remote(num_cpus=1, max_retries=0)(answer)
        super().__init__(workers or int(ray.cluster_resources().get("CPU", 1)))

    def _answer(self, function: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]) -> Answer:
        lost = self._ray.exceptions
        try:
            found: Answer = self._ray.get(self._remote.remote(function, args, options))
        except (lost.RayTaskError, lost.RuntimeEnvSetupError):  # the worker lives: it cannot read what it was sent
            raise
        except lost.RayError as error:
            raise WorkerLostError(
                f"a worker of Ray was lost with its task ({type(error).__name__}): run what is missing again"
            ) from error
        return found

    def _stop(self) -> None:
        if self._joined and self._ray.is_initialized():
            self._ray.shutdown()
