"""SLURM, through submitit: every call is a job."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, final

from ileed.errors import SettingsError, at_least_one, require
from ileed.parallel.abstract_executor import AbstractExecutor, Answer, WorkerLostError, answer


@final
class SlurmExecutor(AbstractExecutor):
    """Jobs of SLURM, at most `workers` of them in its queue at once; submitit keeps their logs in `folder`.

    Partition, account, time and memory are those of SLURM's own variables: SBATCH_PARTITION, SBATCH_ACCOUNT,
    SBATCH_TIMELIMIT, SBATCH_MEM_PER_CPU. The folder must be seen by all machines. `cluster="local"` runs the same jobs
    as processes of this machine, to try a command before it is queued.
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
        self._submitit, self._lock, self._jobs = submitit, Lock(), dict[str, Any]()
        self._queue = submitit.AutoExecutor(folder=folder, cluster=cluster)
        self._queue.update_parameters(name="ileed", cpus_per_task=1, timeout_min=24 * 60)
        super().__init__(workers or 64)

    def _answer(self, function: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]) -> Answer:
        with self._lock:
            job = self._queue.submit(answer, function, args, options)
            self._jobs[job.job_id] = job
        try:
            found: Answer = job.result()
        except (self._submitit.core.utils.UncompletedJobError, self._submitit.core.utils.FailedJobError) as error:
            raise WorkerLostError(
                f"job {job.job_id} ended without a result ({job.paths.stderr} has its log): run what is missing again"
            ) from error
        finally:
            self._jobs.pop(job.job_id)
        return found

    def _stop(self) -> None:
        for job in list(self._jobs.values()):
            job.cancel()
