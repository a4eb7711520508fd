"""The short form of `kill_fits.py`: the same kills, fewer of them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("kill_fits.py")


@pytest.mark.slow
@pytest.mark.xdist_group("kill")
def test_no_kill_of_a_fit_loses_a_run_and_what_goes_on_ends_the_same(tmp_path):
    """Fifteen kills of real processes at moments drawn from the seed, in two sessions of which the second goes on."""
    for kills in (5, 15):
        words = ["--kills", str(kills), "--seed", "3", "--out", str(tmp_path / "kills.json")]
        ended = subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True)
        assert ended.returncode == 0, ended.stdout + ended.stderr
    record = json.loads((tmp_path / "kills.json").read_text())
    assert record["kills"] >= 15
    assert sum(record["by_phase"].values()) == record["kills"]
    assert record["failures"] == []
    assert (record["lost"], record["unequal"], record["touched"], record["left_over"]) == (0, 0, 0, 0)
