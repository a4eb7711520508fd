"""Minari's data sets: written ones are read back and load in Minari, those of Minari are read, bad ones refused."""

from __future__ import annotations

import json
import shutil
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from strategies import world

import ileed
from ileed import DemonstrationError, by_column, by_episode_metadata, by_mask, by_one
from ileed.formats import Labeller, format_of, read_minari, write_minari

h5py = pytest.importorskip("h5py", reason="h5py is not installed: pip install 'ileed[robot]'")

STORAGES = ("hdf5", "arrow", "parquet")


@pytest.fixture
def minari(tmp_path, monkeypatch):
    """Minari itself, which keeps its data sets in the test's folder."""
    found = pytest.importorskip("minari", reason="Minari is not installed: pip install minari h5py pillow")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return found


def buffers(steps=(3, 2), *, observations=None, actions=None, infos=None):
    """Episodes as Minari's own collector has them: one observation more than actions."""
    from minari.data_collector import EpisodeBuffer

    random = np.random.default_rng(0)
    seen = observations or (lambda rows: random.normal(size=(rows, 4)).astype(np.float32))
    acted = actions or (lambda rows: random.integers(0, 3, size=rows))
    return [
        EpisodeBuffer(
            observations=seen(length + 1),
            actions=acted(length),
            rewards=np.arange(length, dtype=np.float64).tolist(),
            terminations=[False] * (length - 1) + [True],
            truncations=[False] * length,
            infos=None if infos is None else infos(length + 1),
        )
        for length in steps
    ]


@pytest.fixture(autouse=True)
def _quiet():
    """Minari asks for authors, an environment and a description."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="minari")
        yield


def made_by_minari(minari, *, who=("ann", "bob"), storage="hdf5", action_space=None, observation_space=None, **parts):
    """A data set that Minari wrote, with `agent_id` in the metadata of each episode; its path and its episodes."""
    from gymnasium.spaces import Box, Discrete

    found = minari.create_dataset_from_buffers(
        "test/made-v0",
        buffer=(made := buffers(**parts)),
        observation_space=observation_space or Box(-np.inf, np.inf, (4,), np.float32),
        action_space=action_space or Discrete(3),
        data_format=storage,
    )
    found.storage.update_episode_metadata([{"agent_id": name} for name in who])
    return Path(found.storage.data_path).parent, made


# --- the law


def test_names_of_features_and_actions_and_demonstrators_without_steps_come_back(tmp_path):
    table = {"age": [71, 30, 55, 42], "nurse": ["b", "a", "b", "a"], "did": ["admit", "refer", "admit", "admit"]}
    data = replace(ileed.from_table(table, action="did", demonstrator="nurse"), names=("a", "b", "zoe"))
    write_minari(data, tmp_path / "triage-v1")
    assert read_minari(tmp_path / "triage-v1").equals(data)


def test_small_images_that_are_not_encoded_come_back(tmp_path):
    data = replace(world((3, 2)), observations=np.random.default_rng(0).integers(0, 256, (5, 40, 40, 3), np.uint8))
    write_minari(data, tmp_path / "images-v0")
    assert read_minari(tmp_path / "images-v0").equals(data)


def test_a_folder_that_is_there_is_not_replaced(tmp_path):
    write_minari(world(), tmp_path / "data-v0")
    with pytest.raises(DemonstrationError, match="exists already, and data sets are not replaced"):
        write_minari(world(), tmp_path / "data-v0")


# --- Minari loads what we wrote


@pytest.mark.parametrize("discrete", [True, False])
def test_minari_loads_what_we_wrote(minari, tmp_path, discrete):
    data = world((5, 3, 4), discrete=discrete, floating=True, optional=("rewards", "terminals", "phase", "load"))
    write_minari(data, tmp_path / "mine-v3", metadata={"author": ["ann"], "description": "a test"})
    found = minari.load_dataset("mine-v3")
    assert (found.total_episodes, found.total_steps, found.spec.dataset_name, found.spec.version) == (3, 12, "mine", 3)
    starts = np.searchsorted(data.episode, range(4))
    for number, episode in enumerate(found.iterate_episodes()):
        steps = slice(starts[number], starts[number + 1])
        np.testing.assert_array_equal(episode.observations[:-1], data.observations[steps])
        np.testing.assert_array_equal(episode.observations[-1], episode.observations[-2])
        np.testing.assert_array_equal(episode.actions, data.actions[steps])
        np.testing.assert_array_equal(episode.rewards, data.rewards[steps])
        np.testing.assert_array_equal(episode.terminations, data.terminals[steps])
        assert all(found.observation_space.contains(each) for each in episode.observations)
        assert all(found.action_space.contains(each) for each in episode.actions)
    told = [each["demonstrator"] for each in found.storage.get_episode_metadata(range(3))]
    assert told == ["ann", "bob", "cyd"]
    assert "mine-v3" in minari.list_local_datasets()


def test_who_demonstrated_is_known_in_a_part_of_what_we_wrote(minari, tmp_path):
    write_minari(world((5, 3, 4)), tmp_path / "mine-v0")
    part = minari.load_dataset("mine-v0").filter_episodes(lambda episode: len(episode) < 5)
    assert (part.total_steps, part.episode_indices.tolist()) == (7, [1, 2])
    told = part.storage.get_episode_metadata(part.episode_indices)
    assert [each["demonstrator"] for each in told] == ["bob", "cyd"]


def test_episodes_that_minari_adds_to_what_we_wrote_are_read_with_it(minari, tmp_path):
    write_minari(world((5, 3)), tmp_path / "mine-v0")
    found = minari.load_dataset("mine-v0")
    found.storage.update_episodes(buffers((2,), observations=lambda rows: np.ones((rows, 3), np.int64)))
    found.storage.update_episode_metadata([{"demonstrator": "zoe"}], [2])
    data = ileed.read(tmp_path / "mine-v0")
    assert (data.names, data.steps_each.tolist()) == (("ann", "bob", "cyd", "zoe"), [5, 3, 0, 2])


def test_columns_that_minari_demands_are_filled_in_and_absent_again_when_read(minari, tmp_path):
    data = world((3, 2))
    write_minari(data, tmp_path / "bare-v0")
    first = minari.load_dataset("bare-v0")[0]
    assert (first.rewards.tolist(), first.terminations.tolist()) == ([0, 0, 0], [False] * 3)
    assert first.truncations.tolist() == [False, False, True]
    assert (read_minari(tmp_path / "bare-v0").rewards, read_minari(tmp_path / "bare-v0").terminals) == (None, None)


# --- we read what Minari wrote


@pytest.mark.parametrize("storage", STORAGES)
def test_a_data_set_of_minari_is_read_with_who_demonstrated(minari, storage):
    path, made = made_by_minari(minari, storage=storage)
    data = ileed.read(path, demonstrator=by_episode_metadata("agent_id"))
    assert (data.names, data.episode_count, data.action_count) == (("ann", "bob"), 2, 3)
    np.testing.assert_array_equal(data.observations, np.concatenate([each.observations[:-1] for each in made]))
    np.testing.assert_array_equal(data.actions, np.concatenate([each.actions for each in made]))
    assert data.rewards.tolist() == [0, 1, 2, 0, 1]
    assert data.terminals.tolist() == [False, False, True, False, True]
    assert ileed.read(path, demonstrator=by_column("agent_id")).equals(data)
    assert ileed.read(path, demonstrator=by_one("ann")).names == ("ann",)


@pytest.mark.parametrize("storage", STORAGES)
def test_entries_of_a_dict_are_joined_by_name_and_text_is_left_out_in_words(minari, storage):
    from gymnasium.spaces import Box, Dict, Discrete, Text

    space = Dict(
        {
            "goal": Dict({"position": Box(-9, 9, (2,), np.float64)}),
            "grid": Box(0, 9, (2, 2), np.uint8),
            "mission": Text(20),
            "side": Discrete(4),
        }
    )

    def seen(rows):
        return {
            "goal": {"position": np.arange(2.0 * rows).reshape(rows, 2)},
            "grid": np.full((rows, 2, 2), 7, np.uint8),
            "mission": ["go"] * rows,
            "side": np.arange(rows),
        }

    path, _ = made_by_minari(minari, storage=storage, observation_space=space, observations=seen)
    named = by_episode_metadata("agent_id")
    with pytest.warns(UserWarning, match="left out: 'mission'"):
        data = ileed.read(path, demonstrator=named)
    np.testing.assert_array_equal(data.observations[1], [2, 3, 7, 7, 7, 7, 1])
    turned = ileed.read(path, demonstrator=named, observations=["side", "goal/position"])
    np.testing.assert_array_equal(turned.observations[1], [1, 2, 3])
    grid = ileed.read(path, demonstrator=named, observations=["grid"])
    assert (grid.observations.shape, grid.observations.dtype) == ((5, 4), np.uint8)
    with pytest.raises(DemonstrationError, match=r"no observation 'gird' \(did you mean 'grid'\?\)"):
        ileed.read(path, demonstrator=named, observations=["gird"])


@pytest.mark.parametrize("storage", STORAGES)
def test_actions_are_counted_from_zero_or_are_rows_of_numbers(minari, storage):
    from gymnasium.spaces import Box, Discrete

    path, _ = made_by_minari(
        minari, storage=storage, action_space=Discrete(4, start=5), actions=lambda rows: 5 + np.arange(rows)
    )
    data = ileed.read(path, demonstrator=by_one("ann"))
    assert (data.actions.tolist(), data.action_count) == ([0, 1, 2, 0, 1], 4)
    shutil.rmtree(path)
    box = Box(-1, 1, (2,), np.float32)
    path, made = made_by_minari(
        minari, storage=storage, action_space=box, actions=lambda rows: np.full((rows, 2), 0.5, np.float32)
    )
    data = ileed.read(path, demonstrator=by_one("ann"))
    np.testing.assert_array_equal(data.actions, np.concatenate([each.actions for each in made]))


@pytest.mark.parametrize("storage", STORAGES)
def test_images_in_jpeg_are_refused_or_left_out(minari, storage):
    from gymnasium.spaces import Box, Dict

    image = Box(0, 255, (32, 32, 3), np.uint8)
    picture = lambda rows: np.zeros((rows, 32, 32, 3), np.uint8)  # noqa: E731
    path, _ = made_by_minari(minari, storage=storage, observation_space=image, observations=picture)
    with pytest.raises(DemonstrationError, match=r"images in JPEG, which are not read: .*howto/images\.md"):
        ileed.read(path, demonstrator=by_one("ann"))
    shutil.rmtree(path)
    both = Dict({"arm": Box(-1, 1, (2,), np.float32), "camera": image})
    seen = lambda rows: {"arm": np.zeros((rows, 2), np.float32), "camera": picture(rows)}  # noqa: E731
    path, _ = made_by_minari(minari, storage=storage, observation_space=both, observations=seen)
    with pytest.warns(UserWarning, match="left out: 'camera'"):
        assert ileed.read(path, demonstrator=by_one("ann")).observation_size == 2
    with pytest.raises(DemonstrationError, match="'camera' are no numbers"):
        ileed.read(path, demonstrator=by_one("ann"), observations=["camera"])


def test_who_demonstrated_may_stand_in_the_infos(minari):
    path, _ = made_by_minari(minari, infos=lambda rows: {"player": np.full(rows, rows)})
    assert ileed.read(path, demonstrator=by_column("player")).names == ("3", "4")


@dataclass(frozen=True)
class ByNumber(Labeller):
    """A labeller that says itself who demonstrated the episodes of these numbers, as a table of episodes does."""

    def labels(self, episodes):
        return [{"0": "zoe", "1": "yan"}[episode] for episode in episodes]


def test_a_labeller_may_know_the_episodes_by_number(minari):
    path, _ = made_by_minari(minari)
    data = ileed.read(path, demonstrator=ByNumber())
    assert [data.names[person] for person in data.episode_demonstrator] == ["zoe", "yan"]


@pytest.mark.parametrize("storage", STORAGES)
def test_what_may_say_who_demonstrated_is_listed(minari, storage):
    infos = lambda rows: {"player": np.full(rows, rows), "level": np.arange(rows)}  # noqa: E731
    path, _ = made_by_minari(minari, storage=storage, infos=infos)
    found = [(each.place, each.values, each.episodes, each.option) for each in format_of(path).candidates(path)]
    assert found == [
        ("episode metadata agent_id", 2, 2, "--demonstrator agent_id"),
        ("episode metadata player", 2, 2, "--demonstrator player"),
    ]


# --- who demonstrated is never guessed


def test_a_data_set_that_does_not_say_who_is_answered_with_what_there_is(minari):
    path, _ = made_by_minari(minari)
    with pytest.raises(DemonstrationError, match=r"does not say who demonstrated: .*'agent_id'.*by_episode_metadata"):
        ileed.read(path)
    with pytest.raises(DemonstrationError, match="2 of 2 episodes have no metadata 'user': episode 0 has 'agent_id'"):
        ileed.read(path, demonstrator=by_episode_metadata("user"))
    with pytest.raises(DemonstrationError, match=r"does not apply to Minari's data sets: use by_episode_metadata"):
        ileed.read(path, demonstrator=by_mask("better"))


def test_metadata_that_are_no_name_are_refused(minari):
    path, _ = made_by_minari(minari, who=(0.5, 1.5))
    with pytest.raises(DemonstrationError, match=r"'agent_id' of episode 0 is 0\.5: a name or a whole number"):
        ileed.read(path, demonstrator=by_episode_metadata("agent_id"))


# --- bad folders are refused in one sentence


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"data_format": "zarr"}, "data_format is 'zarr'"),
        ({"action_space": "3"}, "action_space is 3 in metadata.json: it must be a space in JSON"),
        ({"action_space": '{"type": "Discrete", "n": "many"}'}, "'n' of action_space is 'many'"),
        ({"ileed": "[]"}, "must be a JSON object"),
    ],
)
def test_metadata_of_another_kind_are_refused_in_one_sentence(tmp_path, change, says):
    write_minari(world(), tmp_path / "data-v0")
    file = tmp_path / "data-v0" / "data" / "metadata.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(DemonstrationError) as caught:
        ileed.read(tmp_path / "data-v0")
    assert says in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_file_outside_the_folder_is_not_read(tmp_path):
    write_minari(world(), tmp_path / "data-v0")
    file = tmp_path / "data-v0" / "data" / "main_data.hdf5"
    shutil.move(file, tmp_path / "elsewhere.hdf5")
    file.symlink_to(tmp_path / "elsewhere.hdf5")
    with pytest.raises(DemonstrationError, match="is a link out of the data set, which is not followed"):
        ileed.read(tmp_path / "data-v0")


def test_episodes_that_do_not_fit_together_are_refused(tmp_path):
    write_minari(world((3, 2)), tmp_path / "data-v0")
    with h5py.File(tmp_path / "data-v0" / "data" / "main_data.hdf5", "r+") as file:
        del file["episode_1/actions"]
        file["episode_1/actions"] = [0, 1, 0, 1, 0]
    with pytest.raises(DemonstrationError, match="episode 1 has 3 observations and 5 actions"):
        ileed.read(tmp_path / "data-v0")
