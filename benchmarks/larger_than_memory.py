"""A folder larger than memory: peak memory, the time of an optimisation step, and counting against DuckDB's GROUP BY.

    $ python benchmarks/larger_than_memory.py --folder PLACE [--millions 1 5 50] [--duckdb PYTHON]

writes parquet files of simulated steps (1,000 demonstrators, 32 features, 8 actions; 128 bytes of observations a step)
to PLACE, where they are found again the next time. Each figure comes from a process of its own, whose anonymous memory
is read from /proc every 20 ms; pages of mapped files belong to the system and are counted apart.

The speed of a shared machine drifts over minutes. So all fits are opened first, one after the other, and their
optimisation steps are taken in turn: a fit goes on to its next progress report, a 200th of its steps, and waits while
each of the others does the same, in an order that is drawn for every round. Drift is then common to all sizes. Only one
fit computes at any time, and waiting is not counted. All fits are open at once, so `--cache` needs space for the
columns of all sizes together.

`--duckdb` names a Python that has duckdb, which counts the same columns from parquet files that hold each feature in a
column of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TextIO, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ileed import runs

PEOPLE, FEATURES, ACTIONS, EPISODE = 1_000, 32, 8, 100
FILE_STEPS = 1_000_000
DISTINCT = 10_000  # observations of the world that repeats, the k-th as frequent as 1 / k
FIRST_TURN, LAST_TURN = 0.2, 0.98  # shares of the optimisation steps between which fits take turns
LEAST_STEPS = 200  # with fewer, progress reports are not a 200th of the steps apart
MEMORY_SECONDS = 0.02  # between two readings of a process's memory
RESAMPLES = 4_000
PACES = ("milliseconds_per_step", "processor_milliseconds_per_step")
GROUP_BY = """
import duckdb, json, sys, time
folder, memory, threads = sys.argv[1:]
found = duckdb.connect(config={"memory_limit": memory, "threads": threads, "temp_directory": folder + "/spilled"})
columns = ", ".join(["demonstrator", "action"] + [f"feature_{number}" for number in range(32)])
began = time.perf_counter()
query = f"SELECT {columns}, count(*) AS steps FROM read_parquet('{folder}/*.parquet') GROUP BY {columns}"
counts, steps = found.execute(f"SELECT count(*), sum(steps) FROM ({query})").fetchone()
seconds = time.perf_counter() - began
print(json.dumps({"seconds": seconds, "counts": counts, "steps": int(steps), "version": duckdb.__version__}))
"""


def simulated(number: int, *, repeats: bool) -> dict[str, Any]:
    """The columns of one file: each demonstrator has ten episodes in it, and follows one network or acts at random."""
    network = np.random.default_rng(0).normal(size=(FEATURES, ACTIONS)).astype(np.float32)
    expertise = np.random.default_rng(1).uniform(0.1, 0.95, size=PEOPLE)
    random = np.random.default_rng((2, number))
    if repeats:
        states = np.random.default_rng(3).normal(size=(DISTINCT, FEATURES)).astype(np.float32)
        share = 1 / np.arange(1, DISTINCT + 1)
        seen = states[random.choice(DISTINCT, size=FILE_STEPS, p=share / share.sum())]
    else:
        seen = random.standard_normal((FILE_STEPS, FEATURES), dtype=np.float32)
    episodes = FILE_STEPS // EPISODE
    who = np.repeat(np.arange(episodes) % PEOPLE, EPISODE)
    follows = random.random(FILE_STEPS) < expertise[who]
    action = np.where(follows, (seen @ network).argmax(1), random.integers(ACTIONS, size=FILE_STEPS))
    return {
        "seen": seen,
        "action": action,
        "demonstrator": pa.DictionaryArray.from_arrays(who.astype(np.int32), [f"{each:04}" for each in range(PEOPLE)]),
        "episode": np.repeat(np.arange(episodes) + number * episodes, EPISODE),
    }


def make(folder: Path, files: int, *, repeats: bool, flat: bool = False) -> Path:
    """A folder with at least this many files; with `flat` each feature is a column of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        path = folder / f"part-{number:03}.parquet"
        if path.exists():
            continue
        columns = simulated(number, repeats=repeats)
        seen = columns.pop("seen")
        if flat:
            columns |= {f"feature_{each}": seen[:, each] for each in range(FEATURES)}
        else:
            columns["observation"] = pa.FixedSizeListArray.from_arrays(seen.ravel(), FEATURES)
        partial = path.with_suffix(".partial")
        pq.write_table(pa.table(columns), partial, row_group_size=1 << 17)
        partial.rename(path)
    return folder


def first_files(folder: Path, files: int, place: Path) -> Path:
    """A folder with the first files of another."""
    place.mkdir()
    for path in sorted(folder.glob("*.parquet"))[:files]:
        os.link(path, place / path.name)
    return place


def memory_of(process: int) -> dict[str, float]:
    """Anonymous and mapped memory in GiB."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return {}
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return {name: int(fields[name].split()[0]) / 2**20 for name in ("RssAnon", "RssFile") if name in fields}


@final
class PeakMemory:
    """The peak memory of a process in GiB, of the readings taken: anonymous, and pages of mapped files."""

    def __init__(self, process: int) -> None:
        self._process, self._peak = process, {"RssAnon": 0.0, "RssFile": 0.0}

    def read(self) -> None:
        """Take a reading."""
        self._peak |= {name: max(size, self._peak[name]) for name, size in memory_of(self._process).items()}

    def found(self) -> dict[str, float]:
        """The peaks, as they stand in a record."""
        return {"peak_anonymous_gib": self._peak["RssAnon"], "peak_mapped_gib": self._peak["RssFile"]}


def measured(*command: str) -> dict[str, Any]:
    """What a process prints as JSON, its seconds, and its peak memory."""
    load, began = os.getloadavg()[0], time.perf_counter()
    with tempfile.TemporaryFile("w+") as printed:
        process = subprocess.Popen(command, stdout=printed)
        memory = PeakMemory(process.pid)
        while process.poll() is None:
            memory.read()
            time.sleep(MEMORY_SECONDS)
        if process.returncode:
            raise SystemExit(f"{' '.join(command[:4])} ended with {process.returncode}")
        printed.seek(0)
        found = json.loads(printed.read().splitlines()[-1])
    process_seconds = time.perf_counter() - began
    return {**found, "process_seconds": process_seconds, **memory.found(), "load_before": load}


@final
class OpenFit:
    """A fit in a process of its own, which prints its step at each progress report of its turns, and waits for a line.

    Leaving the context ends the process.
    """

    def __init__(self, name: str, *command: str) -> None:
        self.name, self.load_before = name, os.getloadavg()[0]
        # Without buffers here: what is written is sent, and what is not yet read is seen by `select`.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self._memory, self._unread, self.step = PeakMemory(self._process.pid), b"", 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._process.kill()
        with self._process:
            pass

    def reach_report(self) -> None:
        """Wait until it stands at its next progress report."""
        self.step = int(self._next_line())

    def take_turn(self) -> None:
        """Let it go on to its next progress report."""
        self._go_on()
        self.reach_report()

    def finish(self) -> dict[str, Any]:
        """Let it go on to its end: what it found, and its peak memory."""
        self._go_on()
        found = json.loads(self._next_line())
        if code := self._process.wait():
            raise SystemExit(f"the fit to {self.name} ended with {code}")
        return {**found, **self._memory.found(), "load_before": self.load_before}

    def _go_on(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the end of what it prints tells that it has ended
            self._process.stdin.write(b"\n")

    def _next_line(self) -> bytes:
        assert self._process.stdout is not None
        while b"\n" not in self._unread:
            self._memory.read()
            if select.select([self._process.stdout], [], [], MEMORY_SECONDS)[0]:
                printed = self._process.stdout.read(1 << 16)
                if not printed:
                    raise SystemExit(f"the fit to {self.name} ended with {self._process.wait()} before it was done")
                self._unread += printed
        self._memory.read()
        line, _, self._unread = self._unread.partition(b"\n")
        return line


class StepsTaken(BaseException):
    """The last turn is over, before all is scored."""


class Report(NamedTuple):
    """A progress report: the optimisation step, and seconds and processor seconds before and after waiting."""

    step: int
    before: tuple[float, float]
    after: tuple[float, float]


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def fit(folder: str, cache: str, memory_gib: float, steps: int, *, scores: bool, lines: TextIO) -> dict[str, Any]:
    """A fit of so many optimisation steps, which writes to `lines` and waits at each report of its turns.

    It goes on at a line from the standard input. With `scores` it is fitted to its end.
    """
    import ileed
    from ileed.formats import read_parts

    reports: list[Report] = []

    def report(progress: ileed.Progress) -> None:
        before = _clocks()
        if progress.stage != "fitting" or progress.step >= steps:  # the last comes when all is scored
            return
        turns_are_over = bool(reports) and reports[-1].step >= LAST_TURN * steps
        if progress.step >= FIRST_TURN * steps and not turns_are_over:
            print(progress.step, file=lines, flush=True)
            if not sys.stdin.readline():
                raise SystemExit("the benchmark ended before this fit")
        reports.append(Report(progress.step, before, _clocks()))
        if not scores and progress.step >= LAST_TURN * steps:
            raise StepsTaken

    began = time.perf_counter()
    data = read_parts(folder, memory_gib=memory_gib, cache=cache)
    read = time.perf_counter()
    method = ileed.Ileed(policy=ileed.CategoricalMLP(hidden=(64, 64)), restarts=1, steps=steps, folds=0)
    fitted: ileed.Fitted | None = None
    with contextlib.suppress(StepsTaken):
        fitted = method.fit(data, seed=0, device="cpu", progress=report)
    ended = time.perf_counter()
    turns = [
        1_000 * np.subtract(later.before, earlier.after) / (later.step - earlier.step)
        for earlier, later in itertools.pairwise(reports)
        if FIRST_TURN * steps <= earlier.step < LAST_TURN * steps
    ]
    found = {
        "steps": len(data),
        "reading_seconds": read - began,
        "seconds_before_first_record": reports[0].before[0] - read,
        **{name: clock.tolist() for name, clock in zip(PACES, np.transpose(turns), strict=True)},
    }
    if fitted is None:
        return found
    by_person = fitted.expertise.by_demonstrator()
    expertise = np.array([by_person[f"{each:04}"] for each in range(PEOPLE)])
    truth = np.random.default_rng(1).uniform(0.1, 0.95, size=PEOPLE)
    return found | {
        "scoring_and_summary_seconds": ended - reports[-1].after[0],
        "nats_per_action": fitted.nats_per_action,
        "rank_correlation": _rank_correlation(truth, expertise),
    }


def _rank_correlation(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.corrcoef(one.argsort().argsort(), other.argsort().argsort())[0, 1])


def collapse(folder: str, cache: str, memory_gib: float) -> dict[str, Any]:
    """Seconds of reading a folder, and of counting it."""
    from ileed.data import Collapsed
    from ileed.formats import read_parts

    began = time.perf_counter()
    data = read_parts(folder, memory_gib=memory_gib, cache=cache)
    read = time.perf_counter()
    found = data.collapsed()
    ended = time.perf_counter()
    assert isinstance(found, Collapsed)
    return {
        "steps": len(data),
        "observations": found.unique_count,
        "counts": len(found.count),
        "reading_seconds": read - began,
        "seconds": ended - read,
    }


def fits(options: argparse.Namespace, place: Path) -> list[dict[str, Any]]:
    """A fit to each size, smallest first, whose optimisation steps are taken in turn."""
    sizes = sorted(set(options.millions))
    source = make(options.folder / "unique", max(sizes), repeats=False)
    settings = [str(options.memory_gib), str(options.optimisation_steps)]
    settings += ["--steps-only"] if options.steps_only else []
    with contextlib.ExitStack() as stack:
        opened: list[OpenFit] = []
        for size in sizes:
            folder = first_files(source, size, place / f"{size}-million")
            columns = stack.enter_context(tempfile.TemporaryDirectory(dir=options.cache or place))
            command = (sys.executable, __file__, "--fit", str(folder), columns, *settings)
            opened.append(stack.enter_context(OpenFit(f"{size} million steps", *command)))
            opened[-1].reach_report()
            print(f"{size:>4} million steps: read, and fitted to step {opened[-1].step:,}", flush=True)
        take_turns(opened, LAST_TURN * options.optimisation_steps)
        found = with_paces([each.finish() for each in opened])
    for each in found:
        print(_sentence(each), flush=True)
    return found


def take_turns(opened: Sequence[OpenFit], last_step: float) -> None:
    """Rounds in which each fit goes on to its next progress report, in an order drawn for every round."""
    random = np.random.default_rng(0)
    while any(each.step < last_step for each in opened):
        for number in random.permutation(len(opened)):
            opened[number].take_turn()


def with_paces(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Fits with their paces summarised over turns, and compared with that of the first."""
    summaries = {name: pace_summaries(np.array([each[name] for each in found])) for name in PACES}
    return [
        each | {"turns": len(each[PACES[0]])} | {name: summaries[name][number] for name in PACES}
        for number, each in enumerate(found)
    ]


def pace_summaries(turns: np.ndarray) -> list[dict[str, Any]]:
    """Median and mean of each row of turns (size, round), and its ratio to the first row: the median over rounds.

    The ratio is taken within a round, where the machine has nearly one speed. Its 95% interval is by a bootstrap of
    rounds.
    """
    rounds = turns.shape[1]
    resampled = np.random.default_rng(0).integers(rounds, size=(RESAMPLES, rounds))
    return [
        {
            "median": float(np.median(row)),
            "mean": float(row.mean()),
            "ratio_to_smallest": float(np.median(ratios)),
            "ratio_interval": np.quantile(np.median(ratios[resampled], axis=1), (0.025, 0.975)).tolist(),
        }
        for row, ratios in zip(turns, turns / turns[0], strict=True)
    ]


def _sentence(found: dict[str, Any]) -> str:
    clock, processor = (found[name] for name in PACES)
    low, high = clock["ratio_interval"]
    return (
        f"{found['steps']:>12,} steps: read in {found['reading_seconds']:.1f} s; an optimisation step "
        f"{clock['median']:.3f} ms in the median over {found['turns']} turns, {clock['mean']:.3f} in the mean "
        f"(processor {processor['median']:.3f}, {processor['mean']:.3f}); {clock['ratio_to_smallest']:.3f} times the "
        f"smallest size ({low:.3f} to {high:.3f}); scored in "
        f"{found.get('scoring_and_summary_seconds', math.nan):.1f} s; anonymous memory "
        f"{found['peak_anonymous_gib']:.2f} GiB (mapped {found['peak_mapped_gib']:.2f})"
    )


def counting(options: argparse.Namespace, place: Path) -> dict[str, Any]:
    """The repeating steps counted by us and by DuckDB."""
    files = options.repeating_millions
    source = make(options.folder / "repeating", files, repeats=True)
    folder = first_files(source, files, place / "repeating")
    settings = (str(options.cache or place), str(options.memory_gib))
    ours = measured(sys.executable, __file__, "--collapse", str(folder), *settings)
    print(
        f"{ours['steps']:,} steps counted: {ours['observations']:,} observations, {ours['counts']:,} counts; read in "
        f"{ours['reading_seconds']:.1f} s, counted in {ours['seconds']:.1f} s; anonymous memory "
        f"{ours['peak_anonymous_gib']:.2f} GiB",
        flush=True,
    )
    if options.duckdb is None:
        return {"ours": ours}
    flat = first_files(make(options.folder / "flat", files, repeats=True, flat=True), files, place / "flat")
    limits = (f"{options.duckdb_memory_gib}GiB", str(os.cpu_count()))
    theirs = measured(options.duckdb, "-c", GROUP_BY, str(flat), *limits)
    assert theirs["counts"] == ours["counts"]
    assert theirs["steps"] == ours["steps"]
    ratio = {
        "counting_alone": theirs["seconds"] / ours["seconds"],
        "reading_and_counting": theirs["seconds"] / (ours["seconds"] + ours["reading_seconds"]),
    }
    print(
        f"DuckDB {theirs['version']}: {theirs['seconds']:.1f} s, {theirs['peak_anonymous_gib']:.2f} GiB: "
        f"{ratio['counting_alone']:.2f} times our counting, {ratio['reading_and_counting']:.2f} times ours with reading"
    )
    return {"ours": ours, "duckdb": theirs, "duckdb_seconds_over_ours": ratio}


def options_of() -> argparse.Namespace:
    """The options of the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="where the simulated files are")
    parser.add_argument("--cache", type=Path, help="where columns are kept while a process runs")
    parser.add_argument("--millions", type=int, nargs="*", default=[1, 5, 10, 25, 50])
    parser.add_argument("--repeating-millions", type=int, default=50, help="0 leaves the counting out")
    parser.add_argument("--memory-gib", type=float, default=2.0)
    parser.add_argument("--optimisation-steps", type=int, default=4_000)
    parser.add_argument("--steps-only", action="store_true", help="end a fit before the cost of all the data is scored")
    parser.add_argument("--duckdb", help="a Python that has duckdb")
    parser.add_argument("--duckdb-memory-gib", type=int, default=16)
    parser.add_argument("--out", type=Path, help="a record; what this run leaves out of it stays")
    parser.add_argument("--fit", nargs=4, help="what the benchmark runs as a process")
    parser.add_argument("--collapse", nargs=3, help="what the benchmark runs as a process")
    options = parser.parse_args()
    if options.optimisation_steps < LEAST_STEPS:
        parser.error(
            f"{options.optimisation_steps} optimisation steps are too few for turns: pass {LEAST_STEPS} or more"
        )
    return options


def slowest_over_fastest(found: Sequence[dict[str, Any]]) -> dict[str, float]:
    """How much slower the slowest size is than the fastest, by the ratios to the smallest size."""
    compared = {}
    for name in PACES:
        ratios = [each[name]["ratio_to_smallest"] for each in found]
        compared[f"{name}, slowest over fastest"] = ratio = max(ratios) / min(ratios)
        print(f"{name}: the slowest is {ratio:.3f} times the fastest")
    return compared


def main() -> None:
    """Measure, print, and write a record."""
    options = options_of()
    if options.fit:
        folder, cache, memory, steps = options.fit
        lines = sys.stdout
        with contextlib.redirect_stdout(sys.stderr):  # only the lines of turns and the result belong there
            found = fit(folder, cache, float(memory), int(steps), scores=not options.steps_only, lines=lines)
        print(json.dumps(found))
        return
    if options.collapse:
        folder, cache, memory = options.collapse
        print(json.dumps(collapse(folder, cache, float(memory))))
        return
    record = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    names = ("memory_gib", "optimisation_steps", "duckdb_memory_gib")
    settings = {name: getattr(options, name) for name in names}
    settings |= {"people": PEOPLE, "features": FEATURES, "actions": ACTIONS}
    made = runs.provenance()
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as place:
        if options.millions:
            record |= {"provenance": made, "settings": settings, "fits": fits(options, Path(place))}
            record |= slowest_over_fastest(record["fits"])
        if options.repeating_millions:
            record["counting"] = counting(options, Path(place)) | {"provenance": made}
    if options.out is not None:
        runs.write_file(options.out, (json.dumps(record, indent=2) + "\n").encode())


if __name__ == "__main__":
    main()
