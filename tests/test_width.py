"""The width of the policy: chosen by held-out episodes where it is left open, diagnosed where it is given."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import ileed
from ileed import CategoricalMLP, Constant, Demonstrations, Ileed, MixtureLSTM, SettingsError
from ileed.fitting.stages import Stages
from ileed.selection import LADDER, Folds, ModelComparison, sample_episodes, to_try, wider_than, widths

NARROW = CategoricalMLP(hidden=(4, 4))
TRYING_8 = "trying CategoricalMLP(hidden=(8, 8)) (2 of 4)"


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


def compared(costs, errors):
    names = tuple(each.name for each in widths(NARROW, LADDER)[: len(costs)])
    return ModelComparison(names, tuple(costs), tuple(errors), 1000, ((),) * len(costs))


def compared_by(folds, cost_of, ladder=LADDER):
    """The widths of a ladder by the cost of every step of the folds under each."""
    every, tried = widths(NARROW, ladder), []
    for candidate, _ in to_try(folds, every, tried, Stages(0, torch.device("cpu")), name="width"):
        nats = np.broadcast_to(cost_of(candidate.settings["policy"].hidden), len(folds.data))
        tried.append(((folds.weight * np.bincount(folds.data.episode, weights=nats))[folds.fold >= 0], ()))
    return ModelComparison.of(folds, every, tried)


@pytest.fixture(scope="module")
def chosen():
    """A fit that chose its width."""
    return quick().fit(rings(), seed=0)


def test_a_fit_whose_width_is_left_open_chooses_a_wide_one_where_narrow_ones_fail_and_says_why(chosen):
    fitted = chosen
    assert fitted.width is not None
    hidden = fitted.joint.parts.policy.hidden
    assert sum(hidden) > 8
    assert fitted.width.preferred == f"CategoricalMLP(hidden={hidden})"
    assert f"{fitted.width.preferred} is preferred" in fitted.width_sentence
    assert "nats per held-out action below" in fitted.width_sentence


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
    passed = quick(policy=chosen.joint.parts.policy).fit(rings(), seed=0)
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
    assert "nats per held-out action below" in fitted.width_sentence
    assert fitted.width_sentence.endswith("pass policy=CategoricalMLP(hidden=(128, 128))")


def test_without_the_check_the_network_is_the_papers():
    fitted = quick().fit(rings(), seed=0, check_width=False)
    assert fitted.width is None
    assert fitted.joint.parts.policy == NARROW


def test_behaviour_cloning_chooses_its_width_too():
    fitted = ileed.bc(restarts=1, steps=400, learning_rate=1e-2).fit(rings(skill=(1, 1, 1)), seed=0)
    assert sum(fitted.joint.parts.policy.hidden) > 8


def test_continuous_actions_choose_their_width_too():
    data = rings(600)
    data = replace(data, actions=np.sin(4 * data.observations.astype(np.float64)))
    fitted = quick(steps=150).fit(data, seed=0)
    hidden = LADDER[1:][fitted.width.chosen]
    assert fitted.joint.parts.policy == ileed.MixtureMLP(hidden=hidden, modes=1, standard_deviation_floor=0.05)


def test_a_recurrent_policy_is_refused_by_the_check():
    data = replace(rings(60), actions=np.zeros((60, 1)))
    with pytest.raises(SettingsError, match="widths are not compared for MixtureLSTM"):
        quick(policy=MixtureLSTM(hidden=(4,))).fit(data, seed=0, check_width=True)


def test_where_no_demonstrator_has_two_episodes_blocks_of_steps_are_held_out():
    data = rings(episodes=False)
    part, held_out, _ = sample_episodes(data, seed=0)
    steps = held_out[part.episode].sum()
    assert 0 < held_out.sum() < part.episode_count
    assert steps == pytest.approx(len(data) / 5, rel=0.1)
    assert quick(steps=20).fit(data, seed=0).width.held_out_steps == steps


def test_where_every_person_has_one_step_nothing_is_held_out_and_the_paper_s_network_is_used():
    data = Demonstrations(observations=np.eye(3), actions=[0, 1, 0], demonstrator=[0, 1, 2], episode=[0, 1, 2])
    assert quick(steps=5).fit(data, seed=0).joint.parts.policy == NARROW


def test_progress_names_the_width_that_is_being_tried():
    stages = []
    quick(steps=20, folds=2).fit(rings(300), seed=0, progress=lambda progress: stages.append(progress.stage))
    assert list(dict.fromkeys(stages))[:2] == ["trying CategoricalMLP(hidden=(4, 4)) (1 of 4)", TRYING_8]
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
    folds = Folds.of(both, seed=0, members=1, weights=weights)
    held_out = folds.fold >= 0
    assert 0 < (weights[held_out] > 0).sum() < held_out.sum()
    comparison = compared_by(folds, lambda hidden: np.where(weights[both.episode] > 0, 1.0, 99.0), LADDER[:2])
    assert comparison.nats_per_action == (1.0, 1.0)


def test_where_all_weight_is_on_one_episode_nothing_is_held_out():
    weights = np.eye(1, 30, 7)[0]
    fitted = quick(steps=5).fit(rings(300), seed=0, weights=weights)
    assert fitted.width is None
    assert fitted.joint.parts.policy == NARROW


@pytest.mark.parametrize(
    ("costs", "errors", "chosen"),
    [
        ((1.0, 0.9, 0.8), (0.05, 0.05, 0.0), 2),  # each clearly better than the one before
        ((0.84, 0.9, 0.8), (0.05, 0.05, 0.0), 0),  # within one standard error of the best
        ((0.9, 0.81, 0.8, 1.2), (0.05, 0.02, 0.0, 0.1), 1),
        ((0.8, 0.8, 0.8), (0.0, 0.0, 0.0), 0),  # equals go to the narrowest
    ],
)
def test_the_narrowest_width_within_one_standard_error_of_the_best_is_chosen(costs, errors, chosen):
    assert compared(costs, errors).chosen == chosen


def test_the_widest_is_tried_only_where_the_one_before_it_would_be_chosen():
    folds = Folds.of(rings(300), seed=0, members=1)
    for falls, tried in ((True, 4), (False, 3)):
        costs = dict(zip(LADDER, (3.0, 2.0, 1.0, 0.5) if falls else (1.0, 2.0, 3.0, 4.0), strict=True))
        assert len(compared_by(folds, costs.__getitem__).models) == tried


def test_the_standard_error_of_a_paired_difference_is_what_resampling_episodes_gives():
    rng = np.random.default_rng(0)
    data = rings(3000)
    folds = Folds.of(data, seed=0, members=1)
    costs = {hidden: rng.gamma(2.0, size=len(data)) + k for k, hidden in enumerate(LADDER[:2])}
    comparison = compared_by(folds, costs.__getitem__, LADDER[:2])
    held = folds.fold >= 0
    difference = np.bincount(data.episode, weights=costs[LADDER[1]] - costs[LADDER[0]])[held]
    counts = np.bincount(data.episode)[held]
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


@pytest.mark.parametrize("stage", [TRYING_8, "fitting"])
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
    assert stages.count(("trying CategoricalMLP(hidden=(4, 4)) (1 of 4)", 1)) == 0  # what was tried is not tried again
    assert resumed.width == whole.width
    for name, value in whole.joint.state_dict().items():
        assert torch.equal(value, resumed.joint.state_dict()[name]), name
    resumed.save(tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_of_many_steps_some_episodes_are_compared_by(monkeypatch):
    data = rings(2400)
    _, held_out_of_all, sources = sample_episodes(data, seed=0)
    np.testing.assert_array_equal(sources, np.arange(data.episode_count))
    monkeypatch.setattr("ileed.selection._MOST_STEPS", 500)
    part, held_out, sources = sample_episodes(data, seed=0)
    assert 300 < len(part) < 700
    for number, source in enumerate(sources):
        np.testing.assert_array_equal(
            part.observations[part.episode == number], data.observations[data.episode == source]
        )
    np.testing.assert_array_equal(held_out, held_out_of_all[sources])
    weights = np.arange(1.0, data.episode_count + 1)
    for count in (1, 3):  # an episode keeps its weight in the sample
        np.testing.assert_array_equal(
            Folds.of(data, seed=0, members=1, count=count, weights=weights).weight, weights[sources]
        )
    weights = np.ones(data.episode_count)
    weights[sources[held_out]] = 0
    assert quick(steps=5).fit(data, seed=0, weights=weights).width is None  # nothing of any weight is held out
