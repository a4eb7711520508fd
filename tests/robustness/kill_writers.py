"""Kill everything that writes files at random moments and check that the old or the new content is there, whole.

    python tests/robustness/kill_writers.py --kills 1000 --out results/robustness/kills-writers.json

A trial takes one writer (a run, curated episodes or a data set in some format, marks, a report, figures, tables, a
checkpoint) and a place that is empty or holds what the same writer wrote before, with a file of its user beside our
own. The process that writes is killed (SIGKILL) up to three times: right before one of its requests to the operating
system that open, make, link, rename or remove something, or at a moment drawn uniformly over the length of the write.
After each kill the place must hold the old or the new content, whole, or nothing if it was empty. Then the same write
runs to its end: the new content must be there, the user's file and the data as they were, and no hidden file or folder
may be left.

Each writer runs in a process that is forked from one that has imported the package. The record is written as trials go
by; the same command continues with the trials that are left.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import numpy as np
import pyarrow as pa
import torch
from killing import MOST_KILLS_IN_A_TRIAL, Record, parsed

import ileed
from ileed import runs
from ileed.cli import run as command
from ileed.formats import write_openpi_filter
from ileed.report import figures, people_table
from ileed.runs import files as written_whole
from ileed.serve import Marks

WORK = "years of work"
FIGURES = "figures, one file each"
Write = Callable[[Path, str], object]


@dataclass(frozen=True)
class Writer:
    """Writes the old or the new content to a place; `read` says what is there, as text that can be compared."""

    write: Write
    read: Callable[[Path], str]
    is_folder: bool = True
    replaces: bool = True


# --- what is written


def population(*, discrete: bool = True) -> ileed.Demonstrations:
    rng = np.random.default_rng(0)
    seen = rng.integers(0, 3, size=(240, 4)).astype(np.float32)
    acted = np.where(rng.random(240) < 0.8, seen[:, 0].astype(int), rng.integers(0, 3, size=240))
    return ileed.Demonstrations(
        observations=seen,
        actions=acted if discrete else seen[:, :2] + rng.normal(size=(240, 2)).astype(np.float32),
        demonstrator=np.repeat(["ann", "bob", "cy"], 80),
        episode=np.repeat(np.arange(12), 20),
    )


def fits(data: ileed.Demonstrations) -> dict[str, ileed.Fitted]:
    head = ileed.CategoricalMLP(hidden=(4,)) if data.discrete else ileed.MixtureMLP(hidden=(4,), modes=1)
    method = ileed.Ileed(policy=head, restarts=1, steps=20, folds=2)
    return {name: method.fit(data, seed=seed, device="cpu") for seed, name in enumerate(("old", "new"))}


def writers(folder: Path) -> dict[str, Writer]:
    """Every writer by its name; `folder` holds the data and runs that they read."""
    ileed.write(population(), folder / "data.parquet")
    ileed.write(population(discrete=False), folder / "data.hdf5")
    data = {True: ileed.read(folder / "data.parquet"), False: ileed.read(folder / "data.hdf5")}  # by discrete actions
    found = {kind: fits(each) for kind, each in data.items()}
    for name, fitted in found[True].items():
        fitted.save(folder / f"run-{name}")
    ileed.write(data[True], folder / "set", format="lerobot")
    ileed.write(data[True], folder / "set-v0", format="minari")
    share = {"old": 0.5, "new": 0.3}
    sources = {name: ileed.read(folder / name) for name in ("data.parquet", "data.hdf5", "set", "set-v0")}
    chosen = {
        (source, name): ileed.curate(found[each.discrete]["old"], each, keep=share[name], stretch=5)
        for source, each in sources.items()
        for name in share
    }
    parts = {kind: {"old": each.select(each.episode < 6), "new": each} for kind, each in data.items()}

    def save(place: Path, version: str) -> None:
        found[True][version].save(place, overwrite=True)

    def save_in_place(place: Path, version: str) -> None:
        written_whole.exchange = unsupported
        save(place, version)

    def curate(source: str, format_: str | None, place: Path, version: str) -> None:
        read_from = None if source == "data.parquet" else folder / source
        chosen[source, version].write(place, format=format_, source=read_from, overwrite=True)

    def curate_command(place: Path, version: str) -> None:
        words = ["curate", folder / "run-old", folder / "data.parquet", "--out", place, "--overwrite"]
        code = command([*map(str, words), "--keep", str(share[version]), "--stretch", "5"])
        assert code == 0

    def convert(kind: bool, format_: str, options: Mapping[str, str], place: Path, version: str) -> None:
        ileed.write(parts[kind][version], place, format=format_, overwrite=True, **options)

    def convert_command(place: Path, version: str) -> None:
        assert command(["convert", str(folder / "data.parquet"), str(place), "--format", "lerobot", "--overwrite"]) == 0

    def mark(place: Path, version: str) -> None:
        place.mkdir(exist_ok=True)
        Marks.of(place, "f" * 40, 12).put(3, "keep" if version == "old" else "drop")

    def checkpoint(place: Path, version: str) -> None:
        value = 0.0 if version == "old" else 1.0
        runs.write_tensors(place, {"a": torch.full((5_000,), value)}, {"step": version})

    def filters(place: Path, version: str) -> None:
        write_openpi_filter({"a": [(0, 5 if version == "old" else 9)]}, place)

    answers = {"task": list("aabbcc"), "worker": list("xyxyxy"), "label": list("010011")}
    labels = ileed.Labelling().fit(ileed.from_answers(pa.table(answers)), seed=0)

    def label(place: Path, version: str) -> None:
        with suppress(ileed.SettingsError):  # it is there, whole
            labels.save(place)

    def table(place: Path, version: str) -> None:
        with suppress(ileed.RunError):
            people_table(folder / f"run-{version}", place)

    every = {
        "save a run": Writer(save, run_of),
        "save a run, without exchange of folders": Writer(save_in_place, run_of),
        "curate, tables": Writer(partial(curate, "data.parquet", None), folder_of),
        "curate, openpi": Writer(partial(curate, "data.parquet", "openpi"), folder_of),
        "curate, lerobot": Writer(partial(curate, "set", "lerobot"), folder_of),
        "curate, minari": Writer(partial(curate, "set-v0", "minari"), folder_of),
        "curate, robomimic": Writer(partial(curate, "data.hdf5", "robomimic"), folder_of),
        "the command curate --overwrite": Writer(curate_command, folder_of),
        "the command convert --overwrite": Writer(convert_command, folder_of),
        "convert, parquet": Writer(partial(convert, True, "parquet", {}), file_of, is_folder=False),
        "convert, robomimic": Writer(partial(convert, False, "robomimic", {}), file_of, is_folder=False),
        "convert, lerobot v3.0": Writer(partial(convert, True, "lerobot", {"version": "v3.0"}), folder_of),
        "convert, lerobot v2.1": Writer(partial(convert, True, "lerobot", {"version": "v2.1"}), folder_of),
        "convert, minari": Writer(partial(convert, True, "minari", {}), folder_of),
        "convert, imitation": Writer(partial(convert, True, "imitation", {}), folder_of),
        "convert, parquet-folder": Writer(partial(convert, True, "parquet-folder", {}), folder_of),
        "marks": Writer(mark, marks_of),
        "report": Writer(lambda place, v: ileed.report(folder / f"run-{v}", out=place), file_of, is_folder=False),
        FIGURES: Writer(lambda place, v: figures(folder / f"run-{v}", place), files_of),
        "table of demonstrators": Writer(table, file_of, is_folder=False, replaces=False),
        "label": Writer(label, folder_of, replaces=False),
        "filter of openpi": Writer(filters, file_of, is_folder=False),
        "checkpoint": Writer(checkpoint, file_of, is_folder=False),
    }
    files = {name: replace(each, write=named(each.write, name)) for name, each in every.items() if not each.is_folder}
    return every | files


def named(write: Write, name: str) -> Write:
    """The writer of a file, with the ending that its format has."""
    ending = {"convert, parquet": ".parquet", "convert, robomimic": ".hdf5", "table of demonstrators": ".csv"}
    return lambda place, version: write(place.with_suffix(ending.get(name, ".html")), version)


def unsupported(*folders: Path) -> NoReturn:
    raise OSError(38, "Function not implemented")


# --- what is found


def run_of(place: Path) -> str:
    """The run at a place as `ileed.load` finds it; the files of one run, or a failure."""
    if not place.exists() or not any(item.name == "settings.json" for item in place.rglob("settings.json")):
        return "nothing"
    fitted = ileed.load(place)
    names = ("settings.json", "provenance.json", "history.jsonl", "weights.safetensors")
    return digest({name: (place / name).read_bytes() for name in names}) + str(fitted.nats_per_action)


def folder_of(place: Path) -> str:
    """Everything in a folder, but for the user's file and the time at which it was written."""
    if not place.exists():
        return "nothing"
    files = {str(file.relative_to(place)): file.read_bytes() for file in sorted(place.rglob("*")) if file.is_file()}
    files.pop("thesis.tex", None)
    if "curated.json" in files:
        about = json.loads(files["curated.json"])
        files["curated.json"] = json.dumps(about | {"provenance": None}).encode()
    for name in ("robomimic_bands.json", "robomimic_keep.json", "lerobot.txt"):
        if name in files:
            files[name] = files[name].replace(str(place).encode(), b"PLACE")
    return digest(files)


def files_of(place: Path) -> str:
    """Files that are written one by one, each whole: how many are new may differ."""
    if not place.exists():
        return "nothing"
    for file in place.glob("*.svg"):
        assert file.read_bytes().rstrip().endswith(b"</svg>"), f"{file.name} is not whole"
    return folder_of(place)


def file_of(place: Path) -> str:
    files = [file for file in place.parent.glob(f"{place.name}.*") if file.is_file()]
    return digest({"": files[0].read_bytes()}) if files else "nothing"


def marks_of(place: Path) -> str:
    if not any(place.glob("marks-*.json")):
        return "nothing"
    return str(Marks.of(place, "f" * 40, 12).read().marks)


def digest(files: Mapping[str, bytes]) -> str:
    found = hashlib.blake2b(digest_size=16)
    for name, content in sorted(files.items()):
        found.update(f"{name} {len(content)} ".encode() + content)
    return found.hexdigest()


# --- killing


def forked(work: Callable[[], object], *, killed_before: int | None = None, count: bool = False) -> tuple[int, int]:
    """Run in a process of its own; its pid, and the end of a pipe to which it writes how many requests it made."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    silent = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, *((2,) if not os.environ.get("KILL_WRITERS_LOUD") else ())):
        os.dup2(silent, stream)
    requests = 0

    def audit(event: str, _: object) -> None:
        nonlocal requests
        if event.startswith(("open", "os.", "shutil.", "tempfile.", "fcntl.")):
            requests += 1
            if requests - 1 == killed_before:
                os.kill(os.getpid(), signal.SIGKILL)

    code = 70
    try:
        sys.addaudithook(audit)
        work()
        code = 0
    except BaseException:
        if os.environ.get("KILL_WRITERS_LOUD"):
            import traceback

            traceback.print_exc()
    finally:
        if count:
            os.write(writing, str(requests).encode())
        os._exit(code)


def ended(child: int, reading: int) -> tuple[int, str]:
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with os.fdopen(reading) as told:
        return code, told.read()


@dataclass
class WriterRecord(Record):
    """What was found so far, by writer and by the moment of the kill."""

    by_writer: Counter[str] = field(default_factory=Counter)
    by_moment: Counter[str] = field(default_factory=Counter)
    ended_and_compared: int = 0


@dataclass
class Trials:
    """The trials of all writers: what each writes, how long that takes, and how many requests it makes."""

    folder: Path
    all: dict[str, Writer]
    whole: dict[tuple[str, str], str] = field(default_factory=dict)
    lengths: dict[tuple[str, bool], tuple[int, float]] = field(default_factory=dict)

    @property
    def place(self) -> Path:
        return self.folder / "trial" / "out"

    def prepare(self, name: str, replaces: bool) -> None:
        """An empty place, or one with the old content and a file of its user."""
        shutil.rmtree(self.place.parent, ignore_errors=True)
        self.place.parent.mkdir()
        if replaces:
            code, _ = ended(*forked(lambda: self.all[name].write(self.place, "old")))
            assert code == 0, f"{name} cannot write what is to be replaced"
            if self.all[name].is_folder:
                (self.place / "thesis.tex").write_text(WORK)

    def measure(self, name: str) -> None:
        """What an uninterrupted write leaves, and how long it takes."""
        writer = self.all[name]
        for replaces in (False, True) if writer.replaces else (False,):
            self.prepare(name, replaces)
            if replaces:
                self.whole[name, "old"] = writer.read(self.place)
            began = time.monotonic()
            code, requests = ended(*forked(lambda: writer.write(self.place, "new"), count=True))
            assert code == 0, f"{name} fails without being killed"
            self.lengths[name, replaces] = int(requests), time.monotonic() - began
            found = writer.read(self.place)
            assert self.whole.setdefault((name, "new"), found) == found, f"{name} does not write the same twice"

    def run(self, name: str, rng: random.Random, record: WriterRecord) -> None:
        """Kill a writer up to three times, and let it end."""
        writer = self.all[name]
        replaces = writer.replaces and rng.random() < 0.7
        self.prepare(name, replaces)
        may_hold = {"old" if replaces else "nothing", "new"}
        if name == FIGURES:
            may_hold.add("some old and some new, each whole")
        for _ in range(rng.randint(1, MOST_KILLS_IN_A_TRIAL)):
            if not self.kill(name, replaces, rng, record):
                break
            found = self.content(name)
            record.found_after_a_kill[found] += 1
            if found not in may_hold:
                record.lost += 1
                record.failures.append(f"trial {record.trials}, {name}: after a kill there was {found}")
        code, _ = ended(*forked(lambda: writer.write(self.place, "new")))
        record.ended_and_compared += 1
        if code or (found := self.content(name)) != "new":
            record.unequal += 1
            told = f"it ended with {code}" if code else f"at the end there was {found}"
            record.failures.append(f"trial {record.trials}, {name}: {told}")
        if replaces and writer.is_folder and (self.place / "thesis.tex").read_text() != WORK:
            record.touched += 1
        if left := self.left_over():
            record.left_over += 1
            record.failures.append(f"trial {record.trials}, {name}: {left} was left")

    def kill(self, name: str, replaces: bool, rng: random.Random, record: WriterRecord) -> bool:
        """Whether the process was killed, rather than had ended before."""
        requests, seconds = self.lengths[name, replaces]
        work = partial(self.all[name].write, self.place, "new")
        if moment := rng.random() < 0.7:
            child, reading = forked(work, killed_before=rng.randrange(requests))
        else:
            child, reading = forked(work)
            time.sleep(rng.uniform(0, seconds))
            os.kill(child, signal.SIGKILL)
        code, _ = ended(child, reading)
        if code != -signal.SIGKILL:
            return False
        record.kills += 1
        record.by_writer[name] += 1
        record.by_moment["before a request" if moment else "at a random time"] += 1
        record.by_place["replaced" if replaces else "new"] += 1
        return True

    def content(self, name: str) -> str:
        """Which content is found: old, new, nothing, or what is wrong with it."""
        try:
            found = self.all[name].read(self.place)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        if found == "nothing":
            return found
        other = "some old and some new, each whole" if name == FIGURES else "a mixture"
        return next((version for version in ("new", "old") if self.whole.get((name, version)) == found), other)

    def left_over(self) -> list[str]:
        """Hidden files and folders, and anything else beside the place."""
        hidden = list(self.place.parent.rglob(".*"))
        beside = [path for path in self.place.parent.iterdir() if path.name.split(".")[0] != self.place.name]
        return sorted({path.name for path in (*hidden, *beside)})


def tree(folder: Path) -> str:
    return digest({str(file): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()})


def main(words: list[str] | None = None) -> int:
    asked = parsed(words, __doc__.splitlines()[0], "results/robustness/kills-writers.json")
    torch.set_num_threads(1)  # a process that has started threads must not be forked
    pa.set_cpu_count(1)
    record = WriterRecord.read(asked.out, asked.seed)
    about = {
        "command": f"python tests/robustness/kill_writers.py --kills KILLS --seed {asked.seed} --out OUT",
        "how": "processes forked from one that has imported the package, killed with SIGKILL before one of their "
        "requests to the file system, or at a random time",
        "settings": {"most kills in a trial": MOST_KILLS_IN_A_TRIAL, "episodes": 12, "steps": 240},
    }
    with tempfile.TemporaryDirectory(prefix="ileed-kills-") as made:
        inputs = Path(made) / "inputs"
        inputs.mkdir()
        trials = Trials(Path(made), writers(inputs))
        before = tree(inputs)
        for name in trials.all:
            trials.measure(name)
        names = sorted(trials.all)

        def one(rng: random.Random) -> bool:
            trials.run(names[record.trials % len(names)], rng, record)
            if tree(inputs) == before:
                return True
            record.touched += 1
            record.failures.append(f"trial {record.trials}: the data were changed")
            return False

        return record.run(one, asked.kills, asked.out, about)


if __name__ == "__main__":
    sys.exit(main())
