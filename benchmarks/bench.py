"""One table of ratios against what people run today: the same work, in one run, on this machine.

    make bench                                        # all that are installed; about ten minutes on two idle cores
    python benchmarks/bench.py --only chess crowd     # some of them again, in the same record

Each comparison is a benchmark of this folder with small sizes, in a process of its own. What is not installed is left
out, and the record says why.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from ileed import runs

ROOT = Path(__file__).parents[1]
OUT = ROOT / "results" / "benchmarks" / "bench.json"
LIMIT = 600
CACHE = ROOT / ".cache"
SHARED = Path("..") / "shared" / "data"
Record = dict[str, Any]


class Row(NamedTuple):
    """One line of the table: how much of something each does, and how many times faster ours is."""

    other: str
    """What people run today, with its version."""
    work: str
    unit: str
    """"s", less is better, or a rate, more is better."""
    theirs: float
    ours: float
    their_cost: float | None = None
    """In nats per action, where something is learned; lower is better."""
    our_cost: float | None = None
    by_processor: float | None = None
    """How many times less processor time ours takes, which a busy machine disturbs less."""

    @property
    def times(self) -> float:
        """How many times faster ours is; below 1 it is slower."""
        return self.theirs / self.ours if self.unit == "s" else self.ours / self.theirs


@dataclass(frozen=True)
class Comparison:
    """A benchmark of this folder with the sizes that it has here, and how its record is read."""

    script: str
    words: tuple[str, ...]
    rows: Callable[[Record], Iterable[Row]]
    library: str | None = None
    """The distribution that is compared with, whose version is recorded."""
    environment: str | None = None
    """Of another project, in .cache, without which there is nothing to compare with."""
    inside: bool = False
    """Whether all of the benchmark runs in that environment."""
    modules: tuple[str, ...] = ()
    """That must be installed here."""

    def missing(self) -> str | None:
        """Why this cannot run here, with what to do."""
        if self.environment is not None and not (CACHE / self.environment / "bin" / "python").exists():
            return f"there is no .cache/{self.environment}: run tests/{self.environment}_environment.sh"
        absent = [name for name in self.modules if find_spec(name) is None]
        return f"{', '.join(absent)} not installed" if absent else None

    def python(self, *, of_the_library: bool) -> str:
        """The interpreter that has the library, or the one that runs the benchmark."""
        if self.environment is None or not (of_the_library or self.inside):
            return sys.executable
        return str(CACHE / self.environment / "bin" / "python")

    def version(self) -> str | None:
        """Of the library that is compared with."""
        if self.library is None:
            return None
        words = f"from importlib.metadata import version; print(version({self.library!r}))"
        asked = [self.python(of_the_library=True), "-c", words]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def _plain(record: Record) -> Iterable[Row]:
    restarts, steps = (record["settings"][name] for name in ("restarts", "steps"))
    for task, ways in record["tasks"].items():
        plain, ours = ways["plain"], ways["ours"]
        mark = "*" if plain["timed_restarts"] < restarts else ""
        yield Row(
            f"the plain procedure (torch {record['provenance']['torch']})",
            f"{restarts} restarts of ILEED x {steps:,} steps, {task}{mark}",
            "s",
            plain["seconds"],
            ours["seconds"],
            plain["best_nats_per_action"],
            ours["best_nats_per_action"],
            plain["processor_seconds"] / ours["processor_seconds"],
        )


def _cloning(record: Record) -> Iterable[Row]:
    settings, ways = record["settings"], record["ways"]
    work = f"cloning {record['demonstrations']:,} steps, {settings['steps']:,} batches of {settings['batch']}"
    many = next(name for name in ways if name.startswith("ours, "))
    seeds = int(many.split()[1])
    for name, title in (("imitation", "imitation's BC"), ("d3rlpy", "d3rlpy's DiscreteBC")):
        if name in ways:
            other, ours, at_once = ways[name], ways["ours"], ways[many]
            title = f"{title} ({other['version']})"
            for count, mine, words in ((1, ours, work), (seeds, at_once, f"{work}, {seeds} seeds*")):
                yield Row(
                    title,
                    words,
                    "s",
                    count * other["seconds"],
                    mine["seconds"],
                    other["nats_per_action"],
                    mine["nats_per_action"],
                    count * other["processor_seconds"] / mine["processor_seconds"],
                )


def _robomimic(record: Record) -> Iterable[Row]:
    loops = {name: next(iter(found.values())) for name, found in record["loops"].items()}
    rates = {name: found["steps_per_second"] for name, found in loops.items()}
    work_rates = {name: found["steps"] / found["processor_seconds"] for name, found in loops.items()}
    sizes = record["sizes"]
    for name in (name for name in rates if name != "robomimic"):
        work = (
            f"LSTM {sizes['layers']} x {sizes['hidden']}, batches of {sizes['batch']} ({name.removeprefix('ours, ')})"
        )
        ratio = work_rates[name] / work_rates["robomimic"]
        other = f"robomimic's loop ({record['library']})"
        yield Row(other, work, "steps/s", rates["robomimic"], rates[name], by_processor=ratio)


def _crowd(record: Record) -> Iterable[Row]:
    for each in record["sets"]:
        for method, seconds in each["crowd_kit"].items():
            work = f"labels from {each['answers']:,} answers ({each['name']})"
            ratio = each["processor"][method] / each["processor"]["ileed"]
            other = f"crowd-kit's {method} ({record['library']})"
            yield Row(other, work, "s", seconds, each["ileed"], by_processor=ratio)


def _chess(record: Record) -> Iterable[Row]:
    rates, settings = record["games_per_second"], record["settings"]
    for ending, words in (("", "one process"), ("_two", "two processes")):
        work = f"positions of {settings['count']:,} {settings['games']} games, {words}"
        theirs, ours = (rates[f"{name}{ending}"] for name in ("python_chess", "ours"))
        ratio = None if ending else record["times_faster"]["one_process_each_by_processor"]
        yield Row(f"python-chess ({record['library']})", work, "games/s", theirs, ours, by_processor=ratio)


def comparisons(threads: int) -> dict[str, Comparison]:
    """Every comparison, by its name."""
    games, answers = SHARED / "chess" / "kaggle_games.csv.gz", SHARED / "crowd"
    sizes = ("--device", "cpu", "--restarts", "20", "--steps", "200", "--plain-restarts", "1")
    chess = ("--count", "4000", "--rounds", "2", "--copies", "10")
    robomimic = ("--loops", "robomimic", "ours, cloning", "ours, ileed", "--devices", "cpu", "--steps", "40")
    return {
        "plain": Comparison(
            "restarts.py", (*sizes, "--tasks", "minigrid/obstacles", "--ways", "ours", "plain"), _plain
        ),
        "cloning": Comparison("cloning.py", ("--threads", str(threads), "--steps", "500", "--rounds", "1"), _cloning),
        "robomimic": Comparison(
            "robomimic_loop.py",
            (*robomimic, "--threads", str(threads)),
            _robomimic,
            library="robomimic",
            environment="robomimic",
            inside=True,
        ),
        "crowd": Comparison(
            "crowd.py", ("--data", str(answers), "--small"), _crowd, library="crowd-kit", environment="crowdkit"
        ),
        "chess": Comparison(
            "chess_extraction.py",
            (*chess, *(("--games", str(games)) if (ROOT / games).exists() else ())),
            _chess,
            library="chess",
            modules=("chess", "zstandard", "rust_pgn_reader_python_binding"),
        ),
    }


def run(comparison: Comparison, threads: int) -> Record:
    """Rows of one comparison, or why there are none, with seconds and the load of the machine."""
    reason = comparison.missing()
    if reason is not None:
        return {"skipped": reason}
    paths = [str(ROOT / "src"), str(ROOT / "lab"), os.environ.get("PYTHONPATH", "")]
    variables = {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    load, began = os.getloadavg()[0], time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "record.json"
        words = [
            comparison.python(of_the_library=False),
            str(ROOT / "benchmarks" / comparison.script),
            *comparison.words,
        ]
        try:
            ended = subprocess.run(
                [*words, "--out", str(out)],
                env=os.environ | variables,
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=LIMIT,
            )
        except subprocess.TimeoutExpired:
            return {"failed": f"not ended after {LIMIT} s"}
        if ended.returncode or not out.exists():
            return {"failed": (ended.stdout.strip().splitlines() or [f"exit status {ended.returncode}"])[-1]}
        record = json.loads(out.read_text()) | {"library": comparison.version()}
    rows = [row._asdict() | {"times_faster": row.times} for row in comparison.rows(record)]
    found: Record = {"seconds": time.perf_counter() - began, "load_before": load, "load_after": os.getloadavg()[0]}
    return found | {"words": list(comparison.words), "rows": rows, "left_out": record.get("skipped", {})}


def machine() -> Record:
    """What a reader needs to know of the machine: processor, cores, memory and system."""
    processor, memory = platform.processor(), None
    if Path("/proc/cpuinfo").exists():
        names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        processor = names[0].split(":", 1)[1].strip() if names else processor
    if hasattr(os, "sysconf"):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": processor or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": memory,
        "system": f"{platform.system()} {platform.machine()}",
    }


def table(record: Mapping[str, Any]) -> str:
    """The table as Markdown, with the machine over it and what is missing under it."""
    made, about = record["provenance"], record["machine"]
    memory = "" if about["memory_gib"] is None else f", {about['memory_gib']:.0f} GiB"
    found = record["comparisons"]
    loads = [one[name] for one in found.values() for name in ("load_before", "load_after") if name in one]
    load = f"; load average {min(loads):.1f} to {max(loads):.1f}" if loads else ""
    threads = f"{record['threads']} thread{'s' if record['threads'] > 1 else ''}"
    lines = [
        f"{about['system']}, {about['processor']}, {about['cores']} cores{memory}; {threads} each{load}; "
        f"torch {made['torch']}; commit {made['commit']}, {made['date'][:10]}.\n",
        "| instead of | work | theirs | ours | times faster by the clock | by processor time | their cost | our cost |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
        *(_line(row) for one in found.values() for row in one.get("rows", ())),
    ]
    if any("*" in row["work"] for one in found.values() for row in one.get("rows", ())):
        lines.append("\n\\* theirs timed once and multiplied; the cost is that of the one that was run.")
    if loads and max(loads) > about["cores"]:
        lines.append(
            f"\nOther work shared the {about['cores']} cores, and not evenly: where the two ratios differ, believe "
            "the one by processor time."
        )
    absent = {name: one[word] for name, one in found.items() for word in ("skipped", "failed") if word in one}
    absent |= {name: reason for one in found.values() for name, reason in one.get("left_out", {}).items()}
    if absent:
        lines.append("\nNot measured: " + "; ".join(f"{name} ({reason})" for name, reason in absent.items()) + ".")
    return "\n".join(lines) + "\n"


def _line(row: Mapping[str, Any]) -> str:
    amounts = [f"{row[name]:,.{0 if row[name] >= 100 else 2}f} {row['unit']}" for name in ("theirs", "ours")]
    costs = ["" if row[name] is None else f"{row[name]:.4f}" for name in ("their_cost", "our_cost")]
    ratios = [row["times_faster"], row["by_processor"]]
    times = ["" if one is None else f"{one:,.{0 if one >= 10 else 2}f}" for one in ratios]
    work = row["work"].replace("*", "\\*")
    return f"| {' | '.join([row['other'], work, *amounts, *times, *costs])} |"


def main() -> None:
    """Run what is asked for, print the table and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=comparisons(1), help="some of the comparisons")
    parser.add_argument("--threads", type=int, default=1, help="of torch, for every way")
    parser.add_argument("--out", type=Path, default=OUT, help="where to write the JSON; --only keeps the rest of it")
    options = parser.parse_args()
    chosen = {name: one for name, one in comparisons(options.threads).items() if name in (options.only or [name])}
    made = runs.provenance()  # before, since a later commit is not what runs
    kept = json.loads(options.out.read_text())["comparisons"] if options.only and options.out.exists() else {}
    found: dict[str, Record] = {}
    for name, comparison in chosen.items():
        print(f"{name}: benchmarks/{comparison.script} {' '.join(comparison.words)}", file=sys.stderr, flush=True)
        found[name] = run(comparison, options.threads)
    for one in found.values():
        one.update({name: made[name] for name in ("commit", "date")})
    both = kept | found
    together = {name: both[name] for name in comparisons(1) if name in both}
    record = {"provenance": made, "machine": machine(), "threads": options.threads, "comparisons": together}
    runs.write_file(options.out, (json.dumps(record, indent=2) + "\n").encode())
    print(table(record))
    if any("failed" in one for one in found.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
