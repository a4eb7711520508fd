"""The experiments on crowds: simulated answers, ranks of workers, crowd-kit in its own environment, and the page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from scipy.stats import spearmanr

import ileed
from ileed_lab.crowd import labellers
from ileed_lab.crowd.experiment import CrowdLabels, CrowdSimulated, spearman
from ileed_lab.crowd.labellers import CrowdKit, Ours
from ileed_lab.crowd.page import crowd_page
from ileed_lab.crowd.simulated import KINDS, simulate
from ileed_lab.experiments import experiment, reproduce

REAL = Path(__file__).parents[2] / "shared" / "data" / "crowd"


@pytest.mark.parametrize("kind", KINDS)
def test_a_simulated_crowd_depends_on_its_seed_alone_and_errs_as_its_matrices_say(kind):
    crowd, same = simulate(kind, 3, tasks=4000, workers=5), simulate(kind, 3, tasks=4000, workers=5)
    assert crowd.data.fingerprint == same.data.fingerprint != simulate(kind, 4, tasks=4000, workers=5).data.fingerprint
    counts = np.zeros_like(crowd.confusion)
    np.add.at(counts, (crowd.data.demonstrator, crowd.true[crowd.data.observations[:, 0]], crowd.data.actions), 1)
    rows = counts.sum(2, keepdims=True)
    # a share of n answers is within four standard errors, at most .5 / sqrt(n) each, in 80 cells
    assert (np.abs(counts / np.maximum(rows, 1) - crowd.confusion) <= 2 / np.sqrt(np.maximum(rows, 1))).all()


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=30))
def test_rank_correlation_is_that_of_scipy(pairs):
    one, other = (np.array(side, dtype=float) for side in zip(*pairs, strict=True))
    expected = 0.0 if len(set(one)) == 1 or len(set(other)) == 1 else spearmanr(one, other)[0]
    assert spearman(one, other) == pytest.approx(expected, abs=1e-12)


def test_a_crowd_is_labelled_measured_and_shown(tmp_path):
    reproduce(
        CrowdSimulated(), out=tmp_path, trials=1, methods=["ileed"], settings=["uniform"], device="cpu", workers=1
    )
    made = crowd_page(tmp_path)
    page = made.text + made.details_text
    assert "*uniform*: uniform in 1 of 1" in page
    assert "| uniform | **`ileed.label`** | 1 |" in page
    assert "*dog*: not run." in page


def test_data_that_are_not_there_are_refused_in_a_sentence(tmp_path):
    for data in (None, tmp_path):
        with refused("data-missing", ileed.SettingsError):
            experiment("crowd/labels", data=data)


def test_crowd_kit_that_is_not_installed_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(labellers, "ENVIRONMENT", tmp_path)
    with refused("environment-missing", ileed.IleedError):
        CrowdKit("GLAD").fit(simulate("uniform", 0, tasks=5).data, seed=0)


def test_majority_vote_of_crowd_kit_agrees_with_ours_for_equal_workers():
    if not (labellers.ENVIRONMENT / "bin" / "python").exists():
        pytest.skip("crowd-kit is not here: tests/crowdkit_environment.sh makes its environment")
    crowd = simulate("uniform", 1, tasks=60)
    theirs = CrowdKit("MajorityVote").fit(crowd.data, seed=0)
    ours = Ours().fit(crowd.data, seed=0)
    assert ours.found is not None
    votes = np.sort(ours.found.answers.votes, axis=1)
    clear = votes[:, -1] > votes[:, -2] + 2
    assert clear.sum() > 20
    assert (theirs.policy[clear] == ours.policy[clear]).mean() > 0.95
    assert spearman(theirs.skill, ours.skill) > 0.7


def test_shuffled_answers_keep_everything_but_who_said_what():
    if not REAL.exists():
        pytest.skip(f"crowd/dog is not here: a folder with answer.csv (question, worker, answer), put in {REAL}")
    labels = CrowdLabels().with_data(REAL)
    (plain,) = labels.demonstrations({"data": "dog"}, [0])
    one, other = labels.demonstrations({"data": "dog shuffled"}, [0, 1])
    assert set(plain.skills) == {"task"}  # no method sees gold
    assert (one.observations == plain.observations).all()
    assert (np.bincount(one.actions) == np.bincount(plain.actions)).all()
    assert (one.actions != other.actions).any()
