"""Run directories, which are written atomically and which later versions can read, and the provenance of results.

A run replaces only an earlier run, and no other files of its folder (`ileed.runs.files`). A run in an object store
(`ileed.runs.stores`) is written on this machine first and uploaded with its settings last.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, final, get_args, get_origin, get_type_hints

import numpy as np

from ileed.errors import IleedError, RunError, SettingsError, brief
from ileed.runs import stores
from ileed.runs.files import (
    PARTIAL,
    REPLACEMENT,
    Ours,
    finish_replacement,
    locked,
    parse_tensors,
    replace_folder,
    tensor_bytes,
)
from ileed.runs.files import check_writable as check_writable
from ileed.runs.files import csv_bytes as csv_bytes
from ileed.runs.files import read_head as read_head
from ileed.runs.files import read_tensors as read_tensors
from ileed.runs.files import remove_file as remove_file
from ileed.runs.files import remove_partial as remove_partial
from ileed.runs.files import unreadable as unreadable
from ileed.runs.files import write_file as write_file
from ileed.runs.files import write_tensors as write_tensors

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 1
"""The format of run directories and result records."""
_SETTINGS, _PROVENANCE, _HISTORY, _WEIGHTS = "settings.json", "provenance.json", "history.jsonl", "weights.safetensors"
_FILES = (_SETTINGS, _PROVENANCE, _HISTORY, _WEIGHTS)
_REPORT = "report.html"
_KIND = "run directory"  # the first entry of settings.json, "ileed", says so
PAGE_MARK = b'<meta name="generator" content="ileed">'


@final
@dataclass(frozen=True, eq=False)
class Run:
    """The content of a run directory: settings, provenance, learning curve and tensors."""

    settings: Mapping[str, Any]
    provenance: Mapping[str, Any]
    history: Sequence[Mapping[str, Any]]
    weights: Mapping[str, Tensor]


def _files_of_run(folder: Path) -> list[str]:
    return [*_FILES, *([_REPORT] if _is_our_page(folder / _REPORT) else [])]


_OURS = Ours(_SETTINGS, _files_of_run)


def write_run(path: Path, run: Run, *, overwrite: bool = False) -> None:
    """Write a run directory atomically; an existing run is replaced only with `overwrite`, together with its report."""
    if stores.address_of(path):
        check_destination(path, overwrite=overwrite)
        local = stores.mirror(path)
        write_run(local, run, overwrite=True)
        if _is_our_page(path / _REPORT):
            stores.remove(path / _REPORT)
        stores.deliver(local, path, _FILES[::-1])  # the settings last
        shutil.rmtree(local)
        return
    path = _named_path(path)
    _check_replaceable(path, overwrite=overwrite)
    with replace_folder(path, _OURS if overwrite else None) as partial:
        (partial / _SETTINGS).write_text(json.dumps({"ileed": _KIND, **run.settings}, indent=2) + "\n")
        (partial / _PROVENANCE).write_text(json.dumps(run.provenance, indent=2) + "\n")
        (partial / _HISTORY).write_text("".join(json.dumps(row) + "\n" for row in run.history))
        (partial / _WEIGHTS).write_bytes(tensor_bytes(run.weights, {"format": str(FORMAT)}))


def read_run(path: Path) -> Run:
    """Read a run directory of this format or an older one, never parts of two runs.

    A file that is a link to another directory, or not a regular file, is refused.
    """
    copy = stores.fetched(path)
    with stores.name_address_in_errors(path, copy):
        try:
            with ExitStack() as opened:
                with locked(copy):  # only while files are opened, so that readers do not wait for each other
                    finish_replacement(copy, _OURS)
                    files = {name: opened.enter_context(_regular_file(copy, name).open("rb")) for name in _FILES}
                content = {name: file.read() for name, file in files.items()}
            return _parse_files(copy, content)
        except IleedError:
            raise
        except (FileNotFoundError, ValueError, RuntimeError) as error:  # RuntimeError: JSON too deep, symlink cycles
            raise damaged(copy, brief(error)) from error
        except (OSError, MemoryError) as error:
            raise unreadable(copy, error) from error


def _regular_file(path: Path, name: str) -> Path:
    """A file of a run, unless it is a link to another directory or not a regular file."""
    file = path / name
    if name == _SETTINGS and not file.is_file():
        raise RunError(
            f"{path} is not a run directory: it has no {_SETTINGS}; `ileed fit` or Fitted.save writes one",
            code="not-a-run",
        )
    if file.is_symlink() and file.resolve().parent != path.resolve():
        raise ValueError(f"{name} is a link to a file outside the directory")
    if file.exists() and not file.is_file():
        raise ValueError(f"{name} is not a regular file")
    return file


def _parse_files(path: Path, content: Mapping[str, bytes]) -> Run:
    settings, provenance = (_parse_json(content[name].decode("utf-8")) for name in (_SETTINGS, _PROVENANCE))
    history = [_parse_json(line) for line in content[_HISTORY].decode("utf-8").split("\n") if line.strip()]
    if not isinstance(settings, dict) or not isinstance(provenance, dict):
        raise damaged(path, "settings or provenance are not JSON objects")
    written_as = provenance.get("format", 0)
    if not isinstance(written_as, int):
        raise damaged(path, f"the format must be a whole number, got {brief(written_as)}")
    if written_as > FORMAT:
        release = brief(provenance.get("ileed")).strip("'")
        raise RunError(f"{path} was written by a newer ileed ({release}): upgrade to read it", code="newer-format")
    settings = {name: value for name, value in settings.items() if name != "ileed"}
    return Run(settings, provenance, history, parse_tensors(path / _WEIGHTS, content[_WEIGHTS])[0])


def _parse_json(text: str) -> Any:
    """Strict JSON, without NaN and Infinity."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def damaged(path: Path | str, reason: object) -> RunError:
    """The error for a run directory that has changed since it was written."""
    found = f"{stores.name_of(path)} is damaged ({' '.join(str(reason).split())})"
    return RunError(f"{found}: fit again, or restore it from a copy", code="damaged")


def check_destination(path: Path, *, overwrite: bool = False) -> None:
    """Refuse a path where a run and its checkpoint cannot or must not be written, before anything is computed."""
    if stores.address_of(path):
        held = stores.check(path)
        if _SETTINGS in held and not overwrite:
            raise _holds_a_run(path)
        if held and _SETTINGS not in held:
            first = brief(held[0] or stores.base_name(path))
            raise RunError(f"{stores.address_of(path)} holds files and no run ({first}): choose another place")
        return
    path = _named_path(path)
    remove_partial(path)
    _check_replaceable(path, overwrite=overwrite)
    missing = [folder for folder in path.parents if not os.path.lexists(folder)]
    try:
        for target in (checkpoint_path(path), *([path / REPLACEMENT] if os.path.exists(path) else [])):
            check_writable(target, shown=path)
    finally:
        for folder in missing:
            with suppress(OSError):
                folder.rmdir()


def _holds_a_run(path: Path) -> RunError:
    return RunError(
        f"{stores.address_of(path) or path} already holds a run: choose another place (--out), or replace it "
        "(--overwrite, in Python overwrite=True)",
        code="run-exists",
    )


def _check_replaceable(path: Path, *, overwrite: bool) -> None:
    """Refuse to write a run over something else, and over a run without `overwrite`."""
    if not os.path.lexists(path):
        return
    refused = f"{path} exists and is not a run directory: choose another place, or move away"
    if not os.path.isdir(path):
        raise RunError(f"{refused} the file", code="not-a-run")
    try:
        with locked(path):
            finish_replacement(path, _OURS)
            is_run = f'"ileed": "{_KIND}"'.encode() in read_head(path / _SETTINGS)
            others = sorted(name for name in os.listdir(path) if not name.startswith(f".{REPLACEMENT}{PARTIAL}"))
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error.strerror or error}): choose another place") from error
    if is_run:
        if not overwrite:
            raise _holds_a_run(path)
    elif others:
        raise RunError(f"{refused} what it holds ({others[0]})", code="not-a-run")


def _is_our_page(path: Path) -> bool:
    return PAGE_MARK in read_head(path)


def check_page(path: Path) -> None:
    """Refuse to write a report over a file that is not one of our reports."""
    if stores.exists(path) and not _is_our_page(path):
        found = f"{stores.name_of(path)} exists and is not a report by ileed"
        raise RunError(f"{found}: choose another place, or move it away", code="not-a-report")


def checkpoint_path(path: Path) -> Path:
    """The path of the checkpoint of a run: beside the run directory, on this machine if that is in an object store."""
    path = _named_path(stores.mirror(path))
    return path.with_name(path.name + ".checkpoint")


def _named_path(path: Path) -> Path:
    """The path itself, or the absolute path if it is `.` or ends in `..`."""
    return path if path.name not in ("", "..") else Path(os.path.abspath(path))


def plain(value: Any) -> Any:
    """Settings as JSON values: a dataclass becomes its `kind` and those of its fields that are to be saved."""
    if is_dataclass(value) and not isinstance(value, type):
        kept = [item.name for item in fields(value) if item.metadata.get("saved", True)]
        return {"kind": type(value).__name__} | {name: plain(getattr(value, name)) for name in kept}
    return [plain(item) for item in value] if isinstance(value, tuple | list) else value


def rebuilt(value: Any, kinds: Mapping[str, type]) -> Any:
    """Settings from JSON values; an unknown kind or field is an error that names it."""
    if isinstance(value, list):
        return tuple(rebuilt(item, kinds) for item in value)
    if not isinstance(value, Mapping) or "kind" not in value:
        return value
    kind = kinds.get(str(value.get("kind")))
    if kind is None:
        raise SettingsError(
            f"unknown kind {brief(value.get('kind'))} of settings: install the package that provides it; known are "
            f"{sorted(kinds)}"
        )
    known = [item.name for item in fields(kind)]
    given = {name: rebuilt(item, kinds) for name, item in value.items() if name != "kind"}
    if unknown := sorted(given.keys() - set(known)):
        raise SettingsError(f"unknown setting(s) {brief(unknown)}: {kind.__name__} has {known}")
    hints = get_type_hints(kind)
    for name, item in given.items():
        if not is_a(item, hints[name]):
            raise SettingsError(f"{name} of {kind.__name__} is {brief(item)}: it must be {type_name(hints[name])}")
    try:
        return kind(**given)
    except TypeError as error:
        raise SettingsError(f"settings of {kind.__name__} are incomplete: {brief(error)}") from error


def is_a(value: Any, hint: Any) -> bool:
    """Whether a value from JSON has an annotated type; an int is also a float, as in Python."""
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, UnionType):
        return any(is_a(value, each) for each in inner)
    if kind is Literal:
        return any(type(value) is type(each) and value == each for each in inner)
    if kind is tuple and inner and isinstance(value, tuple):
        hints = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        return len(value) == len(hints) and all(map(is_a, value, hints))
    if kind is Any:
        return True
    if isinstance(value, bool) and kind is not bool:
        return False
    if kind is float:
        return isinstance(value, int | float) and -1e308 < value < 1e308
    if kind is int:
        return isinstance(value, int) and -(2**63) <= value < 2**63
    return isinstance(value, kind)


def type_name(hint: Any) -> str:
    """The name of an annotated type."""
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else re.sub(r"\w+\.", "", str(hint))


def provenance() -> dict[str, Any]:
    """Versions, commit, machine and date, which are needed to reproduce a result."""
    import torch  # here, because readers of data do not need it

    return {
        "format": FORMAT,
        "ileed": _version(),
        # ILEED_COMMIT is for copies without a git history
        "commit": os.environ.get("ILEED_COMMIT") or _describe_checkout(Path(__file__).parents[1]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    }


def _version() -> str:
    """The version of the installed distribution, or `source` if there is none."""
    try:
        return metadata.version("ileed")
    except metadata.PackageNotFoundError:
        return "source"


@cache
def _describe_checkout(home: Path) -> str | None:
    """The output of `git describe` for our checkout, once per process, because a later commit is not the running code.

    A package inside another repository, in an environment or as a copy, has no commit of its own. Changed files under
    results/ do not make the commit "-dirty": experiments write them, and no measurement depends on them.
    """
    root = home.parents[1]
    try:
        is_ours = 'name = "ileed"\n' in (root / "pyproject.toml").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    own = str(home / "__init__.py")
    if not is_ours or not (root / ".git").exists() or _git(root, "ls-files", "--error-unmatch", own) is None:
        return None
    described = _git(root, "describe", "--always", "--abbrev=12")
    changes = _git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)results")
    return described if not described or changes == "" else f"{described}-dirty"


def _git(root: Path, *words: str) -> str | None:
    """The output of git for the repository at `root`, whatever the environment says; None if git fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment["GIT_OPTIONAL_LOCKS"] = "0"  # leave no lock behind, even on a full disk
    words = ("git", "-C", str(root), *words)
    try:
        answer = subprocess.run(words, capture_output=True, text=True, timeout=10, env=environment)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
