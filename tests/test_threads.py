"""The number of threads changes no bit of a fit: not of its weights, its ratings, or anything else that is saved.

OpenMP and BLAS read the number of threads when they are loaded, so each number has a process of its own, which runs
this file as a script.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import ileed
import ileed.model.nets
from ileed._torch import product, threads

SMALL = {"restarts": 2, "steps": 6}


def discrete(episodes: int, length: int, distinct: int | None, *, seed: int) -> ileed.Demonstrations:
    """Five demonstrators, each less precise than the one before; `distinct` observations, or one for each step."""
    rng, steps = np.random.default_rng(seed), episodes * length
    observations = rng.normal(size=(distinct or steps, 6))
    if distinct is not None:
        observations = observations[rng.integers(distinct, size=steps)]
    who = np.repeat(np.arange(episodes) % 5, length)
    slips = rng.random(steps) < 0.15 * who
    best = (observations @ rng.normal(size=(6, 4))).argmax(1)
    return ileed.Demonstrations(
        observations=observations,
        actions=np.where(slips, rng.integers(4, size=steps), best),
        demonstrator=who,
        episode=np.repeat(np.arange(episodes), length),
    )


def continuous(*, seed: int) -> ileed.Demonstrations:
    rng = np.random.default_rng(seed)
    observations, who = rng.normal(size=(1200, 5)), np.repeat(np.arange(40) % 4, 30)
    noise = rng.normal(size=(1200, 2)) * (0.1 + 0.2 * who[:, None])
    return ileed.Demonstrations(
        observations=observations,
        actions=np.tanh(observations @ rng.normal(size=(5, 2))) + noise,
        demonstrator=who,
        episode=np.repeat(np.arange(40), 30),
    )


LARGE = [np.random.default_rng(0).normal(size=size) for size in ((700, 701), (701, 702))]

FITS: dict[str, tuple[Callable[[], ileed.Demonstrations], ileed.Ileed]] = {
    "whole batch, widths compared, blocks of members": (
        lambda: discrete(80, 50, 300, seed=0),
        ileed.Ileed(member_block=2, restarts=4, steps=6),
    ),
    "mini-batches": (
        lambda: discrete(40, 30, None, seed=1),
        ileed.Ileed(policy=ileed.CategoricalMLP(), **SMALL),
    ),
    "a large network": (
        lambda: discrete(400, 50, 6_000, seed=2),
        ileed.Ileed(policy=ileed.CategoricalMLP(hidden=(256, 256)), restarts=3, steps=2, folds=0),
    ),
    "models compared": (
        lambda: discrete(20, 20, 40, seed=3),
        ileed.Ileed(policy=ileed.CategoricalMLP(), demonstrator="auto", **SMALL),
    ),
    "drift, an ensemble": (
        lambda: discrete(40, 20, 40, seed=4),
        ileed.Ileed(policy=ileed.CategoricalMLP(), expertise=ileed.Drift(), ensemble=2, **SMALL),
    ),
    "continuous actions": (
        lambda: continuous(seed=5),
        ileed.Ileed(policy=ileed.MixtureMLP(hidden=(16, 16)), member_block=1, **SMALL),
    ),
    "a recurrent policy": (
        lambda: continuous(seed=6),
        ileed.Ileed(policy=ileed.MixtureLSTM(hidden=(8,), length=5), folds=2, **SMALL),
    ),
}


def record(out: Path) -> None:
    """Fit, save, rate other data and curate: one folder of files for each of `FITS`."""
    for name, (made, method) in FITS.items():
        data = made()
        fitted = method.fit(data, seed=0, device="cpu")
        fitted.save(out / name)
        numbers = {"nats": fitted.nats(data)}
        if "recurrent" not in name:
            policy = fitted.policy.distribution(data.observations)
            numbers["log-probability"] = policy.log_prob(torch.tensor(data.actions))
        if fitted.expertise.ratings is not None:
            numbers["score"] = np.array(ileed.curate(fitted, data, keep=0.5).episodes["expertise"])
            for column in ("expertise", "low", "high"):
                numbers[column] = np.array(fitted.assess(data).table()[column])
                numbers[f"cross-fitted {column}"] = np.array(fitted.expertise.table()[column])
        np.savez(out / name / "numbers.npz", **numbers)
    np.save(out / "product.npy", product(*LARGE))


def saved(folder: Path) -> dict[str, bytes]:
    """The bytes of every file, without the date and the duration of the fits."""
    found = {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    for name in [name for name in found if name.endswith("provenance.json")]:
        notes = json.loads(found[name])
        del notes["date"], notes["seconds"]
        found[name] = json.dumps(notes).encode()
    return found


def test_every_saved_byte_and_every_rating_is_the_same_for_any_number_of_threads(tmp_path):
    found = {}
    for count in ("1", "2", "3", None):
        environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
        out = tmp_path / str(count)
        command = [sys.executable, __file__, str(out)]
        environment |= {} if count is None else {"OMP_NUM_THREADS": count}
        subprocess.run(command, env=environment, check=True)
        found[count] = saved(out)
    assert len(found["1"]) >= 5 * len(FITS)
    different = {
        count: [name for name, content in files.items() if content != found["1"][name]]
        for count, files in found.items()
    }
    assert different == {"1": [], "2": [], "3": [], None: []}


@pytest.mark.parametrize("name", ["fit", "cross_fit", "nats", "assess", "expertise", "policy", "curate", "compare"])
def test_kernels_run_on_one_thread_wherever_a_result_is_computed(name, monkeypatch):
    data, method = discrete(10, 8, 20, seed=0), ileed.Ileed(policy=ileed.CategoricalMLP(), folds=2, **SMALL)
    fitted = method.fit(data, seed=0, device="cpu")
    used: set[int] = set()
    affine = ileed.model.nets._affine

    def watched(*given: torch.Tensor) -> torch.Tensor:
        used.add(torch.get_num_threads())
        return affine(*given)

    monkeypatch.setattr("ileed.model.nets._affine", watched)
    calls = {
        "fit": lambda: method.fit(data, seed=0, device="cpu"),
        "cross_fit": lambda: method.cross_fit(data, seed=0, device="cpu"),
        "nats": lambda: fitted.nats(data),
        "assess": lambda: fitted.assess(data),
        "expertise": lambda: fitted.expertise(data.observations, data.names[0]),
        "policy": lambda: fitted.policy.act(data.observations),
        "curate": lambda: ileed.curate(fitted, data, keep=0.5),
        "compare": lambda: ileed.compare(data, seed=0, method=method, models=[ileed.UniformMixture()], device="cpu"),
    }
    with threads(3):
        calls[name]()
        assert torch.get_num_threads() == 3
    assert used == {1}


@pytest.mark.parametrize("shape", [((7,), (7,)), ((3, 7), (7,)), ((7,), (7, 2)), ((3, 7), (7, 2))])
def test_a_product_is_that_of_the_matrices(shape):
    """Up to the rounding of sums of seven terms."""
    rng = np.random.default_rng(0)
    left, right = (rng.normal(size=size) for size in shape)
    np.testing.assert_allclose(product(left, right), left @ right, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(product(left, right > 0), left @ (right > 0), rtol=1e-13, atol=1e-13)


def test_a_large_product_is_that_of_the_matrices_and_has_the_same_bits_wherever_they_are_in_memory():
    """Up to the rounding of sums of 701 terms of about 1."""
    left, right = LARGE
    found = product(left, right)
    np.testing.assert_allclose(found, left @ right, rtol=1e-11, atol=1e-11)
    for shift in range(1, 4):
        moved = np.zeros(left.size + shift)[shift:].reshape(left.shape)
        moved[:] = left
        with threads(2):
            np.testing.assert_array_equal(product(moved, np.asfortranarray(right)), found)
    np.testing.assert_allclose(product(left, right > 0), left @ (right > 0), rtol=1e-11, atol=1e-11)


if __name__ == "__main__":
    record(Path(sys.argv[1]))
