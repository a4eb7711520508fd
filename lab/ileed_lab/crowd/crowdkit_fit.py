"""One fit of crowd-kit, run by the interpreter of crowd-kit's own environment, which has nothing of ours.

$ python crowdkit_fit.py MACE 0 answers.parquet fit.json
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
import time
import warnings
from importlib import metadata
from typing import Any


def skills(method: Any, workers: Any) -> dict[str, float]:
    """What the method says of how good each worker is, by worker."""
    if hasattr(method, "alphas_"):  # GLAD
        return dict(method.alphas_)
    if hasattr(method, "spamming_"):  # MACE: the probability of not spamming, by workers in order of appearance
        return dict(zip(workers.unique(), method.spamming_[:, 1].tolist(), strict=True))
    if getattr(method, "skills_", None) is not None:  # majority vote, and Dawid-Skene with one coin
        return dict(method.skills_)
    if hasattr(method, "errors_"):  # Dawid-Skene: the diagonal by label frequencies
        found: dict[str, float] = {}
        for (worker, label), row in method.errors_.iterrows():
            found[worker] = found.get(worker, 0.0) + float(row.get(label, 0.0)) * float(method.priors_[label])
        return found
    raise ValueError(f"{method} says nothing of workers")


def main() -> None:
    """Fit the method that the command line names, and write labels, skills and seconds."""
    name, seed, source, out = sys.argv[1:]
    warnings.simplefilter("ignore")
    answers = importlib.import_module("pandas").read_parquet(source)
    kind = getattr(importlib.import_module("crowdkit.aggregation"), name)
    takes_seed = "random_state" in inspect.signature(kind).parameters
    method = kind(random_state=int(seed)) if takes_seed else kind()
    began, worked = time.perf_counter(), time.process_time()
    labels = method.fit_predict(answers)
    record = {
        "seconds": time.perf_counter() - began,
        "processor_seconds": time.process_time() - worked,
        "labels": {str(task): int(label) for task, label in labels.items()},
        "skills": {str(worker): float(skill) for worker, skill in skills(method, answers["worker"]).items()},
        "version": metadata.version("crowd-kit"),
    }
    with open(out, "w") as file:
        json.dump(record, file)


if __name__ == "__main__":
    main()
