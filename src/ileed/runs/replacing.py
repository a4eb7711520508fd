"""Replacing files and folders atomically: a reader, or the next process after a kill, finds the old or the new, whole.

New content is written to a hidden workspace beside its place and synced to disk. A file then takes its place by a
rename, a folder by exchanging names with the old one (`renameat2` of Linux). Only files that we wrote are replaced: all
others in the folder are hard-linked into the new one beforehand, so they are there at every moment. Where folders
cannot be exchanged (another system, a mount point, the folder that the process runs in), the new folder is renamed to
`REPLACEMENT` inside the old one, and its files are moved to their places one by one; `finish_replacement` completes
this after a kill.

A process holds a lock on its workspace, so that the next one can tell what a killed process left, and remove it, from
the workspace of a live one.
"""

from __future__ import annotations

import ctypes
import errno
import glob
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from ileed.errors import RunError
from ileed.runs import stores

try:
    import fcntl
except ImportError:  # Windows: leftovers stay there, since those of live processes cannot be told apart
    fcntl = None  # type: ignore[assignment]

PARTIAL = ".ileed-"  # follows a name in the name of the workspace in which that file or folder is written
REPLACEMENT = ".ileed-replacement"
_WORKSPACE = re.compile(rf"\..+{re.escape(PARTIAL)}", re.DOTALL)
_BEFORE = f"{PARTIAL}old"  # ends the name that earlier versions gave a folder while they replaced it
_AT_WORKING_FOLDER, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux
_CANNOT_EXCHANGE = {
    getattr(errno, name)
    for name in ("EXDEV", "EBUSY", "EPERM", "EACCES", "ENOSYS", "EINVAL", "ENOTSUP", "EOPNOTSUPP", "EMLINK", "EROFS")
}
_ATTEMPTS = 100  # at a folder that other processes replace meanwhile


class Ours(NamedTuple):
    """Which files of a folder we wrote, as paths relative to it; `mark` is the one that says so."""

    mark: str
    files: Callable[[Path], Collection[str]]

    def of(self, folder: Path) -> set[str]:
        """The files that we wrote to a folder and that are still there; none outside it, whatever its mark says."""
        named = set(self.files(folder))
        return {name for name in _entries(folder) if name in named} if named else set()


_NOTHING = Ours("", lambda folder: ())


@contextmanager
def atomic_write(path: Path, *, shown: Path | None = None, only_try: bool = False) -> Iterator[Path]:
    """Yield a path to write a file to, which becomes `path` on success and is removed on failure or with `only_try`.

    Error messages name the path `shown`, `path` by default.
    """
    with _workspace(path, shown or path) as workspace:
        partial = workspace / path.name
        yield partial
        for item in (partial, workspace):
            sync(item)
        if not only_try:
            os.replace(partial, path)
    with suppress(OSError):  # some file systems cannot sync a folder, and the file is in place
        sync(path.parent)


@contextmanager
def replace_folder(path: Path, ours: Ours = _NOTHING, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield a folder to write to, which becomes `path` on success and is removed on failure.

    With `overwrite`, the files of `path` that are `ours` are replaced; others stay, and one of the same name as a new
    file is an error. Without it, only an empty folder is replaced.
    """
    check_local(path)
    place = Path(os.path.realpath(path))  # a link stays one
    inside = os.path.isdir(place) and not _can_be_exchanged(place)
    target = place / REPLACEMENT if inside else place
    for left in (place, place / REPLACEMENT):
        remove_partial(left, ours)
    with _workspace(target, path, ours) as workspace:
        partial = workspace / target.name
        partial.mkdir()
        yield partial
        (workspace / _marker(partial)).mkdir()
        written = set(_entries(partial))
        for item in (*partial.rglob("*"), partial, workspace):
            sync(item)
        if inside:
            _replace_inside(partial, place, ours, written)
            return
        try:
            if os.path.isdir(place):
                shutil.copymode(place, partial)
            os.replace(partial, place)  # which replaces nothing but an empty folder
        except OSError as error:
            if not overwrite or error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            _take_place(partial, place, ours, written)
    with suppress(OSError):
        sync(place.parent)


def remove_partial(path: Path, ours: Ours = _NOTHING) -> None:
    """Remove what killed processes left of attempts to write `path`, and nothing of a process that is alive."""
    for found in map(Path, glob.glob(glob.escape(f"{path.parent / f'.{path.name}{PARTIAL}'}") + "*")):
        if found.name.endswith(_BEFORE):
            _undo_older_version(found, path, ours)
            continue
        with suppress(OSError):  # locks are not supported: the process may be alive
            lock = _lock(found)
            if lock is not None:
                try:
                    _discard(found, path, ours)
                finally:
                    os.close(lock)


def is_taken(path: Path, ours: Ours = _NOTHING) -> bool:
    """Whether there is anything at a path, after removing what killed processes left of attempts to write it."""
    if not stores.address_of(path):
        remove_partial(path, ours)
    return stores.exists(path)


def remove_file(path: Path) -> None:
    """Remove a file, and what killed processes left of attempts to write it."""
    path.unlink(missing_ok=True)
    remove_partial(path)


def unwritable(path: Path, error: OSError) -> RunError:
    """The error for a path that the operating system does not write."""
    return RunError(
        f"{path} cannot be written ({error.strerror or error}): free some space or choose another place; "
        "nothing was changed"
    )


def sync(path: Path) -> None:
    """Wait until a file or folder is on disk."""
    if os.path.islink(path):
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def alone_in(folder: Path) -> Iterator[int | None]:
    """Wait until no other process moves files inside a folder, where the system has locks; yield a handle of it."""
    handle = None
    with suppress(OSError, AttributeError):
        handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield handle
    finally:
        if handle is not None:
            os.close(handle)


# --- workspaces


@contextmanager
def _workspace(path: Path, shown: Path, ours: Ours = _NOTHING) -> Iterator[Path]:
    """A hidden folder beside `path`, locked while it is in use; earlier ones that nobody uses are removed."""
    check_local(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        workspace, lock = _locked_workspace(path)
    except OSError as error:
        raise unwritable(shown, error) from error
    try:
        remove_partial(path, ours)
        yield workspace
    except OSError as error:
        raise unwritable(shown, error) from error
    except UnicodeEncodeError as error:
        if os.fsencode(path).decode(errors="replace") == str(path):  # then it is about the content
            raise
        raise RunError(f"{str(shown)!a} cannot be written in this format: choose a path in UTF-8") from error
    finally:
        _discard(workspace, path, ours)
        if lock is not None:
            os.close(lock)


def check_local(path: Path) -> None:
    """Refuse an address in an object store."""
    if address := stores.address_of(path):
        raise RunError(f"{address} is in an object store, where files and runs alone are written: name a local folder")


def _locked_workspace(path: Path) -> tuple[Path, int | None]:
    while True:
        workspace = Path(tempfile.mkdtemp(prefix=f".{path.name}{PARTIAL}", dir=path.parent))
        try:
            lock = _lock(workspace)
        except OSError:  # locks are not supported, and others leave the workspace alone
            return workspace, None
        if lock is not None:  # else another process took it for a leftover
            return workspace, lock


def _lock(folder: Path) -> int | None:
    """A handle that locks a folder until it is closed; None if another process has locked or removed it."""
    if fcntl is None:
        raise OSError(errno.ENOTSUP, "no locks")
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.isdir(folder):
            return handle
    except BlockingIOError:
        pass
    except OSError:
        os.close(handle)
        raise
    os.close(handle)
    return None


def _marker(partial: Path) -> str:
    """Names the folder that was made in a workspace: after an exchange the workspace holds another one."""
    return f".made-{partial.stat().st_ino}"


def _discard(workspace: Path, path: Path, ours: Ours) -> None:
    """Remove a workspace; from the old folder of an exchange, what is not ours goes to the new one first."""
    held = workspace / path.name
    with suppress(OSError):  # what cannot be moved stays in the workspace
        markers = [name for name in os.listdir(workspace) if name.startswith(".made-")]
        if markers and held.is_dir() and _marker(held) not in markers:
            _keep_others(held, path, ours)
        shutil.rmtree(workspace, ignore_errors=True)


def _undo_older_version(old: Path, path: Path, ours: Ours) -> None:
    """Bring back a folder that an older version was killed over, or remove it if the new one is there."""
    if os.path.islink(old) or not ours.of(old):
        return
    with suppress(OSError):
        if os.path.lexists(path):
            _keep_others(old, path, ours)
            shutil.rmtree(old)
        else:
            os.replace(old, path)


# --- exchanging two folders


def _can_be_exchanged(place: Path) -> bool:
    """Whether a folder may be given another name: not a mount point, and not where a process of ours works."""
    try:
        works_there = Path(os.getcwd()).is_relative_to(place)
    except OSError:
        works_there = False
    return not works_there and not os.path.ismount(place) and os.access(place.parent, os.W_OK | os.X_OK)


def exchange(one: Path, other: Path) -> None:
    """Exchange the names of two folders in one step."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if os.name == "posix" else None
    if rename is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    names = os.fsencode(one), os.fsencode(other)
    if rename(_AT_WORKING_FOLDER, names[0], _AT_WORKING_FOLDER, names[1], _EXCHANGE):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(other))


def _take_place(partial: Path, place: Path, ours: Ours, written: set[str]) -> None:
    """Exchange a new folder with the old one, after all files that are not ours were linked into the new one."""
    for _ in range(_ATTEMPTS):
        try:
            finish_replacement(place, ours)
            _link_others(place, partial, ours, written)
            exchange(partial, place)
            return
        except FileNotFoundError:  # another process replaced the folder meanwhile
            if not os.path.isdir(place):
                raise
        except OSError as error:
            if error.errno not in _CANNOT_EXCHANGE:
                raise
            break
    while linked := set(_entries(partial)) - written:  # folders are entries once they are empty
        for name in linked:
            _remove(partial / name)
    _replace_inside(partial, place, ours, written)


def _link_others(place: Path, partial: Path, ours: Ours, written: set[str]) -> None:
    for name in _others(place, ours, written):
        target, source = partial / name, place / name
        if os.path.lexists(target):  # of an earlier attempt
            _remove(target)
        for folder in reversed(target.relative_to(partial).parents):
            if not (partial / folder).exists():
                (partial / folder).mkdir()
                shutil.copymode(place / folder, partial / folder)
        if source.is_dir() and not source.is_symlink():
            os.listdir(source)  # an error unless it is known to be empty
            target.mkdir()
            shutil.copymode(source, target)
        else:
            os.link(source, target, follow_symlinks=False)


def _others(place: Path, ours: Ours, written: set[str]) -> list[str]:
    """What is in a folder and not ours, without workspaces; anything that a new file would replace is an error."""
    mine = ours.of(place)
    found = [name for name in _entries(place) if name not in mine and not _WORKSPACE.match(os.path.basename(name))]
    folders = {str(folder) for name in written for folder in PurePosixPath(name).parents}
    for name in found:
        if name in written or name in folders or any(str(folder) in written for folder in PurePosixPath(name).parents):
            raise RunError(f"{place / name} was not written by ileed and is not replaced: move it away")
    return found


def _keep_others(old: Path, place: Path, ours: Ours) -> None:
    """Move to the new folder what is not ours and appeared in the old one after the others were linked."""
    mine = ours.of(old)
    for name in _entries(old):
        if name in mine:
            continue
        found = os.lstat(old / name)
        with suppress(FileNotFoundError):
            there = os.lstat(place / name)
            is_newer = found.st_mtime_ns > there.st_mtime_ns
            if there.st_ino == found.st_ino or os.path.isdir(place / name) or not is_newer:
                continue
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(old / name, place / name)


def _entries(folder: Path) -> Iterator[str]:
    """Everything in a folder by its relative path: files, links, closed folders, and workspaces as they are."""
    for home, folders, files in os.walk(folder):
        here = os.path.relpath(home, folder)
        whole = [name for name in folders if os.path.islink(os.path.join(home, name)) or _WORKSPACE.match(name)]
        folders[:] = [name for name in folders if name not in whole]
        empty = [name for name in folders if _is_closed(os.path.join(home, name))]
        folders[:] = [name for name in folders if name not in empty]
        for name in (*files, *whole, *empty):
            yield name if here == "." else f"{here}/{name}"


def _is_closed(folder: str) -> bool:
    try:
        return not os.listdir(folder)
    except OSError:
        return True


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink()


# --- replacing files inside a folder, where it cannot be exchanged


def _replace_inside(partial: Path, place: Path, ours: Ours, written: set[str]) -> None:
    """Replace a folder's own files one by one; where none can be moved, the old ones stay."""
    replacement = place / REPLACEMENT
    with alone_in(place):
        _move_into_place(place, ours)
        _others(place, ours, written)
        os.replace(partial, replacement)
        try:
            _move_into_place(place, ours)
        except BaseException as error:
            if written <= set(_entries(replacement)):
                os.replace(replacement, partial)  # which is removed with the workspace
            elif isinstance(error, OSError):
                return  # the new files are whole, in two places: the next process moves the rest
            raise


def _remove_with_folders(place: Path, name: str) -> None:
    """Remove a file, and the folders around it that hold nothing else."""
    with suppress(FileNotFoundError):
        _remove(place / name)
    with suppress(OSError):
        for folder in PurePosixPath(name).parents[:-1]:
            (place / folder).rmdir()


def finish_replacement(place: Path, ours: Ours) -> None:
    """Complete a replacement inside a folder that a killed process left; several processes may do so at once."""
    if os.path.lexists(place / REPLACEMENT):
        with alone_in(place):
            _move_into_place(place, ours)


def _move_into_place(place: Path, ours: Ours) -> None:
    replacement = place / REPLACEMENT
    if os.path.islink(replacement) or not os.path.isdir(replacement):  # a link is not ours
        return
    stale = ours.of(place) - set(ours.files(replacement))
    for name in sorted(_entries(replacement), key=lambda name: name == ours.mark):  # the mark is last
        if name == ours.mark:
            for old in stale:
                _remove_with_folders(place, old)
        with suppress(FileNotFoundError):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            if (replacement / name).is_dir():
                (place / name).mkdir(exist_ok=True)
            else:
                os.replace(replacement / name, place / name)
    with suppress(OSError):
        sync(place)
    shutil.rmtree(replacement, ignore_errors=True)
