"""A folder larger than memory: peak memory, the time of an optimisation step, and counting against DuckDB's GROUP BY.

    $ python benchmarks/larger_than_memory.py --folder PLACE [--millions 1 5 50] [--rounds 3] [--duckdb PYTHON]

writes parquet files of simulated steps (1,000 demonstrators, 32 features, 8 actions; 128 bytes of observations a step)
to PLACE, where they are found again the next time. Each figure comes from a process of its own, whose anonymous memory
is read from /proc every 20 ms; pages of mapped files belong to the system and are counted apart. `--duckdb` names a
Python that has duckdb, which counts the same columns from parquet files that hold each feature in a column of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ileed import runs

PEOPLE, FEATURES, ACTIONS, EPISODE = 1_000, 32, 8, 100
FILE_STEPS = 1_000_000
DISTINCT = 10_000  # observations of the world that repeats, the k-th as frequent as 1 / k
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
    """The columns of one file: everybody has ten episodes in it, and follows one network or acts at random."""
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
    """A folder with at least so many files; with `flat` each feature is a column of its own."""
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


def measured(*command: str) -> dict[str, Any]:
    """What a process prints as JSON, its seconds, and its peak memory in GiB: anonymous, and pages of mapped files."""
    load, began, peak = os.getloadavg()[0], time.perf_counter(), {"RssAnon": 0.0, "RssFile": 0.0}
    with tempfile.TemporaryFile("w+") as printed:
        process = subprocess.Popen(command, stdout=printed)
        while process.poll() is None:
            peak |= {name: max(size, peak[name]) for name, size in memory_of(process.pid).items()}
            time.sleep(0.02)
        if process.returncode:
            raise SystemExit(f"{' '.join(command[:4])} ended with {process.returncode}")
        printed.seek(0)
        found = json.loads(printed.read().splitlines()[-1])
    process_seconds = time.perf_counter() - began
    memory = {"peak_anonymous_gib": peak["RssAnon"], "peak_mapped_gib": peak["RssFile"]}
    return {**found, "process_seconds": process_seconds, **memory, "load_before": load}


class StepsTaken(BaseException):
    """The last record before all is scored."""


def fit(folder: str, cache: str, memory_gib: float, steps: int, *, scores: bool) -> dict[str, Any]:
    """A fit of so many optimisation steps, timed between records of its curve; with `scores` to its end."""
    import ileed
    from ileed.readers import read_parts

    reports: list[tuple[int, float, float]] = []

    def note(progress: ileed.Progress) -> None:
        reports.append((progress.step, time.perf_counter(), time.process_time()))
        if not scores and progress.step >= 0.98 * steps:
            raise StepsTaken

    began = time.perf_counter()
    data = read_parts(folder, memory_gib=memory_gib, cache=cache)
    read = time.perf_counter()
    method = ileed.Ileed(policy=ileed.CategoricalMLP(hidden=(64, 64)), restarts=1, steps=steps, folds=0)
    fitted: ileed.Fitted | None = None
    with contextlib.suppress(StepsTaken):
        fitted = method.fit(data, seed=0, device="cpu", progress=note)
    ended = time.perf_counter()
    within = [report for report in reports if steps // 5 <= report[0] < steps]  # the last comes when all is scored
    step, seconds, processor = np.array(within).T
    taken = (step[-1] - step[0]) / 1_000
    found = {
        "steps": len(data),
        "reading_seconds": read - began,
        "seconds_before_first_record": reports[0][1] - read,
        "milliseconds_per_step": (seconds[-1] - seconds[0]) / taken,
        "processor_milliseconds_per_step": (processor[-1] - processor[0]) / taken,
        "milliseconds_per_step_median": 1_000 * float(np.median(np.diff(seconds) / np.diff(step))),
    }
    if fitted is None:
        return found
    by_person = fitted.expertise.by_demonstrator()
    expertise = np.array([by_person[f"{each:04}"] for each in range(PEOPLE)])
    truth = np.random.default_rng(1).uniform(0.1, 0.95, size=PEOPLE)
    return found | {
        "scoring_and_summary_seconds": ended - seconds[-1],
        "nats_per_action": fitted.nats_per_action,
        "rank_correlation": _rank_correlation(truth, expertise),
    }


def _rank_correlation(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.corrcoef(one.argsort().argsort(), other.argsort().argsort())[0, 1])


def collapse(folder: str, cache: str, memory_gib: float) -> dict[str, Any]:
    """Seconds of reading a folder, and of counting it."""
    from ileed.demonstrations import Collapsed
    from ileed.readers import read_parts

    began = time.perf_counter()
    data = read_parts(folder, memory_gib=memory_gib, cache=cache)
    read = time.perf_counter()
    found = data.collapse()
    ended = time.perf_counter()
    assert isinstance(found, Collapsed)
    return {
        "steps": len(data),
        "observations": found.unique_count,
        "counts": len(found.count),
        "reading_seconds": read - began,
        "seconds": ended - read,
    }


def fits(options: argparse.Namespace, place: Path) -> Iterator[dict[str, Any]]:
    """A fit to each size, smallest first, in every round; of each size the fit of median pace, with the pace of all."""
    source = make(options.folder / "unique", max(options.millions), repeats=False)
    folders = {each: first_files(source, each, place / f"{each}-million") for each in sorted(options.millions)}
    settings = [str(options.cache or place), str(options.memory_gib), str(options.optimisation_steps)]
    settings += ["--steps-only"] if options.steps_only else []
    rounds = [_round(folders.values(), settings) for _ in range(options.rounds)]
    for same_size in zip(*rounds, strict=True):
        in_order = sorted(same_size, key=lambda found: found["milliseconds_per_step"])
        paces = [found["milliseconds_per_step"] for found in same_size]
        yield in_order[(len(in_order) - 1) // 2] | {"milliseconds_per_step_of_rounds": paces}


def _round(folders: Iterable[Path], settings: Sequence[str]) -> list[dict[str, Any]]:
    """A fit to each of the folders."""
    row = []
    for folder in folders:
        found = measured(sys.executable, __file__, "--fit", str(folder), *settings)
        print(
            f"{found['steps']:>12,} steps: read in {found['reading_seconds']:.1f} s; an optimisation step "
            f"{found['milliseconds_per_step']:.3f} ms (processor {found['processor_milliseconds_per_step']:.3f}); "
            f"scored in {found.get('scoring_and_summary_seconds', math.nan):.1f} s; anonymous memory "
            f"{found['peak_anonymous_gib']:.2f} GiB (mapped {found['peak_mapped_gib']:.2f})",
            flush=True,
        )
        row.append(found)
    return row


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
    parser.add_argument("--rounds", type=int, default=1, help="fits to each size, of which the median pace counts")
    parser.add_argument("--repeating-millions", type=int, default=50, help="0 leaves the counting out")
    parser.add_argument("--memory-gib", type=float, default=2.0)
    parser.add_argument("--optimisation-steps", type=int, default=4_000)
    parser.add_argument("--steps-only", action="store_true", help="end a fit before the cost of all the data is scored")
    parser.add_argument("--duckdb", help="a Python that has duckdb")
    parser.add_argument("--duckdb-memory-gib", type=int, default=16)
    parser.add_argument("--out", type=Path, help="a record; what it has and this run leaves out stays")
    parser.add_argument("--fit", nargs=4, help="what the benchmark runs as a process")
    parser.add_argument("--collapse", nargs=3, help="what the benchmark runs as a process")
    return parser.parse_args()


def main() -> None:
    """Measure, print, and write a record."""
    options = options_of()
    if options.fit:
        folder, cache, memory, steps = options.fit
        print(json.dumps(fit(folder, cache, float(memory), int(steps), scores=not options.steps_only)))
        return
    if options.collapse:
        folder, cache, memory = options.collapse
        print(json.dumps(collapse(folder, cache, float(memory))))
        return
    record = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    names = ("memory_gib", "optimisation_steps", "rounds", "duckdb_memory_gib")
    settings = {name: getattr(options, name) for name in names}
    settings |= {"people": PEOPLE, "features": FEATURES, "actions": ACTIONS}
    record |= {"provenance": runs.provenance(), "settings": settings}
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as place:
        for found in fits(options, Path(place)) if options.millions else ():
            others = [each for each in record.get("fits", []) if each["steps"] != found["steps"]]
            record["fits"] = sorted([*others, found], key=lambda each: each["steps"])
        if options.repeating_millions:
            record["counting"] = counting(options, Path(place)) | {"provenance": record["provenance"]}
    if len(record.get("fits", [])) > 1:
        for name in ("milliseconds_per_step", "processor_milliseconds_per_step"):
            pace = [each[name] for each in record["fits"]]
            record[f"{name}, slowest over fastest"] = max(pace) / min(pace)
            print(f"{name}: the slowest is {max(pace) / min(pace):.2f} times the fastest")
    if options.out is not None:
        runs.write_file(options.out, (json.dumps(record, indent=2) + "\n").encode())


if __name__ == "__main__":
    main()
