"""The short form of `kill_writers.py`: the same kills, fewer of them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("kill_writers.py")


@pytest.mark.slow
@pytest.mark.xdist_group("kill")
def test_a_kill_of_any_writer_leaves_the_old_or_the_new_content_and_no_hidden_copies(tmp_path):
    """Two kills of each writer on average, at moments drawn from the seed."""
    words = ["--kills", "46", "--seed", "3", "--out", str(tmp_path / "kills.json")]
    ended = subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    record = json.loads((tmp_path / "kills.json").read_text())
    assert record["kills"] >= 46
    assert record["failures"] == []
    assert (record["lost"], record["unequal"], record["touched"], record["left_over"]) == (0, 0, 0, 0)
