"""Run directories: what was saved is what is loaded, damage is one sentence, and a failed write changes nothing."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file, save_file
from strategies import world

import ileed
from ileed import (
    Boltzmann,
    CategoricalMLP,
    Constant,
    Embedded,
    Ileed,
    LatentDynamics,
    MixtureMLP,
    OneVersusRest,
    Perfect,
    RunError,
    SettingsError,
    Skills,
    UniformMixture,
    VarianceScaling,
)
from ileed.runs import _describe_checkout, csv_bytes, files, remove_file, write_file

MIXTURE = MixtureMLP(hidden=(4,), modes=2)
METHODS = {
    "defaults": Ileed(),
    "uniform mixture, constant": Ileed(demonstrator=UniformMixture(), expertise=Constant()),
    "one versus rest, shared": Ileed(demonstrator=OneVersusRest(), expertise=Embedded(dim=3, shared=True)),
    "boltzmann, skills": Ileed(demonstrator=Boltzmann(), expertise=Skills("phase")),
    "skill weights": Ileed(expertise=Skills("load")),
    "cloning": Ileed(policy=CategoricalMLP(hidden=(5,)), expertise=Perfect()),
    "latent dynamics": Ileed(dynamics=LatentDynamics(weight=0.5), clip=1.0, batch_size=16),
    "held out": Ileed(held_out=0.4, normalise=True),
    "continuous": Ileed(policy=MIXTURE, demonstrator=VarianceScaling(scaled="standard_deviation")),
    "continuous cloning": Ileed(policy=MIXTURE, expertise=Perfect(), normalise=False),
}


@cache
def fitted(kind: str = "defaults") -> ileed.Fitted:
    data = world(discrete="continuous" not in kind, optional=["phase", "load"], shape=(2, 2), floating=True)
    return replace(METHODS[kind], restarts=3, steps=5).fit(data, seed=1, device="cpu")


def probe() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(7, 2, 2)).astype(np.float32)


@pytest.mark.parametrize("kind", METHODS)
def test_what_was_saved_is_what_is_loaded(tmp_path, kind):
    before = fitted(kind)
    before.save(tmp_path / "run")
    after = ileed.load(tmp_path / "run")
    assert_same(before, after)


def assert_same(before: ileed.Fitted, after: ileed.Fitted) -> None:
    one, other = (found.policy.distribution(probe()) for found in (before, after))
    action = one.sample()
    assert torch.equal(one.log_prob(action), other.log_prob(action))
    np.testing.assert_array_equal(before.policy.act(probe()), after.policy.act(probe()))
    skills = None if not before.expertise.skill_names else np.full((7, len(before.expertise.skill_names)), 0.5)
    for name in before.expertise.names:
        np.testing.assert_array_equal(
            before.expertise(probe(), name, skills=skills), after.expertise(probe(), name, skills=skills)
        )
    assert after.expertise.by_demonstrator() == before.expertise.by_demonstrator()
    assert after.expertise.ranking() == before.expertise.ranking()
    if skills is not None:
        assert after.expertise.by_skill() == before.expertise.by_skill()
    for name, value in vars(before.expertise.summary).items():
        found = getattr(after.expertise.summary, name)
        assert found is value is None or torch.equal(found, value), name
    np.testing.assert_array_equal(after.restarts.nats_per_action, before.restarts.nats_per_action)
    assert after.restarts.chosen == before.restarts.chosen
    np.testing.assert_array_equal(after.history.step, before.history.step)
    rounded = {"rtol": 0, "atol": 5.1e-7}  # the curve is written with six decimals
    np.testing.assert_allclose(after.history.nats_per_action, before.history.nats_per_action, **rounded)
    assert (after.history.held_out is None) == (before.history.held_out is None)
    if before.history.held_out is not None:
        np.testing.assert_allclose(after.history.held_out, before.history.held_out, **rounded)
    assert after.outcome is before.outcome
    assert after.method == before.method
    assert after.provenance == before.provenance
    assert after.policy.observation_shape == before.policy.observation_shape
    assert repr(after) == repr(before)


def test_a_restart_that_became_infinite_is_remembered_as_such(tmp_path):
    broken = replace(
        fitted(),
        restarts=replace(fitted().restarts, nats_per_action=np.array([np.inf, 1.5, 2.0]), kept=(1,)),
        nats_per_action=1.5,
    )
    broken.save(tmp_path / "run")
    loaded = ileed.load(tmp_path / "run")
    assert loaded.restarts.nats_per_action.tolist() == [np.inf, 1.5, 2.0]
    assert loaded.nats_per_action == 1.5
    assert json.loads((tmp_path / "run" / "settings.json").read_text())["restarts"] == [None, 1.5, 2.0]


def test_a_run_is_plain_files_that_name_where_they_came_from(tmp_path):
    fitted().save(tmp_path / "run")
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {"settings.json", "provenance.json", "history.jsonl", "weights.safetensors"}
    provenance = json.loads((tmp_path / "run" / "provenance.json").read_text())
    assert {"format", "ileed", "commit", "date", "python", "torch", "seed", "device", "data"} <= provenance.keys()
    assert provenance["seed"] == 1
    assert provenance["data"]["fingerprint"]


# --- settings that cannot be understood


def edited(run: Path, file: str, change) -> None:
    content = json.loads((run / file).read_text())
    (run / file).write_text(json.dumps(change(content)))


@pytest.mark.parametrize(
    ("change", "fragments"),
    [
        (lambda s: s | {"method": s["method"] | {"colour": 1}}, ["unknown setting(s) ['colour']", "Ileed has"]),
        (lambda s: s | {"parts": s["parts"] | {"dropout": 0.5}}, ["unknown setting(s) ['dropout']", "Parts has"]),
        (lambda s: s | {"parts": s["parts"] | {"policy": {"kind": "Transformer"}}}, ["unknown kind 'Transformer'"]),
        (lambda s: s | {"sizes": {"kind": "Sizes", "inputs": 3}}, ["settings of Sizes are incomplete"]),
    ],
    ids=["an unknown setting", "an unknown part", "an unknown kind", "a missing setting"],
)
def test_settings_that_are_not_known_are_refused_by_name(tmp_path, change, fragments):
    fitted().save(tmp_path / "run")
    edited(tmp_path / "run", "settings.json", change)
    with pytest.raises(SettingsError) as refusal:
        ileed.load(tmp_path / "run")
    for fragment in fragments:
        assert fragment in str(refusal.value)


# --- damage


def cut(name: str):
    return lambda run: (run / name).write_bytes((run / name).read_bytes()[:-40])


def gone(name: str):
    return lambda run: (run / name).unlink()


def holding(name: str, text: str):
    return lambda run: (run / name).write_text(text)


def without_a_tensor(run: Path) -> None:
    tensors = load_file(run / "weights.safetensors")
    tensors.pop(next(name for name in tensors if name.startswith("joint.policy")))
    save_file(tensors, run / "weights.safetensors")


def of_another_shape(run: Path) -> None:
    tensors = load_file(run / "weights.safetensors")
    name = next(name for name in tensors if name.startswith("joint.policy"))
    save_file(tensors | {name: torch.zeros(1, 2, 99)}, run / "weights.safetensors")


DAMAGE = {
    "settings missing": (gone("settings.json"), "not a run directory"),
    "settings cut": (cut("settings.json"), "damaged"),
    "settings empty": (holding("settings.json", ""), "damaged"),
    "settings a list": (holding("settings.json", "[]"), "damaged"),
    "settings without parts": (holding("settings.json", "{}"), "damaged"),
    "provenance missing": (gone("provenance.json"), "damaged"),
    "provenance cut": (cut("provenance.json"), "damaged"),
    "provenance a list": (holding("provenance.json", "[]"), "damaged"),
    "history missing": (gone("history.jsonl"), "damaged"),
    "history cut": (cut("history.jsonl"), "damaged"),
    "history without costs": (holding("history.jsonl", '{"step": 1}\n'), "damaged"),
    "weights missing": (gone("weights.safetensors"), "damaged"),
    "weights cut": (cut("weights.safetensors"), "cannot be read"),
    "weights empty": (holding("weights.safetensors", ""), "cannot be read"),
    "a tensor missing": (without_a_tensor, "damaged"),
    "a tensor of another shape": (of_another_shape, "damaged"),
}


@pytest.mark.parametrize(("damage", "fragment"), DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_run_is_one_sentence(tmp_path, damage, fragment):
    run = tmp_path / "run"
    fitted().save(run)
    damage(run)
    with pytest.raises(RunError) as refusal:
        ileed.load(run)
    sentence = str(refusal.value)
    assert fragment in sentence
    assert str(run) in sentence
    assert "\n" not in sentence


def test_a_missing_directory_is_not_a_run(tmp_path):
    with pytest.raises(RunError, match="not a run directory"):
        ileed.load(tmp_path / "nowhere")


def test_a_run_of_a_newer_format_is_refused_with_what_to_do(tmp_path):
    fitted().save(tmp_path / "run")
    edited(tmp_path / "run", "provenance.json", lambda content: content | {"format": 99, "ileed": "9.0"})
    with pytest.raises(RunError, match=r"newer ileed \(9\.0\).*upgrade"):
        ileed.load(tmp_path / "run")


# --- failing writes


def full(*arguments, **options):
    raise OSError(errno.ENOSPC, "No space left on device")


def failing_at(call: int, error: BaseException, real):
    """The real function, but for one call."""
    calls = iter(range(1000))

    def once(*arguments, **options):
        if next(calls) == call:
            raise error
        return real(*arguments, **options)

    return once


FULL = OSError(errno.ENOSPC, "No space left on device")
FAILURES = {
    "no space for the text": lambda patch: patch.setattr(Path, "write_text", full),
    "no space for the weights": lambda patch: patch.setattr(Path, "write_bytes", full),
    "no space when settling": lambda patch: patch.setattr(os, "fsync", full),
    "no first renaming": lambda patch: patch.setattr(os, "replace", failing_at(0, FULL, os.replace)),
    "no exchange": lambda patch: patch.setattr(files, "exchange", failing_at(1, FULL, files.exchange)),  # after a trial
    "no second renaming": lambda patch: without_exchange(patch, 1, FULL),
    "no third renaming": lambda patch: without_exchange(patch, 2, FULL),
}


def without_exchange(patch, call: int, error: BaseException) -> None:
    """A system that cannot exchange two folders, and fails at one renaming."""
    patch.setattr(files, "exchange", unsupported)
    patch.setattr(os, "replace", failing_at(call, error, os.replace))


def unsupported(*folders):
    raise OSError(errno.ENOSYS, "Function not implemented")


def tree(path: Path) -> dict[str, bytes]:
    return {str(item.relative_to(path)): item.read_bytes() for item in sorted(path.rglob("*")) if item.is_file()}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES.keys())
def test_a_save_that_fails_leaves_the_old_run_as_it_was(tmp_path, monkeypatch, failure):
    run = tmp_path / "run"
    fitted().save(run)
    before = tree(tmp_path)
    with monkeypatch.context() as patch:
        failure(patch)
        with pytest.raises(RunError, match=r"cannot be written.*No space left on device.*nothing was changed"):
            fitted("cloning").save(run, overwrite=True)
    assert tree(tmp_path) == before
    assert_same(ileed.load(run), fitted())


@pytest.mark.parametrize("failure", list(FAILURES.values())[:4], ids=list(FAILURES)[:4])
def test_a_first_save_that_fails_leaves_nothing_behind(tmp_path, monkeypatch, failure):
    with monkeypatch.context() as patch:
        failure(patch)
        with pytest.raises(RunError, match="cannot be written"):
            fitted().save(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def interrupted_exchange(patch) -> None:
    patch.setattr(files, "exchange", failing_at(1, KeyboardInterrupt(), files.exchange))


@pytest.mark.parametrize(
    "interrupt",
    [
        lambda patch: without_exchange(patch, 0, KeyboardInterrupt()),
        interrupted_exchange,
        lambda patch: without_exchange(patch, 1, KeyboardInterrupt()),
        lambda patch: without_exchange(patch, 2, KeyboardInterrupt()),
    ],
    ids=["before the new run is whole", "before the exchange", "before the replacement", "before its first file"],
)
def test_an_interruption_while_saving_leaves_a_run_in_place(tmp_path, monkeypatch, interrupt):
    run = tmp_path / "run"
    fitted().save(run)
    with monkeypatch.context() as patch:
        interrupt(patch)
        with pytest.raises(KeyboardInterrupt):
            fitted("cloning").save(run, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert_same(ileed.load(run), fitted())


@pytest.mark.parametrize("failure", list(FAILURES.values())[1:4], ids=list(FAILURES)[1:4])
def test_a_file_that_cannot_be_replaced_keeps_its_content(tmp_path, monkeypatch, failure):
    file = tmp_path / "fit.safetensors"
    write_file(file, b"old")
    with monkeypatch.context() as patch:
        failure(patch)
        with pytest.raises(RunError, match="cannot be written"):
            write_file(file, b"new")
    assert tree(tmp_path) == {"fit.safetensors": b"old"}
    write_file(file, b"new")
    assert tree(tmp_path) == {"fit.safetensors": b"new"}


# --- where a run may be written


def test_a_run_replaces_a_run_and_nothing_is_left_beside_it(tmp_path):
    fitted().save(tmp_path / "deep" / "run")
    fitted("cloning").save(tmp_path / "deep" / "run", overwrite=True)
    assert_same(ileed.load(tmp_path / "deep" / "run"), fitted("cloning"))
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["run"]


@pytest.mark.parametrize("kind", ["directory", "file"])
def test_what_is_not_a_run_is_never_replaced(tmp_path, kind):
    place = tmp_path / "thesis"
    if kind == "directory":
        place.mkdir()
        (place / "chapter.txt").write_text("years of work")
    else:
        place.write_text("years of work")
    before = tree(tmp_path)
    with pytest.raises(RunError, match=r"thesis exists and is not a run directory: choose another place"):
        fitted().save(place)
    assert tree(tmp_path) == before


def test_a_place_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be written"):
        fitted().save(tmp_path / "file" / "run")


def test_a_second_save_is_refused_with_both_choices(tmp_path):
    fitted().save(tmp_path / "run")
    before = tree(tmp_path)
    with pytest.raises(RunError, match=r"run already holds a run: choose another place .*overwrite=True"):
        fitted("cloning").save(tmp_path / "run")
    assert tree(tmp_path) == before


def test_a_run_that_is_only_half_readable_may_be_replaced(tmp_path):
    """Its mark says that it is a run of ours, and it cannot be loaded."""
    fitted().save(tmp_path / "run")
    cut("weights.safetensors")(tmp_path / "run")
    fitted("cloning").save(tmp_path / "run", overwrite=True)
    assert_same(ileed.load(tmp_path / "run"), fitted("cloning"))


def test_a_folder_beside_a_run_that_is_named_like_our_own_attempts_is_not_touched(tmp_path):
    (tmp_path / ".run.backup").mkdir()
    (tmp_path / ".run.backup" / "thesis.tex").write_text("years of work")
    before = tree(tmp_path)
    fitted().save(tmp_path / "run")
    fitted().save(tmp_path / "run", overwrite=True)
    write_file(tmp_path / ".run.checkpoint", b"")
    remove_file(tmp_path / "run.checkpoint")
    remove_file(tmp_path / ".run.checkpoint")
    shutil.rmtree(tmp_path / "run")
    assert tree(tmp_path) == before


def test_a_link_in_a_run_never_moves_what_it_leads_to(tmp_path):
    """A run from elsewhere could name a folder of the reader's own as its replacement."""
    fitted().save(tmp_path / "run")
    fitted("cloning").save(tmp_path / "mine")
    (tmp_path / "run" / ".ileed-replacement").symlink_to(tmp_path / "mine")
    before = tree(tmp_path / "mine")
    ileed.load(tmp_path / "run")
    assert tree(tmp_path / "mine") == before


# --- death at any moment


@pytest.mark.parametrize("place", ["a run", "an empty folder", "nothing"])
def test_a_process_that_dies_at_any_moment_of_a_save_leaves_one_whole_run(tmp_path, place):
    """Before each request to the operating system that opens, makes, renames or removes something, in turn."""
    fitted().save(tmp_path / "old")
    fitted("cloning").save(tmp_path / "new")
    script = Path(__file__).parent / "robustness" / "die_while_saving.py"
    words = [str(tmp_path / "old"), str(tmp_path / "new"), str(tmp_path / "runs" / "run"), place]
    ended = subprocess.run([sys.executable, str(script), *words], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    before = "old" if place == "a run" else "nothing"
    assert set(told["found"]) == {before, "new"}
    assert told["found"] == sorted(told["found"], key=[before, "new"].index), "from some moment on it is the new run"
    assert told["repeated"] > 5, "after a third of the deaths the same save was made again, and ended well"


# --- provenance


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org")
    ended = subprocess.run(["git", "-C", str(folder), *who, *words], capture_output=True, text=True, check=True)
    return ended.stdout.strip()


@pytest.fixture
def described(monkeypatch):
    monkeypatch.delenv("ILEED_COMMIT", raising=False)
    _describe_checkout.cache_clear()
    return _describe_checkout


def repository(root: Path, package: str, *, name: str, tracked: bool) -> Path:
    """A repository with a copy of our package in it; returns where the copy lies."""
    home = root / package
    home.mkdir(parents=True)
    (home / "__init__.py").write_text("")
    (root / "pyproject.toml").write_text(f'[project]\nname = "{name}"\n')
    if not tracked:
        (root / ".gitignore").write_text(f"{package.split('/')[0]}\n")
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message", "work of the user")
    return home


@pytest.mark.parametrize(
    ("package", "name", "tracked"),
    [
        (".venv/lib/python3.11/site-packages/ileed", "thesis", False),
        (".venv/lib/python3.11/site-packages/ileed", "ileed", False),
        (".venv/lib/python3.11/site-packages/ileed", "thesis", True),
        ("src/ileed", "thesis", True),
        ("src/ileed", "ileed", False),
    ],
    ids=["an environment", "an environment in our checkout", "committed", "a copy of our source", "not tracked"],
)
def test_a_repository_that_is_not_ours_is_never_recorded(tmp_path, described, package, name, tracked):
    assert described(repository(tmp_path, package, name=name, tracked=tracked)) is None


def test_our_own_checkout_is_recorded_whichever_repository_the_environment_speaks_of(tmp_path, described, monkeypatch):
    home = repository(tmp_path / "ours", "src/ileed", name="ileed", tracked=True)
    repository(tmp_path / "theirs", "src/thesis", name="thesis", tracked=True)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "theirs" / ".git"))
    commit = described(home)
    monkeypatch.delenv("GIT_DIR")
    assert commit == git(tmp_path / "ours", "rev-parse", "HEAD")[:12]


@pytest.mark.parametrize(
    ("changed", "uncommitted"),
    [("src/ileed/__init__.py", True), ("results/minigrid/one.json", False), ("results.py", True)],
)
def test_changed_code_makes_a_commit_dirty_and_changed_results_do_not(tmp_path, described, changed, uncommitted):
    """An experiment that is resumed after an interruption has written results, which no measurement depends on."""
    home = repository(tmp_path, "src/ileed", name="ileed", tracked=True)
    (tmp_path / changed).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / changed).write_text("1")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "one")
    (tmp_path / changed).write_text("2")
    commit = git(tmp_path, "rev-parse", "HEAD")[:12]
    assert described(home) == (f"{commit}-dirty" if uncommitted else commit)


def test_a_table_as_csv_begins_no_formula_and_has_no_control_characters():
    """As the tables of a report; a number that begins with a minus is a number."""
    table = pa.table({"name": ["=1+1", "a\x1b[31m", None, "-x", "ann"], "score": [-1.5, 2.0, None, 0.0, 1.0]})
    rows = list(csv.reader(io.StringIO(csv_bytes(table).decode())))
    assert [row[0] for row in rows] == ["name", "'=1+1", "a\ufffd[31m", "", "'-x", "ann"]
    assert [row[1] for row in rows[1:]] == ["-1.5", "2", "", "0", "1"]
