"""Run directories: plain files (JSON and safetensors) that appear whole or not at all, and still load years later.

A run directory may hold files of its user too. A run is replaced in place: the new files are written to a folder inside
the run directory, which takes the name `_REPLACEMENT` when it is whole, by one rename. From that moment on the new run
is the one that is read; then its files take the names of the old ones, one by one. So whenever a process is killed, one
whole run is found, the old or the new, on any file system that can rename; and what we did not write is not touched.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, final, get_args, get_origin, get_type_hints

from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from ileed.deprecation import current_names
from ileed.errors import RunError, SettingsError, brief
from ileed.runs.files import (
    PARTIAL,
    read_tensors,
    remove_file,
    remove_partial,
    sync,
    unwritable,
    write_file,
    write_tensors,
    written_whole,
)
from ileed.runs.provenance import FORMAT, provenance, refuse_uncommitted

__all__ = [
    "FORMAT",
    "PAGE_HEAD",
    "PAGE_MARK",
    "Run",
    "check_destination",
    "check_page",
    "checkpoint_path",
    "damaged",
    "is_our_page",
    "plain",
    "provenance",
    "read_run",
    "read_tensors",
    "rebuilt",
    "refuse_uncommitted",
    "remove_file",
    "write_file",
    "write_run",
    "write_tensors",
]

_SETTINGS, _PROVENANCE, _HISTORY, _WEIGHTS = "settings.json", "provenance.json", "history.jsonl", "weights.safetensors"
_FILES = (_WEIGHTS, _HISTORY, _PROVENANCE, _SETTINGS)
_REPORT = "report.html"
_MARK = {"ileed": "run directory"}  # what settings.json begins with; nobody else writes that
_REPLACEMENT = ".ileed-replacement"

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
    with written_whole(target, directory=True, told=path) as partial:
        if replaces:
            _finish_replacement(path)
        _write_files(partial, run)
    if replaces:
        _use_replacement(path)
        remove_partial(target)
    remove_partial(path)


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
            os.replace(replacement, path / f".{_REPLACEMENT}{PARTIAL}undone")
            remove_partial(replacement)
            if isinstance(error, OSError):
                raise unwritable(path, error) from error
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
        sync(path)
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
    room = Path(tempfile.mkdtemp(prefix=f".{path.name}{PARTIAL}", dir=path.parent))
    try:
        (room / path.name).write_bytes(bytes(1024))
        sync(room / path.name)
    finally:
        shutil.rmtree(room, ignore_errors=True)


def _check_replaceable(path: Path, *, overwrite: bool) -> None:
    """Refuse to write a run over something that is not one; and over a run, unless that was asked for."""
    if not os.path.lexists(path):
        return
    if not os.path.isdir(path):
        raise RunError(f"{path} exists and is not a run directory: choose another place, or move it away")
    try:
        others = sorted(item.name for item in path.iterdir() if not item.name.startswith(f".{_REPLACEMENT}{PARTIAL}"))
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
