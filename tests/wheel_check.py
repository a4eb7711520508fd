"""The distributions as a user gets them: built, installed in fresh environments, and tried.

`make wheel-check` runs this. For each interpreter the wheel is installed alone, and the README's example in
Python run as pasted, with short fits; `ileed demo` and the lab's commands refuse in one sentence that says what to
install. Then the extras of the demo are added, and `ileed demo` runs to its end. Packages come from where uv finds
them: the folder that UV_FIND_LINKS or PIP_FIND_LINKS names, and the index.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import code_size

ROOT = Path(__file__).parents[1]
TORCH = "torch==2.13.0"
INTERPRETERS = ("3.11", "3.12", "3.13")
REFUSED = 2
REFUSAL_SECONDS = 15  # of processor time: a refusal takes five, the demo's fits more than sixty
SHORT_FITS = """
import dataclasses, ileed
fit = ileed.Ileed.fit
def short_fit(method, *arguments, **options):
    short = dataclasses.replace(method, restarts=min(method.restarts or 2, 2), steps=min(method.steps or 50, 50))
    return fit(short, *arguments, **options)
ileed.Ileed.fit = short_fit
"""


class WheelError(Exception):
    """Something that a user of the wheel would meet: the sentence says what."""


class Distributions(NamedTuple):
    """The files of one build."""

    sdist: Path
    wheel: Path


def main() -> None:
    """Check the distributions with the interpreters that are asked for, or with all that can be had."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", nargs="+", default=[], metavar="VERSION", help="for example 3.12")
    parser.add_argument("--out", type=Path, help="a directory that the built files go to")
    parser.add_argument("--episodes", type=int, default=100, help="how many episodes each policy of the demo plays")
    options = parser.parse_args()
    os.environ.setdefault("UV_FIND_LINKS", os.environ.get("PIP_FIND_LINKS", ""))
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in ("PYTHONPATH", "VIRTUAL_ENV"):  # nothing of the checkout may be found
        os.environ.pop(name, None)
    with tempfile.TemporaryDirectory(prefix="wheel-check-") as scratch:
        try:
            library = build(ROOT, options.out or Path(scratch) / "dist")
            build(ROOT / "lab", options.out or Path(scratch) / "dist")
            check_contents(library)
            for number, python in enumerate(options.python or available_interpreters(Path(scratch))):
                check_interpreter(python, library.wheel, Path(scratch) / f"user-{number}", options.episodes)
        except WheelError as failure:
            sys.exit(f"wheel-check: {failure}")


def project(folder: Path) -> dict[str, Any]:
    """The table `project` of a pyproject.toml."""
    found: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return found


def build(folder: Path, out: Path) -> Distributions:
    """The sdist of a project, and the wheel that is built from that sdist."""
    name, version = project(folder)["name"].replace("-", "_"), project(folder)["version"]
    run([uv(), "build", "--quiet", "--out-dir", out, folder])
    found = Distributions(out / f"{name}-{version}.tar.gz", out / f"{name}-{version}-py3-none-any.whl")
    for path in found:
        if not path.exists():
            raise WheelError(f"uv build did not write {path.name}: it wrote {', '.join(sorted(os.listdir(out)))}")
        say(f"built {path.name}, {path.stat().st_size / 1024:,.0f} KiB")
    return found


def check_contents(library: Distributions) -> None:
    """The wheel holds the library and its data, the sdist what builds it; the figures of its size are printed."""
    with zipfile.ZipFile(library.wheel) as opened:
        names = opened.namelist()
        files = {name: opened.read(name).decode() for name in names if name.endswith(".py")}
    with tarfile.open(library.sdist) as opened:
        packed = {name.partition("/")[2] for name in opened.getnames()}
    shipped = [path for path in (ROOT / "src/ileed").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    if missing := [path for path in shipped if path.relative_to(ROOT / "src").as_posix() not in names]:
        raise WheelError(f"the wheel lacks {missing[0].relative_to(ROOT)}: see [tool.hatch.build] in pyproject.toml")
    if strange := [name for name in names if not name.startswith(("ileed/", "ileed-"))]:
        raise WheelError(f"the wheel holds {strange[0]}: only the package belongs in it")
    if strange := [name for name in packed if name.split("/")[0] in ("tests", "lab", "results", "docs")]:
        raise WheelError(f"the sdist holds {strange[0]}: it holds what builds the wheel, and nothing else")
    say(code_size.summary(files))
    if sum(map(code_size.lines, files.values())) > code_size.LINES_IN_ALL:
        raise WheelError(
            f"the wheel holds more than {code_size.LINES_IN_ALL:,} lines of Python: see tests/code_size.py"
        )


def available_interpreters(scratch: Path) -> list[str]:
    """The interpreters of this machine for which there is a build of torch without CUDA; the running one always."""
    found = [sys.executable]
    for version in INTERPRETERS:
        if version == f"{sys.version_info.major}.{sys.version_info.minor}":
            continue
        python, environment = interpreter(version), scratch / f"trial-{version}"
        if python is None:
            say(f"Python {version} is not checked: it is not on this machine")
            continue
        run([uv(), "venv", "--quiet", "--python", python, environment])
        plan = attempt([uv(), "pip", "install", "--dry-run", "--python", environment, *constrained(), TORCH])
        if plan.returncode != 0 or re.search(r"nvidia|cuda", plan.stderr):
            say(f"Python {version} is not checked: there is no build of {TORCH} without CUDA for it here")
        else:
            found.append(python)
    return found


def interpreter(version: str) -> str | None:
    """Where this machine has an interpreter, on the path or among those of pyenv."""
    on_path = attempt([uv(), "python", "find", "--no-python-downloads", version])
    if on_path.returncode == 0:
        return on_path.stdout.strip()
    home = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    return next((str(path) for path in sorted(home.glob(f"versions/{version}.*/bin/python"))), None)


def check_interpreter(python: str, wheel: Path, home: Path, episodes: int) -> None:
    """The wheel alone, and then with the extras of the demo, in one fresh environment."""
    began = time.monotonic()
    environment, work = home / "environment", home / "work"
    work.mkdir(parents=True)
    run([uv(), "venv", "--quiet", "--no-python-downloads", "--python", python, environment])
    version = run([environment / "bin/python", "--version"]).stdout.strip()
    say(f"{version}, in a fresh environment:")
    install(environment, f"ileed @ {wheel.as_uri()}")
    check_readme(environment, work)
    check_refusal(environment, work, "demo", "pip install 'ileed[")
    for command in project(ROOT / "lab")["entry-points"]["ileed.commands"]:
        check_refusal(environment, work, command, "pip install ileed-lab")
    install(environment, f"ileed[minigrid,report] @ {wheel.as_uri()}")
    check_demo(environment, work, episodes)
    shutil.rmtree(home)
    say(f"{version} has passed in {time.monotonic() - began:.0f} s")


def install(environment: Path, requirement: str) -> None:
    began = time.monotonic()
    run([uv(), "pip", "install", "--quiet", "--python", environment, *constrained(), TORCH, requirement])
    say(f"installed {requirement.partition(' ')[0]} in {time.monotonic() - began:.0f} s")


def check_readme(environment: Path, work: Path) -> None:
    """Every Python block of the section runs as pasted, without warnings, and shows something.

    Its fits are short, since what they find is not what is asked here: `ileed demo` fits to the end.
    """
    section = (ROOT / "README.md").read_text().partition("## Use it from Python\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    if not blocks:
        raise WheelError('README.md has no Python under "Use it from Python": this check looks for it there')
    for number, block in enumerate(blocks, start=1):
        began = time.monotonic()
        program = f"{SHORT_FITS}exec({block!r}, {{'__name__': '__main__'}})"
        done = run([environment / "bin/python", "-W", "error", "-c", program], cwd=work)
        if not done.stdout.strip():
            raise WheelError(f"block {number} of the README's example printed nothing")
        say(f"block {number} of the README's example ran in {time.monotonic() - began:.0f} s")


def check_refusal(environment: Path, work: Path, command: str, advice: str) -> None:
    """The command refuses before any work, in one sentence that says what to install, and leaves nothing behind."""
    before, began = sorted(work.rglob("*")), resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = attempt([environment / "bin/ileed", command], cwd=work)
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - began
    sentence = done.stderr.strip()
    if done.returncode != REFUSED or done.stdout or "\n" in sentence or advice not in sentence:
        raise WheelError(
            f"`ileed {command}` should end with {REFUSED} and one sentence with {advice!r}: it ended with "
            f"{done.returncode} and printed {done.stdout + done.stderr!r}"
        )
    if seconds > REFUSAL_SECONDS or sorted(work.rglob("*")) != before:
        raise WheelError(f"`ileed {command}` worked for {seconds:.0f} s or left files, and refused only then")
    say(f"`ileed {command}` refuses after {seconds:.1f} s: {sentence}")


def check_demo(environment: Path, work: Path, episodes: int) -> None:
    """`ileed demo` finds the competent demonstrator, plays better than cloning and writes its report."""
    began = time.monotonic()
    done = run([environment / "bin/ileed", "demo", "--json", "--episodes", str(episodes)], cwd=work)
    found = json.loads(done.stdout)
    scores = {name: score["mean"] for name, score in found["scores"].items()}
    best = max(found["expertise"], key=lambda name: found["expertise"][name])
    page = work / found["report"]
    if best != "demonstrator 1" or scores["ILEED"] <= scores["BC"] or "<html" not in page.read_text():
        raise WheelError(
            f"`ileed demo` ranked {best} first and scored {scores}: demonstrator 1 and ILEED should be ahead"
        )
    told = ", ".join(f"{name} {mean:.2f}" for name, mean in scores.items())
    say(f"`ileed demo` took {time.monotonic() - began:.0f} s: {best} is first; {told}")


def constrained() -> list[str]:
    return ["-c", str(ROOT / "constraints.txt")]


def uv() -> str:
    """The uv beside this interpreter, or else on the path."""
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.exists() else shutil.which("uv")
    if found is None:
        raise WheelError("there is no uv: pip install uv")
    return found


def attempt(command: Sequence[str | Path], cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def run(command: Sequence[str | Path], cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    done = attempt(command, cwd)
    if done.returncode != 0:
        shown = " ".join(map(str, command))
        raise WheelError(f"{shown} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
