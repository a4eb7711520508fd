"""Formats of data sets on disk: one module for each, with its reader and its writer, behind one interface.

`read` and `write` are the only doors; a format answers everything else about itself (`AbstractFormat`). This package
must not know about fitting, rating or reports.

A format of the library is a module of this package with a `FORMAT`, and a line in `_OURS`. A package adds one by
an entry point of the group `ileed.formats` whose value is an `AbstractFormat`. The library's own formats go first.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from ileed import plugins
from ileed.data import Demonstrations, check_demonstrations
from ileed.errors import (
    DemonstrationError,
    IleedError,
    callable_or_none,
    instance_of,
    one_of,
    path_of,
    printable,
    true_or_false,
)
from ileed.formats import crowd, imitation, lerobot, minari, parquet, robomimic, tables
from ileed.formats.core import (
    AbstractFormat,
    Candidate,
    Labeller,
    Option,
    by_column,
    by_episode_metadata,
    by_episode_table,
    by_mask,
    by_one,
    check_options,
)
from ileed.formats.crowd import from_answers
from ileed.formats.files import DATA_SET
from ileed.formats.imitation import read_imitation, write_imitation
from ileed.formats.lerobot import read_lerobot, write_lerobot
from ileed.formats.minari import read_minari, write_minari
from ileed.formats.openpi import read_openpi_filter, write_openpi_filter
from ileed.formats.parquet import read_parquet, read_parts, write_parquet, write_parts
from ileed.formats.robomimic import label_robomimic, read_robomimic, write_robomimic
from ileed.formats.tables import from_table
from ileed.runs import stores
from ileed.runs.files import is_taken, replace_folder

__all__ = [
    "AbstractFormat",
    "Candidate",
    "Labeller",
    "Option",
    "by_column",
    "by_episode_metadata",
    "by_episode_table",
    "by_mask",
    "by_one",
    "format_of",
    "format_to_write",
    "formats",
    "from_answers",
    "from_table",
    "label_robomimic",
    "our_formats",
    "read",
    "read_imitation",
    "read_lerobot",
    "read_minari",
    "read_openpi_filter",
    "read_parquet",
    "read_parts",
    "read_robomimic",
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

_OURS: tuple[AbstractFormat, ...] = (
    parquet.FORMAT,
    robomimic.FORMAT,
    tables.FORMAT,
    lerobot.FORMAT,
    minari.FORMAT,
    imitation.FORMAT,
    crowd.FORMAT,
    parquet.FOLDER,  # recognises any folder with an Arrow file
)


def read(
    path: str | Path,
    *,
    demonstrator: Labeller | str | None = None,
    progress: Callable[[int, int], object] | None = None,
    **options: Any,
) -> Demonstrations:
    """Read demonstrations from a file or folder of any format.

    Args:
        path: A file or folder, an address in an object store, or a data set of the Hugging Face hub
            (hf://datasets/OWNER/NAME, with @REVISION and /PATH where needed), of which no videos and images are
            downloaded.
        demonstrator: Where the data set names its demonstrators, such as `by_column("operator")`, or for tables the
            name of a column; None for the place where the format keeps them.
        progress: Called with the number of bytes read and their total, by formats that are read in blocks.
        options: Those of the format, such as `observations` and `filter_key` for robomimic files, or `action`,
            `episode` and `features` for tables, as in `from_table`. An option that the format lacks is refused.

    >>> data = read("triage.csv", action="decision", demonstrator="nurse", episode="case")  # doctest: +SKIP
    """
    copy = path_of("path", stores.local_copy(path), rule="pass the path of a file", error=DemonstrationError)
    callable_or_none("progress", progress, rule="pass a function of the number done and the total, or None")
    rule = "pass by_column(...), by_mask(...) or the like, or None for the format's own place"
    instance_of("demonstrator", demonstrator, Labeller | str | None, rule=rule, error=DemonstrationError)
    if not os.path.exists(copy):
        raise DemonstrationError(f"there is no file {printable(str(copy), 300)}: check the path")
    with stores.name_address_in_errors(path, copy):
        found = format_of(copy, options)
        labeller = found.labeller(demonstrator)
        check_options(options, found.options, f"{copy.suffix or found.name} files")
        if progress is not None and "progress" in inspect.signature(found.read).parameters:
            options["progress"] = progress
        return found.read(copy, demonstrator=labeller, **options)


def write(
    demonstrations: Demonstrations,
    path: str | Path,
    *,
    format: str | None = None,  # noqa: A002 (what users of pandas and others call it)
    overwrite: bool = False,
    **options: Any,
) -> None:
    """Write demonstrations as a file or folder, completely or not at all.

    The suffix of the path selects the format unless `format` names it; a folder has no suffix, so its format must be
    named. `options` are those of the format's writer. An existing path is an error unless `overwrite` is set, which
    replaces a file, or in a folder the files that an earlier call wrote; others in it stay.
    """
    check_demonstrations(demonstrations)
    path = path_of("path", path, rule="pass the path of a file or folder", error=DemonstrationError)
    target = format_to_write(path, format)
    check_options(options, target.write_options, f"the format {target.name}")
    writer = target.write
    assert writer is not None
    check_output(path, overwrite=true_or_false("overwrite", overwrite))
    if not stores.address_of(path) and os.path.isdir(path) and any(path.iterdir()):
        with replace_folder(path, DATA_SET) as partial:
            partial.rmdir()  # writers make their folder themselves
            writer(demonstrations, partial, **options)
    else:
        writer(demonstrations, path, **options)


def check_output(path: Path, *, overwrite: bool) -> None:
    """Refuse to write a data set to a path that exists, unless it is a file or folder of ours to overwrite."""
    is_folder = not stores.address_of(path) and os.path.isdir(path)
    if not is_taken(path) or (is_folder and not any(path.iterdir())):
        return
    shown = printable(stores.name_of(path), 300)
    if not overwrite:
        raise DemonstrationError(
            f"{shown} exists already: choose another place, or replace it (--overwrite, in Python overwrite=True)"
        )
    if is_folder and not DATA_SET.files(path):
        raise DemonstrationError(
            f"{shown} holds no data set that ileed wrote: choose another place, or remove it first"
        )


def our_formats() -> tuple[AbstractFormat, ...]:
    """The library's own formats."""
    return _OURS


def formats(broken: list[IleedError] | None = None) -> Iterator[AbstractFormat]:
    """Every format, ours first; a package that contributes one is imported when its turn comes.

    A contribution that cannot be loaded or is not an `AbstractFormat` is left out, and its error added to `broken`.
    """
    yield from _OURS
    yield from (found for _, found in _CONTRIBUTED.usable(broken))


def format_of(path: Path, options: Collection[str] = ()) -> AbstractFormat:
    """The format of a file or folder: the first that recognises it and has these options, else the first."""
    first = None
    for each in formats():
        if each.can_read_with(path, options):
            if {*options} <= {*each.options}:
                return each
            first = first or each
    if first is not None:
        return first
    broken: list[IleedError] = []
    known = ", ".join(suffix or f"folders of {each.name}" for each in formats(broken) for suffix in each.suffixes)
    told = "".join(f"; {error}" for error in broken)
    raise DemonstrationError(f"{path.name} is of no known format: there are readers for {known}{told}")


def format_to_write(path: Path, name: str | None = None) -> AbstractFormat:
    """The format in which `write` writes a path: the one with this name, or else the one with its suffix."""
    writable = {each.name: each for each in formats() if each.write is not None}
    if name is not None:
        return writable[one_of("format", name, writable)]
    if path.suffix and (found := [each for each in writable.values() if path.suffix.lower() in each.suffixes]):
        return found[0]
    raise DemonstrationError(
        f"{stores.base_name(path)} names no format: pass format= (at the command: --format), one of "
        f"{', '.join(writable)}"
    )


def _check_format(name: str, found: Any) -> AbstractFormat:
    rule = f"an entry point of the group {plugins.FORMATS} must name an ileed.formats.AbstractFormat"
    checked: AbstractFormat = instance_of(
        f"the format {name}", found, AbstractFormat, rule=rule, error=DemonstrationError
    )
    return checked


_CONTRIBUTED: plugins.Registry[AbstractFormat] = plugins.Registry(plugins.FORMATS, {}, _check_format)


def shipped(name: str = "obstacles") -> Demonstrations:
    """A data set that comes with the package.

    "obstacles", used by the demo, has ten demonstrators in MiniGrid's Dynamic-Obstacles, 1,000 steps each. The first
    follows an expert with probability 0.99, the others with 0.01; otherwise they act at random. `ileed demonstrate
    minigrid/obstacles --population beta-1 --out FILE` generates it.

    "square" has six operators of three tiers in robosuite's Square with two episodes each: enough to try things out,
    too little to learn from. `ileed demonstrate robot/square --out FILE` generates fifty episodes of each operator, of
    which these are the first two.
    """
    files = {"obstacles": "obstacles-beta-1.parquet", "square": "square-small.hdf5"}
    return read(Path(__file__).parent / "shipped" / files[one_of("name", name, files, error=DemonstrationError)])
