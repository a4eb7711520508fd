"""Data sets that are folders: their files and JSON are read from inside them alone, and a folder is written whole."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from ileed import memory
from ileed.errors import DemonstrationError, brief, refuse_damage
from ileed.runs.replacing import Ours, replace_folder
from ileed.wording import printable

_LONGEST_JSON = 64 << 20  # bytes
_LIST = "_ileed_files.json"  # Arrow and Spark skip names that begin with an underscore


def file_in(folder: Path, *parts: str) -> Path:
    """A regular file of a folder; one that is absent, or a link that leads out of the folder, is refused."""
    file = folder.joinpath(*parts)
    if leads_out(file, folder):
        raise DemonstrationError(f"{_shown(file)} leads out of the data set, and is not followed: copy it there")
    if not file.is_file():
        raise DemonstrationError(f"{_shown(folder)} has no file {brief('/'.join(parts))}: copy the folder again, whole")
    return file


def leads_out(file: Path, folder: Path) -> bool:
    """Whether a file of a folder is a link out of it, and not to where the Hugging Face hub's cache keeps its files."""
    target, home = (Path(os.path.realpath(each)) for each in (file, folder))  # which bears links in a circle
    snapshot = next((each for each in (home, *home.parents) if each.parent.name == "snapshots"), None)
    places = [home, *([snapshot.parents[1] / "blobs"] if snapshot is not None else [])]
    return not any(target.is_relative_to(place) for place in places)


def read_json(file: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    if file.stat().st_size > _LONGEST_JSON:
        raise DemonstrationError(
            f"{_shown(file)} has more than {_LONGEST_JSON >> 20} MiB, too many for JSON: write it again"
        )
    with refuse_damage(file, "JSON"):
        found = json.loads(file.read_bytes())
    if not isinstance(found, dict):
        raise DemonstrationError(f"{_shown(file)} holds {brief(found)}: it must hold a JSON object")
    return found


def read_arrow(file: Path) -> pa.Table:
    """All columns of an Arrow file, of the file format or the stream format, checked in full."""
    with refuse_damage(file, "Arrow", pa.ArrowException):
        memory.check_fits(file, file.stat().st_size)
        source = pa.BufferReader(file.read_bytes())  # not mapped: a mapped file that is cut short ends the process
        is_file = source.read(6) == b"ARROW1"
        source.seek(0)
        table = (pa.ipc.open_file if is_file else pa.ipc.open_stream)(source).read_all()
        table.validate(full=True)
        return table


@contextmanager
def write_folder(path: Path) -> Iterator[Path]:
    """Yield a folder to write to, which becomes `path` on success; a folder that holds anything is never replaced.

    The files are listed in the folder, so that `ileed.write(..., overwrite=True)` can tell them from others.
    """
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        rule = "data sets are not replaced: remove it, or choose another place"
        raise DemonstrationError(f"{_shown(path)} is there already, and {rule}")
    with replace_folder(path) as partial:
        yield partial
        files = sorted(str(file.relative_to(partial)) for file in partial.rglob("*") if file.is_file())
        (partial / _LIST).write_text(json.dumps({"files": [_LIST, *files]}, indent=1) + "\n")


def _listed_files(folder: Path) -> list[str]:
    """The files that a folder says we wrote; none if it has no such list."""
    try:
        files = json.loads((folder / _LIST).read_bytes())["files"]
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return []
    return [name for name in files if isinstance(name, str)] if isinstance(files, list) else []


DATA_SET = Ours(_LIST, _listed_files)
"""The files of a data set that we wrote as a folder."""


def _shown(path: Path) -> str:
    return printable(str(path), 300)
