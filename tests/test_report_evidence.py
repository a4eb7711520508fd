"""What the data add to a report: planted weaknesses are found, in people, kinds of state, episodes and segmentes."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ileed
from ileed.errors import DemonstrationError
from ileed.rating.posterior import Estimates
from ileed.report import compare_runs, evidence, report
from ileed.report.charts import Scale
from ileed.report.comparison import changes_of, cost_change
from ileed.report.evidence import (
    ByCluster,
    Episodes,
    Evidence,
    clusters_of,
    demonstrators_of,
    png,
    worst_segment,
)
from ileed.report.sections import next_steps, quality

STEPS, EPISODES = 40, 10  # of an episode, and of a person
BAD_EPISODE, BAD_SEGMENT = 33, 4  # of dan, and of ann between its steps 12 and 32


@pytest.fixture(scope="module")
def data():
    """Four people who are right 19 times in 20.

    But cat guesses in the narrow places 0 and 1, dan throughout one episode, and ann in the middle of one.
    """
    chance = np.random.default_rng(0)
    count = 4 * EPISODES * STEPS
    episode, step = np.arange(count) // STEPS, np.arange(count) % STEPS
    place, who = chance.integers(8, size=count), np.arange(count) // (EPISODES * STEPS)
    guesses = (who == 2) & (place < 2) | (episode == BAD_EPISODE)
    guesses |= (episode == BAD_SEGMENT) & (step >= 12) & (step < 32)
    right = (chance.random(count) < 0.95) & ~guesses
    return ileed.Demonstrations(
        observations=np.eye(8)[place],
        actions=np.where(right, place % 5, chance.integers(5, size=count)),
        demonstrator=who,
        episode=episode,
        names=("ann", "bob", "cat", "dan"),
        skills={"room": np.where(place < 2, "narrow", "wide")},
        action_count=5,
    )


@pytest.fixture(scope="module")
def fitted(data):
    method = ileed.Ileed(
        policy=ileed.CategoricalMLP(hidden=(16, 16)), restarts=2, steps=600, learning_rate=0.01, folds=2
    )
    return method.fit(data, seed=0, device="cpu")


@pytest.fixture(scope="module")
def found(fitted, data):
    return Evidence.of(fitted, data)


def test_a_demonstrator_who_is_weak_in_a_state_cluster_is_advised_to_train_there(found, fitted):
    people = demonstrators_of(fitted, {})
    by_cluster = ByCluster.of(found, people)
    gaps, everywhere = by_cluster.gaps()
    assert everywhere == []
    assert (gaps[0].who.label, gaps[0].cluster) == ("cat", "“narrow”")
    episodes = Episodes.of(found, people)
    advice = dict(next_steps(fitted, people, by_cluster, episodes))
    assert advice["Train"].startswith("cat in “narrow”")
    assert advice["Look"].startswith(f"at episodes {BAD_EPISODE} (dan)")


def test_a_cluster_is_weak_for_all_where_one_of_four_guesses(found, fitted):
    by_cluster = ByCluster.of(found, demonstrators_of(fitted, {}))
    narrow, wide = (by_cluster.evidence.clusters.names.index(name) for name in ("narrow", "wide"))
    assert by_cluster.of_all.high[narrow] < by_cluster.of_all.low[wide]


def test_an_episode_of_guesses_is_low_for_its_person_and_may_be_left_out(found, fitted):
    episodes = Episodes.of(found, demonstrators_of(fitted, {}))
    assert episodes.low_for_them[0] == BAD_EPISODE
    assert BAD_EPISODE in episodes.to_drop
    assert len(episodes.to_drop) <= 2


def test_the_segment_of_guesses_is_marked(found, fitted):
    episodes = Episodes.of(found, demonstrators_of(fitted, {}))
    windows = episodes.windows(found.along(np.array([BAD_SEGMENT]))[0])
    segment = worst_segment(windows, float(found.by_demonstrator.expertise[0]))
    assert segment is not None
    assert 8 <= segment.first <= 18
    assert 26 <= segment.last <= 36


def test_steps_summed_over_an_episode_have_its_likelihood_whatever_the_order_asked(found):
    several = found.along(np.array([7, 2]))
    for episode, by_step in zip((7, 2), several, strict=True):
        whole = found.log_likelihood[found.episode == episode].sum(0)
        np.testing.assert_allclose(by_step.sum(0), whole, rtol=1e-9)


def test_estimates_of_people_have_the_mean_one(found):
    assert found.by_demonstrator.expertise.mean() == pytest.approx(1)
    assert (found.by_demonstrator.low <= found.by_demonstrator.expertise).all()
    assert (found.by_demonstrator.expertise <= found.by_demonstrator.high).all()


def test_without_a_column_of_labels_states_are_clustered_and_named_by_what_sets_them_apart(fitted, data):
    from dataclasses import replace

    kinds = clusters_of(fitted, replace(data, skills={}))
    assert kinds.column is None
    assert len(kinds.names) == 6
    assert np.bincount(kinds.of_step).tolist() == sorted(np.bincount(kinds.of_step), reverse=True)
    for number, words in enumerate(kinds.descriptions):
        if words == "near the middle in every feature":
            continue
        place = int(words.partition("[")[2].partition("]")[0])
        own = data.observations[kinds.of_step == number, place].mean()
        assert abs(own - data.observations[:, place].mean()) > 0.1
    for number, places in enumerate(kinds.examples):
        for episode, step in places:
            assert kinds.of_step[episode * STEPS + step] == number


def test_large_data_are_sampled_with_all_demonstrators(fitted, data, monkeypatch):
    monkeypatch.setattr(evidence, "_STEPS", 500)
    part = Evidence.of(fitted, data)
    assert part.is_part
    assert len(part.data) <= 500
    assert part.data.steps_each.min() > 0
    episode = len(part.numbers) - 1
    own = data.observations[data.episode == part.numbers[episode]]
    np.testing.assert_array_equal(part.data.observations[part.data.episode == episode], own)


def test_data_of_other_people_or_shapes_are_refused_before_a_page_is_written(fitted, data, tmp_path):
    fitted.save(tmp_path / "run")
    strangers = ileed.Demonstrations(
        observations=data.observations, actions=data.actions, demonstrator=data.demonstrator, episode=data.episode,
        names=("ann", "bob", "cat", "eve"), action_count=5,
    )  # fmt: skip
    narrow = ileed.Demonstrations(
        observations=data.observations[:, :3], actions=data.actions, demonstrator=data.demonstrator,
        episode=data.episode, names=data.names, action_count=5,
    )  # fmt: skip
    for wrong, says in ((strangers, "'eve', who is not in this run"), (narrow, r"shape \(3,\)")):
        with pytest.raises(DemonstrationError, match=says):
            report(tmp_path / "run", data=wrong)
    assert not (tmp_path / "run" / "report.html").exists()


def test_data_that_are_not_those_of_the_fit_are_said_to_be_others(fitted, data):
    people = demonstrators_of(fitted, {})
    others = data.select(data.episode < 39)
    said = "differ from those that the run was fitted to"
    assert not any(said in each for each in quality(fitted, people, data))
    assert any(said in each for each in quality(fitted, people, others))


def test_a_run_compared_with_itself_has_not_changed(fitted, data, tmp_path):
    changes = changes_of(fitted, fitted)
    assert len(changes) == 4
    assert not any(change.is_clear for change in changes)
    assert max(abs(change.estimate[0]) for change in changes) < 0.01
    assert cost_change(fitted, fitted, data) == (0, 0, 0)
    fitted.save(tmp_path / "run")
    page = compare_runs(tmp_path / "run", tmp_path / "run", data=data).read_text()
    assert "100% of pairs" in page
    assert "no demonstrator's expertise clearly differs" in page
    assert "All settings are the same." in page


def test_runs_without_common_demonstrators_have_no_changes_and_no_empty_table(fitted, tmp_path):
    fitted.save(tmp_path / "run")
    fitted.renamed({name: f"other {name}" for name in fitted.expertise.names}).save(tmp_path / "other")
    page = compare_runs(tmp_path / "run", tmp_path / "other").read_text()
    assert "share 0 demonstrators" in page
    for said in ("demonstrator's change is clear", "Intervals of changes", "Demonstrators in both runs"):
        assert said not in page
    assert all("<td" in table for table in page.split("<table")[1:])


def test_where_changes_have_no_intervals_nothing_is_said_of_these(fitted, data, tmp_path):
    unrated = ileed.Ileed(policy=ileed.CategoricalMLP(), restarts=1, steps=60, folds=0).fit(data, seed=0, device="cpu")
    fitted.save(tmp_path / "run")
    unrated.save(tmp_path / "other")
    page = compare_runs(tmp_path / "run", tmp_path / "other").read_text()
    assert "of pairs of demonstrators in the same order; changes of expertise have no intervals here." in page
    for said in ("demonstrator's change is clear", "Intervals of changes", "clearly differs"):
        assert said not in page
    assert "Demonstrators in both runs" in page


def test_changes_and_costs_change_sign_with_the_order_of_the_runs(fitted, data):
    without = data.select((data.demonstrator != 2) | (data.episode % 2 == 0))
    method = ileed.Ileed(policy=ileed.CategoricalMLP(), restarts=1, steps=60, folds=2)
    other = method.fit(without, seed=1, device="cpu")
    there = {change.one.label: change for change in changes_of(fitted, other)}
    back = {change.one.label: change for change in changes_of(other, fitted)}
    for name, change in there.items():
        value, low, high = change.estimate
        assert value == pytest.approx(-back[name].estimate[0], abs=1e-9)
        assert low <= value <= high
    mean, low, high = cost_change(fitted, other, data)
    assert cost_change(other, fitted, data)[0] == pytest.approx(-mean)
    assert low <= mean <= high


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8), st.booleans())
def test_a_scale_holds_its_values_and_its_ticks(values, zero):
    scale = Scale.of(values, zero=zero)
    assert all(0 <= scale(value) <= 100 for value in values)
    assert scale.low <= min(values) <= max(values) <= scale.high
    error = 1e-6 * (abs(scale.low) + abs(scale.high))
    assert all(scale.low - error <= tick <= scale.high + error for tick in scale.ticks())
    assert 1 <= len(scale.ticks()) <= 7
    if zero:
        assert scale.low <= 0 <= scale.high


def test_images_are_shown_as_frames_and_paths_only_where_features_are_continuous(tmp_path):
    chance = np.random.default_rng(0)
    columns = {
        "actions": chance.integers(3, size=80),
        "demonstrator": np.repeat(["ann", "bob"], 40),
        "episode": np.repeat(np.arange(4), 20),
    }
    shapes = {"frames": chance.integers(256, size=(80, 8, 10, 3)).astype(np.uint8), "path": chance.normal(size=(80, 3))}
    shapes["neither"] = chance.integers(3, size=(80, 4)).astype(np.float32)
    for name, observations in shapes.items():
        data = ileed.Demonstrations(observations=observations, **columns)
        method = ileed.Ileed(policy=ileed.CategoricalMLP(), restarts=1, steps=3, folds=2)
        method.fit(data, seed=0, device="cpu").save(tmp_path / name)
        page = report(tmp_path / name, data=data).read_text()
        assert ("<img " in page, "Path of episode" in page) == (name == "frames", name == "path")


@pytest.mark.parametrize("channels", [1, 3])
def test_a_frame_is_the_image_that_was_seen(channels):
    image = np.random.default_rng(0).integers(256, size=(9, 12, channels)).astype(np.uint8)
    pillow = pytest.importorskip("PIL.Image", reason="pillow reads the picture")
    shown = np.asarray(pillow.open(io.BytesIO(png(image))))
    np.testing.assert_array_equal(shown.reshape(image.shape), image)
    assert max(pillow.open(io.BytesIO(png(np.zeros((900, 30, channels))))).size) <= 256


def test_no_segment_is_marked_where_none_lies_below():
    level = np.ones(9)
    assert worst_segment(Estimates(level, level - 0.1, level + 0.1), 1.0) is None
