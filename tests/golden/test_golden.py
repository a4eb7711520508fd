"""Runs that were saved by every format so far still load, and say what they said."""

import runpy
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import ileed

HERE = Path(__file__).parent
PROBE = runpy.run_path(str(HERE / "make.py"))["PROBE"]


@pytest.mark.parametrize("run", sorted(HERE.glob("run-v*")), ids=lambda path: path.name)
def test_runs_saved_by_every_format_still_load(run):
    fitted, expected = ileed.load(run), load_file(run / "expected.safetensors")
    logits = fitted.policy.distribution(PROBE).logits.numpy()
    np.testing.assert_allclose(logits, expected["log_probs"], rtol=1e-4, atol=1e-5)  # other machines round otherwise
    np.testing.assert_allclose(fitted.expertise(PROBE, "ann"), expected["ann"], rtol=1e-4)
    np.testing.assert_array_equal(fitted.restarts.nats_per_action, expected["restarts"])
