"""Readers and writers of data sets on disk: one module for each format, the same signature for all."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ileed import stores
from ileed.checking import callable_or_none, instance_of, one_of, path_of, true_or_false
from ileed.demonstrations import Demonstrations, check_demonstrations
from ileed.errors import DemonstrationError
from ileed.readers.crowd import from_answers
from ileed.readers.episode_table import by_episode_table
from ileed.readers.folders import DATA_SET
from ileed.readers.hub import local_copy
from ileed.readers.imitation_trajectories import read_imitation, write_imitation
from ileed.readers.lerobot import read_lerobot
from ileed.readers.lerobot_writer import write_lerobot
from ileed.readers.minari import read_minari
from ileed.readers.minari_writer import write_minari
from ileed.readers.openpi import read_openpi_filter, write_openpi_filter
from ileed.readers.parquet import read_parquet, write_parquet
from ileed.readers.parts import read_parts, write_parts
from ileed.readers.reader import (
    Candidate,
    Labeller,
    Reader,
    by_column,
    by_episode_metadata,
    by_mask,
    by_one,
    reader_of,
    readers,
)
from ileed.readers.robomimic import label_robomimic, read_robomimic
from ileed.readers.robomimic_writer import write_robomimic
from ileed.readers.tables import from_table
from ileed.runs.replacing import is_taken, replace_folder
from ileed.wording import did_you_mean, printable

__all__ = [
    "Candidate",
    "Labeller",
    "Reader",
    "by_column",
    "by_episode_metadata",
    "by_episode_table",
    "by_mask",
    "by_one",
    "format_to_write",
    "from_answers",
    "from_table",
    "label_robomimic",
    "read",
    "read_imitation",
    "read_lerobot",
    "read_minari",
    "read_openpi_filter",
    "read_parquet",
    "read_parts",
    "read_robomimic",
    "reader_of",
    "readers",
    "shipped",
    "write",
    "write_imitation",
    "write_lerobot",
    "write_minari",
    "write_openpi_filter",
    "write_parquet",
    "write_parts",
    "write_robomimic",
]


def read(
    path: str | Path,
    *,
    demonstrator: Labeller | None = None,
    progress: Callable[[int, int], object] | None = None,
    **options: Any,
) -> Demonstrations:
    """Demonstrations from a file, by the ending of its name, or from a folder.

    `path` may be a data set of the Hugging Face hub, hf://datasets/OWNER/NAME, with @REVISION and /PATH where needed:
    what readers need of it is downloaded into the hub's cache, without videos and images (extra `hub`).

    `demonstrator` says where in the file it stands who did what; None takes the format's own place for it, and a format
    that has none asks for it. `options` are those of the format's own reader, such as `observations` and `filter_key`
    of `read_robomimic`; one that the format does not have is refused. `progress` is called with the number of bytes
    read and their total, by formats that are read in parts: folders of parquet or Arrow files.
    """
    copy = path_of("path", local_copy(path), rule="pass the path of a file", error=DemonstrationError)
    if demonstrator is not None:
        rule = "pass by_column(...), by_mask(...) or the like, or None for the format's own place"
        if isinstance(demonstrator, str):
            rule = f"pass where it stands, as in by_column({demonstrator!r})"
        instance_of("demonstrator", demonstrator, Labeller, rule=rule, error=DemonstrationError)
    callable_or_none("progress", progress, rule="pass a function of the number done and the total, or None")
    if not os.path.exists(copy):
        raise DemonstrationError(f"there is no file {printable(str(copy), 300)}: check the path")
    with stores.name_address_in_errors(path, copy):
        return _read(copy, demonstrator, progress, options)


def _read(
    path: Path,
    demonstrator: Labeller | None,
    progress: Callable[[int, int], object] | None,
    options: Mapping[str, Any],
) -> Demonstrations:
    """Demonstrations from a file or folder of this machine, by its own reader."""
    reader = reader_of(path)
    if unknown := next((name for name in options if name not in reader.options), None):
        known = f"the options of these are {', '.join(reader.options)}" if reader.options else "leave it out"
        meant = did_you_mean(unknown, reader.options)
        raise DemonstrationError(f"{unknown} does not apply to {path.suffix or reader.name} files{meant}: {known}")
    told = {"progress": progress} if progress is not None and reader.reports_progress else {}
    return reader.read(path, demonstrator=demonstrator, **told, **options)


def write(
    demonstrations: Demonstrations,
    path: str | Path,
    *,
    format: str | None = None,  # noqa: A002 (what users of pandas and others call it)
    overwrite: bool = False,
    **options: Any,
) -> None:
    """Write demonstrations in a format, by its name or else by the ending of the file's, whole or not at all.

    A folder has no ending, so that its format must be named. `options` are those of the format's own writer. A path
    that exists is an error, unless `overwrite` is set. Then a file is replaced, and in a folder the files that an
    earlier call wrote; others in it stay.
    """
    check_demonstrations(demonstrations)
    path = path_of("path", path, rule="pass the path of a file or folder", error=DemonstrationError)
    writer = _writers()[format_to_write(path, format)]
    check_output(path, overwrite=true_or_false("overwrite", overwrite))
    if not stores.address_of(path) and os.path.isdir(path) and any(path.iterdir()):
        with replace_folder(path, DATA_SET, overwrite=True) as partial:
            partial.rmdir()  # writers make their folder themselves
            writer(demonstrations, partial, **options)
    else:
        writer(demonstrations, path, **options)


def check_output(path: Path, *, overwrite: bool) -> None:
    """Refuse to write a data set to a path that exists, unless it is a file or folder of ours to overwrite."""
    is_folder = not stores.address_of(path) and os.path.isdir(path)
    if not is_taken(path, DATA_SET) or (is_folder and not any(path.iterdir())):
        return
    shown = printable(stores.name_of(path), 300)
    if not overwrite:
        raise DemonstrationError(
            f"{shown} exists already: choose another place, or replace it (--overwrite, in Python overwrite=True)"
        )
    if is_folder and not DATA_SET.of(path):
        raise DemonstrationError(
            f"{shown} holds no data set that ileed wrote: choose another place, or remove it first"
        )


def format_to_write(path: Path, name: str | None = None) -> str:
    """The format in which `write` writes a path: of this name, or else by the ending of the file's."""
    formats = _writers()
    if name is not None:
        return one_of("format", name, formats)
    by_ending = [reader.name for reader in readers() if path.suffix and path.suffix.lower() in reader.suffixes]
    if found := next((each for each in by_ending if each in formats), None):
        return found
    raise DemonstrationError(
        f"{stores.base_name(path)} names no format: pass format= (at the command: --format), one of "
        f"{', '.join(formats)}"
    )


def _writers() -> dict[str, Callable[..., None]]:
    return {reader.name: reader.write for reader in readers() if reader.write is not None}


def shipped(name: str = "obstacles") -> Demonstrations:
    """A data set that comes with the package.

    "obstacles", of the demo: ten demonstrators in MiniGrid's Dynamic-Obstacles, 1,000 steps each, of whom the first
    follows an expert 99 times in a hundred and the others once; otherwise they act at random. "square": six operators
    of three tiers in robosuite's Square, two episodes each: enough to try things on, too little to learn from.
    `ileed demonstrate minigrid/obstacles --population beta-1 --out FILE` makes the one, and
    `ileed demonstrate robot/square --out FILE` fifty episodes of each operator, of which these are the first.
    """
    files = {"obstacles": "obstacles-beta-1.parquet", "square": "square-small.hdf5"}
    return read(Path(__file__).parent.parent / "data" / files[one_of("name", name, files, error=DemonstrationError)])
