"""What we write replaces our own files alone, and only when asked; kills, full disks and odd names lose nothing."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from functools import cache
from itertools import count

import numpy as np
import pytest
import torch
from others_work import WORK, add_work, hidden, tree, unsupported
from strategies import world

import ileed
from ileed import DemonstrationError, RunError
from ileed.cli import run as command

TINY = {"policy": ileed.CategoricalMLP(hidden=(4,)), "restarts": 1, "steps": 20, "folds": 0}


@cache
def fitted(seed: int = 0) -> ileed.Fitted:
    return ileed.Ileed(**TINY).fit(world(), seed=seed, device="cpu")


def curated(keep: float = 0.5) -> ileed.Curated:
    return ileed.curate(fitted(), world(), keep=keep)


# --- files of others


def test_curated_episodes_replace_their_own_files_alone(tmp_path):
    curated().write(tmp_path / "out", format="openpi")
    work = add_work(tmp_path / "out")
    written = curated(0.3).write(tmp_path / "out", overwrite=True)
    assert {path.name for path in written} == {"curated.json", "episodes.csv", "episodes.parquet", "stretches.parquet"}
    assert tree(tmp_path / "out").keys() == work.keys() | {path.name for path in written}
    assert (tmp_path / "out" / "deep/er/notes.txt").read_text() == WORK


def test_the_command_curate_refuses_a_folder_that_holds_its_data(tmp_path, capsys):
    fitted().save(tmp_path / "run")
    ileed.write(world(), tmp_path / "data.parquet")
    words = ["curate", str(tmp_path / "run"), "", "--keep", "0.5", "--out", str(tmp_path / "out"), "--overwrite"]
    for data in (tmp_path / "data.parquet", tmp_path / "out" / "data.parquet"):
        if data.parent != tmp_path:
            os.link(tmp_path / "data.parquet", data)
        before = tree(tmp_path)
        words[2] = str(data)
        assert command(words) == (0 if data.parent == tmp_path else 2)
        capsys.readouterr()
    assert tree(tmp_path) == before


def test_a_source_in_the_folder_that_is_to_be_written_is_refused(tmp_path):
    ileed.write(world(), tmp_path / "set", format="lerobot")
    data = ileed.read(tmp_path / "set")
    found = ileed.curate(fitted(), data, keep=0.5)
    with pytest.raises(RunError, match="holds the data"):
        found.write(tmp_path, format="lerobot", source=tmp_path / "set", overwrite=True)


CONTINUOUS = {"robomimic"}
FILES = {"parquet": "a.parquet", "robomimic": "a.hdf5"}
FOLDERS = ("lerobot", "minari", "imitation", "parquet-folder")


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_overwritten_only_when_that_is_asked_for(tmp_path, name):
    data = world(discrete=name not in CONTINUOUS, floating=True)
    path = tmp_path / FILES[name]
    path.write_text(WORK)
    with pytest.raises(DemonstrationError, match="overwrite=True"):
        ileed.write(data, path)
    assert path.read_text() == WORK
    ileed.write(data, path, overwrite=True)
    assert ileed.read(path).equals(data)
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("name", FOLDERS)
def test_a_data_set_in_a_folder_is_overwritten_and_files_of_others_stay(tmp_path, name):
    data, path = world(floating=True), tmp_path / "set-v0"
    ileed.write(data.by("ann"), path, format=name)
    (path / "notes.txt").write_text(WORK)
    with pytest.raises(DemonstrationError, match="overwrite=True"):
        ileed.write(data, path, format=name)
    ileed.write(data, path, format=name, overwrite=True)
    ileed.write(data, tmp_path / "other" / "set-v0", format=name)
    assert tree(path) == tree(tmp_path / "other" / "set-v0") | {"notes.txt": WORK.encode()}
    assert hidden(tmp_path) == []


def test_a_folder_that_holds_no_data_set_of_ours_is_never_overwritten(tmp_path):
    (tmp_path / "set").mkdir()
    work = add_work(tmp_path / "set")
    with pytest.raises(DemonstrationError, match="that ileed wrote"):
        ileed.write(world(), tmp_path / "set", format="lerobot", overwrite=True)
    assert tree(tmp_path / "set") == work


def test_the_command_convert_overwrites_when_asked_and_never_its_data(tmp_path, capsys):
    ileed.write(world(), tmp_path / "data.parquet")
    ileed.write(world(), tmp_path / "set", format="parquet-folder")
    before = tree(tmp_path)
    assert command(["convert", str(tmp_path / "data.parquet"), str(tmp_path / "data.parquet"), "--overwrite"]) == 2
    words = ["convert", str(tmp_path / "set"), str(tmp_path / "set"), "--format", "lerobot", "--overwrite"]
    assert command(words) == 2
    assert tree(tmp_path) == before
    (tmp_path / "other.parquet").write_text(WORK)
    assert command(["convert", str(tmp_path / "set"), str(tmp_path / "other.parquet")]) == 2
    assert (tmp_path / "other.parquet").read_text() == WORK
    assert command(["convert", str(tmp_path / "set"), str(tmp_path / "other.parquet"), "--overwrite"]) == 0
    assert ileed.read(tmp_path / "other.parquet").equals(world())
    capsys.readouterr()


# --- death at any moment


def dies(work: Callable[[], object], moment: int) -> bool:
    """Whether a forked process died before its request to the file system of that number, rather than ended well."""
    child = os.fork()
    if child == 0:
        requests = count()

        def audit(event: str, _: object) -> None:
            if event.startswith(("open", "os.", "shutil.")) and next(requests) == moment:
                os._exit(9)

        sys.addaudithook(audit)
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9)
    return code == 9


def test_a_process_that_dies_at_any_moment_of_an_overwrite_leaves_whole_curated_episodes(tmp_path):
    """Before every third request to the file system; after some deaths the next overwrite removes what was left."""
    old, new, out = curated(), curated(0.3), tmp_path / "cur"
    contents = []
    for place, version in ((tmp_path / "old", old), (tmp_path / "new", new)):
        version.write(place, format="openpi")
        contents.append(tree(place) | {"curated.json": b"", "thesis.tex": WORK.encode()})
    found = []
    for moment in count(0, 3):
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(tmp_path / "old", out)
        (out / "thesis.tex").write_text(WORK)
        if not dies(lambda: new.write(out, format="openpi", overwrite=True), moment):
            break
        assert json.loads((out / "curated.json").read_text())["ileed"]
        found.append(contents.index(tree(out) | {"curated.json": b""}))
        if moment % 5 == 0:
            new.write(out, format="openpi", overwrite=True)
            assert hidden(tmp_path) == []
    assert set(found) == {0, 1}


# --- processes at once


def in_a_process(work) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


@pytest.mark.parametrize("exchanges", [True, False], ids=["exchange", "no exchange"])
def test_processes_that_overwrite_one_run_leave_one_whole_run_and_no_load_mixes_two(tmp_path, monkeypatch, exchanges):
    """Two processes save different fits for two seconds, while this one loads them."""
    if not exchanges:
        monkeypatch.setattr("ileed.runs.files.exchange", unsupported)
    run, both = tmp_path / "run", [fitted(0), fitted(1)]
    both[0].save(run)
    (run / "thesis.tex").write_text(WORK)
    ileed.load(run)  # the first load imports modules, which takes seconds
    end = time.monotonic() + 2

    def save(own: ileed.Fitted) -> None:
        while time.monotonic() < end:
            own.save(run, overwrite=True)

    children = [in_a_process(lambda own=own: save(own)) for own in both]
    costs = {own.provenance["seed"]: own.joint.state_dict() for own in both}
    loads = 0
    while time.monotonic() < end:
        found = ileed.load(run)
        expected = costs[found.provenance["seed"]]
        assert all(torch.equal(value, expected[name]) for name, value in found.joint.state_dict().items())
        loads += 1
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]
    assert loads > 10
    assert tree(run).keys() == {
        "settings.json",
        "provenance.json",
        "history.jsonl",
        "weights.safetensors",
        "thesis.tex",
    }
    assert hidden(tmp_path) == []


# --- checkpoints


def test_a_checkpoint_that_cannot_be_written_is_a_warning_and_the_fit_goes_on(tmp_path, monkeypatch):
    straight = ileed.Ileed(**TINY).fit(world(), seed=0, device="cpu")
    real, calls = os.fsync, iter(range(10_000))

    def full(handle: int) -> None:
        if next(calls) > 8:  # after the first checkpoints
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    how = {"seed": 0, "device": "cpu", "checkpoint": tmp_path / "c", "checkpoint_seconds": 0.0}
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.warns(RuntimeWarning, match="No space left on device") as told:
            found = ileed.Ileed(**TINY).fit(world(), **how)
    assert len(told) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
    for other in (found, ileed.Ileed(**TINY).fit(world(), **how)):
        for name, value in straight.joint.state_dict().items():
            assert torch.equal(other.joint.state_dict()[name], value)


def test_a_checkpoint_at_a_path_that_cannot_be_written_is_refused_before_the_first_step(tmp_path):
    (tmp_path / "file").write_text(WORK)
    with pytest.raises(RunError, match="cannot be written"):
        ileed.Ileed(**TINY).fit(
            world(), seed=0, checkpoint=tmp_path / "file" / "c", progress=lambda step: pytest.fail("a step was taken")
        )


# --- names


@pytest.mark.skipif(os.name != "posix", reason="file names are bytes on POSIX alone")
def test_what_was_saved_to_a_path_that_is_not_utf8_is_loaded(tmp_path):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    fitted().save(folder / "run")
    assert ileed.load(folder / "run").nats_per_action == fitted().nats_per_action
    ileed.report(folder / "run")
    for name, file in (("parquet", "a.parquet"), ("parquet-folder", "parts"), ("minari", "set-v0")):
        ileed.write(world(), folder / file, format=name)
        assert ileed.read(folder / file).equals(world())
    how = {"seed": 0, "device": "cpu", "checkpoint": folder / "c"}
    once, again = (ileed.Ileed(**TINY).fit(world(), **how) for _ in range(2))
    np.testing.assert_array_equal(once.restarts.nats_per_action, again.restarts.nats_per_action)
