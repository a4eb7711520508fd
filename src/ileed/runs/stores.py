"""Addresses of data and run directories elsewhere: object stores, and data sets on the Hugging Face hub.

A store is addressed as s3://BUCKET/KEY, gs://BUCKET/KEY, or by another scheme of fsspec. Whatever is read is first
downloaded into a cache on this machine (ILEED_CACHE, or ~/.cache/ileed), and again when it has changed in the store.
Whatever is written is made on this machine first. A data set on the hub is addressed as
hf://datasets/OWNER/NAME[@REVISION][/PATH]; it is downloaded without videos and images into the hub's own cache
(HF_HOME), from which it can be read offline. A `Path` has lost one of the two slashes of an address, and is accepted
too.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path, PurePosixPath
from string import punctuation
from typing import Any
from urllib.parse import quote, unquote

from ileed.errors import DemonstrationError, IleedError, RunError, brief, redact, require, user_information

_NOT_READ = ("videos/*", "images/*", *(f"*.{ending}" for ending in ("mp4", "mkv", "avi", "webm", "png", "jpg", "jpeg")))
_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+):(/*)(.*)", re.DOTALL)  # scheme, slashes, place
_HUB = re.compile(r"hf:/{1,2}datasets/(?P<repo>[^/@]+/[^/@]+)(@(?P<revision>[^/]+))?(/(?P<path>.*))?", re.DOTALL)
_KNOWN = ("s3", "gs", "gcs", "abfs", "abfss", "az", "memory")  # recognised even if a `Path` has removed both slashes
_NO_STORES = ("file", "hf", "http", "https")  # the hub has its own client, and the web is not a store
_RECENT_SECONDS = 10  # a file may still change within the second of its modification time


def address_of(path: Any) -> str | None:
    """The address in a store that a path or text names, or None; a scheme without a bucket is an error."""
    if not isinstance(path, str | os.PathLike):
        return None
    found = _ADDRESS.fullmatch(str(path))
    if found is None or found[1] in _NO_STORES:
        return None
    scheme, slashes, place = found.groups()
    if not place and (slashes or scheme in _KNOWN):
        raise RunError(f"{scheme}:// names no bucket: write {scheme}://BUCKET/KEY")
    return f"{scheme}://{place.rstrip('/')}" if place and len(slashes) in (1, 2) else None


def name_of(path: str | os.PathLike[str]) -> str:
    """A path as messages show it: an address has both slashes and no user information."""
    return redact(address_of(path) or str(path))


def base_name(path: Path) -> str:
    """The last component of a path or address, as titles and messages show it."""
    return path.resolve().name if address_of(path) is None else PurePosixPath(name_of(path).partition("?")[0]).name


@contextmanager
def name_address_in_errors(path: Any, copy: Any) -> Iterator[None]:
    """Name the address in errors about its local copy."""
    try:
        yield
    except IleedError as error:
        if address_of(path):
            error.args = tuple(str(each).replace(str(copy), name_of(path)) for each in error.args)
        raise


def exists(path: Path) -> bool:
    """Whether a file, folder or link exists at a path or address."""
    if not address_of(path):
        return os.path.lexists(path)
    from pyarrow import fs

    with _store(path) as (store, place):
        return bool(store.get_file_info(place).type != fs.FileType.NotFound)


def read_head(path: Path, size: int) -> bytes:
    """The first bytes of the file at a path or address; empty if there is no file at the address."""
    if not address_of(path):
        with path.open("rb") as opened:
            return opened.read(size)
    from pyarrow import fs

    with _store(path) as (store, place):
        if store.get_file_info(place).type != fs.FileType.File:
            return b""
        with store.open_input_stream(place, compression=None) as opened:
            return bytes(opened.read(size))


def fetched(path: Path) -> Path:
    """The local copy of the file or folder at an address, downloaded if necessary; any other path is returned as is."""
    if (address := address_of(path)) is None:
        return path
    with _store(path) as (store, place):
        every = _files(store, place)
        files = {name: every[name] for name in every if not any(map(PurePosixPath(name).match, _NOT_READ))}
        if not files:
            raise RunError(f"there is nothing at {brief(address)}: check the bucket and the key")
        versions = [(name, info.size, _version(store, info)) for name, info in sorted(files.items())]
        copy = _cache(repr((address, versions))) / base_name(path)
        if not copy.exists():
            _fetch(store, files, copy)
    return copy


def local_copy(path: Any) -> Any:
    """The local copy of an address of the hub or of an object store; anything else is returned as is."""
    if address_of(path):
        return fetched(Path(path))
    if not isinstance(path, str | Path) or not str(path).startswith("hf:/"):
        return path
    found = _HUB.fullmatch(str(path).rstrip("/"))
    if found is None:
        raise DemonstrationError(
            f"{brief(str(path))} is not the address of a data set: write hf://datasets/OWNER/NAME, "
            "hf://datasets/OWNER/NAME@REVISION or hf://datasets/OWNER/NAME/PATH"
        )
    inside = PurePosixPath(found["path"] or ".")
    if inside.is_absolute() or ".." in inside.parts:
        raise DemonstrationError(f"{brief(str(path))} leads out of the data set: name a path inside it")
    return _downloaded(found["repo"], found["revision"] and unquote(found["revision"]), inside)


@cache  # a command asks several times, and the files of a revision do not change
def _downloaded(repo_id: str, revision: str | None, inside: PurePosixPath) -> Path:
    hub = require("huggingface_hub", extra="hub")
    chosen = None if inside == PurePosixPath(".") else [str(inside), f"{inside}/*"]
    options = {"revision": revision, "allow_patterns": chosen, "ignore_patterns": list(_NOT_READ)}
    try:
        folder = Path(hub.snapshot_download(repo_id, repo_type="dataset", **options))
    except Exception as error:
        raise DemonstrationError(
            f"the data set {brief(repo_id)} cannot be downloaded ({brief(error)}): check its name (OWNER/NAME), "
            "the revision, the network, and `hf auth login`"
        ) from error
    place = folder / inside
    if not place.exists():
        raise DemonstrationError(f"the data set {brief(repo_id)} has no {brief(str(inside))}: check the path")
    return place


def mirror(path: Path) -> Path:
    """Where files for an address are made on this machine; any other path is returned as is."""
    address = address_of(path)
    return path if address is None else _cache(f"to {address}") / base_name(path)


def check(path: Path) -> list[str]:
    """The names of the files under an address; an error if the store does not answer."""
    with _store(path) as (store, place):
        return sorted(_files(store, place))


def deliver(folder: Path, path: Path, files: Sequence[str]) -> None:
    """Upload files of a folder to an address in this order; the last one marks the others as complete.

    It is removed first, so that a reader finds the old content, or nothing complete, or the new content.
    """
    with _store(path) as (store, place):
        if files[-1] in _files(store, place):
            store.delete_file(f"{place}/{files[-1]}")
        for name in files:
            _upload(store, f"{place}/{name}", (folder / name).read_bytes())


def put(path: Path, content: bytes) -> None:
    """Write one file at an address, atomically."""
    with _store(path) as (store, place):
        _upload(store, place, content)


def remove(path: Path) -> None:
    """Remove the file at an address."""
    with _store(path) as (store, place):
        store.delete_file(place)


@contextmanager
def _store(path: Path) -> Iterator[tuple[Any, str]]:
    """The file system of an address, and the path in it; its errors become one sentence."""
    from pyarrow import ArrowException

    address = address_of(path)
    assert address is not None
    try:
        yield _opened(address)
    except IleedError:
        raise
    except (ImportError, OSError, ValueError, ArrowException) as error:
        reason = brief(OSError(_without_user(str(error), address)))  # redacted before it is cut
        sentence = (
            f"{brief(address)} needs another package: {reason}"  # the message of fsspec says what to install
            if isinstance(error, ImportError)
            else f"{brief(address)} cannot be reached ({reason}): check the address, the network, and the credentials"
        )
        # a traceback shows causes, whose messages may contain the credentials
        raise RunError(sentence) from (None if user_information(address) else error)


def _without_user(text: str, address: str) -> str:
    """The text without the user information of an address, even where the address is not quoted with it."""
    user = user_information(address)
    parts = {unquote(part) for part in (user, *user.split(":", 1))} | {user, *user.split(":", 1)}
    for part in sorted(filter(None, parts), key=len, reverse=True):
        text = text.replace(part, "***")
    return text


def _opened(address: str) -> tuple[Any, str]:
    from pyarrow import fs

    limited = address
    if address.startswith(("gs://", "gcs://")) and "retry_limit_seconds=" not in address:
        limited += f"{'&' if '?' in address else '?'}retry_limit_seconds=8"  # by default it retries for minutes offline
    try:
        return fs.FileSystem.from_uri(quote(limited, safe=punctuation))  # keys may contain spaces
    except (ValueError, NotImplementedError):  # a scheme that Arrow does not know
        scheme, _, place = address.partition("://")
        spec = require("fsspec", extra="stores")
        return fs.PyFileSystem(fs.FSSpecHandler(spec.filesystem(scheme))), place


def _files(store: Any, place: str) -> dict[str, Any]:
    """The files under a path by their relative paths; the relative path of a single file is empty."""
    from pyarrow import fs

    found = store.get_file_info(place)
    if found.type == fs.FileType.File:
        return {"": found}
    every = store.get_file_info(fs.FileSelector(place, recursive=True, allow_not_found=True))
    files = [each for each in every if each.type == fs.FileType.File]
    return {each.path.lstrip("/").removeprefix(f"{place.strip('/')}/"): each for each in files}


def _version(store: Any, info: Any) -> int | str:
    """The modification time of a file, or a digest of its content if the time cannot tell two versions apart.

    Some stores report no time, and S3 reports whole seconds: two versions of equal size within a second look alike.
    """
    written = info.mtime_ns
    if written and (written % 10**9 or time.time_ns() - written > _RECENT_SECONDS * 10**9):
        return int(written)
    with store.open_input_stream(info.path, compression=None) as opened:
        return hashlib.file_digest(opened, "blake2b").hexdigest()


def _fetch(store: Any, files: dict[str, Any], copy: Path) -> None:
    """Download all files to a new folder, or none."""
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
            if not copy.exists():  # otherwise another process was faster
                raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _upload(store: Any, place: str, content: bytes) -> None:
    with store.open_output_stream(place) as target:
        target.write(content)


def _cache(key: str) -> Path:
    home = Path(os.environ.get("ILEED_CACHE") or Path.home() / ".cache" / "ileed")
    return home / "stores" / hashlib.blake2b(key.encode(), digest_size=12).hexdigest()
