"""robomimic's files: what is written is read back, real files are read, and bad ones are refused in one sentence."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import world

import ileed
from ileed import (
    DemonstrationError,
    Demonstrations,
    by_column,
    by_mask,
    by_one,
    label_robomimic,
    read_robomimic,
    write_robomimic,
)
from ileed.formats.robomimic import demonstrators_of
from ileed.integrations import robomimic as plugin

h5py = pytest.importorskip("h5py", reason="h5py is not installed: pip install 'ileed[robot]'")

REAL = Path(__file__).parents[2] / "shared" / "data" / "robomimic"
OPERATORS = tuple(f"{tier}_operator_{number}" for tier in ("better", "okay", "worse") for number in (1, 2))
LOW_DIMENSIONAL = ("object", "robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos")


def real(name: str) -> Path:
    if not (REAL / name).exists():
        pytest.skip(f"{name} is not here: any robomimic file of its kind, put in {REAL}, will do")
    return REAL / name


def robot(lengths=(5, 3, 4, 6, 2, 4), names=OPERATORS, **options) -> Demonstrations:
    """Continuous demonstrations that go round the named people."""
    data = world(lengths, people=1, discrete=False, floating=True, **options)
    return Demonstrations(
        observations=data.observations,
        actions=data.actions,
        demonstrator=data.episode % len(names),
        episode=data.episode,
        names=names,
        rewards=data.rewards,
        terminals=data.terminals,
        skills=data.skills,
    )


def plain_file(path, episodes, *, masks=None):
    """A file made with h5py alone: episode name -> {place: values}."""
    with h5py.File(path, "w") as file:
        file.create_group("data")
        for name, parts in episodes.items():
            for place, values in parts.items():
                file[f"data/{name}/{place}"] = values
        for name, members in (masks or {}).items():
            file[f"mask/{name}"] = np.array(members, dtype="S")
    return path


def episode(steps=3, *, value=0.0, **parts):
    return {"obs/a": np.full((steps, 2), value), "actions": np.zeros((steps, 1)), **parts}


# --- the law


def test_long_episodes_are_compressed_and_come_back_unchanged(tmp_path):
    data = robot((400, 3), ("ann", "bob"), optional=("rewards", "terminals", "phase", "load"))
    write_robomimic(data, tmp_path / "data.hdf5")
    with h5py.File(tmp_path / "data.hdf5") as file:
        assert [file[f"data/demo_{k}/actions"].compression for k in (0, 1)] == ["gzip", None]
    assert ileed.read(tmp_path / "data.hdf5").equals(data)


@given(labels=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), min_size=6, max_size=6))
def test_words_of_a_skill_come_back_in_any_writing_and_width(tmp_path_factory, labels):
    data = robot((6,), ("ann",))
    wide = np.array(labels, dtype="<U9")
    data = Demonstrations(**{**columns_of(data), "skills": {"phase": wide}})
    path = tmp_path_factory.mktemp("robomimic") / "data.hdf5"
    write_robomimic(data, path)
    assert ileed.read(path).equals(data)


def columns_of(data):
    return {
        name: getattr(data, name) for name in ("observations", "actions", "demonstrator", "episode", "names", "rewards")
    }


def test_a_demonstrator_without_steps_is_still_known_by_name(tmp_path):
    data = robot((3, 3), ("ann", "bob"))
    data = Demonstrations(**{**columns_of(data), "names": ("zoe", "ann", "bob"), "demonstrator": data.demonstrator + 1})
    write_robomimic(data, tmp_path / "data.hdf5")
    assert ileed.read(tmp_path / "data.hdf5").names == ("zoe", "ann", "bob")


def test_observations_are_divided_among_keys_and_read_in_any_order(tmp_path):
    data = robot(shape=(4,))
    write_robomimic(data, tmp_path / "data.hdf5", observations={"object": 1, "arm": 3})
    assert ileed.read(tmp_path / "data.hdf5").equals(data)
    turned = read_robomimic(tmp_path / "data.hdf5", observations=["arm", "object"])
    np.testing.assert_array_equal(turned.observations, data.observations[:, [1, 2, 3, 0]])


def test_more_than_eleven_episodes_come_back_in_order_of_their_numbers(tmp_path):
    data = robot((1,) * 23, ("ann",))
    write_robomimic(data, tmp_path / "data.hdf5")
    assert ileed.read(tmp_path / "data.hdf5").equals(data)


# --- what robomimic finds in it


def test_the_file_has_what_robomimic_looks_for(tmp_path):
    data = robot(optional=("rewards", "terminals"), shape=(4,))
    env_args = {"env_name": "NutAssemblySquare", "type": 1, "env_kwargs": {"robots": "Panda"}}
    states = np.arange(2.0 * len(data)).reshape(-1, 2)
    write_robomimic(
        data,
        tmp_path / "data.hdf5",
        observations={"object": 1, "arm": 3},
        next_observations=data.observations + 1,
        env_args=env_args,
        states=states,
        masks={"short": [4, 1]},
    )
    with h5py.File(tmp_path / "data.hdf5") as file:
        assert json.loads(file["data"].attrs["env_args"]) == env_args
        assert file["data"].attrs["total"] == len(data)
        second = file["data/demo_1"]
        theirs = data.episode == 1
        assert second.attrs["num_samples"] == theirs.sum()
        np.testing.assert_array_equal(second["states"], states[theirs])
        np.testing.assert_array_equal(second["rewards"], data.rewards[theirs])
        np.testing.assert_array_equal(second["dones"], data.terminals[theirs])
        np.testing.assert_array_equal(second["demonstrator"], data.demonstrator[theirs])
        np.testing.assert_array_equal(second["obs/arm"], data.observations[theirs, 1:])
        np.testing.assert_array_equal(second["next_obs/arm"], data.observations[theirs, 1:] + 1)
        assert file["mask/short"][()].tolist() == [b"demo_1", b"demo_4"]


def test_operators_give_tiers_and_pairs_as_robomimic_names_them(tmp_path):
    write_robomimic(robot(), tmp_path / "data.hdf5", valid=[1, 3])
    with h5py.File(tmp_path / "data.hdf5") as file:
        masks = {name: [int(member[5:]) for member in file["mask"][name][()]] for name in file["mask"]}
    assert masks["better_operator_2"] == [1]
    assert (masks["better"], masks["okay"], masks["worse"]) == ([0, 1], [2, 3], [4, 5])
    assert masks["worse_okay"] == [2, 3, 4, 5]
    assert masks["worse_better"] == [0, 1, 4, 5]
    assert masks["okay_better"] == [0, 1, 2, 3]
    assert (masks["train"], masks["valid"]) == ([0, 2, 4, 5], [1, 3])
    assert (masks["better_train"], masks["better_valid"]) == ([0], [1])
    assert "worse_valid" not in masks  # robomimic cannot open an empty subset


def test_names_outside_the_pattern_give_no_tiers(tmp_path):
    write_robomimic(robot(names=("ann", "bob")), tmp_path / "data.hdf5")
    with h5py.File(tmp_path / "data.hdf5") as file:
        assert set(file["mask"]) == {"ann", "bob"}


def test_a_failure_to_write_leaves_the_old_file_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "data.hdf5"
    write_robomimic(robot(), path)
    before = path.read_bytes()
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("no space left")))
    with pytest.raises(ileed.RunError, match="no space left"):
        write_robomimic(robot(seed=1), path)
    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["data.hdf5"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"observations": {"object": 1}}, "take 1 numbers but an observation has 3"),
        ({"observations": {"a/b": 3}}, "'a/b' cannot name a part"),
        ({"states": np.zeros((2, 1))}, "24 observations but 2 values in states"),
        ({"next_observations": np.zeros((24, 2))}, "next_observations have 2 numbers but observations 3"),
        ({"masks": {"short": [9]}}, "'short' names episode 9: episodes go from 0 to 5"),
        ({"masks": {"better": [0]}}, "two masks 'better'"),
        ({"valid": [-1]}, "names episode -1"),
    ],
)
def test_what_cannot_be_written_is_refused_and_nothing_is_left(tmp_path, options, says):
    with pytest.raises(DemonstrationError, match=says):
        write_robomimic(robot(), tmp_path / "data.hdf5", **options)
    assert not list(tmp_path.iterdir())


def test_discrete_actions_are_not_robomimics(tmp_path):
    with pytest.raises(DemonstrationError, match="write_parquet"):
        write_robomimic(world(), tmp_path / "data.hdf5")


# --- who did it


def test_each_mask_is_a_demonstrator_in_the_order_given(tmp_path):
    masks = {"left": ["demo_2", "demo_7"], "right": ["demo_10"]}
    episodes = {name: episode(value=value) for value, name in enumerate(("demo_10", "demo_2", "demo_7"))}
    path = plain_file(tmp_path / "data.hdf5", episodes, masks=masks)
    data = ileed.read(path, demonstrator=by_mask("right", "left"))
    assert data.names == ("right", "left")
    assert data.episode_demonstrator.tolist() == [1, 1, 0]
    assert data.observations[::3, 0].tolist() == [1, 2, 0]  # demo_2, demo_7, demo_10


def test_by_mask_without_names_takes_robomimics_operators_even_from_a_file_of_ours(tmp_path):
    data = robot()
    write_robomimic(data, tmp_path / "data.hdf5")
    assert ileed.read(tmp_path / "data.hdf5", demonstrator=by_mask()).equals(data)
    named = robot(names=("ann", "bob"))
    write_robomimic(named, tmp_path / "named.hdf5")
    assert ileed.read(tmp_path / "named.hdf5", demonstrator=by_mask()).equals(named)
    assert ileed.read(tmp_path / "named.hdf5", demonstrator=by_mask("bob", "ann")).names == ("bob", "ann")


def test_a_data_set_of_words_or_one_name_can_say_who(tmp_path):
    who = {"operator": np.array([b"bob"] * 3)}
    path = plain_file(tmp_path / "data.hdf5", {"demo_0": episode(**who), "demo_1": episode(**who)})
    assert ileed.read(path, demonstrator=by_column("operator")).names == ("bob",)
    assert ileed.read(path, demonstrator=by_one("ann")).names == ("ann",)


def test_an_episode_in_no_mask_is_dropped_only_when_asked(tmp_path):
    path = plain_file(tmp_path / "data.hdf5", {f"demo_{k}": episode() for k in range(3)}, masks={"ann": ["demo_1"]})
    with pytest.raises(
        DemonstrationError, match=r"2 of 3 episodes match no mask \(first: demo_0\); pass unmatched='drop'"
    ):
        ileed.read(path, demonstrator=by_mask("ann"))
    assert ileed.read(path, demonstrator=by_mask("ann", unmatched="drop")).episode_count == 1


def test_a_filter_reads_its_episodes_alone_and_says_nothing_of_those_it_leaves_out(tmp_path):
    data = robot()
    write_robomimic(data, tmp_path / "data.hdf5")
    better = read_robomimic(tmp_path / "data.hdf5", filter_key="better", demonstrator=by_mask())
    assert better.names == ("better_operator_1", "better_operator_2")
    np.testing.assert_array_equal(better.actions, data.actions[data.episode < 2])


def test_a_mask_whose_episodes_are_not_here_is_left_out_with_a_word(tmp_path):
    masks = {"ann": ["demo_0", "demo_99"], "bob": ["demo_98"]}
    path = plain_file(tmp_path / "data.hdf5", {"demo_0": episode()}, masks=masks)
    with pytest.warns(UserWarning, match=r"1 of 2 demonstrators have no demonstration in this file .* 'bob'") as caught:
        data = read_robomimic(path, demonstrator=by_mask("ann", "bob"))
    assert data.names == ("ann",)
    assert caught[0].filename == __file__  # it points at the caller


def test_a_labelled_copy_says_who_in_every_step_and_keeps_everything_else(tmp_path):
    masks = {"left": ["demo_2", "demo_99"], "right": ["demo_10"], "gone": ["demo_98"], "lost": ["demo_3"]}
    states = {"states": np.arange(6.0).reshape(3, 2)}
    path = plain_file(tmp_path / "a.hdf5", {f"demo_{k}": episode(**states) for k in (2, 3, 10)}, masks=masks)
    before = path.read_bytes()
    assert label_robomimic(path, tmp_path / "b.hdf5", demonstrator=by_mask("right", "left", unmatched="drop")) == (
        "right",
        "left",
    )
    assert path.read_bytes() == before
    assert demonstrators_of(tmp_path / "b.hdf5") == ("right", "left")
    with h5py.File(tmp_path / "b.hdf5") as file:
        assert set(file["data"]) == {"demo_2", "demo_10"}
        assert file["data/demo_2/demonstrator"][()].tolist() == [1, 1, 1]
        np.testing.assert_array_equal(file["data/demo_2/states"], states["states"])
        assert {name: file["mask"][name][()].tolist() for name in file["mask"]} == {
            "left": [b"demo_2"],
            "right": [b"demo_10"],
        }
    assert ileed.read(tmp_path / "b.hdf5").names == ("right", "left")


def test_labels_in_words_are_numbered_in_a_labelled_copy(tmp_path):
    words = {"demo_0": "ben", "demo_1": "ann", "demo_2": "ben"}
    episodes = {name: episode(operator=np.array([word.encode()] * 3)) for name, word in words.items()}
    path = plain_file(tmp_path / "data.hdf5", episodes)
    assert label_robomimic(path, path, demonstrator=by_column("operator")) == ("ann", "ben")  # in place is allowed
    assert ileed.read(path).episode_demonstrator.tolist() == [1, 0, 1]


def test_names_are_refused_where_the_file_does_not_say_who(tmp_path):
    path = plain_file(
        tmp_path / "data.hdf5", {"demo_0": episode(demonstrator=np.array([2, 2, 2])), "demo_1": episode()}
    )
    with pytest.raises(DemonstrationError, match=r"demo_1 of .* does not say who demonstrated: ileed.label_robomimic"):
        demonstrators_of(path)
    with h5py.File(path, "r+") as file:
        del file["data/demo_1"]
    assert demonstrators_of(path) == ("0", "1", "2")
    with h5py.File(path, "r+") as file:
        file["data"].attrs["ileed"] = json.dumps({"names": ["ann"]})
    with pytest.raises(DemonstrationError, match=r"demonstrator 2 has no name: the 1 names go from 0 to 0"):
        demonstrators_of(path)


# --- which observations


def test_the_usual_keys_come_in_robomimics_order_and_otherwise_rows_of_numbers_by_name(tmp_path):
    sizes = dict(zip(LOW_DIMENSIONAL, (1, 2, 3, 4), strict=True))
    usual = {f"obs/{key}": np.full((2, size), size, dtype="f4") for key, size in sizes.items()}
    parts = {"actions": np.zeros((2, 1)), "obs/an_image": np.zeros((2, 4, 4, 3)), "obs/b": np.zeros(2), **usual}
    one = plain_file(tmp_path / "usual.hdf5", {"demo_0": parts})
    data = read_robomimic(one, demonstrator=by_one("ann"))
    assert data.observations[0].tolist() == [1, 2, 2, 3, 3, 3, 4, 4, 4, 4]
    assert data.observations.dtype == np.float32
    two = plain_file(tmp_path / "arms.hdf5", {"demo_0": {**parts, "obs/robot1_eef_pos": np.full((2, 1), 9, "f4")}})
    assert read_robomimic(two, demonstrator=by_one("ann")).observations[0].tolist()[-1] == 9
    del parts["obs/object"]
    other = plain_file(tmp_path / "other.hdf5", {"demo_0": parts})
    assert read_robomimic(other, demonstrator=by_one("ann")).observations[0].tolist() == [0, 2, 2, 3, 3, 3, 4, 4, 4, 4]
    assert read_robomimic(other, demonstrator=by_one("ann"), observations=["an_image"]).observations.shape == (2, 48)


# --- real files


def test_a_real_multi_human_file_names_its_operators_though_it_holds_one_episode():
    path = real("lift_mh_image_1demo.hdf5")
    with pytest.warns(UserWarning, match="5 of 6 demonstrators have no demonstration"):
        data = ileed.read(path)
    assert data.names == ("better_operator_1",)
    with h5py.File(path) as file:
        demo = file["data/demo_0"]
        np.testing.assert_array_equal(data.actions, demo["actions"])
        np.testing.assert_array_equal(data.observations[:, :10], demo["obs/object"])
        np.testing.assert_array_equal(data.observations[:, -2:], demo["obs/robot0_gripper_qpos"])
    assert data.observations.shape == (48, 19)
    assert data.observations.dtype == np.float64


def test_a_real_file_of_one_person_has_to_be_told_so():
    path = real("lift_ph_low_dim.hdf5")
    with pytest.raises(DemonstrationError, match=r"does not say who .*'20_percent'.*by_one"):
        ileed.read(path)
    data = ileed.read(path, demonstrator=by_mask("train", "valid"))
    assert (data.names, data.episode_count, len(data)) == (("train", "valid"), 2, 117)


def test_a_real_file_without_masks_has_to_be_told_who_too():
    path = real("can_mg_low_dim.hdf5")
    with pytest.raises(DemonstrationError, match="no operator masks"):
        ileed.read(path)
    data = ileed.read(path, demonstrator=by_one("machine"))
    assert (data.episode_count, len(data), data.observations.shape[1]) == (2, 300, 23)
    assert (data.actions.dtype, data.observations.dtype) == (np.float32, np.float64)


@pytest.mark.parametrize("name", ["lift_ph_low_dim.hdf5", "can_mg_low_dim.hdf5", "lift_mh_image_1demo.hdf5"])
def test_a_real_file_written_again_reads_the_same(name, tmp_path):
    data = read_robomimic(real(name), demonstrator=by_one("ann"))
    sizes = {"object": data.observation_size - 9, "robot0_eef_pos": 3, "robot0_eef_quat": 4, "robot0_gripper_qpos": 2}
    write_robomimic(data, tmp_path / name, observations=sizes)
    assert ileed.read(tmp_path / name).equals(data)


# --- bad files


BAD = {
    "no data group": ({}, {}, None, "holds no demonstrations"),
    "missing mask": (
        {"demo_0": episode()}, {"left": ["demo_0"]}, by_mask("right"), "no mask 'right': it has 'left'",
    ),
    "no masks": ({"demo_0": episode()}, {}, by_mask("right"), "no mask 'right': it has none"),
    "nobody": ({"demo_0": episode()}, {"left": ["demo_9"]}, by_mask("left"), "no episode of the file is in"),
    "two masks": (
        {"demo_0": episode()}, {"a": ["demo_0"], "b": ["demo_0"]}, by_mask("a", "b"),
        "demo_0 is in two masks, 'a' and 'b'",
    ),
    "unequal actions": (
        {"demo_0": episode(), "demo_1": episode(**{"obs/a": np.zeros((4, 2))})}, {}, by_one("ann"),
        "demo_1 has 3 actions but 4 rows of 'obs/a'",
    ),
    "unequal rewards": (
        {"demo_0": episode(rewards=np.zeros(2))}, {}, by_one("ann"), "demo_0 has 3 actions but 2 rows of 'rewards'",
    ),
    "a reward in all": ({"demo_0": episode(rewards=1.0)}, {}, by_one("ann"), "3 actions but 1 rows of 'rewards'"),
    "rewards here and there": (
        {"demo_0": episode(rewards=np.zeros(3)), "demo_1": episode()}, {}, by_one("ann"),
        "1 of 2 episodes have 'rewards'",
    ),
    "not a number": (
        {"demo_0": episode(), "demo_5": episode(value=np.nan)}, {}, by_one("ann"), "'obs/a' of demo_5 hold NaN",
    ),
    "no actions": ({"demo_3": {"obs/a": np.zeros((3, 2))}}, {}, by_one("ann"), "demo_3 has no 'actions': it has 'obs'"),
    "no observations": ({"demo_3": {"actions": np.zeros((3, 2))}}, {}, by_one("ann"), "dataset_states_to_obs.py"),
    "no steps": ({"demo_3": episode(0)}, {}, by_one("ann"), "demo_3 has no steps"),
    "images only": (
        {"demo_0": {"actions": np.zeros((2, 1)), "obs/eye": np.zeros((2, 4, 4))}}, {}, by_one("ann"), "has only images",
    ),
    "widths": (
        {"demo_0": episode(), "demo_1": episode(**{"obs/a": np.zeros((3, 5))})}, {}, by_one("ann"),
        r"'obs/a' has shape \(5,\) in demo_1 and \(2,\) in demo_0",
    ),
    "dones": ({"demo_0": episode(dones=np.array([0, 2, 0]))}, {}, by_one("ann"), "terminals must be true or false"),
    "column": ({"demo_0": episode()}, {}, by_column("operator"), "demo_0 has no 'operator': it has 'actions', 'obs'"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_is_refused_in_one_sentence(kind, tmp_path):
    episodes, masks, labeller, says = BAD[kind]
    path = plain_file(tmp_path / "data.hdf5", episodes, masks=masks)
    with pytest.raises(DemonstrationError, match=says) as caught:
        ileed.read(path, demonstrator=labeller)
    assert "\n" not in str(caught.value)


def test_unknown_observations_and_filters_are_answered_with_what_there_is(tmp_path):
    path = plain_file(tmp_path / "data.hdf5", {"demo_0": episode()}, masks={"left": ["demo_0"], "gone": ["demo_4"]})
    with pytest.raises(DemonstrationError, match="no observation 'b': it has 'a'"):
        read_robomimic(path, demonstrator=by_one("ann"), observations=["b"])
    with pytest.raises(DemonstrationError, match="no mask 'right': it has 'gone', 'left'"):
        read_robomimic(path, demonstrator=by_one("ann"), filter_key="right")
    with pytest.raises(DemonstrationError, match="'gone' names no demonstration"):
        read_robomimic(path, demonstrator=by_one("ann"), filter_key="gone")


def test_files_that_are_not_robomimics_are_refused(tmp_path):
    with h5py.File(tmp_path / "other.hdf5", "w") as file:
        file["data"] = np.zeros(3)
    with pytest.raises(DemonstrationError, match="has no group 'data'"):
        ileed.read(tmp_path / "other.hdf5")
    (tmp_path / "text.hdf5").write_text("not HDF5 at all")
    with pytest.raises(DemonstrationError, match="is not a readable HDF5 file"):
        ileed.read(tmp_path / "text.hdf5")
    with pytest.raises(DemonstrationError, match="there is no file"):
        ileed.read(tmp_path / "absent.hdf5")

    class Other(ileed.formats.Labeller):
        pass

    write_robomimic(robot(), tmp_path / "data.hdf5")
    with pytest.raises(DemonstrationError, match=r"does not apply to robomimic files: use by_mask"):
        ileed.read(tmp_path / "data.hdf5", demonstrator=Other())


@given(share=st.floats(0, 0.999))
def test_a_file_cut_short_anywhere_is_refused(tmp_path_factory, share):
    path = tmp_path_factory.mktemp("robomimic") / "data.hdf5"
    write_robomimic(robot(), path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(DemonstrationError, match="is not a readable HDF5 file"):
        ileed.read(path)


def test_without_h5py_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ileed.IleedError, match=r"pip install 'ileed\[robot\]'"):
        read_robomimic(tmp_path / "data.hdf5")


def test_labellers_refuse_what_makes_no_sense():
    with pytest.raises(DemonstrationError, match="'a' is named twice"):
        by_mask("a", "b", "a")
    with pytest.raises(DemonstrationError, match="pass 'error' or 'drop'"):
        by_mask("a", unmatched="skip")


# --- the plug-in, as far as it goes without robomimic (with it: integration/test_robomimic_plugin.py)


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        ({}, "keep 'demonstrator' in train.dataset_keys"),
        ({"demonstrator": torch.zeros(4, 10, 1)}, "that has this data set"),  # the loader's zeros for a file without it
        ({"demonstrator": torch.full((4, 10), 2.0)}, "a demonstrator 2 but algo.ileed.demonstrators has 2 names"),
    ],
)
def test_a_batch_that_does_not_say_who_is_refused(batch, says):
    algorithm = plugin._JointlyWithExpertise()
    algorithm.device = torch.device("cpu")
    algorithm.algo_config = SimpleNamespace(ileed=SimpleNamespace(demonstrators=["ann", "bob"]))
    with pytest.raises(ileed.SettingsError, match=says):
        algorithm.operators(batch)


def test_without_robomimic_the_plug_in_says_where_to_read_on(monkeypatch):
    monkeypatch.setitem(sys.modules, "robomimic", None)
    with pytest.raises(ileed.IleedError, match=r"robomimic cannot be imported here .* docs/howto/robomimic.md"):
        plugin.register()
