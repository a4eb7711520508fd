"""Object stores: data and run directories at s3://BUCKET/KEY, gs://BUCKET/KEY, or where another scheme of fsspec leads.

What is read is fetched whole into a cache on this machine (in the folder that the environment variable ILEED_CACHE
names, or in ~/.cache/ileed), and again when it has changed in the store. What is written is made here first. A `Path`
has lost one of the two slashes of an address, and is understood too.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from string import punctuation
from typing import Any
from urllib.parse import quote, unquote

from ileed.errors import IleedError, RunError, brief, require
from ileed.wording import redact, user_information

__all__ = [
    "NOT_READ",
    "address_of",
    "base_name",
    "check",
    "deliver",
    "exists",
    "fetched",
    "mirror",
    "name_address_in_errors",
    "name_of",
    "put",
    "read_head",
    "remove",
]

NOT_READ = ("videos/*", "images/*", *(f"*.{ending}" for ending in ("mp4", "mkv", "avi", "webm", "png", "jpg", "jpeg")))
"""Files of a data set that no reader needs."""
_ADDRESS = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]+):/{1,2}(?P<place>[^/].*)", re.DOTALL)
_SCHEME = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]+):(?P<slashes>/*)")
_USUAL = ("s3", "gs", "gcs", "abfs", "abfss", "az", "memory")
"""Schemes that are known where a `Path` has taken both slashes."""
_OTHERS = ("file", "hf", "http", "https")
"""The hub has a reader of its own; the web is no store."""
_GOOGLE_LIMIT = "retry_limit_seconds=8"
"""After so many seconds Google's client gives up: without a limit it tries for minutes where there is no network."""


def address_of(path: Any) -> str | None:
    """The address in a store that a path or text is; None for whatever else; an error for a scheme without a bucket."""
    if not isinstance(path, str | os.PathLike):
        return None
    alone = _SCHEME.fullmatch(str(path))
    if alone and alone["scheme"] not in _OTHERS and (alone["slashes"] or alone["scheme"] in _USUAL):
        scheme = alone["scheme"]
        raise RunError(f"{scheme}:// names no bucket: write {scheme}://BUCKET/KEY")
    found = _ADDRESS.fullmatch(str(path).rstrip("/"))
    if found is None or found["scheme"] in _OTHERS:
        return None
    return f"{found['scheme']}://{found['place']}"


def name_of(path: str | os.PathLike[str]) -> str:
    """A path as a message shows it: an address with both slashes and without user information."""
    return redact(address_of(path) or str(path))


def base_name(path: Path) -> str:
    """The last part of a path or address, as a title or message shows it."""
    return path.resolve().name if address_of(path) is None else PurePosixPath(name_of(path).partition("?")[0]).name


@contextmanager
def name_address_in_errors(path: Any, copy: Any) -> Iterator[None]:
    """Let errors about the copy of what is at an address name the address; for any other path, do nothing."""
    try:
        yield
    except IleedError as error:
        if address_of(path):
            error.args = tuple(str(each).replace(str(copy), name_of(path)) for each in error.args)
        raise


def exists(path: Path) -> bool:
    """Whether there is a file, a folder or a link at a path, or a file or folder at an address."""
    if (address := address_of(path)) is None:
        return os.path.lexists(path)
    from pyarrow import fs

    with _store(address) as (store, place):
        return bool(store.get_file_info(place).type != fs.FileType.NotFound)


def read_head(path: Path, size: int) -> bytes:
    """The first bytes of the file at an address; none where there is no file."""
    address = address_of(path)
    assert address is not None
    from pyarrow import fs

    with _store(address) as (store, place):
        if store.get_file_info(place).type != fs.FileType.File:
            return b""
        with store.open_input_stream(place, compression=None) as opened:
            return bytes(opened.read(size))


def fetched(path: Path) -> Path:
    """Where a copy of the file or folder at an address lies on this machine; any other path, as it is."""
    if (address := address_of(path)) is None:
        return path
    with _store(address) as (store, place):
        files = {name: info for name, info in _files(store, place).items() if _is_read(name)}
        if not files:
            raise RunError(f"there is nothing at {brief(address)}: check the bucket and the key")
        versions = [(name, info.size, info.mtime_ns) for name, info in sorted(files.items())]
        copy = _cache(repr((address, versions))) / base_name(path)
        if not copy.exists():
            _fetch(store, files, copy)
    return copy


def mirror(path: Path) -> Path:
    """Where on this machine what is to be delivered to an address is made; any other path, as it is."""
    address = address_of(path)
    return path if address is None else _cache(f"to {address}") / base_name(path)


def check(path: Path) -> list[str]:
    """The names of files under an address; an error if the store does not answer, before anything is computed."""
    address = address_of(path)
    assert address is not None
    with _store(address) as (store, place):
        return sorted(_files(store, place))


def deliver(folder: Path, path: Path, files: Sequence[str]) -> None:
    """Upload files of a folder to an address in this order, after the last of them, which marks the rest, was removed.

    So a reader finds what was there before, or nothing whole, or what is new.
    """
    address = address_of(path)
    assert address is not None
    with _store(address) as (store, place):
        if files[-1] in _files(store, place):
            store.delete_file(f"{place}/{files[-1]}")
        for name in files:
            _upload(store, f"{place}/{name}", (folder / name).read_bytes())


def put(path: Path, content: bytes) -> None:
    """Write one file at an address: a reader sees the old content or the new."""
    address = address_of(path)
    assert address is not None
    with _store(address) as (store, place):
        _upload(store, place, content)


def remove(path: Path) -> None:
    """Remove the file at an address."""
    address = address_of(path)
    assert address is not None
    with _store(address) as (store, place):
        store.delete_file(place)


@contextmanager
def _store(address: str) -> Iterator[tuple[Any, str]]:
    """The file system of an address, and the path in it; whatever it raises becomes one sentence."""
    from pyarrow import ArrowException

    try:
        yield _opened(address)
    except IleedError:
        raise
    except (ImportError, OSError, ValueError, ArrowException) as error:
        reason = brief(OSError(_without_user(str(error), address)))  # redacted before it is cut
        sentence = (
            f"{brief(address)} needs another package: {reason}"  # as fsspec says, with what to install
            if isinstance(error, ImportError)
            else f"{brief(address)} cannot be reached ({reason}): check the address, the network, and the credentials"
        )
        # a traceback shows causes, whose messages may contain the credentials
        raise RunError(sentence) from (None if user_information(address) else error)


def _without_user(text: str, address: str) -> str:
    """The text without the user information of an address, whether or not the address stands before it."""
    user = user_information(address)
    parts = {unquote(part) for part in (user, *user.split(":", 1))} | {user, *user.split(":", 1)}
    for part in sorted(filter(None, parts), key=len, reverse=True):
        text = text.replace(part, "***")
    return text


def _opened(address: str) -> tuple[Any, str]:
    from pyarrow import fs

    try:
        return fs.FileSystem.from_uri(quote(_limited(address), safe=punctuation))  # a space, say
    except (ValueError, NotImplementedError):  # a scheme that Arrow does not know
        scheme, _, place = address.partition("://")
        spec = require("fsspec", extra="stores")
        return fs.PyFileSystem(fs.FSSpecHandler(spec.filesystem(scheme))), place


def _limited(address: str) -> str:
    """An address of Google's with a limit on the time of attempts, unless it has one."""
    if not address.startswith(("gs://", "gcs://")) or "retry_limit_seconds=" in address:
        return address
    return f"{address}{'&' if '?' in address else '?'}{_GOOGLE_LIMIT}"


def _files(store: Any, place: str) -> dict[str, Any]:
    """What is under a path, by its path from there; a file has the empty one."""
    from pyarrow import fs

    found = store.get_file_info(place)
    if found.type == fs.FileType.File:
        return {"": found}
    every = store.get_file_info(fs.FileSelector(place, recursive=True, allow_not_found=True))
    files = [each for each in every if each.type == fs.FileType.File]
    return {each.path.lstrip("/").removeprefix(f"{place.strip('/')}/"): each for each in files}


def _is_read(name: str) -> bool:
    return not any(PurePosixPath(name).match(pattern) for pattern in NOT_READ)


def _fetch(store: Any, files: dict[str, Any], copy: Path) -> None:
    """Download files to where a path is, all of them or none."""
    copy.parent.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=copy.parent.parent))
    try:
        for name, info in files.items():
            target = folder / copy.name / name
            if ".." in PurePosixPath(name).parts:
                raise RunError(f"{brief(info.path)} leads out of its folder: rename it in the store")
            target.parent.mkdir(parents=True, exist_ok=True)
            with store.open_input_stream(info.path) as source, target.open("wb") as written:
                shutil.copyfileobj(source, written)
        try:
            folder.replace(copy.parent)
        except OSError:
            if not copy.exists():  # else another process was faster
                raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _upload(store: Any, place: str, content: bytes) -> None:
    with store.open_output_stream(place) as target:
        target.write(content)


def _cache(key: str) -> Path:
    home = Path(os.environ.get("ILEED_CACHE") or Path.home() / ".cache" / "ileed")
    return home / "stores" / hashlib.blake2b(key.encode(), digest_size=12).hexdigest()
