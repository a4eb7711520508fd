"""Laws of executors, for each: what a call returns or raises comes back, and a lost worker costs its own call alone."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from refusals import refused
from strategies import world

import ileed
from ileed.cli import run
from ileed.errors import RunError, SettingsError
from ileed.parallel import LocalExecutor, RayExecutor, SlurmExecutor, WorkerLostError, executor
from ileed_lab.experiments import AbstractExperiment, reproduce
from ileed_lab.records import read_cell

NAMES = ["local", *(pytest.param(name, marks=pytest.mark.campaign) for name in ("ray", "slurm"))]


@pytest.fixture
def start(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    paths = [
        *map(str, Path(__file__).parents[:2]),
        *filter(None, [os.environ.get("PYTHONPATH")]),
    ]  # where workers find this module and what it imports
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))

    def executor_of(name, workers=2):
        if name == "slurm":
            return SlurmExecutor(workers, folder=tmp_path / "jobs", cluster="local")
        return {"local": LocalExecutor, "ray": RayExecutor}[name](workers)

    return executor_of


def squared(number):
    return number**2


def refuse(path):
    raise SettingsError(f"{path} is refused: for this test")


def killed_or_squared(number):
    """Kills its own process for 3."""
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number**2


def touch_and_wait(path, seconds):
    path.write_text("begun")
    time.sleep(seconds)
    path.with_suffix(".ended").write_text("ended")


pytestmark = pytest.mark.xdist_group("executors")


@pytest.mark.parametrize("name", NAMES)
def test_a_worker_that_is_killed_costs_its_own_call_alone(name, start):
    with start(name) as calls:
        futures = [calls.submit(killed_or_squared, number) for number in range(6)]
        refused = calls.submit(refuse, path="here")
        with pytest.raises(WorkerLostError, match="run what is missing again"):
            futures[3].result()
        assert [future.result() for number, future in enumerate(futures) if number != 3] == [0, 1, 4, 16, 25]
        with pytest.raises(SettingsError, match="here is refused"):
            refused.result()


@dataclass(frozen=True)
class Counted(AbstractExperiment):
    """Nothing is fitted: a trial notes that it was run, and the second kills its worker where a file says so."""

    log: Path
    name: str = "tests/counted"
    trials: int = 4
    block: int = 1

    @property
    def plan(self):
        return {}

    def settings(self):
        return [{"world": "one"}]

    def methods(self, setting):
        return {"nobody": None}

    def demonstrations(self, setting, trials):
        return [None for _ in trials]

    def task(self, setting):
        raise AssertionError("nothing here is played")

    def measure(self, setting, method, trial, fit):
        if trial == 1 and (trap := self.log.with_name("trap")).exists():
            trap.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        with self.log.open("a") as log:
            log.write(f"{trial}\n")
        return {"squared": trial**2}


@pytest.mark.parametrize("name", NAMES)
def test_a_grid_loses_the_trial_of_a_killed_worker_and_runs_it_and_nothing_else_again(name, start, tmp_path):
    log, heard = tmp_path / "log", []
    (tmp_path / "trap").touch()

    def grid():
        return reproduce(
            Counted(log), out=tmp_path / "out", resume=True, executor=start(name), progress=lambda *at: heard.append(at)
        )

    with refused("trials-lost", RunError):
        grid()
    assert sorted(log.read_text().split()) == ["0", "2", "3"]
    (path,) = grid()
    assert sorted(log.read_text().split()) == ["0", "1", "2", "3"]
    assert [trial["squared"] for trial in read_cell(path)["trials"]] == [0, 1, 4, 9]
    assert heard == [(done, 4) for done in (1, 2, 3, 4)]


def test_leaving_by_an_exception_ends_what_runs_and_begins_nothing_more(tmp_path):
    def interrupted():
        with LocalExecutor(1) as calls:
            first, _ = (calls.submit(touch_and_wait, tmp_path / name, 600) for name in ("first", "second"))
            while not (tmp_path / "first").exists():
                assert not first.done()
                time.sleep(0.05)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # within the ten minutes that a test may take
        interrupted()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first"]


def test_what_cannot_be_pickled_is_said_and_the_worker_goes_on():
    with LocalExecutor(1) as calls:
        with pytest.raises(TypeError, match="cannot pickle"):
            calls.submit(open, os.devnull).result()
        assert calls.submit(squared, 5).result() == 25


def test_an_unknown_executor_is_refused_with_the_names_there_are():
    with pytest.raises(SettingsError, match=r"'loca'.*did you mean.*local"):
        executor("loca")
    with refused("workers-invalid", SettingsError):
        executor("local", 0)


def test_slurm_is_refused_where_there_is_none(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SettingsError, match="no sbatch on this machine"):
        executor("slurm")


def test_the_command_fits_by_an_executor_to_the_bits_of_one_process_and_asks_for_blocks(tmp_path, capsys):
    ileed.write(world(), tmp_path / "data.parquet")
    fit = ["fit", str(tmp_path / "data.parquet"), "--restarts", "2", "--steps", "20", "--folds", "0"]
    workers = ["--executor", "local", "--workers", "2"]
    assert run([*fit, *workers, "--out", str(tmp_path / "none")]) == 2
    assert "add --member-block" in capsys.readouterr().err
    for name, options in {"dealt": workers, "alone": []}.items():
        assert run([*fit, *options, "--member-block", "1", "--out", str(tmp_path / name)]) == 0
    weights = [(tmp_path / name / "weights.safetensors").read_bytes() for name in ("dealt", "alone")]
    assert weights[0] == weights[1]
