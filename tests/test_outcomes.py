"""Outcomes as evidence of skill: laws, an oracle, recovery with coverage, disagreement, weights, saving and errors."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from refusals import refused
from safetensors.torch import load_file, save_file
from test_signal import NOISE, operators
from test_signal import method as continuous_method
from test_third_party import simulated

import ileed
from ileed.cli import run
from ileed.rating.outcomes import (
    LEAST_SHARE,
    Covariate,
    EpisodeOutcomes,
    Means,
    advantage_weights,
    combine_evidence,
    effective_share,
    skill_posterior,
)
from ileed.rating.posterior import INSIDE, mean_and_interval
from ileed.rating.ratings import RatedBy, Ratings

LOGIT = np.log(INSIDE) - np.log1p(-INSIDE)
SKILL = np.array([0.95, 0.8, 0.6, 0.4, 0.25])
"""Probability with which each demonstrator of discrete actions follows the policy."""


def ratings(mean, deviation, **by) -> Ratings:
    """Ratings by actions whose logit expertise is Gaussian."""
    mean, deviation = np.broadcast_arrays(np.asarray(mean, float), deviation)
    shares = np.exp(-0.5 * ((LOGIT - mean[:, None]) / deviation[:, None]) ** 2) * np.gradient(LOGIT)
    shares /= shares.sum(1, keepdims=True)
    found, counts = mean_and_interval(shares, 0.95), np.full(len(mean), 10)
    names = tuple(f"d{number}" for number in range(len(mean)))
    return Ratings(names, 30 * counts, counts, RatedBy(folds=5, **by), found, found, shares=shares)


def outcomes(values, better="higher") -> EpisodeOutcomes:
    return EpisodeOutcomes(np.asarray(values, dtype=np.float64), better)


def noisy(skill, episodes, deviation, random):
    """Outcomes of so many episodes of each demonstrator, and whose each is."""
    owner = np.repeat(np.arange(len(skill)), episodes)
    return skill[owner] + deviation * random.normal(size=len(owner)), owner


def slipping(random, person, right, previous):
    return right if random.random() < SKILL[person] else int(random.integers(3))


def discrete_method(**settings):
    usual = {"policy": ileed.CategoricalMLP(hidden=()), "restarts": 2, "steps": 200, "folds": 4}
    return ileed.Ileed(**(usual | {"learning_rate": 0.05, "expertise": ileed.Constant()} | settings))


DATA = simulated(slipping, people=5, episodes=8)
SUCCESS = (np.random.default_rng(1).random(40) < SKILL[np.arange(40) % 5]).astype(float)
SUCCESS[[3, 17, 20]] = np.nan


@pytest.fixture(scope="module")
def discrete():
    return discrete_method().fit(DATA, seed=0, device="cpu", outcome=SUCCESS)


@pytest.fixture(scope="module")
def continuous():
    data = operators(NOISE)
    times = 60 + 10 * NOISE[data.episode_demonstrator] + np.random.default_rng(2).normal(size=data.episode_count)
    return continuous_method().fit(data, seed=0, device="cpu", outcome=times, better="lower")


def bits(fitted):
    return [*fitted.joint.state_dict().values(), torch.tensor(fitted.expertise.ratings.shares)]


def alike(one, other) -> bool:
    return all(torch.equal(*pair) for pair in zip(bits(one), bits(other), strict=True))


# --- laws


def test_a_fit_without_outcomes_has_no_evidence_and_the_same_bits():
    one, other = (discrete_method().fit(DATA, seed=0, device="cpu", **none) for none in ({}, {"outcome": None}))
    assert one.evidence is None
    assert one.expertise.ratings.by.outcomes == 0
    assert alike(one, other)


def test_lower_is_better_for_negated_outcomes():
    """Negation is exact, so that the bits are the same."""
    higher = discrete_method().fit(DATA, seed=0, device="cpu", outcome=2 * SUCCESS)
    lower = discrete_method().fit(DATA, seed=0, device="cpu", outcome=-2 * SUCCESS, better="lower")
    assert alike(higher, lower)
    assert higher.evidence.weight == lower.evidence.weight


@pytest.mark.parametrize(
    "outcome",
    [
        [None if np.isnan(value) else bool(value) for value in SUCCESS],
        {key: value for key, value in zip(DATA.episode_keys.tolist(), SUCCESS, strict=True) if not np.isnan(value)},
        np.ma.masked_invalid(SUCCESS),
    ],
    ids=["None", "absent from a mapping", "masked"],
)
def test_a_missing_outcome_is_missing_however_it_is_written(outcome):
    np.testing.assert_array_equal(EpisodeOutcomes.of(outcome, None, DATA).values, SUCCESS)


def simulated_evidence(seed=0, people=12, episodes=6):
    random = np.random.default_rng(seed)
    skill = random.normal(size=people)
    values, owner = noisy(skill, episodes, 1.0, random)
    values[random.random(len(values)) < 0.3] = np.nan
    return values, owner, ratings(0.8 * skill + 0.5 * random.normal(size=people), 0.3)


@pytest.mark.parametrize(("factor", "shift"), [(1000.0, -3.0), (1e-6, 5.0), (-2.0, 0.0)])
def test_units_of_the_outcome_do_not_matter(factor, shift):
    values, owner, actions = simulated_evidence()
    one = combine_evidence(actions, outcomes(values), owner)
    better = "higher" if factor > 0 else "lower"
    other = combine_evidence(actions, outcomes(factor * values + shift, better), owner)
    np.testing.assert_allclose(one.evidence.both.shares, other.evidence.both.shares, atol=1e-7)
    np.testing.assert_allclose(one.weights, other.weights, rtol=1e-4)
    low, high = (one.evidence.table()[f"expected{end}"].to_numpy() * factor + shift for end in ("_low", "_high"))
    table = other.evidence.table()
    np.testing.assert_allclose(table["expected_low"].to_numpy(), np.minimum(low, high), rtol=1e-5, atol=1e-8)


def test_the_order_of_episodes_does_not_matter():
    values, owner, actions = simulated_evidence()
    order = np.random.default_rng(3).permutation(len(values))
    one, other = (
        combine_evidence(actions, outcomes(values), owner),
        combine_evidence(actions, outcomes(values[order]), owner[order]),
    )
    np.testing.assert_allclose(one.evidence.both.shares, other.evidence.both.shares, atol=1e-9)
    np.testing.assert_allclose(one.weights[order], other.weights, rtol=1e-6)


def test_the_scale_of_expertise_is_that_of_the_actions():
    """Mean and standard deviation of logit expertise over demonstrators, up to the width of the grid."""
    values, owner, actions = simulated_evidence()
    found = combine_evidence(actions, outcomes(values), owner).evidence
    spread = [Covariate.of_shares(each.shares) for each in (found.actions, found.both)]
    np.testing.assert_allclose(spread[0].shift, spread[1].shift, atol=0.01)
    np.testing.assert_allclose(spread[0].scale, spread[1].scale, rtol=0.01)


# --- the model


def test_the_posterior_is_that_of_draws_from_the_prior_weighted_by_their_likelihood():
    """An independent oracle: importance sampling. Tolerances are four of its standard errors (p < 0.001 in all)."""
    mean, variance = np.array([1.0, -0.5, 0.3, 0.0]), np.array([0.1, 0.2, 0.3, np.inf])
    means = Means(np.array([5, 4, 3, 0]), mean, variance, 0.0, 1.0)
    actions = Covariate(np.array([1.2, -0.8, -0.2, 1.5]), np.array([0.1, 0.3, 0.2, 0.2]), 0.0, 1.0)
    found, own = skill_posterior(means, actions).moments()
    random, draws = np.random.default_rng(4), 2_000_000
    level, slope, spread = random.normal(size=(3, draws, 1)) * np.array([1.0, 0.5, 0.5])[:, None, None]
    x = actions.mean + actions.variance**0.5 * random.normal(size=(draws, 4))
    skill = level + slope * x + np.abs(spread) * random.normal(size=(draws, 4))
    weight = np.exp(-0.5 * ((skill - mean) ** 2 / variance).sum(1))
    weight /= weight.sum()
    effective = 1 / (weight**2).sum()
    expected = weight @ skill
    expected_variance = weight @ (skill - expected) ** 2
    np.testing.assert_array_less(np.abs(found - expected), 4 * np.sqrt(expected_variance / effective))
    np.testing.assert_array_less(np.abs(own - expected_variance), 4 * expected_variance * np.sqrt(4 / effective))
    np.testing.assert_allclose(
        skill_posterior(means, actions).slope_interval(0.95)[0], weight @ slope[:, 0], atol=4 * 0.5 / effective**0.5
    )


@pytest.mark.parametrize("binary", [False, True])
def test_intervals_of_the_expected_outcome_cover_the_truth(binary):
    """200 populations of 10, three of whom have no outcomes. The standard error of the coverage over populations is
    0.6%, so that chance alone leads out of 92% to 98% with a probability below 1e-5."""
    random, inside = np.random.default_rng(5), []
    for _ in range(200):
        x = random.normal(size=10)
        skill = 0.3 * random.normal() + 0.4 * random.normal() * x + 0.3 * abs(random.normal()) * random.normal(size=10)
        if binary:
            skill = np.clip(0.5 + 0.3 * skill, 0.02, 0.98)
        rated = np.repeat(np.arange(7), random.integers(4, 15, size=7))
        owner = np.append(rated, np.arange(7, 10))
        draws = random.random(len(owner)) < skill[owner] if binary else skill[owner] + random.normal(size=len(owner))
        values = np.where(owner < 7, draws, np.nan)
        if np.nanstd(values) == 0:
            continue
        actions = ratings(x + 0.3 * random.normal(size=10), 0.3)
        found = combine_evidence(actions, outcomes(values), owner).evidence
        _, low, high = found.expected_outcome(found.both, 0.95)
        inside.append((low <= skill) & (skill <= high))
    assert 0.92 < np.mean(inside) < 0.98


def test_actions_that_mislead_are_outvoted_and_the_disagreement_is_named():
    random = np.random.default_rng(6)
    skill = np.linspace(-1.5, 1.5, 10)
    values, owner = noisy(skill, 12, 0.7, random)
    found = combine_evidence(ratings(-skill, 0.2), outcomes(values), owner).evidence
    assert [row["demonstrator"] for row in found.table().to_pylist()] == [f"d{k}" for k in range(9, -1, -1)]
    assert found.weight.high < 0
    assert found.disagrees[[0, 1, 8, 9]].all()
    assert "d9" in found.sentence()
    agreeing = combine_evidence(ratings(skill, 0.2), outcomes(values), owner).evidence
    assert not agreeing.disagrees.any()
    assert agreeing.weight.low > 0


def test_actions_without_a_reliable_order_do_not_disagree():
    skill = np.linspace(-1.5, 1.5, 10)
    values, owner = noisy(skill, 12, 0.7, np.random.default_rng(6))
    found = combine_evidence(ratings(-skill, 0.2, reliability=0.3), outcomes(values), owner).evidence
    assert not found.disagrees.any()
    assert len(found.both.groups()) > 1


def test_outcomes_of_a_few_calibrate_the_others():
    """30 demonstrators, 8 of whom have outcomes; the others are placed by their actions."""
    random = np.random.default_rng(7)
    skill = random.normal(size=30)
    values, owner = noisy(skill, 8, 0.7, random)
    values[owner >= 8] = np.nan
    for sign in (1, -1):
        found = combine_evidence(ratings(sign * skill + 0.2 * random.normal(size=30), 0.2), outcomes(values), owner)
        mean, low, high = found.evidence.expected_outcome(found.evidence.both, 0.95)
        assert np.corrcoef(mean[8:], skill[8:])[0, 1] > 0.9
        assert (high - low)[8:].mean() > (high - low)[:8].mean()
        assert found.evidence.table()["outcome"].null_count == 22


def test_actions_that_say_nothing_get_no_weight():
    random = np.random.default_rng(8)
    skill = random.normal(size=40)
    values, owner = noisy(skill, 8, 0.7, random)
    values[owner >= 30] = np.nan
    found = combine_evidence(ratings(random.normal(size=40), 0.2), outcomes(values), owner).evidence
    assert found.weight.low < 0 < found.weight.high
    assert found.weight.explained < 0.2
    mean, _, _ = found.expected_outcome(found.both, 0.95)
    assert np.ptp(mean[30:]) < 0.3 * np.ptp(mean[:30])


def test_the_weight_of_outcomes_grows_with_their_number():
    skill = np.linspace(-1, 1, 6)
    actions = ratings(-skill, 0.2)
    share = []
    for episodes in (1, 4, 64):
        owner = np.repeat(np.arange(6), episodes)
        values = skill[owner] + np.tile([-1.0, 1.0], len(owner))[: len(owner)]
        found = combine_evidence(actions, outcomes(values), owner).evidence
        _, low, high = found.expected_outcome(found.outcomes, 0.95)
        share.append(float((high - low).mean()))
    assert share[0] > share[1] > share[2]


# --- weights of episodes


@pytest.mark.parametrize("share", [0.1, LEAST_SHARE, 0.9])
def test_advantage_weights_keep_the_stated_effective_share(share):
    advantage = np.random.default_rng(9).normal(size=300)
    weights, temperature, found = advantage_weights(advantage, share)
    np.testing.assert_allclose([found, effective_share(weights), weights.mean()], [share, share, 1.0], rtol=1e-6)
    assert (np.diff(weights[np.argsort(advantage)]) >= 0).all()
    slope = np.polyfit(advantage, np.log(weights), 1)[0]
    np.testing.assert_allclose(slope, 1 / temperature, rtol=1e-6)


def test_weights_of_a_common_success_leave_out_failures():
    weights, _, share = advantage_weights(np.repeat([-1.5, 0.7], [30, 70]))
    np.testing.assert_allclose(share, 0.7, rtol=1e-6)
    assert weights[:30].max() < 1e-6 * weights[30:].min()


def test_the_fit_learns_most_from_good_episodes_and_own_weights_multiply(discrete):
    weights = discrete.ensemble.episode_weight[0]
    known = ~np.isnan(SUCCESS)
    assert weights[known][SUCCESS[known] == 1].min() > weights[known][SUCCESS[known] == 0].max()
    given = np.random.default_rng(10).uniform(0.5, 2.0, size=DATA.episode_count)
    both = discrete_method().fit(DATA, seed=0, device="cpu", outcome=SUCCESS, weights=given)
    ratio = both.ensemble.episode_weight[0] / (weights * given)
    np.testing.assert_allclose(ratio[known], ratio[known][0], rtol=1e-6)


def test_outcomes_of_episodes_without_weight_do_not_count():
    weights = (np.arange(DATA.episode_count) >= 5).astype(float)
    found = discrete_method(steps=20).fit(DATA, seed=0, device="cpu", outcome=SUCCESS, weights=weights)
    assert found.evidence.rated.sum() == (~np.isnan(SUCCESS[5:])).sum()


def test_what_explains_an_order_by_actions_is_not_said_of_one_by_outcomes():
    skill = np.linspace(-1, 1, 6)
    values, owner = noisy(skill, 5, 0.5, np.random.default_rng(0))
    actions = ratings(skill, 0.2, explained="expertise is mostly explained by duration")
    found = combine_evidence(actions, outcomes(values), owner).evidence
    assert found.both.by.explained == ""
    assert found.actions.by.explained


# --- fits


def test_ratings_table_ranking_and_expertise_are_the_combined_ones(discrete, continuous):
    for fitted in (discrete, continuous):
        own = fitted.expertise.by_demonstrator()
        table = {row["demonstrator"]: row for row in fitted.evidence.table().to_pylist()}
        assert own == pytest.approx({name: row["both"] for name, row in table.items()})
        assert [name for name, _ in fitted.expertise.ranking()] == list(table)
        assert fitted.evidence.both.shares is fitted.expertise.ratings.shares
        assert fitted.evidence.actions.by.outcomes == 0 < fitted.expertise.ratings.by.outcomes
        assert "outcomes" in fitted.expertise.ratings.by.identification


def test_skilled_demonstrators_come_first(discrete, continuous):
    assert [name for name, _ in continuous.expertise.ranking()] == [f"operator {k}" for k in range(6)]
    assert discrete.expertise.ranking()[0][0] == "person 0"


def test_evidence_follows_new_names_and_pseudonyms(discrete):
    names = {f"person {k}": f"x{k}" for k in range(5)}
    found = discrete.renamed(names).evidence
    assert set(found.table()["demonstrator"].to_pylist()) == set(names.values())
    assert "person 0" not in discrete.anonymise().evidence.sentence().replace("person 01", "")


def test_a_report_says_what_each_says_alone(discrete, tmp_path):
    discrete.save(tmp_path / "run")
    page = ileed.report(tmp_path / "run").read_text()
    assert "By actions alone" in page


def test_curation_keeps_the_ratings_by_outcomes(discrete):
    """Demonstrators whose outcomes contradict their actions are scored lower, also with cross-fitting."""
    failing = np.where(np.arange(40) % 5 == 0, 0.0, 1.0) - 0.01 * np.arange(40)
    other = discrete_method().fit(DATA, seed=0, device="cpu", outcome=failing)
    for options in ({}, {"cross_fit": True}):
        scores = [ileed.curate(each, DATA, **options).scores["expertise"].estimate for each in (discrete, other)]
        own = [each[DATA.episode_demonstrator == 0].mean() / each.mean() for each in scores]
        assert own[0] > own[1]


def test_the_command_takes_an_outcome(tmp_path, capsys):
    data = replace(DATA, skills={"grade": np.arange(40)[DATA.episode] % 5})
    ileed.write_parquet(data, tmp_path / "data.parquet")
    options = [
        "--out",
        str(tmp_path / "run"),
        "--steps",
        "20",
        "--restarts",
        "2",
        "--folds",
        "2",
        "--check-width",
        "False",
    ]
    command = ["fit", str(tmp_path / "data.parquet"), *options, "--outcome", "grade", "--better", "lower", "--json"]
    assert run(command) == 0
    found = json.loads(capsys.readouterr().out)
    loaded = ileed.load(tmp_path / "run").evidence
    assert (loaded.settings.outcome, loaded.settings.better) == ("grade", "lower")
    assert found["evidence"]["table"] == loaded.table().to_pylist()


# --- saving


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
def test_evidence_is_saved_and_loaded_to_the_same_bits(kind, request, tmp_path):
    fitted = request.getfixturevalue(kind)
    fitted.save(tmp_path / "run")
    loaded = ileed.load(tmp_path / "run")
    assert loaded.evidence.table().equals(fitted.evidence.table())
    assert loaded.evidence.sentence() == fitted.evidence.sentence()
    assert loaded.evidence.settings == fitted.evidence.settings
    assert loaded.expertise.table().equals(fitted.expertise.table())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("explained", 2.0),
        ("better", "shorter"),
        ("factor", 0.0),
        ("temperature", -1.0),
        ("slope", 9.0),
        ("level", "x"),
        ("scale", -1.0),
        ("within", 0.0),
    ],
)
def test_damaged_settings_of_evidence_are_refused(discrete, tmp_path, name, value):
    discrete.save(tmp_path / "run")
    file = tmp_path / "run" / "settings.json"
    settings = json.loads(file.read_text())
    settings["evidence"][name] = value
    file.write_text(json.dumps(settings))
    with pytest.raises(ileed.IleedError):
        ileed.load(tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("evidence.actions", lambda each: 2 * each),
        ("evidence.outcomes", lambda each: each[:, 1:].contiguous()),
        ("evidence.rated", lambda each: each + 1),
        ("evidence.mean_outcome", lambda each: each / 0),
        ("evidence.variance", lambda each: -each),
        ("evidence.rated", None),
        ("evidence.more", lambda each: torch.zeros(1)),
    ],
)
def test_damaged_tensors_of_evidence_are_refused(discrete, tmp_path, name, damage):
    discrete.save(tmp_path / "run")
    (file,) = (tmp_path / "run").glob("*.safetensors")
    tensors = load_file(file)
    old = tensors.pop(name, None)
    save_file(tensors if damage is None else tensors | {name: damage(old)}, file)
    with pytest.raises(ileed.IleedError):
        ileed.load(tmp_path / "run")


# --- what can be passed


def rewarded(**columns):
    rewards = np.zeros(len(DATA))
    rewards[DATA.episode_bounds[1:] - 1] = np.arange(40) % 3 - 1
    return replace(DATA, rewards=rewards, **columns)


def test_named_outcomes_are_read_from_the_data():
    data = rewarded(skills={"grade": (DATA.episode % 4), "word": np.array(["", "True", "0.5"])[DATA.episode % 3]})
    assert EpisodeOutcomes.of("success", None, data).values.tolist() == [float(k % 3 == 2) for k in range(40)]
    assert EpisodeOutcomes.of("reward", None, data).values.tolist() == [k % 3 - 1 for k in range(40)]
    assert EpisodeOutcomes.of("grade", None, data).values.tolist() == [k % 4 for k in range(40)]
    words = EpisodeOutcomes.of("word", None, data).values
    np.testing.assert_array_equal(words, np.array([np.nan, 1.0, 0.5])[np.arange(40) % 3])
    short = data.select((data.episode != 0) | (np.arange(len(data)) < 5))
    assert EpisodeOutcomes.of("duration", "lower", short).values.tolist() == [5] + 39 * [25]
    assert EpisodeOutcomes.of("duration", "lower", replace(short, fps=10)).values[0] == 0.5


@pytest.mark.parametrize(
    ("outcome", "better", "says"),
    [
        (SUCCESS[:-1], None, r"shape \(39,\)"),
        (np.full(40, np.nan), None, "no value"),
        (np.ones(40), None, "leave it out"),
        (np.where(np.arange(40) == 3, np.inf, SUCCESS), None, "infinite"),
        (["good"] * 40, None, "outcome is"),
        (3.0, None, r"shape \(\)"),
        ({"nobody": 1.0}, None, "nobody"),
        ("success", None, "rewards"),
        ("reward", None, "rewards"),
        ("duration", None, "better"),
        ("sucess", None, "success"),
        (SUCCESS, "shorter", "better"),
        (None, "lower", "outcome"),
    ],
)
def test_what_cannot_be_an_outcome_is_refused(outcome, better, says):
    with pytest.raises(ileed.SettingsError, match=says):
        discrete_method().fit(DATA, seed=0, device="cpu", outcome=outcome, better=better)


def test_a_column_that_changes_within_episodes_is_no_outcome():
    data = replace(DATA, skills={"phase": np.arange(len(DATA)) % 2, "word": np.array(["bad"] * len(DATA))})
    for column, says in (("phase", "changes within"), ("word", "numbers")):
        with pytest.raises(ileed.SettingsError, match=says):
            EpisodeOutcomes.of(column, None, data)


@pytest.mark.parametrize("settings", [{"folds": 0}, {"expertise": ileed.Perfect()}], ids=str)
def test_a_fit_without_ratings_refuses_outcomes(settings):
    with refused("outcome-without-ratings"):
        discrete_method(**settings).fit(DATA, seed=0, device="cpu", outcome=SUCCESS)


def test_restarts_with_weights_of_their_own_refuse_outcomes():
    with pytest.raises(ileed.SettingsError, match="one weight for each episode"):
        discrete_method().fit(DATA, seed=0, device="cpu", outcome=SUCCESS, weights=np.ones((2, 40)))
