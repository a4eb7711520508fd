"""Run directories: plain files (JSON and safetensors) that appear whole or not at all, and still load years later."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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

from ileed.errors import RunError, SettingsError, brief

FORMAT = 1
_SETTINGS, _PROVENANCE, _HISTORY, _WEIGHTS = "settings.json", "provenance.json", "history.jsonl", "weights.safetensors"


@final
@dataclass(frozen=True, eq=False)
class Run:
    """What a run directory holds: settings, where they came from, how the climb went, and the tensors it ended with."""

    settings: Mapping[str, Any]
    provenance: Mapping[str, Any]
    history: Sequence[Mapping[str, Any]]
    weights: Mapping[str, Tensor]


def write_run(path: Path, run: Run) -> None:
    """Write a run directory; one that is already there is replaced only once the new one is whole."""
    check_replaceable(path)
    with _written_whole(path, directory=True) as partial:
        (partial / _SETTINGS).write_text(_json(run.settings))
        (partial / _PROVENANCE).write_text(_json(run.provenance))
        (partial / _HISTORY).write_text("".join(json.dumps(row) + "\n" for row in run.history))
        (partial / _WEIGHTS).write_bytes(tensors_to_bytes(dict(run.weights), metadata={"format": str(FORMAT)}))


def read_run(path: Path) -> Run:
    """Read a run directory of this format or an older one.

    Its files lie in it: one that is a link to somewhere else is refused, and so is whatever is not a plain file.
    """
    if not (path / _SETTINGS).is_file():
        raise RunError(f"{path} is not a run directory: it has no {_SETTINGS}; `ileed fit` or Fitted.save writes one")
    try:
        for name in (_SETTINGS, _PROVENANCE, _HISTORY, _WEIGHTS):
            _check_inside(path / name)
        settings, provenance = (_loaded((path / name).read_text("utf-8")) for name in (_SETTINGS, _PROVENANCE))
        history = [_loaded(line) for line in (path / _HISTORY).read_text("utf-8").split("\n") if line.strip()]
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
    return Run(settings, provenance, history, read_tensors(path / _WEIGHTS)[0])


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


def check_replaceable(path: Path) -> None:
    """Refuse to write a run over something that is not one."""
    if path.exists() and not (path / _SETTINGS).is_file():
        raise RunError(f"{path} exists and is not a run directory: choose another place, or move it away")


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
    for room in path.parent.glob(f".{path.name}.*"):
        shutil.rmtree(room, ignore_errors=True)


@contextmanager
def _written_whole(path: Path, *, directory: bool) -> Iterator[Path]:
    """Yield a place beside `path` to write to; on success it takes the name of `path`, on failure it is removed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        room = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        raise RunError(f"{path} cannot be written ({error.strerror or error}): choose another place") from error
    try:
        partial = room / path.name
        if directory:
            partial.mkdir()
        yield partial
        for item in (*(partial.iterdir() if directory else ()), partial, room):
            _settle(item)
        before = room / "before"
        if directory and path.exists():
            os.replace(path, before)
        try:
            os.replace(partial, path)
        except BaseException:
            if before.exists():
                os.replace(before, path)
            raise
        _settle(path.parent)
    except OSError as error:
        raise RunError(
            f"{path} cannot be written ({error.strerror or error}): free some space or choose another place; "
            "nothing was changed"
        ) from error
    finally:
        shutil.rmtree(room, ignore_errors=True)


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
    kind = kinds.get(str(value.get("kind")))
    if kind is None:
        raise SettingsError(f"unknown kind {brief(value.get('kind'))} of settings: there are {sorted(kinds)}")
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
    """What git calls the checkout; asked once, since a commit made while we run is not what runs."""
    if not any((parent / ".git").exists() for parent in home.parents):
        return None
    try:
        answer = subprocess.run(
            ["git", "-C", str(home), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None
