"""The benchmark of ensembles: that it measures the fit which `Ileed()` gives, and resumes its record."""

from __future__ import annotations

import doctest
import json
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

from ileed import Constant, Demonstrations, Ileed, SettingsError

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
QUICK = Ileed(expertise=Constant(), restarts=5, steps=15, learning_rate=1e-2)


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    return import_module("ensemble_size")


def noisy_choices():
    rng = np.random.default_rng(0)
    seen = rng.uniform(-1, 1, size=(300, 3)).astype(np.float32)
    best = (seen @ np.array([1.0, -2.0, 0.5]) > 0).astype(int) + (seen[:, 0] > 0.5)
    slips = rng.integers(0, 3, size=300)
    return Demonstrations(
        observations=seen,
        actions=np.where(rng.random(300) < 0.7, best, slips),
        demonstrator=np.repeat(["ann", "bob", "cat"], 100),
        episode=np.arange(300) // 10,
    )


def test_the_ensembles_are_those_of_the_fit_that_the_method_gives_by_itself(benchmark):
    data = noisy_choices()
    width, policies = benchmark.fit_ensembles(QUICK, data, seed=3, sizes=(1, 4))
    for size, policy in policies.items():
        alone = replace(QUICK, ensemble=size).fit(data, seed=3, device="cpu")
        assert width == alone.width
        found, expected = (each.distribution(data.observations).logits for each in (policy, alone.policy))
        assert torch.equal(found, expected)


def test_trials_that_the_record_holds_are_not_measured_again(benchmark, tmp_path, monkeypatch):
    asked = []

    def measure(case, trial):
        asked.append((case.name, trial))
        return {"trial": trial, "reward": {"1": 0.5, "3": 0.6, "10": 0.7}}

    monkeypatch.setattr(benchmark, "measure", measure)
    for trials in (1, 3):
        benchmark.fit(benchmark.CASES[:2], trials=trials, out=tmp_path / "record.json")
    names = [case.name for case in benchmark.CASES[:2]]
    assert asked == [(name, trial) for trial in range(3) for name in names]
    record = json.loads((tmp_path / "record.json").read_text())
    assert [[each["trial"] for each in cell["trials"]] for cell in record["cells"]] == [[0, 1, 2], [0, 1, 2]]
    assert [run["trials"] for run in record["made"]] == [dict.fromkeys(names, added) for added in ([0], [1, 2])]


def test_a_record_of_other_settings_is_refused(benchmark, tmp_path):
    record = benchmark.read_record(tmp_path / "none.json")
    (tmp_path / "record.json").write_text(json.dumps(record | {"plan": {"sizes": [1], "episodes": 7}}))
    with pytest.raises(SettingsError, match="was made with another plan: move it away"):
        benchmark.fit(benchmark.CASES[:1], trials=1, out=tmp_path / "record.json")


def test_the_examples_of_the_benchmark_are_right(benchmark):
    assert doctest.testmod(benchmark) == (0, 2)
