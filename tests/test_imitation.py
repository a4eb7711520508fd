"""imitation's trajectories: written ones are read back and load there, saved ones are read, nothing is unpickled."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import world

import ileed
from ileed import DemonstrationError, by_column, by_mask, by_one
from ileed.formats import Labeller, format_of, read_imitation, write_imitation

ROOT = Path(__file__).parents[1]
PYTHON = ROOT / ".cache" / "imitation" / "bin" / "python"
needs_imitation = pytest.mark.skipif(
    not PYTHON.exists(), reason="imitation has no environment here: run tests/imitation_environment.sh"
)


def folder(path: Path, rows: list[dict], **columns) -> Path:
    """A folder as HuggingFace's `datasets` saves it, from rows that are trajectories."""
    path.mkdir()
    table = pa.Table.from_pylist(rows)
    for name, values in columns.items():
        table = table.append_column(name, values)
    with pa.ipc.new_stream(path / "data-00000-of-00001.arrow", table.schema) as stream:
        stream.write_table(table)
    (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    (path / "dataset_info.json").write_text("{}")
    return path


def trajectory(steps: int = 2, *, who: object = "ann", **changed) -> dict:
    own = {
        "obs": [[0.5, float(k)] for k in range(steps + 1)],
        "acts": [k % 2 for k in range(steps)],
        "infos": [json.dumps({"worker": who})] * steps,
        "terminal": True,
    }
    return own | changed


# --- the law


@given(words=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), min_size=5, max_size=5))
def test_words_of_a_skill_come_back_in_any_writing_and_width(tmp_path_factory, words):
    data = replace(world((3, 2)), skills={"phase": np.array(words, dtype="<U9")})
    path = tmp_path_factory.mktemp("imitation") / "data"
    write_imitation(data, path)
    assert read_imitation(path).equals(data)


def test_names_of_features_and_actions_come_back(tmp_path):
    table = {"age": [71, 30, 55, 42], "nurse": ["b", "a", "b", "a"], "did": ["admit", "refer", "admit", "admit"]}
    data = replace(ileed.from_table(table, action="did", demonstrator="nurse"), names=("a", "b", "zoe"))
    write_imitation(data, tmp_path / "triage")
    assert read_imitation(tmp_path / "triage").equals(data)


def test_what_imitation_cannot_say_is_refused(tmp_path):
    data = replace(world((3, 2)), terminals=np.array([False, True, False, False, True]))
    with pytest.raises(DemonstrationError, match="episode 0 goes on after a terminal"):
        write_imitation(data, tmp_path / "data")
    with pytest.raises(DemonstrationError, match="imitation's npz files hold pickles, which are not written"):
        ileed.write(world(), tmp_path / "data.npz")
    with pytest.raises(DemonstrationError, match="skill 'py/object' begins with 'py/'"):
        write_imitation(replace(world((2,)), skills={"py/object": np.zeros(2, int)}), tmp_path / "data")
    assert not list(tmp_path.iterdir())


# --- imitation itself


def imitation(code: str, *arguments: Path) -> object:
    """What a program prints in imitation's own environment, as JSON on its last line."""
    found = subprocess.run(
        [PYTHON, "-W", "ignore", "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "HOME": str(arguments[0].parent), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout.splitlines()[-1])


LOAD = """
import json, sys
from imitation.data import serialize, rollout
found = serialize.load(sys.argv[1])
print(json.dumps([dict(obs=t.obs.tolist(), acts=t.acts.tolist(), who=[i["demonstrator"] for i in t.infos],
    terminal=bool(t.terminal), rews=t.rews.tolist() if hasattr(t, "rews") else None) for t in found]))
"""
SAVE = """
import json, sys
import numpy as np
from imitation.data import serialize, types
random = np.random.default_rng(0)
made = []
for length, who in ((3, "ann"), (5, "bob")):
    infos = np.array([{"worker": who, "seen": np.zeros(2), "count": np.int64(k)} for k in range(length)])
    obs = random.normal(size=(length + 1, 4)).astype(np.float32)
    made.append(types.TrajectoryWithRew(obs=obs, acts=random.integers(0, 3, length), infos=infos,
        terminal=who == "ann", rews=np.arange(length, dtype=np.float32)))
serialize.save(sys.argv[1], made)
print(json.dumps([dict(obs=t.obs.tolist(), acts=t.acts.tolist()) for t in made]))
"""


@pytest.mark.campaign
@needs_imitation
@pytest.mark.parametrize("discrete", [True, False])
def test_imitation_loads_what_we_wrote(tmp_path, discrete):
    optional = ("rewards", "terminals", "phase", "load") if discrete else ()
    data = world((5, 3, 4), discrete=discrete, floating=True, optional=optional)
    write_imitation(data, tmp_path / "data")
    starts = np.searchsorted(data.episode, range(4))
    for number, found in enumerate(imitation(LOAD, tmp_path / "data")):
        steps = slice(starts[number], starts[number + 1])
        np.testing.assert_array_equal(np.array(found["obs"][:-1], np.float32), data.observations[steps])
        np.testing.assert_array_equal(np.array(found["acts"], data.actions.dtype), data.actions[steps])
        assert set(found["who"]) == {data.names[number]}
        assert found["terminal"] == discrete
        assert (found["rews"] is None) == (not discrete)


@pytest.mark.campaign
@needs_imitation
def test_what_imitation_saved_is_read(tmp_path):
    made = imitation(SAVE, tmp_path / "data")
    data = ileed.read(tmp_path / "data", demonstrator=by_column("worker"))
    assert (data.names, data.steps_each.tolist()) == (("ann", "bob"), [3, 5])
    np.testing.assert_array_equal(data.observations, np.concatenate([np.float32(each["obs"][:-1]) for each in made]))
    assert data.actions.tolist() == [action for each in made for action in each["acts"]]
    assert np.flatnonzero(data.terminals).tolist() == [2]
    assert data.rewards.tolist() == [0, 1, 2, 0, 1, 2, 3, 4]


# --- folders of others


def test_trajectories_in_several_files_are_read_in_the_order_of_the_listing(tmp_path):
    path = folder(tmp_path / "data", [trajectory(2, who="ann")])
    other = folder(tmp_path / "other", [trajectory(3, who="bob"), trajectory(1, who="cy")])
    shutil.move(other / "data-00000-of-00001.arrow", path / "a.arrow")
    names = ["data-00000-of-00001.arrow", "a.arrow"]
    (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    data = ileed.read(path, demonstrator=by_column("worker"))
    assert dict(zip(data.names, data.steps_each.tolist(), strict=True)) == {"ann": 2, "bob": 3, "cy": 1}


@dataclass(frozen=True)
class ByNumber(Labeller):
    """A labeller that says itself who demonstrated the episodes of these numbers, as a table of episodes does."""

    def labels(self, episodes):
        return [{"0": "zoe", "1": "yan"}[episode] for episode in episodes]


def test_a_labeller_may_know_the_episodes_by_number(tmp_path):
    path = folder(tmp_path / "data", [trajectory(), trajectory(3)])
    data = ileed.read(path, demonstrator=ByNumber())
    assert [data.names[person] for person in data.episode_demonstrator] == ["zoe", "yan"]


def test_what_may_say_who_demonstrated_is_listed_and_a_table_of_episodes_may_say_it(tmp_path):
    both = [json.dumps({"worker": "bob", "count": k, "flag": True, "seen": {"py/b64": "AA=="}}) for k in range(3)]
    path = folder(tmp_path / "data", [trajectory(), trajectory(3, infos=both)])
    found = [(each.place, each.values, each.episodes, each.option) for each in format_of(path).candidates(path)]
    assert found == [("key worker of the infos", 2, 2, "--demonstrator worker")]
    (tmp_path / "who.csv").write_text("episode,operator\n0,zoe\n1,yan\n")
    data = ileed.read(path, demonstrator=ileed.by_episode_table(tmp_path / "who.csv"))
    assert [data.names[person] for person in data.episode_demonstrator] == ["zoe", "yan"]


def test_who_demonstrated_is_never_guessed(tmp_path):
    path = folder(tmp_path / "data", [trajectory(), trajectory(3, who="bob")])
    with pytest.raises(DemonstrationError, match=r"does not say who demonstrated: .*have 'worker'; use by_column"):
        ileed.read(path)
    with pytest.raises(DemonstrationError, match="'player' in the infos of trajectory 0 is nothing"):
        ileed.read(path, demonstrator=by_column("player"))
    with pytest.raises(DemonstrationError, match="does not apply to imitation's trajectories"):
        ileed.read(path, demonstrator=by_mask("better"))
    assert ileed.read(path, demonstrator=by_one("ann")).names == ("ann",)


@pytest.mark.parametrize("who", [0.5, True, None, ["ann"], {"py/object": "os.system"}, {"py/b64": "AA=="}])
def test_a_label_that_is_no_plain_name_is_refused_and_never_made_an_object(tmp_path, who):
    path = folder(tmp_path / "data", [trajectory(who=who)])
    with pytest.raises(DemonstrationError, match="must be the same name or whole number, as plain JSON"):
        ileed.read(path, demonstrator=by_column("worker"))


@pytest.mark.parametrize("name", ["../other/data-00000-of-00001.arrow", "/etc/passwd", "", ".", 3, None])
def test_a_listing_that_leads_out_of_the_folder_is_refused(tmp_path, name):
    path = folder(tmp_path / "data", [trajectory()])
    folder(tmp_path / "other", [trajectory()])
    (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    with pytest.raises(DemonstrationError, match=r"must name the Arrow files beside it|has no file"):
        ileed.read(path, demonstrator=by_one("ann"))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"obs": [[0.0], [1.0, 2.0], [0.0]]}, "'obs' is ragged (lists of 1 to 2 values)"),
        ({"obs": [[0.0], None, [0.0]]}, "'obs' has 1 missing values"),
        ({"obs": None}, "'obs' is missing in 1 trajectories"),
        ({"acts": ["left", "right"]}, "'acts' holds 'list<item: string>': it must be a list of numbers"),
        ({"acts": [0, None]}, "'acts' has 1 missing values"),
        ({"acts": [0]}, "episode 0 has 3 observations and 1 actions"),
        ({"terminal": 3}, "it must be true or false for each row"),
    ],
)
def test_columns_of_another_kind_are_refused_in_one_sentence(tmp_path, changed, says):
    path = folder(tmp_path / "data", [trajectory(**changed)])
    with pytest.raises(DemonstrationError) as caught:
        ileed.read(path, demonstrator=by_one("ann"))
    assert says in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


# --- npz


def npz(path: Path, **changed) -> Path:
    """Two trajectories of three and two steps, as older versions of imitation saved them, infos pickled."""
    own = {
        "obs": np.arange(14.0).reshape(7, 2),
        "acts": np.array([0, 1, 0, 1, 1]),
        "infos": np.array([{}] * 5, dtype=object),
        "terminal": np.array([True, False]),
        "indices": np.array([3]),
    }
    np.savez_compressed(path, **(own | changed))
    return path


def test_an_npz_file_is_read_without_its_pickled_infos(tmp_path):
    data = ileed.read(npz(tmp_path / "data.npz", rews=np.arange(5.0)), demonstrator=by_one("ann"))
    assert data.observations[:, 0].tolist() == [0, 2, 4, 8, 10]
    assert data.actions.tolist() == [0, 1, 0, 1, 1]
    assert data.episode.tolist() == [0, 0, 0, 1, 1]
    assert data.terminals.tolist() == [False, False, True, False, False]
    assert data.rewards.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(DemonstrationError, match=r"does not say who demonstrated: its infos are pickled.*by_one"):
        ileed.read(tmp_path / "data.npz")


class Trap:
    """What, once unpickled, leaves a file behind."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self):
        return (Path.touch, (self.place,))


def test_a_file_that_needs_pickle_is_refused_and_not_unpickled(tmp_path):
    place = tmp_path / "trapped"
    trap = np.array([[Trap(place)]] * 7, dtype=object)
    with pytest.raises(DemonstrationError, match=r"'obs' of .*data.npz is pickled, and pickles are never read"):
        ileed.read(npz(tmp_path / "data.npz", obs=trap), demonstrator=by_one("ann"))
    ileed.read(npz(tmp_path / "data.npz", infos=trap[:5, 0]), demonstrator=by_one("ann"))
    (tmp_path / "data.npz").write_bytes(pickle.dumps(Trap(place)))
    with pytest.raises(DemonstrationError, match="is not a readable npz file"):
        ileed.read(tmp_path / "data.npz", demonstrator=by_one("ann"))
    assert not place.exists()


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"indices": np.array([9])}, "'indices' of"),
        ({"indices": np.array([0.5])}, "'indices' of"),
        ({"indices": np.array([-1])}, "'indices' of"),
        ({"terminal": np.array([True])}, "'terminal' of"),
        ({"obs": np.zeros((5, 2))}, "observations and"),
    ],
)
def test_an_npz_file_that_does_not_fit_together_is_refused_in_one_sentence(tmp_path, changed, says):
    with pytest.raises(DemonstrationError) as caught:
        ileed.read(npz(tmp_path / "data.npz", **changed), demonstrator=by_one("ann"))
    assert says in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
