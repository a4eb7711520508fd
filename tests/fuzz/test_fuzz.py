"""Mutated files: none of them crashes a reader, hangs it, or shows a traceback. `make fuzz` reads more of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CAMPAIGN = Path(__file__).with_name("campaign.py")
FILES = 1300  # as many for each reader; about a minute on one core
READERS = (
    "parquet",
    "robomimic",
    "run",
    "checkpoint",
    "expert",
    "gail",
    "games",
    "positions",
    "table",
    "minari",
    "imitation",
    "crowd",
    "lerobot",
)

pytestmark = [pytest.mark.campaign, pytest.mark.xdist_group("fuzz")]  # one process reads the files for all tests


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """What became of the files; read in a process of its own, whose threads no other test has started."""
    out = tmp_path_factory.mktemp("fuzz") / "fuzz.json"
    arguments = [sys.executable, str(CAMPAIGN), "--files", str(FILES), "--seed", "12", "--out", str(out)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ended = subprocess.run(arguments, capture_output=True, text=True, env=environment)
    assert out.exists(), ended.stderr
    return json.loads(out.read_text())


@pytest.mark.parametrize("reader", READERS)
def test_every_mutated_file_is_read_or_refused_in_one_sentence(record, reader):
    tally = record["readers"][reader]
    assert tally["files"] == FILES // len(READERS)
    assert (tally["crashes"], tally["hangs"], tally["tracebacks"]) == ([], [], [])
    assert tally["read"] + tally["refused"] == tally["files"]
    assert tally["read"] > 0, "mutations that no file survives test nothing but the first rule"


def test_a_file_is_the_same_whenever_its_reader_and_seed_are(tmp_path):
    program = (
        f"import sys; sys.path[:0] = {[str(CAMPAIGN.parents[1]), str(CAMPAIGN.parent)]!r}\n"
        "from pathlib import Path; import hashlib, fuzz_harness, fuzz_formats\n"
        "place = Path(sys.argv[1])\n"
        "for reader in fuzz_formats.READERS.values():\n"
        "    fuzz_harness.make_valid(reader, place)\n"
        "    for seed in range(10):\n"
        "        (place / f'{reader.name} {seed}').mkdir()\n"
        "        path, changes = fuzz_harness.mutated(reader, place, seed, place / f'{reader.name} {seed}')\n"
        "        files = sorted(path.iterdir()) if path.is_dir() else [path]\n"
        "        content = b''.join(file.read_bytes() for file in files if file.is_file() and not file.is_symlink())\n"
        "        print(reader.name, seed, changes, hashlib.blake2b(content).hexdigest())\n"
    )
    told = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        arguments = [sys.executable, "-c", program, str(tmp_path / str(number))]
        told.append(subprocess.run(arguments, capture_output=True, text=True, check=True).stdout)
    assert told[0] == told[1]
    assert len(told[0].splitlines()) == 10 * len(READERS)


def test_half_of_the_mutated_files_pass_the_formats_own_parser(record):
    assert record["total"]["parsed"] >= record["total"]["files"] / 2


def test_some_mutated_files_go_through_the_command(record):
    assert record["total"]["by_command"] >= FILES / 40
