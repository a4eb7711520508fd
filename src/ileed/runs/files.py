"""Atomic writes: a file or folder is written beside its place, synced to disk and renamed, so it is never partial."""

from __future__ import annotations

import glob
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from safetensors import SafetensorError, safe_open

from ileed import stores
from ileed.errors import RunError, brief
from ileed.wording import cell_text

if TYPE_CHECKING:  # torch takes most of a second to import, and data are read without it
    from torch import Tensor

PARTIAL = ".ileed-"  # follows a name in the name of the temporary folder in which that file or folder is written


def write_tensors(path: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, str]) -> None:
    """Write named tensors and notes as one safetensors file, atomically."""
    write_file(path, tensor_bytes(tensors, notes))


def tensor_bytes(tensors: Mapping[str, Tensor], notes: Mapping[str, str]) -> bytes:
    """The content of a safetensors file with named tensors and notes."""
    from safetensors.torch import save

    return save({name: value.contiguous() for name, value in tensors.items()}, dict(notes))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and notes of a safetensors file, on the CPU."""
    try:
        with safe_open(path, framework="pt") as opened:
            # cloned, since a memory-mapped tensor changes, or fails, with the file
            tensors = {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118
            return tensors, opened.metadata() or {}
    except (FileNotFoundError, SafetensorError, ValueError, TypeError, RuntimeError, AttributeError) as error:
        raise RunError(f"{path} cannot be read as safetensors ({brief(error)}): restore or remove it") from error
    except (OSError, MemoryError) as error:
        raise unreadable(path, error) from error


def read_head(path: Path) -> bytes:
    """The first 1,024 bytes of a file, here or in an object store; none where it is not there or cannot be read."""
    if stores.address_of(path):
        return stores.read_head(path, 1024)
    try:
        with path.open("rb") as opened:
            return opened.read(1024)
    except OSError:
        return b""


def write_file(path: Path, content: bytes) -> None:
    """Write a file atomically, here or in an object store: a reader sees the old content or the new."""
    if stores.address_of(path):
        stores.put(path, content)
        return
    with atomic_write(path) as partial:
        partial.write_bytes(content)


def csv_bytes(table: pa.Table) -> bytes:
    """A table as CSV, the only writer of such files: text is printable and begins no formula of a spreadsheet."""
    from pyarrow import csv  # which takes a while to load

    content = pa.BufferOutputStream()
    for place, column in enumerate(table.schema):
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            words = [None if word is None else cell_text(word) for word in table.column(place).to_pylist()]
            table = table.set_column(place, column.name, pa.array(words, pa.string()))
    csv.write_csv(table.rename_columns([cell_text(name) for name in table.column_names]), content)
    found: bytes = content.getvalue().to_pybytes()
    return found


def remove_file(path: Path) -> None:
    """Remove a file, and what killed processes left of attempts to write it."""
    path.unlink(missing_ok=True)
    remove_partial(path)


def remove_partial(path: Path) -> None:
    """Remove the temporary folders that killed processes left when they wrote `path`."""
    for folder in glob.glob(glob.escape(f"{path.parent / f'.{path.name}{PARTIAL}'}") + "*"):
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def atomic_write(
    path: Path, *, directory: bool = False, shown: Path | None = None, only_try: bool = False
) -> Iterator[Path]:
    """Yield a path to write to, which is renamed to `path` on success and removed on failure, or with `only_try`.

    Error messages name the path `shown`, `path` by default.
    """
    if address := stores.address_of(path):
        raise RunError(f"{address} is in an object store, where files and runs alone are written: name a local folder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}{PARTIAL}", dir=path.parent))
    except OSError as error:
        raise unwritable(shown or path, error) from error
    try:
        partial = folder / path.name
        if directory:
            partial.mkdir()
        yield partial
        for item in (*(partial.rglob("*") if directory else ()), partial, folder):
            sync(item)
        if not only_try:
            os.replace(partial, path)
    except OSError as error:
        raise unwritable(shown or path, error) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # some file systems cannot sync a folder, and the file is in place
        sync(path.parent)


def unreadable(path: Path, error: OSError | MemoryError) -> RunError:
    """The error for a path that the operating system does not read at the moment; its content may be sound."""
    reason = getattr(error, "strerror", None) or brief(error)
    return RunError(f"{path} cannot be read ({reason}): try again, or check its permissions")


def unwritable(path: Path, error: OSError) -> RunError:
    """The error for a path that the operating system does not write."""
    return RunError(
        f"{path} cannot be written ({error.strerror or error}): free some space or choose another place; "
        "nothing was changed"
    )


def sync(path: Path) -> None:
    """Wait until a file or folder is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
