"""Known players in real positions: their expertise is recovered, as far as the likelihood tells it."""

from pathlib import Path

import numpy as np
import pytest

import ileed
from ileed_lab.chess import board
from ileed_lab.chess.positions import read_positions

SHARED = Path(__file__).parents[3] / "shared" / "data" / "chess" / "kp_kaggle_cc0.csv.gz"
SKILL = np.array([0.95, 0.8, 0.6, 0.4, 0.2])

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.skipif(not SHARED.exists(), reason="the shared chess data are not here"),
]


def played(*, positions, times, units, seed=0):
    """Five players of known skill, each so many times in each of so many real positions.

    With probability `skill` they make the move that a random network of so many units likes best, otherwise any legal
    move.
    """
    random = np.random.default_rng(seed)
    seen, legal = board.encode(read_positions(SHARED).column("fen").to_pylist())
    choices = random.permutation(np.flatnonzero(legal.sum(1) > 1))[:positions]
    seen, legal = seen[choices], legal[choices]
    liking = np.tanh(seen @ random.normal(size=(seen.shape[1], units)) / 2) @ random.normal(
        size=(units, legal.shape[1])
    )
    preferred = np.where(legal, liking, -np.inf).argmax(1)
    who = np.repeat(np.arange(len(SKILL)), positions * times)
    place = np.tile(np.arange(positions), len(SKILL) * times)
    anything = np.where(legal[place], random.random((len(place), legal.shape[1]), dtype=np.float32), -1).argmax(1)
    return ileed.Demonstrations(
        observations=seen[place],
        actions=np.where(random.random(len(place)) < SKILL[who], preferred[place], anything),
        legal=legal[place],
        demonstrator=who,
        episode=np.arange(len(place)) // (positions * times // 10),
        names=tuple(f"skill {skill}" for skill in SKILL),
        action_count=board.ACTION_COUNT,
    )


@pytest.mark.parametrize(
    ("hidden", "units", "positions", "times", "steps", "rate"),
    [(64, 16, 1_000, 30, 400, 1e-2), (8, 3, 4_000, 10, 600, 3e-2)],
    ids=["each position learned", "learned across positions"],
)
def test_relative_expertise_is_recovered_within_two_hundredths(hidden, units, positions, times, steps, rate):
    """Only ratios are identified, so demonstrators are compared with the best. With 30,000 or 40,000 moves each, the
    standard error is 0.004; seeds are fixed.
    """
    data = played(positions=positions, times=times, units=units)
    method = ileed.Ileed(
        policy=ileed.CategoricalMLP(hidden=(hidden,)),
        expertise=ileed.Constant(),
        restarts=1,
        steps=steps,
        learning_rate=rate,
        skill_learning_rate=3e-2,
    )
    found = np.array(list(method.fit(data, seed=0, device="cpu").expertise.by_demonstrator().values()))
    np.testing.assert_allclose(found / found[0], SKILL / SKILL[0], rtol=0, atol=0.02)
