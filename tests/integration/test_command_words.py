"""The words of the command: what it understands, how it refuses, and that it shows names and numbers harmlessly."""

import ast
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ileed
from ileed import cli, formats
from ileed.cli import console, run
from ileed.errors import SettingsError, did_you_mean, printable

QUICK = ("--restarts", "2", "--steps", "20")


def table(path: Path, names=("ann", "bob", "cy"), steps=20) -> Path:
    """A small sound parquet file of our columns."""
    rng, count = np.random.default_rng(0), len(names) * steps
    columns = {
        "observation": list(rng.integers(0, 3, size=(count, 4)).astype(np.float32)),
        "action": rng.integers(0, 3, size=count),
        "demonstrator": np.repeat(names, steps),
        "episode": np.repeat(np.arange(count // 10), 10),
    }
    pq.write_table(pa.table(columns), path)
    return path


def robot_file(path: Path) -> Path:
    """A robomimic file of two operators whose masks are not called as robomimic calls them, and a spare episode."""
    rng = np.random.default_rng(0)
    data = ileed.Demonstrations(
        observations=rng.normal(size=(60, 5)),
        actions=rng.uniform(-1, 1, size=(60, 2)),
        demonstrator=np.repeat(["left", "right", "left", "right", "spare", "spare"], 10),
        episode=np.repeat(np.arange(6), 10),
    )
    ileed.write_robomimic(data, path, observations={"object": 3, "gripper": 2}, valid=[2, 3])
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "r+") as file:  # as a downloaded file is: it has masks and no data set that says who
        for demo in file["data"].values():
            del demo["demonstrator"]
        del file["data"].attrs["ileed"]
    return path


def loaded_after(*arguments: str) -> tuple[set[str], subprocess.CompletedProcess[str]]:
    """The modules that the command has loaded when it is done, and what it printed."""
    code = (
        f"import sys; from ileed.cli import run; code = run({list(arguments)!r}); print(*sys.modules); sys.exit(code)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return set(ended.stdout.splitlines()[-1].split()), ended


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["--version"], ["chess", "--help"], ["ft"], []], ids=str)
def test_help_version_and_refusals_of_a_word_load_neither_torch_nor_the_parser(words):
    modules, _ = loaded_after(*words)
    assert not modules & {"torch", "numpy", "pyarrow", "tyro", "rich"}


@pytest.mark.parametrize(
    "name",
    [*sorted(set(cli.commands()) - {"fit", "compare", "curate", "serve", "chess"}), "chess extract", "chess rate"],
)
def test_help_of_a_command_does_not_load_torch(name):
    modules, ended = loaded_after(*name.split(), "--help")
    assert f"usage: ileed {name}" in ended.stdout
    assert "torch" not in modules


def test_the_version_is_that_of_the_package(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"ileed {ileed.__version__}\n"


@pytest.mark.parametrize("words", [[], ["chess"]], ids=["ileed", "ileed chess"])
def test_help_says_of_every_command_what_its_class_says(words, capsys):
    run([*words, "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for name, command in (cli.commands()["chess"].others if words else cli.commands()).items():
        if not command.others:
            said = (getattr(import_module(command.module), command.kind).__doc__).split("\n\n")[0]
            assert command.summary == " ".join(said.split())
        assert f"{name} {command.summary}" in shown


@pytest.mark.parametrize("name", ["inspect", "fit"])
def test_help_names_every_format_that_can_be_read(name, capsys):
    assert run([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(suffix in shown for reader in formats.formats() for suffix in reader.suffixes)
    assert "noqa" not in shown, "an option group without a text of its own shows the comment behind it"


def test_every_option_is_explained_in_one_line_of_code_since_the_help_keeps_line_breaks():
    for path in Path(cli.__file__).parent.glob("*.py"):
        for kind in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)):
            texts = [ast.unparse(node) for node in kind.body[1:] if isinstance(node, ast.Expr)]
            assert [text for text in texts if "\\n" in text or "\n" in text] == []


def test_help_names_the_exit_codes(capsys):
    run(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert all(f"{code} " in shown.partition("exit codes:")[2] for code in (0, 2, 130, 141))


MISTYPED = {
    "a command": (["inspct"], "'inspect'"),
    "a command of chess": (["chess", "rat"], "'rate'"),
    "an option": (["inspect", "x.parquet", "--jsno"], "'--json'"),
    "an option of the method": (["fit", "x.parquet", "--restart", "3"], "'--restarts'"),
    "a required option": (["evaluate", "x", "--tsak", "minigrid/lava"], "'--task'"),
    "a part": (["fit", "x.parquet", "--expertise", "Embeded()"], "'Embedded'"),
    "an option of a part": (["fit", "x.parquet", "--expertise", "Embedded(dmi=3)"], "'dim'"),
    "a choice": (["demonstrate", "minigrid/lava", "--out", "x", "--population", "beta1"], "'beta-1'"),
    "a task": (["evaluate", "x", "--task", "minigrid/obstcles"], "'minigrid/obstacles'"),
    "an experiment": (["reproduce", "minigrid/population"], "'minigrid/populations'"),
    "a method of an experiment": (["reproduce", "minigrid/populations", "--methods", "iled"], "'ileed'"),
}


@pytest.mark.parametrize(("words", "meant"), MISTYPED.values(), ids=MISTYPED.keys())
def test_a_mistyped_word_is_answered_with_the_closest(words, meant, capsys):
    assert run(words) == 2
    assert f"did you mean {meant}?" in one_sentence(capsys)


@pytest.mark.parametrize(
    ("words", "meant"), [(["--who", "demonstrater"], "'demonstrator'")], ids=["a column of a parquet file"]
)
def test_a_mistyped_column_is_answered_with_the_closest(words, meant, tmp_path, capsys):
    assert run(["inspect", str(table(tmp_path / "data.parquet")), *words]) == 2
    assert f"did you mean {meant}?" in one_sentence(capsys)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["--masks", "lft", "right", "--unmatched", "drop"], "'left'"),
        (["--masks", "left", "right", "spare", "--observations", "objct"], "'object'"),
        (["--masks", "left", "right", "spare", "--filter-key", "vald"], "'valid'"),
    ],
    ids=["a mask", "an observation", "a filter"],
)
def test_a_mistyped_name_in_a_robomimic_file_is_answered_with_the_closest(words, meant, tmp_path, capsys):
    assert run(["inspect", str(robot_file(tmp_path / "data.hdf5")), *words]) == 2
    assert f"did you mean {meant}?" in one_sentence(capsys)


def test_what_is_not_close_to_anything_gets_no_suggestion():
    assert did_you_mean("tetris", ["obstacles", "lava"]) == ""
    assert did_you_mean("EMBEDED", ["Embedded"]) == " (did you mean 'Embedded'?)"


def one_sentence(capsys) -> str:
    """What a refusal looks like: one line on standard error that begins with the program's name."""
    printed, said = capsys.readouterr()
    assert printed == ""
    (line,) = said.splitlines()
    assert line.startswith("ileed: ")
    assert "tyro" not in line
    return line


WRONG_VALUES = {
    "a word for a number": (["fit", "x", "--steps", "many"], "--steps: 'many' is not a whole number"),
    "a fraction for a count": (["evaluate", "x", "--task", "y", "--episodes", "1.5"], "'1.5' is not a whole number"),
    "a word for an optional number": (["fit", "x", "--batch-size", "all"], "'all' is not a whole number, nor none"),
    "an option without its value": (["fit", "x", "--steps"], "--steps needs a value"),
    "no file": (["fit"], "`ileed fit` needs"),
    "two files": (["fit", "x", "y"], "'y' is one word too many"),
    "a setting of the method": (["fit", "x", "--ensemble", "50"], "ensemble is 50: it must be from 1 to 20"),
    "no command": ([], "no command was given"),
    "two ways to say who": (
        ["inspect", "x", "--one", "ann", "--who", "pilot"],
        "--demonstrator and --one each name the demonstrators",
    ),
    "a negative number of workers": (["reproduce", "minigrid/populations", "--workers", "-1"], "workers is -1"),
    "workers of an extraction": (["chess", "extract", "x", "--out", "y", "--workers", "0"], "workers is 0"),
    "no episodes": (["evaluate", "x", "--task", "minigrid/lava", "--episodes", "0"], "episodes is 0"),
    "no demo": (["demo", "--episodes", "0"], "episodes is 0"),
    "no steps": (["demonstrate", "minigrid/lava", "--out", "x", "--steps", "0"], "steps is 0"),
}


@pytest.mark.parametrize(("words", "sentence"), WRONG_VALUES.values(), ids=WRONG_VALUES.keys())
def test_a_wrong_value_gets_one_sentence(words, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(words) == 2
    assert sentence in one_sentence(capsys)
    assert not list(tmp_path.iterdir())


def test_masks_observations_and_filters_of_a_robomimic_file_are_options_of_the_command(tmp_path, capsys):
    file = str(robot_file(tmp_path / "data.hdf5"))

    def steps(*words: str) -> dict[str, int]:
        assert run(["inspect", file, *words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)["demonstrators"]

    assert steps("--masks", "left", "right", "spare") == {"left": 20, "right": 20, "spare": 20}
    assert steps("--masks", "left", "right", "--unmatched", "drop") == {"left": 20, "right": 20}
    assert steps("--masks", "left", "right", "--filter-key", "valid") == {"left": 10, "right": 10}
    assert steps("--one", "ann") == {"ann": 60}
    words = ["--masks", "left", "right", "--unmatched", "drop", "--observations", "gripper"]
    assert run(["fit", file, "--out", str(tmp_path / "run"), *QUICK, *words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    data = ileed.read(file, demonstrator=ileed.by_mask("left", "right", unmatched="drop"), observations=["gripper"])
    fitted = ileed.Ileed(restarts=2, steps=20).fit(data, seed=0)
    assert told["expertise"] == fitted.expertise.by_demonstrator()


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ([], "at the command: --masks"),
        (["--masks", "left", "right"], "at the command: --unmatched drop"),
    ],
    ids=["a file that does not say who", "episodes in no mask"],
)
def test_advice_about_a_robomimic_file_names_what_the_command_can_do(words, advice, tmp_path, capsys):
    data, out = str(robot_file(tmp_path / "data.hdf5")), str(tmp_path / "run")
    assert run(["fit", data, "--out", out, *words]) == 2
    assert advice in one_sentence(capsys)


@pytest.mark.parametrize(
    "words", [["--filter-key", "valid"], ["--observations", "object"], ["--masks", "left"]], ids=str
)
def test_an_option_of_another_format_is_refused(words, tmp_path, capsys):
    assert run(["inspect", str(table(tmp_path / "data.parquet")), *words]) == 2
    assert "does not apply to" in one_sentence(capsys)


HOSTILE = ("\x1b[31mred", "\x1b]0;title\x07", "a\nb", "evil\u202egnp", "[bold]markup[/bold]", "c\rd", "back\\")


def test_names_with_terminal_escapes_are_shown_harmlessly(tmp_path, capsys):
    data = str(table(tmp_path / "data.parquet", names=HOSTILE))
    for words in (["inspect", data], ["fit", data, "--out", str(tmp_path / "run"), *QUICK]):
        assert run(words) == 0
        printed = capsys.readouterr().out
        harmless(printed)
        assert "[bold]markup[/bold]" in printed
    assert run(["inspect", data, "--who", "\x1b[31m\u202e"]) == 2
    harmless(one_sentence(capsys))
    assert run(["inspect", str(tmp_path / "\x1b[31mabsent\n.parquet")]) == 2
    harmless(one_sentence(capsys))
    odd = str(tmp_path / "[red]run\x1b[31m")
    assert run(["fit", data, "--out", odd, *QUICK]) == 0
    printed = capsys.readouterr().out
    harmless(printed)
    assert "[red]run" in printed


def harmless(printed: str) -> None:
    assert all(sign.isprintable() or sign == "\n" for sign in printed)


def test_a_very_long_name_does_not_fill_the_screen(tmp_path, capsys):
    data = str(table(tmp_path / "data.parquet", names=("x" * 1_000, "bob", "cy")))
    assert run(["fit", data, "--out", str(tmp_path / "run"), *QUICK]) == 0
    assert len(capsys.readouterr().out) < 4_000


def test_what_a_page_cannot_show_and_what_a_terminal_obeys_are_replaced_by_one_function():
    from ileed.report import page

    assert page.printable is printable
    assert printable("a\x1b[31m\u202eb\x9b") == "a\ufffd[31m\ufffdb\ufffd"


def test_json_is_strict_for_demonstrators_without_steps_and_diverged_restarts(tmp_path, capsys):
    rng = np.random.default_rng(0)
    data = ileed.Demonstrations(
        observations=rng.integers(0, 3, size=(40, 4)).astype(np.float32),
        actions=rng.integers(0, 3, size=40),
        demonstrator=np.repeat([0, 1], 20),
        names=("ann", "bob", "nobody"),
        episode=np.repeat(np.arange(4), 10),
    )
    ileed.write_parquet(data, tmp_path / "data.parquet")
    assert run(["fit", str(tmp_path / "data.parquet"), "--out", str(tmp_path / "run"), *QUICK, "--json"]) == 0
    told = strict(capsys.readouterr().out)
    assert told["expertise"]["nobody"] is None
    assert told["expertise"]["ann"] is not None
    console.print_json({"restarts": [1.5, float("inf"), float("nan")], "interval": (-float("inf"), 2.0), "steps": 3})
    told = strict(capsys.readouterr().out)
    assert told == {"restarts": [1.5, None, None], "interval": [None, 2.0], "steps": 3}


def strict(text: str):
    """JSON as its standard has it: without NaN and Infinity."""

    def refuse(word: str):
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_a_fit_with_wrong_settings_is_refused_before_the_data_are_read(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(formats, "read", lambda *_, **__: pytest.fail("the data were read"))
    for words in (["--steps", "0"], ["--device", "abacus"], ["--expertise", "Magic()"]):
        assert run(["fit", str(tmp_path / "data.parquet"), "--out", str(tmp_path / "run"), *words]) == 2
        one_sentence(capsys)


def test_an_unknown_task_is_refused_before_the_run_is_loaded(tmp_path, monkeypatch, capsys):
    assert run(["evaluate", str(tmp_path), "--task", "nope"]) == 2
    assert "there is no task 'nope'" in one_sentence(capsys)


@pytest.mark.parametrize(
    ("modules", "extras"),
    [
        (["minigrid"], "minigrid"),
    ],
    ids=["minigrid"],
)
def test_the_demo_names_every_missing_extra_in_one_sentence_before_it_fits(
    modules, extras, tmp_path, monkeypatch, capsys
):
    for missing in (*modules, "envpool.minigrid"):
        monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.setattr(ileed.Ileed, "fit", lambda *_, **__: pytest.fail("it was fitted"))
    assert run(["demo", "--out", str(tmp_path / "demo")]) == 2
    sentence = one_sentence(capsys)
    assert f"pip install 'ileed[{extras}]'" in sentence
    assert all(repr(module) in sentence for module in modules)


def test_a_refusal_comes_without_a_bar(tmp_path, capsys):
    data = str(table(tmp_path / "data.parquet"))
    assert run(["fit", data, "--out", str(tmp_path / "run"), *QUICK, "--policy", "MixtureMLP()"]) == 2
    assert "continuous actions" in one_sentence(capsys)


def test_a_bar_that_advances_is_shown(capsys):
    with console.bar("playing") as advance:
        advance(1, 2)
    assert "playing" in capsys.readouterr().err
    with pytest.raises(SettingsError), console.bar("playing"):
        raise SettingsError("refused")
    assert capsys.readouterr().err == ""


def test_findings_about_many_people_are_one_line(tmp_path, capsys):
    data = str(table(tmp_path / "data.parquet", names=[f"person {k:03d}" for k in range(200)], steps=10))
    assert run(["inspect", data]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "200 of 200 have fewer than 400 steps each: expertise will be poorly determined" in printed
    assert "(fewest: 'person 000' 10 steps, 'person 001' 10 steps, 'person 002' 10 steps)" in printed
    assert printed.count("poorly determined") == 1


def test_a_hundred_thousand_people_of_one_step_each_are_read_and_checked_in_time_that_grows_with_their_number():
    """A quadratic step over so many would take minutes, or gigabytes; the test would not come to its end."""
    count = 100_000
    rng = np.random.default_rng(0)
    names = tuple(f"person {k}" for k in range(count))
    data = ileed.Demonstrations(
        observations=rng.integers(0, 3, size=(count, 4)).astype(np.float32),
        actions=rng.integers(0, 3, size=count),
        demonstrator=np.array(names),
        names=names,
        episode=np.arange(count),
    )
    assert len(data.check()) <= 5


def test_a_closed_output_is_no_error(tmp_path):
    words = [sys.executable, "-m", "ileed", "inspect", table(tmp_path / "data.parquet")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as shown:
        assert shown.stdout is not None
        assert shown.stderr is not None
        shown.stdout.close()  # long before there is anything to read
        assert (shown.stderr.read(), shown.wait()) == (b"", 141)


def test_a_warning_of_the_reader_is_one_line(tmp_path, capsys, recwarn):
    cli._show_warning(UserWarning("2 of 3 demonstrators have\nno demonstration"))
    assert capsys.readouterr().err == "ileed: warning: 2 of 3 demonstrators have no demonstration\n"


def test_the_public_names_are_the_same_for_readers_of_the_code_and_for_the_interpreter():
    stated = ast.parse(Path(ileed.__file__).with_name("_names.py").read_text())
    imported = {name.name for node in stated.body if isinstance(node, ast.ImportFrom) for name in node.names}
    assert imported == set(ileed.__all__)
    assert set(ileed.__all__) <= set(dir(ileed))
