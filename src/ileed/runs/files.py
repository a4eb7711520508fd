"""Files and folders that are written whole: a reader, or the next process after a kill, finds the old or the new.

New content is written to a hidden workspace beside its destination and synced to disk. A file is then renamed; a folder
exchanges names with the old one (`renameat2` of Linux). Only files that we wrote are replaced: all others in the folder
are hard-linked into the new one first. Where folders cannot be exchanged (another operating system, a mount point, the
current folder), the new folder is renamed to `REPLACEMENT` inside the old one, and its files are moved out one by one;
`finish_replacement` completes this after a kill.

A process locks its workspace while it uses it, so that the next one can tell a leftover from the workspace of a live
process.
"""

from __future__ import annotations

import ctypes
import errno
import glob
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from safetensors import SafetensorError

from ileed.errors import RunError, brief, cell_text
from ileed.runs import stores

if TYPE_CHECKING:  # torch takes most of a second to import, and data are read without it
    from torch import Tensor

try:
    import fcntl
except ImportError:  # Windows: leftovers stay, since the workspaces of live processes cannot be told apart
    fcntl = None  # type: ignore[assignment]

PARTIAL = ".ileed-"  # ends the name of a file or folder in the name of the workspace in which it is written
REPLACEMENT = ".ileed-replacement"
_WORKSPACE = re.compile(rf"\..+{re.escape(PARTIAL)}", re.DOTALL)


class Ours(NamedTuple):
    """The files of a folder that we wrote, as paths relative to it; `mark` is the one that lists or identifies them."""

    mark: str
    files: Callable[[Path], Collection[str]]

    def within(self, folder: Path) -> set[str]:
        """Those that exist in a folder; none outside it, whatever its mark says."""
        named = set(self.files(folder))
        return named & set(_entries(folder)) if named else set()


_NOTHING = Ours("", lambda folder: ())


# --- files


def write_file(path: Path, content: bytes) -> None:
    """Write a file atomically, here or in an object store: a reader sees the old content or the new."""
    if stores.address_of(path):
        stores.put(path, content)
        return
    with _workspace(path, path) as workspace:
        os.replace(_written(workspace / path.name, content), path)
    with suppress(OSError):  # some file systems cannot sync a folder, and the file is in place
        _sync(path.parent)


def check_writable(path: Path, *, shown: Path | None = None) -> None:
    """Refuse a path to which no file can be written, without leaving anything there; the error names `shown`."""
    with _workspace(path, shown or path) as workspace:
        _written(workspace / path.name, bytes(1024))


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    for item in (path, path.parent):
        _sync(item)
    return path


def read_head(path: Path) -> bytes:
    """The first 1,024 bytes of a file, here or in an object store; empty if it does not exist or cannot be read."""
    try:
        return stores.read_head(path, 1024)
    except OSError:
        return b""


def unreadable(path: Path, error: OSError | MemoryError) -> RunError:
    """The error for a path that cannot be read at the moment; its content may be sound."""
    reason = getattr(error, "strerror", None) or brief(error)
    return RunError(f"{path} cannot be read ({reason}): try again, or check its permissions", code="unreadable")


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
        return parse_tensors(path, path.read_bytes())  # safetensors itself only takes paths in UTF-8
    except FileNotFoundError as error:
        raise _no_tensors(path, error) from error
    except (OSError, MemoryError) as error:
        raise unreadable(path, error) from error


def parse_tensors(path: Path, content: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and notes in the content of a safetensors file; errors name its path."""
    from safetensors.torch import load

    try:
        tensors = {name: tensor.clone() for name, tensor in load(content).items()}  # aligned as tensors usually are
        notes = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")]).get("__metadata__")
        return tensors, notes or {}
    except (SafetensorError, ValueError, TypeError, RuntimeError, AttributeError, LookupError, AssertionError) as error:
        raise _no_tensors(path, error) from error


def _no_tensors(path: Path, error: Exception) -> RunError:
    return RunError(f"{path} cannot be read as safetensors ({brief(error)}): restore or remove it", code="tensors")


def csv_bytes(table: pa.Table) -> bytes:
    """A table as CSV with printable text that no spreadsheet takes for a formula; all our CSV files are made here."""
    from pyarrow import csv  # takes a while to import

    content = pa.BufferOutputStream()
    for index, column in enumerate(table.schema):
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            words = [None if word is None else cell_text(word) for word in table.column(index).to_pylist()]
            table = table.set_column(index, column.name, pa.array(words, pa.string()))
    csv.write_csv(table.rename_columns([cell_text(name) for name in table.column_names]), content)
    found: bytes = content.getvalue().to_pybytes()
    return found


# --- workspaces


@contextmanager
def _workspace(path: Path, shown: Path) -> Iterator[Path]:
    """A hidden folder beside `path`, locked while it is in use; leftovers of killed processes are removed."""
    check_local(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_partial(path)
        with ExitStack() as lock:
            while True:
                workspace = Path(tempfile.mkdtemp(prefix=f".{path.name}{PARTIAL}", dir=path.parent))
                lock.enter_context(locked(workspace))
                if workspace.is_dir():  # otherwise another process took it for a leftover
                    break
            try:
                yield workspace
            finally:
                shutil.rmtree(workspace, ignore_errors=True)
    except OSError as error:
        raise RunError(
            f"{shown} cannot be written ({error.strerror or error}): free some space or choose another place; "
            "nothing was changed",
            code="unwritable",
        ) from error
    except UnicodeEncodeError as error:
        if os.fsencode(path).decode(errors="replace") == str(path):  # then it is about the content
            raise
        raise RunError(f"{str(shown)!a} cannot be written in this format: choose a path in UTF-8") from error


@contextmanager
def locked(folder: Path, *, wait: bool = True) -> Iterator[bool]:
    """Lock a folder against use by other processes; yields False where this fails or is not supported."""
    with ExitStack() as handles:
        is_locked = False
        with suppress(OSError, AttributeError):  # no locks, no folder, or another process has the lock
            while not is_locked:
                handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
                handles.callback(os.close, handle)
                fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_locked = os.path.samestat(os.fstat(handle), os.stat(folder))  # else it was replaced meanwhile
        yield is_locked


def remove_partial(path: Path) -> None:
    """Remove what killed processes left of attempts to write `path`, and nothing that a live process uses."""
    for beginning in (path.parent / f".{path.name}{PARTIAL}", path / f".{REPLACEMENT}{PARTIAL}"):
        for found in map(Path, glob.glob(glob.escape(str(beginning)) + "*")):
            with locked(found, wait=False) as is_left:
                if is_left:
                    shutil.rmtree(found, ignore_errors=True)


def remove_file(path: Path) -> None:
    """Remove a file, and what killed processes left of attempts to write it."""
    path.unlink(missing_ok=True)
    remove_partial(path)


def is_taken(path: Path) -> bool:
    """Whether anything exists at a path, after removing what killed processes left of attempts to write it."""
    if not stores.address_of(path):
        remove_partial(path)
    return stores.exists(path)


def check_local(path: Path) -> None:
    """Refuse an address in an object store."""
    if address := stores.address_of(path):
        raise RunError(f"{address} is in an object store, which takes only files and runs: name a local folder")


def _sync(path: Path) -> None:
    """Wait until a file or folder is on disk."""
    if os.path.islink(path):
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# --- folders


@contextmanager
def replace_folder(path: Path, ours: Ours | None = None) -> Iterator[Path]:
    """Yield a folder to write to, which becomes `path` on success and is removed on failure.

    In a folder that exists, the files that are `ours` are replaced and all others stay; it is an error if one of these
    has the name of a new file.
    """
    check_local(path)
    place = Path(os.path.realpath(path))  # a link stays one
    fixed = place.is_dir() and _is_fixed(place)
    target = place / REPLACEMENT if fixed else place
    remove_partial(place)
    with _workspace(target, path) as workspace:
        partial = workspace / target.name
        partial.mkdir()
        yield partial
        for item in (*partial.rglob("*"), partial, workspace):
            _sync(item)
        if fixed:
            _replace_existing(partial, place, ours or _NOTHING, exchanges=False)
            return
        try:
            if place.is_dir():
                shutil.copymode(place, partial)
            os.replace(partial, place)  # replaces nothing but an empty folder
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            _replace_existing(partial, place, ours or _NOTHING, exchanges=_can_exchange(workspace))
    with suppress(OSError):
        _sync(place.parent)


def _is_fixed(place: Path) -> bool:
    """Whether a folder cannot take another name: a mount point, or where this process works, or not ours to rename."""
    with suppress(OSError):  # the current folder was removed
        if Path.cwd().is_relative_to(place):
            return True
    return os.path.ismount(place) or not os.access(place.parent, os.W_OK | os.X_OK)


def _can_exchange(workspace: Path) -> bool:
    """Whether the file system supports hard links and the exchange of two names."""
    one, other = workspace / "one", workspace / "other"
    try:
        one.touch()
        os.link(one, other)
        exchange(one, other)
    except OSError:
        return False
    return True


def exchange(one: Path, other: Path) -> None:
    """Exchange the names of two files or folders in one step."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if os.name == "posix" else None
    if rename is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    at_working_folder, in_exchange = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux
    if rename(at_working_folder, os.fsencode(one), at_working_folder, os.fsencode(other), in_exchange):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(other))


def _replace_existing(partial: Path, place: Path, ours: Ours, *, exchanges: bool) -> None:
    """Replace our files in a folder by those of a new one, at once if folders can be exchanged."""
    with locked(place):
        finish_replacement(place, ours)
        written = set(_entries(partial))
        others = _others(place, ours, written)
        if exchanges:
            for name in others:
                _link(place, partial, name)
            shutil.copymode(place, partial)
            exchange(partial, place)
            for name in _others(partial, ours, set()):  # `partial` is now the old folder
                if not os.path.lexists(place / name):  # it appeared after the links were made
                    (place / name).parent.mkdir(parents=True, exist_ok=True)
                    os.replace(partial / name, place / name)
            return
        replacement = place / REPLACEMENT
        os.replace(partial, replacement)
        try:
            finish_replacement(place, ours)
        except BaseException as error:
            if written <= set(_entries(replacement)):
                os.replace(replacement, partial)  # which is removed with the workspace
            elif isinstance(error, OSError):
                return  # the new files are whole, in two places: the next process moves the rest
            raise


def _others(place: Path, ours: Ours, written: set[str]) -> list[str]:
    """Everything in a folder that is not ours, without workspaces; it is an error if a new file would replace some."""
    mine = ours.within(place)
    found = [name for name in _entries(place) if name not in mine and not _WORKSPACE.match(os.path.basename(name))]
    folders = {str(folder) for name in written for folder in PurePosixPath(name).parents}
    for name in found:
        if name in written or name in folders or any(str(folder) in written for folder in PurePosixPath(name).parents):
            raise RunError(f"{place / name} was not written by ileed and is not replaced: move it away")
    return found


def _link(place: Path, partial: Path, name: str) -> None:
    """Give a file of one folder the same name in another; its folders keep their modes."""
    for folder in reversed(PurePosixPath(name).parents[:-1]):
        if not (partial / folder).exists():
            (partial / folder).mkdir()
            shutil.copymode(place / folder, partial / folder)
    source, target = place / name, partial / name
    if source.is_dir() and not source.is_symlink():  # an empty folder
        target.mkdir()
        shutil.copymode(source, target)
    else:
        os.link(source, target, follow_symlinks=False)


def _entries(folder: Path, inside: str = "") -> Iterator[str]:
    """The relative paths of all files, links and empty folders, and of workspaces as they are."""
    for name in os.listdir(folder / inside):
        path = os.path.join(folder, inside, name)
        is_opened = os.path.isdir(path) and not os.path.islink(path) and not _WORKSPACE.match(name)
        if is_opened and os.listdir(path):
            yield from _entries(folder, f"{inside}{name}/")
        else:
            yield f"{inside}{name}"


def finish_replacement(place: Path, ours: Ours) -> None:
    """Move the files of a complete replacement out to their places; the caller has `locked` the folder."""
    replacement = place / REPLACEMENT
    if os.path.islink(replacement) or not os.path.isdir(replacement):  # a link is not ours
        return
    stale = ours.within(place) - set(ours.files(replacement))
    for name in sorted(_entries(replacement), key=lambda name: name == ours.mark):  # the mark is last
        if name == ours.mark:
            for old in stale:
                _remove_with_folders(place, old)
        with suppress(FileNotFoundError):  # without locks, several processes may do this at once
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(replacement / name, place / name)
    with suppress(OSError):
        _sync(place)
    shutil.rmtree(replacement, ignore_errors=True)


def _remove_with_folders(place: Path, name: str) -> None:
    """Remove a file, and the folders around it that hold nothing else."""
    with suppress(OSError):
        (place / name).unlink(missing_ok=True)
        for folder in PurePosixPath(name).parents[:-1]:
            (place / folder).rmdir()
