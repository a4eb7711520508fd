"""Fuzz every reader and write what became of the files: `python tests/fuzz/campaign.py --files 10000 --out FILE`.

`--again READER SEED` reads one file again in this process, with its traceback, and `--keep FOLDER` leaves it there.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
os.environ.setdefault("OMP_NUM_THREADS", "1")

import fuzz_harness  # noqa: E402
from fuzz_formats import READERS  # noqa: E402

import ileed.cli  # noqa: E402, F401 (once, before processes are forked)
from ileed import runs  # noqa: E402


def main() -> int:
    """The command; its exit status is 1 where anything was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--readers", nargs="*", default=list(READERS))
    parser.add_argument("--again", nargs=2, metavar=("READER", "SEED"))
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args()
    if asked.again:
        return _again(asked.again[0], int(asked.again[1]), asked.keep)
    began = time.monotonic()
    readers = [READERS[name] for name in asked.readers]
    each = -(-asked.files // len(readers))
    found = fuzz_harness.fuzz(readers, each, seed=asked.seed, tell=lambda words: print(words, flush=True))
    tallies = {name: tally.plain() for name, tally in found.items()}
    counts = ("files", "parsed", "read", "refused", "by_command")
    summary = {name: sum(tally[name] for tally in tallies.values()) for name in counts}
    findings = {
        name: sum(len(tally[name]) for tally in tallies.values()) for name in ("crashes", "hangs", "tracebacks")
    }
    record = {
        "command": f"python tests/fuzz/campaign.py --files {asked.files} --seed {asked.seed}",
        "seed": asked.seed,
        **{name: runs.provenance()[name] for name in ("ileed", "commit", "date", "python", "machine")},
        "seconds": round(time.monotonic() - began, 1),
        "total": summary | findings,
        "readers": tallies,
    }
    if asked.out is not None:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record["total"], indent=2))
    return 1 if any(findings.values()) else 0


def _again(name: str, seed: int, keep: Path | None) -> int:
    reader = READERS[name]
    with tempfile.TemporaryDirectory() as folder:
        room = Path(keep or folder)
        room.mkdir(exist_ok=True)
        fuzz_harness.make_valid(reader, room)
        place = room / "again"
        place.mkdir()
        path, changes = fuzz_harness.mutated(reader, room, seed, place)
        print(path, changes)
        print(fuzz_harness.read_one(reader, room, seed, bounded=False))
        print(reader.read(path, fuzz_harness.Random(seed)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
