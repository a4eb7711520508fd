"""Readers and writers of data sets on disk: one file a format, the same signature for all."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ileed import plugins
from ileed.checking import instance_of, path_of, shown
from ileed.demonstrations import Demonstrations
from ileed.errors import DemonstrationError
from ileed.readers.labels import Labeller, by_column, by_mask, by_one
from ileed.readers.parquet import read_parquet, write_parquet
from ileed.readers.robomimic import label_robomimic, read_robomimic, write_robomimic
from ileed.readers.tables import from_table, read_table
from ileed.wording import did_you_mean

__all__ = [
    "Labeller",
    "by_column",
    "by_mask",
    "by_one",
    "from_table",
    "label_robomimic",
    "read",
    "read_parquet",
    "read_robomimic",
    "shipped",
    "write_parquet",
    "write_robomimic",
]


def _check_reader(ending: str, found: Any) -> Callable[..., Demonstrations]:
    if not callable(found) or "demonstrator" not in inspect.signature(found).parameters:
        raise DemonstrationError(
            f"the entry point {ending} of the group {plugins.READERS} is {shown(found)}, but must be a function of "
            "(path, *, demonstrator, ...)"
        )
    return found


_READERS: plugins.Registry[Callable[..., Demonstrations]] = plugins.Registry(
    plugins.READERS,
    {"parquet": read_parquet, "hdf5": read_robomimic, "h5": read_robomimic, "csv": read_table, "tsv": read_table},
    _check_reader,
)


def read(path: str | Path, *, demonstrator: Labeller | None = None, **options: Any) -> Demonstrations:
    """Demonstrations from a file, by the ending of its name.

    `demonstrator` says where in the file it stands who did what; None takes the format's own place for it, and a format
    that has none asks for it. `options` are those of the format's own reader, such as `observations` and `filter_key`
    of `read_robomimic`; one that the format does not have is refused.
    """
    path = path_of("path", path, rule="pass the path of a file", error=DemonstrationError)
    if demonstrator is not None:
        rule = f"pass where it stands, as in by_column({demonstrator!r})" if isinstance(demonstrator, str) else _LABELS
        instance_of("demonstrator", demonstrator, Labeller, rule=rule, error=DemonstrationError)
    if not _exists(path):
        name = str(path)
        raise DemonstrationError(f"there is no file {name if len(name) < 300 else shown(name)}: check the path")
    reader = _READERS.get(path.suffix.removeprefix("."))
    if reader is None:
        formats = ", ".join(f".{ending}" for ending in _READERS)
        raise DemonstrationError(f"{path.name} is of no known format: there are readers for {formats}")
    known = [name for name in inspect.signature(reader).parameters if name not in ("path", "demonstrator")]
    if strange := [name for name in options if name not in known]:
        raise DemonstrationError(
            f"{strange[0]} does not apply to {path.suffix} files{did_you_mean(strange[0], known)}: "
            + (f"the options of these are {', '.join(known)}" if known else "leave it out")
        )
    return reader(path, demonstrator=demonstrator, **options)


_LABELS = "pass by_column(...), by_mask(...) or by_one(...), or None for the format's own place"


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # such as a name that no file could have
        return False


def shipped(name: str = "obstacles") -> Demonstrations:
    """A data set that comes with the package.

    "obstacles", of the demo: ten demonstrators in MiniGrid's Dynamic-Obstacles, 1,000 steps each, of whom the first
    follows an expert 99 times in a hundred and the others once; otherwise they act at random.
    `ileed demonstrate minigrid/obstacles --population beta-1 --out FILE` makes it anew.

    "square": six operators of three tiers in robosuite's Square, two episodes each: enough to try things on, too little
    to learn from. `ileed demonstrate robot/square --out FILE` makes fifty each, of which these are the first.
    """
    files = {"obstacles": "obstacles-beta-1.parquet", "square": "square-small.hdf5"}
    if name not in files:
        raise DemonstrationError(f"no data set {name!r} is shipped: there are {', '.join(files)}")
    return read(Path(__file__).parent.parent / "data" / files[name])
