"""Data sets on the Hugging Face hub: hf://datasets/OWNER/NAME[@REVISION][/PATH], downloaded without videos and images.

Files come into the hub's own cache (HF_HOME), from which they are read where there is no network.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

from ileed import stores
from ileed.errors import DemonstrationError, brief, require

SCHEME = "hf://datasets/"
_ADDRESS = re.compile(r"hf:/{1,2}datasets/(?P<repo>[^/@]+/[^/@]+)(@(?P<revision>[^/]+))?(/(?P<path>.*))?", re.DOTALL)


def local_copy(path: Any) -> Any:
    """Where the files of an address of the hub or of an object store lie, once they are downloaded; all else, as it is.

    A `Path` has lost one of the two slashes after `hf:`; it is understood too.
    """
    if stores.address_of(path):
        return stores.fetched(Path(path))
    if not isinstance(path, str | Path) or not str(path).startswith(("hf:/", "hf://")):
        return path
    found = _ADDRESS.fullmatch(str(path).rstrip("/"))
    if found is None:
        raise DemonstrationError(
            f"{brief(str(path))} is no address of a data set: write {SCHEME}OWNER/NAME, {SCHEME}OWNER/NAME@REVISION or "
            f"{SCHEME}OWNER/NAME/PATH"
        )
    inside = PurePosixPath(found["path"] or ".")
    if inside.is_absolute() or ".." in inside.parts:
        raise DemonstrationError(f"{brief(str(path))} leads out of the data set: name a path inside it")
    return _downloaded(found["repo"], found["revision"] and unquote(found["revision"]), inside)


@cache  # a command asks several times; the files of one revision do not change
def _downloaded(repo_id: str, revision: str | None, inside: PurePosixPath) -> Path:
    hub = require("huggingface_hub", extra="hub")
    chosen = None if inside == PurePosixPath(".") else [str(inside), f"{inside}/*"]
    options = {"revision": revision, "allow_patterns": chosen, "ignore_patterns": list(stores.NOT_READ)}
    try:
        folder = Path(hub.snapshot_download(repo_id, repo_type="dataset", **options))
    except Exception as error:
        raise DemonstrationError(
            f"the data set {brief(repo_id)} cannot be had from the hub ({brief(error)}): check its name (OWNER/NAME), "
            "the revision, the network, and `hf auth login`"
        ) from error
    place = folder / inside
    if not place.exists():
        raise DemonstrationError(f"the data set {brief(repo_id)} has no {brief(str(inside))}: check the path")
    return place
