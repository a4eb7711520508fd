"""Files that appear whole or not at all: written beside their place, synced, then renamed."""

from __future__ import annotations

import glob
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from ileed.errors import RunError, brief

PARTIAL = ".ileed-"  # what follows a name in that of a folder in which something is written before it takes the name


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
    with written_whole(path, directory=False) as partial:
        partial.write_bytes(content)


def remove_file(path: Path) -> None:
    """Remove a file, and what killed processes left of attempts to write it."""
    path.unlink(missing_ok=True)
    remove_partial(path)


def remove_partial(path: Path) -> None:
    """Remove what killed processes left of attempts to write `path`; the names of these folders are ours alone."""
    for room in glob.glob(glob.escape(f"{path.parent / f'.{path.name}{PARTIAL}'}") + "*"):
        shutil.rmtree(room, ignore_errors=True)


@contextmanager
def written_whole(path: Path, *, directory: bool, told: Path | None = None) -> Iterator[Path]:
    """Yield a place beside `path` to write to; on success it takes the name of `path`, on failure it is removed.

    Errors speak of `told`, where that is another path.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        room = Path(tempfile.mkdtemp(prefix=f".{path.name}{PARTIAL}", dir=path.parent))
    except OSError as error:
        raise RunError(f"{told or path} cannot be written ({error.strerror or error}): choose another place") from error
    try:
        partial = room / path.name
        if directory:
            partial.mkdir()
        yield partial
        for item in (*(partial.iterdir() if directory else ()), partial, room):
            sync(item)
        os.replace(partial, path)
    except OSError as error:
        raise unwritable(told or path, error) from error
    finally:
        shutil.rmtree(room, ignore_errors=True)
    with suppress(OSError):  # the name is changed; there are file systems that cannot be asked to hold a folder
        sync(path.parent)


def unwritable(path: Path, error: OSError) -> RunError:
    """The sentence for a path that the operating system refuses to write."""
    return RunError(
        f"{path} cannot be written ({error.strerror or error}): free some space or choose another place; "
        "nothing was changed"
    )


def sync(path: Path) -> None:
    """Ask the disk to hold what was written, before its name is changed."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
