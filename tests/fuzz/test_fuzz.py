"""Mutated files: none of them crashes a reader, hangs it, or shows a traceback. `make fuzz` reads more of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CAMPAIGN = Path(__file__).with_name("campaign.py")
FILES = 800  # about a minute on one core
READERS = ("parquet", "robomimic", "run", "checkpoint", "expert", "gail", "games", "positions")

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("fuzz")]  # one process reads the files, for all of these tests


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


def test_half_of_the_mutated_files_pass_the_formats_own_parser(record):
    assert record["total"]["parsed"] >= record["total"]["files"] / 2


def test_some_mutated_files_go_through_the_command(record):
    assert record["total"]["by_command"] >= FILES / 40
