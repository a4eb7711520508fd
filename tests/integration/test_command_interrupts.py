"""Ctrl-C at any moment: one sentence, exit code 130, and no promise that cannot be kept."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

STEPS = "100000"  # more than can be done before the signal comes


@pytest.fixture
def data(tmp_path) -> Path:
    rng = np.random.default_rng(0)
    columns = {
        "observation": list(rng.integers(0, 3, size=(60, 4)).astype(np.float32)),
        "action": rng.integers(0, 3, size=60),
        "demonstrator": np.repeat(["ann", "bob", "cy"], 20),
        "episode": np.repeat(np.arange(6), 10),
    }
    pq.write_table(pa.table(columns), tmp_path / "data.parquet")
    return tmp_path / "data.parquet"


@pytest.mark.parametrize("seconds", [0.0, 0.1, 0.3, 0.7, 1.5])
def test_an_interrupt_while_the_command_is_imported_gets_one_sentence(seconds, data, tmp_path):
    """The clock starts when our first line runs: before it, Python itself answers."""
    code = (
        "import signal, ileed.__main__ as door; signal.signal(signal.SIGINT, door._leave_at_once); "
        "print(flush=True); door.main()"
    )
    words = ["fit", str(data), "--out", str(tmp_path / "run"), "--steps", STEPS, "--restarts", "1"]
    started = subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None
    started.stdout.readline()
    time.sleep(seconds)
    started.send_signal(signal.SIGINT)
    printed, said = started.communicate(timeout=60)
    assert (started.returncode, printed) == (130, "")
    (line,) = said.splitlines()
    assert line.startswith("ileed: interrupted; nothing was ")
    assert [path.name for path in tmp_path.iterdir()] == ["data.parquet"]


WHILE_FITTING = """
import os, signal, sys
import ileed
from ileed.fitting.checkpoint import Checkpoint

Checkpoint.due = lambda self: {due}
fit, calls = ileed.Ileed.fit, []

def interrupted(self, data, *, progress, **options):
    def told(where):
        progress(where)
        calls.append(where)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)
    return fit(self, data, progress=told, **options)

ileed.Ileed.fit = interrupted
from ileed.__main__ import main
main()
"""


@pytest.mark.parametrize("due", [True, False], ids=["after a checkpoint", "before the first checkpoint"])
def test_an_interrupted_fit_promises_a_checkpoint_only_where_there_is_one(due, data, tmp_path):
    words = ["fit", str(data), "--out", str(tmp_path / "run"), "--steps", STEPS, "--restarts", "1"]
    words += ["--policy", "CategoricalMLP(hidden=(4, 4))"]
    ended = subprocess.run(
        [sys.executable, "-c", WHILE_FITTING.format(due=due), *words], capture_output=True, text=True, timeout=120
    )
    assert (ended.returncode, ended.stdout) == (130, "")
    assert "Traceback" not in ended.stderr
    sentence = ended.stderr.splitlines()[-1]
    assert ("continues from the last checkpoint" in sentence) == due
    assert ("nothing was saved yet" in sentence) != due
    assert (tmp_path / "run.checkpoint").exists() == due


IN_A_DESTRUCTOR = """
import os, signal, sys, time
from ileed import __main__ as door

class Unlucky:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)

def run(arguments, *, at_work):
    at_work()
    try:
        Unlucky()
        time.sleep(5)
    except KeyboardInterrupt:
        return 130
    return 0

import ileed.cli
ileed.cli.run = run
door.main()
"""


def test_an_interrupt_in_a_destructor_is_neither_lost_nor_shown():
    ended = subprocess.run([sys.executable, "-c", IN_A_DESTRUCTOR], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (130, "")


AT_THE_END = """
import atexit, os, signal, sys, time
from ileed.__main__ import main

atexit.register(lambda: (os.kill(os.getpid(), signal.SIGINT), time.sleep(0.1)))
sys.argv = ["ileed", "--version"]
main()
"""


def test_an_interrupt_after_the_work_changes_nothing():
    ended = subprocess.run([sys.executable, "-c", AT_THE_END], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")


MANGLED = """
import os, signal, sys
from ileed import __main__ as door

def run(arguments, *, at_work):
    at_work()
    try:
        os.kill(os.getpid(), signal.SIGINT)
        sum(range(10_000))
    except KeyboardInterrupt:
        raise ImportError("numpy.core.multiarray failed to import")

import ileed.cli
ileed.cli.run = run
door.main()
"""


def test_an_interrupt_that_a_library_turned_into_another_error_is_still_an_interrupt():
    ended = subprocess.run([sys.executable, "-c", MANGLED], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (130, "ileed: interrupted\n")


def test_importing_the_door_leaves_signals_alone():
    code = "import signal; before = signal.getsignal(2); import ileed.__main__; assert signal.getsignal(2) is before"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
