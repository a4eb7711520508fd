"""Two optimisations at once: the same results as one after the other, and one progress callback for both."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest

from ileed import Ileed, Progress
from ileed._torch import threads
from ileed.fitting import ProgressCallback
from ileed.fitting.blocks import optimise_both
from ileed_lab.calibration.designs import DESIGNS, DEVELOPMENT_SEED

DATA = DESIGNS["few episodes"].population(DEVELOPMENT_SEED).data
SMALL = Ileed(restarts=2, ensemble=1, steps=40, folds=2)


def test_cross_fitting_beside_the_fit_gives_the_same_bits_as_after_it():
    found = []
    for count in (1, 2):  # with one thread, one after the other
        with threads(count):
            found.append(SMALL.fit(DATA, seed=0, device="cpu", check_width=False))
    one, both = found
    assert np.array_equal(one.restarts.nats_per_action, both.restarts.nats_per_action)
    assert one.expertise.table().equals(both.expertise.table())


def test_progress_is_reported_in_the_callers_thread_alone_and_to_the_end_of_both():
    seen: list[tuple[Progress, threading.Thread]] = []
    with threads(2):
        SMALL.fit(
            DATA,
            seed=0,
            device="cpu",
            check_width=False,
            progress=lambda at: seen.append((at, threading.current_thread())),
        )
    assert {thread for _, thread in seen} == {threading.current_thread()}
    last = {at.stage: at for at, _ in seen}
    assert {stage: at.step for stage, at in last.items()} == {"fitting": 40, "cross-fitting": 40, "rating": len(DATA)}


def test_an_interrupted_fit_ends_its_cross_fitting_too():
    ended = threading.Event()

    def endless(progress: ProgressCallback) -> None:
        try:
            while True:
                progress(Progress(1, 2, 0.0))
        finally:
            ended.set()

    def interrupted(progress: ProgressCallback) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        optimise_both(interrupted, endless, None)
    assert ended.is_set()


def test_an_error_in_cross_fitting_reaches_the_caller():
    def fails(progress: ProgressCallback) -> None:
        raise ValueError("no episode")

    with pytest.raises(ValueError, match="no episode"):
        optimise_both(lambda progress: None, fails, None)


def test_cross_fitting_waits_for_the_fit_where_memory_does_not_hold_both(monkeypatch):
    monkeypatch.setattr("ileed.methods.ileed.available_memory", lambda device: 1)
    monkeypatch.setattr("ileed.methods.ileed.optimise_both", None)
    with threads(2):
        fitted = replace(SMALL, steps=2).fit(DATA, seed=0, device="cpu", check_width=False)
    assert fitted.expertise.ratings is not None
