"""Outcomes of new data: newcomers on the scale of a fit with outcomes, and demonstrators by label of a column."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import spearmanr
from test_outcomes import DATA, SKILL, SUCCESS, discrete_method, noisy, outcomes, ratings, slipping
from test_third_party import simulated

import ileed
from ileed.cli import run
from ileed.rating.outcomes import (
    Covariate,
    Means,
    combine_evidence,
    newcomer_posteriors,
    place_newcomers,
    skill_posterior,
)

NEW = replace(simulated(slipping, people=5, episodes=3, seed=7), names=tuple(f"new {k}" for k in range(5)))
NEW_SUCCESS = (np.random.default_rng(11).random(15) < SKILL[np.arange(15) % 5]).astype(float)
NEW_SUCCESS[::5] = np.nan  # new 0 has no outcomes


@pytest.fixture(scope="module")
def fitted():
    return discrete_method().fit(DATA, seed=0, device="cpu", outcome=SUCCESS)


@pytest.fixture(scope="module")
def plain():
    return discrete_method().fit(DATA, seed=0, device="cpu")


# --- newcomers


def known_people(seed=0, people=12):
    """Evidence of a fit, and the truth: skill = 0.8 x + noise, where actions know x with an error of 0.3."""
    random = np.random.default_rng(seed)
    x = random.normal(size=people)
    skill = 0.8 * x + 0.3 * random.normal(size=people)
    values, owner = noisy(skill, 8, 1.0, random)
    return combine_evidence(ratings(x + 0.3 * random.normal(size=people), 0.3), outcomes(values), owner).evidence


def test_a_newcomer_is_placed_as_one_more_demonstrator_of_the_fit_would_be():
    """The grids of b and tau differ, and their error with them: by less than 0.002 of a standard deviation here."""
    fit = known_people()
    known, actions = fit.means, Covariate.of_shares(fit.actions.shares)
    for rated, mean, variance in ((0, 0.0, np.inf), (3, -1.2, 0.3), (3, 2.5, 0.05)):
        own = Means(np.array([rated]), np.array([mean]), np.array([variance]), known.shift, known.scale)
        x = Covariate(np.array([0.9]), np.array([0.1]), actions.shift, actions.scale)
        for covariate, new in ((actions, x), (None, None)):
            joined = Means(
                *(np.append(*pair) for pair in zip(known[:3], own[:3], strict=True)), known.shift, known.scale
            )
            both = covariate and Covariate(np.append(actions.mean, 0.9), np.append(actions.variance, 0.1), 0.0, 1.0)
            expected = [each[-1] for each in skill_posterior(joined, both).moments()]
            (found,) = newcomer_posteriors(known, covariate, own, new)
            np.testing.assert_allclose(np.ravel(found.moments()), expected, atol=2e-3)


def test_other_newcomers_do_not_matter():
    fit, random = known_people(), np.random.default_rng(12)
    actions, owner = ratings(random.normal(size=6), 0.3), np.repeat(np.arange(6), 2)
    values = random.normal(size=12)
    every = place_newcomers(fit, actions, outcomes(values), owner)
    for one in range(6):
        own = replace(actions, names=("x",), **{n: getattr(actions, n)[[one]] for n in ("steps", "episodes", "shares")})
        found = place_newcomers(fit, own, outcomes(values[owner == one]), np.zeros(2, dtype=int))
        np.testing.assert_array_equal(found.shares[0], every.shares[one])


@pytest.mark.campaign
@pytest.mark.parametrize("binary", [False, True])
def test_intervals_of_newcomers_cover_the_truth(binary):
    """200 populations of 8 and 4 newcomers, two of them without outcomes. The standard error of the coverage over
    populations is at most 0.9%, so that chance alone leads out of 92% to 98% with a probability below 0.002."""
    random, inside = np.random.default_rng(13), []
    for _ in range(200):
        x = random.normal(size=12)
        skill = 0.3 * random.normal() + 0.4 * random.normal() * x + 0.3 * abs(random.normal()) * random.normal(size=12)
        if binary:
            skill = np.clip(0.5 + 0.3 * skill, 0.02, 0.98)
        owner = np.repeat(np.arange(12), random.integers(4, 12, size=12))
        values = random.random(len(owner)) < skill[owner] if binary else skill[owner] + random.normal(size=len(owner))
        values = np.where(owner < 10, values, np.nan)
        seen = x + 0.3 * random.normal(size=12)
        ours = owner < 8
        if np.ptp(values[ours]) == 0:
            continue
        fit = combine_evidence(ratings(seen[:8], 0.3), outcomes(values[ours]), owner[ours]).evidence
        found = place_newcomers(fit, ratings(seen[8:], 0.3), outcomes(values[~ours]), owner[~ours] - 8).evidence
        _, low, high = found.expected_outcome(found.both, 0.95)
        inside.append((low <= skill[8:]) & (skill[8:] <= high))
    assert 0.92 < np.mean(inside) < 0.98


@pytest.mark.parametrize(("factor", "shift"), [(1000.0, -3.0), (-2.0, 0.0)])
def test_units_of_the_outcome_do_not_matter_to_newcomers(factor, shift):
    random, better = np.random.default_rng(14), "higher" if factor > 0 else "lower"
    x = random.normal(size=12)
    values, owner = noisy(0.8 * x, 8, 1.0, random)
    new, whose = noisy(np.array([1.0, -1.0]), 3, 1.0, random)
    found = []
    for a, b, direction in ((1.0, 0.0, "higher"), (factor, shift, better)):
        fit = combine_evidence(ratings(x, 0.3), outcomes(a * values + b, direction), owner).evidence
        found.append(place_newcomers(fit, ratings([0.5, 0.1], 0.3), outcomes(a * new + b, direction), whose))
    np.testing.assert_allclose(found[0].shares, found[1].shares, atol=1e-6)
    mean = found[0].evidence.mean_outcome
    np.testing.assert_allclose(found[1].evidence.mean_outcome, factor * mean + shift)


def test_newcomers_without_outcomes_follow_the_relation_of_the_fit():
    """Where actions mislead, those who act best are placed lowest."""
    skill = np.linspace(-1.5, 1.5, 12)
    values, owner = noisy(skill, 12, 0.7, np.random.default_rng(15))
    for sign in (1, -1):
        fit = combine_evidence(ratings(sign * skill, 0.2), outcomes(values), owner).evidence
        found = place_newcomers(fit, ratings([1.0, -1.0], 0.2), None, np.array([0, 1]))
        best, worst = found.best.expertise
        assert sign * (best - worst) > 0
        assert found.evidence.rated.tolist() == [0, 0]
        assert "there are no outcomes" in found.evidence.sentence()


def test_newcomers_are_on_the_scale_of_the_fit(fitted):
    """The demonstrators of the fit, assessed with the outcomes of the fit, are where the fit puts them."""
    found = fitted.assess(DATA, outcome=SUCCESS)
    own, again = (each.by_demonstrator() for each in (fitted.expertise, found))
    assert spearmanr(list(own.values()), [again[name] for name in own])[0] > 0.85
    assert found.reference == pytest.approx(fitted.expertise.ratings.best.expertise.mean())
    assert found.table()["rated"].to_pylist() == [
        dict(zip(found.names, found.evidence.rated.tolist(), strict=True))[name]
        for name in found.table()["demonstrator"].to_pylist()
    ]
    np.testing.assert_array_equal(found.evidence.rated, fitted.evidence.rated)
    np.testing.assert_allclose(found.evidence.mean_outcome, fitted.evidence.mean_outcome)
    assert found.evidence.weight == fitted.evidence.weight


def test_outcomes_of_newcomers_move_only_those_who_have_them(fitted):
    without, given = fitted.assess(NEW), fitted.assess(NEW, outcome=NEW_SUCCESS)
    np.testing.assert_array_equal(without.evidence.actions.shares, given.evidence.actions.shares)
    np.testing.assert_array_equal(without.shares[0], given.shares[0])
    assert (np.abs(without.best.expertise - given.best.expertise)[1:] > 0).all()
    assert given.evidence.rated.tolist() == [0, 3, 3, 3, 3]
    better = fitted.assess(NEW, outcome=np.where(np.arange(15) % 5 == 4, 1.0, NEW_SUCCESS))
    assert better["new 4"].expertise > given["new 4"].expertise


def test_outcomes_of_newcomers_may_all_be_equal(fitted):
    good, bad = (fitted.assess(NEW, outcome=np.full(15, value)).best.expertise for value in (1.0, 0.0))
    assert (good > bad).all()


def test_a_loaded_fit_places_newcomers_with_the_same_bits(fitted, tmp_path):
    fitted.save(tmp_path / "run")
    loaded = ileed.load(tmp_path / "run")
    for own in ({}, {"outcome": NEW_SUCCESS}):
        one, other = (each.assess(NEW, **own) for each in (fitted, loaded))
        assert one.table().equals(other.table())
        np.testing.assert_array_equal(one.shares, other.shares)


def test_the_command_rates_newcomers_by_outcomes(fitted, tmp_path, capsys):
    fitted.save(tmp_path / "run")
    words = np.where(np.isnan(NEW_SUCCESS), "", NEW_SUCCESS.astype(str))
    ileed.write_parquet(replace(NEW, skills={"won": words[NEW.episode]}), tmp_path / "new.parquet")
    command = ["rate", str(tmp_path / "run"), str(tmp_path / "new.parquet"), "--outcome", "won"]
    assert run([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    expected = fitted.assess(NEW, outcome=NEW_SUCCESS)
    assert found["table"] == expected.table().to_pylist()
    assert found["evidence"]["table"] == expected.evidence.table().to_pylist()
    assert run(command) == 0
    assert "By actions alone" in capsys.readouterr().out.replace("by actions", "By actions")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"outcome": NEW_SUCCESS, "better": "lower"}, "the fit has 'higher'"),
        ({"better": "higher"}, "pass outcome="),
        ({"outcome": NEW_SUCCESS + 0.5}, "successes and failures"),
        ({"outcome": np.full(15, np.nan)}, "no value"),
        ({"outcome": NEW_SUCCESS[1:]}, r"shape \(14,\)"),
        ({"outcome": {"nowhere": 1.0}}, "nowhere"),
        ({"outcome": NEW_SUCCESS, "by": "episode"}, "episode"),
    ],
)
def test_outcomes_of_newcomers_that_do_not_fit_are_refused(fitted, options, says):
    with pytest.raises(ileed.SettingsError, match=says):
        fitted.assess(NEW, **options)


def test_a_fit_without_outcomes_refuses_those_of_newcomers(plain):
    with pytest.raises(ileed.SettingsError, match="fit with outcome="):
        plain.assess(NEW, outcome=NEW_SUCCESS)
    assert plain.assess(NEW).evidence is None


# --- outcomes by label

STEPS = 25
PLACE = np.array(["bend", "hill", "straight"])
SEGMENT = np.arange(STEPS) // 9
TIMES = np.random.default_rng(16).normal([10.0, 100.0, 1.0], [1.0, 20.0, 0.05], size=(DATA.episode_count, 3))
TRACK = replace(DATA, skills={"place": np.tile(PLACE[SEGMENT], DATA.episode_count)})


def by_step(times):
    return times[:, SEGMENT].ravel()


def by_key(times, names=PLACE):
    keys = DATA.episode_keys.tolist()
    return {(keys[e], names[k]): times[e, k] for e in range(len(times)) for k in range(3) if not np.isnan(times[e, k])}


def assessed(plain, times, data=TRACK, **options):
    return plain.assess(data, by="place", outcome=by_step(times), better="lower", **options)


def test_outcomes_by_label_are_the_same_however_they_are_written(plain):
    times = np.round(TIMES, 3)
    times[3, 1] = times[7] = np.nan
    expected = assessed(plain, times).table()
    written = np.where(np.isnan(by_step(times)), "", np.char.mod("%.3f", by_step(times)))
    data = replace(TRACK, skills={**TRACK.skills, "time": written})
    for outcome in ("time", by_key(times)):
        assert plain.assess(data, by="place", outcome=outcome, better="lower").table().equals(expected)


def test_named_outcomes_are_of_the_steps_of_a_label(plain):
    lengths = np.where(TRACK.episode % 5 < 2, SEGMENT[np.arange(len(TRACK)) % STEPS] > 0, 1).astype(int)
    data = replace(TRACK, skills={"place": np.array(["other", "main"])[lengths]}, rewards=1.0 * lengths)
    count = np.bincount(2 * data.episode + lengths, minlength=2 * data.episode_count)[2 * data.episode + lengths]
    one = plain.assess(data, by="place", outcome="duration", better="higher")
    other = plain.assess(data, by="place", outcome=count)
    assert one.table().equals(other.table())
    reward = plain.assess(data, by="place", outcome="reward").segments.labels["main"]
    np.testing.assert_array_equal(reward.mean_outcome, one.segments.labels["main"].mean_outcome)


def test_each_label_has_its_own_units(plain):
    """Outcomes of one label in other units change nothing, there or elsewhere."""
    expected = assessed(plain, TIMES)
    found = assessed(plain, TIMES * [60.0, 1.0, 1e-3] + [5.0, 0.0, 7.0])
    np.testing.assert_allclose(found.shares, expected.shares, atol=1e-6)
    other = TIMES.copy()
    other[:, 1] = np.random.default_rng(17).permutation(TIMES[:, 1])
    changed = np.abs(assessed(plain, other).shares - expected.shares).max(1) > 1e-6
    assert set(np.array(expected.parts["place"])[changed].tolist()) == {"hill"}


def test_the_order_of_labels_does_not_matter(plain):
    names = {"bend": "z", "hill": "y", "straight": "x"}
    data = replace(TRACK, skills={"place": np.array([names[each] for each in TRACK.skills["place"].tolist()])})
    one, other = assessed(plain, TIMES), assessed(plain, TIMES, data)
    for person in DATA.names:
        for label, renamed in names.items():
            np.testing.assert_allclose(one[f"{person}, place {label}"], other[f"{person}, place {renamed}"], atol=1e-9)


def test_actions_alone_decide_where_fewer_than_three_demonstrators_have_outcomes(plain):
    times = TIMES.copy()
    times[DATA.episode_demonstrator > 1, 0] = np.nan
    times[:, 2] = 7.0
    alone, found = plain.assess(TRACK, by="place"), assessed(plain, times)
    kept = np.array(found.parts["place"]) != "hill"
    np.testing.assert_array_equal(found.shares[kept], alone.shares[kept])
    assert (np.abs(found.shares - alone.shares).max(1) > 0)[~kept].all()
    rows = {(row["demonstrator"], row["place"]): row for row in found.table().to_pylist()}
    assert {place for (_, place), row in rows.items() if row["combined"]} == {"hill"}
    assert [rows[name, "bend"]["rated"] for name in DATA.names] == [8, 8, 0, 0, 0]
    assert (
        set(found.segments.table()["place"].to_pylist())
        == {"hill"}
        == set(found.segments.weights()["place"].to_pylist())
    )
    np.testing.assert_array_equal(found.segments.actions.shares, alone.shares)
    nothing = np.full_like(times, np.nan)
    nothing[0] = times[0]
    np.testing.assert_array_equal(assessed(plain, nothing).shares, alone.shares)
    assert assessed(plain, nothing).segments.table().num_rows == 0


def test_outcomes_by_label_find_who_is_good_where(plain):
    """Skill at each label is independent of actions; outcomes of 8 episodes with a reliability of 0.9 find it."""
    random = np.random.default_rng(18)
    skill = random.normal(size=(5, 3))
    times = -skill[DATA.episode_demonstrator] + random.normal(size=TIMES.shape)
    found = assessed(plain, times)
    for k, label in enumerate(PLACE):
        own = [found[f"{name}, place {label}"].expertise for name in DATA.names]
        _, low, high = found.segments.labels[label].expected_outcome(found.segments.labels[label].both, 0.95)
        assert spearmanr(own, skill[:, k])[0] > 0.6
        assert ((low < -skill[:, k]) & (-skill[:, k] < high)).sum() >= 4  # of 5, each with a probability of 0.95


@pytest.mark.parametrize("left_out", [0, 4])
def test_a_demonstrator_without_outcomes_at_a_label_follows_their_actions_there(plain, left_out):
    """Outcomes go with actions: the best demonstrator is placed above the others, the worst below them."""
    alone = plain.assess(TRACK, by="place")
    level = np.array([alone[f"{name}, place hill"].expertise for name in DATA.names])
    times = TIMES.copy()
    times[:, 1] = -level[DATA.episode_demonstrator] + 0.05 * np.random.default_rng(19).normal(size=len(times))
    times[DATA.episode_demonstrator == left_out, 1] = np.nan
    found = assessed(plain, times).segments.labels["hill"]
    assert found.rated.tolist() == [0 if k == left_out else 8 for k in range(5)]
    mean, low, high = found.expected_outcome(found.both, 0.95)
    others = np.delete(np.arange(5), left_out)
    assert (mean[left_out] < mean[others].mean()) == (left_out == 0)
    assert (high - low)[left_out] > (high - low)[others].max()


def test_labels_are_rated_by_outcomes_whether_or_not_the_fit_had_some(fitted):
    found = assessed(fitted, TIMES)
    assert found.segments.combined.all()
    assert fitted.assess(TRACK, by="place").segments is None


@pytest.mark.parametrize(
    ("outcome", "says"),
    [
        (np.zeros(DATA.episode_count), "steps"),
        (np.arange(len(DATA)), "changes within"),
        ({(0, "valley"): 1.0}, "valley"),
        ({0: 1.0}, "pairs"),
        (np.full(len(DATA), np.nan), "no value"),
        ("tme", "no column"),
    ],
)
def test_outcomes_by_label_that_cannot_be_are_refused(plain, outcome, says):
    with pytest.raises(ileed.SettingsError, match=says):
        plain.assess(TRACK, by="place", outcome=outcome)
