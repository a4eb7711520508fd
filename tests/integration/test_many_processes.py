"""Blocks of members, and several processes for one fit: the same answer, whoever computes it and whoever is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from needs import gpu
from safetensors.torch import load_file
from shared_fits import DEALT_OUT, FITS, data, fit_in, numbers

import ileed
from ileed.cli import run
from ileed.parallel.processes import ALONE, Processes

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


def test_a_member_of_a_block_does_not_depend_on_how_many_members_there_are():
    policy = ileed.CategoricalMLP(hidden=(4, 4))
    three, six = (
        ileed.Ileed(policy=policy, restarts=count, ensemble=count, steps=30, folds=0, member_block=2).fit(
            data(discrete=True), seed=0, device="cpu"
        )
        for count in (3, 6)
    )
    assert np.array_equal(three.restarts.nats_per_action, six.restarts.nats_per_action[:3])
    of_three, of_six = (np.argsort(fitted.restarts.kept) for fitted in (three, six))
    for name, values in three.joint.state_dict().items():
        assert torch.equal(values[of_three], six.joint.state_dict()[name][of_six][:3])


def test_blocks_are_dealt_out_before_data_are_shared():
    job = Processes(rank=0, count=4)
    assert [job.ranks(block, 6) for block in range(6)] == [(0,), (1,), (2,), (3,), (0,), (1,)]
    assert [job.ranks(block, 2) for block in range(2)] == [(0, 2), (1, 3)]
    assert [job.ranks(block, 3) for block in range(3)] == [(0, 3), (1,), (2,)]


OF_SHARES = {
    "legal actions": ileed.Ileed(restarts=2),
    "given skills": ileed.Ileed(expertise=ileed.Skills("phase"), restarts=2),
    "previous actions": ileed.Ileed(demonstrator=ileed.Persistent(), restarts=2),
    "mini-batches": ileed.Ileed(batch_size=50, restarts=2),
}


@pytest.mark.parametrize("method", OF_SHARES.values(), ids=OF_SHARES)
def test_the_costs_of_three_shares_of_a_batch_add_up_to_its_cost(method):
    plain = data(discrete=True)
    legal = np.arange(3) != (plain.actions[:, None] + 1 + np.arange(len(plain))[:, None] % 2) % 3
    rich = ileed.Demonstrations(
        observations=plain.observations,
        actions=plain.actions,
        demonstrator=np.array(plain.names)[plain.demonstrator],
        episode=plain.episode,
        legal=legal if method.demonstrator is None else None,  # which Persistent does not know
        skills={"phase": np.array(["near", "far"])[(plain.observations[:, 0] > 0).astype(int)]},
    )
    prepared, joint = method._start(rich, 0, torch.device("cpu"), np.arange(40) % 3 + 1.0)
    costs = []
    for sampler in (prepared.sampler, *(prepared.sampler.share(place, 3) for place in range(3))):
        sampler.load(7)
        batch = sampler.batch()
        costs.append(joint.objective(batch).total * batch.total_weight)
    torch.testing.assert_close(sum(costs[1:]), costs[0])


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=gpu)])
def two_processes(request, tmp_path_factory) -> tuple[Path, str]:
    folder, device = tmp_path_factory.mktemp("two processes"), request.param
    program = [str(Path(__file__).with_name("shared_fits.py")), str(folder), device]
    subprocess.run([*TORCHRUN, "2", *program], check=True, capture_output=True, timeout=120)
    return folder, device


@pytest.mark.parametrize("name", FITS)
def test_two_processes_find_what_one_finds(name, two_processes):
    folder, device = two_processes
    one, two = numbers(FITS[name](partial(fit_in, ALONE, device))), load_file(folder / name)
    assert one.keys() == two.keys()
    for each, values in one.items():
        if name in DEALT_OUT:
            assert torch.equal(values, two[each]), each
        else:  # sums of 32 bits in another order
            torch.testing.assert_close(values, two[each], rtol=1e-4, atol=1e-5)


@pytest.mark.campaign
def test_a_killed_process_ends_the_job_in_one_sentence_and_one_process_goes_on_to_the_same_bits(tmp_path, capfd):
    ileed.write(data(discrete=True), tmp_path / "data.parquet")
    words = ["fit", str(tmp_path / "data.parquet"), "--policy", "CategoricalMLP(hidden=(4, 4))", "--device", "cpu"]
    words += ["--restarts", "8", "--member-block", "2", "--steps", "600", "--folds", "0", "--out"]
    job = subprocess.Popen(
        [*TORCHRUN, "2", "-m", "ileed", *words, str(tmp_path / "killed")], stderr=subprocess.PIPE, text=True
    )
    while not (tmp_path / "killed.checkpoint-block-2").exists():  # the first of the two blocks of rank 1
        assert job.poll() is None
        time.sleep(0.01)
    os.kill(process_of_rank("1", job.pid), signal.SIGKILL)
    _, said = job.communicate(timeout=60)
    (sentence,) = [line for line in said.splitlines() if line.startswith("ileed: ")]
    assert "the same command" in sentence
    assert job.returncode != 0
    assert not (tmp_path / "killed").exists()
    for folder in ("killed", "whole"):
        assert run([*words, str(tmp_path / folder)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.parquet", "killed", "whole"]
    killed, whole = ((tmp_path / folder / "weights.safetensors").read_bytes() for folder in ("killed", "whole"))
    assert killed == whole


def process_of_rank(rank: str, launcher: int) -> int:
    """The process that `torchrun` has given a rank."""
    for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        if f"\0RANK={rank}\0" in Path(f"/proc/{child}/environ").read_text():
            return int(child)
    raise AssertionError(f"no process of rank {rank}")
