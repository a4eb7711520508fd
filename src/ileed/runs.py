"""Run directories: plain files (JSON and safetensors) that appear whole or not at all, and still load years later.

A run directory may hold files of its user too. A run is replaced in place: the new files are written to a folder inside
the run directory, which takes the name `_REPLACEMENT` when it is whole, by one rename. From that moment on the new run
is the one that is read; then its files take the names of the old ones, one by one. So whenever a process is killed, one
whole run is found, the old or the new, on any file system that can rename; and what we did not write is not touched.
"""

from __future__ import annotations

import glob
import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, final, get_args, get_origin, get_type_hints

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from ileed.deprecation import current_names
from ileed.errors import RunError, SettingsError, brief

FORMAT = 1
_SETTINGS, _PROVENANCE, _HISTORY, _WEIGHTS = "settings.json", "provenance.json", "history.jsonl", "weights.safetensors"
_FILES = (_WEIGHTS, _HISTORY, _PROVENANCE, _SETTINGS)
_REPORT = "report.html"
_MARK = {"ileed": "run directory"}  # what settings.json begins with; nobody else writes that
_REPLACEMENT = ".ileed-replacement"
_PARTIAL = ".ileed-"  # what follows a name in that of a folder in which something is written before it takes the name

PAGE_MARK = b'<meta name="generator" content="ileed">'
PAGE_HEAD = b"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
"""


@final
@dataclass(frozen=True, eq=False)
class Run:
    """What a run directory holds: settings, provenance, the learning curve, and the tensors."""

    settings: Mapping[str, Any]
    provenance: Mapping[str, Any]
    history: Sequence[Mapping[str, Any]]
    weights: Mapping[str, Tensor]


def write_run(path: Path, run: Run, *, overwrite: bool = False) -> None:
    """Write a run directory, whole or not at all; a run that is already there is replaced only with `overwrite`.

    Replacing leaves every file that is not ours where it is. A report of the old run is removed with it.
    """
    path = _with_a_name(path)
    _check_replaceable(path, overwrite=overwrite)
    replaces = os.path.exists(path)
    target = path / _REPLACEMENT if replaces else path
    with _written_whole(target, directory=True, told=path) as partial:
        if replaces:
            _finish_replacement(path)
        _write_files(partial, run)
    if replaces:
        _use_replacement(path)
        _remove_partial(target)
    _remove_partial(path)


def _write_files(folder: Path, run: Run) -> None:
    (folder / _SETTINGS).write_text(_json({**_MARK, **run.settings}))
    (folder / _PROVENANCE).write_text(_json(run.provenance))
    (folder / _HISTORY).write_text("".join(json.dumps(row) + "\n" for row in run.history))
    (folder / _WEIGHTS).write_bytes(tensors_to_bytes(dict(run.weights), metadata={"format": str(FORMAT)}))


def _use_replacement(path: Path) -> None:
    """Let a whole replacement take the place of the run; where none of its files can be moved, the old run stays."""
    replacement = path / _REPLACEMENT
    try:
        _finish_replacement(path)
    except BaseException as error:
        if all((replacement / name).exists() for name in _FILES):
            os.replace(replacement, path / f".{_REPLACEMENT}{_PARTIAL}undone")
            _remove_partial(replacement)
            if isinstance(error, OSError):
                raise _unwritable(path, error) from error
        elif isinstance(error, OSError):
            return  # the new run is whole, in two places: who reads or writes it next moves the rest
        raise


def _finish_replacement(path: Path) -> None:
    """Move the files of a whole replacement to where they belong; several processes may do so at once."""
    replacement = path / _REPLACEMENT
    if os.path.islink(replacement) or not os.path.isdir(replacement):  # we make no links: what one leads to stays there
        return
    for name in _FILES:
        with suppress(FileNotFoundError):
            os.replace(replacement / name, path / name)
    with suppress(OSError):
        _settle(path)
    if is_our_page(path / _REPORT):
        (path / _REPORT).unlink(missing_ok=True)
    with suppress(OSError):
        replacement.rmdir()


def read_run(path: Path) -> Run:
    """Read a run directory of this format or an older one; one that is replaced meanwhile is read anew, not mixed.

    Its files lie in it: one that is a link to somewhere else is refused, and so is whatever is not a plain file.
    """
    with suppress(OSError):
        _finish_replacement(path)
    while True:
        before = _state(path)
        try:
            run = _read_files(path)
        except RunError:
            if _state(path) == before:
                raise
            continue
        if _state(path) == before:
            return run


def _state(path: Path) -> list[tuple[Path, int, int] | None]:
    """Which files are the run at this moment: another list means that it was replaced, or is being replaced."""
    found: list[tuple[Path, int, int] | None] = []
    for name in _FILES:
        file = _current(path, name)
        try:
            status = file.stat()
            found.append((file, status.st_ino, status.st_mtime_ns))
        except OSError:
            found.append(None)
    return found


def _current(path: Path, name: str) -> Path:
    """Where a file of the run lies: in a whole replacement that a killed process left, or in its place."""
    waiting = path / _REPLACEMENT / name
    return waiting if os.path.exists(waiting) else path / name


def _read_files(path: Path) -> Run:
    if not os.path.isfile(_current(path, _SETTINGS)):
        raise RunError(f"{path} is not a run directory: it has no {_SETTINGS}; `ileed fit` or Fitted.save writes one")
    try:
        for name in _FILES:
            _check_inside(_current(path, name))
        settings, provenance = (_loaded(_current(path, name).read_text("utf-8")) for name in (_SETTINGS, _PROVENANCE))
        lines = _current(path, _HISTORY).read_text("utf-8").split("\n")
        history = [_loaded(line) for line in lines if line.strip()]
    except (OSError, ValueError, RuntimeError) as error:  # the last for JSON too deep, and links in a circle
        raise damaged(path, brief(error)) from error
    if not isinstance(settings, dict) or not isinstance(provenance, dict):
        raise damaged(path, "settings or provenance are not JSON objects")
    written_as = provenance.get("format", 0)
    if not isinstance(written_as, int):
        raise damaged(path, f"the format is {brief(written_as)} but must be a whole number")
    if written_as > FORMAT:
        release = brief(provenance.get("ileed")).strip("'")
        raise RunError(f"{path} was written by a newer ileed ({release}): upgrade to read it")
    settings = {name: value for name, value in settings.items() if name not in _MARK}
    return Run(settings, provenance, history, read_tensors(_current(path, _WEIGHTS))[0])


def _check_inside(file: Path) -> None:
    """Refuse a link to a file elsewhere, and whatever is not a plain file."""
    if file.is_symlink() and file.resolve().parent != file.parent.resolve():
        raise ValueError(f"{file.name} is a link to a file outside the directory, and these are not followed")
    if file.exists() and not file.is_file():
        raise ValueError(f"{file.name} is not a plain file")


def _loaded(text: str) -> Any:
    """JSON as the standard has it: NaN and Infinity are no numbers of its."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def damaged(path: Path | str, reason: object) -> RunError:
    """The sentence for a run directory that cannot be what it was when it was written."""
    return RunError(f"{path} is damaged ({' '.join(str(reason).split())}): fit again, or restore it from a copy")


def check_destination(path: Path, *, overwrite: bool = False) -> None:
    """Refuse a place where a run and its checkpoint cannot or must not be written, before anything is computed."""
    path = _with_a_name(path)
    _check_replaceable(path, overwrite=overwrite)
    made: list[Path] = []
    try:
        for folder in reversed((path.parent, *path.parent.parents)):
            if not os.path.lexists(folder):
                folder.mkdir()
                made.append(folder)
        _write_probe(checkpoint_path(path))
        if os.path.exists(path):
            _write_probe(path / _REPLACEMENT)
    except OSError as error:
        raise RunError(f"{path} cannot be written ({error.strerror or error}): choose another place") from error
    finally:
        for folder in reversed(made):
            with suppress(OSError):
                folder.rmdir()


def _write_probe(path: Path) -> None:
    """Write a small file where `path` would be written before it took its name, and remove it."""
    room = Path(tempfile.mkdtemp(prefix=f".{path.name}{_PARTIAL}", dir=path.parent))
    try:
        (room / path.name).write_bytes(bytes(1024))
        _settle(room / path.name)
    finally:
        shutil.rmtree(room, ignore_errors=True)


def _check_replaceable(path: Path, *, overwrite: bool) -> None:
    """Refuse to write a run over something that is not one; and over a run, unless that was asked for."""
    if not os.path.lexists(path):
        return
    if not os.path.isdir(path):
        raise RunError(f"{path} exists and is not a run directory: choose another place, or move it away")
    try:
        others = sorted(item.name for item in path.iterdir() if not item.name.startswith(f".{_REPLACEMENT}{_PARTIAL}"))
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error.strerror or error}): choose another place") from error
    settings = _read_object(_current(path, _SETTINGS))
    if _MARK.items() <= settings.items() or _is_unmarked_run(path, settings, others):
        if not overwrite:
            raise RunError(
                f"{path} already holds a run: choose another place (--out), or replace it "
                "(--overwrite, in Python overwrite=True)"
            )
    elif others:
        raise RunError(
            f"{path} exists and is not a run directory: choose another place, or move away what it holds ({others[0]})"
        )


def _is_unmarked_run(path: Path, settings: Mapping[str, Any], names: Sequence[str]) -> bool:
    """Whether this is a run from before runs had a mark: all of our files, with our fields, and no other."""
    provenance = _read_object(path / _PROVENANCE)
    return (
        set(_FILES) <= set(names) <= {*_FILES, _REPORT}
        and {"method", "parts", "sizes", "demonstrators", "outcome"} <= settings.keys()
        and {"format", "ileed", "torch", "seed", "data"} <= provenance.keys()
    )


def _read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; an empty one where there is none."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def is_our_page(path: Path) -> bool:
    """Whether a file is a report that we wrote: it has our mark, or begins as ours did before they had one."""
    try:
        with path.open("rb") as opened:
            head = opened.read(1024)
    except OSError:
        return False
    return PAGE_MARK in head or head.startswith(PAGE_HEAD)


def check_page(path: Path) -> None:
    """Refuse to write a report over a file that is not one of ours."""
    if os.path.lexists(path) and not is_our_page(path):
        raise RunError(f"{path} exists and is not a report of ours: choose another place, or move it away")


def checkpoint_path(path: Path) -> Path:
    """Where the checkpoint of a run that goes to `path` lies: beside it."""
    path = _with_a_name(path)
    return path.with_name(path.name + ".checkpoint")


def _with_a_name(path: Path) -> Path:
    """The path itself, or the same place by its own name where it was called `.` or `..`."""
    return path if path.name not in ("", "..") else Path(os.path.abspath(path))


def write_tensors(path: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, str]) -> None:
    """Write named tensors and notes as one safetensors file, whole or not at all."""
    write_file(path, tensors_to_bytes({name: value.contiguous() for name, value in tensors.items()}, dict(notes)))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and notes of a safetensors file, on the CPU."""
    try:
        with safe_open(path, framework="pt") as opened:
            # a copy: what was only mapped would change, or fail, with the file
            tensors = {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118
            return tensors, opened.metadata() or {}
    except (OSError, SafetensorError, ValueError, TypeError, RuntimeError, AttributeError, MemoryError) as error:
        raise RunError(f"{path} cannot be read as safetensors ({brief(error)}): restore or remove it") from error


def write_file(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old content or the new, never a part of either."""
    with _written_whole(path, directory=False) as partial:
        partial.write_bytes(content)


def remove_file(path: Path) -> None:
    """Remove a file, and what killed processes left of attempts to write it."""
    path.unlink(missing_ok=True)
    _remove_partial(path)


def _remove_partial(path: Path) -> None:
    """Remove what killed processes left of attempts to write `path`; the names of these folders are ours alone."""
    for room in glob.glob(glob.escape(f"{path.parent / f'.{path.name}{_PARTIAL}'}") + "*"):
        shutil.rmtree(room, ignore_errors=True)


@contextmanager
def _written_whole(path: Path, *, directory: bool, told: Path | None = None) -> Iterator[Path]:
    """Yield a place beside `path` to write to; on success it takes the name of `path`, on failure it is removed.

    Errors speak of `told`, where that is another path.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        room = Path(tempfile.mkdtemp(prefix=f".{path.name}{_PARTIAL}", dir=path.parent))
    except OSError as error:
        raise RunError(f"{told or path} cannot be written ({error.strerror or error}): choose another place") from error
    try:
        partial = room / path.name
        if directory:
            partial.mkdir()
        yield partial
        for item in (*(partial.iterdir() if directory else ()), partial, room):
            _settle(item)
        os.replace(partial, path)
    except OSError as error:
        raise _unwritable(told or path, error) from error
    finally:
        shutil.rmtree(room, ignore_errors=True)
    with suppress(OSError):  # the name is changed; there are file systems that cannot be asked to hold a folder
        _settle(path.parent)


def _unwritable(path: Path, error: OSError) -> RunError:
    return RunError(
        f"{path} cannot be written ({error.strerror or error}): free some space or choose another place; "
        "nothing was changed"
    )


def _settle(path: Path) -> None:
    """Ask the disk to hold what was written before its name is changed."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, sort_keys=False) + "\n"


def plain(value: Any) -> Any:
    """Settings as JSON holds them: a dataclass becomes its fields and its `kind`."""
    if is_dataclass(value) and not isinstance(value, type):
        return {"kind": type(value).__name__} | {item.name: plain(getattr(value, item.name)) for item in fields(value)}
    return [plain(item) for item in value] if isinstance(value, tuple | list) else value


def rebuilt(value: Any, kinds: Mapping[str, type]) -> Any:
    """Settings from JSON; an unknown kind or field is refused by name, never ignored."""
    if isinstance(value, list):
        return tuple(rebuilt(item, kinds) for item in value)
    if not isinstance(value, Mapping):
        return value
    value = current_names(value)
    kind = kinds.get(str(value.get("kind")))
    if kind is None:
        raise SettingsError(
            f"unknown kind {brief(value.get('kind'))} of settings, which no installed package provides: install the "
            f"package that does; there are {sorted(kinds)}"
        )
    known = [item.name for item in fields(kind)]
    given = {name: rebuilt(item, kinds) for name, item in value.items() if name != "kind"}
    if unknown := sorted(given.keys() - set(known)):
        raise SettingsError(f"unknown setting(s) {brief(unknown)}: {kind.__name__} has {known}")
    hints = get_type_hints(kind)
    for name, item in given.items():
        if not _is_a(item, hints[name]):
            raise SettingsError(f"{name} of {kind.__name__} is {brief(item)}: it must be {_spelled(hints[name])}")
    try:
        return kind(**given)
    except TypeError as error:
        raise SettingsError(f"settings of {kind.__name__} are incomplete: {brief(error)}") from error


def _is_a(value: Any, hint: Any) -> bool:
    """Whether a value from JSON is of an annotated type; a whole number may stand for a float, as in Python."""
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, UnionType):
        return any(_is_a(value, each) for each in inner)
    if kind is Literal:
        return any(type(value) is type(each) and value == each for each in inner)
    if kind is tuple and inner:
        if not isinstance(value, tuple):
            return False
        if inner[-1] is Ellipsis:
            return all(_is_a(item, inner[0]) for item in value)
        return len(value) == len(inner) and all(map(_is_a, value, inner))
    if kind is Any:
        return True
    if kind in (int, float):
        number = isinstance(value, int | float if kind is float else int) and not isinstance(value, bool)
        return number and -(2**63) <= value < 2**63
    return isinstance(value, kind)


def _spelled(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else re.sub(r"\w+\.", "", str(hint))


def provenance() -> dict[str, Any]:
    """What a result needs beside it to be made again: versions, commit, machine and date."""
    return {
        "format": FORMAT,
        "ileed": metadata.version("ileed") if _installed("ileed") else "source",
        "commit": _commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    }


def _installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def _commit() -> str | None:
    """The commit of the checkout this package runs from, or ILEED_COMMIT where a copy came without its history."""
    if stated := os.environ.get("ILEED_COMMIT"):
        return stated
    return _described(Path(__file__).parent)


@cache
def _described(home: Path) -> str | None:
    """What git calls our own checkout; asked once, since a commit made while we run is not what runs.

    A package that lies in somebody else's repository, in an environment or as a copy, has no commit of its own. Changed
    files under results/ do not make it "-dirty": they are what experiments write, and no measurement depends on them.
    """
    root = home.parent.parent
    if not (root / ".git").exists() or not _is_our_project(root / "pyproject.toml"):
        return None
    if _git(root, "ls-files", "--error-unmatch", str(home / "__init__.py")) is None:
        return None
    described = _git(root, "describe", "--always", "--dirty", "--abbrev=12")
    if described is not None and described.endswith("-dirty"):
        status = ("status", "--porcelain", "--branch", "--untracked-files=no", "--", ".", ":(exclude)results")
        if len((_git(root, *status) or "").splitlines()) == 1:  # the branch's name, and no change
            return described.removesuffix("-dirty")
    return described


def refuse_uncommitted(out: Path) -> None:
    """Refuse to write under our checkout's results/ where the code that runs is not that of a commit."""
    results, commit = Path(__file__).resolve().parents[2] / "results", _commit()
    if commit is not None and commit.endswith("-dirty") and out.resolve().is_relative_to(results):
        raise SettingsError(
            f"{results} holds records of committed code alone, and this checkout has uncommitted changes ({commit}): "
            "commit them first, or pass another --out"
        )


def _is_our_project(file: Path) -> bool:
    try:
        return bool(tomllib.loads(file.read_text(encoding="utf-8"))["project"]["name"] == "ileed")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _git(root: Path, *words: str) -> str | None:
    """What git prints about the repository at `root`, whichever other one the environment speaks of; or nothing."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment["GIT_OPTIONAL_LOCKS"] = "0"  # asking must leave no lock behind, even on a full disk
    try:
        answer = subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, timeout=10, env=environment
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None if answer.returncode == 0 else None
