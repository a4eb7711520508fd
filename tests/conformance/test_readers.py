"""Every format is read by one signature from one registry, and a package adds a format by an entry point."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from strategies import world

import ileed
from ileed import DemonstrationError, by_column, readers
from ileed.readers import Reader, reader

DATA = world(discrete=False, floating=True, optional=["rewards"])


def write_csv(path: Path) -> None:
    path.write_text("age,nurse,decision\n71,ann,admit\n30,bob,discharge\n")


def write_answers(path: Path) -> None:
    path.mkdir()
    (path / "answer.csv").write_text("question,worker,answer\n1,ann,2\n1,bob,0\n2,ann,2\n")
    (path / "truth.csv").write_text("question,truth\n1,2\n")


WRITE = {
    "parquet": (lambda path: ileed.write_parquet(DATA, path), ileed.read),
    "parquet-folder": (lambda path: ileed.write(DATA, path, format="parquet-folder"), ileed.read),
    "robomimic": (lambda path: ileed.write_robomimic(DATA, path), ileed.read),
    "minari": (lambda path: ileed.write(DATA, path, format="minari"), ileed.read),
    "imitation": (lambda path: ileed.write(DATA, path, format="imitation"), ileed.read),
    "crowd": (write_answers, ileed.read),
    "lerobot": (lambda path: ileed.write(DATA, path, format="lerobot"), ileed.read),
    "table": (write_csv, lambda path: ileed.from_table(path, action="decision", demonstrator="nurse")),
}
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
OURS = {each.name: each for each in readers.readers()}
each_format = pytest.mark.parametrize("format_of", OURS.values(), ids=OURS.keys())


def file_of(format_of: Reader, folder: Path) -> Path:
    path = folder / f"data{format_of.suffixes[0]}"
    WRITE[format_of.name][0](path)
    return path


def files_of(path: Path) -> list[Path]:
    """The files of a data set, which is one file or a folder."""
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def test_every_format_of_ours_is_checked_here():
    assert OURS.keys() == WRITE.keys() == COLUMNS.keys()
    suffixes = [suffix for each in OURS.values() for suffix in each.suffixes if suffix]  # a folder has none
    assert len(set(suffixes)) == len(suffixes)
    assert all(suffix.startswith(".") and suffix.islower() for suffix in suffixes)


@each_format
def test_readers_have_one_signature(format_of):
    first, who, *options = inspect.signature(format_of.read).parameters.values()
    assert (first.name, first.kind) == ("path", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    assert (who.name, who.kind, who.default) == ("demonstrator", inspect.Parameter.KEYWORD_ONLY, None)
    assert all(option.kind is inspect.Parameter.KEYWORD_ONLY and option.default is None for option in options)


@each_format
def test_a_file_is_of_its_format_whatever_the_case_of_its_suffix(format_of, tmp_path):
    assert readers.reader_of(file_of(format_of, tmp_path)) is format_of
    for suffix in filter(None, format_of.suffixes):
        assert readers.reader_of(tmp_path / f"data{suffix}") is format_of
        assert format_of.can_read(tmp_path / f"data{suffix.upper()}")
    assert not format_of.can_read(tmp_path / "data.txt")


@each_format
def test_the_names_of_columns_are_told(format_of, tmp_path):
    assert list(format_of.columns(file_of(format_of, tmp_path))) == COLUMNS[format_of.name]


@each_format
def test_reading_twice_gives_the_same_and_leaves_the_file_as_it_is(format_of, tmp_path):
    path = file_of(format_of, tmp_path)
    before = {file: file.read_bytes() for file in files_of(path)}
    read = WRITE[format_of.name][1]
    assert read(path).equals(read(path))
    assert {file: file.read_bytes() for file in files_of(path)} == before


@each_format
@pytest.mark.parametrize("share", [0, 0.3, 0.9])
def test_a_file_cut_short_is_one_sentence(format_of, share, tmp_path):
    path = file_of(format_of, tmp_path)
    for file in files_of(path):
        whole = file.read_bytes()
        file.write_bytes(whole[: int(share * len(whole))])
        for call in (ileed.read, format_of.columns):
            said = "read"
            try:
                call(path)
            except DemonstrationError as error:
                said = str(error)
            assert len(said.splitlines()) == 1
        file.write_bytes(whole)


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
from ileed import Demonstrations
from ileed.readers import Reader, by_column

def rows(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]

def read_lines(path, *, demonstrator=None, limit=None):
    found = rows(path)[:limit]
    who = demonstrator.column if isinstance(demonstrator, by_column) else "who"
    columns = {name: [row[key] for row in found] for name, key in (("observations", "seen"), ("actions", "did"))}
    people = [row[who] for row in found]
    return Demonstrations(**columns, demonstrator=people, episode=np.arange(len(found)))

READER = Reader("lines", (".jsonl", ""), read_lines, lambda path: list(rows(path)[0]), lambda path: path.is_file())
WRONG = read_lines
"""


def write_lines(path: Path) -> Path:
    path.write_text("".join(json.dumps({"seen": [k], "did": k % 2, "who": "ab"[k % 2]}) + "\n" for k in range(6)))
    return path


def test_a_further_format_is_one_module_and_its_name(tmp_path, monkeypatch):
    (tmp_path / "lines.py").write_text(LINES)
    monkeypatch.setattr(readers, "__path__", [*readers.__path__, str(tmp_path)])
    monkeypatch.setattr(reader, "_OURS", (*reader._OURS, "lines"))
    monkeypatch.delitem(sys.modules, "ileed.readers.lines", raising=False)
    data = ileed.read(write_lines(tmp_path / "steps.jsonl"), limit=4)
    assert (len(data), data.names) == (4, ("a", "b"))
    monkeypatch.delitem(sys.modules, "ileed.readers.lines")
    monkeypatch.delattr(readers, "lines")


@pytest.fixture
def package(tmp_path) -> Path:
    """A package that contributes a format, one that is none, and one that cannot be had, as pip would install it."""
    (tmp_path / "lines.py").write_text(LINES)
    about = tmp_path / "lines-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: lines\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[ileed.readers]\nlines = lines:READER\n")
    return tmp_path


def ended(code: str, package: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(package), str(Path(ileed.__file__).parents[1])])
    environment = os.environ | {"PYTHONPATH": path}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=package)


def test_a_package_adds_a_format_that_the_library_and_the_command_read(package):
    write_lines(package / "steps.jsonl")
    write_lines(package / "steps")
    told = ended("import ileed; print(len(ileed.read('steps.jsonl', limit=5)), ileed.read('steps').names)", package)
    assert (told.stdout, told.stderr) == ("5 ('a', 'b')\n", "")
    code = "import sys; from ileed.cli import run; sys.exit(run(['inspect', 'steps.jsonl', '--json']))"
    told = ended(code, package)
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["demonstrators"] == {"a": 3, "b": 3}
    code = "import ileed\ntry: ileed.read('entry.xyz')\nexcept ileed.IleedError as error: print(error)"
    (package / "entry.xyz").write_text("")
    assert ".jsonl" in ended(code, package).stdout


@pytest.mark.parametrize(
    ("entry", "says"),
    [("lines:WRONG", "must name an ileed.readers.Reader"), ("lines:ABSENT", "contributes, cannot be loaded")],
)
def test_a_contributed_format_that_cannot_be_had_is_one_sentence_and_ours_are_read(package, entry, says):
    (package / "lines-1.0.dist-info" / "entry_points.txt").write_text(f"[ileed.readers]\nlines = {entry}\n")
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
    lines = namespace["READER"]
    assert isinstance(lines, Reader)
    assert lines.options == ("limit",)
    data = lines.read(write_lines(tmp_path / "steps.jsonl"), demonstrator=by_column("did"))
    np.testing.assert_array_equal(data.demonstrator, data.actions)
