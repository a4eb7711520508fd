"""What the documents say: their Python runs as pasted, their numbers come from records, their links lead somewhere."""

import json
import re
import runpy
import shlex
import sys
import tomllib
from dataclasses import replace
from functools import cache
from importlib import import_module
from itertools import takewhile
from pathlib import Path

import pytest

import ileed
from ileed import cli

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), flags=re.DOTALL)


PYTHON = [
    pytest.param(page, block, id=f"{page.name} {number}", marks=() if page.parent == ROOT else pytest.mark.campaign)
    for page in PAGES
    for number, block in enumerate(blocks(page, "python"), start=1)
]
COMMANDS = sorted(
    {
        command.partition("#")[0].strip()
        for page in PAGES
        for block in blocks(page, "console")
        for command in re.findall(r"^\$ (ileed .*)", block, flags=re.MULTILINE)
    }
)


@pytest.mark.parametrize(("page", "block"), PYTHON)
def test_each_python_block_of_a_page_runs_when_pasted_alone(page, block, tmp_path, monkeypatch):
    """In a namespace and a directory of its own; fits are cut short, since what they find is not what is asked here."""
    fit = ileed.Ileed.fit

    def short_fit(method, *arguments, **options):
        restarts = method.restarts if method.folds == 0 else min(method.restarts or 2, 2)
        usual = 2 if getattr(method.policy, "length", 1) == 1 else 0
        folds = usual if method.folds is None else method.folds
        short = replace(method, restarts=restarts, steps=min(method.steps or 50, 50), folds=folds)
        return fit(short, *arguments, **options)

    monkeypatch.setattr(ileed.Ileed, "fit", short_fit)
    monkeypatch.chdir(tmp_path)
    exec(compile(block, str(page), "exec"), {"__name__": "__main__"})


@cache
def help_for(*words: str) -> str:
    """What `ileed WORDS --help` prints; an unknown command has no help."""
    with pytest.MonkeyPatch.context() as patch:
        printed: list[str] = []
        patch.setenv("COLUMNS", "200")
        patch.setattr(sys.stdout, "write", printed.append)
        code = cli.run([*words, "--help"])
    found = "".join(printed)
    assert code == 0, f"there is no command {' '.join(words)}: {found}"
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_in_the_pages_exists_with_the_options_that_it_is_given(command):
    words = [word for word in shlex.split(command)[1:] if word != "--help"]
    known = help_for(*takewhile(lambda word: not word.startswith("-"), words[: 2 if words[:1] == ["chess"] else 1]))
    for option in re.findall(r"--[a-z][a-z-]*", command):
        assert re.search(rf"(?<![\w-]){option}(?![\w-])", known), f"{command}: there is no {option}"


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_an_example_runs(example, tmp_path, monkeypatch, capsys):
    """With short fits: tests/recovery/test_worked_example.py fits that example to its end."""
    fit = ileed.Ileed.fit

    def short_fit(method, *arguments, **options):
        return fit(replace(method, steps=min(method.steps or 50, 50)), *arguments, **options)

    monkeypatch.setattr(ileed.Ileed, "fit", short_fit)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out


@pytest.mark.parametrize("page", [*PAGES, ROOT / "docs/tutorial.ipynb"], ids=lambda page: page.name)
def test_links_within_the_repository_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_version_is_the_same_wherever_it_stands():
    library, lab = (
        tomllib.loads((ROOT / path).read_text())["project"] for path in ("pyproject.toml", "lab/pyproject.toml")
    )
    assert library["version"] == lab["version"] == ileed.__version__
    assert any(re.fullmatch(rf"ileed\[.*\]=={re.escape(ileed.__version__)}", each) for each in lab["dependencies"])
    assert f"\nversion: {ileed.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_tutorial_is_kept_without_outputs_and_without_paths_of_a_machine():
    """`make docs` executes it and puts the outputs on the site, so that none can be out of date."""
    tutorial = (ROOT / "docs/tutorial.ipynb").read_text()
    for cell in json.loads(tutorial)["cells"]:
        assert cell["cell_type"] == "markdown" or (cell["outputs"], cell["execution_count"]) == ([], None)
    assert not re.search(r"[\s\"'(]/(home|root|tmp|Users|work)/", tutorial)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_row_of_a_table_has_as_many_cells_as_its_head(page):
    """GitHub ends a cell at any bar that no backslash escapes, also inside backquotes."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for table in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        bars = {row: len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}
        head = next(iter(bars.values()))
        assert [row for row, count in bars.items() if count != head] == []


@pytest.mark.parametrize("name", ["speed_page", "policy_width", "ensemble_size"])
def test_a_generated_page_is_what_the_records_say(name, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    maker = import_module(name)
    made = maker.page()
    assert maker.PAGE.read_text() == made.text
    assert (maker.PAGE.parent / "details" / maker.PAGE.name).read_text() == made.details_text
    for name, content in made.downloads.items():
        assert (maker.PAGE.parent / "details" / name).read_text() == content
