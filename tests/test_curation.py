"""Curation: scores with intervals, rules that are stated, better people and better clones, files that others read."""

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from strategies import demonstrations, follows, world

import ileed
from ileed.curation.scores import Stretches
from ileed.curation.states import kinds_of, typicality
from ileed.errors import DemonstrationError, RunError, SettingsError
from ileed.rating.clustering import k_means

SKILL = [0.95, 0.9, 0.5, 0.4, 0.3]


def quick(discrete=True, **settings):
    policy = ileed.CategoricalMLP(hidden=(8,)) if discrete else ileed.MixtureMLP(hidden=(8,), modes=2)
    usual = {"policy": policy, "expertise": ileed.Constant(), "restarts": 1, "steps": 200, "learning_rate": 0.02}
    return ileed.Ileed(**(usual | settings))


@cache
def population():
    """Five people of known skill, 20 episodes each."""
    return follows(SKILL, steps=400, actions=4, seed=1)


@cache
def fit(folds=2):
    return quick(folds=folds).fit(population(), seed=0, device="cpu")


@cache
def robot():
    """Two people who follow the same rule of continuous actions, one with four times the noise."""
    random = np.random.default_rng(3)
    seen = random.normal(size=(900, 3)).astype(np.float32)
    who = np.arange(900) // 450
    noise = np.array([0.1, 0.4])[who][:, None] * random.normal(size=(900, 2))
    acted = (seen[:, :2] * 0.5 + noise).astype(np.float32)
    episode = np.repeat(np.arange(30), 30)
    data = ileed.Demonstrations(
        observations=seen, actions=acted, demonstrator=who, episode=episode, names=("ann", "bob")
    )
    return data, quick(discrete=False, folds=0).fit(data, seed=0, device="cpu")


# --- scores


def test_an_episode_that_the_policy_remembers_is_found_by_policies_that_have_not_seen_it():
    """Four of 24 episodes are random, and a wide network learns all of them by heart: in sample they are the best."""
    random = np.random.default_rng(0)
    seen, episode = random.normal(size=(240, 12)).astype(np.float32), np.repeat(np.arange(24), 10)
    expert = (seen[:, 0] > 0).astype(int) + (seen[:, 1] > 0)
    good = np.arange(24) % 7 > 0
    acted = np.where(good[episode], expert, random.integers(0, 3, 240))
    data = ileed.Demonstrations(observations=seen, actions=acted, demonstrator=episode % 6, episode=episode)
    wide = ileed.CategoricalMLP(hidden=(64, 64))
    method = quick(policy=wide, demonstrator=ileed.Boltzmann(), steps=1000, learning_rate=0.01, folds=5)
    fitted = method.fit(data, seed=0, device="cpu")

    def share_in_order(curated):
        score = curated.scores["expertise"].estimate
        return (score[good][:, None] > score[~good]).mean()

    within, without = (ileed.curate(fitted, data, keep=20 / 24, cross_fit=each) for each in (False, True))
    assert share_in_order(within) < 0.5
    assert share_in_order(without) > 0.9
    assert without.judged_by == "policies of folds, none of which has seen the episodes that it judges"
    assert within.judged_by == "the policy of the fit, which has learned from these episodes"
    assert without.episodes.schema.metadata[b"judged_by"].decode() == without.judged_by
    others = replace(data, actions=expert)
    assert ileed.curate(fitted, others).judged_by == "the policy of the fit, which has learned from other data"
    with refused("cross-fit-other-data", DemonstrationError):
        ileed.curate(fitted, replace(data, names=tuple("uvwxyz")), cross_fit=True)


@given(demonstrations(), st.integers(1, 9))
def test_segments_partition_the_steps_of_every_episode(data, length):
    cut = Stretches.of(data, length)
    assert cut.steps.sum() == len(data)
    assert (cut.steps >= 1).all()
    assert (cut.steps <= length).all()
    assert (data.episode == cut.episode[cut.of_step]).all()
    ends = np.bincount(data.episode)[cut.episode]
    assert ((cut.steps == length) | (cut.start + cut.steps == ends)).all()  # only an episode's last is shorter


@pytest.mark.parametrize("discrete", [True, False])
def test_every_score_lies_in_its_interval_in_both_tables(discrete):
    data, fitted = (population(), fit()) if discrete else robot()
    curated = ileed.curate(fitted, data)
    assert curated.episodes.num_rows == data.episode_count
    assert curated.stretch_table.num_rows == len(curated.stretches.steps)
    for scores in (curated.scores, curated.stretch_scores):
        assert list(scores) == ["expertise", "agreement", "typicality"]
        for each in scores.values():
            assert (each.low <= each.estimate).all()
            assert (each.estimate <= each.high).all()
            assert ((each.above >= 0) & (each.above <= 1)).all()
            assert np.isfinite([each.estimate, each.low, each.high]).all()


def test_a_segment_as_long_as_every_episode_scores_like_the_episode():
    curated = ileed.curate(fit(), population(), stretch=1000)
    for name, each in curated.scores.items():
        np.testing.assert_allclose(each.estimate, curated.stretch_scores[name].estimate)


def test_the_agreement_of_an_episode_is_the_mean_of_its_segments():
    curated = ileed.curate(fit(), population(), stretch=7)
    cut = curated.stretches
    total = np.bincount(cut.episode, curated.stretch_scores["agreement"].estimate * cut.steps)
    np.testing.assert_allclose(total / np.bincount(population().episode), curated.scores["agreement"].estimate)


def test_agreement_is_the_odds_of_an_expert_against_the_average_person():
    data, fitted = population(), fit(folds=0)
    mean = np.mean([*fitted.expertise.by_demonstrator().values()])
    taken = fitted.policy.distribution(data.observations).probs.numpy()[np.arange(len(data)), data.actions]
    average = mean * taken + (1 - mean) / data.action_count
    by_hand = np.bincount(data.episode, taken / (taken + average)) / np.bincount(data.episode)
    np.testing.assert_allclose(ileed.curate(fitted, data).scores["agreement"].estimate, by_hand, rtol=1e-5)


@pytest.mark.parametrize("scaled", ["variance", "standard_deviation"])
@pytest.mark.parametrize("exempt", [(), (1,)])
def test_one_policy_at_many_points_of_expertise_is_what_the_model_observes(scaled, exempt):
    from ileed.model.batch import Batch, Sizes
    from ileed.model.distributions import mixture

    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    policy, action = mixture(draw(1, 5, 3), draw(1, 5, 3, 2), draw(1, 5, 3, 2).exp()), draw(5, 2)
    sizes = Sizes(inputs=1, demonstrators=1, actions=2, discrete=False)
    batch = Batch.of(sizes=sizes, observations=torch.zeros(1, 5), action=action)
    points = torch.tensor([0.0, 1e-3, 0.3, 1.0], dtype=torch.float64)[:, None].expand(-1, 5)
    model = ileed.VarianceScaling(scaled=scaled, exempt=exempt)
    expected = model.observed(policy, points).log_prob(action)
    torch.testing.assert_close(model.log_likelihood(policy, points, batch), expected)


def test_the_coarse_grid_of_expertise_gives_the_estimates_of_the_fine_one():
    """Against `assess`, for one episode a person, where the population of a person's episodes hardly matters."""
    from ileed.curation.scores import _POINTS, Curves
    from ileed.rating.posterior import mean_and_interval, posterior

    data, fitted = population(), fit()
    likelihood = fitted.step_likelihood(data)
    fine = likelihood.summed(data.episode, data.episode_count)
    points = Curves.of_points(likelihood.summed(data.episode, data.episode_count, _POINTS))
    coarse = points.on_grid(np.arange(data.episode_count))
    for one, other in zip(*(mean_and_interval(posterior(each, None)[0], 0.95) for each in (fine, coarse)), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-3)


@pytest.mark.parametrize("steps", [20, 300])
@pytest.mark.parametrize("rho", [0.5, 0.05, 0.01, 0.003, 0.001])
def test_the_coarse_grid_finds_an_expertise_close_to_zero_by_continuous_actions(steps, rho):
    """The log-likelihood of 14 dimensions with a variance of 1 / rho; posterior means agree within 2 %."""
    from ileed.curation.scores import _POINTS, Curves
    from ileed.rating.posterior import INSIDE

    def log_likelihood(points):
        return (7 * steps * (np.log(points) - points / rho))[None]

    points = Curves.of_points(log_likelihood(_POINTS)).on_grid(np.arange(1))[:, 1:-1]
    likelihoods = (np.exp(each - each.max()) for each in (points, log_likelihood(INSIDE)))
    coarse, fine = (float((each @ INSIDE / each.sum()).item()) for each in likelihoods)
    assert coarse == pytest.approx(fine, rel=0.02)


def test_episodes_of_better_people_have_greater_expertise_and_agreement():
    for data, fitted, best in ((population(), fit(), [0, 1]), (*robot(), [0])):
        curated = ileed.curate(fitted, data)
        is_best = np.isin(data.episode_demonstrator, best)
        for name in ("expertise", "agreement"):
            score = curated.scores[name].estimate
            assert np.median(score[is_best]) > np.median(score[~is_best]), name
        assert curated.scores["expertise"].above[is_best].mean() > 0.9  # of being above the average person


def test_the_order_of_episodes_is_about_that_by_policies_that_have_not_seen_them():
    """Good and poor episodes of four demonstrators (seed 0): pairs in the right order, in and out of sample."""
    random = np.random.default_rng(0)
    who, episode = np.arange(80) % 4, np.repeat(np.arange(80), 25)
    is_good = random.random(80) < np.array([0.2, 0.4, 0.6, 0.8])[who]
    seen = random.normal(size=(len(episode), 4)).astype(np.float32)  # no observation is repeated
    right = (seen @ random.normal(size=(4, 4))).argmax(1)
    follows_rule = random.random(len(episode)) < np.where(is_good, 0.9, 0.4)[episode]
    acted = np.where(follows_rule, right, random.integers(0, 4, len(episode)))
    data = ileed.Demonstrations(observations=seen, actions=acted, demonstrator=who[episode], episode=episode)
    held_out, fold = np.zeros(80), np.arange(80) // 4 % 2
    for part in (0, 1):
        fitted = quick(folds=0).fit(data.select(fold[episode] != part), seed=0, device="cpu")
        scores = ileed.curate(fitted, data.select(fold[episode] == part)).scores
        held_out[fold == part] = scores["expertise"].estimate
    in_sample = ileed.curate(quick(folds=0).fit(data, seed=0, device="cpu"), data).scores["expertise"].estimate

    def pairs_in_order(score):
        return (score[is_good][:, None] > score[~is_good]).mean()

    assert pairs_in_order(in_sample) > 0.95
    assert pairs_in_order(in_sample) > pairs_in_order(held_out) - 0.03  # half as many steps taught the other


@pytest.mark.campaign
def test_intervals_of_expertise_hold_the_truth_about_as_often_as_they_say():
    """Episodes differ in expertise within a person; seeds 0 to 2, 180 episodes each, by the policy that acted."""
    fitted, held = fit(folds=0), []
    for seed in range(3):
        random = np.random.default_rng(seed)
        who, episode = np.arange(180) // 60, np.repeat(np.arange(180), 30)
        rho = random.beta(np.array([8, 4, 2])[who], np.array([2, 4, 8])[who])
        seen = np.eye(4, dtype=np.int64)[random.integers(0, 4, len(episode))]
        followed = fitted.policy.distribution(seen).probs.double().numpy()
        chance = rho[episode, None] * followed + (1 - rho[episode, None]) / 4
        acted = (chance.cumsum(1) / chance.sum(1, keepdims=True) < random.random((len(episode), 1))).sum(1)
        data = ileed.Demonstrations(
            observations=seen, actions=acted, demonstrator=who[episode], episode=episode, action_count=4
        )
        score = ileed.curate(fitted, data).scores["expertise"]
        truth = rho / np.mean([rho[who == person].mean() for person in range(3)])
        held.append(((score.low <= truth) & (truth <= score.high)).mean())
    assert 0.88 < np.mean(held) < 0.99  # of 0.95; the mean over three people, by which all is divided, is estimated too


def test_a_person_whom_the_fit_has_not_seen_is_scored_too():
    data = replace(population(), names=("new", *population().names[1:]))
    curated = ileed.curate(fit(), data, keep=0.2)
    assert curated.people().to_pylist()[0]["kept"] > 0


def test_the_same_call_gives_the_same_bits():
    one, other = (ileed.curate(fit(), population(), keep=0.5, at_least=1) for _ in range(2))
    assert one.episodes.equals(other.episodes)
    assert one.stretch_table.equals(other.stretch_table)


def test_a_state_that_others_share_is_typical_and_one_seen_in_one_episode_alone_is_not():
    seen = np.array([[0], [0], [0], [0], [5], [5], [5], [5], [0], [0]])
    episode = np.array([0, 0, 1, 1, 2, 2, 2, 2, 3, 3])
    data = ileed.Demonstrations(observations=seen, actions=np.arange(10) % 2, demonstrator=episode, episode=episode)
    found = typicality(data, seen.T.astype(np.float32), seed=0)
    assert found[seen[:, 0] == 0].min() > found[seen[:, 0] == 5].max()  # though 5 is seen as often as 0


def test_states_far_from_those_of_other_episodes_are_untypical():
    random = np.random.default_rng(0)
    seen, episode = random.normal(size=(200, 2)).astype(np.float32), np.repeat(np.arange(10), 20)
    seen[episode == 4] += 50
    data = ileed.Demonstrations(observations=seen, actions=np.arange(200) % 2, demonstrator=episode, episode=episode)
    found = typicality(data, seen.T, seed=0)
    assert found[episode == 4].max() < found[episode != 4].min()
    assert abs(found.mean() - 0.5) < 1e-9  # a share of all steps


# --- rules


def keep_rows(**rule):
    curated = ileed.curate(fit(), population(), **rule)
    return curated, curated.scores[rule.get("by", "expertise")].estimate


@pytest.mark.parametrize("by", ["expertise", "agreement", "typicality"])
@pytest.mark.parametrize("keep", [0.01, 0.25, 1.0])
def test_the_best_share_is_kept_by_the_score_that_is_named(by, keep):
    curated, score = keep_rows(keep=keep, by=by)
    assert curated.kept.sum() == max(1, round(keep * population().episode_count))
    if keep < 1:
        assert score[curated.kept].min() >= score[~curated.kept].max()
    assert by in curated.sentence


def test_above_a_bound_with_a_probability_keeps_exactly_those():
    curated, _ = keep_rows(above=1.0, probability=0.8)
    assert (curated.kept == (curated.scores["expertise"].above >= 0.8)).all()
    stricter, _ = keep_rows(above=1.0, probability=0.99)
    assert (stricter.kept <= curated.kept).all()


def test_a_threshold_that_keeps_next_to_nothing_says_so():
    some, _ = keep_rows(above=1.0, probability=0.5)
    above = np.sort(some.scores["expertise"].above)
    few, _ = keep_rows(above=1.0, probability=float(above[-1]))
    assert few.kept.mean() < 0.05
    assert "consider training on all" in few.sentence
    assert "consider training on all" not in some.sentence


def test_a_budget_of_steps_is_not_exceeded_and_what_is_left_fits_no_further_episode():
    curated, _ = keep_rows(steps=130)
    lengths = np.bincount(population().episode)
    assert lengths[curated.kept].sum() <= 130
    assert lengths[~curated.kept].min() > 130 - lengths[curated.kept].sum()


def test_without_a_rule_everything_is_kept_with_weight_one():
    curated, _ = keep_rows()
    assert curated.kept.all()
    assert (curated.weights == 1).all()


def test_weights_are_proportional_to_the_score_and_one_on_average_over_the_steps_kept():
    curated, score = keep_rows(keep=0.5, weight=True)
    ratio = curated.weights / score[curated.kept]
    np.testing.assert_allclose(ratio, ratio[0])
    np.testing.assert_allclose(curated.step_weights[curated.step_weights > 0].mean(), 1)
    assert (curated.step_weights[~curated.kept[population().episode]] == 0).all()


def test_every_kind_of_state_keeps_its_best_episodes():
    curated, score = keep_rows(keep=0.3, at_least=3, kinds=4)
    for held in curated.kinds.held.T:
        assert (curated.kept & held).sum() >= min(3, held.sum())
        best = np.flatnonzero(held)[np.argsort(-score[held], kind="stable")][:3]
        assert curated.kept[best].all()
    assert curated.kept.sum() == round(0.3 * population().episode_count)  # the share stays as asked


def test_a_rule_about_segments_keeps_the_best_of_them():
    curated = ileed.curate(fit(), population(), keep=0.3, unit="stretch", stretch=7, weight=True)
    cut, score = curated.stretches, curated.stretch_scores["expertise"].estimate
    assert curated.kept_units.sum() == round(0.3 * len(cut.steps))
    assert score[curated.kept_units].min() >= score[~curated.kept_units].max()
    assert "segments" in curated.sentence
    data = curated.demonstrations()
    assert data.episode_count == curated.kept_units.sum() == len(curated.weights)
    assert np.array_equal(np.bincount(data.episode), cut.steps[curated.kept_units])
    assert set(data.episode_keys.tolist()) == set(np.flatnonzero(curated.kept).tolist())


def test_kinds_may_be_the_labels_of_a_skill_column():
    data = world([4] * 12, optional=["phase"])
    kinds = kinds_of(data, data.observations.T, data.episode, "phase", seed=0)
    assert kinds.names == ("grasp", "lift")
    assert kinds.held.all()  # every episode has steps of both


def test_distant_clusters_are_distinguished():
    random = np.random.default_rng(0)
    truth = np.arange(60) % 3
    rows = random.normal(size=(60, 2)) + 30 * np.array([[0, 0], [1, 0], [0, 1]])[truth]
    found = k_means(rows, 3, seed=0).of_row
    assert len({(one, other) for one, other in zip(truth, found, strict=True)}) == 3


def test_fewer_distinct_rows_than_clusters_give_as_many_clusters_as_rows():
    assert len(k_means(np.repeat(np.eye(2), 5, axis=0), 4, seed=0).centres) == 2


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ({"keep": 0}, "share"),
        ({"keep": 1.5}, "share"),
        ({"keep": 0.5, "steps": 10}, "give one of them"),
        ({"steps": 0}, "one or more"),
        ({"steps": 3}, "shortest episode has 20"),
        ({"above": 99.0}, "lower above"),
        ({"above": 1.0, "probability": 1}, "between 0 and 1"),
        ({"by": "length"}, "'expertise'"),
        ({"kinds": 3}, "at_least"),
        ({"keep": 0.02, "at_least": 5}, "lower at_least"),
        ({"at_least": 1, "kinds": "phase"}, "skill column"),
        ({"kep": 0.5}, "did you mean 'keep'"),
        ({"stretch": 0}, "one step or more"),
    ],
    ids=str,
)
def test_a_rule_that_cannot_be_followed_is_refused_in_one_sentence(rule, says):
    with pytest.raises((SettingsError, DemonstrationError), match=says):
        ileed.curate(fit(), population(), **rule)


def test_the_correlation_with_length_is_the_rank_correlation_and_undefined_for_equal_lengths():
    from scipy.stats import spearmanr

    assert np.isnan(keep_rows()[0].length_correlation.value)
    data = follows(SKILL, steps=300, actions=4, seed=2)
    random = np.random.default_rng(0)
    cuts = np.cumsum(random.random(len(data)) < 0.08)
    data = replace(data, episode=data.demonstrator * 10_000 + cuts, source_episode=None)
    curated = ileed.curate(fit(), data)
    expected = spearmanr(curated.scores["expertise"].estimate, np.bincount(data.episode)).statistic
    assert curated.length_correlation.value == pytest.approx(expected)
    assert curated.length_correlation.low < expected < curated.length_correlation.high


# --- what it is for


def test_what_is_kept_comes_from_better_people():
    curated = ileed.curate(fit(), population(), keep=0.4)
    who = population().episode_demonstrator
    kept = np.array(SKILL)[who[curated.kept]].mean()
    assert kept > np.mean(SKILL) + 0.25  # the two good people have 40 % of the episodes; chance would give the mean


@pytest.mark.parametrize("seed", [10, *(pytest.param(seed, marks=pytest.mark.campaign) for seed in range(11, 15))])
def test_clones_of_kept_episodes_predict_an_expert_better_than_clones_of_random_ones(seed):
    """In every one of five simulated populations, against two random subsets of as many episodes."""
    data = follows(SKILL, steps=400, actions=4, seed=seed)
    expert = follows([0.999] * 5, steps=200, actions=4, seed=seed + 100)
    curated = ileed.curate(quick(folds=2).fit(data, seed=0, device="cpu"), data, keep=0.3)
    random = np.random.default_rng(seed)
    subsets = [random.permutation(curated.kept) for _ in range(2)]
    ours, *theirs = [cost_of_clone(data, kept, expert) for kept in (curated.kept, *subsets)]
    assert ours < min(theirs)


def cost_of_clone(data, kept, expert):
    """Nats per action of an expert's steps under a clone of some episodes."""
    clone = ileed.bc(policy=ileed.CategoricalMLP(hidden=(8,)), restarts=1, steps=200, learning_rate=0.02)
    return clone.fit(data.select(kept[data.episode]), seed=0, device="cpu").nats(expert).mean()


def test_a_weighted_clone_predicts_an_expert_better_than_one_of_everything():
    data, expert = population(), follows([0.999] * 5, steps=200, actions=4, seed=50)
    curated = ileed.curate(fit(), data, weight=True)
    clone = ileed.bc(policy=ileed.CategoricalMLP(hidden=(8,)), restarts=1, steps=200, learning_rate=0.02)
    weighted = clone.fit(curated.demonstrations(), seed=0, device="cpu", weights=curated.weights)
    assert weighted.nats(expert).mean() < clone.fit(data, seed=0, device="cpu").nats(expert).mean()


def test_the_sampler_draws_kept_steps_alone_in_proportion_to_their_weights():
    curated = ileed.curate(fit(), population(), keep=0.5, weight=True)
    drawn = np.fromiter(curated.sampler(20_000, seed=0), dtype=np.int64)
    weight = curated.step_weights
    assert (weight[drawn] > 0).all()
    share = np.bincount(population().demonstrator[drawn], weights=None, minlength=5) / len(drawn)
    expected = np.bincount(population().demonstrator, weight, minlength=5) / weight.sum()
    np.testing.assert_allclose(share, expected, atol=5 * (0.25 / len(drawn)) ** 0.5)  # five standard errors
    assert len(list(curated.sampler())) == curated.kept[population().episode].sum()


# --- files


def named(data, keys):
    return replace(data, source_episode=np.array(keys)[data.episode])


def test_the_tables_hold_every_score_with_interval_for_every_episode_of_the_users_own_name(tmp_path):
    data = named(population(), [f"take {number}" for number in range(population().episode_count)])
    curated = ileed.curate(fit(), data, keep=0.3)
    files = curated.write(tmp_path / "out")
    assert sorted(file.name for file in files) == [
        "curated.json",
        "episodes.csv",
        "episodes.parquet",
        "stretches.parquet",
    ]
    table = pq.read_table(tmp_path / "out/episodes.parquet")
    assert table["key"].to_pylist() == data.episode_keys.tolist()
    assert np.array_equal(table["keep"].to_numpy(), curated.kept)
    for name in ("expertise", "agreement", "typicality"):
        for part in ("", "_low", "_high", "_above"):
            assert name + part in table.column_names
    assert curated.sentence.encode() == table.schema.metadata[b"rule"]
    lines = (tmp_path / "out/episodes.csv").read_text().splitlines()
    assert len(lines) == data.episode_count + 1
    assert json.loads((tmp_path / "out/curated.json").read_text())["kept_keys"] == curated.keys.tolist()


def test_lerobot_reads_weights_of_every_frame_and_lists_of_episodes(tmp_path):
    curated = ileed.curate(fit(), population(), keep=0.3, weight=True)
    curated.write(tmp_path / "out", format="lerobot")
    table = pq.read_table(tmp_path / "out/sample_weights.parquet")
    assert [str(column.type) for column in table.columns] == ["int64", "float"]
    assert table["index"].to_pylist() == list(range(len(population())))
    np.testing.assert_allclose(table["weight"].to_numpy(), curated.step_weights, rtol=1e-6)
    text = (tmp_path / "out/lerobot.txt").read_text()
    keep, drop = (np.flatnonzero(each) for each in (curated.kept, ~curated.kept))
    assert f"--dataset.episodes='[{','.join(map(str, keep))}]'" in text
    assert f"--operation.episode_indices='[{','.join(map(str, drop))}]'" in text
    assert "--new_repo_id" in text  # without it lerobot moves the user's own data


def lerobot_folder(folder, data, first=0):
    """Frames as LeRobot keeps them, in two files that do not stand in the order of episodes."""
    half = data.episode_count // 2
    for number, part in enumerate((data.episode >= half, data.episode < half)):
        frames = {"index": np.flatnonzero(part) + first, "episode_index": data.episode[part]}
        (folder / "data/chunk-000").mkdir(parents=True, exist_ok=True)
        import pyarrow as pa

        pq.write_table(pa.table(frames), folder / f"data/chunk-000/file-00{number}.parquet")


def test_some_episodes_of_a_lerobot_folder_have_the_frames_and_numbers_of_the_folder(tmp_path):
    whole = population()
    lerobot_folder(tmp_path / "set", whole, first=7)
    data = whole.by("person 1", "person 3")
    curated = ileed.curate(fit(), data, keep=0.5)
    with pytest.raises(SettingsError, match="source="):
        curated.write(tmp_path / "out", format="lerobot")
    assert not (tmp_path / "out").exists()
    curated.write(tmp_path / "out", format="lerobot", source=tmp_path / "set")
    table = pq.read_table(tmp_path / "out/sample_weights.parquet")
    assert table["index"].to_pylist() == list(range(7, len(whole) + 7))
    kept = set(curated.keys.tolist())
    assert kept <= set(np.unique(whole.episode[np.isin(whole.demonstrator, [1, 3])]).tolist())
    weight = table["weight"].to_numpy()
    assert ((weight > 0) == np.isin(whole.episode, list(kept))).all()
    assert str(tmp_path / "set") in (tmp_path / "out/lerobot.txt").read_text()


def test_another_folder_than_the_one_that_was_read_is_refused(tmp_path):
    lerobot_folder(tmp_path / "set", population().by("person 1"))
    with pytest.raises(SettingsError, match="another number"):
        ileed.curate(fit(), population(), keep=0.5).write(tmp_path / "out", format="lerobot", source=tmp_path / "set")


def test_minari_and_openpi_get_the_episodes_of_the_users_own_file(tmp_path):
    curated = ileed.curate(fit(), population().by("person 0", "person 2"), keep=0.8)
    curated.write(tmp_path / "minari", format="minari")
    found = json.loads((tmp_path / "minari/minari.json").read_text())
    assert found == {"episode_indices": curated.keys.tolist()}
    assert max(found["episode_indices"]) >= 40  # person 2's have their own numbers
    curated.write(tmp_path / "openpi", format="openpi")
    ranges = json.loads((tmp_path / "openpi/openpi.json").read_text())
    assert ranges == {str(key): [[0, 20]] for key in curated.keys}


def test_ranges_of_openpi_are_exactly_the_steps_kept(tmp_path):
    data = population()
    curated = ileed.curate(fit(), data, keep=0.6, unit="stretch", stretch=3)
    curated.write(tmp_path / "out", format="openpi")
    ranges = json.loads((tmp_path / "out/openpi.json").read_text())
    found = np.zeros(len(data), dtype=bool)
    for key, each in ranges.items():
        first = np.searchsorted(data.episode, int(key))
        for (start, end), after in zip(each, [*each[1:], None], strict=True):
            assert start < end
            assert after is None or end < after[0]  # neighbours are joined
            found[first + start : first + end] = True
    assert np.array_equal(found, curated.kept_steps)


def test_masks_and_bands_go_into_a_copy_of_a_robomimic_file_that_itself_stays(tmp_path):
    h5py = pytest.importorskip("h5py")
    data, fitted = robot()
    ileed.write_robomimic(data, tmp_path / "demos.hdf5")
    before = (tmp_path / "demos.hdf5").read_bytes()
    curated = ileed.curate(fitted, ileed.read(tmp_path / "demos.hdf5").by("bob"), keep=0.8)
    curated.write(tmp_path / "out", format="robomimic", source=tmp_path / "demos.hdf5")
    assert (tmp_path / "demos.hdf5").read_bytes() == before
    kept = set(curated.keys.tolist())
    assert kept < {f"demo_{number}" for number in range(15, 30)}
    with h5py.File(tmp_path / "out/demos.hdf5") as file:
        members = {name: {each.decode() for each in file["mask"][name]} for name in file["mask"]}
        assert len(file["data"]) == 30
    assert members["ileed_keep"] == kept
    bands = [members[f"ileed_band_{number}"] for number in (1, 2, 3)]
    assert set.union(*bands) == kept
    assert sum(map(len, bands)) == len(kept)
    entries = json.loads((tmp_path / "out/robomimic_bands.json").read_text())["train"]["data"]
    assert [entry["filter_key"] for entry in entries] == ["ileed_band_1", "ileed_band_2", "ileed_band_3"]
    weights = [entry["weight"] for entry in entries]
    assert weights == sorted(weights, reverse=True)
    again = ileed.read(tmp_path / "out/demos.hdf5", filter_key="ileed_keep")
    assert set(again.episode_keys.tolist()) == kept
    assert again.equals(replace(curated.demonstrations(), names=again.names, demonstrator=again.demonstrator))


def test_a_folder_that_is_there_is_replaced_only_where_it_is_ours_and_that_is_asked(tmp_path):
    curated = ileed.curate(fit(), population(), keep=0.3)
    curated.write(tmp_path / "out", format="openpi")
    with pytest.raises(RunError, match="overwrite"):
        curated.write(tmp_path / "out")
    curated.write(tmp_path / "out", overwrite=True)
    assert not (tmp_path / "out/openpi.json").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("keep me")
    with pytest.raises(RunError, match="another place"):
        curated.write(tmp_path / "mine", overwrite=True)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_write_that_fails_leaves_nothing_or_what_was_there(tmp_path, monkeypatch):
    curated = ileed.curate(fit(), population(), keep=0.3)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ileed.curation.outputs._write_json", full)
    with pytest.raises(RunError, match="No space left"):
        curated.write(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    curated.write(tmp_path / "out")
    before = sorted((path.name, path.read_bytes()) for path in (tmp_path / "out").iterdir())
    monkeypatch.setattr("ileed.curation.outputs._write_json", full)
    with pytest.raises(RunError, match="No space left"):
        curated.write(tmp_path / "out", overwrite=True)
    assert sorted((path.name, path.read_bytes()) for path in (tmp_path / "out").iterdir()) == before


@given(data=demonstrations(people=st.integers(1, 3)), keep=st.floats(0.05, 1), stretch=st.integers(1, 5))
def test_any_small_data_set_is_curated_and_written(data, keep, stretch, tmp_path_factory):
    expertise = ileed.Perfect() if len(data.names) == 1 else ileed.Constant()
    fitted = quick(data.discrete, steps=2, expertise=expertise).fit(data, seed=0, device="cpu")
    curated = ileed.curate(fitted, data, keep=keep, stretch=stretch, weight=True)
    folder = tmp_path_factory.mktemp("any")
    curated.write(folder / "out", format="lerobot")
    table = pq.read_table(folder / "out/sample_weights.parquet")
    assert table.num_rows == len(data)
    assert curated.demonstrations().episode_count == curated.kept.sum() == len(curated.weights)
    assert np.isfinite(curated.weights).all()


# --- names of episodes


def test_episodes_keep_their_own_names_through_selections():
    data = ileed.Demonstrations(
        observations=np.eye(6),
        actions=[0, 1, 0, 1, 0, 1],
        demonstrator=["ann", "ann", "bob", "bob", "ann", "ann"],
        episode=["x", "x", "y", "y", "z", "z"],
    )
    assert data.episode_keys.tolist() == ["x", "y", "z"]
    assert data.by("ann").episode_keys.tolist() == ["x", "z"]
    assert replace(data.by("ann"), names=("a",)).anonymise().episode_keys.tolist() == ["x", "z"]
    assert data.select(data.episode > 0).by("ann").episode_keys.tolist() == ["z"]


def test_episodes_of_a_table_are_called_by_their_columns():
    table = {"day": [1, 1, 2, 2], "case": ["a", "b", "a", "b"], "x": [0.1, 0.2, 0.3, 0.4], "did": ["p", "q", "p", "q"]}
    table["who"] = ["ann"] * 4
    named = ileed.from_table(table, action="did", demonstrator="who", episode=["day", "case"])
    assert named.episode_keys.tolist() == ["1, a", "1, b", "2, a", "2, b"]
    alone = ileed.from_table(table, action="did", demonstrator="who", features=["x"])
    assert alone.episode_keys.tolist() == [0, 1, 2, 3]


def test_scores_of_very_few_steps_stay_on_the_scale_of_the_table():
    """Fifteen steps: a policy that has seen them finds every demonstrator near perfect, cross-fitting none."""
    chance = np.random.default_rng(0)
    seen = chance.normal(size=(15, 4))
    data = ileed.Demonstrations(
        observations=seen,
        actions=(np.tanh(seen[:, :2]) + 0.1 * chance.normal(size=(15, 2))).astype(np.float32),
        demonstrator=np.repeat(["ann", "bob", "cy"], 5),
        episode=np.arange(15),
    )
    fitted = ileed.Ileed(restarts=2, steps=300, folds=5).fit(data, seed=0, device="cpu")
    found = ileed.curate(fitted, data).scores["expertise"].estimate
    assert found.mean() == pytest.approx(1, abs=0.5)
    assert found.max() < 3
