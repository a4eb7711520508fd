"""A fit killed without warning goes on from its checkpoint to the same bits."""

import multiprocessing
import os
import random
import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from safetensors.torch import save_file

import ileed

STEPS = 400
processes = multiprocessing.get_context("forkserver")  # torch is imported once, by the server, not by every process
processes.set_forkserver_preload(["ileed.methods"])


def fit(folder: Path, batch_size: int | None, told: Connection) -> None:
    """A fit that tells each step it reached, run as a process of its own so that it can be killed."""
    rng = np.random.default_rng(0)
    data = ileed.Demonstrations(
        observations=rng.normal(size=(30, 6))[rng.integers(30, size=2000)],
        actions=rng.integers(4, size=2000),
        demonstrator=np.repeat(["ann", "bob", "cy", "di"], 500),
        episode=np.repeat(np.arange(40), 50),
    )
    narrow = ileed.CategoricalMLP(hidden=(4, 4))
    fitted = ileed.Ileed(policy=narrow, restarts=4, steps=STEPS, batch_size=batch_size, held_out=0.2).fit(
        data,
        seed=0,
        device="cpu",
        checkpoint=folder / "checkpoint",
        checkpoint_seconds=0.03,
        progress=lambda progress: progress.stage == "rating" or told.send(progress.step),
    )
    save_file(fitted.joint.state_dict(), folder / "weights")


def steps_of_a_fit(folder: Path, batch_size: int | None, *, killed_at: int | None = None) -> list[int]:
    """The steps that a fit told of before it ended, or was killed."""
    hearing, telling = processes.Pipe(duplex=False)
    process = processes.Process(target=fit, args=(folder, batch_size, telling))
    process.start()
    telling.close()
    steps = []
    for step in received(hearing):
        steps.append(step)
        if killed_at is not None and step >= killed_at:
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            break
    process.join()
    assert process.exitcode == (0 if killed_at is None else -signal.SIGKILL)
    return steps


def received(hearing: Connection) -> Iterator[int]:
    while True:
        try:
            yield hearing.recv()
        except EOFError:
            return


def bits(folder: Path) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in load_file(folder / "weights").items()}


@pytest.fixture(scope="module", params=[None, 256], ids=["whole batch", "mini-batches"])
def uninterrupted(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    assert steps_of_a_fit(folder, request.param)[-1] == STEPS
    return request.param, bits(folder)


@pytest.mark.campaign
@pytest.mark.xdist_group("kill")
@pytest.mark.parametrize("trial", range(5))
def test_a_killed_fit_goes_on_to_the_same_bits(uninterrupted, tmp_path, trial):
    """Five random moments for each kind of batch, ten in all, drawn from the trial's seed."""
    batch_size, expected = uninterrupted
    steps_of_a_fit(tmp_path, batch_size, killed_at=random.Random(trial).randrange(STEPS // 2, STEPS - 50))
    assert not (tmp_path / "weights").exists()
    resumed = steps_of_a_fit(tmp_path, batch_size)
    assert resumed[0] > STEPS // 200  # it did not start again
    assert bits(tmp_path) == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "checkpoint-folds", "weights"]
