"""The short forms of `kill_fits.py` and `kill_writers.py`: the same kills, fewer of them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.campaign, pytest.mark.xdist_group("kill")]


def clean_record(script: str, kills: int, out: Path) -> dict[str, Any]:
    """What was found by kills of real processes at moments drawn from the seed: nothing wrong."""
    command = [sys.executable, str(Path(__file__).with_name(script)), "--kills", str(kills), "--seed", "3"]
    ended = subprocess.run([*command, "--out", str(out)], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    record = json.loads(out.read_text())
    assert record["kills"] >= kills
    assert record["failures"] == []
    assert (record["lost"], record["unequal"], record["touched"], record["left_over"]) == (0, 0, 0, 0)
    return record


def test_no_kill_of_a_fit_loses_a_run_and_what_goes_on_ends_the_same(tmp_path):
    for kills in (5, 15):  # of two sessions, the second of which goes on
        record = clean_record("kill_fits.py", kills, tmp_path / "kills.json")
        assert sum(record["by_phase"].values()) == record["kills"]


def test_a_kill_of_any_writer_leaves_the_old_or_the_new_content_and_no_hidden_copies(tmp_path):
    clean_record("kill_writers.py", 46, tmp_path / "kills.json")  # two of each writer on average
