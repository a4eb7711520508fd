"""Laps of a racing simulator: what is read of them, how scores compare with lap times, policies, and the page."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.stats import rankdata, spearmanr

from ileed import Constant, DemonstrationError, Ileed, MixtureMLP, SettingsError
from ileed_lab.comparison import Records
from ileed_lab.grid import cells
from ileed_lab.outcome_weights import outcome_weights
from ileed_lab.people.racing import found, measures
from ileed_lab.people.racing.experiment import QUALITIES, Racing, measure_scores
from ileed_lab.people.racing.figures import drivers_figure
from ileed_lab.people.racing.found import SCORES, FoundPolicies
from ileed_lab.people.racing.laps import AI_DRIVER, SEGMENTS, full_throttle, lap_times, racing_laps
from ileed_lab.people.racing.measures import lap_measures, partial_rank_correlation, segment_measures, simple_measure
from ileed_lab.people.racing.page import operators_page
from ileed_lab.people.racing.policies import (
    ADVANTAGE,
    RULES,
    CuratedTraining,
    PlainTraining,
    RacingPolicies,
    fastest_drivers,
    measure_policies,
    split_drivers,
)
from ileed_lab.people.racing.scoring import ExpertiseLearner, FullThrottle, QualityLearner, segment_numbers
from ileed_lab.quality import EpisodeLength
from ileed_lab.regression import Regression

REAL = Path(__file__).parents[2] / "shared" / "data" / "racing" / "laps.parquet"
real = pytest.mark.skipif(
    not REAL.exists(), reason="the laps are not here: those of doi:10.1371/journal.pone.0245320 with a row every 10 m"
)
ROUND = 4_000
SMALL = Ileed(policy=MixtureMLP(hidden=(4,), modes=1), expertise=Constant(), restarts=1, steps=60, folds=2)
BRIEF = Regression(hidden=(16,), steps=200)


def columns(drivers: int = 5, laps: int = 4) -> dict[str, np.ndarray]:
    """Laps of drivers d0 (fastest) to d4 and of the AI driver on a circle."""
    random, parts = np.random.default_rng(0), []
    for number in range((drivers + 1) * laps):
        who = number // laps
        distance = np.arange(0.0, ROUND + 10 * random.integers(1, 4), 10)
        angle = 2 * np.pi * distance / ROUND
        noise = 0.1 * (1 + who) * random.normal(size=(3, len(distance)))
        pace = 1 + 0.1 * who + 0.02 * random.random()
        parts.append(
            {
                "driver": np.full(len(distance), AI_DRIVER if who == drivers else f"d{who}"),
                "lap": np.full(len(distance), number),
                "distance": distance,
                "time": 3 + pace * (distance + 40 * np.sin(angle)) / 40,
                "speed": 144 / pace + np.cos(angle),
                "steer": np.cos(3 * angle) + noise[0],
                "throttle": np.clip(70 + 60 * np.sin(angle) - 5 * who + noise[1], 0, 100),
                "brake": np.clip(20 * np.cos(angle) + noise[2], 0, 100),
                "x": 600 * np.cos(angle),
                "z": 600 * np.sin(angle),
            }
        )
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def written(folder: Path, **changes: np.ndarray | None) -> Path:
    path = folder / "laps.parquet"
    chosen = {name: values for name, values in (columns() | changes).items() if values is not None}
    pq.write_table(pa.table(chosen), path)
    return path


@pytest.fixture
def laps(tmp_path):
    return racing_laps(written(tmp_path))


@pytest.fixture
def few_draws(monkeypatch):
    monkeypatch.setattr(measures, "DRAWS", 60)
    monkeypatch.setattr(found, "_DRAWS", 60)


# Laps


def test_an_episode_is_a_lap_and_the_ai_driver_is_apart(laps):
    assert laps.data.names == ("d0", "d1", "d2", "d3", "d4")
    assert laps.ai.names == (AI_DRIVER,)
    assert laps.driver.tolist() == sorted([*range(5)] * 4)
    assert len(laps.lap_time) == len(laps.segment_time) == laps.data.episode_count == 20
    assert len(laps.ai_lap_time) == laps.ai.episode_count == 4
    assert (np.diff(laps.median_lap_time) > 0).all()
    assert laps.lap_counts.tolist() == [4] * 5


def test_no_time_is_an_input_of_a_model(tmp_path, laps):
    slower = racing_laps(written(tmp_path, time=7 + 2 * columns()["time"]))
    assert slower.data.fingerprint == laps.data.fingerprint
    assert slower.ai.fingerprint == laps.ai.fingerprint
    np.testing.assert_allclose(slower.lap_time, 2 * laps.lap_time)


def test_observations_are_position_speed_and_fourier_pairs_and_controls_have_unit_variance(laps):
    seen = laps.data.observations
    assert seen.shape[1] == 11
    np.testing.assert_allclose(seen[:, 3::2] ** 2 + seen[:, 4::2] ** 2, 1, atol=1e-5)
    np.testing.assert_allclose(laps.data.actions.std(0), 1, atol=1e-4)
    own = columns()
    pedal = (own["throttle"] - own["brake"])[own["driver"] == AI_DRIVER]
    human = (own["throttle"] - own["brake"])[own["driver"] != AI_DRIVER]
    np.testing.assert_allclose(laps.ai.actions[:, 1], pedal / human.std(), atol=1e-5)  # units of the human drivers


def test_times_of_segments_add_up_and_labels_follow_the_distance(laps):
    np.testing.assert_allclose(laps.segment_time.sum(1), laps.lap_time)
    own = columns()
    pace = (own["time"][1] - 3) * 40 / (10 + 40 * np.sin(2 * np.pi * 10 / ROUND))
    start, end = (each + 40 * np.sin(2 * np.pi * each / ROUND) for each in (1725, 2050))
    assert laps.segment_time[0, 3] == pytest.approx(pace * (end - start) / 40, abs=1e-2)  # 1725 is between two rows
    first = laps.data.skills["segment"][laps.data.episode == 0]
    assert first[[0, 39, 40, 172, 173, -1]].tolist() == ["S01", "S01", "C01", "C04", "C05", "C14"]
    names = np.array(list(SEGMENTS))
    np.testing.assert_array_equal(names[segment_numbers(laps.data)], laps.data.skills["segment"])


def test_rewards_add_up_to_minus_the_lap_time(laps):
    np.testing.assert_allclose(lap_times(laps.rewarded), laps.lap_time)
    assert laps.data.rewards is None
    with pytest.raises(DemonstrationError, match="have no times"):
        lap_times(laps.data)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"steer": None}, "laps.parquet .*steer"),
        ({"driver": np.full(len(columns()["lap"]), "d0")}, "needs laps of human drivers and of AIDRIVER"),
        ({"lap": np.arange(len(columns()["lap"])) % 2}, "sort it by lap and distance"),
    ],
)
def test_damaged_files_are_refused(tmp_path, changes, sentence):
    with pytest.raises(DemonstrationError, match=sentence):
        racing_laps(written(tmp_path, **changes))


def test_a_file_that_is_no_table_and_a_missing_one_are_refused(tmp_path):
    (tmp_path / "laps.parquet").write_bytes(b"laps")
    with pytest.raises(DemonstrationError, match="cannot be read as laps"):
        racing_laps(tmp_path / "laps.parquet")
    with pytest.raises(SettingsError, match=r"pass --data laps\.parquet"):
        Racing().demonstrations({"demonstrators": "drivers"}, [0])
    with pytest.raises(SettingsError, match=r"people/racing-policies .* pass --data laps\.parquet"):
        RacingPolicies().demonstrations({"left_out": 1}, [0])


@real
def test_the_laps_that_we_have_are_those_that_are_described_without_38_copies():
    laps = racing_laps(REAL)
    assert (len(laps.data.names), laps.data.episode_count, len(laps.data)) == (13, 261, 120_179)
    assert laps.ai.episode_count == 60
    medians = dict(zip(laps.data.names, laps.median_lap_time.round(1).tolist(), strict=True))
    assert (min(medians, key=medians.get), medians["CS001"]) == ("CS001", 99.7)
    assert (max(medians, key=medians.get), medians["JC01"]) == ("JC01", 139.3)
    np.testing.assert_allclose(laps.segment_time.sum(1), laps.lap_time)
    assert (laps.segment_time > 0).all()


# Measures


def test_minus_the_time_is_a_perfect_score_and_the_time_the_worst(laps, few_draws):
    for sign in (1, -1):
        by_lap = lap_measures(-sign * laps.lap_time, -sign * laps.median_lap_time, laps, seed=0)
        by_segment = segment_measures(-sign * laps.median_segment_time, laps, seed=0)
        assert by_segment.pop("interaction")["correlation"] == 0  # the order of these drivers is the same everywhere
        values = {name: each["correlation"] for name, each in (by_lap | by_segment).items() if name != "each"}
        assert values == pytest.approx(dict.fromkeys(values, sign))
        assert simple_measure(-sign * laps.ai_lap_time, laps.ai_lap_time, seed=0)["correlation"] == pytest.approx(sign)


def test_correlations_are_those_of_scipy_and_lie_in_their_intervals(laps, few_draws):
    score = np.random.default_rng(1).normal(size=20)
    driver_score = np.random.default_rng(2).normal(size=5)
    got = lap_measures(score, driver_score, laps, seed=0)
    assert got["laps"]["correlation"] == pytest.approx(spearmanr(score, -laps.lap_time)[0])
    assert got["drivers"]["correlation"] == pytest.approx(spearmanr(driver_score, -laps.median_lap_time)[0])
    own = [spearmanr(score[laps.driver == each], -laps.lap_time[laps.driver == each])[0] for each in range(5)]
    assert got["within drivers"]["correlation"] == pytest.approx(np.mean(own))
    for each in got.values():
        assert -1 <= each["low"] <= each["correlation"] <= each["high"] <= 1


def test_a_score_of_drivers_alone_says_nothing_within_drivers(laps, few_draws):
    got = lap_measures(-laps.median_lap_time[laps.driver], -laps.median_lap_time, laps, seed=0)
    assert got["drivers"]["correlation"] == pytest.approx(1)
    assert got["within drivers"]["correlation"] == got["within drivers, centred"]["correlation"] == 0


def test_a_partial_correlation_is_that_of_the_residuals_of_ranks():
    random = np.random.default_rng(0)
    given = random.normal(size=40)
    one, other = given + random.normal(size=(2, 40))
    ranks = [rankdata(each) for each in (one, other, given)]
    design = np.stack([np.ones(40), ranks[2]], axis=1)
    left, right = (each - design @ np.linalg.lstsq(design, each, rcond=None)[0] for each in ranks[:2])
    assert partial_rank_correlation(one, other, given) == pytest.approx(np.corrcoef(left, right)[0, 1])
    assert partial_rank_correlation(given, other, given) == 0


def test_an_additive_score_has_no_interaction_and_one_driver_in_one_segment_has(laps, few_draws):
    time = laps.median_segment_time
    z_scores = (time - time.mean(0)) / time.std(0)
    additive = -z_scores.mean(1, keepdims=True) + np.arange(len(SEGMENTS))
    assert segment_measures(additive, laps, seed=0)["interaction, z-scores"]["correlation"] == pytest.approx(
        0, abs=1e-9
    )
    better = replace(laps)
    changed = time.copy()
    changed[4, 3] = time[0, 3] - 1  # the slowest driver is the fastest in one segment
    object.__setattr__(better, "median_segment_time", changed)
    score = np.tile(-laps.median_lap_time[:, None], len(SEGMENTS))
    assert segment_measures(score, better, seed=0)["interaction"]["correlation"] == pytest.approx(0, abs=1e-9)
    score[4, 3] = 0
    assert segment_measures(score, better, seed=0)["interaction"]["correlation"] > 0.9


# Scores


def test_a_quality_is_measured_for_drivers_laps_segments_and_the_ai_driver(laps, few_draws):
    got = QualityLearner(EpisodeLength()).fit(laps.data, seed=0)
    np.testing.assert_array_equal(got.laps, -laps.steps)
    np.testing.assert_allclose(got.drivers, -laps.steps.reshape(5, 4).mean(1))
    assert (got.segments[:, 0] == -40).all()  # 400 m
    measured = measure_scores(got, laps, seed=0)
    assert measured["drivers"][0].keys() == {"driver", "laps", "median_lap_time", "score"}
    assert len(measured["lap_scores"]) == 20


def test_the_share_of_full_throttle_is_that_of_the_throttle(laps):
    own = columns()
    human = own["driver"] != AI_DRIVER
    np.testing.assert_array_equal(full_throttle(laps.data), (own["throttle"] - own["brake"] >= 99.5)[human])
    np.testing.assert_allclose(FullThrottle().scores(laps.data, seed=0), laps.full_throttle_share)


@pytest.mark.parametrize("folds", [0, 2])
def test_expertise_is_measured_with_what_the_report_says(laps, few_draws, folds):
    got = ExpertiseLearner(replace(SMALL, folds=folds)).fit(laps.data, seed=0, device="cpu")
    assert got.segments.shape == (5, len(SEGMENTS))
    measured = measure_scores(got, laps, seed=0)
    assert ("sentence" in measured) == ("low" in measured["drivers"][0]) == bool(folds)
    for row in measured["drivers"] if folds else []:
        assert row["low"] <= row["score"] <= row["high"]
    assert got.seconds > 0


# Policies


def test_the_fastest_drivers_are_left_out_and_the_oracle_knows_the_next(laps):
    training, held_out = split_drivers(laps, 2)
    assert held_out.names == ("d0", "d1")
    assert training.names == ("d2", "d3", "d4")
    assert fastest_drivers(training).tolist() == [0, 1, 2]
    assert len(training) + len(held_out) == len(laps.data)


def test_a_regression_learns_and_steps_of_no_weight_do_not_matter(laps):
    data = laps.data
    weights = (data.demonstrator != 1).astype(float)
    spoilt = replace(data, actions=np.where(weights[:, None] > 0, data.actions, 99.0))
    got, same = (BRIEF.fit(each, seed=0, weights=weights).act(data.observations) for each in (data, spoilt))
    np.testing.assert_array_equal(got, same)
    assert np.square(got - data.actions)[weights > 0].mean() < 0.35  # of a variance of 1
    for wrong in (np.ones(3), -weights, 0 * weights):
        with pytest.raises(SettingsError, match="weights has shape"):
            BRIEF.fit(data, seed=0, weights=wrong)


def test_policies_are_measured_on_each_lap_that_was_left_out(laps):
    training, held_out = split_drivers(laps, 1)
    oracle = PlainTraining(BRIEF, fastest=1).fit(training, seed=0)
    weights = (training.demonstrator == 0).astype(float)
    np.testing.assert_array_equal(
        oracle.actors["trained"](held_out.observations),
        BRIEF.fit(training, seed=0, weights=weights).act(held_out.observations),
    )
    curated = CuratedTraining(SMALL, BRIEF).fit(training, seed=0)
    measured = measure_policies(curated, held_out)
    assert measured["errors"].keys() == {"own policy", *RULES}
    assert {len(each) for each in measured["errors"].values()} == {4}
    assert measured["kept"]["best half"] == pytest.approx(0.5, abs=0.01)


def test_a_fit_with_lap_times_also_trains_by_its_advantage_weights(laps):
    training, held_out = split_drivers(laps, 1)
    told = CuratedTraining(SMALL, BRIEF, is_told_times=True).fit(training, seed=0)
    assert measure_policies(told, held_out)["errors"].keys() == {"own policy", *RULES, ADVANTAGE}
    weights = outcome_weights(told.fitted, training, lap_times(training), "lower")
    assert np.corrcoef(np.log(weights), lap_times(training))[0, 1] == pytest.approx(-1)
    np.testing.assert_array_equal(
        told.actors[ADVANTAGE](held_out.observations),
        BRIEF.fit(training, seed=0, weights=weights[training.episode]).act(held_out.observations),
    )


# The page


def measured(value: float) -> dict[str, float]:
    return {"correlation": value, "low": value - 0.1, "high": value + 0.1}


def records(folder: Path) -> None:
    """A record of every cell; the default is the best of all scores, and each other a little worse than the last."""
    origin = {"commit": "abc", "date": "2026-01-01", "machine": "here", "device": "cpu"}
    names = ("drivers", "laps", "laps given length", "laps given full throttle")
    names = (*names, "within drivers", "within drivers, centred")
    for cell in cells(Racing()):
        value = 0.85 - 0.1 * list(SCORES).index(cell.method)
        trial = {
            "correlations": {name: measured(value) for name in names},
            "segments": {name: measured(value - 0.8) for name in ("mean", "interaction", "interaction, z-scores")}
            | {"each": dict.fromkeys(SEGMENTS, 0.25)},
            "ai": measured(0.31),
            "drivers": [
                {
                    "driver": f"d{k}",
                    "laps": 9,
                    "median_lap_time": 100.0 + k,
                    "score": 1 - k / 50,
                    "low": 0.5,
                    "high": 1.5,
                }
                for k in range(13)
            ],
            "sentence": "d0 is better than all others",
            "reliability": 0.77,
        }
        cell.write(folder, [{"trial": seed} | trial for seed in range(3)], [origin])
    for cell in cells(RacingPolicies()):
        errors = {"everyone": {"trained": 0.3}, "oracle": {"trained": 0.2}}
        errors = errors.get(cell.method, dict.fromkeys(("own policy", *RULES), 0.225))
        errors |= {ADVANTAGE: 0.21} if cell.method == "outcome" else {}
        trial = {
            "errors": {name: [each, each + 0.02, each - 0.02] for name, each in errors.items()},
            "driver": [0, 0, 0],
            "steps": [10, 10, 10],
            "kept": {},
        }
        cell.write(folder, [{"trial": number} | trial for number in range(4)], [origin])


def whole_page(results):
    page = operators_page(results)
    return page.text + page.details_text


def test_the_page_leads_with_the_conclusion_and_shows_every_score_and_policy(tmp_path, few_draws):
    records(tmp_path)
    page = whole_page(tmp_path)
    first = page.split("-->")[1]
    assert first.index("**0.85 [0.75, 0.95]**") < first.index("images/real-operators.svg") < first.index("##")
    assert '"d0 is better than all others." (split-half reliability 0.77)' in page
    for words in SCORES.values():
        assert f"| {words} |" in page
    assert "| `curate` with defaults | 0.225<br>-0.075 [-0.075, -0.075] |" in page
    assert "| 0.75 |" in page  # of the oracle's gain, 0.1
    assert "worse than everyone, by its interval, in 0 of 3 cases." in page
    assert "advantage weights reach 0.90 of the oracle's gain." in page
    assert "within 0.57 of zero" in page
    assert "For where each driver is good, beyond how good the driver is, expertise is not distinguishable" in page


def test_the_page_says_where_expertise_is_beaten(tmp_path, few_draws):
    records(tmp_path)
    (cell,) = cells(Racing(), methods=["random"])
    trials = cell.read(tmp_path).values()
    for trial in trials:
        trial["correlations"]["laps"] = measured(0.9)
    cell.write(tmp_path, trials, cell.origins(tmp_path))
    said = f"For the order of laps, 1 of the other {len(QUALITIES) + 1} scores have a higher correlation"
    assert said in whole_page(tmp_path)


def test_the_page_shows_policies_of_which_some_were_not_run(tmp_path, few_draws):
    records(tmp_path)
    for cell in cells(RacingPolicies()):
        if cell.method == "everyone" or cell.setting["left_out"] == 3:
            cell.path(tmp_path).unlink()
    assert "| `curate` with defaults | 0.225 | 0.225 | not run |  |" in whole_page(tmp_path)


def test_a_page_without_results_says_so_and_there_is_no_figure(tmp_path):
    assert "Nothing was run." in whole_page(tmp_path)
    with pytest.raises(SettingsError, match="run `ileed reproduce people/racing` first"):
        drivers_figure(tmp_path)


def test_the_figure_names_every_driver_and_both_correlations(tmp_path):
    records(tmp_path)
    drawn = drivers_figure(tmp_path).decode()
    assert all(drawn.count(f">d{k}<") == 2 for k in range(13))
    assert ">default: 0.85<" in drawn
    assert ">the paper's noise model: 0.75<" in drawn.replace("&#39;", "'")


def test_a_difference_of_policies_is_paired(tmp_path, few_draws):
    """Laps differ by much more than policies do, and the interval is still that of the difference alone."""
    records(tmp_path)
    gap = FoundPolicies(Records(tmp_path, family="people")).difference(2, ("default", "weighted"))
    assert (gap.value, gap.low, gap.high) == pytest.approx((-0.075, -0.075, -0.075))
