"""The mechanism that replaces folders: files of others stay, with and without an exchange, and leftovers go."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from others_work import WORK, add_work, hidden, tree, unsupported

from ileed import RunError
from ileed.runs import files
from ileed.runs.files import Ours, is_taken, remove_partial, replace_folder


def listed(folder: Path) -> list[str]:
    """Our files: of an old folder, one more than of others."""
    if not (folder / "mark").exists():
        return []
    return ["mark", "data/one", *(["data/two"] if (folder / "mark").read_text() == "old" else [])]


OURS = Ours("mark", listed)


def write_ours(path: Path, content: str, *names: str) -> None:
    with replace_folder(path, OURS) as partial:
        (partial / "data").mkdir()
        for name in names or ("data/one", "mark"):
            (partial / name).write_text(content)


# --- files of others


@pytest.mark.parametrize("exchange", [files.exchange, unsupported], ids=["exchange", "no exchange"])
def test_a_folder_is_replaced_file_by_file_and_files_of_others_stay(tmp_path, monkeypatch, exchange):
    monkeypatch.setattr(files, "exchange", exchange)
    write_ours(tmp_path / "out", "old", "data/one", "data/two", "mark")
    work = add_work(tmp_path / "out")
    (tmp_path / "out" / "data" / "mine").write_text(WORK)
    write_ours(tmp_path / "out", "new")
    assert tree(tmp_path / "out") == work | {"data/mine": WORK.encode(), "data/one": b"new", "mark": b"new"}
    assert os.readlink(tmp_path / "out" / "link") == "deep"
    assert (tmp_path / "out" / "empty").is_dir()
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("exchange", [files.exchange, unsupported], ids=["exchange", "no exchange"])
@pytest.mark.parametrize("name", ["data/new", "data/new/inside"])
def test_a_file_of_others_that_has_the_name_of_a_new_one_is_refused(tmp_path, monkeypatch, exchange, name):
    monkeypatch.setattr(files, "exchange", exchange)
    write_ours(tmp_path / "out", "old")
    (tmp_path / "out" / name).parent.mkdir(exist_ok=True)
    (tmp_path / "out" / name).write_text(WORK)
    before = tree(tmp_path)
    with pytest.raises(RunError, match="data/new"):
        write_ours(tmp_path / "out", "new", "data/new", "mark")
    assert tree(tmp_path) == before


def test_a_file_that_appears_during_the_exchange_stays(tmp_path, monkeypatch):
    write_ours(tmp_path / "out", "old")
    real = files.exchange

    def exchange(one: Path, other: Path) -> None:
        if other.name == "out":
            (other / "late").write_text(WORK)
        real(one, other)

    monkeypatch.setattr(files, "exchange", exchange)
    write_ours(tmp_path / "out", "new")
    assert tree(tmp_path) == {"out/data/one": b"new", "out/mark": b"new", "out/late": WORK.encode()}
    assert hidden(tmp_path) == []


def test_a_mark_cannot_name_files_outside_its_folder(tmp_path):
    (tmp_path / "secret").write_text(WORK)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_text(WORK)
    greedy = Ours("mark", lambda folder: ["mark", "../secret", "link/file"])
    with replace_folder(tmp_path / "out", greedy) as partial:
        (partial / "mark").write_text("old")
    (tmp_path / "out" / "link").symlink_to(tmp_path / "elsewhere")
    with replace_folder(tmp_path / "out", greedy) as partial:
        (partial / "mark").write_text("new")
    assert (tmp_path / "secret").read_text() == (tmp_path / "elsewhere" / "file").read_text() == WORK


# --- leftovers


def killed_while_writing(path: Path) -> Path:
    """A workspace as a process leaves it that is killed while it writes."""
    child = os.fork()
    if child == 0:
        with replace_folder(path, OURS) as partial:
            (partial / "half").write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    (left,) = path.parent.glob(f".{path.name}.ileed-*")
    return left


def test_leftovers_of_a_killed_process_are_removed_and_the_workspace_of_a_live_one_is_not(tmp_path):
    write_ours(tmp_path / "out", "old")
    left = killed_while_writing(tmp_path / "out")
    with replace_folder(tmp_path / "out", OURS) as alive:
        (alive / "mark").write_text("slow")
        assert not left.exists()
        remove_partial(tmp_path / "out")
        write_ours(tmp_path / "out", "quick")
        assert (alive / "mark").read_text() == "slow"
    assert tree(tmp_path / "out") == {"mark": b"slow"}
    assert hidden(tmp_path) == []


def test_leftovers_of_a_killed_process_are_removed_also_where_nothing_is_written(tmp_path):
    write_ours(tmp_path / "out", "old")
    killed_while_writing(tmp_path / "out")
    assert is_taken(tmp_path / "out")
    assert hidden(tmp_path) == []
