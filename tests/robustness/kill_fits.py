"""Kill `ileed fit` at random moments and see that no run is lost and every resumed one comes out the same.

    python tests/robustness/kill_fits.py --kills 1000 --out results/robustness/kills.json

A trial fits into a place that holds nothing, or with --overwrite into a run with a file of its user in it. The process
is killed (SIGKILL) up to three times: at a moment drawn uniformly over the length of a fit, or a random delay after it
began to write the run, or as soon as the new run is whole. Then the same command runs to its end. After each kill the
place must hold the old run or the new one, whole, or nothing where there was nothing; at the end the weights must be
those of a fit that was never killed, byte for byte, the user's file must be as it was, and nothing else may be left.

To import torch takes seconds, so one process imports it and forks those that fit: each is a process of its own, which
runs the command from its arguments to its exit code. Some are started afresh all the same, as `python -m ileed`. So
that fits of a second have checkpoints, these are written every few hundredths of a second instead of every five.

The record is written as trials go by; the same command goes on where it was, with the trials that are left.
"""

from __future__ import annotations

import inspect
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from killing import MOST_KILLS_IN_A_TRIAL, Record, parsed

import ileed
from ileed import cli, runs

STEPS = 300
SETTINGS = ("--policy", "CategoricalMLP(hidden=(4,4))", "--restarts", "2", "--steps", str(STEPS), "--device", "cpu")
CHECKPOINT_SECONDS = 0.03
TRIALS_BETWEEN_FRESH_ONES = 25
DELAY = 0.02  # seconds; the mean delay of a kill that waits for the run to be written
PHASES = (
    "before the first checkpoint",
    "between two checkpoints",
    "after the last step, before the run is written",
    "while the run is written",
    "while the old run is removed",
    "after the run is whole",
)


@dataclass
class Process:
    """A fit in a process of its own, forked or started afresh."""

    pid: int
    code: int | None = None

    @classmethod
    def forked(cls, arguments: list[str]) -> Process:
        child = os.fork()
        if child:
            return cls(child)
        silent = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silent, stream)
        code = 70
        try:
            code = cli.run(arguments)
        finally:
            os._exit(code)

    @classmethod
    def fresh(cls, arguments: list[str]) -> Process:
        started = subprocess.Popen(
            [sys.executable, "-m", "ileed", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        return cls(started.pid)

    def ended(self) -> bool:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code is not None

    def wait(self) -> int:
        if self.code is None:
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code

    def kill(self) -> bool:
        """Whether the process was killed, rather than had ended before."""
        if not self.ended():
            os.kill(self.pid, signal.SIGKILL)
        return self.wait() == -signal.SIGKILL


@dataclass
class Place:
    """Where a fit goes, and what may be found there."""

    folder: Path
    replaces: bool
    whole: dict[str, bytes]  # weights of the old and of the new run
    left: set[Path] = field(default_factory=set)  # by processes that were killed before this one

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def checkpoint(self) -> Path:
        return runs.checkpoint_path(self.run)

    def prepare(self, old: Path) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        if self.replaces:
            shutil.copytree(old, self.run)
            (self.run / "thesis.tex").write_text("years of work")

    def partial(self) -> set[Path]:
        """Folders in which the files of a run are written before they become the run."""
        return set(self.folder.glob(".run.ileed-*/run"))

    def is_being_written(self) -> bool:
        return not self.partial() <= self.left

    def is_whole(self) -> bool:
        return self.weights() == self.whole["new"]

    def phase(self) -> str:
        """In which phase a killed process was, from what it left."""
        if self.is_whole():
            return PHASES[4] if self.is_being_written() else PHASES[5]
        if self.is_being_written():
            return PHASES[3]
        if not self.checkpoint.exists():
            return PHASES[0]
        return PHASES[2] if runs.read_tensors(self.checkpoint)[1]["step"] == str(STEPS) else PHASES[1]

    def weights(self) -> bytes | None:
        file = self.run / "weights.safetensors"
        return file.read_bytes() if file.exists() else None

    def content(self) -> str:
        """Which run can be loaded: old, new, nothing; or what is wrong with it."""
        try:
            ileed.load(self.run)
        except ileed.RunError as error:
            return "nothing" if "is not a run directory" in str(error) else str(error)
        return next((name for name, weights in self.whole.items() if weights == self.weights()), "a mixture")

    def left_over(self) -> list[str]:
        """What a fit that ended leaves beside its run and in it, and should not."""
        names = {item.name for item in self.folder.iterdir()} - {"run"}
        inside = {item.name for item in self.run.iterdir()} - {"thesis.tex"}
        ours = {"settings.json", "provenance.json", "history.jsonl", "weights.safetensors"}
        return sorted(names | (inside ^ ours))


@dataclass
class FitRecord(Record):
    """What was found so far, and in which phase fits were killed."""

    kills_of_fresh_processes: int = 0
    by_phase: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(PHASES, 0)))
    resumed_and_compared: int = 0
    whole_when_killed: int = 0


def trial(place: Place, arguments: list[str], rng: random.Random, length: float, record: FitRecord) -> None:
    """Kill a fit up to three times, and let it end."""
    fresh = record.trials % TRIALS_BETWEEN_FRESH_ONES == TRIALS_BETWEEN_FRESH_ONES - 1
    start = Process.fresh if fresh else Process.forked
    before = "old" if place.replaces else "nothing"
    for _ in range(rng.randint(1, MOST_KILLS_IN_A_TRIAL)):
        place.left = place.partial()
        process = start(arguments)
        wait_for_the_moment(process, place, rng, 5.0 if fresh else length)
        if not process.kill():
            break
        record.kills += 1
        record.kills_of_fresh_processes += fresh
        record.by_phase[place.phase()] += 1
        record.by_place["a run is replaced" if place.replaces else "a new run"] += 1
        found = place.content()
        record.found_after_a_kill[found] += 1
        if found not in (before, "new"):
            record.lost += 1
            record.failures.append(f"trial {record.trials}: after a kill there was {found}")
        before = found
        if found == "new" and not place.replaces:
            record.whole_when_killed += 1
            return  # the same command would be refused: the run is there
    code = Process.forked(arguments).wait() if process.code == -signal.SIGKILL else process.code
    if code != 0:
        record.failures.append(f"trial {record.trials}: the command ended with {code}")
    record.resumed_and_compared += 1
    if place.content() != "new":
        record.unequal += 1
        record.failures.append(f"trial {record.trials}: at the end there was {place.content()}")
    if place.replaces and (place.run / "thesis.tex").read_text() != "years of work":
        record.touched += 1
    if place.left_over():
        record.left_over += 1
        record.failures.append(f"trial {record.trials}: {place.left_over()} was left")


def wait_for_the_moment(process: Process, place: Place, rng: random.Random, length: float) -> None:
    """Wait for a random moment of a fit, a random delay after it began to write the run, or the run to be whole."""
    aim = rng.choice(["any moment"] * 3 + ["being written"] * 2 + ["whole"])
    delay = rng.expovariate(1 / DELAY)
    if aim == "any moment":
        moment = time.monotonic() + rng.uniform(0, 1.05 * length)
        while time.monotonic() < moment and not process.ended():
            time.sleep(0.001)
        return
    while not process.ended() and not place.is_being_written():
        time.sleep(0.0002)
    if aim == "being written":
        time.sleep(0 if process.ended() else delay)
    while aim == "whole" and not process.ended() and not place.is_whole():
        pass


def written_data(path: Path) -> Path:
    rng = np.random.default_rng(0)
    skilled = rng.random(600) < np.repeat([0.9, 0.6, 0.2], 200)
    observations = rng.integers(0, 3, size=(600, 4)).astype(np.float32)
    table = {
        "observation": list(observations),
        "action": np.where(skilled, observations[:, 0].astype(int), rng.integers(0, 3, size=600)),
        "demonstrator": np.repeat(["ann", "bob", "cy"], 200),
        "episode": np.repeat(np.arange(30), 20),
    }
    pq.write_table(pa.table(table), path)
    return path


def arguments(data: Path, out: Path, *, seed: int, overwrite: bool) -> list[str]:
    words = ["fit", str(data), "--out", str(out), "--seed", str(seed), *SETTINGS]
    return [*words, "--overwrite"] if overwrite else words


def uninterrupted(folder: Path, data: Path) -> tuple[dict[str, bytes], float]:
    """The weights of the old and of the new run without a kill, and how many seconds the second one took."""
    for seed, name in enumerate(("old", "new")):
        began = time.monotonic()
        if code := Process.forked(arguments(data, folder / name, seed=seed, overwrite=False)).wait():
            raise SystemExit(f"an uninterrupted fit ended with {code}")
        length = time.monotonic() - began
    return {name: (folder / name / "weights.safetensors").read_bytes() for name in ("old", "new")}, length


def main(words: list[str] | None = None) -> int:
    asked = parsed(words, __doc__.splitlines()[0], "results/robustness/kills.json")
    torch.set_num_threads(1)  # a process that has started threads must not be forked
    inspect.unwrap(ileed.Ileed.fit).__kwdefaults__["checkpoint_seconds"] = CHECKPOINT_SECONDS
    record = FitRecord.read(asked.out, asked.seed)
    about = {
        "command": f"python tests/robustness/kill_fits.py --kills KILLS --seed {asked.seed} --out OUT",
        "how": "processes forked from one that has imported the package, killed with SIGKILL; "
        f"every {TRIALS_BETWEEN_FRESH_ONES}th trial as `python -m ileed`",
        "settings": ["ileed", "fit", "data.parquet", *SETTINGS],
        "checkpoint_seconds": CHECKPOINT_SECONDS,
    }
    with tempfile.TemporaryDirectory(prefix="ileed-kills-") as made:
        folder = Path(made)
        data = written_data(folder / "data.parquet")
        whole, length = uninterrupted(folder, data)

        def one(rng: random.Random) -> bool:
            place = Place(folder / "trial", rng.random() < 0.5, whole)
            place.prepare(folder / "old")
            trial(place, arguments(data, place.run, seed=1, overwrite=place.replaces), rng, length, record)
            return True

        return record.run(one, asked.kills, asked.out, about)


if __name__ == "__main__":
    sys.exit(main())
