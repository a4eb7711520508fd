"""The width of the policy: chosen by held-out episodes where it is left open, diagnosed where it is given."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import ileed
from ileed import CategoricalMLP, Constant, Demonstrations, Ileed, MixtureLSTM, SettingsError
from ileed.width import LADDER, Split, WidthComparison, compare_widths, wider_than

NARROW = CategoricalMLP(hidden=(4, 4))


def rings(steps=2400, *, people=3, seed=0, episodes=True, skill=(0.95, 0.7, 0.45)):
    """Two numbers, and three actions in rings around the middle, which no narrow network can draw."""
    rng = np.random.default_rng(seed)
    seen = rng.uniform(-1, 1, size=(steps, 2)).astype(np.float32)
    best = (np.hypot(*seen.T) * 5).astype(int) % 3
    who = np.repeat(np.arange(people), steps // people)
    acted = np.where(rng.random(steps) < np.array(skill)[who], best, rng.integers(0, 3, size=steps))
    return Demonstrations(
        observations=seen, actions=acted, demonstrator=who, episode=np.arange(steps) // 10 if episodes else who
    )


def quick(**settings):
    return Ileed(**({"expertise": Constant(), "restarts": 2, "steps": 400, "learning_rate": 1e-2} | settings))


def compared(costs, errors, hidden=LADDER):
    return WidthComparison(hidden[: len(costs)], tuple(costs), tuple(errors), held_out_steps=1000)


@pytest.fixture(scope="module")
def chosen():
    """A fit that chose its width."""
    return quick().fit(rings(), seed=0)


def test_a_fit_whose_width_is_left_open_chooses_a_wide_one_where_narrow_ones_fail_and_says_why(chosen):
    fitted = chosen
    assert fitted.width is not None
    assert sum(fitted.width.chosen) > 8
    assert fitted.joint.parts.policy.hidden == fitted.width.chosen
    assert f"hidden layers of {fitted.width.chosen[0]} units" in fitted.width_sentence
    assert "held-out steps" in fitted.width_sentence


def test_a_narrow_network_is_kept_where_a_wide_one_explains_held_out_actions_no_better():
    rng = np.random.default_rng(2)
    seen = rng.integers(0, 2, size=(600, 3)).astype(np.float32)
    data = Demonstrations(
        observations=seen,
        actions=np.where(rng.random(600) < 0.7, seen[:, 0].astype(int), rng.integers(0, 2, size=600)),
        demonstrator=np.repeat(["ann", "bob", "cat"], 200),
        episode=np.arange(600) // 10,
    )
    assert quick().fit(data, seed=0).joint.parts.policy == NARROW


def test_the_chosen_width_gives_the_same_bits_as_when_it_is_passed(chosen):
    passed = quick(policy=CategoricalMLP(hidden=chosen.width.chosen)).fit(rings(), seed=0)
    for name, value in chosen.joint.state_dict().items():
        assert torch.equal(value, passed.joint.state_dict()[name]), name


def test_a_policy_that_is_passed_is_taken_as_it_is():
    fitted = quick(policy=NARROW).fit(rings(), seed=0)
    assert fitted.width is None
    assert fitted.width_sentence == ""
    assert fitted.joint.parts.policy == NARROW


def test_a_policy_that_is_too_narrow_is_diagnosed_in_words():
    fitted = quick(policy=NARROW).fit(rings(), seed=0, check_width=True)
    assert fitted.joint.parts.policy == NARROW
    assert "a wider policy explains held-out actions better by 0." in fitted.width_sentence
    assert "pass policy=CategoricalMLP(hidden=(128, 128)) instead of hidden=(4, 4)" in fitted.width_sentence


def test_without_the_check_the_network_is_the_papers():
    fitted = quick().fit(rings(), seed=0, check_width=False)
    assert fitted.width is None
    assert fitted.joint.parts.policy == NARROW


def test_behaviour_cloning_chooses_its_width_too():
    fitted = ileed.bc(restarts=1, steps=400, learning_rate=1e-2).fit(rings(skill=(1, 1, 1)), seed=0)
    assert sum(fitted.width.chosen) > 8


def test_continuous_actions_choose_their_width_too():
    data = rings(600)
    data = replace(data, actions=np.sin(4 * data.observations.astype(np.float64)))
    fitted = quick(steps=150).fit(data, seed=0)
    assert fitted.joint.parts.policy == ileed.MixtureMLP(hidden=fitted.width.chosen, standard_deviation_floor=0.05)


def test_a_recurrent_policy_is_refused_by_the_check():
    data = replace(rings(60), actions=np.zeros((60, 1)))
    with pytest.raises(SettingsError, match="widths are not compared for MixtureLSTM"):
        quick(policy=MixtureLSTM(hidden=(4,))).fit(data, seed=0, check_width=True)


def test_where_nobody_has_two_episodes_blocks_of_steps_are_held_out():
    data = rings(episodes=False)
    split = Split.of(data, seed=0)
    assert 0 < (~split.kept).sum() < split.data.episode_count
    assert len(split.held_out) == pytest.approx(len(data) / 5, rel=0.1)
    assert quick(steps=20).fit(data, seed=0).width.held_out_steps == len(split.held_out)


def test_where_every_person_has_one_step_nothing_is_held_out_and_the_paper_s_network_is_used():
    data = Demonstrations(observations=np.eye(3), actions=[0, 1, 0], demonstrator=[0, 1, 2], episode=[0, 1, 2])
    assert quick(steps=5).fit(data, seed=0).joint.parts.policy == NARROW


def test_progress_names_the_width_that_is_being_tried():
    stages = []
    quick(steps=20, folds=2).fit(rings(300), seed=0, progress=lambda progress: stages.append(progress.stage))
    assert list(dict.fromkeys(stages))[:2] == ["trying hidden layers of 4 units", "trying hidden layers of 8 units"]
    assert list(dict.fromkeys(stages))[-3:] == ["fitting", "cross-fitting", "rating"]


def test_a_saved_run_keeps_the_comparison(tmp_path):
    fitted = quick(steps=20).fit(rings(300), seed=0)
    fitted.save(tmp_path / "run")
    assert ileed.load(tmp_path / "run").width == fitted.width
    assert ileed.load(tmp_path / "run").width_sentence == fitted.width_sentence


def test_episodes_of_no_weight_have_no_say_in_the_choice():
    """A data set and the same with nonsense of weight zero choose alike, from the same costs."""
    data, nonsense = rings(1200), rings(1200, seed=5, skill=(0, 0, 0))
    both = Demonstrations(
        observations=np.concatenate([data.observations, nonsense.observations]),
        actions=np.concatenate([data.actions, nonsense.actions]),
        demonstrator=np.concatenate([data.demonstrator, nonsense.demonstrator]),
        episode=np.arange(2400) // 10,
    )
    weights = np.repeat([1.0, 0.0], 120)
    split = Split.of(both, seed=0)
    counted = split.held_out.episode_count - (weights[~split.kept] == 0).sum()
    comparison = compare_widths(split, LADDER[:2], lambda hidden: np.where(_sound(split, weights), 1.0, 99.0), weights)
    assert counted > 0
    assert comparison.nats_per_action == (1.0, 1.0)


def test_where_all_weight_is_on_one_episode_nothing_is_held_out():
    weights = np.eye(1, 30, 7)[0]
    fitted = quick(steps=5).fit(rings(300), seed=0, weights=weights)
    assert fitted.width is None
    assert fitted.joint.parts.policy == NARROW


def _sound(split, weights):
    return weights[~split.kept][split.held_out.episode] > 0


@pytest.mark.parametrize(
    ("costs", "errors", "chosen"),
    [
        ((1.0, 0.9, 0.8), (0.05, 0.05, 0.0), (32, 32)),  # each clearly better than the one before
        ((0.84, 0.9, 0.8), (0.05, 0.05, 0.0), (4, 4)),  # within one standard error of the best
        ((0.9, 0.81, 0.8, 1.2), (0.05, 0.02, 0.0, 0.1), (8, 8)),
        ((0.8, 0.8, 0.8), (0.0, 0.0, 0.0), (4, 4)),  # equals go to the narrowest
    ],
)
def test_the_narrowest_width_within_one_standard_error_of_the_best_is_chosen(costs, errors, chosen):
    assert compared(costs, errors).chosen == chosen


def test_the_widest_is_tried_only_where_the_one_before_it_would_be_chosen():
    split = Split.of(rings(300), seed=0)
    steps = len(split.held_out)
    for falls, tried in ((True, 4), (False, 3)):
        costs = dict(zip(LADDER, (3.0, 2.0, 1.0, 0.5) if falls else (1.0, 2.0, 3.0, 4.0), strict=True))
        comparison = compare_widths(split, LADDER, lambda hidden, costs=costs: np.full(steps, costs[hidden]))
        assert len(comparison.hidden) == tried


def test_the_standard_error_of_a_paired_difference_is_what_resampling_episodes_gives():
    rng = np.random.default_rng(0)
    data = rings(3000)
    split = Split.of(data, seed=0)
    costs = {hidden: rng.gamma(2.0, size=len(split.held_out)) + k for k, hidden in enumerate(LADDER[:2])}
    comparison = compare_widths(split, LADDER[:2], costs.__getitem__)
    held = split.held_out
    difference = np.bincount(held.episode, weights=costs[LADDER[1]] - costs[LADDER[0]])
    counts = np.bincount(held.episode)
    drawn = rng.integers(len(counts), size=(4000, len(counts)))
    resampled = (difference[drawn].sum(1) / counts[drawn].sum(1)).std()
    assert comparison.standard_errors[1] == pytest.approx(resampled, rel=0.1)


def test_wider_ones_than_a_given_width_are_those_of_the_ladder():
    assert wider_than((16,)) == ((16,), (32, 32), (128, 128))
    assert wider_than((256, 256)) == ((256, 256),)


def test_a_fit_gives_the_same_bits_for_any_number_of_threads():
    data = ileed.shipped().by("demonstrator 1", "demonstrator 2")
    before = torch.get_num_threads()
    found = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            found.append(Ileed(restarts=8, steps=20).fit(data, seed=0, device="cpu", check_width=False))
    finally:
        torch.set_num_threads(before)
    for name, value in found[0].joint.state_dict().items():
        assert torch.equal(value, found[1].joint.state_dict()[name]), name


@pytest.mark.parametrize("stage", ["trying hidden layers of 8 units", "fitting"])
def test_a_fit_that_is_interrupted_while_widths_are_compared_goes_on_to_the_same_bits(stage, tmp_path):
    data, method = rings(300), quick(steps=60)
    whole = method.fit(data, seed=0)

    def stop(progress):
        if progress.stage == stage and progress.step >= 30:
            raise KeyboardInterrupt

    settings = {"seed": 0, "checkpoint": tmp_path / "checkpoint", "checkpoint_seconds": 0.0}
    with pytest.raises(KeyboardInterrupt):
        method.fit(data, progress=stop, **settings)
    stages = []
    resumed = method.fit(data, progress=lambda progress: stages.append((progress.stage, progress.step)), **settings)
    assert stages.count(("trying hidden layers of 4 units", 1)) == 0  # what was tried is not tried again
    assert resumed.width == whole.width
    for name, value in whole.joint.state_dict().items():
        assert torch.equal(value, resumed.joint.state_dict()[name]), name
    resumed.save(tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_of_many_steps_some_episodes_are_compared_by(monkeypatch):
    data = rings(2400)
    whole = Split.of(data, seed=0)
    np.testing.assert_array_equal(whole.source, np.arange(data.episode_count))
    monkeypatch.setattr("ileed.width._MOST_STEPS", 500)
    split = Split.of(data, seed=0)
    assert 300 < len(split.data) < 700
    for number, source in enumerate(split.source):
        np.testing.assert_array_equal(
            split.data.observations[split.data.episode == number], data.observations[data.episode == source]
        )
    np.testing.assert_array_equal(split.kept, whole.kept[split.source])
    weights = np.ones(data.episode_count)
    weights[split.source[~split.kept]] = 0
    assert quick(steps=5).fit(data, seed=0, weights=weights).width is None  # nothing of any weight is held out
