"""Labellers: `ileed.label` and the methods of crowd-kit, through the signature of all learners of the lab."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from ileed import Demonstrations, IleedError, Labelling, Labels
from ileed.data import Array

__all__ = ["CrowdKit", "Labelled", "Ours"]

ENVIRONMENT = Path(__file__).parents[3] / ".cache" / "crowdkit"
_SCRIPT = Path(__file__).with_name("crowdkit_fit.py")


@final
@dataclass(frozen=True, eq=False)
class Labelled:
    """What a method says of tasks and workers, by their numbers in the data."""

    policy: Array
    """(task,) the number of the likeliest label."""
    skill: Array
    """(worker,) how good each is, on the method's own scale."""
    seconds: float
    found: Labels | None = None
    """Everything, where the method is ours."""
    version: str = ""
    """Of crowd-kit."""


@final
@dataclass(frozen=True)
class Ours:
    """`ileed.Labelling` with one model of workers, or the likeliest."""

    model: Literal["auto", "uniform", "biased", "confusion"] = "auto"

    def fit(self, demonstrations: Demonstrations, *, seed: int, device: str = "auto") -> Labelled:
        began = time.perf_counter()
        found = Labelling(model=self.model).fit(demonstrations, seed=seed)
        skill = found.worker_table()["accuracy"].to_numpy()
        return Labelled(found.probabilities.argmax(1), skill, time.perf_counter() - began, found)


@final
@dataclass(frozen=True)
class CrowdKit:
    """A method of crowd-kit by the name of its class, in the environment that tests/crowdkit_environment.sh makes."""

    method: str

    def fit(self, demonstrations: Demonstrations, *, seed: int, device: str = "auto") -> Labelled:
        task, worker = demonstrations.observations[:, 0], demonstrations.demonstrator
        columns = {"task": task, "worker": worker, "label": demonstrations.actions}
        found = run_crowdkit(self.method, columns, seed=seed)
        labels, skills = found["labels"], found["skills"]
        return Labelled(
            np.array([labels[str(each)] for each in range(int(task.max()) + 1)]),
            np.array([skills[str(each)] for each in range(len(demonstrations.names))]),
            found["seconds"],
            version=found["version"],
        )


def run_crowdkit(method: str, columns: dict[str, Array], *, seed: int) -> dict[str, Any]:
    """Labels, skills and seconds of a fit of crowd-kit to numbers of tasks, workers and labels."""
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        raise IleedError(
            f"there is no {python}: tests/crowdkit_environment.sh makes the environment of crowd-kit",
            code="environment-missing",
        )
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "answers.parquet", Path(folder) / "fit.json"
        parquet.write_table(pa.table(columns), source)
        words = [str(python), str(_SCRIPT), method, str(seed), str(source), str(out)]
        ended = subprocess.run(words, capture_output=True, text=True)
        if ended.returncode:
            reason = (ended.stderr.strip().splitlines() or ["it says nothing"])[-1]
            raise IleedError(f"crowd-kit's {method} failed ({reason}): look at its environment, {ENVIRONMENT}")
        return dict(json.loads(out.read_text()))
