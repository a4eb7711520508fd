"""No command loses work: what we did not write is never touched, and what we wrote is replaced only when asked for."""

import errno
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ileed
from ileed import runs
from ileed.cli import run
from ileed.fitting import loop

QUICK = ("--restarts", "2", "--steps", "20", "--policy", "CategoricalMLP(hidden=(4,4))")


@pytest.fixture
def data(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    table = {
        "observation": list(rng.integers(0, 3, size=(60, 4)).astype(np.float32)),
        "action": rng.integers(0, 3, size=60),
        "demonstrator": np.repeat(["ann", "bob", "cy"], 20),
        "episode": np.repeat(np.arange(6), 10),
    }
    pq.write_table(pa.table(table), "t.parquet")
    return tmp_path


def command(*arguments: object) -> int:
    return run([str(argument) for argument in arguments])


def fit(*arguments: object) -> int:
    return command("fit", "t.parquet", *QUICK, *arguments)


def tree(path: Path) -> dict[str, bytes]:
    return {str(item.relative_to(path)): item.read_bytes() for item in sorted(path.rglob("*")) if item.is_file()}


def weights(path: Path) -> bytes:
    return (path / "weights.safetensors").read_bytes()


def refusal(capsys) -> str:
    printed, said = capsys.readouterr()
    assert printed == ""
    assert said.startswith("ileed: ")
    assert said.count("\n") == 1, "a refusal is one sentence"
    return said


@pytest.fixture
def unread(data):
    """Of data that cannot be read a command can refuse only what it finds out before it reads them."""
    (data / "t.parquet").write_bytes(b"no parquet")


# --- line 1: what is not ours


def test_a_folder_with_a_foreign_settings_file_is_refused_before_any_work(data, capsys, unread):
    (data / "p").mkdir()
    (data / "p" / "settings.json").write_text("{}")
    (data / "p" / "thesis.tex").write_text("years of work")
    before = tree(data)
    for words in ((), ("--overwrite",)):
        assert fit("--out", "p", *words) == 2
        assert "p exists and is not a run directory: choose another place" in refusal(capsys)
    assert tree(data) == before


@pytest.mark.parametrize("name", ["settings.json", "weights.safetensors", "report.html", ".hidden", "folder/"])
def test_a_folder_that_is_not_ours_and_not_empty_is_refused_whatever_it_holds(data, capsys, unread, name):
    (data / "p").mkdir()
    (data / "p" / name).mkdir() if name.endswith("/") else (data / "p" / name).write_text('{"ileed": 1}')
    assert fit("--out", "p", "--overwrite") == 2
    assert name.rstrip("/") in refusal(capsys)


def test_an_empty_folder_may_be_used(data):
    (data / "p").mkdir()
    assert fit("--out", "p") == 0
    assert ileed.load("p").expertise.names == ("ann", "bob", "cy")


def test_the_folder_one_stands_in_may_be_used(data, monkeypatch):
    (data / "p").mkdir()
    monkeypatch.chdir(data / "p")
    assert command("fit", "../t.parquet", *QUICK, "--out", ".") == 0
    assert ileed.load(data / "p").expertise.names == ("ann", "bob", "cy")
    assert sorted(path.name for path in data.iterdir()) == ["p", "t.parquet"]


def test_a_users_files_in_a_run_outlive_its_replacement(data):
    assert fit("--out", "p") == 0
    (data / "p" / "thesis.tex").write_text("years of work")
    (data / "p" / "notes").mkdir()
    (data / "p" / "notes" / "settings.json").write_text("mine")
    before = weights(data / "p")
    assert fit("--out", "p", "--overwrite", "--seed", "1") == 0
    assert weights(data / "p") != before
    assert (data / "p" / "thesis.tex").read_text() == "years of work"
    assert (data / "p" / "notes" / "settings.json").read_text() == "mine"


def test_a_report_of_the_run_before_does_not_outlive_it(data):
    """It would tell of weights that are gone; a page of the user's own under the same name stays."""
    assert fit("--out", "p") == 0
    assert command("report", "p") == 0
    assert fit("--out", "p", "--overwrite", "--seed", "1") == 0
    assert not (data / "p" / "report.html").exists()
    (data / "p" / "report.html").write_text("<html>mine</html>")
    assert fit("--out", "p", "--overwrite", "--seed", "2") == 0
    assert (data / "p" / "report.html").read_text() == "<html>mine</html>"


# --- line 2: a second fit


@pytest.mark.parametrize("words", [(), ("--out", "p")], ids=["the default place", "a named place"])
def test_a_second_fit_into_a_run_is_refused_with_both_choices_before_any_work(data, capsys, words):
    assert fit(*words) == 0
    capsys.readouterr()
    before = tree(data)
    written = (data / "t.parquet").read_bytes()
    (data / "t.parquet").write_bytes(b"no parquet")
    assert fit(*words, "--seed", "1") == 2
    said = refusal(capsys)
    (data / "t.parquet").write_bytes(written)
    assert "already holds a run" in said
    assert "--overwrite" in said
    assert "--out" in said
    assert tree(data) == before
    assert fit(*words, "--seed", "1", "--overwrite") == 0
    assert tree(data).keys() == before.keys()
    assert tree(data) != before


def test_the_demo_replaces_its_own_run_and_no_other(data, capsys, monkeypatch):
    real = ileed.Ileed.fit
    quick = {"restarts": 1, "steps": 3, "folds": 0}
    monkeypatch.setattr(ileed.Ileed, "fit", lambda self, *data, **how: real(replace(self, **quick), *data, **how))
    demo = ("demo", "--episodes", "2", "--json")
    assert command(*demo) == 0
    assert command(*demo) == 0
    assert fit("--out", "runs/mine") == 0
    capsys.readouterr()
    before = tree(data)
    assert command(*demo, "--out", "runs/mine") == 2
    assert "already holds a run" in refusal(capsys)
    assert tree(data) == before


# --- line 3: save, then remove the checkpoint


def test_a_disk_that_is_full_at_the_save_does_not_lose_the_fit(data, capsys, monkeypatch):
    assert fit("--out", "straight") == 0
    real = os.replace

    def full(source, target):
        if Path(target).name == "run":
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        assert fit("--out", "run") == 2
    assert "No space left on device" in capsys.readouterr().err
    kept = sorted(path.name for path in data.iterdir())
    assert [name for name in kept if not name.startswith("run.checkpoint-")] == [
        "run.checkpoint",
        "straight",
        "t.parquet",
    ]
    with monkeypatch.context() as patch:
        patch.setattr(loop._Optimisation, "_advance", lambda *_: pytest.fail("a step was taken again"))
        assert fit("--out", "run") == 0
    assert weights(data / "run") == weights(data / "straight")
    assert sorted(path.name for path in data.iterdir()) == ["run", "straight", "t.parquet"]


def test_the_checkpoint_is_there_until_the_run_is_whole(data, monkeypatch):
    found = []
    real = runs.write_run

    def write(path, *arguments, **options):
        found.append((data / "run.checkpoint").exists())
        real(path, *arguments, **options)
        found.append((data / "run.checkpoint").exists())

    monkeypatch.setattr(runs, "write_run", write)
    assert fit("--out", "run") == 0
    assert found == [True, True]
    assert not (data / "run.checkpoint").exists()


def unwritable(kind: str, data: Path, patch: pytest.MonkeyPatch) -> str:
    """A place that cannot be written, of the given kind."""
    if kind == "below a file":
        (data / "file").write_text("")
        return "file/run"
    if kind == "a name too long":
        return "x" * 250
    if kind == "a link that leads nowhere":
        (data / "run").symlink_to(data / "nowhere")
        return "run"
    if kind == "a full disk":

        def full(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr(os, "fsync", full)
        return "run"

    def forbidden(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    patch.setattr(os, "mkdir", forbidden)
    return "deep/run"


@pytest.mark.parametrize(
    "kind", ["below a file", "a name too long", "a link that leads nowhere", "a full disk", "a read-only disk"]
)
def test_a_place_that_cannot_be_written_is_found_out_before_the_data_are_read(data, capsys, unread, monkeypatch, kind):
    with monkeypatch.context() as patch:
        out = unwritable(kind, data, patch)
        before = sorted(os.listdir())
        assert fit("--out", out) == 2
    assert out in refusal(capsys)
    assert sorted(os.listdir()) == before


def test_finding_out_whether_a_place_can_be_written_leaves_nothing(data, capsys):
    assert command("fit", "nowhere.parquet", "--out", "deep/deeper/run") == 2
    assert "there is no file nowhere.parquet" in refusal(capsys)
    assert [path.name for path in data.iterdir()] == ["t.parquet"]


# --- line 4: reports and figures


@pytest.fixture
def fitted_run(data) -> Path:
    assert fit("--out", "run") == 0
    return data / "run"


@pytest.mark.parametrize("target", ["t.parquet", "page.html", "run/settings.json", "run/report.html"])
def test_a_report_replaces_no_file_that_we_did_not_write(data, fitted_run, capsys, target):
    for page in ("page.html", "run/report.html"):
        (data / page).write_text("<!DOCTYPE html><title>mine</title>")
    before = tree(data)
    capsys.readouterr()
    assert command("report", "run", "--out", target) == 2
    said = refusal(capsys)
    assert target in said
    assert "not a report by ileed" in said
    assert tree(data) == before


def test_a_report_replaces_the_report_before_it(data, fitted_run):
    for words in ((), ("--out", "page.html")):
        assert command("report", "run", *words) == 0
        assert command("report", "run", *words) == 0


def test_a_figure_replaces_no_file_that_we_did_not_draw(data, fitted_run, capsys):
    (data / "figures").mkdir()
    (data / "figures" / "learning.svg").write_text('<?xml version="1.0"?><svg><!-- mine --></svg>')
    before = tree(data / "figures")
    capsys.readouterr()
    assert command("report", "run", "--figures", "figures") == 2
    assert "figures/learning.svg" in capsys.readouterr().err
    assert tree(data / "figures") == before
    (data / "figures" / "learning.svg").unlink()
    assert command("report", "run", "--figures", "figures") == 0
    assert command("report", "run", "--figures", "figures") == 0
