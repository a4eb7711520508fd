"""Every format is read by one signature from one registry, and a package adds a format by an entry point."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import demonstrations, world

import ileed
from ileed import DemonstrationError, Demonstrations, by_column, formats
from ileed.formats import AbstractFormat
from ileed.testing import check_format

DATA = world(discrete=False, floating=True, optional=["rewards"])


def write_csv(path: Path) -> None:
    path.write_text("age,nurse,decision\n71,ann,admit\n30,bob,discharge\n")


def write_answers(path: Path) -> None:
    path.mkdir()
    (path / "answer.csv").write_text("question,worker,answer\n1,ann,2\n1,bob,0\n2,ann,2\n")
    (path / "truth.csv").write_text("question,truth\n1,2\n")


BY_HAND = {"crowd": write_answers, "table": write_csv}
OPTIONS = {"table": {"action": "decision", "demonstrator": by_column("nurse")}}
FRAMES = ("timestamp", "frame_index", "episode_index", "index", "task_index")
COLUMNS = {
    "parquet": ["observation", "action", "demonstrator", "episode", "reward"],
    "parquet-folder": ["observation", "action", "demonstrator", "episode", "reward"],
    "robomimic": ["actions", "demonstrator", "obs", "rewards"],
    "minari": ["actions", "observations", "rewards", "terminations", "truncations"],
    "imitation": ["obs", "acts", "infos", "terminal", "rews"],
    "crowd": ["question", "worker", "answer"],
    "lerobot": ["observation.state", "action", "operator", "next.reward", *FRAMES],
    "table": ["age", "nurse", "decision"],
}
OURS = {each.name: each for each in formats.formats()}
each_format = pytest.mark.parametrize("format_of", OURS.values(), ids=OURS.keys())


def file_of(format_of: AbstractFormat, folder: Path) -> Path:
    path = folder / f"data{format_of.suffixes[0]}"
    BY_HAND.get(format_of.name, lambda path: ileed.write(DATA, path, format=format_of.name))(path)
    return path


def test_every_format_of_ours_is_checked_here():
    assert OURS.keys() == COLUMNS.keys()
    suffixes = [suffix for each in OURS.values() for suffix in each.suffixes if suffix]  # a folder has none
    assert len(set(suffixes)) == len(suffixes)
    assert all(suffix.startswith(".") and suffix.islower() for suffix in suffixes)


@each_format
def test_every_format_keeps_its_laws(format_of, tmp_path):
    """What is written is read back, what cannot be held is refused, and files cut short raise one of our errors."""
    if format_of.extra == "robot":
        pytest.importorskip("h5py")
    path = None if format_of.write else file_of(format_of, tmp_path)
    check_format(format_of, path, **OPTIONS.get(format_of.name, {}))


each_writer = pytest.mark.parametrize(
    "format_of", [each for each in OURS.values() if each.write], ids=lambda each: each.name
)


def written(data: Demonstrations, format_of: AbstractFormat, folder: Path) -> Demonstrations:
    """What a format makes of data when they are written and read."""
    if format_of.extra == "robot":
        pytest.importorskip("h5py")
    path = folder / f"data{format_of.suffixes[0]}"
    ileed.write(data, path, format=format_of.name)
    return ileed.read(path)


@each_writer
@given(data=demonstrations())
def test_writing_then_reading_changes_nothing(tmp_path_factory, format_of, data):
    assume(not (data.discrete and format_of.name == "robomimic"))  # whose actions are continuous
    found = written(data, format_of, tmp_path_factory.mktemp(format_of.name))
    assert found.equals(data)
    np.testing.assert_array_equal(found.episode, data.episode)


@each_writer
@given(
    data=demonstrations(discrete=st.just(False), optional=()),
    observation_kind=st.sampled_from(["f4", "f8", ">f4", "i1", "i8", "u1", "?"]),
    action_kind=st.sampled_from(["f4", "f8"]),
)
def test_numbers_keep_their_type(tmp_path_factory, format_of, data, observation_kind, action_kind):
    assume(observation_kind != ">f4" or format_of.extra == "robot")  # Arrow has no such numbers, HDF5 does
    seen, done = data.observations.astype(observation_kind), data.actions.astype(action_kind)
    kept = replace(data, observations=seen, actions=done)
    assert written(kept, format_of, tmp_path_factory.mktemp(format_of.name)).equals(kept)


@each_writer
def test_several_observations_keep_their_names(format_of, tmp_path):
    arrays = {"state": np.linspace(0, 1, 15, dtype=np.float32).reshape(5, 3), "wrist": np.ones((5, 2, 2), np.uint8)}
    actions = np.linspace(-1, 1, 5)[:, None]
    data = Demonstrations(observations=arrays, actions=actions, demonstrator=["ann"] * 5, episode=[0, 0, 0, 1, 1])
    assert written(data, format_of, tmp_path).equals(data)


@each_writer
def test_an_option_that_a_writer_lacks_is_refused_before_anything_is_written(format_of, tmp_path):
    path = tmp_path / f"data{format_of.suffixes[0]}"
    with pytest.raises(DemonstrationError, match="colour does not apply to the format") as caught:
        ileed.write(DATA, path, format=format_of.name, colour="red")
    assert all(option in str(caught.value) for option in format_of.write_options)
    assert not path.exists()


@each_format
def test_a_file_is_of_its_format_whatever_the_case_of_its_suffix(format_of, tmp_path):
    assert formats.format_of(file_of(format_of, tmp_path)) is format_of
    for suffix in filter(None, format_of.suffixes):
        assert formats.format_of(tmp_path / f"data{suffix}") is format_of
        assert format_of.can_read(tmp_path / f"data{suffix.upper()}")
    assert not format_of.can_read(tmp_path / "data.txt")


@each_format
def test_a_format_lists_the_names_of_columns(format_of, tmp_path):
    assert list(format_of.columns(file_of(format_of, tmp_path))) == COLUMNS[format_of.name]


@each_format
def test_an_option_of_another_format_is_refused_with_those_that_there_are(format_of, tmp_path):
    with pytest.raises(DemonstrationError, match="colour does not apply to") as caught:
        ileed.read(file_of(format_of, tmp_path), colour="red")
    assert all(option in str(caught.value) for option in format_of.options)


def test_an_unknown_format_is_answered_with_those_that_there_are(tmp_path):
    (tmp_path / "data.xyz").write_text("")
    with pytest.raises(DemonstrationError, match=r"data.xyz is of no known format: .*\.parquet, \.hdf5, \.h5, \.csv"):
        ileed.read(tmp_path / "data.xyz")


LINES = """
import json
from pathlib import Path
import numpy as np
from ileed import DemonstrationError, Demonstrations
from ileed.formats import AbstractFormat

class Lines(AbstractFormat):
    name, suffixes = "lines", (".jsonl", "")

    def _rows(self, path):
        try:
            return [json.loads(line) for line in Path(path).read_text().splitlines()]
        except ValueError as error:
            raise DemonstrationError(f"{path} is damaged: copy it again") from error

    def read(self, path, *, demonstrator=None, limit=None):
        found = self._rows(path)[:limit]
        who = "who" if demonstrator is None else demonstrator.place
        try:
            seen, did, people = ([row[name] for row in found] for name in ("seen", "did", who))
        except LookupError as error:
            raise DemonstrationError(f"{path} lacks {error}: copy it again") from error
        return Demonstrations(observations=seen, actions=did, demonstrator=people, episode=np.arange(len(found)))

    def columns(self, path):
        return list((self._rows(path) or [{}])[0])

    def recognises(self, path):
        return path.is_file()

FORMAT = Lines()
WRONG = print
"""


def write_lines(path: Path) -> Path:
    path.write_text("".join(json.dumps({"seen": [k], "did": k % 2, "who": "ab"[k % 2]}) + "\n" for k in range(6)))
    return path


def test_a_further_format_is_one_module_and_one_line(tmp_path, monkeypatch):
    namespace: dict[str, object] = {}
    exec(LINES, namespace)
    monkeypatch.setattr(formats, "_OURS", (*formats._OURS, namespace["FORMAT"]))
    data = ileed.read(write_lines(tmp_path / "steps.jsonl"), limit=4)
    assert (len(data), data.names) == (4, ("a", "b"))


@pytest.fixture
def package(tmp_path) -> Path:
    """A package that contributes a format, one that is none, and one that cannot be had, as pip would install it."""
    (tmp_path / "lines.py").write_text(LINES)
    about = tmp_path / "lines-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: lines\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[ileed.formats]\nlines = lines:FORMAT\n")
    return tmp_path


def ended(code: str, package: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(package), str(Path(ileed.__file__).parents[1])])
    environment = os.environ | {"PYTHONPATH": path}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=package)


def test_a_package_adds_a_format_that_the_library_and_the_command_read(package):
    write_lines(package / "steps.jsonl")
    write_lines(package / "steps")
    (package / "entry.xyz").write_text("")
    code = (
        "import ileed, sys; print(len(ileed.read('steps.jsonl', limit=5)), ileed.read('steps').names)\n"
        "try: ileed.read('entry.xyz')\nexcept ileed.IleedError as error: print(error, flush=True)\n"
        "from ileed.cli import run; sys.exit(run(['inspect', 'steps.jsonl', '--json']))"
    )
    told = ended(code, package)
    assert (told.returncode, told.stderr) == (0, "")
    read, refused, *inspected = told.stdout.splitlines()
    assert read == "5 ('a', 'b')"
    assert ".jsonl" in refused
    assert json.loads("\n".join(inspected))["demonstrators"] == {"a": 3, "b": 3}


@pytest.mark.parametrize(
    ("entry", "says"),
    [("lines:WRONG", "must name an ileed.formats.AbstractFormat"), ("lines:ABSENT", "contributes, cannot be loaded")],
)
def test_a_contributed_format_that_cannot_be_had_is_one_sentence_and_ours_are_read(package, entry, says):
    (package / "lines-1.0.dist-info" / "entry_points.txt").write_text(f"[ileed.formats]\nlines = {entry}\n")
    write_lines(package / "steps.jsonl")
    ileed.write_parquet(DATA, package / "data.parquet")
    code = (
        f"import ileed; print(len(ileed.read('data.parquet')) == {len(DATA)})\n"
        "try: ileed.read('steps.jsonl')\nexcept ileed.IleedError as error: print(error)"
    )
    first, second = ended(code, package).stdout.splitlines()
    assert first == "True"
    assert says in second


def test_a_contributed_format_may_be_labelled_by_a_column(tmp_path):
    namespace: dict[str, object] = {}
    exec(LINES, namespace)
    lines = namespace["FORMAT"]
    assert isinstance(lines, AbstractFormat)
    assert lines.options == ("limit",)
    path = write_lines(tmp_path / "steps.jsonl")
    data = lines.read(path, demonstrator=by_column("did"))
    np.testing.assert_array_equal(data.demonstrator, data.actions)
    check_format(lines, path, limit=4)
