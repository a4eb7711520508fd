"""Scores of data quality by other methods, against closed forms and episodes that are bad by construction."""

from dataclasses import replace

import numpy as np
import pytest

from ileed import Demonstrations, MixtureMLP, SettingsError, bc
from ileed_lab.quality import (
    DEFINITIONS,
    CloningLoss,
    Definition,
    EpisodeLength,
    JerkAndIdle,
    MutualInformation,
    Random,
    SpectralArcLength,
)
from ileed_lab.quality.autoencoder import Autoencoder
from ileed_lab.quality.mutual_information import information_contributions
from ileed_lab.ranking import rank_correlation
from ileed_lab.regression import Regression

BRIEF = bc(policy=MixtureMLP(hidden=(16,), modes=1), restarts=1, steps=300, folds=0, learning_rate=1e-2)
QUICK = Regression(hidden=(16,), steps=300, batch_size=64, learning_rate=1e-2)
SMALL = Autoencoder(latent=2, hidden=(16,), steps=300)
QUALITIES = {
    "mutual information": MutualInformation(states=SMALL, actions=SMALL, batch_size=256, passes=2),
    "mutual information of chunks": MutualInformation(chunk=4, states=SMALL, actions=SMALL, batch_size=256, passes=2),
    "spectral arc length": SpectralArcLength(),
    "jerk and idle": JerkAndIdle(),
    "log-likelihood": CloningLoss(method=BRIEF),
    "squared error": CloningLoss(loss="squared error", method=BRIEF),
    **{f"definition {kind}": Definition(kind, horizon=3, trainer=QUICK) for kind in DEFINITIONS},
    "length": EpisodeLength(),
    "random": Random(),
}
every_quality = pytest.mark.parametrize("quality", QUALITIES.values(), ids=QUALITIES.keys())


def episodes(count: int = 12, steps: int = 60, *, noisy: tuple[int, ...] = (), idle: tuple[int, ...] = ()):
    """Smooth states with actions that follow them, but for episodes that are noisy or idle by construction."""
    random = np.random.default_rng(0)
    phase = random.uniform(0, 2 * np.pi, size=(count, 1)) + np.linspace(0, 4, steps)
    states = np.stack([np.cos(phase), np.sin(phase)], axis=2)
    actions = states @ np.array([[1.0, 0.5], [-0.5, 1.0]]) + 0.05 * random.normal(size=states.shape)
    for episode in noisy:
        actions[episode] = random.normal(size=(steps, 2))
    for episode in idle:
        actions[episode, :40] = actions[episode, 0]
    return Demonstrations(
        observations=states.reshape(-1, 2),
        actions=actions.reshape(-1, 2),
        demonstrator=np.repeat(np.where(np.arange(count) % 2, "ann", "bob"), steps),
        episode=np.repeat(np.arange(count), steps),
    )


@every_quality
def test_scores_depend_on_data_and_seed_alone(quality):
    data = episodes()
    first, again = (quality.scores(data, seed=3) for _ in range(2))
    assert first.shape == (12,)
    assert np.isfinite(first).all()
    np.testing.assert_array_equal(first, again)
    renamed = replace(data, names=("x", "y"))
    np.testing.assert_array_equal(quality.scores(renamed, seed=3), first)


@every_quality
def test_units_that_are_episodes_have_the_scores_of_episodes(quality):
    data = episodes()
    np.testing.assert_array_equal(quality.scores(data, seed=0, unit=data.episode), quality.scores(data, seed=0))
    halves = np.arange(len(data)) // 30
    assert quality.scores(data, seed=0, unit=halves).shape == (24,)


@pytest.mark.parametrize(
    "name", ["mutual information", "mutual information of chunks", "jerk and idle", "log-likelihood", "squared error"]
)
def test_episodes_of_random_actions_score_lowest(name):
    scores = QUALITIES[name].scores(episodes(noisy=(2, 7)), seed=0)
    assert set(np.argsort(scores)[:2]) == {2, 7}


def test_an_episode_that_stops_and_goes_is_less_smooth():
    data, step = episodes(), np.arange(60)
    speed = np.tile(np.exp(-(((step - 30) / 10) ** 2)), (12, 1))
    speed[3] *= np.cos(step / 4) ** 2
    moving = replace(data, actions=np.repeat(speed.cumsum(1).reshape(-1, 1), 2, axis=1))
    assert np.argmin(SpectralArcLength().scores(moving, seed=0)) == 3


def test_an_idle_episode_is_an_outlier():
    assert np.argmin(JerkAndIdle().scores(episodes(idle=(5,)), seed=0)) == 5


def test_episodes_that_are_all_alike_have_no_outlier():
    data = episodes(count=4)
    same = replace(data, actions=np.tile(data.actions[:60], (4, 1)))
    assert not JerkAndIdle().scores(same, seed=0).any()


def test_shorter_episodes_score_higher():
    data = episodes()
    kept = data.select((np.arange(len(data)) % 60 < 30) | (data.episode != 4))
    scores = EpisodeLength().scores(kept, seed=0)
    assert np.argmax(scores) == 4
    assert scores[4] == -30


@pytest.mark.parametrize("quality", [SpectralArcLength(), JerkAndIdle(), MutualInformation()])
def test_discrete_actions_are_refused(quality):
    data = episodes()
    with pytest.raises(SettingsError, match="leave this score out"):
        quality.scores(replace(data, actions=np.zeros(len(data), dtype=int)), seed=0)


@pytest.mark.parametrize("correlation", [0.0, 0.6, 0.9])
def test_mutual_information_of_a_gaussian_is_its_closed_form(correlation):
    """-log(1 - r^2) / 2 nats; the mean over four samples of 1,000 has a standard error of about 0.02."""
    found = []
    for seed in range(4):
        random = np.random.default_rng(seed)
        one = random.normal(size=(1_000, 1))
        other = correlation * one + np.sqrt(1 - correlation**2) * random.normal(size=(1_000, 1))
        found.append(information_contributions(one, other, neighbours=(5, 6, 7)).mean())
    assert np.mean(found) == pytest.approx(-np.log(1 - correlation**2) / 2, abs=0.06)


def test_information_is_that_of_all_dimensions_together():
    """Two independent pairs of correlation 0.8: twice the information of one pair, but for a bias of about 0.1."""
    random = np.random.default_rng(0)
    one = random.normal(size=(2_000, 2))
    other = 0.8 * one + 0.6 * random.normal(size=(2_000, 2))
    found = information_contributions(one, other, neighbours=(3,)).mean()
    assert found == pytest.approx(-np.log(1 - 0.8**2), abs=0.12)


def test_information_is_symmetric_and_needs_more_rows_than_neighbours():
    random = np.random.default_rng(0)
    one, other = random.normal(size=(2, 50, 3))
    left, right = (information_contributions(*each, neighbours=(3, 4)) for each in ((one, other), (other, one)))
    np.testing.assert_allclose(left, right, rtol=1e-12)
    with pytest.raises(SettingsError, match="neighbours has 50"):
        information_contributions(one, other, neighbours=(5, 50))


def test_one_factor_is_found_by_the_autoencoder():
    random = np.random.default_rng(0)
    factor = random.normal(size=(500, 1))
    rows = factor @ random.normal(size=(1, 6)) + 0.01 * random.normal(size=(500, 6))
    embedding = replace(SMALL, latent=1, steps=1_000).embed(rows, seed=0)
    assert embedding.shape == (500, 1)
    assert abs(rank_correlation(embedding[:, 0], factor[:, 0])) > 0.95


# --- definitions of expertise


@pytest.mark.parametrize("kind", DEFINITIONS)
def test_every_definition_finds_the_noisy_episodes(kind):
    scores = Definition(kind, horizon=2, trainer=QUICK).scores(episodes(noisy=(3, 8)), seed=0)
    assert set(np.argsort(scores)[:2]) == {3, 8}
