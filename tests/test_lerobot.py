"""LeRobot folders: what is written is read back, real ones are read, and who demonstrated is never guessed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from strategies import demonstrations, world

import ileed
from ileed import DemonstrationError, _memory, by_column, by_episode_table, by_mask, by_one, read_lerobot, write_lerobot
from ileed.cli import run
from ileed.errors import SettingsError, UnnamedDemonstratorError
from ileed.formats import format_of, lerobot
from ileed.formats.files import ParquetFile

TOY = Path(__file__).parents[2] / "shared" / "data" / "lerobot" / "v3_toy"
EVERY_COLUMN = ("rewards", "terminals", "legal", "phase", "load")
each_version = pytest.mark.parametrize("version", ["v3.0", "v2.1"])


@pytest.fixture
def toy() -> Path:
    if not TOY.exists():
        pytest.skip(f"there is no {TOY}: any small folder that lerobot's v3.0 writer makes, put there, will do")
    return TOY


def written(path: Path, data=None, **options) -> Path:
    write_lerobot(world(floating=True, discrete=False) if data is None else data, path, **options)
    return path


def of_others(path: Path, **columns) -> Path:
    """A folder as others write it, without our notes and `operator`; `columns` are further features."""
    info = json.loads((path / "meta/info.json").read_text())
    (path / "meta/ileed.json").unlink()
    del info["features"]["operator"]
    for file in path.glob("data/*/*.parquet"):
        table = pq.read_table(file).drop_columns("operator")
        for name, values in columns.items():
            index = table.column("index").to_numpy()
            table = table.append_column(name, pa.array([values[frame] for frame in index]))
            info["features"][name] = {"dtype": str(table.schema.field(name).type), "shape": [1], "names": None}
        pq.write_table(table, file)
    (path / "meta/info.json").write_text(json.dumps(info))
    return path


def changed_info(path: Path, **changes) -> Path:
    info = json.loads((path / "meta/info.json").read_text()) | changes
    (path / "meta/info.json").write_text(json.dumps(info))
    return path


# --- the law


@each_version
@given(data=demonstrations())
def test_writing_then_reading_changes_nothing(tmp_path_factory, version, data):
    path = tmp_path_factory.mktemp("lerobot") / "data"
    ileed.write(data, path, format="lerobot", version=version)
    assert ileed.read(path).equals(data)


@each_version
def test_many_files_and_chunks_are_read_as_one(tmp_path, monkeypatch, version):
    data = world([2] * 12, optional=EVERY_COLUMN)
    monkeypatch.setattr(lerobot, "_FILE_BYTES", 1)  # an episode in each file
    monkeypatch.setattr(lerobot, "_FILES_IN_CHUNK", 5)
    written(tmp_path / "data", data, version=version)
    assert len(list((tmp_path / "data/data").glob("chunk-*/*.parquet"))) == 12
    assert len(list((tmp_path / "data/data").glob("chunk-*"))) == 3
    assert ileed.read(tmp_path / "data").equals(data)


def test_the_skill_column_task_is_the_task_of_lerobot(tmp_path):
    data = world()
    task = np.array(["lift the cube", "push"])[data.episode % 2]
    data = ileed.Demonstrations(**{**vars(data), "skills": {"task": task}})
    written(tmp_path / "data", data)
    tasks = pq.read_table(tmp_path / "data/meta/tasks.parquet").column("__index_level_0__").to_pylist()
    assert tasks == ["lift the cube", "push"]
    assert ileed.read(tmp_path / "data").equals(data)


def test_names_of_features_survive(tmp_path):
    rows = {
        "age": [71, 30, 12, 64],
        "arrival": ["a", "b", "b", "a"],
        "nurse": ["ann", "bob", "ann", "bob"],
        "did": "xyyx",
    }
    data = ileed.from_table(rows | {"did": list(rows["did"])}, action="did", demonstrator="nurse")
    written(tmp_path / "data", data)
    assert ileed.read(tmp_path / "data").equals(data)
    info = json.loads((tmp_path / "data/meta/info.json").read_text())
    assert info["features"]["observation.state"]["names"] == ["age", "arrival = a", "arrival = b"]
    written(tmp_path / "divided", data, observations={"observation.state": 1, "observation.arrival": 2})
    assert ileed.read(tmp_path / "divided").equals(data)
    assert ileed.read(tmp_path / "divided", observations=["observation.arrival"]).encoding.inputs == (
        "observation.arrival[0]",
        "observation.arrival[1]",
    )


def test_observations_are_divided_among_features_and_joined_again(tmp_path):
    data = world(shape=(3,), floating=True)
    keys = {"observation.state": 1, "observation.environment_state": 2}
    written(tmp_path / "data", data, observations=keys)
    assert ileed.read(tmp_path / "data").equals(data)
    state = ileed.read(tmp_path / "data", observations=["observation.environment_state"]).observations
    np.testing.assert_array_equal(state, data.observations[:, 1:])
    with pytest.raises(DemonstrationError, match="take 2 numbers but an observation has 3"):
        written(tmp_path / "other", data, observations={"observation.state": 2})
    with pytest.raises(DemonstrationError, match="'action' cannot name a feature"):
        written(tmp_path / "other", data, observations={"action": 3})
    assert not (tmp_path / "other").exists()


def test_statistics_are_those_of_each_episode_and_of_all(tmp_path):
    data = world(floating=True, discrete=False)
    written(tmp_path / "data", data)
    episodes = pq.read_table(tmp_path / "data/meta/episodes/chunk-000/file-000.parquet").to_pylist()
    for number, row in enumerate(episodes):
        acted = data.actions[data.episode == number].astype(float)
        assert (row["length"], row["dataset_to_index"] - row["dataset_from_index"]) == (len(acted), len(acted))
        np.testing.assert_allclose(row["stats/action/mean"], acted.mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(row["stats/action/q90"], np.quantile(acted, 0.9, axis=0), rtol=1e-12)
    counts = np.array([row["length"] for row in episodes])
    means = np.array([row["stats/action/mean"] for row in episodes])
    of_all = json.loads((tmp_path / "data/meta/stats.json").read_text())
    np.testing.assert_allclose(of_all["action"]["mean"], counts @ means / counts.sum(), rtol=1e-12)
    assert of_all["action"]["count"] == [len(data)]
    assert "operator" not in of_all


@each_version
def test_an_existing_path_is_refused_and_a_failed_write_leaves_nothing(tmp_path, monkeypatch, version):
    (tmp_path / "there").mkdir()
    (tmp_path / "there/note.txt").write_text("mine")
    with refused("path-exists", DemonstrationError):
        written(tmp_path / "there", version=version)
    assert [file.name for file in (tmp_path / "there").iterdir()] == ["note.txt"]
    monkeypatch.setattr(lerobot, "_statistics", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        written(tmp_path / "data", version=version)
    assert [each.name for each in tmp_path.iterdir()] == ["there"]


def test_settings_of_the_writer_are_checked(tmp_path):
    with pytest.raises(SettingsError, match="version is 'v9'"):
        written(tmp_path / "data", version="v9")
    with pytest.raises(SettingsError, match="fps is 0"):
        written(tmp_path / "data", fps=0)


# --- folders of others


def test_a_folder_of_lerobots_own_writer_is_read(toy):
    data = ileed.read(toy, demonstrator=by_column("operator_id"))
    assert (len(data), data.episode_count, data.names) == (15, 3, ("0", "1"))
    np.testing.assert_array_equal(data.observations[:4, 0], [0, 1, 2, 3])
    assert data.observations.dtype == data.actions.dtype == np.float32
    assert data.skills["task"][[0, -1]].tolist() == ["push", "pull"]
    assert np.flatnonzero(data.terminals).tolist() == [3, 8, 14]


def test_the_demonstrator_is_never_guessed(toy):
    with pytest.raises(UnnamedDemonstratorError, match=r"operator_id \(2 values, --demonstrator operator_id\).*by_one"):
        ileed.read(toy)
    assert [tuple(each) for each in format_of(toy).candidates(toy)] == [
        ("feature operator_id", 2, 3, "--demonstrator operator_id")
    ]
    with pytest.raises(DemonstrationError, match=r"no feature 'operator' \(did you mean 'operator_id'"):
        ileed.read(toy, demonstrator=by_column("operator"))


@each_version
@pytest.mark.parametrize("values", [["ann", "bob"], [7, 3]], ids=["words", "numbers"])
def test_a_feature_of_every_frame_says_who(tmp_path, version, values):
    data = world(people=2, floating=True, discrete=False)
    who = [values[number % 2] for number in data.episode]
    path = of_others(written(tmp_path / "data", data, version=version), collector_id=who, step=list(range(len(data))))
    found = ileed.read(path, demonstrator=by_column("collector_id"))
    assert [found.names[person] for person in found.demonstrator] == [str(each) for each in who]
    assert [each.place for each in format_of(path).candidates(path)] == ["feature collector_id"]  # step varies


@each_version
def test_a_column_of_episodes_says_who(tmp_path, version):
    data = world([3, 2, 4], people=2, floating=True, discrete=False)
    path = of_others(written(tmp_path / "data", data, version=version))
    if version == "v2.1":
        file = path / "meta/episodes.jsonl"
        rows = [json.loads(line) | {"user_id": "abc"[k]} for k, line in enumerate(file.read_text().splitlines())]
        file.write_text("".join(json.dumps(row) + "\n" for row in reversed(rows)))
    else:
        file = path / "meta/episodes/chunk-000/file-000.parquet"
        table = pq.read_table(file).append_column("user_id", pa.array(["a", "b", "c"]))
        pq.write_table(table.take([2, 1, 0]), file)
    found = ileed.read(path, demonstrator=by_column("user_id"))
    assert np.array(found.names)[found.episode_demonstrator].tolist() == ["a", "b", "c"]
    assert [tuple(each) for each in format_of(path).candidates(path)] == [
        ("meta/episodes user_id", 3, 3, "--demonstrator user_id")
    ]


def test_a_table_of_episodes_says_who(tmp_path):
    path = of_others(written(tmp_path / "data", world([3, 2, 4], floating=True)))
    table = path / "operators.csv"
    table.write_text("operator;episode;note\nann;0;x\nbob;2;\nbob;1;late\n")
    found = ileed.read(path, demonstrator=by_episode_table(table))
    assert np.array(found.names)[found.episode_demonstrator].tolist() == ["ann", "bob", "bob"]
    assert [each.option for each in format_of(path).candidates(path)] == [f"--episode-table {table}"]
    for content, said in {
        "episode,operator\n0,ann\n1,bob\n": "1 of 3 episodes have no operator in .* (first: 2)",
        "episode,operator\n0,ann\n0,bob\n1,bob\n2,x\n": "gives episode 0 to 'ann' and 'bob'",
        "episode,who\n0,ann\n": "has no column 'operator': it has 'episode', 'who'",
        "": "has no column 'episode'",
    }.items():
        table.write_text(content)
        with pytest.raises(DemonstrationError, match=said.replace("(", r"\(").replace(")", r"\)")):
            ileed.read(path, demonstrator=by_episode_table(table))
    table.write_bytes(b"\xff\xfe\0")
    with pytest.raises(DemonstrationError, match="not a readable CSV"):
        ileed.read(path, demonstrator=by_episode_table(str(table)))
    with pytest.raises(DemonstrationError, match="there is no file"):
        ileed.read(path, demonstrator=by_episode_table(tmp_path / "absent.csv"))


def test_a_table_of_episodes_says_who_in_a_robomimic_file(tmp_path):
    pytest.importorskip("h5py")
    ileed.write_robomimic(world([3, 2], discrete=False, floating=True), tmp_path / "data.hdf5")
    (tmp_path / "who.csv").write_text("episode,pilot\ndemo_0,eve\ndemo_1,dan\n")
    found = ileed.read(tmp_path / "data.hdf5", demonstrator=by_episode_table(tmp_path / "who.csv", column="pilot"))
    assert np.array(found.names)[found.episode_demonstrator].tolist() == ["eve", "dan"]


def test_one_person_or_a_labeller_of_another_format(tmp_path):
    path = of_others(written(tmp_path / "data"))
    assert ileed.read(path, demonstrator=by_one("ann")).names == ("ann",)
    with pytest.raises(DemonstrationError, match="does not apply to LeRobot folders"):
        ileed.read(path, demonstrator=by_mask("a"))


def test_images_are_left_out_with_a_warning_and_not_read(tmp_path, monkeypatch):
    data = world(floating=True)
    path = written(tmp_path / "data", data)
    (file,) = path.glob("data/*/*.parquet")
    images = pa.array([{"bytes": b"png", "path": "a.png"}] * len(data))
    pq.write_table(pq.read_table(file).append_column("observation.images.top", images), file)
    features = json.loads((path / "meta/info.json").read_text())["features"]
    features |= {"observation.images.top": {"dtype": "image", "shape": [4, 4, 3], "names": None}}
    features |= {"observation.images.wrist": {"dtype": "video", "shape": [4, 4, 3], "names": None}}
    changed_info(path, features=features)
    read, asked = ParquetFile.read, []
    monkeypatch.setattr(ParquetFile, "read", lambda self, names: asked.extend(names) or read(self, names))
    assert ileed.read(path).equals(data)  # our own notes name the observations
    (path / "meta/ileed.json").unlink()
    with pytest.warns(UserWarning, match=r"2 features of images left out \(observation.images.top, "):
        ileed.read(path, demonstrator=by_column("operator"))
    ileed.read(path, demonstrator=by_column("operator"), observations=["observation.state"])
    assert asked
    assert not any("images" in name for name in asked)
    with pytest.raises(DemonstrationError, match="holds images, which are not read"):
        ileed.read(path, observations=["observation.images.wrist"])


def test_features_of_two_axes_are_flattened(tmp_path):
    data = world(floating=True)
    path = written(tmp_path / "data", data)
    (file,) = path.glob("data/*/*.parquet")
    points = np.arange(6.0 * len(data)).reshape(-1, 3, 2)
    pq.write_table(pq.read_table(file).append_column("observation.points", pa.array(points.tolist())), file)
    found = ileed.read(path, observations=["observation.state", "observation.points"]).observations
    np.testing.assert_array_equal(found, np.concatenate([data.observations, points.reshape(-1, 6)], axis=1))


# --- refusals


REFUSED = {
    "a part of the folder": (lambda path: changed_info(path, total_frames=999), "hold 30 frames and .* counts 999"),
    "another version": (lambda path: changed_info(path, codebase_version="v1.6"), "version 'v1.6'"),
    "no features": (lambda path: changed_info(path, features=[1]), "describes no features"),
    "no data": (lambda path: shutil.rmtree(path / "data"), "has no data/chunk-000"),
    "info that is no JSON": (lambda path: (path / "meta/info.json").write_text("{"), "not a readable JSON"),
    "info that is no object": (lambda path: (path / "meta/info.json").write_text("[]"), "must hold a JSON object"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_read_is_one_sentence(tmp_path, case):
    path = written(tmp_path / "data")
    spoil, said = REFUSED[case]
    spoil(path)
    with pytest.raises(DemonstrationError, match=said) as caught:
        read_lerobot(path)
    assert len(str(caught.value).splitlines()) == 1


def test_unknown_features_and_misplaced_episodes_are_refused(tmp_path):
    path = written(tmp_path / "data")
    with pytest.raises(DemonstrationError, match=r"no feature 'observation.stat' \(did you mean 'observation.state'"):
        ileed.read(path, observations=["observation.stat"])
    (file,) = path.glob("data/*/*.parquet")
    table = pq.read_table(file)
    pq.write_table(table.take(list(range(len(table)))[::-1]), file)
    with pytest.raises(DemonstrationError, match=r"episode 5 of .* follows nothing"):
        ileed.read(path)
    pq.write_table(pa.concat_tables([table.slice(0, 6), table.slice(10), table.slice(6, 4)]), file)
    with pytest.raises(DemonstrationError, match=r"episode 2 of .* follows episode 0"):
        ileed.read(path)


def test_a_link_out_of_the_folder_is_refused_except_into_the_hubs_cache(tmp_path):
    data = world(floating=True)
    path = written(tmp_path / "hub/snapshots/abc", data)
    (file,) = path.glob("data/*/*.parquet")
    for folder, allowed in (("blobs", True), ("elsewhere", False)):
        target = tmp_path / "hub" / folder / "0123"
        target.parent.mkdir()
        shutil.move(file.resolve(), target)
        file.unlink(missing_ok=True)
        file.symlink_to(target)
        if allowed:
            assert ileed.read(path).equals(data)
        else:
            with pytest.raises(DemonstrationError, match="is a link out of"):
                ileed.read(path)


@each_version
def test_a_folder_that_memory_cannot_hold_is_refused_before_it_is_decoded(tmp_path, monkeypatch, version):
    monkeypatch.setattr(lerobot, "_FILE_BYTES", 1000)
    path = written(tmp_path / "data", world([20] * 10, floating=True), version=version)  # each of its files would fit
    monkeypatch.setattr(_memory, "available_bytes", lambda: 8_000)
    monkeypatch.setattr(ParquetFile, "read", lambda *_: pytest.fail("it was decoded"))
    with pytest.raises(DemonstrationError, match=r"takes .* when decoded"):
        ileed.read(path)


@each_version
@settings(max_examples=60)
@given(chance=st.randoms(use_true_random=False))
def test_a_damaged_folder_is_read_or_refused_in_one_sentence(tmp_path_factory, version, chance):
    path = written(tmp_path_factory.mktemp("lerobot") / "data", world(optional=EVERY_COLUMN), version=version)
    file = chance.choice(sorted(each for each in path.rglob("*") if each.is_file()))
    content = bytearray(file.read_bytes())
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(content))
        kind = chance.choice(["byte", "cut", "gone", "swap"])
        if kind == "byte":
            content[place] = chance.randrange(256)
        elif kind == "cut":
            content = content[: place + 1]
        elif kind == "gone":
            del content[place : place + chance.randint(1, 8)]
            content = content or bytearray(b" ")
        else:
            words = [b"null", b"-1", b"[]", b"{}", b'""', b"1e400", b"\xff"]
            content[place : place + chance.randint(1, 20)] = chance.choice(words)
    file.write_bytes(content)
    for labeller in (None, by_column("operator"), by_column("tasks")):
        said = "read"
        try:
            ileed.read(path, demonstrator=labeller)
            format_of(path).candidates(path)
        except DemonstrationError as error:
            said = str(error)
        assert len(said.splitlines()) == 1


# --- the command


def test_inspect_lists_who_may_have_demonstrated(toy, capsys):
    assert run(["inspect", str(toy)]) == 0
    shown = capsys.readouterr().out
    assert "does not name its demonstrators" in shown
    assert "feature operator_id    2         3           --demonstrator operator_id" in shown
    assert run(["inspect", str(toy), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["candidates"]
    assert found == {
        "place": "feature operator_id", "values": 2, "episodes": 3, "option": "--demonstrator operator_id"
    }  # fmt: skip
    assert run(["inspect", str(toy), "--demonstrator", "operator_id"]) == 0
    assert "2 demonstrators" in capsys.readouterr().out
    assert run(["fit", str(toy), "--out", "nowhere"]) == 2
    assert "it may be feature operator_id" in capsys.readouterr().err


def test_inspect_lists_the_masks_of_a_robomimic_file(tmp_path, capsys):
    h5py = pytest.importorskip("h5py")
    ileed.write_robomimic(world(discrete=False, floating=True), tmp_path / "data.hdf5")
    with h5py.File(tmp_path / "data.hdf5", "r+") as file:
        for number in range(6):
            del file[f"data/demo_{number}/demonstrator"]
            file[f"data/demo_{number}/user"] = [number % 2] * len(file[f"data/demo_{number}/actions"])
        file["mask/gone"] = np.array([b"demo_99"])
    assert run(["inspect", str(tmp_path / "data.hdf5"), "--json"]) == 0
    found = [tuple(each.values()) for each in json.loads(capsys.readouterr().out)["candidates"]]
    masks = [(f"mask {name}", 1, 2, f"--masks {name}") for name in ("ann", "bob", "cyd")]
    assert found == [*masks, ("data set user", 2, 6, "--demonstrator user")]


def test_where_nothing_may_say_who_inspect_says_so(tmp_path, capsys):
    path = of_others(written(tmp_path / "data"))
    assert run(["inspect", str(path)]) == 2
    assert "no feature seems to" in capsys.readouterr().err


def test_convert_keeps_who_demonstrated(tmp_path, capsys):
    pytest.importorskip("h5py")
    data = world(discrete=False, floating=True, optional=["rewards", "phase"])
    ileed.write(data, tmp_path / "a.parquet")
    steps = [("a.parquet", "b", "--format", "lerobot"), ("b", "c.hdf5")]
    steps += [("c.hdf5", "d", "--format", "lerobot", "--lerobot-version", "v2.1", "--fps", "30"), ("d", "e.parquet")]
    for source, target, *options in steps:
        assert run(["convert", str(tmp_path / source), str(tmp_path / target), *options]) == 0
        assert ileed.read(tmp_path / target).equals(data)
    assert json.loads((tmp_path / "d/meta/info.json").read_text())["fps"] == 30
    assert "wrote" in capsys.readouterr().out


def test_convert_refuses_what_it_cannot_do_before_it_reads(tmp_path, capsys):
    ileed.write(world(), tmp_path / "a.parquet")
    before = (tmp_path / "a.parquet").read_bytes()
    for words, said in {
        ("a.parquet", "a.parquet"): "exists already",
        ("absent.parquet", "b"): "b names no format",
        ("absent.parquet", "b", "--format", "lerobt"): "format is 'lerobt'",
        ("absent.parquet", "b.parquet", "--fps", "3"): "--fps does not apply to the format parquet",
        ("absent.parquet", "b", "--format", "lerobot", "--divide", "x"): "--divide is 'x'",
    }.items():
        source, target, *options = words
        assert run(["convert", str(tmp_path / source), str(tmp_path / target), *options]) == 2
        assert said in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["a.parquet"]
    assert (tmp_path / "a.parquet").read_bytes() == before


def test_a_link_to_itself_and_two_columns_of_a_name_are_refused_in_a_sentence(tmp_path):
    data = ileed.Demonstrations(
        observations=np.eye(4, dtype=np.float32),
        actions=[0, 1, 0, 1],
        demonstrator=["a", "a", "b", "b"],
        episode=[0, 0, 1, 1],
    )
    for name in ("loop", "twice"):
        ileed.write(data, tmp_path / name, format="lerobot")
        (tmp_path / name / "meta/ileed.json").unlink()
    file = tmp_path / "loop/meta/episodes/chunk-000/file-000.parquet"
    file.unlink()
    file.symlink_to(file.name)
    frames = next((tmp_path / "twice/data").rglob("*.parquet"))
    table = pq.read_table(frames)
    pq.write_table(table.append_column("operator", table.column("operator")), frames)
    with pytest.raises(DemonstrationError, match="is not a readable parquet file"):
        ileed.read(tmp_path / "loop")
    with pytest.raises(DemonstrationError, match="two columns 'operator': keep one"):
        ileed.read(tmp_path / "twice")


@pytest.mark.parametrize("kind", ["lerobot", "minari", "imitation"])
def test_folders_are_read_from_the_cache_of_the_hub_whose_files_are_links(tmp_path, kind):
    data = world([3, 4], discrete=True)
    written, snapshot = tmp_path / "written-v0", tmp_path / "datasets--a--b" / "snapshots" / "abc" / "written-v0"
    ileed.write(data, written, format=kind)
    blobs = snapshot.parents[2] / "blobs"
    blobs.mkdir(parents=True)
    for number, file in enumerate(file for file in sorted(written.rglob("*")) if file.is_file()):
        place = snapshot / file.relative_to(written)
        place.parent.mkdir(parents=True, exist_ok=True)
        file.rename(blobs / str(number))
        place.symlink_to(blobs / str(number))
    assert ileed.read(snapshot).fingerprint == data.fingerprint
    outside = tmp_path / "outside"
    linked = next(
        file for file in sorted(snapshot.rglob("*")) if file.name in ("info.json", "metadata.json", "state.json")
    )
    linked.resolve().rename(outside)
    linked.unlink()
    linked.symlink_to(outside)
    with pytest.raises(DemonstrationError):
        ileed.read(snapshot)
