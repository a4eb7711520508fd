"""Indicators of movement: laws, closed forms and slow readings of their definitions; what explains a column."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from math import isnan, log, nan

import numpy as np
import pytest
from scipy.stats import rankdata, spearmanr

import ileed
from ileed.cli import run
from ileed.errors import DemonstrationError, SettingsError
from ileed.rating.indicators import CHANCE, IDLE, Indicators
from ileed.rating.ranks import centred_ranks, rank_correlations, rank_correlations_of_each

MOVEMENT = ("path_length", "speed", "idle_share", "spectral_arc_length", "log_dimensionless_jerk")
SMOOTHNESS = ("spectral_arc_length", "log_dimensionless_jerk")


def recorded(episodes, demonstrator=None, **others):
    """Demonstrations of given actions; each episode has a demonstrator of its own unless told otherwise."""
    lengths = [len(each) for each in episodes]
    who = range(len(lengths)) if demonstrator is None else demonstrator
    return ileed.Demonstrations(
        observations=np.zeros((sum(lengths), 1)),
        actions=np.concatenate(episodes),
        demonstrator=np.repeat([f"operator {each}" for each in who], lengths),
        episode=np.repeat(np.arange(len(lengths)), lengths),
        **others,
    )


def wandering(seed=0, *, count=6, dimensions=3):
    """Episodes of 20 to 60 steps: smooth random paths that rest now and then."""
    chance = np.random.default_rng(seed)
    episodes = []
    for _ in range(count):
        velocity = np.cumsum(chance.normal(size=(chance.integers(20, 60), dimensions)), axis=0)
        rests = chance.random(len(velocity)) < 0.2
        episodes.append(np.cumsum(np.where(rests[:, None], 0, velocity), axis=0))
    return episodes


def minimum_jerk(steps, amplitude=1.0):
    """(step, 1) the position 10 s^3 - 15 s^4 + 6 s^5 (Flash and Hogan, 1985)."""
    s = np.linspace(0, 1, steps)[:, None]
    return amplitude * (10 * s**3 - 15 * s**4 + 6 * s**5)


def values_of(episodes, names=MOVEMENT, **others):
    found = ileed.indicators(recorded(episodes, **others))
    return np.stack([found.values[name] for name in names])


def with_columns(columns, who):
    """Indicators of which every value is given."""
    who = np.asarray(who)
    return Indicators(
        values={name: np.asarray(each, dtype=float) for name, each in columns.items()},
        names=tuple(f"operator {number}" for number in range(who.max() + 1)),
        demonstrator=who,
        keys=tuple(map(str, range(len(who)))),
        steps=np.ones(len(who), dtype=int),
        time_unit="step",
    )


# --- laws


@pytest.mark.parametrize("fps", [None, 20])
def test_units_and_origins_of_actions_do_not_matter(fps):
    """To nine digits: differences of shifted actions lose some."""
    episodes = wandering(seed=1)
    elsewhere = [each * [1e3, 1e-3, -0.7] + [5e3, 0, 2] for each in episodes]
    assert values_of(elsewhere, fps=fps) == pytest.approx(values_of(episodes, fps=fps), rel=1e-9)


def test_movements_played_backwards_have_the_same_indicators():
    episodes = wandering(seed=2)
    backwards = [each[::-1] for each in episodes]
    assert values_of(backwards, fps=15) == pytest.approx(values_of(episodes, fps=15), rel=1e-9)


def test_the_order_of_episodes_does_not_matter():
    episodes = wandering(seed=3)
    assert values_of(episodes[::-1])[:, ::-1] == pytest.approx(values_of(episodes), rel=1e-12)


@pytest.mark.parametrize("fps", [None, 60])
def test_a_minimum_jerk_movement_is_smoother_than_the_same_with_tremor(fps):
    """Tremor of 8 Hz at 60 Hz, of a hundredth and a fiftieth of the amplitude."""
    movement, tremor = minimum_jerk(90), np.sin(2 * np.pi * 8 / 60 * np.arange(90))[:, None]
    smooth = values_of([movement, movement + 0.01 * tremor, movement + 0.02 * tremor], SMOOTHNESS, fps=fps)
    assert (np.diff(smooth, axis=1) < 0).all()


def test_idle_steps_raise_the_idle_share_and_the_duration_and_leave_the_path_length():
    episodes = wandering(seed=4)
    longer = [np.repeat(each, [1] * (len(each) - 1) + [10], axis=0) for each in episodes[:1]] + episodes[1:]
    before, after = (ileed.indicators(recorded(each)).values for each in (episodes, longer))
    assert after["path_length"] == pytest.approx(before["path_length"], rel=1e-12)
    assert after["idle_share"][0] > before["idle_share"][0]
    assert after["duration"][0] == before["duration"][0] + 9
    assert after["speed"][0] < before["speed"][0]
    for name in MOVEMENT:  # other episodes keep their units and their threshold
        assert after[name][1:] == pytest.approx(before[name][1:], rel=1e-12)


def test_a_stated_rate_turns_steps_into_seconds_and_leaves_the_path():
    episodes = wandering(seed=5)
    in_steps, in_seconds = (ileed.indicators(recorded(episodes, fps=fps)) for fps in (None, 5))
    assert (in_steps.time_unit, in_seconds.time_unit) == ("step", "second")
    assert np.array_equal(in_seconds.values["duration"] * 5, in_steps.values["duration"])
    assert in_seconds.values["speed"] == pytest.approx(in_steps.values["speed"] * 5)
    # half a cycle per step is below 10 Hz at this rate, so that the spectrum ends where it did
    for name in ("path_length", "idle_share", *SMOOTHNESS):
        assert np.array_equal(in_seconds.values[name], in_steps.values[name])


def test_a_gripper_is_no_movement():
    episodes = wandering(seed=6)
    gripping = [np.column_stack([each, np.arange(len(each)) > len(each) // 2]) for each in episodes]
    assert np.array_equal(values_of(gripping), values_of(episodes))


def test_actions_that_are_all_binary_move_by_their_switches():
    episode = np.repeat([[-1.0], [1.0], [-1.0]], 10, axis=0)
    found = ileed.indicators(recorded([episode, episode]))
    assert found.values["path_length"] == pytest.approx([4 / np.std(np.array([-1, 1, -1] * 2))] * 2)
    assert found.values["idle_share"] == pytest.approx([27 / 29] * 2)


# --- closed forms and slow readings


@pytest.mark.parametrize("steps", [400, 4_000])
@pytest.mark.parametrize("amplitude", [0.01, 30.0])
def test_the_jerk_of_a_minimum_jerk_movement_is_its_closed_form(steps, amplitude):
    """T^3 / v_peak^2 times the integral of squared jerk is 720 / 1.875^2 = 204.8, whatever the duration and amplitude.

    Three steps at the ends, where the jerk is largest, are lost to differences: an error of about 15 / steps.
    """
    found = values_of([minimum_jerk(steps, amplitude)], ["log_dimensionless_jerk"])
    assert found.item() == pytest.approx(-log(720 / 1.875**2), abs=15 / steps)


def slow_arc_length(speed, fps):
    """Balasubramanian et al. 2015, equations 8 and 9, by sums over steps and frequencies, one after the other."""
    padded = 16 * 2 ** int(np.ceil(np.log2(len(speed))))
    highest = 0.5 if fps is None else min(0.5, 10 / fps)
    frequencies = [k / padded for k in range(padded // 2 + 1)]
    spectrum = []
    for frequency in frequencies:
        turns = np.exp(-2j * np.pi * frequency * np.arange(len(speed)))
        spectrum.append(abs((speed * turns).sum()) / speed.sum())
    above = [frequency for frequency, size in zip(frequencies, spectrum, strict=True) if size >= 0.05]
    cut = max(frequency for frequency in frequencies if frequency <= min(above[-1], highest))
    points = [(f / cut, size) for f, size in zip(frequencies, spectrum, strict=True) if f <= cut]
    return -sum(np.hypot(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(points))


@pytest.mark.parametrize("fps", [None, 8, 50, 400])
def test_the_spectral_arc_length_is_its_definition(fps):
    """At 8 Hz the spectrum ends at half of the rate, at 50 and 400 Hz at 10 Hz or before."""
    episodes = [*wandering(seed=7, count=5), minimum_jerk(33) * [1.0, 2.0, 0.0], wandering(seed=8)[0][:4]]
    scale = np.concatenate([each[np.append(True, np.diff(each, axis=0).any(axis=1))] for each in episodes]).std(axis=0)
    expected = [slow_arc_length(np.linalg.norm(np.diff(each / scale, axis=0), axis=1), fps) for each in episodes]
    assert values_of(episodes, ["spectral_arc_length"], fps=fps)[0] == pytest.approx(expected, rel=1e-9)


def test_path_speed_and_idle_share_are_sums_over_steps():
    episodes = wandering(seed=9)
    rows = np.concatenate([each[np.append(True, np.diff(each, axis=0).any(axis=1))] for each in episodes])
    profiles = [np.linalg.norm(np.diff(each / rows.std(axis=0), axis=0), axis=1) for each in episodes]
    changes = np.concatenate(profiles)
    threshold = IDLE * np.quantile(changes[changes > 0], 0.95)
    expected = [[each.sum(), each.mean(), (each <= threshold).mean()] for each in profiles]
    assert pytest.approx(np.array(expected), rel=1e-12) == values_of(episodes, MOVEMENT[:3]).T


def test_groups_of_episodes_are_computed_as_all_together(monkeypatch):
    episodes = wandering(seed=10, count=9)
    expected = values_of(episodes)
    monkeypatch.setattr(sys.modules["ileed.rating.indicators"], "_NUMBERS_AT_ONCE", 300)
    assert values_of(episodes) == pytest.approx(expected, rel=1e-12)


# --- edges


def test_episodes_too_short_or_without_movement_have_no_smoothness_and_nothing_fails():
    line = np.arange(9.0)[:, None] * [1.0, 0.5]
    episodes = [line[:1], line[:2], line[:3], line[[5] * 6], line, *wandering(seed=11, count=2, dimensions=2)]
    found = ileed.indicators(recorded(episodes)).values
    assert [isnan(each) for each in found["speed"]] == [True] + 6 * [False]
    assert [isnan(each) for each in found["idle_share"]] == [True] + 6 * [False]
    assert [isnan(each) for each in found["spectral_arc_length"]] == 4 * [True] + 3 * [False]
    assert [isnan(each) for each in found["log_dimensionless_jerk"]] == 5 * [True] + 2 * [False]  # constant speed
    assert (found["path_length"][[0, 3]].tolist(), found["idle_share"][3]) == ([0, 0], 1)


def test_actions_that_never_change_are_idle():
    found = ileed.indicators(recorded([np.ones((5, 2)), np.ones((7, 2))])).values
    assert (found["path_length"].tolist(), found["idle_share"].tolist()) == ([0, 0], [1, 1])
    assert np.isnan(found["spectral_arc_length"]).all()


def test_single_precision_gives_the_same_smoothness():
    """To four digits: noise of a hundredth is far above the rounding of 6e-8."""
    chance = np.random.default_rng(12)
    episodes = [minimum_jerk(50) + 0.01 * chance.normal(size=(50, 1)) for _ in range(3)]
    single = [each.astype(np.float32) for each in episodes]
    assert values_of(single) == pytest.approx(values_of(episodes), rel=1e-4)


def test_discrete_actions_have_a_duration_and_a_share_of_repeats():
    episodes = [np.array([0, 0, 0, 1]), np.array([1]), np.array([1, 0])]
    found = ileed.indicators(recorded(episodes, [0, 0, 1]), columns={"expertise": [1, nan, 3]})
    assert [*found.values] == ["duration", "repeat_share", "expertise"]
    assert found.values["duration"].tolist() == [4, 1, 2]
    assert found.values["repeat_share"] == pytest.approx([2 / 3, nan, 0], nan_ok=True)
    assert found.demonstrators()["expertise"].to_pylist() == [1, 3]
    assert found.correlations().num_rows == 3
    assert found.explained_by().sentence() == ""


def test_a_folder_on_disk_has_the_indicators_of_the_same_data_in_memory(tmp_path):
    data = recorded(wandering(seed=13))
    (tmp_path / "parts").mkdir()
    ileed.write(data, tmp_path / "parts" / "all.parquet")
    mapped = ileed.read(tmp_path / "parts")
    assert mapped.store.is_on_disk
    for name, values in ileed.indicators(mapped).values.items():
        assert values == pytest.approx(ileed.indicators(data).values[name], rel=1e-6), name


@pytest.mark.parametrize(
    "columns",
    [
        [1.0] * 6,
        {"expertise": [1.0] * 5},
        {"expertise": ["good"] * 6},
        {"expertise": [np.inf] * 6},
        {"speed": [1.0] * 6},
        {"steps": [1.0] * 6},
        {"expertise_low": [1.0] * 6},
        {3: [1.0] * 6},
    ],
    ids=str,
)
def test_columns_that_do_not_fit_are_refused(columns):
    with pytest.raises(SettingsError, match="columns"):
        ileed.indicators(recorded(wandering()), columns=columns)


def test_what_is_no_demonstrations_and_a_column_that_is_not_there_are_refused():
    with pytest.raises(DemonstrationError):
        ileed.indicators("data.parquet")
    with pytest.raises(SettingsError, match="did you mean 'expertise'"):
        ileed.indicators(recorded(wandering()), columns={"expertise": range(6)}).explained_by("expertis")
    with pytest.raises(SettingsError, match="duration"):
        ileed.indicators(recorded(wandering())).explained_by("duration")


# --- tables


def test_a_row_for_each_episode_has_its_key_demonstrator_and_indicators():
    data = recorded(wandering(seed=14), [1, 1, 0, 0, 2, 2])
    found = ileed.indicators(data, columns={"expertise": np.arange(6)})
    table = found.episodes()
    assert table.column_names == ["episode", "key", "demonstrator", "steps", "duration", *MOVEMENT, "expertise"]
    assert table["demonstrator"].to_pylist() == [data.names[number] for number in data.episode_demonstrator]
    assert table["steps"].to_pylist() == np.bincount(data.episode).tolist()
    assert table["expertise"].to_pylist() == [0, 1, 2, 3, 4, 5]


def test_demonstrators_have_means_with_intervals_over_the_episodes_in_which_an_indicator_is_defined():
    values = [[1.0, 2, 4, nan], [3, nan, nan, nan], [5, 5, 5, 5]]
    found = with_columns({"score": np.ravel(values)}, np.repeat([0, 1, 2], 4)).demonstrators()
    assert found["episodes"].to_pylist() == [4, 4, 4]
    assert found["score"].to_pylist() == pytest.approx([7 / 3, 3, 5])
    assert found["score_low"].to_pylist() == pytest.approx([1, nan, 5], nan_ok=True)  # all three draws are the lowest
    assert found["score_high"].to_pylist() == pytest.approx([4, nan, 5], nan_ok=True)


@pytest.mark.parametrize(("episodes", "least"), [(20, 0.88), (600, 0.91)])
def test_intervals_of_means_cover(episodes, least):
    """95% of normal means over many episodes, about 92.5% of 20; of 400, 18 fewer happen once in 1,000 times."""
    who = np.repeat(np.arange(400), episodes)
    drawn = np.random.default_rng(15).normal(size=len(who))
    found = with_columns({"score": drawn}, who).demonstrators()
    covered = (found["score_low"].to_numpy() < 0) & (found["score_high"].to_numpy() > 0)
    assert least < covered.mean() < 0.98


def test_a_demonstrator_without_episodes_has_no_means():
    data = ileed.Demonstrations(
        observations=np.zeros((8, 1)),
        actions=np.random.default_rng(16).normal(size=(8, 2)),
        demonstrator=[0] * 8,
        episode=[0] * 8,
        names=("ann", "bob"),
    )
    row = ileed.indicators(data).demonstrators().to_pylist()[1]
    assert (row["demonstrator"], row["episodes"], row["steps"]) == ("bob", 0, 0)
    assert isnan(row["path_length"])


def test_a_seed_changes_intervals_and_nothing_else():
    data = recorded(wandering(seed=17, count=12), np.arange(12) % 3)
    tables = [ileed.indicators(data, seed=seed).demonstrators() for seed in (0, 0, 1)]
    assert tables[0].equals(tables[1])
    means = [name for name in tables[0].column_names if not name.endswith(("_low", "_high"))]
    assert tables[0].select(means).equals(tables[2].select(means))
    assert not tables[0].equals(tables[2])


def test_correlations_are_those_of_scipy_where_both_are_defined():
    chance = np.random.default_rng(18)
    who = np.arange(40) % 8
    columns = {name: np.round(chance.normal(size=40), 1) for name in "abc"}
    columns["b"][::7] = nan
    means = {name: [np.nanmean(each[who == number]) for number in range(8)] for name, each in columns.items()}
    for row in with_columns(columns, who).correlations().to_pylist():
        pair = [columns[row[side]] for side in ("first", "second")]
        assert row["over_episodes"] == pytest.approx(spearmanr(*pair, nan_policy="omit").statistic)
        pair = [np.round(means[row[side]], 9) for side in ("first", "second")]  # means of tenths may be equal
        assert row["over_demonstrators"] == pytest.approx(spearmanr(*pair).statistic)


def test_means_that_differ_by_rounding_alone_are_ties():
    """The sum of three tenths by three is not a tenth."""
    who = np.repeat(np.arange(5), [1, 2, 3, 6, 7])
    columns = {"duration": np.full(len(who), 0.1), "expertise": who}
    assert isnan(with_columns(columns, who).correlations()["over_demonstrators"][0].as_py())


# --- what explains a column


def population(seed, demonstrators, *, episodes=6):
    """Durations, speeds and their demonstrators: log-normal, with variation between and within demonstrators."""
    chance = np.random.default_rng(seed)
    who = np.repeat(np.arange(demonstrators), episodes)
    duration, speed = (
        np.exp(0.4 * chance.normal(size=demonstrators)[who] + 0.2 * chance.normal(size=len(who))) for _ in range(2)
    )
    return chance, who, {"duration": duration, "speed": speed, "path_length": duration * speed}


@pytest.mark.parametrize("demonstrators", [4, 12])
def test_a_column_that_is_duration_plus_a_little_noise_is_mostly_explained_by_it(demonstrators):
    chance, who, columns = population(19, demonstrators)
    columns["expertise"] = -np.log(columns["duration"]) + 0.05 * chance.normal(size=len(who))
    found = with_columns(columns, who).explained_by()
    assert found.is_mostly_explained
    assert (found.level, found.count) == ("episodes", len(who))
    assert found.sentence().startswith("expertise is mostly explained by duration (rank correlation -0.9")
    assert found.sentence().endswith(f"over {len(who)} episodes); shorter episodes score higher")


@pytest.mark.parametrize(("cause", "words"), [("speed", "faster episodes"), ("duration", "longer episodes")])
def test_expertise_by_demonstrator_is_explained_over_demonstrators(cause, words):
    _, who, columns = population(20, 9)
    columns["expertise"] = np.array([columns[cause][who == number].mean() for number in range(9)])[who]
    found = with_columns(columns, who).explained_by()
    assert (found.level, found.count, found.is_mostly_explained) == ("demonstrators", 9, True)
    assert found.sentence() == (
        f"expertise is mostly explained by {cause} (rank correlation 1.00 over 9 demonstrators); {words} score higher"
    )


def test_what_two_causes_explain_together_names_both():
    chance, who, columns = population(21, 40)
    columns["expertise"] = np.log(columns["duration"] / columns["speed"]) + 0.2 * chance.normal(size=len(who))
    found = with_columns(columns, who).explained_by()
    assert "duration and speed together" in found.sentence()


@pytest.mark.parametrize("is_fixed", [True, False], ids=["of demonstrators", "of episodes"])
@pytest.mark.parametrize("demonstrators", [4, 6, 9])
def test_a_column_without_a_relation_is_rarely_said_to_be_explained(demonstrators, is_fixed):
    """In one population of 20 at most: more than 7 of 40 happen once in 1,000 times at that rate."""
    flagged = 0
    for seed in range(40):
        chance, who, columns = population(100 + seed, demonstrators)
        within = 0 if is_fixed else 0.3 * chance.normal(size=len(who))
        columns["expertise"] = chance.normal(size=demonstrators)[who] + within
        flagged += with_columns(columns, who).explained_by().is_mostly_explained
    assert CHANCE == 0.05
    assert flagged <= 7


@pytest.mark.parametrize("demonstrators", [3, 4])
def test_few_demonstrators_do_not_tell_what_explains_their_expertise(demonstrators):
    _, who, columns = population(22, demonstrators)
    columns["expertise"] = np.array([columns["duration"][who == each].mean() for each in range(demonstrators)])[who]
    found = with_columns(columns, who).explained_by()
    assert (found.r_squared, found.is_mostly_explained, found.sentence()) == (pytest.approx(1), False, "")


def test_the_explained_share_is_that_of_a_regression_of_ranks():
    chance, who, columns = population(23, 10)
    columns["expertise"] = np.round(np.log(columns["speed"]) + chance.normal(size=len(who)), 1)
    found = with_columns(columns, who).explained_by()
    ranks = {name: rankdata(each) for name, each in columns.items()}
    design = np.column_stack([np.ones(len(who)), ranks["duration"], ranks["speed"]])
    residual = ranks["expertise"] - design @ np.linalg.lstsq(design, ranks["expertise"], rcond=None)[0]
    assert found.r_squared == pytest.approx(1 - residual.var() / ranks["expertise"].var())
    for row in found.table().to_pylist():
        expected = spearmanr(columns["expertise"], columns[row["indicator"]]).statistic
        assert row["over_episodes"] == pytest.approx(expected)
        assert row["over_episodes_low"] < expected < row["over_episodes_high"]
        assert row["over_demonstrators_low"] < row["over_demonstrators"] < row["over_demonstrators_high"]


def test_missing_values_are_left_out_of_an_explanation():
    chance, who, columns = population(24, 9)
    columns["expertise"] = np.log(columns["speed"]) + chance.normal(size=len(who))
    known = chance.random(len(who)) < 0.7
    few = with_columns({name: each[known] for name, each in columns.items()}, who[known]).explained_by()
    some = with_columns(columns | {"expertise": np.where(known, columns["expertise"], nan)}, who).explained_by()
    assert few.table().equals(some.table())
    assert (few.r_squared, few.low, few.chance) == (some.r_squared, some.low, some.chance)


def test_a_constant_column_is_not_explained():
    _, who, columns = population(25, 9)
    found = with_columns(columns | {"expertise": np.ones(len(who))}, who).explained_by()
    assert isnan(found.r_squared)
    assert found.sentence() == ""


@pytest.mark.parametrize("expertise", [[1.0, 2.0], [nan, nan]], ids=str)
def test_an_explanation_of_two_episodes_or_none_is_unknown(expertise):
    found = ileed.indicators(recorded(wandering(count=2)), columns={"expertise": expertise}).explained_by()
    assert isnan(found.r_squared)
    assert found.table().num_rows == 3


# --- ranks of resamples


def test_ranks_of_a_resample_are_those_of_its_rows():
    chance = np.random.default_rng(26)
    values = np.round(chance.normal(size=(3, 30)), 1)
    counts = chance.multinomial(30, np.full(30, 1 / 30), size=4)
    found = rank_correlations(values, counts)
    for number, count in enumerate(counts):
        rows = np.repeat(np.arange(30), count)
        ranks = rankdata(values[0, rows])
        assert np.array_equal(centred_ranks(values[0], count)[rows], ranks - ranks.mean())
        expected = spearmanr(values[:, rows], axis=1).statistic
        assert found[number] == pytest.approx(expected)
        assert rank_correlations_of_each([values, values[:, rows]])[1] == pytest.approx(expected)


# --- the command


def test_inspect_shows_indicators_of_continuous_actions_by_demonstrator(tmp_path, capsys):
    data = recorded(wandering(seed=27, count=15), fps=10)
    ileed.write(data, tmp_path / "data.parquet")
    assert run(["inspect", str(tmp_path / "data.parquet"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["time_unit"] == "second"
    assert [row["demonstrator"] for row in found["indicators"]] == list(data.names)
    expected = ileed.indicators(data).demonstrators()["path_length"].to_pylist()
    assert [row["path_length"] for row in found["indicators"]] == pytest.approx(expected)
    assert run(["inspect", str(tmp_path / "data.parquet")]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in data.names[:12])
    assert "3 demonstrators more" in shown


def test_inspect_shows_no_indicators_of_discrete_actions(tmp_path, capsys):
    ileed.write(recorded([np.array([0, 1, 1]), np.array([1, 0])]), tmp_path / "data.parquet")
    assert run(["inspect", str(tmp_path / "data.parquet"), "--json"]) == 0
    assert "indicators" not in json.loads(capsys.readouterr().out)
