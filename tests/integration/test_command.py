"""The command as people meet it: what it prints, what it refuses, and what it leaves behind."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ileed
from ileed.cli import run
from ileed.cli.fit import Fit
from ileed.cli.inspect import Inspect
from ileed_lab.cli.chess import Extract
from ileed_lab.cli.laboratory import Reproduce

QUICK = ("--restarts", "2", "--steps", "20")


def columns(**changed):
    """A small sound table of our schema, with some columns replaced or (None) left out."""
    rng = np.random.default_rng(0)
    table = {
        "observation": list(rng.integers(0, 3, size=(60, 4)).astype(np.float32)),
        "action": rng.integers(0, 3, size=60),
        "demonstrator": np.repeat(["ann", "bob", "cy"], 20),
        "episode": np.repeat(np.arange(6), 10),
    }
    table |= changed
    return {name: values for name, values in table.items() if values is not None}


def written(path: Path, **changed) -> Path:
    pq.write_table(pa.table(columns(**changed)), path)
    return path


def command(*arguments: object) -> int:
    try:
        return run([str(argument) for argument in arguments])
    except SystemExit as stopped:  # the parser's own refusals
        return int(stopped.code or 0)


def spoiled(value: float):
    """Observations of which one number is not what it should be."""
    rows = columns()["observation"]
    rows[7][1] = value
    return {"observation": rows}


BAD_TABLES = {
    "NaN in an observation": (spoiled(np.nan), "NaN"),
    "an infinite observation": (spoiled(np.inf), "infinite"),
    "ragged observations": ({"observation": [np.ones(4 + (k == 3)) for k in range(60)]}, "ragged"),
    "words for observations": ({"observation": [["a", "b"]] * 60}, "encode them as numbers"),
    "a negative action": ({"action": np.full(60, -1)}, "negative"),
    "fractional actions": ({"action": np.full(60, 0.5)}, "fractional"),
    "words for actions": ({"action": ["left"] * 60}, "not numbers"),
    "missing values": ({"action": [None] + [0] * 59}, "missing values"),
    "one demonstrator": ({"demonstrator": ["ann"] * 60}, "one demonstrator"),
    "nobody named": ({"demonstrator": None}, "no column 'demonstrator'"),
    "no episodes named": ({"episode": None}, "no column 'episode'"),
    "no actions": ({"action": None}, "no column 'action'"),
    "an episode of two people": ({"episode": np.zeros(60, dtype=int)}, "two demonstrators"),
    "an interrupted episode": (
        {"episode": np.tile([0, 1], 30), "demonstrator": np.full(60, "ann")},
        "interrupted",
    ),
    "illegal actions taken": ({"legal": [[False, False, False]] * 60}, "illegal"),
    "rewards that are not numbers": ({"reward": ["much"] * 60}, "rewards"),
    "no rows": (
        {name: pa.array([], pa.list_(pa.float32()) if name == "observation" else pa.int64()) for name in columns()},
        "no steps",
    ),
}


@pytest.mark.parametrize(("changed", "fragment"), BAD_TABLES.values(), ids=BAD_TABLES.keys())
def test_bad_data_get_one_sentence_and_leave_nothing(tmp_path, capsys, changed, fragment):
    data = written(tmp_path / "data.parquet", **changed)
    assert command("fit", data, "--out", tmp_path / "run", *QUICK) == 2
    refused(capsys, fragment)
    assert [path.name for path in tmp_path.iterdir()] == ["data.parquet"]


BAD_WORDS = {
    "zero steps": (("--steps", "0"), "steps is 0"),
    "zero restarts": (("--restarts", "0"), "restarts is 0"),
    "a negative learning rate": (("--learning-rate", "-1"), "learning_rate is -1"),
    "everything held out": (("--held-out", "1"), "held_out is 1"),
    "an unavailable device": (("--device", "cuda:7"), "device 'cuda:7'"),
    "an unknown device": (("--device", "abacus"), "device 'abacus'"),
    "an unknown column": (("--who", "pilot"), "no column 'pilot'"),
    "an unknown part": (("--expertise", "Magic()"), "'Magic()' is not one of"),
    "an impossible part": (("--expertise", "Embedded(dim=0)"), "dim is 0"),
    "a part for other actions": (("--policy", "MixtureMLP()"), "continuous actions"),
    "a model for other actions": (("--demonstrator-model", "VarianceScaling()"), "continuous actions"),
    "a model named as a column": (("--demonstrator", "VarianceScaling()"), "write --demonstrator-model"),
    "dynamics without an embedding": (("--expertise", "constant", "--dynamics", "LatentDynamics()"), "LatentDynamics"),
    "an unknown skill column": (("--expertise", "Skills('phase')"), "no skill column 'phase'"),
    "a block of more restarts than there are": (("--member-block", "500"), "--member-block is 500, but there are"),
    "workers of no executor": (("--workers", "2"), "add --executor local"),
    "an unknown option": (("--speed", "11"), "--speed"),
}


@pytest.mark.parametrize(("words", "fragment"), BAD_WORDS.values(), ids=BAD_WORDS.keys())
def test_bad_settings_get_one_sentence_and_leave_nothing(tmp_path, capsys, words, fragment):
    data = written(tmp_path / "data.parquet")
    assert command("fit", data, "--out", tmp_path / "run", *QUICK, *words) == 2
    refused(capsys, fragment)
    assert [path.name for path in tmp_path.iterdir()] == ["data.parquet"]


def test_a_file_that_is_not_there_is_named_before_a_run_that_is(tmp_path, capsys):
    assert command("fit", written(tmp_path / "data.parquet"), "--out", tmp_path / "run", *QUICK) == 0
    capsys.readouterr()
    assert command("fit", tmp_path / "dta.parquet", "--out", tmp_path / "run", *QUICK) == 2
    refused(capsys, "there is no file")
    assert command("compare", tmp_path / "data.parquet", "--workers", "2") == 2
    refused(capsys, "add --executor local")


def refused(capsys, fragment: str, *, at_the_end: bool = False) -> None:
    """What a refusal looks like: nothing on standard output, one sentence on standard error.

    A bar stands before it only where the refusal could not come before the work.
    """
    printed, said = capsys.readouterr()
    assert printed == ""
    *bars, sentence = said.splitlines()
    assert len(bars) == at_the_end
    assert sentence.startswith("ileed: ")
    assert fragment in sentence


def test_files_that_are_no_data_are_refused(tmp_path, capsys):
    whole = written(tmp_path / "whole.parquet").read_bytes()
    files = {"empty.parquet": b"", "truncated.parquet": whole[: len(whole) // 2], "table.xlsx": b"PK"}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        assert command("inspect", tmp_path / name) == 2
        refused(capsys, name)
    assert command("inspect", tmp_path / "absent.parquet") == 2
    refused(capsys, "there is no file")


@pytest.mark.filterwarnings("default:a checkpoint")
def test_a_full_disk_leaves_nothing_half_written(tmp_path, capsys):
    """The kernel refuses to let any file grow beyond 2,000 bytes: the weights need more."""
    data = written(tmp_path / "data.parquet")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        assert command("fit", data, "--out", tmp_path / "run", *QUICK) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    printed, said = capsys.readouterr()
    first, *_, last = said.splitlines()  # with bars between them
    assert printed == ""
    assert "warning: a checkpoint" in first
    assert "run cannot be written" in last
    assert [path.name for path in tmp_path.iterdir()] == ["data.parquet"]


def test_a_place_that_holds_something_else_is_refused_before_any_work(tmp_path, capsys):
    data = written(tmp_path / "data.parquet")
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.tex").write_text("years of work")
    assert command("fit", data, "--out", tmp_path / "precious", *QUICK) == 2
    refused(capsys, "not a run directory")
    assert (tmp_path / "precious" / "thesis.tex").read_text() == "years of work"


def test_what_is_no_run_cannot_be_evaluated_or_reported(tmp_path, capsys):
    assert command("report", tmp_path) == 2
    refused(capsys, "not a run directory")
    data = written(tmp_path / "data.parquet")
    assert command("fit", data, "--out", tmp_path / "run", *QUICK, "--json") == 0
    capsys.readouterr()
    assert command("evaluate", tmp_path / "run", "--task", "minigrid/sokoban") == 2
    refused(capsys, "minigrid/sokoban")
    weights = tmp_path / "run" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    assert command("report", tmp_path / "run") == 2
    refused(capsys, "weights.safetensors")


def test_a_report_needs_no_extra(tmp_path, capsys, monkeypatch):
    data = written(tmp_path / "data.parquet")
    assert command("fit", data, "--out", tmp_path / "run", *QUICK, "--json") == 0
    for extra in ("altair", "vl_convert"):
        monkeypatch.setitem(sys.modules, extra, None)
    assert command("report", tmp_path / "run", "--data", data, "--figures", tmp_path / "figures") == 0


def test_two_runs_are_compared_on_one_page(tmp_path, capsys):
    data = written(tmp_path / "data.parquet")
    for seed in ("0", "1"):
        assert command("fit", data, "--out", tmp_path / f"run{seed}", *QUICK, "--json", "--seed", seed) == 0
    assert command("report", tmp_path / "run0", tmp_path / "run1", "--data", data) == 0
    page = (tmp_path / "run0" / "comparison.html").read_text()
    assert "Comparison of two runs: run0 and run1" in page
    assert "Both runs were fitted to the same data." in page
    capsys.readouterr()
    assert command("report", tmp_path / "run0", tmp_path / "run1", "--figures", tmp_path) == 2
    refused(capsys, "--figures does not apply")


def test_a_report_is_written_with_its_table_and_figures_or_not_at_all(tmp_path, capsys):
    data = written(tmp_path / "data.parquet")
    run_directory, taken = tmp_path / "run", tmp_path / "taken"
    assert command("fit", data, "--out", run_directory, *QUICK, "--json") == 0
    taken.mkdir()
    for name in ("people.csv", "ranking.svg"):
        (taken / name).write_text("years of work")
    before = sorted(tmp_path.rglob("*"))
    capsys.readouterr()
    for words, fragment in (
        (("--table", tmp_path / "people.txt"), "neither .csv nor .parquet"),
        (("--table", taken / "people.csv"), "exists already"),
        (("--table", tmp_path / "people.csv", "--figures", taken), "is not a figure of ileed"),
        (("--figures", tmp_path / "figures", "--out", taken / "people.csv"), "is not a report by ileed"),
    ):
        assert command("report", run_directory, *words) == 2
        refused(capsys, fragment)
        assert sorted(tmp_path.rglob("*")) == before
    words = ("--table", tmp_path / "people.csv", "--figures", tmp_path / "figures")
    assert command("report", run_directory, *words) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"wrote {run_directory / 'report.html'}"
    assert (tmp_path / "people.csv").exists()


def test_a_report_reads_a_folder_with_the_options_of_a_fit(tmp_path, capsys):
    data = tmp_path / "people"
    data.mkdir()
    written(data / "part.parquet")
    assert command("fit", data, "--out", tmp_path / "run", *QUICK, "--json") == 0
    (tmp_path / "cache").mkdir()
    words = ("report", tmp_path / "run", "--data", data)
    assert command(*words, "--memory-gib", "0.5", "--cache", tmp_path / "cache") == 0
    capsys.readouterr()
    assert command(*words, "--memory-gib", "0") == 2
    refused(capsys, "memory_gib is 0")


def test_fit_saves_what_the_library_would_have_fitted(tmp_path, capsys):
    data = written(tmp_path / "data.parquet")
    assert command("fit", data, "--out", tmp_path / "run", *QUICK, "--json", "--seed", "3") == 0
    told = json.loads(capsys.readouterr().out)
    fitted = ileed.Ileed(restarts=2, steps=20).fit(ileed.read(data), seed=3)
    assert told["nats_per_action"] == fitted.nats_per_action
    assert told["expertise"] == fitted.expertise.by_demonstrator()
    loaded = ileed.load(tmp_path / "run")
    assert loaded.expertise.by_demonstrator() == fitted.expertise.by_demonstrator()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.parquet", "run"]


def test_fit_ranks_demonstrators_for_a_person(tmp_path, capsys):
    assert command("fit", written(tmp_path / "data.parquet"), "--out", tmp_path / "run", *QUICK) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("ann", "bob", "cy", "nats per action", "ileed report"))


def test_inspect_speaks_of_thin_data(tmp_path, capsys):
    assert command("inspect", written(tmp_path / "data.parquet"), "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["demonstrators"] == {"ann": 20, "bob": 20, "cy": 20}
    assert any("poorly determined" in finding["says"] for finding in told["findings"])


@pytest.mark.parametrize(
    "name", ["demo", "inspect", "fit", "evaluate", "report", "demonstrate", "pretrain", "reproduce", "tables"]
)
def test_every_command_explains_itself(name, capsys):
    assert command(name, "--help") == 0
    assert f"usage: ileed {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["minigrid/nothing"], "there is no experiment 'minigrid/nothing'; the experiments are minigrid/experts"),
        (["minigrid/ranking", "--trials", "0"], "trials is 0: an experiment needs one or more"),
        (["minigrid/ranking", "--methods", "gpt"], "no method of minigrid/ranking is called"),
    ],
)
def test_an_experiment_that_cannot_be_run_gets_one_sentence_and_leaves_nothing(words, sentence, tmp_path, capsys):
    assert command("reproduce", *words, "--out", tmp_path / "results") == 2
    assert sentence in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_program_ends_with_the_exit_code_and_no_traceback():
    arguments = [sys.executable, "-m", "ileed", "inspect", "nowhere.parquet"]
    ended = subprocess.run(arguments, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "ileed: there is no file nowhere.parquet: check the path\n"


@pytest.mark.parametrize(
    ("asked", "how"),
    [
        (["fit", "data.parquet"], "nothing was saved yet"),
        (["fit", "data.parquet", "--out", "there"], "the same command continues from the last checkpoint"),
        (["reproduce", "minigrid/populations"], "the same command with --resume continues where it stopped"),
        (["chess", "extract", "games.pgn", "--out", "positions.parquet"], "with --resume continues where it stopped"),
        (["inspect", "data.parquet"], "no file is incomplete"),
    ],
)
def test_an_interrupted_command_says_how_to_go_on(asked, how, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.checkpoint").touch()

    def stopped(self):
        raise KeyboardInterrupt

    for kind in (Fit, Reproduce, Extract, Inspect):
        monkeypatch.setattr(kind, "__call__", stopped)
    assert command(*asked) == 130
    assert how in capsys.readouterr().err
