"""What other packages contribute: the lab's commands and tasks, those of a tiny package, and refusals without them."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ileed import cli, envs

ROOT = Path(__file__).parents[1]

WITHOUT_THE_LAB = """
import sys
from importlib.machinery import PathFinder
class Bare:
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] == "ileed_lab" else PathFinder.find_spec(name, path, target)
    def find_distributions(self, *context):
        return (each for each in PathFinder.find_distributions(*context) if each.name != "ileed-lab")
sys.meta_path[:] = [Bare() if finder is PathFinder else finder for finder in sys.meta_path]
"""


def ended(code: str, *, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    found = os.pathsep.join(filter(None, [str(path or ""), os.environ.get("PYTHONPATH", "")]))
    environment = os.environ | ({"PYTHONPATH": found} if path else {})
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)


def command(*words: str, before: str = "", path: Path | None = None) -> subprocess.CompletedProcess[str]:
    return ended(f"{before}\nimport sys; from ileed.cli import run; sys.exit(run({list(words)!r}))", path=path)


@pytest.mark.parametrize("name", ["demonstrate", "reproduce", "tables", "pretrain", "chess"])
def test_without_the_lab_each_of_its_commands_answers_one_sentence_that_says_what_to_install(name):
    said = command(name, "--help", before=WITHOUT_THE_LAB)
    assert (said.returncode, said.stdout) == (2, "")
    (line,) = said.stderr.splitlines()
    assert f"`ileed {name}`" in line
    assert "pip install ileed-lab" in line
    assert "pip install ./lab" in line


def test_without_the_lab_help_lists_what_is_there():
    said = command("--help", before=WITHOUT_THE_LAB)
    assert said.returncode == 0
    listed = set(re.findall(r"^  (\w+) ", said.stdout, flags=re.MULTILINE))
    assert listed == set(cli.COMMANDS)
    assert {"demonstrate", "reproduce", "tables", "pretrain", "chess"} == set(cli.commands()) - set(cli.COMMANDS)


@pytest.mark.parametrize("name", ["minigrid/skills", "robot/reach", "robot/square"])
def test_without_the_lab_each_of_its_tasks_is_answered_with_what_to_install(name):
    said = command("evaluate", "runs/x", "--task", name, before=WITHOUT_THE_LAB)
    assert said.returncode == 2
    (line,) = said.stderr.splitlines()
    assert f"the task {name} comes with the package ileed-lab" in line


def test_the_task_of_the_lab_is_known_where_the_lab_is():
    assert {"minigrid/skills", "robot/reach", "robot/square"} < set(envs.all_names())
    assert envs.task("robot/square").action_size == 7
    alone = ended(WITHOUT_THE_LAB + "from ileed import envs; print(*envs.all_names())")
    assert set(alone.stdout.split()) == set(envs.names())


def imports(file: Path) -> list[tuple[str, str]]:
    """Every module that a file imports, with the name taken from it; no name where the module itself is imported."""
    found = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found += [(each.name, "") for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [(node.module or "", each.name) for each in node.names]
    return found


def test_the_library_never_imports_the_lab():
    files = sorted((ROOT / "src" / "ileed").rglob("*.py"))
    assert files
    for file in files:
        assert not [module for module, _ in imports(file) if module.partition(".")[0] == "ileed_lab"], file


LAB = sorted((ROOT / "lab").rglob("*.py"))


@pytest.mark.parametrize("file", LAB, ids=lambda file: str(file.relative_to(ROOT / "lab")))
def test_the_lab_imports_only_public_names_of_the_library(file):
    ours = [(module, name) for module, name in imports(file) if module.partition(".")[0] == "ileed"]
    private = [(module, name) for module, name in ours for part in (*module.split("."), name) if part.startswith("_")]
    assert not private
    modules = {name for module, name in ours if module == "ileed"} | {"ileed"}
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            assert not (isinstance(node.value, ast.Name) and node.value.id in modules), ast.unparse(node)


GREETING = """
from dataclasses import dataclass
from ileed.cli import Command
from ileed.envs.minigrid import MiniGridTask

GREET = Command("greeting", "Greet", "Say hello.")
HALL = lambda: MiniGridTask("minigrid/lava")
NOT_A_COMMAND = "hello"

@dataclass(frozen=True)
class Greet:
    \"\"\"Say hello.\"\"\"
    name: str = "you"
    def __call__(self) -> None:
        print(f"hello {self.name}")
"""


@pytest.fixture
def package(tmp_path) -> Path:
    """A package that contributes a command, a task, and commands that cannot be had, as pip would install it."""
    return install(
        tmp_path,
        "greeting",
        GREETING,
        "[ileed.commands]\ngreet = greeting:GREET\nfit = greeting:GREET\nbroken = greeting:ABSENT\n"
        "wrong = greeting:NOT_A_COMMAND\n[ileed.tasks]\ngreeting/hall = greeting:HALL\n",
    )


def test_a_package_adds_a_command(package):
    said = command("greet", "--name", "ann", path=package)
    assert (said.returncode, said.stdout, said.stderr) == (0, "hello ann\n", "")
    shown = command("--help", path=package)
    assert "  greet " in shown.stdout
    assert "Say hello." in shown.stdout
    assert "broken" not in shown.stdout
    assert "hello" not in command("fit", "--help", path=package).stdout  # the library's own goes before


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("broken", "broken, which the package greeting contributes, cannot be loaded"),
        ("wrong", "is 'hello': it must be an ileed.cli.Command"),
    ],
)
def test_a_contribution_that_cannot_be_had_is_one_sentence(name, sentence, package):
    said = command(name, path=package)
    assert said.returncode == 2
    (line,) = said.stderr.splitlines()
    assert sentence in line


def test_a_package_adds_a_task(package):
    code = "from ileed import envs; print(envs.task('greeting/hall').name, 'greeting/hall' in envs.all_names())"
    assert ended(code, path=package).stdout == "minigrid/lava True\n"


def install(folder: Path, module: str, text: str, entry_points: str) -> Path:
    """Put a package of one module into a folder, as pip would install it."""
    (folder / f"{module}.py").write_text(text)
    about = folder / f"{module}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(entry_points)
    return folder


def test_the_reader_of_the_documents_works_as_an_installed_package(tmp_path):
    """The page's Python is the module, and its entry points are those of the package; both as they stand there."""
    page = (ROOT / "docs/howto/parts.md").read_text()
    (block,) = (each for each in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL) if "class Steps" in each)
    (toml,) = re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL)
    (points,) = (group for name, group in tomllib.loads(toml)["project"]["entry-points"].items() if "formats" in name)
    module, _, name = points["steps"].partition(":")
    path = install(tmp_path, "mine_reading", block, f"[ileed.formats]\nsteps = mine_reading:{name}\n")
    assert module == "mine.reading"
    said = ended(
        f"import os; os.chdir({str(tmp_path)!r})\n"
        "import ileed\n"
        "open('mine.steps', 'w').write('ann 0 1.5 0\\nann 0 0.5 1\\nbob 1 2.5 0\\n')\n"
        "data = ileed.read('mine.steps')\n"
        "ileed.write(data, 'x.parquet')\n"
        "print(data.names, ileed.read('x.parquet').equals(data))\n",
        path=path,
    )
    assert (said.stdout, said.stderr) == ("('ann', 'bob') True\n", "")


BROKEN = {
    "raises": ("raise RuntimeError('no licence')", "reads:READER"),
    "is no Python": ("def read(:", "reads:READER"),
    "lacks a package": ("import a_package_that_is_absent", "reads:READER"),
    "lacks the name": ("", "reads:READER"),
    "is a function": ("def read(path, *, demonstrator=None): ...", "reads:read"),
    "is wrong": (
        "from ileed.formats import AbstractFormat\n"
        "class Odd(AbstractFormat):\n    name, suffixes = 'odd', '.odd'\n    read = columns = print\nREADER = Odd()",
        "reads:READER",
    ),
}


@pytest.mark.parametrize(("text", "point"), BROKEN.values(), ids=BROKEN)
def test_a_broken_plug_in_breaks_no_call_that_does_not_need_it(text, point, tmp_path):
    groups = "".join(f"[ileed.{group}]\nodd = {point}\n" for group in ("formats", "commands", "tasks", "parts"))
    path = install(tmp_path, "reads", text, groups)
    said = ended(
        f"import os; os.chdir({str(tmp_path)!r})\n"
        "import ileed\n"
        "from ileed import cli\nfrom ileed import envs\n"
        "assert 'odd' not in cli.commands()\n"
        "data = ileed.shipped('square')\n"
        "for name in ('x.parquet', 'x.hdf5', 'x'):\n"
        "    ileed.write(data, name, **({'format': 'minari'} if name == 'x' else {}))\n"
        "    assert len(ileed.read(name)) == len(data)\n"
        "envs.task('minigrid/lava')\n"
        "try:\n"
        "    ileed.read(__import__('pathlib').Path('some.odd').absolute().touch() or 'some.odd')\n"
        "except ileed.DemonstrationError as error:\n"
        "    print(error)\n",
        path=path,
    )
    assert (said.returncode, said.stderr) == (0, "")
    assert "some.odd" in said.stdout
    assert "odd" in said.stdout.partition("readers for")[2]  # which contribution may be the missing one
