"""Careless calls: types that torch cannot read, paths and names that no file can hold, arguments of another kind."""

from __future__ import annotations

import itertools
import math
import pathlib

import numpy as np
import pytest
import torch
from refusals import refused

import ileed
from ileed import formats
from ileed.errors import DemonstrationError, SettingsError, brief

STEPS = 40


def columns(*, discrete=True, **others):
    chance = np.random.default_rng(0)
    return {
        "observations": chance.integers(-4, 5, size=(STEPS, 3)) / 4,  # exact in half precision
        "actions": chance.integers(0, 3, STEPS) if discrete else chance.integers(-4, 5, size=(STEPS, 2)) / 4,
        "demonstrator": np.repeat(["ann", "bob"], STEPS // 2),
        "episode": np.repeat(np.arange(8), 5),
    } | others


def method(*, discrete=True):
    head = ileed.CategoricalMLP(hidden=(4,)) if discrete else ileed.MixtureMLP(hidden=(4,))
    return ileed.Ileed(policy=head, restarts=1, steps=3, folds=0)


@pytest.fixture(scope="module")
def data():
    return ileed.Demonstrations(**columns())


@pytest.fixture(scope="module")
def fitted(data):
    return method().fit(data, seed=0, device="cpu")


# --- types of numbers


NUMBERS = {"big-endian double": ">f8", "big-endian single": ">f4", "half": "<f2", "big-endian half": ">f2", "long": "g"}


@pytest.mark.parametrize("column", ["observations", "actions", "rewards"])
@pytest.mark.parametrize("kind", NUMBERS.values(), ids=NUMBERS)
def test_numbers_of_any_floating_point_type_give_the_fit_of_native_ones(kind, column):
    plain = columns(discrete=False, rewards=np.arange(STEPS) / 4)
    odd = {**plain, column: plain[column].astype(kind)}
    found, expected = (ileed.Demonstrations(**each) for each in (odd, plain))
    assert getattr(found, column).dtype.isnative
    assert getattr(found, column).dtype in (np.float32, np.float64)
    assert np.array_equal(getattr(found, column), getattr(expected, column))
    fits = [method(discrete=False).fit(each, seed=0, device="cpu") for each in (found, expected)]
    one, other = (fit.policy.act(each["observations"]) for fit, each in zip(fits, (odd, plain), strict=True))
    np.testing.assert_allclose(
        one, other, rtol=1e-5
    )  # float32 and float64 are normalised to slightly different numbers
    assert np.isfinite(fits[0].assess(found).best.expertise).all()


@pytest.mark.parametrize("kind", [">i2", ">i4", ">i8", ">u2"])
def test_whole_numbers_of_the_other_byte_order_give_the_same_fit(kind):
    plain = columns(observations=np.random.default_rng(0).integers(0, 9, (STEPS, 3)))
    odd = {**plain, "observations": plain["observations"].astype(kind), "actions": plain["actions"].astype(kind)}
    fits = [method().fit(ileed.Demonstrations(**each), seed=0, device="cpu") for each in (odd, plain)]
    assert fits[0].nats_per_action == fits[1].nats_per_action
    assert np.array_equal(fits[0].policy.act(odd["observations"]), fits[1].policy.act(plain["observations"]))


def test_a_long_double_beyond_double_precision_is_refused():
    huge = np.full((STEPS, 3), np.longdouble("1e400"))
    with pytest.raises(DemonstrationError, match="observations"):
        ileed.Demonstrations(**columns(observations=huge))


def test_labels_of_the_other_byte_order_are_the_same_labels():
    data = ileed.Demonstrations(**columns(demonstrator=np.repeat(["ann", "bob"], STEPS // 2).astype(">U3")))
    assert data.names == ("ann", "bob")
    assert data.fingerprint == ileed.Demonstrations(**columns()).fingerprint


# --- paths


PATHS = {"empty": "", "NUL": "a\0b.parquet", "not encodable": "\ud800.parquet"}


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_a_path_that_no_file_can_have_is_refused_by_every_function_that_takes_one(path, data, fitted, tmp_path):
    continuous = ileed.Demonstrations(**columns(discrete=False))
    calls = {
        "fit": lambda: method().fit(data, seed=0, checkpoint=path),
        "read": lambda: ileed.read(path),
        "read_parquet": lambda: ileed.read_parquet(path),
        "read_robomimic": lambda: ileed.read_robomimic(path),
        "read_lerobot": lambda: ileed.read_lerobot(path),
        "read_minari": lambda: formats.read_minari(path),
        "read_imitation": lambda: formats.read_imitation(path),
        "read_parts": lambda: formats.read_parts(path),
        "label_robomimic": lambda: ileed.label_robomimic(path, tmp_path / "out.hdf5"),
        "by_episode_table": lambda: ileed.by_episode_table(path, "who").labels(["0"]),
        "from_table": lambda: ileed.from_table(path, action="a", demonstrator="b"),
        "write": lambda: ileed.write(data, path),
        "write_parquet": lambda: ileed.write_parquet(data, path),
        "write_robomimic": lambda: ileed.write_robomimic(continuous, path),
        "write_lerobot": lambda: ileed.write_lerobot(continuous, path),
        "write_minari": lambda: formats.write_minari(data, path),
        "write_imitation": lambda: formats.write_imitation(data, path),
        "write_parts": lambda: formats.write_parts(data, path),
        "save": lambda: fitted.save(path),
        "load": lambda: ileed.load(path),
        "report": lambda: ileed.report(path),
        "curate": lambda: ileed.curate(fitted, data, keep=0.5).write(path),
        "label": lambda: ileed.label(path),
    }
    for name, call in calls.items():
        with pytest.raises(ileed.IleedError):
            raise AssertionError(f"{name} returned {call()!r}")


def test_a_folder_is_no_checkpoint(data, tmp_path):
    for folder in (".", tmp_path):
        with pytest.raises(SettingsError, match="checkpoint"):
            method().fit(data, seed=0, checkpoint=folder)


# --- names


ODD_WORDS = {"NUL": "ann\0x", "NUL at the end": "ann\0", "lone surrogate": "ann\ud800"}


@pytest.mark.parametrize("word", ODD_WORDS.values(), ids=ODD_WORDS)
def test_text_that_no_file_can_hold_is_refused_wherever_data_have_text(word):
    people = [word] * 20 + ["bob"] * 20
    for odd in (
        {"demonstrator": people},
        {"names": (word, "bob"), "demonstrator": np.repeat([0, 1], 20)},
        {"episode": people},
        {"skills": {"phase": people}},
        {"skills": {word: np.arange(STEPS)}},
    ):
        with pytest.raises(DemonstrationError):
            ileed.Demonstrations(**columns(**odd))
    if not word.endswith("\0"):  # which an array has cut off already
        with pytest.raises(DemonstrationError, match="demonstrator"):
            ileed.Demonstrations(**columns(demonstrator=np.array(people)))


def test_a_skill_column_is_named_by_text():
    with refused("the-name-of-a-skill-column-invalid", DemonstrationError):
        ileed.Demonstrations(**columns(skills={3: np.arange(STEPS)}))


# --- arguments of another kind


@pytest.mark.parametrize("episodes", [None, 5, 1.5, object()])
def test_episodes_that_are_none_are_refused(episodes):
    with pytest.raises(DemonstrationError, match="episodes"):
        ileed.Demonstrations.from_episodes(episodes, demonstrator=["ann"])


@pytest.mark.parametrize(
    "marks",
    [
        {True: True},
        {False: True},
        {0: "keep"},
        {0: 1},
        {0: None},
        {"0": True},
        {1.0: True},
        {8: True},
        {-1: True},
        None,
    ],
    ids=repr,
)
def test_a_mark_is_an_episode_number_with_true_or_false(marks, fitted, data):
    with pytest.raises(SettingsError, match="mark"):
        ileed.curate(fitted, data, keep=0.5).marked(marks)


def test_marks_by_numbers_of_numpy_are_marks(fitted, data):
    curated = ileed.curate(fitted, data, keep=0.5)
    found = curated.marked({np.int64(0): np.True_, np.uint8(1): np.False_})
    assert found.marks == {0: True, 1: False}
    assert [type(key) for key in found.marks] == [int, int]


BAD = [
    *(None, True, -1, 2**70, 1e308, math.nan, math.inf, 1j, "", "zzz", "é" * 300, b"x", object(), int),
    *([], [None], ["zzz"], (), {}, {"zzz": 1}, {None: None}, range(3)),
    *(np.array(3), np.array([]), np.zeros((2, 3)), np.array(["zzz"]), np.array([None])),
    *(torch.zeros(3), torch.zeros(2, 3, requires_grad=True), pathlib.Path("zzz")),
]


def public_calls(data, fitted):
    """Public functions that take a moment, each with arguments that it accepts."""
    continuous = ileed.Demonstrations(**columns(discrete=False))
    seen, policy, ratings = data.observations, fitted.policy, fitted.assess(data)
    answers = {"task": ["t", "t", "u"], "worker": ["ann", "bob", "ann"], "label": [0, 1, 1]}
    skill, episode = {"ann": 0.9, "bob": 0.1}, {"obs": np.zeros((3, 2)), "acts": np.zeros(3, dtype=int)}
    everything = dict.fromkeys(["rewards", "terminals", "legal", "encoding", "source_episode", "episode_number"])
    parts = dict.fromkeys(["policy", "demonstrator", "dynamics"])
    no_options = dict.fromkeys(["observations", "next_observations", "env_args", "states", "masks", "valid"])
    return {
        "Demonstrations": (ileed.Demonstrations, columns(names=(), skills={}, action_count=0, **everything)),
        "from_episodes": (
            ileed.Demonstrations.from_episodes,
            {"episodes": [episode], "demonstrator": ["ann"], "names": (), "action_count": 0},
        ),
        "select": (data.select, {"steps": np.arange(STEPS) < 20}),
        "skill": (ileed.Demonstrations(**columns(skills={"phase": np.arange(STEPS)})).skill, {"column": "phase"}),
        "from_table": (
            ileed.from_table,
            {"table": {**answers, "seen": [1, 2, 3]}, "action": "label", "demonstrator": "worker"}
            | {"episode": None, "features": None, "skills": None, "missing": "error", "encoding": None},
        ),
        "from_answers": (ileed.from_answers, {"table": answers, "task": None, "worker": None, "label": None}),
        "shipped": (ileed.shipped, {"name": "square"}),
        "by_mask": (ileed.by_mask, {"unmatched": "error"}),
        "write_robomimic": (ileed.write_robomimic, {"data": continuous, "path": "w.hdf5", **no_options}),
        "read_robomimic": (ileed.read_robomimic, {"path": "c.hdf5", "observations": None, "filter_key": None}),
        "Ileed": (ileed.Ileed, {"expertise": ileed.Constant(), **parts}),
        "fit_each": (method().fit_each, {"datasets": [data], "seeds": [0], "weights": None, "progress": None}),
        "assess": (fitted.assess, {"demonstrations": data, "by": "demonstrator", "confidence_level": 0.95}),
        "nats": (fitted.nats, {"data": data}),
        "renamed": (fitted.renamed, {"names": {"ann": "x", "bob": "y"}}),
        "member": (fitted.ensemble.member, {"number": 0}),
        "top": (fitted.ensemble.top, {"count": 1}),
        "act": (policy.act, {"observations": seen, "sample": False, "legal": None}),
        "predict": (policy.predict, {"observation": seen, "episode_start": None, "deterministic": True}),
        "next_distribution": (policy.next_distribution, {"observations": seen, "episode_start": None}),
        "expertise": (fitted.expertise, {"observations": seen, "demonstrator": "ann", "skills": None, "episode": None}),
        "table": (ratings.table, {"relative": True, "confidence_level": None}),
        "groups": (ratings.groups, {"probability": 0.95}),
        "probability_better": (ratings.probability_better, {"first": "ann", "second": "bob"}),
        "episodes_to_settle": (ratings.episodes_to_settle, {"first": "ann", "second": "bob", "probability": 0.95}),
        "rate": (ileed.rate, {"policy": policy, "demonstrations": data}),
        "rank_loss": (ileed.rank_loss, {"estimated": skill, "known": skill}),
        "Scores": (ileed.Scores, {"rewards": np.ones(3)}),
        "task": (ileed.envs.task, {"name": "minigrid/lava"}),
        "report": (ileed.report, {"path": "run", "title": "x", "truth": skill, "scores": {}, "anonymise": True}),
    }


def test_no_argument_of_a_public_function_ends_in_another_error_than_ours(data, fitted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ileed.write_robomimic(ileed.Demonstrations(**columns(discrete=False)), "c.hdf5")
    fitted.save("run")
    failed = []
    for name, (function, arguments) in public_calls(data, fitted).items():
        function(**arguments)
        for argument, value in itertools.product(arguments, BAD):
            if argument == "progress" and callable(value):
                continue  # whose own errors are the caller's
            try:
                function(**arguments | {argument: value})
            except ileed.IleedError:
                continue
            except Exception as error:
                failed.append((name, argument, brief(value), repr(error)[:80]))
    assert not failed, failed
